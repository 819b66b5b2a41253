"""Tests of the calls of tools."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from ddp_rnic.flow.tools import ALLOCATOR, ToolError, cache_directory, call, locked


def test_a_tool_gets_the_allocator_unless_the_user_has_set_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import os, sys; sys.exit(os.environ['GLIBC_TUNABLES'])"
    for value, before in ((ALLOCATOR["GLIBC_TUNABLES"], ""), ("glibc.malloc.check=0",) * 2):
        monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
        if before:
            monkeypatch.setenv("GLIBC_TUNABLES", before)
        with pytest.raises(ToolError, match=f"failed .1.:\\n{value}"):
            call([sys.executable, "-c", code])


def test_builds_are_kept_in_the_directory_of_xdg_if_it_is_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "cache", "./cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_directory() == tmp_path / ".cache" / "ddp-rnic"
    monkeypatch.setenv("XDG_CACHE_HOME", "/other")
    assert cache_directory() == Path("/other/ddp-rnic")


def test_a_directory_that_cannot_keep_builds_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sentence = f"builds cannot be kept in {tmp_path / 'file' / 'builds'}: Not a directory; name"
    with pytest.raises(ToolError, match=re.escape(sentence)), locked(tmp_path / "file/builds/it"):
        pass
    with (
        pytest.raises(ToolError, match=r": No space left on device; name another"),
        locked(tmp_path / "it"),
        open("/dev/full", "w", buffering=1) as full,
    ):
        full.write("all of it\n")
    with pytest.raises(FileNotFoundError), locked(tmp_path / "it"):
        os.stat(tmp_path / "nothing")
