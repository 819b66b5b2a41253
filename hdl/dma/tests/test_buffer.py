"""Tests that each packet buffer keeps its own beats, and that the asked one is read."""

import random

import pytest
from ddp_rnic.hdl.dma.buffer import PacketBuffer, PacketBuffers
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.spec.config import RnicConfig

CONFIG = RnicConfig(width=64, buffer_octets=4096)
BEATS = CONFIG.buffer_octets // CONFIG.octets


@pytest.mark.parametrize("sources", (1, 2))
def test_the_beat_of_the_asked_buffer_is_read(sources):
    dut = PacketBuffers(CONFIG, sources=sources)
    rng = random.Random(sources)
    beats = [[rng.getrandbits(64) for _ in range(BEATS)] for _ in range(sources)]
    asked = [(rng.randrange(sources), rng.randrange(BEATS)) for _ in range(300)]

    async def testbench(ctx):
        for address in range(BEATS):
            for store, own in zip(dut.store, beats, strict=True):
                ctx.set(store.valid, 1)
                ctx.set(store.payload, {"address": address, "data": own[address]})
            await ctx.tick()
        for store in dut.store:
            ctx.set(store.valid, 0)
        for cycle, (source, address) in enumerate(asked):
            ctx.set(dut.address, address)
            if sources == 2:
                ctx.set(dut.address_second, source)
            *_, got = await ctx.tick().sample(dut.data)
            if cycle >= PacketBuffer.LATENCY:
                was, at = asked[cycle - PacketBuffer.LATENCY]
                assert got == beats[was][at], f"buffer {was}, beat {at}, cycle {cycle}"

    simulate(dut, testbench)


def test_beats_are_freed_in_their_own_buffer():
    dut = PacketBuffers(CONFIG, sources=2)

    async def spaces(ctx):
        await ctx.tick().repeat(3)
        return tuple(ctx.get(space) for space in dut.space)

    async def testbench(ctx):
        full = BEATS - PacketBuffer.MARGIN
        for following in dut.next:
            ctx.set(following, full)
        assert await spaces(ctx) == (0, 0)
        for second, expected in ((0, (1, 0)), (1, (1, 1))):
            ctx.set(dut.free.valid, 1)
            ctx.set(dut.free.payload, 1)
            ctx.set(dut.free_second, second)
            await ctx.tick()
            ctx.set(dut.free.valid, 0)
            assert await spaces(ctx) == expected

    simulate(dut, testbench)
