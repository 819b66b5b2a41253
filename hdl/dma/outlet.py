"""Where outgoing beats wait for whoever takes them."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiWrite
from ..stream import Beat

__all__ = ["OutBeat", "Outlet"]


class OutBeat(data.StructLayout):
    """An outgoing beat, for the bus or for the exception stream.

    Members
    -------
    data : unsigned(8 * octets)
    strobe : unsigned(octets)
        Bus: the octets to write. Exception: how many octets there are, from the lowest.
    last : 1
        Bus: the burst ends. Exception: the packet ends.
    exception : 1
    """

    def __init__(self, octets):
        super().__init__({"data": 8 * octets, "strobe": octets, "last": 1, "exception": 1})


class Outlet(wiring.Component):
    """Stores outgoing beats and gives each to the bus or to the exception stream, in order.

    Whoever drives ``i`` counts the beats: no more than ``depth`` without ``taken``.

    Latency: 2 cycles. Throughput: 1 beat a cycle. Reset: empty. Errors: none. The outputs are
    registers.

    Parameters
    ----------
    width : int
        Bits of a beat.
    depth : int

    Members
    -------
    i : In(stream.Signature(OutBeat, always_ready=True))
    taken : Out(1)
        A beat has left the storage for the output register.
    w : Out(stream of {data: width, strb: width // 8, last: 1})
    exceptions : Out(stream.Signature(Beat(width)))
    """

    def __init__(self, width, *, depth):
        self.width = width
        self.depth = depth
        self.shape = OutBeat(width // 8)
        super().__init__({
            "i": In(stream.Signature(self.shape, always_ready=True)),
            "taken": Out(1),
            "w": Out(AxiWrite(width).members["w"].signature),
            "exceptions": Out(stream.Signature(Beat(width))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.storage = storage = memory.Memory(
            shape=self.shape, depth=self.depth, init=[])
        write = storage.write_port()
        read = storage.read_port(domain="comb")
        beat = Signal(self.shape, reset_less=True)
        level = Signal(range(self.depth + 1))
        some = Signal()
        push = self.i.valid
        advance = Signal()
        pop = Signal()

        m.d.comb += [
            write.en.eq(push),
            write.data.eq(self.i.payload),
            # Each output has its valid register, so that ``ready`` is one gate away from the
            # enable of the wide register.
            advance.eq(~((self.w.valid & ~self.w.ready)
                         | (self.exceptions.valid & ~self.exceptions.ready))),
            pop.eq(advance & some),
            self.w.payload.data.eq(beat.data),
            self.w.payload.strb.eq(beat.strobe),
            self.w.payload.last.eq(beat.last),
            self.exceptions.payload.data.eq(beat.data),
            self.exceptions.payload.count.eq(beat.strobe),
            self.exceptions.payload.last.eq(beat.last),
        ]
        with m.If(advance):
            m.d.sync += [
                beat.eq(read.data),
                self.w.valid.eq(some & ~read.data.exception),
                self.exceptions.valid.eq(some & read.data.exception),
            ]
        with m.If(push):
            m.d.sync += write.addr.eq(write.addr + 1)
        with m.If(pop):
            m.d.sync += read.addr.eq(read.addr + 1)
        m.d.sync += self.taken.eq(pop)
        with m.If(push & ~pop):
            m.d.sync += [level.eq(level + 1), some.eq(1)]
        with m.Elif(pop & ~push):
            m.d.sync += [level.eq(level - 1), some.eq(level != 1)]
        return m
