"""Objects that must be closed, and that only the process that made them may close."""

from __future__ import annotations

import _thread
import functools
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from .errors import RnicError, StateError


class Closing(ABC):
    """An object that must be closed; a ``with`` block closes it at its end.

    The object belongs to the process that made it. In a forked child :meth:`close`, and with it the
    end of a ``with`` block, does nothing, because the parent still uses the object.
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
        """True in a child of the process that made the object."""
        return self._process != os.getpid()

    @abstractmethod
    def close(self) -> None:
        """Releases everything that the object holds. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        close_after(error, self.close)


# Only for type checkers is the RLock final.
class ProcessLock(_thread.RLock):  # type: ignore[misc]
    """A reentrant lock that belongs to one process, and raises in a forked child.

    In a child nobody might ever release the lock, so waiting for it could last forever.

    The methods that enter and leave a ``with`` block are the RLock's own, which are written in C:
    CPython handles no signal between such an acquisition and the block, nor before the release. In
    a method written in Python, a KeyboardInterrupt there would leave the lock taken.

    Parameters
    ----------
    name
        What the lock guards, for the message.
    """

    def __new__(cls, name: str) -> Self:
        return super().__new__(cls)

    def __init__(self, name: str) -> None:
        self._name, self._process = name, os.getpid()
        _LOCKS.add(self)

    def check(self) -> None:
        """Raises in a forked child."""
        if self._process != os.getpid():
            raise StateError(f"{self._name} belongs to the parent process: open it after the fork")


class _Inherited(ProcessLock):  # type: ignore[misc]
    """The class of the parent's locks in a forked child."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.check()  # raises
        return super().acquire(blocking, timeout)

    __enter__ = acquire


#: All locks of this process.
_LOCKS: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _inherit() -> None:
    """Makes the locks that a forked child has from its parent raise."""
    for lock in _LOCKS:
        lock.__class__ = _Inherited


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherit)


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Closes something at the end of a block. An error that ended the block stays the one that is
    raised.

    If closing fails too, that failure is added to the error as a note.
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
