"""The worked examples do what they say."""

from __future__ import annotations

import importlib.util
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
    run = subprocess.run(
        [sys.executable, "-m", f"ddp_rnic.examples.{name}"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].startswith(result)
    source = importlib.util.find_spec(f"ddp_rnic.examples.{name}")
    assert source is not None and source.origin is not None
    with open(source.origin, encoding="utf-8") as file:
        assert len(file.readlines()) < lines


def test_the_examples_of_the_readme_run() -> None:
    text = (Path(ddp_rnic.__file__).parent / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(programs) == 1
    run = subprocess.run([sys.executable, "-c", programs[0]], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "bytearray(b'placed by the gateware')" in run.stdout
