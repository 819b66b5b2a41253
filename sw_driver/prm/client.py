"""The driver's objects in a program that shares a device; they pass their work to the manager."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import math
import mmap
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from ...hdl.spec import regs
from ...hdl.spec.commands import Write
from ..base.buffers import octets_of
from ..base.checks import any_integer, file_path, flag, instance, integer, seconds
from ..base.closing import Closing
from ..base.errors import (
    ErrorEvent,
    InvalidRequest,
    ResourceExhausted,
    RnicError,
    RnicTimeout,
    StateError,
    StreamError,
    TransportError,
    UnsupportedDevice,
)
from ..transports.memory import Copy
from ..verbs.association import Association
from ..verbs.context import Capabilities, Context
from ..verbs.cq import CQ, WC, Opcode, WcStatus, refresh
from ..verbs.known import StreamState
from ..verbs.pd import MR, PD
from ..verbs.stream import ORDER, QUEUES, Stream, part_of, queues_of
from . import protocol
from .protocol import DESCRIPTOR, HANDLE, NAMED, Decoder, Kind, Object, ProtocolError, Request

_WC_STATUS = {each.value: each for each in WcStatus}
_OPCODES = {each.value: each for each in Opcode}
_STATES = {each.value: each for each in StreamState}


def connect(path: Path | str) -> ClientContext:
    """Connects to the manager that serves a Unix socket, and returns a context of its device.

    Raises
    ------
    TransportError
        No manager serves the socket.
    ResourceExhausted
        The manager does not accept this client now.
    """
    return ClientContext(file_path("path", path))


class Link:
    """The connection to a manager. Threads may share it.

    Parameters
    ----------
    path
        The path of the socket.
    """

    def __init__(self, path: Path | str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise TransportError(
                f"no manager serves {path} ({error.strerror or error}): start one with 'rnic prm'"
            ) from error
        self._lock = threading.Lock()
        self._number = 0  # of the last request
        self._asked: dict[int, Future[bytes]] = {}
        self._passed: deque[int] = deque()  # descriptors that have come, the oldest first
        self._failure: RnicError | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, request: Request, descriptor: int | None = None) -> Future[bytes]:
        """Sends a request, and returns the future of its answer."""
        answer: Future[bytes] = Future()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            number = self._next_number()
            octets = protocol.encode(number, request)
            self._asked[number] = answer
            try:
                if descriptor is None:
                    self._socket.sendall(octets)
                else:
                    # The descriptor is sent with the first octet.
                    sent = socket.send_fds(self._socket, [octets], [descriptor])
                    self._socket.sendall(octets[sent:])
            except OSError:
                # The manager's last words before it closed the connection explain more than this
                # error.
                pass
        return answer

    def _next_number(self) -> int:
        """Returns a number that no unanswered request has. 0 stands for the connection itself."""
        while True:
            self._number = self._number % 0xFFFFFFFF + 1
            if self._number not in self._asked:
                return self._number

    def _read(self) -> None:
        decoder, failure = Decoder(protocol.LONGEST_ANSWER), None
        try:
            while octets := self._receive():
                decoder.feed(octets)
                while (taken := decoder.take()) is not None:
                    failure = self._take(*taken) or failure
        except (OSError, ProtocolError) as error:
            failure = failure or TransportError(f"the connection to the manager failed: {error}")
        with self._lock:
            self._failure = (
                self._failure
                or failure
                or TransportError(
                    "the manager has closed the connection: look into its log for the reason"
                )
            )
            asked, self._asked = list(self._asked.values()), {}
        for answer in asked:
            if not answer.cancelled():
                answer.set_exception(self._failure)

    def _receive(self) -> bytes:
        octets, descriptors, _, _ = socket.recv_fds(
            self._socket, 1 << 16, 1, socket.MSG_CMSG_CLOEXEC
        )
        self._passed += descriptors
        return octets

    def _take(self, kind: int, number: int, body: bytes) -> RnicError | None:
        """Delivers an answer to its request; returns an error that concerns the connection
        itself.
        """
        if kind not in (Kind.ANSWER, Kind.ERROR, Kind.PASSED):
            raise ProtocolError(f"the manager sends a frame of kind {kind}")
        if kind == Kind.PASSED:
            if not self._passed:
                raise ProtocolError("the manager has sent no file descriptor with PASSED")
            body += DESCRIPTOR.pack(self._passed.popleft())
        if number == 0:
            return protocol.decode_error(body)
        with self._lock:
            answer = self._asked.pop(number, None)
        # The thread that asked may have given up.
        if answer is not None and answer.set_running_or_notify_cancel():
            if kind == Kind.ERROR:
                answer.set_exception(protocol.decode_error(body))
            else:
                answer.set_result(body)
        return None

    def close(self) -> None:
        """Closes the connection. Requests without an answer fail."""
        # The reader holds the lock when it ends.
        self._failure = self._failure or TransportError("the connection to the manager is closed")
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._reader is not threading.current_thread():
            self._reader.join()
        with self._lock:  # no thread sends
            self._socket.close()
        while self._passed:
            os.close(self._passed.popleft())

    def drop(self) -> None:
        """Closes the connection in a forked child, which has no reader thread; the parent
        still uses it.
        """
        # Another thread may have held the lock.
        self._lock = threading.Lock()
        self._failure = StateError(
            "the device belongs to the parent process: connect after the fork"
        )
        os.close(self._socket.detach())


class Mapped:
    """Memory that the manager and this program share."""

    def __init__(self, link: Link, octets: int) -> None:
        descriptor = os.memfd_create("rnic", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, octets)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            self.map = mmap.mmap(descriptor, octets)
            answer = link.ask(protocol.Memory(), descriptor).result()
        except (OSError, OverflowError) as error:
            # The driver's own timeout is an OSError, too.
            if isinstance(error, RnicError):
                raise
            reason = getattr(error, "strerror", None) or error
            raise ResourceExhausted(
                f"{octets} octets of memory cannot be allocated: {reason}"
            ) from error
        finally:
            os.close(descriptor)
        (self.handle,) = HANDLE.unpack(answer)
        self.octets = octets
        self.address = _address(self.map)


class _Buffer:
    """A buffer of the program, in memory that the device can write: the buffer itself or a copy.

    Parameters
    ----------
    copy
        Whether the memory is a copy, of this buffer alone.
    """

    def __init__(self, view: memoryview, mapped: Mapped, offset: int, copy: bool) -> None:
        self.view, self.mapped, self.offset = view, mapped, offset
        self.copy = Copy(view) if copy else None
        self.push(0, len(view))

    def pull(self, offset: int, length: int) -> None:
        """Shows the program the octets that the device has written."""
        if self.copy is not None:
            self.copy.set(offset, self.mapped.map[offset : offset + length])

    def pull_written(self) -> None:
        """Shows the program all octets that the device has written, and keeps the program's own."""
        if self.copy is not None:
            self.copy.merge(self.mapped.map[: len(self.view)])

    def push(self, offset: int, length: int) -> None:
        """Copies the program's octets to the device's copy."""
        if self.copy is not None:
            octets = bytes(self.view[offset : offset + length])
            self.mapped.map[offset : offset + length] = octets
            self.copy.note(offset, octets)


class DoorbellPage(Closing):
    """A client's doorbell page: the client maps it, or asks the manager to write there.

    Parameters
    ----------
    ask
        Returns the manager's answer to a request.

    Attributes
    ----------
    number
        The page's number, from 1.
    mapped
        Whether the client writes to the device itself.
    """

    def __init__(self, ask: Callable[[Request], bytes]) -> None:
        self._ask, self._words = ask, None
        answer = ask(protocol.Page())
        size = protocol.PAGE.size
        self.number, self.mapped = protocol.PAGE.unpack(answer[:size])
        if self.mapped:
            (descriptor,) = DESCRIPTOR.unpack(answer[size:])
            try:
                self._map = mmap.mmap(descriptor, regs.PAGE_SIZE)
            finally:
                os.close(descriptor)
            # A forked child would keep the page from other clients.
            self._map.madvise(mmap.MADV_DONTFORK)
            words: Any = ctypes.c_uint32 * (regs.PAGE_SIZE // 4)
            self._words = words.from_buffer(self._map)

    def ring(self, command: tuple[Write, ...]) -> None:
        """Rings a doorbell in the page."""
        for register, value, _ in command:
            if self._words is not None:
                self._words[regs.address(register) // 4] = value
            else:
                self._ask(protocol.Bell(regs.DOORBELLS.index(register), value))

    def close(self) -> None:
        if self._words is not None:
            self._words = None
            self._map.close()


class ClientContext(Context):
    """The part of a device that a manager gives to this program.

    Buffers from :meth:`allocate` are written in place. Other buffers have a copy that the device
    writes; received octets are copied when their completion is taken, or when the region is
    revoked.
    """

    kinds: ClassVar[dict[type, type]] = {}

    def __init__(self, path: Path | str) -> None:
        self._begin()
        self._closed = False
        self.pds = set()
        self.cqs = set()
        self.streams = {}
        self.regions: dict[int, ClientMR] = {}  # type: ignore[assignment]
        self.sctp = None
        self.cookie = 0
        self._allocated: dict[int, Mapped] = {}
        self._page: DoorbellPage | None = None
        self.link = Link(path)
        try:
            shares = self.ask(protocol.Hello())
            self.capabilities = Capabilities(*protocol.CAPABILITIES.unpack(shares))
        except BaseException:
            self.link.close()
            raise
        _OPEN.add(self)

    def ask(self, request: Request) -> bytes:
        """Returns the manager's answer to a request."""
        return self.link.ask(request).result()

    def ask_passed(self, request: Request) -> tuple[bytes, int]:
        """Returns the manager's answer, and the file descriptor that has come with it."""
        answer = self.ask(request)
        size = len(answer) - DESCRIPTOR.size
        return answer[:size], *DESCRIPTOR.unpack(answer[size:])

    def make(self, request: Request) -> int:
        """Returns the handle of the object that the manager makes for a request."""
        (handle,) = HANDLE.unpack(self.ask(request))
        return int(handle)

    def remove(self, kind: Object, handle: int) -> None:
        """Closes an object in the manager."""
        self.ask(protocol.Close(kind, handle))

    def doorbells(self) -> DoorbellPage:
        """Returns this client's doorbell page, which the manager allots at the first call.

        Raises
        ------
        ResourceExhausted
            All doorbell pages of the device are taken.
        """
        with self.lock:
            self.check()
            self._page = self._page or DoorbellPage(self.ask)
            return self._page

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, octets: int) -> memoryview:
        """Allocates a buffer that the device can write in place; numpy, for one, can use it
        as its memory.
        """
        octets = integer("octets", octets, 1, math.inf, "at least 1")
        with self.lock:
            self.check()
            mapped = Mapped(self.link, octets)
            self._allocated[mapped.address] = mapped
            return memoryview(mapped.map)

    def free(self, buffer: object) -> None:
        """Frees an allocated buffer, whose regions must have been revoked."""
        view = octets_of(buffer)
        with self.lock:
            self.check()
            mapped = self._allocated.get(_address(view))
            if mapped is None or mapped.octets != len(view):
                raise InvalidRequest("the buffer must be a whole buffer from allocate()")
            self.remove(Object.MEMORY, mapped.handle)
            del self._allocated[mapped.address]

    def reach(self, view: memoryview) -> _Buffer:
        """Returns a buffer of any kind in memory that the device can write."""
        address = _address(view)
        for mapped in self._allocated.values():
            if 0 <= address - mapped.address <= mapped.octets - len(view):
                return _Buffer(view, mapped, address - mapped.address, False)
        return _Buffer(view, Mapped(self.link, len(view)), 0, True)

    def release(self, buffer: _Buffer) -> None:
        """Frees the copy of a buffer that the device no longer writes."""
        if buffer.copy is not None:
            self.remove(Object.MEMORY, buffer.mapped.handle)

    # -- the driver's interface -------------------------------------------------------------------

    def service(self) -> None:
        """Does nothing but check: the manager serves the device."""
        self.check()

    def events(self) -> list[ErrorEvent]:
        """Returns the error events of this client's streams since the last call, at most the
        last 1024.
        """
        self.check()
        return protocol.decode_events(self.ask(protocol.Events()))

    def counters(self) -> dict[str, int]:
        """Raises: the counters cover all clients, and only the manager may read them."""
        raise UnsupportedDevice("only the manager can read the device's counters")

    def close(self) -> None:
        """Closes every object made from the context, then the connection. A second call does
        nothing.
        """
        with self.lock:
            if self._closed:
                return
            try:
                made: list[Closing] = [*self.streams.values(), *self.regions.values()]
                made += [*self.cqs, *self.pds]
                for one in made:
                    one.close()
            except TransportError:
                # Without the connection the manager has revoked everything, or does so now.
                pass
            finally:
                self._closed = True
                self.link.close()
                self._allocated.clear()
                if self._page is not None:
                    self._page.close()


def _address(buffer: memoryview | mmap.mmap) -> int:
    """Returns the address of a buffer's first octet."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(buffer))


class ClientPD(PD):
    """A protection domain in the manager."""

    context: ClientContext

    def __init__(self, context: ClientContext) -> None:
        with context.lock:
            context.check()
            self.context, self.closed = context, False
            self.regions: set[MR] = set()
            self.streams = set()
            self.number = context.make(protocol.Domain())
            context.pds.add(self)

    def _remove(self) -> None:
        self.context.remove(Object.DOMAIN, self.number)


class ClientMR(MR):
    """A memory region in the manager."""

    pd: ClientPD
    stream: ClientStream | None

    def _open(self, view: memoryview) -> None:
        self.context = self.pd.context
        self.memory = self.context.reach(view)
        bound = 0 if self.stream is None else self.stream.handle
        try:
            answer = self.context.ask(
                protocol.Region(
                    self.pd.number, self.memory.mapped.handle, self.memory.offset, len(view),
                    int(self.access), self.to, bound,
                )
            )  # fmt: skip
        except BaseException:
            with suppress(RnicError):
                self.context.release(self.memory)
            raise
        self.handle, stag = NAMED.unpack(answer)
        self._stag = stag or None
        self.context.regions[self.handle] = self
        self._belongs()

    @property
    def view(self) -> memoryview:
        self.check()
        return self.memory.view[:]

    def read(self, length: int, offset: int = 0) -> bytes:
        with self.context.lock:
            self.check()
            self._within(offset, length)
            self.context.ask(protocol.Sync(self.handle, False, offset, length))
            self.memory.pull(offset, length)
            return bytes(self.memory.view[offset : offset + length])

    def write(self, octets: bytes, offset: int = 0) -> None:
        with self.context.lock:
            self.check()
            self._within(offset, len(octets))
            self.memory.view[offset : offset + len(octets)] = octets
            self.memory.push(offset, len(octets))
            self.context.ask(protocol.Sync(self.handle, True, offset, len(octets)))

    def revoke(self) -> None:
        with self.context.lock:
            self.check()
            self.context.remove(Object.REGION, self.handle)
            if self._stag is not None:
                self._pull()
            self.forget()

    def has(self, stag: int) -> bool:
        """Returns whether the region has this Steering Tag."""
        return self._stag == stag

    def _pull(self) -> None:
        self.memory.pull_written()

    def forget(self) -> None:
        self.revoked = True
        if self.stream is not None:
            self.stream.bound.discard(self)
        self.pd.regions.discard(self)
        self.context.regions.pop(self.handle, None)
        if not self.posted:
            self.context.release(self.memory)

    def release(self) -> None:
        self.posted -= 1
        if self.revoked and not self.posted:
            self.context.release(self.memory)


class ClientCQ(CQ):
    """A completion queue in the manager."""

    context: ClientContext
    _asked: Future[bytes] | None
    _taken = 0  #: completions taken of a direct queue, modulo 2**16

    def __init__(self, context: ClientContext, cqe: int = 1024) -> None:
        cqe = integer("cqe", cqe, 1, math.inf, "at least 1")
        self._waiting: set[threading.Event] = set()
        self._asked = None
        with context.lock:
            context.check()
            self.context, self.cqe, self.closed = context, cqe, False
            self.streams = set()
            #: All streams that completions in the queue can name, by their handles.
            self.named: dict[int, ClientStream] = {}
            self.handle = self._make()
            context.cqs.add(self)

    def _make(self) -> int:
        """Makes the queue in the manager, and returns its handle."""
        return self.context.make(protocol.Queue(min(self.cqe, 0xFFFFFFFF)))

    def cookie_of(self, own: int, device: int) -> int:
        """Returns the one of a posted buffer's two numbers that its completion will have."""
        return own

    def end(self, stream: ClientStream) -> None:
        """Notes that a stream is closed."""
        self.forget(stream)

    def poll(self, num_entries: int = 16) -> list[WC]:
        num_entries = integer("num_entries", num_entries, 1, math.inf, "at least 1")
        return self.take(num_entries, errors=False)

    def take(self, num_entries: int, *, errors: bool = True) -> list[WC]:
        with self.context.lock:
            self._check()
            count = min(num_entries, protocol.MOST)
            body = self.context.ask(protocol.Poll(self.handle, count, errors))
            taken = [self._completion(done) for done in protocol.decode_done(body)]
            refresh(taken)
            for stream in {wc.stream for wc in taken}:
                assert isinstance(stream, ClientStream)
                self.forget(stream)
            return taken

    def forget(self, stream: ClientStream) -> None:
        """Drops a stream that is closed and whose completions were all taken."""
        if stream.left == 0 and self.named.pop(stream.handle, None) is not None:
            stream.forget_posted()

    def _completion(self, done: protocol.Done) -> WC:
        stream, status = self.named[done.stream], _WC_STATUS[done.status]
        if stream.left is not None:
            stream.left -= 1
        opcode = _OPCODES[done.opcode]
        if opcode is Opcode.TAGGED:
            region = self.context.regions.get(done.region)
            if region is not None:
                region.written = True
            return WC(
                stream, status, opcode, byte_len=done.byte_len, stag=done.stag, mr=region,
                rsvdulp=done.rsvdulp, to=done.to,
            )  # fmt: skip
        wr_id = stream.take_back(done.wr_id, done.byte_len)
        return WC(
            stream, status, opcode, wr_id, done.byte_len, done.qn, done.msn, rsvdulp=done.rsvdulp
        )

    def wait(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        timeout = seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            ready = self._ask_ready(deadline).result()
            # Another thread may have been faster.
            if ready != protocol.READY.pack(False) and (taken := self.take(num_entries)):
                return taken
            _within_time(deadline, timeout)

    async def wait_async(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        timeout = seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            ready = await asyncio.wrap_future(self._ask_ready(deadline))
            if ready != protocol.READY.pack(False) and (taken := self.take(num_entries)):
                return taken
            _within_time(deadline, timeout)

    def wait_until(self, also: Callable[[], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        woken = threading.Event()
        self._waiting.add(woken)
        try:
            while True:
                woken.clear()
                if also() or self._there():
                    return True
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                woken.wait(left)
        finally:
            self._waiting.discard(woken)

    def wake(self) -> None:
        for woken in list(self._waiting):
            woken.set()

    def _there(self) -> bool:
        """Returns whether the manager has reported that something is present; otherwise asks the
        manager.

        It asks once for all threads that wait, because the manager answers only a few waits at a
        time.
        """
        with self.context.lock:
            answer = self._asked
            if answer is not None and not answer.done():
                return False
            self._asked = None
            if answer is not None and answer.result() == protocol.READY.pack(True):
                return True
            self._asked = self._ask_ready(None)
            self._asked.add_done_callback(lambda _: self.wake())
        return False

    def _ask_ready(self, deadline: float | None) -> Future[bytes]:
        left = protocol.LONGEST_WAIT
        if deadline is not None:
            left = min(left, max(int((deadline - time.monotonic()) * 1000) + 1, 0))
        # The manager gets the request before that of a thread that closes the queue.
        with self.context.lock:
            self._check()
            return self.context.link.ask(protocol.Wait(self.handle, left, self._taken))

    def close(self) -> None:
        with self.context.lock:
            if self.closed:
                return
            for stream in list(self.streams):
                stream.close()
            self.context.remove(Object.QUEUE, self.handle)
            for stream in self.named.values():
                stream.forget_posted()
            self.named.clear()
            self.context.cqs.discard(self)
            self.closed = True


def _within_time(deadline: float | None, timeout: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise RnicTimeout(f"no completion came within {timeout} seconds")


class _Waiting:
    """A receive buffer that waits for a message."""

    def __init__(
        self, wr_id: object, qn: int, region: ClientMR | None, memory: _Buffer | None, offset: int
    ) -> None:
        self.wr_id, self.qn, self.msn = wr_id, qn, 0
        self._region, self.memory, self._offset = region, memory, offset

    def finish(self, context: ClientContext, length: int) -> None:
        """Shows the program the first ``length`` octets, and frees the memory."""
        if self._region is not None:
            room = self._region.length - self._offset
            self._region.memory.pull(self._offset, min(length, room))
            self._region.release()
        elif self.memory is not None:
            self.memory.pull(0, min(length, len(self.memory.view)))
            context.release(self.memory)


class ClientStream(Stream):
    """A DDP Stream over MPA, whose number the manager chooses.

    Attributes
    ----------
    left
        How many of its completions wait in the queue, once the stream is closed; None before.
    ring
        Its send ring, if it has one.
    """

    context: ClientContext
    cq: ClientCQ
    left: int | None = None
    ring: Any = None

    def __init__(
        self,
        pd: ClientPD,
        cq: ClientCQ,
        *,
        number: int | None = None,
        crc: bool = True,
        markers: bool = False,
        queues: Iterable[int] = range(QUEUES),
        association: Association | None = None,
    ) -> None:
        if number is not None:
            raise InvalidRequest("the manager chooses a stream's number: pass no number")
        if association is not None:
            raise UnsupportedDevice("the manager has no SCTP associations: pass no association")
        self.queues = queues_of(queues)
        crc, markers = flag("crc", crc), flag("markers", markers)
        instance("a stream's completion queue", cq, CQ, ORDER)
        context = pd.context
        with context.lock:
            pd.check()
            if not isinstance(cq, ClientCQ) or cq.context is not context:
                raise InvalidRequest("the completion queue must belong to the stream's context")
            if cq.closed:
                raise StateError("the completion queue is closed")
            self.context, self.pd, self.cq, self.association = context, pd, cq, None
            self.bound: set[MR] = set()
            self._waiting: dict[int, _Waiting] = {}
            self._closed = False
            self._last_error: ErrorEvent | None = None
            mask = sum(1 << qn for qn in self.queues)
            answer = context.ask(protocol.Stream(pd.number, cq.handle, crc, markers, mask))
            self.handle, self.number = NAMED.unpack(answer)
            cq.named[self.handle] = self
            context.streams[self.number] = self
            pd.streams.add(self)
            cq.streams.add(self)

    def _ask_state(self) -> tuple[StreamState, ErrorEvent | None]:
        if self._closed:
            return StreamState.CLOSED, self._last_error
        answer = self.context.ask(protocol.State(self.handle))
        size = protocol.STATE.size
        (state,) = protocol.STATE.unpack(answer[:size])
        events = protocol.decode_events(answer[size:])
        return _STATES[state], events[0] if events else None

    @property
    def state(self) -> StreamState:  # type: ignore[override]
        return self._ask_state()[0]

    @property
    def error(self) -> ErrorEvent | None:  # type: ignore[override]
        return self._ask_state()[1]

    def check(self) -> None:
        self.pd.check()
        state, error = self._ask_state()
        if state is StreamState.CLOSED:
            raise StateError(f"stream {self.number} is closed")
        if error is not None:
            raise StreamError(error)
        if state is StreamState.ERROR:
            raise StateError(f"stream {self.number} is stopped: close it")

    def post_recv(
        self,
        buffer: object,
        qn: int = 0,
        *,
        wr_id: object = None,
        offset: int = 0,
        length: int | None = None,
    ) -> int:
        with self.context.lock:
            if self._closed:
                raise StateError(f"stream {self.number} is closed")
            if (qn := any_integer("queue", qn)) not in range(QUEUES):
                raise InvalidRequest(
                    f"queue must be one that the stream was opened with,"
                    f" {sorted(self.queues)}, not {qn!r}"
                )
            cookie = self.context.cookie = (self.context.cookie + 1) % (1 << 64)
            waiting, kind, handle, start, count = self._prepare_buffer(
                buffer, qn, wr_id, offset, length
            )
            try:
                answer = self.context.ask(
                    protocol.Post(self.handle, qn, kind, handle, start, count, cookie)
                )
            except BaseException:
                if waiting.memory is not None:
                    with suppress(RnicError):
                        self.context.release(waiting.memory)
                raise
            if isinstance(buffer, ClientMR):
                buffer.hold()
            waiting.msn, device = protocol.POSTED.unpack(answer)
            self._waiting[self.cq.cookie_of(cookie, device)] = waiting
            return waiting.msn

    def _prepare_buffer(
        self, buffer: object, qn: int, wr_id: object, offset: int, length: int | None
    ) -> tuple[_Waiting, int, int, int, int]:
        """Returns the record of a post, and the buffer's kind, handle, offset and length in
        the manager.
        """
        if isinstance(buffer, ClientMR):
            buffer.check()
            if buffer.pd is not self.pd:
                raise InvalidRequest(
                    "a receive buffer must belong to the stream's protection domain"
                )
            offset, count = part_of(buffer.length, offset, length)
            waiting = _Waiting(wr_id, qn, buffer, None, offset)
            return waiting, Object.REGION, buffer.handle, offset, count
        if buffer is None:
            if offset or length:
                raise InvalidRequest("a buffer of no octets must have neither offset nor length")
            return _Waiting(wr_id, qn, None, None, 0), 0, 0, 0, 0
        view = octets_of(buffer)
        offset, count = part_of(len(view), offset, length)
        if not count:
            return _Waiting(wr_id, qn, None, None, 0), 0, 0, 0, 0
        memory = self.context.reach(view[offset : offset + count])
        waiting = _Waiting(wr_id, qn, None, memory, 0)
        return waiting, Object.MEMORY, memory.mapped.handle, memory.offset, count

    def outstanding(self, qn: int) -> int:
        """Returns how many buffers of a queue have a completion that was not taken yet."""
        return sum(waiting.qn == qn for waiting in self._waiting.values())

    def take_back(self, cookie: int, length: int) -> object:
        """Gives a buffer back to the program, and returns the ``wr_id`` of its post."""
        waiting = self._waiting.pop(cookie)
        waiting.finish(self.context, length)
        return waiting.wr_id

    def flushed(self) -> list[WC]:
        """Gives back all buffers that got no message, and returns their completions."""
        flushed = []
        while self._waiting:
            waiting = self._waiting.pop(next(iter(self._waiting)))
            waiting.finish(self.context, 0)
            wr_id, qn, msn = waiting.wr_id, waiting.qn, waiting.msn
            flushed.append(WC(self, WcStatus.FLUSHED, Opcode.RECV, wr_id, qn=qn, msn=msn))
        return flushed

    def forget_posted(self) -> None:
        """Gives back all buffers for which no completion will come."""
        while self._waiting:
            self._waiting.popitem()[1].finish(self.context, 0)

    def close(self) -> None:
        with self.context.lock:
            if self._closed:
                return
            self._last_error = self.error
            answer = self.context.ask(protocol.Close(Object.STREAM, self.handle))
            (self.left,) = protocol.LEFT.unpack(answer)
            self._closed = True
            for region in list(self.bound):
                region.forget()
            self.cq.end(self)
            if self.ring is not None:
                self.ring.end()
            del self.context.streams[self.number]
            self.pd.streams.discard(self)
            self.cq.streams.discard(self)


ClientContext.kinds = {PD: ClientPD, MR: ClientMR, CQ: ClientCQ, Stream: ClientStream}

#: Connections of this process, which a forked child must not keep open.
_OPEN: weakref.WeakSet[ClientContext] = weakref.WeakSet()


def _forked() -> None:
    for context in list(_OPEN):
        with suppress(OSError):
            context.link.drop()


os.register_at_fork(after_in_child=_forked)
