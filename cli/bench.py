"""``rnic bench``: measures cycles, latency, speed, area and clock."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..flow.xilinx import FAMILIES
from ..hdl.spec.config import WIDTHS
from ..sim.campaigns import bench as numbers
from ..sim.campaigns.others import Peer
from ..sim.devices import speed
from ..sim.reports import plots as drawing
from .outcome import BadInput, exits
from .terminal import bar, console, print_table


@exits()
def bench(
    pnr: Annotated[
        bool, typer.Option("--pnr", help="Also place and route, for area and clock on an ECP5.")
    ] = False,
    width: Annotated[
        int | None,
        typer.Option(help="Datapath width in bits. Default: all widths.", show_default=False),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Place and route with the seeds from 1 to this number.")
    ] = 1,
    xilinx: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY",
            help="Also measure area on a Xilinx device: xc7, xcu or xcup.",
            show_default=False,
        ),
    ] = None,
    sctp: Annotated[
        bool, typer.Option("--sctp", help="Also measure DDP over SCTP; its build takes minutes.")
    ] = False,
    send: Annotated[
        bool, typer.Option("--send", help="Also measure a device that sends; it is built once.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Also send messages through connections on loopback.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE:TOP[:NAME=VALUE,...]",
            help="Also place and route this Verilog module, as --pnr does. May be given several"
            " times.",
            show_default=False,
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Directory for plots, as PNG and SVG.", show_default=False),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure cycles, latency, speed of simulation and, with --pnr, area and clock.

    Exit code 0: measured. 1: the RTL fails. 2: bad input. 3: a tool is missing.
    130: interrupted.
    """
    if width is not None and width not in WIDTHS:
        choice = ", ".join(map(str, WIDTHS))
        raise BadInput(f"width must be one of {choice}, not {width}")
    if xilinx is not None and xilinx not in FAMILIES:
        choice = ", ".join(FAMILIES)
        raise BadInput(f"Xilinx family must be one of {choice}, not {xilinx}")
    if seeds > 1 and not pnr and not peer:
        raise BadInput("--seeds needs --pnr or --peer, which place and route")
    try:
        peers = [Peer.of(each) for each in peer or ()]
        for each in peers:
            each.check()
        if plots is not None:
            drawing.make_folder(plots)
    except OSError as error:
        raise BadInput(f"--plots {plots}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(str(error)) from None
    with bar("measuring") as progress:
        results = numbers.run_bench(
            WIDTHS if width is None else (width,), sctp=sctp, send=send, pnr=pnr, peers=peers,
            seeds=range(1, seeds + 1), xilinx=xilinx, progress=progress,
        )  # fmt: skip
    if live:
        # Where most of the time is Python's, another width makes little difference.
        results["live"] = speed.measure(width or min(WIDTHS))
    if plots is not None:
        drawing.draw(results, plots)
    if json_:
        print(json.dumps(results))
    else:
        print_results(console(), results)


#: Columns of tables: the key in a row, and the heading.
_SIMULATION = {
    "width": "width",
    "engine": "engine",
    "cycles": "cycles",
    "seconds": "seconds",
    "kcycles_per_second": "kcycles/s",
}
_LIVE = {
    "width": "width",
    "octets": "octets",
    "messages": "messages",
    "cycles": "cycles",
    "seconds": "seconds",
    "messages_per_second": "messages/s",
    "megabits_per_second": "Mb/s",
}
_PNR = {
    "block": "block",
    "width": "width",
    "seed": "seed",
    "fmax_mhz": "MHz",
    "lut4": "LUT4",
    "ff": "FF",
    "dp16kd": "DP16KD",
}
_XILINX = {
    "block": "block",
    "width": "width",
    "family": "family",
    "lut": "LUT",
    "lutram": "LUT as RAM",
    "ff": "FF",
    "ramb36": "RAMB36",
}


#: The cycles of each kind of measurement of a device that sends.
_SENT = {
    "rate": "per message (least)",
    "latency": "from doorbell to first beat",
    "read": "from last beat read to first beat",
    "response": "from the bus's response for a Read Request to first beat",
}


def print_results(console: Console, results: numbers.Results) -> None:
    """Prints results as tables."""
    widths = sorted({row["width"] for row in results["cycles"]})
    across = [f"{width} bits" for width in widths]

    mpa = [row for row in results["cycles"] if row["llp"] == "mpa"]
    cycles = {(row["payload"], row["offset"] > 0, row["width"]): row for row in mpa}
    lines = []
    for payload, shifted in dict.fromkeys(key[:2] for key in cycles):
        rows = [cycles[payload, shifted, width] for width in widths]
        cells = [f"{row['cycles']:g} ({row['limit']})" for row in rows]
        lines.append([str(payload), "last lane" if shifted else "first lane", *cells])
    title = "Cycles per segment back to back (least)"
    print_table(console, title, ("payload", "lands", *across), lines)
    _print_sctp(console, [row for row in results["cycles"] if row["llp"] == "sctp"], across)

    latency = {(row["payload"], row["width"]): row["cycles"] for row in results["latency"]}
    title = "Cycles from last beat in to address on the bus"
    lines = [
        [str(payload), *(str(latency[payload, width]) for width in widths)]
        for payload in dict.fromkeys(key[0] for key in latency)
    ]
    print_table(console, title, ("payload", *across), lines)

    _print_sending(console, results.get("sending", ()))
    for title, kind, headings in (
        ("Simulation", "simulation", _SIMULATION),
        ("Messages through connections and the simulated gateware", "live", _LIVE),
        ("LFE5UM5G-85F, speed grade 8, yosys and nextpnr", "pnr", _PNR),
        ("Xilinx, yosys", "xilinx", _XILINX),
    ):
        lines = [
            ["" if row[name] is None else str(row[name]) for name in headings]
            for row in results.get(kind, ())
        ]
        if lines:
            print_table(console, title, list(headings.values()), lines)
    _print_parts(console, results["pnr"])


def _print_parts(console: Console, rows: numbers.Rows) -> None:
    """Prints the area of the parts of the tops; it is the same with each seed."""
    tops = {
        f"{row['width']} bits{', sends' * (row['block'] == numbers.SENDER)}": row["parts"]
        for row in rows
        if row["block"] in ("top", numbers.SENDER)
    }
    lines = []
    for part in dict.fromkeys(part for parts in tops.values() for part in parts):
        areas = [parts.get(part, {}).values() for parts in tops.values()]
        lines.append([part or "between them", *(" ".join(map(str, area)) for area in areas)])
    if tops:
        print_table(console, "LUT4, FF, DP16KD of the top by part", ("part", *tops), lines)


def _print_sending(console: Console, rows: Iterable[dict[str, Any]]) -> None:
    lines = [
        [
            *map(str, (row["width"], row["llp"].upper(), row["payload"])),
            "inline" if row["offset"] is None else f"lane {row['offset']}",
            *map(str, (row["streams"], row["memory"])),
            f"{row['cycles']:g}" + (f" ({row['limit']:g})" if row["kind"] == "rate" else ""),
            _SENT[row["kind"]],
        ]
        for row in rows
    ]
    if lines:
        headings = "width", "over", "payload", "lies", "streams", "memory", "cycles", ""
        print_table(console, "Sending, memory's latency in cycles", headings, lines)


def _print_sctp(console: Console, rows: numbers.Rows, across: list[str]) -> None:
    if not rows:
        return
    found: dict[tuple[int, int], numbers.Rows] = {}
    for row in rows:
        found.setdefault((row["mtu"], row["payload"]), []).append(row)
    lines = [
        [str(payload), _bundle(mtu), *(f"{row['cycles']:g} ({row['limit']:g})" for row in line)]
        for (mtu, payload), line in found.items()
    ]
    title = "Cycles per segment over SCTP back to back (least), each a message"
    print_table(console, title, ("payload", "in packets of", *across), lines)

    widths = dict.fromkeys(row["width"] for row in rows)
    lines = [
        [
            _bundle(mtu),
            *(
                _line_rate([row for row in rows if (row["mtu"], row["width"]) == (mtu, width)])
                for width in widths
            ),
        ]
        for mtu in dict.fromkeys(row["mtu"] for row in rows)
    ]
    title = "Smallest payload at line rate over SCTP"
    print_table(console, title, ("in packets of", *across), lines)


def _bundle(mtu: int) -> str:
    return f"{mtu} octets" if mtu else "one segment"


def _line_rate(rows: numbers.Rows) -> str:
    smallest = numbers.line_rate(rows)
    share = min(row["limit"] / row["cycles"] for row in rows)
    return f"none, {share:.0%} at least" if smallest is None else str(smallest)
