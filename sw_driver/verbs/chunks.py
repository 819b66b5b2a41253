"""Sends DDP over SCTP: the sending side of an association, and the sending halves of its streams.

The device makes the packets and gives TSNs and DDP-SSNs; this end of SCTP follows the peer's SACK
chunks, and decides which chunks may leave and which leave again (RFC 9260 sections 6 and 7).
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...hdl.spec import commands
from ...hdl.spec.path import SendPath
from ...hdl.spec.sctp import (
    ACCEPTS,
    COMMON_HEADER,
    DATA_HEADER,
    ENHANCED_DATA,
    INITIATES,
    LONGEST_BODY,
    MOST_PRIVATE,
    SSN,
    Function,
)
from ...hdl.spec.send import Kind, Record
from ..base.checks import flag, instance, integer, shown
from ..base.errors import InvalidRequest, StateError, TransportError, UnsupportedDevice
from ..transports.memory import Steps
from ..transports.transport import SentFpdu
from .flight import Flight
from .fragments import fragments_of, room_of
from .known import KnownAssociation, KnownStream
from .responding import Responder
from .sending import Body, SendingHalf, SendSettings

__all__ = ["AssociationSender", "ChunkHalf"]

_TSN = 1 << 32
#: Chunks of a session that a stream may send ahead: the limits of its association are less.
_ALL = 1 << 30
#: The chunk type of SACK, and its fields after the chunk's header (RFC 9260 section 3.3.4).
_SACK, _FIELDS = 3, struct.Struct(">BxHIIHH")
_GAP = struct.Struct(">HH")
#: IPv4 and UDP headers; the IPv6 header has twice as many octets as that of IPv4.
_IP, _UDP = 20, 8
#: RFC 5043 section 9: the least MULPDU.
_LEAST = 516


class ChunkHalf(SendingHalf):
    """Sends the messages of one DDP Stream Session, in the order of their posts.

    Messages that are posted before the session is established wait on the host (RFC 5043 section
    6.6). A message has its completion once the peer has acknowledged all of its chunks. The device
    bounds no RDMA Read here: the caller counts those that are outstanding. After
    :meth:`~.stream.Stream.answer_reads`, it answers the Read Requests of the peer.

    Parameters
    ----------
    stream
        The stream, which belongs to the association.
    sender
        The sending side of the association.
    """

    def __init__(self, stream: KnownStream, sender: AssociationSender) -> None:
        self._sender, self._chunks = sender, 0
        self._held: deque[tuple[Kind, Body, object, dict[str, int]]] = deque()
        #: The TSNs of the chunks of posted messages that were asked for again, in that order, and
        #: the first entries of their messages.
        self._asked: deque[tuple[int, int]] = deque()
        self.established = False
        settings = SendSettings(mulpdu=sender.mulpdu, crc=False, markers=False, keeps=False)
        super().__init__(stream, settings, leave=lambda octets: None)

    def _open(self) -> None:
        self._set(open=True)
        self._failed = False

    def _set(self, *, open: bool) -> None:
        association, number = self._sender.association, self._stream.number
        self._context.registers.start(
            commands.set_sending_sctp(
                number, association=association.number, sid=number - association.first,
                sequence=self._chunks, limited=True, open=open,
            )
        )  # fmt: skip

    def _allow(self, ahead: int) -> None:
        """Lets all chunks leave for which the association has credit."""
        self._limit = self._chunks + _ALL
        self._context.registers.start(commands.set_limit(self._stream.number, self._limit))

    def post(
        self, kind: Kind, body: Body, *, wr_id: object = None, fence: int = False, **fields: int
    ) -> None:
        """Posts a message, as :meth:`SendingHalf.post` does."""
        if self.established or kind is Kind.CONTROL:
            super().post(kind, body, wr_id=wr_id, fence=fence, **fields)
        else:
            self._checked(kind, body, fields)
            flag("fence", fence)
            self._held.append((kind, body, wr_id, fields))

    def establish(self) -> None:
        """Posts the messages that waited for the session."""
        self.established = True
        while self._held:
            kind, body, wr_id, fields = self._held.popleft()
            super().post(kind, body, wr_id=wr_id, **fields)

    # -- chunks -----------------------------------------------------------------------------------

    def left(self, record: Record) -> None:
        """Notes that a chunk has left."""
        self._chunks += 1
        if record.ends and not record.response:
            self._gone = record.entry + record.entries
        if self._limit - self._chunks < _ALL // 2:
            self._allow(_ALL)
        if self._abandoned:
            self._release(self._gone)

    def asked(self, tsn: int, record: Record) -> None:
        """Notes that a chunk was asked for again."""
        if not record.response:
            self._asked.append((tsn, record.entry))

    def left_again(self, tsn: int) -> None:
        """Notes that a chunk has left again."""
        # It may be of an earlier session, or of a Read Response.
        if any(tsn == each for each, _ in self._asked):
            while self._asked.popleft()[0] != tsn:
                pass
        self._release(self._gone if self._abandoned else self._arrived)

    @property
    def _read_again(self) -> Iterable[int]:
        return (entry for _, entry in self._asked)

    @property
    def _next(self) -> int:
        return self._chunks

    def arrived(self, record: Record) -> None:
        """Notes that the peer has acknowledged all chunks of the stream up to this one, the last
        one of a posted message.
        """
        if not self._abandoned:
            self._arrived = record.entry + record.entries
            self._release(self._arrived)

    @property
    def number(self) -> int:
        """The number of the stream."""
        return self._stream.number

    @property
    def repeats(self) -> bool:
        """True if the device can send chunks again."""
        return not (self._failed or self._broken or self._abandoned)

    def closing(self) -> Steps[None]:
        """Frees the ring, in steps, after the device has disabled the stream."""
        self._failed = self.established = True
        while self._held:
            kind, body, wr_id, fields = self._held.popleft()
            super().post(kind, body, wr_id=wr_id, **fields)
        self._set(open=False)  # messages end without credit of the association
        yield from super().closing()


@dataclass(frozen=True)
class _Chunk:
    """A chunk that was not acknowledged cumulatively: its half, its record, and its frame."""

    half: ChunkHalf
    record: Record
    frame: bytes
    length: int  #: octets after the DDP-SSN
    ssn: int
    msn: int


class AssociationSender:
    """The sending side of an association: it gives the device credit, and has lost chunks sent
    again.

    Parameters
    ----------
    association
        The association, which receives.
    path
        The headers of packets to the peer.
    tsn
        The initial TSN of this end.
    window
        The peer's window from its INIT or INIT ACK chunk, in octets.
    mtu
        Octets of the longest IP packet on the path.
    transmit
        Takes frames without FCS that the host has to send: all that the device has made or, where
        frames leave by the device's own port, IP fragments of them and copies.
    clock
        Returns the time in seconds.

    Attributes
    ----------
    mulpdu
        Octets of the longest DDP Segment.
    repeats, copies
        How many chunks have left again: from host memory, and from copies of their frames because
        their stream has ended.
    """

    def __init__(
        self,
        association: KnownAssociation,
        path: SendPath,
        *,
        tsn: int,
        window: int,
        mtu: int,
        transmit: Callable[[bytes], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        instance("an association's path", path, SendPath)
        tsn = integer("tsn", tsn, 0, _TSN - 1, "from 0 to 2**32 - 1")
        window = integer("window", window, 1, _TSN - 1, "from 1 to 2**32 - 1 octets")
        self._path, self._transmit, self._clock = path, transmit, clock
        self.association, self._context = association, association.context
        self._most = self._context.transport.longest_frame
        longest = self._measure(mtu)
        if not self._context.chunks:
            raise UnsupportedDevice(
                "the device sends nothing over SCTP, or the host does not get its frames: build it"
                " with RnicConfig(transmit=True, sctp=True)"
            )
        self._flight = Flight(tsn, window, longest)
        self._chunks: dict[int, _Chunk] = {}  # by TSN, in their order
        self._context.registers.start(
            commands.set_path(
                association.number, path, tsn=tsn, first=association.first, count=association.count
            )
        )
        self._given: object = None
        self.repeats = self.copies = 0
        self._allow()

    def _measure(self, mtu: int) -> int:
        """Takes a path MTU; returns the octets of user data of the longest chunk."""
        path = self._path
        headers = _IP * (1 + path.v6) + _UDP * path.udp + COMMON_HEADER + DATA_HEADER
        longest = (integer("mtu", mtu, 0, 1 << 16) - headers) // 4 * 4
        if longest - SSN < _LEAST:
            raise InvalidRequest(
                f"mtu must be at least {-(-(_LEAST + SSN) // 4) * 4 + headers} octets on this path"
                f" (RFC 5043 section 9), not {mtu}"
            )
        if self._most and mtu > self._most - room_of(path):
            raise InvalidRequest(
                f"mtu must be at most {self._most - room_of(path)} octets, not {mtu}: the port of"
                f" the device takes frames of up to {self._most}"
            )
        self._mtu, self.mulpdu = mtu, min(longest - SSN, LONGEST_BODY)
        return min(longest, LONGEST_BODY + SSN)

    def resize(self, mtu: int) -> None:
        """Takes another path MTU, for the next chunks.

        Chunks that were longer before leave again in IP fragments: they keep their TSNs, and so
        their octets (RFC 9260 section 6.9).
        """
        with self._context.lock:
            self.association.check()
            self._flight.resize(self._measure(mtu))
            for sid in range(self.association.count):
                if self._half(sid) is not None:
                    number = self.association.first + sid
                    self._context.registers.start(commands.set_mulpdu(number, self.mulpdu))
            self._allow()

    def _allow(self) -> None:
        """Gives the device the credit that the association has now."""
        limits = self._flight.limits()
        if limits != self._given:
            self._given = limits
            self._context.registers.start(commands.set_path_limit(self.association.number, *limits))

    # -- sessions ---------------------------------------------------------------------------------

    def open(self, stream: KnownStream) -> ChunkHalf:
        """Gives a stream its sending half, for one session."""
        with self._context.lock:
            stream.check()
            if stream.sending is not None or stream.association is not self.association:
                raise StateError("the stream must be one of the association, without sending half")
            stream.sending = ChunkHalf(stream, self)
            return stream.sending

    def control(self, sid: int, function: Function, private: bytes = b"") -> None:
        """Sends a session control message, after the messages that were posted before.

        Parameters
        ----------
        sid
            The SCTP stream, whose stream has a sending half.
        function
            INITIATE, ACCEPT, REJECT or TERMINATE; or ENHANCED_INITIATE, ENHANCED_ACCEPT or
            ENHANCED_REJECT (RFC 6581 section 7).
        private
            The Private Data, which the peer's ULP gets. With ENHANCED_INITIATE and ENHANCED_ACCEPT
            it begins with IRD and ORD, as ``cm.Enhanced`` encodes them.

        Raises
        ------
        StateError
            The message must not be sent now (RFC 5043 section 6).
        InvalidRequest
            The function is no message, or cannot have this Private Data.
        """
        function = _message(function, private)
        with self._context.lock:
            half = self._half(sid)
            if half is None:
                raise StateError(f"SCTP stream {sid} has no sending half: call open() first")
            if function in INITIATES:
                past = self.association.latest
                self.association.tell(sid, function, tsn=past, outstanding=self._outstanding(sid))
            else:
                self.association.tell(sid, function)
            half.post(Kind.CONTROL, private, rsvdulp=function << 24)
            if function in ACCEPTS:
                half.establish()

    def _half(self, sid: int) -> ChunkHalf | None:
        stream = self._context.streams.get(self.association.first + sid)
        half = stream.sending if stream is not None else None
        return half if isinstance(half, ChunkHalf) else None

    def _outstanding(self, sid: int) -> int:
        """Returns how many chunks of an SCTP stream, of any session, the peer has not
        acknowledged.
        """
        number = self.association.first + sid
        return sum(each.half.number == number for each in self._chunks.values())

    def outstanding(self, tsn: int) -> bool:
        """Returns whether a chunk has left that the peer has not acknowledged cumulatively."""
        return any(number % _TSN == tsn for number in self._chunks)

    def follow(self, sid: int, function: Function) -> None:
        """Notes a session control message of the peer."""
        if function in ACCEPTS and (half := self._half(sid)) is not None:
            half.establish()

    # -- chunks -----------------------------------------------------------------------------------

    def leave(self, frame: SentFpdu) -> None:
        """Takes a frame that the device has sent."""
        record, flight = Record.decode(frame.record), self._flight
        half = self._half(frame.stream - self.association.first)
        if record.repeat:
            self.repeats += 1
            if half is not None:
                half.left_again(frame.sequence)
        else:
            assert half is not None
            if frame.sequence != flight.next % _TSN:
                raise TransportError(
                    f"a chunk left with the TSN {frame.sequence:#010x}, not"
                    f" {flight.next % _TSN:#010x}: reset the device"
                )
            chunk = frame.octets[len(self._path.headers) + COMMON_HEADER :]
            length = int.from_bytes(chunk[2:4], "big")
            data = chunk[DATA_HEADER:length]
            self._chunks[flight.next] = _Chunk(
                half, record, frame.octets, len(data) - SSN, int.from_bytes(data[:SSN], "big"),
                int.from_bytes(data[12:16], "big"),
            )  # fmt: skip
            half.left(record)
            flight.leave(len(data), self._clock())
            self._allow()
        if not (self._most and self._fits(frame.octets)):
            self._pass(frame.octets)

    def _fits(self, frame: bytes) -> bool:
        return len(frame) - room_of(self._path) <= self._mtu

    def _pass(self, frame: bytes) -> None:
        """Passes a frame on, or the fragments of its packet if that is longer than the MTU."""
        if self._fits(frame):
            self._transmit(frame)
            return
        number = self._context.number_packet()
        for each in fragments_of(self._path, frame, self._mtu, number):
            self._transmit(each)

    def receive(self, chunk: bytes) -> None:
        """Takes a chunk of the peer from the exception stream: a SACK chunk, or another one, which
        is ignored.
        """
        instance("a chunk", chunk, bytes)
        if len(chunk) < _FIELDS.size or chunk[0] != _SACK:
            return
        _, length, cumulative, window, count, _ = _FIELDS.unpack_from(chunk)
        if not _FIELDS.size + 4 * count <= length <= len(chunk):
            return
        gaps = [*_GAP.iter_unpack(chunk[_FIELDS.size : _FIELDS.size + 4 * count])]
        with self._context.lock:
            self.association.check()
            if self._flight.acknowledge(cumulative, window, gaps, self._clock()):
                self._release()
                self._send_again()

    def _release(self) -> None:
        """Lets the messages end whose chunks have arrived."""
        last: dict[int, tuple[ChunkHalf, Record]] = {}
        while self._chunks and next(iter(self._chunks)) < self._flight.first:
            chunk = self._chunks.pop(next(iter(self._chunks)))
            if chunk.record.ends and not chunk.record.response:
                last[id(chunk.half)] = chunk.half, chunk.record
        for half, record in last.values():
            half.arrived(record)

    def tick(self) -> float | None:
        """Does the work that is due now; returns the time at which to call again, or None: after a
        chunk has left.
        """
        with self._context.lock:
            self.association.check()
            self._flight.expire(self._clock())
            self._send_again()
            return self._flight.deadline

    def _send_again(self) -> None:
        """Lets chunks leave again that are lost, and gives new credit."""
        for tsn in self._flight.due(self._clock()):
            chunk = self._chunks[tsn]
            record = chunk.record
            if chunk.half.repeats:
                entry = record.entry + (Responder.FIRST if record.response else 0)
                self._context.registers.start(
                    commands.repeat(
                        chunk.half.number, tsn % _TSN, entry=entry, entries=record.entries,
                        offset=record.offset, length=chunk.length, msn=chunk.msn, ssn=chunk.ssn,
                        response=bool(record.response),
                    )
                )  # fmt: skip
                chunk.half.asked(tsn % _TSN, record)
            else:
                # The stream has ended, and the peer still has to get the TSN.
                self.copies += 1
                self._pass(chunk.frame)
        self._allow()


def _message(function: Function, private: bytes) -> Function:
    """Returns the function of a session control message that may have this Private Data."""
    instance("Private Data", private, bytes)
    messages = [each for each in Function if Function.FORGET < each < Function.ABORT]
    if function not in messages:
        raise InvalidRequest(f"function must be one of {messages}, not {shown(function)}")
    function, length = Function(function), len(private)
    if function is Function.TERMINATE and length:
        raise InvalidRequest(
            f"TERMINATE must have no Private Data (RFC 5043 section 5.2.3), not {length} octets"
        )
    if length > MOST_PRIVATE:
        raise InvalidRequest(
            f"Private Data must have at most {MOST_PRIVATE} octets (RFC 5043 section 5.2.3), IRD"
            f" and ORD included, not {length}"
        )
    limits = function in (Function.ENHANCED_INITIATE, Function.ENHANCED_ACCEPT)
    if limits and length < ENHANCED_DATA:
        raise InvalidRequest(
            f"the Private Data of {function.name} must begin with the {ENHANCED_DATA} octets of"
            f" IRD and ORD (RFC 6581 section 9), not have {length}: put cm.Enhanced(...).encode()"
            " before it"
        )
    return function
