"""Tests that AXI4-Lite accesses find their window, and get an error where there is none."""

import pytest
from amaranth import Const, Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In
from ddp_rnic.hdl.bus.axi import AxiLite
from ddp_rnic.hdl.bus.decode import AxiLiteDecoder, Endpoint
from ddp_rnic.hdl.bus.tests.lite import manager
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.spec.board import Window

OKAY, SLVERR, DECERR = 0, 2, 3
WINDOWS = (Window("LOW", 0, 0x100, ""), Window("HIGH", 0x4000_0000, 0x40, ""))


class Dut(wiring.Component):
    """A memory in each window; the second window has no odd words."""

    bus: In(AxiLite(32))

    def elaborate(self, platform):
        m = Module()
        m.submodules.decoder = decoder = AxiLiteDecoder(WINDOWS)
        wiring.connect(m, wiring.flipped(self.bus), decoder.bus)
        for window, latency in zip(WINDOWS, (1, 3), strict=True):
            name, bits = window.name.lower(), window.size.bit_length() - 1
            m.submodules[name] = end = Endpoint(bits, latency=latency)
            wiring.connect(m, getattr(decoder, name), end.bus)
            m.submodules[f"{name}_memory"] = store = memory.Memory(
                shape=32, depth=window.size // 4, init=[])
            write, read = store.write_port(granularity=8), store.read_port()
            m.d.comb += [
                write.addr.eq(end.address), write.data.eq(end.data), read.addr.eq(end.address)]
            value, found = read.data, Const(1)
            if window.name == "HIGH":
                found = ~end.address[0]
                for _ in range(latency - 1):
                    late = Signal(32)
                    m.d.sync += late.eq(value)
                    value = late
            m.d.comb += [
                end.answer.eq(value), end.found.eq(found),
                write.en.eq(end.write & found.replicate(4))]
        return m


def run(script):
    dut = Dut()

    async def main(ctx):
        await script(*manager(ctx, dut.bus))

    simulate(dut, main, limit=2000)


def test_each_window_has_its_own_words():
    async def script(write, read):
        for address, value in ((0, 1), (0xFC, 2), (0x4000_0000, 3), (0x4000_0038, 4)):
            assert await write(address, value) == OKAY
        for address, value in ((0, 1), (0xFC, 2), (0x4000_0000, 3), (0x4000_0038, 4)):
            assert await read(address) == (value, OKAY)

    run(script)


def test_strobes_write_octets():
    async def script(write, read):
        await write(8, 0x11223344)
        await write(8, 0xAABBCCDD, strb=0b0101)
        assert await read(8) == (0x11BB33DD, OKAY)

    run(script)


@pytest.mark.parametrize("address", [0x100, 0x3FFF_FFFC, 0x4000_0040, 0xFFFF_FFFC])
def test_an_address_in_no_window_is_refused_and_others_still_work(address):
    async def script(write, read):
        assert await write(address, 1) == DECERR
        assert (await read(address))[1] == DECERR
        assert await write(0, 5) == OKAY
        assert await read(0) == (5, OKAY)
        assert (await read(address))[1] == DECERR

    run(script)


def test_where_a_window_has_nothing_the_endpoint_refuses():
    async def script(write, read):
        assert await write(0x4000_0004, 1) == SLVERR
        assert (await read(0x4000_0004))[1] == SLVERR
        assert await write(0x4000_0008, 1) == OKAY

    run(script)


def test_a_window_that_does_not_lie_right_is_refused():
    bad = Window("BAD", 0x80, 0x100, "")
    refused("Window BAD must have a power of two of octets", AxiLiteDecoder, [bad])
