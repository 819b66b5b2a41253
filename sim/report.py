"""What `rnic sim` leaves for other programs: ``report.json``, ``memory/`` and ``receives/``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..hdl.spec.completion import Completion, Status
from .compare import Difference, number_text
from .engine import Outcome
from .golden import Buffer
from .replay import Plan
from .traffic import Stream


@dataclass
class Run:
    """One simulated RNIC, after its run."""

    plan: Plan
    outcome: Outcome
    memory: NDArray[np.uint8]
    differences: list[Difference]

    def deliveries(self, stream: int) -> int:
        """Messages that the RNIC delivered, tagged and untagged, of a stream."""
        return sum(
            each.stream == stream and each.status == Status.DELIVERED
            for each in self.outcome.completions
        )

    def receives(self) -> Iterator[tuple[Buffer, Completion, bytes]]:
        """The untagged messages that the RNIC delivered, in its order, with the octets that it
        placed.
        """
        buffers = {(each.stream, each.qn, each.msn): each for each in self.plan.buffers}
        for each in self.outcome.completions:
            buffer = buffers.get((each.stream, each.qn, each.tag))
            if not each.tagged and each.status == Status.DELIVERED and buffer is not None:
                end = min(buffer.address + each.length, buffer.end)
                yield buffer, each, self.memory[buffer.address : end].tobytes()


@dataclass
class Result:
    """A whole simulation. ``source`` names the capture or workload."""

    source: str
    engine: str
    width: int
    derived: bool
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return not any(run.differences for run in self.runs)

    @property
    def verdict(self) -> str:
        return "agree" if self.agrees else "differ"

    @property
    def cycles(self) -> int:
        return sum(run.outcome.cycles for run in self.runs)

    @property
    def segments(self) -> int:
        return sum(
            counts.segments for run in self.runs for counts in run.plan.golden.counts.values()
        )

    @property
    def bytes_placed(self) -> int:
        """As the RNIC counts."""
        return self.counter("PLACED_OCTETS")

    @property
    def errors(self) -> int:
        """As the RNIC counts."""
        return self.counter("ERRORS")

    def counter(self, name: str) -> int:
        return sum(run.outcome.counters[name] for run in self.runs)

    @property
    def deliveries(self) -> int:
        """As the RNIC counts."""
        return self.counter("DELIVERED")

    @property
    def streams(self) -> list[tuple[Run, Stream]]:
        """In order of their number."""
        both = [(run, stream) for run in self.runs for stream in run.plan.streams]
        return sorted(both, key=lambda pair: pair[1].number)


def write(result: Result, directory: Path) -> None:
    """Write ``report.json``, ``memory/index.json`` and a file for each region,
    ``receives/index.json`` and a file for each message that an untagged buffer received, all as the
    RNIC's bus writes left it.
    """
    _write_memory(result, directory / "memory")
    _write_receives(result, directory / "receives")
    _write_json(directory / "report.json", as_json(result))


def _write_memory(result: Result, memory: Path) -> None:
    memory.mkdir(parents=True, exist_ok=True)
    index: list[dict[str, Any]] = []
    taken: set[str] = set()
    for run in result.runs:
        for allotment in run.plan.allotments:
            region = allotment.region
            name = _file_name(f"{region.endpoint}-{region.stag:08x}-{region.to:x}", taken)
            run.memory[allotment.address : allotment.end].tofile(memory / name)
            index.append(
                {
                    "endpoint": region.endpoint,
                    "stag": region.stag,
                    "to": region.to,
                    "length": region.length,
                    "file": name,
                }
            )
    _write_json(memory / "index.json", index)


def _write_receives(result: Result, receives: Path) -> None:
    receives.mkdir(parents=True, exist_ok=True)
    index: list[dict[str, Any]] = []
    taken: set[str] = set()
    for run in result.runs:
        endpoints = {each.number: each.destination.address for each in run.plan.streams}
        for buffer, completion, octets in run.receives():
            endpoint = endpoints[buffer.stream]
            name = _file_name(f"{endpoint}-{buffer.stream}-{buffer.qn}-{buffer.msn}", taken)
            (receives / name).write_bytes(octets)
            index.append(
                {
                    "endpoint": endpoint,
                    "stream": buffer.stream,
                    "qn": buffer.qn,
                    "msn": buffer.msn,
                    "length": completion.length,
                    "file": name,
                }
            )
    _write_json(receives / "index.json", index)


def _file_name(stem: str, taken: set[str]) -> str:
    """A name that is not taken yet, and is from now on."""
    stem = re.sub(r"[^0-9A-Za-z.-]", "_", stem)
    name, number = f"{stem}.bin", 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}.bin"
    taken.add(name)
    return name


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def as_json(result: Result) -> dict[str, Any]:
    """The content of ``report.json``."""
    return {
        "verdict": result.verdict,
        "source": result.source,
        "engine": result.engine,
        "width": result.width,
        "rnics": len(result.runs),
        "cycles": result.cycles,
        "segments": result.segments,
        "bytes_placed": result.bytes_placed,
        "deliveries": result.deliveries,
        "errors": result.errors,
        "exceptions": result.counter("EXCEPTIONS"),
        "dropped": result.counter("DROPPED"),
        "streams": [_stream(run, stream) for run, stream in result.streams],
        "regions_derived": result.derived,
        "regions": [
            {
                "endpoint": each.region.endpoint,
                "stag": each.region.stag,
                "to": each.region.to,
                "length": each.region.length,
                "periods": each.region.periods,
            }
            for run in result.runs
            for each in run.plan.allotments
        ],
        "differences": [asdict(each) for run in result.runs for each in run.differences],
        "notes": result.notes,
    }


def _stream(run: Run, stream: Stream) -> dict[str, Any]:
    counts = run.plan.golden.counts[stream.number]
    events = [event for event in run.outcome.events if event.stream == stream.number]
    return {
        "stream": stream.number,
        "source": str(stream.source),
        "destination": str(stream.destination),
        "crc": stream.crc,
        "markers": stream.markers,
        "segments": counts.segments,
        "segments_placed": counts.placed,
        "bytes_placed": counts.octets,
        "deliveries": run.deliveries(stream.number),
        "receives": sum(buffer.stream == stream.number for buffer, _, _ in run.receives()),
        "exceptions": sum(packet.stream == stream.number for packet in run.outcome.exceptions),
        "errors": len(events),
        "dropped": counts.dropped,
        "error_events": [
            {
                "type": event.type,
                "code": event.code,
                "text": number_text(event),
                "length": event.length,
                "sequence": event.sequence,
                "header": event.header.hex(),
            }
            for event in events
        ],
    }


def periods_text(periods: Sequence[tuple[int, int | None]]) -> str:
    """When a region is registered, in words."""
    if len(periods) > 2:
        return f"in {len(periods)} turns"
    pieces = []
    for after, until in periods:
        if until is None:
            pieces.append("always" if after == 0 else f"after segment {after}")
        else:
            pieces.append(
                f"until segment {until}" if after == 0 else f"from segment {after} to {until}"
            )
    return ", ".join(pieces)
