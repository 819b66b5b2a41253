"""Receives Ethernet frames and outputs SCTP chunks, each with the fate of its frame."""

from amaranth import *
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import BlockRam
from ..lib.crc32c import Checksum
from ..lib.stream import Backlog, Beat, Queue, delayed
from ..spec.sctp import MOST_CHUNKS
from .association import AssociationResult, AssociationTable, AssociationWrite
from .frame import FrameBeat, FrameParser
from .frame import Kind as FrameKind
from .walker import Kind, PacketJudge, SctpSegment, SctpWalker

__all__ = ["Fate", "ItemHold", "SctpItem", "SctpReceiver"]


class Fate(enum.Enum, shape=2):
    """The fate of a frame, and of all its items."""

    TAKEN = 0  # a valid packet of an association: each item is handled by its kind
    EXCEPTION = 1  # the whole frame is forwarded to the host
    DROPPED = 2  # the frame is damaged


class SctpItem(data.StructLayout):
    """A chunk, or the end of a frame.

    Members
    -------
    fate : Fate
    association : range(config.associations)
        TAKEN: the association of the packet.
    stream : 16
        TAKEN, with ``ddp``: the item's DDP Stream.
    ddp : 1
        Its SCTP stream is a DDP Stream.
    last : 1
        TAKEN: the item is the frame's last chunk.
    end : position
        With ``last``: the word after the frame's last one.
    kind, header, ssn, tsn, start, payload, length, chunks
        Those of the :class:`~.walker.SctpSegment`.
    """

    #: The members that are copied from the SctpSegment.
    PASSED = ("header", "ssn", "tsn", "start", "payload", "length", "chunks")

    def __init__(self, config):
        shape = SctpSegment(config)
        super().__init__({
            "fate": Fate, "association": range(config.associations), "stream": 16, "ddp": 1,
            "last": 1, "end": shape["payload"].shape, "kind": Kind,
            **{name: shape[name].shape for name in self.PASSED},
        })


class _Ending(data.StructLayout):
    """The end of a frame.

    Members
    -------
    items : range(depth of the hold)
        Items of the frame that are held, without the last one.
    sctp, oversize : 1
        Those of the :class:`~.walker.SctpSegment`.
    broken : 1
        The frame's framing is broken, or some of its items are not held.
    end : position
        The word after the frame's last one.
    """

    def __init__(self, config):
        super().__init__({
            "items": range(ItemHold.DEPTH), "sctp": 1, "oversize": 1, "broken": 1,
            "end": range(config.buffer_octets // 4),
        })


class _Record(data.StructLayout):
    """A frame whose items may leave.

    ``items``: their number without the last one. The frame's ``fate`` and ``end``; ``association``,
    ``first`` and ``streams`` from the entry of the association table.
    """

    def __init__(self, config):
        super().__init__({
            "items": range(ItemHold.DEPTH), "fate": Fate, "end": range(config.buffer_octets // 4),
            "association": range(config.associations), "first": 16, "streams": 16,
        })


class ItemHold(wiring.Component):
    """Holds the items of frames until the fate of their frame is known.

    If a frame has ``MOST_CHUNKS`` chunks or more, only the first ``MOST_CHUNKS`` are held, and the
    frame is an EXCEPTION. The first of these rules that applies decides the fate:

    * a frame that is damaged, or that does not fit the packet buffer, is DROPPED;
    * a frame of no association is an EXCEPTION, whatever its checksum: the host judges that,
      because it may have agreed on another checksum (RFC 9653);
    * a packet with a wrong checksum is DROPPED (RFC 9260 section 6.8), and so is one whose length
      is not a multiple of four octets;
    * a packet with broken framing is an EXCEPTION;
    * any other is TAKEN.

    Latency: 13 cycles from a frame's last item, or 12 from its verdict, to its first item.
    Throughput: one item per cycle. Reset: empty. Errors: see the rules above.

    Members
    -------
    segments : In(stream.Signature(SctpSegment(config), always_ready=True))
    owners : In(stream.Signature(AssociationResult(associations), always_ready=True))
        One for each frame, before its last item.
    verdicts : In(stream.Signature({good: 1}, always_ready=True))
        One for each frame with an SCTP packet, no more than 30 cycles after its last item.
    half : Out(1)
        Up to 60 more owners may arrive after it falls.
    room : Out(1)
        There is room for more items; a few may arrive after it falls.
    go : In(1)
        An item may leave; it is output three cycles later.
    o : Out(stream.Signature(SctpItem(config), always_ready=True))
    busy : Out(1)
        Items are held.
    """

    DEPTH = 512
    #: Places kept free for items that are still on their way when ``room`` falls.
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

        # In: an item too many is written, and then overwritten.
        is_frame = segment.kind == Kind.FRAME
        # True for the last 64 of 512.
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

        # Out: as many items as the frame has.
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
        """Decides each frame's fate; returns the queue of its records, one for each frame."""
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
        """Reads items, the fields that decide on their kind first; returns whether it is busy."""
        segment, item = self.segments.payload, self.o.payload
        early = data.StructLayout({"kind": Kind, "stream": 16})
        late = data.StructLayout(
            {name: item.shape()[name].shape for name in SctpItem.PASSED})
        at = delayed(m, 1, read, "at")
        held = []
        for name, shape, address in (("early", early, read), ("late", late, at)):
            # An item is never read in the cycle in which it is written.
            m.submodules[name] = ram = BlockRam(shape, self.DEPTH)
            writing = ram.write.payload
            m.d.comb += [
                ram.write.valid.eq(self.segments.valid),
                writing.address.eq(write),
                *(writing.data[field].eq(segment[field]) for field, _ in shape),
                ram.address[0].eq(address),
            ]
            held.append(ram.data[0])
        known, rest = held

        # The record of the item that was read two cycles ago.
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
    """Receives SCTP: takes Ethernet frames, and outputs the chunks of valid packets.

    A packet is valid if its checksum is right and it belongs to an association of DDP.

    .. code-block:: text

        frames ─► FrameParser ─► beats ─► SctpWalker ─► items ─► ItemHold ─► items
                       │                      │ slices               ▲ ▲
                       │                      ▼                      │ │
                       │                 (CRC unit) ─► PacketJudge ──┘ │
                       └─► AssociationTable ───────────────────────────┘

    The packet buffer and the CRC unit are outside, so that they can be shared.

    Each chunk becomes an item, and then each frame becomes an item of kind FRAME, in the order of
    arrival. ``fate`` is the fate of the frame, decided by :class:`ItemHold`:

    * TAKEN: items of kind SEGMENT and CONTROL are for DDP if ``ddp``; CHUNK and REFUSED are
      forwarded to the host one by one. The last of them frees the frame's words in the packet
      buffer; if there is none, FRAME does;
    * EXCEPTION: at the item FRAME, the whole frame is forwarded to the host as it was received; its
      other items are ignored;
    * DROPPED: the item FRAME frees the words.

    A frame of ``MOST_CHUNKS`` chunks or more is an EXCEPTION, and its items from that number on are
    not output.

    Latency: from a frame's last beat to its first item 76 cycles at 64 bits, 78 at 512. Of these,
    43 are for the parser, 5 to the walker, and 12 from the checksum's verdict on. Throughput: one
    beat per cycle, or one item per cycle. Reset: empty; associations stay. Errors: see the fates
    above. The receiver waits only for ``space`` and ``go``.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature(Beat(width)))
        Ethernet frames without FCS.
    write : In(stream.Signature(AssociationWrite(associations), always_ready=True))
    store, slices, beats
        To the packet buffer and the CRC unit; those of the :class:`~.walker.SctpWalker`.
    checksums : In(stream.Signature(Checksum(), always_ready=True))
        From the CRC unit, within 25 cycles.
    space : In(1)
        The packet buffer has room.
    go : In(1)
        An item may leave; it is output three cycles later.
    o : Out(stream.Signature(SctpItem(config), always_ready=True))
    busy : Out(1)
        The block holds frames or items.
    """

    def __init__(self, config):
        self.config = config
        self._walker = walker = SctpWalker(config)
        # An SCTP packet takes at least 46 octets of a frame, and its names must be looked up in the
        # time that these octets take.
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

        # The backlog of beats, and that of owners, have room for all that parser and table hold.
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

        # A beat may be in the parser for up to 63 cycles.
        recent = Signal(range(64))
        with m.If(taken):
            m.d.sync += recent.eq(-1)
        with m.Elif(recent.any()):
            m.d.sync += recent.eq(recent - 1)
        m.d.comb += self.busy.eq(
            recent.any() | beats.level.any() | walker.busy | hold.busy)
        return m
