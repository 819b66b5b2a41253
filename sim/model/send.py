"""The send ring of a stream: work requests become DDP Segments, one at a time (RFC 5041 section
5.2, RFC 5040 section 4.4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Protocol

from .ddp import DataSource
from .events import ProtocolError
from .memory import Memory
from .rdmap import QueueNumber, ReadRequest, ReadSink

__all__ = ["Kind", "Piece", "SendQueue", "WorkRequest"]


class Kind(IntEnum):
    """The kind of a message to send."""

    TAGGED = 0
    UNTAGGED = 1
    READ = 2
    CONTROL = 3


class Piece(Protocol):
    """A part of a region: ``length`` octets from the Tagged Offset ``to`` on."""

    @property
    def stag(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def to(self) -> int: ...


class WorkRequest(Protocol):
    """A message to send, with pieces or, inline, ``octets``. The other members are those of its
    segments' headers; ``rsvdulp`` has 40 bits.
    """

    @property
    def kind(self) -> int: ...
    @property
    def pieces(self) -> Sequence[Piece]: ...
    @property
    def octets(self) -> bytes: ...
    @property
    def rsvdulp(self) -> int: ...
    @property
    def qn(self) -> int: ...
    @property
    def stag(self) -> int: ...
    @property
    def to(self) -> int: ...


class SendQueue:
    """Sends the messages that were posted to one DDP Stream, in the order in which they were
    posted.

    Parameters
    ----------
    source
        The stream's Data Source. Its ``mulpdu`` may change between any two segments.
    memory
        The regions that the pieces of messages name.
    stream, pd
        DDP Stream ID and Protection Domain ID of the stream.
    sink
        The other half of the stream, which has to know the Reads that are sent.
    ord
        How many Reads may be outstanding, with a ``sink``.
    receives
        False: the stream only sends, and a READ ends with an error. RFC 5040 section 5.2: "The RDMA
        Read operation MUST consist of a single RDMA Read Request Message and a single RDMA Read
        Response Message", and nobody would receive the second.
    """

    def __init__(
        self,
        source: DataSource,
        memory: Memory,
        *,
        stream: int = 0,
        pd: int = 0,
        sink: ReadSink | None = None,
        ord: int = 0,
        receives: bool = True,
    ) -> None:
        self.source = source
        self.memory = memory
        self.stream = stream
        self.pd = pd
        self.sink = sink
        self.ord = ord
        self.receives = receives
        self._posted: deque[WorkRequest] = deque()
        self._segments: Iterator[bytes] = iter(())

    def post(self, message: WorkRequest) -> None:
        """Adds a message."""
        if message.kind == Kind.CONTROL:
            raise ValueError("A CONTROL message must be sent by the session, not by its stream")
        self._posted.append(message)

    @property
    def waits(self) -> bool:
        """True if the next message is a READ and as many Reads as ORD are outstanding.

        RFC 5040 section 6.1: "For outbound RDMA Read Requests, the RDMAP layer MUST NOT exceed the
        maximum number of outstanding, outbound RDMA Read Requests that were negotiated".
        """
        return (
            self.sink is not None
            and bool(self._posted)
            and self._posted[0].kind == Kind.READ
            and len(self.sink.reads) >= self.ord
        )

    def send(self) -> bytes | None:
        """Returns the next segment, or None if all messages have been sent or the next one waits.

        Raises
        ------
        ProtocolError
            The stream may not read a piece of the next message, or the message is a READ whose
            response nobody would receive. Nothing of the message is sent.
        """
        while (segment := next(self._segments, None)) is None:
            if not self._posted or self.waits:
                return None
            self._segments = self._begin(self._posted.popleft())
        return segment

    def _begin(self, message: WorkRequest) -> Iterator[bytes]:
        if message.kind == Kind.READ and not self.receives:
            raise ProtocolError("A READ must be sent on a stream that receives its response")
        if message.kind == Kind.READ:
            (sink,) = message.pieces
            # The sink's STag goes to the peer, which checks nothing of it.
            request = ReadRequest(sink.stag, sink.to, sink.length, message.stag, message.to)
            if self.sink is not None:
                self.sink.expect(request)
            return self.source.begin_untagged(
                QueueNumber.READ_REQUEST, request.encode(), rsvdulp=message.rsvdulp
            )
        octets = message.octets or b"".join(map(self._read, message.pieces))
        if message.kind == Kind.TAGGED:
            return self.source.begin_tagged(
                message.stag, message.to, octets, rsvdulp=message.rsvdulp >> 32
            )
        return self.source.begin_untagged(message.qn, octets, rsvdulp=message.rsvdulp)

    def _read(self, piece: Piece) -> bytes:
        if not piece.length:
            return b""
        region = self.memory.lookup(piece.stag)
        if region is None or not region.allows(stream=self.stream, pd=self.pd):
            raise ProtocolError(f"STag {piece.stag:#010x} must be valid for stream {self.stream}")
        start = piece.to - region.to
        if not 0 <= start <= region.length - piece.length:
            raise ProtocolError(
                f"a piece of {piece.length} octets at TO {piece.to:#x} must lie in the region of"
                f" STag {piece.stag:#010x}"
            )
        return self.memory.octets(region.stag)[start : start + piece.length]
