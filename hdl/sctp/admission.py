"""Decides for each chunk of SCTP: to the checks, to the host, or dropped (RFC 5043)."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.item import Action, Admitted, Verdict
from ..ddp.message_order import OrderedRecord
from ..ddp.segment import IN_FLIGHT
from ..lib.credits import Credits
from ..lib.delay import Delay
from ..lib.stream import Stage, Store, delayed
from ..spec.sctp import FUNCTION, MOST_PRIVATE, Diversion, Function
from .order import Order
from .receiver import Fate, SctpItem
from .session import Answer, Command, Message, Session, SessionEvent
from .walker import Kind

__all__ = ["Admission"]

#: Octets before a frame in the packet buffer.
_LEAD = 2


class Admission(wiring.Component):
    """Decides the action for each item, by the sessions and windows of all streams.

    .. code-block:: text

        items ─► queue ┬► Session ─► Window ┬► admitted items, for Commit
                       └► delay ────────────┘
        records of items that are complete ─► Reorder ─► records in the order of DDP-SSNs

    Of a frame that is not TAKEN, only the item at its end is handled; its chunks are ignored.

    A fragment of a DDP message on a DDP Stream is forwarded to the host without asking its session.

    Latency: 18 cycles. Throughput: one item per cycle, except as :class:`~.session.Session` states.
    Reset: items that wait for earlier ones stay. Errors: those of :class:`~.session.Session`, and
    events in ``events``.

    Members
    -------
    items : In(stream.Signature(SctpItem(config), always_ready=True))
        At most 3 cycles after ``go`` falls.
    go : Out(1)
    o : Out(stream.Signature(Admitted(config), always_ready=True))
        At most ``IN_FLIGHT`` items more than ``left`` pulses.
    left : In(1)
        One of these items was handled.
    done, records, look, next
        Those of :class:`~.order.Order`.
    command, answer, events, waiting
        Those of :class:`~.session.Session`.
    busy : Out(1)
        Items are being processed; those that only wait for earlier ones do not count.
    """

    def __init__(self, config):
        self.config = config
        self._order = order = Order(
            OrderedRecord(), streams=config.streams, window=config.window)
        item = SctpItem(config)
        super().__init__({
            "items": In(stream.Signature(item, always_ready=True)),
            "go": Out(1),
            "o": Out(stream.Signature(Admitted(config), always_ready=True)),
            "left": In(1),
            **{name: order.signature.members[name]
               for name in ("done", "records", "look", "next")},
            "command": In(stream.Signature(Command(config.streams))),
            "answer": Out(stream.Signature(Answer(), always_ready=True)),
            "events": Out(stream.Signature(SessionEvent(config.streams))),
            "waiting": Out(range(config.streams + 1)),
            "busy": Out(1),
        })
        self._prepared = data.StructLayout({
            **{name: field.shape for name, field in item}, "octets": 17, "message": Message,
            "talks": 1, "reported": 1, "first": 1, "freed": 1, "told": 1,
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.queue = queue = Store(self._prepared, depth=16)
        m.submodules.stage = stage = Stage(self._prepared)
        m.submodules.session = session = Session(
            streams=config.streams, associations=config.associations,
            pending=config.initiates)
        m.submodules.order = order = self._order
        latency = session.LATENCY + order.window.LATENCY
        m.submodules.delay = delay = Delay(self._prepared, latency)
        coming = self._prepare(m, queue)
        wiring.connect(m, queue.o, stage.i)
        wiring.connect(m, session.o, order.i)
        wiring.connect(m, session.close, order.close)
        wiring.connect(m, order.over, session.over)
        wiring.connect(m, wiring.flipped(self.command), session.command)
        wiring.connect(m, session.answer, wiring.flipped(self.answer))
        wiring.connect(m, session.events, wiring.flipped(self.events))
        wiring.connect(m, wiring.flipped(self.done), order.done)
        wiring.connect(m, order.records, wiring.flipped(self.records))

        # An item advances if Commit is sure to have room; a message also needs its session's ready.
        m.submodules.credits = credits = Credits(IN_FLIGHT)
        head, fires, room = stage.o.payload, Signal(), credits.ok
        judged = order.o.payload
        m.d.comb += [
            stage.o.ready.eq(room & (~head.talks | session.i.ready)),
            fires.eq(stage.o.valid & stage.o.ready),
            credits.open.eq(1),
            credits.take.eq(fires),
            credits.give.eq(self.left),
            session.i.valid.eq(stage.o.valid & room & head.talks),
            *(session.i.payload[name].eq(head[name])
              for name in ("stream", "association", "ssn", "tsn", "message", "first")),
            delay.i.eq(head),
            session.illegal.valid.eq(order.o.valid & judged.aborts),
            session.illegal.payload.stream.eq(judged.ticket.stream),
            session.illegal.payload.reason.eq(judged.reason),
            order.asks.eq(session.asks),
            session.whole.eq(order.whole),
            session.idle.eq(order.idle),
            order.look.eq(self.look),
            self.next.eq(order.next),
            self.waiting.eq(session.waiting),
        ]
        passing = Signal(latency)
        m.d.sync += [
            self.go.eq(queue.half),
            passing.eq(Cat(fires, passing)),
            self.o.valid.eq(passing[-1]),
            self.busy.eq(coming | queue.o.valid | stage.o.valid | ~credits.idle),
        ]
        self._admit(m, delay.o, judged)
        return m

    def _prepare(self, m, queue):
        """Derives, in two cycles, the facts of an item alone; returns whether it is busy."""
        item, prepared = self.items.payload, queue.i.payload
        held = delayed(m, 1, item, "held")
        valid = Signal(2)
        octet = [item.header.word_select(k, 8) for k in range(4)]
        body = Cat(octet[1], octet[0])
        bare, fits, known = Signal(), Signal(), Signal()
        words = Signal.like(item.start)
        m.d.sync += [
            valid.eq(Cat(self.items.valid
                         & ((item.fate == Fate.TAKEN) | (item.kind == Kind.FRAME)), valid)),
            bare.eq(body == FUNCTION),
            fits.eq((body >= FUNCTION) & (body <= FUNCTION + MOST_PRIVATE)),
            known.eq(~octet[2].any() & (octet[3] >= Function.INITIATE)
                     & (octet[3] <= Function.ENHANCED_REJECT)),
            words.eq(item.payload - item.start),
        ]
        # Frames: octets before them do not count, and the last word may be partly filled.
        function = held.header[24:27]
        legal = known & Mux(function == Function.TERMINATE, bare, fits)
        control, segment = held.kind == Kind.CONTROL, held.kind == Kind.SEGMENT
        fragment = held.kind == Kind.FRAGMENT
        message, talks, reported = Signal(Message), Signal(), Signal()
        # For a frame: its last chunk has freed all words; that chunk has a record.
        freed, told = Signal(), Signal()
        with m.If(valid[0]):
            m.d.sync += [freed.eq(held.last), told.eq(held.last & reported)]
        m.d.comb += [
            queue.i.valid.eq(valid[1]),
            talks.eq(held.ddp & (segment | control | (held.kind == Kind.REFUSED))),
            reported.eq(talks | (held.ddp & fragment)),
        ]
        m.d.sync += [
            *(prepared[name].eq(held[name]) for name, _ in item.shape()),
            prepared.octets.eq(Mux(held.kind == Kind.FRAME, (words << 2) + held.length[:2]
                                   - (_LEAD + 3), held.length)),
            prepared.talks.eq(talks),
            prepared.reported.eq(reported),
            prepared.first.eq(control & legal & ~held.ssn.any()),
            prepared.freed.eq(freed),
            prepared.told.eq(told),
            prepared.message.eq(message),
        ]
        with m.If(segment):
            m.d.comb += message.eq(Message.SEGMENT)
        with m.Elif(control & legal):
            m.d.comb += message.eq(function)
        with m.Else():
            m.d.comb += message.eq(Message.INVALID)
        return valid.any()

    def _admit(self, m, item, judged):
        """Outputs the item that the session and window have just judged."""
        admitted = self.o.payload
        fresh = judged.verdict == Verdict.FRESH
        m.d.sync += [
            *(admitted[name].eq(item[name])
              for name in ("header", "stream", "association", "start", "payload", "octets")),
            admitted.sequence.eq(item.tsn),
            admitted.release.eq(Mux(item.last, item.end, item.start)),
            admitted.report.eq(item.reported),
            admitted.ends.eq(item.last & item.reported),
            admitted.packet.eq(0),
            admitted.control.eq(item.kind == Kind.CONTROL),
            admitted.ticket.eq(judged.ticket),
            admitted.status.eq(judged.verdict),
            admitted.action.eq(Action.PASS),
        ]
        with m.If(item.kind == Kind.FRAME):
            m.d.sync += [
                admitted.release.eq(item.payload),
                admitted.sequence.eq(item.chunks),
                admitted.report.eq((item.fate == Fate.TAKEN) & ~item.told),
                admitted.ends.eq(0),
                admitted.packet.eq(1),
                admitted.reason.eq(Diversion.FRAME),
            ]
            with m.If(item.fate != Fate.EXCEPTION):
                m.d.sync += admitted.action.eq(Mux(item.freed, Action.NONE, Action.SKIP))
        with m.Elif(item.kind == Kind.CHUNK):
            m.d.sync += [admitted.reason.eq(Diversion.CHUNK), admitted.sequence.eq(0)]
        with m.Elif((item.kind == Kind.FRAGMENT) & item.reported):
            # The session is not asked: first the host reassembles the message.
            m.d.sync += [
                admitted.reason.eq(Diversion.FRAGMENT),
                admitted.status.eq(Verdict.HELD),
                admitted.ticket.ssn.eq(0),
            ]
        with m.Elif(~item.talks | (item.message == Message.INVALID)):
            m.d.sync += admitted.reason.eq(Diversion.DATA)
        with m.Elif(judged.verdict == Verdict.HELD):
            m.d.sync += admitted.reason.eq(Diversion.EARLY)
        with m.Else():
            m.d.sync += admitted.reason.eq(Diversion.CONTROL)
            with m.If(~fresh):
                m.d.sync += admitted.action.eq(Action.SKIP)
            with m.Elif(item.kind == Kind.SEGMENT):
                m.d.sync += admitted.action.eq(Action.PLACE)
