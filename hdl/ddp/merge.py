"""Merges segments that come in the order of the sender with items that come in any order."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.delay import Delay
from ..lib.stream import Pointers
from .item import Admitted
from .segment import IN_FLIGHT, Outcome, Segment, SegmentVerdict
from .tagged import TaggedCheck

__all__ = ["CHECKS", "HEAD", "Merge"]

#: Cycles from a segment's header to the result of the checks, with two for the header's parser.
CHECKS = 2 + TaggedCheck.LATENCY
#: Cycles from taking a segment to its header at ``head``.
HEAD = 3
#: Members of an item that the checks need.
EARLY = ("header", "stream")


class Pending(wiring.Component):
    """Holds segments in block RAM until they have their verdict.

    A segment is read twice: first its header for the checks, then the rest when the checks have
    finished, so that the rest need not be delayed alongside the checks.

    Latency: 3 cycles from ``take`` to ``head``, and from ``again`` to ``segment``. Throughput: one
    segment per cycle. Reset: empty. Errors: none.

    Parameters
    ----------
    segment : Layout
    verdict : Layout
        If not given, segments need no verdict.
    early : tuple of str
        Members of the segment that only the first read returns; if not given, both reads return
        all members.

    Members
    -------
    segments : In(stream.Signature(segment, always_ready=True))
    verdicts : In(stream.Signature(verdict, always_ready=True))
    go : In(1)
        A segment may be taken.
    take : Out(1)
        A segment is taken; combinational.
    head : Out(stream.Signature(segment, always_ready=True)), verdict : Out(verdict)
        The segment's first read, and its verdict.
    again : In(1)
        Reads the next segment a second time, in order.
    segment : Out(segment)
        The segment's second read.
    waiting : Out(1)
        A segment waits that has its verdict.
    """

    def __init__(self, segment, verdict=None, *, early=()):
        self.shapes = segment, verdict
        self.head_shape, self.late_shape = segment, segment
        if early:
            self.head_shape, self.late_shape = (
                data.StructLayout({
                    name: field.shape for name, field in segment if (name in early) == first})
                for first in (True, False))
        super().__init__({
            "segments": In(stream.Signature(segment, always_ready=True)),
            "go": In(1),
            "take": Out(1),
            "head": Out(stream.Signature(self.head_shape, always_ready=True)),
            "again": In(1),
            "segment": Out(self.late_shape),
            "waiting": Out(1),
            **({} if verdict is None else {
                "verdicts": In(stream.Signature(verdict, always_ready=True)),
                "verdict": Out(verdict),
            }),
        })

    def elaborate(self, platform):
        m = Module()
        segment, verdict = self.shapes
        m.submodules.pointers = pointers = Pointers(IN_FLIGHT)
        m.submodules.segments = segments = self._memory(self.head_shape)
        judged = self.segments if verdict is None else self.verdicts
        m.d.comb += [
            pointers.push.eq(judged.valid),
            pointers.pop.eq(self.take),
            self.take.eq(self.go & pointers.some),
            self.waiting.eq(pointers.some),
        ]
        stores, late = [segments], segments
        if self.late_shape is not segment:
            m.submodules.late = late = self._memory(self.late_shape)
            stores.append(late)
        for stored in stores:
            write_segment = stored.write_port()
            m.d.comb += [
                write_segment.en.eq(self.segments.valid),
                *(write_segment.data[name].eq(self.segments.payload[name])
                  for name, _ in stored.shape),
            ]
            with m.If(self.segments.valid):
                m.d.sync += write_segment.addr.eq(write_segment.addr + 1)
        second = Signal.like(pointers.read)
        with m.If(self.again):
            m.d.sync += second.eq(second + 1)
        reads = [
            ("head", segments, pointers.read, self.take),
            ("segment", late, second, self.again),
        ]
        if verdict is not None:
            m.submodules.verdicts = verdicts = self._memory(verdict)
            write_verdict = verdicts.write_port()
            m.d.comb += [
                write_verdict.en.eq(self.verdicts.valid),
                write_verdict.addr.eq(pointers.write),
                write_verdict.data.eq(self.verdicts.payload),
            ]
            reads.append(("verdict", verdicts, pointers.read, self.take))
        held = {}
        for name, stored, address, follows in reads:
            read = stored.read_port()
            # Without reset, to become the output register of the block RAM.
            held[name] = Signal(stored.shape, name=f"{name}_held", reset_less=True)
            was_read = Signal(name=f"{name}_read")
            m.d.comb += read.addr.eq(address)
            m.d.sync += was_read.eq(follows)
            with m.If(was_read):
                m.d.sync += held[name].eq(read.data)
        taken = Signal(HEAD - 1)
        # One register for the wires from many block RAMs to all readers of a segment.
        m.d.sync += [
            self.segment.eq(held["segment"]),
            self.head.payload.eq(held["head"]),
            Cat(taken, self.head.valid).eq(Cat(self.take, taken)),
        ]
        if verdict is not None:
            m.d.sync += self.verdict.eq(held["verdict"])
        return m

    @staticmethod
    def _memory(shape):
        # Not a BlockRam, whose ports take their values together; here each takes its own.
        return memory.Memory(
            shape=shape, depth=IN_FLIGHT, init=[], attrs={"ram_style": "block", "no_rw_check": 1})


class Merge(wiring.Component):
    """Takes segments and items in turn, and shows both as segments.

    MPA brings segments in the order of the sender, each with a verdict that comes later; SCTP
    brings items in any order, whose verdict is known. After each of the two kinds, the other one is
    preferred. A segment or item that is taken appears twice: at ``head`` for the checks, and at
    ``segment`` when the results of the checks are there.

    Latency: ``HEAD`` cycles from ``take`` to ``head``; ``CHECKS`` + 1 from there to ``segment``.
    Throughput: one segment or item per cycle. Reset: empty. Errors: none.

    Parameters
    ----------
    config : RnicConfig
    ordered, unordered : bool
        True adds ``segments``; ``items``.

    Members
    -------
    segments, verdicts, items
        As in :class:`~.commit.Commit`.
    go : In(1)
        A segment or item may be taken.
    take : Out(1)
        One is taken; combinational.
    under : Out(HEAD + CHECKS + 1)
        Bit k: one was taken k + 1 cycles ago.
    head : Out(stream.Signature(Segment, always_ready=True)), verdict : Out(SegmentVerdict)
        Header and stream for the checks, and the verdict; that of an item is GOOD.
    segment : Out(Segment)
        The segment of ``under[-1]``. Of an item, only header, stream and sequence are valid.
    waiting : Out(1)
        With ``ordered`` only, like the next member: a segment waits that has its verdict.
    done : Out(1)
        A segment has left.
    head_item, of_item : Out(1)
        With ``unordered`` only, like the members below: an item is at ``head``; at ``segment``.
    item : Out(layout)
        The item at ``segment``: the members of :class:`~.item.Admitted` but header and stream.
    item_done : Out(1)
        An item has left.
    """

    def __init__(self, config, *, ordered=True, unordered=False):
        self.ordered, self.unordered = ordered, unordered
        self.config = config
        late = {name: field.shape for name, field in Admitted(config) if name not in EARLY}
        super().__init__({
            "go": In(1),
            "take": Out(1),
            "under": Out(HEAD + CHECKS + 1),
            "head": Out(stream.Signature(Segment(config), always_ready=True)),
            "verdict": Out(SegmentVerdict(config)),
            "segment": Out(Segment(config)),
            **({
                "segments": In(stream.Signature(Segment(config), always_ready=True)),
                "verdicts": In(stream.Signature(SegmentVerdict(config), always_ready=True)),
                "waiting": Out(1),
                "done": Out(1),
            } if ordered else {}),
            **({
                "items": In(stream.Signature(Admitted(config), always_ready=True)),
                "head_item": Out(1),
                "of_item": Out(1),
                "item": Out(data.StructLayout(late)),
                "item_done": Out(1),
            } if unordered else {}),
        })

    def elaborate(self, platform):
        m = Module()
        pending = items = None
        if self.ordered:
            m.submodules.pending = pending = Pending(
                Segment(self.config), SegmentVerdict(self.config))
        if self.unordered:
            m.submodules.items = items = Pending(Admitted(self.config), early=EARLY)
        # item_under[k]: the one that was taken k + 1 cycles ago is an item.
        item_under = Signal.like(self.under)
        m.d.sync += self.under.eq(Cat(self.take, self.under))
        if self.ordered and self.unordered:
            items_next = Signal()
            with m.If(self.take):
                m.d.sync += items_next.eq(pending.take)
            m.d.sync += item_under.eq(Cat(items.take, item_under))
            m.d.comb += [
                self.take.eq(pending.take | items.take),
                pending.go.eq(self.go & ~(items.waiting & items_next)),
                items.go.eq(self.go & ~(pending.waiting & ~items_next)),
                self.head.valid.eq(pending.head.valid | items.head.valid),
            ]
        else:
            source = pending if self.ordered else items
            m.d.comb += [
                self.take.eq(source.take),
                source.go.eq(self.go),
                self.head.valid.eq(source.head.valid),
                item_under.eq(self.under if self.unordered else 0),
            ]
        if self.ordered:
            self._show_segment(m, item_under)
        if self.unordered:
            self._show_item(m, item_under)
        return m

    def _show_segment(self, m, item_under):
        """Shows the segment that was taken, as it is."""
        again = HEAD + CHECKS - 3
        pending = m.submodules.pending
        wiring.connect(m, wiring.flipped(self.segments), pending.segments)
        wiring.connect(m, wiring.flipped(self.verdicts), pending.verdicts)
        m.d.comb += [
            pending.again.eq(self.under[again] & ~item_under[again]),
            self.head.payload.eq(pending.head.payload),
            self.verdict.eq(pending.verdict),
            self.segment.eq(pending.segment),
            self.waiting.eq(pending.waiting),
            self.done.eq(self.under[-1] & ~item_under[-1]),
        ]

    def _show_item(self, m, item_under):
        """Shows the item that was taken in the form of a segment."""
        items = m.submodules.items
        # The checked members are delayed alongside the checks, which is cheaper than a second read.
        m.submodules.checked = checked = Delay(items.head_shape, CHECKS + 1)
        segment = m.submodules.pending.segment if self.ordered else Segment(self.config).const({})
        wiring.connect(m, wiring.flipped(self.items), items.segments)
        m.d.comb += [
            items.again.eq(item_under[HEAD + CHECKS - 3]),
            checked.i.eq(items.head.payload),
            self.head_item.eq(items.head.valid),
            self.of_item.eq(item_under[-1] if self.ordered else 1),
            self.item_done.eq(item_under[-1]),
            self.item.eq(items.segment),
            self.segment.stream.eq(Mux(self.of_item, checked.o.stream, segment.stream)),
            self.segment.header.eq(Mux(self.of_item, checked.o.header, segment.header)),
            self.segment.sequence.eq(Mux(self.of_item, items.segment.sequence, segment.sequence)),
        ]
        # A stored item has a right checksum and no markers.
        with m.If(items.head.valid | (not self.ordered)):
            m.d.comb += [
                self.head.payload.header.eq(items.head.payload.header),
                self.head.payload.stream.eq(items.head.payload.stream),
                self.head.payload.oversize.eq(0),
                self.head.payload.markers.eq(0),
                self.verdict.outcome.eq(Outcome.GOOD),
            ]
