"""Computes the CRC32c of SCTP packets (RFC 9260 Appendix A) without other packages."""

from __future__ import annotations

__all__ = ["crc32c"]

#: The Castagnoli polynomial, least significant bit first.
_POLYNOMIAL = 0x82F63B78


def _row(octet: int) -> int:
    for _ in range(8):
        octet = octet >> 1 ^ (_POLYNOMIAL if octet & 1 else 0)
    return octet


_TABLE = tuple(map(_row, range(256)))


def crc32c(octets: bytes) -> int:
    """Returns the CRC32c of ``octets``, as a number. On the wire it is sent low octet first."""
    value = 0xFFFF_FFFF
    for octet in octets:
        value = value >> 8 ^ _TABLE[(value ^ octet) & 0xFF]
    return value ^ 0xFFFF_FFFF
