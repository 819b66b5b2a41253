"""Writes the segments of a simulation as one HTML file, to be searched and read one by one.

``explorer.html`` shows the data that is put into it. Rows of the list and explanations of segments
are in pieces, compressed, and a piece is decoded when it is needed.
"""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from ...sw_driver.rdmap.wire import Message
from ..capture.streams import Arrival, Tagged, Untagged
from ..engines.waves import edge
from ..replay.expectation import Buffer, Judged
from ..replay.regions import Region
from . import fields, timeline
from .explanation import Explainer, Explanation, Key, key_of
from .page import filled
from .report import Result
from .shown import Shown

__all__ = ["left_out", "write"]

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


def left_out(listed: int, segments: int) -> str:
    """Returns the words about a list that does not have all segments."""
    return f"the first segments and those refused later, {listed} of {segments}"


def _around(
    result: Result, explainer: Explainer, pieces: IO[str], progress: Progress | None
) -> tuple[str, str]:
    """Writes the pieces of explanations; returns the file's text before and after them."""
    times = {key_of(each.arrival): each for run in result.runs for each in timeline.segments(run)}
    tables = _Tables()
    columns: list[list[Any]] = [[] for _ in range(10)]
    judged = list(explainer.judged.values())
    for at in range(0, len(judged), _SEGMENTS):
        known = [explainer.explain(each) for each in judged[at : at + _SEGMENTS]]
        pieces.write(_script(f"more-{at // _SEGMENTS}", _piece(tables, known, times)))
        for each in known:
            for column, value in zip(columns, _row(tables, explainer, each), strict=True):
                column.append(value)
            for shown in each.shown:
                shown.forget()
        if progress is not None:
            progress(at + len(known), len(judged))
    rows = [
        _script(f"rows-{at // _ROWS}", [column[at : at + _ROWS] for column in columns])
        for at in range(0, len(judged), _ROWS)
    ]
    data = {
        "source": result.source,
        "verdict": result.verdict,
        "agrees": result.agrees,
        "width": result.width,
        "count": len(judged),
        "left_out": left_out(len(judged), result.segments) if len(judged) < result.segments else "",
        "rows": _ROWS,
        "segments": _SEGMENTS,
        "streams": {stream.number: str(stream) for _, stream in result.streams},
        **tables.lists(),
    }
    page = filled(_TEMPLATE, data).replace(_FIRST, "".join(rows[:1]))
    before, _, after = page.partition(_REST)
    return before + "".join(rows[1:]), after


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


def _row(tables: _Tables, explainer: Explainer, explanation: Explanation) -> Iterator[Any]:
    """Yields the columns of a segment in the list.

    They are frame, microseconds, stream, kind, STag or queue, offset, octets of payload, verdict;
    then the target of the payload, and its offset there, or -1.
    """
    arrival, placement = explanation.judged.arrival, explanation.placement
    kind, tag, offset, length = _header(arrival)
    yield arrival.frame
    yield round(explainer.time(arrival.frame) * 1e6)
    yield arrival.stream.number
    yield tables.at("kinds", kind)
    yield tag
    yield offset
    yield length
    yield tables.at("verdicts", _verdict(explanation.judged, written=placement is not None))
    yield -1 if placement is None else tables.target(placement.target)
    yield -1 if placement is None else placement.offset


def _header(arrival: Arrival) -> tuple[str, str, str, int]:
    """Returns kind, STag or queue, offset and octets of payload."""
    match arrival.header:
        case Tagged(stag=stag, to=to, length=length):
            return _opcode(arrival.ulpdu[1] & 15), f"STag {stag:#010x}", f"{to:#x}", length
        case Untagged(opcode=opcode, queue=queue, msn=msn, mo=mo, payload=payload):
            return _opcode(opcode), f"QN {queue} MSN {msn}", str(mo), len(payload)
    return "no sound header", "", "", len(arrival.ulpdu)


def _opcode(number: int) -> str:
    known = number in Message._value2member_map_
    return Message(number).name.replace("_", " ").title() if known else f"opcode {number}"


def _verdict(judged: Judged, *, written: bool) -> str:
    if judged.dropped:
        return "dropped"
    if judged.error is None:
        return "placed" if written else "accepted"
    return f"{'failed later' if written else 'refused'}: {judged.error}"


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
