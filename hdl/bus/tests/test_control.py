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
#: The same over SCTP: 16 associations, and 128 slots for them in each way.
SCTP = RnicConfig(
    streams=STREAMS, associations=16, stags=16, pages=16, buffers=16, queue_depth=4, backlog=64,
    completion_queues=2, sctp=True, transmit=True)


def play(steps, *background, config=CONFIG):
    """Writes registers, one write after the other."""
    dut = shared(Control, config)

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


@pytest.mark.parametrize("first, count, existing", [
    (3, 4, 4), (12, 4, 4), (12, 5, 4), (15, 0xFFFF, 1), (0, 0xFFFF, STREAMS), (0, 0, 0),
    (STREAMS, 1, 0), (STREAMS + 1, 3, 0), (0xFFFE, 4, 0)])
def test_an_association_has_no_streams_that_do_not_exist(first, count, existing):
    """A stream past the last one would be the stream of another association."""
    found, streams = {}, first | count << 16

    def watch(dut):
        async def testbench(ctx):
            table, path = dut.sctp.associations, dut.send.path
            ctx.set(path.ready, 1)
            async for *_, written, received, set_, sent in ctx.tick().sample(
                    table.valid, table.payload.entry.streams, path.valid, path.payload.count):
                if written:
                    found["receives"] = received
                if set_:
                    found["sends"] = sent

        return testbench

    play([("ASSOC_STREAMS", streams), ("ASSOC_COMMIT", 1), ("PATH_STREAMS", streams),
          ("PATH_COMMIT", 1)], watch, config=SCTP)
    assert found == {"receives": existing, "sends": existing}


@pytest.mark.parametrize("port, steps, taken", [
    *(("associations", [("ASSOC_FLAGS", 1 | number << 16), ("ASSOC_SLOT", 1 << 16 | slot),
                        ("ASSOC_COMMIT", 1)], taken)
      for number, slot, taken in ((15, 127, True), (16, 127, False), (15, 128, False))),
    *(("command", [("SESSION_STREAM", number), ("SESSION_FUNCTION", function),
                   ("SESSION_COMMAND", 1)], taken)
      for number, function, taken in (
          (15, 9, True), (16, 0, False), (0x1_0001, 0, False), (15, 10, False))),
    *((port, [("SEND_STREAM", 3), ("SEND_CHUNKS", association), ("SEND_FLAGS", flags),
              ("SEND_COMMIT", 1)], taken)
      for port in ("set", "opens")
      for association, flags, taken in (
          (15, 0b1_0001, True), (16, 0b1_0001, False), (0x100F, 0b1_0001, False), (16, 1, True))),
    *(("path", [("PATH_ASSOCIATION", number), ("PATH_COMMIT", 1)], taken)
      for number, taken in ((15, True), (16, False))),
])
def test_a_stream_or_association_that_does_not_exist_is_not_commanded(port, steps, taken):
    """Its lower bits name one that exists, and that may be another program's."""
    found = []

    def watch(dut):
        async def testbench(ctx):
            offered = getattr(dut.send if port in ("set", "opens", "path") else dut.sctp, port)
            if port != "associations":  # which are always taken
                ctx.set(offered.ready, 1)
            async for *_, valid in ctx.tick().sample(offered.valid):
                found.append(valid)

        return testbench

    play(steps, watch, config=SCTP)
    assert any(found) == taken
