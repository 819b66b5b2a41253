"""Tests the register decoder against the register map, over AXI4-Lite."""

import pytest
from ddp_rnic.hdl.bus.csr import Registers
from ddp_rnic.hdl.bus.tests.lite import manager
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.config import RnicConfig

OKAY, SLVERR, DECERR = 0, 2, 3


def run_registers(script, *, relaxed=False, **inputs):
    """Runs ``script(write, read)`` against a decoder, and returns the commands that it made."""
    dut = Registers(RnicConfig(sctp=True, transmit=True, responder=True, relaxed=relaxed))
    log = {"pulses": []}

    async def main(ctx):
        for name, value in inputs.items():
            ctx.set(getattr(dut, name), value)

        await script(*manager(ctx, dut.bus, wait=5))

    async def pulses(ctx):
        commands = [r.name for r in regs.REGISTERS if r.access == "wo"]
        async for _, _, *values in ctx.tick().sample(
            *(getattr(dut, name.lower()) for name in commands)
        ):
            log["pulses"] += [name for name, value in zip(commands, values, strict=True) if value]

    simulate(dut, main, background=[pulses], limit=20_000)
    return log


@pytest.mark.parametrize("relaxed", [False, True])
def test_every_register_answers_as_the_map_says(relaxed):
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

    log = run_registers(script, relaxed=relaxed, **inputs)
    assert log["pulses"] == [r.name for r in regs.REGISTERS if r.access == "wo"]


def test_byte_strobes_write_their_octets_only():
    async def script(write, read):
        address = regs.address("SCRATCH")
        await write(address, 0x11223344)
        await write(address, 0xAABBCCDD, strb=0b0101)
        assert (await read(address))[0] == 0x11BB33DD

    run_registers(script)


def test_a_write_without_a_strobe_has_no_effect():
    """A converter of widths may make such writes beside those of its own master."""
    dut = Registers(RnicConfig(transmit=True))
    rung = []

    async def main(ctx):
        write, read = manager(ctx, dut.bus, wait=5)
        for register in dut.registers:
            if register.access != "ro":
                assert await write(register.address, 0xFFFF_FFFF, strb=0) == OKAY
        assert (await read(regs.address("SCRATCH")))[0] == 0
        assert not any(rung)
        for register in ("CQ_DOORBELL", "SEND_DOORBELL", "REVOKE_STREAM"):
            assert await write(regs.address(register), 0, strb=1) == OKAY
        assert sum(rung) == 3

    async def listen(ctx):
        ports = [getattr(dut, r.name.lower()) for r in dut.registers if r.access == "wo"]
        async for _, _, *values in ctx.tick().sample(
            *ports, dut.rings, dut.send_rings, dut.send_releases
        ):
            rung.append(any(values))

    simulate(dut, main, background=[listen])


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


def test_a_doorbell_rings_once_with_the_value_that_was_written():
    dut = Registers(RnicConfig())
    rung = []

    async def main(ctx):
        write, _ = manager(ctx, dut.bus, wait=5)
        for value in (0x8003_0007, 0x8003_0007, 1):
            await write(regs.address("CQ_DOORBELL"), value)
        await write(regs.address("CQ_INDEX"), 2)

    async def listen(ctx):
        async for *_, rings, value in ctx.tick().sample(dut.rings, dut.cq_doorbell):
            if rings:
                rung.append(value)

    simulate(dut, main, background=(listen,))
    assert rung == [0x8003_0007, 0x8003_0007, 1]


@pytest.mark.parametrize("relaxed", [False, True])
def test_the_lower_half_of_a_counter_is_that_of_the_cycle_in_which_it_is_announced(relaxed):
    """The upper half is kept in this cycle, so that both halves are of one count."""
    dut = Registers(RnicConfig(relaxed=relaxed))
    announced = []

    async def main(ctx):
        _, read = manager(ctx, dut.bus, wait=5)
        got = [(await read(regs.address("PLACED_OCTETS_LO")))[0] for _ in range(4)]
        assert got == announced

    async def count(ctx):
        async for _, _, announces, value in ctx.tick().sample(
                dut.octets_read, dut.placed_octets_lo):
            if announces:
                announced.append(value)
            ctx.set(dut.placed_octets_lo, value + 3)

    simulate(dut, main, background=(count,))
