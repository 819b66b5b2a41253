"""RFC 5044 and RFC 6581: digests, start-up frames, FPDUs, markers."""

from __future__ import annotations

import struct

import pytest
from ddp_rnic.hdl.spec.ddp import LLP_CRC, LLP_FRAMING
from ddp_rnic.sim.model.events import LlpError, ProtocolError
from ddp_rnic.sim.model.mpa import (
    Agreement,
    Enhanced,
    Fpdu,
    MpaReceiver,
    MpaSender,
    StartupFrame,
    crc32c,
    negotiate,
)
from hypothesis import given, settings
from hypothesis import strategies as st

#: RFC 3720 appendix B.4. Its digests are listed octet by octet as they stand on the wire.
RFC_3720_B4 = [
    ("32 octets of zeros", bytes(32), "aa 36 91 8a"),
    ("32 octets of ones", b"\xff" * 32, "43 ab a8 62"),
    ("32 octets of incrementing 00..1f", bytes(range(32)), "4e 79 dd 46"),
    ("32 octets of decrementing 1f..00", bytes(range(31, -1, -1)), "5c db 3f 11"),
    (
        "an iSCSI SCSI Read (10) command PDU",
        bytes.fromhex(
            "01c00000 00000000 00000000 00000000 14000000 00000400"
            "00000014 00000018 28000000 00000000 02000000 00000000"
        ),
        "56 3a 96 d9",
    ),
]


@pytest.mark.parametrize(("what", "octets", "digest"), RFC_3720_B4, ids=[v[0] for v in RFC_3720_B4])
def test_the_published_digests(what: str, octets: bytes, digest: str) -> None:
    assert crc32c(octets) == bytes.fromhex(digest)


# --- start-up ------------------------------------------------------------------------------------


def test_a_request_frame_octet_by_octet() -> None:
    frame = StartupFrame(kind="request", markers=True, private_data=b"hello")
    assert frame.encode() == b"MPA ID Req Frame" + bytes.fromhex("c0 01 0005") + b"hello"


def test_an_enhanced_reply_frame_octet_by_octet() -> None:
    """RFC 6581: S is 0x10 in revision 2, and IRD and ORD come before the ULP's Private Data."""
    frame = StartupFrame(
        kind="reply",
        revision=2,
        crc=False,
        reject=True,
        private_data=b"!",
        enhanced=Enhanced(ird=0x1234, ord=0x2345, peer_to_peer=True, rtr_write=True, rtr_read=True),
    )
    assert frame.encode() == b"MPA ID Rep Frame" + bytes.fromhex("30 02 0005 9234 e345") + b"!"


@st.composite
def startup_frames(draw: st.DrawFn) -> StartupFrame:
    flag = st.booleans()
    revision = draw(st.sampled_from([1, 2]))
    enhanced = None
    if revision == 2 and draw(flag):
        depth = st.integers(0, (1 << 14) - 1)
        enhanced = Enhanced(
            ird=draw(depth),
            ord=draw(depth),
            peer_to_peer=draw(flag),
            rtr_fpdu=draw(flag),
            rtr_write=draw(flag),
            rtr_read=draw(flag),
        )
    return StartupFrame(
        kind=draw(st.sampled_from(["request", "reply"])),
        revision=revision,
        markers=draw(flag),
        crc=draw(flag),
        reject=draw(flag),
        enhanced=enhanced,
        private_data=draw(st.binary(max_size=508 if enhanced else 512)),
    )


@given(startup_frames(), st.binary(max_size=20), st.data())
def test_a_startup_frame_survives_and_takes_only_its_octets(
    frame: StartupFrame,
    rest: bytes,
    data: st.DataObject,
) -> None:
    octets = frame.encode()
    assert StartupFrame.parse(octets + rest) == (frame, len(octets))
    cut = data.draw(st.integers(0, len(octets) - 1))
    assert StartupFrame.parse(octets[:cut]) is None


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        (b"GET / HTTP/1.1\r\n", "must begin with an MPA Request or Reply Frame"),
        (b"MPA ID Req Fraud", "must begin with an MPA Request or Reply Frame"),
        (b"MPA ID Req Frame" + bytes.fromhex("40 03 0000"), "revision must be 1 or 2, not 3"),
        (b"MPA ID Req Frame" + bytes.fromhex("40 01 0201"), "at most 512 octets, not 513"),
        (b"MPA ID Rep Frame" + bytes.fromhex("50 02 0003 000000"), "must hold IRD and ORD"),
    ],
)
def test_what_is_no_startup_frame_is_refused(octets: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message) as raised:
        StartupFrame.parse(octets)
    assert str(raised.value.number).startswith("0x3/0x04")


def test_crc_when_either_asks_and_markers_for_who_asks() -> None:
    def frame(kind: str, crc: bool, markers: bool) -> StartupFrame:
        return StartupFrame(kind=kind, crc=crc, markers=markers)  # type: ignore[arg-type]

    for a in (False, True):
        for b in (False, True):
            assert negotiate(frame("request", a, b), frame("reply", b, a)) == Agreement(
                crc=a or b, markers_to_responder=a, markers_to_initiator=b
            )


# --- full operation phase ------------------------------------------------------------------------


def test_an_fpdu_octet_by_octet() -> None:
    """Section 4.1: ULPDU_Length, ULPDU, PAD to a multiple of four, CRC over all of it."""
    body = bytes.fromhex("0003 616263 000000")
    assert MpaSender().send(b"abc") == body + crc32c(body)
    assert MpaSender(crc=False).send(b"abc") == body + bytes(4)


def test_markers_octet_by_octet() -> None:
    """Section 4.3: a marker stands at every 512th octet of the stream and points to the header."""
    sender = MpaSender(markers=True)
    first = sender.send(bytes(1000))
    assert first[:4] == bytes(4), "the first marker stands before the first header"
    assert first[4:6] == struct.pack(">H", 1000)
    assert first[512:516] == struct.pack(">HH", 0, 508)
    assert len(first) == 4 + 1004 + 4 + 4, "two markers"
    assert first[-4:] == crc32c(first[:-4]), "the CRC covers the markers too"
    second = sender.send(bytes(10))
    assert second[8:12] == struct.pack(">HH", 0, 8), "at 1024, 8 octets after its header at 1016"


def test_a_marker_between_two_fpdus_belongs_to_the_second() -> None:
    sender = MpaSender(markers=True)
    first = sender.send(bytes(512 - 4 - 6))
    assert len(first) == 512
    second = sender.send(b"")
    assert second == bytes(4) + bytes(4) + crc32c(bytes(8))
    frames = MpaReceiver(markers=True).receive(first + second)
    assert [(f.position, len(f.raw)) for f in frames] == [(0, 512), (512, 12)]


def test_a_pointer_that_a_marker_cannot_hold_is_refused() -> None:
    """Section 4.3: FPDUPTR has 16 bits, and the octets of an FPDU with markers may be more."""
    sender = MpaSender(markers=True)
    with pytest.raises(ValueError, match="ULPDU of 65535 octets is too long for markers"):
        sender.send(bytes(65535))
    assert sender.position == 0
    octets = sender.send(bytes(65000))
    (frame,) = MpaReceiver(markers=True).receive(octets)
    assert frame.raw == octets


ULPDUS = st.lists(st.one_of(st.binary(max_size=24), st.integers(0, 3000).map(bytes)), max_size=8)
POSITIONS = st.integers(0, 1 << 12).map(lambda position: 4 * position)


@settings(max_examples=150)
@given(ULPDUS, st.booleans(), st.booleans(), POSITIONS, st.data())
def test_a_stream_survives_any_cutting(
    ulpdus: list[bytes],
    crc: bool,
    markers: bool,
    position: int,
    data: st.DataObject,
) -> None:
    sender = MpaSender(crc=crc, markers=markers, position=position)
    octets = b"".join(sender.send(ulpdu) for ulpdu in ulpdus)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=6)))
    receiver = MpaReceiver(crc=crc, markers=markers, position=position)
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(octets)], strict=True):
        frames += receiver.receive(octets[start:end])
    assert all(isinstance(frame, Fpdu) for frame in frames)
    assert [frame.ulpdu for frame in frames if isinstance(frame, Fpdu)] == ulpdus
    assert b"".join(frame.raw for frame in frames) == octets
    at = position
    for frame in frames:
        assert frame.position == at
        assert len(frame.raw) % 4 == 0
        at += len(frame.raw)
        if markers:
            for marker in range(-frame.position % 512, len(frame.raw), 512):
                header = 4 if frame.position % 512 == 0 else 0
                pointer = max(0, marker - header)
                assert frame.raw[marker : marker + 4] == struct.pack(">HH", 0, pointer)
    assert receiver.close() == []
    assert receiver.position == sender.position == at


@settings(max_examples=150)
@given(st.binary(min_size=1, max_size=700), st.booleans(), st.data())
def test_any_flipped_bit_after_the_length_is_a_digest_error(
    ulpdu: bytes,
    markers: bool,
    data: st.DataObject,
) -> None:
    octets = bytearray(MpaSender(markers=markers).send(ulpdu))
    first = 6 if markers else 2
    bit = data.draw(
        st.one_of(
            st.integers(8 * first, 8 * len(octets) - 1),
            st.integers(0, 31) if markers else st.nothing(),
        )
    )
    octets[bit // 8] ^= 1 << bit % 8
    receiver = MpaReceiver(markers=markers)
    (error,) = receiver.receive(bytes(octets) + MpaSender().send(b"later"))
    assert isinstance(error, LlpError)
    assert (error.number, error.length, error.position) == (LLP_CRC, len(ulpdu), 0)
    assert error.raw == octets
    assert receiver.receive(b"and more") == []
    assert receiver.dropped == 12 + 8


def test_without_crc_the_field_is_not_looked_at() -> None:
    octets = bytearray(MpaSender(crc=False).send(b"abc"))
    octets[-4:] = b"\xde\xad\xbe\xef"
    (frame,) = MpaReceiver(crc=False).receive(bytes(octets))
    assert isinstance(frame, Fpdu) and frame.ulpdu == b"abc"


def test_padding_may_hold_anything() -> None:
    """The CRC covers PAD; a receiver ignores its value."""
    body = bytes.fromhex("0003 616263 112233")
    (frame,) = MpaReceiver().receive(body + crc32c(body))
    assert isinstance(frame, Fpdu) and frame.ulpdu == b"abc"


@pytest.mark.parametrize("kept", [1, 2, 5, 11])
def test_a_stream_that_ends_inside_an_fpdu_is_a_framing_error(kept: int) -> None:
    receiver = MpaReceiver()
    assert receiver.receive(MpaSender().send(b"abc")[:kept]) == []
    (error,) = receiver.close()
    assert error.number == LLP_FRAMING
    assert receiver.receive(b"x") == []


def test_an_error_names_the_header() -> None:
    ulpdu = b"\xc1" + bytes(range(1, 30))
    octets = bytearray(MpaSender().send(ulpdu))
    octets[-1] ^= 1
    (error,) = MpaReceiver().receive(bytes(octets))
    assert isinstance(error, LlpError) and error.header == ulpdu[:14]


def test_a_ulpdu_must_fit_its_length_field() -> None:
    assert len(MpaSender().send(bytes(65535))) == 65544
    with pytest.raises(ValueError, match="less than 65536 octets, not 65536"):
        MpaSender().send(bytes(65536))
