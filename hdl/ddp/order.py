"""Delivery in the order of submission of what came in any order (RFC 5041 section 5.3).

.. code-block:: text

    items, in the order ┌─────────┐  verdicts, tickets            placed, in that order, each
    of their arrival ──►│ Window  ├───────────────► placement ──► once its octets are in memory
                        └─────────┘                                         │ with its record
                          ▲     ▲                                       ┌───▼─────┐ records, in the
                          │     └── released: places ───────────────────┤ Reorder ├──► order of
                          └──────── advance: next DDP-SSNs ─────────────┤         │    DDP-SSNs
                                                             close ────►└───┬─────┘
                                                                            └ over: a final item

The window is behind delivery and not behind arrival: an item of it may still be on its way to
memory. So there is one place that knows what comes next, and what leaves it is complete.

A record that has to wait is kept where its DDP-SSN and stream say, in places that all streams
share, see :class:`~.window.Window`. With a record of 190 bits, a window of 512 for each of 64
streams would be 6.2 Mbit, more block RAM than an ECP5-85F has; a pool of free places would need a
table of 64 x 512 numbers to find them again, and a list. Here a tag for each place does both. The
price is that items of two streams can meet in a place while both have gaps; the later one has to
come again.
"""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..stream import Skid, Stage, Store, delayed, nibbles
from .window import (
    SESSION_BITS,
    Advance,
    Arrival,
    Judged,
    Released,
    Ticket,
    Window,
    place_of,
    session_after,
    storage_of,
)

__all__ = ["Close", "Order", "Over", "Reorder"]

#: Records that leave and wait for the output.
QUEUE = 16


class Close(data.StructLayout):
    """A ``session`` (4) of a ``stream`` that is over: what waits in it will not be delivered."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "session": SESSION_BITS})


class Over(data.StructLayout):
    """A session's ``final`` item was delivered, or, with ``excess`` (1), something came behind it:
    its ``stream`` and ``session`` (4).
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "session": SESSION_BITS, "excess": 1})


class _State(data.StructLayout):
    """A stream's delivery: ``closed``: by the host's side; ``final``: the final item has left."""

    def __init__(self):
        super().__init__({"session": SESSION_BITS, "next": 16, "final": 1, "closed": 1})


class _Waiting(data.StructLayout):
    """Whose record waits in a place."""

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "session": SESSION_BITS, "ssn": 16, "valid": 1,
            "parity": 1, "final": 1,
        })


class _Step(data.StructLayout):
    """What goes through the pipeline, one a cycle.

    Members
    -------
    item, probe, close, look, check : 1
        One of them at most: an item arrives; is the item ``ssn`` waiting for its turn; a session
        is closed; what is in ``place``; is what was in it left behind.
    ticket : Ticket
        Of an item. The others have a stream, a session and a ``ssn``.
    after : 16
        The DDP-SSN behind ``ssn``.
    place : range(slots)
        To look at: an item asks for the one behind it, the others for that of ``ssn``.
    """

    def __init__(self, streams, slots):
        super().__init__({
            "item": 1, "probe": 1, "close": 1, "look": 1, "check": 1,
            "ticket": Ticket(streams), "after": 16, "place": range(slots),
        })


class _Drain(wiring.Component):
    """Walks through the records that a delivered item has made free to go.

    Latency: ``SETTLE`` + 4 cycles from ``work`` to the first probe. Throughput: a probe in every
    second cycle. Reset: idle. Errors: none.

    Members
    -------
    work : In(stream.Signature(range(streams), always_ready=True))
        A stream, no more than all at a time.
    gap : In(1)
        A probe found nothing. It is looked at while no probe for an earlier stream is on its way.
    state : In(_State)
        Of ``stream``, 2 cycles later.
    busy : Out(1)
        No item of the stream may go into the pipeline.
    now : Out(1)
        A probe may go; never twice in a row.
    step : In(1)
        It goes.
    stream, session, ssn, after : Out
        The probe.
    """

    #: Cycles until all that went into the pipeline before shows.
    SETTLE = 7

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "work": In(stream.Signature(range(streams), always_ready=True)),
            "gap": In(1),
            "state": In(_State()),
            "busy": Out(1),
            "now": Out(1),
            "step": In(1),
            "stream": Out(range(streams)),
            "session": Out(SESSION_BITS),
            "ssn": Out(16),
            "after": Out(16),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.works = works = Store(range(self.streams), depth=max(4, self.streams))
        settled = Signal(self.SETTLE)
        begins, begun, walks = Signal(), Signal(), Signal()
        wiring.connect(m, wiring.flipped(self.work), works.i)
        m.d.comb += works.o.ready.eq(~self.busy)
        m.d.sync += [
            settled.eq(Cat(self.busy & ~walks, settled)),
            begins.eq(settled[-1] & ~begins & ~begun & ~walks),
            begun.eq(begins),
            self.now.eq(walks & ~self.now & ~self.gap),
        ]
        with m.If(~self.busy):
            m.d.sync += [self.busy.eq(works.o.valid), self.stream.eq(works.o.payload)]
        with m.If(begins):
            m.d.sync += [self.session.eq(self.state.session), self.ssn.eq(self.state.next)]
        with m.If(begun):
            m.d.sync += [walks.eq(1), settled.eq(0), self.after.eq(self.ssn + 1)]
        with m.If(walks & self.gap):
            m.d.sync += [self.busy.eq(0), walks.eq(0)]
        with m.If(self.step):
            m.d.sync += [self.ssn.eq(self.after), self.after.eq(self.after + 1)]
        return m


class _Sweep(wiring.Component):
    """Goes round all places, and frees those whose session is over.

    Latency, Throughput: a place every 12 cycles in which nothing else goes on. Reset: begins
    anew. Errors: none.

    Members
    -------
    look, check : Out(1)
        What it would like to do; to look at ``place``, to check what was ``found`` in it.
    step : In(1)
        It does.
    place : Out(range(slots))
    entry : In(_Waiting), answer : In(1)
        What is in the place, in the cycle of ``answer``.
    found : Out(_Waiting)
    """

    def __init__(self, streams, slots):
        super().__init__({
            "look": Out(1, init=1),
            "check": Out(1),
            "step": In(1),
            "place": Out(range(slots)),
            "entry": In(_Waiting(streams)),
            "answer": In(1),
            "found": Out(_Waiting(streams)),
        })

    def elaborate(self, platform):
        m = Module()
        # A place that was checked is not looked at again before that shows.
        rest = Signal(3)
        with m.If(self.step):
            m.d.sync += [self.look.eq(0), self.check.eq(0)]
        with m.If(self.answer):
            m.d.sync += [self.found.eq(self.entry), self.check.eq(self.entry.valid)]
        with m.If(self.answer & ~self.entry.valid | self.step & self.check):
            m.d.sync += [self.place.eq(self.place + 1), rest.eq(7)]
        with m.Elif(rest.any()):
            m.d.sync += [rest.eq(rest - 1), self.look.eq(rest == 1)]
        return m


class Reorder(wiring.Component):
    """Puts the records of items into the order of their DDP-SSNs.

    Items come in the order in which they were taken, each when it is complete. One that is the
    next of its stream leaves at once. Others wait until one before them leaves, and then follow
    it, as far as there is no gap, while items of other streams go on. Those of the next session
    wait for its first item.

    What waits in a session that was closed, is behind its final item, or belongs to a session of
    the past is never delivered; its place is freed in passing, in cycles without an item. Of what
    is behind the final item ``over`` tells, more than once if there is more, until the session is
    closed.

    Latency: 8 cycles from an item to its record. Throughput: an item a cycle, whatever the
    streams; in every second cycle while records leave that had to wait. Reset: the streams and
    what waits stay. Errors: none.

    Parameters
    ----------
    shape : Shape
        Of a record.
    streams, slots : int
        As in :class:`~.window.Window`.

    Members
    -------
    i : In(stream.Signature({ticket: Ticket, record: shape}))
        A session's first item opens it.
    close : In(stream.Signature(Close(streams)))
    o : Out(stream.Signature(shape))
    over : Out(stream.Signature(Over(streams)))
    advance : Out(stream.Signature(Advance(streams), always_ready=True))
    released : Out(stream.Signature(Released(slots), always_ready=True))
    """

    def __init__(self, shape, *, streams=64, slots=1024):
        self.shape = shape
        self.streams = streams
        self.slots = slots
        super().__init__({
            "i": In(stream.Signature(data.StructLayout({
                "ticket": Ticket(streams), "record": shape}))),
            "close": In(stream.Signature(Close(streams))),
            "o": Out(stream.Signature(shape)),
            "over": Out(stream.Signature(Over(streams))),
            "advance": Out(stream.Signature(Advance(streams), always_ready=True)),
            "released": Out(stream.Signature(Released(slots), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        streams, slots = self.streams, self.slots
        m.submodules.records = records = Store(self.shape, depth=QUEUE)
        m.submodules.leaving = leaving = Store(self.shape, depth=QUEUE)
        m.submodules.skid = skid = Skid(self.shape)
        m.submodules.overs = overs = Store(Over(streams), depth=QUEUE)
        m.submodules.over_stage = over_stage = Stage(Over(streams))
        m.submodules.drain = drain = _Drain(streams)
        m.submodules.sweep = sweep = _Sweep(streams, slots)
        wiring.connect(m, leaving.o, skid.i)
        wiring.connect(m, skid.o, wiring.flipped(self.o))
        wiring.connect(m, overs.o, over_stage.i)
        wiring.connect(m, over_stage.o, wiring.flipped(self.over))

        step = self._issue(m)
        # What is in the place, and what is known of the stream: in step[2].
        stores, clears, moves, closes = Signal(), Signal(), Signal(), Signal()
        place = Signal(range(slots))
        entry = Signal(_Waiting(streams))
        becomes = Signal(_State())
        (waiting,) = storage_of(
            m, "waiting", _Waiting(streams), slots, (step[0].place,),
            (stores | clears, place, entry))
        state, drained = storage_of(
            m, "states", _State(), streams, (step[0].ticket.stream, drain.stream),
            (moves | closes, step[4].ticket.stream, becomes))
        m.d.comb += [
            sweep.entry.eq(waiting),
            sweep.answer.eq(step[2].look),
            drain.state.eq(drained),
        ]
        last = step[4].ticket
        own = place_of(last.stream, last.ssn, slots)
        # What the decision needs later on of what was found.
        was, known = Signal(_Waiting(streams)), Signal(_State())
        final, express, parity = Signal(), Signal(), Signal()
        record, held = Signal(self.shape, reset_less=True), Signal(self.shape, reset_less=True)
        m.d.comb += [
            was.eq(delayed(m, 2, waiting, "was")),
            known.eq(delayed(m, 2, state, "known")),
            final.eq(Mux(step[4].item, last.final, was.final)),
            express.eq(step[4].item & last.express),
            parity.eq(Mux(step[4].item, last.parity, was.parity)),
            place.eq(Mux(step[4].item, own, step[4].place)),
            *(entry[name].eq(last[name])
              for name in ("stream", "session", "ssn", "parity", "final")),
            entry.valid.eq(stores),
            becomes.session.eq(last.session),
            becomes.next.eq(Mux(closes, known.next, step[4].after)),
            becomes.final.eq(Mux(closes, known.final, final)),
            becomes.closed.eq(closes),
        ]
        excess, leaves = self._decide(m, step, waiting, state, stores, clears, moves, closes)
        m.d.sync += [
            self.advance.valid.eq(moves),
            self.advance.payload.stream.eq(last.stream),
            self.advance.payload.session.eq(last.session),
            self.advance.payload.next.eq(step[4].after),
            self.released.valid.eq(leaves),
            self.released.payload.place.eq(Mux(express, last.stream, place)),
            self.released.payload.parity.eq(parity),
            self.released.payload.express.eq(express),
        ]

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
            overs.i.valid.eq((moves & final) | excess),
            overs.i.payload.stream.eq(last.stream),
            overs.i.payload.session.eq(last.session),
            overs.i.payload.excess.eq(excess),
        ]
        m.d.sync += [Value.cast(record).eq(records.o.payload), held.eq(read.data)]
        return m

    def _issue(self, m):
        """Chooses what goes into the pipeline; what went in 0 to 4 cycles ago."""
        drain, sweep, records = m.submodules.drain, m.submodules.sweep, m.submodules.records
        leaving, overs = m.submodules.leaving, m.submodules.overs
        shape = _Step(self.streams, self.slots)
        step = [Signal(shape, name=f"step_{k}") for k in range(5)]
        for k in range(1, 5):
            m.d.sync += step[k].eq(step[k - 1])

        # Whether the item is of the stream that is being drained: that may be known a cycle late.
        some, take, drained = Signal(), Signal(), Signal()
        head = Signal.like(self.i.payload, reset_less=True)
        after = Signal(16, reset_less=True)
        m.d.comb += self.i.ready.eq(~some | take)
        m.d.sync += drained.eq(drain.stream == head.ticket.stream)
        with m.If(self.i.ready):
            m.d.sync += [
                some.eq(self.i.valid),
                head.eq(self.i.payload),
                after.eq(self.i.payload.ticket.ssn + 1),
                drained.eq(drain.stream == self.i.payload.ticket.stream),
            ]
        # Half of a queue is more than can be on the way. A session is closed while nothing is on
        # its way that could change what is known of its stream, and nothing follows until it shows.
        go, closing = Signal(), Signal()
        calm, closed = Signal(4), Signal(3)
        m.d.sync += [
            go.eq(leaving.half & overs.half),
            closing.eq(self.close.valid & ~self.close.ready),
            calm.eq(Cat(closing, calm) & closing.replicate(4)),
            closed.eq(Cat(self.close.ready, closed)),
        ]
        free = ~closing & ~closed.any()
        idle = ~drain.now & free
        m.d.comb += [
            take.eq(some & go & idle & ~(drain.busy & drained)),
            drain.step.eq(drain.now & go & free),
            self.close.ready.eq(closing & calm.all()),
            # What a probe frees does not show at once; it is not to be freed again. ``over`` may
            # have to be told.
            sweep.step.eq((sweep.look | (sweep.check & go & ~drain.busy)) & ~some & idle),
            records.i.valid.eq(take),
            records.i.payload.eq(head.record),
        ]
        following = step[0]
        m.d.sync += [
            following.item.eq(take),
            following.probe.eq(drain.step),
            following.close.eq(self.close.ready),
            following.look.eq(sweep.step & sweep.look),
            following.check.eq(sweep.step & sweep.check),
        ]
        with m.If(closing):
            m.d.sync += [
                following.ticket.stream.eq(self.close.payload.stream),
                following.ticket.session.eq(self.close.payload.session),
            ]
        with m.Elif(drain.now):
            m.d.sync += [
                following.ticket.stream.eq(drain.stream),
                following.ticket.session.eq(drain.session),
                following.ticket.ssn.eq(drain.ssn),
                following.after.eq(drain.after),
                following.place.eq(place_of(drain.stream, drain.ssn, self.slots)),
            ]
        with m.Elif(some):
            m.d.sync += [
                following.ticket.eq(head.ticket),
                following.after.eq(after),
                following.place.eq(place_of(head.ticket.stream, after, self.slots)),
            ]
        with m.Else():
            m.d.sync += [
                *(following.ticket[name].eq(sweep.found[name])
                  for name in ("stream", "session", "ssn")),
                following.place.eq(sweep.place),
            ]
        return step

    def _decide(self, m, step, waiting, state, stores, clears, moves, closes):
        """What becomes of ``step[3]``; whether, a cycle later, it was too much, and has left."""
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
        asked = delayed(m, 1, Mux(step[1].item, step[1].after, step[1].ticket.ssn), "asked")
        ticket = step[2].ticket
        same = Signal(-(-len(_key(step[2], "ssn")) // 4))
        current, coming, over, valid = Signal(), Signal(), Signal(2), Signal()
        equal = Signal(4)
        m.d.sync += [
            same.eq(nibbles(Cat(asked, ticket.session, ticket.stream),
                             Cat(waiting.ssn, waiting.session, waiting.stream))),
            valid.eq(waiting.valid),
            equal.eq(nibbles(state.next, ticket.ssn)),
            current.eq(state.session == ticket.session),
            coming.eq(session_after(state.session) == ticket.session),
            over.eq(Cat(state.final, state.closed)),
        ]
        # What the last three steps came to: they left, were the final one, were stored.
        left, ended, stored = Signal(3), Signal(3), Signal(3)
        item, probe = step[3].item, step[3].probe
        last = delayed(m, 1, waiting.final, "last")
        found, turn, follows, passed = Signal(), Signal(), Signal(), Signal()
        candidate, leaves, more = Signal(), Signal(), Signal()
        m.d.comb += [
            found.eq(same.all() & valid),
            turn.eq(equal.all() & current),
            follows.eq((before & left & ~ended).any() | (item & step[3].ticket.first)),
            passed.eq((before & left & ended).any() | (turn & over[0] & ~over[1])),
            candidate.eq(item | (probe & found)),
            leaves.eq(candidate & (follows | (turn & ~over.any()))),
            more.eq(found | (behind & stored).any()),
        ]
        excess, freed, wants = Signal(), Signal(), Signal()
        stays, goes, swept, late = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            stays.eq(item & ~leaves & ~passed & ~step[3].ticket.express),
            swept.eq(step[3].check & found),
            # The final item has left, and no probe came here yet.
            late.eq(swept & current & over[0] & ~over[1]),
            goes.eq((probe & found & (leaves | passed))
                    | (swept & Mux(current, over.any(), ~coming))),
        ]
        m.d.sync += [
            moves.eq(leaves),
            excess.eq((candidate & passed & ~leaves) | late),
            stores.eq(stays),
            clears.eq(goes),
            closes.eq(step[3].close & (current | coming)),
            freed.eq((item & ~stays) | goes),
            wants.eq(item & leaves & more),
            left.eq(Cat(leaves, left)),
            ended.eq(Cat(Mux(item, step[3].ticket.final, last), ended)),
            stored.eq(Cat(stays, stored)),
        ]
        m.d.comb += [
            drain.work.valid.eq(wants),
            drain.work.payload.eq(step[4].ticket.stream),
            drain.gap.eq(step[4].probe & ~moves),
        ]
        return excess, freed


def _key(step, ssn):
    """A DDP-SSN of a step, in its session and stream."""
    number = step.after if ssn == "after" else step.ticket.ssn
    return Cat(number, step.ticket.session, step.ticket.stream)


class Order(wiring.Component):
    """Takes what is new, wherever it is in the order, and delivers in the order of submission.

    Latency: see :class:`~.window.Window` and :class:`Reorder`. Throughput: an item a cycle.
    Reset: streams and places stay; not while an item that is FRESH is not done yet, since its place
    would never be free again. Errors: see there.

    Parameters
    ----------
    shape : Shape
        Of a record.
    streams, window, slots : int
        As in :class:`~.window.Window`.

    Members
    -------
    i : In(stream.Signature(Arrival(streams), always_ready=True))
        Items in the order of their arrival.
    o : Out(stream.Signature(Judged(streams), always_ready=True))
        What becomes of each, 6 cycles later.
    done : In(stream.Signature({ticket: Ticket, record: shape}))
        Each item that was FRESH, in this order, when its octets are in memory.
    close : In(stream.Signature(Close(streams)))
    records : Out(stream.Signature(shape))
    over : Out(stream.Signature(Over(streams)))
    look : In(range(streams)), next : Out(16), free : Out(range(slots + 1))
        For the host: all DDP-SSNs before ``next`` were delivered, those less than ``window`` ahead
        of it can be taken, and as many items of all streams can wait as places are ``free``.
    """

    def __init__(self, shape, *, streams=64, window=512, slots=1024):
        self.window = Window(streams=streams, window=window, slots=slots)
        self.reorder = Reorder(shape, streams=streams, slots=slots)
        super().__init__({
            "i": In(stream.Signature(Arrival(streams), always_ready=True)),
            "o": Out(stream.Signature(Judged(streams), always_ready=True)),
            "done": In(stream.Signature(data.StructLayout({
                "ticket": Ticket(streams), "record": shape}))),
            "close": In(stream.Signature(Close(streams))),
            "records": Out(stream.Signature(shape)),
            "over": Out(stream.Signature(Over(streams))),
            "look": In(range(streams)),
            "next": Out(16),
            "free": Out(range(slots + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.window = window = self.window
        m.submodules.reorder = reorder = self.reorder
        wiring.connect(m, wiring.flipped(self.i), window.i)
        wiring.connect(m, window.o, wiring.flipped(self.o))
        wiring.connect(m, wiring.flipped(self.done), reorder.i)
        wiring.connect(m, wiring.flipped(self.close), reorder.close)
        wiring.connect(m, reorder.o, wiring.flipped(self.records))
        wiring.connect(m, reorder.over, wiring.flipped(self.over))
        wiring.connect(m, reorder.advance, window.advance)
        wiring.connect(m, reorder.released, window.released)
        m.d.comb += [
            window.look.eq(self.look),
            self.next.eq(window.next),
            self.free.eq(window.free),
        ]
        return m
