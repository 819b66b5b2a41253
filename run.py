"""Run a command in the project's own environment, as ``python3 run.py rnic sim``.

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
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit("ddp-rnic needs Python 3.11 or later")
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if Path(sys.prefix).resolve() == ENVIRONMENT.resolve():
        sys.exit("run.py makes .venv: call it with the system's Python, not with the one in .venv")
    programs = ENVIRONMENT / "bin"
    _set_up(programs / "python")
    command = programs / sys.argv[1]
    if not command.exists():
        sys.exit(f"{sys.argv[1]} is no command of the environment in {ENVIRONMENT}")
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    os.execve(command, [str(command), *sys.argv[2:]], {**os.environ, "PATH": path})


def _set_up(python: Path) -> None:
    # A machine without a C++ compiler gets the one that PyPI has.
    compiler = any(map(shutil.which, ("g++", "clang++")))
    extras = ["build", "test", *([] if compiler else ["compiler"])]
    files = [ROOT / "pyproject.toml", ROOT / "requirements.lock"]
    texts = [*(file.read_text(encoding="utf-8") for file in files), sys.version, *extras]
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    with open(ROOT / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = ENVIRONMENT / "ready"
        if done.exists() and done.read_text() == key:
            return
        print("setting up .venv, which takes a minute or two", file=sys.stderr)
        # Without pip in it, as not every Python can put it there; the pip at hand serves.
        venv.create(ENVIRONMENT, clear=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "--quiet",
            "--disable-pip-version-check",
            "install",
            "--constraint",
            str(files[1]),
        ]
        for arguments in (
            ["setuptools"],
            ["--no-build-isolation", "--editable", f"{ROOT}[{','.join(extras)}]"],
        ):
            if subprocess.run([*pip, *arguments]).returncode:
                sys.exit("the environment could not be set up: pip failed, see above")
        done.write_text(key)


if __name__ == "__main__":
    main()
