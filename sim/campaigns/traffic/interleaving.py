"""Chooses which message of a stream a random peer continues, so that some overtake others."""

from __future__ import annotations

import random
from collections.abc import Hashable

from ....hdl.spec.ddp import OVERTAKES, WAITING

__all__ = ["Interleaving"]


class Interleaving:
    """Keeps a random stream within the numbers that the device allows.

    These are :data:`~....hdl.spec.ddp.WAITING` and :data:`~....hdl.spec.ddp.OVERTAKES`.

    A message is named by any value that only one unfinished message has at a time.
    """

    def __init__(self) -> None:
        self._unfinished: list[Hashable] = []  # in the order of their first segments
        self._waiting = 0  # how many finished messages wait, at most
        self._latest: Hashable | None = None  # the unfinished message of the last segment
        self._overtook = 0

    @property
    def free(self) -> bool:
        """True if no message is unfinished, so that none has to wait."""
        return not self._unfinished

    def choose(self, rng: random.Random) -> Hashable | None:
        """Returns the unfinished message to continue; None where any message may follow."""
        if not self._unfinished:
            return None
        if self._latest is not None and self._overtook == OVERTAKES:
            return self._latest
        if len(self._unfinished) + self._waiting >= WAITING - 1:
            return self._unfinished[0]
        return rng.choice(self._unfinished) if rng.random() < 0.8 else None

    def sent(self, message: Hashable, *, last: bool) -> None:
        """Notes that a segment of a message was sent."""
        self._overtook += self._latest not in {None, message}
        self._latest = None if last else message
        if message not in self._unfinished:
            self._unfinished.append(message)
        if last:
            first = self._unfinished[0] == message
            self._unfinished.remove(message)
            self._waiting = (self._waiting + (not first)) * bool(self._unfinished)
