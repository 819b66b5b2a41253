"""Describes the ButterStick, with an LFE5UM5G-85F.

PHY: KSZ9031RNX, which itself delays RX_CLK by 1.2 ns, and does not delay TX_CLK.

Host link: two pins of the microSD slot, which always have 3.3 V; the pins of the SYZYGY ports have
no voltage until gateware asks for one. DAT0 takes octets from the host, CMD sends octets to it. The
board is programmed by a JTAG adapter.
"""

from amaranth.build import Attrs
from amaranth_boards.butterstick import ButterStickPlatform
from amaranth_boards.resources import UARTResource

from .common import Board, Led
from .pins import changed, corrected
from .sizes import LARGE

__all__ = ["BUTTERSTICK"]


def platform():
    made = ButterStickPlatform()
    return corrected(
        made,
        UARTResource(0, rx="C12", tx="A13", attrs=Attrs(IO_TYPE="LVCMOS33", PULLMODE="UP")),
        changed(made.resources["eth_rgmii", 0], {"SLEWRATE": "FAST"}))


BUTTERSTICK = Board(
    name="butterstick",
    title="ButterStick 85F",
    platform=platform,
    tx_delay=2000,
    leds=tuple(Led("rgb_leds_muxed", 0, "leds", pin) for pin in range(4)),
    lit=(Led("rgb_leds_muxed", 0, "g"),),
    cable=("--cable", "ft232"),
    **LARGE,
)
