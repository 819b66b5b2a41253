"""Tests of the driver's allocators: ranges of memory, page layouts, Steering Tags."""

from __future__ import annotations

import random
import secrets

import pytest
from ddp_rnic.sw_driver.base.errors import InvalidRequest, ResourceExhausted
from ddp_rnic.sw_driver.transports.memory import Arena, Bounce, Extent, finish, lay_out
from ddp_rnic.sw_driver.verbs.tables import HISTORY, StagAllocator
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 4, 64]), st.booleans())))
def test_an_arena_hands_out_ranges_that_do_not_overlap(steps: list[tuple[int, int, bool]]) -> None:
    arena = Arena(100, 1000, "octets")
    used: dict[int, int] = {}
    for length, alignment, frees in steps:
        if frees and used:
            start = next(iter(used))
            del used[start]
            arena.free(start)
            continue
        try:
            start = arena.allocate(length, alignment)
        except ResourceExhausted:
            continue
        assert start % alignment == 0 and 100 <= start and start + length <= 1100
        assert all(start + length <= other or other + used[other] <= start for other in used)
        used[start] = length
    for start in used:
        arena.free(start)
    # Everything is one range again.
    assert arena.allocate(1000) == 100


def test_a_full_arena_says_how_much_is_left() -> None:
    arena = Arena(0, 10, "octets")
    arena.allocate(6)
    with pytest.raises(
        ResourceExhausted, match=r"5 consecutive octets are not free \(4 of 10 are\)"
    ):
        arena.allocate(5)


def test_a_copy_that_cannot_be_made_takes_no_room() -> None:
    def refuse(address: int, octets: bytes) -> None:
        raise OSError("no link")

    arena = Arena(0, 64, "octets")
    with pytest.raises(OSError, match="no link"):
        finish(Bounce.making(memoryview(bytearray(64)), arena, lambda *_: b"", refuse))
    assert arena.allocate(64) == 0


class Board:
    """Memory of a device, and how many octets were read of it."""

    def __init__(self) -> None:
        self.octets = bytearray(20_000)
        self.reads: list[int] = []

    def read(self, address: int, length: int) -> bytes:
        self.reads.append(length)
        return bytes(self.octets[address : address + length])

    def write(self, address: int, octets: bytes) -> None:
        self.octets[address : address + len(octets)] = octets


@given(
    length=st.sampled_from([1, 100, 4096, 4097, 9000]),
    turns=st.lists(
        st.lists(st.tuples(st.booleans(), st.integers(0, 8999), st.integers(1, 300)), max_size=6),
        max_size=4,
    ),
    seed=st.integers(0, 99),
)
def test_a_copy_brings_what_the_device_wrote_and_keeps_what_the_host_wrote(
    length: int, turns: list[list[tuple[bool, int, int]]], seed: int
) -> None:
    """A copy behaves like shared memory; where both write, the device's octets win."""
    rng, board, host = random.Random(seed), Board(), bytearray(length)
    host[:] = rng.randbytes(length)
    arena = Arena(0, 20_000, "octets")
    memory = finish(Bounce.making(memoryview(host), arena, board.read, board.write))
    (extent,) = memory.extents
    shared = bytearray(host)
    for turn in turns:
        theirs: dict[int, int] = {}
        for device, at, count in turn:
            for place in range(at % length, min(at % length + count, length)):
                if device:
                    # A value that differs from the old one, because writing the same value cannot
                    # be noticed.
                    before = board.octets[extent.address + place]
                    theirs[place] = before if place in theirs else (before + 1) % 256
                    board.octets[extent.address + place] = theirs[place]
                else:
                    host[place] = shared[place] = rng.randrange(256)
        for place, octet in theirs.items():
            shared[place] = octet
        memory.pull_written()
        assert host == shared


@given(
    shift=st.integers(12, 21),
    count=st.integers(1, 9),
    offset=st.integers(0, (1 << 21) - 1),
    short=st.integers(0, (1 << 21) - 1),
    seed=st.integers(0, 99),
)
def test_a_layout_leads_to_the_octets_that_the_extents_name(
    shift: int, count: int, offset: int, short: int, seed: int
) -> None:
    size = 1 << shift
    offset, short = offset % size, short % size
    if count == 1 and offset + short >= size:
        short = 0
    pages = [frame * size for frame in random.Random(seed).sample(range(50), count)]
    extents = [Extent(page, size) for page in pages]
    extents[-1] = Extent(pages[-1], size - short)
    extents[0] = Extent(pages[0] + offset, extents[0].length - offset)
    layout = lay_out(extents)
    octets = [page + at for page, length in extents for at in (0, length - 1)]
    places, position = [], 0
    for _, length in extents:
        for at in (position, position + length - 1):
            linear = layout.offset + at
            if layout.pages:
                where = layout.pages[linear >> layout.shift] + linear % (1 << layout.shift)
            else:
                where = linear
            places.append(where)
        position += length
    assert places == octets
    assert layout.shift >= shift or not layout.pages


def test_memory_in_pieces_that_are_no_pages_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="pages of at least 4096 octets"):
        lay_out([Extent(0, 100), Extent(5000, 100)])


def test_steering_tags_name_each_entry_once_and_follow_no_order() -> None:
    allocator = StagAllocator(256, secrets.token_bytes)
    stags = [allocator.take() for _ in range(256)]
    assert sorted(stag >> 8 & 255 for stag in stags) == list(range(256))
    with pytest.raises(ResourceExhausted, match="all 256 Steering Tags"):
        allocator.take()
    entries = [stag >> 8 & 255 for stag in stags]
    followed = sum(b == (a + 1) % 256 for a, b in zip(entries, entries[1:], strict=False))
    # A second draw differs in entries, tags and keys.
    again = StagAllocator(256, secrets.token_bytes)
    others = [again.take() for _ in range(256)]
    assert followed < 20
    assert entries != [stag >> 8 & 255 for stag in others]
    assert len({stag & 255 for stag in stags}) > 100 and len({stag >> 16 for stag in stags}) > 200


def test_a_freed_steering_tag_is_not_issued_soon_again() -> None:
    allocator = StagAllocator(16, random.Random(5).randbytes)
    freed: list[int] = []
    last: dict[int, int] = {}
    for turn in range(3 * HISTORY):
        stag = allocator.take()
        entry = stag >> 8 & 15
        # At least half of the table was freed since.
        assert turn - last.get(entry, -100) > 8
        last[entry] = turn
        allocator.free(stag)
        freed.append(stag)
    seen: dict[int, int] = {}
    for at, stag in enumerate(freed):
        assert at - seen.get(stag, -HISTORY) >= HISTORY
        seen[stag] = at


def test_a_table_that_is_almost_full_goes_on() -> None:
    allocator = StagAllocator(1 << 20, random.Random(6).randbytes)
    allocator._free = allocator._free[:1]
    stags = [allocator.take()]
    for _ in range(9000):
        allocator.free(stags[-1])
        stags.append(allocator.take())
    assert len({stag >> 8 & 0xFFFFF for stag in stags}) == 1
    assert all(stag not in stags[max(at - 2000, 0) : at] for at, stag in enumerate(stags))
