"""Memory that a client passes, as the file descriptor of a memfd."""

from __future__ import annotations

import fcntl
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ..base.errors import InvalidRequest, ResourceExhausted, StateError
from ..transports.memory import Steps
from .quota import Share

#: From <linux/fcntl.h>, since Linux 5.1; Python does not have it.
F_SEAL_FUTURE_WRITE = 0x10
_NEEDED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
#: Octets that one step allocates.
_ALLOCATED = 1 << 17
_UNMAPPER = ThreadPoolExecutor(1, "unmapper")


class Passed:
    """A client's memory, mapped here too.

    A client can pass only what it can write itself: the descriptor must be open for that. The size
    must be sealed, so that pages cannot go away under the device. F_SEAL_FUTURE_WRITE is added
    here: without it a client could punch holes, and the device would write to pages that are
    somebody else's by then. What is mapped already stays writable, and nothing can be mapped again.

    Seals keep the pages in the file, not in their places: where a device writes physical addresses,
    its transport pins them (:mod:`..transports.pins`).

    Attributes
    ----------
    octets
        How many there are.
    holds
        How many regions and receive buffers lie in it.
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
            The memfd; it is closed here in any case.
        share
            Where the memory's octets are counted.
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
        """Octets of it."""
        if not 0 <= offset <= offset + length <= self.octets:
            raise InvalidRequest(
                f"{length} octets from {offset} on are not within the memory's {self.octets}"
            )
        return memoryview(self._map)[offset : offset + length]

    def closing(self) -> Steps[None]:
        """Unmaps it, in steps."""
        if self.holds:
            raise StateError(f"{self.holds} regions and receive buffers are in the memory")
        # The kernel takes 10 ms to free 64 MiB, if the client has let go of them already.
        unmapped = _UNMAPPER.submit(self._unmap)
        while not unmapped.done():
            yield
        unmapped.result()
        self._share.give(memory=self.octets, memories=1)

    def _unmap(self) -> None:
        # With views still about, it is unmapped with the last of them.
        with suppress(BufferError):
            self._map.close()


def _check(descriptor: int) -> int:
    """The octets of a memfd that can be trusted to stay."""
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
        # All its pages now: one that is missing later would be a signal that ends this process.
        for at in range(0, octets, _ALLOCATED):
            os.posix_fallocate(descriptor, at, min(_ALLOCATED, octets - at))
            yield
    except OSError as error:
        mapped.close()
        raise ResourceExhausted(f"{octets} octets are not free: {error.strerror}") from error
    except GeneratorExit:
        # The kernel takes its time to free what is allocated already.
        _UNMAPPER.submit(mapped.close)
        raise
    return mapped
