"""Frames with which the host hands chunks back to the device that forwarded them.

The device forwards a DDP Segment that overtook the answer to an Initiate, and fragments of messages
(``Diversion.EARLY`` and ``FRAGMENT``). What the host has put in order goes into the device's input
for frames, like a frame of the network.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence

import google_crc32c

from ..hdl.spec.net import EtherType, Protocol
from ..hdl.spec.sctp import COMMON_HEADER, DATA_HEADER, ChunkType, DataFlag
from .errors import InvalidRequest

__all__ = ["LONGEST_CHUNK", "frame_of", "message_of"]

_WHOLE = DataFlag.UNORDERED | DataFlag.BEGINNING | DataFlag.ENDING
_IPV4_HEADER = 20
#: Octets of the longest chunk that an IPv4 packet holds with its padding.
LONGEST_CHUNK = ((1 << 16) - 1 - _IPV4_HEADER - COMMON_HEADER) // 4 * 4


def message_of(fragments: Sequence[bytes]) -> bytes:
    """Returns the DATA chunk that holds a whole message, whose fragments are given in the order of
    their TSNs: it has the first one's TSN, SCTP stream and Payload Protocol Identifier.

    Raises
    ------
    InvalidRequest
        No packet can hold the message.
    """
    payload = b"".join(each[DATA_HEADER:] for each in fragments)
    length = DATA_HEADER + len(payload)
    if length > LONGEST_CHUNK:
        raise InvalidRequest(
            f"a message must have at most {LONGEST_CHUNK - DATA_HEADER} octets to be handed back,"
            f" not {len(payload)}: end its session"
        )
    return struct.pack(">BBH", ChunkType.DATA, _WHOLE, length) + fragments[0][4:16] + payload


def frame_of(path: tuple[str, str], ports: tuple[int, int], tag: int, chunk: bytes) -> bytes:
    """Returns an Ethernet frame, without FCS, with an SCTP packet that holds one chunk.

    Parameters
    ----------
    path
        The peer's address, and this end's.
    ports
        The peer's port, and this end's.
    tag
        Verification Tag of what comes from the peer.
    chunk
        The chunk's octets, with or without padding.
    """
    packet = struct.pack(">HHII", *ports, tag, 0) + chunk + bytes(-len(chunk) % 4)
    digest = struct.pack("<I", google_crc32c.value(packet))
    packet = packet[:8] + digest + packet[12:]
    source, destination = map(ipaddress.ip_address, path)
    ends = source.packed + destination.packed
    if source.version == 6:
        header = struct.pack(">IHBB", 6 << 28, len(packet), Protocol.SCTP, 64) + ends
        kind = EtherType.IPV6
    else:
        length = _IPV4_HEADER + len(packet)
        header = struct.pack(">BBHIBBH", 0x45, 0, length, 0, 64, Protocol.SCTP, 0) + ends
        total = sum(struct.unpack(">10H", header))
        total = (total & 0xFFFF) + (total >> 16)
        header = header[:10] + struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF) + header[12:]
        kind = EtherType.IPV4
    return bytes(12) + kind.to_bytes(2, "big") + header + packet
