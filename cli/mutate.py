"""``rnic mutate``: plants faults in the RTL, and counts those that random traffic notices."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from .outcome import DIFFERS, BadInput, exits


@exits(TypeError, ValueError)
def mutate(
    mutants: Annotated[int, typer.Option(min=1, help="Number of mutants.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mutants and the traffic.")] = 1,
    width: Annotated[int, typer.Option(help="Datapath width in bits.")] = 64,
    segments: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="DDP Segments that each mutant gets, or with --send messages that are sent."
            " Default: 20000, or 1600 messages.",
            show_default=False,
        ),
    ] = None,
    send: Annotated[
        bool,
        typer.Option("--send", help="Plant faults in the blocks that send, between two devices."),
    ] = False,
    sctp: Annotated[
        bool, typer.Option("--sctp", help="With --send: the devices work over SCTP.")
    ] = False,
) -> None:
    """Plant faults in the RTL, one at a time, and count those that random traffic notices.

    yosys draws the faults: a bit inverted, stuck or mixed with another one.
    Faults without effect are listed in sim/data/equivalent_mutants.toml, with
    the reason, and not counted.

    Exit code 0: at least 97 % were noticed. 1: fewer. 2: bad input. 3: a tool
    is missing. 130: interrupted.
    """
    from ..sim.campaigns import mutation

    if sctp and not send:
        raise BadInput("--sctp needs --send")
    equivalents = mutation.read_equivalents()
    planted = mutation.mutated(mutants, seed, width, sends=send, sctp=sctp)
    segments = segments or (1600 if send else 20_000)
    if send:
        play = mutation.sending(planted, seed, segments)
    else:
        play = mutation.receiving(planted, mutation.drawn(planted.config, seed, segments))
    counts: Counter[str] = Counter()

    def said(fate: mutation.Fate) -> None:
        counts["tried"] += 1
        outcome = "noticed"
        if not fate.noticed:
            reasons = [each.reason for each in equivalents if each.covers(fate.mutant)]
            outcome = f"equivalent: {reasons[0]}" if reasons else "not noticed"
            typer.echo(f"{outcome}: mutant {fate.mutant.number}, {fate.mutant}")
        counts[outcome.partition(":")[0]] += 1

    mutation.try_all(planted, play, said)
    counted = counts["tried"] - counts["equivalent"]
    unit = "messages" if send else "segments"
    typer.echo(
        f"seed {seed}, {width} bits, {segments} {unit}: {counts['noticed']} of {counted} mutants"
        f" were noticed, {counts['equivalent']} further ones are equivalent"
    )
    if counts["noticed"] < mutation.WANTED * counted:
        raise typer.Exit(DIFFERS)
