"""MPA streams come out of TCP in order, however the segments arrived."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from ddp_rnic.sim.capture.capture import Assumption, Capture, CaptureError, Direction, capture_of
from ddp_rnic.sim.capture.pcap import Frame
from ddp_rnic.sim.capture.tests.frames import (
    ACK,
    FIN,
    REPLY,
    REQUEST,
    RST,
    SYN,
    A,
    B,
    ethernet,
    first_octet,
    frames,
    handshake,
    tcp_packet,
)
from ddp_rnic.sim.capture.traffic import traffic_of
from ddp_rnic.sim.model.mpa import Enhanced, MpaSender, StartupFrame
from hypothesis import given
from hypothesis import strategies as st

DATA = random.Random(1).randbytes(4000)


def capture(packets: list[bytes]) -> Capture:
    return capture_of(frames(packets), Path("test"))


def to_b(packets: list[bytes]) -> Direction:
    """Returns the initiator's direction of the only connection."""
    (connection,) = capture(packets).connections
    return connection.directions[0]


def segments(pieces: list[tuple[int, int]], start: int = 1000, data: bytes = DATA) -> list[bytes]:
    """Returns segments of ``data`` from A to B, each given as (from, to)."""
    first = first_octet(start)
    return [tcp_packet(A, B, first + low, data[low:high]) for low, high in pieces]


@pytest.mark.parametrize("options", [b"\1\1\1\2", b"\3\3\7\3", b"\3\xff\7\0", b"\3\2\0\0"])
def test_a_syn_with_damaged_options_is_accepted(options: bytes) -> None:
    packets = [*handshake(), tcp_packet(A, B, first_octet(1000), b"FPDU")]
    size, offset = packets[0][:2] + struct.pack(">H", 44), bytes([6 << 4])
    packets[0] = size + packets[0][4:32] + offset + packets[0][33:] + options
    assert to_b(packets).octets == b"FPDU"


def test_a_connection_on_any_port_is_found_with_what_was_negotiated() -> None:
    request = StartupFrame(
        kind="request", crc=False, markers=True, private_data=b"private"
    ).encode()
    reply = StartupFrame(kind="reply", crc=True, markers=False).encode()
    a, b = ("10.0.0.1", 60000), ("10.0.0.2", 80)
    packets = handshake(a, b, request=request, reply=reply)
    packets.append(tcp_packet(b, a, first_octet(5000, reply), b"answer"))
    (connection,) = capture(packets).connections
    assert connection.request.private_data == b"private"
    assert (connection.initiator, connection.responder) == (a, b)
    there, back = connection.directions
    # RFC 5044 section 7.1.1: CRC if either side asks for it, markers for the side that asks for
    # them.
    assert (there.crc, there.markers, back.crc, back.markers) == (True, False, True, True)
    assert back.octets == b"answer" and there.octets == b""
    assert [(chunk.frame, chunk.position) for chunk in back.chunks] == [(6, 0)]


@pytest.mark.parametrize("start", [1000, 0xFFFFFFF0, 0xFFFFFFFF - 2000])
@given(data=st.data())
def test_any_cutting_reordering_and_repeating_gives_the_octets_in_order(
    start: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(DATA) - 1), max_size=12)))
    pieces = list(pairwise([0, *cuts, len(DATA)]))
    more = data.draw(st.lists(st.tuples(st.integers(0, 3999), st.integers(1, 1500)), max_size=6))
    pieces += [(low, min(low + length, len(DATA))) for low, length in more]
    order = data.draw(st.permutations(pieces))
    got = to_b(handshake(starts=(start, 5000)) + segments(order, start))
    assert got.octets == DATA and not got.behind_hole
    # A frame gives exactly the octets that were in order once it had arrived.
    seen: set[int] = set()
    ready = 0
    ends = {}
    for number, (low, high) in enumerate(order, 6):
        seen.update(range(low, high))
        while ready in seen:
            ready += 1
        ends[number] = ready
    assert all(chunk.position + len(chunk.octets) == ends[chunk.frame] for chunk in got.chunks)


def test_octets_after_a_hole_are_not_received() -> None:
    found = capture(handshake() + segments([(0, 100), (200, 300), (250, 400)]))
    assert found.directions[0].octets == DATA[:100]
    assert found.directions[0].behind_hole == 200
    (left,) = found.left_out
    assert str(left).startswith("200 octets (") and "follow octets missing" in left.reason


def test_the_first_copy_of_an_octet_counts() -> None:
    first = first_octet(1000)
    got = to_b([*handshake(), tcp_packet(A, B, first, b"abcd"), tcp_packet(A, B, first, b"XXXXef")])
    assert got.octets == b"abcdef"


def test_directions_are_interleaved_as_they_were() -> None:
    there, back = first_octet(1000), first_octet(5000)
    found = capture(
        [
            *handshake(),
            tcp_packet(A, B, there, b"1"),
            tcp_packet(B, A, back, b"2"),
            tcp_packet(A, B, there + 1, b"3"),
        ]
    )
    chunks = sorted(
        (chunk for each in found.directions for chunk in each.chunks), key=lambda chunk: chunk.frame
    )
    assert [chunk.octets for chunk in chunks] == [b"1", b"2", b"3"]


def test_several_connections_and_ports_that_are_used_again() -> None:
    packets = handshake() + segments([(0, 10)])
    packets += handshake(("10.7.0.3", 1), ("10.7.0.2", 2), (77, 88))
    packets += [tcp_packet(A, B, 0, flags=RST)]
    packets += handshake(starts=(900_000, 12)) + segments([(0, 20)], 900_000)
    found = capture(packets)
    assert [len(each.directions[0].octets) for each in found.connections] == [10, 0, 20]


def test_a_repeated_syn_opens_no_second_connection() -> None:
    packets = handshake()
    assert to_b([packets[0], *packets] + segments([(0, 10)])).octets == DATA[:10]


def test_without_the_syn_the_start_up_frame_is_the_start() -> None:
    packets = handshake()[3:] + segments([(100, 200), (0, 100)])
    assert to_b(packets).octets == DATA[:200]
    # Even if it is not the first one in the capture.
    keep_alive = tcp_packet(A, B, 1000, b"\0")
    assert to_b([keep_alive, *packets]).octets == DATA[:200]


def test_start_up_after_another_protocol_is_found() -> None:
    packets = handshake()[:3]
    packets += [
        tcp_packet(A, B, 1001, b"LOGIN\n" + REQUEST[:7]),
        tcp_packet(B, A, 5001, b"OK\n" + REPLY),
        tcp_packet(A, B, 1001 + 13, REQUEST[7:] + b"first FPDU"),
    ]
    assert to_b(packets).octets == b"first FPDU"


def test_a_capture_that_begins_in_mid_connection_says_so() -> None:
    found = capture(segments([(0, 100)]))
    assert not found.connections
    with pytest.raises(CaptureError, match="begins in mid-connection"):
        found.check()


@pytest.mark.parametrize(
    ("packets", "says"),
    [
        ([], "no frame"),
        (handshake()[:3], "no octet was sent"),
        ([*handshake()[:3], tcp_packet(A, B, 1001, b"GET /")], "no MPA start-up"),
        (handshake()[:4], "no Reply"),
        (handshake(), "no FPDU follows"),
        (
            handshake(reply=StartupFrame(kind="reply", reject=True).encode()) + segments([(0, 9)]),
            "rejects",
        ),
    ],
)
def test_a_capture_without_ddp_says_why(packets: list[bytes], says: str) -> None:
    with pytest.raises(CaptureError, match=says) as error:
        capture(packets).check()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("asks", [True, False])
def test_an_enhanced_frame_and_one_that_is_not_set_no_connection_up(asks: bool) -> None:
    """RFC 6581 section 10: an unenhanced responder closes the connection, and the responder "MUST
    respond with an unenhanced MPA message" to an unenhanced one.
    """
    enhanced = Enhanced(ird=1, ord=1) if asks else None
    request = StartupFrame(kind="request", revision=1 + asks, enhanced=enhanced).encode()
    enhanced = None if asks else Enhanced(ird=1, ord=1)
    reply = StartupFrame(kind="reply", revision=2 - asks, enhanced=enhanced).encode()
    sent = tcp_packet(A, B, first_octet(1000, request), b"FPDU")
    found = capture([*handshake(request=request, reply=reply), sent])
    assert not found.connections
    (left,) = found.left_out
    assert f"only the {'Request' if asks else 'Reply'} is an enhanced frame" in left.reason


def test_frames_of_two_revisions_that_are_not_enhanced_are_played_with_a_note() -> None:
    """RFC 5044 appendix C.1: "The MPA Revision provided in the MPA Request Frame and the MPA Reply
    Frame may differ."
    """
    reply = StartupFrame(kind="reply", revision=2).encode()
    found = capture([*handshake(reply=reply), *segments([(0, 100)])])
    assert found.directions[0].octets == DATA[:100]
    (note,) = found.notes
    assert "Request has revision 1 and the Reply 2, but neither is an enhanced frame" in note


def test_options_that_match_nothing_are_named() -> None:
    whole = [*handshake(), *segments([(0, 100)])]
    said = [Assumption.parse(text) for text in ("fpdu,at=4", "from=10.0.0.9:7", "sctp")]
    found = capture_of(frames(whole), Path("test"), assumptions=said, sctp_ports=[5000, 9899])
    assert [note.split(" lacks")[0] for note in found.notes] == [
        "--assume changes nothing: no TCP stream",
        "--assume changes nothing: no TCP stream from 10.0.0.9:7",
        "--sctp-port 5000: no datagram has this port",
        "--sctp-port 9899: no datagram has this port",
    ]
    used = capture_of(frames(segments([(0, 100)])), Path("test"), assumptions=said[:1])
    assert not any("changes nothing" in note for note in used.notes)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request", REQUEST, REPLY[:15] + b"F\0\0\0\0"]
)
def test_a_request_that_something_else_answers_has_no_connection(answer: bytes, first: int) -> None:
    # RFC 5044 section 7.1.1: "Initiator mode receivers MUST check this field for the same value,
    # and close the connection and report an error locally if any other value is detected."
    found = capture([*handshake(reply=answer), *segments([(0, 100)])][first:])
    assert not found.connections
    (left,) = found.left_out
    assert f"frame {5 - first} answers the MPA Request with something other" in left.reason


@pytest.mark.parametrize(
    "back",
    [
        [],
        [tcp_packet(B, A, 5001, REPLY[:10])],
        [tcp_packet(B, A, 5021, b"FPDU")],  # the Reply before it is lost
    ],
)
def test_a_request_whose_reply_may_be_lost_counts_as_accepted(back: list[bytes]) -> None:
    found = capture([*handshake()[:4], *back, *segments([(0, 100)])])
    assert found.directions[0].octets == DATA[:100]
    assert any("assumed to have accepted" in note for note in found.notes)


def test_a_greeting_before_the_request_is_no_answer_to_it() -> None:
    packets = [*handshake()[:3], tcp_packet(B, A, 5001, b"READY\n"), handshake()[3]]
    found = capture([*packets, tcp_packet(B, A, 5001, b"READY\n"), *segments([(0, 100)])])
    assert found.directions[0].octets == DATA[:100]


def fin(at: int, octets: bytes = b"") -> bytes:
    """Returns a FIN of A after ``at`` octets of its stream, the last of which come with it."""
    sequence = first_octet(1000) + at - len(octets)
    return tcp_packet(A, B, sequence, octets, flags=FIN | ACK)


@pytest.mark.parametrize(("low", "high"), [(100, 200), (101, 200), (50, 200)])
def test_octets_after_a_fin_are_not_received(low: int, high: int) -> None:
    # RFC 9293 section 3.10.7.4: in the states after a FIN, "Ignore the segment text."
    late = segments([(low, high)])
    for ends in ([*segments([(0, 100)]), fin(100)], [fin(100, DATA[:100])]):
        found = capture([*handshake(), *ends, *late])
        assert found.directions[0].octets == DATA[:100] and not found.directions[0].behind_hole
        (left,) = found.left_out
        assert left.count == 1 and "with octets after a FIN" in left.reason


def test_octets_before_a_fin_count_when_they_come_after_it() -> None:
    pieces = segments([(0, 100), (100, 200), (200, 300)])
    last = fin(300, DATA[200:300])
    for order in (
        [last, pieces[1], last, pieces[0]],
        [fin(300), *pieces],
        [pieces[2], last, *pieces],
    ):
        found = capture([*handshake(), *order, fin(300)])
        assert found.directions[0].octets == DATA[:300] and not found.left_out
    waiting = segments([(250, 400), (0, 100)])
    found = capture([*handshake(), waiting[0], fin(300), waiting[1], *segments([(100, 280)])])
    assert found.directions[0].octets == DATA[:300]
    assert "1 TCP segment" in str(found.left_out[0])


def test_a_fin_that_its_receiver_does_not_accept_ends_nothing() -> None:
    spoilt = bytearray(fin(100))
    spoilt[38] ^= 1  # the Urgent Pointer
    taken = tcp_packet(B, A, 5021, acknowledged=first_octet(1000) + 200)
    pieces = segments([(0, 100), (100, 200)])
    for packets in (
        [*pieces, fin(100), *segments([(200, 300)])],  # octets after it have come
        [pieces[0], bytes(spoilt), pieces[1], *segments([(200, 300)])],
        [pieces[0], fin(100), pieces[1], taken, *segments([(200, 300)])],
    ):
        found = capture([*handshake(), *packets])
        assert found.directions[0].octets == DATA[:300] and not found.left_out


@pytest.mark.parametrize(
    ("packets", "says"),
    [
        ([], "the capture ends in this FPDU"),
        ([fin(100)], "the FIN in frame 7 leaves"),
        ([tcp_packet(A, B, first_octet(1000) + 100, flags=RST)], "the reset in frame 7 leaves"),
        (segments([(200, 300)]), "octets missing from the capture leave"),
        ([fin(200)], "octets missing from the capture leave"),
    ],
)
def test_the_reason_why_an_fpdu_is_unfinished_is_named(packets: list[bytes], says: str) -> None:
    fpdu = segments([(0, 100)], data=MpaSender().send(DATA[:1000]))
    elsewhere = handshake(("10.7.0.3", 1), ("10.7.0.2", 2))
    (left,) = traffic_of(capture([*handshake(), *fpdu, *packets, *elsewhere])).left_out
    assert left.count == 100 and says in left.reason


def test_octets_after_a_reset_are_not_received() -> None:
    packets = handshake() + segments([(0, 100)])
    packets.append(tcp_packet(B, A, 5021, flags=RST | ACK))
    assert to_b(packets + segments([(100, 200)])).octets == DATA[:100]


def test_a_segment_with_a_bad_checksum_is_not_received() -> None:
    good = segments([(0, 100), (100, 200)])
    spoilt = bytearray(good[0])
    spoilt[60] ^= 1
    assert to_b([*handshake(), bytes(spoilt), *good]).octets == DATA[:200]
    # Its receiver dropped it, if it acknowledges only earlier octets.
    refused = tcp_packet(B, A, 5021, acknowledged=first_octet(1000))
    found = capture([*handshake(), bytes(spoilt), good[1], refused])
    assert found.directions[0].octets == b""
    assert [left.count for left in found.left_out] == [100, 1]
    assert "a wrong checksum" in found.left_out[1].reason


def test_a_segment_with_a_bad_checksum_counts_if_its_receiver_acknowledges_it() -> None:
    # LRO and GRO leave merged frames with the checksum of the first.
    good = segments([(0, 100), (100, 200)])
    merged = bytearray(good[0])
    merged[36] ^= 0x55
    taken = tcp_packet(B, A, 5021, acknowledged=first_octet(1000) + 200)
    for rest in ([], [taken]):
        found = capture([*handshake(), bytes(merged), good[1], *rest])
        assert found.directions[0].octets == DATA[:200] and not found.left_out
        assert "1 TCP segment with a wrong checksum, played" in found.notes[0]


def test_checksums_left_to_the_network_card_do_not_matter() -> None:
    pseudo = b"\x0a\x07\x00\x01\x0a\x07\x00\x02" + struct.pack(">HH", 6, 120)
    partial = sum(struct.unpack(">6H", pseudo))
    for field in (partial % 0xFFFF, 0):
        packet = bytearray(segments([(0, 100)])[0])
        packet[36:38] = struct.pack(">H", field)
        assert to_b([*handshake(), bytes(packet)]).octets == DATA[:100]
    # A card that fills in other values: then no segment of this direction has a good checksum.
    packets = [bytearray(packet) for packet in handshake() + segments([(0, 100)])]
    for packet in packets:
        packet[36:38] = b"\x12\x34"
    assert to_b([bytes(packet) for packet in packets]).octets == DATA[:100]


def test_other_traffic_is_passed_over() -> None:
    packets = handshake() + segments([(0, 100)])
    fragment = bytearray(tcp_packet(A, B, first_octet(1000) + 100, DATA[100:200]))
    fragment[6:8] = b"\x20\x00"
    noise = [
        Frame(0, 0, 1, octets)
        for octets in (
            b"",
            bytes(60),
            b"\xff" * 14,
            ethernet(bytes(fragment)),
            bytes(12) + b"\x08\x06" + bytes(28),
            ethernet(packets[0][:9] + b"\x11" + packets[0][10:]),
        )
    ]
    found = capture_of([*noise, *frames(packets), *noise], Path("test"))
    assert found.directions[0].octets == DATA[:100]
    assert {str(left) for left in found.left_out} == {
        "2 frames (a cut Ethernet header)",
        "2 frames (a cut LLC header)",
        "2 frames (EtherType 0xffff)",
        "2 frames (ARP)",
        "2 frames (UDP)",
        "2 IP fragments (other fragments of these packets are missing)",
    }


def test_a_snapshot_length_leaves_a_hole() -> None:
    short = [
        Frame(frame.number, 0, 1, frame.octets[:200])
        for frame in frames(handshake() + segments([(0, 100), (100, 1000), (1000, 1100)]))
    ]
    found = capture_of(short, Path("test"))
    assert found.directions[0].octets == DATA[: 100 + 200 - 54]
    assert any("snapshot" in left.reason for left in found.left_out)


@given(st.lists(st.binary(max_size=90), max_size=20))
def test_no_frame_makes_the_reader_stumble(octets: list[bytes]) -> None:
    head = tcp_packet(A, B, 1000, flags=SYN)
    for link in (1, 101, 113, 276):
        capture_of([Frame(1, 0, link, each) for each in octets], Path("test"))
        capture_of([Frame(1, 0, 101, head[:20] + each) for each in octets], Path("test"))


def test_frames_with_sctp_are_kept_as_they_are() -> None:
    chunk = struct.pack(">BBHIHHI", 0, 7, 20, 1, 0, 0, 99) + b"data"
    packet = bytearray(tcp_packet(A, B, 0, bytes(12)))
    packet[9] = 132
    packet[20:] = bytes(12) + chunk
    found = capture([bytes(packet)])
    (frame,) = found.sctp
    assert frame.octets == frames([bytes(packet)])[0].octets
    found.check()
