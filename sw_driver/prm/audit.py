"""The audit log: one line of JSON per decision, in files whose number and size are bounded."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from ..base.closing import Closing
from ..base.errors import InvalidRequest

#: Most octets of one file of the log, and how many older files are kept beside it.
OCTETS, OLDER = 4 << 20, 4
#: For this many seconds an equal line is counted instead of written.
REPEATED = 10.0
#: How many lines are remembered for that comparison.
REMEMBERED = 256
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Lines(Protocol):
    """An object that accepts text, as an open file does."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


@dataclass
class _Line:
    """A line that was written, and how many equal lines have come since."""

    content: dict[str, str | int]
    until: float  #: time of the monotonic clock from which an equal line is written again
    last: float  #: the time of the last equal line
    again: int = 0


class Audit:
    """Logs decisions, with the user and process that each concerns. The log has no Steering Tags.

    Equal lines within 10 seconds, apart from their time, are counted; after that one line states
    how often the line was ``repeated``, with the time of the last repetition. If the file accepts
    nothing for a while, as on a full disk, the next line that it accepts states how many were
    ``lost``.

    Parameters
    ----------
    file
        The object that lines are written to.
    """

    def __init__(self, file: Lines) -> None:
        self._file, self._lost = file, 0
        self._lines: dict[str, _Line] = {}  # the oldest first

    def write(self, event: str, uid: int, pid: int, **details: str | int) -> None:
        """Logs a decision: connect, refuse, register, revoke, stop or disconnect."""
        self.expire()
        now = time.time()
        content: dict[str, str | int] = {"event": event, "uid": uid, "pid": pid, **details}
        key = json.dumps(content)
        if (line := self._lines.get(key)) is not None:
            line.again, line.last = line.again + 1, now
            return
        if len(self._lines) >= REMEMBERED:
            self._forget(next(iter(self._lines)))
        self._lines[key] = _Line(content, time.monotonic() + REPEATED, now)
        self._put(now, content, 1)

    def expire(self) -> None:
        """Logs the repetitions of lines whose 10 seconds are over."""
        now = time.monotonic()
        while self._lines and self._lines[key := next(iter(self._lines))].until <= now:
            self._forget(key)

    def finish(self) -> None:
        """Logs the repetitions of all lines."""
        while self._lines:
            self._forget(next(iter(self._lines)))

    def _forget(self, key: str) -> None:
        line = self._lines.pop(key)
        if line.again:
            self._put(line.last, {**line.content, "repeated": line.again}, line.again)

    def _put(self, when: float, content: dict[str, str | int], decisions: int) -> None:
        line = {"time": round(when, 6), **content}
        if self._lost:
            line["lost"] = self._lost
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            self._lost = 0
        except OSError:
            self._lost += decisions


class LogFile(Closing):
    """A file that text is appended to, and that is renamed once it is full.

    A full file ``NAME`` is renamed to ``NAME.1``, that one to ``NAME.2``, and so on; the oldest is
    deleted. Only this process's user and root can replace any of the files: the directory and the
    files must belong to them, and nobody else may have write permission.

    Parameters
    ----------
    path
        The file.
    octets
        Most octets of one file.
    older
        How many full files are kept.

    Raises
    ------
    InvalidRequest
        Others could replace the directory or the file, or it is of another kind.
    """

    def __init__(self, path: Path, *, octets: int = OCTETS, older: int = OLDER) -> None:
        self._name, self._octets, self._older = path.name, octets, older
        self._file = -1
        try:
            self._folder = _open_folder(path)
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
        try:
            self._file = self._open(self._name)
            if (wrong := _unsound(os.fstat(self._file), stat.S_ISREG)) is not None:
                raise InvalidRequest(f"{path} {wrong}: remove it, or give another path")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise InvalidRequest(
                f"another manager writes its log to {path}: give another path"
            ) from error
        except OSError as error:
            kind = _kind(self._folder, self._name)
            self.close()
            raise InvalidRequest(f"{path} cannot be written: {kind or error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _open(self, name: str, flags: int = 0) -> int:
        # O_NONBLOCK, because opening a pipe would wait for its reader.
        flags |= os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=self._folder)

    def write(self, text: str) -> None:
        """Appends a text: either all of it, or OSError is raised and the file is unchanged."""
        octets = text.encode()
        size = os.fstat(self._file).st_size
        if size and size + len(octets) > self._octets:
            self._rotate()
            size = 0
        if os.write(self._file, octets) < len(octets):
            os.ftruncate(self._file, size)
            raise OSError("the disk is full")

    def flush(self) -> None:
        """Does nothing: text is in the file when :meth:`write` returns."""

    def _rotate(self) -> None:
        # The new file is made before the others are renamed. Otherwise, where no file can be
        # opened, each text would delete an older file.
        new = f"{self._name}.new"
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=self._folder)
        file = self._open(new, os.O_EXCL)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            names = [self._name, *(f"{self._name}.{at}" for at in range(1, self._older + 1))]
            for name, older in reversed(list(pairwise(names))):
                with suppress(FileNotFoundError):
                    self._rename(name, older)
            self._rename(new, self._name)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._file = file

    def _rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def close(self) -> None:
        """Closes the file. A second call does nothing."""
        for descriptor in (self._file, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._folder = -1


def _open_folder(path: Path) -> int:
    """Returns a descriptor of the directory of a file, which only root and this user can change."""
    *above, folder = reversed(path.absolute().parents)
    for each in above:
        status = each.lstat()
        # In a sticky directory, such as /tmp, others can only add files.
        open_to_all = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if _foreign(status) or (open_to_all and not stat.S_ISLNK(status.st_mode)):
            raise InvalidRequest(
                f"{path} cannot be a log, because others can replace {each}: give another path"
            )
    if folder.is_symlink():
        raise InvalidRequest(
            f"the log's directory {folder} is a symbolic link, which the manager does not follow:"
            " give the path of the directory itself"
        )
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if (wrong := _unsound(os.fstat(descriptor), stat.S_ISDIR)) is not None:
        os.close(descriptor)
        raise InvalidRequest(
            f"the log's directory {folder} {wrong}: give a path in a directory of your own that"
            " nobody else can write to"
        )
    return descriptor


def _unsound(status: os.stat_result, is_kind: Callable[[int], bool]) -> str | None:
    """Returns why a file or directory cannot be trusted: others can change it, or its kind
    is wrong.
    """
    if not is_kind(status.st_mode):
        return "is of another kind"
    if _foreign(status):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & _OTHERS:
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):03o})"
    return None


def _foreign(status: os.stat_result) -> bool:
    """Returns whether something belongs neither to root nor to this process's user."""
    return status.st_uid not in (0, os.geteuid())


def _kind(folder: int, name: str) -> str | None:
    """Returns why the file of this name can never be a log, or None."""
    try:
        mode = os.lstat(name, dir_fd=folder).st_mode
    except OSError:
        return None
    if stat.S_ISLNK(mode):
        return "it is a symbolic link, which the manager does not follow"
    return None if stat.S_ISREG(mode) else "it is not a regular file"
