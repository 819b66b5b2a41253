"""Lets a device work while connections of an event loop have octets in it."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

from ..base.errors import UnsupportedDevice
from ..transports.transport import Transport
from ..verbs.context import Context

__all__ = ["Owner", "Pump"]

#: How many completions are taken between two looks at the sockets.
_MOST = 64


class Owner(ABC):
    """Declares a connection as the pump sees it.

    Attributes
    ----------
    pending
        How many octets the pump has handed to the device that the device has not taken yet.
    """

    pending: int

    @abstractmethod
    def serve(self) -> None:
        """Processes what the device has reported."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Ends the connection, because the device has failed."""


class Pump:
    """Hands FPDUs to a device, and passes the device's reports to connections, in an event loop.

    The pump works from the moment in which octets are handed over until the device is idle; in
    between it uses no time.

    Attributes
    ----------
    tap
        Called with a connection, whether it has sent, and the octets that its socket has carried.
    """

    tap: Callable[[Owner, bool, bytes], object] | None = None

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self.context, self.loop = context, loop
        self.owners: set[Owner] = set()
        self._thread = threading.get_ident()
        self._running = False
        self._ready: set[Owner] = set()  # those of which the device has reported something
        #: The packets that the device may not have taken yet, the oldest first.
        self._handed: deque[tuple[Owner, int]] = deque()

    @classmethod
    def of(cls, context: Context) -> Pump:
        """Returns the pump of a device in the running event loop.

        Raises
        ------
        UnsupportedDevice
            The device cannot be handed packets.
        """
        transport = getattr(context, "transport", None)
        if not isinstance(transport, Transport):
            raise UnsupportedDevice(
                "a device that a manager shares cannot receive from sockets: open the device"
                " itself, with Device(transport).open()"
            )
        _ = transport.sending  # raises where the transport cannot carry packets
        loop = asyncio.get_running_loop()
        pumps = _PUMPS.setdefault(loop, WeakKeyDictionary())
        if (pump := pumps.get(context)) is None:
            pump = pumps[context] = cls(context, loop)
        return pump

    def deliver(self, owner: Owner, stream: int, position: int, octets: bytes) -> None:
        """Hands the device an FPDU."""
        self.context.transport.send(stream, position, octets)
        self._handed.append((owner, len(octets)))
        owner.pending += len(octets)
        self._start()

    def report(self, owner: Owner) -> None:
        """Notes that the device has reported something; any thread may call this."""
        self._ready.add(owner)
        if self.loop.is_closed():
            return
        if threading.get_ident() == self._thread:
            self._start()
        else:
            self.loop.call_soon_threadsafe(self._start)

    def remove(self, owner: Owner) -> None:
        """Forgets a connection that has ended."""
        self.owners.discard(owner)
        self._ready.discard(owner)

    def _start(self) -> None:
        if not self._running:
            self._running = True
            self.loop.call_soon(self._step)

    def _step(self) -> None:
        """Lets the device work for a moment, and comes again unless nothing is left to do."""
        try:
            idle = self._work()
        except Exception as error:
            self._running = False
            for owner in list(self.owners):
                owner.fail(error)
            return
        self._running = not idle
        if self._running:
            self.loop.call_soon(self._step)
        while self._ready:
            self._ready.pop().serve()

    def _work(self) -> bool:
        """Lets the device work; returns whether it has nothing left to do."""
        transport = self.context.transport
        idle = self.context.look(_MOST)
        sending = transport.sending
        if not self._ready and (sending or not idle):
            # Once the last packet is in the device, the end of its work raises no interrupt.
            transport.wait(0)
            sending = transport.sending
        while len(self._handed) > sending:
            owner, octets = self._handed.popleft()
            owner.pending -= octets
            self._ready.add(owner)
        return idle and not sending


_PUMPS: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Context, Pump]] = (
    WeakKeyDictionary()
)
