"""Tests a reset of the whole RNIC."""

import struct

from amaranth import ResetInserter, Signal
from ddp_rnic.hdl.bus.tests.lite import manager
from ddp_rnic.hdl.lib.testing import beats_of, send, simulate
from ddp_rnic.hdl.rnic import Rnic
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.commands import Write
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import VERSION
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.model.mpa import MpaSender

CONFIG = RnicConfig(
    stags=16, streams=64, buffer_octets=4096, outstanding=8, queue_depth=4, buffers=16, pages=16,
    backlog=64, completion_queues=2, exception_octets=4096,
)
STREAM, PD, STAG, TO, ADDRESS = 63, 7, 0x301, 0x40, 0x10000


def test_no_stream_is_enabled_after_a_reset():
    """A peer's segments are dropped from the first cycle on, until the host enables the stream."""
    dut, reset = Rnic(CONFIG), Signal()
    segment = struct.pack(">BBIQ", 0x80 | VERSION, 0, STAG, TO) + b"octets!!"
    packet = list(beats_of(MpaSender().send(segment), CONFIG.width // 8))
    beats = [{"beat": beat, "stream": STREAM, "sequence": 0} for beat in packet]
    written = []

    async def watch(ctx):
        for port in (dut.bus, dut.completions):
            ctx.set(port.aw.ready, 1)
            ctx.set(port.w.ready, 1)
        async for *_, valid, address in ctx.tick().sample(
                dut.bus.aw.valid, dut.bus.aw.payload.addr):
            if valid:
                written.append(address)

    async def host(ctx):
        write, _ = manager(ctx, dut.control)

        async def carry_out(steps):
            for step in steps:
                if isinstance(step, Write):
                    await write(step.address, step.value)

        await carry_out(commands.set_stream(STREAM, pd=PD, crc=True))
        await carry_out(commands.set_stag(
            STAG, Access.REMOTE_WRITE, to=0, length=4096, address=ADDRESS, pd=PD))
        await send(ctx, dut.packets, beats)
        await ctx.tick().repeat(200)
        assert written == [ADDRESS + TO]
        ctx.set(reset, 1)
        await ctx.tick().repeat(32)
        ctx.set(reset, 0)
        await send(ctx, dut.packets, 20 * beats)
        await ctx.tick().repeat(200)
        assert written == [ADDRESS + TO]
        await carry_out(commands.set_stream(STREAM, pd=PD, crc=True))
        await send(ctx, dut.packets, beats)
        await ctx.tick().repeat(200)
        assert written == 2 * [ADDRESS + TO]

    simulate(ResetInserter(reset)(dut), host, background=(watch,))
