"""Tests the table of counts against counting in Python."""

import random

import pytest
from ddp_rnic.hdl.lib.counts import CountTable
from ddp_rnic.hdl.lib.testing import simulate

MODULUS = 1 << 16


@pytest.mark.parametrize("depth", (2, 4, 32))
@pytest.mark.parametrize("share", (1.0, 0.5, 0.1))
def test_each_look_up_sees_all_that_was_added_before(depth, share):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    dut = CountTable(depth)

    async def bench(ctx):
        counts = [0] * depth
        # Look-ups under way: the index, and how often it had been set to 0 when it was given.
        zeros, looked = [0] * depth, []
        zero, since = None, 0
        for cycle in range(1500):
            index = rng.randrange(min(depth, 3) if rng.random() < 0.8 else depth)
            ctx.set(dut.index, index)
            add = False
            if len(looked) == CountTable.LATENCY:
                due, age = looked.pop(0)
                if age == zeros[due]:
                    assert ctx.get(dut.count) == counts[due] % MODULUS, f"{cycle=}"
                    add = rng.random() < share and due != zero
                counts[due] += add
            ctx.set(dut.add, add)
            if zero is None and rng.random() < 0.02:
                zero, since = rng.randrange(depth), cycle
            asks = zero is not None and cycle > since + 8
            ctx.set(dut.zero.valid, asks)
            if asks:
                ctx.set(dut.zero.payload, zero)
                if ctx.get(dut.zero.ready):
                    counts[zero] = 0
                    zeros[zero] += 1
                    zero = None
            looked.append((index, zeros[index]))
            await ctx.tick()

    simulate(dut, bench)


def test_another_port_reads_a_count_three_cycles_after_an_addition():
    dut = CountTable(2, looks=1)

    async def bench(ctx):
        ctx.set(dut.look[0], 1)
        ctx.set(dut.index, 1)
        await ctx.tick().repeat(CountTable.LATENCY)
        ctx.set(dut.add, 1)
        shown = []
        for _ in range(20):
            shown.append(ctx.get(dut.found[0]))
            await ctx.tick()
        assert shown == [0, 0, *range(18)]

    simulate(dut, bench)
