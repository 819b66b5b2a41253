"""``rnic config``: lists the parameters of the RNIC, and estimates the area of a configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from ..export.estimate import (
    CELLS,
    Area,
    Estimate,
    Run,
    changed,
    clocks,
    devices,
    estimate,
    measure,
    untried,
)
from ..hdl.spec.config import RnicConfig, parameters
from .outcome import exits
from .parameters import Config, Set, configured
from .terminal import bar, console, print_table

_FITS = {True: "fits", False: "too large", None: "perhaps: the estimate's error decides"}


@exits()
def config(
    config: Config = None,
    set_: Set = None,
    costs: Annotated[
        bool,
        typer.Option(
            "--costs",
            help="Also estimate what the next value of each parameter takes, in a minute.",
        ),
    ] = False,
    measure_: Annotated[
        bool,
        typer.Option("--measure", help="Also synthesize it with yosys, in minutes."),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the parameters of the RNIC, and the area and clock that a configuration needs.

    The area is an estimate from runs of yosys for the ECP5, the clock is that of
    configurations that were placed and routed.

    Exit code 0: shown. 2: bad input. 3: a tool is missing. 130: interrupted.
    """
    chosen = configured(config, set_)
    estimated = estimate(chosen)
    neighbours = _costs(chosen, estimated.area) if costs else {}
    measured = measure(chosen) if measure_ else None
    if json_:
        print(json.dumps(_as_json(chosen, estimated, neighbours, measured)))
    else:
        _print(console(), chosen, estimated, neighbours, measured)


class Cost(NamedTuple):
    """The next value of a parameter, and the cells that it takes more, or why there is none."""

    value: int | bool
    area: Area | None
    reason: str = ""

    def __str__(self) -> str:
        cells = self.reason if self.area is None else " ".join(f"{each:+}" for each in self.area)
        return f"{_text(self.value)}: {cells}"


def _costs(config: RnicConfig, area: Area) -> dict[str, Cost]:
    """Estimates, for each parameter, a configuration with the next value of that parameter."""
    found = {}
    with bar("estimating") as progress:
        for done, each in enumerate(listed := parameters()):
            if progress:
                progress(done, len(listed), each.name)
            value: Any = each.next_to(getattr(config, each.name))
            try:
                other = estimate(replace(config, **{each.name: value})).area
            except ValueError as error:
                found[each.name] = Cost(value, None, str(error))
            else:
                more = Area(*(new - old for new, old in zip(other, area, strict=True)))
                found[each.name] = Cost(value, more)
    return found


def _text(value: int | bool) -> str:
    """Returns a value as TOML and --set have it."""
    return str(value).lower()


def _as_json(
    config: RnicConfig, estimated: Estimate, costs: dict[str, Cost], measured: Run | None
) -> dict[str, Any]:
    return {
        "parameters": [
            {
                "name": each.name,
                "value": getattr(config, each.name),
                "default": each.default,
                "range": each.range,
                "doc": each.doc,
            }
            | ({"next": costs[each.name]._asdict()} if costs else {})
            for each in parameters()
        ],
        "estimate": estimated.area._asdict(),
        "errors": estimated.model.errors,
        "runs": estimated.model.runs,
        "tools": estimated.model.tools,
        "untried": untried(config),
        "devices": [each._asdict() for each in devices(estimated)],
        "clocks": [each._asdict() for each in clocks()],
    } | ({"measured": measured} if measured else {})


def _print(
    console: Console,
    config: RnicConfig,
    estimated: Estimate,
    costs: dict[str, Cost],
    measured: Run | None,
) -> None:
    headings = ["parameter", "value", "default", "range", *["next value"] * bool(costs), "meaning"]
    rows = [
        [
            each.name,
            _text(getattr(config, each.name)),
            _text(each.default),
            each.range,
            *([str(costs[each.name])] if costs else []),
            each.doc,
        ]
        for each in parameters()
    ]
    print_table(console, "Parameters", headings, rows)
    if costs:
        console.print(f"next value: {', '.join(CELLS.values())} more than now", soft_wrap=True)
    model = estimated.model
    rows = [
        [
            name,
            str(getattr(estimated.area, kind)),
            f"{model.errors[kind]:.1%}",
            *([str(measured["area"][kind])] if measured else []),
            *(f"{each.shares[kind]:.0%}" for each in devices(estimated)),
        ]
        for kind, name in CELLS.items()
    ]
    fits = [_FITS[each.fits] for each in devices(estimated)]
    rows.append(["verdict", "", "", *[""] * bool(measured), *fits])
    headings = ["cells", "estimate", "error", *["measured"] * bool(measured)]
    headings += [each.device for each in devices(estimated)]
    print_table(console, "Area on an ECP5, and the share of each device", headings, rows)
    console.print(
        f"error: the largest of {model.runs} runs of {model.tools}, each estimated from the others",
        soft_wrap=True,
    )
    if new := untried(config):
        console.print(f"no run had {new}: the error may be larger", soft_wrap=True)
    rows = [
        [
            ", ".join(f"{name}={_text(value)}" for name, value in each.set.items()) or "defaults",
            f"{each.median:g}",
            f"{min(each.mhz):g} to {max(each.mhz):g}",
            str(len(each.mhz)),
            each.device,
            "yes" if each.set == changed(config) else "no",
        ]
        for each in clocks()
    ]
    headings = ["placed and routed", "median MHz", "range", "seeds", "device", "this configuration"]
    print_table(console, "Clock, which is not estimated", headings, rows)
    spread = max((max(each.mhz) - min(each.mhz)) / each.median for each in clocks())
    console.print(
        f"seeds of one configuration differ by up to {spread:.0%}; another configuration may differ"
        " more",
        soft_wrap=True,
    )
