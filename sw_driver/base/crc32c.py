"""Computes the CRC32c of MPA and SCTP (RFC 5044 section 4.4, RFC 9260 Appendix A).

The package ``google-crc32c`` does the work where it is installed. Otherwise a table does it, about
a thousand times slower.
"""

from __future__ import annotations

from typing import Any

__all__ = ["crc32c"]

#: The Castagnoli polynomial, least significant bit first.
_POLYNOMIAL = 0x82F63B78


def _row(octet: int) -> int:
    for _ in range(8):
        octet = octet >> 1 ^ (_POLYNOMIAL if octet & 1 else 0)
    return octet


_TABLE = tuple(map(_row, range(256)))


def by_table(octets: bytes) -> int:
    """Returns the CRC32c of ``octets`` without other packages."""
    value = 0xFFFF_FFFF
    for octet in octets:
        value = value >> 8 ^ _TABLE[(value ^ octet) & 0xFF]
    return value ^ 0xFFFF_FFFF


_value: Any
try:
    from google_crc32c import value as _value
except ImportError:
    _value = by_table


def crc32c(octets: bytes) -> int:
    """Returns the CRC32c of ``octets``, as a number. On the wire it is sent low octet first."""
    return int(_value(octets))
