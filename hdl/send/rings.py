"""Reads the send rings: in a stream's turn, the entries of its next messages.

The data's way::

    doorbell ─► wake        turn ─ look-ups ─ Window ┬ Fetch ─ o
                results ─► contexts, ended ◄─────────┘ nothing to send

A segment that is sent again has a turn of its own, in which the entries of its message are read.

With a responder, a turn is for messages of the send ring or for Read Responses, one after the
other: a message that was begun first, else the one of the two that did not have the last turn.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..bus.axi import AxiRead
from ..lib.blockram import ForwardedTable
from ..lib.stream import Skid, Store, counted, delayed
from ..spec.send import ENTRY, Waits
from .alternation import is_for_responses
from .associations import AssociationQueues
from .fetch import Fetch, Window
from .repeats import SLOT_BITS, Repeat, RepeatTurn
from .responses import ResponseEntries, ResponseRings
from .scheduler import turns
from .segmenter import TurnResult
from .work import QUANTUM, WorkEntry

__all__ = ["Doorbell", "RingReader", "SendRing"]

#: Entries that are read in a turn, at first.
WINDOW = 8
#: The most entries that are read in a turn.
MOST = 255
QUEUE = 8
#: Turns that have not ended, at most: a power of two.
RESULTS = 32


class SendRing(data.StructLayout):
    """The send ring of ``stream``: 2 to the power of ``size`` (4) entries from ``base`` on, in
    units of 64 octets, if it is ``open`` (1).
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "base": 64 - exact_log2(ENTRY), "size": 4, "open": 1})


class Doorbell(data.StructLayout):
    """The index ``producer`` (16) into the ring of ``stream``: entries before it may be read."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "producer": 16})


class _Context(data.StructLayout):
    """The progress of a stream.

    ``consumer`` (16): the index of the next message's first entry. ``done`` (32), ``needs`` (8): as
    in :class:`~.segmenter.TurnResult`. ``window`` (8): entries to be read in the next turn.
    ``answered`` (1): the last turn was for Read Responses. ``waits`` (2): a
    :class:`~..spec.send.Waits`.
    """

    def __init__(self):
        super().__init__({
            "consumer": 16, "done": 32, "needs": 8, "window": 8, "answered": 1, "waits": 2})


class RingReader(wiring.Component):
    """Reads the entries of a stream's next messages in its turn.

    A doorbell wakes the stream. In a turn entries are read, never at or past the producer index:
    at first 8, and twice as many in the next turn if they were all used before the octets of the
    turn; otherwise one more than were used, and two at least. If the next message has more, all of
    its entries are read in the turn after that. A message is sent only once the producer has passed
    all of its entries. A producer index more than a ring ahead, a message larger than the ring, and
    a read that the bus refuses close the sending half of that stream alone.

    A segment that is to be sent again waits for at most one turn, and delays a turn by one such
    segment at most. It is given up if its message has no entries or more than the ring; and if it
    is one of a Read Response whose request is more than half of the slots before the next one to be
    answered: the peer sends that many requests only after it has received the response.

    Latency: 6 cycles from ``turn`` to ``bus.ar``. Throughput: a turn every 2 cycles. Reset: rings
    and contexts stay; nothing is read. Errors: ``fail``.

    Parameters
    ----------
    width, streams : int
    responder : bool
        There are Read Responses.
    associations : int
        Those of SCTP, over which streams may send; or 0.

    Members
    -------
    set : In(stream.Signature(SendRing(streams)))
        Replaces the ring of a stream that has no turn; its indices begin with 0.
    doorbell : In(stream.Signature(Doorbell(streams)))
    nudge : In(stream.Signature(range(streams)))
        A stream that is woken too, because it has new credit, or a free slot for a Read.
    look : In(range(streams)), consumer : Out(16), waits : Out(2)
        The index of a stream's next message, and what that waits for, answered after 3 cycles, or
        as soon as no result is in the way.
    wake, turn, ended
        The other ends of those of :class:`~.scheduler.Scheduler`.
    bus : Out(AxiRead(width, 1))
        Reads of the rings.
    o : Out(stream.Signature(WorkEntry(streams)))
    results : In(stream.Signature(TurnResult(streams), always_ready=True))
    fail : Out(stream.Signature(range(streams)))
        The sending half of a stream has to be closed.
    reading : Out(1)
        Entries are being read. A turn may end before: those of a refused message are dropped.
    repeats : In(stream.Signature(RepeatTurn(streams)))
    slot : Out(SLOT_BITS), repeat : In(Repeat(streams)), dropped : Out
        Look-up in, and a free slot for, :class:`~.repeats.Repeats`.
    slots, requests, cut, room, answered, next, asked
        With ``responder`` only: those of :class:`~.responses.ResponseRings`.
    ranges, raised, queue, front
        With ``associations`` only: ``set``, ``raised``, ``look`` and ``front`` of
        :class:`~.associations.AssociationQueues`.
    waiting : Out(1)
        With ``associations`` only: a step of it is under way.
    """

    def __init__(self, width, streams, *, responder=False, associations=0):
        self.width, self.streams, self.associations = width, streams, associations
        self.responses = ResponseRings(streams) if responder else None
        self.queues = AssociationQueues(streams, associations) if associations else None
        over_sctp = {}
        if associations:
            waiting = self.queues.signature.members
            over_sctp = {
                "ranges": waiting["set"], "raised": waiting["raised"], "queue": waiting["look"],
                "front": waiting["front"], "waiting": Out(1)}
        scheduler = turns(streams, QUANTUM)
        members = self.responses.signature.members if responder else {}
        super().__init__({
            "set": In(stream.Signature(SendRing(streams))),
            "doorbell": In(stream.Signature(Doorbell(streams))),
            "nudge": In(stream.Signature(range(streams))),
            "look": In(range(streams)),
            "consumer": Out(16),
            "waits": Out(2),
            **{name: member.flip() for name, member in scheduler.items()},
            "bus": Out(AxiRead(width, 1)),
            "o": Out(stream.Signature(WorkEntry(streams))),
            "results": In(stream.Signature(TurnResult(streams, associations), always_ready=True)),
            "fail": Out(stream.Signature(range(streams))),
            "reading": Out(1),
            **over_sctp,
            "repeats": In(stream.Signature(RepeatTurn(streams))),
            "slot": Out(SLOT_BITS),
            "repeat": In(Repeat(streams)),
            "dropped": Out(stream.Signature(SLOT_BITS, always_ready=True)),
            **{name: members[name]
               for name in ("slots", "requests", "cut", "room", "answered", "next", "asked")
               if responder},
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.windows = windows = Store(
            Window(self.streams), depth=QUEUE, direct=True)
        m.submodules.idle = idle = Store(range(self.streams), depth=QUEUE)
        m.submodules.over = over = Store(range(self.streams), depth=QUEUE)
        m.submodules.fetch = fetch = Fetch(self.width, self.streams)
        tables = self._account(m, idle)
        self._decide(m, tables, windows, idle, over)
        wiring.connect(m, windows.o, fetch.windows)
        wiring.connect(m, fetch.bus, wiring.flipped(self.bus))
        if self.responses:
            m.submodules.responses = self.responses
            m.submodules.answers = answers = ResponseEntries(self.streams)
            wiring.connect(m, fetch.o, answers.i)
            wiring.connect(m, answers.o, wiring.flipped(self.o))
            for name in ("slots", "requests", "cut", "answered"):
                wiring.connect(
                    m, getattr(self.responses, name), wiring.flipped(getattr(self, name)))
            m.d.comb += [
                self.room.eq(self.responses.room),
                self.responses.look.eq(self.look),
                self.next.eq(self.responses.next),
                self.asked.eq(self.responses.asked),
            ]
        else:
            wiring.connect(m, fetch.o, wiring.flipped(self.o))
        # Both kinds of failures close the same half.
        m.submodules.fails = fails = Skid(range(self.streams))
        wiring.connect(m, fails.o, wiring.flipped(self.fail))
        m.d.comb += [
            fails.i.valid.eq(over.o.valid | fetch.fail.valid),
            fails.i.payload.eq(Mux(over.o.valid, over.o.payload, fetch.fail.payload)),
            over.o.ready.eq(fails.i.ready),
            fetch.fail.ready.eq(fails.i.ready & ~over.o.valid),
            self.reading.eq(fetch.busy),
        ]
        return m

    def _account(self, m, idle):
        """Keeps the tables: rings, producer indices and contexts. Ends turns, and wakes streams.

        Returns the tables.
        """
        ring = SendRing(self.streams)
        m.submodules.rings = rings = ForwardedTable(ring, self.streams)
        m.submodules.producers = producers = ForwardedTable(16, self.streams)
        m.submodules.contexts = contexts = ForwardedTable(
            _Context(), self.streams, reads=2)
        shape = self.results.payload.shape()
        m.submodules.queue = queue = Store(shape, depth=RESULTS)
        m.submodules.results = results = Skid(shape)
        m.submodules.wakes = wakes = Store(range(self.streams), depth=4, direct=True)
        wiring.connect(m, wiring.flipped(self.results), queue.i)
        wiring.connect(m, queue.o, results.i)
        wiring.connect(m, wakes.o, wiring.flipped(self.wake))

        self._end(m, results, idle)
        result, resulted = results.o.payload, Signal()
        m.d.comb += [
            resulted.eq(results.o.valid & results.o.ready),
            contexts.address[1].eq(Mux(results.o.valid, result.stream, self.look)),
        ]
        # While no result waits, the context is the one that the host looks at.
        with m.If(~delayed(m, 2, results.o.valid, "waited")):
            m.d.sync += [
                self.consumer.eq(contexts.data[1].consumer),
                self.waits.eq(contexts.data[1].waits),
            ]
        # The result of three cycles ago meets the context that it changes.
        coming, taken = delayed(m, 2, resulted, "coming"), delayed(m, 2, result, "taken")
        changes, written = delayed(m, 1, coming, "changes"), delayed(m, 1, taken, "written")
        before = delayed(m, 1, contexts.data[1], "before")
        used, wider, begins, sets, bells = Signal(8), Signal(8), Signal(), Signal(), Signal()
        fresh, bell = self.set.payload, self.doorbell.payload
        other = written.response  # the result is not that of this ring
        context = contexts.write.payload
        m.d.sync += [
            # With the message that stopped; two at least, so that another message may follow it.
            used.eq(Mux(taken.entries == MOST, MOST, taken.entries + 1 + ~taken.entries.any())),
            sets.eq(begins),
            # The stream's turn comes later than its doorbell by more than this cycle. A new ring
            # changes all tables in the same cycle, so that no turn sees some of the old one.
            producers.write.valid.eq(begins | (self.doorbell.valid & self.doorbell.ready)),
            producers.write.payload.address.eq(Mux(begins, fresh.stream, bell.stream)),
            producers.write.payload.data.eq(Mux(begins, 0, bell.producer)),
        ]
        m.d.comb += [
            # A new ring is written in a cycle in which no result is.
            begins.eq(self.set.valid & ~sets & ~coming),
            wider.eq(Mux(before.window[7], MOST, before.window << 1)),
            # A new ring begins with index 0, so the doorbells of the former one do not count.
            self.set.ready.eq(sets),
            self.nudge.ready.eq(wakes.half),
            self.doorbell.ready.eq(~begins & ~sets & wakes.half & ~self.nudge.valid),
            bells.eq(self.nudge.valid | (self.doorbell.valid & ~begins & ~sets)),
            wakes.i.valid.eq(bells & wakes.half),
            wakes.i.payload.eq(Mux(self.nudge.valid, self.nudge.payload, bell.stream)),
            contexts.write.valid.eq(changes | sets),
            context.address.eq(Mux(changes, written.stream, fresh.stream)),
            context.data.consumer.eq(Mux(
                changes, before.consumer + Mux(other, 0, written.entries), 0)),
            context.data.done.eq(Mux(changes, Mux(other, before.done, written.done), 0)),
            context.data.needs.eq(Mux(changes, Mux(other, before.needs, written.needs), 0)),
            context.data.window.eq(Mux(changes, Mux(other, before.window, Mux(
                written.stopped, used, Mux(
                    written.again & ~written.needs.any() & ~written.spent, wider,
                    before.window))), WINDOW)),
            context.data.answered.eq(changes & other),
            context.data.waits.eq(Mux(changes, Mux(other, before.waits, written.waits), 0)),
            rings.write.valid.eq(sets),
            rings.write.payload.address.eq(fresh.stream),
            rings.write.payload.data.eq(fresh),
        ]
        if self.responses:
            self._account_responses(m, results, resulted, wakes, bells)
        if self.queues:
            self._queue(m, results, wakes, bells)
        return rings, producers, contexts

    def _end(self, m, results, idle):
        """Ends the turn of a result, which changes the context, and one in which there is nothing
        to be sent.
        """
        result, ends = results.o.payload, Signal()
        room = self.queues.room if self.queues else C(1)
        m.d.comb += [
            ends.eq(results.o.valid & (self.responses.open if self.responses else 1)),
            self.ended.valid.eq((ends | idle.o.valid) & room),
            self.ended.payload.stream.eq(Mux(ends, result.stream, idle.o.payload)),
            self.ended.payload.over.eq(Mux(ends, result.over, 0)),
            self.ended.payload.again.eq(ends & result.again),
            results.o.ready.eq(self.ended.ready & ends & room),
            idle.o.ready.eq(self.ended.ready & ~ends & room),
        ]

    def _queue(self, m, results, wakes, bells):
        """Adds the queues of streams that wait for their association, which wake them while there
        are no other wakes.
        """
        m.submodules.queues = queues = self.queues
        wiring.connect(m, wiring.flipped(self.ranges), queues.set)
        wiring.connect(m, wiring.flipped(self.raised), queues.raised)
        result, event = results.o.payload, queues.ended.payload
        others = bells | (self.responses.wake.valid if self.responses else 0)
        m.d.comb += [
            queues.look.eq(self.queue),
            self.front.eq(queues.front),
            self.waiting.eq(queues.busy),
            queues.ended.valid.eq(self.ended.valid & self.ended.ready),
            event.stream.eq(self.ended.payload.stream),
            event.association.eq(result.association),
            event.lacks.eq(results.o.ready & (result.waits == Waits.ASSOCIATION)),
            event.sent.eq(result.sent),
            queues.wake.ready.eq(wakes.half & ~others),
        ]
        with m.If(~others):
            m.d.comb += [
                wakes.i.valid.eq(queues.wake.valid & wakes.half),
                wakes.i.payload.eq(queues.wake.payload),
            ]

    def _account_responses(self, m, results, resulted, wakes, bells):
        """Gives the results of Read Responses to their own account, and wakes streams for it."""
        responses = self.responses
        m.d.comb += [
            responses.results.valid.eq(resulted & results.o.payload.response),
            *(responses.results.payload[name].eq(results.o.payload[name])
              for name in TurnResult(self.streams).members),
            responses.wake.ready.eq(wakes.half & ~bells),
        ]
        with m.If(~bells):
            m.d.comb += [
                wakes.i.valid.eq(responses.wake.valid & wakes.half),
                wakes.i.payload.eq(responses.wake.payload),
            ]

    def _decide(self, m, tables, windows, idle, over):
        """Looks a stream up in its turn, and decides which entries are read."""
        number, ring = range(self.streams), SendRing(self.streams)
        rings, producers, contexts = tables
        # A turn: two cycles for the look-ups, and two for the decision.
        turn, takes, valid = self.turn.payload, Signal(), Signal(4)
        owed = Signal(range(RESULTS + 1))  # turns that have not ended: each has room for its result
        looked, again = Signal(number), self._choose(m, takes)
        streams = [Signal(number, name=f"stream{n}") for n in range(1, 5)]
        octets = [Signal(range(QUANTUM + 1), name=f"octets{n}") for n in range(1, 5)]
        m.d.comb += [
            # The turns that are under way fit in the other half of each queue.
            takes.eq(windows.half & idle.half & over.half & ~valid[0]
                     & (again | (self.turn.valid & ~owed[-1]))),
            self.turn.ready.eq(takes & ~again),
            self.repeats.ready.eq(takes & again),
            looked.eq(Mux(again, self.repeats.payload.stream, turn.stream)),
            *(table.address[0].eq(looked) for table in tables),
        ]
        counted(m, owed, takes & ~again, self.ended.valid & self.ended.ready)
        m.d.sync += [
            valid.eq(Cat(takes, valid)),
            *(one.eq(other) for one, other in zip(
                (*streams, *octets),
                (looked, *streams[:-1], turn.octets, *octets[:-1]), strict=True)),
        ]
        repeats = valid[3] & delayed(m, 4, again, "again")
        found3, context3, available3 = Signal(ring), Signal(_Context()), Signal(16)
        found4, context4, available4 = Signal(ring), Signal(_Context()), Signal(16)
        entries3, wants3 = Signal(16), Signal(8)
        far4, lacks4, wants4 = Signal(), Signal(), Signal(8)
        m.d.comb += [
            entries3.eq(1 << found3.size),
            wants3.eq(Mux(context3.needs > context3.window, context3.needs, context3.window)),
        ]
        m.d.sync += [
            found3.eq(rings.data[0]),
            context3.eq(contexts.data[0]),
            available3.eq(producers.data[0] - contexts.data[0].consumer),
            found4.eq(found3),
            context4.eq(context3),
            available4.eq(available3),
            far4.eq((available3 > entries3) | (context3.needs > entries3)),
            lacks4.eq(~available3.any() | (context3.needs > available3)),
            wants4.eq(wants3),
        ]
        all_of, sends = Signal(), Signal()
        chosen = windows.i.signature.create(path=("chosen",))
        window = chosen.payload
        m.d.sync += [
            windows.i.valid.eq(chosen.valid),
            windows.i.payload.eq(window),
            idle.i.valid.eq(valid[3] & ~chosen.valid & ~repeats),
            idle.i.payload.eq(streams[3]),
            over.i.valid.eq(valid[3] & found4.open & far4 & ~repeats),
            over.i.payload.eq(streams[3]),
        ]
        m.d.comb += [
            all_of.eq(available4 <= wants4),
            sends.eq(found4.open & ~far4 & ~lacks4),
            chosen.valid.eq(valid[3] & sends),
            window.stream.eq(streams[3]),
            window.base.eq(found4.base),
            window.size.eq(found4.size),
            window.start.eq(context4.consumer),
            window.count.eq(Mux(all_of, available4, wants4)),
            window.octets.eq(octets[3]),
            window.done.eq(context4.done),
            window.more.eq(~all_of),
        ]
        if self.responses:
            m.d.comb += self.responses.turn.eq(looked)
            self._decide_for_responses(m, chosen, valid[3], sends, context3, context4)
        self._decide_for_repeats(m, chosen, repeats, found3, found4)

    def _choose(self, m, takes):
        """Returns whether the next turn is for a segment that is sent again."""
        again, had = Signal(), Signal()  # ``had``: the last turn was for one
        m.d.comb += again.eq(self.repeats.valid & ~(had & self.turn.valid))
        with m.If(takes):
            m.d.sync += had.eq(again)
        return again

    def _decide_for_repeats(self, m, chosen, repeats, found3, found4):
        """Replaces the ``chosen`` window by that of a segment that is sent again, in its turn
        ``repeats``.

        ``found3``, ``found4``: the ring, in the last two stages.
        """
        window = chosen.payload
        repeat, inside, fits = Signal(Repeat(self.streams)), Signal(), Signal()
        slot = delayed(m, 1, self.slot, "slot")
        m.d.comb += [
            self.slot.eq(delayed(m, 3, self.repeats.payload.slot, "repeated")),
            fits.eq(found4.open & inside),
        ]
        m.d.sync += [
            self.dropped.valid.eq(repeats & ~fits),
            self.dropped.payload.eq(slot),
            repeat.eq(self.repeat),
            inside.eq(self.repeat.entries.any() & (self.repeat.entries <= 1 << found3.size)),
        ]
        recent = C(0)
        if self.responses:
            # The request is ``behind`` the next one, counted from 0.
            found, behind = self.responses.found, Signal(16)
            m.d.sync += behind.eq(self.responses.coming + ~self.repeat.entry)
            recent = behind.all() | ~(Cat(C(1, 1), behind) & found.outside).any()
        with m.If(repeat.response):
            m.d.comb += fits.eq(recent)
        with m.If(repeats):
            m.d.comb += [
                chosen.valid.eq(fits),
                window.start.eq(repeat.entry),
                window.count.eq(repeat.entries),
                window.octets.eq(1),  # enough for one segment
                window.done.eq(repeat.offset),
                window.more.eq(0),
                window.response.eq(repeat.response),
                window.repeat.eq(1),
                window.slot.eq(slot),
            ]
            with m.If(repeat.response):
                if self.responses:
                    m.d.comb += [window.base.eq(found.base), window.size.eq(found.size),
                                 window.count.eq(1)]
            with m.Else():
                m.d.comb += [window.base.eq(found4.base), window.size.eq(found4.size)]

    def _decide_for_responses(self, m, chosen, valid, sends, context3, context4):
        """Replaces the ``chosen`` window by one of Read Responses, if it is their turn.

        ``sends``: the stream has a message of its own to send. The contexts are those of the last
        two stages.
        """
        found, answers, window = self.responses.found, Signal(), chosen.payload
        begun = Signal()  # a message of the stream's own
        m.d.sync += begun.eq(context3.done.any())
        m.d.comb += [
            answers.eq(is_for_responses(
                asked=found.sends, answering=found.begun, begun=begun, own=sends,
                last=context4.answered)),
        ]
        with m.If(answers):
            m.d.comb += [
                chosen.valid.eq(valid),
                *(window[name].eq(found[name])
                  for name in ("base", "size", "start", "count", "done")),
                window.more.eq(found.more | sends),
                window.response.eq(1),
            ]
        with m.Elif(found.sends):
            m.d.comb += [window.more.eq(1), window.answers.eq(1)]
