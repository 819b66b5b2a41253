"""Memory that a client passes to the manager, as the file descriptor of a memfd."""

from __future__ import annotations

import fcntl
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ..base.errors import InvalidRequest, ResourceExhausted, StateError
from ..transports.memory import Steps
from .quota import Share

#: A seal of <linux/fcntl.h>, since Linux 5.1; Python has no name for it.
F_SEAL_FUTURE_WRITE = 0x10
_NEEDED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
#: How many octets one step allocates.
_ALLOCATED = 1 << 17
_UNMAPPER = ThreadPoolExecutor(1, "unmapper")


class Passed:
    """A client's memory, mapped into the manager as well.

    A client can pass only memory that it can write itself: the descriptor must be open for writing.
    The size must be sealed, so that pages cannot vanish while the device writes them. The manager
    adds F_SEAL_FUTURE_WRITE: without that seal a client could punch holes, and the device would
    write to pages that belong to somebody else by then. Existing mappings stay writable, and no new
    ones can be made.

    Seals keep the pages in the file, but not at their physical addresses: where a device writes
    physical addresses, its transport pins the pages (:mod:`..transports.pins`).

    Attributes
    ----------
    octets
        Octets of the memory.
    holds
        How many regions and receive buffers lie in the memory.
    """

    def __init__(self, mapped: mmap.mmap, octets: int, share: Share) -> None:
        self.holds = 0
        self._map, self.octets, self._share = mapped, octets, share

    @classmethod
    def making(cls, descriptor: int, share: Share) -> Steps[Passed]:
        """Maps the memory of a memfd, in steps.

        Parameters
        ----------
        descriptor
            The memfd. It is closed here in any case.
        share
            The share in which the memory's octets are counted.
        """
        try:
            octets = _check(descriptor)
            share.take(memory=octets, memories=1)
            try:
                mapped = yield from _mapping(descriptor, octets)
            except BaseException:
                share.give(memory=octets, memories=1)
                raise
        finally:
            os.close(descriptor)
        return cls(mapped, octets, share)

    def view(self, offset: int, length: int) -> memoryview:
        """Returns ``length`` octets from ``offset`` on."""
        if not 0 <= offset <= offset + length <= self.octets:
            raise InvalidRequest(
                f"{length} octets from {offset} on are not within the memory's {self.octets}"
            )
        return memoryview(self._map)[offset : offset + length]

    def closing(self) -> Steps[None]:
        """Unmaps the memory, in steps."""
        if self.holds:
            raise StateError(f"{self.holds} regions and receive buffers are in the memory")
        # The kernel takes 10 ms to free 64 MiB, if the client has released them already.
        unmapped = _UNMAPPER.submit(self._unmap)
        while not unmapped.done():
            yield
        unmapped.result()
        self._share.give(memory=self.octets, memories=1)

    def _unmap(self) -> None:
        # If views are left, the memory is unmapped with the last of them.
        with suppress(BufferError):
            self._map.close()


def _check(descriptor: int) -> int:
    """Returns the octets of a memfd; raises where they could vanish later."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise InvalidRequest("memory must be a memfd with MFD_ALLOW_SEALING") from error
    if seals & _NEEDED != _NEEDED:
        raise InvalidRequest("memory must have the seals F_SEAL_SHRINK and F_SEAL_GROW")
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        raise InvalidRequest("memory must be open for reading and writing")
    octets = os.fstat(descriptor).st_size
    if not octets:
        raise InvalidRequest("memory must have at least one octet")
    return octets


def _mapping(descriptor: int, octets: int) -> Steps[mmap.mmap]:
    try:
        mapped = mmap.mmap(descriptor, octets)
    except OSError as error:
        raise InvalidRequest(
            f"memory must be writable, and passed once: it cannot be mapped ({error.strerror})"
        ) from error
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
    except OSError as error:
        mapped.close()
        raise InvalidRequest("memory must take seals: it must not have F_SEAL_SEAL") from error
    try:
        # All pages are allocated now: a page that is missing later would cause a signal that ends
        # this process.
        for at in range(0, octets, _ALLOCATED):
            os.posix_fallocate(descriptor, at, min(_ALLOCATED, octets - at))
            yield
    except OSError as error:
        mapped.close()
        raise ResourceExhausted(
            f"{octets} octets of memory cannot be allocated: {error.strerror}"
        ) from error
    except GeneratorExit:
        # Freeing the pages that are allocated already takes the kernel a while.
        _UNMAPPER.submit(mapped.close)
        raise
    return mapped
