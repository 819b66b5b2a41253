"""Lists the modules of a folder with the purpose of each one, from their docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]


def summary(path: Path) -> str:
    """Returns the first paragraph of a module's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def modules(folder: str) -> list[Path]:
    """Returns the modules of a folder, or the one module that is named."""
    path = ROOT / folder
    if path.suffix == ".py":
        return [path]
    return sorted(each for each in path.glob("*.py") if each.name != "__init__.py")


def table(*folders: str) -> Iterator[str]:
    """Yields a table of the modules in folders, or of the files that are named."""
    yield from _table(folders, linked=False)


def room(*folders: str) -> Iterator[str]:
    """Yields a table likewise, and then the contract of each public class and function."""
    yield from _table(folders, linked=True)
    for path in _found(folders):
        where = path.relative_to(ROOT)
        module = ".".join(["ddp_rnic", *where.with_suffix("").parts])
        yield from ("", f"({_anchor(path)})=", f"## {where}", "")
        yield from ("```{eval-rst}", f".. automodule:: {module}", "   :members:", "```")


def _found(folders: tuple[str, ...]) -> list[Path]:
    found = [path for folder in folders for path in modules(folder)]
    if not found:
        raise ValueError("there is no module")
    return [path for path in found if summary(path)]


def _table(folders: tuple[str, ...], *, linked: bool) -> Iterator[str]:
    yield from ("| module | what it does |", "|---|---|")
    for path in _found(folders):
        name = f"{path.relative_to(ROOT)}"
        shown = f"[{name}](#{_anchor(path)})" if linked else f"`{name}`"
        # The docstring is reStructuredText, the table is Markdown.
        text = re.sub(r":\w+:`~?\.*([^`]+)`", r"`\1`", summary(path).replace("``", "`"))
        yield f"| {shown} | {text.replace('|', chr(92) + '|')} |"


def _anchor(path: Path) -> str:
    return "-".join(path.relative_to(ROOT).with_suffix("").parts).replace("_", "-")


def keep_bars(*arguments: Any) -> None:
    """Keeps bars as they are: docstrings write a row of bits as ``|A|B|``, as the RFCs do."""
    lines: list[str] = arguments[-1]
    lines[:] = [
        line if line[:1] in "| +" or "``" in line else line.replace("|", "\\|") for line in lines
    ]


def real_signature(*arguments: Any) -> tuple[str, str] | None:
    """Gives a class the parameters of ``__init__`` where its ``__new__`` has others."""
    _, what, _, cls, _, signature, _ = arguments
    hidden = any(name in (signature or "") for name in ("**named", "src_loc_at"))
    if what != "class" or not hidden:
        return None
    shown = inspect.signature(cls.__init__)
    own = list(shown.parameters.values())[1:]
    plain = [each.replace(annotation=each.empty) for each in own]
    return str(shown.replace(parameters=plain, return_annotation=shown.empty)), ""


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-signature", real_signature)
    app.connect("autodoc-process-docstring", keep_bars)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
