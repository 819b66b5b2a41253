"""Tests that turns see the slots of Read Requests whole."""

import pytest
from ddp_rnic.hdl.lib.testing import simulate
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
