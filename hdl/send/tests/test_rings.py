"""Tests that a turn sees a new ring whole, and that each turn has room for its result."""

from collections import Counter, deque

import pytest
from ddp_rnic.hdl.lib.testing import numbered, simulate
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


def test_no_more_turns_begin_than_there_is_room_for_results():
    """Each of 64 streams has a message, and for 2,000 cycles no turn can end."""
    streams, late = 64, 2000
    dut = RingReader(64, streams)
    turns, ended, answers, results = [], Counter(), deque(), deque()

    async def set_up(ctx):
        ctx.set(dut.wake.ready, 1)
        for stream in range(streams):
            for port, payload in (
                (dut.set, {"stream": stream, "base": 64 * stream, "size": 3, "open": 1}),
                (dut.doorbell, {"stream": stream, "producer": 1})):
                ctx.set(port.payload, payload)
                ctx.set(port.valid, 1)
                await ctx.tick().until(port.ready)
                ctx.set(port.valid, 0)
        for stream in range(streams):
            ctx.set(dut.turn.payload, {"stream": stream, "octets": 1000})
            ctx.set(dut.turn.valid, 1)
            await ctx.tick().until(dut.turn.ready)
            turns.append(stream)
        ctx.set(dut.turn.valid, 0)
        while sum(ended.values()) < streams:
            await ctx.tick()
        await ctx.tick().repeat(50)

    async def serve(ctx):
        bus = dut.bus
        ctx.set(bus.ar.ready, 1)
        ctx.set(dut.o.ready, 1)
        ticks = ctx.tick().sample(
            bus.ar.valid, bus.ar.payload.len, dut.o.valid, dut.o.payload.stream,
            dut.ended.valid & dut.ended.ready, dut.ended.payload.stream)
        async for cycle, (asks, beats, comes, stream, ends, whose) in numbered(ticks):
            if asks:
                answers.extend([0] * (beats + 1))
            if comes:
                results.append(stream)
            if ends:
                ended[whose] += 1
            ctx.set(bus.r.valid, bool(answers))
            if answers:
                answers.popleft()
            ctx.set(dut.results.valid, bool(results))
            if results:
                ctx.set(dut.results.payload, {"stream": results.popleft(), "entries": 1})
            if cycle == late:
                assert len(turns) == 32, "turns that were taken"
                ctx.set(dut.ended.ready, 1)

    simulate(dut, set_up, background=[serve], limit=10_000)
    assert ended == Counter(range(streams))
