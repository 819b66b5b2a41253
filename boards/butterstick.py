"""ButterStick, with an LFE5UM5G-85F.

Host link: two pins of the microSD slot, which have 3.3 V at all times; those of the SYZYGY ports
have no voltage until gateware asks for one. DAT0 takes what the host sends, CMD is what it
receives. It is programmed by a JTAG adapter.
"""

from amaranth.build import Attrs
from amaranth_boards.butterstick import ButterStickPlatform
from amaranth_boards.resources import UARTResource

from .common import Board, Led
from .sizes import LARGE

__all__ = ["BUTTERSTICK"]


def platform():
    made = ButterStickPlatform()
    made.add_resources([UARTResource(
        0, rx="C12", tx="A13", attrs=Attrs(IO_TYPE="LVCMOS33", PULLMODE="UP"))])
    return made


BUTTERSTICK = Board(
    name="butterstick",
    title="ButterStick 85F",
    platform=platform,
    rx_delay=2000,
    leds=tuple(Led("rgb_leds_muxed", 0, "leds", pin) for pin in range(4)),
    lit=(Led("rgb_leds_muxed", 0, "g"),),
    cable=("--cable", "ft232"),
    **LARGE,
)
