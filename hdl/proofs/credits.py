"""Proves that no more credits are taken than there are."""

from amaranth import *
from amaranth.hdl import Cover

from .harness import Harness, if_

__all__ = ["Credited"]


class Credited(Harness):
    """Proves that a writer that keeps the rule never has more items under way than the limit.

    ``idle`` says exactly when none is under way. Assumes a take only in the cycle of ``ok`` or up
    to ``lag`` - 1 cycles later, and a give only while an item is under way. By induction of depth
    ``lag`` + 3: a take that lags is counted that late.
    """

    @property
    def depth(self):
        return self.dut.lag + 3

    def rules(self, m):
        dut, inside = self.dut, self.inside
        allowed = dut.ok
        for cycles in range(1, dut.lag):
            allowed = allowed | self.past(dut.ok, cycles)
        count = Signal(range(dut.limit + 2))
        self.assume(if_(dut.take, allowed))
        self.assume(if_(dut.give, count != 0))
        m.d.sync += count.eq(count + dut.take - dut.give)
        self.always(count <= dut.limit, "no more than the limit")
        self.always(dut.idle == (count == 0), "idle")
        self.lemma(inside["used"] == count, "the count")
        if not dut.lag:
            self.lemma(inside["free"] == (count != dut.limit), "one is free")
            self.lemma(inside["one"] == (count == dut.limit - 1), "exactly one is free")
            self.lemma(if_(dut.ok, inside["free"]), "ok")
        m.d.comb += Cover(count == dut.limit, "all are used")
