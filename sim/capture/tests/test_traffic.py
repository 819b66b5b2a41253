"""FPDUs are cut at the same places as by the model's MPA."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_rnic.sim.capture.capture import Capture, Chunk, Connection, Direction, Endpoint
from ddp_rnic.sim.capture.streams import Tagged, Untagged, without_markers
from ddp_rnic.sim.capture.tests.streams import Conversation
from ddp_rnic.sim.capture.traffic import cut, fpdu_length, traffic_of
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver, MpaSender, StartupFrame, crc32c
from hypothesis import given
from hypothesis import strategies as st

A, B = Endpoint("10.7.0.1", 1), Endpoint("10.7.0.2", 2)


def direction(octets: bytes, pieces: list[int], markers: bool) -> Direction:
    chunks = []
    at = 0
    for frame, length in enumerate([*pieces, len(octets)], 1):
        if octets[at : at + length]:
            chunks.append(Chunk(frame, 0.0, at, octets[at : at + length]))
        at += length
    return Direction(A, B, True, markers, tuple(chunks))


@given(
    lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=8),
    pieces=st.lists(st.integers(1, 2000), max_size=12),
    markers=st.booleans(),
)
def test_fpdus_are_cut_as_the_models_mpa_cuts_them(
    lengths: list[int], pieces: list[int], markers: bool
) -> None:
    sender = MpaSender(markers=markers)
    ulpdus = [bytes([number]) * length for number, length in enumerate(lengths)]
    octets = b"".join(map(sender.send, ulpdus))
    got = list(cut(direction(octets, pieces, markers)))
    expected = [
        fpdu for fpdu in MpaReceiver(markers=markers).receive(octets) if isinstance(fpdu, Fpdu)
    ]
    assert [(position, raw) for _, position, raw in got] == [
        (fpdu.position, fpdu.raw) for fpdu in expected
    ]
    for (_, position, raw), ulpdu in zip(got, ulpdus, strict=True):
        plain = without_markers(raw, position) if markers else raw
        assert plain[2 : 2 + len(ulpdu)] == ulpdu


def test_a_frame_completes_the_fpdus_that_end_in_it() -> None:
    sender = MpaSender()
    octets = b"".join(sender.send(bytes(50)) for _ in range(4))  # 56 octets each
    got = list(cut(direction(octets, [60, 110], False)))
    assert [frame for frame, _, _ in got] == [1, 2, 2, 3]


def test_what_is_not_whole_is_not_handed_over() -> None:
    octets = MpaSender().send(bytes(50))
    assert list(cut(direction(octets[:-1], [], False))) == []


@given(st.integers(0, 64000), st.integers(0, 600).map(lambda words: 4 * words))
def test_the_length_of_an_fpdu_counts_the_markers_in_it(ulpdu: int, position: int) -> None:
    raw = MpaSender(markers=True, position=position).send(bytes(ulpdu))
    assert fpdu_length(raw, 0, position, True) == len(raw)


def test_headers_are_read_and_digests_judged() -> None:
    talk = Conversation(markers=True)
    write = talk.write("10.7.0.2", 0x1234, 1 << 40, bytes(600))
    send = talk.untagged("10.7.0.2", 0x44, b"text", stag=77)
    short = talk.segment("10.7.0.2", b"\xc1\x40")
    version = talk.segment("10.7.0.2", b"\xc2\x40" + bytes(20))
    spoilt = talk.segment("10.7.0.2", write.ulpdu, spoil=True)
    assert write.header == Tagged(0x1234, 1 << 40, 600)
    assert send.header == Untagged(4, 77, 0, True, b"text", 1, 0)
    assert short.header is None and version.header is None
    assert write.digest_is_good and send.digest_is_good and not spoilt.digest_is_good
    assert [each.order for each in talk.traffic().arrivals] == [1, 2, 3, 4, 5]


def notes_of(talk: Conversation) -> tuple[str, ...]:
    """Returns the notes about a capture with these segments, all of one direction."""
    arrivals = talk.traffic().arrivals
    chunks = tuple(Chunk(each.frame, 0.0, each.position, each.raw) for each in arrivals)
    directions = Direction(A, B, True, False, chunks), Direction(B, A, True, False, ())
    frame = StartupFrame(kind="request")
    capture = Capture(Path("test"), len(arrivals), (Connection(frame, frame, directions),))
    traffic = traffic_of(capture)
    assert len(traffic.notes) == len(traffic.misnumbered)
    return traffic.notes


def unframed_by(marker: int) -> int | None:
    """Returns where framing is lost if the third marker of a stream has these bits inverted, and
    its FPDU the right CRC.
    """
    sender = MpaSender(markers=True)
    header = TaggedHeader(0x100, 0, True, 0x40).encode()
    first, last = sender.send(header + bytes(300)), bytearray(sender.send(header + bytes(1000)))
    at = 1024 - len(first)
    last[at : at + 4] = (int.from_bytes(last[at : at + 4], "big") ^ marker).to_bytes(4, "big")
    last[-4:] = crc32c(bytes(last[:-4]))
    directions = direction(first + last, [], True), Direction(B, A, True, False, ())
    frame = StartupFrame(kind="request")
    traffic = traffic_of(Capture(Path("test"), 1, (Connection(frame, frame, directions),)))
    assert len(traffic.arrivals) == 2 and all(each.digest_is_good for each in traffic.arrivals)
    assert len(traffic.notes) == len(traffic.unframed)
    return traffic.unframed.get(0)


@pytest.mark.parametrize("bits", [1 << 16, 1 << 31, 0xFFFF << 16, 1, 2, 0xFFFF0003])
def test_the_bits_of_a_marker_that_receivers_ignore_do_not_matter(bits: int) -> None:
    # RFC 5044 section 4.2: RESERVED is "ignored on receive (except for CRC calculation)", and the
    # two low bits of FPDUPTR count as zero.
    assert unframed_by(bits) is None


@pytest.mark.parametrize("bits", [1 << 2, 1 << 15, 0x00010004])
def test_a_marker_that_points_elsewhere_ends_the_framing(bits: int) -> None:
    assert unframed_by(bits) == 1024


def test_messages_that_are_not_numbered_as_the_rfc_says_are_reported() -> None:
    # RFC 5041 section 4.3: "The initial value for MSN MUST be one", on each Queue Number.
    talk = Conversation()
    talk.message("10.7.0.2", 0x43, b"one", b"and more")
    talk.untagged("10.7.0.2", 0x41, b"two", qn=1, msn=2)
    talk.untagged("10.7.0.2", 0x43, b"three", msn=7)
    (note,) = notes_of(talk)
    assert "not RFC-conformant" in note and "Queue Number 1 in frame 3 has MSN 2" in note
    talk = Conversation()
    talk.message("10.7.0.2", 0x43, b"one", b"and more")
    talk.untagged("10.7.0.2", 0x43, b"one again", msn=1)
    assert "MSN 1, where RFC 5041 section 4.3 requires 2" in notes_of(talk)[0]


def test_what_follows_another_error_says_nothing_of_numbers() -> None:
    talk = Conversation()
    talk.untagged("10.7.0.2", 0x43, b"one")
    talk.segment("10.7.0.2", talk.untagged("10.7.0.2", 0x43, b"two").ulpdu, spoil=True)
    talk.untagged("10.7.0.2", 0x43, b"nine", msn=9)
    assert notes_of(talk) == ()
    talk = Conversation()
    talk.untagged("10.7.0.2", 0x43, b"one", qn=4)
    talk.untagged("10.7.0.2", 0x43, b"nine", msn=9)
    assert notes_of(talk) == ()
