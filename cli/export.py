"""``rnic export``: writes the files that other flows need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..export.files import export as write_files
from ..hdl.spec.config import RnicConfig
from .outcome import check_directory, exits, writing


@exits(ValueError)
def export(
    width: Annotated[int, typer.Option(help="Datapath width in bits: 64, 128, 256 or 512.")] = 64,
    sctp: Annotated[
        bool, typer.Option("--sctp", help="Include DDP over SCTP and a port for Ethernet frames.")
    ] = False,
    transmit: Annotated[
        bool,
        typer.Option("--transmit", help="Include sending over MPA, with a port for its FPDUs."),
    ] = False,
    responder: Annotated[
        bool,
        typer.Option("--responder", help="With --transmit: include the answers to RDMA Reads."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Directory of the files.")] = Path("build/export"),
) -> None:
    """Write the files that other flows need.

    They are Verilog with flat AXI names and a testbench for it, IP-XACT, the
    registers in SystemRDL and as a C header, and minimal examples for LiteX and
    Vivado.

    Exit code 0: written. 2: bad input. 130: interrupted.
    """
    config = RnicConfig(width=width, sctp=sctp, transmit=transmit, responder=responder)
    check_directory(out)
    with writing(out):
        for path in write_files(config, out):
            typer.echo(path)
