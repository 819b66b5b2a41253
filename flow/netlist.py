"""Passes over netlists that yosys writes as JSON.

They measure area, move registers into block RAM, move shift registers into distributed RAM, and
improve resets and enables that many cells use.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Netlist", "absorb_output_registers", "area", "area_by_part", "extract_shift_registers",
    "flip_flop", "fold_enables", "new_cell", "next_net", "promote_resets",
]  # fmt: skip

Netlist = dict[str, Any]

#: A reset of at least this many flip-flops gets a global network.
_MANY = 1000
#: An enable of at most this many flip-flops becomes gates.
_FEW = 8
#: Words of a distributed RAM, bits of an address, and bits of a word.
_WORDS, _ADDRESS, _BITS = 16, 4, 4
#: The outputs of these cells have the clocks of their inputs.
_LOGIC = {"LUT4", "PFUMX", "L6MUX21", "CCU2C"}


class _Wires:
    """Lists the readers of each net of a module."""

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
    """Moves registers that follow a block RAM into it, in place; returns how many read ports
    changed.

    The ECP5 reads a block RAM at 185 MHz, or at 320 MHz through the RAM's own output register,
    which yosys does not use. A read port changes where every reader of its data is a flip-flop on
    the same clock edge that starts at 0 and has no reset, and all of these have the same clock
    enable.
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
    """Returns clock and clock enable of a plain flip-flop; None for any other reader."""
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


class _Clocks:
    """Finds the clocks that determine when a net changes."""

    def __init__(self, module: Netlist) -> None:
        self.drivers = {
            bit: cell
            for cell in module["cells"].values()
            for port, bits in cell["connections"].items()
            if cell["port_directions"][port] == "output"
            for bit in bits
        }
        self.known: dict[int | str, frozenset[Any]] = {"0": frozenset(), "1": frozenset()}

    def of(self, bit: int | str) -> frozenset[Any]:
        """Returns the clocks of the registers and memories from which a net derives.

        None is among them for anything else, such as a pin.
        """
        if bit not in self.known:
            cell: dict[str, Any] = self.drivers.get(bit) or {}
            kind, pins = cell.get("type", ""), cell.get("connections", {})
            if kind in _LOGIC:
                sources = [
                    source
                    for port, bits in pins.items()
                    if cell["port_directions"][port] == "input"
                    for source in bits
                ]
                clocks = frozenset().union(*map(self.of, sources))
            elif kind == "TRELLIS_DPR16X4":
                clocks = frozenset(pins["WCK"]).union(*map(self.of, pins["RAD"]))
            elif kind == "DP16KD":
                clocks = frozenset(pins["CLKA"] + pins["CLKB"])
            else:
                clocks = frozenset(pins["CLK"] if kind == "TRELLIS_FF" else [None])
            self.known[bit] = clocks
        return self.known[bit]


def extract_shift_registers(netlist: Netlist, top: str) -> int:
    """Moves shift registers into distributed RAM, in place; returns how many flip-flops are
    removed.

    A shift register is a row of flip-flops in which only the next one reads each but the last,
    without enable and reset, and starting at 0. A row becomes one bit of a ring buffer of equal
    length, whose word is read when it is overwritten; all rings of one length share a counter. A
    row stays if its input does not come from its own clock alone, because the row may be a
    synchronizer.
    """
    module = netlist["modules"][top]
    cells, wires, clocks = module["cells"], _Wires(module), _Clocks(module)
    plain = {name: _register_kind(cell, "DI") for name, cell in cells.items()}
    following: dict[str, str] = {}
    for name, kind in plain.items():
        if kind is not None and kind[1] == "1":
            readers = wires.readers[cells[name]["connections"]["Q"][0]]
            if len(readers) == 1 and readers[0][1] == "DI" and plain[readers[0][0]] == kind:
                following[name] = readers[0][0]
    rows: defaultdict[tuple[int | str, int], list[list[str]]] = defaultdict(list)
    for first in following.keys() - set(following.values()):
        row = [first]
        while row[-1] in following:
            row.append(following[row[-1]])
        (clock,) = cells[first]["connections"]["CLK"]
        if clocks.of(cells[first]["connections"]["DI"][0]) == {clock}:
            for start in range(0, len(row) - 1, _WORDS):
                part = row[start : start + _WORDS]
                rows[clock, len(part)].append(part)
    fresh = next_net(module)
    for (clock, length), parts in sorted(rows.items()):
        name = f"shift_{clock}_{length}"
        width = (length - 1).bit_length()
        at, after = list(range(fresh, fresh + width)), range(fresh + width, fresh + 2 * width)
        fresh += 2 * width
        address = at + ["0"] * (_ADDRESS - width)
        steps = [(word + 1) % length if word < length else 0 for word in range(_WORDS)]
        for bit in range(width):
            table = "".join(str(step >> bit & 1) for step in reversed(steps))
            inputs = {pin: [net] for pin, net in zip("ABCD", address, strict=True)}
            cells[f"{name}_next_{bit}"] = new_cell(
                "LUT4", {"INIT": table}, inputs, {"Z": [after[bit]]}
            )
            cells[f"{name}_at_{bit}"] = flip_flop(clock, after[bit], at[bit])
        parts.sort()
        for start in range(0, len(parts), _BITS):
            ends = [(cells[part[0]], cells[part[-1]]) for part in parts[start : start + _BITS]]
            spare = _BITS - len(ends)
            data = [first["connections"]["DI"][0] for first, _ in ends] + ["0"] * spare
            output = [last["connections"]["Q"][0] for _, last in ends]
            output += range(fresh, fresh + spare)
            fresh += spare
            cells[f"{name}_{start}"] = new_cell(
                "TRELLIS_DPR16X4",
                {"INITVAL": "0" * _WORDS * _BITS, "WCKMUX": "WCK", "WREMUX": "WRE"},
                {"DI": data, "RAD": address, "WAD": address, "WCK": [clock], "WRE": ["1"]},
                {"DO": output},
            )
    gone = [name for parts in rows.values() for part in parts for name in part]
    for name in gone:
        del cells[name]
    return len(gone)


def fold_enables(netlist: Netlist, top: str) -> int:
    """Turns enables of few flip-flops into gates before their inputs, in place.

    Returns how many flip-flops changed. The flip-flops of a slice share one enable, so a full
    device has no place for many enables of few flip-flops each.
    """
    module = netlist["modules"][top]
    cells = module["cells"]
    enabled: defaultdict[tuple[Any, ...], list[Netlist]] = defaultdict(list)
    for cell in cells.values():
        # A flip-flop that belongs in the cell of a pin stays unchanged.
        if (
            cell["type"] == "TRELLIS_FF"
            and cell["parameters"]["CEMUX"].strip() == "CE"
            and "syn_useioff" not in cell["attributes"]
        ):
            pins = cell["connections"]
            enabled[tuple(pins["CLK"] + pins["CE"] + pins.get("LSR", []))].append(cell)
    fresh = next_net(module)
    first = fresh
    for flip_flops in enabled.values():
        for cell in flip_flops if len(flip_flops) <= _FEW else ():
            pins = cell["connections"]
            # B where A is 1, C where it is 0.
            cells[f"folded_{fresh}"] = new_cell(
                "LUT4", {"INIT": "11011000" * 2},
                {"A": pins.pop("CE"), "B": pins["DI"], "C": pins["Q"], "D": ["0"]}, {"Z": [fresh]},
            )  # fmt: skip
            pins["DI"] = [fresh]
            del cell["port_directions"]["CE"]
            cell["parameters"]["CEMUX"] = "1 "
            fresh += 1
    return fresh - first


def new_cell(
    kind: str, parameters: dict[str, str], inputs: dict[str, Any], outputs: dict[str, Any]
) -> Netlist:
    """Returns a cell of a netlist, with the bits at its pins."""
    return {
        "hide_name": 0,
        "type": kind,
        "parameters": parameters,
        "attributes": {},
        "port_directions": dict.fromkeys(inputs, "input") | dict.fromkeys(outputs, "output"),
        "connections": inputs | outputs,
    }


def flip_flop(clock: int | str, data: int | str, output: int) -> Netlist:
    """Returns a flip-flop without enable and reset that starts at 0."""
    parameters = {"GSR": "DISABLED", "CEMUX": "1 ", "CLKMUX": "CLK", "LSRMUX": "LSR",
                  "REGSET": "RESET"}  # fmt: skip
    inputs = {"CLK": [clock], "DI": [data], "LSR": ["0"]}
    return new_cell("TRELLIS_FF", parameters, inputs, {"Q": [output]})


def next_net(module: Netlist) -> int:
    """Returns the lowest number above all nets of a module."""
    lists = [bits for cell in module["cells"].values() for bits in cell["connections"].values()]
    lists += [item["bits"] for kind in ("ports", "netnames") for item in module[kind].values()]
    return 1 + max((bit for bits in lists for bit in bits if isinstance(bit, int)), default=0)


def promote_resets(netlist: Netlist, top: str) -> int:
    """Puts resets of many flip-flops on the global network, in place; returns how many there are.

    nextpnr does so only with clocks. A reset of twenty thousand flip-flops would otherwise use up
    the routing in many places. Cells that are not flip-flops keep the original net.
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
        # yosys accepts no cell with the name of a net.
        cells[f"{name}_buffer"] = new_cell("DCCA", {}, {"CLKI": [bit], "CE": ["1"]}, {"CLKO": bits})
        module["netnames"][name] = {"hide_name": 0, "bits": bits, "attributes": {}}
        for flip_flop in flip_flops:
            flip_flop["connections"]["LSR"] = bits
        promoted += 1
    return promoted


def area(netlist: Netlist, top: str) -> dict[str, int]:
    """Returns the number of a block's cells.

    The keys are ``lut4``, tables of four inputs with those of carry chains and distributed RAM;
    ``ff``, flip-flops; and ``dp16kd``, block RAMs.
    """
    return _area(netlist["modules"][top]["cells"].values())


def area_by_part(netlist: Netlist, top: str) -> dict[str, dict[str, int]]:
    """Returns the area of each instance in a block that yosys has flattened, the largest first.

    The name ``""`` has the cells in no instance. If the block only wraps another, the instances in
    that other block count. A cell belongs to the instance whose net it drives; a gate belongs to
    that of the register next to it, by which yosys names it.
    """
    module = netlist["modules"][top]
    scopes = [name for name, cell in module["cells"].items() if cell["type"] == "$scopeinfo"]
    outer = [name for name in scopes if "." not in name]
    depth = 2 if len(outer) == 1 and len(scopes) > 1 else 1
    parts = {name for name in scopes if name.count(".") == depth - 1}

    def part_of(name: str) -> str:
        part = ".".join(name.split(".")[:depth])
        return part if part in parts else ""

    driven: dict[int, str] = {}
    for name, net in module["netnames"].items():
        driven.update((bit, part) for bit in net["bits"] if (part := part_of(name)))
    cells: defaultdict[str, list[Netlist]] = defaultdict(list)
    for name, cell in module["cells"].items():
        outputs = (
            bit
            for port, bits in cell["connections"].items()
            if cell["port_directions"][port] == "output"
            for bit in bits
        )
        part = part_of(name) or next((driven[bit] for bit in outputs if bit in driven), "")
        cells[re.sub(r".*\.|\$\d+$", "", part)].append(cell)
    areas = {part: _area(each) for part, each in cells.items()}
    return dict(sorted(areas.items(), key=lambda each: -each[1]["lut4"] - each[1]["ff"]))


def _area(cells: Iterable[Netlist]) -> dict[str, int]:
    count = Counter(cell["type"] for cell in cells)
    return {
        "lut4": count["LUT4"] + 2 * count["CCU2C"] + 4 * count["TRELLIS_DPR16X4"],
        "ff": count["TRELLIS_FF"],
        "dp16kd": count["DP16KD"] + count["PDPW16KD"],
    }
