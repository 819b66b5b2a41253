"""Tests placement memory: two buses and the host take turns, and each octet lands in its place."""

import itertools
import random

import pytest
from ddp_rnic.hdl.bus.memory import PlacementMemory
from ddp_rnic.hdl.lib.testing import receive, send, simulate
from ddp_rnic.hdl.lib.tests.refused import refused

OKAY, DECERR = 0, 3
OCTETS = 2048


def run(width, bursts, host=(), *, seed=1, stalled=0.3):
    """Plays bursts, {port: [(address, [(data, strb), ...]), ...]}, and host writes, (word, data,
    strobes); returns the memory and the responses of each port.
    """
    dut = PlacementMemory(width, OCTETS)
    responses = {port: [] for port in bursts}
    running = len(bursts) + 1
    image = bytearray()

    def player(port, list_):
        rng = random.Random(f"{seed} {port}")
        bus = getattr(dut, port)

        async def play(ctx):
            nonlocal running
            for address, beats in list_:
                await send(ctx, bus.aw, [{"addr": address, "len": len(beats) - 1}])
                words = [{"data": value, "strb": strb, "last": number == len(beats) - 1}
                         for number, (value, strb) in enumerate(beats)]
                await send(ctx, bus.w, words, idle=stalled, rng=rng)
                answer = await receive(ctx, bus.b, stall=stalled, rng=rng)
                responses[port].append(int(answer.resp))
            running -= 1

        return play

    async def main(ctx):
        nonlocal running
        rng = random.Random(f"{seed} host")
        for word, value, strb in host:
            ctx.set(dut.address, word)
            ctx.set(dut.data, value)
            ctx.set(dut.write, strb)
            await ctx.tick()
            ctx.set(dut.write, 0)
            while rng.random() < 0.7:
                await ctx.tick()
        running -= 1
        while running:
            await ctx.tick()
        for word in range(OCTETS // 4 + 1):
            ctx.set(dut.address, word)
            await ctx.tick().repeat(2)
            assert ctx.get(dut.found) == (word < OCTETS // 4)
            if word < OCTETS // 4:
                image.extend(ctx.get(dut.answer).to_bytes(4, "little"))

    simulate(dut, *itertools.starmap(player, bursts.items()), main, limit=20_000)
    return bytes(image), responses


def applied(image, width, bursts):
    octets = width // 8
    for address, beats in bursts:
        for number, (value, strb) in enumerate(beats):
            for lane in range(octets):
                if strb >> lane & 1:
                    image[address + number * octets + lane] = value >> 8 * lane & 255


def draw(rng, width, low, high, count):
    octets = width // 8
    for _ in range(count):
        beats = rng.randrange(1, min(9, (high - low) // octets))
        address = rng.randrange(low, high - beats * octets, octets)
        yield address, [(rng.getrandbits(width), rng.getrandbits(octets)) for _ in range(beats)]


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("seed", range(4))
def test_every_octet_lands_in_its_place(width, seed):
    rng = random.Random(seed)
    bursts = {
        "bus": list(draw(rng, width, 0, 1024, 30)),
        "completions": list(draw(rng, width, 1024, 1536, 20)),
    }
    host = [(rng.randrange(1536 // 4, OCTETS // 4), rng.getrandbits(32), rng.getrandbits(4))
            for _ in range(60)]
    expected = bytearray(OCTETS)
    for list_ in bursts.values():
        applied(expected, width, list_)
    for word, value, strb in host:
        for lane in range(4):
            if strb >> lane & 1:
                expected[4 * word + lane] = value >> 8 * lane & 255
    image, responses = run(width, bursts, host, seed=seed)
    assert image == expected
    assert responses == {port: [OKAY] * len(list_) for port, list_ in bursts.items()}


@pytest.mark.parametrize("address", [OCTETS, OCTETS - 8, 1 << 32, (1 << 64) - 16])
def test_a_burst_that_does_not_lie_in_memory_is_refused_whole(address):
    bad = (address, [(0xFF, 255), (0xFF, 255)])
    good = (16, [(0x0102030405060708, 255)])
    image, responses = run(64, {"bus": [bad, good], "completions": []})
    assert responses["bus"] == [DECERR, OKAY]
    expected = bytearray(OCTETS)
    applied(expected, 64, [good])
    assert image == expected


def test_a_host_write_outside_memory_changes_nothing():
    image, _ = run(64, {}, [(OCTETS // 4, 0xFFFFFFFF, 15), (1 << 29, 0xFFFFFFFF, 15)])
    assert image == bytes(OCTETS)


@pytest.mark.parametrize("octets", [0, 512, 3000])
def test_a_size_that_cannot_be_is_refused(octets):
    refused("power of two and at least 1024", PlacementMemory, 64, octets)
