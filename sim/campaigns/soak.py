"""Plays random traffic for any length of time, through the RTL and through the golden model.

The traffic comes in chunks. Each chunk is a run of its own, which the seed and its number
determine: see :mod:`~ddp_rnic.sim.campaigns.traffic.draw`.

The results do not depend on speed, with one exception: the exception queue drops packets that do
not fit, so the host waits before that happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from ...hdl.spec.config import RnicConfig
from ..engines.engine import DeviceError, Drain, Engine, Meanwhile, Outcome, Poll
from ..engines.waves import Waves
from ..replay.differences import Difference, find_differences
from .traffic.chunk import Chunk, Traffic, size, slack
from .traffic.draw import draw

__all__ = ["Failure", "Progress", "Tally", "run_chunk", "soak"]

#: Called with the number of segments done, and of all.
Progress = Callable[[int, int], None]


@dataclass
class Failure:
    """A chunk that differs, and the smallest number of its first segments that do."""

    chunk: int
    segments: int
    differences: list[Difference]
    #: The message with which the RNIC's run was aborted, if it was.
    message: str = ""


@dataclass
class Tally:
    """The results of all chunks."""

    segments: int = 0
    octets: int = 0
    deliveries: int = 0
    errors: int = 0
    cycles: int = 0
    seconds: float = 0.0
    failure: Failure | None = None


def soak(
    engine: Engine,
    config: RnicConfig,
    traffic: Traffic,
    segments: int,
    *,
    only: int | None = None,
    waves: Waves | None = None,
    progress: Progress | None = None,
) -> Tally:
    """Runs chunks until one differs.

    Parameters
    ----------
    engine, config
        The engine, and the configuration of the gateware.
    traffic
        The parameters of the draw.
    segments
        Segments of all chunks together; the last packet may add some.
    only
        Run only this chunk, with at most ``segments`` segments.
    waves
        The waveform of the last run.
    progress
        Called after each chunk.
    """
    engine.run(config, [Drain()], np.zeros(64, np.uint8))  # building is no part of the time
    tally = Tally()
    began = time.monotonic()
    for number in count() if only is None else (only,):
        chunk = draw(config, traffic, number, min(size(number), segments - tally.segments))
        tally.failure = run_chunk(engine, config, number, chunk, waves, tally)
        tally.seconds = time.monotonic() - began
        if progress is not None:
            progress(tally.segments, segments)
        if tally.failure is not None or tally.segments >= segments:
            break
    if tally.failure is not None and only is None:
        tally.failure = _least(engine, config, traffic, tally.failure)
    return tally


def run_chunk(
    engine: Engine,
    config: RnicConfig,
    number: int,
    chunk: Chunk,
    waves: Waves | None = None,
    tally: Tally | None = None,
) -> Failure | None:
    """Runs a chunk. Returns its differences from the golden model, or None."""
    memory, ring = chunk.plan.memory.copy(), chunk.plan.ring
    try:
        outcome = engine.run(
            config,
            chunk.plan.operations,
            memory,
            ring=ring,
            stalls=chunk.stalls,
            faults=chunk.faults,
            base=chunk.plan.base,
            waves=waves,
        )
    except DeviceError as error:
        return Failure(number, chunk.segments, [], str(error))
    if tally is not None:
        tally.segments += chunk.segments
        totals = chunk.plan.golden.totals()
        tally.octets += totals["PLACED_OCTETS"]
        tally.deliveries += totals["DELIVERED"]
        tally.errors += totals["ERRORS"]
        tally.cycles += outcome.cycles
    differences = find_differences(chunk.plan, outcome, memory) or [
        *_interrupts(chunk, outcome),
        *_late_writes(chunk, outcome),
        *_slow(chunk, outcome),
    ]
    return Failure(number, chunk.segments, differences) if differences else None


def _interrupts(chunk: Chunk, outcome: Outcome) -> Iterator[Difference]:
    """Yields interrupts that came before their time, or much later."""
    delivered, risen = outcome.delivered.tolist(), outcome.interrupts.tolist()
    longest = slack(chunk.stalls)
    starts = [delivered[each.first] for each in chunk.moderated]
    ends = [delivered[each.first + each.messages] for each in chunk.moderated]
    for each, began, end in zip(chunk.moderated, starts, ends, strict=True):
        due = began + each.timeout
        if each.messages >= each.count:
            due = min(due, delivered[each.first + each.count - 1])
        got = next((cycle for cycle in risen if began < cycle < end), None)
        late = due - began <= each.watched and (got is None or got > due + longest)
        if late or (got is not None and got < due):
            yield Difference(
                "interrupt",
                f"completion {each.first + 1}, the first of {each.messages}, with a count of"
                f" {each.count} and a timeout of {each.timeout} cycles",
                f"in cycle {due}, or up to {longest} cycles later",
                "none" if got is None else f"in cycle {got}",
                got,
            )


def _polled(chunk: Chunk, outcome: Outcome) -> dict[int, int]:
    """Returns the cycle in which each poll succeeded, by its place among the operations."""
    cycles = iter(outcome.polled.tolist())
    found = {}
    for place, each in enumerate(chunk.plan.operations):
        if isinstance(each, Poll):
            found[place] = next(cycles)
        elif isinstance(each, Meanwhile):
            # These polls may succeed after later ones, but before the next one that is looked up.
            for access in each.operations:
                if isinstance(access, Poll):
                    next(cycles)
    return found


def _late_writes(chunk: Chunk, outcome: Outcome) -> Iterator[Difference]:
    """Yields the writes and responses that follow although the RNIC says that none does."""
    payload = np.concatenate((outcome.writes["cycle"], outcome.responses))
    payload, every = np.sort(payload), np.sort(np.append(payload, outcome.delivered))
    packets = np.append(outcome.taken["first"], outcome.cycles)
    polled = _polled(chunk, outcome)
    for each in chunk.still:
        since = polled[each.poll]
        following = packets[np.searchsorted(packets, since, "right")]
        cycles = every if each.idle else payload
        first, end = np.searchsorted(cycles, since, "right"), np.searchsorted(cycles, following)
        late = cycles[first:end]
        if len(late):
            yield Difference(
                "write",
                f"after cycle {since}, in which the host reads that"
                + (" nothing is in flight" if each.idle else " the revocation is done"),
                "no write and no response",
                f"{len(late)} of them, the first in cycle {late[0]}",
                int(late[0]),
            )


def _slow(chunk: Chunk, outcome: Outcome) -> Iterator[Difference]:
    """Yields the segments that did not come at line rate."""
    polled = _polled(chunk, outcome)
    for each in chunk.rates:
        begin, end = polled[each.first], polled[each.last]
        cycles = outcome.writes["cycle"]
        cycles = cycles[(cycles > begin) & (cycles < end)]
        if cycles[-1] - cycles[0] > each.cycles:
            yield Difference(
                "rate",
                f"the writes from cycle {cycles[0]} to {cycles[-1]}",
                f"up to {each.cycles} cycles",
                f"{cycles[-1] - cycles[0]} cycles",
                int(cycles[-1]),
            )


def _least(engine: Engine, config: RnicConfig, traffic: Traffic, failure: Failure) -> Failure:
    """Returns the shortest beginning of a chunk that differs, found by halving."""
    good = 0
    while failure.segments - good > 1:
        middle = (good + failure.segments) // 2
        chunk = draw(config, traffic, failure.chunk, middle)
        found = run_chunk(engine, config, failure.chunk, chunk)
        if found is None:
            good = middle
        else:
            failure = replace(found, segments=middle)
    return failure
