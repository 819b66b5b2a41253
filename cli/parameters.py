"""Reads the parameters of the RNIC from a file and from options of a command."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..hdl.spec.config import RnicConfig, parameters
from .outcome import BadInput

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file of parameters of the RNIC, each as NAME = VALUE.",
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A parameter of the RNIC; wins over --config. May be given several times."
        " 'rnic config' lists the parameters.",
        show_default=False,
    ),
]


def configured(file: Path | None, settings: Iterable[str] | None) -> RnicConfig:
    """Returns the parameters of a file and of NAME=VALUE settings, which win.

    Raises :class:`~.outcome.BadInput` for a name or a value that no RNIC has.
    """
    chosen = _read(file) if file is not None else {}
    for setting in settings or ():
        name, equals, text = setting.partition("=")
        if not equals:
            raise BadInput(f"--set must be NAME=VALUE, as streams=128, not {setting!r}")
        chosen[name.strip()] = _value(text.strip())
    known = {each.name: each for each in parameters()}
    for name in chosen:
        if name not in known:
            (nearest,) = difflib.get_close_matches(name, known, 1, 0)
            raise BadInput(f"there is no parameter {name!r}: the nearest name is {nearest!r}")
    try:
        return RnicConfig(**chosen)
    except TypeError:
        for name, value in chosen.items():
            if type(value) is not type(known[name].default):
                raise BadInput(f"{name} must be {known[name].range}, not {value!r}") from None
        raise
    except ValueError as error:
        raise BadInput(str(error)) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read --config {file}: {error.strerror}") from None
    except ValueError as error:  # TOML's and UTF-8's
        raise BadInput(f"--config {file} is no TOML file: {error}") from None


def _value(text: str) -> int | bool | str:
    """Returns a number, true or false from a text that has one; any other text is returned."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text, 0)
    except ValueError:
        return text
