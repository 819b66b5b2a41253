"""Tests of ``rnic peer``: bad input in one sentence; ``pytest --long`` talks to a guest."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path

import pytest
from ddp_rnic.cli import peer
from ddp_rnic.cli.app import app
from ddp_rnic.flow.tools import ToolError
from ddp_rnic.sim.devices.guest import machine
from ddp_rnic.sim.devices.guest.image import Image
from ddp_rnic.sim.devices.peer.channel import Tally
from ddp_rnic.sim.devices.peer.demo import Row
from ddp_rnic.sim.devices.peer.node import Node
from ddp_rnic.sim.devices.peer.serve import run_client, serve
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
        (["demo", "--sctp", "--against", "a"], "--sctp needs frames of the guest: leave out"),
        (["demo", "--disk", "--against", "a"], "--disk formats a disk in the guest: leave out"),
        (["demo", "--bad-network", "--against", "a"], "--bad-network is one between the guest and"),
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
    assert (
        played.exit_code == 0
        and "agree: " in played.output
        and "RTL and golden model on" in played.output
    )


@pytest.mark.long
def test_the_demonstration_against_another_host_says_what_to_run_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A person follows the instructions, with the programs of this project instead of Linux's."""
    there, tallies = "127.0.0.77", list[Tally]()
    running: list[asyncio.Task[object]] = []
    clients = {"ib_send_bw": "send", "ib_write_bw": "write", "ib_read_lat": "read"}

    async def client(name: str, host: str, port: str, count: str, size: str) -> None:
        at = host, int(port)
        tallies.append(await run_client(node, name, *at, count=int(count), size=int(size)))

    def person(line: str) -> None:
        asked = re.fullmatch(rf"on {there}, run: (.*)", line)
        if asked is None:
            return
        work: Coroutine[object, object, object]
        match asked[1].split():
            case "rping", "-c", "-a", host, "-v", "-V", "-C", count, "-S", size, "-p", port:
                work = client("rping", host, port, count, size)
            case "rping", "-s", "-v", "-V", "-C", "3", "-S", "2000", "-p", port:
                work = serve(
                    node, "rping", there, int(port),
                    count=1, report=tallies.append, listening=lambda _: None,
                )  # fmt: skip
            case program, "-R", "-F", "-n", count, "-s", size, host, "-p", port:
                work = client(clients[program], host, port, count, size)
            case _:
                raise AssertionError(line)
        running.append(asyncio.get_running_loop().create_task(work))

    monkeypatch.setattr(peer, "say", person)
    with Node() as node:
        result = rnic("demo", "--against", there, "--count", "3", "--size", "2000")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("verified") == len(running) == 5
    # The demonstration does not wait for the end of the last client.
    assert len(tallies) >= 4 and all(tally.verified for tally in tallies)


#: The console of a Linux whose mkfs.ext4 fails; all other commands succeed.
CONSOLE = """
echo '=== 0'
while read -r line; do
    case "$line" in
        mkfs*) echo 'mkfs.ext4: Device'; echo 'size reported to be zero.'; echo '=== 1' ;;
        *) echo '=== 0' ;;
    esac
done
"""


def test_a_step_of_the_disk_that_fails_ends_the_demonstration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def nothing(*_: object) -> list[Row]:
        return []

    monkeypatch.setattr(peer, "_files", lambda: Image(tmp_path, tmp_path))
    monkeypatch.setattr(machine, "check_qemu", lambda: None)
    monkeypatch.setattr(machine, "_command", lambda *_: ["sh", "-c", CONSOLE])
    monkeypatch.setattr(peer, "demo", nothing)  # rping and perftest
    result = rnic("demo", "--disk")
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    complaint = "making a file system: mkfs.ext4: Device size reported to be zero."
    # No step follows the one that failed.
    assert said[-2:] == ["making a file system", f"NVMe disk, ext4: {complaint}"]
    assert complaint in result.stdout and "verified" not in result.stdout


@pytest.mark.long
def test_an_unmodified_linux_and_the_gateware_verify_each_other(tmp_path: Path) -> None:
    capture = tmp_path / "demo.pcap"
    options = "--disk", "--bad-network", "--sctp", "--count", "5", "--pcap", str(capture)
    result = rnic("demo", *options)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("verified") == 19
    for unit in ("FPDU", "chunk"):
        assert re.search(rf"[1-9]\d* {unit}s? sent again from host memory", result.stderr)
    played = CliRunner().invoke(app, ["sim", str(capture)])
    # A try to connect before rping listened is left out.
    assert played.exit_code == 0 and "RTL and golden model on" in played.output
