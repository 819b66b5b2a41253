"""Measures the area of a block on a Xilinx device, by yosys. ``rnic export`` has a Vivado
script.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .pnr import run_yosys

__all__ = ["FAMILIES", "measure"]

#: The families 7 series, UltraScale and UltraScale+, by yosys' names.
FAMILIES = ("xc7", "xcu", "xcup")
#: How many look-up tables a cell of distributed RAM, or a shift register, uses.
_LUTRAM = {
    "RAM32X1S": 1, "RAM64X1S": 1, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1S": 2, "RAM128X1D": 4,
    "RAM256X1S": 4, "RAM256X1D": 8, "RAM512X1S": 8, "RAM32M": 4, "RAM64M": 4, "RAM32M16": 8,
    "RAM64M8": 8, "RAM64X8SW": 8, "RAM32X16DR8": 8, "SRL16E": 1, "SRLC16E": 1, "SRLC32E": 1,
}  # fmt: skip


def measure(
    text: str,
    top: str,
    *,
    block: str,
    width: int | None,
    family: str,
    parameters: Sequence[tuple[str, str]] = (),
    systemverilog: bool = False,
) -> list[dict[str, Any]]:
    """Synthesizes module ``top`` of a Verilog text; takes the arguments of :func:`.pnr.measure`.

    Tables are counted as yosys maps them: two small ones in one cell count as two. Halves of a
    block RAM, 18 Kib each, count as a half.

    Raises
    ------
    ToolError
        yosys is not installed, or failed.
    """
    with tempfile.TemporaryDirectory(prefix="rnic-xilinx-") as made:
        folder = Path(made)
        run_yosys(
            f"synth_xilinx -family {family} -flatten -noiopad -noclkbuf -top {top}",
            text, top, folder, parameters=parameters, systemverilog=systemverilog,
        )  # fmt: skip
        cells = json.loads((folder / f"{top}.json").read_text())["modules"][top]["cells"]
    count = Counter(cell["type"] for cell in cells.values())
    return [{
        "block": block, "width": width, "family": family,
        "lut": sum(count[f"LUT{size}"] for size in range(1, 7)),
        "lutram": sum(count[cell] * tables for cell, tables in _LUTRAM.items()),
        "ff": sum(count[f"FD{kind}E"] for kind in "RSCP"),
        "ramb36": count["RAMB36E1"] + count["RAMB36E2"]
                  + (count["RAMB18E1"] + count["RAMB18E2"]) / 2,
    }]  # fmt: skip
