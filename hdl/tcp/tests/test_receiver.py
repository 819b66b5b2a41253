"""Tests the receive front of TCP against the model, and the figures in its docstrings."""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from amaranth.hdl import Value
from ddp_rnic.hdl.lib.testing import beats_of, decoded, octets_of, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.spec.net import TcpField, tcp_words
from ddp_rnic.hdl.tcp.fpdus import FpduCutter, RoundRobin
from ddp_rnic.hdl.tcp.receiver import TcpReceiver
from ddp_rnic.hdl.tcp.tests.frames import Wire, scenario
from ddp_rnic.sim.model import tcp as model
from ddp_rnic.sim.model.mpa import MpaSender

CONNECTIONS, WINDOW = 4, 4096
#: Cycles from a frame's last beat to the first beat of its FPDU.
LATENCY = 13
#: Idle cycles after which nothing more will happen.
QUIET = 40


class Bench:
    """Drives a receiver; ``stall`` is the share of cycles in which its packets are not taken."""

    def __init__(self, width, *, streams=1 << 16, stall=0.0, seed=1, connections=CONNECTIONS,
                 window=WINDOW):
        self.dut = shared(
            TcpReceiver, width, connections=connections, window=window, streams=streams)
        self.octets = width // 8
        self.rng = random.Random(seed)
        self.stall, self.host = stall, True
        self.packets, self.frames, self.counts = [], [], Counter()
        # Cycles of beats: each frame's last, each packet's first, each frame's first to the host.
        self.given, self.began, self.ended, self.showed = [], [], [], []
        self.cycle = self.latest = 0

    def run(self, *testbenches):
        """Runs testbenches."""
        simulate(self.dut, *testbenches, background=[self._watch], limit=200_000)

    async def _watch(self, ctx):
        dut = self.dut
        packet, frame, first = bytearray(), bytearray(), None
        ready, goes = self._set_ready(ctx)
        ticks = ctx.tick().sample(
            dut.i.valid & dut.i.ready & dut.i.payload.last, dut.packets.valid,
            Value.cast(dut.packets.payload), dut.frames.valid, Value.cast(dut.frames.payload),
            dut.taken, dut.host, dut.dropped, dut.lost)
        async for _, _, given, valid, beat, came, other, *pulses in ticks:
            self.cycle += 1
            if given:
                self.given.append(self.cycle)
            for name, pulse in zip(("taken", "host", "dropped", "lost"), pulses, strict=True):
                self.counts[name] += pulse
            if valid and ready:
                beat = decoded(dut.packets, beat)
                if first is None:
                    self.began.append(self.cycle)
                    first = beat.stream, beat.sequence
                assert (beat.stream, beat.sequence) == first and not beat.beat.error
                packet += octets_of(beat.beat, self.octets)
                if beat.beat.last:
                    self.packets.append(model.FpduReceived(*first, bytes(packet)))
                    packet, first = bytearray(), None
            if pulses[1]:
                self.ended.append(self.cycle)
            if came and goes:
                other = decoded(dut.frames, other)
                if not frame:
                    self.showed.append(self.cycle)
                frame += octets_of(other, self.octets)
                if other.last:
                    self.frames.append(bytes(frame))
                    frame = bytearray()
            if any(pulses) or valid or (came and goes):
                self.latest = self.cycle
            ready, goes = self._set_ready(ctx, ready, goes)

    def _set_ready(self, ctx, ready=None, goes=None):
        """Sets ``ready`` of both outputs where it changes; returns both."""
        before, (ready, goes) = (ready, goes), (self.rng.random() >= self.stall, self.host)
        for port, old, new in zip((self.dut.packets, self.dut.frames), before, (ready, goes),
                                  strict=True):
            if new != old:
                ctx.set(port.ready, new)
        return ready, goes

    async def quiet(self, ctx):
        """Waits until the receiver is idle."""
        left = QUIET
        while left > 0:
            await ctx.tick().repeat(left)
            left = QUIET - (self.cycle - self.latest)

    async def write(self, ctx, index, field, word):
        await send(ctx, self.dut.write, [{"index": index, "field": field, "word": word}])

    async def connect(self, ctx, connections):
        for index, each in enumerate(connections):
            for field, word in tcp_words(
                    each.source, each.destination, (each.source_port, each.destination_port),
                    sequence=each.sequence, stream=each.stream, sent=each.sent, span=each.span,
                    markers=each.markers):
                await self.write(ctx, index, field, word)

    async def send(self, ctx, frame, *, damaged=False):
        await send(ctx, self.dut.i, beats_of(frame, self.octets, error=damaged))

    async def known(self, ctx, index):
        """Returns the state of a connection."""
        ctx.set(self.dut.look, index)
        peer = ctx.get(self.dut.peer)
        return (ctx.get(self.dut.next), (peer.acknowledged, peer.window),
                bool(ctx.get(self.dut.broken)))


def expected(connections, frames):
    """Returns a model of these connections, and its result for each frame."""
    receiver = model.TcpReceiver(CONNECTIONS, WINDOW)
    for index, connection in enumerate(connections):
        receiver.connect(index, connection)
    for frame, damaged in frames:
        yield receiver, receiver.receive(frame, damaged=damaged)


def of_kind(kind, events):
    return [each for each in events if isinstance(each, kind)]


def segments(connection, octets, *lengths, window=7):
    """Returns frames of a connection's octets, in pieces of these lengths, and nothing else."""
    at = 0
    for length in lengths:
        yield Wire(
            connection.source, connection.destination, connection.source_port,
            connection.destination_port, (connection.sequence + at) % 2**32,
            octets[at:at + length], window=window).frame(), False
        at += length


def connection(number=0, *, sequence=2**32 - 100, markers=False):
    return model.Connection(
        bytes((10, 0, 0, number)), bytes((10, 0, 1, 1)), 1000, 2000, 7 + number, sequence, markers)


def fpdus(*lengths, markers=False):
    sender = MpaSender(markers=markers)
    return [sender.send(bytes(range(256)) * (length // 256) + bytes(length % 256))
            for length in lengths]


@pytest.mark.parametrize("width, seed", [
    (64, 1), *long((64, 2)), (128, 3), (256, 4), *long((512, 5))])
def test_frames_are_what_the_model_says(width, seed, pytestconfig):
    """Frames come one at a time, because the model acts without delay and the gateware does not."""
    segments = 40 if pytestconfig.getoption("--long") else 20
    played = scenario(
        random.Random(seed), connections=CONNECTIONS, window=WINDOW, segments=segments)
    bench = Bench(width)

    async def testbench(ctx):
        await bench.connect(ctx, played.connections)
        model_says = expected(played.connections, played.frames)
        for number, (frame, (receiver, events)) in enumerate(
                zip(played.frames, model_says, strict=True)):
            before = bench.counts.copy()
            bench.packets.clear()
            bench.frames.clear()
            await bench.send(ctx, frame[0], damaged=frame[1])
            await bench.quiet(ctx)
            host = [each.octets for each in of_kind(model.Diverted, events)]
            assert bench.packets == of_kind(model.FpduReceived, events), number
            assert bench.frames == host, number
            counts = bench.counts - before
            assert counts["host"] == len(host) and counts["lost"] == 0
            assert counts["dropped"] == len(of_kind(model.Dropped, events)), number
            for index in range(CONNECTIONS):
                assert await bench.known(ctx, index) == (
                    receiver.next(index), receiver.peer(index), receiver.broken(index)), number

    bench.run(testbench)


def oddities(wire):
    """Returns frames that differ from a segment's in one detail, which may be wrong or not."""
    whole = wire.frame()
    four = len(wire.source) == 4
    yield from (whole[:-cut] for cut in range(1, 6))
    yield from (whole + bytes(more) for more in range(1, 6))
    yield from (whole[:cut] for cut in range(1, 80))
    yield from (replace(wire, flags=flags).frame() for flags in range(64))
    yield from (replace(wire, offset=offset).frame() for offset in range(16))
    yield from (replace(wire, payload=b"", offset=offset).frame() for offset in range(3, 8))
    yield from (wire.around(6, wire.segment()[:length]) for length in range(22))
    yield from (wire.around(protocol, wire.segment()) for protocol in (7, 17, 132))
    yield from (replace(wire, tags=tags).frame() for tags in (
        ((0x8100, 1),), ((0x88A8, 1), (0x8100, 2)), ((0x8100, 0),) * 2, ((0x8100, 0),) * 3))
    yield from (replace(wire, version=version).frame() for version in range(16))
    yield from (replace(wire, longer=longer).frame() for longer in (-1, 1, 4))
    yield from (wire.ethernet(kind, whole[14:]) for kind in (0x0806, 0x0800, 0x86DD, 0x0801))
    if four:
        yield from (replace(wire, more=1 << bit).frame() for bit in range(16))
        yield from (replace(wire, words=words).frame() for words in range(16))
        yield from (replace(wire, ip_checksum=lambda right, bit=bit: right ^ 1 << bit).frame()
                    for bit in range(16))
        for total in range(21):  # less than the header
            packet = bytearray(whole[14:])
            before = int.from_bytes(packet[2:4], "big")
            digest = int.from_bytes(packet[10:12], "big") + before - total
            packet[2:4] = total.to_bytes(2, "big")
            packet[10:12] = (digest % 0xFFFF).to_bytes(2, "big")
            yield wire.ethernet(0x0800, bytes(packet))
    else:
        yield from (replace(wire, extensions=((kind, bytes((0, 0, 0, 0, 0, 0, 0))),)).frame()
                    for kind in (0, 43, 44, 60))
    yield from (replace(wire, tcp_checksum=lambda right, bit=bit: right ^ 1 << bit).frame()
                for bit in range(16))


@pytest.mark.parametrize("four", [*long(True), False])
def test_each_oddity_is_what_the_model_says(four):
    """Each frame would be taken without its oddity; some are taken with it."""
    end = connection()
    if not four:
        end = replace(end, source=bytes(range(16)), destination=bytes(range(1, 17)))
    receiver = model.TcpReceiver(CONNECTIONS, WINDOW)
    receiver.connect(0, end)
    wire = Wire(end.source, end.destination, end.source_port, end.destination_port, 0,
                bytes(range(1, 22)))
    count, made = len(list(oddities(wire))), {}  # the frames of the present sequence number
    bench = Bench(64)

    async def testbench(ctx):
        await bench.connect(ctx, [end])
        for number in range(count):
            # The first FPDU is long enough to contain all payload.
            payload = b"\x0f\xf0" + wire.payload[2:] if receiver.next(0) == 0 else wire.payload
            at = (end.sequence + receiver.next(0)) % 2**32
            if at not in made:
                made.clear()
                made[at] = list(oddities(replace(wire, sequence=at, payload=payload)))
            frame = made[at][number]
            events = receiver.receive(frame)
            before, frames = bench.counts.copy(), len(bench.frames)
            await bench.send(ctx, frame)
            await ctx.tick().repeat(QUIET)
            assert bench.frames[frames:] == [
                each.octets for each in of_kind(model.Diverted, events)], (number, frame.hex())
            dropped = (bench.counts - before)["dropped"]
            assert dropped == len(of_kind(model.Dropped, events)), (number, frame.hex())
            assert (await bench.known(ctx, 0))[0] == receiver.next(0), (number, frame.hex())

    bench.run(testbench)
    assert receiver.next(0) and not bench.packets


@pytest.mark.parametrize("stall", [0.7, *long(0)])
def test_nothing_waits_for_anything(stall):
    """Frames follow each other with other frames between, and packets are taken now and then: the
    streams are received as they were sent.
    """
    ends = [connection(number, markers=number % 2) for number in range(CONNECTIONS)]
    rng = random.Random(1)
    sent = [fpdus(*(rng.randrange(14, 500) for _ in range(12)), markers=each.markers)
            for each in ends]
    left = []
    for end, packets in zip(ends, sent, strict=True):
        octets = b"".join(packets)
        cuts = [0, *sorted(rng.sample(range(1, len(octets)), 9)), len(octets)]
        left.append(list(segments(end, octets, *map(int.__sub__, cuts[1:], cuts[:-1]))))
    frames = []
    while any(left):
        frames.append(rng.choice([each for each in left if each]).pop(0)[0])
    other = Wire(bytes(4), bytes(4), 1, 2, 0, b"").around(17, bytes(range(100)))
    bench = Bench(64, stall=stall)

    async def testbench(ctx):
        await bench.connect(ctx, ends)
        for frame in frames:
            await bench.send(ctx, frame)
            await bench.send(ctx, other)
        await bench.quiet(ctx)

    bench.run(testbench)
    assert bench.counts == {"taken": len(frames), "host": len(frames), "dropped": 0, "lost": 0}
    assert bench.frames == [other] * len(frames)
    for end, packets in zip(ends, sent, strict=True):
        came = [each for each in bench.packets if each.stream == end.stream]
        assert [each.octets for each in came] == packets
        assert [each.position for each in came] == [
            sum(map(len, packets[:at])) for at in range(len(packets))]


@pytest.mark.parametrize("markers", [False, True])
@pytest.mark.parametrize("lengths", [(502, 502, 14), (501, 498), (503, 14, 15)])
@pytest.mark.parametrize("cut", [1, 4, 512, *long(2, 5, 6, 8)])
def test_an_fpdu_is_cut_where_its_length_says(markers, lengths, cut):
    """Also if a marker follows immediately, and if only a part of the length has arrived, over old
    contents of the ring.
    """
    before, end = connection(), connection(sequence=77, markers=markers)
    filled = b"\x0f\xf0" + b"\xff" * 38
    packets = fpdus(*lengths, markers=markers)
    octets = b"".join(packets)
    bench = Bench(64)

    async def testbench(ctx):
        await bench.connect(ctx, [before])
        for frame, _ in segments(before, filled, len(filled)):
            await bench.send(ctx, frame)
        await bench.write(ctx, 0, TcpField.SETTINGS, 0)
        await bench.connect(ctx, [end])
        for frame, _ in segments(end, octets, cut, len(octets) - cut):
            await bench.send(ctx, frame)
            await ctx.tick().repeat(QUIET)
        await bench.quiet(ctx)

    bench.run(testbench)
    assert [each.octets for each in bench.packets] == packets


def test_a_frame_takes_as_long_as_the_docstring_says():
    """A frame takes its words, and 10 cycles; FPDUs leave in parallel."""
    end = connection()
    packets = fpdus(1400, 1400, 1400)
    frames = [frame for frame, _ in segments(end, b"".join(packets), *map(len, packets))]
    bench = Bench(64)
    ended = []

    async def testbench(ctx):
        await bench.connect(ctx, [end])
        for frame in frames:
            await bench.send(ctx, frame)
            ended.append(bench.cycle)
        await bench.quiet(ctx)

    bench.run(testbench)
    words = -(-(len(frames[0]) + 2) // 4)
    assert ended[2] - ended[1] == words + 10


def test_the_hosts_frames_follow_four_cycles_after_their_end():
    bench = Bench(64)

    async def testbench(ctx):
        for length in (1, 60, 300):
            await bench.send(ctx, bytes(length))
            await bench.quiet(ctx)

    bench.run(testbench)
    # A frame of one word is a beat in the same cycle.
    assert [at - end for at, end in zip(bench.showed, bench.ended, strict=True)] == [3, 4, 4]


@pytest.mark.parametrize("markers", [False, True])
def test_an_fpdu_takes_as_long_as_the_docstring_says(markers):
    """An FPDU takes its words, OVERHEAD cycles, and one cycle for each marker in it."""
    end = connection(markers=markers)
    packets = fpdus(*[46] * 20, markers=markers)
    bench = Bench(64)

    async def testbench(ctx):
        await bench.connect(ctx, [end])
        for frame, _ in segments(end, b"".join(packets), sum(map(len, packets))):
            await bench.send(ctx, frame)
        await bench.quiet(ctx)

    bench.run(testbench)
    assert [each.octets for each in bench.packets] == packets
    plain = len(fpdus(46)[0])
    # From the first beat of one packet to the first beat of the next.
    assert [after - before for before, after in pairwise(bench.began)] == [
        len(packet) // 4 + FpduCutter.OVERHEAD + (len(following) - plain) // 4
        for packet, following in pairwise(packets)]


def test_latency_is_what_the_docstring_says():
    """For any connection that had the last turn."""
    end = connection()
    (packet,) = fpdus(30)
    ((frame, _),) = segments(end, packet, len(packet))

    def latency(wait):
        bench = Bench(64)

        async def testbench(ctx):
            await bench.connect(ctx, [end])
            await ctx.tick().repeat(1 + wait)
            await bench.send(ctx, frame)
            await bench.quiet(ctx)

        bench.run(testbench)
        return bench.began[0] - bench.given[0]

    found = {latency(wait) for wait in range(CONNECTIONS)}
    assert found == {LATENCY}


def test_a_segment_that_comes_as_its_connection_is_looked_at_is_not_forgotten():
    """For any time at which the packets before it leave."""
    end = connection()
    packets = fpdus(30, 30, 30)
    frames = [frame for frame, _ in segments(end, b"".join(packets), *map(len, packets))]

    def came(wait):
        bench = Bench(64, stall=1)

        async def release(ctx):
            await ctx.tick().until(bench.dut.packets.valid)
            await ctx.tick().repeat(wait)
            bench.stall = 0

        async def testbench(ctx):
            await bench.connect(ctx, [end])
            for frame in frames:
                await bench.send(ctx, frame)
            await bench.quiet(ctx)

        bench.run(testbench, release)
        return [each.octets for each in bench.packets]

    # From when the second segment was taken to when the third was.
    for wait in range(20, 50):
        assert came(wait) == packets, wait


def test_a_connection_starts_anew():
    """After the write, nothing of the old connection is left: no octets, no break."""
    end, other = connection(), connection(sequence=5)
    (packet,) = fpdus(WINDOW)
    (short,) = fpdus(20)
    bench = Bench(64)

    async def testbench(ctx):
        await bench.connect(ctx, [end])
        for frame, _ in segments(end, packet, 1000, 1000):
            await bench.send(ctx, frame)
        await bench.quiet(ctx)
        assert await bench.known(ctx, 0) == (1000, (0, 7), True), "an FPDU is longer than the ring"
        assert len(bench.frames) == 1, "nothing is taken on a broken connection"
        await bench.write(ctx, 0, TcpField.SETTINGS, 0)
        assert await bench.known(ctx, 0) == (0, (0, 0), False)
        frames = [frame for frame, _ in segments(other, short, len(short))]
        await bench.send(ctx, frames[0])
        await bench.quiet(ctx)
        assert bench.frames[1:] == frames, "there is no connection"
        await bench.connect(ctx, [other])
        await bench.send(ctx, frames[0])
        await bench.quiet(ctx)
        assert await bench.known(ctx, 0) == (len(short), (0, 7), False)

    bench.run(testbench)
    assert bench.packets == [model.FpduReceived(end.stream, 0, short)]


@pytest.mark.parametrize("streams, there", [(8, True), (4, False)])
def test_there_is_no_connection_of_a_stream_that_there_is_not(streams, there):
    end = connection()
    assert end.stream == 7
    (packet,) = fpdus(20)
    ((frame, _),) = segments(end, packet, len(packet))
    bench = Bench(64, streams=streams)

    async def testbench(ctx):
        await bench.connect(ctx, [end])
        await bench.send(ctx, frame)
        await bench.quiet(ctx)

    bench.run(testbench)
    assert bench.frames == ([] if there else [frame])
    assert len(bench.packets) == there


def test_a_connection_is_written_between_frames():
    """The write waits while a frame is received, and while packets of the old connection leave."""
    end = connection()
    (packet,) = fpdus(100)
    bench = Bench(64)

    async def testbench(ctx):
        await bench.connect(ctx, [end])
        ctx.set(bench.dut.packets.ready, 0)
        bench.stall = 1
        for frame, _ in segments(end, packet, len(packet)):
            await bench.send(ctx, frame)
        ctx.set(bench.dut.write.payload, {"index": 0, "field": TcpField.SETTINGS, "word": 0})
        ctx.set(bench.dut.write.valid, 1)
        await ctx.tick().repeat(200)
        assert not ctx.get(bench.dut.write.ready)
        assert (await bench.known(ctx, 0))[0] == len(packet)
        bench.stall = 0
        await ctx.tick().until(bench.dut.write.ready)
        ctx.set(bench.dut.write.valid, 0)
        await ctx.tick()
        assert (await bench.known(ctx, 0))[0] == 0

    bench.run(testbench)
    assert [each.octets for each in bench.packets] == [packet]


#: Octets on the wire beside those of a frame: preamble, FCS and gap (IEEE 802.3).
BETWEEN = 8 + 4 + 12
#: Octets that arrive per cycle: 1 Gb/s at 62.5 MHz.
PACE = 2


def bad_octets(kind):
    """Returns the octets of a peer that tries to keep the cutter busy, and its segments' lengths.

    zeros: FPDUs of no octets, which DDP never sends. headers: FPDUs with a DDP header and nothing
    else, the shortest legal ones. claim: an FPDU with 120 markers, whose octets arrive one by one.
    """
    if kind == "zeros":
        return bytes(1440), 1440
    if kind == "headers":
        return b"".join(fpdus(*[14] * 72)), 1440
    return fpdus(60000, markers=True)[0][:40], 12, *[1] * 28


@pytest.mark.parametrize("kind", ["headers", *long("zeros", "claim")])
def test_fifteen_bad_peers_cost_a_good_one_nothing(kind):
    """At line rate: no segment of the good peer is left to the host, each of its FPDUs leaves
    before the next but one has arrived, and the host can set up a connection without delay.
    """
    ends = [connection(number, markers=kind == "claim" and number) for number in range(16)]
    good = fpdus(*[200] * 16)
    queues = []
    for end in ends[1:]:
        queues.append(list(segments(end, *bad_octets(kind))))
    left = list(segments(ends[0], b"".join(good), *map(len, good)))
    rng = random.Random(1)
    frames = []  # each with whether the good peer sent it
    while left:
        frames.append((left.pop(0)[0], True))
        for _ in range(2 if kind == "claim" else 1):
            waiting = [queue for queue in queues if queue]
            if waiting:
                frames.append((rng.choice(waiting).pop(0)[0], False))
    bench = Bench(64, connections=16, window=65536)
    sent, written = [], []

    async def testbench(ctx):
        await bench.connect(ctx, ends)
        wire = bench.cycle
        for frame, is_good in frames:
            frame = frame.ljust(60, b"\0")
            while bench.cycle < wire:
                await ctx.tick()
            wire += (len(frame) + BETWEEN) // PACE
            await bench.send(ctx, frame)
            assert bench.cycle <= wire, "the wire has to wait"
            if is_good:
                sent.append(bench.given[-1])
        await bench.quiet(ctx)

    async def host(ctx):
        await ctx.tick().repeat(3000)
        for _ in range(20):
            began = bench.cycle
            await bench.write(ctx, 15, TcpField.SENT, 0)
            written.append(bench.cycle - began)
            await ctx.tick().repeat(97)

    bench.run(testbench, host)
    came = [each for each in bench.packets if each.stream == ends[0].stream]
    assert [each.octets for each in came] == good
    left_at = [at for at, each in zip(bench.began, bench.packets, strict=True)
               if each.stream == ends[0].stream]
    assert all(at < after for at, after in zip(left_at, sent[2:], strict=False))
    # A frame of 1518 octets, during which nothing may be written, has 380 words.
    assert max(written) < 500


def test_connections_take_turns():
    """The nearest one after the last that waits for a turn is chosen; none is passed over."""
    dut = RoundRobin(8)

    async def testbench(ctx):
        for pending in (0x00, 0x01, 0x80, 0x24, 0x99, 0xFF):
            for now in range(8):
                ctx.set(dut.pending, pending)
                ctx.set(dut.now, now)
                await ctx.tick()
                order = [(now + step) % 8 for step in range(1, 9)]
                wanting = [index for index in order if pending >> index & 1]
                assert ctx.get(dut.following) == (wanting or [now])[0]
                assert ctx.get(dut.some) == bool(wanting)

    simulate(dut, testbench)


def test_what_the_host_has_no_room_for_is_lost_and_counted():
    """Whole frames are stored: the first ones, and later ones once there is room again."""
    frames = [bytes([number]) * 1500 for number in range(6)]
    room = 4 * TcpReceiver.STORE // 1500
    bench = Bench(64)

    async def testbench(ctx):
        bench.host = False
        for frame in frames[:-1]:
            await bench.send(ctx, frame)
        await bench.quiet(ctx)
        bench.host = True
        await ctx.tick().repeat(QUIET)
        await bench.quiet(ctx)
        await bench.send(ctx, frames[-1])
        await bench.quiet(ctx)

    bench.run(testbench)
    assert bench.frames == [*frames[:room], frames[-1]]
    assert bench.counts == {
        "taken": 0, "host": room + 1, "dropped": 0, "lost": len(frames) - 1 - room}


@pytest.mark.parametrize("connections, window, text", [
    (3, 4096, "TcpReceiver connections must be a power of two from 2 to 16, not 3"),
    (32, 4096, "TcpReceiver connections must be a power of two from 2 to 16, not 32"),
    (2, 1024, "TcpReceiver window must be a power of two from 2048 to 65536, not 1024"),
    (2, "4096", "TcpReceiver window must be a power of two from 2048 to 65536, not '4096'"),
])
def test_sizes_that_cannot_be_are_refused(connections, window, text):
    refused(text, TcpReceiver, 64, connections=connections, window=window, streams=2)
