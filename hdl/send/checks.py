"""Checks the STags of the parts that are read, and cuts these at the ends of pages."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.stag import StagEntry
from ..ddp.tagged import TaggedCheck
from ..dma.jobs import LENGTH_BITS
from ..dma.pages import PageCut, PageEntry
from ..dma.read import ReadPiece
from ..lib.delay import Delay
from ..lib.stream import Store, delayed
from .pieces import SendPart

__all__ = ["PartCheck"]

#: Cycles of the look-up of a stream's Protection Domain.
LOOKUP = TaggedCheck.RIGHTS
#: Cycles for the wires to the STag table.
WIRES = 1
QUEUE = 32


class _Read(data.StructLayout):
    """A checked part, as :class:`~..dma.pages.PageCut` takes it: ``exception`` means refused."""

    def __init__(self):
        super().__init__({
            "address": 64, "length": LENGTH_BITS, "inline": 1, "last": 1, "exception": 1})


class PartCheck(wiring.Component):
    """Looks up the STag of each part, and says where its octets are.

    The stream must be enabled. The STag must be valid for the stream and have the right of local
    reads, or in a Read Response of remote reads (RFC 5040 section 5.2.1), and the part must lie
    within its bounds (RFC 5041 sections 7.1 and 8.2, which
    :class:`~..ddp.tagged.TaggedCheck` applies). A part that fails is refused and ends its segment;
    the segment's other parts are dropped. Octets inline need no STag: their parts pass idle checks
    by.

    Latency: 11 cycles from ``i`` to ``o``. A part in pages, or after one that is still being cut,
    takes 11 cycles more; an inline part after none that is being checked takes 8 less. Throughput:
    one part per cycle. Reset: empty. Errors: ``refused``.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature(SendPart(streams)))
    hold : In(1)
        No part is taken.
    busy : Out(1)
        A part was taken that has not left. Not combinational from ``i``.
    stream : Out(range(streams)), pd : In(16), enable : In(1)
        Look-up of a stream's Protection Domain, and whether the stream is enabled; answered after
        2 cycles.
    index : Out(range(stags)), entry : In(StagEntry)
        Look-up in the STag table, answered after 2 cycles.
    slot : Out(range(pages)), page : In(PageEntry)
        Look-up in the page table, answered after 2 cycles.
    o : Out(stream.Signature(ReadPiece()))
    """

    def __init__(self, config):
        self.config = config
        super().__init__({
            "i": In(stream.Signature(SendPart(config.streams))),
            "hold": In(1),
            "busy": Out(1),
            "stream": Out(range(config.streams)),
            "pd": In(16),
            "enable": In(1),
            "index": Out(range(config.stags)),
            "entry": In(StagEntry(config.stags)),
            "slot": Out(range(config.pages)),
            "page": In(PageEntry()),
            "o": Out(stream.Signature(ReadPiece())),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.cut = cut = PageCut(self.config, _Read())
        m.submodules.checked = checked = Store(self._checked(), depth=QUEUE, direct=True)
        m.submodules.pieces = pieces = Store(_Read(), depth=QUEUE, direct=True)
        self._check(m, checked)
        part, passes = checked.o.payload, Signal()

        m.d.comb += [
            # A part in no pages passes an empty cutter by.
            passes.eq(checked.o.valid & ~part.pages.any() & ~cut.busy & pieces.half),
            checked.o.ready.eq(cut.ready | passes),
            cut.i.valid.eq(checked.o.valid & cut.ready & ~passes),
            cut.i.payload.eq(part),
            self.slot.eq(cut.index),
            cut.page.address.eq(self.page.address),
            cut.go.eq(pieces.half),
            pieces.i.valid.eq(cut.o.valid | passes),
            pieces.i.payload.eq(Mux(cut.o.valid, cut.o.payload, part.placement)),
            self.o.valid.eq(pieces.o.valid),
            pieces.o.ready.eq(self.o.ready),
            self.o.payload.refused.eq(pieces.o.payload.exception),
            *(self.o.payload[name].eq(pieces.o.payload[name])
              for name in ("address", "inline", "length", "last")),
        ]
        return m

    def _checked(self):
        return data.StructLayout({"placement": _Read(), "pages": 4})

    def _check(self, m, checked):
        """Adds the pipeline of the checks: Protection Domain, STag and bounds."""
        part = self.i.payload
        m.submodules.check = check = TaggedCheck(
            self.config.stags, right="local_read", wires=WIRES)
        m.submodules.along = along = Delay(SendPart(self.config.streams), check.latency)
        takes, coming = Signal(), Signal(check.latency)
        looked = Signal(SendPart(self.config.streams))
        header, rights = check.i.payload, check.rights
        # An inline part leaves one cycle after the look-up, unless others are in the checks.
        hurries, quick = Signal(), Signal()
        short = Signal(SendPart(self.config.streams), reset_less=True)
        enabled = Signal(reset_less=True)
        m.d.comb += [
            # Half of the store is enough for all parts that are in the pipeline.
            self.i.ready.eq(checked.half & ~self.hold),
            takes.eq(self.i.valid & self.i.ready),
            self.stream.eq(part.stream),
            along.i.eq(part),
            looked.eq(delayed(m, LOOKUP, part, "looked")),
            hurries.eq(coming[LOOKUP - 1] & looked.inline & ~coming[LOOKUP:].any()),
            check.i.valid.eq(takes),
            header.tagged.eq(1),
            header.version.eq(1),
            header.stag.eq(part.stag),
            header.to.eq(part.to),
            header.length.eq(Mux(part.probe, 1, part.length)),
            rights.stream.eq(looked.stream),
            rights.pd.eq(self.pd),
            rights.enable.eq(self.enable),
            self.index.eq(check.index),
            check.entry.eq(self.entry),
            # The right that counts depends on who reads.
            check.entry.local_read.eq(Mux(
                delayed(m, WIRES, looked.response, "response"),
                self.entry.remote_read, self.entry.local_read)),
        ]
        m.d.sync += [
            coming.eq(Cat(takes, coming)),
            coming[LOOKUP].eq(coming[LOOKUP - 1] & ~hurries),
            quick.eq(hurries),
            short.eq(looked),
            enabled.eq(self.enable),
        ]

        result, then = check.o.payload, SendPart(self.config.streams)(Mux(quick, short, along.o))
        refused, drops = Signal(), Signal()
        read = checked.i.payload.placement
        m.d.comb += [
            refused.eq(then.refused | ~Mux(quick, enabled, result.enable)
                       | (result.error & ~then.inline)),
            checked.i.valid.eq((coming[-1] | quick) & ~drops),
            checked.i.payload.pages.eq(Mux(then.inline, 0, result.pages)),
            read.address.eq(Mux(then.inline, then.to, result.address)),
            read.length.eq(then.length),
            read.inline.eq(then.inline),
            read.last.eq(then.last | refused),
            read.exception.eq(refused),
        ]
        with m.If(coming[-1] | quick):
            m.d.sync += drops.eq((drops | refused) & ~then.last)
        m.d.sync += self.busy.eq(
            takes | coming.any() | quick | checked.o.valid | m.submodules.cut.busy
            | m.submodules.pieces.o.valid)
