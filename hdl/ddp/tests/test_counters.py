"""Each counter counts its own event, past 32 bits where it must."""

import pytest
from ddp_rnic.hdl.ddp.counters import Counters
from ddp_rnic.hdl.lib.testing import simulate


@pytest.mark.parametrize("octets", [65521, 16384])
def test_octets_are_counted_past_32_bits_and_read_as_one_number(octets):
    dut = Counters()
    wrong = []

    async def main(ctx):
        total = before = 0
        held = None  # the lower half of when the upper one was held
        ctx.set(dut.tally, {"placed": 1, "octets": octets})
        for cycle in range(300):
            if cycle == 3:  # from just below the carry
                low = 2**32 - 100 * octets
                ctx.set(dut.octets_low, low)
                total = before = low
                await ctx.tick()
                total += octets
                continue
            hold = cycle % 7 == 0
            ctx.set(dut.hold, hold)
            low = ctx.get(dut.octets_low)
            await ctx.tick()
            if held is not None:
                value = ctx.get(dut.octets_high) << 32 | held
                if before and value < before:
                    wrong.append((cycle, value, before))
                before = value
            held = low if hold and cycle > 3 else None
        assert total

    simulate(dut, main)
    assert not wrong


@pytest.mark.parametrize("full", [False, True])
def test_each_counter_counts_its_own_event(full):
    dut = Counters(full=full)
    first = -1 if full else 0
    events = {
        "placed": dut.tally.placed, "exceptions": dut.tally.exception, "errors": dut.tally.error,
        "dropped": dut.tally.dropped, "digest": dut.tally.digest,
        "exceptions_dropped": dut.exception_dropped,
    }  # fmt: skip

    async def main(ctx):
        for times, event in enumerate(events.values(), 2):
            ctx.set(event, 1)
            await ctx.tick().repeat(times)
            ctx.set(event, 0)
        await ctx.tick().repeat(3)
        counts = {name: ctx.get(getattr(dut, name)) for name in events}
        assert counts == {name: first + times for times, name in enumerate(events, 2)}

    simulate(dut, main)


def test_full_counters_carry_through_every_bit():
    dut = Counters(full=True)

    async def main(ctx):
        async def octets():
            ctx.set(dut.hold, 1)
            await ctx.tick()
            ctx.set(dut.hold, 0)
            await ctx.tick().repeat(2)
            return ctx.get(dut.octets_high) << 32 | ctx.get(dut.octets_low)

        assert await octets() == 2**64 - 1
        ctx.set(dut.tally, {"octets": 8})
        await ctx.tick()
        ctx.set(dut.tally, {"octets": 0})
        await ctx.tick().repeat(3)
        assert await octets() == 7

    simulate(dut, main)
