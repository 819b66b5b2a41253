"""Counts segments, octets and drops, for the registers."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .commit import Tally

__all__ = ["Counters"]


class Counters(wiring.Component):
    """Counts segments, octets and drops; every counter wraps.

    Latency: 2 cycles, 3 for the upper half of the octets. Throughput: one segment per cycle.
    Reset: 0, or all bits set with ``full``. Errors: none.

    Parameters
    ----------
    full : bool
        The counters begin with all bits set.

    Members
    -------
    tally : In(Tally)
    exception_dropped : In(1)
    hold : In(1)
        Copies the upper half of the octets to ``octets_high``, in the cycle after the next.
    placed, exceptions, errors, dropped, digest, exceptions_dropped : Out(32)
        Counters of segments and of dropped exception packets.
    octets_low, octets_high : Out(32)
        Octets placed: the lower half, and the upper half as last copied.
    """

    def __init__(self, *, full=False):
        self.init = (1 << 32) - 1 if full else 0
        super().__init__(
            {
                "tally": In(Tally()),
                "exception_dropped": In(1),
                "hold": In(1),
                **{
                    name: Out(32, init=self.init)
                    for name in (
                        "placed",
                        "exceptions",
                        "errors",
                        "dropped",
                        "digest",
                        "exceptions_dropped",
                        "octets_low",
                        "octets_high",
                    )
                },
            }
        )

    def elaborate(self, platform):
        m = Module()
        tally, dropped = Signal(Tally()), Signal()
        carry, held = Signal(), Signal()
        high = Signal(32, init=self.init)
        m.d.sync += [
            tally.eq(self.tally),
            dropped.eq(self.exception_dropped),
        ]
        for counter, event in (
            (self.placed, tally.placed),
            (self.exceptions, tally.exception),
            (self.errors, tally.error),
            (self.dropped, tally.dropped),
            (self.digest, tally.digest),
            (self.exceptions_dropped, dropped),
        ):
            m.d.sync += counter.eq(counter + event)
        m.d.sync += [
            Cat(self.octets_low, carry).eq(self.octets_low + tally.octets),
            high.eq(high + carry),
            held.eq(self.hold),
        ]
        with m.If(held):
            m.d.sync += self.octets_high.eq(high)
        return m
