"""Assembles the ``rnic`` command from its subcommands, one file each."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from .extras import COMMANDS, missing
from .outcome import BAD_INPUT, NO_TOOL


class _Commands(TyperGroup):
    """Imports a command when it is called or listed, so that each needs its own extra alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuses empty values: an empty path would be the working directory."""
        for before, value in zip(["rnic", *args], args, strict=False):
            if not value or value.startswith("--") and value.endswith("="):
                _refuse(f"rnic: the value after {value or before} is empty", BAD_INPUT)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        single = typer.Typer(add_completion=False)
        try:
            found = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        except ModuleNotFoundError as error:
            sentence = missing(error, COMMANDS[cmd_name])
            if sentence is None:
                raise
            single.command(cmd_name, help=f"Needs the extra {COMMANDS[cmd_name]}.", **_ANYTHING)(
                lambda: _refuse(sentence)
            )
        else:
            if isinstance(found, typer.Typer):  # it has commands of its own
                group = typer.main.get_command(found)
                group.name = cmd_name
                return group
            single.command(cmd_name)(found)
        return typer.main.get_command(single)


#: A command that cannot be imported takes any arguments.
_ANYTHING: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


def _refuse(sentence: str, code: int = NO_TOOL) -> None:
    typer.echo(sentence, err=True)
    raise typer.Exit(code)


app = typer.Typer(
    cls=_Commands,
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
