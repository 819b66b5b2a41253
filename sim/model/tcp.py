"""RFC 9293, the receiving half of connections: accepts segments in order and finds RFC 5044's
FPDUs.

The host sets a connection up and goes through MPA's start-up. After that the receiver accepts the
segments that arrive in order, and forwards all other frames to the host, which handles reordering
and the connection's end.
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
    """The control bits of RFC 9293 section 3.1."""

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
    """The receiving half of a TCP connection, after MPA's start-up.

    Parameters
    ----------
    source, destination
        IP addresses of the peer and of this end, of 4 or 16 octets.
    source_port, destination_port
        Ports of the peer and of this end.
    stream
        The DDP Stream.
    sequence
        Sequence number of the first octet after the start-up. That octet has position 0.
    markers
        Whether the stream has markers.
    sent
        Sequence number of the octet that this end sends next, SND.NXT.
    span
        How far an Acknowledgment Number may lie before ``sent``: the number of octets that the peer
        has not acknowledged, plus the largest window that it has offered (RFC 5961 section 5.2).
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
    """A whole FPDU with its markers; its CRC is not checked. ``position`` is that of its
    first octet.
    """

    stream: int
    position: int
    octets: bytes


@dataclass(frozen=True)
class Diverted:
    """A frame that is forwarded to the host, whole."""

    octets: bytes


@dataclass(frozen=True)
class Dropped:
    """A damaged frame was dropped."""


TcpEvent = FpduReceived | Diverted | Dropped


# --- from the frame to the segment ---------------------------------------------------------------


@dataclass(frozen=True)
class _Packet:
    """An IP packet that carries TCP: its addresses, its TCP segment, and the pseudo-header."""

    source: bytes
    destination: bytes
    segment: bytes
    pseudo_header: bytes


def _sum(octets: bytes) -> int:
    """Returns the ones' complement sum, 16 bits wide. An odd number of octets is padded with
    a zero.
    """
    octets += bytes(len(octets) % 2)
    total = sum(word for (word,) in struct.iter_unpack(">H", octets))
    while total > 0xFFFF:
        total = (total >> 16) + (total & 0xFFFF)
    return total


def _packet(frame: bytes) -> _Packet | None:
    """Returns the packet in an Ethernet frame that has at most two VLAN tags, or None
    without TCP.
    """
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
    """Parses IPv4 (RFC 791 section 3.1). Octets past the Total Length are padding."""
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
    """Parses IPv6 (RFC 8200 section 3). Returns None for a packet with an extension header."""
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
    """The state of a connection's receiving half."""

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection
        self.sent = connection.sent if connection else 0  #: SND.NXT
        self.next = 0  #: position of the octet that RCV.NXT names, RFC 9293 section 3.3.1
        self.peer = 0, 0  #: SEG.ACK and SEG.WND of the last segment taken
        self.broken = False
        self.held = b""  #: octets that were accepted, from the first one of an incomplete FPDU


def _ulpdu(position: int, octets: bytes, markers: bool) -> int | None:
    """Returns the ULPDU_Length of the FPDU that begins with these octets; None until its
    word is here.
    """
    lead = _WORD if markers and position % MARKER_SPACING == 0 else 0
    if len(octets) < lead + _WORD:
        return None
    return int.from_bytes(octets[lead : lead + _LENGTH], "big")


def _fpdu(position: int, ulpdu: int, markers: bool) -> int:
    """Returns the octets of an FPDU that begins at ``position`` and has ``ulpdu`` octets of ULPDU.

    RFC 5044 section 4.1: ULPDU_Length, ULPDU, PAD to a multiple of four, CRC. Section 4.3: a marker
    at every 512th octet of the stream. A marker just before the ULPDU_Length is part of the FPDU; a
    marker just after the CRC is not.
    """
    content = _LENGTH + ulpdu
    content += -content % 4 + _CRC
    if not markers:
        return content
    # ``before`` octets of the FPDU precede the first marker; ``between`` lie between two markers.
    before, between = -position % MARKER_SPACING, MARKER_SPACING - _WORD
    return content + _WORD * -(-max(0, content - before) // between)


class TcpReceiver:
    """Takes Ethernet frames without FCS, and returns FPDUs and the frames for the host.

    Parameters
    ----------
    connections
        How many connections the receiver has room for. An index from 0 names each.
    window
        How many octets of a connection can be held. A connection with a longer FPDU breaks. A
        connection with an FPDU that is too short for a DDP header breaks after that FPDU, because
        RFC 5041 section 7.1 drops all that follows it.
    """

    def __init__(self, connections: int, window: int) -> None:
        self.window = window
        self._incoming = [_Incoming(None) for _ in range(connections)]

    def connect(self, index: int, connection: Connection | None) -> None:
        """Starts a connection, at position 0 with nothing held. None removes the one that
        was there.
        """
        self._incoming[index] = _Incoming(connection)

    def set_sent(self, index: int, sent: int) -> None:
        """Sets SND.NXT: this end is about to send the octets before ``sent``."""
        self._incoming[index].sent = sent

    def next(self, index: int) -> int:
        """Returns the position of the next octet expected, modulo 2**32."""
        return self._incoming[index].next

    def peer(self, index: int) -> tuple[int, int]:
        """Returns Acknowledgment Number and Window of the last accepted segment; zeros
        before the first.
        """
        return self._incoming[index].peer

    def broken(self, index: int) -> bool:
        """Returns whether an FPDU came that is too long or too short. Nothing is accepted
        after it.
        """
        return self._incoming[index].broken

    def receive(self, frame: bytes, *, damaged: bool = False) -> list[TcpEvent]:
        """Takes a frame, and returns its FPDUs, or the frame for the host. ``damaged``: its
        FCS was wrong.
        """
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
        """Returns the FPDUs that a segment completes; None where the segment is for the host."""
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
