"""Tests the frame parser against an independent reading of each frame, and on Scapy's frames."""

from itertools import islice

import pytest
from amaranth import ResetInserter, Signal, Value
from ddp_rnic.hdl.lib.testing import beats_of, decoded, shared, simulate
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.sctp.frame import FrameParser, Kind
from ddp_rnic.hdl.sctp.tests.frames import (
    PORT,
    draw,
    ethernet,
    ipv4,
    ipv6,
    say,
    sctp,
    seeded,
    udp,
)
from ddp_rnic.hdl.spec.config import WIDTHS
from ddp_rnic.hdl.spec.net import KEY_FIELDS
from scapy.layers.inet import IP, UDP, IPOption_Timestamp
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.layers.sctp import SCTP, SCTPChunkData
from scapy.packet import Raw

#: Cycles from an input beat to its output, according to the docstring.
LATENCY = 43


def run(width, frames, *, idle=0.0, damaged=(), seed=0, udp_port=PORT):
    """Sends frames; returns beats and results, each with its cycle, and the input cycles."""
    dut = shared(FrameParser, width, udp_port=udp_port)
    octets = width // 8
    rng = seeded(width, seed)
    sent, beats, results = [], [], []
    limit = 200 + int(sum(len(frame) // octets + 3 for frame in frames) / (1 - idle) * 1.5)

    async def drive(ctx):
        cycle = 0
        for number, frame in enumerate(frames):
            for beat in beats_of(frame, octets, error=number in damaged):
                while rng.random() < idle:
                    ctx.set(dut.i.valid, 0)
                    # Without ``valid``, the payload must be ignored.
                    ctx.set(dut.i.payload.last, rng.getrandbits(1))
                    await ctx.tick()
                    cycle += 1
                beyond = rng.getrandbits(width) << 8 * beat["count"]
                ctx.set(dut.i.payload, beat | {"data": beat["data"] | beyond})
                ctx.set(dut.i.valid, 1)
                while not ctx.get(dut.i.ready):
                    await ctx.tick()
                    cycle += 1
                sent.append(cycle)
                await ctx.tick()
                cycle += 1
        ctx.set(dut.i.valid, 0)

    async def watch(ctx):
        cycle, named = 0, (0, None)
        while len(results) < len(frames) or cycle < sent[-1] + 2 * LATENCY:
            *_, shown, beat, given, result = await ctx.tick().sample(
                dut.o.valid, Value.cast(dut.o.payload), dut.frames.valid,
                Value.cast(dut.frames.payload),
            )
            if shown:
                beats.append((cycle, decoded(dut.o, beat)))
            holds = named[1] and cycle < named[0] + 256 // width
            if given or holds:
                result = decoded(dut.frames, result)
                names = [result[name] for name, _ in KEY_FIELDS]
            if given:
                results.append((cycle, result))
                if result.kind == Kind.SCTP:
                    named, holds = (cycle, names), False
            # The results must stay as long as the table of associations uses them.
            assert not holds or names == named[1], f"names of cycle {named[0]} are gone in {cycle}"
            cycle += 1

    simulate(dut, drive, watch, limit=limit)
    return sent, beats, results


def check(width, frames, *, damaged=(), **options):
    """Runs frames and checks all outputs; returns the results of :func:`say`."""
    sent, beats, results = run(width, frames, damaged=damaged, **options)
    octets, words = width // 8, width // 32
    port = options.get("udp_port", PORT)
    said = [say(frame, damaged=n in damaged, port=port) for n, frame in enumerate(frames)]
    at, went = iter(beats), iter(sent)
    assert len(results) == len(frames)
    for number, (frame, expected, (cycle, got)) in enumerate(
        zip(frames, said, results, strict=True)
    ):
        where = f"frame {number}, {len(frame)} octets {frame[:100].hex()}"
        moved = bytes(2) + frame
        marks, sent_at = [], 0
        for start in range(0, len(moved), octets):
            shown, beat = next(at)
            part = moved[start : start + octets]
            sent_at = next(went) if start < len(frame) else sent_at + 1
            assert shown == sent_at + LATENCY, f"{where}: beat {start // octets} late"
            assert beat.data.to_bytes(octets, "little") == part.ljust(octets, b"\0"), where
            assert beat.used == (1 << -(-len(part) // 4)) - 1, where
            assert beat.first == (start == 0) and beat.last == (start + octets >= len(moved)), where
            marks += [start + 4 * w for w in range(words) if beat.sctp >> w & 1]
            if beat.sctp and expected.kind == Kind.SCTP:
                assert beat.octets == expected.octets, where
        assert cycle == shown + 2, f"{where}: result in cycle {cycle}, last beat in {shown}"
        assert Kind(got.kind) == expected.kind, f"{where}: {got.kind}, expected {expected.kind}"
        if expected.kind == Kind.SCTP:
            assert marks == [expected.start + 2], f"{where}: begins at {marks}, not {expected}"
            read = expected._replace(
                octets=got.octets,
                v6=bool(got.v6),
                source=got.source.to_bytes(16, "little"),
                destination=got.destination.to_bytes(16, "little"),
                source_port=got.source_port,
                destination_port=got.destination_port,
                tag=got.tag,
                udp=bool(got.udp),
            )
            assert read == expected._replace(
                source=expected.source.ljust(16, b"\0"),
                destination=expected.destination.ljust(16, b"\0"),
            ), where
        else:
            assert len(marks) <= 1, where
            assert not marks or expected.kind in (Kind.MALFORMED, Kind.DAMAGED), where
    assert next(at, None) is None, "beats of no frame"
    if not options.get("idle"):
        # One beat per cycle is output, without a gap.
        cycles = [cycle for cycle, _ in beats]
        assert cycles == list(range(cycles[0], cycles[0] + len(beats)))
    return said


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("idle", [0.0, *long(0.4)])
def test_any_frames_are_distinguished_back_to_back_and_with_gaps(width, idle):
    rng = seeded(width, idle)
    frames = [draw(rng) for _ in range(160)]
    damaged = set(rng.sample(range(len(frames)), 8))
    said = check(width, frames, idle=idle, damaged=damaged)
    kinds = [result.kind for result in said]
    assert all(kinds.count(kind) >= 5 for kind in Kind), kinds


@pytest.mark.parametrize("width", WIDTHS)
def test_one_frame_a_beat_of_the_shortest_frames(width):
    rng = seeded(width)
    check(width, [rng.randbytes(n) for n in (*range(1, 20), 1, 1, 5, 6, 1)])


@pytest.mark.parametrize("width", NARROW)
def test_a_frame_cut_off_anywhere_has_no_effect_on_the_next(width):
    rng = seeded(width)
    ten = ethernet(rng, 0x0800, ipv4(rng, 17, udp(sctp(rng, 14)), words=6), (0x8100,))
    six = ethernet(rng, 0x86DD, ipv6(rng, 132, sctp(rng, 16), extensions=((0, 0), (51, 1))))
    whole = (ethernet(rng, 0x0800, ipv4(rng, 132, sctp(rng, 12))), six)
    frames = []
    for packet in (ten, six):
        for length in range(1, len(packet), 1 if width > 64 else 3):
            frames += [packet[:length], whole[length % 2]]
    said = check(width, frames)
    assert {result.kind for result in said[1::2]} == {Kind.SCTP}
    assert {result.kind for result in said[::2]} == {Kind.OTHER, Kind.MALFORMED}


@pytest.mark.parametrize("width", NARROW)
def test_every_order_of_two_extension_headers_and_any_length(width):
    rng = seeded(width)
    frames = []
    for one in (0, 43, 51, 60):
        for two in (0, 43, 51, 60):
            sizes = rng.randrange(4), rng.randrange(9)
            frames.append(
                ethernet(rng, 0x86DD, ipv6(
                    rng, 132, sctp(rng, 20), extensions=((one, sizes[0]), (two, sizes[1]))))
            )  # fmt: skip
    for size in (40, 255):
        for kind in (51, 60):
            extensions = ((kind, size), (43, 0), (kind, 1), (51, 2))
            frames.append(
                ethernet(rng, 0x86DD, ipv6(rng, 17, udp(sctp(rng, 30)), extensions=extensions))
            )
    frames.append(ethernet(rng, 0x86DD, ipv6(rng, 132, sctp(rng, 20), extensions=((60, 0),) * 5)))
    said = check(width, frames)
    assert [result.kind for result in said] == [Kind.SCTP] * 20 + [Kind.OTHER]


@pytest.mark.parametrize("width", NARROW)
def test_ipv4_header_checks_see_every_bit_and_every_option_word(width):
    rng = seeded(width)
    frames = []
    for words in range(5, 16):
        tags = (0x8100,) * (words % 3)
        good = ethernet(rng, 0x0800, ipv4(rng, 132, sctp(rng, 12), words=words), tags)
        bit = rng.randrange(32)
        at = 14 + 4 * len(tags) + 4 * rng.randrange(3, words) + bit // 8
        bad = bytearray(good)
        bad[at] ^= 1 << bit % 8
        frames += [good, bytes(bad)]
    said = check(width, frames)
    assert [result.kind for result in said] == [Kind.SCTP, Kind.MALFORMED] * 11


@pytest.mark.parametrize("width", NARROW)
def test_the_udp_port_is_a_parameter(width):
    rng = seeded(width)
    frames = [
        ethernet(rng, 0x0800, ipv4(rng, 17, udp(sctp(rng, 20), to=to))) for to in (PORT, 443, 65535)
    ]
    said = check(width, frames, udp_port=443)
    assert [result.kind for result in said] == [Kind.OTHER, Kind.SCTP, Kind.OTHER]


@pytest.mark.long
@pytest.mark.parametrize("width", (128, 512))
def test_frames_of_9600_octets_and_of_more_than_a_length_can_say(width):
    rng = seeded(width)
    frames = [
        ethernet(rng, 0x0800, ipv4(rng, 132, sctp(rng, 9600 - 34))),
        ethernet(rng, 0x86DD, ipv6(rng, 132, sctp(rng, 9600 - 54))),
        ethernet(rng, 0x86DD, ipv6(rng, 132, sctp(rng, 20))) + bytes(9500),
    ]
    if width == 512:
        frames += [
            ethernet(rng, 0x86DD, ipv6(rng, 132, sctp(rng, 65535))),
            ethernet(rng, 0x86DD, ipv6(rng, 132, sctp(rng, 65535)))[:-1],
            ethernet(rng, 0x0800, ipv4(rng, 132, sctp(rng, 100))) + bytes(140000),
        ]
    frames.append(frames[0][:200])
    said = check(width, frames)
    assert [result.kind for result in said[:3]] == [Kind.SCTP] * 3
    if width == 512:
        kinds = [result.kind for result in said[3:]]
        assert kinds == [Kind.SCTP, Kind.MALFORMED, Kind.SCTP, Kind.MALFORMED]


def test_what_scapy_builds_is_read_as_scapy_says():
    def packet(tag):
        return SCTP(sport=5000, dport=5001 + tag, tag=tag) / SCTPChunkData(data=b"octets")

    link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    four = IP(src="10.7.0.1", dst="10.7.0.2")
    six = IPv6(src="2001:db8::1", dst="2001:db8::2:3")
    dns = UDP(sport=1, dport=53) / Raw(b"no SCTP")
    good = [
        link / four / packet(1),
        link / Dot1Q(vlan=5) / IP(src="1.2.3.4", dst="5.6.7.8", options=[IPOption_Timestamp()])
        / packet(2),
        link / Dot1AD(vlan=7) / Dot1Q(vlan=5) / six / packet(3),
        link / four / UDP(sport=9899, dport=PORT) / packet(4),
        link / six / IPv6ExtHdrHopByHop() / IPv6ExtHdrRouting(addresses=["::9"], segleft=0)
        / IPv6ExtHdrDestOpt() / UDP(sport=9, dport=PORT) / packet(5),
    ]  # fmt: skip
    other = [
        (Kind.OTHER, link / ARP()),
        (Kind.OTHER, link / four / dns),
        (Kind.OTHER, link / six / dns),
        # RFC 8200 section 4.4, of an unrecognized Routing Type: "If Segments Left is non-zero, the
        # node must discard the packet".
        (Kind.OTHER, link / six / IPv6ExtHdrRouting(addresses=["::9"], segleft=1) / packet(9)),
        (Kind.FRAGMENT, link / IP(flags="MF") / packet(6)),
        (Kind.FRAGMENT, link / IP(frag=3) / packet(7)),
        (Kind.FRAGMENT, link / six / IPv6ExtHdrFragment() / packet(8)),
    ]
    for width in WIDTHS:
        frames = [bytes(frame) for frame in good + [frame for _, frame in other]]
        said = check(width, frames)
        assert [result.kind for result in said[len(good) :]] == [kind for kind, _ in other]
        for frame, result in zip(good, said, strict=False):
            assert result.kind == Kind.SCTP
            assert (result.tag, result.destination_port) == (frame[SCTP].tag, frame[SCTP].dport)
            assert result.octets == len(bytes(frame[SCTP])) and result.udp == (UDP in frame)
            assert result.v6 == (IPv6 in frame)


@pytest.mark.parametrize("width", NARROW)
def test_after_a_reset_nothing_is_left_of_what_was_under_way(width):
    rng = seeded(width)
    octets = width // 8
    frame = ethernet(rng, 0x0800, ipv4(rng, 132, sctp(rng, 300), words=7), (0x8100,))
    parser = FrameParser(width)
    reset = Signal()
    beats, results = [], []

    async def send(ctx, most):
        for beat in islice(beats_of(frame, octets), most):
            ctx.set(parser.i.payload, beat)
            ctx.set(parser.i.valid, 1)
            await ctx.tick()
        ctx.set(parser.i.valid, 0)

    async def drive(ctx):
        for most in (3, 1000):
            for delay in (1, 5, 17, 30, 37, 40):
                await send(ctx, most)
                await ctx.tick().repeat(delay)
                ctx.set(reset, 1)
                await ctx.tick()
                ctx.set(reset, 0)
                beats.clear()
                results.clear()
                await send(ctx, 1000)
                await ctx.tick().repeat(LATENCY + 4)
                assert len(beats) == -(-(len(frame) + 2) // octets), f"{most=} {delay=}"
                shown = b"".join(beat.data.to_bytes(octets, "little") for beat in beats)
                assert shown.startswith(bytes(2) + frame)
                assert [Kind(result.kind) for result in results] == [Kind.SCTP]

    async def watch(ctx):
        async for *_, shown, beat, given, result in ctx.tick().sample(
            parser.o.valid, parser.o.payload, parser.frames.valid, parser.frames.payload
        ):
            if shown:
                beats.append(beat)
            if given:
                results.append(result)

    simulate(ResetInserter(reset)(parser), drive, background=[watch])


@pytest.mark.parametrize(
    "width, options, error, message",
    [
        (32, {}, ValueError, "Frame width must be one of 64, 128, 256, 512, not 32"),
        (64, {"udp_port": "9899"}, TypeError, "UDP port must be an integer, not '9899'"),
        (64, {"udp_port": 0}, ValueError, "UDP port must be from 1 to 65535, not 0"),
        (64, {"udp_port": 65536}, ValueError, "UDP port must be from 1 to 65535, not 65536"),
    ],
)
def test_a_wrong_parameter_is_refused(width, options, error, message):
    refused(message, FrameParser, width, error=error, **options)
