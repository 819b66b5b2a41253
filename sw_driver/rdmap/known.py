"""What a completion queue of RDMAP knows of the queue pairs that are made with it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ..base.closing import Closing
from ..base.errors import ErrorEvent
from ..verbs.cq import WC
from ..verbs.stream import Stream


class KnownQP(Closing):
    """A queue pair, as its completion queue and its completions know it.

    Attributes
    ----------
    stream
        Its DDP Stream.
    """

    stream: Stream

    @abstractmethod
    def post_recv(
        self, buffer: object, *, wr_id: object = None, offset: int = 0, length: int | None = None
    ) -> None:
        """Post a buffer for a Send."""

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
    ) -> None:
        """Post a request."""

    @abstractmethod
    def take(self, message: WC) -> None:
        """A DDP message was delivered on its stream."""

    @abstractmethod
    def refuse(self, event: ErrorEvent) -> None:
        """The device has stopped its stream."""

    @abstractmethod
    def overrun(self) -> None:
        """Its messages do not fit the CQ."""
