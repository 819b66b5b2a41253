"""The frames of MPA's start-up (RFC 5044 section 7.1, RFC 6581 section 9).

The driver has its own definitions, as the golden model has, so that no mistake is shared.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Flag, auto

from .errors import InvalidStartup, PrivateDataTooLong

__all__ = ["MOST_PRIVATE", "UNSAID", "Enhanced", "Rtr", "StartupFrame"]

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
