"""Tests of ``rnic peer``: bad input in one sentence; ``pytest --long`` talks to a guest."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_rnic.cli import peer
from ddp_rnic.cli.app import app
from ddp_rnic.flow.tools import ToolError
from typer.testing import CliRunner, Result


def rnic(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["peer", *arguments])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["serve", "ping"],
            "the server must be one of rping, perftest, sink, echo, nvme, not 'ping'",
        ),
        (
            ["run", "perftest", "a:1"],
            "the client must be one of rping, send, write, read, sink, echo, not 'perftest'",
        ),
        (["run", "rping", "localhost"], "an address must be HOST:PORT, such as"),
        (["serve", "echo", "--listen", "a:99999"], "an address must be HOST:PORT, such as"),
        (["serve", "echo", "--width", "65"], "--width must be one of 64, 128, 256, 512, not 65"),
        (["serve", "nvme", "--size", "1k"], "--size must be a multiple of 512 octets, such as 64M"),
        (["demo", "--disk", "--against", "a"], "--disk formats a disk in the guest: leave out"),
        (["serve", "echo", "--pcap", "/none/x"], "cannot write to --pcap /none/x: No such file"),
    ],
)
def test_bad_input_is_named_in_one_sentence(arguments: list[str], sentence: str) -> None:
    result = rnic(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"rnic: {sentence}") and result.stderr.count("\n") == 1


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = rnic("run", "rping", f"127.0.0.1:{taken.getsockname()[1]}")
    assert result.exit_code == 1 and "start the server first" in result.stderr


def test_without_the_guest_another_host_is_offered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(ToolError, match=r"apt-get .* --against HOST .*rdma link add siw0"):
        peer._files()
    result = rnic("demo")
    assert result.exit_code == 3 and "--against HOST" in result.stderr


def test_a_server_and_a_client_report_each_connection(tmp_path: Path) -> None:
    """Both are processes of their own; the client's capture plays in ``rnic sim``."""
    program = [sys.executable, "-m", "ddp_rnic", "peer"]
    server = subprocess.Popen(
        [*program, "serve", "rping", "--listen", "127.0.0.1:0", "--count", "1", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None and server.stderr is not None
    listening = re.search(r"rping listens at (\S+)", server.stderr.readline())
    assert listening is not None
    capture = tmp_path / "client.pcap"
    ours = rnic(
        *("run", "rping", listening[1], "--count", "3", "--size", "2000"),
        *("--json", "--pcap", str(capture)),
    )
    assert ours.exit_code == 0, ours.output
    theirs, _ = server.communicate(timeout=60)
    assert server.returncode == 0
    for line in (ours.stdout, theirs):
        said = json.loads(line)
        assert said["verified"] is True and (said["messages"], said["octets"]) == (3, 12000)
        assert said["differences"] == said["errors"] == [] and said["cycles"] > 0
    played = CliRunner().invoke(app, ["sim", str(capture)])
    assert played.exit_code == 0 and "agree: RTL and golden model agree" in played.output


@pytest.mark.long
def test_an_unmodified_linux_and_the_gateware_verify_each_other(tmp_path: Path) -> None:
    capture = tmp_path / "demo.pcap"
    result = rnic("demo", "--disk", "--count", "5", "--pcap", str(capture))
    assert result.exit_code == 0, result.output
    assert result.stdout.count("verified") == 6
    played = CliRunner().invoke(app, ["sim", str(capture)])
    # A try to connect before rping listened is left out.
    assert played.exit_code == 0 and "RTL and golden model agree on" in played.output
