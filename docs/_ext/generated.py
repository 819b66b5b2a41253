"""Puts generated Markdown where a page asks for it, as in a block of ``{registers} MODULE:NAME``.

The text is put in before the page is parsed, so that its headings are headings of the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rooms
import tables
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

#: Each takes the words after its name and yields lines of Markdown.
TEXTS: dict[str, Callable[..., Iterator[str]]] = {
    "room": rooms.room,
    "modules": rooms.table,
    "registers": tables.registers,
    "errors": tables.errors,
    "commands": tables.commands,
    "totals": tables.totals,
}
_BLOCK = re.compile(rf"^```\{{({'|'.join(TEXTS)})\}}([^\n]*)\n```$", re.MULTILINE)
#: Files from which a text is made; a page that has one is made again when one of them changes.
_SOURCES = ("hdl/**/*.py", "sim/**/*.py", "sw_driver/**/*.py", "cli/*.py", "tests/requirements.csv")


def put_in(app: Sphinx, docname: str, source: list[str]) -> None:
    def text(block: re.Match[str]) -> str:
        name, words = block[1], block[2].split()
        try:
            return "\n".join(TEXTS[name](*words))
        except (AttributeError, ImportError, OSError, ValueError) as error:
            raise ExtensionError(f"{docname}: {block[0].splitlines()[0]}: {error}") from error

    made = _BLOCK.sub(text, source[0])
    if made != source[0]:
        source[0] = made
        for pattern in _SOURCES:
            for path in rooms.ROOT.glob(pattern):
                app.env.note_dependency(Path(path), docname=docname)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", put_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
