"""Keeps one row of each segment of a long run whose events are forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...sw_driver.rdmap.wire import Message
from ..capture.streams import Arrival, Tagged, Untagged
from ..replay.expectation import Judged, Placement
from ..replay.regions import Region
from .explanation import key_of

__all__ = ["Outline", "Row"]

_UNSOUND = "no sound header"
#: A row, of 53 octets. ``kind``, ``verdict``, ``host`` and ``target`` are places in lists.
_ROW = np.dtype([
    ("frame", "<u4"), ("order", "<u4"), ("host", "<u4"), ("stream", "<u4"), ("kind", "<u2"),
    ("tagged", "?"), ("tag", "<u4"), ("msn", "<u4"), ("offset", "<u8"), ("length", "<u4"),
    ("verdict", "<u2"), ("target", "<i4"), ("at", "<u8"),
])  # fmt: skip
#: How many rows are turned into text at a time.
_PART = 4096


class Row(NamedTuple):
    """A segment in a list.

    Parameters
    ----------
    tag, offset
        STag or queue, and offset, as text.
    target, at
        The region that the payload was written to, and its offset there; or None.
    """

    frame: int
    order: int
    host: str
    stream: int
    kind: str
    tag: str
    offset: str
    length: int
    verdict: str
    target: Region | None = None
    at: int = 0


class Outline:
    """Keeps rows of segments, in the order in which they were added."""

    def __init__(self, segments: Iterable[tuple[Judged, Placement | None]] = ()) -> None:
        self._lists: dict[str, dict[Any, int]] = {name: {} for name in ("host", "kind", "verdict")}
        self._targets: dict[int, tuple[int, Region]] = {}  # by the identity of the region
        self._rows: list[NDArray] = []
        self.add(segments)

    def add(self, segments: Iterable[tuple[Judged, Placement | None]]) -> None:
        """Adds segments, each with its placement."""
        rows = [self._row(judged, placement) for judged, placement in segments]
        if rows:
            self._rows.append(np.array(rows, _ROW))

    def _row(self, judged: Judged, placement: Placement | None) -> tuple[Any, ...]:
        arrival = judged.arrival
        host, order = key_of(arrival)
        verdict = _verdict(judged, written=placement is not None)
        target, at = -1, 0
        if placement is not None and isinstance(placement.target, Region):
            region, at = placement.target, placement.offset
            target, _ = self._targets.setdefault(id(region), (len(self._targets), region))
        kind, tagged, tag, msn, offset, length = _header(arrival)
        return (
            arrival.frame, order, self._at("host", host), arrival.stream.number,
            self._at("kind", kind), tagged, tag, msn, offset, length, self._at("verdict", verdict),
            target, at,
        )  # fmt: skip

    def _at(self, name: str, value: Any) -> int:
        known = self._lists[name]
        return known.setdefault(value, len(known))

    def __iter__(self) -> Iterator[Row]:
        return self._of(self._rows)

    def sorted(self) -> Iterator[Row]:
        """Yields the rows in the order of their frames."""
        rows = np.concatenate([np.zeros(0, _ROW), *self._rows])
        order = np.lexsort((rows["order"], rows["frame"]))
        return self._of(rows[order[at : at + _PART]] for at in range(0, len(order), _PART))

    def _of(self, parts: Iterable[NDArray]) -> Iterator[Row]:
        lists = {name: list(known) for name, known in self._lists.items()}
        targets = [region for _, region in self._targets.values()]
        for rows in parts:
            for (
                frame, order, host, stream, kind, tagged, tag, msn, offset, length, verdict, target,
                at,
            ) in rows.tolist():  # fmt: skip
                name = lists["kind"][kind]
                texts = ("", "") if name == _UNSOUND else _texts(tagged, tag, msn, offset)
                yield Row(
                    frame, order, lists["host"][host], stream, name, *texts, length,
                    lists["verdict"][verdict], targets[target] if target >= 0 else None, at,
                )  # fmt: skip


def _texts(tagged: bool, tag: int, msn: int, offset: int) -> tuple[str, str]:
    if tagged:
        return f"STag {tag:#010x}", f"{offset:#x}"
    return f"QN {tag} MSN {msn}", str(offset)


def _header(arrival: Arrival) -> tuple[str, bool, int, int, int, int]:
    """Returns kind, whether the segment is tagged, STag or queue, MSN, offset, and octets of
    payload.
    """
    match arrival.header:
        case Tagged(stag=stag, to=to, length=length):
            return _opcode(arrival.ulpdu[1] & 15), True, stag, 0, to, length
        case Untagged(opcode=opcode, queue=queue, msn=msn, mo=mo, payload=payload):
            return _opcode(opcode), False, queue, msn, mo, len(payload)
    return _UNSOUND, False, 0, 0, 0, len(arrival.ulpdu)


def _opcode(number: int) -> str:
    known = number in Message._value2member_map_
    return Message(number).name.replace("_", " ").title() if known else f"opcode {number}"


def _verdict(judged: Judged, *, written: bool) -> str:
    if judged.dropped:
        return "dropped"
    if judged.error is None:
        return "placed" if written else "accepted"
    return f"{'failed later' if written else 'refused'}: {judged.error}"
