"""Tests that turns see the slots of Read Requests whole, and that each response frees its slot."""

import random

import pytest
from ddp_rnic.hdl.lib.testing import receive, shared, simulate
from ddp_rnic.hdl.send.responses import ResponseRings

STREAM, LATENCY = 5, 4


@pytest.mark.parametrize("opened", (False, True), ids=["new", "again"])
def test_a_turn_beside_new_slots_finds_no_response(opened):
    dut = ResponseRings(16)
    slots = {"stream": STREAM, "base": 0x40, "size": 3, "open": 1, "msn": 7}

    async def give(ctx, **changes):
        ctx.set(dut.slots.payload, {**slots, **changes})
        ctx.set(dut.slots.valid, 1)
        await ctx.tick()  # results wait
        assert ctx.get(dut.slots.ready)

    async def testbench(ctx):
        ctx.set(dut.turn, STREAM)
        if opened:
            await give(ctx)
            await ctx.tick()
        await give(ctx, msn=0x12345)
        for _ in range(LATENCY + 4):
            await ctx.tick()
            ctx.set(dut.slots.valid, 0)
            assert not ctx.get(dut.found.sends)
        assert ctx.get(dut.found.start) == 0x2345

        # A request comes: there is one to be answered.
        ctx.set(dut.wake.ready, 1)
        ctx.set(dut.requests.payload, {"stream": STREAM, "following": 0x2346})
        ctx.set(dut.requests.valid, 1)
        await ctx.tick()
        ctx.set(dut.requests.valid, 0)
        await ctx.tick().repeat(LATENCY + 2)
        assert ctx.get(dut.found.sends) and ctx.get(dut.found.count) == 1

    simulate(dut, testbench)


@pytest.mark.parametrize("seed", range(3))
def test_each_response_has_the_next_msn_of_its_stream_whatever_else_happens(seed):
    """No MSN is left out or comes twice."""
    rng, dut = random.Random(seed), shared(ResponseRings, 16)
    msns, due, got, done = {}, [], [], []

    async def cut(ctx):
        for _ in range(200):
            while not ctx.get(dut.room) or not msns:
                await ctx.tick()
            # Up to 4 come after there is no room.
            for _ in range(rng.randint(1, 4)):
                stream = rng.choice([*msns])
                ctx.set(dut.cut.payload, stream)
                ctx.set(dut.cut.valid, 1)
                due.append((stream, msns[stream]))
                msns[stream] = (msns[stream] + 1) % (1 << 32)
                await ctx.tick()
                ctx.set(dut.cut.valid, 0)
                ctx.set(dut.cut.payload, rng.randrange(16))
                await ctx.tick()
        done.append(True)

    async def take(ctx):
        while not done or len(got) < len(due):
            answer = await receive(ctx, dut.answered, stall=0.8, rng=rng)
            got.append((answer.stream, answer.msn))

    async def end(ctx):
        """Ends turns all the time, which changes no MSN."""
        while True:
            ctx.set(dut.results.payload, {"stream": rng.randrange(16), "done": rng.randrange(9)})
            ctx.set(dut.results.valid, ctx.get(dut.open))
            await ctx.tick()

    async def open_streams(ctx):
        for stream in rng.sample(range(16), 12):
            msn = rng.choice((1, (1 << 32) - 3, rng.getrandbits(32)))
            ctx.set(dut.slots.payload, {"stream": stream, "size": 4, "msn": msn, "open": 1})
            ctx.set(dut.slots.valid, 1)
            taken = False
            while not taken:
                taken = ctx.get(dut.slots.ready)
                await ctx.tick()
            ctx.set(dut.slots.valid, 0)
            await ctx.tick()
            msns[stream] = msn
            await ctx.tick().repeat(rng.randint(1, 60))

    simulate(dut, cut, take, open_streams, background=[end])
    assert got == due
    assert {stream for stream, _ in got} == set(msns)
