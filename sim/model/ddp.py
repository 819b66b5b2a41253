"""RFC 5041: the Data Source and the Data Sink of one DDP Stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from ...hdl.spec.ddp import (
    LLP_FRAMING,
    LOCAL_CATASTROPHIC,
    MSN_RANGE,
    TO_WRAP,
    ErrorNumber,
)
from .checks import TaggedFacts, UntaggedFacts, Validation
from .events import DdpError, Delivered, Event, LlpError, Placed, ProtocolError
from .header import Header, TaggedHeader, UntaggedHeader, header_length, is_tagged
from .memory import Memory, Octets

__all__ = [
    "DataSink",
    "DataSource",
    "TaggedHeader",
    "UntaggedHeader",
    "UntaggedQueue",
    "decode_segment",
    "header_length",
    "is_tagged",
    "validate_tagged",
]

_MSN = 1 << 32


def decode_segment(segment: bytes) -> tuple[Header, bytes]:
    """Splits a DDP Segment into its header and its ULP Payload (section 4.4, figure 6)."""
    if len(segment) < header_length(segment):
        raise ProtocolError(
            f"a DDP Segment must have a header of {header_length(segment)} octets, "
            f"not {len(segment)} octets in all",
            LLP_FRAMING,
        )
    header: Header
    header = TaggedHeader.decode(segment) if is_tagged(segment) else UntaggedHeader.decode(segment)
    return header, segment[header.size :]


# --- Data Source ---------------------------------------------------------------------------------


class DataSource:
    """Cuts ULP Messages into DDP Segments (section 5.2).

    Parameters
    ----------
    mulpdu
        Octets of the longest segment that the LLP accepts, header included. The value may change
        between segments: section 3 item 1 has DDP "adapt as MULPDU changes come about".
    """

    def __init__(self, mulpdu: int) -> None:
        self.mulpdu = mulpdu
        self._msn: dict[int, int] = {}

    def tagged(self, stag: int, to: int, message: bytes, *, rsvdulp: int = 0) -> list[bytes]:
        """Returns the segments of a Tagged DDP Message, in increasing TO order (section 5.3)."""
        return list(self.begin_tagged(stag, to, message, rsvdulp=rsvdulp))

    def begin_tagged(
        self, stag: int, to: int, message: bytes, *, rsvdulp: int = 0
    ) -> Iterator[bytes]:
        """Begins a Tagged DDP Message; its segments are cut as the caller takes them."""
        if to + len(message) > 1 << 64:
            raise ProtocolError(
                f"a message of {len(message)} octets at TO {to:#x} must not wrap", TO_WRAP
            )
        return (
            TaggedHeader(stag, to + offset, last, rsvdulp).encode() + payload
            for offset, payload, last in self._slices(message, TaggedHeader.size)
        )

    def untagged(self, qn: int, message: bytes, *, rsvdulp: int = 0) -> list[bytes]:
        """Returns an Untagged DDP Message's segments, in increasing MO order, with the queue's next
        MSN.

        Section 4.3: "The initial value for MSN MUST be one. The MSN value MUST wrap to 0 after a
        value of 0xFFFFFFFF."
        """
        return list(self.begin_untagged(qn, message, rsvdulp=rsvdulp))

    def begin_untagged(self, qn: int, message: bytes, *, rsvdulp: int = 0) -> Iterator[bytes]:
        """Begins an Untagged DDP Message; its segments are cut as the caller takes them."""
        msn = self.next_msn(qn)
        self._msn[qn] = (msn + 1) % _MSN
        return (
            UntaggedHeader(qn, msn, offset, last, rsvdulp).encode() + payload
            for offset, payload, last in self._slices(message, UntaggedHeader.size)
        )

    def next_msn(self, qn: int) -> int:
        """Returns the MSN of a queue's next message."""
        return self._msn.get(qn, 1)

    def set_msn(self, qn: int, msn: int) -> None:
        """Sets the MSN of a queue's next message, for a stream taken over from another sender."""
        self._msn[qn] = msn

    def _slices(self, message: bytes, header: int) -> Iterator[tuple[int, bytes, bool]]:
        """Returns an iterator of each segment's offset, payload, and whether it is the last."""
        if len(message) >= 1 << 32:
            raise ValueError(f"ULP Message Length must be less than 2^32, not {len(message)}")
        return self._cut(message, header)

    def _cut(self, message: bytes, header: int) -> Iterator[tuple[int, bytes, bool]]:
        # "A zero-length DDP Message is allowed and MUST consume exactly one DDP Segment."
        offset, last = 0, False
        while not last:
            room = self.mulpdu - header
            if room < 1:
                raise ValueError(
                    f"MULPDU must be more than the header's {header} octets, not {self.mulpdu!r}"
                )
            last = offset + room >= len(message)
            yield offset, message[offset : offset + room], last
            offset += room


# --- Data Sink -----------------------------------------------------------------------------------


def validate_tagged(
    header: TaggedHeader,
    length: int,
    memory: Memory,
    *,
    stream: int,
    pd: int,
) -> Validation:
    """Makes the checks of a tagged segment with ``length`` octets of payload (section 7.1)."""
    return Validation.of(TaggedFacts(header, length, memory.holder(header.stag), stream, pd))


@dataclass
class _Buffer:
    length: int
    octets: Octets = field(default_factory=Octets)


class UntaggedQueue:
    """The buffers of one Queue Number, in the order of their MSNs.

    Parameters
    ----------
    first
        MSN of the first available buffer. Section 4.3: "The initial value for MSN MUST be one."
    """

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self._buffers: list[_Buffer] = []
        self._done = 0  # delivered buffers that are still in the list

    @property
    def available(self) -> int:
        """The number of buffers that wait for a message."""
        return len(self._buffers) - self._done

    def post(self, length: int, count: int = 1) -> None:
        """Adds ``count`` buffers of ``length`` octets each."""
        if not 0 <= length < 1 << 32:
            raise ValueError(f"Untagged Buffer length must be less than 2^32, not {length!r}")
        self._buffers.extend(_Buffer(length) for _ in range(count))

    def ahead(self, msn: int) -> int:
        """Returns an MSN's distance from the first available buffer's, modulo 2^32; negative
        before it.
        """
        distance = (msn - self.first) % _MSN
        return distance if distance < _MSN // 2 else distance - _MSN

    def buffer(self, msn: int) -> _Buffer | None:
        """Returns the available buffer of an MSN, or None."""
        ahead = self.ahead(msn)
        return self._buffers[self._done + ahead] if 0 <= ahead < self.available else None

    def complete(self) -> None:
        """Removes the first available buffer, after its message was delivered."""
        self._buffers[self._done] = _Buffer(0)
        self._done += 1
        self.first = (self.first + 1) % _MSN
        if self._done >= 1024:
            del self._buffers[: self._done]
            self._done = 0


@dataclass(eq=False)
class _Message:
    """A message that is not delivered yet, and of which a segment was considered for Delivery.

    ``key`` has the fields that section 4 wants to be equal in each segment of a message. ``event``
    is set by the last segment. ``overtaken``: a segment of another message came before the last
    one.
    """

    key: Hashable
    event: Delivered | None = None
    overtaken: bool = False
    begin: int = 0  #: TO of the first segment, or of the first after one of another message


def _key(header: Header) -> Hashable:
    """Returns the fields that are equal in all segments of a message, and so identify it.

    Sections 4.2 and 4.3 state for STag, for a tagged segment's RsvdULP, for QN and for MSN: "Each
    DDP Segment within a specific DDP Message MUST contain the same value for this field".
    """
    if isinstance(header, TaggedHeader):
        return "tagged", header.stag, header.rsvdulp
    return "untagged", header.qn, header.msn


class DataSink:
    """Places and delivers the segments of one DDP Stream.

    Parameters
    ----------
    memory
        The node's regions.
    stream
        DDP Stream ID, for STags that are bound to one stream.
    pd
        Protection Domain ID of the stream.
    first
        The order of the first segment, where the LLP reports the order.
    waiting
        How many messages may wait for an earlier one, overtaken ones included, as
        :data:`~...hdl.spec.ddp.WAITING` counts them. One more fails the stream. None: no limit.
    overtakes
        How many segments may overtake an unfinished message; one more fails the stream. None: no
        limit.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        stream: int = 0,
        pd: int = 0,
        first: int = 0,
        waiting: int | None = None,
        overtakes: int | None = None,
    ) -> None:
        self.memory = memory
        self.waiting = waiting
        self.overtakes = overtakes
        self.stream = stream
        self.pd = pd
        self.queues: dict[int, UntaggedQueue] = {}
        self.error: DdpError | LlpError | None = None
        self.dropped = 0  #: segments dropped silently after the error
        self.duplicates = 0  #: segments that had been placed before
        self._next = first  # all segments before this one are placed
        self._messages: deque[_Message] = deque()  # in the order of their first segments
        self._latest: _Message | None = None  # the message of the segment considered last
        self._overtook = 0  # segments that overtook an unfinished message
        # Segments placed, but not yet considered for Delivery: header and payload length by order.
        self._waiting: dict[int, tuple[Header, int]] = {}

    def open_queue(self, qn: int, *, first: int = 1) -> UntaggedQueue:
        """Makes a Queue Number valid for this stream, and returns its queue."""
        return self.queues.setdefault(qn, UntaggedQueue(first))

    def post(self, qn: int, length: int, count: int = 1) -> None:
        """Adds ``count`` Untagged Buffers of ``length`` octets to a queue; opens the queue
        if needed.
        """
        self.open_queue(qn).post(length, count)

    def receive(self, segment: bytes, order: int | None = None) -> list[Event]:
        """Takes a DDP Segment from the LLP, and returns the events that the segment causes.

        Parameters
        ----------
        segment
            Header and payload.
        order
            The segment's number in the order of the sender. Section 3 item 5: the LLP may hand over
            out of order, "but if it does, it MUST also provide information that specifies what the
            sender-specified order was". None: the lowest number that was not received yet.
        """
        if self.error is not None:
            # Section 7.1: "DDP MUST silently drop any subsequent incoming DDP Segments."
            self.dropped += 1
            return []
        order = self._next_free() if order is None else order
        if order < self._next or order in self._waiting:
            # Section 5.3: Placement more than once is a MAY, Delivery more than once is forbidden.
            self.duplicates += 1
            return []
        try:
            header, payload = decode_segment(segment)
        except ProtocolError as error:
            assert error.number is not None
            return self._fail(error.number, segment, order)
        validation = self._validate(header, len(payload))
        number = validation.number
        if number is None:
            number = self.refuse(header, len(payload))
        if number is not None:
            return self._fail(number, segment, order, validation)
        events: list[Event] = [self._place(header, payload, order, validation)]
        self._waiting[order] = header, len(payload)
        return events + self._deliver()

    def fail(self, error: LlpError) -> list[Event]:
        """Takes an error from the LLP, and returns it as the stream's last event.

        Section 7: "All LLP errors reported to DDP SHOULD be passed up to the ULP."
        """
        if self.error is not None:
            self.dropped += 1
            return []
        self.error = error
        return [error]

    @property
    def kept(self) -> int:
        """The number of messages that have begun and are not delivered yet."""
        return len(self._messages)

    def _next_free(self) -> int:
        order = self._next
        while order in self._waiting:
            order += 1
        return order

    def _validate(self, header: Header, length: int) -> Validation:
        if isinstance(header, TaggedHeader):
            return validate_tagged(header, length, self.memory, stream=self.stream, pd=self.pd)
        if (queue := self.queues.get(header.qn)) is None:
            return Validation.of(UntaggedFacts(header, length))
        buffer = queue.buffer(header.msn)
        limit = None if buffer is None else buffer.length
        ahead = queue.ahead(header.msn)
        return Validation.of(
            UntaggedFacts(header, length, queue.first, queue.available, ahead, limit)
        )

    def refuse(self, header: Header, length: int) -> ErrorNumber | None:
        """Returns the error of a ULP that checks segments, too, after DDP; or None."""
        return None

    def _place(self, header: Header, payload: bytes, order: int, validation: Validation) -> Placed:
        address = None
        if isinstance(header, UntaggedHeader):
            buffer = self.queues[header.qn].buffer(header.msn)
            assert buffer is not None
            buffer.octets.write(header.mo, payload)
        elif payload:
            region = self.memory.lookup(header.stag)
            assert region is not None
            self.memory.write(region, header.to, payload)
            address = region.address + header.to - region.to
        return Placed(self.stream, header, len(payload), order, address, validation)

    def _deliver(self) -> list[Event]:
        """Delivers every message that section 5.4 allows to be delivered now."""
        events: list[Event] = []
        while self._next in self._waiting and self.error is None:
            header, length = self._waiting.pop(self._next)
            order, self._next = self._next, self._next + 1
            octets = None
            if isinstance(header, UntaggedHeader):
                queue = self.queues[header.qn]
                if queue.ahead(header.msn) != 0:
                    # Every earlier segment in the order of the sender is here. Section 4.3: the MSN
                    # "MUST be increased by one (modulo 2^32) with each DDP Message"; this message
                    # skips or repeats one.
                    segment = header.encode() + bytes(length)
                    return events + self._fail(MSN_RANGE, segment, order)
                if header.last:
                    buffer = queue.buffer(header.msn)
                    assert buffer is not None
                    octets = buffer.octets
                    queue.complete()
            events += self._follow(header, length, order, octets)
        return events

    def _follow(
        self, header: Header, length: int, order: int, octets: Octets | None
    ) -> list[Event]:
        """Adds a segment to its message, then delivers the complete messages that wait for no
        other.

        Section 5.4: a message is delivered "if and only if" its last segment "had its Last flag
        set", "all of the DDP Segments of the DDP Message have been Placed", "all preceding DDP
        Messages have been Placed, and each preceding DDP Message has been Delivered to the ULP".
        """
        key, events = _key(header), list[Event]()
        unfinished = (each for each in self._messages if each.event is None and each.key == key)
        message = next(unfinished, None)
        if message is None:
            message = _Message(key)
            self._messages.append(message)
        if self._latest is not None and self._latest is not message:
            self._latest.overtaken = True
            self._overtook += 1
        if isinstance(header, UntaggedHeader):
            # Section 5.4: the ULP Message Length is the last segment's MO plus its payload length.
            begin, end = 0, header.mo + length
        else:
            if self._latest is not message:
                message.begin = header.to
            begin, end = message.begin, header.to + length
        if header.last:
            message.event = Delivered(self.stream, header, order, begin, end, octets)
        self._latest = None if header.last else message
        kept = sum(each.overtaken or each.event is not None for each in self._messages)
        if (self.waiting is not None and self.waiting < kept) or (
            self.overtakes is not None and self.overtakes < self._overtook
        ):
            return self._fail(LOCAL_CATASTROPHIC, header.encode() + bytes(length), order)
        while self._messages and (event := self._messages[0].event) is not None:
            self._messages.popleft()
            events.append(event)
        return events

    def _fail(
        self,
        number: ErrorNumber,
        segment: bytes,
        order: int,
        validation: Validation | None = None,
    ) -> list[Event]:
        header = segment[: header_length(segment)]
        self.error = DdpError(number, header, len(segment), self.stream, order, validation)
        return [self.error]
