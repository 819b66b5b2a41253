"""``rnic build``: builds a board's bitstream. ``rnic program`` finds boards here, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..boards.build import build as build_board
from ..boards.catalog import BOARDS
from ..hdl.host.uart import phase_step
from .outcome import BadInput, check_directory, exits, make_directory
from .terminal import console, print_table


@exits()
def build(
    board: Annotated[
        str | None, typer.Argument(help="A board of --list.", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the boards.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of the results. Default: build/BOARD.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=1, help="Seed of place and route.")] = 1,
    baud: Annotated[
        int | None,
        typer.Option(help="Rate of the host link. Default: the board's own.", show_default=False),
    ] = None,
) -> None:
    """Build a board's bitstream with yosys and nextpnr, with a report and its register map.

    Exit code 0: built, and timing is met. 1: it does not fit, or timing is not
    met. 2: bad input. 3: a tool is missing. 130: interrupted.
    """
    terminal = console()
    if list_:
        boards = ((each.name, each.title) for each in BOARDS.values())
        print_table(terminal, "Boards", ("name", "board"), boards)
        return
    chosen = board_of(board)
    if baud is not None:
        try:
            phase_step(chosen.clock, baud)
        except ValueError as error:
            raise BadInput(str(error)) from None
        chosen = replace(chosen, baud=baud)
    if chosen.warning:
        typer.echo(f"warning: {chosen.warning}", err=True)
    folder = out or Path("build", chosen.name)
    check_directory(folder)
    make_directory(folder)
    result = build_board(
        chosen, folder, seed=seed, progress=lambda step: typer.echo(f"{step} ...", err=True)
    )
    clocks = (
        (clock.name, f"{clock.needs:.1f}", f"{clock.reaches:.1f}", f"{clock.margin:.0f} %")
        for clock in result.clocks
    )
    print_table(terminal, "Clocks", ("clock", "needs MHz", "reaches MHz", "margin"), clocks)
    used = (f"{name} {used}/{there}" for name, (used, there) in result.used.items())
    terminal.print("used: " + ", ".join(used), soft_wrap=True)
    terminal.print("critical path:\n" + escape("\n".join(result.path)), soft_wrap=True)
    terminal.print(f"bitstream: {escape(str(folder / 'rnic.bit'))}", soft_wrap=True)
    terminal.print(f"host link: {chosen.baud} baud")


def board_of(name: str | None) -> Any:
    """Returns the board of a name."""
    if name not in BOARDS:
        said = "a board is missing" if name is None else f"there is no board {name!r}"
        raise BadInput(f"{said}: give one of {', '.join(BOARDS)}")
    return BOARDS[name]
