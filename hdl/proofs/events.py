"""Proves that every event waits for the host, once, whatever the host does."""

from amaranth import *
from amaranth.asserts import AnySeq
from amaranth.hdl import Cover
from amaranth.lib import data, memory

from ..ddp.events import Events
from ..lib.stream import Backlog, counted
from ..spec.config import RnicConfig
from .harness import Harness, if_

__all__ = ["CONFIG", "ShortEvent", "Sticky", "Whenever"]

CONFIG = RnicConfig(streams=4)


class ShortEvent(data.StructLayout):
    """Replaces an event, of which the block uses the stream and carries the rest."""

    def __init__(self, config):
        super().__init__({"stream": config.stream_bits, "rest": 2})


class Whenever(Backlog):
    """Replaces a Backlog by any queue in order: it shows its oldest item after any time."""

    def __init__(self, shape, *, depth, relaxed):
        super().__init__(shape, depth=16, relaxed=relaxed)  # the smallest
        self.depth = depth

    def elaborate(self, platform):
        m = Module()
        m.submodules.storage = storage = memory.Memory(
            shape=self.shape, depth=self.depth, init=[])
        write, read = storage.write_port(), storage.read_port(domain="comb")
        shows, popped = Signal(), Signal()
        newest, oldest = Signal(range(self.depth)), Signal(range(self.depth))
        m.d.comb += [
            shows.eq(AnySeq(1)),
            popped.eq(self.o.valid & self.o.ready),
            write.en.eq(self.i.valid),
            write.addr.eq(newest),
            write.data.eq(self.i.payload),
            read.addr.eq(oldest),
            self.o.payload.eq(read.data),
        ]
        counted(m, self.level, self.i.valid, popped)
        m.d.sync += [
            newest.eq(newest + self.i.valid),
            oldest.eq(oldest + popped),
            self.o.valid.eq(
                (self.o.valid & ~self.o.ready) | (shows & (self.level != popped))),
        ]
        return m


class Sticky(Harness):
    """Proves that :class:`~..ddp.events.Events` keeps each event until it is read, once.

    The ring has room for every event, holds as many events as there are streams whose event is
    unread, and shows each event as it was raised, while it is unread. ``unread`` has the state of
    two cycles after ``stream``.

    Any one stream is followed; ``pending`` has a bit for each stream. Assumes that a stream raises
    no event while its event is unread. :class:`Whenever` replaces the ring, which has a slot for
    each stream: that a Backlog is such a queue is the theorem of :class:`~.streams.BacklogOrder`.
    By induction of depth ``DEPTH``.
    """

    DEPTH = Events.LATENCY + 1

    def rules(self, m):
        dut, inside = self.dut, self.inside
        raised, shown = dut.i.payload, dut.o.payload
        stream = self.any(raised.stream.shape(), name="stream", constant=True)
        pending = Signal(dut.config.streams)
        event = Signal.like(Value.cast(raised))
        count = Signal(range(dut.depth + 2))
        pops, mine = Signal(), Signal()
        self.assume(if_(dut.i.valid, ~pending.bit_select(raised.stream, 1)))
        m.d.comb += [
            pops.eq(dut.o.valid & dut.o.ready), mine.eq(dut.i.valid & (raised.stream == stream))]
        m.d.sync += [
            count.eq(count + dut.i.valid - pops),
            pending.eq(
                (pending & ~(pops << shown.stream)) | (dut.i.valid << raised.stream)),
        ]
        with m.If(mine):
            m.d.sync += event.eq(raised)
        waits = Signal()
        m.d.comb += waits.eq(pending.bit_select(stream, 1))

        self.always(if_(dut.i.valid, count < dut.depth), "there is room")
        self.always(count == sum(pending), "each event is there once")
        followed = dut.o.valid & (shown.stream == stream)
        self.always(if_(followed, waits & (Value.cast(shown) == event)), "as it was raised")
        asked = Signal()
        m.d.comb += asked.eq(dut.stream == stream)
        still = ~mine
        for cycles in range(Events.LATENCY + 1):
            still = still & self.past(asked & ~mine, cycles)
        self.always(if_(still, dut.unread == self.past(waits, 3)), "it is known whether it waits")
        m.d.comb += [
            Cover(count == 3, "some events wait"),
            Cover(still & dut.unread & (inside["oldest"] == 2), "an event is unread"),
            Cover(still & ~dut.unread & (inside["newest"] == 3) & (event != 0), "and another not"),
        ]
        self._where(m, pending, count, waits, stream, event)

    def _where(self, m, pending, count, waits, stream, event):
        """States where each event is, and that both tables say so."""
        dut, inside = self.dut, self.inside
        newest, oldest = inside["newest"], inside["oldest"]
        ring, slots, owners = "ring.storage", "slots.storage", "owners.storage"
        self.lemma(inside["count"] == count, "count")
        self.lemma(inside["ring.level"] == count, "level")
        self.lemma((newest - oldest)[:len(newest)] == count[:len(newest)], "pointers")
        self.lemma(if_(dut.o.valid, count != 0), "what is shown is there")
        self.lemma(inside["ring.newest"] == newest, "the ring's next slot")
        self.lemma(inside["ring.oldest"] == oldest, "the ring's oldest slot")

        def used(slot):
            return (slot - oldest)[:len(oldest)] < count

        for slot in range(dut.depth):
            owner = inside.row(owners, Const(slot, len(oldest)))
            there = used(Const(slot, len(oldest)))
            known = inside.row(slots, owner) == slot
            self.lemma(if_(there, pending.bit_select(owner, 1) & known), "a slot has a stream")
            row = inside.row(ring, Const(slot, len(oldest)))
            self.lemma(if_(there, row.stream == owner), "whose event it has")
        for each in range(dut.config.streams):
            slot = inside.row(slots, Const(each, len(stream)))
            known = used(slot) & (inside.row(owners, slot) == each)
            self.lemma(if_(pending[each], known), "a stream has a slot")
        row = Value.cast(inside.row(ring, inside.row(slots, stream)))
        self.lemma(if_(waits, row == event), "the event in its slot")
