"""The ``rnic`` command."""

from __future__ import annotations

from .cli.app import app


def main() -> None:
    """Run it."""
    app(prog_name="rnic")


if __name__ == "__main__":
    main()
