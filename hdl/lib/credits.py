"""Counts credits: how many items a writer may still send to a block that has room for some."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .stream import counted

__all__ = ["Credits"]


class Credits(wiring.Component):
    """Counts how many items are under way, up to a limit.

    A writer that sees ``ok`` and takes a credit in the same cycle needs no ``lag``: then all
    credits are used. Another one is far from the counter: it sees ``ok`` through registers, or its
    ``take`` arrives through registers. With ``lag``, ``ok`` falls while that many credits are still
    free, and a credit may be taken in the cycle of ``ok`` or up to ``lag`` - 1 cycles later.

    Latency: 1 cycle from ``give`` to ``ok``, 2 with ``lag``. Throughput: one take and one give per
    cycle. Reset: all credits are free; ``ok`` is low for one cycle. Errors: none; a take without
    ``ok`` is not allowed.

    Parameters
    ----------
    limit : int
    lag : int

    Members
    -------
    open : In(1)
        Credits may be taken from the next cycle on.
    take, give : In(1)
    ok : Out(1)
        A credit is free, and ``open`` was high.
    soon : Out(1)
        Without ``lag`` only: ``ok`` in the next cycle; combinational.
    idle : Out(1)
        All credits are free.
    """

    def __init__(self, limit, *, lag=0):
        if not 0 <= lag < limit:
            raise ValueError(f"Credits lag must be 0 or more and below {limit}, not {lag!r}")
        self.limit, self.lag = limit, lag
        super().__init__({
            "open": In(1), "take": In(1), "give": In(1), "ok": Out(1), "idle": Out(1, init=1),
            **({} if lag else {"soon": Out(1)}),
        })

    def elaborate(self, platform):
        m = Module()
        used = Signal(range(self.limit + 1))
        counted(m, used, self.take, self.give)
        with m.If(self.take & ~self.give):
            m.d.sync += self.idle.eq(0)
        with m.Elif(self.give & ~self.take):
            m.d.sync += self.idle.eq(used == 1)
        if self.lag:
            m.d.sync += self.ok.eq((used < self.limit - self.lag) & self.open)
            return m

        free = Signal(init=1)
        one = Signal(init=self.limit == 1)  # exactly one credit is free
        still_free = Signal()
        # A take implies that a credit is free.
        m.d.comb += still_free.eq(self.give | (free & ~(self.take & one)))
        with m.If(self.take & ~self.give):
            m.d.sync += one.eq(used == self.limit - 2)
        with m.Elif(self.give & ~self.take):
            m.d.sync += one.eq(~free)
        m.d.comb += self.soon.eq(still_free & self.open)
        m.d.sync += [free.eq(still_free), self.ok.eq(self.soon)]
        return m
