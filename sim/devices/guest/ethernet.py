"""The guest's second network: an Ethernet whose other station is this program."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import dpkt

__all__ = ["GUEST", "GUEST6", "HOST", "HOST6", "HOST_MAC", "LINK", "MSS", "Ethernet"]

#: The addresses of both stations.
HOST, GUEST = "10.0.3.2", "10.0.3.15"
HOST6, GUEST6 = "fd00:3::2", "fd00:3::15"
#: Octets of the longest TCP segment in a frame.
MSS = 1460
#: The stations' MAC addresses.
_HOST_MAC, _GUEST_MAC = bytes.fromhex("525500000302"), bytes.fromhex("525500000315")
HOST_MAC, GUEST_MAC = (each.hex(":") for each in (_HOST_MAC, _GUEST_MAC))
#: The first octets of frames to the guest, up to the EtherType.
LINK = _GUEST_MAC + _HOST_MAC
_LONGEST = 1 << 16


class Ethernet(AbstractContextManager["Ethernet"]):
    """This machine's station on the guest's Ethernet. ``with`` frees it.

    It answers ARP, and carries frames, or TCP segments in them. Frames that the guest does not take
    are lost, as on any Ethernet.

    Parameters
    ----------
    folder
        Where the sockets are made to which QEMU connects.
    """

    #: The names of both ends of the cable: sockets in a folder.
    _ENDS = "host", "guest"

    def __init__(self, folder: Path) -> None:
        self._here, self._there = (folder / name for name in self._ENDS)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self._here))

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def options(self) -> str:
        """QEMU's option ``-netdev``, without its identifier."""
        ends = (("local", self._there), ("remote", self._here))
        return "dgram" + "".join(f",{end}.type=unix,{end}.path={path}" for end, path in ends)

    def send(self, segment: dpkt.tcp.TCP) -> None:
        """Sends a segment; its checksum is computed."""
        source, destination = (ipaddress.ip_address(each).packed for each in (HOST, GUEST))
        segment.off = 5 + (len(segment.opts) + 3) // 4
        packet = dpkt.ip.IP(src=source, dst=destination, p=dpkt.ip.IP_PROTO_TCP, data=segment)
        packet.len = len(packet)
        self._send(dpkt.ethernet.ETH_TYPE_IP, packet)

    def receive(self) -> Iterator[dpkt.tcp.TCP]:
        """Yields the guest's segments that have come. Frames that cannot be read are dropped."""
        for frame in self.frames():
            found = dpkt.ethernet.Ethernet(frame).data
            if isinstance(found, dpkt.ip.IP) and isinstance(found.data, dpkt.tcp.TCP):
                yield found.data

    def frames(self) -> Iterator[bytes]:
        """Yields the guest's frames that have come, except those of ARP and those that cannot be
        read.
        """
        with suppress(BlockingIOError):
            while True:
                frame = self._socket.recv(_LONGEST)
                try:
                    found = dpkt.ethernet.Ethernet(frame).data
                except dpkt.UnpackError:
                    continue
                if isinstance(found, dpkt.arp.ARP):
                    self._answer(found)
                else:
                    yield frame

    def put(self, frame: bytes) -> None:
        """Sends a frame without FCS."""
        with suppress(BlockingIOError, FileNotFoundError, ConnectionRefusedError):
            self._socket.sendto(frame, str(self._there))

    def _answer(self, asked: dpkt.arp.ARP) -> None:
        """Answers a request for this station's MAC address."""
        if asked.op == dpkt.arp.ARP_OP_REQUEST and asked.tpa == ipaddress.ip_address(HOST).packed:
            answer = dpkt.arp.ARP(
                op=dpkt.arp.ARP_OP_REPLY, sha=_HOST_MAC, spa=asked.tpa, tha=asked.sha,
                tpa=asked.spa,
            )  # fmt: skip
            self._send(dpkt.ethernet.ETH_TYPE_ARP, answer)

    def _send(self, kind: int, packet: dpkt.Packet) -> None:
        self.put(
            bytes(dpkt.ethernet.Ethernet(dst=_GUEST_MAC, src=_HOST_MAC, type=kind, data=packet))
        )
