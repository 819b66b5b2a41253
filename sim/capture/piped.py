"""Reads standard input or another pipe while it is being written, and keeps its octets for further
passes.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import tempfile
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Condition, Thread
from time import monotonic
from typing import IO

#: Octets that are taken from a pipe at a time.
_TAKEN = 1 << 16
#: Seconds from one call of ``pause`` to the next.
_APART = 0.5
#: A read of fewer octets waits for all of them, as the reader of a header expects it.
_HEADER = 64

#: The name that stands for standard input.
STANDARD_INPUT = Path("-")

__all__ = ["STANDARD_INPUT", "Piped", "Stopped", "Unkept", "name_of", "open_again", "piped"]


class Stopped(Exception):
    """The octets after those that were read are not wanted any more."""


class Unkept(Exception):
    """A pipe cannot be read, or its octets cannot be kept. The message is one sentence."""


class Piped:
    """The octets of a pipe, which a thread copies to a temporary file as they come.

    So the program that writes them never waits for their reader.

    Parameters
    ----------
    source
        The file descriptor to read.
    name
        The name of the pipe in messages.

    Attributes
    ----------
    pause
        This function is called when a reader has taken all octets that have come, but not more
        often than twice per second; None for no call.
    """

    def __init__(self, source: int, name: str = "standard input") -> None:
        self.pause: Callable[[], None] | None = None
        self._file = tempfile.TemporaryFile(prefix="ddp-rnic-", buffering=0)
        weakref.finalize(self, self._file.close)
        self._source, self._name = source, name
        self._come = 0  # octets in the file
        self._whole = self._stopped = False
        self._error: Unkept | None = None
        self._changed = Condition()
        self._paused = 0.0  # the time of the last pause
        # os.read, because the interpreter cannot end while a thread reads sys.stdin.
        Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        failed = "read"
        try:
            while octets := os.read(self._source, _TAKEN):
                failed = f"kept in {tempfile.gettempdir()}"
                while octets:
                    count = os.write(self._file.fileno(), octets)
                    octets = octets[count:]
                    with self._changed:
                        self._come += count
                        self._changed.notify_all()
                failed = "read"
        except OSError as error:
            advice = "" if failed == "read" else "; name a directory with more room in TMPDIR"
            self._error = Unkept(f"{self._name} cannot be {failed}: {error.strerror}{advice}")
        with self._changed:
            self._whole = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Lets the read that waits, or the next one that would, raise :class:`Stopped`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def open(self) -> io.RawIOBase:
        """Returns a reader from the first octet on. Its reads wait for further octets."""
        return _Reader(self)

    def _wait(self, at: int) -> int:
        """Waits for octets after the first ``at``; returns how many have come, at the end ``at``.

        Raises
        ------
        Stopped
            The octets are not wanted any more.
        Unkept
            The pipe cannot be read, or its octets cannot be kept.
        """
        called = self.pause is None
        while True:
            with self._changed:
                if self._come > at:
                    return self._come
                if self._error is not None:
                    raise self._error
                if self._whole:
                    return at
                if self._stopped:
                    raise Stopped
                left = self._paused + _APART - monotonic()
                if called or left > 0:
                    self._changed.wait(None if called else left)
                    continue
            # Further octets come in the meantime.
            assert self.pause is not None
            called = True
            self.pause()
            self._paused = monotonic()

    def get(self, at: int, count: int) -> bytes:
        """Returns the octets from ``at`` on: ``count`` of them, fewer if no more have come, or none
        at the end.

        It waits for at least one, and for all of them if they are few.
        """
        least = count if count <= _HEADER else 1
        while (come := self._wait(at)) - at < least:
            if come == at or self._wait(come) == come:
                break
        return os.pread(self._file.fileno(), min(count, come - at), at)


class _Reader(io.RawIOBase):
    """Reads the octets of a pipe from the first one on."""

    def __init__(self, octets: Piped) -> None:
        super().__init__()
        self._octets, self._at = octets, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self._octets.get(self._at, len(buffer))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def piped(path: Path) -> Piped | None:
    """Returns the octets of standard input or of another pipe, or None for a file.

    Raises
    ------
    OSError
        The pipe cannot be opened.
    """
    if path == STANDARD_INPUT:
        return _standard_input()
    # A device file, like /dev/stdin on a terminal, is read like a pipe.
    kind = path.stat().st_mode
    return _pipe(path) if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind) else None


@cache
def _standard_input() -> Piped:
    """Returns the standard input of this process, which is read once."""
    if sys.stdin is None:  # descriptor 0 may be any file that was opened since
        raise OSError(errno.EBADF, "it is closed")
    return Piped(sys.stdin.fileno())


@cache
def _pipe(path: Path) -> Piped:
    """Returns a pipe, which is read once."""
    return Piped(os.open(path, os.O_RDONLY), str(path))


def open_again(path: Path) -> IO[bytes]:
    """Opens a file, or a pipe, whose octets are those of earlier calls followed by further ones."""
    given = piped(path)
    return path.open("rb") if given is None else io.BufferedReader(given.open())


def name_of(path: Path) -> str:
    """Returns the name of a capture in messages."""
    return "standard input" if path == STANDARD_INPUT else str(path)
