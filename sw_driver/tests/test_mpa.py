"""The driver's start-up frames and FPDUs octet by octet (RFC 5044, RFC 6581)."""

from __future__ import annotations

from typing import Any

import pytest
from ddp_rnic.sim.model import mpa as model
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sw_driver.cm import InvalidStartup, PrivateDataTooLong, Rtr, StartupFrame
from ddp_rnic.sw_driver.cm.framing import MULPDU, Cutter, MpaSource, mulpdu_of
from ddp_rnic.sw_driver.cm.startup import Enhanced

REQUEST, REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"

# --- RFC 5044 section 7.1.1, RFC 6581 sections 6 and 9 --------------------------------------------


def test_a_request_frame_octet_by_octet() -> None:
    """RFC 5044 section 7.1.1: Key, M, C, R and Res, Rev, PD_Length. "The default configuration for
    a connection MUST be to use CRCs" (section 4.4); "senders MUST set this field to one".
    """
    frame = StartupFrame(private_data=b"hello")
    assert frame.encode() == REQUEST + bytes.fromhex("40 01 0005") + b"hello"
    frame = StartupFrame(crc=False, markers=True)
    assert frame.encode() == REQUEST + bytes.fromhex("80 01 0000")


def test_an_enhanced_reply_frame_octet_by_octet() -> None:
    """RFC 6581 sections 6 and 9: S, Rev 2, and "|A|B| IRD |C|D| ORD |" before the Private Data, "in
    network byte order, with the IRD and ORD encoded as 14-bit unsigned integers".
    """
    enhanced = Enhanced(0x1234, 0x2345, True, Rtr.WRITE | Rtr.READ)
    frame = StartupFrame(
        reply=True, revision=2, crc=False, reject=True, enhanced=enhanced, private_data=b"!"
    )
    assert frame.encode() == REPLY + bytes.fromhex("30 02 0005 9234 e345") + b"!"
    for rtr, octets in ((Rtr.SEND, "c001 0002"), (Rtr.WRITE, "8001 8002"), (Rtr.READ, "8001 4002")):
        assert Enhanced(1, 2, True, rtr).encode() == bytes.fromhex(octets)
    assert Enhanced(1, 2).encode() == bytes.fromhex("0001 0002")


@pytest.mark.parametrize("revision", [1, 2])
def test_reserved_bits_of_a_frame_are_not_checked(revision: int) -> None:
    """RFC 5044 section 7.1.1, Res: "It MUST be set to zero when sending, and not checked on
    reception." In revision 1 the bit that is RFC 6581's S is one of them. The same section on R:
    "This bit is set to zero, and not checked on reception in the MPA Request Frame."
    """
    reserved = {1: 0x3F, 2: 0x2F}[revision]
    octets = REQUEST + bytes([0xC0 | reserved, revision, 0, 5]) + b"hello"
    wanted = StartupFrame(revision=revision, markers=True, private_data=b"hello")
    assert StartupFrame.parse(octets) == (wanted, len(octets))
    assert StartupFrame(revision=revision, reject=True).encode()[16] == 0x40
    parsed = model.StartupFrame.parse(octets)
    assert parsed is not None
    assert (parsed[0].private_data, parsed[0].enhanced) == (b"hello", None)


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        (b"GET / HTTP/1.1\r\n", "must begin with an MPA Request or Reply Frame"),
        (b"MPA ID Req Fraud", "must begin with an MPA Request or Reply Frame"),
        (REQUEST + bytes.fromhex("40 00 0000"), "revision must be 1 or 2, not 0"),
        (REQUEST + bytes.fromhex("40 03 0000"), "revision must be 1 or 2, not 3"),
        (REQUEST + bytes.fromhex("40 01 0201"), "at most 512 octets, not 513"),
        (
            REPLY + bytes.fromhex("50 02 0003 000000"),
            "must hold the four octets of IRD and ORD first, not 3",
        ),
    ],
)
def test_what_is_no_startup_frame_is_refused(octets: bytes, message: str) -> None:
    """RFC 5044 section 7.1.1 on Key, Rev and PD_Length; RFC 6581 section 6: "if the 'S' flag is
    set, Private Data MUST begin with enhanced RDMA connection establishment data".
    """
    with pytest.raises(InvalidStartup, match=message):
        StartupFrame.parse(octets)


@pytest.mark.parametrize("options", [{}, {"revision": 2, "enhanced": Enhanced(1, 1)}])
def test_more_than_512_octets_of_private_data_are_not_sent(options: dict[str, Any]) -> None:
    """RFC 5044 section 7.1.1: "The Private Data field MUST be between 0 and 512 octets"."""
    most = 508 if options else 512
    assert len(StartupFrame(private_data=bytes(most), **options).encode()) == 20 + 512
    with pytest.raises(PrivateDataTooLong, match=f"at most {most} octets"):
        StartupFrame(private_data=bytes(most + 1), **options).encode()


# --- RFC 5044 section 4 ---------------------------------------------------------------------------


@pytest.mark.parametrize("crc", [True, False])
def test_an_fpdu_octet_by_octet(crc: bool) -> None:
    """Section 4.1: ULPDU_Length, ULPDU, PAD of zeros, and the CRC of all of them; "the sender MUST
    include a CRC field" in any case (section 4.4).
    """
    source = MpaSource(200, crc=crc, markers=False)
    (tagged,) = source.tagged(7, 99, b"abcde", rsvdulp=0x40)
    (untagged,) = source.untagged(2, b"", rsvdulp=0x47 << 32)
    bodies = [
        b"\x00\x13" + TaggedHeader(7, 99, True, 0x40).encode() + b"abcde" + bytes(3),
        b"\x00\x12" + UntaggedHeader(2, 1, 0, True, 0x47 << 32).encode(),
    ]
    for fpdu, body in zip((tagged, untagged), bodies, strict=True):
        assert fpdu == body + (model.crc32c(body) if crc else bytes(4))


def test_a_message_is_cut_into_the_longest_segments_that_fit() -> None:
    """Section 4.5: "DDP SHOULD provide ULPDUs that are as large as possible, but less than or equal
    to MULPDU."
    """
    for mulpdu in (128, 1440, MULPDU[-1]):
        source = MpaSource(mulpdu, crc=False, markers=False)
        room = mulpdu - 14
        for octets, count in ((0, 1), (room, 1), (room + 1, 2), (3 * room, 3)):
            fpdus = source.tagged(1, 0, bytes(octets), rsvdulp=0)
            lengths = [int.from_bytes(fpdu[:2], "big") for fpdu in fpdus]
            assert lengths[:-1] == [mulpdu] * (count - 1) and lengths[-1] <= mulpdu
            assert sum(lengths) == octets + 14 * count


def test_markers_octet_by_octet() -> None:
    """Section 4.3: "the MPA Markers MUST be inserted immediately preceding the first FPDU of Full
    Operation Phase, and at every 512th octet"; "FPDUPTR MUST contain the number of octets in the
    TCP stream from the beginning of the ULPDU Length field to the first octet of the Marker, unless
    the Marker falls between FPDUs"; "if an FPDU is large enough to contain multiple Markers, they
    MUST all point to the same point in the TCP stream".
    """
    source = MpaSource(2000, crc=True, markers=True)
    (first,) = source.tagged(1, 0, bytes(1000 - 14), rsvdulp=0)
    assert first[:6] == bytes.fromhex("0000 0000 03e8"), "a marker before the first length field"
    assert first[512:516] == bytes.fromhex("0000 01fc"), "508 octets after the length field"
    assert len(first) == 4 + 1004 + 4 + 4 and first[-4:] == model.crc32c(first[:-4])
    # From here on at 1016 of the stream.
    (second,) = source.tagged(1, 0, bytes(1200 - 14), rsvdulp=0)
    pointers = [second[at : at + 4].hex() for at in (8, 520, 1032)]
    assert pointers == ["00000008", "00000208", "00000408"]
    # The third FPDU ends at a multiple of 512: the marker there is of the fourth.
    at = len(first) + len(second)
    (third,) = source.tagged(1, 0, bytes(-at % 512 - 8 - 14 + 2), rsvdulp=0)
    assert (at + len(third)) % 512 == 0
    (fourth,) = source.tagged(1, 0, b"", rsvdulp=0)
    assert fourth[:6] == bytes.fromhex("0000 0000 000e")
    assert fourth[-4:] == model.crc32c(fourth[:-4]), "the marker before it is a part of it"


def test_pointers_are_right_where_the_position_passes_2_32() -> None:
    """Section 4.3: "this computation MUST take into account that the TCP sequence number could have
    wrapped between the Marker and the header."
    """
    source = MpaSource(2000, crc=True, markers=True)
    source._position = (1 << 32) - 400
    (fpdu,) = source.tagged(1, 0, bytes(1200), rsvdulp=0)
    assert [fpdu[at : at + 4].hex() for at in (400, 912)] == ["00000190", "00000390"]


def test_padding_and_markers_do_not_matter_to_where_an_fpdu_ends() -> None:
    """Section 4.1: "The pad data MUST be set to zero by the sender and ignored by the receiver";
    section 4.2: "The Reserved field MUST be [...] ignored on receive (except for CRC calculation)".
    """
    (first,) = MpaSource(2000, crc=False, markers=True).tagged(1, 0, bytes(985), rsvdulp=0)
    octets = bytearray(first * 2)
    octets[:4] = octets[512:516] = b"\xff" * 4
    octets[len(first) - 5] = 0xFF  # PAD
    (got,) = Cutter(markers=True).receive(bytes(octets[: len(first)]))
    assert got.octets == octets[: len(first)]
    (frame,) = model.MpaReceiver(crc=False, markers=True).receive(got.octets)
    assert isinstance(frame, model.Fpdu) and frame.ulpdu[14:] == bytes(985)


@pytest.mark.parametrize("markers", [False, True])
def test_mulpdu_stays_in_its_range(markers: bool) -> None:
    """Section 4.5: "MPA MUST NOT provide a MULPDU smaller than 128"; section 3: "between 128 octets
    and 64768 octets, inclusive".
    """
    assert [mulpdu_of(mss, markers=markers) for mss in (1, 100, 130)] == [128] * 3
    assert mulpdu_of(1 << 16, markers=markers) <= mulpdu_of(1 << 17, markers=markers) == 64768
