"""Where the captures of real stacks lie, for the tests that are held against them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

CAPTURES = Path(__file__).resolve().parents[3].parent / "shared" / "captures"
#: File name patterns of what a test named in its ``captures`` argument reads.
_KINDS = {
    "iwarp_truth": "iwarp/*/truth/*.server.jsonl",
    "sctp_truth": "sctp/truth/*/*.passive.jsonl",
    "iwarp_capture": "**/*.pcap",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a file, or one that says that the captures are not here."""
    for name, pattern in _KINDS.items():
        if name in metafunc.fixturenames:
            files = sorted(CAPTURES.glob(pattern))
            here = files or [pytest.param(None, marks=pytest.mark.skip(
                "needs the captures of real stacks: shared/captures beside the project"))]
            metafunc.parametrize(name, here, scope="module", ids=lambda path: path and str(
                path.relative_to(CAPTURES)))


@pytest.fixture
def captures() -> Iterator[Path]:
    """The folder of the captures."""
    if not CAPTURES.is_dir():
        pytest.skip("needs the captures of real stacks: shared/captures beside the project")
    yield CAPTURES
