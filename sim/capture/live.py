"""Follows the TCP connections of a capture that is still being written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .capture import Assumption, Capture, Chunks, Connection, Direction, Story, Watch
from .connections import Conversation, Endpoint, Half, by_frame
from .piped import STANDARD_INPUT
from .streams import Arrival, Stream, Untagged
from .traffic import cut

__all__ = ["Follower"]


class Follower:
    """Cuts the octets that TCP connections bring into captures that follow each other.

    A stream of a later capture begins after the last message of the one before. A segment that the
    end of a capture has to judge, because it looks damaged, is not in it.

    Parameters
    ----------
    assumptions
        The user's statements about connections whose start-up is not in the capture.
    """

    def __init__(self, assumptions: Sequence[Assumption] = ()) -> None:
        self._assumptions = assumptions
        self._searched: Counter[Conversation] = Counter()  # with how many segments
        self._found: dict[Conversation, _Followed] = {}

    def take(self, watch: Watch) -> Capture:
        """Returns the octets that have come since the last call, up to the last whole message."""
        for conversation in watch.connections.found:
            if conversation.halves and conversation not in self._found:
                self._search(conversation)
        found = (each.take() for each in self._found.values())
        return Capture(
            STANDARD_INPUT,
            0,
            tuple(each for each in found if any(direction.chunks for direction in each.directions)),
        )

    def end(self, streams: Iterable[Stream]) -> None:
        """Leaves streams of the last capture out of all later ones."""
        over = {(stream.source, stream.destination) for stream in streams}
        for each in self._found.values():
            for way in each.ways:
                way.over |= way.started and way.ends in over

    def _search(self, conversation: Conversation) -> None:
        """Looks for MPA start-up, again once a quarter more segments have come."""
        count = sum(len(half.segments) for half in conversation.halves.values())
        if count * 4 <= self._searched[conversation] * 5:
            return
        self._searched[conversation] = count
        # A judgement before the last frame holds for this search alone.
        copies = {
            end: replace(half, ignored=Counter(), played=Counter())
            for end, half in conversation.halves.items()
        }
        found = Story(self._assumptions).connection(Conversation(conversation.spool, copies))
        if found is None:
            return
        self._found[conversation] = followed = _Followed(found)
        for direction in found.directions:
            if isinstance(direction.chunks, Chunks):
                half = conversation.halves[direction.source]
                counts = len(half.segments), len(half.fins)
                followed.ways.append(_Way(direction, direction.chunks, half, *counts))


@dataclass
class _Way:
    """A direction that is followed.

    ``chunks`` are its octets that were not handed out, and ``msns`` the next MSN there on each
    queue. ``taken`` counts the segments whose octets were put in order, ``fins`` the FINs that were
    considered.
    """

    direction: Direction
    chunks: Chunks
    half: Half
    taken: int
    fins: int
    msns: dict[int, int] = field(default_factory=dict)
    started: bool = False
    over: bool = False

    @property
    def ends(self) -> tuple[Endpoint, Endpoint]:
        return self.direction.source, self.direction.destination

    def take(self) -> Direction:
        """Returns the direction with the octets of further messages, maybe none."""
        half, stream = self.half, self.chunks.stream
        fins = half.fins[self.fins :]
        for segment in by_frame(half.segments.since(self.taken), fins):
            late = half.closed_in is not None and segment.frame > half.closed_in
            if segment.sound is not False and segment.frame not in half.doubted and not late:
                stream.take(segment)
        self.taken, self.fins = len(half.segments), len(half.fins)
        found = replace(self.direction, chunks=self.chunks)
        if self.started:
            found = replace(found, msns=tuple(self.msns.items()))
        before = _Messages(self.chunks.first, self.msns)
        messages = before if self.over else _messages(found, before)
        stop = self.chunks.begin + messages.end - self.chunks.first
        found = replace(found, chunks=replace(self.chunks, stop=stop))
        self.chunks, self.msns = Chunks(stream, stop, messages.end), messages.msns
        self.started = self.started or bool(found.chunks)
        return found


@dataclass
class _Followed:
    """A connection whose start-up was found."""

    connection: Connection
    ways: list[_Way] = field(default_factory=list)

    def take(self) -> Connection:
        """Returns the connection with the octets of further messages, maybe none."""
        taken = {way.ends: way.take() for way in self.ways}
        one, other = (
            taken.get((each.source, each.destination), each) for each in self.connection.directions
        )
        return replace(self.connection, directions=(one, other))


class _Messages(NamedTuple):
    """The position after the last FPDU that leaves no untagged message unfinished, and the next MSN
    on each queue there.
    """

    end: int
    msns: dict[int, int]


def _messages(direction: Direction, before: _Messages) -> _Messages:
    """Returns the end of the messages in a direction, or ``before`` if none of them is whole."""
    stream = Stream(0, 0, direction.source, direction.destination, direction.crc, direction.markers)
    msns, found = dict(before.msns), before
    unfinished: set[tuple[int, int]] = set()
    for frame, position, raw in cut(direction):
        header = Arrival(stream, 0, frame, position, raw).header
        if isinstance(header, Untagged):
            message = header.queue, header.msn
            if header.last:
                unfinished.discard(message)
                msns[header.queue] = (header.msn + 1) % (1 << 32)
            else:
                unfinished.add(message)
        if not unfinished:
            found = _Messages(position + len(raw), dict(msns))
    return found
