"""Reads the fields of a frame and of a DDP Segment, each with its octets and its RFC section.

A field's octets are given as spans of frames, because an FPDU may lie in several frames, and a
marker may stand within a field.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...hdl.spec.ddp import CONTROL_FIELDS, TAGGED_FIELDS, UNTAGGED_FIELDS
from ...hdl.spec.sctp import DATA_HEADER, SSN
from ...sw_driver.rdmap.wire import Message, ReadRequest, Terminate
from ..capture.layers import SCTP, TCP, UDP
from ..capture.pcap import counted
from ..capture.streams import MARKER_SPACING
from ..model.header import header_length, is_tagged

__all__ = ["Field", "Layer", "Span", "chunk_at", "cut", "fpdu", "packet", "sctp_chunk", "segment"]

_MARKER = 4
_LENGTH = 2
_CRC = 4


class Span(NamedTuple):
    """The octets ``start`` to ``stop - 1`` of a frame."""

    frame: int
    start: int
    stop: int


Spans = tuple[Span, ...]


@dataclass(frozen=True)
class Field:
    """A field: its name, its value in words, and its octets."""

    name: str
    value: str
    spans: Spans


@dataclass(frozen=True)
class Layer:
    """The fields of a header, in wire order. ``section`` is where the header is specified."""

    name: str
    section: str
    fields: tuple[Field, ...]


def cut(spans: Spans, start: int, stop: int) -> Spans:
    """Returns the octets ``start`` to ``stop - 1`` of the octets in spans."""
    if len(spans) == 1:  # by far the most frequent case
        ((frame, first, last),) = spans
        begin, end = first + max(start, 0), min(first + stop, last)
        return (Span(frame, begin, end),) if begin < end else ()
    found = []
    for each in spans:
        size = each.stop - each.start
        begin, end = max(start, 0), min(stop, size)
        if begin < end:
            found.append(Span(each.frame, each.start + begin, each.start + end))
        start, stop = start - size, stop - size
    return tuple(found)


# -- values --

_Format = Callable[[int], str]


def _hex(digits: int) -> _Format:
    return lambda value: f"{value:#0{digits + 2}x}"


def _mac(value: int) -> str:
    return value.to_bytes(6, "big").hex(":")


def _ipv4(value: int) -> str:
    return str(ipaddress.IPv4Address(value))


def _ipv6(value: int) -> str:
    return str(ipaddress.IPv6Address(value))


_FLAGS = ("FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR")


def _control_bits(value: int) -> str:
    names = [name for bit, name in enumerate(_FLAGS) if value >> bit & 1]
    return f"{value:#04x} {' '.join(names)}".rstrip()


def _opcode(value: int) -> str:
    try:
        return f"{value} {Message(value).name.replace('_', ' ').title()}"
    except ValueError:
        return f"{value} (none of RFC 5040)"


class _Row(NamedTuple):
    name: str
    bits: int
    format: _Format = str


_ETHERNET = (_Row("Destination", 48, _mac), _Row("Source", 48, _mac), _Row("Type", 16, _hex(4)))
_TAG = (
    _Row("Tag Protocol Identifier", 16, _hex(4)),
    _Row("Priority", 3),
    _Row("Drop Eligible", 1),
    _Row("VLAN Identifier", 12),
)
_IPV4 = (
    _Row("Version", 4),
    _Row("IHL", 4),
    _Row("Type of Service", 8, _hex(2)),
    _Row("Total Length", 16),
    _Row("Identification", 16, _hex(4)),
    _Row("Flags", 3, _hex(1)),
    _Row("Fragment Offset", 13),
    _Row("Time to Live", 8),
    _Row("Protocol", 8),
    _Row("Header Checksum", 16, _hex(4)),
    _Row("Source Address", 32, _ipv4),
    _Row("Destination Address", 32, _ipv4),
)
_IPV6 = (
    _Row("Version", 4),
    _Row("Traffic Class", 8, _hex(2)),
    _Row("Flow Label", 20, _hex(5)),
    _Row("Payload Length", 16),
    _Row("Next Header", 8),
    _Row("Hop Limit", 8),
    _Row("Source Address", 128, _ipv6),
    _Row("Destination Address", 128, _ipv6),
)
_PORTS = (_Row("Source Port", 16), _Row("Destination Port", 16))
_UDP = (*_PORTS, _Row("Length", 16), _Row("Checksum", 16, _hex(4)))
_TCP = (
    *_PORTS,
    _Row("Sequence Number", 32),
    _Row("Acknowledgment Number", 32),
    _Row("Data Offset", 4),
    _Row("Reserved", 4),
    _Row("Control bits", 8, _control_bits),
    _Row("Window", 16),
    _Row("Checksum", 16, _hex(4)),
    _Row("Urgent Pointer", 16),
)
_SCTP = (*_PORTS, _Row("Verification Tag", 32, _hex(8)), _Row("Checksum", 32, _hex(8)))
_DATA = (
    _Row("Type", 8),
    _Row("Flags", 8, _hex(2)),
    _Row("Length", 16),
    _Row("TSN", 32),
    _Row("Stream Identifier", 16),
    _Row("Stream Sequence Number", 16),
    _Row("Payload Protocol Identifier", 32),
)
_NAMES = {"rsvd": "Rsvd", "rsvdulp": "RsvdULP", "stag": "STag"}
_DIGITS = {"stag": 8, "to": 16}


def _rows(declared: Sequence[tuple[str, int]]) -> tuple[_Row, ...]:
    """Returns the rows of fields that are declared with the device."""
    return tuple(
        _Row(_NAMES.get(name, name.upper()), bits, _hex(_DIGITS[name]) if name in _DIGITS else str)
        for name, bits in declared
    )


_CONTROL = _rows(CONTROL_FIELDS)
_RDMAP = (_Row("RV (version)", 2), _Row("Rsv", 2), _Row("Opcode", 4, _opcode))
_INVALIDATE = (_Row("Invalidate STag", 32, _hex(8)),)
_READ = (
    _Row("Data Sink STag", 32, _hex(8)),
    _Row("Data Sink Tagged Offset", 64, _hex(16)),
    _Row("RDMA Read Message Size", 32),
    _Row("Data Source STag", 32, _hex(8)),
    _Row("Data Source Tagged Offset", 64, _hex(16)),
)
_TERMINATE = (
    _Row("Layer", 4),
    _Row("EType", 4),
    _Row("Error Code", 8, _hex(2)),
    _Row("HdrCt", 3, _hex(1)),
    _Row("Reserved", 13),
)


class _Part(NamedTuple):
    """Octets, and the spans where they are."""

    octets: bytes
    spans: Spans

    def from_(self, start: int, stop: int | None = None) -> _Part:
        stop = len(self.octets) if stop is None else stop
        return _Part(self.octets[start:stop], cut(self.spans, start, stop))

    def rest(self, name: str, value: str | None = None) -> list[Field]:
        """Returns all octets as one field, or no field without octets."""
        if not self.octets:
            return []
        return [
            Field(name, counted(len(self.octets), "octet") if value is None else value, self.spans)
        ]

    def read(self, rows: Sequence[_Row]) -> list[Field]:
        """Returns the fields that are whole."""
        found, at = [], 0
        for row in rows:
            end = at + row.bits
            if end > 8 * len(self.octets):
                break
            start, stop = at // 8, -(-end // 8)
            value = int.from_bytes(self.octets[start:stop], "big") >> (8 * stop - end)
            value &= (1 << row.bits) - 1
            found.append(Field(row.name, row.format(value), cut(self.spans, start, stop)))
            at = end
        return found


# -- below MPA and DDP --


def packet(octets: bytes, frame: int, ip_at: int, *, ethernet: bool) -> list[Layer]:
    """Returns the layers of a frame from its first octet to the header of TCP or SCTP.

    Parameters
    ----------
    octets
        The frame.
    frame
        Its number.
    ip_at
        Where the innermost IP header begins.
    ethernet
        Whether the frame begins with an Ethernet header.
    """
    whole = _Part(octets, (Span(frame, 0, len(octets)),))
    found = list(_link(whole.from_(0, ip_at), ethernet))
    inner = whole.from_(ip_at)
    if octets[ip_at] >> 4 == 4:
        size, protocol = (octets[ip_at] & 15) * 4, octets[ip_at + 9]
        fields = inner.read(_IPV4) + inner.from_(20, size).rest("Options")
        found.append(Layer("IPv4", "RFC 791 section 3.1", tuple(fields)))
    else:
        size, protocol = 40, octets[ip_at + 6]
        while protocol not in (TCP, UDP, SCTP) and ip_at + size + 8 <= len(octets):
            protocol, step = octets[ip_at + size], (octets[ip_at + size + 1] + 1) * 8
            size += step
        fields = inner.read(_IPV6) + inner.from_(40, size).rest("Extension headers")
        found.append(Layer("IPv6", "RFC 8200 section 3", tuple(fields)))
    inner = inner.from_(size)
    if protocol == UDP:
        found.append(Layer("UDP", "RFC 768; RFC 6951 section 5", tuple(inner.read(_UDP))))
        inner, protocol = inner.from_(8), SCTP
    if protocol == SCTP:
        found.append(Layer("SCTP", "RFC 9260 section 3.1", tuple(inner.read(_SCTP))))
    elif protocol == TCP:
        size = (inner.octets[12] >> 4) * 4
        fields = inner.read(_TCP) + inner.from_(20, size).rest("Options")
        found.append(Layer("TCP", "RFC 9293 section 3.1", tuple(fields)))
    return found


def _link(part: _Part, ethernet: bool) -> Iterator[Layer]:
    """Yields Ethernet and its tags, or one layer for any other octets before IP."""
    tags = (len(part.octets) - 14) // 4
    if ethernet and len(part.octets) == 14 + 4 * tags:
        fields = part.from_(0, 12).read(_ETHERNET[:2])
        kind = part.from_(12 + 4 * tags).read(_ETHERNET[2:])
        yield Layer("Ethernet", "RFC 894; IEEE 802.3 section 3", (*fields, *kind))
        for tag in range(tags):
            fields = part.from_(12 + 4 * tag).read(_TAG)
            yield Layer("VLAN tag", "IEEE 802.1Q section 9.6", tuple(fields))
    elif part.octets:
        yield Layer("Link layer and tunnels", "not read here", tuple(part.rest("Octets")))


# -- MPA --


def fpdu(raw: bytes, spans: Spans, position: int, *, markers: bool) -> list[Layer]:
    """Returns the layers of an FPDU, from MPA on.

    Parameters
    ----------
    raw
        The FPDU with its markers.
    spans
        Its octets in frames.
    position
        Its position in the MPA stream.
    markers
        Whether the stream has markers.
    """
    whole = _Part(raw, spans)
    at = range(-position % MARKER_SPACING, len(raw), MARKER_SPACING) if markers else range(0)
    between = [0, *(end for start in at for end in (start, start + _MARKER)), len(raw)]
    pieces = [whole.from_(*pair) for pair in zip(between[::2], between[1::2], strict=True)]
    text = _Part(
        b"".join(piece.octets for piece in pieces),
        tuple(span for piece in pieces for span in piece.spans),
    )
    length = int.from_bytes(text.octets[:_LENGTH], "big")
    end = min(_LENGTH + length, len(text.octets))
    stop = min(end + -end % 4, len(text.octets))
    fields = text.read([_Row("ULPDU_Length", 16)])
    fields += text.from_(end, stop).rest("PAD")
    if text.octets[stop:]:
        part = text.from_(stop, stop + _CRC)
        fields += part.rest("CRC", f"0x{part.octets[::-1].hex()} (lowest octet first)")
    found = [Layer("MPA", "RFC 5044 section 4.1", tuple(fields))]
    if at:
        pointers = (whole.from_(start, start + _MARKER) for start in at)
        fields = [
            Field(
                f"Marker at octet {position + start}",
                f"FPDUPTR {int.from_bytes(each.octets[2:], 'big')}",
                each.spans,
            )
            for start, each in zip(at, pointers, strict=True)
        ]
        found.append(Layer("MPA markers", "RFC 5044 section 4.3", tuple(fields)))
    ulpdu = text.from_(_LENGTH, end)
    return found + segment(ulpdu.octets, ulpdu.spans)


# -- SCTP --


def sctp_chunk(raw: bytes, spans: Spans) -> list[Layer]:
    """Returns the layers of a DATA chunk with a DDP Segment."""
    whole = _Part(raw, spans)
    ssn = whole.from_(DATA_HEADER, DATA_HEADER + SSN)
    ulpdu = whole.from_(DATA_HEADER + SSN)
    return [
        Layer("SCTP DATA chunk", "RFC 9260 section 3.3.1", tuple(whole.read(_DATA))),
        Layer(
            "DDP Segment Chunk", "RFC 5043 section 5.2.2", tuple(ssn.read([_Row("DDP-SSN", 16)]))
        ),
        *segment(ulpdu.octets, ulpdu.spans),
    ]


def chunk_at(octets: bytes, first: int, chunk: bytes) -> int:
    """Returns where a chunk begins in a frame whose first chunk begins at ``first``."""
    at = first
    while octets[at : at + len(chunk)] != chunk:
        at += (int.from_bytes(octets[at + 2 : at + 4], "big") + 3) // 4 * 4
    return at


# -- DDP and RDMAP --


def segment(octets: bytes, spans: Spans) -> list[Layer]:
    """Returns the layers of a DDP Segment: its header, and RDMAP's in it and after it."""
    whole = _Part(octets, spans)
    found = [Layer("DDP Control Field", "RFC 5041 section 4.1", tuple(whole.read(_CONTROL)))]
    size = header_length(octets)
    rdmap = whole.from_(1, 2).read(_RDMAP)
    if is_tagged(octets):
        fields = whole.from_(2, size).read(_rows(TAGGED_FIELDS[-2:]))
        found.append(Layer("DDP tagged header", "RFC 5041 section 4.2", tuple(fields)))
    else:
        rdmap += whole.from_(2, 6).read(_INVALIDATE)
        fields = whole.from_(6, size).read(_rows(UNTAGGED_FIELDS[-3:]))
        found.append(Layer("DDP untagged header", "RFC 5041 section 4.3", tuple(fields)))
    found.insert(1, Layer("RDMAP header", "RFC 5040 section 4.1", tuple(rdmap)))
    payload = whole.from_(size)
    if not is_tagged(octets) and len(octets) > size and not any(octets[size - 4 : size]):
        opcode = octets[1] & 15
        if opcode == Message.READ_REQUEST and len(payload.octets) >= ReadRequest.SIZE:
            fields = payload.read(_READ)
            found.append(Layer("Read Request", "RFC 5040 section 4.4", tuple(fields)))
            payload = payload.from_(ReadRequest.SIZE)
        elif opcode == Message.TERMINATE:
            found.append(_terminate(payload))
            payload = payload.from_(len(payload.octets))
    fields = payload.rest("ULP Payload")
    return [*found, *([Layer("Payload", "RFC 5041 section 4.4", tuple(fields))] if fields else [])]


def _terminate(part: _Part) -> Layer:
    fields = part.read(_TERMINATE)
    try:
        meaning = str(Terminate.decode(part.octets))
    except ValueError as error:
        meaning = str(error)
    rest = part.from_(_MARKER).rest("Length and headers")
    return Layer(
        "Terminate", "RFC 5040 section 4.8", (*fields, *rest, Field("Meaning", meaning, part.spans))
    )
