"""Shows progress on a terminal, and prints results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: Width of the output in a pipe.
_COLUMNS = 160


def console() -> Console:
    """Returns the console of results: as wide as the terminal, or wide enough for tables."""
    return Console(width=None if sys.stdout.isatty() else _COLUMNS, highlight=False)


@contextmanager
def bar(text: str, total: int | None = None) -> Iterator[Callable[..., None] | None]:
    """Shows a progress bar on a terminal, and nothing in a pipe.

    The bar is on standard error, apart from the result. A call with the work done, the total work,
    and optionally a new text moves it.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done, total, text=None: bar.update(
            task, completed=done, total=total, description=text
        )


def say(line: str) -> None:
    """Reports a step that takes long, on standard error."""
    typer.echo(line, err=True)


def colored(verdict: str, agrees: bool) -> str:
    return f"[bold {'green' if agrees else 'red'}]{verdict}[/bold {'green' if agrees else 'red'}]"
