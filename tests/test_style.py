"""Checks that need no simulation: lint, formatting, types, and one trap in Amaranth's classes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import ddp_rnic
import pytest

ROOT = Path(ddp_rnic.__file__).parent
GATEWARE = ("hdl", "boards")
#: The most lines of a function, and of the functions of some names.
LINES, LINES_OF = 80, {"elaborate": 100}


def run(*command: str, cwd: Path = ROOT, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}{result.stderr}"


def test_ruff_finds_nothing() -> None:
    run("ruff", "check", ".")


def test_everything_but_gateware_is_formatted() -> None:
    run("ruff", "format", "--check", ".")


def test_types_agree(tmp_path: Path) -> None:
    # Mypy wants a package in a folder of its own name, which a checkout need not have.
    (tmp_path / "ddp_rnic").symlink_to(ROOT, target_is_directory=True)
    run(
        *("mypy", "--config-file", str(ROOT / "pyproject.toml")),
        *("--cache-dir", str(ROOT / ".mypy_cache")),
        cwd=tmp_path,
        MYPYPATH=str(tmp_path),
    )


@pytest.mark.parametrize("folder", GATEWARE)
def test_gateware_keeps_its_annotations(folder: str) -> None:
    # With the import, Component raises, and the fields of a data.Struct are silently 0 bits wide.
    for path in (ROOT / folder).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert "__future__" not in modules, path


def test_sections_of_docstrings_begin_after_a_blank_line() -> None:
    # Sphinx reads such a section as part of the paragraph before it.
    wrong = re.compile(r"^( +)\S[^\n]*\n\1(Members|Parameters)\n\1-{5,}$", re.MULTILINE)
    for folder in (*GATEWARE, "sim", "sw_driver"):
        for path in (ROOT / folder).rglob("*.py"):
            found = wrong.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path}: {found and found[0]}"


def test_no_function_is_too_long() -> None:
    # A longer function does more than one thing: split it by meaning.
    found = {}
    skipped = (".", "build", "_build")
    tops = [top for top in ROOT.iterdir() if not top.name.startswith(skipped)]
    for path in (path for top in tops for path in ([top] if top.is_file() else top.rglob("*.py"))):
        file = path.relative_to(ROOT)
        if path.suffix != ".py" or any(part.startswith(skipped) for part in file.parts):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > LINES_OF.get(node.name, LINES):
                    found[f"{file}: {node.name}"] = lines
    assert not found


def test_simulators_are_made_in_one_place() -> None:
    # There every simulation gets a watchdog.
    made = re.compile(r"\bSimulator\(")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "hdl").rglob("*.py")
        if made.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["hdl/lib/testing.py"]
