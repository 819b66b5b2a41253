"""The chunks of ``rnic soak``: each is a run of its own, with facts that its results must show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ....hdl.spec.config import RnicConfig
from ...engines.engine import Stalls
from ...replay.plan import Plan

__all__ = [
    "BETWEEN", "CHUNKS", "MANY", "WATCHED", "Chunk", "Moderated", "Rate", "Still", "Traffic",
    "config_of", "size", "slack",
]  # fmt: skip

#: Numbers of segments of chunks, used in turn: short chunks differ more, and long ones fill up
#: queues and tables.
CHUNKS = (1000, 2000, 4000, 1000, 2000, 10000)
#: The chunk of very short messages, so many that counts of 16 bits wrap; and between how many of
#: them the host does what depends on such counts.
MANY, _MESSAGES, BETWEEN = len(CHUNKS), (1 << 16) + 2000, 3000
#: The longest timeout of an interrupt, in cycles, that is waited for. A bus that stalls may take
#: ``_SLACK`` cycles for a completion, beside its latency; an interrupt comes up to ``_SHORT_SLACK``
#: cycles after that.
WATCHED, _SLACK, _SHORT_SLACK = 2500, 1000, 80


@dataclass(frozen=True)
class Moderated:
    """Messages that the idle RNIC delivers to a host which takes no completions, with a moderated
    interrupt.

    The interrupt needs ``count`` completions, or one that is ``timeout`` cycles old. The host waits
    for ``watched`` cycles, and for as long as the bus may hold a completion up.
    """

    first: int  # the number of the first completion, from 0
    messages: int
    count: int
    timeout: int
    watched: int = WATCHED


@dataclass(frozen=True)
class Still:
    """A poll after which the RNIC writes no payload until the next packet.

    With ``idle`` the poll finds STATUS.idle, and the RNIC writes no completion either. Otherwise
    the poll finds that a revocation is done.
    """

    poll: int  # its place among the operations
    idle: bool


@dataclass(frozen=True)
class Rate:
    """Segments that follow each other without stalls, between two polls that find STATUS.idle.

    From the first write to the last one they take no more than ``cycles`` cycles.
    """

    first: int  # the places of the polls among the operations
    last: int
    cycles: int


@dataclass
class Chunk:
    """A run of its own, with its settings."""

    plan: Plan
    stalls: Stalls
    faults: list[range]
    segments: int  # without those of the ``closing`` packets
    #: How many wrong segments of each kind there are; of tiny ones, how many packets.
    wrong: Counter[str]
    #: The moderation and the rate that the last packets, ``closing`` in number, test.
    moderated: list[Moderated]
    rates: list[Rate]
    closing: int
    still: list[Still]


@dataclass(frozen=True)
class Traffic:
    """The parameters of the draw: equal ones give equal chunks."""

    seed: int
    streams: int = 64
    #: True if the bus refuses a write now and then.
    bus_errors: bool = False


def config_of(width: int, streams: int) -> RnicConfig:
    """Returns a configuration for this many streams."""
    table = max(RnicConfig.streams, 1 << (streams - 1).bit_length())
    buffers = min(RnicConfig.buffers * table // RnicConfig.streams, 1 << 16)
    return RnicConfig(width=width, streams=table, buffers=buffers, full_counters=True)


def size(number: int) -> int:
    """Returns how many segments a chunk has."""
    return _MESSAGES if number == MANY else CHUNKS[number % len(CHUNKS)]


def slack(stalls: Stalls) -> int:
    """Returns for how many cycles the bus may hold a completion up."""
    if not (stalls.write or stalls.response):
        return stalls.response_latency + _SHORT_SLACK
    return stalls.response_latency + _SLACK + 12 * (stalls.stretch - 1)
