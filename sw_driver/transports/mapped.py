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
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...hdl.spec import regs
from ..base.checks import file_path, instance, integer
from ..base.errors import InvalidRequest, ResourceExhausted, StateError, TransportError
from .memory import Arena, Bounce, Extent, Memory, Shared, Steps, finish
from .pins import PIECE, Pins
from .transport import Transport

_PAGE = mmap.PAGESIZE
_REGISTERS = 1 << regs.ADDRESS_BITS
#: Linux's, of pages of 2 MiB; the mmap module does not have it.
_MAP_HUGETLB = 0x40000
_HUGE = 1 << 21
#: Looks at the pagemap, while others have the kernel try to move the pages.
_LOOKS = 100


class HostMemory(ABC):
    """Where the memory of the host that a device writes comes from."""

    def pin(self, view: memoryview) -> Memory:
        """As :meth:`~.transport.Transport.pin`."""
        return finish(self.pinning(view))

    @abstractmethod
    def pinning(self, view: memoryview) -> Steps[Memory]:
        """As :meth:`~.transport.Transport.pinning`."""

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

    def pinning(self, view: memoryview) -> Steps[Memory]:
        return self._memory.pinning(view)

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
    """Buffers are written where they are: their pages are pinned, and their places looked up.

    For root (CAP_SYS_ADMIN), without an IOMMU in between: the device is given physical addresses.
    The pages stay pinned until the device writes there no more, whatever happens to the mapping,
    and whoever shares the memory; see :mod:`.pins`.

    Parameters
    ----------
    pagemap
        The file that says where pages are, as /proc/self/pagemap does.
    """

    def __init__(self, pagemap: Path | str = "/proc/self/pagemap") -> None:
        self.pins = Pins()
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
                # Only pages that are pinned already can be looked up: pinning may move them.
                slots.append(self.pins.pin(start + at, length))
                extents += self.places(start + at, length)
                yield
        except BaseException:
            self.pins.unpin(slots)
            raise
        return _Pinned(view, tuple(extents), self.pins, slots)

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
        return self.pin(memoryview(pages)[:octets])

    def places(self, address: int, length: int) -> list[Extent]:
        """Returns where pinned octets of this process are."""
        pages = range(address & -_PAGE, address + length, _PAGE)
        for _ in range(_LOOKS):
            octets = os.pread(self._pagemap, 8 * len(pages), pages.start // _PAGE * 8)
            if len(octets) != 8 * len(pages):
                raise TransportError("the pagemap does not have all pages of the buffer")
            entries = [entry for (entry,) in struct.iter_unpack("=Q", octets)]
            if all(entry >> 63 for entry in entries):
                break
            # Who shares the memory may have the kernel try to move it: the pages stay, and only
            # their entries in this process's page table are gone until it touches them.
            ctypes.string_at(address, length)
        found: list[Extent] = []
        for page, entry in zip(pages, entries, strict=True):
            # Linux, Documentation/admin-guide/mm/pagemap.rst: 0 without CAP_SYS_ADMIN.
            frame = entry & (1 << 55) - 1
            if not entry >> 63 or not frame:
                raise TransportError(
                    "the pagemap does not tell where pages are: run as root (CAP_SYS_ADMIN)"
                )
            start, end = max(address, page), min(address + length, page + _PAGE)
            found.append(Extent(frame * _PAGE + start - page, end - start))
        return found

    def close(self) -> None:
        os.close(self._pagemap)
        self.pins.close()


class _Pinned(Shared):
    """Octets in pages that are pinned."""

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

    def pinning(self, view: memoryview) -> Steps[Memory]:
        return Bounce.making(view, self._arena, self._read, self._write)

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
