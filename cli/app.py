"""Assembles the ``rnic`` command from its subcommands, one file each."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from .bench import bench
from .build import build
from .compare import compare_devices
from .export import export
from .mutate import mutate
from .prm import prm
from .program import program
from .requirements import requirements
from .shuffle import shuffle
from .sim import sim
from .soak import soak

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="An open hardware RNIC datapath for iWARP's Direct Data Placement (RFC 5041).",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rnic {__version__}")
        raise typer.Exit()


@app.callback()
def rnic(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """An open hardware RNIC datapath for iWARP's Direct Data Placement (RFC 5041)."""


app.command()(sim)
app.command("compare")(compare_devices)
for command in (bench, soak, mutate, shuffle, build, program, export, requirements, prm):
    app.command()(command)
