"""The driver's objects as the manager has them: each with its handle and what it counts for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..context import Context
from ..cq import CQ, WC, WcStatus
from ..errors import ResourceExhausted, StreamError
from ..pd import MR
from ..stream import Stream, StreamState
from . import protocol
from .memory import Passed
from .protocol import Done, StreamStopped

#: Errors that wait for a client to look: of what comes then the oldest go.
UNTOLD = 1024


class OwnedStream(Stream):
    """A stream of a client.

    Attributes
    ----------
    greedy
        It was stopped for what its peer takes; what still comes of it is dropped.
    """

    handle, greedy = 0, False


class OwnedRegion(MR):
    """A region of a client, in memory that it passed."""

    handle = 0
    memory: Passed


@dataclass(frozen=True)
class Posted:
    """A receive buffer of a client; in no region if ``memory`` is said."""

    wr_id: int
    octets: int = 0
    memory: Passed | None = None


class OwnedQueue(CQ):
    """A client's completion queue.

    A stream whose completion finds it full is stopped. So is, once it is half full, a stream that
    has more than an equal part of it: its peer would take the room of the others.

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
        self._waiting: Counter[Stream] = Counter()
        self._errors: deque[Any] = deque(maxlen=UNTOLD)
        self._overruns = deque(maxlen=UNTOLD)

    # -- for streams ------------------------------------------------------------------------------

    def put(self, wc: WC) -> None:
        if isinstance(wc.wr_id, Posted):
            self._completed(wc.wr_id)
        stream, received = wc.stream, wc.stream.state is StreamState.RECEIVING
        assert isinstance(stream, OwnedStream)
        if stream.greedy and wc.status is not WcStatus.FLUSHED:
            return
        before = len(self._entries)
        super().put(wc)
        if len(self._entries) > before and wc.status is not WcStatus.FLUSHED:
            self._waiting[stream] += 1
        if not received:
            return
        if stream.state is StreamState.ERROR:
            self._stopped(stream, "its completion queue is full")
        elif 2 * len(self._entries) > self.cqe and self._waiting[stream] > self._part():
            stream.stop()
            stream.greedy = True
            self._stopped(stream, "its peer takes more than its part of the completion queue")
            self._errors.append(
                StreamStopped(
                    stream.number,
                    f"stream {stream.number} is stopped, as its peer took more than its part"
                    f" ({self._part()} of {self.cqe} completions): close it",
                )
            )

    def _part(self) -> int:
        return max(self.cqe // max(len(self.streams), 1), 1)

    def put_error(self, error: StreamError) -> None:
        super().put_error(error)
        stream = self.context.streams[error.event.stream]
        self._stopped(stream, f"in error: {error.number}")

    # -- for the client ---------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._entries or self._errors or self._overruns)

    def check_room(self) -> None:
        """Raise if nothing more may come into it from this client's side."""
        if len(self._entries) >= self.cqe:
            raise ResourceExhausted(
                f"{len(self._entries)} completions wait in the queue: take them first"
            )

    def take(self, count: int, errors: bool) -> list[Done]:
        """Up to so many completions, for the wire."""
        count = max(min(count, protocol.MOST), 1)
        taken = self._take(count) if errors else self.poll(count)
        for wc in taken:
            if wc.status is not WcStatus.FLUSHED:
                self._waiting[wc.stream] -= 1
                if not self._waiting[wc.stream]:
                    del self._waiting[wc.stream]
        return [_done(wc) for wc in taken]


def _done(wc: WC) -> Done:
    assert isinstance(wc.stream, OwnedStream)
    region = wc.mr
    posted = wc.wr_id.wr_id if isinstance(wc.wr_id, Posted) else 0
    # A client is told of no region but its own.
    own = isinstance(region, OwnedRegion) and region.pd is wc.stream.pd
    return Done(
        wc.stream.handle, wc.status.value, wc.opcode.value, wc.qn, posted, wc.byte_len, wc.msn,
        wc.stag, region.handle if own and isinstance(region, OwnedRegion) else 0, wc.rsvdulp,
    )  # fmt: skip
