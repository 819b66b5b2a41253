"""Chooses the Steering Tags of new regions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..base.errors import ResourceExhausted

#: How many of the Steering Tags that were freed last are not issued again.
HISTORY = 1 << 16


class StagAllocator:
    """Draws Steering Tags that a peer cannot guess from those it has seen.

    The lower bits of an STag's index select an entry of the device's table; its other bits and its
    key are random. The entry is chosen at random among those that are free and have rested. A freed
    entry rests until half of the table was freed after it, or until no other entry is free. An STag
    is not issued again until 65536 others were freed (fewer for tables of more than 32768 entries).
    STag 0 is never issued.

    Parameters
    ----------
    entries
        Entries of the device's table, a power of two.
    entropy
        Returns the given number of octets, which nobody can predict.
    """

    def __init__(self, entries: int, entropy: Callable[[int], bytes]) -> None:
        self.entries = entries
        self._entropy = entropy
        self._free = list(range(entries))
        self._resting: deque[int] = deque()
        self._freed: deque[int] = deque()
        self._recent: set[int] = set()
        # No more than half of the STags that one entry can have.
        self._history = min(HISTORY, (1 << 31) // entries)

    def take(self) -> int:
        """Returns a new STag."""
        entry = self._entry()
        while True:
            draw = int.from_bytes(self._entropy(4), "little")
            index = (draw >> 8 & -self.entries & 0xFFFFFF) | entry
            stag = index << 8 | draw & 0xFF
            if stag and stag not in self._recent:
                return stag

    def _entry(self) -> int:
        if not self._free and not self._resting:
            raise ResourceExhausted(
                f"all {self.entries} Steering Tags of the device are in use: revoke one"
            )
        if not self._free:
            return self._resting.popleft()
        # 64 random bits make the entries equally likely up to a factor of 1 + 2**-40.
        at = int.from_bytes(self._entropy(8), "little") % len(self._free)
        self._free[at], self._free[-1] = self._free[-1], self._free[at]
        return self._free.pop()

    def free(self, stag: int) -> None:
        """Takes an STag back, after the device has revoked its region."""
        self._resting.append(stag >> 8 & self.entries - 1)
        if len(self._resting) > self.entries // 2:
            self._free.append(self._resting.popleft())
        self._freed.append(stag)
        self._recent.add(stag)
        if len(self._freed) > self._history:
            self._recent.discard(self._freed.popleft())
