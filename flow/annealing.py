"""Improves nextpnr's placement for an LFE5UM5G-85F of speed grade 8, by simulated annealing.

nextpnr's placers leave single cells dozens of tiles away from all their neighbours, and their last
step, which should correct that, moves a cell by at most three tiles. In a design of short paths
these cells decide the clock. So nextpnr places first; then ``anneal.cpp`` moves cells by simulated
annealing, with delays as nextpnr routes them and repeated timing analyses; then each cell gets its
place as an attribute, and nextpnr checks the places and routes. The final result is nextpnr's own
timing analysis.

nextpnr places a carry chain itself, whatever attributes the chain has. But if the netlist has the
cells that nextpnr makes from a chain, instead of the chain, it puts them where their attributes
say. It then counts the carry of a slice for each half of the slice, so that a long chain seems
slower than it is. Where that would make the longest path longer, the chain stays whole, and nextpnr
has to find its intended place: every tile that no such chain should use gets a filler in the cell
in which a chain begins, and the fillers near a chain's intended place are connected with the chain,
so that its wires are shortest there.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from .netlist import Netlist, new_cell, next_net
from .tools import ToolError, cache_directory, compiler, digest, locked

__all__ = ["Annealed", "Placed", "anneal", "constrain", "longest_path"]

_SOURCE = Path(__file__).with_name("anneal.cpp")
#: Columns and rows of tiles, and the tiles that have logic and block RAM.
_SIZE = (127, 96)
_BLOCK_ROWS = (22, 46, 70, 82)
_BLOCK_COLUMNS = [
    4 + 9 * group + 2 * place + (group > 6) * 2 + (place > 3)
    for group in range(13)
    for place in range(4)
]
_NO_LOGIC_ROWS = {10, 34, 58, *_BLOCK_ROWS}
_LOGIC = [(x, y) for x in range(2, 125) for y in range(2, 94) if y not in _NO_LOGIC_ROWS]
_BLOCKS = [(x, y) for x in _BLOCK_COLUMNS for y in _BLOCK_ROWS]
#: The numbers of these kinds in anneal.cpp.
_TABLE, _FLIP_FLOP, _RAM_WRITE, _BLOCK_RAM, _OTHER = range(5)
_KINDS = {
    "TRELLIS_COMB": _TABLE,
    "TRELLIS_FF": _FLIP_FLOP,
    "TRELLIS_RAMW": _RAM_WRITE,
    "DP16KD": _BLOCK_RAM,
}
_SINGLE, _RIGID, _BLOCK, _FIXED = range(4)
_MULTIPLEXED, _CARRY, _RAM = 1, 2, 4
#: Connections within a logic cell, a tile or a chain, with their delays in ns.
_INNER = {"FCI": 0.0, "F1": 0.0, "FXA": 0.0, "FXB": 0.0, "DI": 0.12}
_CLOCKS = {"CLK", "CLKA", "CLKB", "WCK"}
#: Delays in ns from a pin to the carry. No input of such a cell can be exchanged for another one.
_CARRY_PINS = (0.48, 0.48, 0.42, 0.38)
#: The start of the annealing: number of sweeps, temperature, and reach in tiles.
_SCHEDULE = (200, 4, 25)
_STILL = (0, 0, 1, 0)
#: By how many ns a path of several connections is routed longer than estimated.
_ROUTED = 0.3
#: Pins of a distributed RAM's write port, in the order of its address bits and its data bits.
_WRITE_ADDRESS, _WRITE_DATA = ("D0", "B0", "C0", "A0"), ("C1", "A1", "D1", "B1")
#: Pins of a table's address.
_READ_ADDRESS = "DBCA"


class Placed:
    """A placed netlist, as nextpnr writes it."""

    def __init__(self, netlist: Netlist) -> None:
        (module,) = netlist["modules"].values()
        self.cells: dict[str, Netlist] = module["cells"]
        self.names = sorted(self.cells)
        self.drivers: dict[int, tuple[str, str]] = {}
        self.sinks: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        for name in self.names:
            cell = self.cells[name]
            for port, net in self.nets(name).items():
                if cell["port_directions"][port] == "output":
                    self.drivers[net] = name, port
                elif cell["port_directions"][port] == "input":
                    self.sinks[net].append((name, port))

    def nets(self, name: str) -> dict[str, int]:
        connections = self.cells[name]["connections"]
        return {port: bits[0] for port, bits in connections.items() if len(bits) == 1}

    def mode(self, name: str) -> str:
        return str(self.cells[name]["parameters"].get("MODE", "LOGIC"))

    def place(self, name: str) -> tuple[int, int, int]:
        """Returns column, row, and logic cell of the tile."""
        bel = self.cells[name]["attributes"]["NEXTPNR_BEL"]
        match = re.fullmatch(r"X(\d+)/Y(\d+)/(?:SLICE(.)\.\D+(\d?))?.*", bel)
        assert match is not None, bel
        column, row, part, half = match.groups()
        return int(column), int(row), 2 * "ABCD".index(part) + int(half or 0) if part else 0

    def chains(self) -> list[list[str]]:
        """Returns the tables of each carry chain, in order."""
        found = []
        for name in self.names:
            carry = self.nets(name).get("FCI")
            if self.mode(name) != "CCU2" or carry in self.drivers:
                continue
            chain = [name]
            while following := self.sinks.get(self.nets(chain[-1]).get("FCO", -1)):
                chain.append(following[0][0])
            found.append(chain)
        return found

    def behind(self, name: str) -> str | None:
        """Returns the table whose result a flip-flop takes within its logic cell, or None."""
        net = self.nets(name).get("DI")
        return self.drivers[net][0] if net in self.drivers else None

    def inner(self, port: str, name: str, driver: str) -> float | None:
        """Returns the delay of a connection that no placement changes, or None for any other."""
        kind = self.cells[name]["type"]
        if kind == "TRELLIS_COMB" and self.cells[driver]["type"] == "TRELLIS_RAMW":
            return 0.0
        return _INNER.get(port) if kind in ("TRELLIS_COMB", "TRELLIS_FF") else None

    def units(self) -> dict[str, str]:
        """Returns, for each cell, the name that stands for all cells that only move together
        with it.
        """
        parents = {name: name for name in self.names}

        def root(name: str) -> str:
            while parents[name] != name:
                parents[name] = parents[parents[name]]
                name = parents[name]
            return name

        for net, sinks in self.sinks.items():
            if net in self.drivers:
                driver = self.drivers[net][0]
                for name, port in sinks:
                    if self.inner(port, name, driver) is not None:
                        parents[root(name)] = root(driver)
        for name in self.names:
            base, _, part = name.rpartition("$")
            for pattern, other in (
                (r"CCU2_COMB1", f"{base}$CCU2_COMB0"),
                (r"RAMW_BLOCK\d|DPRAM_COMB\d", f"{base}$RAMW_SLICE"),
            ):
                if re.fullmatch(pattern, part) and other in parents:
                    parents[root(name)] = root(other)
        return {name: root(name) for name in self.names}


def _gates(
    mode: str, name: str, pins: Iterable[str], *, apart: bool
) -> list[tuple[str, str, float]]:
    """Returns the paths through a table, with their delays in ns at speed grade 8.

    A delay includes the extra routing time of a pin that is routed later than others.
    """
    have = set(pins)
    ways = [(pin, "F", 0.23) for pin in "ABCD"] + [(pin, "OFX", 0.356) for pin in "ABCD"]
    ways += [("M", "OFX", 0.193), ("F1", "OFX", 0.126), ("FXA", "OFX", 0.18), ("FXB", "OFX", 0.18)]
    if mode == "CCU2":
        second = name.endswith("COMB1") and not apart
        ways += [(pin, "FCO", delay) for pin, delay in zip("ABCD", _CARRY_PINS, strict=True)]
        ways += [("FCI", "FCO", 0.0 if second else 0.056), ("FCI", "F", 0.293 if second else 0.328)]
    return [way for way in ways if have.issuperset(way[:2])]


def _problem(placed: Placed, given: dict[str, tuple[int, int, int]], *, apart: bool) -> str:
    """Returns the input of anneal.cpp for cells in the given places; chains as slow as taken
    ``apart``.
    """
    groups = placed.units()
    members: defaultdict[str, list[str]] = defaultdict(list)
    for name in placed.names:
        members[groups[name]].append(name)
    lines: list[Iterable[object]] = [_SIZE, [len(_LOGIC)], *_LOGIC, [len(_BLOCKS)], *_BLOCKS]
    lines.append([len(members)])
    for names in members.values():
        lines.append([_mobility(placed, names, {given[name] for name in names})])
    unit = {group: number for number, group in enumerate(members)}
    number = {name: index for index, name in enumerate(placed.names)}
    pins: dict[tuple[str, str], int] = {}
    sets: dict[object, int] = {}
    gates: list[Iterable[object]] = []
    starts: list[Iterable[object]] = []
    ends: list[Iterable[object]] = []

    def pin(name: str, port: str) -> int:
        return pins.setdefault((name, port), len(pins))

    lines.append([len(placed.names)])
    for name in placed.names:
        cell, nets = placed.cells[name], placed.nets(name)
        kind = _KINDS.get(cell["type"], _OTHER)
        of_tile = of_slice = -1
        if kind == _FLIP_FLOP:
            settings = {key: value.strip() for key, value in cell["parameters"].items()}
            for tile, ports, keys in (
                (True, ("CLK", "LSR"), ("CLKMUX", "LSRMUX", "SRMODE")),
                (False, ("CE",), ("CEMUX", "GSR")),
            ):
                key = (tile, *map(nets.get, ports), *map(settings.get, keys))
                found = sets.setdefault(key, len(sets))
                of_tile, of_slice = (found, of_slice) if tile else (of_tile, found)
            starts += [(pin(name, "Q"), 0.395)] if "Q" in nets else []
            ends += [(pin(name, port), 0.287 * (port == "LSR"))
                     for port in nets if port in ("DI", "M", "CE", "LSR")]  # fmt: skip
        elif kind == _TABLE:
            gates += [
                (pin(name, a), pin(name, b), delay)
                for a, b, delay in _gates(placed.mode(name), name, nets, apart=apart)
            ]
            ends += [(pin(name, port), 0.266 * (port == "WRE"))
                     for port in nets if port.startswith("W") and port != "WCK"]  # fmt: skip
        elif kind == _RAM_WRITE:
            ways = [*zip(_WRITE_ADDRESS, (f"WADO{bit}" for bit in range(4)), strict=True),
                    *zip(_WRITE_DATA, (f"WDO{bit}" for bit in range(4)), strict=True)]  # fmt: skip
            gates += [(pin(name, a), pin(name, b), 0.0)
                      for a, b in ways if a in nets and b in nets]  # fmt: skip
        elif kind == _BLOCK_RAM:
            for port in nets:
                if cell["port_directions"][port] == "output":
                    registered = cell["parameters"].get(f"REGMODE_{port[2]}") == "OUTREG"
                    starts.append((pin(name, port), 0.738 if registered else 4.1))
                elif port not in _CLOCKS:
                    ends.append((pin(name, port), 0.2))
        lines.append(
            (unit[groups[name]], kind, *given[name], of_tile, of_slice, _flags(placed, name))
        )
    nets_: list[Iterable[object]] = []
    for net, sinks in placed.sinks.items():
        if net not in placed.drivers:
            continue
        driver, port = placed.drivers[net]
        sinks = [(name, sink) for name, sink in sinks if sink not in _CLOCKS]
        kind = placed.cells[driver]["type"]
        if not sinks or kind in ("DCCA", "TRELLIS_IO") or driver.startswith("$PACKER"):
            continue
        row: list[object] = [number[driver], pin(driver, port), len(sinks)]
        for name, sink in sinks:
            delay = placed.inner(sink, name, driver)
            row += [number[name], pin(name, sink), -1 if delay is None else delay]
        nets_.append(row)
    lines.append([len(pins)])
    for part in (gates, starts, ends, nets_):
        lines += [[len(part)], *part]
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def _mobility(placed: Placed, names: list[str], places: set[tuple[int, int, int]]) -> int:
    """Returns how cells move that move together."""
    kinds = {_KINDS.get(placed.cells[name]["type"], _OTHER) for name in names}
    if kinds == {_BLOCK_RAM}:
        return _BLOCK
    if _OTHER in kinds or names[0].startswith("$PACKER"):
        return _FIXED
    # A single cell of a multiplexer, a carry chain or a RAM keeps its place in the tile.
    bound = any(_flags(placed, name) and placed.cells[name]["type"] == "TRELLIS_COMB"
                for name in names)  # fmt: skip
    return _RIGID if len(places) > 1 or bound or _RAM_WRITE in kinds else _SINGLE


def _flags(placed: Placed, name: str) -> int:
    cell, mode = placed.cells[name], placed.mode(name)
    if cell["type"] not in ("TRELLIS_COMB", "TRELLIS_FF"):
        return 0
    flags = _MULTIPLEXED if "M" in placed.nets(name) else 0
    return flags | {"CCU2": _CARRY, "DPRAM": _RAM, "RAMW_BLOCK": _RAM}.get(mode, 0)


def _program() -> Path:
    """Returns the compiled anneal.cpp; compiles it unless the cache has it."""
    text = _SOURCE.read_text(encoding="utf-8")
    command = [*compiler(), "-std=c++17", "-O2", "-ffp-contract=off"]
    kept = cache_directory() / "anneal" / digest(text, *command)
    with locked(kept):
        if not kept.exists():
            made = kept.with_suffix(".tmp")
            run = subprocess.run(
                [*command, "-o", str(made), str(_SOURCE)], capture_output=True, text=True
            )
            if run.returncode:
                raise ToolError(f"the C++ compiler failed:\n{run.stderr.strip()[-1000:]}")
            made.rename(kept)
    return kept


class Annealed(NamedTuple):
    """A place for each cell, and the lengths of paths.

    ``places`` has column, row, and logic cell of the tile for each cell. ``paths`` has the longest
    path through the inputs of each cell, in ns. ``before`` and ``after`` are estimates of the
    longest path of all, in ns.
    """

    places: dict[str, tuple[int, int, int]]
    paths: dict[str, float]
    before: float
    after: float


def anneal(placed: Placed, seed: int) -> Annealed:
    """Finds better places for the cells of a placed netlist.

    Raises
    ------
    ToolError
        There is no C++ compiler, or it failed.
    """
    places = {name: placed.place(name) for name in placed.names}
    return _run(placed, places, (*_SCHEDULE, seed))


def longest_path(placed: Placed) -> float:
    """Returns an estimate of the longest path of a placed netlist, in ns."""
    places = {name: placed.place(name) for name in placed.names}
    return _run(placed, places, _STILL).before


def _run(
    placed: Placed,
    given: dict[str, tuple[int, int, int]],
    settings: Iterable[float],
    *,
    apart: bool = False,
) -> Annealed:
    with tempfile.TemporaryDirectory(prefix="rnic-anneal-") as made:
        problem, result = Path(made) / "problem", Path(made) / "result"
        problem.write_text(_problem(placed, given, apart=apart))
        arguments = [str(problem), str(result), *map(str, settings)]
        run = subprocess.run([_program(), *arguments], check=False)
        if run.returncode:
            raise ToolError(f"annealing failed, with exit code {run.returncode}")
        lengths, *lines = result.read_text().splitlines()
    before, after = map(float, lengths.split())
    places: dict[str, tuple[int, int, int]] = {}
    paths: dict[str, float] = {}
    for name, line in zip(placed.names, lines, strict=True):
        column, row, part, path = line.split()
        places[name] = int(column), int(row), int(part)
        paths[name] = float(path)
    return Annealed(places, paths, before, after)


def constrain(netlist: Netlist, top: str, placed: Placed, annealed: Annealed) -> Netlist:
    """Returns the netlist with a place for each cell, except those of carry chains that stay whole.

    No places are left for such chains but those that they have in ``annealed``. A distributed RAM
    and a chain have no single place, so they are split into cells as nextpnr does it.
    """
    module = netlist["modules"][top]
    fresh = next_net(module)
    cells: dict[str, Netlist] = {}
    for name, cell in module["cells"].items():
        if cell["type"] == "TRELLIS_FF" and "M" in placed.nets(name):
            cell = _fed_from_outside(cell)
        if cell["type"] != "TRELLIS_DPR16X4":
            cells[name] = cell | {"attributes": dict(cell["attributes"])}
            continue
        nets = list(range(fresh, fresh + 8))
        fresh += 8
        cells |= _ram_parts(name, cell, nets)
    paths = _run(placed, annealed.places, _STILL, apart=True).paths
    whole: dict[str, int] = {}
    anchored: list[tuple[tuple[int, int], set[int]]] = []  # tile and nets of each whole chain
    for chain in placed.chains():
        if max(paths[name] for name in chain) > annealed.after - _ROUTED:
            whole |= dict.fromkeys(chain, len(anchored))
            anchored.append((annealed.places[chain[len(chain) // 2]][:2],
                             _chain_nets(chain, module["cells"])))  # fmt: skip
            continue
        parts = _chain_parts(placed, chain, module["cells"], fresh)
        fresh += len(chain)
        for name in chain:
            cells.pop(name.rpartition("$")[0], None)
        cells |= parts
    taken: set[tuple[int, int]] = set()
    for name, (column, row, part) in annealed.places.items():
        kind = placed.cells[name]["type"]
        if kind == "TRELLIS_COMB" and part == 0:
            taken.add((column, row))
        given = _part_name(name)
        table = placed.behind(name)
        if table in whole:
            ports = module["cells"][name]["connections"]
            anchored[whole[table]][1].update(
                bit for port in ("Q", "CE") for bit in ports.get(port, ()) if bit not in ("0", "1")
            )
        if given not in cells or name in whole or table in whole:
            continue
        bel = _bel(kind, column, part)
        if bel:
            cells[given]["attributes"]["BEL"] = f"X{column}/Y{row}/{bel}"
    cells |= _fillers([tile for tile in _LOGIC if tile not in taken], anchored)
    return netlist | {"modules": netlist["modules"] | {top: module | {"cells": cells}}}


def _bel(kind: str, column: int, part: int) -> str | None:
    """Returns nextpnr's name for a place in its tile."""
    slice_, half = "ABCD"[part // 2], part % 2
    return {
        "TRELLIS_COMB": f"SLICE{slice_}.K{half}",
        "TRELLIS_FF": f"SLICE{slice_}.FF{half}",
        "TRELLIS_RAMW": "SLICEC.RAMW",
        "DP16KD": f"EBR{_BLOCK_COLUMNS.index(column) % 4 if column in _BLOCK_COLUMNS else 0}",
    }.get(kind)


def _fillers(
    empty: list[tuple[int, int]], anchored: list[tuple[tuple[int, int], set[int]]]
) -> dict[str, Netlist]:
    """Returns a table in each empty tile, so that no whole chain can begin there.

    The fillers nearest to a chain's intended tile share the chain's nets, and so draw the chain
    there.
    """
    empty = list(empty)
    inputs: dict[tuple[int, int], dict[str, list[int]]] = {tile: {} for tile in empty}
    for (column, row), around in anchored:
        empty.sort(key=lambda tile: abs(tile[0] - column) + abs(tile[1] - row))
        pins = ((tile, pin) for tile in empty for pin in "ABCD" if pin not in inputs[tile])
        for net, (tile, pin) in zip(sorted(around), list(islice(pins, len(around))), strict=False):
            inputs[tile][pin] = [net]
    settings = {"INITVAL": "0" * 16, "MODE": "LOGIC"}
    fillers = {}
    for (column, row), connections in inputs.items():
        filler = new_cell("TRELLIS_COMB", settings, connections, {})
        filler["attributes"]["BEL"] = f"X{column}/Y{row}/SLICEA.K0"
        fillers[f"no_chain_{column}_{row}"] = filler
    return fillers


def _fed_from_outside(cell: Netlist) -> Netlist:
    """Returns the flip-flop with its input changed so that no table takes it into its logic cell.

    Of several flip-flops that read one table nextpnr takes one into the cell, and not always the
    same.
    """
    ways, connections = dict(cell["port_directions"]), dict(cell["connections"])
    ways["M"], connections["M"] = ways.pop("DI"), connections.pop("DI")
    parameters = cell["parameters"] | {"SD": "0 "}
    return cell | {"port_directions": ways, "connections": connections, "parameters": parameters}


def _part_name(name: str) -> str:
    """Returns the new name of a cell made by nextpnr, which would use its own names again."""
    return name.replace("$nextpnr", "$part")


def _chain_nets(chain: list[str], cells: dict[str, Netlist]) -> set[int]:
    """Returns the nets that connect a carry chain with other cells."""
    own = [name.rpartition("$")[0] for name in chain if name[0] != "$"]
    found = {
        bit
        for name in own
        for port, bits in cells[name]["connections"].items()
        for bit in bits
        if port not in ("CIN", "COUT")
        or (port == "CIN" and name == own[0])
        or (port == "COUT" and name == own[-1] and chain[-1][0] == "$")
    }
    return {bit for bit in found if isinstance(bit, int)}


def _chain_parts(
    placed: Placed, chain: list[str], cells: dict[str, Netlist], fresh: int
) -> dict[str, Netlist]:
    """Returns the tables of a carry chain, with those through which a carry enters and leaves.

    They are connected like the cells of the netlist from which they are made. The carries between
    them are new nets.
    """
    carries: dict[int, int] = {}

    def net(at: int, port: str, bit: int) -> str | int:
        base, _, part = chain[at].rpartition("$")
        if port in ("FCI", "FCO"):
            return carries.setdefault(bit, fresh + len(carries))
        if base in cells:
            name = "S" if port == "F" else port
            (bit,) = cells[base]["connections"][name + part[-1]]
            return bit
        if placed.drivers[bit][0].startswith("$PACKER"):
            return "01"[placed.drivers[bit][0] == "$PACKER_VCC"]
        # A carry to or from elsewhere. A carry that leaves in the middle of a chain enters it again
        # after that.
        before, after = (chain[i].rpartition("$")[0] if 0 <= i < len(chain) else "" for i in
                         (at - 1 - int(part[-1]), at + 2 - int(part[-1])))  # fmt: skip
        (bit,) = (cells[before]["connections"]["COUT"] if before in cells
                  else cells[after]["connections"]["CIN"])  # fmt: skip
        return bit

    parts = {}
    for at, name in enumerate(chain):
        ways = placed.cells[name]["port_directions"]
        nets = {port: [net(at, port, bit)] for port, bit in placed.nets(name).items()}
        parts[_part_name(name)] = new_cell(
            "TRELLIS_COMB",
            placed.cells[name]["parameters"],
            {port: bits for port, bits in nets.items() if ways[port] == "input"},
            {port: bits for port, bits in nets.items() if ways[port] == "output"},
        )
    return parts


def _ram_parts(name: str, cell: Netlist, nets: list[int]) -> dict[str, Netlist]:
    """Returns the parts of a distributed RAM: its write port, four tables, and the two that
    it blocks.
    """
    parameters, connections = cell["parameters"], cell["connections"]
    contents = parameters["INITVAL"].replace("x", "0")[::-1]
    write = dict(zip(_WRITE_ADDRESS, connections["WAD"], strict=True))
    write |= dict(zip(_WRITE_DATA, connections["DI"], strict=True))
    address = {f"WAD{bit}": [nets[bit]] for bit in range(4)}
    parts = {
        f"{name}$RAMW_SLICE": new_cell(
            "TRELLIS_RAMW",
            {},
            {port: [net] for port, net in write.items()},
            {f"{'WADO' if i < 4 else 'WDO'}{i % 4}": [net] for i, net in enumerate(nets)},
        )
    }
    plain = {"WREMUX": "WRE", "CCU2_INJECT1": "NO"}
    for bit in range(4):
        table = ["0"] * 16
        for word in range(16):
            # The bits of the table's own index are A, B, C and D, from the lowest.
            at = sum((word >> i & 1) << "ABCD".index(pin) for i, pin in enumerate(_READ_ADDRESS))
            table[15 - at] = contents[4 * word + bit]
        inputs = {port: [net] for port, net in zip(_READ_ADDRESS, connections["RAD"], strict=True)}
        inputs |= address | {"WD": [nets[4 + bit]]}
        inputs |= {port: connections[port] for port in ("WCK", "WRE")}
        settings = {key: parameters[key] for key in ("WCKMUX", "WREMUX")}
        parts[f"{name}$DPRAM_COMB{bit}"] = new_cell(
            "TRELLIS_COMB",
            plain | settings | {"INITVAL": "".join(table), "MODE": "DPRAM"},
            inputs,
            {"F": [connections["DO"][bit]]},
        )
    for half in range(2):
        blocked = plain | {"INITVAL": "0" * 16, "MODE": "RAMW_BLOCK"}
        parts[f"{name}$RAMW_BLOCK{half}"] = new_cell("TRELLIS_COMB", blocked, {}, {})
    return parts
