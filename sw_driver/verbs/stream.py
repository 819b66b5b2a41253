"""DDP Streams and their receive queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Self

from ...hdl.spec import commands, ddp
from ...hdl.spec.completion import Completion, Status
from ..base.buffers import octets_of
from ..base.checks import any_integer, flag, instance, integer, shown
from ..base.errors import (
    ErrorEvent,
    InvalidRequest,
    ResourceExhausted,
    StateError,
    StreamError,
    UnsupportedDevice,
    WrongType,
)
from ..transports.memory import Steps, finish
from .context import Mapping
from .cq import CQ, WC, Opcode, WcStatus
from .known import KnownAssociation, KnownStream, StreamState
from .pd import MR, PD
from .responding import Responder
from .sending import SendingHalf, SendSettings

#: How many Queue Numbers a stream has.
QUEUES = 4
#: The call that makes a stream, for messages.
ORDER = "Stream(pd, cq)"
_MSN = 1 << 32
_STATUS = {Status.DELIVERED: WcStatus.SUCCESS, Status.NOT_PLACED: WcStatus.NOT_PLACED}


@dataclass
class _Posted:
    """A buffer that waits for a message."""

    wr_id: object
    qn: int
    msn: int
    slot: int
    length: int
    offset: int = 0  #: of its first octet in its region
    region: MR | None = None
    mapping: Mapping | None = None  #: of a buffer that is not in a region

    def pull(self, length: int) -> None:
        """Shows the host the first ``length`` octets of the message."""
        if self.region is not None:
            self.region.mapping.memory.pull(self.offset, length)
        elif self.mapping is not None:
            self.mapping.memory.pull(0, length)

    def close(self) -> None:
        if self.region is not None:
            self.region.release()
        elif self.mapping is not None:
            self.mapping.close()


class Stream(KnownStream):
    """A receiving DDP Stream, over MPA or in an SCTP association. In a device that only sends, one
    that sends after :meth:`send_by`.

    Parameters
    ----------
    pd
        The stream's protection domain.
    cq
        The queue that gets the stream's completions.
    number
        The number by which the LLP's packets name the stream. None: of the free numbers, the one
        that was freed longest ago.
    crc, markers
        The settings that MPA's start-up agreed on.
    queues
        The Queue Numbers, from 0 to 3, that are valid on the stream.
    association
        With SCTP: the association that the stream belongs to.
        :meth:`~.association.Association.stream` makes such a stream.

    Attributes
    ----------
    number
        The device's number for the stream, from 0.
    state, error
        The stream's state, and the event that put the stream in error.
    sending
        Its sending half, after :meth:`send_by`.
    """

    sending: SendingHalf | None = None

    def __new__(cls, pd: PD, *arguments: Any, **named: Any) -> Self:
        instance("a stream's protection domain", pd, PD, ORDER)
        return super().__new__(pd.context.kinds.get(cls, cls))

    def __init__(
        self,
        pd: PD,
        cq: CQ,
        *,
        number: int | None = None,
        crc: bool = True,
        markers: bool = False,
        queues: Iterable[int] = range(QUEUES),
        association: KnownAssociation | None = None,
    ) -> None:
        context = pd.context
        instance("a stream's completion queue", cq, CQ, ORDER)
        crc, markers = flag("crc", crc), flag("markers", markers)
        self.queues = queues_of(queues)
        if association is not None:
            instance("a stream's association", association, KnownAssociation, called="Association")
        with context.lock:
            pd.check()
            if cq.context is not context:
                raise InvalidRequest("the completion queue must belong to the stream's context")
            if cq.closed:
                raise StateError("the completion queue is closed")
            if association is None and context.sctp is not None and not context.sctp.mpa:
                raise UnsupportedDevice(
                    "the device has no MPA: use the streams of an association, or build the device"
                    " with RnicConfig(mpa=True)"
                )
            self.context, self.pd, self.cq = context, pd, cq
            self.association = association
            self.number = self._number(number)
            self.state = StreamState.ERROR  # until the device receives for it
            self.error: ErrorEvent | None = None
            self.bound: set[MR] = set()
            self._next = dict.fromkeys(self.queues, 1)  # RFC 5041 section 4.3: the first MSN is one
            self._posted: dict[int, _Posted] = {}  # by cookie
            self._counts = dict.fromkeys(self.queues, 0)  # posted buffers, by queue
            # From here on the device may know the stream, even if the link fails: closing disables
            # it.
            context.streams[self.number] = self
            pd.streams.add(self)
            cq.streams.add(self)
            registers = context.registers
            for qn in range(QUEUES if context.capabilities.receives else 0):
                change = commands.open_queue if qn in self.queues else commands.close_queue
                registers.start(change(self.number, qn))
            context.set_stream(
                self.number, pd=pd.number, crc=crc, markers=markers, cq=cq.ring.number
            )
            self.state = StreamState.RECEIVING

    def _number(self, number: int | None) -> int:
        numbers, count = self.context.numbers, self.context.capabilities.streams
        if self.association is not None:
            self.association.check()
            if number is None or number not in self.association.free:
                raise StateError(f"stream {number} is in use: close it first")
            self.association.free.remove(number)
            return number
        if number is None:
            if not numbers:
                raise ResourceExhausted(f"all {count} streams of the device are in use: close one")
            return numbers.popleft()
        number = integer("a stream's number", number, 0, count - 1)
        if number not in numbers:
            raise StateError(f"stream {number} is in use: close it first")
        numbers.remove(number)
        return number

    def check(self) -> None:
        """Raises unless the stream receives."""
        self.pd.check()
        if self.state is StreamState.CLOSED:
            raise StateError(f"stream {self.number} is closed")
        if self.error is not None:
            raise StreamError(self.error)
        if self.state is StreamState.ERROR:
            raise StateError(f"stream {self.number} is stopped: close it")

    # -- receive buffers --------------------------------------------------------------------------

    def post_recv(
        self,
        buffer: object,
        qn: int = 0,
        *,
        wr_id: object = None,
        offset: int = 0,
        length: int | None = None,
    ) -> int:
        """Posts a receive buffer for a message. The completion gives the buffer back.

        Parameters
        ----------
        buffer
            A region of the stream's protection domain, or any buffer that could be registered, or
            None for a message without octets.
        qn
            The Queue Number.
        wr_id
            Any value; the completion contains it.
        offset, length
            The part of the buffer that is posted; by default all of it.

        Returns
        -------
        int
            The Message Sequence Number of the message that the buffer is for.
        """
        with self.context.lock:
            self.check()
            self.context.receiving("take a receive buffer")
            if (qn := any_integer("queue", qn)) not in self.queues:
                raise InvalidRequest(
                    f"queue must be one that the stream was opened with,"
                    f" {sorted(self.queues)}, not {qn!r}"
                )
            if self.sending is not None and self.sending.answering(qn):
                raise StateError(f"the device posts the buffers of queue {qn}: post none there")
            depth = self.context.capabilities.queue
            if self.outstanding(qn) >= depth:
                raise ResourceExhausted(
                    f"queue {qn} of stream {self.number} holds {depth} buffers and is full:"
                    " take completions first"
                )
            if not self.context.buffers:
                raise ResourceExhausted(
                    f"all {self.context.capabilities.buffers} receive buffers of the device are"
                    " posted: take completions first"
                )
            posted, address, code = self._prepare(buffer, qn, wr_id, offset, length)
            cookie = self._cookie()
            self._posted[cookie] = posted
            self._counts[qn] += 1
            self._next[qn] = (posted.msn + 1) % _MSN
            self.context.registers.start(
                commands.post(
                    self.number, qn, posted.msn, address=address, length=posted.length, pages=code,
                    cookie=cookie, slot=posted.slot,
                )
            )  # fmt: skip
            return posted.msn

    def _prepare(
        self, buffer: object, qn: int, wr_id: object, offset: int, length: int | None
    ) -> tuple[_Posted, int, int]:
        """Takes slot and memory for a post; returns the post, its address, and its page code."""
        posted = _Posted(wr_id, qn, self._next[qn], self.context.buffers[0], 0)
        address = code = 0
        if isinstance(buffer, MR):
            buffer.check()
            if buffer.pd is not self.pd:
                raise InvalidRequest(
                    "a receive buffer must belong to the stream's protection domain"
                )
            offset, posted.length = part_of(buffer.length, offset, length)
            posted.offset, posted.region = offset, buffer
            address, code = buffer.mapping.address + offset, buffer.mapping.layout.code
            buffer.hold()
        elif buffer is not None:
            view = octets_of(buffer)
            offset, posted.length = part_of(len(view), offset, length)
            if posted.length:
                posted.mapping = self.context.map(
                    view[offset : offset + posted.length], self.pd.slots
                )
                address, code = posted.mapping.address, posted.mapping.layout.code
        elif offset or length:
            raise InvalidRequest("a buffer of no octets must have neither offset nor length")
        heappop(self.context.buffers)
        return posted, address, code

    def _cookie(self) -> int:
        """Returns a number that none of the stream's posted buffers has."""
        while True:
            # All streams share one counter, so that a late completion of a closed stream meets no
            # buffer of the next stream with the same number.
            self.context.cookie = (self.context.cookie + 1) % (1 << 32)
            if self.context.cookie not in self._posted:
                return self.context.cookie

    def outstanding(self, qn: int) -> int:
        """Returns how many buffers of a queue wait for a message."""
        return self._counts.get(qn, 0)

    # -- sending ----------------------------------------------------------------------------------

    def send_by(
        self, settings: SendSettings, leave: Callable[[list[bytes]], object]
    ) -> SendingHalf:
        """Lets the device send on the stream, over MPA. A stream takes one call of this method.

        ``leave`` takes the FPDUs that the device has sent, which the host's TCP has to transfer.
        For a stream over SCTP see :meth:`~.association.Association.send_by`.

        Raises
        ------
        StateError
            The stream has a sending half.
        InvalidRequest
            A setting is wrong, or the stream belongs to an association.
        UnsupportedDevice
            The device does not send, or the host does not get its FPDUs.
        """
        instance("a sending half's settings", settings, SendSettings)
        instance("what takes the FPDUs that leave", leave, Callable)
        settings = settings.checked()
        with self.context.lock:
            self.check()
            if self.sending is not None:
                raise StateError(
                    f"stream {self.number} has a sending half already: open another stream"
                )
            if self.association is not None:
                raise InvalidRequest(
                    f"stream {self.number} belongs to an association: give it its sending half"
                    " with open() of the association's sender"
                )
            if not self.context.sends:
                raise UnsupportedDevice(
                    "the device sends nothing, or the host does not get its FPDUs: build it with"
                    " RnicConfig(transmit=True)"
                )
            self.sending = SendingHalf(self, settings, leave)
            return self.sending

    def answer_reads(self, ird: int) -> None:
        """Lets the device answer the peer's RDMA Read Requests (RFC 5040), of which ``ird`` may be
        outstanding.

        The device then posts all buffers of queue 1, in which there was none before. The stream has
        a sending half.
        """
        with self.context.lock:
            self.check()
            if self.sending is None or not self.context.responds:
                raise UnsupportedDevice(
                    "the device answers no RDMA Reads on this stream: build it with"
                    " RnicConfig(transmit=True, responder=True), and give the stream its sending"
                    " half before"
                )
            ird = integer("ird", ird, 1, self.context.capabilities.queue)
            qn = Responder.QN
            if self._next.get(qn) != 1 or self.sending.responder is not None:
                raise StateError(
                    f"queue {qn} of stream {self.number} must be open and unused, so that the"
                    " device can post its buffers: call answer_reads() once, before any post there"
                )
            self.sending.answer_reads(ird)

    # -- reports of the device --------------------------------------------------------------------

    def complete(self, completion: Completion) -> None:
        """Turns the device's completion of a message into one of the CQ."""
        assert isinstance(completion.status, Status)
        status = _STATUS[completion.status]
        if completion.tagged:
            region = self.context.tags.get(completion.tag)
            if region is not None:
                self._show_region(region)
            self.cq.put(
                WC(
                    self, status, Opcode.TAGGED, byte_len=completion.length, stag=completion.tag,
                    mr=region, rsvdulp=completion.rsvdulp, to=completion.cookie,
                )
            )  # fmt: skip
        elif self.sending is not None and (responder := self.sending.answering(completion.qn)):
            responder.complete(completion)
        elif (posted := self._posted.pop(completion.cookie, None)) is not None:
            self._show_buffer(posted, min(completion.length, posted.length))
            self._give_back(posted)
            self.cq.put(
                WC(
                    self, status, Opcode.RECV, posted.wr_id, completion.length,
                    completion.qn, completion.tag, rsvdulp=completion.rsvdulp,
                )
            )  # fmt: skip

    def _show_region(self, region: MR) -> None:
        """Marks a region that a tagged message has written; its octets are shown with the
        completion.
        """
        region.written = True

    def _show_buffer(self, posted: _Posted, length: int) -> None:
        """Shows the host the octets of an untagged message."""
        posted.pull(length)

    def _give_back(self, posted: _Posted) -> None:
        self._counts[posted.qn] -= 1
        heappush(self.context.buffers, posted.slot)
        posted.close()

    def fail(self, event: ErrorEvent) -> None:
        """Notes the event with which the device has stopped the stream."""
        if self.state is StreamState.RECEIVING:
            self.state, self.error = StreamState.ERROR, event
            advice = ""
            if event.number == ddp.QUEUE_OVERRUN:
                advice = (
                    f", and poll more often, or open the device with more than"
                    f" {self.context.completions} completions"
                )
            self.cq.put_error(StreamError(event, advice))

    def stop(self) -> None:
        """Stops the stream from accepting segments. Accepted ones may be placed until
        :meth:`close`.
        """
        if self.state is StreamState.RECEIVING:
            self._disable()
            self.state = StreamState.ERROR

    def _disable(self) -> None:
        """Starts to disable the stream, and to revoke the STags bound to it."""
        self.context.registers.start(commands.revoke_stream(self.number))

    def _disabling(self) -> Steps[None]:
        """Disables the stream, and revokes the STags bound to it; both are done when the
        steps end.
        """
        self._disable()
        yield from self.context.fencing("the device does not stop the stream: call close() again")

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops the stream, revokes the regions bound to it, and gives back the buffers without a
        message.

        Once this returns, the device writes not one octet more for the stream. The buffers'
        completions have the status FLUSHED. A second call does nothing.
        """
        with self.context.lock:
            finish(self.closing())

    def closing(self) -> Steps[None]:
        """Does the work of :meth:`close` in steps."""
        context = self.context
        if self.state is StreamState.CLOSED:
            return
        context.check()
        yield from self._disabling()
        if self.sending is not None:
            yield from self.sending.closing()
            self.sending = None
        while self.bound:
            region = next(iter(self.bound))
            if not region.posted:
                yield from region.mapping.memory.closing()
            region.forget()
            yield
        yield from context.settling(self.cq.ring)
        for qn in self.queues if context.capabilities.receives else ():
            context.registers.start(commands.close_queue(self.number, qn))
        while self._posted:
            posted = self._posted.pop(next(iter(self._posted)))
            self._give_back(posted)
            self.cq.put(
                WC(
                    self, WcStatus.FLUSHED, Opcode.RECV, posted.wr_id,
                    qn=posted.qn, msn=posted.msn,
                )
            )  # fmt: skip
            yield
        self.state = StreamState.CLOSED
        del context.streams[self.number]
        if self.association is None:
            context.numbers.append(self.number)
        else:
            self.association.free.add(self.number)
        self.pd.streams.discard(self)
        self.cq.streams.discard(self)

    def __repr__(self) -> str:
        return f"<Stream {self.number}, {self.state.name}>"


def queues_of(numbers: Iterable[int]) -> frozenset[int]:
    """Returns the given Queue Numbers as a set; raises where a stream cannot have one of them."""
    if not isinstance(numbers, Iterable):
        raise WrongType(f"queues must be Queue Numbers, such as [0, 1], not {shown(numbers)}")
    return frozenset(integer("a Queue Number", each, 0, QUEUES - 1) for each in numbers)


def part_of(octets: int, offset: int, length: int | None) -> tuple[int, int]:
    """Returns offset and length, as ints, of a part of a buffer that has ``octets`` octets."""
    offset = any_integer("offset", offset)
    count = octets - offset if length is None else any_integer("length", length)
    if not 0 <= offset <= offset + count <= octets:
        raise InvalidRequest(
            f"{count} octets from {offset} on are not within the buffer's {octets}"
        )
    if count >= 1 << 32:
        raise InvalidRequest(f"a receive buffer must be less than 2**32 octets, not {count}")
    return offset, count
