"""Keeps what concerns one frame of a capture, and drops all else while the capture is received."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ..capture.capture import Capture
from ..capture.streams import Arrival
from ..capture.traffic import Traffic
from ..engines.engine import TAKEN, WRITE, Outcome
from ..replay.expectation import Delivery, Expected, Golden, Judged, Placement
from ..replay.plan import Plan, Replay
from .explanation import Key, directions_of, key_of
from .timeline import Segment, placed

__all__ = ["FrameCycles", "judge"]

#: After this number of operations the golden model forgets the segments that are not asked for.
_OPERATIONS = 1_000
#: A device that has got these further packets has placed the octets of the packets before them.
_BEHIND = 1_000


def judge(replays: Iterable[Replay], capture: Capture, traffic: Traffic, frame: int) -> list[Plan]:
    """Lets the golden model receive all segments; returns the plans, whose judgements are those of
    the segments with octets in one frame.
    """
    wanted = _in_frame(capture, traffic, frame)
    plans = []
    for replay in replays:
        kept = _Kept(replay.plan.golden)
        for number, _ in enumerate(replay.operations(), 1):
            if number % _OPERATIONS == 0:
                kept.take(wanted)
                replay.plan.sent.clear()
        kept.take(wanted)
        kept.restore()
        plans.append(replay.plan)
    return plans


class _Kept:
    """The golden model's events about the segments that are asked for."""

    def __init__(self, golden: Golden) -> None:
        self._golden = golden
        self._judged: dict[Key, Judged] = {}
        self._placements: list[Placement] = []
        self._deliveries: list[Delivery] = []

    def take(self, wanted: Callable[[Arrival], bool]) -> None:
        """Takes the events so far, and lets the golden model forget all others."""
        golden = self._golden
        self._judged |= {key: each for key, each in golden.judged.items() if wanted(each.arrival)}
        self._placements += [each for each in golden.placements if wanted(each.arrival)]
        self._deliveries += [each for each in golden.deliveries if wanted(each.arrival)]
        golden.forget()
        # At its turn, a segment over SCTP may still get an error.
        golden.judged |= self._judged

    def restore(self) -> None:
        """Gives the golden model the events back."""
        self._golden.placements, self._golden.deliveries = self._placements, self._deliveries


def _in_frame(capture: Capture, traffic: Traffic, frame: int) -> Callable[[Arrival], bool]:
    """Returns a function that decides whether a segment may have octets in a frame."""
    brought = {
        number: [each for each in direction.brought if each.frame == frame]
        for number, direction in directions_of(capture, traffic).items()
    }

    def wanted(arrival: Arrival) -> bool:
        start, stop = arrival.position, arrival.position + len(arrival.raw)
        return arrival.frame == frame or any(
            each.position < stop and start < each.position + each.length
            for each in brought.get(arrival.stream.number, ())
        )

    return wanted


class FrameCycles:
    """Finds the cycles in which a device handles the segments of one frame, piece by piece.

    Parameters
    ----------
    plan
        The plan of the run.
    frame
        The number of the frame.

    Attributes
    ----------
    first, last
        The first and the last frame with a segment; 0 if there is none.
    """

    def __init__(self, plan: Plan, frame: int) -> None:
        self.first = self.last = 0
        self._plan, self._frame = plan, frame
        # The events of the packets that may not be placed yet, in their order.
        self._sent: list[tuple[Arrival, ...]] = []
        self._taken = np.zeros(0, TAKEN)
        self._writes = np.zeros(0, WRITE)
        self._placements: list[Placement] = []
        self._found: dict[Key, Segment] = {}
        self._delivered: dict[Key, int] = {}

    def entry(self, want: Expected, cycle: int | None) -> None:
        """Takes the cycle of an entry of the completion ring."""
        if isinstance(want, Delivery) and want.arrival.frame == self._frame and cycle is not None:
            self._delivered[key_of(want.arrival)] = cycle

    def take(self, outcome: Outcome, *, ends: bool = False) -> None:
        """Takes the events since the last call, before the plan and the engine forget them.

        ``ends``: they are the last ones.
        """
        frames = [segment.frame for packet in self._plan.sent for segment in packet]
        if frames:
            self.first, self.last = self.first or frames[0], frames[-1]
        if self._found:
            return
        self._sent += self._plan.sent
        self._placements += self._plan.golden.placements
        self._taken = np.append(self._taken, outcome.taken)
        ours = [
            number
            for number, packet in enumerate(self._sent)
            if any(segment.frame == self._frame for segment in packet)
        ]
        # The last packets may be placed later. Before them a run may have millions of writes.
        first = ours[0] if ours else len(self._taken)
        gone = min(max(first - _BEHIND, 0), len(self._taken))
        self._drop(gone, outcome.writes)
        if ours and (ends or ours[-1] - gone < len(self._taken) - _BEHIND):
            segments = placed(self._plan, self._sent, self._taken, self._writes, self._placements)
            self._found = {
                key_of(each.arrival): each
                for each in segments.values()
                if each.arrival.frame == self._frame
            }
            self._drop(len(self._sent), self._writes[:0])

    def _drop(self, count: int, writes: NDArray) -> None:
        """Drops the events of the first packets, and takes further writes."""
        gone = {key_of(segment) for packet in self._sent[:count] for segment in packet}
        del self._sent[:count]
        self._placements = [each for each in self._placements if key_of(each.arrival) not in gone]
        self._taken = self._taken[count:].copy()
        since = self._taken["first"][0] if len(self._taken) else 0
        late = [each[each["cycle"] >= since] for each in (self._writes, writes)]
        self._writes = np.concatenate(late)

    @property
    def segments(self) -> list[Segment]:
        """The segments of the frame that the device got, after the run."""
        for key, each in self._found.items():
            each.delivered = self._delivered.get(key)
        return list(self._found.values())
