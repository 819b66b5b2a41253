"""Connects the pins of a Gigabit PHY: RGMII 2.0 at 1000 Mb/s, with DDR cells."""

from amaranth import *
from amaranth.lib import data, io, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["GmiiOctet", "RgmiiReceive", "RgmiiTransmit"]

#: Picoseconds of one step of the ECP5's delay cell, and the number of steps.
STEP, STEPS = 25, 127


class GmiiOctet(data.StructLayout):
    """One cycle of GMII: ``data`` (8), ``valid`` (RX_DV, TX_EN), ``error`` (RX_ER, TX_ER)."""

    def __init__(self):
        super().__init__({"data": 8, "valid": 1, "error": 1})


def _checked_delay(delay):
    if not isinstance(delay, int) or isinstance(delay, bool):
        raise TypeError(f"RGMII delay must be an integer, not {delay!r}")
    if not 0 <= delay <= STEP * STEPS:
        raise ValueError(
            f"RGMII delay must be from 0 to {STEP * STEPS} picoseconds, not {delay!r}")
    return delay


def _delay_cell(m, name, delay, i, o):
    m.submodules[name] = Instance(
        "DELAYG", p_DEL_MODE="SCLK_ALIGNED", p_DEL_VALUE=delay // STEP, i_A=i, o_Z=o)


class DelayedInput(wiring.Component):
    """Registers input pins at double data rate, after a delay cell.

    A delay of 0 also has a cell, because the cell itself takes time: all pins of a port, and the
    clock that belongs to them, pass through one. A port that is not of a real device, as in a
    simulation, has no cell.

    Latency: 1 cycle. Throughput: two bits per pin and cycle. Reset: none. Errors: none.

    Parameters
    ----------
    port : PortLike
    delay : int
        Picoseconds.

    Members
    -------
    i : Out(ArrayLayout(len(port), 2))
        The pins' values at the rising edge, and at the falling edge after it.
    """

    def __init__(self, port, *, delay):
        self.port = port
        self.delay = _checked_delay(delay)
        super().__init__({"i": Out(data.ArrayLayout(len(port), 2))})

    def elaborate(self, platform):
        m = Module()
        if not isinstance(self.port, io.SingleEndedPort):
            m.submodules.buffer = buffer = io.DDRBuffer("i", self.port)
            m.d.comb += self.i.eq(buffer.i)
            return m
        for bit in range(len(self.port)):
            pin, late = Signal(name=f"pin{bit}"), Signal(name=f"late{bit}")
            m.submodules[f"pad{bit}"] = Instance("IB", i_I=self.port.io[bit], o_O=pin)
            _delay_cell(m, f"delay{bit}", self.delay, pin, late)
            m.submodules[f"ddr{bit}"] = Instance(
                "IDDRX1F", i_SCLK=ClockSignal(), i_RST=Const(0), i_D=late,
                o_Q0=self.i[0][bit], o_Q1=self.i[1][bit])
        return m


class DelayedOutput(wiring.Component):
    """Drives output pins at double data rate through a delay cell, like :class:`DelayedInput`.

    Members
    -------
    o : In(ArrayLayout(len(port), 2))
        The pins' values from the rising edge on, and from the falling edge on.
    """

    def __init__(self, port, *, delay):
        self.port = port
        self.delay = _checked_delay(delay)
        super().__init__({"o": In(data.ArrayLayout(len(port), 2))})

    def elaborate(self, platform):
        m = Module()
        if not isinstance(self.port, io.SingleEndedPort):
            m.submodules.buffer = buffer = io.DDRBuffer("o", self.port)
            m.d.comb += buffer.o.eq(self.o)
            return m
        for bit in range(len(self.port)):
            early, pin = Signal(name=f"early{bit}"), Signal(name=f"pin{bit}")
            m.submodules[f"ddr{bit}"] = Instance(
                "ODDRX1F", i_SCLK=ClockSignal(), i_RST=Const(0),
                i_D0=self.o[0][bit], i_D1=self.o[1][bit], o_Q=early)
            _delay_cell(m, f"delay{bit}", self.delay, early, pin)
            m.submodules[f"pad{bit}"] = Instance("OB", i_I=pin, o_O=self.port.io[bit])
        return m


class RgmiiReceive(wiring.Component):
    """Receives octets from the pins, in the domain of the PHY's receive clock.

    The rising edge of the clock brings an octet's lower half and RX_DV, the falling edge its upper
    half and RX_DV xor RX_ER. Between frames RXD shows the state of the link (RGMII 2.0 sections
    3.0 and 3.4.1).

    Latency: 1 cycle after the DDR cells. Throughput: one octet per cycle. Reset: not valid, link
    down. Errors: none.

    Parameters
    ----------
    rx_data, rx_ctl : PortLike
        Four pins, and one.
    delay : int
        Picoseconds by which to delay data, if PHY and board have the clock's edge where data
        changes.

    Members
    -------
    o : Out(GmiiOctet())
    link : Out(4)
        State of the link in the last gap: link up, speed (2), full duplex.
    """

    def __init__(self, rx_data, rx_ctl, *, delay=0):
        self.rx_data, self.rx_ctl = rx_data, rx_ctl
        self.delay = _checked_delay(delay)
        super().__init__({"o": Out(GmiiOctet()), "link": Out(4)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.data = octet = DelayedInput(self.rx_data, delay=self.delay)
        m.submodules.ctl = ctl = DelayedInput(self.rx_ctl, delay=self.delay)
        m.d.sync += [
            self.o.data.eq(Cat(octet.i[0], octet.i[1])),
            self.o.valid.eq(ctl.i[0]),
            self.o.error.eq(ctl.i[0] ^ ctl.i[1]),
        ]
        with m.If(~self.o.valid & ~self.o.error):
            m.d.sync += self.link.eq(self.o.data)
        return m


class RgmiiTransmit(wiring.Component):
    """Sends octets to the pins, with the clock that belongs to them.

    Latency: 1 cycle and the DDR cells. Throughput: one octet per cycle. Reset: not valid. Errors:
    none.

    Parameters
    ----------
    tx_data, tx_ctl, tx_clk : PortLike
        Four pins, one, and one.
    delay : int
        Picoseconds by which to delay the clock, if PHY and board do not do that.

    Members
    -------
    i : In(GmiiOctet())
    """

    def __init__(self, tx_data, tx_ctl, tx_clk, *, delay=0):
        self.tx_data, self.tx_ctl, self.tx_clk = tx_data, tx_ctl, tx_clk
        self.delay = _checked_delay(delay)
        super().__init__({"i": In(GmiiOctet())})

    def elaborate(self, platform):
        m = Module()
        m.submodules.data = octet = DelayedOutput(self.tx_data, delay=0)
        m.submodules.ctl = ctl = DelayedOutput(self.tx_ctl, delay=0)
        m.submodules.clk = clk = DelayedOutput(self.tx_clk, delay=self.delay)
        now = Signal(GmiiOctet())
        m.d.sync += now.eq(self.i)
        m.d.comb += [
            octet.o[0].eq(now.data[:4]),
            octet.o[1].eq(now.data[4:]),
            ctl.o[0].eq(now.valid),
            ctl.o[1].eq(now.valid ^ now.error),
            clk.o[0].eq(1),
            clk.o[1].eq(0),
        ]
        return m
