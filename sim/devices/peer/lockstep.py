"""The gateware and the golden model in lock step: both get each packet, and must agree on it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple

from ....hdl.spec import commands
from ....hdl.spec.completion import Completion
from ....hdl.spec.completion import Kind as CompletionKind
from ....hdl.spec.config import RnicConfig
from ....hdl.spec.ddp import OVERTAKES, QUEUE_OVERRUN, WAITING, ErrorNumber
from ....hdl.spec.send import Kind, Record
from ....sw_driver.base.errors import ErrorEvent, RnicError
from ....sw_driver.cm.framing import Cutter
from ....sw_driver.rdmap import wire
from ....sw_driver.transports.memory import Steps
from ....sw_driver.transports.transport import SentFpdu
from ....sw_driver.verbs.context import SERVED, Context
from ....sw_driver.verbs.known import KnownStream
from ....sw_driver.verbs.pd import MR, PD, Access
from ....sw_driver.verbs.responding import Responder
from ....sw_driver.verbs.sending import SendingHalf, SendSettings
from ....sw_driver.verbs.stream import Stream
from ...model.ddp import TaggedHeader, decode_segment, header_length
from ...model.events import DdpError, Delivered, LlpError, Placed
from ...model.header import UntaggedHeader
from ...model.memory import Access as ModelAccess
from ...model.memory import Memory, Region
from ...model.mpa import Fpdu, MpaReceiver, MpaSender
from ...model.rdmap import Opcode, QueueNumber, ReadRequest, ReadSink, opcode
from ...replay.expectation import completion_of
from ..live import SimTransport

_REMOTE = {
    Access.REMOTE_WRITE: ModelAccess.REMOTE_WRITE,
    Access.REMOTE_READ: ModelAccess.REMOTE_READ,
}
_NONE = ModelAccess.NONE
#: How many cycles pass between two looks at a packet that the device is taking.
_CYCLES = 50
#: The counters of the device that the model counts, too.
_COUNTERS = ("PLACED_SEGMENTS", "PLACED_OCTETS_LO", "DELIVERED", "ERRORS")


class Differs(RnicError):
    """The gateware and the golden model differ. The message says where."""


@dataclass
class Receiver:
    """The model of one stream."""

    mpa: MpaReceiver
    sink: ReadSink
    cutter: Cutter
    frames: int = 0
    expected: deque[tuple[Completion, Delivered]] = field(default_factory=deque)
    error: tuple[ErrorNumber, bytes, int] | None = None  #: number, header and length of the segment
    overran: bool = False  #: a message found its completion queue full
    delivered: list[Delivered] = field(default_factory=list)
    #: The MSN after the last slot for a Read Request that the model knows; 0: the host answers.
    slots: int = 0
    #: Called with each message that was delivered, once memory was compared.
    observe: Callable[[Delivered], object] | None = None


class LockStep(SimTransport):
    """Simulated gateware that a golden model accompanies.

    Each FPDU is received completely by both before anything else happens. The model then compares
    the octets that the packet has placed, the completions and the error.

    Parameters
    ----------
    config
        The configuration of the gateware.
    seed
        The seed of the bus addresses.
    together
        The device receives all FPDUs that are sent before the next :meth:`wait` without a pause
        between them, those of several streams mixed. The comparison follows in :meth:`wait`.
    options
        Further parameters of :class:`~..live.SimTransport`.

    Attributes
    ----------
    rng
        Draws Tagged Offsets.
    served
        Functions that are called after each packet.
    octets
        How many octets were placed and compared.
    rooms
        For each stream whose completions nobody takes for now, how many of them its queue holds.
    """

    def __init__(
        self,
        config: RnicConfig | None = None,
        *,
        seed: int = 1,
        together: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(config, seed=seed, **options)
        self.seed, self.rng = seed, random.Random(seed)
        self._together = together
        #: What the model has placed, by stream, since the last comparison.
        self._placed: dict[int, list[tuple[Placed, bytes]]] = {}
        self.memory = Memory()
        self.served: list[Callable[[], object]] = []
        self.octets = 0
        self.rooms: dict[int, int] = {}
        self.receivers: dict[int, Receiver] = {}
        self._context: Context | None = None
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._before = dict.fromkeys(_COUNTERS, 0)

    def watch(self, context: Context) -> None:
        """Lets the model follow the streams and regions of a context, which must have none yet."""
        self._context = context
        # An attribute of this context alone.
        context.kinds = {Stream: _Stream, MR: _Region}  # type: ignore[misc]
        context.hand_on = partial(self._hand_on, context.hand_on)  # type: ignore[method-assign]
        context.look = partial(self._look, context.look)  # type: ignore[method-assign]
        self._before = {name: context.registers.read(name) for name in _COUNTERS}

    def _hand_on(self, hand_on: Callable[[Completion], None], completion: Completion) -> None:
        """Counts the completions that are not of messages of a peer, and passes all on."""
        self._counts["DELIVERED"] += completion.kind is CompletionKind.SENT
        hand_on(completion)

    def _look(self, look: Callable[..., bool], *given: Any) -> bool:
        """Does the work of :meth:`.Context.look`. An idle device may have packets before it."""
        waiting = self.sending
        return look(*given) and not waiting

    def send(self, stream: int, sequence: int, octets: bytes, *, error: bool = False) -> None:
        assert self._context is not None
        for fpdu in self.receivers[stream].cutter.receive(octets):
            if stream in self._context.streams:  # an FPDU before may have ended the stream
                self._send_one(stream, fpdu.position % 2**32, fpdu.octets, error)

    def _send_one(self, stream: int, sequence: int, octets: bytes, error: bool) -> None:
        if stream not in self._placed:
            self._post_slots(stream)
        super().send(stream, sequence, octets, error=error)
        placed = self._placed.setdefault(stream, [])
        placed += self._expect(self.receivers[stream], stream, octets)
        if not self._together:
            self._receive_all()

    def wait(self, timeout: float) -> None:
        if self._placed:
            self._receive_all()
        else:
            super().wait(timeout)

    def compare(self) -> None:
        """Compares everything that the device receives now; then memory may be given back."""
        if self._placed:
            self._receive_all()

    def _receive_all(self) -> None:
        """Lets the device receive everything that was sent, and compares the outcome."""
        assert self._context is not None
        while not self._context.look(SERVED):
            self.run(_CYCLES)
        received = dict(self._placed)
        self._placed.clear()
        for stream, placed in received.items():
            self._compare(stream, placed)
        for stream in received:
            receiver = self.receivers[stream]
            if receiver.observe is not None:
                for event in receiver.delivered:
                    receiver.observe(event)
            receiver.delivered.clear()
        for each in list(self.served):
            each()

    # -- the model --------------------------------------------------------------------------------

    def _post_slots(self, stream: int) -> None:
        """Posts the slots that the device has posted again since the last FPDU."""
        assert self._context is not None
        receiver, owner = self.receivers[stream], self._context.streams[stream]
        if not receiver.slots:
            return
        registers = self._context.registers
        registers.write("SEND_STREAM", stream)
        ahead = registers.read("RESPONSE_NEXT") + owner.sending.responder.ird - receiver.slots
        receiver.sink.post(QueueNumber.READ_REQUEST, ReadRequest.SIZE, ahead)
        receiver.slots += ahead

    def _expect(self, receiver: Receiver, stream: int, octets: bytes) -> list[tuple[Placed, bytes]]:
        """Gives a packet to the model; returns what the model has placed."""
        placed = []
        for fpdu in receiver.mpa.receive(octets) or receiver.mpa.close():
            receiver.frames += 1
            length = fpdu.length if isinstance(fpdu, LlpError) else len(fpdu.ulpdu)
            if receiver.sink.error is not None or receiver.overran:
                break
            if (length + 9) // 4 > self.config.longest_fpdu:  # with its length, PAD and CRC
                header = b"" if isinstance(fpdu, LlpError) else fpdu.ulpdu
                raise Differs(f"an FPDU of {length} octets does not fit the device: {header!r}")
            if isinstance(fpdu, LlpError):
                receiver.sink.fail(fpdu)
                self._fail(receiver, fpdu.number, fpdu.header, fpdu.length)
            else:
                placed += self._segment(receiver, stream, fpdu)
        return placed

    def _segment(self, receiver: Receiver, stream: int, fpdu: Fpdu) -> list[tuple[Placed, bytes]]:
        placed = []
        for event in receiver.sink.receive(fpdu.ulpdu):
            match event:
                case Placed():
                    self._counts["PLACED_SEGMENTS"] += 1
                    self._counts["PLACED_OCTETS_LO"] += event.length
                    self.octets += event.length
                    placed.append((event, fpdu.ulpdu[event.header.size :]))
                case Delivered():
                    if receiver.slots and _is_request(event):  # the device answers it
                        receiver.delivered.append(event)
                        continue
                    if _queue_of(event) == QueueNumber.READ_REQUEST:
                        receiver.slots = 0  # it answers no later one
                    if len(receiver.expected) == self.rooms.get(stream):
                        receiver.overran = True
                        self._fail(receiver, QUEUE_OVERRUN, b"", 0)  # it names the stream alone
                        continue
                    self._counts["DELIVERED"] += 1
                    receiver.expected.append((completion_of(stream, event, 0), event))
                case DdpError():
                    header = fpdu.ulpdu[: header_length(fpdu.ulpdu)]
                    self._fail(receiver, event.number, header, len(fpdu.ulpdu))
        return placed

    def _fail(self, receiver: Receiver, number: ErrorNumber, header: bytes, length: int) -> None:
        self._counts["ERRORS"] += 1
        receiver.error = number, header, length

    # -- the comparison ---------------------------------------------------------------------------

    def _compare(self, stream: int, placed: list[tuple[Placed, bytes]]) -> None:
        """Compares memory after a packet; completions and errors were compared as they came."""
        assert self._context is not None
        owner = self._context.streams[stream]
        assert isinstance(owner, _Stream)
        places = []
        for event, payload in placed:
            view, start = owner.memory_of(event) if payload else (None, 0)
            if view is not None:
                places.append(_Place(event, view, start, payload))
        for at, place in enumerate(places):
            octets, found = place.octets, place.view[place.start : place.stop]
            if found != octets:
                for later in places[at + 1 :]:
                    octets = later.over(place, octets)
            if found != octets:
                header = place.event.header
                self.differ(stream, f"the octets of {header}", octets.hex(), "others")
        receiver = self.receivers[stream]
        if receiver.expected and stream not in self.rooms:
            self.differ(stream, "completions", receiver.expected[0][0], "none")
        if receiver.error is not None:
            self.differ(stream, "errors", receiver.error, "none")

    def differ(self, stream: int, what: str, expected: object, got: object) -> None:
        frames = self.receivers[stream].frames if stream in self.receivers else 0
        raise Differs(
            f"gateware and golden model differ in {what} of stream {stream} at FPDU {frames},"
            f" seed {self.seed}, cycle {self.cycle}: expected {expected}, got {got}"
        )

    def compare_counters(self) -> None:
        """Compares the counters of the device with those of the model."""
        assert self._context is not None
        self._context.settle()  # all completions of sent messages are counted then
        for name, count in self._counts.items():
            got = (self._context.registers.read(name) - self._before[name]) % (1 << 32)
            if got != count % (1 << 32):
                raise Differs(
                    f"gateware and golden model differ in {name}, seed {self.seed}:"
                    f" expected {count}, got {got}"
                )


class _Place(NamedTuple):
    """Octets of a segment, and where they were placed in memory that ``view`` shows."""

    event: Placed
    view: memoryview
    start: int
    octets: bytes

    @property
    def stop(self) -> int:
        return self.start + len(self.octets)

    def over(self, before: _Place, octets: bytes) -> bytes:
        """Returns what an earlier segment's ``octets`` have become with this segment."""
        start, stop = max(self.start, before.start), min(self.stop, before.stop)
        if self.view is not before.view or start >= stop:
            return octets
        own = self.octets[start - self.start : stop - self.start]
        return octets[: start - before.start] + own + octets[stop - before.start :]


def _queue_of(event: Delivered) -> int | None:
    return event.header.qn if isinstance(event.header, UntaggedHeader) else None


def _is_request(event: Delivered) -> bool:
    """Returns whether a message is a Read Request that the device answers by itself."""
    return (
        _queue_of(event) == QueueNumber.READ_REQUEST
        and event.length == ReadRequest.SIZE
        and opcode(event.header) == Opcode.READ_REQUEST
        and event.header.rsvdulp >> 38 in wire.VERSIONS
    )


class Lengths:
    """Checks the lengths of the segments that a stream sends (RFC 5041 section 5.1): all but the
    last one of a message have the MULPDU.

    Parameters
    ----------
    mulpdu
        The first MULPDU. A change holds from some segment on, and then for all later ones.
    """

    def __init__(self, mulpdu: int) -> None:
        self._mulpdus = deque([mulpdu])

    def change(self, stream: KnownStream, mulpdu: int) -> None:
        """Gives the stream another MULPDU."""
        self._mulpdus.append(mulpdu)
        stream.pd.context.registers.start(commands.set_mulpdu(stream.number, mulpdu))

    def fit(self, segment: bytes) -> bool:
        """Returns whether a segment has the length that it has to have."""
        last = decode_segment(segment)[0].last
        fitting = (
            at
            for at, mulpdu in enumerate(self._mulpdus)
            if len(segment) == mulpdu or (last and len(segment) < mulpdu)
        )
        if (at := next(fitting, None)) is None:
            return False
        for _ in range(at):
            self._mulpdus.popleft()
        return True


class Kept(NamedTuple):
    """An FPDU or a frame that may leave again, and its record."""

    octets: bytes
    record: Record

    @property
    def again(self) -> Record:
        """The record with which it leaves again."""
        first = Responder.FIRST if self.record.response else 0
        return replace(self.record, repeat=1, entry=(self.record.entry + first) % (1 << 16))


class SentJudge:
    """Compares the FPDUs that a stream sends with those of the model for the same segments, and
    the records of those that leave again with the first ones.

    Parameters
    ----------
    settings
        The settings of the stream's sending half.
    """

    def __init__(self, settings: SendSettings) -> None:
        crc, markers = settings.crc, settings.markers
        self._receiver = MpaReceiver(crc=crc, markers=markers)
        self._sender = MpaSender(crc=crc, markers=markers)
        self.lengths = Lengths(settings.mulpdu)
        self._kept: dict[int, Kept] = {}  # by position

    def forget(self, position: int) -> None:
        """Forgets the FPDUs before a position, which the peer has acknowledged: their buffers may
        have other octets now.
        """
        while self._kept and next(iter(self._kept)) < position:
            del self._kept[next(iter(self._kept))]

    def take(self, fpdu: SentFpdu) -> tuple[str, str] | None:
        """Takes an FPDU; returns the octets that the model expects, and those of the FPDU, if these
        differ; or both records.
        """
        octets, record = fpdu.octets, Record.decode(fpdu.record)
        if record.repeat:
            if (kept := self._kept.get(fpdu.sequence)) is None:
                return None  # the peer has acknowledged it meanwhile
            if record != kept.again:
                return str(kept.again), str(record)
            expected = kept.octets
        else:
            received, *_ = self._receiver.receive(octets) or self._receiver.close()
            if not isinstance(received, Fpdu):
                return "a sound FPDU", f"{octets.hex()}: {received}"
            header, payload = decode_segment(received.ulpdu)
            if not self.lengths.fit(received.ulpdu):
                return "the MULPDU", f"{header} and {len(payload)} octets"
            self._kept[self._sender.position] = Kept(octets, record)
            expected = self._sender.send(header.encode() + payload)
        return None if octets == expected else (expected.hex(), octets.hex())


class _Stream(Stream):
    """A stream that the model follows."""

    lengths: Lengths

    def __init__(
        self, *arguments: Any, crc: bool = True, markers: bool = False, **named: Any
    ) -> None:
        super().__init__(*arguments, crc=crc, markers=markers, **named)
        sim = self._sim
        sink = ReadSink(
            sim.memory, stream=self.number, pd=self.pd.number, waiting=WAITING, overtakes=OVERTAKES
        )
        for qn in self.queues:
            sink.open_queue(qn)
        sim.receivers[self.number] = Receiver(
            MpaReceiver(crc=crc, markers=markers), sink, Cutter(markers=markers)
        )

    @property
    def _sim(self) -> LockStep:
        sim = self.context.transport
        assert isinstance(sim, LockStep)
        return sim

    def post_recv(self, buffer: object, qn: int = 0, **named: Any) -> int:
        msn = super().post_recv(buffer, qn, **named)
        posted = next(reversed(self._posted.values()))
        self._sim.receivers[self.number].sink.post(qn, posted.length)
        return msn

    def send_by(
        self, settings: SendSettings, leave: Callable[[list[bytes]], object]
    ) -> SendingHalf:
        half = super().send_by(settings, leave)
        judge, take = SentJudge(settings), half.leave
        self.lengths = judge.lengths

        def left(fpdu: SentFpdu) -> None:
            judge.forget(half.outstanding)
            if complaint := judge.take(fpdu):
                self._sim.differ(self.number, "an FPDU that it sends", *complaint)
            take(fpdu)

        half.leave = left  # type: ignore[method-assign]
        self._sim.receivers[self.number].sink.bounded = self.context.reads > 0
        post, sink = half.post, self._sim.receivers[self.number].sink

        def posted(kind: Kind, body: Any, **named: Any) -> None:
            if kind is Kind.READ:
                source = named["stag"], named["to"]
                sink.expect(ReadRequest(body.stag, body.to, body.length, *source))
            post(kind, body, **named)

        half.post = posted  # type: ignore[method-assign]
        return half

    def answer_reads(self, ird: int) -> None:
        super().answer_reads(ird)
        receiver = self._sim.receivers[self.number]
        receiver.sink.post(QueueNumber.READ_REQUEST, ReadRequest.SIZE, ird)
        receiver.slots = 1 + ird

    def memory_of(self, event: Placed) -> tuple[memoryview | None, int]:
        """Returns the memory that a segment was placed in, and where; None if it is given back."""
        header = event.header
        if isinstance(header, TaggedHeader):
            region = self.context.tags[header.stag]
            return region.mapping.memory.view, header.to - region.to
        if self.sending is not None and (responder := self.sending.answering(header.qn)):
            memory, start = responder.slot(header.msn)
            return memory.view, start + header.mo
        for posted in self._posted.values():
            if (posted.qn, posted.msn) == (header.qn, header.msn):
                mapping = posted.region.mapping if posted.region else posted.mapping
                assert mapping is not None
                return mapping.memory.view, posted.offset * bool(posted.region) + header.mo
        return None, 0  # its completion was compared with all octets of the message

    def complete(self, completion: Completion) -> None:
        sim, receiver = self._sim, self._sim.receivers[self.number]
        if not receiver.expected:
            sim.differ(self.number, "completions", "none", completion)
        expected, event = receiver.expected.popleft()
        # The cookie of a tagged message is of its TO.
        posted = None if completion.tagged else self._posted.get(completion.cookie)
        cookie = completion.cookie if posted is not None else expected.cookie
        if completion != expected._replace(phase=completion.phase, cookie=cookie):
            sim.differ(self.number, "completions", expected, completion)
        if posted is not None and posted.length:
            mapping = posted.region.mapping if posted.region else posted.mapping
            assert mapping is not None
            start = posted.offset * bool(posted.region)
            if mapping.memory.view[start : start + event.length] != event.message:
                sim.differ(self.number, f"message {event.header}", event.message, "others")
        receiver.delivered.append(event)
        super().complete(completion)

    def fail(self, event: ErrorEvent) -> None:
        sim, receiver = self._sim, self._sim.receivers[self.number]
        if receiver.error is None:
            sim.differ(self.number, "errors", "none", event)
        else:
            number, header, length = receiver.error
            receiver.error = None
            if (event.number, event.header, event.length) != (number, header, length):
                sim.differ(self.number, "errors", (number, header, length), event)
        super().fail(event)

    def _disable(self) -> None:
        self._sim.compare()
        super()._disable()
        for gone in self._sim.memory.revoke_stream(self.number):
            self._sim.memory.forget(gone.stag)


class _Region(MR):
    """A region that the model follows. One for a stream alone, as the sink of a Read, begins at any
    Tagged Offset.
    """

    def __init__(self, pd: PD, buffer: Any, *arguments: Any, to: int = 0, **named: Any) -> None:
        if named.get("stream") is not None:
            sim = pd.context.transport
            assert isinstance(sim, LockStep)
            to = sim.rng.randint(0, (1 << 64) - len(buffer))
        super().__init__(pd, buffer, *arguments, to=to, **named)

    def _enter(self, stag: int) -> None:
        super()._enter(stag)
        self._sim.memory.register(
            Region(
                stag=stag,
                to=self.to,
                length=self.length,
                access=reduce(
                    or_, (_REMOTE[right] for right in _REMOTE if right & self.access), _NONE
                ),
                pd=None if self.stream is not None else self.pd.number,
                stream=self.stream.number if self.stream is not None else None,
            )
        )

    @property
    def _sim(self) -> LockStep:
        sim = self.pd.context.transport
        assert isinstance(sim, LockStep)
        return sim

    def disabling(self) -> Steps[None]:
        self._sim.compare()
        yield from super().disabling()
        if self._stag is not None:
            self._sim.memory.revoke(self._stag)
            self._sim.memory.forget(self._stag)
