"""Completion queues of DDP messages."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar

from ..base.checks import instance, integer, seconds
from ..base.closing import Closing
from ..base.errors import CompletionOverrun, RnicTimeout, StateError, StreamError
from .context import Context, Ring
from .known import KnownStream
from .pd import MR

T = TypeVar("T")
#: How many errors of streams are kept for :meth:`CQ.wait`; beyond that, the oldest are dropped.
_ERRORS = 1024


class Opcode(Enum):
    """The kind of operation that completed."""

    RECV = auto()  #: an untagged message, in a buffer that was posted
    TAGGED = auto()  #: a tagged message, in a region that the peer named
    SENT = auto()  #: a message that the stream was to send


class WcStatus(Enum):
    """The outcome of an operation."""

    SUCCESS = auto()
    NOT_PLACED = auto()  #: the bus refused a write on the message's stream
    NOT_READ = auto()  #: SENT: the device was not allowed to read octets, or the bus refused it
    FLUSHED = auto()  #: the stream ended before the buffer had a message, or the message left


class WC(NamedTuple):
    """A work completion.

    Parameters
    ----------
    stream
        The stream of the message.
    status, opcode
        The outcome, and the kind of operation.
    wr_id
        RECV, SENT: the ``wr_id`` given when the buffer or the message was posted.
    byte_len
        Octets of the message. TAGGED: from the message's begin to the end of its last segment.
    qn, msn
        RECV: Queue Number and Message Sequence Number.
    stag, mr
        TAGGED: the STag of the last segment, and its region; None if the region is revoked.
    to
        TAGGED: the lower 32 bits of the Tagged Offset at which the message begins.
    rsvdulp
        The RsvdULP field of the DDP Header: 40 bits; TAGGED: 8 bits.
    """

    stream: KnownStream
    status: WcStatus
    opcode: Opcode
    wr_id: Any = None
    byte_len: int = 0
    qn: int = 0
    msn: int = 0
    stag: int = 0
    mr: MR | None = None
    rsvdulp: int = 0
    to: int = 0


class CQ(Closing):
    """Holds the completions of its streams, in the order of their delivery.

    It has a completion queue of the device, ``ring``, to itself, as long as the device has a free
    one; all others share one. Closing it closes its streams.

    Parameters
    ----------
    cqe
        How many completions of received messages the queue holds. One more is lost, and its stream
        is stopped: ``poll`` reports that after the earlier completions.
    """

    def __new__(cls, context: Context, *arguments: Any, **named: Any) -> Self:
        instance("a completion queue's context", context, Context)
        return super().__new__(context.kinds.get(cls, cls))

    def __init__(self, context: Context, cqe: int = 1024) -> None:
        cqe = integer("cqe", cqe, 1, math.inf, "at least 1")
        with context.lock:
            context.check()
            self.context, self.cqe = context, cqe
            #: Called by any thread, with the context locked, after something was added.
            self.notify: Callable[[], object] = nobody
            self.streams: set[KnownStream] = set()
            self.closed = False
            self._entries: deque[WC] = deque()
            self._errors: deque[StreamError] = deque(maxlen=_ERRORS)
            self._overruns: deque[KnownStream] = deque()
            self.ring = self._open_ring()
            context.cqs.add(self)

    def _open_ring(self) -> Ring:
        return self.context.open_ring()

    def _close_ring(self) -> None:
        self.context.close_ring(self.ring)

    # -- for streams ------------------------------------------------------------------------------

    def put(self, wc: WC) -> None:
        """Adds a completion, or stops its stream where there is no room."""
        exempt = wc.status is WcStatus.FLUSHED or wc.opcode is Opcode.SENT
        if len(self._entries) >= self.cqe and not exempt:
            if wc.stream not in self._overruns:
                self._overruns.append(wc.stream)
            wc.stream.stop()
        else:
            self._entries.append(wc)
        self.wake()

    def put_error(self, error: StreamError) -> None:
        """Adds the error of a stream that has failed."""
        self._errors.append(error)
        self.wake()

    def wait_until(self, also: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until a completion or an error is present, or until ``also`` returns True.

        A thread that makes ``also`` true calls :meth:`wake`.

        Returns
        -------
        bool
            False if the wait lasted ``timeout`` seconds without success.
        """
        return self.context.wait_for(lambda: self._ready() or also(), timeout)

    def wake(self) -> None:
        """Makes the threads in :meth:`wait_until` look again."""
        self.context.wake()
        self.notify()

    # -- for the user -----------------------------------------------------------------------------

    def poll(self, num_entries: int = 16) -> list[WC]:
        """Returns at most ``num_entries`` completions that are present, the oldest first."""
        num_entries = integer("num_entries", num_entries, 1, math.inf, "at least 1")
        with self.context.lock:
            self._check()
            self.context.service()
            return self._pop(num_entries)

    def _pop(self, num_entries: int) -> list[WC]:
        """Returns completions that are present; raises for an overrun once none is left."""
        count = min(num_entries, len(self._entries))
        # This happens before completions are removed, because the link may fail here.
        refresh(islice(self._entries, count))
        taken = [self._entries.popleft() for _ in range(count)]
        if not taken and self._overruns:
            stopped = self._overruns.popleft().number
            raise CompletionOverrun(
                f"stream {stopped} is stopped, because more than {self.cqe} completions waited:"
                " close it, and give the CQ a larger cqe or poll it more often"
            )
        return taken

    def wait(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """Waits for completions, and returns at least one and at most ``num_entries``.

        Raises
        ------
        RnicTimeout
            None came within ``timeout`` seconds.
        StreamError
            A stream of this CQ failed, and no completion precedes its error. Each error is raised
            once.
        """
        timeout = seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            ready = self.context.wait_for(self._ready, left)
            # Another thread may have been faster.
            if taken := self.take(num_entries):
                return taken
            if not ready:
                raise RnicTimeout(f"no completion came within {timeout} seconds")

    async def wait_async(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """Does the work of :meth:`wait` for asyncio. The event loop runs on, except during
        register accesses.
        """
        return await taken_async(self, lambda: self.take(num_entries), lambda: False, timeout)

    def _ready(self) -> bool:
        self._check()
        return bool(self._entries or self._errors or self._overruns)

    def take(self, num_entries: int) -> list[WC]:
        """Returns completions that are present; raises the error of a stream once none is left."""
        with self.context.lock:
            self._check()
            self.context.service()
            return self.pick(num_entries)

    def pick(self, num_entries: int) -> list[WC]:
        """Does the work of :meth:`take`, without a look at the device before."""
        with self.context.lock:
            taken = self._pop(num_entries)
            if not taken and self._errors:
                # The event may be seen before an earlier completion is in the ring.
                self.context.settle()
                taken = self._pop(num_entries)
                if not taken:
                    raise self._errors.popleft()
            return taken

    def _check(self) -> None:
        self.context.check()
        if self.closed:
            raise StateError("the completion queue is closed")

    def close(self) -> None:
        """Closes the queue's streams, and drops completions that nobody took. A second call
        does nothing.
        """
        with self.context.lock:
            if self.closed:
                return
            for stream in list(self.streams):
                stream.close()
            self._close_ring()
            self._entries.clear()
            self.context.cqs.discard(self)
            self.closed = True
            self.context.wake()


def nobody() -> None:
    """Does nothing, for a queue of which nobody wants to be notified."""


def refresh(taken: Iterable[WC]) -> None:
    """Shows the host the octets written in these completions' regions, once per region."""
    for region in {wc.mr for wc in taken}:
        if region is not None:
            region.refresh()


async def taken_async(
    cq: CQ, take: Callable[[], list[T]], also: Callable[[], bool], timeout: float | None
) -> list[T]:
    """Waits until ``take`` returns something, and returns that, while the event loop runs on.

    ``also`` wakes the wait, as in :meth:`CQ.wait_until`.
    """
    timeout = seconds("timeout", timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    given_up = threading.Event()
    while not (taken := take()):
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise RnicTimeout(f"no completion came within {timeout} seconds")
        try:
            await asyncio.to_thread(cq.wait_until, lambda: given_up.is_set() or also(), left)
        except asyncio.CancelledError:
            with cq.context.lock:
                given_up.set()
                cq.wake()
            raise
    return taken
