"""Writes the results of `rnic sim` for other programs: ``report.json``, ``memory/``,
``receives/``.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec.completion import Kind, Status
from ...hdl.spec.sctp import Diversion
from ..capture.pcap import LeftOut, counted
from ..capture.sctp_traffic import SctpStream
from ..capture.spool import Rows, Spool
from ..capture.streams import Stream
from ..engines.engine import Outcome
from ..replay.differences import Difference, number_text
from ..replay.expectation import Buffer, ExpectedError, StreamCounts
from ..replay.plan import Plan
from ..replay.regions import Region
from ..replay.sctp_expectation import SctpGolden
from .outline import Outline

MOST_NAMED = 4  # how many left-out things, or errors, a sentence names
#: The version of ``report.schema.json``, which describes the result of :func:`as_json`. It grows
#: when a name goes, or means something else.
SCHEMA = 1


class Tally:
    """Counts the messages that an RNIC delivers, also piece by piece during the run.

    Parameters
    ----------
    plan
        The plan of the run.
    memory
        Host memory, of which the octets of untagged messages are kept in a temporary file; None:
        they are not kept.

    Attributes
    ----------
    delivered
        How many messages, tagged and untagged, by stream.
    exceptions
        How many packets of the exception stream are about a stream, by stream.
    """

    def __init__(self, plan: Plan, memory: NDArray[np.uint8] | None = None) -> None:
        self.delivered: Counter[int] = Counter()
        self._received = Rows("QQ")  # the number of the buffer, the octets of the message
        self._memory = memory
        self._octets = Spool()  # of the messages in memory
        self._places = array("Q")
        self.exceptions: Counter[int] = Counter()
        self._posted = plan.buffers
        self._seen = 0  # of these
        self._open: dict[int, int] = {}  # the numbers of those without a message, by cookie

    def take(self, outcome: Outcome) -> list[Buffer]:
        """Counts the completions of an outcome; returns the buffers of untagged messages."""
        received = []
        for place in range(self._seen, len(self._posted)):
            self._open[self._posted[place].cookie] = place
        self._seen = len(self._posted)
        self.exceptions.update(
            packet.stream
            for packet in outcome.exceptions
            if packet.reason < Diversion.FRAME or packet.reason == Diversion.CONTROL
        )
        for each in outcome.completions:
            if each.kind is not Kind.MESSAGE or each.status != Status.DELIVERED:
                continue
            self.delivered[each.stream] += 1
            if each.tagged or (number := self._open.get(each.cookie)) is None:
                continue
            buffer = self._posted[number]
            if (buffer.stream, buffer.qn, buffer.msn) == (each.stream, each.qn, each.tag):
                del self._open[each.cookie]
                received.append(buffer)
                self._received.append(number, each.length)
                if self._memory is not None:
                    end = min(buffer.address + each.length, buffer.end)
                    octets = self._memory[buffer.address : end].tobytes()
                    self._places.append(self._octets.put(octets))
        return received

    def received(self) -> Iterator[tuple[Buffer, int]]:
        """Yields the buffer and the length of each untagged message, in the RNIC's order."""
        return ((self._posted[number], length) for number, length in self._received)

    def octets(self) -> Iterator[tuple[Buffer, int, bytes]]:
        """Yields the same, with the octets that memory had when each message was delivered."""
        for (buffer, length), place in zip(self.received(), self._places, strict=True):
            yield buffer, length, self._octets.get(place, min(length, buffer.length))


@dataclass
class Run:
    """One simulated RNIC, after its run. ``tally`` has counted all but the outcome; ``outline`` has
    the segments whose events were forgotten.
    """

    plan: Plan
    outcome: Outcome
    memory: NDArray[np.uint8]
    differences: list[Difference]
    tally: Tally | None = None
    outline: Outline | None = None

    def __post_init__(self) -> None:
        self._tally = self.tally or Tally(self.plan, self.memory)
        self._tally.take(self.outcome)

    def deliveries(self, stream: int) -> int:
        """Returns how many messages of a stream, tagged and untagged, the RNIC delivered."""
        return self._tally.delivered[stream]

    def exceptions(self, stream: int) -> int:
        """Returns how many packets of the exception stream are about a stream."""
        return self._tally.exceptions[stream]

    def received(self) -> Iterator[tuple[Buffer, int]]:
        """Yields the buffer and the length of each untagged message that the RNIC delivered, in
        its order.
        """
        return self._tally.received()

    def receives(self) -> Iterator[tuple[Buffer, int, bytes]]:
        """Yields the same, with the octets that the RNIC placed."""
        return self._tally.octets()


@dataclass
class Result:
    """A whole simulation. ``source`` names the capture or workload."""

    source: str
    engine: str
    width: int
    derived: bool
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    interrupted: bool = False

    @property
    def agrees(self) -> bool:
        return not any(run.differences for run in self.runs)

    @property
    def verdict(self) -> str:
        """The verdict; only ``agree`` means that everything was played, and something was
        placed.
        """
        if not self.agrees:
            return "differ"
        if not self.bytes_placed and not self.deliveries:
            return "agree, but nothing was placed"
        return agreement(self.left_out)

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
        """Octets placed, as the RNIC counts them."""
        return self.counter("PLACED_OCTETS")

    @property
    def errors(self) -> int:
        """The number of errors, as the RNIC counts them."""
        return self.counter("ERRORS")

    def counter(self, name: str) -> int:
        return sum(run.outcome.counters[name] for run in self.runs)

    @property
    def deliveries(self) -> int:
        """The number of messages that the RNIC completed."""
        return sum(run.deliveries(stream.number) for run, stream in self.streams)

    @property
    def placed(self) -> int:
        """The number of segments that were placed, as the golden model counts them."""
        return sum(counts.placed for run in self.runs for counts in run.plan.golden.counts.values())

    @property
    def refused(self) -> list[ExpectedError]:
        """The segments that were refused with an error, in the order of their frames."""
        errors = [error for run in self.runs for error in run.plan.golden.errors]
        return sorted(errors, key=lambda error: error.arrival.frame)

    @property
    def goldens(self) -> list[SctpGolden]:
        """The expectations of runs with SCTP."""
        found = (run.plan.golden for run in self.runs)
        return [golden for golden in found if isinstance(golden, SctpGolden)]

    @property
    def streams(self) -> list[tuple[Run, Stream]]:
        """All streams with their runs, in the order of their numbers."""
        both = [(run, stream) for run in self.runs for stream in run.plan.streams]
        return sorted(both, key=lambda pair: pair[1].number)


def agreement(left_out: Sequence[LeftOut]) -> str:
    """Returns the verdict of devices that agree."""
    return "agree on what was played" if left_out else "agree"


def outcome_text(result: Result) -> str:
    """Returns how many segments were placed and refused, with the reasons and their frames."""
    text, refused = counted(result.placed, "segment") + " placed", result.refused
    if refused:
        named = "; ".join(
            f"{error.number}, frame {error.arrival.frame}" for error in refused[:MOST_NAMED]
        )
        more = len(refused) - MOST_NAMED
        text += f", {len(refused)} refused ({named}{f', and {more} more' if more > 0 else ''})"
    return text


def left_out_text(left_out: Sequence[LeftOut]) -> str:
    """Returns the end of a summary's sentence, which names the things that were left out."""
    if not left_out:
        return ""
    more = len(left_out) - MOST_NAMED
    rest = f", and more for {more} other reasons" if more > 0 else ""
    return f"; left out: {', '.join(map(str, left_out[:MOST_NAMED]))}{rest}"


def write(result: Result, directory: Path) -> None:
    """Writes the results to a directory.

    It gets ``report.json``; ``memory/index.json`` and a file for each region;
    ``receives/index.json`` and a file for each message that an untagged buffer received. All octets
    are those that the RNIC's bus writes left.
    """
    _write_memory(result, directory / "memory")
    _write_receives(result, directory / "receives")
    _write_json(directory / "report.json", as_json(result))


def _write_memory(result: Result, memory: Path) -> None:
    _clear(memory)
    index: list[dict[str, Any]] = []
    taken: set[str] = set()
    for run in result.runs:
        for allotment in run.plan.allotments:
            region = allotment.region
            name = f"{region.endpoint}-{region.stag:08x}-{region.to:x}"
            if region.session is not None:
                name += "-s{}-r{}".format(*region.session)
            name = _file_name(name, taken)
            run.memory[allotment.address : allotment.end].tofile(memory / name)
            index.append(
                {
                    "endpoint": region.endpoint,
                    "stag": region.stag,
                    "to": region.to,
                    "length": region.length,
                    **_session(region),
                    "file": name,
                }
            )
    _write_json(memory / "index.json", index)


def _clear(folder: Path) -> None:
    """Makes a folder, or removes the files of an earlier report, which its index names."""
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index.json"
    if not index.exists():
        return
    try:
        names = [each["file"] for each in json.loads(index.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError):
        return  # not an index of a report
    for name in names:
        if isinstance(name, str) and name == Path(name).name:
            (folder / name).unlink(missing_ok=True)


def _write_receives(result: Result, receives: Path) -> None:
    _clear(receives)
    with (receives / "index.json").open("w", encoding="utf-8") as file:
        # One after the other: there may be very many.
        before = "[\n"
        for each in _received(result, receives):
            file.write(before + json.dumps([each], indent=2)[2:-2])
            before = ",\n"
        file.write("\n]\n" if before == ",\n" else "[]\n")


def _received(result: Result, receives: Path) -> Iterator[dict[str, Any]]:
    """Writes a file for each message; yields its entry in the index."""
    taken: set[str] = set()
    for run in result.runs:
        streams = {each.number: each for each in run.plan.streams}
        for buffer, length, octets in run.receives():
            stream = streams[buffer.stream]
            endpoint, of = stream.destination.address, {"stream": stream.number}
            name = f"{endpoint}-{stream.number}"
            if isinstance(stream, SctpStream):
                of = {"stream": stream.sid, "session": buffer.session, "number": stream.number}
                name = f"{endpoint}-{stream.number}-s{stream.sid}-r{buffer.session}"
            name = _file_name(f"{name}-{buffer.qn}-{buffer.msn}", taken)
            (receives / name).write_bytes(octets)
            yield {
                "endpoint": endpoint,
                **of,
                "qn": buffer.qn,
                "msn": buffer.msn,
                "length": length,
                "file": name,
            }


def _session(region: Region) -> dict[str, int]:
    """Returns the SCTP stream and session of a region that belongs to a session."""
    if region.session is None:
        return {}
    return {"stream": region.session[0], "session": region.session[1]}


def _file_name(stem: str, taken: set[str]) -> str:
    """Returns a name that is not taken yet, and marks it as taken."""
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
    """Returns the content of ``report.json``."""
    return {
        "schema": SCHEMA,
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
        "refused": [
            {
                "frame": error.arrival.frame,
                "stream": error.arrival.stream.number,
                "type": error.number.type,
                "code": error.number.code,
                "text": str(error.number),
            }
            for error in result.refused
        ],
        "exceptions": result.counter("EXCEPTIONS"),
        "dropped": result.counter("DROPPED"),
        **_frames(result),
        "streams": [_stream(run, stream) for run, stream in result.streams],
        "regions_derived": result.derived,
        "regions": [
            {
                "endpoint": each.region.endpoint,
                "stag": each.region.stag,
                "to": each.region.to,
                "length": each.region.length,
                **_session(each.region),
                "periods": each.region.periods,
            }
            for run in result.runs
            for each in run.plan.allotments
        ],
        "differences": [asdict(each) for run in result.runs for each in run.differences],
        "left_out": [asdict(each) for each in result.left_out],
        "notes": result.notes,
    }


def _frames(result: Result) -> dict[str, int]:
    """Returns counts of SCTP frames, if the RNIC has SCTP."""
    goldens = result.goldens
    if not goldens:
        return {}
    return {
        "frames": sum(golden.frames for golden in goldens),
        "packets": sum(golden.packets for golden in goldens),
        "chunks": sum(golden.chunks for golden in goldens),
    }


def _stream(run: Run, stream: Stream) -> dict[str, Any]:
    counts = run.plan.golden.counts[stream.number]
    events = [event for event in run.outcome.events if event.stream == stream.number]
    return {
        "stream": stream.number,
        "source": str(stream.source),
        "destination": str(stream.destination),
        **_way(stream, counts),
        "segments": counts.segments,
        "segments_placed": counts.placed,
        "bytes_placed": counts.octets,
        "deliveries": run.deliveries(stream.number),
        "receives": sum(buffer.stream == stream.number for buffer, _ in run.received()),
        "exceptions": run.exceptions(stream.number),
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


def _way(stream: Stream, counts: StreamCounts) -> dict[str, int | bool]:
    """Returns the properties of the layer below DDP."""
    if isinstance(stream, SctpStream):
        return {
            "association": stream.association,
            "sctp_stream": stream.sid,
            "sessions": counts.sessions,
            "duplicates": counts.duplicates,
        }
    return {"crc": stream.crc, "markers": stream.markers}


def periods_text(periods: Sequence[tuple[int, int | None]]) -> str:
    """Returns when a region is registered, in words."""
    if not periods:
        return "never"
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
