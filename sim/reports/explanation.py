"""Explains DDP Segments of a capture: fields, checks with their sums, outcome, and the peer's view.

The golden model decides: an explanation lists the checks of :mod:`..model.checks` and shows the
verdicts that the model reached when it received the segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from ...hdl.spec import ddp
from ...hdl.spec.ddp import ErrorNumber
from ...hdl.spec.sctp import Function
from ...sw_driver.rdmap.wire import Terminate
from ..capture.capture import Capture, Direction
from ..capture.connections import Brought, Segment, tcp_segment
from ..capture.layers import TCP, IpPacket, Packets
from ..capture.pcap import Frame, counted
from ..capture.sctp_traffic import Incoming, Item, SctpArrival
from ..capture.streams import Arrival
from ..capture.traffic import Traffic, fpdu_length
from ..model.checks import TAGGED, UNTAGGED, Check, TaggedFacts, UntaggedFacts
from ..model.header import header_length, is_tagged
from ..model.memory import Access
from ..model.memory import Region as Entry
from ..replay.expectation import Delivery, ExpectedError, Judged, Placement
from ..replay.plan import Plan
from . import fields
from .errors import Meaning, Sentence, check_sentence, meaning_of
from .shown import Shown, Sources

__all__ = ["Explainer", "Explanation", "Key", "Result", "Step", "directions_of", "key_of"]


class Result(Enum):
    """The result of a check; the values are words for a table."""

    HOLDS = "holds"
    FAILS = "FAILS"
    NOT_REACHED = "not reached"
    NOT_ASKED = "not asked"


@dataclass(frozen=True)
class Step:
    """A check of a segment.

    Parameters
    ----------
    sentence
        The condition, in the words of the RFC.
    number
        The error of a segment that does not meet it; None if such a segment is dropped silently.
    result
        Whether the segment meets it.
    sum
        The comparison in numbers; empty if the check was not reached.
    """

    sentence: Sentence
    number: ErrorNumber | None
    result: Result
    sum: str = ""


@dataclass(frozen=True)
class Explanation:
    """Everything that is known of a segment.

    Parameters
    ----------
    judged
        The golden model's judgement.
    shown
        The frames with octets of the segment, in the order of its octets.
    layers
        The fields, from Ethernet to the payload. Those below MPA or the DATA chunk are of the
        frame that completed the segment.
    steps
        The checks in their order.
    entry
        The table entry that the checks used, in words; empty if none was needed.
    outcome
        The outcome in one sentence.
    meaning
        The error, with sentences and advice; None if there is no error.
    terminate
        The message that reports the error to the peer; None if there is no error.
    placement
        Where the payload was written; None if nothing was written.
    """

    judged: Judged
    shown: tuple[Shown, ...]
    layers: tuple[fields.Layer, ...]
    steps: tuple[Step, ...]
    entry: str
    outcome: str
    meaning: Meaning | None
    terminate: Terminate | None
    placement: Placement | None

    @property
    def decided(self) -> Step | None:
        """The check that failed, or None."""
        return next((step for step in self.steps if step.result is Result.FAILS), None)


# -- the checks --

#: The sentences of checks that section 7.1 does not list, by their id in docs/sentences.csv.
SENTENCES = {
    "5041-7.1-9": Sentence(
        "RFC 5041 section 7.1", "DDP MUST silently drop any subsequent incoming DDP Segments."
    ),
    "5041-3-5": Sentence(
        "RFC 5041 section 3",
        "The LLP MUST preserve DDP Segment and Message boundaries at the Data Sink.",
    ),
    "5044-7.1.1-11": Sentence(
        "RFC 5044 section 7.1.1",
        "When this bit is '1' in either the MPA Request Frame or MPA Reply Frame, CRCs MUST be"
        " generated and checked by both endpoints.",
    ),
    "5041-4.2-1": Sentence(
        "RFC 5041 section 4.2",
        "Figure 4 shows the DDP Header format that MUST be used in all DDP Segments that target"
        " Tagged Buffers.",
    ),
    "5041-4.3-1": Sentence(
        "RFC 5041 section 4.3",
        "Figure 5 shows the DDP Header format that MUST be used in all DDP Segments that target"
        " Untagged Buffers.",
    ),
    "5041-4.3-8": Sentence(
        "RFC 5041 section 4.3",
        "The Message Sequence Number specifies a sequence number that MUST be increased by one"
        " (modulo 2^32) with each DDP Message targeting the specific Queue Number on the DDP Stream"
        " associated with this DDP Segment.",
    ),
    "5041-5.4-1": Sentence(
        "RFC 5041 section 5.4",
        "At the Data Sink, DDP MUST Deliver a DDP Message if and only if all of the following are"
        " true:",
    ),
}


def _rights(entry: Entry) -> str:
    names = (str(each.name).replace("_", " ").lower() for each in Access if each in entry.access)
    return " and ".join(names) or "no remote right"


def _owner(entry: Entry) -> str:
    if entry.pd is None:
        return f"DDP Stream {entry.stream} alone"
    return f"Protection Domain {entry.pd}"


def _range(entry: Entry) -> str:
    return f"{entry.to:#x} + {entry.length:#x} = {entry.to + entry.length:#x}"


def _stag(s: TaggedFacts) -> str:
    stag = s.header.stag
    if s.holder is None:
        return f"STag {stag:#010x}: no valid entry has its index {stag >> 8:#08x}"
    return (
        f"STag {stag:#010x}: the entry of index {stag >> 8:#08x} has key"
        f" {s.holder.stag & 0xFF:#04x}, the STag has {stag & 0xFF:#04x}"
    )


def _msn(s: UntaggedFacts) -> str:
    return f"MSN {s.header.msn} - {s.first} (first available) = {s.ahead}"


#: The comparison of each check in numbers, by its error and its number in section 7.1.
_SUMS: dict[tuple[ErrorNumber, int], Callable[[Any], str]] = {
    (ddp.TAGGED_VERSION, 0): lambda s: f"DV {s.header.version} = {ddp.VERSION}",
    (ddp.INVALID_STAG, 1): _stag,
    (ddp.STAG_NOT_ASSOCIATED, 1): lambda s: (
        f"the entry belongs to {_owner(s.found)}; the segment came on stream {s.stream} of"
        f" Protection Domain {s.pd}"
    ),
    (ddp.INVALID_STAG, 2): lambda s: f"remote write is among the rights: {_rights(s.found)}",
    (ddp.BASE_OR_BOUNDS, 3): lambda s: (
        f"{s.found.to:#x} <= TO {s.header.to:#x} < {_range(s.found)}"
    ),
    (ddp.TO_WRAP, 5): lambda s: f"TO {s.header.to:#x} + {s.length} = {s.end:#x} <= 2^64",
    (ddp.BASE_OR_BOUNDS, 4): lambda s: (
        f"TO {s.header.to:#x} + {s.length} = {s.end:#x} <= {_range(s.found)}"
    ),
    (ddp.UNTAGGED_VERSION, 0): lambda s: f"DV {s.header.version} = {ddp.VERSION}",
    (ddp.INVALID_QN, 1): lambda s: (
        f"QN {s.header.qn} is {'not ' if s.first is None else ''}open on the stream"
    ),
    (ddp.MSN_RANGE, 5): lambda s: f"{_msn(s)} >= 0",
    (ddp.NO_BUFFER, 2): lambda s: f"{_msn(s)} < {s.available} (buffers available)",
    (ddp.INVALID_MO, 3): lambda s: f"MO {s.header.mo} <= {s.limit} (octets of the buffer)",
    (ddp.MESSAGE_TOO_LONG, 4): lambda s: (
        f"MO {s.header.mo} + {s.length} = {s.end} <= {s.limit} (octets of the buffer)"
    ),
}


def _entry(facts: TaggedFacts | UntaggedFacts) -> str:
    """Returns the table entry of the checks in words."""
    if isinstance(facts, TaggedFacts):
        entry = facts.holder
        if entry is None:
            return f"STag table, index {facts.header.stag >> 8:#08x}: no valid entry"
        return (
            f"STag table, index {entry.index:#08x}: key {entry.stag & 0xFF:#04x}, base"
            f" {entry.to:#x}, bound {entry.to + entry.length:#x} ({entry.length} octets), rights:"
            f" {_rights(entry)}, for {_owner(entry)}"
        )
    if facts.first is None:
        return f"queue table: QN {facts.header.qn} is not open on the stream"
    last = (facts.first + facts.available - 1) % (1 << 32)
    range_ = f"MSN {facts.first} to {last}" if facts.available else f"MSN {facts.first} is next"
    own = "none" if facts.limit is None else counted(facts.limit, "octet")
    return (
        f"queue table, QN {facts.header.qn}: {facts.available} buffers available ({range_});"
        f" buffer of MSN {facts.header.msn}: {own}"
    )


class _Asked(NamedTuple):
    """A check of a segment, with the model's verdict.

    ``sum`` is called only if the check was reached. ``skipped`` is the reason why the check is not
    made for this segment.
    """

    sentence: Sentence
    number: ErrorNumber | None
    sum: Callable[[], str]
    fails: bool
    skipped: str = ""


def _steps(judged: Judged, longest: int) -> Iterator[_Asked]:
    """Yields the checks of a segment in their order."""
    arrival, error = judged.arrival, judged.error
    late = error is not None and judged.validation is not None and judged.validation.failed is None
    yield _Asked(SENTENCES["5041-7.1-9"], None, lambda: _live(judged), judged.dropped)
    if not isinstance(arrival, SctpArrival):
        by_mpa = not judged.received and not late
        yield _Asked(
            SENTENCES["5041-3-5"],
            ddp.LLP_FRAMING,
            lambda: _framing(arrival, longest),
            by_mpa and error == ddp.LLP_FRAMING,
        )
        yield _Asked(
            SENTENCES["5044-7.1.1-11"],
            ddp.LLP_CRC,
            lambda: _digest(arrival),
            by_mpa and error == ddp.LLP_CRC,
            "" if arrival.stream.crc else "no CRC is in use on this stream",
        )
    ulpdu, tagged = arrival.ulpdu, is_tagged(arrival.ulpdu)
    needs = header_length(ulpdu)
    yield _Asked(
        SENTENCES["5041-4.2-1" if tagged else "5041-4.3-1"],
        ddp.LLP_FRAMING,
        lambda: f"{len(ulpdu)} octets of segment >= {needs} octets of header",
        judged.received and error == ddp.LLP_FRAMING,
    )
    yield from _validated(judged)
    if error == ddp.LOCAL_CATASTROPHIC:
        yield _Asked(
            SENTENCES["5041-5.4-1"],
            error,
            lambda: (
                f"more than {ddp.WAITING} messages of the stream wait for an earlier one, or more"
                f" than {ddp.OVERTAKES} of its segments have overtaken one, and the device allows"
                " no more"
            ),
            late,
        )
    elif not tagged and (late or not isinstance(arrival, SctpArrival)):
        yield _Asked(SENTENCES["5041-4.3-8"], ddp.MSN_RANGE, lambda: _turn(judged), late)


def _validated(judged: Judged) -> Iterator[_Asked]:
    """Yields the checks of section 7.1, those that do not apply included."""
    done = judged.validation
    for at, check in enumerate(TAGGED if is_tagged(judged.arrival.ulpdu) else UNTAGGED):
        skipped = done is not None and check not in done.checks
        yield _Asked(
            check_sentence(check),
            check.number,
            partial(_sum, judged, check),
            done is not None and done.failed == at,
            "STag and TO of a segment without payload are not checked (section 5.2)"
            if skipped
            else "",
        )


def _sum(judged: Judged, check: Check) -> str:
    assert judged.validation is not None
    return _SUMS[check.number, check.item](judged.validation.facts)


def _verdicts(judged: Judged, longest: int) -> Iterator[Step]:
    """Yields the checks with their results."""
    reached = True
    for each in _steps(judged, longest):
        if not reached:
            yield Step(each.sentence, each.number, Result.NOT_REACHED)
        elif each.skipped:
            yield Step(each.sentence, each.number, Result.NOT_ASKED, each.skipped)
        else:
            reached = not each.fails
            result = Result.FAILS if each.fails else Result.HOLDS
            yield Step(each.sentence, each.number, result, each.sum())


def _live(judged: Judged) -> str:
    if not judged.dropped:
        return "the stream accepts segments"
    if judged.after is None:
        return "the host has stopped the stream"
    return f"the stream is in error since frame {judged.after.arrival.frame}: {judged.after.number}"


def _framing(arrival: Arrival, longest: int) -> str:
    raw, length = arrival.raw, fpdu_length(arrival.raw, 0, arrival.position, arrival.stream.markers)
    if length is None:
        return f"{len(raw)} octets came, too few for ULPDU_Length"
    return f"FPDU of {length} octets: {len(raw)} came, and the device takes up to {4 * longest}"


def _digest(arrival: Arrival) -> str:
    computed = google_crc32c.value(arrival.raw[:-4])
    return f"CRC {int.from_bytes(arrival.raw[-4:], 'little'):#010x} = {computed:#010x} (computed)"


def _turn(judged: Judged) -> str:
    assert judged.validation is not None
    facts = judged.validation.facts
    assert isinstance(facts, UntaggedFacts)
    if isinstance(judged.arrival, SctpArrival):
        return f"MSN {facts.header.msn} was not the next one of QN {facts.header.qn} at its turn"
    return f"{_msn(facts)} = 0"


# -- explanations --

#: A segment, by the receiving host and the order there.
Key = tuple[str, int]


def key_of(arrival: Arrival) -> Key:
    """Returns the receiving host and the order there, which identify a segment."""
    return arrival.endpoint, arrival.order


def directions_of(capture: Capture, traffic: Traffic) -> dict[int, Direction]:
    """Returns the direction of a connection that each stream over MPA is, by the stream's
    number.
    """
    return {
        stream.number: direction
        for stream in traffic.streams
        for direction in capture.connections[stream.connection].directions
        if direction.source == stream.source
    }


class Explainer:
    """Explains the segments of a capture.

    Parameters
    ----------
    capture
        The capture.
    traffic
        Its streams and segments.
    plans
        The plans of the simulated RNICs, with the golden model's judgements.
    """

    def __init__(self, capture: Capture, traffic: Traffic, plans: Sequence[Plan]) -> None:
        self._capture = capture
        self._plans: dict[Key, Plan] = {}
        self.judged: dict[Key, Judged] = {}  #: in order of arrival
        self._placements: dict[Key, Placement] = {}
        self._deliveries: dict[Key, Delivery] = {}
        self._errors: dict[Key, ExpectedError] = {}
        for plan in plans:
            golden = plan.golden
            self._plans |= dict.fromkeys(golden.judged, plan)
            self.judged |= golden.judged
            self._placements |= {key_of(each.arrival): each for each in golden.placements}
            self._errors |= {key_of(each.arrival): each for each in golden.errors}
            self._deliveries |= {key_of(each.arrival): each for each in golden.deliveries}
        arrivals = sorted(
            self.judged.values(), key=lambda each: (each.arrival.frame, each.arrival.order)
        )
        self.judged = {key_of(each.arrival): each for each in arrivals}
        self._steps = traffic.sctp.steps if traffic.sctp else ()
        self._carriers = {
            key: step
            for step in self._steps
            if isinstance(step, Incoming)
            for segment in step.segments
            if (key := key_of(segment)) in self.judged
        }
        self._sources: dict[int, Sources] = {}
        self._directions = directions_of(capture, traffic)
        self._shown: dict[int, Shown] = {}
        self._times = np.zeros(capture.frames + 1)
        self._asked: dict[int, tuple[IpPacket | None, Segment | None]] = {}

    def read(self, frames: Iterable[Frame], asked: int | None = None) -> None:
        """Reads the capture's frames, in their order, because a packet may be in fragments.

        ``asked`` is the only frame whose segments are explained; None: all are.
        """
        judged = self.judged.values() if asked is None else self.of_frame(asked)
        wanted = {each.frame for some in judged for each, _, _ in self._pieces(some.arrival)}
        packets = Packets()
        for frame in frames:
            if frame.number < len(self._times):  # the file may have grown since it was read
                self._times[frame.number] = frame.time
            packet = packets.take(frame)
            tcp = packet is not None and packet.protocol == TCP
            segment = tcp_segment(frame, packet) if packet is not None and tcp else None
            if frame.number == asked:
                self._asked[asked] = packet, segment
            if packet is None or segment is None:
                continue
            if frame.number in wanted:
                self._shown[frame.number] = Shown.of(frame, packet)

    def time(self, frame: int) -> float:
        """Returns the seconds from the capture's first frame to a frame."""
        return float(self._times[frame] - self._times[1])

    def of_frame(self, frame: int) -> list[Judged]:
        """Returns the segments that have octets in a frame, or that the frame completes."""
        found = []
        for judged in self.judged.values():
            arrival = judged.arrival
            if arrival.frame == frame or any(
                each.frame == frame for each, _, _ in self._pieces(arrival)
            ):
                found.append(judged)
        return found

    def _pieces(self, arrival: Arrival) -> Iterator[tuple[Brought, int, int]]:
        """Yields the frames with the octets of an FPDU; none for a segment over SCTP."""
        number = arrival.stream.number
        direction = self._directions.get(number)
        if direction is not None:
            if number not in self._sources:
                self._sources[number] = Sources(self._brought(number, direction))
            start = arrival.position
            yield from self._sources[number].of(start, start + len(arrival.raw))

    def _brought(self, number: int, direction: Direction) -> Iterator[Brought]:
        """Yields the frames that brought octets of a stream's segments that are explained."""
        arrivals = [each.arrival for each in self.judged.values()]
        starts = sorted(each.position for each in arrivals if each.stream.number == number)
        stops = sorted(
            each.position + len(each.raw) for each in arrivals if each.stream.number == number
        )
        for each in direction.brought:
            at = bisect_right(stops, each.position)
            if at < len(starts) and starts[at] < each.position + each.length:
                yield each

    def explain(self, judged: Judged) -> Explanation:
        """Explains a segment, after its frames were read."""
        arrival, key = judged.arrival, key_of(judged.arrival)
        plan, error = self._plans[key], self._errors.get(key)
        terminate = meaning = None
        if error is not None:
            terminate = Terminate.of(error.number, error.length, error.header[2:])
            sctp = isinstance(arrival, SctpArrival)
            meaning = meaning_of(terminate.layer, terminate.type, terminate.code, sctp=sctp)
        placement = self._placements.get(key)
        shown, layers = self._layers(arrival)
        facts = judged.validation.facts if judged.validation else None
        return Explanation(
            judged,
            tuple(shown),
            tuple(layers),
            tuple(_verdicts(judged, plan.config.longest_fpdu)),
            _entry(facts) if facts else "",
            _outcome(judged, placement, self._deliveries.get(key)),
            meaning,
            terminate,
            placement,
        )

    def _layers(self, arrival: Arrival) -> tuple[list[Shown], list[fields.Layer]]:
        """Returns the frames of a segment, and the fields in them."""
        if isinstance(arrival, SctpArrival):
            step = self._carriers[key_of(arrival)]
            frame = Shown.of_sctp(step.frame, self.time(step.frame), step.octets)
            at = fields.chunk_at(frame.octets, frame.payload, arrival.raw)
            spans = (fields.Span(step.frame, at, at + len(arrival.raw)),)
            return [frame], [*frame.layers, *fields.sctp_chunk(arrival.raw, spans)]
        shown, found = [], []
        for each, start, stop in self._pieces(arrival):
            frame = self._shown[each.frame]
            shown.append(frame)
            found.append(fields.Span(each.frame, frame.payload + start, frame.payload + stop))
        markers = arrival.stream.markers
        upper = fields.fpdu(arrival.raw, tuple(found), arrival.position, markers=markers)
        shown = list(dict.fromkeys(shown))
        return shown, [*shown[-1].layers, *upper]

    # -- frames without a segment --

    def reason(self, number: int) -> str:
        """Returns one sentence that says why no segment of a frame is explained."""
        steps = [
            step for step in self._steps if isinstance(step, Incoming) and step.frame == number
        ]
        if steps:
            items = [_item_text(item) for step in steps for item in step.items]
            holds = "; ".join(dict.fromkeys(items)) or steps[0].fate.name.lower()
            return f"frame {number} has SCTP, but no DDP Segment that reached DDP: {holds}"
        packet, segment = self._asked.get(number, (None, None))
        if packet is None:
            return f"frame {number} holds no whole IP packet, and so no DDP Segment"
        ends = f"{packet.source} > {packet.destination}"
        if segment is None:
            return (
                f"frame {number} ({ends}) holds IP protocol {packet.protocol} without DDP, or a"
                " packet that its receiver does not take"
            )
        ends = f"{segment.source} > {segment.destination}"
        if not segment.octets:
            return f"frame {number} ({ends}) is a TCP segment without octets, and so without DDP"
        for direction in self._capture.directions:
            if any(each.frame == number for each in direction.brought):
                return (
                    f"frame {number} ({ends}) brings octets after MPA start-up, but the capture"
                    " does not complete their FPDU"
                )
            if (segment.source, segment.destination) == (direction.source, direction.destination):
                return (
                    f"frame {number} ({ends}) brings no new octet of a DDP Segment: it belongs to"
                    " MPA start-up, repeats octets of an earlier frame, or was not accepted"
                )
        return f"frame {number} ({ends}) belongs to a TCP connection without MPA"


def _item_text(item: Item) -> str:
    if item.stream is None:
        return "a chunk that is not DDP"
    if item.control is not None:
        function = Function(int.from_bytes(item.control.ulpdu[:2], "big"))
        name = function.name.replace("_", " ").title()
        return f"{name}, a session control message on {item.stream}, TSN {item.tsn}"
    status = "" if item.status is None else item.status.name.lower()
    why = f" ({item.why})" if item.why else ""
    return f"the DATA chunk of TSN {item.tsn} on {item.stream} is {status}{why}"


def _outcome(judged: Judged, placement: Placement | None, delivery: Delivery | None) -> str:
    """Returns the outcome of a segment in one sentence."""
    if judged.dropped:
        return f"dropped silently: {_live(judged)}"
    text = "accepted: it has no octets to place"
    if placement is not None:
        octets = counted(len(placement.payload), "octet")
        text = f"placed: {octets} at offset {placement.offset} of {placement.target}"
    if judged.error is None:
        if delivery is not None:
            octets = counted(delivery.completion.length, "octet")
            text += f"; its message of {octets} was delivered"
        return text
    if judged.validation is not None and judged.validation.failed is None:
        return f"{text}; at its turn the stream failed: {judged.error}"
    return f"refused: {judged.error}; nothing of it was placed, and its stream takes nothing more"
