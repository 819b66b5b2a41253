"""The objects of one client in the manager, and the requests that the client may make."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...hdl.spec import regs
from ...hdl.spec.commands import Write
from ..base.errors import ErrorEvent, InvalidRequest, ResourceExhausted, StateError
from ..transports.memory import Arena, Steps
from ..verbs.context import Context
from ..verbs.known import StreamState
from ..verbs.pd import PD, Access
from ..verbs.stream import QUEUES, Stream
from . import protocol
from .direct import LARGEST_QUEUE, DirectQueue, DirectSending
from .memory import Passed
from .owned import UNTOLD, OwnedQueue, OwnedRegion, OwnedStream, Posted, tagged
from .pages import Page, Pages
from .protocol import HANDLE, NAMED, Object, ProtocolError, Request
from .quota import Share

#: How many WAITs of a client may be unanswered at a time.
WAITS = 16
#: The order in which objects are closed, so that none is in use.
_ORDER = (Object.STREAM, Object.REGION, Object.QUEUE, Object.DOMAIN, Object.MEMORY)


class Wait:
    """A WAIT that is not answered yet."""

    def __init__(
        self, number: int, queue: OwnedQueue | DirectQueue, taken: int, deadline: float
    ) -> None:
        self.number, self._queue, self._taken = number, queue, taken
        self._deadline = deadline

    @property
    def ready(self) -> bool:
        """True if the client can take something from the queue, or never will because it is
        closed.
        """
        return self._queue.closed or self._queue.arrived(self._taken)

    @property
    def over(self) -> bool:
        """True if the WAIT must be answered now."""
        return self.ready or time.monotonic() >= self._deadline


class Seat(NamedTuple):
    """The part of the device that one client at a time has to itself: its slots of the page table,
    and the numbers of completion queues that it may poll without the manager.
    """

    slots: Arena
    queues: list[int]


class Passing(NamedTuple):
    """An answer with a file descriptor, which the sender closes."""

    body: bytes
    descriptor: int


class Session:
    """A client's objects by their handles. No other client's request can name them.

    Parameters
    ----------
    context
        The device.
    share
        The client's share of the device.
    seat
        The part of the device that the client has to itself.
    pages
        The device's doorbell pages.
    log
        Takes an event and its details for the audit log.
    """

    def __init__(
        self, context: Context, share: Share, seat: Seat, pages: Pages, log: Callable[..., None]
    ) -> None:
        self.context, self.share, self._log = context, share, log
        self._slots, self._numbers = seat
        self._pages = pages
        self._page: Page | None = None
        self.greeted = False
        self.waits: list[Wait] = []
        self._last = 0
        self._objects: dict[Object, dict[int, Any]] = {kind: {} for kind in Object}
        self._events: deque[ErrorEvent] = deque(maxlen=UNTOLD)

    def _all(self, kind: Object) -> list[Any]:
        return list(self._objects[kind].values())

    @property
    def receiving(self) -> bool:
        """True if the device may have completions or events for the client."""
        return bool(self._objects[Object.STREAM])

    # -- requests ---------------------------------------------------------------------------------

    def request(
        self, number: int, request: Request, descriptor: int | None
    ) -> Steps[bytes | Passing | None]:
        """Executes a request, in steps; returns the body of the answer, perhaps with a file
        descriptor, or None if the answer must wait.
        """
        if isinstance(request, protocol.Hello) == self.greeted:
            raise ProtocolError("the first request, and no other, must be HELLO")
        if isinstance(request, protocol.Memory) != (descriptor is not None):
            raise ProtocolError("a file descriptor must come with MEMORY, and with nothing else")
        match request:
            case protocol.Hello():
                return self._hello(request)
            case protocol.Memory():
                assert descriptor is not None
                memory = yield from Passed.making(descriptor, self.share)
                return self._name(Object.MEMORY, memory)
            case protocol.Domain():
                return self._domain()
            case protocol.Queue():
                return self._queue(request)
            case protocol.Stream():
                return self._stream(request)
            case protocol.Region():
                return (yield from self._region(request))
            case protocol.Close():
                return (yield from self._close(request))
            case protocol.Sync():
                return (yield from self._sync(request))
            case protocol.Post():
                return (yield from self._post(request))
            case protocol.Poll():
                queue = self._find(Object.QUEUE, request.queue)
                taken = yield from queue.taking(request.most, request.errors)
                return protocol.encode_done(taken)
            case protocol.Wait():
                return (yield from self._wait(number, request))
            case protocol.State():
                return self._state(request)
            case protocol.Events():
                told = b"".join(map(protocol.encode_event, self._events))
                self._events.clear()
                return told
            case _:
                return (yield from self._request_direct(request))

    def _request_direct(self, request: Request) -> Steps[bytes | Passing]:
        """Executes a request about the doorbell page, direct queues and send rings."""
        match request:
            case protocol.Page():
                return self._allot_page()
            case protocol.DirectQueue():
                return self._direct_queue(request)
            case protocol.SendRing():
                return (yield from self._send_ring(request))
            case protocol.Bell():
                return self._bell(request)
            case protocol.Sent():
                sending = self._find(Object.STREAM, request.stream).sending
                if sending is None:
                    raise StateError("the stream has no send ring")
                return protocol.encode_sent(sending.taking())
        raise AssertionError(request)

    def _hello(self, request: protocol.Hello) -> bytes:
        if request.magic != protocol.MAGIC:
            raise ProtocolError("HELLO must begin with ddp-rnic")
        if request.version != protocol.VERSION:
            raise ProtocolError(
                f"the client's protocol is version {request.version}, the manager's is"
                f" {protocol.VERSION}: update the older one"
            )
        self.greeted = True
        there, limit = self.context.capabilities, self.share.limit
        return protocol.CAPABILITIES.pack(
            there.width, limit("stags"), limit("streams"), there.buffer, limit("pages"),
            there.queue, limit("buffers"), there.cqs,
        )  # fmt: skip

    def _name(self, kind: Object, made: object) -> bytes:
        self._last += 1
        self._objects[kind][self._last] = made
        return HANDLE.pack(self._last)

    def _find(self, kind: Object, handle: int) -> Any:
        try:
            return self._objects[kind][handle]
        except KeyError:
            raise InvalidRequest(f"there is no {kind.name.lower()} {handle}") from None

    def _domain(self) -> bytes:
        self.share.take(domains=1)
        try:
            return self._name(Object.DOMAIN, PD(self.context, slots=self._slots))
        except BaseException:
            self.share.give(domains=1)
            raise

    def _queue(self, request: protocol.Queue) -> bytes:
        self.share.take(queues=1, completions=request.cqe)
        try:
            queue = OwnedQueue(self.context, request.cqe, self._completed, self._stopped)
        except BaseException:
            self.share.give(queues=1, completions=request.cqe)
            raise
        return self._name(Object.QUEUE, queue)

    def _stream(self, request: protocol.Stream) -> bytes:
        domain = self._find(Object.DOMAIN, request.domain)
        queue = self._find(Object.QUEUE, request.queue)
        if request.queues >> QUEUES:
            raise InvalidRequest(f"a Queue Number must be from 0 to {QUEUES - 1}")
        queues = [qn for qn in range(QUEUES) if request.queues >> qn & 1]
        self.share.take(streams=1)
        try:
            stream = OwnedStream(
                domain, queue, crc=request.crc, markers=request.markers, queues=queues
            )
        except BaseException:
            self.share.give(streams=1)
            raise
        self._name(Object.STREAM, stream)
        stream.handle = self._last
        return NAMED.pack(stream.handle, stream.number)

    def _region(self, request: protocol.Region) -> Steps[bytes]:
        domain = self._find(Object.DOMAIN, request.domain)
        memory = self._find(Object.MEMORY, request.memory)
        stream = self._find(Object.STREAM, request.stream) if request.stream else None
        stags = int(tagged(request.access))
        region = yield from self._register(
            domain, memory, request.offset, request.length, {"stags": stags, "regions": 1},
            Access(request.access & 0xFF), to=request.to, stream=stream,
        )  # fmt: skip
        self._name(Object.REGION, region)
        region.handle = self._last
        self._log("register", region=region.handle, octets=region.length, access=int(region.access))
        return NAMED.pack(region.handle, region.stag if stags else 0)

    def _register(
        self,
        domain: PD,
        memory: Passed,
        offset: int,
        length: int,
        counted: dict[str, int],
        access: Access,
        **named: Any,
    ) -> Steps[OwnedRegion]:
        """Makes a region from a part of the client's memory."""
        view = memory.view(offset, length)
        if not length:
            raise InvalidRequest("a buffer must have at least one octet")
        self.share.take(octets=length, **counted)
        memory.holds += 1
        mapping = None
        try:
            mapping = yield from self.context.mapping(view, self._slots)
            region = OwnedRegion(domain, mapping, access, **named)
        except BaseException:
            if mapping is not None:
                mapping.close()
            memory.holds -= 1
            self.share.give(octets=length, **counted)
            raise
        region.memory = memory
        return region

    def _sync(self, request: protocol.Sync) -> Steps[bytes]:
        region = self._find(Object.REGION, request.region)
        region.check()
        if not 0 <= request.offset <= request.offset + request.length <= region.length:
            raise InvalidRequest(
                f"{request.length} octets from {request.offset} on are not within the region's"
                f" {region.length}"
            )
        mapped = region.mapping.memory
        copying = mapped.pushing if request.push else mapped.pulling
        yield from copying(request.offset, request.length)
        return b""

    def _post(self, request: protocol.Post) -> Steps[bytes]:
        stream = self._find(Object.STREAM, request.stream)
        yield from stream.cq.clearing()
        stream.cq.check_room()
        if request.object == Object.MEMORY and request.length:
            return (yield from self._post_memory(stream, request))
        if request.object == Object.REGION:
            region = self._find(Object.REGION, request.handle)
            posted = Posted(request.wr_id, region, request.offset)
            part = request.offset, request.length
        elif request.object or request.handle or request.offset or request.length:
            raise InvalidRequest("a receive buffer must lie in a region or in memory, or be empty")
        else:
            region, posted, part = None, Posted(request.wr_id), (0, 0)
        self.share.take(buffers=1)
        try:
            msn = stream.post_recv(region, request.qn, wr_id=posted, offset=part[0], length=part[1])
        except BaseException:
            self.share.give(buffers=1)
            raise
        return protocol.POSTED.pack(msn, self.context.cookie)

    def _post_memory(self, stream: OwnedStream, request: protocol.Post) -> Steps[bytes]:
        """Posts a buffer that is in no region of the client, in a region made for it alone."""
        memory = self._find(Object.MEMORY, request.handle)
        region = yield from self._register(
            stream.pd, memory, request.offset, request.length, {"buffers": 1}, Access.LOCAL_WRITE
        )
        posted = Posted(request.wr_id, region, alone=True)
        region.hold()
        try:
            msn = stream.post_recv(region, request.qn, wr_id=posted)
        except BaseException:
            self._completed(posted)
            posted.drop()
            raise
        finally:
            # Nothing else may be posted in the region. It stays until the client takes the
            # completion.
            region.forget()
        return protocol.POSTED.pack(msn, self.context.cookie)

    def _wait(self, number: int, request: protocol.Wait) -> Steps[bytes | None]:
        queue = self._find(Object.QUEUE, request.queue)
        yield from queue.clearing()
        if request.milliseconds > protocol.LONGEST_WAIT:
            raise InvalidRequest(f"a WAIT must be at most {protocol.LONGEST_WAIT} ms long")
        if queue.arrived(request.taken):
            return protocol.READY.pack(True)
        if len(self.waits) >= WAITS:
            raise ResourceExhausted(f"{WAITS} threads of this client wait already")
        deadline = time.monotonic() + request.milliseconds / 1000
        self.waits.append(Wait(number, queue, request.taken, deadline))
        return None

    def _state(self, request: protocol.State) -> bytes:
        stream = self._find(Object.STREAM, request.stream)
        told = b"" if stream.error is None else protocol.encode_event(stream.error)
        return protocol.STATE.pack(stream.state.value) + told

    # -- without the manager ----------------------------------------------------------------------

    def _allot_page(self) -> bytes | Passing:
        if self._page is not None:
            raise StateError(f"this client has the doorbell page {self._page.number} already")
        self._page = page = self._pages.allot(self._log)
        self._log("page", page=page.number, mapped=int(page.descriptor is not None))
        if page.descriptor is None:
            return protocol.PAGE.pack(page.number, False)
        return Passing(protocol.PAGE.pack(page.number, True), page.descriptor)

    def _paged(self) -> Page:
        if self._page is None:
            raise StateError("this client has no doorbell page: ask for one first")
        return self._page

    def _direct_queue(self, request: protocol.DirectQueue) -> Passing:
        page = self._paged()
        count = 1 << min(request.size, LARGEST_QUEUE)
        self.share.take(queues=1, completions=count)
        try:
            queue = DirectQueue(
                self.context, request.size, page, self._numbers, self._completed, self._stopped
            )
        except BaseException:
            self.share.give(queues=1, completions=count)
            raise
        self._name(Object.QUEUE, queue)
        return Passing(protocol.DIRECT.pack(self._last, queue.ring.number), queue.ring.descriptor)

    def _send_ring(self, request: protocol.SendRing) -> Steps[bytes]:
        stream = self._find(Object.STREAM, request.stream)
        queue = self._find(Object.QUEUE, request.queue)
        memory = self._find(Object.MEMORY, request.memory)
        if not isinstance(queue, DirectQueue):
            raise InvalidRequest("a send ring needs a direct completion queue")
        if stream.sending is not None:
            raise StateError("the stream has a send ring already: open another stream")
        stream.check()
        stream.sending = DirectSending(stream, queue, memory, request, self._paged(), self._stopped)
        yield from stream.sending.opening()
        return b""

    def _bell(self, request: protocol.Bell) -> bytes:
        """Rings a doorbell through the client's page, so that the device checks it as it checks
        those of a client that maps the page; then says whether the device has ignored it.
        """
        page = self._paged()
        if request.doorbell >= len(regs.DOORBELLS):
            raise InvalidRequest(f"a doorbell page has {' and '.join(regs.DOORBELLS)}")
        name = regs.DOORBELLS[request.doorbell]
        self.context.registers.start((Write(name, request.value, page.number),))
        fields = regs.unpack(name, request.value)
        if "stream" in fields:
            what, number = "stream", fields["stream"]
            own = [each.number for each in self._all(Object.STREAM) if each.sending is not None]
        else:
            what, number = "completion queue", fields["queue"]
            queues = self._all(Object.QUEUE)
            own = [each.ring.number for each in queues if isinstance(each, DirectQueue)]
        if number not in own:
            raise InvalidRequest(
                f"{what} {number} is not on this client's doorbell page: the device has ignored the"
                " doorbell"
            )
        return b""

    # -- reports of the device --------------------------------------------------------------------

    def _completed(self, posted: Posted) -> None:
        self.share.give(buffers=1, octets=posted.octets)

    def _stopped(self, stream: Stream, reason: str) -> None:
        if stream.error is not None:
            self._events.append(stream.error)
        self._log("stop", stream=stream.number, reason=reason)

    def answers(self) -> Iterator[tuple[int, bytes]]:
        """Yields number and body of each answer that can be given now."""
        for wait in [wait for wait in self.waits if wait.over]:
            self.waits.remove(wait)
            yield wait.number, protocol.READY.pack(wait.ready)

    # -- closing ----------------------------------------------------------------------------------

    def _close(self, request: protocol.Close) -> Steps[bytes]:
        try:
            kind = Object(request.object)
        except ValueError:
            raise InvalidRequest(f"there are no objects of kind {request.object}") from None
        closing = self._find(kind, request.handle)
        for queue in self._all(Object.QUEUE):
            yield from queue.clearing()
        streams = self._all(Object.STREAM)
        queues = [each.cq for each in streams]
        queues += [each.sending.queue for each in streams if each.sending is not None]
        if kind is Object.QUEUE and closing in queues:
            raise StateError("streams use the completion queue: close them first")
        inside = streams + self._all(Object.REGION)
        if kind is Object.DOMAIN and any(each.pd is closing for each in inside):
            raise StateError("the protection domain has streams or regions: close them first")
        if kind is Object.STREAM:
            yield from closing.showing()
        yield from self._closing(kind, request.handle, shown=True)
        return protocol.LEFT.pack(closing.cq.left_of(closing)) if kind is Object.STREAM else b""

    def _closing(self, kind: Object, handle: int, *, shown: bool) -> Steps[None]:
        """Closes an object in steps. ``shown``: a region's octets are copied to the client
        first.
        """
        closing = self._objects[kind][handle]
        try:
            if kind is Object.REGION:
                yield from closing.disabling()
                if shown:
                    yield from closing.mapping.memory.pulling(0, closing.length)
                yield from closing.mapping.memory.closing()
                closing.forget()
            elif kind is Object.DOMAIN:
                closing.close()
            else:
                yield from closing.closing()
        finally:
            self._sweep()
        if kind is Object.MEMORY:
            del self._objects[kind][handle]

    def _sweep(self) -> None:
        """Drops objects that are closed, and counts them no more."""
        for stream in self._all(Object.STREAM):
            if stream.state is StreamState.CLOSED:
                del self._objects[Object.STREAM][stream.handle]
                self.share.give(streams=1)
        for handle, region in list(self._objects[Object.REGION].items()):
            if region.revoked and not region.posted:
                del self._objects[Object.REGION][handle]
                stags = int(tagged(region.access))
                self.share.give(stags=stags, octets=region.length, regions=1)
                region.memory.holds -= 1
                self._log("revoke", region=handle, octets=region.length)
        for handle, queue in list(self._objects[Object.QUEUE].items()):
            if queue.closed:
                del self._objects[Object.QUEUE][handle]
                self.share.give(queues=1, completions=queue.cqe)
        for handle, domain in list(self._objects[Object.DOMAIN].items()):
            if domain.closed:
                del self._objects[Object.DOMAIN][handle]
                self.share.give(domains=1)

    def stop(self) -> None:
        """Stops all streams, after the client has gone."""
        self.waits.clear()
        for stream in self._all(Object.STREAM):
            stream.stop()

    def removing(self) -> Steps[None]:
        """Closes all remaining objects, in steps."""
        for kind in _ORDER:
            while self._objects[kind]:
                yield from self._closing(kind, next(iter(self._objects[kind])), shown=False)
                yield
        if self._page is not None:
            self._pages.give_back(self._page)
            self._page = None
