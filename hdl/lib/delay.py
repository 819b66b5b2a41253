"""Delays values by a fixed number of cycles, in memory instead of registers."""

from amaranth import *
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Delay"]

#: Cycles of delay of one distributed RAM of 16 entries with the register after it.
RING = 17


class Delay(wiring.Component):
    """Outputs the value of ``cycles`` cycles ago.

    Up to 17 cycles are one ring of distributed RAM, more are several; or all are one ring of block
    RAM, read through its output register.

    Latency: ``cycles``. Throughput: one value per cycle. Reset: the values stay; registers beside
    the block have to say whether they are valid. Errors: none.

    Parameters
    ----------
    shape
    cycles : int
        From 3 up.
    block : bool
        Use block RAM.

    Members
    -------
    i : In(shape)
    o : Out(shape)
    """

    def __init__(self, shape, cycles, *, block=False):
        if not isinstance(cycles, int):
            raise TypeError(f"Delay must be an integer number of cycles, not {cycles!r}")
        if cycles < 3:
            raise ValueError(f"Delay must be 3 cycles or more, not {cycles!r}")
        self.shape = shape
        self.cycles = cycles
        self.block = block
        super().__init__({"i": In(shape), "o": Out(shape)})

    def elaborate(self, platform):
        m = Module()
        if self.block:
            m.d.comb += self.o.eq(self._ring(m, self.i, self.cycles, "ring"))
            return m
        value, left = self.i, self.cycles
        for number in range(-(-self.cycles // RING), 0, -1):
            value = self._ring(m, value, left // number, f"ring_{number}")
            left -= left // number
        m.d.comb += self.o.eq(value)
        return m

    def _ring(self, m, value, cycles, name):
        # An entry is read just before it is written: in the same cycle in distributed RAM; in the
        # cycle before in block RAM, which takes one cycle more to read. Not a BlockRam, so that
        # both kinds of memory have the same ring.
        depth = cycles - 1
        m.submodules[name] = storage = memory.Memory(
            shape=self.shape, depth=depth, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1} if self.block else {})
        write = storage.write_port()
        read = storage.read_port(domain="sync" if self.block else "comb")
        # Without reset, to become the output register of a block RAM.
        held = Signal(self.shape, name=f"{name}_held", reset_less=True)
        entry, following = (
            Signal(range(depth), name=f"{name}_{kind}", init=init)
            for kind, init in (("entry", 0), ("following", 1)))
        m.d.comb += [write.en.eq(1), write.addr.eq(entry), write.data.eq(value)]
        m.d.comb += read.addr.eq(following if self.block else entry)
        m.d.sync += [
            held.eq(read.data),
            entry.eq(following),
            following.eq(Mux(following == depth - 1, 0, following + 1)),
        ]
        return held
