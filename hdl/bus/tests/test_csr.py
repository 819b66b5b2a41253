"""Tests the register decoder against the register map, over AXI4-Lite."""

import pytest
from amaranth.sim import Simulator
from ddp_rnic.hdl.bus.csr import Counters, Registers
from ddp_rnic.hdl.bus.tests.lite import manager
from ddp_rnic.hdl.spec import regs

OKAY, SLVERR, DECERR = 0, 2, 3


def run_registers(script, **inputs):
    """Runs ``script(write, read)`` against a decoder; returns it with its Amaranth component."""
    dut = Registers(sctp=True)
    log = {"pulses": []}

    async def main(ctx):
        for name, value in inputs.items():
            ctx.set(getattr(dut, name), value)

        await script(*manager(ctx, dut.bus, wait=5))

    async def pulses(ctx):
        commands = [r.name for r in regs.REGISTERS if r.access == "wo"]
        cycles = 0
        async for _, _, *values in ctx.tick().sample(
            *(getattr(dut, name.lower()) for name in commands)
        ):
            cycles += 1
            assert cycles < 20_000, "watchdog"
            log["pulses"] += [name for name, value in zip(commands, values, strict=True) if value]

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(main)
    sim.add_testbench(pulses, background=True)
    sim.run()
    return log


def test_every_register_answers_as_the_map_says():
    inputs = {r.name.lower(): 0x1000_0000 + r.address for r in regs.REGISTERS if r.access == "ro"}

    async def script(write, read):
        for r in regs.REGISTERS:
            if r.access == "ro":
                assert await read(r.address) == (0x1000_0000 + r.address, OKAY), r.name
                assert await write(r.address, 1) == SLVERR, r.name
            elif r.access == "rw":
                assert await write(r.address, 0xA500_0000 + r.address) == OKAY
            else:
                assert await write(r.address, 1, data_first=True) == OKAY
                assert await read(r.address) == (0, OKAY), r.name
        for r in regs.REGISTERS:
            if r.access == "rw":
                assert await read(r.address) == (0xA500_0000 + r.address, OKAY), r.name

    log = run_registers(script, **inputs)
    assert log["pulses"] == [r.name for r in regs.REGISTERS if r.access == "wo"]


def test_byte_strobes_write_their_octets_only():
    async def script(write, read):
        address = regs.address("SCRATCH")
        await write(address, 0x11223344)
        await write(address, 0xAABBCCDD, strb=0b0101)
        assert (await read(address))[0] == 0x11BB33DD

    run_registers(script)


def test_an_address_without_a_register_is_refused():
    async def script(write, read):
        assert await write(0xFFC, 1) == DECERR
        assert (await read(0xFFC))[1] == DECERR

    assert run_registers(script)["pulses"] == []


def test_the_map_has_no_two_registers_at_one_address_and_fields_that_fit():
    assert len({r.address for r in regs.REGISTERS}) == len(regs.REGISTERS)
    for r in regs.REGISTERS:
        assert r.address % 4 == 0 and r.address < 1 << regs.ADDRESS_BITS
        bits = [b for f in r.fields for b in range(f.low, f.low + f.bits)]
        assert len(set(bits)) == len(bits) and all(b < 32 for b in bits), r.name


@pytest.mark.parametrize("octets", [65521, 16384])
def test_octets_are_counted_past_32_bits_and_read_as_one_number(octets):
    dut = Counters()
    wrong = []

    async def main(ctx):
        total = before = 0
        held = None  # the lower half at the time when the upper one was held
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

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(main)
    sim.run()
    assert not wrong


def test_each_counter_counts_its_own_event():
    dut = Counters()
    events = {
        "placed": dut.tally.placed, "exceptions": dut.tally.exception, "errors": dut.tally.error,
        "dropped": dut.tally.dropped, "digest": dut.tally.digest, "delivered": dut.completed,
        "exceptions_dropped": dut.exception_dropped,
    }  # fmt: skip

    async def main(ctx):
        for times, event in enumerate(events.values(), 2):
            ctx.set(event, 1)
            await ctx.tick().repeat(times)
            ctx.set(event, 0)
        await ctx.tick().repeat(3)
        counts = {name: ctx.get(getattr(dut, name)) for name in events}
        assert counts == {name: times for times, name in enumerate(events, 2)}

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(main)
    sim.run()
