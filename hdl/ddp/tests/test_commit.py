"""Tests Commit: the order, a stream's first error, silence after it, and that nothing is lost."""

import itertools
import random
from collections import deque
from dataclasses import dataclass
from functools import partial

import pytest
from ddp_rnic.hdl.ddp.commit import Commit
from ddp_rnic.hdl.ddp.merge import CHECKS
from ddp_rnic.hdl.ddp.segment import IN_FLIGHT, Outcome
from ddp_rnic.hdl.lib.testing import receive, send, shared, simulate
from ddp_rnic.hdl.spec import ddp
from ddp_rnic.hdl.spec.config import RnicConfig

CONFIG = RnicConfig(width=64, streams=16)
POSITIONS = CONFIG.buffer_octets // 4


HEADER = bytes.fromhex("0020 41 5a 01020304 00000001 00000007 00000064")


@dataclass(frozen=True)
class Item:
    """A segment, with the results of its checks."""

    stream: int
    tagged: bool = True
    last: bool = True
    error: ddp.ErrorNumber | None = None
    disorder: bool = False
    outcome: Outcome = Outcome.GOOD
    oversize: bool = False
    length: int = 100
    start: int = 8
    end: int = 40


class Bench:
    """Gives segments, verdicts and the results of checks to Commit, and takes its outputs.

    A segment, or a verdict, waits in a share ``late`` of the cycles, an output in ``stall``.
    Without ``reads`` the host reads no event before the item ``("read",)``.
    """

    def __init__(self, items, *, late, stall, reads, rng):
        self.dut = dut = shared(Commit, CONFIG)
        self.reads = reads
        self.items, self.late, self.stall, self.rng = items, late, stall, rng
        self.segments = [item for item in items if isinstance(item, Item)]
        self.moves, self.events, self.records, self.holds = [], [], [], []
        self.cleared = []  # streams
        self.left = self.raised = 0
        self.offered = dict.fromkeys((dut.segments, dut.verdicts), 0)
        self.done = 0  # items that are no segments, except holds
        # The number of these items before each segment.
        before = itertools.accumulate(
            (isinstance(item, tuple) and item[0] != "hold" for item in items), initial=0)
        self.before = [
            n for n, item in zip(before, items, strict=False) if isinstance(item, Item)]

    def run(self):
        simulate(
            self.dut, self.give_segments, self.give_verdicts, self.give_others, self.end,
            background=[
                self.count, self.give_checks, self.give_room, self.take_records,
                partial(self.take, port=self.dut.moves, into=self.moves), self.take_events],
            limit=700 + 90 * len(self.items))

    async def end(self, ctx):
        """Waits until every segment has become a move."""
        while not len(self.moves) == len(self.segments) == self.left or ctx.get(self.dut.busy):
            await ctx.tick()
        await ctx.tick().repeat(100)

    async def offer(self, ctx, port, payloads, allowed):
        """Offers payload ``k`` once it is allowed."""
        for k, payload in enumerate(payloads):
            while not allowed(k) or self.rng.random() < self.late:
                await ctx.tick()
            ctx.set(port.payload, payload)
            ctx.set(port.valid, 1)
            await ctx.tick()
            self.offered[port] += 1
            ctx.set(port.valid, 0)

    async def give_segments(self, ctx):
        payloads = [
            {
                "stream": s.stream,
                "start": s.start,
                "payload": (s.start + 4) % POSITIONS,
                "sequence": 4 * k,
                "oversize": s.oversize,
                "header": int.from_bytes(HEADER, "little"),
            }
            for k, s in enumerate(self.segments)
        ]
        await self.offer(ctx, self.dut.segments, payloads, lambda k: k < self.left + IN_FLIGHT)

    async def give_verdicts(self, ctx):
        payloads = [{"outcome": s.outcome, "end": s.end} for s in self.segments]
        await self.offer(
            ctx, self.dut.verdicts, payloads,
            lambda k: k < self.offered[self.dut.segments] and self.before[k] <= self.done)

    async def give_checks(self, ctx):
        """Gives the results for each head ``CHECKS`` cycles later."""
        waiting = iter(self.segments)
        line = deque([None] * (CHECKS - 1))
        async for *_, valid in ctx.tick().sample(self.dut.head.valid):
            line.append(next(waiting) if valid else None)
            item = line.popleft()
            if item is None:
                continue
            number = item.error or (0, 0)
            verdict = {"error": item.error is not None, "type": number[0], "code": number[1]}
            ctx.set(self.dut.tagged, {
                **(verdict if item.tagged else {}),
                "tagged": item.tagged, "last": item.last, "enable": item.stream != 15,
                "length": item.length, "address": 0x1000, "pages": 1})
            ctx.set(self.dut.untagged, {
                **({} if item.tagged else verdict),
                "disorder": item.disorder, "address": 0x2000, "pages": 2, "total": 5000,
                "cookie": 77})

    async def give_others(self, ctx):
        """Holds, clears and reports bus errors, each once the segments before it were taken."""
        dut, passed = self.dut, 0
        for item in self.items:
            if isinstance(item, Item):
                passed += 1
                continue
            while self.left < passed:
                await ctx.tick()
            if item[0] == "hold":
                ctx.set(dut.hold, 1)
                await ctx.tick().until(dut.held)
                self.holds.append(self.left)
                await ctx.tick().repeat(30)
                assert self.left == self.holds[-1], "a segment advances while held"
                ctx.set(dut.hold, 0)
                continue
            if item[0] in ("read", "clear"):  # the host has read every event
                self.reads = True
                await ctx.tick().repeat(10)
                while len(self.events) < self.raised:
                    await ctx.tick()
            if item[0] == "bus then clear":
                ctx.set(dut.clear.payload, item[1])
                ctx.set(dut.clear.valid, 1)
                await send(ctx, dut.bus_errors, [{"stream": item[1]}])
                await ctx.tick().until(dut.clear.ready)
                ctx.set(dut.clear.valid, 0)
            elif item[0] != "read":
                failure = {"stream": item[1], "overrun": item[0] == "overrun"}
                if item[0] in ("bus", "overrun"):
                    await send(ctx, dut.bus_errors, [failure])
                else:
                    await send(ctx, dut.clear, [item[1]])
            self.done += 1

    async def give_room(self, ctx):
        for cycle in itertools.count():
            if cycle % 20 == 0:
                ctx.set(self.dut.record_room, self.rng.random() >= self.stall / 2)
            await ctx.tick()

    async def count(self, ctx):
        dut = self.dut
        async for *_, gone, raised, cleared, stream in ctx.tick().sample(
                dut.done, dut.tally.error, dut.cleared.valid, dut.cleared.payload):
            self.left += gone
            self.raised += raised
            if cleared:
                self.cleared.append(stream)

    async def take_events(self, ctx):
        while not self.reads:
            await ctx.tick()
        await self.take(ctx, self.dut.events, self.events)

    async def take(self, ctx, port, into):
        while True:
            into.append(await receive(ctx, port, stall=self.stall, rng=self.rng))

    async def take_records(self, ctx):
        records = self.dut.records
        async for *_, valid, payload in ctx.tick().sample(records.valid, records.payload):
            if valid:
                self.records.append(payload)


def bench_of(items, *, late=0.0, stall=0.0, reads=True, seed=1):
    """Runs segments and other items; returns the bench.

    The other items are ``("clear", stream)`` after the host has read every event, ``("hasty",
    stream)``, which clears a stream and reads nothing, ``("bus", stream)``, ``("overrun",
    stream)``, ``("bus then clear", stream)`` in the same cycle, ``("read",)`` and ``("hold",)``.
    Each comes once the segments
    before it were taken.
    """
    bench = Bench(items, late=late, stall=stall, reads=reads, rng=random.Random(seed))
    bench.run()
    return bench


def run_commit(items, **options):
    """Returns the moves, the events, the records, and the number of moves when each hold began."""
    bench = bench_of(items, **options)
    return bench.moves, bench.events, bench.records, bench.holds


def expected(segments):
    """Computes the expected outcome by RFC 5041 section 7.1.

    Returns (kind, octets) of each move, the events' (stream, number), and the positions of the
    segments that are accepted.
    """
    dead, moves, events, records = set(), [], [], []
    for k, s in enumerate(segments):
        number = (
            ddp.LLP_FRAMING
            if s.oversize or s.outcome == Outcome.FRAMING
            else ddp.LLP_CRC
            if s.outcome == Outcome.DIGEST
            else s.error
        )
        silent = s.stream == 15 or s.stream in dead
        if not silent and number is not None:
            moves.append((0, 0) if s.oversize else (1, 4 * ((s.end - s.start) % POSITIONS)))
        else:
            moves.append((0, 0 if silent else s.length))
        if silent:
            continue
        if number is None and s.disorder and not s.tagged:
            number = ddp.MSN_RANGE
        if number is not None:
            dead.add(s.stream)
            events.append((s.stream, *number))
        else:
            records.append(k)
    return moves, events, records


def seen(moves, events):
    return (
        [(m.placement.exception, m.placement.length) for m in moves],
        [(e.stream, e.type, e.code) for e in events],
    )


@pytest.mark.parametrize("late, stall", [(0.0, 0.0), (0.4, 0.0), (0.0, 0.7), (0.3, 0.5)])
def test_the_first_error_of_a_stream_is_reported_and_the_rest_is_silent(late, stall):
    rng = random.Random(int(10 * late + stall))
    errors = [ddp.INVALID_STAG, ddp.BASE_OR_BOUNDS, ddp.TO_WRAP, ddp.UNTAGGED_VERSION]
    segments = []
    for _ in range(200):
        start = rng.randrange(POSITIONS)
        segments.append(
            Item(
                rng.randrange(16),
                tagged=rng.random() < 0.6,
                last=rng.random() < 0.5,
                error=rng.choice(errors) if rng.random() < 0.03 else None,
                disorder=rng.random() < 0.03,
                outcome=rng.choice([Outcome.GOOD] * 25 + [Outcome.DIGEST, Outcome.FRAMING]),
                oversize=rng.random() < 0.02,
                length=rng.choice((0, rng.randrange(1500))),
                start=start,
                end=(start + rng.randrange(5, 400)) % POSITIONS,
            )
        )
    moves, events, records, _ = run_commit(segments, late=late, stall=stall, seed=5)
    whole, numbers, messages = expected(segments)
    assert seen(moves, events) == (whole, numbers)
    issued = 0
    counts = []
    for k, (move, segment) in enumerate(zip(moves, segments, strict=True)):
        placement = move.placement
        assert placement.release == segment.end // CONFIG.words
        assert placement.stream == segment.stream and placement.last
        assert placement.sequence == 4 * k
        if placement.length and not placement.exception:
            issued += 1
            assert placement.start == 4 * ((segment.start + 4) % POSITIONS)
            assert placement.address == (0x1000 if segment.tagged else 0x2000)
            assert move.pages == (1 if segment.tagged else 2)
        elif placement.exception:
            assert placement.start == 4 * segment.start
        counts.append(issued)
    assert [(r.stream, r.tagged, r.complete, r.count) for r in records] == [
        (segments[k].stream, segments[k].tagged, segments[k].last, counts[k]) for k in messages
    ]


def test_an_error_silences_the_very_next_segment_and_no_other_stream():
    segments = [Item(1, error=ddp.INVALID_STAG), Item(1), Item(2), Item(1)]
    moves, events, _, _ = run_commit(segments)
    assert seen(moves, events) == ([(1, 128), (0, 0), (0, 100), (0, 0)], [(1, 1, 0)])
    assert moves[0].placement.reason == 0x100


def test_a_digest_error_is_reported_before_the_checks():
    moves, events, _, _ = run_commit([Item(1, error=ddp.INVALID_STAG, outcome=Outcome.DIGEST)])
    assert seen(moves, events)[1] == [(1, *ddp.LLP_CRC)]
    assert moves[0].placement.reason == 0x302


def test_a_message_out_of_order_is_placed_and_then_an_error():
    moves, events, records, _ = run_commit([Item(1, tagged=False, disorder=True), Item(1)])
    assert seen(moves, events) == ([(0, 100), (0, 0)], [(1, *ddp.MSN_RANGE)])
    assert not records


def test_a_record_says_what_the_ulp_must_know():
    """Section 5.4, and section 4: RsvdULP, STag or QN and MSN, the ULP message length."""
    _, _, (tagged, untagged), _ = run_commit([Item(1), Item(2, tagged=False)])
    assert (tagged.tagged, tagged.stream, tagged.tag) == (1, 1, 0x01020304)
    assert (tagged.rsvdulp, tagged.count) == (0x5A, 1)
    # The record has the position and octets of the segment; Overtaking puts in the message's own.
    assert (tagged.cookie, tagged.length) == (7, 100)
    assert (untagged.tagged, untagged.stream, untagged.tag, untagged.qn) == (0, 2, 7, 1)
    assert untagged.rsvdulp.to_bytes(5, "little") == bytes.fromhex("5a01020304")
    assert (untagged.length, untagged.cookie, untagged.count) == (5000, 77, 2)


def test_a_bus_error_ends_the_stream_once():
    moves, events, _, _ = run_commit([Item(3), ("bus", 3), ("bus", 3), Item(3)])
    assert seen(moves, events) == ([(0, 100), (0, 0)], [(3, *ddp.LOCAL_CATASTROPHIC)])


def test_an_overrun_has_a_number_of_its_own():
    moves, events, _, _ = run_commit([("overrun", 3), ("bus", 3), Item(3), ("bus", 4)])
    assert seen(moves, events) == (
        [(0, 0)], [(3, *ddp.QUEUE_OVERRUN), (4, *ddp.LOCAL_CATASTROPHIC)])


def test_clear_opens_a_stream_again():
    moves, events, _, _ = run_commit([Item(3, error=ddp.TO_WRAP), ("clear", 3), Item(3)])
    assert seen(moves, events)[1] == [(3, *ddp.TO_WRAP)]
    assert moves[1].placement.length == 100
    _, events, _, _ = run_commit([("bus", 3), ("clear", 3), ("bus", 3)])
    assert [(e.stream, e.type, e.code) for e in events] == [(3, *ddp.LOCAL_CATASTROPHIC)] * 2


@pytest.mark.parametrize("raises", [Item(3, error=ddp.TO_WRAP), ("bus", 3)])
def test_a_stream_whose_event_is_unread_stays_in_error(raises):
    """DESIGN: a stream is reset only after its event was read."""
    items = [raises, ("hasty", 3), Item(3), Item(4), ("hasty", 3), ("clear", 3), Item(3), raises]
    bench = bench_of(items, reads=False)
    kind = raises.error if isinstance(raises, Item) else ddp.LOCAL_CATASTROPHIC
    assert bench.cleared == [3]
    assert [(e.stream, e.type, e.code) for e in bench.events] == [(3, *kind)] * 2
    lengths = [move.placement.length for move in bench.moves if not move.placement.exception]
    assert lengths == [0, 100, 100]
    assert [record.stream for record in bench.records] == [4, 3]


def test_an_error_before_a_clear_does_not_end_the_stream_after_it():
    """The event belongs to the stream's former user: until it is read, there is no next one."""
    bench = bench_of([("bus then clear", 3), Item(3), ("clear", 3), Item(3)])
    assert bench.cleared == [3]
    assert seen(bench.moves, bench.events) == (
        [(0, 0), (0, 100)], [(3, *ddp.LOCAL_CATASTROPHIC)])


def test_no_segment_waits_for_a_host_that_reads_no_event():
    """Each stream errs, is cleared, and errs again; the events come later, once each, in order."""
    rng = random.Random(4)
    items = []
    for _ in range(150):
        stream = rng.randrange(15)
        items.append(Item(stream, error=rng.choice([ddp.TO_WRAP, ddp.INVALID_STAG, None, None])))
        if rng.random() < 0.2:
            items.append(rng.choice([("hasty", stream), ("bus", rng.randrange(15))]))
    bench = bench_of([*items, ("read",)], reads=False)
    first, dead = [], set()
    for item in items:
        stream, number = (
            (item.stream, item.error) if isinstance(item, Item)
            else (item[1], ddp.LOCAL_CATASTROPHIC if item[0] == "bus" else None))
        if number is not None and stream not in dead:
            dead.add(stream)
            first.append((stream, *number))
    assert len(first) == 15
    assert [(e.stream, e.type, e.code) for e in bench.events] == first
    assert len(bench.moves) == 150


def test_a_hold_lets_nothing_through():
    items = [Item(k % 7) for k in range(20)]
    moves, _, _, holds = run_commit([*items, ("hold",), *items, ("hold",)])
    assert len(moves) == 40 and 20 <= holds[0] and holds[1] == 40


def test_an_event_holds_the_header_as_received():
    _, (event,), _, _ = run_commit([Item(3, error=ddp.TO_WRAP)])
    assert event.header == int.from_bytes(HEADER, "little")
    assert event.length == 0x20 and event.sequence == 0


def test_one_segment_per_cycle():
    segments = 60
    dut = shared(Commit, CONFIG)
    cycles = []

    async def drive(ctx):
        ctx.set(dut.tagged, {"tagged": 1, "enable": 1, "length": 64})
        for port in (dut.moves.ready, dut.events.ready, dut.record_room, dut.segments.valid):
            ctx.set(port, 1)
        await ctx.tick().repeat(3)
        ctx.set(dut.verdicts.valid, 1)
        await ctx.tick().repeat(segments)
        ctx.set(dut.verdicts.valid, 0)
        ctx.set(dut.segments.valid, 0)
        await ctx.tick().repeat(40)

    async def watch(ctx):
        async for *_, asked, valid in ctx.tick().sample(dut.verdicts.valid, dut.moves.valid):
            cycles.append((asked, valid))

    simulate(dut, drive, background=[watch])
    first_asked = next(k for k, (asked, _) in enumerate(cycles) if asked)
    moved = [k for k, (_, valid) in enumerate(cycles) if valid]
    assert moved == list(range(first_asked + Commit.LATENCY, first_asked + Commit.LATENCY + 60))
