"""The receive front of SCTP: frames in; chunks out, each with what is to become of it."""

from amaranth import *
from amaranth.lib import data, enum, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.crc32c import Checksum
from ..lib.stream import Backlog, Beat, Queue, delayed
from ..spec.sctp import MOST_CHUNKS
from .association import AssociationResult, AssociationTable, AssociationWrite
from .frame import FrameBeat, FrameParser
from .frame import Kind as FrameKind
from .walker import Kind, PacketJudge, SctpSegment, SctpWalker

__all__ = ["Fate", "ItemHold", "SctpItem", "SctpReceiver"]


class Fate(enum.Enum, shape=2):
    """What becomes of a frame, and of every item of it."""

    TAKEN = 0  # a sound packet of an association: each item goes its own way
    EXCEPTION = 1  # the frame leaves whole, to the host
    DROPPED = 2  # it is damaged


class SctpItem(data.StructLayout):
    """A chunk, or the end of a frame.

    Members
    -------
    fate : Fate
    association : range(config.associations)
        TAKEN: whose it is.
    stream : 16
        TAKEN, and ``ddp``: its DDP Stream.
    ddp : 1
        Its SCTP stream is a DDP Stream.
    last : 1
        TAKEN: the frame's last chunk.
    end : position
        With ``last``: the word after the frame's last.
    kind, header, ssn, tsn, start, payload, length, chunks
        As of the :class:`~.walker.SctpSegment`.
    """

    #: What is passed on as it came.
    PASSED = ("header", "ssn", "tsn", "start", "payload", "length", "chunks")

    def __init__(self, config):
        shape = SctpSegment(config)
        super().__init__({
            "fate": Fate, "association": range(config.associations), "stream": 16, "ddp": 1,
            "last": 1, "end": shape["payload"].shape, "kind": Kind,
            **{name: shape[name].shape for name in self.PASSED},
        })


class _Ending(data.StructLayout):
    """How a frame ended.

    Members
    -------
    items : range(places of the hold)
        That are held, without the last.
    sctp, oversize : 1
        As of the :class:`~.walker.SctpSegment`.
    broken : 1
        Its framing is, or items of it are not held.
    end : position
        The word after the frame's last.
    """

    def __init__(self, config):
        super().__init__({
            "items": range(ItemHold.DEPTH), "sctp": 1, "oversize": 1, "broken": 1,
            "end": range(config.buffer_octets // 4),
        })


class _Record(data.StructLayout):
    """What is known of a frame whose items may leave: ``items`` without the last, its ``fate`` and
    ``end``, and ``association``, ``first`` and ``streams`` of its entry.
    """

    def __init__(self, config):
        super().__init__({
            "items": range(ItemHold.DEPTH), "fate": Fate, "end": range(config.buffer_octets // 4),
            "association": range(config.associations), "first": 16, "streams": 16,
        })


class ItemHold(wiring.Component):
    """Holds the items of frames until it is known what becomes of them.

    Of a frame with ``MOST_CHUNKS`` chunks or more, only so many are held, and it is an EXCEPTION.
    What is true first counts:

    * a frame that is damaged, or that the packet buffer does not hold, is DROPPED;
    * one that is of no association is an EXCEPTION, whatever its checksum, which is the host's to
      judge: it may have agreed on another one (RFC 9653);
    * a packet whose checksum is wrong is DROPPED (RFC 9260 section 6.8), and so is one whose length
      is no multiple of four octets;
    * one whose framing is broken is an EXCEPTION;
    * any other is TAKEN.

    Latency: 13 cycles from a frame's last item, or 12 from its verdict, to its first item.
    Throughput: an item a cycle. Reset: empty. Errors: see above.

    Members
    -------
    segments : In(stream.Signature(SctpSegment(config), always_ready=True))
    owners : In(stream.Signature(AssociationResult(associations), always_ready=True))
        One for each frame, before its last item.
    verdicts : In(stream.Signature({good: 1}, always_ready=True))
        One for each frame with an SCTP packet, no more than 30 cycles after its last item.
    half : Out(1)
        60 more owners may come after it falls.
    room : Out(1)
        There is room for some items; a few may come after it falls.
    go : In(1)
        An item may leave. It comes out three cycles later.
    o : Out(stream.Signature(SctpItem(config), always_ready=True))
    busy : Out(1)
        Items are held.
    """

    DEPTH = 512
    #: Places that are kept free for items on their way when ``room`` falls.
    MARGIN = 16

    def __init__(self, config):
        self.config = config
        verdict = data.StructLayout({"good": 1})
        item = SctpItem(config)
        super().__init__({
            "segments": In(stream.Signature(SctpSegment(config), always_ready=True)),
            "owners": In(stream.Signature(
                AssociationResult(config.associations), always_ready=True)),
            "verdicts": In(stream.Signature(verdict, always_ready=True)),
            "half": Out(1),
            "room": Out(1),
            "go": In(1),
            "o": Out(stream.Signature(item, always_ready=True)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        segment = self.segments.payload
        write, read = Signal(range(self.DEPTH)), Signal(range(self.DEPTH))
        used = Signal.like(write)
        held = Signal()

        # In: an item that is one too many is written and then written over.
        is_frame = segment.kind == Kind.FRAME
        # Of 512, the last 64.
        many = segment.chunks[6:9].all() | segment.chunks[9:].any()
        with m.If(self.segments.valid & (is_frame | ~many)):
            m.d.sync += write.eq(write + 1)
        ended, ending = Signal(), Signal(_Ending(self.config), reset_less=True)
        m.d.sync += [
            ended.eq(self.segments.valid & is_frame),
            ending.items.eq(Mux(many, MOST_CHUNKS, segment.chunks[:9])),
            ending.sctp.eq(segment.sctp),
            ending.oversize.eq(segment.oversize),
            ending.broken.eq(segment.framing | many),
            ending.end.eq(segment.payload),
        ]
        records = self._judge(m, ended, ending)
        m.d.sync += [
            used.eq(write - read),
            self.room.eq(~used[self.MARGIN.bit_length() - 1 :].all() & records.half),
            held.eq((write != read) | self.segments.valid),
        ]

        # Out: so many items as the frame has.
        record = Signal(_Record(self.config), reset_less=True)
        have, final, last = Signal(), Signal(), Signal()
        issue = Signal()
        left = Signal(range(self.DEPTH))
        m.d.comb += [
            issue.eq(have & self.go),
            records.o.ready.eq(~have | (final & self.go)),
        ]
        with m.If(issue):
            m.d.sync += [
                read.eq(read + 1), left.eq(left - 1), final.eq(left == 1), last.eq(left == 2)]
        with m.If(records.o.ready):
            m.d.sync += [
                have.eq(records.o.valid),
                record.eq(records.o.payload),
                left.eq(records.o.payload.items),
                final.eq(~records.o.payload.items.any()),
                last.eq(records.o.payload.items == 1),
            ]
        leaving = self._leave(m, write, read, issue, record, last)
        m.d.comb += self.busy.eq(held | leaving)
        return m

    def _judge(self, m, ended, ending):
        """The records, one for each frame: what becomes of it."""
        m.submodules.endings = endings = Queue(_Ending(self.config), depth=32)
        m.submodules.owners = owners = Backlog(
            AssociationResult(self.config.associations), depth=128,
            relaxed=self.config.relaxed)
        m.submodules.verdicts = verdicts = Queue(1, depth=16)
        m.submodules.records = records = Backlog(
            _Record(self.config), depth=128, relaxed=self.config.relaxed)
        take = Signal()
        m.d.comb += [
            endings.i.valid.eq(ended),
            endings.i.payload.eq(ending),
            owners.i.valid.eq(self.owners.valid),
            owners.i.payload.eq(self.owners.payload),
            verdicts.i.valid.eq(self.verdicts.valid),
            verdicts.i.payload.eq(self.verdicts.payload.good),
            self.half.eq(owners.half),
            take.eq(endings.o.valid & owners.o.valid
                    & (verdicts.o.valid | ~endings.o.payload.sctp)),
            endings.o.ready.eq(take),
            owners.o.ready.eq(take),
            verdicts.o.ready.eq(take & endings.o.payload.sctp),
        ]
        end, owner, good = endings.o.payload, owners.o.payload, verdicts.o.payload
        record = records.i.payload
        said = Signal(_Record(self.config), reset_less=True)
        m.d.comb += record.eq(said)
        m.d.sync += [
            records.i.valid.eq(take),
            said.items.eq(end.items),
            said.end.eq(end.end),
            said.association.eq(owner.association),
            said.first.eq(owner.first),
            said.streams.eq(owner.streams),
        ]
        with m.If((owner.kind == FrameKind.DAMAGED) | end.oversize | (owner.found & ~good)):
            m.d.sync += said.fate.eq(Fate.DROPPED)
        with m.Elif(~owner.found | end.broken):
            m.d.sync += said.fate.eq(Fate.EXCEPTION)
        with m.Else():
            m.d.sync += said.fate.eq(Fate.TAKEN)
        return records

    def _leave(self, m, write, read, issue, record, last):
        """Reads items, what decides on their kind a cycle before the rest; whether one is read."""
        segment, item = self.segments.payload, self.o.payload
        early = data.StructLayout({"kind": Kind, "stream": 16})
        late = data.StructLayout(
            {name: item.shape()[name].shape for name in SctpItem.PASSED})
        at = delayed(m, 1, read, "at")
        held = []
        for name, shape, address in (("early", early, read), ("late", late, at)):
            # An item is not read in the cycle that it is written in, so synthesis need not
            # provide for that.
            m.submodules[name] = storage = memory.Memory(
                shape=shape, depth=self.DEPTH, init=[],
                attrs={"ram_style": "block", "no_rw_check": 1})
            writing, reading = storage.write_port(), storage.read_port()
            m.d.comb += [
                writing.en.eq(self.segments.valid),
                writing.addr.eq(write),
                *(writing.data[field].eq(segment[field]) for field, _ in shape),
                reading.addr.eq(address),
            ]
            # Without reset, to become the output register of the block RAM.
            out = Signal(shape, name=f"{name}_held", reset_less=True)
            m.d.sync += out.eq(reading.data)
            held.append(out)
        known, rest = held

        # The record of what was read two cycles before.
        said = delayed(m, 2, record, "said")
        kind = Signal(Kind, reset_less=True)
        valid = Signal(3)
        m.d.sync += [
            valid.eq(Cat(issue, valid)),
            item.stream.eq(said.first + known.stream),
            item.fate.eq(said.fate),
            item.association.eq(said.association),
            item.last.eq(delayed(m, 2, last, "last") & (said.fate == Fate.TAKEN)),
            item.end.eq(said.end),
            kind.eq(known.kind),
            item.ddp.eq(known.stream < said.streams),
        ]
        m.d.comb += [
            self.o.valid.eq(valid[-1]),
            *(item[name].eq(rest[name]) for name in SctpItem.PASSED),
            item.kind.eq(kind),
        ]
        return valid.any()


class SctpReceiver(wiring.Component):
    """Receives SCTP: from Ethernet frames to chunks whose packet is known to be good, and to be of
    an association of DDP.

    .. code-block:: text

        frames ─► FrameParser ─► beats ─► SctpWalker ─► items ─► ItemHold ─► items
                       │                      │ slices               ▲ ▲
                       │                      ▼                      │ │
                       │                 (CRC unit) ─► PacketJudge ──┘ │
                       └─► AssociationTable ───────────────────────────┘

    The packet buffer and the CRC unit are outside, so that they can be shared.

    Every chunk gives an item, and then every frame one of kind FRAME, in the order in which they
    came. ``fate`` is that of the frame:

    * TAKEN: SEGMENT and CONTROL are for DDP if ``ddp``, CHUNK and REFUSED leave one by one to the
      host, the last of them frees the packet buffer, and FRAME does so where there is none;
    * EXCEPTION: with FRAME the frame leaves to the host as it came, and nothing else of it does;
    * DROPPED: FRAME frees the packet buffer.

    :class:`ItemHold` says which. A frame of ``MOST_CHUNKS`` chunks or more is an EXCEPTION, and
    those from that number on do not show.

    Latency: 76 cycles at 64 bits, 78 at 512, from a frame's last beat to its first item: 43 through
    the parser, 5 to the walker, and 12 from the checksum's verdict. Throughput: a beat a cycle, or
    an item a cycle. Reset: empty; associations stay. Errors: see above; nothing holds the receiver
    up but ``space`` and ``go``.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature(Beat(width)))
        Ethernet frames without FCS.
    write : In(stream.Signature(AssociationWrite(associations), always_ready=True))
    store, slices, beats
        To the packet buffer and the CRC unit, as of the :class:`~.walker.SctpWalker`.
    checksums : In(stream.Signature(Checksum(), always_ready=True))
        From the CRC unit, within 25 cycles.
    space : In(1)
        Of the packet buffer.
    go : In(1)
        An item may leave. It comes out three cycles later.
    o : Out(stream.Signature(SctpItem(config), always_ready=True))
    busy : Out(1)
        Something is inside.
    """

    def __init__(self, config):
        self.config = config
        self._walker = walker = SctpWalker(config)
        # An SCTP packet takes at least 46 octets of a frame, and as long until its names are the
        # next one's.
        self._table = AssociationTable(
            associations=config.associations, words=max(1, 256 // config.width))
        item = SctpItem(config)
        super().__init__({
            "i": In(stream.Signature(Beat(config.width))),
            "write": In(stream.Signature(
                AssociationWrite(config.associations), always_ready=True)),
            **{name: walker.signature.members[name] for name in ("store", "slices", "beats")},
            "checksums": In(stream.Signature(Checksum(), always_ready=True)),
            "space": In(1),
            "go": In(1),
            "o": Out(stream.Signature(item, always_ready=True)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        width = self.config.width
        m.submodules.parser = parser = FrameParser(width, udp_port=self.config.udp_port)
        m.submodules.beats = beats = Backlog(
            FrameBeat(width), depth=128, relaxed=self.config.relaxed)
        m.submodules.walker = walker = self._walker
        m.submodules.judge = judge = PacketJudge()
        m.submodules.table = table = self._table
        m.submodules.hold = hold = ItemHold(self.config)

        # The backlog, and that of the owners, take all that can be in the parser and the table.
        go = Signal()
        taken = Signal()
        m.d.sync += go.eq(beats.half & hold.half)
        m.d.comb += [
            taken.eq(self.i.valid & go & parser.i.ready),
            parser.i.valid.eq(self.i.valid & go),
            parser.i.payload.eq(self.i.payload),
            self.i.ready.eq(parser.i.ready & go),
        ]
        wiring.connect(m, parser.o, beats.i)
        wiring.connect(m, beats.o, walker.i)
        wiring.connect(m, parser.frames, table.i)
        wiring.connect(m, wiring.flipped(self.write), table.write)
        wiring.connect(m, table.o, hold.owners)
        wiring.connect(m, walker.store, wiring.flipped(self.store))
        wiring.connect(m, walker.slices, wiring.flipped(self.slices))
        wiring.connect(m, walker.checksums, judge.expected)
        wiring.connect(m, wiring.flipped(self.checksums), judge.checksums)
        wiring.connect(m, walker.segments, hold.segments)
        wiring.connect(m, judge.o, hold.verdicts)
        wiring.connect(m, hold.o, wiring.flipped(self.o))
        m.d.comb += [self.beats.eq(walker.beats), hold.go.eq(self.go)]
        m.d.sync += walker.go.eq(hold.room & self.space)

        # For so long after a beat it may be in the parser.
        recent = Signal(range(64))
        with m.If(taken):
            m.d.sync += recent.eq(-1)
        with m.Elif(recent.any()):
            m.d.sync += recent.eq(recent - 1)
        m.d.comb += self.busy.eq(
            recent.any() | beats.level.any() | walker.busy | hold.busy)
        return m
