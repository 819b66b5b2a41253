"""Tests how ULPDUs are framed. Senders of captures are the judges: the framer frames their ULPDUs
again, and each FPDU has to be theirs, octet for octet. The golden model frames what no capture has.
"""

import random
from collections import Counter
from pathlib import Path

import pytest
from amaranth.hdl import Value
from ddp_rnic.hdl.lib.testing import beats_of, decoded, numbered, octets_of, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.mpa.framer import Framer
from ddp_rnic.hdl.spec.config import WIDTHS
from ddp_rnic.sim.capture.capture import read_capture
from ddp_rnic.sim.capture.traffic import traffic_of
from ddp_rnic.sim.model.mpa import MARKER_SPACING, MpaSender, StartupFrame
from ddp_rnic.sim.model.tests.test_tshark import TSHARK, TcpScript, wireshark_fpdus

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared" / "captures"
#: Captures whose senders conform to RFC 5044.
CAPTURES = [ROOT / "sim" / "data" / "workload.pcap", *sorted(SHARED.glob("i*/**/*.pcap"))]


class Frame:
    """An FPDU to be made: the ULPDU, the settings of its stream, and its position in it."""

    def __init__(self, ulpdu, position, *, crc, markers, rng):
        self.ulpdu = ulpdu
        self.head = {
            "length": len(ulpdu), "settings": {"crc": crc, "markers": markers},
            "phase": position % MARKER_SPACING // 4, "stream": rng.getrandbits(16),
            "sequence": rng.getrandbits(32), "record": {"offset": rng.getrandbits(32)},
        }  # fmt: skip

    @property
    def by_the_model(self):
        """The octets that the golden model sends."""
        settings, phase = self.head["settings"], self.head["phase"]
        return MpaSender(**settings, position=4 * phase).send(self.ulpdu)


def frame_all(width, frames, *, stall=0.0, idle=0.0, seed=1):
    """Returns the FPDUs that the framer makes, the cycle of each output beat, and the cycles from
    the last input beat to the last output beat less the framer's latency.
    """
    dut, rng, octets = shared(Framer, width), random.Random(seed), width // 8
    packets, given, left = [], [], []

    async def heads(ctx):
        await send(ctx, dut.heads, [frame.head for frame in frames], idle=idle, rng=rng)

    async def source(ctx):
        beats = [beat for frame in frames for beat in beats_of(frame.ulpdu, octets)]
        await send(ctx, dut.i, beats, idle=idle, rng=rng)

    async def clock(ctx):
        async for cycle, (valid, ready) in numbered(ctx.tick().sample(dut.i.valid, dut.i.ready)):
            if valid and ready:
                given.append(cycle)

    async def sink(ctx):
        packet, waiting, ready = b"", None, 0
        ticks = ctx.tick().sample(dut.o.valid, Value.cast(dut.o.payload))
        async for cycle, (valid, beat) in numbered(ticks):
            if waiting is not None:
                assert valid and beat == waiting, "the offer changes before the transfer"
            waiting = beat if valid and not ready else None
            if valid and ready:
                left.append(cycle)
                beat = decoded(dut.o, beat)
                packet += octets_of(beat.beat, octets)
                if beat.beat.last:
                    record = {"offset": beat.record.offset}
                    packets.append((packet, beat.stream, beat.sequence, record))
                    packet = b""
                    if len(packets) == len(frames):
                        return
            ready = rng.random() >= stall
            ctx.set(dut.o.ready, ready)

    simulate(dut, heads, source, sink, background=[clock], limit=400_000)
    for frame, (_, *beside) in zip(frames, packets, strict=True):
        assert beside == [frame.head[name] for name in ("stream", "sequence", "record")]
    return [octets for octets, *_ in packets], left, left[-1] - given[-1] - dut.latency


def some_frames(width, rng):
    """Returns FPDUs of all lengths up to three beats, and longer ones, with and without CRC and
    markers: markers at every word, before the length, between PAD and CRC, and just after the end.
    """
    lengths = [*range(1, 3 * width // 8 + 8), *rng.choices((18, 500, 504, 1442, 1460), k=20), 2600]
    rng.shuffle(lengths)
    return [
        Frame(
            rng.randbytes(length), rng.choice((4 * rng.randrange(128), 0, 508, -length % 512 & -4)),
            crc=rng.random() < 0.8, markers=rng.random() < 0.7, rng=rng,
        )
        for length in lengths
    ]  # fmt: skip


def frames_of_captures():
    """Yields each FPDU of the captures with the octets that its sender sent."""
    rng = random.Random(2)
    for path in CAPTURES:
        for arrival in traffic_of(read_capture(path)).arrivals:
            stream = arrival.stream
            frame = Frame(
                arrival.ulpdu, arrival.position, crc=stream.crc, markers=stream.markers, rng=rng)
            # Another PAD than zeros is the sender's choice, and a wrong CRC its fault.
            if frame.by_the_model == arrival.raw:
                yield frame, arrival.raw


@pytest.mark.parametrize("width", [512, pytest.param(64, marks=pytest.mark.long)])
def test_what_a_sender_framed_is_framed_again(width, pytestconfig):
    pairs = [*frames_of_captures()]
    if not pytestconfig.getoption("--long"):
        # One FPDU of each length and setting is enough.
        kinds = {(len(frame.ulpdu), *frame.head["settings"].values()): (frame, raw)
                 for frame, raw in pairs}  # fmt: skip
        pairs = [*kinds.values()][:150]
    frames, expected = zip(*pairs, strict=True)
    assert frame_all(width, frames)[0] == [*expected]


@pytest.mark.skipif(TSHARK is None, reason="needs tshark")
@pytest.mark.parametrize("crc, markers", [(True, True), *long((True, False), (False, False))])
def test_wireshark_finds_no_error_in_random_fpdus(tmp_path, crc, markers):
    rng = random.Random(6)
    position, frames, script = 0, [], TcpScript()
    for kind in ("request", "reply"):
        script.send(kind == "reply", StartupFrame(kind=kind, crc=crc, markers=markers).encode())
    for length in rng.choices(range(18, 1400), k=60):
        # An RDMA Write, whose Tagged Offset and payload are random.
        ulpdu = bytes((0xC1, 0x40)) + rng.randbytes(length - 2)
        frames.append(Frame(ulpdu, position, crc=crc, markers=markers, rng=rng))
        position += len(frames[-1].by_the_model)
    for packet in frame_all(64, frames)[0]:
        script.send(False, packet)
    lengths = Counter(len(frame.ulpdu) for frame in frames)
    found = wireshark_fpdus(script.write(tmp_path / "made.pcap"))
    assert found == (lengths, len(frames) if crc else 0, 0)


@pytest.mark.parametrize("width", [*long(64), *WIDTHS[1:]])
def test_every_length_and_every_place_of_a_marker(width):
    frames = some_frames(width, random.Random(width))
    packets, *_ = frame_all(width, frames, stall=0.3, idle=0.3)
    for frame, packet in zip(frames, packets, strict=True):
        assert packet == frame.by_the_model, frame.head


@pytest.mark.parametrize("width", [64, 512])
@pytest.mark.parametrize("markers", [False, True])
def test_one_beat_per_cycle_without_a_bubble(width, markers):
    """RFC 5044 adds octets to a ULPDU, so the framer cannot be faster than its output.

    Only the last beat of the first FPDU after a pause waits, for the CRC.
    """
    rng = random.Random(3)
    frames = [
        Frame(rng.randbytes(length), 4 * rng.randrange(128), crc=True, markers=markers, rng=rng)
        for length in [14, 18, 82, 1442] * 2
    ]
    packets, left, _ = frame_all(width, frames)
    first, *others = (-(-8 * len(packet) // width) for packet in packets)
    start = left[first - 1]
    assert left[first - 1 :] == [*range(start, start + 1 + sum(others))]


@pytest.mark.parametrize("width", [64, 512])
@pytest.mark.parametrize("markers", [False, True])
def test_latency_from_the_last_beat(width, markers):
    """The beats before the last one do not wait for the CRC."""
    inserter = shared(Framer, width)._inserter
    for length in (width // 8 - 8, 10 * width // 8):
        frame = Frame(bytes(length), 4, crc=True, markers=markers, rng=random.Random(4))
        (packet,), left, late = frame_all(width, [frame])
        beats = -(-8 * len(packet) // width)
        fewer = 0 if markers else inserter.latency - 2
        assert late == beats - max(1, -(-8 * length // width)) - fewer
        if beats > 1:
            wait = shared(Framer, width)._crc.latency
            assert [at - left[0] for at in left] == [*range(beats - 1), beats - 1 + wait]
