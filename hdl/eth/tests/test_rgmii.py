"""Tests DDR cells: the nibbles, RX_DV, RX_ER and the link's state, according to RGMII."""

import random
import re
from collections import Counter

import pytest
from amaranth import Cat, ClockDomain, ClockSignal, IOPort, Module, Mux, Signal
from amaranth.back import rtlil
from amaranth.hdl import Elaboratable, Fragment
from amaranth.lib import io
from ddp_rnic.hdl.eth.rgmii import RgmiiReceive, RgmiiTransmit
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.lib.tests.refused import refused


class Wires(Elaboratable):
    """Connects a transmitter's pins to a receiver. While ``quiet``, the PHY shows ``status``.
    """

    def __init__(self):
        self.out = [io.SimulationPort("o", width, name=f"out{width}{name}")
                    for width, name in ((4, "d"), (1, "c"), (1, "k"))]
        self.into = [io.SimulationPort("i", width, name=f"in{width}") for width in (4, 1)]
        self.transmit = RgmiiTransmit(*self.out)
        self.receive = RgmiiReceive(*self.into)
        self.status, self.quiet = Signal(4), Signal(init=1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.transmit, m.submodules.receive = self.transmit, self.receive
        data, ctl = (port.o for port in self.out[:2])
        # Three quarters of a cycle late: like a clock that is a quarter later than data.
        m.domains.quarter = ClockDomain(reset_less=True)
        late = [Signal(5, name=f"late{step}") for step in range(2)]
        m.d.quarter += [
            late[0].eq(Cat(Mux(self.quiet, self.status, data), ctl)), late[1].eq(late[0])]
        m.d.comb += [self.into[0].i.eq(late[1][:4]), self.into[1].i.eq(late[1][4])]
        return m


class Platform:
    """Provides DDR cells as flip-flops, written independently of the boards' own."""

    def get_io_buffer(self, buffer):
        m = Module()
        m.domains.fall = ClockDomain(clk_edge="neg", reset_less=True, local=True)
        m.d.comb += ClockSignal("fall").eq(ClockSignal())
        width = len(buffer.port)
        if buffer.direction is io.Direction.Input:
            rise, fall = Signal(width), Signal(width)
            m.d.sync += [rise.eq(buffer.port.i), buffer.i[0].eq(rise), buffer.i[1].eq(fall)]
            m.d.fall += fall.eq(buffer.port.i)
        else:
            high, low = Signal(width), Signal(width)
            m.d.sync += [high.eq(buffer.o[0]), low.eq(buffer.o[1])]
            m.d.comb += buffer.port.o.eq(Mux(ClockSignal(), high, low))
        return m


class WithPlatform(Elaboratable):
    def __init__(self, dut):
        self.dut = dut

    def elaborate(self, platform):

        return Fragment.get(self.dut, Platform())


def test_octets_pass_and_the_gap_shows_the_link():
    rng = random.Random(1)
    octets = [(rng.getrandbits(8), int(rng.random() < 0.2)) for _ in range(40)]
    dut = Wires()
    seen, links = [], []

    async def send(ctx):
        ctx.set(dut.status, 0b1101)
        await ctx.tick().repeat(10)
        ctx.set(dut.quiet, 0)
        for octet, error in octets:
            ctx.set(dut.transmit.i, {"data": octet, "valid": 1, "error": error})
            await ctx.tick()
        ctx.set(dut.transmit.i, {"data": 0, "valid": 0, "error": 0})
        await ctx.tick().repeat(3)
        ctx.set(dut.quiet, 1)
        await ctx.tick().repeat(10)

    async def watch(ctx):
        async for *_, octet, link in ctx.tick().sample(dut.receive.o, dut.receive.link):
            links.append(link)
            if octet.valid:
                seen.append((octet.data, octet.error))

    clocks = {"sync": (8e-9, None), "quarter": (4e-9, 2e-9)}
    simulate(WithPlatform(dut), send, background=[watch], clocks=clocks)
    assert seen == octets
    assert links[0] == 0 and links[-1] == 0b1101


@pytest.mark.parametrize("delay", [0, 2000])
def test_every_pin_of_a_device_passes_a_delay_cell_as_in_litex(delay):
    """LiteEth's ``ecp5rgmii`` has a DELAYG at each pin but RX_CLK: 0 at transmit data and control,
    the transmit delay at TX_CLK, the receive delay at receive data and control; 25 ps per step.
    """
    def cells(make, *widths):
        pins = [io.SingleEndedPort(IOPort(width, name=f"p{at}")) for at, width in enumerate(widths)]
        text = rtlil.convert(make(*pins, delay=delay), ports=[pin.io for pin in pins])
        return Counter(
            int(re.search(r"parameter \\DEL_VALUE (\d+)", cell)[1])
            for cell in text.split("cell \\DELAYG")[1:])

    assert cells(RgmiiReceive, 4, 1) == Counter({delay // 25: 5})
    assert cells(RgmiiTransmit, 4, 1, 1) == Counter([*(5 * [0]), delay // 25])


@pytest.mark.parametrize("delay", [-1, 3200])
def test_a_delay_that_the_cell_has_not_is_refused(delay):
    ports = [io.SimulationPort("i", width, name=f"p{width}") for width in (4, 1)]
    refused(f"RGMII delay must be from 0 to 3175 picoseconds, not {delay}",
            RgmiiReceive, *ports, delay=delay)
