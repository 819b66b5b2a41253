"""The two DDP Headers, RFC 5041 section 4, and their codec."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Literal

__all__ = ["Header", "TaggedHeader", "UntaggedHeader", "header_length", "is_tagged"]

# Section 4.1, figure 3: |T|L| Rsvd |DV|
_T, _L, _DV = 0x80, 0x40, 0x03


@dataclass(frozen=True)
class TaggedHeader:
    """The header of figure 4: control field, RsvdULP (8 bits), STag, TO.

    ``reserved`` is the 4-bit Rsvd field: zero on transmit, not checked on receive (section 4.1).
    """

    stag: int
    to: int
    last: bool = False
    rsvdulp: int = 0
    version: int = 1
    reserved: int = 0

    tagged: ClassVar[Literal[True]] = True
    size: ClassVar[int] = 14
    _format = struct.Struct(">BBIQ")

    def encode(self) -> bytes:
        """Returns the header's 14 octets."""
        return self._format.pack(_control(self), self.rsvdulp, self.stag, self.to)

    @classmethod
    def decode(cls, octets: bytes) -> TaggedHeader:
        """Reads the header from the start of a segment."""
        control, rsvdulp, stag, to = cls._format.unpack_from(octets)
        return cls(stag, to, bool(control & _L), rsvdulp, control & _DV, control >> 2 & 0xF)


@dataclass(frozen=True)
class UntaggedHeader:
    """The header of figure 5: control field, RsvdULP (40 bits), QN, MSN, MO."""

    qn: int
    msn: int
    mo: int
    last: bool = False
    rsvdulp: int = 0
    version: int = 1
    reserved: int = 0

    tagged: ClassVar[Literal[False]] = False
    size: ClassVar[int] = 18
    _format = struct.Struct(">BBIIII")

    def encode(self) -> bytes:
        """Returns the header's 18 octets."""
        first, rest = self.rsvdulp >> 32, self.rsvdulp & 0xFFFFFFFF
        return self._format.pack(_control(self), first, rest, self.qn, self.msn, self.mo)

    @classmethod
    def decode(cls, octets: bytes) -> UntaggedHeader:
        """Reads the header from the start of a segment."""
        control, first, rest, qn, msn, mo = cls._format.unpack_from(octets)
        return cls(
            qn, msn, mo, bool(control & _L), first << 32 | rest, control & _DV, control >> 2 & 0xF
        )


Header = TaggedHeader | UntaggedHeader


def _control(header: Header) -> int:
    return header.tagged * _T | header.last * _L | header.reserved << 2 | header.version


def is_tagged(segment: bytes) -> bool:
    """Returns the T flag. A segment of no octets has no flag and counts as untagged."""
    return bool(segment) and bool(segment[0] & _T)


def header_length(segment: bytes) -> int:
    """Returns how many octets the header has that the segment's T flag announces."""
    return (TaggedHeader if is_tagged(segment) else UntaggedHeader).size
