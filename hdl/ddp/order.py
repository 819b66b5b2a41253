"""Delivery in the order of submission of what came in any order (RFC 5041 section 5.3).

.. code-block:: text

    items, in the order ┌─────────┐  verdicts, tickets            placed, in that order, each
    of their arrival ──►│ Window  ├───────────────► placement ──► once its octets are in memory
                        └────▲────┘                                         │ with its record
                             │                                          ┌───▼─────┐ records, in the
                   close ────┴─────────────────────────────────────────►│ Reorder ├──► order of
                                                                        └───┬─────┘    DDP-SSNs
                                                                            └ over: a final item

The window is that of arrival: what comes next in order is taken, whatever still is on its way to
memory. Items come to Reorder in the order in which they were taken. So those that come in order
leave it at once, and an item that has to wait for a gap finds its place free: the item that had the
place before it came before the gap, and has left. All that this takes is that no item of a stream
comes in while those of its items that waited are leaving.
"""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..stream import Skid, Stage, Store, any_of, counted, delayed, nibbles
from .window import Arrival, Judged, Ticket, Verdict, Window, place_of, storage_of

__all__ = ["Close", "Order", "Reorder"]

#: Records that leave and wait for the output.
QUEUE = 16


class Close(data.StructLayout):
    """A ``stream`` whose session is over: what waits in it, or is on its way, is not delivered.

    Members
    -------
    stream : range(streams)
    opens : 1
        The next session begins: what comes from now on is of that. Nothing is on its way.
    clears : 1
        What came before is forgotten: of the stream, nothing came.
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "opens": 1, "clears": 1})


class _State(data.StructLayout):
    """A stream's delivery: the ``next`` (16) DDP-SSN; ``closed`` (1): nothing is delivered."""

    def __init__(self):
        super().__init__({"next": 16, "closed": 1})


class _Waiting(data.StructLayout):
    """Whether a record waits in a place, ``valid`` (1), and is ``final`` (1).

    It has the one DDP-SSN, of those less than the window ahead, that the place is for.
    """

    def __init__(self):
        super().__init__({"valid": 1, "final": 1})


class _Step(data.StructLayout):
    """What goes through the pipeline, one a cycle.

    Members
    -------
    item, probe, close : 1
        One of them at most: an item arrives; does the item ``ssn`` wait for its turn; a session is
        closed, and ``place`` cleared.
    ticket : Ticket
        Of an item. The others have a stream and a DDP-SSN.
    opens : 1
        The next session begins.
    after : 16
        The DDP-SSN behind ``ssn``.
    place : range(slots)
        To look at: an item asks for the one behind it, a probe for that of ``ssn``.
    """

    def __init__(self, streams, slots):
        super().__init__({
            "item": 1, "probe": 1, "close": 1, "opens": 1, "ticket": Ticket(streams), "after": 16,
            "place": range(slots),
        })


class _Drain(wiring.Component):
    """Walks through the records that a delivered item has made free to go, and keeps other items
    of their streams away until that is done.

    Of the items that fill a gap ``DEPTH`` at most are known at a time.

    Latency: ``SETTLE`` + 4 cycles from ``result`` to the first probe. Throughput: a probe in every
    second cycle. Reset: idle. Errors: none.

    Members
    -------
    fills : In(stream.Signature(range(streams)))
        The stream of an item that goes into the pipeline, and may make others free to go.
    result : In(stream.Signature(1, always_ready=True))
        Whether it has, in the order of ``fills``.
    head : In(range(streams)), held : Out(1)
        No item of the stream may go into the pipeline, a cycle later.
    gap : In(1)
        A probe found nothing. It is looked at while no probe for an earlier stream is on its way.
    state : In(_State)
        Of ``stream``, 2 cycles later.
    now : Out(1)
        A probe may go; never twice in a row.
    step : In(1)
        It goes.
    stream, ssn, after : Out
        The probe.
    busy : Out(1)
    """

    DEPTH = 4
    #: Cycles until all that went into the pipeline before shows.
    SETTLE = 4

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "fills": In(stream.Signature(range(streams))),
            "result": In(stream.Signature(1, always_ready=True)),
            "head": In(range(streams)),
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
        # A ring: streams of which it is not known yet, or which have to be walked through.
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
        m.d.sync += self.held.eq(
            any_of(used[k] & (streams[k] == self.head) for k in depth)
            | (takes & (self.fills.payload == self.head)))

        # The first of them is walked through, or done with.
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

    Items come in the order in which they were taken, each when it is complete. One that is the
    next of its stream leaves at once. Others wait until one before them leaves, and then follow
    it, as far as there is no gap, while items of other streams go on.

    A session ends with its final item, or is closed: the places of its stream are cleared, and
    until the next session opens what comes of the stream is dropped.

    Latency: 8 cycles from an item to its record. Throughput: an item a cycle, whatever the
    streams; in every second cycle while records leave that had to wait, none of their streams; and
    none for ``window`` and some cycles as a session is closed. Reset: the streams and what waits
    stay. Errors: none.

    Parameters
    ----------
    shape : Shape
        Of a record.
    streams, window : int
        As in :class:`~.window.Window`.

    Members
    -------
    i : In(stream.Signature({ticket: Ticket, record: shape}))
    close : In(stream.Signature(Close(streams)))
    o : Out(stream.Signature(shape))
    over : Out(stream.Signature(range(streams)))
        A session's final item was delivered.
    look : In(range(streams)), next : Out(16)
        The next DDP-SSN of a stream, 2 cycles later.
    busy : Out(1)
        Something is on its way that does not wait for others.
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
        # What is in the place, and what is known of the stream: in step[2].
        stores, clears, moves = Signal(), Signal(), Signal()
        place = Signal(range(slots))
        entry = Signal(_Waiting())
        becomes = Signal(_State())
        closes = step[4].close
        (waiting,) = storage_of(
            m, "waiting", _Waiting(), slots, (step[0].place,), (stores | clears, place, entry))
        state, drained, guide = storage_of(
            m, "states", _State(), streams, (step[0].ticket.stream, drain.stream, self.look),
            (moves | closes, step[4].ticket.stream, becomes))
        last = step[4].ticket
        own = place_of(last.stream, last.ssn, self.window)
        final = Signal()
        record = Signal(self.shape, reset_less=True)
        held = Signal(self.shape, reset_less=True)
        m.d.comb += [
            drain.state.eq(drained),
            self.next.eq(guide.next),
            final.eq(Mux(step[4].item, last.final, delayed(m, 2, waiting.final, "final"))),
            place.eq(Mux(step[4].item, own, step[4].place)),
            entry.valid.eq(stores),
            entry.final.eq(last.final),
            becomes.next.eq(Mux(closes, 0, step[4].after)),
            becomes.closed.eq(Mux(closes, ~step[4].opens, final)),
        ]
        self._decide(m, step, waiting, state, stores, clears, moves)

        # Records: of an item from the queue beside the pipeline, of a probe from the place.
        m.submodules.places = places = memory.Memory(
            shape=self.shape, depth=slots, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1})
        write, read = places.write_port(), places.read_port()
        m.d.comb += [
            records.o.ready.eq(step[3].item),
            write.en.eq(stores),
            write.addr.eq(own),
            Value.cast(write.data).eq(record),
            read.addr.eq(step[2].place),
            leaving.i.valid.eq(moves),
            Value.cast(leaving.i.payload).eq(Mux(step[4].item, record, held)),
            overs.i.valid.eq(moves & final),
            overs.i.payload.eq(last.stream),
        ]
        m.d.sync += [Value.cast(record).eq(records.o.payload), held.eq(read.data)]
        return m

    def _issue(self, m):
        """Chooses what goes into the pipeline; what went in 0 to 4 cycles ago."""
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
            drain.head.eq(Mux(self.i.ready, self.i.payload.ticket.stream, head.ticket.stream)),
        ]
        with m.If(self.i.ready):
            m.d.sync += [
                some.eq(self.i.valid),
                head.eq(self.i.payload),
                after.eq(self.i.payload.ticket.ssn + 1),
            ]
        # Half of a queue is more than can be on the way. A session is closed while nothing is on
        # its way that could change what is known of its stream, and nothing follows until it shows.
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
                following.place.eq(place_of(self.close.payload.stream, cleared, self.window)),
            ]
        with m.Elif(drain.now):
            m.d.sync += [
                following.ticket.stream.eq(drain.stream),
                following.ticket.ssn.eq(drain.ssn),
                following.after.eq(drain.after),
                following.place.eq(place_of(drain.stream, drain.ssn, self.window)),
            ]
        with m.Else():
            m.d.sync += [
                following.ticket.eq(head.ticket),
                following.after.eq(after),
                following.place.eq(place_of(head.ticket.stream, after, self.window)),
            ]
        # An item counts from the cycle in which it comes.
        m.d.sync += self.busy.eq(
            self.i.valid | some | drain.busy | self.close.valid | closed.any() | any_of(
                each.item | each.probe | each.close for each in step)
            | overs.o.valid | self.over.valid)
        return step

    def _decide(self, m, step, waiting, state, stores, clears, moves):
        """What becomes of ``step[3]``, a cycle later."""
        drain = m.submodules.drain
        # What went 1 to 3 cycles before it does not show in the tables: whether that was the one
        # before it, or the one behind it. An item comes only once, so if one of those is the item
        # before it, and has left, then what the tables say of the next one does not matter.
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
        # What the last three steps came to: they left, were stored.
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
    """A DDP-SSN of a step, in its stream."""
    number = step.after if ssn == "after" else step.ticket.ssn
    return Cat(number, step.ticket.stream)


class Order(wiring.Component):
    """Takes what is new, wherever it is in the order, and delivers in the order of submission.

    Latency: see :class:`~.window.Window` and :class:`Reorder`. Throughput: an item a cycle.
    Reset: streams and places stay; not while an item that is FRESH is not done yet, since those
    after it would wait for it for ever. Errors: see there.

    Parameters
    ----------
    shape : Shape
        Of a record.
    streams, window : int
        As in :class:`~.window.Window`.

    Members
    -------
    i : In(stream.Signature(Arrival(streams), always_ready=True))
        Items in the order of their arrival.
    o : Out(stream.Signature(Judged(streams), always_ready=True))
        What becomes of each, 7 cycles later.
    done : In(stream.Signature({ticket: Ticket, record: shape}))
        Each item that was FRESH, in this order, when its octets are in memory.
    close : In(stream.Signature(Close(streams)))
        While none of the stream's items is on its way to ``o`` if it ``clears``, or to ``done`` if
        the next session ``opens``.
    records : Out(stream.Signature(shape))
    over : Out(stream.Signature(range(streams)))
        A session's final item was delivered.
    asks : In(range(streams)), whole : Out(1)
        As ``look`` and ``whole`` of the window.
    look : In(range(streams)), next : Out(16)
        For the host: all DDP-SSNs before ``next`` were delivered, and those less than ``window``
        ahead of it can be taken.
    idle : Out(1)
        All that was taken was delivered, or waits for others.
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
        # Both at once, until both are done.
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

        # Items that were taken, and are not complete.
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
