"""Which message of a stream a random peer goes on with, so that some overtake others."""

from __future__ import annotations

import random
from collections.abc import Hashable

from ...hdl.spec.ddp import WAITING

__all__ = ["Interleaving"]


class Interleaving:
    """Keeps a random stream within what the device can keep of messages that wait for others.

    A message is named by any value, which only one unfinished message has at a time.
    """

    def __init__(self) -> None:
        self._unfinished: list[Hashable] = []  # in the order in which they began
        self._waiting = 0  # the most that are finished and wait

    @property
    def free(self) -> bool:
        """Whether no message is unfinished, so that none has to wait."""
        return not self._unfinished

    def choose(self, rng: random.Random) -> Hashable | None:
        """The unfinished message that is to go on next; None where any message may."""
        if not self._unfinished:
            return None
        if len(self._unfinished) + self._waiting >= WAITING - 1:
            return self._unfinished[0]
        return rng.choice(self._unfinished) if rng.random() < 0.8 else None

    def sent(self, message: Hashable, *, last: bool) -> None:
        """A segment of a message was sent."""
        if message not in self._unfinished:
            self._unfinished.append(message)
        if last:
            first = self._unfinished[0] == message
            self._unfinished.remove(message)
            self._waiting = (self._waiting + (not first)) * bool(self._unfinished)
