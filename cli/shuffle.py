"""``rnic shuffle``: plays a capture's SCTP frames as a bad network would bring them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..hdl.spec.config import RnicConfig
from ..sim.campaigns import shuffle as shuffling
from ..sim.capture.capture import CaptureError
from ..sim.capture.pcap import counted as _count
from ..sim.engines.choice import load
from ..sim.engines.engine import DeviceError
from ..sim.replay.plan import plan
from ..sim.reports import report
from ..sim.reports.report import left_out_text
from .inputs import Asked, Assume, SctpPort, read_input
from .outcome import DIFFERS, exits
from .results import print_differences
from .terminal import bar, colored, console


@exits(ValueError)
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
    assume: Assume = None,
    sctp_port: SctpPort = None,
) -> None:
    """Play a capture's SCTP frames shuffled, repeated, damaged and lost, in many ways.

    Memory and deliveries must be the same each time.

    Exit code 0: they are. 1: they differ. 2: bad input. 3: a tool is missing.
    130: interrupted.
    """
    seed = secrets.randbits(32) if seed is None else seed
    terminal = console()
    config = RnicConfig(width=width)
    found = read_input(Asked(capture, regions, assume or [], sctp_port or []), config)
    if found.traffic.sctp is None:
        raise CaptureError(f"{capture} has no DDP over SCTP: there is nothing to shuffle")
    plans, _ = plan(found.traffic, found.regions, config, found.ends, found.queues)
    try:
        with bar("ways", ways) as progress:
            tally = shuffling.run(
                load("compiled"),
                plans,
                range(ways) if way is None else [way],
                seed=seed,
                progress=progress and (lambda done: progress(done, ways)),
            )
    except DeviceError as error:
        raise DeviceError(f"seed {seed}: {error}") from None
    print_differences(terminal, list(tally.differences))
    verdict = colored(
        "differ" if tally.differences else report.agreement(found.left_out), not tally.differences
    )
    terminal.print(
        f"{verdict}: {_count(tally.ways, 'way')} with the same memory and deliveries,"
        f" {_count(tally.frames, 'frame')}, {_count(tally.cycles, 'cycle')} at {width} bits,"
        f" seed {seed}{escape(left_out_text(found.left_out))}",
        soft_wrap=True,
    )
    if tally.differences:
        terminal.print(f"replay: --seed {seed} --way {tally.way}", soft_wrap=True)
        raise typer.Exit(DIFFERS)
