"""Devices whose registers are mapped into memory through UIO or through the file of a PCIe BAR.

This module also provides the host memory that such a device writes by itself.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import select
import stat
import struct
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...hdl.spec import regs
from ..base.checks import file_path, instance, integer
from ..base.closing import ProcessLock
from ..base.errors import InvalidRequest, ResourceExhausted, TransportError
from .memory import Arena, Bounce, Extent, Memory, Shared, Steps, finish, lay_out
from .pins import PIECE, Pins
from .transport import PageFile, Transport

_PAGE = mmap.PAGESIZE
_REGISTERS = 1 << regs.ADDRESS_BITS
#: Linux's flag for pages of 2 MiB, which the mmap module does not have.
_MAP_HUGETLB = 0x40000
_HUGE = 1 << 21
#: Linux, include/uapi/linux/inotify.h: an event, and struct inotify_event of a file.
_IN_CLOSE_WRITE = 0x8
_EVENT = struct.Struct("=iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)
#: The octets of which the address of a ring is a multiple.
_ALIGNED = 64
#: How often the pagemap is read, while others make the kernel try to move the pages.
_LOOKS = 100


class HostMemory(ABC):
    """A source of host memory that a device can write."""

    def pin(self, view: memoryview) -> Memory:
        """Pins octets, as :meth:`~.transport.Transport.pin` does."""
        return finish(self.pinning(view))

    @abstractmethod
    def pinning(self, view: memoryview) -> Steps[Memory]:
        """Pins octets in steps, as :meth:`~.transport.Transport.pinning` does."""

    def share(self, view: memoryview) -> Memory | None:
        """Shares octets, as :meth:`~.transport.Transport.share` does; None: the device has copies
        of the host's memory.
        """
        return None

    @abstractmethod
    def allocate(self, octets: int) -> Memory:
        """Allocates memory, as :meth:`~.transport.Transport.allocate` does."""

    @abstractmethod
    def close(self) -> None:
        """Releases the source's own resources."""


class UioInterrupt:
    """The interrupt of a UIO device (Linux, Documentation/driver-api/uio-howto.rst).

    Parameters
    ----------
    file
        Descriptor of the device. The caller closes it; the interrupt has a copy of it.
    """

    def __init__(self, file: int) -> None:
        self._lock = threading.Lock()
        self._closed = False
        # The descriptors are closed when no thread is in a method any more. Earlier, another file
        # of the process could get the number of a descriptor for which a thread waits.
        self._file = os.dup(file)
        weakref.finalize(self, os.close, self._file)
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._woken)
        self._enable()

    def wait(self, timeout: float) -> None:
        """Returns when the interrupt comes, or after ``timeout`` seconds; raises once the interrupt
        is closed.
        """
        ready = select.select([self._file, self._woken], [], [], timeout)[0]
        if self._woken in ready:
            with suppress(BlockingIOError):  # another wait was faster
                os.eventfd_read(self._woken)
        if self._closed:
            self.wake()  # the next thread that waits
            raise TransportError("the transport is closed")
        if self._file in ready:
            # Other threads may wait too: all but the first find that the interrupt was read
            # already.
            with self._lock:
                if select.select([self._file], [], [], 0)[0]:
                    os.read(self._file, 4)
                    self._enable()

    def wake(self) -> None:
        """Makes a wait return immediately, or the next wait if none is in progress."""
        os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """Ends the waits of all threads with an error."""
        self._closed = True
        self.wake()

    def _enable(self) -> None:
        """Enables the interrupt, which the kernel masks when it comes.

        A UIO driver without a mask refuses this, and needs none.
        """
        try:
            os.write(self._file, struct.pack("=I", 1))
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EIO, errno.EINVAL):
                raise TransportError(f"the interrupt cannot be enabled: {error}") from error


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
        self._lock = threading.Lock()
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
        with self._lock:
            self._check()
            if self._lent:
                try:
                    _, mask, _, _ = _EVENT.unpack(os.read(self._watch, _EVENT.size))
                except BlockingIOError:
                    return True
                self._lent = not mask & _IN_CLOSE_WRITE
            return self._lent

    def lend(self) -> int:
        with self._lock:
            self._check()
            # O_SYNC makes the mapping of memory of a device uncached.
            try:
                file = os.open(self._path, os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)
            except OSError as error:
                raise ResourceExhausted(
                    f"{self._path}, the file of a doorbell page, cannot be opened: {error.strerror}"
                ) from error
            self._lent = True
            return file

    def _check(self) -> None:
        """Raises where the file is closed."""
        if self._watch < 0:
            raise TransportError("the transport is closed")

    def close(self) -> None:
        with self._lock:
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


class MappedTransport(Transport):
    """Accesses registers through a mapping of a file.

    A UIO device (``/dev/uio0``) also has the interrupt; other files, such as
    ``/sys/bus/pci/devices/.../resource0``, have none.

    The file is locked (flock), so that only this transport uses it.

    Parameters
    ----------
    path
        The file.
    memory
        The source of memory that the device can write. It is closed with the transport.
    offset
        Where in the file the registers begin, a multiple of 4.
    pages
        The files of the first doorbell pages, for clients of a manager to map; see
        :class:`MappedPage`.
    """

    #: The ring lies in one page of memory, and needs no huge page.
    completions = 128

    def __init__(
        self,
        path: Path | str,
        memory: HostMemory,
        *,
        offset: int = 0,
        pages: Sequence[Path | str] = (),
    ) -> None:
        rule = "a multiple of 4"
        offset = integer("offset", offset, 0, math.inf, rule)
        if offset % 4:
            raise InvalidRequest(f"offset must be {rule}, not {offset!r}")
        instance("memory", memory, HostMemory)
        self._memory = memory
        self._lock = ProcessLock("the mapped device")
        start = offset & -_PAGE
        path = file_path("path", path)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_SYNC)
        except OSError as error:
            raise TransportError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise TransportError(f"{path} is in use: close the other transport") from error
        try:
            self._map = mmap.mmap(self._file, offset - start + _REGISTERS, offset=start)
        except (OSError, ValueError, OverflowError) as error:
            os.close(self._file)
            raise TransportError(
                f"{path} cannot be mapped from offset {start:#x}: {error}; check the offset"
            ) from error
        words = ctypes.c_uint32 * (_REGISTERS // 4)
        self._registers: Any = words.from_buffer(self._map, offset - start)
        maps = uio_maps(self._file)
        self._interrupt = None if maps is None else UioInterrupt(self._file)
        self.page_files: list[MappedPage] = []
        try:
            if len(pages) > regs.PAGES:
                raise InvalidRequest(
                    f"the device has {regs.PAGES} doorbell pages, not {len(pages)}: give fewer"
                    " files"
                )
            for number, page in enumerate(pages, 1):
                place = maps[0].address + offset + number * regs.PAGE_SIZE if maps else None
                self.page_files.append(MappedPage(file_path("pages", page), place))
        except BaseException:
            self.close()
            raise

    def read(self, address: int) -> int:
        with self._lock:
            self._check()
            return int(self._registers[address // 4])

    def write(self, address: int, value: int) -> None:
        with self._lock:
            self._check()
            self._registers[address // 4] = value

    def _check(self) -> None:
        """Raises where the transport is closed, or belongs to the parent process."""
        self._lock.check()
        if self._registers is None:
            raise TransportError("the transport is closed")

    def pin(self, view: memoryview) -> Memory:
        self._check()
        return self._memory.pin(view)

    def pinning(self, view: memoryview) -> Steps[Memory]:
        return self._memory.pinning(view)

    def share(self, view: memoryview) -> Memory:
        self._check()
        return self._memory.share(view) or super().share(view)

    def allocate(self, octets: int) -> Memory:
        self._check()
        return self._memory.allocate(octets)

    def wait(self, timeout: float) -> None:
        self._check()
        if self._interrupt is None:
            super().wait(timeout)
        else:
            self._interrupt.wait(timeout)

    def wake(self) -> None:
        if self._interrupt is not None:
            self._interrupt.wake()

    def close(self) -> None:
        with self._lock:
            if self._registers is None:
                return
            self._registers = None
            if self._interrupt is not None:
                self._interrupt.close()
            for page in self.page_files:
                page.close()
            self._map.close()
            # A forked child may have the file open, too.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._memory.close()


class Pagemap(HostMemory):
    """Lets the device write buffers in place: pins their pages, and looks up their physical
    addresses.

    This is for root (CAP_SYS_ADMIN), without an IOMMU: the device gets physical addresses. The
    pages stay pinned until the device writes there no more, whatever happens to the mapping, and
    whoever shares the memory; see :mod:`.pins`.

    Parameters
    ----------
    pagemap
        The file that says where pages are, as /proc/self/pagemap does.
    """

    def __init__(self, pagemap: Path | str = "/proc/self/pagemap") -> None:
        self.pins = Pins()
        self._lock = threading.Lock()
        try:
            self._pagemap = os.open(pagemap, os.O_RDONLY)
        except OSError as error:
            self.pins.close()
            raise TransportError(f"{pagemap} cannot be opened: {error.strerror}") from error

    def pinning(self, view: memoryview) -> Steps[Memory]:
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
        slots: list[int] = []
        extents: list[Extent] = []
        try:
            for at in range(0, len(view), PIECE):
                length = min(PIECE, len(view) - at)
                # Pages are pinned before they are looked up, because pinning may move them.
                slots.append(self.pins.pin(start + at, length))
                extents += self.places(start + at, length)
                yield
        except BaseException:
            self.pins.unpin(slots)
            raise
        return _Pinned(view, tuple(extents), self.pins, slots)

    def share(self, view: memoryview) -> Memory:
        memory = self.pin(view)
        layout = lay_out(memory.extents)
        if layout.pages or layout.offset % _ALIGNED:
            memory.close()
            raise InvalidRequest(
                f"a ring must lie within one page of {_PAGE} octets, from a multiple of {_ALIGNED}"
                " octets on: give it fewer entries"
            )
        return memory

    def allocate(self, octets: int) -> Memory:
        """Allocates memory within one page, or within huge pages where one page is too small."""
        size = _PAGE if octets <= _PAGE else -(-octets // _HUGE) * _HUGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_HUGETLB if size > _PAGE else 0)
        try:
            pages = mmap.mmap(-1, size, flags)
        except OSError as error:
            raise ResourceExhausted(
                f"{octets} contiguous octets need a huge page: reserve one in"
                f" /proc/sys/vm/nr_hugepages, or ask for at most {_PAGE} octets"
            ) from error
        return self.pin(memoryview(pages)[:octets])

    def places(self, address: int, length: int) -> list[Extent]:
        """Returns the physical addresses of pinned octets of this process."""
        pages = range(address & -_PAGE, address + length, _PAGE)
        for _ in range(_LOOKS):
            with self._lock:
                if self._pagemap < 0:
                    raise TransportError("the transport is closed")
                octets = os.pread(self._pagemap, 8 * len(pages), pages.start // _PAGE * 8)
            if len(octets) != 8 * len(pages):
                raise TransportError("the pagemap does not have all pages of the buffer")
            entries = [entry for (entry,) in struct.iter_unpack("=Q", octets)]
            if all(entry >> 63 for entry in entries):
                break
            # Another process that shares the memory may make the kernel try to move it. The pages
            # stay; only their entries in this process's page table are gone until this process
            # touches them.
            ctypes.string_at(address, length)
        found: list[Extent] = []
        for page, entry in zip(pages, entries, strict=True):
            # Linux, Documentation/admin-guide/mm/pagemap.rst: 0 without CAP_SYS_ADMIN.
            frame = entry & (1 << 55) - 1
            if not entry >> 63 or not frame:
                raise TransportError(
                    "the pagemap does not show where pages are: run as root (CAP_SYS_ADMIN)"
                )
            start, end = max(address, page), min(address + length, page + _PAGE)
            found.append(Extent(frame * _PAGE + start - page, end - start))
        return found

    def close(self) -> None:
        with self._lock:
            if self._pagemap >= 0:
                os.close(self._pagemap)
                self._pagemap = -1
        self.pins.close()


class _Pinned(Shared):
    """Octets in pinned pages."""

    def __init__(
        self, view: memoryview, extents: tuple[Extent, ...], pins: Pins, slots: list[int]
    ) -> None:
        self.view, self.extents = view, extents
        self._pins, self._slots = pins, slots

    def closing(self) -> Steps[None]:
        while self._slots:
            self._pins.unpin([self._slots.pop()])
            yield

    def close(self) -> None:
        self._pins.unpin(self._slots)
        self._slots.clear()
        self.view.release()


class UDmaBuf(HostMemory):
    """Contiguous memory of the kernel module u-dma-buf. Each buffer has a copy in it.

    Received octets are copied when their completion is taken.

    Parameters
    ----------
    device
        ``/dev/udmabuf0``, or another such device.
    attributes
        The device's folder in sysfs; None: the usual one.
    """

    def __init__(
        self, device: Path | str = "/dev/udmabuf0", attributes: Path | str | None = None
    ) -> None:
        folder = Path(attributes or Path("/sys/class/u-dma-buf") / Path(device).name)
        try:
            self._start = int((folder / "phys_addr").read_text(), 0)
            size = int((folder / "size").read_text(), 0)
            # O_SYNC makes the mapping uncached, so that host and device see the same octets.
            file = os.open(device, os.O_RDWR | os.O_SYNC)
            try:
                self._map = mmap.mmap(file, size)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            raise TransportError(f"{device} cannot be used: {error}") from error
        self._arena = Arena(self._start, size, f"octets of {device}")
        self._lock = threading.Lock()

    def pinning(self, view: memoryview) -> Steps[Memory]:
        return Bounce.making(view, self._arena, self._read, self._write)

    def allocate(self, octets: int) -> Memory:
        return self.pin(memoryview(bytearray(octets)))

    def _read(self, address: int, length: int) -> bytes:
        start = address - self._start
        with self._lock:
            self._check()
            return self._map[start : start + length]

    def _write(self, address: int, octets: bytes) -> None:
        start = address - self._start
        with self._lock:
            self._check()
            self._map[start : start + len(octets)] = octets

    def _check(self) -> None:
        """Raises where the memory is closed."""
        if self._map.closed:
            raise TransportError("the transport is closed")

    def close(self) -> None:
        with self._lock:
            self._map.close()
