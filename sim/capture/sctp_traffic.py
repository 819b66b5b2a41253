"""Turns a capture's DDP over SCTP into the events at its receiving ends.

:func:`walk` plays SCTP and RFC 5043's sessions, as in :mod:`..model.sctp`, for every end. It gives
the events as steps in the order of the capture: frames that arrive, and the host's actions before
the next frame. The capture shows an end's control messages; the host announces each to its RNIC
once, before it is sent. :mod:`...hdl.spec.sctp` states where the RNIC differs from the model: it
holds early chunks and fragments, which the host hands back in frames of its own; and for an old
DDP-SSN the host decides whether the chunk is a repetition. DDP's handling of the segments is not
decided here.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from typing import ClassVar, NamedTuple

from ...hdl.spec.completion import ChunkStatus
from ...hdl.spec.config import LIMITS, MOST_PLACES, RnicConfig
from ...hdl.spec.sctp import DATA_HEADER, SSN, Diversion, Reason
from ...hdl.spec.sctp import State as RnicState
from ...sw_driver.base.errors import InvalidRequest
from ...sw_driver.verbs.handed_back import message_of
from ..model.events import ProtocolError
from ..model.sctp import (
    ACCEPTS,
    ADAPTATION_DDP,
    ENHANCED_DATA,
    INITIATES,
    Association,
    Chunk,
    ChunkType,
    DataChunk,
    Function,
    InitChunk,
    Packet,
    Ppid,
    SctpEvent,
    SessionControl,
    SessionIllegal,
    State,
    Tsns,
    decode_payload,
    listed_addresses,
    read_parameters,
)
from .capture import Endpoint
from .pcap import LeftOut, counted
from .sctp_frames import Ends, Msns, RawChunk, SctpFrame, handed_back, with_checksums
from .spool import Again, Kept, Numbers
from .streams import Arrival, Stream, Untagged

_TSN = 1 << 32
_SET_UP = ChunkType.INIT, ChunkType.INIT_ACK
_ASCONF, _ADD_ADDRESS = 0xC1, 0xC001  # RFC 5061 sections 4.1.1 and 4.2.1
_HALF_MSN = 1 << 31  # half of all MSNs
_FIELDS = struct.Struct(">IIHHI")  #: the fields of a DATA chunk before its user data
#: How many items may be in flight to memory, and so not delivered although their turn has come.
_UNDER_WAY = 128
#: How many messages ahead of the next one a queue can hold buffers for.
_LONGEST_QUEUE = LIMITS["queue_depth"][1] // 2
#: The chunks that are alone in their packet, RFC 9260 section 3.
#: The states in which a Segment is placed.
_PLACES = (State.ESTABLISHED, State.TERMINATE_SENT)
#: How many Initiates may wait: as many as there are SCTP streams, because the capture's host chose.
_INITIATES = 1 << 16


@dataclass(frozen=True)
class SctpStream(Stream):
    """A DDP Stream: one direction of a pair of SCTP streams, ``sid``, for all of its sessions."""

    sid: int = 0
    association: int = 0
    first_order: ClassVar[int] = 1  # after the control message that opens a session

    def __str__(self) -> str:
        return f"{self.source} > {self.destination} SCTP stream {self.sid}"


@dataclass(frozen=True)
class SctpArrival(Arrival):
    """A DATA chunk with a DDP Segment or a control message, at its first arrival.

    ``raw`` is the chunk, ``position`` its TSN. ``session`` is the number of its session on the
    stream, and ``sequence`` its DDP-SSN, continued past 65535. A control message has order 0.
    """

    session: int = 0
    sequence: int = 0

    @cached_property
    def ulpdu(self) -> bytes:
        """The DDP Segment, or the Function Code and the Private Data."""
        return self.raw[DATA_HEADER + SSN :]

    @property
    def digest_is_good(self) -> bool:
        """Always True: SCTP drops a packet whose digest is wrong."""
        return True


@dataclass(eq=False)
class End:
    """One end of an association with DDP.

    Parameters
    ----------
    number
        The association's number in the simulated RNIC.
    local, peer
        First address and port of this end, and of its peer.
    tag
        Verification Tag of incoming packets.
    tsn
        The peer's initial TSN.
    paths
        Pairs of addresses that incoming packets have.
    streams
        The DDP Streams, by SCTP Stream Identifier.
    tsns
        The TSNs of the DATA chunks that arrive, except for those that a full window drops.
    """

    number: int
    local: Endpoint
    peer: Endpoint
    tag: int
    peer_tag: int
    tsn: int
    paths: tuple[tuple[str, str], ...]
    streams: tuple[SctpStream, ...] = ()
    partner: End | None = None
    tsns: Numbers = field(default_factory=Numbers)

    def __str__(self) -> str:
        return f"{self.peer} > {self.local}"


@dataclass(eq=False)
class DdpSession:
    """A DDP Stream Session at one end.

    ``number`` counts the sessions of the SCTP stream at the endpoint, ``index`` those of the
    association's stream, both from 0. ``since`` is how many segments had arrived at the endpoint
    when the host set the stream up for the session, and ``until`` when it gave the stream up; None
    if it never did. ``segments`` is how many segments arrived in it, and ``last`` is the highest
    ``sequence`` of these.
    """

    stream: SctpStream
    number: int
    index: int
    partner: DdpSession | None = None
    since: int | None = None
    until: int | None = None
    span: range = range(0)  # the steps of the capture during which it had the stream
    segments: int = 0
    last: int = 0

    @cached_property
    def own(self) -> SctpStream:
        """The stream with the first MSNs of this session, which are 1 in all but the first one."""
        return replace(self.stream, msns=(), begun=False) if self.index else self.stream

    @property
    def missing(self) -> int:
        """The number of segments before the last one that never arrived."""
        return self.last + 1 - self.stream.first_order - self.segments


# -- events --


@dataclass(frozen=True)
class _OfEnd:
    """An action of the host at one end of an association."""

    frame: int
    end: End

    @property
    def host(self) -> str:
        return self.end.local.address


@dataclass(frozen=True)
class Enter(_OfEnd):
    """The host sets up an association: writes its entry, and forgets the sessions of its
    streams.
    """


@dataclass(frozen=True)
class Leave(_OfEnd):
    """The host removes an association."""


@dataclass(frozen=True)
class _OfStream:
    """An action of the host that receives a stream."""

    frame: int
    stream: SctpStream

    @property
    def host(self) -> str:
        return self.stream.destination.address


@dataclass(frozen=True)
class Tell(_OfStream):
    """The host is about to send a control message on a stream; ``session`` is set up with it.

    With an Initiate, ``tsn`` is the highest TSN that it has received.
    """

    function: Function
    tsn: int
    session: DdpSession | None = None


@dataclass(frozen=True)
class Abort(_OfStream):
    """The host ends a stream's session: a chunk's record says DUPLICATE, but its TSN is new."""


class Fate(Enum):
    """The outcome of a frame."""

    TAKEN = auto()
    DIVERTED = auto()
    DROPPED = auto()


class Control(NamedTuple):
    """A control message's turn has come."""

    function: Function


class Illegal(NamedTuple):
    """A session is aborted; ``why`` is the model's reason."""

    reason: Reason
    state: RnicState
    why: str


@dataclass(frozen=True)
class Item:
    """A chunk of an accepted packet.

    ``diversion`` is why the chunk is forwarded to the host, or None. With a ``stream`` it is a DATA
    chunk on a DDP Stream; ``status`` is the session's judgement, and ``segment`` the segment that
    DDP gets, or ``control`` the control message. ``outcome`` lists the session's further results,
    in order. ``ahead`` is the distance
    of the DDP-SSN from the next one that the stream is sure to have delivered, and 0 if no earlier
    one is missing. ``why`` is why the host ends the session for a DUPLICATE.
    """

    raw: bytes
    diversion: Diversion | None = None
    stream: SctpStream | None = None
    tsn: int = 0
    ssn: int = 0
    status: ChunkStatus | None = None
    segment: SctpArrival | None = None
    control: SctpArrival | None = None
    outcome: tuple[Control | Illegal, ...] = ()
    ahead: int = 0
    why: str = ""


@dataclass(frozen=True)
class Incoming:
    """A frame arrives at a host. If it was ``TAKEN``, it has an ``end`` and its chunks.

    ``back``: the host made the frame, to hand a chunk back that the RNIC had forwarded to it.
    """

    frame: int
    host: str
    octets: bytes
    fate: Fate
    end: End | None = None
    items: tuple[Item, ...] = ()
    back: bool = False

    @property
    def segments(self) -> list[SctpArrival]:
        """The segments that arrived for the first time."""
        return [item.segment for item in self.items if item.segment is not None]

    @property
    def opens(self) -> bool:
        """True if the peer opens a session."""
        return any(_opens(item.outcome) for item in self.items)


Step = Enter | Leave | Tell | Abort | Incoming


@dataclass
class Needs:
    """The sizes that the RNIC must have for the traffic.

    ``ahead`` is how many DDP-SSNs of a stream a chunk is ahead of the next one, at most, if
    everything before each frame is delivered when it arrives; ``reach`` is the same if the RNIC is
    still at work. ``messages`` is how many messages of a queue a segment is ahead of the first
    undelivered one. ``initiates`` is how many Initiates of an association waited for their answer.
    """

    ahead: int = 0
    reach: int = 0
    messages: int = 0
    initiates: int = 0
    octets: int = 0


def _kept_steps() -> Kept[Step]:
    """Returns an empty list of steps, which keeps their octets in a temporary file."""
    return Kept(
        lambda step: step.octets if isinstance(step, Incoming) else b"",
        (End, DdpSession, SctpStream),
    )


@dataclass
class SctpTraffic:
    """The SCTP of a capture; ``hosts`` have an association with DDP.

    ``window`` is the window of the RNIC that the steps are for, where it matters; None if every
    RNIC does the same. ``undelivered`` counts the chunks whose turn never comes.
    """

    steps: Sequence[Step] = ()
    ends: list[End] = field(default_factory=list)
    sessions: list[DdpSession] = field(default_factory=list)
    needs: Needs = field(default_factory=Needs)
    notes: list[str] = field(default_factory=list)
    undelivered: list[LeftOut] = field(default_factory=list)
    window: int | None = None

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(end.local.address for end in self.ends))

    @property
    def streams(self) -> list[SctpStream]:
        return [stream for end in self.ends for stream in end.streams]

    @property
    def arrivals(self) -> Sequence[SctpArrival]:
        """The segments that were accepted, in the order of their arrival."""
        return Again(
            lambda: (
                segment
                for step in self.steps
                if isinstance(step, Incoming)
                for segment in step.segments
            )
        )

    @property
    def controls(self) -> Sequence[SctpArrival]:
        """The control messages that were accepted, in the order of their arrival."""
        return Again(
            lambda: (
                item.control
                for step in self.steps
                if isinstance(step, Incoming)
                for item in step.items
                if item.control is not None
            )
        )


def walk(
    frames: Sequence[SctpFrame],
    first: int = 0,
    others: Mapping[str, Sequence[int]] | None = None,
    config: RnicConfig | None = None,
) -> SctpTraffic:
    """Plays the SCTP of frames, in their order.

    Parameters
    ----------
    frames
        The frames of every direction, in the order of the capture.
    first
        Number of the first DDP Stream.
    others
        By host, the frames that brought segments by other means than SCTP, once per segment.
    config
        The RNIC's configuration. Its tables and its window grow where the traffic needs it.
    """
    complete, notes = with_checksums(frames)
    config = config or RnicConfig()
    window = config.window
    while True:
        walker = _Walker(complete, first, others or {}, window, config.streams)
        for frame in complete:
            walker.take(frame)
        walker.finish(notes)
        found = walker.found
        if found.window is None or found.needs.ahead < window:
            return found
        window = 1 << found.needs.ahead.bit_length()


# -- the walk --


@dataclass
class _SessionOrder:
    """The order of a stream's items in its present session."""

    session: DdpSession
    next: int = 0
    #: By ``sequence``, as in :class:`SctpArrival`: the queue of a last segment; items' TSNs.
    waiting: dict[int, int | None] = field(default_factory=dict)
    tsns: dict[int, int] = field(default_factory=dict)
    base: int = 0  # ``next`` before the present frame
    delivered: dict[int, int] = field(default_factory=dict)  # messages, by Queue Number
    #: How many items of all streams had arrived when ``next`` changed, and its value then.
    advances: deque[tuple[int, int]] = field(default_factory=deque)

    def used(self, ssn: int) -> int | None:
        """Returns the sequence of the item that was taken with this DDP-SSN; None if none was.

        For a DDP-SSN that is 32768 or more ahead, this is the sequence that the item would have had
        before the next one.
        """
        ahead = (ssn - self.next) % (1 << 16)
        sequence = self.next + ahead
        if ahead >= 1 << 15:
            return sequence - (1 << 16)
        return sequence if sequence in self.waiting else None

    def forget(self) -> None:
        """Drops the TSN of an item whose DDP-SSN is half of all DDP-SSNs before the next one.

        :meth:`used` returns no such sequence. That of the message that opened the session stays.
        """
        if (old := self.next - (1 << 15) - 1) > 0:
            self.tsns.pop(old, None)

    def keeps(self, sequence: int, window: int) -> bool:
        """Returns True if the RNIC still has the item's TSN: no later item has its slot."""
        if sequence not in self.tsns:
            return False
        return not any(
            later in self.tsns for later in range(sequence + window, max(self.tsns) + 1, window)
        )


@dataclass(eq=False)
class _Conversation:
    """One end's view of the SCTP between two ports."""

    association: Association = field(default_factory=lambda: Association(initiates=_INITIATES))
    own: dict[int, InitChunk] = field(default_factory=dict)  # this end's INITs, by its tag
    end: End | None = None


@dataclass
class _Live:
    """The state of an end while it is set up."""

    association: Association
    highest: int
    past: dict[int, int]  # by SCTP stream: the last TSN of earlier sessions
    fragments: Tsns  # TSNs and fragments that arrive
    sending: Tsns  # TSNs and fragments that this end sends
    orders: dict[int, _SessionOrder] = field(default_factory=dict)
    set_up: dict[int, DdpSession] = field(default_factory=dict)  # sessions that have a stream
    judged: Numbers = field(default_factory=Numbers)  # TSNs that sessions had
    early: dict[int, dict[int, RawChunk]] = field(default_factory=dict)  # by SCTP stream and TSN
    back: deque[RawChunk] = field(default_factory=deque)  # chunks that the host hands back
    shut_down: bool = False  # this end has sent a SHUTDOWN ACK
    #: SCTP streams whose session the host ends, and why.
    aborts: list[tuple[int, str]] = field(default_factory=list)


class _Handshakes:
    """Finds the INITs whose answers are followed by a COOKIE ECHO.

    No other INIT changes an association that exists: RFC 9260 section 5.2.2.
    """

    def __init__(self) -> None:
        self._asked: dict[tuple[Endpoint, Endpoint, int], int] = {}  # INITs' tags, by answer
        self._complete: set[tuple[Endpoint, Endpoint, int]] = set()

    def take(self, frame: SctpFrame) -> None:
        """Takes the next sound frame."""
        assert frame.ends is not None
        sender, receiver = _sender_and_receiver(frame)
        for chunk in _acceptable(frame):
            if chunk.type == ChunkType.INIT_ACK:
                answer = receiver, sender, int.from_bytes(chunk.value[:4], "big")
                self._asked[answer] = frame.ends.tag
            elif chunk.type == ChunkType.COOKIE_ECHO:
                tag = self._asked.get((sender, receiver, frame.ends.tag))
                if tag is not None:
                    self._complete.add((sender, receiver, tag))

    def completes(self, sender: Endpoint, receiver: Endpoint, tag: int) -> bool:
        """Returns True if an INIT with this Initiate Tag leads to an association."""
        return (sender, receiver, tag) in self._complete


#: How a packet's association is found: by ports and tag, and by its addresses.
_Key = tuple[Ends, tuple[str, str]]


class _Walker:
    def __init__(
        self,
        frames: Iterable[SctpFrame],
        first: int,
        others: Mapping[str, Sequence[int]],
        window: int,
        streams: int,
    ) -> None:
        self.found = SctpTraffic()
        self._steps = _kept_steps()
        self._hosts: dict[str, int] = {}  # the number of each host that gets a frame
        self._octets: dict[str, int] = {}  # of the longest frame, by host
        self._at: array[int] = array("i")  # the number of each step's host; -1 if it is no frame
        self._window = window
        self._outside: dict[SctpStream, int] = {}  # how many chunks were outside the window
        self._came = 0  # how many items of all streams have arrived
        self._next_stream = first
        self._others = others
        self._counts: dict[str, int] = {}
        self._frame = 0
        self._conversations: dict[tuple[Endpoint, Endpoint], _Conversation] = {}
        self._ends: dict[_Key, End] = {}
        self._reflected: dict[_Key, End] = {}  # the same, by the tags of the peers
        self._live: dict[End, _Live] = {}
        self._numbers: dict[tuple[str, int], int] = {}  # sessions, by host and SCTP stream
        self._said: dict[str, None] = {}
        # Known before the walk: for each direction the number of SCTP streams with DDP, and the
        # paths.
        self._used: dict[Ends, int] = {}
        self._paths: dict[Ends, dict[tuple[str, str], None]] = {}
        self._added: dict[Ends, set[str]] = {}  # senders' further addresses (RFC 5061)
        #: For sessions that stood before the capture, by SCTP stream: as in :class:`.Stream`.
        self._msns: dict[Ends, dict[int, Msns]] = {}
        self._handshakes = _Handshakes()
        offered: dict[tuple[frozenset[int], int], int] = {}
        for frame in frames:
            if frame.sound and frame.ends:
                self._handshakes.take(frame)
                self._paths.setdefault(frame.ends, {})[frame.path] = None
                for chunk in _acceptable(frame):
                    if chunk.type in _SET_UP and len(chunk.value) >= 12:
                        # Either number of streams of either end bounds those of an association.
                        offer = frozenset(frame.ends[:2]), chunk.type
                        streams_of = min(struct.unpack_from(">HH", chunk.value, 8))
                        offered[offer] = max(offered.get(offer, 0), streams_of)
                    if chunk.type == _ASCONF:
                        self._added.setdefault(frame.ends, set()).update(_added(chunk.value))
                    data = _data_chunk(chunk)
                    if data and data.ppid in (Ppid.SEGMENT, Ppid.CONTROL):
                        used = max(self._used.get(frame.ends, 0), data.stream + 1)
                        self._used[frame.ends] = used
                if frame.msns:
                    self._msns[frame.ends] = dict(frame.msns)
        # An association has as many streams at both ends as the end that uses more of them.
        directions = Counter[tuple[int, int]]()
        for ends, used in self._used.items():
            ports = frozenset(ends[:2])
            bounds = (offered.get((ports, kind), used) for kind in _SET_UP)
            directions[ends[:2]] += min(used, *bounds)
        of_pairs = {
            frozenset(ports): max(used, directions[ports[::-1]])
            for ports, used in directions.items()
        }
        total = first + 2 * sum(of_pairs.values())
        most = MOST_PLACES >> (max(streams, total) - 1).bit_length()
        self._longest = min(most, LIMITS["window"][1])  # the largest window that is possible

    def finish(self, notes: Iterable[str]) -> None:
        for end, live in self._live.items():
            self._count_undelivered(end, live)
            for session in live.set_up.values():
                session.span = range(session.span.start, len(self._steps))
        for stream, count in self._outside.items():
            self._said[
                f"{counted(count, 'chunk')} on {stream}, {self._longest} or more DDP-SSNs ahead of"
                " a missing one: no RNIC with this number of streams takes any before that one"
            ] = None
        unknown = self._used.keys() - {ends for ends, _ in self._ends}
        if unknown and not self._said:
            self._said[
                f"{counted(len(unknown), 'direction')} with DDP over SCTP, of associations whose"
                " set-up is not in the capture"
            ] = None
        self.found.notes = [*(notes if self._used else ()), *self._said]
        hosts = set(self.found.hosts)
        kept = {-1, *(number for host, number in self._hosts.items() if host in hosts)}
        self.found.steps = self._steps.only(bytes(number in kept for number in self._at))
        self.found.needs.octets = max((self._octets.get(host, 0) for host in hosts), default=0)

    def _add(self, step: Step) -> None:
        """Adds the next step."""
        number = -1
        if isinstance(step, Incoming):
            number = self._hosts.setdefault(step.host, len(self._hosts))
            longest = max(self._octets.get(step.host, 0), len(step.octets))
            self._octets[step.host] = longest
        self._at.append(number)
        self._steps.append(step)

    def take(self, frame: SctpFrame) -> None:
        """Takes a frame of the capture: its sender's actions, its arrival, its receiver's
        actions.
        """
        self._frame = frame.number
        if not frame.sound:
            self._arrive(frame)
            return
        assert frame.ends is not None
        sender, receiver = _sender_and_receiver(frame)
        hearing = self._conversation(receiver, sender)
        chunks = _acceptable(frame)
        for chunk in chunks:
            if chunk.type == ChunkType.COOKIE_ECHO:
                self._hear(hearing, receiver, sender, frame.ends, chunk)
        for chunk in chunks:
            if chunk.type in (ChunkType.INIT, ChunkType.INIT_ACK):
                self._set_up(sender, receiver, frame.ends, chunk)
            else:
                self._send((frame.ends, frame.path), chunk)
        over = self._over((frame.ends, frame.path), chunks)
        if over is not None and over.partner is not None:
            self._leave(over.partner)
        self._arrive(frame)
        for chunk in chunks:
            if chunk.type in (ChunkType.INIT, ChunkType.INIT_ACK):
                self._hear(hearing, receiver, sender, frame.ends, chunk)
        if over is not None:
            self._leave(over)

    def _over(self, key: _Key, chunks: Iterable[RawChunk]) -> End | None:
        """Returns the receiver of a packet that ends its association (RFC 9260 section 8.5.1)."""
        for chunk in chunks:
            if chunk.type in (ChunkType.ABORT, ChunkType.SHUTDOWN_COMPLETE):
                # With the T bit the packet has the sender's own tag.
                end = (self._reflected if chunk.flags & 1 else self._ends).get(key)
                live = None if end is None else self._live.get(end)
                # A SHUTDOWN COMPLETE is ignored in any state but SHUTDOWN-ACK-SENT.
                if chunk.type == ChunkType.ABORT or (live is not None and live.shut_down):
                    return end
        return None

    def _conversation(self, local: Endpoint, peer: Endpoint) -> _Conversation:
        return self._conversations.setdefault((local, peer), _Conversation())

    # The host's side.

    def _hear(
        self,
        conversation: _Conversation,
        local: Endpoint,
        peer: Endpoint,
        ends: Ends,
        chunk: RawChunk,
    ) -> None:
        """Takes a chunk of the handshake that arrives, and may set the association up."""
        association = conversation.association
        before = association.tag
        association.receive(_alone(ends, chunk))
        if association.tag == before or association.tag is None or association.peer is None:
            return
        if conversation.end is not None:
            self._leave(conversation.end, reset=False)
            conversation.end = None
        own = conversation.own.get(association.tag)
        backwards = Ends(local.port, peer.port, association.peer.tag)
        forwards = Ends(peer.port, local.port, association.tag)
        used = max(self._used.get(forwards, 0), self._used.get(backwards, 0))
        if not association.ddp or own is None or own.adaptation != ADAPTATION_DDP:
            if used:
                self._said[
                    f"SCTP {peer} > {local}: an association without the Adaptation Indication of"
                    " DDP on both sides (RFC 5043 section 11.1) carries none"
                ] = None
            return
        # RFC 9260 section 5.1.1: "the valid outbound stream identifier range for either endpoint
        # MUST be 0 to min(local OS, remote MIS) - 1". A DDP Stream needs one in each direction.
        theirs = association.peer
        used = min(used, own.outbound, theirs.inbound, theirs.outbound, own.inbound)
        if not used:
            return
        self._enter(conversation, local, peer, forwards, used)

    def _enter(
        self,
        conversation: _Conversation,
        local: Endpoint,
        peer: Endpoint,
        ends: Ends,
        used: int,
    ) -> None:
        association = conversation.association
        assert association.peer is not None
        own = conversation.own[ends.tag]
        backwards = Ends(local.port, peer.port, association.peer.tag)
        # RFC 9260 section 5.1.2: an end has the address from which it sends its INIT, and those
        # that the INIT lists.
        theirs = {peer.address, *association.peer.addresses, *self._added.get(ends, ())}
        ours = {local.address, *own.addresses, *self._added.get(backwards, ())}
        paths = tuple(
            path for path in self._paths.get(ends, ()) if path[0] in theirs and path[1] in ours
        ) or ((peer.address, local.address),)
        number = len(self.found.ends)
        stood = self._msns.get(ends, {})
        streams = tuple(
            SctpStream(
                self._next_stream + sid, number, peer, local, False, False, sid, number,
                msns=stood.get(sid, ()), begun=sid in stood,
            )
            for sid in range(used)
        )  # fmt: skip
        end = End(
            number,
            local,
            peer,
            ends.tag,
            association.peer.tag,
            association.peer.tsn,
            paths,
            streams,
        )
        self._next_stream += used
        other = self._conversation(peer, local).end
        if other is not None and (other.tag, other.peer_tag) == (end.peer_tag, end.tag):
            end.partner, other.partner = other, end
        initial = (end.tsn - 1) % _TSN
        past = dict.fromkeys(range(used), initial)
        self._live[end] = _Live(association, initial, past, Tsns(end.tsn), Tsns(own.tsn))
        conversation.end = end
        for path in paths:
            self._ends[ends, path] = end
            self._reflected[ends._replace(tag=end.peer_tag), path] = end
        self.found.ends.append(end)
        self._add(Enter(self._frame, end))

    def _leave(self, end: End, reset: bool = True) -> None:
        """Removes an association that is over."""
        if end not in self._live:
            return
        self._end_sessions(end)
        self._count_undelivered(end, self._live[end])
        del self._live[end]
        self._add(Leave(self._frame, end))
        conversation = self._conversation(end.local, end.peer)
        if reset and conversation.end is end:
            self._conversations[end.local, end.peer] = _Conversation()

    def _end_sessions(self, end: End) -> None:
        for session in self._live[end].set_up.values():
            self._close(session)

    def _count_undelivered(self, end: End, live: _Live) -> None:
        """Counts the chunks that wait for an earlier one, when none can arrive any more."""
        for sid, order in live.orders.items():
            if order.waiting and not live.association.session(sid).silent:
                missing = f"DDP-SSN {order.next & 0xFFFF} of {end.streams[sid]} did not come"
                why = f"taken, but not delivered, because {missing}"
                self.found.undelivered.append(LeftOut(len(order.waiting), "DATA chunk", why))

    def _set_up(self, sender: Endpoint, receiver: Endpoint, ends: Ends, chunk: RawChunk) -> None:
        """Takes an INIT or INIT ACK that an end sends."""
        conversation = self._conversation(sender, receiver)
        association = conversation.association
        try:
            sent = InitChunk.decode(Chunk(chunk.type, chunk.flags, chunk.value))
        except ProtocolError:
            return
        if not sent.acknowledges and association.tag not in (None, sent.tag):
            if not self._handshakes.completes(sender, receiver, sent.tag):
                return
            # The association begins anew (RFC 9260 section 5.2).
            if conversation.end is not None:
                self._leave(conversation.end, reset=False)
            conversation.association = association = Association(initiates=_INITIATES)
            conversation.own, conversation.end = {}, None
        conversation.own[sent.tag] = sent
        association.observe(_alone(ends, chunk))

    def _send(self, key: _Key, chunk: RawChunk) -> None:
        """Takes another chunk that an end sends."""
        receiver = self._ends.get(key)
        end = None if receiver is None else receiver.partner
        if end is None or end not in self._live:
            return
        if chunk.type == ChunkType.SHUTDOWN_ACK:
            self._live[end].shut_down = True
            return
        data = _data_chunk(chunk)
        if data is None:
            return
        live = self._live[end]
        for _, whole in live.sending.take(data) or ():
            if whole.stream < len(end.streams):
                message = _message(whole)
                if isinstance(message, Function):
                    self._tell(end, live, whole.stream, message)

    def _tell(self, end: End, live: _Live, sid: int, function: Function) -> None:
        session = live.association.session(sid)
        # The host that sent this knew its peer's acknowledgements.
        session.acknowledge()
        enhanced = function in (Function.ENHANCED_INITIATE, Function.ENHANCED_ACCEPT)
        try:
            # The session does not depend on the Private Data.
            session.control(function, bytes(ENHANCED_DATA * enhanced))
        except ProtocolError as error:
            why = f"frame {self._frame} sends it on stream {sid} of {end.peer}: {error}"
            self.found.undelivered.append(LeftOut(1, "DATA chunk", why))
            return
        if function in INITIATES:
            live.past[sid] = live.highest
            self._begin(end, live, sid)
        opened = None
        if function in (*INITIATES, *ACCEPTS):
            if (before := live.set_up.get(sid)) is not None:
                self._close(before)
            opened = live.set_up[sid] = live.orders[sid].session
            opened.since = self._count(end.local.address)
            opened.span = range(len(self._steps), len(self._steps))
        stream = end.streams[sid]
        self._add(Tell(self._frame, stream, function, live.highest, opened))

    def _begin(self, end: End, live: _Live, sid: int) -> _SessionOrder:
        """Opens the next session of a stream, after an Initiate."""
        key = end.local.address, sid
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        before = live.orders.get(sid)
        index = 0 if before is None else before.session.index + 1
        session = DdpSession(end.streams[sid], number, index)
        other = end.partner and self._live.get(end.partner)
        theirs = other and other.orders.get(sid)
        if theirs and theirs.session.partner is None and theirs.session.index == index:
            session.partner, theirs.session.partner = theirs.session, session
        self.found.sessions.append(session)
        live.orders[sid] = _SessionOrder(session)
        return live.orders[sid]

    def _close(self, session: DdpSession) -> None:
        session.until = self._count(session.stream.destination.address)
        session.span = range(session.span.start, len(self._steps))

    # The receiving side.

    def _count(self, host: str) -> int:
        """Returns how many segments have arrived at a host."""
        before = bisect_left(self._others.get(host, ()), self._frame)
        return self._counts.get(host, 0) + before

    def _arrive(self, frame: SctpFrame) -> None:
        end = self._ends.get((frame.ends, frame.path)) if frame.ends else None
        host = end.local.address if end else frame.destination
        fate = Fate.DIVERTED
        items: tuple[Item, ...] = ()
        if end not in self._live:
            end = None
        elif not frame.checksum_is_good:
            fate = Fate.DROPPED
        elif frame.chunks is not None:
            fate = Fate.TAKEN
            items = tuple(self._items(end, frame, back=False))
        self._add(Incoming(frame.number, host, frame.octets, fate, end, items))
        if end is not None and items:
            self._answer(end, self._live[end])

    def _answer(self, end: End, live: _Live) -> None:
        """Does the host's actions for the records and chunks that a frame brought it."""
        while True:
            for sid, why in live.aborts:
                stream = end.streams[sid]
                if live.association.session(sid).abort(why):
                    self._said[f"frame {self._frame} ends the session on {stream}: {why}"] = None
                    self._add(Abort(self._frame, stream))
            live.aborts.clear()
            for sid, chunks in live.early.items():
                state = live.association.session(sid).state
                if state is not State.INITIATE_SENT:
                    # Chunks of an aborted session are dropped.
                    live.back.extend(chunks.values() if state is not State.ABORTED else ())
                    chunks.clear()
            if not live.back:
                return
            chunk = live.back.popleft()
            ends = Ends(end.peer.port, end.local.port, end.tag)
            frame = handed_back(self._frame, end.paths[0], ends, chunk)
            items = tuple(self._items(end, frame, back=True))
            self._add(
                Incoming(
                    self._frame, end.local.address, frame.octets, Fate.TAKEN, end, items, back=True
                )
            )

    def _items(self, end: End, frame: SctpFrame, *, back: bool) -> Iterator[Item]:
        live = self._live[end]
        for order in live.orders.values():
            order.base = order.next
        processed = len(frame.processed)
        for number, chunk in enumerate(frame.chunks or ()):
            data = _data_chunk(chunk)
            if data is None or number >= processed:
                yield Item(chunk.octets, Diversion.CHUNK)
                continue
            if _after(data.tsn, live.highest):
                live.highest = data.tsn
            if data.stream >= len(end.streams):
                live.fragments.take(data)
                item = Item(chunk.octets, Diversion.DATA, tsn=data.tsn)
            elif _is_fragment(data):
                item = self._fragment(end, live, chunk, data)
            else:
                item = self._item(end, live, chunk, data)
                # The host's SCTP has the chunk now, unless it was dropped.
                if not back and item.status is not ChunkStatus.OUTSIDE:
                    live.fragments.take(data)
                if item.status not in (ChunkStatus.OUTSIDE, ChunkStatus.HELD):
                    live.judged.add(data.tsn)
            if item.status is not ChunkStatus.OUTSIDE:
                end.tsns.add(data.tsn)
            yield item

    def _fragment(self, end: End, live: _Live, chunk: RawChunk, data: DataChunk) -> Item:
        """Takes a fragment of a message. Once all of them have arrived, the host hands the
        message back.
        """
        stream = end.streams[data.stream]
        for _, whole in live.fragments.take(data) or ():
            try:
                octets = message_of(
                    [
                        _FIELDS.pack(0, whole.tsn, whole.stream, whole.ssn, whole.ppid)
                        + whole.payload
                    ]
                )
            except InvalidRequest as error:
                live.aborts.append((data.stream, str(error)))
            else:
                live.back.append(RawChunk(octets[0], octets[1], octets))
        return Item(chunk.octets, Diversion.FRAGMENT, stream, data.tsn, 0, ChunkStatus.HELD)

    def _item(self, end: End, live: _Live, chunk: RawChunk, data: DataChunk) -> Item:
        """Takes a whole DATA chunk, or one that is no DDP message, on a DDP Stream."""
        sid, stream = data.stream, end.streams[data.stream]
        # A chunk of one octet has half a DDP-SSN, and then padding.
        ssn = int.from_bytes(data.payload[:SSN].ljust(SSN, b"\0"), "big")
        message = _message(data)
        wrong = isinstance(message, ProtocolError)
        session = live.association.session(sid)
        before = session.state

        def item(
            status: ChunkStatus,
            outcome: tuple[Control | Illegal, ...] = (),
            diversion: Diversion | None = Diversion.DATA if wrong else None,
        ) -> Item:
            return Item(
                chunk.octets, diversion, stream, data.tsn, ssn, status, outcome=outcome
            )  # fmt: skip

        status = self._status(live, data, ssn, message, stream)
        if status is ChunkStatus.HELD:
            live.early.setdefault(sid, {})[data.tsn] = chunk
            return item(status, diversion=Diversion.EARLY)
        if status is ChunkStatus.OUTSIDE:
            self._outside[stream] = self._outside.get(stream, 0) + 1
            return item(status)
        if status is ChunkStatus.DUPLICATE:
            why = ""
            if data.tsn not in live.judged:
                why = f"TSN {data.tsn} is new, and DDP-SSN {ssn} was used before"
                live.aborts.append((sid, why))
            return replace(item(status), why=why)
        events = session.receive(data.ppid, data.payload, unordered=data.unordered)
        if before is State.ABORTED and session.state is State.ABORTED:
            return item(ChunkStatus.SILENT)
        outcome = tuple(_outcome(events, before, wrong))
        for each in outcome:
            if isinstance(each, Illegal):
                self._said[f"frame {self._frame} ends the session on {stream}: {each.why}"] = None
        if session.state is State.ABORTED:
            if message in INITIATES and ssn == 0:
                # A repetition by the network opens no session either.
                live.past[sid] = data.tsn
            return item(ChunkStatus.ILLEGAL, outcome)
        if _opens(outcome):
            live.past[sid] = data.tsn
            self._begin(end, live, sid)
            waiting = [
                each
                for each in live.association.sessions.values()
                if each.state is State.INITIATE_RECEIVED
            ]
            self.found.needs.initiates = max(self.found.needs.initiates, len(waiting))
        order = live.orders[sid]
        sequence = order.next + (ssn - order.next) % (1 << 16)
        order.tsns[sequence] = data.tsn
        if isinstance(message, Function):
            ahead = self._enqueue(order, sequence, None)
            taken = item(ChunkStatus.TAKEN, outcome, Diversion.CONTROL)
            control = SctpArrival(
                stream, 0, self._frame, data.tsn, chunk.octets, order.session.number, sequence
            )
            return replace(taken, ahead=ahead, control=control)
        host = end.local.address
        self._counts[host] = self._counts.get(host, 0) + 1
        segment = SctpArrival(
            stream,
            self._count(host),
            self._frame,
            data.tsn,
            chunk.octets,
            order.session.number,
            sequence,
        )
        order.session.segments += 1
        order.session.last = max(order.session.last, sequence)
        ahead = self._enqueue(order, sequence, segment)
        return replace(item(ChunkStatus.TAKEN, outcome), segment=segment, ahead=ahead)

    def _status(
        self,
        live: _Live,
        data: DataChunk,
        ssn: int,
        message: Function | None | ProtocolError,
        stream: SctpStream,
    ) -> ChunkStatus | None:
        """Judges a chunk by its TSN and DDP-SSN, before its session receives it.

        Returns whether it is a duplicate, is held, or is outside the window; None if it is new.
        """
        session = live.association.session(data.stream)
        if not _after(data.tsn, live.past[data.stream]):
            return ChunkStatus.DUPLICATE
        opens = message in INITIATES and ssn == 0 and session.reusable
        if opens or isinstance(message, ProtocolError) or session.state is State.ABORTED:
            return None
        order = live.orders.get(data.stream) or _SessionOrder(DdpSession(stream, 0, 0))
        sequence = order.used(ssn)
        follows = message is None or message is Function.TERMINATE
        if session.state is State.INITIATE_SENT:
            if follows and ssn != 0:
                return ChunkStatus.HELD
        elif message is not None and ssn == 0 and order.tsns.get(0) == data.tsn:
            return ChunkStatus.DUPLICATE
        elif sequence is not None and follows:
            if order.tsns.get(sequence) == data.tsn:
                return ChunkStatus.DUPLICATE
            if message is None:
                if sequence in order.tsns:
                    self.found.window = self._window
                if not order.keeps(sequence, self._window):
                    return ChunkStatus.DUPLICATE
        elif follows and session.state in _PLACES:
            ahead = (ssn - order.base) % (1 << 16)
            if ahead >= self._longest and ssn != order.next & 0xFFFF:
                return ChunkStatus.OUTSIDE
        return None

    def _enqueue(self, order: _SessionOrder, sequence: int, segment: SctpArrival | None) -> int:
        """Records an item that waits for those before it, and returns how far ahead it is."""
        needs = self.found.needs
        header = segment.header if segment else None
        queue = None
        if isinstance(header, Untagged):
            first = order.session.own.first_msn(header.queue)
            ahead = header.msn - first - order.delivered.get(header.queue, 0)
            ahead = (ahead + _HALF_MSN) % (2 * _HALF_MSN) - _HALF_MSN
            if ahead < _LONGEST_QUEUE:
                needs.messages = max(needs.messages, ahead)
            queue = header.queue if header.last else None
        self._came += 1
        while len(order.advances) > 1 and order.advances[1][0] + _UNDER_WAY <= self._came:
            order.advances.popleft()
        reach = 0
        if sequence != order.next:
            sure = order.advances[0] if order.advances else (0, 0)
            reach = sequence - (sure[1] if sure[0] + _UNDER_WAY <= self._came else 0)
            needs.ahead = max(needs.ahead, sequence - order.base)
            needs.reach = max(needs.reach, reach)
        order.waiting[sequence] = queue
        before = order.next
        while order.next in order.waiting:
            queue = order.waiting.pop(order.next)
            order.next += 1
            order.forget()
            if queue is not None:
                order.delivered[queue] = order.delivered.get(queue, 0) + 1
        if order.next != before:
            order.advances.append((self._came, order.next))
        return reach


def _after(tsn: int, other: int) -> bool:
    """Returns True if a TSN is after another one (RFC 9260 section 1.6)."""
    return 0 < (tsn - other) % _TSN < _TSN // 2


def _added(asconf: bytes) -> Iterator[str]:
    """Yields the addresses that an ASCONF chunk adds (RFC 5061 section 4.2.1)."""
    try:
        for kind, value in read_parameters(asconf[4:]):
            if kind == _ADD_ADDRESS:
                yield from listed_addresses(read_parameters(value[4:]))
    except ProtocolError:
        return


def _alone(ends: Ends, chunk: RawChunk) -> bytes:
    """Returns a packet with only this chunk."""
    return Packet(*ends, (Chunk(chunk.type, chunk.flags, chunk.value),)).encode()


def _data_chunk(chunk: RawChunk) -> DataChunk | None:
    if chunk.type != ChunkType.DATA:
        return None
    return DataChunk.decode(Chunk(chunk.type, chunk.flags, chunk.value))


def _message(data: DataChunk) -> Function | None | ProtocolError:
    """Returns the message of a DATA chunk: a control message's function, None for a segment,
    or an error.
    """
    if not (data.unordered and data.beginning and data.ending):
        return ProtocolError("a DDP message must be one whole, unordered DATA chunk")
    try:
        return decode_payload(data.ppid, data.payload)[1]
    except ProtocolError as error:
        return error


def _is_fragment(data: DataChunk) -> bool:
    """Returns True for a fragment that can be part of a DDP message."""
    whole = data.beginning and data.ending
    return data.unordered and not whole and data.ppid in (Ppid.SEGMENT, Ppid.CONTROL)


def _acceptable(frame: SctpFrame) -> list[RawChunk]:
    """Returns the chunks of a sound packet that are where RFC 9260 allows them.

    Section 8.5.1: a packet with the Verification Tag 0 contains "only an INIT chunk"; no other
    packet contains one.
    """
    assert frame.ends is not None
    initial = frame.ends.tag == 0
    return [chunk for chunk in frame.processed if (chunk.type == ChunkType.INIT) == initial]


def _sender_and_receiver(frame: SctpFrame) -> tuple[Endpoint, Endpoint]:
    assert frame.ends is not None
    return (
        Endpoint(frame.source, frame.ends.source_port),
        Endpoint(frame.destination, frame.ends.destination_port),
    )


def _opens(outcome: Iterable[Control | Illegal]) -> bool:
    """Returns True if a session opens."""
    return any(isinstance(each, Control) and each.function in INITIATES for each in outcome)


def _outcome(
    events: Iterable[SctpEvent], state: State, malformed: bool
) -> Iterator[Control | Illegal]:
    """Yields a session's events in the RNIC's terms; ``state`` is the state before them."""
    for event in events:
        if isinstance(event, SessionControl):
            yield Control(event.function)
        elif isinstance(event, SessionIllegal):
            reason = Reason.MALFORMED if malformed else Reason.SEQUENCE
            yield Illegal(reason, RnicState[state.name], event.reason)
