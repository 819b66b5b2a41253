"""The times of events in a run: each segment's arrival, placement and delivery; octets in
flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec.ddp import ErrorNumber
from ..capture.streams import Arrival
from ..replay.differences import matched
from ..replay.expectation import Delivery, Placement, spans
from ..replay.plan import Plan
from ..replay.regions import Region
from .report import Run

__all__ = ["Segment", "occupancy", "placed", "segments", "throughput"]


@dataclass
class Segment:
    """A DDP Segment with its cycles, and ``octets`` placed.

    The cycles are those in which its packet's first and last beat arrived, in which its first and
    last octet were written, and in which its message was delivered.
    """

    arrival: Arrival
    packet: int
    first: int
    last: int
    placed: tuple[int, int] | None = None
    octets: int = 0
    delivered: int | None = None
    error: ErrorNumber | None = None

    @property
    def end(self) -> int:
        """The last cycle of an event of this segment."""
        return max(self.last, *(self.placed or ()), self.delivered or 0)


def segments(run: Run) -> list[Segment]:
    """Returns the segments of a run in order of arrival, where the device reports cycles.

    Segments that never arrived are left out.
    """
    plan, outcome = run.plan, run.outcome
    found = placed(plan, plan.sent, outcome.taken, outcome.writes, plan.golden.placements)
    for want, number in matched(plan, outcome):
        if isinstance(want, Delivery) and number < len(outcome.delivered):
            if (segment := found.get(id(want.arrival))) is not None:
                segment.delivered = int(outcome.delivered[number])
    for error in plan.golden.errors:
        if (segment := found.get(id(error.arrival))) is not None:
            segment.error = error.number
    return list(found.values())


def placed(
    plan: Plan,
    sent: Iterable[tuple[Arrival, ...]],
    taken: NDArray,
    writes: NDArray,
    placements: Iterable[Placement],
) -> dict[int, Segment]:
    """Returns the segments of packets with the cycles in which they arrived and were placed, by the
    identity of their arrivals.

    Parameters
    ----------
    plan
        The plan of the run.
    sent, placements
        The segments in each packet, and the placements of these segments, in their order.
    taken, writes
        The cycles of these packets, and those of the beats that the device wrote since the first of
        them.
    """
    found: dict[int, Segment] = {}
    for number, (packet, (first, last)) in enumerate(zip(sent, taken.tolist(), strict=False)):
        for arrival in packet:
            found[id(arrival)] = Segment(arrival, number, first, last)
    beats = _Writes(writes, plan.config.octets)
    lies = {each.region: each for each in plan.allotments}
    for placement in placements:
        if (segment := found.get(id(placement.arrival))) is not None:
            target = placement.target
            where = lies[target] if isinstance(target, Region) else target
            pieces = spans(where.address, where.pages, placement.offset, len(placement.payload))
            _place(segment, placement, beats.of(pieces, segment.first))
    return found


def _place(segment: Segment, placement: Placement, cycles: list[int]) -> None:
    if cycles:
        before = segment.placed or (cycles[0], cycles[0])
        segment.placed = min(before[0], *cycles), max(before[1], *cycles)
        segment.octets += len(placement.payload)


class _Writes:
    """The beats of write data, by their address. Each beat belongs to one placement."""

    def __init__(self, writes: NDArray, octets: int) -> None:
        self._octets = octets
        beats = writes["address"] // octets
        order = np.argsort(beats, kind="stable")
        end = np.iinfo(beats.dtype).max  # after all beats
        self._beats, self._cycles = np.append(beats[order], end), writes["cycle"][order]
        self._used = np.zeros(len(self._beats), np.int64)  # how many, at the first of each address

    def of(self, pieces: Iterable[tuple[int, int]], since: int) -> list[int]:
        """Returns the cycles of the next beats at these pieces of memory, from a cycle on."""
        found = []
        for address, count in pieces:
            end = -(-(address + count) // self._octets)
            beats = np.arange(address // self._octets, end, dtype=self._beats.dtype)
            firsts = np.searchsorted(self._beats, beats)
            while len(beats):
                at = firsts + self._used[firsts]
                there = self._beats[at] == beats
                beats, firsts, at = beats[there], firsts[there], at[there]
                self._used[firsts] += 1
                late = self._cycles[at] >= since
                found += self._cycles[at[late]].tolist()
                beats, firsts = beats[~late], firsts[~late]
        return found


def _packets(run: Run, known: list[Segment]) -> Iterator[tuple[int, int, int, int]]:
    """Yields, for each packet and frame, the cycles of its first and last beat, its octets,
    and the cycle in which the last of its segments was placed.
    """
    left = run.outcome.taken["last"].tolist()
    for segment in known:
        if segment.placed is not None:
            left[segment.packet] = max(left[segment.packet], segment.placed[1])
    taken = run.outcome.taken.tolist()
    for packet, (first, last), end in zip(run.plan.packets(), taken, left, strict=False):
        yield first, last, len(packet.octets), end


def occupancy(run: Run, known: list[Segment], points: int) -> list[tuple[int, int]]:
    """Returns how many octets have arrived whose packet is not completely placed.

    The run is divided into ``points`` stretches. For each, the result has the cycle in which it
    begins, and the largest number of such octets in it.
    """
    changes: dict[int, int] = {}
    for _, last, octets, end in _packets(run, known):
        changes[last] = changes.get(last, 0) + octets
        changes[end + 1] = changes.get(end + 1, 0) - octets
    if not changes:
        return []
    start, step = _stretch(run, points)
    most, inside, now = [0] * points, 0, 0
    for cycle in sorted(changes):
        # These octets stay inside up to this cycle.
        until = min((cycle - start) // step, points - 1)
        for at in range(now, until + 1):
            most[at] = max(most[at], inside)
        inside, now = inside + changes[cycle], max(until, 0)
        most[now] = max(most[now], inside)
    return [(start + at * step, octets) for at, octets in enumerate(most)]


def throughput(
    run: Run, known: list[Segment], points: int
) -> tuple[int, list[tuple[int, float, float]]]:
    """Returns the length of a stretch in cycles, and the rates in each stretch.

    The run is divided into ``points`` stretches. For each, the result has the cycle in which it
    begins, and the octets per cycle that arrived and that were placed.
    """
    start, step = _stretch(run, points)
    came, placed = [0.0] * points, [0.0] * points

    def spread(counts: list[float], first: int, last: int, octets: int) -> None:
        """Adds octets, spread evenly over the cycles in which they passed."""
        for at in range((first - start) // step, min((last - start) // step, points - 1) + 1):
            begin, end = start + at * step, start + (at + 1) * step
            share = min(end, last + 1) - max(begin, first)
            counts[at] += octets * share / (last + 1 - first) / step

    for first, last, octets, _ in _packets(run, known):
        spread(came, first, last, octets)
    for segment in known:
        if segment.placed is not None:
            spread(placed, *segment.placed, segment.octets)
    rows = [(start + at * step, came[at], placed[at]) for at in range(points)]
    return step, rows


def _stretch(run: Run, points: int) -> tuple[int, int]:
    """Returns the first cycle with activity, and the length of a stretch."""
    taken, writes = run.outcome.taken, run.outcome.writes
    if not len(taken):
        return 0, 1
    start = int(taken["first"][0])
    ends = [taken["last"], writes["cycle"], run.outcome.delivered]
    last = max(int(np.max(each)) for each in ends if len(each))
    return start, max(-(-(last + 1 - start) // points), 1)
