"""Builds the frames with which the host hands chunks back to the device that forwarded them.

The device forwards a DDP Segment that overtook the answer to an Initiate, and fragments of messages
(``Diversion.EARLY`` and ``FRAGMENT``). The host puts them in order and sends them to the device's
input for frames, like a frame of the network.
"""

from __future__ import annotations

import ipaddress
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ...hdl.spec.net import EtherType, Protocol
from ...hdl.spec.sctp import COMMON_HEADER, DATA_HEADER, SSN, ChunkType, DataFlag, Diversion
from ..base.crc32c import crc32c
from ..base.errors import InvalidRequest

__all__ = [
    "LONGEST_CHUNK",
    "Fragments",
    "HeldChunks",
    "frame_of",
    "message_of",
    "ssn_of",
    "stream_of",
]

_WHOLE = DataFlag.UNORDERED | DataFlag.BEGINNING | DataFlag.ENDING
_IPV4_HEADER = 20
_TSN = 1 << 32
#: Octets of the longest chunk that an IPv4 packet holds with its padding.
LONGEST_CHUNK = ((1 << 16) - 1 - _IPV4_HEADER - COMMON_HEADER) // 4 * 4


class Fragments:
    """Joins the fragments of messages (RFC 9260 section 6.9).

    The fragments of a message have consecutive TSNs; the first has the flag B and the last the flag
    E.
    """

    def __init__(self) -> None:
        self._parts: dict[int, bytes] = {}

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts.values())

    def drop(self, sid: int) -> None:
        """Drops the fragments of an SCTP stream."""
        self._parts = {tsn: each for tsn, each in self._parts.items() if stream_of(each) != sid}

    def take(self, chunk: bytes) -> bytes | None:
        """Takes a fragment with a new TSN. Returns the whole message's chunk if this completes it,
        or None.

        Raises
        ------
        InvalidRequest
            No packet can hold the message; its fragments are dropped.
        """
        first = last = _tsn(chunk)
        self._parts[first] = chunk
        while self._joins(first - 1):
            first -= 1
        while self._joins(last):
            last += 1
        numbers = [number % _TSN for number in range(first, last + 1)]
        parts = [self._parts[number] for number in numbers]
        whole = parts[0][1] & DataFlag.BEGINNING and parts[-1][1] & DataFlag.ENDING
        if not whole and sum(map(len, parts)) - DATA_HEADER * len(parts) < LONGEST_CHUNK:
            return None
        for number in numbers:
            del self._parts[number]
        return message_of(parts)

    def _joins(self, number: int) -> bool:
        """Returns whether the fragment with the next TSN continues the message of this one."""
        one, other = (self._parts.get(each % _TSN) for each in (number, number + 1))
        if one is None or other is None:
            return False
        apart = one[1] & DataFlag.ENDING or other[1] & DataFlag.BEGINNING
        # Compares SCTP stream and Payload Protocol Identifier.
        return not apart and (one[8:10], one[12:16]) == (other[8:10], other[12:16])


@dataclass
class _Asked:
    """A session that this end initiated: the peer's chunks up to ``tsn`` are of earlier ones."""

    tsn: int
    answered: bool = False
    early: list[bytes] = field(default_factory=list)


class HeldChunks:
    """Keeps the chunks that the device forwards until it can take them."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}  # by SCTP stream
        self._fragments = Fragments()
        self._due: deque[bytes] = deque()

    @property
    def octets(self) -> int:
        """The octets of all chunks that are kept."""
        early = (each for asked in self._asked.values() for each in asked.early)
        return sum(map(len, chain(self._fragments, self._due, early)))

    def ask(self, sid: int, tsn: int) -> None:
        """Notes that this end initiates a session; the peer's chunks up to ``tsn`` are of
        earlier ones.
        """
        self._asked[sid] = _Asked(tsn)

    def answer(self, sid: int) -> None:
        """Notes that the answer has come: an Accept or a refusal."""
        if (asked := self._asked.get(sid)) is not None:
            asked.answered = True

    def end(self, sid: int) -> None:
        """Notes that the session is over, or that the peer opens the next one: its chunks
        are dropped.
        """
        self._asked.pop(sid, None)
        self._fragments.drop(sid)
        self._due = deque(each for each in self._due if stream_of(each) != sid)

    def take(self, reason: int, chunk: bytes) -> None:
        """Takes a chunk with a new TSN.

        Raises
        ------
        InvalidRequest
            The chunk belongs to a message that no packet can hold.
        """
        message = self._fragments.take(chunk) if reason == Diversion.FRAGMENT else chunk
        if message is None:
            return
        asked = self._asked.get(stream_of(message))
        if asked is not None and 0 < (_tsn(message) - asked.tsn) % _TSN < _TSN // 2:
            asked.early.append(message)
        elif reason == Diversion.FRAGMENT:
            self._due.append(message)

    def due(self) -> deque[bytes]:
        """Returns the chunks whose session is established; the caller removes those that it hands
        back.
        """
        for asked in self._asked.values():
            if asked.answered:
                self._due.extend(asked.early)
                asked.early.clear()
        return self._due


def _tsn(chunk: bytes) -> int:
    return int.from_bytes(chunk[4:8], "big")


def stream_of(chunk: bytes) -> int:
    """Returns the SCTP stream of a DATA chunk."""
    return int.from_bytes(chunk[8:10], "big")


def ssn_of(chunk: bytes) -> int:
    """Returns the DDP-SSN of a message, which is whole."""
    return int.from_bytes(chunk[DATA_HEADER : DATA_HEADER + SSN], "big")


def message_of(fragments: Sequence[bytes]) -> bytes:
    """Returns one DATA chunk with a message's whole payload, from its fragments in the order of
    TSNs.

    It has the TSN, SCTP stream and Payload Protocol Identifier of the first fragment.

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
    """Returns an Ethernet frame, without FCS, whose SCTP packet holds one chunk.

    Parameters
    ----------
    path
        The address of the peer, then the address of this end.
    ports
        The port of the peer, then the port of this end.
    tag
        Verification Tag of packets from the peer.
    chunk
        The chunk's octets, with or without padding.
    """
    packet = struct.pack(">HHII", *ports, tag, 0) + chunk + bytes(-len(chunk) % 4)
    digest = struct.pack("<I", crc32c(packet))
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
