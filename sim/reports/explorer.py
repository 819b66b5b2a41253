"""Writes the segments of a simulation as one HTML file, to be searched and read one by one.

``explorer.html`` shows the data that is put into it. Rows of the list and explanations of segments
are in pieces, compressed, and a piece is decoded when it is needed.
"""

from __future__ import annotations

import base64
import heapq
import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from ..engines.waves import edge
from ..replay.expectation import Buffer
from ..replay.regions import Region
from . import fields, timeline
from .explanation import Explainer, Explanation, Key, key_of
from .outline import Outline, Row
from .page import filled
from .report import Result
from .shown import Shown

__all__ = ["explained_text", "write"]

_TEMPLATE = Path(__file__).with_name("explorer.html")
#: Where the pieces are put: the first piece of rows before the script, so that it shows early.
_FIRST, _REST = "<!-- FIRST -->", "<!-- REST -->"
#: Rows in a piece of the list, and segments in a piece of explanations.
_ROWS, _SEGMENTS = 4096, 64
_LEVEL = 6  # of the compression

Progress = Callable[[int, int], None]


def write(
    result: Result, explainer: Explainer, path: Path, progress: Progress | None = None
) -> None:
    """Writes the file. ``progress`` is called with the segments that are explained, and of all."""
    with TemporaryFile("w+", encoding="utf-8") as pieces:
        before, after = _around(result, explainer, pieces, progress)
        pieces.seek(0)
        with path.open("w", encoding="utf-8") as file:
            file.write(before)
            shutil.copyfileobj(pieces, file)
            file.write(after)


def explained_text(listed: int, segments: int) -> str:
    """Returns the words about a list in which only some segments are explained."""
    return f"the first segments and those refused later are explained, {listed} of {segments}"


def _around(
    result: Result, explainer: Explainer, pieces: IO[str], progress: Progress | None
) -> tuple[str, str]:
    """Writes the pieces of explanations; returns the file's text before and after them."""
    times = {key_of(each.arrival): each for run in result.runs for each in timeline.segments(run)}
    tables = _Tables()
    judged = list(explainer.judged.values())
    explained: list[_Listed] = []
    for at in range(0, len(judged), _SEGMENTS):
        known = [explainer.explain(each) for each in judged[at : at + _SEGMENTS]]
        pieces.write(_script(f"more-{at // _SEGMENTS}", _piece(tables, known, times)))
        rows = Outline((each.judged, each.placement) for each in known)
        for row, each in zip(rows, known, strict=True):
            where = each.placement
            target, offset = (None, 0) if where is None else (where.target, where.offset)
            explained.append(_Listed(row, target, offset, len(explained)))
            for shown in each.shown:
                shown.forget()
        if progress is not None:
            progress(at + len(known), len(judged))
    lists, count = list[str](), 0
    listed = _listed(result, explained, explainer)
    while some := list(islice(listed, _ROWS)):
        columns = zip(*(_columns(tables, explainer, each) for each in some), strict=True)
        lists.append(_script(f"rows-{len(lists)}", list(columns)))
        count += len(some)
    data = {
        "source": result.source,
        "verdict": result.verdict,
        "agrees": result.agrees,
        "width": result.width,
        "count": count,
        "explained": len(judged),
        "rows": _ROWS,
        "segments": _SEGMENTS,
        "streams": {stream.number: str(stream) for _, stream in result.streams},
        **tables.lists(),
    }
    page = filled(_TEMPLATE, data).replace(_FIRST, "".join(lists[:1]))
    before, _, after = page.partition(_REST)
    return before + "".join(lists[1:]), after


class _Listed(NamedTuple):
    """A segment in the list: where its payload went, and the number of its explanation, or -1."""

    row: Row
    target: Region | Buffer | None
    at: int
    explanation: int


def _listed(
    result: Result, explained: Iterable[_Listed], explainer: Explainer
) -> Iterator[_Listed]:
    """Yields all segments in the order of their frames."""
    others = (
        (
            _Listed(row, row.target, row.at, -1)
            for row in run.outline.sorted()
            if (row.host, row.order) not in explainer.judged  # it was refused later
        )
        for run in result.runs
        if run.outline is not None
    )
    return heapq.merge(explained, *others, key=lambda each: (each.row.frame, each.row.order))


def _columns(tables: _Tables, explainer: Explainer, listed: _Listed) -> tuple[Any, ...]:
    """Returns the columns of a segment in the list.

    They are frame, microseconds, stream, kind, STag or queue, offset, octets of payload, verdict;
    the target of the payload, and its offset there, or -1; the number of the explanation, or -1.
    """
    row, target, at, explanation = listed
    return (
        row.frame, round(explainer.time(row.frame) * 1e6), row.stream,
        tables.at("kinds", row.kind), row.tag, row.offset, row.length,
        tables.at("verdicts", row.verdict),
        -1 if target is None else tables.target(target), -1 if target is None else at,
        explanation,
    )  # fmt: skip


def _script(name: str, data: Any) -> str:
    """Returns an element that holds compressed data: JSON, raw deflate, base64."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = base64.b64encode(packer.compress(text) + packer.flush()).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>\n'


class _Tables:
    """Texts and shapes that many segments share, each by its place in a list."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Any, int]] = {
            name: {} for name in ("layers", "sentences", "verdicts", "kinds", "targets")
        }

    def at(self, name: str, value: Any) -> int:
        """Returns the place of a value in a list, which it is added to."""
        table = self._known[name]
        return table.setdefault(value, len(table))

    def lists(self) -> dict[str, list[Any]]:
        return {name: list(table) for name, table in self._known.items()}

    def target(self, target: Region | Buffer) -> int:
        """Returns the place of a region or buffer in the list of targets."""
        base = target.to if isinstance(target, Region) else 0
        return self.at("targets", (str(target), target.length, hex(base)))


def _piece(
    tables: _Tables, known: Sequence[Explanation], times: dict[Key, timeline.Segment]
) -> dict[str, Any]:
    """Returns explanations as the page reads them, with their frames.

    A frame has its number, its octets, and the layers below MPA or the DATA chunk.
    """
    frames: dict[Shown, int] = {}
    for explanation in known:
        for shown in explanation.shown:
            frames.setdefault(shown, len(frames))
    return {
        "frames": [
            [shown.number, shown.octets.hex(), _layers(tables, shown.layers, {shown.number: 0})]
            for shown in frames
        ],
        "segments": [
            {
                "frames": [frames[shown] for shown in each.shown],
                "layers": _layers(
                    tables,
                    each.layers[len(each.shown[-1].layers) :],
                    {shown.number: at for at, shown in enumerate(each.shown)},
                ),
                "steps": [
                    [
                        step.result.value,
                        tables.at("sentences", (step.sentence.section, step.sentence.text)),
                        step.sum,
                    ]
                    for step in each.steps
                ],
                "entry": each.entry,
                "outcome": each.outcome,
                **_error(each),
                **_times(times.get(key_of(each.judged.arrival))),
            }
            for each in known
        ],
    }


def _layers(
    tables: _Tables, layers: Sequence[fields.Layer], places: dict[int, int]
) -> list[list[Any]]:
    """Returns each layer: its shape, the values of its fields, and their spans.

    A span is three numbers: the place of the frame, and the octets from and to.
    """
    return [
        [
            tables.at(
                "layers", (layer.name, layer.section, tuple(each.name for each in layer.fields))
            ),
            [each.value for each in layer.fields],
            [
                [number for frame, *ends in each.spans for number in (places[frame], *ends)]
                for each in layer.fields
            ],
        ]
        for layer in layers
    ]


def _error(explanation: Explanation) -> dict[str, Any]:
    meaning, terminate = explanation.meaning, explanation.terminate
    if meaning is None or terminate is None:
        return {}
    return {
        "error": str(meaning),
        "terminate": terminate.encode().hex(" "),
        "advice": meaning.advice,
    }


def _times(segment: timeline.Segment | None) -> dict[str, Any]:
    """Returns the stages of a segment, each with its cycles and its time in a waveform."""
    if segment is None:
        return {}
    stages: list[tuple[str, int, int]] = [("packet comes in", segment.first, segment.last)]
    if segment.placed is not None:
        stages.append(("payload is written", *segment.placed))
    if segment.delivered is not None:
        stages.append(("message is delivered", segment.delivered, segment.delivered))
    return {"stages": [[*stage, edge(stage[1])] for stage in stages]}
