"""``rnic soak``: plays random traffic through the RTL and through the golden model."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..hdl.spec.config import WIDTHS
from ..sim.campaigns import soak as endurance
from ..sim.capture.pcap import counted as _count
from ..sim.engines.choice import load
from .outcome import DIFFERS, BadInput, exits
from .results import print_differences
from .terminal import bar, console


@exits(ValueError)
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
        raise BadInput("--waves needs --chunk: a VCD of all chunks would be too long")
    traffic = endurance.Traffic(secrets.randbits(32) if seed is None else seed, streams, bus_errors)
    terminal = console()
    terminal.print(f"seed {traffic.seed}")
    configs = [endurance.config_of(bits, streams) for bits in width or WIDTHS]
    for config in configs:
        with bar(f"{config.width} bits", segments) as progress:
            tally = endurance.soak(
                load("compiled"),
                config,
                traffic,
                segments,
                only=chunk,
                waves=Path(f"soak-{config.width}.vcd") if waves else None,
                progress=progress,
            )
        _print_tally(terminal, config.width, traffic, tally)
        if tally.failure is not None:
            raise typer.Exit(DIFFERS)


def _print_tally(
    terminal: Console, width: int, traffic: endurance.Traffic, tally: endurance.Tally
) -> None:
    failure = tally.failure
    if failure is not None:
        if failure.message:
            terminal.print(f"[red]failure[/red]: {escape(failure.message)}", soft_wrap=True)
        print_differences(terminal, failure.differences)
        terminal.print(
            f"replay: rnic soak --seed {traffic.seed} --width {width} --streams {traffic.streams}"
            f"{' --bus-errors' * traffic.bus_errors}"
            f" --chunk {failure.chunk} --segments {failure.segments} --waves",
            soft_wrap=True,
        )
    verdict = "[bold green]agree[/bold green]" if failure is None else "[bold red]differ[/bold red]"
    terminal.print(
        f"{width} bits: {verdict} on {_count(tally.segments, 'segment')},"
        f" {_count(tally.octets, 'octet')} placed, {_count(tally.deliveries, 'message')} delivered,"
        f" {_count(tally.errors, 'error')}, {_count(tally.cycles, 'cycle')};"
        f" {tally.segments / max(tally.seconds, 1e-3):.0f} segments per second",
        soft_wrap=True,
    )
