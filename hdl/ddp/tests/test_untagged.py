"""Tests the untagged checks (RFC 5041 sections 4.3, 5.2 and 7.1) against the golden model."""

import random

import pytest
from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from ddp_rnic.hdl.ddp.header import HeaderParser
from ddp_rnic.hdl.ddp.untagged import Post, QueueState, UntaggedCheck, UntaggedResult
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


def simulate(bench, *, limit=20_000):
    """Runs ``bench(ctx, dut, results)``; ``results`` gets each (cycle, result)."""
    dut = Checks()
    results = []

    async def watch(ctx):
        cycle = 0
        async for *_, valid, payload in ctx.tick().sample(dut.o.valid, dut.o.payload):
            cycle += 1
            assert cycle < limit, "watchdog"
            if valid:
                results.append((cycle, payload))

    async def main(ctx):
        await bench(ctx, dut, results)
        await ctx.tick().repeat(LATENCY + 2)

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(watch, background=True)
    simulator.add_testbench(main)
    simulator.run()
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

    async def bench(ctx, dut, results):
        await set_state(ctx, dut, 5, qn, first)
        for k, length in enumerate(buffers):
            await post(ctx, dut, 5, qn, first + k, length, 0x1_FFFF_FFF0 + 4096 * k, cookie=70 + k)
        for octets in segments:
            await send(ctx, dut, 5, octets)

    return [result for _, result in simulate(bench)]


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
    async def bench(ctx, dut, results):
        for qn in (0, 1):
            await set_state(ctx, dut, 2, qn, 1)
            await post(ctx, dut, 2, qn, 1, 50, 0)
        await set_state(ctx, dut, 2, 0, 1, is_open=0)
        for qn in (0, 1):
            await send(ctx, dut, 2, segment(qn, 1, 0, 4))
        await send(ctx, dut, 3, segment(1, 1, 0, 4))

    numbers = [number_of(result) for _, result in simulate(bench)]
    assert numbers == [ddp.INVALID_QN, None, ddp.INVALID_QN]


def test_a_disabled_stream_takes_no_buffer():
    async def bench(ctx, dut, results):
        await set_state(ctx, dut, 2, 0, 1)
        await post(ctx, dut, 2, 0, 1, 50, 0)
        ctx.set(dut.enable, 0)
        await send(ctx, dut, 2, segment(0, 1, 0, 4))
        ctx.set(dut.enable, 1)
        await ctx.tick().repeat(4)
        await send(ctx, dut, 2, segment(0, 1, 0, 4))

    assert number_of(simulate(bench)[1][1]) is None


def test_latency_is_what_the_docstring_says():
    sent = []

    async def bench(ctx, dut, results):
        for cycle in range(20):
            if cycle == 10:
                sent.append(cycle + 1)
                await send(ctx, dut, 0, segment(0, 1, 0, 4))
            else:
                await ctx.tick()

    ((cycle, _),) = simulate(bench)
    assert cycle - sent[0] == LATENCY


@pytest.mark.parametrize("seed", range(3))
def test_queues_agree_with_the_model_while_buffers_are_posted(seed):
    rng = random.Random(seed)
    queues = [(number, qn) for number in (0, 3, 7) for qn in range(4)]
    expected = []
    faults = 0

    async def bench(ctx, dut, results):
        nonlocal faults
        sinks, posted, known, sent, partial = {}, {}, {}, {}, {}
        lengths = {}

        async def set_up(number):
            sinks[number] = DataSink(Memory(), stream=number)
            for queue in queues:
                if queue[0] == number:
                    first = rng.choice((1, MSN - 3, rng.getrandbits(32)))
                    await set_state(ctx, dut, *queue, first)
                    sinks[number].open_queue(queue[1], first=first)
                    posted[queue] = known[queue] = sent[queue] = first
                    partial[queue] = 0

        for number in (0, 3, 7):
            await set_up(number)
        pending = []  # posts on their way: (cycle from which each takes effect, queue)
        for cycle in range(2000):
            while pending and pending[0][0] <= cycle:
                _, queue, length = pending.pop(0)
                sinks[queue[0]].post(queue[1], length)
                known[queue] += 1
            queue = rng.choice(queues)
            number, qn = queue
            ctx.set(dut.post.valid, 0)
            if cycle % 5 == 0 and posted[queue] - sent[queue] < CONFIG.queue_depth:
                length = rng.choice((0, 7, 100, 5000))
                lengths[queue, posted[queue]] = length
                ctx.set(
                    dut.post.payload,
                    {
                        "stream": number,
                        "qn": qn,
                        "msn": posted[queue] % MSN,
                        "slot": slot_of(number, qn, posted[queue]),
                        "buffer": {
                            "address": 1000 * posted[queue],
                            "length": length,
                            "cookie": posted[queue] % MSN,
                        },
                    },
                )
                ctx.set(dut.post.valid, 1)
                pending.append((cycle + 6, queue, length))
                posted[queue] += 1
            queue = rng.choice(queues)
            number, qn = queue
            fault = rng.random() < 0.02
            octets = None
            if fault:
                mo = rng.choice((0, 1, 101, 6000, MSN - 1))
                waits = (0,) if sent[queue] < known[queue] else ()
                ahead = rng.choice((-1, -5, 40, *waits))
                octets = segment(rng.choice((qn, qn + 4)), (sent[queue] + ahead) % MSN, mo,
                                 rng.choice((0, 5, 6000)), last=rng.random() < 0.5)  # fmt: skip
            elif sent[queue] < known[queue]:
                rest = lengths[queue, sent[queue]] - partial[queue]
                size = rng.choice((rest, min(rest, rng.randrange(2000))))
                last = size == rest or rng.random() < 0.3
                octets = segment(qn, sent[queue] % MSN, partial[queue], size, last=last)
            if octets is None:
                ctx.set(dut.i.valid, 0)
                await ctx.tick()
                continue
            event = sinks[number].receive(octets)
            ctx.set(dut.i.payload, header_of(octets))
            ctx.set(dut.stream, number)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            expected.append((event, queue))
            if any(isinstance(each, DdpError) for each in event):
                faults += 1
                while pending:  # posts must take effect before all is set up again
                    await ctx.tick()
                    ctx.set(dut.post.valid, 0)
                    if pending[0][1][0] == number:
                        pending.pop(0)
                    else:
                        _, other, length = pending.pop(0)
                        sinks[other[0]].post(other[1], length)
                        known[other] += 1
                    await ctx.tick().repeat(6)
                await set_up(number)
            elif not fault:
                partial[queue] += len(octets) - 18
                if octets[0] & 0x40:
                    sent[queue] += 1
                    partial[queue] = 0
            else:
                # Valid by chance: the sink knows.
                sent[queue] = sent[queue] + (sinks[number].queues[qn].first - sent[queue]) % MSN

    results = simulate(bench, limit=60_000)
    assert len(results) == len(expected) > 250 and faults > 5
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
