"""Reads standard input while it is being written, and keeps its octets for further passes."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import weakref
from collections.abc import Callable
from functools import cache
from threading import Condition, Thread
from time import monotonic

#: Octets that are taken from standard input at a time.
_TAKEN = 1 << 16
#: Seconds from one call of ``pause`` to the next.
_APART = 0.5
#: A read of fewer octets waits for all of them, as the reader of a header expects it.
_HEADER = 64

__all__ = ["StandardInput", "Stopped", "Unkept", "standard_input"]


class Stopped(Exception):
    """The octets after those that were read are not wanted any more."""


class Unkept(Exception):
    """Standard input cannot be read, or its octets cannot be kept. The message is one sentence."""


class StandardInput:
    """The octets of standard input, which a thread copies to a temporary file as they come.

    So the program that writes them never waits for their reader.

    Parameters
    ----------
    source
        The file descriptor to read.

    Attributes
    ----------
    pause
        This function is called when a reader has taken all octets that have come, but not more
        often than twice per second; None for no call.
    """

    def __init__(self, source: int) -> None:
        self.pause: Callable[[], None] | None = None
        self._file = tempfile.TemporaryFile(prefix="ddp-rnic-", buffering=0)
        weakref.finalize(self, self._file.close)
        self._source = source
        self._come = 0  # octets in the file
        self._whole = self._stopped = False
        self._error: Unkept | None = None
        self._changed = Condition()
        self._paused = 0.0  # the time of the last pause
        # os.read, because the interpreter cannot end while a thread reads sys.stdin.
        Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        try:
            while octets := os.read(self._source, _TAKEN):
                while octets:
                    count = os.write(self._file.fileno(), octets)
                    octets = octets[count:]
                    with self._changed:
                        self._come += count
                        self._changed.notify_all()
        except OSError as error:
            self._error = Unkept(
                f"standard input cannot be kept in {tempfile.gettempdir()}: {error.strerror};"
                " name a directory with more room in TMPDIR"
            )
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
            Standard input cannot be read, or its octets cannot be kept.
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
    """Reads standard input from its first octet on."""

    def __init__(self, octets: StandardInput) -> None:
        super().__init__()
        self._octets, self._at = octets, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self._octets.get(self._at, len(buffer))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


@cache
def standard_input() -> StandardInput:
    """Returns the standard input of this process, which is read once."""
    return StandardInput(sys.stdin.fileno())
