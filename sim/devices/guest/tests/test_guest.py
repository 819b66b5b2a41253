"""Tests of the guest. ``pytest --long`` starts a guest."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ddp_rnic.flow.tools import ToolError
from ddp_rnic.sim.devices.guest import image, packages
from ddp_rnic.sim.devices.guest.machine import Guest

#: A program that runs a command in the way of the guest's build, and is then interrupted.
INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
from ddp_rnic.sim.devices.guest.packages import run
run("sh", "-c", "echo $$ > {pid}; sleep 100")
"""
#: A program that is killed while its guest runs.
KILLED = """
import asyncio, os
from ddp_rnic.sim.devices.guest import image
from ddp_rnic.sim.devices.guest.machine import Guest
async def main():
    async with Guest(image.load(lambda *_: None)) as guest:
        print(guest.process.pid, flush=True)
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""


def steps(done: int, total: int, text: str) -> None:
    """Takes the progress of a build."""


def runs(process: str) -> bool:
    """Returns whether a process has not ended. One that nobody has waited for has a state Z."""
    try:
        return Path("/proc", process, "stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(process: str) -> None:
    deadline = time.monotonic() + 20
    while runs(process):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the cache empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("empty")
def test_without_apt_the_build_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(ToolError, match=r"^the guest needs .* apt-get"):
        image.load(steps)
    assert not list(image.kept().parent.glob("tmp*"))


def test_missing_packages_are_named_to_a_user_who_cannot_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolError, match=r"as root: apt-get install .* kmod zstd$"):
        packages.install(["kmod", "zstd"])


def test_the_users_half_of_siw_is_looked_for_once_the_packages_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_LIBRARIES", tmp_path)
    with pytest.raises(ToolError, match="there is no .*libsiw"):
        image._providers()
    provider = tmp_path / "libibverbs" / "libsiw-rdmav34.so"
    provider.parent.mkdir()
    provider.touch()
    assert image._providers() == [provider]


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(ToolError, match=r"^sh -c failed with 3: no such thing$"):
        packages.run("sh", "-c", "echo first >&2; echo no such thing >&2; exit 3")
    with pytest.raises(ToolError, match=r"^no-such-program is missing"):
        packages.run("no-such-program")


def test_an_interruption_ends_the_command_that_runs(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    order = [sys.executable, "-c", INTERRUPTED.format(pid=pid)]
    with subprocess.Popen(order, stderr=subprocess.DEVNULL) as program:
        try:
            while not (pid.exists() and pid.read_text()):
                time.sleep(0.05)
            program.send_signal(signal.SIGINT)
            program.wait(timeout=20)
        finally:
            program.kill()
    wait_for_end(pid.read_text().strip())


def test_without_qemu_the_guest_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> None:
        async with Guest(image.Image(Path("kernel"), Path("filesystem"))):
            pass

    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolError, match="^QEMU is missing"):
        asyncio.run(start())


@pytest.mark.long
def test_a_guest_starts_siw_and_ends() -> None:
    async def talk() -> None:
        async with Guest(image.load(steps)) as guest:
            assert guest.process is not None
            assert "link siw0/1 state ACTIVE" in (await guest.run("rdma link")).text
            assert await guest.run("printf words; exit 3 | false") == (1, "words")
            # siw talks to itself.
            await guest.run("rping -s -v -V -C 3 > /tmp/server &")
            output = await guest.run("sleep 1; rping -c -a 10.0.2.15 -v -V -C 3")
            assert output.status == 0 and output.text.count("ping data: rdma-ping") == 3
        assert not runs(str(guest.process.pid))

    asyncio.run(talk())


@pytest.mark.long
def test_a_killed_program_takes_its_guest_along() -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL
    wait_for_end(killed.stdout.strip())
