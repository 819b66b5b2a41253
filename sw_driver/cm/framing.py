"""Makes FPDUs to send, and cuts received octets into FPDUs (RFC 5044 section 4)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ...hdl.spec.ddp import TAGGED_HEADER, UNTAGGED_HEADER, VERSION
from ..base.checks import flag, integer
from ..base.crc32c import crc32c
from ..verbs.sending import MULPDU

__all__ = ["MULPDU", "Cutter", "Fpdu", "MpaSource", "mulpdu_of", "packed"]

#: Octets of stream from marker to marker (section 4.3), of a marker, of ULPDU_Length, of the CRC.
_SPACING, _MARKER, _LENGTH, _CRC = 512, 4, 2, 4
_TAGGED, _UNTAGGED = struct.Struct(">BBIQ"), struct.Struct(">B5sIII")
_T, _L = 0x80, 0x40


def mulpdu_of(mss: int, *, markers: bool) -> int:
    """Returns the MULPDU for which the longest FPDU fills a TCP segment.

    RFC 5044 section 4.5: "MULPDU = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)" with markers,
    and "MULPDU = EMSS - (6 + EMSS mod 4)" without them.
    """
    markers_most = -(-mss // _SPACING) if markers else 0
    fits = mss - (_LENGTH + _CRC + _MARKER * markers_most + mss % 4)
    return min(max(fits, MULPDU[0]), MULPDU[-1])


def _content(ulpdu: int) -> int:
    """Returns the octets of an FPDU before its CRC: length, ULPDU, PAD to a multiple of four."""
    return _LENGTH + ulpdu + -(_LENGTH + ulpdu) % 4


class MpaSource:
    """Cuts DDP messages into segments and frames each: :class:`~..rdmap.Source`.

    Parameters
    ----------
    mulpdu
        Octets of the longest DDP Segment, from 128 to 64768.
    crc, markers
        The settings that MPA's start-up agreed on for the sending direction.
    """

    def __init__(self, mulpdu: int, *, crc: bool, markers: bool) -> None:
        self._mulpdu = integer("mulpdu", mulpdu, MULPDU[0], MULPDU[-1])
        self._crc, self._markers = flag("crc", crc), flag("markers", markers)
        self._position = 0
        self._msn: dict[int, int] = {}

    def tagged(self, stag: int, to: int, message: bytes, *, rsvdulp: int) -> list[bytes]:
        """Returns the FPDUs of a Tagged Message (RFC 5041 section 4.2)."""
        return [
            self._frame(_TAGGED.pack(_T | _L * last | VERSION, rsvdulp, stag, to + at) + payload)
            for at, payload, last in self._pieces(message, TAGGED_HEADER)
        ]

    def untagged(self, qn: int, message: bytes, *, rsvdulp: int) -> list[bytes]:
        """Returns the FPDUs of an Untagged Message, with the queue's next MSN (RFC 5041
        section 4.3).
        """
        msn = self._msn.get(qn, 1)
        self._msn[qn] = (msn + 1) % (1 << 32)
        ulp = rsvdulp.to_bytes(5, "big")
        return [
            self._frame(_UNTAGGED.pack(_L * last | VERSION, ulp, qn, msn, at) + payload)
            for at, payload, last in self._pieces(message, UNTAGGED_HEADER)
        ]

    def _pieces(self, message: bytes, header: int) -> Iterator[tuple[int, bytes, bool]]:
        """Yields offset and octets of each segment's payload, and whether it is the last one."""
        room = self._mulpdu - header
        for at in range(0, max(len(message), 1), room):
            yield at, message[at : at + room], at + room >= len(message)

    def _frame(self, ulpdu: bytes) -> bytes:
        """Returns an FPDU: length, ULPDU, PAD and CRC, with the markers that stand in it."""
        pad = _content(len(ulpdu)) - _LENGTH - len(ulpdu)
        octets = len(ulpdu).to_bytes(_LENGTH, "big") + ulpdu + bytes(pad + _CRC)
        if self._markers:
            octets = self._marked(octets)
        if self._crc:
            covered = octets[:-_CRC]
            octets = covered + crc32c(covered).to_bytes(_CRC, "little")
        self._position += len(octets)
        return octets

    def _marked(self, octets: bytes) -> bytes:
        """Inserts markers. Each points to the length field of its FPDU (section 4.3)."""
        out, at, taken = bytearray(), self._position, 0
        begin = at + _MARKER * (at % _SPACING == 0)
        while taken < len(octets):
            if at % _SPACING == 0:
                out += struct.pack(">HH", 0, max(at - begin, 0))
                at += _MARKER
            piece = octets[taken : taken + _SPACING - at % _SPACING]
            out += piece
            at += len(piece)
            taken += len(piece)
        return bytes(out)


def packed(fpdus: list[bytes], octets: int) -> Iterator[bytes]:
    """Yields the FPDUs in their order, those joined that together have at most ``octets``.

    RFC 5044 section 5.1: "Multiple FPDUs MAY be packed into a single TCP segment [...] as long as
    they are entirely contained in the TCP segment."
    """
    joined: list[bytes] = []
    room = octets
    for fpdu in fpdus:
        if joined and len(fpdu) > room:
            yield b"".join(joined)
            joined, room = [], octets
        joined.append(fpdu)
        room -= len(fpdu)
    if joined:
        yield b"".join(joined)


class Fpdu(NamedTuple):
    """An FPDU as received.

    Parameters
    ----------
    position
        Position of the FPDU's first octet in the stream after start-up.
    octets
        All its octets, with the markers in it.
    """

    position: int
    octets: bytes


class Cutter:
    """Cuts received octets into FPDUs. The device checks CRCs and contents.

    Parameters
    ----------
    markers
        Whether the stream has markers.
    """

    def __init__(self, *, markers: bool) -> None:
        self._markers = markers
        self._position = 0  # of the buffer's first octet
        self._buffer = bytearray()

    @property
    def within(self) -> bool:
        """True if an FPDU has begun and not ended."""
        return bool(self._buffer)

    def receive(self, octets: bytes) -> list[Fpdu]:
        """Takes octets, and returns the FPDUs that they complete."""
        self._buffer += octets
        fpdus, start = [], 0
        while (size := self._size(start)) is not None and start + size <= len(self._buffer):
            whole = bytes(self._buffer[start : start + size])
            fpdus.append(Fpdu(self._position + start, whole))
            start += size
        del self._buffer[:start]
        self._position += start
        return fpdus

    def _size(self, start: int) -> int | None:
        """Returns the octets of the FPDU at ``start``, or None if its length is not there yet."""
        position = self._position + start
        at = start + _MARKER * (self._markers and position % _SPACING == 0)
        if len(self._buffer) < at + _LENGTH:
            return None
        content = _content(self._buffer[at] << 8 | self._buffer[at + 1]) + _CRC
        before = -position % _SPACING  # octets before the first marker
        if not self._markers or content <= before:
            return content
        # A marker that would follow the last octet belongs to the next FPDU.
        return content + _MARKER * (1 + (content - before - 1) // (_SPACING - _MARKER))
