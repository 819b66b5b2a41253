"""Tests of two programs that share a device: the good one is not harmed, and harm is noticed."""

from __future__ import annotations

from pathlib import Path

import ddp_rnic
import pytest
from ddp_rnic.cli import app
from ddp_rnic.sim.capture.capture import read_capture
from ddp_rnic.sim.capture.pcap import write_pcap
from ddp_rnic.sim.capture.tests.associations import A, Peers
from ddp_rnic.sim.capture.traffic import Traffic, traffic_of
from ddp_rnic.sim.devices.hostile import Attempt, Hostile
from ddp_rnic.sim.devices.shared import play
from ddp_rnic.sim.model.memory import Memory
from typer.testing import CliRunner

CAPTURE = Path(ddp_rnic.__file__).parent / "sim" / "data" / "workload.pcap"


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    return traffic_of(read_capture(CAPTURE))


def test_a_hostile_client_harms_nobody(traffic: Traffic) -> None:
    attempts: list[Attempt] = []
    found = play(traffic, attempts.append)
    assert not found.differences
    assert (found.streams, len(found.refused), found.messages) == (20, 9, 180)
    assert found.segments == sum(each.digest_is_good for each in traffic.arrivals)
    assert found.octets == 74292
    assert found.due == found.served > 1000 and found.slices > found.served
    assert len(attempts) == found.kinds == 20 <= found.attempts


@pytest.mark.parametrize("what", ["memory", "verdicts", "buffers"])
def test_harm_is_noticed(traffic: Traffic, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    from ddp_rnic.sim.devices import shared

    if what == "memory":
        octets = Memory.octets
        monkeypatch.setattr(Memory, "octets", lambda self, stag: octets(self, stag)[:-1] + b"!")
    elif what == "verdicts":
        monkeypatch.setattr(shared, "_error", lambda cq: None)
    else:
        monkeypatch.setattr(shared._Buffers, "received", lambda self, event: False)
    found = play(traffic, lambda each: None)
    assert found.differences and all(each.startswith(what) for each in found.differences)


def test_an_attempt_that_nobody_refuses_is_an_error() -> None:
    hostile = Hostile(Path("none"), None, lambda: None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not refused: breaks in"):
        hostile._refused("breaks in", lambda: None)


def test_the_command_shows_both_programs() -> None:
    result = CliRunner().invoke(app.app, ["prm", "sim", "--play", str(CAPTURE)])
    assert result.exit_code == 0, result.output
    assert "writes by another client's Steering Tag: the device ends this stream" in result.stdout
    assert "It was served in 100% of the" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("agree: ")


def test_the_command_says_what_it_cannot_play(tmp_path: Path) -> None:
    peers = Peers()
    peers.set_up()
    peers.open(1)
    peers.send(A, peers.write(A, 1, 0x100, 5, b"text"))
    write_pcap(tuple(peers.frames), tmp_path / "sctp.pcap")
    for arguments, sentence in (
        (["sim", "--play", tmp_path / "sctp.pcap"], "--play plays DDP over MPA, and the capture"),
        (["sim", "--play", tmp_path / "absent"], "there is no such file"),
        (["uart:x", "--play", CAPTURE], "--play needs the device sim"),
        (["sim", "--play", CAPTURE, "--share", "stags=1"], "takes no other option"),
        (["sim", "--play", CAPTURE, "--clients", "8"], "takes no other option"),
    ):
        result = CliRunner().invoke(app.app, ["prm", *map(str, arguments)])
        assert result.exit_code == 2 and sentence in result.stderr, result.output
