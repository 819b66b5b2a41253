"""Messages whose success the device does not report."""

from __future__ import annotations

from typing import Any

from ....hdl.spec.send import MESSAGE, Flag
from ....sw_driver.verbs.sending import SendingHalf

__all__ = ["Silence"]

_FLAGS = next(field.octet for field in MESSAGE if field.name == "flags")


class Silence:
    """Takes the flag SIGNALED off messages as they are written to the ring of a stream.

    The completion of a later message ends these messages, too; so the last one has to have the
    flag.

    Parameters
    ----------
    half
        The sending half of the stream.

    Attributes
    ----------
    on
        If True, messages that are written to the ring lose their flag.
    """

    def __init__(self, half: SendingHalf) -> None:
        self.on = False
        self._put = half._put
        half._put = self._write  # type: ignore[method-assign]

    def _write(self, post: Any, entries: bytes) -> None:
        if self.on:
            flags = entries[_FLAGS] & ~Flag.SIGNALED
            entries = entries[:_FLAGS] + bytes((flags,)) + entries[_FLAGS + 1 :]
        self._put(post, entries)
