"""Delivers every message whose octets are all in host memory, by writing its completion."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiWrite, Response
from ..dma.burst import Done
from ..lib.blockram import BlockRam
from ..lib.credits import Credits
from ..lib.stream import Backlog, Skid, Stage, Store, delayed
from ..spec import completion
from .entry import MESSAGE, CompletionEntry, of_message
from .item import Ticket, Verdict
from .precedence import Found, Ordered, Precedence

__all__ = ["Delivery", "Due", "Record", "Ring"]

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


class Due(wiring.Component):
    """Determines in order which messages have all their octets in host memory.

    A message is due once as many placements are retired as its ``count`` says. This is decided
    when it becomes true, not when the ring has room: a message that waits for the ring would
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


class Ring(wiring.Component):
    """Writes completions to the ring in host memory, each as one burst of its 32 octets.

    ``enable`` starts the ring at its first entry, with phase 1 and ``producer`` 0; the host writes
    ``consumer`` 0 before that. Once ``enable`` is low and all responses have arrived, ``producer``
    returns to 0, and the ring's memory is no longer written.

    Latency: 4 cycles from ``i`` to ``bus.w``, 5 to ``bus.aw``; 2 from the response to
    ``producer``. Throughput: one completion every max(1, 256 / width) cycles, if the response
    arrives within the time of ``config.outstanding`` completions. Reset: disabled. Errors: a
    response other than OKAY sets ``failed``; from then on ``producer`` stays and no completion is
    taken, until the ring is disabled.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature(CompletionEntry()))
        ``phase`` is filled in here.
    bus : Out(AxiWrite(width))
    enable : In(1)
    base : In(64)
        Address of the first entry, a multiple of 32; constant while ``enable`` is high.
    size : In(4)
        Base-2 logarithm of the number of entries; constant while ``enable`` is high.
    consumer : In(16)
        Completions that the host has taken, modulo 2**16. Never past ``issued``.
    issued : Out(16)
        Completions whose writing has begun, modulo 2**16.
    producer : Out(16)
        Completions that the bus has answered with OKAY, modulo 2**16.
    delivered : Out(1)
        ``producer`` has risen by one.
    failed : Out(1)
        The bus refused a completion.
    busy : Out(1)
        A completion is being written, or can be.
    """

    def __init__(self, config):
        self.config = config
        # ``issued``, ``producer`` and ``failed`` have no reset: the restart of the ring sets them,
        # also after a reset.
        self.counts = [Signal(16, reset_less=True), Signal(16, reset_less=True),
                       Signal(reset_less=True)]
        super().__init__({
            "i": In(stream.Signature(CompletionEntry())),
            "bus": Out(AxiWrite(config.width)),
            "enable": In(1),
            "base": In(64),
            "size": In(4),
            "consumer": In(16),
            "issued": Out(16),
            "producer": Out(16),
            "delivered": Out(1),
            "failed": Out(1),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.credits = credits = Credits(self.config.outstanding)
        issued, producer, failed = self.counts
        m.d.comb += [
            self.issued.eq(issued), self.producer.eq(producer), self.failed.eq(failed)]
        started, allowed, room = Signal(), Signal(), Signal()
        issue = Signal()
        good, bad = Signal(), Signal()
        # Masks for ``issued``: the bits of an entry's index, and the one that gives the phase.
        mask, lap = Signal(15), Signal(16)
        with m.If(self.enable & ~started):
            m.d.sync += [
                mask.eq(Cat(self.size > k for k in range(15))),
                lap.eq(Cat(self.size == k for k in range(16))),
            ]

        # An entry is free if ``issued`` is at or past ``consumer`` by less than the ring's size.
        # The answers with and without ``issue`` are both computed in each cycle; only where an
        # entry is one beat can the next one be issued in the cycle after. A change of ``consumer``
        # takes effect later, which is safe: the ring looks fuller than it is.
        one_beat = self.config.width >= 8 * completion.OCTETS
        final, less = Signal(16), Signal(16)
        sane = Signal()

        def fits(bound):
            return ~(bound - self.issued)[15]

        m.d.sync += [
            final.eq(self.consumer + mask),
            less.eq(final - 1),
            sane.eq(~(self.issued - self.consumer)[15]),
            allowed.eq(self.enable & started & sane & ~self.failed),
            room.eq(allowed & (Mux(issue, fits(less), fits(final)) if one_beat else fits(final))),
        ]
        with m.If(issue):
            m.d.sync += issued.eq(issued + 1)

        # Responses.
        m.d.comb += self.bus.b.ready.eq(1)
        m.d.sync += [
            good.eq(self.bus.b.valid & (self.bus.b.payload.resp == Response.OKAY.value)),
            bad.eq(self.bus.b.valid & (self.bus.b.payload.resp != Response.OKAY.value)),
            self.delivered.eq(good & ~self.failed),
        ]
        with m.If(bad):
            m.d.sync += failed.eq(1)
        with m.If(good & ~failed):
            m.d.sync += producer.eq(producer + 1)
        m.d.comb += [
            credits.take.eq(issue), credits.give.eq(delayed(m, 1, self.bus.b.valid, "answered"))]

        # A disabled ring restarts, but only after the last response.
        restarts = Signal()
        m.d.sync += restarts.eq(~started & credits.idle & ~room)
        with m.If(~self.enable):
            m.d.sync += started.eq(0)
        with m.Elif(restarts):
            m.d.sync += started.eq(1)
        with m.If(restarts):
            m.d.sync += [issued.eq(0), producer.eq(0), failed.eq(0)]
        m.d.comb += self.busy.eq(~credits.idle | (self.i.valid & room))
        self._write(m, mask, lap, credits, go=room & credits.ok, issue=issue)
        return m

    def _write(self, m, mask, lap, credits, *, go, issue):
        """Sends a completion in beats, and its address, once one is there and ``go`` is high."""
        width = self.config.width
        beats = max(1, 8 * completion.OCTETS // width)
        bits = min(8 * completion.OCTETS, width)
        beat = data.StructLayout({"data": bits, "last": 1, "upper": 1})
        m.submodules.w_queue = w_queue = Store(beat, depth=QUEUE)
        m.submodules.w_stage = w_stage = Stage(beat)
        m.submodules.aw_queue = aw_queue = Store(64, depth=QUEUE)
        m.submodules.aw_stage = aw_stage = Stage(64)

        phase = next(field for field in completion.FIELDS if field.name == "phase")
        phase_bit = (8 * phase.octet + phase.bit) % bits
        step, first, last = Signal(), Signal(init=1), Signal(init=beats == 1)
        index = Signal(range(beats))
        m.d.comb += [
            step.eq(self.i.valid & (go | ~first)),
            issue.eq(step & first),
            # A last beat that is not also the first one needs no ``go``.
            self.i.ready.eq(last & (go | C(beats > 1))),
        ]
        if beats > 1:
            with m.If(step):
                m.d.sync += [index.eq(index + 1), first.eq(last), last.eq(index == beats - 2)]

        # The address is added up in two halves, one per cycle.
        half = 30
        step_1, step_2 = Signal(), Signal()
        first_1, first_2, first_3 = Signal(), Signal(), Signal()
        beat_1, beat_2 = Signal(beat), Signal(beat)
        entry_1, lap_1 = Signal.like(mask), Signal.like(lap)
        low_2, low_3 = Signal(half + 1), Signal(half)
        high_3 = Signal(64 - 5 - half)
        entry = self.i.payload.as_value()
        m.d.sync += [
            step_1.eq(step),
            first_1.eq(issue),
            step_2.eq(step_1),
            first_2.eq(first_1),
            first_3.eq(first_2),
        ]
        m.d.sync += [
            beat_1.data.eq(entry.word_select(index, bits)),
            beat_1.last.eq(last),
            entry_1.eq(self.issued & mask),
        ]
        with m.If(issue):
            m.d.sync += lap_1.eq(self.issued & lap)
        with m.If(step_1):
            m.d.sync += [beat_2.eq(beat_1), low_2.eq(self.base[5 : 5 + half] + entry_1)]
            with m.If(beat_1.last):
                m.d.sync += beat_2.data[phase_bit].eq(~lap_1.any())
        with m.If(step_2):
            m.d.sync += [low_3.eq(low_2), high_3.eq(self.base[5 + half :] + low_2[half])]
        m.d.comb += [
            w_queue.i.valid.eq(step_2),
            w_queue.i.payload.eq(beat_2),
            w_queue.i.payload.upper.eq(low_2[0]),
            aw_queue.i.valid.eq(first_3),
            aw_queue.i.payload.eq(Cat(C(0, 5), low_3, high_3)),
            # At most half of a queue's capacity is on the way when it is last seen half free.
            credits.open.eq(w_queue.half & aw_queue.half),
        ]
        wiring.connect(m, w_queue.o, w_stage.i)
        wiring.connect(m, aw_queue.o, aw_stage.i)
        self._send(m, w_stage.o, aw_stage.o, beats)

    def _send(self, m, beat, address, beats):
        """Sends the beats of a completion, and the address of the first one, to the bus."""
        # At 512 bits a completion is half a beat.
        w, aw = self.bus.w, self.bus.aw
        sent = beat.payload
        halves = max(1, self.config.width // (8 * completion.OCTETS))
        m.d.comb += [
            w.valid.eq(beat.valid),
            beat.ready.eq(w.ready),
            w.payload.data.eq(sent.data.replicate(halves)),
            w.payload.strb.eq(~0),
            w.payload.last.eq(sent.last),
            aw.valid.eq(address.valid),
            address.ready.eq(aw.ready),
            aw.payload.addr.eq(address.payload),
            aw.payload.len.eq(beats - 1),
        ]
        if halves > 1:
            lower = ~sent.upper
            m.d.comb += [
                w.payload.strb.eq(Cat(
                    lower.replicate(completion.OCTETS), sent.upper.replicate(completion.OCTETS))),
                aw.payload.addr.eq(Cat(C(0, 6), address.payload[6:])),
            ]


class Delivery(wiring.Component):
    """Turns messages into completions in host memory (RFC 5041 section 5.4).

    A message waits in the backlog until all placements up to its ``count`` are retired, every
    earlier message of its stream has left (see :class:`~.precedence.Precedence`), and the ring is
    enabled and has a free entry. Then its completion is written, once, in the order of ``records``.

    Latency: 18 cycles from the last ``done`` to ``bus.w``, 19 to ``bus.aw``.
    Throughput: one completion every max(1, 256 / width) cycles; one ``done`` per cycle.
    Reset: empty, ring disabled; the failed streams stay until ``clear``.
    Errors: a ``done`` with ``error`` fails its stream: messages of the stream that become due
    from then on have the status NOT_PLACED. If the bus refuses a completion, the ring stops, see
    :class:`Ring`; completions that were on the bus then are lost, the rest is kept.

    Parameters
    ----------
    config : RnicConfig
    ordered : bool
        True if messages come whose segments are in the order of the sender.
    unordered : bool
        True if messages come whose segments are in any order. Then another block puts records that
        are due in order: they leave by ``due``, and entries of the ring come back by ``entries``.

    Members
    -------
    records : In(stream.Signature(Record(config), always_ready=True))
        ``count`` is less than 2**15 ahead of ``retired``.
    half : Out(1)
        More than half of the backlog, of ``config.backlog`` records, is free.
    done : In(stream.Signature(Done(config)))
        Placements that wrote to the bus, retired in order. Waits only for ``failed`` and ``clear``.
    clear : In(stream.Signature(16, always_ready=True))
        A stream that restarts and counts as not failed. No record of its past may be under way.
    failed : Out(stream.Signature(16))
        The stream of each ``done`` with ``error``, and each stream that Precedence reports.
    retired : Out(16)
    bus : Out(AxiWrite(width))
    enable, base, size, consumer, producer, delivered
        Those of :class:`Ring`.
    failed_ring : Out(1)
        The bus has refused a completion.
    due : Out(stream.Signature(Record.kept(config)))
        With ``unordered`` only: records that are due leave here and are not written directly.
    entries : In(stream.Signature(Ordered()))
        With ``unordered`` only: the entries to write.
    busy : Out(1)
        A message waits for its octets, or a completion is being written or can be. May be low
        for up to 8 cycles while a message moves from one block to the next.
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
            "failed": Out(stream.Signature(16)),
            "retired": Out(16),
            "bus": Out(AxiWrite(config.width)),
            "enable": In(1),
            "base": In(64),
            "size": In(4),
            "consumer": In(16),
            "producer": Out(16),
            "delivered": Out(1),
            "failed_ring": Out(1),
            "busy": Out(1),
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
        m.submodules.skid = skid = Skid(kept)
        m.submodules.precedence = precedence = Precedence(config.streams)
        m.submodules.late = late = Skid(16)
        m.submodules.ring = ring = Ring(config)
        record = self.records.payload

        # ``messages`` holds every record; the two other queues hold parts of the same records.
        wiring.connect(m, wiring.flipped(self.done), due.done)
        wiring.connect(m, wiring.flipped(self.clear), due.clear)
        wiring.connect(m, late.o, wiring.flipped(self.failed))
        wiring.connect(m, precedence.o, ring.i)
        wiring.connect(m, due.o, failures.i)
        wiring.connect(m, ring.bus, wiring.flipped(self.bus))
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
            late.i.valid.eq(due.failed.valid | precedence.failed.valid),
            late.i.payload.eq(
                Mux(due.failed.valid, due.failed.payload, precedence.failed.payload)),
            due.failed.ready.eq(late.i.ready),
            precedence.failed.ready.eq(late.i.ready & ~due.failed.valid),
            self.half.eq(messages.half),
            self.retired.eq(due.retired),
            *(getattr(ring, name).eq(getattr(self, name))
              for name in ("enable", "base", "size", "consumer")),
            self.producer.eq(ring.producer),
            self.delivered.eq(ring.delivered),
            self.failed_ring.eq(ring.failed),
            self.busy.eq(due.busy | late.i.valid | precedence.busy | ring.busy),
        ]
        if self.unordered:
            wiring.connect(m, skid.o, wiring.flipped(self.due))
            wiring.connect(m, wiring.flipped(self.entries), precedence.i)
        else:
            ordered = precedence.i.payload
            m.d.comb += [
                precedence.i.valid.eq(skid.o.valid),
                skid.o.ready.eq(precedence.i.ready),
                *of_message(ordered.entry, skid.o.payload),
                ordered.message.eq(1),
                ordered.last.eq(skid.o.payload.complete),
                ordered.found.eq(skid.o.payload.found),
            ]
        return m
