"""``rnic bench``: measures cycles, latency, speed, area and clock."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..flow.xilinx import FAMILIES
from ..hdl.spec.config import WIDTHS
from ..sim.campaigns import bench as numbers
from ..sim.campaigns.others import Peer
from ..sim.reports import plots as drawing
from .outcome import BadInput, exits
from .terminal import bar


@exits()
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
        raise BadInput(f"width must be one of {choice}, not {width}")
    if xilinx is not None and xilinx not in FAMILIES:
        choice = ", ".join(FAMILIES)
        raise BadInput(f"Xilinx family must be one of {choice}, not {xilinx}")
    if seeds > 1 and not pnr and not peer:
        raise BadInput("--seeds needs --pnr or --peer, which place and route")
    try:
        peers = [Peer.of(each) for each in peer or ()]
        for each in peers:
            each.check()
        if plots is not None:
            drawing.prepare(plots)
    except (OSError, ValueError) as error:
        raise BadInput(str(error)) from None
    with bar("measuring") as progress:
        results = numbers.run_bench(
            WIDTHS if width is None else (width,), sctp=sctp, pnr=pnr, peers=peers,
            seeds=range(1, seeds + 1), xilinx=xilinx, progress=progress,
        )  # fmt: skip
    if plots is not None:
        drawing.draw(results, plots)
    if json_:
        print(json.dumps(results))
    else:
        numbers.render(results, Console(width=None if sys.stdout.isatty() else 160))
