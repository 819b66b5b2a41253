"""Plays captures through simulated RNICs, also while a pipe is still being written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from ..hdl.spec.config import RnicConfig
from ..sim.capture.capture import Assumption, Watch
from ..sim.capture.live import Follower
from ..sim.capture.pcap import opening
from ..sim.capture.piped import piped
from ..sim.capture.traffic import Traffic, traffic_of
from ..sim.engines.engine import Engine, Operation, Outcome
from ..sim.engines.waves import Waves
from ..sim.replay.differences import Comparison
from ..sim.replay.plan import Replay, replays
from ..sim.replay.regions import Region, RegionError, derive, load_regions, stream_ends
from ..sim.reports.one_frame import FrameCycles
from ..sim.reports.record import Record
from ..sim.reports.report import Result, Run, Tally, outcome_text
from .inputs import Asked
from .results import print_differences
from .terminal import say

_WHY_LATER = "played at the end of the pipe, because"


def play(
    replay: Replay,
    engine: Engine,
    begin: Callable[[], None] = lambda: None,
    *,
    waves: Waves | None = None,
    keep: bool = False,
    cycles: FrameCycles | None = None,
    progress: Callable[..., None] | None = None,
) -> Run:
    """Plays a capture through one RNIC.

    Parameters
    ----------
    begin
        This function is called when the simulator is built.
    keep
        Keeps the events of the first segments, and of those that were refused later.
    cycles
        Gets the cycles of one frame.
    progress
        Gets the number of segments that were played, and of all.
    """
    plan = replay.plan
    memory = np.zeros(len(plan.memory), np.uint8)  # not zeros_like, which would fill it
    memory[: replay.filled] = plan.memory[: replay.filled]
    comparison = Comparison(plan) if cycles is None else Comparison(plan, cycles.entry)
    tally, record = Tally(plan, memory if keep else None), Record(plan) if keep else None

    def operations() -> Iterator[Operation]:
        begin()
        yield from replay.operations(memory)

    def part(outcome: Outcome) -> bool:
        if record is not None and not record.take(outcome):
            return False
        comparison.take(outcome)
        if cycles is not None:
            cycles.take(outcome)
        received = tally.take(outcome)
        plan.forget()
        plan.reuse(received, memory)
        return True

    def show(done: int, known: int) -> None:
        if progress is not None:
            progress(replay.taken * done // known, replay.total)

    outcome = engine.run(
        plan.config, operations(), memory, ring=plan.ring, waves=waves, progress=show, part=part,
    )  # fmt: skip
    if cycles is not None:
        cycles.take(outcome, ends=True)
    run = Run(plan, outcome, memory, comparison.finish(outcome, memory), tally)
    if record is not None:
        run.outcome, run.outline = record.restore(outcome), record.outline
    return run


class Live:
    """Plays the frames of a pipe that have come, while others are still being written.

    The capture is cut at the ends of messages, and each cut is played through an RNIC of its own.
    Its regions and buffers come from its own segments, because nobody knows the later ones yet. So
    this is a first result: a Terminate that comes later can show that a receiver refused a segment.

    Parameters
    ----------
    config
        The configuration of the RNIC.
    engine
        The engine that runs the Verilog.
    asked
        The options that choose the traffic.

    Attributes
    ----------
    agrees
        Whether RTL and golden model have agreed so far.
    """

    def __init__(self, config: RnicConfig, engine: Engine, asked: Asked) -> None:
        self.agrees = True
        self._config, self._engine = config, engine
        self._follower = Follower([Assumption.parse(text) for text in asked.assume])
        self._counts: Counter[str] = Counter()  # segments that were played, by host
        self._given: list[Region] | None = None
        self._later = ""  # why nothing is played yet
        if asked.regions is not None and asked.capture is not None and _is_pipe(asked.capture):
            given = load_regions(asked.regions)
            self._given = given.regions or None
            if given.queues:
                self._wait(f"the buffers in {asked.regions} are counted from the first message on")

    def _wait(self, why: str) -> None:
        if not self._later:
            self._later = why
            say(f"{_WHY_LATER} {why}")

    def __call__(self, watch: Watch) -> None:
        """Plays the messages that have come since the last call, and prints the result."""
        if watch.sctp:
            self._wait("the sessions of SCTP are found in the capture as a whole")
        if self._later:
            return
        capture = self._follower.take(watch)
        if not capture.connections:
            return
        try:
            self._play(traffic_of(capture))
        except RegionError as error:
            self._wait(str(error))

    def _play(self, traffic: Traffic) -> None:
        if self._given is None:
            found = derive(traffic, self._config.stags)
            regions, ends = found.regions, found.ends
        else:
            regions, ends = [*filter(None, map(self._now, self._given))], stream_ends(traffic)
        result = Result("", "", self._config.width, self._given is None)
        for replay in replays(traffic, regions, self._config, ends)[0]:
            run = play(replay, self._engine)
            result.runs.append(run)
            golden = run.plan.golden
            self._follower.end(each for each in run.plan.streams if not golden.live(each.number))
            print_differences(Console(stderr=True, highlight=False), run.differences)
        self.agrees = self.agrees and result.agrees
        frames = range(0)
        for arrival in traffic.arrivals:
            self._counts[arrival.endpoint] += 1
            frames = range(frames.start or arrival.frame, arrival.frame + 1)
        say(f"frames {frames.start} to {frames[-1]}: {result.verdict}: {outcome_text(result)}")
        if self._given is not None:
            self._given = [each for each in self._given if not self._revoked(each, result)]

    def _now(self, region: Region) -> Region | None:
        """Returns a given region with periods that count from the segments played so far on, or
        None if it is not registered any more.
        """
        played = self._counts[region.endpoint]
        periods = tuple(
            (max(after - played, 0), None if until is None else until - played)
            for after, until in region.periods
            if until is None or until > played
        )
        return replace(region, periods=periods) if periods else None

    def _revoked(self, region: Region, result: Result) -> bool:
        """Returns True if a Send with Invalidate has revoked a given region."""
        now = self._now(region)
        return now is None or (
            now.periods[0][0] == 0
            and not any(
                run.plan.golden.registered(region.endpoint, region.stag) for run in result.runs
            )
        )


def _is_pipe(capture: Path) -> bool:
    with opening(capture):
        return piped(capture) is not None
