"""Implements a board's memory in block RAM, which the RNIC and the host access."""

from amaranth import *
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Store, delayed
from .axi import AxiRead, AxiWrite, Response

__all__ = ["PlacementMemory"]


class _Writer(wiring.Component):
    """Takes the bursts of a port, one after the other.

    Latency: 1 cycle from an address to its data, and from the last beat to the response.
    Throughput: one beat per cycle, and 2 cycles between bursts. Reset: idle. Errors: DECERR for a
    burst that is not entirely in the memory; none of its beats is written.

    Members
    -------
    bus : In(AxiWrite(width))
    go : In(1)
        A beat can be written.
    write : Out(1)
        A beat is written in this cycle; only if its burst is in the memory.
    address : Out(range(depth))
    """

    def __init__(self, width, depth):
        self.width, self.depth = width, depth
        super().__init__({
            "bus": In(AxiWrite(width)), "go": In(1), "write": Out(1), "address": Out(range(depth)),
        })

    def elaborate(self, platform):
        m = Module()
        bus, lane = self.bus, (self.width // 8).bit_length() - 1
        burst = bus.aw.payload
        first, end = Signal(64 - lane), Signal(65 - lane)
        inside = Signal()
        m.d.comb += [first.eq(burst.addr[lane:]), end.eq(first + burst.len)]
        with m.FSM():
            with m.State("Address"):
                m.d.comb += bus.aw.ready.eq(1)
                with m.If(bus.aw.valid):
                    m.d.sync += [self.address.eq(first), inside.eq(end < self.depth)]
                    m.next = "Data"
            with m.State("Data"):
                m.d.comb += [
                    bus.w.ready.eq(self.go), self.write.eq(self.go & bus.w.valid & inside)]
                with m.If(self.go & bus.w.valid):
                    m.d.sync += self.address.eq(self.address + 1)
                    with m.If(bus.w.payload.last):
                        m.next = "Response"
            with m.State("Response"):
                m.d.comb += [
                    bus.b.valid.eq(1),
                    bus.b.payload.resp.eq(Mux(inside, Response.OKAY, Response.DECERR)),
                ]
                with m.If(bus.b.ready):
                    m.next = "Address"
        return m


class _Reader(wiring.Component):
    """Answers the bursts of a read port, one after the other.

    Latency: 4 cycles from an address to its first beat. Throughput: one beat per cycle, and 1 cycle
    between bursts. Reset: idle. Errors: DECERR on all beats of a burst that is not entirely in the
    memory.

    Members
    -------
    bus : In(AxiRead(width, ids))
    go : In(1)
        The word at ``address`` can be read.
    address : Out(range(depth))
    data : In(width)
        The word, 2 cycles after its address.
    """

    def __init__(self, width, depth, ids):
        self.width, self.depth = width, depth
        super().__init__({
            "bus": In(AxiRead(width, ids)), "go": In(1), "address": Out(range(depth)),
            "data": In(width),
        })

    def elaborate(self, platform):
        m = Module()
        bus, lane = self.bus, (self.width // 8).bit_length() - 1
        burst, beat = bus.ar.payload, bus.r.payload
        m.submodules.beats = beats = Store(beat.shape(), depth=8)
        wiring.connect(m, beats.o, wiring.flipped(bus.r))
        first, end = Signal(64 - lane), Signal(65 - lane)
        left, number, inside, reads = Signal(8), Signal.like(burst.id), Signal(), Signal()
        m.d.comb += [first.eq(burst.addr[lane:]), end.eq(first + burst.len)]
        with m.FSM():
            with m.State("Address"):
                m.d.comb += bus.ar.ready.eq(1)
                with m.If(bus.ar.valid):
                    m.d.sync += [
                        self.address.eq(first), left.eq(burst.len), number.eq(burst.id),
                        inside.eq(end < self.depth)]
                    m.next = "Data"
            with m.State("Data"):
                # The store has room for the beats that are on their way to it.
                m.d.comb += reads.eq(self.go & beats.half)
                with m.If(reads):
                    m.d.sync += [self.address.eq(self.address + 1), left.eq(left - 1)]
                    with m.If(left == 0):
                        m.next = "Address"
        m.d.comb += [
            beats.i.valid.eq(delayed(m, 2, reads, "read")),
            beats.i.payload.data.eq(self.data),
            beats.i.payload.resp.eq(
                Mux(delayed(m, 2, inside, "inside"), Response.OKAY, Response.DECERR)),
            beats.i.payload.last.eq(delayed(m, 2, left == 0, "last")),
            beats.i.payload.id.eq(delayed(m, 2, number, "number")),
        ]
        return m


class PlacementMemory(wiring.Component):
    """Provides block RAM with two AXI4 write ports and a port for the host, which take turns; and
    with ``ids`` a read port, too.

    The host has precedence over all buses, and ``completions`` over ``bus``.

    Latency: a write is visible after 2 cycles, so that a read that begins when the write's response
    is given sees it; a host read takes 2 cycles. Throughput: one beat written and one read per
    cycle. Reset: contents stay; initially they are 0. Errors: DECERR for a burst that is not
    entirely in the memory.

    Parameters
    ----------
    width : int
        Width of the buses, in bits.
    octets : int
        Size of the memory, from address 0 up; a power of two.
    ids : int
        IDs of the read port; 0: there is none.

    Members
    -------
    bus, completions : In(AxiWrite(width))
    reads : In(AxiRead(width, ids))
        With ``ids`` only.
    address : In(30)
        Number of the 32-bit word that the host accesses.
    read : In(1)
        With ``ids`` only: the host reads in the next cycle.
    write : In(4), data : In(32)
        Octets of that word to write in this cycle.
    answer : Out(32), found : Out(1)
        The word, and whether the memory has it, 2 cycles after its address.
    """

    def __init__(self, width, octets, *, ids=0):
        if not isinstance(octets, int) or octets & (octets - 1) or octets < 1024:
            raise ValueError(
                f"PlacementMemory octets must be a power of two and at least 1024, not {octets!r}")
        self.width, self.octets, self.ids = width, octets, ids
        self.depth = octets // (width // 8)
        super().__init__({
            "bus": In(AxiWrite(width)),
            "completions": In(AxiWrite(width)),
            **({"reads": In(AxiRead(width, ids)), "read": In(1)} if ids else {}),
            "address": In(30),
            "write": In(4),
            "data": In(32),
            "answer": Out(32),
            "found": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        words = self.width // 32
        select = words.bit_length() - 1
        # A word is never read in the cycle in which it is written, or its value is not used then.
        # Not a BlockRam, which has no strobes for octets.
        m.submodules.storage = storage = memory.Memory(
            shape=self.width, depth=self.depth, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1})
        write = storage.write_port(granularity=8)
        read = storage.read_port()
        m.submodules.placing = placing = _Writer(self.width, self.depth)
        m.submodules.completing = completing = _Writer(self.width, self.depth)
        wiring.connect(m, wiring.flipped(self.bus), placing.bus)
        wiring.connect(m, wiring.flipped(self.completions), completing.bus)
        host, inside = Signal(), Signal()
        m.d.comb += [
            host.eq(self.write.any()),
            inside.eq(self.address < self.octets // 4),
            completing.go.eq(~host),
            placing.go.eq(~host & ~completing.write),
        ]
        m.d.sync += write.en.eq(0)
        for writer, bus in ((placing, self.bus), (completing, self.completions)):
            with m.If(writer.write):
                m.d.sync += [
                    write.addr.eq(writer.address),
                    write.data.eq(bus.w.payload.data),
                    write.en.eq(bus.w.payload.strb),
                ]
        with m.If(host & inside):
            m.d.sync += [
                write.addr.eq(self.address[select:]),
                write.data.eq(self.data.replicate(words)),
                write.en.eq(self.write << (self.address[:select] << 2)),
            ]
        # Without reset, to become the output register of the block RAM.
        held = Signal(self.width, reset_less=True)
        word, found = Signal(select), Signal()
        word_1 = Signal.like(word)
        m.d.comb += [
            read.addr.eq(self.address[select:]),
            read.en.eq(1),
            self.answer.eq(held.word_select(word_1, 32)),
        ]
        m.d.sync += [
            held.eq(read.data),
            word.eq(self.address[:select]), word_1.eq(word),
            found.eq(inside), self.found.eq(found),
        ]
        if self.ids:
            m.submodules.reading = reading = _Reader(self.width, self.depth, self.ids)
            wiring.connect(m, wiring.flipped(self.reads), reading.bus)
            turn = Signal()
            m.d.sync += turn.eq(self.read)
            m.d.comb += [
                reading.go.eq(~turn & ~(write.en.any() & (write.addr == reading.address))),
                reading.data.eq(held),
            ]
            with m.If(~turn):
                m.d.comb += read.addr.eq(reading.address)
        return m
