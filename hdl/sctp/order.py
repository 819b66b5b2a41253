"""Delivers items in the order of submission, whatever their order of arrival (RFC 5041 §5.3).

.. code-block:: text

    items, in the order ┌─────────┐  verdicts, tickets            placed, in that order, each
    of their arrival ──►│ Window  ├───────────────► placement ──► once its octets are in memory
                        └────▲────┘                                         │ with its record
                             │                                          ┌───▼─────┐ records, in the
                   close ────┴─────────────────────────────────────────►│ Reorder ├──► order of
                                                                        └───┬─────┘    DDP-SSNs
                                                                            └ over: a final item

The window applies at arrival: the next item in order is always taken, however many items are still
on their way to memory. Items reach Reorder in the order in which they were taken. Therefore items
that arrive in order leave it immediately, and an item that has to wait for a gap finds its slot
free: the item that used the slot before arrived before the gap, and has left. Only one condition
is needed: no item of a stream enters Reorder while items of the stream that waited are leaving.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.item import Ticket, Verdict
from ..lib.blockram import BlockRam, storage_of
from ..lib.stream import Skid, Stage, Store, any_of, counted, delayed, nibbles
from .window import Arrival, Judged, Window, slot_of

__all__ = ["Close", "Order", "Reorder"]

#: Records that leave and wait for the output.
QUEUE = 16


class Close(data.StructLayout):
    """A ``stream`` whose session is over: its waiting items, and those on their way, are dropped.

    Members
    -------
    stream : range(streams)
    opens : 1
        The next session begins: items from now on belong to it. No item is on its way.
    clears : 1
        The record of which items arrived is cleared, as for a stream without any.
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "opens": 1, "clears": 1})


class _State(data.StructLayout):
    """A stream's delivery: the ``next`` (16) DDP-SSN; ``closed`` (1): no item is delivered."""

    def __init__(self):
        super().__init__({"next": 16, "closed": 1})


class _Waiting(data.StructLayout):
    """The state of a slot: a record waits in it, ``valid`` (1), and it is ``final`` (1).

    Of the DDP-SSNs that are less than the window ahead, exactly one belongs in the slot.
    """

    def __init__(self):
        super().__init__({"valid": 1, "final": 1})


class _Step(data.StructLayout):
    """A step in the pipeline, one per cycle.

    Members
    -------
    item, probe, close : 1
        At most one is set. Item: an item arrived. Probe: asks whether the item ``ssn`` waits.
        Close: a session is closed, and ``slot`` is cleared.
    ticket : Ticket
        The item's ticket; for a probe or close only its stream and DDP-SSN are valid.
    opens : 1
        The next session begins.
    after : 16
        The DDP-SSN after ``ssn``.
    slot : range(slots)
        Slot to read: for an item that of the next DDP-SSN, for a probe that of ``ssn``.
    """

    def __init__(self, streams, slots):
        super().__init__({
            "item": 1, "probe": 1, "close": 1, "opens": 1, "ticket": Ticket(streams), "after": 16,
            "slot": range(slots),
        })


class _Drain(wiring.Component):
    """Walks through the waiting records that a delivered item has freed, one stream at a time.

    Until the walk is done, it keeps other items of the same stream out of the pipeline. At most
    ``DEPTH`` items that fill a gap are remembered at a time.

    Latency: ``SETTLE`` + 4 cycles from ``result`` to the first probe. Throughput: one probe every
    second cycle. Reset: idle. Errors: none.

    Members
    -------
    fills : In(stream.Signature(range(streams)))
        The stream of an item that enters the pipeline and may free others.
    result : In(stream.Signature(1, always_ready=True))
        Whether the item has freed others, in the order of ``fills``.
    head, coming : In(range(streams)), moves : In(1), held : Out(1)
        Stream to ask for: ``coming`` with ``moves``, else ``head``; one cycle later, ``held`` keeps
        its items out of the pipeline. ``moves`` may come late in the cycle.
    gap : In(1)
        A probe found no waiting record. Valid while no probe for an earlier stream is on its way.
    state : In(_State)
        State of ``stream``, 2 cycles later.
    now : Out(1)
        A probe may enter the pipeline; never in two successive cycles.
    step : In(1)
        The probe enters.
    stream, ssn, after : Out
        The probe.
    busy : Out(1)
    """

    DEPTH = 4
    #: Cycles until all steps that entered the pipeline earlier have taken effect.
    SETTLE = 4

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "fills": In(stream.Signature(range(streams))),
            "result": In(stream.Signature(1, always_ready=True)),
            "head": In(range(streams)),
            "coming": In(range(streams)),
            "moves": In(1),
            "held": Out(1),
            "gap": In(1),
            "state": In(_State()),
            "now": Out(1),
            "step": In(1),
            "stream": Out(range(streams)),
            "ssn": Out(16),
            "after": Out(16),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        depth = range(self.DEPTH)
        # A ring of streams whose result is not known yet, or which are to be walked through.
        used, decided, wants = (Signal(self.DEPTH, name=name) for name in (
            "used", "decided", "wants"))
        streams = [Signal(range(self.streams), name=f"stream_{k}") for k in depth]
        last, newest, first = (Signal(depth, name=name) for name in ("last", "newest", "first"))
        takes, frees = Signal(), Signal()
        m.d.comb += [
            self.fills.ready.eq(~used.bit_select(last, 1)),
            takes.eq(self.fills.valid & self.fills.ready),
            self.busy.eq(used.any()),
        ]
        with m.If(takes):
            m.d.sync += last.eq(last + 1)
        with m.If(self.result.valid):
            m.d.sync += newest.eq(newest + 1)
        with m.If(frees):
            m.d.sync += first.eq(first + 1)
        for k in depth:
            with m.If(takes & (last == k)):
                m.d.sync += [streams[k].eq(self.fills.payload), used[k].eq(1), decided[k].eq(0)]
            with m.If(self.result.valid & (newest == k)):
                m.d.sync += [decided[k].eq(1), wants[k].eq(self.result.payload)]
            with m.If(frees & (first == k)):
                m.d.sync += used[k].eq(0)

        def inside(stream):
            return (any_of(used[k] & (streams[k] == stream) for k in depth)
                    | (takes & (self.fills.payload == stream)))

        m.d.sync += self.held.eq(Mux(self.moves, inside(self.coming), inside(self.head)))

        # The first stream of the ring is walked through, or is finished.
        here, goes = Signal(), Signal()
        walks, settled = Signal(), Signal(self.SETTLE)
        m.d.comb += [
            here.eq((used & decided).bit_select(first, 1)),
            goes.eq(wants.bit_select(first, 1)),
            frees.eq(here & (~goes | (walks & self.gap))),
            self.stream.eq(Array(streams)[first]),
        ]
        begins, begun = Signal(), Signal()
        m.d.sync += [
            settled.eq(Cat(here & goes & ~walks & ~frees, settled)
                       & (here & goes & ~walks).replicate(self.SETTLE)),
            begins.eq(settled[-1] & ~begins & ~begun & ~walks),
            begun.eq(begins),
            self.now.eq(walks & ~self.now & ~self.gap),
        ]
        with m.If(begins):
            m.d.sync += self.ssn.eq(self.state.next)
        with m.If(begun):
            m.d.sync += [walks.eq(1), self.after.eq(self.ssn + 1)]
        with m.If(walks & self.gap):
            m.d.sync += walks.eq(0)
        with m.If(self.step):
            m.d.sync += [self.ssn.eq(self.after), self.after.eq(self.after + 1)]
        return m


class Reorder(wiring.Component):
    """Puts the records of items into the order of their DDP-SSNs.

    Items arrive in the order in which they were taken, each when it is complete. An item that is
    the next of its stream leaves immediately. Others wait until the item before them leaves, and
    then follow it, up to the next gap, while items of other streams continue to pass.

    A session ends with its final item, or is closed: the slots of its stream are cleared, and the
    stream's items are dropped until the next session opens.

    Latency: 8 cycles from an item to its record. Throughput: one item per cycle, in any mix of
    streams; one every second cycle while records leave that had to wait, and none of their streams;
    none for ``window`` and some more cycles when a session is closed. Reset: the streams and the
    waiting records stay. Errors: none.

    Parameters
    ----------
    shape : Shape
        Shape of a record.
    streams, window : int
        Those of :class:`~.window.Window`.

    Members
    -------
    i : In(stream.Signature({ticket: Ticket, record: shape}))
    close : In(stream.Signature(Close(streams)))
    o : Out(stream.Signature(shape))
    over : Out(stream.Signature(range(streams)))
        A session's final item was delivered.
    look : In(range(streams)), next : Out(16)
        Stream to look up; the next DDP-SSN of that stream, 2 cycles later.
    busy : Out(1)
        A step is in progress; records that wait for others do not count.
    """

    def __init__(self, shape, *, streams=64, window=16):
        self.shape = shape
        self.streams = streams
        self.window = window
        self.slots = streams * window
        super().__init__({
            "i": In(stream.Signature(data.StructLayout({
                "ticket": Ticket(streams), "record": shape}))),
            "close": In(stream.Signature(Close(streams))),
            "o": Out(stream.Signature(shape)),
            "over": Out(stream.Signature(range(streams))),
            "look": In(range(streams)),
            "next": Out(16),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        streams, slots = self.streams, self.slots
        m.submodules.records = records = Store(self.shape, depth=QUEUE)
        m.submodules.leaving = leaving = Store(self.shape, depth=QUEUE)
        m.submodules.skid = skid = Skid(self.shape)
        m.submodules.overs = overs = Store(range(streams), depth=QUEUE)
        m.submodules.over_stage = over_stage = Stage(range(streams))
        m.submodules.drain = drain = _Drain(streams)
        wiring.connect(m, leaving.o, skid.i)
        wiring.connect(m, skid.o, wiring.flipped(self.o))
        wiring.connect(m, overs.o, over_stage.i)
        wiring.connect(m, over_stage.o, wiring.flipped(self.over))

        step = self._issue(m)
        # Contents of the slot, and state of the stream, for step[2].
        stores, clears, moves = Signal(), Signal(), Signal()
        slot = Signal(range(slots))
        entry = Signal(_Waiting())
        becomes = Signal(_State())
        closes = step[4].close
        (waiting,) = storage_of(
            m, "waiting", _Waiting(), slots, (step[0].slot,), (stores | clears, slot, entry))
        state, drained, guide = storage_of(
            m, "states", _State(), streams, (step[0].ticket.stream, drain.stream, self.look),
            (moves | closes, step[4].ticket.stream, becomes))
        last = step[4].ticket
        own = slot_of(last.stream, last.ssn, self.window)
        final = Signal()
        record = Signal(self.shape, reset_less=True)
        m.d.comb += [
            drain.state.eq(drained),
            self.next.eq(guide.next),
            final.eq(Mux(step[4].item, last.final, delayed(m, 2, waiting.final, "final"))),
            slot.eq(Mux(step[4].item, own, step[4].slot)),
            entry.valid.eq(stores),
            entry.final.eq(last.final),
            becomes.next.eq(Mux(closes, 0, step[4].after)),
            becomes.closed.eq(Mux(closes, ~step[4].opens, final)),
        ]
        self._decide(m, step, waiting, state, stores, clears, moves)

        # Records: an item's comes from the queue beside the pipeline, a probe's from the slot.
        m.submodules.slot_records = slot_records = BlockRam(self.shape, slots)
        m.d.comb += [
            records.o.ready.eq(step[3].item),
            slot_records.write.valid.eq(stores),
            slot_records.write.payload.address.eq(own),
            Value.cast(slot_records.write.payload.data).eq(record),
            slot_records.address[0].eq(step[2].slot),
            leaving.i.valid.eq(moves),
            Value.cast(leaving.i.payload).eq(Mux(
                step[4].item, record, Value.cast(slot_records.data[0]))),
            overs.i.valid.eq(moves & final),
            overs.i.payload.eq(last.stream),
        ]
        m.d.sync += Value.cast(record).eq(records.o.payload)
        return m

    def _issue(self, m):
        """Chooses the next step; returns the steps that entered the pipeline 0 to 4 cycles ago."""
        drain, records = m.submodules.drain, m.submodules.records
        leaving, overs = m.submodules.leaving, m.submodules.overs
        shape = _Step(self.streams, self.slots)
        step = [Signal(shape, name=f"step_{k}") for k in range(5)]
        for k in range(1, 5):
            m.d.sync += step[k].eq(step[k - 1])

        some, take, ready = Signal(), Signal(), Signal()
        head = Signal.like(self.i.payload, reset_less=True)
        after = Signal(16, reset_less=True)
        m.d.comb += [
            self.i.ready.eq(~some | take),
            drain.head.eq(head.ticket.stream),
            drain.coming.eq(self.i.payload.ticket.stream), drain.moves.eq(self.i.ready),
        ]
        with m.If(self.i.ready):
            m.d.sync += [
                some.eq(self.i.valid),
                head.eq(self.i.payload),
                after.eq(self.i.payload.ticket.ssn + 1),
            ]
        # ``half`` leaves room for all steps on their way. A session is closed only while no step
        # could change the state of its stream; then no item enters until the change is visible.
        go, closing = Signal(), Signal()
        calm, closed = Signal(4), Signal(4)
        cleared = Signal(range(self.window))
        wipes = Signal()
        m.d.sync += [
            go.eq(leaving.half & overs.half),
            closing.eq(self.close.valid & ~self.close.ready),
            calm.eq(Cat(closing & ~drain.busy, calm) & (closing & ~drain.busy).replicate(4)),
            closed.eq(Cat(self.close.ready, closed)),
        ]
        with m.If(wipes):
            m.d.sync += cleared.eq(cleared + 1)
        free = ~closing & ~closed.any()
        m.d.comb += [
            ready.eq(some & go & ~drain.now & free & ~drain.held),
            drain.fills.valid.eq(ready & head.ticket.fills),
            drain.fills.payload.eq(head.ticket.stream),
            take.eq(ready & (~head.ticket.fills | drain.fills.ready)),
            drain.step.eq(drain.now & go),
            wipes.eq(closing & calm.all()),
            self.close.ready.eq(wipes & cleared.all()),
            records.i.valid.eq(take),
            records.i.payload.eq(head.record),
        ]
        following = step[0]
        m.d.sync += [
            following.item.eq(take),
            following.probe.eq(drain.step),
            following.close.eq(wipes),
            following.opens.eq(self.close.payload.opens),
        ]
        with m.If(wipes):
            m.d.sync += [
                following.ticket.stream.eq(self.close.payload.stream),
                following.slot.eq(slot_of(self.close.payload.stream, cleared, self.window)),
            ]
        with m.Elif(drain.now):
            m.d.sync += [
                following.ticket.stream.eq(drain.stream),
                following.ticket.ssn.eq(drain.ssn),
                following.after.eq(drain.after),
                following.slot.eq(slot_of(drain.stream, drain.ssn, self.window)),
            ]
        with m.Else():
            m.d.sync += [
                following.ticket.eq(head.ticket),
                following.after.eq(after),
                following.slot.eq(slot_of(head.ticket.stream, after, self.window)),
            ]
        # An item counts from the cycle in which it comes.
        m.d.sync += self.busy.eq(
            self.i.valid | some | drain.busy | self.close.valid | closed.any() | any_of(
                each.item | each.probe | each.close for each in step)
            | overs.o.valid | self.over.valid)
        return step

    def _decide(self, m, step, waiting, state, stores, clears, moves):
        """Decides the outcome of ``step[3]``, one cycle later."""
        drain = m.submodules.drain
        # The steps of 1 to 3 cycles before are not visible in the tables. So it is compared whether
        # one of them was the DDP-SSN before this one, or the one after it. An item arrives only
        # once: if the item before it is among those steps and has left, the next DDP-SSN in the
        # table does not matter.
        before, behind = Signal(3), Signal(3)
        m.d.sync += [
            before.eq(Cat(_key(step[1], "ssn") == _key(step[1 + k], "after")
                          for k in range(1, 4))),
            behind.eq(Cat(_key(step[1], "after") == _key(step[1 + k], "ssn")
                          for k in range(1, 4))),
        ]
        before, behind = delayed(m, 1, before, "before"), delayed(m, 1, behind, "behind")

        # Compared in nibbles.
        equal = Signal(4)
        found, shut = Signal(), Signal()
        m.d.sync += [
            found.eq(waiting.valid),
            equal.eq(nibbles(state.next, step[2].ticket.ssn)),
            shut.eq(state.closed),
        ]
        # Outcomes of the last three steps: they left, or were stored.
        left, stored = Signal(3), Signal(3)
        item, probe = step[3].item, step[3].probe
        leaves, stays = Signal(), Signal()
        m.d.comb += [
            leaves.eq((item | (probe & found)) & (
                (before & left).any() | (equal.all() & ~shut))),
            stays.eq(item & ~leaves & ~shut),
        ]
        fills, wants = Signal(), Signal()
        m.d.sync += [
            moves.eq(leaves),
            stores.eq(stays),
            clears.eq((probe & leaves) | step[3].close),
            fills.eq(item & step[3].ticket.fills),
            wants.eq(leaves & (found | (behind & stored).any())),
            left.eq(Cat(leaves, left)),
            stored.eq(Cat(stays, stored)),
        ]
        m.d.comb += [
            drain.result.valid.eq(fills),
            drain.result.payload.eq(wants),
            drain.gap.eq(step[4].probe & ~moves),
        ]


def _key(step, ssn):
    """Returns a DDP-SSN of a step, together with its stream."""
    number = step.after if ssn == "after" else step.ticket.ssn
    return Cat(number, step.ticket.stream)


class Order(wiring.Component):
    """Takes items that are new, in any order, and delivers them in the order of submission.

    Latency: see :class:`~.window.Window` and :class:`Reorder`. Throughput: one item per cycle.
    Reset: streams and slots stay; do not reset while a FRESH item is not done yet, because later
    items would wait for it forever. Errors: those of the two blocks.

    Parameters
    ----------
    shape : Shape
        Shape of a record.
    streams, window : int
        Those of :class:`~.window.Window`.

    Members
    -------
    i : In(stream.Signature(Arrival(streams), always_ready=True))
        Items in the order of their arrival.
    o : Out(stream.Signature(Judged(streams), always_ready=True))
        The verdict on each item, 7 cycles later.
    done : In(stream.Signature({ticket: Ticket, record: shape}))
        Each item that was FRESH, in this order, when its octets are in memory.
    close : In(stream.Signature(Close(streams)))
        Only while none of the stream's items is on its way to ``o`` if it ``clears``, or to
        ``done`` if the next session ``opens``.
    records : Out(stream.Signature(shape))
        Records in the order of their DDP-SSNs.
    over : Out(stream.Signature(range(streams)))
        A session's final item was delivered.
    asks : In(range(streams)), whole : Out(1)
        ``look`` and ``whole`` of the window.
    look : In(range(streams)), next : Out(16)
        For the host: all DDP-SSNs before ``next`` were delivered, and those less than ``window``
        ahead of it can be taken.
    idle : Out(1)
        Every item that was taken was delivered, or waits for others.
    """

    def __init__(self, shape, *, streams=64, window=16):
        self.streams = streams
        self.window = Window(streams=streams, window=window)
        self.reorder = Reorder(shape, streams=streams, window=window)
        super().__init__({
            "i": In(stream.Signature(Arrival(streams), always_ready=True)),
            "o": Out(stream.Signature(Judged(streams), always_ready=True)),
            "done": In(stream.Signature(data.StructLayout({
                "ticket": Ticket(streams), "record": shape}))),
            "close": In(stream.Signature(Close(streams))),
            "records": Out(stream.Signature(shape)),
            "over": Out(stream.Signature(range(streams))),
            "asks": In(range(streams)),
            "whole": Out(1),
            "look": In(range(streams)),
            "next": Out(16),
            "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.window = window = self.window
        m.submodules.reorder = reorder = self.reorder
        m.submodules.close_stage = close_stage = Stage(Close(self.streams))
        wiring.connect(m, wiring.flipped(self.i), window.i)
        wiring.connect(m, window.o, wiring.flipped(self.o))
        wiring.connect(m, wiring.flipped(self.done), reorder.i)
        wiring.connect(m, reorder.o, wiring.flipped(self.records))
        wiring.connect(m, reorder.over, wiring.flipped(self.over))
        wiring.connect(m, wiring.flipped(self.close), close_stage.i)
        # Clear the window and close Reorder in parallel; finish when both are done.
        close, closed, cleared = close_stage.o, Signal(), Signal()
        m.d.comb += [
            window.clear.valid.eq(close.valid & close.payload.clears & ~cleared),
            window.clear.payload.eq(close.payload.stream),
            reorder.close.valid.eq(close.valid & ~closed),
            reorder.close.payload.eq(close.payload),
            close.ready.eq(closed & (cleared | ~close.payload.clears)),
        ]
        m.d.sync += [
            closed.eq((closed | reorder.close.ready) & ~close.ready),
            cleared.eq((cleared | window.clear.ready) & ~close.ready),
        ]

        # Number of items that were taken and are not complete.
        inside = Signal(16)
        counted(m, inside, self.o.valid & (self.o.payload.verdict == Verdict.FRESH),
                self.done.valid & self.done.ready)
        m.d.sync += self.idle.eq(
            ~(inside.any() | self.done.valid | reorder.busy | window.busy | self.close.valid
              | close.valid))
        m.d.comb += [
            window.look.eq(self.asks),
            self.whole.eq(window.whole),
            reorder.look.eq(self.look),
            self.next.eq(reorder.next),
        ]
        return m
