"""The formats of RDMAP's headers and messages (RFC 5040 section 4).

The driver has its own definitions, as gateware and model have theirs, so that no mistake is shared.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum

from ...hdl.spec import ddp

#: RDMAP Version, the upper two bits of the RDMAP Control Field (section 4.1): the version that is
#: sent, and the versions that are accepted. The RDMA Consortium's version is 0.
VERSION = 1
VERSIONS = (0, VERSION)


class Message(IntEnum):
    """The opcodes of RDMAP messages, section 4.1, figure 4."""

    WRITE = 0
    READ_REQUEST = 1
    READ_RESPONSE = 2
    SEND = 3
    SEND_INVALIDATE = 4
    SEND_SOLICITED = 5
    SEND_SOLICITED_INVALIDATE = 6
    TERMINATE = 7


#: The opcode of a Send, by whether it invalidates an STag and whether its event is solicited.
SENDS = {
    (False, False): Message.SEND,
    (True, False): Message.SEND_INVALIDATE,
    (False, True): Message.SEND_SOLICITED,
    (True, True): Message.SEND_SOLICITED_INVALIDATE,
}
#: The same table with keys and values exchanged.
SENT = {message: kind for kind, message in SENDS.items()}


class Queue(IntEnum):
    """The Queue Numbers of untagged messages, section 4.1."""

    SEND = 0
    READ_REQUEST = 1
    TERMINATE = 2


def control(message: Message) -> int:
    """Returns the RDMAP Control Field, the first octet of DDP's RsvdULP."""
    return VERSION << 6 | message


@dataclass(frozen=True)
class ReadRequest:
    """The RDMA Read Request Header, section 4.4."""

    sink_stag: int
    sink_to: int
    length: int
    source_stag: int
    source_to: int

    _format = struct.Struct(">IQIIQ")
    SIZE = _format.size

    def encode(self) -> bytes:
        """Returns the header's octets."""
        return self._format.pack(
            self.sink_stag, self.sink_to, self.length, self.source_stag, self.source_to
        )

    @classmethod
    def decode(cls, octets: bytes) -> ReadRequest:
        """Reads the header."""
        return cls(*cls._format.unpack(octets))


class Layer(IntEnum):
    """The layer that found the error of a Terminate, section 4.8."""

    RDMA = 0
    DDP = 1
    LLP = 2


#: Error Types and Error Codes of RDMAP, section 4.8: (type, code).
LOCAL_CATASTROPHIC = (0, 0x00)
INVALID_STAG = (1, 0x00)
BASE_OR_BOUNDS = (1, 0x01)
ACCESS = (1, 0x02)
NOT_ASSOCIATED = (1, 0x03)
TO_WRAP = (1, 0x04)
CANNOT_INVALIDATE = (1, 0x09)
INVALID_VERSION = (2, 0x05)
UNEXPECTED_OPCODE = (2, 0x06)
STREAM_CATASTROPHIC = (2, 0x07)
UNSPECIFIED = (2, 0xFF)

_REMOTE_PROTECTION, _REMOTE_OPERATION = 1, 2
#: The texts of RDMAP's errors, figure 9, by Error Type and Error Code.
_RDMA = {
    (_REMOTE_PROTECTION, 0x00): "Invalid STag",
    (_REMOTE_PROTECTION, 0x01): "Base or bounds violation",
    (_REMOTE_PROTECTION, 0x02): "Access rights violation",
    (_REMOTE_PROTECTION, 0x03): "STag not associated with RDMAP Stream",
    (_REMOTE_PROTECTION, 0x04): "TO wrap",
    (_REMOTE_PROTECTION, 0x09): "STag cannot be Invalidated",
    (_REMOTE_PROTECTION, 0xFF): "Unspecified Error",
    (_REMOTE_OPERATION, 0x05): "Invalid RDMAP version",
    (_REMOTE_OPERATION, 0x06): "Unexpected OpCode",
    (_REMOTE_OPERATION, 0x07): "Catastrophic error, localized to RDMAP Stream",
    (_REMOTE_OPERATION, 0x08): "Catastrophic error, global",
    (_REMOTE_OPERATION, 0x09): "STag cannot be Invalidated",
    (_REMOTE_OPERATION, 0xFF): "Unspecified Error",
}
#: The texts of DDP's errors, RFC 5041 section 7.2, without type 3, which is for the LLP. The number
#: of an overrun is the device's own, and on no wire.
_DDP = {
    (int(number.type), number.code): text
    for number, text in ddp.ERROR_TEXT.items()
    if number.type is not ddp.ErrorType.LLP and number != ddp.QUEUE_OVERRUN
}
#: The texts of MPA's errors, RFC 5044 section 8 and RFC 6581 section 8. MPA has one Error Type: 0.
_MPA = {
    (0, 0x01): "TCP connection closed, terminated or lost",
    (0, 0x02): "MPA CRC does not match",
    (0, 0x03): "MPA Marker and ULPDU Length field mismatch",
    (0, 0x04): "Invalid MPA Request Frame or MPA Response Frame",
    (0, 0x05): "Local Catastrophic Error",
    (0, 0x06): "Insufficient IRD Resources",
    (0, 0x07): "No Matching RTR Option",
}
#: The texts of all errors, by the layer that found them, Error Type and Error Code.
ERRORS = {Layer.RDMA: _RDMA, Layer.DDP: _DDP, Layer.LLP: _MPA}
_M, _D, _R = 4, 2, 1


@dataclass(frozen=True)
class Terminate:
    """A Terminate message, section 4.8.

    Parameters
    ----------
    layer, type, code
        The layer that found the error; Error Type and Error Code.
    length
        Octets of the DDP Segment in error; None where the message does not state that (M).
    ddp_header
        The segment's DDP Header (D).
    rdma_header
        The RDMA Read Request Header, where that was in error (R).
    note
        What the message means if the peer is Linux's siw, which swaps the two halves of the first
        octet and reverses M, D and R.
    """

    layer: Layer
    type: int
    code: int
    length: int | None = None
    ddp_header: bytes = b""
    rdma_header: bytes = b""
    note: str = field(default="", compare=False)

    _control = struct.Struct(">BBBx")
    _length = struct.Struct(">H")
    #: Octets of the longest message: control, length, DDP Header, Read Request Header.
    LONGEST = _control.size + _length.size + ddp.UNTAGGED_HEADER + ReadRequest.SIZE

    def encode(self) -> bytes:
        """Returns the message's octets."""
        there = self.length is not None
        present = _M * there | _D * bool(self.ddp_header) | _R * bool(self.rdma_header)
        return (
            self._control.pack(self.layer << 4 | self.type, self.code, present << 5)
            + (self._length.pack(self.length) if there else b"")
            + self.ddp_header
            + self.rdma_header
        )

    @classmethod
    def of(cls, number: ddp.ErrorNumber, length: int, header: bytes) -> Terminate:
        """Returns the message that reports an error of a received segment.

        Parameters
        ----------
        number
            The error, as the device numbers it.
        length
            Octets of the DDP Segment.
        header
            Its DDP Header as received.
        """
        if number.type is ddp.ErrorType.LLP:
            # Octets whose digest was wrong are not reported as a header.
            return cls(Layer.LLP, 0, number.code)
        if number.type is ddp.ErrorType.LOCAL:
            # An overrun of the completion queue has a code of the device's own.
            return cls(Layer.DDP, *LOCAL_CATASTROPHIC)
        if number.type is ddp.ErrorType.REMOTE_OPERATION:
            return cls(Layer.RDMA, _REMOTE_OPERATION, number.code, length, header)
        return cls(Layer.DDP, number.type, number.code, length, header)

    @classmethod
    def decode(cls, octets: bytes) -> Terminate:
        """Reads a message.

        Raises
        ------
        ValueError
            The message is shorter than its control field says, or names an unknown layer.
        """
        length, headers = None, [b"", b""]
        try:
            first, code, present = cls._control.unpack_from(octets)
            at = cls._control.size
            if present >> 5 & (_M | _D):
                (length,) = cls._length.unpack_from(octets, at)
                at += cls._length.size
        except struct.error as error:
            raise ValueError(f"a Terminate must be complete, not {octets.hex(' ')}") from error
        tagged = octets[at : at + 1] >= b"\x80"
        sizes = ddp.TAGGED_HEADER if tagged else ddp.UNTAGGED_HEADER, ReadRequest.SIZE
        for k, (flag, size) in enumerate(zip((_D, _R), sizes, strict=True)):
            if present >> 5 & flag:
                headers[k] = octets[at : at + size]
                at += size
        if len(octets) < at:
            raise ValueError(f"a Terminate must be complete, not {octets.hex(' ')}")
        note = ""
        # RFC 5040 section 4.8 reserves the lower five bits of M, D and R's octet, and MPA has no
        # Error Type but 0.
        if present & 0x1F or (first >> 4 == Layer.LLP and first & 0xF):
            with suppress(ValueError):
                meant = cls(Layer(first & 0xF), first >> 4, code)
                note = f"; from Linux's siw, which swaps fields, this means {meant}"
        return cls(Layer(first >> 4), first & 0xF, code, length, headers[0], headers[1], note)

    def __str__(self) -> str:
        text = ERRORS[self.layer].get((self.type, self.code), "unknown error")
        if self.layer is Layer.RDMA and self.type == 0:
            # Figure 9: "Any value in this field is acceptable."
            text = "Local Catastrophic"
        elif self.layer is Layer.DDP and self.type == ddp.ErrorType.LLP:
            # RFC 5041 section 7.2: "Reserved for the use by the LLP".
            text = "the LLP's error"
        header = f", DDP Header {self.ddp_header.hex(' ')}" if self.ddp_header else ""
        return f"{self.layer.name} {self.type:#x}/{self.code:#04x} {text}{header}{self.note}"
