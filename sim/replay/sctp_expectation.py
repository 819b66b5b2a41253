"""The RNIC's required behaviour for DDP over SCTP, beside MPA, in the RNIC's terms.

It consists of entries of the completion ring, packets of the exception stream, errors, and
counters. The steps (:mod:`..capture.sctp_traffic`) have the decisions of SCTP and of the sessions;
here the model's Data Sinks receive the segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...hdl.spec import regs
from ...hdl.spec.completion import ChunkStatus, Completion, Kind
from ...hdl.spec.config import RnicConfig
from ...hdl.spec.ddp import LOCAL_CATASTROPHIC
from ...hdl.spec.sctp import Diversion, Function, State
from ..capture.sctp_traffic import (
    Control,
    End,
    Fate,
    Illegal,
    Incoming,
    Item,
    SctpArrival,
    SctpStream,
)
from ..capture.streams import Arrival, Stream
from ..engines.engine import ExceptionPacket
from ..model.ddp import header_length
from ..model.events import DdpError, Delivered, Placed
from .expectation import Delivery, Expected, Golden, Receiver, Record, Sequence

#: The group of CHUNK and PACKET entries.
CHUNKS: Sequence = ("record", None)
_NO_SEGMENT = bytes(0)
_LAST = 0x40  #: the bit Last in the first octet of a segment (RFC 5041 section 4.1)
#: The state before a Terminate of the peer, by the state after it.
_BEFORE = {State.TERMINATE_RECEIVED: State.ESTABLISHED, State.CLOSED: State.TERMINATE_SENT}


@dataclass
class _Waiting:
    """The segments of a stream's session, by their sequence, before they have their turn.

    The last segments of messages are here until these are delivered. ``turn`` is the sequence of
    the segment whose turn is next.
    """

    arrivals: dict[int, SctpArrival] = field(default_factory=dict)
    turn: int = SctpStream.first_order

    def drop(self) -> None:
        """Drops the segments that have had their turn, except the last ones of messages."""
        while (arrival := self.arrivals.get(self.turn)) is not None:
            if arrival.ulpdu and not arrival.ulpdu[0] & _LAST:
                del self.arrivals[self.turn]
            self.turn += 1


class SctpGolden(Golden):
    """A :class:`Golden` that also takes the frames of SCTP."""

    def __init__(
        self,
        streams: Iterable[Stream],
        domains: dict[str, int],
        config: RnicConfig,
    ) -> None:
        self._sctp: set[int] = set()
        #: The entries of both queues, in the order in which their causes arrive.
        self.ring: list[Expected] = []
        self._waiting: dict[int, _Waiting] = {}
        self._counters = dict.fromkeys(regs.SCTP_COUNTERS, 0)
        self._diverted = self._dropped = 0
        self._terminated: dict[int, int] = {}  # the frame of a stream's last Terminate
        self.chunks = 0  #: how many chunks the accepted packets had
        super().__init__(streams, domains, config)

    @property
    def frames(self) -> int:
        """The number of frames that arrived."""
        return sum(self._counters[name] for name in ("FRAMES", "FRAMES_DIVERTED", "FRAMES_DROPPED"))

    @property
    def packets(self) -> int:
        """The number of accepted packets of associations."""
        return self._counters["FRAMES"]

    @property
    def entries(self) -> int:
        return self._dropped + len(self.ring)

    def forget(self) -> None:
        super().forget()
        self._dropped += len(self.ring)
        self.ring.clear()

    def sequences(self) -> dict[Sequence, list[Expected]]:
        found: dict[Sequence, list[Expected]] = {}
        for entry in self.ring:
            found.setdefault(self.sequence(entry.completion), []).append(entry)
        return found

    def sequence(self, entry: Completion) -> Sequence:
        if entry.kind in (Kind.CHUNK, Kind.PACKET):
            return CHUNKS
        if entry.kind is Kind.SESSION:
            return ("session event", entry.stream)
        if entry.kind is Kind.CONTROL:
            return ("control message", entry.stream)
        if entry.stream in self._sctp:
            return ("delivery", entry.stream)
        return super().sequence(entry)

    def know(self, stream: SctpStream) -> None:
        """Adds a stream on which segments of SCTP arrive; it is not enabled yet."""
        self._sctp.add(stream.number)
        self.start(stream)
        self._receivers[stream.number].live = False

    def start(self, stream: Stream, position: int = 0) -> None:
        super().start(stream, position)
        self._waiting[stream.number] = _Waiting()

    def open_session(self, stream: SctpStream) -> None:
        """Counts a session that is opened on a stream."""
        self.counts[stream.number].sessions += 1

    def receive(self, arrival: Arrival) -> list[Delivery]:
        delivered = super().receive(arrival)
        self.ring += delivered
        return delivered

    def frame(self, step: Incoming) -> list[Delivery]:
        """Takes a frame that arrives; returns the deliveries that it causes."""
        before = len(self.deliveries)
        if step.fate is Fate.DIVERTED:
            self._counters["FRAMES_DIVERTED"] += 1
            self._divert(0, 0, step.octets, Diversion.FRAME)
        elif step.fate is Fate.DROPPED:
            self._counters["FRAMES_DROPPED"] += 1
        else:
            assert step.end is not None
            self._counters["FRAMES"] += 1
            self.chunks += len(step.items)
            for item in step.items:
                self._item(step, step.end, item, ends=item is step.items[-1])
            # The record of a last chunk reports the packet's end, too.
            if not step.items or step.items[-1].stream is None:
                packet = Completion(
                    1, kind=Kind.PACKET, length=len(step.items), cookie=step.end.number << 16
                )
                self.ring.append(Record(packet, f"frame {step.frame} ({step.end}), its packet"))
        return self.deliveries[before:]

    def _item(self, step: Incoming, end: End, item: Item, *, ends: bool) -> None:
        if item.stream is None:
            assert item.diversion is not None
            self._divert(end.number, item.tsn, item.raw, item.diversion)
            return
        where = f"frame {step.frame}, TSN {item.tsn}, {item.stream}"
        if item.diversion is not None:
            control = item.diversion is Diversion.CONTROL
            source = item.stream.number if control else end.number
            self._divert(source, item.tsn, item.raw, item.diversion)
        status, octets = item.status, 0
        delivered: list[Delivered] = []
        assert status is not None
        if item.segment is not None:
            status, octets, delivered = self._segment_of(item.segment, where)
        number = item.stream.number
        counts = self.counts[number]
        if status is ChunkStatus.DUPLICATE:
            counts.duplicates += 1
            self._counters["CHUNKS_DUPLICATE"] += 1
        elif status is ChunkStatus.OUTSIDE:
            self._counters["CHUNKS_OUTSIDE"] += 1
        elif status in (ChunkStatus.ILLEGAL, ChunkStatus.SILENT):
            self._counters["CHUNKS_REFUSED"] += 1
        chunk = Completion(
            1,
            kind=Kind.CHUNK,
            status=status,
            stream=number,
            tag=item.tsn,
            length=octets,
            cookie=item.ssn | end.number << 16,
            ends=ends,
        )
        self.ring.append(Record(chunk, f"{where}, its chunk"))
        self._deliver_all(self._receivers[number], delivered, item.stream)
        for each in item.outcome:
            self._tell(item.stream, each, where, step.frame)

    def _segment_of(
        self, arrival: SctpArrival, where: str
    ) -> tuple[ChunkStatus, int, list[Delivered]]:
        """Takes a segment; returns status and octets of its chunk, and the deliveries."""
        number = arrival.stream.number
        receiver, waiting = self._receivers[number], self._waiting[number]
        if not self._takes(receiver, arrival):
            return ChunkStatus.DROPPED, 0, []
        segment = arrival.ulpdu
        judged = self._judge(arrival)
        judged.received = True
        waiting.arrivals[arrival.sequence] = arrival
        status, octets = ChunkStatus.DROPPED, 0
        delivered: list[Delivered] = []
        for event in receiver.sink.receive(segment, arrival.sequence):
            if isinstance(event, Placed | DdpError) and event.validation is not None:
                judged.validation = event.validation
            match event:
                case Placed():
                    status, octets = ChunkStatus.TAKEN, event.length
                    self._place(receiver, arrival, event, segment[event.header.size :])
                case Delivered():
                    delivered.append(event)
                case DdpError() if status is ChunkStatus.DROPPED:
                    self._fail(
                        arrival, event.number, segment[: header_length(segment)], len(segment)
                    )
                    self._refuse(arrival, event.number, arrival)
                case DdpError():
                    # The error was found at the segment's turn, after the segment itself was
                    # placed.
                    late = waiting.arrivals[event.order or 0]
                    if event.number == LOCAL_CATASTROPHIC:
                        late = replace(late, position=0)  # the event names only the stream
                    self._fail(late, event.number, _NO_SEGMENT, 0)
        waiting.drop()
        return status, octets, delivered

    def _deliver_all(
        self, receiver: Receiver, events: Iterable[Delivered], stream: SctpStream
    ) -> None:
        arrivals = self._waiting[stream.number].arrivals
        for event in events:
            self._deliver(receiver, arrivals.pop(event.order), event)
            self.ring.append(self.deliveries[-1])

    def _tell(self, stream: SctpStream, said: Control | Illegal, where: str, frame: int) -> None:
        if isinstance(said, Control):
            if said.function == Function.TERMINATE:
                self._terminated[stream.number] = frame
            entry = Completion(1, kind=Kind.CONTROL, stream=stream.number, tag=int(said.function))
            name = said.function.name.replace("_", " ").title()
            self.ring.append(Record(entry, f"{where}, {name}"))
        else:
            entry = Completion(
                1, kind=Kind.SESSION, status=said.reason, stream=stream.number, tag=int(said.state)
            )
            # The Terminate of the same frame may have its turn after the event.
            same = self._terminated.get(stream.number) == frame
            before = _BEFORE.get(said.state) if same else None
            self.ring.append(Record(entry, f"{where}, its session", before))

    def _divert(self, stream: int, sequence: int, octets: bytes, reason: Diversion) -> None:
        self._diverted += 1
        self._leave(ExceptionPacket(stream, sequence, octets, reason))

    def totals(self) -> dict[str, int]:
        counts = super().totals()
        counts["EXCEPTIONS"] += self._diverted
        counts["DELIVERED"] = self.entries
        return counts | self._counters
