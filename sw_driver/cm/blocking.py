"""The same connections for programs without asyncio: calls that wait, over a thread with an event
loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self, TypeVar

from ..base.checks import instance
from ..base.closing import Closing, ProcessLock
from ..base.errors import StateError
from ..rdmap import QP, WC
from ..verbs.pd import PD
from .endpoint import Endpoint
from .errors import LeftTcp
from .listener import ConnectRequest, Listener, connect
from .pump import Pump

__all__ = ["BlockingEndpoint", "BlockingListener", "BlockingRequest", "ConnectionManager"]

T = TypeVar("T")


class ConnectionManager(Closing):
    """Makes connections in a protection domain. Any thread may use it.

    Closing it closes its listeners, and aborts its connections.
    """

    def __init__(self, pd: PD) -> None:
        instance("a connection manager's protection domain", pd, PD)
        self._pd = pd
        self._lock, self._closed = ProcessLock("the connection manager"), False
        self._begun = threading.Event()
        self.listeners: set[Listener] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        self._begun.wait()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        await self._stop.wait()
        for listener in self.listeners:
            listener.close()
        for owner in list(Pump.of(self._pd.context).owners):
            if isinstance(owner, Endpoint):
                owner.abort()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the thread, and returns its result. An interrupt cancels it."""
        try:
            with self._lock:  # an event loop that has ended would drop the work
                if self._closed or not self._thread.is_alive():
                    raise StateError("the connection manager is closed")
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except StateError:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise StateError("the connection manager is closed") from None
        except BaseException:
            future.cancel()
            raise

    def connect(
        self, host: str, port: int, private_data: bytes = b"", **options: Any
    ) -> BlockingEndpoint:
        """Connects to a peer. The options are those of :func:`.connect`."""
        return BlockingEndpoint(
            self, self.run(connect(self._pd, host, port, private_data, **options))
        )

    def listen(
        self, host: str = "127.0.0.1", port: int = 0, *, timeout: float | None = 10.0
    ) -> BlockingListener:
        """Listens for peers, as :class:`.Listener` does."""
        listener = Listener(self._pd, host, port, timeout=timeout)
        self.run(listener.__aenter__())
        self.listeners.add(listener)
        return BlockingListener(self, listener)

    def close(self) -> None:
        """Ends everything. A second call does nothing."""
        with self._lock:
            if not self._closed and self._thread.is_alive():
                self._closed = True
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class BlockingListener(Closing):
    """A :class:`.Listener` whose calls wait."""

    def __init__(self, manager: ConnectionManager, listener: Listener) -> None:
        self._manager, self._listener = manager, listener
        self.port = listener.port

    def request(self, timeout: float | None = None) -> BlockingRequest:
        """Waits for the next peer that asks for a connection."""
        request = self._manager.run(self._listener.request(timeout))
        return BlockingRequest(self._manager, request)

    def close(self) -> None:
        """Stops listening. A second call does nothing."""
        if self._listener in self._manager.listeners:
            self._manager.listeners.discard(self._listener)
            self._manager.run(self._listener.__aexit__(None, None, None))


class BlockingRequest:
    """A :class:`.ConnectRequest` whose calls wait.

    Attributes
    ----------
    asked
        The request, with its private data and settings.
    """

    def __init__(self, manager: ConnectionManager, asked: ConnectRequest) -> None:
        self._manager, self.asked = manager, asked

    def accept(self, private_data: bytes = b"", **options: Any) -> BlockingEndpoint:
        """Accepts. The options are those of :meth:`.ConnectRequest.accept`."""
        work = self.asked.accept(private_data, **options)
        return BlockingEndpoint(self._manager, self._manager.run(work))

    def reject(self, private_data: bytes = b"", *, keep_tcp: bool = False) -> LeftTcp | None:
        """Refuses the request, as :meth:`.ConnectRequest.reject` does."""
        return self._manager.run(self.asked.reject(private_data, keep_tcp=keep_tcp))


class BlockingEndpoint:
    """An :class:`.Endpoint` whose calls wait. The queue pair is used as it is, from any thread.

    Attributes
    ----------
    endpoint
        The endpoint.
    qp
        The queue pair.
    """

    def __init__(self, manager: ConnectionManager, endpoint: Endpoint) -> None:
        self._manager, self.endpoint = manager, endpoint
        self.qp: QP = endpoint.qp
        self.private_data = endpoint.private_data

    def wait(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """Waits for completions, as :meth:`.Endpoint.wait` does."""
        return self._manager.run(self.endpoint.wait(timeout, num_entries))

    def disconnected(self, timeout: float | None = None) -> Exception | None:
        """Waits for the end, as :meth:`.Endpoint.disconnected` does."""
        return self._manager.run(self.endpoint.disconnected(timeout))

    def disconnect(self, timeout: float | None = 10.0) -> None:
        """Ends the connection gracefully."""
        self._manager.run(self.endpoint.disconnect(timeout))

    def abort(self) -> None:
        """Ends the connection without waiting for the peer."""

        async def abort() -> None:
            self.endpoint.abort()

        self._manager.run(abort())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._manager.run(self.endpoint.__aexit__(kind, error, trace))
