"""Tests the order of a stream's messages against RFC 5041 section 5.4 in plain Python."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.ddp.entry import CompletionEntry
from ddp_rnic.hdl.ddp.precedence import Ordered, Overtaking, Precedence, key_of
from ddp_rnic.hdl.lib.stream import Store, delayed
from ddp_rnic.hdl.lib.testing import decoded, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.completion import Kind, Status
from ddp_rnic.hdl.spec.ddp import WAITING

STREAMS = 4
#: Segments of a stream that may overtake. The random tests have fewer.
OVERTAKES = 300
#: Cycles from a segment to its completion, if none waits: the look-up, a queue, and Precedence.
LATENCY = Overtaking.LATENCY + 1 + 4


@dataclass(frozen=True)
class Segment:
    """A segment of a message, or an entry that belongs to no message."""

    number: int
    stream: int = 1
    tagged: bool = False
    tag: int = 1
    rsvdulp: int = 0x40
    qn: int = 0
    last: bool = True
    failed: bool = False
    control: bool = False

    @property
    def key(self):
        """The shared fields of "each DDP Segment within a specific DDP Message" (4.2 and 4.3)."""
        return (self.tag, self.rsvdulp) if self.tagged else (self.qn,)

    @property
    def payload(self):
        return {
            "message": not self.control, "last": self.last,
            "entry": {
                "kind": Kind.CONTROL if self.control else Kind.MESSAGE, "stream": self.stream,
                "tagged": self.tagged, "tag": self.tag, "rsvdulp": self.rsvdulp, "qn": self.qn,
                "status": Status.NOT_PLACED if self.failed else Status.DELIVERED,
                "length": self.number, "cookie": ~self.number & 0xFFFFFFFF,
            },
        }


class Both(wiring.Component):
    """Connects Overtaking and, after a queue, Precedence."""

    def __init__(self):
        super().__init__({
            "i": In(stream.Signature(Ordered())),
            "clear": In(stream.Signature(16, always_ready=True)),
            "o": Out(stream.Signature(CompletionEntry())),
            "failed": Out(stream.Signature(16)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.overtaking = overtaking = Overtaking(STREAMS)
        m.submodules.precedence = precedence = Precedence(STREAMS, overtakes=OVERTAKES)
        m.submodules.queue = queue = Store(Ordered(), depth=32)
        segment, clear = self.i.payload, self.clear
        taken = self.i.valid & self.i.ready
        came = delayed(m, Overtaking.LATENCY, segment, "came")
        valid = Signal(Overtaking.LATENCY)
        m.d.sync += valid.eq(Cat(taken, valid))
        m.d.comb += [
            self.i.ready.eq(queue.half & ~clear.valid),
            overtaking.i.valid.eq((taken & segment.message) | clear.valid),
            overtaking.i.payload.stream.eq(
                Mux(clear.valid, clear.payload, segment.entry.stream)),
            overtaking.i.payload.key.eq(key_of(segment.entry)),
            overtaking.i.payload.last.eq(segment.last),
            overtaking.i.payload.clear.eq(clear.valid),
            queue.i.payload.eq(came),
            queue.i.payload.found.eq(overtaking.o),
            queue.i.valid.eq(valid[-1] & (
                came.last | overtaking.o.over | overtaking.o.first | ~came.message)),
            self.busy.eq(precedence.busy),
        ]
        wiring.connect(m, queue.o, precedence.i)
        wiring.connect(m, precedence.o, wiring.flipped(self.o))
        wiring.connect(m, precedence.failed, wiring.flipped(self.failed))
        return m


class Reference:
    """Implements section 5.4, with the device's bound."""

    def __init__(self):
        self.messages = {}  # by stream: [key, overtaken, last segment], in their order
        self.latest = {}
        self.overtakes = Counter()
        self.full = set()
        self.o, self.failed = {}, []

    def take(self, segment):
        number = segment.stream
        out = self.o.setdefault(number, [])
        if segment.control:
            return
        if number in self.full:
            return
        messages = self.messages.setdefault(number, [])
        mine = next(
            (each for each in messages if each[2] is None and each[0] == segment.key), None)
        if mine is None:
            mine = [segment.key, False, None]
            messages.append(mine)
        if (latest := self.latest.get(number)) is not None and latest is not mine:
            latest[1] = True
            self.overtakes[number] += 1
        if segment.last:
            mine[2] = segment
        self.latest[number] = None if segment.last else mine
        if sum(overtaken or last is not None for _, overtaken, last in messages) > WAITING or (
                self.overtakes[number] > OVERTAKES):
            self.full.add(number)
            self.failed.append(number)
            return
        while messages and messages[0][2] is not None:
            sent = messages.pop(0)[2]
            out.append((sent.number, sent.failed or segment.failed))

    def clear(self, number):
        for known in (self.messages, self.latest, self.overtakes):
            known.pop(number, None)
        self.full.discard(number)


def run(steps, *, give=1.0, take=1.0, seed=0):
    """Runs segments and ``("clear", stream)`` in their order.

    Returns the output by stream, the streams that failed, the numbers of the entries of no message,
    and the cycles of all segments that were taken and all entries that came."""
    dut = shared(Both)
    rng = random.Random(seed)
    out, failed, control, given, came = {}, [], [], [], []

    async def main(ctx):
        waiting, quiet, cycle = list(reversed(steps)), 0, 0
        while waiting or quiet < 80:
            step = waiting[-1] if waiting and rng.random() < give else None
            ctx.set(dut.clear.valid, 0)
            ctx.set(dut.i.valid, 0)
            if isinstance(step, tuple):
                # Segments of the stream's past may still wait after the look-up.
                ctx.set(dut.clear.payload, step[1])
                ctx.set(dut.clear.valid, 1)
                waiting.pop()
            elif step is not None:
                ctx.set(dut.i.payload, step.payload)
                ctx.set(dut.i.valid, 1)
            for port in (dut.o, dut.failed):
                ctx.set(port.ready, rng.random() < take)
            *_, ready, some, entry, gone, bad, stopped, busy = await ctx.tick().sample(
                dut.i.ready, dut.o.valid, Value.cast(dut.o.payload), dut.o.ready,
                dut.failed.valid & dut.failed.ready, dut.failed.payload, dut.busy)
            if isinstance(step, Segment) and ready:
                given.append(cycle)
                waiting.pop()
            if some and gone:
                came.append(cycle)
                entry = decoded(dut.o, entry)
                number = entry.length
                assert entry.cookie == ~number & 0xFFFFFFFF
                if entry.kind == Kind.CONTROL:
                    control.append(number)
                else:
                    sent = next(each for each in steps
                                if isinstance(each, Segment) and each.number == number)
                    for name in ("tag", "rsvdulp", "qn", "tagged"):
                        assert entry[name] == getattr(sent, name), name
                    out.setdefault(entry.stream, []).append(
                        (number, entry.status == Status.NOT_PLACED))
            if bad:
                failed.append(stopped)
            quiet = 0 if isinstance(step, Segment) or some or bad or busy else quiet + 1
            cycle += 1

    simulate(dut, main, limit=200_000)
    return out, failed, control, given, came


def check(steps, **options):
    """Compares a run with the reference. Returns the streams that failed, and the cycles."""
    reference = Reference()
    for step in steps:
        if isinstance(step, tuple):
            reference.clear(step[1])
        else:
            reference.take(step)
    out, failed, control, *cycles = run(steps, **options)
    expected = {number: sent for number, sent in reference.o.items() if sent}
    assert out == expected
    assert sorted(failed) == sorted(reference.failed)
    assert control == [
        step.number for step in steps if isinstance(step, Segment) and step.control]
    return failed, *cycles


def delivered(*segments):
    """Returns the numbers of the segments whose messages are delivered, in their order."""
    out, failed, *_ = run(list(segments))
    assert not failed
    return [number for number, _ in out.get(1, [])]


def test_an_untagged_message_waits_for_an_unfinished_tagged_one():
    """Section 5.4: "each preceding DDP Message has been Delivered to the ULP"."""
    begin = Segment(0, tagged=True, last=False)
    whole = Segment(1)
    end = Segment(2, tagged=True)
    assert delivered(begin, whole) == []
    assert delivered(begin, whole, end) == [2, 1]


def test_a_tagged_message_of_another_stag_or_rsvdulp_waits_too():
    begin = Segment(0, tagged=True, last=False)
    for other in ({"tag": 2}, {"rsvdulp": 0x42}):
        assert delivered(begin, Segment(1, tagged=True, **other)) == []
        assert delivered(begin, Segment(1, tagged=True, **other), Segment(2, tagged=True)) == [2, 1]


def test_a_message_of_another_queue_waits_too():
    assert delivered(Segment(0, last=False), Segment(1, qn=1)) == []
    assert delivered(Segment(0, last=False), Segment(1, qn=1), Segment(2)) == [2, 1]


def test_two_messages_in_turn_are_delivered_as_they_began():
    a = [Segment(number, tagged=True, last=number == 4) for number in (0, 2, 4)]
    b = [Segment(number, last=number == 5) for number in (1, 3, 5)]
    both = sorted(a + b, key=lambda each: each.number)
    assert delivered(*both) == [4, 5]
    # The second message is finished first.
    assert delivered(a[0], *b, *a[1:]) == [4, 5]


def test_no_other_stream_waits():
    segments = [Segment(0, tagged=True, last=False), Segment(1),
                *(Segment(number, stream=2) for number in range(2, 10))]
    out, failed, *_ = run(segments)
    assert not failed and out == {2: [(number, False) for number in range(2, 10)]}


def test_a_stream_with_more_than_can_be_kept_fails_alone():
    segments = [Segment(0, tagged=True, last=False)]
    segments += [Segment(number) for number in range(1, WAITING)]
    assert delivered(*segments, Segment(90, tagged=True)) == [90, *range(1, WAITING)]
    segments += [Segment(number) for number in range(WAITING, WAITING + 3)]
    segments += [Segment(90, tagged=True), Segment(91), Segment(92, stream=3)]
    out, failed, *_ = run(segments)
    assert out == {3: [(92, False)]} and failed == [1]
    # Once cleared, the stream restarts.
    out, failed, *_ = run([*segments, ("clear", 1), Segment(93), ("clear", 2), Segment(94)])
    assert out == {3: [(92, False)], 1: [(93, False), (94, False)]} and failed == [1]


@pytest.mark.parametrize("again", [True, *long(False)])
def test_a_stream_with_too_many_overtaking_segments_fails_alone(again):
    """Two messages in turn keep no third one, and hold up the other streams for each segment."""
    turns = [Segment(number, tagged=True, tag=number % 2, last=False)
             for number in range(1 + OVERTAKES)]
    same, other = (Segment(900 + tag, tagged=True, tag=tag % 2)
                   for tag in (OVERTAKES, OVERTAKES + 1))
    most = [*turns, same, other, Segment(902, stream=2)]
    failed, *_ = check(most)
    assert not failed
    steps = [*turns, other, Segment(903), Segment(904, stream=2)]
    if again:  # a restarted stream has its number of segments again
        steps += [("clear", 1), *most]
    failed, *_ = check(steps)
    assert failed == [1]


def test_nothing_is_reported_as_placed_after_a_message_that_was_not():
    out, *_ = run([Segment(0, tagged=True, last=False), Segment(1),
                   Segment(2, tagged=True, failed=True)])
    assert out == {1: [(2, True), (1, True)]}


def test_one_entry_per_cycle_where_none_waits():
    segments = [Segment(number, stream=number % STREAMS, tagged=True) for number in range(200)]
    _, given, came = check(segments)
    assert given[-1] - given[0] == 199
    assert [out - into for into, out in zip(given, came, strict=True)] == [LATENCY] * 200


def test_long_messages_take_no_cycle_more():
    segments = [Segment(number, stream=number % 3, tagged=True, last=number % 15 > 11)
                for number in range(300)]
    _, given, _ = check(segments)
    assert given[-1] - given[0] == 299


@pytest.mark.parametrize("kept", range(1, WAITING - 1))
def test_a_message_that_has_to_wait_takes_as_long_as_the_docstring_says(kept):
    """First for a stream with kept messages, and then for all these when they leave."""
    segments = [Segment(0, tagged=True, last=False)]
    segments += [Segment(number) for number in range(1, 1 + kept)]
    before, after = (
        run([*segments, *more, Segment(99, stream=2)])[-1][-1]
        for more in ([], [Segment(90)]))
    assert after - before <= 16 + kept + 1
    _, came = run([*segments, Segment(90, tagged=True)])[-2:]
    assert {b - a for a, b in zip(came, came[1:], strict=False)} == {3}


@pytest.mark.parametrize(
    "tangled, give, take",
    [
        (0.9, 1.0, 1.0), (0.3, 0.6, 0.6),
        *long(
            (0.3, 1.0, 1.0), (0.9, 0.6, 0.6), (0.02, 1.0, 1.0), (0.02, 0.6, 0.6),
            *((tangled, *gaps) for tangled in (0.3, 0.9, 0.02)
              for gaps in ((0.3, 1.0), (1.0, 0.3))),
        ),
    ],
)
def test_segments_of_all_kinds(give, take, tangled):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    steps, current = [], {}
    for number in range(700):
        at = rng.randrange(STREAMS)
        if rng.random() < 0.01:
            steps.append(("clear", at))
            continue
        if rng.random() < 0.03:
            steps.append(Segment(number, stream=at, control=True))
            continue
        if at not in current or rng.random() < tangled:
            tagged = rng.random() < 0.5
            current[at] = (
                {"tagged": True, "tag": rng.randrange(3), "rsvdulp": rng.choice((0x40, 0x42))}
                if tagged else {"qn": rng.randrange(4), "tag": rng.randrange(9)})
        steps.append(Segment(
            number, stream=at, last=rng.random() < 0.4, failed=rng.random() < 0.03, **current[at]))
    check(steps, give=give, take=take, seed=seed)


@pytest.mark.parametrize("seed, gap", [(1, 0.0), (2, 0.3)])
def test_the_span_of_a_message_is_from_its_first_segment_to_its_last(seed, gap):
    """Segments in any mixture, one per cycle; the span restarts after another message's segment."""
    rng = random.Random(seed)
    dut = Overtaking(STREAMS)
    expected, got, before = [], [], {}

    async def main(ctx):
        queue = [None] * (Overtaking.LATENCY + 1)
        for _ in range(2000):
            queue.append(None)
            ctx.set(dut.i.valid, 0)
            if rng.random() >= gap:
                number, tag = rng.randrange(STREAMS), rng.randrange(2)
                to = rng.choice((rng.randrange(1 << 32), (1 << 32) - rng.randrange(1, 100)))
                length = rng.choice((0, 1, 1400, 65535))
                last, clear = rng.random() < 0.3, rng.random() < 0.05
                ctx.set(dut.i.valid, 1)
                ctx.set(dut.i.payload, {
                    "stream": number, "key": {"tagged": 1, "tag": tag, "low": 0x40},
                    "last": last, "to": to, "length": length, "clear": clear})
                known, begin = before.get(number, (None, 0))
                begin = begin if known == tag else to
                before[number] = (None if last or clear else tag, begin)
                if not clear:
                    queue[-1] = (begin, (to + length - begin) % (1 << 32))
            now = queue.pop(0)
            if now is not None:
                expected.append(now)
                got.append((ctx.get(dut.span.begin), ctx.get(dut.span.length)))
            await ctx.tick()

    simulate(dut, main)
    assert len(expected) > 1000 and got == expected
