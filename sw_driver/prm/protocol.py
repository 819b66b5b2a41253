"""The messages between manager and client over a Unix stream socket.

A frame consists of the number of octets that follow (32 bits), a kind (8), a number (32), and a
body whose layout depends on the kind; all are little-endian. A client's first request is HELLO,
whose frame is the same in all versions. Each request gets one answer with the same number; answers
may come in any order, and an answer of number 0 is an error of the connection. The client may use a
number again after its answer. A handle has 64 bits and always names the same object. One file
descriptor comes with MEMORY, and one with or before each PASSED, in their order (SCM_RIGHTS).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from ...hdl.spec.ddp import ErrorNumber, ErrorType
from ..base.errors import (
    CompletionOverrun,
    ErrorEvent,
    InvalidRequest,
    ResourceExhausted,
    RnicError,
    RnicTimeout,
    StateError,
    StreamError,
    TransportError,
    UnsupportedDevice,
)

VERSION = 4
MAGIC = b"ddp-rnic"
#: How many octets follow the length in the longest request and in the longest answer.
LONGEST_REQUEST, LONGEST_ANSWER = 64, 1 << 16
#: Most completions or events in one answer.
MOST = 1024
#: Most milliseconds that a WAIT may ask for.
LONGEST_WAIT = 1000
_LENGTH = struct.Struct("<I")
_FRAME = struct.Struct("<BI")
_TEXT = 1000


class ProtocolError(RnicError):
    """The other end breaks the protocol; the connection cannot be used any more."""


class StreamStopped(RnicError):
    """The manager has stopped a stream whose peer used more than its share; close the stream."""

    def __init__(self, stream: int, text: str) -> None:
        super().__init__(text)
        self.stream = stream


class Kind(IntEnum):
    """The kind of a frame: a request, or an answer."""

    HELLO = 1
    MEMORY = 2
    DOMAIN = 3
    QUEUE = 4
    STREAM = 5
    REGION = 6
    CLOSE = 7
    SYNC = 8
    POST = 9
    POLL = 10
    WAIT = 11
    STATE = 12
    EVENTS = 13
    PAGE = 14
    DIRECT_QUEUE = 15
    SEND_RING = 16
    BELL = 17
    SENT = 18
    ANSWER = 128  #: the request was done
    ERROR = 129  #: the request failed
    PASSED = 130  #: the request was done, and a file descriptor has come


class Object(IntEnum):
    """The kind of object that a handle names. Handle 0 names no object."""

    MEMORY = 1
    DOMAIN = 2
    QUEUE = 3
    STREAM = 4
    REGION = 5


class Hello(NamedTuple):
    magic: bytes = MAGIC
    version: int = VERSION


class Memory(NamedTuple):
    pass


class Domain(NamedTuple):
    pass


class Queue(NamedTuple):
    cqe: int


class Stream(NamedTuple):
    domain: int
    queue: int
    crc: bool
    markers: bool
    queues: int  #: bit n is set if Queue Number n is valid


class Region(NamedTuple):
    domain: int
    memory: int
    offset: int
    length: int
    access: int
    to: int
    stream: int  #: handle of the stream that the region is bound to, or 0


class Close(NamedTuple):
    object: int
    handle: int


class Sync(NamedTuple):
    region: int
    push: bool  #: True: copy to the device; False: copy from the device
    offset: int
    length: int


class Post(NamedTuple):
    stream: int
    qn: int
    object: int  #: REGION, MEMORY, or 0 for a buffer of no octets
    handle: int
    offset: int
    length: int
    wr_id: int


class Poll(NamedTuple):
    queue: int
    most: int
    errors: bool  #: where there are no completions, the answer may be a stream's error


class Wait(NamedTuple):
    queue: int
    milliseconds: int
    taken: int = 0  #: of a direct queue: completions that the client has taken, modulo 2**16


class State(NamedTuple):
    stream: int


class Events(NamedTuple):
    pass


class Page(NamedTuple):
    pass


class DirectQueue(NamedTuple):
    size: int  #: base-2 logarithm of its entries


class SendRing(NamedTuple):
    stream: int
    queue: int  #: a direct queue
    memory: int
    offset: int
    size: int  #: base-2 logarithm of its entries
    mulpdu: int
    crc: bool
    markers: bool


class Bell(NamedTuple):
    doorbell: int  #: its index in DOORBELLS of the register map
    value: int


class Sent(NamedTuple):
    stream: int


Request = (
    Hello | Memory | Domain | Queue | Stream | Region | Close | Sync | Post | Poll | Wait | State
    | Events | Page | DirectQueue | SendRing | Bell | Sent
)  # fmt: skip

#: The class of each request, and the layout of its fields in the body.
LAYOUTS: dict[Kind, tuple[type[Request], struct.Struct]] = {
    Kind.HELLO: (Hello, struct.Struct("<8sH")),
    Kind.MEMORY: (Memory, struct.Struct("<")),
    Kind.DOMAIN: (Domain, struct.Struct("<")),
    Kind.QUEUE: (Queue, struct.Struct("<I")),
    Kind.STREAM: (Stream, struct.Struct("<QQ??B")),
    Kind.REGION: (Region, struct.Struct("<QQQQBQQ")),
    Kind.CLOSE: (Close, struct.Struct("<BQ")),
    Kind.SYNC: (Sync, struct.Struct("<Q?QQ")),
    Kind.POST: (Post, struct.Struct("<QBBQQQQ")),
    Kind.POLL: (Poll, struct.Struct("<QH?")),
    Kind.WAIT: (Wait, struct.Struct("<QIH")),
    Kind.STATE: (State, struct.Struct("<Q")),
    Kind.EVENTS: (Events, struct.Struct("<")),
    Kind.PAGE: (Page, struct.Struct("<")),
    Kind.DIRECT_QUEUE: (DirectQueue, struct.Struct("<B")),
    Kind.SEND_RING: (SendRing, struct.Struct("<QQQQBH??")),
    Kind.BELL: (Bell, struct.Struct("<BI")),
    Kind.SENT: (Sent, struct.Struct("<Q")),
}
_KINDS = {layout[0]: kind for kind, layout in LAYOUTS.items()}


def frame(kind: Kind, number: int, body: bytes) -> bytes:
    """Returns the octets of a frame."""
    return _LENGTH.pack(_FRAME.size + len(body)) + _FRAME.pack(kind, number) + body


def encode(number: int, request: Request) -> bytes:
    """Returns the frame of a request."""
    kind = _KINDS[type(request)]
    try:
        return frame(kind, number, LAYOUTS[kind][1].pack(*request))
    except struct.error as error:
        raise InvalidRequest(
            f"{kind.name} cannot hold the values {tuple(request)}: {error}"
        ) from error


def decode(kind: int, body: bytes) -> Request:
    """Returns the request of a frame."""
    if kind not in LAYOUTS:
        raise ProtocolError(f"there is no request of kind {kind}")
    make, layout = LAYOUTS[Kind(kind)]
    if len(body) != layout.size:
        raise ProtocolError(
            f"{Kind(kind).name} must have a body of {layout.size} octets, not {len(body)}"
        )
    request = make(*layout.unpack(body))
    # A flag has one encoding: an octet that is neither 0 nor 1 is refused.
    if layout.pack(*request) != body:
        raise ProtocolError(f"{Kind(kind).name} has a flag that is neither 0 nor 1")
    return request


class Decoder:
    """Splits a stream of octets into frames.

    Parameters
    ----------
    longest
        How many octets may follow the length of a frame.
    """

    def __init__(self, longest: int) -> None:
        self._longest, self._octets = longest, bytearray()

    def feed(self, octets: bytes) -> None:
        """Takes octets."""
        self._octets += octets

    def __len__(self) -> int:
        return len(self._octets)

    @property
    def whole(self) -> bool:
        """True if the next frame is complete, or its length is not allowed."""
        if len(self._octets) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(self._octets)
        return not self._fits(length) or len(self._octets) >= _LENGTH.size + length

    def _fits(self, length: int) -> bool:
        return bool(_FRAME.size <= length <= self._longest)

    def take(self) -> tuple[int, int, bytes] | None:
        """Returns kind, number and body of the next frame, or None if it is not complete."""
        if not self.whole:
            return None
        (length,) = _LENGTH.unpack_from(self._octets)
        if not self._fits(length):
            raise ProtocolError(
                f"a frame must have from {_FRAME.size} to {self._longest} octets after its length,"
                f" not {length}"
            )
        end = _LENGTH.size + length
        kind, number = _FRAME.unpack_from(self._octets, _LENGTH.size)
        body = bytes(self._octets[_LENGTH.size + _FRAME.size : end])
        del self._octets[:end]
        return kind, number, body


# -- bodies of answers ----------------------------------------------------------------------------

#: The answer to HELLO: the client's share, in the form of the device's capabilities.
CAPABILITIES = struct.Struct("<8I")
HANDLE = struct.Struct("<Q")
#: The answer to STREAM: its handle and the device's number of the stream; to REGION: its handle and
#: its STag, or 0.
NAMED = struct.Struct("<QI")
#: The answer to POST: the message's MSN, and the number that a completion in a direct queue has.
POSTED = struct.Struct("<II")
#: The descriptor that has come with PASSED, which the receiver puts after the answer's body.
DESCRIPTOR = struct.Struct("=i")
#: The answer to PAGE: the number of the doorbell page, and whether its descriptor has come.
PAGE = struct.Struct("<B?")
#: The answer to DIRECT_QUEUE, with its ring's descriptor: the queue's handle, and its number in the
#: device.
DIRECT = struct.Struct("<QB")
#: After the ring, in its memory: completions that the manager has seen, modulo 2**16. The client
#: gives back none that the manager has not seen.
SEEN = struct.Struct("<I")
#: The answer to CLOSE of a stream: how many of its completions wait to be taken.
LEFT = struct.Struct("<I")
READY = struct.Struct("<?")
STATE = struct.Struct("<B")
_EVENT = struct.Struct("<IBBHIB18s")


class Done(NamedTuple):
    """A completion as it is sent to the client."""

    stream: int
    status: int
    opcode: int
    qn: int
    wr_id: int
    byte_len: int
    msn: int
    stag: int
    region: int
    rsvdulp: int
    to: int


_DONE = struct.Struct("<QBBBQIIIQQI")


def encode_done(completions: Iterable[Done]) -> bytes:
    """Returns the body of an answer to POLL."""
    return b"".join(_DONE.pack(*each) for each in completions)


def decode_done(body: bytes) -> list[Done]:
    """Reads the body of an answer to POLL."""
    return [Done(*each) for each in _unpack_all(_DONE, body)]


def encode_sent(fpdus: Iterable[bytes]) -> bytes:
    """Returns the body of an answer to SENT."""
    return b"".join(_LENGTH.pack(len(each)) + each for each in fpdus)


def decode_sent(body: bytes) -> list[bytes]:
    """Reads the body of an answer to SENT."""
    fpdus, at = [], 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size + length
        fpdus.append(body[at - length : at])
    return fpdus


def encode_event(event: ErrorEvent) -> bytes:
    """Returns an error event as a fixed number of octets."""
    return _EVENT.pack(
        event.stream, event.number.type, event.number.code, event.length, event.sequence,
        len(event.header), event.header,
    )  # fmt: skip


def decode_events(body: bytes) -> list[ErrorEvent]:
    """Reads consecutive error events."""
    return [
        ErrorEvent(stream, ErrorNumber(ErrorType(kind), code), length, sequence, header[:size])
        for stream, kind, code, length, sequence, size, header in _unpack_all(_EVENT, body)
    ]


def _unpack_all(layout: struct.Struct, body: bytes) -> list[tuple]:
    if len(body) % layout.size:
        raise ProtocolError(
            f"an answer must have whole entries of {layout.size} octets, not {len(body)} octets"
        )
    return list(layout.iter_unpack(body))


#: The codes of errors in an ERROR. The first class of which an error is an instance counts.
_ERRORS: tuple[tuple[int, type[RnicError]], ...] = (
    (1, InvalidRequest),
    (2, ResourceExhausted),
    (3, StateError),
    (4, UnsupportedDevice),
    (5, CompletionOverrun),
    (6, RnicTimeout),
    (7, TransportError),
    (8, ProtocolError),
)
_STREAM_ERROR, _STOPPED, _OTHER = 32, 33, 0


def encode_error(error: RnicError) -> bytes:
    """Returns the body of an ERROR."""
    text = str(error).encode()[:_TEXT]
    if isinstance(error, StreamError):
        return bytes([_STREAM_ERROR]) + encode_event(error.event)
    if isinstance(error, StreamStopped):
        return bytes([_STOPPED]) + HANDLE.pack(error.stream) + text
    code = next((code for code, kind in _ERRORS if isinstance(error, kind)), _OTHER)
    return bytes([code]) + text


def decode_error(body: bytes) -> RnicError:
    """Reads the body of an ERROR."""
    code, rest = body[:1], body[1:]
    if code == bytes([_STREAM_ERROR]) and len(rest) == _EVENT.size:
        return StreamError(decode_events(rest)[0])
    if code == bytes([_STOPPED]) and len(rest) >= HANDLE.size:
        (stream,) = HANDLE.unpack_from(rest)
        return StreamStopped(stream, rest[HANDLE.size :].decode(errors="replace"))
    kinds = {bytes([each]): kind for each, kind in _ERRORS}
    return kinds.get(code, RnicError)(rest.decode(errors="replace"))
