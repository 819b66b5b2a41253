"""Completes SCTP associations whose set-up, or one of whose directions, is not in the capture.

Frames for the missing part are put before those of the capture: the set-up of the association, and
the control messages that open its sessions, with the Verification Tags, TSNs and DDP-SSNs that fit
the captured frames. DDP-SSNs of an earlier session that do not begin at 1 are renumbered from
there. The first message on each of their queues is assumed to be the next one, whatever its MSN.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import dpkt

from ...hdl.spec.sctp import COMMON_HEADER, DATA_HEADER, SSN
from ..model.ddp import decode_segment
from ..model.events import ProtocolError
from ..model.header import UntaggedHeader
from ..model.sctp import (
    ACCEPTS,
    ADAPTATION_DDP,
    ADAPTATION_PARAMETER,
    INITIATES,
    REJECTS,
    Chunk,
    ChunkType,
    DataChunk,
    Function,
    InitChunk,
    Packet,
    Ppid,
    checksum,
    decode_payload,
)
from .connections import Endpoint
from .layers import SCTP
from .pcap import LeftOut
from .sctp_frames import Msns, SctpFrame, with_checksums
from .spool import Again, Numbers
from .streams import QUEUES

__all__ = ["Assumed", "with_set_up"]

_MODULO = 1 << 32
_SET_UP = (
    ChunkType.INIT,
    ChunkType.INIT_ACK,
    ChunkType.COOKIE_ECHO,
    ChunkType.COOKIE_ACK,
)
_COOKIE_STATE = 7  # the parameter State Cookie of an INIT ACK
_STREAMS = 65535
_ANSWERS = (*ACCEPTS, *REJECTS)
#: The first octets of the messages with DDP-SSN 0 that begin one side of a session.
_BEGINNINGS = [bytes((0, 0, 0, function)) for function in (*INITIATES, *_ANSWERS)]
#: The IRD and ORD of an assumed message: neither is negotiated (RFC 6581 section 9.1).
_LIMITS = bytes.fromhex("3fff 3fff")
#: The answers to an Enhanced Initiate alone.
_ENHANCED_ANSWERS = {Function.ENHANCED_ACCEPT, Function.ENHANCED_REJECT}
_HALF = 1 << 15  # half of all DDP-SSNs


@dataclass
class Assumed:
    """The frames of a capture together with the assumed ones, and sentences about the
    assumptions.
    """

    frames: Sequence[SctpFrame]
    notes: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


@dataclass
class _Way:
    """One direction of an association, as captured."""

    tag: int | None = None
    sent: int = 0  # how many frames
    init: InitChunk | None = None
    tsn: int | None = None  # the lowest TSN
    tsns: Numbers = field(default_factory=Numbers)
    functions: set[Function | None] = field(default_factory=set)  # of the messages


class _Said(NamedTuple):
    """A DDP message of a stream: its direction, its function (None for a segment), its DDP-SSN, and
    the number of its frame, from 0. ``untagged`` is the Queue Number and the MSN of an untagged
    segment.
    """

    ends: tuple[Endpoint, Endpoint]
    function: Function | None
    ssn: int
    frame: int
    untagged: tuple[int, int] | None = None

    def answers(self, asked: tuple[Endpoint, Endpoint]) -> bool:
        """Returns True if it answers an Initiate that went in the direction ``asked``."""
        refuses = self.function is Function.TERMINATE and self.ssn == 0
        return self.ends != asked and (refuses or self.function in _ANSWERS)


@dataclass
class _Order:
    """The DDP-SSNs of one direction of an earlier session, continued past 65535 (RFC 5043
    section 10).
    """

    last: int
    least: int
    #: By Queue Number: the least DDP-SSN on the queue, and the MSN of that segment.
    queues: dict[int, tuple[int, int]] = field(default_factory=dict)

    def take(self, said: _Said) -> None:
        self.last += (said.ssn - self.last + _HALF) % (2 * _HALF) - _HALF
        self.least = min(self.least, self.last)
        if said.untagged is not None:
            qn, msn = said.untagged
            self.queues[qn] = min((self.last, msn), self.queues.get(qn, (self.last, msn)))

    @property
    def msns(self) -> Msns:
        """The pairs of a Queue Number and its first MSN, where that is not 1."""
        return tuple((qn, msn) for qn, (_, msn) in sorted(self.queues.items()) if msn != 1)


@dataclass
class _Talk:
    """The DDP messages of an SCTP stream.

    ``control`` are the control messages, ``begun`` whether a message precedes the first Initiate,
    and ``orders`` the DDP-SSNs of those messages, by direction.
    """

    control: list[_Said] = field(default_factory=list)
    begun: bool = False
    opened: bool = False
    orders: dict[tuple[Endpoint, Endpoint], _Order] = field(default_factory=dict)

    def take(self, said: _Said) -> None:
        self.opened |= said.function in INITIATES
        if said.function is not None:
            self.control.append(said)
        if self.opened:
            return
        self.begun = True
        if said.function in (None, Function.TERMINATE):
            self.orders.setdefault(said.ends, _Order(said.ssn, said.ssn)).take(said)


def with_set_up(frames: Sequence[SctpFrame], asked: bool) -> Assumed:
    """Returns the frames with the set-up of those associations that lack it.

    Parameters
    ----------
    frames
        The frames of every direction, in the order of the capture.
    asked
        The user declares that associations existed before the capture began. Otherwise this is
        assumed only for those of which the capture has one direction.
    """
    complete, notes = with_checksums(frames)
    pairs: dict[tuple[Endpoint, Endpoint], _Pair] = {}
    for number, frame in enumerate(complete):
        if frame.sound and frame.ends is not None:
            ends = _ends(frame)
            pair = min(ends), max(ends)
            if pair not in pairs:
                pairs[pair] = _Pair(pair, number)
            pairs[pair].take(frame, number)
    found, made = Assumed(frames), _Completed(complete)
    for each in pairs.values():
        # A pair may be another path of an association that was set up on its first path.
        if not any(each.continues(other) for other in pairs.values() if other is not each):
            each.assume(found, made, asked)
    if found.notes:
        found.notes[:0] = notes
        found.frames = Again(made.frames)
    return found


class _Completed:
    """The frames of a capture, with those that are assumed.

    Attributes
    ----------
    before, after
        Frames to insert, by the number of the captured frame.
    shifts
        For each direction of a completed association, by SCTP stream: how much its DDP-SSNs are
        lowered.
    """

    def __init__(self, captured: Sequence[SctpFrame]) -> None:
        self._captured = captured
        self.before: dict[int, list[_Made]] = {}
        self.after: dict[int, list[_Made]] = {}
        self.shifts: dict[tuple[Endpoint, Endpoint], dict[int, int]] = {}

    def frames(self) -> Iterator[SctpFrame]:
        still = {ends: dict(each) for ends, each in self.shifts.items()}
        for number, frame in enumerate(self._captured):
            ends = _ends(frame) if frame.sound else None
            if ends not in still:
                yield frame
                continue
            yield from (each.frame(frame.number) for each in self.before.get(number, ()))
            if all(chunk.type in _SET_UP for chunk in frame.chunks or ()):
                continue
            yield _shifted(frame, still[ends])
            yield from (each.frame(frame.number) for each in self.after.get(number, ()))


def _ends(frame: SctpFrame) -> tuple[Endpoint, Endpoint]:
    assert frame.ends is not None
    return (
        Endpoint(frame.source, frame.ends.source_port),
        Endpoint(frame.destination, frame.ends.destination_port),
    )


class _Pair:
    """The SCTP between two ends; ``first`` is the number of its first frame."""

    def __init__(self, ends: tuple[Endpoint, Endpoint], first: int) -> None:
        self._first = first
        self._ways = {ends: _Way(), ends[::-1]: _Way()}
        self._talks: dict[int, _Talk] = {}  # by stream
        self._good = True  # whether all set-up chunks can be read, and there is one association

    def take(self, frame: SctpFrame, number: int) -> None:
        """Takes the next frame."""
        way = self._ways[_ends(frame)]
        way.sent += 1
        for raw in frame.processed:
            chunk = Chunk(raw.type, raw.flags, raw.value)
            try:
                if raw.type in (ChunkType.INIT, ChunkType.INIT_ACK):
                    way.init = InitChunk.decode(chunk)
                elif raw.type == ChunkType.DATA:
                    data = DataChunk.decode(chunk)
                    if data.ppid in (Ppid.SEGMENT, Ppid.CONTROL):
                        assert frame.ends is not None
                        self._good &= way.tag in (None, frame.ends.tag)
                        way.tag = frame.ends.tag
                        if way.tsn is None or (way.tsn - data.tsn) % _MODULO < _MODULO // 2:
                            way.tsn = data.tsn
                        self._hear(data, _ends(frame), number)
            except ProtocolError:
                self._good = False

    def _hear(self, data: DataChunk, ends: tuple[Endpoint, Endpoint], number: int) -> None:
        way = self._ways[ends]
        if not way.tsns.add(data.tsn):
            return
        try:
            ssn, function, octets = decode_payload(data.ppid, data.payload)
        except ProtocolError:
            return
        way.functions.add(function)
        said = _Said(ends, function, ssn, number, _untagged(octets) if function is None else None)
        self._talks.setdefault(data.stream, _Talk()).take(said)

    def continues(self, other: _Pair) -> bool:
        """Returns True if these packets have the ports and a Verification Tag that ``other``
        has set up.
        """
        return any(
            way.tag is not None
            and back.init is not None
            and way.tag == back.init.tag
            and (one.port, two.port) == (theirs.port, ours.port)
            for (one, two), way in self._ways.items()
            for (ours, theirs), back in other._ways.items()
        )

    def assume(self, found: Assumed, made: _Completed, asked: bool) -> None:
        """Adds the missing frames, where that is allowed."""
        ways = self._ways
        one_way = not all(way.sent for way in ways.values())
        has_ddp = any(way.tag is not None for way in ways.values())
        set_up = all(way.init is not None for way in ways.values())
        if not self._good or not has_ddp or set_up or not (asked or one_way):
            return
        (there, way), (back, other) = sorted(ways.items(), key=lambda each: self._rank(*each))
        # The receiver of a direction chose its tag in its INIT.
        tag = way.tag if way.tag is not None else (other.init.tag if other.init else 1)
        back_tag = other.tag if other.tag is not None else (way.init.tag if way.init else 1)
        before, after = self._control(there)
        tsn = _first(way, len(before[0]))
        back_tsn = _first(other, len(before[1]) + len(after))
        msns = {there: self._msns(there, before[0]), back: self._msns(back, before[1])}
        first = [
            _Made(there, 0, [_init(back_tag, tsn, way.init)]),
            _Made(back, back_tag, [_init(tag, back_tsn, other.init, acknowledges=True)]),
            _Made(there, tag, [Chunk(ChunkType.COOKIE_ECHO, 0, b"assumed.")], msns[there]),
            _Made(back, back_tag, [Chunk(ChunkType.COOKIE_ACK)], msns[back]),
        ]
        for number, (sid, function) in enumerate(before[0].items()):
            first.append(_Made(there, tag, [_message(tsn + number, sid, function)]))
        for number, sid in enumerate(before[1]):
            first.append(_Made(back, back_tag, [_message(back_tsn + number, sid, Function.ACCEPT)]))
        made.before[self._first] = first
        for number, (sid, function, frame) in enumerate(after, len(before[1])):
            made.after.setdefault(frame, []).append(
                _Made(back, back_tag, [_message(back_tsn + number, sid, function)])
            )
        shifts = {
            there: self._shifts(there, before[0]),
            back: self._shifts(back, before[1]),
        }
        made.shifts |= shifts
        opened = dict.fromkeys([*before[1], *(sid for sid, *_ in after)])
        sessions = f", its sessions on SCTP streams {_list(opened)} accepted" if opened else ""
        found.notes.append(
            f"{there[0]} > {there[1]}: the capture lacks the set-up of this SCTP association: it is"
            f" assumed to have been set up for DDP{sessions}"
        )
        for ends, each in shifts.items():
            for sid, shift in each.items():
                if shift:
                    found.notes.append(
                        f"{ends[0]} > {ends[1]} SCTP stream {sid}: the first DDP-SSN captured,"
                        f" {shift + 1}, is assumed to be 1"
                    )
            found.notes += [
                f"{ends[0]} > {ends[1]} SCTP stream {sid}: the first message on Queue Number {qn}"
                f" in the capture, with MSN {msn}, is assumed to be the next one"
                for sid, queues in msns[ends]
                for qn, msn in queues
            ]
        for ends, each_way in ways.items():
            if not each_way.sent:
                found.left_out.append(
                    LeftOut(1, "direction", f"{ends[0]} > {ends[1]}: the capture lacks all of it")
                )

    def _control(
        self, there: tuple[Endpoint, Endpoint]
    ) -> tuple[tuple[dict[int, Function], list[int]], list[tuple[int, Function, int]]]:
        """Returns the control messages that the capture lacks.

        The pair has the Initiates, by stream, and the streams whose Accept is missing from the
        beginning. The list has the streams whose Accept is missing after a frame with an Initiate,
        and that Accept. An Initiate or an Accept is enhanced if the message that fits it is.
        """
        initiates, accepts, after = {}, [], []
        for sid, talk in sorted(self._talks.items()):
            said = talk.control
            opens = [at for at, each in enumerate(said) if each.function in INITIATES]
            first = said[: opens[0] if opens else None]
            if talk.begun:
                answers = [each.function for each in first if each.answers(there)]
                enhanced = not _ENHANCED_ANSWERS.isdisjoint(answers)
                initiates[sid] = INITIATES[enhanced]
                if not answers:
                    accepts.append(sid)
            for at, end in pairwise([*opens, len(said)]):
                answered = any(each.answers(there) for each in said[at:end])
                if said[at].ends == there and not answered:
                    enhanced = said[at].function is Function.ENHANCED_INITIATE
                    after.append((sid, ACCEPTS[enhanced], said[at].frame))
        return (initiates, accepts), after

    def _rank(self, ends: tuple[Endpoint, Endpoint], way: _Way) -> int:
        """Returns 0 for the initiator's direction, which has the INIT or an Initiate; 2 for
        the other; 1 if unknown.
        """
        if way.init is not None:
            return 2 if way.init.acknowledges else 0
        said = way.functions
        return 0 if said.intersection(INITIATES) else 2 if said.intersection(ACCEPTS) else 1

    def _shifts(self, ends: tuple[Endpoint, Endpoint], sids: Iterable[int]) -> dict[int, int]:
        """Returns how much the DDP-SSNs of earlier sessions have to be lowered, by stream."""
        orders = {sid: self._talks[sid].orders.get(ends) for sid in sids}
        return {
            sid: (order.least - 1) % (2 * _HALF)
            for sid, order in orders.items()
            if order is not None
        }

    def _msns(
        self, ends: tuple[Endpoint, Endpoint], sids: Iterable[int]
    ) -> tuple[tuple[int, Msns], ...]:
        """Returns the first MSNs of earlier sessions, by stream."""
        orders = {sid: self._talks[sid].orders.get(ends) for sid in sids}
        return tuple((sid, order.msns) for sid, order in orders.items() if order is not None)


@dataclass(frozen=True)
class _Made:
    """A packet that is assumed. ``msns`` is that of :class:`.SctpFrame`."""

    ends: tuple[Endpoint, Endpoint]
    tag: int
    chunks: list[Chunk | DataChunk | InitChunk]
    msns: tuple[tuple[int, Msns], ...] = ()

    def frame(self, number: int) -> SctpFrame:
        one, other = self.ends
        packet = Packet(one.port, other.port, self.tag, tuple(self.chunks)).encode()
        source, destination = (ipaddress.ip_address(end.address) for end in self.ends)
        if source.version == 4:
            ip = dpkt.ip.IP(src=source.packed, dst=destination.packed, p=SCTP, data=packet)
            ip.len = len(ip)
            kind = b"\x08\x00"
        else:
            ip = dpkt.ip6.IP6(
                src=source.packed, dst=destination.packed, nxt=SCTP, hlim=64, data=packet
            )
            ip.extension_hdrs, ip.plen = {}, len(packet)
            kind = b"\x86\xdd"
        octets = bytes(12) + kind + bytes(ip)
        return SctpFrame(
            number, one.address, other.address, octets, packet, intact=True, msns=self.msns
        )


def _untagged(segment: bytes) -> tuple[int, int] | None:
    """Returns the Queue Number and the MSN of an untagged segment, or None."""
    try:
        header, _ = decode_segment(segment)
    except ProtocolError:
        return None
    if isinstance(header, UntaggedHeader) and header.qn < QUEUES:
        return header.qn, header.msn
    return None


def _first(way: _Way, made: int) -> int:
    """Returns the first TSN of a direction for which ``made`` DATA chunks are assumed."""
    return ((1 if way.tsn is None else way.tsn) - made) % _MODULO


def _init(
    tag: int, tsn: int, captured: InitChunk | None, *, acknowledges: bool = False
) -> InitChunk:
    parameters = [(ADAPTATION_PARAMETER, ADAPTATION_DDP.to_bytes(4, "big"))]
    if captured is not None:
        # The capture shows whether the association is for DDP.
        parameters = [each for each in captured.parameters if each[0] == ADAPTATION_PARAMETER]
    if acknowledges:
        parameters.append((_COOKIE_STATE, b"assumed."))
    return InitChunk(
        tag, tsn, _STREAMS, _STREAMS, parameters=tuple(parameters), acknowledges=acknowledges
    )


def _message(tsn: int, sid: int, function: Function) -> DataChunk:
    """Returns a control message, the first of its direction.

    It has DDP-SSN 0 and no Private Data of a ULP (RFC 5043 section 5.2.3).
    """
    enhanced = function in (Function.ENHANCED_INITIATE, Function.ENHANCED_ACCEPT)
    payload = bytes(SSN) + function.to_bytes(2, "big") + (_LIMITS if enhanced else b"")
    return DataChunk(tsn % _MODULO, sid, Ppid.CONTROL, payload)


def _shifted(frame: SctpFrame, shifts: dict[int, int]) -> SctpFrame:
    """Returns the frame with lowered DDP-SSNs, by stream.

    Once the next session begins on a stream, its DDP-SSNs stay unchanged.
    """
    packet, at, changed = bytearray(frame.packet), COMMON_HEADER, False
    for chunk in frame.chunks or ():
        octets = chunk.octets
        if chunk.type == ChunkType.DATA and len(octets) >= DATA_HEADER + SSN:
            sid, ppid = int.from_bytes(octets[8:10], "big"), int.from_bytes(octets[12:16], "big")
            if ppid == Ppid.CONTROL and octets[DATA_HEADER : DATA_HEADER + 4] in _BEGINNINGS:
                shifts.pop(sid, None)
            shift = shifts.get(sid, 0)
            if shift and ppid in (Ppid.SEGMENT, Ppid.CONTROL):
                ssn = int.from_bytes(octets[DATA_HEADER : DATA_HEADER + SSN], "big") - shift
                place = at + DATA_HEADER
                packet[place : place + SSN] = (ssn & 0xFFFF).to_bytes(SSN, "big")
                changed = True
        at += (len(octets) + 3) // 4 * 4
    if not changed:
        return frame
    packet[8:12] = checksum(bytes(packet))
    before = frame.octets.index(frame.packet)
    octets = frame.octets[:before] + bytes(packet) + frame.octets[before + len(packet) :]
    return replace(frame, octets=octets, packet=bytes(packet))


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
