"""Tests that frames are received whole and checked, and cross clocks whole or not at all."""

import random
from collections import Counter

import pytest
from amaranth.hdl import Value
from ddp_rnic.hdl.eth.receive import FrameCrossing, FrameReceive
from ddp_rnic.hdl.lib.testing import beats_of, decoded, octets_of, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.spec import board

from .wire import on_wire, with_fcs


def receive(*wires, gap=12, errors=()):
    """Receives octets on the wire.

    Returns frames as (octets, error); the numbers of good and damaged frames and of frames without
    a start frame delimiter; and the cycles from each wire's end to the last beat.
    """
    dut = shared(FrameReceive)
    frames, counts, ends, lasts = [], Counter(), [], []
    cycle = 0

    async def drive(ctx):
        at = 0
        for wire in wires:
            for octet in wire:
                ctx.set(dut.i, {"data": octet, "valid": 1, "error": int(at in errors)})
                end = cycle
                await ctx.tick()
                at += 1
            ctx.set(dut.i, {"data": 0, "valid": 0, "error": 0})
            ends.append(end)
            await ctx.tick().repeat(gap)
        await ctx.tick().repeat(8)

    async def watch(ctx):
        nonlocal cycle
        octets = b""
        async for *_, valid, beat, good, damaged, unstarted in ctx.tick().sample(
                dut.o.valid, Value.cast(dut.o.payload), dut.good, dut.damaged, dut.unstarted):
            counts.update({"good": good, "damaged": damaged, "unstarted": unstarted})
            if valid:
                beat = decoded(dut.o, beat)
                octets += octets_of(beat, 8)
                if beat.last:
                    frames.append((octets, bool(beat.error)))
                    lasts.append(cycle)
                    octets = b""
            cycle += 1

    simulate(dut, drive, background=[watch])
    return frames, dict(+counts), [last - end for last, end in zip(lasts, ends, strict=False)]


@pytest.mark.parametrize("length", [*range(60, 70), 1514, board.LONGEST])
def test_a_frame_comes_in_without_its_fcs(length):
    frame = random.Random(length).randbytes(length)
    frames, counts, latency = receive(on_wire(with_fcs(frame)))
    assert frames == [(frame, False)]
    assert counts == {"good": 1}
    assert latency == [2]


def test_frames_follow_each_other_with_the_least_gap():
    rng = random.Random(1)
    frames = [rng.randbytes(rng.randrange(60, 200)) for _ in range(20)]
    seen, counts, _ = receive(*(on_wire(with_fcs(frame)) for frame in frames), gap=5)
    assert seen == [(frame, False) for frame in frames]
    assert counts == {"good": 20}


@pytest.mark.parametrize("preamble", [0, 1, 7, 20])
def test_a_preamble_may_be_short_or_long(preamble):
    frame = bytes(range(60))
    assert receive(on_wire(with_fcs(frame), preamble=preamble))[0] == [(frame, False)]


def _shifted(wire):
    """Returns the wire half a cycle late: octets of the nibbles around each edge."""
    nibbles = [0, *(half for octet in wire for half in (octet & 15, octet >> 4)), 0]
    return bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True))


def _swapped(wire):
    """Returns the wire with its two edges swapped."""
    return bytes(octet >> 4 | (octet & 15) << 4 for octet in wire)


@pytest.mark.parametrize("spoilt", [
    _shifted, _swapped, lambda wire: wire[:5], lambda wire: wire[8:],
    lambda wire: wire.replace(b"\xd5", b"\x55", 1), lambda wire: b"\xff",
], ids=["half a cycle off", "edges swapped", "preamble alone", "without preamble",
        "delimiter lost", "one octet"])
def test_what_has_no_start_frame_delimiter_is_counted(spoilt):
    """With wrong timing of RGMII, no octet of a frame is received as it was sent."""
    wire = on_wire(with_fcs(bytes(range(60, 120))))
    frames, counts, _ = receive(spoilt(wire), wire, spoilt(wire), wire)
    assert frames == [(bytes(range(60, 120)), False)] * 2
    assert counts == {"good": 2, "unstarted": 2}


@pytest.mark.parametrize("bit", [0, 7, 8 * 30 + 3, 8 * 60, 8 * 64 - 1])
def test_a_bit_in_error_marks_the_frame(bit):
    octets = bytearray(with_fcs(bytes(range(60))))
    octets[bit // 8] ^= 1 << bit % 8
    good = on_wire(with_fcs(bytes(60)))
    frames, counts, _ = receive(on_wire(octets), good)
    assert [error for _, error in frames] == [True, False], "and not the frame after it"
    assert counts == {"good": 1, "damaged": 1}


def test_a_symbol_error_marks_the_frame():
    wire = on_wire(with_fcs(bytes(60)))
    frames, counts, _ = receive(wire, wire, errors=[30])
    assert [error for _, error in frames] == [True, False]
    assert counts == {"good": 1, "damaged": 1}


@pytest.mark.parametrize("length", [1, 4, 5, 12, 59])
def test_a_short_frame_is_damaged(length):
    frame = bytes(length)
    short = on_wire(with_fcs(frame)[-(length + 4):])
    frames, counts, _ = receive(short, on_wire(with_fcs(bytes(60))))
    assert frames[-1] == (bytes(60), False)
    assert all(error for _, error in frames[:-1])
    assert counts == {"good": 1, "damaged": 1}


@pytest.mark.parametrize("length", [board.LONGEST + 1, board.LONGEST + 700])
def test_a_long_frame_is_cut_off_and_damaged(length):
    frames, counts, _ = receive(on_wire(with_fcs(bytes(length))), on_wire(with_fcs(bytes(60))))
    assert [error for _, error in frames] == [True, False]
    assert len(frames[0][0]) == board.LONGEST + 1
    assert counts == {"good": 1, "damaged": 1}


def test_what_does_not_begin_with_a_preamble_is_no_frame():
    assert receive(b"\x12" + on_wire(with_fcs(bytes(60))))[:2] == (
        [], {"unstarted": 1})


def cross(frames, *, stalled=0.0, hold=0, seed=1, relaxed=False):
    """Returns the output of the crossing, and the number of frames dropped.

    The reader first waits for ``hold`` cycles.
    """
    dut = FrameCrossing(domain="eth_rx", relaxed=relaxed)
    rng = random.Random(seed)
    out, dropped = [], 0
    done = False

    async def write(ctx):
        nonlocal done
        for frame in frames:
            for beat in beats_of(frame, 8):
                ctx.set(dut.i.payload, beat)
                ctx.set(dut.i.valid, 1)
                await ctx.tick("eth_rx")
                ctx.set(dut.i.valid, 0)
                await ctx.tick("eth_rx").repeat(7)
        await ctx.tick("eth_rx").repeat(4 * hold + 4000)
        done = True

    async def count(ctx):
        nonlocal dropped
        async for *_, drops in ctx.tick().sample(dut.dropped):
            dropped += drops

    async def read(ctx):
        octets = b""
        await ctx.tick().repeat(hold + 1)
        while not done:
            ctx.set(dut.o.ready, rng.random() >= stalled)
            _, _, valid, ready, beat = await ctx.tick().sample(
                dut.o.valid, dut.o.ready, Value.cast(dut.o.payload))
            if valid and ready:
                beat = decoded(dut.o, beat)
                octets += octets_of(beat, 8)
                if beat.last:
                    out.append(octets)
                    octets = b""
        assert not octets, "a frame comes out whole"

    clocks = {"eth_rx": (8e-9, None), "sync": (16e-9, 3e-9)}
    simulate(dut, write, read, background=[count], clocks=clocks, limit=200_000)
    return out, dropped


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("stalled", [0.5, *long(0.0)])
def test_frames_cross_at_line_rate(stalled, relaxed):
    rng = random.Random(2)
    frames = [rng.randbytes(rng.choice([60, 61, 300, board.LONGEST])) for _ in range(12)]
    assert cross(frames, stalled=stalled, relaxed=relaxed) == (frames, 0)


@pytest.mark.parametrize("relaxed, cycles", [(False, {8, 9}), (True, {6, 7})])
def test_a_crossing_takes_as_long_as_it_says(relaxed, cycles):
    assert {latency(relaxed, phase) for phase in range(16)} == cycles


def latency(relaxed, phase):
    """Returns the cycles of the reader from a beat's clock edge to the one that takes it.

    The reader's clock is `phase` ns after the writer's clock.
    """
    dut = FrameCrossing(domain="eth_rx", relaxed=relaxed)
    cycles = taken = None

    async def write(ctx):
        nonlocal taken
        await ctx.tick("eth_rx").repeat(20)
        ctx.set(dut.i.payload, {"data": 1, "count": 8, "last": 1, "error": 0})
        ctx.set(dut.i.valid, 1)
        await ctx.tick("eth_rx")
        taken = cycles
        ctx.set(dut.i.valid, 0)

    async def read(ctx):
        nonlocal cycles
        cycles = 0
        ctx.set(dut.o.ready, 1)
        async for *_, valid in ctx.tick().sample(dut.o.valid):
            cycles += 1
            if valid:
                return

    clocks = {"eth_rx": (8e-9, 4e-9), "sync": (16e-9, (4 + phase) * 1e-9)}
    simulate(dut, write, read, clocks=clocks)
    return cycles - taken


def test_frames_without_room_are_dropped_whole_and_counted():
    rng = random.Random(3)
    frames = [rng.randbytes(rng.choice([64, 900, board.LONGEST])) for _ in range(20)]
    out, dropped = cross(frames, hold=4000)
    assert 0 < dropped == len(frames) - len(out)
    left = iter(frames)
    assert all(frame in left for frame in out), "in order, each as it was"


def test_a_crossing_too_small_for_the_longest_frame_is_refused():
    refused("power of two and at least 500, not 256", FrameCrossing, depth=256)
