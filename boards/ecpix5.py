"""Describes the LambdaConcept ECPIX-5, with an LFE5UM5G-85F or -45F.

PHY: KSZ9031RNX, which itself delays RX_CLK by 1.2 ns, and does not delay TX_CLK. When its reset
ends, it reads its mode from the pins RXD: pulled up, they select RGMII with all capabilities
advertised. Host link: the second channel of the FT2232H on the debug connector.

The reset button is at the pin given by litex-boards. The pin is pulled up, so that the board is not
held in reset if nothing else drives the pin: an ECP5 otherwise pulls its inputs down.
"""

from dataclasses import replace

from amaranth.build import *
from amaranth_boards.ecpix5 import ECPIX545Platform, ECPIX585Platform

from .common import Board, Led
from .pins import changed, corrected
from .sizes import LARGE, MEDIUM, SENDING

__all__ = ["ECPIX5_45", "ECPIX5_85", "ECPIX5_SENDS"]

PULLED_UP = {"PULLMODE": "UP"}


def _corrected(platform):
    made = platform()
    return corrected(
        made,
        Resource("rst", 0, PinsN("N5", dir="i"), Attrs(IO_TYPE="LVCMOS33", **PULLED_UP)),
        changed(made.resources["eth_rgmii", 0], PULLED_UP, parts=("rx_data",)))


def platform_85():
    return _corrected(ECPIX585Platform)


def platform_45():
    return _corrected(ECPIX545Platform)


ECPIX5_85 = Board(
    name="ecpix5",
    title="ECPIX-5 85F",
    platform=platform_85,
    tx_delay=2000,
    leds=tuple(Led("rgb_led", number, "g") for number in range(4)),
    cable=("--board", "ecpix5"),
    **LARGE,
)
ECPIX5_45 = replace(
    ECPIX5_85, name="ecpix5-45f", title="ECPIX-5 45F", platform=platform_45, **MEDIUM)
ECPIX5_SENDS = replace(
    ECPIX5_85, name="ecpix5-sends", title="ECPIX-5 85F that sends",
    warning="to build this board takes an hour or more, because it needs two thirds of the device",
    **SENDING)
