"""Shares the credit of an SCTP association among its streams (RFC 9260 section 6.1, RFC 5043
section 10).

The data's way::

    host ─ limits ┐
    Departure ─ refunds ─► AssociationCredit ─ there, fits ─► Cutter
                                  ▲ front                       │ results
                           AssociationQueues ◄──────────────────┘
                                  └ wake ─► Scheduler

The credit is two absolute limits: of the TSN, and of the octets of user data since the association
began. A stream that lacks it waits in the queue of its association, which is served in order: only
the first stream of the queue may take credit, until a turn of it ends for another reason.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import BlockRam, ForwardedTable, StepTable
from ..lib.stream import Store, delayed

__all__ = [
    "AssociationCredit", "AssociationLimit", "AssociationQueues", "AssociationStart", "EndedTurn",
    "Front", "Refund"]

QUEUE = 8
#: Bits of the octets that a segment needs, and of those that a turn may take at most: a turn and
#: its last segment have fewer than 2 to the power of this.
OCTETS = 17
#: Bits of the number of segments in a turn: each costs 128 octets of 16,384 or more.
SEGMENTS = 8


class AssociationStart(data.StructLayout):
    """The settings with which an ``association`` begins.

    ``tsn`` (32): that of its next chunk. ``first`` and ``count`` (16): its ``count`` streams from
    the number ``first`` on may wait for its credit.
    """

    def __init__(self, streams, associations):
        super().__init__({
            "association": range(associations), "tsn": 32, "first": range(streams), "count": 16})


class AssociationLimit(data.StructLayout):
    """The credit of an ``association``: the ``tsn`` (32) that its chunks may not reach, and the
    ``octets`` (32) of user data that may have left since it began.
    """

    def __init__(self, associations):
        super().__init__({"association": range(associations), "tsn": 32, "octets": 32})


class Refund(data.StructLayout):
    """A chunk of an ``association`` with ``octets`` (17) of user data, which does not leave."""

    def __init__(self, associations):
        super().__init__({"association": range(associations), "octets": OCTETS})


class Front(data.StructLayout):
    """The queue of an association: ``some`` (1) streams wait, of which ``stream`` is the first."""

    def __init__(self, streams):
        super().__init__({"some": 1, "stream": range(streams)})


class EndedTurn(data.StructLayout):
    """The end of a turn of ``stream``.

    ``lacks`` (1): it ended for want of credit of ``association``. ``sent`` (1): a segment was cut
    before.
    """

    def __init__(self, streams, associations):
        super().__init__({
            "stream": range(streams), "association": range(associations), "lacks": 1, "sent": 1})


class _Amount(data.StructLayout):
    """Numbers of chunks, ``tsn`` (32), and ``octets`` (32), modulo 2**32."""

    def __init__(self):
        super().__init__({"tsn": 32, "octets": 32})


class AssociationCredit(wiring.Component):
    """Says in each turn how much credit the stream's association has, and counts the segments of
    the turn.

    The position of an association runs ahead of its TSNs by the segments that were cut and have not
    left. A segment that does not leave gives back its credit, so that the association never has
    less than the host gave.

    Latency: 6 cycles from ``begins`` to ``there``; 1 from ``needs`` to ``fits``. Throughput: one
    segment in 2 cycles. Reset: no turn; accounts stay. Errors: none.

    Parameters
    ----------
    streams, associations : int

    Members
    -------
    set : In(stream.Signature(AssociationStart(streams, associations)))
        While no segment of the association is under way. Its octets begin with 0.
    limits : In(stream.Signature(AssociationLimit(associations), always_ready=True))
    refunds : In(stream.Signature(Refund(associations), always_ready=True))
        At most one in 2 cycles; a look-up sees it after 5 cycles.
    begins : In(1), stream : In(range(streams)), association : In(range(associations))
        A turn begins.
    look : Out(range(associations)), front : In(Front(streams))
        Look-up in :class:`AssociationQueues`, answered after 2 cycles.
    there, plenty : Out(1)
        The credit of the turn is known, until the next one begins; and it is enough for all chunks
        that a turn can have.
    needs : In(17), fits : Out(1)
        The association has credit for a chunk with these octets, and the stream may take it.
    cuts : In(1), octets : In(17), bad : In(1)
        A segment of the turn is cut; its chunk has ``octets`` of user data. A segment that is
        ``bad`` needs no credit, and will be refunded.
    """

    DELAY = 6

    def __init__(self, streams, associations):
        self.streams, self.associations = streams, associations
        super().__init__({
            "set": In(stream.Signature(AssociationStart(streams, associations))),
            "limits": In(stream.Signature(AssociationLimit(associations), always_ready=True)),
            "refunds": In(stream.Signature(Refund(associations), always_ready=True)),
            "begins": In(1), "stream": In(range(streams)), "association": In(range(associations)),
            "look": Out(range(associations)), "front": In(Front(streams)),
            "there": Out(1), "plenty": Out(1),
            "needs": In(OCTETS), "fits": Out(1),
            "cuts": In(1), "octets": In(OCTETS), "bad": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        amount = _Amount()
        m.submodules.positions = positions = ForwardedTable(amount, self.associations)
        m.submodules.limits_ = limits = ForwardedTable(amount, self.associations)
        m.submodules.refunded = refunded = StepTable(amount, self.associations, reads=1)
        opens, written = self.set.payload, positions.write.payload
        number, mine, age = self.look, Signal(range(self.streams)), Signal(range(self.DELAY + 1))
        saves, saved, position = Signal(), Signal(range(self.associations)), Signal(amount)
        m.d.comb += [
            limits.write.valid.eq(self.limits.valid),
            limits.write.payload.address.eq(self.limits.payload.association),
            limits.write.payload.data.tsn.eq(self.limits.payload.tsn),
            limits.write.payload.data.octets.eq(self.limits.payload.octets),
            refunded.step.valid.eq(self.refunds.valid),
            refunded.step.payload.eq(self.refunds.payload.association),
            refunded.becomes.tsn.eq(refunded.found.tsn + 1),
            refunded.becomes.octets.eq(
                refunded.found.octets + delayed(m, 3, self.refunds.payload.octets, "octets")),
            refunded.write.valid.eq(self.set.valid & ~saves),
            refunded.write.payload.address.eq(opens.association),
            # A position is written before the next turn looks it up.
            self.set.ready.eq(~saves & refunded.write.ready),
            positions.write.valid.eq(saves | (self.set.valid & self.set.ready)),
            written.address.eq(Mux(saves, saved, opens.association)),
            written.data.tsn.eq(Mux(saves, position.tsn, opens.tsn)),
            written.data.octets.eq(Mux(saves, position.octets, 0)),
            *(table.address[0].eq(number) for table in (positions, limits, refunded)),
            self.there.eq(age == self.DELAY),
        ]

        # 1: the look-ups begin. 3: they are answered.
        with m.If(self.begins):
            m.d.sync += [number.eq(self.association), mine.eq(self.stream), age.eq(1)]
        with m.Elif(~self.there):
            m.d.sync += age.eq(age + 1)
        may, ahead, back, left = Signal(), Signal(amount), Signal(amount), Signal(amount)
        tsns, octets = Signal(SEGMENTS), Signal(OCTETS + 1)
        known, taken = positions.data[0], limits.data[0]
        m.d.sync += [
            back.eq(refunded.data[0]),
            ahead.tsn.eq(taken.tsn - known.tsn),
            ahead.octets.eq(taken.octets - known.octets),
            left.tsn.eq(ahead.tsn + back.tsn),
            left.octets.eq(ahead.octets + back.octets),
        ]
        with m.If(age == 3):
            m.d.sync += [
                position.eq(known), may.eq(~self.front.some | (self.front.stream == mine))]
        with m.Elif(self.cuts):
            m.d.sync += [
                position.tsn.eq(position.tsn + 1),
                position.octets.eq(position.octets + self.octets)]
        # 5: more than a turn can take is as good as all of it.
        many, much = left.tsn[SEGMENTS:31].any(), left.octets[OCTETS:31].any()
        with m.If(~self.there):
            m.d.sync += [
                tsns.eq(Mux(
                    left.tsn[31], 0, left.tsn[:SEGMENTS] | many.replicate(SEGMENTS))),
                octets.eq(Mux(
                    left.octets[31], 0, Mux(much, 1 << OCTETS, left.octets[:OCTETS]))),
                self.plenty.eq(may & many & much & ~left.tsn[31] & ~left.octets[31]),
            ]
        with m.Elif(self.cuts & ~self.bad):
            m.d.sync += [tsns.eq(tsns - 1), octets.eq(octets - self.octets)]
        m.d.sync += [
            saves.eq(self.cuts),
            saved.eq(number),
            self.fits.eq(may & tsns.any() & (self.needs <= octets)),
        ]
        return m


class _Queue(data.StructLayout):
    """The queue of an association, in the places from ``first`` to ``last``, which are as many as
    its streams have.

    ``open`` (1): it has places. ``some`` (1): streams wait, in the places from ``head`` to
    ``tail``; ``front`` is the first of them.
    """

    def __init__(self, streams):
        super().__init__({
            **dict.fromkeys(("first", "last", "head", "tail", "front"), range(streams)),
            "open": 1, "some": 1})


class _Mark(data.StructLayout):
    """The mark of a stream that is ``listed`` (1) in the queue of an ``association``."""

    def __init__(self, associations):
        super().__init__({"listed": 1, "association": range(associations)})


class AssociationQueues(wiring.Component):
    """Keeps the streams of each association that wait for its credit, in the order in which they
    began to wait.

    A stream whose turn ends for want of credit joins the queue. Only the first stream of a queue
    may take credit; it leaves the queue with the end of a turn in which it did not lack credit, and
    goes to the end of the queue with one in which it sent a segment before. So each stream that
    waits gets its share, however often the others are woken.

    The first stream of a queue is woken when it becomes the first, and with each ``raised``. A wake
    is followed by a turn, which sees all credit that was given before the wake. So no stream waits
    for credit that is there.

    Latency: 9 cycles from ``raised`` to ``wake``; some 16 from ``ended``. Throughput: an end in 2
    cycles, of those that change a queue one in 14. Reset: no step is under way; queues stay, and
    have to be set. Errors: none. A stream that is not one of its association's is not listed, and
    so has no further turn.

    Parameters
    ----------
    streams, associations : int

    Members
    -------
    set : In(stream.Signature(AssociationStart(streams, associations)))
        Empties the queue of an association, while none of its streams has a turn; it takes as many
        cycles as it has streams. No stream may be one of two associations.
    raised : In(stream.Signature(range(associations)))
        An association has new credit, which look-ups see already.
    ended : In(stream.Signature(EndedTurn(streams, associations), always_ready=True))
        Only if there is ``room`` : Out(1), which then stays until the transfer.
    wake : Out(stream.Signature(range(streams)))
    look : In(range(associations)), front : Out(Front(streams))
        Look-up of a queue, answered after 2 cycles.
    busy : Out(1)
    """

    def __init__(self, streams, associations):
        self.streams, self.associations = streams, associations
        super().__init__({
            "set": In(stream.Signature(AssociationStart(streams, associations))),
            "raised": In(stream.Signature(range(associations))),
            "ended": In(stream.Signature(EndedTurn(streams, associations), always_ready=True)),
            "room": Out(1),
            "wake": Out(stream.Signature(range(streams))),
            "look": In(range(associations)),
            "front": Out(Front(streams)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.queues = queues = ForwardedTable(
            _Queue(self.streams), self.associations, reads=2)
        m.submodules.marks = marks = ForwardedTable(
            _Mark(self.associations), self.streams, reads=2)
        m.submodules.places = places = BlockRam(range(self.streams), self.streams)
        m.submodules.ends = ends = Store(EndedTurn(self.streams, self.associations), depth=QUEUE)
        # Most ends change no queue, and pass.
        came, event = Signal(2), delayed(m, 2, self.ended.payload, "event")
        m.d.sync += [
            came.eq(Cat(self.ended.valid, came)),
            self.room.eq(~self.ended.valid & (self.room | ends.half)),
        ]
        m.d.comb += [
            marks.address[1].eq(self.ended.payload.stream),
            ends.i.valid.eq(came[1] & (event.lacks | marks.data[1].listed)),
            ends.i.payload.eq(event),
            queues.address[1].eq(self.look),
            self.front.some.eq(queues.data[1].some),
            self.front.stream.eq(queues.data[1].front),
        ]
        self._step(m, queues, marks, places, ends)
        return m

    def _step(self, m, queues, marks, places, ends):
        """Carries out one change after the other."""
        event, number = Signal(EndedTurn(self.streams, self.associations)), Signal(
            range(self.associations))
        raises, last = Signal(), Signal()  # a step for new credit; so was the last one
        start, at = Signal(self.set.payload.shape()), Signal(range(self.streams))
        queue, becomes = Signal(_Queue(self.streams)), Signal(_Queue(self.streams))
        listed, cycle, mark = Signal(), Signal(range(3)), marks.write.payload
        answered = cycle == 2
        m.d.sync += cycle.eq(0)
        m.d.comb += [
            marks.address[0].eq(event.stream),
            queues.address[0].eq(number),
            queues.write.payload.address.eq(number),
            queues.write.payload.data.eq(becomes),
            mark.address.eq(at),
            self.wake.payload.eq(queue.front),
        ]
        with m.FSM() as fsm:
            with m.State("Idle"):
                m.d.comb += [
                    self.set.ready.eq(1),
                    self.raised.ready.eq(~self.set.valid & ~(last & ends.o.valid)),
                    ends.o.ready.eq(~self.set.valid & ~(self.raised.valid & self.raised.ready)),
                ]
                m.d.sync += [
                    event.eq(ends.o.payload),
                    start.eq(self.set.payload),
                    at.eq(self.set.payload.first),
                    number.eq(Mux(
                        self.set.valid, self.set.payload.association, self.raised.payload)),
                ]
                with m.If(self.set.valid):
                    m.next = "Open"
                with m.Elif(self.raised.valid & self.raised.ready):
                    m.d.sync += [raises.eq(1), last.eq(1)]
                    m.next = "Find Queue"
                with m.Elif(ends.o.valid):
                    m.d.sync += [raises.eq(0), last.eq(0)]
                    m.next = "Find Stream"
            with m.State("Open"):
                m.d.sync += queue.last.eq(start.first + start.count - 1)
                m.next = "Empty"
            with m.State("Empty"):
                m.d.comb += [
                    *(becomes[name].eq(start.first) for name in ("first", "head", "tail")),
                    becomes.last.eq(queue.last),
                    becomes.open.eq(start.count.any()),
                    queues.write.valid.eq(1),
                    marks.write.valid.eq(start.count.any()),
                ]
                m.d.sync += at.eq(at + 1)
                with m.If((at == queue.last) | ~start.count.any()):
                    m.next = "Idle"
            with m.State("Find Stream"):
                m.d.sync += [
                    cycle.eq(cycle + 1),
                    listed.eq(marks.data[0].listed),
                    number.eq(Mux(
                        marks.data[0].listed, marks.data[0].association, event.association)),
                ]
                with m.If(answered):
                    m.d.sync += cycle.eq(0)
                    m.next = "Find Queue"
            with m.State("Find Queue"):
                m.d.sync += [cycle.eq(cycle + 1), queue.eq(queues.data[0]), at.eq(event.stream)]
                with m.If(answered):
                    m.next = "Decide"
            self._change(m, queues, marks, places, event, number, raises, queue, becomes, listed)
            with m.State("Wake"):
                m.d.comb += self.wake.valid.eq(1)
                with m.If(self.wake.ready):
                    m.next = "Idle"
        m.d.comb += self.busy.eq(
            ~fsm.ongoing("Idle") | ends.o.valid | delayed(m, 1, self.ended.valid, "ending")
            | delayed(m, 2, self.ended.valid, "ended"))

    def _change(self, m, queues, marks, places, event, number, raises, queue, becomes, listed):
        """Adds the states that decide about a change of a ``queue`` and make it."""
        joins, moves, alone, inside = Signal(), Signal(), Signal(), Signal()
        head, tail, cycle = Signal(range(self.streams)), Signal(range(self.streams)), Signal(2)
        m.d.sync += cycle.eq(0)
        m.d.comb += places.address[0].eq(head)

        def after(place):
            return Mux(place == queue.last, queue.first, (place + 1)[:len(place)])

        with m.State("Decide"):
            m.d.sync += [
                inside.eq(queue.open & (event.stream >= queue.first)
                          & (event.stream <= queue.last)),
                alone.eq(queue.head == queue.tail),
                joins.eq(~raises & ~listed & event.lacks),
                # The first stream of the queue is not that any more.
                moves.eq(~raises & listed & queue.some & (queue.front == event.stream) & (
                    ~event.lacks | (event.sent & (queue.head != queue.tail)))),
                head.eq(after(queue.head)),
                tail.eq(after(queue.tail)),
            ]
            m.next = "Find Front"
        with m.State("Find Front"):
            m.d.sync += cycle.eq(cycle + 1)
            with m.If((cycle == 2) | ~moves):
                m.next = "Change"
        with m.State("Change"):
            leaves = moves & ~event.lacks
            appends = (joins & inside) | (moves & event.lacks)
            m.d.comb += [
                becomes.eq(queue),
                queues.write.valid.eq(appends | moves),
                places.write.valid.eq(appends),
                places.write.payload.address.eq(tail),
                places.write.payload.data.eq(event.stream),
                marks.write.valid.eq((joins & inside) | leaves),
                marks.write.payload.data.listed.eq(joins),
                marks.write.payload.data.association.eq(number),
            ]
            with m.If(appends):
                m.d.comb += [becomes.tail.eq(tail), becomes.some.eq(1)]
                with m.If(~queue.some):
                    m.d.comb += [becomes.head.eq(tail), becomes.front.eq(event.stream)]
            with m.If(moves):
                m.d.comb += [
                    becomes.head.eq(head), becomes.front.eq(places.data[0]),
                    becomes.some.eq(~alone)]
            m.d.sync += queue.eq(becomes)
            m.next = "Idle"
            with m.If(becomes.some & (raises | moves | (appends & ~queue.some))):
                m.next = "Wake"
