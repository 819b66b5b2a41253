"""Takes MPA markers out of a payload (RFC 5044 section 4.3) by placing the parts between them."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.commit import Move
from ..dma.placement import Placement

__all__ = ["MarkerCut"]


class MarkerCut(wiring.Component):
    """Cuts a placement at the markers: each part between two becomes a placement of its own.

    Payload is never shifted together to close a marker's gap, so that streams with markers cost no
    multiplexer; they cost a placement for every 508 octets.

    Latency: 1 cycle. Throughput: a placement a cycle without markers, one every 2 cycles with them.
    Reset: empty. Errors: none.

    Members
    -------
    i : In(stream.Signature(Move(config)))
    go : In(1)
        A placement may go out in the next cycle.
    o : Out(stream.Signature(Placement, always_ready=True))
    """

    def __init__(self, config):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(Move(config))),
                "go": In(1),
                "o": Out(
                    stream.Signature(Placement(config.buffer_octets), always_ready=True)
                ),
            }
        )

    def elaborate(self, platform):
        m = Module()
        payload = self.i.payload
        beat_bits = self.config.octets.bit_length() - 1
        rest = Signal(Placement(self.config.buffer_octets))
        phase = Signal(7)
        gap = Signal(10)  # octets to the next marker
        carry = Signal()
        m.d.sync += self.o.valid.eq(0)

        with m.FSM():
            with m.State("Whole Placements"):
                m.d.comb += self.i.ready.eq(self.go)
                m.d.sync += [
                    self.o.payload.eq(payload.placement),
                    rest.eq(payload.placement),
                    phase.eq(payload.phase),
                    carry.eq(0),
                ]
                with m.If(self.i.valid & self.go):
                    with m.If(payload.markers & payload.placement.length.any()):
                        m.next = "Measure"
                    with m.Else():
                        m.d.sync += self.o.valid.eq(1)
            with m.State("Measure"):
                # A payload that begins at a marker begins after it.
                m.d.sync += [
                    rest.address[32:].eq(rest.address[32:] + carry),
                    gap.eq((128 - phase) << 2),
                ]
                with m.If(~phase.any()):
                    m.d.sync += [gap.eq(127 << 2), rest.start.eq(rest.start + 4)]
                m.next = "Part"
            with m.State("Part"):
                with m.If(self.go):
                    m.d.sync += [
                        self.o.valid.eq(1),
                        self.o.payload.eq(rest),
                        rest.start.eq(rest.start + gap),
                        Cat(rest.address[:32], carry).eq(rest.address[:32] + gap),
                        rest.length.eq(rest.length - gap),
                        phase.eq(0),
                    ]
                    with m.If(rest.length > gap):
                        m.d.sync += [
                            self.o.payload.length.eq(gap),
                            self.o.payload.last.eq(0),
                            # Read this far, the buffer is free up to here and no further.
                            self.o.payload.release.eq(rest.start >> beat_bits),
                        ]
                        m.next = "Measure"
                    with m.Else():
                        m.next = "Whole Placements"
        return m
