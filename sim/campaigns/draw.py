"""Draws the random traffic of ``rnic soak``, chunk by chunk.

A chunk is drawn as packets of FPDUs, without TCP. Many streams take turns in it. They write to
regions of every kind, send messages on every queue, and fail with every possible error; the host
sets them up again, revokes and registers regions, posts buffers, and stops taking completions for a
while.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from ...hdl.ddp.moderation import WRAP
from ...hdl.lib.crc32c import differences
from ...hdl.spec import commands, regs
from ...hdl.spec.config import RnicConfig
from ...hdl.spec.ddp import LOCAL_CATASTROPHIC, WAITING
from ...hdl.spec.stag import Access
from ..capture.capture import Endpoint
from ..capture.streams import QUEUES, Arrival, Stream
from ..capture.traffic import fpdu_length
from ..engines.engine import (
    Packet,
    Pause,
    Poll,
    Resume,
    Ring,
    Stalls,
    Wait,
    WriteRegister,
    until,
)
from ..model.ddp import TaggedHeader, UntaggedHeader
from ..model.mpa import MARKER_SPACING, MpaSender
from ..replay.expectation import Pages
from ..replay.host import GUARD, Allotment, Space, guard_octets
from ..replay.plan import Plan
from ..replay.regions import Region, slot
from .busy_host import BoundGolden, BusyHost
from .chunk import BETWEEN, MANY, WATCHED, Chunk, Moderated, Rate, Still, Traffic, slack
from .interleaving import Interleaving

__all__ = ["draw"]

#: Host memory below this is for memory that crosses between two of the larger pages and begins and
#: ends at places of its own; at most this many octets lie on either side.
_START = 4 << 20
_EDGE = 30000
#: The place where host memory may cross 2**32 or a multiple of it: inside a region, or inside a
#: buffer.
_CROSSING_REGION, _CROSSING_BUFFER = 6 << 20, 24 << 20
_LARGEST_PAGE = 1 << 21
#: Octets of a long region, and of the part of a vast one that there is memory for.
_LONG, _PART = 3 << 20, 60000
#: Vast regions of a chunk, for each host.
_VAST = 2
_MSN = 1 << 32
_HALF = _MSN - 1
_TO = 1 << 64
#: Octets of an FPDU up to the end of its tagged header, with a marker.
_HEADERS = 2 + TaggedHeader.size + 4
#: The hosts; each is a Protection Domain.
_HOSTS = tuple(f"10.0.0.{number}" for number in range(1, 5))
#: Number of regions, of which each host keeps one for bus errors.
_REGIONS = 52
#: One segment in this many is wrong.
_WRONG = 80
#: The most streams that fail right after each other, because the bus refuses their writes or their
#: queue has no room; and octets of a segment.
_REFUSED, _REFUSED_OCTETS = 13, 40
#: Size of the ring whose entries the bus refuses, as a power of two.
_REFUSED_RING = 4
#: Octets of an FPDU that are neither header nor payload: ULPDU_Length and CRC.
_AROUND = 6
_NEAR = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
_FAR = (479, 480, 481, 511, 512, 513, 1023, 1024, 1025, 1426, 1440, 1460, 2048, 4095, 4096, 4097)

#: Rounds of a chunk in which interrupts are moderated.
_ROUNDS = 6
#: Loads of a chunk whose rate is measured, segments of each, and the cycles by which its first or
#: last segment may be held up. The bus responds after at most ``_PROMPT`` cycles then.
_RATES, _IN_A_ROW, _FILL, _PROMPT = 3, 100, 64, 30
#: With responses this late, the host reads a register before the last one has come.
_LATE = 300
#: Responses of the registers' bus to refused accesses: SLVERR, DECERR.
_READ_ONLY, _NO_REGISTER = 2, 3
#: Windows of registers that hold the arguments of commands.
_WINDOWS = ("STAG", "PAGE", "STREAM", "QUEUE", "BUFFER")
#: Octets of the longest ULPDU with markers.
_WITH_MARKERS = 64512
#: Registers whose value only the RNIC or its engine knows.
_UNKNOWN = ("STATUS", "CQ_DOORBELL", "CQ_PRODUCER", "CQ_STATE", "CQ_PENDING")

_differences = cache(differences)


def draw(config: RnicConfig, traffic: Traffic, number: int, segments: int) -> Chunk:
    """Draws a chunk. Its beginning does not depend on the number of segments."""
    return _Draw(config, traffic, number).chunk(segments)


@dataclass
class _Queue:
    """A queue as its host and its sender know it."""

    following: int  # the MSN of the next buffer
    fill: int  # how many buffers it is filled up to
    longest: int  # octets of the longest buffer
    posted: int = 0
    #: MSN and length of the buffers that have no message yet.
    free: deque[tuple[int, int]] = field(default_factory=deque)
    #: MSN and length of buffers posted during the traffic, and the number of the call.
    coming: deque[tuple[int, int, int]] = field(default_factory=deque)
    #: Remaining segments of the present message.
    waiting: deque[bytes] = field(default_factory=deque)
    #: The count of completions with which each buffer was used.
    used: list[int] = field(default_factory=list)


@dataclass
class _Peer:
    """The sending end of a stream."""

    stream: Stream
    sender: MpaSender
    queues: dict[int, _Queue]
    order: Interleaving = field(default_factory=Interleaving)


class _Draw:
    """Draws a chunk."""

    def __init__(self, config: RnicConfig, traffic: Traffic, number: int) -> None:
        self._config = config
        self._rng = rng = random.Random(f"{traffic.seed} {number}")
        self._bus_errors = traffic.bus_errors
        self._number = number
        # Protection Domains differ in one bit.
        domain = rng.getrandbits(16)
        others = (domain ^ 1 << bit for bit in rng.sample(range(16), len(_HOSTS) - 1))
        domains = dict(zip(_HOSTS, (domain, *others), strict=True))
        self._space = Space(_START + _EDGE)
        crossings = _CROSSING_BUFFER, None, _CROSSING_BUFFER, _CROSSING_REGION
        self._crossing = crossings[number % len(crossings)]
        # The upper half of addresses from the crossing on: its bits all change there, or are ones.
        some = rng.getrandbits(32)
        uppers = 1 << 31, _HALF, some, some & ~7 | 8, 1 << rng.randrange(32), 1
        upper = uppers[number // 2 % len(uppers)] << 32
        if self._crossing is None:
            self._base = rng.choice((0, upper)) | rng.randrange(0, 1 << 31, _LARGEST_PAGE)
        else:
            self._base = upper - self._crossing
        self._golden = BoundGolden((), domains, config)
        page = rng.randrange(config.pages)
        self._host = BusyHost(config, self._golden, self._space, self._base, page)
        self._stopped: set[int] = set()  # streams that the host disabled
        #: Changes of a CRC that show faults in single bits of the registers that compute it.
        self._differences = _differences(config.width, 4)
        self._slots = config.pages
        self._shifts: list[int] = []  # sizes of pages, to be used before any is drawn again
        #: Ends and beginnings of pages of each size, for pages that are not adjacent.
        self._edges: dict[int, tuple[list[int], list[int]]] = {}
        for shift in range(16, 22):
            edges = range(1 << shift, _START + 1, (1 if shift == 21 else 2) << shift)
            self._edges[shift] = rng.sample(edges, len(edges)), rng.sample(edges, len(edges))
        self._numbers = rng.sample(range(config.streams), traffic.streams)
        # Half of the streams complete in other queues. At least one queue stays unused.
        most = min(config.completion_queues - 2, traffic.streams // 2)
        queues = rng.sample(range(1, config.completion_queues), rng.choice((0, 1, most, most)))
        apart = rng.sample(self._numbers, len(self._numbers) // 2)
        bound = dict(zip(apart, cycle(queues), strict=False))
        self._golden.bound, self._host.bound = bound, bound.copy()
        self._peers: dict[int, _Peer] = {}
        self._outsiders: dict[int, _Peer] = {}
        self._allotments: list[Allotment] = []
        #: The registered regions, by slot of the STag table, and the others.
        self._registered: dict[int, Allotment] = {}
        self._gone: list[Allotment] = []
        self._usable: dict[int, list[Region]] = {}  # by stream, the regions it may write to
        #: The offsets into each vast region that there is memory for.
        self._parts: dict[Region, range] = {}
        #: Regions with an octet that the bus refuses, by host, and the place of the octet.
        self._faulty: dict[str, tuple[Allotment, int]] = {}
        self._moderated: list[Moderated] = []
        self._latched = _HALF if config.full_counters else 0
        self._segments = 0
        self._turns: list[int] = []
        self._wrongs: Counter[str] = Counter()
        self._kept: set[int] = set()  # slots of the STag table that regions with faults have
        self._interrupts = self._masked = False

    def chunk(self, segments: int) -> Chunk:
        rng, host = self._rng, self._host
        many = self._number == MANY
        size = rng.choice((*range(6, 11), 6, 6, 6, rng.randint(11, 15)))
        size = rng.randint(10, 15) if many else size
        ring = Ring(0, size, bound=self._golden.bound)
        address = self._space.take(len(ring.octets), rng.choice((0, 32)), 64)
        ring = replace(ring, address=self._base + address)
        refused = self._base + self._space.take(32 << _REFUSED_RING, 0, 64)
        host.entries = ring.entries
        self._interrupts = rng.random() < 0.3
        coalesce, timeout = rng.choice((1, 1, 5, 40)), rng.choice((0, 30, 1000))
        host.carry_out(
            ring.command(interrupts=self._interrupts, coalesce=coalesce, timeout=timeout)
        )
        stalls = self._stalls()
        if many:
            stalls = Stalls(response_latency=_PROMPT, seed=stalls.seed)
        self._across_wrap(slack(stalls))
        for queue in ring.queues:
            host.carry_out(commands.moderate(coalesce, timeout, queue=queue))
        host.carry_out(commands.mask_interrupts(completion=not self._interrupts))
        self._count()
        for number in self._numbers:
            self._enable(number)
        self._lay_out()
        if self._crossing == _CROSSING_BUFFER:
            self._cross()
        if many:
            self._send_many(segments, stalls, ring)
        while self._segments < segments:
            self._act()
            self._packet()
        host.catch_up()
        host.revoked()
        packets, drawn = host.packets, self._segments
        self._scribble()
        for name, value in self._known().items():
            host.read(name, value)
        rates = self._rate(stalls)
        self._moderate(ring, slack(stalls))
        if self._bus_errors:
            self._refuse_completions(ring, refused)
        self._end_ring(ring, stalls)
        plan = Plan(
            self._config,
            _HOSTS,
            tuple(peer.stream for peer in self._peers.values()),
            host.operations,
            self._allotments,
            host.buffers,
            ring,
            _painted(self._space.size),
            self._golden,
            base=self._base,
        )
        size = self._config.octets
        places = (address // size * size for _, address in self._faulty.values())
        faults = [range(self._base + place, self._base + place + size) for place in places]
        if self._bus_errors:
            faults.append(range(refused, refused + (32 << _REFUSED_RING)))
        closing = host.packets - packets
        return Chunk(
            plan, stalls, faults, drawn, self._wrongs, self._moderated, rates, closing, host.still
        )

    def _send_many(self, segments: int, stalls: Stalls, ring: Ring) -> None:
        """Sends messages of one octet. The host revokes regions, disables unused queues and waits
        for interrupts while the RNIC's counts, modulo 2**16, take values of all kinds.
        """
        rng, host, config = self._rng, self._host, self._config
        number = self._any_of(0)
        # Half of these numbers name no queue, and nothing happens to the others.
        queues = [each for each in range(2 * config.completion_queues) if each not in ring.queues]
        while self._segments < segments:
            self._revoke_under_way()
            self._return()
            host.carry_out(commands.disable_cq(rng.choice(queues))[:-1])
            host.read("CQ_STATE", 0)
            self._count()
            self._enable(number, 0)
            host.carry_out(commands.mask_interrupts())
            messages = rng.randint(1, 8)
            count = rng.randint(1, messages + 1)
            self._interrupt(number, messages, count, 1 << 10, WATCHED, slack(stalls))
            peer = self._peers[number]
            region = rng.choice(self._writable(number, peer))
            part = self._part(region)
            end = min(segments, self._segments + BETWEEN)
            while self._segments < end:
                octets = rng.randbytes(min(1, len(part)))
                to = (region.to + (rng.choice(part) if octets else 0)) % _TO
                header = TaggedHeader(region.stag, to, True, rng.getrandbits(8))
                self._send(number, peer, [header.encode() + octets] * rng.randint(1, 8))

    def _rate(self, stalls: Stalls) -> list[Rate]:
        """Sends segments right after each other, if nothing stalls the RNIC.

        A segment without markers takes as many cycles as it has beats in its packet or on the bus,
        whichever is more.
        """
        rng, host, octets = self._rng, self._host, self._config.octets
        rates: list[Rate] = []
        if stalls.source or stalls.write or stalls.response or stalls.response_latency > _PROMPT:
            return rates
        for number in rng.choices(self._numbers, k=_RATES):
            self._enable(number, 0)
            peer = self._peers[number]
            usable = self._writable(number, peer)
            found = [
                each
                for each in self._registered.values()
                if each.region in usable and each.pages is None and each.length > 2000
            ]
            if not found or peer.stream.markers:
                continue
            allotment = rng.choice(found)
            region, part = allotment.region, self._part(allotment.region)
            first = host.drain()
            size, cycles = rng.choice((1, 16, 64, 256, 1440)), 0
            for _ in range(_IN_A_ROW):
                start = part.start + rng.randint(0, len(part) - size)
                header = TaggedHeader(region.stag, (region.to + start) % _TO, False)
                position = peer.sender.position
                self._send(number, peer, [header.encode() + rng.randbytes(size)])
                beats = -(-(peer.sender.position - position) // octets)
                lane = (allotment.address + self._base + start) % octets
                cycles += max(beats, -(-(lane + size) // octets))
            rates.append(Rate(first, host.drain(), cycles + cycles // 50 + _FILL))
        return rates

    def _across_wrap(self, slack: int) -> None:
        """Delivers a message before the RNIC's count of cycles wraps, which raises an interrupt
        after the wrap.
        """
        rng = self._rng
        number = rng.choice(self._numbers)
        self._enable(number, 0)
        self._host.carry_out(commands.mask_interrupts())
        timeout = WRAP + rng.randrange(1000)
        self._interrupt(number, 1, 2, timeout, timeout, slack)

    def _interrupt(
        self, number: int, messages: int, count: int, timeout: int, watched: int, slack: int
    ) -> None:
        """Makes the idle RNIC deliver messages while the host takes none, with a moderated
        interrupt.
        """
        host = self._host
        first, queue = len(self._golden.deliveries), host.bound.get(number, 0)
        self._moderated.append(Moderated(first, messages, count, timeout, watched))
        host.carry_out(commands.moderate(count, timeout, queue=queue))
        host.drain()
        host.operations.append(Pause())
        self._deliver(number, messages)
        host.operations.append(Wait(watched + slack))
        if messages >= count or timeout <= watched:
            host.read("CQ_PENDING", 1 << queue)
        host.operations.append(Resume())
        host.drain()

    def _moderate(self, ring: Ring, slack: int) -> None:
        """Makes the idle RNIC deliver messages while the host takes none, with moderated
        interrupts.
        """
        rng, host = self._rng, self._host
        queues = rng.sample(ring.queues, len(ring.queues))
        for round_ in range(max(_ROUNDS, len(queues))):
            queue = queues[round_ % len(queues)]
            number = self._any_of(queue)
            self._enable(number, 0)
            host.carry_out(commands.mask_interrupts())
            messages = rng.randint(1, min(ring.entries, 8))
            count = rng.choice((1, 2, messages, messages + 1, 1 << rng.randrange(4, 9)))
            timeout = 1 << 8 + (self._number * _ROUNDS + round_) % 24
            timeout = rng.choice((timeout, rng.getrandbits(rng.randint(1, 32))))
            self._interrupt(number, messages, count, timeout, WATCHED, slack)
        # The ring becomes full, or nearly; and a slow bus gets as many completions as it may owe.
        host.operations.append(Pause())
        messages = min(ring.entries, 3 * self._config.outstanding)
        self._deliver(number, messages)
        if messages == ring.entries:
            self._overrun(number)
        host.operations += [Wait(slack), Resume()]
        host.drain()

    def _overrun(self, number: int) -> None:
        """Sends messages for which the ring has no room, on streams of one queue."""
        host, golden = self._host, self._golden
        host.drain()
        others = [
            each
            for each in self._numbers
            if each != number
            and host.bound.get(each, 0) == host.bound.get(number, 0)
            and golden.live(each)
            and self._peers[each].order.free
            and not golden.kept(each)
        ]
        for each in (number, *self._rng.sample(others, min(len(others), _REFUSED))):
            golden.overrun(self._send_uncompleted(each))
        host.drain()

    def _send_uncompleted(self, number: int) -> Arrival:
        """Sends a message without payload that does not complete. Returns its arrival."""
        host, peer = self._host, self._peers[number]
        position = peer.sender.position
        octets = peer.sender.send(TaggedHeader(0, 0, True).encode())
        (arrival,) = self._arrivals(peer, octets, position)
        host.packets += 1
        host.streams[number] = host.packets
        self._golden.receive(arrival)
        host.send(Packet(number, position & _HALF, octets))
        return arrival

    def _refuse_completions(self, ring: Ring, address: int) -> None:
        """Lets the bus refuse a completion of a queue that is not in use otherwise. The queue fails
        alone, until it restarts.
        """
        rng, host, golden = self._rng, self._host, self._golden
        queues = range(self._config.completion_queues)
        queue = rng.choice([each for each in queues if each not in ring.queues])
        number = rng.choice(self._numbers)
        bound = host.bound.copy()
        host.bound[number] = queue
        self._enable(number, 0)
        host.carry_out(commands.set_cq(address, _REFUSED_RING, queue=queue)[:-1])
        host.read("CQ_STATE", 0)
        golden.lose(self._send_uncompleted(number))
        failed = regs.pack("CQ_STATE", failed=1)
        host.read("CQ_STATE", failed)
        golden.overrun(self._send_uncompleted(number))
        host.drain()
        host.operations.append(until(queue_error=1))
        for each in range(2 * len(queues)):  # half of these numbers name no queue
            host.carry_out([commands.Write("CQ_INDEX", each)])
            host.read("CQ_STATE", failed if each == queue else 0)
        host.carry_out(commands.disable_cq(queue)[:-1])
        host.read("CQ_STATE", 0)
        host.operations.append(until(queue_error=0))
        host.bound = bound
        self._enable(number, 0)

    def _end_ring(self, ring: Ring, stalls: Stalls) -> None:
        """Disables all queues while completions wait for their responses. A ring begins anew only
        after its last response, with no completion written.
        """
        host = self._host
        numbers = [self._any_of(queue) for queue in ring.queues]
        for number in numbers:
            self._enable(number, 0)
        for number in numbers:
            self._deliver(number, min(ring.entries, 8))
        host.see(len(self._golden.deliveries))
        # The latest completion is that of the last queue.
        for queue in reversed(ring.queues):
            host.carry_out(commands.disable_cq(queue)[:-1])
            late = stalls.response_latency >= _LATE and not stalls.registers
            if late and queue == ring.queues[-1]:
                host.read("CQ_STATE", regs.pack("CQ_STATE", restarting=1))
        host.operations.append(Wait(slack(stalls)))
        for queue in ring.queues:
            host.carry_out([commands.Write("CQ_INDEX", queue)])
            host.read("CQ_STATE", 0)
            host.read("CQ_PRODUCER", 0)

    def _any_of(self, queue: int) -> int:
        """Returns a stream that completes in a queue."""
        bound = self._host.bound
        return self._rng.choice([each for each in self._numbers if bound.get(each, 0) == queue])

    def _deliver(self, number: int, messages: int) -> None:
        """Sends messages without payload, each in a packet of its own, on a stream."""
        peer = self._peers[number]
        for _ in range(messages):
            header = TaggedHeader(0, 0, True, self._rng.getrandbits(8))
            self._send(number, peer, [header.encode()])

    def _stalls(self) -> Stalls:
        """Returns no stalls, one side, or a few on all sides; some last so long that queues
        fill up.
        """
        rng = self._rng
        latency = rng.choice((1, 8, 8, 30, 300, 2000))
        seed = rng.randrange(1, 1 << 32)
        kind = rng.randrange(9)
        stretch = rng.choice((1, 1, 40, 300, 1000))
        sides = dict.fromkeys(Stalls.SIDES, 0.0)
        if kind < 5:
            sides[Stalls.SIDES[kind]] = rng.choice((0.2, 0.5, 0.5 if stretch > 1 else 0.9))
        elif kind < 8:
            sides = dict.fromkeys(Stalls.SIDES, rng.choice((0.1, 0.3)))
            stretch = min(stretch, 300)
        # The host makes most of its calls one after another, each of many accesses.
        sides["registers"] = rng.choice((0, 0.3)) if stretch == 1 else 0.01
        return Stalls(**sides, stretch=stretch, response_latency=latency, seed=seed)

    # -- the host's calls

    def _lay_out(self) -> None:
        """Makes regions of every kind."""
        rng = self._rng
        entries = self._entries()
        for kind, entry in enumerate(entries[len(_HOSTS) : -_VAST * len(_HOSTS)]):
            length = rng.choice((1, 9, 100, 1000, 4096, 6000, 20000, 60000))
            if kind < len(_HOSTS):
                length = 60000  # so that each host has a region for every segment
            if kind in (1, len(_HOSTS)):
                length = rng.randrange(1 << 16, _LONG)
            length = max(1, length - rng.randrange(1 + length // 8))
            pages = self._pages(length) if kind and rng.random() < 0.4 else None
            address = 0
            if kind == 0:
                address = self._space.take(length, -(length // 2) % _LARGEST_PAGE, _LARGEST_PAGE)
            elif pages is None:
                address = self._space.take(length, rng.randrange(4096), 4096)
            host = _HOSTS[kind % len(_HOSTS)]
            region = self._region(entry, host, length, kind >= len(_HOSTS))
            self._allotments.append(Allotment(region, address, pages))
            self._register(self._allotments[-1])
        for n, host in enumerate(_HOSTS * _VAST, self._number * _VAST * len(_HOSTS)):
            bits = rng.randint(32, 62)
            length = (1 << bits) + rng.getrandbits(rng.choice((bits, rng.randint(1, 32))))
            start = rng.getrandbits(rng.randint(1, 63)) % (length - _PART)
            # Or the octets left, from the middle of the part on, are a power of two.
            left = _PART // 2 + (1 << 16 + n % (bits - 16))
            start = rng.choice((start, length - _PART, length - left))
            part = range(start, start + _PART)
            address = self._space.take(_PART, rng.randrange(4096), 4096) - start
            region = self._region(entries.pop(), host, length, True)
            self._parts[region] = part
            self._allotments.append(Allotment(region, address, part=part))
            self._register(self._allotments[-1])
        if self._bus_errors:
            for host, entry in zip(_HOSTS, entries, strict=False):
                length = 3000
                address = self._space.take(length, rng.randrange(4096), 4096)
                stag = entry << 8 | rng.getrandbits(8)
                allotment = Allotment(Region(host, stag, rng.getrandbits(40), length), address)
                self._allotments.append(allotment)
                self._kept.add(entry)
                self._faulty[host] = allotment, address + rng.randrange(length)
                self._host.register(allotment)

    def _entries(self) -> list[int]:
        """Slots of the STag table, half of which differ from another one in a bit."""
        rng, stags = self._rng, self._config.stags
        entries = dict.fromkeys(rng.sample(range(stags), _REGIONS // 2))
        while len(entries) < _REGIONS:
            near = rng.choice([*entries]) ^ 1 << rng.randrange(stags.bit_length() - 1)
            entries.setdefault(near)
        found = [*entries]
        rng.shuffle(found)
        return found

    def _region(self, entry: int, host: str, length: int, any_rights: bool) -> Region:
        """Returns a region for an STag of this slot."""
        rng = self._rng
        index = rng.getrandbits(24) // self._config.stags * self._config.stags + entry
        stream = None
        if any_rights and rng.random() < 0.4:
            stream = rng.choice(self._numbers)
            host = self._peers[stream].stream.destination.address
        return Region(
            host,
            index << 8 | rng.getrandbits(8),
            rng.choice(
                (
                    0,
                    rng.randrange(_TO - length),
                    _TO - length,
                    _TO - length - (1 << rng.randrange(12)),
                    max(0, (1 << 32) - length // 2),
                    (rng.getrandbits(31) + 1 << 32) - rng.randint(0, min(length, 1 << 16)),
                )
            ),
            length,
            access=(Access.REMOTE_WRITE if not any_rights or rng.random() < 0.85 else Access.NONE)
            | (Access.REMOTE_READ if rng.random() < 0.5 else Access.NONE),
            stream=stream,
        )

    def _pages(self, length: int) -> Pages | None:
        """Returns pages for ``length`` octets of unused host memory, if the table has slots
        for them.
        """
        most = 2 + (length >> 12)
        if most > self._slots:
            return None
        self._slots -= most
        rng = self._rng
        if not self._shifts:
            self._shifts = [12, 12, 12, 12, 13, 13, 14, *range(12, 22)]
            rng.shuffle(self._shifts)
        shift = self._shifts.pop()
        size = 1 << shift
        tails, heads = self._edges.get(shift, ([], []))
        if tails and 1 < length <= 2 * _EDGE and rng.random() < 0.7:
            before = rng.randint(max(1, length - _EDGE), min(_EDGE, length - 1))
            return Pages(shift, (tails.pop() - size, heads.pop()), size - before)
        if shift > 14:
            # Several pages are adjacent.
            address = self._space.take(length, rng.randrange(4096), 4096)
            return Pages(
                shift,
                tuple(range(address // size * size, address + length, size)),
                address % size,
            )
        near = size - rng.randint(1, min(size, length + 1))  # the end of a page
        offset = rng.choice((0, near, rng.randrange(size)))
        addresses = [0] * -(-(offset + length) // size)
        for page in rng.sample(range(len(addresses)), len(addresses)):
            start = offset if page == 0 else 0
            end = min(size, offset + length - page * size)
            addresses[page] = self._space.take(end - start, start, size) - start
        return Pages(shift, tuple(addresses), offset)

    def _register(self, allotment: Allotment) -> None:
        entry = slot(allotment.region.stag, self._config.stags)
        self._host.settle(self._host.slots.get(entry, 0))
        self._beside(lambda: self._host.register(allotment), slots=[entry])
        self._registered[entry] = allotment
        self._usable.clear()

    def _beside(
        self, call: Callable[[], None], streams: Iterable[int] = (), slots: Iterable[int] = ()
    ) -> None:
        """Makes a call of the host, sometimes during the traffic."""
        if self._segments and self._rng.random() < 0.7:
            self._host.aside(self._rng.randrange(100), call, streams, slots)
        else:
            call()

    def _unregister(self, entry: int) -> Allotment:
        self._gone.append(self._registered.pop(entry))
        self._usable.clear()
        return self._gone[-1]

    def _revoke(self) -> None:
        """Revokes a region."""
        entry = self._rng.choice([*self._registered])
        self._host.settle(self._host.slots.get(entry, 0))
        region = self._unregister(entry).region
        self._beside(lambda: self._host.revoke(region), slots=[entry])
        self._try([region])

    def _revoke_under_way(self) -> None:
        """Revokes a region while segments that passed its checks are on their way to memory.

        The RNIC counts a segment as placed when it has passed the checks, and a revocation is done
        when the bus has responded for all of them.
        """
        rng, host = self._rng, self._host
        writers = [
            (number, peer)
            for number, peer in self._peers.items()
            if self._golden.live(number) and peer.order.free
        ]
        if not writers:
            return
        number, peer = rng.choice(writers)
        region = rng.choice(self._writable(number, peer))
        entry = slot(region.stag, self._config.stags)
        if not region.length:  # the stream has no region
            return
        host.drain()
        part = self._part(region)
        for _ in range(rng.randint(1, 60)):
            length = min(rng.choice((1, 1, 8, 30)), len(part))
            at = region.to + part.start + rng.randint(0, len(part) - length)
            header = TaggedHeader(region.stag, at % _TO, True, rng.getrandbits(8))
            if rng.random() < 0.1:  # then responses come apart, too
                host.operations.append(Wait(rng.randrange(100)))
            self._send(number, peer, [header.encode() + rng.randbytes(length)])
        host.read("PLACED_SEGMENTS", self._golden.counters()["PLACED_SEGMENTS"])
        self._unregister(entry)
        host.revoke(region)
        host.revoked()
        host.still.append(Still(len(host.operations) - 1, idle=False))

    def _replace(self) -> None:
        """Rewrites an STag's entry with other rights or another key."""
        entry = self._rng.choice([*self._registered])
        if self._page_slots(self._registered[entry]) <= self._slots:
            self._host.settle(self._host.slots.get(entry, 0))
            self._golden.revoke(self._unregister(entry).region)
            self._register_again(self._gone.pop())

    def _replace_near(self) -> None:
        """Replaces a region while segments come in for another one, whose slot of the STag table
        differs from its own in one bit.
        """
        rng, host = self._rng, self._host
        found = [
            (entry, near)
            for entry in self._registered
            for bit in range(self._config.stags.bit_length() - 1)
            if (near := entry ^ 1 << bit) in self._registered
        ]
        if not found:
            return
        entry, near = rng.choice(found)
        region = self._registered[near].region
        writers = [
            number
            for number, peer in self._peers.items()
            if self._golden.live(number)
            and peer.order.free
            and region in self._writable(number, peer)
        ]
        old = self._registered[entry]
        if not writers or self._page_slots(old) > self._slots:
            return
        host.settle(host.slots.get(entry, 0))
        self._golden.revoke(self._unregister(entry).region)
        self._slots -= self._page_slots(old)
        again = replace(old, region=self._region(entry, old.region.endpoint, old.length, True))
        if old.part is not None:
            self._parts[again.region] = old.part
        self._allotments.append(again)
        host.aside(rng.randrange(60), lambda: host.register(again), slots=[entry])
        self._registered[entry] = again
        self._gone.pop()
        self._usable.clear()
        number = rng.choice(writers)
        peer = self._peers[number]
        for _ in range(rng.randint(1, 6)):
            part = self._part(region)
            length = min(rng.randrange(40), len(part))
            at = region.to + part.start + rng.randint(0, len(part) - length)
            header = TaggedHeader(region.stag, at % _TO, True, rng.getrandbits(8))
            peer.order.sent((region.stag, header.rsvdulp), last=True)
            self._send(number, peer, [header.encode() + rng.randbytes(length)])

    def _return(self) -> None:
        """Registers a region that was revoked."""
        if self._gone:
            allotment = self._gone.pop(self._rng.randrange(len(self._gone)))
            if self._page_slots(allotment) <= self._slots:
                self._register_again(allotment)

    @staticmethod
    def _page_slots(allotment: Allotment) -> int:
        return 0 if allotment.pages is None else len(allotment.pages.addresses)

    def _register_again(self, allotment: Allotment) -> None:
        """Registers a region unchanged, or anew over the same memory."""
        rng, old = self._rng, allotment.region
        self._slots -= self._page_slots(allotment)
        if rng.random() < 0.5:
            entry = slot(old.stag, self._config.stags)
            any_rights = rng.random() < 0.5
            region = self._region(entry, old.endpoint, old.length, any_rights)
            if allotment.part is not None:
                self._parts[region] = allotment.part
            allotment = replace(allotment, region=region)
            self._allotments.append(allotment)
        self._register(allotment)

    def _stop(self, number: int) -> None:
        """Disables a stream."""
        entries = [
            entry for entry, each in self._registered.items() if each.region.stream == number
        ]
        host = self._host
        host.settle(
            max(host.streams.get(number, 0), *(host.slots.get(entry, 0) for entry in entries), 0)
        )
        self._beside(lambda: host.stop(number), [number], entries)
        self._stopped.add(number)
        host.sweeping = set(entries)
        self._try([self._unregister(entry).region for entry in entries])

    def _try(self, gone: list[Region]) -> None:
        """Sends a segment for a region that was revoked, now and then."""
        rng = self._rng
        if not gone or rng.random() < 0.3:
            return
        region = rng.choice(gone)
        live = [
            number
            for number, peer in self._peers.items()
            if self._golden.live(number)
            and not self._golden.kept(number)
            and peer.stream.destination.address == region.endpoint
        ]
        if live:
            number = rng.choice(live)
            segment = TaggedHeader(region.stag, region.to, rng.random() < 0.5).encode()
            self._send(number, self._peers[number], [segment + bytes(min(region.length, 8))])

    def _enable(self, number: int, queues: float = 0.8) -> None:
        """Enables a stream, or enables it anew, and opens some of its queues."""
        rng, host = self._rng, self._host
        host.settle(host.streams.get(number, 0))
        peer = self._peers.get(number)
        if peer is not None:
            # The device keeps a stream in error until its event was read.
            if self._masked:
                self._mask_events(masked=False)
            host.operations.append(until(event=0))
        position = 4 * rng.choice((0, rng.getrandbits(30), (1 << 30) - rng.randrange(1, 5000)))
        if peer is not None and rng.random() < 0.5:
            stream, position = peer.stream, peer.sender.position
        else:
            stream = Stream(
                number,
                number,
                Endpoint("10.0.1.1", number),
                Endpoint(peer.stream.destination.address if peer else rng.choice(_HOSTS), 7174),
                crc=rng.random() < 0.7,
                markers=rng.random() < 0.4,
            )
        host.enable(stream, position)
        self._stopped.discard(number)
        sender = MpaSender(crc=stream.crc, markers=stream.markers, position=position)
        self._peers[number] = peer = _Peer(stream, sender, {})
        self._usable.clear()
        for qn in range(QUEUES):
            if rng.random() < queues:
                near = (1 << rng.randrange(33)) - rng.randrange(20)
                first = rng.choice((1, 1, near % _MSN, near % _MSN, rng.getrandbits(32)))
                fill = rng.choice((0, 1, 2, 3, 4, 6, 8, 12))
                if rng.random() < 0.01:
                    fill = self._config.queue_depth
                longest = rng.choice((64, 64, 700, 1500, 4000))
                peer.queues[qn] = queue = _Queue(first, fill, longest)
                host.open(number, qn, first)
                self._fill(number, qn, queue)

    def _fill(self, number: int, qn: int, queue: _Queue) -> None:
        """Posts buffers until there are enough."""
        while queue.coming:
            msn, length, aside = queue.coming.popleft()
            if aside > self._host.asides_over:
                self._host.end_aside()
            queue.free.append((msn, length))
        while len(queue.free) < queue.fill and self._has_room(queue):
            queue.free.append(self._post(number, qn, queue))

    def _has_room(self, queue: _Queue) -> bool:
        """Decides whether one more buffer can be posted to a queue."""
        return queue.posted - len(queue.used) < self._config.queue_depth and self._host.has_slot()

    def _post(self, number: int, qn: int, queue: _Queue) -> tuple[int, int]:
        """Posts a buffer. Returns its MSN and length."""
        rng, host, depth = self._rng, self._host, self._config.queue_depth
        if queue.posted >= depth:
            # The buffer replaces one whose completion was seen.
            host.see(queue.used[queue.posted - depth])
        longest = queue.longest
        lengths = 0, 1, 64, longest, longest ^ 1 << rng.randrange(12), rng.randrange(64)
        length = rng.choice(lengths)
        if rng.random() < 0.03:
            length = rng.choice((9000, rng.randrange(1 << 14, 1 << 16)))
        pages = self._pages(length) if length and rng.random() < 0.1 else None
        if self._segments and not queue.free and host.vast is None:
            length, pages = self._vast_buffer()
        return self._post_of(number, qn, queue, length, pages)

    def _post_of(
        self, number: int, qn: int, queue: _Queue, length: int, pages: Pages | None = None
    ) -> tuple[int, int]:
        """Posts a buffer of this length. Returns its MSN and length."""
        msn = queue.following
        self._host.post(number, qn, msn, length, pages)
        queue.following = (queue.following + 1) % _MSN
        queue.posted += 1
        return msn, length

    def _cross(self) -> None:
        """Sends a message of many segments to a buffer that crosses a multiple of 2^32."""
        rng = self._rng
        number, qn, first = rng.choice(self._numbers), rng.randrange(QUEUES), rng.getrandbits(32)
        self._enable(number, 0)
        peer = self._peers[number]
        peer.queues[qn] = queue = _Queue(first, rng.randint(1, 4), 64)
        self._host.open(number, qn, first)
        length = rng.randrange(200, 60000)
        before = rng.randrange(64, length)  # octets before the crossing, or up to 63 fewer
        self._space.take(0, _CROSSING_BUFFER - GUARD - before, _CROSSING_BUFFER)
        msn, room = self._post_of(number, qn, queue, length)
        queue.waiting.extend(self._message(qn, msn, room, cut=40))
        self._send_waiting(number, qn, queue)

    def _send_waiting(self, number: int, qn: int, queue: _Queue) -> None:
        """Sends the remaining segments of a message, some in each packet."""
        peer = self._peers[number]
        while queue.waiting:
            segments = [queue.waiting.popleft() for _ in range(min(6, len(queue.waiting)))]
            for left in range(len(segments), 0, -1):
                peer.order.sent(qn, last=left == 1 and not queue.waiting)
            self._send(number, peer, segments)

    def _vast_buffer(self) -> tuple[int, Pages]:
        """Returns a length that memory need not have, because all pages are the same one."""
        host, rng = self._host, self._rng
        shift = _LARGEST_PAGE.bit_length() - 1
        if host.vast is None:
            count = 1 << rng.choice((2, 5, 7, 9, 10, 10))
            while count > self._slots:
                count //= 2
            self._slots -= count
            page = self._space.take(_LARGEST_PAGE, 0, _LARGEST_PAGE)
            host.vast = Pages(shift, (page,) * count, 0)
        most = len(host.vast.addresses)
        return rng.choice((most, rng.randint(2, most))) << shift, host.vast

    def _post_beside(self) -> None:
        """Posts buffers while packets of other queues, and of this one's earlier buffers, arrive.

        A look-up and a post meet in the same cycle now and then.
        """
        rng, host = self._rng, self._host
        number = (
            self._turns[-1] if self._turns and rng.random() < 0.6 else rng.choice(self._numbers)
        )
        peer = self._peers[number]
        if not peer.queues or not self._golden.live(number):
            return
        qn, queue = rng.choice([*peer.queues.items()])
        posted: list[tuple[int, int]] = []

        def post() -> None:
            for _ in range(rng.randint(1, 3)):
                if self._has_room(queue):
                    posted.append(self._post(number, qn, queue))

        host.aside(rng.randrange(60), post)
        queue.coming.extend((*each, host.asides) for each in posted)

    def _commit_nothing_beside(self) -> None:
        """Writes an unused entry of the STag table repeatedly, while packets for a similar index
        arrive.

        The two indexes differ in a nibble.
        """
        rng, host = self._rng, self._host
        entry = rng.choice([*self._registered])
        nibble = 4 * rng.randrange(-(-(self._config.stags.bit_length() - 1) // 4))
        other = (entry ^ rng.randrange(1, 16) << nibble) % self._config.stags
        if other == entry or other in self._registered or other in self._kept:
            return

        def commit() -> None:
            for _ in range(16):
                host.carry_out(commands.clear_stag(other << 8))

        host.settle(host.slots.get(other, 0))
        host.aside(rng.randrange(60), commit, slots=[other])

    def _mask_events(self, *, masked: bool) -> None:
        """Masks the interrupt of events, so that they accumulate, or unmasks it."""
        self._masked = masked
        self._host.carry_out(
            commands.mask_interrupts(event=masked, completion=not self._interrupts)
        )

    def _post_into_use(self) -> None:
        """Posts buffers to a queue on which messages of many short segments arrive.

        A look-up of the queue and a post to it meet in the same cycle now and then.
        """
        rng, host = self._rng, self._host
        found = [
            (number, qn, queue)
            for number, peer in self._peers.items()
            if self._golden.live(number) and peer.order.free and not self._golden.kept(number)
            for qn, queue in peer.queues.items()
            if queue.free and not queue.waiting and queue.free[0][1] <= _LONG
        ]
        if not found:
            return
        number, qn, queue = rng.choice(found)
        posted: list[tuple[int, int]] = []

        def post() -> None:
            for _ in range(rng.randint(2, 4)):
                if self._has_room(queue):
                    posted.append(self._post(number, qn, queue))

        host.aside(rng.randrange(60), post)
        queue.coming.extend((*each, host.asides) for each in posted)
        for _ in range(min(len(queue.free), 3)):
            msn, room = queue.free.popleft()
            queue.waiting.extend(self._message(qn, msn, room, cut=rng.choice((0, 5, 15))))
            self._send_waiting(number, qn, queue)

    def _begin_before_markers(self) -> None:
        """Sends FPDUs that begin in the beat of a marker, of all powers of two of words."""
        rng, words = self._rng, self._config.words
        live = [
            number
            for number, peer in self._peers.items()
            if peer.stream.markers and self._golden.live(number) and peer.order.free
        ]
        if not live:
            return
        number = rng.choice(live)
        peer = self._peers[number]
        region = max(self._writable(number, peer), key=lambda each: len(self._part(each)))
        part = self._part(region)
        around = _AROUND + TaggedHeader.size
        for _ in range(8):
            to_marker = -peer.sender.position % MARKER_SPACING - 4 * rng.randint(1, words)
            before = (to_marker - around) % MARKER_SPACING
            segments = []
            for length in (before, self._power_of_two()):
                octets = rng.randbytes(min(length, len(part)))
                start = part.start + rng.randint(0, len(part) - len(octets))
                header = TaggedHeader(region.stag, (region.to + start) % _TO, True)
                segments.append(header.encode() + octets)
            self._send(number, peer, segments)

    def _overtake(self) -> None:
        """Sends messages after an unfinished one until the stream fails, because no more can
        be kept.
        """
        rng, host = self._rng, self._host
        number = rng.choice([each for each in self._numbers if self._golden.live(each)] or [-1])
        if number < 0:
            return
        peer = self._peers[number]
        host.end_aside()
        self._send(number, peer, [TaggedHeader(rng.getrandbits(32), 0, False, 256 - 1).encode()])
        for message in rng.sample(range(255), 2 * WAITING):
            header = TaggedHeader(rng.getrandbits(32), rng.getrandbits(64), True, message)
            self._send(number, peer, [header.encode()])
            if not self._golden.live(number):
                break

    def _pile_up(self) -> None:
        """Makes most streams fail while the interrupt of events is masked.

        Each stream's event waits, and the messages of one other stream arrive.
        """
        rng, host = self._rng, self._host
        live = [number for number in self._numbers if self._golden.live(number)]
        quiet = [number for number in live if self._peers[number].order.free]
        if not quiet:
            return
        stays = rng.choice(quiet)
        others = [number for number in live if number != stays]
        host.resume()
        host.drain()
        rounds = rng.randint(1, 5)
        for turn in range(rounds):
            self._mask_events(masked=True)
            for number in others:
                header = TaggedHeader(rng.getrandbits(32), rng.getrandbits(64), True)
                self._wrongs["piled up"] += 1
                self._send(number, self._peers[number], [header.encode() + bytes(1)])
            self._deliver(stays, 1)
            for number in others:
                self._enable(number, 0.02 if turn < rounds - 1 else 0.8)

    def _known(self) -> dict[str, int]:
        """Returns the registers with known values, and these."""
        config = self._config
        known = {
            "ID": regs.ID, "VERSION": regs.VERSION, "CAP_WIDTH": config.width,
            "CAP_STAGS": config.stags, "CAP_STREAMS": config.streams,
            "CAP_BUFFER": config.buffer_octets, "CAP_PAGES": config.pages,
            "CAP_QUEUE": config.queue_depth, "CAP_BUFFERS": config.buffers,
            "CAP_CQS": config.completion_queues, "CAP_DOORBELLS": regs.PAGES,
        }  # fmt: skip
        for each in self._there():
            if each.access != "ro" and each.name not in _UNKNOWN:
                known[each.name] = self._host.holds(each.name) if each.access == "rw" else 0
        return known

    def _scribble(self) -> None:
        """Writes any values to the registers that keep them, without a command."""
        for each in self._there():
            if each.access == "rw" and each.name not in _UNKNOWN:
                value = self._rng.getrandbits(32)
                if each.name == "IRQ_MASK":  # its masks stay
                    masks = regs.pack("IRQ_MASK", event=1, completion=1)
                    value = value & ~masks | self._host.holds(each.name) & masks
                self._host.carry_out((commands.Write(each.name, value),))
        # A doorbell of a queue that does not exist, while the engine rings none.
        self._host.drain()
        value = self._rng.getrandbits(32) | regs.pack("CQ_DOORBELL", queue=0xFF)
        self._host.carry_out((commands.Write("CQ_DOORBELL", value),))
        self._host.read("CQ_DOORBELL", value)

    def _there(self) -> list[regs.Register]:
        """Returns the registers that the RNIC has."""
        config = self._config
        return regs.registers_of(
            sctp=config.sctp, transmit=config.transmit, responder=config.responder
        )

    def _access_registers(self) -> None:
        """Reads registers with known values, writes single octets, and makes accesses that
        are refused.
        """
        rng, host = self._rng, self._host
        known, there = self._known(), self._there()
        kept = [
            each.name
            for each in there
            if each.access == "rw" and each.name.partition("_")[0] in (*_WINDOWS, "SCRATCH")
        ]
        addresses = {each.address for each in there}
        for _ in range(rng.randint(1, 6)):
            kind = rng.randrange(5)
            if kind == 0:
                name = rng.choice([*known])
                host.read(name, known[name])
            elif kind == 1:
                first = rng.randrange(4)
                name, strobes = rng.choice(kept), 15 << first & 15 >> rng.randrange(4 - first)
                host.write_octets(name, rng.getrandbits(32), strobes)
                host.read(name, host.holds(name))
                known[name] = host.holds(name)
            elif kind == 2:
                known |= self._arguments()
            elif kind == 3:
                name = rng.choice([each.name for each in there if each.access == "ro"])
                value = rng.getrandbits(32)
                host.refused(WriteRegister(regs.address(name), value, response=_READ_ONLY))
            else:
                address = rng.choice([*addresses]) ^ rng.choice([1 << bit for bit in range(2, 12)])
                if address in addresses:
                    continue
                value = rng.getrandbits(32)
                host.refused(
                    rng.choice((
                        WriteRegister(address, value, response=_NO_REGISTER),
                        Poll(address, 0, response=_NO_REGISTER),
                    ))
                )  # fmt: skip

    def _arguments(self) -> dict[str, int]:
        """Writes the arguments of a command for an entry that is in use, but not the command.
        Returns the values of these registers.
        """
        rng, host, config = self._rng, self._host, self._config
        window = rng.choice(_WINDOWS)
        entries = {
            "STAG_INDEX": rng.choice([*self._registered]),
            "PAGE_INDEX": rng.randrange(config.pages),
            "STREAM_INDEX": rng.choice(self._numbers),
            "QUEUE_STREAM": rng.choice(self._numbers),
            "QUEUE_NUMBER": rng.randrange(QUEUES),
        }
        written = {}
        for each in self._there():
            if each.access == "rw" and each.name.partition("_")[0] == window:
                value = entries.get(each.name, rng.getrandbits(32))
                host.write_octets(each.name, value, 15)
                written[each.name] = value
        return written

    def _count(self) -> None:
        """Reads all counters of the idle RNIC, which writes nothing for some time."""
        rng, host = self._rng, self._host
        host.resume()
        host.drain()
        host.operations.append(Wait(40))
        counters = self._golden.counters()
        for name in regs.COUNTERS:
            whole, _, half = name.rpartition("_")
            shift = 32 if half == "HI" else 0
            value = counters[whole] if half in ("LO", "HI") else counters[name]
            if half == "LO":  # the upper half is that of the last read of the lower one
                host.read(f"{whole}_HI", self._latched)
                self._latched = value >> 32
            host.read(name, value >> shift & _HALF)
        number = rng.choice(self._numbers)
        queue = host.bound.get(number, 0)
        host.carry_out([commands.Write("CQ_INDEX", queue)])
        delivered = [host.bound.get(each.completion.stream, 0) for each in self._golden.deliveries]
        host.read("CQ_PRODUCER", delivered.count(queue) & 0xFFFF)

    def _set_up_beside(self) -> None:
        """Sets up a stream that is in error, while packets of other streams arrive."""
        dead = [number for number in self._numbers if not self._golden.live(number)]
        if dead:
            number = self._rng.choice(dead)
            self._host.settle(self._host.streams.get(number, 0))
            self._beside(lambda: self._enable(number), [number])

    # -- what happens between packets

    def _act(self) -> None:
        """Does the actions that the host does now and then."""
        rng, host = self._rng, self._host
        chance = rng.randrange(2000)
        if chance < 12:
            self._revoke()
        elif chance < 18:
            self._replace()
        elif chance < 33:
            self._return()
        elif chance < 40:
            self._stop(rng.choice(self._numbers))
        elif chance < 50:
            host.pause()
        elif chance < 66:
            host.resume()
        elif chance < 70:
            host.catch_up()
        elif chance < 200:
            host.revoked()
        elif chance < 400:
            self._post_beside()
        elif chance < 440:
            self._set_up_beside()
        elif chance < 500:
            self._commit_nothing_beside()
        elif chance < 506:
            self._mask_events(masked=not self._masked)
        elif chance < 546:
            self._access_registers()
        elif chance < 551:
            self._count()
        elif chance < 566:
            self._post_into_use()
        elif chance < 568:
            self._overtake()
        elif chance < 569:
            self._pile_up()
        elif chance < 579:
            self._replace_near()
        elif chance < 583 and self._bus_errors:
            self._bus_errors_at_once()
        elif 583 <= chance < 589:
            self._revoke_under_way()
        elif 589 <= chance < 605:
            self._begin_before_markers()

    def _turn(self) -> int:
        """Returns the next stream: each in turn, a few of them, or any."""
        rng = self._rng
        if not self._turns:
            kind = rng.randrange(5)
            if kind == 0:
                self._turns = rng.sample(self._numbers, len(self._numbers))
            elif kind == 1:
                some = rng.sample(self._numbers, min(2, len(self._numbers)))
                self._turns = some * rng.randrange(1, 30)
            elif kind == 2:
                self._turns = [rng.choice(self._numbers)] * rng.randrange(1, 30)
            elif kind == 3:
                # The two numbers differ in one bit.
                number = rng.choice(self._numbers)
                near = {number ^ 1 << bit for bit in range(12)} & set(self._numbers)
                self._turns = [number, rng.choice(sorted(near or {number}))] * rng.randrange(1, 30)
            else:
                self._turns = rng.choices(self._numbers, k=50)
        return self._turns.pop()

    def _packet(self) -> None:
        rng, golden = self._rng, self._golden
        number = self._turn()
        if rng.randrange(300) == 0:
            self._outsider(number)
            return
        live = golden.live(number)
        if not live:
            chance = rng.random()
            if chance < 0.3:
                self._enable(number)
            elif chance < 0.7:
                return
        peer = self._peers[number]
        if rng.randrange(1000 if live else 10) == 0:
            self._tiny(number, peer)
            return
        if self._bus_errors and golden.live(number) and rng.randrange(_WRONG) == 0:
            self._bus_error(number, peer)
            return
        segments = []
        # A segment that may exceed the number of messages is the last of its packet.
        most = max(1, (WAITING - golden.kept(number)) // 2)
        for _ in range(min(most, rng.choice((1, 1, 1, 1, 2, 3, 6)))):
            if rng.randrange(_WRONG) == 0:
                self._host.end_aside()  # the fault may depend on the last buffer
                segments.append(self._wrong(number, peer))
            else:
                segments.append(self._right(number, peer))
        self._send(number, peer, segments, spoil=rng.randrange(2 * _WRONG) < len(segments))

    def _send(
        self, number: int, peer: _Peer, segments: Iterable[bytes], *, spoil: bool = False
    ) -> None:
        """Sends segments in a packet, which may be damaged on its way."""
        position = peer.sender.position
        most = _WITH_MARKERS if peer.stream.markers else 1 << 16
        octets = b"".join(peer.sender.send(each[:most]) for each in segments)
        packet = Packet(number, position & _HALF, octets)
        whole = octets
        if spoil:
            self._host.end_aside()
            packet, whole = self._spoiled(peer, packet, position)
            peer.sender.position = position + len(whole)
        errors = len(self._golden.errors)
        for qn, completion in self._host.receive(packet, self._arrivals(peer, whole, position)):
            peer.queues[qn].used.append(completion)
        if any(each.number == LOCAL_CATASTROPHIC for each in self._golden.errors[errors:]):
            # Whether later segments are dropped depends on the time. A message that waits for the
            # ring delays the failure.
            self._host.resume()
            self._host.drain()

    def _outsider(self, number: int) -> None:
        """Sends FPDUs of a stream whose number is too large, and differs from that of one of the
        RNIC's streams in one bit. They are dropped.
        """
        rng = self._rng
        bits = self._config.streams.bit_length() - 1
        outside = number | 1 << rng.randrange(bits, 16)
        if outside not in self._golden.counts:
            stream = replace(self._peers[number].stream, number=outside)
            self._golden.start(stream)
            self._golden.stop(outside)
            self._stopped.add(outside)
            self._outsiders[outside] = _Peer(stream, MpaSender(crc=stream.crc), {})
        # No marker could be in them, so they are the same ones with markers and without.
        position = rng.getrandbits(23) * MARKER_SPACING + 4 * rng.randint(1, 60)
        self._outsiders[outside].sender.position = position
        header = TaggedHeader(rng.getrandbits(32), rng.getrandbits(64), True, rng.getrandbits(8))
        segments = [header.encode() + rng.randbytes(rng.randrange(20)) for _ in range(3)]
        self._send(outside, self._outsiders[outside], segments)

    def _tiny(self, number: int, peer: _Peer) -> None:
        """Sends a packet of FPDUs that have no room for a header, or for which the packet buffer
        has no room; some CRCs are spoiled. The first one fails the stream, if it is live.
        """
        rng = self._rng
        self._host.end_aside()
        position, pieces = peer.sender.position, []
        sizes = [rng.choice((0, 0, 1, 2, 3, 7, 13)) for _ in range(rng.choice((1, 2, 5, 20, 60)))]
        least = 4 * self._config.longest_fpdu - 5  # of a ULPDU that does not fit
        if least < _WITH_MARKERS and rng.random() < 0.2:
            sizes = [*sizes[:2], rng.randint(least, min(least + 400, _WITH_MARKERS)), *sizes[2:5]]
        for size in sizes:
            piece = bytearray(peer.sender.send(rng.randbytes(size)))
            if rng.random() < 0.3:
                piece[-1 - rng.randrange(4)] ^= 1 << rng.randrange(8)
            pieces.append(bytes(piece))
        octets = b"".join(pieces)
        arrivals = self._arrivals(peer, octets, position)
        self._wrongs["tiny" if self._golden.live(number) else "tiny, dropped"] += 1
        self._host.receive(Packet(number, position & _HALF, octets), arrivals)

    def _bus_error(self, number: int, peer: _Peer) -> None:
        """Sends a segment for a region of which the bus refuses an octet.

        The RNIC is idle before it and after it, so that the effect is known.
        """
        region, host = self._faulty[peer.stream.destination.address][0].region, self._host
        host.resume()
        host.drain()
        start = self._rng.randrange(region.length)
        payload = self._rng.randbytes(1 + self._rng.randrange(region.length - start))
        self._write_into_fault(number, peer, start, payload)
        host.drain()

    def _bus_errors_at_once(self) -> None:
        """Sends segments whose writes the bus refuses, on some streams right after each other."""
        rng, host = self._rng, self._host
        live = [number for number in self._numbers if self._golden.live(number)]
        host.resume()
        host.drain()
        for number in rng.sample(live, min(len(live), rng.randint(2, _REFUSED))):
            peer = self._peers[number]
            allotment, fault = self._faulty[peer.stream.destination.address]
            start = max(0, fault - allotment.address - rng.randrange(_REFUSED_OCTETS))
            length = min(rng.randint(1, _REFUSED_OCTETS), allotment.length - start)
            self._write_into_fault(number, peer, start, rng.randbytes(length))
        host.drain()

    def _write_into_fault(self, number: int, peer: _Peer, start: int, payload: bytes) -> None:
        """Sends a segment for a region that the bus refuses an octet of."""
        allotment, fault = self._faulty[peer.stream.destination.address]
        region, position = allotment.region, peer.sender.position
        octets = peer.sender.send(self._tagged(peer, region.stag, region.to + start, payload))
        arrivals = self._arrivals(peer, octets, position)
        self._host.receive(Packet(number, position & _HALF, octets), arrivals)
        # The whole beat is faulty, because a marker inside it causes two writes.
        beat = fault // self._config.octets * self._config.octets - allotment.address
        if start < beat + self._config.octets and beat < start + len(payload):
            self._golden.refuse_write(arrivals[0], range(beat, beat + self._config.octets))

    def _arrivals(self, peer: _Peer, octets: bytes, position: int) -> list[Arrival]:
        """Returns the FPDUs of a packet."""
        arrivals = []
        for at, length in self._cut(peer.stream, octets, position):
            self._segments += 1
            raw = octets[at : at + length]
            arrivals.append(
                Arrival(peer.stream, self._segments, self._host.packets + 1, position + at, raw)
            )
        return arrivals

    def _cut(self, stream: Stream, octets: bytes, position: int) -> Iterator[tuple[int, int]]:
        """Yields the FPDUs of a packet, found by their lengths; the last may be incomplete."""
        at = 0
        # The RNIC does not know the markers of a disabled stream.
        markers = stream.markers and stream.number not in self._stopped
        while at < len(octets):
            length = fpdu_length(octets, at, position + at, markers)
            length = len(octets) - at if length is None else min(length, len(octets) - at)
            yield at, length
            at += length

    # -- segments that are right

    def _right(self, number: int, peer: _Peer) -> bytes:
        rng = self._rng
        chance = rng.randrange(100)
        begun = peer.order.choose(rng)
        if isinstance(begun, int) or (begun is None and chance < 40):
            if (segment := self._untagged(number, peer, begun)) is not None:
                return segment
            if begun is not None:  # without a buffer the stream has to fail
                return self._wrong(number, peer)
        if begun is None and chance < 44:
            # "MUST NOT be checked for a zero-length Tagged DDP Message" (RFC 5041 section 5.2)
            return self._tagged(peer, rng.getrandbits(32), rng.getrandbits(64), b"")
        regions = self._writable(number, peer)
        if isinstance(begun, tuple):
            regions = [region for region in regions if region.stag == begun[0]]
            if not regions:
                return self._tagged(peer, begun[0], 0, b"", begun)
        region = rng.choice(regions)
        part = self._part(region)
        length = min(self._length(peer), len(part))
        room = len(part) - length
        offset = rng.choice((0, room, rng.randint(0, room), rng.randint(0, room)))
        # A segment of no octets may be at the end.
        to = (region.to + part.start + offset) % _TO
        return self._tagged(peer, region.stag, to, rng.randbytes(length), begun)

    def _part(self, region: Region) -> range:
        """The offsets into a region that there is memory for."""
        return self._parts.get(region, range(region.length))

    def _length(self, peer: _Peer) -> int:
        """Octets of a tagged segment's payload; with markers, its FPDU ends near one at times."""
        rng = self._rng
        if not peer.stream.markers or rng.random() < 0.8:
            return self._size()
        around = _AROUND + TaggedHeader.size
        to_marker = -peer.sender.position % MARKER_SPACING - around
        return max(0, to_marker + 4 * rng.randint(-2, 2) + rng.choice((0, 0, MARKER_SPACING - 4)))

    def _size(self) -> int:
        """Returns the octets of a payload."""
        rng = self._rng
        chance = rng.randrange(1000)
        if chance < 500:
            return rng.randrange(100)
        if chance < 700:
            return rng.choice(_NEAR)
        if chance < 750:
            return rng.choice(_FAR)
        if chance < 800:
            return self._power_of_two()
        if chance < 975:
            return rng.randrange(1500)
        if chance < 997:
            return rng.randrange(9000)
        most = 4 * self._config.longest_fpdu - _AROUND - TaggedHeader.size
        return most - rng.choice((0, 0, 0, 1, 2, 3, 4, 8, rng.randrange(most)))

    def _power_of_two(self) -> int:
        """Returns the octets of a payload whose FPDU has a power of two words, or a few more."""
        rng, longest = self._rng, self._config.longest_fpdu
        power = 1 << rng.randrange(3, longest.bit_length())
        words = min(power + rng.randrange(2 * self._config.words + 2), longest)
        return 4 * words - _AROUND - UntaggedHeader.size - rng.randrange(8)

    def _refused(self, header: int) -> int:
        """Octets of a payload that is refused: with them the FPDU takes up to the whole of the
        exception queue, or does not fit.
        """
        most = self._config.exception_octets - _AROUND - header
        return most + 4 - self._rng.choice((0, 4, 8, self._rng.randrange(most)))

    def _tagged(
        self, peer: _Peer, stag: int, to: int, payload: bytes, begun: object = None
    ) -> bytes:
        """Returns a tagged segment, of a message that has ``begun``, or of a new one."""
        rng = self._rng
        rsvdulp = begun[1] if isinstance(begun, tuple) else rng.getrandbits(8)
        last = rng.random() < 0.7 or not payload
        peer.order.sent((stag, rsvdulp), last=last)
        header = TaggedHeader(stag, to, last, rsvdulp, reserved=rng.getrandbits(4))
        return header.encode() + payload

    def _writable(self, number: int, peer: _Peer) -> list[Region]:
        """Returns the regions that a stream may write to."""
        found = self._usable.get(number)
        if found is None:
            host = peer.stream.destination.address
            found = self._usable[number] = [
                each.region
                for each in self._registered.values()
                if Access.REMOTE_WRITE in each.region.access
                and (
                    each.region.endpoint == host
                    if each.region.stream is None
                    else each.region.stream == number
                )
            ] or [Region(host, 0, 0, 0)]
        return found

    def _untagged(self, number: int, peer: _Peer, begun: object) -> bytes | None:
        """Returns the next segment on one of the open queues, or on the one that has
        ``begun``; or None.
        """
        if not peer.queues:
            return None
        qn = begun if isinstance(begun, int) else self._rng.choice([*peer.queues])
        queue = peer.queues[qn]
        if not queue.waiting:
            if not queue.free:
                if not self._golden.live(number):
                    return None
                self._fill(number, qn, queue)
                if not queue.free:  # its buffers are not usable yet
                    return None
            queue.waiting.extend(self._message(qn, *queue.free.popleft()))
        segment = queue.waiting.popleft()
        peer.order.sent(qn, last=not queue.waiting)
        return segment

    def _message(self, qn: int, msn: int, room: int, cut: int | None = None) -> list[bytes]:
        """Returns the segments of a message, cut at ``cut`` places.

        The last segment is last, the others are in any order; some repeat octets, or leave some
        out.
        """
        rng = self._rng
        length = rng.choice((room, room, rng.randint(0, room)))
        if cut is None:
            cut = rng.choice((0, 0, 0, 1, 1, 2, 5))
        cuts = sorted(rng.choices(range(length + 1), k=cut))
        pieces = list(zip([0, *cuts], [*cuts, length], strict=True))
        if room > _LONG:
            # Some octets at any place, and the last ones.
            length = max(1000, length)
            starts = [rng.getrandbits(rng.randint(8, 31)) % (room - 1000) for _ in range(4)]
            pieces = [(start, start + rng.randrange(1000)) for start in starts]
            pieces.append((length - rng.randint(0, 1000), length))
        if rng.random() < 0.3:
            rng.shuffle(pieces)
        if rng.random() < 0.05:
            at = rng.randint(0, room)
            pieces.insert(0, (at, rng.randint(at, room if room <= _LONG else min(room, at + 999))))
        rsvdulp = rng.getrandbits(40)
        return [
            UntaggedHeader(
                qn, msn, start, number == len(pieces), rsvdulp, reserved=rng.getrandbits(4)
            ).encode()
            + rng.randbytes(end - start)
            for number, (start, end) in enumerate(pieces, 1)
        ]

    # -- segments that are wrong

    def _wrong(self, number: int, peer: _Peer) -> bytes:
        """Returns a segment that raises an error, of one of the kinds that were drawn least
        often.
        """
        found = self._wrong_untagged(peer) | self._wrong_tagged(number, peer)
        least = min(self._wrongs[kind] for kind in found)
        kind = self._rng.choice([kind for kind in found if self._wrongs[kind] == least])
        self._wrongs[kind] += 1
        header, length = found[kind]
        if isinstance(header, bytes):
            return header
        if isinstance(header, TaggedHeader):  # some are right, such as those up to 2^64
            peer.order.sent((header.stag, header.rsvdulp), last=header.last)
        elif header.qn in peer.queues:
            peer.order.sent(header.qn, last=False)
        return header.encode() + self._rng.randbytes(length)

    def _wrong_untagged(self, peer: _Peer) -> dict[str, tuple[UntaggedHeader | bytes, int]]:
        """Returns headers, each with its octets of payload, by the kind of the error."""
        rng = self._rng
        last = rng.random() < 0.5
        length = rng.choice((0, 1, 2, 100, self._size(), self._refused(UntaggedHeader.size)))
        qn = rng.choice([*peer.queues] or [0])
        if rng.random() < 0.3:
            # Long buffers are rare, and only their lengths have the upper bits.
            rooms = {each: bare.free[0][1] for each, bare in peer.queues.items() if bare.free}
            qn = max(rooms, key=lambda each: rooms[each], default=qn)
        headers = {
            "untagged version": UntaggedHeader(qn, 0, 0, last, version=rng.choice((0, 2, 3))),
            "QN of many bits": UntaggedHeader(rng.getrandbits(32) | 4, 1, 0, last),
            "QN of one bit": UntaggedHeader(1 << rng.randrange(2, 32) | rng.randrange(4), 1, 0),
            "any MSN": UntaggedHeader(rng.randrange(QUEUES), rng.getrandbits(32), 0, last),
        }
        for closed in set(range(QUEUES)) - set(peer.queues):
            headers["queue that is closed"] = UntaggedHeader(closed, 1, 0, last)
        for each, bare in peer.queues.items():
            if not bare.posted:
                first = bare.following
                headers["queue without buffers"] = UntaggedHeader(each, first, 0, last)
                headers["before a queue without buffers"] = UntaggedHeader(
                    each, (first - 1) % _MSN, 0, last
                )
        if (queue := peer.queues.get(qn)) and queue.posted:
            far = 1 << rng.randrange(32)
            headers["MSN behind the last buffer"] = UntaggedHeader(qn, queue.following, 0, last)
            headers["MSN far behind"] = UntaggedHeader(qn, (queue.following + far - 1) % _MSN, 0)
        if queue and queue.free:
            msn, room = queue.free[0]
            before = (msn - 1 - (1 if queue.waiting else 0)) % _MSN
            headers |= {
                "MSN before the first": UntaggedHeader(qn, before, 0, last),
                "MSN far before": UntaggedHeader(qn, (msn - far) % _MSN, 0, last),
                "MSN at half": UntaggedHeader(qn, (msn - (1 << 31)) % _MSN, 0, last),
                "MSN out of turn": UntaggedHeader(qn, queue.free[-1][0], 0, last),
                "MO": UntaggedHeader(qn, msn, room + 1, last),
                "MO at the end": UntaggedHeader(qn, msn, room, last),
                "MO far": UntaggedHeader(qn, msn, max(far, room + 1), last),
                "MO of all bits": UntaggedHeader(qn, msn, _HALF, last),
            }
        found = {kind: (header, length) for kind, header in headers.items()}
        if queue and queue.free:
            payload = rng.randint(1, min(room + 1, 1500))
            start = room + 1 - payload
            found["an octet too long"] = UntaggedHeader(qn, msn, start, last), payload
            payload = rng.randint(1, 1500)
            end = (room ^ 1 << rng.randrange(32)) - payload
            if room < end + payload and end >= 0:
                found["a bit too long"] = UntaggedHeader(qn, msn, end, last), payload
        short = UntaggedHeader(qn, 1, 0).encode()[: rng.randrange(18)]
        return found | {"untagged, short": (short, 0)}

    def _wrong_tagged(
        self, number: int, peer: _Peer
    ) -> dict[str, tuple[TaggedHeader | bytes, int]]:
        """Returns headers, each with its octets of payload, by the kind of the error."""
        rng = self._rng
        last = rng.random() < 0.5
        length = rng.choice((1, 2, 100, 1 + self._size(), self._refused(TaggedHeader.size)))
        usable = self._writable(number, peer)
        region = rng.choice(usable)
        if rng.random() < 0.2:
            # Vast regions are rare, and only their lengths have the upper bits.
            region = max(usable, key=lambda each: rng.randrange(max(1, each.length >> 32)))
        if region in self._parts:
            length = max(length, 2)  # so that none is placed where there is no memory
        stag, to, end = region.stag, region.to, region.to + region.length
        stags, far = self._config.stags, 1 << rng.randrange(64)
        index = stag ^ stags << 8 + rng.randrange(24 - stags.bit_length() + 1)
        headers = {
            "key": TaggedHeader(stag ^ 1 << rng.randrange(8), to, last),
            "index": TaggedHeader(index, to, last),
            "any STag": TaggedHeader(rng.getrandbits(32), to, last),
            "before the region": TaggedHeader(stag, (to - 1) % _TO, last),
            "behind the region": TaggedHeader(stag, end % _TO, last),
            "at the last octet": TaggedHeader(stag, (end - 1) % _TO, last),
            "2^32 too far": TaggedHeader(stag, (to + max(1 << 32, region.length)) % _TO, last),
            "far behind": TaggedHeader(stag, (to + max(far, region.length)) % _TO, last),
            "far before": TaggedHeader(stag, (to - far) % _TO, last),
            "tagged version": TaggedHeader(stag, to, last, version=rng.choice((0, 2, 3))),
        }
        host = peer.stream.destination.address
        others = [each.region for each in self._registered.values() if each.region not in usable]
        for kind, regions in (
            ("without the write right", [
                each for each in others if Access.REMOTE_WRITE not in each.access
                and (each.endpoint == host if each.stream is None else each.stream == number)
            ]),
            ("of another host", [each for each in others if each.endpoint != host]),
            ("of another stream", [
                each for each in others if each.stream not in (None, number)
            ]),
            ("revoked", [each.region for each in self._gone]),
        ):  # fmt: skip
            if regions:
                other = rng.choice(regions)
                headers[kind] = TaggedHeader(other.stag, other.to, last)
        found = {kind: (header, length) for kind, header in headers.items()}
        payload = rng.randint(1, min(region.length + 1, 1500))
        start = (end + 1 - payload) % _TO
        found["an octet behind the region"] = TaggedHeader(stag, start, last), payload
        payload = rng.randint(min(1, region.length), min(region.length, 1500))
        bit = 1 << rng.randrange(16)
        start = region.length - payload
        if region.length + bit - start <= 64000:
            found["a bit behind the region"] = TaggedHeader(stag, to + start, last), payload + bit
        for top in usable:
            if top in self._parts:
                continue
            if top.to + top.length == _TO:
                payload = rng.randint(min(1, top.length), min(top.length, 1500))
                at = _TO - payload
                found["an octet behind 2^64"] = TaggedHeader(top.stag, at, last), payload + 1
                found["a bit behind 2^64"] = TaggedHeader(top.stag, at, last), payload + bit
                found["up to 2^64"] = TaggedHeader(top.stag, at, last), payload
                found["across 2^64"] = TaggedHeader(top.stag, at, last), payload + length
            elif top.to + top.length > _TO - 4096:
                payload = rng.randint(min(1, top.length), min(top.length, 1500))
                at = top.to + top.length - payload
                found["from before 2^64 across"] = TaggedHeader(top.stag, at, last), _TO - at + bit
        longest = 4 * self._config.longest_fpdu
        long = rng.choice((region.length + 1, longest - 22, longest - 19, longest, 64000))
        long = min(long, 64000)  # beyond that a marker cannot point back to the beginning
        start = (to + self._part(region).start) % _TO
        found["long"] = TaggedHeader(stag, start, last), long
        short = TaggedHeader(stag, to).encode()[: rng.randrange(14)]
        return found | {"tagged, short": (short, 0)}

    def _spoiled(self, peer: _Peer, packet: Packet, position: int) -> tuple[Packet, bytes]:
        """Returns a packet that is damaged on its way, and those of its octets that count.

        The walk from FPDU to FPDU needs the lengths of all of them; a packet that would end before
        one stays unchanged.
        """
        rng, octets = self._rng, bytearray(packet.octets)
        kind = rng.randrange(8)
        error = False
        if kind < 2:
            places = set(range(len(octets)))
            if not peer.stream.crc:
                # Other tagged offsets would be placed where a vast region has no memory.
                for at, _ in self._cut(peer.stream, packet.octets, position):
                    places.difference_update(range(at + 4, at + _HEADERS))
            octets[rng.choice(sorted(places))] ^= 1 << rng.randrange(8)
        elif kind == 2:
            octets[-1 - rng.randrange(4)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del octets[4 * rng.randrange(1, 1 + len(octets) // 4) :]
        elif kind == 4:
            del octets[rng.randrange(1, len(octets)) :]
        elif kind == 5:
            error = True
        else:
            last = int.from_bytes(octets[-4:], "little") ^ rng.choice(self._differences)
            octets[-4:] = last.to_bytes(4, "little")
        whole = bytes(octets)
        if error or len(octets) % 4:
            # The last beat counts as empty.
            whole = whole[: (len(whole) - 1) // self._config.octets * self._config.octets]
        pieces = [*self._cut(peer.stream, whole, position)]
        if not pieces:
            return packet, packet.octets
        at, length = pieces[-1]
        stated = fpdu_length(whole, at, position + at, peer.stream.markers)
        if stated is None or (stated == length and (error or len(octets) % 4)):
            return packet, packet.octets
        return replace(packet, octets=bytes(octets), error=error), whole


_paint: NDArray[np.uint8] = np.zeros(0, np.uint8)


def _painted(size: int) -> NDArray[np.uint8]:
    """Returns memory with guard octets, which depend only on the address."""
    global _paint
    if len(_paint) < size:
        _paint = guard_octets(size)
    return _paint[:size].copy()
