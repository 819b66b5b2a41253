"""Draws the random traffic of ``rnic soak``, chunk by chunk.

A chunk is drawn as packets of FPDUs, without TCP. Many streams take turns in it. They write to
regions of every kind, send messages on every queue, and fail with every possible error; the host
sets them up again, revokes and registers regions, posts buffers, and stops taking completions for a
while.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from ....hdl.spec import commands
from ....hdl.spec.config import RnicConfig
from ...capture.streams import QUEUES
from ...engines.engine import (
    Ring,
    Stalls,
)
from ...model.ddp import TaggedHeader
from ...replay.host import GUARD, Space, guard_octets
from ...replay.plan import Plan
from .accesses import Accesses
from .busy_host import BoundGolden, BusyHost
from .chunk import BETWEEN, MANY, WATCHED, Chunk, Rate, Traffic, slack
from .completions import Completions
from .events import Events
from .packets import Packets
from .regions import PagePool, Regions
from .scene import EDGE, HALF, HOSTS, LARGEST_PAGE, START, TO, Queue, Scene
from .segments import Segments
from .streams import Streams
from .wrong import Wrong

__all__ = ["draw"]

#: The place where host memory may cross 2**32 or a multiple of it: inside a region, or inside a
#: buffer.
_CROSSING_REGION, _CROSSING_BUFFER = 6 << 20, 24 << 20
#: Size of the ring whose entries the bus refuses, as a power of two.
_REFUSED_RING = 4
#: Loads of a chunk whose rate is measured, segments of each, and the cycles by which its first or
#: last segment may be held up. The bus responds after at most ``_PROMPT`` cycles then.
_RATES, _IN_A_ROW, _FILL, _PROMPT = 3, 100, 64, 30


def draw(config: RnicConfig, traffic: Traffic, number: int, segments: int) -> Chunk:
    """Draws a chunk. Its beginning does not depend on the number of segments."""
    return _Draw(config, traffic, number).chunk(segments)


class _Draw:
    """Draws a chunk."""

    def __init__(self, config: RnicConfig, traffic: Traffic, number: int) -> None:
        self._config = config
        self._rng = rng = random.Random(f"{traffic.seed} {number}")
        # Protection Domains differ in one bit.
        domain = rng.getrandbits(16)
        others = (domain ^ 1 << bit for bit in rng.sample(range(16), len(HOSTS) - 1))
        domains = dict(zip(HOSTS, (domain, *others), strict=True))
        space = Space(START + EDGE)
        crossings = _CROSSING_BUFFER, None, _CROSSING_BUFFER, _CROSSING_REGION
        self._crossing = crossings[number % len(crossings)]
        # The upper half of addresses from the crossing on: its bits all change there, or are ones.
        some = rng.getrandbits(32)
        uppers = 1 << 31, HALF, some, some & ~7 | 8, 1 << rng.randrange(32), 1
        upper = uppers[number // 2 % len(uppers)] << 32
        if self._crossing is None:
            base = rng.choice((0, upper)) | rng.randrange(0, 1 << 31, LARGEST_PAGE)
        else:
            base = upper - self._crossing
        if config.address < 64:
            base %= 1 << config.address - 1  # the other half has room for all memory
        self._golden = golden = BoundGolden((), domains, config)
        self._host = BusyHost(config, golden, space, base, rng.randrange(config.pages))
        pool = PagePool(config, rng, space)
        self._numbers = numbers = rng.sample(range(config.streams), traffic.streams)
        # Half of the streams complete in other queues. At least one queue stays unused.
        most = min(config.completion_queues - 2, traffic.streams // 2)
        queues = rng.sample(range(1, config.completion_queues), rng.choice((0, 1, most, most)))
        apart = rng.sample(numbers, len(numbers) // 2)
        bound = dict(zip(apart, cycle(queues), strict=False))
        golden.bound, self._host.bound = bound, bound.copy()
        self._scene = scene = Scene(
            config, rng, number, traffic.bus_errors, golden, self._host, space, base, numbers
        )
        self._peers = scene.peers
        self._regions = regions = Regions(scene, pool)
        self._segments = segments = Segments(scene)
        wrong = Wrong(scene, regions, segments)
        self._streams = streams = Streams(scene, regions, pool, segments, wrong)
        self._accesses = Accesses(scene, regions)
        self._completions = Completions(scene, streams)
        self._packets = Packets(scene, regions, segments, wrong, streams)
        self._events = Events(
            scene, pool, regions, segments, streams, self._accesses, self._packets
        )

    def chunk(self, segments: int) -> Chunk:
        rng, host = self._rng, self._host
        many = self._scene.number == MANY
        size = rng.choice((*range(6, 11), 6, 6, 6, rng.randint(11, 15)))
        size = rng.randint(10, 15) if many else size
        ring = Ring(0, size, bound=self._golden.bound)
        address = self._scene.space.take(len(ring.octets), rng.choice((0, 32)), 64)
        ring = replace(ring, address=self._scene.base + address)
        refused = self._scene.base + self._scene.space.take(32 << _REFUSED_RING, 0, 64)
        host.entries = ring.entries
        self._streams.interrupts = rng.random() < 0.3
        coalesce, timeout = rng.choice((1, 1, 5, 40)), rng.choice((0, 30, 1000))
        host.carry_out(
            ring.command(interrupts=self._streams.interrupts, coalesce=coalesce, timeout=timeout)
        )
        stalls = self._stalls()
        if many:
            stalls = Stalls(response_latency=_PROMPT, seed=stalls.seed)
        self._completions.across_wrap(slack(stalls))
        for queue in ring.queues:
            host.carry_out(commands.moderate(coalesce, timeout, queue=queue))
        host.carry_out(commands.mask_interrupts(completion=not self._streams.interrupts))
        self._accesses.count()
        for number in self._numbers:
            self._streams.enable(number)
        self._regions.lay_out()
        if self._crossing == _CROSSING_BUFFER:
            self._cross()
        if many:
            self._send_many(segments, stalls, ring)
        while self._scene.segments < segments:
            self._events.act()
            self._packets.send_next()
        host.catch_up()
        host.revoked()
        packets, drawn = host.packets, self._scene.segments
        self._accesses.scribble()
        for name, value in self._accesses.known().items():
            host.read(name, value)
        rates = self._rate(stalls)
        self._completions.moderate(ring, slack(stalls))
        if self._scene.bus_errors:
            self._completions.refuse(ring, refused)
        self._completions.end_ring(ring, stalls)
        plan = Plan(
            self._config,
            HOSTS,
            tuple(peer.stream for peer in self._peers.values()),
            host.operations,
            self._regions.allotments,
            host.buffers,
            ring,
            _painted(self._scene.space.size),
            self._golden,
            base=self._scene.base,
        )
        size = self._config.octets
        places = (address // size * size for _, address in self._regions.faulty.values())
        faults = [
            range(self._scene.base + place, self._scene.base + place + size) for place in places
        ]
        if self._scene.bus_errors:
            faults.append(range(refused, refused + (32 << _REFUSED_RING)))
        closing = host.packets - packets
        return Chunk(
            plan,
            stalls,
            faults,
            drawn,
            self._scene.wrongs,
            self._completions.moderated,
            rates,
            closing,
            host.still,
        )

    def _send_many(self, segments: int, stalls: Stalls, ring: Ring) -> None:
        """Sends messages of one octet. The host revokes regions, disables unused queues and waits
        for interrupts while the RNIC's counts, modulo 2**16, take values of all kinds.
        """
        rng, host, config = self._rng, self._host, self._config
        number = self._completions.any_of(0)
        # Half of these numbers name no queue, and nothing happens to the others.
        queues = [each for each in range(2 * config.completion_queues) if each not in ring.queues]
        while self._scene.segments < segments:
            self._events.revoke_under_way()
            self._regions.register_gone()
            host.carry_out(commands.disable_cq(rng.choice(queues))[:-1])
            host.read("CQ_STATE", 0)
            self._accesses.count()
            self._streams.enable(number, 0)
            host.carry_out(commands.mask_interrupts())
            messages = rng.randint(1, 8)
            count = rng.randint(1, messages + 1)
            self._completions.interrupt(number, messages, count, 1 << 10, WATCHED, slack(stalls))
            peer = self._peers[number]
            region = rng.choice(self._regions.writable(number, peer))
            part = self._regions.part(region)
            end = min(segments, self._scene.segments + BETWEEN)
            while self._scene.segments < end:
                octets = rng.randbytes(min(1, len(part)))
                to = (region.to + (rng.choice(part) if octets else 0)) % TO
                header = TaggedHeader(region.stag, to, True, rng.getrandbits(8))
                self._streams.send(number, peer, [header.encode() + octets] * rng.randint(1, 8))

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
            self._streams.enable(number, 0)
            peer = self._peers[number]
            usable = self._regions.writable(number, peer)
            found = [
                each
                for each in self._regions.registered.values()
                if each.region in usable and each.pages is None and each.length > 2000
            ]
            if not found or peer.stream.markers:
                continue
            allotment = rng.choice(found)
            region, part = allotment.region, self._regions.part(allotment.region)
            first = host.drain()
            size, cycles = rng.choice((1, 16, 64, 256, 1440)), 0
            for _ in range(_IN_A_ROW):
                start = part.start + rng.randint(0, len(part) - size)
                header = TaggedHeader(region.stag, (region.to + start) % TO, False)
                position = peer.sender.position
                self._streams.send(number, peer, [header.encode() + rng.randbytes(size)])
                beats = -(-(peer.sender.position - position) // octets)
                lane = (allotment.address + self._scene.base + start) % octets
                cycles += max(beats, -(-(lane + size) // octets))
            rates.append(Rate(first, host.drain(), cycles + cycles // 50 + _FILL))
        return rates

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

    def _cross(self) -> None:
        """Sends a message of many segments to a buffer that crosses a multiple of 2^32."""
        rng = self._rng
        number, qn, first = rng.choice(self._numbers), rng.randrange(QUEUES), rng.getrandbits(32)
        self._streams.enable(number, 0)
        peer = self._peers[number]
        peer.queues[qn] = queue = Queue(first, rng.randint(1, 4), 64)
        self._host.open(number, qn, first)
        length = rng.randrange(200, 60000)
        before = rng.randrange(64, length)  # octets before the crossing, or up to 63 fewer
        self._scene.space.take(0, _CROSSING_BUFFER - GUARD - before, _CROSSING_BUFFER)
        msn, room = self._streams.post_of(number, qn, queue, length)
        queue.waiting.extend(self._segments.message(qn, msn, room, cut=40))
        self._streams.send_waiting(number, qn, queue)


_paint: NDArray[np.uint8] = np.zeros(0, np.uint8)


def _painted(size: int) -> NDArray[np.uint8]:
    """Returns memory with guard octets, which depend only on the address."""
    global _paint
    if len(_paint) < size:
        _paint = guard_octets(size)
    return _paint[:size].copy()
