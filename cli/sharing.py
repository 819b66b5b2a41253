"""``rnic prm sim --play``: shows two programs, one of them hostile, that share a device."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.markup import escape

from ..hdl.spec.config import RnicConfig
from ..sim.capture.pcap import counted
from ..sim.devices.hostile import Attempt
from ..sim.devices.shared import play
from .inputs import Asked, read_input
from .outcome import DIFFERS, BadInput
from .terminal import colored, console


def show(capture: Path) -> None:
    """Plays a capture beside a hostile program, and prints the attempts of that program."""
    traffic = read_input(Asked(capture, None, [], []), RnicConfig()).traffic
    if not traffic.streams:
        raise BadInput(f"{capture}: --play plays DDP over MPA, and the capture has none")
    terminal = console()
    terminal.print("The hostile program:")

    def tell(attempt: Attempt) -> None:
        terminal.print(f"  {escape(str(attempt))}", soft_wrap=True)

    found = play(traffic, tell)
    terminal.print(
        f"{found.attempts} attempts of these {found.kinds} kinds, while the other program received"
        f" {counted(found.segments, 'segment')} on {counted(found.streams, 'stream')}:"
        f" {counted(found.messages, 'message')}, {counted(found.octets, 'octet')} placed,"
        f" {len(found.refused)} of the streams ended by an error of the capture.",
        soft_wrap=True,
    )
    terminal.print(
        f"It was served in {found.served / max(found.due, 1):.0%} of the {found.due} turns in which"
        f" it asked for something, and got {found.served / max(found.slices, 1):.0%} of the"
        " manager's work.",
        soft_wrap=True,
    )
    for each in found.differences:
        terminal.print(f"[red]difference[/red]: {escape(each)}", soft_wrap=True)
    verdict = "differ" if found.differences else "agree"
    terminal.print(
        f"{colored(verdict, not found.differences)}: memory, messages and errors of the other"
        " program, and the golden model",
        soft_wrap=True,
    )
    if found.differences:
        raise typer.Exit(DIFFERS)
