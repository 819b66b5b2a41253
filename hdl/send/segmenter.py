"""Cuts messages into DDP Segments, and says which octets each segment has (RFC 5041 section 5.2).

The data's way::

    entries ─ WorkReader ┬ messages ─ Numbering ─ Cutter ─┬ segments ─────────► ReadDma.segments
                         │                                └ shares ┐  reserved ◄─ ReadDma
                         ├ pieces ───────────────────── PieceCutter ┴ parts ─► checks ─► ReadDma
                         └ inline ─► inline memory

Budget of cycles, at every width: a segment each 2 cycles, a part of a piece each 2 cycles, and a
piece each cycle into the queue. From an entry to its first segment 10, and from ``reserved`` to the
segment's first part 5. So a segment of one part costs no more than its beats if it has two of them.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..dma.jobs import LENGTH_BITS
from ..dma.read import ReadSegment
from ..lib.blockram import ForwardedTable
from ..lib.stream import Store, counted, delayed
from ..spec.ddp import TAGGED_HEADER, UNTAGGED_HEADER, VERSION
from .pieces import PieceCutter, SendPart, Share
from .work import QUEUES, LocalPiece, SendMessage, WorkEntry, WorkReader

__all__ = ["Cutter", "Numbering", "Segmenter"]

QUEUE = 16
#: Bit of a segment's tag that marks the last segment of a message. The lower bits are the stream.
ENDS = 15


class _Numbered(data.StructLayout):
    """A message whose MSN is known.

    Members
    -------
    stream, tagged, rsvdulp, refused
        As in :class:`~.work.SendMessage`.
    name : 32
        The STag or the Queue Number.
    at : 64
        Tagged Offset or Message Offset of the next segment.
    msn : 32
    left : 33
        Octets of the message that are not cut yet, and of one header.
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "tagged": 1, "rsvdulp": 40, "refused": 1, "name": 32,
            "at": 64, "msn": 32, "left": 33})


class NextMsn(data.StructLayout):
    """The MSN of the next message on a queue: ``stream``, ``qn`` and ``msn`` (32)."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "qn": range(QUEUES), "msn": 32})


class Mulpdu(data.StructLayout):
    """The MULPDU of a stream: ``stream`` and ``mulpdu`` (16), the octets of the longest segment."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "mulpdu": 16})


class Numbering(wiring.Component):
    """Gives each untagged message the next MSN of its queue.

    Latency: 3 cycles. Throughput: one message in 2 cycles. Reset: empty; the MSNs stay. Errors:
    none.

    Members
    -------
    msns : In(stream.Signature(NextMsn(streams)))
        To be written while no message of the stream is under way.
    i : In(stream.Signature(SendMessage(streams)))
    o : Out(stream.Signature(_Numbered(streams)))
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "msns": In(stream.Signature(NextMsn(streams))),
            "i": In(stream.Signature(SendMessage(streams))),
            "o": Out(stream.Signature(_Numbered(streams))),
        })

    def elaborate(self, platform):
        m = Module()
        message = self.i.payload
        m.submodules.queue = queue = Store(_Numbered(self.streams), depth=8)
        m.submodules.table = table = ForwardedTable(32, self.streams * QUEUES)
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        # A look-up sees what the one before it wrote, two cycles earlier.
        takes, took = Signal(), Signal(2)
        numbered = Signal(_Numbered(self.streams))
        m.d.comb += [
            self.i.ready.eq(queue.half & ~took[0]),
            takes.eq(self.i.valid & self.i.ready),
            table.address[0].eq(Cat(message.qn, message.stream)),
        ]
        m.d.sync += [
            took.eq(Cat(takes, took)),
            *(numbered[name].eq(message[name])
              for name in ("stream", "tagged", "rsvdulp", "refused")),
            numbered.name.eq(Mux(message.tagged, message.stag, message.qn)),
            numbered.at.eq(Mux(message.tagged, message.to, 0)),
            numbered.left.eq(
                message.length + Mux(message.tagged, TAGGED_HEADER, UNTAGGED_HEADER)),
        ]
        found, own = queue.i.payload, Signal()
        m.d.comb += [
            queue.i.valid.eq(took[1]),
            found.eq(delayed(m, 1, numbered, "numbered")),
            found.msn.eq(table.data[0]),
            own.eq(took[1] & ~found.tagged & ~found.refused),
            self.msns.ready.eq(~own),
            table.write.valid.eq(own | self.msns.valid),
            table.write.payload.address.eq(Mux(
                own, Cat(delayed(m, 2, message.qn, "qn"), found.stream),
                Cat(self.msns.payload.qn, self.msns.payload.stream))),
            table.write.payload.data.eq(Mux(own, table.data[0] + 1, self.msns.payload.msn)),
        ]
        return m


class Cutter(wiring.Component):
    """Cuts messages into segments, each as long as its stream's MULPDU allows.

    The MULPDU is read for each segment, so a change holds from the next one on. A message whose
    stream has a MULPDU without room for an octet of payload is refused.

    Latency: 4 cycles. Throughput: one segment in 2 cycles, without a bubble between messages.
    Reset: no message; the MULPDUs stay. Errors: none.

    Members
    -------
    mulpdus : In(stream.Signature(Mulpdu(streams), always_ready=True))
        To be written at any time, for segments that are cut 3 cycles later or after.
    i : In(stream.Signature(_Numbered(streams)))
    go : In(1)
        There is room for two segments. The credit of streams will belong here.
    segments : Out(stream.Signature(ReadSegment(), always_ready=True))
        The tag is the number of the stream; bit ``ENDS`` marks a message's last segment.
    shares : Out(stream.Signature(Share(streams), always_ready=True))
        The same segments.
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "mulpdus": In(stream.Signature(Mulpdu(streams), always_ready=True)),
            "i": In(stream.Signature(_Numbered(streams))),
            "go": In(1),
            "segments": Out(stream.Signature(ReadSegment(), always_ready=True)),
            "shares": Out(stream.Signature(Share(streams), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = ForwardedTable(16, self.streams, reads=2)
        now, valid = Signal(_Numbered(self.streams)), Signal()
        # A segment takes two steps: it is weighed, and then cut.
        weighs, cuts, ends, bad = Signal(), Signal(), Signal(), Signal()
        over = Signal(signed(34), reset_less=True)  # octets that do not fit, less one
        room, rest = Signal(LENGTH_BITS, reset_less=True), Signal(LENGTH_BITS, reset_less=True)
        small = Signal()
        mulpdu = self._mulpdu(m, table, now, cuts & ends, valid)
        header = Mux(now.tagged, TAGGED_HEADER, UNTAGGED_HEADER)
        m.d.comb += [
            weighs.eq(valid & self.go & ~cuts),
            bad.eq(now.refused | small),
            ends.eq(over[-1] | bad),
        ]
        m.d.sync += [
            cuts.eq(weighs),
            over.eq(now.left - mulpdu - 1),
            room.eq(mulpdu - header),
            rest.eq(now.left - header),
            small.eq(mulpdu <= header),
        ]

        # The upper half of the offset is added up one cycle after the lower one.
        carry, low = Signal(), Signal(33)
        m.d.comb += low.eq(now.at[:32] + room)
        with m.If(cuts):
            m.d.sync += [
                now.at[:32].eq(low), carry.eq(low[32] & now.tagged), now.left.eq(over + 1 + header)]
        with m.Else():
            m.d.sync += [now.at[32:].eq(now.at[32:] + carry), carry.eq(0)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [now.eq(self.i.payload), carry.eq(0)]

        segment, share = self.segments.payload, self.shares.payload
        length = Mux(bad, 0, Mux(ends, rest, room))
        m.d.sync += [
            self.segments.valid.eq(cuts),
            self.shares.valid.eq(cuts),
            segment.header.eq(self._header(now, ends)),
            segment.lead.eq(header),
            segment.length.eq(length),
            segment.tag.eq(now.stream | (ends << ENDS)),
            share.stream.eq(now.stream),
            share.length.eq(length),
            share.ends.eq(ends),
            share.refused.eq(bad),
        ]
        return m

    def _mulpdu(self, m, table, now, done, valid):
        """Takes messages; returns the MULPDU of the one that is being cut.

        It comes from the table's port for the message that waits until the message has been cut
        for two cycles, because the table takes two cycles.
        """
        waits = Signal()  # the message at the input was there in the last cycle
        fresh = Signal(2)
        m.d.comb += [
            table.write.valid.eq(self.mulpdus.valid),
            table.write.payload.address.eq(self.mulpdus.payload.stream),
            table.write.payload.data.eq(self.mulpdus.payload.mulpdu),
            table.address[0].eq(now.stream),
            table.address[1].eq(self.i.payload.stream),
            self.i.ready.eq(waits & (~valid | done)),
        ]
        takes = self.i.valid & self.i.ready
        m.d.sync += [waits.eq(self.i.valid & ~takes), fresh.eq(Cat(takes, fresh))]
        with m.If(takes):
            m.d.sync += valid.eq(1)
        with m.Elif(done):
            m.d.sync += valid.eq(0)
        return Mux(fresh.any(), table.data[1], table.data[0])

    def _header(self, now, ends):
        """Returns the DDP header (RFC 5041 sections 4.1 to 4.3), the first octet lowest."""
        def wire(value):
            return Cat(value.word_select(k, 8) for k in reversed(range(len(value) // 8)))

        control = Cat(C(VERSION, 2), C(0, 4), ends, now.tagged)
        tagged = Cat(control, now.rsvdulp[:8], wire(now.name), wire(now.at))
        untagged = Cat(
            control, now.rsvdulp, wire(now.name), wire(now.msn), wire(now.at[:32]))
        return Mux(now.tagged, tagged, untagged)


class Segmenter(wiring.Component):
    """Turns work requests into segments, and into the parts of pieces that their octets are.

    A part names an STag: what checks the STag stands between ``parts`` and the reads. ``reserved``
    says that there is room for a segment; only then do its parts leave. A segment that is refused
    has its last part marked so. That is the fault of the ring's entries: they are not valid, the
    pieces do not add up to the length, or there is no MULPDU. All further segments of the message
    are refused too.

    Latency: 10 cycles from a message's first entry to its first segment; 5 from ``reserved`` to a
    part. Throughput: one segment in 2 cycles, one part in 2 cycles. Reset: empty; MSNs and MULPDUs
    stay. Errors: ``refused``.

    Parameters
    ----------
    streams : int
        DDP Streams, a power of two, up to 4096.
    inline : int
        Rows of the inline memory, a power of two. A row has the octets of an entry.

    Members
    -------
    i : In(stream.Signature(WorkEntry(streams)))
        All entries of a message follow each other.
    mulpdus, msns
        As in :class:`Cutter` and :class:`Numbering`.
    segments : Out(stream.Signature(ReadSegment()))
    reserved : In(stream.Signature(16, always_ready=True))
        There is room for the next segment.
    parts : Out(stream.Signature(SendPart(streams)))
        The parts of reserved segments, one or more for each.
    inline : Out(stream.Signature(512))
        An entry with octets inline, for the next row of the inline memory.
    waits, begins : Out(1)
        An entry waits; a message begins, which will have one segment with the mark ``ENDS``.
    """

    def __init__(self, streams, *, inline=256):
        for name, value, least, most in (("streams", streams, 2, 4096), ("inline", inline, 4, 256)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"Segmenter {name} must be an integer, not {value!r}")
            if not least <= value <= most or value & value - 1:
                raise ValueError(
                    f"Segmenter {name} must be a power of two from {least} to {most},"
                    f" not {value!r}")
        self.streams, self.rows = streams, inline
        super().__init__({
            "i": In(stream.Signature(WorkEntry(streams))),
            "mulpdus": In(stream.Signature(Mulpdu(streams), always_ready=True)),
            "msns": In(stream.Signature(NextMsn(streams))),
            "segments": Out(stream.Signature(ReadSegment())),
            "reserved": In(stream.Signature(16, always_ready=True)),
            "parts": Out(stream.Signature(SendPart(streams))),
            "inline": Out(stream.Signature(512)),
            "waits": Out(1),
            "begins": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.reader = reader = WorkReader(self.streams, inline=self.rows)
        m.submodules.messages = messages = Store(SendMessage(self.streams), depth=4)
        m.submodules.pieces = pieces = Store(LocalPiece(), depth=QUEUE)
        m.submodules.numbering = numbering = Numbering(self.streams)
        m.submodules.cutter = cutter = Cutter(self.streams)
        m.submodules.segments = segments = Store(ReadSegment(), depth=QUEUE)
        m.submodules.shares = shares = Store(Share(self.streams), depth=QUEUE)
        m.submodules.parts = parts = PieceCutter(self.streams)
        wiring.connect(m, wiring.flipped(self.i), reader.i)
        wiring.connect(m, reader.inline, wiring.flipped(self.inline))
        wiring.connect(m, reader.messages, messages.i)
        wiring.connect(m, reader.pieces, pieces.i)
        wiring.connect(m, messages.o, numbering.i)
        wiring.connect(m, wiring.flipped(self.msns), numbering.msns)
        wiring.connect(m, numbering.o, cutter.i)
        wiring.connect(m, wiring.flipped(self.mulpdus), cutter.mulpdus)
        wiring.connect(m, cutter.segments, segments.i)
        wiring.connect(m, cutter.shares, shares.i)
        wiring.connect(m, segments.o, wiring.flipped(self.segments))
        wiring.connect(m, pieces.o, parts.pieces)
        wiring.connect(m, parts.o, wiring.flipped(self.parts))

        m.d.comb += [self.waits.eq(reader.waits), self.begins.eq(reader.messages.valid)]
        # A segment's parts wait until there is room for it.
        reserved = Signal(range(513))
        first = Signal()
        m.d.comb += [
            first.eq(reserved.any()),
            parts.shares.valid.eq(shares.o.valid & first),
            parts.shares.payload.eq(shares.o.payload),
            shares.o.ready.eq(parts.shares.ready & first),
        ]
        counted(m, reserved, self.reserved.valid, shares.o.valid & shares.o.ready)
        m.d.sync += [
            reader.go.eq(messages.half & pieces.half),
            cutter.go.eq(segments.half & shares.half),
        ]
        return m
