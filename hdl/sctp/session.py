"""Keeps the session of each DDP stream, and its legal sequences (RFC 5043 section 6).

Its sessions may be enhanced (RFC 6581 section 7). Here an Initiate, an Accept and a Reject include
the enhanced ones, where nothing else is said.

.. code-block:: text

                      items, in the order of their arrival
                        │
              ┌─────────▼─────────┐ verdict   ┌─────────┐ FRESH: to placement, and then,
    commands ►│      Session      ├──────────►│ Window  ├────────► complete, back to Order
    answers ◄─┤ state per stream  │           └────┬────┘          ┌─────────┐
    events ◄──┤                   │◄──illegal──────┘               │ Reorder ├► records in the
              │                   │◄──over: a Terminate's turn ────┤         │  order of DDP-SSNs
              └─────────┬─────────┘                                └────▲────┘
                        └── close: a session ends, or begins ───────────┘
                                               (Window and Reorder are Order)

The host considers chunks by DDP-SSN, but they may be placed before their turn. These rules make
both fit together:

* An Initiate, and the answer to it, has DDP-SSN 0: nothing can precede it, and it takes effect when
  it arrives. An Initiate, Accept or Reject with another DDP-SSN is never legal.
* A Segment, or a Terminate, that overtakes the answer to this end's Initiate is HELD: the host
  keeps the chunk, and hands it back once the answer has arrived.
* A Terminate of an open session is taken like a Segment, as Order's final item. A chunk after it is
  ILLEGAL as soon as both are known, in whichever order they arrive; the window detects that,
  because it knows both. When the Terminate is delivered, ``over`` reports it, and the state
  changes.

No item of an ended session survives it, and sessions have no numbers. A session opens only while no
item is on its way, not even to host memory. The stream's slots are cleared, in Window and in
Reorder; then the item that opens the session passes as the first one. A chunk of an earlier session
that arrives again is recognized by its TSN.
"""

from amaranth import *
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.item import Verdict
from ..lib.blockram import storage_of
from ..lib.stream import Stage, Store, any_of, delayed, nibbles
from ..spec.config import power_of_two
from ..spec.sctp import ACCEPTS, INITIATES, Function, Reason, State
from .order import Close
from .window import Arrival, Window

__all__ = ["Answer", "Command", "Illegal", "Item", "Message", "Session", "SessionEvent"]


class Message(enum.Enum, shape=4):
    """The kind of an item; control messages by Function Code."""

    SEGMENT = 0
    INITIATE = 1
    ACCEPT = 2
    REJECT = 3
    TERMINATE = 4
    ENHANCED_INITIATE = 5
    ENHANCED_ACCEPT = 6
    ENHANCED_REJECT = 7
    #: A Data Chunk that is none of these: with another PPID or Function Code, not unordered, too
    #: short, or with more Private Data than is allowed.
    INVALID = 8


class Item(data.StructLayout):
    """An item of a ``stream``, before its session has judged it.

    Members
    -------
    stream : range(streams)
    association : range(associations)
    ssn : 16
    tsn : 32
    message : Message
    first : 1
        The item is a control message with DDP-SSN 0.
    """

    def __init__(self, streams, associations):
        super().__init__({
            "stream": range(streams), "association": range(associations), "ssn": 16, "tsn": 32,
            "message": Message, "first": 1,
        })


class Command(data.StructLayout):
    """A command of the host for a ``stream``: its ``function`` (Function).

    With FORGET, PAST and an Initiate: chunks that the peer sent up to ``tsn`` (32) are old.
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "function": Function, "tsn": 32})


class Answer(data.StructLayout):
    """The answer to a command: it was legal, ``taken`` (1), and the new ``state`` (State)."""

    def __init__(self):
        super().__init__({"taken": 1, "state": State})


class Illegal(data.StructLayout):
    """A ``stream`` whose session ends because of an illegal item, for a ``reason`` (Reason)."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "reason": Reason})


class SessionEvent(data.StructLayout):
    """An event: its ``reason`` (Reason), the ``stream``, and its ``state`` (State) before."""

    def __init__(self, streams):
        super().__init__({"reason": Reason, "stream": range(streams), "state": State})


class _Known(data.StructLayout):
    """The stored facts of a stream: ``state``; ``life``, see Arrival; the ``association`` of its
    INITIATE_RECEIVED; and whether its last Initiate, of either side, was ``enhanced``.
    """

    def __init__(self, associations):
        super().__init__({
            "state": State, "life": 1, "association": range(associations), "enhanced": 1})


class _Step(data.StructLayout):
    """A step in the pipeline: an item; a question, for an item that may open a session; a command;
    an illegal item; the delivery of a final item.

    ``opens`` (1): the item opens a session. ``strays`` (1): the item is an Initiate that must not
    open one.
    """

    def __init__(self, streams, associations):
        super().__init__({
            "item": 1, "asks": 1, "command": 1, "illegal": 1, "final": 1, "opens": 1, "strays": 1,
            "zero": 1, "stream": range(streams), "association": range(associations), "ssn": 16,
            "tsn": 32, "message": 4, "reason": Reason,
        })


class Session(wiring.Component):
    """Keeps the state of each stream's session, and decides which items may be taken.

    ``o`` and then the window give the verdict. The host's SCTP acknowledges a chunk that was FRESH
    or a DUPLICATE or, on an aborted stream, ILLEGAL or SILENT; a chunk that was HELD once the host
    has it; and never a chunk that was OUTSIDE, so that the peer repeats it.

    The host gives each command before it sends the message that the command announces.

    Sessions of a stream use the same DDP-SSNs, so a repeated chunk of an earlier session is
    recognized by its TSN: it is a DUPLICATE if its TSN is not after the one with which the present
    session began. That TSN is the one of the Initiate that arrived, or the one that the
    host gave with its own Initiate. The TSN of the item that opened the session is kept too:
    another item with DDP-SSN 0 is ILLEGAL. An ILLEGAL Initiate makes chunks up to its TSN old, as
    one that opens does. The host's PAST moves that TSN forward, before 2^31 others have arrived.

    Latency: ``LATENCY`` cycles from ``i`` to ``o``, and from a command to its answer. Throughput:
    one item per cycle. A command, and the delivery of a Terminate, cost ``CALM`` and 8 cycles. A
    control message with DDP-SSN 0, and an ILLEGAL item, wait until every item taken before is in
    memory, and so do a command after an ILLEGAL item and an item after a FORGET. A session that
    begins, or is forgotten, costs ``CALM`` cycles and two for each slot of its stream. Reset: the
    states stay. Errors: reported through ``events``. While there is no room for an event, no item
    is taken; no event is lost.

    Parameters
    ----------
    streams, associations : int
        Powers of two.
    pending : int
        Initiates of an association that may wait for the host's answer (RFC 5043 section 6.4).

    Members
    -------
    i : In(stream.Signature(Item(streams, associations)))
    o : Out(stream.Signature(Arrival(streams), always_ready=True))
    illegal : In(stream.Signature(Illegal(streams), always_ready=True))
        An item with which the window ends a session, 7 cycles after ``o``.
    over : In(stream.Signature(range(streams)))
        A session's final item was delivered.
    asks : Out(range(streams)), whole : In(1)
        Stream to look up in the window; it has no gap, 3 cycles later.
    close : Out(stream.Signature(Close(streams)))
    idle : In(1)
        ``idle`` of Order; it accounts for a close 2 cycles later.
    command : In(stream.Signature(Command(streams)))
    answer : Out(stream.Signature(Answer(), always_ready=True))
    events : Out(stream.Signature(SessionEvent(streams)))
    waiting : Out(range(streams + 1))
        Initiates that wait for the host's answer.
    """

    LATENCY = 6
    #: Cycles until an item that entered has come back as illegal, if it is illegal.
    CALM = LATENCY + Window.LATENCY + 4

    def __init__(self, *, streams=64, associations=64, pending=16):
        power_of_two("Session streams", streams, 2, 1 << 12)
        power_of_two("Session associations", associations, 2, 1 << 16)
        if not isinstance(pending, int) or isinstance(pending, bool):
            raise TypeError(f"Session pending must be an integer, not {pending!r}")
        if pending < 1:
            raise ValueError(f"Session pending must be 1 or more, not {pending!r}")
        self.streams = streams
        self.associations = associations
        self.pending = pending
        super().__init__({
            "i": In(stream.Signature(Item(streams, associations))),
            "o": Out(stream.Signature(Arrival(streams), always_ready=True)),
            "illegal": In(stream.Signature(Illegal(streams), always_ready=True)),
            "over": In(stream.Signature(range(streams))),
            "asks": Out(range(streams)),
            "whole": In(1),
            "close": Out(stream.Signature(Close(streams))),
            "idle": In(1),
            "command": In(stream.Signature(Command(streams))),
            "answer": Out(stream.Signature(Answer(), always_ready=True)),
            "events": Out(stream.Signature(SessionEvent(streams))),
            "waiting": Out(range(streams + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.closes = closes = Store(Close(self.streams), depth=16)
        m.submodules.close_stage = close_stage = Stage(Close(self.streams))
        m.submodules.events = events = Store(SessionEvent(self.streams), depth=16)
        m.submodules.event_stage = event_stage = Stage(SessionEvent(self.streams))
        wiring.connect(m, closes.o, close_stage.i)
        wiring.connect(m, close_stage.o, wiring.flipped(self.close))
        wiring.connect(m, events.o, event_stage.i)
        wiring.connect(m, event_stage.o, wiring.flipped(self.events))

        opened, strayed = Signal(), Signal()
        step = self._issue(m, opened, strayed)
        becomes = Signal(_Known(self.associations))
        begins = Signal(2)
        (known,) = storage_of(
            m, "states", _Known(self.associations), self.streams, (step[0].stream,),
            (_changes(step[4]), step[4].stream, becomes))
        # ``floor``: the TSN up to which chunks are old; ``opening``: that of the opening item.
        past, opener = Signal(), Signal()
        (floor,) = storage_of(
            m, "floors", unsigned(32), self.streams, (step[0].stream,),
            (begins[0], step[4].stream, step[4].tsn))
        (opening,) = storage_of(
            m, "openings", unsigned(32), self.streams, (step[0].stream,),
            (begins[1], step[4].stream, step[4].tsn))
        equal = Signal(8)
        m.d.sync += [past.eq(~(floor - step[2].tsn)[31]), equal.eq(nibbles(opening, step[2].tsn))]
        m.d.comb += [opener.eq(equal.all()), self.asks.eq(step[0].stream)]
        now = delayed(m, 1, known, "now")
        self._change(m, step, now, past, opener, becomes, begins, opened, strayed)
        self._judge(m, step, now, past, opener)
        return m

    def _issue(self, m, opened, strayed):
        """Chooses the next step; returns the steps that entered the pipeline 0 to 4 cycles ago.

        Other steps than items enter only when all items have left, and come back if illegal.
        """
        m.submodules.refused = refused = Store(Illegal(self.streams), depth=32)
        closes, events = m.submodules.closes, m.submodules.events
        step = [Signal(_Step(self.streams, self.associations), name=f"step_{k}") for k in range(5)]
        for k in range(1, 5):
            m.d.sync += step[k].eq(step[k - 1])
        wiring.connect(m, wiring.flipped(self.illegal), refused.i)

        # For an item that may open a session, a question enters first, like the other steps.
        item, command, over, wrong = self.i, self.command, self.over, refused.o
        go, other, acts, full = Signal(), Signal(), Signal(), Signal()
        asks, asked, first, forgets = Signal(), Signal(), Signal(), Signal()
        calm = Signal(self.CALM)
        m.d.comb += [
            full.eq(calm[-1]),
            item.ready.eq(go & Mux(item.payload.first, first, ~other)),
            over.ready.eq(full),
            # Items taken before an illegal one are still delivered, whatever the host commands. A
            # command waits until then: no item enters meanwhile, and delivery needs the bus alone.
            wrong.ready.eq(full & ~over.valid & self.idle),
            command.ready.eq(full & ~over.valid & ~wrong.valid & ~asked & ~first),
            asks.eq(full & ~over.valid & ~wrong.valid & self.idle & ~first
                    & item.valid & item.payload.first & (asked | ~command.valid)),
            acts.eq(full & (over.valid | (wrong.valid & wrong.ready)
                            | (command.valid & command.ready) | asks | (forgets & self.idle))),
        ]
        waits = over.valid | wrong.valid | command.valid | forgets | (
            item.valid & item.payload.first & ~first)
        m.d.sync += [
            go.eq(closes.half & events.half),
            # A change of a state is visible before an item follows it.
            other.eq(waits | any_of(_changes(each) for each in step)),
            calm.eq(Cat(other & go, calm) & (other & go & ~acts).replicate(self.CALM)),
            first.eq((first | (asks & asked)) & ~(item.valid & item.ready)),
        ]
        with m.If(asks):
            m.d.sync += asked.eq(~asked)
        # While the window clears a stream's slots, it takes no items.
        with m.If(command.valid & command.ready & (command.payload.function == Function.FORGET)):
            m.d.sync += forgets.eq(1)
        with m.Elif(full & self.idle):
            m.d.sync += forgets.eq(0)
        following = step[0]
        m.d.sync += [
            following.item.eq(item.valid & item.ready),
            following.asks.eq(asks & ~asked),
            following.opens.eq(first & opened),
            following.strays.eq(first & strayed),
            following.illegal.eq(wrong.valid & wrong.ready),
            following.final.eq(over.valid & over.ready),
            following.command.eq(command.valid & command.ready),
            following.ssn.eq(item.payload.ssn),
            following.zero.eq(~item.payload.ssn.any()),
            following.stream.eq(item.payload.stream),
            following.association.eq(item.payload.association),
            following.tsn.eq(item.payload.tsn),
            following.message.eq(item.payload.message),
            following.reason.eq(wrong.payload.reason),
        ]
        with m.If(full & over.valid):
            m.d.sync += following.stream.eq(over.payload)
        with m.Elif(full & wrong.valid & wrong.ready):
            m.d.sync += following.stream.eq(wrong.payload.stream)
        with m.Elif(full & command.valid & command.ready):
            m.d.sync += [
                following.stream.eq(command.payload.stream),
                following.tsn.eq(command.payload.tsn),
                following.message.eq(command.payload.function),
            ]
        return step

    def _change(self, m, step, now, past, opener, becomes, begins, opened, strayed):
        """Computes a stream's new state after ``step[3]``, which is no item, and the outputs."""
        state, what = now.state, step[3]
        full = self._count(m, step, now, becomes)
        kind, initiate, answer = self._decode(m, step[2].message), Signal(), Signal()
        opens, answers, strays, fails = Signal(), Signal(), Signal(), Signal()
        ended = (state == State.CLOSED) | (state == State.ABORTED)
        fits = ~Mux(now.enhanced, kind.plain, kind.enhanced)
        m.d.comb += [
            initiate.eq(what.asks & kind.initiates & ~past),
            answer.eq(what.asks & ~kind.initiates & ~past),
            # Section 6.6: not while a chunk of the last session is outstanding.
            opens.eq(initiate & ~Value.cast(state)[2] & (ended | self.whole)),
            answers.eq(answer & (state == State.INITIATE_SENT) & fits),
            # A stray Initiate ends its session. If the network repeats it, it opens none.
            strays.eq(initiate & ~opens & ~(opener & (state != State.INITIATE_SENT))),
            fails.eq(what.illegal & (state != State.ABORTED)),
        ]
        taken, closes, clears = Signal(), Signal(), Signal()
        m.d.sync += [
            becomes.eq(now),
            taken.eq(0),
            closes.eq(opens | answers | fails),
            clears.eq(opens | answers),
            begins.eq(Cat(opens | strays, opens | answers)),
        ]
        with m.If(what.illegal):
            m.d.sync += becomes.life.eq(~now.life)
        with m.If(opens):
            m.d.sync += [
                becomes.state.eq(Mux(full, State.REFUSED, State.INITIATE_RECEIVED)),
                becomes.association.eq(what.association),
                becomes.enhanced.eq(kind.asks_enhanced),
            ]
        with m.Elif(answers):
            m.d.sync += becomes.state.eq(Mux(kind.accepts, State.ESTABLISHED, State.CLOSED))
        with m.Elif(fails):
            m.d.sync += becomes.state.eq(State.ABORTED)
        with m.Elif(what.final & (state == State.ESTABLISHED)):
            m.d.sync += becomes.state.eq(State.TERMINATE_RECEIVED)
        with m.Elif(what.final & (state == State.TERMINATE_SENT)):
            m.d.sync += becomes.state.eq(State.CLOSED)
        for function, before, after in _SENT:
            named = what.command & (what.message == function.value)
            with m.If(named & (state == before) & fits):
                m.d.sync += [becomes.state.eq(after), taken.eq(1)]
                if function == Function.FORGET:
                    m.d.sync += [closes.eq(1), clears.eq(1), begins.eq(0b11)]
                elif function in INITIATES:
                    m.d.sync += [
                        closes.eq(1), begins.eq(0b01), becomes.enhanced.eq(kind.asks_enhanced)]
                elif function == Function.PAST:
                    m.d.sync += begins.eq(~past)  # it never moves back
                elif function == Function.ABORT:
                    m.d.sync += closes.eq(1)
        with m.If(what.asks):
            m.d.sync += [opened.eq(opens | answers), strayed.eq(strays)]

        self._output(m, step, state, becomes, opens, full, answers, fails, taken, closes, clears)

    @staticmethod
    def _decode(m, message):
        """Decodes a message, or a command; returns the result one cycle later.

        The fields ``plain`` and ``enhanced`` are set for an answer that fits no enhanced Initiate,
        and for one that fits no other.
        """
        kind = Signal(data.StructLayout(dict.fromkeys(_KINDS, 1)), name="kind")
        m.d.sync += (
            kind[name].eq(any_of(message == each.value for each in functions))
            for name, functions in _KINDS.items())
        return kind

    def _output(self, m, step, state, becomes, opens, full, answers, fails, taken, closes, clears):
        """Outputs the answer to a command, an event and a close, one cycle after ``step[3]``."""
        was, failed, refuses, starts = Signal(State), Signal(), Signal(), Signal()
        m.d.sync += [
            was.eq(state),
            failed.eq(fails),
            refuses.eq(opens & full),
            starts.eq(opens | answers),
            self.answer.valid.eq(step[4].command),
            self.answer.payload.taken.eq(taken),
            self.answer.payload.state.eq(becomes.state),
        ]
        event, close = m.submodules.events.i, m.submodules.closes.i
        m.d.comb += [
            event.valid.eq(failed | refuses),
            event.payload.reason.eq(Mux(failed, step[4].reason, Reason.LIMIT)),
            event.payload.stream.eq(step[4].stream),
            event.payload.state.eq(was),
            close.valid.eq(closes),
            close.payload.stream.eq(step[4].stream),
            close.payload.opens.eq(starts),
            close.payload.clears.eq(clears),
        ]

    def _count(self, m, step, now, becomes):
        """Counts the waiting Initiates of each association.

        Returns whether the association of ``step[3]`` may have no more. Steps that change a state
        are many cycles apart.
        """
        was = delayed(m, 1, now, "was")
        waited, waits = (each.state == State.INITIATE_RECEIVED for each in (was, becomes))
        left, came = Signal(), Signal()
        m.d.comb += [
            left.eq(_changes(step[4]) & waited & ~waits),
            came.eq(_changes(step[4]) & ~waited & waits),
        ]
        # Read when an item asks, and again for the value to write.
        write, value, full = Signal(), Signal(range(self.pending + 1)), Signal()
        whose = Signal(range(self.associations))
        m.d.comb += whose.eq(Mux(left, was.association, Mux(
            came, becomes.association, step[0].association)))
        (count,) = storage_of(
            m, "pending", value.shape(), self.associations, (whose,),
            (write, delayed(m, 3, whose, "whose"), value))
        m.d.sync += [
            full.eq(count == self.pending),
            write.eq(delayed(m, 2, left | came, "counts")),
            value.eq(Mux(delayed(m, 2, left, "down"), count - 1, count + 1)),
        ]
        waiting = Signal.like(self.waiting, reset_less=True)
        m.d.comb += self.waiting.eq(waiting)
        with m.If(left):
            m.d.sync += waiting.eq(waiting - 1)
        with m.If(came):
            m.d.sync += waiting.eq(waiting + 1)
        return full

    def _judge(self, m, step, now, past, opener):
        """Computes the verdict on an item, ``step[3]``, in two steps."""
        state, what = now.state, step[3]
        message = what.message
        segment, terminate, invalid = (
            message == kind.value for kind in (
                Message.SEGMENT, Message.TERMINATE, Message.INVALID))
        verdict = Signal(Verdict)
        asks, takes = Signal(), Signal()
        m.d.comb += [
            asks.eq(state == State.INITIATE_SENT),
            takes.eq((state == State.ESTABLISHED) | (state == State.TERMINATE_SENT)),
        ]
        with m.If(what.opens):
            m.d.sync += verdict.eq(Verdict.FRESH)
        with m.Elif(what.strays):
            m.d.sync += verdict.eq(Verdict.ILLEGAL)
        with m.Elif(past):
            m.d.sync += verdict.eq(Verdict.DUPLICATE)
        with m.Elif(state == State.ABORTED):
            m.d.sync += verdict.eq(Verdict.SILENT)
        with m.Elif(invalid):
            m.d.sync += verdict.eq(Verdict.ILLEGAL)
        with m.Elif(what.zero & ~segment & ~asks & opener):
            m.d.sync += verdict.eq(Verdict.DUPLICATE)
        with m.Elif(asks):
            # An item that overtakes the answer; only the answer itself has DDP-SSN 0.
            m.d.sync += verdict.eq(
                Mux((segment | terminate) & ~what.zero, Verdict.HELD, Verdict.ILLEGAL))
        with m.Elif(segment | terminate):
            m.d.sync += verdict.eq(Mux(takes, Verdict.FRESH, Verdict.REFUSED))
        with m.Else():
            m.d.sync += verdict.eq(Mux(what.zero, Verdict.ILLEGAL, Verdict.REFUSED))

        arrival, done = self.o.payload, step[4]
        m.d.sync += [
            self.o.valid.eq(done.item),
            arrival.verdict.eq(verdict),
            *(arrival[name].eq(done[name]) for name in ("stream", "ssn", "tsn")),
            arrival.segment.eq(done.message == Message.SEGMENT.value),
            arrival.final.eq((done.message == Message.TERMINATE.value)
                             | (done.message == Message.REJECT.value)
                             | (done.message == Message.ENHANCED_REJECT.value)),
            arrival.malformed.eq(done.message == Message.INVALID.value),
            arrival.life.eq(delayed(m, 1, now.life, "life")),
        ]


#: Facts of a message, and the messages for which each is true.
_KINDS = {
    "initiates": INITIATES,
    "asks_enhanced": (Function.ENHANCED_INITIATE,),
    "accepts": ACCEPTS,
    "plain": (Function.ACCEPT,),
    "enhanced": (Function.ENHANCED_ACCEPT, Function.ENHANCED_REJECT),
}
#: Messages and commands of this side: the state in which each is legal, and the state after it.
#: (RFC 5043 sections 6.2 to 6.4, RFC 6581 section 7). An answer has to fit the Initiate, too.
_SENT = (
    *((Function.FORGET, state, State.CLOSED) for state in State),
    *((Function.ABORT, state, State.ABORTED) for state in State),
    *((Function.PAST, state, state) for state in State),
    *((function, state, State.INITIATE_SENT) for function in INITIATES for state in (
        State.CLOSED, State.TERMINATE_SENT, State.TERMINATE_RECEIVED, State.ABORTED)),
    *((function, State.INITIATE_RECEIVED, State.ESTABLISHED) for function in ACCEPTS),
    (Function.REJECT, State.INITIATE_RECEIVED, State.CLOSED),
    (Function.ENHANCED_REJECT, State.INITIATE_RECEIVED, State.CLOSED),
    (Function.TERMINATE, State.INITIATE_RECEIVED, State.CLOSED),
    (Function.TERMINATE, State.REFUSED, State.CLOSED),
    (Function.TERMINATE, State.ESTABLISHED, State.TERMINATE_SENT),
    (Function.TERMINATE, State.TERMINATE_RECEIVED, State.CLOSED),
    # Section 6.1: the Terminate after an illegal chunk.
    (Function.TERMINATE, State.ABORTED, State.ABORTED),
)


def _changes(step):
    """Returns whether a step may change the state of a stream."""
    return step.asks | step.command | step.illegal | step.final
