"""Tests that credits count the items under way, and that no more are taken than there are."""

import random
from collections import deque

import pytest
from ddp_rnic.hdl.lib.credits import Credits
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.lib.tests.refused import refused


def test_credits_are_never_more_than_the_limit():
    dut = Credits(8)
    rng = random.Random(1)

    async def testbench(ctx):
        used = 0
        opened = rng.random() < 0.8
        ctx.set(dut.open, opened)
        await ctx.tick()
        for n in range(1000):
            ok = ctx.get(dut.ok)
            assert ok == (opened and used < 8), f"cycle {n}"
            assert ctx.get(dut.idle) == (used == 0), f"cycle {n}"
            opened = rng.random() < 0.8
            ctx.set(dut.open, opened)
            greedy = n // 100 % 2
            take = ok and rng.random() < (0.9 if greedy else 0.3)
            give = used > 0 and rng.random() < (0.3 if greedy else 0.9)
            ctx.set(dut.take, take)
            ctx.set(dut.give, give)
            await ctx.tick()
            used += take - give

    simulate(dut, testbench)


@pytest.mark.parametrize("lag", (1, 2, 5))
def test_a_writer_that_lags_uses_all_credits_and_no_more(lag):
    dut = Credits(16, lag=lag)
    rng = random.Random(lag)

    async def testbench(ctx):
        used, most = 0, 0
        # What the counter shows: the number of items one cycle ago, and whether it was open then.
        before, opened = 0, 0
        way = deque([0] * (lag - 1))
        for n in range(2000):
            ok = ctx.get(dut.ok)
            assert ok == (opened and before < 16 - lag), f"cycle {n}"
            assert ctx.get(dut.idle) == (used == 0), f"cycle {n}"
            before, opened = used, rng.random() < 0.9
            greedy = n // 100 % 2
            way.append(ok and (greedy or rng.random() < 0.3))
            take = way.popleft()
            give = used > 0 and rng.random() < (0.1 if greedy else 0.9)
            ctx.set(dut.open, opened)
            ctx.set(dut.take, take)
            ctx.set(dut.give, give)
            await ctx.tick()
            used += take - give
            most = max(most, used)
        assert most == 16

    simulate(dut, testbench)


@pytest.mark.parametrize("lag", (-1, 8))
def test_a_lag_that_leaves_no_credit_is_refused(lag):
    refused("Credits lag must be 0 or more and below 8, not ", Credits, 8, lag=lag)
