"""Declares RFC 5041's header fields (sections 4.1 to 4.3) and error numbers (section 7.2)."""

from enum import IntEnum
from typing import NamedTuple

VERSION = 1  #: DV, RFC 5041 section 4.1
TAGGED_HEADER = 14  #: octets, section 4.2
UNTAGGED_HEADER = 18  #: octets, section 4.3

#: Fields of the two headers, in wire order: (name, bits). The first octet is the DDP Control Field.
CONTROL_FIELDS = (("t", 1), ("l", 1), ("rsvd", 4), ("dv", 2))
TAGGED_FIELDS = (*CONTROL_FIELDS, ("rsvdulp", 8), ("stag", 32), ("to", 64))
UNTAGGED_FIELDS = (*CONTROL_FIELDS, ("rsvdulp", 40), ("qn", 32), ("msn", 32), ("mo", 32))

#: How many messages of a stream the device remembers while an earlier message of the stream is
#: unfinished: each finished message that waits, and each unfinished one that was overtaken.
#:
#: RFC 5041 section 5.3 has a Data Source "transmit DDP Messages in the order they were submitted",
#: so that no message overtakes another one and the device remembers none. If a peer nevertheless
#: sends a segment of another message before the last segment of a message, section 5.4 lets the
#: other message be delivered only after the earlier one. The RFC sets no bound, but a device has
#: one: a stream that needs more is in error with Local Catastrophic (section 7.2). The event names
#: the stream and has no header; segments that arrived before the stream was stopped may have been
#: placed.
WAITING = 8

#: How many segments of a stream may overtake an unfinished message, from the stream's start on. One
#: more is the same error as one message too many (:data:`WAITING`). Each one costs the device the
#: time of many segments of other streams, so that a stream without this bound could hold them up.
OVERTAKES = 1024


class ErrorType(IntEnum):
    """The 4-bit Error Type of RFC 5041 section 7.2."""

    LOCAL = 0x0
    TAGGED = 0x1
    UNTAGGED = 0x2
    LLP = 0x3
    #: The device's own number: the error is not DDP's, but the Remote Operation Error of RDMAP (RFC
    #: 5040 section 4.8), whose Error Type in a Terminate is 2.
    REMOTE_OPERATION = 0xA


class ErrorNumber(NamedTuple):
    """An Error Type with its 8-bit Error Code."""

    type: ErrorType
    code: int

    def __str__(self) -> str:
        text = (ERROR_TEXT | RESPONSE_TEXT).get(self, "unknown error")
        return f"{self.type:#x}/{self.code:#04x} {text}"


#: The bus refused a write of the stream, or the stream has one message too many (:data:`WAITING`),
#: or one segment too many that overtakes (:data:`OVERTAKES`).
#: A stream reports one error: the first one. Where both happen to one segment, they are one event.
LOCAL_CATASTROPHIC = ErrorNumber(ErrorType.LOCAL, 0x00)
#: A message of the stream was complete, and its completion queue had no room: the message is not
#: delivered, and neither is any later one (see :mod:`~.completion`). The RFC leaves the codes of
#: Local Catastrophic to the device; a Terminate carries 0x00 for it.
QUEUE_OVERRUN = ErrorNumber(ErrorType.LOCAL, 0x01)
INVALID_STAG = ErrorNumber(ErrorType.TAGGED, 0x00)
BASE_OR_BOUNDS = ErrorNumber(ErrorType.TAGGED, 0x01)
STAG_NOT_ASSOCIATED = ErrorNumber(ErrorType.TAGGED, 0x02)
#: Section 7.1, check 5: "A 64-bit unsigned sum of the DDP Segment payload length and the TO does
#: not wrap." Section 4.2: "Tagged Offset: 64 bits", so that the last possible octet has Tagged
#: Offset 2^64 - 1. The sum wraps where an octet of the segment would have a higher Tagged Offset:
#: where TO + length > 2^64. A region may be registered, and a segment placed, up to that last octet
#: (TO + length = 2^64): both follow this one rule.
TO_WRAP = ErrorNumber(ErrorType.TAGGED, 0x03)
TAGGED_VERSION = ErrorNumber(ErrorType.TAGGED, 0x04)
INVALID_QN = ErrorNumber(ErrorType.UNTAGGED, 0x01)
NO_BUFFER = ErrorNumber(ErrorType.UNTAGGED, 0x02)
MSN_RANGE = ErrorNumber(ErrorType.UNTAGGED, 0x03)
INVALID_MO = ErrorNumber(ErrorType.UNTAGGED, 0x04)
MESSAGE_TOO_LONG = ErrorNumber(ErrorType.UNTAGGED, 0x05)
UNTAGGED_VERSION = ErrorNumber(ErrorType.UNTAGGED, 0x06)
#: The segment is one of a Read Response, and no Read is outstanding, or the oldest one has another
#: sink: RFC 5040 section 4.8, "Unexpected OpCode".
UNEXPECTED_RESPONSE = ErrorNumber(ErrorType.REMOTE_OPERATION, 0x06)
#: The segment is one of a Read Response whose Tagged Offset or length differs from the request's
#: (RFC 5040 section 5.2.2): section 4.8, "Unspecified Error".
WRONG_RESPONSE = ErrorNumber(ErrorType.REMOTE_OPERATION, 0xFF)
#: Codes that section 7.2 reserves for the LLP; the numbers are those of RFC 5044 section 8.
LLP_CRC = ErrorNumber(ErrorType.LLP, 0x02)
LLP_FRAMING = ErrorNumber(ErrorType.LLP, 0x03)

ERROR_TEXT = {
    LOCAL_CATASTROPHIC: "Local Catastrophic",
    QUEUE_OVERRUN: "Completion queue overrun",
    INVALID_STAG: "Invalid STag",
    BASE_OR_BOUNDS: "Base or bounds violation",
    STAG_NOT_ASSOCIATED: "STag not associated with DDP Stream",
    TO_WRAP: "TO wrap",
    TAGGED_VERSION: "Invalid DDP version",
    INVALID_QN: "Invalid QN",
    NO_BUFFER: "Invalid MSN - no buffer available",
    MSN_RANGE: "Invalid MSN - MSN range is not valid",
    INVALID_MO: "Invalid MO",
    MESSAGE_TOO_LONG: "DDP Message too long for available buffer",
    UNTAGGED_VERSION: "Invalid DDP version",
    LLP_CRC: "LLP digest does not match",
    LLP_FRAMING: "LLP framing: length or marker does not agree, or no room for a DDP header",
}
#: The errors of RDMAP that the device finds, where it bounds Read Responses.
RESPONSE_TEXT = {
    UNEXPECTED_RESPONSE: "Unexpected OpCode: no Read waits for this Read Response",
    WRONG_RESPONSE: "Unspecified Error: the Read Response has another TO or length",
}
