"""The events that the model returns to its caller, and the exception that it raises.

An event is frozen and describes what a correct receiver did. The exception is raised for octets
that are not of the protocol at all, and for a caller's request that the protocol forbids.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...hdl.spec.ddp import ErrorNumber
from .checks import Validation
from .header import Header
from .memory import Octets

__all__ = ["DdpError", "Delivered", "Event", "LlpError", "Placed", "ProtocolError"]


class ProtocolError(Exception):
    """The octets break a protocol, or the caller's request would break one.

    ``number`` is the error number of RFC 5041 section 7.2, or None where that section has none.
    """

    def __init__(self, message: str, number: ErrorNumber | None = None) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True)
class Placed:
    """A segment's payload was written to its buffer (RFC 5041 section 2.3, Data Placement).

    A segment without payload gives this event too: such a segment writes nothing, but counts for
    Delivery.

    Parameters
    ----------
    stream
        DDP Stream.
    header
        The segment's header.
    length
        Octets of ULP Payload.
    order
        The segment's number in the order of the sender.
    address
        Host address of the first octet written; None for an Untagged Buffer, and for a segment
        without payload.
    validation
        The checks that the segment passed.
    """

    stream: int
    header: Header
    length: int
    order: int
    address: int | None = None
    validation: Validation | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Delivered:
    """A DDP Message was handed to the ULP (RFC 5041 section 5.4).

    Parameters
    ----------
    stream
        DDP Stream.
    header
        Header of the message's last segment. The ULP needs its RsvdULP field and, for a tagged
        message, its STag.
    order
        The number of the message's last segment in the order of the sender.
    begin, end
        For an untagged message: 0, and its ULP Message Length. For a tagged message: the Tagged
        Offset of its first segment, and the Tagged Offset just past its last one. Where segments of
        another message came in between, ``begin`` is that of the first segment after them.
    octets
        The octets of an untagged message's buffer; None for a tagged message.
    """

    stream: int
    header: Header
    order: int
    begin: int
    end: int
    octets: Octets | None = None

    @property
    def length(self) -> int:
        """ULP Message Length: ``end`` minus ``begin``, modulo 2^32."""
        return (self.end - self.begin) % (1 << 32)

    @property
    def message(self) -> bytes | None:
        """The octets of an untagged message, as many as its ULP Message Length states; None for a
        tagged message.
        """
        return None if self.octets is None else self.octets.read(self.length)


@dataclass(frozen=True)
class DdpError:
    """DDP found an error of RFC 5041 section 7.1 or 7.2. The stream gives no further events.

    Parameters
    ----------
    number
        Error Type and Error Code.
    header
        The DDP Header as received; shorter where the segment ends within the header.
    length
        Octets of the DDP Segment, header included.
    stream
        DDP Stream.
    order
        The segment's number in the order of the sender.
    validation
        The checks up to the one that failed; None if no check decided, but the length of the
        segment or the order of its message.
    """

    number: ErrorNumber
    header: bytes
    length: int
    stream: int
    order: int
    validation: Validation | None = field(default=None, compare=False)


@dataclass(frozen=True)
class LlpError:
    """The LLP could not hand over a segment, because a digest or the framing was wrong.

    Parameters
    ----------
    number
        Error Type 0x3 and the LLP's own code.
    header
        The octets where the DDP Header belongs, as far as they were received.
    length
        The length that the LLP's framing states for the segment.
    position
        LLP sequence number of the frame: how many octets of the stream precede it.
    raw
        The frame as received.
    """

    number: ErrorNumber
    header: bytes
    length: int
    position: int
    raw: bytes = b""


Event = Placed | Delivered | DdpError | LlpError
