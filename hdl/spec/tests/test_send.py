"""Tests the layouts of the send ring."""

import struct

import pytest
from ddp_rnic.hdl.spec.send import ENTRY, Flag, Kind, Message, Piece
from hypothesis import given
from hypothesis import strategies as st


def number(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


PIECES = st.builds(Piece, number(32), number(20), number(64))
FIELDS = {"rsvdulp": number(40), "qn": number(8), "stag": number(32), "to": number(64)}
FLAGS = st.sampled_from([Flag(value) for value in range(16) if not value & Flag.INLINE])
MESSAGES = st.one_of(
    st.builds(
        Message, st.sampled_from([Kind.TAGGED, Kind.UNTAGGED, Kind.CONTROL]), FLAGS,
        st.lists(PIECES, max_size=30).map(tuple), **FIELDS,
    ),
    st.builds(Message, st.just(Kind.READ), FLAGS, st.tuples(PIECES), **FIELDS),
    st.builds(
        Message, st.sampled_from([Kind.TAGGED, Kind.UNTAGGED, Kind.CONTROL]),
        FLAGS.map(lambda flags: flags | Flag.INLINE), octets=st.binary(max_size=400), **FIELDS,
    ),
)  # fmt: skip


@given(MESSAGES)
def test_a_message_comes_back_from_its_entries(message: Message) -> None:
    entries = message.encode()
    assert Message.decode(entries) == message
    # As few entries as it needs: two pieces or 32 octets in the first, four or 64 in the others.
    room = len(message.octets) + 16 * len(message.pieces) - 32
    assert len(entries) == ENTRY + max(0, -(-room // 64)) * 64 and entries[2] == len(entries) // 64


def test_the_fields_of_a_message_are_where_the_design_has_them() -> None:
    pieces = (Piece(0x101, 5, 1 << 63), Piece(0x202, 6, 7), Piece(0x303, 8, 9))
    message = Message(
        Kind.UNTAGGED, Flag.SIGNALED | Flag.FENCE, pieces, rsvdulp=0x0102030405, qn=3,
        stag=0xA0B0C0D0, to=0x1122334455667788,
    )  # fmt: skip
    head = struct.pack("<BBBBI", 1, 3, 2, 3, 19) + bytes([1, 2, 3, 4, 5, 3, 0, 0])
    head += struct.pack("<IIQ", 0xA0B0C0D0, 0, 0x1122334455667788)
    body = b"".join(struct.pack("<IIQ", *vars(piece).values()) for piece in pieces)
    assert message.encode() == head + body + bytes(48)
    inline = Message(Kind.TAGGED, Flag.INLINE, octets=b"octets of a message").encode()
    assert inline[:8] == bytes.fromhex("0004010013000000")
    assert inline[32:] == b"octets of a message" + bytes(13)


@pytest.mark.parametrize(
    "at, value, complaint",
    [
        (0, 9, "9 is not a valid Kind"),
        (2, 3, "no more entries"),
        (3, 1, "add up to 11, not 5"),
        (4, 12, "add up to 12, not 11"),
        (14, 1, "only zeros"),
        (70, 1, "no more entries"),
    ],
)
def test_entries_that_are_not_valid_are_refused(at: int, value: int, complaint: str) -> None:
    pieces = Piece(1, 5, 0), Piece(2, 6, 0)
    entries = bytearray(Message(Kind.TAGGED, pieces=pieces).encode() + bytes(ENTRY * (at >= 64)))
    entries[at] = value
    if at >= 64:
        entries[2] = 2
    with pytest.raises(ValueError, match=complaint):
        Message.decode(bytes(entries))


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ({"kind": Kind.READ}, "one piece, not 0"),
        ({"kind": Kind.TAGGED, "octets": b"1"}, "pieces, or INLINE"),
        ({"kind": Kind.TAGGED, "flags": Flag.INLINE, "pieces": (Piece(1, 2, 3),)}, "or INLINE"),
        ({"kind": Kind.TAGGED, "pieces": (Piece(1, 2, 3),) * 256}, "pieces must be"),
        ({"kind": Kind.TAGGED, "pieces": (Piece(1, 1 << 31, 3),) * 2}, "length must be"),
        ({"kind": Kind.TAGGED, "to": 1 << 64}, r"to must be from 0 to 2\*\*64 - 1"),
        ({"kind": Kind.TAGGED, "rsvdulp": 1 << 40}, "rsvdulp must be"),
    ],
)
def test_messages_that_no_entry_holds_are_refused(
    arguments: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Message(**arguments).encode()  # type: ignore[arg-type]
