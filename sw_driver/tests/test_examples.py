"""Runs the worked examples, and checks the results that they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ddp_rnic
import pytest


@pytest.mark.parametrize(
    ("name", "lines", "result"),
    [
        ("write_into_numpy", 30, "65537 octets placed"),
        ("receive_queue", 40, "20 messages received"),
        ("share_device", 60, "2 programs shared a device"),
        ("rdma_ping_pong", 60, "3 rounds of Write, Read and Send"),
        ("add_board", 70, "18 ports: "),
    ],
)
def test_an_example_runs_and_is_short(name: str, lines: int, result: str) -> None:
    example = Path(ddp_rnic.__file__).parent / "examples" / f"{name}.py"
    run = subprocess.run([sys.executable, str(example)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].startswith(result)
    assert len(example.read_text(encoding="utf-8").splitlines()) < lines


def test_the_examples_of_the_readme_run() -> None:
    text = (Path(ddp_rnic.__file__).parent / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(programs) == 1
    run = subprocess.run([sys.executable, "-c", programs[0]], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "b'placed by the gateware'" in run.stdout
