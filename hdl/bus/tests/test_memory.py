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


def read_bursts(width, octets, bursts, host, *, stall, seed=1):
    """Reads bursts, (address, beats), from a memory that the host filled with ``octets``, while the
    host reads the words in ``host``; returns the beats of each burst, and those words.
    """
    dut = PlacementMemory(width, OCTETS, ids=16)
    beats, words, filled = [], [], []

    async def ask(ctx):
        while not filled:
            await ctx.tick()
        for number, (address, count) in enumerate(bursts):
            await send(ctx, dut.reads.ar, [{"addr": address, "len": count - 1, "id": number % 16}])

    async def take(ctx):
        rng = random.Random(seed)
        for number, (_, count) in enumerate(bursts):
            got = [await receive(ctx, dut.reads.r, stall=stall, rng=rng) for _ in range(count)]
            assert [beat.id for beat in got] == [number % 16] * count
            assert [beat.last for beat in got] == [0] * (count - 1) + [1]
            beats.append([(int(beat.data), int(beat.resp)) for beat in got])

    async def main(ctx):
        for word in range(OCTETS // 4):
            ctx.set(dut.address, word)
            ctx.set(dut.data, int.from_bytes(octets[4 * word:4 * word + 4], "little"))
            ctx.set(dut.write, 15)
            await ctx.tick()
        ctx.set(dut.write, 0)
        await ctx.tick()
        filled.append(True)
        rng = random.Random(f"{seed} host")
        for word in host:
            ctx.set(dut.read, 1)
            ctx.set(dut.address, word)
            await ctx.tick()
            ctx.set(dut.read, 0)
            await ctx.tick().repeat(2)
            words.append(ctx.get(dut.answer))
            while rng.random() < 0.5:
                await ctx.tick()

    simulate(dut, ask, take, main, limit=20_000)
    return beats, words


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("stall", [0, 0.6])
def test_bursts_are_read_while_the_host_reads(width, stall):
    rng, wide = random.Random(width), width // 8
    octets = rng.randbytes(OCTETS)
    bursts = [(0, OCTETS // wide), (OCTETS - wide, 1)] + [
        (address, rng.randint(1, min(20, (OCTETS - address) // wide)))
        for address in (rng.randrange(0, OCTETS, wide) for _ in range(40))]
    host = [rng.randrange(OCTETS // 4) for _ in range(60)]
    beats, words = read_bursts(width, octets, bursts, host, stall=stall)
    assert beats == [
        [(int.from_bytes(octets[at:at + wide], "little"), OKAY)
         for at in range(address, address + count * wide, wide)] for address, count in bursts]
    assert words == [int.from_bytes(octets[4 * at:4 * at + 4], "little") for at in host]


@pytest.mark.parametrize("address", [OCTETS, OCTETS - 8, 1 << 32, (1 << 64) - 8])
def test_no_octet_of_a_burst_that_does_not_lie_in_memory_is_read_as_good(address):
    beats, _ = read_bursts(64, bytes(OCTETS), [(address, 2), (0, 1)], [], stall=0)
    assert [[response for _, response in each] for each in beats] == [[DECERR] * 2, [OKAY]]


def test_a_beat_is_not_read_while_it_is_written():
    """A block RAM defines no value for a read of an address that is being written."""
    dut = PlacementMemory(64, OCTETS, ids=2)
    came = []

    async def main(ctx):
        ctx.set(dut.reads.r.ready, 1)
        ctx.set(dut.address, 6)
        ctx.set(dut.write, 1)
        await ctx.tick()
        await send(ctx, dut.reads.ar, [{"addr": 16, "len": 1, "id": 0}])
        for cycle in range(30):
            ctx.set(dut.write, cycle < 20)  # the second beat's first octet
            ctx.set(dut.data, cycle)
            if ctx.get(dut.reads.r.valid):
                came.append((cycle, ctx.get(dut.reads.r.payload.data)))
            await ctx.tick()

    simulate(dut, main)
    (first, nothing), (second, written) = came
    assert nothing == 0 and written == 19
    assert first < 5 and second >= 20


@pytest.mark.parametrize("octets", [0, 512, 3000])
def test_a_size_that_cannot_be_is_refused(octets):
    refused("power of two and at least 1024", PlacementMemory, 64, octets)
