"""Tests the receive front of SCTP against Scapy and the model, with real and malformed frames.

The captures of Linux are read from a folder beside the project; without it, these tests are
skipped.
"""

import random
import struct
from pathlib import Path
from typing import NamedTuple

import pytest
from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In
from ddp_rnic.hdl.dma.buffer import PacketBuffer
from ddp_rnic.hdl.lib.crc32c import Crc32c
from ddp_rnic.hdl.lib.testing import beats_of, decoded, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import first, long
from ddp_rnic.hdl.sctp.receiver import Fate, SctpReceiver
from ddp_rnic.hdl.sctp.walker import Kind
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.net import AssociationKey, insert
from ddp_rnic.hdl.spec.sctp import MOST_CHUNKS
from ddp_rnic.sim.capture.pcap import read_frames
from ddp_rnic.sim.model.sctp import (
    Chunk,
    DataChunk,
    Packet,
    Ppid,
    ProtocolError,
    SackChunk,
    checksum,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.layers.sctp import SCTP
from scapy.packet import Raw

CAPTURES = sorted(
    (Path(__file__).resolve().parents[3].parent / "shared" / "captures").glob("sctp/*.pcap")
)
#: Cycles from a frame's last beat to its first item.
LATENCY = {64: 76, 512: 78}
WIDTHS = (64, 512)
NARROW = [64, *long(512)]


class Entry(NamedTuple):
    """The contents of the table's entry for an association."""

    association: int
    first: int
    streams: int


class Came(NamedTuple):
    """An item that was output, and the octets of its chunk or frame in the packet buffer."""

    item: object
    octets: bytes


class Front(wiring.Component):
    """Connects the receiver, the packet buffer and the CRC unit."""

    def __init__(self, config):
        self.config = config
        self.receiver = receiver = SctpReceiver(config)
        members = receiver.signature.members
        beat = range(config.buffer_octets // config.octets)
        super().__init__(
            {name: members[name] for name in ("i", "write", "store", "go", "o", "busy")}
            | {"free": In(stream.Signature(beat, always_ready=True))}
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.receiver = receiver = self.receiver
        m.submodules.buffer = buffer = PacketBuffer(self.config)
        m.submodules.crc = crc = Crc32c(self.config.width, granule=4)
        wiring.connect(m, wiring.flipped(self.i), receiver.i)
        wiring.connect(m, wiring.flipped(self.write), receiver.write)
        wiring.connect(m, wiring.flipped(self.free), buffer.free)
        wiring.connect(m, receiver.slices, crc.i)
        wiring.connect(m, crc.o, receiver.checksums)
        wiring.connect(m, receiver.store, wiring.flipped(self.store))
        wiring.connect(m, receiver.o, wiring.flipped(self.o))
        m.d.comb += [
            buffer.store.valid.eq(receiver.store.valid),
            buffer.store.payload.eq(receiver.store.payload),
            buffer.next.eq(receiver.beats),
            receiver.space.eq(buffer.space),
            receiver.go.eq(self.go),
            self.busy.eq(receiver.busy),
        ]
        return m


class Bench:
    """Writes associations, sends frames, and keeps the octets of each item that comes.

    The sender waits in a share ``idle`` of the cycles, and items in ``stall``; no item may leave
    for the first ``late`` cycles.
    """

    def __init__(self, config, frames, entries, *, idle, stall, damaged, late):
        self.config, self.frames, self.entries = config, frames, entries
        self.idle, self.stall, self.damaged, self.late = idle, stall, damaged, late
        self.dut = shared(Front, config)
        self.rng = random.Random(config.width)
        self.ring = bytearray(config.buffer_octets)
        self.came, self.cycles = [[]], 0

    async def source(self, ctx):
        dut, table = self.dut, {}
        for key in self.entries:
            for move in insert(table, key, self.config.associations):
                table[move.way, move.slot] = move.key
                values = self.entries[move.key]._asdict() | move.key._asdict() | {"valid": 1}
                ctx.set(dut.write.payload, {"way": move.way, "slot": move.slot, "entry": values})
                ctx.set(dut.write.valid, 1)
                await ctx.tick()
                ctx.set(dut.write.valid, 0)
                await ctx.tick().repeat(3)
        for number, frame in enumerate(self.frames):
            beats = beats_of(frame, self.config.octets, error=number in self.damaged)
            await send(ctx, dut.i, beats, idle=self.idle, rng=self.rng)

    async def watch(self, ctx):
        dut, size, went = self.dut, self.config.octets, 0
        while len(self.came) <= len(self.frames) or ctx.get(dut.busy):
            go = self.cycles >= self.late and self.rng.random() >= self.stall
            ctx.set(dut.go, go)
            *_, stored, store, valid, item = await ctx.tick().sample(
                dut.store.valid, Value.cast(dut.store.payload), dut.o.valid,
                Value.cast(dut.o.payload),
            )
            self.cycles += 1
            if stored:
                store = decoded(dut.store, store)
                at = store.address * size
                self.ring[at : at + size] = store.data.to_bytes(size, "little")
            assert not valid or went & 4, "an item left without leave"
            went = (went << 1 | go) & 7
            ctx.set(dut.free.valid, 0)
            if valid:
                self.take(ctx, decoded(dut.o, item))

    def take(self, ctx, item):
        """Keeps an item; frees the frame's octets after its last item."""
        octets, length = len(self.ring), item.length
        if item.kind == Kind.FRAME:
            length = (item.payload - item.start) * 4 % octets
            beat = -(-item.payload // self.config.words)
            ctx.set(self.dut.free.valid, 1)
            ctx.set(self.dut.free.payload, beat % (octets // self.config.octets))
        taken = (bytes(self.ring) * 2)[4 * item.start :][: min(length, octets)]
        self.came[-1].append(Came(item, taken))
        if item.kind == Kind.FRAME:
            self.came.append([])


def run(width, frames, entries=None, *, idle=0.0, stall=0.0, damaged=(), late=0, octets=32768):
    """Sends frames; returns the items, a list for each frame, and the number of cycles in all."""
    config = RnicConfig(width=width, buffer_octets=octets)
    bench = Bench(
        config, frames, entries or {}, idle=idle, stall=stall, damaged=damaged, late=late)
    chunks = sum(1 + len(frame) // 4 for frame in frames)
    beats = sum(len(frame) // config.octets + 2 for frame in frames)
    limit = 1000 + late + int((beats + chunks) * 3 / (1 - idle) / (1 - stall))
    simulate(bench.dut, bench.watch, background=[bench.source], limit=limit)
    assert not bench.came.pop(), "items after the last frame"
    return bench.came, bench.cycles


def key_of(packet):
    """Returns the key of a frame that Scapy dissected, and its SCTP packet; None without one."""
    if SCTP not in packet or IP not in packet:
        return None
    network, sctp = packet[IP], packet[SCTP]
    if network.frag or network.flags.MF:
        return None

    def number(address):
        return int.from_bytes(bytes(map(int, address.split("."))), "little")

    source, destination = number(network.src), number(network.dst)
    return AssociationKey(source, destination, sctp.sport, sctp.dport, sctp.tag, False)


def sctp_octets(frame):
    """Returns the position of the SCTP packet in an untagged IPv4 frame."""
    start = 14 + 4 * (frame[14] & 15)
    return start, frame[start : 14 + struct.unpack_from(">H", frame, 16)[0]]


def check_frame(frame, came, entries, where):
    """Compares a frame's items with Scapy's and the model's reading; returns the frame's fate."""
    last = came[-1].item
    assert {item.fate for item, _ in came} == {last.fate}, f"{where}: several fates"
    assert came[-1].octets[2:][: len(frame)] == frame, f"{where}: not stored as it came"
    assert len(came[-1].octets) == (len(frame) + 5) // 4 * 4, where
    assert last.length == (len(frame) + 1) % 4, where
    entry = entries.get(key_of(Ether(frame)))
    if entry is None:
        assert last.fate == Fate.EXCEPTION, f"{where}: {last.fate}, of no association"
        return Fate.EXCEPTION
    start, octets = sctp_octets(frame)
    try:
        packet = Packet.parse(octets)
    except ProtocolError as error:
        assert last.fate == Fate.DROPPED, f"{where}: {last.fate}, {error}"
        return Fate.DROPPED
    assert last.fate == Fate.TAKEN, f"{where}: {last.fate}"
    assert last.association == entry.association, where
    raw = [bytes(part) for part in split(octets[12:])]
    assert len(came) == len(raw) + 1 == len(packet.chunks) + 1, f"{where}: {len(came)} items"
    assert [item.last for item, _ in came[:-1]] == [0] * (len(raw) - 1) + [1] * bool(raw), where
    for (item, seen), chunk, part in zip(came, packet.chunks, raw, strict=False):
        assert item.association == entry.association, where
        assert not item.last or item.end == last.payload, where
        assert seen == part, f"{where}: start or length of a chunk"
        assert item.kind == kind_of(chunk), f"{where}: {item.kind} of {chunk}"
        if not isinstance(chunk, DataChunk):
            continue
        assert item.tsn == chunk.tsn, where
        assert item.ddp == (chunk.stream < entry.streams), where
        if item.ddp:
            assert item.stream == (entry.first + chunk.stream) % 65536, where
        if item.kind not in (Kind.SEGMENT, Kind.CONTROL):
            continue
        body = chunk.payload[2:]
        assert item.ssn == int.from_bytes(chunk.payload[:2], "big"), where
        header = item.header.to_bytes(20, "little")
        assert header.startswith((struct.pack(">H", len(body)) + body)[:20]), where
        ahead = 2 if item.kind == Kind.CONTROL else 14 if body[0] & 0x80 else 18
        assert (item.payload - item.start) % 8192 == (18 + ahead) // 4, where
    return Fate.TAKEN


def split(octets):
    """Returns the chunks without their padding."""
    while octets:
        (length,) = struct.unpack_from(">H", octets, 2)
        yield octets[:length]
        octets = octets[length + -length % 4 :]


def kind_of(chunk):
    """Returns the kind of a chunk for DDP (RFC 5043 sections 5.2, 9 and 10)."""
    if not isinstance(chunk, DataChunk):
        return Kind.CHUNK
    whole = chunk.beginning and chunk.ending
    if chunk.unordered and not whole and chunk.ppid in (Ppid.SEGMENT, Ppid.CONTROL):
        return Kind.FRAGMENT
    if not chunk.unordered or not whole or len(chunk.payload) < 2:
        return Kind.REFUSED
    return {Ppid.SEGMENT: Kind.SEGMENT, Ppid.CONTROL: Kind.CONTROL}.get(chunk.ppid, Kind.REFUSED)


def spoilt(rng, frame):
    """Returns the frame with one bit inverted in its IP packet."""
    start, octets = sctp_octets(frame)
    at = rng.randrange(14, start + len(octets))
    return frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]


def captured(path, budget, width):
    """Returns frames of a capture, from all of it, and an entry for most of its associations."""
    frames = [frame.octets for frame in read_frames(path)]
    keys = {key_of(Ether(frame)): None for frame in frames}
    keys = sorted(key for key in keys if key and key.tag)
    rng = random.Random(f"{path.name} {width}")
    entries = {
        key: Entry(number, rng.getrandbits(16), rng.choice((1, 2, 65535)))
        for number, key in enumerate(keys)
        if number % 4 != 3
    }
    step = max(1, sum(map(len, frames)) // budget)
    return rng, frames[rng.randrange(step) :: step], entries


@pytest.mark.skipif(not CAPTURES, reason="needs the captures of real stacks: shared/captures")
@pytest.mark.parametrize("width", NARROW)
@pytest.mark.parametrize("path", first(CAPTURES, 3), ids=lambda path: path.stem)
def test_what_linux_sent_comes_out_as_others_read_it(path, width, pytestconfig):
    budget = 14000 if width == 64 else 40000
    if not pytestconfig.getoption("--long"):
        budget //= 2
    rng, frames, entries = captured(path, budget, width)
    assert len(frames) >= 10
    came, _ = run(width, frames, entries, idle=0.1, stall=0.2)
    fates = {
        check_frame(frame, items, entries, f"{path.name}, frame {number}")
        for number, (frame, items) in enumerate(zip(frames, came, strict=True))
    }
    assert Fate.TAKEN in fates and Fate.DROPPED not in fates


@pytest.mark.skipif(not CAPTURES, reason="needs the captures of real stacks: shared/captures")
@pytest.mark.parametrize("width", NARROW)
def test_of_a_packet_with_a_wrong_bit_nothing_is_taken(width):
    frames, whole = [], []
    entries = {}
    for path in CAPTURES:
        rng, some, known = captured(path, 3000 if width == 64 else 9000, width)
        for frame in some:
            wrong = SCTP in Ether(frame) and rng.random() < 0.6
            whole.append(not wrong)
            frames.append(spoilt(rng, frame) if wrong else frame)
        for key, entry in known.items():
            entries[key] = entry._replace(association=len(entries) % 64)
    came, _ = run(width, frames, entries)
    for number, (frame, items, good) in enumerate(zip(frames, came, whole, strict=True)):
        if good:
            check_frame(frame, items, entries, f"frame {number}")
        else:
            assert Fate.TAKEN not in [item.fate for item, _ in items], f"frame {number}"
            assert items[-1].octets[2:][: len(frame)] == frame
    assert whole.count(False) > 10


LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
FOUR = IP(src="10.7.0.1", dst="10.7.0.2", proto=132)


def packet_of(chunks, tag=77):
    return Packet(5000, 5001, tag, tuple(chunks)).encode()


def carried(packet):
    return bytes(LINK / FOUR / Raw(packet))


def ours(**options):
    """Returns the association of the packets that :func:`packet_of` makes."""
    key = key_of(Ether(carried(packet_of([]))))
    return {key: Entry(**{"association": 9, "first": 40, "streams": 4} | options)}


def segment(size, stream=1, tsn=5):
    return DataChunk(tsn, stream, Ppid.SEGMENT, struct.pack(">H", tsn) + bytes(range(size)))


@pytest.mark.parametrize("width", NARROW)
def test_a_packet_of_too_many_chunks_leaves_whole_and_nothing_hangs(width):
    most = MOST_CHUNKS
    counts = (3, most - 1, most, most + 300, 2)
    frames = [carried(packet_of([Chunk(11)] * count)) for count in counts]
    came, _ = run(width, frames, ours())
    for count, frame, items in zip(counts, frames, came, strict=True):
        fate = Fate.TAKEN if count < most else Fate.EXCEPTION
        assert {item.fate for item, _ in items} == {fate}, count
        assert [item.kind for item, _ in items] == [
            *[Kind.CHUNK] * min(count, most), Kind.FRAME
        ]  # fmt: skip
        assert items[-1].octets[2:][: len(frame)] == frame


@pytest.mark.parametrize("width", WIDTHS)
def test_every_frame_has_its_own_fate(width):
    good = packet_of([segment(40), SackChunk(1), segment(20, stream=3), segment(20, stream=4)])
    cases = [
        (Fate.TAKEN, carried(good)),
        (Fate.EXCEPTION, carried(packet_of([segment(40)], tag=78))),
        (Fate.EXCEPTION, bytes(LINK / ARP())),
        (Fate.DROPPED, carried(good[:8] + bytes(4) + good[12:])),
        (Fate.EXCEPTION, bytes(LINK / IP(src="10.7.0.1", dst="10.7.0.2", proto=132, flags="MF")
                               / Raw(good))),
        (Fate.TAKEN, carried(packet_of([]))),
        (Fate.EXCEPTION, carried(good)[:-4]),
        (Fate.DROPPED, carried(good)),
        (Fate.EXCEPTION, carried(seal(b"\x0b\0\0\x0c" + bytes(4)))),
        (Fate.TAKEN, carried(good) + b"padding"),
        (Fate.DROPPED, carried(good + b"odd")),
        (Fate.TAKEN, bytes(LINK / IP(src="10.7.0.1", dst="10.7.0.2")
                           / UDP(sport=9899, dport=9899) / Raw(good))),
        (Fate.EXCEPTION, bytes(LINK / IPv6() / Raw(good))),
        (Fate.EXCEPTION, b"\0"),
        (Fate.TAKEN, carried(good)),
    ]  # fmt: skip
    came, _ = run(width, [frame for _, frame in cases], ours(), damaged={7}, idle=0.2)
    for number, ((fate, frame), items) in enumerate(zip(cases, came, strict=True)):
        assert {item.fate for item, _ in items} == {fate}, f"case {number}"
        assert items[-1].octets[2:][: len(frame)] == frame, f"case {number}"
    kinds = [Kind.SEGMENT, Kind.CHUNK, Kind.SEGMENT, Kind.SEGMENT, Kind.FRAME]
    for number in (0, 9, 11, 14):
        assert [item.kind for item, _ in came[number]] == kinds
        streams = [item.stream for item, _ in came[number]]
        assert (streams[0], streams[2]) == (41, 43)
        # The association has three DDP Streams.
        assert [item.ddp for item, _ in came[number]][2:4] == [1, 0]
        assert {item.association for item, _ in came[number]} == {9}


def seal(chunks):
    """Returns a packet with these octets as its chunks, and a right checksum."""
    octets = struct.pack(">HHI4x", 5000, 5001, 77) + chunks
    return octets[:8] + checksum(octets) + octets[12:]


@pytest.mark.parametrize("width", NARROW)
def test_a_frame_that_the_buffer_cannot_hold_is_dropped_alone(width):
    good = carried(packet_of([segment(40)]))
    frames = [good, carried(packet_of([segment(40)] * 70)), bytes(9000), good, good]
    came, _ = run(width, frames, ours(), octets=4096)
    fates = [items[-1].item.fate for items in came]
    assert fates == [Fate.TAKEN, Fate.DROPPED, Fate.DROPPED, Fate.TAKEN, Fate.TAKEN]


@pytest.mark.parametrize("width", NARROW)
def test_nothing_is_lost_while_nothing_may_leave(width):
    good = carried(packet_of([segment(20, tsn=4), SackChunk(1)]))
    frames = [b"\1\2\3"] * 300 + [good, b"\0" * 60] * 60
    came, _ = run(width, frames, ours(), late=1500)
    assert [items[-1].octets[2:][: len(f)] for items, f in zip(came, frames, strict=True)] == frames
    assert [len(items) for items in came[300:]] == [3, 1] * 60


@pytest.mark.parametrize("width", NARROW)
def test_one_beat_or_item_per_cycle(width):
    for chunks, count in (([segment(100)], 24), ([SackChunk(1)] * 8, 20), ([], 60)):
        frames = [carried(packet_of(chunks))] * count
        _, few = run(width, frames[: count // 2], ours())
        _, cycles = run(width, frames, ours())
        words = width // 32
        beats = -(-(len(frames[0]) + 2) // (4 * words))
        starts = [0] * beats
        at = 12
        for chunk in chunks:
            starts[at // words] += 1
            at += len(chunk.encode()) // 4
        starts[-1] += 1
        visits = sum(max(1, n) for n in starts)
        assert cycles - few <= visits * (count - count // 2) + 8, chunks


@pytest.mark.parametrize("width", NARROW)
def test_latency_is_what_the_docstrings_say(width):
    """From the last beat of a frame to its first item, whatever the frame's length."""
    config = RnicConfig(width=width)
    found = set()
    for size in (1, 40, 133):
        dut = shared(Front, config)
        frame = carried(packet_of([segment(size)]))
        # A frame that becomes a beat longer by the shift ends a cycle later.
        longer = (len(frame) - 1) % config.octets >= config.octets - 2

        async def bench(ctx, dut=dut, frame=frame, longer=longer):
            ctx.set(dut.go, 1)
            await ctx.tick().repeat(4)
            await send(ctx, dut.i, beats_of(frame, config.octets))
            latency = 0
            while not ctx.get(dut.o.valid):
                await ctx.tick()
                latency += 1
            found.add(latency + 1 - longer)

        simulate(dut, bench)
    assert found == {LATENCY[width]}
