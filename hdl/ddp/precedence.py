"""No message is delivered before an earlier one of its stream (RFC 5041 section 5.4).

"At the Data Sink, DDP MUST Deliver a DDP Message if and only if all of the following are true: the
last DDP Segment of the DDP Message had its Last flag set, all of the DDP Segments of the DDP
Message have been Placed, all preceding DDP Messages have been Placed, and each preceding DDP
Message has been Delivered to the ULP."

A Data Source sends one message after the other, so that the last segment of a message is all that
has to be looked at. A peer may also let a segment of another message overtake::

    segments in the order of the sender   A1        B1 (last)      A2 (last)
    what Overtaking finds                           A is earlier
    what Precedence gives out                                      A, B

:class:`Overtaking` sees every segment, in one table look-up. :class:`Precedence` sees the last
segment of each message, each segment that overtakes, and the first segment of a stream that has
started anew. These come in the order of segments, so that nothing of a stream's past meets what
comes later. Precedence keeps the messages that have to wait.
"""

from functools import partial

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.stream import Skid, Stage, Store, delayed, nibbles
from ..sctp.window import storage_of
from ..spec import completion
from ..spec.ddp import WAITING
from .entry import MESSAGE, CompletionEntry

__all__ = ["Found", "MessageKey", "Ordered", "Overtaking", "Precedence", "Span", "key_of"]


class MessageKey(data.StructLayout):
    """The fields that have the same value in each segment of a message.

    Members
    -------
    tagged : 1
    tag : 32
        STag; untagged: 0.
    low : 8
        RsvdULP of a tagged message (RFC 5041 section 4.2), QN of an untagged one (section 4.3). The
        MSN need not be compared: of a queue, no segment but those of the next MSN come here.
    """

    def __init__(self):
        super().__init__({"tagged": 1, "tag": 32, "low": 8})


def key_of(message):
    """The :class:`MessageKey` of what has the fields of ``MESSAGE``, as a value."""
    tag = Mux(message.tagged, message.tag, 0)
    return Cat(message.tagged, tag, Mux(message.tagged, message.rsvdulp[:8], message.qn)[:8])


class Found(data.StructLayout):
    """What is found of a segment.

    Members
    -------
    over : 1, earlier : MessageKey
        It overtakes a message, and which one.
    first : 1
        It is the first one since its stream has started anew.
    """

    def __init__(self):
        super().__init__({"over": 1, "earlier": MessageKey(), "first": 1})


class Span(data.StructLayout):
    """Where a message begins, and its octets, of the segments that follow each other.

    Members
    -------
    begin : 32
        Lower bits of the Tagged Offset of the first of these segments.
    length : 32
        Octets from there to the end of the last one, modulo 2**32.
    """

    def __init__(self):
        super().__init__({"begin": 32, "length": 32})


class Overtaking(wiring.Component):
    """Finds the segments that overtake an unfinished message, and the span of each message.

    A segment overtakes if the segment before it on its stream was not the last one of a message,
    and belongs to another message. The span of a message begins with its first segment, and again
    with the segment that goes on after one of another message.

    Latency: 4 cycles; of ``span`` 5. Throughput: a segment a cycle. Reset: the tables stay. Errors:
    none.

    Parameters
    ----------
    streams : int

    Members
    -------
    i : In(stream.Signature(..., always_ready=True))
        ``stream`` (16), ``key`` (MessageKey), ``last`` (1), ``to`` (32), ``length`` (32) of a
        segment, in the order of the sender; or, with ``clear`` (1), a stream that starts anew.
    o : Out(Found())
        What was found of the segment of 4 cycles ago.
    span : Out(Span())
        The span of its message up to and with the segment of 5 cycles ago.
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
        # The table has the segment before, of each stream: whether it is not the last one of its
        # message, its key, and whether the stream has started anew since.
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

        # The table has the TO with which the span of each stream's message begins. A segment that
        # begins one has its own.
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
    """An entry for the ring, and what its order depends on.

    Members
    -------
    entry : CompletionEntry
        ``phase`` is 0.
    message : 1
        It is of a message. All other entries pass.
    last : 1
        It is of the message's last segment; otherwise it is not for the ring.
    found : Found
    """

    def __init__(self):
        super().__init__({"entry": CompletionEntry(), "message": 1, "last": 1, "found": Found()})


class _Kept(data.StructLayout):
    """A message that is kept; of an unfinished one the key alone counts."""

    def __init__(self):
        fields = {name: width for name, width in MESSAGE.items() if name != "stream"}
        super().__init__({**fields, "failed": 1, "finished": 1})


class _State(data.StructLayout):
    """The messages that are kept of a stream: where the first one is, and their number. ``full``:
    they were too many.
    """

    def __init__(self):
        super().__init__({
            "first": range(WAITING), "count": range(WAITING + 1), "full": 1})


class Precedence(wiring.Component):
    """Holds each message back until every earlier message of its stream has left.

    Of a stream, :data:`~..spec.ddp.WAITING` messages can be kept. One more, and the stream has
    failed: nothing of it leaves any more, until a ``first`` segment comes.

    Latency: 4 cycles. Throughput: an entry a cycle. An entry of a stream of which messages are kept
    takes 16 cycles and the number of those messages, and each message that has waited takes 3.
    Reset: what is kept stays. Errors: see ``failed``.

    Parameters
    ----------
    streams : int

    Members
    -------
    i : In(stream.Signature(Ordered()))
        Entries of a stream's messages in the order of the sender.
    o : Out(stream.Signature(CompletionEntry()))
    failed : Out(stream.Signature(16))
        A stream whose messages could not be kept.
    busy : Out(1)
        An entry moves. What is kept, or waits for ``o``, does not.
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "i": In(stream.Signature(Ordered())),
            "o": Out(stream.Signature(CompletionEntry())),
            "failed": Out(stream.Signature(16)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        bits = exact_log2(self.streams)
        m.submodules.states = states = memory.Memory(
            shape=_State(), depth=self.streams, init=[], attrs={"no_rw_check": 1})
        m.submodules.out = out = Skid(CompletionEntry())
        # A stream fails once until it is cleared.
        m.submodules.failures = failures = Store(16, depth=max(4, self.streams))
        m.submodules.failure = failure = Stage(16)
        wiring.connect(m, out.o, wiring.flipped(self.o))
        wiring.connect(m, failures.o, failure.i)
        wiring.connect(m, failure.o, wiring.flipped(self.failed))
        read, write = states.read_port(), states.write_port()

        # An entry goes through three registers, in which its stream's state is looked up. While it
        # is dealt with in the last one, what the others know of the same stream gets old.
        looks, looked, entry = (
            Signal(Ordered(), name=name, reset_less=True) for name in ("looks", "looked", "entry"))
        valid = Signal(3)
        moves, done = Signal(), Signal()
        state, latest = Signal(_State()), Signal(_State())
        latest_stream, known = Signal(bits), Signal()
        number = entry.entry.stream[:bits]
        with m.If(moves):
            m.d.sync += [
                valid.eq(Cat(self.i.valid, valid)),
                looks.eq(self.i.payload),
                looked.eq(looks),
                entry.eq(looked),
                state.eq(Mux(
                    known & (latest_stream == looked.entry.stream[:bits]), latest, read.data)),
            ]
        m.d.comb += [
            self.i.ready.eq(moves),
            read.en.eq(moves),
            read.addr.eq(looks.entry.stream[:bits]),
        ]

        # Most pass. A message of a stream of which others are kept, or that overtakes, does not.
        simple, stopped, leaves = Signal(), Signal(), Signal()
        kept = Signal(CompletionEntry())
        stores, becomes = Signal(), Signal(_State())
        m.d.comb += [
            simple.eq(~entry.message | ~(entry.found.over | state.count.any() | state.full)),
            moves.eq(~valid[2] | done
                     | (simple & (out.i.ready | (entry.message & ~entry.last)))),
            out.i.valid.eq(Mux(
                simple, valid[2] & ~(entry.message & ~entry.last), leaves)),
            out.i.payload.eq(Mux(simple, entry.entry, kept)),
        ]
        begins = valid[2] & ~simple
        # Nothing of the stream's past counts for the first segment of a new start.
        m.d.comb += stopped.eq(state.full & ~entry.found.first)
        waits = self._keep(m, begins, entry, state, stopped, kept, leaves, done, stores, becomes)
        m.d.comb += self.busy.eq((valid.any() & moves) | (begins & ~waits) | self.failed.valid)

        m.d.comb += [
            write.en.eq(stores),
            write.addr.eq(number),
            write.data.eq(becomes),
            failures.i.valid.eq(stores & becomes.full & ~stopped),
            failures.i.payload.eq(entry.entry.stream),
        ]
        with m.If(stores):
            m.d.sync += [latest.eq(becomes), latest_stream.eq(number), known.eq(1)]
        return m

    def _keep(self, m, begins, entry, state, stopped, kept, leaves, done, stores, becomes):
        """Deals with an ``entry`` that does not pass; returns whether that waits for ``out``.

        The messages of the stream that are kept are read, to find the overtaken one and the
        entry's own. The overtaken one is added if it is not there, then the entry, if it is the
        last of its message. Then those leave that no unfinished one is before.
        """
        out = m.submodules.out
        number = entry.entry.stream[:exact_log2(self.streams)]
        m.submodules.messages = messages = memory.Memory(
            shape=_Kept(), depth=self.streams * WAITING, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1})
        read, write = messages.read_port(), messages.write_port()
        # Without reset, to become the output register of the block RAM.
        held = Signal(_Kept(), name="message_held", reset_less=True)
        m.d.sync += held.eq(read.data)

        # Where the next read goes, and what the one of four cycles ago found.
        first, count = Signal(range(WAITING)), Signal(range(WAITING + 1))
        index, asks = Signal(range(WAITING)), Signal()
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
        here = delayed(m, 3, (first + index)[:len(first)], "here")
        has_earlier, has_own, place = Signal(), Signal(), Signal(range(WAITING))
        with m.If(asked[2] & unfinished):
            m.d.sync += has_earlier.eq(has_earlier | equal_earlier.all())
            with m.If(equal_own.all()):
                m.d.sync += [has_own.eq(1), place.eq(here)]
        adds, keeps = Signal(), Signal()
        total, failed = Signal(range(WAITING + 3)), Signal()
        m.d.comb += [
            adds.eq(entry.found.over & ~has_earlier),
            keeps.eq(entry.last & ~has_own),
            read.addr.eq(Cat((first + index)[:len(first)], number)),
            write.addr.eq(Cat((first + count)[:len(first)], number)),
            becomes.first.eq(first),
            becomes.count.eq(count),
            kept.stream.eq(entry.entry.stream),
            *(kept[name].eq(held[name]) for name in MESSAGE if name != "stream"),
            kept.status.eq(Mux(
                held.failed | failed, completion.Status.NOT_PLACED, completion.Status.DELIVERED)),
        ]
        m.d.sync += total.eq(count + adds + keeps)
        with m.FSM():
            with m.State("Pass"):
                m.d.sync += [
                    first.eq(state.first), count.eq(Mux(entry.found.first, 0, state.count)),
                    index.eq(0), has_earlier.eq(0), has_own.eq(0),
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
                with m.If(~asked.any()):
                    m.next = "Judge"
            with m.State("Judge"):
                m.next = "Earlier"
                with m.If(total > WAITING):
                    m.next = "Full"
            with m.State("Earlier"):
                m.d.comb += [
                    write.en.eq(adds),
                    write.data.tagged.eq(entry.found.earlier.tagged),
                    write.data.tag.eq(entry.found.earlier.tag),
                    write.data.rsvdulp.eq(entry.found.earlier.low),
                    write.data.qn.eq(entry.found.earlier.low),
                ]
                m.d.sync += [count.eq(count + adds), index.eq(0)]
                m.next = "Own"
            with m.State("Own"):
                m.d.comb += [
                    write.en.eq(entry.last),
                    *(write.data[name].eq(entry.entry[name])
                      for name in MESSAGE if name != "stream"),
                    write.data.failed.eq(failed),
                    write.data.finished.eq(1),
                ]
                with m.If(has_own):
                    m.d.comb += write.addr.eq(Cat(place, number))
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
                # What was stored shows now, for the entry that follows.
                m.d.comb += done.eq(1)
                m.next = "Pass"
        return leaves & ~out.i.ready
