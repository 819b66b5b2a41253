"""Reads the frames of pcap and pcapng files, reports the parts of a file that it cannot read, and
writes frames to pcap files.

dpkt has the layout of pcap's headers and the numbers of pcapng's blocks, and writes the files. Its
two readers are not used. They believe every length, so a damaged record ends the capture without a
word, or asks for gigabytes of memory. The one for pcap knows no versions before 2.4, in which the
lengths are exchanged. The one for pcapng knows one section and its first interface, whose byte
order and unit of time it takes for all, and no Simple Packet Block; a comment that is not UTF-8
stops it. Neither reads captures that follow each other in one file. dpkt's objects are used once
for each capture: one for each frame would make the reader 1.4 times slower.

A file is read once, in order, and is never in memory as a whole.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import dpkt
from dpkt import pcapng

from .formats import DAMAGES, open_plain, refusal
from .piped import Unkept, name_of

#: The headers of a file and of its records, and the unit of time, by the first octets of a file.
_PCAP_MAGICS = {
    b"\xd4\xc3\xb2\xa1": (dpkt.pcap.LEFileHdr, dpkt.pcap.LEPktHdr, 1e-6),
    b"\xa1\xb2\xc3\xd4": (dpkt.pcap.FileHdr, dpkt.pcap.PktHdr, 1e-6),
    b"\x4d\x3c\xb2\xa1": (dpkt.pcap.LEFileHdr, dpkt.pcap.LEPktHdr, 1e-9),
    b"\xa1\xb2\x3c\x4d": (dpkt.pcap.FileHdr, dpkt.pcap.PktHdr, 1e-9),
}
_SECTION = pcapng.PCAPNG_BT_SHB.to_bytes(4, "big")
_ORDERS = {
    pcapng.BYTE_ORDER_MAGIC.to_bytes(4, "little"): "<",
    pcapng.BYTE_ORDER_MAGIC.to_bytes(4, "big"): ">",
}
#: The fields before the octets of a packet, by the type of the block.
_PACKETS = {
    pcapng.PCAPNG_BT_EPB: "IIIII",
    pcapng.PCAPNG_BT_PB: "HxxIIII",
    pcapng.PCAPNG_BT_SPB: "I",
}
#: Most octets of a frame, whatever the snapshot length is; libpcap writes no longer frames.
_LONGEST_FRAME = 1 << 18
_LONGEST_BLOCK = 1 << 24
_PIECE = 1 << 16


class CaptureError(ValueError):
    """A file cannot be read as a capture, or has nothing to play. The message is one sentence."""


@dataclass(frozen=True)
class LeftOut:
    """Something of a capture that is not played: a count, the kind of thing counted, and the
    reason.
    """

    count: int
    what: str
    reason: str

    def __str__(self) -> str:
        return f"{counted(self.count, self.what)} ({self.reason})"


def counted(number: int, thing: str) -> str:
    """Returns a number and the thing that it counts, in singular or plural."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Frame:
    """A record of a capture file. Frames are numbered from 1, as in Wireshark."""

    number: int
    time: float
    link: int
    octets: bytes


@dataclass
class Unread:
    """The parts of a file that were not read, and notes about captures that follow each
    other in it.
    """

    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_frames(path: Path, unread: Unread | None = None) -> Iterator[Frame]:
    """Yields the frames of a pcap or pcapng file, in file order.

    A damaged file is read up to the damage. ``unread`` collects the parts that were not read; it is
    complete after the last frame.

    Raises
    ------
    CaptureError
        The file is missing, or is neither pcap nor pcapng.
    """
    with opening(path):
        file = open_plain(path)
    reader = _Reader(file, unread or Unread())
    start = reader.look(4)
    if start not in _PCAP_MAGICS and start != _SECTION:
        start = reader.look(4096)
        file.close()
        reason = refusal(path, start)
        raise CaptureError(f"{name_of(path)}: {reader.damage}" if reader.damage else reason)
    least = (dpkt.pcap.FileHdr if start in _PCAP_MAGICS else pcapng.SectionHeaderBlock).__hdr_len__
    if len(reader.look(least)) < least:
        file.close()
        raise CaptureError(
            f"{name_of(path)} is not a capture: it ends within the header of the file"
        )
    return reader.frames()


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Turns an error of the file system, as a file is opened, into :class:`CaptureError`."""
    try:
        yield
    except FileNotFoundError:
        raise CaptureError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise CaptureError(f"{path} is a directory, not a capture") from None
    except OSError as error:
        raise CaptureError(f"{name_of(path)} cannot be read: {error.strerror}") from None
    except Unkept as error:
        raise CaptureError(str(error)) from None


def write_pcap(frames: Iterable[Frame], path: Path) -> None:
    """Writes frames of one link type as a pcap file with microseconds."""
    frames = list(frames)
    link = frames[0].link if frames else dpkt.pcap.DLT_EN10MB
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = dpkt.pcap.Writer(file, snaplen=_LONGEST_FRAME, linktype=link)
        for frame in frames:
            # Rounded, because dpkt would write the last half of a microsecond as 1000000 of them.
            writer.writepkt(frame.octets, ts=round(frame.time, 6))


class _Damage(Exception):
    """The rest of the file cannot be read; the message says why and where."""


class _Reader:
    """Reads the captures of a file, one after the other."""

    def __init__(self, file: IO[bytes], unread: Unread) -> None:
        self._file = file
        self._unread = unread
        self._piece = b""
        self._at = 0  # how many of the piece's octets were taken
        self._before = 0  # how many octets the earlier pieces had
        self._number = 0
        self.damage = ""  # why the compressed file cannot be read further

    @property
    def _offset(self) -> int:
        return self._before + self._at

    def look(self, count: int) -> bytes:
        """Returns the next ``count`` octets, or fewer at the end of the file, without taking
        them.
        """
        while len(self._piece) - self._at < count and not self.damage:
            try:
                more = self._file.read1(_PIECE)  # type: ignore[attr-defined]
            except DAMAGES as error:
                self.damage = f"its compressed data is damaged: {error}"
                break
            except Unkept as error:
                raise CaptureError(str(error)) from None
            if not more:
                break
            self._before += self._at
            self._piece, self._at = self._piece[self._at :] + more, 0
        return self._piece[self._at : self._at + count]

    def _take(self, count: int, what: str) -> bytes:
        octets = self.look(count)
        if len(octets) < count:
            raise _Damage(
                self.damage or f"the file ends in {what}, after {len(octets)} of {count} octets"
            )
        self._at += count
        return octets

    def frames(self) -> Iterator[Frame]:
        """Yields the frames of all captures in the file."""
        undescribed: Counter[str] = Counter()
        with self._file:
            try:
                while self.look(1):
                    if self._offset:
                        self._unread.notes.append(
                            f"another capture begins at octet {self._offset} of the file, after"
                            f" frame {self._number}: both are read"
                        )
                    if self.look(4) in _PCAP_MAGICS:
                        yield from self._pcap()
                    else:
                        yield from self._pcapng(undescribed)
                if self.damage:
                    raise _Damage(self.damage)
            except _Damage as damage:
                at = self._offset
                rest = self._skip()
                where = "" if self.damage else f", at octet {at}"
                reason = f"the file is damaged after frame {self._number}{where}: {damage}"
                self._unread.left_out.append(
                    LeftOut(rest, "octet", reason) if rest else LeftOut(1, "cut file", reason)
                )
        self._unread.left_out += [
            LeftOut(count, "frame", reason) for reason, count in undescribed.items()
        ]

    def _skip(self) -> int:
        """Reads to the end of the file; returns how many octets that were."""
        start = self._offset
        while octets := self.look(_PIECE):
            self._at += len(octets)
        return self._offset - start

    def _frame(self, time: float, link: int, octets: bytes) -> Frame:
        self._number += 1
        return Frame(self._number, time, link, octets)

    def _pcap(self) -> Iterator[Frame]:
        head = self._take(dpkt.pcap.FileHdr.__hdr_len__, "the header of a capture")
        header, record_header, unit = _PCAP_MAGICS[head[:4]]
        capture, record = header(head), struct.Struct(record_header.__hdr_fmt__)
        minor, link = capture.v_minor, capture.linktype & 0xFFFF
        longest = min(max(capture.snaplen, _LONGEST_FRAME), _LONGEST_BLOCK)
        while octets := self.look(record.size):
            if octets[:4] in _PCAP_MAGICS or octets[:4] == _SECTION:
                return
            what = f"the record of frame {self._number + 1}"
            if len(octets) < record.size:
                self._take(record.size, what)
            if not any(octets):
                raise _Damage(f"{what} is all zeros")
            seconds, fraction, captured, original = record.unpack(octets)
            # Before version 2.3 the two lengths were exchanged; in 2.3 they sometimes are.
            if minor < 3 or (minor == 3 and captured > original):
                captured, original = original, captured
            if captured > longest or fraction * unit >= 1:
                field_ = f"the length {captured}" if captured > longest else (
                    f"{fraction} fractions of a second")  # fmt: skip
                raise _Damage(f"{what} has {field_}")
            if len(whole := self.look(record.size + captured)) < record.size + captured:
                # This is an incomplete last record, or its length is damaged and further records
                # lie within it.
                if captured <= original and len(whole) > record.size and not self.damage:
                    yield self._frame(seconds + fraction * unit, link, whole[record.size :])
                    self._at += len(whole)
                raise _Damage(
                    self.damage
                    or f"{what} has the length {captured}, and the file ends after"
                    f" {len(whole) - record.size} of these octets"
                )
            self._at += len(whole)
            yield self._frame(seconds + fraction * unit, link, whole[record.size :])

    def _pcapng(self, undescribed: Counter[str]) -> Iterator[Frame]:
        order = "<"
        interfaces: list[tuple[int, float, int]] = []  # link, unit of time, snapshot length
        while head := self.look(12):
            if head[:4] in _PCAP_MAGICS:
                return
            block = f"the pcapng block after frame {self._number}"
            if len(head) < 12:
                self._take(12, block)
            if head[:4] == _SECTION:
                if head[8:12] not in _ORDERS:
                    raise _Damage("the header of a section says no byte order")
                order = _ORDERS[head[8:12]]
                interfaces = []
            kind, length = struct.unpack_from(order + "II", head)
            if length < 12 or length % 4 or length > _LONGEST_BLOCK:
                raise _Damage(f"{block} has the length {length}")
            whole = self.look(length)
            if len(whole) < length:
                raise _Damage(
                    self.damage
                    or f"{block} has the length {length}, and the file ends after {len(whole)} of"
                    " these octets"
                )
            if whole[-4:] != whole[4:8]:
                raise _Damage(f"{block} has the length {length}, and ends with another one")
            body = whole[8:-4]
            if kind == pcapng.PCAPNG_BT_IDB and len(body) >= 8:
                link, snaplen = struct.unpack_from(order + "HxxI", body)
                interfaces.append((link, _time_unit(body[8:], order), snaplen))
            elif (form := _PACKETS.get(kind)) is not None:
                size = struct.calcsize(order + form)
                if len(body) < size:
                    raise _Damage(f"{block} is too short for a packet")
                fields = struct.unpack_from(order + form, body)
                interface = 0 if kind == pcapng.PCAPNG_BT_SPB else fields[0]
                if interface >= len(interfaces):
                    self._number += 1
                    undescribed[
                        f"of interface {interface}, which no Interface Description Block describes"
                    ] += 1
                else:
                    link, unit, snaplen = interfaces[interface]
                    if kind == pcapng.PCAPNG_BT_SPB:
                        time, captured = 0.0, min(fields[0], snaplen or _LONGEST_BLOCK)
                    else:
                        time, captured = (fields[1] << 32 | fields[2]) * unit, fields[3]
                    if captured > len(body) - size:
                        raise _Damage(f"{block} has a packet of {captured} octets, which is longer")
                    yield self._frame(time, link, body[size : size + captured])
            self._at += length


def _time_unit(options: bytes, order: str) -> float:
    at = 0
    while at + 4 <= len(options):
        code, length = struct.unpack_from(order + "HH", options, at)
        if code == pcapng.PCAPNG_OPT_ENDOFOPT:
            break
        if code == pcapng.PCAPNG_OPT_IF_TSRESOL and length == 1 and at + 4 < len(options):
            value = options[at + 4]
            return float(2.0 ** -(value & 0x7F) if value & 0x80 else 10.0**-value)
        at += 4 + (length + 3) // 4 * 4
    return 1e-6
