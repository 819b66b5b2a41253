"""Violates each normative sentence on purpose, and checks that the tests for it notice.

A violation is a small change of the project's source after which one sentence of an RFC no longer
holds. ``tests/violations.toml`` has the violations, ``tests/requirements.csv`` names the tests that
hold each sentence. A violation is *noticed* when one of these tests fails on a copy of the project
that has the change.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import SimpleQueue

__all__ = ["Outcome", "Row", "Trial", "TableError", "Violation", "read_rows", "read_violations",
           "try_all"]  # fmt: skip

#: The project's folder.
ROOT = Path(__file__).resolve().parents[2]
#: Seconds that the tests of one violation may take.
LIMIT = 600
#: Files that a copy of the project does not need.
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
#: Exit codes of pytest: all tests passed, and some failed.
_PASSED, _FAILED = 0, 1


class TableError(Exception):
    """A table that cannot be used: the message names the file, the entry and the fault."""


@dataclass(frozen=True)
class Row:
    """A sentence's row: its ``id``, the project's part that holds it, and the tests that do."""

    id: str
    holder: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Violation:
    """A change of one source file that violates sentences.

    Parameters
    ----------
    sentences
        Ids of the sentences, as in ``tests/requirements.csv``.
    does
        What the changed project does wrong, as a sentence.
    file
        The source file, relative to the project's folder.
    old, new
        A text that the file has exactly once, and the text that takes its place.
    tests
        The tests to run: some of those that hold the sentences.
    """

    sentences: tuple[str, ...]
    does: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return ", ".join(self.sentences)


class Outcome(Enum):
    """The outcome of the tests for a violation."""

    NOTICED = "noticed"
    MISSED = "not noticed"
    BROKEN = "the tests did not run"


@dataclass(frozen=True)
class Trial:
    """A violation that was tried: the outcome, the tests that failed, and the seconds it took.

    ``output`` is pytest's output, where the tests did not run.
    """

    violation: Violation
    outcome: Outcome
    failed: tuple[str, ...]
    seconds: float
    output: str = ""


def read_rows(root: Path = ROOT) -> list[Row]:
    """Returns the rows of ``tests/requirements.csv``."""
    path = root / "tests" / "requirements.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                Row(row["id"], row["holder"], tuple(row["evidence"].split()))
                for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}; run the command in a checkout") from None


def read_violations(root: Path = ROOT) -> list[Violation]:
    """Returns the violations of ``tests/violations.toml``, each checked against rows and sources.

    Raises
    ------
    TableError
        An entry names a sentence without tests, tests that do not hold the sentence, or a text
        that its file does not have exactly once.
    """
    path = root / "tests" / "violations.toml"
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["violation"]
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}; run the command in a checkout") from None
    evidence = {row.id: row.evidence for row in read_rows(root)}
    found = []
    for entry in entries:
        sentences = tuple(entry["sentences"])
        held = [set(evidence.get(sentence, ())) for sentence in sentences]
        tests = tuple(entry["tests"])
        violation = Violation(
            sentences, entry["does"], entry["file"], entry["old"], entry["new"], tests
        )
        for sentence, names in zip(sentences, held, strict=True):
            if not names & set(tests):
                raise TableError(f"{path}: {sentence} is not held by any of {', '.join(tests)}")
        if stray := set(tests).difference(*held):
            raise TableError(f"{path}: {violation.name} is not held by {', '.join(sorted(stray))}")
        times = (root / violation.file).read_text(encoding="utf-8").count(violation.old)
        if times != 1:
            raise TableError(
                f"{path}: {violation.name}: {violation.file} must have the text"
                f" {violation.old!r} once, not {times} times"
            )
        found.append(violation)
    return found


def try_all(
    violations: Iterable[Violation],
    jobs: int = 1,
    said: Callable[[Trial], None] = lambda trial: None,
    root: Path = ROOT,
) -> list[Trial]:
    """Tries violations, some at a time, each on a copy of the project.

    Parameters
    ----------
    violations
        The violations.
    jobs
        How many are tried at a time.
    said
        Called with each trial once it is over.
    """
    with tempfile.TemporaryDirectory(prefix="rnic-") as directory:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            # The folder's name is that of the package, which Python then imports from there.
            copy = Path(directory, str(number), "ddp_rnic")
            shutil.copytree(root, copy, ignore=_LEFT_OUT)
            copies.put(copy)

        def attempt(violation: Violation) -> Trial:
            copy = copies.get()
            try:
                trial = _try(violation, copy)
            finally:
                copies.put(copy)
            said(trial)
            return trial

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(attempt, violations))


def _try(violation: Violation, copy: Path) -> Trial:
    """Tries a violation on a copy, which is unchanged afterwards."""
    path = copy / violation.file
    sound = path.read_text(encoding="utf-8")
    began = time.monotonic()
    try:
        path.write_text(sound.replace(violation.old, violation.new), encoding="utf-8")
        code, output = _run(violation.tests, copy)
    finally:
        path.write_text(sound, encoding="utf-8")
    outcomes = {_PASSED: Outcome.MISSED, _FAILED: Outcome.NOTICED}
    outcome = outcomes.get(code, Outcome.BROKEN)
    failed = tuple(_failures(output))
    # A file that cannot be imported any more is not a test that noticed.
    if outcome is Outcome.NOTICED and not failed:
        outcome = Outcome.BROKEN
    seconds = time.monotonic() - began
    return Trial(violation, outcome, failed, seconds, output if outcome is Outcome.BROKEN else "")


def _run(tests: Iterable[str], copy: Path) -> tuple[int, str]:
    """Runs tests of a copy; returns pytest's exit code and its output."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Builds of changed gateware are deleted with the copy.
        "XDG_CACHE_HOME": str(copy.parent / "cache"),
    }
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "-rf", "-p", "no:cacheprovider"]
    try:
        result = subprocess.run(
            [*command, *tests],
            cwd=copy,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return -1, f"the tests took more than {LIMIT} seconds"
    return result.returncode, result.stdout


def _failures(output: str) -> Iterator[str]:
    """Yields the tests that failed, according to pytest's summary."""
    for line in output.splitlines():
        if line.startswith("FAILED "):
            yield line.removeprefix("FAILED ").split(" - ")[0].split("[")[0]
