"""Bounds RDMA Reads: the number that a stream has outstanding, and the octets that their responses
may write (RFC 5040 sections 5.2 and 6.1).

The data's way::

    host ─ ords ┐
    Cutter ─ taken ─► ReadSlots ─ expected ─► ResponseCheck ─ result ─► Commit
    DeliveredReads ─ freed ┘                   ▲ segments

A Read takes a slot of its stream when its request is cut into a segment, and the slot says what the
response has to be: its sink's STag, TO and length. Responses come in the order of the requests.
With the last segment of each, ResponseCheck takes the next slot; the slot is free once the response
was delivered.
"""

from functools import partial

from amaranth import *
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..ddp.entry import CompletionEntry
from ..ddp.header import DdpHeader
from ..ddp.tagged import UlpResult
from ..lib.blockram import BlockRam, ForwardedTable, StepTable
from ..lib.delay import Delay
from ..lib.stream import Skid, Stage, Store, delayed, nibbles, plus
from ..spec import completion, ddp
from . import read_request

__all__ = ["DeliveredReads", "Expected", "ReadLimit", "ReadSlots", "ResponseCheck", "Sink", "Taken",
           "read_ports"]

QUEUE = 16


class Sink(data.StructLayout):
    """The sink of a Read: ``stag`` (32), ``to`` (64) of its first octet, and ``length`` (32)."""

    def __init__(self):
        super().__init__({"stag": 32, "to": 64, "length": 32})


class Taken(data.StructLayout):
    """A Read of ``stream`` to ``sink`` that takes a slot."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "sink": Sink()})


class ReadLimit(data.StructLayout):
    """The ORD of ``stream``: how many Reads it may have outstanding, at most all slots."""

    def __init__(self, streams, reads):
        super().__init__({"stream": range(streams), "ord": range(reads + 1)})


class Expected(data.StructLayout):
    """The Reads that were asked for on a stream.

    Members
    -------
    stream : range(streams)
    count : range(2 * reads)
        Their number since the stream was set up, modulo twice the slots.
    bounded : 1
        Responses are compared with them.
    takes : 1, sink : Sink()
        The last one of them is new, and has this sink.
    """

    def __init__(self, streams, reads):
        super().__init__({
            "stream": range(streams), "count": range(2 * reads), "bounded": 1, "takes": 1,
            "sink": Sink()})


class _Op(enum.Enum, shape=3):
    """A step that changes the account of a stream."""

    CLEAR = 0  #: the stream was set up anew
    TAKE = 1  #: a Read takes a slot
    SET = 2  #: the host writes its ORD
    FREE = 3  #: a response was delivered
    STOP = 4  #: the stream was disabled


class _Account(data.StructLayout):
    """The slots of a stream.

    Members
    -------
    bounded : 1
        Its ORD was written since the stream was set up; otherwise it has no bound.
    stopped : 1
        The stream was disabled since then: its messages wait for no Read any more.
    ord, used : range(reads + 1)
        Slots that its Reads may take, and that they have taken.
    count : range(2 * reads)
        As in :class:`Expected`.
    """

    def __init__(self, reads):
        super().__init__({
            "bounded": 1, "stopped": 1, "ord": range(reads + 1), "used": range(reads + 1),
            "count": range(2 * reads)})


class _Room(data.StructLayout):
    """The ``slots`` that the Reads of a turn may take, if they are ``bounded`` (1), and whether its
    stream has no Read outstanding: ``idle`` (1).
    """

    def __init__(self, reads):
        super().__init__({"bounded": 1, "slots": range(reads + 1), "idle": 1})


def read_ports(streams, reads):
    """Returns the members of :class:`ReadSlots` that do not concern the turn; none without
    ``reads``.
    """
    number = range(streams)
    return {
        "cleared": In(stream.Signature(number, always_ready=True)),
        "stopped": In(stream.Signature(number, always_ready=True)),
        "ords": In(stream.Signature(ReadLimit(streams, reads))),
        "freed": In(stream.Signature(number)),
        "expected": Out(stream.Signature(Expected(streams, reads), always_ready=True)),
        "wake": Out(stream.Signature(number)),
        "reading": Out(1),
    } if reads else {}


class ReadSlots(wiring.Component):
    """Keeps the slots of each stream's outstanding Reads, as many as its ORD.

    A look-up in each turn of a stream says how many slots are free then. The turn may take these,
    and no other one of the stream begins before that. A slot that becomes free, and a new ORD, wake
    the stream, after the look-up can see them. So no Read waits for a slot that is free. A stream
    that is disabled is woken, too: its messages wait for nothing then, and fail.

    Latency: 4 cycles from ``look`` to ``room``; up to 8 from ``taken`` to ``expected``; 4 from a
    step to a look-up that sees it. Throughput: a step in 2 cycles; a Read that takes a slot comes
    first. Reset: the accounts stay. Errors: none.

    Parameters
    ----------
    streams : int
    reads : int
        Slots of each stream, a power of two.

    Members
    -------
    cleared : In(stream.Signature(range(streams), always_ready=True))
        A stream that was set up anew, and has no bound until ``ords``. At most one in 8 cycles.
    stopped : In(stream.Signature(range(streams), always_ready=True))
        A stream that was disabled. At most one in 8 cycles.
    ords : In(stream.Signature(ReadLimit(streams, reads)))
    taken : In(stream.Signature(Taken(streams), always_ready=True))
        A Read of the turn, if that has ``slots`` for it or is not ``bounded``. At most one in 2
        cycles.
    freed : In(stream.Signature(range(streams)))
        A stream of which a Read Response was delivered.
    look : In(stream.Signature(range(streams), always_ready=True))
        The stream of a turn that is about to begin, 8 cycles or more after the last Read of its
        last turn; at most 16 of them.
    begins : In(1)
        The turn begins, with ``room`` : Out(_Room(reads)).
    expected : Out(stream.Signature(Expected(streams, reads), always_ready=True))
    wake : Out(stream.Signature(range(streams)))
    reading : Out(1)
        A step is under way, or one waits.
    """

    def __init__(self, streams, reads):
        self.streams, self.reads = streams, reads
        super().__init__({
            **read_ports(streams, reads),
            "taken": In(stream.Signature(Taken(streams), always_ready=True)),
            "look": In(stream.Signature(range(streams), always_ready=True)),
            "begins": In(1),
            "room": Out(_Room(reads)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.accounts = accounts = StepTable(
            _Account(self.reads), self.streams, reads=1)
        m.submodules.takes = takes = Store(Taken(self.streams), depth=4)
        m.submodules.wakes = wakes = Store(range(self.streams), depth=QUEUE)
        m.submodules.turns = turns = Store(_Room(self.reads), depth=QUEUE)
        m.submodules.turn = turn = Stage(_Room(self.reads))
        wiring.connect(m, turns.o, turn.i)
        wiring.connect(m, wakes.o, wiring.flipped(self.wake))
        wiring.connect(m, wiring.flipped(self.taken), takes.i)

        # A Read is cut in 2 cycles, so that its store never has many; other steps wait for it.
        clears, cleared = Signal(), Signal(range(self.streams))
        stops, stopped = Signal(), Signal(range(self.streams))
        op, step, free = Signal(_Op), accounts.step, Signal()
        first = Signal(4)  # the next step is one of these
        others = clears | takes.o.valid | stops
        m.d.sync += free.eq(~step.valid)
        with m.If(free & first[0]):
            m.d.sync += clears.eq(0)
        with m.If(free & first[2]):
            m.d.sync += stops.eq(0)
        with m.If(self.cleared.valid):
            m.d.sync += [clears.eq(1), cleared.eq(self.cleared.payload)]
        with m.If(self.stopped.valid):
            m.d.sync += [stops.eq(1), stopped.eq(self.stopped.payload)]
        m.d.comb += [
            first.eq(Cat(clears, takes.o.valid & ~clears, stops & ~clears & ~takes.o.valid,
                         self.ords.valid & wakes.half & ~others)),
            takes.o.ready.eq(free & ~clears),
            self.ords.ready.eq(free & first[3]),
            self.freed.ready.eq(free & wakes.half & ~first.any()),
            step.valid.eq(free & (first.any() | (self.freed.valid & wakes.half))),
            op.eq(_Op.FREE),
            step.payload.eq(self.freed.payload),
        ]
        for bit, (kind, number) in enumerate((
            (_Op.CLEAR, cleared), (_Op.TAKE, takes.o.payload.stream), (_Op.STOP, stopped),
            (_Op.SET, self.ords.payload.stream),
        )):
            with m.If(first[bit]):
                m.d.comb += [op.eq(kind), step.payload.eq(number)]
        self._step(m, accounts, delayed(m, 3, op, "op"), wakes)

        account = accounts.data[0]
        came = Signal(3)
        room = turns.i.payload
        m.d.comb += [
            accounts.address[0].eq(self.look.payload),
            turns.i.valid.eq(came[2]),
            turn.o.ready.eq(self.begins),
            self.room.eq(turn.o.payload),
            self.reading.eq(clears | stops | takes.o.valid | self.freed.valid | wakes.o.valid
                         | delayed(m, 1, step.valid, "began") | accounts.steps),
        ]
        m.d.sync += [
            came.eq(Cat(self.look.valid, came)),
            room.bounded.eq(account.bounded & ~account.stopped),
            room.slots.eq(Mux(account.ord > account.used, account.ord - account.used, 0)),
            room.idle.eq(~account.used.any()),
        ]
        return m

    def _step(self, m, accounts, op, wakes):
        """Ends the step ``op`` of three cycles ago."""
        found, becomes, expected = accounts.found, accounts.becomes, self.expected.payload
        counts = Signal()
        number = delayed(m, 3, accounts.step.payload, "number")
        ord = delayed(m, 3, self.ords.payload.ord, "ord")
        m.d.comb += [
            becomes.eq(found),
            counts.eq(found.bounded & ~found.stopped & (op == _Op.TAKE)),
            expected.stream.eq(number),
            expected.count.eq(becomes.count),
            expected.bounded.eq(becomes.bounded),
            expected.takes.eq(counts),
            expected.sink.eq(delayed(m, 3, m.submodules.takes.o.payload.sink, "sink")),
            self.expected.valid.eq(accounts.steps & (op != _Op.FREE)),
            wakes.i.valid.eq(accounts.steps & (
                (op == _Op.SET) | (op == _Op.FREE) | (op == _Op.STOP))),
            wakes.i.payload.eq(number),
        ]
        with m.Switch(op):
            with m.Case(_Op.CLEAR):
                m.d.comb += becomes.eq(0)
            with m.Case(_Op.TAKE):
                m.d.comb += [
                    becomes.used.eq(found.used + counts), becomes.count.eq(found.count + counts)]
            with m.Case(_Op.SET):
                m.d.comb += [
                    becomes.bounded.eq(1),
                    becomes.ord.eq(ord),
                ]
            with m.Case(_Op.FREE):
                m.d.comb += becomes.used.eq(found.used - found.used.any())
            with m.Case(_Op.STOP):
                m.d.comb += becomes.stopped.eq(1)


class DeliveredReads(wiring.Component):
    """Watches the messages that are delivered for Read Responses; all of them pass.

    Latency: 1 cycle. Throughput: one entry per cycle. Reset: empty. Errors: none.

    Members
    -------
    i : In(stream.Signature(CompletionEntry()))
    o : Out(stream.Signature(CompletionEntry()))
    freed : Out(stream.Signature(range(streams)))
        The stream of each Read Response.
    busy : Out(1)
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "i": In(stream.Signature(CompletionEntry())),
            "o": Out(stream.Signature(CompletionEntry())),
            "freed": Out(stream.Signature(range(streams))),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.stage = stage = Skid(CompletionEntry())
        m.submodules.ended = ended = Store(range(self.streams), depth=QUEUE)
        m.submodules.frees = frees = Skid(range(self.streams))
        wiring.connect(m, stage.o, wiring.flipped(self.o))
        wiring.connect(m, ended.o, frees.i)
        wiring.connect(m, frees.o, wiring.flipped(self.freed))
        entry = self.i.payload
        m.d.sync += [
            ended.i.valid.eq(
                self.i.valid & self.i.ready & entry.tagged
                & (entry.kind == completion.Kind.MESSAGE)
                & (entry.status == completion.Status.DELIVERED)
                & (entry.rsvdulp[:4] == read_request.RESPONSE)),
            ended.i.payload.eq(entry.stream),
        ]
        m.d.comb += [
            stage.i.valid.eq(self.i.valid & ended.half),
            stage.i.payload.eq(entry),
            self.i.ready.eq(stage.i.ready & ended.half),
            self.busy.eq(self.i.valid | stage.o.valid | ended.o.valid | frees.o.valid),
        ]
        return m


class _Progress(data.StructLayout):
    """The progress of a stream's responses.

    ``count``: those whose last segment came, modulo twice the slots. ``begun`` (1): segments of the
    one after these have come, the last of which ends at ``next``, the lower 32 bits of a TO.
    """

    def __init__(self, reads):
        super().__init__({"count": range(2 * reads), "begun": 1, "next": 32})


class ResponseCheck(wiring.Component):
    """Validates segments of Read Responses against the oldest Read whose response has not ended.

    On a stream that is bounded, a response must have been asked for, and each of its segments must
    name the STag of the Read's sink (otherwise the error is
    :data:`~..spec.ddp.UNEXPECTED_RESPONSE`), begin where the segment before it ended (the first
    one: at the TO of the sink), and have no octet beyond the length; and its last segment must end
    there (otherwise :data:`~..spec.ddp.WRONG_RESPONSE`). STag and TO of a segment without octets
    are not compared (RFC 5041 section 5.2). All other segments pass.

    The progress counts each segment before the segment is placed. If the segment is refused, its
    stream is in error, and takes no segment until the host has set it up again.

    Latency: 12 cycles. Throughput: one segment per cycle. Reset: the tables stay. Errors: reported
    in ``UlpResult``.

    Parameters
    ----------
    streams, reads : int
        As in :class:`ReadSlots`.

    Members
    -------
    i : In(stream.Signature({header: DdpHeader, control: 8, stream: 16, enable: 1}, always_ready))
        ``control``: the first octet of RsvdULP. Segments that come in any order must not have
        ``enable``.
    expected : In(stream.Signature(Expected(streams, reads), always_ready=True))
    cleared : In(stream.Signature(range(streams), always_ready=True))
        A stream that is set up anew, while no segment is in the checks.
    o : Out(stream.Signature(UlpResult(), always_ready=True))
    """

    LATENCY = 12
    #: Cycles to the progress of a segment's stream.
    FOUND = 4

    def __init__(self, streams, reads):
        self.streams, self.reads = streams, reads
        super().__init__({
            "i": In(stream.Signature(data.StructLayout({
                "header": DdpHeader(), "control": 8, "stream": 16, "enable": 1}),
                always_ready=True)),
            "expected": In(stream.Signature(Expected(streams, reads), always_ready=True)),
            "cleared": In(stream.Signature(range(streams), always_ready=True)),
            "o": Out(stream.Signature(UlpResult(), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        after = partial(delayed, m)
        header, bits = self.i.payload.header, exact_log2(self.streams)
        response = Signal()
        m.d.sync += response.eq(
            self.i.valid & self.i.payload.enable & header.tagged
            & (self.i.payload.control[:4] == read_request.RESPONSE))
        number, progress = self._follow(m, response, after(1, self.i.payload.stream[:bits], "near"))
        some, bounded, read = self._look_up(m, number, progress.count)

        # The slot is there in a register at 7. The offset in the sink where the segment has to
        # begin, and whether it does, in a cycle for each half; then the octets after it.
        names = ("stag", "to", "length")
        m.submodules.along = along = Delay(
            data.StructLayout({name: header[name].shape() for name in names}), 7)
        m.d.comb += [along.i[name].eq(header[name]) for name in names]
        to, length = along.o.to, along.o.length
        starts, offset, no_borrow = Signal(32), Signal(32), Signal()
        low, same = Signal(8), Signal(8)
        late = after(3, progress, "late")
        m.d.comb += starts.eq(Mux(late.begun, late.next, read.to[:32]))
        m.d.sync += [
            Cat(offset, no_borrow).eq(plus(starts, ~read.to[:32], C(1, 1))),
            low.eq(nibbles(starts, to[:32])),
            same.eq(nibbles(read.stag, along.o.stag)),
        ]
        high, end = Signal(32), Signal(33)
        m.d.sync += [
            high.eq(plus(after(1, to[32:], "to_8"), ~after(1, read.to[32:], "base_8"), no_borrow)),
            end.eq(offset + after(1, length, "length_8")),
        ]
        rest, beyond, far = Signal(signed(34)), Signal(), Signal(4)
        m.d.sync += [
            rest.eq(after(2, read.length, "length_9") - end),
            far.eq(Cat(high.word_select(k, 8).any() for k in range(4))),
        ]
        left = Signal(4)
        m.d.sync += [
            beyond.eq(rest[-1]),
            left.eq(Cat(rest.word_select(k, 8).any() for k in range(4))),
        ]

        octets, last = after(11, header.length.any(), "octets"), after(11, header.last, "last")
        stray = ~after(4, some, "some") | (octets & ~after(3, same.all(), "same_stag"))
        wrong = (beyond | (last & left.any())
                 | (octets & ~(after(3, low.all(), "same_low") & ~after(1, far.any(), "far"))))
        checked, result = after(4, bounded, "bounded") & after(10, response, "response"), Signal(13)
        m.d.comb += self.o.payload.eq(result)
        m.d.sync += result.eq(0)
        for condition, error in (
            (wrong, ddp.WRONG_RESPONSE), (stray, ddp.UNEXPECTED_RESPONSE),
        ):
            with m.If(checked & condition):
                m.d.sync += result.eq(1 | error.type << 1 | error.code << 5)
        m.d.comb += self.o.valid.eq(after(self.LATENCY, self.i.valid, "came"))
        return m

    def _follow(self, m, response, number):
        """Looks up the progress of the stream ``number`` at 1, and changes it for a ``response``.

        Returns both at ``FOUND``, before the change.
        """
        shape = _Progress(self.reads)
        m.submodules.progress = table = ForwardedTable(shape, self.streams)
        clears = delayed(m, 1, self.cleared.valid, "clears")
        index = Mux(clears, delayed(m, 1, self.cleared.payload, "cleared"), number)
        header = self.i.payload.header
        index_2 = delayed(m, 1, index, "index")
        index_3 = delayed(m, 1, index_2, "index_2")
        index_4 = delayed(m, 1, index_3, "index_3")
        clears_3 = delayed(m, 2, clears, "clears_1")
        last, octets = delayed(m, 3, header.last, "ends"), delayed(m, 3, header.length.any(), "has")
        end = delayed(m, 2, delayed(m, 1, header.to[:32] + header.length, "end")[:32], "end_1")
        came, same, same_but_one = Signal(3), Signal(), Signal()
        now, becomes = Signal(shape), Signal(shape)
        latest, before, found = (
            Signal(shape, name=name, reset_less=True) for name in ("latest", "before", "found"))
        m.d.sync += [
            came.eq(Cat(response | clears, came)),
            latest.eq(becomes),
            before.eq(latest),
            found.eq(now),
            # Whether the change before, or the one before that, is of the same stream.
            same.eq((index_2 == index_3) & came[1]),
            same_but_one.eq((index_2 == index_4) & came[2]),
        ]
        m.d.comb += [
            table.address[0].eq(index),
            now.eq(Mux(same, latest, Mux(same_but_one, before, table.data[0]))),
            becomes.eq(now),
            table.write.valid.eq(came[2]),
            table.write.payload.address.eq(index_4),
            table.write.payload.data.eq(latest),
        ]
        with m.If(clears_3):
            m.d.comb += becomes.eq(0)
        with m.Elif(last):
            m.d.comb += [becomes.count.eq(now.count + 1), becomes.begun.eq(0)]
        with m.Elif(octets):
            m.d.comb += [becomes.begun.eq(1), becomes.next.eq(end)]
        return index_4, found

    def _look_up(self, m, number, count):
        """Looks up at ``FOUND`` the Read that has the number ``count`` on a stream.

        Returns in registers, 3 cycles later, whether it was asked for, whether the stream is
        bounded, and the Read's sink.
        """
        known = data.StructLayout({"count": range(2 * self.reads), "bounded": 1})
        m.submodules.sinks = sinks = BlockRam(Sink(), self.streams * self.reads)
        m.submodules.known = table = ForwardedTable(known, self.streams)
        bits = exact_log2(self.reads)
        asks = delayed(m, 1, self.expected.valid, "asks")
        expected = delayed(m, 1, self.expected.payload, "expected")
        some, bounded, sink = Signal(), Signal(), Signal(Sink(), reset_less=True)
        written, there = table.write, table.data[0]
        m.d.comb += [
            sinks.address[0].eq(Cat(count[:bits], number)),
            sinks.write.valid.eq(asks & expected.takes),
            sinks.write.payload.address.eq(Cat((expected.count - 1)[:bits], expected.stream)),
            sinks.write.payload.data.eq(expected.sink),
            table.address[0].eq(number),
            # A sink is written before a response can see that it was asked for.
            written.valid.eq(delayed(m, 1, asks, "asked")),
            written.payload.address.eq(delayed(m, 1, expected.stream, "asker")),
            written.payload.data.eq(
                delayed(m, 1, Cat(expected.count, expected.bounded), "count_of")),
        ]
        m.d.sync += [
            sink.eq(sinks.data[0]),
            some.eq(there.count != delayed(m, 2, count, "count")),
            bounded.eq(there.bounded),
        ]
        return some, bounded, sink
