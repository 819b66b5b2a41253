"""Names the extras that the ``rnic`` commands need.

Imports nothing, because the packages of an extra may be missing.
"""

from __future__ import annotations

#: The commands in the order of ``rnic --help``, each with the extra that it needs.
COMMANDS = {
    "sim": "sim",
    "explain": "sim",
    "peer": "sim",
    "compare": "sim",
    "bench": "sim",
    "soak": "sim",
    "mutate": "sim",
    "shuffle": "sim",
    "build": "flow",
    "program": "flow",
    "config": "hdl",
    "export": "hdl",
    "requirements": "cli",
    "prm": "cli",
}
#: The extra that installs a package which a command imports only for some of its options.
EXTRA_OF = {
    "amaranth": "sim",
    "amaranth_boards": "flow",
    "cocotb": "sim",
    "cocotb_tools": "sim",
    "cocotbext": "sim",
    "dpkt": "sim",
    "google_crc32c": "sim",
    "numpy": "sim",
    "pyslang": "sim",
    "rich": "cli",
    "typer": "cli",
}


def missing(error: ModuleNotFoundError, extra: str | None = None) -> str | None:
    """Returns one sentence that names a missing package and the extra that installs it.

    Returns None for a package that no extra installs. ``extra`` is that of the command, if
    the command cannot be imported.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        return None
    return (
        f"rnic: {package.replace('_', '-')} is not installed:"
        f" pip install 'ddp-rnic[{extra or EXTRA_OF[package]}]'"
    )
