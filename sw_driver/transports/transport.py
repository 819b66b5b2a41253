"""What the driver needs of a link to a device."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod

from ..base.closing import Closing
from .memory import Memory, Steps


class Transport(Closing):
    """A link to a device: its registers, memory that it can write, its interrupt.

    Any thread may call any method. What fails raises :class:`~..base.errors.TransportError`, what
    takes too long :class:`~..base.errors.TransportTimeout`.
    """

    @abstractmethod
    def read(self, address: int) -> int:
        """A register of 32 bits at an octet address."""

    @abstractmethod
    def write(self, address: int, value: int) -> None:
        """Write one; it has reached the device before any access after it does."""

    @abstractmethod
    def pin(self, view: memoryview) -> Memory:
        """Let the device write these octets, where they are or in a copy.

        ``view`` is of octets, contiguous, writable, and not empty; it belongs to the memory then.
        """

    def pinning(self, view: memoryview) -> Steps[Memory]:
        """Does the work of :meth:`pin` in steps; here in one, for transports that pin at once."""
        yield
        return self.pin(view)

    @abstractmethod
    def allocate(self, octets: int) -> Memory:
        """New memory, zeros, contiguous on the bus, at a multiple of 64 octets there."""

    def wait(self, timeout: float) -> None:
        """Return when the device interrupts, or after so many seconds; sooner does no harm.

        Here for links without an interrupt: it is looked for again soon.
        """
        time.sleep(min(timeout, 0.001))

    def wake(self) -> None:
        """Have a :meth:`wait` of another thread return, or the next one, if none is under way.

        Here for links whose wait is short anyhow.
        """

    def entropy(self, octets: int) -> bytes:
        """Octets that nobody can predict."""
        return secrets.token_bytes(octets)

    @abstractmethod
    def close(self) -> None:
        """Let go of the link; the second time does nothing."""
