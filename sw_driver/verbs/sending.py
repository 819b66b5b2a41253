"""The sending half of a stream: a ring of messages that the device sends as FPDUs."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...hdl.spec import commands, regs
from ...hdl.spec.completion import SentStatus
from ...hdl.spec.send import ENTRY, Flag, Kind, Message, Piece, Record
from ..base.checks import any_integer, flag, instance, integer, message
from ..base.errors import RnicTimeout, TransportError, UnsupportedDevice
from ..transports.memory import Steps, finish
from ..transports.transport import SentFpdu
from .context import PATIENCE, SERVED
from .cq import WC, Opcode, WcStatus
from .known import KnownStream
from .pd import MR, Access
from .responding import Responder

__all__ = ["LONGEST", "MOST", "MULPDU", "Body", "Part", "SendSettings", "SendingHalf"]

#: Base-2 logarithm of the entries of a ring, and where memory is not roomy: enough for the longest
#: message, of 65.
_SIZE, _FEW = 8, 7
#: The longest message whose octets are in the ring itself: it has 8 entries, as many as the device
#: reads in a stream's turn at first.
_INLINE = 32 + 7 * ENTRY
#: Parts of regions that a message may have.
MOST = 255
#: Octets of the region from which longer ones are sent that the caller has in none. Messages that
#: are longer than the region have one of their own, which costs a revocation. When the messages in
#: the ring have this many octets together, others wait on the host: a Terminate leaves after those
#: in the ring. The second number is for memory that is not roomy.
_ROOM, _LITTLE = 1 << 18, 1 << 13
#: Octets that the device may send before the owner of the LLP takes them, by default; the MULPDUs
#: that these are at least; and all that it has.
_CREDIT, _LEAST, _ALL = 1 << 18, 4, 1 << 30
#: RFC 5044 section 3: "between 128 octets and 64768 octets, inclusive".
MULPDU = range(128, 64768 + 1)
#: A segment that is longer than the octets of a turn would keep other streams waiting.
LONGEST = 1 << 14
#: Untagged queues of RFC 5041 begin with this MSN.
_FIRST = 1
#: The ``wr_id`` of a message that nobody posted, see :meth:`SendingHalf._passing`.
_NOBODY = object()
#: Words from an MPA marker to the next one.
_SPACING = 512 // 4
#: The octets of an FPDU that hold its length and MSN, and perhaps a marker.
_HEADERS = 20
_STATUS = {
    SentStatus.SUCCESS: WcStatus.SUCCESS,
    SentStatus.FAILED: WcStatus.NOT_READ,
    SentStatus.FLUSHED: WcStatus.FLUSHED,
}


class SendSettings(NamedTuple):
    """The settings of a sending half over MPA.

    Parameters
    ----------
    mulpdu
        Octets of the longest DDP Segment, at least 128; the device sends segments of up to 16,384.
    crc, markers
        The settings that MPA's start-up agreed on for the sending direction.
    keeps
        Whether the LLP keeps a copy of octets that the peer may not have, as a socket does. Else
        it asks for FPDUs again by :meth:`SendingHalf.repeat`, and messages end when it says that
        they have arrived, by :meth:`SendingHalf.acknowledge`.
    ahead
        Octets that the device may send before the LLP's owner takes them; at least four times the
        MULPDU are used. From 1 to 2**30.
    """

    mulpdu: int
    crc: bool
    markers: bool
    keeps: bool = True
    ahead: int = _CREDIT

    def checked(self) -> SendSettings:
        """Returns the settings as ints and bools; raises where no sending half can have one."""
        return SendSettings(
            integer("mulpdu", self.mulpdu, MULPDU[0], math.inf, f"at least {MULPDU[0]}"),
            flag("crc", self.crc),
            flag("markers", self.markers),
            flag("keeps", self.keeps),
            integer("ahead", self.ahead, 1, _ALL),
        )


class Part(NamedTuple):
    """A part of a region: ``length`` octets from ``offset`` on."""

    region: MR
    offset: int
    length: int

    @property
    def octets(self) -> bytes:
        """The octets as the device has written them."""
        return self.region.read(self.length, self.offset)

    @property
    def piece(self) -> Piece:
        instance("a part's region", self.region, MR)
        # A part of no octets may lie after the last Tagged Offset.
        to = (self.region.to + any_integer("a part's offset", self.offset)) % (1 << 64)
        return Piece(self.region.stag, any_integer("a part's length", self.length), to)


#: A message as it is posted: its octets, or where they are.
Body = bytes | Part | list[Part] | Piece


@dataclass(frozen=True)
class _Left:
    """An FPDU that has left and may be asked for again, from ``position`` to ``end``."""

    position: int
    end: int
    record: Record
    length: int  #: of the ULPDU
    msn: int

    @classmethod
    def of(cls, position: int, octets: bytes, record: Record, markers: bool) -> _Left:
        """Returns the FPDU that has left as ``octets`` at ``position``."""
        begin = octets[:_HEADERS]
        if markers:
            at = -position % (4 * _SPACING)
            begin = begin[:at] + begin[at + 4 :]
        length, msn = (int.from_bytes(begin[at:end], "big") for at, end in ((0, 2), (12, 16)))
        return cls(position, position + len(octets), record, length, msn)


@dataclass
class _Post:
    """A message that has not ended.

    ``copy`` is a region of its own with its octets, ``begin`` and ``end`` the indices of its
    entries in the ring and after them, and ``taken`` the position after its octets in the queue's
    region.
    """

    kind: Kind
    body: bytes | tuple[Piece, ...]
    fields: dict[str, Any]
    wr_id: Any
    copy: MR | None = None
    flags: Flag = Flag.SIGNALED
    begin: int = 0
    end: int = 0
    taken: int = 0

    @property
    def length(self) -> int:
        body = self.body
        return len(body) if isinstance(body, bytes) else sum(piece.length for piece in body)


class SendingHalf:
    """Sends DDP messages on a stream, in the order of their posts.

    Each message has a completion with :attr:`~.cq.Opcode.SENT` in the stream's CQ. Messages that
    the ring has no room for wait on the host. The device sends no more than the LLP's owner takes,
    and some octets ahead: a peer that takes nothing costs no further memory.

    Parameters
    ----------
    stream, settings
        The stream, which receives, and the settings of this half.
    leave
        Takes the FPDUs that the device has sent.
    """

    def __init__(
        self, stream: KnownStream, settings: SendSettings, leave: Callable[[list[bytes]], object]
    ) -> None:
        self._stream, self._settings, self._leave = stream, settings, leave
        self._context = context = stream.pd.context
        self._mulpdu = min(settings.mulpdu, LONGEST)
        self._ahead = max(settings.ahead, _LEAST * self._mulpdu)
        self._position = 0  # of the next FPDU in the LLP stream
        self._taken = self._limit = 0  # octets that the owner has taken, and that may leave
        self._producer = self._done = 0
        self._posted: deque[_Post] = deque()  # in the ring
        self._waiting: deque[_Post] = deque()
        self._octets = 0  # of the messages in the ring
        self._region: MR | None = None  # with copies of messages, one after the other
        self._begin = self._end = 0  # positions of those in the ring
        self._failed = self._broken = False
        self._fault = 0  # the index up to which entries have failed
        # Of an LLP without copies: FPDUs that have left, and their message's end; the positions of
        # those that were asked for again, and who takes them; the index after the last message that
        # left, and after those that have arrived.
        self._left: deque[_Left] = deque()
        self._again: deque[tuple[_Left, Callable[[int, bytes], object]]] = deque()
        self._gone = self._arrived = self._released = 0
        # No message waits for its release any more. FPDUs that may be asked for again even when the
        # stream has ended: the host keeps them, by their positions.
        self._abandoned = False
        self._kept: dict[int, bytes] | None = None
        #: Answers Read Requests, after :meth:`answer_reads`.
        self.responder: Responder | None = None
        roomy = context.transport.roomy
        self._size, self._room = (_SIZE, _ROOM) if roomy else (_FEW, _LITTLE)
        self._memory = context.allocated(ENTRY << self._size)
        (extent,) = self._memory.extents
        number = stream.number
        self._allow(self._ahead)
        self._open()
        for command in (
            commands.set_mulpdu(number, self._mulpdu),
            *(commands.set_sent_msn(number, qn, _FIRST) for qn in sorted(stream.queues)),
            commands.set_send_ring(
                number, extent.address, self._size, cq=stream.cq.ring.number,
                repeats=not settings.keeps,
            ),
        ):  # fmt: skip
            context.registers.start(command)

    def _open(self) -> None:
        """Lets segments leave, from the position on."""
        crc, markers = self._settings.crc, self._settings.markers
        self._context.registers.start(
            commands.set_sending(
                self._stream.number, sequence=self._position % (1 << 32),
                after=(self._position // 4 - 1) % _SPACING, crc=crc, markers=markers, limited=True,
            )
        )  # fmt: skip
        self._failed = False

    def _allow(self, ahead: int) -> None:
        """Lets octets leave up to ``ahead`` after those that the owner has taken."""
        self._limit = self._taken + ahead
        self._context.registers.start(commands.set_limit(self._stream.number, self._limit))

    @property
    def outstanding(self) -> int:
        """The position of the first FPDU that may be asked for again."""
        return self._left[0].position if self._left else self._position

    def take(self, count: int) -> None:
        """Notes that the owner has taken ``count`` octets more of those that left."""
        self._taken += count
        if self._limit - self._taken < self._ahead // 2:
            self._allow(self._ahead)
            self._stream.cq.wake()  # the device may have work again

    @property
    def credit(self) -> int:
        """Octets that may leave after those that have left; less than 0: too many have left."""
        return self._limit - self._position

    def answer_reads(self, ird: int) -> None:
        """Does the work of :meth:`~.stream.Stream.answer_reads`, which checks that it may."""
        self.responder = Responder(self._stream, ird, repeats=not self._settings.keeps)

    def bound_reads(self, ord: int) -> None:
        """Lets the device take Read Responses only as they were asked for, and send no request
        while ``ord`` Reads are outstanding. Over MPA alone.
        """
        if self._stream.association is not None:
            raise UnsupportedDevice("the device does not bound Reads over SCTP: the host has to")
        self._context.receiving("take Read Responses")
        ord = integer("ord", ord, 0, self._context.reads)
        self._context.registers.start(commands.set_reads(self._stream.number, ord))

    def answering(self, qn: int) -> Responder | None:
        """Returns the responder, if the device itself answers the messages of a queue."""
        return self.responder if qn == Responder.QN else None

    @property
    def busy(self) -> bool:
        """True if a message was posted, or a Read asked for, that has not ended."""
        return bool(self._posted or self._waiting) or self._answers()

    def _answers(self) -> bool:
        """Returns whether the device has a Read Request that it has not answered whole."""
        if self.responder is None or self._failed:
            return False
        state = self._state()
        sequence = self._context.registers.read("RESPONSE_SEQUENCE")
        return bool(state["open"]) and (
            self.responder.asked() != state["answered"] or sequence != self._next % (1 << 32)
        )

    @property
    def _next(self) -> int:
        """The LLP sequence number of the next segment that the host sees leave."""
        return self._position

    def _state(self) -> dict[str, int]:
        registers = self._context.registers
        registers.start([commands.Write("SEND_STREAM", self._stream.number)])
        return regs.BY_NAME["SEND_STATE"].unpack(registers.read("SEND_STATE"))

    # -- messages ---------------------------------------------------------------------------------

    def post(
        self, kind: Kind, body: Body, *, wr_id: object = None, fence: int = False, **fields: int
    ) -> None:
        """Posts a message.

        Parameters
        ----------
        kind, fields
            As :class:`~....hdl.spec.send.Message` declares.
        body
            Its octets, which are copied; or a part of a region, or a list of up to 255 parts, which
            the device reads until the completion. READ: the sink.
        wr_id
            Any value; the completion contains it.
        fence
            The message leaves after all earlier Reads have ended, once :meth:`bound_reads` was
            called. It has no effect over SCTP.

        Raises
        ------
        InvalidRequest
            There is no such kind or field on this stream, a field is too large, the message has
            2**32 octets or more, or a READ has no sink.
        """
        post = self._checked(kind, body, fields)
        post.wr_id = wr_id
        if flag("fence", fence):
            post.flags |= Flag.FENCE
        octets = post.body
        if isinstance(octets, bytes) and len(octets) > self._room:
            post.copy = self._registered(bytearray(octets))
            post.body = (Piece(post.copy.stag, len(octets), 0),)
        elif isinstance(octets, bytes) and len(octets) > _INLINE and self._region is None:
            self._region = self._registered(bytearray(self._room))
        self._waiting.append(post)
        self._write()

    def _checked(self, kind: Kind, body: Body, fields: dict[str, int]) -> _Post:
        """Returns a message, with its octets or where they are; raises if it cannot be sent."""
        instance(
            "a message's body", body, bytes | Part | list | Piece,
            called="bytes object, a Part, a list of Parts or a Piece",
        )  # fmt: skip
        if kind is Kind.READ:
            self._context.receiving("take the response to an RDMA Read")
        if isinstance(body, Part):
            body = [body]
        octets: bytes | tuple[Piece, ...] = b""
        if isinstance(body, list):
            for part in body:
                instance("a part of a message's body", part, Part)
            pieces = tuple(part.piece for part in body)
            octets = pieces if any(piece.length for piece in pieces) else b""
        else:
            octets = (body,) if isinstance(body, Piece) else body
        tried = octets if isinstance(octets, tuple) else ()
        if isinstance(octets, bytes) and octets and kind is not Kind.READ:
            tried = (Piece(0, len(octets), 0),)  # where they will lie is not known yet
        made, _ = message(
            kind, Flag(0), fields, queues=self._stream.queues,
            sctp=self._stream.association is not None, pieces=tried,
        )  # fmt: skip
        values = {name: getattr(made, name) for name in fields}
        return _Post(kind, made.pieces if isinstance(octets, tuple) else octets, values, None)

    def _registered(self, octets: bytearray) -> MR:
        return self._stream.pd.register(octets, Access.LOCAL_READ)

    def _write(self) -> None:
        """Writes messages to the ring as far as there is room, and rings the doorbell; after a
        failure they end instead.
        """
        if self._failed and not self._posted:
            self._flush()
        before = self._producer
        while self._waiting and not self._failed:
            post = self._waiting[0]
            if (entries := self._entries(post)) is None:
                break
            self._put(self._waiting.popleft(), entries)
        if self._producer != before:
            self._ring()

    def _put(self, post: _Post, entries: bytes) -> None:
        """Writes a message to the ring, which has room for it."""
        post.begin = self._producer
        for at in range(0, len(entries), ENTRY):
            slot = self._producer % (1 << self._size) * ENTRY
            self._memory.view[slot : slot + ENTRY] = entries[at : at + ENTRY]
            self._memory.push(slot, ENTRY)
            self._producer += 1
        post.end = self._producer
        self._octets += post.length
        self._posted.append(post)

    def _ring(self) -> None:
        """Rings the doorbell."""
        self._context.registers.start(commands.ring_send(self._stream.number, self._producer))

    def _entries(self, post: _Post) -> bytes | None:
        """Returns the entries of a message, or None if there is no room for them now."""
        room = (1 << self._size) - (self._producer - self._done)
        if not room or self._octets >= self._room:
            return None
        body = post.body
        if isinstance(body, bytes) and len(body) <= _INLINE:
            flags = post.flags | Flag.INLINE
            entries = Message(post.kind, flags, octets=body, **post.fields).encode()
            return entries if len(entries) <= room * ENTRY else None
        pieces = self._copied(post, body) if isinstance(body, bytes) else body
        if pieces is None:
            return None
        entries = Message(post.kind, post.flags, pieces, **post.fields).encode()
        return entries if len(entries) <= room * ENTRY else None

    def _copied(self, post: _Post, octets: bytes) -> tuple[Piece] | None:
        """Copies a message's octets to the region; returns None if there is no room now."""
        assert self._region is not None
        if self._begin == self._end:
            self._begin = self._end = 0
        start = self._end
        if start % self._room + len(octets) > self._room:
            start += -start % self._room
        if start + len(octets) - self._begin > self._room:
            return None
        self._end = post.taken = start + len(octets)
        self._region.write(octets, start % self._room)
        return (Piece(self._region.stag, len(octets), start % self._room),)

    # -- reports of the device --------------------------------------------------------------------

    def leave(self, fpdu: SentFpdu) -> None:
        """Takes an FPDU that the device has sent."""
        octets, expected = fpdu.octets, self._position
        record = None
        if not self._settings.keeps:
            record = Record.decode(fpdu.record)
            if record.repeat:
                expected = self._due(fpdu.sequence)
        if fpdu.sequence != expected % (1 << 32):
            raise TransportError(
                f"an FPDU of stream {self._stream.number} left with the LLP sequence number"
                f" {fpdu.sequence}, not {expected % (1 << 32)}: reset the device"
            )
        if record is not None and record.repeat:
            self._leave_again(octets)
            return
        self._position += len(octets)
        if record is not None:
            self._left.append(_Left.of(expected, octets, record, self._settings.markers))
            if record.ends and not record.response:
                self._gone = record.entry + record.entries
            if self._kept is not None:
                self._kept[expected] = octets
        self._leave([octets])
        if self._abandoned:
            self._release(self._gone)

    # -- an LLP without copies --------------------------------------------------------------------

    def acknowledge(self, position: int) -> None:
        """Notes that the peer has received all octets before a position in the LLP stream."""
        arrived = self._arrived
        while self._left and self._left[0].end <= position:
            record = self._left.popleft().record
            if record.ends and not record.response:
                arrived = record.entry + record.entries
        # The device gets no word of a stream that has ended: its number may be another one's.
        if arrived != self._arrived and not self._abandoned:
            self._release(arrived)
        self._arrived = arrived

    def _release(self, index: int) -> None:
        """Lets the messages end whose entries are before an index.

        Before the half is abandoned, a message does not end while one of its FPDUs is on its way
        again: the device reads its entries, its octets and their STags once more, although the
        peer's acknowledgment has come meanwhile.
        """
        if not self._abandoned:
            ahead = (index, *self._read_again)
            index = min(ahead, key=lambda each: (each - self._released) % (1 << 16))
        if index != self._released:
            self._released = index
            self._context.registers.start(commands.release(self._stream.number, index))

    @property
    def _read_again(self) -> Iterable[int]:
        """The first entries of the messages of which FPDUs are on their way again."""
        return (fpdu.record.entry for fpdu, _ in self._again if not fpdu.record.response)

    def repeat(self, position: int, take: Callable[[int, bytes], object]) -> bool:
        """Asks for the FPDU again that has the octet at a position in the LLP stream.

        ``take`` gets its position and its octets once it has left. It does not come if the device
        cannot read its octets any more, which ends the stream. Returns False if no FPDU is asked
        for: the peer has received that octet, or it has not left, or the stream has ended and
        nobody keeps it.
        """
        if (
            self._broken
            or (self._abandoned and self._kept is None)
            or not self._left
            or position < self._left[0].position
        ):
            return False
        at = bisect_right(self._left, position, key=lambda fpdu: fpdu.position) - 1
        fpdu = self._left[at]
        if position >= fpdu.end:
            return False
        if self._kept is None:
            self._ask(fpdu, take)
        elif octets := self._kept.get(fpdu.position):
            take(fpdu.position, octets)
        else:
            return False
        return True

    def _ask(self, fpdu: _Left, take: Callable[[int, bytes], object]) -> None:
        record = fpdu.record
        entry = record.entry + (Responder.FIRST if record.response else 0)
        self._again.append((fpdu, take))
        self._context.registers.start(
            commands.repeat(
                self._stream.number, fpdu.position, entry=entry, entries=record.entries,
                offset=record.offset, length=fpdu.length, msn=fpdu.msn,
                response=bool(record.response),
            )
        )  # fmt: skip

    def _due(self, sequence: int) -> int:
        """Returns the position of the FPDU that leaves again next. The device gives up those of
        Read Responses that the peer must have received, because it has asked for more.
        """
        while self._again and self._again[0][0].position % (1 << 32) != sequence:
            self._again.popleft()
        return self._again[0][0].position if self._again else self._position

    def _leave_again(self, octets: bytes) -> None:
        fpdu, take = self._again.popleft()
        if len(octets) != fpdu.end - fpdu.position:
            raise TransportError(
                f"an FPDU of stream {self._stream.number} has {len(octets)} octets, where it had"
                f" {fpdu.end - fpdu.position} before: do not change the send ring"
            )
        take(fpdu.position, octets)
        self._release(self._gone if self._abandoned else self._arrived)

    def ended(self, status: SentStatus, done: int) -> None:
        """Ends the messages whose entries are before the index ``done``, modulo 2**16."""
        if self._broken:
            return  # all messages have ended
        count = (done - self._done) % (1 << 16)
        if status is SentStatus.FAILED:
            self._failed = True
            if self._state()["lost"]:
                # The device reads the ring no more, and reports only messages in flight.
                self._broken, count = True, self._producer - self._done
            elif not count and self.responder is not None:
                # A Read Response has failed.
                self.responder.refused(self._state()["answered"])
        self._done += count
        if status is SentStatus.FAILED:
            self._fault = self._done
        while self._posted and self._posted[0].end <= self._done:
            post = self._posted.popleft()
            self._octets -= post.length
            self._begin = post.taken or self._begin
            lost = self._abandoned and (self._arrived - post.end) % (1 << 16) >= 1 << 15
            # If the device fails a message before it has read all entries, it flushes the others.
            failed = post.begin < self._fault < post.end
            self._report(
                post, WcStatus.FLUSHED if lost else WcStatus.NOT_READ if failed else _STATUS[status]
            )
        self._write()

    def _report(self, post: _Post, status: WcStatus) -> None:
        if post.wr_id is _NOBODY:
            return
        if post.copy is not None:
            post.copy.close()
        cq = self._stream.cq
        cq.put(WC(self._stream, status, Opcode.SENT, post.wr_id, post.length))

    def _flush(self) -> None:
        """Ends the messages that wait for the ring."""
        while self._waiting:
            self._report(self._waiting.popleft(), WcStatus.FLUSHED)

    # -- the end ----------------------------------------------------------------------------------

    def last(self, kind: Kind, body: bytes, **fields: int) -> None:
        """Sends a message after those in the ring, even if one of these has failed, and waits until
        it has left. Other messages are flushed. A stream that was stopped sends nothing more.
        """
        self._flush()
        if self.responder is not None:
            self.responder.stop()
        self._allow(_ALL)
        if not self._settings.keeps:
            finish(self._keeping())
        finish(self._draining())
        if self._broken:
            return
        if self._failed:
            finish(self._passing())
            self._open()
        self.post(kind, body, **fields)
        finish(self._draining())

    def _abandon(self) -> None:
        """Lets messages end that have left, whether or not they have arrived."""
        self._abandoned = True
        self._release(self._gone)

    def _keeping(self) -> Steps[None]:
        """Copies, in steps, the FPDUs that the peer may not have received, and those that will
        leave: the last message arrives only after them.
        """
        self._abandon()
        yield from self._draining()
        self._kept = {}
        for fpdu in self._left:
            self._ask(fpdu, self._kept.__setitem__)
        yield from self._settling()

    def _settling(self) -> Steps[None]:
        """Waits in steps until no FPDU is on its way again. Some may not come, see :meth:`_due`."""
        deadline = time.monotonic() + PATIENCE
        while self._state()["repeating"]:
            if time.monotonic() > deadline:
                raise self._late()
            self._context.look(SERVED)
            yield

    def _late(self) -> RnicTimeout:
        return RnicTimeout(
            f"the device does not send the messages of stream {self._stream.number}: reset it"
        )

    def _draining(self) -> Steps[None]:
        """Waits in steps until all messages in the ring have ended."""
        deadline, position = time.monotonic() + PATIENCE, self._position
        while self._posted:
            if position != self._position:
                deadline, position = time.monotonic() + PATIENCE, self._position
            elif time.monotonic() > deadline:
                raise self._late()
            self._context.look(SERVED)
            yield

    def _passing(self) -> Steps[None]:
        """Waits in steps until all Read Responses have ended, after the half has failed or the
        stream was disabled.

        A message that is posted now ends after them, and does not leave.
        """
        if self.responder is not None and not self._broken:
            message = Message(Kind.TAGGED, Flag.SIGNALED | Flag.INLINE)
            self._put(_Post(Kind.TAGGED, b"", {}, _NOBODY), message.encode())
            self._ring()
            yield from self._draining()

    def closing(self) -> Steps[None]:
        """Frees the ring, in steps, after the device has disabled the stream. Messages that have
        not left are flushed.
        """
        self._failed = True
        if self.responder is not None:
            self.responder.stop()
        self._allow(_ALL)
        if not self._settings.keeps:
            self._abandon()
            yield from self._settling()
        yield from self._draining()
        yield from self._passing()
        self._flush()
        if self.responder is not None:
            self.responder.close()
        if self._region is not None:
            self._region.close()
        self._memory.close()
