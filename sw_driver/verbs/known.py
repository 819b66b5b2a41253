"""What the driver's lower objects know of the streams and associations that are made of them."""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum, auto
from typing import Any

from ...hdl.spec.completion import Completion
from ..base.closing import Closing
from ..base.errors import ErrorEvent


class StreamState(Enum):
    """What a stream does."""

    RECEIVING = auto()
    ERROR = auto()  #: it takes nothing any more
    CLOSED = auto()


class KnownStream(Closing):
    """A stream, as the context, its completion queue, domain and regions know it.

    Attributes
    ----------
    number
        The device's, from 0.
    pd
        Its protection domain.
    state, error
        What it does; the event that put it in error.
    bound
        The regions that it alone may name.
    """

    number: int
    pd: Any
    state: StreamState
    error: ErrorEvent | None
    bound: set[Any]

    @abstractmethod
    def check(self) -> None:
        """Raise unless it receives."""

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
        """Post a receive buffer; its completion gives it back."""

    @abstractmethod
    def complete(self, completion: Completion) -> None:
        """A message was delivered."""

    @abstractmethod
    def fail(self, event: ErrorEvent) -> None:
        """The device has stopped it."""

    @abstractmethod
    def stop(self) -> None:
        """Has the device take nothing more; what it has taken may be placed until it is closed."""


class KnownAssociation(Closing):
    """An association, as the context and its streams know it.

    Attributes
    ----------
    number
        The device's.
    first, count
        Numbers of the streams that are its own.
    free
        Those that no stream has.
    """

    number: int
    first: int
    count: int
    free: set[int]

    @abstractmethod
    def check(self) -> None:
        """Raise unless it can be used."""

    @abstractmethod
    def take(self, completion: Completion) -> None:
        """The device reports a chunk, a packet, or what became of a session."""
