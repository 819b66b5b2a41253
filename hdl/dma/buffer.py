"""The packet buffer: octets wait here until their digest is known to be good."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["PacketBuffer", "Store"]


class Store(data.StructLayout):
    """A write to the packet buffer: ``data`` to beat ``address``."""

    def __init__(self, config):
        super().__init__(
            {"address": range(config.buffer_octets // config.octets), "data": config.width}
        )


class PacketBuffer(wiring.Component):
    """A ring of beats in block RAM, read through its output register and one for the way from it.

    Latency: 3 cycles from ``address`` to ``data``. Throughput: a write and a read a cycle.
    Reset: empty. Errors: none; ``space`` must be honoured.

    Members
    -------
    store : In(stream.Signature(Store, always_ready=True))
    address : In(range(beats)), data : Out(width)
    next : In(range(beats))
        Where the next beat will be stored.
    free : In(stream.Signature(range(beats), always_ready=True))
        Beats before this one are no longer needed.
    space : Out(1)
        A few more beats can be stored.
    """

    #: Beats that are kept free: those on their way when ``space`` falls, and the one a release
    #: may lag by.
    MARGIN = 6

    def __init__(self, config):
        self.config = config
        self.depth = config.buffer_octets // config.octets
        super().__init__(
            {
                "store": In(stream.Signature(Store(config), always_ready=True)),
                "address": In(range(self.depth)),
                "data": Out(config.width),
                "next": In(range(self.depth)),
                "free": In(stream.Signature(range(self.depth), always_ready=True)),
                "space": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # A beat is not read in the cycle that it is written in, so synthesis need not provide
        # for that.
        m.submodules.storage = storage = memory.Memory(
            shape=self.config.width, depth=self.depth, init=[], attrs={"no_rw_check": 1}
        )
        write, read = storage.write_port(), storage.read_port()
        # Without reset, to become the output register of the block RAM.
        held = Signal(self.config.width, reset_less=True)
        near = Signal(self.config.width, reset_less=True)
        kept = Signal(range(self.depth))
        used = Signal(range(self.depth))
        with m.If(self.free.valid):
            m.d.sync += kept.eq(self.free.payload)
        m.d.comb += [
            write.en.eq(self.store.valid),
            write.addr.eq(self.store.payload.address),
            write.data.eq(self.store.payload.data),
            read.addr.eq(self.address),
            self.data.eq(near),
        ]
        m.d.sync += [
            held.eq(read.data),
            near.eq(held),
            used.eq(self.next - kept),
            self.space.eq(used < self.depth - self.MARGIN),
        ]
        return m
