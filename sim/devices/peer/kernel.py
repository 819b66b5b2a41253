"""Connections with a guest's kernel over a bad network, where this side has a TCP without copies.

The device reads the octets again that were lost on their way to the kernel. The network never loses
the segments that start or reset a connection.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import dpkt

from ....sw_driver import PD
from ....sw_driver.cm.errors import ConnectionLost
from ..guest.ethernet import MSS, Ethernet
from .end import TcpEnd
from .network import LiveNetwork, Packet, Rates

__all__ = ["KernelEnd", "KernelNetwork"]

_MODULUS = 1 << 32
#: Octets that this side takes at a time: the most that a segment can say without an option.
_ROOM = (1 << 16) - 1
#: The ports of this side's clients begin here.
_PORTS = 50_000
#: Seconds that the kernel has to answer a try to connect. Seconds that this side's first message
#: waits: Linux's siw can miss one right after its reply.
_AGAIN, _DELAY = 1.0, 0.5


class KernelNetwork(LiveNetwork[Packet]):
    """A network that carries TCP segments, with the guest's kernel at its other end.

    Parameters
    ----------
    ethernet
        Where the kernel's segments come from.
    rates, rng, counts
        Those of :class:`.Network`.

    Attributes
    ----------
    ends
        The open connections.
    """

    def __init__(
        self, ethernet: Ethernet, rates: Rates, rng: random.Random, counts: Counter[str]
    ) -> None:
        super().__init__(rates, rng, counts)
        self.ethernet = ethernet
        self.ends: list[KernelEnd] = []
        self._used = 0
        self._arrivals: asyncio.Queue[dpkt.tcp.TCP] = asyncio.Queue()

    def deliver(self) -> None:
        """Takes the kernel's segments, and delivers the packets that arrive by now."""
        for segment in self.ethernet.receive():
            self._take(segment)
        super().deliver()

    def _take(self, segment: dpkt.tcp.TCP) -> None:
        for end in self.ends:
            if (end.port, end.their_port) == (segment.dport, segment.sport):
                end.take(segment)
                return
        if segment.flags == dpkt.tcp.TH_SYN:
            self._arrivals.put_nowait(segment)
        elif not segment.flags & dpkt.tcp.TH_RST:
            # Of a connection that is closed here, as RFC 9293 section 3.10.7.1 has it.
            self.ethernet.send(
                dpkt.tcp.TCP(
                    sport=segment.dport, dport=segment.sport, seq=segment.ack,
                    flags=dpkt.tcp.TH_RST,
                )
            )  # fmt: skip

    async def accept(self, pd: PD, **options: Any) -> KernelEnd:
        """Waits for the kernel to connect to any port, and accepts; ``options``: as for TcpEnd.

        Raises :class:`.ConnectError` if MPA's start-up fails.
        """
        first = await self._arrivals.get()
        end = KernelEnd(self, pd, first.dport, first.sport, **options)
        end.take(first)
        await end.start(lambda: end.connection.request)
        end.connection.accept()
        return end

    async def connect(self, pd: PD, port: int, **options: Any) -> KernelEnd:
        """Connects to a port of the kernel, as soon as a server listens there.

        ``options``: as for TcpEnd. Raises :class:`.ConnectError` if MPA's start-up fails.
        """
        while True:
            self._used += 1
            end = KernelEnd(self, pd, _PORTS + self._used, port, **options)
            end.begin(dpkt.tcp.TH_SYN)
            await asyncio.sleep(_AGAIN)
            if end.open:
                break
            end.abort()
        end.connection.silent = True
        end.connection.connect()
        await end.start(lambda: end.connection.started)
        asyncio.get_running_loop().call_later(_DELAY, end.connection.speak)
        return end


class KernelEnd(TcpEnd):
    """This side's end of a connection with the kernel.

    Parameters
    ----------
    network, pd, options
        Those of :class:`.TcpEnd`.
    port, their_port
        The TCP ports of this side and of the kernel.

    Attributes
    ----------
    open
        The kernel's TCP has answered.
    """

    def __init__(
        self, network: KernelNetwork, pd: PD, port: int, their_port: int, **options: Any
    ) -> None:
        super().__init__(network, pd, keeps=False, segments=(MSS,), **options)
        self.connection.mss = MSS
        self._kernel = network
        self.port, self.their_port = port, their_port
        # Sequence numbers wrap early in one of two connections.
        self._ours = (network.rng.choice((0, -5000)) + network.rng.randrange(4000)) % _MODULUS
        self._theirs = 0
        self.peer = _Outward(self)
        self.open = self._reset = self._freed = False
        network.ends.append(self)

    # -- as an Endpoint ---------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True if nothing more can be sent or received."""
        return self.connection.closed

    @property
    def closed(self) -> bool:
        """True once both directions have ended, and the kernel knows of it."""
        return self._freed or self._reset or super().closed

    async def start(self, ready: Callable[[], object]) -> None:
        """Waits until ``ready`` returns True; raises the reason if the connection ends before."""
        try:
            await self.until(lambda: ready() or self.ended)
            if (reason := self.reason()) is not None:
                raise reason
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Ends the connection, and frees everything."""
        if not self._freed:
            if not self.closed:
                self._segment(dpkt.tcp.TH_RST | dpkt.tcp.TH_ACK, self._sender.next)
            self._freed = True
            self._kernel.ends.remove(self)
            self.close()

    def serve(self) -> None:
        """Processes what the device has reported, and sends what can be sent."""
        if self.open:
            super().serve()

    # -- segments ---------------------------------------------------------------------------------

    def begin(self, flags: int) -> None:
        """Sends the first segment."""
        self._segment(flags, -1, opts=struct.pack(">BBH", dpkt.tcp.TCP_OPT_MSS, 4, MSS))

    def take(self, segment: dpkt.tcp.TCP) -> None:
        """Takes a segment of the kernel, and gives it to the network."""
        flags = segment.flags
        if flags & dpkt.tcp.TH_RST:
            self._reset = True
            self.connection.lost(ConnectionLost("the peer has reset the connection: connect again"))
        elif flags & dpkt.tcp.TH_SYN:
            self._theirs = (segment.seq + 1) % _MODULUS
            if flags & dpkt.tcp.TH_ACK:
                self.open = True
                self._segment(dpkt.tcp.TH_ACK, 0)
            else:
                self.begin(dpkt.tcp.TH_SYN | dpkt.tcp.TH_ACK)
        else:
            self.open = True
            last = bool(flags & dpkt.tcp.TH_FIN)
            octets = bytes(segment.data) + b"\0" * last
            position = _nearest(segment.seq - self._theirs, self._receiver.position)
            acknowledged = _nearest(segment.ack - self._ours - 1, self._sender.acknowledged)
            packet = Packet(position, octets, last, acknowledged, segment.win)
            self._kernel.send(self, packet)

    def put(self, packet: Packet) -> None:
        """Puts a packet that has crossed the network onto the Ethernet."""
        if not self._freed:
            flags = dpkt.tcp.TH_ACK | (dpkt.tcp.TH_FIN if packet.last else 0)
            octets = packet.octets[:-1] if packet.last else packet.octets
            self._segment(flags, packet.position, packet.acknowledged, octets)

    def _segment(
        self,
        flags: int,
        position: int,
        acknowledged: int = 0,
        octets: bytes = b"",
        opts: bytes = b"",
    ) -> None:
        self._kernel.ethernet.send(
            dpkt.tcp.TCP(
                sport=self.port, dport=self.their_port, flags=flags, win=_ROOM, opts=opts,
                seq=(self._ours + 1 + position) % _MODULUS,
                ack=(self._theirs + acknowledged) % _MODULUS, data=octets,
            )
        )  # fmt: skip


class _Outward:
    """The way to the kernel: the party that packets of an end are sent to."""

    def __init__(self, end: KernelEnd) -> None:
        self._end = end

    def receive(self, packet: Packet) -> None:
        self._end.put(packet)


def _nearest(number: int, position: int) -> int:
    """Returns the position nearest to another one that a sequence number stands for."""
    half = _MODULUS // 2
    return position + (number - position + half) % _MODULUS - half
