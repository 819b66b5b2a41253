"""Tests of regions from a file, which is checked, and of regions derived from a capture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.capture.tests.streams import (
    READ_REQUEST,
    READ_RESPONSE,
    SEND,
    SEND_INVALIDATE,
    Conversation,
)
from ddp_rnic.sim.replay import regions
from ddp_rnic.sim.replay.regions import (
    Given,
    Queue,
    Region,
    RegionError,
    buffer_lengths,
    derive,
    load_regions,
    refusals,
    stream_ends,
    table_size,
)

A, B = "10.7.0.1", "10.7.0.2"
STAG = 0x90190600
#: siw's Terminate control word, nibbles swapped and flags reversed, and the RFC's own.
SIW_INVALID, SIW_BOUNDS = b"\x11\x00\x03\x00", b"\x11\x01\x03\x00"
RFC_INVALID, RFC_BOUNDS = b"\x11\x00\xc0\x00", b"\x11\x01\xc0\x00"
SIW_NO_BUFFER, RFC_NO_BUFFER = b"\x21\x02\x03\x00", b"\x12\x02\xc0\x00"
RFC_TOO_LONG = b"\x12\x05\xc0\x00"

GOOD = f"""
[[region]]
endpoint = "{B}"
stag = {STAG}
to = 4096
length = 512
"""


QUEUE = f"""
[[queue]]
endpoint = "{B}"
qn = 1
count = 3
"""


def load(tmp_path: Path, text: str, endpoints: list[str] | None = None) -> Given:
    path = tmp_path / "regions.toml"
    path.write_text(text)
    return load_regions(path, endpoints)


# -- the file --


def test_a_region_file_with_all_keys(tmp_path: Path) -> None:
    got, queues = load(
        tmp_path,
        GOOD
        + f"""
[[region]]
endpoint = "FD00::0001"
stag = 0xFFFFFFFF
to = {hex((1 << 64) - 1)}
length = 1
fill = 0xEE
access = "remote read"
after_segment = 3
revoke_after_segment = 9
""",
        [B, "fd00::1"],
    )
    assert got == [
        Region(B, STAG, 4096, 512),
        Region("fd00::1", 0xFFFFFFFF, (1 << 64) - 1, 1, 0xEE, Access.REMOTE_READ, ((3, 9),)),
    ]
    assert queues == []


def test_a_region_file_with_queues(tmp_path: Path) -> None:
    other = QUEUE.replace("qn = 1", "qn = 0") + "length = 64\n"
    regions, queues = load(tmp_path, QUEUE + GOOD + other, [B])
    assert regions == [Region(B, STAG, 4096, 512)]
    assert queues == [Queue(B, 1, 3, 4096), Queue(B, 0, 3, 64)]
    assert load(tmp_path, QUEUE) == Given([], [Queue(B, 1, 3)])


@pytest.mark.parametrize(
    ("access", "rights"),
    [
        ('"remote write"', Access.REMOTE_WRITE),
        ('"remote read"', Access.REMOTE_READ),
        ('"none"', Access.NONE),
        ('"remote read, remote write"', Access.REMOTE_READ | Access.REMOTE_WRITE),
        ('["remote_read", "remote_write"]', Access.REMOTE_READ | Access.REMOTE_WRITE),
    ],
)
def test_access_rights(tmp_path: Path, access: str, rights: Access) -> None:
    (region,), _ = load(tmp_path, GOOD + f"access = {access}")
    assert region.access == rights


def test_one_stag_may_have_regions_one_after_the_other(tmp_path: Path) -> None:
    again = GOOD + "after_segment = 5\n"
    assert len(load(tmp_path, GOOD + "revoke_after_segment = 5\n" + again).regions) == 2


def test_a_region_may_be_of_a_session(tmp_path: Path) -> None:
    first = GOOD + "stream = 3\nsession = 0\n"
    (one, two), _ = load(tmp_path, first + first.replace("session = 0", "session = 1"))
    assert one.session == (3, 0) and two.session == (3, 1) and one.stream is None
    assert str(two).endswith("of SCTP stream 3, session 1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD + "stream = 3", "session is missing"),
        (GOOD + "session = 3", "stream is missing"),
        (GOOD + "stream = 65536\nsession = 0", "stream must be from 0 to 65535"),
        (2 * (GOOD + "stream = 3\nsession = 0"), "overlap by 512 octets"),
        ("region = 3", "double brackets"),
        ("[region]\nstag = 1", "double brackets"),
        ("", "neither a \\[\\[region"),
        ("[queue]\nqn = 1", "queues must be \\[\\[queue\\]\\] tables, with double brackets"),
        (QUEUE + "stag = 3", "queue 1: unknown key 'stag'"),
        (QUEUE.replace("qn = 1", "qn = 4"), "queue 1: qn must be from 0 to 3, not 4"),
        (QUEUE.replace("count = 3", "count = 1.5"), "count must be an integer, not 1.5"),
        (QUEUE.replace("count = 3", ""), "count is missing"),
        (QUEUE + f"length = {1 << 32}", "length must be from 0 to 4294967295"),
        (QUEUE + QUEUE, f"queues 1 and 2: both are {B} Queue Number 1"),
        (QUEUE.replace(B, "server"), "queue 1: endpoint must be an IP address"),
        (GOOD + QUEUE.replace(B, "10.9.9.9"), "queue 1: no stream of the capture arrives at"),
        ("this is not", "not TOML"),
        ("[[regions]]", "not 'regions'"),
        (GOOD + "color = 3", "unknown key 'color'"),
        (GOOD + 'fill = "white"', "fill must be an integer, not 'white'"),
        (GOOD + "fill = true", "fill must be an integer, not True"),
        (GOOD + "fill = 256", "fill must be from 0 to 255, not 256"),
        (GOOD + "access = 3", "access must be a string"),
        (GOOD + 'access = "local"', "access must be remote write"),
        (GOOD + 'access = ""', "access must be remote write"),
        (GOOD + "after_segment = -1", "after_segment must be from 0"),
        (GOOD + "after_segment = 2\nrevoke_after_segment = 1", "before after_segment"),
        (GOOD.replace("stag", "tag"), "unknown key 'tag'"),
        (GOOD.replace("length = 512", ""), "length is missing"),
        (GOOD.replace(str(STAG), str(1 << 32)), "stag must be from 0 to 4294967295"),
        (GOOD.replace("4096", str(1 << 64)), "to must be from 0"),
        (GOOD.replace("4096", str((1 << 64) - 1)), "past the last Tagged Offset"),
        (GOOD.replace(B, "server"), "IP address, not 'server'"),
        (GOOD.replace("512", str(1 << 40)), "can be simulated"),
        (GOOD + GOOD.replace("4096", "4600"), "regions 1 and 2 .* overlap by 8 octets"),
        (GOOD + GOOD.replace("4096", "9000"), "registered together"),
        (GOOD + GOOD.replace(str(STAG), str(STAG + 1)), "one index"),
        (GOOD.replace(B, "10.9.9.9"), "no stream of the capture arrives at 10.9.9.9"),
    ],
)
def test_an_unsound_region_file_is_refused_in_a_sentence(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(RegionError, match=says) as error:
        load(tmp_path, text, [A, B])
    assert "\n" not in str(error.value) and "regions.toml" in str(error.value)


def test_a_missing_region_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RegionError, match="there is no such file: give a region file"):
        load_regions(tmp_path / "nothing.toml")


# -- derivation --


def spans(talk: Conversation) -> list[tuple[str, int, int, int]]:
    return [
        (each.endpoint, each.stag, each.to, each.length) for each in derive(talk.traffic()).regions
    ]


def test_a_stag_written_to_is_a_region_from_the_first_octet_to_the_last() -> None:
    talk = Conversation()
    talk.write(B, STAG, 5000, bytes(100))
    talk.write(B, STAG, 4000, bytes(10))
    talk.write(B, STAG, 1, b"")  # no octet is placed, so the STag is not checked
    talk.write(A, STAG, 7, bytes(3))
    assert spans(talk) == [(B, STAG, 4000, 1100), (A, STAG, 7, 3)]


def test_the_sink_of_a_read_is_a_region_of_the_reader() -> None:
    talk = Conversation()
    talk.read(B, STAG, 1000, 64)
    talk.segment(
        A,
        bytes([0xC1, READ_RESPONSE])
        + STAG.to_bytes(4, "big")
        + (1000).to_bytes(8, "big")
        + bytes(10),
    )
    assert spans(talk) == [(A, STAG, 1000, 64)]


@pytest.mark.parametrize(
    ("invalid", "bounds"), [(SIW_INVALID, SIW_BOUNDS), (RFC_INVALID, RFC_BOUNDS)]
)
def test_a_refused_segment_makes_and_widens_no_region(invalid: bytes, bounds: bytes) -> None:
    talk = Conversation()
    talk.write(B, STAG, 1000, bytes(100))
    refused = talk.write(B, STAG, 1100, bytes(100))
    talk.write(B, STAG, 1200, bytes(100))  # was on its way
    talk.terminate(A, bounds, refused)
    assert spans(talk) == [(B, STAG, 1000, 100)]

    talk = Conversation()
    refused = talk.write(B, STAG, 1000, bytes(100))
    talk.terminate(A, invalid, refused)
    assert spans(talk) == []


def test_a_stag_refused_for_bounds_alone_is_known_to_the_receiver() -> None:
    talk = Conversation()
    refused = talk.write(B, STAG, 1000, bytes(100))
    talk.terminate(A, SIW_BOUNDS, refused)
    assert spans(talk) == [(B, STAG, 1000, 0)]


def test_other_streams_go_on_after_a_refusal() -> None:
    talk = Conversation()
    refused = talk.write(B, STAG, 1000, bytes(100))
    talk.terminate(A, SIW_INVALID, refused)
    talk.write(B, 0x500, 1, bytes(9), connection=1)
    assert spans(talk) == [(B, 0x500, 1, 9)]


def test_what_follows_an_error_of_the_llp_or_the_version_is_no_region() -> None:
    for fault in (b"\xc2", b"\x41", b""):
        talk = Conversation()
        talk.write(B, STAG, 0, bytes(8))
        talk.segment(B, fault + bytes(10))
        talk.write(B, STAG, 100, bytes(8))
        assert spans(talk) == [(B, STAG, 0, 8)]
    talk = Conversation()
    talk.segment(B, talk.write(B, STAG, 0, bytes(8)).ulpdu, spoil=True)
    talk.write(B, STAG, 100, bytes(8))
    assert spans(talk) == [(B, STAG, 0, 8)]


def test_a_send_with_invalidate_ends_a_region_and_a_later_write_begins_it_anew() -> None:
    talk = Conversation()
    talk.write(B, STAG, 0, bytes(8))
    talk.untagged(B, SEND_INVALIDATE, stag=STAG)
    (region,) = derive(talk.traffic()).regions
    assert region.periods == ((0, 2),)
    refused = talk.write(B, STAG, 0, bytes(8))
    talk.terminate(A, SIW_INVALID, refused)
    (region,) = derive(talk.traffic()).regions
    assert region.periods == ((0, 2),)

    talk = Conversation()
    talk.write(B, STAG, 0, bytes(8))
    talk.untagged(B, SEND_INVALIDATE, stag=STAG)
    talk.untagged(B, SEND)
    talk.write(B, STAG, 0, bytes(8))
    (region,) = derive(talk.traffic()).regions
    assert region.periods == ((0, 2), (3, None))


@pytest.mark.parametrize(("qn", "version"), [(1, 1), (2, 1), (3, 1), (0, 2), (0, 3)])
def test_a_message_that_is_no_valid_send_ends_no_region(qn: int, version: int) -> None:
    """RFC 5040 section 4.1, figure 4: Send with Invalidate has Queue Number 0; section 7.2: "The
    RDMA Version MUST be valid."
    """
    talk = Conversation()
    first = talk.write(B, STAG, 0, bytes(8))
    talk.untagged(B, SEND_INVALIDATE & 0x3F | version << 6, qn=qn, stag=STAG)
    talk.write(B, STAG, 8, bytes(8))
    (region,) = derive(talk.traffic()).regions
    assert (region.length, region.periods) == (16, ((0, None),))
    talk.terminate(A, SIW_INVALID, talk.write(B, STAG, 0, bytes(8)))
    (refusal,) = refusals(talk.traffic())
    assert refusal.arrival is first  # no invalidation lies between the two


def test_the_refused_segment_is_the_first_such_after_the_invalidation() -> None:
    talk = Conversation()
    talk.write(B, STAG, 0, bytes(8))
    talk.untagged(B, SEND_INVALIDATE, stag=STAG)
    refused = talk.write(B, STAG, 0, bytes(8))
    talk.terminate(A, SIW_INVALID, refused)
    (refusal,) = refusals(talk.traffic())
    assert refusal.arrival is refused and refusal.code == 0


def test_a_region_that_vanished_unseen_is_revoked_before_the_refused_segment() -> None:
    talk = Conversation()
    talk.write(B, STAG, 0, bytes(8))
    talk.write(B, STAG, 8, bytes(8))
    refused = talk.write(B, STAG, 4, bytes(8))
    talk.terminate(A, SIW_INVALID, refused)
    (region,) = derive(talk.traffic()).regions
    assert region.periods == ((0, 2),) and region.length == 16


def test_a_refusal_without_a_reason_in_the_capture_ends_the_stream() -> None:
    talk = Conversation()
    refused = talk.write(B, STAG, 0, bytes(8))
    talk.terminate(A, SIW_INVALID, refused)
    talk.write(B, STAG, 0, bytes(8), connection=1)  # the same STag is valid for another stream
    found = derive(talk.traffic())
    assert found.ends == {0: 0} and [region.length for region in found.regions] == [8]


def test_the_host_stops_a_stream_whose_untagged_segment_it_refuses() -> None:
    talk = Conversation()
    refused = talk.untagged(B, SEND)
    talk.write(B, STAG, 0, bytes(8))
    talk.terminate(A, b"\x21\x02\x03\x00", refused)
    assert stream_ends(talk.traffic()) == {0: 1}
    assert spans(talk) == []
    # Without a header, the segments before the Terminate count.
    talk = Conversation()
    talk.write(B, STAG, 0, bytes(8))
    talk.terminate(A, b"\x02\xff\x00\x00")
    talk.write(B, STAG, 8, bytes(8))
    assert stream_ends(talk.traffic()) == {0: 1}
    assert spans(talk) == [(B, STAG, 0, 8)]


def test_keys_of_one_index_take_turns() -> None:
    talk = Conversation()
    for key in (1, 2, 1):
        talk.write(B, STAG + key, 64 * key, bytes(8))
    assert [(region.stag - STAG, region.periods) for region in derive(talk.traffic()).regions] == [
        (1, ((0, 1), (2, None))),
        (2, ((1, 2),)),
    ]


def test_a_stag_used_in_distant_places_is_several_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation()
    for to in (1 << 40, 1 << 50, (1 << 40) + 8):
        talk.write(B, STAG, to, bytes(8))
    assert [
        (region.to, region.length, region.periods) for region in derive(talk.traffic()).regions
    ] == [(1 << 40, 16, ((0, 1), (2, None))), (1 << 50, 8, ((1, 2),))]


def test_regions_too_long_to_simulate_are_refused() -> None:
    talk = Conversation()
    for number in range(40):
        talk.write(B, STAG, number << 24, bytes(8))
    with pytest.raises(RegionError, match="can be simulated"):
        derive(talk.traffic())


def test_the_table_grows_until_each_stag_has_an_entry() -> None:
    def region(index: int) -> Region:
        return Region(B, index << 8, 0, 8)

    assert table_size([region(1), region(2)], 1024) == 1024
    assert table_size([region(1), region(1 + 4096)], 1024) == 8192
    assert table_size([region(1), region(1 + (1 << 20))], 1024) == regions.LARGEST_TABLE
    talk = Conversation()
    talk.write(B, 0x100, 0, bytes(8))
    talk.write(B, 0x100 + (4096 << 8), 0, bytes(8))
    assert derive(talk.traffic()).stags == 8192


def test_a_sink_that_is_never_answered_stands_in_no_ones_way() -> None:
    talk = Conversation()
    talk.read(B, STAG + 1, 0, 64)
    assert spans(talk) == []  # no segment arrives at the reader
    talk.write(A, STAG, 0, bytes(8))
    assert spans(talk) == [(A, STAG, 0, 8)]
    talk.read(B, 0x700, 0, 64)
    assert (A, 0x700, 0, 64) in spans(talk)


def test_what_follows_a_message_that_is_not_received_is_no_region() -> None:
    talk = Conversation()
    talk.write(B, STAG, 0, bytes(8))
    talk.untagged(B, SEND, qn=4)
    talk.write(B, STAG, 100, bytes(8))
    assert spans(talk) == [(B, STAG, 0, 8)]
    talk = Conversation()
    talk.write(B, STAG, 0, bytes(8))
    talk.untagged(B, SEND, msn=2)
    talk.write(B, STAG, 100, bytes(8))
    traffic = replace(talk.traffic(), misnumbered={0: 2})
    (region,) = derive(traffic).regions
    assert region.length == 8
    talk = Conversation()
    talk.write(B, STAG, 0, bytes(8))
    refused = talk.untagged(B, SEND_INVALIDATE, stag=STAG)
    talk.terminate(A, RFC_NO_BUFFER, refused)
    (region,) = derive(talk.traffic()).regions
    assert region.periods == ((0, None),)  # an undelivered message invalidates nothing


# -- untagged buffers --


def test_every_message_has_a_buffer_that_is_long_enough() -> None:
    talk = Conversation()
    talk.message(B, SEND, bytes(100), bytes(50))
    talk.untagged(B, SEND)
    talk.untagged(B, READ_REQUEST, bytes(28), qn=1)
    talk.untagged(B, SEND, bytes(7), qn=3, connection=1)
    lengths = buffer_lengths(talk.traffic())
    assert {queue: len(buffers) for queue, buffers in lengths.items()} == {
        (0, 0): 2, (0, 1): 1, (0, 2): 0, (1, 0): 0, (1, 1): 0, (1, 2): 0, (1, 3): 1,
    }  # fmt: skip
    for queue, message, needed in (((0, 0), 0, 150), ((0, 1), 0, 28), ((1, 3), 0, 7)):
        assert needed <= lengths[queue][message] < needed + 65


def test_segments_out_of_order_and_a_stray_offset_do_not_mislead() -> None:
    talk = Conversation()
    talk.untagged(B, SEND, bytes(10), mo=90, last=False)
    talk.untagged(B, SEND, bytes(90))
    talk.untagged(B, SEND, bytes(10), mo=1 << 31)
    talk.untagged(B, SEND, bytes(10), msn=1000)
    (first, second, third) = buffer_lengths(talk.traffic())[0, 0]
    assert 100 <= first < 165 and second <= 64 and third > 0
    talk = Conversation()
    talk.segment(B, talk.untagged(B, SEND, bytes(9)).ulpdu, spoil=True)
    assert len(buffer_lengths(talk.traffic())[0, 0]) == 1


@pytest.mark.parametrize("code", [RFC_NO_BUFFER, SIW_NO_BUFFER, RFC_TOO_LONG])
def test_a_refused_message_has_no_buffer_or_a_short_one(code: bytes) -> None:
    talk = Conversation()
    talk.untagged(B, SEND, bytes(10))
    refused = talk.untagged(B, SEND, bytes(20))
    talk.untagged(B, SEND, bytes(30))  # was on its way
    talk.terminate(A, code, refused)
    lengths = buffer_lengths(talk.traffic())[0, 0]
    assert len(lengths) == (3 if code == RFC_TOO_LONG else 1)
    assert lengths[1:2] in ([], [19])


@pytest.mark.parametrize("code", [RFC_NO_BUFFER, SIW_NO_BUFFER, RFC_TOO_LONG])
def test_a_message_that_is_refused_in_its_midst_had_a_buffer(code: bytes) -> None:
    talk = Conversation()
    refused = talk.message(B, SEND, bytes(100), bytes(50))
    talk.terminate(A, code, refused)
    assert buffer_lengths(talk.traffic())[0, 0] == [149]


def test_given_queues_have_what_is_given_on_each_stream_of_the_host() -> None:
    talk = Conversation()
    for connection in range(2):
        talk.untagged(B, SEND, bytes(10), connection=connection)
    talk.untagged(A, SEND, bytes(10))
    lengths = buffer_lengths(talk.traffic(), [Queue(B, 0, 3, 7), Queue(B, 3, 0)])
    assert lengths[0, 0] == lengths[1, 0] == [7] * 3 and lengths[0, 3] == lengths[1, 3] == []
    assert len(lengths[2, 0]) == 1 and (2, 3) not in lengths


def test_buffers_too_long_to_simulate_are_refused() -> None:
    talk = Conversation()
    talk.untagged(B, SEND)
    with pytest.raises(RegionError, match="can be simulated"):
        buffer_lengths(talk.traffic(), [Queue(B, 0, 2, 1 << 29)])
