"""Tests of commands whose standard streams are closed, full, or read by nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHIPPED = Path(__file__).resolve().parents[2] / "sim" / "data" / "workload.pcap"
COMMANDS = [
    "--version",
    "--help",
    "explain --help",
    f"explain {SHIPPED} 51",
    "config",
    "requirements",
]


def rnic(command: str, redirected: str) -> tuple[int, str]:
    """Runs a command in a shell; returns its exit code and standard error."""
    line = f"{sys.executable} -m ddp_rnic {command} {redirected}"
    done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_written_ends_a_command_with_one_sentence(command: str) -> None:
    sentence = "rnic: standard output cannot be written: "
    assert rnic(command, "> /dev/full") == (2, f"{sentence}No space left on device\n")
    assert rnic(command, ">&-") == (2, f"{sentence}it is closed\n")
    assert rnic(command, "| true; exit ${PIPESTATUS[0]}") == (141, "")


def test_standard_input_that_is_closed_is_refused() -> None:
    sentence = "rnic: standard input cannot be read: it is closed\n"
    assert rnic("explain - 51", "<&-") == (2, sentence)


def test_a_command_works_without_standard_error() -> None:
    assert rnic(f"explain {SHIPPED} 51", "2>&- > /dev/null") == (0, "")
    assert rnic("explain nothing 51", "2>&-") == (2, "")
