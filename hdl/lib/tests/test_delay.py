"""Tests delays in memory."""

import gc
import random
import warnings

import pytest
from amaranth.hdl import UnusedElaboratable
from ddp_rnic.hdl.lib.delay import Delay
from ddp_rnic.hdl.lib.testing import simulate


@pytest.mark.parametrize("block", (False, True))
@pytest.mark.parametrize("cycles", (3, 4, 5, 16, 17, 18, 35, 40))
def test_a_value_comes_out_so_many_cycles_later(cycles, block):
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
    with warnings.catch_warnings():
        # A refused component is never used; its warning goes here and now.
        warnings.simplefilter("ignore", UnusedElaboratable)
        with pytest.raises(error, match="Delay must be .*, not "):
            Delay(8, cycles)
        gc.collect()
