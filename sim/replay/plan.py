"""Turns traffic and regions into operations of simulated RNICs, with the golden model's
expectation.

Every receiving host (IP address) is a Protection Domain of its own. Hosts share one RNIC as long as
no two of their STags need the same entry of its Steering Tag table; where they do, a host gets a
further RNIC, simulated in a separate run. So captured STags are registered unchanged, and no octet
of the traffic is altered.

A packet holds the FPDUs that one TCP segment completed; a frame with SCTP is played unchanged.
Between two segments the host may register a region, revoke one after a Send with Invalidate, stop a
stream, or set up an association or a session; it does all this once the RNIC is idle. Only buffers
for untagged messages are posted while the RNIC works, when completions of earlier ones were seen:
each queue is as deep as the RNIC makes it, and refilled when half of it was used.

Regions, buffers and the completion ring lie apart in host memory, between guard octets that nothing
may write.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import chain
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec import completion
from ...hdl.spec.config import LIMITS, MOST_PLACES, MOST_POSTED, RnicConfig
from ...hdl.spec.ddp import LOCAL_CATASTROPHIC
from ..capture.sctp_traffic import DdpSession, Incoming, SctpStream, Step
from ..capture.streams import Arrival, Stream
from ..capture.traffic import Traffic
from ..engines.engine import Await, Drain, Frame, Operation, Packet, Ring
from .expectation import Buffer, Delivery, Golden, spans
from .host import ALIGNMENT, GUARD, PAGE, Allotment, Host, Space, guard_octets
from .regions import (
    LARGEST_TABLE,
    Queue,
    Region,
    RegionError,
    invalidated,
    one_after_the_other,
    slot,
)
from .sctp_expectation import SctpGolden
from .sctp_host import SctpHost, grown_for_sctp
from .sctp_regions import Lengths, lengths_of

_HALF = 0xFFFFFFFF
#: Base-2 logarithm of the entries of a completion ring: more than the host owes when it is slow.
_RING = 10
#: A run begins once its ring needs the most entries, or these octets were planned.
_AHEAD = 1 << 24
#: As buffers need more host memory, guard octets are written to it in pieces of this size.
_PAINTED = 1 << 18


#: A placement that was forgotten: host address, octets, stream, frame, order.
_WRITTEN = np.dtype([(name, "<u8") for name in ("at", "count", "stream", "frame", "order")])


class _Piece(NamedTuple):
    """Octets that a segment writes at a host address."""

    address: int
    octets: memoryview
    arrival: Arrival

    @property
    def end(self) -> int:
        return self.address + len(self.octets)


def _rows(pieces: Iterable[_Piece]) -> NDArray:
    """Returns a row of :data:`_WRITTEN` for each piece."""
    rows = []
    for address, octets, arrival in pieces:
        number = arrival.stream.number
        rows.append((address, len(octets), number, arrival.frame, arrival.order))
    return np.array(rows, _WRITTEN)


class Image:
    """Host memory in which pieces are written, one after the other.

    A slice of it is a copy, so that the whole image takes no memory.
    """

    def __init__(self, memory: NDArray[np.uint8], pieces: list[_Piece]) -> None:
        self._memory, self._pieces = memory, pieces
        self._starts = np.array([piece.address for piece in pieces], np.uint64)
        self._ends = np.array([piece.end for piece in pieces], np.uint64)

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        start, stop, _ = part.indices(len(self))
        octets = self._memory[start:stop].copy()
        for number in np.flatnonzero((self._starts < stop) & (self._ends > start)).tolist():
            piece = self._pieces[number]
            first, last = max(piece.address, start), min(piece.end, stop)
            written = piece.octets[first - piece.address : last - piece.address]
            octets[first - start : last - start] = np.frombuffer(written, np.uint8)
        return octets


@dataclass
class Plan:
    """A run of one simulated RNIC.

    ``memory`` is host memory before the placements that ``golden`` lists.
    """

    config: RnicConfig
    endpoints: tuple[str, ...]
    streams: tuple[Stream, ...]
    operations: list[Operation]
    allotments: list[Allotment]
    buffers: list[Buffer]
    ring: Ring
    memory: NDArray[np.uint8]
    golden: Golden
    #: The segments in each packet and frame, in the order of these.
    sent: list[tuple[Arrival, ...]] = field(default_factory=list)
    #: The bus address of memory's first octet. All addresses except the ring's count from there.
    base: int = 0
    #: Allocates the memory, if buffers are still posted during the run.
    space: Space | None = None
    _written: IO[bytes] | None = None

    @property
    def completions(self) -> int:
        """Entries of a completion queue, a power of two, that holds all messages of the plan."""
        return 1 << _size(self.golden)

    def packets(self) -> list[Packet | Frame]:
        """Returns the packets and frames, in their order."""
        return [each for each in self.operations if isinstance(each, Packet | Frame)]

    def expected_memory(self) -> NDArray[np.uint8]:
        """Returns host memory after the golden model's run: regions, buffers, and guards between
        them, up to the last one.

        The ring is not part of it.
        """
        image = self.image()
        return image[: len(image)]

    def image(self) -> Image:
        """Returns the same memory, of which parts are made when they are asked for."""
        size = len(self.memory) if self.space is None else self.space.size
        return Image(self.memory[:size], [*self._pieces()])

    def _pieces(self) -> Iterator[_Piece]:
        """Yields the pieces of host memory that the placements write, in their order."""
        lies = {each.region: each for each in self.allotments}
        for each in self.golden.placements:
            place, at = lies[each.target] if isinstance(each.target, Region) else each.target, 0
            for address, count in spans(place.address, place.pages, each.offset, len(each.payload)):
                yield _Piece(address, memoryview(each.payload)[at : at + count], each.arrival)
                at += count

    def forget(self) -> None:
        """Makes placements a part of ``memory``, and drops all that grows with the traffic."""
        if self._written is None:
            self._written = tempfile.TemporaryFile(prefix="ddp-rnic-")
            weakref.finalize(self, self._written.close)
        pieces = [*self._pieces()]
        for piece in pieces:
            self.memory[piece.address : piece.end] = np.frombuffer(piece.octets, np.uint8)
        self._written.write(_rows(pieces).tobytes())
        self.golden.forget()
        self.sent.clear()

    def reuse(self, buffers: Iterable[Buffer], memory: NDArray[np.uint8]) -> None:
        """Frees buffers whose messages were delivered for later ones, after :meth:`forget`.

        ``memory`` is that of the run. A buffer that differs stays for the comparison at the end.
        The octets of the others are inverted, so that the same message must be written anew.
        """
        assert self.space is not None
        for buffer in buffers:
            whole = slice(*self.space.span(buffer.address))
            if np.array_equal(memory[whole], self.memory[whole]):
                for image in (memory, self.memory):
                    image[buffer.address : buffer.end] ^= 0xFF
                self.space.give(buffer.address)

    def writer(self, address: int) -> tuple[int, int, int] | None:
        """Returns stream, frame and order of the segment that writes a host address last, or
        None.
        """
        written: Iterable[NDArray] = [_rows(self._pieces())]
        if (file := self._written) is not None:
            file.seek(0)
            octets = iter(lambda: file.read(_WRITTEN.itemsize << 12), b"")
            written = chain((np.frombuffer(each, _WRITTEN) for each in octets), written)
        found = None
        for rows in written:
            for row in rows[address - rows["at"] < rows["count"]][-1:].tolist():
                found = row[2:]
        return found

    def holder_at(self, address: int) -> tuple[Allotment | Buffer, int] | None:
        """Returns the region or the last buffer at a host address, and the octet's offset in it; or
        None.
        """
        found = None
        for piece, end, holder, offset in self.pieces():
            if piece <= address < end:
                found = holder, offset + address - piece
        return found

    def pieces(self) -> Iterator[tuple[int, int, Allotment | Buffer, int]]:
        """Yields the pieces of host memory of regions and buffers.

        Each has the first address, the address after the last, the region or buffer, and the offset
        in it.
        """
        holders: list[Allotment | Buffer] = [*self.allotments, *self.buffers]
        for holder in holders:
            part = holder.part if isinstance(holder, Allotment) else None
            offset, length = (part.start, len(part)) if part else (0, holder.length)
            for address, count in spans(holder.address, holder.pages, offset, length):
                yield address, address + count, holder, offset
                offset += count


def plan(
    traffic: Traffic,
    regions: Iterable[Region],
    config: RnicConfig,
    ends: Mapping[int, int] | None = None,
    queues: Iterable[Queue] = (),
) -> tuple[list[Plan], list[str]]:
    """Plans all of the runs that :func:`replays` returns."""
    found, notes = replays(traffic, regions, config, ends, queues, whole=True)
    for each in found:
        each.plan.operations = [*each.operations()]
    return [each.plan for each in found], notes


def replays(
    traffic: Traffic,
    regions: Iterable[Region],
    config: RnicConfig,
    ends: Mapping[int, int] | None = None,
    queues: Iterable[Queue] = (),
    *,
    whole: bool = False,
) -> tuple[list[Replay], list[str]]:
    """Begins to plan the runs that replay traffic; returns them, and sentences about changes of
    the configuration.

    Parameters
    ----------
    traffic
        The FPDUs in order of arrival.
    regions
        The regions of all hosts.
    config
        The configuration of the RNIC; tables and packet buffers grow where the traffic needs it.
    ends
        The streams that the host stops: the stream's number, and the count of segments at the
        endpoint after which it stops.
    queues
        The queues whose buffers are given; for the others they are derived from the traffic.
    whole
        Plans each run to its end, before it begins; then its memory ends with the ring.

    Raises
    ------
    RegionError
        The regions do not fit in a Steering Tag table, or buffers are too long to simulate.
    """
    regions = list(regions)
    lengths = lengths_of(traffic, queues)
    config, notes = _grown(traffic, regions, config)
    slots = _power_of_two(lengths.queues * config.queue_depth) if lengths.queues else 0
    if slots > config.buffers:
        if slots > LIMITS["buffers"][1]:
            raise RegionError(
                f"{lengths.queues} untagged queues of {config.queue_depth} buffers need a buffer"
                f" table of more than {LIMITS['buffers'][1]} slots"
            )
        config = replace(config, buffers=slots)
        notes.append(f"{lengths.queues} untagged queues need a buffer table of {slots} slots")
    hosts = list(dict.fromkeys([*traffic.endpoints, *(region.endpoint for region in regions)]))
    found = [
        Replay(traffic, members, regions, lengths, config, dict(ends or {}), whole=whole)
        for members in _share_devices(hosts, regions, config.stags)
    ]
    if len(found) > 1:
        notes.append(
            f"STags of different hosts collide,"
            f" so {len(found)} RNICs are simulated one after the other"
        )
    return found, notes


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _grown(
    traffic: Traffic, regions: list[Region], config: RnicConfig
) -> tuple[RnicConfig, list[str]]:
    notes = []
    longest = traffic.longest
    if longest > 4 * config.longest_fpdu:
        while longest > 4 * config.longest_fpdu:
            config = replace(config, buffer_octets=2 * config.buffer_octets)
        notes.append(
            f"an FPDU of {longest} octets needs a packet buffer of {config.buffer_octets} octets"
        )
    if longest > config.exception_octets:
        octets = min(_power_of_two(longest), LIMITS["exception_octets"][1])
        config = replace(config, exception_octets=octets)
        notes.append(
            f"an FPDU of {longest} octets needs an exception queue of"
            f" {config.exception_octets} octets"
        )
    streams = len(traffic.streams) + (len(traffic.sctp.streams) if traffic.sctp else 0)
    if streams > config.streams:
        _, most = LIMITS["streams"]
        if streams > most:
            raise RegionError(
                f"the capture has {streams} DDP Streams, but at most {most} can be simulated"
            )
        table = _power_of_two(streams)
        config = replace(
            config,
            streams=table,
            window=min(config.window, MOST_PLACES // table),
            queue_depth=min(config.queue_depth, MOST_POSTED // table),
        )
        notes.append(f"{streams} streams need a stream table of {config.streams} entries")
    if traffic.sctp is not None:
        config, more = grown_for_sctp(traffic.sctp, config)
        notes += more
    stags = config.stags
    while (pair := _in_one_slot(regions, stags)) is not None:
        if stags >= LARGEST_TABLE:
            raise RegionError(
                f"STags {pair[0].stag:#010x} and {pair[1].stag:#010x} of {pair[0].endpoint}"
                " need the same entry of"
                f" the Steering Tag table, even with {stags} entries"
            )
        stags *= 2
    if stags > config.stags:
        config = replace(config, stags=stags)
        notes.append(f"the STags need a Steering Tag table of {stags} entries to have one each")
    return config, notes


def _in_one_slot(regions: list[Region], stags: int) -> tuple[Region, Region] | None:
    """Returns two regions of one host that need the same table entry at the same time, or None."""
    holders: dict[tuple[str, int], list[Region]] = {}
    for region in regions:
        group = holders.setdefault((region.endpoint, slot(region.stag, stags)), [])
        for other in group:
            if _at_once(region, other):
                return other, region
        group.append(region)
    return None


def _at_once(one: Region, other: Region) -> bool:
    if one_after_the_other(one, other):
        return False
    if one.session and other.session and one.stream != other.stream and one.index != other.index:
        # The count of segments does not show which session came first, and in a larger table it
        # does not matter.
        one = replace(one, periods=tuple(map(_longer, one.periods)))
        other = replace(other, periods=tuple(map(_longer, other.periods)))
    return any(
        (a_until is None or b_after < a_until) and (b_until is None or a_after < b_until)
        for a_after, a_until in one.periods
        for b_after, b_until in other.periods
    )


def _longer(period: tuple[int, int | None]) -> tuple[int, int | None]:
    return period[0], None if period[1] is None else period[1] + 1


def _share_devices(endpoints: list[str], regions: list[Region], stags: int) -> list[list[str]]:
    devices: list[tuple[list[str], set[int]]] = []
    for endpoint in endpoints:
        wanted = {slot(region.stag, stags) for region in regions if region.endpoint == endpoint}
        for members, taken in devices:
            if not taken & wanted:
                members.append(endpoint)
                taken |= wanted
                break
        else:
            devices.append(([endpoint], set(wanted)))
    return [members for members, _ in devices]


class Replay:
    """Plans the run of one RNIC, along with the run itself.

    The golden model takes a segment only when the operations with it are asked for. A run that
    drops each piece after the comparison takes little memory, whatever the length of the capture.

    Parameters
    ----------
    traffic
        The FPDUs and the SCTP of all hosts.
    endpoints
        The hosts that share the RNIC.
    regions
        The regions of all hosts.
    lengths
        The lengths of the buffers that the hosts post.
    config
        The configuration of the RNIC.
    ends
        The streams that a host stops.
    whole
        As for :func:`replays`.
    """

    def __init__(
        self,
        traffic: Traffic,
        endpoints: list[str],
        regions: list[Region],
        lengths: Lengths,
        config: RnicConfig,
        ends: dict[int, int],
        *,
        whole: bool,
    ) -> None:
        #: The segments and the steps of SCTP, and how many of them were planned.
        self.total = len(traffic.arrivals) + (len(traffic.sctp.steps) if traffic.sctp else 0)
        self.taken = 0
        self.frame = 0  #: the last frame of these
        self.stopped = False
        self._domains = {endpoint: number for number, endpoint in enumerate(endpoints, 1)}
        streams = tuple(each for each in traffic.streams if self._has(each))
        by_sctp = tuple(
            each for each in (traffic.sctp.streams if traffic.sctp else ()) if self._has(each)
        )
        space = Space()
        allotments = [
            Allotment(region, space.take(region.length, region.to, PAGE))
            for region in regions
            if region.endpoint in self._domains
        ]
        golden = (SctpGolden if config.sctp else Golden)((), self._domains, config)
        # Placements are all that a run compares.
        for allotment in allotments:
            golden.add(allotment.region, kept=whole)
        self._host = host = _Replayer(config, golden, space, allotments, lengths)
        for stream in streams:
            host.begin(stream)
        if isinstance(golden, SctpGolden):
            for stream in by_sctp:
                golden.know(stream)
        self._due = _Schedule(
            allotments,
            {stream.number: ends[stream.number] for stream in streams if stream.number in ends},
            streams,
            traffic.sctp.sessions if traffic.sctp else (),
        )
        for endpoint in endpoints:
            host.act(self._due.at(endpoint, 0))
        self._happenings = _in_order(traffic)
        self._whole = False
        while not self._whole and (whole or _size(golden) < _RING and host.octets < _AHEAD):
            self._step()
        # A driver has rings of its own, and so needs memory only up to the ring.
        size = _size(golden) if self._whole else _RING
        ring = _ring(size, config, space, owned=config.sctp and traffic.sctp is not None)
        host.operations[:0] = ring.program()
        #: How many octets of memory a run has to copy: all after these are 0 at first.
        self.filled = space.size
        memory = guard_octets(space.size + (0 if self._whole else _room(lengths)), space.size)
        for allotment in allotments:
            memory[allotment.address : allotment.end] = allotment.region.fill
        self.plan = Plan(
            config, tuple(endpoints), (*streams, *by_sctp), [], allotments, host.buffers, ring,
            memory, golden, host.sent, space=space,
        )  # fmt: skip

    def operations(self, memory: NDArray[np.uint8] | None = None) -> Iterator[Operation]:
        """Yields the operations of the run. They can be had only once.

        ``memory`` is that of the run. Before buffers are posted in more of it than before, this
        function writes the guard octets there.
        """
        images = [self.plan.memory, *([] if memory is None else [memory])]
        operations = self._host.operations
        while operations or not self._whole:
            yield from operations
            operations.clear()
            while not operations and not self._whole:
                self._step()
            self._paint(images)

    def _paint(self, images: list[NDArray[np.uint8]]) -> None:
        """Writes guard octets to images of host memory as far as pieces of it are taken."""
        assert self.plan.space is not None
        start, size = self.filled, self.plan.space.size
        if size > start:
            self.filled = min(-(-size // _PAINTED) * _PAINTED, len(self.plan.memory))
            guards = guard_octets(self.filled - start, start=start)
            for image in images:
                # Octets that the device should not have written there differ also afterwards.
                image[start : self.filled] ^= guards

    def stop(self) -> None:
        """Ends the run after the segments that were planned."""
        self.stopped = True

    def rest(self) -> int:
        """Returns how many segments of these hosts were not planned, after the run."""
        left = 0
        for each in self._happenings:
            segments = [each] if isinstance(each, Arrival) else getattr(each, "segments", ())
            left += sum(segment.endpoint in self._domains for segment in segments)
        return left

    def _has(self, stream: Stream) -> bool:
        return stream.destination.address in self._domains

    def _step(self) -> None:
        """Takes the next segment or step of SCTP, or ends the run."""
        host, due = self._host, self._due
        if self.stopped or (happening := next(self._happenings, None)) is None:
            host.finish()
            self._whole = True
            return
        self.taken += 1
        self.frame = happening.frame
        if isinstance(happening, Arrival):
            if happening.endpoint in self._domains:
                host.take(happening)
                host.act(due.at(happening.endpoint, happening.order))
        elif happening.host in self._domains:
            host.follow(happening)
            if isinstance(happening, Incoming):
                for segment in happening.segments:
                    host.act(due.at(segment.endpoint, segment.order))


def _room(lengths: Lengths) -> int:
    """Returns how many octets of host memory all buffers take at most."""
    queues = [*lengths.streams.values(), *lengths.sessions.values()]
    buffers = [each for queue in queues for buffers in queue.values() for each in buffers]
    return sum(buffers) + len(buffers) * (GUARD + ALIGNMENT) + PAGE


def _ring(size: int, config: RnicConfig, space: Space, *, owned: bool) -> Ring:
    """Allocates the rings: that of queue 0 and, where SCTP is ``owned``, that of its owner."""
    if owned:
        # The host gives entries back when it has a quarter of the ring, and the device takes no
        # frame without ``owner_entries`` free ones: together they are less than the ring.
        size = max(size, config.owner_entries.bit_length() + 1)
    octets = (1 + owned) * completion.OCTETS << size
    address = space.take(octets, completion.OCTETS, 2 * completion.OCTETS)
    return Ring(address, size, config.completion_queues if owned else 0)


def _size(golden: Golden) -> int:
    """Returns the base-2 logarithm of the entries of a ring that all messages fit in."""
    return min(_RING, max(1, len(golden.deliveries).bit_length()))


def _in_order(traffic: Traffic) -> Iterator[Arrival | Step]:
    """Yields arrivals and steps of SCTP, in the order of the capture."""
    steps: Sequence[Step] = traffic.sctp.steps if traffic.sctp else ()
    return merge(traffic.arrivals, steps, key=lambda happening: happening.frame)


@dataclass(frozen=True)
class _Action:
    """An action of the host on the RNIC. Exactly one field is given."""

    revoke: Allotment | None = None
    register: Allotment | None = None
    stop: int | None = None


class _Schedule:
    """The host's actions by the number of segments that have arrived."""

    def __init__(
        self,
        allotments: list[Allotment],
        ends: dict[int, int],
        streams: Iterable[Stream],
        sessions: Iterable[DdpSession] = (),
    ) -> None:
        self._actions: dict[tuple[str, int], list[_Action]] = {}
        self._set_up = {
            (session.stream.number, session.number): session.since
            for session in sessions
            if session.since is not None
        }
        for allotment in allotments:
            for _, until in allotment.region.periods:
                if until is not None:
                    self._add(allotment.region.endpoint, until, _Action(revoke=allotment))
        for allotment in allotments:
            region = allotment.region
            for after, until in region.periods:
                if after > self._since(region) and (until is None or until > after):
                    self._add(allotment.region.endpoint, after, _Action(register=allotment))
        for stream in streams:
            if stream.number in ends:
                self._add(
                    stream.destination.address, ends[stream.number], _Action(stop=stream.number)
                )

    def _since(self, region: Region) -> int:
        """Returns the count at which the region's session registers it; -1 without a session."""
        if region.session is None or region.stream is None:
            return -1
        return self._set_up[region.stream, region.session[1]]

    def _add(self, endpoint: str, after: int, action: _Action) -> None:
        self._actions.setdefault((endpoint, after), []).append(action)

    def at(self, endpoint: str, count: int) -> list[_Action]:
        return self._actions.get((endpoint, count), [])


class _Replayer(Host):
    """The host of a replay: executes the actions of its traffic, and keeps its queues filled."""

    def __init__(
        self,
        config: RnicConfig,
        golden: Golden,
        space: Space,
        allotments: list[Allotment],
        lengths: Lengths,
    ) -> None:
        super().__init__(config, golden, space)
        self._by_region = {allotment.region: allotment for allotment in allotments}
        self._given = lengths
        self._lengths: dict[tuple[int, int], list[int]] = {}  # by stream and Queue Number
        self._first: dict[tuple[int, int], int] = {}  # first MSN
        self._posted: dict[tuple[int, int], int] = {}  # how many buffers were posted
        self._used: dict[tuple[int, int], int] = {}  # how many messages were delivered
        self._waiting: list[Arrival] = []
        self._sctp = SctpHost(self, self, config.associations, config.window)

    def take(self, arrival: Arrival) -> None:
        """Takes an FPDU that arrives.

        For the messages delivered with it the host posts further buffers, and invalidates the STag
        that they name.
        """
        if self._waiting and (self._waiting[0].stream, self._waiting[0].frame) != (
            arrival.stream,
            arrival.frame,
        ):
            self._flush()
        self._waiting.append(arrival)
        errors = len(self.golden.errors)
        self._delivered(self.golden.receive(arrival))
        if any(each.number == LOCAL_CATASTROPHIC for each in self.golden.errors[errors:]):
            # How many later segments the RNIC places before it stops the stream depends on the
            # time.
            self.idle()

    def follow(self, step: Step) -> None:
        """Executes a step of SCTP: a frame arrives, or the host acts."""
        self._flush()
        if isinstance(step, Incoming):
            self._delivered(self._sctp.receive(step))
        else:
            self._sctp.act(step)

    def _delivered(self, deliveries: Iterable[Delivery]) -> None:
        deliveries = list(deliveries)
        for delivery in deliveries:
            if delivery.buffer is None:
                continue
            queue = delivery.buffer.stream, delivery.buffer.qn
            self._used[queue] += 1
            left = len(self._lengths[queue]) - self._posted[queue]
            room = self._wanted(queue) - self._posted[queue]
            if left and room >= min(left, self._config.queue_depth // 2):
                self._flush()
                self.operations.append(Await(self.golden.entries))
                self._fill(queue)
        for delivery in deliveries:
            stag = invalidated(delivery.arrival)
            region = (
                None if stag is None else self.golden.registered(delivery.arrival.endpoint, stag)
            )
            if region is not None and region.stream in (None, delivery.arrival.stream.number):
                self.revoke(region)

    def act(self, actions: Iterable[_Action]) -> None:
        """Executes actions."""
        for action in actions:
            if action.revoke is not None:
                self.revoke(action.revoke.region)
            elif action.register is not None:
                self.register(action.register)
            elif action.stop is not None:
                self.stop(action.stop)

    def begin(self, stream: Stream) -> None:
        """Enables a stream, opens its queues and fills them."""
        self._set_up(stream, self._given.streams.get(stream.number, {}))

    def begin_session(self, session: DdpSession) -> None:
        """Sets a stream up for its next session; the regions of the last session are revoked."""
        number = session.stream.number
        self.idle()
        self._give_up(number)
        self._sessions[number] = session.number
        self._set_up(session.own, self._given.sessions.get(session, {}))
        key = session.stream.sid, session.number
        for region, allotment in self._by_region.items():
            if region.stream == number and region.session == key:
                if region.periods and region.periods[0][0] == session.since:
                    self.register(allotment)

    def end_sessions(self, stream: SctpStream) -> None:
        """Stops a stream whose association is over."""
        if self._sessions.pop(stream.number, None) is not None:
            self._give_up(stream.number)
            self.stop(stream.number)

    def _give_up(self, number: int) -> None:
        for region in self._by_region:
            if region.stream == number:
                self.revoke(region)

    def _set_up(self, stream: Stream, lengths: Mapping[int, list[int]]) -> None:
        self.enable(stream, stream.position)
        for qn, each in lengths.items():
            queue = stream.number, qn
            self._lengths[queue] = each
            self._first[queue] = stream.first_msn(qn)
            self.open(*queue, self._first[queue])
            self._posted[queue] = self._used[queue] = 0
            self._fill(queue)

    def finish(self) -> None:
        self._flush()
        self.operations.append(Drain())

    def idle(self) -> None:
        self._flush()
        super().idle()

    def _wanted(self, queue: tuple[int, int]) -> int:
        """Returns how many buffers a queue has had in total once it is filled up."""
        if not self.golden.live(queue[0]):
            return self._posted[queue]
        return min(len(self._lengths[queue]), self._used[queue] + self._config.queue_depth)

    def _fill(self, queue: tuple[int, int]) -> None:
        """Fills a queue up. Segments in flight do not need these buffers."""
        for number in range(self._posted[queue], self._wanted(queue)):
            msn = number + self._first[queue] & _HALF
            self.post(*queue, msn, self._lengths[queue][number])
        self._posted[queue] = self._wanted(queue)

    def _flush(self) -> None:
        if not self._waiting:
            return
        first = self._waiting[0]
        segments, self._waiting = self._waiting, []
        octets = b"".join(arrival.raw for arrival in segments)
        self.send(Packet(first.stream.number, first.position & _HALF, octets), segments)
