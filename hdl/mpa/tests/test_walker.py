"""Tests the MPA front: octets in; segments, verdicts and stored octets out (RFC 5044)."""

import random
import struct
from dataclasses import dataclass, field
from functools import cache

import pytest
from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.ddp.segment import Outcome, Segment, SegmentVerdict
from ddp_rnic.hdl.lib.crc32c import Crc32c
from ddp_rnic.hdl.lib.testing import beats_of, decoded, make_simulator, send, simulate
from ddp_rnic.hdl.lib.tests.long import NARROW
from ddp_rnic.hdl.mpa.intake import LlpBeat
from ddp_rnic.hdl.mpa.verdict import Judge
from ddp_rnic.hdl.mpa.walker import MpaWalker
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig
from ddp_rnic.sim.model.mpa import MpaSender, crc32c


def lay_out(ulpdus, position, *, markers, good=lambda k: True):
    """Returns FPDUs as the model sends them from ``position`` on, some with a wrong CRC."""
    sender = MpaSender(crc=True, markers=markers, position=position)
    fpdus = [bytearray(sender.send(ulpdu)) for ulpdu in ulpdus]
    for k, fpdu in enumerate(fpdus):
        fpdu[-3] ^= not good(k)
    return [bytes(fpdu) for fpdu in fpdus]


class Front(wiring.Component):
    """Connects the walker, its CRC unit and the judge."""

    def __init__(self, config):
        self.config = config
        self.walker = MpaWalker(config)
        super().__init__(
            {
                "i": In(stream.Signature(LlpBeat(config.width, config.stream_bits + 1))),
                "go": In(1),
                "crc": In(1),
                "markers": In(1),
                "store": Out(self.walker.store.signature),
                "segments": Out(stream.Signature(Segment(config), always_ready=True)),
                "verdicts": Out(stream.Signature(SegmentVerdict(config), always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.walker = walker = self.walker
        m.submodules.crc = crc = Crc32c(self.config.width, granule=4)
        m.submodules.judge = judge = Judge(self.config, latency=crc.latency)
        wiring.connect(m, walker.slices, crc.i)
        wiring.connect(m, crc.o, judge.checksums)
        wiring.connect(m, walker.endings, judge.endings)
        wiring.connect(m, judge.o, wiring.flipped(self.verdicts))
        wiring.connect(m, walker.segments, wiring.flipped(self.segments))
        wiring.connect(m, walker.store, wiring.flipped(self.store))
        m.d.comb += [
            walker.go.eq(self.go),
            walker.i.valid.eq(self.i.valid),
            walker.i.payload.llp.eq(self.i.payload),
            walker.i.payload.settings.crc.eq(self.crc),
            walker.i.payload.settings.markers.eq(self.markers),
            self.i.ready.eq(walker.i.ready),
        ]
        return m


@dataclass
class Run:
    """The input of the front, its timing, and the output."""

    beats: list
    markers: bool
    crc: bool
    idle: float
    stall: float
    rng: random.Random
    limit: int
    ring: bytearray
    segments: list = field(default_factory=list)
    verdicts: list = field(default_factory=list)
    cycles: list = field(default_factory=list)


class Bench:
    """Keeps a front and its simulator, which takes longer to make than most runs."""

    def __init__(self, config):
        self.dut = Front(config)
        self.octets = config.octets
        self.sim = make_simulator(
            self.dut, self._settings, self._source, self._watch, background=[self._gate])
        self.now = None

    def run(self, now):
        if self.now:
            self.sim.reset()
        self.now = now
        self.sim.run()

    async def _settings(self, ctx):
        ctx.set(self.dut.crc, int(self.now.crc))
        ctx.set(self.dut.markers, int(self.now.markers))

    async def _gate(self, ctx):
        while True:
            ctx.set(self.dut.go, self.now.rng.random() >= self.now.stall)
            await ctx.tick()

    async def _source(self, ctx):
        await send(ctx, self.dut.i, self.now.beats, idle=self.now.idle, rng=self.now.rng)

    async def _watch(self, ctx):
        dut, now, octets = self.dut, self.now, self.octets
        cycle = 0
        quiet = 0
        async for (
            *_,
            segment,
            segment_valid,
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
            assert cycle < now.limit, "the front is not done"
            if segment_valid:
                now.segments.append(decoded(dut.segments, segment))
            if verdict_valid:
                now.verdicts.append(decoded(dut.verdicts, verdict))
            if store_valid:
                now.cycles.append(cycle)
                store = decoded(dut.store, store)
                now.ring[store.address * octets : (store.address + 1) * octets] = (
                    store.data.to_bytes(octets, "little"))
            quiet = 0 if ctx.get(dut.i.valid) or ctx.get(dut.walker.busy) else quiet + 1
            if quiet > 60:
                return


bench = cache(Bench)


def run_front(
    width, packets, *, markers=False, crc=True, idle=0.0, stall=0.0, seed=1, damage=(), config=None
):
    """Runs packets, ``(position, octets)``, through the front.

    Returns segments, verdicts, the stored octets and the cycles in which the walker took beats.
    """
    config = config or RnicConfig(width=width, buffer_octets=1 << 15)
    beats = [
        {"beat": beat, "stream": 5, "sequence": position}
        for number, (position, packet) in enumerate(packets)
        for beat in beats_of(packet, width // 8, error=number in damage)
    ]
    limit = 200 + int(len(beats) * 10 / (1 - idle) / (1 - stall)) + 20 * len(packets)
    now = Run(
        beats, markers, crc, idle, stall, random.Random(seed), limit,
        bytearray(config.buffer_octets))
    bench(config).run(now)
    return now.segments, now.verdicts, now.ring, now.cycles


def take(ring, start, length):
    """Returns octets of the ring from a position on, in words, around its end."""
    return bytes(ring[(4 * start + k) % len(ring)] for k in range(length))


def check(width, runs, *, per_packet, markers=False, seed=1, bad=(), **options):
    """Runs FPDUs through the front and checks all its outputs.

    ``runs`` are ``(position, lengths of ULPDUs)``, each on its own stream; ``bad`` has the numbers
    of the FPDUs with a wrong CRC. Returns the result of ``run_front``.
    """
    rng = random.Random(seed)
    packets, expected = [], []
    for position, lengths in runs:
        ulpdus = [rng.randbytes(n) for n in lengths]
        first = len(expected)
        fpdus = lay_out(ulpdus, position, markers=markers, good=lambda k, n=first: k + n not in bad)
        at = position
        for k in range(0, len(fpdus), per_packet):
            packets.append((at % 2**32, b"".join(fpdus[k : k + per_packet])))
            at += len(packets[-1][1])
        at = position
        for ulpdu, fpdu in zip(ulpdus, fpdus, strict=True):
            expected.append((at % 2**32, ulpdu, fpdu))
            at += len(fpdu)
    front = run_front(width, packets, markers=markers, seed=seed, **options)
    segments, verdicts, ring, _ = front
    assert sum(len(octets) + width // 8 for _, octets in packets) < len(ring), "octets overwritten"
    assert len(segments) == len(verdicts) == len(expected)
    for k, (segment, verdict, (at, ulpdu, fpdu)) in enumerate(
        zip(segments, verdicts, expected, strict=True)
    ):
        where = f"FPDU {k} of {len(ulpdu)} octets at {at}"
        header = (struct.pack(">H", len(ulpdu)) + ulpdu)[:20]
        got = segment.header.to_bytes(20, "little")
        assert got[: len(header)] == header, f"{where}: header {got.hex()}, expected {header.hex()}"
        assert verdict.outcome == (Outcome.DIGEST if k in bad else Outcome.GOOD), where
        assert segment.sequence == at, where
        assert segment.stream == 5 and segment.markers == markers and not segment.oversize, where
        words = (verdict.end - segment.start) % (len(ring) // 4)
        assert words * 4 == len(fpdu), f"{where}: {words} words stored, expected {len(fpdu) // 4}"
        assert take(ring, segment.start, len(fpdu)) == fpdu, where
        # RFC 5041 section 4.1: T selects the header.
        size = 14 if got[2] & 0x80 else 18
        payload, rest, out = segment.payload, len(ulpdu) - size, b""
        phase = segment.phase
        while rest > 0:
            if not (markers and phase == 0):
                out += take(ring, payload, min(rest, 4))
                rest -= 4
            payload, phase = payload + 1, (phase + 1) % 128
        assert out == ulpdu[size:], f"{where}: payload"
    return front


EDGES = (14, 15, 18, 30, 31, 46, 62, 63, 64, 78, 126, 127, 190, 254, 1, 0, 2, 5)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("markers, per_packet", [(False, 1), (True, 1000)])
def test_every_fpdu_is_found_at_any_word_and_every_wrong_crc(width, markers, per_packet):
    rng = random.Random(width + per_packet)
    lengths = [*EDGES, *(rng.choice((rng.randrange(80), rng.randrange(600))) for _ in range(10))]
    runs = [(4 * rng.randrange(1 << 20), lengths)]
    bad = set(rng.sample(range(len(lengths)), 4))
    check(width, runs, per_packet=per_packet, markers=markers, seed=width, bad=bad)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("idle, stall, markers", [(0.4, 0.0, True), (0.3, 0.4, False)])
def test_gaps_and_back_pressure_change_nothing(width, idle, stall, markers):
    rng = random.Random(width)
    lengths = [rng.choice((rng.randrange(60), rng.randrange(300))) for _ in range(16)]
    runs = [(2**32 - 512, lengths)]
    check(width, runs, per_packet=5, markers=markers, idle=idle, stall=stall, seed=7)


@pytest.mark.parametrize("width", NARROW)
@pytest.mark.parametrize("lengths", [
    [40, 33], [2, 14], [2, 18], [14, 2], [2, 14, 14], [14, 2, 14], [2, 46, 14]], ids=str)
def test_a_marker_may_stand_at_every_word_of_an_fpdu(width, lengths):
    # Some of these are moved by a marker to the end of the beat, or of the packet.
    runs = [(512 - 4 * offset, lengths) for offset in range(22)]
    check(width, runs, per_packet=len(lengths), markers=True)


@pytest.mark.parametrize("width", NARROW)
def test_a_stream_without_crc_takes_any_crc_field(width):
    fpdus = lay_out([bytes(20), bytes(90)], 0, markers=False, good=lambda k: False)
    _, verdicts, _, _ = run_front(width, [(0, b"".join(fpdus))], crc=False)
    assert [v.outcome for v in verdicts] == [Outcome.GOOD] * 2


@pytest.mark.parametrize("width", NARROW)
def test_padding_and_the_contents_of_markers_do_not_matter(width):
    """Section 4.1: PAD is "ignored by the receiver (except for CRC checking)"; section 4.2: a
    marker's Reserved field is "ignored on receive", and its two lowest bits are treated as zero.
    """
    ulpdus = [bytes(n) for n in (601, 19, 40)]
    fpdus, at = [bytearray(each) for each in lay_out(ulpdus, 0, markers=True)], 0
    for ulpdu, fpdu in zip(ulpdus, fpdus, strict=True):
        pad = -(len(ulpdu) + 2) % 4
        fpdu[-4 - pad : -4] = b"\xff" * pad
        for marker in range(-at % 512, len(fpdu), 512):
            fpdu[marker : marker + 4] = b"\xff" * 4
        fpdu[-4:] = crc32c(bytes(fpdu[:-4]))
        at += len(fpdu)
    segments, verdicts, _, _ = run_front(width, [(0, b"".join(fpdus))], markers=True)
    assert [v.outcome for v in verdicts] == [Outcome.GOOD] * 3
    starts = [sum(len(each) for each in fpdus[:k]) for k in range(3)]
    assert [s.sequence for s in segments] == starts
    for ulpdu, segment in zip(ulpdus, segments, strict=True):
        header = (struct.pack(">H", len(ulpdu)) + ulpdu)[:20]
        assert segment.header.to_bytes(20, "little") == header


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lengths", [(30, 100), (30, 30), (30, 6), (2, 10), (2, 2)], ids=str)
def test_an_fpdu_that_its_packet_ends_inside_is_broken_and_the_next_packet_is_not(width, lengths):
    *fpdus, other = lay_out([*map(bytes, lengths), bytes(100)], 0, markers=False)
    packets, outcomes = [], []
    for keep in range(4, len(fpdus[1]), 4):
        packets += [(0, fpdus[0] + fpdus[1][:keep]), (0, other), (0, fpdus[0]), (0, fpdus[1])]
        outcomes += [Outcome.GOOD, Outcome.FRAMING, *[Outcome.GOOD] * 3]
    segments, verdicts, _, _ = run_front(width, packets)
    assert [v.outcome for v in verdicts] == outcomes
    assert len(segments) == len(verdicts)


@pytest.mark.parametrize("width", NARROW)
def test_odd_octets_and_the_damage_mark_break_the_last_fpdu(width):
    (fpdu,) = lay_out([bytes(100)], 0, markers=False)
    packets = [(0, octets) for octets in (fpdu[:-1], fpdu, fpdu, fpdu)]
    _, verdicts, _, _ = run_front(width, packets, damage={2})
    assert [v.outcome for v in verdicts] == [Outcome.FRAMING, Outcome.GOOD] * 2


@pytest.mark.parametrize("width", NARROW)
def test_an_fpdu_that_the_buffer_cannot_hold_is_marked_and_not_stored(width):
    config = RnicConfig(width=width, buffer_octets=4096)
    limit = 4 * config.longest_fpdu  # ULPDU_Length, ULPDU, PAD and CRC
    fits, over, after = lay_out([bytes(limit - 6), bytes(limit - 2), bytes(50)], 0, markers=False)
    segments, verdicts, _, cycles = run_front(width, [(0, fits + over + after)], config=config)
    assert [s.oversize for s in segments] == [0, 1, 0]
    assert verdicts[0].outcome == verdicts[2].outcome == Outcome.GOOD
    assert len(cycles) * width // 8 < len(fits) + len(after) + 4 * width // 8


@pytest.mark.parametrize("width", WIDTHS)
def test_one_beat_per_cycle_or_one_fpdu_per_cycle_where_more_begin(width):
    packets, starts = [], []  # starts: FPDUs that begin in each beat
    for length in (2, 16, 40, 62, 90):
        fpdus = lay_out([bytes(length)] * 30, 0, markers=False)
        packets.append((0, b"".join(fpdus)))
        first = len(starts)
        starts += [0] * -(-len(packets[-1][1]) // (width // 8))
        for k in range(len(fpdus)):
            starts[first + k * len(fpdus[0]) // (width // 8)] += 1
    *_, cycles = run_front(width, packets)
    assert cycles[-1] - cycles[0] == sum(max(1, n) for n in starts[1:])


@pytest.mark.parametrize("width", WIDTHS)
def test_latency_from_the_last_beat_is_what_the_docstring_says(width):
    (fpdu,) = lay_out([bytes(width // 8 - 8)], 0, markers=False)  # one beat
    dut = MpaWalker(RnicConfig(width=width))
    seen = {}

    async def drive(ctx):
        ctx.set(dut.go, 1)
        beat = {"data": int.from_bytes(fpdu, "little"), "count": len(fpdu), "last": 1}
        ctx.set(dut.i.payload.llp, {"beat": beat})
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        for cycle in range(1, 20):
            for name in ("slices", "store", "segments", "endings"):
                if ctx.get(getattr(dut, name).valid):
                    seen.setdefault(name, cycle)
            await ctx.tick()

    simulate(dut, drive)
    assert seen == {"slices": 9, "store": 9, "segments": 12, "endings": 10}
