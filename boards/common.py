"""Declares the description of a board, and the top that is built for each board."""

from collections.abc import Callable
from dataclasses import dataclass

from amaranth import *
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer

from ..hdl.eth.rgmii import RgmiiReceive, RgmiiTransmit
from ..hdl.host.device import Device
from ..hdl.spec.config import RnicConfig
from .pll import Pll

__all__ = ["CLOCK", "ETH_CLOCK", "Board", "Led", "Top"]

CLOCK = 62_500_000  #: Hz of the RNIC; with 64 bits, this is four times the rate of the link
ETH_CLOCK = 125_000_000  #: Hz of RGMII at 1000 Mb/s
BAUD = 1_000_000
#: Seconds for which the PHY is held in reset; a KSZ9031 needs 10 ms.
PHY_RESET = 0.02


@dataclass(frozen=True)
class Led:
    """The pin of an LED: a resource, its number, a subsignal, and the pin's index in that."""

    name: str
    number: int = 0
    part: str | None = None
    pin: int = 0


@dataclass(frozen=True, kw_only=True)
class Board:
    """The description of a board.

    Parameters
    ----------
    name, title
        The board's name on the command line, and its full name.
    platform
        Makes the board's amaranth-boards platform, with clock, PHY and UART in its resources. A PHY
        whose resource has no ``rst`` is never reset.
    warning
        A sentence shown to the user before the build; empty: none.
    config, memory
        The RNIC, and octets of placement memory, in a size for which the device has block RAM.
    connections, window
        With MPA: number of TCP connections, and octets that each may have in flight.
    small
        If not 0: memories of up to this number of words go to distributed RAM, whatever the
        gateware asks for, and so do shift registers, because the device is nearly full.
    eth
        Number of the PHY's resource ``eth_rgmii``.
    rx_delay, tx_delay
        Picoseconds, see :mod:`ddp_rnic.hdl.eth.rgmii`: the values of LiteX's boards.
    leds
        LEDs for: link up at 1000 Mb/s; a frame arrived; the host link is in use; the RNIC's
        interrupt. The list may be shorter.
    lit
        Pins of LEDs that are always on: the common pins of a colour.
    cable
        Options for openFPGALoader to reach the board.
    clock, baud
        Hz of the RNIC, and rate of the host link.
    """

    name: str
    title: str
    platform: Callable[[], object]
    config: RnicConfig
    memory: int
    warning: str = ""
    connections: int = 0
    window: int = 0
    small: int = 0
    eth: int = 0
    rx_delay: int = 0
    tx_delay: int = 0
    leds: tuple[Led, ...] = ()
    lit: tuple[Led, ...] = ()
    cable: tuple[str, ...] = ()
    clock: int = CLOCK
    baud: int = BAUD


class Top(Elaboratable):
    """Connects a board's pins and clocks to :class:`~ddp_rnic.hdl.host.device.Device`.

    Parameters
    ----------
    board : Board
    """

    def __init__(self, board):
        self.board = board

    def elaborate(self, platform):
        m = Module()
        board = self.board
        m.submodules.device = device = Device(
            board.config, memory_octets=board.memory, connections=board.connections,
            window=board.window, clock=board.clock, baud=board.baud,
            identifier=f"ddp-rnic on {board.title}")
        parts = {name: "-" for name in _parts(platform, "eth_rgmii", board.eth)}
        phy = platform.request("eth_rgmii", board.eth, dir=parts)
        uart = platform.request("uart", 0, dir={"rx": "-", "tx": "-"})
        self._clocks(m, platform, phy)
        self._ethernet(m, device, phy)
        m.submodules.uart_rx = uart_rx = io.Buffer("i", uart.rx)
        m.submodules.uart_tx = uart_tx = io.Buffer("o", uart.tx)
        m.d.comb += [device.uart_rx.eq(uart_rx.i), uart_tx.o.eq(device.uart_tx)]
        self._leds(m, platform, device)
        return m

    def _clocks(self, m, platform, phy):
        board = self.board
        m.domains.sync = ClockDomain()
        m.domains.eth_tx = ClockDomain()
        m.domains.eth_rx = ClockDomain()
        source = platform.request(platform.default_clk, dir="-")
        frequency = platform.default_clk_frequency
        m.submodules.clk = clk = io.Buffer("i", source)
        m.submodules.rx_clk = rx_clk = io.Buffer("i", phy.rx_clk)
        m.submodules.pll = pll = Pll(source=int(frequency), main=ETH_CLOCK, other=board.clock)
        if platform.default_rst is not None:
            m.submodules.rst = rst = io.Buffer(
                "i", platform.request(platform.default_rst, dir="-"))
            m.d.comb += pll.reset.eq(rst.i)
        m.d.comb += [
            pll.i.eq(clk.i),
            ClockSignal("eth_tx").eq(pll.main),
            ClockSignal("sync").eq(pll.other),
            ClockSignal("eth_rx").eq(rx_clk.i),
        ]
        for domain in ("sync", "eth_tx", "eth_rx"):
            m.submodules[f"{domain}_reset"] = ResetSynchronizer(~pll.locked, domain=domain)
        if isinstance(phy.rx_clk, io.SingleEndedPort):
            platform.add_clock_constraint(phy.rx_clk.io, ETH_CLOCK)

    def _ethernet(self, m, device, phy):
        board = self.board
        m.submodules.rgmii_rx = receive = DomainRenamer("eth_rx")(RgmiiReceive(
            phy.rx_data, _either(phy, "rx_ctl", "rx_ctrl"), delay=board.rx_delay))
        m.submodules.rgmii_tx = transmit = DomainRenamer("eth_tx")(RgmiiTransmit(
            phy.tx_data, _either(phy, "tx_ctl", "tx_ctrl"), phy.tx_clk, delay=board.tx_delay))
        m.submodules.mdc = mdc = io.Buffer("o", phy.mdc)
        m.submodules.mdio = mdio = io.Buffer("io", phy.mdio)
        if hasattr(phy, "rst"):
            m.submodules.phy_rst = phy_rst = io.Buffer("o", phy.rst)
            cycles = int(PHY_RESET * board.clock)
            waiting = Signal(range(cycles), init=cycles - 1)
            with m.If(waiting != 0):
                m.d.sync += waiting.eq(waiting - 1)
            m.d.comb += phy_rst.o.eq(waiting != 0)
        m.d.comb += [
            device.rx.eq(receive.o),
            device.link.eq(receive.link),
            transmit.i.eq(device.tx),
            mdc.o.eq(device.mdc),
            device.mdio.eq(mdio.i),
            mdio.o.eq(device.mdio_level),
            mdio.oe.eq(device.mdio_drive),
        ]

    def _leds(self, m, platform, device):
        board = self.board
        shown = (device.up, device.received, device.active, device.event)
        groups = {}
        for led, value in (*zip(board.leds, shown, strict=False),
                           *((led, None) for led in board.lit)):
            groups.setdefault((led.name, led.number), []).append((led, value))
        for (name, number), leds in groups.items():
            parts = sorted({led.part for led, _ in leds if led.part})
            port = platform.request(
                name, number, dir={part: "-" for part in _parts(platform, name, number)} or "-")
            for part in parts or [None]:
                pins = port if part is None else getattr(port, part)
                label = f"{name}_{number}_{part or 'all'}"
                m.submodules[label] = buffer = io.Buffer("o", pins)
                for led, value in leds:
                    if led.part == part:
                        m.d.comb += buffer.o[led.pin].eq(
                            1 if value is None else self._seen(m, label, led, value))

    def _seen(self, m, label, led, value):
        """Shows a value on an LED for long enough to be seen."""
        left = Signal(range(self.board.clock // 16), name=f"{label}_{led.pin}_left")
        with m.If(value):
            m.d.sync += left.eq(self.board.clock // 16 - 1)
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        return left != 0


def _either(port, *names):
    """Returns a part of a resource whose name differs between boards."""
    return next(getattr(port, name) for name in names if hasattr(port, name))


def _parts(platform, name, number):
    """Returns the names of a resource's subsignals."""
    ios = platform.resources[name, number].ios
    return [each.name for each in ios if hasattr(each, "ios")]
