"""Lets a standard output that cannot be written end a command with one sentence.

Imports nothing of the project, because packages may be missing.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Unwritten", "guarded"]

#: The exit codes of a command whose output fails, and whose reader has gone. The latter is that of
#: a program that SIGPIPE has ended, in a shell.
FAILED, GONE = 2, 141


class Unwritten(Exception):
    """Standard output cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"rnic: standard output cannot be written: {error.strerror}")
        self.code = GONE if error.errno == errno.EPIPE else FAILED


class _Output(io.FileIO):
    """The descriptor of standard output. After a failure it discards all further octets."""

    failed: Unwritten | None = None

    def write(self, octets: Any) -> int:
        if self.failed is not None:
            return len(octets)
        try:
            return super().write(octets) or 0
        except OSError as error:
            self.failed = Unwritten(error)
            raise self.failed from None


def guarded(command: Callable[[], None]) -> None:
    """Runs a command, and exits if its output cannot be written: with one sentence, or without if
    the reader of the output has gone.
    """
    if sys.stderr is None:  # closed
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        if sys.stdout is None:
            raise Unwritten(OSError(errno.EBADF, "it is closed"))
        sys.stdout.flush()
        before = sys.stdout
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(before.fileno(), "w", closefd=False)),
            before.encoding,
            before.errors,
            line_buffering=before.isatty(),
        )
        try:
            command()
        finally:
            sys.stdout.flush()
    except Unwritten as error:
        if error.code != GONE:
            print(error, file=sys.stderr)
        sys.exit(error.code)
