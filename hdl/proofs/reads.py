"""Proves that no Read waits for a free slot, no request for an answer, and no two peers for each
other.
"""

from amaranth import *
from amaranth.hdl import Cover
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..rdmap import requester
from ..send import alternation
from .harness import Harness, if_

__all__ = ["Answering", "End", "Pair", "Together"]

STREAMS, SLOTS = 2, 2
#: Cycles of a turn from its look-up to its end, at least; from there to the look-up of the next
#: turn, in which :class:`~..send.scheduler.Scheduler` alone needs seven; and in which a step ends.
TURN, NEXT, STEP = 5, 8, 4
#: The most requests that wait at an end, and Reads that it has.
MOST = 3


class End(wiring.Component):
    """Sends Reads and responses of one stream, as its gateware does, with one message in a turn.

    The slots are :class:`~..rdmap.requester.ReadSlots`, and :mod:`~..send.alternation` decides. The
    rest is what the other blocks promise: a wake, also one during a turn, is followed by a turn
    (:class:`~.scheduler.Woken`), and a request that is delivered wakes the stream. When a turn
    begins and ends is free.

    Parameters
    ----------
    requester, alternation : module
        The gateware, or a copy with a bug.

    Members
    -------
    ord, reads, fence : In
        Constants: its ORD, and the Reads that it has; whether each waits for all those before it.
    go, stops : In(1)
        A turn begins or ends now, if it can; a response stops before its end.
    request, response : In(1)
        A message of the peer is delivered.
    asks, answers : Out(1)
        A Read Request leaves; a Read Response leaves whole.
    left, asked : Out(range(MOST + 1))
        Reads that have not left; requests that are not answered.
    rests : Out(1)
        Nothing happens any more unless a message is delivered.
    late : Out(1)
        A second turn ends in which there was a request and a message of the end's own had the turn.
    """

    def __init__(self, requester=requester, alternation=alternation):
        self.slots = requester.ReadSlots(STREAMS, SLOTS)
        self.alternation = alternation
        super().__init__({
            "ord": In(range(SLOTS + 1)), "reads": In(range(MOST + 1)), "fence": In(1), "go": In(1),
            "stops": In(1), "request": In(1), "response": In(1), "asks": Out(1), "answers": Out(1),
            "left": Out(range(MOST + 1)), "asked": Out(range(MOST + 1)), "rests": Out(1),
            "late": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.slots = slots = self.slots
        left, asked = self.left, self.asked
        since, returned = Signal(range(8)), Signal(range(SLOTS + 2))
        awake, turns, responds, found, more = Signal(init=1), Signal(), Signal(), Signal(), Signal()
        last, answering, age, quiet = Signal(), Signal(), Signal(range(NEXT + 1)), Signal(STEP)
        gone = Signal(range(MOST + 1))
        with m.If(Mux(since.any(), ~since.all(), slots.ords.ready)):
            m.d.sync += since.eq(since + 1)
        m.d.comb += [
            left.eq(self.reads - gone),
            slots.ords.valid.eq(~since.any()),
            slots.ords.payload.ord.eq(self.ord),
            slots.freed.valid.eq(returned.any()),
            slots.wake.ready.eq(1),
        ]
        m.d.sync += returned.eq(
            returned + self.response - (slots.freed.valid & slots.freed.ready))

        # The host rings the doorbell after it has written the ORD.
        begins, ends, answers = Signal(), Signal(), Signal()
        m.d.comb += [
            begins.eq(since.all() & awake & ~turns & (age == NEXT) & self.go),
            ends.eq(turns & (age >= TURN) & self.go),
            answers.eq(self.alternation.is_for_responses(
                asked=asked.any(), answering=answering, begun=0, own=left.any(), last=last)),
            slots.look.valid.eq(begins & left.any() & ~answers),
        ]
        with m.If(begins | ends):
            m.d.sync += age.eq(0)
        with m.Elif(age != NEXT):
            m.d.sync += age.eq(age + 1)
        with m.If(begins):
            m.d.sync += [
                awake.eq(0),
                turns.eq(left.any() | asked.any()),
                found.eq(asked.any()),
                responds.eq(answers),
            ]

        own, slotless, waited = ends & ~responds, Signal(), Signal()
        m.d.comb += [
            self.late.eq(own & found & waited),
            slots.begins.eq(own),
            slotless.eq(own & slots.room.bounded & (
                ~slots.room.slots.any() | (self.fence & ~slots.room.idle))),
            self.asks.eq(own & ~slotless),
            slots.taken.valid.eq(self.asks),
            self.answers.eq(ends & responds & ~self.stops),
            more.eq(Mux(responds, self.stops | (asked > 1) | left.any(), found | (left > 1))),
        ]
        with m.If(ends):
            m.d.sync += [turns.eq(0), last.eq(responds), waited.eq(own & found)]
            with m.If(responds):
                m.d.sync += answering.eq(self.stops)
            with m.If(self.alternation.goes_on(slotless=slotless, asked=found, more=more)):
                m.d.sync += awake.eq(1)
        with m.If(self.request | slots.wake.valid):
            m.d.sync += awake.eq(1)
        m.d.sync += [
            gone.eq(gone + self.asks),
            asked.eq(asked + self.request - self.answers),
            quiet.eq(Cat(slots.reading | slots.ords.valid, quiet)),
        ]
        m.d.comb += self.rests.eq(
            since.all() & ~awake & ~turns & ~returned.any() & ~slots.reading & ~quiet.any())
        return m


class Answering(Harness):
    """Proves that an end leaves no request unanswered, whatever its own Reads wait for, and answers
    in every other turn at least; that none of its Reads waits while a slot is free, or with a fence
    while none is outstanding; and that it never has more outstanding than its ORD, or than one with
    a fence.

    The peer may do anything that RFC 5040 allows, even answer nothing. Bounded: for the first
    ``DEPTH`` cycles.
    """

    DEPTH = 36

    def rules(self, m):
        dut = self.dut
        outstanding = Signal(range(MOST + 2))
        for port in (dut.ord, dut.reads, dut.fence):
            value = self.any(port.shape(), name="constant", constant=True)
            self.drive(port, value)
        self.assume(dut.ord <= SLOTS)
        self.assume(if_(dut.request, dut.asked < MOST))
        self.assume(if_(dut.response, outstanding != 0))
        m.d.sync += outstanding.eq(outstanding + dut.asks - dut.response)
        self.always(if_(dut.rests, dut.asked == 0), "a request without an answer")
        most = Mux(dut.fence & (dut.ord != 0), 1, dut.ord)
        self.always(if_(dut.rests & (dut.left != 0), outstanding >= most),
                    "a Read that waits for a free slot")
        self.always(~dut.late, "requests that wait for turns of the end's own")
        self.always(outstanding <= most, "too many Reads")
        m.d.comb += [
            Cover(dut.rests & (dut.left == 1) & (dut.ord == 2), "all slots are taken"),
            Cover(dut.rests & (dut.left == 0) & (dut.ord == 1) & (dut.reads == 2), "all is read"),
        ]


class Pair(wiring.Component):
    """Connects two ends: each is the peer of the other one.

    Members
    -------
    ord, reads, fence, go, stops : In().array(2)
        Those of each :class:`End`.
    delivers : In(2).array(2)
        The next request to an end is delivered; the next response.
    rests : Out(1)
        Nothing happens any more.
    waits : Out(1)
        A Read has not left, or a request was not answered.
    """

    def __init__(self, **modules):
        self.ends = End(**modules), End(**modules)
        members = self.ends[0].signature.members
        super().__init__({
            **{name: members[name].array(2) for name in ("ord", "reads", "fence", "go", "stops")},
            "delivers": In(2).array(2), "rests": Out(1), "waits": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.one, m.submodules.other = self.ends
        rests, waits = C(1), C(0)
        for number, end in enumerate(self.ends):
            peer = self.ends[1 - number]
            for name in ("ord", "reads", "fence", "go", "stops"):
                m.d.comb += getattr(end, name).eq(getattr(self, name)[number])
            for bit, (port, leaves) in enumerate((
                (end.request, peer.asks), (end.response, peer.answers),
            )):
                coming = Signal(range(2 * MOST), name=f"coming_{number}_{bit}")
                m.d.comb += port.eq(coming.any() & self.delivers[number][bit])
                m.d.sync += coming.eq(coming + leaves - port)
                rests = rests & ~coming.any()
            rests = rests & end.rests
            waits = waits | end.left.any() | end.asked.any()
        m.d.comb += [self.rests.eq(rests), self.waits.eq(waits)]
        return m


class Together(Harness):
    """Proves that two peers never wait for each other, whatever their ORD.

    Nothing is left to be done once nothing happens any more: each Read has left, and each request
    was answered. Assumes an ORD of at least one. Bounded: for the first ``DEPTH`` cycles.
    """

    DEPTH = 44

    def rules(self, m):
        dut = self.dut
        for number in range(2):
            for port in (dut.ord[number], dut.reads[number], dut.fence[number]):
                value = self.any(port.shape(), name="constant", constant=True)
                self.drive(port, value)
            self.assume((dut.ord[number] != 0) & (dut.ord[number] <= SLOTS))
        self.always(if_(dut.rests, ~dut.waits), "two peers wait for each other")
        full = Cat(end.rests & (end.left != 0) for end in dut.ends)
        m.d.comb += [
            Cover(full.all(), "both have all slots taken, and more to read"),
            Cover(dut.rests & (dut.reads[0] != 0) & (dut.reads[1] != 0), "all is read"),
        ]
