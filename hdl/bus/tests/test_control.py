"""Tests the commands of the registers: when they wait, and for which streams they hold."""

import pytest
from ddp_rnic.hdl.bus.tests.lite import manager
from ddp_rnic.hdl.control import Control
from ddp_rnic.hdl.lib.testing import shared, simulate
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.commands import Write
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.send import LONGEST_SEGMENT

STREAMS = 16
CONFIG = RnicConfig(
    streams=STREAMS, stags=16, pages=16, buffers=16, queue_depth=4, backlog=64,
    completion_queues=2, transmit=True, responder=True)


def play(steps, *background):
    """Writes registers, one write after the other."""
    dut = shared(Control, CONFIG)

    async def host(ctx):
        write, _ = manager(ctx, dut.bus, wait=100)
        for register, value in steps:
            await write(regs.address(register), value)
        await ctx.tick().repeat(100)

    simulate(dut, host, background=[each(dut) for each in background])


@pytest.mark.parametrize(
    "port, steps",
    [("slots", commands.set_responses(3, 0x4000, 2, ird=4, buffer=0)),
     ("ords", commands.set_reads(3, 4))],
)
def test_a_command_keeps_its_payload_while_it_waits(port, steps):
    seen = []

    def take(dut):
        async def testbench(ctx):
            offered = getattr(dut.send, port)
            await ctx.tick().until(offered.valid)
            for _ in range(40):
                seen.append(ctx.get(offered.payload.stream))
                await ctx.tick()
            ctx.set(offered.ready, 1)

        return testbench

    play([*((step.register, step.value) for step in steps if isinstance(step, Write)),
          ("SEND_STREAM", 9)], take)
    assert seen == 40 * [3]


@pytest.mark.parametrize("stream, revoked", [(1, True), (STREAMS + 1, False), (0x1_0001, False)])
def test_a_stream_that_does_not_exist_is_not_revoked(stream, revoked):
    """STags of stream 1 stay if the index names it only in its lower bits."""
    found = []

    def watch(dut):
        async def testbench(ctx):
            ctx.set(dut.stag_entry.valid, 1)
            ctx.set(dut.stag_entry.bound, 1)
            ctx.set(dut.stag_entry.owner, 1)
            async for *_, valid in ctx.tick().sample(dut.stags.valid):
                found.append(valid)

        return testbench

    play([("STREAM_INDEX", stream), ("REVOKE_STREAM", 1)], watch)
    assert any(found) == revoked


@pytest.mark.parametrize(
    "mulpdu, taken",
    [(LONGEST_SEGMENT,) * 2, (40500, LONGEST_SEGMENT), (1 << 16, LONGEST_SEGMENT), (0, 0)])
def test_no_mulpdu_is_greater_than_the_staging_buffer(mulpdu, taken):
    """A segment beyond the staging buffer would hold up all streams."""
    found = []

    def watch(dut):
        async def testbench(ctx):
            port = dut.send.mulpdus
            async for *_, valid, octets in ctx.tick().sample(port.valid, port.payload.mulpdu):
                if valid:
                    found.append(octets)

        return testbench

    play([("SEND_STREAM", 2), ("SEND_MULPDU", mulpdu), ("SEND_MULPDU_COMMIT", 1)], watch)
    assert found == [taken]
