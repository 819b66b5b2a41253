"""The driver's objects in the manager, each with the handle by which its client names it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..base.errors import ResourceExhausted, StreamError
from ..transports.memory import Steps
from ..verbs.context import Context, Mapping
from ..verbs.cq import CQ, WC, WcStatus
from ..verbs.known import KnownStream, StreamState
from ..verbs.pd import MR, PD, Access
from ..verbs.stream import Stream
from . import protocol
from .memory import Passed
from .protocol import Done, StreamStopped

#: How many errors wait for a client to fetch them; beyond that, the oldest are dropped.
UNTOLD = 1024


def tagged(access: int) -> bool:
    """Returns whether a client's region with these rights has a Steering Tag. A region without
    one is for receive buffers only.
    """
    return bool(access & (Access.REMOTE_WRITE | Access.REMOTE_READ | Access.LOCAL_READ))


class OwnedStream(Stream):
    """A stream of a client.

    Where the device does not write the client's memory itself, received octets are copied there
    when the client takes the completion, so that the copying is done in the client's turn.

    Attributes
    ----------
    greedy
        Whether the stream was stopped because its peer used too many completions; its further
        completions are dropped.
    disabled
        Whether the manager has disabled the stream.
    """

    handle, greedy, disabled = 0, False, False

    def _disable(self) -> None:
        self.disabled = True
        super()._disable()

    def _show_region(self, region: MR) -> None:
        pass

    def _show_buffer(self, posted: object, length: int) -> None:
        pass

    def showing(self) -> Steps[None]:
        """Stops the stream, and shows the client the octets placed in the regions that end
        with it.
        """
        yield from self._disabling()
        for region in list(self.bound):
            yield from region.mapping.memory.pulling(0, region.length)


class OwnedRegion(MR):
    """A region of a client, in memory that the client passed.

    Parameters
    ----------
    mapping
        The memory as it is described to the device.
    """

    handle = 0
    memory: Passed

    def __init__(
        self,
        pd: PD,
        mapping: Mapping,
        access: Access,
        *,
        to: int = 0,
        stream: Stream | None = None,
    ) -> None:
        self._made = mapping
        super().__init__(pd, mapping.memory.view, access, to=to, stream=stream)

    @property
    def _tagged(self) -> bool:
        return tagged(self.access)

    def _map(self, view: memoryview) -> Mapping:
        return self._made


@dataclass(frozen=True)
class Posted:
    """A receive buffer of a client: a part of one of its regions, or a region for the buffer
    alone.
    """

    wr_id: int
    region: OwnedRegion | None = None
    offset: int = 0
    alone: bool = False  #: whether the region was made for this buffer alone

    @property
    def octets(self) -> int:
        """The number of octets that the buffer counts for, beside those of the client's regions."""
        return self.region.length if self.alone and self.region is not None else 0

    def pulling(self, length: int) -> Steps[None]:
        """Shows the client the octets of a message of this length, in steps."""
        region = self.region
        # All of a region was shown when it was revoked.
        if region is not None and (self.alone or not region.revoked):
            room = region.length - self.offset
            yield from region.mapping.memory.pulling(self.offset, min(length, room))

    def closing(self) -> Steps[None]:
        """Does the slow part of :meth:`drop` in steps."""
        if self.alone and self.region is not None:
            yield from self.region.mapping.memory.closing()

    def drop(self) -> None:
        """Releases the buffer, once the client has its completion or never will."""
        if self.alone and self.region is not None:
            self.region.release()
            self.region.memory.holds -= 1


class OwnedQueue(CQ):
    """A client's completion queue.

    A stream whose completion finds the queue full is stopped. Once the queue is half full, a stream
    that holds more than an equal part of it is stopped too: its peer would use the room of the
    other streams.

    Parameters
    ----------
    completed
        Called with the receive buffer that a completion gives back.
    stopped
        Called with a stream that was stopped, and the reason.
    """

    handle = 0

    def __init__(
        self,
        context: Context,
        cqe: int,
        completed: Callable[[Posted], None],
        stopped: Callable[[Stream, str], None],
    ) -> None:
        super().__init__(context, cqe)
        self._completed, self._stopped = completed, stopped
        self._waiting: Counter[KnownStream] = Counter()
        self._errors: deque[Any] = deque(maxlen=UNTOLD)
        self._overruns = deque(maxlen=UNTOLD)

    # -- for streams ------------------------------------------------------------------------------

    def put(self, wc: WC) -> None:
        if isinstance(wc.wr_id, Posted):
            self._completed(wc.wr_id)
        stream, received = wc.stream, wc.stream.state is StreamState.RECEIVING
        assert isinstance(stream, OwnedStream)
        if stream.greedy and wc.status is not WcStatus.FLUSHED:
            _drop(wc)
            return
        before = len(self._entries)
        super().put(wc)
        if len(self._entries) == before:
            _drop(wc)
        elif wc.status is not WcStatus.FLUSHED:
            self._waiting[stream] += 1
        if not received:
            return
        if stream.state is StreamState.ERROR:
            self._stopped(stream, "its completion queue is full")
        elif 2 * len(self._entries) > self.cqe and self._waiting[stream] > self._part():
            stream.stop()
            stream.greedy = True
            self._stopped(stream, "its peer uses more than its part of the completion queue")
            self._errors.append(
                StreamStopped(
                    stream.number,
                    f"stream {stream.number} is stopped, because its peer used more than its part"
                    f" ({self._part()} of {self.cqe} completions): close it",
                )
            )

    def _part(self) -> int:
        return max(self.cqe // max(len(self.streams), 1), 1)

    def put_error(self, error: StreamError) -> None:
        super().put_error(error)
        stream = self.context.streams[error.event.stream]
        assert isinstance(stream, OwnedStream)
        self._stopped(stream, f"in error: {error.number}")

    # -- for the client ---------------------------------------------------------------------------

    def arrived(self, taken: int) -> bool:
        """Returns whether a completion or an error waits to be taken."""
        return bool(self._entries or self._errors or self._overruns)

    def clearing(self) -> Steps[None]:
        """Does nothing: buffers are freed when their completion is taken."""
        yield from ()

    def left_of(self, stream: Stream) -> int:
        """Returns how many completions of a stream wait to be taken."""
        return sum(wc.stream is stream for wc in self._entries)

    def check_room(self) -> None:
        """Raises where the queue is full, so that the client may add nothing to it."""
        if len(self._entries) >= self.cqe:
            raise ResourceExhausted(
                f"{len(self._entries)} completions wait in the queue: take them first"
            )

    def taking(self, count: int, errors: bool) -> Steps[list[Done]]:
        """Takes at most ``count`` completions, in steps, and returns them as they are sent to the
        client.

        The manager has already fetched them from the device, once for all clients.
        """
        count = max(min(count, protocol.MOST), 1)
        if errors and self._errors and not (self._entries or self._overruns):
            # The event may be seen before an earlier completion is in the ring.
            yield from self.context.settling(self.ring)
        taken = deque(self._pop(count))
        if errors and self._errors and not taken:
            raise self._errors.popleft()
        told: list[Done] = []
        shown: set[MR] = set()
        try:
            while taken:
                wc = taken[0]
                if wc.status is not WcStatus.FLUSHED:
                    self._waiting[wc.stream] -= 1
                    if not self._waiting[wc.stream]:
                        del self._waiting[wc.stream]
                    if isinstance(wc.wr_id, Posted):
                        yield from wc.wr_id.pulling(wc.byte_len)
                    region = _own(wc)
                    if region is not None and not region.revoked and region not in shown:
                        yield from region.mapping.memory.pulling(0, region.length)
                        shown.add(region)
                if isinstance(wc.wr_id, Posted):
                    yield from wc.wr_id.closing()
                told.append(_done(wc))
                _drop(taken.popleft())
                yield
        finally:
            for wc in taken:
                _drop(wc)
        return told

    def closing(self) -> Steps[None]:
        """Closes the queue, in steps."""
        while self._entries:
            wc = self._entries.popleft()
            try:
                if isinstance(wc.wr_id, Posted):
                    yield from wc.wr_id.closing()
            finally:
                _drop(wc)
            yield
        self.close()


def _drop(wc: WC) -> None:
    if isinstance(wc.wr_id, Posted):
        wc.wr_id.drop()


def _own(wc: WC) -> OwnedRegion | None:
    """Returns the region that a message was placed in, or None where the region is another
    client's.
    """
    region = wc.mr
    return region if isinstance(region, OwnedRegion) and region.pd is wc.stream.pd else None


def _done(wc: WC) -> Done:
    assert isinstance(wc.stream, OwnedStream)
    region = _own(wc)
    posted = wc.wr_id.wr_id if isinstance(wc.wr_id, Posted) else 0
    return Done(
        wc.stream.handle, wc.status.value, wc.opcode.value, wc.qn, posted, wc.byte_len, wc.msn,
        wc.stag, 0 if region is None else region.handle, wc.rsvdulp, wc.to,
    )  # fmt: skip
