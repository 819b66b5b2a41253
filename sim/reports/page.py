"""Writes the results of devices as one self-contained HTML file.

``page.html`` draws the data that is put into it as JSON: verdict, differences with their octets and
place in a waveform, throughput, latency, occupancy, and the timeline of all segments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..capture.streams import Tagged, Untagged
from ..engines.waves import edge
from ..replay.differences import Difference
from .device_results import DeviceResult, DeviceResults
from .report import Run
from .timeline import Segment, occupancy, segments, throughput

__all__ = ["filled", "html", "write"]

_TEMPLATE = Path(__file__).with_name("page.html")
#: The place of the data in the page.
_PLACE = '"DATA"'
_THEME = Path(__file__).with_name("theme.css")
_THEME_PLACE = '"THEME"'
#: Number of points of a plot.
_POINTS = 300


def write(results: DeviceResults, path: Path) -> None:
    """Write the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html(results), encoding="utf-8")


def html(results: DeviceResults) -> str:
    """Its text."""
    data = {
        "source": results.source,
        "width": results.width,
        "agrees": results.agrees,
        "verdict": results.verdict,
        "left_out": [str(each) for each in results.left_out],
        "notes": results.notes,
        "sides": [_side(side) for side in results.devices],
        "differences": [
            {
                "run": row.run,
                "what": row.what,
                "where": row.where,
                "expected": row.expected,
                "got": {name: _difference(each) for name, each in row.got.items()},
            }
            for row in results.rows()
        ],
    }
    return filled(_TEMPLATE, data)


def filled(template: Path, data: Any) -> str:
    """Returns a template with its data, as JSON, and the colours that all pages share."""
    # No text inside a script may end the script.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    theme = _THEME.read_text(encoding="utf-8").rstrip()
    page = template.read_text(encoding="utf-8").replace(_THEME_PLACE, theme)
    return page.replace(_PLACE, text)


def _difference(each: Difference) -> dict[str, Any]:
    told: dict[str, Any] = {"text": each.got}
    if each.octets is not None:
        told["octets"] = each.octets
    if each.cycle is not None:
        told |= {"cycle": each.cycle, "time": edge(each.cycle)}
    return told


def _side(side: DeviceResult) -> dict[str, Any]:
    return {
        "name": side.name,
        "verdict": side.verdict,
        "failure": side.failure,
        "waves": [path.name for path in side.waves],
        "runs": [_run(run) for run in side.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    counters, known = run.outcome.counters, segments(run)
    step, rates = throughput(run, known, _POINTS) if known else (1, [])
    return {
        "cycles": run.outcome.cycles,
        "packets": len(run.plan.packets()),
        "segments": sum(counts.segments for counts in run.plan.golden.counts.values()),
        "octets": counters["PLACED_OCTETS"],
        "errors": counters["ERRORS"],
        "completions": len(run.outcome.completions),
        "beat": run.plan.config.octets,
        "streams": {each.number: str(each) for each in run.plan.streams},
        "step": step,
        "throughput": [[cycle, round(a, 3), round(b, 3)] for cycle, a, b in rates],
        "occupancy": occupancy(run, known, _POINTS),
        "timeline": [_segment(each) for each in known],
    }


def _segment(segment: Segment) -> list[Any]:
    """Returns a segment as the page reads it.

    The items are stream, frame, order, kind, octets placed; the cycles of its packet's first and
    last beat, of its first and last write, and of its delivery; and its error.
    """
    arrival = segment.arrival
    match arrival.header:
        case Tagged(stag=stag, to=to, length=length):
            what = f"tagged, STag {stag:#010x}, TO {to:#x}, {length} octets"
        case Untagged(queue=queue, msn=msn, mo=mo, payload=payload):
            what = f"untagged, QN {queue}, MSN {msn}, MO {mo}, {len(payload)} octets"
        case _:
            what = "no sound header"
    return [
        arrival.stream.number,
        arrival.frame,
        arrival.order,
        what,
        segment.octets,
        segment.first,
        segment.last,
        *(segment.placed or (None, None)),
        segment.delivered,
        None if segment.error is None else str(segment.error),
    ]
