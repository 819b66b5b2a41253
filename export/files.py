"""Writes all files of an export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..hdl.flat import to_verilog
from ..hdl.spec.config import RnicConfig
from . import datasheet, examples, ipxact, registers, testbench
from .interface import MODULE

#: What takes long, beside the name of a file.
_LONG = {f"{MODULE}.v": ", from the gateware", "datasheet.html": ", after a trial in simulation"}


def export(
    config: RnicConfig, folder: Path, progress: Callable[[int, int, str], None] | None = None
) -> list[Path]:
    """Writes the Verilog, its descriptions and the examples; returns the files' paths.

    Parameters
    ----------
    progress
        Gets the number of files that are written, the number of all, and the name of the next one.

    Raises
    ------
    DeviceError
        The gateware did not do a step of the data sheet's trial.
    ToolError
        Chromium is there, and cannot print the data sheet.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    files: list[tuple[str, Callable[[RnicConfig], str]]] = [
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
    ]
    for name, text in files:
        if progress is not None:
            progress(len(written), len(files), f"{name}{_LONG.get(name, '')}")
        path = folder / name
        path.write_text(text(config), encoding="utf-8")
        written.append(path)
    pdf = datasheet.print_pdf(path)
    return [*written, *([pdf] if pdf else [])]
