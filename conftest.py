"""Holds a full run of the tests against ``tests/requirements.csv``: what that names must pass."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from ddp_rnic.sim.verilator import QUICK

# Tests run for seconds: the workers of xdist, and the commands that tests call, inherit it.
os.environ.setdefault(QUICK, "1")

TABLE = Path(__file__).resolve().parent / "tests" / "requirements.csv"
#: Options of pytest that leave tests out.
PARTIAL = (
    "keyword",
    "markexpr",
    "deselect",
    "ignore",
    "ignore_glob",
    "lf",
    "stepwise",
    "collectonly",
)


def read_table() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def requirements() -> list[dict[str, str]]:
    """The lines of the table: ``id``, ``holder``, ``evidence``, ``why``."""
    return read_table()


class Evidence:
    """Takes note of what passes, and fails a full run that misses a test of the table."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.missed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid.partition("[")[0])

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        config = session.config
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(
            config.getoption(option, None) for option in PARTIAL
        )
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not whole or not ended or session.shouldfail or session.shouldstop:
            return
        self.missed = [
            f"{row['id']}: {name}"
            for row in read_table()
            for name in row["evidence"].split()
            if name not in self.passed
        ]
        if self.missed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.missed:
            terminalreporter.section("requirements whose tests did not pass", red=True)
            for line in self.missed:
                terminalreporter.line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gates", action="store_true", help="run what synthesises a whole, too")


@pytest.fixture
def synthesis(request: pytest.FixtureRequest) -> None:
    """Of a test that synthesises a whole RNIC or board, which takes minutes."""
    if not request.config.getoption("--gates"):
        pytest.skip("takes minutes: pytest --gates")


def pytest_configure(config: pytest.Config) -> None:
    # Under pytest-xdist the reports of all workers come to the controller.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Evidence())
