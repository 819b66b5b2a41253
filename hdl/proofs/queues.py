"""Proves that a completion queue is written only where its host has room, and holds up nothing."""

from amaranth import *
from amaranth.asserts import AnySeq
from amaranth.hdl import Cover

from ..ddp.room import QueueRoom, QueueSettings
from ..spec.config import RnicConfig
from .harness import Harness, if_

__all__ = ["CONFIG", "AnyRoom", "Flowing", "Placed"]

#: At 256 bits, a completion is exactly one beat.
CONFIG = RnicConfig(
    width=256, buffer_octets=4096, outstanding=8, stags=16, streams=2, backlog=64,
    completion_queues=2, address=16,
)


class Placed(Harness):
    """Proves where each completion goes, and when there is no room for it.

    Any one queue is followed. A completion for it is written exactly if the queue is enabled and
    not stopped, holds less than its size of entries that the host had not taken, and its stream has
    not overrun; then at the next slot of its ring, with that slot's phase. Only what the host did
    to this queue decides: other queues do not occur in the statement. A stream is reported once, by
    its first completion without room.

    The host's writes count as of the cycle in which the completion looks them up, two cycles after
    it arrived; settings that were written in that cycle, or in the two before it, are those of a
    disabled queue. Assumes of ``zero`` what its docstring says, and rings of at most 8 entries.
    Bounded: for the first ``DEPTH`` cycles.
    """

    DEPTH = 12

    def rules(self, m):
        dut, config = self.dut, self.dut.config
        queue = self.any(range(dut.queues), name="queue", constant=True)
        came = dut.i.payload
        self.assume(if_(dut.i.valid, came.stream < config.streams))
        self.assume(if_(came.clear, ~came.direct & ~came.tagged))
        self.assume(~dut.settings.payload.entry.size[2:].any())

        # What the host wrote.
        bound = Array(Signal(dut.bind.payload.shape(), name=f"bound_{k}")
                      for k in range(config.streams))
        bind = dut.bind
        with m.If(bind.valid):
            m.d.sync += bound[bind.payload.stream].eq(bind.payload)
        number = came.stream[:1]
        owned = Signal(bind.payload.shape())
        m.d.comb += owned.eq(Mux(
            bind.valid & (bind.payload.stream == number),
            Value.cast(bind.payload), Value.cast(bound[number])))
        writes = dut.settings.valid & (dut.settings.payload.index == queue)
        written, settings = Signal(QueueSettings(config)), Signal(QueueSettings(config))
        with m.If(writes):
            m.d.sync += written.eq(dut.settings.payload.entry)
        m.d.comb += settings.eq(Value.cast(written))
        shown = settings.enable & ~(writes | self.past(writes) | self.past(writes, 2))
        rings = dut.doorbell.valid & (dut.doorbell.payload.queue == queue)
        zeroes = dut.zero.valid & (dut.zero.payload == queue)
        consumer, latest = Signal(16), Signal(16)
        m.d.comb += latest.eq(Mux(rings, dut.doorbell.payload.consumer, Mux(
            dut.zero.valid & ~dut.doorbell.valid & (dut.zero.payload == queue), 0, consumer)))
        m.d.sync += consumer.eq(latest)
        stopped = dut.stopped.bit_select(queue, 1)
        calm = stopped
        for cycles in range(1, 8):
            calm = calm & self.past(stopped, cycles)
        self.assume(if_(zeroes, calm))
        self.assume(if_(self.past(zeroes & ~dut.zero.ready), zeroes))

        # The completion of six cycles ago, and the decision that it needs now.
        target = Mux(came.direct, came.queue, owned.queue)
        mine = self.past(dut.i.valid & ~came.clear & (target == queue), 6)
        clears = self.past(dut.i.valid & came.clear, 6)
        stream = self.past(number, 6)
        direct = self.past(came.direct, 6)
        silent = self.past(owned.silent & came.tagged & ~came.direct, 6)
        size, base = self.past(settings.size, 4), self.past(settings.base, 4)
        allowed = self.past(shown, 4) & ~self.past(stopped, 3)
        count, ended = Signal(16), Signal(config.streams)
        used = (count - self.past(latest, 4))[:16]
        free = allowed & (used < (1 << size))
        over = ended.bit_select(stream, 1)
        # A count that was just set to 0 is not looked at: nothing is written then.
        expected = free & (direct | (~over & ~silent))
        slot = dut.o.payload
        self.always(dut.o.valid == self.past(dut.i.valid & ~came.clear, 6), "one slot for each")
        self.always(if_(mine, slot.written == expected), "written exactly if there is room")
        self.always(if_(mine, slot.queue == queue), "its queue")
        with m.If(mine & slot.written):
            m.d.sync += count.eq(count + 1)
        with m.If(zeroes & dut.zero.ready):
            m.d.sync += count.eq(0)
        here = mine & expected
        self.always(if_(here, slot.index == count & ((1 << size) - 1)), "the next slot")
        self.always(if_(here, slot.phase == ~(count >> size)[0]), "the phase of that lap")
        self.always(if_(here, slot.base == base), "in its ring")
        reports = ~free & ~direct & ~over & ~silent
        self.always(if_(mine, dut.overran.valid == reports), "a stream is reported once")
        self.always(if_(dut.overran.valid, dut.overran.payload == stream), "that stream")
        self.always(if_(slot.written & ~mine & dut.o.valid, slot.queue != queue),
                    "nothing else goes there")
        with m.If(dut.overran.valid):
            m.d.sync += ended.bit_select(stream, 1).eq(1)
        with m.If(clears):
            m.d.sync += ended.bit_select(stream, 1).eq(0)
        m.d.comb += [
            Cover(here & (count == 2) & (size == 1), "the second lap"),
            Cover(mine & over & free, "a stream that has overrun, and room"),
        ]


class AnyRoom(QueueRoom):
    """Replaces QueueRoom, whatever it decides: any completion may be written, anywhere."""

    def elaborate(self, platform):
        m = Module()
        valid, slot = Signal(self.LATENCY), self.o.payload
        issued, full = Signal(), Signal()
        m.d.sync += valid.eq(Cat(self.i.valid & ~self.i.payload.clear, valid))
        m.d.comb += [
            Cat(issued, full, self.queue, self.zero.ready).eq(
                AnySeq(3 + len(self.queue))),
            self.o.valid.eq(valid[-1]),
            self.issued.eq(valid[-1] & issued),
            self.overran.valid.eq(valid[-1] & ~issued & full),
            slot.written.eq(self.issued),
            slot.queue.eq(self.queue),
        ]
        return m


class Flowing(Harness):
    """Proves that completions are taken at the pace of the bus, whatever hosts do to their queues.

    :class:`AnyRoom` replaces QueueRoom: each decision is free, as are the completions and the
    registers that hosts write. In four successive cycles one completion is taken, unless streams or
    queues restart. Assumes a bus that takes every beat and answers each burst. Bounded: for the
    first ``DEPTH`` cycles, in which completions that are held would fill the queue before the bus.
    """

    DEPTH = 24

    def rules(self, m):
        dut, inside = self.dut, self.inside
        self.drive(dut.bus.aw.ready, C(1))
        self.drive(dut.bus.w.ready, C(1))
        bursts = Signal(8)
        answered = Signal()
        m.d.comb += answered.eq(bursts.any())
        self.drive(dut.bus.b.valid, answered)
        m.d.sync += bursts.eq(bursts + dut.bus.w.valid - (answered & dut.bus.b.ready))
        pauses = dut.clear.valid | inside.component("restart").zero.valid
        waits = dut.i.valid & ~dut.i.ready & ~pauses
        stuck = waits
        for cycles in range(1, 4):
            stuck = stuck & self.past(waits, cycles)
        self.always(~stuck, "a completion is taken")
        m.d.comb += Cover(dut.overran.valid & self.past(dut.bus.aw.valid), "an overrun beside")
