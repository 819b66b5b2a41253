"""Prints what the results of several commands share."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from ..sim.capture.pcap import LeftOut
from ..sim.replay.differences import Difference
from ..sim.reports import report


def print_notes(console: Console, notes: list[str], left_out: list[LeftOut]) -> None:
    for note in notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    if len(left_out) > report.MOST_NAMED:  # otherwise the last sentence has all of them
        for each in left_out:
            console.print(f"left out: {escape(str(each))}", soft_wrap=True)


def print_differences(console: Console, differences: list[Difference]) -> None:
    for each in differences:
        cycle = "" if each.cycle is None else f" in cycle {each.cycle}"
        console.print(
            f"[red]difference[/red] in {each.what} at {escape(each.where)}:"
            f" expected {escape(each.expected)}, got {escape(each.got)}{cycle}",
            soft_wrap=True,
        )
