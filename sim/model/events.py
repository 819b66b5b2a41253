"""What the model tells its user: frozen events, and the one exception.

An event says what a correct receiver did. The exception is for octets that are not the protocol at
all, and for callers who ask for something that the protocol forbids.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...hdl.spec.ddp import ErrorNumber
from .header import Header

__all__ = ["DdpError", "Delivered", "Event", "LlpError", "Placed", "ProtocolError"]


class ProtocolError(Exception):
    """Octets that break a protocol, or a request that would.

    ``number`` is the error number of RFC 5041 section 7.2, where one exists.
    """

    def __init__(self, message: str, number: ErrorNumber | None = None) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True)
class Placed:
    """A segment's payload was written to its buffer (RFC 5041 section 2.3, Data Placement).

    Also given for a segment without payload: it counts for Delivery although it writes nothing.

    Parameters
    ----------
    stream
        DDP Stream.
    header
        The segment's header.
    length
        Octets of ULP Payload.
    order
        The segment's place in the order of the sender.
    address
        Host address of the first octet written; None for an Untagged Buffer and for no payload.
    """

    stream: int
    header: Header
    length: int
    order: int
    address: int | None = None


@dataclass(frozen=True)
class Delivered:
    """A DDP Message was handed to the ULP (RFC 5041 section 5.4).

    Parameters
    ----------
    stream
        DDP Stream.
    header
        Header of the message's last segment: it holds the RsvdULP field, and the STag of a tagged
        message, which the ULP must be given.
    order
        Place of the message's last segment in the order of the sender.
    message
        The octets of an untagged message, as many as its ULP Message Length says; None for a tagged
        message.
    begin, end
        Of a tagged message: the Tagged Offset of the first segment, and where the last one ends; of
        the segments after any of another message.
    """

    stream: int
    header: Header
    order: int
    message: bytes | None = None
    begin: int = 0
    end: int = 0

    @property
    def length(self) -> int:
        """ULP Message Length; of a tagged message from its begin to its end, modulo 2^32."""
        return (
            len(self.message) if self.message is not None else (self.end - self.begin) % (1 << 32)
        )


@dataclass(frozen=True)
class DdpError:
    """An error of RFC 5041 section 7.1 or 7.2: the stream is silent from here on.

    Parameters
    ----------
    number
        Error Type and Error Code.
    header
        The DDP Header as it came, cut short where the segment is.
    length
        Octets of the DDP Segment, header included.
    stream
        DDP Stream.
    order
        The segment's place in the order of the sender.
    """

    number: ErrorNumber
    header: bytes
    length: int
    stream: int
    order: int


@dataclass(frozen=True)
class LlpError:
    """The LLP could not hand over a segment: digest, framing.

    Parameters
    ----------
    number
        Error Type 0x3 and the LLP's own code.
    header
        The octets where the DDP Header would be, as far as they came.
    length
        The length that the LLP's framing states for the segment.
    position
        LLP sequence number of the frame: octets of the stream before it.
    raw
        The frame as it came.
    """

    number: ErrorNumber
    header: bytes
    length: int
    position: int
    raw: bytes = b""


Event = Placed | Delivered | DdpError | LlpError
