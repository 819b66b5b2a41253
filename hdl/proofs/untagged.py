"""Proves that untagged segments that pass the checks are inside a posted buffer."""

from amaranth import *
from amaranth.hdl import Cover

from ..ddp.untagged import UntaggedCheck
from ..spec.config import RnicConfig
from .harness import Harness, if_

__all__ = ["CONFIG", "Inbuffer"]

CONFIG = RnicConfig(
    width=64, buffer_octets=4096, outstanding=8, stags=16, streams=2, queue_depth=4, buffers=16
)


class Inbuffer(Harness):
    """Proves that an untagged segment with a result without error is in the buffer of its MSN.

    The buffer last posted for its stream, QN and the slot of its MSN was posted before the segment
    arrived; ``address`` is MO octets into that buffer, and MO plus the segment's length is at most
    the buffer's length.

    Any one slot in the ring of any one queue, and any one segment for it, are followed. Assumes of
    the host what the registers require: buffers are posted to an open queue, in the order of their
    MSNs; no more of them than the queue holds, counted from the first one whose completion the host
    can have seen; at least 4 cycles apart, with constant values between; and not to the slot of the
    buffer that is followed. Queues are set up while no segment is in the checks, and 4 cycles
    before one. The proof does not cover a stream whose segments broke the rules earlier: it is in
    error, and its segments are dropped. Bounded: for the first ``DEPTH`` cycles, in which a queue
    is opened, buffers are posted, and segments arrive in any cycle from then on.
    """

    DEPTH = 20

    def rules(self, m):
        dut = self.dut
        depth = dut.config.queue_depth
        bits = depth.bit_length() - 1
        segment, post, state = dut.i.payload, dut.post.payload, dut.state.payload
        header = segment.header
        stream = self.any(16, name="stream", constant=True)
        qn = self.any(2, name="qn", constant=True)
        slot = self.any(bits, name="slot", constant=True)
        streams = dut.config.streams
        for port in (dut.i, dut.post, dut.state):
            self.assume(if_(port.valid, port.payload.stream < streams))
        for cycles in range(1, 4):
            held = Value.cast(post) == self.past(post, cycles)
            self.assume(if_(self.past(dut.post.valid, cycles), ~dut.post.valid & held))
        on_its_way = dut.i.valid
        for cycles in range(1, UntaggedCheck.LATENCY + 1):
            on_its_way = on_its_way | self.past(dut.i.valid, cycles)
        self.assume(if_(dut.state.valid, ~on_its_way & ~dut.post.valid))
        for cycles in range(1, 5):
            self.assume(if_(self.past(dut.post.valid, cycles), ~dut.state.valid))
        set_up = dut.state.valid
        for cycles in range(1, 4):
            set_up = set_up | self.past(dut.state.valid, cycles)
        self.assume(if_(dut.i.valid, ~set_up))

        # The queue: its first MSN and the one after its last, and whether the rules were kept.
        first, limit, is_open, broken = Signal(32), Signal(32), Signal(), Signal()
        same = (state.stream == stream) & (state.qn == qn)
        own = dut.i.valid & segment.enable & ~header.tagged & (segment.stream == stream)
        comes = own & (header.qn == qn)
        with m.If(own & header.qn[2:].any()):
            m.d.sync += broken.eq(1)
        ahead = Signal(32)
        m.d.comb += ahead.eq(header.msn - first)
        with m.If(dut.state.valid & same):
            m.d.sync += [
                first.eq(state.msn), limit.eq(state.msn), is_open.eq(state.open), broken.eq(0),
            ]
        with m.Elif(comes):
            beyond = ahead >= (limit - first)[:32]
            m.d.sync += broken.eq(broken | beyond | (header.last & (ahead != 0)))
            with m.If(header.last & ~broken):
                m.d.sync += first.eq(first + 1)
        queue = dut.post.valid & (post.stream == stream) & (post.qn == qn)
        with m.If(queue):
            m.d.sync += limit.eq(limit + 1)
            self.assume(is_open & ~(dut.state.valid & same) & (post.msn == limit))
        # The host has not yet seen which buffers were taken in the last cycles.
        takes = comes & header.last & ~broken
        unseen = takes + sum(self.past(takes, k) for k in range(1, UntaggedCheck.LATENCY + 1))
        self.assume(if_(queue, (limit - first)[:32] + unseen < depth))

        posted, buffer = Signal(), Signal.like(post.buffer)
        here = (post.stream == stream) & (post.qn == qn) & (post.msn[:bits] == slot)
        kept_in = Signal.like(post.slot)
        with m.If(dut.post.valid & here):
            m.d.sync += [buffer.eq(post.buffer), kept_in.eq(post.slot), posted.eq(1)]
        self.assume(if_(dut.post.valid & posted, post.slot != kept_in))
        age = Signal(UntaggedCheck.LATENCY)
        kept, owned, mine = Signal.like(header), Signal(), Signal.like(buffer)
        begun = Signal()
        mark = self.any(1, name="mark")
        m.d.comb += begun.eq(
            mark & dut.i.valid & ~header.tagged & ~age[:-1].any() & (header.msn[:bits] == slot)
            & (header.qn == qn) & (segment.stream == stream) & ~broken & segment.enable
        )
        m.d.sync += age.eq(Cat(begun, age))
        with m.If(begun):
            m.d.sync += [kept.eq(header), owned.eq(posted), mine.eq(buffer)]
        placed = age[-1] & ~dut.o.payload.error
        result = dut.o.payload
        self.always(if_(age[-1], dut.o.valid), "a result comes")
        self.always(if_(placed, owned), "a buffer is posted")
        self.always(if_(placed, result.address == (mine.address + kept.mo)[:64]), "the place")
        self.always(if_(placed, kept.mo + kept.length <= mine.length), "in bounds")
        self.always(if_(placed, result.pages == mine.pages), "its page code")
        self.always(if_(placed, result.cookie == mine.cookie), "its cookie")
        m.d.comb += Cover(placed & (kept.mo != 0), "a segment is placed")
