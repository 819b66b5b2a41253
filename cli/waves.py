"""Options of commands that write waveforms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ..hdl.spec.config import RnicConfig
from ..sim.engines.verilator import verilog
from ..sim.engines.waves import Waves, check_parts
from .outcome import BadInput

__all__ = ["Cycles", "Parts", "cycles_of", "waves_of"]

Parts = Annotated[
    str | None,
    typer.Option(
        "--waves",
        metavar="PARTS",
        help="Write a waveform, an FST file for GTKWave and Surfer, with the ports and these parts"
        " of the RNIC, for example walker,commit; or all.",
        show_default=False,
    ),
]
Cycles = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST..LAST", help="With --waves: only these cycles.", show_default=False
    ),
]


def cycles_of(cycles: str | None, parts: str | None) -> range | None:
    """Returns the cycles that ``--cycles`` names, the last one included, or None."""
    if cycles is None:
        return None
    if parts is None:
        raise BadInput("--cycles needs --waves")
    found = re.fullmatch(r"(\d+)\.\.(\d+)", cycles)
    if found is None or int(found[1]) > int(found[2]):
        raise BadInput(f"--cycles must be FIRST..LAST, for example 4000..5000, not {cycles!r}")
    return range(int(found[1]), int(found[2]) + 1)


def waves_of(
    parts: str | None, path: Path, config: RnicConfig, cycles: range | None = None
) -> Waves | None:
    """Returns the waveform that ``--waves`` asks for, or None."""
    if parts is None:
        return None
    names = () if parts == "all" else tuple(name.strip() for name in parts.split(","))
    try:
        check_parts(names, verilog(config))
    except ValueError as error:
        raise BadInput(f"--waves: {error}, or all") from None
    return Waves(path, names, cycles)
