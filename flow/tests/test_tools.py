"""Tests of the calls of tools."""

from __future__ import annotations

import sys

import pytest
from ddp_rnic.flow.tools import ALLOCATOR, ToolError, call


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
