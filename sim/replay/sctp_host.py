"""The host's calls for DDP over SCTP: associations, sessions, frames; and the sizes that
they need.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from ...hdl.spec import commands
from ...hdl.spec.config import LIMITS, MOST_PLACES, MOST_POSTED, RnicConfig
from ...hdl.spec.net import AssociationKey, Move, insert
from ...hdl.spec.sctp import INITIATES, Function, State
from ..capture.sctp_traffic import (
    Abort,
    DdpSession,
    End,
    Enter,
    Illegal,
    Incoming,
    Leave,
    SctpStream,
    SctpTraffic,
    Step,
    Tell,
)
from ..engines.engine import Frame
from .expectation import Delivery
from .host import Host
from .regions import RegionError
from .sctp_expectation import SctpGolden

_WORD = 0xFFFFFFFF
#: The states that follow a Terminate's turn.
_ENDED = (State.TERMINATE_RECEIVED, State.CLOSED)


class Sessions(Protocol):
    """Sets streams up for their sessions, with the regions and buffers that a session asks for."""

    def begin_session(self, session: DdpSession) -> None: ...

    def end_sessions(self, stream: SctpStream) -> None: ...


class SctpHost:
    """Executes the host's part in SCTP; ``host`` executes its part in streams and regions."""

    def __init__(self, host: Host, sessions: Sessions, associations: int, window: int) -> None:
        self._host = host
        self._sessions = sessions
        self._associations = associations
        self._window = window
        self._slots: dict[tuple[int, int], AssociationKey] = {}
        self._owners: dict[AssociationKey, End] = {}

    @property
    def _golden(self) -> SctpGolden:
        golden = self._host.golden
        assert isinstance(golden, SctpGolden)
        return golden

    def receive(self, step: Incoming) -> list[Delivery]:
        """Takes a frame that arrives, and returns the deliveries that it causes."""
        far = any(item.ahead >= self._window for item in step.items)
        # A Terminate that arrived shortly before may not have had its turn.
        late = any(
            isinstance(each, Illegal) and each.state in _ENDED
            for item in step.items
            for each in item.outcome
        )
        # The RNIC must be idle first: if the frame opens a session, because its peer knows that all
        # of the last session arrived; if it hands a chunk back, which follows the chunk's records;
        # and if it is far ahead of items in flight.
        if step.opens or step.back or far or late:
            self._host.idle()
        errors = len(self._golden.errors)
        delivered = self._golden.frame(step)
        self._host.send(Frame(step.octets), step.segments)
        if len(self._golden.errors) > errors:
            # An error at a segment's turn appears some time after the segment.
            self._host.idle()
        return delivered

    def act(self, step: Step) -> None:
        """Executes an action of the host, once the RNIC is idle."""
        self._host.idle()
        match step:
            case Enter(end=end):
                self._enter(end)
            case Leave(end=end):
                self._leave(end)
            case Tell(session=session):
                if session is not None:
                    self._sessions.begin_session(session)
                    self._golden.open_session(session.stream)
                function = Function(step.function)
                self._command(step.stream.number, function, step.tsn, taken=True)
            case Abort(stream=stream):
                self._command(stream.number, Function.ABORT, taken=True)

    def _enter(self, end: End) -> None:
        for key in _keys(end):
            self._owners[key] = end
            try:
                moves = insert(self._slots, key, self._associations)
            except ValueError as error:
                raise RegionError(f"{end}: {error}") from None
            for way, slot, moved in moves:
                self._slots[way, slot] = moved
                self._entry(way, slot, moved)
        for stream in end.streams:
            self._command(stream.number, Function.FORGET, end.tsn - 1 & _WORD)

    def _leave(self, end: End) -> None:
        for nest, key in list(self._slots.items()):
            if self._owners[key] is end:
                del self._slots[nest]
                self._entry(*nest, None)
        for stream in end.streams:
            self._sessions.end_sessions(stream)

    def _entry(self, way: int, slot: int, key: AssociationKey | None) -> None:
        """Writes an entry of the association table, or clears it."""
        if key is None:
            self._host.carry_out(commands.clear_association(way, slot))
            return
        end = self._owners[key]
        first = end.streams[0].number
        entry = commands.set_association(
            Move(way, slot, key), first=first, count=len(end.streams), number=end.number
        )
        self._host.carry_out(entry)

    def _command(
        self, stream: int, function: Function, tsn: int | None = None, *, taken: bool = False
    ) -> None:
        """Announces a session message to the RNIC, and waits for its answer."""
        past = (tsn or 0) if function in (Function.FORGET, *INITIATES) else None
        self._host.carry_out(commands.tell_session(stream, function, past, taken=taken))


def _keys(end: End) -> Iterable[AssociationKey]:
    for source, destination in end.paths:
        ends = [ipaddress.ip_address(address) for address in (source, destination)]
        yield AssociationKey(
            int.from_bytes(ends[0].packed, "little"),
            int.from_bytes(ends[1].packed, "little"),
            end.peer.port,
            end.local.port,
            end.tag,
            ends[0].version == 6,
        )


# -- sizes of the RNIC --


def grown_for_sctp(sctp: SctpTraffic, config: RnicConfig) -> tuple[RnicConfig, list[str]]:
    """Returns a configuration with room for the SCTP of a capture, and sentences about what grew.

    Raises
    ------
    RegionError
        There is no such configuration.
    """
    needs, notes = sctp.needs, []
    config = replace(config, sctp=True)
    shared = {"window": MOST_PLACES, "queue_depth": MOST_POSTED}  # by all streams

    def grow(name: str, wanted: int, why: str) -> None:
        nonlocal config
        if wanted <= getattr(config, name):
            return
        value = 1 << (wanted - 1).bit_length()
        largest = LIMITS[name][1]
        if name in shared:
            largest = min(largest, shared[name] // config.streams)
        if value > largest:
            raise RegionError(f"{why} of {value}, but at most {largest} can be simulated")
        more: dict[str, Any] = {name: value}
        config = replace(config, **more)
        notes.append(f"{why} of {value}")

    grow("associations", len(sctp.ends), "the associations need a table")
    grow("initiates", needs.initiates, "the Session Initiates need a queue")
    grow("buffer_octets", 2 * needs.octets, "the frames need a packet buffer")
    if needs.ahead >= config.window:
        # With a window of this reach no frame has to wait; where it does not fit, some do.
        reach = min(needs.reach + 1, LIMITS["window"][1], MOST_PLACES // config.streams)
        wanted = needs.ahead + 1 if sctp.window else max(needs.ahead + 1, reach)
        grow("window", wanted, "items that wait for earlier ones need a window")
    if sctp.window is not None and sctp.window != config.window:
        config = replace(config, window=sctp.window)
        notes.append(f"chunks with a used DDP-SSN are judged with a window of {sctp.window}")
    grow("queue_depth", 2 * (needs.messages + 1), "messages out of turn need a queue depth")
    if needs.octets > config.exception_octets:
        octets = 1 << (needs.octets - 1).bit_length()
        config = replace(config, exception_octets=min(octets, LIMITS["exception_octets"][1]))
        notes.append(f"the frames need an exception queue of {config.exception_octets} octets")
    return config, notes
