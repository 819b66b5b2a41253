"""Tables in block RAM that the host writes and the datapath looks up."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .stream import any_of, nibbles

__all__ = ["Table", "table_write"]


def table_write(shape, depth):
    """Signature of what writes a table: a stream, always ready, of ``index`` and ``entry``."""
    written = data.StructLayout({"entry": shape, "index": range(depth)})
    return stream.Signature(written, always_ready=True)


class Table(wiring.Component):
    """Entries in block RAM, read through its output register.

    An entry that is looked up in the cycle in which it is replaced, or in the two after it, shows
    as not live, and so does one that the table does not have.

    Latency: 2 cycles. Throughput: a look-up at every port and a write each cycle. Reset: the
    entries stay. Errors: none.

    Parameters
    ----------
    shape : Layout
        Shape of an entry.
    depth : int
        Entries, a power of two.
    live : str
        The member, 1 bit, that tells a live entry.
    index : int
        Bits of an index that is looked up; as many as the depth needs if not given.
    lookups : int
        Look-up ports.

    Members
    -------
    index : In(index).array(lookups)
    entry : Out(shape).array(lookups)
    write : In(table_write(shape, depth))
    """

    def __init__(self, shape, depth, *, live, index=None, lookups=1):
        self.shape = shape
        self.depth = depth
        self.live = live
        super().__init__({
            "index": In(range(depth) if index is None else index).array(lookups),
            "entry": Out(shape).array(lookups),
            "write": In(table_write(shape, depth)),
        })

    def elaborate(self, platform):
        m = Module()
        # What a block RAM gives for an entry that is being written differs from device to
        # device; it is not used, so synthesis need not provide for it.
        m.submodules.storage = storage = memory.Memory(
            shape=self.shape, depth=self.depth, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1})
        write = storage.write_port()
        # A register for the way from the host, and one for the way to many block RAMs.
        coming = Signal()
        written = Signal(self.write.p.shape())
        m.d.sync += [
            coming.eq(self.write.valid),
            written.eq(self.write.payload),
            write.en.eq(coming),
            write.addr.eq(written.index),
            write.data.eq(written.entry),
        ]
        writes = (
            (self.write.valid, self.write.payload.index),
            (coming, written.index),
            (write.en, write.addr),
        )
        for index, entry in zip(self.index, self.entry, strict=True):
            read = storage.read_port()
            within = index[: len(read.addr)]
            # Without reset, to become the output register of the block RAM.
            held = Signal(self.shape, reset_less=True)
            # It does not show if it is being replaced, or there is none. Compared in nibbles.
            hidden = Signal()
            none = Signal()
            m.d.comb += [
                read.addr.eq(within),
                entry.eq(held),
                entry[self.live].eq(held[self.live] & ~hidden),
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
                none.eq(index[len(read.addr):].any()),
                hidden.eq(none | any_of(replaced)),
                held.eq(read.data),
            ]
        return m
