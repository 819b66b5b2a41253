"""The Steering Tag table."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["StagEntry", "StagTable"]


class StagEntry(data.StructLayout):
    """An entry of the table: the region that a Steering Tag names.

    Members
    -------
    valid : 1
    key : 8
        The lower 8 bits of the STag.
    tag : 24 - log2(entries)
        The bits of the STag's index above those that select the entry.
    remote_write, remote_read : 1
        Access rights.
    bound : 1
        ``owner`` is a DDP Stream; otherwise it is a Protection Domain (RFC 5041 section 8.2).
    owner : 16
    to : 64
        Tagged Offset of the first octet.
    length : 64
        Octets.
    address : 64
        Host address of the first octet.
    """

    def __init__(self, entries):
        super().__init__(
            {
                "valid": 1,
                "key": 8,
                "tag": 24 - (entries.bit_length() - 1),
                "remote_write": 1,
                "remote_read": 1,
                "bound": 1,
                "owner": 16,
                "to": 64,
                "length": 64,
                "address": 64,
            }
        )


class StagTable(wiring.Component):
    """Entries in block RAM, read through its output register.

    An STag is a 24-bit index and an 8-bit key. The index's lower bits select the entry and its
    upper bits are compared with the key, so that any STag can be registered, but no two at a
    time whose indices agree in the lower bits. An entry that is looked up in the cycle in which
    it is replaced is shown as not valid.

    Latency: 2 cycles. Throughput: one look-up and one write a cycle. Reset: the entries stay.
    Errors: none.

    Members
    -------
    index : In(range(entries))
    entry : Out(StagEntry(entries))
    write : In(stream.Signature({index, entry}, always_ready=True))
    """

    def __init__(self, entries):
        self.entries = entries
        super().__init__(
            {
                "index": In(range(entries)),
                "entry": Out(StagEntry(entries)),
                "write": In(
                    stream.Signature(
                        data.StructLayout({"index": range(entries), "entry": StagEntry(entries)}),
                        always_ready=True,
                    )
                ),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # What a block RAM gives for an entry that is being written differs from device to
        # device; it is not used, so synthesis need not provide for it.
        m.submodules.storage = storage = memory.Memory(
            shape=StagEntry(self.entries), depth=self.entries, init=[], attrs={"no_rw_check": 1}
        )
        write = storage.write_port()
        read = storage.read_port()
        # Without reset, to become the output register of the block RAM.
        held = Signal(StagEntry(self.entries), reset_less=True)
        clash, clash_held = Signal(), Signal()
        m.d.comb += [
            write.en.eq(self.write.valid),
            write.addr.eq(self.write.payload.index),
            write.data.eq(self.write.payload.entry),
            read.addr.eq(self.index),
            self.entry.eq(held),
            self.entry.valid.eq(held.valid & ~clash_held),
        ]
        m.d.sync += [
            clash.eq(self.write.valid & (self.write.payload.index == self.index)),
            clash_held.eq(clash),
            held.eq(read.data),
        ]
        return m
