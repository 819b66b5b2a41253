"""Tests the way from work requests to FPDUs. Senders of captures are the judges: the work requests
that they posted are derived, and the blocks have to send the same FPDUs, octet for octet.
"""

import random
from collections import deque
from pathlib import Path

import pytest
from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.bus.axi import AxiRead
from ddp_rnic.hdl.dma.read import ReadDma
from ddp_rnic.hdl.dma.staging import StagedHead
from ddp_rnic.hdl.dma.tests.test_read import Bus
from ddp_rnic.hdl.lib.testing import Sinks, numbered, octets_of, send, simulate
from ddp_rnic.hdl.mpa.framer import FpduBeat, FpduHead, Framer
from ddp_rnic.hdl.send.segmenter import ENDS, Mulpdu, NextMsn, Segmenter
from ddp_rnic.hdl.send.work import WorkEntry
from ddp_rnic.hdl.spec.send import ENTRY, Flag, Kind, Message, Piece
from ddp_rnic.sim.capture.capture import read_capture
from ddp_rnic.sim.capture.traffic import traffic_of
from ddp_rnic.sim.model.mpa import MARKER_SPACING, MpaSender
from ddp_rnic.sim.model.rdmap import QueueNumber, ReadRequest
from ddp_rnic.sim.replay.sending import REGION
from ddp_rnic.sim.replay.sending import send as send_by_model

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "captures"
CAPTURES = sorted([*SHARED.glob("i*/**/*.pcap"), *SHARED.glob("synthetic/*.pcap")])
STREAMS = 64
#: The bus address of the inline memory, and its rows.
INLINE, ROWS = 1 << 62, 256


class Chain(wiring.Component):
    """The blocks, without the check of STags: a piece's Tagged Offset is its address."""

    def __init__(self, width):
        self.width = width
        super().__init__({
            "i": In(stream.Signature(WorkEntry(STREAMS))),
            "mulpdus": In(stream.Signature(Mulpdu(STREAMS), always_ready=True)),
            "msns": In(stream.Signature(NextMsn(STREAMS))),
            "inline": Out(stream.Signature(8 * ENTRY)),
            "bus": Out(AxiRead(width, 64)),
            "staged": Out(stream.Signature(StagedHead())),
            "heads": In(stream.Signature(FpduHead())),
            "o": Out(stream.Signature(FpduBeat(width))),
        })  # fmt: skip

    def elaborate(self, platform):
        m = Module()
        m.submodules.segmenter = segmenter = Segmenter(STREAMS, inline=ROWS)
        m.submodules.dma = dma = ReadDma(self.width)
        m.submodules.framer = framer = Framer(self.width)
        for name in ("i", "mulpdus", "msns"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(segmenter, name))
        wiring.connect(m, segmenter.inline, wiring.flipped(self.inline))
        wiring.connect(m, segmenter.segments, dma.segments)
        wiring.connect(m, dma.reserved, segmenter.reserved)
        wiring.connect(m, dma.bus, wiring.flipped(self.bus))
        wiring.connect(m, dma.heads, wiring.flipped(self.staged))
        wiring.connect(m, dma.o, framer.i)
        wiring.connect(m, wiring.flipped(self.heads), framer.heads)
        wiring.connect(m, framer.o, wiring.flipped(self.o))
        part, piece = segmenter.parts.payload, dma.pieces.payload
        m.d.comb += [
            dma.pieces.valid.eq(segmenter.parts.valid),
            segmenter.parts.ready.eq(dma.pieces.ready),
            piece.address.eq(part.to | Mux(part.inline, INLINE, 0)),
            *(piece[name].eq(part[name]) for name in ("length", "last", "refused")),
        ]
        return m


class Host:
    """The memory of the senders, and their send rings."""

    def __init__(self):
        self.octets, self.entries, self.inline = bytearray(), [], bytearray(ENTRY * ROWS)

    def __call__(self, address):
        """Returns an octet of memory; those around the pieces must not be sent."""
        if address >= INLINE:
            return self.inline[(address - INLINE) % len(self.inline)]
        return self.octets[address] if address < len(self.octets) else 0xEE

    def post(self, number, message, octets):
        """Puts a work request in the ring of a stream, and its octets in memory."""
        if message.kind is Kind.READ:  # the block that makes the request will come first
            (sink,) = message.pieces
            request = ReadRequest(sink.stag, sink.to, sink.length, message.stag, message.to)
            message = Message(
                Kind.UNTAGGED, Flag.INLINE, octets=request.encode(), qn=QueueNumber.READ_REQUEST,
                rsvdulp=message.rsvdulp,
            )  # fmt: skip
        elif message.pieces:
            self.octets += bytes([0xEE]) * 13
            moved = len(self.octets) - REGION.to
            self.octets += octets
            pieces = [Piece(each.stag, each.length, each.to + moved) for each in message.pieces]
            message = Message(message.kind, message.flags, tuple(pieces), rsvdulp=message.rsvdulp,
                              qn=message.qn, stag=message.stag, to=message.to)  # fmt: skip
        raw = message.encode()
        self.entries += [
            {"stream": number, "entry": int.from_bytes(raw[at : at + ENTRY], "little")}
            for at in range(0, len(raw), ENTRY)
        ]


def send_all(width, host, sent, bus, count, *, stall=0.0):
    """Returns the FPDUs that leave, by stream. ``sent`` has the result of each stream's sender."""
    dut, rng, octets = Chain(width), random.Random(1), width // 8
    packets, packet, framed = [[] for _ in sent], bytearray(), deque()
    senders = [MpaSender(crc=each.stream.crc, markers=each.stream.markers,
                         position=each.stream.position) for each in sent]  # fmt: skip

    async def give(ctx):
        for number, each in enumerate(sent):
            await send(ctx, dut.mulpdus, [{"stream": number, "mulpdu": each.mulpdu}])
            msns = [{"stream": number, "qn": qn, "msn": each.stream.first_msn(qn)}
                    for qn in range(4)]  # fmt: skip
            await send(ctx, dut.msns, msns)
        await send(ctx, dut.i, host.entries)

    async def frame(ctx):
        while True:
            while not framed:
                await ctx.tick()
            await send(ctx, dut.heads, [framed.popleft()])

    async def take(ctx):
        row = 0
        streams = {"inline": dut.inline, "staged": dut.staged, "o": dut.o}
        sinks = Sinks(streams, stalls={"o": stall}, rng=rng)
        async for _, values in numbered(ctx.tick().sample(*sinks.signals)):
            for seen in sinks.look(values):
                if not seen.taken:
                    continue
                if seen.name == "inline":
                    host.inline[row : row + ENTRY] = seen.payload.to_bytes(ENTRY, "little")
                    row = (row + ENTRY) % len(host.inline)
                elif seen.name == "staged":
                    head = seen.payload
                    assert not head.refused and not head.failed
                    number, length = head.tag & (1 << ENDS) - 1, head.lead + head.length
                    sender = senders[number]
                    framed.append({
                        "length": length,
                        "settings": {"crc": sender.crc, "markers": sender.markers},
                        "phase": sender.position % MARKER_SPACING // 4, "stream": number,
                        "sequence": sender.position & 0xFFFFFFFF, "repeat": 0,
                    })  # fmt: skip
                    sender.send(bytes(length))  # for the position of the next FPDU
                else:
                    packet.extend(octets_of(seen.payload.beat, octets))
                    if seen.payload.beat.last:
                        packets[seen.payload.stream].append(bytes(packet))
                        packet.clear()
            if sum(map(len, packets)) == count:
                return
            sinks.set_ready(ctx)

    async def serve(ctx):
        await bus.serve(ctx, dut.bus)

    simulate(dut, take, background=[give, frame, serve], limit=2_000_000)
    return packets


@pytest.mark.skipif(not CAPTURES, reason="needs the captures of real stacks beside the project")
@pytest.mark.parametrize(("width", "most"), [(512, 5), (64, 2)])
def test_what_kernels_sent_leaves_again(width, most, pytestconfig):
    """Of each sender, the first messages are sent; with --long all of them."""
    most = None if pytestconfig.getoption("--long") else most
    sent = [each for path in CAPTURES for each in send_by_model(traffic_of(read_capture(path)))]
    host, rows = Host(), [(number, each.posts[:most]) for number, each in enumerate(sent)]
    for number, posts in rows:
        for post in posts:
            host.post(number, post.message, post.octets)
    arrivals = [[each for post in posts for each in post.arrivals] for _, posts in rows]
    assert len(sent) <= STREAMS and all(arrivals)
    bus = Bus(width, latency=20, mixed=0.5, memory=host)
    packets = send_all(width, host, sent, bus, sum(map(len, arrivals)), stall=0.1)
    for each, mine, theirs in zip(sent, packets, arrivals, strict=True):
        padded = 0
        for packet, arrival in zip(mine, theirs, strict=True):
            if packet != arrival.raw:
                # PAD is the sender's choice, and the model has judged that nothing else differs.
                sender = MpaSender(crc=each.stream.crc, markers=each.stream.markers,
                                   position=arrival.position)  # fmt: skip
                assert packet == sender.send(arrival.ulpdu), arrival
                padded += 1
        assert padded <= each.padded
