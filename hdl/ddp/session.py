"""The legal sequences of a DDP stream (RFC 5043 section 6).

.. code-block:: text

                      items, in the order of their arrival
                        │
              ┌─────────▼─────────┐ verdict   ┌─────────┐ FRESH: to placement, and then,
    commands ►│      Session      ├──────────►│ Window  ├────────► complete, back to Order
    answers ◄─┤ a state a stream  │           └────┬────┘          ┌─────────┐
    events ◄──┤                   │◄──illegal──────┘               │ Reorder ├► records in the
              │                   │◄──over: a Terminate's turn ────┤         │  order of DDP-SSNs
              └─────────┬─────────┘                                └────▲────┘
                        └── close: a session is over ───────────────────┘
                                               (Window and Reorder are Order)

Chunks are considered by DDP-SSN, but may be placed before that. What makes both fit together:

* An Initiate, and what answers it, has DDP-SSN 0: nothing can be before it, and it is considered
  when it arrives. So a Segment right behind an Accept finds the session established. One that
  overtakes the Accept is of the session that was asked for: it waits in Order for the Accept.
* An Initiate, Accept or Reject with another DDP-SSN is never legal. It is told to be illegal when
  it arrives, unless it came before.
* That leaves the Terminate. It is taken like a Segment, as Order's final item; when its turn comes,
  ``over`` tells, and then its state counts.
* A Segment behind the Terminate was placed if it arrived first. Order does not deliver it, and
  tells ``over`` too: the stream is aborted.
"""

from amaranth import *
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from ..spec.config import power_of_two
from ..spec.sctp import Function, Reason, State
from ..stream import Stage, Store, delayed
from .order import Close, Over
from .window import SESSION_BITS, Arrival, Verdict, session_after, storage_of

__all__ = ["Answer", "Command", "Item", "Message", "Session", "SessionEvent"]


class Message(enum.Enum, shape=3):
    """What an item is; control messages by their Function Code (RFC 5043 section 5.2.3)."""

    SEGMENT = 0
    INITIATE = 1
    ACCEPT = 2
    REJECT = 3
    TERMINATE = 4
    #: A Data Chunk that is none of these: another PPID or Function Code, not unordered, too short,
    #: or with more Private Data than it may have.
    INVALID = 5


class Item(data.StructLayout):
    """An item of a ``stream``, its DDP-SSN ``ssn`` (16), its ``tsn`` (32), and what ``message``
    (Message) it is.
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "ssn": 16, "tsn": 32, "message": Message})


class Command(data.StructLayout):
    """What the host tells of a ``stream``: its ``function`` (Function).

    With FORGET and INITIATE, what the peer sends up to ``tsn`` (32) is of the past.
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "function": Function, "tsn": 32})


class Answer(data.StructLayout):
    """Whether a command was legal, ``taken`` (1), and the ``state`` (State) now."""

    def __init__(self):
        super().__init__({"taken": 1, "state": State})


class SessionEvent(data.StructLayout):
    """Its ``reason`` (Reason), its ``stream``, and the ``state`` (State) in which it met it."""

    def __init__(self, streams):
        super().__init__({"reason": Reason, "stream": range(streams), "state": State})


class _Known(data.StructLayout):
    """What is kept of a stream."""

    def __init__(self):
        super().__init__({"state": State, "session": SESSION_BITS})


class _Step(data.StructLayout):
    """What goes through the pipeline: an item that arrived, or a command, or something illegal,
    or a session whose final item was delivered or was not the last one.
    """

    def __init__(self, streams):
        super().__init__({
            "item": 1, "command": 1, "illegal": 1, "final": 1, "excess": 1, "zero": 1,
            "stream": range(streams), "session": SESSION_BITS, "ssn": 16, "tsn": 32, "message": 3,
        })


class Session(wiring.Component):
    """Keeps the state of each stream's session, and says what may be taken.

    What is taken, and what is dropped, is what ``o`` and then the window say: the host's SCTP
    acknowledges a chunk if it was FRESH or a DUPLICATE or, of an aborted stream, ILLEGAL or SILENT,
    and no chunk that was OUTSIDE, so that this one is sent again.

    The host's commands come before the message that they tell of is sent.

    Sessions of a stream have the same DDP-SSNs, so what comes again out of an earlier one is known
    by its TSN: it is a DUPLICATE if that is not behind the one that a session begins with, which is
    that of the Initiate that arrived, or what the host said with the one that it sent.

    Latency: ``LATENCY`` cycles from ``i`` to ``o``, and from a command to its answer. Throughput:
    an item a cycle; each of the others costs 14 cycles. Reset: the states stay.
    Errors: through ``events``. While there is no room for one, nothing is taken, and none is lost.

    Parameters
    ----------
    streams : int
        A power of two.
    pending : int
        Initiates of all streams that may wait for the host's answer.

    Members
    -------
    i : In(stream.Signature(Item(streams)))
    o : Out(stream.Signature(Arrival(streams), always_ready=True))
    illegal : In(stream.Signature(Close(streams), always_ready=True))
        The session of an item that the window says is ILLEGAL, within 6 cycles of ``o``.
    over : In(stream.Signature(Over(streams)))
    close : Out(stream.Signature(Close(streams)))
    command : In(stream.Signature(Command(streams)))
    answer : Out(stream.Signature(Answer(), always_ready=True))
    events : Out(stream.Signature(SessionEvent(streams)))
    waiting : Out(range(pending + 1))
        Initiates that wait for an answer.
    """

    LATENCY = 6
    #: Cycles until what went in before has come back as illegal, if it does.
    CALM = 12

    def __init__(self, *, streams=64, pending=16):
        power_of_two("Session streams", streams, 2, 1 << 12)
        if not isinstance(pending, int) or isinstance(pending, bool):
            raise TypeError(f"Session pending must be an integer, not {pending!r}")
        if pending < 1:
            raise ValueError(f"Session pending must be 1 or more, not {pending!r}")
        self.streams = streams
        self.pending = pending
        super().__init__({
            "i": In(stream.Signature(Item(streams))),
            "o": Out(stream.Signature(Arrival(streams), always_ready=True)),
            "illegal": In(stream.Signature(Close(streams), always_ready=True)),
            "over": In(stream.Signature(Over(streams))),
            "close": Out(stream.Signature(Close(streams))),
            "command": In(stream.Signature(Command(streams))),
            "answer": Out(stream.Signature(Answer(), always_ready=True)),
            "events": Out(stream.Signature(SessionEvent(streams))),
            "waiting": Out(range(pending + 1)),
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

        step = self._issue(m)
        becomes = Signal(_Known())
        writes, begins = Signal(), Signal()
        (known,) = storage_of(
            m, "states", _Known(), self.streams, (step[0].stream,),
            (writes, step[4].stream, becomes))
        (floor,) = storage_of(
            m, "floors", unsigned(32), self.streams, (step[0].stream,),
            (begins, step[4].stream, step[4].tsn))
        self._decide(m, step, known, becomes, self._past(m, step, floor, begins), begins)
        m.d.comb += writes.eq(_any(step[4]))
        return m

    def _issue(self, m):
        """Chooses what goes into the pipeline; what went in 0 to 4 cycles ago.

        Nothing but an item goes in before all items have left, and have come back if illegal.
        """
        m.submodules.refused = refused = Store(Close(self.streams), depth=16)
        closes, events = m.submodules.closes, m.submodules.events
        step = [Signal(_Step(self.streams), name=f"step_{k}") for k in range(5)]
        for k in range(1, 5):
            m.d.sync += step[k].eq(step[k - 1])
        wiring.connect(m, wiring.flipped(self.illegal), refused.i)

        go, other, acts = Signal(), Signal(), Signal()
        calm = Signal(self.CALM)
        m.d.comb += [
            acts.eq(calm[-1]),
            self.i.ready.eq(go & ~other),
            refused.o.ready.eq(acts),
            self.over.ready.eq(acts & ~refused.o.valid),
            self.command.ready.eq(acts & ~refused.o.valid & ~self.over.valid),
        ]
        m.d.sync += [
            go.eq(closes.half & events.half),
            other.eq((refused.o.valid | self.over.valid | self.command.valid) & ~acts),
            calm.eq(Cat(other & go, calm) & (other & go & ~acts).replicate(self.CALM)),
        ]
        following = step[0]
        item, command, over, wrong = (
            self.i.payload, self.command.payload, self.over.payload, refused.o.payload)
        m.d.sync += [
            following.item.eq(self.i.valid & self.i.ready),
            following.illegal.eq(refused.o.valid & refused.o.ready),
            following.final.eq(self.over.valid & self.over.ready & ~over.excess),
            following.excess.eq(self.over.valid & self.over.ready & over.excess),
            following.command.eq(self.command.valid & self.command.ready),
            following.ssn.eq(item.ssn),
            following.zero.eq(~item.ssn.any()),
            following.tsn.eq(Mux(other, command.tsn, item.tsn)),
        ]
        with m.If(~other):
            m.d.sync += [following.stream.eq(item.stream), following.message.eq(item.message)]
        with m.Elif(refused.o.valid):
            m.d.sync += [following.stream.eq(wrong.stream), following.session.eq(wrong.session)]
        with m.Elif(self.over.valid):
            m.d.sync += [following.stream.eq(over.stream), following.session.eq(over.session)]
        with m.Else():
            m.d.sync += [
                following.stream.eq(command.stream), following.message.eq(command.function)]
        return step

    def _past(self, m, step, floor, begins):
        """Whether ``step[3]`` is of an earlier session: its TSN is not behind that which the last
        one began with.
        """
        # What went in 1 to 3 cycles before does not show in the table.
        same, not_behind = Signal(3), Signal(3)
        began = Signal(2)
        table = Signal()
        m.d.sync += [
            same.eq(Cat(step[1].stream == step[1 + k].stream for k in range(1, 4))),
            not_behind.eq(Cat(~(step[1 + k].tsn - step[1].tsn)[31] for k in range(1, 4))),
            table.eq(~(floor - step[2].tsn)[31]),
            began.eq(Cat(begins, began)),
        ]
        near = delayed(m, 1, same, "near_floor") & Cat(begins, began)
        past = delayed(m, 1, not_behind, "near_past")
        return Mux(near.any(), (near & past).any(), table)

    def _decide(self, m, step, known, becomes, past, begins):
        """What becomes of the state in ``step[3]``, and what that means; a session ``begins`` with
        ``step[4]``.
        """
        # What went in 1 to 3 cycles before does not show in the table.
        same = Signal(3)
        m.d.sync += same.eq(Cat(
            (step[1].stream == step[1 + k].stream) & _any(step[1 + k]) for k in range(1, 4)))
        earlier = delayed(m, 1, becomes, "earlier")
        near, close_by = Signal(_Known()), Signal()
        matches = Signal()
        m.d.sync += [
            near.eq(Mux(same[1], becomes, Mux(same[2], earlier, known))),
            close_by.eq(same[0]),
            # Of what is not an item nothing is near.
            matches.eq(known.session == step[2].session),
        ]
        now = Signal(_Known())
        m.d.comb += now.eq(Mux(close_by, becomes, near))
        state, what = now.state, step[3]

        # What the item is, a cycle ahead: with DDP-SSN 0, an Initiate, Accept or refusal.
        asked = step[2]
        is_initiate, is_accept, is_refusal, is_invalid, asks_for = (Signal() for _ in range(5))
        initiate, accept, refusal, invalid, item = (Signal() for _ in range(5))
        m.d.sync += [
            is_initiate.eq(asked.item & asked.zero & (asked.message == Message.INITIATE.value)),
            is_accept.eq(asked.item & asked.zero & (asked.message == Message.ACCEPT.value)),
            is_refusal.eq(asked.item & asked.zero & (
                (asked.message == Message.REJECT.value)
                | (asked.message == Message.TERMINATE.value))),
            is_invalid.eq(asked.item & (asked.message == Message.INVALID.value)),
            asks_for.eq(asked.command & (asked.message == Function.INITIATE.value)),
        ]
        m.d.comb += [
            initiate.eq(is_initiate & ~past),
            accept.eq(is_accept & ~past),
            refusal.eq(is_refusal & ~past),
            invalid.eq(is_invalid & ~past),
            item.eq(what.item & ~past),
        ]
        # The limit, with the Initiate of the cycle before.
        opened, left = Signal(), Signal()
        # Like the table, it is not reset.
        full = Signal(reset_less=True)
        almost = Signal(init=self.pending == 1, reset_less=True)
        waiting = Signal.like(self.waiting, reset_less=True)
        count = Signal.like(self.waiting)
        m.d.comb += [count.eq(waiting + opened - left), self.waiting.eq(waiting)]
        m.d.sync += [
            waiting.eq(count),
            full.eq(count == self.pending),
            almost.eq(count == self.pending - 1),
        ]

        opens, first, aborts, limited = Signal(), Signal(), Signal(), Signal()
        starts, ended = Signal(), Signal(SESSION_BITS)
        asks = state == State.INITIATE_SENT
        waits = (state == State.INITIATE_RECEIVED) | (state == State.REFUSED)
        m.d.comb += [
            limited.eq(full | (almost & opened)),
            opens.eq(initiate & ~Value.cast(state)[2]),
            first.eq(opens | (asks & (accept | refusal))),
            aborts.eq((state != State.ABORTED) & (
                invalid
                | (asks & item & what.zero & ~accept & ~refusal)
                | (waits & item & ~what.zero)
                | ((what.illegal | what.excess) & matches))),
        ]
        # A session begins as it is asked for, by either side; the first item of the peer's may
        # come later.
        number = now.session
        m.d.comb += starts.eq(opens | (asks_for & ~Value.cast(state)[2]))
        m.d.sync += [
            becomes.session.eq(Mux(starts, session_after(number), number)),
            ended.eq(number),
            begins.eq(starts | (what.command & (what.message == Function.FORGET.value))),
        ]
        taken = Signal()
        m.d.sync += [becomes.state.eq(state), taken.eq(0)]
        with m.If(opens):
            m.d.sync += becomes.state.eq(Mux(limited, State.REFUSED, State.INITIATE_RECEIVED))
        with m.Elif(asks & accept):
            m.d.sync += becomes.state.eq(State.ESTABLISHED)
        with m.Elif(asks & refusal):
            m.d.sync += becomes.state.eq(State.CLOSED)
        with m.Elif(aborts):
            m.d.sync += becomes.state.eq(State.ABORTED)
        with m.Elif(what.final & matches):
            with m.If(state == State.ESTABLISHED):
                m.d.sync += becomes.state.eq(State.TERMINATE_RECEIVED)
            with m.Elif(state == State.TERMINATE_SENT):
                m.d.sync += becomes.state.eq(State.CLOSED)
        with m.Elif(what.command):
            for function, before, after in _SENT:
                with m.If((what.message == function.value) & (near.state == before)):
                    m.d.sync += [becomes.state.eq(after), taken.eq(1)]

        # A cycle later: what that means for all others.
        was, opening, fails, refuses, old = (
            Signal(State), Signal(), Signal(), Signal(), Signal())
        reason = Signal(Reason)
        m.d.sync += [
            was.eq(state),
            opening.eq(first),
            old.eq(what.item & past),
            fails.eq(aborts),
            refuses.eq(opens & limited),
            opened.eq(opens & ~limited),
            reason.eq(Mux(invalid, Reason.MALFORMED, Mux(what.excess, Reason.EXCESS,
                      Mux(opens, Reason.LIMIT, Reason.SEQUENCE)))),
        ]
        done = step[4]
        places = ((was == State.ESTABLISHED) | (was == State.TERMINATE_SENT)
                  | (was == State.INITIATE_SENT))
        event, close = m.submodules.events.i, m.submodules.closes.i
        m.d.comb += [
            left.eq((was == State.INITIATE_RECEIVED) & (becomes.state != was)),
            event.valid.eq(fails | refuses),
            event.payload.reason.eq(reason),
            event.payload.stream.eq(done.stream),
            event.payload.state.eq(was),
            # Where a Terminate has had its turn, Order knows.
            close.valid.eq(fails | (places & done.command & (
                (becomes.state == State.CLOSED) | (becomes.state == State.INITIATE_SENT)))),
            close.payload.stream.eq(done.stream),
            close.payload.session.eq(ended),
        ]
        m.d.sync += [self.answer.valid.eq(done.command), self.o.valid.eq(done.item)]
        arrival = self.o.payload
        m.d.sync += [
            self.answer.payload.taken.eq(taken),
            self.answer.payload.state.eq(becomes.state),
            arrival.stream.eq(done.stream),
            arrival.session.eq(becomes.session),
            arrival.ssn.eq(done.ssn),
            arrival.first.eq(opening),
            arrival.final.eq((done.message == Message.TERMINATE.value)
                             | (done.message == Message.REJECT.value)),
        ]
        in_order = ((done.message == Message.SEGMENT.value)
                    | (done.message == Message.TERMINATE.value))
        with m.If(old):
            m.d.sync += arrival.verdict.eq(Verdict.DUPLICATE)
        with m.Elif(opening | (places & in_order & ~fails)):
            m.d.sync += arrival.verdict.eq(Verdict.FRESH)
        with m.Elif(fails):
            m.d.sync += arrival.verdict.eq(Verdict.ILLEGAL)
        with m.Elif(was == State.ABORTED):
            m.d.sync += arrival.verdict.eq(Verdict.SILENT)
        with m.Elif((was == State.INITIATE_RECEIVED) | (was == State.REFUSED)):
            m.d.sync += arrival.verdict.eq(Verdict.DUPLICATE)
        with m.Else():
            m.d.sync += arrival.verdict.eq(Verdict.REFUSED)


#: What this side may send, and the state after it (RFC 5043 sections 6.2 to 6.4).
_SENT = (
    *((Function.FORGET, state, State.CLOSED) for state in State),
    (Function.INITIATE, State.CLOSED, State.INITIATE_SENT),
    (Function.INITIATE, State.TERMINATE_SENT, State.INITIATE_SENT),
    (Function.INITIATE, State.TERMINATE_RECEIVED, State.INITIATE_SENT),
    (Function.INITIATE, State.ABORTED, State.INITIATE_SENT),
    (Function.ACCEPT, State.INITIATE_RECEIVED, State.ESTABLISHED),
    (Function.REJECT, State.INITIATE_RECEIVED, State.CLOSED),
    (Function.TERMINATE, State.INITIATE_RECEIVED, State.CLOSED),
    (Function.TERMINATE, State.REFUSED, State.CLOSED),
    (Function.TERMINATE, State.ESTABLISHED, State.TERMINATE_SENT),
    (Function.TERMINATE, State.TERMINATE_RECEIVED, State.CLOSED),
    # Section 6.1: the Terminate that an illegal chunk asks for.
    (Function.TERMINATE, State.ABORTED, State.ABORTED),
)


def _any(step):
    """Whether there is something in a step."""
    return step.item | step.command | step.illegal | step.final | step.excess
