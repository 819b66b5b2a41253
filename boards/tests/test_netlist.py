"""Registers move into the block RAM before them, resets of many onto the global network, and
nothing else changes.
"""

import copy
import random
from typing import Any

import pytest
from ddp_rnic.boards.netlist import Netlist, absorb_output_registers, promote_resets
from ddp_rnic.boards.tests.netlists import (
    BITS,
    COPY,
    ENABLE,
    OTHER_CLOCK,
    OUTPUT,
    READ_DATA,
    flip_flop,
    port,
    ram,
)


class Run:
    """Simulates such a netlist: block RAM as in its data sheet, flip-flops with enable."""

    def __init__(self, netlist: Netlist) -> None:
        self.module = netlist["modules"]["top"]
        self.nets: dict[Any, int] = {"0": 0, "1": 1}
        self.words = [0] * 1024

    def _get(self, bits: list[Any]) -> int:
        return sum(self.nets.get(bit, 0) << at for at, bit in enumerate(bits))

    def _bus(self, cell: Netlist, name: str, first: int, count: int) -> int:
        connections = cell["connections"]
        return self._get([connections[f"{name}{at}"][0] for at in range(first, first + count)])

    def cycle(self, **values: int) -> int:
        """A clock edge with these port values; the output after it."""
        for name, value in values.items():
            for at, bit in enumerate(self.module["ports"][name]["bits"]):
                self.nets[bit] = value >> at & 1
        now: dict[Any, int] = {}
        for cell in self.module["cells"].values():
            connections, parameters = cell["connections"], cell["parameters"]
            if cell["type"] == "TRELLIS_FF":
                if parameters["CEMUX"] != "CE" or self._get(connections["CE"]):
                    now[connections["Q"][0]] = self._get(connections["DI"])
                continue
            latch = self.words[self._bus(cell, "ADB", 4, 10)]
            held = cell.setdefault("latch", 0)
            registered = parameters["REGMODE_B"] == "OUTREG"
            if not registered or self._get(connections["OCEB"]):
                for at in range(BITS):
                    value = held if registered else latch
                    now[connections[f"DOB{at}"][0]] = value >> at & 1
            cell["latch"] = latch
            if self._get(connections["WEA"]):
                self.words[self._bus(cell, "ADA", 4, 10)] = self._bus(cell, "DIA", 0, BITS)
        self.nets |= now
        return self._get(self.module["ports"]["rd"]["bits"])


@pytest.mark.parametrize("enabled", (False, True))
def test_absorbed_registers_give_the_same_octets_in_the_same_cycles(enabled: bool) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    before = ram(**({"CEMUX": "CE", "CE": [ENABLE]} if enabled else {}))
    after = copy.deepcopy(before)
    assert absorb_output_registers(after, "top") == 1
    assert list(after["modules"]["top"]["cells"]) == ["block"]
    left, right = Run(before), Run(after)
    seen = set()
    for cycle in range(2000):
        values = {"we": rng.random() < 0.7, "ce": rng.random() < 0.5, "wd": rng.getrandbits(BITS)}
        values |= {"wa": rng.randrange(16), "ra": rng.randrange(16)}
        expected, got = left.cycle(**values), right.cycle(**values)
        assert got == expected, f"cycle {cycle}: rd expected {expected:#x} got {got:#x}"
        seen.add(got)
    assert len(seen) > 100


def test_two_copies_of_a_register_become_one() -> None:
    netlist = ram()
    module = netlist["modules"]["top"]
    for at in range(BITS):
        module["cells"][f"copy{at}"] = flip_flop(READ_DATA[at], COPY[at])
    module["ports"]["copy"] = port("output", COPY)
    assert absorb_output_registers(netlist, "top") == 1
    assert module["ports"]["copy"]["bits"] == module["ports"]["rd"]["bits"]


@pytest.mark.parametrize(
    "changes",
    (
        {"CLK": [OTHER_CLOCK]},
        {"CLKMUX": "INV"},
        {"LSR": [ENABLE]},
        {"REGSET": "SET"},
        {"CEMUX": "INV", "CE": [ENABLE]},
    ),
    ids=lambda changes: " ".join(changes),
)
def test_a_register_that_the_block_ram_has_not_stays(changes: dict[str, Any]) -> None:
    netlist = ram(**changes)
    before = copy.deepcopy(netlist)
    assert absorb_output_registers(netlist, "top") == 0
    assert netlist == before


def test_a_port_with_another_reader_or_unlike_registers_stays() -> None:
    netlist = ram()
    netlist["modules"]["top"]["ports"]["raw"] = port("output", READ_DATA[3:4])
    assert absorb_output_registers(netlist, "top") == 0
    netlist = ram()
    odd = flip_flop(READ_DATA[3], OUTPUT[3], CEMUX="CE", CE=[ENABLE])
    netlist["modules"]["top"]["cells"]["q3"] = odd
    assert absorb_output_registers(netlist, "top") == 0


@pytest.mark.parametrize("count", (999, 1000))
def test_a_reset_of_many_flip_flops_goes_by_the_global_network(count: int) -> None:
    netlist = ram(CEMUX="CE", CE=[ENABLE])
    cells = netlist["modules"]["top"]["cells"]
    for at in range(count):
        cells[f"r{at}"] = flip_flop(1000 + at, 3000 + at, LSR=[ENABLE])
    before = copy.deepcopy(netlist)
    promoted = promote_resets(netlist, "top")
    assert promoted == (count == 1000)
    if promoted:
        (name,) = cells.keys() - before["modules"]["top"]["cells"].keys()
        buffer = cells.pop(name)
        assert buffer["type"] == "DCCA"
        assert buffer["connections"]["CLKI"] == [ENABLE]
        reset = buffer["connections"]["CLKO"]
        nets = netlist["modules"]["top"]["netnames"]
        assert name not in nets  # yosys takes it for one namespace
        (net,) = nets.keys() - before["modules"]["top"]["netnames"].keys()
        assert nets.pop(net)["bits"] == reset
        for at in range(count):
            assert cells[f"r{at}"]["connections"]["LSR"] == reset
            cells[f"r{at}"]["connections"]["LSR"] = [ENABLE]
    assert netlist == before
