"""The files of doorbell pages, through which clients of a manager map one page each."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from ...hdl.spec import regs
from ..base.errors import InvalidRequest, ResourceExhausted, TransportError
from .transport import PageFile

#: Linux, include/uapi/linux/inotify.h.
_IN_CLOSE_WRITE = 0x8
_EVENT = struct.Struct("=iIII")  #: struct inotify_event of a file
_LIBC = ctypes.CDLL(None, use_errno=True)


class UioMap(NamedTuple):
    """A range of bus addresses that a UIO device lets a program map."""

    address: int
    size: int


def uio_maps(file: int) -> list[UioMap] | None:
    """Returns the maps of a UIO device; None for other files, such as /dev/mem."""
    state = os.fstat(file)
    if not stat.S_ISCHR(state.st_mode):
        return None
    folder = Path(f"/sys/dev/char/{os.major(state.st_rdev)}:{os.minor(state.st_rdev)}")
    if (folder / "subsystem").resolve().name != "uio":
        return None
    return [
        UioMap(int((each / "addr").read_text(), 0), int((each / "size").read_text(), 0))
        for each in sorted((folder / "maps").glob("map*"))
    ]


class MappedPage(PageFile):
    """A file of one doorbell page: a UIO device whose one map is the page, or a file that is as
    large as the page.

    The kernel lets a process map no more than the file has, so a client with its descriptor reaches
    this page alone. A mapping outlives the descriptor, and the client may have passed it on: the
    page is ``lent`` until the kernel reports that the last copy of the descriptor and the last
    mapping are gone (inotify, IN_CLOSE_WRITE). For that, nobody else opens the file to write.

    Parameters
    ----------
    path
        The file.
    address
        The bus address of the page; None: not known.

    Raises
    ------
    InvalidRequest
        A client that maps the file would reach more than the page, or another one.
    """

    def __init__(self, path: Path, address: int | None) -> None:
        self._path, self._lent, self._watch = path, False, -1
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                wrong = _wrong(file, address)
            finally:
                os.close(file)
        except OSError as error:
            raise TransportError(f"{path} cannot be opened: {error.strerror}") from error
        if wrong is not None:
            raise InvalidRequest(f"{path} cannot be the file of a doorbell page: {wrong}")
        self._watch = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._watch < 0 or (
            _LIBC.inotify_add_watch(self._watch, os.fsencode(path), _IN_CLOSE_WRITE) < 0
        ):
            reason = os.strerror(ctypes.get_errno())
            self.close()
            raise TransportError(f"{path} cannot be watched: {reason}")

    @property
    def lent(self) -> bool:
        if self._lent:
            try:
                _, mask, _, _ = _EVENT.unpack(os.read(self._watch, _EVENT.size))
            except BlockingIOError:
                return True
            self._lent = not mask & _IN_CLOSE_WRITE
        return self._lent

    def lend(self) -> int:
        # O_SYNC makes the mapping of memory of a device uncached.
        try:
            file = os.open(self._path, os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)
        except OSError as error:
            raise ResourceExhausted(
                f"{self._path}, the file of a doorbell page, cannot be opened: {error.strerror}"
            ) from error
        self._lent = True
        return file

    def close(self) -> None:
        if self._watch >= 0:
            os.close(self._watch)
            self._watch = -1


def _wrong(file: int, address: int | None) -> str | None:
    """Returns why a file is not that of the doorbell page at a bus address, or None."""
    if mmap.PAGESIZE != regs.PAGE_SIZE:
        return (
            f"the kernel maps {mmap.PAGESIZE} octets at least, which are more than one doorbell"
            f" page of {regs.PAGE_SIZE}"
        )
    maps = uio_maps(file)
    if maps is None:
        state = os.fstat(file)
        size = state.st_size if stat.S_ISREG(state.st_mode) else 0
        return None if size == regs.PAGE_SIZE else f"it has {size} octets, not {regs.PAGE_SIZE}"
    if len(maps) != 1 or maps[0].size != regs.PAGE_SIZE:
        shown = ", ".join(f"{each.size} octets" for each in maps)
        return f"it must have one map of {regs.PAGE_SIZE} octets, and has {shown or 'none'}"
    if address is not None and maps[0].address != address:
        return f"it maps {maps[0].address:#x}, and the page is at {address:#x}"
    return None
