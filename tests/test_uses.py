"""Runs each use of ``docs/use`` as its page says, in an empty folder with the page's own files."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ddp_rnic.cli.parameters import configured
from ddp_rnic.export import examples, registers
from ddp_rnic.export.tests.test_verilog import needs_icarus, simulate
from ddp_rnic.sim.engines.verilator import verilog

PAGES = Path(__file__).resolve().parents[1] / "docs" / "use"
#: The most lines of a use.
MOST = 60
needs_litex = pytest.mark.skipif(not find_spec("litex"), reason="LiteX is not installed")


def block(page: str, kind: str) -> list[str]:
    """Returns the lines of all blocks of a kind on a page."""
    found = re.findall(rf"^```{kind}\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return "".join(found).splitlines()


def text_of(page: str) -> str:
    return (PAGES / f"{page}.md").read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    """Returns the commands of a page but the export, which :func:`prepare` makes."""
    lines = [line.removeprefix("$ ") for line in block(page, "console")]
    return [line for line in lines if not line.startswith("rnic export ")]


def prepare(page: str, folder: Path) -> None:
    """Copies the files that a page shows, and writes what its export writes and the use reads."""
    for name in re.findall(r"\{literalinclude\} (\S+)", text_of(page)):
        shutil.copy(PAGES / name, folder)
    for line in block(page, "console"):
        words = shlex.split(line.removeprefix("$ "))
        if words[:2] == ["rnic", "export"]:
            assert words[-2:] == ["--out", "."]
            config = configured(None, words[3:-2:2])
            for file, text in (
                ("rnic.v", verilog),
                ("rnic.vh", registers.verilog_header),
                ("litex_rnic.py", examples.litex),
            ):
                (folder / file).write_text(text(config), encoding="utf-8")


def run(command: str, folder: Path) -> list[str]:
    """Returns the lines that a command prints in a folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, shell=True, cwd=folder, env={**os.environ, "PATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("page", sorted(path.stem for path in PAGES.glob("*.md")))
def test_a_page_shows_one_use_of_at_most_60_lines(page: str) -> None:
    (name,) = re.findall(r"\{literalinclude\} (\S+)", text_of(page))
    assert len((PAGES / name).read_text(encoding="utf-8").splitlines()) <= MOST
    assert block(page, "console") and len(block(page, "text")) == 1


@pytest.mark.parametrize(
    "page",
    ["amaranth", *(pytest.param(name, marks=needs_icarus) for name in ("cocotb", "verilog"))],
)
def test_a_use_prints_what_its_page_says(page: str, tmp_path: Path) -> None:
    prepare(page, tmp_path)
    assert block(page, "text")[0] in run(commands(page)[0], tmp_path)


@needs_icarus
@needs_litex
def test_litex_makes_verilog_of_the_soc_that_fits_the_rnic(tmp_path: Path) -> None:
    """LiteX's simulator takes minutes to build; the next test runs it."""
    prepare("litex", tmp_path)
    text = (tmp_path / "litex_soc.py").read_text(encoding="utf-8")
    made = text.replace("verbose=False", "run=False")
    assert made != text
    (tmp_path / "litex_soc.py").write_text(made, encoding="utf-8")
    run(commands("litex")[0], tmp_path)
    command = "iverilog -g2012 -Wportbind -t null -s sim build/sim.v rnic.v"
    assert run(f"{command} 2>&1", tmp_path) == []
    # A port that the RNIC does not have is noticed.
    verilog = tmp_path / "build" / "sim.v"
    verilog.write_text(
        verilog.read_text(encoding="utf-8").replace(".m_axi_wstrb", ".m_axi_wstrobe")
    )
    with pytest.raises(AssertionError, match="m_axi_wstrobe"):
        run(command, tmp_path)


@pytest.mark.long
@needs_litex
@pytest.mark.skipif(
    not (shutil.which("verilator") and Path("/usr/include/json-c").exists()),
    reason="LiteX's simulator needs packages that are not on PyPI; docs/use/litex.md names them",
)
def test_litex_simulates_the_soc_as_the_page_says(tmp_path: Path) -> None:
    prepare("litex", tmp_path)
    assert block("litex", "text")[0] in run(commands("litex")[0], tmp_path)


@pytest.mark.long
def test_verilator_prints_what_the_page_says(tmp_path: Path) -> None:
    prepare("verilog", tmp_path)
    words = shlex.split(commands("verilog")[1].partition(" && ")[0])
    options = [word for word in words if word.startswith("-W")]
    assert words == ["verilator", "--binary", *options, "--top-module", "tb", *words[-2:]]
    assert simulate(tmp_path, "tb", *options, *words[-2:]) == block("verilog", "text")


@needs_icarus
def test_the_cocotb_use_fails_if_design_and_model_differ(tmp_path: Path) -> None:
    prepare("cocotb", tmp_path)
    bench = tmp_path / "cocotb_bench.py"
    text = bench.read_text(encoding="utf-8")
    wrong = text.replace("length=LENGTH, address", "length=LENGTH // 2, address")
    assert wrong != text
    bench.write_text(wrong, encoding="utf-8")
    with pytest.raises(AssertionError, match="FAIL=1"):
        run(commands("cocotb")[0], tmp_path)
