"""Rewritten Verilog behaves as before: as text, and as Verilator runs it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from amaranth.back import verilog
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from ddp_rnic.flow.tools import ToolError
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.engines import rewrite, verilator
from ddp_rnic.sim.engines.rewrite import let_sleep
from numpy.typing import NDArray


class Part(wiring.Component):
    """Registers without an enable, in a row: an input takes three cycles."""

    def __init__(self) -> None:
        super().__init__({"i": In(8), "o": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        first = Signal(8)
        second = Signal(8)
        m.d.sync += [first.eq(self.i), second.eq(first + 1), self.o.eq(second)]
        return m


class Latch(wiring.Component):
    """A register with an enable: ``value`` has no effect while ``take`` is 0."""

    def __init__(self) -> None:
        super().__init__({"take": In(1), "value": In(8), "o": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        with m.If(self.take):
            m.d.sync += self.o.eq(self.value + 1)
        return m


class Sleeper(wiring.Component):
    """Everything that a sleeper may have: ``go`` makes it work for a while without another input.

    ``data`` is only stored. ``mask`` has a path to ``o`` without a register. ``value`` has an
    effect only with ``take``, inside a part.
    """

    def __init__(self) -> None:
        super().__init__({
            "go": In(1), "push": In(1), "take": In(1), "data": In(8), "mask": In(8),
            "value": In(8), "o": Out(32),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.part = part = Part()
        m.submodules.latch = latch = Latch()
        stored = Memory(shape=8, depth=4, init=[3, 2, 1, 0])
        counts = Memory(shape=8, depth=4, init=[])
        m.submodules += stored, counts
        rest = Signal(4)
        late = Signal(8)
        place = rest[2:]
        write, read = stored.write_port(), stored.read_port()
        step, count = counts.write_port(), counts.read_port(domain="comb")
        with m.If(self.go):
            m.d.sync += [rest.eq(13), Cat(late[:2], late[6:]).eq(self.mask)]
        with m.Elif(rest != 0):
            m.d.sync += rest.eq(rest - 1)
        m.d.comb += [
            *(write.en.eq(self.push), write.addr.eq(place), write.data.eq(self.data)),
            *(step.en.eq(rest == 5), step.addr.eq(place), step.data.eq(count.data + 1)),
            *(read.addr.eq(place), count.addr.eq(place), part.i.eq(read.data)),
            *(latch.take.eq(self.take), latch.value.eq(self.value)),
            self.o.eq(Cat(part.o, count.data, late ^ latch.o, read.data) & Cat(*[self.mask] * 4)),
        ]
        return m


class Restless(wiring.Component):
    """A delay line, which never sleeps, beside a part that does."""

    def __init__(self) -> None:
        super().__init__({"i": In(8), "o": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.part = part = Part()
        m.submodules.line = line = Memory(shape=8, depth=8, init=[])
        write, read, place = line.write_port(), line.read_port(), Signal(3)
        m.d.sync += place.eq(place + 1)
        m.d.comb += [write.en.eq(1), write.addr.eq(place), write.data.eq(part.o)]
        m.d.comb += [part.i.eq(self.i), read.addr.eq(place), self.o.eq(read.data)]
        return m


class Inner(wiring.Component):
    """Two sleepers, the second started by the first, and a part after it that never sleeps."""

    def __init__(self) -> None:
        super().__init__({"inputs": In(32), "o": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.tagged = tagged = Sleeper()
        m.submodules.cut = cut = Sleeper()
        m.submodules.commit = commit = Restless()
        for sleeper, go in ((tagged, self.inputs[0]), (cut, tagged.o[0])):
            for port, value in (
                (sleeper.go, go),
                (sleeper.push, self.inputs[1]),
                (sleeper.take, self.inputs[2]),
                (sleeper.data, self.inputs[8:16]),
                (sleeper.mask, self.inputs[16:24]),
                (sleeper.value, self.inputs[24:]),
            ):
                taken = Signal.like(port)
                m.d.sync += taken.eq(value)
                m.d.comb += port.eq(taken)
        m.d.comb += commit.i.eq(cut.o)
        m.d.comb += self.o.eq(tagged.o ^ cut.o.rotate_left(5) ^ Cat(commit.o, self.inputs[0]))
        return m


class Outer(wiring.Component):
    """A module ``rnic`` with an instance ``rnic``, as the gateware is."""

    def __init__(self) -> None:
        super().__init__({"inputs": In(32), "o": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.rnic = inner = Inner()
        m.d.comb += [inner.inputs.eq(self.inputs), self.o.eq(inner.o)]
        return m


@pytest.fixture(scope="module")
def design() -> str:
    return verilog.convert(Outer(), name="rnic", strip_internal_attrs=True)


HARNESS = """
#include "Vtop.h"
#include "verilated.h"
double sc_time_stamp() { return 0; }
extern "C" __attribute__((visibility("default")))
void run(const uint32_t *inputs, uint32_t *outputs, uint64_t cycles) {
    VerilatedContext context;
    Vtop top{&context};
    top.rst = 0;
    top.clk = 1; top.eval();
    while (cycles--) {
        top.inputs = *inputs++;
        top.clk = 0; top.eval();
        *outputs++ = top.o;
        top.clk = 1; top.eval();
    }
}
"""


@pytest.fixture
def outputs(inputs: NDArray[np.uint32], tmp_path: Path) -> Callable[[str], NDArray[np.uint32]]:
    """Returns the outputs of a design in each cycle. As a netlist, its text is not rewritten."""
    harness = tmp_path / "harness.cpp"
    harness.write_text(HARNESS)

    def run(text: str) -> NDArray[np.uint32]:
        library = ctypes.CDLL(str(verilator.build_library(text, harness, netlist=True)))
        given = np.zeros_like(inputs)
        library.run(
            *(ctypes.c_void_p(each.ctypes.data) for each in (inputs, given)),
            ctypes.c_uint64(len(inputs)),
        )
        return given

    return run


@pytest.fixture(scope="module")
def inputs() -> NDArray[np.uint32]:
    """Returns long pauses without input, and cycles of work between them; data changes all
    the time.
    """
    random = np.random.default_rng(5041)
    cycles = 20_000
    busy = np.repeat(random.random(cycles // 50) < 0.4, 50)
    busy[:200] = False
    often = np.repeat(random.random(cycles // 50), 50) / 4
    flags = (random.random((2, cycles)) < often) & busy
    masks = np.repeat(random.integers(0, 256, cycles // 200), 200)
    data = random.integers(0, 256, cycles)
    masks[:200] = 0
    takes = np.repeat(random.random(cycles // 250) < 0.5, 250)
    values = np.repeat(random.integers(0, 256, cycles // 25), 25)
    return (flags[0] | flags[1] << 1 | takes << 2 | data << 8 | masks << 16 | values << 24).astype(
        np.uint32
    )


def test_asleep_or_not_every_cycle_gives_the_same(
    design: str, outputs: Callable[[str], NDArray[np.uint32]]
) -> None:
    asleep = let_sleep(design, verilator.TOP)
    # Two sleepers with their part, and the part of the module that has a delay line.
    awake = re.findall(r"iff bench\.rnic\.rnic\.(\S+)", asleep)
    assert {name.removeprefix("\\") for name in awake} == {"tagged", "cut", "commit"}
    expected = outputs(design)
    assert len(set(expected)) > 1000
    assert np.array_equal(outputs(asleep), expected)


@pytest.mark.parametrize(
    "forgotten",
    [
        r"\(rest != _kept\d+\) \|",  # it has work to do
        r"_kept\d+ \| _kept\d+ \|",  # it has written to its memories
        r"\| \(\(take ?\) && \(value != _kept\d+\)\)",  # an input that has an effect at times
        *long(
            r"(?<=_awake <= )\(\(go != _kept\d+\)\) \|",  # an input
            r"\(\(go != _kept\d+\)\) \| (?=[^;]*;\n  end)",  # one that changed before it compared
            r" \| _stirs\d",  # its parts
            r"~_awake \|",  # an input, until it compares
        ),
    ],
)
def test_what_a_sleeper_forgets_shows(
    forgotten: str, design: str, outputs: Callable[[str], NDArray[np.uint32]]
) -> None:
    asleep = let_sleep(design, verilator.TOP)
    wrong, found = re.subn(forgotten, "", asleep)
    assert found
    expected = outputs(design)
    assert not np.array_equal(outputs(wrong), expected)


def test_what_is_set_and_not_declared_is_reported() -> None:
    text = "module \\rnic.rnic.cut (clk);\n  always @(posedge clk)\n    x <= 1'h1;\nendmodule\n"
    with pytest.raises(ToolError, match=r"rnic\.rnic\.cut sets an undeclared name: x"):
        let_sleep(text, verilator.TOP)


def test_every_sleeper_is_an_instance_of_the_gateware() -> None:
    # Other tests simulate these two devices, so that the cache has their Verilog.
    configs = RnicConfig(sctp=True), RnicConfig(transmit=True, responder=True)
    text = "".join(verilator.verilog(config) for config in configs)
    names = re.findall(r"^module \\rnic\.rnic\.([\w.]+)", text, re.MULTILINE)
    assert set(rewrite._SLEEPERS) <= set(names)
