"""Moderates interrupts by the number of completions that wait, and by the age of the oldest."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import BlockRam

__all__ = ["InterruptModeration"]

#: Completions whose time of arrival is remembered: one block RAM of 32 bits.
STAMPS = 512


class InterruptModeration(wiring.Component):
    """Decides when the completions that wait for the host raise an interrupt.

    ``irq`` is a level. It is high while completions wait and either their number is at least
    ``count``, or the oldest of them arrived ``timeout`` cycles ago. A ``count`` of 0 counts as 1,
    and one above 512 as 512. With a ``timeout`` of 0, any completion raises ``irq``.

    Latency: 3 cycles; at most 9 to take account of a new oldest completion.
    Throughput: one completion per cycle. Reset: low. Errors: none.

    Members
    -------
    producer : In(16)
        Completions in the ring, modulo 2**16.
    consumer : In(16)
        Completions that the host has taken, modulo 2**16.
    count : In(16)
        Waiting completions that raise ``irq``.
    timeout : In(32)
        Age of the oldest completion that raises ``irq``, in cycles.
    irq : Out(1)
    """

    producer: In(16)
    consumer: In(16)
    count: In(16)
    timeout: In(32)
    irq: Out(1)

    def elaborate(self, platform):
        m = Module()
        # A stamp that is written while it is read counts only after ``settled``.
        m.submodules.stamps = stamps = BlockRam(32, STAMPS)
        now = Signal(32)
        waiting = Signal(16)
        some, enough, expired = Signal(), Signal(), Signal()

        # The entry of the next completion is written with the time until that completion arrives.
        m.d.sync += now.eq(now + 1)
        m.d.comb += [
            stamps.write.valid.eq(1),
            stamps.write.payload.address.eq(self.producer),
            stamps.write.payload.data.eq(now),
            stamps.address[0].eq(self.consumer),
        ]
        came = Signal(32)
        age = Signal(32)
        late = Signal()
        m.d.sync += [
            came.eq(stamps.data[0]),
            age.eq(now - came),
            late.eq(age >= self.timeout),
        ]

        # ``late`` is used only after it has settled for the completion that is the oldest now. Once
        # it was seen, it stays set for that completion, because the age wraps.
        consumer_1 = Signal(16)
        moved = Signal()
        settled = Signal(5)
        m.d.sync += [
            consumer_1.eq(self.consumer),
            moved.eq(consumer_1 != self.consumer),
            settled.eq(Cat(C(1), settled)),
        ]
        with m.If(moved | ~some):
            m.d.sync += settled.eq(0)
        with m.If(~some):
            m.d.sync += expired.eq(0)
        with m.Elif(settled[3]):
            m.d.sync += expired.eq(late | (expired & settled[4]))

        m.d.sync += [
            waiting.eq(self.producer - self.consumer),
            # A host that polls the ring may take a completion before the bus has responded for it.
            some.eq(waiting.any() & ~(waiting[15] & waiting[:15].any())),
            enough.eq((waiting >= self.count) | (waiting >= STAMPS)),
            self.irq.eq(some & (enough | expired)),
        ]
        return m
