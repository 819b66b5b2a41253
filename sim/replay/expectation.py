"""The RNIC's required behaviour in a replay, according to the golden model.

The model's MPA and Data Sinks receive every FPDU. Their events are expressed in the RNIC's terms:
completions for delivered messages, an event and an exception packet for the first error of a
stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

from ...hdl.spec.completion import Completion, Status
from ...hdl.spec.config import RnicConfig
from ...hdl.spec.ddp import (
    LLP_CRC,
    LLP_FRAMING,
    LOCAL_CATASTROPHIC,
    OVERTAKES,
    WAITING,
    ErrorNumber,
)
from ...hdl.spec.sctp import State
from ...hdl.spec.stag import Access
from ..capture.streams import Arrival, Stream
from ..engines.engine import ExceptionPacket
from ..model.checks import Validation
from ..model.ddp import DataSink, TaggedHeader, UntaggedHeader, header_length
from ..model.events import DdpError, Delivered, LlpError, Placed
from ..model.memory import Access as ModelAccess
from ..model.memory import Memory
from ..model.memory import Region as ModelRegion
from ..model.mpa import Fpdu, MpaReceiver
from .regions import Region

_LENGTH_FIELD = 2


@dataclass(frozen=True)
class Pages:
    """Pages of ``2**shift`` octets, by host address, over which memory is scattered.

    The memory's first octet is ``offset`` octets into the first page.
    """

    shift: int
    addresses: tuple[int, ...]
    offset: int


def spans(address: int, pages: Pages | None, offset: int, length: int) -> Iterator[tuple[int, int]]:
    """Yields the pieces of host memory, each an address and a length, of ``length`` octets from
    ``offset`` on.

    The memory lies at an address, or in pages.
    """
    if pages is None:
        yield address + offset, length
        return
    size = 1 << pages.shift
    offset += pages.offset
    while length:
        page, inside = divmod(offset, size)
        count = min(length, size - inside)
        yield pages.addresses[page] + inside, count
        offset, length = offset + count, length - count


def completion_of(stream: int, event: Delivered, cookie: int) -> Completion:
    """Returns the ring's entry for a message, in the first pass over the ring.

    ``cookie`` is that of the buffer, if the message is untagged.
    """
    header = event.header
    tagged = isinstance(header, TaggedHeader)
    return Completion(
        phase=1,
        tagged=tagged,
        status=Status.DELIVERED,
        stream=stream,
        tag=header.stag if isinstance(header, TaggedHeader) else header.msn,
        length=event.length,
        cookie=event.begin % (1 << 32) if tagged else cookie,
        rsvdulp=header.rsvdulp,
        qn=header.qn if isinstance(header, UntaggedHeader) else 0,
    )


def model_access(access: Access) -> ModelAccess:
    """Returns rights in the model's own words, which it shares with nothing."""
    return reduce(or_, (ModelAccess[str(right.name)] for right in access), ModelAccess.NONE)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer that is posted for the message ``msn`` of a stream's queue.

    It lies at a host address, or in pages. ``session`` is the number of the stream's session, with
    SCTP.
    """

    stream: int
    qn: int
    msn: int
    address: int
    length: int
    cookie: int
    pages: Pages | None = None
    session: int = 0

    @property
    def end(self) -> int:
        return self.address + self.length

    def __str__(self) -> str:
        return f"the buffer of stream {self.stream} QN {self.qn} MSN {self.msn}"


class _Unkept(bytearray):
    """The octets of a region that nobody reads: they take no memory."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __setitem__(self, place: object, octets: object) -> None:
        """Forgets the octets."""


@dataclass(frozen=True)
class Placement:
    """Octets that a segment must write: its payload, at an offset in a region or buffer."""

    arrival: Arrival
    target: Region | Buffer
    offset: int
    payload: bytes


@dataclass(frozen=True)
class Delivery:
    """A message that must be delivered with a segment; ``buffer`` holds an untagged message.

    The completion's phase is that of the first pass over the ring.
    """

    arrival: Arrival
    completion: Completion
    buffer: Buffer | None

    @property
    def text(self) -> str:
        arrival = self.arrival
        return (
            f"stream {arrival.stream.number} ({arrival.stream}),"
            f" frame {arrival.frame}, segment {arrival.order}"
        )


@dataclass(frozen=True)
class Record:
    """An entry of the ring that is not a message, and its meaning in words.

    An event of a session may also report ``state``, the session's state before.
    """

    completion: Completion
    text: str
    state: State | None = None


Expected = Delivery | Record
#: The name of a group of entries that are in order among themselves, and its stream, or None.
Sequence = tuple[str, int | None]
#: The group of MPA's messages.
MESSAGES: Sequence = ("completion", None)


@dataclass(frozen=True)
class ExpectedError:
    """The error event that a segment must raise. ``header`` starts with the LLP's length, as
    in the event.
    """

    arrival: Arrival
    number: ErrorNumber
    header: bytes
    length: int


@dataclass
class Judged:
    """The golden model's judgement of a segment.

    Parameters
    ----------
    arrival
        The segment.
    received
        Whether DDP got the segment: the stream was live, and the LLP found the segment sound.
    validation
        The checks of RFC 5041 section 7.1; None if DDP did not get a whole header.
    error
        The error that the segment caused, also at its turn, after it was placed; or None.
    dropped
        Whether the segment was dropped silently, because its stream accepts nothing more.
    after
        The earlier error for which it was dropped; None if the host had stopped the stream.
    """

    arrival: Arrival
    received: bool = False
    validation: Validation | None = None
    error: ErrorNumber | None = None
    dropped: bool = False
    after: ExpectedError | None = None


@dataclass
class StreamCounts:
    """Counts of the outcomes of a stream's segments and messages."""

    segments: int = 0
    placed: int = 0
    octets: int = 0
    delivered: int = 0
    exceptions: int = 0
    errors: int = 0
    dropped: int = 0
    duplicates: int = 0
    sessions: int = 0


@dataclass
class Receiver:
    """A stream's part of the model."""

    mpa: MpaReceiver
    sink: DataSink
    counts: StreamCounts = field(default_factory=StreamCounts)
    live: bool = True


class Golden:
    """The model's receivers for the streams of hosts that share an RNIC.

    Parameters
    ----------
    streams
        The streams that arrive.
    domains
        The Protection Domain of each host, by address.
    config
        The configuration of the shared RNIC.
    """

    def __init__(
        self,
        streams: Iterable[Stream],
        domains: dict[str, int],
        config: RnicConfig | None = None,
    ) -> None:
        self.domains = domains
        self.memory = Memory()
        self.octets: dict[Region, bytearray] = {}
        #: These three lists are in order.
        self.deliveries: list[Delivery] = []
        self.errors: list[ExpectedError] = []
        self.exceptions: list[ExceptionPacket] = []
        self.placements: list[Placement] = []
        #: The judgement of each segment, by the receiving host and the segment's order there.
        self.judged: dict[tuple[str, int], Judged] = {}
        self.exceptions_dropped = 0
        self._forgotten = 0  # deliveries
        self._registered: dict[tuple[str, int], Region] = {}
        self._buffers: dict[tuple[int, int, int], Buffer] = {}
        self._config = config or RnicConfig()
        self._receivers: dict[int, Receiver] = {}
        self._ended: dict[int, ExpectedError] = {}  # the error of each stream that is in error
        for stream in streams:
            self.start(stream)

    @property
    def entries(self) -> int:
        """The number of entries that the completion ring has received."""
        return self._forgotten + len(self.deliveries)

    def forget(self) -> None:
        """Drops what grows with the traffic: deliveries, placements, judgements, and packets of
        the exception stream.
        """
        self._forgotten += len(self.deliveries)
        for each in self.deliveries:
            if (buffer := each.buffer) is not None:
                # A later session may have a buffer for the same message number.
                key = buffer.stream, buffer.qn, buffer.msn
                if self._buffers.get(key) is buffer:
                    del self._buffers[key]
        self.deliveries.clear()
        self.exceptions.clear()
        self.placements.clear()
        self.judged.clear()

    def sequences(self) -> dict[Sequence, list[Expected]]:
        """Returns the entries of the completion ring that are not forgotten, in groups that are in
        order.
        """
        return {MESSAGES: list(self.deliveries)}

    def sequence(self, entry: Completion) -> Sequence:
        """Returns the group of an entry."""
        return MESSAGES

    @property
    def counts(self) -> dict[int, StreamCounts]:
        """The counts of each stream, by its number."""
        return {number: receiver.counts for number, receiver in self._receivers.items()}

    def start(self, stream: Stream, position: int = 0) -> None:
        """Enables a stream, at a position of its MPA stream; its queues are closed."""
        before = self._receivers.get(stream.number)
        self._ended.pop(stream.number, None)
        self._receivers[stream.number] = Receiver(
            MpaReceiver(crc=stream.crc, markers=stream.markers, position=position),
            DataSink(
                self.memory,
                stream=stream.number,
                pd=self.domains[stream.destination.address],
                first=stream.first_order,
                waiting=WAITING,
                overtakes=OVERTAKES,
            ),
            before.counts if before else StreamCounts(),
        )

    def add(self, region: Region, *, kept: bool = True) -> None:
        """Gives a region its octets, before it is registered. If they are not ``kept``, only the
        placements show the writes to the region.
        """
        length = region.length
        self.octets[region] = bytearray([region.fill]) * length if kept else _Unkept(length)

    def register(self, region: Region) -> None:
        """Registers a region; its octets remain after a revocation."""
        self.memory.register(
            ModelRegion(
                stag=region.stag,
                to=region.to,
                length=region.length,
                access=model_access(region.access),
                pd=self.domains[region.endpoint] if region.stream is None else None,
                stream=region.stream,
            ),
            self.octets[region],
        )
        self._registered[region.endpoint, region.stag] = region

    def revoke(self, region: Region) -> bool:
        """Revokes a region; returns whether it was registered."""
        if self._registered.get((region.endpoint, region.stag)) is not region:
            return False
        del self._registered[region.endpoint, region.stag]
        return self.memory.revoke(region.stag)

    def registered(self, endpoint: str, stag: int) -> Region | None:
        """Returns the region that an STag of a host names now, or None."""
        return self._registered.get((endpoint, stag))

    def holder(self, region: Region) -> Region | None:
        """Returns the registered region of the same host with the same index, or None."""
        for (endpoint, stag), other in self._registered.items():
            if endpoint == region.endpoint and stag >> 8 == region.index:
                return other
        return None

    def open(self, stream: int, qn: int, first: int = 1) -> None:
        """Opens a queue of a stream; ``first`` is its first buffer's MSN."""
        self._receivers[stream].sink.open_queue(qn, first=first)

    def post(self, buffer: Buffer) -> None:
        """Posts a buffer; buffers are posted in the order of their MSNs."""
        self._buffers[buffer.stream, buffer.qn, buffer.msn] = buffer
        self._receivers[buffer.stream].sink.post(buffer.qn, buffer.length)

    def stop(self, stream: int) -> None:
        """Disables a stream, and revokes the STags bound to it."""
        self._receivers[stream].live = False
        for gone in self.memory.revoke_stream(stream):
            self._registered = {
                key: region for key, region in self._registered.items() if region.stag != gone.stag
            }

    def kept(self, stream: int) -> int:
        """Returns how many messages of a stream have begun and are not delivered."""
        return self._receivers[stream].sink.kept

    def live(self, stream: int) -> bool:
        """Returns whether a stream has had no error and was not stopped."""
        return self._receivers[stream].live

    def receive(self, arrival: Arrival) -> list[Delivery]:
        """Takes an FPDU; returns the deliveries that it causes."""
        receiver = self._receivers[arrival.stream.number]
        if not self._takes(receiver, arrival):
            return []
        before = len(self.deliveries)
        # An incomplete FPDU is the end of its packet.
        for fpdu in receiver.mpa.receive(arrival.raw) or receiver.mpa.close():
            length = fpdu.length if isinstance(fpdu, LlpError) else len(fpdu.ulpdu)
            if (length + 9) // 4 > self._config.longest_fpdu:  # with its length, PAD and CRC
                header = arrival.ulpdu[: header_length(arrival.ulpdu)]
                self._fail(arrival, LLP_FRAMING, header, length)
            elif isinstance(fpdu, LlpError):
                receiver.sink.fail(fpdu)
                self._fail(arrival, fpdu.number, fpdu.header, fpdu.length)
                self._refuse(arrival, fpdu.number, fpdu)
            else:
                self._segment(receiver, arrival, fpdu)
        return self.deliveries[before:]

    def _judge(self, arrival: Arrival) -> Judged:
        """Returns the judgement of a segment; the caller fills it in."""
        return self.judged.setdefault((arrival.endpoint, arrival.order), Judged(arrival))

    def _takes(self, receiver: Receiver, arrival: Arrival) -> bool:
        """Counts a segment; returns False if its stream drops it."""
        receiver.counts.segments += 1
        judged = self._judge(arrival)
        if not receiver.live:
            receiver.counts.dropped += 1
            judged.dropped, judged.after = True, self._ended.get(arrival.stream.number)
        return receiver.live

    def _segment(self, receiver: Receiver, arrival: Arrival, fpdu: Fpdu) -> None:
        segment = fpdu.ulpdu
        placed = False
        judged = self._judge(arrival)
        judged.received = True
        for event in receiver.sink.receive(segment):
            if isinstance(event, Placed | DdpError) and event.validation is not None:
                judged.validation = event.validation
            match event:
                case Placed():
                    placed = True
                    self._place(receiver, arrival, event, segment[event.header.size :])
                case Delivered():
                    self._deliver(receiver, arrival, event)
                case DdpError(number=number) if number == LOCAL_CATASTROPHIC:
                    # The event names only the stream.
                    self._fail(replace(arrival, position=0), number, b"", 0)
                case DdpError():
                    header = segment[: header_length(segment)]
                    self._fail(arrival, event.number, header, len(segment))
                    # A segment that was placed out of turn has reached the host, and is no
                    # exception.
                    if not placed:
                        self._refuse(arrival, event.number, fpdu)

    def _place(self, receiver: Receiver, arrival: Arrival, event: Placed, payload: bytes) -> None:
        receiver.counts.placed += 1
        receiver.counts.octets += event.length
        if not event.length:
            return
        header = event.header
        if isinstance(header, TaggedHeader):
            region = self._registered[arrival.endpoint, header.stag]
            self.placements.append(Placement(arrival, region, header.to - region.to, payload))
        else:
            buffer = self._buffers[arrival.stream.number, header.qn, header.msn]
            self.placements.append(Placement(arrival, buffer, header.mo, payload))

    def _deliver(self, receiver: Receiver, arrival: Arrival, event: Delivered) -> None:
        receiver.counts.delivered += 1
        header, stream = event.header, arrival.stream.number
        buffer = None
        if isinstance(header, UntaggedHeader):
            buffer = self._buffers[stream, header.qn, header.msn]
        completion = completion_of(stream, event, buffer.cookie if buffer else 0)
        self.deliveries.append(Delivery(arrival, completion, buffer))

    def _fail(self, arrival: Arrival, number: ErrorNumber, header: bytes, length: int) -> None:
        receiver = self._receivers[arrival.stream.number]
        receiver.live = False
        receiver.counts.errors += 1
        error = ExpectedError(
            arrival, number, length.to_bytes(_LENGTH_FIELD, "big") + header, length
        )
        self.errors.append(error)
        self._ended[arrival.stream.number] = error
        self._judge(arrival).error = number

    def _refuse(
        self, arrival: Arrival, number: ErrorNumber, fpdu: Fpdu | LlpError | Arrival
    ) -> None:
        stream = arrival.stream.number
        self._receivers[stream].counts.exceptions += 1
        reason = number.type << 8 | number.code
        self._leave(ExceptionPacket(stream, fpdu.position & 0xFFFFFFFF, fpdu.raw, reason))

    def _leave(self, packet: ExceptionPacket) -> None:
        """Sends a packet to the exception stream."""
        if len(packet.octets) > self._config.exception_octets:
            self.exceptions_dropped += 1
        else:
            self.exceptions.append(packet)

    def refuse_write(self, arrival: Arrival, octets: range) -> None:
        """Makes the bus refuse these octets of the last segment's last write."""
        last = self.placements.pop()
        for start, stop in (
            (last.offset, octets.start),
            (octets.stop, last.offset + len(last.payload)),
        ):
            begin = max(start, last.offset) - last.offset
            if piece := last.payload[begin : max(stop - last.offset, 0)]:
                self.placements.append(replace(last, offset=last.offset + begin, payload=piece))
        # The messages that waited for this one were delivered with it.
        at = len(self.deliveries)
        while at and self.deliveries[at - 1].arrival is arrival:
            at -= 1
            delivery = self.deliveries[at]
            completion = delivery.completion._replace(status=Status.NOT_PLACED)
            self.deliveries[at] = replace(delivery, completion=completion)
        # A stream reports its first error: one message too many may have failed it already.
        if self.live(arrival.stream.number):
            # The event names the stream alone.
            self._fail(replace(arrival, position=0), LOCAL_CATASTROPHIC, b"", 0)

    def counters(self) -> dict[str, int]:
        """Returns the values that the RNIC's counter registers must have at the end."""
        first = -1 if self._config.full_counters else 0
        return {
            name: (first + total) % (1 << (64 if name == "PLACED_OCTETS" else 32))
            for name, total in self.totals().items()
        }

    def totals(self) -> dict[str, int]:
        """Returns how many events each of the RNIC's counters has counted."""
        counts = list(self.counts.values())
        return {
            "PLACED_SEGMENTS": sum(each.placed for each in counts),
            "PLACED_OCTETS": sum(each.octets for each in counts),
            "EXCEPTIONS": sum(each.exceptions for each in counts),
            "EXCEPTIONS_DROPPED": self.exceptions_dropped,
            "ERRORS": sum(each.errors for each in counts),
            "DROPPED": sum(each.dropped for each in counts),
            "DIGEST_ERRORS": sum(error.number == LLP_CRC for error in self.errors),
            "DELIVERED": sum(each.delivered for each in counts),
            "DOORBELLS_IGNORED": 0,  # an engine's host rings through the registers
        }
