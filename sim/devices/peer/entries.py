"""Messages whose entries in the send ring are other ones than those that the driver writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ....hdl.spec.send import ENTRY, MESSAGE, Flag, Kind
from ....sw_driver.verbs.sending import SendingHalf

__all__ = ["RingEntries", "broken", "changed", "silent"]

#: Octets in the ring with which a message may be silent. With more, the driver might have no room
#: for a later message, and so nothing would end the silent ones.
_SILENT = 4000
_AT = {field.name: field.octet for field in MESSAGE}


class RingEntries:
    """Changes the entries of messages as they are written to the ring of a stream.

    Parameters
    ----------
    half
        The sending half of the stream.

    Attributes
    ----------
    change
        Gets the entries of each message, and returns those that are written; None: they stay.
    beyond
        Entries that the doorbell adds to those that there are.
    """

    def __init__(self, half: SendingHalf) -> None:
        self.change: Callable[[bytes], bytes] | None = None
        self.beyond = 0
        self._put = half._put
        half._put = self._write  # type: ignore[method-assign]
        self._half, self._plain = half, half._ring
        half._ring = self._ring  # type: ignore[method-assign]

    @property
    def room(self) -> int:
        """Returns how many entries the ring has room for."""
        return len(self._half._memory.view) // ENTRY - (self._half._producer - self._half._done)

    def _write(self, post: Any, entries: bytes) -> None:
        change = self.change
        if change is silent and self._half._octets + post.length > _SILENT:
            change = None
        self._put(post, entries if change is None else change(entries))

    def _ring(self) -> None:
        half = self._half
        half._producer += self.beyond
        self._plain()
        half._producer -= self.beyond


def silent(entries: bytes) -> bytes:
    """Takes the flag SIGNALED off a message: the device does not report its success.

    The completion of a later message ends this message, too.
    """
    at = _AT["flags"]
    return entries[:at] + bytes((entries[at] & ~Flag.SIGNALED,)) + entries[at + 1 :]


def changed(**fields: int) -> Callable[[bytes], bytes]:
    """Returns a function that gives other values to fields of a message's header, each of one
    octet. The driver would refuse such a message.
    """

    def change(entries: bytes) -> bytes:
        octets = bytearray(entries)
        for name, value in fields.items():
            octets[_AT[name]] = value
        return bytes(octets)

    return change


def broken(rng: random.Random) -> Callable[[bytes], bytes]:
    """Returns a function that makes a message invalid: it has no kind, and any octets but those
    that say how many entries it has.
    """

    def change(entries: bytes) -> bytes:
        octets = bytearray(rng.randbytes(len(entries)))
        octets[_AT["kind"]] = rng.randrange(max(Kind) + 1, 256)
        octets[_AT["entries"]] = entries[_AT["entries"]]
        return bytes(octets)

    return change
