"""The ``rnic`` command."""

from __future__ import annotations

import sys

from . import __version__

#: The extra that installs a package, by the package's import name.
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
    "rich": "sim",
    "typer": "sim",
}


def main() -> None:
    """Runs the command that the arguments name.

    Where a package is missing, prints one sentence that names the extra, and exits with code 3.
    """
    try:
        from .cli.app import app

        app(prog_name="rnic")
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in EXTRA_OF:
            raise
        print(
            f"rnic: the commands of ddp-rnic {__version__} need {name.replace('_', '-')},"
            f" which is not installed: pip install 'ddp-rnic[{EXTRA_OF[name]}]'",
            file=sys.stderr,
        )
        sys.exit(3)


if __name__ == "__main__":
    main()
