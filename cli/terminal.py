"""Shows progress on a terminal, and prints results."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

#: Width of the output in a pipe.
_COLUMNS = 200
#: A cell that stands at the right of its column; the number in parentheses is the least possible.
_NUMBER = re.compile(r"(\d+(\.\d+)?( %|( \d+)+| \([\d.]+\))?)?")


def console() -> Console:
    """Returns the console of results: as wide as the terminal, or wide enough for tables."""
    return Console(width=None if sys.stdout.isatty() else _COLUMNS, highlight=False)


def print_table(
    console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Prints a table, with numbers to the right.

    Only spaces break a cell into lines. On a terminal that is too narrow for that, each row of the
    table becomes a paragraph, with a line for each cell that is not empty.
    """
    console.print(f"[italic]{escape(title)}[/italic]", soft_wrap=True)
    columns = list(zip(headings, *(rows := list(rows)), strict=True))
    # rich would cut words. Here a column is as wide as its longest word; the columns that need the
    # least for all words on one line get that from the rest of the width.
    widths = [max(len(word) for cell in column for word in cell.split()) for column in columns]
    needs = [max(map(len, column)) - width for column, width in zip(columns, widths, strict=True)]
    left = console.width - sum(widths) - 3 * len(columns) - 1
    if left >= 0:
        for at in sorted(range(len(columns)), key=needs.__getitem__):
            more = min(left, needs[at])
            widths[at] += more
            left -= more
        table = Table()
        for (heading, *cells), width in zip(columns, widths, strict=True):
            side: JustifyMethod = "right" if all(map(_NUMBER.fullmatch, cells)) else "left"
            table.add_column(escape(heading), justify=side, width=width)
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
        return
    indent = max(map(len, headings)) + 2
    for row in rows:
        for heading, cell in zip(headings, row, strict=True):
            if cell:
                console.print(escape(f"{heading:{indent}}{cell}"), soft_wrap=True)
        console.print()


@contextmanager
def bar(text: str, total: int | None = None) -> Iterator[Callable[..., None] | None]:
    """Shows a progress bar with the time left on a terminal, and nothing in a pipe.

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
        TextColumn("left"),
        TimeRemainingColumn(),
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
