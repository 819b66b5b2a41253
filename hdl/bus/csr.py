"""Implements the control and status registers on AXI4-Lite."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import any_of
from ..spec import regs
from .axi import AxiLite, Response

__all__ = ["Registers"]


class Registers(wiring.Component):
    """Decodes accesses to the registers of :mod:`ddp_rnic.hdl.spec.regs`.

    Latency: a write's response comes 5 cycles after address and data, a read's data 5 cycles after
    the address. Throughput: one access at a time. Reset: registers are 0.
    Errors: DECERR for an address without a register, SLVERR for a write to a read-only register;
    neither access has an effect, and a write without a strobe has none either. An access to a
    doorbell page takes as many cycles as one to a register, whatever it is, and its response is
    OKAY; so a flood of them keeps any other access waiting for one access, as a flood of writes to
    a register does.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    bus : In(AxiLite(17))
    hold : In(1)
        While high, no write begins, so that registers keep their values.
    octets_read : Out(1)
        In a device that receives only: high for one cycle when PLACED_OCTETS_LO is read.
    rings : Out(1)
        High for one cycle when CQ_DOORBELL has been written.
    send_rings, send_releases : Out(1)
        In a device that sends only: the same of SEND_DOORBELL and SEND_RELEASED.
    page : Out(5)
        Page of the write that is being decoded. Without a doorbell page it is 0.
    word : Out(32)
        Value of the latest write.
    page_rings, page_strays : Out(1) for each of DOORBELLS, Out(1)
        A doorbell was written to a page; a page was written with no effect. Both are high for one
        cycle, 3 cycles after address and data came, as is ``rings``.
    A port for each register, with its name in lower case: In(32) if it is read-only, Out(32) if it
    is read-write, Out(1) if it is write-only, high for one cycle when the host writes it.
    """

    def __init__(self, config):
        self.config, self.registers = config, regs.registers_of(config)
        members = {
            "bus": In(AxiLite(regs.ADDRESS_BITS)), "hold": In(1), "rings": Out(1),
            "page": Out(regs.PAGE_BITS), "word": Out(32),
            "page_rings": Out(len(regs.DOORBELLS)), "page_strays": Out(1),
            **({"octets_read": Out(1)} if config.receive else {}),
            **({"send_rings": Out(1), "send_releases": Out(1)} if config.transmit else {})}
        for register in self.registers:
            members[register.name.lower()] = {"ro": In(32), "rw": Out(32), "wo": Out(1)}[
                register.access
            ]
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        ports = [(register, getattr(self, register.name.lower())) for register in self.registers]
        self._write(m, ports)
        self._read(m, ports)
        return m

    def _write(self, m, ports):
        """Adds the write channels: wait for address and data, decode, act, answer."""
        bus = self.bus
        # ``free`` holds the state of an access in one register: it enables wide registers.
        free, begins, writing = Signal(init=1), Signal(), Signal()
        write_hit = _select(m, ports, free, bus.aw.payload.addr, "write")
        answers, acts = Signal(), Signal()  # ``acts``: an octet at least is written
        allowed = _some(m, ports, writing, write_hit, "allowed", "rw", "wo")
        refused = _some(m, ports, writing, write_hit, "refused", "ro")
        paged = self._write_page(m, free, writing)
        m.d.sync += [
            begins.eq(0),
            writing.eq(begins),
            acts.eq(bus.w.payload.strb.any()),
            self.rings.eq(writing & acts & write_hit[self._place("CQ_DOORBELL")]),
            answers.eq(writing),
            *(port.eq(writing & acts & hit) for hit, (register, port) in zip(
                write_hit, ports, strict=True) if register.access == "wo"),
        ]
        if self.config.transmit:
            m.d.sync += [
                self.send_rings.eq(writing & acts & write_hit[self._place("SEND_DOORBELL")]),
                self.send_releases.eq(writing & acts & write_hit[self._place("SEND_RELEASED")]),
            ]
        with m.If(bus.b.ready):
            m.d.sync += bus.b.valid.eq(0)
        with m.If(bus.b.ready & bus.b.valid):
            m.d.sync += free.eq(1)
        with m.If(answers):
            m.d.sync += [
                bus.b.valid.eq(1),
                bus.b.payload.resp.eq(Mux(
                    allowed | paged, Response.OKAY,
                    Mux(refused, Response.SLVERR, Response.DECERR))),
            ]
        with m.If(bus.aw.valid & bus.w.valid & free & ~self.hold):
            m.d.sync += [begins.eq(1), free.eq(0)]
        m.d.comb += [bus.aw.ready.eq(writing), bus.w.ready.eq(writing)]
        with m.If(writing):
            for hit, (register, port) in zip(write_hit, ports, strict=True):
                if register.access == "rw":
                    with m.If(hit):
                        for lane in range(4):
                            with m.If(bus.w.payload.strb[lane]):
                                m.d.sync += port.word_select(lane, 8).eq(
                                    bus.w.payload.data.word_select(lane, 8)
                                )

    def _write_page(self, m, free, writing):
        """Decodes a write to a doorbell page; returns whether the write being answered is one."""
        bus = self.bus
        address, word = bus.aw.payload.addr, bus.w.payload
        paged, near, hits = Signal(), Signal(len(regs.DOORBELLS)), Signal(len(regs.DOORBELLS))
        doorbells = [register for register in self.registers if register.name in regs.DOORBELLS]
        with m.If(free):
            m.d.sync += [
                paged.eq(_paged(address)),
                self.page.eq(Mux(_paged(address), address[12:], 0)),
                *(near[regs.DOORBELLS.index(register.name)].eq(
                    address[2:12] == register.address >> 2) for register in doorbells),
            ]
        m.d.sync += [
            hits.eq(near & (paged & word.strb.all()).replicate(len(near))),
            self.page_rings.eq(hits & writing.replicate(len(hits))),
            self.page_strays.eq(writing & paged & ~hits.any()),
        ]
        with m.If(writing):
            m.d.sync += self.word.eq(word.data)
        return paged

    def _read(self, m, ports):
        """Adds the read channels: decode, gather in groups of four, gather all."""
        bus = self.bus
        # ``reading`` is to reads what ``free`` is to writes.
        step = Signal(3)
        reading, paged = Signal(), Signal()
        read_hit = _select(m, ports, ~reading, bus.ar.payload.addr, "read")
        found = _some(m, ports, step[1], read_hit, "found", "ro", "rw", "wo")
        groups = []
        m.d.sync += step.eq(Cat(bus.ar.valid & ~reading, step))
        m.d.comb += bus.ar.ready.eq(~reading)
        with m.If(~reading):
            m.d.sync += [reading.eq(bus.ar.valid), paged.eq(_paged(bus.ar.payload.addr))]
        for first in range(0, len(ports), 4):
            gathered = any_of(
                Mux(hit, port, 0)
                for hit, (register, port) in zip(
                    read_hit[first : first + 4], ports[first : first + 4], strict=True)
                if register.access != "wo")
            group = Signal(32, name=f"group{first // 4}")
            if self.config.relaxed:
                m.d.comb += group.eq(gathered)
            else:
                with m.If(step[1]):
                    m.d.sync += group.eq(gathered)
            groups.append(group)
        with m.If(bus.r.ready):
            m.d.sync += bus.r.valid.eq(0)
        with m.If(bus.r.ready & bus.r.valid):
            m.d.sync += reading.eq(0)
        with m.If(step[2]):
            m.d.sync += [
                bus.r.valid.eq(1),
                bus.r.payload.data.eq(any_of(groups)),
                bus.r.payload.resp.eq(Mux(found | paged, Response.OKAY, Response.DECERR)),
            ]
        if self.config.receive:
            # In the cycle in which the registers' values are taken.
            m.d.comb += self.octets_read.eq(
                step[2 if self.config.relaxed else 1] & read_hit[self._place("PLACED_OCTETS_LO")])

    def _place(self, name):
        """Returns the position of a register among the hits."""
        return [register.name for register in self.registers].index(name)


def _paged(address):
    """Returns whether an address is in one of the 16 doorbell pages after the registers."""
    return address[12:16].any() ^ address[16]


def _select(m, ports, waits, address, name):
    """Decodes an address in two cycles, starting while ``waits``; returns a hit bit per register.

    The first cycle decodes the row of 16 registers and the position in it.
    """
    used = sorted({register.address >> 6 for register, _ in ports})
    rows = Signal(len(used), name=f"{name}_rows")
    columns = Signal(16, name=f"{name}_columns")
    hits = Signal(len(ports), name=f"{name}_hit")
    with m.If(waits):
        m.d.sync += [
            rows.eq(Cat(address[6:] == row for row in used)),
            columns.eq(1 << address[2:6]),
        ]
    m.d.sync += hits.eq(Cat(
        rows[used.index(register.address >> 6)] & columns[register.address >> 2 & 15]
        for register, _ in ports))
    return hits


def _some(m, ports, now, hits, name, *accesses):
    """Returns whether a hit register has one of ``accesses``, one cycle after ``now``."""
    those = Cat(hit for hit, (register, _) in zip(hits, ports, strict=True)
                if register.access in accesses)
    groups = Signal(-(-len(those) // 4), name=name)
    with m.If(now):
        m.d.sync += groups.eq(Cat(
            those[first:first + 4].any() for first in range(0, len(those), 4)))
    return groups.any()
