"""The two halves of a TCP, without packets: each knows positions in the stream of octets alone."""

from __future__ import annotations

import heapq

__all__ = ["Receiver", "Sender"]


class Sender:
    """Finds out which octets a peer lacks (RFC 9293 section 3.8.1, RFC 6582). It keeps none.

    Positions count octets from 0 on. The times may have any unit.

    Parameters
    ----------
    patience, longest
        How much time passes at first, and at most, until the first octet that was not acknowledged
        is sent again.

    Attributes
    ----------
    acknowledged, next
        The peer has all octets before the first position; the second one is that of the next octet.
    """

    def __init__(self, patience: float, longest: float) -> None:
        self._first, self._longest = patience, longest
        self.acknowledged = self.next = 0
        self._asks: list[int] = []
        self._same = 0  # acknowledgments that acknowledged nothing new
        self._recover = -1  # the loss before that position is being repaired
        self._patience, self._deadline = patience, 0.0

    @property
    def outstanding(self) -> int:
        """Returns how many octets were sent and are not acknowledged."""
        return self.next - self.acknowledged

    def send(self, octets: int, now: float) -> None:
        """Notes that octets were sent after those before."""
        if not self.outstanding:
            self._deadline = now + self._patience
        self.next += octets

    def take(self, position: int, now: float, *, alone: bool) -> None:
        """Takes an acknowledgment of all octets before a position.

        ``alone``: its packet has no octets, so that it was sent because another packet came.
        """
        if self.acknowledged < position <= self.next:
            self.acknowledged = position
            self._same = 0
            self._patience = self._first
            self._deadline = now + self._patience
            if position < self._recover:
                self._asks.append(position)
        elif position == self.acknowledged and alone and self.outstanding:
            self._same += 1
            if self._same == 3 and position >= self._recover:
                self._recover = self.next
                self._asks.append(position)

    def lost(self, now: float) -> list[int]:
        """Returns the positions of octets that have to be sent again."""
        if self.outstanding and now > self._deadline:
            self._patience = min(2 * self._patience, self._longest)
            self._deadline = now + self._patience
            self._recover = self.next
            self._asks.append(self.acknowledged)
        asks, self._asks = self._asks, []
        return asks


class Receiver:
    """Puts octets in order that come in any order, some of them several times, in other pieces.

    Attributes
    ----------
    position
        All octets before it have come.
    """

    def __init__(self) -> None:
        self.position = 0
        self._early: list[tuple[int, bytes]] = []  # a heap

    def take(self, position: int, octets: bytes) -> bytes:
        """Takes octets, and returns those that are next in order."""
        heapq.heappush(self._early, (position, octets))
        found = bytearray()
        while self._early and self._early[0][0] <= self.position:
            begin, octets = heapq.heappop(self._early)
            fresh = octets[self.position - begin :]
            found += fresh
            self.position += len(fresh)
        return bytes(found)
