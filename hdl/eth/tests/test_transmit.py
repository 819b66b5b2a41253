"""Tests that frames are sent with preamble, padding, FCS and gap."""

import random

import pytest
from ddp_rnic.hdl.eth.transmit import GAP, FrameTransmit
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.spec import board

from .wire import on_wire, with_fcs


def transmit(*frames):
    """Returns the octets sent from the first start on, None where nothing is sent."""
    dut = FrameTransmit()
    seen = []
    current = b""

    async def memory(ctx):
        # The octet arrives two cycles after the address.
        before = 0
        async for *_, address in ctx.tick().sample(dut.address):
            ctx.set(dut.octet, current[before] if before < len(current) else 0xEE)
            before = address

    async def main(ctx):
        nonlocal current
        for frame in frames:
            current = frame
            ctx.set(dut.length, len(frame))
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            await ctx.tick().until(dut.done)
        await ctx.tick().repeat(3)

    async def watch(ctx):
        async for *_, octet in ctx.tick().sample(dut.o):
            assert not octet.error
            seen.append(octet.data if octet.valid else None)

    simulate(dut, main, background=[memory, watch])
    return seen


def bursts(seen):
    """Returns the octets that were sent in one piece, and the gaps between the pieces."""
    pieces, gaps, gap = [], [], None
    for before, octet in zip([None, *seen], seen, strict=False):
        if octet is None:
            gap = gap + 1 if gap is not None else None
        elif before is None:
            if gap is not None:
                gaps.append(gap)
            pieces.append(bytes([octet]))
            gap = 0
        else:
            pieces[-1] += bytes([octet])
            gap = 0
    return pieces, gaps


@pytest.mark.parametrize("length", [1, 14, 59, 60, 61, 64, 255, 256, 1514, board.LONGEST])
def test_a_frame_is_padded_and_has_its_fcs(length):
    frame = random.Random(length).randbytes(length)
    assert bursts(transmit(frame))[0] == [on_wire(with_fcs(frame))]


def test_frames_keep_the_gap():
    frames = [bytes([number]) * 70 for number in range(4)]
    pieces, gaps = bursts(transmit(*frames))
    assert pieces == [on_wire(with_fcs(frame)) for frame in frames]
    assert len(gaps) == 3 and all(gap >= GAP for gap in gaps)


def test_latency_is_what_the_docstring_says():
    seen = transmit(b"frame" + bytes(60))
    assert seen[12:17] == list(b"frame") and seen[11] == 0xD5, "12 cycles from start"
    # transmit() watches for 3 cycles after done.
    assert [octet is None for octet in seen[-GAP - 1:]] == [False] + GAP * [True]
