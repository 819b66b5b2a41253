"""Tests MDIO against a PHY that follows IEEE 802.3 section 22.2.4.5."""

import pytest
from ddp_rnic.hdl.eth.mdio import GIGABIT_ONLY, GigabitOnly, Mdio
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.lib.tests.refused import refused

DIVISOR = 8


def run(script, phys=(3,)):
    """Runs ``script(access)``; returns the PHYs' registers: (phy, register) to value."""
    dut = Mdio(divisor=DIVISOR)
    registers = {}

    async def phy(ctx):
        ones, bits, word = 0, None, None
        level = ctx.get(dut.mdc)
        async for *_, mdc, drive, out in ctx.tick().sample(dut.mdc, dut.drive, dut.level):
            rises, level = mdc and not level, mdc
            if not drive and word is None:
                ctx.set(dut.line, 1)
            elif drive:
                ctx.set(dut.line, out)
            if not rises:
                continue
            if bits is None:
                ones = ones + 1 if drive and out else 0
                if ones >= 32:
                    bits = []
                continue
            if not bits and out:
                continue  # more of the preamble
            bits.append(out if drive else None)
            if len(bits) == 14:
                op, where, register = (
                    bits[2:4], int("".join(map(str, bits[4:9])), 2),
                    int("".join(map(str, bits[9:14])), 2))
                assert bits[:2] == [0, 1] and op in ([1, 0], [0, 1])
                if op == [1, 0] and where in phys:
                    value = registers.get((where, register), 0)
                    word = [0] + [value >> bit & 1 for bit in reversed(range(16))]
            if word is not None and len(bits) >= 15:
                assert not drive, "the PHY drives the line"
                if word:
                    ctx.set(dut.line, word.pop(0))
            if len(bits) == 32:
                if bits[2:4] == [0, 1]:
                    assert bits[14:16] == [1, 0]
                    if where in phys:
                        registers[where, register] = int("".join(map(str, bits[16:])), 2)
                ones, bits, word = 0, None, None

    async def main(ctx):
        async def access(kind, where, register, value=0):
            ctx.set(dut.phy, where)
            ctx.set(dut.register, register)
            ctx.set(dut.value, value)
            ctx.set(getattr(dut, kind), 1)
            await ctx.tick()
            ctx.set(getattr(dut, kind), 0)
            cycles = 0
            while ctx.get(dut.busy):
                await ctx.tick()
                cycles += 1
            assert cycles == 64 * DIVISOR
            return ctx.get(dut.result), ctx.get(dut.silent)

        await script(access)

    simulate(dut, main, background=[phy])
    return registers


def test_registers_are_written_and_read_back():
    async def script(access):
        await access("write", 3, 31, 0x8001)
        await access("write", 3, 0, 0x1234)
        assert await access("read", 3, 31) == (0x8001, 0)
        assert await access("read", 3, 0) == (0x1234, 0)
        assert await access("read", 3, 7) == (0, 0)

    assert run(script) == {(3, 31): 0x8001, (3, 0): 0x1234}


def test_an_address_without_a_phy_is_silent():
    async def script(access):
        await access("write", 4, 2, 0x5555)
        assert await access("read", 4, 2) == (0xFFFF, 1)
        await access("write", 3, 2, 7)
        assert await access("read", 3, 2) == (7, 0)

    assert run(script) == {(3, 2): 7}


@pytest.mark.parametrize("divisor", [0, 6, 9])
def test_a_divisor_that_is_none_is_refused(divisor):
    refused("even and at least 8", Mdio, divisor=divisor)


def test_every_phy_advertises_gigabit_alone():
    """IEEE 802.3 table 40-3 (register 9): bit 9 advertises 1000BASE-T full duplex, bit 8 half
    duplex. Table 28-2 and annex 28B.3 (register 4): bits 5 to 9 advertise 10 and 100 Mb/s, bits 0
    to 4 are the selector, 1 for IEEE 802.3. Table 22-7 (register 0): bit 12 enables
    Auto-Negotiation, bit 9 restarts it, so that the new advertisement is used.
    """
    values = dict(GIGABIT_ONLY)
    assert values[9] >> 8 & 0b11 == 0b10
    assert values[4] >> 5 & 0b11111 == 0 and values[4] & 0b11111 == 1
    assert values[0] >> 12 & 1 and values[0] >> 9 & 1
    assert [register for register, _ in GIGABIT_ONLY][-1] == 0, "restarted last"

    wait, taken = 20, []
    dut = GigabitOnly(wait=wait)

    async def main(ctx):
        for _ in range(wait):
            assert not ctx.get(dut.busy)
            await ctx.tick()
        assert ctx.get(dut.busy)
        while ctx.get(dut.busy):
            # MDIO is busy with a write for a while.
            assert ctx.get(dut.write)
            await ctx.tick().repeat(3)
            ctx.set(dut.ready, 1)
            taken.append(tuple(map(ctx.get, (dut.phy, dut.register, dut.value))))
            await ctx.tick()
            ctx.set(dut.ready, 0)
        await ctx.tick().repeat(2 * wait)
        assert not ctx.get(dut.busy), "once"

    simulate(dut, main)
    assert taken == [(phy, *each) for phy in range(32) for each in GIGABIT_ONLY]


@pytest.mark.parametrize("wait", [0, True, 1.0])
def test_a_wait_that_is_none_is_refused(wait):
    refused("GigabitOnly wait must be a positive integer", GigabitOnly, wait=wait)
