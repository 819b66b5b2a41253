"""A network that loses packets, carries some twice and lets some overtake others."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["MOST", "LiveNetwork", "Network", "Packet", "Party", "Rates"]

#: The largest share of packets that may be lost: TCP needs many repeats to get through then.
MOST = 0.3
#: How many turns late a packet is that others overtake.
_LATE = (2, 30)
#: Turns without an arrival after which turns are left out, and the power of two that is at most
#: left out at a time.
_STILL, _LEAP = 8, 5


class Rates(NamedTuple):
    """Declares the shares of packets that are lost, that come twice, and that others overtake."""

    loss: float = 0.05
    duplication: float = 0.02
    reorder: float = 0.05


class Packet(NamedTuple):
    """Declares a TCP segment.

    Parameters
    ----------
    position, octets
        The position of its first octet in the stream, and its octets.
    last
        Its last octet stands for the end of the stream (FIN).
    acknowledged, room
        Its sender has all octets before that position, and takes as many more.
    """

    position: int
    octets: bytes
    last: bool
    acknowledged: int
    room: int = 1 << 16


_Any = TypeVar("_Any", contravariant=True)
_Carried = TypeVar("_Carried")


class Party(Protocol[_Any]):
    """Declares what packets are sent to."""

    def receive(self, packet: _Any, /) -> None:
        """Takes a packet."""


class Network(Generic[_Carried]):
    """Carries packets of any kind, of which each takes a turn or more.

    Where nothing arrives for some turns, all wait for a timer: turns are left out then, more and
    more of them, but never one in which a packet arrives.

    Parameters
    ----------
    rates, rng
        The shares of packets that are not just carried, and the draw.
    counts
        Gets how many ``packets`` were sent, and how many were ``lost``, ``doubled`` and
        ``overtaken``.

    Attributes
    ----------
    turn, moved
        The number of the turn; and that of the last one in which users of the network got on.
    """

    def __init__(self, rates: Rates, rng: random.Random, counts: Counter[str]) -> None:
        self._rates, self.rng, self.counts = rates, rng, counts
        self.turn = self.moved = 0
        self._still = 0  # turns since the last arrival that were not left out
        #: A heap of the packets on their way: turn and order of arrival, receiver, packet.
        self._flying: list[tuple[int, int, Party[_Carried], _Carried]] = []
        self._sent = 0

    def send(self, party: Party[_Carried], packet: _Carried) -> None:
        """Sends a packet."""
        rng, counts = self.rng, self.counts
        lost, doubled, overtaken = (rng.random() < rate for rate in self._rates)
        counts["packets"] += 1
        counts["lost"] += lost
        if lost:
            return
        counts["doubled"] += doubled
        counts["overtaken"] += overtaken
        for late in (overtaken, False)[: 1 + doubled]:
            self._sent += 1
            arrival = self.turn + 1 + (rng.randint(*_LATE) if late else 0)
            heapq.heappush(self._flying, (arrival, self._sent, party, packet))

    def deliver(self) -> None:
        """Begins the next turn, with the packets that arrive in it."""
        self.turn = self._next()
        self._still += 1
        while self._flying and self._flying[0][0] <= self.turn:
            self._still = 0
            _, _, party, packet = heapq.heappop(self._flying)
            party.receive(packet)

    def _next(self) -> int:
        """Returns the number of the next turn."""
        turn = self.turn + (1 << min(max(self._still - _STILL, 0), _LEAP))
        return min(turn, self._flying[0][0]) if self._flying else turn


class LiveNetwork(Network[_Carried]):
    """A network with a live peer at its other end. A turn of it is a millisecond."""

    def __init__(self, rates: Rates, rng: random.Random, counts: Counter[str]) -> None:
        super().__init__(rates, rng, counts)
        self._begun = time.monotonic()

    def deliver(self) -> None:
        """Delivers the packets that arrive by now."""
        super().deliver()
        # The programs have time limits of their own.
        self.moved = self.turn

    def _next(self) -> int:
        return int(1000 * (time.monotonic() - self._begun))
