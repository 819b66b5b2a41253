"""Makes entries for the completion queues from SCTP's chunks, packets, sessions, and messages."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.delivery import Record
from ..ddp.entry import of_message
from ..ddp.item import Verdict
from ..ddp.message_order import Disordered, MessageOrder, OrderedRecord
from ..ddp.precedence import Ordered
from ..ddp.untagged import Advanced, QueueState
from ..lib.stream import Skid, Stage, Store
from ..spec.completion import ChunkStatus, Kind
from .session import SessionEvent

__all__ = ["Reports"]

QUEUE = 16


class Reports(wiring.Component):
    """Makes the entries of due records.

    A message of MPA becomes an entry in the order in which it is due. Over SCTP, each chunk and
    packet becomes an entry in that order too, but messages and control messages become entries in
    the order of their stream's DDP-SSNs.

    .. code-block:: text

        due ─┬► entries of MPA's messages, of chunks and packets ──────┐
             └► done ··· Reorder ··· ordered ─► MessageOrder ──────────┼► entries
        events of sessions ────────────────────────────────────────────┘

    Latency: 3 cycles from ``due``, 11 from ``ordered``. Throughput: one entry per cycle. Reset:
    empty. Errors: none.

    Parameters
    ----------
    config : RnicConfig
    ordered : bool
        True if messages of MPA come too.
    done : Signature
        The signature of ``done`` of :class:`~.order.Order`.

    Members
    -------
    due : In(stream.Signature(Record.kept(config, ...)))
        Records whose octets are all in host memory.
    done : Out(done)
        Of these, the SCTP chunks that were taken, for Order.
    ordered : In(stream.Signature(OrderedRecord()))
        The same chunks in the order of their DDP-SSNs, from Order.
    events : In(stream.Signature(SessionEvent(streams)))
    entries : Out(stream.Signature(Ordered()))
    passed : Out(1)
        The entry of a due record is forwarded to ``entries``, through a register.
    clear, state, advanced, disordered
        Those of :class:`~..ddp.message_order.MessageOrder`.
    busy : Out(1)
        A record or entry was transferred in the last 31 cycles.
    """

    def __init__(self, config, done, *, ordered=True):
        self.config, self.ordered_too = config, ordered
        due = Record.kept(config, ordered=ordered, unordered=True)
        super().__init__({
            "due": In(stream.Signature(due)),
            "done": Out(done),
            "ordered": In(stream.Signature(OrderedRecord())),
            "events": In(stream.Signature(SessionEvent(config.streams))),
            "entries": Out(stream.Signature(Ordered())),
            "clear": In(stream.Signature(16, always_ready=True)),
            "state": In(stream.Signature(QueueState(), always_ready=True)),
            "advanced": Out(stream.Signature(Advanced())),
            "disordered": Out(stream.Signature(Disordered())),
            "passed": Out(1),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.reports = reports = Store(Ordered(), depth=QUEUE)
        m.submodules.undone = undone = Store(self.done.p.shape(), depth=QUEUE)
        m.submodules.done_stage = done_stage = Stage(self.done.p.shape())
        m.submodules.message_order = order = MessageOrder(streams=self.config.streams)
        m.submodules.skid = skid = Skid(Ordered())
        wiring.connect(m, wiring.flipped(self.ordered), order.i)
        wiring.connect(m, wiring.flipped(self.clear), order.clear)
        wiring.connect(m, wiring.flipped(self.state), order.state)
        wiring.connect(m, order.advanced, wiring.flipped(self.advanced))
        wiring.connect(m, order.disordered, wiring.flipped(self.disordered))
        wiring.connect(m, skid.o, wiring.flipped(self.entries))

        # A record that is due goes to ``reports`` and to ``done`` in the same cycle.
        due, record = self.due.payload, undone.i.payload.record
        go, takes = Signal(), Signal()
        wiring.connect(m, undone.o, done_stage.i)
        wiring.connect(m, done_stage.o, wiring.flipped(self.done))
        m.d.sync += go.eq(reports.half & undone.half)
        m.d.comb += [
            takes.eq(self.due.valid & go),
            self.due.ready.eq(go),
            undone.i.valid.eq(
                takes & self._sctp & ~due.packet & (due.status == Verdict.FRESH)),
            undone.i.payload.ticket.eq(due.ticket),
            *(record[name].eq(due[name]) for name, _ in record.shape()),
        ]
        report = Signal(Ordered(), reset_less=True)
        m.d.sync += reports.i.valid.eq(takes)
        m.d.comb += reports.i.payload.eq(report)
        self._report(m, report, due)

        # Round robin over the three sources: the source that was just served comes last.
        message, event = Signal(Ordered()), Signal(Ordered())
        ordered = order.o.payload.item
        m.d.comb += [
            *of_message(message.entry, ordered),
            message.message.eq(1),
            message.last.eq(ordered.complete),
            message.found.eq(order.o.payload.found),
            event.entry.kind.eq(Kind.SESSION),
            event.entry.status.eq(self.events.payload.reason),
            event.entry.stream.eq(self.events.payload.stream),
            event.entry.tag.eq(self.events.payload.state),
        ]
        with m.If(ordered.control):
            m.d.comb += [
                message.eq(0),
                message.entry.kind.eq(Kind.CONTROL),
                message.entry.stream.eq(ordered.stream),
                message.entry.tag.eq(ordered.tag),
            ]
        sources = [(reports.o, reports.o.payload), (order.o, message), (self.events, event)]
        turns = Signal(range(3))
        m.d.comb += skid.i.valid.eq(Cat(source.valid for source, _ in sources).any())
        with m.Switch(turns):
            for first in range(3):
                with m.Case(first):
                    for position in range(3):
                        source, entry = sources[(first + position) % 3]
                        with m.If(source.valid) if not position else m.Elif(source.valid):
                            m.d.comb += [
                                source.ready.eq(skid.i.ready), skid.i.payload.eq(entry)]
                            with m.If(skid.i.ready):
                                m.d.sync += turns.eq((first + position + 1) % 3)

        # A record leaves a block in fewer than 31 cycles, and then counts as a move again.
        moves = Signal()
        recent = Signal(range(32))
        m.d.sync += moves.eq(
            takes | (self.ordered.valid & self.ordered.ready)
            | (self.entries.valid & self.entries.ready))
        m.d.sync += self.passed.eq(reports.o.valid & reports.o.ready)
        with m.If(moves):
            m.d.sync += recent.eq(-1)
        with m.Elif(recent.any()):
            m.d.sync += recent.eq(recent - 1)
        m.d.comb += self.busy.eq(recent.any())
        return m

    @property
    def _sctp(self):
        """True if the record that is due comes from SCTP."""
        return self.due.payload.sctp if self.ordered_too else C(1)

    def _report(self, m, report, due):
        """Makes the entry of a message of MPA, or of a chunk or packet, one cycle later."""
        taken = Mux(
            due.failed, ChunkStatus.NOT_PLACED,
            Mux(due.placed | due.control, ChunkStatus.TAKEN, ChunkStatus.DROPPED))
        m.d.sync += report.eq(0)
        with m.If(~self._sctp):
            m.d.sync += [
                *of_message(report.entry, due),
                report.message.eq(1),
                report.last.eq(due.complete),
                *([report.found.eq(due.found)] if self.ordered_too else []),
            ]
        with m.Elif(due.packet):
            m.d.sync += [
                report.entry.kind.eq(Kind.PACKET),
                report.entry.length.eq(due.sequence),
                report.entry.cookie.eq(Cat(C(0, 16), due.association)),
            ]
        with m.Else():
            m.d.sync += [
                report.entry.kind.eq(Kind.CHUNK),
                report.entry.ends.eq(due.ends),
                report.entry.status.eq(Mux(due.status == Verdict.FRESH, taken, due.status)),
                report.entry.stream.eq(due.stream),
                report.entry.tag.eq(due.sequence),
                report.entry.length.eq(due.octets),
                report.entry.cookie.eq(Cat(due.ticket.ssn, due.association)),
            ]
