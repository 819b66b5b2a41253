"""Assembles the Data Source over MPA: from work requests to FPDUs (RFC 5041 section 5.2).

The data's way::

    entries ─ Segmenter ┬ segments ──────────────────► ReadDma ─ Departure ─ Framer ─ FPDUs
                        ├ parts ─ PartCheck ─ pieces ─►  │ ▲
                        └ inline ──────────────────────► │ └ bus
                                  reserved ◄─────────────┘
"""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiRead
from ..dma.read import ReadDma
from ..lib.stream import counted
from ..mpa.framer import FpduBeat, Framer
from .checks import PartCheck
from .departure import Departure
from .segmenter import Segmenter
from .work import WorkEntry

__all__ = ["DataSource"]


class DataSource(wiring.Component):
    """Sends messages: reads their octets from host memory, and frames them as FPDUs.

    ``fence`` begins when an entry of the STag table was replaced. It ends when no octet that the
    former entry allowed to read is read any more: all reads have been answered by then.

    Latency: that of its parts. Throughput: a segment takes as many cycles as its bursts or its FPDU
    have beats, or two. Reset: empty; streams and their numbers stay. Errors: a segment that cannot
    be read closes the sending half of its stream.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    work : In(stream.Signature(WorkEntry(streams)))
        The entries of work requests; those of a message follow each other.
    mulpdus, msns, set, look, state, dropped
        As in :class:`~.segmenter.Segmenter` and :class:`~.departure.Departure`.
    stream, pd, index, entry, slot, page
        As in :class:`~.checks.PartCheck`.
    bus : Out(AxiRead(width, reads))
    o : Out(stream.Signature(FpduBeat(width)))
    fence : In(1), fencing : Out(1)
    busy : Out(1)
        A message was taken that has not left whole, or an entry waits.
    """

    def __init__(self, config):
        self.config = config
        self.segmenter, self.check = Segmenter(config.streams), PartCheck(config)
        self.departure = Departure(config.width, config.streams)
        own = {
            **{name: self.segmenter.signature.members[name] for name in ("mulpdus", "msns")},
            **{name: self.check.signature.members[name]
               for name in ("stream", "pd", "index", "entry", "slot", "page")},
            **{name: self.departure.signature.members[name]
               for name in ("set", "look", "state", "dropped")},
        }
        super().__init__({
            "work": In(stream.Signature(WorkEntry(config.streams))),
            "bus": Out(AxiRead(config.width, config.outstanding)),
            "o": Out(stream.Signature(FpduBeat(config.width))),
            "fence": In(1),
            "fencing": Out(1),
            "busy": Out(1),
            **own,
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.segmenter = segmenter = self.segmenter
        m.submodules.check = check = self.check
        m.submodules.dma = dma = ReadDma(
            self.config.width, reads=self.config.outstanding, inline=segmenter.rows)
        m.submodules.departure = departure = self.departure
        m.submodules.framer = framer = Framer(self.config.width)
        wiring.connect(m, wiring.flipped(self.work), segmenter.i)
        wiring.connect(m, segmenter.segments, dma.segments)
        wiring.connect(m, segmenter.inline, dma.inline)
        wiring.connect(m, dma.reserved, segmenter.reserved)
        wiring.connect(m, segmenter.parts, check.i)
        wiring.connect(m, check.o, dma.pieces)
        wiring.connect(m, dma.bus, wiring.flipped(self.bus))
        wiring.connect(m, dma.heads, departure.segments)
        wiring.connect(m, dma.o, departure.beats)
        wiring.connect(m, departure.heads, framer.heads)
        wiring.connect(m, departure.o, framer.i)
        wiring.connect(m, framer.o, wiring.flipped(self.o))
        for part, names in (
            (segmenter, ("mulpdus", "msns")), (departure, ("set",)),
        ):
            for name in names:
                wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(part, name))
        m.d.comb += [
            check.pd.eq(self.pd),
            check.entry.eq(self.entry),
            check.page.eq(self.page),
            self.stream.eq(check.stream),
            self.index.eq(check.index),
            self.slot.eq(check.slot),
            departure.look.eq(self.look),
            self.state.eq(departure.state),
            self.dropped.eq(departure.dropped),
        ]

        messages, fpdus = Signal(8), Signal(8)
        counted(m, messages, segmenter.begins, departure.ends)
        counted(m, fpdus, departure.leaves, self.o.valid & self.o.ready & self.o.payload.beat.last)
        m.d.comb += self.busy.eq(segmenter.waits | messages.any() | fpdus.any())

        # First the parts that saw the former entry go to the DMA engine, then it reads them.
        waits, drains, again = Signal(), Signal(3), Signal()
        m.d.comb += [
            check.hold.eq(waits),
            dma.fence.eq(waits & drains.all() & ~check.busy),
            self.fencing.eq(waits | again | dma.fencing),
        ]
        with m.If(self.fence):
            m.d.sync += [waits.eq(1), drains.eq(0)]
        with m.Elif(waits):
            m.d.sync += drains.eq(Cat(C(1, 1), drains))
            with m.If(dma.fence):
                m.d.sync += waits.eq(0)
        m.d.sync += again.eq(dma.fence)
        return m
