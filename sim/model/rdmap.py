"""The part of RDMAP (RFC 5040) that decides where octets are placed and which STags stay valid."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeGuard

from ...hdl.spec.ddp import UNEXPECTED_RESPONSE, WRONG_RESPONSE, ErrorNumber
from .ddp import DataSink
from .events import Delivered, Event
from .header import Header, TaggedHeader
from .memory import Access, Memory

__all__ = [
    "Opcode",
    "QueueNumber",
    "RdmapSink",
    "ReadRequest",
    "ReadSink",
    "invalidated_stag",
    "opcode",
    "rsvdulp",
]


class Opcode(IntEnum):
    """The RDMAP opcodes of RFC 5040 section 4.1, figure 3."""

    RDMA_WRITE = 0
    READ_REQUEST = 1
    READ_RESPONSE = 2
    SEND = 3
    SEND_INVALIDATE = 4
    SEND_SOLICITED = 5
    SEND_SOLICITED_INVALIDATE = 6
    TERMINATE = 7


class QueueNumber(IntEnum):
    """The DDP queues that RDMAP uses, RFC 5040 section 4.1."""

    SEND = 0
    READ_REQUEST = 1
    TERMINATE = 2


#: How many buffers RDMAP posts for itself, by queue; each has ``_OWN_LENGTH`` octets.
_OWN = {QueueNumber.READ_REQUEST: 1 << 10, QueueNumber.TERMINATE: 1}
_OWN_LENGTH = 1 << 10
#: The RDMAP Versions that are valid: the RDMA Consortium's, and that of RFC 5040 (section 4.1).
_VERSIONS = (0, 1)
_INVALIDATES = {Opcode.SEND_INVALIDATE, Opcode.SEND_SOLICITED_INVALIDATE}


def opcode(header: Header) -> int:
    """Returns the opcode in the RDMAP Control Field, DDP's first RsvdULP octet: |RV|Rsv|Opcode|."""
    octet = header.rsvdulp if isinstance(header, TaggedHeader) else header.rsvdulp >> 32
    return octet & 0xF


def _is_response(header: Header) -> TypeGuard[TaggedHeader]:
    return isinstance(header, TaggedHeader) and opcode(header) == Opcode.READ_RESPONSE


def rsvdulp(opcode: Opcode, *, tagged: bool, stag: int = 0) -> int:
    """Returns a message's RsvdULP: RDMAP version 1, opcode, and Invalidate STag if untagged."""
    return 0x40 | opcode if tagged else (0x40 | opcode) << 32 | stag


def invalidated_stag(header: Header) -> int | None:
    """Returns the STag that a Send with Invalidate names (RFC 5040 section 4.1), or None.

    Figure 4: a Send has Queue Number 0. On another queue its opcode is an error, as another version
    is (section 7.2), and the STag stays valid.
    """
    if isinstance(header, TaggedHeader) or header.qn != QueueNumber.SEND:
        return None
    if opcode(header) not in _INVALIDATES or header.rsvdulp >> 38 not in _VERSIONS:
        return None
    return header.rsvdulp & 0xFFFFFFFF


@dataclass(frozen=True)
class ReadRequest:
    """The payload of an RDMA Read Request, RFC 5040 section 4.4.

    The driver has its own, because the model judges the driver.
    """

    sink_stag: int
    sink_to: int
    length: int
    source_stag: int
    source_to: int

    _format = struct.Struct(">IQIIQ")
    SIZE = _format.size

    def encode(self) -> bytes:
        """Returns the payload's 28 octets."""
        return self._format.pack(
            self.sink_stag, self.sink_to, self.length, self.source_stag, self.source_to
        )

    @classmethod
    def decode(cls, message: bytes) -> ReadRequest:
        """Reads the payload of a delivered message."""
        return cls(*cls._format.unpack_from(message))

    def source(self, memory: Memory, *, stream: int, pd: int) -> bytes | None:
        """Returns the octets that the responder sends; None if it must refuse (RFC 5040
        section 5.2.1).
        """
        if not self.length:  # nothing is checked then
            return b""
        region = memory.lookup(self.source_stag)
        if region is None or not region.allows(stream=stream, pd=pd):
            return None
        start = self.source_to - region.to
        if Access.REMOTE_READ not in region.access or not 0 <= start <= region.length - self.length:
            return None
        return memory.octets(region.stag)[start : start + self.length]


class ReadSink(DataSink):
    """A Data Sink that takes Read Responses only as they were asked for.

    The LLP has to hand segments over in order. Parameters are those of :class:`~.ddp.DataSink`.

    Attributes
    ----------
    bounded
        Whether it compares responses with requests; true from the first :meth:`expect` on.
    reads
        The Read Requests that were sent and whose responses were not delivered, the oldest first.
    """

    def __init__(self, memory: Memory, **named: Any) -> None:
        super().__init__(memory, **named)
        self.reads: deque[ReadRequest] = deque()
        self.bounded = False
        self._ended = 0  # reads whose last segment was placed
        self._placed = 0  # octets of the response to the first read after these

    def expect(self, request: ReadRequest) -> None:
        """Notes a Read Request that is being sent."""
        self.bounded = True
        self.reads.append(request)

    def refuse(self, header: Header, length: int) -> ErrorNumber | None:
        """Compares a segment of a Read Response with the oldest Read that has not ended.

        RFC 5040 section 5.2.2: "The Data Sink MAY validate that the STag, Tagged Offset, and length
        of the RDMA Read Response Message are the same as the STag, Tagged Offset, and length
        included in the corresponding RDMA Read Request Message."
        """
        if not self.bounded or not _is_response(header):
            return None
        if self._ended == len(self.reads):
            return UNEXPECTED_RESPONSE
        read = self.reads[self._ended]
        # RFC 5041 section 5.2: STag and TO of a segment without octets are not checked.
        if length and header.stag != read.sink_stag:
            return UNEXPECTED_RESPONSE
        if length and header.to != read.sink_to + self._placed:
            return WRONG_RESPONSE
        self._placed += length
        if self._placed > read.length or (header.last and self._placed < read.length):
            return WRONG_RESPONSE
        if header.last:
            self._ended, self._placed = self._ended + 1, 0
        return None

    def receive(self, segment: bytes, order: int | None = None) -> list[Event]:
        """Takes a DDP Segment from the LLP; a response that is delivered ends its Read."""
        events = super().receive(segment, order)
        for event in events:
            if self.bounded and isinstance(event, Delivered) and _is_response(event.header):
                self.reads.popleft()
                self._ended -= 1
        return events


class RdmapSink(ReadSink):
    """A Data Sink that has RDMAP's queues and executes Send with Invalidate.

    The sink posts the buffers for Read Requests and Terminates itself; the ULP posts those for
    Sends.
    """

    def __init__(self, memory: Memory, *, stream: int = 0, pd: int = 0, first: int = 0) -> None:
        super().__init__(memory, stream=stream, pd=pd, first=first)
        self.open_queue(QueueNumber.SEND)
        for qn, count in _OWN.items():
            self.post(qn, _OWN_LENGTH, count)

    def receive(self, segment: bytes, order: int | None = None) -> list[Event]:
        """Takes a DDP Segment from the LLP, and revokes the STag that a delivered Send
        invalidates.
        """
        events = super().receive(segment, order)
        for event in events:
            if not isinstance(event, Delivered):
                continue
            stag = invalidated_stag(event.header)
            region = None if stag is None else self.memory.lookup(stag)
            # RFC 5040 section 7.2: "The STag MUST be associated to this RDMAP Stream."
            if region is not None and region.allows(stream=self.stream, pd=self.pd):
                # Section 5.3: the STag is invalidated when the message is delivered.
                self.memory.revoke(region.stag)
            if not isinstance(event.header, TaggedHeader) and event.header.qn in _OWN:
                self.post(event.header.qn, _OWN_LENGTH)
        return events
