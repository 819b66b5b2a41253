"""RFC 9293, the incoming half of connections: segments in order, and RFC 5044's FPDUs in them.

The host sets a connection up and goes through MPA's start-up. From then on the receiver takes
what comes in order, and leaves everything else, up to reordering and the end, to the host.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag

from .mpa import MARKER_SPACING

__all__ = [
    "Connection",
    "Diverted",
    "Dropped",
    "Flag",
    "FpduReceived",
    "TcpEvent",
    "TcpReceiver",
]


class Flag(IntFlag):
    """Control bits, RFC 9293 section 3.1."""

    FIN = 0x01
    SYN = 0x02
    RST = 0x04
    PSH = 0x08
    ACK = 0x10
    URG = 0x20
    ECE = 0x40
    CWR = 0x80


_IPV4, _IPV6, _TAGS = 0x0800, 0x86DD, (0x8100, 0x88A8)  # EtherTypes
_TCP = 6
_SEQUENCE = 1 << 32
_WORD = 4
_LENGTH = 2
_CRC = 4
_SHORTEST = 14  # octets of the shortest DDP header, RFC 5041 section 4.2


@dataclass(frozen=True)
class Connection:
    """A TCP connection's incoming half, once MPA's start-up is over.

    Parameters
    ----------
    source, destination
        The peer's address and ours, of 4 or 16 octets.
    source_port, destination_port
        The peer's port and ours.
    stream
        The DDP Stream.
    sequence
        Sequence number of the first octet behind the start-up, which has position 0.
    markers
        Whether the stream has markers.
    sent
        Sequence number of the octet that this end sends next, SND.NXT.
    span
        How far an Acknowledgment Number may lie before ``sent``: the octets that the peer has not
        acknowledged, and the largest window that it has offered (RFC 5961 section 5.2).
    """

    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    stream: int
    sequence: int
    markers: bool = False
    sent: int = 0
    span: int = 1 << 16


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FpduReceived:
    """A whole FPDU with its markers, CRC unchecked; ``position`` is that of its first octet."""

    stream: int
    position: int
    octets: bytes


@dataclass(frozen=True)
class Diverted:
    """A frame for the host, whole."""

    octets: bytes


@dataclass(frozen=True)
class Dropped:
    """A frame was damaged, and is gone."""


TcpEvent = FpduReceived | Diverted | Dropped


# --- from the frame to the segment ---------------------------------------------------------------


@dataclass(frozen=True)
class _Packet:
    """An IP packet with TCP in it: the addresses, the segment, and the pseudo-header."""

    source: bytes
    destination: bytes
    segment: bytes
    pseudo_header: bytes


def _sum(octets: bytes) -> int:
    """The ones' complement sum, 16 bits, of octets and a zero where they are odd in number."""
    octets += bytes(len(octets) % 2)
    total = sum(word for (word,) in struct.iter_unpack(">H", octets))
    while total > 0xFFFF:
        total = (total >> 16) + (total & 0xFFFF)
    return total


def _packet(frame: bytes) -> _Packet | None:
    """The packet in an Ethernet frame with at most two VLAN tags."""
    kind = 0
    for at in (12, 16, 20):
        kind = int.from_bytes(frame[at : at + 2], "big")
        if kind not in _TAGS:
            break
    payload = frame[at + 2 :]
    if kind == _IPV4:
        return _ipv4(payload)
    if kind == _IPV6:
        return _ipv6(payload)
    return None


def _ipv4(octets: bytes) -> _Packet | None:
    """RFC 791 section 3.1. What is behind the Total Length is padding."""
    if len(octets) < 20:
        return None
    first, total, fragment, protocol = struct.unpack_from(">BxHxxHxB", octets)
    version, header = first >> 4, 4 * (first & 0xF)
    if version != 4 or not 20 <= header <= total <= len(octets):
        return None
    if _sum(octets[:header]) != 0xFFFF:
        return None
    if fragment & 0x3FFF or protocol != _TCP:  # MF, and the Fragment Offset
        return None
    source, destination = octets[12:16], octets[16:20]
    # RFC 9293 section 3.1, figure 2.
    pseudo_header = source + destination + struct.pack(">BBH", 0, protocol, total - header)
    return _Packet(source, destination, octets[header:total], pseudo_header)


def _ipv6(octets: bytes) -> _Packet | None:
    """RFC 8200 section 3. A packet with an extension header is the host's."""
    if len(octets) < 40:
        return None
    first, length, following = struct.unpack_from(">BxxxHB", octets)
    if first >> 4 != 6 or length > len(octets) - 40 or following != _TCP:
        return None
    source, destination = octets[8:24], octets[24:40]
    # RFC 8200 section 8.1.
    pseudo_header = source + destination + struct.pack(">IxxxB", length, following)
    return _Packet(source, destination, octets[40 : 40 + length], pseudo_header)


# --- from the segment to the FPDUs ---------------------------------------------------------------


class _Incoming:
    """What is known of a connection's incoming half."""

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection
        self.sent = connection.sent if connection else 0  #: SND.NXT
        self.next = 0  #: position of the octet that RCV.NXT names, RFC 9293 section 3.3.1
        self.peer = 0, 0  #: SEG.ACK and SEG.WND of the last segment taken
        self.broken = False
        self.held = b""  #: from the first octet of an FPDU on


def _ulpdu(position: int, octets: bytes, markers: bool) -> int | None:
    """ULPDU_Length of the FPDU that begins with these octets; None until its word is there."""
    lead = _WORD if markers and position % MARKER_SPACING == 0 else 0
    if len(octets) < lead + _WORD:
        return None
    return int.from_bytes(octets[lead : lead + _LENGTH], "big")


def _fpdu(position: int, ulpdu: int, markers: bool) -> int:
    """Octets of the FPDU that begins at a position.

    RFC 5044 section 4.1: ULPDU_Length, ULPDU, PAD to a multiple of four, CRC. Section 4.3: a
    marker at every 512th octet of the stream. One in front is part of the FPDU, one behind is not.
    """
    content = _LENGTH + ulpdu
    content += -content % 4 + _CRC
    if not markers:
        return content
    # The first marker has this much of the FPDU before it, the others as much as fits between two.
    before, between = -position % MARKER_SPACING, MARKER_SPACING - _WORD
    return content + _WORD * -(-max(0, content - before) // between)


class TcpReceiver:
    """Takes Ethernet frames, without FCS; gives FPDUs, and the frames that are the host's.

    Parameters
    ----------
    connections
        How many there can be; they are named by an index from 0.
    window
        How many octets of a connection can be held. One with a longer FPDU breaks; so does one
        with an FPDU that is too short for a DDP header, after that FPDU: RFC 5041 section 7.1
        drops all that follows it.
    """

    def __init__(self, connections: int, window: int) -> None:
        self.window = window
        self._incoming = [_Incoming(None) for _ in range(connections)]

    def connect(self, index: int, connection: Connection | None) -> None:
        """Begin with a connection, at position 0 with nothing held; None: there is none."""
        self._incoming[index] = _Incoming(connection)

    def set_sent(self, index: int, sent: int) -> None:
        """This end is about to send the octets before ``sent``: SND.NXT."""
        self._incoming[index].sent = sent

    def next(self, index: int) -> int:
        """Position of the next octet expected, modulo 2**32."""
        return self._incoming[index].next

    def peer(self, index: int) -> tuple[int, int]:
        """Acknowledgment Number and Window of the last segment taken; zeros before the first."""
        return self._incoming[index].peer

    def broken(self, index: int) -> bool:
        """Whether an FPDU came that is too long or too short. Nothing is taken after it."""
        return self._incoming[index].broken

    def receive(self, frame: bytes, *, damaged: bool = False) -> list[TcpEvent]:
        """Take a frame; ``damaged``: its FCS was wrong."""
        if damaged:
            return [Dropped()]
        packet = _packet(frame)
        if packet is None or len(packet.segment) < 20:
            return [Diverted(frame)]
        incoming = self._find(packet)
        if incoming is None:
            return [Diverted(frame)]
        if _sum(packet.pseudo_header + packet.segment) != 0xFFFF:
            return [Dropped()]
        out = self._take(incoming, packet.segment)
        if out is None:
            return [Diverted(frame)]
        if packet.segment[13] & Flag.FIN:
            out.append(Diverted(frame))
        return out

    def _find(self, packet: _Packet) -> _Incoming | None:
        source_port, destination_port = struct.unpack_from(">HH", packet.segment)
        ends = packet.source, packet.destination, source_port, destination_port
        for incoming in self._incoming:
            known = incoming.connection
            if known is not None and ends == (
                known.source,
                known.destination,
                known.source_port,
                known.destination_port,
            ):
                return incoming
        return None

    def _take(self, incoming: _Incoming, segment: bytes) -> list[TcpEvent] | None:
        """The FPDUs that a segment completes; None if it is the host's."""
        connection = incoming.connection
        assert connection is not None
        sequence, acknowledgment, offset, flags, window = struct.unpack_from(">xxxxIIBBH", segment)
        header = 4 * (offset >> 4)
        if not 20 <= header <= len(segment):
            return None
        if flags & (Flag.ACK | Flag.SYN | Flag.RST | Flag.URG) != Flag.ACK:
            return None
        payload = segment[header:]
        if not payload or sequence != (connection.sequence + incoming.next) % _SEQUENCE:
            return None
        # RFC 5961 section 5.2: "The ACK value is considered acceptable only if it is in the range
        # of ((SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT)."
        if (incoming.sent - acknowledgment) % _SEQUENCE > connection.span:
            return None
        if incoming.broken or len(incoming.held) + len(payload) > self.window:
            return None

        incoming.held += payload
        incoming.next = (incoming.next + len(payload)) % _SEQUENCE
        incoming.peer = acknowledgment, window
        out: list[TcpEvent] = []
        while not incoming.broken:
            position = (incoming.next - len(incoming.held)) % _SEQUENCE
            ulpdu = _ulpdu(position, incoming.held, connection.markers)
            if ulpdu is None:
                break
            length = _fpdu(position, ulpdu, connection.markers)
            if length > self.window:
                incoming.broken = True
                break
            if length > len(incoming.held):
                break
            out.append(FpduReceived(connection.stream, position, incoming.held[:length]))
            incoming.held = incoming.held[length:]
            incoming.broken = ulpdu < _SHORTEST
        return out
