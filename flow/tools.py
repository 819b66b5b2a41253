"""Finds the tools that builds need, and keeps finished builds in a cache."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: The number of seconds after which an unused build is removed.
_KEEP = 30 * 24 * 3600


def cache_directory() -> Path:
    """Returns the directory in which builds are kept.

    The XDG Base Directory Specification: "If an implementation encounters a relative path in any of
    these variables it should consider the path invalid and ignore it."
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "ddp-rnic"


def compiler() -> list[str]:
    """Returns the command of the C++ compiler: one of the machine, or else the one from PyPI.

    Raises :class:`ToolError` if there is no compiler.
    """
    for name in ("clang++", "g++"):  # clang's code is faster
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise ToolError(
        "a C++ compiler is missing: install g++ or clang++, or pip install 'ddp-rnic[compiler]'"
    )


#: Verilator and yosys allocate millions of small nodes. Verilator needs a third less time, and
#: yosys a fifth, if glibc keeps freed blocks at hand and asks for huge pages. Other C libraries
#: ignore this variable.
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=65535:glibc.malloc.hugetlb=1"}


def call(command: Sequence[str], **environment: str) -> None:
    """Runs a program, with further environment variables; raises ToolError if it fails."""
    environment = {**ALLOCATOR, **os.environ, **environment}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        tail = "\n".join((run.stdout + run.stderr).strip().splitlines()[-20:])
        raise ToolError(f"{Path(command[0]).name} failed ({run.returncode}):\n{tail}")


def digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        octets = part.encode()
        digest.update(len(octets).to_bytes(8, "little") + octets)
    return digest.hexdigest()[:24]


def write(path: Path, text: str) -> None:
    """Writes a file so that other processes see it either complete or not at all."""
    made = path.with_suffix(".tmp")
    made.write_text(text, encoding="utf-8")
    os.replace(made, path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock, so that no other process makes the same file in the meantime.

    Raises :class:`ToolError` if the directory of the file cannot be written.
    """
    held = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.parent / f"{path.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held = True
            yield
    except OSError as error:
        if held and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        raise ToolError(
            f"builds cannot be kept in {path.parent}: {error.strerror}; name another directory in"
            " XDG_CACHE_HOME"
        ) from None


def remove_unused(builds: Path) -> None:
    for build in builds.iterdir():
        if build.is_dir() and time.time() - build.stat().st_mtime > _KEEP:
            shutil.rmtree(build, ignore_errors=True)


class ToolError(Exception):
    """A tool that is needed is missing or has failed."""


class BuildError(Exception):
    """A design does not fit its device, or misses its timing."""
