"""Tests the board's registers against their map, and the windows of frames."""

import random
from functools import partial
from itertools import pairwise

import pytest
from ddp_rnic.hdl.bus.tests.lite import manager
from ddp_rnic.hdl.dma.output_queue import ExceptionBeat
from ddp_rnic.hdl.eth.tests.wire import on_wire, with_fcs
from ddp_rnic.hdl.host.frames import OneByOne, ReceivedPacket, TransmitFrame
from ddp_rnic.hdl.host.registers import BoardRegisters
from ddp_rnic.hdl.lib.testing import beats_of, receive, send, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.spec import board

OKAY, SLVERR = 0, 2
NAME = "ddp-rnic on a board"


def run_registers(script, **inputs):
    """Runs ``script(write, read)``; returns the cycles in which each write-only port was high."""
    dut = BoardRegisters(NAME, tcp=True, sends=True)
    pulses = {}

    async def main(ctx):
        for name, value in inputs.items():
            ctx.set(getattr(dut, name), value)

        await script(*manager(ctx, dut.bus))
        await ctx.tick().repeat(4)

    async def watch(ctx):
        names = [each.name for each in board.BY_NAME.values() if each.access == "wo"]
        ports = [getattr(dut, name.lower()) for name in names]
        async for *_, in ctx.tick():
            for name, port in zip(names, ports, strict=True):
                pulses[name] = pulses.get(name, 0) + ctx.get(port)

    simulate(dut, main, background=[watch])
    return pulses


@pytest.mark.parametrize("register", board.BY_NAME.values(), ids=lambda each: each.name)
def test_a_register_does_what_its_access_says(register):
    value = random.Random(register.name).getrandbits(32)

    async def script(write, read):
        if register.access == "ro":
            assert await read(register.address) == (value, OKAY)
            assert await write(register.address, 0) == SLVERR
            assert await read(register.address) == (value, OKAY)
        elif register.access == "rw":
            assert await write(register.address, value) == OKAY
            assert await write(register.address, ~value & 0xFFFFFFFF, strb=0b0100) == OKAY
            assert await read(register.address) == (value ^ 0xFF0000, OKAY)
        else:
            assert await read(register.address) == (0, OKAY)
            assert await write(register.address, 1) == OKAY

    inputs = {register.name.lower(): value} if register.access == "ro" else {}
    pulses = run_registers(script, **inputs)
    assert {name for name, count in pulses.items() if count} == (
        {register.name} if register.access == "wo" else set())
    assert all(count <= 1 for count in pulses.values())


def test_an_address_without_a_register_is_refused():
    async def script(write, read):
        assert await write(0xFFC, 1) == SLVERR
        assert (await read(0xFFC))[1] == SLVERR

    run_registers(script)


def test_the_text_that_names_the_board_is_read_character_by_character():
    async def script(write, read):
        for at, character in enumerate(NAME):
            assert await read(board.IDENTIFIER + 4 * at) == (ord(character), OKAY)
        for at in (len(NAME), 64, board.IDENTIFIER_WORDS - 1):
            assert await read(board.IDENTIFIER + 4 * at) == (0, OKAY)
        assert await write(board.IDENTIFIER, 1) == SLVERR
        for beyond in (board.IDENTIFIER - 4, board.IDENTIFIER + 4 * board.IDENTIFIER_WORDS):
            assert (await read(beyond))[1] == SLVERR

    run_registers(script)


@pytest.mark.parametrize("name", ["x" * 256, "Kölsch"])
def test_a_text_that_does_not_fit_is_refused(name):
    refused("BoardRegisters identifier must be ASCII of at most 255 characters",
            BoardRegisters, name)


@pytest.mark.parametrize("width", [64, 128])
def test_packets_wait_one_by_one_until_they_are_read(width):
    rng = random.Random(width)
    octets = width // 8
    lengths = (1, 4, octets - 1, octets, octets + 1, 300, board.LONGEST, 2050)
    packets = [
        (rng.randbytes(length), rng.getrandbits(16), rng.getrandbits(32), rng.getrandbits(12))
        for length in lengths
    ]
    dut = ReceivedPacket(ExceptionBeat(width))
    seen = []

    async def source(ctx):
        for data, stream, sequence, reason in packets:
            heading = {"stream": stream, "sequence": sequence, "reason": reason}
            await send(ctx, dut.i, [{"beat": beat, **heading} for beat in beats_of(data, octets)])

    async def host(ctx):
        for _ in packets:
            while not ctx.get(dut.waits):
                await ctx.tick()
            length = ctx.get(dut.length)
            data = b""
            for word in range(min(-(-length // 4), board.RECEIVED.size // 4)):
                ctx.set(dut.address, word)
                await ctx.tick().repeat(2)
                data += ctx.get(dut.answer).to_bytes(4, "little")
            seen.append((length, data[:length], ctx.get(dut.stream), ctx.get(dut.sequence),
                         ctx.get(dut.reason)))
            ctx.set(dut.pop, 1)
            await ctx.tick()
            ctx.set(dut.pop, 0)
            await ctx.tick()

    simulate(dut, source, host)
    assert seen == [(len(data), data[:board.RECEIVED.size], *rest) for data, *rest in packets]


@pytest.mark.parametrize("stall", [0, 0.6])
def test_packets_of_two_streams_come_one_by_one(stall):
    """Packets come whole, and alternate while both streams have one."""
    rng = random.Random(1)
    dut = OneByOne(64)
    packets = [[(10 * number + source, rng.randint(1, 5)) for number in range(20)]
               for source in range(2)]
    seen = []

    def sender(source):
        beats = [{"beat": {"data": beat, "count": 8, "last": beat == beats - 1, "error": 0},
                  "stream": label, "sequence": 0, "reason": source}
                 for label, beats in packets[source] for beat in range(beats)]
        return partial(send, stream=dut.i[source], payloads=beats, idle=stall, rng=rng)

    async def take(ctx):
        while sum(beats for _, beats in seen) < sum(beats for each in packets for _, beats in each):
            beat = await receive(ctx, dut.o, stall=stall, rng=rng)
            if beat.beat.data == 0:
                seen.append((beat.stream, 0))
            assert (beat.stream, beat.beat.data) == seen[-1], "a packet is not whole"
            seen[-1] = beat.stream, beat.beat.data + 1
            assert beat.beat.last == (seen[-1] in packets[beat.reason])

    simulate(dut, take, sender(0), sender(1))
    for source in range(2):
        assert [each for each in seen if each in packets[source]] == packets[source]
    if not stall:
        assert [label % 2 for label, _ in seen] == [n % 2 for n in range(1, len(seen) + 1)]


async def written(ctx, dut, frame):
    """Writes a frame to the host's window."""
    for at in range(0, len(frame), 4):
        ctx.set(dut.address, at // 4)
        ctx.set(dut.data, int.from_bytes(frame[at:at + 4].ljust(4, b"\0"), "little"))
        ctx.set(dut.write, 15)
        await ctx.tick()
    ctx.set(dut.write, 0)


def at_phy(dut, host, *others):
    """Returns the frames that the PHY gets until ``host`` ends."""
    pieces, done = [], []

    async def ends(ctx):
        await host(ctx)
        done.append(True)

    async def phy(ctx):
        seen = b""
        while not done:
            _, _, octet = await ctx.tick("eth_tx").sample(dut.o)
            if octet.valid:
                seen += bytes([octet.data])
            elif seen:
                pieces.append(seen)
                seen = b""

    simulate(dut, ends, phy, *others, clocks={"sync": (16e-9, None), "eth_tx": (8e-9, 1e-9)})
    return pieces


def send_frames(frames, *, length=None):
    """Returns the frames at the PHY that the host writes and sends, and the number sent."""
    dut = TransmitFrame(domain="eth_tx")
    sent = 0

    async def host(ctx):
        nonlocal sent
        for frame in frames:
            await written(ctx, dut, frame)
            ctx.set(dut.length, len(frame) if length is None else length)
            ctx.set(dut.send, 1)
            await ctx.tick()
            ctx.set(dut.send, 0)
            if not ctx.get(dut.busy):
                await ctx.tick().repeat(200)
                continue
            # While a frame is being sent, the host's writes have no effect.
            ctx.set(dut.address, 0)
            ctx.set(dut.data, 0)
            ctx.set(dut.write, 15)
            ctx.set(dut.length, 20)
            ctx.set(dut.send, 1)
            await ctx.tick()
            ctx.set(dut.write, 0)
            ctx.set(dut.send, 0)
            await ctx.tick().until(dut.sent)
            sent += 1
            await ctx.tick()
            assert not ctx.get(dut.busy)
        await ctx.tick().repeat(10)

    return at_phy(dut, host), sent


def test_frames_of_the_host_go_out():
    rng = random.Random(5)
    frames = [rng.randbytes(length) for length in (14, 59, 60, 61, 62, 63, 300, board.LONGEST)]
    pieces, sent = send_frames(frames)
    assert pieces == [on_wire(with_fcs(frame)) for frame in frames]
    assert sent == len(frames)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("stall", [*long(0), 0.3])
def test_frames_of_the_host_and_of_a_stream_go_out_in_turns(width, stall):
    """A frame that is too short or too long for the link is dropped; the next one leaves."""
    rng = random.Random(width)
    dut = TransmitFrame(width=width)
    lengths = (14, 13, 61, board.LONGEST, board.LONGEST + 1, 5000, 75, 1, 100, 1000)
    frames = [rng.randbytes(length) for length in lengths]
    ours = [rng.randbytes(length) for length in (300, 14, 700, 60)]
    wanted = [each for each in frames if 14 <= len(each) <= board.LONGEST]

    async def source(ctx):
        for frame in frames:
            await send(ctx, dut.frames, beats_of(frame, width // 8), idle=stall, rng=rng)

    async def host(ctx):
        for frame in ours:
            await written(ctx, dut, frame)
            ctx.set(dut.length, len(frame))
            ctx.set(dut.send, 1)
            await ctx.tick()
            ctx.set(dut.send, 0)
            await ctx.tick()
            while ctx.get(dut.busy):
                await ctx.tick()
        await ctx.tick().repeat(4000)

    pieces = at_phy(dut, host, source)
    order = [[on_wire(with_fcs(each)) for each in list_] for list_ in (wanted, ours)]
    assert [each for each in pieces if each in order[0]] == order[0]
    assert [each for each in pieces if each in order[1]] == order[1]
    assert len(pieces) == len(wanted) + len(ours)
    # The host's frame never waits for more than one of the stream.
    places = [at for at, each in enumerate(pieces) if each in order[1]]
    assert all(later - earlier <= 2 for earlier, later in pairwise(places))


@pytest.mark.parametrize("length", [0, 13, board.LONGEST + 1, 1 << 31])
def test_a_length_that_cannot_be_sends_nothing(length):
    assert send_frames([bytes(20)], length=length) == ([], 0)
