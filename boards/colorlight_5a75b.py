"""Describes the Colorlight 5A-75B, revisions 7.0, 8.0 and 8.2, with an LFE5U-25F.

PHY: the first of two, Broadcom B50612D on 7.0, Realtek RTL8211F on 8.x. Both share one reset pin,
which stays undriven: one of the PHYs makes the board's 25 MHz clock, and stops while it is reset.
Host link: an adapter at J19; KEY+ takes octets from the host, DATA_LED- sends octets to it, so that
no LED is left. KEY+ has a capacitor, so the rate is low; if it is still too high,
``rnic build --baud 9600`` lowers it.

The pins of 8.0 and 8.2 are those of litex-boards; both revisions have the same.
"""

from amaranth.build import *
from amaranth_boards.colorlight_5a75b_r7_0 import Colorlight_5A75B_R70Platform
from amaranth_boards.resources import UARTResource

from .common import Board
from .pins import changed, corrected
from .sizes import SMALL

__all__ = ["COLORLIGHT", "COLORLIGHT_8_0", "COLORLIGHT_8_2"]

LVCMOS33 = Attrs(IO_TYPE="LVCMOS33")


def revision_7_0():
    made = Colorlight_5A75B_R70Platform()
    return corrected(made, changed(made.resources["eth_rgmii", 0], without=("rst",)))


class Revision80(Colorlight_5A75B_R70Platform):
    resources = [
        Resource("clk25", 0, Pins("P6", dir="i"), Clock(25e6), LVCMOS33),
        UARTResource(0, tx="T6", rx="R7", attrs=LVCMOS33),
        Resource(
            "eth_rgmii", 0,
            Subsignal("mdc",     Pins("R5", dir="o")),
            Subsignal("mdio",    Pins("T4", dir="io")),
            Subsignal("tx_clk",  Pins("L1", dir="o")),
            Subsignal("tx_ctl",  Pins("L2", dir="o")),
            Subsignal("tx_data", Pins("M2 M1 P1 R1", dir="o")),
            Subsignal("rx_clk",  Pins("J1", dir="i")),
            Subsignal("rx_ctl",  Pins("J2", dir="i")),
            Subsignal("rx_data", Pins("K2 J3 K1 K3", dir="i")),
            LVCMOS33,
        ),
    ]
    connectors = []


class Revision82(Revision80):
    speed = "7"


def _revision(number, name, platform):
    return Board(
        name=name,
        title=f"Colorlight 5A-75B {number}",
        platform=platform,
        warning=f"these pins are of revision {number}, as printed on the board: the revisions of"
                " the Colorlight 5A-75B have different pins, see rnic build --list; and no"
                " placement of the present gateware has ended, because it fills the device",
        rx_delay=2000,
        cable=("--board", "colorlight"),
        baud=115_200,
        **SMALL,
    )


COLORLIGHT = _revision("7.0", "colorlight-5a-75b", revision_7_0)
COLORLIGHT_8_0 = _revision("8.0", "colorlight-5a-75b-8.0", Revision80)
COLORLIGHT_8_2 = _revision("8.2", "colorlight-5a-75b-8.2", Revision82)
