"""Runs the Python code on the project's pages, and checks their commands with their parsers."""

from __future__ import annotations

import runpy
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from ddp_rnic.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]
#: The kinds of blocks that a page may have, apart from directives in braces, which Sphinx checks.
KINDS = {"console", "python", "toml", "text", "diff"}
#: Foreign programs that pages name.
OTHERS = {"cd", "git", "iverilog", "litex_cli", "litex_server", "pip", "python", "verilator"}
#: The commands that ``python3 run.py`` starts, apart from ``rnic``.
STARTED = {"docs", "pytest", "python", "ruff"}


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page."""
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif opened is None:
            opened, lines = (number, line.strip("`").strip()), []
        else:
            found.append(Block(str(page.relative_to(ROOT)), *opened, "\n".join(lines)))
            opened = None
    assert opened is None, f"{page}: the last block has no end"
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [
    pytest.param(line.removeprefix("$ "), id=f"{block}:{at}")
    for block in BLOCKS
    if block.kind == "console"
    for at, line in enumerate(block.text.splitlines(), 1)
]


def check(command: str) -> None:
    """Raises unless a command of a page exists and its own parser takes the options."""
    words = shlex.split(command)
    if words[:2] == ["python3", "run.py"]:
        words = words[2:]
        if words[0] == "python":
            assert (ROOT / words[1]).is_file() or words[1] == "FILE", f"no file {words[1]}"
    elif words[0] not in OTHERS | {"rnic"}:
        raise AssertionError(f"{words[0]} is no program that pages name")
    if words[0] != "rnic":
        assert words[0] in STARTED | OTHERS, f"run.py does not start {words[0]}"
        return
    command: Any = typer.main.get_command(app)
    context = None
    while hasattr(command, "get_command"):
        name, *words = words
        context = command.make_context(name, list(words), parent=context)
        command = command.get_command(context, words[0])
        assert command is not None, f"{name} has no command {words[0]}"
    name, *words = words
    command.make_context(name, list(words), parent=context)
    for word in words:
        assert not word.startswith(("sim/", "examples/")) or (ROOT / word).exists(), word


def test_blocks_are_of_known_kinds() -> None:
    for block in BLOCKS:
        assert block.kind in KINDS or block.kind.startswith("{"), f"{block}: {block.kind}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_page_exists_with_its_options(command: str) -> None:
    check(command)


@pytest.mark.parametrize(
    "command",
    [
        "python3 run.py rnic simulate x.pcap",
        "python3 run.py rnic sim x.pcap --widh 64",
        "python3 run.py rnic sim sim/data/absent.pcap",
        "python3 run.py rnic sim x.pcap --width wide",
        "python3 run.py rnic soak --segments 0",
        "python3 run.py absent",
        "python3 run.py python examples/absent.py",
        "absent",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command: str) -> None:
    with pytest.raises((AssertionError, typer.exceptions.TyperException)):
        check(command)


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=str(block)) for block in BLOCKS if block.kind == "python"]
)
def test_python_on_a_page_runs(block: Block, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", block.text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"{block}\n{result.stdout}{result.stderr}"
    assert "print(" not in block.text or result.stdout, f"{block} prints nothing"
    if block.page.startswith("docs/teach/"):
        (shown,) = (each for each in BLOCKS if (each.page, each.kind) == (block.page, "text"))
        assert result.stdout.splitlines() == shown.text.splitlines(), shown


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=str(block)) for block in BLOCKS if block.kind == "toml"]
)
def test_toml_on_a_page_is_taken(block: Block, tmp_path: Path) -> None:
    from ddp_rnic.cli.parameters import configured
    from ddp_rnic.hdl.spec.config import RnicConfig
    from ddp_rnic.sim.replay.regions import load_regions

    tomllib.loads(block.text)
    file = tmp_path / "file.toml"
    file.write_text(block.text)
    if block.page == "docs/integrate.md":
        assert configured(file, None) != RnicConfig()
    else:
        assert load_regions(file)


def test_pages_show_the_result_that_the_first_command_prints() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ddp_rnic", "sim", str(ROOT / "sim" / "data" / "workload.pcap")],
        capture_output=True,
        text=True,
    )
    shown = [block for block in BLOCKS if block.text.startswith("agree: ")]
    assert {block.page for block in shown} == {"README.md", "docs/start.md"}
    for block in shown:
        assert block.text in result.stdout.splitlines(), f"{block}\n{result.stdout[-500:]}"


@pytest.mark.parametrize(
    "link, says",
    [
        ("other.html#there", None),
        ("#here", None),
        ("https://example.org/absent", None),
        ("absent.html", "index.html: there is no file for the link absent.html"),
        ("other.html#absent", "index.html: there is no anchor for the link other.html#absent"),
        ("#absent", "index.html: there is no anchor for the link #absent"),
    ],
)
def test_a_link_of_the_site_that_leads_nowhere_is_found(
    link: str, says: str | None, tmp_path: Path
) -> None:
    build = runpy.run_path(str(ROOT / "docs" / "build.py"))
    (tmp_path / "index.html").write_text(f'<a href="{link}">a link</a><p id="here"></p>')
    (tmp_path / "other.html").write_text('<p id="there"></p>')
    assert list(build["broken_links"](tmp_path)) == ([says] if says else [])


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
