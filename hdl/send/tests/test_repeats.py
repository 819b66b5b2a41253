"""Tests which segments are on their way again: each slot, and the stream that it is of."""

import random

import pytest
from ddp_rnic.hdl.lib.testing import send, simulate
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.send import repeats

STREAMS, SLOTS = 64, 1 << repeats.SLOT_BITS


def play(module, *, seed=1, steps=200):
    """Fills and frees slots, and compares ``under_way`` with the streams in the slots."""
    dut, rng = module.Repeats(STREAMS), random.Random(seed)
    filled, given = {}, 0  # streams by their slots, and how many slots were given

    async def run(ctx):
        nonlocal given
        ctx.set(dut.o.ready, 1)
        for _ in range(steps):
            if given % SLOTS not in filled and rng.random() < 0.6:
                stream = rng.randrange(STREAMS)
                await send(ctx, dut.i, [{"stream": stream}])
                filled[given % SLOTS] = stream
                given += 1
            elif filled:
                slot, port = rng.choice([*filled]), rng.randrange(2)
                del filled[slot]
                await send(ctx, dut.done[port], [slot])
            for stream in {*filled.values(), *rng.sample(range(STREAMS), 3)}:
                ctx.set(dut.look, stream)
                await ctx.tick().repeat(2)
                assert ctx.get(dut.under_way) == (stream in filled.values()), stream
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
    + [("used[slot] & ", "")],
)
def test_a_slot_of_another_stream_is_found(old, new):
    with pytest.raises(AssertionError):
        play(planted("send.repeats", old, new))
