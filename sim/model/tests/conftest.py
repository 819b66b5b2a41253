"""Finds the captures of real stacks, for the tests that compare the model with them."""

from __future__ import annotations

from pathlib import Path

import pytest

CAPTURES = Path(__file__).resolve().parents[3].parent / "shared" / "captures"
#: File name patterns of the captures, by the name of the argument with which a test asks for them.
_KINDS = {
    "iwarp_truth": ("iwarp/*/truth/*.server.jsonl",),
    "sctp_truth": ("sctp/truth/*/*.passive.jsonl",),
    "mpa_capture": (
        "iwarp/*/*.pcap",
        "interop/*.pcap",
        "synthetic/*.pcap",
        "public/wireshark-wiki/iwarp_*/*",
        "public/SoftUiWarp/*.pcap",
    ),
    "sctp_capture": ("sctp/*.pcap",),
}


def _name(path: Path | None) -> str:
    return str(path.relative_to(CAPTURES)) if path else "absent"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test per capture, or one skipped test that says that the captures are missing."""
    for name, patterns in _KINDS.items():
        if name in metafunc.fixturenames:
            files = sorted(path for pattern in patterns for path in CAPTURES.glob(pattern))
            absent = [
                pytest.param(
                    None,
                    marks=pytest.mark.skip(
                        "needs the captures of real stacks: shared/captures beside the project"
                    ),
                )
            ]
            metafunc.parametrize(name, files or absent, ids=_name, scope="module")
