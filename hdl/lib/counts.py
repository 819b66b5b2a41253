"""Keeps many counts in block RAM, each of which may go up by one in each cycle."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .blockram import ForwardedTable

__all__ = ["CountTable"]


class CountTable(wiring.Component):
    """Keeps counts modulo 2**16 in block RAM. A look-up reads a count, and may then add one to it.

    Look-ups follow each other in order, one per cycle, also of the same count: ``count`` includes
    what all earlier look-ups have added.

    .. code-block:: text

        cycle     0        3                4
        look-up   index    soon, again      count, add

    Latency: 4 cycles from ``index`` to ``count``; 2 from ``look`` to ``found``, and 1 from ``add``
    to a ``look`` that sees its effect. Throughput: one look-up per cycle. Reset: the counts stay;
    at first all are 0. Errors: none.

    Parameters
    ----------
    depth : int
        Counts, a power of two.
    looks : int
        Number of ports that read a count without adding to it.

    Members
    -------
    index : In(range(depth))
    soon : Out(16)
        The count of three cycles ago, without what the look-up just before it is about to add.
    again : Out(1)
        That look-up before it reads the same count.
    count : Out(16)
        The count of four cycles ago.
    add : In(1)
        Adds one to it.
    zero : In(stream.Signature(range(depth)))
        A count to set to 0, of which no look-up that adds is under way. Waits for a cycle in which
        no count is written.
    look : In(range(depth)).array(looks), found : Out(16).array(looks)
    """

    LATENCY = 4

    def __init__(self, depth, *, looks=0):
        self.depth = depth
        super().__init__({
            "index": In(range(depth)),
            "soon": Out(16),
            "again": Out(1),
            "count": Out(16),
            "add": In(1),
            "zero": In(stream.Signature(range(depth))),
            "look": In(range(depth)).array(looks),
            "found": Out(16).array(looks),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = ForwardedTable(
            unsigned(16), self.depth, reads=1 + len(self.look))
        # index[k] came k cycles ago. The table lacks the additions of the last four look-ups. Only
        # an addition is forwarded: otherwise a count that was set to 0 would be lost.
        index = [self.index, *(Signal(range(self.depth), name=f"index_{k}") for k in range(1, 6))]
        second, third, fourth = Signal(), Signal(), Signal()
        added, became = Signal(2), [Signal(16, name=f"became_{k}") for k in range(2)]
        known, next_one = Signal(16), Signal(16)
        m.d.sync += [
            *(later.eq(earlier) for earlier, later in zip(index, index[1:], strict=False)),
            self.again.eq(index[2] == index[3]),
            second.eq(index[1] == index[3]),
            third.eq(index[1] == index[4]),
            fourth.eq(index[1] == index[5]),
            added.eq(Cat(self.add, added)),
            became[0].eq(next_one),
            became[1].eq(became[0]),
            self.soon.eq(Mux(self.add & second, next_one, known)),
            self.count.eq(Mux(self.add & self.again, next_one, self.soon)),
        ]
        m.d.comb += [
            table.address[0].eq(self.index),
            next_one.eq(self.count + 1),
            known.eq(Mux(third & added[0], became[0],
                         Mux(fourth & added[1], became[1], table.data[0]))),
            table.write.valid.eq(added[0] | self.zero.valid),
            table.write.payload.address.eq(Mux(added[0], index[5], self.zero.payload)),
            table.write.payload.data.eq(Mux(added[0], became[0], 0)),
            self.zero.ready.eq(~added[0]),
        ]
        for k, (look, found) in enumerate(zip(self.look, self.found, strict=True), start=1):
            m.d.comb += [table.address[k].eq(look), found.eq(table.data[k])]
        return m
