"""Declares streams and associations as contexts, domains, regions and queues see them."""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum, auto
from typing import Any

from ...hdl.spec.completion import Completion
from ..base.closing import Closing
from ..base.errors import ErrorEvent


class StreamState(Enum):
    """The state of a stream."""

    RECEIVING = auto()
    ERROR = auto()  #: the device drops every further segment
    CLOSED = auto()


class KnownStream(Closing):
    """Declares a stream as its context, completion queue, domain and regions see it.

    Attributes
    ----------
    number
        Number of the stream in the device, from 0.
    pd
        Protection domain of the stream.
    state, error
        State of the stream; the event that put it in error.
    bound
        The regions that only this stream may name.
    queues
        The Queue Numbers that are valid on the stream.
    cq
        The queue that gets its completions.
    sending
        Its sending half, if the device sends for it.
    association
        The association that it belongs to, over SCTP.
    """

    number: int
    pd: Any
    state: StreamState
    error: ErrorEvent | None
    bound: set[Any]
    queues: frozenset[int]
    cq: Any
    sending: Any = None
    association: Any

    @abstractmethod
    def check(self) -> None:
        """Raises unless the stream receives."""

    @abstractmethod
    def post_recv(
        self,
        buffer: object,
        qn: int = 0,
        *,
        wr_id: object = None,
        offset: int = 0,
        length: int | None = None,
    ) -> int:
        """Posts a receive buffer; the buffer's completion returns it."""

    @abstractmethod
    def complete(self, completion: Completion) -> None:
        """Reports that a message was delivered."""

    @abstractmethod
    def fail(self, event: ErrorEvent) -> None:
        """Reports that the device stopped the stream."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the stream; segments received before may be placed until the stream is closed."""


class KnownAssociation(Closing):
    """Declares an association as its context and streams see it.

    Attributes
    ----------
    number
        Number of the association in the device.
    first, count
        Number of the association's first stream, and how many streams it has.
    free
        Numbers of these streams that are not in use.
    sender
        Its sending side, if the device sends for it.
    latest
        The TSN of the last chunk of the peer that the device took.
    """

    context: Any
    number: int
    first: int
    count: int
    free: set[int]
    sender: Any = None
    latest: int

    @abstractmethod
    def tell(
        self,
        sid: int,
        function: Any,
        *,
        tsn: int | None = None,
        outstanding: int | None = None,
    ) -> Any:
        """Announces a session message to the device before it is sent."""

    @abstractmethod
    def check(self) -> None:
        """Raises if the association is closed."""

    @abstractmethod
    def take(self, completion: Completion) -> None:
        """Takes a record of the device: of a chunk, a packet or a session."""
