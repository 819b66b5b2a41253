"""Tests delays in memory."""

import random

import pytest
from ddp_rnic.hdl.lib.delay import Delay
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.lib.tests.refused import refused


@pytest.mark.parametrize("block", (False, True))
@pytest.mark.parametrize("cycles", (3, 4, 5, 16, 17, 18, 35, 40))
def test_a_value_comes_out_after_the_number_of_cycles(cycles, block):
    dut = Delay(16, cycles, block=block)
    rng = random.Random(cycles)
    values = [rng.getrandbits(16) for _ in range(5 * cycles)]

    async def testbench(ctx):
        for cycle, value in enumerate(values):
            ctx.set(dut.i, value)
            *_, got = await ctx.tick().sample(dut.o)
            if cycle >= cycles:
                assert got == values[cycle - cycles], f"cycle {cycle}"

    simulate(dut, testbench)


@pytest.mark.parametrize("cycles, error", [(2, ValueError), (0, ValueError), (4.0, TypeError)])
def test_a_delay_that_is_too_short_or_no_number_is_refused(cycles, error):
    assert ", not " in refused("Delay must be", Delay, 8, cycles, error=error)
