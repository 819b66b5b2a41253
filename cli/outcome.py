"""Maps the errors of a command to its exit code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer

from ..flow.tools import BuildError, ToolError
from ..sim.campaigns.violations import TableError
from ..sim.capture.capture import CaptureError
from ..sim.engines.engine import DeviceError
from ..sim.replay.regions import RegionError
from ..sw_driver import InvalidRequest, RnicError

AGREES, DIFFERS, BAD_INPUT, NO_TOOL, INTERRUPTED = 0, 1, 2, 3, 130

P = ParamSpec("P")
R = TypeVar("R")


class BadInput(Exception):
    """A command cannot do what its arguments ask for; the message is one sentence."""


def exits(*bad_input: type[Exception]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a command: an error ends it with one sentence and an exit code.

    Exit code 2: the input is bad; 1: a device differs, fails or does not fit; 3: a tool is
    missing; 130: the user interrupted the command.

    Parameters
    ----------
    bad_input
        Further errors that mean bad input in this command.
    """
    codes: dict[tuple[type[Exception], ...], int] = {
        (BadInput, CaptureError, RegionError, TableError, InvalidRequest, *bad_input): BAD_INPUT,
        (DeviceError, RnicError, BuildError): DIFFERS,
        (ToolError,): NO_TOOL,
    }

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(command)
        def run(*arguments: P.args, **options: P.kwargs) -> R:
            try:
                return command(*arguments, **options)
            except KeyboardInterrupt:
                sentence, code = "interrupted", INTERRUPTED
            except Exception as error:
                found = [code for kinds, code in codes.items() if isinstance(error, kinds)]
                if not found:
                    raise
                sentence, code = str(error), found[0]
            typer.echo(f"rnic: {sentence}", err=True)
            raise typer.Exit(code)

        return run

    return decorate


def check_directory(out: Path | None) -> None:
    """Raises unless ``--out`` is a directory, or nothing is there."""
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file, not a directory")


@contextmanager
def writing(out: Path | None) -> Iterator[None]:
    """Turns an error of the file system into one sentence about ``--out``."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"cannot write to --out {out}: {error.strerror}") from None
