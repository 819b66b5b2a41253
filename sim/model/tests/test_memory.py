"""STags: registration, association, rights, revocation (RFC 5041 sections 8.2 and 8.3)."""

from __future__ import annotations

import tracemalloc

import pytest
from ddp_rnic.hdl.spec.ddp import INVALID_STAG, STAG_NOT_ASSOCIATED
from ddp_rnic.sim.model.ddp import DataSink, DataSource
from ddp_rnic.sim.model.events import DdpError
from ddp_rnic.sim.model.memory import Access, Memory, Octets, Region
from hypothesis import given
from hypothesis import strategies as st


def place(memory: Memory, stag: int, to: int = 0, *, stream: int = 1, pd: int = 1) -> object:
    """Places one octet; returns None if it was placed, or the number of the error."""
    (segment,) = DataSource(100).tagged(stag, to, b"\x55")
    first = DataSink(memory, stream=stream, pd=pd).receive(segment)[0]
    return first.number if isinstance(first, DdpError) else None


def test_a_revoked_stag_is_invalid_and_its_octets_stay() -> None:
    """8.3.1 item 6: "can no longer modify an Advertised Buffer after the ULP revokes remote access
    rights".
    """
    memory = Memory()
    memory.register(Region(stag=0x1205, to=0, length=4, pd=1))
    assert place(memory, 0x1205) is None
    assert memory.revoke(0x1205)
    assert not memory.revoke(0x1205)
    assert place(memory, 0x1205, 1) == INVALID_STAG
    assert memory.octets(0x1205) == b"\x55\0\0\0"


def test_a_new_key_takes_over_a_revoked_index() -> None:
    memory = Memory()
    memory.register(Region(stag=0x1205, to=0, length=4, pd=1))
    with pytest.raises(ValueError, match="index that is not in use; 0x00001205 has it"):
        memory.register(Region(stag=0x1206, to=0, length=4, pd=1))
    memory.revoke(0x1205)
    memory.register(Region(stag=0x1206, to=0, length=4, pd=1))
    assert place(memory, 0x1205) == INVALID_STAG
    assert place(memory, 0x1206) is None
    assert not memory.revoke(0x1205), "the old key must not revoke the new region"
    assert [region.stag for region in memory] == [0x1205, 0x1206]


def test_revoking_a_stream_takes_its_stags_only() -> None:
    memory = Memory()
    memory.register(Region(stag=0x100, to=0, length=4, stream=1))
    memory.register(Region(stag=0x200, to=0, length=4, stream=2))
    memory.register(Region(stag=0x300, to=0, length=4, pd=1))
    assert [region.stag for region in memory.revoke_stream(1)] == [0x100]
    assert place(memory, 0x100) == INVALID_STAG
    assert place(memory, 0x200, stream=2) is None
    assert place(memory, 0x300) is None


def test_stream_association_ignores_the_protection_domain_and_the_reverse() -> None:
    memory = Memory()
    memory.register(Region(stag=0x100, to=0, length=4, stream=1))
    memory.register(Region(stag=0x300, to=0, length=4, pd=1))
    assert place(memory, 0x100, stream=1, pd=99) is None
    assert place(memory, 0x100, stream=2, pd=1) == STAG_NOT_ASSOCIATED
    assert place(memory, 0x300, stream=99, pd=1) is None
    assert place(memory, 0x300, stream=1, pd=2) == STAG_NOT_ASSOCIATED


def test_rights_can_be_given_and_taken() -> None:
    """8.3.1 item 5: "establish and revoke read, write, or read and write access"."""
    memory = Memory()
    memory.register(Region(stag=0x100, to=0, length=4, pd=1, access=Access.REMOTE_READ))
    assert place(memory, 0x100) == INVALID_STAG
    memory.set_access(0x100, Access.REMOTE_READ | Access.REMOTE_WRITE)
    assert place(memory, 0x100) is None
    memory.set_access(0x100, Access.NONE)
    assert place(memory, 0x100) == INVALID_STAG
    with pytest.raises(KeyError, match="0x00000777 is not valid"):
        memory.set_access(0x777, Access.NONE)


def test_regions_may_share_a_buffer() -> None:
    memory, octets = Memory(), bytearray(4)
    memory.register(Region(stag=0x100, to=0, length=4, pd=1), octets)
    memory.register(Region(stag=0x200, to=1000, length=4, pd=1), octets)
    assert place(memory, 0x200, 1002) is None
    assert memory.octets(0x100) == memory.octets(0x200) == b"\0\0\x55\0"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stag": 1 << 32, "to": 0, "length": 1, "pd": 1}, "STag must be a 32-bit number"),
        ({"stag": 1, "to": 1 << 63, "length": (1 << 63) + 1, "pd": 1}, "below the Tagged Offset 2"),
        ({"stag": 1, "to": -1, "length": 1, "pd": 1}, "below the Tagged Offset 2"),
        ({"stag": 1, "to": 0, "length": 1}, "either a Protection Domain or a DDP Stream"),
        ({"stag": 1, "to": 0, "length": 1, "pd": 1, "stream": 1}, "either a Protection Domain"),
    ],
)
def test_a_region_that_cannot_be_is_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Region(**values)  # type: ignore[arg-type]


def test_a_buffer_must_have_the_regions_length() -> None:
    with pytest.raises(ValueError, match="must hold 4 octets, not 5"):
        Memory().register(Region(stag=1, to=0, length=4, pd=1), bytearray(5))


@given(st.lists(st.tuples(st.integers(0, 3 << 12), st.binary(max_size=9000)), max_size=6))
def test_octets_hold_what_was_written_last_and_zero_elsewhere(
    pieces: list[tuple[int, bytes]],
) -> None:
    octets, expected = Octets(), bytearray(6 << 12)
    for offset, payload in pieces:
        octets.write(offset, payload)
        expected[offset : offset + len(payload)] = payload
    for length in (0, 1, 4095, 4096, 4097, 6 << 12):
        assert octets.read(length) == expected[:length]


def test_octets_that_were_not_written_take_no_memory() -> None:
    tracemalloc.start()
    octets = Octets()
    octets.write((1 << 32) - 3, b"end")
    assert tracemalloc.get_traced_memory()[1] < 1 << 16
    tracemalloc.stop()
