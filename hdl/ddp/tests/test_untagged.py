"""Tests the untagged checks (RFC 5041 sections 4.3, 5.2 and 7.1) against the golden model."""

import random

import pytest
from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.ddp.header import HeaderParser
from ddp_rnic.hdl.ddp.untagged import Post, QueueState, UntaggedCheck, UntaggedResult
from ddp_rnic.hdl.lib.testing import numbered, shared, simulate
from ddp_rnic.hdl.lib.tests.long import first
from ddp_rnic.hdl.spec import ddp
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.model.ddp import DataSink
from ddp_rnic.sim.model.events import DdpError, Placed
from ddp_rnic.sim.model.header import UntaggedHeader
from ddp_rnic.sim.model.memory import Memory

CONFIG = RnicConfig(width=64, streams=8, queue_depth=8, buffers=256)
LATENCY = 2 + UntaggedCheck.LATENCY
MSN = 1 << 32


class Checks(wiring.Component):
    """Connects parser and check as the top does; ``stream`` comes with the header."""

    i: In(stream.Signature(160, always_ready=True))
    stream: In(16)
    enable: In(1, init=1)
    state: In(stream.Signature(QueueState(), always_ready=True))
    post: In(stream.Signature(Post(CONFIG), always_ready=True))
    o: Out(stream.Signature(UntaggedResult(), always_ready=True))

    def elaborate(self, platform):
        m = Module()
        m.submodules.parser = parser = HeaderParser()
        m.submodules.check = check = UntaggedCheck(CONFIG)
        wiring.connect(m, wiring.flipped(self.i), parser.i)
        wiring.connect(m, wiring.flipped(self.state), check.state)
        wiring.connect(m, wiring.flipped(self.post), check.post)
        wiring.connect(m, check.o, wiring.flipped(self.o))
        later, latest = Signal(17), Signal(17)
        m.d.sync += [later.eq(Cat(self.stream, self.enable)), latest.eq(later)]
        m.d.comb += [
            check.i.valid.eq(parser.o.valid),
            check.i.payload.header.eq(parser.o.payload),
            Cat(check.i.payload.stream, check.i.payload.enable).eq(latest),
        ]
        return m


def run(bench):
    """Runs ``bench(ctx, dut)``; returns each result with its cycle."""
    dut = shared(Checks)
    results = []

    async def watch(ctx):
        ticks = ctx.tick().sample(dut.o.valid, dut.o.payload)
        async for cycle, (valid, payload) in numbered(ticks):
            if valid:
                results.append((cycle, payload))

    async def main(ctx):
        await bench(ctx, dut)
        await ctx.tick().repeat(LATENCY + 2)

    simulate(dut, main, background=[watch])
    return results


def header_of(segment):
    """Returns the parser's input for a segment: its length, and up to 18 octets of it."""
    octets = len(segment).to_bytes(2, "big") + segment[:18]
    return int.from_bytes(octets.ljust(20, b"\xee"), "little")


def segment(qn, msn, mo, length, *, last=True):
    return UntaggedHeader(qn, msn, mo, last, 0).encode() + bytes(length)


def slot_of(number, qn, msn):
    """Returns a slot of the buffer table that no other buffer has."""
    return (4 * number + qn) * CONFIG.queue_depth + msn % CONFIG.queue_depth


async def send(ctx, dut, number, octets):
    ctx.set(dut.i.payload, header_of(octets))
    ctx.set(dut.stream, number)
    ctx.set(dut.i.valid, 1)
    await ctx.tick()
    ctx.set(dut.i.valid, 0)


async def set_state(ctx, dut, number, qn, msn, is_open=1):
    await ctx.tick().repeat(LATENCY)
    ctx.set(dut.state.payload, {"stream": number, "qn": qn, "msn": msn % MSN, "open": is_open})
    ctx.set(dut.state.valid, 1)
    await ctx.tick()
    ctx.set(dut.state.valid, 0)


async def post(ctx, dut, number, qn, msn, length, address, cookie=0):
    ctx.set(
        dut.post.payload,
        {
            "stream": number,
            "qn": qn,
            "msn": msn % MSN,
            "slot": slot_of(number, qn, msn),
            "buffer": {"address": address, "length": length, "pages": 3, "cookie": cookie},
        },
    )
    ctx.set(dut.post.valid, 1)
    await ctx.tick()
    ctx.set(dut.post.valid, 0)
    await ctx.tick().repeat(4)


def run_segments(segments, *, buffers=(100, 100, 0), first=1, qn=1):
    """Returns the results of segments that follow each other in every cycle, on stream 5."""

    async def bench(ctx, dut):
        await set_state(ctx, dut, 5, qn, first)
        for k, length in enumerate(buffers):
            await post(ctx, dut, 5, qn, first + k, length, 0x1_FFFF_FFF0 + 4096 * k, cookie=70 + k)
        for octets in segments:
            await send(ctx, dut, 5, octets)

    return [result for _, result in run(bench)]


def number_of(result):
    return (result.type, result.code) if result.error else None


@pytest.mark.parametrize(
    "octets, number",
    [
        (segment(1, 1, 0, 100), None),
        (segment(1, 1, 0, 0), None),
        (segment(1, 1, 100, 0), None),
        (segment(1, 1, 99, 1), None),
        (segment(0, 1, 0, 1), ddp.INVALID_QN),
        (segment(3, 1, 0, 1), ddp.INVALID_QN),
        (segment(5, 1, 0, 1), ddp.INVALID_QN),
        (segment(0x80000001, 1, 0, 1), ddp.INVALID_QN),
        (segment(1, 0, 0, 1), ddp.MSN_RANGE),
        (segment(1, 0x80000001, 0, 1), ddp.MSN_RANGE),
        (segment(1, 4, 0, 1), ddp.NO_BUFFER),
        (segment(1, 0x80000000, 0, 1), ddp.NO_BUFFER),
        (segment(1, 1, 101, 0), ddp.INVALID_MO),
        (segment(1, 1, 0xFFFFFFFF, 1), ddp.INVALID_MO),
        (segment(1, 1, 100, 1), ddp.MESSAGE_TOO_LONG),
        (segment(1, 1, 0, 101), ddp.MESSAGE_TOO_LONG),
        (segment(1, 3, 0, 1), ddp.MESSAGE_TOO_LONG),
    ],
)
def test_each_check_gives_its_number(octets, number):
    (result,) = run_segments([octets])
    assert number_of(result) == number


def test_a_segment_goes_to_its_offset_in_its_buffer():
    one, two = run_segments([segment(1, 1, 60, 40, last=True), segment(1, 2, 20, 4)])
    assert (one.address, one.total, one.cookie, one.pages) == (0x1_FFFF_FFF0 + 60, 100, 70, 3)
    assert (two.address, two.total, two.cookie) == (0x2_0000_0FF0 + 20, 24, 71)
    assert not one.disorder and not two.disorder


def test_messages_of_one_segment_may_follow_each_other_in_every_cycle():
    results = run_segments([segment(1, 1 + k, 0, 8) for k in range(3)] + [segment(1, 1, 0, 8)],
                           buffers=(8, 8, 8))  # fmt: skip
    assert [number_of(result) for result in results] == [None, None, None, ddp.MSN_RANGE]
    assert not any(result.disorder for result in results[:3])


def test_a_message_that_is_not_the_next_one_is_out_of_order():
    first, second = run_segments([segment(1, 2, 0, 8, last=False), segment(1, 1, 0, 8)])
    assert number_of(first) is None and first.disorder
    assert number_of(second) is None and not second.disorder


def test_the_msn_wraps_to_zero():
    """Section 4.3: "The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF"."""
    msns = [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]
    results = run_segments([segment(1, msn, 0, 8) for msn in msns], buffers=[8] * 4, first=msns[0])
    assert [number_of(result) for result in results] == [None] * 4
    assert not any(result.disorder for result in results)


def test_a_closed_queue_is_not_valid_and_others_are():
    async def bench(ctx, dut):
        for qn in (0, 1):
            await set_state(ctx, dut, 2, qn, 1)
            await post(ctx, dut, 2, qn, 1, 50, 0)
        await set_state(ctx, dut, 2, 0, 1, is_open=0)
        for qn in (0, 1):
            await send(ctx, dut, 2, segment(qn, 1, 0, 4))
        await send(ctx, dut, 3, segment(1, 1, 0, 4))

    numbers = [number_of(result) for _, result in run(bench)]
    assert numbers == [ddp.INVALID_QN, None, ddp.INVALID_QN]


def test_a_disabled_stream_takes_no_buffer():
    async def bench(ctx, dut):
        await set_state(ctx, dut, 2, 0, 1)
        await post(ctx, dut, 2, 0, 1, 50, 0)
        ctx.set(dut.enable, 0)
        await send(ctx, dut, 2, segment(0, 1, 0, 4))
        ctx.set(dut.enable, 1)
        await ctx.tick().repeat(4)
        await send(ctx, dut, 2, segment(0, 1, 0, 4))

    assert number_of(run(bench)[1][1]) is None


def test_latency_is_what_the_docstring_says():
    sent = []

    async def bench(ctx, dut):
        for cycle in range(20):
            if cycle == 10:
                sent.append(cycle)
                await send(ctx, dut, 0, segment(0, 1, 0, 4))
            else:
                await ctx.tick()

    ((cycle, _),) = run(bench)
    assert cycle - sent[0] == LATENCY


class Traffic:
    """Random buffers and segments on all queues of three streams, for the gateware and the model.

    ``expected`` has the model's events, and the queue, of each segment.
    """

    STREAMS = 0, 3, 7
    #: Cycles after which a posted buffer has taken effect.
    POSTING = 6

    def __init__(self, dut, rng):
        self.dut, self.rng = dut, rng
        self.queues = [(number, qn) for number in self.STREAMS for qn in range(4)]
        self.sinks = {}
        # The next MSNs of each queue: to post, to be known to the checks, and to send.
        self.posted, self.known, self.sent = {}, {}, {}
        self.partial, self.lengths = {}, {}
        self.pending = []  # posts on their way: (cycle from which each takes effect, queue, length)
        self.expected, self.faults = [], 0

    async def run(self, ctx):
        dut, rng = self.dut, self.rng
        for number in self.STREAMS:
            await self.set_up(ctx, number)
        for cycle in range(2000):
            while self.pending and self.pending[0][0] <= cycle:
                self.take_effect()
            ctx.set(dut.post.valid, 0)
            queue = rng.choice(self.queues)
            if cycle % 5 == 0 and self.posted[queue] - self.sent[queue] < CONFIG.queue_depth:
                self.post(ctx, cycle, queue)
            queue = rng.choice(self.queues)
            fault = rng.random() < 0.02
            octets = self.wrong(queue) if fault else self.right(queue)
            if octets is None:
                await ctx.tick()
                continue
            events = self.sinks[queue[0]].receive(octets)
            self.expected.append((events, queue))
            await send(ctx, dut, queue[0], octets)
            if any(isinstance(each, DdpError) for each in events):
                self.faults += 1
                await self.recover(ctx, queue[0])
            else:
                self.advance(queue, octets, fault)

    async def set_up(self, ctx, number):
        """Opens all queues of a stream, each from a first MSN of its own."""
        self.sinks[number] = DataSink(Memory(), stream=number)
        for queue in self.queues:
            if queue[0] == number:
                first = self.rng.choice((1, MSN - 3, self.rng.getrandbits(32)))
                await set_state(ctx, self.dut, *queue, first)
                self.sinks[number].open_queue(queue[1], first=first)
                self.posted[queue] = self.known[queue] = self.sent[queue] = first
                self.partial[queue] = 0

    def post(self, ctx, cycle, queue):
        msn, length = self.posted[queue], self.rng.choice((0, 7, 100, 5000))
        self.lengths[queue, msn] = length
        ctx.set(self.dut.post.payload, {
            "stream": queue[0], "qn": queue[1], "msn": msn % MSN, "slot": slot_of(*queue, msn),
            "buffer": {"address": 1000 * msn, "length": length, "cookie": msn % MSN}})
        ctx.set(self.dut.post.valid, 1)
        self.pending.append((cycle + self.POSTING, queue, length))
        self.posted[queue] += 1

    def take_effect(self):
        """Posts to the model the buffer that has been on its way for longest."""
        _, queue, length = self.pending.pop(0)
        self.sinks[queue[0]].post(queue[1], length)
        self.known[queue] += 1

    def wrong(self, queue):
        """Returns a segment that is, but for chance, not the next one of its queue."""
        rng, sent = self.rng, self.sent[queue]
        mo = rng.choice((0, 1, 101, 6000, MSN - 1))
        waits = (0,) if sent < self.known[queue] else ()
        msn = sent + rng.choice((-1, -5, 40, *waits))
        qn = rng.choice((queue[1], queue[1] + 4))
        return segment(qn, msn % MSN, mo, rng.choice((0, 5, 6000)), last=rng.random() < 0.5)

    def right(self, queue):
        """Returns the next segment of a queue; None if no buffer of it is known."""
        rng, sent, partial = self.rng, self.sent[queue], self.partial[queue]
        if sent >= self.known[queue]:
            return None
        rest = self.lengths[queue, sent] - partial
        size = rng.choice((rest, min(rest, rng.randrange(2000))))
        last = size == rest or rng.random() < 0.3
        return segment(queue[1], sent % MSN, partial, size, last=last)

    async def recover(self, ctx, number):
        """Sets up a stream again, once all posts on their way have taken effect."""
        while self.pending:
            await ctx.tick()
            ctx.set(self.dut.post.valid, 0)
            if self.pending[0][1][0] == number:
                self.pending.pop(0)
            else:
                self.take_effect()
            await ctx.tick().repeat(self.POSTING)
        await self.set_up(ctx, number)

    def advance(self, queue, octets, fault):
        """Counts a segment that the model accepted."""
        number, qn = queue
        if fault:  # valid by chance: the sink knows
            self.sent[queue] += (self.sinks[number].queues[qn].first - self.sent[queue]) % MSN
            return
        self.partial[queue] += len(octets) - 18
        if octets[0] & 0x40:
            self.sent[queue] += 1
            self.partial[queue] = 0


@pytest.mark.parametrize("seed", first(range(3)))
def test_queues_agree_with_the_model_while_buffers_are_posted(seed):
    traffic = None

    async def bench(ctx, dut):
        nonlocal traffic
        traffic = Traffic(dut, random.Random(seed))
        await traffic.run(ctx)

    results = run(bench)
    expected = traffic.expected
    assert len(results) == len(expected) > 250 and traffic.faults > 5
    for k, ((cycle, result), (events, queue)) in enumerate(zip(results, expected, strict=True)):
        where = f"segment {k} of queue {queue}, cycle {cycle}"
        error = next((event for event in events if isinstance(event, DdpError)), None)
        placed = any(isinstance(event, Placed) for event in events)
        if error is not None and not placed:
            assert number_of(result) == error.number, where
        else:
            assert number_of(result) is None, where
            assert result.disorder == (error is not None), where
            (header,) = (event.header for event in events if isinstance(event, Placed))
            length = next(event.length for event in events if isinstance(event, Placed))
            # The buffer's cookie is its MSN, and so is, in thousands, its address.
            assert result.cookie == header.msn, where
            assert result.total == header.mo + length, where
            assert (result.address - header.mo) // 1000 % MSN == header.msn, where
