"""``rnic program``: loads a bitstream into a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..boards.build import program as program_board
from .build import board_of
from .outcome import exits


@exits(FileNotFoundError)
def program(
    board: Annotated[str, typer.Argument(help="A board of 'rnic build --list'.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of the build. Default: build/BOARD.", show_default=False),
    ] = None,
    cable: Annotated[
        str | None,
        typer.Option(
            help="JTAG adapter, by openFPGALoader's name for --cable. Default: the board's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Load a board's bitstream into the board, with openFPGALoader.

    Exit code 0: loaded. 1: the board does not accept it. 2: bad input. 3: a
    tool is missing.
    """
    chosen = board_of(board)
    program_board(chosen, (out or Path("build", chosen.name)) / "rnic.bit", cable)
