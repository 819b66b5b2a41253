"""Waits until no octet is read any more that a replaced entry of the STag table allowed to read."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["SendFence"]


class SendFence(wiring.Component):
    """Waits until the reads of all parts that were taken for the checks so far have been answered.

    The fence holds further parts until those in the checks have become pieces of the DMA engine.
    Then the engine takes over, and parts are checked again.

    Latency: ``fencing`` is high from the cycle after ``fence``. Throughput: one fence at a time; a
    ``fence`` during another one extends that. Reset: no fence. Errors: none.

    Members
    -------
    fence : In(1), fencing : Out(1)
        A fence starts; it has not ended.
    hold : Out(1), checking : In(1)
        ``hold`` and ``busy`` of :class:`~.checks.PartCheck`.
    drain : Out(1), reading : In(1)
        ``fence`` and ``fencing`` of :class:`~..dma.read.ReadDma`.
    """

    def __init__(self):
        super().__init__({
            "fence": In(1),
            "fencing": Out(1),
            "hold": Out(1),
            "checking": In(1),
            "drain": Out(1),
            "reading": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        waits, settled = Signal(), Signal(3)
        m.d.comb += [
            self.hold.eq(waits),
            self.drain.eq(waits & settled.all() & ~self.checking),
            self.fencing.eq(waits | self.reading),
        ]
        with m.If(self.fence):
            m.d.sync += [waits.eq(1), settled.eq(0)]
        with m.Elif(waits):
            m.d.sync += settled.eq(Cat(C(1, 1), settled))
            with m.If(self.drain):
                m.d.sync += waits.eq(0)
        return m
