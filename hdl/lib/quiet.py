"""Finds out when a datapath has been quiet for long enough to be idle."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Quiet"]


class Quiet(wiring.Component):
    """Reports that nothing was busy for some cycles.

    Data on its way from one block to the next may be busy in neither for a few cycles; ``cycles``
    is more than that.

    Latency: ``cycles`` from the last cycle with ``busy`` to ``o``; 1 from ``busy`` to ``o`` low.
    Throughput: not applicable. Reset: low, and ``cycles`` begin anew. Errors: none.

    Parameters
    ----------
    cycles : int
        One less than a power of two.

    Members
    -------
    busy : In(1)
    o : Out(1)
        ``busy`` was low in each of the last ``cycles`` cycles. Combinational from registers.
    """

    def __init__(self, cycles):
        if not isinstance(cycles, int):
            raise TypeError(f"Quiet cycles must be an integer, not {cycles!r}")
        if cycles < 1 or cycles & (cycles + 1):
            raise ValueError(f"Quiet cycles must be one less than a power of two, not {cycles!r}")
        self.cycles = cycles
        super().__init__({"busy": In(1), "o": Out(1)})

    def elaborate(self, platform):
        m = Module()
        count = Signal(range(self.cycles + 1))
        with m.If(self.busy):
            m.d.sync += count.eq(0)
        with m.Elif(~count.all()):
            m.d.sync += count.eq(count + 1)
        m.d.comb += self.o.eq(count.all())
        return m
