"""Colorlight 5A-75B, revision 7.0, with an LFE5U-25F.

PHY: the first of two Broadcom B50612D. Host link: an adapter at J19, KEY+ takes what the host
sends, DATA_LED- is what it receives; so there is no LED left.
"""

from amaranth_boards.colorlight_5a75b_r7_0 import Colorlight_5A75B_R70Platform

from .common import Board
from .sizes import SMALL

__all__ = ["COLORLIGHT"]

COLORLIGHT = Board(
    name="colorlight-5a-75b",
    title="Colorlight 5A-75B 7.0",
    platform=Colorlight_5A75B_R70Platform,
    rx_delay=2000,
    cable=("--board", "colorlight"),
    **SMALL,
)
