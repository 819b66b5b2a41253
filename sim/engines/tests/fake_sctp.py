"""The part of the stand-in RNIC that takes frames: associations, chunks and sessions, in Python.

It uses only registers and frames, and not the model of SCTP.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dpkt
import google_crc32c
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.completion import ChunkStatus, Completion, Kind
from ddp_rnic.hdl.spec.ddp import LOCAL_CATASTROPHIC
from ddp_rnic.hdl.spec.net import AssociationKey, hash_way, slot_bits
from ddp_rnic.hdl.spec.sctp import ACCEPTS, INITIATES, Diversion, Function, Reason, State
from ddp_rnic.sim.engines.engine import ExceptionPacket
from ddp_rnic.sim.model.ddp import DataSink
from ddp_rnic.sim.model.events import DdpError, Placed

if TYPE_CHECKING:
    from .fake_engine import _Device

_OPENABLE = (State.CLOSED, State.TERMINATE_SENT, State.TERMINATE_RECEIVED, State.ABORTED)
#: The host's legal messages by state, and the state that follows.
_SAYS = {
    **{each: dict.fromkeys(_OPENABLE, State.INITIATE_SENT) for each in INITIATES},
    Function.ABORT: dict.fromkeys(State, State.ABORTED),
    **{each: {State.INITIATE_RECEIVED: State.ESTABLISHED} for each in ACCEPTS},
    Function.REJECT: {State.INITIATE_RECEIVED: State.CLOSED},
    Function.ENHANCED_REJECT: {State.INITIATE_RECEIVED: State.CLOSED},
    Function.TERMINATE: {
        State.INITIATE_RECEIVED: State.CLOSED,
        State.REFUSED: State.CLOSED,
        State.ESTABLISHED: State.TERMINATE_SENT,
        State.TERMINATE_RECEIVED: State.CLOSED,
        State.ABORTED: State.ABORTED,
    },
}
_PLACES = (State.ESTABLISHED, State.TERMINATE_SENT)
_TERMINATED = (State.TERMINATE_SENT, State.TERMINATE_RECEIVED)
_SEGMENT = 0  #: stands for a segment among functions
#: The answers to an Initiate, and to an Enhanced Initiate, that a session may have.
_ANSWERS = (
    {Function.ACCEPT, Function.REJECT, Function.TERMINATE},
    {Function.ENHANCED_ACCEPT, Function.ENHANCED_REJECT, Function.REJECT, Function.TERMINATE},
)


@dataclass
class _Session:
    state: State = State.CLOSED
    past: int = 0
    next: int = 0
    opened: int | None = None  # TSN of the item with order 0
    waiting: dict[int, int] = field(default_factory=dict)  # functions by order
    tsns: dict[int, tuple[int, int]] = field(default_factory=dict)  # order and TSN, by slot
    segments: dict[int, int] = field(default_factory=dict)  # TSNs by order
    last: int | None = None  # order of the Terminate
    highest: int = -1
    enhanced: bool = False
    undelivered: list[Any] = field(default_factory=list)

    def begin(self, tsn: int) -> None:
        self.__init__(past=tsn)  # type: ignore[misc]

    def take(self, order: int, function: int, tsn: int, window: int) -> None:
        self.waiting[order] = function
        self.tsns[order % window] = order, tsn
        self.highest = max(self.highest, order)
        if order == 0:
            self.opened = tsn
        if function == Function.TERMINATE:
            self.last = order

    @property
    def gap(self) -> bool:
        return bool(self.waiting)


class FakeSctp:
    """The SCTP of ``device``, whose streams, buffers and ring it shares."""

    def __init__(self, device: _Device) -> None:
        self.device = device
        self.entries: dict[tuple[int, int], tuple[AssociationKey, int, int, int]] = {}
        self.sessions: dict[int, _Session] = {}
        self.answer = 0
        self.counters = dict.fromkeys(regs.SCTP_COUNTERS, 0)

    # -- registers --

    def _fields(self, name: str) -> dict[str, int]:
        return regs.unpack(name, self.device.values.get(name, 0))

    def commit(self) -> None:
        """Executes ASSOC_COMMIT."""
        values = self.device.values
        slot, flags = self._fields("ASSOC_SLOT"), self._fields("ASSOC_FLAGS")
        nest = slot["way"], slot["slot"]
        if not flags["valid"]:
            del self.entries[nest]
            return
        ports, streams = self._fields("ASSOC_PORTS"), self._fields("ASSOC_STREAMS")
        source, destination = (
            sum(values[f"ASSOC_{end}{k}"] << 32 * k for k in range(4)) for end in ("SRC", "DST")
        )
        key = AssociationKey(
            source,
            destination,
            ports["source"],
            ports["destination"],
            values["ASSOC_TAG"],
            bool(flags["v6"]),
        )
        width = slot_bits(self.device.config.associations)
        assert hash_way(nest[0], key, width) == nest[1], "the entry would never be found"
        assert flags["number"] < self.device.config.associations
        # The SCTP streams for which the device has no DDP Stream are none of the association.
        room = max(0, self.device.config.streams - streams["first"])
        count = min(streams["count"], room)
        self.entries[nest] = key, flags["number"], streams["first"], count

    def command(self) -> None:
        """Executes SESSION_COMMAND."""
        values = self.device.values
        self.answer = 0
        if values["SESSION_STREAM"] >= self.device.config.streams:
            return
        function = Function(values["SESSION_FUNCTION"])
        session = self.sessions.setdefault(values["SESSION_STREAM"], _Session())
        if function is Function.FORGET:
            session.begin(values["SESSION_TSN"])
            after = State.CLOSED
        elif function is Function.PAST:
            tsn = values["SESSION_TSN"]
            if (session.past - tsn) % (1 << 32) >= 1 << 31:
                session.past = tsn
            after = session.state
        else:
            after = _SAYS[function].get(session.state, session.state)
        commands = (Function.FORGET, Function.PAST)
        taken = function in commands or session.state in _SAYS[function]
        if session.state is State.INITIATE_RECEIVED and function not in (*commands, Function.ABORT):
            taken &= function in _ANSWERS[session.enhanced]
        if taken and function in INITIATES:
            session.begin(values["SESSION_TSN"])
            session.enhanced = function is Function.ENHANCED_INITIATE
        session.state = after if taken else session.state
        self.answer = regs.pack("SESSION_ANSWER", state=session.state, taken=taken)

    # -- frames --

    def receive(self, frame: bytes) -> None:
        key, packet = _packet(frame)
        entry = next((each for each in self.entries.values() if each[0] == key), None)
        if entry is None:
            self.counters["FRAMES_DIVERTED"] += 1
            self._divert(0, 0, frame, Diversion.FRAME)
            return
        _, association, first, count = entry
        digest = google_crc32c.value(packet[:8] + bytes(4) + packet[12:])
        if struct.pack("<I", digest) != packet[8:12]:
            self.counters["FRAMES_DROPPED"] += 1
            return
        chunks, at = [], 12
        while at < len(packet):
            kind, _, length = struct.unpack_from(">BBH", packet, at)
            if length < (4 if kind else 17) or at + length > len(packet):
                self.counters["FRAMES_DIVERTED"] += 1
                self._divert(0, 0, frame, Diversion.FRAME)
                return
            chunks.append(packet[at : at + length])
            at += -(-length // 4) * 4
        self.counters["FRAMES"] += 1
        over = False
        for number, chunk in enumerate(chunks, 1):
            if over or chunk[0]:
                self._divert(association, 0, chunk, Diversion.CHUNK)
                told = False
            else:
                told = self._chunk(association, first, count, chunk, ends=number == len(chunks))
            # RFC 9260 sections 3, 3.2 and 3.3.7: such a type ends the packet.
            over |= 15 <= chunk[0] < 128 or chunk[0] in (1, 2, 6, 14)
        if not chunks or not told:
            self.device.complete(
                Completion(kind=Kind.PACKET, length=len(chunks), cookie=association << 16)
            )

    def _chunk(self, association: int, first: int, count: int, chunk: bytes, *, ends: bool) -> bool:
        """Takes a DATA chunk; returns whether it has a record."""
        tsn, sid, _, ppid, ssn = struct.unpack_from(">IHHIH", chunk + bytes(1), 4)
        if sid >= count:
            self._divert(association, tsn, chunk, Diversion.DATA)
            return False
        number = first + sid
        function, body = _SEGMENT, len(chunk) - 20
        if ppid == 17 and body >= 0:
            (function,) = struct.unpack_from(">H", chunk, 18)
        flags = chunk[1] & 7
        if flags in (4, 5, 6) and ppid in (16, 17):
            self._divert(association, tsn, chunk, Diversion.FRAGMENT)
            self.device.complete(
                Completion(
                    kind=Kind.CHUNK, status=ChunkStatus.HELD, stream=number, tag=tsn,
                    cookie=association << 16, ends=ends,
                )
            )  # fmt: skip
            return True
        good = flags == 7 and (
            ppid == 16 or (ppid == 17 and 1 <= function <= 7 and 0 <= body <= 512 * (function != 4))
        )
        if not good:
            self._divert(association, tsn, chunk, Diversion.DATA)
        status, order = self._judge(number, tsn, ssn, function, good)
        octets = 0
        after: list[Any] = []
        if status is ChunkStatus.HELD:
            self._divert(association, tsn, chunk, Diversion.EARLY)
        elif status is ChunkStatus.TAKEN and function:
            self._divert(number, tsn, chunk, Diversion.CONTROL)
        elif status is ChunkStatus.TAKEN:
            status, octets, after = self._segment(number, tsn, order, chunk)
        name = {
            ChunkStatus.DUPLICATE: "DUPLICATE",
            ChunkStatus.OUTSIDE: "OUTSIDE",
            ChunkStatus.ILLEGAL: "REFUSED",
            ChunkStatus.SILENT: "REFUSED",
        }.get(status)
        if name:
            self.counters[f"CHUNKS_{name}"] += 1
        self.device.complete(
            Completion(
                kind=Kind.CHUNK, status=status, stream=number, tag=tsn, length=octets,
                cookie=ssn | association << 16, ends=ends,
            )
        )  # fmt: skip
        self._turns(number, after)
        return True

    def _judge(
        self, number: int, tsn: int, ssn: int, function: int, good: bool
    ) -> tuple[ChunkStatus, int]:
        session = self.sessions.setdefault(number, _Session())
        state, window = session.state, self.device.config.window
        if (session.past - tsn) % (1 << 32) < 1 << 31:
            return ChunkStatus.DUPLICATE, 0
        asks = good and function in INITIATES and ssn == 0
        opens = asks and state in _OPENABLE
        if opens and not (state in _TERMINATED and session.gap):
            session.begin(tsn)
            session.state = State.INITIATE_RECEIVED
            session.enhanced = function == Function.ENHANCED_INITIATE
            session.take(0, function, tsn, window)
            return ChunkStatus.TAKEN, 0
        if state is State.ABORTED:
            return ChunkStatus.SILENT, 0
        if asks and tsn != session.opened:
            session.past = tsn
        if not good:
            return self._abort(number, Reason.MALFORMED)
        follows = function in (_SEGMENT, Function.TERMINATE)
        if state is State.INITIATE_SENT:
            if follows and ssn:
                return ChunkStatus.HELD, 0
            if ssn or function not in _ANSWERS[session.enhanced]:
                return self._abort(number, Reason.SEQUENCE)
            session.state = State.ESTABLISHED if function in ACCEPTS else State.CLOSED
            session.take(0, function, tsn, window)
            return ChunkStatus.TAKEN, 0
        if ssn == 0 and function and tsn == session.opened:
            return ChunkStatus.DUPLICATE, 0
        order = session.next + (ssn - session.next) % (1 << 16)
        if order - session.next >= 1 << 15:
            order -= 1 << 16
        if follows and (order < session.next or order in session.waiting):
            kept, known = session.tsns.get(order % window, (None, None))
            if (kept, known) == (order, tsn) or (kept != order and not function):
                return ChunkStatus.DUPLICATE, 0
            return self._abort(number, Reason.SEQUENCE)
        legal = state in _PLACES and follows
        if session.last is not None and order > session.last:
            legal = False
        if function == Function.TERMINATE and order < session.highest:
            legal = False
        if not legal:
            return self._abort(number, Reason.SEQUENCE)
        if order - session.next >= window and order != session.next:
            return ChunkStatus.OUTSIDE, 0
        session.take(order, function, tsn, window)
        return ChunkStatus.TAKEN, order

    def _abort(self, number: int, reason: Reason) -> tuple[ChunkStatus, int]:
        session = self.sessions[number]
        self.device.complete(
            Completion(kind=Kind.SESSION, status=reason, stream=number, tag=int(session.state))
        )
        session.state = State.ABORTED
        return ChunkStatus.ILLEGAL, 0

    def _segment(
        self, number: int, tsn: int, order: int, chunk: bytes
    ) -> tuple[ChunkStatus, int, list[Any]]:
        device, session = self.device, self.sessions[number]
        stream = device.streams[number]
        if not (stream.live and stream.enabled):
            device.counters["DROPPED"] += 1
            return ChunkStatus.DROPPED, 0, []
        assert isinstance(stream.sink, DataSink)
        if not session.segments:
            stream.sink._next = 1  # after the control message
        session.segments[order] = tsn
        status, octets = ChunkStatus.DROPPED, 0
        after = []
        for event in stream.sink.receive(chunk[18:], order):
            match event:
                case Placed():
                    status, octets = ChunkStatus.TAKEN, event.length
                    device._place(number, event, chunk[18 + event.header.size :])
                case DdpError() if status is ChunkStatus.DROPPED:
                    device._fail(number, event.number, len(chunk) - 18, tsn, chunk[18:])
                    device._refuse(number, event.number, tsn, chunk)
                case _:
                    after.append(event)
        return status, octets, after

    def _turns(self, number: int, events: list[Any]) -> None:
        """Handles the items whose turn has come."""
        session = self.sessions.get(number)
        if session is None:
            return
        session.undelivered += events
        while session.next in session.waiting and session.state is not State.ABORTED:
            function = session.waiting.pop(session.next)
            while function == _SEGMENT and session.undelivered:
                event = session.undelivered[0]
                if event.order is None or event.order > session.next:
                    break
                session.undelivered.pop(0)
                if isinstance(event, DdpError):
                    local = event.number == LOCAL_CATASTROPHIC
                    tsn = 0 if local else session.segments[session.next]
                    self.device._fail(number, event.number, 0, tsn, b"")
                else:
                    self.device._deliver(number, event)
            if function:
                self.device.complete(
                    Completion(kind=Kind.CONTROL, stream=number, tag=int(function))
                )
            if function == Function.TERMINATE and session.next:
                session.state = (
                    State.TERMINATE_RECEIVED if session.state is State.ESTABLISHED else State.CLOSED
                )
            session.next += 1

    def _divert(self, stream: int, sequence: int, octets: bytes, reason: Diversion) -> None:
        self.device.counters["EXCEPTIONS"] += 1
        assert len(octets) <= self.device.config.exception_octets
        self.device.exceptions.append(ExceptionPacket(stream, sequence, octets, reason))


def _packet(frame: bytes) -> tuple[AssociationKey | None, bytes]:
    """Returns the SCTP packet of a frame, and its association."""
    ip = dpkt.ethernet.Ethernet(frame).data
    at = frame.index(ip.src + ip.dst)
    v6 = isinstance(ip, dpkt.ip6.IP6)
    begin, end = at + 32, at + 32 + (ip.plen if v6 else 0)
    if not v6:
        begin, end = at - 12 + 4 * ip.hl, at - 12 + ip.len
        if dpkt.in_cksum(frame[at - 12 : begin]):
            return None, b""
    if (ip.nxt if v6 else ip.p) == 17:
        begin += 8
    octets = frame[begin:end]
    source, destination, tag = struct.unpack_from(">HHI", octets)
    return (
        AssociationKey(
            int.from_bytes(ip.src, "little"),
            int.from_bytes(ip.dst, "little"),
            source,
            destination,
            tag,
            v6,
        ),
        octets,
    )
