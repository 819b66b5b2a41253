"""Writes all files of an export."""

from __future__ import annotations

from pathlib import Path

from ..hdl.flat import to_verilog
from ..hdl.spec.config import RnicConfig
from . import datasheet, examples, ipxact, registers, testbench
from .interface import MODULE


def export(config: RnicConfig, folder: Path) -> list[Path]:
    """Writes the Verilog, its descriptions and the examples; returns the files' paths.

    Raises
    ------
    DeviceError
        The gateware did not do a step of the data sheet's trial.
    ToolError
        Chromium is there, and cannot print the data sheet.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in (
        (f"{MODULE}.v", to_verilog),
        ("tb_rnic.v", testbench.text),
        (f"{MODULE}.vlt", testbench.waivers),
        ("component.xml", ipxact.component),
        (f"{MODULE}.rdl", registers.rdl),
        (f"{MODULE}.h", registers.header),
        (f"{MODULE}.vh", registers.verilog_header),
        ("registers.md", registers.page),
        ("litex_rnic.py", examples.litex),
        ("vivado.tcl", examples.vivado),
        ("datasheet.html", datasheet.page),
    ):
        path = folder / name
        path.write_text(text(config), encoding="utf-8")
        written.append(path)
    pdf = datasheet.print_pdf(path)
    return [*written, *([pdf] if pdf else [])]
