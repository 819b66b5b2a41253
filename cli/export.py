"""``rnic export``: writes the files that other flows need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..export.files import export as write_files
from .outcome import check_directory, exits, writing
from .parameters import Config, Set, configured
from .terminal import bar


@exits()
def export(
    config: Config = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Directory of the files.")] = Path("build/export"),
) -> None:
    """Write the files that other flows need.

    They are Verilog with flat AXI names and a testbench for it, IP-XACT, the
    registers in SystemRDL and as a C header, minimal examples for LiteX and
    Vivado, and a data sheet, which is also printed as PDF if Chromium is there.

    Exit code 0: written. 1: the gateware fails. 2: bad input. 3: Chromium fails.
    130: interrupted.
    """
    chosen = configured(config, set_)
    check_directory(out)
    with writing(out), bar("writing") as progress:
        written = write_files(chosen, out, progress)
    for path in written:
        typer.echo(path)
