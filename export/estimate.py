"""Estimates the area of a configuration on an ECP5, and says which devices hold it.

Block RAMs, and tables in distributed RAM, are counted (:mod:`.resources`). Other LUT4 follow from
the counted operators, and the flip-flops from the registers and those tables. The factors are
fitted, by least squares of the relative errors, to the runs of yosys in ``areas.json``; each run
has the counts of the gateware as it was at the time of the run. The clock is not estimated: the
file has the clocks that place and route reached.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from ..flow import pnr, yosys
from ..flow.ecp5 import CAPACITY
from ..flow.netlist import area
from ..hdl.flat import to_verilog
from ..hdl.spec.config import RnicConfig, parameters
from .resources import count

Array = np.ndarray[Any, Any]
#: The kinds of cells, and their names for the user.
CELLS = {"lut4": "LUT4", "ff": "flip-flops", "dp16kd": "block RAMs"}
#: The counts whose factors are fitted, for each kind of cell. Octets that are read from a table in
#: distributed RAM go to flip-flops.
_TERMS = {"lut4": ("carries", "logic"), "ff": ("registers", "lutram")}


class Run(TypedDict):
    """A run of yosys: the parameters that differ from their defaults, the counts, the cells."""

    set: dict[str, Any]
    counts: dict[str, int]
    area: dict[str, int]
    tools: str


class Area(NamedTuple):
    """Cells of an ECP5, by the names of :func:`..flow.netlist.area`."""

    lut4: int
    ff: int
    dp16kd: int


class Clock(NamedTuple):
    """The clocks in MHz that place and route reached with its seeds, for parameters that differ
    from their defaults as ``set`` says.
    """

    set: dict[str, Any]
    mhz: list[float]
    device: str
    tools: str

    @property
    def median(self) -> float:
        return statistics.median(self.mhz)


class Model(NamedTuple):
    """The fitted factors, and for each kind of cell the largest relative error.

    For ``errors``, each run was left out of the fit in turn and then estimated.
    """

    factors: dict[str, Array]
    errors: dict[str, float]
    runs: int
    tools: str


class Estimate(NamedTuple):
    """The estimated area of a configuration, and the model that it is from."""

    area: Area
    model: Model

    def most(self, kind: str) -> float:
        """Returns the estimate for a kind of cell plus the largest error."""
        return float(getattr(self.area, kind) * (1 + self.model.errors[kind]))

    def least(self, kind: str) -> float:
        """Returns the estimate for a kind of cell minus the largest error."""
        return float(getattr(self.area, kind) * (1 - self.model.errors[kind]))


def _data() -> Any:
    return json.loads((files(__package__) / "areas.json").read_text(encoding="utf-8"))


@cache
def model() -> Model:
    """Returns the model, fitted to the runs in ``areas.json``."""
    runs: list[Run] = _data()["runs"]
    factors, errors = {}, {}
    for kind, terms in _TERMS.items():
        cells = np.array([run["area"][kind] for run in runs])
        exact = np.array([run["counts"]["lutram"] if kind == "lut4" else 0 for run in runs])
        rows = np.array([[run["counts"][term] for term in terms] for run in runs])
        # Divided by its cells, each run has the same weight.
        rows, rest = rows / cells[:, None], 1 - exact / cells
        factors[kind] = _fit(rows, rest)
        others = [_fit(np.delete(rows, k, 0), np.delete(rest, k)) for k in range(len(runs))]
        errors[kind] = float(np.abs(np.sum(rows * others, axis=1) - rest).max())
    errors["dp16kd"] = max(
        abs(run["counts"]["block_ram"] / run["area"]["dp16kd"] - 1) for run in runs
    )
    tools = sorted({run["tools"] for run in runs})
    return Model(factors, errors, len(runs), ", ".join(tools))


def _fit(rows: Array, results: Array) -> Array:
    return np.linalg.lstsq(rows, results, rcond=None)[0]


def clocks() -> list[Clock]:
    """Returns the clocks that place and route reached."""
    return [Clock(**each) for each in _data()["clocks"]]


def estimate(config: RnicConfig) -> Estimate:
    """Returns the estimated area of the exported top. It takes seconds."""
    counts, fitted = count(config), model()
    cells = {
        kind: round(np.dot([getattr(counts, term) for term in terms], fitted.factors[kind]))
        for kind, terms in _TERMS.items()
    }
    return Estimate(Area(cells["lut4"] + counts.lutram, cells["ff"], counts.block_ram), fitted)


def changed(config: RnicConfig) -> dict[str, Any]:
    """Returns the parameters that differ from their defaults."""
    return {
        each.name: value
        for each in parameters()
        if (value := getattr(config, each.name)) != each.default
    }


def untried(config: RnicConfig) -> str:
    """Returns the width and the switches that no run of the model had, as words; or an empty text.

    With one of these, the estimate may be further off than its error says.
    """
    runs: list[Run] = _data()["runs"]
    return ", ".join(
        f"{each.name} = {str(value).lower()}"
        for each in parameters()
        if each.name == "width" or isinstance(each.default, bool)
        if (value := getattr(config, each.name))
        not in {run["set"].get(each.name, each.default) for run in runs}
    )


def measure(config: RnicConfig) -> Run:
    """Synthesizes the exported top with yosys, and returns a run as in ``areas.json``.

    Raises
    ------
    ToolError
        yosys is not installed, or failed.
    """
    with tempfile.TemporaryDirectory(prefix="rnic-area-") as folder:
        netlist = pnr.synthesize(to_verilog(config), "rnic", Path(folder))
    return {
        "set": changed(config),
        "counts": count(config)._asdict(),
        "area": area(netlist, "rnic"),
        "tools": yosys.release(),
    }


class Fit(NamedTuple):
    """The verdict on a device, and the share of each kind of its cells that the design takes.

    ``fits`` is None if the device may or may not hold the design, within the estimate's error.
    """

    device: str
    shares: dict[str, float]
    fits: bool | None


def devices(estimated: Estimate) -> list[Fit]:
    """Returns the verdict on each device of the ECP5 family, the smallest first."""
    found = []
    for end, (luts, memories) in CAPACITY.items():
        there = {"lut4": luts, "ff": luts, "dp16kd": memories}
        shares = {kind: getattr(estimated.area, kind) / cells for kind, cells in there.items()}
        most = max(estimated.most(kind) / cells for kind, cells in there.items())
        least = max(estimated.least(kind) / cells for kind, cells in there.items())
        found.append(Fit(f"LFE5U-{end}", shares, None if least <= 1 < most else most <= 1))
    return found
