"""All DDP Streams of a capture: those over MPA, cut into FPDUs here, and beside them its SCTP.

The host's MPA does this before it hands whole FPDUs to the RNIC: it follows the ULPDU lengths, past
markers, and checks nothing else. Each direction of a connection is one stream, into its receiver.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import merge
from operator import itemgetter

from ...hdl.spec.config import RnicConfig
from .capture import Capture, Direction
from .pcap import LeftOut
from .sctp_frames import SctpFrame
from .sctp_traffic import SctpTraffic, walk
from .spool import Again
from .streams import MARKER_SPACING, QUEUES, Arrival, Stream, Untagged

#: The bits of FPDUPTR that count, RFC 5044 section 4.2.
_POINTER = 0xFFFC
#: Opcode and Queue Number of a Terminate, RFC 5040 section 4.
_TERMINATE = 7, 2


@dataclass(frozen=True)
class Traffic:
    """All streams of a capture, all FPDUs in order of arrival, and its SCTP."""

    streams: tuple[Stream, ...]
    arrivals: Sequence[Arrival]
    notes: tuple[str, ...] = ()
    #: For streams whose markers are not where RFC 5044 puts them: the position of the first such
    #: marker.
    unframed: dict[int, int] = field(default_factory=dict)
    #: For streams whose messages are not numbered as RFC 5041 requires: the order of the first such
    #: message.
    misnumbered: dict[int, int] = field(default_factory=dict)
    sctp: SctpTraffic | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def endpoints(self) -> list[str]:
        """The addresses that receive streams, in order of appearance."""
        hosts = [stream.destination.address for stream in self.streams]
        return list(dict.fromkeys([*hosts, *(self.sctp.hosts if self.sctp else ())]))

    @property
    def longest(self) -> int:
        """The octets of the longest FPDU."""
        return self._facts.longest

    @property
    def terminates(self) -> list[Arrival]:
        """The segments that are Terminates of RDMAP (RFC 5040 section 4.8)."""
        return self._facts.terminates

    @cached_property
    def _facts(self) -> _Facts:
        facts = _Facts()
        for arrival in self.arrivals:
            facts.take(arrival)
        return facts


@dataclass
class _Facts:
    """The octets of the longest FPDU, and the Terminates."""

    longest: int = 0
    terminates: list[Arrival] = field(default_factory=list)

    def take(self, arrival: Arrival) -> None:
        self.longest = max(self.longest, len(arrival.raw))
        header = arrival.header
        if isinstance(header, Untagged) and (header.opcode, header.queue) == _TERMINATE:
            self.terminates.append(arrival)


def _in_order(directions: Iterable[tuple[Stream, Direction]]) -> Iterator[Arrival]:
    """Yields the FPDUs of streams, each of which has its direction, in order of arrival."""
    counts: dict[str, int] = {}
    # Stable: the FPDUs of a frame stay in order.
    for frame, stream, position, raw in merge(
        *(_of(*each) for each in directions), key=itemgetter(0)
    ):
        address = stream.destination.address
        counts[address] = counts.get(address, 0) + 1
        yield Arrival(stream, counts[address], frame, position, raw)


def _of(stream: Stream, direction: Direction) -> Iterator[tuple[int, Stream, int, bytes]]:
    return ((frame, stream, position, raw) for frame, position, raw in cut(direction))


def traffic_of(capture: Capture) -> Traffic:
    """Cuts every direction of a capture into FPDUs."""
    streams: list[Stream] = []
    notes: list[str] = []
    left_out: list[LeftOut] = []
    unframed: dict[int, int] = {}
    found: list[tuple[Stream, Direction]] = []
    directions = [
        (number, direction)
        for number, connection in enumerate(capture.connections)
        for direction in connection.directions
        if direction.chunks
    ]
    for connection, direction in directions:
        stream = Stream(
            len(streams),
            connection,
            direction.source,
            direction.destination,
            direction.crc,
            direction.markers,
        )
        if direction.msns is not None:
            position = direction.chunks[0].position
            stream = replace(stream, position=position, msns=direction.msns)
        elif direction.assumed:
            stream = _begun_before(stream, direction)
            notes += [
                f"{stream}: the first message on Queue Number {qn} in the capture, with MSN {msn},"
                " is assumed to be the next one"
                for qn, msn in stream.msns
            ]
        streams.append(stream)
        found.append((stream, direction))
        if direction.markers and (wrong := _wrong_marker(direction)) is not None:
            unframed[stream.number] = wrong
            notes.append(
                f"{stream}: the marker at octet {wrong} of the MPA stream"
                " does not conform to RFC 5044 section 4.3,"
                " so this sender's markers are elsewhere and its framing cannot be followed"
            )
    arrivals = Again(partial(_in_order, found))
    ends = {stream.number: stream.position for stream in streams}
    misnumbered: dict[int, int] = {}
    facts = _Facts()
    for arrival, expected in _wrong_numbers(arrivals, unframed, ends, facts):
        header = arrival.header
        assert isinstance(header, Untagged)
        misnumbered[arrival.stream.number] = arrival.order
        notes.append(
            f"{arrival.stream}: not RFC-conformant: the message on Queue Number {header.queue}"
            f" in frame {arrival.frame} has MSN {header.msn}, where RFC 5041 section 4.3 requires"
            f" {expected}; its receiver cannot accept it, so the stream ends there"
        )
    for stream, direction in found:
        last = direction.chunks[-1]
        if rest := last.position + len(last.octets) - ends[stream.number]:
            left_out.append(LeftOut(rest, "octet", f"{stream}: {direction.unfinished}"))
    traffic = Traffic(
        tuple(streams),
        arrivals,
        tuple(notes),
        unframed,
        misnumbered,
        left_out=tuple(left_out),
    )
    vars(traffic)["_facts"] = facts  # found in the same pass over all FPDUs
    return traffic


def _begun_before(stream: Stream, direction: Direction) -> Stream:
    """Returns the stream of a direction whose beginning the capture lacks."""
    stream = replace(stream, position=direction.chunks[0].position)
    msns: dict[int, int] = {}
    for frame, position, raw in cut(direction):
        arrival = Arrival(stream, 0, frame, position, raw)
        if not arrival.digest_is_good:
            break
        header = arrival.header
        if isinstance(header, Untagged) and header.queue < QUEUES:
            msns.setdefault(header.queue, header.msn)
    later = tuple((qn, msn) for qn, msn in msns.items() if msn != 1)
    return replace(stream, msns=later, begun=True)


def cut(direction: Direction) -> Iterator[tuple[int, int, bytes]]:
    """Yields each FPDU: the frame that completed it, its position, and its octets with markers."""
    waiting = bytearray()
    position = direction.chunks[0].position if direction.chunks else 0
    for chunk in direction.chunks:
        waiting += chunk.octets
        at = 0
        while (length := fpdu_length(waiting, at, position, direction.markers)) is not None:
            if at + length > len(waiting):
                break
            yield chunk.frame, position, bytes(waiting[at : at + length])
            at += length
            position += length
        del waiting[:at]


def fpdu_length(octets: bytes | bytearray, at: int, position: int, markers: bool) -> int | None:
    """Returns the octets of an FPDU, markers included, or None while its length is not there yet.

    The FPDU is at ``octets[at]``, and at ``position`` of the MPA stream. A marker just before the
    ULPDU length belongs to the FPDU.
    """
    lead = 4 if markers and position % MARKER_SPACING == 0 else 0
    if at + lead + 2 > len(octets):
        return None
    ulpdu = int.from_bytes(octets[at + lead : at + lead + 2], "big")
    rest = (2 + ulpdu + 3) // 4 * 4 + 4  # with PAD and CRC
    if not markers:
        return rest
    length, position = lead, position + lead
    while True:
        run = MARKER_SPACING - position % MARKER_SPACING
        if rest <= run:
            return length + rest
        # The marker after this run is inside the FPDU.
        length, position, rest = length + run + 4, position + run + 4, rest - run


def _wrong_marker(direction: Direction) -> int | None:
    """Returns the position of the first marker that does not point back to the beginning of
    its FPDU.
    """
    for _, position, raw in cut(direction):
        start = position  # of the ULPDU length
        first = -position % MARKER_SPACING
        for at in range(first, len(raw), MARKER_SPACING):
            pointer = 0 if at == 0 else position + at - start
            if at == 0:
                start = position + 4
            # Section 4.2: RESERVED is "ignored on receive", and receivers "MUST always treat" the
            # pointer's low bits "as zero". The last octets of the longest FPDUs are farther away
            # than a pointer of 16 bits reaches.
            if (int.from_bytes(raw[at + 2 : at + 4], "big") ^ pointer) & _POINTER:
                return position + at
    return None


def _wrong_numbers(
    arrivals: Iterable[Arrival], unframed: dict[int, int], ends: dict[int, int], facts: _Facts
) -> Iterator[tuple[Arrival, int]]:
    """Yields each stream's first segment with a wrong MSN, and the right MSN.

    Section 4.3: "The initial value for MSN MUST be one", and it "MUST be increased by one (modulo
    2^32) with each DDP Message" of the queue. Segments after an error of another kind are not
    checked. ``ends`` gets the position after the last segment of each stream, and ``facts`` gets
    all segments.
    """
    numbers: dict[tuple[int, int], int] = {}
    over: set[int] = set()
    for arrival in arrivals:
        facts.take(arrival)
        stream, header = arrival.stream.number, arrival.header
        ends[stream] = end = arrival.position + len(arrival.raw)
        if header is None or not arrival.digest_is_good or end > unframed.get(stream, end):
            over.add(stream)
        if stream in over or not isinstance(header, Untagged):
            continue
        if header.queue >= QUEUES:
            over.add(stream)
            continue
        first = arrival.stream.first_msn(header.queue)
        expected = numbers.get((stream, header.queue), first)
        if header.msn != expected:
            over.add(stream)
            yield arrival, expected
        numbers[stream, header.queue] = (expected + header.last) % (1 << 32)


def with_sctp(
    traffic: Traffic, frames: Sequence[SctpFrame], config: RnicConfig | None = None
) -> Traffic:
    """Returns the traffic with the SCTP of the same capture; segments are counted over both."""
    if not frames:
        return traffic
    brought: dict[str, array[int]] = {}
    for arrival in traffic.arrivals:
        brought.setdefault(arrival.endpoint, array("Q")).append(arrival.frame)
    sctp = walk(frames, len(traffic.streams), brought, config)
    notes = (*traffic.notes, *sctp.notes)
    if not sctp.ends:
        return replace(traffic, notes=notes)
    by_sctp: dict[str, array[int]] = {}
    for segment in sctp.arrivals:
        by_sctp.setdefault(segment.endpoint, array("Q")).append(segment.frame)

    def counted(arrival: Arrival) -> int:
        return arrival.order + bisect_left(by_sctp.get(arrival.endpoint, ()), arrival.frame)

    def arrivals() -> Iterator[Arrival]:
        return (replace(each, order=counted(each)) for each in traffic.arrivals)

    return replace(
        traffic,
        arrivals=Again(arrivals),
        misnumbered={
            each.stream.number: counted(each)
            for each in (traffic.arrivals if traffic.misnumbered else ())
            if each.order == traffic.misnumbered.get(each.stream.number)
        },
        notes=notes,
        sctp=sctp,
    )
