"""Checks the table of requirements: it is complete, and the tests that it names exist and run."""

from __future__ import annotations

import ast
import csv
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The normative sentences of RFC 5041 and 5043, and of RFC 5040, 5044 and 6581, where the lists lie
#: beside the project.
LISTED = [
    ROOT.parent / "shared" / "spec" / name
    for name in ("requirements.csv", "requirements-mpa-rdmap.csv")
]
#: The same lists, as the site quotes them.
QUOTED = ROOT / "docs" / "sentences.csv"
SENTENCES = 192 + 339
OURS, OTHERS = ("datapath", "model", "driver", "manager"), ("host", "llp", "ulp")
#: The holder of a sentence that this project should honour and does not; the line says why.
NOBODY = "nobody"

Table = list[dict[str, str]]


def totals(requirements: Table) -> str:
    """Returns the README's sentence about the table."""
    held = Counter(row["holder"] for row in requirements)
    return (
        f"Of the {len(requirements)} normative sentences of RFC 5040, 5041, 5043, 5044 and 6581,"
        f" tests and proofs of the gateware hold {held['datapath']}, tests of the golden model"
        f" {held['model']}, tests of the driver {held['driver']}, of the resource manager"
        f" {held['manager']}; {sum(held[other] for other in OTHERS)} are for others to honour:"
        f" {held['host']} for the host, {held['llp']} for the LLP below, {held['ulp']} for the ULP"
        f" above. {held[NOBODY]} are not honoured yet."
    )


def test_every_sentence_has_one_line(requirements: Table) -> None:
    ids = [row["id"] for row in requirements]
    assert len(ids) == len(set(ids)) == SENTENCES
    if all(path.exists() for path in LISTED):
        first, second = (path.read_text(encoding="utf-8") for path in LISTED)
        header = first[: first.index("\n") + 1]
        assert first + second.removeprefix(header) == QUOTED.read_text(encoding="utf-8")
    with QUOTED.open(encoding="utf-8", newline="") as file:
        assert ids == [row["id"] for row in csv.DictReader(file)]


def test_every_line_says_who_holds_it_and_how(requirements: Table) -> None:
    for row in requirements:
        assert row["holder"] in (*OURS, *OTHERS, NOBODY), row["id"]
        assert bool(row["evidence"]) == (row["holder"] in OURS), row["id"]
        if row["holder"] == "datapath":
            names = row["evidence"].split()
            assert not all(name.startswith("sim/model/") for name in names), row["id"]
        else:
            assert row["why"], row["id"]


def test_every_named_test_exists(requirements: Table) -> None:
    known: dict[str, set[str]] = {}
    absent = []
    for row in requirements:
        for name in row["evidence"].split():
            path, _, function = name.partition("::")
            if path not in known:
                source = ROOT / path
                tree = ast.parse(source.read_text(encoding="utf-8") if source.is_file() else "")
                known[path] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            if function not in known[path]:
                absent.append(f"{row['id']}: {name} ({row['why']})")
    assert not absent, "\n".join(absent)


def test_the_readme_has_the_totals(requirements: Table) -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert totals(requirements) in readme


RUN = """
import pytest

@pytest.mark.parametrize("number", range(2))
def test_passes(number):
    if number:
        pytest.skip("one of two")

def test_is_skipped():
    pytest.skip("nothing ran")
"""


def test_a_full_run_fails_where_a_named_test_did_not_pass(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    (tmp_path / "tests" / "test_it.py").write_text(RUN)
    shutil.copy(ROOT / "conftest.py", tmp_path)

    def run(evidence: str, *arguments: str) -> tuple[int, str]:
        (tmp_path / "tests" / "requirements.csv").write_text(
            f"id,holder,evidence,why\n1-1,datapath,{evidence},\n"
        )
        result = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return result.returncode, result.stdout

    passes, skipped = "tests/test_it.py::test_passes", "tests/test_it.py::test_is_skipped"
    assert run(passes, "-n2")[0] == 0
    for processes in ("-n0", "-n2"):
        code, text = run(f"{passes} {skipped}", processes)
        assert code == 1 and f"1-1: {skipped}" in text and f"1-1: {passes}" not in text
    assert run(skipped, "-n0", "-k", "passes")[0] == 0
    assert run(skipped, "-n0", "tests/test_it.py")[0] == 0
