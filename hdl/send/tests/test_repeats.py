"""Tests which segments are on their way again: each slot, its segment and its stream."""

import random

import pytest
from amaranth.hdl import Shape, Value
from ddp_rnic.hdl.lib.testing import send, simulate
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.send import repeats

STREAMS, SLOTS = 64, 1 << repeats.SLOT_BITS


def play(module, *, seed=1, steps=200):
    """Fills and frees slots; compares their segments, and ``under_way`` with the streams."""
    dut, rng = module.Repeats(STREAMS), random.Random(seed)
    shape = dut.i.payload.shape()
    filled, given = {}, 0  # segments by their slots, and how many slots were given

    async def run(ctx):
        nonlocal given
        ctx.set(dut.o.ready, 1)
        for _ in range(steps):
            if given % SLOTS not in filled and rng.random() < 0.6:
                segment = shape.from_bits(rng.getrandbits(Shape.cast(shape).width))
                await send(ctx, dut.i, [segment])
                filled[given % SLOTS] = segment
                given += 1
            elif filled:
                slot, port = rng.choice([*filled]), rng.randrange(2)
                del filled[slot]
                await send(ctx, dut.done[port], [slot])
            streams = {segment.stream for segment in filled.values()}
            for stream in {*streams, *rng.sample(range(STREAMS), 3)}:
                ctx.set(dut.look, stream)
                await ctx.tick().repeat(2)
                assert ctx.get(dut.under_way) == (stream in streams), stream
            for slot, segment in filled.items():
                port = rng.randrange(3)
                ctx.set(dut.slot[port], slot)
                assert ctx.get(Value.cast(dut.found[port])) == segment.as_bits()
            assert ctx.get(dut.busy) == bool(filled)

    simulate(dut, run)
    assert given > 5 * SLOTS


def test_each_stream_is_known_of_which_a_segment_is_on_its_way():
    play(repeats)


@pytest.mark.parametrize(
    "old, new",
    [
        ("(streams[slot] == self.look)", f"((streams[slot] {change}) == self.look)")
        for change in ("| 8", "& 31", "^ (slot == 1)")
    ]
    + [("used[slot] & ", ""), ("write.en.eq(takes)", "write.en.eq(1)")],
)
def test_a_slot_of_another_segment_is_found(old, new):
    with pytest.raises(AssertionError):
        play(planted("send.repeats", old, new))
