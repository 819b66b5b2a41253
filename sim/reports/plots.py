"""Draws the plots of ``rnic bench``, each as PNG and SVG. matplotlib is imported only for
drawing.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from ...flow.tools import ToolError

__all__ = ["draw", "make_folder"]

_SIZE = (8, 4.5)
Rows = list[dict[str, Any]]


def make_folder(folder: Path) -> None:
    """Makes the folder, before anything is measured.

    Raises
    ------
    ToolError
        matplotlib is not installed.
    OSError
        The folder cannot be made.
    """
    if find_spec("matplotlib") is None:
        raise ToolError("matplotlib is not installed: pip install 'ddp-rnic[plots]'")
    folder.mkdir(parents=True, exist_ok=True)


def draw(results: dict[str, Rows], folder: Path) -> list[Path]:
    """Draws ``rate`` and, where blocks were placed, ``area``; returns the files that were
    written.
    """
    from matplotlib.figure import Figure

    written = []
    for name, rows, plot in (("rate", "cycles", _rate), ("area", "pnr", _area)):
        if not results[rows]:
            continue
        figure = Figure(figsize=_SIZE, layout="constrained")
        plot(figure, results)
        for kind in ("png", "svg"):
            written.append(folder / f"{name}.{kind}")
            figure.savefig(written[-1], dpi=150)
    return written


def rates(results: dict[str, Rows]) -> dict[int, list[tuple[int, float]]]:
    """Returns, for each width, payloads of segments over MPA with the rate of payload.

    The rate is in bits per cycle, or in Gb/s where the clock of the top is known for all widths.
    """
    clocks = _clocks(results)
    rows = [row for row in results["cycles"] if row["llp"] == "mpa" and not row["offset"]]
    known = {row["width"] for row in rows} <= set(clocks)
    found: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        rate = 8 * row["payload"] / row["cycles"] * (clocks[row["width"]] / 1000 if known else 1)
        found.setdefault(row["width"], []).append((row["payload"], rate))
    return found


def _clocks(results: dict[str, Rows]) -> dict[int, float]:
    """Returns the clock of the top in MHz, by its width; the median over the seeds."""
    found: dict[int, list[float]] = {}
    for row in results["pnr"]:
        if row["block"] == "top":
            found.setdefault(row["width"], []).append(row["fmax_mhz"])
    return {width: median(each) for width, each in found.items()}


def _rate(figure: Any, results: dict[str, Rows]) -> None:
    axes = figure.subplots()
    found = rates(results)
    for width, points in found.items():
        axes.loglog(*zip(*points, strict=True), marker="o", base=2, label=f"{width} bits")
    sizes = _in_order(size for points in found.values() for size, _ in points)
    axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:g}")
    known = set(found) <= set(_clocks(results))
    axes.set_xlabel("octets of payload of a segment")
    axes.set_ylabel(f"payload, {'Gb/s' if known else 'bits a cycle'}")
    axes.set_title("Rate of placement, segments back to back")
    axes.grid(alpha=0.3)
    axes.legend()


def _area(figure: Any, results: dict[str, Rows]) -> None:
    """Plots clock and area against the width; blocks without a width are drawn beside."""
    rows = results["pnr"]
    widths = _in_order(row["width"] for row in rows if row["width"])
    columns = [str(width) for width in widths] + [""] * any(not row["width"] for row in rows)
    for axes, column, label in zip(
        figure.subplots(1, 2), ("fmax_mhz", "lut4"), ("MHz", "LUT4"), strict=True
    ):
        for block in _in_order(row["block"] for row in rows):
            values: dict[str, list[float]] = {}
            for row in rows:
                if row["block"] == block:
                    values.setdefault(str(row["width"] or ""), []).append(row[column])
            places = [columns.index(width) for width in values]
            axes.plot(places, [median(each) for each in values.values()], marker="o", label=block)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_xlabel("width in bits")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.suptitle("LFE5UM5G-85F, speed grade 8, yosys and nextpnr")


def _in_order(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
