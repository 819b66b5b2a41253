"""Draws the pictures of the data sheet as SVG: the block diagram, and timing of the ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from ..hdl.spec.config import RnicConfig
from .trial import Trial

__all__ = ["BLOCKS", "Block", "blocks", "diagram", "timing"]


class Block(NamedTuple):
    """A block, or a port at the edge, in a column and a row of the diagram.

    ``name`` is that of the submodule of :class:`..hdl.rnic.Rnic`, or of the bus. ``part`` is the
    parameters without which the block is not there, or after a minus those with which it is not;
    ``size`` has the names of parameters in braces.
    """

    name: str
    label: str
    column: int
    row: int
    part: str = ""
    size: str = ""


#: The blocks between the ports, which are in the first and the last column.
BLOCKS = (
    Block("crc", "CRC32C", 2, 0, "receive mpa"),
    Block("tagged", "checks", 3, 0, "receive", "{stags} STags"),
    Block("pages", "page table", 4, 0, "", "{pages} pages"),
    Block("s_axis", "s_axis", 0, 1, "receive mpa"),
    Block("intake", "intake", 1, 1, "receive mpa", "{width} bits"),
    Block("walker", "MPA walker", 2, 1, "receive mpa"),
    Block("commit", "commit", 3, 1, "receive"),
    Block("cut", "page cut", 4, 1, "receive"),
    Block("dma", "placement", 5, 1, "receive", "{outstanding} bursts"),
    Block("m_axi", "m_axi", 6, 1),
    Block("buffers", "packet buffer", 4, 2, "receive", "{buffer_octets} octets"),
    Block("exceptions", "exceptions", 5, 2, "receive", "{exception_octets} octets"),
    Block("m_axis_exc", "m_axis_exc", 6, 2, "receive"),
    Block("s_axis_eth", "s_axis_eth", 0, 3, "receive sctp"),
    Block("receiver", "SCTP receiver", 1, 3, "receive sctp", "{associations} associations"),
    Block("admission", "admission", 2, 3, "receive sctp", "window {window}"),
    Block("delivery", "delivery", 5, 3, "receive", "{completion_queues} queues"),
    Block("queues", "completions", 5, 3, "-receive", "{completion_queues} queues"),
    Block("m_axi_cq", "m_axi_cq", 6, 3),
    Block("reports", "SCTP order", 4, 4, "receive sctp"),
    Block("requests", "RDMA responder", 5, 4, "responder"),
    Block("source", "Data Source", 5, 5, "transmit", "{streams} send rings"),
    Block("m_axis_eth", "m_axis_eth", 6, 4, "transmit sctp"),
    Block("m_axis", "m_axis", 6, 5, "transmit mpa"),
    Block("s_axil", "s_axil", 0, 6),
    Block("control", "registers", 1, 6),
    Block("irq", "irq", 6, 6),
)
#: The ways of data, from block to block.
_EDGES = (
    ("s_axis", "intake"), ("intake", "walker"), ("walker", "commit"), ("walker", "crc"),
    ("crc", "commit"), ("commit", "tagged"), ("commit", "cut"), ("cut", "pages"), ("cut", "dma"),
    ("walker", "buffers"), ("buffers", "dma"), ("dma", "m_axi"), ("dma", "exceptions"),
    ("exceptions", "m_axis_exc"), ("s_axis_eth", "receiver"), ("receiver", "admission"),
    ("receiver", "buffers"), ("admission", "commit"), ("commit", "delivery"),
    ("delivery", "m_axi_cq"), ("delivery", "reports"), ("delivery", "requests"),
    ("requests", "source"), ("m_axi", "source"), ("source", "delivery"), ("source", "queues"),
    ("queues", "m_axi_cq"), ("source", "m_axis"),
    ("source", "m_axis_eth"),
    ("s_axil", "control"), ("control", "irq"),
)  # fmt: skip
#: Pixels: a block, the distance of blocks, and the margin around them.
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 120, 42, 30, 22, 4
#: Pixels of a timing picture: of the names, of a cycle, of a lane, and of a level above a lane.
_NAMES, _CYCLE, _LANE, _LEVEL = 132, 46, 26, 16
#: The most letters in a cycle.
_LETTERS = 6


def blocks(config: RnicConfig) -> list[Block]:
    """Returns the blocks that a device with these parameters has."""
    return [
        each
        for each in BLOCKS
        if all(
            getattr(config, part.removeprefix("-")) != part.startswith("-")
            for part in each.part.split()
        )
    ]


def diagram(config: RnicConfig) -> str:
    """Returns the block diagram of a device with these parameters."""
    found = {each.name: each for each in blocks(config)}
    rows = sorted({each.row for each in found.values()})
    corner = {
        each.name: (
            _MARGIN + each.column * (_WIDTH + _GAP_X),
            _MARGIN + rows.index(each.row) * (_HEIGHT + _GAP_Y),
        )
        for each in found.values()
    }
    parts = [
        _edge(corner[source], corner[sink])
        for source, sink in _EDGES
        if source in found and sink in found
    ]
    parts.insert(
        0, '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
    )  # fmt: skip
    parts += [_block(each, corner[each.name], config) for each in found.values()]
    width = max(x for x, _ in corner.values()) + _WIDTH + _MARGIN
    height = max(y for _, y in corner.values()) + _HEIGHT + _MARGIN
    return _svg("diagram", width, height, parts)


def _svg(kind: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


def _block(block: Block, corner: tuple[int, int], config: RnicConfig) -> str:
    x, y = corner
    kind = "port" if block.column in (0, 6) else block.part
    size = block.size.format(**vars(config))
    middle = y + _HEIGHT / 2 + 4
    lines = _text(x + _WIDTH / 2, middle - 7 * bool(size), block.label)
    if size:
        lines += _text(x + _WIDTH / 2, middle + 9, size, "size")
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" class="{kind}"/>{lines}'
    )


def _edge(source: tuple[int, int], sink: tuple[int, int]) -> str:
    """Returns an arrow from block to block, with at most two corners."""
    (x, y), (to_x, to_y) = source, sink
    if x == to_x:
        down = to_y > y
        path = f"M{x + _WIDTH / 2:g} {y + _HEIGHT * down}V{to_y + _HEIGHT * (not down)}"
    else:
        bend = x + _WIDTH + _GAP_X / 2 if to_x > x else x - _GAP_X / 2
        begin, end = (x + _WIDTH, to_x) if to_x > x else (x, to_x + _WIDTH)
        path = f"M{begin} {y + _HEIGHT / 2:g}H{bend:g}V{to_y + _HEIGHT / 2:g}H{end}"
    return f'<path d="{path}" marker-end="url(#arrow)"/>'


def timing(trial: Trial, names: Sequence[str], first: int, last: int) -> str:
    """Returns a timing picture of some ports, from cycle ``first`` to cycle ``last``.

    A port of several bits is drawn in cycles in which its channel is valid.
    """
    first, last = max(first, 0), min(last, len(trial.cycles) - 1)
    parts = [
        f'<path class="grid" d="M{_NAMES + at * _CYCLE} 0V{len(names) * _LANE}"/>'
        for at in range(last - first + 2)
    ]
    for lane, name in enumerate(names):
        base = (lane + 1) * _LANE - (_LANE - _LEVEL) / 2
        parts.append(_text(_NAMES - 8, base - 3, name, "name"))
        valid = next((each for each in names if each.endswith("valid") and name.startswith(
            each.removesuffix("valid"))), name)  # fmt: skip
        values = trial.values(name)[first : last + 1]
        there = trial.values(valid)[first : last + 1]
        if name.endswith(("valid", "ready", "last")):
            parts.append(_level(values, base))
        else:
            parts += _values(values, there, base)
    return _svg("timing", _NAMES + (last - first + 1) * _CYCLE + 1, len(names) * _LANE, parts)


def _level(values: Sequence[int], base: float) -> str:
    path = ""
    for at, value in enumerate(values):
        height = base - _LEVEL * value
        path += f"{'V' if at else f'M{_NAMES} '}{height:g}H{_NAMES + (at + 1) * _CYCLE}"
    return f'<path class="level" d="{path}"/>'


def _values(values: Sequence[int], there: Sequence[int], base: float) -> Iterator[str]:
    at = 0
    for value, same in groupby(
        value if valid else None for value, valid in zip(values, there, strict=True)
    ):
        cycles = len(list(same))
        x, width = _NAMES + at * _CYCLE, cycles * _CYCLE
        at += cycles
        if value is None:
            yield f'<path class="none" d="M{x} {base - _LEVEL / 2:g}h{width}"/>'
            continue
        text = f"{value:x}"
        most = _LETTERS * cycles
        shown = text if len(text) <= most else "\u2026" + text[1 - most :]
        yield (
            f'<g><title>0x{text}</title><rect class="value" x="{x + 1}" y="{base - _LEVEL:g}"'
            f' width="{width - 2}" height="{_LEVEL}" rx="3"/>'
            f"{_text(x + width / 2, base - 4, shown, 'digits')}</g>"
        )
