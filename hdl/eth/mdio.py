"""Accesses the management interface of a PHY, IEEE 802.3 section 22.2.4.5."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

__all__ = ["GigabitOnly", "Mdio"]

#: Registers of a PHY and their values, in the order of writing. IEEE 802.3 section 40.5.1.1:
#: register 9 advertises 1000BASE-T full duplex, not half duplex. Section 28.2.4.1.3: register 4
#: advertises IEEE 802.3 with no other technology and no PAUSE. Section 22.2.4.1: register 0 enables
#: Auto-Negotiation and restarts it.
GIGABIT_ONLY = ((9, 0x0200), (4, 0x0001), (0, 0x1340))
PHYS = 32

PREAMBLE, START, READ, WRITE, TURNAROUND = 32, 0b01, 0b10, 0b01, 0b10


class Mdio(wiring.Component):
    """Reads and writes registers of a PHY.

    Latency: an access takes 64 periods of MDC. Throughput: one access at a time. Reset: idle, the
    line is not driven. Errors: ``silent``, if no PHY drove the turnaround of a read.

    Parameters
    ----------
    divisor : int
        Cycles in a period of MDC, even, from 8 up; a period must be at least 400 ns.

    Members
    -------
    read, write : In(1)
        Begins an access; ignored while ``busy``.
    phy, register : In(5)
    value : In(16)
        Value to write.
    busy : Out(1)
    result : Out(16), silent : Out(1)
        Result of the last read.
    mdc : Out(1)
    line : In(1), drive : Out(1), level : Out(1)
        The level of the line MDIO; whether to drive it, and to which level.
    """

    read: In(1)
    write: In(1)
    phy: In(5)
    register: In(5)
    value: In(16)
    busy: Out(1)
    result: Out(16)
    silent: Out(1)
    mdc: Out(1)
    line: In(1, init=1)
    drive: Out(1)
    level: Out(1)

    def __init__(self, *, divisor):
        if not isinstance(divisor, int) or isinstance(divisor, bool):
            raise TypeError(f"Mdio divisor must be an integer, not {divisor!r}")
        if divisor < 8 or divisor % 2:
            raise ValueError(f"Mdio divisor must be even and at least 8, not {divisor!r}")
        self.divisor = divisor
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        line = Signal()
        m.submodules.line = FFSynchronizer(self.line, line, init=1)
        frame = Signal(64)  # the next bit is the highest
        reading = Signal()
        left = Signal(range(65))
        cycle = Signal(range(self.divisor))
        seen = Signal(18)  # turnaround and data
        m.d.comb += [self.busy.eq(left != 0), self.level.eq(frame[-1])]
        # The line changes at MDC's falling edge, and is sampled at its rising edge.
        m.d.sync += [
            self.mdc.eq(self.busy & (cycle >= self.divisor // 2)),
            self.drive.eq(self.busy & ~(reading & (left <= 18))),
        ]
        with m.If(self.busy):
            m.d.sync += cycle.eq(cycle + 1)
            with m.If(cycle == self.divisor // 2):
                m.d.sync += seen.eq(Cat(line, seen))
            with m.If(cycle == self.divisor - 1):
                m.d.sync += [cycle.eq(0), frame.eq(Cat(C(1, 1), frame)), left.eq(left - 1)]
                with m.If((left == 1) & reading):
                    m.d.sync += [self.result.eq(seen), self.silent.eq(seen[16])]
        with m.Elif(self.read | self.write):
            m.d.sync += [
                left.eq(64),
                reading.eq(self.read),
                frame.eq(Cat(
                    self.value, C(TURNAROUND, 2), self.register, self.phy,
                    Mux(self.read, READ, WRITE), C(START, 2), C(-1, PREAMBLE))),
            ]
        return m


class GigabitOnly(wiring.Component):
    """Configures every PHY once to advertise 1000 Mb/s alone.

    So no link comes up at a rate at which this implementation of RGMII does not work.

    Latency: ``wait`` cycles from reset, then 3 writes to each of the 32 addresses. Throughput: that
    of :class:`Mdio`. Reset: starts again. Errors: none; a write to an address without a PHY has no
    effect.

    Parameters
    ----------
    wait : int
        Cycles until the PHYs' own reset is over.

    Members
    -------
    write : Out(1), phy, register : Out(5), value : Out(16)
        Those of :class:`Mdio`, which takes the write while ``ready`` is high.
    ready : In(1)
    busy : Out(1)
        High from the first write until the last one was taken.
    """

    write: Out(1)
    phy: Out(5)
    register: Out(5)
    value: Out(16)
    ready: In(1)
    busy: Out(1)

    def __init__(self, *, wait):
        if not isinstance(wait, int) or isinstance(wait, bool) or wait < 1:
            raise ValueError(f"GigabitOnly wait must be a positive integer, not {wait!r}")
        self.wait = wait
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        left = Signal(range(self.wait + 1), init=self.wait)
        step = Signal(range(len(GIGABIT_ONLY)))
        m.d.comb += self.write.eq(self.busy)
        for number, (register, value) in enumerate(GIGABIT_ONLY):
            with m.If(step == number):
                m.d.comb += [self.register.eq(register), self.value.eq(value)]
        with m.If(left != 0):
            m.d.sync += [left.eq(left - 1), self.busy.eq(left == 1)]
        with m.If(self.busy & self.ready):
            m.d.sync += step.eq(step + 1)
            with m.If(step == len(GIGABIT_ONLY) - 1):
                m.d.sync += [
                    step.eq(0), self.phy.eq(self.phy + 1), self.busy.eq(self.phy != PHYS - 1)]
        return m
