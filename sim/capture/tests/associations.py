"""SCTP for the tests: two ends that talk, one line of code for each frame of a capture."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from dataclasses import replace

import dpkt
from ddp_rnic.sim.capture.pcap import Frame
from ddp_rnic.sim.capture.tests.frames import ethernet
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.sctp import (
    ACCEPTS,
    ADAPTATION_DDP,
    ADAPTATION_PARAMETER,
    ENHANCED_DATA,
    INITIATES,
    AnyChunk,
    Chunk,
    ChunkType,
    DataChunk,
    Function,
    InitChunk,
    Packet,
    Ppid,
)

A, B = "10.7.0.1", "10.7.0.2"
PORTS = {A: 40000, B: 5043}
WRITE, READ_REQUEST, SEND, SEND_INVALIDATE = (0x40 | opcode for opcode in (0, 1, 3, 4))


def sctp_in_ip(source: str, destination: str, packet: bytes, *, udp: bool = False) -> bytes:
    """Returns an IP packet around an SCTP packet."""
    ends = [ipaddress.ip_address(end) for end in (source, destination)]
    protocol = 17 if udp else 132
    if udp:
        packet = struct.pack(">HHHH", 9899, 9899, 8 + len(packet), 0) + packet
    if ends[0].version == 4:
        ip = dpkt.ip.IP(src=ends[0].packed, dst=ends[1].packed, p=protocol)
        header = bytes(ip)[:20]
        header = header[:2] + struct.pack(">H", 20 + len(packet)) + header[4:10] + bytes(2)
        header += ends[0].packed + ends[1].packed
        checksum = dpkt.in_cksum(header)
        return header[:10] + struct.pack(">H", checksum) + header[12:] + packet
    header = struct.pack(">IHBB", 6 << 28, len(packet), protocol, 64)
    return header + ends[0].packed + ends[1].packed + packet


class Peers:
    """Collects the frames in the order in which the methods are called. ``a`` sets the
    association up.
    """

    def __init__(
        self,
        a: str = A,
        b: str = B,
        *,
        tags: tuple[int, int] = (0xA1A2A3A4, 0xB1B2B3B4),
        tsns: tuple[int, int] = (1000, 5000),
        adaptations: tuple[int | None, int | None] = (ADAPTATION_DDP, ADAPTATION_DDP),
        streams: int = 16,
        udp: bool = False,
        frames: list[Frame] | None = None,
    ) -> None:
        self.frames: list[Frame] = [] if frames is None else frames
        self.ends = a, b
        self.tags = dict(zip(self.ends, tags, strict=True))
        self.ports = dict(zip(self.ends, PORTS.values(), strict=True))
        self._udp = udp
        self._next = dict(zip(self.ends, tsns, strict=True))
        self._ssn: dict[tuple[str, int], int] = {}
        self._msn: dict[tuple[str, int, int], int] = {}
        self.inits = {
            end: InitChunk(
                self.tags[end],
                self._next[end],
                streams,
                streams,
                parameters=()
                if adaptation is None
                else ((ADAPTATION_PARAMETER, adaptation.to_bytes(4, "big")),),
            )
            for end, adaptation in zip(self.ends, adaptations, strict=True)
        }

    def other(self, end: str) -> str:
        return self.ends[1] if end == self.ends[0] else self.ends[0]

    def send(self, source: str, *chunks: AnyChunk, tag: int | None = None) -> Frame:
        """Sends a packet, in a frame."""
        destination = self.other(source)
        packet = Packet(
            self.ports[source],
            self.ports[destination],
            self.tags[destination] if tag is None else tag,
            chunks,
        ).encode()
        octets = ethernet(sctp_in_ip(source, destination, packet, udp=self._udp))
        number = len(self.frames) + 1
        self.frames.append(Frame(number, number * 1e-3, 1, octets))
        return self.frames[-1]

    def again(self, frame: Frame) -> None:
        """Repeats a frame, as the network may."""
        self.frames.append(replace(frame, number=len(self.frames) + 1))

    def set_up(self, *bundled: AnyChunk) -> None:
        """Makes the handshake; the COOKIE ECHO carries chunks."""
        a, b = self.ends
        self.send(a, self.inits[a], tag=0)
        self.send(b, replace(self.inits[b], acknowledges=True))
        self.send(a, Chunk(ChunkType.COOKIE_ECHO, 0, b"cookie"), *bundled)
        self.send(b, Chunk(ChunkType.COOKIE_ACK))

    def data(self, source: str, sid: int, ppid: int, payload: bytes) -> DataChunk:
        """Returns the next DATA chunk, with the next DDP-SSN of its stream before the payload."""
        tsn = self._next[source]
        self._next[source] += 1
        ssn = self._ssn.get((source, sid), 0)
        self._ssn[source, sid] = ssn + 1
        return DataChunk(tsn & 0xFFFFFFFF, sid, ppid, struct.pack(">H", ssn & 0xFFFF) + payload)

    def control(self, source: str, sid: int, function: Function, private: bytes = b"") -> DataChunk:
        """Returns a control message; an Initiate, and its answer, begin the stream anew."""
        if function is not Function.TERMINATE:
            self._ssn.pop((source, sid), None)
            for qn in range(4):
                self._msn.pop((source, sid, qn), None)
        return self.data(source, sid, Ppid.CONTROL, struct.pack(">H", function) + private)

    def open(self, sid: int, source: str | None = None, *, enhanced: bool = False) -> None:
        """Opens and accepts a session."""
        source = source or self.ends[0]
        limits = bytes(ENHANCED_DATA * enhanced)
        self.send(source, self.control(source, sid, INITIATES[enhanced], limits))
        other = self.other(source)
        self.send(other, self.control(other, sid, ACCEPTS[enhanced], limits))

    def close(self, sid: int) -> None:
        """Ends a session on both sides."""
        for end in self.ends:
            self.send(end, self.control(end, sid, Function.TERMINATE))

    def write(self, source: str, sid: int, stag: int, to: int, payload: bytes) -> DataChunk:
        """Returns an RDMA Write of one segment."""
        segment = TaggedHeader(stag, to, True, WRITE).encode() + payload
        return self.data(source, sid, Ppid.SEGMENT, segment)

    def message(
        self,
        source: str,
        sid: int,
        payload: bytes,
        *,
        opcode: int = SEND,
        qn: int = 0,
        stag: int = 0,
        msn: int | None = None,
    ) -> DataChunk:
        """Returns an untagged message of one segment, the next one of its queue."""
        key = source, sid, qn
        msn = self._msn.get(key, 0) + 1 if msn is None else msn
        self._msn[key] = msn
        header = UntaggedHeader(qn, msn, 0, True, opcode << 32 | stag)
        return self.data(source, sid, Ppid.SEGMENT, header.encode() + payload)


def numbered(frames: Iterable[Frame]) -> list[Frame]:
    """Returns frames in a new order, numbered anew."""
    return [replace(frame, number=number) for number, frame in enumerate(frames, 1)]
