"""Steering Tags as the driver hands them out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..base.errors import ResourceExhausted

#: Steering Tags that were freed last and are not issued again.
HISTORY = 1 << 16


class StagAllocator:
    """Draws Steering Tags that a peer cannot guess from those it has seen.

    The lower bits of an index select an entry of the device's table; all others, and the key, are
    random. So is the entry, among those that are free and have rested: a freed one rests until
    half of the table was freed after it, or no other is free. An STag is not issued again until
    65536 others were freed (of tables beyond 32768 entries: fewer). 0 is never issued.

    Parameters
    ----------
    entries
        Of the table, a power of two.
    entropy
        Gives so many octets that nobody can predict.
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
        """An STag."""
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
        # 64 bits, so that no entry is likelier than another by more than 2**-40.
        at = int.from_bytes(self._entropy(8), "little") % len(self._free)
        self._free[at], self._free[-1] = self._free[-1], self._free[at]
        return self._free.pop()

    def free(self, stag: int) -> None:
        """Give one back; nothing names the region any more."""
        self._resting.append(stag >> 8 & self.entries - 1)
        if len(self._resting) > self.entries // 2:
            self._free.append(self._resting.popleft())
        self._freed.append(stag)
        self._recent.add(stag)
        if len(self._freed) > self._history:
            self._recent.discard(self._freed.popleft())
