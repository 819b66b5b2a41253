"""``rnic compare``: plays a capture on several devices and on the golden model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from ..hdl.spec.config import RnicConfig
from ..sim.devices.room import Room
from ..sim.reports.device_results import DeviceResults
from ..sim.reports.report import Result, left_out_text
from .inputs import Asked, Assume, Regions, SctpPort, planned
from .outcome import DIFFERS, check_directory, exits, make_directory, writing
from .results import print_notes
from .terminal import bar, colored, console, print_table, say
from .waves import Cycles, Parts, cycles_of, waves_of


@exits(ValueError)
def compare(
    capture: Annotated[
        Path | None,
        typer.Argument(
            help="pcap or pcapng file, as for sim. Default: a generated workload.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        str, typer.Option(help="Devices that play it: rtl, gates, board; commas separate several.")
    ] = "rtl",
    width: Annotated[
        int | None,
        typer.Option(
            help="Datapath width in bits. Default: 64, or the board's.", show_default=False
        ),
    ] = None,
    regions: Regions = None,
    port: Annotated[
        str | None, typer.Option(help="Serial port of the board.", show_default=False)
    ] = None,
    baud: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rate of the board's host link. Default: 1000000.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for report.html and waveforms.", show_default=False),
    ] = None,
    waves: Parts = None,
    cycles: Cycles = None,
    assume: Assume = None,
    sctp_port: SctpPort = None,
) -> None:
    """Play a capture through the driver on several devices and on the golden model, and compare.

    Exit code 0: all agree. 1: one differs or fails. 2: bad input. 3: a tool is
    missing. 130: interrupted.
    """
    from ..sim.devices import targets
    from ..sim.reports import device_results, page
    from ..sw_driver.transports.uart import BAUD

    chosen = targets.of_names(on, port)
    if waves and out is None:
        raise ValueError("--waves needs --out, the directory for the waveforms")
    if targets.Target.GATES in chosen and waves not in (None, "all"):
        raise ValueError("--on gates has no parts to show: use --waves all")
    if baud is not None and port is None:
        raise ValueError("--baud needs --port, the serial port of the board's host link")
    rate = BAUD if baud is None else baud
    check_directory(out)
    shown = cycles_of(cycles, waves)
    config, room = _device(port, rate, width)
    waves_of(waves, Path(), config)  # raises before anything is written
    asked = Asked(capture, regions, assume or [], sctp_port or [])
    plans, found = planned(asked, config, room)
    result = DeviceResults(asked.source, config.width, notes=found.notes, left_out=found.left_out)
    make_directory(out)
    for target in chosen:
        file = None
        if out is not None and target != targets.Target.BOARD:
            file = waves_of(waves, out / f"{target}.fst", config, shown)
        connect = partial(targets.open_link, target, port, say, baud=rate)
        with bar(target) as progress:
            side = device_results.run(target, connect, plans, waves=file, progress=progress)
        result.devices.append(side)
    if out is not None:
        with writing(out):
            page.write(result, out / "report.html")
    _print_results(console(), result)
    if out is not None:
        typer.echo(f"report: {out / 'report.html'}")
    if not result.agrees:
        raise typer.Exit(DIFFERS)


class _Device(NamedTuple):
    config: RnicConfig
    room: Room | None


def _device(port: str | None, rate: int, width: int | None) -> _Device:
    """Returns the configuration of all devices, and the room of the board, if there is one."""
    from ..sim.devices import targets

    if port is None:
        return _Device(RnicConfig(width=width or 64), None)
    with targets.Board(port, baud=rate) as link:
        config, room = link.config(), link.room
    if width not in (None, config.width):
        raise ValueError(f"--width is {width}, but the board has {config.width} bits")
    return _Device(config, room)


def _print_results(console: Console, result: DeviceResults) -> None:
    rows = []
    for side in result.devices:
        counted = Result(result.source, side.name, result.width, False, side.runs)
        completions = sum(len(run.outcome.completions) for run in side.runs)
        numbers = counted.segments, counted.bytes_placed, completions, counted.errors
        rows.append(
            (
                side.name,
                side.verdict,
                *map(str, numbers),
                str(counted.cycles or "unknown"),
                ", ".join(map(str, side.waves)),
            )
        )
    headings = (
        *("device", "verdict", "segments", "octets placed", "completions", "errors", "cycles"),
        "waveform",
    )
    print_table(console, result.source, headings, rows)
    print_notes(console, result.notes, result.left_out)
    names = [side.name for side in result.devices]
    differences = []
    for row in result.rows():
        cycles = dict.fromkeys(
            str(each.cycle) for each in row.got.values() if each.cycle is not None
        )
        got = [row.got[name].got if name in row.got else "=" for name in names]
        differences.append((row.what, row.where, row.expected, *got, ", ".join(cycles)))
    if differences:
        print_table(
            console,
            "Differences",
            ("what", "where", "golden model", *names, "cycle"),
            differences,
        )
    console.print(
        f"{colored(result.verdict, result.agrees)}: {', '.join(names)} and golden model at"
        f" {result.width} bits{escape(left_out_text(result.left_out))}",
        soft_wrap=True,
    )
