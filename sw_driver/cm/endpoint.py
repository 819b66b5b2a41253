"""Established connections: a queue pair on a TCP socket of the host."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from ...hdl.spec.config import RnicConfig
from ..base.checks import integer, seconds
from ..base.errors import RnicError, RnicTimeout, StateError
from ..rdmap import CQ, QP, WC
from ..verbs.context import Context
from ..verbs.pd import PD
from .connection import Connection
from .errors import (
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    Disconnected,
    LeftTcp,
    Rejected,
)
from .framing import MULPDU, packed
from .pump import Owner, Pump

__all__ = ["Endpoint", "prepare_socket"]

#: How many octets of a connection may wait for the device before its socket is no longer read.
_WINDOW = 1 << 16
#: How many octets one call reads.
_READ = 1 << 16
#: How many seconds the socket stays open for the peer's end after this side has given up, so that
#: the peer receives the last octets.
_LINGER = 1.0
#: Linux: nothing is added to the TCP segment of these octets, so that an FPDU begins the next one.
_ALONE = socket.MSG_EOR if sys.platform == "linux" else 0
#: How many of the longest FPDUs the device's buffer holds, so that the device places one of them
#: while it receives the next ones.
_HELD = 4
#: The largest maximum segment size that Linux accepts.
_MOST_MSS = 32767


def prepare_socket(sock: socket.socket, context: Context) -> None:
    """Sets a socket up, before TCP connects, so that the peer's FPDUs fit the device."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sizes = context.capabilities
    longest = RnicConfig(width=sizes.width, buffer_octets=sizes.buffer).longest_fpdu * 4 // _HELD
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, min(longest, _MOST_MSS))


class Endpoint(Owner):
    """A connection with its queue pair, for asyncio.

    :func:`.connect` and :meth:`.ConnectRequest.accept` return it. ``async with`` disconnects at the
    end of the block, or aborts if an error ended the block.

    Attributes
    ----------
    peer
        The peer's address.
    cq
        The completion queue of the queue pair.
    kept
        The TCP connection after a refusal, until :func:`.connect` gives it to its caller.
    """

    kept: LeftTcp | None = None

    def __init__(
        self,
        pd: PD,
        *,
        cqe: int,
        ird: int,
        ord: int,
        crc: bool,
        markers: bool,
        mulpdu: int | None,
        prepare: Callable[[QP], object] | None,
        keep_tcp: bool = False,
    ) -> None:
        self._sized, self._keeps = mulpdu is not None, keep_tcp
        self.pump = Pump.of(pd.context)
        self._loop, self._thread = self.pump.loop, threading.get_ident()
        self.cq = CQ(pd.context, cqe)
        try:
            self.connection = Connection(
                partial(self.pump.deliver, self), pd, self.cq, ird=ird, ord=ord, crc=crc,
                markers=markers, mulpdu=MULPDU[-1] if mulpdu is None else mulpdu,
                prepare=partial(self._begin, prepare),
            )  # fmt: skip
        except BaseException:
            self.cq.close()
            raise
        self.peer: object = None
        self._sock: socket.socket | None = None
        self.pending = 0
        self._news = asyncio.Event()  # set after anything has changed
        self._scheduled = False
        self._outgoing: deque[bytes | memoryview] = deque()
        self._reading = self._writing = False
        self._eof = self._half_closed = self._shut = False
        self._lingers = self.closed = False
        self._timers: list[asyncio.TimerHandle] = []
        self._failure: Exception | None = None
        self._left: deque[WC] = deque()  # completions, after the end
        self.pump.owners.add(self)

    # -- the user's side --------------------------------------------------------------------------

    @property
    def qp(self) -> QP:
        """The queue pair."""
        return self.connection.qp

    @property
    def ended(self) -> bool:
        """True if nothing more can be sent or received."""
        return self.closed or self.connection.closed

    @property
    def private_data(self) -> bytes:
        """Returns the private data of the peer's start-up frame."""
        frame = self.connection.request or self.connection.reply
        return b"" if frame is None else frame.private_data

    @property
    def ird(self) -> int:
        """Returns how many RDMA Reads the peer may have outstanding."""
        return self.qp.ird

    @property
    def ord(self) -> int:
        """Returns how many RDMA Reads this side may have outstanding."""
        return self.qp.ord

    async def wait(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """Waits for completions, and returns at least one and at most ``num_entries``.

        Raises
        ------
        RnicTimeout
            None came within ``timeout`` seconds.
        ConnectError
            The connection has ended, and all completions were taken. The exception's class and text
            give the reason.
        """
        num_entries = integer("num_entries", num_entries, 1, math.inf, "at least 1")
        taken: list[WC] = []

        def there() -> bool:
            taken.extend(self._take(num_entries))
            return bool(taken) or self.ended

        if not await self.until(there, timeout):
            raise RnicTimeout(f"no completion came within {timeout} seconds")
        if not taken:
            raise self.reason() or Disconnected(
                "the connection has ended: both sides have closed it"
            )
        return taken

    def _take(self, num_entries: int) -> list[WC]:
        if not self.closed:
            # At the end, those that were flushed are still to be processed.
            return self.cq.poll(num_entries) if self.ended else self.cq.take(num_entries)
        return [self._left.popleft() for _ in range(min(num_entries, len(self._left)))]

    async def disconnected(self, timeout: float | None = None) -> Exception | None:
        """Waits until the peer has closed its half of the connection, or the connection has ended.

        Returns
        -------
        Exception or None
            The reason, if the connection did not end gracefully.
        """
        if not await self.until(lambda: self.ended or self._half_closed, timeout):
            raise RnicTimeout(f"the peer did not disconnect within {timeout} seconds")
        return self.reason()

    async def disconnect(self, timeout: float | None = 10.0) -> None:
        """Ends the connection gracefully.

        Posted requests are sent, this side's half is closed, and the peer has to close its half. If
        the peer takes more than ``timeout`` seconds, the connection is aborted, and
        :class:`.ConnectTimeout` is raised.
        """
        with suppress(StateError):  # it has ended already
            self.connection.shutdown()
        try:
            self._progress()
            if not await self.until(lambda: self.closed, timeout):
                raise ConnectTimeout(
                    f"the peer did not close its half within {timeout} seconds, so the connection"
                    " was aborted: let the peer disconnect too, or wait longer"
                )
        finally:
            self.abort()

    def abort(self) -> None:
        """Ends the connection without waiting for anything. The peer's TCP reports a reset."""
        if not self.closed:
            if self._sock is not None:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if not self.ended:
                lost = ConnectionLost("this side has aborted the connection")
                self._failure = self._failure or lost
            self._close()
        if self.kept is not None:
            self.kept.sock.close()

    def reason(self) -> Exception | None:
        """Returns why the connection ended other than gracefully, or None."""
        if self._failure is not None:
            return self.connection.error or self._failure
        return self.connection.reason()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A connection that has ended lingers until the peer has received the last octets.
        if error is None or (isinstance(error, ConnectError) and self.ended):
            await self.disconnect()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Endpoint with {self.peer}, {state}>"

    # -- start-up ---------------------------------------------------------------------------------

    def measure(self, sock: socket.socket) -> None:
        """Takes the MULPDU from a connected socket, unless the user has given it."""
        if not self._sized:
            self.connection.mss = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)

    def open(self, sock: socket.socket, peer: object) -> None:
        """Begins to carry octets over a socket, which belongs to the endpoint from then on."""
        self._sock, self.peer = sock, peer
        self.measure(sock)
        self._progress()

    def speak_after(self, delay: float) -> None:
        """Lets this side send first, after ``delay`` seconds."""

        def speak() -> None:
            self.connection.speak()
            self._progress()

        self._timers.append(self._loop.call_later(delay, speak))

    async def until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until ``ready`` returns True; returns False if that takes ``timeout`` seconds."""
        timeout = seconds("timeout", timeout)
        try:
            async with asyncio.timeout(timeout):
                while not ready():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _begin(self, prepare: Callable[[QP], object] | None, qp: QP) -> None:
        """Follows a queue pair that start-up has made."""
        qp.notify = self.cq.notify = self._changed
        self.cq.messages.notify = partial(self.pump.report, self)
        if prepare is not None:
            prepare(qp)

    # -- the pump's side --------------------------------------------------------------------------

    def serve(self) -> None:
        if not self.closed:
            try:
                self.cq.process()
            except Exception as error:
                self.fail(error)
            else:
                self._progress()

    def fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.abort()

    # -- the socket -------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Looks at everything soon; any thread may call this."""
        if not self._scheduled and not self.closed and not self._loop.is_closed():
            self._scheduled = True
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._look)
            else:
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._scheduled = False
        self._progress()

    def _progress(self) -> None:
        """Does all that can be done now: sends, closes, reads on or not, wakes the waiting."""
        if self.closed or self._sock is None:
            return
        try:
            self._finish(self._sock)
        except OSError as error:
            # The peer may have sent a Terminate before it reset the connection.
            self._outgoing.clear()
            self._drain(self._sock)
            self._lose(error)
        except Exception as error:
            self.fail(error)
        self._news.set()

    def _finish(self, sock: socket.socket) -> None:
        connection = self.connection
        if self._keeps and isinstance(connection.error, Rejected):
            self._leave(sock, connection.error)
            return
        self._flush(sock)
        if self._eof and not self._half_closed and not self.pending:
            # The last octets before the peer's end are in the device.
            self._half_closed = True
            connection.eof()
            self._flush(sock)
        if connection.finished and not self._outgoing and not self._shut:
            self._shut = True
            sock.shutdown(socket.SHUT_WR)
        if connection.closed and not self._lingers:
            self._lingers = True
            self._timers.append(self._loop.call_later(_LINGER, self._close))
        if self._shut and self._eof and connection.closed:
            self._close()
        elif not self.closed:
            self._read_on(sock, not self._eof and self.pending < _WINDOW)

    def _flush(self, sock: socket.socket) -> None:
        """Sends FPDUs as far as TCP takes them: in each TCP segment as many as fit there whole.

        FPDUs that TCP does not take yet stay where they are, so that a peer that takes nothing gets
        no further answers.
        """
        blocked = False
        while not blocked:
            if not self._outgoing:
                pieces = self.connection.pieces_to_send()
                if not pieces or self._shut:  # later requests have no answer
                    break
                segment = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
                self._outgoing += packed(pieces, segment)
            piece = self._outgoing[0]
            try:
                sent = sock.send(piece, _ALONE)
            except (BlockingIOError, InterruptedError):
                blocked = True
                continue
            self._tap(True, bytes(piece[:sent]))
            if sent < len(piece):
                self._outgoing[0] = memoryview(piece)[sent:]
            else:
                self._outgoing.popleft()
        if blocked != self._writing:
            self._writing = blocked
            if blocked:
                self._loop.add_writer(sock, self._progress)
            else:
                self._loop.remove_writer(sock)

    def _read_on(self, sock: socket.socket, wanted: bool) -> None:
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(sock, self._readable, sock)
            else:
                self._loop.remove_reader(sock)

    def receive(self, octets: bytes) -> None:
        """Takes octets of the socket."""
        self._tap(False, octets)
        self.connection.receive(octets)

    def _tap(self, sent: bool, octets: bytes) -> None:
        if self.pump.tap is not None:
            self.pump.tap(self, sent, octets)

    def _drain(self, sock: socket.socket) -> None:
        """Takes the octets that came before TCP failed."""
        with suppress(OSError, RnicError):
            while octets := sock.recv(_READ):
                self.receive(octets)

    def _readable(self, sock: socket.socket) -> None:
        try:
            octets = sock.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        if octets:
            try:
                self.receive(octets)
            except Exception as error:
                self.fail(error)
                return
        else:
            self._eof = True
        self._progress()

    def _lose(self, error: OSError) -> None:
        if not self.ended:
            advice = "connect again"
            if not self.connection.started:
                advice = "check that an iWARP server listens there"
            self.connection.lost(
                ConnectionLost(f"the connection to {self.peer} is lost ({error}): {advice}")
            )
        self._close()

    def _leave(self, sock: socket.socket, refused: Rejected) -> None:
        """Ends, and leaves TCP open."""
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)
        self._sock, self.kept = None, LeftTcp(sock, refused.octets)
        self._close()

    def _close(self) -> None:
        """Releases everything. The completions that nobody has taken stay."""
        if self.closed:
            return
        self.closed = True
        for timer in self._timers:
            timer.cancel()
        if self._sock is not None:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()
        self.pump.remove(self)
        try:
            with suppress(StateError):
                self.connection.qp.close()
            self._left.extend(self.cq.take(1 << 30))
            self.cq.close()
        except RnicError as error:
            self._failure = self._failure or error
        self._news.set()
