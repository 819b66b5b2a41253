"""Directives that draw what the gateware declares: ``fields``, ``timing``, ``picture``.

They put SVG into the page, so that a page needs no script and nothing from another site.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import bit_field
import scenes
import wavedrom
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

#: Bits in a row of a header, as RFCs draw headers.
ROW = 32


def figure(svg: str, caption: str, kind: str) -> list[nodes.Node]:
    """Returns the nodes of a picture that scrolls sideways where the window is narrow."""
    box = nodes.container(classes=["drawing", kind])
    box += nodes.raw("", svg, format="html")
    if caption:
        box += nodes.paragraph("", caption, classes=["drawing-caption"])
    return [box]


def header_svg(fields: list[tuple[str, int]]) -> str:
    """Draws a header in wire order: the first octet's most significant bit is at the top left."""
    total = sum(bits for _, bits in fields)
    lanes = -(-total // ROW)
    parts: list[dict[str, Any]] = [{"name": _label(name), "bits": bits} for name, bits in fields]
    # The last row of a header may be shorter than the others.
    if rest := lanes * ROW - total:
        parts.append({"bits": rest, "type": 1})
    return _drawn(parts, lanes, hflip=True, vflip=True)


def word_svg(fields: list[tuple[str, int, int]]) -> str:
    """Draws (name, lowest bit, bits) in 32-bit words: bit 0 is at the top right."""
    parts: list[dict[str, Any]] = []
    here = 0
    for name, low, bits in sorted(fields, key=lambda each: each[1]):
        if low > here:
            parts.append({"bits": low - here, "type": 1})
        parts.append({"name": _label(name), "bits": bits})
        here = low + bits
    lanes = -(-here // ROW)
    if rest := lanes * ROW - here:
        parts.append({"bits": rest, "type": 1})
    return _drawn(parts, lanes, hflip=True)


def _label(name: str) -> str:
    return name.replace("_", " ")


def _drawn(parts: list[dict[str, Any]], lanes: int, **options: bool) -> str:
    for part in parts:
        # A name that is wider than its field is written downwards.
        if "name" in part and len(part["name"]) * 7 > 24 * min(part["bits"], ROW):
            part["rotate"] = -90
    tall = max([len(p["name"]) * 7 + 12 for p in parts if "rotate" in p], default=0)
    drawn = bit_field.render(
        parts, bits=lanes * ROW, lanes=lanes, hspace=760, vspace=max(52, tall + 24), fontsize=12,
        fontfamily="inherit", **options,
    )  # fmt: skip
    return str(bit_field.jsonml_stringify(drawn)).replace("viewbox", "viewBox")


class Fields(SphinxDirective):
    """Draws fields that ``hdl.spec`` declares.

    The argument is ``MODULE:NAME``, of a tuple of (name, bits) in wire order or of fields that
    have an octet, or ``MODULE:NAME.REGISTER``.
    """

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"caption": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        module_name, _, name = self.arguments[0].partition(":")
        module = import_module(f"ddp_rnic.{module_name}")
        self.env.note_dependency(str(module.__file__))
        name, _, register = name.partition(".")
        fields = getattr(module, name)
        if register:
            (fields,) = (each.fields for each in fields if each.name == register)
            svg = word_svg([(each.name, each.low, each.bits) for each in fields])
        elif hasattr(fields[0], "octet"):
            svg = word_svg([(each.name, 8 * each.octet + each.bit, each.bits) for each in fields])
        else:
            svg = header_svg(list(fields))
        return figure(svg, self.options.get("caption", ""), "fields")


class Timing(SphinxDirective):
    """Simulates a scene of ``scenes.py`` and draws the signals that it watches."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(scenes.__file__)
        try:
            scene = scenes.SCENES[self.arguments[0]]
        except KeyError:
            raise self.error(f"there is no scene {self.arguments[0]}") from None
        trace = scene()
        svg = wavedrom.render(json.dumps(trace.drawing())).tostring()
        return figure(svg, trace.caption, "timing")


class Picture(SphinxDirective):
    """Puts an SVG file into the page, so that it follows the page's theme."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"caption": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        _, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(path)
        svg = Path(path).read_text(encoding="utf-8")
        return figure(svg[svg.index("<svg") :], self.options.get("caption", ""), "picture")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("fields", Fields)
    app.add_directive("timing", Timing)
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
