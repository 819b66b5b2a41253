"""Keeps the beginning of a long run and the segments that were refused later, and one row of each
other segment.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, islice, takewhile

from ..capture.streams import Arrival
from ..engines.engine import Outcome
from ..replay.expectation import Delivery, Expected, Judged, Placement
from ..replay.plan import Plan
from ..replay.sctp_expectation import SctpGolden
from .explanation import Key, key_of
from .outline import Outline

__all__ = ["MOST", "OCTETS", "Record"]

#: How many segments are kept from the beginning of a run, and how many octets they have together.
MOST, OCTETS = 8_000, 8 << 20
#: How many further segments the device has got before these are kept: those in front of them are
#: placed and delivered then.
_BEHIND = 1_000
#: The fields of an outcome that an engine drops after each piece.
_OF_CYCLES = "completions", "delivered", "writes", "bursts", "responses", "taken"


class Record:
    """Keeps the events of a run's first segments, up to :data:`MOST` and :data:`OCTETS`, and the
    segments refused later.

    Parameters
    ----------
    plan
        The plan of the run, whose judgements are forgotten piece by piece.

    Attributes
    ----------
    outline
        The other segments.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._beginning: Outcome | None = None
        self._sent: list[tuple[Arrival, ...]] = []
        self._judged: dict[Key, Judged] = {}
        self._placements: list[Placement] = []
        self._deliveries: list[Delivery] = []
        self._ring: list[Expected] = []
        self.outline = Outline()

    def take(self, outcome: Outcome) -> bool:
        """Takes the outcome so far; returns True if plan and engine may forget the events."""
        plan, golden = self._plan, self._plan.golden
        if self._beginning is None:
            packets = plan.sent[: len(outcome.taken)]
            if sum(map(len, packets)) < self._most() + _BEHIND:
                return False
            self._beginning, self._sent = outcome, packets
            self._judged = dict(islice(golden.judged.items(), self._most()))
            self._placements = [
                each for each in golden.placements if key_of(each.arrival) in self._judged
            ]
            self._deliveries = [*golden.deliveries]
            if isinstance(golden, SctpGolden):
                self._ring = [*golden.ring]
        self._add_later()
        return True

    def _most(self) -> int:
        """Returns how many of the first segments are kept."""
        judged = islice(self._plan.golden.judged.values(), MOST)
        octets = accumulate(len(each.arrival.ulpdu) for each in judged)
        return sum(1 for _ in takewhile(lambda count: count <= OCTETS, octets))

    def _add_later(self) -> None:
        golden = self._plan.golden
        late = {
            key: each
            for key, each in golden.judged.items()
            if each.error is not None and key not in self._judged
        }
        self._judged |= late
        self._placements += [each for each in golden.placements if key_of(each.arrival) in late]
        placements = {key_of(each.arrival): each for each in golden.placements}
        self.outline.add(
            (each, placements.get(key))
            for key, each in golden.judged.items()
            if key not in self._judged
        )

    def restore(self, outcome: Outcome) -> Outcome:
        """Gives the plan its events back, at the end of the run; returns the outcome with the
        cycles of the same segments.
        """
        golden = self._plan.golden
        if self._beginning is None:
            self._judged = dict(islice(golden.judged.items(), self._most()))
            self._add_later()
            golden.judged = self._judged
            return outcome
        self._add_later()
        golden.judged, golden.placements = self._judged, self._placements
        golden.deliveries, self._plan.sent = self._deliveries, self._sent
        if isinstance(golden, SctpGolden):
            golden.ring = self._ring
        kept = {name: getattr(self._beginning, name) for name in _OF_CYCLES}
        return replace(outcome, **kept)
