"""Recognises compressed captures and unsupported formats.

A compressed capture is opened decompressed. For an unsupported format the message names the format
and a program that converts the file.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import zlib
from io import BufferedIOBase, RawIOBase
from pathlib import Path
from typing import IO, Any

import zstandard

from .piped import name_of, open_again, piped

#: The exceptions that a damaged compressed file raises.
DAMAGES = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
#: Octets that are given to zstd at a time, because each may become 32,000 octets.
_TAKEN = 1 << 10


class _Unzstd(BufferedIOBase):
    """Reads what zstd has compressed: frames, one after the other.

    zstandard's own reader takes a file that ends within a frame for complete.
    """

    def __init__(self, source: Path | RawIOBase) -> None:
        self._file: Any = source.open("rb") if isinstance(source, Path) else source
        self._next = b""
        self._frame: zstandard.ZstdDecompressionObj | None = None

    def read1(self, size: int = -1, /) -> bytes:
        octets = b""
        while not octets:
            given = self._next or self._file.read(_TAKEN)
            self._next = b""
            if not given:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                break
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            octets = self._frame.decompress(given)
            if self._frame.eof:
                self._next, self._frame = self._frame.unused_data, None
        return octets

    def close(self) -> None:
        self._file.close()
        super().close()


_COMPRESSED: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"\x28\xb5\x2f\xfd": _Unzstd,
    # Skippable frames, with which some programs begin (RFC 8878 section 3.1.2).
    **dict.fromkeys((bytes([0x50 + kind]) + b"\x2a\x4d\x18" for kind in range(16)), _Unzstd),
}
#: The first octets of unsupported compressed files and archives: their names, and programs that
#: unpack them.
_PACKED = {
    b"\x04\x22\x4d\x18": ("LZ4-compressed", "lz4 -d"),
    b"\x1f\x9d": ("compressed by compress", "uncompress"),
    b"PK\x03\x04": ("a ZIP archive", "unzip"),
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "7z x"),
    b"Rar!": ("a RAR archive", "unrar x"),
}
#: The first octets of other formats of captures, which Wireshark's editcap reads.
_FORMATS = {
    b"snoop\0\0\0": "a snoop capture",
    b"btsnoop\0": "a BTSNOOP capture of Bluetooth",
    b"RTSS": "a capture of Microsoft Network Monitor 1",
    b"GMBU": "a capture of Microsoft Network Monitor 2",
    b"TRSNIFF data": "a capture of the DOS Sniffer",
    b"XCP\0": "a capture of the Windows Sniffer or NetXray",
    b"VL\0\0": "a capture of the Windows Sniffer or NetXray",
    b"\x7fver": "a Peek capture of OmniPeek",
    b"iptrace ": "an iptrace capture of AIX",
    b"TR\0d\0": "a nettl capture of HP-UX",
    b"\x05VNF": "a capture of Visual Networks",
    b"\xaa\xaa\xaa\xaa": "a capture of Accellent 5Views",
    b"\x42\xd2\x00\x34\x12\x66\x22\x88": "a capture of RADCOM WAN/LAN Analyzer",
    b"\x00\x00\x02\x00\x12\x05\x00\x10": "a K12 capture of Tektronix",
    b"\x34\xcd\xb2\xa1": "a modified pcap capture (Kuznetzov's)",
    b"\xa1\xb2\xcd\x34": "a modified pcap capture (Kuznetzov's)",
    b"\xcd\x34\xb2\xa1": "a pcap capture of Nokia or IXIA",
    b"\xa1\xb2\x34\xcd": "a pcap capture of Nokia or IXIA",
    b"\x1c\x00\x01\xac": "an IXIA capture (lcap)",
    b"\xac\x01\x00\x1c": "an IXIA capture (lcap)",
    b"\x1c\x00\x01\xab": "an IXIA capture (lcap)",
    b"\xab\x01\x00\x1c": "an IXIA capture (lcap)",
}
_ERF_HEADER = struct.Struct(">8xBBHHH")


def open_plain(path: Path) -> IO[bytes]:
    """Opens a file or a pipe, decompressed if gzip, bzip2, xz or zstd has compressed it.

    A pipe is read once, and each further call begins at its first octet again.
    """
    with open_again(path) as file:
        start = file.read(8)
    for magic, opened in _COMPRESSED.items():
        if start.startswith(magic):
            given = piped(path)
            return opened(path if given is None else given.open())
    return open_again(path)


def refusal(path: Path, start: bytes) -> str:
    """Returns why a file that begins with ``start``, neither pcap nor pcapng, cannot be read."""
    if not start:
        return f"{name_of(path)} is empty"
    if piped(path):
        return (
            f"{name_of(path)} is not a capture: save its octets as a file, whose name rnic takes,"
            " to learn their format"
        )
    for magic, (name, unpack) in _PACKED.items():
        if start.startswith(magic):
            return f"{path} is {name}, which rnic does not read: unpack it with {unpack}"
    for magic, name in _FORMATS.items():
        if start.startswith(magic):
            return _convert(path, name)
    if _is_erf(start):
        return _convert(path, "a capture in Endace's ERF")
    if start[:1] in (b"<", b"{", b"["):
        return (
            f"{path} is XML or JSON text, not a capture: give the pcap or pcapng file from which"
            " it was made"
        )
    if _is_text(start):
        return (
            f"{path} is text, not a capture: convert a hexadecimal dump with"
            f" text2pcap {path} {path.stem}.pcap; other text has too little information"
        )
    return (
        f"{path} is not a capture, because it begins neither like pcap nor like pcapng; if"
        f" Wireshark reads it, convert it with editcap -F pcap {path} {path.stem}.pcap"
    )


def _convert(path: Path, name: str) -> str:
    return (
        f"{path} is {name}, which rnic does not read: convert it with"
        f" Wireshark's editcap -F pcap {path} {path.stem}.pcap"
    )


def _is_erf(start: bytes) -> bool:
    """Returns True if ERF records follow each other: the length of each leads to the next."""
    at = found = 0
    while at + 16 <= len(start):
        kind, _, length, _, wire = _ERF_HEADER.unpack_from(start, at)
        if not 1 <= kind & 0x7F <= 48 or not 16 <= length or wire > length + 65536:
            return False
        found += 1
        at += length
    return found > 1


def _is_text(start: bytes) -> bool:
    try:
        text = start[: 1 + start.rfind(b"\n")].decode() or start.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character.isspace() for character in text)
