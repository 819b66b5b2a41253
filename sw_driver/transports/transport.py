"""The interface through which the driver reaches a device."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ..base.closing import Closing
from ..base.errors import UnsupportedDevice
from .memory import Memory, Steps


class SentFpdu(NamedTuple):
    """An FPDU that a device has sent: number of the DDP Stream, LLP sequence number of the first
    octet, the octets, and the record beside it, a number with the fields of
    :data:`~....hdl.spec.send.RECORD`.
    """

    stream: int
    sequence: int
    octets: bytes
    record: int


class PageFile(Closing):
    """The file of a doorbell page: whoever has its descriptor can map that page, and nothing else.

    Attributes
    ----------
    lent
        Whether a process may have the page mapped, or a descriptor of it, since :meth:`lend`.
    """

    @property
    @abstractmethod
    def lent(self) -> bool: ...

    @abstractmethod
    def lend(self) -> int:
        """Returns a descriptor for a client. The caller passes it, and closes its own copy."""


class Transport(Closing):
    """A link to a device: gives access to its registers, to memory that it can write, and to its
    interrupt.

    Any thread may call any method. A failure raises :class:`~..base.errors.TransportError`; an
    answer that does not come in time raises :class:`~..base.errors.TransportTimeout`.

    Attributes
    ----------
    roomy
        Whether the memory that the device can write has room for many completion queues.
    completions
        The entries that such a queue gets by default.
    carries
        Whether the host gets the FPDUs and frames that the device sends, by :meth:`sent` and
        :meth:`sent_frames`.
    longest_frame
        Octets of the longest frame, without FCS, that leaves the device by a port of its own; the
        host gets copies. 0: the host has to send the frames that it gets.
    page_files
        The files of the first doorbell pages, which clients of a manager may map.
    """

    roomy = True
    completions = 1024
    carries = False
    longest_frame = 0
    page_files: Sequence[PageFile] = ()

    @abstractmethod
    def read(self, address: int) -> int:
        """Reads the 32-bit register at an octet address."""

    @abstractmethod
    def write(self, address: int, value: int) -> None:
        """Writes a register. The write reaches the device before any later access does."""

    def write_all(self, writes: Sequence[tuple[int, int]]) -> None:
        """Writes registers in this order: an octet address and a value each.

        A transport may post the writes: they reach the device before any later access does, and a
        later call raises if one of them fails.
        """
        for address, value in writes:
            self.write(address, value)

    @abstractmethod
    def pin(self, view: memoryview) -> Memory:
        """Lets the device write these octets, either where they are or in a copy.

        ``view`` has octets as items, is contiguous, writable and not empty. The memory owns it from
        then on.
        """

    def pinning(self, view: memoryview) -> Steps[Memory]:
        """Does the work of :meth:`pin` in steps. Here it is one step, for transports that
        pin quickly.
        """
        yield
        return self.pin(view)

    def share(self, view: memoryview) -> Memory:
        """Lets the device read and write these octets where they are, contiguous on the bus, at a
        bus address that is a multiple of 64. ``view`` is as in :meth:`pin`.

        This version is for links over which the device has copies of the host's memory.
        """
        raise UnsupportedDevice(
            f"through {type(self).__name__} the device reads and writes copies of memory, and no"
            " ring that a client of the manager reads or writes itself: use CQ and Stream"
        )

    @abstractmethod
    def allocate(self, octets: int) -> Memory:
        """Allocates memory full of zeros, contiguous on the bus, at a bus address that is a
        multiple of 64.
        """

    def wait(self, timeout: float) -> None:
        """Returns when the device interrupts, or after ``timeout`` seconds. An early return does no
        harm.

        This version is for links without an interrupt: it returns soon, and the caller looks again.
        """
        time.sleep(min(timeout, 0.001))

    def wake(self) -> None:
        """Makes a :meth:`wait` of another thread return, or the next one if none is in progress.

        This version does nothing, for links whose wait is short.
        """

    def send(self, stream: int, sequence: int, octets: bytes) -> None:
        """Queues a packet of whole FPDUs, which the host's TCP has received, for the device.

        Parameters
        ----------
        stream, sequence
            Number of the DDP Stream; position of the first octet in the stream, modulo 2**32.
        octets
            The FPDUs.
        """
        raise self._no_sockets()

    @property
    def sending(self) -> int:
        """The number of these packets that the device has not completely taken yet."""
        raise self._no_sockets()

    def _no_sockets(self) -> UnsupportedDevice:
        return UnsupportedDevice(
            f"{type(self).__name__} cannot hand the device what a socket of the host receives: use"
            " SimTransport, or let the board's own TCP receive"
        )

    def sent(self) -> list[SentFpdu]:
        """Returns the FPDUs that the device has sent since the last call, in their order."""
        return []

    def sent_frames(self) -> list[SentFpdu]:
        """Returns the frames of SCTP that the device has sent since the last call, in their order,
        without FCS; each with the TSN of its chunk as sequence number.
        """
        return []

    def entropy(self, octets: int) -> bytes:
        """Returns octets that nobody can predict."""
        return secrets.token_bytes(octets)

    @abstractmethod
    def close(self) -> None:
        """Releases the link. A second call does nothing."""
