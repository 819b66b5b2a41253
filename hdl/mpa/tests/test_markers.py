"""Tests how placements are cut at MPA markers (RFC 5044 section 4.3)."""

import itertools
import random

import pytest
from ddp_rnic.hdl.lib.testing import send, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.mpa.markers import MarkerCut
from ddp_rnic.hdl.spec.config import RnicConfig

CONFIG = RnicConfig(width=128)


def run_cut(moves, *, stall=0.0, seed=1):
    """Returns the placements that moves become, and the cycle in which each was output."""
    dut = MarkerCut(CONFIG)
    rng = random.Random(seed)
    placements, cycles = [], []

    async def source(ctx):
        await send(ctx, dut.i, moves)
        await ctx.tick().repeat(20 + int(400 / (1 - stall)))

    async def sink(ctx):
        for cycle in itertools.count():
            ctx.set(dut.go, rng.random() >= stall)
            *_, valid, payload = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            if valid:
                placements.append(payload.placement)
                cycles.append(cycle)

    simulate(dut, source, background=[sink])
    return placements, cycles


def move(start, length, address, *, markers, phase=0, exception=0):
    return {
        "placement": {
            "start": start,
            "length": length,
            "address": address,
            "exception": exception,
            "stream": 7,
            "sequence": 99,
            "last": 1,
            "release": 0x55,
        },
        "markers": bool(markers and length),
        "phase": phase,
    }


def octets_of(start, length, markers, phase):
    """Returns the buffer offsets of a payload's octets, one by one, by the definition."""
    at, found = start, []
    while len(found) < length:
        if markers and phase == 0 and at % 4 == 0:
            at, phase = at + 4, 1
            continue
        found.append(at % CONFIG.buffer_octets)
        at += 1
        if at % 4 == 0:
            phase = (phase + 1) % 128
    return found


@pytest.mark.parametrize("stall", [*long(0.0), 0.5])
def test_every_octet_but_the_markers_is_placed_in_order(stall):
    rng = random.Random(3)
    moves = [
        move(
            4 * rng.randrange(CONFIG.buffer_octets // 4),
            rng.choice((1, 4, 507, 508, 509, 1400, 9000)),
            rng.choice((rng.randrange(2**63), 2**32 * rng.randrange(1, 99) - rng.randrange(600))),
            markers=rng.random() < 0.8,
            phase=rng.choice((0, 1, 2, 126, 127, rng.randrange(128))),
        )
        for _ in range(60)
    ]
    placements, _ = run_cut(moves, stall=stall)
    pieces = iter(placements)
    for number, m in enumerate(moves):
        whole, expected = (
            m["placement"],
            octets_of(m["placement"]["start"], m["placement"]["length"], m["markers"], m["phase"]),
        )
        got, address = [], whole["address"]
        while True:
            piece = next(pieces)
            assert piece.address == address, f"move {number}"
            assert piece.stream == 7 and piece.sequence == 99 and piece.length
            got += [(piece.start + k) % CONFIG.buffer_octets for k in range(piece.length)]
            address += piece.length
            if piece.last:
                assert piece.release == whole["release"]
                break
            assert piece.release == piece.start // CONFIG.octets, (
                f"move {number}: frees beats that are still to be read"
            )
        assert got == expected, f"move {number}"
    assert next(pieces, None) is None


def test_without_markers_one_placement_per_cycle():
    placements, cycles = run_cut([move(0, 64 * k, 0, markers=0) for k in range(40)])
    assert len(placements) == 40 and cycles[-1] - cycles[0] == 39


def test_exceptions_and_nothing_pass_whole():
    moves = [move(8, 2000, 0, markers=0, exception=1), move(8, 0, 0, markers=1)]
    placements, _ = run_cut(moves)
    assert [(p.exception, p.length, p.start) for p in placements] == [(1, 2000, 8), (0, 0, 8)]


def test_with_markers_a_part_every_two_cycles_and_two_more_for_the_first():
    moves = [move(4 * k, 1500, 0, markers=1, phase=100) for k in range(5)]
    _, cycles = run_cut(moves)
    gaps = [later - earlier for earlier, later in zip(cycles, cycles[1:], strict=False)]
    assert gaps == [2, 2, 2, 4] * 4 + [2, 2, 2], gaps
