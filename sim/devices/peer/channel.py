"""A connection as the programs of this folder use it: messages in, requests out, and a tally."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ....sw_driver.cm.errors import ConnectError, Disconnected
from ....sw_driver.rdmap import QP, WC, Opcode
from ....sw_driver.verbs.cq import WcStatus
from .lockstep import LockStep


class Wrong(Exception):
    """The peer did something that the program does not expect. The message is one sentence."""


@dataclass
class Tally:
    """Counts messages, octets and errors of one connection.

    Attributes
    ----------
    messages, octets
        Messages in both directions that the program counts, and the octets in them.
    errors
        What went wrong, a sentence each.
    unchecked
        Octets received that were compared with the golden model alone, because the program knows
        no pattern for them.
    """

    program: str
    peer: str = ""
    messages: int = 0
    octets: int = 0
    unchecked: int = 0
    errors: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    cycles: int = 0
    seconds: float = 0.0

    @property
    def verified(self) -> bool:
        """True if all octets were what the program's pattern says, and nothing went wrong."""
        clean = not (self.errors or self.differences or self.unchecked)
        return clean and bool(self.messages)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / max(self.seconds, 1e-6)

    def count(self, octets: int) -> None:
        self.messages += 1
        self.octets += octets

    def line(self) -> dict[str, Any]:
        """Returns what ``--json`` prints."""
        return {
            "program": self.program,
            "peer": self.peer,
            "messages": self.messages,
            "octets": self.octets,
            "unchecked": self.unchecked,
            "errors": self.errors,
            "differences": self.differences,
            "verified": self.verified,
            "cycles": self.cycles,
            "messages_per_second": round(self.rate, 1),
        }


class End(Protocol):
    """Declares what a program needs of its end of a connection, as of an Endpoint."""

    @property
    def ended(self) -> bool:
        """True if nothing more can be sent or received."""

    @property
    def closed(self) -> bool:
        """True once the connection is closed."""

    async def until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until ``ready`` returns True; returns False if that takes ``timeout`` seconds."""

    def reason(self) -> Exception | None:
        """Returns why the connection ended other than gracefully, or None."""

    async def disconnect(self) -> None:
        """Ends the connection gracefully."""

    def abort(self) -> None:
        """Ends the connection without waiting for anything."""


class Channel:
    """A connection with a ring of receive buffers, which are posted again as soon as they are read.

    Parameters
    ----------
    sim
        The device.
    size, depth
        Octets and number of the receive buffers.
    """

    def __init__(self, sim: LockStep, size: int, depth: int) -> None:
        self.sim, self.size, self.depth = sim, size, depth
        self.messages: deque[bytes] = deque()
        self.done: deque[WC] = deque()
        self._unfinished = 0  # requests without a completion
        self._endpoint: End | None = None
        self._qp: QP | None = None

    def prepare(self, qp: QP) -> None:
        """Posts the buffers, before the peer can send."""
        self._qp = qp
        for _ in range(self.depth):
            self._post(bytearray(self.size))
        self.sim.served.append(self._serve)

    def _post(self, buffer: bytearray) -> None:
        assert self._qp is not None
        self._qp.post_recv(buffer, wr_id=buffer)

    def begin(self, endpoint: End) -> None:
        """Takes the connection, once it is established."""
        self._endpoint = endpoint

    def close(self) -> None:
        """Ends the connection, unless it has ended gracefully."""
        if self._endpoint is not None:
            self._endpoint.abort()
        if self._serve in self.sim.served:
            self.sim.served.remove(self._serve)

    @property
    def endpoint(self) -> End:
        assert self._endpoint is not None
        return self._endpoint

    @property
    def qp(self) -> QP:
        assert self._qp is not None
        return self._qp

    # -- receiving --------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Sorts the completions that are there; the buffers of a fast peer are posted in time."""
        if self._qp is not None and (self._endpoint is None or not self._endpoint.closed):
            self._sort(self._qp.cq.poll(1 << 16))

    def _sort(self, completions: list[WC]) -> None:
        for wc in completions:
            if wc.opcode is Opcode.RECV:
                if wc.status is WcStatus.SUCCESS:
                    self.messages.append(bytes(wc.wr_id[: wc.byte_len]))
                    self._post(wc.wr_id)
            elif wc.opcode is not Opcode.HALF_CLOSED:
                self.done.append(wc)
                self._unfinished -= 1

    async def until(self, there: Callable[[], object], timeout: float | None) -> None:
        """Waits until ``there`` returns True. Raises if that takes too long, or at the end."""

        def ready() -> bool:
            self._serve()
            return bool(there()) or self.endpoint.ended or self.qp.half_closed

        if not await self.endpoint.until(ready, timeout):
            raise Wrong(f"the peer sent and took nothing for {timeout} seconds")
        if not there():
            raise self.endpoint.reason() or Disconnected("the peer has closed the connection")

    async def message(self, timeout: float | None = 60.0) -> bytes:
        """Returns the peer's next message.

        Raises :class:`~....sw_driver.cm.errors.ConnectError` at the end of the connection.
        """
        await self.until(lambda: self.messages, timeout)
        return self.messages.popleft()

    async def over(self) -> ConnectError | None:
        """Waits until the peer has closed the connection; returns the reason if it was an error."""
        try:
            await self.until(lambda: False, None)
        except Disconnected:
            return None
        except ConnectError as reason:
            return reason
        raise AssertionError

    # -- sending ----------------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        self._request(Opcode.SEND, message)

    def write(self, message: bytes, stag: int, to: int) -> None:
        self._request(Opcode.RDMA_WRITE, message, stag=stag, to=to)

    def _request(self, opcode: Opcode, buffer: bytes | bytearray, **where: Any) -> None:
        self.qp.post_send(opcode, buffer, **where)
        self._unfinished += 1

    async def settled(self, most: int = 0) -> None:
        """Waits until at most ``most`` requests are unfinished."""
        await self.until(lambda: self._unfinished <= most, 60.0)

    async def read(self, octets: int, stag: int, to: int) -> bytes:
        """Reads the peer's memory."""
        sink = bytearray(octets)
        self._request(Opcode.RDMA_READ, sink, wr_id=sink, stag=stag, to=to)
        while True:
            await self.until(lambda: self.done, 60.0)
            wc = self.done.popleft()
            if wc.wr_id is sink:
                if wc.status is not WcStatus.SUCCESS:
                    raise Wrong("an RDMA Read was not answered")
                return bytes(sink)
