"""Sends by the golden model what the senders of a capture sent, and compares octet for octet.

The capture shows only what a sender sent. The work requests that it posted are derived from that:
their octets, in pieces or inline, Steering Tag and offset or queue, and the MULPDU before each
segment. The model then makes the segments of these messages: Last, TO, MSN, MO, and the FPDUs with
markers and CRC (RFC 5041 section 5.2, RFC 5044 section 4), or the DATA chunks with their DDP-SSNs
(RFC 5043 section 5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ...hdl.spec.send import Flag, Kind, Message, Piece
from ..capture.sctp_traffic import Incoming, SctpArrival, SctpStream, SctpTraffic, Step
from ..capture.spool import Numbers, Rows
from ..capture.streams import MARKER_SPACING, Arrival, Stream
from ..capture.traffic import Traffic
from ..model.ddp import DataSource, decode_segment
from ..model.events import ProtocolError
from ..model.header import Header, TaggedHeader, UntaggedHeader
from ..model.memory import Memory, Region
from ..model.mpa import MpaSender
from ..model.rdmap import Opcode, QueueNumber, ReadRequest, opcode
from ..model.sctp import DataChunk, Ppid
from ..model.send import SendQueue
from .differences import Difference

__all__ = ["LONGEST", "REGION", "Post", "Sent", "is_control", "send", "send_in_parts"]

#: Octets of a DATA chunk's header, and of the DDP-SSN after it.
_CHUNK, _SSN = 16, 2
#: Where the octets of messages lie that are not posted inline, and the most octets of those that
#: are: an RDMA Write of 64 octets fits.
REGION = Region(stag=0x5E4D00, to=0x1000, length=0, pd=0)
INLINE = 64
#: The most octets of a message that is sent again: it is kept in memory.
LONGEST = 32 << 20
#: A part of a capture has this number of segments, or their FPDUs or chunks this number of octets.
_SEGMENTS, _OCTETS = 8_000, 8 << 20
#: How many differences of a sender are kept.
_TOLD = 100
#: Octets of ULPDU_Length, of a marker, and of an FPDU's CRC.
_LENGTH, _MARKER, _CRC = 2, 4, 4
#: RFC 5044 section 3: "The sending DDP MUST NOT post a ULPDU larger than 64768 octets to MPA."
_LONGEST_ULPDU = 64768


class Post(NamedTuple):
    """A work request, derived from the segments that the sender sent for it.

    Attributes
    ----------
    message
        The work request. Its pieces, if any, lie in the region of ``REGION``, and cover it.
    octets
        The octets of that region: those of the message, or none.
    arrivals
        The segments of the capture.
    sent
        The segments that the model sends for it; each has the frame of the capture's segment.
    """

    message: Message
    octets: bytes
    arrivals: Sequence[Arrival]
    sent: Sequence[Arrival] = ()


@dataclass
class Sent:
    """The result for one direction of a connection.

    Attributes
    ----------
    messages, segments
        How many were sent again.
    mulpdu
        The largest MULPDU. It is derived: the octets of the longest segment.
    falls
        How often the MULPDU became smaller. Without a fall, one MULPDU explains all segments.
    chosen
        FPDUs whose PAD is not zero, or whose CRC field is not although no CRC is in use. The sender
        may choose these octets.
    left_out
        Segments that are no part of a whole message: the capture lacks a part of it, or they have
        no sound header.
    long
        Segments of messages with more octets than :data:`LONGEST`, which are not sent again.
    empty
        Segments of messages in several segments, one of which is empty. The model cuts no message
        so, and they are not sent again.
    controls
        Session control messages of SCTP.
    posts
        The work requests, and the segments that the sender sent for each.
    differences
        The first differences; ``differing`` counts all.
    """

    stream: Stream
    messages: int = 0
    segments: int = 0
    mulpdu: int = 0
    falls: int = 0
    chosen: int = 0
    left_out: int = 0
    long: int = 0
    empty: int = 0
    controls: int = 0
    posts: list[Post] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    differing: int = 0

    @property
    def taken(self) -> int:
        """The number of segments and control messages that were sent again or left out."""
        return self.segments + self.left_out + self.long + self.empty + self.controls

    def told(self) -> list[Difference]:
        """Returns the differences to be listed, and how many more there are."""
        more = self.differing - len(self.differences)
        if not more:
            return self.differences
        further = f"{more} further differences of this sender", "not shown"
        return [*self.differences, Difference(self.differences[-1].what, "elsewhere", *further)]


def send(traffic: Traffic) -> list[Sent]:
    """Sends each direction of a capture again; returns the results by stream, with all posts."""
    (results,) = send_in_parts(traffic, whole=True)
    return results


def send_in_parts(traffic: Traffic, *, whole: bool = False) -> Iterator[list[Sent]]:
    """Sends each direction of a capture again, part by part.

    Yields the results so far, by stream, after each part. They have the posts of the messages that
    this part completes; those of earlier parts are dropped. ``whole``: the capture is one part.
    """
    sources: dict[int, _Source] = {}
    results: list[Sent] = []
    segments = octets = 0
    for arrival in chain(traffic.arrivals, _chunks(traffic.sctp)):
        if (source := sources.get(arrival.stream.number)) is None:
            source = sources[arrival.stream.number] = _source(arrival.stream, traffic.sctp)
            results.append(source.result)
        source.take(arrival)
        segments, octets = segments + 1, octets + len(arrival.raw)
        if not whole and (segments >= _SEGMENTS or octets >= _OCTETS):
            yield results
            for each in results:
                each.posts.clear()
            segments = octets = 0
    for source in sources.values():
        source.end()
    yield results


def _source(stream: Stream, sctp: SctpTraffic | None) -> _Source:
    if isinstance(stream, SctpStream) and sctp is not None:
        return _Sctp(stream, sctp.ends[stream.association].tsns)
    return _Mpa(stream)


def _chunks(sctp: SctpTraffic | None) -> Iterator[SctpArrival]:
    """Yields the chunks of a capture. Those of a stream are in the order in which they were sent;
    between streams, in the order of the capture.
    """
    if sctp is None:
        return
    steps = sctp.steps
    # The session, the DDP-SSN and the place of each chunk, by stream.
    rows: dict[int, Rows] = {}
    for number, step in enumerate(steps):
        for at, chunk in enumerate(_chunks_of(step)):
            found = rows.setdefault(chunk.stream.number, Rows("QQQQ"))
            found.append(chunk.session, chunk.sequence, number, at)

    def sent(stream: int) -> Iterator[tuple[int, SctpArrival]]:
        table = np.array([rows[stream].column(number) for number in range(4)])
        frame = 0
        for at in np.lexsort(table[1::-1]):
            number, place = table[2:, at].tolist()
            chunk = _chunks_of(steps[number])[place]
            frame = max(frame, chunk.frame)
            yield frame, chunk

    for _, chunk in merge(*map(sent, rows), key=itemgetter(0)):
        yield chunk


def _chunks_of(step: Step) -> list[SctpArrival]:
    """Returns the chunks that a step brings: its control messages and its segments."""
    if not isinstance(step, Incoming):
        return []
    controls = [item.control for item in step.items if item.control is not None]
    return [*controls, *step.segments]


@dataclass
class _Message:
    """A message that a sender has begun."""

    header: Header
    segments: list[Arrival] = field(default_factory=list)
    octets: bytearray = field(default_factory=bytearray)
    long: bool = False  # more octets than LONGEST: its segments are left out as they come
    empty: bool = False  # one of its segments is empty

    def continues(self, header: Header) -> bool:
        """Decides whether a segment belongs to the message."""
        if isinstance(header, TaggedHeader):
            return isinstance(self.header, TaggedHeader) and header.stag == self.header.stag
        return not isinstance(self.header, TaggedHeader) and (header.qn, header.msn) == (
            self.header.qn, self.header.msn,
        )  # fmt: skip


def _derive(sent: _Message) -> Post:
    """Derives the work request of a message. Read Requests are posted as READ, short messages
    inline, and longer ones in three pieces.
    """
    header, octets = sent.header, bytes(sent.octets)
    values: dict[str, Any]
    if isinstance(header, TaggedHeader):
        values = {"kind": Kind.TAGGED, "stag": header.stag, "to": header.to}
        values["rsvdulp"] = header.rsvdulp << 32
    elif _is_read_request(header, octets):
        request = ReadRequest.decode(octets)
        sink = Piece(request.sink_stag, request.length, request.sink_to)
        values = {"kind": Kind.READ, "stag": request.source_stag, "to": request.source_to}
        values["rsvdulp"] = header.rsvdulp
        return Post(Message(pieces=(sink,), **values), b"", sent.segments)
    else:
        values = {"kind": Kind.UNTAGGED, "qn": header.qn, "rsvdulp": header.rsvdulp}
    if len(octets) <= INLINE:
        inline = Message(flags=Flag.INLINE, octets=octets, **values)
        return Post(inline, b"", sent.segments)
    # The ends of pieces lie anywhere in beats and in segments.
    ends = 0, len(octets) // 3, len(octets) * 7 // 9, len(octets)
    pieces = tuple(
        Piece(REGION.stag, end - start, REGION.to + start) for start, end in pairwise(ends)
    )
    return Post(Message(pieces=pieces, **values), octets, sent.segments)


def _is_read_request(header: UntaggedHeader, octets: bytes) -> bool:
    known = QueueNumber.READ_REQUEST, Opcode.READ_REQUEST, ReadRequest.SIZE
    return (header.qn, opcode(header), len(octets)) == known


class _Source(ABC):
    """One direction of a connection, as a sender."""

    def __init__(self, stream: Stream) -> None:
        self.result = Sent(stream)
        self._begin()
        for qn, msn in stream.msns:
            self._queue.source.set_msn(qn, msn)
        self._message: _Message | None = None

    def _begin(self) -> None:
        """Makes the stream's Data Source."""
        self._memory = Memory()
        self._queue = SendQueue(DataSource(self.result.mulpdu), self._memory)

    def take(self, arrival: Arrival) -> None:
        """Takes the next segment that was sent; with the last one of a message, sends that."""
        try:
            header, payload = decode_segment(arrival.ulpdu)
        except ProtocolError:
            self._leave([arrival])
            return
        message = self._message
        if message is None or not message.continues(header):
            if message is not None:
                self._leave(message.segments)
            message = self._message = _Message(header)
        message.segments.append(arrival)
        message.octets += payload
        message.empty |= not payload
        if message.long or len(message.octets) > LONGEST:
            self._leave_long(message)
        if header.last:
            self._message = None
            self._post(message)

    def end(self) -> None:
        """Leaves out the message whose end the capture lacks."""
        self._leave_begun()

    def _leave_begun(self) -> None:
        """Leaves out the message that has begun, if any."""
        if self._message is not None:
            self._leave(self._message.segments)
            self._message = None

    def _leave_long(self, message: _Message) -> None:
        """Leaves out the segments so far of a message that is too long to be kept."""
        message.long = True
        self.result.long += len(message.segments)
        for arrival in message.segments:
            self._skip(arrival)
        message.segments.clear()
        message.octets.clear()

    def _post(self, message: _Message) -> None:
        """Posts a message to the model, and compares the octets that it sends."""
        header = message.header
        if message.long or (isinstance(header, UntaggedHeader) and header.mo):
            # The message is too long, or the capture begins within it.
            self._pass(header)
            self._leave(message.segments)
            return
        further: list[Arrival] = []
        if message.empty and len(message.segments) > 1:
            if message.octets:
                self._pass(header)
                self._leave_empty(message.segments)
                return
            # RFC 5041 section 5.2: "A zero-length DDP Message is allowed and MUST consume exactly
            # one DDP Segment." The first one, which is not the last, differs from that.
            further = message.segments[1:]
            del message.segments[1:]
        post = _derive(message)
        self._memory.revoke(REGION.stag)
        region = replace(REGION, length=len(post.octets))
        self._memory.register(region, bytearray(post.octets))
        self._queue.post(post.message)
        try:
            segments = [self._send(arrival) for arrival in message.segments]
        except ProtocolError:
            self._leave(message.segments)
            return
        self.result.messages += 1
        self.result.segments += len(segments)
        pairs = zip(message.segments, segments, strict=True)
        self.result.posts.append(post._replace(sent=[self._compare(*pair) for pair in pairs]))
        self._leave_empty(further)

    def _pass(self, header: Header) -> None:
        """Continues after a message that is not sent again: its queue's next one has the next
        MSN.
        """
        if isinstance(header, UntaggedHeader):
            self._queue.source.set_msn(header.qn, (header.msn + 1) % (1 << 32))

    def _send(self, arrival: Arrival) -> bytes:
        """Returns the segment that the model sends with the MULPDU that the sender had.

        A segment that is not the last one of its message fills the MULPDU. The last one fits in it.
        """
        source, length = self._queue.source, len(arrival.ulpdu)
        header, payload = decode_segment(arrival.ulpdu)
        # The model needs room for one octet, also for a segment that has none.
        mulpdu = length + (not payload)
        if mulpdu > source.mulpdu or not header.last:
            self.result.falls += mulpdu < source.mulpdu
            self.result.mulpdu = max(self.result.mulpdu, mulpdu)
            source.mulpdu = mulpdu
        segment = self._queue.send()
        assert segment is not None  # each segment of the message takes octets, or is the only one
        return segment

    def _leave(self, segments: Iterable[Arrival]) -> None:
        """Counts segments that are not sent again."""
        for arrival in segments:
            self.result.left_out += 1
            self._skip(arrival)

    def _leave_empty(self, segments: Sequence[Arrival]) -> None:
        """Counts segments that are not sent again because one of their message is empty."""
        self.result.empty += len(segments)
        for arrival in segments:
            self._skip(arrival)

    @abstractmethod
    def _skip(self, arrival: Arrival) -> None:
        """Notes the place of a segment that is not sent again."""

    @abstractmethod
    def _compare(self, arrival: Arrival, segment: bytes) -> Arrival:
        """Compares a segment that the model sends with the octets of the capture.

        Returns what the model sends.
        """

    def _differs(self, arrival: Arrival, what: str, expected: bytes) -> None:
        raw = arrival.raw
        pairs = enumerate(zip(expected, raw, strict=False))
        at = next((at for at, (one, other) in pairs if one != other), min(len(expected), len(raw)))
        octets = expected[at : at + 16].hex(" "), raw[at : at + 16].hex(" ")
        where = f"frame {arrival.frame}, octet {at}"
        self._tell(Difference(what, where, *octets, octets=octets))

    def _tell(self, difference: Difference) -> None:
        """Counts a difference, and keeps it if it is one of the first."""
        self.result.differing += 1
        if len(self.result.differences) < _TOLD:
            self.result.differences.append(difference)


class _Mpa(_Source):
    """Sends FPDUs."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._sender = MpaSender(crc=stream.crc, markers=stream.markers, position=stream.position)

    def _skip(self, arrival: Arrival) -> None:
        self._sender.position = arrival.position + len(arrival.raw)

    def _compare(self, arrival: Arrival, segment: bytes) -> Arrival:
        if len(segment) > _LONGEST_ULPDU:
            # With markers, the model cannot even frame it: a marker's FPDUPTR has 16 bits.
            self._skip(arrival)
            words = f"a ULPDU of at most {_LONGEST_ULPDU} octets", f"one of {len(segment)}"
            self._tell(Difference("an FPDU", f"frame {arrival.frame}", *words))
            return arrival
        position = self._sender.position
        expected = self._sender.send(segment)
        if (position, expected) == (arrival.position, arrival.raw):
            return arrival
        alike = (position, len(expected)) == (arrival.position, len(arrival.raw))
        if alike and self._chooses(arrival, segment, expected):
            self.result.chosen += 1
        else:
            self._differs(arrival, "an FPDU", expected)
        return replace(arrival, position=position, raw=expected)

    def _chooses(self, arrival: Arrival, segment: bytes, expected: bytes) -> bool:
        """Decides whether an FPDU has another PAD than zeros, with the CRC for that PAD, or another
        CRC field than zeros where no CRC is in use, but no other difference.

        RFC 5044 section 4.1: "When CRCs are not enabled, this field is still present, may contain
        any value, and MUST NOT be checked."
        """
        stream, raw = arrival.stream, arrival.raw
        content = [
            at
            for at in range(len(raw))
            if not (stream.markers and (arrival.position + at) % MARKER_SPACING < _MARKER)
        ]
        # A marker can stand between PAD and CRC.
        pad, crc = content[_LENGTH + len(segment) : -_CRC], content[-_CRC:]
        free = {*pad, *crc}
        return (
            any(raw[at] for at in (pad if stream.crc else free))
            and arrival.digest_is_good
            and all(raw[at] == expected[at] for at in range(len(raw)) if at not in free)
        )


def is_control(arrival: Arrival) -> bool:
    """Decides whether an arrival is a session control message."""
    return isinstance(arrival, SctpArrival) and arrival.raw[12:16] == Ppid.CONTROL.to_bytes(4)


class _Sctp(_Source):
    """Sends DATA chunks.

    The capture may lack chunks; ``tsns`` has the TSNs of those that it has. A sender may number its
    messages as if it had sent as many chunks more as TSNs are missing.
    """

    def __init__(self, stream: Stream, tsns: Numbers) -> None:
        super().__init__(stream)
        self._session, self._next = -1, 1
        self._tsns = tsns
        self._before: SctpArrival | None = None
        self._missing = 0  # chunks of the session
        self._known: dict[int, int] = {}  # ``_missing`` at the last message of each queue

    def take(self, arrival: Arrival) -> None:
        assert isinstance(arrival, SctpArrival)
        if arrival.session != self._session:
            # The session opens with DDP-SSN 0. In all but the first one, queues begin with MSN 1.
            first = self._session < 0
            self._session, self._next = arrival.session, int(not is_control(arrival))
            self._before, self._missing, self._known = None, 0, {}
            if not first:
                self._begin()
        elif missing := self._missing_before(arrival):
            self._missing += missing
            self._next += missing
            self._leave_begun()
        self._before = arrival
        if is_control(arrival):
            self._control(arrival)
        else:
            super().take(arrival)

    def _missing_before(self, arrival: SctpArrival) -> int:
        """Returns how many chunks the capture lacks between the last chunk and this one."""
        assert self._before is not None
        skipped = max(0, arrival.sequence - self._before.sequence - 1)
        start, end = self._before.position + 1, arrival.position
        if end - start >= 1 << 31:
            start += 1 << 32
        elif start - end >= 1 << 31:
            end += 1 << 32
        missing = (tsn for tsn in range(start, end) if tsn % (1 << 32) not in self._tsns)
        return sum(1 for _ in islice(missing, skipped))

    def _post(self, message: _Message) -> None:
        header = message.header
        if isinstance(header, UntaggedHeader):
            source, qn = self._queue.source, header.qn
            # Each missing chunk may have been a message of this queue.
            ahead = (header.msn - source.next_msn(qn)) % (1 << 32)
            if ahead <= self._missing - self._known.get(qn, 0):
                source.set_msn(qn, header.msn)
            self._known[qn] = self._missing
        super()._post(message)

    def _control(self, arrival: SctpArrival) -> None:
        """Sends a session control message (RFC 5043 section 5.2.3)."""
        self._leave_begun()
        function, private = int.from_bytes(arrival.ulpdu[:2], "big"), arrival.ulpdu[2:]
        message = Message(Kind.CONTROL, Flag.INLINE, octets=private, rsvdulp=function << 24)
        sent = self._compare(arrival, arrival.ulpdu)
        self.result.controls += 1
        self.result.posts.append(Post(message, b"", [arrival], [sent]))

    def _skip(self, arrival: Arrival) -> None:
        self._next += 1

    def _compare(self, arrival: Arrival, segment: bytes) -> Arrival:
        raw = arrival.raw
        payload = (self._next & 0xFFFF).to_bytes(_SSN, "big") + segment
        self._next += 1
        # TSN and stream are those of SCTP, as is the wish for an immediate acknowledgement.
        sid = int.from_bytes(raw[8:10], "big")
        chunk = DataChunk(
            arrival.position, sid, Ppid.CONTROL if is_control(arrival) else Ppid.SEGMENT, payload,
            int.from_bytes(raw[10:12], "big"),
            immediate=bool(raw[1] & 8),
        )  # fmt: skip
        expected = chunk.encode()[: _CHUNK + len(payload)]
        if expected != raw[: len(expected)] or len(raw) - len(expected) not in range(4):
            self._differs(arrival, "a DATA chunk", expected)
        return replace(arrival, raw=expected)
