"""Proves that memories return the item that was written last, whatever a device does."""

from amaranth import *
from amaranth.hdl import Cover

from .harness import Harness, if_

__all__ = ["Latest", "Steps", "Stored"]


class _Followed(Harness):
    """Follows any one address of a memory, and the items that are written to it."""

    DEPTH = 3

    def rules(self, m):
        dut = self.dut
        write = dut.write.payload
        self.address = self.any(range(dut.depth), name="address", constant=True)
        self.writes = dut.write.valid & (write.address == self.address)
        self.reads = dut.address[0] == self.address
        self.item = Signal.like(Value.cast(write.data))
        with m.If(self.writes):
            m.d.sync += self.item.eq(write.data)


class Stored(_Followed):
    """Proves that :class:`~..lib.blockram.BlockRam` returns the item that was written last.

    The item of an address that is read in the cycle in which it is written is not looked at.
    Assumes nothing. By induction of depth ``DEPTH``.
    """

    def rules(self, m):
        super().rules(m)
        dut, inside = self.dut, self.inside
        read, shown = Signal.like(self.item), Signal.like(self.item)
        known, valid = Signal(), Signal()
        with m.If(dut.moves):
            m.d.sync += [read.eq(self.item), known.eq(self.reads & ~self.writes)]
        with m.If(dut.shows):
            m.d.sync += [shown.eq(read), valid.eq(known)]
        self.always(if_(valid, dut.data[0] == shown), "the item that was written last")
        self.lemma(inside.row("storage", self.address) == self.item, "it is stored")
        self.lemma(if_(known, inside.read("storage") == read), "it is read")
        m.d.comb += Cover(valid & (shown != 0) & (self.item != shown), "it is read before a write")


class Latest(_Followed):
    """Proves that :class:`~..lib.blockram.ForwardedTable` shows a reader the latest entry.

    The entry includes the write of the cycle in which the reader gives the address. Assumes
    nothing. By induction of depth ``DEPTH``.
    """

    def rules(self, m):
        super().rules(m)
        dut, inside = self.dut, self.inside
        latest = Mux(self.writes, dut.write.payload.data, self.item)
        seen, shown = self.past(latest), self.past(latest, 2)
        asked, valid = self.past(self.reads), self.past(self.reads, 2)
        self.always(if_(valid, dut.data[0] == shown), "the latest entry")
        self.lemma(inside.table("", self.address) == self.item, "it is stored")
        self.lemma(if_(asked, inside.found("")[0] == seen), "it is read")
        clash = self.past(self.reads & self.writes, 2)
        m.d.comb += Cover(clash & (shown != 0) & (shown != self.item), "it is read in a write")


class Steps(Harness):
    """Proves that a step of :class:`~..lib.blockram.StepTable` sees all changes before it.

    Assumes that no step begins in the cycle after another one, and that no entry is replaced while
    a step of it is under way. By induction of depth ``DEPTH``.
    """

    DEPTH = 6

    def rules(self, m):
        dut, inside = self.dut, self.inside
        address = self.any(range(dut.depth), name="address", constant=True)
        begins = dut.step.valid & (dut.step.payload == address)
        past = [self.past(begins, cycles) for cycles in (1, 2, 3)]
        ends, write = dut.steps & past[-1], dut.write
        replaced = write.valid & write.ready & (write.payload.address == address)
        self.assume(~(dut.step.valid & self.past(dut.step.valid)))
        self.assume(~(replaced & (begins | Cat(past).any())))
        item = Signal.like(Value.cast(dut.found))
        with m.If(ends):
            m.d.sync += item.eq(dut.becomes)
        with m.If(replaced):
            m.d.sync += item.eq(write.payload.data)
        self.always(dut.steps == self.past(dut.step.valid, 3), "three cycles later")
        self.always(if_(ends, dut.found == item), "the latest entry")
        ended = self.past(ends)
        self.lemma(if_(ended, inside["changed"] == item), "on its way")
        self.lemma(ended | (inside.table("table", address) == item), "it is stored")
        near, far = self.past(ends, 2), self.past(ends, 3)
        m.d.comb += Cover(ends & near & (item != 0), "a step two cycles after the last one")
        m.d.comb += Cover(ends & far & (item != 0), "a step three cycles after the last one")
