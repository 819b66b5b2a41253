"""Holds received octets in the packet buffer until their digest is known to be good."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import BlockRam
from ..lib.stream import delayed

__all__ = ["PacketBuffer", "PacketBuffers", "Store"]


class Store(data.StructLayout):
    """A write to the packet buffer: ``data`` for beat ``address``."""

    def __init__(self, config):
        super().__init__(
            {"address": range(config.buffer_octets // config.octets), "data": config.width}
        )


class PacketBuffer(wiring.Component):
    """Stores beats in a ring of block RAM, and frees them in order.

    A register for the wires from many block RAMs follows them.

    Latency: ``LATENCY`` cycles from ``address`` to ``data``. Throughput: one write and one read per
    cycle. Reset: empty. Errors: none; writers must wait while ``space`` is low.

    Members
    -------
    store : In(stream.Signature(Store, always_ready=True))
    address : In(range(beats)), data : Out(width)
    next : In(range(beats))
        Address at which the next beat will be stored.
    free : In(stream.Signature(range(beats), always_ready=True))
        Beats before this one are free.
    space : Out(1)
        There is room for a few more beats.
    """

    LATENCY = 3
    #: Beats kept free: those still on their way when ``space`` falls, and one because a release may
    #: lag by one beat.
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
        # A beat is never read in the cycle in which it is written.
        m.submodules.ram = ram = BlockRam(self.config.width, self.depth)
        near = Signal(self.config.width, reset_less=True)
        kept = Signal(range(self.depth))
        used = Signal(range(self.depth))
        with m.If(self.free.valid):
            m.d.sync += kept.eq(self.free.payload)
        m.d.comb += [
            ram.write.valid.eq(self.store.valid),
            ram.write.payload.address.eq(self.store.payload.address),
            ram.write.payload.data.eq(self.store.payload.data),
            ram.address[0].eq(self.address),
            self.data.eq(near),
        ]
        m.d.sync += [
            near.eq(ram.data[0]),
            used.eq(self.next - kept),
            self.space.eq(used < self.depth - self.MARGIN),
        ]
        return m


class PacketBuffers(wiring.Component):
    """Holds a packet buffer for each source of packets, and reads the one that is asked for.

    Latency, Throughput, Reset and Errors are those of :class:`PacketBuffer`.

    Parameters
    ----------
    config : RnicConfig
    sources : int
        1 or 2.

    Members
    -------
    store, next, space
        Those of each :class:`PacketBuffer`, in arrays.
    address : In(range(beats)), data : Out(width)
    free : In(stream.Signature(range(beats), always_ready=True))
    address_second, free_second : In(1)
        With two sources only: the address, the beats to free, are in the second buffer.
    """

    def __init__(self, config, *, sources):
        self.config = config
        self.buffers = [PacketBuffer(config) for _ in range(sources)]
        members = self.buffers[0].signature.members
        super().__init__({
            **{name: members[name].array(sources) for name in ("store", "next", "space")},
            **{name: members[name] for name in ("address", "data", "free")},
            **({"address_second": In(1), "free_second": In(1)} if sources == 2 else {}),
        })

    def elaborate(self, platform):
        m = Module()
        for k, buffer in enumerate(self.buffers):
            m.submodules[f"buffer_{k}"] = buffer
            wiring.connect(m, wiring.flipped(self.store[k]), buffer.store)
            m.d.comb += [
                buffer.next.eq(self.next[k]),
                self.space[k].eq(buffer.space),
                buffer.address.eq(self.address),
                buffer.free.payload.eq(self.free.payload),
            ]
        if len(self.buffers) == 1:
            m.d.comb += [
                self.data.eq(buffer.data),
                buffer.free.valid.eq(self.free.valid),
            ]
        else:
            first, second = self.buffers
            m.d.comb += [
                self.data.eq(Mux(
                    delayed(m, buffer.LATENCY, self.address_second, "data_second"),
                    second.data, first.data)),
                first.free.valid.eq(self.free.valid & ~self.free_second),
                second.free.valid.eq(self.free.valid & self.free_second),
            ]
        return m
