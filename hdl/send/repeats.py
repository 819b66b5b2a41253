"""Keeps the segments that are to be sent again, while they are on their way."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Skid

__all__ = ["SLOT_BITS", "Repeat", "RepeatTurn", "Repeats"]

#: Bits of the number of a slot, one for each segment that is on its way again.
SLOT_BITS = 3


class Repeat(data.StructLayout):
    """A segment that is to be sent again.

    Members
    -------
    stream : range(streams)
    response : 1
        The segment is one of a Read Response.
    entry : 16
        Index into the send ring of the first entry of its message; response: the MSN of its
        request, modulo 2**16.
    entries : 8
        Entries of the message; response: ignored.
    offset : 32
        Octets of the message before those of the segment.
    length : 16
        Octets of the segment with its DDP header.
    msn : 32
        Of an untagged message.
    sequence : 32
        LLP sequence number of the first octet of its FPDU, or the TSN of its chunk.
    ssn : 16
        The DDP-SSN of its chunk.
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "response": 1, "entry": 16, "entries": 8, "offset": 32,
            "length": 16, "msn": 32, "sequence": 32, "ssn": 16})


class RepeatTurn(data.StructLayout):
    """A turn of ``stream`` in which it sends the segment of ``slot`` again."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "slot": SLOT_BITS})


class Repeats(wiring.Component):
    """Gives each segment that is to be sent again a slot, until the segment has left or was given
    up.

    Latency: 1 cycle from ``i`` to ``o``. ``found`` is combinational from ``slot``, from the cycle
    after the transfer of ``o`` on. Throughput: one segment in 2 cycles. Reset: all slots are free.
    Errors: none.

    Members
    -------
    i : In(stream.Signature(Repeat(streams)))
    o : Out(stream.Signature(RepeatTurn(streams)))
    slot : In(SLOT_BITS).array(3), found : Out(Repeat(streams)).array(3)
        Look-ups of segments on their way.
    done : In(stream.Signature(SLOT_BITS, always_ready=True)).array(2)
        Slots that become free.
    look : In(range(streams)), under_way : Out(1)
        Whether a segment of a stream has a slot, answered after 1 cycle.
    busy : Out(1)
        A segment has a slot.
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "i": In(stream.Signature(Repeat(streams))),
            "o": Out(stream.Signature(RepeatTurn(streams))),
            "slot": In(SLOT_BITS).array(3),
            "found": Out(Repeat(streams)).array(3),
            "done": In(stream.Signature(SLOT_BITS, always_ready=True)).array(2),
            "look": In(range(streams)),
            "under_way": Out(1),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        slots = 1 << SLOT_BITS
        repeat = self.i.payload
        m.submodules.segments = segments = memory.Memory(
            shape=Repeat(self.streams), depth=slots, init=[], attrs={"ram_style": "distributed"})
        write = segments.write_port()
        for slot, found in zip(self.slot, self.found, strict=True):
            read = segments.read_port(domain="comb")
            m.d.comb += [read.addr.eq(slot), found.eq(read.data)]
        used, next, takes = Signal(slots), Signal(SLOT_BITS), Signal()
        streams = [Signal(range(self.streams), name=f"stream{slot}") for slot in range(slots)]
        free = Signal()  # slot ``next`` is
        m.submodules.turns = turns = Skid(RepeatTurn(self.streams))
        wiring.connect(m, turns.o, wiring.flipped(self.o))
        m.d.comb += [
            turns.i.valid.eq(self.i.valid & free),
            turns.i.payload.stream.eq(repeat.stream),
            turns.i.payload.slot.eq(next),
            self.i.ready.eq(turns.i.ready & free),
            takes.eq(self.i.valid & self.i.ready),
            write.addr.eq(next),
            write.data.eq(repeat),
            write.en.eq(takes),
            self.busy.eq(used.any()),
        ]
        m.d.sync += free.eq(~used.bit_select(next, 1) & ~takes)
        m.d.sync += self.under_way.eq(Cat(
            used[slot] & (streams[slot] == self.look) for slot in range(slots)).any())
        for done in self.done:
            with m.If(done.valid):
                m.d.sync += used.bit_select(done.payload, 1).eq(0)
        with m.If(takes):
            m.d.sync += [next.eq(next + 1), used.bit_select(next, 1).eq(1)]
            with m.Switch(next):
                for slot, stream_ in enumerate(streams):
                    with m.Case(slot):
                        m.d.sync += stream_.eq(repeat.stream)
        return m
