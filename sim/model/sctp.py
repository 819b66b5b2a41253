"""RFC 5043: DDP over SCTP, with the part of RFC 9260 that it needs, and RFC 6581 section 7.

From the wire upwards, the layers are :class:`Packet` and its chunks; :class:`Association`, which
checks digest, tags, duplicate TSNs and the adaptation indication; and :class:`Session`, which
checks DDP-SSNs and the legal sequences of messages. A session hands over DDP Segments in the order
of their arrival, each with its number in the sender's order, for :class:`~.ddp.DataSink`.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto

import google_crc32c

from ...hdl.spec.ddp import LLP_CRC, LLP_FRAMING
from .events import ProtocolError

__all__ = [
    "ACCEPTS",
    "ADAPTATION_DDP",
    "ENHANCED_DATA",
    "INITIATES",
    "REJECTS",
    "Association",
    "Chunk",
    "ChunkType",
    "DataChunk",
    "Discarded",
    "Function",
    "InitChunk",
    "Packet",
    "Ppid",
    "SackChunk",
    "SctpEvent",
    "SegmentReceived",
    "Session",
    "SessionControl",
    "SessionIllegal",
    "SessionRefused",
    "State",
    "Tsns",
    "bundle",
    "checksum",
    "decode_payload",
    "listed_addresses",
    "maximum_segment",
    "processed",
    "read_parameters",
]


class ChunkType(IntEnum):
    """The chunk types of RFC 9260 section 3.2, table 1, that the model names."""

    DATA = 0
    INIT = 1
    INIT_ACK = 2
    SACK = 3
    HEARTBEAT = 4
    HEARTBEAT_ACK = 5
    ABORT = 6
    SHUTDOWN = 7
    SHUTDOWN_ACK = 8
    ERROR = 9
    COOKIE_ECHO = 10
    COOKIE_ACK = 11
    ECNE = 12
    CWR = 13
    SHUTDOWN_COMPLETE = 14


class Ppid(IntEnum):
    """The Payload Protocol Identifiers of RFC 5043 section 5.2."""

    SEGMENT = 16
    CONTROL = 17


class Function(IntEnum):
    """The Function Codes of DDP Stream Session Control: RFC 5043 section 5.2.3, and from 5 on
    RFC 6581 section 7.
    """

    INITIATE = 1
    ACCEPT = 2
    REJECT = 3
    TERMINATE = 4
    ENHANCED_INITIATE = 5
    ENHANCED_ACCEPT = 6
    ENHANCED_REJECT = 7


#: The messages that open a session, those that accept it, and those by which the ULP rejects it.
INITIATES = Function.INITIATE, Function.ENHANCED_INITIATE
ACCEPTS = Function.ACCEPT, Function.ENHANCED_ACCEPT
REJECTS = Function.REJECT, Function.ENHANCED_REJECT

ADAPTATION_PARAMETER = 0xC006  #: RFC 5061 section 4.2.6
#: Octets of the addresses of IPv4 and IPv6, by the type of their parameter.
_ADDRESS_OCTETS = {5: 4, 6: 16}
#: The parameters of RFC 9260 sections 3.3.2 and 3.3.3 that are recognized and below 0x8000.
_KNOWN = {5, 6, 7, 8, 9, 11, 12}
ADAPTATION_DDP = 0x00000001  #: RFC 5043 section 5.1
MAXIMUM_PRIVATE_DATA = 512  #: RFC 5043 section 5.2.3
#: RFC 6581 section 9: octets of IRD and ORD "at the beginning of the Private Data field".
ENHANCED_DATA = 4
_TSN = 1 << 32


def checksum(octets: bytes) -> bytes:
    """Returns a packet's CRC32c, lowest octet first, its own field as zeros (RFC 9260
    section 6.8).
    """
    return struct.pack("<I", google_crc32c.value(octets[:8] + bytes(4) + octets[12:]))


# --- chunks, RFC 9260 section 3 ------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """A chunk that the model does not interpret: type, flags, value."""

    type: int
    flags: int = 0
    value: bytes = b""

    def encode(self) -> bytes:
        """Returns the chunk with its padding."""
        return _chunk(self.type, self.flags, self.value)


def _chunk(kind: int, flags: int, value: bytes) -> bytes:
    # Section 3.2: the length counts header and value; zeros pad to four octets and do not count.
    if len(value) + 4 >= 1 << 16:
        raise ValueError(f"chunk must be less than 65536 octets, not {len(value) + 4}")
    return struct.pack(">BBH", kind, flags, len(value) + 4) + value + bytes(-len(value) % 4)


@dataclass(frozen=True)
class DataChunk:
    """A DATA chunk, section 3.3.1, with the flags |I|U|B|E|.

    RFC 5043 section 10: "The adaptation layer MUST use the Unordered option on all Data Chunks".
    """

    tsn: int
    stream: int
    ppid: int
    payload: bytes
    ssn: int = 0
    unordered: bool = True
    beginning: bool = True
    ending: bool = True
    immediate: bool = False

    _format = struct.Struct(">IHHI")

    def encode(self) -> bytes:
        """Returns the chunk with its padding."""
        flags = self.immediate << 3 | self.unordered << 2 | self.beginning << 1 | self.ending
        header = self._format.pack(self.tsn, self.stream, self.ssn, self.ppid)
        return _chunk(ChunkType.DATA, flags, header + self.payload)

    @classmethod
    def decode(cls, chunk: Chunk) -> DataChunk:
        """Reads the fields of a chunk."""
        if len(chunk.value) <= cls._format.size:
            raise ProtocolError("a DATA chunk must carry user data", LLP_FRAMING)
        tsn, stream, ssn, ppid = cls._format.unpack_from(chunk.value)
        return cls(
            tsn,
            stream,
            ppid,
            chunk.value[cls._format.size :],
            ssn,
            bool(chunk.flags & 4),
            bool(chunk.flags & 2),
            bool(chunk.flags & 1),
            bool(chunk.flags & 8),
        )


@dataclass(frozen=True)
class InitChunk:
    """An INIT or INIT ACK chunk, sections 3.3.2 and 3.3.3. Its parameters are pairs (type,
    value).
    """

    tag: int
    tsn: int
    outbound: int
    inbound: int
    window: int = 1 << 16
    parameters: tuple[tuple[int, bytes], ...] = ()
    acknowledges: bool = False

    _format = struct.Struct(">IIHHI")

    @property
    def adaptation(self) -> int | None:
        """The Adaptation Indication (RFC 5043 section 5.1), or None without one."""
        for kind, value in self.parameters:
            if kind == ADAPTATION_PARAMETER and len(value) == 4:
                return int.from_bytes(value, "big")
            if kind >> 15 == 0 and kind not in _KNOWN:
                # RFC 9260 section 3.2.1: with 0 as the highest bit of a type that is not
                # recognized, "do not process any further parameters within this chunk".
                break
        return None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that the chunk lists (sections 3.3.2.1.1 and 3.3.2.1.2)."""
        return tuple(listed_addresses(self.parameters))

    def encode(self) -> bytes:
        """Returns the chunk with its padding. The last parameter's padding does not count as
        length.
        """
        value = self._format.pack(self.tag, self.window, self.outbound, self.inbound, self.tsn)
        for kind, parameter in self.parameters:
            value += bytes(-len(value) % 4)
            value += struct.pack(">HH", kind, len(parameter) + 4) + parameter
        return _chunk(ChunkType.INIT_ACK if self.acknowledges else ChunkType.INIT, 0, value)

    @classmethod
    def decode(cls, chunk: Chunk) -> InitChunk:
        """Reads the fields of a chunk."""
        if len(chunk.value) < cls._format.size:
            raise ProtocolError("an INIT chunk must have 16 octets of fixed fields", LLP_FRAMING)
        tag, window, outbound, inbound, tsn = cls._format.unpack_from(chunk.value)
        return cls(
            tag,
            tsn,
            outbound,
            inbound,
            window,
            tuple(read_parameters(chunk.value[cls._format.size :])),
            acknowledges=chunk.type == ChunkType.INIT_ACK,
        )


def listed_addresses(parameters: Iterable[tuple[int, bytes]]) -> Iterator[str]:
    """Yields the addresses in parameters of a chunk."""
    for kind, value in parameters:
        if len(value) == _ADDRESS_OCTETS.get(kind):
            yield str(ipaddress.ip_address(value))


def read_parameters(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields type and value of each parameter (RFC 9260 section 3.2.1), without padding.

    Raises
    ------
    ProtocolError
        A length is wrong.
    """
    while len(octets) >= 4:
        kind, length = struct.unpack_from(">HH", octets)
        if not 4 <= length <= len(octets):
            raise ProtocolError(
                f"an SCTP parameter must have from 4 to {len(octets)} octets, not {length}",
                LLP_FRAMING,
            )
        yield kind, octets[4:length]
        octets = octets[length + -length % 4 :]


@dataclass(frozen=True)
class SackChunk:
    """A SACK chunk, section 3.3.4. ``gaps`` are (start, end) offsets from the cumulative TSN."""

    cumulative: int
    window: int = 1 << 16
    gaps: tuple[tuple[int, int], ...] = ()
    duplicates: tuple[int, ...] = ()

    _format = struct.Struct(">IIHH")

    def encode(self) -> bytes:
        """Returns the chunk."""
        value = self._format.pack(
            self.cumulative, self.window, len(self.gaps), len(self.duplicates)
        )
        value += b"".join(struct.pack(">HH", *gap) for gap in self.gaps)
        value += b"".join(struct.pack(">I", tsn) for tsn in self.duplicates)
        return _chunk(ChunkType.SACK, 0, value)

    @classmethod
    def decode(cls, chunk: Chunk) -> SackChunk:
        """Reads the fields of a chunk."""
        counts = cls._format.unpack_from(chunk.value) if len(chunk.value) >= 12 else None
        if counts is None or len(chunk.value) != 12 + 4 * (counts[2] + counts[3]):
            raise ProtocolError("a SACK chunk must hold the blocks that it counts", LLP_FRAMING)
        rest = chunk.value[12:]
        gaps = tuple(struct.iter_unpack(">HH", rest[: 4 * counts[2]]))
        duplicates = tuple(tsn for (tsn,) in struct.iter_unpack(">I", rest[4 * counts[2] :]))
        return cls(counts[0], counts[1], gaps, duplicates)


AnyChunk = Chunk | DataChunk | InitChunk | SackChunk
_DECODERS: dict[int, Callable[[Chunk], AnyChunk]] = {
    ChunkType.DATA: DataChunk.decode,
    ChunkType.INIT: InitChunk.decode,
    ChunkType.INIT_ACK: InitChunk.decode,
    ChunkType.SACK: SackChunk.decode,
}


@dataclass(frozen=True)
class Packet:
    """An SCTP packet, section 3: common header and chunks."""

    source: int
    destination: int
    tag: int
    chunks: tuple[AnyChunk, ...] = ()

    _format = struct.Struct(">HHI4s")

    def encode(self) -> bytes:
        """Returns the packet with its checksum."""
        octets = self._format.pack(self.source, self.destination, self.tag, bytes(4))
        octets += b"".join(chunk.encode() for chunk in self.chunks)
        return octets[:8] + checksum(octets) + octets[12:]

    @classmethod
    def parse(cls, octets: bytes) -> Packet:
        """Reads a packet; raises :exc:`ProtocolError` where the packet must be discarded."""
        if len(octets) < cls._format.size:
            raise ProtocolError(
                f"an SCTP packet must have at least 12 octets, not {len(octets)}", LLP_FRAMING
            )
        source, destination, tag, digest = cls._format.unpack_from(octets)
        if digest != checksum(octets):
            raise ProtocolError(
                f"SCTP checksum must be {checksum(octets).hex()}, not {digest.hex()}", LLP_CRC
            )
        return cls(source, destination, tag, tuple(_chunks(octets[cls._format.size :])))

    @property
    def processed(self) -> tuple[AnyChunk, ...]:
        """The chunks that a receiver does not discard unread."""
        return self.chunks[: processed([_type(chunk) for chunk in self.chunks])]


def _type(chunk: AnyChunk) -> int:
    """Returns the type of a chunk."""
    match chunk:
        case Chunk():
            return chunk.type
        case InitChunk():
            return ChunkType.INIT_ACK if chunk.acknowledges else ChunkType.INIT
        case DataChunk():
            return ChunkType.DATA
        case SackChunk():
            return ChunkType.SACK


def _chunks(octets: bytes) -> Iterator[AnyChunk]:
    while octets:
        kind, flags, length = struct.unpack_from(">BBH", octets) if len(octets) >= 4 else (0, 0, 0)
        if not 4 <= length <= len(octets):
            raise ProtocolError(
                f"an SCTP chunk must have from 4 to {len(octets)} octets, not {length}", LLP_FRAMING
            )
        chunk = Chunk(kind, flags, octets[4:length])
        yield _DECODERS[kind](chunk) if kind in _DECODERS else chunk
        octets = octets[length + -length % 4 :]


#: Chunk types that, by RFC 9260 section 3, "MUST NOT be bundled with any other chunk".
_ALONE = (ChunkType.INIT, ChunkType.INIT_ACK, ChunkType.SHUTDOWN_COMPLETE)


def processed(kinds: Sequence[int]) -> int:
    """Returns how many chunks of a packet a receiver does not discard; ``kinds`` are their types.

    RFC 9260 section 3.2: a receiver that does not recognize a type whose highest bit is 0 has to
    "discard the unrecognized chunk and all further chunks". Section 12.3: "The receiver of an INIT
    chunk MUST silently discard the INIT chunk and all further chunks if the INIT chunk is bundled
    with other chunks"; the same is done with the other types that must be alone. Section 3.3.7:
    "DATA chunks MUST NOT be bundled with ABORT chunks", and control chunks after an ABORT "will be
    ignored by the receiver".
    """
    for number, kind in enumerate(kinds):
        if kind == ChunkType.ABORT:
            return number + 1
        if (kind in _ALONE and len(kinds) > 1) or (kind < 0x80 and kind not in set(ChunkType)):
            return number
    return len(kinds)


def bundle(
    chunks: Iterable[AnyChunk],
    mtu: int = 1500,
    *,
    ip: int = 20,
) -> list[tuple[AnyChunk, ...]]:
    """Distributes chunks over as few packets within the MTU as keep their order (RFC 9260
    section 6.10).
    """
    packets: list[list[AnyChunk]] = []
    room = 0
    for chunk in chunks:
        size = len(chunk.encode())
        if size > room:
            packets.append([])
            room = mtu - ip - Packet._format.size
        packets[-1].append(chunk)
        room -= size
    return [tuple(packet) for packet in packets]


def maximum_segment(mtu: int, *, ip: int = 20) -> int:
    """Returns the MULPDU for an MTU: the longest DDP Segment whose chunk fits into one packet.

    The chunk counts with its padding to four octets. The result is never below 516 octets (RFC 5043
    section 9).
    """
    padded = (mtu - ip - Packet._format.size) // 4 * 4
    return max(516, padded - 4 - DataChunk._format.size - 2)


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SegmentReceived:
    """A DDP Segment for a session's Data Sink.

    ``order`` is its DDP-SSN, continued past 65535 without wrapping.
    """

    stream: int
    session: int
    order: int
    segment: bytes


@dataclass(frozen=True)
class SessionControl:
    """A control message took effect, in the order of DDP-SSNs. ``sent``: this side sent the
    message.
    """

    stream: int
    session: int
    function: Function
    private_data: bytes
    sent: bool = False


@dataclass(frozen=True)
class SessionIllegal:
    """A chunk fits no legal sequence. RFC 5043 section 6.1: the session MUST be terminated."""

    stream: int
    session: int
    reason: str


@dataclass(frozen=True)
class SessionRefused:
    """An Initiate came while as many others as the limit allows waited for the ULP's decision.

    RFC 5043 section 6.4: "the passive side MUST respond to the Initiate message with a DDP Stream
    Terminate Message."
    """

    stream: int
    session: int


@dataclass(frozen=True)
class Discarded:
    """SCTP discards a packet, or one chunk of it."""

    reason: str


SctpEvent = SegmentReceived | SessionControl | SessionIllegal | SessionRefused | Discarded


# --- DDP-SSN sequencing, RFC 5043 sections 5.2.1 and 10 ------------------------------------------


class Sequencer:
    """Extends 16-bit DDP-SSNs to numbers in the order of submission.

    Section 10: "The DDP-SSN can be used without special logic to determine the submission sequence
    when the maximum number of in-flight messages is less than 32768."
    """

    WINDOW = 32767

    def __init__(self) -> None:
        self.next = 0  #: all numbers below this one have arrived
        self._ahead: set[int] = set()

    def order(self, ssn: int) -> int | None:
        """Returns a DDP-SSN's number in the order of submission; None if used before or out
        of the window.
        """
        distance = (ssn - self.next) % (1 << 16)
        order = self.next + distance
        return order if distance < self.WINDOW and order not in self._ahead else None

    def take(self, order: int) -> range:
        """Notes an arrival, and returns the numbers that are now in sequence."""
        self._ahead.add(order)
        start = self.next
        while self.next in self._ahead:
            self._ahead.remove(self.next)
            self.next += 1
        return range(start, self.next)


# --- sessions, RFC 5043 section 6 ----------------------------------------------------------------


class State(Enum):
    """The state of a DDP Stream Session, seen from one end."""

    CLOSED = auto()
    INITIATE_SENT = auto()
    INITIATE_RECEIVED = auto()
    ESTABLISHED = auto()
    TERMINATE_SENT = auto()
    TERMINATE_RECEIVED = auto()
    #: An Initiate came beyond the limit of section 6.4; the only answer to it is a Terminate.
    REFUSED = auto()
    #: An illegal chunk came; the session's further chunks are dropped until the next Initiate.
    ABORTED = auto()


_SENT, _RECEIVED = True, False
_SEGMENT = None
_S, _F = State, Function

#: All legal sequences, and no others. The chunks of each direction are considered in the order of
#: their DDP-SSNs (section 6.1).
_LEGAL: dict[tuple[State, bool, Function | None], State] = {
    # 6.2, 6.3, 6.4: "Active side sends a DDP Stream Session Initiate message."
    (_S.CLOSED, _SENT, _F.INITIATE): _S.INITIATE_SENT,
    (_S.CLOSED, _RECEIVED, _F.INITIATE): _S.INITIATE_RECEIVED,
    # 6.2: "Passive side sends a DDP Stream Session Accept message."
    (_S.INITIATE_SENT, _RECEIVED, _F.ACCEPT): _S.ESTABLISHED,
    (_S.INITIATE_RECEIVED, _SENT, _F.ACCEPT): _S.ESTABLISHED,
    # 6.3: "Passive side sends a DDP Stream Session Reject message."
    (_S.INITIATE_SENT, _RECEIVED, _F.REJECT): _S.CLOSED,
    (_S.INITIATE_RECEIVED, _SENT, _F.REJECT): _S.CLOSED,
    # 6.4: "the passive side MUST respond to the Initiate message with a DDP Stream Terminate
    # Message."
    (_S.INITIATE_SENT, _RECEIVED, _F.TERMINATE): _S.CLOSED,
    (_S.INITIATE_RECEIVED, _SENT, _F.TERMINATE): _S.CLOSED,
    (_S.REFUSED, _SENT, _F.TERMINATE): _S.CLOSED,
    # 6.2: "Each side may then send zero or more DDP Segments with increasing DDP-SSNs".
    (_S.ESTABLISHED, _SENT, _SEGMENT): _S.ESTABLISHED,
    (_S.ESTABLISHED, _RECEIVED, _SEGMENT): _S.ESTABLISHED,
    # 6.2: "The final User Data Chunk for each side MAY be a DDP Stream Terminate. At least one side
    # MUST send a DDP Stream Terminate." The other side's last segments may still be on their way.
    (_S.ESTABLISHED, _SENT, _F.TERMINATE): _S.TERMINATE_SENT,
    (_S.ESTABLISHED, _RECEIVED, _F.TERMINATE): _S.TERMINATE_RECEIVED,
    (_S.TERMINATE_SENT, _RECEIVED, _SEGMENT): _S.TERMINATE_SENT,
    (_S.TERMINATE_RECEIVED, _SENT, _SEGMENT): _S.TERMINATE_RECEIVED,
    (_S.TERMINATE_SENT, _RECEIVED, _F.TERMINATE): _S.CLOSED,
    (_S.TERMINATE_RECEIVED, _SENT, _F.TERMINATE): _S.CLOSED,
    # RFC 6581 section 7: "as with Section 6.2 of [RFC5043], but with the extended opcodes as
    # defined in this document", and likewise "with Section 6.3".
    (_S.CLOSED, _SENT, _F.ENHANCED_INITIATE): _S.INITIATE_SENT,
    (_S.CLOSED, _RECEIVED, _F.ENHANCED_INITIATE): _S.INITIATE_RECEIVED,
    (_S.INITIATE_SENT, _RECEIVED, _F.ENHANCED_ACCEPT): _S.ESTABLISHED,
    (_S.INITIATE_RECEIVED, _SENT, _F.ENHANCED_ACCEPT): _S.ESTABLISHED,
    (_S.INITIATE_SENT, _RECEIVED, _F.ENHANCED_REJECT): _S.CLOSED,
    (_S.INITIATE_RECEIVED, _SENT, _F.ENHANCED_REJECT): _S.CLOSED,
}
#: The answers that fit one kind of Initiate alone: whether it is the enhanced one. A Reject fits
#: both: the Enhanced Reject indicates "rejection of enhanced DDP stream session for a configuration
#: that would have been accepted for unenhanced DDP stream session negotiation", and no other one.
_FITS = {_F.ACCEPT: False, _F.ENHANCED_ACCEPT: True, _F.ENHANCED_REJECT: True}
#: Once one Terminate has ended a session, the next session may follow immediately.
_REUSABLE = {State.CLOSED, State.TERMINATE_SENT, State.TERMINATE_RECEIVED}
_PLACES = {State.ESTABLISHED, State.TERMINATE_SENT}
#: The states in which a message after a direction's first one, a Segment or a Terminate, can have
#: been sent. In INITIATE_SENT and INITIATE_RECEIVED that message overtook the Accept.
_FOLLOWS = {
    _RECEIVED: {State.INITIATE_SENT, State.ESTABLISHED, State.TERMINATE_SENT},
    _SENT: {State.INITIATE_RECEIVED, State.ESTABLISHED, State.TERMINATE_RECEIVED},
}


class _Direction:
    """The chunks of one direction of a session."""

    def __init__(self) -> None:
        self.sequencer = Sequencer()
        # Chunks that wait for earlier ones: message and body, by order.
        self.waiting: dict[int, tuple[Function | None, bytes]] = {}
        self.terminate: int | None = None  # the order of the Terminate, once that is known
        self.highest = -1  # the highest order received


class Session:
    """The DDP Stream Sessions of one DDP stream at one end, one after another.

    Parameters
    ----------
    stream
        SCTP Stream Identifier of both directions (section 6).
    maximum
        Octets of the longest DDP Segment to send (section 9).
    """

    def __init__(self, stream: int, *, maximum: int = maximum_segment((1 << 16) - 1)) -> None:
        self.stream = stream
        self.maximum = maximum
        self.state = State.CLOSED
        self.number = -1  #: the session's number on this stream, from 0
        self.enhanced = False  #: an Enhanced Initiate opened the session (RFC 6581 section 7)
        #: DDP-SSNs that this side sent and that the peer's SCTP has not acknowledged.
        self.outstanding: set[int] = set()
        self._clear()

    @property
    def silent(self) -> bool:
        """True if an illegal chunk ended the session on this side."""
        return self.state is State.ABORTED

    # The sending half: it makes the payloads of DATA chunks with PPID 16 and 17.

    def segment(self, segment: bytes) -> bytes:
        """Returns the payload of a DDP Segment Chunk (section 5.2.2)."""
        if len(segment) > self.maximum:
            raise ValueError(
                f"DDP Segment must be at most {self.maximum} octets, not {len(segment)}"
            )
        return self._send(_SEGMENT, segment)

    def control(self, function: Function, private_data: bytes = b"") -> bytes:
        """Returns the payload of a DDP Stream Session Control chunk (section 5.2.3).

        The Private Data of an Enhanced Initiate and an Enhanced Accept begins with IRD and ORD
        (RFC 6581 section 9).
        """
        if len(private_data) > MAXIMUM_PRIVATE_DATA:
            raise ValueError(
                f"Private Data must be at most {MAXIMUM_PRIVATE_DATA} octets, "
                f"not {len(private_data)}"
            )
        if private_data and function is Function.TERMINATE:
            raise ValueError(
                f"Private Data must not be included in a Terminate, not {len(private_data)} octets"
            )
        enhanced = function in (Function.ENHANCED_INITIATE, Function.ENHANCED_ACCEPT)
        if enhanced and len(private_data) < ENHANCED_DATA:
            # RFC 6581 section 7: Private Data "MUST follow the enhanced RDMA connection
            # establishment data".
            raise ValueError(
                f"Private Data of {_name(function)} must begin with the {ENHANCED_DATA} octets of"
                f" IRD and ORD, not have {len(private_data)}"
            )
        return self._send(function, struct.pack(">H", function) + private_data)

    def acknowledge(self, *ssns: int) -> None:
        """Notes that the peer's SCTP acknowledged these DDP-SSNs; without any, all that are
        outstanding.
        """
        self.outstanding -= set(ssns) or set(self.outstanding)

    def _send(self, message: Function | None, body: bytes) -> bytes:
        if self.state is State.ABORTED and message is Function.TERMINATE:
            # Section 6.1: an illegal chunk asks for this Terminate. It ends the session on this
            # side.
            ssn = self._out.sequencer.next & 0xFFFF
            self.outstanding.add(ssn)
            return struct.pack(">H", ssn) + body
        if message in INITIATES and self.reusable:
            # Section 6.6: "A DDP Stream Identifier MUST NOT be reused for another DDP Stream
            # Session while any Data Chunk from a prior session might be outstanding."
            if self.outstanding:
                raise ProtocolError(
                    f"Initiate must not be sent while {len(self.outstanding)} Data Chunks of the"
                    f" last session on stream {self.stream} are not acknowledged (section 6.6)"
                )
            self._restart()
        elif reason := self._illegal(_SENT, message):
            raise ProtocolError(reason)
        order = self._out.sequencer.next
        self._out.sequencer.take(order)
        self._out.highest = order
        self.outstanding.add(order & 0xFFFF)
        self._step(_SENT, message)
        return struct.pack(">H", order & 0xFFFF) + body

    # The receiving half.

    def receive(
        self, ppid: int, payload: bytes, *, unordered: bool = True, room: bool = True
    ) -> list[SctpEvent]:
        """Takes the payload of a DATA chunk whose TSN is new, and returns the events that it
        causes.

        ``room``: one more Initiate may wait for the ULP's decision (section 6.4).
        """
        return self._take(_RECEIVED, ppid, payload, unordered, room)

    def observe(self, ppid: int, payload: bytes, *, unordered: bool = True) -> list[SctpEvent]:
        """Notes a payload that this side sent by other means, as in the replay of a capture."""
        return self._take(_SENT, ppid, payload, unordered, True)

    def abort(self, reason: str) -> list[SctpEvent]:
        """Ends the session, as section 6.1 asks for after a chunk that fits no legal sequence."""
        if self.silent:
            return []
        self.state = State.ABORTED
        return [SessionIllegal(self.stream, self.number, reason)]

    def _take(
        self, sent: bool, ppid: int, payload: bytes, unordered: bool, room: bool
    ) -> list[SctpEvent]:
        if not unordered:
            return self.abort("a Data Chunk must have the Unordered option (section 10)")
        try:
            ssn, message, body = decode_payload(ppid, payload)
        except ProtocolError as error:
            return self.abort(str(error))
        if message in INITIATES and ssn == 0 and self.reusable:
            # Section 6.1: "The DDP-SSN is reset to zero at the beginning of each DDP Stream
            # Session."
            self._restart()
        if self.silent:
            return []
        direction = self._out if sent else self._in
        order = direction.sequencer.order(ssn)
        if order is None:
            return self.abort(
                f"DDP-SSN {ssn} was used before, or is out of the window, at"
                f" {direction.sequencer.next & 0xFFFF}"
            )
        if reason := self._misfit(sent, message, order):
            return self.abort(reason)
        direction.waiting[order] = message, body
        direction.highest = max(direction.highest, order)
        if message is Function.TERMINATE:
            direction.terminate = order
        events: list[SctpEvent] = []
        if message is _SEGMENT and not sent:
            # Placement needs no order, but it needs a session that was accepted. Segments of the
            # passive side that overtake its Accept wait.
            if self.state in _PLACES:
                events.append(self._segment(order, body))
            else:
                self._held.append((order, body))
        for ready in direction.sequencer.take(order):
            events += self._consider(sent, *direction.waiting.pop(ready), room)
            if self.silent:
                break
        return events

    def _misfit(self, sent: bool, message: Function | None, order: int) -> str | None:
        """Returns why no legal sequence has this message at this position, whatever else may come;
        or None.

        Section 6.1: "If the adaptation layer receives a Payload Data Chunk that conforms to none of
        the enumerated legal patterns, the DDP Stream Session MUST be terminated." So a chunk can be
        found illegal before its turn. The chunk with number 0 has its turn when it arrives, and is
        judged then.
        """
        direction = self._out if sent else self._in
        way, state = "sent" if sent else "received", self.state.name
        if order == 0:
            return "a Segment must not be the first of a session" if message is None else None
        if message not in (_SEGMENT, Function.TERMINATE):
            return f"{_name(message)} must be the first message of its side, not number {order}"
        # Section 6.2: "The final User Data Chunk for each side MAY be a DDP Stream Terminate."
        if direction.terminate is not None and order > direction.terminate:
            return f"number {order} must not follow a Terminate, number {direction.terminate}"
        if message is Function.TERMINATE and direction.highest > order:
            return f"Terminate, number {order}, must be the last, and {direction.highest} came"
        if self.state not in _FOLLOWS[sent]:
            return f"{_name(message)} must not be {way} while the session is {state}"
        return None

    def _consider(
        self, sent: bool, message: Function | None, body: bytes, room: bool
    ) -> list[SctpEvent]:
        """Takes the next chunk of a direction, in the normative sequence of section 6.1."""
        if reason := self._illegal(sent, message):
            return self.abort(reason)
        self._step(sent, message)
        events: list[SctpEvent] = []
        if self.state is State.INITIATE_RECEIVED and not room:
            self.state = State.REFUSED
            events.append(SessionRefused(self.stream, self.number))
        elif message is not _SEGMENT:
            # Section 5.2.3: "Received DDP Stream Session Control messages SHOULD be reported to the
            # ULP."
            events.append(SessionControl(self.stream, self.number, message, body, sent))
        if self.state is State.ESTABLISHED:
            events += [self._segment(order, segment) for order, segment in self._held]
            self._held.clear()
        elif self.state is State.CLOSED and (self._out if sent else self._in).waiting:
            # Sections 6.3 and 6.4: a refusal is the only message of its side.
            return events + self.abort("nothing must follow the refusal of a session")
        return events

    def _illegal(self, sent: bool, message: Function | None) -> str | None:
        """Returns why the session must not have this message now, or None."""
        way = "sent" if sent else "received"
        if (self.state, sent, message) not in _LEGAL:
            return f"{_name(message)} must not be {way} while the session is {self.state.name}"
        if message in _FITS and _FITS[message] != self.enhanced:
            asked = Function.ENHANCED_INITIATE if self.enhanced else Function.INITIATE
            return f"{_name(message)} must not be {way} in answer to {_name(asked)}"
        return None

    def _step(self, sent: bool, message: Function | None) -> None:
        self.state = _LEGAL[self.state, sent, message]
        if message in INITIATES:
            self.enhanced = message is Function.ENHANCED_INITIATE

    @property
    def reusable(self) -> bool:
        """True if an Initiate may open the next session.

        Section 6.6: not "while any Data Chunk from a prior session might be outstanding". A gap in
        the DDP-SSNs shows an outstanding chunk, unless the session was aborted.
        """
        whole = not self._in.waiting and not self._out.waiting
        return self.state is State.ABORTED or (self.state in _REUSABLE and whole)

    def _segment(self, order: int, segment: bytes) -> SegmentReceived:
        return SegmentReceived(self.stream, self.number, order, segment)

    def _restart(self) -> None:
        self.number += 1
        self.state = State.CLOSED
        self.outstanding.clear()
        self._clear()

    def _clear(self) -> None:
        self._in, self._out = _Direction(), _Direction()
        self._held: list[tuple[int, bytes]] = []


def _name(message: Function | None) -> str:
    return "a Segment" if message is _SEGMENT else message.name.replace("_", " ").title()


def decode_payload(ppid: int, payload: bytes) -> tuple[int, Function | None, bytes]:
    """Returns DDP-SSN, function (None for a segment) and body of a Data Chunk (section 5.2)."""
    if ppid == Ppid.SEGMENT and len(payload) >= 2:
        return int.from_bytes(payload[:2], "big"), _SEGMENT, payload[2:]
    if ppid != Ppid.CONTROL or len(payload) < 4:
        raise ProtocolError(
            "a Data Chunk must be a DDP Segment (PPID 16) or a DDP Stream Session "
            "Control message (17) with a DDP-SSN, "
            f"not PPID {ppid} with {len(payload)} octets"
        )
    ssn, code = struct.unpack_from(">HH", payload)
    if code not in set(Function):
        raise ProtocolError(f"Function Code must be from 1 to 7, not {code}")
    function, body = Function(code), payload[4:]
    if len(body) > (0 if function is Function.TERMINATE else MAXIMUM_PRIVATE_DATA):
        raise ProtocolError(f"{_name(function)} must not have {len(body)} octets of Private Data")
    return ssn, function, body


# --- associations --------------------------------------------------------------------------------


class Association:
    """One end of an SCTP association, with the parts that a receiver of DDP needs.

    The caller passes it the packets of both directions: received ones to :meth:`receive`, and those
    that this end sends to :meth:`observe`, from which it learns its tag and its requests.

    Parameters
    ----------
    initiates
        How many Initiates may wait for the ULP's decision. RFC 5043 section 6.4: "There MUST be a
        finite limit on the number of such requests that are pending a ULP decision."
    """

    def __init__(self, *, initiates: int = 16) -> None:
        self.initiates = initiates
        self.tag: int | None = None  #: this end's Verification Tag
        self.peer: InitChunk | None = None
        self.sessions: dict[int, Session] = {}
        # The tags of this end in INITs, and those in INIT ACKs, with the peer's INIT that each
        # answers. RFC 9260 section 5.2.1: if both ends send INITs, either INIT ACK has the tag of
        # its sender's INIT.
        self._asked: set[int] = set()
        self._offers: dict[int, InitChunk] = {}
        self._heard: InitChunk | None = None
        self._in = Tsns(0)
        self._out = Tsns(0)
        # By stream: chunks with numbers up to this one belong to earlier sessions.
        self._since: dict[int, int] = {}

    @property
    def ddp(self) -> bool:
        """True if the peer supports the DDP adaptation.

        RFC 5043 section 11.1: with no indication, or another one, "DDP procedures MUST NOT be
        performed upon this association".
        """
        return self.peer is not None and self.peer.adaptation == ADAPTATION_DDP

    def session(self, stream: int) -> Session:
        """Returns the sessions of a stream."""
        return self.sessions.setdefault(stream, Session(stream))

    def observe(self, packet: bytes) -> list[SctpEvent]:
        """Notes a packet that this end sent, and returns the events that it causes."""
        try:
            parsed = Packet.parse(packet)
        except ProtocolError as error:
            return [Discarded(str(error))]
        events: list[SctpEvent] = []
        for chunk in parsed.processed:
            if isinstance(chunk, InitChunk):
                if not chunk.acknowledges:
                    self._asked.add(chunk.tag)
                elif self._heard is not None:
                    self._offers[chunk.tag] = self._heard
                if self.peer is None:
                    self._out = Tsns(chunk.tsn)
            elif isinstance(chunk, DataChunk) and self.ddp:
                for _, whole in self._out.take(chunk) or ():
                    session = self.session(whole.stream)
                    before = session.number
                    events += session.observe(whole.ppid, whole.payload, unordered=whole.unordered)
                    if session.number != before:
                        self._since[whole.stream] = self._in.highest
        return events

    def receive(self, packet: bytes) -> list[SctpEvent]:
        """Takes a packet from the peer, and returns the events that it causes."""
        try:
            parsed = Packet.parse(packet)
        except ProtocolError as error:
            return [Discarded(str(error))]  # RFC 9260 section 6.8: "silently discarded"
        events: list[SctpEvent] = []
        for chunk in parsed.processed:
            # RFC 9260 section 8.5: an INIT has tag zero, everything else this end's tag.
            if isinstance(chunk, InitChunk) and not chunk.acknowledges:
                if parsed.tag == 0:
                    self._heard = chunk
                continue
            if isinstance(chunk, InitChunk):
                if parsed.tag in self._asked and self.tag is None:
                    self._establish(parsed.tag, chunk)
                continue
            if isinstance(chunk, Chunk) and chunk.type == ChunkType.COOKIE_ECHO:
                offered = self._offers.get(parsed.tag)
                if offered is not None and parsed.tag != self.tag:
                    self._establish(parsed.tag, offered)
            if self.tag is None or parsed.tag != self.tag:
                reason = f"Verification Tag {parsed.tag:#010x} is not this association's"
                return [*events, Discarded(reason)]
            if isinstance(chunk, DataChunk):
                events += self._data(chunk)
        return events

    def _establish(self, tag: int, peer: InitChunk) -> None:
        self.tag, self.peer = tag, peer
        self._in = Tsns(peer.tsn)
        self.sessions.clear()
        self._since.clear()

    def _data(self, chunk: DataChunk) -> list[SctpEvent]:
        if not self.ddp:
            return [Discarded("the association was not set up for DDP")]
        taken = self._in.take(chunk)
        if taken is None:
            return [Discarded(f"TSN {chunk.tsn} came before")]
        return [event for number, whole in taken for event in self._receive(number, whole)]

    def _receive(self, number: int, chunk: DataChunk) -> list[SctpEvent]:
        """Takes a message whose first TSN, continued past 2^32 - 1, is ``number``."""
        session = self.session(chunk.stream)
        if number <= self._since.get(chunk.stream, number - 1):
            # Section 6: "Data Chunks from one DDP Stream Session are never carried over to the next
            # session."
            return session.abort(
                f"TSN {chunk.tsn} is of an earlier session: its stream was used again while it was"
                " outstanding (section 6.6)"
            )
        waiting = sum(each.state is State.INITIATE_RECEIVED for each in self.sessions.values())
        before = session.number
        events = session.receive(
            chunk.ppid, chunk.payload, unordered=chunk.unordered, room=waiting < self.initiates
        )
        if session.number != before:
            self._since[chunk.stream] = number
        return events


class Tsns:
    """Tracks one direction's TSNs (RFC 9260 section 6.2), and joins fragments (section 6.9).

    The numbers continue past 2^32 - 1, so that no TSN of a long association is mistaken for an old
    one.
    """

    def __init__(self, tsn: int) -> None:
        self._next = tsn  # all TSNs before this one have arrived
        self._ahead: set[int] = set()
        self._fragments: dict[int, DataChunk] = {}
        self.highest = tsn - 1  #: the highest number received

    def take(self, chunk: DataChunk) -> list[tuple[int, DataChunk]] | None:
        """Returns the messages that a chunk completes, each with its first TSN; None for a
        known TSN.
        """
        distance = (chunk.tsn - self._next) % _TSN
        number = self._next + distance
        if distance >= _TSN // 2 or number in self._ahead:
            return None
        self._ahead.add(number)
        self.highest = max(self.highest, number)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        if (chunk.beginning and chunk.ending) or not _fragment_of_ddp(chunk):
            return [(number, chunk)]
        # Fragments of a message have consecutive TSNs, the first with B and the last with E.
        self._fragments[number] = chunk
        first = last = number
        while not self._fragments[first].beginning and self._joins(first - 1):
            first -= 1
        while not self._fragments[last].ending and self._joins(last):
            last += 1
        if not (self._fragments[first].beginning and self._fragments[last].ending):
            return []
        parts = [self._fragments.pop(each) for each in range(first, last + 1)]
        payload = b"".join(part.payload for part in parts)
        return [(first, replace(parts[0], payload=payload, ending=True))]

    def _joins(self, number: int) -> bool:
        """Returns whether the fragment ``number`` is here, and so is the next one, of the
        same message.
        """
        one, other = self._fragments.get(number), self._fragments.get(number + 1)
        return (
            one is not None
            and other is not None
            and not one.ending
            and not other.beginning
            and (one.stream, one.ppid) == (other.stream, other.ppid)
        )


def _fragment_of_ddp(chunk: DataChunk) -> bool:
    """Returns True if this fragment can be part of a legal message of DDP."""
    return chunk.unordered and chunk.ppid in (Ppid.SEGMENT, Ppid.CONTROL)
