"""Runs ``rnic sim`` on captures that once went wrong, each an example of a kind, and checks its
output.

They are made from public bug reports of neighbouring projects. The other tests make inputs of the
same kinds themselves; the files are used where they lie beside the checkout.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from ddp_rnic.cli import app
from ddp_rnic.cli import sim as playing
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from typer.testing import CliRunner, Result

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"


@dataclass(frozen=True)
class Said:
    """The output: the segments and octets placed of a run that agrees, or a refusal."""

    segments: int | None = None
    octets: int | None = None
    words: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


ALL = 3, 350
ASSUMED = ("--assume", "fpdu")
SAID = {
    "base.pcap": [Said(*ALL)],
    "base.pcap.gz": [Said(*ALL)],
    "cat_two_different.pcap": [Said(6, 700, ("another capture begins at octet 1286",))],
    "gre.pcap": [Said(*ALL)],
    "ip4_ah.pcap": [Said(*ALL)],
    "ip_fragments.pcap": [Said(*ALL, ("put together of fragments",))],
    "link_ib_erf.pcap": [Said(words=("link type ERF (197)",))],
    "link_unknown_nflog.pcap": [Said(words=("link type NFLOG (239)",))],
    "mpa_rev3.pcap": [Said(words=("frame 4 is refused: MPA revision must be 1 or 2, not 3",))],
    "mpls.pcap": [Said(*ALL)],
    "ng_no_idb.pcapng": [Said(words=("2 frames (of interface 1, which no Interface",))],
    "record_len_corrupt2.pcap": [
        Said(1, 100, left_out=("664 octets (the file is damaged after frame 6, at octet 622",))
    ],
    "sctp_base.pcap": [Said(3, 351)],
    "sctp_init_param_len0.pcap": [Said(words=("its INIT is refused, an SCTP parameter",))],
    "sctp_ip_checksum_offload.pcap": [Said(3, 351, ("7 SCTP packets from",))],
    "sctp_mid_start.pcap": [
        Said(words=("--assume sctp",)),
        Said(3, 351, ("assumed to have been set up",), options=("--assume", "sctp")),
    ],
    "sctp_one_bad_crc.pcap": [Said(2, 251, left_out=("1 SCTP packet (a wrong CRC32c: frame 7)",))],
    "sctp_one_way.pcap": [
        Said(3, 351, ("assumed to have been set up",), ("10.7.0.2:5043 > 10.7.0.1:46681: the",))
    ],
    "sctp_ordered_data.pcap": [
        Said(1, 100, left_out=("1 DATA chunk (it ends the session of", "ordered", "frame 8)"))
    ],
    "sctp_two_segments_without_session.pcap": [
        Said(0, 0, ("agree, but nothing was placed: ",), ("frame 7",))
    ],
    "sctp_udp_other_port.pcap": [
        Said(words=("--sctp-port 6511",)),
        Said(3, 351, options=("--sctp-port", "6511")),
    ],
    "snoop.cap": [Said(words=("is a snoop capture", "editcap -F pcap"))],
    "tcp_lro_badsum.pcap": [Said(3, 850, ("1 TCP segment with a wrong checksum, played",))],
    "tcp_mid_start.pcap": [
        Said(words=("begins in mid-connection", "--assume fpdu")),
        Said(*ALL, ("assumed, as --assume says",), options=ASSUMED),
        Said(2, 250, (), ("120 octets (",), ("--assume", "fpdu,at=120")),
    ],
    "tcp_only_a_to_b.pcap": [
        Said(*ALL, ("it is assumed to have accepted, with CRC and no markers",), ("1 direction",))
    ],
    "tcp_only_b_to_a.pcap": [
        Said(words=("lacks the whole direction 10.7.0.1:40000 > 10.7.0.2:18515",))
    ],
    "tcp_refused_then_retry_same_isn.pcap": [Said(*ALL)],
    "tcp_rst_out_of_window.pcap": [Said(*ALL, ("2 TCP segments ignored", "RFC 5961"))],
    "tcp_stray_syn.pcap": [Said(*ALL, ("1 TCP segment ignored", "RFC 5961"))],
    "vxlan.pcap": [Said(*ALL)],
}


def sim(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Result:
    monkeypatch.setattr(playing, "load", lambda name: FakeEngine())
    return CliRunner().invoke(app.app, ["sim", *map(str, arguments)])


@pytest.mark.skipif(not CASES.is_dir(), reason="the case files are not here")
@pytest.mark.parametrize("name", SAID)
def test_a_case_is_played_or_refused_as_it_should(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    for said in SAID[name]:
        result = sim(monkeypatch, CASES / name, "--out", tmp_path / "out", *said.options)
        if said.segments is None:
            assert result.exit_code == 2 and not result.stdout
            assert result.stderr.startswith("rnic: ") and result.stderr.count("\n") == 1
            assert all(word in result.stderr for word in said.words), result.stderr
            continue
        assert result.exit_code == 0, result.stdout + result.stderr
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert (report["segments"], report["bytes_placed"]) == (said.segments, said.octets)
        assert all(word in result.stdout for word in said.words), result.stdout
        (last,) = (line for line in result.stdout.splitlines() if "RTL and golden model" in line)
        assert bool(report["left_out"]) == bool(said.left_out) == ("left out: " in last)
        assert all(word in last for word in said.left_out), last
        bare = not said.left_out and said.segments > 0
        assert last.startswith("agree: ") == (report["verdict"] == "agree") == bare
