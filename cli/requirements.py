"""``rnic requirements``: lists the tests that hold each sentence, and violates the sentences."""

from __future__ import annotations

from typing import Annotated

import typer

from ..sim.campaigns.violations import Row, Violation
from .outcome import DIFFERS, exits
from .terminal import console, print_table


@exits()
def requirements(
    sentences: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids as in tests/requirements.csv, or their beginnings. Default: all.",
            show_default=False,
        ),
    ] = None,
    violate: Annotated[
        bool,
        typer.Option("--violate", help="Violate each sentence, and run the tests for it."),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Violations tried at the same time.")] = 1,
) -> None:
    """List the normative sentences with their tests; with --violate, check that the tests work.

    Each violation of tests/violations.toml changes a copy of the project; the
    tests for the sentence must then fail.

    Exit code 0: all were noticed. 1: one was not. 2: bad input. 130:
    interrupted.
    """
    from ..sim.campaigns import violations as trying

    chosen = tuple(sentences or [""])
    rows = [row for row in trying.read_rows() if row.id.startswith(chosen)]
    if not rows:
        raise trying.TableError(f"no sentence's id begins with {' or '.join(chosen)}")
    known = [each for each in trying.read_violations()
             if any(sentence.startswith(chosen) for sentence in each.sentences)]  # fmt: skip
    if not violate:
        _print_rows(rows, known)
        return
    count = 0

    def said(trial: trying.Trial) -> None:
        nonlocal count
        count += 1
        by = trial.failed[0] if trial.failed else trial.violation.does
        typer.echo(
            f"{count} of {len(known)}: {trial.violation.name}: {trial.outcome.value}"
            f" ({by}; {trial.seconds:.0f} s)"
        )

    trials = trying.try_all(known, jobs, said)
    for trial in trials:
        if trial.outcome is not trying.Outcome.NOTICED:
            typer.echo(f"{trial.violation.name}: {trial.outcome.value}: {trial.violation.does}")
            typer.echo(trial.output[-2000:])
    noticed = sum(trial.outcome is trying.Outcome.NOTICED for trial in trials)
    typer.echo(f"{noticed} of {len(trials)} violations were noticed")
    typer.echo(_without_violation(rows, known))
    if noticed < len(trials):
        raise typer.Exit(DIFFERS)


def _print_rows(rows: list[Row], known: list[Violation]) -> None:
    """Prints the part of the project that holds each sentence, and the numbers of tests and
    violations.
    """
    cells = (
        (
            row.id,
            row.holder,
            str(len(row.evidence)),
            str(sum(row.id in violation.sentences for violation in known)),
        )
        for row in rows
    )
    headings = "sentence", "held by", "tests", "violations"
    print_table(console(), "Normative sentences", headings, cells)
    typer.echo(_without_violation(rows, known))


def _without_violation(rows: list[Row], known: list[Violation]) -> str:
    """Returns a sentence that counts the sentences without a violation."""
    violated = {sentence for violation in known for sentence in violation.sentences}
    open_rows = [row.id for row in rows if row.evidence and row.id not in violated]
    nobody = sum(row.holder == "nobody" for row in rows)
    others = sum(not row.evidence for row in rows) - nobody
    text = f"{others} of {len(rows)} sentences are for others to honour and have no tests"
    if nobody:
        text += f"; {nobody} are not honoured yet"
    if open_rows:
        text += f"; these have tests and no violation: {', '.join(open_rows)}"
    return text
