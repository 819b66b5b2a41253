"""The ``rnic`` commands."""

from __future__ import annotations

import json
import secrets
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .. import __version__
from ..flow.tools import ToolError
from ..flow.xilinx import FAMILIES
from ..hdl.spec.config import WIDTHS, RnicConfig
from ..sim.campaigns import bench as numbers
from ..sim.campaigns import shuffle as shuffling
from ..sim.campaigns import soak as endurance
from ..sim.campaigns.others import Peer
from ..sim.campaigns.violations import Row, Violation
from ..sim.capture.capture import Assumption, Capture, CaptureError, read_capture
from ..sim.capture.pcap import LeftOut
from ..sim.capture.pcap import counted as _count
from ..sim.capture.sctp_traffic import SctpStream
from ..sim.capture.streams import Stream
from ..sim.capture.traffic import Traffic, traffic_of, with_sctp
from ..sim.capture.unplayed import unplayed_sctp
from ..sim.devices.room import Room, check_fits, on_wire
from ..sim.engines.choice import load
from ..sim.engines.engine import DeviceError
from ..sim.replay.board_workload import workloads
from ..sim.replay.differences import Difference, compare, number_text
from ..sim.replay.plan import Plan, plan
from ..sim.replay.regions import Given, Queue, Region, RegionError, load_regions, stream_ends
from ..sim.replay.sctp_regions import derive_all, of_sessions
from ..sim.replay.workload import generate
from ..sim.reports import plots as drawing
from ..sim.reports import report
from ..sim.reports.comparison import Comparison
from ..sim.reports.report import Result, Run, left_out_text

AGREES, DIFFERS, BAD_INPUT, NO_TOOL, INTERRUPTED = 0, 1, 2, 3, 130

_Assume = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT",
        help="For a capture that lacks the beginning of its connections: where an FPDU begins, and"
        " with which settings. WHAT is fpdu, plus any of ,at=OCTETS ,no-crc ,markers=OCTETS"
        " ,from=ADDRESS:PORT. 'at' counts the octets from the first captured one to the FPDU,"
        " 'markers' those from the FPDU to the first marker. For SCTP, WHAT is sctp: associations"
        " and sessions existed before the capture began. May be given several times.",
        show_default=False,
    ),
]
_SctpPort = Annotated[
    list[int] | None,
    typer.Option(
        min=1,
        max=65535,
        help="Further UDP port of SCTP (RFC 6951), besides 9899. May be given several times.",
        show_default=False,
    ),
]


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="An open hardware RNIC datapath for iWARP's Direct Data Placement (RFC 5041).",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rnic {__version__}")
        raise typer.Exit()


@app.callback()
def rnic(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """An open hardware RNIC datapath for iWARP's Direct Data Placement (RFC 5041)."""


class EngineName(StrEnum):
    """The engines that run the Verilog."""

    COMPILED = "compiled"
    COCOTB = "cocotb"


@app.command()
def sim(
    capture: Annotated[
        Path | None,
        typer.Argument(
            help="pcap or pcapng file with DDP over TCP or SCTP. Default: a generated workload.",
            show_default=False,
        ),
    ] = None,
    width: Annotated[int, typer.Option(help="Datapath width in bits: 64, 128, 256 or 512.")] = 64,
    regions: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of regions and queues. Default: derived from the capture.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for report.json, memory/ and receives/.", show_default=False),
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="Engine that runs the Verilog.")
    ] = EngineName.COMPILED,
    waves: Annotated[
        bool,
        typer.Option("--waves", help="Write a VCD to the --out directory or the current one."),
    ] = False,
    assume: _Assume = None,
    sctp_port: _SctpPort = None,
) -> None:
    """Play a capture through the RTL and the golden model, and compare the results.

    The results are memory, completions, errors and packets.

    Exit code 0: they agree. 1: they differ. 2: bad input. 3: a tool is missing.
    130: interrupted.
    """
    try:
        asked = _Asked(capture, regions, assume or [], sctp_port or [])
        result, waveforms = _simulate(asked, width, out, engine, waves)
        if out is not None:
            report.write(result, out)
    except (CaptureError, RegionError) as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except DeviceError as error:
        raise _refuse(str(error), DIFFERS) from None
    except ToolError as error:
        raise _refuse(str(error), NO_TOOL) from None
    except KeyboardInterrupt:
        raise _refuse("interrupted", INTERRUPTED) from None
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    _print(console, result)
    if out is not None:
        console.print(f"report: {escape(str(out / 'report.json'))}", soft_wrap=True)
    for path in waveforms:
        console.print(f"waveform: {escape(str(path))}", soft_wrap=True)
    if not result.agrees:
        command = [
            "rnic",
            "sim",
            *([str(capture)] if capture else []),
            "--width",
            str(width),
            *(["--regions", str(regions)] if regions else []),
            *(part for each in assume or () for part in ("--assume", each)),
            *(part for each in sctp_port or () for part in ("--sctp-port", str(each))),
            "--engine",
            engine.value,
            "--waves",
        ]
        console.print(f"waveform command: {escape(shlex.join(command))}", soft_wrap=True)
        raise typer.Exit(DIFFERS)


@app.command("compare")
def compare_devices(
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
    regions: Annotated[
        Path | None, typer.Option(help="Region file, as for sim.", show_default=False)
    ] = None,
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
    waves: Annotated[
        bool, typer.Option("--waves", help="With --out: write a VCD of each simulation there.")
    ] = False,
    assume: _Assume = None,
    sctp_port: _SctpPort = None,
) -> None:
    """Play a capture through the driver on several devices and on the golden model, and compare.

    Exit code 0: all agree. 1: one differs or fails. 2: bad input. 3: a tool is
    missing. 130: interrupted.
    """
    from ..sim.devices import targets
    from ..sim.reports import comparison as comparing
    from ..sim.reports import page
    from ..sw_driver import RnicError
    from ..sw_driver.transports.uart import BAUD

    try:
        chosen = targets.of_names(on, port)
        if waves and out is None:
            raise ValueError("--waves needs --out, the directory for the waveforms")
        if baud is not None and port is None:
            raise ValueError("--baud needs --port, the serial port of the board's host link")
        rate = BAUD if baud is None else baud
        if out is not None and out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file, not a directory")
        has, room = None, None
        if port is not None:
            with targets.Board(port, baud=rate) as link:
                has, room = link.config(), link.room
            if width not in (None, has.width):
                raise ValueError(f"--width is {width}, but the board has {has.width} bits")
        config = has or RnicConfig(width=width or 64)
        asked = _Asked(capture, regions, assume or [], sctp_port or [])
        plans, found = _planned(asked, config, room)
        result = comparing.Comparison(
            str(capture or "generated workload"),
            config.width,
            notes=found.notes,
            left_out=found.left_out,
        )
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        for target in chosen:
            vcd = out / f"{target}.vcd" if out and waves and target != "board" else None
            with _bar(target) as progress:
                result.sides.append(
                    comparing.run(
                        target,
                        partial(targets.open_link, target, port, _say, baud=rate),
                        plans,
                        waves=vcd,
                        progress=progress,
                    )
                )
        if out is not None:
            page.write(result, out / "report.html")
    except (CaptureError, RegionError, ValueError) as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except (DeviceError, RnicError) as error:
        raise _refuse(str(error), DIFFERS) from None
    except ToolError as error:
        raise _refuse(str(error), NO_TOOL) from None
    except OSError as error:
        raise _refuse(f"cannot write to --out {out}: {error.strerror}", BAD_INPUT) from None
    except KeyboardInterrupt:
        raise _refuse("interrupted", INTERRUPTED) from None
    _print_comparison(Console(width=None if sys.stdout.isatty() else 160, highlight=False), result)
    if out is not None:
        typer.echo(f"report: {out / 'report.html'}")
    if not result.agrees:
        raise typer.Exit(DIFFERS)


@app.command()
def bench(
    pnr: Annotated[
        bool, typer.Option("--pnr", help="Also place and route, for area and clock on an ECP5.")
    ] = False,
    width: Annotated[
        int | None,
        typer.Option(help="Datapath width in bits. Default: all widths.", show_default=False),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Place and route with the seeds from 1 to this number.")
    ] = 1,
    xilinx: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY",
            help="Also measure area on a Xilinx device: xc7, xcu or xcup.",
            show_default=False,
        ),
    ] = None,
    sctp: Annotated[
        bool, typer.Option("--sctp", help="Also measure DDP over SCTP; its build takes minutes.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE:TOP[:NAME=VALUE,...]",
            help="Also place and route this Verilog module, as --pnr does. May be given several"
            " times.",
            show_default=False,
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Directory for plots, as PNG and SVG.", show_default=False),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure cycles, latency, speed of simulation and, with --pnr, area and clock.

    Exit code 0: measured. 1: the RTL fails. 2: bad input. 3: a tool is missing.
    130: interrupted.
    """
    if width is not None and width not in WIDTHS:
        choice = ", ".join(map(str, WIDTHS))
        raise _refuse(f"width must be one of {choice}, not {width}", BAD_INPUT)
    if xilinx is not None and xilinx not in FAMILIES:
        choice = ", ".join(FAMILIES)
        raise _refuse(f"Xilinx family must be one of {choice}, not {xilinx}", BAD_INPUT)
    if seeds > 1 and not pnr and not peer:
        raise _refuse("--seeds needs --pnr or --peer, which place and route", BAD_INPUT)
    try:
        peers = [Peer.of(each) for each in peer or ()]
        for each in peers:
            each.check()
        if plots is not None:
            drawing.prepare(plots)
    except (OSError, ValueError) as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except ToolError as error:
        raise _refuse(str(error), NO_TOOL) from None
    try:
        with _bar("measuring") as progress:
            results = numbers.run_bench(
                WIDTHS if width is None else (width,), sctp=sctp, pnr=pnr, peers=peers,
                seeds=range(1, seeds + 1), xilinx=xilinx, progress=progress,
            )  # fmt: skip
        if plots is not None:
            drawing.draw(results, plots)
    except DeviceError as error:
        raise _refuse(str(error), DIFFERS) from None
    except ToolError as error:
        raise _refuse(str(error), NO_TOOL) from None
    except KeyboardInterrupt:
        raise _refuse("interrupted", INTERRUPTED) from None
    if json_:
        print(json.dumps(results))
    else:
        numbers.render(results, Console(width=None if sys.stdout.isatty() else 160))


@app.command()
def soak(
    segments: Annotated[int, typer.Option(min=1, help="DDP Segments at each width.")] = 1_000_000,
    width: Annotated[
        list[int] | None,
        typer.Option(
            help="Datapath width in bits. May be given several times. Default: all widths.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the random draw. Default: a new one.", show_default=False),
    ] = None,
    streams: Annotated[int, typer.Option(min=1, max=4096, help="Number of streams.")] = 64,
    bus_errors: Annotated[
        bool, typer.Option("--bus-errors", help="Let the bus refuse a write now and then.")
    ] = False,
    chunk: Annotated[
        int | None,
        typer.Option(min=0, help="Run only this chunk, to replay it.", show_default=False),
    ] = None,
    waves: Annotated[
        bool, typer.Option("--waves", help="With --chunk: write a VCD to the current directory.")
    ] = False,
) -> None:
    """Play random traffic through the RTL and the golden model, and compare the results.

    The traffic has every kind of segment and of error, on many streams in turn.
    The host revokes and registers regions and sets streams up again.

    Exit code 0: they agree. 1: they differ. 2: bad input. 3: a tool is missing.
    130: interrupted.
    """
    if waves and chunk is None:
        raise _refuse("--waves needs --chunk: a VCD of all chunks would be too long", BAD_INPUT)
    traffic = endurance.Traffic(secrets.randbits(32) if seed is None else seed, streams, bus_errors)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(f"seed {traffic.seed}")
    try:
        configs = [endurance.config_of(bits, streams) for bits in width or WIDTHS]
        for config in configs:
            with _bar(f"{config.width} bits", segments) as progress:
                tally = endurance.soak(
                    load("compiled"),
                    config,
                    traffic,
                    segments,
                    only=chunk,
                    waves=Path(f"soak-{config.width}.vcd") if waves else None,
                    progress=progress,
                )
            _print_tally(console, config.width, traffic, tally)
            if tally.failure is not None:
                raise typer.Exit(DIFFERS)
    except ValueError as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except DeviceError as error:
        raise _refuse(str(error), DIFFERS) from None
    except ToolError as error:
        raise _refuse(str(error), NO_TOOL) from None
    except KeyboardInterrupt:
        raise _refuse("interrupted", INTERRUPTED) from None


@app.command()
def mutate(
    mutants: Annotated[int, typer.Option(min=1, help="Number of mutants.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mutants and the traffic.")] = 1,
    width: Annotated[int, typer.Option(help="Datapath width in bits.")] = 64,
    segments: Annotated[
        int, typer.Option(min=1, help="DDP Segments that each mutant gets.")
    ] = 20_000,
) -> None:
    """Plant faults in the RTL, one at a time, and count those that random traffic notices.

    yosys draws the faults: a bit inverted, stuck or mixed with another one.
    Faults without effect are listed in sim/data/equivalent_mutants.toml, with
    the reason, and not counted.

    Exit code 0: at least 97 % were noticed. 1: fewer. 2: bad input. 3: a tool
    is missing. 130: interrupted.
    """
    from ..sim.campaigns import mutation

    try:
        equivalents = mutation.read_equivalents()
        planted = mutation.mutated(mutants, seed, width)
        chunks = mutation.drawn(planted.config, seed, segments)
        counts: Counter[str] = Counter()

        def said(fate: mutation.Fate) -> None:
            counts["tried"] += 1
            outcome = "noticed"
            if not fate.noticed:
                reasons = [each.reason for each in equivalents if each.covers(fate.mutant)]
                outcome = f"equivalent: {reasons[0]}" if reasons else "not noticed"
                typer.echo(f"{outcome}: mutant {fate.mutant.number}, {fate.mutant}")
            counts[outcome.partition(":")[0]] += 1

        mutation.try_all(planted, chunks, said)
    except (TypeError, ValueError) as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except ToolError as error:
        raise _refuse(str(error), NO_TOOL) from None
    except KeyboardInterrupt:
        raise _refuse("interrupted", INTERRUPTED) from None
    counted = counts["tried"] - counts["equivalent"]
    typer.echo(
        f"seed {seed}, {width} bits, {segments} segments: {counts['noticed']} of {counted} mutants"
        f" were noticed, {counts['equivalent']} further ones are equivalent"
    )
    if counts["noticed"] < mutation.WANTED * counted:
        raise typer.Exit(DIFFERS)


@app.command()
def shuffle(
    capture: Annotated[Path, typer.Argument(help="pcap or pcapng file with DDP over SCTP.")],
    ways: Annotated[int, typer.Option(min=1, help="Number of orders of its frames.")] = 1000,
    width: Annotated[int, typer.Option(help="Datapath width in bits.")] = 512,
    regions: Annotated[
        Path | None, typer.Option(help="Region file, as for sim.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the random draw. Default: a new one.", show_default=False),
    ] = None,
    way: Annotated[
        int | None,
        typer.Option(min=0, help="Run only the order of this number.", show_default=False),
    ] = None,
    assume: _Assume = None,
    sctp_port: _SctpPort = None,
) -> None:
    """Play a capture's SCTP frames shuffled, repeated, damaged and lost, in many ways.

    Memory and deliveries must be the same each time.

    Exit code 0: they are. 1: they differ. 2: bad input. 3: a tool is missing.
    130: interrupted.
    """
    seed = secrets.randbits(32) if seed is None else seed
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    try:
        config = RnicConfig(width=width)
        found = _input(_Asked(capture, regions, assume or [], sctp_port or []), config)
        if found.traffic.sctp is None:
            raise CaptureError(f"{capture} has no DDP over SCTP: there is nothing to shuffle")
        plans, _ = plan(found.traffic, found.regions, config, found.ends, found.queues)
        with _bar("ways", ways) as progress:
            tally = shuffling.run(
                load("compiled"),
                plans,
                range(ways) if way is None else [way],
                seed=seed,
                progress=progress and (lambda done: progress(done, ways)),
            )
    except (CaptureError, RegionError, ValueError) as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except DeviceError as error:
        raise _refuse(f"seed {seed}: {error}", DIFFERS) from None
    except ToolError as error:
        raise _refuse(str(error), NO_TOOL) from None
    except KeyboardInterrupt:
        raise _refuse("interrupted", INTERRUPTED) from None
    _print_differences(console, list(tally.differences))
    verdict = _colored(
        "differ" if tally.differences else report.agreement(found.left_out), not tally.differences
    )
    console.print(
        f"{verdict}: {_count(tally.ways, 'way')} with the same memory and deliveries,"
        f" {_count(tally.frames, 'frame')}, {_count(tally.cycles, 'cycle')} at {width} bits,"
        f" seed {seed}{escape(left_out_text(found.left_out))}",
        soft_wrap=True,
    )
    if tally.differences:
        console.print(f"replay: --seed {seed} --way {tally.way}", soft_wrap=True)
        raise typer.Exit(DIFFERS)


@app.command()
def build(
    board: Annotated[
        str | None, typer.Argument(help="A board of --list.", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the boards.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of the results. Default: build/BOARD.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=1, help="Seed of place and route.")] = 1,
    baud: Annotated[
        int | None,
        typer.Option(help="Rate of the host link. Default: the board's own.", show_default=False),
    ] = None,
) -> None:
    """Build a board's bitstream with yosys and nextpnr, with a report and its register map.

    Exit code 0: built, and timing is met. 1: it does not fit, or timing is not
    met. 2: bad input. 3: a tool is missing. 130: interrupted.
    """
    # Imported here, because most commands need no board.
    from ..boards.build import BuildError, ToolMissing
    from ..boards.build import build as build_board
    from ..boards.catalog import BOARDS
    from ..hdl.host.uart import phase_step

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    if list_:
        for each in BOARDS.values():
            console.print(f"{each.name:22} {each.title}")
        return
    chosen = _board(board)
    try:
        if baud is not None:
            phase_step(chosen.clock, baud)
            chosen = replace(chosen, baud=baud)
    except ValueError as error:
        raise _refuse(str(error), BAD_INPUT) from None
    if chosen.warning:
        typer.echo(f"warning: {chosen.warning}", err=True)
    folder = out or Path("build", chosen.name)
    if folder.exists() and not folder.is_dir():
        raise _refuse(f"--out {folder} is a file, not a directory", BAD_INPUT)
    try:
        result = build_board(
            chosen, folder, seed=seed, progress=lambda step: typer.echo(f"{step} ...", err=True)
        )
    except BuildError as error:
        raise _refuse(str(error), DIFFERS) from None
    except ToolMissing as error:
        raise _refuse(str(error), NO_TOOL) from None
    except KeyboardInterrupt:
        raise _refuse("interrupted", INTERRUPTED) from None
    table = Table("clock", "needs MHz", "reaches MHz", "margin")
    for clock in result.clocks:
        table.add_row(
            clock.name, f"{clock.needs:.1f}", f"{clock.reaches:.1f}", f"{clock.margin:.0f} %"
        )
    console.print(table)
    used = (f"{name} {used}/{there}" for name, (used, there) in result.used.items())
    console.print("used: " + ", ".join(used), soft_wrap=True)
    console.print("critical path:\n" + escape("\n".join(result.path)), soft_wrap=True)
    console.print(f"bitstream: {escape(str(folder / 'rnic.bit'))}", soft_wrap=True)
    console.print(f"host link: {chosen.baud} baud")


@app.command()
def program(
    board: Annotated[str, typer.Argument(help="A board of 'rnic build --list'.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of the build. Default: build/BOARD.", show_default=False),
    ] = None,
    cable: Annotated[
        str | None,
        typer.Option(
            help="JTAG adapter, by openFPGALoader's name for --cable. Default: the board's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Load a board's bitstream into the board, with openFPGALoader.

    Exit code 0: loaded. 1: the board does not accept it. 2: bad input. 3: a
    tool is missing.
    """
    from ..boards.build import BuildError, ToolMissing
    from ..boards.build import program as program_board

    chosen = _board(board)
    try:
        program_board(chosen, (out or Path("build", chosen.name)) / "rnic.bit", cable)
    except FileNotFoundError as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except BuildError as error:
        raise _refuse(str(error), DIFFERS) from None
    except ToolMissing as error:
        raise _refuse(str(error), NO_TOOL) from None


@app.command()
def export(
    width: Annotated[int, typer.Option(help="Datapath width in bits: 64, 128, 256 or 512.")] = 64,
    sctp: Annotated[
        bool, typer.Option("--sctp", help="Include DDP over SCTP and a port for Ethernet frames.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Directory of the files.")] = Path("build/export"),
) -> None:
    """Write the files that other flows need.

    They are Verilog with flat AXI names and a testbench for it, IP-XACT, the
    registers in SystemRDL and as a C header, and minimal examples for LiteX and
    Vivado.

    Exit code 0: written. 2: bad input. 130: interrupted.
    """
    from ..export.files import export as write_files

    try:
        config = RnicConfig(width=width, sctp=sctp)
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file, not a directory")
        for path in write_files(config, out):
            typer.echo(path)
    except ValueError as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except OSError as error:
        raise _refuse(f"cannot write to --out {out}: {error.strerror}", BAD_INPUT) from None
    except KeyboardInterrupt:
        raise _refuse("interrupted", INTERRUPTED) from None


@app.command()
def requirements(
    sentences: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids as in tests/requirements.csv, or their beginnings. Default: all.",
            show_default=False,
        ),
    ] = None,
    violate: Annotated[
        bool,
        typer.Option("--violate", help="Violate each sentence, and run the tests for it."),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Violations tried at the same time.")] = 1,
) -> None:
    """List the normative sentences with their tests; with --violate, check that the tests work.

    Each violation of tests/violations.toml changes a copy of the project; the
    tests for the sentence must then fail.

    Exit code 0: all were noticed. 1: one was not. 2: bad input. 130:
    interrupted.
    """
    from ..sim.campaigns import violations as trying

    try:
        chosen = tuple(sentences or [""])
        rows = [row for row in trying.read_rows() if row.id.startswith(chosen)]
        if not rows:
            raise trying.TableError(f"no sentence's id begins with {' or '.join(chosen)}")
        known = [each for each in trying.read_violations()
                 if any(sentence.startswith(chosen) for sentence in each.sentences)]  # fmt: skip
        if not violate:
            _print_rows(rows, known)
            return
        count = 0

        def said(trial: trying.Trial) -> None:
            nonlocal count
            count += 1
            by = trial.failed[0] if trial.failed else trial.violation.does
            typer.echo(
                f"{count} of {len(known)}: {trial.violation.name}: {trial.outcome.value}"
                f" ({by}; {trial.seconds:.0f} s)"
            )

        trials = trying.try_all(known, jobs, said)
    except trying.TableError as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except KeyboardInterrupt:
        raise _refuse("interrupted", INTERRUPTED) from None
    for trial in trials:
        if trial.outcome is not trying.Outcome.NOTICED:
            typer.echo(f"{trial.violation.name}: {trial.outcome.value}: {trial.violation.does}")
            typer.echo(trial.output[-2000:])
    noticed = sum(trial.outcome is trying.Outcome.NOTICED for trial in trials)
    typer.echo(f"{noticed} of {len(trials)} violations were noticed")
    typer.echo(_without_violation(rows, known))
    if noticed < len(trials):
        raise typer.Exit(DIFFERS)


def _print_rows(rows: list[Row], known: list[Violation]) -> None:
    """Prints the part of the project that holds each sentence, and the numbers of tests and
    violations.
    """
    table = Table()
    for heading in ("sentence", "held by", "tests", "violations"):
        table.add_column(heading, justify="right" if heading in ("tests", "violations") else "left")
    for row in rows:
        count = sum(row.id in violation.sentences for violation in known)
        table.add_row(row.id, row.holder, str(len(row.evidence)), str(count))
    Console(highlight=False).print(table)
    typer.echo(_without_violation(rows, known))


def _without_violation(rows: list[Row], known: list[Violation]) -> str:
    """Returns a sentence that counts the sentences without a violation."""
    violated = {sentence for violation in known for sentence in violation.sentences}
    open_rows = [row.id for row in rows if row.evidence and row.id not in violated]
    others = sum(not row.evidence for row in rows)
    text = f"{others} of {len(rows)} sentences are for others to honour and have no tests"
    if open_rows:
        text += f"; these have tests and no violation: {', '.join(open_rows)}"
    return text


@app.command()
def prm(
    device: Annotated[
        str, typer.Argument(help="uart:PORT, mapped:FILE, udmabuf:FILE,DEVICE or sim.")
    ],
    baud: Annotated[
        int | None,
        typer.Option(min=1, help="Baud rate of uart:PORT. Default: 1000000.", show_default=False),
    ] = None,
    socket: Annotated[Path, typer.Option(help="Unix socket for clients.")] = Path("rnic.sock"),
    user: Annotated[
        list[str] | None,
        typer.Option(
            help="User who may connect, besides you. May be given several times.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Group whose members may connect.", show_default=False)
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Clients that share the device equally.")] = 8,
    per_user: Annotated[
        int | None,
        typer.Option(
            help="Clients that one user may have. Default: half of them.", show_default=False
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=NUMBER: what each client may use. NAME is stags, streams, buffers, pages,"
            " regions, octets, completions, domains, queues, memory or memories. May be given"
            " several times.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="Audit log, one line of JSON per decision. Default: standard error."),
    ] = None,
) -> None:
    """Own a device and share it among unprivileged programs (RFC 5041 section 8.3.2).

    Exit code 0: ended by a signal. 1: the device or its link failed. 2: bad
    input. 3: a tool is missing.
    """
    from ..sim.devices.manage import serve
    from ..sw_driver import InvalidRequest, RnicError
    from ..sw_driver.prm import Policy
    from ..sw_driver.prm.quota import limits_of
    from ..sw_driver.prm.server import group_number, user_number

    try:
        policy = Policy(
            users=Policy().users | {user_number(name) for name in user or ()},
            group=None if group is None else group_number(group),
            clients=clients,
            per_user=per_user,
            limits=limits_of(share or ()),
        )
        serve(device, socket, policy, log, baud=baud)
    except InvalidRequest as error:
        raise _refuse(str(error), BAD_INPUT) from None
    except RnicError as error:
        raise _refuse(str(error), DIFFERS) from None
    except ToolError as error:
        raise _refuse(str(error), NO_TOOL) from None


def _board(name: str | None) -> Any:
    """Returns the board of a name."""
    from ..boards.catalog import BOARDS

    if name not in BOARDS:
        said = "a board is missing" if name is None else f"there is no board {name!r}"
        raise _refuse(f"{said}: give one of {', '.join(BOARDS)}", BAD_INPUT)
    return BOARDS[name]


def _refuse(sentence: str, code: int) -> typer.Exit:
    typer.echo(f"rnic: {sentence}", err=True)
    return typer.Exit(code)


class _Asked(NamedTuple):
    """The options of a command that choose the traffic."""

    capture: Path | None
    regions: Path | None
    assume: list[str]
    sctp_ports: list[int]


def _simulate(
    asked: _Asked, width: int, out: Path | None, engine_name: EngineName, waves: bool
) -> tuple[Result, list[Path]]:
    try:
        config = RnicConfig(width=width)
    except ValueError as error:
        raise CaptureError(str(error)) from None
    if out is not None and out.exists() and not out.is_dir():
        raise CaptureError(f"--out {out} is a file, not a directory")
    found = _input(asked, config)
    plans, changes = plan(found.traffic, found.regions, config, found.ends, found.queues)
    engine = load(engine_name.value)
    result = Result(
        str(asked.capture or "generated workload"),
        engine_name.value,
        width,
        found.derived,
        notes=[*found.notes, *changes],
        left_out=found.left_out,
    )
    waveforms = []
    for number, each in enumerate(plans, 1):
        path = None
        if waves:
            path = (out or Path()) / (f"waves-{number}.vcd" if len(plans) > 1 else "waves.vcd")
            path.parent.mkdir(parents=True, exist_ok=True)
            waveforms.append(path)
        with _progress(each, number, len(plans)) as progress:
            memory = each.memory.copy()
            outcome = engine.run(
                each.config, each.operations, memory, ring=each.ring, waves=path, progress=progress
            )
        result.runs.append(Run(each, outcome, memory, compare(each, outcome, memory)))
    return result, waveforms


class _Input(NamedTuple):
    """The traffic to play.

    ``ends`` are the streams that the host stops; ``derived``: the regions come from the capture.
    """

    traffic: Traffic
    regions: list[Region]
    queues: list[Queue]
    ends: dict[int, int]
    notes: list[str]
    left_out: list[LeftOut]
    derived: bool


def _planned(asked: _Asked, config: RnicConfig, room: Room | None) -> tuple[list[Plan], _Input]:
    """Returns the plans for a capture, and its traffic, with notes on both.

    Without a capture, the generated workload is played. A board, which has ``room`` beside its
    RNIC, gets the largest workload that fits it.
    """
    reason = None
    for generated in [None] if asked.capture or room is None else workloads(config):
        try:
            found = _input(asked, config, wire=room is not None, generated=generated)
            plans, changes = plan(found.traffic, found.regions, config, found.ends, found.queues)
            if room is not None:
                check_fits(plans, changes, config, room)
            return plans, found._replace(notes=[*found.notes, *changes])
        except RegionError as error:
            reason = error
    assert reason is not None
    raise reason


def _input(
    asked: _Asked, config: RnicConfig, *, wire: bool = False, generated: Capture | None = None
) -> _Input:
    """Returns the traffic to play.

    ``wire``: the traffic is for a board, which receives DDP over SCTP, with frames as they are on
    Ethernet, or DDP over MPA. ``generated``: the workload that replaces a capture.
    """
    if generated is not None:
        captured, given = generated, Given([], [])
    elif asked.capture is None:
        workload = generate()
        captured, given = workload.capture(), Given(list(workload.regions), [])
    else:
        captured = read_capture(
            asked.capture,
            assumptions=[Assumption.parse(text) for text in asked.assume],
            sctp_ports=asked.sctp_ports,
        )
        given = Given([], [])
    captured.check()
    by_mpa, by_sctp = traffic_of(captured), captured.sctp
    left_out = []
    if wire and config.sctp:
        if by_mpa.arrivals:
            left_out.append(
                LeftOut(len(by_mpa.arrivals), "FPDU", "the board receives DDP over SCTP")
            )
        by_mpa = Traffic((), ())
    elif wire:
        if by_sctp:
            left_out.append(LeftOut(len(by_sctp), "SCTP packet", "the board receives DDP over MPA"))
        by_sctp = ()
    traffic = with_sctp(by_mpa, by_sctp, config)
    notes = [*captured.notes, *traffic.notes]
    left_out += captured.left_out
    left_out += by_mpa.left_out
    left_out += unplayed_sctp(by_sctp, traffic.sctp)
    if wire and traffic.sctp is not None:
        traffic = on_wire(traffic)
    if not traffic.arrivals and traffic.sctp is None:
        left = f"left out: {', '.join(map(str, left_out))}" if left_out else ""
        reason = "; ".join(filter(None, [*notes, left]))
        reason = reason or "no complete FPDU follows MPA start-up, and no SCTP carries DDP"
        raise CaptureError(f"{captured.path} has no DDP to play: {reason}")
    if asked.regions is not None:
        hosts = dict.fromkeys([*captured.addresses, *traffic.endpoints])
        given = load_regions(asked.regions, hosts)
    if given.regions:
        regions = of_sessions(given.regions, traffic)
        return _Input(
            traffic, regions, given.queues, stream_ends(traffic), notes, left_out, derived=False
        )
    found = derive_all(traffic, config.stags)
    return _Input(traffic, found.regions, given.queues, found.ends, notes, left_out, derived=True)


def _progress(
    each: Plan, number: int, count: int
) -> AbstractContextManager[Callable[[int, int], None] | None]:
    """Shows the progress of one run of several."""
    return _bar(f"RNIC {number} of {count}" if count > 1 else "simulating", len(each.operations))


@contextmanager
def _bar(text: str, total: int | None = None) -> Iterator[Callable[..., None] | None]:
    """Shows a progress bar on a terminal, and nothing in a pipe.

    The bar is on standard error, apart from the result. A call with the work done, the total work,
    and optionally a new text moves it.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done, total, text=None: bar.update(
            task, completed=done, total=total, description=text
        )


def _say(line: str) -> None:
    """Reports a step that takes long, on standard error."""
    typer.echo(line, err=True)


# -- output --


def _print_comparison(console: Console, result: Comparison) -> None:
    table = Table(title=escape(result.source), title_justify="left")
    for heading in ("device", "verdict"):
        table.add_column(heading)
    for heading in ("segments", "octets placed", "completions", "errors", "cycles"):
        table.add_column(heading, justify="right")
    table.add_column("waveform", overflow="fold")
    for side in result.sides:
        counted = Result(result.source, side.name, result.width, False, side.runs)
        completions = sum(len(run.outcome.completions) for run in side.runs)
        numbers = counted.segments, counted.bytes_placed, completions, counted.errors
        table.add_row(
            side.name,
            side.verdict,
            *map(str, numbers),
            str(counted.cycles or "unknown"),
            escape(", ".join(map(str, side.waves))),
        )
    console.print(table)
    _print_notes(console, result.notes, result.left_out)
    names = [side.name for side in result.sides]
    if rows := result.rows():
        table = Table(title="Differences", title_justify="left")
        for heading in ("what", "where", "golden model", *names, "cycle"):
            table.add_column(heading, overflow="fold")
        for row in rows:
            cycles = dict.fromkeys(
                str(each.cycle) for each in row.got.values() if each.cycle is not None
            )
            got = [row.got[name].got if name in row.got else "=" for name in names]
            cells = [row.what, row.where, row.expected, *got, ", ".join(cycles)]
            table.add_row(*map(escape, cells))
        console.print(table)
    console.print(
        f"{_colored(result.verdict, result.agrees)}: {', '.join(names)} and golden model at"
        f" {result.width} bits{escape(left_out_text(result.left_out))}",
        soft_wrap=True,
    )


def _print(console: Console, result: Result) -> None:
    console.print(_stream_table(result))
    if any(run.plan.allotments for run in result.runs):
        console.print(_region_table(result))
    else:
        console.print("No region is registered, because no tagged segment has to be placed.")
    if any(run.plan.buffers for run in result.runs):
        console.print(_queue_table(result))
    _print_notes(console, result.notes, result.left_out)
    for run in result.runs:
        _print_differences(console, run.differences)
    counts = (
        f"{_of_frames(result)}{_count(result.segments, 'segment')},"
        f" {_count(result.bytes_placed, 'octet')} placed,"
        f" {_count(result.deliveries, 'message')} delivered,"
        f" {_count(result.errors, 'error')},"
        f" {_count(result.cycles, 'cycle')} at {result.width} bits"
    )
    console.print(
        f"{_colored(result.verdict, result.agrees)}: RTL and golden model"
        f" {'agree' if result.agrees else 'differ'} on {counts}"
        f"{escape(left_out_text(result.left_out))}",
        soft_wrap=True,
    )


def _colored(verdict: str, agrees: bool) -> str:
    return f"[bold {'green' if agrees else 'red'}]{verdict}[/bold {'green' if agrees else 'red'}]"


def _print_notes(console: Console, notes: list[str], left_out: list[LeftOut]) -> None:
    for note in notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    if len(left_out) > report.MOST_NAMED:  # otherwise the last sentence has all of them
        for each in left_out:
            console.print(f"left out: {escape(str(each))}", soft_wrap=True)


def _of_frames(result: Result) -> str:
    if not result.goldens:
        return ""
    frames, packets = (
        sum(getattr(golden, name) for golden in result.goldens) for name in ("frames", "packets")
    )
    return f"{_count(frames, 'SCTP frame')} ({_count(packets, 'packet')} taken), "


def _print_differences(console: Console, differences: list[Difference]) -> None:
    for each in differences:
        cycle = "" if each.cycle is None else f" in cycle {each.cycle}"
        console.print(
            f"[red]difference[/red] in {each.what} at {escape(each.where)}:"
            f" expected {escape(each.expected)}, got {escape(each.got)}{cycle}",
            soft_wrap=True,
        )


def _print_tally(
    console: Console, width: int, traffic: endurance.Traffic, tally: endurance.Tally
) -> None:
    failure = tally.failure
    if failure is not None:
        if failure.message:
            console.print(f"[red]failure[/red]: {escape(failure.message)}", soft_wrap=True)
        _print_differences(console, failure.differences)
        console.print(
            f"replay: rnic soak --seed {traffic.seed} --width {width} --streams {traffic.streams}"
            f"{' --bus-errors' * traffic.bus_errors}"
            f" --chunk {failure.chunk} --segments {failure.segments} --waves",
            soft_wrap=True,
        )
    verdict = "[bold green]agree[/bold green]" if failure is None else "[bold red]differ[/bold red]"
    console.print(
        f"{width} bits: {verdict} on {_count(tally.segments, 'segment')},"
        f" {_count(tally.octets, 'octet')} placed, {_count(tally.deliveries, 'message')} delivered,"
        f" {_count(tally.errors, 'error')}, {_count(tally.cycles, 'cycle')};"
        f" {tally.segments / max(tally.seconds, 1e-3):.0f} segments per second",
        soft_wrap=True,
    )


def _stream_table(result: Result) -> Table:
    table = Table(title=f"{escape(result.source)}: DDP Streams", title_justify="left")
    for heading in ("stream", "from", "to"):
        table.add_column(heading, overflow="fold")
    table.add_column("LLP", no_wrap=True)
    for heading in ("segments", "placed", "octets placed", "delivered", "exceptions", "dropped"):
        table.add_column(heading, justify="right")
    if result.goldens:
        for heading in ("sessions", "duplicates"):
            table.add_column(heading, justify="right")
    table.add_column("error")
    for run, stream in result.streams:
        counts = run.plan.golden.counts[stream.number]
        by_sctp = (str(counts.sessions), str(counts.duplicates)) if result.goldens else ()
        errors = [
            number_text(event) for event in run.outcome.events if event.stream == stream.number
        ]
        table.add_row(
            str(stream.number),
            escape(str(stream.source)),
            escape(str(stream.destination)),
            _way(stream),
            *map(
                str,
                (
                    counts.segments,
                    counts.placed,
                    counts.octets,
                    run.deliveries(stream.number),
                    counts.exceptions,
                    counts.dropped,
                ),
            ),
            *by_sctp,
            ", ".join(errors),
        )
    return table


def _way(stream: Stream) -> str:
    """Returns the layer below DDP and its options."""
    if isinstance(stream, SctpStream):
        return f"SCTP stream {stream.sid}"
    options = ("CRC", stream.crc), ("markers", stream.markers)
    return " ".join(["MPA", *(name for name, used in options if used)])


def _region_table(result: Result) -> Table:
    origin = "derived from the capture" if result.derived else "given"
    table = Table(title=f"Regions ({origin})", title_justify="left")
    for heading in ("host", "STag", "Tagged Offset"):
        table.add_column(heading)
    table.add_column("octets", justify="right")
    if result.goldens:
        table.add_column("SCTP session")
    table.add_column("access")
    table.add_column("registered")
    for run in result.runs:
        for allotment in run.plan.allotments:
            region = allotment.region
            rights = [
                name
                for name, given in (("write", region.remote_write), ("read", region.remote_read))
                if given
            ]
            table.add_row(
                region.endpoint,
                f"{region.stag:#010x}",
                f"{region.to:#x}",
                str(region.length),
                *([_session(region)] if result.goldens else []),
                "remote " + ", ".join(rights) if rights else "none",
                report.periods_text(region.periods),
            )
    return table


def _session(region: Region) -> str:
    """Returns the session to which a region belongs."""
    return "" if region.session is None else "stream {}, session {}".format(*region.session)


def _queue_table(result: Result) -> Table:
    """Returns a table of the untagged queues that had a buffer."""
    table = Table(title="Untagged queues", title_justify="left")
    for heading in ("stream", "host", "QN"):
        table.add_column(heading)
    for heading in ("buffers", "messages", "octets"):
        table.add_column(heading, justify="right")
    for run, stream in result.streams:
        received = [
            (buffer.qn, completion.length)
            for buffer, completion, _ in run.receives()
            if buffer.stream == stream.number
        ]
        posted = [buffer.qn for buffer in run.plan.buffers if buffer.stream == stream.number]
        for qn in sorted(set(posted)):
            lengths = [length for number, length in received if number == qn]
            table.add_row(
                str(stream.number),
                stream.destination.address,
                str(qn),
                str(posted.count(qn)),
                str(len(lengths)),
                str(sum(lengths)),
            )
    return table
