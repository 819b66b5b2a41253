"""Stores outgoing beats until the bus or the exception stream takes them."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiWrite
from ..lib.stream import Beat, Pointers

__all__ = ["ExceptionBeat", "Heading", "OutBeat", "OutputQueue"]


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


class Heading(data.StructLayout):
    """The facts about an exception packet as a whole.

    Members
    -------
    stream : 16
    sequence : 32
        LLP sequence number of the packet's FPDU.
    reason : 12
        Why the FPDU is not placed: type (upper 4 bits) and code of the error, RFC 5041 section 7.2;
        or a Diversion.
    """

    def __init__(self):
        super().__init__({"stream": 16, "sequence": 32, "reason": 12})


class ExceptionBeat(data.StructLayout):
    """A beat of an exception packet.

    Members
    -------
    beat : Beat(width)
        Those of Heading, the same on all beats of a packet.
        As in Heading, the same on all beats of a packet.
    """

    def __init__(self, width):
        super().__init__({"beat": Beat(width), **dict(Heading().members)})


class OutputQueue(wiring.Component):
    """Stores outgoing beats, and sends each to the bus or to the exception stream, in order.

    The block that drives ``i`` counts the beats: at most ``depth`` more than ``taken`` pulses. The
    heading of a packet arrives before its first beat, after that beat was counted.

    Latency: 2 cycles. Throughput: one beat per cycle. Reset: empty. Errors: none. The outputs are
    registers.

    Parameters
    ----------
    width : int
        Bits of a beat.
    depth : int

    Members
    -------
    i : In(stream.Signature(OutBeat, always_ready=True))
    heading : In(stream.Signature(Heading, always_ready=True))
    taken : Out(1)
        A beat has left the storage for the output register.
    w : Out(stream of {data: width, strb: width // 8, last: 1})
    exceptions : Out(stream.Signature(ExceptionBeat(width)))
    """

    def __init__(self, width, *, depth):
        self.width = width
        self.depth = depth
        self.shape = OutBeat(width // 8)
        super().__init__({
            "i": In(stream.Signature(self.shape, always_ready=True)),
            "heading": In(stream.Signature(Heading(), always_ready=True)),
            "taken": Out(1),
            "w": Out(AxiWrite(width).members["w"].signature),
            "exceptions": Out(stream.Signature(ExceptionBeat(width))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.storage = storage = memory.Memory(
            shape=self.shape, depth=self.depth, init=[])
        m.submodules.pointers = pointers = Pointers(self.depth)
        m.submodules.headings = headings = memory.Memory(
            shape=Heading(), depth=self.depth, init=[])
        write, read = storage.write_port(), storage.read_port(domain="comb")
        write_heading, heading = headings.write_port(), headings.read_port(domain="comb")
        out = self.exceptions.payload
        beat = Signal(self.shape, reset_less=True)
        advance = Signal()
        pop = Signal()

        m.d.comb += [
            write.en.eq(self.i.valid),
            write.addr.eq(pointers.write),
            read.addr.eq(pointers.read),
            pointers.push.eq(self.i.valid),
            pointers.pop.eq(pop),
            write.data.eq(self.i.payload),
            # Each output has its valid register, so that ``ready`` is one gate away from the
            # enable of the wide register.
            advance.eq(~((self.w.valid & ~self.w.ready)
                         | (self.exceptions.valid & ~self.exceptions.ready))),
            pop.eq(advance & pointers.some),
            self.w.payload.data.eq(beat.data),
            self.w.payload.strb.eq(beat.strobe),
            self.w.payload.last.eq(beat.last),
            out.beat.data.eq(beat.data),
            out.beat.count.eq(beat.strobe),
            out.beat.last.eq(beat.last),
            write_heading.en.eq(self.heading.valid),
            write_heading.data.eq(self.heading.payload),
        ]
        with m.If(advance):
            m.d.sync += [
                beat.eq(read.data),
                *(out[name].eq(heading.data[name]) for name, _ in Heading()),
                self.w.valid.eq(pointers.some & ~read.data.exception),
                self.exceptions.valid.eq(pointers.some & read.data.exception),
            ]
        # Each packet that has not left yet has a beat in the storage, or is the last one. So the
        # headings need no more room than the beats, and no count of their own.
        with m.If(self.heading.valid):
            m.d.sync += write_heading.addr.eq(write_heading.addr + 1)
        with m.If(pop & read.data.exception & read.data.last):
            m.d.sync += heading.addr.eq(heading.addr + 1)
        m.d.sync += self.taken.eq(pop)
        return m
