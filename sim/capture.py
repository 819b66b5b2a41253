"""What the receivers of a capture's iWARP connections saw: MPA streams, in order, put together from
TCP segments; and the frames with SCTP, as they are.

:func:`read_capture` finds MPA start-up on any port, in any TCP connection, and gives each direction
of the connection as the octets after start-up, each with the frame that made it available to the
receiver in order. The order of frames over all directions is the order in which things happened.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .model.events import ProtocolError
from .model.mpa import StartupFrame
from .pcap import TCP, CaptureError, Frame, IpPacket, internet_sum, ip_packet, read_frames
from .sctp_frames import SctpFrame, sctp_frame

__all__ = [
    "Capture",
    "CaptureError",
    "Chunk",
    "Connection",
    "Direction",
    "Endpoint",
    "read_capture",
]

_REQUEST_KEY = b"MPA ID Req Frame"
_REPLY_KEY = b"MPA ID Rep Frame"
_LONGEST_STARTUP = 20 + 512  # octets, RFC 5044 section 7.1.1
_SYN, _RST, _ACK = 0x02, 0x04, 0x10


class Endpoint(NamedTuple):
    """One end of a TCP connection."""

    address: str
    port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


@dataclass(frozen=True)
class Chunk:
    """Octets of one direction that a frame made available in order.

    ``position`` is that of the first octet in the MPA stream: 0 is the first octet after start-up.
    """

    frame: int
    time: float
    position: int
    octets: bytes


@dataclass(frozen=True)
class Direction:
    """One direction of a connection after MPA start-up: a DDP Stream into ``destination``.

    ``crc`` and ``markers`` are as negotiated (RFC 5044 section 7.1): CRC if either side asked for
    it, markers if the receiver did. ``behind_hole`` counts captured octets that lie behind octets
    the capture lacks."""

    source: Endpoint
    destination: Endpoint
    crc: bool
    markers: bool
    chunks: tuple[Chunk, ...]
    behind_hole: int = 0

    @property
    def octets(self) -> bytes:
        """All octets after start-up."""
        return b"".join(chunk.octets for chunk in self.chunks)


@dataclass(frozen=True)
class Connection:
    """A TCP connection that went through MPA start-up. The initiator's direction comes first."""

    request: StartupFrame
    reply: StartupFrame
    directions: tuple[Direction, Direction]

    @property
    def initiator(self) -> Endpoint:
        return self.directions[0].source

    @property
    def responder(self) -> Endpoint:
        return self.directions[0].destination

    @property
    def rejected(self) -> bool:
        return self.reply.reject


@dataclass(frozen=True)
class Capture:
    """A capture's MPA connections in order of their first frame, its frames with SCTP, and
    sentences about what was left out.
    """

    path: Path
    frames: int
    connections: tuple[Connection, ...]
    notes: tuple[str, ...] = ()
    sctp: tuple[SctpFrame, ...] = ()

    @property
    def directions(self) -> list[Direction]:
        """Both directions of every connection, in order."""
        return [direction for connection in self.connections for direction in connection.directions]

    @property
    def addresses(self) -> list[str]:
        """Addresses of the hosts of all connections."""
        return list(dict.fromkeys(direction.destination.address for direction in self.directions))

    def check(self) -> None:
        """Raise :class:`CaptureError`, with the reason, if not one DDP Segment could be in here."""
        if self.sctp or any(direction.chunks for direction in self.directions):
            return
        reason = "; ".join(self.notes) or "it holds no TCP connection and no SCTP"
        raise CaptureError(f"{self.path} has no DDP over TCP or SCTP: {reason}")


def read_capture(path: Path | str) -> Capture:
    """Read a pcap or pcapng file.

    Frames that are neither TCP nor SCTP over IP are passed over, as are connections without MPA
    start-up; ``notes`` says so.

    Raises
    ------
    CaptureError
        The file is missing or is no capture.
    """
    return capture_of(read_frames(Path(path)), Path(path))


def capture_of(frames: Iterable[Frame], path: Path) -> Capture:
    """The MPA connections and the SCTP in frames; ``path`` is what messages call them."""
    count = 0
    sctp: list[SctpFrame] = []
    conversations: list[_Conversation] = []
    current: dict[tuple[Endpoint, Endpoint], _Conversation] = {}
    passed_over = _PassedOver()
    for frame in frames:
        count += 1
        packet = ip_packet(frame)
        if packet is None:
            continue
        if (found := sctp_frame(frame, packet)) is not None:
            sctp.append(found)
        elif packet.fragment:
            passed_over.fragments += 1
        elif packet.protocol == TCP and (segment := _tcp_segment(frame, packet)) is not None:
            passed_over.cut += bool(packet.missing)
            ends = (segment.source, segment.destination)
            key = ends if ends[0] <= ends[1] else ends[::-1]
            conversation = current.get(key)
            if conversation is None or conversation.is_renewed_by(segment):
                conversation = current[key] = _Conversation()
                conversations.append(conversation)
            conversation.add(segment)

    connections = []
    notes = []
    for conversation in conversations:
        connection, note = conversation.connection()
        if connection is not None:
            connections.append(connection)
        if note:
            notes.append(note)
    left_out = (*_shortened(notes), *passed_over.notes())
    return Capture(path, count, tuple(connections), left_out, tuple(sctp))


def _shortened(notes: list[str], most: int = 3) -> list[str]:
    if len(notes) <= most:
        return notes
    return [
        *notes[:most],
        f"{len(notes) - most} further connections have nothing to play, for such reasons",
    ]


@dataclass
class _PassedOver:
    fragments: int = 0
    cut: int = 0

    def notes(self) -> Iterator[str]:
        if self.fragments:
            yield f"{self.fragments} IP fragments are passed over"
        if self.cut:
            yield f"{self.cut} TCP segments were cut short by the snapshot length"


# -- TCP --


@dataclass(frozen=True)
class _Segment:
    frame: int
    time: float
    source: Endpoint
    destination: Endpoint
    sequence: int  # of octets[0], that is, past a SYN
    flags: int
    octets: bytes
    sound: bool | None  # None: the checksum was left to the network card, or cannot be judged


def _tcp_segment(frame: Frame, packet: IpPacket) -> _Segment | None:
    data = packet.payload
    if len(data) < 20:
        return None
    source, destination, sequence, _, offset, flags = struct.unpack_from(">HHIIBB", data)
    header = (offset >> 4) * 4
    if header < 20 or header > len(data):
        return None
    octets = data[header:]
    return _Segment(
        frame=frame.number,
        time=frame.time,
        source=Endpoint(packet.source, source),
        destination=Endpoint(packet.destination, destination),
        sequence=(sequence + bool(flags & _SYN)) & 0xFFFFFFFF,
        flags=flags,
        octets=octets,
        sound=_checksum_verdict(packet) if octets else None,
    )


def _checksum_verdict(packet: IpPacket) -> bool | None:
    """Whether the checksum is right; nothing if it was never meant to be (transmit offload) or
    octets are missing.
    """
    if packet.missing:
        return None
    if internet_sum(packet.pseudo_header + packet.payload) == 0xFFFF:
        return True
    # A sender that leaves the checksum to the card puts the sum of the pseudo-header there, in
    # Linux without the length when the card also segments; others leave it 0.
    field_ = int.from_bytes(packet.payload[16:18], "big")
    addresses = packet.pseudo_header[:-4] + struct.pack(">HH", 0, packet.protocol)
    if field_ in (0, internet_sum(packet.pseudo_header), internet_sum(addresses)):
        return None
    return False


@dataclass
class _Half:
    """The segments of one direction."""

    syn: int | None = None  # sequence number of the first octet, from the SYN
    segments: list[_Segment] = field(default_factory=list)
    closed_at: int | None = None  # the frame of a RST from this side's receiver

    def usable(self) -> list[_Segment]:
        """Without segments that the receiver's TCP dropped for their checksum."""
        judged = [segment for segment in self.segments if segment.sound is not None]
        # With no good one at all, the capture was taken before the card filled the checksums in.
        offloaded = bool(judged) and not any(segment.sound for segment in judged)
        return [
            segment
            for segment in self.segments
            if (segment.sound is not False or offloaded)
            and (self.closed_at is None or segment.frame < self.closed_at)
        ]

    def base(self, segments: list[_Segment]) -> int:
        if self.syn is not None:
            return self.syn
        first = segments[0].sequence
        return (first + min(_signed(segment.sequence - first) for segment in segments)) & 0xFFFFFFFF

    def streams(self) -> Iterator[_OrderedOctets]:
        """The octets in order, from the likeliest first octet on; then from each start-up frame
        seen.
        """
        segments = self.usable()
        if not segments:
            return
        yield _in_order(segments, self.base(segments))
        for segment in segments:
            if segment.octets.startswith((_REQUEST_KEY, _REPLY_KEY)):
                yield _in_order(segments, segment.sequence)


class _OrderedOctets(NamedTuple):
    octets: bytes
    pieces: list[tuple[int, float, int]]  # frame, time, position of the first octet
    behind_hole: int


def _signed(difference: int) -> int:
    return (difference + (1 << 31)) % (1 << 32) - (1 << 31)


def _in_order(segments: list[_Segment], base: int) -> _OrderedOctets:
    """What a receiver's TCP hands over, and when: the first copy of an octet counts."""
    octets = bytearray()
    pieces: list[tuple[int, float, int]] = []
    waiting: list[tuple[int, bytes]] = []
    for segment in segments:
        position = len(octets) + _signed(segment.sequence - base - len(octets))
        if position + len(segment.octets) <= len(octets):
            continue
        if position > len(octets):
            insort(waiting, (position, segment.octets), key=lambda piece: piece[0])
            continue
        pieces.append((segment.frame, segment.time, len(octets)))
        octets += segment.octets[len(octets) - position :]
        taken = 0
        for start, piece in waiting:
            if start > len(octets):
                break
            octets += piece[len(octets) - start :]
            taken += 1
        del waiting[:taken]
    behind = 0
    end = len(octets)
    for start, piece in waiting:
        behind += max(0, start + len(piece) - max(start, end))
        end = max(end, start + len(piece))
    return _OrderedOctets(bytes(octets), pieces, behind)


class _Conversation:
    """One TCP connection, from its SYN, or from where the capture begins, to the next SYN of the
    same ports.
    """

    def __init__(self) -> None:
        self.halves: dict[Endpoint, _Half] = {}
        self.ends: tuple[Endpoint, Endpoint] | None = None  # the first sender first

    def is_renewed_by(self, segment: _Segment) -> bool:
        if segment.flags & (_SYN | _ACK | _RST) != _SYN:
            return False
        half = self.halves.get(segment.source)
        if half is None:
            return False
        if half.syn is not None:
            return half.syn != segment.sequence
        return bool(half.segments)

    def add(self, segment: _Segment) -> None:
        if self.ends is None:
            self.ends = (segment.source, segment.destination)
            self.halves = {end: _Half() for end in self.ends}
        half = self.halves[segment.source]
        if segment.flags & _SYN and half.syn is None:
            half.syn = segment.sequence
        if segment.flags & _RST:
            other = self.halves[segment.destination]
            if other.closed_at is None:
                other.closed_at = segment.frame
        elif segment.octets:
            half.segments.append(segment)

    def connection(self) -> tuple[Connection | None, str]:
        """The MPA connection in it, and a sentence if there is none or something is amiss."""
        if self.ends is None:
            return None, ""
        for initiator in self.ends:
            responder = self.ends[0] if initiator is self.ends[1] else self.ends[1]
            request = _find_startup(self.halves[initiator], _REQUEST_KEY)
            if request is None:
                continue
            name = f"{initiator} > {responder}"
            reply = _find_startup(self.halves[responder], _REPLY_KEY)
            if reply is None:
                return None, f"{name}: the MPA Request has no Reply in the capture"
            connection = _connection(initiator, responder, request, reply)
            if connection.rejected:
                return connection, f"{name}: the MPA Reply rejects the connection"
            holes = sum(direction.behind_hole for direction in connection.directions)
            if holes:
                return (
                    connection,
                    f"{name}: {holes} octets lie behind octets missing from the capture",
                )
            if not any(direction.chunks for direction in connection.directions):
                return connection, f"{name}: no FPDU follows MPA start-up"
            return connection, ""
        name = f"{self.ends[0]} > {self.ends[1]}"
        if any(half.segments and half.syn is None for half in self.halves.values()):
            return None, f"{name}: the capture begins in mid-connection, with no MPA start-up"
        if any(half.segments for half in self.halves.values()):
            return None, f"{name}: no MPA start-up in this TCP connection"
        return None, f"{name}: no octet was sent in this TCP connection"


class _Startup(NamedTuple):
    frame: StartupFrame
    stream: _OrderedOctets
    end: int  # position of the octet after the frame


def _find_startup(half: _Half, key: bytes) -> _Startup | None:
    """The first start-up frame: at the start as a rule, later where a ULP changed over to MPA (RFC
    5044 section 7.1.3).
    """
    for stream in half.streams():
        at = stream.octets.find(key)
        while at >= 0:
            try:
                parsed = StartupFrame.parse(stream.octets[at : at + _LONGEST_STARTUP])
            except ProtocolError:  # the key, by chance, or a frame that its receiver had to refuse
                parsed = None
            if parsed is not None:
                return _Startup(parsed[0], stream, at + parsed[1])
            at = stream.octets.find(key, at + 1)
    return None


def _connection(
    initiator: Endpoint, responder: Endpoint, request: _Startup, reply: _Startup
) -> Connection:
    # RFC 5044 section 7.1.1: CRCs are used if either side wants them; each side says whether it
    # wants to receive markers.
    crc = request.frame.crc or reply.frame.crc
    play = not reply.frame.reject
    return Connection(
        request.frame,
        reply.frame,
        (
            Direction(
                initiator,
                responder,
                crc,
                reply.frame.markers,
                _chunks(request) if play else (),
                request.stream.behind_hole,
            ),
            Direction(
                responder,
                initiator,
                crc,
                request.frame.markers,
                _chunks(reply) if play else (),
                reply.stream.behind_hole,
            ),
        ),
    )


def _chunks(startup: _Startup) -> tuple[Chunk, ...]:
    octets, pieces, _ = startup.stream
    ends = [piece[2] for piece in pieces[1:]] + [len(octets)]
    chunks = []
    for (frame, time, start), end in zip(pieces, ends, strict=True):
        start = max(start, startup.end)
        if end > start:
            chunks.append(Chunk(frame, time, start - startup.end, octets[start:end]))
    return tuple(chunks)
