"""Completion queues of RDMAP."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from ..base.checks import instance, integer, seconds
from ..base.closing import Closing
from ..base.errors import CompletionOverrun, RnicTimeout, StreamError
from ..verbs import cq as ddp
from ..verbs.context import Context
from ..verbs.cq import WcStatus
from ..verbs.known import KnownStream, StreamState
from .known import KnownQP


class Opcode(Enum):
    """What is posted, and what completed."""

    SEND = auto()
    SEND_WITH_INV = auto()
    RDMA_WRITE = auto()
    RDMA_READ = auto()
    RECV = auto()
    HALF_CLOSED = auto()  #: an event, of no post: the peer has closed its half of the connection


@dataclass(frozen=True)
class WC:
    """A work completion.

    Parameters
    ----------
    qp
        Whose it is.
    status, opcode, wr_id
        What became of what, and what the post said.
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
    """Completions of the queue pairs that were made with it.

    What a peer sends is acted upon when this is polled or waited for: that answers Read Requests
    too. Closing it closes its queue pairs.

    Parameters
    ----------
    cqe
        DDP messages, a peer's Writes among them, that may come between two polls. One more, and
        its queue pair is in error.
    """

    def __init__(self, context: Context, cqe: int = 1024) -> None:
        instance("a completion queue's context", context, Context)
        self.context = context
        self.messages = ddp.CQ(context, cqe)
        self.qps: dict[KnownStream, KnownQP] = {}
        self._entries: deque[WC] = deque()

    def put(self, wc: WC) -> None:
        """A completion has come."""
        self._entries.append(wc)
        self.messages.wake()

    def poll(self, num_entries: int = 16) -> list[WC]:
        """Up to so many completions that are there, the oldest first."""
        num_entries = integer("num_entries", num_entries, 1, math.inf, "at least 1")
        with self.context.lock:
            self.serve()
            count = min(num_entries, len(self._entries))
            return [self._entries.popleft() for _ in range(count)]

    def wait(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """Up to so many completions, at least one: waits for it.

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
            # Not for messages alone: a Send is complete when another thread has posted it.
            self.messages.wait_until(self._there, left)
        return taken

    async def wait_async(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """The same for asyncio: the loop goes on meanwhile, but for accesses to registers."""
        return await ddp.taken_async(
            self.messages, lambda: self.poll(num_entries), self._there, timeout
        )

    def _there(self) -> bool:
        return bool(self._entries)

    def serve(self) -> None:
        """Act upon what has come."""
        with self.context.lock:
            while self._serve():
                pass

    def _serve(self) -> bool:
        """Act upon what is there; whether something was."""
        try:
            taken = self.messages.wait(0)
        except RnicTimeout:
            return False
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
        return True

    def close(self) -> None:
        with self.context.lock:
            for qp in list(self.qps.values()):
                qp.close()
            self.messages.close()
            self._entries.clear()
