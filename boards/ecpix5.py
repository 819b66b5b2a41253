"""LambdaConcept ECPIX-5, with an LFE5UM5G-85F or -45F.

PHY: KSZ9031RNX, which delays RX_CLK by 1.2 ns of its own and TX_CLK not at all. Host link: the
second channel of the FT2232H on the debug connector.
"""

from dataclasses import replace

from amaranth_boards.ecpix5 import ECPIX545Platform, ECPIX585Platform

from .common import Board, Led
from .sizes import LARGE, MEDIUM

__all__ = ["ECPIX5_45", "ECPIX5_85"]

ECPIX5_85 = Board(
    name="ecpix5",
    title="ECPIX-5 85F",
    platform=ECPIX585Platform,
    tx_delay=2000,
    leds=tuple(Led("rgb_led", number, "g") for number in range(4)),
    cable=("--board", "ecpix5"),
    **LARGE,
)
ECPIX5_45 = replace(
    ECPIX5_85, name="ecpix5-45f", title="ECPIX-5 45F", platform=ECPIX545Platform, **MEDIUM)
