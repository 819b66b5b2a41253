"""The driver's exceptions: one root, and below it one class for each case that a caller may
handle.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...hdl.spec.ddp import ErrorNumber, ErrorType


class RnicError(Exception):
    """A failure of the driver, the link or the device.

    ``number`` is the Error Type and Error Code of RFC 5041 section 7.2, or None where neither
    applies.
    """

    number: ErrorNumber | None = None

    @property
    def type(self) -> ErrorType | None:
        """The Error Type, or None."""
        return None if self.number is None else self.number.type

    @property
    def code(self) -> int | None:
        """The Error Code, or None."""
        return None if self.number is None else self.number.code


class InvalidRequest(RnicError, ValueError):
    """The caller asked for something impossible; nothing was done."""


class WrongType(InvalidRequest, TypeError):
    """The caller gave a value of a type that the call does not accept; nothing was done."""


class ResourceExhausted(RnicError):
    """The device or its memory has no room for the request now; nothing was done."""


class StateError(RnicError):
    """The object is closed, revoked or in use; nothing was done."""


class UnsupportedDevice(RnicError):
    """The driver does not support this device."""


class TransportError(RnicError):
    """The link to the device failed, or the device's bus refused an access."""


class RnicTimeout(RnicError, TimeoutError):
    """The device, the link or a message did not arrive in time."""


class TransportTimeout(TransportError, RnicTimeout):
    """The link or the device does not answer."""


class CompletionOverrun(RnicError):
    """More completions came than the CQ holds; the stream of the first one too many is stopped."""


@dataclass(frozen=True)
class ErrorEvent:
    """The device's report of the first error on a stream (RFC 5041 section 7.1).

    Parameters
    ----------
    stream
        Number of the DDP Stream.
    number
        Error Type and Error Code.
    length
        Octets of the DDP Segment, header included.
    sequence
        LLP sequence number of the segment's FPDU.
    header
        The DDP Header as received: 14 or 18 octets, fewer if the segment has fewer.
    """

    stream: int
    number: ErrorNumber
    length: int
    sequence: int
    header: bytes

    def __str__(self) -> str:
        return f"stream {self.stream}: {self.number}, DDP Header {self.header.hex(' ')}"


class StreamError(RnicError):
    """A stream is in error: it accepts no more segments, and the caller should close it."""

    def __init__(self, event: ErrorEvent, advice: str = "") -> None:
        super().__init__(f"{event}; the stream accepts no more segments: close it{advice}")
        self.event = event
        self.number = event.number
