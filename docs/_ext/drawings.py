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
#: Pixels of a row, and of a letter.
SIZE, LETTER = 760, 7
#: Pixels of a cycle, below which a timing picture scrolls sideways.
CYCLE = 23


def figure(svg: str, caption: str, kind: str) -> list[nodes.Node]:
    """Returns the nodes of a picture that scrolls sideways where the window is narrow."""
    box = nodes.container(classes=["drawing", kind])
    box += nodes.raw("", svg, format="html")
    if caption:
        box += nodes.paragraph("", caption, classes=["drawing-caption"])
    return [box]


def header_svg(fields: list[tuple[str, int]]) -> tuple[str, str]:
    """Draws a header in wire order: the first octet's most significant bit is at the top left.

    Returns the picture and the meaning of its abbreviations.
    """
    return _drawn([(name, bits) for name, bits in fields], vflip=True)


def word_svg(fields: list[tuple[str, int, int]]) -> tuple[str, str]:
    """Draws (name, lowest bit, bits) in 32-bit words likewise: bit 0 is at the top right."""
    parts: list[tuple[str, int]] = []
    here = 0
    for name, low, bits in sorted(fields, key=lambda each: each[1]):
        if low > here:
            parts.append(("", low - here))
        parts.append((name, bits))
        here = low + bits
    return _drawn(parts)


def _drawn(fields: list[tuple[str, int]], **options: bool) -> tuple[str, str]:
    total = sum(bits for _, bits in fields)
    lanes = -(-total // ROW)
    # The last row may be shorter than the others.
    filled = [*fields, ("", lanes * ROW - total)] if total % ROW else fields
    parts: list[dict[str, Any]] = []
    short: list[str] = []
    height = 52
    for name, bits in filled:
        words = name.split("_")
        part: dict[str, Any] = {"bits": bits, "name": " ".join(words)}
        width = LETTER * len(part["name"])
        if not name:
            part = {"bits": bits, "type": 1}
        elif width <= SIZE // ROW * min(bits, ROW):
            pass
        elif lanes == 1:
            # In one row, a name that is wider than its field is written upwards.
            part["rotate"] = -90
            height = max(height, width + 36)
        else:
            part["name"] = "".join(word[0] for word in words)
            short.append(f"{part['name']}: {' '.join(words)}")
        parts.append(part)
    drawn = bit_field.render(
        parts, bits=lanes * ROW, lanes=lanes, hspace=SIZE, vspace=height, fontsize=12,
        fontfamily="inherit", hflip=True, **options,
    )  # fmt: skip
    svg = str(bit_field.jsonml_stringify(drawn)).replace("viewbox", "viewBox")
    return svg, "; ".join(short)


class Fields(SphinxDirective):
    """Draws fields that ``hdl.spec`` declares.

    The argument is ``MODULE:NAME``, of a tuple of (name, bits) in wire order, of fields that have
    an octet, or of a layout of Amaranth's that ``parameter`` makes; or ``MODULE:NAME.REGISTER``.
    """

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "caption": directives.unchanged,
        "parameter": directives.nonnegative_int,
    }

    def run(self) -> list[nodes.Node]:
        module_name, _, name = self.arguments[0].partition(":")
        module = import_module(f"ddp_rnic.{module_name}")
        self.env.note_dependency(str(module.__file__))
        name, _, register = name.partition(".")
        fields = getattr(module, name)
        if register:
            (fields,) = (each.fields for each in fields if each.name == register)
            svg, short = word_svg([(each.name, each.low, each.bits) for each in fields])
        elif "parameter" in self.options:
            layout = fields(self.options["parameter"])
            svg, short = word_svg([(name, each.offset, each.width) for name, each in layout])
        elif hasattr(fields[0], "octet"):
            svg, short = word_svg(
                [(each.name, 8 * each.octet + each.bit, each.bits) for each in fields]
            )
        else:
            svg, short = header_svg(list(fields))
        caption = self.options.get("caption", "")
        return figure(svg, f"{caption} {short + '.' if short else ''}".strip(), "fields")


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
        least = CYCLE * (len(trace.cycles) - trace.first) + 100
        svg = svg.replace("<svg ", f'<svg style="min-width: {least}px" ', 1)
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
