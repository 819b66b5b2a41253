"""Proves that the pieces of a placement, or of the entries of a turn, are all of it, in order."""

from amaranth import *
from amaranth.hdl import Cover
from amaranth.lib import data
from amaranth.utils import exact_log2

from ..dma.pages import PAGE_SHIFTS
from ..send.runs import RUN
from ..spec.config import RnicConfig
from .harness import Harness, if_

__all__ = ["CONFIG", "MarkerParts", "Marked", "PageParts", "RingRuns"]

CONFIG = RnicConfig(width=64, buffer_octets=4096, outstanding=8, stags=16, streams=2, pages=16)


class MarkerParts(Harness):
    """Proves that MarkerCut splits a placement into parts that are its octets, in order.

    The first part begins at the placement's address, each other part where the one before it ended,
    and their lengths add up to its length. A part is output only two cycles after ``go``.

    Assumes that a placement with markers is not empty, and that a placement has no more octets than
    a segment. By induction of depth 1.
    """

    def rules(self, m):
        dut, inside = self.dut, self.inside
        move, part = dut.i.payload, dut.o.payload.placement
        taken = dut.i.valid & dut.i.ready
        length = move.placement.length
        self.assume(if_(move.markers, (length != 0) & (length < 1 << 16)))
        address, left = Signal(64), Signal.like(length)
        owes, pages = Signal(), Signal(4)
        gives = dut.o.valid
        with m.If(taken):
            m.d.sync += [
                address.eq(move.placement.address), left.eq(length), owes.eq(1),
                pages.eq(move.pages),
            ]
        with m.Elif(gives):
            m.d.sync += [
                address.eq(address + part.length), left.eq(left - part.length),
                owes.eq(~part.last),
            ]
        # Here each placement ends its segment; a part that does not is followed by others.
        self.assume(if_(dut.i.valid, move.placement.last))
        gone = self.past(dut.go)
        self.always(if_(gives, self.past(gone)), "only after go")
        self.always(if_(gives, owes), "of a placement that was taken")
        self.always(if_(gives, part.address == address), "where the last one ended")
        self.always(if_(gives, part.length <= left), "within the placement")
        self.always(if_(gives & part.last, part.length == left), "up to its end")
        self.always(if_(gives & ~part.last, part.length < left), "and no further")
        self.always(if_(gives & (left != 0), part.length != 0), "no empty part")
        self.always(if_(gives, dut.o.payload.pages == pages), "its page code")
        self.always(if_(taken & owes, gives & part.last), "one after the other")
        m.d.comb += Cover(gives & part.last & self.past(owes, 8), "three parts")

        steps = {name: inside[name] for name in ("whole", "begin", "measure", "part", "more")}
        rest = data_of(inside["rest"], move.placement)
        gap, carry, held = inside["gap"], inside["carry"], Signal()
        every = Cat(steps[name] for name in ("whole", "begin", "measure", "part"))
        now, ahead = Signal(64), Signal.like(left)
        # A part that is output in this cycle is not subtracted yet.
        m.d.comb += [
            now.eq(address + Mux(gives, part.length, 0)),
            ahead.eq(left - Mux(gives, part.length, 0)),
            held.eq(~steps["whole"]),
        ]
        whole, goes = steps["whole"], inside["goes"]
        self.lemma(goes == gone, "goes")
        self.lemma(dut.i.ready == (whole & goes), "takes")
        self.lemma(whole == ~inside["cutting"], "whole")
        self.lemma((every != 0) & ((every & (every - 1)) == 0), "one step")
        self.lemma(if_(steps["whole"], owes == gives), "nothing is left")
        self.lemma(if_(held, owes & (~gives | ~part.last)), "a placement is cut")
        self.lemma(if_(held, (rest.length == ahead) & (ahead != 0)), "octets left")
        self.lemma(if_(held, ahead < 1 << 16), "of a segment")
        self.lemma(if_(held, rest.last & (dut.o.payload.pages == pages)), "as it came")
        self.lemma(if_(steps["whole"] & gives, part.last), "the last part")
        more = (rest.address[16:] + 1)[:48]
        self.lemma(if_(steps["measure"], inside["upper_more"] == more), "one more")
        for name, value in (
            ("start", rest.start + gap + 4),
            ("length", rest.length - gap),
            ("low", rest.address[:16] + gap),
        ):
            after = inside[f"next_{name}"]
            self.lemma(if_(steps["part"], after == value[:len(after)]), f"the next {name}")
        high = Mux(steps["measure"] & carry, more, rest.address[16:])
        self.lemma(if_(held, Cat(rest.address[:16], high) == now), "where it goes on")
        self.lemma(gap[:2] == 0, "whole words to the marker")
        self.lemma(if_(steps["begin"], ~carry), "no carry yet")
        self.lemma(if_(steps["part"], steps["more"] == (rest.length > gap)), "more")
        self.lemma(if_(steps["measure"] | steps["part"], gap != 0), "a gap")


def data_of(signal, like):
    """Returns a signal that is known as bits, with its members."""
    return like.shape()(signal)


class Marked(data.StructLayout):
    """Adds to a placement a member that PageCut passes along, as it does those it does not know.

    Members
    -------
    mark : 2
        The placement is followed (1), or comes before (0) or after (2) the one that is.
    """

    def __init__(self, placement):
        super().__init__({**placement.members, "mark": 2})


class PageParts(Harness):
    """Proves that PageCut splits a placement into pieces that are its octets, in order.

    The first piece begins with the placement's first octet, each other piece where the one before
    it ended, and their lengths add up to its length. All of them come after the pieces of the
    placements before it, and before those of the placements after it. Each piece is in one page, at
    the position of its linear address. The page is one that the table showed in its slot since the
    placement came, whatever the table shows at other times. Only the last piece of a placement that
    ends its segment ends it.

    Any one placement and any one slot of the page table are followed; :class:`Marked` is the layout
    of the placements. Assumes that pages are aligned to their size, and that placements are input
    while ``ready``. Bounded: it holds for the first ``DEPTH`` cycles, in which the placement passes
    in up to three pieces, with any placements before and after it.
    """

    DEPTH = 15

    def rules(self, m):
        dut = self.dut
        whole, pages = dut.i.payload.placement, dut.i.payload.pages
        piece = dut.o.payload
        members = whole.shape().members
        self.assume(if_(dut.i.valid, dut.ready | self.past(dut.ready) | self.past(dut.ready, 2)))

        followed, kept, code = Signal(), Signal.like(whole), Signal.like(pages)
        takes, came = dut.i.valid & (whole.mark == 1), Signal(3)
        self.assume(if_(dut.i.valid, Mux(followed, whole.mark == 2, whole.mark < 2)))
        with m.If(dut.i.valid):
            m.d.sync += came.eq(came | (1 << whole.mark))
        with m.If(takes):
            m.d.sync += [followed.eq(1), kept.eq(whole), code.eq(pages)]
        done, begun, ended = Signal.like(whole.length), Signal(), Signal()
        mine, total = dut.o.valid & (piece.mark == 1), Signal(len(done) + 1)
        m.d.comb += total.eq(done + piece.length)
        with m.If(mine):
            m.d.sync += [done.eq(total), begun.eq(1), ended.eq(total == kept.length)]
        self.always(if_(dut.o.valid, self.past(dut.go)), "only after go")
        self.always(if_(dut.o.valid, came.bit_select(piece.mark, 1)), "of a placement that came")
        self.always(if_(dut.o.valid & (piece.mark == 0), ~begun), "after those before")
        self.always(if_(dut.o.valid & (piece.mark == 2), ended), "before those after")
        self.always(if_(mine, ~ended & (total <= kept.length)), "within the placement")
        self.always(if_(mine & (kept.length != 0), piece.length != 0), "no empty piece")
        self.always(if_(mine, piece.last == (kept.last & (total == kept.length))), "up to its end")
        for name in members:
            if name not in ("start", "length", "address", "last", "release"):
                self.always(if_(mine, piece[name] == kept[name]), f"as it came: {name}")
        if "start" in members:
            start = (kept.start + done)[: len(kept.start)]
            self.always(if_(mine, piece.start == start), "the octets of that place")
        m.d.comb += Cover(mine & (total == kept.length) & (done > 4096), "three pieces")

        paged = mine & (code != 0) & ~kept.exception & (kept.length != 0)
        contiguous = mine & ~paged
        self.always(if_(contiguous, piece.address == kept.address), "contiguous as it came")
        self.always(if_(contiguous, piece.length == kept.length), "whole")
        linear, mask = Signal(64), Signal(22)
        last = PAGE_SHIFTS[-1]
        shift = Mux(code > len(PAGE_SHIFTS), last, LOW - 1 + code)[:5]
        m.d.comb += [linear.eq(kept.address + done), mask.eq((1 << shift) - 1)]
        slot = self.any(dut.index.shape(), name="slot", constant=True)
        at = self.any(52, name="at", constant=True)
        offset, number, shown = linear[:22] & mask, Signal(slot.shape()), Signal()
        m.d.comb += number.eq(linear >> shift)
        asked = self.past((dut.index == slot) & followed, 2)
        self.assume(if_(asked, (dut.page.address & (mask >> LOW)) == 0))
        with m.If(asked & (dut.page.address == at)):
            m.d.sync += shown.eq(1)
        self.always(if_(paged, offset + piece.length <= mask + 1), "in one page")
        self.always(if_(paged, piece.address[:LOW] == offset[:LOW]), "its place in the page")
        here = paged & (number == slot) & (piece.address == (Cat(C(0, LOW), at) + offset)[:64])
        self.always(if_(here, shown), "in a page that was shown")


LOW = PAGE_SHIFTS[0]


class RingRuns(Harness):
    """Proves that Runs cuts a span of a ring into its entries, each one once and in order.

    No run is empty, longer than RUN, or outside of the ring, and none passes a multiple of RUN
    entries in host memory; no entry after the span is read.

    Assumes that a span is not empty and no longer than its ring, and that the ring ends before
    2**64. By induction of depth 2.
    """

    def rules(self, m):
        dut = self.dut
        span, run = dut.i.payload, dut.o.payload
        self.polite(dut.i)
        size = Signal(17)
        m.d.comb += size.eq(1 << span.size)
        self.assume(if_(dut.i.valid, (span.count != 0) & (span.count <= size)))
        self.assume(if_(dut.i.valid, Cat(span.base, C(0, 1)) + size <= 1 << 58))
        gone, gives = Signal(8), dut.o.valid & dut.o.ready
        with m.If(gives):
            m.d.sync += gone.eq(Mux(dut.i.ready, 0, gone + run.count))
        index, end = Signal(17), Signal(9)
        m.d.comb += [index.eq((span.start + gone) & (size - 1)), end.eq(gone + run.count)]
        self.always(if_(dut.o.valid, dut.i.valid), "of a span that came")
        self.always(if_(dut.o.valid, run.at == span.base + index), "where the last one ended")
        self.always(if_(dut.o.valid, index + run.count <= size), "inside the ring")
        self.always(if_(dut.o.valid, (run.count != 0) & (run.count <= RUN)), "not too long")
        self.always(if_(dut.o.valid, run.at[:exact_log2(RUN)] + run.count <= RUN), "in its place")
        self.always(if_(dut.o.valid, run.first == (gone == 0)), "the first one")
        self.always(if_(dut.o.valid, end <= span.count), "no entry after the span")
        self.always(if_(dut.o.valid, run.last == (end == span.count)), "up to its end")
        self.always(dut.i.ready == (gives & run.last), "taken with its last run")
        self.steady(dut.o, "steady")
        m.d.comb += Cover(gives & run.last & (gone > RUN) & (index < 3), "around the ring's end")
        first, rest = run.first, self.inside["rest"]
        self.lemma(first == (gone == 0), "entries are gone")
        self.lemma(first | (rest == (span.count - gone)[:8]), "as many are left")
        at = self.inside["next_index"] & (size - 1)
        self.lemma(first | (at == index), "from this index on")
        self.lemma(if_(dut.i.valid, gone < span.count), "some are left")
        self.lemma(if_(gone != 0, dut.i.valid), "a span that was begun stays")
