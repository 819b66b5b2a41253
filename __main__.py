"""The ``rnic`` command."""

from __future__ import annotations

import sys

from .cli.extras import missing
from .cli.output import guarded


def main() -> None:
    """Runs the command that the arguments name.

    Where a package is missing, prints one sentence that names the extra, and exits with code 3.
    """
    guarded(_main)


def _main() -> None:
    try:
        from .cli.app import app

        app(prog_name="rnic")
    except ModuleNotFoundError as error:
        sentence = missing(error)
        if sentence is None:
            raise
        print(sentence, file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
