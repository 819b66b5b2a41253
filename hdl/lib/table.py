"""Implements tables in block RAM that the host writes and the datapath looks up."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .blockram import BlockRam
from .stream import any_of, nibbles

__all__ = ["Table", "table_write"]


def table_write(shape, depth):
    """Returns the signature of a table's write port: a stream, always ready, of entry and index."""
    written = data.StructLayout({"entry": shape, "index": range(depth)})
    return stream.Signature(written, always_ready=True)


class Table(wiring.Component):
    """Holds entries in block RAM, read through its output register.

    A look-up shows the entry as not live if the entry is replaced in the same cycle or was replaced
    in one of the two cycles before, if the table has no entry of that index, and one cycle after
    ``hide``.

    Latency: 2 cycles. Throughput: one look-up per port and one write each cycle. Reset: the entries
    stay. Errors: none.

    Parameters
    ----------
    shape : Layout
        Shape of an entry.
    depth : int
        Entries, a power of two.
    live : str
        Name of the 1-bit member that marks an entry as live.
    index : int
        Bits of an index in a look-up; if not given, as many as the depth needs.
    lookups : int
        Number of look-up ports.

    Members
    -------
    index : In(index).array(lookups)
    entry : Out(shape).array(lookups)
    write : In(table_write(shape, depth))
    hide : In(1)
    """

    def __init__(self, shape, depth, *, live, index=None, lookups=1):
        self.shape = shape
        self.depth = depth
        self.live = live
        super().__init__({
            "index": In(range(depth) if index is None else index).array(lookups),
            "entry": Out(shape).array(lookups),
            "write": In(table_write(shape, depth)),
            "hide": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        # The value of an entry that is being written is not used.
        m.submodules.ram = ram = BlockRam(self.shape, self.depth, reads=len(self.index))
        write = ram.write
        # One register for the wire from the host, and one for the wires to many block RAMs.
        coming = Signal()
        written = Signal(self.write.p.shape())
        m.d.sync += [
            coming.eq(self.write.valid),
            written.eq(self.write.payload),
            write.valid.eq(coming),
            write.payload.address.eq(written.index),
            write.payload.data.eq(written.entry),
        ]
        writes = (
            (self.write.valid, self.write.payload.index),
            (coming, written.index),
            (write.valid, write.payload.address),
        )
        for index, entry, address, found in zip(
                self.index, self.entry, ram.address, ram.data, strict=True):
            within = index[: len(address)]
            # An entry is hidden if it is being replaced or does not exist. Compared in nibbles.
            hidden = Signal()
            none = Signal()
            m.d.comb += [
                address.eq(within),
                entry.eq(found),
                entry[self.live].eq(found[self.live] & ~hidden),
            ]
            replaced = []
            for which, (valid, at) in enumerate(writes):
                equal = nibbles(at, within)
                same = Signal(1 + len(equal), name=f"same{which}")
                m.d.sync += same[0].eq(valid)
                with m.If(valid):
                    m.d.sync += same[1:].eq(equal)
                replaced.append(same.all())
            m.d.sync += [
                none.eq(index[len(address):].any()),
                hidden.eq(none | self.hide | any_of(replaced)),
            ]
        return m
