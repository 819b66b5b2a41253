"""Delivers no message before an earlier one of its stream (RFC 5041 section 5.4).

"At the Data Sink, DDP MUST Deliver a DDP Message if and only if all of the following are true: the
last DDP Segment of the DDP Message had its Last flag set, all of the DDP Segments of the DDP
Message have been Placed, all preceding DDP Messages have been Placed, and each preceding DDP
Message has been Delivered to the ULP."

A Data Source sends one message after the other, so that only the last segment of each message
matters. But a peer may let a segment of another message overtake::

    segments in the order of the sender   A1        B1 (last)      A2 (last)
    result of Overtaking                            A is earlier
    output of Precedence                                           A, B

:class:`Overtaking` sees every segment, with one table look-up each. :class:`Precedence` sees the
last segment of each message, each segment that overtakes, and the first segment of a stream after
its restart. These arrive in the order of segments, so that Precedence never mixes a stream's past
with its present. Precedence keeps the messages that have to wait.
"""

from functools import partial
from typing import Any, NamedTuple

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.blockram import BlockRam, storage_of
from ..lib.stream import Skid, Stage, Store, delayed, nibbles
from ..spec import completion
from ..spec.ddp import OVERTAKES, WAITING
from .entry import MESSAGE, CompletionEntry

__all__ = [
    "SLOWEST", "Found", "MessageKey", "Ordered", "Overtaking", "Precedence", "Span", "key_of"]

#: Cycles that :class:`Precedence` takes at most for an entry, while its output moves.
SLOWEST = 16 + WAITING + 3 * WAITING


class MessageKey(data.StructLayout):
    """The fields that have the same value in every segment of a message.

    Members
    -------
    tagged : 1
    tag : 32
        STag; untagged: 0.
    low : 8
        RsvdULP of a tagged message (RFC 5041 section 4.2), QN of an untagged one (section 4.3). The
        MSN need not be compared: all segments of a queue that arrive here have the next MSN.
    """

    def __init__(self):
        super().__init__({"tagged": 1, "tag": 32, "low": 8})


def key_of(message):
    """Returns the :class:`MessageKey` of a struct with the fields of ``MESSAGE``, as a value."""
    tag = Mux(message.tagged, message.tag, 0)
    return Cat(message.tagged, tag, Mux(message.tagged, message.rsvdulp[:8], message.qn)[:8])


class Found(data.StructLayout):
    """The result of :class:`Overtaking` for a segment.

    Members
    -------
    over : 1, earlier : MessageKey
        The segment overtakes a message; the key of that message.
    first : 1
        The segment is the first one after its stream's restart.
    """

    def __init__(self):
        super().__init__({"over": 1, "earlier": MessageKey(), "first": 1})


class Span(data.StructLayout):
    """The position of a message's latest run of consecutive segments.

    Members
    -------
    begin : 32
        Lower bits of the Tagged Offset of the first segment in the run.
    length : 32
        Octets from there to the end of the last segment, modulo 2**32.
    """

    def __init__(self):
        super().__init__({"begin": 32, "length": 32})


class Overtaking(wiring.Component):
    """Finds the segments that overtake an unfinished message, and the span of each message.

    A segment overtakes if the segment before it on its stream belongs to another message and was
    not the last one of that message. The span of a message begins with its first segment, and
    begins again with the segment that continues the message after a segment of another one.

    Latency: 4 cycles; 5 for ``span``. Throughput: one segment per cycle. Reset: the tables stay.
    Errors: none.

    Parameters
    ----------
    streams : int

    Members
    -------
    i : In(stream.Signature(..., always_ready=True))
        ``stream`` (16), ``key`` (MessageKey), ``last`` (1), ``to`` (32), ``length`` (32) of a
        segment, in the order of the sender; or, with ``clear`` (1), a stream that restarts.
    o : Out(Found())
        Result for the segment of 4 cycles ago.
    span : Out(Span())
        The span of its message, up to and including the segment of 5 cycles ago.
    """

    LATENCY = 4

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "i": In(stream.Signature(
                data.StructLayout({
                    "stream": 16, "key": MessageKey(), "last": 1, "to": 32, "length": 32,
                    "clear": 1}),
                always_ready=True)),
            "o": Out(Found()),
            "span": Out(Span()),
        })

    def elaborate(self, platform):
        m = Module()
        after = partial(delayed, m)
        bits = exact_log2(self.streams)
        valid = Signal(3)
        m.d.sync += valid.eq(Cat(self.i.valid, valid))
        segment = after(1, self.i.payload, "segment")
        # The table holds the last segment of each stream: its key, whether it left its message
        # open, and whether it was a restart.
        row = data.StructLayout({"open": 1, "key": MessageKey(), "first": 1})
        (before,) = storage_of(
            m, "before", row, self.streams, (self.i.payload.stream[:bits],),
            (valid[0], segment.stream[:bits], Cat(
                ~(segment.last | segment.clear), segment.key, segment.clear)))
        key = Value.cast(after(1, segment.key, "key"))
        earlier = after(1, before, "earlier_segment")
        equal = Signal(len(nibbles(key, key)))
        m.d.sync += [
            equal.eq(nibbles(key, Value.cast(before.key))),
            self.o.over.eq(valid[2] & earlier.open & ~equal.all()),
            self.o.earlier.eq(earlier.key),
            self.o.first.eq(valid[2] & earlier.first),
        ]

        # The table holds the TO at which the span of each stream's message begins. A segment that
        # begins a span uses its own TO.
        near = after(2, segment, "near")
        begins = Signal()
        m.d.comb += begins.eq(~(earlier.open & equal.all()))
        (begun,) = storage_of(
            m, "begun", unsigned(32), self.streams, (after(1, segment.stream, "number")[:bits],),
            (valid[2] & begins, near.stream[:bits], near.to))
        begin, end = Signal(32), Signal(32)
        m.d.comb += begin.eq(Mux(after(1, begins, "begins"), after(1, near.to, "to"), begun))
        m.d.sync += [
            end.eq(near.to + near.length),
            self.span.begin.eq(begin),
            self.span.length.eq(end - begin),
        ]
        return m


class Ordered(data.StructLayout):
    """An entry for the ring, and the facts that its order depends on.

    Members
    -------
    entry : CompletionEntry
        ``phase`` is 0.
    message : 1
        The entry is for a message. All other entries pass.
    last : 1
        The message's last segment arrived; otherwise the entry is not written to the ring.
    found : Found
    """

    def __init__(self):
        super().__init__({"entry": CompletionEntry(), "message": 1, "last": 1, "found": Found()})


class _Kept(data.StructLayout):
    """A message that is kept; for an unfinished one, only the key is valid."""

    def __init__(self):
        fields = {name: width for name, width in MESSAGE.items() if name != "stream"}
        super().__init__({**fields, "failed": 1, "finished": 1})


class _State(data.StructLayout):
    """The kept messages of a stream: the slot of the first one, and their number.

    ``overtakes``: how many segments have overtaken. ``full``: there were more than can be kept, or
    too many have overtaken.
    """

    def __init__(self, overtakes):
        super().__init__({
            "first": range(WAITING), "count": range(WAITING + 1),
            "overtakes": range(overtakes + 1), "full": 1})


class _Search(NamedTuple):
    """The search of the kept messages of a stream.

    ``asked``: bit k, a message was asked for k + 1 cycles ago. ``has_earlier``: the overtaken
    message is kept. ``has_own``: the entry's own is, in ``slot``. ``adds``, ``keeps``: the
    overtaken message, the entry's own, has to be added.
    """

    asked: Any
    has_earlier: Any
    has_own: Any
    slot: Any
    adds: Any
    keeps: Any


class Precedence(wiring.Component):
    """Holds each message back until every earlier message of its stream has left.

    For each stream, :data:`~..spec.ddp.WAITING` messages can be kept. If one more has to be kept,
    or one segment more than :data:`~..spec.ddp.OVERTAKES` overtakes, the stream has failed: no
    message of it leaves until a ``first`` segment arrives.

    Latency: 4 cycles. Throughput: one entry per cycle. An entry of a stream with kept messages
    takes 16 cycles and one more for each of these messages; each message that has waited takes 3.
    Reset: the kept messages stay. Errors: reported on ``failed``.

    Parameters
    ----------
    streams : int
    overtakes : int
        How many segments of a stream may overtake.
    relaxed : bool
        True for a slow clock.

    Members
    -------
    i : In(stream.Signature(Ordered()))
        Entries of a stream's messages in the order of the sender.
    o : Out(stream.Signature(CompletionEntry()))
    failed : Out(stream.Signature(16))
        A stream with more messages than can be kept, or more overtaking segments than may be.
    busy : Out(1)
        An entry is being processed. Entries that are kept, or wait for ``o``, do not count.
    """

    def __init__(self, streams, *, overtakes=OVERTAKES, relaxed=False):
        self.streams, self.overtakes, self.relaxed = streams, overtakes, relaxed
        super().__init__({
            "i": In(stream.Signature(Ordered())),
            "o": Out(stream.Signature(CompletionEntry())),
            "failed": Out(stream.Signature(16)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        bits = exact_log2(self.streams)
        # Not a BlockRam: the value is needed one cycle after the look-up.
        m.submodules.states = states = memory.Memory(
            shape=_State(self.overtakes), depth=self.streams, init=[], attrs={"no_rw_check": 1})
        m.submodules.out = out = Skid(CompletionEntry(), relaxed=self.relaxed)
        # A stream fails once until it is cleared.
        m.submodules.failures = failures = Store(16, depth=max(4, self.streams))
        m.submodules.failure = failure = Stage(16)
        wiring.connect(m, out.o, wiring.flipped(self.o))
        wiring.connect(m, failures.o, failure.i)
        wiring.connect(m, failure.o, wiring.flipped(self.failed))
        read, write = states.read_port(), states.write_port()

        # An entry goes through three registers while its stream's state is looked up. While the
        # last register's entry is processed, the state looked up for an entry after it on the same
        # stream becomes stale; ``latest`` replaces it.
        looks, looked, entry = (
            Signal(Ordered(), name=name, reset_less=True) for name in ("looks", "looked", "entry"))
        valid = Signal(3)
        moves, done = Signal(), Signal()
        found, state, latest, becomes = (
            Signal(_State(self.overtakes), name=name)
            for name in ("found", "state", "latest", "becomes"))
        # Most entries pass. One that overtakes, or whose stream has kept messages, does not; one
        # that is not the last of its message has nothing to write. Both are known with the entry.
        simple, silent = Signal(), Signal()
        latest_stream, known = Signal(bits), Signal()
        number = entry.entry.stream[:bits]
        m.d.comb += found.eq(Mux(
            known & (latest_stream == looked.entry.stream[:bits]), latest, read.data))
        with m.If(moves):
            m.d.sync += [
                valid.eq(Cat(self.i.valid, valid)),
                looks.eq(self.i.payload),
                looked.eq(looks),
                entry.eq(looked),
                state.eq(found),
                simple.eq(~looked.message
                          | ~(looked.found.over | found.count.any() | found.full)),
                silent.eq(looked.message & ~looked.last),
            ]
        m.d.comb += [
            self.i.ready.eq(moves),
            read.en.eq(moves),
            read.addr.eq(looks.entry.stream[:bits]),
        ]

        stopped, leaves = Signal(), Signal()
        kept = Signal(CompletionEntry())
        stores = Signal()
        m.d.comb += [
            moves.eq(~valid[2] | done | (simple & (out.i.ready | silent))),
            out.i.valid.eq(Mux(simple, valid[2] & ~silent, leaves)),
            out.i.payload.eq(Mux(simple, entry.entry, kept)),
        ]
        begins = valid[2] & ~simple
        # For the first segment after a restart, nothing of the stream's past counts.
        m.d.comb += stopped.eq(state.full & ~entry.found.first)
        waits = self._keep(m, begins, entry, state, stopped, kept, leaves, done, stores, becomes)
        # Registers for the wires to the queue of failures, which lies near Commit.
        fails, failing = Signal(), Signal(16, reset_less=True)
        m.d.sync += [
            fails.eq(stores & becomes.full & ~stopped), failing.eq(entry.entry.stream)]
        m.d.comb += self.busy.eq(
            (valid.any() & moves) | (begins & ~waits) | fails | self.failed.valid)

        m.d.comb += [
            write.en.eq(stores),
            write.addr.eq(number),
            write.data.eq(becomes),
            becomes.overtakes.eq(
                Mux(entry.found.first, 0, state.overtakes) + entry.found.over),
            failures.i.valid.eq(fails),
            failures.i.payload.eq(failing),
        ]
        with m.If(stores):
            m.d.sync += [latest.eq(becomes), latest_stream.eq(number), known.eq(1)]
        return m

    def _keep(self, m, begins, entry, state, stopped, kept, leaves, done, stores, becomes):
        """Processes an ``entry`` that does not pass; returns whether it waits for ``out``.

        First it reads the kept messages of the stream, to find the overtaken message and the
        entry's own. It adds the overtaken message if it is not kept yet, then the entry if it is
        the last of its message. Then all messages leave that have no unfinished one before them.
        """
        out = m.submodules.out
        number = entry.entry.stream[:exact_log2(self.streams)]
        # A message is read some cycles after it was written.
        m.submodules.messages = messages = BlockRam(_Kept(), self.streams * WAITING)
        write, held = messages.write, messages.data[0]
        first, count = Signal(range(WAITING)), Signal(range(WAITING + 1))
        index, asks = Signal(range(WAITING)), Signal()
        here = (first + index)[:len(first)]
        found = self._search(m, entry, held, asks, here)
        adds, keeps = found.adds, found.keeps
        failed = Signal()
        m.d.comb += [
            messages.address[0].eq(Cat(here, number)),
            write.payload.address.eq(Cat((first + count)[:len(first)], number)),
            becomes.first.eq(first),
            becomes.count.eq(count),
        ]
        self._show(m, kept, entry, held, failed)
        excess = self._judge(m, entry, state, count, found)
        with m.FSM():
            with m.State("Pass"):
                m.d.sync += [
                    first.eq(state.first), count.eq(Mux(entry.found.first, 0, state.count)),
                    index.eq(0), found.has_earlier.eq(0), found.has_own.eq(0),
                    failed.eq(entry.entry.status != completion.Status.DELIVERED),
                ]
                with m.If(begins):
                    m.next = "Full"
                    with m.If(~stopped):
                        m.next = "Search"
            with m.State("Search"):
                m.d.comb += asks.eq(index < count)
                with m.If(asks):
                    m.d.sync += index.eq(index + 1)
                with m.If(~asks | (index == WAITING - 1)):
                    m.next = "Searched"
            with m.State("Searched"):
                with m.If(~found.asked.any()):
                    m.next = "Judge"
            with m.State("Judge"):
                m.next = "Earlier"
                with m.If(excess):
                    m.next = "Full"
            with m.State("Earlier"):
                self._write_earlier(m, write, adds, entry)
                m.d.sync += [count.eq(count + adds), index.eq(0)]
                m.next = "Own"
            with m.State("Own"):
                self._write_own(m, write, entry, failed, found, number)
                m.d.sync += count.eq(count + keeps)
                m.next = "First"
            with m.State("First"):
                m.next = "Read"
            with m.State("Read"):
                m.next = "Leave"
            with m.State("Leave"):
                m.d.comb += leaves.eq(held.finished & count.any())
                with m.If(~leaves):
                    m.next = "Store"
                with m.Elif(out.i.ready):
                    m.d.sync += [first.eq(first + 1), count.eq(count - 1)]
                    m.next = "First"
            with m.State("Full"):
                m.d.comb += [becomes.count.eq(0), becomes.full.eq(1), stores.eq(1)]
                m.next = "Done"
            with m.State("Store"):
                m.d.comb += stores.eq(1)
                m.next = "Done"
            with m.State("Done"):
                # The stored state is visible now, for the entry after this one.
                m.d.comb += done.eq(1)
                m.next = "Pass"
        return leaves & ~out.i.ready

    def _judge(self, m, entry, state, count, found):
        """Returns, one cycle later, whether the stream fails with this entry."""
        total, excess = Signal(range(WAITING + 3)), Signal()
        m.d.sync += [
            total.eq(count + found.adds + found.keeps),
            excess.eq(entry.found.over & (state.overtakes == self.overtakes)),
        ]
        return (total > WAITING) | excess

    def _search(self, m, entry, held, asks, here):
        """Compares each kept message that was asked for, four cycles later."""
        asked = Signal(4)
        earlier, own = Value.cast(entry.found.earlier), key_of(entry.entry)
        found_key = key_of(held)
        equal_earlier, equal_own = (
            Signal(len(nibbles(own, own)), name=name) for name in ("equal_earlier", "equal_own"))
        unfinished = Signal()
        m.d.sync += [
            asked.eq(Cat(asks, asked)),
            equal_earlier.eq(nibbles(found_key, earlier)),
            equal_own.eq(nibbles(found_key, own)),
            unfinished.eq(~held.finished),
        ]
        was_here = delayed(m, 3, here, "here")
        has_earlier, has_own, slot = Signal(), Signal(), Signal(range(WAITING))
        with m.If(asked[2] & unfinished):
            m.d.sync += has_earlier.eq(has_earlier | equal_earlier.all())
            with m.If(equal_own.all()):
                m.d.sync += [has_own.eq(1), slot.eq(was_here)]
        adds, keeps = Signal(), Signal()
        m.d.comb += [
            adds.eq(entry.found.over & ~has_earlier),
            keeps.eq(entry.last & ~has_own),
        ]
        return _Search(asked, has_earlier, has_own, slot, adds, keeps)

    def _show(self, m, kept, entry, held, failed):
        """Makes the completion of the kept message that was read."""
        m.d.comb += [
            kept.stream.eq(entry.entry.stream),
            *(kept[name].eq(held[name]) for name in MESSAGE if name != "stream"),
            kept.status.eq(Mux(
                held.failed | failed, completion.Status.NOT_PLACED, completion.Status.DELIVERED)),
        ]

    def _write_earlier(self, m, write, adds, entry):
        """Keeps the message that was overtaken, of which only the key is known."""
        message, earlier = write.payload.data, entry.found.earlier
        m.d.comb += [
            write.valid.eq(adds),
            message.tagged.eq(earlier.tagged),
            message.tag.eq(earlier.tag),
            message.rsvdulp.eq(earlier.low),
            message.qn.eq(earlier.low),
        ]

    def _write_own(self, m, write, entry, failed, found, number):
        """Keeps the entry's own message, which is finished; in its slot, if it has one."""
        message = write.payload.data
        m.d.comb += [
            write.valid.eq(entry.last),
            *(message[name].eq(entry.entry[name]) for name in MESSAGE if name != "stream"),
            message.failed.eq(failed),
            message.finished.eq(1),
        ]
        with m.If(found.has_own):
            m.d.comb += write.payload.address.eq(Cat(found.slot, number))
