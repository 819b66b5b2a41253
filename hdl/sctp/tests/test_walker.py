"""Tests the SCTP walker: frames in; chunks, verdicts and stored octets out (RFC 9260, RFC 5043)."""

import random
import struct
from dataclasses import dataclass

import pytest
from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.lib.crc32c import Crc32c
from ddp_rnic.hdl.lib.testing import decoded, shared, simulate
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.sctp.frame import FrameBeat
from ddp_rnic.hdl.sctp.walker import Kind, PacketJudge, SctpSegment, SctpWalker
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig
from ddp_rnic.sim.model.sctp import Chunk, DataChunk, Packet, Ppid, SackChunk, checksum


@dataclass(frozen=True)
class Frame:
    """A frame as the walker's input: the packet begins at word ``at``, if there is one."""

    octets: bytes
    at: int | None = None
    length: int = 0

    @property
    def packet(self):
        return self.octets[4 * self.at : 4 * self.at + self.length]


def carry(packet, at, *, padding=0):
    """Returns a packet in a frame, with ``at`` words before it and Ethernet padding after it."""
    return Frame(bytes(range(0x40, 0x40 + 4 * at)) + packet + bytes(padding), at, len(packet))


def seal(chunks, tag=0x01020304):
    """Returns a packet with these octets as its chunks, and a right checksum."""
    octets = struct.pack(">HHI4x", 5000, 5001, tag) + chunks
    return octets[:8] + checksum(octets) + octets[12:]


def segment(rng, size, *, tagged=None, ssn=None, tsn=None):
    """Returns a DDP Segment Chunk with ``size`` octets of user data after the DDP-SSN."""
    body = bytearray(rng.randbytes(size))
    if size and tagged is not None:
        body[0] = body[0] & 0x7F | tagged << 7
    ssn = rng.getrandbits(16) if ssn is None else ssn
    tsn = rng.getrandbits(32) if tsn is None else tsn
    payload = struct.pack(">H", ssn) + body
    return DataChunk(tsn, rng.getrandbits(16), Ppid.SEGMENT, payload, rng.getrandbits(16))


def any_chunk(rng, longest=200):
    """Returns a chunk of any kind and length."""
    size = rng.choice((rng.randrange(40), rng.randrange(longest)))
    match rng.randrange(8):
        case 0:
            kind = rng.choice((rng.randrange(1, 256), rng.choice((1, 2, 6, 10, 14, 15))))
            return Chunk(kind, rng.randrange(256), rng.randbytes(rng.randrange(9)))
        case 1:
            return SackChunk(rng.getrandbits(32))
        case 2:
            payload = rng.randbytes(2) + struct.pack(">H", rng.randrange(1, 5)) + bytes(size)
            return DataChunk(rng.getrandbits(32), 3, Ppid.CONTROL, payload)
        case 3:
            flags = [rng.random() < 0.8 for _ in range(4)]
            ppid = rng.choice((0, 15, 16, 17, 18, 16 << 8, 17 << 24, 0x10000010, 0x00010011))
            return DataChunk(1, 2, ppid, rng.randbytes(1 + size), 3, *flags)
        case _:
            return segment(rng, size, tagged=rng.randrange(2))


def packet_of(chunks, tag=7):
    return Packet(5000, 5001, tag, tuple(chunks)).encode()


def wanted(frame, words):
    """Returns the items that a frame must give, as (kind, fields)."""
    size = -(-len(frame.octets) // 4)
    items = []
    good = over = False
    if frame.at is not None:
        # A packet with an odd length, or none, is walked to the end of the frame's beats; one that
        # is too long, to its own end if that is before.
        end = frame.at + frame.length // 4
        limit = -(-size // words) * words
        if frame.length and frame.length % 4 == 0:
            limit = min(limit, end)
        at = frame.at + 3
        good = at == limit == end <= size
        octets = frame.octets + bytes(4 * (limit + 16))
        while at < limit:
            kind, flags, length = struct.unpack_from(">BBH", octets, 4 * at)
            fields = {"start": at, "length": length}
            what = Kind.CHUNK
            if over:
                pass
            elif kind == 0 and (length < 17 or 4 * (limit - at) < 20):
                what = None  # its framing is broken: any kind of DATA chunk
            elif kind == 0:
                what = Kind.REFUSED
                tsn, stream, _, ppid, ssn = struct.unpack_from(">IHHIH", octets, 4 * at + 4)
                fields |= {"tsn": tsn, "stream": stream}
                if flags & 4 and flags & 3 != 3 and ppid in (16, 17):
                    what = Kind.FRAGMENT
                elif flags & 7 == 7 and ppid in (16, 17) and length >= 18:
                    what = Kind.SEGMENT if ppid == 16 else Kind.CONTROL
                    after = 5 if ppid == 17 else 8 if octets[4 * at + 18] & 0x80 else 9
                    fields |= {"ssn": ssn, "payload": at + after}
                    body = octets[4 * at + 18 : min(4 * at + length, 4 * limit)][:18]
                    fields["header"] = struct.pack(">H", length - 18) + body
            items.append((what, fields))
            over |= 15 <= kind < 128 or kind in (1, 2, 6, 14)
            if length < 4 or (kind == 0 and length < 17):
                break
            at += (length + 3) // 4
            good = at == limit == end <= size and frame.length % 4 == 0
    framing = frame.at is not None and not good
    last = {"start": 0, "payload": size, "chunks": len(items), "sctp": frame.at is not None}
    items.append((Kind.FRAME, last | {"framing": framing, "oversize": 0}))
    return items


class Front(wiring.Component):
    """Connects the walker, its CRC unit and the judge."""

    def __init__(self, config):
        self.config = config
        self.walker = SctpWalker(config)
        super().__init__(
            {
                "i": In(stream.Signature(FrameBeat(config.width))),
                "go": In(1),
                "store": Out(self.walker.store.signature),
                "segments": Out(stream.Signature(SctpSegment(config), always_ready=True)),
                "verdicts": Out(
                    stream.Signature(data.StructLayout({"good": 1}), always_ready=True)
                ),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.walker = walker = self.walker
        m.submodules.crc = crc = Crc32c(self.config.width, granule=4)
        m.submodules.judge = judge = PacketJudge()
        wiring.connect(m, wiring.flipped(self.i), walker.i)
        wiring.connect(m, walker.slices, crc.i)
        wiring.connect(m, crc.o, judge.checksums)
        wiring.connect(m, walker.checksums, judge.expected)
        wiring.connect(m, judge.o, wiring.flipped(self.verdicts))
        wiring.connect(m, walker.segments, wiring.flipped(self.segments))
        wiring.connect(m, walker.store, wiring.flipped(self.store))
        m.d.comb += walker.go.eq(self.go)
        return m


def beats_of(frame, width):
    """Yields the fields of a frame's beats."""
    octets, words = width // 8, width // 32
    for at in range(0, len(frame.octets), octets):
        part = frame.octets[at : at + octets]
        here = frame.at is not None and 0 <= frame.at - at // 4 < words
        yield {
            "data": int.from_bytes(part, "little"),
            "used": (1 << -(-len(part) // 4)) - 1,
            "first": not at,
            "last": at + octets >= len(frame.octets),
            "sctp": 1 << frame.at - at // 4 if here else 0,
            "octets": frame.length if here else 0xFFFF,
        }


def run_front(width, frames, *, idle=0.0, stall=0.0, seed=1, config=None):
    """Returns items, verdicts, the stored octets and the cycles in which beats were stored."""
    config = config or RnicConfig(width=width, buffer_octets=1 << 16)
    dut = shared(Front, config)
    octets = width // 8
    items, verdicts, cycles = [], [], []
    ring = bytearray(config.buffer_octets)
    rng = random.Random(seed)
    beats = [beat for frame in frames for beat in beats_of(frame, width)]
    visits = len(beats) + sum(len(wanted(frame, width // 32)) for frame in frames)
    limit = 200 + int(visits * 4 / (1 - idle) / (1 - stall))

    async def source(ctx):
        for fields in beats:
            while rng.random() < idle:
                ctx.set(dut.i.payload.sctp, rng.getrandbits(width // 32))
                await ctx.tick()
            ctx.set(dut.i.payload, fields)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)

    async def gate(ctx):
        while True:
            ctx.set(dut.go, rng.random() >= stall)
            await ctx.tick()

    async def watch(ctx):
        cycle = quiet = 0
        async for (
            *_,
            item,
            item_valid,
            verdict,
            verdict_valid,
            store,
            store_valid,
        ) in ctx.tick().sample(
            Value.cast(dut.segments.payload),
            dut.segments.valid,
            Value.cast(dut.verdicts.payload),
            dut.verdicts.valid,
            Value.cast(dut.store.payload),
            dut.store.valid,
        ):
            cycle += 1
            if item_valid:
                items.append(decoded(dut.segments, item))
            if verdict_valid:
                verdicts.append(decoded(dut.verdicts, verdict).good)
            if store_valid:
                cycles.append(cycle)
                store = decoded(dut.store, store)
                ring[store.address * octets : (store.address + 1) * octets] = store.data.to_bytes(
                    octets, "little"
                )
            quiet = 0 if ctx.get(dut.i.valid) or ctx.get(dut.walker.busy) else quiet + 1
            if quiet > 30:
                return

    simulate(dut, source, watch, background=[gate], limit=limit)
    return items, verdicts, ring, cycles


def check(width, frames, **options):
    """Runs frames and checks all outputs; returns the result of ``run_front``."""
    words = width // 32
    front = run_front(width, frames, **options)
    items, verdicts, ring, cycles = front
    places = len(ring) // 4
    assert sum(len(frame.octets) + 4 * words for frame in frames) < len(ring), "overwritten"
    got = iter(items)
    judged = iter(verdicts)
    base = 0
    for number, frame in enumerate(frames):
        want = wanted(frame, words)
        for k, (kind, fields) in enumerate(want):
            where = f"frame {number} of {len(frame.octets)} octets, item {k} of {len(want)}"
            item = next(got, None)
            assert item is not None, f"{where}: nothing came, expected {kind}"
            of_data = Kind.SEGMENT, Kind.CONTROL, Kind.REFUSED, Kind.FRAGMENT
            kinds = (kind,) if kind else of_data
            assert item.kind in kinds, f"{where}: kind {item.kind}, expected {kind} {fields}"
            for name, value in fields.items():
                if name == "header":
                    seen = item.header.to_bytes(20, "little")[: len(value)]
                elif name in ("start", "payload"):
                    seen = (getattr(item, name) - base) % places
                else:
                    seen = getattr(item, name)
                assert seen == value, f"{where}: {name} {seen!r}, expected {value!r}"
        kept = ring[4 * base : 4 * base + len(frame.octets)]
        assert kept == frame.octets, f"frame {number}: stored octets"
        base += -(-len(frame.octets) // (4 * words)) * words
        if frame.at is not None:
            good = next(judged, None)
            assert good is not None, f"frame {number}: no verdict"
            packet = frame.packet
            if len(packet) == frame.length and len(packet) >= 12 and len(packet) % 4 == 0:
                right = checksum(packet) == packet[8:12]
                assert good == right, f"frame {number}: checksum good {good}, expected {right}"
    assert next(got, None) is None and next(judged, None) is None
    return front


def visits_of(frames, width):
    """Returns the cycles that each beat must take: one for each item, and at least one."""
    words = width // 32
    for frame in frames:
        count = -(-len(frame.octets) // (4 * words))
        starts = [0] * count
        for kind, fields in wanted(frame, words):
            starts[count - 1 if kind == Kind.FRAME else fields["start"] // words] += 1
        yield from (max(1, n) for n in starts)


def spoiled(frame, at=9):
    """Returns the frame with a bit of its packet inverted."""
    octets = bytearray(frame.octets)
    octets[4 * frame.at + at] ^= 0x10
    return Frame(bytes(octets), frame.at, frame.length)


PLACES = (9, 14, 11, 7, 24)  # words before the packet, of IPv4, IPv6, UDP, shorter, longer


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("idle, stall", [(0.0, 0.0), (0.3, 0.4), *long((0.4, 0.0))])
def test_bundles_of_any_chunks_come_out_whatever_the_gaps(width, idle, stall):
    rng = random.Random(width)
    frames = []
    for _ in range(36):
        if rng.random() < 0.2:
            frames.append(
                Frame(rng.randbytes(rng.choice((1, 4, 60, 62, 64, rng.randrange(1, 200)))))
            )
            continue
        chunks = [any_chunk(rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))]
        at = rng.choice((*PLACES, rng.randrange(20)))
        frames.append(carry(packet_of(chunks), at, padding=rng.choice((0, 0, 1, 6, 40, 46))))
        if rng.random() < 0.3:
            frames[-1] = spoiled(frames[-1], rng.choice((0, 5, 8, 9, 10, 11)))
    check(width, frames, idle=idle, stall=stall, seed=width + 1)


@pytest.mark.parametrize("width", NARROW)
def test_segments_of_every_length_begin_at_every_word(width):
    rng = random.Random(width)
    words = width // 32
    frames = []
    for k in range(2 * words + 3):
        chunks = [segment(rng, 2 + (7 * k + j) % 53, tagged=j & 1) for j in range(3)]
        frames.append(carry(packet_of(chunks), 9 + k % words))
    check(width, frames)


@pytest.mark.parametrize("width", NARROW)
def test_small_chunks_fill_beats_and_frames_end_with_them(width):
    words = width // 32
    frames = [Frame(bytes(62))]
    for k in range(words + 2):
        chunks = [Chunk(11, k, bytes(4 * (j % 3 == 2))) for j in range(k % 7 + words)]
        frames.append(carry(packet_of(chunks), k % 16))
    frames.append(carry(packet_of([]), 9, padding=12))
    frames += [carry(packet_of([Chunk(14)]), k) for k in range(words)]
    # One packet per frame; at 512 bits, one per beat.
    frames += [carry(packet_of([]), 9)] * 24
    check(width, frames)


@pytest.mark.parametrize("width", NARROW)
def test_lengths_that_do_not_add_up_break_the_framing_of_their_frame_alone(width):
    rng = random.Random(width)
    whole = Chunk(11, 0, bytes(8)).encode()
    data_chunk = segment(rng, 30, tagged=1).encode()
    frames = []
    for k, length in enumerate(
        (0, 1, 3, 4, 5, 15, 16, 17, 18, 19, 20, 47, 48, 49, 50, 52, 53, 65535)
    ):
        for kind in (0, 11):
            chunk = bytes([kind]) + data_chunk[1:2] + struct.pack(">H", length) + data_chunk[4:]
            chunks = (whole, b"")[k % 2] + chunk + (b"", whole)[k // 2 % 2]
            frames.append(carry(seal(chunks), rng.choice(PLACES), padding=rng.choice((0, 9))))
        if k % 3 == 0:
            frames.append(carry(packet_of([segment(rng, 20)]), 9))
    check(width, frames)


@pytest.mark.parametrize("width", NARROW)
def test_packets_of_wrong_lengths_and_frames_cut_off_break_alone(width):
    rng = random.Random(width)
    frames = []
    for k in range(1, 4):
        packet = packet_of([segment(rng, 27, tagged=0), SackChunk(5)])
        frame = carry(packet, 9, padding=k)
        frames.append(Frame(frame.octets, 9, len(packet) + k))
        frames.append(Frame(frame.octets, 9, len(packet) - k))
        frames.append(carry(packet, 9))
    for length in (0, 4, 8, 12, 1, 11, 13, 65532, 65535):
        for at in (rng.randrange(16), 9):
            frames.append(Frame(carry(seal(bytes(30)), at).octets, at, length))
            frames.append(carry(packet_of([Chunk(14)]), 9))
    packet = packet_of([segment(rng, 27, tagged=1), SackChunk(5)])
    for size in range(37, len(packet) + 36, 5):
        frames.append(Frame(carry(packet, 9).octets[:size] or b"\0", 9, len(packet)))
    frames.append(carry(packet, 9))
    check(width, frames)


@pytest.mark.parametrize("width", NARROW)
def test_damage_of_any_kind_stays_in_its_frame(width):
    rng = random.Random(width + 5)
    frames = []
    for _ in range(40):
        chunks = bytearray(b"".join(any_chunk(rng, 120).encode() for _ in range(rng.randrange(5))))
        if chunks and rng.random() < 0.4:
            chunks[rng.randrange(len(chunks))] = rng.choice((0, 1, 4, 20, rng.randrange(256)))
        frame = carry(seal(bytes(chunks)), rng.randrange(20), padding=rng.choice((0, 0, 1, 6, 40)))
        octets, length = frame.octets, frame.length
        match rng.randrange(6):
            case 0:
                octets = octets[: max(4 * frame.at + 1, len(octets) - rng.randrange(50))]
            case 1:
                length = rng.randrange(length + 9)
        frames.append(Frame(octets, frame.at, length))
    check(width, frames, idle=0.1, stall=0.2)


@pytest.mark.parametrize("width", NARROW)
def test_long_chunks_end_where_they_should(width):
    rng = random.Random(width)
    words = width // 32
    frames = [
        carry(packet_of([segment(rng, 4 * words * k + rng.randrange(4 * words)), SackChunk(1)]), 9)
        for k in (1, 2, 3, 4, 5, 9, 16, 17)
    ]
    frames.append(carry(packet_of([segment(rng, 1430, tagged=1)]), 9))
    frames.append(carry(packet_of([segment(rng, 5900, tagged=1), segment(rng, 3000)]), 9))
    check(width, frames)


def test_the_longest_chunk_counts_as_what_it_is():
    rng = random.Random(1)
    packet = packet_of([segment(rng, 65482), Chunk(11)])
    config = RnicConfig(width=512, buffer_octets=1 << 17)
    check(512, [carry(packet, 1), carry(packet_of([Chunk(11)]), 3)], config=config)


@pytest.mark.parametrize("width", NARROW)
def test_a_frame_that_the_buffer_cannot_hold_is_marked_and_stored_in_part(width):
    config = RnicConfig(width=width, buffer_octets=4096)
    octets, words = width // 8, width // 32
    room = (config.buffer_octets // octets - SctpWalker.SPARE) * octets
    frames = [Frame(bytes(room)), Frame(bytes(room + 1)), Frame(bytes(3 * room)), Frame(bytes(7))]
    items, _, _, cycles = run_front(width, frames, config=config)
    assert [item.oversize for item in items] == [0, 1, 1, 0]
    assert len(cycles) == 3 * room // octets + 1
    sizes = [(item.payload - item.start) % 1024 for item in items]
    assert sizes == [room // 4] * 3 + [2]
    starts = [item.start for item in items]
    assert starts == [k * room // 4 % 1024 for k in range(4)]
    assert room % (4 * words) == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_one_beat_per_cycle_or_one_item_per_cycle_where_there_are_more(width):
    rng = random.Random(width)
    frames = [carry(packet_of([segment(rng, 1430, tagged=1)]), 9) for _ in range(2)]
    frames += [carry(packet_of([segment(rng, 80)] * 4), 9) for _ in range(2)]
    frames += [Frame(bytes(62)), Frame(bytes(62)), carry(packet_of([SackChunk(1)]), 9)] * 2
    frames += [carry(packet_of([Chunk(11)] * 20), 9), carry(packet_of([]), 9, padding=6)]
    *_, cycles = check(width, frames)
    visits = list(visits_of(frames, width))
    assert cycles[-1] - cycles[0] == sum(visits[1:])
    if width == 64:  # a beat has at most one item
        assert visits[: -(-len(frames[0].octets) // 8)] == [1] * -(-len(frames[0].octets) // 8)


@pytest.mark.parametrize("width", WIDTHS)
def test_latency_is_what_the_docstrings_say(width):
    dut = SctpWalker(RnicConfig(width=width))
    seen = {}

    async def drive(ctx):
        ctx.set(dut.go, 1)
        beat = {"used": 1, "first": 1, "last": 1, "sctp": 1, "octets": 12}
        ctx.set(dut.i.payload, beat)
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        for cycle in range(1, 20):
            for name in ("slices", "store", "segments", "checksums"):
                if ctx.get(getattr(dut, name).valid):
                    seen.setdefault(name, cycle)
            await ctx.tick()

    simulate(dut, drive)
    items = 9 if width <= 128 else 10
    assert seen == {"slices": 7, "store": 7, "segments": items, "checksums": 7}
