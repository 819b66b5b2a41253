"""A TCP without copies of the octets that it sends, on an interface in a namespace of its own.

It is enough of RFC 9293 and RFC 6582 to send to a kernel through a network that loses packets. It
knows how far the kernel has acknowledged, and asks its user for octets again.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import dpkt
from ddp_rnic.sim.devices.peer.tcp import Sender

__all__ = ["HERE", "KERNEL", "PORT", "Copyless", "Network"]

HERE, KERNEL, PORT = "10.99.0.2", "10.99.0.1", 7174
MSS = 1460
_MASK = (1 << 32) - 1
#: Seconds until the first octet that was not acknowledged is sent again, at first and at most.
_PATIENCE, _LONGEST = 0.2, 1.0


class Network:
    """A namespace with one interface, whose other end is a file; and a socket that listens there.

    Raises :class:`OSError` where the process may not make one.
    """

    def __init__(self) -> None:
        self._failure: OSError | None = None
        # A namespace belongs to a thread; sockets keep that of the thread that made them.
        thread = threading.Thread(target=self._open)
        thread.start()
        thread.join()
        if self._failure is not None:
            raise self._failure

    def _open(self) -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):  # CLONE_NEWNET
                raise OSError(ctypes.get_errno(), "no new network namespace")
            self.file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            name = b"tun0".ljust(16, b"\0")
            fcntl.ioctl(self.file, 0x400454CA, name + struct.pack("H22x", 0x1001))  # IFF_TUN, NO_PI
            self.listener = socket.socket()
            for request, octets in (
                (0x8916, _address(KERNEL)),
                (0x891C, _address("255.255.255.0")),
                (0x8914, struct.pack("H14x", 0x41)),  # IFF_UP, IFF_RUNNING
            ):
                fcntl.ioctl(self.listener, request, name + octets)
            self.listener.bind((KERNEL, PORT))
            self.listener.listen()
        except OSError as error:
            self._failure = error

    def accept(self, serve: Callable[[], object]) -> socket.socket:
        """Returns the next connection; ``serve`` carries packets until it is there."""
        self.listener.setblocking(False)
        while True:
            serve()
            with suppress(BlockingIOError):
                accepted, _ = self.listener.accept()
                accepted.setblocking(False)
                return accepted

    def read(self) -> list[bytes]:
        """Returns the packets that the kernel has sent."""
        packets = []
        while True:
            try:
                packets.append(os.read(self.file, 1 << 16))
            except BlockingIOError:
                return packets

    def write(self, packet: bytes) -> None:
        os.write(self.file, packet)

    def close(self) -> None:
        self.listener.close()
        os.close(self.file)


def _address(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


class Copyless:
    """The connection of such a TCP to a kernel, through a network that loses packets.

    Positions count octets of payload from 0. ``acknowledged``: the kernel has all before it.
    ``asks``: positions of octets that have to be sent again. ``received``: octets that came.
    """

    def __init__(self, network: Network, *, loss: float, rng: random.Random) -> None:
        self._network, self._loss, self._rng = network, loss, rng
        self._first, self._port = rng.getrandbits(32), rng.randrange(1024, 1 << 16)
        self._their = 0  # the next sequence number expected
        self._open = False
        self._sender = Sender(_PATIENCE, _LONGEST)
        self._window = 0
        self._late: deque[bytes] = deque()
        self.asks: list[int] = []
        self.received = bytearray()
        self.sent = self.repeated = self.lost = 0
        self._connect()

    def _connect(self) -> None:
        self._deadline = time.monotonic() + _PATIENCE  # of the answer
        self._segment(0, b"", dpkt.tcp.TH_SYN)

    @property
    def room(self) -> int:
        """Octets that may be sent now."""
        return min(self._window, 1 << 16) - self.outstanding if self._open else 0

    @property
    def acknowledged(self) -> int:
        return self._sender.acknowledged

    @property
    def outstanding(self) -> int:
        return self._sender.outstanding

    def send(self, octets: bytes) -> None:
        """Sends octets after those before, and forgets them."""
        self._segment(self._sender.next + 1, octets, dpkt.tcp.TH_ACK | dpkt.tcp.TH_PUSH)
        self._sender.send(len(octets), time.monotonic())
        self.sent += 1

    def again(self, position: int, octets: bytes) -> None:
        """Sends octets at a position that was in ``asks``."""
        self._segment(position + 1, octets, dpkt.tcp.TH_ACK | dpkt.tcp.TH_PUSH)
        self.repeated += 1

    def _segment(self, sequence: int, octets: bytes, flags: int) -> None:
        segment = dpkt.tcp.TCP(
            sport=self._port, dport=PORT, seq=(self._first + sequence) & _MASK, ack=self._their,
            flags=flags, win=0xFFFF, data=octets,
        )  # fmt: skip
        if flags & dpkt.tcp.TH_SYN:
            segment.opts = struct.pack("!BBH", dpkt.tcp.TCP_OPT_MSS, 4, MSS)
            segment.off = 6
        ip = dpkt.ip.IP(
            src=socket.inet_aton(HERE), dst=socket.inet_aton(KERNEL), p=dpkt.ip.IP_PROTO_TCP,
            data=segment,
        )  # fmt: skip
        ip.len = len(ip)
        packet = bytes(ip)
        # Loss, reorder and duplication, of segments with octets.
        draw = self._rng.random() if octets else 1.0
        if draw < self._loss:
            self.lost += 1
            return
        if draw < 1.5 * self._loss:
            self._late.append(packet)
            return
        self._network.write(packet)
        if draw < 2 * self._loss:
            self._network.write(packet)
        while self._late and self._rng.random() < 0.5:
            self._network.write(self._late.popleft())

    def serve(self) -> None:
        """Takes what the kernel has sent, and looks at the clock."""
        for packet in self._network.read():
            if packet[0] >> 4 != 4:
                continue  # IPv6, for which the interface is not used
            ip = dpkt.ip.IP(packet)
            if isinstance(ip.data, dpkt.tcp.TCP):
                self._take(ip.data)
        now = time.monotonic()
        self.asks += self._sender.lost(now)
        if not self._open and now > self._deadline:
            self._connect()

    def _take(self, segment: dpkt.tcp.TCP) -> None:
        if segment.dport != self._port:
            return  # of an earlier connection
        assert not segment.flags & dpkt.tcp.TH_RST, "the kernel has reset the connection"
        self._window = segment.win
        if segment.flags & dpkt.tcp.TH_SYN:
            self._their, self._open = (segment.seq + 1) & _MASK, True
            self._segment(1, b"", dpkt.tcp.TH_ACK)
            return
        moved = (segment.ack - self._first - 1 - self.acknowledged) & _MASK
        position = self.acknowledged + moved
        self._sender.take(position, time.monotonic(), alone=not segment.data)
        if segment.data or segment.flags & dpkt.tcp.TH_FIN:
            if segment.seq == self._their:
                self.received += segment.data
                self._their = (self._their + len(segment.data)) & _MASK
            self._segment(self._sender.next + 1, b"", dpkt.tcp.TH_ACK)
