"""Tests the helpers of the other tests: each fails for the mistake that it looks for."""

import random
from functools import partial

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.lib.stream import Beat, Queue
from ddp_rnic.hdl.lib.testing import (
    Sinks,
    beats_of,
    numbered,
    octets_of,
    receive,
    send,
    shared,
    simulate,
)


class Restless(wiring.Component):
    """Breaks the rule of streams: changes its offer in each cycle, or withdraws it."""

    o: Out(stream.Signature(8))
    withdraws: In(1)

    def elaborate(self, platform):
        m = Module()
        count = Signal(8)
        m.d.sync += count.eq(count + 1)
        m.d.comb += [
            self.o.valid.eq(~self.withdraws | ~count[0]),
            self.o.payload.eq(count & ~self.withdraws.replicate(8)),
        ]
        return m


def test_a_simulation_that_hangs_fails_after_its_limit():
    dut = Queue(8, depth=4)
    with pytest.raises(AssertionError, match="Queue: the test has not ended after 100 cycles"):
        simulate(dut, partial(receive, stream=dut.o), limit=100)


def test_a_shared_component_is_as_new_in_each_simulation():
    assert shared(Queue, 8, depth=4) is shared(Queue, 8, depth=4)
    woken = []

    async def watch(ctx):
        while True:
            woken.append(await ctx.changed(shared(Queue, 8, depth=4).o.valid))

    async def fill(ctx):
        dut = shared(Queue, 8, depth=4)
        assert not ctx.get(dut.o.valid) and not ctx.get(dut.i.valid)
        await send(ctx, dut.i, [1, 2, 3])
        assert ctx.get(dut.o.payload) == 1

    for rounds in (1, 2, 3):
        simulate(shared(Queue, 8, depth=4), fill, background=[watch] * (rounds < 3))
    assert woken == [(1,), (1,)]


@pytest.mark.parametrize("idle, stall", [(0, 0), (0.6, 0), (0, 0.6), (0.5, 0.5)])
def test_what_is_sent_is_received_in_order(idle, stall):
    dut = Queue(8, depth=4)
    rng, got = random.Random(1), []

    async def take(ctx):
        while len(got) < 50:
            got.append(await receive(ctx, dut.o, stall=stall, rng=rng))

    source = partial(send, stream=dut.i, payloads=range(50), idle=idle, rng=rng)
    simulate(dut, take, source, limit=1000)
    assert got == list(range(50))


@pytest.mark.parametrize("withdraws, message", [
    (0, "the payload changes before the transfer, from 0 to 1"),
    (1, "valid is withdrawn before the transfer"),
])
@pytest.mark.parametrize("many", [False, True], ids=["receive", "Sinks"])
def test_an_offer_that_is_not_held_is_found(withdraws, message, many):
    dut = Restless()
    rng = random.Random(1)

    async def testbench(ctx):
        ctx.set(dut.withdraws, withdraws)
        if not many:
            await receive(ctx, dut.o, stall=1, rng=rng)
        sinks = Sinks({"o": dut.o}, stalls={"o": 1}, rng=rng)
        async for _, values in numbered(ctx.tick().sample(*sinks.signals)):
            assert not any(seen.taken for seen in sinks.look(values))
            sinks.set_ready(ctx)

    with pytest.raises(AssertionError, match=message):
        simulate(dut, testbench, limit=100)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 24])
def test_beats_have_the_octets_of_their_packet(length):
    packet, shape = random.Random(length).randbytes(length), Beat(64)
    beats = [shape.const(beat) for beat in beats_of(packet, 8, error=True)]
    assert b"".join(octets_of(beat, 8) for beat in beats) == packet
    assert [beat.last for beat in beats] == [0] * (len(beats) - 1) + [1]
    assert [beat.error for beat in beats] == [beat.last for beat in beats]


def test_a_beat_that_is_not_full_must_be_the_last():
    with pytest.raises(AssertionError, match="7 octets in a beat that is not the last"):
        octets_of(Beat(64).const({"data": 0, "count": 7, "last": 0}), 8)
