"""Answers RDMA Read Requests without the host (RFC 5040 section 5.2).

The data's way::

    delivered messages ─ RequestFilter ┬ requests ─► Data Source ─ Read Responses
                                       └ others ─► completion queues
    requests that were answered ─ SlotPoster ─ buffers for later requests ─► UntaggedCheck
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..ddp.entry import CompletionEntry
from ..ddp.untagged import Post
from ..lib.blockram import ForwardedTable
from ..lib.delay import Delay
from ..lib.stream import Store, delayed
from ..spec import completion
from ..spec.send import ENTRY
from . import read_request

__all__ = ["Answered", "PostsJoin", "Request", "RequestFilter", "ResponseSlots", "SlotPoster"]

QUEUE = 16
#: Cycles after a post in which UntaggedCheck takes no other one, and no change of a queue.
GAP, SETTLE = 3, 8


class ResponseSlots(data.StructLayout):
    """The slots of the Read Requests to ``stream``.

    Members
    -------
    base : 58, size : 4
        2 to the power of ``size`` slots from ``base`` on, in units of 64 octets.
    ird : 13
        Requests that the peer may have outstanding.
    buffer : 16
        Number of the first slot in the buffer table.
    msn : 32
        The MSN of the first request.
    open : 1
        The device answers the requests.
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "base": 64 - exact_log2(ENTRY), "size": 4, "ird": 13,
            "buffer": 16, "msn": 32, "open": 1})


class Request(data.StructLayout):
    """A Read Request to ``stream`` that was delivered; ``following`` (16): the MSN after its own,
    modulo 2**16.
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "following": 16})


class Answered(data.StructLayout):
    """The Read Request ``msn`` (32) to ``stream`` was answered."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "msn": 32})


class RequestFilter(wiring.Component):
    """Takes Read Requests out of the messages that are delivered.

    A message of queue 1 that is no Read Request of RFC 5040 passes like all others, and so do all
    later messages of its stream, until the host writes the stream's slots again.

    Latency: 4 cycles. Throughput: one entry per cycle. Reset: empty; the table stays. Errors: none.

    Members
    -------
    set : In(stream.Signature(ResponseSlots(streams)))
        While nothing of the stream is delivered.
    i : In(stream.Signature(CompletionEntry()))
    o : Out(stream.Signature(CompletionEntry()))
    requests : Out(stream.Signature(Request(streams)))
    busy : Out(1)
    """

    LATENCY = 3

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "set": In(stream.Signature(ResponseSlots(streams))),
            "i": In(stream.Signature(CompletionEntry())),
            "o": Out(stream.Signature(CompletionEntry())),
            "requests": Out(stream.Signature(Request(streams))),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = ForwardedTable(1, self.streams)
        m.submodules.others = others = Store(CompletionEntry(), depth=QUEUE)
        m.submodules.asked = asked = Store(Request(self.streams), depth=QUEUE)
        m.submodules.along = along = Delay(CompletionEntry(), self.LATENCY)
        wiring.connect(m, others.o, wiring.flipped(self.o))
        wiring.connect(m, asked.o, wiring.flipped(self.requests))
        entry, takes, coming = self.i.payload, Signal(), Signal(self.LATENCY)
        m.d.comb += [
            self.i.ready.eq(others.half & asked.half),
            takes.eq(self.i.valid & self.i.ready),
            table.address[0].eq(entry.stream),
            along.i.eq(entry),
        ]
        m.d.sync += coming.eq(Cat(takes, coming))

        # The entry itself is judged while its stream is looked up.
        control = entry.rsvdulp[:8]
        queue1, request1 = Signal(), Signal()
        m.d.sync += [
            queue1.eq((entry.kind == completion.Kind.MESSAGE) & ~entry.tagged
                      & (entry.qn == read_request.QN)),
            request1.eq((entry.length == read_request.OCTETS)
                        & (entry.status == completion.Status.DELIVERED)
                        & (control[:4] == read_request.OPCODE)
                        & (control[6:] <= read_request.VERSION)),
        ]
        # 2: a stream that had another message up to two entries ago is not open any more.
        queue2, request2 = delayed(m, 1, queue1, "queue2"), delayed(m, 1, request1, "request2")
        number2 = delayed(m, 2, entry.stream, "number2")[:exact_log2(self.streams)]
        closes = [Signal(name=f"closes{n}") for n in (1, 2)]
        closed = [Signal(range(self.streams), name=f"closed{n}") for n in (1, 2)]
        here, open2, strays = Signal(), Signal(), Signal()
        m.d.comb += [
            here.eq(coming[1] & queue2),
            open2.eq(table.data[0] & ~Cat(
                has & (other == number2) for has, other in zip(closes, closed, strict=True)).any()),
            strays.eq(here & open2 & ~request2),
        ]
        m.d.sync += [
            *(one.eq(other) for one, other in zip(closes, (strays, *closes), strict=False)),
            *(one.eq(other) for one, other in zip(closed, (number2, *closed), strict=False)),
        ]
        m.d.comb += [
            self.set.ready.eq(~closes[0]),
            table.write.valid.eq(closes[0] | self.set.valid),
            table.write.payload.address.eq(Mux(closes[0], closed[0], self.set.payload.stream)),
            table.write.payload.data.eq(~closes[0] & self.set.payload.open),
        ]

        # 3: the entry leaves one way or the other.
        answers = Signal()
        m.d.sync += answers.eq(here & open2 & request2)
        m.d.comb += [
            others.i.valid.eq(coming[2] & ~answers),
            others.i.payload.eq(along.o),
            asked.i.valid.eq(coming[2] & answers),
            asked.i.payload.stream.eq(along.o.stream),
            asked.i.payload.following.eq(along.o.tag[:16] + 1),
            self.busy.eq(self.i.valid | coming.any() | others.o.valid | asked.o.valid),
        ]
        return m


class SlotPoster(wiring.Component):
    """Posts the buffers of slots again whose requests were answered.

    The MSN of the request that a slot is posted for is that of the answered one plus ``ird``.

    Latency: 5 cycles to the first buffer. Throughput: one buffer in 4 cycles, because UntaggedCheck
    takes no more. Reset: empty; the slots stay. Errors: none.

    Members
    -------
    set : In(stream.Signature(ResponseSlots(streams), always_ready=True))
        While no request of the stream is answered.
    i : In(stream.Signature(Answered(streams)))
    o : Out(stream.Signature(Post(config)))
    busy : Out(1)
    """

    def __init__(self, config):
        self.config = config
        super().__init__({
            "set": In(stream.Signature(ResponseSlots(config.streams), always_ready=True)),
            "i": In(stream.Signature(Answered(config.streams))),
            "o": Out(stream.Signature(Post(config))),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        slots = ResponseSlots(self.config.streams)
        m.submodules.table = table = ForwardedTable(slots, self.config.streams)
        answered, slot = self.i.payload, table.data[0]
        known = delayed(m, 2, self.i.valid, "known")
        step, stream = Signal(range(4)), Signal(range(self.config.streams))
        # ``open``: the stream's slots are, as far as is known, and were not replaced meanwhile.
        msn, index, open = Signal(32), Signal(16), Signal()
        number, place = Signal(16), Signal(64 - exact_log2(ENTRY))
        m.d.comb += [
            table.write.valid.eq(self.set.valid),
            table.write.payload.address.eq(self.set.payload.stream),
            table.write.payload.data.eq(self.set.payload),
            table.address[0].eq(answered.stream),
            self.i.ready.eq(step == 1),
        ]
        # 0: the MSN, once the slots were looked up for two cycles. They stay for two cycles after
        # the request has left in 1: the slot. 2: where it is. 3: the buffer is ready to be posted,
        # while the next request is looked up.
        with m.Switch(step):
            with m.Case(0):
                m.d.sync += [
                    step.eq(known), stream.eq(answered.stream),
                    msn.eq(answered.msn + slot.ird), open.eq(1)]
            with m.Case(1):
                m.d.sync += [step.eq(2), index.eq(msn & Cat(slot.size > k for k in range(16)))]
            with m.Case(2):
                m.d.sync += [
                    step.eq(3), number.eq(slot.buffer + index), place.eq(slot.base + index),
                    open.eq(open & slot.open)]
            with m.Case(3):
                with m.If(self.o.ready | ~open):
                    m.d.sync += step.eq(0)
        with m.If(step.any() & self.set.valid & (self.set.payload.stream == stream)):
            m.d.sync += open.eq(0)
        post = self.o.payload
        m.d.comb += [
            # Slots that were closed meanwhile are not posted any more.
            self.o.valid.eq((step == 3) & open),
            post.stream.eq(stream),
            post.qn.eq(read_request.QN),
            post.msn.eq(msn),
            post.slot.eq(number),
            post.buffer.address.eq(place << exact_log2(ENTRY)),
            post.buffer.length.eq(read_request.OCTETS),
            post.buffer.pages.eq(0),
            post.buffer.cookie.eq(index),
            self.busy.eq(self.i.valid | step.any()),
        ]
        return m


class PostsJoin(wiring.Component):
    """Posts the host's buffers, and between them those of slots.

    Latency: none for a buffer of the host, or 3 cycles after one of a slot. Throughput: one buffer
    in 4 cycles. Reset: empty. Errors: none.

    Members
    -------
    host : In(stream.Signature(Post(config), always_ready=True))
        At most one every 4 cycles.
    slots : In(stream.Signature(Post(config)))
    hold : In(1)
        The host is about to change a queue: no slot is posted.
    settled : Out(1)
        The last post has taken effect.
    o : Out(stream.Signature(Post(config), always_ready=True))
    busy : Out(1)
    """

    def __init__(self, config):
        self.post = Post(config)
        super().__init__({
            "host": In(stream.Signature(self.post, always_ready=True)),
            "slots": In(stream.Signature(self.post)),
            "hold": In(1),
            "settled": Out(1),
            "o": Out(stream.Signature(self.post, always_ready=True)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        kept, keeps, since = Signal(self.post, reset_less=True), Signal(), Signal(range(SETTLE + 1))
        host, free = Signal(), Signal()
        m.d.comb += [
            host.eq(self.host.valid | keeps),
            free.eq(since >= GAP),
            self.slots.ready.eq(free & ~host & ~self.hold),
            self.o.valid.eq(free & (host | (self.slots.valid & ~self.hold))),
            self.o.payload.eq(Mux(
                keeps, kept, Mux(self.host.valid, self.host.payload, self.slots.payload))),
            self.settled.eq((since == SETTLE) & ~host),
            self.busy.eq(host | self.slots.valid),
        ]
        with m.If(self.host.valid):
            m.d.sync += kept.eq(self.host.payload)
        m.d.sync += keeps.eq(host & ~free)
        with m.If(self.o.valid):
            m.d.sync += since.eq(0)
        with m.Elif(~self.settled):
            m.d.sync += since.eq(since + 1)
        return m
