"""Cuts the entries that are read in a turn into runs, each of which is read as one."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.send import ENTRY

__all__ = ["RUN", "Run", "Runs", "Span"]

#: The most entries of a run. The first entries of a turn come once their run is there, and its room
#: is free again once it has left.
RUN = 16


class Span(data.StructLayout):
    """Entries of a ring.

    Members
    -------
    base : 58, size : 4
        2 to the power of ``size`` entries from ``base`` on, in units of 64 octets.
    start : 16, count : 8
        The index of the first entry, which runs freely; and how many there are: one or more, and no
        more than the ring has.
    """

    def __init__(self):
        super().__init__({
            "base": 64 - exact_log2(ENTRY), "size": 4, "start": 16, "count": 8})


class Run(data.StructLayout):
    """``count`` (5) entries from the address ``at`` (58) on, in units of 64 octets.

    ``first`` (1), ``last`` (1): they are the first ones and the last ones of their span.
    """

    def __init__(self):
        super().__init__({
            "at": 64 - exact_log2(ENTRY), "count": range(RUN + 1), "first": 1, "last": 1})


class Runs(wiring.Component):
    """Cuts a span into runs. A run ends with the span, or before the next index that is a multiple
    of ``RUN``, or of a smaller power of two: of the ring's entries, if these are fewer, and of the
    greatest one that divides the ring's base. So no run passes a multiple of ``RUN`` entries in
    host memory.

    Latency: 1 cycle. Throughput: one run in 2 cycles. Reset: the next span has no run yet. Errors:
    none.

    Members
    -------
    i : In(stream.Signature(Span()))
        Taken with its last run.
    o : Out(stream.Signature(Run()))
    """

    def __init__(self):
        super().__init__({
            "i": In(stream.Signature(Span())),
            "o": Out(stream.Signature(Run())),
        })

    def elaborate(self, platform):
        m = Module()
        span, run = self.i.payload, self.o.payload
        # Of the next run: whether it is the span's first one, else its index and the entries left.
        first, next_index, rest = Signal(init=1), Signal(15), Signal(8)
        index, left = Signal(16), Signal(8)
        most, inner = Signal(range(RUN + 1)), Signal(exact_log2(RUN))
        m.d.comb += [
            index.eq(Mux(first, span.start, next_index) & Cat(span.size > k for k in range(16))),
            # The bits of an index that differ within a run.
            inner.eq(Cat(
                (span.size > k) & ~span.base[:k + 1].any() for k in range(exact_log2(RUN)))),
            most.eq((~index[:exact_log2(RUN)] & inner) + 1),
            left.eq(Mux(first, span.count, rest)),
            run.first.eq(first),
            self.i.ready.eq(self.o.valid & self.o.ready & run.last),
        ]
        m.d.sync += [
            self.o.valid.eq(self.i.valid & ~(self.o.valid & self.o.ready)),
            run.at.eq(span.base + index),
            run.count.eq(Mux(left < most, left, most)),
            run.last.eq(left <= most),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [
                first.eq(run.last),
                next_index.eq(index + run.count),
                rest.eq(left - run.count),
            ]
        return m
