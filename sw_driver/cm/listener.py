"""Servers and clients: how connections are made."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from ..base.buffers import copy_of
from ..base.checks import flag, instance, integer, seconds
from ..base.errors import RnicTimeout, StateError
from ..rdmap import QP
from ..verbs.context import Context
from ..verbs.pd import PD
from .endpoint import Endpoint, prepare_socket
from .errors import (
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    InvalidStartup,
    LeftTcp,
    LocalFailure,
    Refused,
    Rejected,
    Unreachable,
)
from .startup import BEGINS, Rtr, StartupFrame, answer_to, said

__all__ = ["ConnectRequest", "Listener", "connect"]

_log = logging.getLogger(__name__)
#: Octets of the longest start-up frame.
_LONGEST = 20 + 512
#: The IRD and ORD that a request is accepted with unless the program gives others.
_READS = 16
#: How many octets of a refused peer one call reads.
_READ = 1 << 16
#: How many peers may wait for TCP's connection.
_BACKLOG = 128
#: How many seconds a listener waits after the process had no room for a further socket.
_PAUSE = 0.1
#: How many seconds a refused peer has to take the answer.
_LINGER = 1.0


async def connect(
    pd: PD,
    host: str,
    port: int,
    private_data: bytes = b"",
    *,
    ird: int = 16,
    ord: int = 16,
    crc: bool = True,
    markers: bool = False,
    revision: int = 2,
    peer_to_peer: bool = False,
    rtr: Rtr = Rtr.WRITE,
    rtr_stag: int = 0,
    mulpdu: int | None = None,
    cqe: int = 1024,
    timeout: float | None = 10.0,
    prepare: Callable[[QP], object] | None = None,
    delay: float = 0.0,
    keep_tcp: bool = False,
) -> Endpoint:
    """Connects to an RDMA peer over TCP.

    Parameters
    ----------
    pd
        The protection domain of the queue pair.
    host, port
        The peer's address.
    private_data
        Octets for the peer's program.
    ird, ord
        The most RDMA Reads that may be outstanding, inbound and outbound.
    crc, markers
        If set, this side wants CRCs, or markers in the stream that it receives.
    revision
        Revision of MPA: 1 (RFC 5044), or 2 (RFC 6581), in which both sides agree on IRD and ORD.
    peer_to_peer
        Either side may send first. This side then begins with a message of no octets.
    rtr, rtr_stag
        Peer to peer: which messages that may be, and the Steering Tag that it names.
    mulpdu
        Octets of the longest DDP Segment to send; None: an FPDU fills a TCP segment.
    cqe
        Entries of the completion queue.
    timeout
        How many seconds the connection may take; None: any time.
    prepare
        Called with the queue pair before any message of the peer can arrive: the place to post the
        first receives.
    delay
        How many seconds this side's first message waits for one of the peer. Linux's siw can miss a
        message that comes right after its reply; 0.5 is enough.
    keep_tcp
        After a refusal TCP stays open, as ``tcp`` of the exception (RFC 5044 section 7.1.2).

    Raises
    ------
    ConnectError
        There is no connection. Each reason has its class.
    """
    instance("a connection's protection domain", pd, PD, "connect(pd, host, port)")
    port = integer("port", port, 1, (1 << 16) - 1)
    timeout, wait = seconds("timeout", timeout), seconds("delay", delay) or 0.0
    endpoint = Endpoint(
        pd, cqe=cqe, ird=ird, ord=ord, crc=crc, markers=markers, mulpdu=mulpdu, prepare=prepare,
        keep_tcp=flag("keep_tcp", keep_tcp),
    )  # fmt: skip
    try:
        endpoint.connection.connect(
            private_data, revision=revision, peer_to_peer=peer_to_peer, rtr=rtr,
            rtr_stag=rtr_stag, listen_first=bool(wait),
        )  # fmt: skip
        await _in_time(_open(endpoint, pd.context, host, port), timeout, f"{host}:{port}")
        if wait:
            endpoint.speak_after(wait)
    except BaseException:
        endpoint.abort()
        raise
    return endpoint


async def _in_time(work: Coroutine[Any, Any, None], timeout: float | None, peer: object) -> None:
    """Awaits a part of start-up; raises if that takes too long."""
    try:
        async with asyncio.timeout(timeout):
            await work
    except TimeoutError as error:
        if isinstance(error, ConnectError):
            raise
        raise ConnectTimeout(
            f"{peer} did not answer within {timeout} seconds: check that it is an iWARP peer and"
            " not busy, or give it more time"
        ) from error


async def _open(endpoint: Endpoint, context: Context, host: str, port: int) -> None:
    """Connects with TCP, and goes through start-up."""
    sock, peer = await _reach(context, host, port)
    connection = endpoint.connection
    endpoint.open(sock, peer)
    await endpoint.until(
        lambda: connection.started or connection.error is not None or endpoint.closed, None
    )
    if connection.error is not None:
        # A Terminate must reach the peer.
        await endpoint.until(lambda: endpoint.closed, None)
    if (reason := endpoint.reason()) is not None:
        if isinstance(reason, Rejected):
            reason.tcp, endpoint.kept = endpoint.kept, None
        raise reason.failure if isinstance(reason, LocalFailure) else reason


async def _reach(context: Context, host: str, port: int) -> tuple[socket.socket, object]:
    """Returns a connected socket and the peer's address."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise Unreachable(f"{host} has no address ({error.strerror}): check the name") from error
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            prepare_socket(sock, context)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock, address
    if isinstance(failure, ConnectionRefusedError):
        raise Refused(
            f"nothing listens at {host}:{port}: start the server first, or check the port"
        ) from failure
    raise Unreachable(f"{host}:{port} is not reachable ({failure}): check the address") from failure


class ConnectRequest:
    """A peer's request for a connection. It is answered by :meth:`accept` or :meth:`reject`.

    Attributes
    ----------
    peer
        The peer's address.
    private_data
        Octets of the peer's program.
    revision
        Revision of MPA: 1 or 2.
    ird, ord
        The most RDMA Reads, inbound and outbound, that the peer can have outstanding; None where it
        does not say.
    peer_to_peer, rtr
        Whether either side may send first; the messages that the peer can begin with.
    crc, markers
        Whether the peer wants CRCs, and markers in the stream that it receives.
    """

    def __init__(
        self,
        pd: PD,
        sock: socket.socket,
        peer: object,
        frame: StartupFrame,
        octets: bytes,
        taken: int,
    ) -> None:
        self._pd, self._sock, self._octets, self._taken = pd, sock, octets, taken
        self._answered, self._asked = False, frame.enhanced
        self.peer = peer
        self.private_data, self.revision = frame.private_data, frame.revision
        self.crc, self.markers = frame.crc, frame.markers
        enhanced = frame.enhanced
        self.ird = said(enhanced.ird) if enhanced is not None else None
        self.ord = said(enhanced.ord) if enhanced is not None else None
        self.peer_to_peer = enhanced is not None and enhanced.peer_to_peer
        self.rtr = enhanced.rtr if enhanced is not None else Rtr(0)

    async def accept(
        self,
        private_data: bytes = b"",
        *,
        ird: int = _READS,
        ord: int = _READS,
        crc: bool = True,
        markers: bool = False,
        rtr: Rtr = BEGINS,
        mulpdu: int | None = None,
        cqe: int = 1024,
        timeout: float | None = 10.0,
        prepare: Callable[[QP], object] | None = None,
        speak_first: bool = False,
        delay: float = 0.0,
    ) -> Endpoint:
        """Accepts the request, and returns the connection.

        The parameters that :func:`connect` has, too, have the same meaning. If this raises
        :class:`.InvalidRequest` or :class:`.ResourceExhausted`, the request still waits for an
        answer.

        Parameters
        ----------
        rtr
            Peer to peer: the messages that the peer may begin with. This returns once the peer has
            begun.
        speak_first
            This side's messages do not wait for the peer's first one, against RFC 5044
            section 7.1.2. Linux's ucmatose is such a server.
        delay
            With ``speak_first``: how many seconds they nevertheless wait for it.
        """
        timeout, wait = seconds("timeout", timeout), seconds("delay", delay) or 0.0
        self._check()
        endpoint = Endpoint(
            self._pd, cqe=cqe, ird=ird, ord=ord, crc=crc, markers=markers, mulpdu=mulpdu,
            prepare=prepare,
        )  # fmt: skip
        connection = endpoint.connection
        try:
            endpoint.measure(self._sock)
            endpoint.receive(self._octets)
            connection.accept(private_data, rtr=rtr)
            self._answered = True
            endpoint.open(self._sock, self.peer)
            if flag("speak_first", speak_first):
                endpoint.speak_after(wait)
            if self.peer_to_peer:
                await _in_time(_begun(endpoint), timeout, self.peer)
        except BaseException:
            endpoint.abort()
            raise
        return endpoint

    async def reject(self, private_data: bytes = b"", *, keep_tcp: bool = False) -> LeftTcp | None:
        """Refuses the request.

        IRD, ORD and flags of the answer are those with which :meth:`accept` would accept it, if it
        were called without settings.

        With ``keep_tcp``, TCP stays open for another use (RFC 5044 section 7.1.2), and is returned.
        """
        private_data, keep_tcp = copy_of(private_data), flag("keep_tcp", keep_tcp)
        self._check()
        enhanced = None
        if self._asked is not None:
            ird = min(_READS, self._pd.context.capabilities.queue)
            enhanced = answer_to(self._asked, ird, _READS, BEGINS).fields
        frame = StartupFrame(
            reply=True, revision=self.revision, reject=True, enhanced=enhanced,
            private_data=private_data,
        )  # fmt: skip
        octets = frame.encode()
        self._answered = True
        loop = asyncio.get_running_loop()
        if keep_tcp:
            try:
                async with asyncio.timeout(_LINGER):
                    await loop.sock_sendall(self._sock, octets)
            except BaseException as error:
                self._sock.close()
                if isinstance(error, OSError):  # a timeout, too
                    raise ConnectionLost(f"{self.peer} has not taken the refusal") from error
                raise
            return LeftTcp(self._sock, self._octets[self._taken :])
        with self._sock as sock, suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER):
                await loop.sock_sendall(sock, octets)
                sock.shutdown(socket.SHUT_WR)
                # A socket that is closed with octets unread would take the answer back.
                while await loop.sock_recv(sock, _READ):
                    pass
        return None

    def close(self) -> None:
        """Drops the request without an answer, unless it was answered."""
        if not self._answered:
            self._answered = True
            self._sock.close()

    def _check(self) -> None:
        """Raises unless the peer waits for an answer."""
        if self._answered:
            raise StateError("the request was answered already")
        try:
            gone = not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            gone = False
        except OSError:
            gone = True
        if gone:
            self.close()
            raise ConnectionLost(f"{self.peer} has closed the connection before it was accepted")

    def __repr__(self) -> str:
        return f"<ConnectRequest of {self.peer}, {self.private_data!r}>"


async def _begun(endpoint: Endpoint) -> None:
    """Waits for the peer's ready-to-receive message."""
    await endpoint.until(lambda: not endpoint.connection.silent or endpoint.closed, None)
    if (reason := endpoint.reason()) is not None:
        raise reason


class Listener:
    """Listens for RDMA peers. ``async with`` opens and closes it.

    ``async for request in listener`` gives the requests of peers, as :meth:`request` does.

    Parameters
    ----------
    pd
        The protection domain of the queue pairs.
    host, port
        The address at which it listens; 0: a free port, which :attr:`port` gives.
    timeout
        How many seconds a peer may take for its request.
    """

    def __init__(
        self, pd: PD, host: str = "127.0.0.1", port: int = 0, *, timeout: float | None = 10.0
    ) -> None:
        instance("a listener's protection domain", pd, PD, "Listener(pd, host, port)")
        self._pd, self._host = pd, host
        self._port = integer("port", port, 0, (1 << 16) - 1)
        self._timeout = seconds("timeout", timeout)
        self._sock: socket.socket | None = None
        self._waiting: WeakSet[ConnectRequest] = WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: asyncio.Queue[ConnectRequest | None] = asyncio.Queue()

    @property
    def port(self) -> int:
        """The port."""
        if self._sock is None:
            raise StateError("the listener is not open: use it in an async with block")
        return int(self._sock.getsockname()[1])

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        sock = None
        try:
            found = await loop.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, kind, protocol, _, address = found[0]
            sock = socket.socket(family, kind, protocol)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            prepare_socket(sock, self._pd.context)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError as error:
            if sock is not None:
                sock.close()
            raise ConnectError(
                f"cannot listen at {self._host}:{self._port} ({error.strerror}): choose another"
                " address or port"
            ) from error
        self._sock = sock
        loop.add_reader(sock, self._accept, sock)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Stops listening, and drops the requests that were not answered. Connections stay."""
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None
        for task in self._tasks:
            task.cancel()
        for request in self._waiting:
            request.close()
        self._requests.put_nowait(None)

    async def request(self, timeout: float | None = None) -> ConnectRequest:
        """Waits for the next peer that asks for a connection.

        Raises
        ------
        RnicTimeout
            None came within ``timeout`` seconds.
        """
        request = None
        try:
            async with asyncio.timeout(seconds("timeout", timeout)):
                if self._sock is not None:
                    request = await self._requests.get()
        except TimeoutError as error:
            raise RnicTimeout(f"no peer asked for a connection within {timeout} seconds") from error
        if request is None:
            self._requests.put_nowait(None)
            raise StateError("the listener is closed")
        return request

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConnectRequest:
        try:
            return await self.request()
        except StateError as error:
            raise StopAsyncIteration from error

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock, peer = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("no room for a further connection: %s", error)
            loop.remove_reader(listening)
            loop.call_later(_PAUSE, self._resume, listening)
            return
        prepare_socket(sock, self._pd.context)
        task = loop.create_task(self._welcome(sock, peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _resume(self, listening: socket.socket) -> None:
        if self._sock is listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _welcome(self, sock: socket.socket, peer: object) -> None:
        """Receives a peer's request. A peer that begins with anything else is closed."""
        octets = b""
        try:
            async with asyncio.timeout(self._timeout):
                while (parsed := StartupFrame.parse(octets)) is None:
                    more = await asyncio.get_running_loop().sock_recv(sock, _LONGEST)
                    if not more:
                        raise ConnectionLost("it closed the connection during start-up")
                    octets += more
            frame, taken = parsed
            if frame.reply:
                raise InvalidStartup("a connection must begin with an MPA Request Frame")
        except (ConnectError, OSError) as error:
            _log.info("%s is closed: %s", peer, error or "no request came in time")
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            request = ConnectRequest(self._pd, sock, peer, frame, octets, taken)
            self._waiting.add(request)
            self._requests.put_nowait(request)
