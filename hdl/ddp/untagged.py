"""Keeps the untagged queues and their buffers, and checks segments (RFC 5041 section 7.1)."""

from functools import partial
from typing import Any, NamedTuple

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.blockram import BlockRam, ForwardedTable
from ..lib.stream import copies, delayed
from ..spec import ddp
from .header import DdpHeader

__all__ = ["Advanced", "Post", "QueueState", "UntaggedBuffer", "UntaggedCheck", "UntaggedResult"]

#: Bits of a Queue Number: each stream has four queues.
QN_BITS = 2


class UntaggedBuffer(data.StructLayout):
    """A posted buffer.

    Members
    -------
    address : 64
        Host address of the first octet.
    length : 32
        Octets.
    pages : 4
        Page code.
    cookie : 32
        Number that the completion returns.
    """

    def __init__(self):
        super().__init__({"address": 64, "length": 32, "pages": 4, "cookie": 32})


class QueueState(data.StructLayout):
    """A queue to be opened or closed.

    ``stream`` (16), ``qn`` (2), ``open`` (1), and ``msn`` (32): the MSN of its first buffer.
    """

    def __init__(self):
        super().__init__({"stream": 16, "qn": QN_BITS, "open": 1, "msn": 32})


class Post(data.StructLayout):
    """A buffer to be posted.

    ``stream`` (16), ``qn`` (2), ``msn`` (32), ``buffer``, and ``slot``: where the buffer table
    keeps it.
    """

    def __init__(self, config):
        super().__init__({
            "stream": 16, "qn": QN_BITS, "msn": 32, "slot": range(config.buffers),
            "buffer": UntaggedBuffer(),
        })


class Advanced(data.StructLayout):
    """A delivered message: ``stream`` (16), queue ``qn`` (2) and ``msn`` (32)."""

    def __init__(self):
        super().__init__({"stream": 16, "qn": QN_BITS, "msn": 32})


class UntaggedResult(data.StructLayout):
    """The result of the checks for an untagged segment.

    Members
    -------
    error : 1
        The segment must not be placed; ``type`` and ``code`` give the reason.
    type : 4, code : 8
    disorder : 1
        The segment has a buffer, but not the first one that waits for a message.
    address : 64, pages : 4
        Host address for the first octet, and its page code.
    total : 32
        MO plus payload length: the ULP message length, if the segment is the last one.
    cookie : 32
        Cookie of the segment's buffer.
    """

    def __init__(self):
        super().__init__({
            "error": 1, "type": 4, "code": 8, "disorder": 1,
            "address": 64, "pages": 4, "total": 32, "cookie": 32,
        })


class _Queue(NamedTuple):
    """A segment's queue: its ``first`` MSN; its ``limit``, the MSN after its last buffer, and
    whether it is open; and the segment's ``buffer``.
    """

    first: Any
    limit: Any
    buffer: Any


class UntaggedCheck(wiring.Component):
    """Validates untagged segments against the buffers of their queues.

    The checks are in this order: the QN is valid for this stream; the MSN is not before that of the
    first buffer that waits for a message, and has a buffer; MO, and MO plus length, are within that
    buffer. Section 7.1 lists the range of the MSN last, but a message that was completed no longer
    has a buffer.

    The last segment of a message takes its buffer off the queue immediately, before it is known
    whether the segment will be placed. If it is not placed, its stream is in error, and takes no
    segment until the host has set it up again. So segments of one queue may follow each other in
    every cycle.

    Latency: 12 cycles. Throughput: one segment per cycle. Reset: the queues stay. Errors: reported
    in ``UntaggedResult``.

    Parameters
    ----------
    config : RnicConfig
    unordered : bool
        True if the segments of a message may arrive in any order: its last segment need not arrive
        last.

    Members
    -------
    i : In(stream.Signature({header: DdpHeader, stream: 16, enable: 1}, always_ready=True))
        Tagged segments may come too; their results are meaningless.
    state : In(stream.Signature(QueueState(), always_ready=True))
        Only while no segment is in the checks, and at least 5 cycles after ``post``.
    post : In(stream.Signature(Post, always_ready=True))
        Takes effect after 4 cycles. At most one every 4 cycles.
    advanced : In(stream.Signature(Advanced()))
        With ``unordered`` only: a message was delivered whose last segment came without ``enable``,
        because segments come in any order.
    o : Out(stream.Signature(UntaggedResult(), always_ready=True))
    """

    LATENCY = 12

    def __init__(self, config, *, unordered=False):
        self.config, self.unordered = config, unordered
        super().__init__({
            "i": In(stream.Signature(data.StructLayout({
                "header": DdpHeader(), "stream": 16, "enable": 1}), always_ready=True)),
            "state": In(stream.Signature(QueueState(), always_ready=True)),
            "post": In(stream.Signature(Post(config), always_ready=True)),
            "o": Out(stream.Signature(UntaggedResult(), always_ready=True)),
            **({"advanced": In(stream.Signature(Advanced()))} if unordered else {}),
        })

    def elaborate(self, platform):
        m = Module()
        header = self.i.payload.header
        after = partial(delayed, m)

        # The address to look up, and values that depend on the header alone.
        index_of_header = self._index(header.qn, self.i.payload.stream)
        index = after(1, index_of_header, "index")
        msn = after(1, header.msn, "msn")
        following = Signal(32, reset_less=True)
        end = Signal(33, reset_less=True)
        takes = Signal()
        m.d.sync += [
            following.eq(header.msn + 1),
            end.eq(header.mo + header.length),
            takes.eq(self.i.valid & self.i.payload.enable & ~header.tagged & header.last),
        ]

        queue = self._queue(m, index, index_of_header, takes, following)
        buffer = queue.buffer

        # All differences; the address in two halves.
        first, limit = after(5, queue.first, "first"), after(5, queue.limit, "limit")
        msn, end = after(8, msn, "msn"), after(8, end, "end")
        mo = after(9, header.mo, "mo")
        ahead, left = Signal(32, reset_less=True), Signal(32, reset_less=True)
        room, rest = Signal(33, reset_less=True), Signal(34, reset_less=True)
        low = Signal(33, reset_less=True)
        high_after = Signal(32, reset_less=True)
        m.d.sync += [
            ahead.eq(msn - first),
            left.eq(limit.msn - msn),
            room.eq(buffer.length - mo),
            rest.eq(buffer.length - end),
            low.eq(buffer.address[:32] + mo),
            high_after.eq(buffer.address[32:] + 1),
        ]
        high = after(1, buffer.address[32:], "high")
        beyond_queues = after(1, Cat(
            header.qn[at:at + 4].any() for at in range(QN_BITS, 32, 4)), "beyond_queues")
        closed = after(1, ~limit.open, "closed") | after(9, beyond_queues.any(), "no_queue")

        # Flags, and the first one that is set.
        flags = [
            after(1, flag, name)
            for flag, name in (
                (closed, "no_queue_11"),
                (ahead[-1], "behind"),
                (left[-1] | ~left.any(), "no_buffer"),
                (room[-1], "beyond"),
                (rest[-1], "too_long"),
            )
        ]
        numbers = (
            ddp.INVALID_QN, ddp.MSN_RANGE, ddp.NO_BUFFER, ddp.INVALID_MO, ddp.MESSAGE_TOO_LONG,
        )
        disorder = after(1, ahead.any(), "disorder")
        address = Signal(64, reset_less=True)
        m.d.sync += address.eq(Cat(low[:32], Mux(low[32], high_after, high)))
        result = self.o.payload
        m.d.sync += [
            result.eq(0),
            result.disorder.eq(disorder),
            result.address.eq(address),
            result.total.eq(after(2, end, "total")),
            result.pages.eq(after(2, buffer.pages, "pages")),
            result.cookie.eq(after(2, buffer.cookie, "cookie")),
        ]
        for position, (flag, number) in enumerate(zip(flags, numbers, strict=True)):
            with m.If(flag) if not position else m.Elif(flag):
                m.d.sync += [
                    result.error.eq(1), result.type.eq(number.type), result.code.eq(number.code),
                ]
        valid = Signal(self.LATENCY)
        m.d.sync += valid.eq(Cat(self.i.valid, valid))
        m.d.comb += self.o.valid.eq(valid[-1])
        return m

    def _index(self, qn, stream):
        """Returns the number of a stream's queue among all queues."""
        return Cat(qn[:QN_BITS], stream)[:QN_BITS + exact_log2(self.config.streams)]

    def _queue(self, m, index, index_of_header, takes, following):
        """Looks up a segment's queue and its buffer, and keeps both up to date.

        The last segment of a message ``takes`` its buffer, so that the MSN ``following`` becomes
        the queue's first one.
        """

        def index_of(where):
            return self._index(where.qn, where.stream)

        after = partial(delayed, m)
        state, post = self.state, self.post
        state_valid, post_valid = after(1, state.valid, "state_valid"), Signal(3)
        state_held = after(1, state.payload, "state_held")
        post_held = Signal.like(post.payload, reset_less=True)
        m.d.sync += post_valid.eq(Cat(post.valid, post_valid))
        with m.If(post.valid):
            m.d.sync += post_held.eq(post.payload)
        writes = (
            takes | state_valid, Mux(state_valid, index_of(state_held), index),
            Mux(state_valid, state_held.msn, following))
        if self.unordered:
            advanced, beyond = self.advanced.payload, Signal(32, reset_less=True)
            known = Signal()
            m.d.comb += self.advanced.ready.eq(known & ~writes[0])
            m.d.sync += [
                known.eq(self.advanced.valid & ~self.advanced.ready), beyond.eq(advanced.msn + 1)]
            writes = (
                writes[0] | known, Mux(writes[0], writes[1], index_of(advanced)),
                Mux(writes[0], writes[2], beyond))
        first = self._look_up(m, "first", unsigned(32), index, *writes)
        beyond_post = after(1, (post_held.msn + 1)[:32], "beyond_post")
        # The buffer is written before the limit makes it visible.
        limit = self._look_up(
            m, "limit", data.StructLayout({"msn": 32, "open": 1}), index,
            post_valid[2] | state_valid,
            Mux(state_valid, index_of(state_held), index_of(post_held)),
            Mux(state_valid, Cat(state_held.msn, state_held.open),
                Cat(beyond_post, C(1))),
        )
        ring_bits = exact_log2(self.config.queue_depth)
        # A separate register for the wires to many block RAMs.
        (slot,) = copies(
            m, Cat(self.i.payload.header.msn[:ring_bits], index_of_header), 1, name="slot")
        buffer = self._buffer(
            m, slot, post_valid[0],
            Cat(post_held.msn[:ring_bits], index_of(post_held)), post_held)
        return _Queue(first, limit, buffer)

    def _buffer(self, m, slot, write, written, post):
        """Returns the buffer in a ``slot`` of its queue's ring, 8 cycles later; writes posts.

        A ring holds the numbers of its buffers, so that the wide buffer table need not have room
        for all buffers of all queues. Both tables take many block RAMs; the registers are for the
        wires to them and from them. A slot that is read while it is written has no buffer yet: its
        queue's limit makes it visible later.
        """
        m.submodules.rings = rings = BlockRam(range(self.config.buffers), 1 << len(slot))
        m.submodules.buffers = buffers = BlockRam(UntaggedBuffer(), self.config.buffers)
        port = buffers.write
        writes = delayed(m, 1, Cat(write, post.slot, post.buffer), "buffer_write")
        m.d.comb += rings.address[0].eq(slot)
        m.d.sync += [
            rings.write.valid.eq(write),
            rings.write.payload.address.eq(written),
            rings.write.payload.data.eq(post.slot),
            Cat(port.valid, port.payload.address, Value.cast(port.payload.data)).eq(writes),
            buffers.address[0].eq(delayed(m, 1, rings.data[0], "slot")),
        ]
        return delayed(m, 2, buffers.data[0], "buffer")

    def _look_up(self, m, name, shape, index, write, write_index, write_value):
        """Returns the table's value at ``index``, 3 cycles later.

        It includes the writes of all earlier cycles; a write is registered first.
        """
        m.submodules[name] = table = ForwardedTable(shape, 1 << len(index))
        value = Signal(shape, name=name)
        m.d.comb += table.address[0].eq(index)
        m.d.sync += [
            table.write.valid.eq(write),
            table.write.payload.address.eq(write_index),
            Value.cast(table.write.payload.data).eq(write_value),
            value.eq(table.data[0]),
        ]
        return value
