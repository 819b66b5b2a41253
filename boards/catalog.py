"""Lists the supported boards, by name."""

from .butterstick import BUTTERSTICK
from .colorlight_5a75b import COLORLIGHT, COLORLIGHT_8_0, COLORLIGHT_8_2
from .ecpix5 import ECPIX5_45, ECPIX5_85, ECPIX5_SENDS
from .versa_ecp5_5g import VERSA

__all__ = ["BOARDS"]

BOARDS = {board.name: board for board in (
    ECPIX5_85, ECPIX5_SENDS, ECPIX5_45, VERSA, BUTTERSTICK, COLORLIGHT, COLORLIGHT_8_0,
    COLORLIGHT_8_2)}
