"""Runs a command in the project's own environment, as ``python3 run.py rnic sim``.

``python3 run.py docs`` builds the site into ``docs/_build/html``.

The environment is ``.venv`` beside this file, with the versions from ``requirements.lock``. The
first run makes it, and a later run makes it again when it is out of date. ``rnic sim``,
``rnic explain`` and ``rnic peer`` wait only for the packages of the simulators. Those for boards
and plots are added before the first other command of ``rnic`` and before ``python``, those for
development before any other program. The script itself needs only Python 3.11 and pip.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
PROJECT, LOCK = ROOT / "pyproject.toml", ROOT / "requirements.lock"
#: Extras of pyproject.toml: for simulation, for all commands of rnic, for changes of the project.
SIMULATE, USE, DEVELOP = ("serial", "sim"), ("flow", "plots"), ("dev",)
#: The commands of rnic that only simulate.
SIMULATORS = ("sim", "explain", "peer")


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit("ddp-rnic needs Python 3.11 or later")
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if Path(sys.prefix).resolve() == ENVIRONMENT.resolve():
        sys.exit("run.py makes .venv: call it with the system's Python, not with the one in .venv")
    programs = ENVIRONMENT / "bin"
    arguments = sys.argv[1:]
    _set_up(programs / "python")
    if _develops(arguments):
        _add(programs / "python", "development", DEVELOP)
    elif arguments[1:2] not in [[name] for name in SIMULATORS]:
        _add(programs / "python", "boards and plots", USE)
    if arguments == ["docs"]:
        arguments = ["python", str(ROOT / "docs" / "build.py")]
    command = programs / arguments[0]
    if not command.exists():
        sys.exit(f"{arguments[0]} is no command of the environment in {ENVIRONMENT}")
    os.execve(command, [str(command), *arguments[1:]], environment())


def environment() -> dict[str, str]:
    """Returns the variables of the command, for which Python keeps the bytecode of modules.

    Containers often set PYTHONDONTWRITEBYTECODE. Each process would then compile all that it
    imports, for more than half of the time of a short command. The bytecode is kept in .venv, so
    that none appears beside sources.
    """
    return {
        "PYTHONPYCACHEPREFIX": str(ENVIRONMENT / "bytecode"),
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "PATH": os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ.get("PATH", os.defpath)]),
    }


def _develops(arguments: list[str]) -> bool:
    """Returns True if a command needs more than the packages for users."""
    # 'rnic requirements --violate' runs the tests.
    return arguments[0] not in ("rnic", "python") or arguments[1:2] == ["requirements"]


def _set_up(python: Path) -> None:
    # A machine without a C++ compiler gets the compiler from PyPI.
    compiler = any(map(shutil.which, ("g++", "clang++")))
    extras = [*SIMULATE, *([] if compiler else ["compiler"])]
    with _once("ready", [*_versions(), *extras]) as missing:
        if missing:
            print("setting up .venv, which takes a minute or less", file=sys.stderr)
            # The environment has no pip, because not every Python can install it there. The pip of
            # this Python is used instead.
            venv.create(ENVIRONMENT, clear=True)
            _install(python, extras)


def _add(python: Path, purpose: str, extras: Sequence[str]) -> None:
    with _once(f"ready-{extras[0]}", [*_versions(), *extras]) as missing:
        if missing:
            print(f"adding the packages for {purpose} to .venv", file=sys.stderr)
            _install(python, extras)


def _versions() -> list[str]:
    return [*(file.read_text(encoding="utf-8") for file in (PROJECT, LOCK)), sys.version]


@contextmanager
def _once(name: str, texts: list[str]) -> Iterator[bool]:
    """Yields True if the block must do its work: at first, and when ``texts`` have changed."""
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    with open(ROOT / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = ENVIRONMENT / name
        missing = not done.exists() or done.read_text() != key
        yield missing
        if missing:
            done.write_text(key)


def _install(python: Path, extras: Sequence[str]) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet"]
    # Python compiles the modules that it imports. pip would compile all, in half of its time.
    options = ["--disable-pip-version-check", "--no-compile", "--constraint", str(LOCK)]
    project = ["--editable", f"{ROOT}[{','.join(extras)}]"]
    if subprocess.run([*pip, "install", *options, *project]).returncode:
        sys.exit("the environment could not be set up: pip failed, see above")


if __name__ == "__main__":
    main()
