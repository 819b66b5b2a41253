"""Proves that no octet is read outside a part that was asked for and that its STag allows.

The proof has three parts. A part that is not refused has passed the checks of RFC 5041 section 7.1
against the entry that the table showed for it, :class:`Permitted`. Every part reaches the cutter as
it was checked, and every piece leaves as it was cut, :class:`Passed`. And the pieces of a part are
its octets, each once and in its page: :class:`~.cuts.PageParts`, with the layout of these parts.
"""

from amaranth import *
from amaranth.asserts import AnySeq
from amaranth.hdl import Cover

from ..ddp.tagged import TaggedCheck
from ..dma.pages import PageCut
from ..send.checks import _Read
from .harness import Harness, if_
from .streams import items, stored

__all__ = ["AnyCheck", "AnyCut", "Passed", "Permitted"]


class AnyCheck(TaggedCheck):
    """Replaces a TaggedCheck: its outputs are free."""

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [port.eq(AnySeq(len(Value.cast(port)))) for port in (
            self.index, self.o.valid, self.o.payload)]
        return m


class AnyCut(PageCut):
    """Replaces a PageCut by any block that outputs nothing without ``go`` in the cycle before, and
    nothing while it is not busy.
    """

    def elaborate(self, platform):
        m = Module()
        goes = Signal()
        m.d.sync += goes.eq(self.go)
        m.d.comb += [
            self.o.valid.eq(goes & AnySeq(1)),
            self.busy.eq(self.o.valid | AnySeq(1)),
            *(port.eq(AnySeq(len(Value.cast(port)))) for port in (
                self.o.payload, self.ready, self.index)),
        ]
        return m


class Permitted(Harness):
    """Proves that PartCheck refuses a part whose octets its STag does not allow to read.

    A part that is not refused has an enabled stream, and is inline, has no octets, or is allowed by
    the entry that the table showed when the part was looked up. This means that the entry was
    valid; had the part's key and the rest of its index; had the right of local reads, or in a Read
    Response of remote reads; belonged to the part's stream or Protection Domain; and held the part
    whole, whose TO does not wrap. ``address`` is then the entry's address plus the offset of the
    part by their TOs. All sums are modulo 2**64, so that nothing is assumed about the entry. A
    probe is checked like a part of one octet.

    A segment keeps no part after one that was refused, and has exactly one last part. Parts leave
    the checks in their order, each once: only an inline one passes them by, and no other then.

    Assumes that a part has less than 2**16 octets, as MULPDU has 16 bits, and that a probe has
    none, as ResponseRings makes it. Tables and the settings of streams may change in every cycle.
    By induction of depth ``DEPTH``, which is longer than the checks take.
    """

    LATENCY, QUICK = 11, 3
    DEPTH = LATENCY + 1

    def rules(self, m):
        dut, past = self.dut, self.past
        part, stag = dut.i.payload, dut.i.payload.stag
        self.assume(if_(dut.i.valid, (part.length < 1 << 16) & ~(part.probe & part.length.any())))
        takes, bits = dut.i.valid & dut.i.ready, len(dut.index)
        index = past(stag[8 : 8 + bits], 1)
        self.always(if_(takes, dut.stream == part.stream), "its stream is looked up")
        self.always(if_(past(takes, 1), dut.index == index), "its STag is looked up")

        # A part leaves the checks after ``LATENCY`` cycles, or a ``quick`` one after ``QUICK``. The
        # tables answered 2 and 3 cycles after it came.
        quick, late = self.inside["quick"], self.inside["coming"][-1]
        came, slow = quick | late, past(takes, self.LATENCY)
        self.always(if_(quick, past(takes, self.QUICK)), "a part came")
        self.always(slow == (late | past(quick, self.LATENCY - self.QUICK)), "each leaves")
        self.always(~(late & quick), "one after the other")
        still = sum((self.inside["coming"][k] for k in range(self.QUICK - 1, self.LATENCY)), C(0))
        self.always(if_(quick, still == 0), "none is passed by")
        placed = self.inside.component("checked").i
        read, pages = placed.payload.placement, placed.payload.pages
        parts = (past(part, cycles, name="part") for cycles in (self.QUICK, self.LATENCY))
        part = part.shape()(Mux(quick, *parts))
        ends = came & part.last
        pd = past(dut.pd, 9, name="pd")
        enable = Mux(quick, past(dut.enable, 1), past(dut.enable, 9, name="enable"))
        entry = dut.entry.shape()(past(dut.entry, 8, name="entry"))
        size, offset = Signal(17), Signal(64)
        m.d.comb += [
            size.eq(Mux(part.probe, 1, part.length)),
            offset.eq(part.to - entry.to),
        ]
        allowed = placed.valid & ~read.exception
        judged = allowed & ~part.inline & (size != 0)
        inline = allowed & part.inline
        self.always(if_(quick, part.inline), "a quick part is inline")
        owner = Mux(entry.bound, part.stream, pd)
        right = Mux(part.response, entry.remote_read, entry.local_read)
        self.always(if_(placed.valid, came), "a part came")
        self.always(if_(allowed, enable & ~part.refused), "its stream is enabled")
        self.always(if_(allowed, read.length == part.length), "its octets")
        self.always(if_(allowed, read.inline == part.inline), "inline or not")
        self.always(if_(inline, (read.address == part.to) & (pages == 0)), "inline octets")
        self.always(if_(judged, entry.valid), "the entry is valid")
        self.always(if_(judged, entry.key == part.stag[:8]), "its key")
        self.always(if_(judged, entry.tag == part.stag[8 + bits :]), "its index")
        self.always(if_(judged, right), "it allows the read")
        self.always(if_(judged, entry.owner == owner), "its protection domain or stream")
        self.always(if_(judged, part.to >= entry.to), "TO is not below")
        self.always(if_(judged, part.to + size <= 1 << 64), "TO does not wrap")
        self.always(if_(judged, offset + size <= entry.length), "in bounds")
        self.always(if_(judged, read.address == (entry.address + offset)[:64]), "the place")
        self.always(if_(judged, pages == entry.pages), "its page code")

        # The segment of the part that leaves the checks had its last part before.
        ended, last = Signal(), placed.valid & read.last
        with m.If(came):
            m.d.sync += ended.eq((ended | last) & ~ends)
        self.always(if_(placed.valid, ~ended), "no part follows the last one")
        self.always(if_(placed.valid & read.exception, last), "a refused part is the last one")
        self.always(if_(ends, ended | last), "each segment has a last part")
        m.d.comb += [
            Cover(judged & (offset != 0) & entry.bound, "a part is allowed"),
            Cover(came & ended, "a part is dropped"),
            Cover(quick & past(quick) & placed.valid, "inline parts follow each other"),
        ]

        self.lemma(ended == self.inside["drops"], "the rest of the segment is dropped")
        slot, then = (self.inside[f"along.ring_1_{name}"] for name in ("entry", "following"))
        self.lemma(slot < self.LATENCY - 1, "a slot of the delay")
        self.lemma(then == Mux(slot == self.LATENCY - 2, 0, slot + 1), "and the next one")


class Passed(Harness):
    """Proves that parts enter the cutter as they were checked, and that pieces leave as it cut.

    Each does so once, in order, however long the cutter and the output wait. Both queues have room
    for all that comes. The page table gets the cutter's look-ups, and the cutter its answers. A
    part passes the cutter by, as a piece, only if it is in no pages, and while the cutter is not
    busy: :class:`~.reading.Cutting` proves that it is then empty.

    :class:`AnyCut` replaces the cutter, and :class:`AnyCheck` the checks against the entry. Assumes
    nothing. By induction of depth 2.
    """

    DEPTH = 2

    def rules(self, m):
        dut, inside = self.dut, self.inside
        cut, piece = inside.component("cut"), Signal(_Read())
        m.d.comb += [
            *(piece[name].eq(dut.o.payload[name])
              for name in ("address", "length", "inline", "last")),
            piece.exception.eq(dut.o.payload.refused),
        ]
        checked, pieces = inside.component("checked"), inside.component("pieces")
        part, leaves = checked.o.payload, checked.o.valid & checked.o.ready
        self.passes(m, "checked", checked.i, leaves, part)
        self.passes(m, "pieces", pieces.i, dut.o.valid & dut.o.ready, piece)
        self.always(if_(cut.i.valid, cut.ready), "the cutter takes the part")
        self.always(if_(cut.i.valid, leaves & (cut.i.payload == part)), "as it was checked")
        by = leaves & ~cut.i.valid
        self.always(pieces.i.valid == (cut.o.valid | by), "each piece, and each part without pages")
        self.always(if_(cut.o.valid, pieces.i.payload == cut.o.payload), "as it was cut")
        self.always(if_(by, pieces.i.payload == part.placement), "as it was checked, too")
        self.always(if_(by, ~cut.busy & (part.pages == 0)), "by an idle cutter, without pages")
        m.d.comb += Cover(by & self.past(cut.o.valid), "a part passes the cutter by")
        self.always(dut.slot == cut.index, "the slot of the page table")
        self.always(cut.page.address == dut.page.address, "its answer")
        self.steady(dut.o, "o is held")
        coming = inside["coming"]
        way = sum((coming[k] for k in range(len(coming))), inside["quick"])
        most = checked.depth // 2 + len(coming)
        self.lemma(inside["checked.level"] + way <= most, "room for what was taken")

    def passes(self, m, name, comes, goes, shown):
        """States that the items that come into a store go out, in order, each once."""
        store = self.inside.component(name)
        count, mark = items(m, store), self.any(1, name="mark")
        item, followed, ahead = Signal.like(comes.payload), Signal(), Signal(8)
        through = comes.valid & goes & (count == 0)
        with m.If(~followed):
            m.d.sync += [
                followed.eq(comes.valid & mark & ~through), item.eq(comes.payload),
                ahead.eq(count - goes)]
        with m.Elif(goes):
            m.d.sync += [followed.eq(ahead != 0), ahead.eq(ahead - 1)]
        turn = followed & (ahead == 0)
        self.always(if_(comes.valid, count < store.depth), "there is room")
        self.always(if_(goes, (count != 0) | comes.valid), "only what came goes out")
        self.always(if_(through, shown == comes.payload), "what came finds an empty store")
        self.always(if_(turn & goes, shown == item), "each in its turn")
        m.d.comb += Cover(turn & goes & self.past(ahead == 2, 4), f"{name}: an item goes by")
        slot = Signal(range(store.depth))
        m.d.comb += slot.eq(stored(self, m, f"{name}.", count, store.depth) + ahead)
        row = self.inside.row(f"{name}.storage", slot)
        self.lemma(if_(followed, (ahead < count) & (row == item)), "the item is where it belongs")
