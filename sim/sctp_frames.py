"""Frames of a capture that hold SCTP packets, alone or in UDP, and the chunks of these."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ..hdl.spec.net import SCTP_UDP_PORT
from ..hdl.spec.sctp import COMMON_HEADER, DATA_HEADER, MOST_CHUNKS
from ..sw_driver.handed_back import frame_of
from .model.sctp import ChunkType, checksum
from .pcap import SCTP, UDP, Frame, IpPacket, ethernet, internet_sum, ip_packet

__all__ = ["Ends", "RawChunk", "SctpFrame", "handed_back", "sctp_frame", "with_checksums"]

_UDP_HEADER = 8


class Ends(NamedTuple):
    """What a packet's association is known by, apart from addresses."""

    source_port: int
    destination_port: int
    tag: int


class RawChunk(NamedTuple):
    """A chunk: its octets as its length says, without padding."""

    type: int
    flags: int
    octets: bytes

    @property
    def value(self) -> bytes:
        return self.octets[4:]


@dataclass(frozen=True)
class SctpFrame:
    """An Ethernet frame without FCS that holds an SCTP packet, ``packet``.

    ``whole``: all of the packet is there, and sound up to its common header."""

    number: int
    source: str
    destination: str
    octets: bytes
    packet: bytes
    whole: bool

    @cached_property
    def ends(self) -> Ends | None:
        return Ends(*struct.unpack_from(">HHI", self.packet)) if self.whole else None

    @cached_property
    def checksum_is_good(self) -> bool:
        return len(self.packet) % 4 == 0 and self.packet[8:12] == checksum(self.packet)

    @cached_property
    def chunks(self) -> tuple[RawChunk, ...] | None:
        """The chunks, or nothing where they do not add up."""
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
    def sound(self) -> bool:
        """Its host's SCTP takes it."""
        return self.whole and self.checksum_is_good and self.chunks is not None

    def with_checksum(self) -> SctpFrame:
        """The frame with the checksum that its packet must have."""
        packet = self.packet[:8] + checksum(self.packet) + self.packet[12:]
        at = self.octets.index(self.packet)
        octets = self.octets[:at] + packet + self.octets[at + len(packet) :]
        return replace(self, octets=octets, packet=packet)


def sctp_frame(frame: Frame, packet: IpPacket | None = None) -> SctpFrame | None:
    """The frame as the RNIC gets it, or nothing if there is no SCTP in it."""
    packet = packet or ip_packet(frame)
    if packet is None:
        return None
    payload, missing = packet.payload, packet.missing
    if packet.protocol == UDP:
        if len(payload) < _UDP_HEADER or packet.fragment:
            return None
        _, port, length = struct.unpack_from(">HHH", payload)
        if port != SCTP_UDP_PORT:
            return None
        missing += max(0, length - len(payload))
        payload = payload[_UDP_HEADER:length]
    elif packet.protocol != SCTP:
        return None
    octets = ethernet(frame)
    whole = (
        not missing
        and not packet.fragment
        and len(payload) >= COMMON_HEADER
        and _header_is_good(octets, packet)
    )
    return SctpFrame(frame.number, packet.source, packet.destination, octets, payload, whole)


def handed_back(number: int, path: tuple[str, str], ends: Ends, chunk: RawChunk) -> SctpFrame:
    """The frame with which a host hands a chunk back to its RNIC."""
    octets = frame_of(path, ends[:2], ends.tag, chunk.octets)
    at = 14 + (40 if ":" in path[0] else 20)
    return SctpFrame(number, *path, octets, octets[at:], True)


def _header_is_good(octets: bytes, packet: IpPacket) -> bool:
    """The checksum of an IPv4 header."""
    if ":" in packet.source:
        return True
    ends = ipaddress.IPv4Address(packet.source).packed
    at = octets.index(ends + ipaddress.IPv4Address(packet.destination).packed) - 12
    return internet_sum(octets[at : at + (octets[at] & 15) * 4]) == 0xFFFF


def with_checksums(frames: Iterable[SctpFrame]) -> tuple[list[SctpFrame], list[str]]:
    """The frames as they were on the wire, and sentences on what was changed.

    Of a sender without one good checksum the capture was taken before its network card filled
    them in.
    """
    frames = list(frames)
    whole = [frame for frame in frames if frame.whole]
    good = {frame.source for frame in whole if frame.checksum_is_good}
    offloaded = {frame.source for frame in whole} - good
    notes = [
        f"no SCTP packet from {source} has its checksum, which was left to the network card:"
        " it is filled in"
        for source in sorted(offloaded)
    ]
    if cut := len(frames) - len(whole):
        notes.append(
            f"{cut} SCTP packets are not whole (cut short by the snapshot length, fragments, or"
            " damaged): the RNIC cannot take them"
        )
    return [
        frame.with_checksum() if frame.whole and frame.source in offloaded else frame
        for frame in frames
    ], notes
