"""The memory that a replay gives to the sessions of DDP over SCTP.

For the derivation each session is a stream of its own, beside those of MPA. If several sessions use
an STag one after the other, each of them gets a region; if they use it at the same time, the region
belongs to the host.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from itertools import pairwise

from ..capture.sctp_traffic import DdpSession, Incoming, SctpTraffic
from ..capture.spool import Again
from ..capture.streams import Arrival, Stream
from ..capture.traffic import Traffic
from .regions import (
    LARGEST_TABLE,
    Derived,
    Period,
    Queue,
    Region,
    buffer_lengths,
    check_memory,
    derive,
    slot,
)

__all__ = ["Lengths", "derive_all", "lengths_of", "of_sessions"]


@dataclass(frozen=True)
class Lengths:
    """The lengths of the buffers of untagged queues, by Queue Number, for streams of MPA and
    for sessions.
    """

    streams: dict[int, dict[int, list[int]]]
    sessions: dict[DdpSession, dict[int, list[int]]]

    @property
    def queues(self) -> int:
        """The number of queues that have a buffer; a stream's sessions share its queues."""
        of_sessions = {
            (session.stream.number, qn)
            for session, queues in self.sessions.items()
            for qn, lengths in queues.items()
            if lengths
        }
        of_mpa = sum(len(queues) for queues in self.streams.values())
        return of_mpa + len(of_sessions)


@dataclass(frozen=True)
class _Flat:
    """Traffic in which each session is a stream.

    ``sessions`` has them by the stream's number, and ``streams`` the streams by the number of the
    SCTP stream and of its session.
    """

    traffic: Traffic
    sessions: dict[int, DdpSession]
    streams: dict[tuple[int, int], Stream]


def _flat(traffic: Traffic) -> _Flat:
    if (sctp := traffic.sctp) is None:
        return _Flat(traffic, {}, {})
    up = [session for session in sctp.sessions if session.since is not None]
    numbers = {session: number for number, session in enumerate(up, len(traffic.streams))}
    streams: dict[tuple[int, int], Stream] = {}
    for session, number in numbers.items():
        other = numbers.get(session.partner, number) if session.partner else number
        streams[session.stream.number, session.number] = replace(
            session.own, number=number, connection=-1 - min(number, other)
        )

    def arrivals() -> Iterator[Arrival]:
        by_sctp = _flat_steps(sctp, streams, range(len(sctp.steps)))
        return merge(traffic.arrivals, by_sctp, key=lambda arrival: arrival.frame)

    return _Flat(
        replace(
            traffic,
            streams=(*traffic.streams, *streams.values()),
            arrivals=Again(arrivals),
            sctp=None,
        ),
        {number: session for session, number in numbers.items()},
        streams,
    )


def _flat_steps(
    sctp: SctpTraffic, streams: dict[tuple[int, int], Stream], numbers: Iterable[int]
) -> Iterator[Arrival]:
    """Yields the segments of steps, whose numbers are given, on the streams of their sessions."""
    for number in numbers:
        step = sctp.steps[number]
        for segment in step.segments if isinstance(step, Incoming) else ():
            yield replace(segment, stream=streams[segment.stream.number, segment.session])


def derive_all(traffic: Traffic, stags: int = 1024) -> Derived:
    """Derives regions as :func:`.regions.derive` does, also for the sessions of SCTP.

    Raises
    ------
    RegionError
        The regions are too long to simulate.
    """
    if traffic.sctp is None:
        return derive(traffic, stags)
    flat = _flat(traffic)
    whole = derive(flat.traffic, stags)
    of_mpa = {_entry(region) for region in derive(traffic, stags).regions}
    regions: list[Region] = []
    own: set[tuple[str, int]] = set()
    for entry, users in _used_by_sessions(flat, traffic.sctp, stags).items():
        spans = sorted((session.span for session in users), key=lambda span: span.start)
        if entry not in of_mpa and all(one.stop <= two.start for one, two in pairwise(spans)):
            own.add(entry)
            regions += [_of(session, region) for session, each in users.items() for region in each]
    regions += [region for region in whole.regions if _entry(region) not in own]
    check_memory(regions)
    ends = {number: order for number, order in whole.ends.items() if number not in flat.sessions}
    return Derived(regions, whole.stags, ends)


def _entry(region: Region) -> tuple[str, int]:
    """Returns a region's entry in the largest table, where most STags have an entry of their
    own.
    """
    return region.endpoint, slot(region.stag, LARGEST_TABLE)


def _used_by_sessions(
    flat: _Flat, sctp: SctpTraffic, stags: int
) -> dict[tuple[str, int], dict[DdpSession, list[Region]]]:
    """Returns, by table entry, the sessions that use it, each with its regions."""
    by_connection: dict[int, tuple[list[Stream], array[int]]] = {}  # with the numbers of steps
    for stream in flat.streams.values():
        by_connection.setdefault(stream.connection, ([], array("Q")))[0].append(stream)
    for number, step in enumerate(sctp.steps):
        for segment in step.segments if isinstance(step, Incoming) else ():
            of = flat.streams[segment.stream.number, segment.session].connection
            if by_connection[of][1][-1:] != array("Q", [number]):
                by_connection[of][1].append(number)

    def arrivals(connection: int) -> Iterator[Arrival]:
        for each in _flat_steps(sctp, flat.streams, by_connection[connection][1]):
            if each.stream.connection == connection:
                yield each

    found: dict[tuple[str, int], dict[DdpSession, list[Region]]] = {}
    for connection, (streams, _) in by_connection.items():
        mine = Again(partial(arrivals, connection))
        regions = derive(Traffic(tuple(streams), mine), stags).regions
        for stream in streams:
            for region in regions:
                if region.endpoint == stream.destination.address:
                    users = found.setdefault(_entry(region), {})
                    users.setdefault(flat.sessions[stream.number], []).append(region)
    return found


def of_sessions(regions: Iterable[Region], traffic: Traffic) -> list[Region]:
    """Returns the regions of a file, with those of a session bound to its stream for its time."""
    sessions = {
        (each.stream.destination.address, each.stream.sid, each.number): each
        for each in (traffic.sctp.sessions if traffic.sctp else ())
    }
    found = []
    for region in regions:
        if region.session is not None:
            session = sessions.get((region.endpoint, *region.session))
            if session is None or session.since is None:
                region = replace(region, periods=())
            else:
                region = _of(session, region)
        found.append(region)
    return found


def _of(session: DdpSession, region: Region) -> Region:
    assert session.since is not None
    periods: list[Period] = []
    for after, until in region.periods:
        ends = [end for end in (until, session.until) if end is not None]
        end = min(ends, default=None)
        if end is None or end >= max(after, session.since):
            periods.append((max(after, session.since), end))
    return replace(
        region,
        periods=tuple(periods),
        stream=session.stream.number,
        session=(session.stream.sid, session.number),
    )


def lengths_of(traffic: Traffic, queues: Iterable[Queue] = ()) -> Lengths:
    """Returns the lengths of buffers as :func:`.regions.buffer_lengths` does, also for sessions of
    SCTP.

    Raises
    ------
    RegionError
        The buffers are too long to simulate.
    """
    flat = _flat(traffic)
    found = Lengths({}, {})
    missing = {number: session.missing for number, session in flat.sessions.items()}
    for (number, qn), lengths in buffer_lengths(flat.traffic, queues, missing).items():
        session = flat.sessions.get(number)
        if session is None:
            found.streams.setdefault(number, {})[qn] = lengths
        else:
            found.sessions.setdefault(session, {})[qn] = lengths
    return found
