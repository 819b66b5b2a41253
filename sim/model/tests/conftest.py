"""Where the captures of real stacks lie, for the tests that are held against them."""

from __future__ import annotations

from pathlib import Path

import pytest

CAPTURES = Path(__file__).resolve().parents[3].parent / "shared" / "captures"
#: File name patterns of what a test named in its arguments reads.
_KINDS = {
    "iwarp_truth": ("iwarp/*/truth/*.server.jsonl",),
    "sctp_truth": ("sctp/truth/*/*.passive.jsonl",),
    "mpa_capture": ("iwarp/*/*.pcap", "interop/*.pcap", "synthetic/*.pcap",
                    "public/wireshark-wiki/iwarp_*/*", "public/SoftUiWarp/*.pcap"),
    "sctp_capture": ("sctp/*.pcap",),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a file, or one that says that the captures are not here."""
    for name, patterns in _KINDS.items():
        if name in metafunc.fixturenames:
            files = sorted(path for pattern in patterns for path in CAPTURES.glob(pattern))
            here = files or [pytest.param(None, marks=pytest.mark.skip(
                "needs the captures of real stacks: shared/captures beside the project"))]
            metafunc.parametrize(name, here, scope="module", ids=lambda path: path and str(
                path.relative_to(CAPTURES)))
