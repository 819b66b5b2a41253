"""Tests Commit: the order, a stream's first error, silence after it, and that nothing is lost."""

import random
from collections import deque
from dataclasses import dataclass
from itertools import accumulate

import pytest
from amaranth.sim import Simulator
from ddp_rnic.hdl.ddp.commit import Commit
from ddp_rnic.hdl.ddp.merge import CHECKS
from ddp_rnic.hdl.ddp.segment import IN_FLIGHT, Outcome
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


def run_commit(items, *, late=0.0, stall=0.0, seed=1):
    """Runs segments, and ``("clear", stream)``, ``("bus", stream)`` and ``("hold",)`` items.

    An item that is no segment comes once the segments before it were taken. Returns the moves, the
    events, the records, and the number of moves when each hold began.
    """
    dut = Commit(CONFIG)
    rng = random.Random(seed)
    segments = [item for item in items if isinstance(item, Item)]
    moves, events, records, holds = [], [], [], []
    left = 0
    offered = dict.fromkeys((dut.segments, dut.verdicts), 0)
    done = 0  # clears and bus errors
    # The number of clears and bus errors before each segment.
    before = list(accumulate(
        (isinstance(item, tuple) and item[0] != "hold" for item in items), initial=0))
    before = [n for n, item in zip(before, items, strict=False) if isinstance(item, Item)]

    def ready(k):
        return k < offered[dut.segments] and before[k] <= done

    async def offer(ctx, port, payloads, allowed):
        """Offers payload ``k`` once it is allowed."""
        for k, payload in enumerate(payloads):
            while not allowed(k) or rng.random() < late:
                await ctx.tick()
            ctx.set(port.payload, payload)
            ctx.set(port.valid, 1)
            await ctx.tick()
            offered[port] += 1
            ctx.set(port.valid, 0)

    async def count(ctx):
        nonlocal left
        async for *_, gone in ctx.tick().sample(dut.done):
            left += gone

    async def checks(ctx):
        """Gives the results for each head ``CHECKS`` cycles later."""
        waiting = iter(segments)
        line = deque([None] * (CHECKS - 1))
        async for *_, valid in ctx.tick().sample(dut.head.valid):
            line.append(next(waiting) if valid else None)
            item = line.popleft()
            if item is None:
                continue
            number = item.error or (0, 0)
            verdict = {"error": item.error is not None, "type": number[0], "code": number[1]}
            ctx.set(
                dut.tagged,
                {
                    **(verdict if item.tagged else {}),
                    "tagged": item.tagged,
                    "last": item.last,
                    "enable": item.stream != 15,
                    "length": item.length,
                    "address": 0x1000,
                    "pages": 1,
                },
            )
            ctx.set(
                dut.untagged,
                {
                    **({} if item.tagged else verdict),
                    "disorder": item.disorder,
                    "address": 0x2000,
                    "pages": 2,
                    "total": 5000,
                    "cookie": 77,
                },
            )

    async def special(ctx):
        nonlocal done
        passed = 0
        for item in items:
            if isinstance(item, Item):
                passed += 1
                continue
            while left < passed:
                await ctx.tick()
            if item[0] == "hold":
                ctx.set(dut.hold, 1)
                await ctx.tick().until(dut.held)
                holds.append(left)
                await ctx.tick().repeat(30)
                assert left == holds[-1], "a segment advances while held"
                ctx.set(dut.hold, 0)
                continue
            port = dut.clear if item[0] == "clear" else dut.bus_errors
            ctx.set(port.payload, item[1])
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
            ctx.set(port.valid, 0)
            done += 1

    async def collect(ctx, port, into):
        while True:
            ctx.set(port.ready, rng.random() >= stall)
            *_, valid, ready, payload = await ctx.tick().sample(
                port.valid, port.ready, port.payload
            )
            if valid and ready:
                into.append(payload)

    async def watchdog(ctx):
        for _ in range(600 + 90 * len(items)):
            await ctx.tick()
            if len(moves) == len(segments) == left and not ctx.get(dut.busy):
                break
        else:
            raise AssertionError(f"watchdog: {len(moves)} of {len(segments)} moves")
        await ctx.tick().repeat(100)

    async def collect_records(ctx):
        async for *_, valid, payload in ctx.tick().sample(dut.records.valid, dut.records.payload):
            if valid:
                records.append(payload)

    async def segment(ctx):
        payloads = [
            {
                "stream": s.stream,
                "start": s.start,
                "payload": (s.start + 4) % POSITIONS,
                "sequence": 4 * k,
                "oversize": s.oversize,
                "header": int.from_bytes(HEADER, "little"),
            }
            for k, s in enumerate(segments)
        ]
        await offer(ctx, dut.segments, payloads, lambda k: k < left + IN_FLIGHT)

    async def verdict(ctx):
        payloads = [{"outcome": s.outcome, "end": s.end} for s in segments]
        await offer(ctx, dut.verdicts, payloads, ready)

    async def collect_moves(ctx):
        await collect(ctx, dut.moves, moves)

    async def collect_events(ctx):
        await collect(ctx, dut.events, events)

    async def room(ctx):
        cycle = 0
        while True:
            if cycle % 20 == 0:
                ctx.set(dut.record_room, rng.random() >= stall / 2)
            cycle += 1
            await ctx.tick()

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    for testbench in (segment, verdict, special, watchdog):
        sim.add_testbench(testbench)
    for testbench in (count, checks, room, collect_moves, collect_events, collect_records):
        sim.add_testbench(testbench, background=True)
    sim.run()
    return moves, events, records, holds


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


def test_clear_opens_a_stream_again():
    moves, events, _, _ = run_commit([Item(3, error=ddp.TO_WRAP), ("clear", 3), Item(3)])
    assert seen(moves, events)[1] == [(3, *ddp.TO_WRAP)]
    assert moves[1].placement.length == 100
    _, events, _, _ = run_commit([("bus", 3), ("clear", 3), ("bus", 3)])
    assert [(e.stream, e.type, e.code) for e in events] == [(3, *ddp.LOCAL_CATASTROPHIC)] * 2


def test_a_hold_lets_nothing_through():
    items = [Item(k % 7) for k in range(20)]
    moves, _, _, holds = run_commit([*items, ("hold",), *items, ("hold",)])
    assert len(moves) == 40 and 20 <= holds[0] and holds[1] == 40


def test_an_event_holds_the_header_as_received():
    _, (event,), _, _ = run_commit([Item(3, error=ddp.TO_WRAP)])
    assert event.header == int.from_bytes(HEADER, "little")
    assert event.length == 0x20 and event.sequence == 0


def test_a_segment_a_cycle():
    segments = 60
    dut = Commit(CONFIG)
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
        cycle = 0
        async for *_, asked, valid in ctx.tick().sample(dut.verdicts.valid, dut.moves.valid):
            cycle += 1
            assert cycle < 200, "watchdog"
            cycles.append((asked, valid))

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(drive)
    sim.add_testbench(watch, background=True)
    sim.run()
    first_asked = next(k for k, (asked, _) in enumerate(cycles) if asked)
    moved = [k for k, (_, valid) in enumerate(cycles) if valid]
    assert moved == list(range(first_asked + Commit.LATENCY, first_asked + Commit.LATENCY + 60))
