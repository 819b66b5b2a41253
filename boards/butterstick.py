"""ButterStick, with an LFE5UM5G-85F.

PHY: KSZ9031RNX, which delays RX_CLK by 1.2 ns of its own and TX_CLK not at all.

Host link: two pins of the microSD slot, which have 3.3 V at all times; those of the SYZYGY ports
have no voltage until gateware asks for one. DAT0 takes what the host sends, CMD is what it
receives. It is programmed by a JTAG adapter.
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
