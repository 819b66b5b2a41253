"""Checks the table of violations, and that a violated sentence counts only if its tests fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_rnic.sim.campaigns.violations import (
    Outcome,
    TableError,
    Violation,
    read_rows,
    read_violations,
    try_all,
)

ROOT = Path(__file__).resolve().parents[1]
TEST = """
from limit import LIMIT

def test_the_limit_is_four():
    assert LIMIT == 4

def test_the_limit_is_a_number():
    assert LIMIT + 1
"""


def a_project(folder: Path, violations: str = "") -> Path:
    """A project with one constant, and the tests and tables that hold it."""
    (folder / "tests").mkdir()
    (folder / "limit.py").write_text("LIMIT = 4\n")
    (folder / "tests" / "test_limit.py").write_text(TEST)
    (folder / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\npythonpath = ["."]\n'
    )
    (folder / "tests" / "requirements.csv").write_text(
        "id,holder,evidence,why\n"
        "1-1,model,tests/test_limit.py::test_the_limit_is_four"
        " tests/test_limit.py::test_the_limit_is_a_number,\n"
    )
    (folder / "tests" / "violations.toml").write_text(violations)
    return folder


def a_violation(new: str, test: str = "test_the_limit_is_four") -> Violation:
    return Violation(
        ("1-1",), "It.", "limit.py", "LIMIT = 4", new, (f"tests/test_limit.py::{test}",)
    )


def test_each_violation_is_of_a_sentence_its_tests_and_a_text_that_is_there() -> None:
    assert read_violations()


def test_each_violated_file_is_still_python() -> None:
    """A file that cannot be compiled would fail tests without violating anything."""
    for each in read_violations():
        if each.file.endswith(".py"):
            text = (ROOT / each.file).read_text(encoding="utf-8")
            compile(text.replace(each.old, each.new), f"{each.name}: {each.file}", "exec")


def test_each_sentence_that_tests_hold_is_violated() -> None:
    violated = {sentence for each in read_violations() for sentence in each.sentences}
    assert [row.id for row in read_rows() if row.evidence and row.id not in violated] == []


def test_a_violation_is_noticed_if_a_test_fails_and_only_then(tmp_path: Path) -> None:
    project = a_project(tmp_path)
    trials = try_all(
        [
            a_violation("LIMIT = 5"),
            a_violation("LIMIT = 5", "test_the_limit_is_a_number"),
            a_violation("LIMIT ="),
        ],
        root=project,
    )
    assert [trial.outcome for trial in trials] == [Outcome.NOTICED, Outcome.MISSED, Outcome.BROKEN]
    assert trials[0].failed == ("tests/test_limit.py::test_the_limit_is_four",)
    assert "SyntaxError" in trials[2].output
    assert (project / "limit.py").read_text() == "LIMIT = 4\n"


ENTRY = """
[[violation]]
sentences = ["{sentence}"]
does = "It."
file = "limit.py"
old = "{old}"
new = "5"
tests = ["tests/test_limit.py::{test}"]
"""


@pytest.mark.parametrize(
    "sentence, old, test, says",
    [
        ("1-2", "4", "test_the_limit_is_four", "1-2 is not held by any of"),
        ("1-1", "4", "test_of_something_else", "1-1 is not held by any of"),
        ("1-1", "3", "test_the_limit_is_four", "must have the text '3' once, not 0 times"),
    ],
)
def test_an_entry_that_cannot_be_tried_is_refused(
    sentence: str, old: str, test: str, says: str, tmp_path: Path
) -> None:
    entry = ENTRY.format(sentence=sentence, old=old, test=test)
    with pytest.raises(TableError, match=says):
        read_violations(a_project(tmp_path, entry))
