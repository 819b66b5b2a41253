"""Holds the facts that all parts of a chunk share."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ....hdl.spec.config import RnicConfig
from ...capture.streams import Stream
from ...capture.traffic import fpdu_length
from ...model.mpa import MpaSender
from ...replay.host import Space
from .busy_host import BoundGolden, BusyHost
from .interleaving import Interleaving

__all__ = [
    "AROUND",
    "EDGE",
    "HALF",
    "HOSTS",
    "LARGEST_PAGE",
    "LONG",
    "MSN",
    "START",
    "TO",
    "WITH_MARKERS",
    "Peer",
    "Queue",
    "Scene",
]

#: Host memory below this is for memory that crosses between two of the larger pages and begins and
#: ends at places of its own; at most this many octets lie on either side.
START = 4 << 20
EDGE = 30000
LARGEST_PAGE = 1 << 21
#: Octets of a long region.
LONG = 3 << 20
MSN = 1 << 32
HALF = MSN - 1
TO = 1 << 64
#: The hosts; each is a Protection Domain.
HOSTS = tuple(f"10.0.0.{number}" for number in range(1, 5))
#: Octets of an FPDU that are neither header nor payload: ULPDU_Length and CRC.
AROUND = 6
#: Octets of the longest ULPDU with markers.
WITH_MARKERS = 64512


@dataclass
class Queue:
    """A queue as its host and its sender know it."""

    following: int  # the MSN of the next buffer
    fill: int  # how many buffers it is filled up to
    longest: int  # octets of the longest buffer
    posted: int = 0
    #: MSN and length of the buffers that have no message yet.
    free: deque[tuple[int, int]] = field(default_factory=deque)
    #: MSN and length of buffers posted during the traffic, and the number of the call.
    coming: deque[tuple[int, int, int]] = field(default_factory=deque)
    #: Remaining segments of the present message.
    waiting: deque[bytes] = field(default_factory=deque)
    #: The count of completions with which each buffer was used.
    used: list[int] = field(default_factory=list)


@dataclass
class Peer:
    """The sending end of a stream."""

    stream: Stream
    sender: MpaSender
    queues: dict[int, Queue]
    order: Interleaving = field(default_factory=Interleaving)


@dataclass
class Scene:
    """A chunk: its settings, its host and its peers.

    Parameters
    ----------
    config, rng
        The configuration, and the source of everything that is drawn.
    number, bus_errors
        The chunk's number, and whether the bus refuses a write now and then.
    golden, host, space
        The golden model, the host, and the host's memory.
    base
        The bus address of that memory.
    numbers
        The streams.

    Attributes
    ----------
    peers
        The sending end of each stream.
    stopped
        Streams that the host disabled.
    segments
        How many segments were drawn.
    wrongs
        How many wrong segments of each kind.
    """

    config: RnicConfig
    rng: random.Random
    number: int
    bus_errors: bool
    golden: BoundGolden
    host: BusyHost
    space: Space
    base: int
    numbers: list[int]
    peers: dict[int, Peer] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    segments: int = 0
    wrongs: Counter[str] = field(default_factory=Counter)

    def beside(
        self, call: Callable[[], None], streams: Iterable[int] = (), slots: Iterable[int] = ()
    ) -> None:
        """Makes a call of the host, sometimes during the traffic."""
        if self.segments and self.rng.random() < 0.7:
            self.host.aside(self.rng.randrange(100), call, streams, slots)
        else:
            call()

    def cut(self, stream: Stream, octets: bytes, position: int) -> Iterator[tuple[int, int]]:
        """Yields the FPDUs of a packet, found by their lengths; the last may be incomplete."""
        at = 0
        # The RNIC does not know the markers of a disabled stream.
        markers = stream.markers and stream.number not in self.stopped
        while at < len(octets):
            length = fpdu_length(octets, at, position + at, markers)
            length = len(octets) - at if length is None else min(length, len(octets) - at)
            yield at, length
            at += length
