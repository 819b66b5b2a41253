"""Tests of the plots of ``rnic bench``: their data, and their file formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ddp_rnic.cli import app
from ddp_rnic.sim.campaigns import bench
from ddp_rnic.sim.reports import plots
from typer.testing import CliRunner

CYCLES = [
    {"llp": "mpa", "width": width, "payload": payload, "offset": offset, "cycles": cycles}
    for width, payload, offset, cycles in (
        (64, 64, 0, 16.0), (64, 64, 7, 99.0), (64, 1024, 0, 128.0), (128, 64, 0, 8.0),
    )
]  # fmt: skip
CYCLES.append(CYCLES[0] | {"llp": "sctp", "payload": 8})


def row(block: str, width: int | None, fmax: float) -> dict[str, Any]:
    return {"block": block, "width": width, "fmax_mhz": fmax, "lut4": 1000}


PLACED = [row("top", 64, fmax) for fmax in (190.0, 200.0, 225.0)]
PLACED += [row("top", 128, 100.0), row("adder", None, 300.0)]


def test_rates_are_those_of_mpa_at_the_clock_where_it_is_known_for_every_width() -> None:
    bits = {64: [(64, 32.0), (1024, 64.0)], 128: [(64, 64.0)]}
    assert plots.rates({"cycles": CYCLES, "pnr": []}) == bits
    assert plots.rates({"cycles": CYCLES, "pnr": PLACED[:3]}) == bits
    assert plots.rates({"cycles": CYCLES, "pnr": PLACED}) == {
        64: [(64, pytest.approx(6.4)), (1024, pytest.approx(12.8))],
        128: [(64, pytest.approx(6.4))],
    }


def test_plots_are_drawn_as_png_and_svg(tmp_path: Path) -> None:
    written = plots.draw({"cycles": CYCLES, "pnr": PLACED}, tmp_path)
    assert [path.name for path in written] == ["rate.png", "rate.svg", "area.png", "area.svg"]
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n")
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert [path.name for path in plots.draw({"cycles": CYCLES, "pnr": []}, tmp_path)] == [
        "rate.png",
        "rate.svg",
    ]


def test_what_cannot_be_drawn_is_reported_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "run_bench", lambda *what, **how: pytest.fail("measured"))
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app.app, ["bench", "--plots", str(tmp_path / "file")])
    assert result.exit_code == 2 and "file" in result.stderr
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    result = CliRunner().invoke(app.app, ["bench", "--plots", str(tmp_path)])
    assert result.exit_code == 3
    assert "matplotlib is not installed: pip install 'ddp-rnic[plots]'" in result.stderr
