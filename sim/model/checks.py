"""The checks that a Data Sink makes before Placement (RFC 5041 section 7.1), in their order.

Each check is declared once, with the words of the RFC: the Data Sink makes the checks from these
tables, and a report of a segment lists them from the same tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...hdl.spec.ddp import (
    BASE_OR_BOUNDS,
    INVALID_MO,
    INVALID_QN,
    INVALID_STAG,
    MESSAGE_TOO_LONG,
    MSN_RANGE,
    NO_BUFFER,
    STAG_NOT_ASSOCIATED,
    TAGGED_VERSION,
    TO_WRAP,
    UNTAGGED_VERSION,
    VERSION,
    ErrorNumber,
)
from .header import TaggedHeader, UntaggedHeader
from .memory import Access, Region

__all__ = ["TAGGED", "UNTAGGED", "Check", "TaggedFacts", "UntaggedFacts", "Validation"]


@dataclass(frozen=True)
class TaggedFacts:
    """The facts that the checks of a tagged segment use.

    Parameters
    ----------
    header
        The segment's header.
    length
        Octets of ULP Payload.
    holder
        The valid region that has the STag's index, or None. Its key may be another one.
    stream, pd
        DDP Stream of the segment, and the stream's Protection Domain.
    """

    header: TaggedHeader
    length: int
    holder: Region | None
    stream: int
    pd: int

    @property
    def region(self) -> Region | None:
        """The valid region of the STag, or None. Both index and key must match."""
        found = self.holder
        return found if found is not None and found.stag == self.header.stag else None

    @property
    def found(self) -> Region:
        """The region. It exists once check 1 has passed."""
        assert self.region is not None
        return self.region

    @property
    def end(self) -> int:
        """The sum of TO and payload length, which may exceed 64 bits."""
        return self.header.to + self.length


@dataclass(frozen=True)
class UntaggedFacts:
    """The facts that the checks of an untagged segment use, from its queue as it was then.

    Parameters
    ----------
    header
        The segment's header.
    length
        Octets of ULP Payload.
    first
        MSN of the queue's first available buffer; None if the Queue Number is not valid.
    available
        How many buffers of the queue wait for a message.
    ahead
        The MSN's distance from ``first``, modulo 2^32; negative before it.
    limit
        Octets of the MSN's buffer; None if there is no such buffer.
    """

    header: UntaggedHeader
    length: int
    first: int | None = None
    available: int = 0
    ahead: int = 0
    limit: int | None = None

    @property
    def room(self) -> int:
        """Octets of the buffer. It exists once check 2 has passed."""
        assert self.limit is not None
        return self.limit

    @property
    def end(self) -> int:
        """The sum of MO and payload length."""
        return self.header.mo + self.length


class Check(NamedTuple):
    """A condition that a segment has to meet before Placement.

    Parameters
    ----------
    section
        The section of RFC 5041 that has the condition.
    item
        The condition's number in the section's list; 0 if it is not in a list.
    text
        The RFC's words for the condition.
    number
        The error of a segment that does not meet it.
    holds
        Returns True if the segment meets it. All earlier checks have passed.
    """

    section: str
    item: int
    text: str
    number: ErrorNumber
    holds: Callable[[Any], bool]


_DV = "This field MUST be set to one to indicate the version of the specification described in this\
 document."

#: The checks of a tagged segment; the first that fails determines the error number.
TAGGED: tuple[Check, ...] = (
    Check("4.1", 0, _DV, TAGGED_VERSION, lambda s: s.header.version == VERSION),
    Check(
        "7.1", 1, "The STag is valid for this stream.", INVALID_STAG, lambda s: s.region is not None
    ),
    Check(
        "7.1",
        1,
        "The STag is valid for this stream.",
        STAG_NOT_ASSOCIATED,
        lambda s: s.found.allows(stream=s.stream, pd=s.pd),
    ),
    # Section 7.2 has no error number for this check alone.
    Check(
        "7.1",
        2,
        "The STag has an associated buffer that allows Placement of the payload.",
        INVALID_STAG,
        lambda s: Access.REMOTE_WRITE in s.found.access,
    ),
    Check(
        "7.1",
        3,
        "The TO falls in the range of legal offsets registered for the STag.",
        BASE_OR_BOUNDS,
        lambda s: s.found.to <= s.header.to < s.found.to + s.found.length,
    ),
    # This check precedes check 4, which means nothing for a sum that wrapped. A segment may end
    # exactly at 2^64: hdl.spec.ddp gives the reason.
    Check(
        "7.1",
        5,
        "A 64-bit unsigned sum of the DDP Segment payload length and the TO does not wrap.",
        TO_WRAP,
        lambda s: s.end <= 1 << 64,
    ),
    Check(
        "7.1",
        4,
        "The sum of the DDP Segment payload length and the TO falls in the range of legal offsets"
        " registered for the STag.",
        BASE_OR_BOUNDS,
        lambda s: s.end <= s.found.to + s.found.length,
    ),
)

#: The checks of an untagged segment. An MSN outside the range of check 5 never has a buffer, so
#: that check 2 alone would hide check 5. An MSN below that of the first available buffer belongs to
#: a completed message and fails check 5 ("the lower limit of the Message Sequence Number is defined
#: by whatever DDP Messages have already been completed"). An MSN above that of the last available
#: buffer needs a buffer that the ULP has not posted yet, and fails check 2.
UNTAGGED: tuple[Check, ...] = (
    Check("4.1", 0, _DV, UNTAGGED_VERSION, lambda s: s.header.version == VERSION),
    Check("7.1", 1, "The QN is valid for this stream.", INVALID_QN, lambda s: s.first is not None),
    # The lower limit of the range.
    Check(
        "7.1",
        5,
        "The Message Sequence Number falls in the range of legal Message Sequence Numbers, for the"
        " queue defined by the QN.",
        MSN_RANGE,
        lambda s: s.ahead >= 0,
    ),
    Check(
        "7.1",
        2,
        "The QN and MSN have an associated buffer that allows Placement of the payload.",
        NO_BUFFER,
        lambda s: s.limit is not None,
    ),
    # Checks 3 and 4 name one range, and check 4 allows a sum that equals the length. So the range
    # includes the length: payload at that MO is too long, not misplaced.
    Check(
        "7.1",
        3,
        "The MO falls in the range of legal offsets associated with the Untagged Buffer.",
        INVALID_MO,
        lambda s: s.header.mo <= s.room,
    ),
    Check(
        "7.1",
        4,
        "The sum of the DDP Segment payload length and the MO falls in the range of legal offsets"
        " associated with the Untagged Buffer.",
        MESSAGE_TOO_LONG,
        lambda s: s.end <= s.room,
    ),
)


@dataclass(frozen=True)
class Validation:
    """The result of the checks of a segment.

    Parameters
    ----------
    facts
        The facts that the checks used.
    checks
        The checks that apply to the segment, in their order.
    failed
        The place in ``checks`` of the first check that failed; None if all passed.
    """

    facts: TaggedFacts | UntaggedFacts
    checks: tuple[Check, ...]
    failed: int | None

    @classmethod
    def of(cls, facts: TaggedFacts | UntaggedFacts) -> Validation:
        """Makes the checks, up to the first that fails."""
        checks = UNTAGGED
        if isinstance(facts, TaggedFacts):
            # Section 5.2: STag and TO "MUST NOT be checked for a zero-length Tagged DDP Message".
            checks = TAGGED if facts.length else TAGGED[:1]
        # Section 7.1 asks for the checks of untagged segments with payload. A segment without
        # payload needs its queue and its buffer all the same: its message is delivered there, and
        # its MO may be the length of the message.
        failures = (at for at, check in enumerate(checks) if not check.holds(facts))
        return cls(facts, checks, next(failures, None))

    @property
    def number(self) -> ErrorNumber | None:
        """The error of the check that failed, or None where the segment may be placed."""
        return None if self.failed is None else self.checks[self.failed].number
