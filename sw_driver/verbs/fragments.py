"""Cuts IP packets into fragments, for chunks that were cut before the path MTU dropped (RFC 791
section 3.2, RFC 8200 section 4.5).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...hdl.spec.path import SendPath

__all__ = ["fragments_of", "room_of"]

_V4, _V6, _UDP, _FRAGMENT = 20, 40, 8, 8
#: The Next Header number of a Fragment header, and the bit that says that more fragments follow.
_NEXT, _MORE = 44, 1 << 13


def room_of(path: SendPath) -> int:
    """Returns the octets of a frame before its IP header."""
    return len(path.headers) - _UDP * path.udp - (_V6 if path.v6 else _V4)


def fragments_of(path: SendPath, frame: bytes, mtu: int, number: int) -> Iterator[bytes]:
    """Yields the frames of the fragments of a frame's IP packet, none of which is longer than the
    MTU.

    ``number`` distinguishes the fragments of one packet from those of others: the receiver may keep
    fragments of a packet that was not whole for a minute.
    """
    begin = room_of(path)
    end = begin + (_V6 if path.v6 else _V4)
    link, ip, body = frame[:begin], frame[begin:end], frame[end:]
    room = (mtu - len(ip) - _FRAGMENT * path.v6) // 8 * 8
    for at in range(0, len(body), room):
        part, more = body[at : at + room], at + room < len(body)
        if path.v6:
            length = (_FRAGMENT + len(part)).to_bytes(2, "big")
            place = (at | more).to_bytes(2, "big") + (number % (1 << 32)).to_bytes(4, "big")
            header = ip[:4] + length + bytes([_NEXT]) + ip[7:] + ip[6:7] + b"\0" + place
        else:
            length = (len(ip) + len(part)).to_bytes(2, "big")
            place = (number % (1 << 16)).to_bytes(2, "big")
            place += (at // 8 | _MORE * more).to_bytes(2, "big")
            header = ip[:2] + length + place + ip[8:10] + b"\0\0" + ip[12:]
            header = header[:10] + _checksum(header) + header[12:]
        yield link + header + part


def _checksum(header: bytes) -> bytes:
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")
