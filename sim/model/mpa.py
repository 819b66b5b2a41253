"""RFC 5044: MPA framing for TCP, with the enhanced start-up of RFC 6581."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import google_crc32c

from ...hdl.spec.ddp import LLP_CRC, LLP_FRAMING, ErrorNumber, ErrorType
from .events import LlpError, ProtocolError
from .header import header_length

__all__ = [
    "MARKER_SPACING",
    "Agreement",
    "Enhanced",
    "Fpdu",
    "MpaReceiver",
    "MpaSender",
    "StartupFrame",
    "crc32c",
    "negotiate",
]

MARKER_SPACING = 512  #: octets of stream from marker to marker, RFC 5044 section 4.3
_MARKER = 4
_LENGTH = 2
_CRC = 4
#: RFC 5044 section 8: "Invalid MPA Request Frame or MPA Response Frame"
INVALID_STARTUP = ErrorNumber(ErrorType.LLP, 0x04)

Kind = Literal["request", "reply"]
_KEYS: dict[bytes, Kind] = {b"MPA ID Req Frame": "request", b"MPA ID Rep Frame": "reply"}


def crc32c(octets: bytes) -> bytes:
    """Returns the digest as transmitted, lowest octet first (RFC 5044 section 4.4)."""
    return struct.pack("<I", google_crc32c.value(octets))


# --- start-up ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Enhanced:
    """RFC 6581 section 9: the fields before the Private Data, |A|B| IRD (14) |C|D| ORD (14)|.

    Parameters
    ----------
    ird, ord
        Inbound and outbound RDMA Read depth.
    peer_to_peer
        A: the connection is peer-to-peer (RFC 6581 section 9.2): either ULP may be the first to
        send.
    rtr_fpdu, rtr_write, rtr_read
        B, C, D: a zero-length Send, RDMA Write or RDMA Read is the ready-to-receive indication.
    """

    ird: int
    ord: int
    peer_to_peer: bool = False
    rtr_fpdu: bool = False
    rtr_write: bool = False
    rtr_read: bool = False

    def encode(self) -> bytes:
        """Returns the four octets."""
        for name, value in (("ird", self.ird), ("ord", self.ord)):
            if not 0 <= value < 1 << 14:
                raise ValueError(f"Enhanced {name} must be a 14-bit number, not {value!r}")
        return struct.pack(
            ">HH",
            self.peer_to_peer << 15 | self.rtr_fpdu << 14 | self.ird,
            self.rtr_write << 15 | self.rtr_read << 14 | self.ord,
        )

    @classmethod
    def decode(cls, octets: bytes) -> Enhanced:
        """Reads the four octets."""
        first, second = struct.unpack_from(">HH", octets)
        return cls(
            ird=first & 0x3FFF,
            ord=second & 0x3FFF,
            peer_to_peer=bool(first >> 15),
            rtr_fpdu=bool(first >> 14 & 1),
            rtr_write=bool(second >> 15),
            rtr_read=bool(second >> 14 & 1),
        )


@dataclass(frozen=True, kw_only=True)
class StartupFrame:
    """An MPA Request or Reply Frame (RFC 5044 section 7.1.1).

    Parameters
    ----------
    kind
        "request" or "reply".
    revision
        1 (RFC 5044) or 2 (RFC 6581).
    markers
        M: the sender of this frame wants markers in the stream that it receives.
    crc
        C: the sender of this frame wants CRCs.
    reject
        R: in a reply, the connection is refused.
    enhanced
        S, revision 2: the fields of RFC 6581, which take the first four octets of the Private Data.
    private_data
        The ULP's octets, without those four.
    """

    kind: Kind
    revision: int = 1
    markers: bool = False
    crc: bool = True
    reject: bool = False
    enhanced: Enhanced | None = None
    private_data: bytes = b""

    MAXIMUM = 512  # section 7.1.1: PD_Length
    _format = struct.Struct(">16sBBH")

    @classmethod
    def parse(cls, octets: bytes) -> tuple[StartupFrame, int] | None:
        """Reads a frame from the start of a TCP stream.

        Returns
        -------
        tuple or None
            The frame and how many octets it has; None where more octets are needed.

        Raises
        ------
        ProtocolError
            These octets do not begin an MPA start-up frame.
        """
        key = octets[:16]
        if not any(known.startswith(key) for known in _KEYS):
            raise ProtocolError(
                "an MPA stream must begin with an MPA Request or Reply Frame, "
                f"not with {octets[:16].hex(' ')}",
                INVALID_STARTUP,
            )
        if len(octets) < cls._format.size:
            return None
        _, flags, revision, length = cls._format.unpack_from(octets)
        if revision not in (1, 2):
            raise ProtocolError(f"MPA revision must be 1 or 2, not {revision}", INVALID_STARTUP)
        if length > cls.MAXIMUM:
            raise ProtocolError(
                f"MPA Private Data must be at most {cls.MAXIMUM} octets, not {length}",
                INVALID_STARTUP,
            )
        end = cls._format.size + length
        if len(octets) < end:
            return None
        private = bytes(octets[cls._format.size : end])
        enhanced = None
        if revision == 2 and flags & 0x10:
            if length < 4:
                raise ProtocolError(
                    "an enhanced MPA frame must hold IRD and ORD in its Private "
                    f"Data, not {length} octets",
                    INVALID_STARTUP,
                )
            enhanced, private = Enhanced.decode(private), private[4:]
        return cls(
            kind=_KEYS[bytes(key)],
            revision=revision,
            markers=bool(flags & 0x80),
            crc=bool(flags & 0x40),
            reject=bool(flags & 0x20),
            enhanced=enhanced,
            private_data=private,
        ), end

    def encode(self) -> bytes:
        """Returns the frame's octets."""
        if self.enhanced is not None and self.revision < 2:
            raise ValueError(f"MPA revision must be 2 for enhanced fields, not {self.revision!r}")
        private = (b"" if self.enhanced is None else self.enhanced.encode()) + self.private_data
        if len(private) > self.MAXIMUM:
            raise ValueError(
                f"MPA Private Data must be at most {self.MAXIMUM} octets, not {len(private)}"
            )
        key = next(key for key, kind in _KEYS.items() if kind == self.kind)
        flags = (
            self.markers << 7 | self.crc << 6 | self.reject << 5 | (self.enhanced is not None) << 4
        )
        return self._format.pack(key, flags, self.revision, len(private)) + private


@dataclass(frozen=True)
class Agreement:
    """The settings of the full operation phase, as two start-up frames determine them."""

    crc: bool
    markers_to_responder: bool
    markers_to_initiator: bool


def negotiate(request: StartupFrame, reply: StartupFrame) -> Agreement:
    """Returns the settings: a CRC if either side wants it, markers toward each side that
    wants them.
    """
    return Agreement(request.crc or reply.crc, reply.markers, request.markers)


# --- full operation phase ------------------------------------------------------------------------


@dataclass(frozen=True)
class Fpdu:
    """A Framed Protocol Data Unit.

    Parameters
    ----------
    ulpdu
        The DDP Segment.
    position
        Stream position of ``raw[0]``, counted from the first octet after start-up.
    raw
        All octets in the stream: header, ULPDU, PAD and CRC, the markers between them, and a marker
        that stands just before the header.
    """

    ulpdu: bytes
    position: int
    raw: bytes


def _stretches(position: int, content: int) -> Iterator[tuple[int, int]]:
    """Yields (position, octets) of each piece of ``content`` between markers at multiples of 512.

    A marker that would follow the last octet belongs to the next FPDU.
    """
    while content:
        if position % MARKER_SPACING == 0:
            position += _MARKER
        piece = min(content, MARKER_SPACING - position % MARKER_SPACING)
        yield position, piece
        position += piece
        content -= piece


def _content(ulpdu: int) -> int:
    """Returns the octets of an FPDU before its CRC: length field, ULPDU, PAD to a multiple
    of four.
    """
    return _LENGTH + ulpdu + -(_LENGTH + ulpdu) % 4


class MpaReceiver:
    """Finds the FPDUs in one direction of a TCP stream, given in order in pieces of any size.

    Parameters
    ----------
    crc
        Whether CRCs are in use. If not, the field is present and is not checked.
    markers
        Whether the stream has markers. Their pointers are not checked (RFC 5044 section 8 leaves
        that open).
    position
        Stream position of the next octet, counted from the end of start-up.
    """

    def __init__(self, *, crc: bool = True, markers: bool = False, position: int = 0) -> None:
        self.crc = crc
        self.markers = markers
        self.position = position
        self.error: LlpError | None = None
        self.dropped = 0  #: octets that came after the error
        self._buffer = bytearray()

    def receive(self, octets: bytes) -> list[Fpdu | LlpError]:
        """Takes octets, and returns the FPDUs that they complete. After an error it drops
        all octets.
        """
        if self.error is not None:
            self.dropped += len(octets)
            return []
        self._buffer += octets
        out: list[Fpdu | LlpError] = []
        start = 0  # the buffer is cut once per call, because a large piece holds many FPDUs
        while (frame := self._frame(start)) is not None:
            out.append(frame)
            start += len(frame.raw)
            if isinstance(frame, LlpError):
                self.error = frame
                self.dropped += len(self._buffer) - start
                start = len(self._buffer)
                break
        del self._buffer[:start]
        self.position += start
        return out

    def close(self) -> list[LlpError]:
        """Takes the end of the stream. An FPDU that is not complete by then is a framing error."""
        if self.error is not None or not self._buffer:
            return []
        raw = bytes(self._buffer)
        text = self._gather(raw, self.position, 1 << 16)
        length = int.from_bytes(text[:_LENGTH], "big")
        segment = text[_LENGTH : _LENGTH + length]
        header = segment[: header_length(segment)]
        self.error = LlpError(LLP_FRAMING, header, length, self.position, raw)
        self._buffer.clear()
        return [self.error]

    def _pieces(self, position: int, content: int) -> list[tuple[int, int]]:
        return list(_stretches(position, content)) if self.markers else [(position, content)]

    def _gather(self, raw: bytes, position: int, content: int) -> bytes:
        """Returns the octets without the markers, as many as are present."""
        return b"".join(
            raw[at - position : at - position + piece]
            for at, piece in self._pieces(position, content)
        )

    def _frame(self, start: int) -> Fpdu | LlpError | None:
        position = self.position + start
        at, _ = self._pieces(position, _LENGTH)[0]
        at += start - position  # in the buffer
        if len(self._buffer) < at + _LENGTH:
            return None
        length = int.from_bytes(self._buffer[at : at + _LENGTH], "big")
        content = _content(length)
        last, piece = self._pieces(position, content + _CRC)[-1]
        size = last + piece - position
        if len(self._buffer) - start < size:
            return None
        raw = bytes(self._buffer[start : start + size])
        ulpdu = self._gather(raw, position, content)[_LENGTH : _LENGTH + length]
        # No marker stands within the CRC: both stand at multiples of four. The CRC covers all
        # earlier octets of the FPDU, markers included, also a marker that stands before the header
        # (RFC 5044 section 4.4).
        if self.crc and crc32c(raw[:-_CRC]) != raw[-_CRC:]:
            return LlpError(LLP_CRC, ulpdu[: header_length(ulpdu)], length, position, raw)
        return Fpdu(ulpdu, position, raw)


class MpaSender:
    """Frames ULPDUs for one direction of a TCP stream after start-up.

    Parameters
    ----------
    crc
        Whether CRCs are in use. If not, the field is sent as zeros.
    markers
        Whether to insert markers.
    position
        Stream position of the first octet to send.
    """

    def __init__(self, *, crc: bool = True, markers: bool = False, position: int = 0) -> None:
        self.crc = crc
        self.markers = markers
        self.position = position

    def send(self, ulpdu: bytes) -> bytes:
        """Returns the octets of the stream for one ULPDU."""
        if len(ulpdu) >= 1 << 16:
            raise ValueError(f"ULPDU must be less than 65536 octets, not {len(ulpdu)}")
        content = struct.pack(">H", len(ulpdu)) + ulpdu
        content += bytes(-len(content) % 4 + _CRC)
        out = bytearray()
        start = self.position  # of the ULPDU_Length field
        if self.markers:
            start += _MARKER if start % MARKER_SPACING == 0 else 0
            for at, piece in _stretches(self.position, len(content)):
                if at != self.position + len(out):
                    # Section 4.3: 16 reserved bits, then FPDUPTR: how many octets lie between the
                    # ULPDU_Length field and the marker. FPDUPTR is zero for a marker just before
                    # that field.
                    pointer = max(0, at - _MARKER - start)
                    if pointer >= 1 << 16:
                        raise ValueError(
                            f"ULPDU of {len(ulpdu)} octets is too long for markers: FPDUPTR would"
                            f" be {pointer}"
                        )
                    out += struct.pack(">HH", 0, pointer)
                out += content[:piece]
                content = content[piece:]
        else:
            out += content
        if self.crc:
            out[-_CRC:] = crc32c(bytes(out[:-_CRC]))
        self.position += len(out)
        return bytes(out)
