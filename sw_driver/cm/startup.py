"""The frames of MPA's start-up (RFC 5044 section 7.1, RFC 6581 section 9).

The driver has its own definitions, as the golden model has, so that no mistake is shared.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Flag, auto
from typing import NamedTuple

from ..base.errors import InvalidRequest
from .errors import InvalidStartup, PrivateDataTooLong

__all__ = [
    "BEGINS",
    "MOST_PRIVATE",
    "UNSAID",
    "Answer",
    "Enhanced",
    "Rtr",
    "StartupFrame",
    "answer_to",
    "least",
    "said",
]

#: RFC 5044 section 7.1.1: the most octets of private data. RFC 6581 takes four of them.
MOST_PRIVATE = 512
#: RFC 6581 section 9.1: the value of an IRD or ORD that is not negotiated.
UNSAID = 0x3FFF
_REQUEST, _REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
_HEADER = struct.Struct(">16sBBH")
_LIMITS = struct.Struct(">HH")
#: The flags M, C, R and S of the header.
_MARKERS, _CRC, _REJECT, _ENHANCED = 0x80, 0x40, 0x20, 0x10
#: The control flags above IRD (A, B) and above ORD (C, D).
_HIGH, _LOW = 0x8000, 0x4000


class Rtr(Flag):
    """Messages of no octets by which an initiator shows that it can receive (RFC 6581
    section 9.2).
    """

    WRITE = auto()
    READ = auto()
    SEND = auto()


#: The messages that a peer may begin with unless the program names others.
BEGINS = Rtr.WRITE | Rtr.READ


@dataclass(frozen=True)
class Enhanced:
    """The fields of RFC 6581.

    Parameters
    ----------
    ird, ord
        The most RDMA Reads that may be outstanding, inbound and outbound.
    peer_to_peer
        A: either side may send first.
    rtr
        B, C, D: the ready-to-receive messages.
    """

    ird: int
    ord: int
    peer_to_peer: bool = False
    rtr: Rtr = Rtr(0)

    def encode(self) -> bytes:
        """Returns the fields' octets."""
        return _LIMITS.pack(
            _HIGH * self.peer_to_peer | _LOW * (Rtr.SEND in self.rtr) | self.ird,
            _HIGH * (Rtr.WRITE in self.rtr) | _LOW * (Rtr.READ in self.rtr) | self.ord,
        )

    @classmethod
    def decode(cls, octets: bytes) -> Enhanced:
        """Reads the fields. Without flag A the other flags are ignored (RFC 6581 section 9.1).

        Raises :exc:`InvalidStartup` if there are fewer than four octets.
        """
        if len(octets) < _LIMITS.size:
            raise InvalidStartup(
                "the peer's private data must hold the four octets of IRD and ORD first, not"
                f" {len(octets)}"
            )
        first, second = _LIMITS.unpack_from(octets)
        rtr = Rtr(0)
        if first & _HIGH:
            offered = {Rtr.SEND: first & _LOW, Rtr.WRITE: second & _HIGH, Rtr.READ: second & _LOW}
            rtr = Rtr(sum(each.value for each, there in offered.items() if there))
        return cls(first & UNSAID, second & UNSAID, bool(first & _HIGH), rtr)


def said(limit: int) -> int | None:
    """Returns a limit of the peer, or None if the peer leaves it open."""
    return None if limit == UNSAID else limit


def least(ours: int, theirs: int) -> int:
    """Returns the lower of two limits; the peer may have left its own open."""
    return ours if theirs == UNSAID else min(ours, theirs)


class Answer(NamedTuple):
    """A responder's IRD and ORD after a request, and the fields of its reply."""

    ird: int
    ord: int
    fields: Enhanced


def answer_to(asked: Enhanced, ird: int, ord: int, rtr: Rtr) -> Answer:
    """Returns a responder's answer to the fields of a request (RFC 6581 sections 9.1 and 9.2).

    An MPA Reply Frame that accepts the request has these fields, and so has one that refuses it.

    Parameters
    ----------
    asked
        The fields of the request.
    ird, ord
        The responder's own limits.
    rtr
        Peer to peer: the messages that the peer may begin with.

    Raises
    ------
    InvalidRequest
        The messages in ``rtr`` all need a higher IRD.
    """
    named = _named(asked.rtr, rtr if ird else rtr & ~Rtr.READ) if asked.peer_to_peer else Rtr(0)
    ird, ord = least(ird, asked.ord), least(ord, asked.ird)
    # A Read uses one of the IRD, even if the peer asks for none.
    ird = max(ird, int(Rtr.READ in named))
    fields = Enhanced(
        ird=UNSAID if asked.ord == UNSAID else ird,
        ord=UNSAID if asked.ird == UNSAID else ord,
        peer_to_peer=asked.peer_to_peer,
        rtr=named,
    )
    return Answer(ird, ord, fields)


def _named(offered: Rtr, possible: Rtr) -> Rtr:
    """Returns the messages that a reply names (RFC 6581 section 9.2).

    A Send has a buffer, which stays in the queue if the peer begins with another message. So a
    Send is named alone.
    """
    if not possible:
        raise InvalidRequest("rtr must have a Write or a Send, because ird is 0")
    named = possible & offered or possible
    return named & ~Rtr.SEND or named


@dataclass(frozen=True, kw_only=True)
class StartupFrame:
    """An MPA Request Frame or MPA Reply Frame.

    Parameters
    ----------
    reply
        True for a Reply Frame, False for a Request Frame.
    revision
        1 (RFC 5044) or 2 (RFC 6581).
    crc, markers
        The sender of this frame wants CRCs, or markers in the stream that it receives.
    reject
        In a reply: the connection is refused. In a request the bit of that meaning is zero, and
        is not checked on reception (RFC 5044 section 7.1.1).
    enhanced
        The fields of RFC 6581, which only a frame of revision 2 may have.
    private_data
        The ULP's octets.
    """

    reply: bool = False
    revision: int = 1
    crc: bool = True
    markers: bool = False
    reject: bool = False
    enhanced: Enhanced | None = None
    private_data: bytes = b""

    def encode(self) -> bytes:
        """Returns the frame's octets."""
        private = self.private_data
        if self.enhanced is not None:
            private = self.enhanced.encode() + private
        if len(private) > MOST_PRIVATE:
            most = MOST_PRIVATE - len(private) + len(self.private_data)
            raise PrivateDataTooLong(
                f"private data must be at most {most} octets in MPA revision {self.revision},"
                f" not {len(self.private_data)}: send the rest as a message"
            )
        flags = _MARKERS * self.markers | _CRC * self.crc
        flags |= _REJECT * (self.reply and self.reject)
        flags |= _ENHANCED * (self.enhanced is not None)
        key = _REPLY if self.reply else _REQUEST
        return _HEADER.pack(key, flags, self.revision, len(private)) + private

    @classmethod
    def parse(cls, octets: bytes) -> tuple[StartupFrame, int] | None:
        """Reads a frame from the start of a TCP stream.

        Returns
        -------
        tuple or None
            The frame, and how many octets it has; None where more octets are needed.

        Raises
        ------
        InvalidStartup
            These octets do not begin a start-up frame.
        """
        key = octets[:16]
        if not (_REQUEST.startswith(key) or _REPLY.startswith(key)):
            raise InvalidStartup(
                "an MPA stream must begin with an MPA Request or Reply Frame, not with"
                f" {key.hex(' ')}: check that the peer speaks iWARP at this port"
            )
        if len(octets) < _HEADER.size:
            return None
        key, flags, revision, length = _HEADER.unpack_from(octets)
        if revision not in (1, 2):
            raise InvalidStartup(f"MPA revision must be 1 or 2, not {revision}")
        if length > MOST_PRIVATE:
            raise InvalidStartup(
                f"the peer's private data must be at most {MOST_PRIVATE} octets, not {length}"
            )
        end = _HEADER.size + length
        if len(octets) < end:
            return None
        private, enhanced = octets[_HEADER.size : end], None
        if revision == 2 and flags & _ENHANCED:
            enhanced, private = Enhanced.decode(private), private[_LIMITS.size :]
        reply = key == _REPLY
        frame = cls(
            reply=reply, revision=revision, crc=bool(flags & _CRC),
            markers=bool(flags & _MARKERS), reject=reply and bool(flags & _REJECT),
            enhanced=enhanced, private_data=private,
        )  # fmt: skip
        return frame, end
