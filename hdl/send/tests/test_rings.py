"""Tests that a turn sees a new ring whole."""

import pytest
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.send.rings import RingReader

STREAM, OLD, NEW = 5, 0x40, 0x80


@pytest.mark.parametrize("delay", range(4))
def test_a_turn_beside_a_new_ring_reads_no_entry(delay):
    dut = RingReader(64, 16)
    ring = {"stream": STREAM, "base": OLD, "size": 3, "open": 1}

    async def give(ctx, port, payload):
        ctx.set(port.payload, payload)
        ctx.set(port.valid, 1)
        await ctx.tick().until(port.ready)
        ctx.set(port.valid, 0)

    async def testbench(ctx):
        ctx.set(dut.wake.ready, 1)
        await give(ctx, dut.set, ring)
        await give(ctx, dut.doorbell, {"stream": STREAM, "producer": 4})
        await ctx.tick().repeat(4)
        ctx.set(dut.turn.payload, {"stream": STREAM, "octets": 1000})
        # A wake for new credit gives the stream its turn while the host replaces the ring.
        ctx.set(dut.set.payload, {**ring, "base": NEW})
        ctx.set(dut.set.valid, 1)
        for _ in range(delay):
            await ctx.tick()
            if ctx.get(dut.set.ready):
                break
        ctx.set(dut.turn.valid, 1)
        await ctx.tick()
        ctx.set(dut.turn.valid, 0)
        for _ in range(20):
            await ctx.tick()
            read = ctx.get(dut.bus.ar.valid) and ctx.get(dut.bus.ar.payload.addr) >> 6
            assert read < NEW

        # A doorbell for the new ring: its entry is read.
        ctx.set(dut.set.valid, 0)
        await give(ctx, dut.doorbell, {"stream": STREAM, "producer": 1})
        await ctx.tick().repeat(4)
        ctx.set(dut.bus.ar.ready, 1)
        await give(ctx, dut.turn, {"stream": STREAM, "octets": 1000})
        while not (ctx.get(dut.bus.ar.valid) and ctx.get(dut.bus.ar.payload.addr) == NEW << 6):
            await ctx.tick()

    simulate(dut, testbench)
