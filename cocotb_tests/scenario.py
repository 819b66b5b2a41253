"""Describes traffic, written by hand or drawn at random, and the golden model's result for it.

A scenario is a list of operations, for any engine, and beside it the model's memory, completions,
events and exception packets. Host memory outside the regions and buffers is painted, and every
octet of it is checked.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..hdl.spec import commands
from ..hdl.spec.completion import Completion, phase
from ..hdl.spec.config import RnicConfig
from ..hdl.spec.ddp import (
    LLP_CRC,
    LLP_FRAMING,
    LOCAL_CATASTROPHIC,
    OVERTAKES,
    VERSION,
    WAITING,
    ErrorNumber,
)
from ..hdl.spec.stag import Access
from ..sim.campaigns.traffic.interleaving import Interleaving
from ..sim.capture.streams import QUEUES
from ..sim.engines.engine import (
    Await,
    Drain,
    ErrorEvent,
    ExceptionPacket,
    Outcome,
    Packet,
    Pause,
    Resume,
    Ring,
    no_counts,
)
from ..sim.model.ddp import DataSink, TaggedHeader, UntaggedHeader, header_length
from ..sim.model.events import DdpError, Delivered, LlpError, Placed
from ..sim.model.memory import Memory, Region
from ..sim.model.mpa import Fpdu, MpaReceiver, MpaSender
from ..sim.replay.expectation import Pages, completion_of, model_access, spans
from ..sim.replay.host import guard_octets
from ..sim.replay.tables import Tables

_HALF = 0xFFFFFFFF
_MSN = 1 << 32


def tagged(
    stag: int,
    to: int,
    payload: bytes,
    *,
    last: bool = True,
    version: int = VERSION,
    rsvdulp: int = 0,
) -> bytes:
    """Returns a tagged segment, octet by octet (RFC 5041 section 4.2)."""
    return struct.pack(">BBIQ", 0x80 | last << 6 | version, rsvdulp, stag, to) + payload


def untagged(
    payload: bytes,
    *,
    qn: int = 0,
    msn: int = 1,
    mo: int = 0,
    last: bool = True,
    version: int = VERSION,
    rsvdulp: int = 0,
) -> bytes:
    """Returns an untagged segment, octet by octet (RFC 5041 section 4.3)."""
    control = last << 6 | version
    return struct.pack(">BBIIII", control, rsvdulp >> 32, rsvdulp & _HALF, qn, msn, mo) + payload


#: The position of octets in host memory: an address, or pages.
_Place = tuple[int, Pages | None]


@dataclass
class _Buffer:
    place: _Place
    cookie: int


@dataclass
class _Queue:
    """A queue of a stream: the MSN of the next buffer to post, and the buffers by MSN."""

    following: int
    buffers: dict[int, _Buffer] = field(default_factory=dict)
    #: The count of completions with which each buffer's message was delivered.
    delivered: list[int] = field(default_factory=list)
    posted: int = 0


@dataclass
class _Stream:
    sender: MpaSender
    receiver: MpaReceiver
    sink: DataSink
    live: bool = True
    queues: dict[int, _Queue] = field(default_factory=dict)


class Scenario(Tables):
    """Collects operations, and their expected outcome.

    Attributes
    ----------
    operations : list[Operation]
        The operations; those for the ring come first.
    memory : NDArray[np.uint8]
        Initial host memory.
    ring : Ring
        The completion ring, after ``size`` octets of memory.
    completions : list[Completion]
    events : list[ErrorEvent]
        Expected error events; ``header`` is as long as the model knows it.
    exceptions : list[ExceptionPacket]
    counters : dict[str, int]

    Parameters
    ----------
    size
        Octets of memory for regions and buffers.
    ring
        Base-2 logarithm of the ring's entries.
    depth
        Buffers that a queue of the RNIC holds.
    """

    def __init__(
        self, size: int = 1 << 14, *, ring: int = 10, depth: int = RnicConfig.queue_depth
    ) -> None:
        super().__init__(RnicConfig())
        self.size = size
        self.depth = depth
        self.ring = Ring(-(-size // 64) * 64 + 96, ring)
        self.memory = guard_octets(self.ring.octets.stop + 128)
        self.carry_out(self.ring.command())
        self.completions: list[Completion] = []
        self.events: list[ErrorEvent] = []
        self.exceptions: list[ExceptionPacket] = []
        self.counters = no_counts(sctp=False)
        self._model = Memory()
        self._image = self.memory.copy()
        self._places: dict[int, _Place] = {}  # positions of regions, by STag
        self._streams: dict[int, _Stream] = {}
        self._linears: dict[Pages, tuple[int, int]] = {}
        self._awaited = 0  # completions that were waited for
        self._posted = 0
        self._paused: int | None = None  # completions so far when the pause began

    # -- the host ---------------------------------------------------------------------------------

    def region(
        self,
        stag: int,
        to: int,
        length: int,
        address: int = 0,
        *,
        pages: Pages | None = None,
        pd: int | None = None,
        stream: int | None = None,
        access: Access = Access.REMOTE_WRITE,
    ) -> Region:
        """Registers a region, for a Protection Domain or bound to a stream, at an address or in
        pages.
        """
        region = Region(
            stag=stag, to=to, length=length, address=address, access=model_access(access),
            pd=pd, stream=stream,
        )  # fmt: skip
        self.idle()
        self._model.register(region, bytearray(length))
        self._places[stag] = address, pages
        self.set_stag(
            stag, access, to=to, length=length, address=address, pages=pages, pd=pd, stream=stream
        )
        return region

    def revoke(self, region: Region) -> None:
        """Revokes a region while nothing is in flight."""
        self._model.revoke(region.stag)
        self.idle()
        self.carry_out(commands.revoke_stag(region.stag))

    def stream(
        self, number: int, *, pd: int, crc: bool = True, markers: bool = False, position: int = 0
    ) -> None:
        """Enables a stream, or sets it up again after an error; its queues are then closed."""
        self.idle()
        self.set_stream(number, pd=pd, crc=crc, markers=markers)
        self._streams[number] = _Stream(
            MpaSender(crc=crc, markers=markers, position=position),
            MpaReceiver(crc=crc, markers=markers, position=position),
            DataSink(self._model, stream=number, pd=pd, waiting=WAITING, overtakes=OVERTAKES),
        )

    def end(self, number: int) -> list[Region]:
        """Disables a stream while nothing is in flight; returns the regions that this revokes."""
        self.idle()
        self.carry_out(commands.revoke_stream(number))
        self._streams[number].live = False
        return self._model.revoke_stream(number)

    def queue(self, number: int, qn: int, first: int = 1) -> None:
        """Opens a queue of a stream; ``first`` is its first buffer's MSN."""
        stream = self._streams[number]
        stream.sink.open_queue(qn, first=first)
        stream.queues[qn] = _Queue(first)
        self.open_queue(number, qn, first)

    def buffer(
        self,
        number: int,
        qn: int,
        length: int,
        address: int = 0,
        *,
        pages: Pages | None = None,
        cookie: int = 0,
    ) -> int:
        """Posts a buffer on a queue if the queue's depth allows; returns its MSN."""
        stream = self._streams[number]
        queue = stream.queues[qn]
        if queue.posted >= self.depth:
            self.wait(queue.delivered[queue.posted - self.depth])
        msn = queue.following
        queue.following = (msn + 1) % _MSN
        queue.posted += 1
        queue.buffers[msn] = _Buffer((address, pages), cookie)
        stream.sink.post(qn, length)
        self.post_buffer(
            number, qn, msn, address=address, length=length, cookie=cookie, pages=pages
        )
        return msn

    def buffer_slot(self, stream: int, qn: int, msn: int) -> int:
        # A buffer has left the table long before this number of others was posted.
        slot, self._posted = self._posted % RnicConfig.buffers, self._posted + 1
        return slot

    def wait(self, completions: int) -> None:
        """Waits until ``completions`` completions were taken."""
        if completions > self._awaited:
            self.resume()
            self.operations.append(Await(completions))
            self._awaited = completions

    def pause(self) -> None:
        """Stops taking completions, for as long as the RNIC has room for them."""
        if self._paused is None:
            self.operations.append(Pause())
            self._paused = len(self.completions)

    def resume(self) -> None:
        """Takes completions again."""
        if self._paused is not None:
            self.operations.append(Resume())
            self._paused = None

    def position(self, number: int) -> int:
        """Returns the MPA stream position of a stream's next octet."""
        return self._streams[number].sender.position

    def live(self, number: int) -> bool:
        """Returns True if a stream has had no error."""
        return self._streams[number].live

    def open(self, number: int, qn: int) -> bool:
        """Returns True if a queue of a stream is open."""
        return qn in self._streams[number].queues

    def delivered(self, number: int, qn: int) -> int:
        """Returns the number of completions up to the last message of a queue."""
        delivered = self._streams[number].queues[qn].delivered
        return delivered[-1] if delivered else 0

    def linear(self, address: int, pages: Pages | None) -> tuple[int, int]:
        """Gives pages that come again the slots that they have."""
        if pages is None:
            return super().linear(address, pages)
        if pages not in self._linears:
            self._linears[pages] = super().linear(address, pages)
        return self._linears[pages]

    # -- the network ------------------------------------------------------------------------------

    def packet(
        self,
        number: int,
        *segments: bytes,
        spoil: Callable[[bytearray], None] | None = None,
        cut: int | None = None,
    ) -> None:
        """Sends a packet with these segments.

        Parameters
        ----------
        number
            DDP Stream.
        segments
            One for each FPDU of the packet.
        spoil
            Changes the packet's octets.
        cut
            The packet ends before this octet, inside its last FPDU.
        """
        stream = self._streams[number]
        position = stream.sender.position
        octets = bytearray().join(stream.sender.send(segment) for segment in segments)
        if spoil is not None:
            spoil(octets)
        if cut is not None:
            octets = octets[:cut]
        self.operations.append(Packet(number, position & _HALF, bytes(octets)))
        self._busy = True
        if not stream.live:
            self.counters["DROPPED"] += len(segments)
            return
        frames = stream.receiver.receive(bytes(octets))
        if cut is not None:
            frames += stream.receiver.close()
        for count, frame in enumerate(frames, 1):
            self._frame(number, stream, frame)
            if not stream.live:
                self.counters["DROPPED"] += len(segments) - count
                break
        if self._paused is not None and len(self.completions) - self._paused > _BACKLOG:
            self.resume()

    def _frame(self, number: int, stream: _Stream, frame: Fpdu | LlpError) -> None:
        if isinstance(frame, LlpError):
            self._error(number, frame.number, frame.length, frame.position, frame.header)
            self._exception(number, frame.number, frame)
            self.counters["DIGEST_ERRORS"] += frame.number == LLP_CRC
            return
        segment = frame.ulpdu
        placed = False
        for event in stream.sink.receive(segment):
            match event:
                case Placed():
                    placed = True
                    self._placed(stream, event, segment[event.header.size :])
                case Delivered():
                    self._delivered(number, stream, event)
                case DdpError(number=number_of) if number_of == LOCAL_CATASTROPHIC:
                    self._error(number, number_of, 0, 0, b"")
                case DdpError():
                    header = segment[: header_length(segment)]
                    self._error(number, event.number, event.length, frame.position, header)
                    # A segment that was placed out of order is no exception.
                    if not placed:
                        self._exception(number, event.number, frame)

    def _placed(self, stream: _Stream, event: Placed, payload: bytes) -> None:
        self.counters["PLACED_SEGMENTS"] += 1
        self.counters["PLACED_OCTETS"] += event.length
        header = event.header
        if not payload:
            return
        if isinstance(header, TaggedHeader):
            region = self._model.lookup(header.stag)
            assert region is not None
            place, offset = self._places[header.stag], header.to - region.to
        else:
            place, offset = stream.queues[header.qn].buffers[header.msn].place, header.mo
        at = 0
        for address, count in spans(*place, offset, len(payload)):
            piece = np.frombuffer(payload, np.uint8, count, at)
            self._image[address : address + count] = piece
            at += count

    def _delivered(self, number: int, stream: _Stream, event: Delivered) -> None:
        header, cookie = event.header, 0
        if isinstance(header, UntaggedHeader):
            cookie = stream.queues[header.qn].buffers.pop(header.msn).cookie
        pass_ = phase(len(self.completions), self.ring.size)
        self.completions.append(completion_of(number, event, cookie)._replace(phase=pass_))
        self.counters["DELIVERED"] += 1
        if isinstance(header, UntaggedHeader):
            stream.queues[header.qn].delivered.append(len(self.completions))

    def _error(
        self, number: int, error: ErrorNumber, length: int, position: int, header: bytes
    ) -> None:
        self._streams[number].live = False
        self.counters["ERRORS"] += 1
        self.events.append(
            ErrorEvent(
                number,
                error.type,
                error.code,
                length,
                position & _HALF,
                length.to_bytes(2, "big") + header,
            )
        )

    def _exception(self, number: int, error: ErrorNumber, frame: Fpdu | LlpError) -> None:
        reason = error.type << 8 | error.code
        self.exceptions.append(ExceptionPacket(number, frame.position & _HALF, frame.raw, reason))
        self.counters["EXCEPTIONS"] += 1

    # -- the verdict ------------------------------------------------------------------------------

    def expected_memory(self) -> NDArray[np.uint8]:
        """Returns the expected final host memory, except for the ring."""
        return self._image.copy()

    def check(self, outcome: Outcome, memory: NDArray[np.uint8]) -> None:
        """Asserts that a run had the expected outcome."""
        expected = self.expected_memory()
        unlike = memory != expected
        unlike[self.ring.octets.start : self.ring.octets.stop] = False
        wrong = np.flatnonzero(unlike)
        if len(wrong):
            address = int(wrong[0])
            raise AssertionError(
                f"{len(wrong)} octets of memory are wrong, the first at {address:#x}:"
                f" expected {expected[address]:#04x}, got {memory[address]:#04x},"
                f" written in cycle {_cycle(outcome, address)}"
            )
        assert not len(outcome.stray), f"writes outside of memory: {outcome.stray[:5]}"
        for number, (want, have) in enumerate(
            zip(self.completions, outcome.completions, strict=False)
        ):
            cycle = outcome.delivered[number] if number < len(outcome.delivered) else "unknown"
            assert have == want, f"completion {number}, in cycle {cycle}"
        assert len(outcome.completions) == len(self.completions)
        got = list(outcome.events)
        for number, each in enumerate(got[: len(self.events)]):
            # The registers hold 20 octets; the model's header ends where it or the segment ends.
            got[number] = replace(each, header=each.header[: len(self.events[number].header)])
        assert got == self.events
        assert outcome.exceptions == self.exceptions
        counted = {name: outcome.counters[name] for name in self.counters}
        if any((each.type, each.code) == LLP_FRAMING for each in self.events):
            # It is not defined how segments are counted after framing was lost.
            del counted["DROPPED"]
        assert counted == {name: self.counters[name] for name in counted}


#: Completions to wait for at a time while the host takes none: fewer than the ring has.
_BACKLOG = 128


def _cycle(outcome: Outcome, address: int) -> str:
    touched = outcome.writes[outcome.writes["address"] <= address]
    if not len(touched):
        return "none"
    row = touched[np.flatnonzero(touched["address"] == touched["address"].max())[-1]]
    return f"{row['cycle']}, beat {row['address']:#x}"


# -- random traffic -------------------------------------------------------------------------------

#: Chances in percent of an invalid packet, of kinds of segments, and of the host's actions.
_BAD, _UNTAGGED, _EMPTY = 4, 40, 3
_REVOKE, _PAUSE = 1, 1
#: Octets for regions at an address, those for pages, and the pages' size.
_PLAIN, _PAGED, _FRAME = 1 << 16, 1 << 17, 1 << 13
#: Buffers of a queue, and octets of the longest.
_BUFFERS, _LONGEST = 6, 3000


def device_of(width: int) -> RnicConfig:
    """Returns the device that the tests of a width share.

    A simulator of 512 bits takes minutes to build, so the tests of sending use the same one.
    """
    return RnicConfig(width=width, transmit=width == 512, responder=width == 512)


def random_scenario(seed: int, packets: int) -> Scenario:
    """Returns streams of every kind, with segments for adjacent regions and for buffers on all
    queues, and an error now and then.
    """
    return _Random(seed).scenario_of(packets)


@dataclass(eq=False)
class _Slot:
    """The memory of a buffer."""

    length: int
    address: int
    pages: Pages | None


@dataclass
class _Messages:
    """A queue from its sender's view: the slots posted, by MSN, and the segments to send next."""

    slots: list[_Slot]
    posted: list[tuple[int, _Slot]] = field(default_factory=list)
    waiting: list[bytes] = field(default_factory=list)


class _Random:
    """Draws a scenario."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        kinds = 2 * [(crc, markers) for crc in (True, False) for markers in (True, False)]
        buffers = len(kinds) * QUEUES * _BUFFERS * (_LONGEST + 100)
        self._scenario = Scenario(_PLAIN + _PAGED + buffers, ring=10)
        self._kinds = dict(zip(rng.sample(range(64), len(kinds)), kinds, strict=True))
        self._domains = {number: rng.randrange(1, 3) for number in self._kinds}
        self._frames = list(range(_PLAIN, _PLAIN + _PAGED, _FRAME))
        rng.shuffle(self._frames)
        self._regions: list[Region] = []
        self._pages: dict[int, Pages] = {}  # by STag
        self._messages: dict[tuple[int, int], _Messages] = {}
        self._orders: dict[int, Interleaving] = {}

    def scenario_of(self, packets: int) -> Scenario:
        rng, scenario = self._rng, self._scenario
        self._lay_out()
        for number in self._kinds:
            # The sequence number will wrap.
            self._enable(number, (1 << 32) - 4 * rng.randrange(1, 4000))
        for _ in range(packets):
            number = rng.choice(list(self._kinds))
            if not scenario.live(number) and rng.random() < 0.5:
                if rng.random() < 0.3:
                    gone = scenario.end(number)
                    self._register(*gone)
                self._enable(number, scenario.position(number))
            if rng.randrange(100) < _REVOKE:
                region = rng.choice(self._regions)
                scenario.revoke(region)
                if rng.random() < 0.5:
                    self._packet(number)
                self._register(region)
            if rng.randrange(100) < _PAUSE:
                scenario.pause()
            self._packet(number)
        scenario.resume()
        scenario.operations.append(Drain())
        return scenario

    # -- the host

    def _lay_out(self) -> None:
        """Lays out regions, some of them in pages, and memory for buffers."""
        rng = self._rng
        address = 0
        for index in rng.sample(range(1 << 10), 24):
            address += rng.choice((1, 2, 7, 8, 63, 64, 65, 129))  # guard octets
            length = rng.choice((1, 9, 100, 1000, 4096, 6000))
            pages = self._some_pages(length) if rng.random() < 0.3 else None
            if pages is None and address + length >= _PLAIN:
                continue
            number = rng.choice(list(self._kinds))
            bound = rng.random() < 0.3
            region = Region(
                stag=(rng.randrange(1 << 14) << 10 | index) << 8 | rng.randrange(256),
                to=rng.choice((0, rng.randrange(1 << 64 - 13), (1 << 64) - length)),
                length=length,
                address=address if pages is None else 0,
                pd=None if bound else self._domains[number],
                stream=number if bound else None,
            )
            if pages is None:
                address += length
            else:
                self._pages[region.stag] = pages
            self._regions.append(region)
        self._register(*self._regions)
        address = _PLAIN + _PAGED
        for number in self._kinds:
            for qn in range(QUEUES):
                slots = []
                for _ in range(_BUFFERS):
                    length = rng.choice((0, 1, 40, 64, 700, 1460, _LONGEST))
                    pages = self._some_pages(length) if rng.random() < 0.1 else None
                    address += rng.choice((1, 7, 8, 63, 64, 99))
                    slots.append(_Slot(length, 0 if pages else address, pages))
                    address += 0 if pages else length
                self._messages[number, qn] = _Messages(slots)

    def _some_pages(self, length: int) -> Pages | None:
        """Returns pages for ``length`` octets, if enough are left."""
        shift = self._rng.choice((12, 13))
        offset = self._rng.choice((0, 1, 4000, self._rng.randrange(1 << shift)))
        count = -(-(offset + length) >> shift) if length else 1
        if count > len(self._frames):
            return None
        frames = [self._frames.pop() for _ in range(count)]
        half = 1 << 12 if shift == 12 else 0
        return Pages(shift, tuple(each + self._rng.choice((0, half)) for each in frames), offset)

    def _register(self, *regions: Region) -> None:
        for each in regions:
            self._scenario.region(
                each.stag,
                each.to,
                each.length,
                each.address,
                pages=self._pages.get(each.stag),
                pd=each.pd,
                stream=each.stream,
            )

    def _enable(self, number: int, position: int) -> None:
        crc, markers = self._kinds[number]
        self._scenario.stream(
            number, pd=self._domains[number], crc=crc, markers=markers, position=position
        )
        self._orders[number] = Interleaving()
        for qn in range(QUEUES):
            messages = self._messages[number, qn]
            messages.posted.clear()
            messages.waiting.clear()
            if self._rng.random() < 0.9:
                # The MSN will wrap.
                self._scenario.queue(number, qn, -self._rng.randrange(40) % _MSN)
                self._post(number, qn)

    def _post(self, number: int, qn: int) -> None:
        """Posts all memory of a queue that is not posted."""
        messages = self._messages[number, qn]
        taken = [slot for _, slot in messages.posted]
        for slot in messages.slots:
            if slot not in taken:
                cookie = self._rng.getrandbits(32)
                msn = self._scenario.buffer(
                    number, qn, slot.length, slot.address, pages=slot.pages, cookie=cookie
                )
                messages.posted.append((msn, slot))

    # -- the network

    def _packet(self, number: int) -> None:
        rng, scenario = self._rng, self._scenario
        regions = [
            region
            for region in self._regions
            if region.allows(stream=number, pd=self._domains[number])
        ]
        segments = []
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            kind = rng.randrange(100)
            begun = self._orders[number].choose(rng)
            stag = begun[0] if isinstance(begun, tuple) else None
            same = [region for region in regions if region.stag == stag]
            if stag is not None and not same:
                segments.append(self._tagged(number, stag, 0, b"", begun))
            elif isinstance(begun, int) or (begun is None and (kind < _UNTAGGED or not regions)):
                segments += self._untagged(number, begun)
            elif begun is None and kind < _UNTAGGED + _EMPTY:
                # "MUST NOT be checked for a zero-length Tagged DDP Message" (RFC 5041 section 5.2)
                segments.append(self._tagged(number, rng.getrandbits(32), rng.getrandbits(64), b""))
            else:
                region = rng.choice(same or regions)
                length = min(rng.choice((1, 3, 8, 60, 64, 70, 500, 1460, 5000)), region.length)
                length = rng.randint(max(1, length // 2), length)
                room = region.length - length
                offset = rng.choice((0, room, rng.randint(0, room)))
                payload = rng.randbytes(length)
                segments.append(
                    self._tagged(number, region.stag, region.to + offset, payload, begun)
                )
        if not segments:
            segments.append(self._tagged(number, 0, 0, b""))
        if rng.randrange(100) < _BAD:
            segments[-1] = self._wrong(number, regions)
        spoil = None
        if self._kinds[number][0] and rng.randrange(100) < _BAD:
            # Not in the length of an FPDU: that would lose the framing.
            def spoil(octets: bytearray) -> None:
                octets[-1 - rng.randrange(4)] ^= 1 << rng.randrange(8)

        scenario.packet(number, *segments, spoil=spoil)
        if scenario.live(number):
            self._refill(number)

    def _tagged(
        self, number: int, stag: int, to: int, payload: bytes, begun: object = None
    ) -> bytes:
        """Returns a tagged segment of a message that has ``begun``, or of a new one."""
        rng = self._rng
        rsvdulp = begun[1] if isinstance(begun, tuple) else rng.getrandbits(8)
        last = rng.random() < 0.7 or not payload
        self._orders[number].sent((stag, rsvdulp), last=last)
        return tagged(stag, to, payload, last=last, rsvdulp=rsvdulp)

    def _untagged(self, number: int, begun: object) -> list[bytes]:
        """Returns the next segment of one of the open queues, or none."""
        ready = [qn for qn in range(QUEUES) if self._messages[number, qn].posted]
        if isinstance(begun, int):
            ready = [begun]
        if not ready:
            return []
        qn = self._rng.choice(ready)
        messages = self._messages[number, qn]
        if not messages.waiting:
            messages.waiting = self._message(qn, *messages.posted.pop(0))
        segment = messages.waiting.pop(0)
        self._orders[number].sent(qn, last=not messages.waiting)
        return [segment]

    def _message(self, qn: int, msn: int, slot: _Slot) -> list[bytes]:
        """Returns segments of a message that fits: the last one last, the others in any order."""
        rng = self._rng
        message = rng.randbytes(rng.choice((slot.length, rng.randint(0, slot.length))))
        cuts = sorted(rng.sample(range(len(message) + 1), min(len(message), rng.randrange(4))))
        ends = [*cuts, len(message)]
        pieces = list(zip([0, *cuts], ends, strict=True))
        begin = pieces[:-1]
        rng.shuffle(begin)
        return [
            untagged(
                message[start:end],
                qn=qn,
                msn=msn,
                mo=start,
                last=at == len(begin),
                rsvdulp=rng.getrandbits(40),
            )
            for at, (start, end) in enumerate([*begin, pieces[-1]])
        ]

    def _refill(self, number: int) -> None:
        """Posts free buffers again, once a queue has few left."""
        for qn in range(QUEUES):
            messages = self._messages[number, qn]
            if (
                self._scenario.open(number, qn)
                and len(messages.posted) <= 2
                and not messages.waiting
            ):
                self._scenario.wait(self._scenario.delivered(number, qn))
                self._post(number, qn)

    def _wrong(self, number: int, regions: list[Region]) -> bytes:
        """Returns a segment that raises an error."""
        rng = self._rng
        wrong = [
            untagged(b"", version=0),
            untagged(b"x", version=rng.choice((0, 2, 3))),
            untagged(b"x", qn=rng.choice((4, 5, 1 << 31))),
            untagged(b"x", qn=rng.randrange(QUEUES), msn=rng.getrandbits(32)),
            untagged(b"", rsvdulp=1)[: rng.randrange(18)],
        ]
        for qn in range(QUEUES):
            messages = self._messages[number, qn]
            if len(messages.posted) > 1 and not messages.waiting:
                (msn, slot), (later, _) = messages.posted[:2]
                wrong += [
                    untagged(b"", qn=qn, msn=(msn - 1) % _MSN),
                    untagged(b"", qn=qn, msn=later),
                    untagged(b"", qn=qn, msn=(messages.posted[-1][0] + 1) % _MSN),
                    untagged(b"", qn=qn, msn=msn, mo=slot.length + 1),
                    untagged(b"x", qn=qn, msn=msn, mo=slot.length),
                    untagged(b"xy", qn=qn, msn=msn, mo=_HALF),
                ]
        if others := [region for region in self._regions if region not in regions]:
            other = rng.choice(others)
            wrong.append(tagged(other.stag, other.to, b"x"))
        if regions:
            region = rng.choice(regions)
            wrong += [
                tagged(region.stag ^ 1 << rng.randrange(32), region.to, b"x"),
                tagged(region.stag, (region.to + region.length) % (1 << 64), b"xy"),
                tagged(region.stag, region.to, b"xyz", version=rng.choice((0, 2, 3))),
                tagged(region.stag, region.to, bytes(region.length + 1)),
                tagged(region.stag, region.to, b"")[: rng.randrange(14)],
            ]
        return rng.choice(wrong)
