"""Checks the driver's CRC32c against published vectors, and against another implementation."""

from __future__ import annotations

import google_crc32c
import pytest
from ddp_rnic.sw_driver.base.crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("octets", "value"),
    [  # RFC 3720 B.4, which prints the octets in the order of the wire: low octet first.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),  # the check value of the polynomial
        (b"", 0),
    ],
)
def test_published_vectors(octets: bytes, value: int) -> None:
    assert crc32c(octets) == value


@given(st.binary(max_size=300))
def test_any_octets(octets: bytes) -> None:
    assert crc32c(octets) == google_crc32c.value(octets)
