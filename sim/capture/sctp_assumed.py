"""Completes SCTP associations whose set-up, or one of whose directions, is not in the capture.

Frames for the missing part are put before those of the capture: the set-up of the association, and
the control messages that open its sessions, with the Verification Tags, TSNs and DDP-SSNs that fit
the captured frames. DDP-SSNs of an earlier session that do not begin at 1 are renumbered from
there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import dpkt

from ...hdl.spec.sctp import COMMON_HEADER, DATA_HEADER, SSN
from ..model.events import ProtocolError
from ..model.sctp import (
    ADAPTATION_DDP,
    ADAPTATION_PARAMETER,
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
from .sctp_frames import SctpFrame, with_checksums

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
_ANSWERS = (Function.ACCEPT, Function.REJECT)
#: The first octets of the messages with DDP-SSN 0 that begin one side of a session.
_BEGINNINGS = [bytes((0, 0, 0, function)) for function in (Function.INITIATE, *_ANSWERS)]
_HALF = 1 << 15  # half of all DDP-SSNs


@dataclass
class Assumed:
    """The frames of a capture together with the assumed ones, and sentences about the
    assumptions.
    """

    frames: list[SctpFrame]
    notes: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


@dataclass
class _Way:
    """One direction of an association, as captured."""

    tag: int | None = None
    sent: int = 0  # how many frames
    init: InitChunk | None = None
    tsn: int | None = None  # the lowest TSN


class _Said(NamedTuple):
    """A DDP message of a stream: its direction, its function (None for a segment), its DDP-SSN."""

    ends: tuple[Endpoint, Endpoint]
    function: Function | None
    ssn: int
    frame: SctpFrame

    def answers(self, asked: tuple[Endpoint, Endpoint]) -> bool:
        """Returns True if it answers an Initiate that went in the direction ``asked``."""
        refuses = self.function is Function.TERMINATE and self.ssn == 0
        return self.ends != asked and (refuses or self.function in _ANSWERS)


def with_set_up(frames: list[SctpFrame], asked: bool) -> Assumed:
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
    pairs: dict[tuple[Endpoint, Endpoint], list[SctpFrame]] = {}
    for frame in complete:
        if frame.sound and frame.ends is not None:
            ends = _ends(frame)
            pairs.setdefault((min(ends), max(ends)), []).append(frame)
    found = Assumed(frames)
    known = [_Pair(pair, own) for pair, own in pairs.items()]
    for each in known:
        # A pair may be another path of an association that was set up on its first path.
        if not any(each.continues(other) for other in known if other is not each):
            each.assume(found, complete, asked)
    if found.notes:
        found.notes[:0] = notes
    return found


def _ends(frame: SctpFrame) -> tuple[Endpoint, Endpoint]:
    assert frame.ends is not None
    return (
        Endpoint(frame.source, frame.ends.source_port),
        Endpoint(frame.destination, frame.ends.destination_port),
    )


class _Pair:
    """The SCTP between two ends."""

    def __init__(self, ends: tuple[Endpoint, Endpoint], frames: list[SctpFrame]) -> None:
        self._frames = frames
        self._ways = {ends: _Way(), ends[::-1]: _Way()}
        self._said: dict[int, list[_Said]] = {}  # by stream, as captured
        self._tsns: set[tuple[tuple[Endpoint, Endpoint], int]] = set()
        self._good = True  # whether all set-up chunks can be read, and there is one association
        for frame in frames:
            self._take(frame, self._ways[_ends(frame)])

    def _take(self, frame: SctpFrame, way: _Way) -> None:
        way.sent += 1
        for raw in frame.chunks or ():
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
                        self._hear(data, frame)
            except ProtocolError:
                self._good = False

    def _hear(self, data: DataChunk, frame: SctpFrame) -> None:
        ends = _ends(frame)
        if (ends, data.tsn) in self._tsns:
            return
        self._tsns.add((ends, data.tsn))
        try:
            ssn, function, _ = decode_payload(data.ppid, data.payload)
        except ProtocolError:
            return
        self._said.setdefault(data.stream, []).append(_Said(ends, function, ssn, frame))

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

    def assume(self, found: Assumed, complete: list[SctpFrame], asked: bool) -> None:
        """Adds the missing frames to ``found``, where that is allowed."""
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
        before, after, stood = self._control(there)
        tsn = _first(way, len(before[0]))
        back_tsn = _first(other, len(before[1]) + len(after))
        made = [
            _Made(there, 0, [_init(back_tag, tsn, way.init)]),
            _Made(back, back_tag, [_init(tag, back_tsn, other.init, acknowledges=True)]),
            _Made(there, tag, [Chunk(ChunkType.COOKIE_ECHO, 0, b"assumed.")]),
            _Made(back, back_tag, [Chunk(ChunkType.COOKIE_ACK)]),
        ]
        for number, sid in enumerate(before[0]):
            made.append(_Made(there, tag, [_message(tsn + number, sid, Function.INITIATE)]))
        for number, sid in enumerate(before[1]):
            made.append(_Made(back, back_tag, [_message(back_tsn + number, sid, Function.ACCEPT)]))
        accepts: dict[int, list[_Made]] = {}
        for number, (sid, frame) in enumerate(after, len(before[1])):
            accepts.setdefault(id(frame), []).append(
                _Made(back, back_tag, [_message(back_tsn + number, sid, Function.ACCEPT)])
            )
        shifts = {
            there: _shifts(stood, there, before[0]),
            back: _shifts(stood, back, before[1]),
        }
        self._write(found, complete, made, accepts, shifts)
        opened = dict.fromkeys([*before[1], *(sid for sid, _ in after)])
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
        for ends, each_way in ways.items():
            if not each_way.sent:
                found.left_out.append(
                    LeftOut(1, "direction", f"{ends[0]} > {ends[1]}: the capture lacks all of it")
                )

    def _control(
        self, there: tuple[Endpoint, Endpoint]
    ) -> tuple[tuple[list[int], list[int]], list[tuple[int, SctpFrame]], dict[int, list[_Said]]]:
        """Returns the control messages that the capture lacks, and the messages of earlier
        sessions.

        The first pair has the streams whose Initiate, and those whose Accept, is missing from the
        beginning. The list has the streams whose Accept is missing after a frame with an Initiate.
        The dict has the messages of sessions that existed before, by stream.
        """
        initiates, accepts, after, stood = [], [], [], {}
        for sid, said in sorted(self._said.items()):
            opens = [at for at, each in enumerate(said) if each.function is Function.INITIATE]
            first = stood[sid] = said[: opens[0] if opens else None]
            if first:
                initiates.append(sid)
                if not any(each.answers(there) for each in first):
                    accepts.append(sid)
            for at, end in pairwise([*opens, len(said)]):
                answered = any(each.answers(there) for each in said[at:end])
                if said[at].ends == there and not answered:
                    after.append((sid, said[at].frame))
        return (initiates, accepts), after, stood

    def _rank(self, ends: tuple[Endpoint, Endpoint], way: _Way) -> int:
        """Returns 0 for the initiator's direction, which has the INIT or an Initiate; 2 for
        the other; 1 if unknown.
        """
        if way.init is not None:
            return 2 if way.init.acknowledges else 0
        said = {each.function for of in self._said.values() for each in of if each.ends == ends}
        return 0 if Function.INITIATE in said else 2 if Function.ACCEPT in said else 1

    def _write(
        self,
        found: Assumed,
        complete: list[SctpFrame],
        made: list[_Made],
        accepts: dict[int, list[_Made]],
        shifts: dict[tuple[Endpoint, Endpoint], dict[int, int]],
    ) -> None:
        own = {id(frame) for frame in self._frames}
        still = {ends: dict(each) for ends, each in shifts.items()}
        first = self._frames[0]
        base = found.frames if found.notes else complete
        out: list[SctpFrame] = []
        for frame in base:
            if id(frame) not in own:
                out.append(frame)
                continue
            if frame is first:
                out += (each.frame(frame.number) for each in made)
            if all(chunk.type in _SET_UP for chunk in frame.chunks or ()):
                continue
            out.append(_shifted(frame, still[_ends(frame)]))
            out += (each.frame(frame.number) for each in accepts.get(id(frame), ()))
        found.frames = out


@dataclass(frozen=True)
class _Made:
    """A packet that is assumed."""

    ends: tuple[Endpoint, Endpoint]
    tag: int
    chunks: list[Chunk | DataChunk | InitChunk]

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
        return SctpFrame(number, one.address, other.address, octets, packet, intact=True)


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

    It has DDP-SSN 0 and no Private Data (RFC 5043 section 5.2.3).
    """
    payload = bytes(SSN) + function.to_bytes(2, "big")
    return DataChunk(tsn % _MODULO, sid, Ppid.CONTROL, payload)


def _shifts(
    stood: dict[int, list[_Said]], ends: tuple[Endpoint, Endpoint], sids: list[int]
) -> dict[int, int]:
    """Returns how much the DDP-SSNs of earlier sessions have to be lowered, by stream."""
    shifts = {}
    for sid in sids:
        orders: list[int] = []
        for each in stood[sid]:
            if each.ends == ends and each.function in (None, Function.TERMINATE):
                # DDP-SSNs are continued past 65535 (RFC 5043 section 10).
                last = orders[-1] if orders else each.ssn
                orders.append(last + (each.ssn - last + _HALF) % (2 * _HALF) - _HALF)
        if orders:
            shifts[sid] = (min(orders) - 1) % (2 * _HALF)
    return shifts


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
