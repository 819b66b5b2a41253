"""DDP Streams and their segments, as they arrive: what the LLPs of a capture have in common."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import google_crc32c

from ...hdl.spec.ddp import TAGGED_HEADER, UNTAGGED_HEADER, VERSION
from .connections import Endpoint

MARKER_SPACING = 512  # RFC 5044 section 4.3


#: How many untagged queues a stream has: Queue Numbers 0 to 3, of which RDMAP uses three (RFC 5040
#: section 4.1).
QUEUES = 4


@dataclass(frozen=True)
class Stream:
    """A DDP Stream: one direction of a connection. ``number`` is its number in the simulated RNIC.

    The two streams of a connection have the same ``connection`` number. For a stream whose
    beginning the capture lacks, ``position`` is its first position in the MPA stream, and ``msns``
    has pairs of a Queue Number and the first MSN on that queue, where that is not 1. ``begun``: the
    first message on each queue may have begun before.
    """

    number: int
    connection: int
    source: Endpoint
    destination: Endpoint
    crc: bool
    markers: bool
    position: int = field(default=0, kw_only=True)
    msns: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)
    begun: bool = field(default=False, kw_only=True)
    #: The order of its first segment.
    first_order: ClassVar[int] = 0

    def first_msn(self, qn: int) -> int:
        """Returns the MSN of the first message on a queue."""
        return dict(self.msns).get(qn, 1)

    def __str__(self) -> str:
        return f"{self.source} > {self.destination}"


class Tagged(NamedTuple):
    """The fields of a tagged segment, RFC 5041 section 4.2."""

    stag: int
    to: int
    length: int


class Untagged(NamedTuple):
    """An untagged segment as RDMAP sees it. RFC 5041 section 4.3, RFC 5040 section 4.1.

    ``msn`` is the message's number on its queue, and ``mo`` the payload's offset in the message.
    """

    opcode: int
    invalidate: int
    queue: int
    last: bool
    payload: bytes
    msn: int
    mo: int


@dataclass(frozen=True)
class Arrival:
    """An FPDU, at the time when its last octet arrived in order.

    ``order`` counts the arrivals at one receiving endpoint, over all of its streams, from 1.
    ``after_segment`` and ``revoke_after_segment`` of a region file refer to this number.
    """

    stream: Stream
    order: int
    frame: int
    position: int
    raw: bytes

    @cached_property
    def ulpdu(self) -> bytes:
        """The DDP Segment without markers; shorter than a header if the FPDU is not sound."""
        octets = self.raw
        if self.stream.markers:
            octets = without_markers(octets, self.position)
        return octets[2 : 2 + int.from_bytes(octets[:2], "big")]

    @cached_property
    def digest_is_good(self) -> bool:
        """True if the CRC matches or none is in use. It covers the markers (RFC 5044 section
        4.4).
        """
        if not self.stream.crc:
            return True
        return google_crc32c.value(self.raw[:-4]) == int.from_bytes(self.raw[-4:], "little")

    @property
    def endpoint(self) -> str:
        """The address of the receiver."""
        return self.stream.destination.address

    @cached_property
    def header(self) -> Tagged | Untagged | None:
        """The segment's header, or None without one of DDP version 1."""
        segment = self.ulpdu
        if not segment or segment[0] & 3 != VERSION:
            return None
        if segment[0] & 0x80:
            if len(segment) < TAGGED_HEADER:
                return None
            stag, to = struct.unpack_from(">IQ", segment, 2)
            return Tagged(stag, to, len(segment) - TAGGED_HEADER)
        if len(segment) < UNTAGGED_HEADER:
            return None
        opcode, invalidate, queue, msn, mo = struct.unpack_from(">BIIII", segment, 1)
        last, payload = bool(segment[0] & 0x40), segment[UNTAGGED_HEADER:]
        return Untagged(opcode & 15, invalidate, queue, last, payload, msn, mo)


def without_markers(raw: bytes, position: int) -> bytes:
    """Returns the octets of an FPDU at ``position`` of the MPA stream without its markers."""
    pieces = []
    at = 0
    while at < len(raw):
        into = (position + at) % MARKER_SPACING
        if into == 0:
            at += 4
            into = 4
        run = MARKER_SPACING - into
        pieces.append(raw[at : at + run])
        at += run
    return b"".join(pieces)
