"""Removes MPA markers from a payload (RFC 5044 section 4.3) by placing the parts between them."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.commit import Move
from ..dma.jobs import Placement
from ..dma.pages import PagedPlacement
from ..lib.stream import plus

__all__ = ["MarkerCut"]


class MarkerCut(wiring.Component):
    """Cuts a placement at its markers: each part between two markers becomes a placement.

    The payload is never shifted to close a marker's gap. So streams with markers need no
    multiplexer, but one placement for every 508 octets.

    Latency: 1 cycle. Throughput: one placement per cycle without markers; with markers one part
    every 2 cycles, and 2 more cycles for the first part.
    Reset: empty. Errors: none.

    Parameters
    ----------
    config : RnicConfig
    marked : bool
        False if no payload has markers.
    sources, unordered
        Those of :class:`~..ddp.commit.Move`.

    Members
    -------
    i : In(stream.Signature(Move(config, ...)))
    go : In(1)
        A placement may be output in the cycle after the next one.
    o : Out(stream.Signature(PagedPlacement, always_ready=True))
    """

    def __init__(self, config, *, marked=True, sources=1, unordered=False):
        self.config, self.marked, self.unordered = config, marked, unordered
        move = Move(config, sources=sources, unordered=unordered)
        paged = PagedPlacement(Placement(config, sources=sources))
        super().__init__({
            "i": In(stream.Signature(move)),
            "go": In(1),
            "o": Out(stream.Signature(paged, always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        payload, paged = self.i.payload, self.o.payload
        marked = payload.markers if self.marked else C(0)
        whole, begin, measure, part = Signal(init=1), Signal(), Signal(), Signal()
        # The inverse of ``whole``, in a separate register for the wide enables.
        cutting = Signal()
        goes, takes = Signal(), Signal()
        beat_bits = self.config.octets.bit_length() - 1
        rest = Signal(payload.placement.shape())
        phase = Signal(7)
        at_marker = Signal()
        gap = Signal(10)  # octets to the next marker
        more = Signal()  # the marker comes before the end
        carry = Signal()
        # The placement after the next part is computed ahead; the address in two steps, because a
        # part is shorter than 2**16 octets.
        next_start = Signal(len(rest.start))
        next_length = Signal(len(rest.length))
        next_low = Signal(17)
        behind_marker = Signal(len(rest.start))
        upper = rest.address[16:]
        upper_more = Signal(len(upper))
        # ``takes`` is ``whole & goes``, computed one cycle earlier: it enables a wide register.
        m.d.comb += self.i.ready.eq(takes)
        m.d.sync += [
            self.o.valid.eq(0),
            goes.eq(self.go),
            takes.eq(self.go & Mux(
                takes, ~(self.i.valid & marked), whole | (part & goes & ~more))),
        ]
        with m.If(cutting):
            m.d.sync += upper_more.eq(upper + 1)

        # One step per cycle, each with its own flag.
        with m.If(~cutting):
            m.d.sync += [
                paged.placement.eq(payload.placement),
                paged.pages.eq(payload.pages),
                rest.eq(payload.placement),
                phase.eq(payload.phase),
                at_marker.eq(~payload.phase.any()),
                behind_marker.eq(payload.placement.start + 4),
                carry.eq(0),
            ]
        with m.If(takes & self.i.valid):
            m.d.sync += [
                self.o.valid.eq(~marked & ~(payload.none if self.unordered else 0)),
                whole.eq(~marked),
                begin.eq(marked),
                cutting.eq(marked),
            ]
        with m.If(begin):
            # A payload that begins at a marker begins after it.
            m.d.sync += [begin.eq(0), measure.eq(1), gap.eq((128 - phase) << 2)]
            with m.If(at_marker):
                m.d.sync += [gap.eq(127 << 2), rest.start.eq(behind_marker)]
        with m.If(measure):
            m.d.sync += [
                measure.eq(0),
                part.eq(1),
                more.eq(rest.length > gap),
                next_start.eq(
                    Cat(rest.start[:2], plus(rest.start[2:], gap[2:], C(1, 1)))),
                next_length.eq(rest.length - gap),
                next_low.eq(rest.address[:16] + gap),
            ]
            with m.If(carry):
                m.d.sync += upper.eq(upper_more)
        with m.If(part):
            m.d.sync += paged.placement.eq(rest)
            with m.If(more):
                m.d.sync += [
                    paged.placement.length.eq(gap),
                    paged.placement.last.eq(0),
                    # The buffer is free up to the part that has been read, and no further.
                    paged.placement.release.eq(rest.start >> beat_bits),
                ]
        with m.If(part & goes):
            m.d.sync += [
                self.o.valid.eq(1),
                rest.start.eq(next_start),
                Cat(rest.address[:16], carry).eq(next_low),
                rest.length.eq(next_length),
                gap.eq(127 << 2),
                part.eq(0),
                measure.eq(more),
                whole.eq(~more),
                cutting.eq(more),
            ]
        return m
