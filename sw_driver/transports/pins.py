"""Pinning pages of this process, so that the kernel neither moves them nor gives them to anyone
else.

A device without an IOMMU writes to physical addresses, so the pages must stay where they are.
Locked memory (``mlock``) and a sealed memfd do not guarantee that: the kernel collapses their pages
into huge pages (``MADV_COLLAPSE``, khugepaged), compacts memory, and moves pages between NUMA
nodes. A *pinned* page (``FOLL_LONGTERM``, Linux, Documentation/core-api/pin_user_pages.rst) is
exempt from all of these. Of the interfaces with which a program can pin its own pages, the
registered buffers of io_uring need no hardware; no I/O is ever done on the ring that is opened
here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections import deque
from collections.abc import Iterable

from ..base.errors import InvalidRequest, ResourceExhausted, TransportError

#: System call numbers of Linux, include/uapi/asm-generic/unistd.h; the same on every architecture
#: but Alpha.
_SETUP, _REGISTER = 425, 427
#: Linux, include/uapi/linux/io_uring.h.
_REGISTER_BUFFERS2, _REGISTER_BUFFERS_UPDATE, _SPARSE = 15, 16, 1
_PARAMETERS = 120  #: octets of struct io_uring_params
_RSRC_REGISTER = struct.Struct("=IIQQQ")  #: nr, flags, resv2, data, tags
_RSRC_UPDATE2 = struct.Struct("=IIQQII")  #: offset, resv, data, tags, nr, resv2
#: IORING_MAX_REG_BUFFERS.
SLOTS = 1 << 14
#: Octets that one slot pins. The kernel allows up to 1 GiB, and pins this many well below 1 ms.
PIECE = 1 << 20


class Pins:
    """Pins pages through the registered buffers of an io_uring.

    Pages stay pinned until they are unpinned, or until this process ends.

    Raises
    ------
    TransportError
        This kernel does not let this process pin pages.
    """

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._free = deque(range(SLOTS))
        self._lock = threading.Lock()
        try:
            parameters = ctypes.create_string_buffer(_PARAMETERS)
            self._ring = self._ask(_SETUP, 1, parameters)
            try:
                table = _RSRC_REGISTER.pack(SLOTS, _SPARSE, 0, 0, 0)
                self._ask(_REGISTER, self._ring, _REGISTER_BUFFERS2, table, len(table))
            except OSError:
                os.close(self._ring)
                raise
        except OSError as error:
            raise TransportError(
                "memory whose physical addresses a device writes must be pinned, and the kernel"
                f" does not let this process pin any with io_uring ({error.strerror}): use Linux"
                " 5.19 or later with kernel.io_uring_disabled=0, or memory of the module u-dma-buf"
            ) from error

    def _ask(self, number: int, *arguments: object) -> int:
        result = int(self._call(ctypes.c_long(number), *arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def pin(self, address: int, length: int) -> int:
        """Pins the pages of at most :data:`PIECE` octets, and returns the slot that holds them.

        The pages are in memory and writable when this returns.
        """
        with self._lock:
            if self._ring < 0:
                raise TransportError("the transport is closed")
            if not self._free:
                raise ResourceExhausted(
                    f"all {SLOTS} slots for pinned memory are in use: revoke a region"
                )
            try:
                self._set(self._free[0], address, length)
            except OSError as error:
                if error.errno in (errno.EFAULT, errno.EOPNOTSUPP):
                    raise InvalidRequest(
                        "a buffer must be memory that the kernel can pin, not the mapping of a file"
                        " on a disk: copy the octets to other memory"
                    ) from error
                raise ResourceExhausted(
                    f"pages cannot be pinned ({error.strerror}): raise the limit, 'ulimit -l'"
                ) from error
            return self._free.popleft()

    def unpin(self, slots: Iterable[int]) -> None:
        """Releases the pages of these slots to the kernel, unless :meth:`close` has done so."""
        with self._lock:
            for slot in slots if self._ring >= 0 else ():
                self._set(slot, 0, 0)
                self._free.append(slot)

    def _set(self, slot: int, address: int, length: int) -> None:
        vector = ctypes.create_string_buffer(struct.pack("@PN", address, length))
        update = _RSRC_UPDATE2.pack(slot, 0, ctypes.addressof(vector), 0, 1, 0)
        self._ask(_REGISTER, self._ring, _REGISTER_BUFFERS_UPDATE, update, len(update))

    def close(self) -> None:
        """Unpins everything."""
        with self._lock:
            if self._ring >= 0:
                os.close(self._ring)
                self._ring = -1
