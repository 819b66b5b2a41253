"""The commit: order, a stream's first error, silence after it, and no event lost."""

import random

import pytest
from amaranth.sim import Simulator
from ddp_rnic.hdl.ddp.commit import IN_FLIGHT, Commit
from ddp_rnic.hdl.llp.segment import Outcome
from ddp_rnic.hdl.spec import ddp
from ddp_rnic.hdl.spec.config import RnicConfig

CONFIG = RnicConfig(width=64, streams=16)
POSITIONS = CONFIG.buffer_octets // 4


def run_commit(items, *, late=0.0, stall=0.0, seed=1):
    """Runs segments, ``("clear", stream)`` and ``("bus", stream)`` items through, in order.

    A segment is (stream, tagged, error or None, outcome, oversize, length, start, end).
    Returns the moves and the events.
    """
    dut = Commit(CONFIG)
    rng = random.Random(seed)
    segments = [item for item in items if not isinstance(item[0], str)]
    moves, events = [], []
    taken = 0
    offered = dict.fromkeys((dut.segments, dut.results, dut.verdicts), 0)

    async def offer(ctx, port, payloads, allowed):
        """Offers payload ``k`` once ``k < allowed()``."""
        for k, payload in enumerate(payloads):
            while k >= allowed() or rng.random() < late:
                await ctx.tick()
            ctx.set(port.payload, payload)
            ctx.set(port.valid, 1)
            offered[port] += 1
            await ctx.tick()
            ctx.set(port.valid, 0)

    async def count(ctx):
        nonlocal taken
        async for *_, done in ctx.tick().sample(dut.done):
            taken += done

    async def special(ctx):
        """Clears and bus errors come when all segments before them were taken."""
        before = 0
        for item in items:
            if not isinstance(item[0], str):
                before += 1
                continue
            while taken < before:
                await ctx.tick()
            port = dut.clear if item[0] == "clear" else dut.bus_errors
            ctx.set(port.payload, item[1])
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
            ctx.set(port.valid, 0)

    async def collect(ctx, port, into):
        while True:
            ctx.set(port.ready, rng.random() >= stall)
            *_, valid, ready, payload = await ctx.tick().sample(
                port.valid, port.ready, port.payload
            )
            if valid and ready:
                into.append(payload)

    async def watchdog(ctx):
        for _ in range(400 + 60 * len(items)):
            await ctx.tick()
            if len(moves) == len(segments) and not ctx.get(dut.busy) and taken == len(segments):
                break
        else:
            raise AssertionError(f"watchdog: {len(moves)} of {len(segments)} moves")
        await ctx.tick().repeat(100)

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    barrier = any(isinstance(item[0], str) for item in items)
    assert not barrier or len(items) <= 3 or late == 0

    async def segment(ctx):
        await offer(
            ctx,
            dut.segments,
            [
                {
                    "stream": s[0],
                    "start": s[6],
                    "payload": (s[6] + 4) % POSITIONS,
                    "sequence": 4 * k,
                    "oversize": s[5],
                    "header": k << 16 | 0x2000,
                }
                for k, s in enumerate(segments)
            ],
            lambda: taken + IN_FLIGHT,
        )

    async def result(ctx):
        await offer(
            ctx,
            dut.results,
            [
                {
                    "tagged": s[1],
                    "error": s[2] is not None,
                    "type": s[2].type if s[2] else 0,
                    "code": s[2].code if s[2] else 0,
                    "enable": s[0] != 15,
                    "length": s[4],
                    "address": 0x1000 + k,
                }
                for k, s in enumerate(segments)
            ],
            lambda: offered[dut.segments],
        )

    async def verdict(ctx):
        payloads = [{"outcome": s[3], "end": s[7]} for s in segments]
        await offer(ctx, dut.verdicts, payloads, lambda: offered[dut.results])

    async def collect_moves(ctx):
        await collect(ctx, dut.moves, moves)

    async def collect_events(ctx):
        await collect(ctx, dut.events, events)

    for testbench in (segment, result, verdict, special, watchdog):
        sim.add_testbench(testbench)
    for testbench in (count, collect_moves, collect_events):
        sim.add_testbench(testbench, background=True)
    sim.run()
    return moves, events


def sound(
    stream,
    *,
    tagged=True,
    error=None,
    outcome=Outcome.GOOD,
    oversize=0,
    length=100,
    start=8,
    end=40,
):
    return (stream, tagged, error, outcome, length, oversize, start, end)


def expected(segments):
    """RFC 5041 section 7.1: (kind, octets) of each move, and the events' (stream, number)."""
    dead, moves, events = set(), [], []
    for stream, tagged, error, outcome, length, oversize, start, end in segments:
        number = (
            ddp.LLP_FRAMING
            if oversize or outcome == Outcome.FRAMING
            else ddp.LLP_CRC
            if outcome == Outcome.DIGEST
            else error
        )
        if stream == 15 or stream in dead:
            moves.append((0, 0))
        elif number is not None:
            dead.add(stream)
            events.append((stream, number.type, number.code))
            moves.append((0, 0))
        elif tagged:
            moves.append((0, length))
        else:
            moves.append((1, 4 * ((end - start) % POSITIONS)))
    return moves, events


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
            sound(
                rng.randrange(16),
                tagged=rng.random() < 0.7,
                error=rng.choice(errors) if rng.random() < 0.04 else None,
                outcome=rng.choice([Outcome.GOOD] * 20 + [Outcome.DIGEST, Outcome.FRAMING]),
                oversize=int(rng.random() < 0.02),
                length=rng.randrange(1500),
                start=start,
                end=(start + rng.randrange(5, 400)) % POSITIONS,
            )
        )
    moves, events = run_commit(segments, late=late, stall=stall, seed=5)
    assert seen(moves, events) == expected(segments)
    for move, segment in zip(moves, segments, strict=True):
        assert move.placement.release == segment[7] // CONFIG.words
        assert move.placement.stream == segment[0] and move.placement.last
        if move.placement.length:
            assert move.placement.start == 4 * (
                (segment[6] + 4) % POSITIONS if segment[1] else segment[6]
            )


def test_an_error_silences_the_very_next_segment_and_no_other_stream():
    segments = [sound(1, error=ddp.INVALID_STAG), sound(1), sound(2), sound(1)]
    moves, events = run_commit(segments)
    assert seen(moves, events) == ([(0, 0), (0, 0), (0, 100), (0, 0)], [(1, 1, 0)])


def test_a_digest_error_is_reported_before_the_checks():
    moves, events = run_commit([sound(1, error=ddp.INVALID_STAG, outcome=Outcome.DIGEST)])
    assert seen(moves, events)[1] == [(1, *ddp.LLP_CRC)]


def test_a_bus_error_ends_the_stream_once():
    moves, events = run_commit([sound(3), ("bus", 3), ("bus", 3)])
    assert seen(moves, events) == ([(0, 100)], [(3, *ddp.LOCAL_CATASTROPHIC)])


def test_clear_opens_a_stream_again():
    moves, events = run_commit([sound(3, error=ddp.TO_WRAP), ("clear", 3)])
    assert seen(moves, events)[1] == [(3, *ddp.TO_WRAP)]
    dut_after = run_commit([("bus", 3), ("clear", 3), ("bus", 3)])
    assert seen(*dut_after)[1] == [(3, *ddp.LOCAL_CATASTROPHIC)] * 2


def test_an_event_holds_the_header_as_received():
    _, (event,) = run_commit([sound(3, error=ddp.TO_WRAP)])
    assert event.header == 0x2000 and event.length == 0x20 and event.sequence == 0


def test_a_segment_a_cycle():
    dut = Commit(CONFIG)
    cycles = []

    async def drive(ctx):
        for port in (dut.segments, dut.results, dut.verdicts):
            ctx.set(port.valid, 1)
        ctx.set(dut.results.payload, {"tagged": 1, "enable": 1, "length": 64})
        ctx.set(dut.moves.ready, 1)
        await ctx.tick().repeat(60)

    async def watch(ctx):
        cycle = 0
        async for *_, valid, done in ctx.tick().sample(dut.moves.valid, dut.done):
            cycle += 1
            assert cycle < 100, "watchdog"
            cycles.append((done, valid))

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(drive)
    sim.add_testbench(watch, background=True)
    sim.run()
    first_moved = next(k for k, (_, valid) in enumerate(cycles) if valid)
    assert first_moved == 1 + Commit.LATENCY
    assert all(done for done, _ in cycles[2:]), "a segment was kept waiting"
