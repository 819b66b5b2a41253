"""What is closed at the end, and by the process that made it alone."""

from __future__ import annotations

import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from .errors import RnicError, StateError


class Closing(ABC):
    """As a context manager it is closed at the end.

    It is the process's that made it. In a forked child :meth:`close`, and with it the end of a
    ``with`` block, does nothing: the parent goes on with it.
    """

    _process: int

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "close" in cls.__dict__:
            setattr(cls, "close", _not_in_a_child(cls.close))  # noqa: B010

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        made = super().__new__(cls)
        made._process = os.getpid()
        return made

    @property
    def inherited(self) -> bool:
        """Whether this process is a child of the one that made it."""
        return self._process != os.getpid()

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds; the second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        close_after(error, self.close)


class ProcessLock:
    """A reentrant lock of one process; a forked child, in which nobody might release it, is told.

    Parameters
    ----------
    name
        What it guards, for the message.
    """

    def __init__(self, name: str) -> None:
        self._name, self._process = name, os.getpid()
        #: The lock itself, of which conditions are made.
        self.lock = threading.RLock()

    def check(self) -> None:
        """Raise in a forked child."""
        if self._process != os.getpid():
            raise StateError(f"{self._name} belongs to the parent process: open it after the fork")

    def __enter__(self) -> None:
        self.check()
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Close at the end of a block; where an error ends the block, that error is what is raised.

    A failure to close is added to the error as a note then.
    """
    if error is None:
        close()
        return
    try:
        close()
    except RnicError as failure:
        error.add_note(f"Closing failed, too: {type(failure).__name__}: {failure}")


def _not_in_a_child(close: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(close)
    def closed(self: Closing) -> None:
        if not self.inherited:
            close(self)

    return closed
