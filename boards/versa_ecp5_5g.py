"""Describes the Lattice ECP5-5G Versa, with an LFE5UM5G-45F.

PHY: the first of two, each of which delays both clocks. Host link: the second channel of the
FT2232H, whose first one is JTAG.
"""

from amaranth_boards.versa_ecp5_5g import VersaECP55GPlatform

from .common import Board, Led
from .sizes import MEDIUM

__all__ = ["VERSA"]

VERSA = Board(
    name="versa-ecp5-5g",
    title="Versa ECP5-5G",
    platform=VersaECP55GPlatform,
    leds=tuple(Led("led", number) for number in range(4)),
    cable=("--cable", "ft2232"),
    **MEDIUM,
)
