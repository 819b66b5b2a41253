"""Makes the traffic that ``rnic sim`` plays without a capture, and the project's own capture.

Ten connections between two hosts, made with the model's own Data Source and MPA. The hosts read and
write each other's memory and send each other messages on every queue: sizes around every boundary
at any alignment, FPDUs one to a TCP segment, packed, cut anywhere, reordered and repeated, CRC on
and off, markers, IPv6, jumbo frames. Towards the end all but one of the initiators' streams meet an
error, which the receiver answers with a Terminate, as RFC 5040 requires.

The project's capture is written with::

    python -m ddp_rnic.sim.replay.workload sim/data/workload.pcap
"""

from __future__ import annotations

import ipaddress
import random
import struct
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...hdl.spec.config import RnicConfig
from ...hdl.spec.ddp import (
    BASE_OR_BOUNDS,
    INVALID_MO,
    INVALID_QN,
    INVALID_STAG,
    LLP_CRC,
    MESSAGE_TOO_LONG,
    MSN_RANGE,
    NO_BUFFER,
    TAGGED_VERSION,
    ErrorNumber,
    ErrorType,
)
from ...hdl.spec.net import internet_sum
from ..capture.capture import Capture, Endpoint, capture_of
from ..capture.pcap import Frame, write_pcap
from ..model.ddp import DataSource, UntaggedHeader, header_length
from ..model.mpa import Enhanced, MpaSender, StartupFrame, negotiate
from .regions import Region, slot

_ETHERNET = 1
_TCP = 6
_SIZES = (
    0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 500,
    511, 512, 513, 1000, 1024, 1371, 1425, 1426, 1427, 1428, 1429, 2048, 3000, 4095, 4096, 4097,
    9000, 16384,
)  # fmt: skip
_REGION = 65536
_FILL = 0xEE

# RDMAP version 1 opcodes, RFC 5040 section 4.1
WRITE, _READ_REQUEST, _READ_RESPONSE, SEND, _SEND_INVALIDATE, _SEND_SOLICITED, _TERMINATE = (
    0x40 | opcode for opcode in (0, 1, 2, 3, 4, 5, 7)
)


@dataclass(frozen=True)
class Workload:
    """Frames, the regions that they address, and the final contents of the regions.

    ``messages`` are the messages that each end must receive in untagged buffers, in order, with
    their Queue Numbers: by source and destination.
    """

    frames: tuple[Frame, ...]
    regions: tuple[Region, ...]
    octets: dict[Region, bytes]
    messages: dict[tuple[Endpoint, Endpoint], list[tuple[int, bytes]]]

    def capture(self) -> Capture:
        """Returns the frames, read as a capture."""
        return capture_of(self.frames, Path("generated workload"))


@dataclass(frozen=True, kw_only=True)
class _Style:
    """The set-up of a connection, and the way its octets are put into TCP segments."""

    addresses: tuple[str, str] = ("10.7.0.1", "10.7.0.2")
    crc: bool = True
    markers: tuple[bool, bool] = (False, False)  # the wish of the initiator, of the responder
    revision: int = 2
    mtu: int = 1500
    packed: bool = False  # segments are full, FPDUs cut anywhere
    shuffled: bool = False
    fault: ErrorNumber | None = None


_STYLES = (
    _Style(fault=INVALID_STAG),
    _Style(markers=(True, True), revision=1, packed=True, fault=LLP_CRC),
    _Style(crc=False, mtu=9000, fault=BASE_OR_BOUNDS),
    _Style(addresses=("fd00:7::1", "fd00:7::2"), markers=(False, True), packed=True, shuffled=True),
    _Style(crc=False, revision=1, shuffled=True, fault=TAGGED_VERSION),
    _Style(packed=True, fault=INVALID_QN),
    _Style(crc=False, fault=NO_BUFFER),
    _Style(markers=(True, False), revision=1, fault=MSN_RANGE),
    _Style(packed=True, fault=INVALID_MO),
    _Style(addresses=("fd00:7::1", "fd00:7::2"), shuffled=True, fault=MESSAGE_TOO_LONG),
)
#: Short segments, because a board has little memory for those of messages.
_BOARD_STYLE = _Style(markers=(True, False), mtu=256, packed=True, fault=BASE_OR_BOUNDS)


def generate(seed: int = 1, messages: int = 60, largest: int = 1 << 14) -> Workload:
    """Makes a workload.

    Parameters
    ----------
    seed
        Equal seeds make equal workloads.
    messages
        How many messages a connection carries, besides those about its end.
    largest
        Octets of the longest message.
    """
    wire = Wire()
    talks = _connections(wire, random.Random(seed), _STYLES, messages, largest)
    octets = {
        buffer.region: bytes(buffer.octets)
        for connection in talks
        for peer in connection.peers
        for buffer in peer.buffers
    }
    received = {
        (peer.end, connection.peers[not side].end): peer.messages
        for connection in talks
        for side, peer in enumerate(connection.peers)
    }
    return Workload(tuple(wire.frames), tuple(octets), octets, received)


def for_board(stags: int, count: int, messages: int, largest: int) -> tuple[Frame, ...]:
    """Makes the frames of connections that a board's TCP can receive.

    Parameters
    ----------
    stags
        Entries of the board's Steering Tag table.
    count
        How many connections.
    messages, largest
        As for :func:`generate`.
    """
    wire = Wire(stags, region=4 * largest + 256)
    _connections(wire, random.Random(1), count * (_BOARD_STYLE,), messages, largest)
    return tuple(wire.frames)


def _connections(
    wire: Wire, rng: random.Random, styles: tuple[_Style, ...], messages: int, largest: int
) -> list[_Connection]:
    """Makes one connection of each style, which take turns until their end; returns the
    connections.
    """
    sizes = [size for size in _SIZES if size <= largest]
    talks = [_Connection(wire, rng, number, style) for number, style in enumerate(styles)]
    for connection in talks:
        connection.greet()
    turns = [connection for connection in talks for _ in range(messages)]
    rng.shuffle(turns)
    for connection in turns:
        connection.converse(rng.choice(sizes))
    for connection in talks:
        connection.end()
    return talks


# -- the wire --


class Wire:
    """Collects frames in order, ten microseconds apart.

    Parameters
    ----------
    stags
        Entries of an RNIC's Steering Tag table.
    region
        Octets of the longest region.
    """

    def __init__(self, stags: int = RnicConfig.stags, region: int = _REGION) -> None:
        self.frames: list[Frame] = []
        self.region = region
        self._stags = stags
        self._slots: set[int] = set()

    def new_stag(self, rng: random.Random) -> int:
        """Returns a random STag; all of them together fit in the table of one RNIC."""
        while slot(stag := rng.getrandbits(32), self._stags) in self._slots:
            pass
        self._slots.add(slot(stag, self._stags))
        return stag

    def put(
        self,
        source: Endpoint,
        destination: Endpoint,
        sequence: int,
        acknowledge: int,
        flags: int,
        octets: bytes = b"",
    ) -> None:
        """Puts a TCP segment into a frame."""
        addresses = [ipaddress.ip_address(end.address) for end in (source, destination)]
        packed = b"".join(address.packed for address in addresses)
        length = 20 + len(octets)
        if addresses[0].version == 4:
            pseudo = packed + struct.pack(">HH", _TCP, length)
        else:
            pseudo = packed + struct.pack(">II", length, _TCP)
        head = struct.pack(
            ">HHIIBBH",
            source.port,
            destination.port,
            sequence & 0xFFFFFFFF,
            acknowledge & 0xFFFFFFFF,
            0x50,
            flags,
            65535,
        )
        checksum = ~internet_sum(pseudo + head + bytes(4) + octets) & 0xFFFF
        packet = head + struct.pack(">HH", checksum, 0) + octets
        self.put_packet(source.address, destination.address, _TCP, packet)

    def put_packet(self, source: str, destination: str, protocol: int, packet: bytes) -> None:
        """Puts an IP packet with this payload into a frame."""
        addresses = [ipaddress.ip_address(end) for end in (source, destination)]
        packed = b"".join(address.packed for address in addresses)
        if addresses[0].version == 4:
            length, count = 20 + len(packet), len(self.frames) & 0xFFFF
            header = struct.pack(">BBHHHBBH", 0x45, 0, length, count, 0x4000, 64, protocol, 0)
            checksum = ~internet_sum(header + packed) & 0xFFFF
            network = header[:10] + struct.pack(">H", checksum) + packed
        else:
            network = struct.pack(">IHBB", 6 << 28, len(packet), protocol, 64) + packed
        hosts = [b"\x02\0\0\0\0" + address.packed[-1:] for address in reversed(addresses)]
        kind = b"\x08\x00" if addresses[0].version == 4 else b"\x86\xdd"
        number = len(self.frames) + 1
        self.frames.append(
            Frame(
                number,
                number * 1e-5,
                _ETHERNET,
                b"".join(hosts) + kind + network + packet,
            )
        )


@dataclass
class _Buffer:
    region: Region
    octets: bytearray


@dataclass
class _Peer:
    """One end of a connection: its senders, and the memory that the other end may write to."""

    end: Endpoint
    sender: MpaSender
    source: DataSource
    sequence: int
    mss: int
    buffers: list[_Buffer]
    waiting: bytearray = field(default_factory=bytearray)
    messages: list[tuple[int, bytes]] = field(default_factory=list)  # untagged messages sent
    dead: bool = False  # True once this peer's receiver accepts nothing more


class _Connection:
    """A connection, and the conversation over it."""

    def __init__(self, wire: Wire, rng: random.Random, number: int, style: _Style) -> None:
        self._wire = wire
        self._rng = rng
        self._style = style
        ends = [
            Endpoint(address, port)
            for address, port in zip(style.addresses, (40000 + number, 7174), strict=True)
        ]
        enhanced = Enhanced(ird=16, ord=16) if style.revision == 2 else None
        frames = [
            StartupFrame(
                kind="reply" if responds else "request",
                revision=style.revision,
                markers=markers,
                crc=style.crc,
                enhanced=enhanced,
            )
            for responds, markers in enumerate(style.markers)
        ]
        agreed = negotiate(*frames)
        towards = (agreed.markers_to_responder, agreed.markers_to_initiator)
        overhead = 60 if ":" in ends[0].address else 40
        self.peers = [
            _Peer(
                end,
                MpaSender(crc=agreed.crc, markers=markers),
                # Room for length, CRC and as many markers as can stand in a TCP segment.
                DataSource(style.mtu - overhead - 6 - 3 - (style.mtu // 512 + 1) * 4),
                0xFFFFFF00 + number if number % 2 else rng.getrandbits(32),
                style.mtu - overhead,
                [self._buffer(end.address) for _ in range(2)],
            )
            for end, markers in zip(ends, towards, strict=True)
        ]
        self._start(frames)

    def _buffer(self, address: str) -> _Buffer:
        length = self._wire.region - self._rng.randrange(256)
        region = Region(
            address, self._wire.new_stag(self._rng), self._rng.randrange(1 << 47), length, _FILL
        )
        return _Buffer(region, bytearray([_FILL]) * length)

    def _start(self, frames: list[StartupFrame]) -> None:
        initiator, responder = self.peers
        self._put(initiator, 0x02)
        initiator.sequence += 1
        self._put(responder, 0x12)
        responder.sequence += 1
        self._put(initiator, 0x10)
        for peer, frame in zip(self.peers, frames, strict=True):
            octets = frame.encode()
            self._put(peer, 0x18, octets)
            peer.sequence += len(octets)

    def _put(self, peer: _Peer, flags: int, octets: bytes = b"", ahead: int = 0) -> None:
        other = self._other(peer)
        self._wire.put(peer.end, other.end, peer.sequence + ahead, other.sequence, flags, octets)

    def _other(self, peer: _Peer) -> _Peer:
        return self.peers[peer is self.peers[0]]

    # -- RDMAP operations

    def greet(self) -> None:
        """Sends messages on every queue in both directions: no octets, a few, and more than
        a segment holds.
        """
        for peer in self.peers:
            self.send(peer, 0)
            self.send(peer, peer.source.mulpdu + 100)
            self.notify(peer, self._rng.randrange(1, 100))
            self.read(peer, 0)
            self._flush(peer)

    def converse(self, size: int) -> None:
        """Sends one message in either direction, or an RDMA Read and its answer."""
        peer = self._rng.choice(self.peers)
        kind = self._rng.choice(
            (self.write, self.write, self.write, self.send, self.send, self.notify, self.read)
        )
        kind(peer, size)
        if not self._style.packed or self._rng.random() < 0.3:
            self._flush(peer)

    def write(self, peer: _Peer, size: int) -> None:
        """Sends an RDMA Write to anywhere in one of the other end's regions."""
        self._tagged(peer, self._rng.choice(self._other(peer).buffers), size, WRITE)

    def send(self, peer: _Peer, size: int) -> None:
        """Sends a Send, with or without Solicited Event."""
        opcode = self._rng.choice((SEND, _SEND_SOLICITED))
        self._untagged(peer, 0, self._rng.randbytes(size), opcode)

    def notify(self, peer: _Peer, size: int) -> None:
        """Sends a message on the queue that RDMAP does not use, with an RsvdULP field of its
        own.
        """
        message = self._rng.randbytes(size)
        self._untagged(peer, 3, message, self._rng.getrandbits(4) << 4, self._rng.getrandbits(32))

    def read(self, peer: _Peer, size: int) -> None:
        """Sends an RDMA Read Request, and the Response into the reader's own memory."""
        sink = self._rng.choice(peer.buffers)
        offset = self._rng.randrange(sink.region.length - size)
        request = struct.pack(">IQIIQ", sink.region.stag, sink.region.to + offset, size, 0, 0)
        self._untagged(peer, 1, request, _READ_REQUEST)
        self._flush(peer)
        other = self._other(peer)
        self._tagged(other, sink, size, _READ_RESPONSE, offset)
        self._flush(other)

    def _tagged(
        self, peer: _Peer, target: _Buffer, size: int, opcode: int, offset: int | None = None
    ) -> None:
        if offset is None:
            offset = self._rng.randrange(target.region.length - size)
        message = self._rng.randbytes(size)
        if not peer.dead:
            target.octets[offset : offset + size] = message
        self._segments(
            peer,
            peer.source.tagged(
                target.region.stag, target.region.to + offset, message, rsvdulp=opcode
            ),
        )

    def _untagged(
        self, peer: _Peer, queue: int, message: bytes, opcode: int, more: int = 0
    ) -> None:
        if not peer.dead:
            peer.messages.append((queue, message))
        self._segments(peer, peer.source.untagged(queue, message, rsvdulp=opcode << 32 | more))

    def _segments(self, peer: _Peer, segments: list[bytes]) -> None:
        for segment in segments:
            peer.waiting += peer.sender.send(segment)
            if not self._style.packed:
                self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        """Sends the waiting octets: full TCP segments, in disorder and repeated where the
        style says so.
        """
        pieces = [
            (at, bytes(peer.waiting[at : at + peer.mss]))
            for at in range(0, len(peer.waiting), peer.mss)
        ]
        if self._style.shuffled and pieces:
            self._rng.shuffle(pieces)
            pieces.append(self._rng.choice(pieces))
        for at, piece in pieces:
            self._put(peer, 0x18, piece, ahead=at)
        peer.sequence += len(peer.waiting)
        peer.waiting.clear()

    # -- the end

    def end(self) -> None:
        """Sends a message with a fault, messages after it, which are dropped, and the Terminate.

        The fault is an invalidated region, or another one.
        """
        peer = self.peers[0]
        fault = self._style.fault
        if fault is not None:
            first = self._offend(peer, fault)
            peer.dead = True
            self.write(peer, 100)
            self.send(peer, 10)
            self._flush(peer)
            # RFC 5040 section 4.8: layer and Error Type, Error Code, which headers follow
            layer = 2 if fault.type == ErrorType.LLP else 1
            kind = 0 if fault.type == ErrorType.LLP else fault.type
            content = struct.pack(">BBH", layer << 4 | kind, fault.code, 0xC000 if first else 0)
            if first:
                content += struct.pack(">H", len(first)) + first[: header_length(first)]
            self._untagged(self._other(peer), 2, content, _TERMINATE)
        for each in self.peers:
            self._flush(each)
        for each in self.peers:
            self._put(each, 0x11)

    def _offend(self, peer: _Peer, fault: ErrorNumber) -> bytes:
        """Sends a segment with the fault; returns it, or nothing where its header cannot be
        trusted.
        """
        region = self._other(peer).buffers[0].region
        payload = self._rng.randbytes(100)
        (segment,) = peer.source.tagged(region.stag, region.to, payload, rsvdulp=WRITE)
        if fault == LLP_CRC:
            octets = bytearray(peer.sender.send(segment))
            octets[-20] ^= 0x10
            peer.waiting += octets
            self._flush(peer)
            return b""
        if fault == INVALID_STAG:
            self._untagged(peer, 0, b"the region goes", _SEND_INVALIDATE, region.stag)
        elif fault == BASE_OR_BOUNDS:
            past = region.to + region.length - 99
            (segment,) = peer.source.tagged(region.stag, past, payload, rsvdulp=WRITE)
        elif fault == TAGGED_VERSION:
            segment = bytes([segment[0] & ~3 | 2]) + segment[1:]
        elif fault == MESSAGE_TOO_LONG:
            # The Terminate will name the second segment, in which the buffer ends.
            message = self._rng.randbytes(peer.source.mulpdu)
            begin, segment = peer.source.untagged(0, message, rsvdulp=SEND << 32)
            self._segments(peer, [begin])
        elif fault.type == ErrorType.UNTAGGED:
            (segment,) = peer.source.untagged(0, payload, rsvdulp=SEND << 32)
            header = UntaggedHeader.decode(segment)
            queue, ahead, offset = _ASTRAY[fault]
            header = replace(header, qn=queue, msn=header.msn + ahead, mo=offset)
            segment = header.encode() + payload
        self._segments(peer, [segment])
        return segment


#: The faults of an untagged segment: its Queue Number, the distance of its MSN from the right one,
#: its MO.
_ASTRAY = {
    INVALID_QN: (9, 0, 0),
    NO_BUFFER: (0, 5000, 0),
    MSN_RANGE: (0, -1, 0),
    INVALID_MO: (0, 0, 100_000),
}
#: The workload of the project's capture: few and short messages, so that it is small.
SHIPPED = {"seed": 1, "messages": 6, "largest": 2048}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m ddp_rnic.sim.replay.workload FILE.pcap")
    write_pcap(generate(**SHIPPED).frames, Path(sys.argv[1]))
