"""Wireshark's dissectors judge the captures, and streams that the model made."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from ddp_rnic.sim.capture.capture import read_capture
from ddp_rnic.sim.capture.layers import SCTP, ip_packet
from ddp_rnic.sim.capture.pcap import Frame, read_frames, write_pcap
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver, MpaSender, StartupFrame
from ddp_rnic.sim.model.sctp import DataChunk, InitChunk, Packet, Ppid

TSHARK = shutil.which("tshark")
pytestmark = pytest.mark.skipif(TSHARK is None, reason="needs tshark")
#: Does not conform to RFC 5044: its markers are not 512 octets apart.
NOT_CONFORMANT = {"read_write_long_run_mrkr"}


def tshark(path: Path, *options: str) -> str:
    assert TSHARK is not None
    return subprocess.run(
        [
            TSHARK,
            "-r",
            str(path),
            "-o",
            "tcp.reassemble_out_of_order:TRUE",
            "-o",
            "tcp.desegment_tcp_streams:TRUE",
            "-o",
            "sctp.checksum:crc-32c",
            "--disable-heuristic",
            "smb_direct_iwarp",
            "--disable-heuristic",
            "rpcrdma_iwarp",
            *options,
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def wireshark_fpdus(path: Path) -> tuple[Counter[int], int, int]:
    """Returns the ULPDU lengths, and how many good and bad CRCs Wireshark finds."""
    text = tshark(path, "-O", "iwarp_mpa")
    lengths = Counter(int(length) for length in re.findall(r"ULPDU length: (\d+) bytes", text))
    return lengths, text.count("(Good CRC32)"), text.count("(Bad CRC32")


def model_fpdus(path: Path) -> tuple[Counter[int], int, int]:
    lengths: Counter[int] = Counter()
    good = bad = 0
    for direction in read_capture(path).directions:
        frames = MpaReceiver(crc=direction.crc, markers=direction.markers).receive(direction.octets)
        for frame in frames:
            whole = isinstance(frame, Fpdu)
            lengths[len(frame.ulpdu) if isinstance(frame, Fpdu) else frame.length] += 1
            good += direction.crc and whole
            bad += direction.crc and not whole
    return lengths, good, bad


def test_fpdus_and_crcs_are_wiresharks(mpa_capture: Path) -> None:
    if mpa_capture.name in NOT_CONFORMANT:
        pytest.skip("its markers are not those of RFC 5044")
    got = model_fpdus(mpa_capture)
    assert got == wireshark_fpdus(mpa_capture)


def test_sctp_chunks_and_checksums_are_wiresharks(sctp_capture: Path) -> None:
    fields = tshark(
        sctp_capture,
        "-Y",
        "sctp",
        "-T",
        "fields",
        "-E",
        "aggregator=,",
        "-e",
        "sctp.checksum.status",
        "-e",
        "sctp.data_tsn_raw",
        "-e",
        "sctp.data_payload_proto_id",
    )
    expected = [line.split("\t") for line in fields.splitlines()]
    got = []
    for frame in read_frames(sctp_capture):
        packet = ip_packet(frame)
        if packet is not None and packet.protocol == SCTP:
            data = [c for c in Packet.parse(packet.payload).chunks if isinstance(c, DataChunk)]
            got.append(
                [
                    "1",
                    ",".join(str(chunk.tsn) for chunk in data),
                    ",".join(str(chunk.ppid) for chunk in data),
                ]
            )
    assert got == expected


# --- streams made by the model -------------------------------------------------------------------


def write_packets(path: Path, packets: list[bytes]) -> Path:
    """Writes packets of raw IPv4, a microsecond apart."""
    write_pcap([Frame(n, 1 + n * 1e-6, 101, packet) for n, packet in enumerate(packets)], path)
    return path


def ipv4(protocol: int, payload: bytes, *, back: bool) -> bytes:
    ends = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
    source, destination = ends[::-1] if back else ends
    return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0x4000, 64, protocol, 0) + (
        source + destination + payload
    )


class TcpScript:
    """Writes a TCP connection to a capture."""

    def __init__(self) -> None:
        self._packets: list[bytes] = []
        self._sequence = [1000, 2000]
        self._add(False, 0x02)
        self._add(True, 0x12)
        self._add(False, 0x10)

    def send(self, back: bool, payload: bytes) -> None:
        """Adds a segment, from the responder if ``back``."""
        self._add(back, 0x18, payload)

    def write(self, path: Path) -> Path:
        return write_packets(path, self._packets)

    def _add(self, back: bool, flags: int, payload: bytes = b"") -> None:
        sequence = self._sequence
        numbers = (
            *((40002, 40001) if back else (40001, 40002)),
            *(sequence[back], sequence[not back], 5 << 4, flags, 65535, 0, 0),
        )
        segment = struct.pack(">HHIIBBHHH", *numbers) + payload
        self._packets.append(ipv4(6, segment, back=back))
        sequence[back] += len(payload) + (flags >> 1 & 1)


@pytest.mark.parametrize(("crc", "markers"), [(True, False), (True, True), (False, False)])
def test_wireshark_reads_the_models_streams(tmp_path: Path, crc: bool, markers: bool) -> None:
    request = StartupFrame(kind="request", crc=crc, markers=markers).encode()
    reply = StartupFrame(kind="reply", crc=crc, markers=markers).encode()
    source, sender = DataSource(1400), MpaSender(crc=crc, markers=markers)
    ulpdus = [
        segment
        for length in (0, 1, 5, 77, 500, 501, 502, 503, 3000, 1386)
        for segment in (
            *source.tagged(0x100, 77, bytes(length), rsvdulp=0x40),
            *source.untagged(0, bytes(length), rsvdulp=0x43 << 32),
        )
    ]
    script = TcpScript()
    script.send(False, request)
    script.send(True, reply)
    for ulpdu in ulpdus:
        script.send(False, sender.send(ulpdu))
    path = script.write(tmp_path / "made.pcap")
    lengths = Counter(len(ulpdu) for ulpdu in ulpdus)
    assert wireshark_fpdus(path) == (lengths, len(ulpdus) if crc else 0, 0)
    assert model_fpdus(path) == (lengths, len(ulpdus) if crc else 0, 0)


def test_wireshark_reads_the_models_sctp(tmp_path: Path) -> None:
    init = InitChunk(11, 22, 3, 4, parameters=((0xC006, bytes.fromhex("00000001")),))
    data = tuple(DataChunk(22 + i, i, Ppid.SEGMENT, bytes(i + 20)) for i in range(5))
    packets = [Packet(40001, 40002, 0, (init,)), Packet(40001, 40002, 33, data)]
    path = write_packets(
        tmp_path / "made.pcap", [ipv4(132, packet.encode(), back=False) for packet in packets]
    )
    fields = tshark(
        path,
        "-T",
        "fields",
        "-E",
        "aggregator=,",
        "-e",
        "sctp.checksum.status",
        "-e",
        "sctp.adaptation_layer_indication",
        "-e",
        "sctp.data_tsn_raw",
    )
    assert [line.split("\t") for line in fields.splitlines()] == [
        ["1", "0x00000001", ""],
        ["1", "", "22,23,24,25,26"],
    ]
