"""The directive ``room``: the modules of a folder and what each one does, from their docstrings.

``{room} hdl/dma`` lists the folder's modules in a table, and then shows the contract of each public
class and function. ``:brief:`` leaves the contracts out.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

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


class Room(SphinxDirective):
    """Shows the modules of the folders, or the files, that its arguments name."""

    required_arguments = 1
    optional_arguments = 20
    option_spec: ClassVar[dict[str, Any]] = {"brief": directives.flag}

    def run(self) -> list[nodes.Node]:
        found: list[Path] = []
        for folder in self.arguments:
            here = modules(folder)
            if not here:
                raise self.error(f"there is no module in {folder}")
            found += here
        found = [path for path in found if summary(path)]
        lines = ["| module | what it does |", "|---|---|"]
        for path in found:
            self.env.note_dependency(str(path))
            name = path.relative_to(ROOT)
            target = str(name) if "brief" in self.options else f"[{name}](#{_anchor(path)})"
            # The docstring is reStructuredText, the table is Markdown.
            text = summary(path).replace("``", "`").replace("|", "\\|")
            lines.append(f"| {target} | {text} |")
        if "brief" not in self.options:
            for path in found:
                module = ".".join(["ddp_rnic", *path.relative_to(ROOT).with_suffix("").parts])
                lines += ["", f"({_anchor(path)})=", f"## {path.relative_to(ROOT)}", ""]
                lines += ["```{eval-rst}", f".. automodule:: {module}", "   :members:", "```"]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def _anchor(path: Path) -> str:
    return "-".join(path.relative_to(ROOT).with_suffix("").parts).replace("_", "-")


def keep_bars(*arguments: Any) -> None:
    """Keeps bars as they are: docstrings write a row of bits as ``|A|B|``, as the RFCs do."""
    lines: list[str] = arguments[-1]
    lines[:] = [
        line if line[:1] in "| +" or "``" in line else line.replace("|", "\\|") for line in lines
    ]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", keep_bars)
    app.add_directive("room", Room)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
