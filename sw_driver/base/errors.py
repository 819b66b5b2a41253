"""What can go wrong: one root, and under it what a caller may want to tell apart."""

from __future__ import annotations

from dataclasses import dataclass

from ...hdl.spec.ddp import ErrorNumber, ErrorType


class RnicError(Exception):
    """Any failure of driver, link or device.

    ``number`` is the Error Type and Error Code of RFC 5041 section 7.2, where there is one.
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
    """The caller asks for what cannot be; nothing was done."""


class WrongType(InvalidRequest, TypeError):
    """The caller gives a value of another type than the call takes; nothing was done."""


class ResourceExhausted(RnicError):
    """The device, or its memory, has no room for this now; nothing was done."""


class StateError(RnicError):
    """The object is closed, revoked or in use; nothing was done."""


class UnsupportedDevice(RnicError):
    """This is no device that the driver knows."""


class TransportError(RnicError):
    """The link to the device failed, or the device's bus refused an access."""


class RnicTimeout(RnicError, TimeoutError):
    """It did not come in time."""


class TransportTimeout(TransportError, RnicTimeout):
    """The link or the device does not answer."""


class CompletionOverrun(RnicError):
    """More completions came than the CQ holds; the stream that it happened to is stopped."""


@dataclass(frozen=True)
class ErrorEvent:
    """What the device tells of the first error on a stream (RFC 5041 section 7.1).

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
    """A stream is in error: it takes nothing any more, and is to be closed."""

    def __init__(self, event: ErrorEvent) -> None:
        super().__init__(f"{event}; the stream takes nothing any more: close it")
        self.event = event
        self.number = event.number
