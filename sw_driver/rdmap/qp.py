"""Queue pairs: RDMAP's operations (RFC 5040 section 5) and its errors (section 7)."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

from ...hdl.spec.ddp import MESSAGE_TOO_LONG, NO_BUFFER
from ...hdl.spec.send import Kind, Piece
from ..base.buffers import copy_of, octets_of
from ..base.checks import any_integer, flag, instance, integer, shown
from ..base.errors import ErrorEvent, InvalidRequest, StateError, StreamError
from ..verbs import cq as ddp
from ..verbs.cq import WcStatus
from ..verbs.pd import MR, PD, Access
from ..verbs.sending import MOST, Body, Part, SendingHalf, SendSettings
from ..verbs.stream import Stream, part_of
from . import wire
from .cq import CQ, WC, Opcode
from .known import KnownQP
from .wire import Layer, Message, Queue, ReadRequest, Terminate

_REMOTE = Access.REMOTE_WRITE | Access.REMOTE_READ
_OPCODE = {
    Opcode.SEND: Message.SEND,
    Opcode.SEND_WITH_INV: Message.SEND_INVALIDATE,
    Opcode.RDMA_WRITE: Message.WRITE,
    Opcode.RDMA_READ: Message.READ_REQUEST,
}

#: The ``wr_id`` of the buffer for the Send that ends a peer's start-up.
_RTR = object()
#: The ``wr_id`` of the last report of a stream that has ended, after those of its messages.
_END = object()
#: The owner of a Read Response, which is no request.
_ANSWER = object()


@runtime_checkable
class Source(Protocol):
    """A Data Source with its LLP: turns DDP messages into the FPDUs that carry them."""

    def tagged(self, stag: int, to: int, message: bytes, *, rsvdulp: int) -> list[bytes]:
        """Returns the FPDUs of a Tagged Message."""

    def untagged(self, qn: int, message: bytes, *, rsvdulp: int) -> list[bytes]:
        """Returns the FPDUs of an Untagged Message, with the queue's next MSN."""


class QPState(Enum):
    """The state of a queue pair."""

    RTS = auto()  #: ready to send; it receives too
    ERR = auto()  #: terminated by either side, or disconnected
    CLOSED = auto()


@dataclass
class _Request:
    """A send request."""

    opcode: Opcode
    wr_id: Any
    message: bytes | list[Part]
    length: int
    stag: int = 0
    to: int = 0
    control: int = 0
    sink: MR | None = None  #: the region that a Read writes
    sink_stag: int = 0  #: the STag that the response to a Read names
    fence: bool = False  #: whether it waits for all earlier Reads
    done: bool = False
    status: WcStatus = WcStatus.SUCCESS  #: the outcome, valid once ``done``
    told: bool = True  #: whether the request gives a completion


class _Refused(Exception):
    """The peer's message is invalid; ``terminate`` is the Terminate that answers it."""

    def __init__(self, error: tuple[int, int], message: ddp.WC, request: bytes = b"") -> None:
        header = b""
        if request:
            # A Read Request is one segment, so its header can be rebuilt, except for reserved bits.
            header = bytes([0x41]) + message.rsvdulp.to_bytes(5, "big")
            header += b"".join(n.to_bytes(4, "big") for n in (message.qn, message.msn, 0))
        self.terminate = Terminate(
            Layer.RDMA, *error, len(header + request) if request else None, header, request
        )


class QP(KnownQP):
    """A queue pair with a DDP Stream of its own, in the full operation phase of MPA.

    :meth:`data_to_send` returns the octets to send. The peer's messages come through the device,
    and are processed when the CQ is polled. All send requests complete in the order of their posts
    (RFC 5040 section 5.5).

    Parameters
    ----------
    pd, cq
        The protection domain, and the queue that gets the completions.
    source
        The Data Source that makes the octets to send; or the settings with which the device makes
        them, if it sends.
    crc, markers
        The settings that MPA's start-up agreed on for the receiving direction.
    ird, ord
        How many RDMA Reads the peer may have outstanding, and how many this side may.

    Attributes
    ----------
    stream
        Its DDP Stream.
    sent, received
        The Terminate that ended the queue pair, by the side that sent it; or None.
    half_closed
        Whether the peer has closed its half of the connection.
    """

    def __init__(
        self,
        pd: PD,
        cq: CQ,
        source: Source | SendSettings,
        *,
        crc: bool = True,
        markers: bool = False,
        ird: int = 16,
        ord: int = 16,
    ) -> None:
        order = "QP(pd, cq, source)"
        instance("a queue pair's protection domain", pd, PD, order)
        instance("a queue pair's completion queue", cq, CQ, f"{order}, with the CQ of RDMAP")
        if isinstance(source, SendSettings):
            source = source.checked()
        else:
            instance("a queue pair's source", source, Source, order)
        pd.context.receiving("carry RDMAP, which needs both directions")
        self.ird = integer("ird", ird, 0, pd.context.capabilities.queue)
        self.ord = integer("ord", ord, 0, (1 << 14) - 1)
        self.context, self.pd, self.cq, self.source = pd.context, pd, cq, source
        self.state = QPState.RTS
        self.sent: Terminate | None = None
        self.received: Terminate | None = None
        self.half_closed = False
        self._shut = False  # whether this side has asked for a graceful teardown
        self._out: list[bytes] = []
        self._repeated: list[tuple[int, bytes]] = []
        self._half: SendingHalf | None = None  # also after the stream's end
        #: Called by any thread, with the context locked, when there are octets to send, and when
        #: the queue pair has ended.
        self.notify: Callable[[], object] = ddp.nobody
        self._advice = ""  # what the user can do about the error
        self._requests: deque[_Request] = deque()  # incomplete requests, in the order of posts
        self._unsent: deque[_Request] = deque()
        self._reads: deque[_Request] = deque()  # Reads that wait for their responses
        self._most = self.ord  # of these, as far as the device has slots for them
        self._answered = 0  # Read Requests whose answers were sent
        self.stream = Stream(pd, cq.messages, crc=crc, markers=markers, queues=list(Queue))
        cq.qps[self.stream] = self
        try:
            if isinstance(source, SendSettings):
                self._half = self.stream.send_by(source, self._send)
                if self.context.reads:
                    self._most = min(self.ord, self.context.reads)
                    self._half.bound_reads(max(self._most, 1))  # one for a Read of the start-up
            if self.stream.sending is not None and self.context.responds and ird:
                self.stream.answer_reads(ird)
            else:
                for _ in range(ird):
                    self._expect(Queue.READ_REQUEST, ReadRequest.SIZE)
            self._expect(Queue.TERMINATE, Terminate.LONGEST)
        except BaseException:
            self.close()
            raise

    def _expect(self, queue: Queue, length: int) -> None:
        """Posts a buffer for a message that RDMAP itself consumes."""
        buffer = bytearray(length)
        self.stream.post_recv(buffer, queue, wr_id=buffer)

    # -- requests ---------------------------------------------------------------------------------

    def post_recv(
        self, buffer: object, *, wr_id: object = None, offset: int = 0, length: int | None = None
    ) -> None:
        """Posts a buffer for a Send, as :meth:`~..verbs.stream.Stream.post_recv` does."""
        with self.context.lock:
            self._check()
            self.stream.post_recv(buffer, wr_id=wr_id, offset=offset, length=length)

    def post_send(
        self,
        opcode: Opcode,
        buffer: Any = None,
        *,
        wr_id: object = None,
        stag: int = 0,
        to: int = 0,
        solicited: bool = False,
        fence: bool = False,
        offset: int = 0,
        length: int | None = None,
    ) -> None:
        """Posts a request.

        Parameters
        ----------
        opcode
            The operation.
        buffer
            The message, which is copied; or a region with the message, or a list of up to 255 parts
            of regions, each a Part, which stay as they are until the completion. RDMA_READ: the
            buffer that the response is written to, any buffer that could be registered; the device
            may write it until the completion. None: no octets.
        wr_id
            Any value; the completion contains it.
        stag, to
            RDMA_WRITE, RDMA_READ: the peer's Steering Tag and Tagged Offset. SEND_WITH_INV: the
            Steering Tag that the peer shall invalidate.
        solicited
            SEND, SEND_WITH_INV: the peer shall get an event.
        fence
            The request leaves after all earlier Reads are complete (RFC 5040 section 5.5).
        offset, length
            The part of a region; by default all of it.
        """
        if not isinstance(opcode, Opcode) or opcode not in _OPCODE:
            raise InvalidRequest(f"opcode must be one of {[*_OPCODE]}, not {shown(opcode)}")
        sends = opcode in (Opcode.SEND, Opcode.SEND_WITH_INV)
        if flag("solicited", solicited) and not sends:
            raise InvalidRequest("only a Send can be solicited")
        rule = "a 32-bit Steering Tag (for SEND: 0)"
        stag = integer("stag", stag, 0, 0 if opcode is Opcode.SEND else (1 << 32) - 1, rule)
        to = any_integer("to", to)
        message: bytes | list[Part] = b""
        sink = None
        with self.context.lock:
            self._check_sending()
            if opcode is Opcode.RDMA_READ:
                if self.half_closed:
                    raise StateError("the peer has closed its half: no Read Response can come")
                if not self.ord:
                    raise InvalidRequest("an RDMA Read must not be posted, because ORD is 0")
                length = 0 if buffer is None else len(octets_of(buffer))
            elif isinstance(buffer, MR):
                message = [self._part(buffer, offset, length)]
                length = message[0].length
            elif isinstance(buffer, list):
                message = self._parts(buffer)
                length = sum(part.length for part in message)
            else:
                message = b"" if buffer is None else copy_of(buffer)
                length = len(message)
            if length >= 1 << 32 or not 0 <= to <= (1 << 64) - length:
                raise InvalidRequest(
                    f"{length} octets at TO {to!r} must be less than 2**32 and end by TO 2**64"
                )
            if opcode is Opcode.RDMA_READ and length:
                # Section 5.2: the Data Sink Tagged Buffer, for this stream and this read alone.
                sink = self.pd.register(buffer, Access.REMOTE_WRITE, stream=self.stream)
            kind = _OPCODE[opcode]
            if sends:
                kind = wire.SENDS[opcode is Opcode.SEND_WITH_INV, bool(solicited)]
            request = _Request(
                opcode, wr_id, message, length, stag, to, wire.control(kind), sink,
                sink.stag if sink else 0, flag("fence", fence),
            )  # fmt: skip
            self._requests.append(request)
            self._unsent.append(request)
            self._transmit()

    def _parts(self, parts: list[Part]) -> list[Part]:
        """Returns the parts of a message, after checking them."""
        if len(parts) > MOST:
            raise InvalidRequest(f"a message has at most {MOST} parts, not {len(parts)}")
        for part in parts:
            instance("a part of a message", part, Part)
            instance("the region of a part", part.region, MR)
        return [self._part(*part) for part in parts]

    def _part(self, region: MR, offset: int, length: int | None) -> Part:
        """Returns a part of a region from which a message is sent."""
        region.check()
        if region.pd is not self.pd:
            raise InvalidRequest("a region to send from must belong to the queue pair's domain")
        return Part(region, *part_of(region.length, offset, length))

    def send_rtr(self, opcode: Opcode, stag: int = 0) -> None:
        """Sends a message of no octets, as the sign that this side is ready to receive.

        This is the first message after MPA's start-up (RFC 6581 section 9.2). It gives no
        completion.

        Parameters
        ----------
        opcode
            SEND, RDMA_WRITE or RDMA_READ.
        stag
            RDMA_WRITE, RDMA_READ: the Steering Tag that the message names; a Read names it as
            source and as sink.
        """
        with self.context.lock:
            self._check_sending()
            names = 0 if opcode is Opcode.SEND else stag
            request = _Request(
                opcode, None, b"", 0, names, control=wire.control(_OPCODE[opcode]),
                sink_stag=names, told=False,
            )  # fmt: skip
            self._requests.append(request)
            self._unsent.append(request)
            self._transmit()

    def expect_rtr(self) -> None:
        """Posts a buffer for the peer's ready-to-receive Send, as the first message."""
        self.stream.post_recv(None, Queue.SEND, wr_id=_RTR)

    def _transmit(self) -> None:
        """Sends requests in order, as far as at most ORD Reads are outstanding, and none before a
        fence.
        """
        while self._unsent:
            request = self._unsent[0]
            if request.fence and self._reads:
                return
            if request.opcode is Opcode.RDMA_READ:
                # A Read of the start-up does not count: the responder has room for it.
                if len(self._reads) >= self._most and request.told:
                    return
                self._reads.append(request)
                sink_to = request.sink.to if request.sink else 0
                sink = Piece(request.sink_stag, request.length, sink_to)
                self._post(
                    Kind.READ, sink, request, rsvdulp=request.control << 32, stag=request.stag,
                    to=request.to,
                )  # fmt: skip
            elif request.opcode is Opcode.RDMA_WRITE:
                self._tagged(request.stag, request.to, request.message, request.control, request)
            else:
                rsvdulp = request.control << 32 | request.stag
                self._untagged(Queue.SEND, request.message, rsvdulp, request)
            self._unsent.popleft()
        self._complete()

    def _tagged(
        self, stag: int, to: int, message: bytes | list[Part], control: int, owner: object
    ) -> None:
        self._post(Kind.TAGGED, message, owner, rsvdulp=control << 32, stag=stag, to=to)

    def _untagged(
        self, queue: Queue, message: bytes | list[Part], rsvdulp: int, owner: object
    ) -> None:
        self._post(Kind.UNTAGGED, message, owner, rsvdulp=rsvdulp, qn=queue)

    def _post(self, kind: Kind, body: Body, owner: object, *, rsvdulp: int, **fields: int) -> None:
        """Sends a message of a request, or of another owner: by the device, or by the host."""
        if self.stream.sending is not None:
            self.stream.sending.post(kind, body, wr_id=owner, rsvdulp=rsvdulp, **fields)
            self.cq.messages.wake()  # the device has work
            return
        source = self.source
        assert not isinstance(source, SendSettings) and not isinstance(body, Part)
        octets = b"".join(part.octets for part in body) if isinstance(body, list) else body
        if isinstance(octets, Piece):
            asks = ReadRequest(
                octets.stag, octets.to, octets.length, fields["stag"], fields["to"]
            ).encode()
            self._send(source.untagged(Queue.READ_REQUEST, asks, rsvdulp=rsvdulp))
        elif kind is Kind.TAGGED:
            stag, to = fields["stag"], fields["to"]
            self._send(source.tagged(stag, to, octets, rsvdulp=rsvdulp >> 32))
        else:
            self._send(source.untagged(fields["qn"], octets, rsvdulp=rsvdulp))
        self._sent(owner)

    def _sent(self, owner: object) -> None:
        """Notes that a message was handed to the LLP, which is reliable."""
        if isinstance(owner, _Request):
            owner.done |= owner.opcode is not Opcode.RDMA_READ
        elif owner is _ANSWER:
            self._answered += 1

    def _take_sent(self, message: ddp.WC) -> None:
        """Processes the end of a message that the device was to send."""
        if message.status is WcStatus.SUCCESS:
            self._sent(message.wr_id)
            self._complete()
        elif message.status is WcStatus.NOT_READ:
            if isinstance(message.wr_id, _Request):
                message.wr_id.status = WcStatus.NOT_READ
            self._advice = ": the device could not read a message; do not revoke its region"
            self.terminate(Terminate(Layer.RDMA, *wire.LOCAL_CATASTROPHIC))

    def _send(self, fpdus: list[bytes]) -> None:
        self._out += fpdus
        self.notify()

    def _complete(self) -> None:
        """Gives the completions of requests that are done, in the order of the posts."""
        while self._requests and self._requests[0].done:
            request = self._requests.popleft()
            if request.told:
                length = request.length if request.status is WcStatus.SUCCESS else 0
                self.cq.put(WC(self, request.status, request.opcode, request.wr_id, length))
        if self.state is QPState.RTS and self.half_closed and self.finished:
            self._fail()

    @property
    def unsent(self) -> bool:
        """True if :meth:`data_to_send` has octets to return."""
        return bool(self._out)

    def data_to_send(self) -> bytes:
        """Returns the octets to send next. Each octet is returned once."""
        return b"".join(self.pieces_to_send())

    def pieces_to_send(self, most: int | None = None) -> list[bytes]:
        """Returns the same octets in pieces, one for each FPDU; as many as ``most`` octets hold."""
        with self.context.lock:
            count = len(self._out)
            if most is not None:
                count = bisect_right(list(accumulate(map(len, self._out))), most)
            pieces, self._out = self._out[:count], self._out[count:]
            if (sending := self.stream.sending) is not None:
                sending.take(sum(map(len, pieces)))
            # A peer that does not take its answers has at most IRD of them here. Where the stream
            # has failed meanwhile, its error is reported next.
            with suppress(StreamError, StateError):
                while self._answered and self.state is QPState.RTS:
                    self._expect(Queue.READ_REQUEST, ReadRequest.SIZE)
                    self._answered -= 1
            return pieces

    def acknowledge(self, position: int) -> None:
        """Notes that the peer has received all octets to send before a position, for an LLP without
        copies (:attr:`~..verbs.sending.SendSettings.keeps`).
        """
        with self.context.lock:
            if self._half is not None:
                self._half.acknowledge(position)

    def repeat(self, position: int) -> bool:
        """Asks for the FPDU again that has the octet at a position; :meth:`repeats_to_send` returns
        it later. Returns False if it does not come.
        """
        with self.context.lock:
            return self._half is not None and self._half.repeat(position, self._repeat)

    def _repeat(self, position: int, octets: bytes) -> None:
        self._repeated.append((position, octets))
        self.notify()

    def repeats_to_send(self) -> list[tuple[int, bytes]]:
        """Returns the FPDUs that were asked for again and have left, each with its position."""
        with self.context.lock:
            pieces, self._repeated = self._repeated, []
            return pieces

    # -- messages of the peer ---------------------------------------------------------------------

    def take(self, message: ddp.WC) -> None:
        """Processes a DDP message that was delivered, or a buffer that comes back without one."""
        if message.opcode is ddp.Opcode.SENT:
            if message.wr_id is _END:
                self._flush()
            elif self.state is QPState.RTS:
                self._take_sent(message)
            elif message.status is WcStatus.SUCCESS:
                self._sent(message.wr_id)
            return
        if self.state is not QPState.RTS or message.status is not WcStatus.SUCCESS:
            if message.opcode is ddp.Opcode.RECV and message.qn == Queue.SEND:
                status = message.status
                if status is WcStatus.SUCCESS:  # after the error: it is not delivered any more
                    status = WcStatus.FLUSHED
                self._received(message, status)
            return
        try:
            if message.opcode is ddp.Opcode.TAGGED:
                self._take_tagged(message)
            else:
                self._take_untagged(message)
        except _Refused as refused:
            if message.opcode is ddp.Opcode.RECV and message.qn == Queue.SEND:
                self._received(message, WcStatus.FLUSHED)
            self.terminate(refused.terminate)

    def _received(
        self,
        message: ddp.WC,
        status: WcStatus,
        solicited: bool = False,
        invalidated: int | None = None,
    ) -> None:
        """Gives the completion of a Send's buffer, unless start-up has posted the buffer."""
        if message.wr_id is not _RTR:
            length = message.byte_len if status is WcStatus.SUCCESS else 0
            self.cq.put(
                WC(self, status, Opcode.RECV, message.wr_id, length, solicited, invalidated)
            )

    def _opcode(self, octet: int, message: ddp.WC) -> int:
        """Returns the RDMAP opcode, after checking it and the version (section 7.2)."""
        opcode = octet & 0xF
        if opcode > Message.TERMINATE:  # the last one
            raise _Refused(wire.UNEXPECTED_OPCODE, message)
        if octet >> 6 not in wire.VERSIONS:
            raise _Refused(wire.INVALID_VERSION, message)
        return opcode

    def _take_tagged(self, message: ddp.WC) -> None:
        opcode = self._opcode(message.rsvdulp, message)
        if opcode == Message.WRITE:
            return
        read = self._reads[0] if self._reads else None
        if opcode != Message.READ_RESPONSE or read is None or message.stag != read.sink_stag:
            raise _Refused(wire.UNEXPECTED_OPCODE, message)
        # Section 5.2.2: "The Data Sink MAY validate that the STag, Tagged Offset, and length of the
        # RDMA Read Response Message are the same" as in the request. The TO of no octets is none.
        to = read.sink.to % (1 << 32) if read.sink else message.to
        if (message.to, message.byte_len) != (to, read.length):
            raise _Refused(wire.UNSPECIFIED, message)
        self._reads.popleft()
        if read.sink is not None:
            read.sink.revoke()
        read.done = True
        self._transmit()
        self._complete()

    def _take_untagged(self, message: ddp.WC) -> None:
        opcode = self._opcode(message.rsvdulp >> 32, message)
        match message.qn, opcode:
            case Queue.READ_REQUEST, Message.READ_REQUEST:
                self._respond(message)
            case Queue.TERMINATE, Message.TERMINATE:
                self._terminated(bytes(message.wr_id[: message.byte_len]))
            case Queue.SEND, _ if opcode in wire.SENT:
                invalidates, solicited = wire.SENT[Message(opcode)]
                stag = message.rsvdulp & 0xFFFFFFFF if invalidates else None
                if stag is not None:
                    self._invalidate(stag, message)
                self._received(message, WcStatus.SUCCESS, solicited, stag)
            case _:
                raise _Refused(wire.UNEXPECTED_OPCODE, message)

    def _region(
        self, stag: int, message: ddp.WC, foreign: tuple[int, int], request: bytes = b""
    ) -> MR:
        """Returns the region that this stream may name by an STag; refuses with ``foreign``
        if another stream owns it.
        """
        for region in self.pd.regions:
            if region.access & _REMOTE and region.stag == stag:
                if region.stream not in (None, self.stream):
                    raise _Refused(foreign, message, request)
                return region
        # A region of another domain gives the same error as no region.
        raise _Refused(wire.INVALID_STAG, message, request)

    def _invalidate(self, stag: int, message: ddp.WC) -> None:
        """Revokes the STag before the message is delivered (section 5.3)."""
        region = self._region(stag, message, wire.CANNOT_INVALIDATE)
        # Section 8.1.1: a peer must not invalidate an STag that several streams share. A region in
        # which receives are posted, or that an incomplete Read writes, stays, too.
        shared = region.stream is None and len(self.pd.streams) > 1
        if shared or region.posted or any(read.sink is region for read in self._requests):
            raise _Refused(wire.CANNOT_INVALIDATE, message)
        region.revoke()

    def _respond(self, message: ddp.WC) -> None:
        """Answers a Read Request, or refuses it in the order of the checks of section 7.2."""
        octets = bytes(message.wr_id[: message.byte_len])
        if len(octets) != ReadRequest.SIZE:
            raise _Refused(wire.UNSPECIFIED, message)
        if self.finished:  # this side's half is closed: no answer can be sent
            return
        request = ReadRequest.decode(octets)
        data: bytes | list[Part] = b""
        if request.length:  # without octets STag and TO are not checked: section 5.2.1
            region = self._region(request.source_stag, message, wire.NOT_ASSOCIATED, octets)
            if not region.access & Access.REMOTE_READ:
                raise _Refused(wire.ACCESS, message, octets)
            if max(request.source_to, request.sink_to) + request.length > 1 << 64:
                raise _Refused(wire.TO_WRAP, message, octets)
            start = request.source_to - region.to
            if not 0 <= start <= region.length - request.length:
                raise _Refused(wire.BASE_OR_BOUNDS, message, octets)
            data = [Part(region, start, request.length)]
        if (sending := self.stream.sending) is not None and sending.answering(Queue.READ_REQUEST):
            # The region may be read: the bus has refused a read.
            raise _Refused(wire.LOCAL_CATASTROPHIC, message)
        control = wire.control(Message.READ_RESPONSE)
        self._tagged(request.sink_stag, request.sink_to, data, control, _ANSWER)

    # -- the end ----------------------------------------------------------------------------------

    def refuse(self, event: ErrorEvent) -> None:
        """Terminates the stream for an error that the device found; the device accepts
        nothing more.
        """
        number = event.number
        if number == NO_BUFFER and event.header[9:10] == bytes([Queue.SEND]):
            self._advice = (
                ": a Send came while no receive was posted; post more receives before the peer"
                f" sends (a queue of this device holds {self.context.capabilities.queue})"
            )
        elif number == MESSAGE_TOO_LONG:
            self._advice = ": post longer receives"
        self.terminate(Terminate.of(number, event.length, event.header))

    def overrun(self) -> None:
        """Terminates the stream because its messages did not fit the CQ."""
        self._advice = (
            f": the CQ holds {self.cq.messages.cqe} messages, and more came between two polls;"
            " poll it more often, or give it a larger cqe"
        )
        self.terminate(Terminate(Layer.RDMA, *wire.STREAM_CATASTROPHIC))

    @property
    def finished(self) -> bool:
        """True once everything posted before :meth:`shutdown` was handed over.

        The owner of the LLP closes this side's half of the connection as soon as it has sent the
        last octets of :meth:`data_to_send`.
        """
        sending = self.stream.sending
        return self._shut and not self._requests and not (sending is not None and sending.busy)

    def shutdown(self) -> None:
        """Ends the stream gracefully (RFC 5041 section 6.2.1).

        Requests that were posted are transferred, then the queue pair is ``finished``; later send
        requests are refused. The peer's messages are accepted until the peer has closed its half,
        too; then the stream has ended, and its receives are flushed.
        """
        with self.context.lock:
            self._check()
            self._shut = True
            self._complete()

    def half_close(self) -> None:
        """Notes that the peer has closed its half of the connection gracefully.

        A completion with ``Opcode.HALF_CLOSED`` reports it. RDMA Reads are flushed, because no
        response can come; all other requests are transferred as before (RFC 5041 section 6.2.1).
        """
        with self.context.lock:
            self.settle()
            if self.state is not QPState.RTS or self.half_closed:
                return
            self.half_closed = True
            self.cq.put(WC(self, WcStatus.SUCCESS, Opcode.HALF_CLOSED))
            for request in self._requests:
                if request.opcode is Opcode.RDMA_READ and not request.done:
                    request.done, request.status = True, WcStatus.FLUSHED
                    if request.sink is not None:
                        request.sink.close()
            self._reads.clear()
            self._unsent = deque(request for request in self._unsent if not request.done)
            self._transmit()

    def settle(self) -> None:
        """Processes the messages that the device has received so far."""
        with self.context.lock:
            if self.state is QPState.RTS:
                self.context.settle()
                self.cq.serve()

    def disconnect(self) -> None:
        """Notes that the LLP connection is lost, or closed in both directions."""
        with self.context.lock:
            if self.state is QPState.RTS:
                self._fail()

    def terminate(self, terminate: Terminate) -> None:
        """Sends a Terminate to the peer, and accepts nothing more (sections 5.4 and 6.2.1)."""
        with self.context.lock:
            if self.state is QPState.RTS:
                self.sent = terminate
                control, octets = wire.control(Message.TERMINATE) << 32, terminate.encode()
                if (sending := self.stream.sending) is None:
                    self._untagged(Queue.TERMINATE, octets, control, None)
                else:
                    sending.last(Kind.UNTAGGED, octets, rsvdulp=control, qn=Queue.TERMINATE)
                self._fail()

    def _terminated(self, octets: bytes) -> None:
        try:
            self.received = Terminate.decode(octets)
        except ValueError:
            self.received = Terminate(Layer.RDMA, *wire.UNSPECIFIED)
        self._fail()

    def _fail(self, state: QPState = QPState.ERR) -> None:
        """Stops the stream, and flushes outstanding requests.

        Messages that the device has sent are reported in the CQ, and so is their end: a request
        whose message had left completes.
        """
        self.state = state
        sends = self.stream.sending is not None
        self.stream.close()
        if sends:
            report = ddp.WC(self.stream, WcStatus.SUCCESS, ddp.Opcode.SENT, _END)
            self.cq.messages.put(report)
        else:
            self._flush()
        self.notify()

    def _flush(self) -> None:
        """Ends the requests of a stream that has ended."""
        self._complete()
        for request in self._requests:
            if request.told:
                refused = request.status is WcStatus.NOT_READ
                status = WcStatus.NOT_READ if refused else WcStatus.FLUSHED
                self.cq.put(WC(self, status, request.opcode, request.wr_id))
            if request.sink is not None:
                request.sink.close()
        for queue in (self._requests, self._unsent, self._reads):
            queue.clear()

    def _check(self) -> None:
        self.pd.check()
        if self.state is QPState.CLOSED:
            raise StateError("the queue pair is closed")
        if self.state is QPState.ERR:
            raise StateError(f"the queue pair is in error: {self.reason}")

    @property
    def reason(self) -> str:
        """Returns why the queue pair has ended, with advice for the user."""
        return f"{self.sent or self.received or 'the connection was closed'}{self._advice}"

    def _check_sending(self) -> None:
        self._check()
        if self._shut:
            raise StateError("the queue pair is shut down: nothing more can be sent")

    def close(self) -> None:
        """Stops the stream, and flushes its receives and incomplete requests. A second call
        does nothing.
        """
        with self.context.lock:
            if self.state is QPState.CLOSED:
                return
            if self.state is QPState.RTS:
                self._fail(QPState.CLOSED)
            self.state = QPState.CLOSED
            self.cq.serve()
            self.cq.qps.pop(self.stream, None)

    def __repr__(self) -> str:
        return f"<QP on {self.stream!r}, {self.state.name}>"
