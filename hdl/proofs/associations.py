"""Proves that no stream waits for credit of its association that is there."""

from amaranth import *
from amaranth.hdl import Cover

from .harness import Harness, if_

__all__ = ["Front"]


class Front(Harness):
    """Proves that the first stream of a queue is woken after each change that may let it send.

    Once :class:`~..send.associations.AssociationQueues` is idle, the first stream of the queue was
    woken after it became the first, and after the last new credit. Each stream of the queue is
    marked as listed, each other one is not, and none is there twice. Assumes one association with
    both of two streams, which is set once, before anything else; and ends of turns only while there
    is room. Bounded: for the first ``DEPTH`` cycles.
    """

    DEPTH = 44
    #: Cycles in which the queue is set.
    SET = 8

    def rules(self, m):
        dut, inside = self.dut, self.inside
        age = Signal(range(self.SET + 1))
        m.d.sync += age.eq(age + (age != self.SET))
        start, event = dut.set.payload, dut.ended.payload
        self.assume(dut.set.valid == (age == 0))
        self.assume(if_(dut.set.valid, (start.first == 0) & (start.count == 2)
                        & (start.association == 0)))
        self.polite(dut.raised)
        self.assume(if_(dut.raised.valid | dut.ended.valid, age == self.SET))
        self.assume(if_(dut.raised.valid, dut.raised.payload == 0))
        self.assume(if_(dut.ended.valid, dut.room & (event.association == 0)))

        self.drive(dut.look, Const(0, len(dut.look)))
        row = inside.table("queues", Const(0, len(dut.look)))
        some, front = row.some, row.front
        woken = dut.wake.valid & dut.wake.ready & (dut.wake.payload == front)
        owed, raised = Signal(), dut.raised.valid & dut.raised.ready
        other = some & (~self.past(some) | (front != self.past(front)))
        m.d.sync += owed.eq((raised | other | owed) & ~woken)
        quiet = ~dut.busy & (age == self.SET) & ~dut.ended.valid & ~dut.raised.valid
        rest = quiet & self.past(quiet) & self.past(quiet, 2)
        self.always(if_(rest & some, ~owed), "a wake of the first stream")
        listed = Cat(inside.table("marks", Const(stream, 1)).listed
                     for stream in range(2))
        places = [inside.row("places.storage", Const(place, 1)) for place in range(2)]
        both = row.head != row.tail
        self.always(if_(rest, (listed == 0) == ~some), "no stream is listed alone")
        self.always(if_(rest & some, listed == Mux(both, 3, 1 << front)), "all that wait")
        self.always(if_(rest & some & both, places[0] != places[1]), "each is there once")
        self.always(if_(rest & some, Mux(row.head[0], places[1], places[0]) == front),
                    "the first one")
        m.d.comb += [
            Cover(rest & some & both & self.past(front, 20), "two streams wait"),
            Cover(rest & self.past(some & both, 20) & ~some, "two streams waited"),
        ]
