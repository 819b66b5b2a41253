"""Completion queues of RDMAP."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from ..base.checks import instance, integer, seconds
from ..base.closing import Closing
from ..base.errors import CompletionOverrun, RnicTimeout, StreamError
from ..verbs import cq as ddp
from ..verbs.context import Context
from ..verbs.cq import WcStatus
from ..verbs.known import KnownStream, StreamState
from .known import KnownQP

#: How many messages are taken from the device's queue between two looks at it.
_BATCH = 16


class Opcode(Enum):
    """The operation that a post asks for, or that completed."""

    SEND = auto()
    SEND_WITH_INV = auto()
    RDMA_WRITE = auto()
    RDMA_READ = auto()
    RECV = auto()
    HALF_CLOSED = auto()  #: an event without a post: the peer closed its half of the connection


class WC(NamedTuple):
    """A work completion.

    Parameters
    ----------
    qp
        The queue pair.
    status, opcode, wr_id
        The outcome, the operation, and the ``wr_id`` given with the post.
    byte_len
        Octets of the message.
    solicited
        RECV: the peer asked for an event.
    invalidated
        RECV: the STag that the peer has invalidated; its region is revoked.
    """

    qp: KnownQP
    status: WcStatus
    opcode: Opcode
    wr_id: Any = None
    byte_len: int = 0
    solicited: bool = False
    invalidated: int | None = None


class CQ(Closing):
    """Holds the completions of its queue pairs, and processes the messages of their peers.

    Messages are processed when the queue is polled or waited for; Read Requests are answered then,
    too. Closing the queue closes its queue pairs.

    Parameters
    ----------
    cqe
        How many DDP messages, a peer's Writes included, may arrive between two polls. One more puts
        its queue pair in error.
    """

    def __init__(self, context: Context, cqe: int = 1024) -> None:
        instance("a completion queue's context", context, Context)
        self.context = context
        self.messages = ddp.CQ(context, cqe)
        self.qps: dict[KnownStream, KnownQP] = {}
        #: Called by any thread, with the context locked, after a completion was added.
        self.notify: Callable[[], object] = ddp.nobody
        self._entries: deque[WC] = deque()

    def put(self, wc: WC) -> None:
        """Adds a completion."""
        self._entries.append(wc)
        self.context.wake()
        self.notify()

    def poll(self, num_entries: int = 16) -> list[WC]:
        """Returns at most ``num_entries`` completions that are present, the oldest first."""
        num_entries = integer("num_entries", num_entries, 1, math.inf, "at least 1")
        with self.context.lock:
            self.serve()
            return self.take(num_entries)

    def take(self, num_entries: int) -> list[WC]:
        """Returns at most ``num_entries`` completions of messages that were processed already."""
        with self.context.lock:
            count = min(num_entries, len(self._entries))
            return [self._entries.popleft() for _ in range(count)]

    def wait(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """Waits for completions, and returns at least one and at most ``num_entries``.

        Raises
        ------
        RnicTimeout
            None came within ``timeout`` seconds.
        """
        timeout = seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (taken := self.poll(num_entries)):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise RnicTimeout(f"no completion came within {timeout} seconds")
            # This waits not only for messages: a Send is complete when another thread has posted
            # it.
            self.messages.wait_until(self._there, left)
        return taken

    async def wait_async(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """Does the work of :meth:`wait` for asyncio. The event loop runs on, except during
        register accesses.
        """
        return await ddp.taken_async(
            self.messages, lambda: self.poll(num_entries), self._there, timeout
        )

    def _there(self) -> bool:
        return bool(self._entries)

    def serve(self) -> None:
        """Processes all messages and errors that have arrived."""
        with self.context.lock:
            while self._handle(self.messages.take):
                pass

    def process(self) -> None:
        """Processes the messages and errors that the context has taken from the device."""
        with self.context.lock:
            while self._handle(self.messages.pick):
                pass

    def _handle(self, take: Callable[[int], list[ddp.WC]]) -> bool:
        """Processes messages and errors; returns whether there were any."""
        try:
            taken = take(_BATCH)
        except StreamError as error:
            for qp in list(self.qps.values()):
                if qp.stream.number == error.event.stream:
                    qp.refuse(error.event)
        except CompletionOverrun:
            for qp in list(self.qps.values()):
                if qp.stream.state is StreamState.ERROR:
                    qp.overrun()
        else:
            for each in taken:
                if (owner := self.qps.get(each.stream)) is not None:
                    owner.take(each)
            return bool(taken)
        return True

    def close(self) -> None:
        with self.context.lock:
            for qp in list(self.qps.values()):
                qp.close()
            self.messages.close()
            self._entries.clear()
