"""Finds the captures of real stacks, for the tests that compare the model with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CAPTURES = Path(__file__).resolve().parents[3].parent / "shared" / "captures"
#: File name patterns of the captures, by the name of the argument with which a test asks for them.
_KINDS: dict[str, tuple[str, ...]] = {
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
#: As ``mpa_capture``, for what takes longer: without ``--long`` the first capture of each folder.
_KINDS["few_mpa_captures"] = _KINDS["mpa_capture"]


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
            cases: list[Any] = [*files]
            if name.startswith("few_"):
                folders = [path.parent for path in files]
                first = [folders.index(folder) for folder in folders]
                cases = [
                    path if at == number else pytest.param(path, marks=pytest.mark.long)
                    for number, (path, at) in enumerate(zip(files, first, strict=True))
                ]
            metafunc.parametrize(name, cases or absent, ids=_name, scope="module")
