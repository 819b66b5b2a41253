"""``rnic soak``: plays random traffic through the RTL and through the golden model."""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..hdl.spec.config import WIDTHS
from ..sim.campaigns import soak as endurance
from ..sim.campaigns.traffic import chunk as chunks
from ..sim.capture.pcap import counted as _count
from ..sim.devices.peer.network import MOST, Rates
from ..sim.engines.choice import load
from .outcome import DIFFERS, BadInput, exits
from .results import print_differences
from .terminal import bar, console
from .waves import Cycles, Parts, cycles_of, waves_of

_WIDTHS = typer.Option(
    help="Datapath width in bits. May be given several times. Default: all widths.",
    show_default=False,
)
_SEED = typer.Option(help="Seed of the random draw. Default: a new one.", show_default=False)


def _share(of: str) -> object:
    return typer.Option(min=0, max=MOST, help=f"With --both: the share of packets that {of}.")


@exits(ValueError)
def soak(
    segments: Annotated[
        int, typer.Option(min=1, help="DDP Segments at each width; with --both, messages.")
    ] = 1_000_000,
    width: Annotated[list[int] | None, _WIDTHS] = None,
    seed: Annotated[int | None, _SEED] = None,
    streams: Annotated[int, typer.Option(min=1, max=4096, help="Number of streams.")] = 64,
    bus_errors: Annotated[
        bool, typer.Option("--bus-errors", help="Let the bus refuse a write now and then.")
    ] = False,
    chunk: Annotated[
        int | None,
        typer.Option(min=0, help="Run only this chunk, to replay it.", show_default=False),
    ] = None,
    waves: Parts = None,
    cycles: Cycles = None,
    both: Annotated[
        bool,
        typer.Option("--both", help="Let two devices that send and receive work with each other."),
    ] = False,
    sctp: Annotated[
        bool, typer.Option("--sctp", help="With --both: let them work over SCTP instead of TCP.")
    ] = False,
    loss: Annotated[float, _share("are lost")] = Rates().loss,
    duplication: Annotated[float, _share("arrive twice")] = Rates().duplication,
    reorder: Annotated[float, _share("later ones overtake")] = Rates().reorder,
) -> None:
    """Play random traffic through the RTL and the golden model, and compare the results.

    The traffic has every kind of segment and of error, on many streams in turn.
    The host revokes and registers regions and sets streams up again.

    With --both, two simulated devices send each other Sends, Writes and Reads
    over TCP, on several connections at a time, some of which end with an error,
    and some of whose completion queues fill up for a while; with --sctp, tagged
    and untagged messages and Reads in sessions over SCTP. The network
    between them loses packets, carries some twice and lets some overtake others.
    The devices read lost octets again from host memory, where a buffer is
    overwritten as soon as its message is complete. Both devices are in lock step
    with the golden model, and all octets are compared.

    Exit code 0: they agree. 1: they differ. 2: bad input. 3: a tool is missing.
    130: interrupted.
    """
    if waves and chunk is None:
        raise BadInput("--waves needs --chunk: a waveform of all chunks would be too long")
    shown = cycles_of(cycles, waves)
    traffic = chunks.Traffic(secrets.randbits(32) if seed is None else seed, streams, bus_errors)
    terminal = console()
    rates = Rates(loss, duplication, reorder)
    if both:
        if waves or bus_errors or streams != chunks.Traffic.streams:
            raise BadInput("--both takes no --waves, no --bus-errors and no --streams")
        terminal.print(f"seed {traffic.seed}")
        _play_both(terminal, traffic.seed, segments, rates, sctp, width or list(WIDTHS), chunk)
        return
    if sctp or rates != Rates():
        raise BadInput(
            "--sctp, --loss, --duplication and --reorder need --both, which has a network"
        )
    configs = [chunks.config_of(bits, streams) for bits in width or WIDTHS]
    terminal.print(f"seed {traffic.seed}")
    for config in configs:
        with bar(f"{config.width} bits", segments) as progress:
            tally = endurance.soak(
                load("compiled"),
                config,
                traffic,
                segments,
                only=chunk,
                waves=waves_of(waves, Path(f"soak-{config.width}.fst"), config, shown),
                progress=progress,
            )
        _print_tally(terminal, config.width, traffic, tally)
        if tally.failure is not None:
            raise typer.Exit(DIFFERS)


def _play_both(
    terminal: Console,
    seed: int,
    messages: int,
    rates: Rates,
    sctp: bool,
    widths: list[int],
    chunk: int | None,
) -> None:
    from ..sim.devices.peer.both import play

    for width in widths:
        with bar(f"{width} bits", messages) as progress:
            tally = play(width, seed, messages, rates, sctp=sctp, only=chunk, progress=progress)
        failure = tally.failure
        if failure is not None:
            terminal.print(f"[red]failure[/red]: {escape(failure.message)}", soft_wrap=True)
            terminal.print(
                f"again: rnic soak --both{' --sctp' * sctp} --seed {seed} --width {width}"
                f" --loss {rates.loss} --duplication {rates.duplication} --reorder {rates.reorder}"
                f" --chunk {failure.chunk} --segments {failure.messages}"
                f" (on new devices; with all chunks before it: --segments {messages} alone)",
                soft_wrap=True,
            )
        kinds = ", ".join(_count(tally.kinds[kind], kind) for kind in sorted(tally.kinds))
        terminal.print(
            f"{width} bits: {_verdict(failure)} on {_count(tally.messages, 'message')} ({kinds}),"
            f" {_count(tally.octets, 'octet')},"
            f" {_count(tally.connections, 'session' if sctp else 'connection')},"
            f" {_count(tally.errors.total(), 'planned error')}, {_count(tally.cycles, 'cycle')};"
            f" {tally.messages / max(tally.seconds, 1e-3):.0f} messages per second\n"
            f"{network_line(tally.network, 'chunk' if sctp else 'FPDU')}",
            soft_wrap=True,
        )
        if failure is not None:
            raise typer.Exit(DIFFERS)


def network_line(counts: Counter[str], unit: str = "FPDU") -> str:
    """Returns a line with the counts of networks, and of FPDUs or chunks that were sent again."""
    return (
        f"network: {_count(counts['packets'], 'packet')}, {counts['lost']} lost,"
        f" {counts['doubled']} doubled, {counts['overtaken']} overtaken;"
        f" {_count(counts['repeats'], unit)} sent again from host memory,"
        f" {counts['copies']} from copies"
    )


def _verdict(failure: object) -> str:
    return "[bold green]agree[/bold green]" if failure is None else "[bold red]differ[/bold red]"


def _print_tally(
    terminal: Console, width: int, traffic: chunks.Traffic, tally: endurance.Tally
) -> None:
    failure = tally.failure
    if failure is not None:
        if failure.message:
            terminal.print(f"[red]failure[/red]: {escape(failure.message)}", soft_wrap=True)
        print_differences(terminal, failure.differences)
        terminal.print(
            f"replay: rnic soak --seed {traffic.seed} --width {width} --streams {traffic.streams}"
            f"{' --bus-errors' * traffic.bus_errors}"
            f" --chunk {failure.chunk} --segments {failure.segments} --waves all",
            soft_wrap=True,
        )
    terminal.print(
        f"{width} bits: {_verdict(failure)} on {_count(tally.segments, 'segment')},"
        f" {_count(tally.octets, 'octet')} placed, {_count(tally.deliveries, 'message')} delivered,"
        f" {_count(tally.errors, 'error')}, {_count(tally.cycles, 'cycle')};"
        f" {tally.segments / max(tally.seconds, 1e-3):.0f} segments per second",
        soft_wrap=True,
    )
