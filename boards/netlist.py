"""Netlists as yosys writes them in JSON: their area, registers that block RAM has already, and
resets that go everywhere.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

__all__ = ["Netlist", "absorb_output_registers", "area", "next_net", "promote_resets"]

Netlist = dict[str, Any]

#: Flip-flops that a reset has to reach before it gets a global network.
_MANY = 1000


class _Wires:
    """Who reads a net of a module."""

    def __init__(self, module: Netlist) -> None:
        self.readers: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        for name, cell in module["cells"].items():
            for port, bits in cell["connections"].items():
                if cell["port_directions"][port] == "input":
                    for bit in bits:
                        self.readers[bit].append((name, port))
        for name, port in module["ports"].items():
            if port["direction"] != "input":
                for bit in port["bits"]:
                    self.readers[bit].append(("", name))


def _replace(module: Netlist, old: int, new: int) -> None:
    """Puts net ``new`` wherever ``old`` is."""
    places = [cell["connections"] for cell in module["cells"].values()]
    for connections in places:
        for port, bits in connections.items():
            if old in bits:
                connections[port] = [new if bit == old else bit for bit in bits]
    for item in (*module["ports"].values(), *module["netnames"].values()):
        if old in item["bits"]:
            item["bits"] = [new if bit == old else bit for bit in item["bits"]]


@dataclass(frozen=True)
class _ReadPort:
    """A read port of a block RAM: pattern of its data pins, clock, output enables, modes."""

    data: str
    clock: str
    enables: tuple[str, ...]
    modes: tuple[str, ...]


_SIDES = tuple(_ReadPort(rf"DO{x}\d+", f"CLK{x}", (f"OCE{x}",), (f"REGMODE_{x}",)) for x in "AB")
#: 36 bits wide, a DP16KD reads by port B and shows the half of it on the pins of port A.
_WIDE = _ReadPort(r"DO[AB]\d+", "CLKB", ("OCEA", "OCEB"), ("REGMODE_A", "REGMODE_B"))
_PSEUDO = _ReadPort(r"DO\d+", "CLKR", ("OCER",), ("REGMODE",))


def _read_ports(cell: Netlist) -> tuple[_ReadPort, ...]:
    if cell["type"] == "PDPW16KD":
        return (_PSEUDO,)
    if cell["type"] != "DP16KD":
        return ()
    wide = int(cell["parameters"].get("DATA_WIDTH_B", "0"), 2) == 36
    same = cell["connections"].get("CLKA") == cell["connections"].get("CLKB")
    return _SIDES if not wide else (_WIDE,) if same else ()


def absorb_output_registers(netlist: Netlist, top: str) -> int:
    """Moves registers that follow a block RAM into it, in place; how many read ports changed.

    The ECP5 reads a block RAM at 185 MHz, through its own output register at 320 MHz, and yosys
    does not use that register. A read port changes where every reader of its data is a flip-flop on
    the same clock edge that starts at 0 and has no reset, and all have the same clock enable.
    """
    module = netlist["modules"][top]
    cells = module["cells"]
    wires = _Wires(module)
    changed = 0
    for cell in list(cells.values()):
        for read in _read_ports(cell):
            parameters, connections = cell["parameters"], cell["connections"]
            edge = parameters.get(f"{read.clock}MUX", read.clock)
            if edge != read.clock or any(
                parameters.get(mode, "NOREG") != "NOREG" for mode in read.modes
            ):
                continue
            readers = [
                (port, *reader)
                for port, bits in connections.items()
                if re.fullmatch(read.data, port)
                for bit in bits
                for reader in wires.readers[bit]
            ]
            kinds = {_register_kind(cells.get(name), pin) for _, name, pin in readers}
            if len(kinds) != 1:
                continue
            kind = kinds.pop()
            if kind is None or [kind[0]] != connections[read.clock]:
                continue
            parameters.update(dict.fromkeys(read.modes, "OUTREG"))
            connections.update({enable: [kind[1]] for enable in read.enables})
            taken: dict[str, int] = {}
            for port, name, _ in readers:
                (output,) = cells.pop(name)["connections"]["Q"]
                if port in taken:
                    _replace(module, output, taken[port])
                else:
                    taken[port] = output
                    connections[port] = [output]
            changed += 1
    return changed


def _register_kind(cell: Netlist | None, port: str) -> tuple[int | str, int | str] | None:
    """Clock and clock enable of a plain flip-flop; None where the reader is anything else."""
    if cell is None or cell["type"] != "TRELLIS_FF" or port != "DI":
        return None
    parameters = {name: value.strip() for name, value in cell["parameters"].items()}
    connections = cell["connections"]
    reset = connections.get("LSR", ["0"])
    if parameters.get("REGSET", "RESET") != "RESET" or parameters.get("CLKMUX", "CLK") != "CLK":
        return None
    if (
        parameters.get("GSR", "DISABLED") != "DISABLED"
        or parameters.get("LSRMUX", "LSR") != "LSR"
        or reset != ["0"]
    ):
        return None
    enable = {"1": ["1"], "CE": connections.get("CE")}.get(parameters.get("CEMUX", "1"))
    if enable is None:
        return None
    return connections["CLK"][0], enable[0]


def next_net(module: Netlist) -> int:
    """The first number of which a module has no net, nor a higher one."""
    lists = [bits for cell in module["cells"].values() for bits in cell["connections"].values()]
    lists += [item["bits"] for kind in ("ports", "netnames") for item in module[kind].values()]
    return 1 + max((bit for bits in lists for bit in bits if isinstance(bit, int)), default=0)


def promote_resets(netlist: Netlist, top: str) -> int:
    """Puts resets of many flip-flops on the global network, in place; how many they are.

    nextpnr does so with clocks alone. A reset that takes the routing of its neighbourhood to twenty
    thousand flip-flops leaves too little of it. What is no flip-flop keeps the net of before.
    """
    module = netlist["modules"][top]
    cells = module["cells"]
    resets: defaultdict[int | str, list[Netlist]] = defaultdict(list)
    for cell in cells.values():
        if cell["type"] == "TRELLIS_FF":
            for bit in cell["connections"].get("LSR", []):
                resets[bit].append(cell)
    fresh = next_net(module)
    promoted = 0
    for bit, flip_flops in resets.items():
        if isinstance(bit, str) or len(flip_flops) < _MANY:
            continue
        name, bits = f"global_reset_{promoted}", [fresh + promoted]
        # yosys takes no cell that has a net's name.
        cells[f"{name}_buffer"] = {
            "hide_name": 0,
            "type": "DCCA",
            "parameters": {},
            "attributes": {},
            "port_directions": {"CLKI": "input", "CE": "input", "CLKO": "output"},
            "connections": {"CLKI": [bit], "CE": ["1"], "CLKO": bits},
        }
        module["netnames"][name] = {"hide_name": 0, "bits": bits, "attributes": {}}
        for flip_flop in flip_flops:
            flip_flop["connections"]["LSR"] = bits
        promoted += 1
    return promoted


def area(netlist: Netlist, top: str) -> dict[str, int]:
    """Cells of a block: tables of four inputs, with those of carry chains and distributed RAM,
    flip-flops and block RAMs.
    """
    count: defaultdict[str, int] = defaultdict(int)
    for cell in netlist["modules"][top]["cells"].values():
        count[cell["type"]] += 1
    return {
        "lut4": count["LUT4"] + 2 * count["CCU2C"] + 4 * count["TRELLIS_DPR16X4"],
        "ff": count["TRELLIS_FF"],
        "dp16kd": count["DP16KD"] + count["PDPW16KD"],
    }
