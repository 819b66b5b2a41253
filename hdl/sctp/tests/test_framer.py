"""Tests how chunks are framed as SCTP packets. Scapy makes each expected frame, with its lengths
and checksums.
"""

import random

import pytest
from amaranth.hdl import ResetInserter, Signal, Value
from ddp_rnic.hdl.lib.testing import beats_of, decoded, numbered, octets_of, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.sctp.framer import ChunkFramer
from ddp_rnic.hdl.spec.config import WIDTHS
from ddp_rnic.hdl.spec.path import SendPath
from ddp_rnic.hdl.spec.sctp import LONGEST_BODY
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.layers.sctp import SCTP, SCTPChunkData

ASSOCIATIONS = 8


class Association:
    """An association to a random peer: its lower layers by Scapy, and its next TSN."""

    def __init__(self, rng, number):
        self.number, self.tsn = number, rng.choice([rng.getrandbits(32), 2**32 - 2])
        self.v6, self.udp, tags = number & 1, number >> 1 & 1, number >> 2 & 1
        macs = [rng.randbytes(6).hex(":") for _ in range(2)]
        lower = Ether(dst=macs[0], src=macs[1])
        if tags:
            lower /= Dot1Q(vlan=rng.randrange(4096))
        if self.v6:
            source, destination = (rng.randbytes(16).hex() for _ in range(2))
            lower /= IPv6(
                src=":".join(source[k : k + 4] for k in range(0, 32, 4)),
                dst=":".join(destination[k : k + 4] for k in range(0, 32, 4)),
                tc=rng.randrange(256), hlim=64, nh=17 if self.udp else 132,
            )  # fmt: skip
        else:
            source, destination = (
                ".".join(str(octet) for octet in rng.randbytes(4)) for _ in range(2))
            lower /= IP(
                src=source, dst=destination, tos=rng.randrange(256), id=0, flags="DF",
                proto=17 if self.udp else 132,
            )  # fmt: skip
        if self.udp:
            lower /= UDP(sport=9899, dport=rng.getrandbits(16))
        self.lower = lower
        self.ports, self.tag = (rng.getrandbits(16), rng.getrandbits(16)), rng.getrandbits(32)
        self.path = SendPath(bytes(lower), *self.ports, self.tag)

    @property
    def setting(self):
        path = {name: getattr(self.path, name) for name in (
            "ports", "first", "udp", "v6", "ip_sum", "udp_sum")}  # fmt: skip
        return {"association": self.number, "path": {**path, "tag": self.path.wire_tag},
                "tsn": self.tsn}  # fmt: skip

    def frame(self, tsn, sid, ppid, user_data):
        """Returns the frame as Scapy makes it."""
        chunk = SCTPChunkData(
            tsn=tsn, stream_id=sid, stream_seq=0, proto_id=ppid, data=user_data,
            unordered=1, beginning=1, ending=1,
        )  # fmt: skip
        sctp = SCTP(sport=self.ports[0], dport=self.ports[1], tag=self.tag) / chunk
        return bytes(self.lower / sctp)


class Sent:
    """A chunk to be framed."""

    def __init__(self, rng, association, length, *, again=False):
        self.octets = rng.randbytes(length)
        control = rng.random() < 0.1
        sid, ssn, tsn = rng.getrandbits(16), rng.getrandbits(16), association.tsn
        if again:
            tsn = rng.getrandbits(32)
        else:
            association.tsn = (tsn + 1) % 2**32
        self.stream, self.tsn, self.offset = rng.getrandbits(16), tsn, rng.getrandbits(32)
        self.head = {
            "length": length, "control": control, "association": association.number,
            "stream": self.stream, "sid": sid, "ssn": ssn, "again": again, "tsn": tsn * again,
            "record": {"offset": self.offset},
        }  # fmt: skip
        user_data = ssn.to_bytes(2, "big") + self.octets
        self.frame = association.frame(tsn, sid, 17 if control else 16, user_data)


def frame_all(width, associations, chunks, *, stall=0.0, idle=0.0, seed=1):
    """Returns the frames that the framer makes, and the cycles of their last beats."""
    dut, rng, octets = shared(ChunkFramer, width, ASSOCIATIONS), random.Random(seed), width // 8
    frames, left = [], []
    settings = [each.setting for each in associations]
    words = [
        {"association": each.number, "at": at, "word": word}
        for each in associations
        for at, word in each.path.words.items()
    ]
    for each, setting in zip(associations, settings, strict=True):
        setting["tsn"] = each.first_tsn

    async def source(ctx):
        await send(ctx, dut.word, words)
        await send(ctx, dut.set, settings)
        beats = [beat for chunk in chunks for beat in beats_of(chunk.octets, octets)]
        await send(ctx, dut.i, beats, idle=idle, rng=rng)

    async def heads(ctx):
        await ctx.tick().repeat(len(words) + 8 * len(settings) + 8)
        await send(ctx, dut.heads, [chunk.head for chunk in chunks], idle=idle, rng=rng)

    async def sink(ctx):
        packet, waiting, ready = b"", None, 0
        ticks = ctx.tick().sample(dut.o.valid, Value.cast(dut.o.payload))
        async for cycle, (valid, beat) in numbered(ticks):
            if waiting is not None:
                assert valid and beat == waiting, "the offer changes before the transfer"
            waiting = beat if valid and not ready else None
            if valid and ready:
                beat = decoded(dut.o, beat)
                packet += octets_of(beat.beat, octets)
                if beat.beat.last:
                    left.append(cycle)
                    frames.append((beat.stream, beat.sequence, beat.record.offset, packet))
                    packet = b""
                    if len(frames) == len(chunks):
                        return
            ready = rng.random() >= stall
            ctx.set(dut.o.ready, ready)

    simulate(dut, source, heads, sink, limit=100_000)
    return frames, left


def _associations(seed):
    rng = random.Random(seed)
    found = [Association(rng, number) for number in range(ASSOCIATIONS)]
    for each in found:
        each.first_tsn = each.tsn
    return rng, found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("stall", "idle"), [(0, 0), *long((0.3, 0.5))])
def test_every_frame_is_scapys(width, stall, idle, pytestconfig):
    rng, associations = _associations(width)
    octets = width // 8
    lengths = [*range(2, 2 * octets + 6), 1440, 9000 - 30, *(
        rng.randrange(2, 300) for _ in range(20))]  # fmt: skip
    if not stall and (width > 64 or pytestconfig.getoption("--long")):
        lengths.append(LONGEST_BODY)
    rng.shuffle(lengths)
    chunks = [
        Sent(rng, rng.choice(associations), length, again=rng.random() < 0.2)
        for length in lengths
    ]  # fmt: skip
    frames, _ = frame_all(width, associations, chunks, stall=stall, idle=idle)
    for chunk, frame in zip(chunks, frames, strict=True):
        assert frame == (chunk.stream, chunk.tsn, chunk.offset, chunk.frame)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("number", [0, 3])
def test_a_frame_takes_its_beats(width, number):
    """A frame that does not begin at the first lane of a row takes one cycle more."""
    rng, associations = _associations(width)
    association, octets = associations[number], width // 8
    for length in (18, 100):
        association.first_tsn = association.tsn
        chunks = [Sent(rng, association, length) for _ in range(24)]
        _, left = frame_all(width, [association], chunks)
        beats = -(-len(chunks[0].frame) // octets)
        bubble = 4 * association.path.first % octets > 0
        spent = left[-1] - left[-9]
        assert spent <= 8 * max(beats + bubble, 2)


@pytest.mark.parametrize("width", NARROW)
def test_after_a_reset_nothing_is_left_of_what_was_under_way(width):
    """A reset of one cycle, at any time of a packet."""
    dut, reset, octets = ChunkFramer(width, ASSOCIATIONS), Signal(), width // 8
    rng, associations = _associations(width)
    association, left = associations[5], []
    setting = association.setting

    async def drive(ctx):
        words = association.path.words.items()
        await send(ctx, dut.word, [
            {"association": 5, "at": at, "word": word} for at, word in words])  # fmt: skip
        for until in range(1, 60, 7):
            await send(ctx, dut.set, [setting])
            association.tsn = setting["tsn"]
            lost, whole = Sent(rng, association, 40), Sent(rng, association, 40)
            beats = [*beats_of(lost.octets, octets)]
            await send(ctx, dut.heads, [lost.head])
            for _ in range(until):
                beat = beats[0] if beats else None
                ctx.set(dut.i.valid, beat is not None)
                if beat is not None:
                    ctx.set(dut.i.payload, beat)
                _, _, ready = await ctx.tick().sample(dut.i.ready)
                if beat is not None and ready:
                    beats.pop(0)
            ctx.set(dut.i.valid, 0)
            ctx.set(reset, 1)
            await ctx.tick()
            ctx.set(reset, 0)
            left.clear()
            await ctx.tick().repeat(60)
            assert not left
            await send(ctx, dut.set, [setting])
            await send(ctx, dut.heads, [whole.head])
            await send(ctx, dut.i, beats_of(whole.octets, octets))
            await ctx.tick().repeat(100)
            frame = association.frame(
                setting["tsn"], whole.head["sid"], 17 if whole.head["control"] else 16,
                whole.head["ssn"].to_bytes(2, "big") + whole.octets,
            )  # fmt: skip
            assert b"".join(left) == frame

    async def watch(ctx):
        ctx.set(dut.o.ready, 1)
        ticks = ctx.tick().sample(dut.o.valid, Value.cast(dut.o.payload))
        async for _, _, valid, beat in ticks:
            if valid:
                left.append(octets_of(decoded(dut.o, beat).beat, octets))

    simulate(ResetInserter(reset)(dut), drive, background=[watch], limit=20_000)
