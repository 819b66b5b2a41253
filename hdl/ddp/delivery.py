"""Delivers every message whose octets are all in host memory, by writing its completion."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiWrite
from ..dma.burst import Done
from ..lib.blockram import BlockRam
from ..lib.stream import Backlog, Skid, Stage, Store
from .entry import MESSAGE, CompletionEntry, of_message
from .item import Ticket, Verdict
from .precedence import Found, Ordered, Precedence
from .queues import CompletionQueues, sent_host
from .room import queue_host

__all__ = ["Delivery", "Due", "Failure", "Record"]

QUEUE = 16


class Record(data.StructLayout):
    """An accepted segment that Delivery needs: a message's last, or one that Precedence needs.

    Members
    -------
    tagged : 1
    stream : stream_bits
    qn : 2
    tag : 32
        STag, or MSN of an untagged message.
    rsvdulp : 40
        First octet of the wire lowest; 8 bits of a tagged message.
        RsvdULP, the first octet on the wire lowest; 8 bits for a tagged message.
    length : 32
        Octets of an untagged message. Of a tagged one: octets of the segment, and after
        :class:`~.precedence.Overtaking` octets of the message's span.
    cookie : 32
        Cookie of an untagged message's buffer. Of a tagged message: the lower bits of the TO at
        which the segment begins, and after Overtaking of the TO at which the span begins.
    count : 16
        Placements that write to the bus, up to and including this message, modulo 2**16.
    complete : 1
        The segment is the last one of its message and passed the checks.

    With ``ordered`` also:

    found : Found
        Result of :class:`~.precedence.Overtaking`.

    With ``unordered`` also:

    sctp, packet, control, ends : 1
        The record is of an item; of the end of a packet; of a control message; of a packet's last
        chunk.
    placed : 1
        The record is of a segment that passed the checks.
    status, ticket, association, sequence
        Those of :class:`~.item.Admitted`.
    octets : 16
        Octets placed.
    """

    def __init__(self, config, *, ordered=True, unordered=False):
        super().__init__({**self._message(config, ordered, unordered), "count": 16})

    @staticmethod
    def _message(config, ordered, unordered):
        more = {**MESSAGE, "stream": config.stream_bits, "complete": 1}
        if ordered:
            more |= {"found": Found()}
        if unordered:
            more |= {
                "sctp": 1, "packet": 1, "control": 1, "ends": 1, "placed": 1,
                "status": Verdict, "ticket": Ticket(config.streams),
                "association": range(config.associations), "sequence": 32, "octets": 16,
            }
        return more

    @classmethod
    def kept(cls, config, *, ordered=True, unordered=False):
        """Returns the layout of a record that is due; ``failed``: its stream had a bus error."""
        return data.StructLayout({**cls._message(config, ordered, unordered), "failed": 1})


class Failure(data.StructLayout):
    """A ``stream`` (16) in error: it has ``overrun`` (1) its completion queue; otherwise the bus
    refused a write, or Precedence had no room.
    """

    def __init__(self):
        super().__init__({"stream": 16, "overrun": 1})


class Due(wiring.Component):
    """Determines in order which messages have all their octets in host memory.

    A message is due once as many placements are retired as its ``count`` says. This is decided
    when it becomes true, not when the message is written: one that waits for the bus would
    otherwise see ``retired`` wrap around.

    Latency: 4 cycles from the last ``done`` to ``o``; 8 from a message to ``o`` if its last
    ``done`` came before. Throughput: one message and one ``done`` per cycle; a ``done`` with an
    error and a ``clear`` cost a cycle each. Reset: empty; the states of failed streams stay.
    Errors: none.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature({stream: 16, count: 16}, always_ready=True))
        A message, fewer than ``config.backlog`` and fewer than 2**15 placements ahead of
        ``retired``.
    done : In(stream.Signature(Done(config)))
        A placement is retired. With ``error``, its stream has failed.
    clear : In(stream.Signature(16, always_ready=True))
        A stream that restarts and counts as not failed.
    o : Out(stream.Signature(1, always_ready=True))
        The next message is due; payload 1 if its stream has failed.
    failed : Out(stream.Signature(16))
        The stream of each ``done`` with ``error``.
    retired : Out(16)
        Placements retired, modulo 2**16.
    busy : Out(1)
        A message waits. May be low for up to 8 cycles after ``i``.
    """

    def __init__(self, config):
        self.config = config
        self.shape = data.StructLayout({"stream": 16, "count": 16})
        super().__init__({
            "i": In(stream.Signature(self.shape, always_ready=True)),
            "done": In(stream.Signature(Done(config))),
            "clear": In(stream.Signature(16, always_ready=True)),
            "o": Out(stream.Signature(1, always_ready=True)),
            "failed": Out(stream.Signature(16)),
            "retired": Out(16),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.waiting = waiting = Backlog(
            self.shape, depth=self.config.backlog, relaxed=self.config.relaxed)
        m.submodules.failed = failed = Store(16, depth=QUEUE)
        m.submodules.stage = stage = Stage(16)
        m.submodules.states = states = BlockRam(1, self.config.streams)
        write = states.write
        clear_1 = Signal.like(self.clear.p)
        clears = Signal()
        head = Signal(self.shape)
        some, due = Signal(), Signal()
        leaves, moves = Signal(), Signal()
        left = Signal(2)
        retires, fails = Signal(), Signal()

        # When a placement is retired, its stream's state is written one cycle before the first
        # message that becomes due can look it up. Clearing a stream has precedence.
        wiring.connect(m, wiring.flipped(self.i), waiting.i)
        wiring.connect(m, failed.o, stage.i)
        wiring.connect(m, stage.o, wiring.flipped(self.failed))
        # Low in the cycle in which ``clears`` is high.
        m.d.sync += self.done.ready.eq(failed.half & ~self.clear.valid)
        m.d.comb += [
            retires.eq(self.done.valid & self.done.ready),
            fails.eq(retires & self.done.payload.error),
        ]
        m.d.sync += [
            clears.eq(self.clear.valid),
            clear_1.eq(self.clear.payload),
            failed.i.valid.eq(fails),
            failed.i.payload.eq(self.done.payload.stream),
            write.valid.eq(clears | fails),
            write.payload.data.eq(~clears),
            write.payload.address.eq(Mux(clears, clear_1, self.done.payload.stream)),
        ]
        with m.If(retires):
            m.d.sync += self.retired.eq(self.retired + 1)

        # In each cycle, the message at the head and the one after it are both compared; which of
        # the two results counts is known no earlier than they are. A look-up never coincides with a
        # write.
        def reached(count):
            return ~(self.retired - count)[15]

        m.d.comb += [
            leaves.eq(some & due & ~write.valid),
            moves.eq(~some | leaves),
            waiting.o.ready.eq(moves),
            states.address[0].eq(head.stream),
        ]
        m.d.sync += due.eq(Mux(moves, reached(waiting.o.payload.count), reached(head.count)))
        with m.If(moves):
            m.d.sync += some.eq(waiting.o.valid)
        with m.If(moves & waiting.o.valid):
            m.d.sync += head.eq(waiting.o.payload)

        m.d.sync += left.eq(Cat(leaves, left))
        m.d.comb += [
            self.o.valid.eq(left[1]),
            self.o.payload.eq(states.data[0]),
            self.busy.eq(waiting.o.valid | some | left.any()),
        ]
        return m


class Delivery(wiring.Component):
    """Turns messages into completions in host memory (RFC 5041 section 5.4).

    A message waits in the backlog until all placements up to its ``count`` are retired, and every
    earlier message of its stream has left (see :class:`~.precedence.Precedence`). Then its
    completion is written, once, in the order of ``records``, or dropped, if its queue has no room
    (see :class:`~.queues.CompletionQueues`). Nothing waits for a queue.

    Latency: 25 cycles from the last ``done`` to ``bus.w``, 27 to ``bus.aw``.
    Throughput: one completion every max(1, 256 / width) cycles; one ``done`` per cycle.
    Reset: empty; the failed streams stay until ``clear``.
    Errors: a ``done`` with ``error`` fails its stream: messages of the stream that become due
    from then on have the status NOT_PLACED.

    Parameters
    ----------
    config : RnicConfig
    ordered : bool
        True if messages come whose segments are in the order of the sender.
    unordered : bool
        True if messages come whose segments are in any order. Then another block puts records that
        are due in order: they leave by ``due``, and entries of queues come back by ``entries``.

    Members
    -------
    records : In(stream.Signature(Record(config), always_ready=True))
        ``count`` is less than 2**15 ahead of ``retired``.
    half : Out(1)
        More than half of the backlog, of ``config.backlog`` records, is free.
    done : In(stream.Signature(Done(config)))
        Placements that wrote to the bus, retired in order. Waits only for ``failed`` and ``clear``.
    clear : In(stream.Signature(16, always_ready=True))
        A stream that restarts and counts as not failed. No record of its past may be under way:
        the host waits for the end of REVOKE_STREAM, and so for :class:`~.fence.RecordFence`.
    failed : Out(stream.Signature(Failure()))
        The stream of each ``done`` with ``error``, each that Precedence reports, and each that has
        overrun its queue.
    retired : Out(16)
    bus : Out(AxiWrite(width))
    host, delivered, taken, owner_room, sent
        Those of :class:`~.queues.CompletionQueues`.
    messages : Out(stream.Signature(CompletionEntry()))
    completions : In(stream.Signature(CompletionEntry()))
        With ``config.rdmap`` only: the delivered messages, and those of them that complete.
    due : Out(stream.Signature(Record.kept(config)))
        With ``unordered`` only: records that are due leave here and are not written directly.
    entries : In(stream.Signature(Ordered()))
        With ``unordered`` only: the entries to write.
    passed : Out(1)
        Without ``unordered`` only: a record enters Precedence.
    moves : Out(1)
        No entry waited between Precedence and the decision about its queue's room, and no
        ``failed``.
    busy : Out(1)
        A message waits for its octets, a completion is being written, or a queue restarts. May be
        low for up to 8 cycles while a message moves from one block to the next.
    """

    def __init__(self, config, *, ordered=True, unordered=False):
        self.config, self.unordered = config, unordered
        kinds = {"ordered": ordered, "unordered": unordered}
        self.kept = Record.kept(config, **kinds)
        super().__init__({
            "records": In(stream.Signature(Record(config, **kinds), always_ready=True)),
            "half": Out(1),
            "done": In(stream.Signature(Done(config))),
            "clear": In(stream.Signature(16, always_ready=True)),
            "failed": Out(stream.Signature(Failure())),
            "retired": Out(16),
            "bus": Out(AxiWrite(config.width)),
            "host": In(queue_host(config)),
            **({"taken": In(1), "owner_room": Out(1)} if unordered else {}),
            **({"sent": In(sent_host(config))} if config.transmit else {}),
            "delivered": Out(1),
            **({} if unordered else {"passed": Out(1)}),
            "moves": Out(1),
            "busy": Out(1),
            **({
                "messages": Out(stream.Signature(CompletionEntry())),
                "completions": In(stream.Signature(CompletionEntry())),
            } if config.rdmap else {}),
            **({
                "due": Out(stream.Signature(self.kept)),
                "entries": In(stream.Signature(Ordered())),
            } if unordered else {}),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        kept = self.kept
        names = [name for name, _ in kept if name != "failed"]
        m.submodules.due = due = Due(config)
        m.submodules.messages = messages = Backlog(
            data.StructLayout({name: kept[name].shape for name in names}), depth=config.backlog,
            relaxed=config.relaxed)
        m.submodules.failures = failures = Backlog(
            1, depth=config.backlog, relaxed=config.relaxed)
        m.submodules.skid = skid = Skid(kept, relaxed=config.relaxed)
        m.submodules.precedence = precedence = Precedence(config.streams, relaxed=config.relaxed)
        m.submodules.late = late = Skid(Failure())
        m.submodules.queues = queues = CompletionQueues(config, owned=self.unordered)
        record = self.records.payload

        # ``messages`` holds every record; the two other queues hold parts of the same records.
        wiring.connect(m, wiring.flipped(self.done), due.done)
        wiring.connect(m, wiring.flipped(self.clear), due.clear)
        wiring.connect(m, late.o, wiring.flipped(self.failed))
        if config.rdmap:
            wiring.connect(m, precedence.o, wiring.flipped(self.messages))
            wiring.connect(m, wiring.flipped(self.completions), queues.i)
        else:
            wiring.connect(m, precedence.o, queues.i)
        wiring.connect(m, due.o, failures.i)
        wiring.connect(m, queues.bus, wiring.flipped(self.bus))
        wiring.connect(m, wiring.flipped(self.host), queues.host)
        m.d.comb += [
            due.i.valid.eq(self.records.valid),
            due.i.payload.stream.eq(record.stream),
            due.i.payload.count.eq(record.count),
            messages.i.valid.eq(self.records.valid),
            *(messages.i.payload[name].eq(record[name]) for name in names),
            *(skid.i.payload[name].eq(messages.o.payload[name]) for name in names),
            skid.i.payload.failed.eq(failures.o.payload),
            skid.i.valid.eq(messages.o.valid & failures.o.valid),
            messages.o.ready.eq(failures.o.valid & skid.i.ready),
            failures.o.ready.eq(messages.o.valid & skid.i.ready),
            queues.clear.valid.eq(self.clear.valid),
            queues.clear.payload.eq(self.clear.payload),
            self.half.eq(messages.half),
            self.retired.eq(due.retired),
            *([queues.taken.eq(self.taken), self.owner_room.eq(queues.owner_room)]
              if self.unordered else []),
            self.delivered.eq(queues.delivered),
            self.busy.eq(due.busy | late.i.valid | precedence.busy | queues.busy),
        ]
        # The earlier one of these has precedence.
        free = late.i.ready
        for source in (due.failed, precedence.failed, queues.overran):
            m.d.comb += source.ready.eq(free)
            free = free & ~source.valid
        m.d.comb += late.i.valid.eq(
            due.failed.valid | precedence.failed.valid | queues.overran.valid)
        m.d.sync += self.moves.eq(
            precedence.o.ready & queues.i.ready & ~late.i.valid & ~late.o.valid)
        with m.If(due.failed.valid):
            m.d.comb += late.i.payload.stream.eq(due.failed.payload)
        with m.Elif(precedence.failed.valid):
            m.d.comb += late.i.payload.stream.eq(precedence.failed.payload)
        with m.Else():
            m.d.comb += [
                late.i.payload.stream.eq(queues.overran.payload), late.i.payload.overrun.eq(1)]
        if config.transmit:
            wiring.connect(m, wiring.flipped(self.sent), queues.sent)
        if self.unordered:
            wiring.connect(m, skid.o, wiring.flipped(self.due))
            wiring.connect(m, wiring.flipped(self.entries), precedence.i)
        else:
            ordered = precedence.i.payload
            m.d.sync += self.passed.eq(precedence.i.valid & precedence.i.ready)
            m.d.comb += [
                precedence.i.valid.eq(skid.o.valid),
                skid.o.ready.eq(precedence.i.ready),
                *of_message(ordered.entry, skid.o.payload),
                ordered.message.eq(1),
                ordered.last.eq(skid.o.payload.complete),
                ordered.found.eq(skid.o.payload.found),
            ]
        return m
