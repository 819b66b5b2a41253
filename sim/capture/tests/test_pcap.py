"""Capture files are read in any format, byte order, resolution and link type."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import dpkt
import pytest
from ddp_rnic.sim.capture.capture import read_capture
from ddp_rnic.sim.capture.layers import ip_packet
from ddp_rnic.sim.capture.pcap import CaptureError, Frame, read_frames, write_pcap
from ddp_rnic.sim.capture.tests.frames import A, B, ethernet, tcp_packet
from scapy.utils import rdpcap

PACKET = tcp_packet(A, B, 7, b"octets")
PACKET_6 = tcp_packet(("fd00::1", 1), ("fd00::2", 2), 7, b"octets")
SHIPPED = Path(__file__).resolve().parents[2] / "data" / "workload.pcap"


def pcap(order: str, magic: int, records: list[tuple[int, int, bytes]], link: int = 1) -> bytes:
    out = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)
    for seconds, fraction, octets in records:
        out += struct.pack(order + "IIII", seconds, fraction, len(octets), len(octets)) + octets
    return out


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def section(order: str) -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str, link: int, options: bytes = b"", snaplen: int = 0) -> bytes:
    return block(order, 1, struct.pack(order + "HHI", link, 0, snaplen) + options)


def enhanced(order: str, number: int, time: int, octets: bytes) -> bytes:
    return block(
        order,
        6,
        struct.pack(
            order + "IIIII", number, time >> 32, time & 0xFFFFFFFF, len(octets), len(octets)
        )
        + octets,
    )


def read(tmp_path: Path, octets: bytes) -> list[Frame]:
    path = tmp_path / "capture"
    path.write_bytes(octets)
    return list(read_frames(path))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "unit"), [(0xA1B2C3D4, 1e-6), (0xA1B23C4D, 1e-9)])
def test_pcap_of_either_byte_order_and_resolution(
    tmp_path: Path, order: str, magic: int, unit: float
) -> None:
    got = read(tmp_path, pcap(order, magic, [(3, 500, b"one"), (4, 0, b"")]))
    assert [(frame.number, frame.octets) for frame in got] == [(1, b"one"), (2, b"")]
    assert got[0].time == pytest.approx(3 + 500 * unit)


def test_a_last_record_cut_short_is_kept_as_far_as_it_goes(tmp_path: Path) -> None:
    got = read(tmp_path, pcap("<", 0xA1B2C3D4, [(0, 0, b"first"), (0, 0, b"second")])[:-3])
    assert [frame.octets for frame in got] == [b"first", b"sec"]


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_with_several_sections_and_interfaces(tmp_path: Path, order: str) -> None:
    nanoseconds = struct.pack(order + "HHBxxx", 9, 1, 9)
    other = "<" if order == ">" else ">"
    got = read(
        tmp_path,
        (
            section(order)
            + interface(order, 1)
            + interface(order, 101, nanoseconds)
            + block(order, 0x0BAD, b"what is this")
            + enhanced(order, 0, 2_000_000, b"a")
            + enhanced(order, 1, 3_000_000_000, b"bc")
            + section(other)
            + interface(other, 113, snaplen=2)
            + block(other, 3, struct.pack(other + "I", 5) + b"de")
            + enhanced(other, 7, 0, b"of no interface")
        ),
    )
    assert [(frame.link, frame.octets) for frame in got] == [(1, b"a"), (101, b"bc"), (113, b"de")]
    assert [frame.time for frame in got] == pytest.approx([2, 3, 0])


def test_the_reader_agrees_with_dpkt_and_scapy() -> None:
    mine = list(read_frames(SHIPPED))
    theirs = dpkt.pcap.Reader(io.BytesIO(SHIPPED.read_bytes()))
    assert [(frame.time, frame.octets) for frame in mine] == [
        (pytest.approx(time), octets) for time, octets in theirs
    ]
    assert [frame.octets for frame in mine] == [bytes(packet) for packet in rdpcap(str(SHIPPED))]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "capture.pcap"
    frames = [Frame(1, 1.9999996, 101, b"one"), Frame(2, 1.7e9 + 0.000001, 101, b"")]
    write_pcap(frames, path)
    got = list(read_frames(path))
    assert [(each.number, each.link, each.octets) for each in got] == [
        (each.number, each.link, each.octets) for each in frames
    ]
    assert [each.time for each in got] == pytest.approx([2, 1.7e9 + 0.000001], abs=5e-7)


def test_the_same_connections_come_out_of_pcapng(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcapng"
    with path.open("wb") as file:
        writer = dpkt.pcapng.Writer(file)
        for frame in read_frames(SHIPPED):
            writer.writepkt(frame.octets, ts=frame.time)
    one, other = read_capture(SHIPPED), read_capture(path)
    assert [each.octets for each in one.directions] == [each.octets for each in other.directions]


@pytest.mark.parametrize(
    ("link", "head"),
    [
        (1, bytes(12) + b"\x08\x00"),
        (1, bytes(12) + b"\x81\x00\x00\x05\x08\x00"),
        (1, bytes(12) + b"\x88\xa8\x00\x05\x81\x00\x00\x06\x08\x00"),
        (0, b"\x02\0\0\0"),
        (101, b""),
        (228, b""),
        (113, bytes(14) + b"\x08\x00"),
        (276, b"\x08\x00" + bytes(18)),
    ],
)
def test_the_ip_packet_is_found_after_every_link_header(link: int, head: bytes) -> None:
    got = ip_packet(Frame(1, 0, link, head + PACKET + b"trailer"))
    assert got is not None
    assert (got.source, got.destination, got.protocol) == ("10.7.0.1", "10.7.0.2", 6)
    assert got.payload.endswith(b"octets") and not got.missing and not got.fragment


def test_an_ipv6_packet_with_extension_headers() -> None:
    options = bytes([6, 0]) + bytes(6)
    plain = PACKET_6
    packet = (
        plain[:4] + struct.pack(">HB", len(plain) - 40 + 8, 0) + plain[7:40] + options + plain[40:]
    )
    for octets in (plain, packet):
        got = ip_packet(Frame(1, 0, 1, ethernet(octets)))
        assert got is not None
        assert (got.source, got.protocol, got.payload) == ("fd00::1", 6, plain[40:])


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\x45",
        PACKET[:30],
        b"\x45" + bytes(19),
        b"\x60" + bytes(20),
        PACKET[:1] + b"\0\0\x05" + PACKET[4:],
    ],
)
def test_a_frame_that_makes_no_sense_is_no_packet(octets: bytes) -> None:
    for link in (1, 101, 113, 276, 999):
        got = ip_packet(Frame(1, 0, link, octets))
        assert got is None or got.missing or not got.payload


@pytest.mark.parametrize(
    ("octets", "says"),
    [
        (b"", "is empty"),
        (b"GIF89a" + bytes(100), "not a capture"),
        (b"\xd4\xc3\xb2\xa1", "not a capture"),
    ],
)
def test_a_file_that_is_no_capture_is_refused_in_a_sentence(
    tmp_path: Path, octets: bytes, says: str
) -> None:
    with pytest.raises(CaptureError, match=says) as error:
        read(tmp_path, octets)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_or_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no such file"):
        read_frames(tmp_path / "nothing.pcap")
    with pytest.raises(CaptureError, match="directory"):
        read_frames(tmp_path)
