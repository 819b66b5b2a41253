"""Makes loads of equal segments, one after the other, for measurements."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...hdl.spec import commands
from ...hdl.spec.config import RnicConfig
from ...hdl.spec.net import AssociationKey, EtherType, Protocol, insert, internet_sum
from ...hdl.spec.sctp import Function
from ...hdl.spec.stag import Access
from ..engines.engine import (
    DeviceError,
    Drain,
    Engine,
    Frame,
    Operation,
    Outcome,
    Packet,
    Poll,
    Ring,
    Stalls,
    WriteRegister,
    operations_of,
)
from ..model.header import TaggedHeader
from ..model.mpa import MpaSender
from ..model.sctp import AnyChunk, DataChunk, Ppid, bundle
from ..model.sctp import Packet as SctpPacket

__all__ = ["Load", "SctpLoad"]

_STAG = 0x00000511
_STREAM = 1
_MEMORY = 1 << 20

# The addresses of the peer and of this end of the association, and the TSN of the peer's first
# chunk.
_ADDRESSES = bytes([10, 0, 0, 2]), bytes([10, 0, 0, 1])
_PORTS = 40001, 40002
_TAG = 0x0DDBA115
TSN = 1000
KEY = AssociationKey(
    source=int.from_bytes(_ADDRESSES[0], "little"),
    destination=int.from_bytes(_ADDRESSES[1], "little"),
    source_port=_PORTS[0],
    destination_port=_PORTS[1],
    tag=_TAG,
    v6=False,
)


@dataclass(frozen=True)
class Load:
    """Segments of one size at one alignment: ``offset`` octets past a beat's first lane."""

    config: RnicConfig
    payload: int
    offset: int = 0

    #: The ring for completions, or None without completions.
    ring: ClassVar[Ring | None] = None
    #: True if each segment is a message.
    whole: ClassVar[bool] = False

    @property
    def chunks(self) -> int:
        """The number of segments in a packet."""
        return 1

    @property
    def fpdu(self) -> int:
        """Octets of a segment's FPDU: length, header, payload, pad, CRC."""
        return -(-(2 + 14 + self.payload) // 4) * 4 + 4

    @property
    def beats_in(self) -> float:
        return -(-self.fpdu // self.config.octets)

    @property
    def beats_out(self) -> int:
        return -(-(self.offset + self.payload) // self.config.octets)

    @property
    def limit(self) -> float:
        """The least number of cycles that a segment can take."""
        return max(self.beats_in, self.beats_out)

    def __str__(self) -> str:
        return f"payload {self.payload} at offset {self.offset}, {self.config.width} bits"

    def count(self, cycles: int) -> int:
        """Returns how many segments take ``cycles`` cycles, but enough packets of them for a
        reliable rate.
        """
        return max(int(cycles // (self.limit * self.chunks)), 24) * self.chunks

    def packets(self, count: int, *, drained: bool = False) -> list[Operation]:
        """Returns packets with ``count`` segments; with ``drained`` each packet meets an
        idle RNIC.
        """
        operations: list[Operation] = []
        for packet in self._carry(self._segments(count)):
            operations.append(packet)
            if drained:
                operations.append(Drain())
        return operations

    def _segments(self, count: int) -> Iterator[bytes]:
        stride = self.beats_out * self.config.octets
        room = _MEMORY // 2 // stride
        octets = bytes(at * 7 & 255 for at in range(self.payload))
        for number in range(count):
            header = TaggedHeader(_STAG, number % room * stride + self.offset, self.whole)
            yield header.encode() + octets

    def _carry(self, segments: Iterable[bytes]) -> Iterator[Packet | Frame]:
        sender = MpaSender()
        for segment in segments:
            position = sender.position
            yield Packet(_STREAM, position % 2**32, sender.send(segment))

    def run(self, engine: Engine, operations: Sequence[Operation], count: int) -> Outcome:
        """Runs ``operations`` that place ``count`` of the segments, and no others."""
        memory = np.zeros(_MEMORY, np.uint8)
        # Memory answers without delay, so that the RNIC is measured, not the bus.
        stalls = Stalls(response_latency=1)
        outcome = engine.run(
            self.config, [*self.setup(), *operations], memory, ring=self.ring, stalls=stalls
        )
        placed, beats = outcome.counters["PLACED_SEGMENTS"], len(outcome.writes)
        if (placed, beats) != (count, count * self.beats_out):
            raise DeviceError(
                f"{self}: segments placed expected {count} got {placed},"
                f" beats written expected {count * self.beats_out} got {beats}"
            )
        return outcome

    def setup(self) -> list[Operation]:
        """Registers a region over half of memory, and sets up a stream with CRC."""
        stag = commands.set_stag(
            _STAG, Access.REMOTE_WRITE, pd=_STREAM, to=0, length=_MEMORY // 2, address=0
        )
        return [*operations_of((*stag, *commands.set_stream(_STREAM, pd=_STREAM, crc=True)))]


@dataclass(frozen=True)
class SctpLoad(Load):
    """A load over SCTP, in which each segment is a message.

    Packets are filled up to ``mtu``, or have one segment each.
    """

    mtu: int = 0

    ring = Ring(_MEMORY // 2, 13, RnicConfig().completion_queues)
    whole = True

    @property
    def chunk(self) -> int:
        """Octets of a segment's chunk: DATA, DDP-SSN, header, payload."""
        return -(-(16 + 2 + 14 + self.payload) // 4) * 4

    @property
    def chunks(self) -> int:
        return max((self.mtu - 20 - 12) // self.chunk, 1)

    @property
    def beats_in(self) -> float:
        """A segment's share of the beats of Ethernet, IPv4, SCTP and the chunks."""
        beats = -(-(14 + 20 + 12 + self.chunks * self.chunk) // self.config.octets)
        return beats if self.chunks == 1 else beats / self.chunks

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.chunks} in a packet of SCTP"

    def _carry(self, segments: Iterable[bytes]) -> Iterator[Packet | Frame]:
        chunks = (chunk(ssn, Ppid.SEGMENT, segment) for ssn, segment in enumerate(segments, 1))
        packets = bundle(chunks, self.mtu) if self.mtu else ((chunk,) for chunk in chunks)
        yield from map(frame, packets)

    def setup(self) -> list[Operation]:
        """Sets up the same region and stream, for an association in which the peer accepted
        a session.
        """
        (move,) = insert({}, KEY, self.config.associations)
        association = commands.set_association(move, first=_STREAM, count=1)
        accept = struct.pack(">H", Function.ACCEPT)
        return [
            *self.ring.program(),
            *operations_of(association),
            *_tell(Function.FORGET),
            *super().setup(),
            *_tell(Function.INITIATE),
            frame((chunk(0, Ppid.CONTROL, accept),)),
            Drain(),
        ]


def chunk(ssn: int, ppid: Ppid, message: bytes) -> DataChunk:
    """Returns the chunk of a message with this DDP-SSN, continued past 65535."""
    return DataChunk(TSN + ssn, 0, ppid, struct.pack(">H", ssn & 0xFFFF) + message)


def frame(chunks: tuple[AnyChunk, ...]) -> Frame:
    packet = SctpPacket(*_PORTS, _TAG, chunks).encode()
    start = struct.pack(">BBHHHBB", 0x45, 0, 20 + len(packet), 0, 0, 64, Protocol.SCTP)
    ends = b"".join(_ADDRESSES)
    digest = (0xFFFF - internet_sum(start + ends)).to_bytes(2, "big")
    ethernet = bytes(12) + EtherType.IPV4.to_bytes(2, "big")
    return Frame(ethernet + start + digest + ends + packet)


def _tell(function: Function) -> list[WriteRegister | Poll]:
    """Announces the session to the RNIC, before the peer has sent anything."""
    return operations_of(commands.tell_session(_STREAM, function, TSN - 1, taken=True))
