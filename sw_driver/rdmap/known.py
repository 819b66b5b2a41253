"""Declares queue pairs as their completion queue and their completions see them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ..base.closing import Closing
from ..base.errors import ErrorEvent
from ..verbs.cq import WC
from ..verbs.stream import Stream


class KnownQP(Closing):
    """Declares a queue pair as its completion queue and its completions see it.

    Attributes
    ----------
    stream
        DDP Stream of the queue pair.
    """

    stream: Stream

    @abstractmethod
    def post_recv(
        self, buffer: object, *, wr_id: object = None, offset: int = 0, length: int | None = None
    ) -> None:
        """Posts a buffer for a Send."""

    @abstractmethod
    def post_send(
        self,
        opcode: Any,
        buffer: Any = None,
        *,
        wr_id: object = None,
        stag: int = 0,
        to: int = 0,
        solicited: bool = False,
        fence: bool = False,
        offset: int = 0,
        length: int | None = None,
    ) -> None:
        """Posts a request."""

    @abstractmethod
    def take(self, message: WC) -> None:
        """Reports a DDP message that was delivered on the stream."""

    @abstractmethod
    def refuse(self, event: ErrorEvent) -> None:
        """Reports that the device stopped the stream."""

    @abstractmethod
    def overrun(self) -> None:
        """Reports that the CQ has no room for a message."""
