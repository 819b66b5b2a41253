"""Proves that no wake of the scheduler is lost, and that a stream has one turn at a time."""

from amaranth import *
from amaranth.hdl import Cover

from ..lib.stream import Store
from .harness import Harness, if_

__all__ = ["Short", "Woken"]


def Short(shape, *, depth, relaxed):
    """Replaces the scheduler's queue by one of four places, which is enough for two streams."""
    return Store(shape, depth=4)


class Woken(Harness):
    """Proves that a wake is followed by a turn of its stream, of any one stream.

    Once the scheduler holds nothing any more, no stream is owed a turn: none was woken after its
    last turn had begun. A stream that has a turn is given no other one until its end. Assumes an
    end only for a stream that has a turn, and wakes of two streams; ``Short`` replaces the
    queue. Bounded: for the first ``DEPTH`` cycles, of which a sweep takes one for each stream.
    """

    DEPTH = 33

    def rules(self, m):
        dut, inside = self.dut, self.inside
        stream = self.any(1, name="stream", constant=True)
        turn, ended, wake = dut.turn, dut.ended, dut.wake
        self.polite(wake)
        self.assume(wake.payload < 2)
        self.polite(ended)
        begins = turn.valid & turn.ready
        running, owed = Signal(2), Signal()
        self.assume(if_(ended.valid, (ended.payload.stream < 2)
                        & running.bit_select(ended.payload.stream[0], 1)))
        with m.If(ended.valid & ended.ready):
            m.d.sync += running.bit_select(ended.payload.stream[0], 1).eq(0)
        with m.If(begins):
            m.d.sync += running.bit_select(turn.payload.stream[0], 1).eq(1)
        mine = running.bit_select(stream, 1)
        woken = wake.valid & wake.ready & (wake.payload == stream)
        m.d.sync += owed.eq(woken | (owed & ~(begins & (turn.payload.stream == stream))))

        works = (wake.valid & wake.ready) | (ended.valid & ended.ready)
        moves = works | inside["reads"]
        still = ~moves
        for cycles in range(1, 4):
            still = still & ~self.past(moves, cycles)
        queue, offers = inside.component("queue"), inside.component("offers")
        empty = still & ~queue.level.any() & ~offers.level.any()
        self.always(if_(empty & owed, mine), "a wake that is lost")
        self.always(if_(turn.valid & (turn.payload.stream == stream), ~mine), "one turn at a time")
        self.steady(turn, "a turn stays until it is taken")
        m.d.comb += [
            Cover(self.past(begins) & mine & owed, "woken in its turn"),
            Cover(empty & self.past(ended.valid & ended.ready, 6) & ~mine, "all is done"),
        ]
