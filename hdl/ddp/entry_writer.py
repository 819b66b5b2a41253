"""Writes completions to host memory."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiWrite
from ..lib.credits import Credits
from ..lib.stream import Skid, Stage, Store
from ..spec import completion
from .entry import CompletionEntry
from .room import EntrySlot, queues_of

__all__ = ["EntryWriter"]

QUEUE = 16
#: The lower half of an address, which is added up in two steps.
HALF = 30


class EntryWriter(wiring.Component):
    """Writes each entry to its slot, as one burst of its 32 octets.

    Latency: 4 cycles from ``entries`` to ``bus.w``, 6 to ``bus.aw``. Throughput: one entry every
    max(1, 256 / width) cycles, if the response arrives within the time of ``config.outstanding``
    entries; an entry that is not written takes one cycle. Reset: empty. Errors: none.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    entries : In(stream.Signature(CompletionEntry()))
        ``phase`` is filled in here.
    slots : In(stream.Signature(EntrySlot(config)))
        The slot of each entry. The entry is at ``entries`` before its slot comes.
    aw, w : Out
        Those of an ``AxiWrite(width)``.
    begun : Out(stream.Signature(range(queues), always_ready=True))
        The queue of each entry that is written.
    answered : In(1)
        The bus has responded for an entry.
    idle : Out(1)
        No entry waits here, and the bus has responded for each that was begun.
    """

    def __init__(self, config):
        self.config = config
        bus = AxiWrite(config.width)
        super().__init__({
            "entries": In(stream.Signature(CompletionEntry())),
            "slots": In(stream.Signature(EntrySlot(config))),
            **{name: bus.members[name] for name in ("aw", "w")},
            "begun": Out(stream.Signature(range(queues_of(config)), always_ready=True)),
            "answered": In(1),
            "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        width = self.config.width
        beats = max(1, 8 * completion.OCTETS // width)
        bits = min(8 * completion.OCTETS, width)
        beat = data.StructLayout({"data": bits, "last": 1, "upper": 1})
        m.submodules.w_queue = w_queue = Store(beat, depth=QUEUE)
        m.submodules.w_stage = w_stage = Stage(beat)
        m.submodules.aw_queue = aw_queue = Store(64, depth=QUEUE)
        m.submodules.aw_stage = aw_stage = Stage(64)
        m.submodules.credits = credits = Credits(self.config.outstanding)

        # Unless relaxed, no ready signal leads from the credits to the queues of entries and slots.
        pair = data.StructLayout({"entry": CompletionEntry(), "slot": EntrySlot(self.config)})
        m.submodules.pair = skid = Skid(pair, relaxed=self.config.relaxed)
        entry, slot = skid.o.payload.entry.as_value(), skid.o.payload.slot
        phase = next(field for field in completion.FIELDS if field.name == "phase")
        phase_bit = (8 * phase.octet + phase.bit) % bits
        step, issue, drops = Signal(), Signal(), Signal()
        first, last = Signal(init=1), Signal(init=beats == 1)
        index = Signal(range(beats))
        m.d.comb += [
            skid.i.valid.eq(self.slots.valid),
            skid.i.payload.entry.eq(self.entries.payload),
            skid.i.payload.slot.eq(self.slots.payload),
            self.entries.ready.eq(self.slots.valid & skid.i.ready),
            self.slots.ready.eq(skid.i.ready),
            drops.eq(skid.o.valid & ~slot.written),
            step.eq(skid.o.valid & slot.written & (credits.ok | ~first)),
            issue.eq(step & first),
            skid.o.ready.eq((step & last) | drops),
            self.begun.valid.eq(issue),
            self.begun.payload.eq(slot.queue),
            # At most half of a queue's capacity is on the way when it is last seen half free.
            credits.open.eq(w_queue.half & aw_queue.half),
            credits.take.eq(issue),
            credits.give.eq(self.answered),
            self.idle.eq(credits.idle & ~skid.o.valid),
        ]
        if beats > 1:
            with m.If(step):
                m.d.sync += [index.eq(index + 1), first.eq(last), last.eq(index == beats - 2)]

        sent = w_queue.i
        m.d.sync += [
            sent.valid.eq(step),
            sent.payload.data.eq(entry.word_select(index, bits)),
            sent.payload.last.eq(last),
            sent.payload.upper.eq(slot.base[0] ^ slot.index[0]),
        ]
        with m.If(last):
            m.d.sync += sent.payload.data[phase_bit].eq(slot.phase)

        # The address is added up in two halves, one per cycle.
        base, offset = Signal.like(slot.base), Signal.like(slot.index)
        upper = Signal(len(base[HALF:]))
        low, low_1, high = Signal(HALF + 1), Signal(HALF), Signal.like(upper)
        begins = Signal(3)
        m.d.sync += [
            begins.eq(Cat(issue, begins)),
            base.eq(slot.base),
            offset.eq(slot.index),
            low.eq(base[:HALF] + offset),
            upper.eq(base[HALF:]),
            low_1.eq(low),
            high.eq(upper + low[HALF]),
        ]
        m.d.comb += [
            aw_queue.i.valid.eq(begins[2]),
            aw_queue.i.payload.eq(Cat(C(0, 5), low_1, high)),
        ]
        wiring.connect(m, w_queue.o, w_stage.i)
        wiring.connect(m, aw_queue.o, aw_stage.i)
        self._send(m, w_stage.o, aw_stage.o, beats)
        return m

    def _send(self, m, beat, address, beats):
        """Sends the beats of an entry, and the address of the first one, to the bus."""
        # At 512 bits one beat holds two entries.
        w, aw = self.w, self.aw
        sent = beat.payload
        halves = max(1, self.config.width // (8 * completion.OCTETS))
        m.d.comb += [
            w.valid.eq(beat.valid),
            beat.ready.eq(w.ready),
            w.payload.data.eq(sent.data.replicate(halves)),
            w.payload.strb.eq(~0),
            w.payload.last.eq(sent.last),
            aw.valid.eq(address.valid),
            address.ready.eq(aw.ready),
            aw.payload.addr.eq(address.payload),
            aw.payload.len.eq(beats - 1),
        ]
        if halves > 1:
            lower = ~sent.upper
            m.d.comb += [
                w.payload.strb.eq(Cat(
                    lower.replicate(completion.OCTETS), sent.upper.replicate(completion.OCTETS))),
                aw.payload.addr.eq(Cat(C(0, 6), address.payload[6:])),
            ]
