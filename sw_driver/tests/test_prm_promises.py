"""Checks that the table of the manager's promises names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import ddp_rnic
import pytest

ROOT = Path(ddp_rnic.__file__).parent
#: The rows of the table, without its head.
ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs" / "manager.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
][1:]
TESTS = {
    node.name
    for path in Path(__file__).parent.glob("test_*.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
}


def test_there_are_promises() -> None:
    assert len(ROWS) >= 15


@pytest.mark.parametrize(("promise", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_each_promise_is_held_by_tests_that_are_there(promise: str, tests: str) -> None:
    named = re.findall(r"`(test_\w+)`", tests)
    assert named and set(named) <= TESTS, f"{promise} {set(named) - TESTS}"
