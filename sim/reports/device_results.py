"""Plays the same vectors on several devices and on the golden model, and lists the differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ...sw_driver import RnicError
from ..capture.pcap import LeftOut
from ..devices.link import Link, run_plan
from ..engines.engine import DeviceError
from ..engines.waves import Waves
from ..replay.differences import Difference, find_differences
from ..replay.plan import Plan
from .report import Run, agreement

__all__ = ["DeviceResults", "Row", "DeviceResult", "run"]

#: Opens the link to a device for a plan; the second argument is the waveform to be written.
Opener = Callable[[Plan, Waves | None], Link]


@dataclass
class DeviceResult:
    """The results of the vectors on one device: a run of each plan, unless one failed."""

    name: str
    runs: list[Run] = field(default_factory=list)
    waves: list[Path] = field(default_factory=list)
    failure: str | None = None

    @property
    def differences(self) -> list[tuple[int, Difference]]:
        """All differences from the golden model, with the number of the run."""
        found = [(at, each) for at, run in enumerate(self.runs) for each in run.differences]
        if self.failure is not None:
            found.append((len(self.runs), Difference("device", "the run", "its end", self.failure)))
        return found

    @property
    def verdict(self) -> str:
        return "differs" if self.differences else "agrees"


class Row(NamedTuple):
    """A difference in a run, with the value of each device that differs from the golden model."""

    run: int
    what: str
    where: str
    expected: str
    got: dict[str, Difference]


@dataclass
class DeviceResults:
    """The results of all devices. ``source`` names the capture or workload."""

    source: str
    width: int
    devices: list[DeviceResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return not any(side.differences for side in self.devices)

    @property
    def verdict(self) -> str:
        return agreement(self.left_out) if self.agrees else "differ"

    def rows(self) -> list[Row]:
        """The differences, each once."""
        rows: dict[tuple[int, str, str, str], Row] = {}
        for side in self.devices:
            for at, each in side.differences:
                key = at, each.what, each.where, each.expected
                rows.setdefault(key, Row(*key, {})).got[side.name] = each
        return list(rows.values())


def run(
    name: str,
    open_link: Opener,
    plans: Sequence[Plan],
    *,
    waves: Waves | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DeviceResult:
    """Plays plans on a device, up to the first that fails.

    Parameters
    ----------
    name
        The device's name in reports.
    open_link
        Opens the device for a plan.
    waves
        The waveform of each plan; with several plans the name of the file gets a number.
    progress
        Called with the number of operations done in a plan, and of all.

    Raises
    ------
    ToolError
        The device cannot be built on this machine.
    """
    side = DeviceResult(name)
    for number, plan in enumerate(plans, 1):
        shown = waves
        if waves is not None and len(plans) > 1:
            path = waves.path.with_stem(f"{waves.path.stem}-{number}")
            shown = replace(waves, path=path)
        with open_link(plan, shown) as link:
            try:
                outcome, memory = run_plan(plan, link, progress)
            except (RnicError, DeviceError) as error:
                side.failure = str(error)
                return side
            finally:
                side.waves += [shown.path] if shown is not None else []
        side.runs.append(Run(plan, outcome, memory, find_differences(plan, outcome, memory)))
    return side
