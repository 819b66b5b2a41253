"""``rnic explain``: explains the DDP Segments of a frame, or an error number."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..hdl.spec.config import RnicConfig
from ..sim.capture.piped import name_of
from ..sim.replay.plan import replays
from ..sim.reports.errors import Meaning, meanings
from ..sim.reports.explanation import Explainer, Explanation
from ..sim.reports.fields import Field, Layer
from ..sim.reports.one_frame import judge
from .inputs import Asked, Assume, Input, Regions, SctpPort, read_input
from .outcome import BadInput, exits

#: Columns of the output, on every terminal and in a pipe.
_COLUMNS = 80
_OCTETS, _NAME, _RESULT = 10, 40, 13
_SHOWN = 16  # octets of a Terminate in a line
_DERIVED = (
    "note: the regions and buffers are derived from the capture, and repeat a refusal that a"
    " Terminate in it shows; --regions gives others."
)


@exits()
def explain(
    capture: Annotated[
        Path | None,
        typer.Argument(help="pcap or pcapng file with DDP over TCP or SCTP.", show_default=False),
    ] = None,
    frame: Annotated[
        int | None,
        typer.Argument(help="Number of the frame, from 1, as in Wireshark.", show_default=False),
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Instead, explain an error number as in a Terminate: TYPE/CODE, as 0x1/0x03, or"
            " LAYER/TYPE/CODE with RDMA, DDP or LLP as layer.",
            show_default=False,
        ),
    ] = None,
    regions: Regions = None,
    assume: Assume = None,
    sctp_port: SctpPort = None,
) -> None:
    """Explain each DDP Segment of a frame: fields, checks with their sums, and the outcome.

    The golden model receives the whole capture. For a segment in error, the output has the check
    that refused it, the table entry, the sentence of the RFC, the Terminate that the peer gets, and
    advice.

    Exit code 0: explained. 2: bad input, or no DDP Segment in the frame.
    """
    if error is not None:
        if capture is not None or regions is not None:
            raise BadInput("--error takes no capture and no --regions: leave these out")
        try:
            typer.echo("\n\n".join("\n".join(_meaning(each)) for each in meanings(error)))
        except ValueError as wrong:
            raise BadInput(f"--error: {wrong}") from None
        return
    if capture is None or frame is None:
        raise BadInput("give a capture and the number of a frame, or --error NUMBER")
    found = read_input(Asked(capture, regions, assume or [], sctp_port or []), RnicConfig())
    explainer = _explainer(found, frame)
    explained = [explainer.explain(each) for each in explainer.of_frame(frame)]
    if not explained:
        raise BadInput(explainer.reason(frame))
    shown: set[Layer] = set()
    typer.echo("\n\n".join("\n".join(_lines(explainer, each, frame, shown)) for each in explained))
    if found.derived and any(each.judged.error is not None for each in explained):
        typer.echo("\n".join(["", *_wrapped(_DERIVED)]))


def _explainer(found: Input, frame: int) -> Explainer:
    """Lets the golden model receive the capture, and reads what a frame's explanation needs."""
    count = found.capture.frames
    if not 1 <= frame <= count:
        raise BadInput(
            f"{name_of(found.capture.path)} has the frames 1 to {count}, so frame {frame} is not"
            " there"
        )
    planning, _ = replays(found.traffic, found.regions, RnicConfig(), found.ends, found.queues)
    plans = judge(planning, found.capture, found.traffic, frame)
    explainer = Explainer(found.capture, found.traffic, plans)
    explainer.read(found.frames(), frame)
    return explainer


# -- a segment --


def _lines(
    explainer: Explainer, explanation: Explanation, frame: int, shown: set[Layer]
) -> Iterator[str]:
    """Yields the lines for a segment, without the layers that were shown for an earlier one."""
    arrival = explanation.judged.arrival
    yield from _wrapped(
        f"Frame {frame}, {explainer.time(frame):.6f} s: DDP Segment {arrival.order} of"
        f" {arrival.endpoint}, stream {arrival.stream.number} ({arrival.stream})"
    )
    frames = [each.number for each in explanation.shown]
    if frames != [frame] or arrival.frame != frame:
        yield from _wrapped(
            f"Its octets lie in {_frames(frames)}, and are there in order with frame"
            f" {arrival.frame}."
        )
    for layer in explanation.layers:
        if layer not in shown:
            yield from _layer(layer, frame)
    shown.update(explanation.layers)
    yield ""
    yield "Checks before Placement, in their order (RFC 5041 section 7.1)"
    for step in explanation.steps:
        section = step.sentence.section.removeprefix("RFC ").replace(" section ", " ")
        text = f"{section}: {step.sum or step.sentence.text}"
        yield from _hanging(f"  {step.result.value}", text, _RESULT + 2)
    if explanation.entry:
        yield ""
        yield from _wrapped(f"Entry: {explanation.entry}")
    yield ""
    yield from _wrapped(f"Outcome: {explanation.outcome}.")
    decided = explanation.decided
    if decided is not None:
        yield from _wrapped(f'Decided by {decided.sentence.section}: "{decided.sentence.text}"')
    if explanation.terminate is not None and explanation.meaning is not None:
        octets = explanation.terminate.encode()
        yield from _wrapped(
            f"The peer gets: a Terminate with {explanation.meaning} (RFC 5040 section 4.8),"
            f" {len(octets)} octets:"
        )
        for at in range(0, len(octets), _SHOWN):
            yield f"  {octets[at : at + _SHOWN].hex(' ')}"
        yield from _wrapped(f"Try: {explanation.meaning.advice}")


def _frames(numbers: list[int]) -> str:
    return f"frame{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _layer(layer: Layer, frame: int) -> Iterator[str]:
    yield ""
    yield f"{layer.name} ({layer.section})"
    for each in layer.fields:
        yield from _hanging(f"  {_where(each, frame):{_OCTETS}}{each.name}", each.value, _NAME)


def _where(field: Field, frame: int) -> str:
    """Returns the octets of a field; those of another frame with its number."""
    if not field.spans:
        return ""
    first, last = field.spans[0], field.spans[-1]
    text = f"{first.start}"
    if (first.frame, first.start) != (last.frame, last.stop - 1):
        end = f"{last.frame}:" if last.frame != first.frame else ""
        text += f"-{end}{last.stop - 1}"
    return text if first.frame == frame else f"{first.frame}:{text}"


# -- an error --


def _meaning(meaning: Meaning) -> Iterator[str]:
    """Yields the lines for an error."""
    yield f"{meaning} ({meaning.layer.value:#x}/{meaning.type:#x}/{meaning.code:#04x})"
    for each in meaning.sentences:
        yield from _wrapped(f'{each.section}: "{each.text}"')
    yield from _wrapped(
        f"In a Terminate (RFC 5040 section 4.8): layer {meaning.layer.value}"
        f" ({meaning.layer.name}), type {meaning.type:#x}, code {meaning.code:#04x}"
    )
    yield from _wrapped(f"Try: {meaning.advice}")


# -- lines --


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def _hanging(left: str, text: str, column: int) -> list[str]:
    """Returns text from a column on, with ``left`` before its first line."""
    lines = textwrap.wrap(text, _COLUMNS - column, break_on_hyphens=False) or [""]
    return [f"{left:{column - 1}} {lines[0]}", *(" " * column + line for line in lines[1:])]
