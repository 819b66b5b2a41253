"""Cuts placements at the ends of pages, for regions whose memory is scattered over pages.

Such a region has consecutive slots of the page table, one per page. A *page code* gives the size of
its pages: 0 if the region is contiguous, k if a page has 2 ** (11 + k) octets. A placement in such
a region has a *linear address*: the slot of the region's first page times the page size, plus the
offset of the region's first octet in that page, plus the offset in the region.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Store, any_of, delayed
from .jobs import LENGTH_BITS, Placement
from .sequencer import Job, JobSequencer

__all__ = ["PAGE_SHIFTS", "PageCut", "PageEntry", "PagedPlacement"]

#: The sizes of pages, as powers of two: 4 KiB to 2 MiB, for the page codes from 1 on.
PAGE_SHIFTS = range(12, 22)

#: Bits of an offset in the smallest page.
LOW = PAGE_SHIFTS[0]

#: Bits to count the pages of a placement, less one: the longest one in the smallest pages.
MORE_BITS = LENGTH_BITS - LOW + 1

QUEUE = 16


class PageEntry(data.StructLayout):
    """A slot of the page table.

    Members
    -------
    valid : 1
    address : 52
        Address of the page in host memory, in units of 4 KiB.
    """

    def __init__(self):
        super().__init__({"valid": 1, "address": 64 - LOW})


class PagedPlacement(data.StructLayout):
    """A placement whose address may be linear.

    Members
    -------
    placement : Placement, or another layout with the same members that :class:`PageCut` needs
        Its address is a host address or, with pages, a linear address.
    pages : 4
        The page code; values above 10 count as 10. Ignored for an exception.
    """

    def __init__(self, placement):
        super().__init__({"placement": placement, "pages": 4})


class Measured(data.StructLayout):
    """The facts about a placement before it is cut.

    Members
    -------
    placement : that of :class:`PagedPlacement`
        With pages, its address is the offset in the first page.
    paged : 1
        The placement is in pages.
    slot : range(pages)
        Slot of the first page.
    page : 17
        Octets in a page; used only if a page fits into a placement.
    room : 17
        Octets from the placement's first one to the end of its page; used only if the placement
        ends in another page.
    final : 17
        Octets in the last page, if that is not the first one.
    """

    def __init__(self, config, placement):
        super().__init__({
            "placement": placement,
            "paged": 1,
            "slot": range(config.pages),
            "page": LENGTH_BITS,
            "room": LENGTH_BITS,
            "final": LENGTH_BITS,
        })


class Measure(wiring.Component):
    """Computes the pages in which a placement begins and ends.

    Latency: 3 cycles. Throughput: one placement per cycle. Reset: empty. Errors: none.

    Parameters
    ----------
    config : RnicConfig
    placement : Layout
        As in :class:`PageCut`.

    Members
    -------
    i : In(stream.Signature(PagedPlacement, always_ready=True))
    busy : Out(1)
        A placement is being processed; not combinational from ``i``.
    o : Out(stream.Signature(Job(Measured), always_ready=True))
    """

    def __init__(self, config, placement):
        self.config = config
        self.job = Job(Measured(config, placement), MORE_BITS)
        super().__init__({
            "i": In(stream.Signature(PagedPlacement(placement), always_ready=True)),
            "busy": Out(1),
            "o": Out(stream.Signature(self.job, always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        top = PAGE_SHIFTS[-1]
        # Stage n's registers are named with n.
        valid = Signal(3)
        along = [Signal(self.i.payload.placement.shape(), name=f"along{n}", reset_less=True)
                 for n in range(1, 3)]
        paged = [Signal(name=f"paged{n}", reset_less=True) for n in range(1, 3)]
        # One bit for each size; the bits of an address that are an offset in the page, from LOW up.
        size = [Signal(len(PAGE_SHIFTS), name=f"size{n}", reset_less=True) for n in range(1, 3)]
        mask = [Signal(top - LOW, name=f"mask{n}", reset_less=True) for n in range(1, 3)]
        less1 = Signal(LENGTH_BITS, reset_less=True)
        offset1 = Signal(top)
        offset2 = Signal(top, reset_less=True)
        end2 = Signal(top + 1, reset_less=True)
        slot2 = Signal(range(self.config.pages), reset_less=True)
        whole, pages = self.i.payload.placement, self.i.payload.pages

        # 1: octets less one; the size of the pages.
        m.d.sync += valid.eq(Cat(self.i.valid, valid))
        with m.If(self.i.valid):
            m.d.sync += [
                along[0].eq(whole),
                paged[0].eq(pages.any() & ~whole.exception & whole.length.any()),
                size[0].eq(Cat(*(pages == n + 1 for n in range(len(PAGE_SHIFTS) - 1)),
                               pages >= len(PAGE_SHIFTS))),
                mask[0].eq(Cat(pages > n + 1 for n in range(top - LOW))),
                less1.eq(whole.length - 1),
            ]
        # 2: the first slot; the offset in its page of the first octet, and of the last one, which
        # may exceed the page.
        address = along[0].address
        m.d.comb += offset1.eq(Cat(address[:LOW], address[LOW:top] & mask[0]))
        with m.If(valid[0]):
            m.d.sync += [
                *(stages[1].eq(stages[0]) for stages in (along, paged, size, mask)),
                offset2.eq(offset1),
                end2.eq(offset1 + less1),
                slot2.eq(self._shifted(size[0], address)),
            ]
        # 3: the number of pages.
        body = self.o.payload.body
        inside = Cat(C(-1, LOW), mask[1])[:LENGTH_BITS]
        # Bits of the end that count pages, and those that count pairs of pages.
        beyond = end2[LOW:] & ~Cat(mask[1], C(0))
        pairs = end2[LOW + 1:] & ~mask[1]
        with m.If(valid[1]):
            m.d.sync += [
                self.o.payload.more.eq(Mux(paged[1], self._shifted(size[1], end2), 0)),
                self.o.payload.one.eq(~paged[1] | ~beyond.any()),
                self.o.payload.two.eq(paged[1] & beyond.any() & ~pairs.any()),
                body.placement.eq(along[1]),
                body.placement.address.eq(Mux(paged[1], offset2, along[1].address)),
                body.paged.eq(paged[1]),
                body.slot.eq(slot2),
                body.page.eq(Cat(C(0, LOW), size[1])),
                body.room.eq((~offset2 & inside)[:LENGTH_BITS] + 1),
                body.final.eq((end2 & inside)[:LENGTH_BITS] + 1),
            ]
        m.d.comb += [self.o.valid.eq(valid[-1]), self.busy.eq(valid.any())]
        return m

    @staticmethod
    def _shifted(size, value):
        """Returns the number of the page that ``value`` is in."""
        return any_of(Mux(size[n], value[shift:], 0) for n, shift in enumerate(PAGE_SHIFTS))


class PageCut(wiring.Component):
    """Cuts a placement at the ends of pages: the part in each page becomes a placement.

    Contiguous placements, exceptions and empty placements pass unchanged. Only the last piece of a
    placement has its ``last`` and ``release``; the others free the packet buffer up to the beat in
    which the placement begins. A placement without the members ``start`` and ``release`` is no run
    of octets in a packet buffer.

    Latency: 11 cycles, while ``go`` is high. Throughput: one piece per cycle. Reset: empty. Errors:
    none; whether a slot of the page table is valid is not checked.

    Parameters
    ----------
    config : RnicConfig
    placement : Layout
        The layout of a placement, with the members ``length``, ``address``, ``exception`` and
        ``last`` of :class:`~.jobs.Placement`, and with ``start`` and ``release`` or without both.
        Default: ``Placement(config)``.

    Members
    -------
    i : In(stream.Signature(PagedPlacement, always_ready=True))
    ready : Out(1)
        A placement may be input in this cycle and in the next two.
    index : Out(range(pages))
        Slot of the page table to look up.
    page : In({address: 52})
        The page in the slot that ``index`` named 2 cycles before.
    go : In(1)
        A placement may be output in the next cycle.
    o : Out(stream.Signature(placement, always_ready=True))
    busy : Out(1)
        High from the cycle after a placement is input until its last piece is output.
    """

    def __init__(self, config, placement=None):
        placement = placement or Placement(config)
        self.config, self.placement = config, placement
        super().__init__({
            "i": In(stream.Signature(PagedPlacement(placement), always_ready=True)),
            "ready": Out(1),
            "index": Out(range(config.pages)),
            "page": In(data.StructLayout({"address": 64 - LOW})),
            "go": In(1),
            "o": Out(stream.Signature(placement, always_ready=True)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        placement = self.placement
        m.submodules.measure = measure = Measure(self.config, placement)
        m.submodules.jobs = jobs = Store(measure.job, depth=QUEUE)
        m.submodules.sequencer = sequencer = JobSequencer(measure.job)
        m.submodules.pieces = pieces = Store(placement, depth=QUEUE)
        body, whole = sequencer.body, sequencer.body.placement
        piece = Signal(placement)
        paged = Signal()
        beat_bits = self.config.octets.bit_length() - 1
        coming = Signal(4)

        # No queue overflows: at most half of its capacity can be on the way.
        wiring.connect(m, wiring.flipped(self.i), measure.i)
        wiring.connect(m, measure.o, jobs.i)
        wiring.connect(m, jobs.o, sequencer.i)
        m.d.comb += sequencer.go.eq(pieces.half)
        m.d.sync += [
            self.ready.eq(jobs.half),
            coming.eq(Cat(sequencer.valid, coming)),
        ]

        # Cut. A piece that may not leave yet is computed again.
        with m.If(sequencer.busy):
            m.d.sync += [
                *(piece[name].eq(whole[name]) for name in placement.members
                  if name not in ("start", "length", "address", "last", "release")),
                piece.address.eq(Mux(sequencer.first, whole.address, 0)),
                piece.last.eq(whole.last & sequencer.last),
                paged.eq(body.paged),
                self.index.eq(body.slot + sequencer.index),
            ]
        with m.If(sequencer.valid):
            m.d.sync += piece.length.eq(Mux(
                sequencer.first,
                Mux(sequencer.last, whole.length, body.room),
                Mux(sequencer.last, body.final, body.page),
            ))
        if "release" in placement.members:
            # A placement may itself be a piece, and may then free no more than the beats before it.
            # So its own pieces must not free more either, and then less again.
            with m.If(sequencer.busy):
                m.d.sync += piece.release.eq(
                    Mux(sequencer.last, whole.release, whole.start >> beat_bits))
            with m.If(sequencer.valid):
                m.d.sync += piece.start.eq(
                    Mux(sequencer.first, whole.start, piece.start + piece.length))

        # The page arrives two cycles after the piece.
        later = delayed(m, 2, piece, "piece")
        paged = delayed(m, 2, paged, "paged")
        whole_address = Cat(
            later.address[:LOW], later.address[LOW:] | Mux(paged, self.page.address, 0))
        m.d.sync += [
            pieces.i.payload.eq(later),
            pieces.i.payload.address.eq(whole_address),
            self.o.valid.eq(self.go & pieces.o.valid),
            self.o.payload.eq(pieces.o.payload),
        ]
        m.d.comb += [pieces.i.valid.eq(coming[-1]), pieces.o.ready.eq(self.go)]
        m.d.sync += self.busy.eq(
            self.i.valid | measure.busy | jobs.o.valid | sequencer.busy | coming.any()
            | pieces.o.valid)
        return m
