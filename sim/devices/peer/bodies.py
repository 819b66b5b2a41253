"""Messages that leave from a region, and whose octets are overwritten at their completion."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import chain, pairwise
from typing import NamedTuple

from ....sw_driver import PD, Access
from ....sw_driver.verbs.sending import Part

__all__ = ["Bodies", "Body", "base"]

#: Octets of the region; one of those in it after the completion; and octets to choose from.
_ROOM, _JUNK, _SPAN = 1 << 20, b"\xdd", 1 << 19
#: Cuts of a message into parts of the region, and the most of them; and the share of messages that
#: are in none.
_CUTS, _MOST, _COPIED = (0, 0, 0, 0, 1, 1, 2, 2, 3, 20), 250, 0.3


def base(rng: random.Random, length: int) -> int:
    """Draws the first Tagged Offset of a region of ``length`` octets: 0, the last one that is
    possible, one before 2**32, or any.
    """
    last = (1 << 64) - length
    return rng.choice((0, last, (1 << 32) - rng.randint(1, length), rng.randint(0, last)))


class Body(NamedTuple):
    """A message as it is posted: its octets, or parts of the region at ``places``."""

    posted: bytes | list[Part]
    octets: bytes
    places: tuple[range, ...] = ()


class Bodies:
    """Draws the octets of messages, and where they are.

    Attributes
    ----------
    region
        The region from which most of them are sent.
    """

    def __init__(self, pd: PD, rng: random.Random) -> None:
        self._rng, self._octets = rng, rng.randbytes(_SPAN)
        self.region = pd.register(bytearray(_ROOM), Access.LOCAL_WRITE, to=base(rng, _ROOM))

    def draw(self, length: int, taken: Iterable[range]) -> Body:
        """Draws a message of ``length`` octets, in no place that is ``taken``."""
        rng = self._rng
        at = rng.randint(0, _SPAN - length)
        octets = self._octets[at : at + length]
        count = rng.choice((*_CUTS, rng.randrange(_MOST)))
        cuts = sorted(rng.randint(0, length) for _ in range(count))
        lengths = [end - begin for begin, end in pairwise((0, *cuts, length))]
        starts = [rng.randint(0, _ROOM - each) for each in lengths]
        places = tuple(map(range, starts, map(sum, zip(starts, lengths, strict=True))))
        spans = sorted((each.start, each.stop) for each in chain(places, taken) if each)
        if rng.random() < _COPIED or any(one[1] > other[0] for one, other in pairwise(spans)):
            return Body(octets, octets)
        for place, begin in zip(places, (0, *cuts), strict=True):
            self.region.write(octets[begin : begin + len(place)], place.start)
        parts = [Part(self.region, each.start, len(each)) for each in places]
        return Body(parts, octets, places)

    def free(self, places: Iterable[range]) -> None:
        """Overwrites places that are free: octets that the device still sends from them are
        wrong.
        """
        for place in places:
            self.region.write(_JUNK * len(place), place.start)
