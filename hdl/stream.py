"""Packet streams: the beat that every block shares, and the queue that carries any shape."""

from functools import reduce
from operator import or_

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Beat", "Queue", "any_of"]


def any_of(values):
    """The bitwise OR of all values; 0 of none."""
    return reduce(or_, values, C(0))


class Beat(data.StructLayout):
    """One beat of a packet, ``width`` bits of data.

    Members
    -------
    data : unsigned(width)
        Octets, the first one lowest.
    count : range(width // 8 + 1)
        Valid octets, counted from the lowest; less than all only on the last beat.
    last : 1
        The packet ends with this beat.
    error : 1
        On the last beat: the packet is damaged and must not be used.
    """

    def __init__(self, width):
        self.width = width
        super().__init__({"data": width, "count": range(width // 8 + 1), "last": 1, "error": 1})


class Queue(wiring.Component):
    """First in, first out, for any shape.

    The storage is read asynchronously into an output register, so it becomes distributed RAM on
    devices that have it. Both ``i.ready`` and ``o.valid`` are registers: no path crosses the queue.

    Latency: 2 cycles. Throughput: 1 item a cycle. Reset: empty. Errors: none.

    Parameters
    ----------
    shape
        Shape of an item.
    depth : int
        Items that are sure to fit, a power of two from 4 up.

    Members
    -------
    i : In(stream.Signature(shape))
    o : Out(stream.Signature(shape))
    room : Out(range(depth + 1))
        Free places: a push counts one cycle late, a pop two.
    """

    def __init__(self, shape, *, depth):
        if not isinstance(depth, int):
            raise TypeError(f"Queue depth must be an integer, not {depth!r}")
        if depth < 4 or depth & (depth - 1):
            raise ValueError(f"Queue depth must be a power of two and at least 4, not {depth!r}")
        self.shape = shape
        self.depth = depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "room": Out(range(depth + 1), init=depth),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.storage = storage = memory.Memory(shape=self.shape, depth=self.depth, init=[])
        write = storage.write_port()
        read = storage.read_port(domain="comb")
        written, taken = Signal(range(2 * self.depth)), Signal(range(2 * self.depth))
        level = Signal(range(self.depth + 1))
        push, pop, popped = Signal(), Signal(), Signal()

        m.d.comb += [
            push.eq(self.i.valid & self.i.ready),
            write.en.eq(push),
            write.addr.eq(written),
            write.data.eq(self.i.payload),
            read.addr.eq(taken),
            pop.eq((written != taken) & (~self.o.valid | self.o.ready)),
        ]
        with m.If(push):
            m.d.sync += written.eq(written + 1)
        with m.If(pop):
            m.d.sync += [taken.eq(taken + 1), self.o.payload.eq(read.data)]
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += self.o.valid.eq(pop)
        # A pop comes late in the cycle and reaches the read side only; the level hears of it a
        # cycle later, and ``i.ready`` and ``room`` look at the level as it was.
        m.d.sync += [
            popped.eq(pop),
            level.eq(level + push - popped),
            self.i.ready.eq(level < self.depth - 1),
            self.room.eq(self.depth - level),
        ]
        return m
