"""A device whose registers are mapped into memory: through UIO, or the resource file of a PCIe BAR;
and the memory that such a device writes by itself.
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
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..hdl.spec import regs
from .checks import file_path, instance, integer
from .errors import InvalidRequest, ResourceExhausted, StateError, TransportError
from .memory import Arena, Bounce, Extent, Memory, Shared
from .transport import Transport

_PAGE = mmap.PAGESIZE
_REGISTERS = 1 << regs.ADDRESS_BITS
#: Linux's, of pages of 2 MiB; the mmap module does not have it.
_MAP_HUGETLB = 0x40000
_HUGE = 1 << 21


class HostMemory(ABC):
    """Where the memory of the host that a device writes comes from."""

    @abstractmethod
    def pin(self, view: memoryview) -> Memory:
        """As :meth:`~.transport.Transport.pin`."""

    @abstractmethod
    def allocate(self, octets: int) -> Memory:
        """As :meth:`~.transport.Transport.allocate`."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


class UioInterrupt:
    """The interrupt of a UIO device (Linux, Documentation/driver-api/uio-howto.rst).

    Parameters
    ----------
    file
        Descriptor of the device, which stays the caller's.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._enable()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wait(self, timeout: float) -> None:
        """Return when it comes, or after so many seconds."""
        ready = select.select([self._file, self._woken], [], [], timeout)[0]
        if self._woken in ready:
            with suppress(BlockingIOError):  # another wait was faster
                os.eventfd_read(self._woken)
        if self._file in ready:
            # Others may wait too: who is late finds that it was read.
            with self._lock:
                if select.select([self._file], [], [], 0)[0]:
                    os.read(self._file, 4)
                    self._enable()

    def wake(self) -> None:
        """Have a wait return at once, or the next one, if none is under way."""
        os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """Let go of what the waits are woken by."""
        os.close(self._woken)

    def _enable(self) -> None:
        """The kernel masks it when it comes, unless its driver has no mask and refuses this."""
        try:
            os.write(self._file, struct.pack("=I", 1))
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EIO, errno.EINVAL):
                raise TransportError(f"the interrupt cannot be enabled: {error}") from error


def _is_uio(file: int) -> bool:
    """Whether it is a UIO device: another one, as /dev/mem, must not be written to."""
    state = os.fstat(file)
    if not stat.S_ISCHR(state.st_mode):
        return False
    number = f"{os.major(state.st_rdev)}:{os.minor(state.st_rdev)}"
    return Path(f"/sys/dev/char/{number}/subsystem").resolve().name == "uio"


class MappedTransport(Transport):
    """Registers through a mapping of a file.

    A device of UIO (``/dev/uio0``) also has the interrupt; any other file, as
    ``/sys/bus/pci/devices/.../resource0``, has none.

    The file is locked (flock): it is this transport's alone.

    Parameters
    ----------
    path
        The file.
    memory
        What the device can write; closed with the transport.
    offset
        Where in the file the registers begin, a multiple of 4.
    """

    def __init__(self, path: Path | str, memory: HostMemory, *, offset: int = 0) -> None:
        rule = "a multiple of 4"
        offset = integer("offset", offset, 0, math.inf, rule)
        if offset % 4:
            raise InvalidRequest(f"offset must be {rule}, not {offset!r}")
        instance("memory", memory, HostMemory)
        self._memory = memory
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
                f"{path} cannot be mapped from {start:#x} on: {error}; check the offset"
            ) from error
        words = ctypes.c_uint32 * (_REGISTERS // 4)
        self._registers: Any = words.from_buffer(self._map, offset - start)
        self._interrupt = UioInterrupt(self._file) if _is_uio(self._file) else None

    def read(self, address: int) -> int:
        self._check()
        return int(self._registers[address // 4])

    def write(self, address: int, value: int) -> None:
        self._check()
        self._registers[address // 4] = value

    def _check(self) -> None:
        """Raise unless the device is this process's, and still."""
        if self.inherited:
            raise StateError(
                "the registers belong to the parent process: open the transport after the fork"
            )
        if self._registers is None:
            raise TransportError("the transport is closed")

    def pin(self, view: memoryview) -> Memory:
        self._check()
        return self._memory.pin(view)

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
        if self._registers is not None:
            self._registers = None
            if self._interrupt is not None:
                self._interrupt.close()
            self._map.close()
            os.close(self._file)
            self._memory.close()


class Pagemap(HostMemory):
    """Buffers are written where they are: their pages are locked, and their places looked up.

    For root (CAP_SYS_ADMIN), without an IOMMU in between. The kernel keeps locked pages in memory;
    so that it does not move them either, /proc/sys/vm/compact_unevictable_allowed is to be 0, or
    the buffers are to be in huge pages. A process that forks gives its next write to a page a new
    place: do not fork with regions registered.

    Parameters
    ----------
    pagemap
        What tells where pages are, as /proc/self/pagemap does.
    """

    #: How many buffers of this process keep each page locked: the kernel does not count.
    _locked: Counter[int] = Counter()
    _lock = threading.Lock()

    def __init__(self, pagemap: Path | str = "/proc/self/pagemap") -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._pagemap = os.open(pagemap, os.O_RDONLY)
        except OSError as error:
            raise TransportError(f"{pagemap} cannot be opened: {error.strerror}") from error

    def pin(self, view: memoryview) -> Memory:
        return _Locked(self, view)

    def allocate(self, octets: int) -> Memory:
        """In a huge page if it does not fit in a page."""
        size = _PAGE if octets <= _PAGE else -(-octets // _HUGE) * _HUGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_HUGETLB if size > _PAGE else 0)
        try:
            pages = mmap.mmap(-1, size, flags)
        except OSError as error:
            raise ResourceExhausted(
                f"{octets} octets in a row need a huge page: reserve one in"
                f" /proc/sys/vm/nr_hugepages, or ask for {_PAGE} octets at most"
            ) from error
        return _Locked(self, memoryview(pages)[:octets])

    def lock(self, pages: range) -> None:
        """Keep these pages of this process in memory."""
        with self._lock:
            for page in pages:
                if not self._locked[page] and self._libc.mlock(
                    ctypes.c_void_p(page), ctypes.c_size_t(_PAGE)
                ):
                    number = ctypes.get_errno()
                    self._unlock(range(pages.start, page, _PAGE))
                    raise ResourceExhausted(
                        f"pages cannot be locked ({os.strerror(number)}): raise the limit,"
                        " 'ulimit -l'"
                    )
                self._locked[page] += 1

    def unlock(self, pages: range) -> None:
        with self._lock:
            self._unlock(pages)

    def _unlock(self, pages: range) -> None:
        for page in pages:
            self._locked[page] -= 1
            if not self._locked[page]:
                del self._locked[page]
                self._libc.munlock(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE))

    def places(self, pages: range) -> list[int]:
        """Where pages of this process are."""
        octets = os.pread(self._pagemap, 8 * len(pages), pages.start // _PAGE * 8)
        if len(octets) != 8 * len(pages):
            raise TransportError("the pagemap does not have all pages of the buffer")
        found = []
        for (entry,) in struct.iter_unpack("=Q", octets):
            # Linux, Documentation/admin-guide/mm/pagemap.rst: 0 without CAP_SYS_ADMIN.
            frame = entry & (1 << 55) - 1
            if not entry >> 63 or not frame:
                raise TransportError(
                    "the pagemap does not tell where pages are: run as root (CAP_SYS_ADMIN)"
                )
            found.append(frame * _PAGE)
        return found

    def close(self) -> None:
        os.close(self._pagemap)


class _Locked(Shared):
    """Octets in pages that are locked."""

    def __init__(self, pagemap: Pagemap, view: memoryview) -> None:
        octets: Any = (ctypes.c_ubyte * len(view)).from_buffer(view)
        address = ctypes.addressof(octets)
        del octets
        self.view, self._pagemap = view, pagemap
        self._pages = range(address & -_PAGE, address + len(view), _PAGE)
        pagemap.lock(self._pages)
        try:
            places = pagemap.places(self._pages)
        except BaseException:
            pagemap.unlock(self._pages)
            raise
        extents, skipped, left = [], address % _PAGE, len(view)
        for place in places:
            length = min(left, _PAGE - skipped)
            extents.append(Extent(place + skipped, length))
            left, skipped = left - length, 0
        self.extents = tuple(extents)

    def close(self) -> None:
        self._pagemap.unlock(self._pages)
        self.view.release()


class UDmaBuf(HostMemory):
    """Contiguous memory of the kernel module u-dma-buf; buffers have a copy in it.

    What comes in is copied when its completion is taken.

    Parameters
    ----------
    device
        ``/dev/udmabuf0``, or another one.
    attributes
        Its folder in sysfs.
    """

    def __init__(
        self, device: Path | str = "/dev/udmabuf0", attributes: Path | str | None = None
    ) -> None:
        folder = Path(attributes or Path("/sys/class/u-dma-buf") / Path(device).name)
        try:
            self._start = int((folder / "phys_addr").read_text(), 0)
            size = int((folder / "size").read_text(), 0)
            # With O_SYNC it is not cached, so that host and device see the same.
            file = os.open(device, os.O_RDWR | os.O_SYNC)
            try:
                self._map = mmap.mmap(file, size)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            raise TransportError(f"{device} cannot be used: {error}") from error
        self._arena = Arena(self._start, size, f"octets of {device}")

    def pin(self, view: memoryview) -> Memory:
        return Bounce(view, self._arena, self._read, self._write)

    def allocate(self, octets: int) -> Memory:
        return self.pin(memoryview(bytearray(octets)))

    def _read(self, address: int, length: int) -> bytes:
        start = address - self._start
        return self._map[start : start + length]

    def _write(self, address: int, octets: bytes) -> None:
        start = address - self._start
        self._map[start : start + len(octets)] = octets

    def close(self) -> None:
        self._map.close()
