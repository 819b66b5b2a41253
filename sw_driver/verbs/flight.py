"""Decides which chunks an SCTP sender may send, and when it sends one again (RFC 9260 sections 6
and 7).

The functions take the time and return decisions; nothing here knows the device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Flight", "Limits"]

#: Section 16: RTO.Initial, RTO.Min and RTO.Max in seconds, and the gains RTO.Alpha and RTO.Beta.
_RTO, _LEAST, _MOST = 1.0, 1.0, 60.0
_ALPHA, _BETA = 1 / 8, 1 / 4
#: Section 7.2.4: after this many reports that a chunk is missing, it is sent again.
_MISSES = 3
#: Chunks that are outstanding at most. RFC 5043 section 10: "the sending DDP must simply refrain
#: from sending more than 32767 Data Chunks for a single stream without acknowledgment."
_AHEAD = 32767
_TSN = 1 << 32


class Limits(NamedTuple):
    """The chunks that may leave: those with a number less than ``tsn``, with no more than
    ``octets`` of user data since the beginning.
    """

    tsn: int
    octets: int


@dataclass
class _Chunk:
    """A chunk that has left, and whose TSN was not acknowledged cumulatively.

    ``sent`` is the time when it left last, ``repeated`` True after it left again; ``acked``: a Gap
    Ack Block has it; ``lost``: it is to be sent again.
    """

    octets: int
    sent: float
    repeated: bool = False
    acked: bool = False
    lost: bool = False
    misses: int = 0


class Flight:
    """Follows the chunks of an association that are outstanding.

    TSNs are numbers that continue past 2**32 - 1.

    Parameters
    ----------
    tsn
        The first TSN.
    window
        The peer's window, from its INIT or INIT ACK chunk.
    longest
        Octets of user data of the longest chunk that fits in a packet: section 4's PMDCS.
    """

    def __init__(self, tsn: int, window: int, longest: int) -> None:
        self.next = tsn  #: the TSN of the next chunk
        self.octets = 0  #: octets of user data of all chunks that have left
        self._longest = longest
        self._window = window  # room at the peer after the outstanding octets
        self._chunks: dict[int, _Chunk] = {}  # in the order of their TSNs
        # Section 7.2.1.
        self.cwnd = min(4 * longest, max(2 * longest, 4404))
        self._threshold, self._partial = window, 0
        self._recovery: int | None = None  # the last TSN that was outstanding when it began
        self._hurries = False  # the first chunk that is lost leaves whatever the window
        self._rto, self._smoothed, self._variation = _RTO, 0.0, 0.0
        self._timer: float | None = None

    @property
    def flight(self) -> int:
        """Octets in flight. A chunk that is lost and was not sent again is not in flight."""
        return sum(
            each.octets for each in self._chunks.values() if not each.acked and not each.lost
        )

    @property
    def deadline(self) -> float | None:
        """The time at which :meth:`expire` has to be called; None: no chunk is outstanding."""
        return self._timer

    @property
    def first(self) -> int:
        """The first TSN that was not acknowledged cumulatively."""
        return next(iter(self._chunks), self.next)

    def resize(self, longest: int) -> None:
        """Takes another length of the longest chunk."""
        self._longest = longest

    def leave(self, octets: int, now: float) -> None:
        """Notes that the next chunk has left."""
        self._chunks[self.next] = _Chunk(octets, now)
        self.next += 1
        self.octets += octets
        self._window = max(0, self._window - octets)
        if self._timer is None:
            self._timer = now + self._rto

    def limits(self) -> Limits:
        """Returns the limits of new chunks (section 6.1, rules A to C)."""
        flight, waits = self.flight, any(each.lost for each in self._chunks.values())
        most = self.first + _AHEAD
        if waits or flight >= self.cwnd:
            return Limits(self.next, self.octets)
        if not self._chunks and self._window < self._longest:
            # One chunk probes a window that is closed. It has to be the only one in flight.
            return Limits(self.next + 1, self.octets + self._longest)
        # The last chunk may exceed the congestion window by less than a packet.
        room = min(self.cwnd - flight + self._longest - 1, self._window)
        return Limits(most, self.octets + room)

    def due(self, now: float) -> list[int]:
        """Returns the TSNs that are to be sent again now, as far as the window allows."""
        taken, flight = [], self.flight
        for tsn, chunk in self._chunks.items():
            if chunk.lost and (flight < self.cwnd or not flight or self._hurries):
                self._hurries = False
                chunk.lost, chunk.repeated, chunk.misses, chunk.sent = False, True, 0, now
                flight += chunk.octets
                self._window = max(0, self._window - chunk.octets)
                taken.append(tsn)
                if self._timer is None or tsn == next(iter(self._chunks)):
                    self._timer = now + self._rto  # section 6.3.2, R1 and R4
        return taken

    def acknowledge(
        self, cumulative: int, window: int, gaps: Sequence[tuple[int, int]], now: float
    ) -> bool:
        """Takes a SACK chunk; returns False if it is old or acknowledges a chunk that was not sent.

        ``cumulative`` is the number in the chunk, modulo 2**32; ``gaps`` have the first and the
        last TSN of each block, as offsets from it.
        """
        first = self.first
        last = first - 1 + (cumulative - first + 1) % _TSN
        if last >= self.next:  # section 6.2.1, D i)
            return False
        full = self.flight >= self.cwnd
        taken = self._take_cumulative(last)
        advanced = last >= first
        highest = self._take_gaps(last, gaps)
        newest = highest.chunk or taken.chunk
        if newest is not None and not newest.repeated:  # section 6.3.1, C5
            self._measure(now - newest.sent)
        acked = taken.octets + highest.octets
        missing = highest.tsn
        if self._recovery is not None and advanced and gaps:
            missing = last + max(end for _, end in gaps)
        self._window = max(0, window - self.flight)
        if advanced:
            self._grow(acked, full)
            if self._recovery is not None and last >= self._recovery:
                self._recovery = None
            self._timer = now + self._rto if self._chunks else None
        self._count_misses(missing)
        return True

    class _Newly(NamedTuple):
        """The chunk with the highest TSN of those that are newly acknowledged, if any, and the
        octets of all of these.
        """

        tsn: int
        chunk: _Chunk | None
        octets: int

    def _take_cumulative(self, last: int) -> _Newly:
        """Forgets the chunks up to a TSN. Those of a gap were acknowledged before."""
        highest, octets = None, 0
        for tsn in [each for each in self._chunks if each <= last]:
            chunk = self._chunks.pop(tsn)
            if not chunk.acked:
                highest, octets = chunk, octets + chunk.octets
        return self._Newly(last, highest, octets)

    def _take_gaps(self, last: int, gaps: Sequence[tuple[int, int]]) -> _Newly:
        """Notes the chunks in Gap Ack Blocks. A block that is missing now takes its chunks back."""
        highest, newest, octets = last, None, 0
        # The work is that of the blocks and of the chunks: a peer may send many long blocks.
        blocks = sorted(gaps)
        starts = [start for start, _ in blocks]
        ends = [*accumulate((end for _, end in blocks), max)]
        for tsn, chunk in self._chunks.items():
            before = bisect_right(starts, tsn - last)
            found = before > 0 and tsn - last <= ends[before - 1]
            if found and not chunk.acked:
                highest, newest, octets = tsn, chunk, octets + chunk.octets
                chunk.lost = False
            chunk.acked = found
        return self._Newly(highest, newest, octets)

    def _measure(self, time: float) -> None:
        """Adds a round-trip time to the timeout (section 6.3.1)."""
        if self._smoothed:
            self._variation += _BETA * (abs(self._smoothed - time) - self._variation)
            self._smoothed += _ALPHA * (time - self._smoothed)
        else:
            self._smoothed, self._variation = time, time / 2
        self._rto = min(max(self._smoothed + 4 * self._variation, _LEAST), _MOST)

    def _grow(self, acked: int, full: bool) -> None:
        """Enlarges the congestion window (sections 7.2.1 and 7.2.2), if all of it was in use."""
        if self._recovery is not None:
            return
        if self.cwnd <= self._threshold:
            if full:
                self.cwnd += min(acked, self._longest)
            return
        self._partial += acked
        if self._partial >= self.cwnd and full:
            self._partial -= self.cwnd
            self.cwnd += self._longest
        if not self._chunks:
            self._partial = 0

    def _count_misses(self, highest: int) -> None:
        """Marks the chunks that three SACK chunks have reported missing (section 7.2.4)."""
        marked = False
        for tsn, chunk in self._chunks.items():
            if tsn < highest and not chunk.acked and not chunk.lost:
                chunk.misses += 1
                # A chunk is sent again in this way once; then only after the timer.
                if chunk.misses >= _MISSES and not chunk.repeated:
                    chunk.lost = marked = True
                    self._window += chunk.octets
        if marked and self._recovery is None:
            self._recovery = max(self._chunks)
            self._threshold = self.cwnd = max(self.cwnd // 2, 4 * self._longest)
            self._partial, self._hurries = 0, True

    def expire(self, now: float) -> bool:
        """Marks all chunks in flight as lost once the timer has expired (section 6.3.3); returns
        whether it has.
        """
        if self._timer is None or now < self._timer:
            return False
        self._threshold = max(self.cwnd // 2, 4 * self._longest)
        self.cwnd, self._partial, self._recovery = self._longest, 0, None
        self._rto = min(2 * self._rto, _MOST)
        for chunk in self._chunks.values():
            if not chunk.acked and not chunk.lost:
                chunk.lost = True
                self._window += chunk.octets
        self._timer = now + self._rto
        return True
