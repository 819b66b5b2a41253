"""Moderates interrupts by the number of completions that wait, and by their age."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import ForwardedTable
from ..lib.stream import delayed
from ..lib.table import table_write
from .room import Doorbell, queues_of

__all__ = ["WRAP", "InterruptModeration", "ModerationSettings"]


#: Cycles from reset until the count of cycles wraps. Longer simulations pass the wrap.
WRAP = 1 << 12


class ModerationSettings(data.StructLayout):
    """The waiting completions (16), and the age in cycles (32), that interrupt the host."""

    def __init__(self):
        super().__init__({"count": 16, "timeout": 32})


class InterruptModeration(wiring.Component):
    """Decides when the completions that wait in a queue interrupt the host.

    A doorbell with ``arm`` arms a queue, and takes it out of ``pending``. An armed queue becomes
    pending, once, when it holds other completions than the host has taken, and either their number
    is at least ``count``, or the first of them has been seen ``timeout`` cycles ago. Completions
    that arrive between the host's last look and its doorbell count like later ones, so that nothing
    is lost in between. A ``count`` of 0 counts as 1. With a ``timeout`` of 0, any completion makes
    the queue pending.

    The queues are looked at in turn, one per cycle. A queue whose doorbell comes meanwhile is
    looked at again in its next turn.

    Latency: 8 cycles to two rounds, of max(8, queues) cycles each. Throughput: one doorbell or
    setting per cycle. Reset: no queue is armed or pending. Errors: none.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    settings : In(table_write(ModerationSettings(), queues))
    restart : In(stream.Signature(range(queues), always_ready=True))
        A queue that restarts: it is neither armed nor pending. Not with a doorbell.
    doorbell : In(stream.Signature(Doorbell(config), always_ready=True))
    look : Out(range(queues)), found : In(16)
        Completions in a queue, modulo 2**16, 2 cycles later.
    pending : Out(completion_queues + 1)
        A bit for each queue, that of the LLP's owner last.
    """

    def __init__(self, config):
        self.config = config
        self.queues = queues = queues_of(config)
        self.exist = config.completion_queues + 1  # the other numbers name no queue
        super().__init__({
            "settings": In(table_write(ModerationSettings(), queues)),
            "restart": In(stream.Signature(range(queues), always_ready=True)),
            "doorbell": In(stream.Signature(Doorbell(config), always_ready=True)),
            "look": Out(range(queues)),
            "found": In(16),
            "pending": Out(self.exist),
        })

    def elaborate(self, platform):
        m = Module()
        queues = self.queues
        m.submodules.settings = settings = ForwardedTable(ModerationSettings(), queues)
        m.submodules.consumers = consumers = ForwardedTable(unsigned(16), queues)
        # When the first completion that waits was seen, if it was.
        m.submodules.stamps = stamps = ForwardedTable(unsigned(32), queues)
        armed, seen = Signal(self.exist), Signal(self.exist)
        now = Signal(32, init=(1 << 32) - WRAP)
        rung, rings = self.doorbell.payload, self.doorbell.valid
        changed, which = Signal(), Signal(range(queues))
        m.d.comb += [
            settings.write.valid.eq(self.settings.valid),
            settings.write.payload.address.eq(self.settings.payload.index),
            settings.write.payload.data.eq(self.settings.payload.entry),
            changed.eq(rings | self.restart.valid),
            which.eq(Mux(rings, rung.queue, self.restart.payload)),
            consumers.write.valid.eq(changed),
            consumers.write.payload.address.eq(which),
            consumers.write.payload.data.eq(Mux(rings, rung.consumer, 0)),
        ]

        # at[k] is the queue that was looked up k cycles ago. The look at it is stale if the host
        # has changed something in the meantime.
        turn = Signal(range(max(8, queues)))
        m.d.sync += [turn.eq(turn + 1), now.eq(now + 1)]
        at = [turn, *(Signal.like(turn, name=f"at_{k}") for k in range(1, 6))]
        stale = Signal(6)
        hits = Cat(changed & (which == each) for each in at)
        m.d.sync += [
            *(later.eq(earlier) for earlier, later in zip(at, at[1:], strict=False)),
            stale.eq(Cat(C(0, 1), (stale | hits)[:5])),
        ]
        m.d.comb += [
            self.look.eq(turn),
            *(table.address[0].eq(turn) for table in (settings, consumers, stamps)),
        ]
        waiting, known, before = Signal(16), Signal(ModerationSettings()), Signal()
        age, some, enough, late = Signal(32), Signal(2), Signal(2), Signal()
        m.d.sync += [
            waiting.eq(self.found - consumers.data[0]),
            known.eq(settings.data[0]),
            before.eq(seen.bit_select(at[2][:len(self.look)], 1)),
            # A host that polls the ring may take a completion before the bus has responded for it.
            some.eq(Cat(waiting.any() & ~(waiting[15] & waiting[:15].any()), some)),
            enough.eq(Cat(waiting >= known.count, enough)),
            age.eq(Mux(before, now - delayed(m, 1, stamps.data[0], "stamp"), 0)),
            late.eq(age >= delayed(m, 1, known.timeout, "timeout")),
        ]
        last = at[5][:len(self.look)]
        counts, fires = Signal(), Signal()
        m.d.comb += [
            counts.eq((at[5] < self.exist) & ~(stale | hits)[5]),
            fires.eq(counts & some[1] & (enough[1] | late) & armed.bit_select(last, 1)),
        ]
        # The stamp is written before the queue's next turn.
        m.d.sync += [
            stamps.write.valid.eq(counts & ~seen.bit_select(last, 1)),
            stamps.write.payload.address.eq(last),
            stamps.write.payload.data.eq(now),
        ]
        # Masks, because Verilator makes a tree of branches of each bit that is set by its index.
        counted, fired = (Mux(each, 1 << last, 0)[:self.exist] for each in (counts, fires))
        m.d.sync += [
            seen.eq((seen & ~counted) | Mux(some[1], counted, 0)),
            armed.eq(armed & ~fired),
            self.pending.eq(self.pending | fired),
        ]
        with m.If(self.restart.valid | (rings & rung.arm)):
            m.d.sync += [
                armed.bit_select(which, 1).eq(rings),
                seen.bit_select(which, 1).eq(0),
                self.pending.bit_select(which, 1).eq(0),
            ]
        return m
