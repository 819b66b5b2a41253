"""Finds the frames of a capture that hold SCTP packets, alone or in UDP, and their chunks."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ...hdl.spec.net import SCTP_UDP_PORT
from ...hdl.spec.sctp import COMMON_HEADER, DATA_HEADER, MOST_CHUNKS
from ...sw_driver.verbs.handed_back import frame_of
from ..model.sctp import ChunkType, checksum, processed
from .layers import SCTP, IpPacket, with_header_sum
from .pcap import Frame, counted
from .spool import Again, Kept

__all__ = [
    "Ends",
    "RawChunk",
    "SctpFrame",
    "handed_back",
    "kept_frames",
    "sctp_frame",
    "with_checksums",
]

_UDP_HEADER = 8


class Ends(NamedTuple):
    """The fields by which a packet's association is identified, apart from addresses."""

    source_port: int
    destination_port: int
    tag: int


#: Pairs of a Queue Number and the first MSN on that queue.
Msns = tuple[tuple[int, int], ...]


class RawChunk(NamedTuple):
    """A chunk with the octets that its length counts, without padding."""

    type: int
    flags: int
    octets: bytes

    @property
    def value(self) -> bytes:
        return self.octets[4:]


@dataclass(frozen=True)
class SctpFrame:
    """An Ethernet frame without FCS that holds an SCTP packet, ``packet``.

    ``intact``: the packet is complete, and has at least a common header. ``wrong_header`` is its
    IPv4 header if the header's checksum is wrong. ``msns`` is for a frame that is assumed: it lists
    the SCTP streams of this direction with a session that stood before the capture began, each with
    its first MSNs that are not 1.
    """

    number: int
    source: str
    destination: str
    octets: bytes
    packet: bytes
    intact: bool
    wrong_header: bytes = b""
    msns: tuple[tuple[int, Msns], ...] = ()

    @property
    def whole(self) -> bool:
        """True if the packet is complete, and its IP header is sound."""
        return self.intact and not self.wrong_header

    @cached_property
    def ends(self) -> Ends | None:
        return Ends(*struct.unpack_from(">HHI", self.packet)) if self.whole else None

    @property
    def path(self) -> tuple[str, str]:
        return self.source, self.destination

    @cached_property
    def checksum_is_good(self) -> bool:
        return len(self.packet) % 4 == 0 and self.packet[8:12] == checksum(self.packet)

    @cached_property
    def chunks(self) -> tuple[RawChunk, ...] | None:
        """The chunks, or None if their lengths do not add up.

        dpkt's SCTP pads DATA chunks alone, and takes a chunk that is longer than its packet.
        """
        found, at = [], COMMON_HEADER
        while at < len(self.packet):
            if at + 4 > len(self.packet):
                return None
            kind, flags, length = struct.unpack_from(">BBH", self.packet, at)
            least = DATA_HEADER + 1 if kind == ChunkType.DATA else 4
            if length < least or at + length > len(self.packet):
                return None
            found.append(RawChunk(kind, flags, self.packet[at : at + length]))
            at += (length + 3) // 4 * 4
        return tuple(found) if len(found) < MOST_CHUNKS else None

    @property
    def processed(self) -> tuple[RawChunk, ...]:
        """The chunks that a receiver does not discard unread; none if :attr:`chunks` is None."""
        chunks = self.chunks or ()
        return chunks[: processed([chunk.type for chunk in chunks])]

    @property
    def sound(self) -> bool:
        """True if the host's SCTP accepts the packet."""
        return self.whole and self.checksum_is_good and self.chunks is not None

    def with_checksum(self) -> SctpFrame:
        """Returns the frame with the right checksum of its packet."""
        packet = self.packet[:8] + checksum(self.packet) + self.packet[12:]
        at = self.octets.index(self.packet)
        octets = self.octets[:at] + packet + self.octets[at + len(packet) :]
        return replace(self, octets=octets, packet=packet)

    def with_header_sum(self) -> SctpFrame:
        """Returns the frame with the right checksum of its IPv4 header."""
        at = self.octets.index(self.wrong_header)
        return replace(self, octets=with_header_sum(self.octets, at), wrong_header=b"")


def kept_frames() -> Kept[SctpFrame]:
    """Returns an empty list of frames, which keeps their octets in a temporary file."""
    return Kept(lambda frame: frame.octets)


def sctp_frame(
    frame: Frame, packet: IpPacket, ports: Collection[int] = (SCTP_UDP_PORT,)
) -> SctpFrame | None:
    """Returns the frame as the RNIC gets it, or None without SCTP in its IP packet.

    Layers that the RNIC does not remove are removed here: tunnels, and UDP of other ports than its
    own. ``ports`` are the UDP ports in which SCTP may be, at either end (RFC 6951 section 5.1).
    """
    payload, missing = packet.payload, packet.missing
    if (udp := packet.udp()) is not None:
        source, destination, length = udp
        if source not in ports and destination not in ports:
            return None
        missing += max(0, length - len(payload))
        payload = payload[_UDP_HEADER:length]
        if destination != SCTP_UDP_PORT:
            alone = packet.carrying(SCTP, payload, missing)
            if not isinstance(alone, IpPacket):
                return None
            packet = alone
    elif packet.protocol != SCTP:
        return None
    size = (packet.octets[0] & 15) * 4
    return SctpFrame(
        frame.number,
        packet.source,
        packet.destination,
        frame.octets if packet.plain else packet.frame(),
        payload,
        intact=not missing and len(payload) >= COMMON_HEADER,
        wrong_header=b"" if packet.sound else packet.octets[:size],
    )


def handed_back(number: int, path: tuple[str, str], ends: Ends, chunk: RawChunk) -> SctpFrame:
    """Returns the frame with which a host hands a chunk back to its RNIC."""
    octets = frame_of(path, ends[:2], ends.tag, chunk.octets)
    at = 14 + (40 if ":" in path[0] else 20)
    return SctpFrame(number, *path, octets, octets[at:], intact=True)


def sctp_in_udp(packet: IpPacket) -> int | None:
    """Returns the UDP port of an SCTP packet with a good checksum in a datagram, or None."""
    udp = packet.udp()
    if udp is None:
        return None
    inside = packet.payload[_UDP_HEADER : udp[2]]
    if len(inside) < COMMON_HEADER + 4 or len(inside) % 4 or inside[8:12] != checksum(inside):
        return None
    return min(udp[:2])


def with_checksums(frames: Sequence[SctpFrame]) -> tuple[Sequence[SctpFrame], list[str]]:
    """Returns the frames as they were on the wire, and sentences about the changes.

    If no checksum of a sender is good, the capture was taken before its network card filled them
    in.
    """
    right = {frame.source for frame in frames if not frame.wrong_header}
    filled: Counter[str] = Counter()
    good: set[str] = set()
    senders: set[str] = set()  # of whole packets
    cut = 0

    def with_header(frame: SctpFrame) -> SctpFrame:
        header = frame.wrong_header
        filled_in = header and (frame.source not in right or not any(header[10:12]))
        return frame.with_header_sum() if filled_in else frame

    for frame in frames:
        sound = with_header(frame)
        filled[frame.source] += sound is not frame
        cut += not sound.whole
        if sound.whole:
            senders.add(sound.source)
            if sound.checksum_is_good:
                good.add(sound.source)
    offloaded = senders - good

    def complete() -> Iterator[SctpFrame]:
        for frame in map(with_header, frames):
            offload = frame.whole and frame.source in offloaded
            yield frame.with_checksum() if offload else frame

    notes = [
        f"{counted(count, 'SCTP packet')} from {source} without IPv4 header checksum or with a"
        " wrong one, because it was left to the network card: it is filled in"
        for source, count in sorted(filled.items())
        if count
    ]
    notes += [
        f"no SCTP packet from {source} has its checksum, because it was left to the network card:"
        " it is filled in"
        for source in sorted(offloaded)
    ]
    if cut:
        notes.append(
            f"incomplete: {counted(cut, 'SCTP packet')} (cut short by the snapshot length,"
            " fragments, or damaged), which the RNIC cannot accept"
        )
    return Again(complete) if offloaded or any(filled.values()) else frames, notes
