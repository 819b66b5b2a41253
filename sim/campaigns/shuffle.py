"""Plays a capture's SCTP frames as a bad network would bring them, in any number of ways.

However the frames arrive, the RNIC has to end with the same memory and the same deliveries. Between
two actions of the host the frames change places; some are lost, some damaged, and some frames that
arrived earlier arrive again. Lost frames are retransmitted: at the end of each stretch its frames
arrive once more, in order. A stretch has only frames that may be in flight together, because an
action of the host opens a session, or uses its stream again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ..engines.engine import Await, Drain, Engine, Frame, Operation
from ..replay.differences import Difference, find_differences_in_any_order
from ..replay.plan import Plan

#: The probabilities that a frame is lost, damaged, or repeated.
_LOST, _SPOILT, _REPEATED = 0.05, 0.03, 0.05


@dataclass
class Tally:
    """The results of all ways; ``differences`` and ``way`` are those of the first that differs."""

    ways: int = 0
    frames: int = 0
    cycles: int = 0
    way: int | None = None
    differences: tuple[Difference, ...] = ()


def run(
    engine: Engine,
    plans: Iterable[Plan],
    ways: Iterable[int],
    *,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> Tally:
    """Runs plans in the ways of these numbers, up to the first that differs.

    Raises
    ------
    DeviceError
        The gateware broke a rule of a bus, or stopped making progress.
    """
    plans = list(plans)
    tally = Tally()
    for way in ways:
        for number, plan in enumerate(plans):
            operations = shuffled(plan.operations, random.Random(f"{seed} {way} {number}"))
            memory = plan.memory.copy()
            outcome = engine.run(plan.config, operations, memory, ring=plan.ring)
            tally.frames += sum(isinstance(each, Frame) for each in operations)
            tally.cycles += outcome.cycles
            if differences := find_differences_in_any_order(plan, outcome, memory):
                tally.way, tally.differences = way, tuple(differences)
                return tally
        tally.ways += 1
        if progress is not None:
            progress(tally.ways)
    return tally


def shuffled(operations: Iterable[Operation], rng: random.Random) -> list[Operation]:
    """Returns the operations with their frames in the order of one way."""
    came: list[Operation] = []
    past: list[Frame] = []
    stretch: list[Frame] = []
    for operation in operations:
        if isinstance(operation, Frame):
            stretch.append(operation)
            continue
        came += _stretch(stretch, past, rng)
        past += stretch
        stretch = []
        # The number of entries that the ring has had by then differs between ways.
        came.append(Drain() if isinstance(operation, Await) else operation)
    return [*came, *_stretch(stretch, past, rng)]


def _stretch(frames: list[Frame], past: list[Frame], rng: random.Random) -> Iterator[Frame]:
    if not frames:
        return
    reach = rng.choice((1, 4, 32, len(frames)))
    place = {number: number + rng.uniform(0, reach) for number in range(len(frames))}
    for number in sorted(place, key=place.__getitem__):
        fate = rng.random()
        if fate >= _LOST + _SPOILT:
            yield frames[number]
        elif fate >= _LOST:
            yield _spoilt(frames[number], rng)
        if rng.random() < _REPEATED:
            yield rng.choice(past + frames)
    yield from frames


def _spoilt(frame: Frame, rng: random.Random) -> Frame:
    """Returns a frame with adjacent bits inverted after the Ethernet addresses, or marked as
    damaged.
    """
    if rng.random() < 0.2:
        return replace(frame, error=True)
    octets = bytearray(frame.octets)
    start = rng.randrange(12, len(octets))
    for at in range(start, min(start + rng.choice((1, 1, 3)), len(octets))):
        octets[at] ^= rng.randrange(1, 256)
    return Frame(bytes(octets))
