"""Tests that a datapath counts as idle after enough quiet cycles, and not before."""

import random

import pytest
from ddp_rnic.hdl.lib.quiet import Quiet
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.lib.tests.refused import refused


@pytest.mark.parametrize("cycles", (1, 3, 15))
def test_it_is_quiet_once_the_last_cycles_were_not_busy(cycles):
    dut = Quiet(cycles)
    rng = random.Random(cycles)
    # Quiet times around the length that counts, and much longer.
    lengths = [rng.choice((0, 1, cycles - 1, cycles, cycles + 1, 5 * cycles)) for _ in range(40)]

    async def testbench(ctx):
        since = 0  # after a reset, as after a busy cycle
        for length in lengths:
            for busy in (*[0] * length, 1):
                ctx.set(dut.busy, busy)
                assert ctx.get(dut.o) == (since >= cycles), f"{since} quiet cycles"
                await ctx.tick()
                since = 0 if busy else since + 1

    simulate(dut, testbench)


@pytest.mark.parametrize("cycles", (0, 4))
def test_a_number_of_cycles_that_cannot_be_counted_is_refused(cycles):
    refused("Quiet cycles must be one less than a power of two, not ", Quiet, cycles)
