"""Tests memories in block RAM against plain Python: stalls, and reads beside writes."""

import random

import pytest
from amaranth.lib import data
from ddp_rnic.hdl.lib.blockram import BlockRam, ForwardedTable
from ddp_rnic.hdl.lib.testing import simulate

ENTRY = data.StructLayout({"valid": 1, "number": 12})
DEPTH = 32


@pytest.mark.parametrize("reads", (1, 2))
def test_block_ram_keeps_its_items_and_stalls(reads):
    dut = BlockRam(12, DEPTH, reads=reads)
    rng = random.Random(reads)

    async def testbench(ctx):
        items = [0] * DEPTH
        read, shown = [0] * reads, [0] * reads
        for cycle in range(2000):
            write = rng.random() < 0.5 and rng.randrange(DEPTH)
            # No place is read in the cycle in which it is written.
            free = [place for place in range(DEPTH) if place != write]
            places, value = [rng.choice(free) for _ in range(reads)], rng.getrandbits(12)
            moves, shows = rng.random() < 0.8, rng.random() < 0.8
            ctx.set(dut.write.valid, write is not False)
            ctx.set(dut.write.payload, {"address": write or 0, "data": value})
            ctx.set(dut.moves, moves)
            ctx.set(dut.shows, shows)
            for port, place in zip(dut.address, places, strict=True):
                ctx.set(port, place)
            await ctx.tick()
            if shows:
                shown = read
            if moves:
                read = [items[place] for place in places]
            if write is not False:
                items[write] = value
            assert [ctx.get(port) for port in dut.data] == shown, f"cycle {cycle}"

    simulate(dut, testbench)


@pytest.mark.parametrize("depth", (DEPTH, 4 * DEPTH), ids=["distributed", "block"])
@pytest.mark.parametrize("places", (1, 2, DEPTH))
@pytest.mark.parametrize("reads", (1, 2))
def test_a_reader_of_a_table_sees_every_earlier_write(reads, places, depth):
    dut = ForwardedTable(ENTRY, depth, reads=reads)
    rng = random.Random(10 * places + reads)

    async def testbench(ctx):
        entries = [0] * DEPTH
        seen = [[0] * reads] * ForwardedTable.LATENCY
        for cycle in range(1000):
            asked = [rng.randrange(places) for _ in range(reads)]
            write, at, value = rng.random() < 0.6, rng.randrange(places), rng.getrandbits(13)
            ctx.set(dut.write.valid, write)
            ctx.set(dut.write.payload.address, at)
            ctx.set(dut.write.payload.data.as_value(), value)
            for port, place in zip(dut.address, asked, strict=True):
                ctx.set(port, place)
            await ctx.tick()
            if write:
                entries[at] = value
            seen = [*seen[1:], [entries[place] for place in asked]]
            if cycle >= ForwardedTable.LATENCY:
                got = [ctx.get(port.as_value()) for port in dut.data]
                assert got == seen[0], f"cycle {cycle}"

    simulate(dut, testbench)
