"""Writes the octets of connections as a capture that ``rnic sim`` can play."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import dpkt

#: The addresses of this side and of its peers in the capture; each connection has a port.
_OURS, _THEIRS = bytes([10, 0, 2, 2]), bytes([10, 0, 2, 15])
_PORT, _FIRST = 7174, 49152
#: Octets of a frame's TCP payload.
_PIECE = 1448


@dataclass
class _Way:
    """One direction of a connection."""

    source: bytes
    target: bytes
    sport: int
    dport: int
    next: int = 0


class Recorder:
    """Writes a pcap file of TCP connections, and of frames. ``with`` opens and closes it.

    The frames of connections are rebuilt from the octets that sockets carried. Addresses are those
    of an example.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connections: dict[object, tuple[_Way, _Way]] = {}

    def __enter__(self) -> Self:
        self._file = self._path.open("wb")
        self._writer = dpkt.pcap.Writer(self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for ways in self._connections.values():
            for sent in (True, False):
                self._segment(ways, sent, dpkt.tcp.TH_FIN | dpkt.tcp.TH_ACK)
        self._file.close()

    def record(self, connection: object, sent: bool, octets: bytes) -> None:
        """Takes octets that a connection has sent or received."""
        ways = self._connections.get(connection) or self._begin(connection, sent)
        for at in range(0, len(octets), _PIECE):
            self._segment(
                ways, sent, dpkt.tcp.TH_ACK | dpkt.tcp.TH_PUSH, bytes(octets[at : at + _PIECE])
            )

    def frame(self, frame: bytes) -> None:
        """Takes a frame without FCS."""
        self._writer.writepkt(frame, ts=time.time())

    def _begin(self, connection: object, sent: bool) -> tuple[_Way, _Way]:
        """Writes TCP's start-up. Who sends first has opened the connection."""
        port = _FIRST + len(self._connections) % (65536 - _FIRST)
        ports = (port, _PORT) if sent else (_PORT, port)
        ours = _Way(_OURS, _THEIRS, *ports)
        theirs = _Way(_THEIRS, _OURS, *reversed(ports))
        ways = self._connections[connection] = ours, theirs
        self._segment(ways, sent, dpkt.tcp.TH_SYN)
        self._segment(ways, not sent, dpkt.tcp.TH_SYN | dpkt.tcp.TH_ACK)
        self._segment(ways, sent, dpkt.tcp.TH_ACK)
        return ways

    def _segment(self, ways: tuple[_Way, _Way], sent: bool, flags: int, data: bytes = b"") -> None:
        way, back = ways if sent else ways[::-1]
        tcp = dpkt.tcp.TCP(
            sport=way.sport, dport=way.dport, seq=way.next, ack=back.next, flags=flags, data=data
        )
        ip = dpkt.ip.IP(src=way.source, dst=way.target, p=dpkt.ip.IP_PROTO_TCP, ttl=64, data=tcp)
        ip.len = len(ip)
        frame = dpkt.ethernet.Ethernet(
            src=b"\x02\0\0\0\0" + way.source[-1:], dst=b"\x02\0\0\0\0" + way.target[-1:], data=ip
        )
        self.frame(bytes(frame))
        way.next += len(data) + bool(flags & (dpkt.tcp.TH_SYN | dpkt.tcp.TH_FIN))
        way.next %= 1 << 32
