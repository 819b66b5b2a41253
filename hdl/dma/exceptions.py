"""Buffers packets for the host's own stack, so that a slow reader never holds placement up."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Prefetch, nibbles
from .output_queue import ExceptionBeat

__all__ = ["ExceptionQueue"]


class Extent(wiring.Component):
    """Manages the addresses of a ring of whole packets: where the next beat goes, and if it fits.

    Latency: 1 cycle. Throughput: one beat in and one beat out per cycle. Reset: empty. Errors:
    none; no beat may be put in while ``full``.

    Parameters
    ----------
    depth : int
        Beats, a power of two.

    Members
    -------
    put : In(1)
        A beat is put at ``write``.
    keep : In(1)
        With ``put``: the beat ends a packet, which is now complete and is kept.
    forget : In(1)
        Discards the beats of the packet that is not complete yet. Not with ``put``.
    free : In(1)
        A beat leaves the ring.
    write : Out(range(depth))
        Address for the next beat.
    kept : Out(range(depth))
        Address after the last complete packet.
    full : Out(1)
        There is no room for a beat.
    """

    def __init__(self, depth):
        super().__init__({
            "put": In(1), "keep": In(1), "forget": In(1), "free": In(1),
            "write": Out(range(depth)), "kept": Out(range(depth)), "full": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        before = Signal.like(self.write, init=-1)  # the address before the first one in use
        last = Signal()
        filled = Signal()
        kept_full = Signal()
        following = Signal.like(self.write)
        m.d.comb += [
            last.eq(self.write == before),
            following.eq(self.write + 1),
            filled.eq((self.full | (self.put & last)) & ~self.free),
        ]
        with m.If(self.free):
            m.d.sync += before.eq(before + 1)
        m.d.sync += [self.full.eq(filled), kept_full.eq(kept_full & ~self.free)]
        with m.If(self.put):
            m.d.sync += self.write.eq(following)
            with m.If(self.keep):
                m.d.sync += [self.kept.eq(following), kept_full.eq(filled)]
        with m.If(self.forget):
            m.d.sync += [self.write.eq(self.kept), self.full.eq(kept_full & ~self.free)]
        return m


class ExceptionQueue(wiring.Component):
    """Stores packets and forwards each when it is complete; drops those that do not fit.

    A packet is dropped as a whole when one of its beats finds the queue full, or when it is longer
    than the queue. Its beats that were already stored are freed immediately.

    Latency: 7 cycles from the last beat of a packet at ``i`` to its first beat at ``o``, 5 if the
    configuration is ``relaxed``. Throughput: one beat per cycle. Reset: empty. Errors: none. The
    output is a register.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature(ExceptionBeat(width), always_ready=True))
    o : Out(stream.Signature(ExceptionBeat(width)))
    dropped : Out(1)
        High for one cycle for each dropped packet, when its last beat arrives.
    """

    def __init__(self, config):
        self.config = config
        self.depth = config.exception_octets // config.octets
        self.shape = ExceptionBeat(config.width)
        super().__init__({
            "i": In(stream.Signature(self.shape, always_ready=True)),
            "o": Out(stream.Signature(self.shape)),
            "dropped": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.extent = extent = Extent(self.depth)
        m.submodules.ring = ring = Prefetch(
            self.shape, depth=self.depth, relaxed=self.config.relaxed)
        read = Signal(range(self.depth))
        following, second, third = (Signal.like(read, init=1 + k) for k in range(3))
        some, more, lately = Signal(), Signal(), Signal()
        # ``few``: only one beat is left of those that were kept two cycles ago. It is computed in
        # two steps; the first compares both possible next pointers, in nibbles.
        few = Signal()
        kept_next = [Signal(len(nibbles(read, read)), name=f"kept_next{k}") for k in range(2)]
        dropping, drops = Signal(), Signal()
        last = self.i.payload.beat.last

        # In: the write takes one cycle, and the reader learns of the packet only after it.
        m.d.comb += [
            drops.eq(extent.full | dropping),
            extent.put.eq(self.i.valid & ~drops),
            extent.keep.eq(last),
            extent.forget.eq(self.i.valid & drops),
        ]
        m.d.sync += [ring.write.valid.eq(extent.put), more.eq(0), self.dropped.eq(0)]
        with m.If(self.i.valid):
            m.d.sync += [
                ring.write.payload.address.eq(extent.write),
                ring.write.payload.item.eq(self.i.payload),
                more.eq(~drops & last),
                self.dropped.eq(drops & last),
                dropping.eq(drops & ~last),
            ]

        # Out: forward all kept beats.
        wiring.connect(m, ring.o, wiring.flipped(self.o))
        m.d.comb += [
            ring.some.eq(some),
            ring.address.eq(read),
            extent.free.eq(ring.pop),
        ]
        with m.If(ring.pop):
            m.d.sync += [
                read.eq(following), following.eq(second), second.eq(third), third.eq(third + 1)]
        m.d.sync += [
            *(near.eq(Mux(ring.pop, nibbles(far, extent.kept), nibbles(here, extent.kept)))
              for near, here, far in zip(kept_next, (following, second), (second, third),
                                         strict=True)),
            few.eq(Mux(ring.pop, kept_next[1].all(), kept_next[0].all())),
            lately.eq(more),
            some.eq(lately | (some & ~(ring.pop & few))),
        ]
        return m
