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
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
PROJECT, LOCK = ROOT / "pyproject.toml", ROOT / "requirements.lock"
#: Extras of pyproject.toml: for simulation, for all commands of rnic, for changes of the project.
SIMULATE = ("serial", "sim")
USE = (*SIMULATE, "flow", "plots")
DEVELOP = (*USE, "dev")
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
    if _develops(arguments):
        _set_up(programs / "python", DEVELOP)
    elif arguments[1:2] in [[name] for name in SIMULATORS]:
        _set_up(programs / "python", SIMULATE)
    else:
        _set_up(programs / "python", USE)
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


def _set_up(python: Path, extras: Sequence[str]) -> None:
    """Makes the environment unless it is up to date, and adds the extras that it lacks.

    Its file ``ready`` has a digest of the versions, and the extras that are there.
    """
    # A machine without a C++ compiler gets the compiler from PyPI.
    needs = [] if any(map(shutil.which, ("g++", "clang++"))) else ["compiler"]
    texts = [*(file.read_text(encoding="utf-8") for file in (PROJECT, LOCK)), sys.version]
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    with open(ROOT / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = ENVIRONMENT / "ready"
        there = ready.read_text().split() if ready.exists() else []
        if there[:1] != [key]:
            print("setting up .venv, which takes a minute or less", file=sys.stderr)
            # The environment has no pip, because not every Python can install it there. The pip of
            # this Python is used instead.
            venv.create(ENVIRONMENT, clear=True)
            there = [key]
        missing = [each for each in (*extras, *needs) if each not in there]
        if missing:
            if len(there) > 1:
                print(f"adding the packages of {', '.join(missing)} to .venv", file=sys.stderr)
            _install(python, missing)
            ready.write_text(" ".join([*there, *missing]))


def _install(python: Path, extras: Sequence[str]) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet"]
    # Python compiles the modules that it imports. pip would compile all, in half of its time.
    options = ["--disable-pip-version-check", "--no-compile", "--constraint", str(LOCK)]
    project = ["--editable", f"{ROOT}[{','.join(extras)}]"]
    if subprocess.run([*pip, "install", *options, *project]).returncode:
        sys.exit("the environment could not be set up: pip failed, see above")


if __name__ == "__main__":
    main()
