"""Keeps octets that came with work requests, and answers the reads of them."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.blockram import BlockRam
from ..lib.stream import Store, delayed

__all__ = ["ROW", "InlineMemory", "InlineRead"]

#: Octets of a row: those of an entry of the send ring.
ROW = 64
#: Beats on their way from the memory to the output, and some to spare.
QUEUE = 8


class InlineRead(data.StructLayout):
    """A burst to be read: ``addr`` (64), ``len`` (8) and ``id`` as on the channel AR of AXI4.

    ``none`` (1): no beat is read. The rows before ``addr`` are free from then on, as they are with
    each read.
    """

    def __init__(self, ids):
        super().__init__({"addr": 64, "len": 8, "id": range(ids), "none": 1})


class InlineMemory(wiring.Component):
    """Keeps rows until they were read, and answers reads as a bus does.

    Rows are read in the order in which they came, and none is read again after a later one. So a
    read frees all rows before its own. A read waits for rows that have not come yet.

    Latency: 4 cycles from ``ar`` to ``r``. Throughput: one beat per cycle; a row takes as many
    cycles as it has beats. Reset: empty; ``ar`` empty. Errors: none.

    Parameters
    ----------
    width : int
        Bits in a beat: 64, 128, 256 or 512.
    rows : int
        A power of two, 4 to 256.
    ids : int
        Number of IDs.

    Members
    -------
    i : In(stream.Signature(512))
        The next row, the first octet lowest. Row ``n`` has the addresses from 64 * ``n`` on, modulo
        the size of the memory.
    ar : In(stream.Signature(InlineRead(ids)))
    r : Out(stream of {data, id, last: 1})
    """

    def __init__(self, width, *, rows, ids):
        self.width, self.rows, self.ids = width, rows, ids
        super().__init__({
            "i": In(stream.Signature(8 * ROW)),
            "ar": In(stream.Signature(InlineRead(ids))),
            "r": Out(stream.Signature(
                data.StructLayout({"data": width, "id": range(ids), "last": 1}))),
        })

    def elaborate(self, platform):
        m = Module()
        beats = 8 * ROW // self.width  # of a row
        lane, split = exact_log2(self.width // 8), exact_log2(beats)
        m.submodules.ram = ram = BlockRam(self.width, self.rows * beats)
        row_bits = exact_log2(self.rows)
        # Rows that have come, and rows that are free again; modulo twice the number of rows.
        come, freed = Signal(row_bits + 1), Signal(row_bits + 1)
        there = Signal(row_bits + 1)
        row, left = Signal(8 * ROW, reset_less=True), Signal(range(beats + 1))
        # One cycle late: one more row may come.
        m.d.sync += self.i.ready.eq((there < self.rows - 2) & Mux(
            self.i.valid & self.i.ready, beats == 1, left <= 2))
        m.d.comb += [
            there.eq(come - freed),
            ram.write.valid.eq(left.any()),
            ram.write.payload.address.eq(Cat((beats - left)[:split], come[:row_bits])),
            ram.write.payload.data.eq(row[:self.width]),
        ]
        # ``i.valid`` does not gate the wide register: its payload is loaded in any case.
        with m.If(self.i.ready):
            m.d.sync += row.eq(self.i.payload)
        with m.Else():
            m.d.sync += row.eq(row >> self.width)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += left.eq(beats)
        with m.Elif(left.any()):
            m.d.sync += left.eq(left - 1)
        with m.If(left == 1):
            m.d.sync += come.eq(come + 1)

        m.submodules.queue = queue = Store(
            self.r.payload.shape(), depth=QUEUE, direct=True)
        wiring.connect(m, queue.o, wiring.flipped(self.r))
        read, beat = self.ar.payload, Signal(8)
        at, last, ends = Signal(row_bits + split), Signal(row_bits + 1), Signal()
        # A beat's row is compared with those that have come; then the beat waits until it is there.
        shape = data.StructLayout({
            "none": 1, "address": at.shape(), "id": range(self.ids), "last": 1})
        next_one, now = Signal(shape, reset_less=True), Signal(shape, reset_less=True)
        compares, waits, here, own = Signal(), Signal(), Signal(), Signal.like(last)
        served, moves, loads, coming = Signal(), Signal(), Signal(), Signal(2)

        def came(row):
            # The highest bit is 0 once the row has come: fewer than ``rows`` others came after it.
            return ~(come + ~row)[row_bits]

        m.d.comb += [
            at.eq(read.addr[lane:][:len(at)] + beat),
            ends.eq(read.none | (beat == read.len)),
            served.eq(waits & here & queue.half),
            moves.eq(~waits | served),
            loads.eq(~compares | moves),
            self.ar.ready.eq(loads & ends),
            ram.address[0].eq(now.address),
        ]
        with m.If(loads):
            m.d.sync += [
                compares.eq(self.ar.valid),
                next_one.none.eq(read.none),
                next_one.address.eq(at),
                next_one.id.eq(read.id),
                next_one.last.eq(ends),
            ]
            with m.If(self.ar.valid):
                m.d.sync += [
                    beat.eq(Mux(ends, 0, beat + 1)),
                    last.eq(Cat(at[split:], last[-1] ^ (at[split:] < last[:-1]))),
                ]
        with m.If(moves):
            m.d.sync += [waits.eq(compares), now.eq(next_one), own.eq(last), here.eq(came(last))]
        with m.Else():
            m.d.sync += here.eq(came(own))
        with m.If(served):
            m.d.sync += freed.eq(own)
        m.d.sync += coming.eq(Cat(served & ~now.none, coming))
        m.d.comb += [
            queue.i.valid.eq(coming[-1]),
            queue.i.payload.data.eq(ram.data[0]),
            queue.i.payload.id.eq(delayed(m, 2, now.id, "id")),
            queue.i.payload.last.eq(delayed(m, 2, now.last, "ends")),
        ]
        return m
