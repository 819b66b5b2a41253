"""An end of an MPA connection whose TCP is simulated, with the network below it.

Time passes in turns, in each of which the devices work for a moment. A run depends on its draw
alone: the same draw gives the same run, cycle for cycle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from ....sw_driver import PD, Context
from ....sw_driver.base.errors import StateError
from ....sw_driver.cm import Connection
from ....sw_driver.cm.errors import ConnectError
from ....sw_driver.rdmap import CQ, QP, WC
from .channel import Wrong
from .network import Network, Packet, Party
from .rest import Rest
from .tcp import Receiver, Sender

__all__ = ["TcpEnd", "carried", "carry"]

#: Octets of the longest segments. A path may change, so that it cuts a repeat in another way.
_SEGMENTS = (536, 1460, 8960)
#: Turns until the first octet that was not acknowledged is sent again, at first and at most.
_PATIENCE, _LONGEST = 64, 128
#: Turns after which something is wrong if no octet has arrived and no request was completed.
_STILL = 3000
_Result = TypeVar("_Result")


class Served(Protocol):
    """Declares an end of a connection, which works in turns."""

    def serve(self) -> None:
        """Processes what the device has reported, and sends what can be sent."""


async def carry(network: Network[Any], contexts: Sequence[Context], ends: Sequence[Served]) -> None:
    """Lets open devices and ends of connections work in turns, until the task is cancelled.

    Raises :class:`.Wrong` where nothing gets on.
    """
    while True:
        network.deliver()
        for context in contexts:
            context.transport.wait(0.0)
            context.service()
        for end in ends:
            end.serve()
        if network.turn - network.moved > _STILL:
            raise Wrong(f"nothing has moved for {_STILL} turns of the network")
        await asyncio.sleep(0)


async def carried(
    network: Network[Any],
    contexts: Sequence[Context],
    ends: Sequence[Served],
    work: Coroutine[Any, Any, _Result],
) -> _Result:
    """Lets devices and ends work as :func:`carry` does, until ``work`` has ended; returns its
    result.
    """
    carrying = asyncio.create_task(carry(network, contexts, ends))
    working = asyncio.create_task(work)
    try:
        await asyncio.wait((carrying, working), return_when=asyncio.FIRST_COMPLETED)
        if carrying.done():
            await carrying  # raises the reason
        return await working
    finally:
        for task in (carrying, working):
            task.cancel()


class _Copy(NamedTuple):
    """Octets that the host alone can send again."""

    position: int
    octets: bytes

    @property
    def end(self) -> int:
        return self.position + len(self.octets)


class TcpEnd:
    """One end of an MPA connection over a network, with a queue pair and a completion queue.

    It adds to the network's counts how many FPDUs it has sent again: from host memory
    (``repeats``), and from ``copies``.

    Parameters
    ----------
    network, pd
        The network, and a protection domain of this end's device.
    keeps
        Whether TCP keeps copies of octets that may be lost, or asks the device for them again.
    segments
        Octets of the longest segments, of which each transmission draws one.
    options
        Further parameters of :class:`~....sw_driver.cm.Connection`.

    Attributes
    ----------
    peer
        The other end.
    rest
        Set while the user takes no completions.
    """

    peer: Party[Packet]
    rest: Rest | None = None

    def __init__(
        self,
        network: Network[Packet],
        pd: PD,
        *,
        keeps: bool,
        segments: Sequence[int] = _SEGMENTS,
        **options: Any,
    ) -> None:
        self._network, self._keeps, self._segments = network, keeps, segments
        self._room = 0  # octets that the peer takes after those that it has acknowledged
        self.cq = CQ(pd.context)
        deliver = pd.context.transport.send
        self.connection = Connection(deliver, pd, self.cq, keeps=keeps, **options)
        self._sender, self._receiver = Sender(_PATIENCE, _LONGEST), Receiver()
        self._outgoing: deque[bytes] = deque()
        #: The start-up frame, the end, and the FPDUs of a TCP that keeps copies.
        self._copies: deque[_Copy] = deque()
        self._begin = 0  # the position of the first FPDU
        self._end = self._their_end = -1  # the positions of both ends, once they are known
        self._half_closed = False

    # -- the user's side --------------------------------------------------------------------------

    @property
    def qp(self) -> QP:
        """The queue pair."""
        return self.connection.qp

    async def connect(self, peer: TcpEnd) -> None:
        """Connects with another end."""
        self.peer, peer.peer = peer, self
        self.connection.connect()
        await self.until(lambda: peer.connection.request)
        peer.connection.accept()
        await self.until(lambda: self.connection.started)

    @property
    def closed(self) -> bool:
        """True once both directions have ended, and the peer knows of it."""
        ended = self._end >= 0 and not self._sender.outstanding and self._half_closed
        return ended and self.connection.closed

    @property
    def acknowledged(self) -> bool:
        """True while the peer has received all octets that have left."""
        return not self._sender.outstanding

    async def wait(self, num_entries: int) -> list[WC]:
        """Waits for completions, and returns at least one and at most ``num_entries``.

        Raises the reason, once the connection has ended and all completions were taken.
        """
        taken: list[WC] = []

        def there() -> bool:
            taken.extend(self.cq.take(num_entries))
            return bool(taken) or self.connection.closed

        await self.until(there)
        if not taken:
            raise self.reason() or Wrong("a connection has ended too early")
        self._network.moved = self._network.turn
        return taken

    async def disconnected(self) -> Exception | None:
        """Waits until the connection has ended; returns the reason unless it ended gracefully."""
        await self.until(lambda: self.connection.closed or self._half_closed)
        return self.reason()

    async def disconnect(self) -> None:
        """Ends the connection gracefully, unless it has ended."""
        with suppress(StateError):
            self.connection.shutdown()
            await self.until(lambda: self.closed)

    def close(self) -> None:
        """Frees the queue pair and its queue."""
        if self.connection.started:
            self.connection.qp.close()
        self.cq.close()

    def reason(self) -> ConnectError | None:
        """Returns why the connection ended other than gracefully, or None."""
        return self.connection.reason()

    async def until(self, ready: Callable[[], object], timeout: float | None = None) -> bool:
        """Waits until ``ready`` returns True; returns False if that takes ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not ready():
                    await asyncio.sleep(0)
        except TimeoutError:
            return False
        return True

    # -- TCP --------------------------------------------------------------------------------------

    def receive(self, packet: Packet) -> None:
        """Takes a packet, and acknowledges octets."""
        self._sender.take(packet.acknowledged, self._network.turn, alone=not packet.octets)
        if packet.acknowledged == self._sender.acknowledged:
            self._room = packet.room
        if not packet.octets:
            return
        if packet.last:
            self._their_end = packet.position + len(packet.octets) - 1
        if fresh := self._receiver.take(packet.position, packet.octets):
            self._network.moved = self._network.turn
            ends = self._receiver.position > self._their_end >= 0
            self.connection.receive(fresh[:-1] if ends else fresh)
            if ends:
                self._half_closed = True
                self.connection.eof()
        self._transmit(self._sender.next, b"")

    def serve(self) -> None:
        """Processes what the device has reported, and sends what can be sent."""
        if self.rest is None:
            self.cq.process()
        sending = self.connection.qp.stream.sending if self.connection.started else None
        if sending is not None and sending.credit < 0:
            raise Wrong(f"{-sending.credit} octets have left for which there was no credit")
        acknowledged = self._sender.acknowledged
        while self._copies and self._copies[0].end <= acknowledged:
            self._copies.popleft()
        lost = self._sender.lost(self._network.turn)
        if self.connection.started:
            qp = self.connection.qp
            qp.acknowledge(acknowledged - self._begin)
            for position, octets in qp.repeats_to_send():
                self._network.counts["repeats"] += 1
                self._transmit(self._begin + position, octets)
        for position in lost:
            self._repeat(position)
        self._send()

    def _repeat(self, position: int) -> None:
        """Sends the octets at a position again, or asks the device for them."""
        for copy in self._copies:
            if copy.position <= position < copy.end:
                self._network.counts["copies"] += 1
                self._transmit(*copy)
                return
        if self.connection.started:
            self.connection.qp.repeat(position - self._begin)

    def _send(self) -> None:
        """Sends octets as far as there is room for them, and at last the end."""
        sender, waiting = self._sender, self._outgoing
        while self._end < 0:
            if not waiting:
                waiting += self.connection.pieces_to_send()
            if not waiting:
                break
            if sender.outstanding and sender.outstanding + len(waiting[0]) > self._room:
                return
            self._send_first(waiting.popleft(), self._keeps or not sender.next)
            self._begin = self._begin or sender.next
        if self._end < 0 and self.connection.finished:
            self._end = sender.next
            self._send_first(b"\0", True)

    def _send_first(self, octets: bytes, keeps: bool) -> None:
        """Sends octets after those before."""
        position = self._sender.next
        if keeps:
            self._copies.append(_Copy(position, octets))
        self._sender.send(len(octets), self._network.turn)
        self._transmit(position, octets)

    def _transmit(self, position: int, octets: bytes) -> None:
        """Sends octets in segments with an acknowledgment; without octets, that alone."""
        size = self._network.rng.choice(self._segments)
        for at in range(0, len(octets) or 1, size):
            part, begin = octets[at : at + size], position + at
            last = begin <= self._end < begin + len(part)
            packet = Packet(begin, part, last, self._receiver.position)
            self._network.send(self.peer, packet)
