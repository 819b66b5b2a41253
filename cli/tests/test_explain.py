"""Tests of ``rnic explain``: its output and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_rnic.cli import app
from ddp_rnic.sim.capture.pcap import Frame, write_pcap
from ddp_rnic.sim.capture.tests.associations import A, Peers
from ddp_rnic.sim.capture.tests.frames import A as CLIENT
from ddp_rnic.sim.capture.tests.frames import B as SERVER
from ddp_rnic.sim.capture.tests.frames import first_octet, frames, handshake, tcp_packet
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.mpa import MpaSender
from typer.testing import CliRunner, Result

STAG, TO = 0x00ABCD07, 0x1000
REGION = f'[[region]]\nendpoint = "{SERVER[0]}"\nstag = {STAG}\nto = {TO}\nlength = 100\n'


def explain(*arguments: object) -> Result:
    return CliRunner().invoke(app.app, ["explain", *map(str, arguments)])


def said(result: Result) -> str:
    """Returns the output in one line, after checking its columns."""
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    return " ".join(result.stdout.split())


def written(path: Path, packets: list[Frame]) -> Path:
    write_pcap(packets, path)
    return path


@pytest.fixture
def spanning(tmp_path: Path) -> Path:
    """A capture whose second Write lies in frames 6 and 7, past its region; frame 8 repeats it."""
    sender = MpaSender()
    octets = b"".join(
        sender.send(TaggedHeader(STAG, TO + at, True, 0x40).encode() + bytes(60)) for at in (0, 60)
    )
    start = first_octet(1000)
    packets = [
        *handshake(),
        tcp_packet(CLIENT, SERVER, start, octets[:90]),
        tcp_packet(CLIENT, SERVER, start + 90, octets[90:]),
        tcp_packet(CLIENT, SERVER, start + 90, octets[90:]),
        tcp_packet(CLIENT, SERVER, start + len(octets), sender.send(bytes(80))[:20]),
    ]
    (tmp_path / "regions.toml").write_text(REGION)
    return written(tmp_path / "spanning.pcap", frames(packets))


def test_the_check_that_decides_is_shown_with_its_sum_and_sentence(spanning: Path) -> None:
    text = said(explain(spanning, 7, "--regions", spanning.parent / "regions.toml"))
    assert "Its octets lie in frames 6, 7, and are there in order with frame 7." in text
    assert "FAILS 5041 7.1, check 4: TO 0x103c + 60 = 0x1078 <= 0x1000 + 0x64 = 0x1064" in text
    assert "Entry: STag table, index 0x00abcd: key 0x07, base 0x1000, bound 0x1064" in text
    assert 'Decided by RFC 5041 section 7.1, check 4: "The sum of the DDP Segment payload' in text
    assert "a Terminate with DDP 0x1/0x01 Base or bounds violation" in text
    assert "11 01 c0 00 00 4a c1 40 00 ab cd 07" in text and "Try: Compare TO and length" in text
    assert "derived" not in text


def test_a_frame_with_the_beginning_of_a_segment_explains_it_too(spanning: Path) -> None:
    text = said(explain(spanning, 6, "--regions", spanning.parent / "regions.toml"))
    assert text.count("Outcome:") == 2 and text.count("Ethernet (RFC 894") == 2
    assert "Outcome: placed: 60 octets at offset 0 of 10.7.0.2 STag 0x00abcd07" in text
    assert "142-7:59 TO" in text  # this field begins in frame 6 and ends in frame 7


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (0, "has the frames 1 to 9, so frame 0 is not there"),
        (10, "has the frames 1 to 9, so frame 10 is not there"),
        (1, "frame 1 (10.7.0.1:40000 > 10.7.0.2:7174) is a TCP segment without octets"),
        (4, "brings no new octet of a DDP Segment"),
        (8, "brings no new octet of a DDP Segment"),
        (9, "the capture does not complete their FPDU"),
    ],
)
def test_a_frame_without_a_segment_is_named_in_one_sentence(
    spanning: Path, frame: int, says: str
) -> None:
    result = explain(spanning, frame)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr and result.stderr.count("\n") == 1


def test_a_segment_over_sctp_is_explained(tmp_path: Path) -> None:
    peers = Peers()
    peers.set_up()
    peers.open(0)
    peers.send(A, peers.write(A, 0, STAG, TO, b"placed"))
    path = written(tmp_path / "sctp.pcap", peers.frames)
    text = said(explain(path, len(peers.frames)))
    assert "SCTP DATA chunk (RFC 9260 section 3.3.1)" in text
    assert "Outcome: placed: 6 octets at offset 0" in text and "DDP-SSN" in text
    result = explain(path, 1)
    assert result.exit_code == 2 and "frame 1 has SCTP, but no DDP Segment" in result.stderr


def test_an_error_is_explained_without_a_capture() -> None:
    text = said(explain("--error", "DDP/0x1/0x03"))
    assert text.startswith("DDP 0x1/0x03 TO wrap (0x1/0x1/0x03) RFC 5041 section 7.1, check 5:")
    assert said(explain("--error", "0x1/0x03")).count("Try:") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give a capture and the number of a frame, or --error NUMBER"),
        (("x.pcap",), "give a capture and the number of a frame, or --error NUMBER"),
        (("absent.pcap", 1), "there is no such file"),
        (("x.pcap", 1, "--error", "1/3"), "--error takes no capture"),
        (("--error", "one"), "an error must be TYPE/CODE"),
    ],
)
def test_bad_arguments_get_one_sentence(arguments: tuple[object, ...], says: str) -> None:
    result = explain(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr and result.stderr.count("\n") == 1


def test_derived_regions_are_named_where_a_segment_is_refused() -> None:
    shipped = Path(__file__).resolve().parents[2] / "sim" / "data" / "workload.pcap"
    assert "note: the regions and buffers are derived" in said(explain(shipped, 260))
