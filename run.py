"""Run a command in the project's own environment, as ``python3 run.py rnic sim``.

``python3 run.py docs`` builds the site into ``docs/_build/html``.

The environment is ``.venv`` beside this file, with the versions that ``requirements.lock`` names.
It is made at the first run, and again when it is out of date. Python 3.11 and pip are all that is
needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
PROJECT, LOCK = ROOT / "pyproject.toml", ROOT / "requirements.lock"


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit("ddp-rnic needs Python 3.11 or later")
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if Path(sys.prefix).resolve() == ENVIRONMENT.resolve():
        sys.exit("run.py makes .venv: call it with the system's Python, not with the one in .venv")
    programs = ENVIRONMENT / "bin"
    _set_up(programs / "python")
    arguments = sys.argv[1:]
    if arguments == ["docs"]:
        _add_docs(programs / "python")
        arguments = ["python", str(ROOT / "docs" / "build.py")]
    command = programs / arguments[0]
    if not command.exists():
        sys.exit(f"{arguments[0]} is no command of the environment in {ENVIRONMENT}")
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    os.execve(command, [str(command), *arguments[1:]], {**os.environ, "PATH": path})


def _set_up(python: Path) -> None:
    # A machine without a C++ compiler gets the one that PyPI has.
    compiler = any(map(shutil.which, ("g++", "clang++")))
    extras = ["build", "test", *([] if compiler else ["compiler"])]
    texts = [*(file.read_text(encoding="utf-8") for file in (PROJECT, LOCK)), sys.version, *extras]
    with _once("ready", texts) as missing:
        if missing:
            print("setting up .venv, which takes a minute or two", file=sys.stderr)
            # Without pip in it, as not every Python can put it there; the pip at hand serves.
            venv.create(ENVIRONMENT, clear=True)
            _install(python, "setuptools")
            project = f"{ROOT}[{','.join(extras)}]"
            _install(python, "--no-build-isolation", "--editable", project)


def _add_docs(python: Path) -> None:
    # Only the site needs these packages, so that the first run of other commands stays short.
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    with _once("ready-docs", [*extras["docs"], LOCK.read_text(encoding="utf-8")]) as missing:
        if missing:
            print("adding Sphinx to .venv", file=sys.stderr)
            _install(python, *extras["docs"])


@contextmanager
def _once(name: str, texts: list[str]) -> Iterator[bool]:
    """Yields whether to do the work of its block: the first time, and when ``texts`` change."""
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    with open(ROOT / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = ENVIRONMENT / name
        missing = not done.exists() or done.read_text() != key
        yield missing
        if missing:
            done.write_text(key)


def _install(python: Path, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet"]
    options = ["--disable-pip-version-check", "--constraint", str(LOCK)]
    if subprocess.run([*pip, "install", *options, *arguments]).returncode:
        sys.exit("the environment could not be set up: pip failed, see above")


if __name__ == "__main__":
    main()
