"""Tests interrupt moderation against the time at which each completion arrived."""

import random

import pytest
from ddp_rnic.hdl.ddp.moderation import STAMPS, InterruptModeration
from ddp_rnic.hdl.lib.testing import shared, simulate

MODULUS = 1 << 16
#: Cycles after which the output must reflect the inputs.
LATENCY = 9


def run(testbench):
    dut = shared(InterruptModeration)

    async def bench(ctx):
        await testbench(ctx, dut)

    simulate(dut, bench, limit=20_000)


@pytest.mark.parametrize("come, go", [(0.1, 0.02), (0.5, 0.05), (1.0, 0.01), (0.02, 0.1)])
@pytest.mark.parametrize("count, timeout", [
    (0, 0), (1, 1000), (4, 50), (20, 20), (20, 200), (60000, 100), (60000, 0xFFFF_FFFF),
])
def test_the_interrupt_is_what_count_and_age_say(count, timeout, come, go):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def testbench(ctx, dut):
        start = rng.choice((0, MODULUS - 30))
        producer = consumer = start
        ctx.set(dut.producer, producer)
        ctx.set(dut.consumer, consumer)
        ctx.set(dut.count, count)
        ctx.set(dut.timeout, timeout)
        await ctx.tick().repeat(LATENCY)
        came = {}
        lately = [(False, consumer)] * LATENCY
        for cycle in range(1500):
            if rng.random() < come:
                came[producer] = cycle
                producer += 1
                ctx.set(dut.producer, producer % MODULUS)
            if rng.random() < go:
                waiting = producer - consumer
                consumer += rng.choice((waiting, rng.randrange(waiting + 1)))
                ctx.set(dut.consumer, consumer % MODULUS)
            waiting = producer - consumer
            want = waiting > 0 and (
                waiting >= min(max(count, 1), STAMPS) or cycle - came[consumer] >= timeout)
            lately = lately[1:] + [(want, consumer)]
            *_, irq = await ctx.tick().sample(dut.irq)
            if len(set(lately)) == 1:
                assert irq == want, f"{cycle=}: {waiting=} {came.get(consumer)=}"

    run(testbench)


@pytest.mark.parametrize("timeout", (6, 7, 8, 100))
def test_the_interrupt_comes_on_time_and_goes_when_the_host_has_caught_up(timeout):
    async def testbench(ctx, dut):
        ctx.set(dut.count, 100)
        ctx.set(dut.timeout, timeout)
        await ctx.tick().repeat(20)
        for number in range(1, 6):
            ctx.set(dut.producer, number)
            for cycle in range(timeout + 3):
                assert not ctx.get(dut.irq), f"{cycle=}"
                await ctx.tick()
            assert ctx.get(dut.irq)
            await ctx.tick().repeat(30)
            assert ctx.get(dut.irq)
            ctx.set(dut.consumer, number)
            await ctx.tick().repeat(3)
            assert not ctx.get(dut.irq)
            await ctx.tick().repeat(5 * number)
            assert not ctx.get(dut.irq)

    run(testbench)


def test_enough_completions_make_it_come_in_three_cycles():
    async def testbench(ctx, dut):
        ctx.set(dut.count, 3)
        ctx.set(dut.timeout, 0xFFFF_FFFF)
        await ctx.tick().repeat(5)
        ctx.set(dut.producer, 2)
        await ctx.tick().repeat(50)
        assert not ctx.get(dut.irq)
        ctx.set(dut.producer, 3)
        await ctx.tick().repeat(2)
        assert not ctx.get(dut.irq)
        await ctx.tick()
        assert ctx.get(dut.irq)

    run(testbench)


def test_what_was_late_stays_late_until_another_is_the_oldest():
    async def testbench(ctx, dut):
        ctx.set(dut.count, 100)
        ctx.set(dut.timeout, 50)
        await ctx.tick()
        ctx.set(dut.producer, 1)
        await ctx.tick().repeat(60)
        assert ctx.get(dut.irq)
        ctx.set(dut.producer, 2)
        # As after the age has wrapped.
        ctx.set(dut.timeout, 10000)
        for _ in range(100):
            await ctx.tick()
            assert ctx.get(dut.irq)
        ctx.set(dut.consumer, 1)
        await ctx.tick().repeat(LATENCY)
        for _ in range(100):
            assert not ctx.get(dut.irq)
            await ctx.tick()

    run(testbench)
