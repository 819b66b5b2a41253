"""Lists every way in which a segment can be wrong, with the error number that the RFCs give it.

Each case sends one packet on stream 3, Protection Domain 7, where a region is registered, two
buffers are posted on Queue Number 0, none on Queue Number 1, and the other queues are closed. No
octet of the packet may reach the bus for placements, and nothing may be delivered; the packet is
forwarded to the host, with the error number as its reason.
"""

from __future__ import annotations

from collections.abc import Callable

from ..hdl.spec.ddp import (
    BASE_OR_BOUNDS,
    INVALID_MO,
    INVALID_QN,
    INVALID_STAG,
    LLP_CRC,
    LLP_FRAMING,
    MESSAGE_TOO_LONG,
    MSN_RANGE,
    NO_BUFFER,
    STAG_NOT_ASSOCIATED,
    TAGGED_VERSION,
    TO_WRAP,
    UNTAGGED_VERSION,
    ErrorNumber,
)
from ..hdl.spec.stag import Access
from .scenario import Scenario, tagged, untagged

STREAM, PD = 3, 7
STAG, TO, LENGTH, ADDRESS = 0x0012_3407, 0x1000_0000_0F03, 1000, 4096 + 13
#: MSN of the first buffer, and octets of each buffer: the MSN wraps between the two.
MSN, BUFFER = 0xFFFFFFFF, 100
CASES: dict[str, tuple[ErrorNumber, Callable[[Scenario], None]]] = {}


def case(number: ErrorNumber) -> Callable[[Callable[[Scenario], None]], Callable[[Scenario], None]]:
    def add(build: Callable[[Scenario], None]) -> Callable[[Scenario], None]:
        CASES[build.__name__] = number, build
        return build

    return add


def scenario_of(name: str) -> Scenario:
    """Returns the scenario of a case: the wrong packet, and a right one after it."""
    scenario = Scenario()
    scenario.region(STAG, TO, LENGTH, ADDRESS, pd=PD)
    scenario.stream(STREAM, pd=PD)
    scenario.queue(STREAM, 0, MSN)
    for address in (6001, 7001):
        scenario.buffer(STREAM, 0, BUFFER, address, cookie=address)
    scenario.queue(STREAM, 1)
    CASES[name][1](scenario)
    # RFC 5041 section 7.1: "DDP MUST silently drop any subsequent incoming DDP Segments."
    scenario.packet(STREAM, tagged(STAG, TO, b"too late"))
    scenario.packet(STREAM, untagged(b"too late", msn=MSN))
    return scenario


# RFC 5041 section 7.1, tagged, check 1: "The STag is valid."


@case(INVALID_STAG)
def invalid_stag(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG + (1 << 8), TO, b"payload"))


@case(INVALID_STAG)
def another_stag_of_the_same_entry(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG + (1024 << 8), TO, b"payload"))


@case(INVALID_STAG)
def wrong_key(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG ^ 0x80, TO, b"payload"))


@case(INVALID_STAG)
def revoked_stag(s: Scenario) -> None:
    s.revoke(s.region(0x777700, TO, 64, 9000, pd=PD))
    s.packet(STREAM, tagged(0x777700, TO, b"payload"))


# Check 2: "The STag has an associated buffer that allows Placement of the payload."


@case(INVALID_STAG)
def no_write_access(s: Scenario) -> None:
    s.region(0x777700, TO, 64, 9000, pd=PD, access=Access.REMOTE_READ)
    s.packet(STREAM, tagged(0x777700, TO, b"payload"))


# Section 8.2: association by Protection Domain, or with one stream.


@case(STAG_NOT_ASSOCIATED)
def wrong_protection_domain(s: Scenario) -> None:
    s.region(0x777700, TO, 64, 9000, pd=PD + 1)
    s.packet(STREAM, tagged(0x777700, TO, b"payload"))


@case(STAG_NOT_ASSOCIATED)
def wrong_stream(s: Scenario) -> None:
    s.region(0x777700, TO, 64, 9000, stream=STREAM + 1)
    s.packet(STREAM, tagged(0x777700, TO, b"payload"))


@case(STAG_NOT_ASSOCIATED)
def bound_to_a_stream_with_the_number_of_the_domain(s: Scenario) -> None:
    s.region(0x777700, TO, 64, 9000, stream=PD)
    s.packet(STREAM, tagged(0x777700, TO, b"payload"))


# Check 3: "The TO falls in the range of legal offsets for the STag."


@case(BASE_OR_BOUNDS)
def one_octet_before(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG, TO - 1, b"payload"))


@case(BASE_OR_BOUNDS)
def just_past_the_end(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG, TO + LENGTH, b"p"))


# Check 4: "The sum of the DDP Segment payload length and the TO falls in the range of legal offsets
# for the STag."


@case(BASE_OR_BOUNDS)
def one_octet_past(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG, TO + LENGTH - 6, b"payload"))


@case(BASE_OR_BOUNDS)
def one_octet_too_long(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG, TO, bytes(LENGTH + 1)))


# Check 5: "A 64-bit unsigned sum of the DDP Segment payload length and the TO does not wrap."


@case(TO_WRAP)
def to_wrap(s: Scenario) -> None:
    s.region(0x777700, (1 << 64) - 64, 64, 9000, pd=PD)
    s.packet(STREAM, tagged(0x777700, (1 << 64) - 6, b"payload"))


# Section 4.1, on DV: "This field MUST be set to one."


@case(TAGGED_VERSION)
def wrong_version(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG, TO, b"payload", version=2))


@case(TAGGED_VERSION)
def wrong_version_comes_before_invalid_stag(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG + (1 << 8), TO, b"payload", version=0))


@case(UNTAGGED_VERSION)
def wrong_version_untagged(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", version=3))


@case(UNTAGGED_VERSION)
def wrong_version_comes_before_invalid_qn(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", qn=4, version=0))


# Section 7.1, untagged, check 1: "The QN is valid for this stream."


@case(INVALID_QN)
def queue_number_past_the_last(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", qn=4, msn=MSN))


@case(INVALID_QN)
def queue_number_with_an_upper_bit(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", qn=1 << 31, msn=MSN))


@case(INVALID_QN)
def queue_that_is_closed(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", qn=2))


@case(INVALID_QN)
def queue_of_another_stream(s: Scenario) -> None:
    s.stream(STREAM + 1, pd=PD)
    s.queue(STREAM + 1, 3)
    s.buffer(STREAM + 1, 3, BUFFER, 8001)
    s.packet(STREAM, untagged(b"payload", qn=3))


# Check 2: "The QN and MSN have an associated buffer that allows Placement of the payload."


@case(NO_BUFFER)
def queue_without_a_buffer(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", qn=1))


@case(NO_BUFFER)
def one_message_past_the_last_buffer(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", msn=1))


@case(NO_BUFFER)
def no_buffer_for_a_message_without_octets(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"", qn=1))


@case(NO_BUFFER)
def as_far_ahead_as_a_message_can_be(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", msn=MSN + (1 << 31) - 1 & 0xFFFFFFFF))


# Check 5: "The Message Sequence Number falls in the range of legal Message Sequence Numbers".
# Messages before the first buffer were completed.


@case(MSN_RANGE)
def one_message_behind_the_first_buffer(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", msn=MSN - 1))


@case(MSN_RANGE)
def as_far_behind_as_a_message_can_be(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", msn=MSN + (1 << 31) & 0xFFFFFFFF))


@case(MSN_RANGE)
def behind_in_a_queue_without_a_buffer(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", qn=1, msn=0))


# Check 3: "The MO falls in the range of legal offsets associated with the Untagged Buffer."


@case(INVALID_MO)
def offset_past_the_end(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", msn=MSN, mo=BUFFER + 1))


@case(INVALID_MO)
def offset_past_the_end_without_octets(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"", msn=MSN, mo=BUFFER + 1))


@case(INVALID_MO)
def offset_that_wraps(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", msn=MSN, mo=0xFFFFFFFD))


# Check 4: "The sum of the DDP Segment payload length and the MO falls in the range of legal offsets
# associated with the Untagged Buffer."


@case(MESSAGE_TOO_LONG)
def message_one_octet_too_long(s: Scenario) -> None:
    s.packet(STREAM, untagged(bytes(BUFFER + 1), msn=MSN))


@case(MESSAGE_TOO_LONG)
def one_octet_past_the_buffer(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"payload", msn=MSN, mo=BUFFER - 6, last=False))


@case(MESSAGE_TOO_LONG)
def an_octet_just_past_the_buffer(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"p", msn=MSN, mo=BUFFER))


# Section 3, item 6: nothing is placed before the LLP has found the digest good.


@case(LLP_CRC)
def bad_crc(s: Scenario) -> None:
    def spoil(octets: bytearray) -> None:
        octets[-1] ^= 0x01

    s.packet(STREAM, tagged(STAG, TO, b"payload"), spoil=spoil)


@case(LLP_CRC)
def bad_payload(s: Scenario) -> None:
    def spoil(octets: bytearray) -> None:
        octets[500] ^= 0x10

    s.packet(STREAM, tagged(STAG, TO, bytes(900)), spoil=spoil)


@case(LLP_CRC)
def bad_crc_comes_before_invalid_stag(s: Scenario) -> None:
    def spoil(octets: bytearray) -> None:
        octets[5] ^= 0x80

    s.packet(STREAM, tagged(STAG, TO, b"payload"), spoil=spoil)


@case(LLP_FRAMING)
def truncated_header(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG, TO, b"")[:13])


@case(LLP_FRAMING)
def no_header(s: Scenario) -> None:
    s.packet(STREAM, b"")


@case(LLP_FRAMING)
def truncated_untagged_header(s: Scenario) -> None:
    s.packet(STREAM, untagged(b"")[:17])


@case(LLP_FRAMING)
def truncated_fpdu(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG, TO, bytes(900)), cut=600)


@case(LLP_FRAMING)
def truncated_by_a_word(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG, TO, b"payload"), cut=24)


@case(LLP_FRAMING)
def truncated_inside_the_header(s: Scenario) -> None:
    s.packet(STREAM, tagged(STAG, TO, b"payload"), cut=8)
