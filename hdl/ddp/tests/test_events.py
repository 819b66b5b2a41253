"""Tests that every event waits for the host, once, in order, and that ``unread`` knows it."""

import random
from collections import deque

import pytest
from amaranth.hdl import ResetInserter, Signal
from ddp_rnic.hdl.ddp.events import Events
from ddp_rnic.hdl.lib.testing import Offer, shared, simulate
from ddp_rnic.hdl.spec.config import RnicConfig


def run(streams, *, raises, reads, cycles=800, relaxed=False, seed=1):
    """Raises events and reads them, each in a share of the cycles, and looks streams up.

    A stream raises an event only while none of it is unread, and not while it is looked up. Returns
    how many events there were, and the most that waited at a time.
    """
    config = RnicConfig(streams=streams, relaxed=relaxed)
    dut, rng = shared(Events, config), random.Random(seed)
    waiting, unread = deque(), set()
    looks = []  # the cycle of each look-up, and its answer
    counts = [0, 0]

    async def main(ctx):
        offer, asked = Offer("o"), None
        for cycle in range(cycles):
            late = cycle > cycles - 2 * streams - 40  # the rest is read
            if asked is None and rng.random() < 0.5:
                asked = cycle, rng.choice([*unread, *range(streams)])
                ctx.set(dut.stream, asked[1])
            free = [n for n in range(streams) if n not in unread and n != (asked or (0, -1))[1]]
            raised = None
            if free and not late and rng.random() < raises:
                raised = rng.choice(free)
            event = {
                "stream": raised or 0, "type": rng.randrange(4), "code": cycle & 0xFF,
                "length": cycle, "sequence": rng.getrandbits(32), "header": rng.getrandbits(160),
            }
            ready = late or rng.random() < reads
            ctx.set(dut.i.valid, raised is not None)
            ctx.set(dut.i.payload, event)
            ctx.set(dut.o.ready, ready)
            _, _, valid, payload, found = await ctx.tick().sample(
                dut.o.valid, dut.o.payload, dut.unread)
            if asked is not None:
                began, stream = asked
                if cycle == began:
                    looks.append(stream in unread)
                    before = looks[-1]
                # A transfer during the look-up may show or not.
                if cycle == began + Events.LATENCY:
                    if (stream in unread) == before:
                        assert found == before, f"stream {stream} in cycle {cycle}"
                    asked = None
            if offer.taken(valid, ready, payload):
                expected = waiting.popleft()
                assert {name: payload[name] for name in expected} == expected
                unread.discard(payload.stream)
            if raised is not None:
                waiting.append(event)
                unread.add(raised)
                counts[0] += 1
                counts[1] = max(counts[1], len(unread))
        assert not waiting, f"{len(waiting)} events did not come"

    simulate(dut, main, limit=cycles + 10)
    assert True in looks and False in looks
    return counts


@pytest.mark.parametrize("streams, raises, reads", [
    (2, 1.0, 1.0), (2, 0.9, 0.1), (16, 1.0, 1.0), (16, 1.0, 0.1), (16, 0.2, 0.15), (64, 1.0, 0.1),
])  # fmt: skip
def test_every_event_comes_once_in_order_and_its_stream_is_known(streams, raises, reads):
    number, most = run(streams, raises=raises, reads=reads)
    assert number >= 60
    assert most == streams or reads == 1.0, "the ring was never full"


def test_every_event_comes_with_a_slow_clock():
    assert run(16, raises=0.5, reads=0.3, relaxed=True)[0] > 100


def test_all_streams_may_raise_an_event_in_consecutive_cycles():
    """No one reads; then each event comes once, in order."""
    dut, seen = Events(RnicConfig(streams=32)), []

    async def main(ctx):
        ctx.set(dut.i.valid, 1)
        for stream in range(32):
            ctx.set(dut.i.payload, {"stream": 31 - stream, "length": stream})
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(100)
        for stream in range(32):
            ctx.set(dut.stream, stream)
            await ctx.tick().repeat(Events.LATENCY)
            assert ctx.get(dut.unread)
        ctx.set(dut.o.ready, 1)
        for _ in range(100):
            _, _, valid, event = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            if valid:
                seen.append((event.stream, event.length))

    simulate(dut, main)
    assert seen == [(31 - n, n) for n in range(32)]


@pytest.mark.parametrize("relaxed, latency", [(False, 5), (True, 3)])
def test_the_latency_from_event_to_reader(relaxed, latency):
    dut = Events(RnicConfig(relaxed=relaxed))

    async def main(ctx):
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        for cycle in range(1, 20):
            if ctx.get(dut.o.valid):
                assert cycle == latency
                return
            await ctx.tick()
        raise AssertionError("no event")

    simulate(dut, main)


def test_no_event_is_unread_after_a_reset():
    """The tables keep their contents, and a stream may raise an event again."""
    dut, reset = Events(RnicConfig(streams=16)), Signal()

    async def main(ctx):
        for again in range(2):
            for stream in range(16):
                ctx.set(dut.stream, stream)
                await ctx.tick().repeat(Events.LATENCY)
                assert not ctx.get(dut.unread), (again, stream)
            for stream in (3, 5, 7)[again:]:
                ctx.set(dut.i.payload, {"stream": stream})
                ctx.set(dut.i.valid, 1)
                await ctx.tick()
            ctx.set(dut.i.valid, 0)
            for stream in range(16):
                ctx.set(dut.stream, stream)
                await ctx.tick().repeat(Events.LATENCY)
                assert ctx.get(dut.unread) == (stream in (3, 5, 7)[again:])
            ctx.set(reset, 1)
            await ctx.tick()
            ctx.set(reset, 0)
            assert not ctx.get(dut.o.valid)

    simulate(ResetInserter(reset)(dut), main)
