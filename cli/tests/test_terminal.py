"""Tests that tables can be read on a terminal of any width."""

from __future__ import annotations

import io
import re

import pytest
from ddp_rnic.cli import terminal
from ddp_rnic.cli.terminal import bar, print_table
from rich.console import Console

HEADINGS = ("stream", "from", "octets placed", "error")
ROWS = [
    ("0", "10.7.0.1:40000", "350", ""),
    ("1", "[fd00::1]:40000", "3500000", "0x0203 in frame 7, 0x0101 in frame 9"),
]


def printed(width: int, *, color: bool = False) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=color or None, highlight=False)
    print_table(console, "a/path/to/capture.pcap [1]: DDP Streams", HEADINGS, ROWS)
    return text.getvalue()


@pytest.mark.parametrize("width", range(10, 120))
def test_no_word_is_cut_at_any_width(width: int) -> None:
    text = printed(width)
    assert text.startswith("a/path/to/capture.pcap [1]: DDP Streams\n")
    for line in (HEADINGS, *ROWS):
        assert all(word in text for cell in line for word in cell.split())
    if "┏" in text:
        assert max(map(len, text.splitlines()[1:])) <= width


def test_a_wide_terminal_gets_a_table_and_a_narrow_one_gets_paragraphs() -> None:
    assert "│      1 │ [fd00::1]:40000 │       3500000 │ 0x0203 in frame 7, 0x0101" in printed(100)
    assert "error          0x0203 in frame 7, 0x0101 in frame 9\n" in printed(40)
    assert printed(40).count("error") == 1  # the other stream has none


def test_only_a_terminal_gets_colors() -> None:
    assert "\x1b" in printed(80, color=True) and "\x1b" not in printed(80)


def test_a_bar_shows_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    shown = Console(file=text, width=100, force_terminal=True)
    monkeypatch.setattr(terminal, "Console", lambda stderr: shown)
    with bar("playing", 4) as progress:
        assert progress is not None
        progress(1, 4)
    assert "playing" in text.getvalue() and "1/4" in text.getvalue()
    assert re.search(r"left\S* \S*(-:--:--|\d:\d\d:\d\d)", text.getvalue())
