"""Sends by the golden model what the senders of a capture sent, and compares octet for octet.

The capture shows only what a sender sent. The messages that it posted are derived from that: their
octets, Steering Tag and offset or queue, and the MULPDU before each segment. The model then makes
the segments of these messages: Last, TO, MSN, MO, and the FPDUs with markers and CRC (RFC 5041
section 5.2, RFC 5044 section 4), or the DATA chunks with their DDP-SSNs (RFC 5043 section 5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from ..capture.sctp_traffic import SctpArrival
from ..capture.streams import MARKER_SPACING, Arrival, Stream
from ..capture.traffic import Traffic
from ..model.ddp import DataSource, decode_segment
from ..model.events import ProtocolError
from ..model.header import Header, TaggedHeader
from ..model.mpa import MpaSender
from ..model.sctp import DataChunk, Ppid
from .differences import Difference

__all__ = ["Sent", "send"]

#: Octets of a DATA chunk's header, and of the DDP-SSN after it.
_CHUNK, _SSN = 16, 2
#: Octets of ULPDU_Length, of a marker, and of an FPDU's CRC.
_LENGTH, _MARKER, _CRC = 2, 4, 4


@dataclass
class Sent:
    """The result for one direction of a connection.

    Attributes
    ----------
    messages, segments
        How many were sent again.
    mulpdu
        Octets of the longest segment.
    padded
        FPDUs whose PAD is not zero, which the sender may choose.
    left_out
        Segments that are no part of a whole message: the capture lacks its beginning, or they have
        no sound header.
    """

    stream: Stream
    messages: int = 0
    segments: int = 0
    mulpdu: int = 0
    padded: int = 0
    left_out: int = 0
    differences: list[Difference] = field(default_factory=list)


def send(traffic: Traffic) -> list[Sent]:
    """Sends each direction of a capture again, and returns the results by stream."""
    sources: dict[int, _Source] = {}
    for arrival in traffic.arrivals:
        sources.setdefault(arrival.stream.number, _Mpa(arrival.stream)).take(arrival)
    results = [source.result for source in sources.values()]
    if traffic.sctp is not None:
        chunks: dict[Stream, list[SctpArrival]] = {}
        for chunk in traffic.sctp.arrivals:
            chunks.setdefault(chunk.stream, []).append(chunk)
        for stream, sent in chunks.items():
            source = _Sctp(stream)
            for chunk in sorted(sent, key=lambda each: (each.session, each.sequence)):
                source.take(chunk)
            results.append(source.result)
    return results


@dataclass
class _Message:
    """A message that a sender has begun."""

    header: Header
    segments: list[Arrival]
    sizes: list[int]
    octets: bytes

    def continues(self, header: Header) -> bool:
        """Decides whether a segment belongs to the message."""
        if isinstance(header, TaggedHeader):
            return isinstance(self.header, TaggedHeader) and header.stag == self.header.stag
        return not isinstance(self.header, TaggedHeader) and (header.qn, header.msn) == (
            self.header.qn, self.header.msn,
        )  # fmt: skip


class _DataSource(DataSource):
    """A Data Source whose MULPDU may change between the segments of a message (RFC 5041 section 3
    item 1): ``sizes`` has the payload's octets in each.
    """

    sizes: Sequence[int] = ()

    def _slices(self, message: bytes, header: int) -> Iterable[tuple[int, bytes, bool]]:
        self.mulpdu = header + max(1, *self.sizes)
        slices = [*super()._slices(message, header)]
        if [len(payload) for _, payload, _ in slices] == [*self.sizes]:
            return slices
        starts = [0, *accumulate(self.sizes)]
        return [(start, message[start:end], end == len(message)) for start, end in pairwise(starts)]


class _Source(ABC):
    """One direction of a connection, as a sender."""

    def __init__(self, stream: Stream) -> None:
        self.result = Sent(stream)
        self._source = _DataSource(0)
        for qn, msn in stream.msns:
            self._source.set_msn(qn, msn)
        self._message: _Message | None = None

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
            message = self._message = _Message(header, [], [], b"")
        message.segments.append(arrival)
        message.sizes.append(len(payload))
        message.octets += payload
        if header.last:
            self._message = None
            self._post(message)

    def _post(self, message: _Message) -> None:
        """Posts a message to the model, and compares the octets that it sends."""
        header = message.header
        self._source.sizes = message.sizes
        if isinstance(header, TaggedHeader):
            segments = self._source.tagged(
                header.stag, header.to, message.octets, rsvdulp=header.rsvdulp
            )
        elif header.mo:  # the capture begins within the message
            self._source.set_msn(header.qn, (header.msn + 1) % (1 << 32))
            self._leave(message.segments)
            return
        else:
            segments = self._source.untagged(header.qn, message.octets, rsvdulp=header.rsvdulp)
        self.result.messages += 1
        for arrival, segment in zip(message.segments, segments, strict=True):
            self.result.segments += 1
            self.result.mulpdu = max(self.result.mulpdu, len(arrival.ulpdu))
            self._compare(arrival, segment)

    def _leave(self, segments: Iterable[Arrival]) -> None:
        """Counts segments that are not sent again."""
        for arrival in segments:
            self.result.left_out += 1
            self._skip(arrival)

    @abstractmethod
    def _skip(self, arrival: Arrival) -> None:
        """Notes the place of a segment that is not sent again."""

    @abstractmethod
    def _compare(self, arrival: Arrival, segment: bytes) -> None:
        """Compares a segment that the model sends with the octets of the capture."""

    def _differs(self, arrival: Arrival, what: str, expected: bytes) -> None:
        raw = arrival.raw
        pairs = enumerate(zip(expected, raw, strict=False))
        at = next((at for at, (one, other) in pairs if one != other), min(len(expected), len(raw)))
        octets = expected[at : at + 16].hex(" "), raw[at : at + 16].hex(" ")
        where = f"frame {arrival.frame}, octet {at}"
        self.result.differences.append(Difference(what, where, *octets, octets=octets))


class _Mpa(_Source):
    """Sends FPDUs."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._sender = MpaSender(crc=stream.crc, markers=stream.markers, position=stream.position)

    def _skip(self, arrival: Arrival) -> None:
        self._sender.position = arrival.position + len(arrival.raw)

    def _compare(self, arrival: Arrival, segment: bytes) -> None:
        expected = self._sender.send(segment)
        if expected == arrival.raw:
            return
        if len(expected) == len(arrival.raw) and self._pads_otherwise(arrival, segment, expected):
            self.result.padded += 1
        else:
            self._differs(arrival, "an FPDU", expected)

    def _pads_otherwise(self, arrival: Arrival, segment: bytes, expected: bytes) -> bool:
        """Decides whether an FPDU has another PAD than zeros, and the CRC for that PAD, but no
        other difference.
        """
        stream, raw = arrival.stream, arrival.raw
        content = [
            at
            for at in range(len(raw))
            if not (stream.markers and (arrival.position + at) % MARKER_SPACING < _MARKER)
        ]
        # A marker can stand between PAD and CRC.
        pad, crc = content[_LENGTH + len(segment) : -_CRC], content[-_CRC:]
        free = {*pad, *(crc if stream.crc else ())}
        return (
            any(raw[at] for at in pad)
            and arrival.digest_is_good
            and all(raw[at] == expected[at] for at in range(len(raw)) if at not in free)
        )


class _Sctp(_Source):
    """Sends DATA chunks."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._session, self._next = -1, 1

    def take(self, arrival: Arrival) -> None:
        assert isinstance(arrival, SctpArrival)
        if arrival.session != self._session:
            # A control message has DDP-SSN 0, and every message queue begins with MSN 1.
            self._session, self._next = arrival.session, 1
            self._source = _DataSource(0)
        super().take(arrival)

    def _skip(self, arrival: Arrival) -> None:
        self._next += 1

    def _compare(self, arrival: Arrival, segment: bytes) -> None:
        raw = arrival.raw
        payload = (self._next & 0xFFFF).to_bytes(_SSN, "big") + segment
        self._next += 1
        # TSN and stream are SCTP's, as is the wish for an immediate acknowledgement.
        sid = int.from_bytes(raw[8:10], "big")
        chunk = DataChunk(
            arrival.position, sid, Ppid.SEGMENT, payload, int.from_bytes(raw[10:12], "big"),
            immediate=bool(raw[1] & 8),
        )  # fmt: skip
        expected = chunk.encode()[: _CHUNK + len(payload)]
        if expected != raw[: len(expected)] or len(raw) - len(expected) not in range(4):
            self._differs(arrival, "a DATA chunk", expected)
