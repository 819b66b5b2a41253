"""Completion queues."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Any, Self, TypeVar

from ..base.checks import instance, integer, seconds
from ..base.closing import Closing
from ..base.errors import CompletionOverrun, RnicTimeout, StateError, StreamError
from .context import Context
from .known import KnownStream
from .pd import MR

T = TypeVar("T")
#: Errors of streams that are kept for :meth:`CQ.wait`; of more, the oldest go.
_ERRORS = 1024


class Opcode(Enum):
    """What completed."""

    RECV = auto()  #: an untagged message, in a buffer that was posted
    TAGGED = auto()  #: a tagged message, in a region that the peer named


class WcStatus(Enum):
    """How it went."""

    SUCCESS = auto()
    NOT_PLACED = auto()  #: the bus refused a write on the message's stream
    FLUSHED = auto()  #: the stream was closed before a message came for the buffer


@dataclass(frozen=True)
class WC:
    """A work completion.

    Parameters
    ----------
    stream
        Where the message came.
    status, opcode
        What became of what.
    wr_id
        RECV: what the post said.
    byte_len
        Octets of the message. TAGGED: from where it begins to the end of its last segment.
    qn, msn
        RECV: its queue and Message Sequence Number.
    stag, mr
        TAGGED: the STag that the last segment named, and its region, None if it is revoked.
    to
        TAGGED: the lower 32 bits of the Tagged Offset with which it begins.
    rsvdulp
        What the DDP Header has for the ULP: 40 bits, TAGGED 8.
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
    """Completions of the streams that were made with it, in the order of their delivery.

    Closing it closes those streams.

    Parameters
    ----------
    cqe
        Completions that it holds. When one more comes, its stream is stopped, and that completion
        is lost: ``poll`` says so after those before it.
    """

    def __new__(cls, context: Context, *arguments: Any, **named: Any) -> Self:
        instance("a completion queue's context", context, Context)
        return super().__new__(context.kinds.get(cls, cls))

    def __init__(self, context: Context, cqe: int = 1024) -> None:
        cqe = integer("cqe", cqe, 1, math.inf, "at least 1")
        with context.lock:
            context.check()
            self.context, self.cqe = context, cqe
            self.streams: set[KnownStream] = set()
            self.closed = False
            self._entries: deque[WC] = deque()
            self._errors: deque[StreamError] = deque(maxlen=_ERRORS)
            self._overruns: deque[KnownStream] = deque()
            context.cqs.add(self)

    # -- for streams ------------------------------------------------------------------------------

    def put(self, wc: WC) -> None:
        """A completion has come."""
        if len(self._entries) >= self.cqe and wc.status is not WcStatus.FLUSHED:
            if wc.stream not in self._overruns:
                self._overruns.append(wc.stream)
            wc.stream.stop()
        else:
            self._entries.append(wc)
        self.context.wake()

    def put_error(self, error: StreamError) -> None:
        """A stream has failed."""
        self._errors.append(error)
        self.context.wake()

    def wait_until(self, also: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until something is there, or something else is so, which :meth:`wake` announces.

        Returns
        -------
        bool
            Whether it came to that within so many seconds.
        """
        return self.context.wait_for(lambda: self._ready() or also(), timeout)

    def wake(self) -> None:
        """Have who waits in :meth:`wait_until` look again."""
        self.context.wake()

    # -- for the user -----------------------------------------------------------------------------

    def poll(self, num_entries: int = 16) -> list[WC]:
        """Up to so many completions that are there, the oldest first."""
        num_entries = integer("num_entries", num_entries, 1, math.inf, "at least 1")
        with self.context.lock:
            self._check()
            self.context.service()
            return self._pop(num_entries)

    def _pop(self, num_entries: int) -> list[WC]:
        """Takes completions that are there; without any, raises that there were too many."""
        count = min(num_entries, len(self._entries))
        # Before they are taken, as a link may fail.
        refresh(islice(self._entries, count))
        taken = [self._entries.popleft() for _ in range(count)]
        if not taken and self._overruns:
            stopped = self._overruns.popleft().number
            raise CompletionOverrun(
                f"stream {stopped} is stopped, as more than {self.cqe} completions waited:"
                " close it, and give the CQ a larger cqe or poll it more often"
            )
        return taken

    def wait(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """Up to so many completions, at least one: waits for it.

        Raises
        ------
        RnicTimeout
            None came within ``timeout`` seconds.
        StreamError
            A stream of this CQ failed, and there is no completion before that; told once.
        """
        timeout = seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            ready = self.context.wait_for(self._ready, left)
            # Another thread may have been faster.
            if taken := self._take(num_entries):
                return taken
            if not ready:
                raise RnicTimeout(f"no completion came within {timeout} seconds")

    async def wait_async(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """The same for asyncio: the loop goes on meanwhile, but for accesses to registers."""
        return await taken_async(self, lambda: self._take(num_entries), lambda: False, timeout)

    def _ready(self) -> bool:
        self._check()
        return bool(self._entries or self._errors or self._overruns)

    def _take(self, num_entries: int) -> list[WC]:
        with self.context.lock:
            taken = self.poll(num_entries)
            if not taken and self._errors:
                # An event may be seen before a completion of before it is in the ring.
                self.context.settle()
                taken = self.poll(num_entries)
                if not taken:
                    raise self._errors.popleft()
            return taken

    def _check(self) -> None:
        self.context.check()
        if self.closed:
            raise StateError("the completion queue is closed")

    def close(self) -> None:
        """Close its streams; completions that nobody took are gone. Twice does nothing."""
        with self.context.lock:
            if self.closed:
                return
            for stream in list(self.streams):
                stream.close()
            self._entries.clear()
            self.context.cqs.discard(self)
            self.closed = True
            self.context.wake()


def refresh(taken: Iterable[WC]) -> None:
    """Show the host what was written in the regions of these completions, once for each region."""
    for region in {wc.mr for wc in taken}:
        if region is not None:
            region.refresh()


async def taken_async(
    cq: CQ, take: Callable[[], list[T]], also: Callable[[], bool], timeout: float | None
) -> list[T]:
    """Take what is there, at least one, while an event loop goes on; as :meth:`CQ.wait_until`."""
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
            given_up.set()
            cq.wake()
            raise
    return taken
