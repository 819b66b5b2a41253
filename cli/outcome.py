"""Maps the errors of a command to its exit code."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer

AGREES, DIFFERS, BAD_INPUT, NO_TOOL, INTERRUPTED = 0, 1, 2, 3, 130

#: The exit codes of errors, and of their subclasses. They are named, not imported, because a
#: command must not need the packages that the others import.
_CODES = {
    "flow.tools.BuildError": DIFFERS,
    "flow.tools.ToolError": NO_TOOL,
    "sim.campaigns.violations.TableError": BAD_INPUT,
    "sim.capture.pcap.CaptureError": BAD_INPUT,
    "sim.engines.engine.DeviceError": DIFFERS,
    "sim.replay.regions.RegionError": BAD_INPUT,
    "sw_driver.base.errors.InvalidRequest": BAD_INPUT,
    "sw_driver.base.errors.RnicError": DIFFERS,
}

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

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(command)
        def run(*arguments: P.args, **options: P.kwargs) -> R:
            try:
                return command(*arguments, **options)
            except KeyboardInterrupt:
                sentence, code = "interrupted", INTERRUPTED
            except Exception as error:
                found = BAD_INPUT if isinstance(error, (BadInput, *bad_input)) else _code(error)
                if found is None:
                    raise
                sentence, code = str(error), found
            typer.echo(f"rnic: {sentence}", err=True)
            raise typer.Exit(code)

        return run

    return decorate


def _code(error: Exception) -> int | None:
    """Returns the exit code of the most specific class of an error that has one."""
    package = __package__.rpartition(".")[0]
    for kind in type(error).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix(f"{package}.")
        if name in _CODES:
            return _CODES[name]
    return None


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Yields a function after whose call Ctrl-C calls ``stop``, once, instead of raising.

    The next Ctrl-C raises KeyboardInterrupt. A command that was started with the signal ignored, as
    in the background of a script, goes through to its end.
    """
    before = signal.getsignal(signal.SIGINT)

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    def arm() -> None:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, interrupt)

    try:
        yield arm
    finally:
        signal.signal(signal.SIGINT, before)


def check_directory(out: Path | None) -> None:
    """Raises unless ``--out`` is a directory, or can be made where nothing is there."""
    for place in () if out is None else (out, *out.parents):
        with writing(out):
            if place.is_dir():
                return
            if place.exists():
                raise BadInput(f"--out {out}: {place} is a file, not a directory")


def make_directory(out: Path | None) -> None:
    """Makes the directory of ``--out`` unless it is there, before work that takes long."""
    if out is not None:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(out: Path | None) -> Iterator[None]:
    """Turns an error of the file system into one sentence about ``--out``."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"cannot write to --out {out}: {error.strerror}") from None
