"""Draws regions of host memory and their pages, and registers them."""

from __future__ import annotations

import random
from dataclasses import replace

from ....hdl.spec.config import RnicConfig
from ....hdl.spec.stag import Access
from ...replay.expectation import Pages
from ...replay.host import Allotment, Space
from ...replay.regions import Region, slot
from .scene import EDGE, HOSTS, LARGEST_PAGE, LONG, START, TO, Peer, Scene

__all__ = ["PagePool", "Regions"]

#: Octets of the part of a vast region that there is memory for.
_PART = 60000
#: Vast regions of a chunk, for each host. They need all bits of an address.
_VAST = 2
#: Number of regions, of which each host keeps one for bus errors.
_REGIONS = 52


class PagePool:
    """Draws pages of unused host memory, as long as the page table has slots for them."""

    def __init__(self, config: RnicConfig, rng: random.Random, space: Space) -> None:
        self._rng, self._space = rng, space
        self.slots = config.pages  # that are free
        self._shifts: list[int] = []  # sizes of pages, to be used before any is drawn again
        #: Ends and beginnings of pages of each size, for pages that are not adjacent.
        self._edges: dict[int, tuple[list[int], list[int]]] = {}
        for shift in range(16, 22):
            edges = range(1 << shift, START + 1, (1 if shift == 21 else 2) << shift)
            self._edges[shift] = rng.sample(edges, len(edges)), rng.sample(edges, len(edges))

    def take(self, length: int) -> Pages | None:
        """Returns pages for ``length`` octets of unused host memory, if the table has slots
        for them.
        """
        most = 2 + (length >> 12)
        if most > self.slots:
            return None
        self.slots -= most
        rng = self._rng
        if not self._shifts:
            self._shifts = [12, 12, 12, 12, 13, 13, 14, *range(12, 22)]
            rng.shuffle(self._shifts)
        shift = self._shifts.pop()
        size = 1 << shift
        tails, heads = self._edges.get(shift, ([], []))
        if tails and 1 < length <= 2 * EDGE and rng.random() < 0.7:
            before = rng.randint(max(1, length - EDGE), min(EDGE, length - 1))
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


class Regions:
    """Draws the regions of a chunk, registers them, and knows which ones a stream may write to."""

    def __init__(self, scene: Scene, pool: PagePool) -> None:
        self._scene, self._pool = scene, pool
        self._config, self._rng, self._host = scene.config, scene.rng, scene.host
        self._golden, self._numbers, self._peers = scene.golden, scene.numbers, scene.peers
        self.allotments: list[Allotment] = []
        #: The registered regions, by slot of the STag table, and the others.
        self.registered: dict[int, Allotment] = {}
        self.gone: list[Allotment] = []
        #: The offsets into each vast region that there is memory for.
        self.parts: dict[Region, range] = {}
        #: Regions with an octet that the bus refuses, by host, and the place of the octet.
        self.faulty: dict[str, tuple[Allotment, int]] = {}
        self.kept: set[int] = set()  # slots of the STag table that regions with faults have
        self._usable: dict[int, list[Region]] = {}  # by stream, the regions it may write to

    def lay_out(self) -> None:
        """Makes regions of every kind."""
        rng = self._rng
        entries = self._entries()
        vast = HOSTS * _VAST if self._config.address == 64 else ()
        for kind, entry in enumerate(entries[len(HOSTS) : len(entries) - len(vast)]):
            length = rng.choice((1, 9, 100, 1000, 4096, 6000, 20000, 60000))
            if kind < len(HOSTS):
                length = 60000  # so that each host has a region for every segment
            if kind in (1, len(HOSTS)):
                length = rng.randrange(1 << 16, LONG)
            length = max(1, length - rng.randrange(1 + length // 8))
            pages = self._pool.take(length) if kind and rng.random() < 0.4 else None
            address = 0
            if kind == 0:
                address = self._scene.space.take(
                    length, -(length // 2) % LARGEST_PAGE, LARGEST_PAGE
                )
            elif pages is None:
                address = self._scene.space.take(length, rng.randrange(4096), 4096)
            host = HOSTS[kind % len(HOSTS)]
            region = self.region(entry, host, length, kind >= len(HOSTS))
            self.allotments.append(Allotment(region, address, pages))
            self._register(self.allotments[-1])
        for n, host in enumerate(vast, self._scene.number * len(vast)):
            bits = rng.randint(32, 62)
            length = (1 << bits) + rng.getrandbits(rng.choice((bits, rng.randint(1, 32))))
            start = rng.getrandbits(rng.randint(1, 63)) % (length - _PART)
            # Or the octets left, from the middle of the part on, are a power of two.
            left = _PART // 2 + (1 << 16 + n % (bits - 16))
            start = rng.choice((start, length - _PART, length - left))
            part = range(start, start + _PART)
            address = self._scene.space.take(_PART, rng.randrange(4096), 4096) - start
            region = self.region(entries.pop(), host, length, True)
            self.parts[region] = part
            self.allotments.append(Allotment(region, address, part=part))
            self._register(self.allotments[-1])
        if self._scene.bus_errors:
            for host, entry in zip(HOSTS, entries, strict=False):
                length = 3000
                address = self._scene.space.take(length, rng.randrange(4096), 4096)
                stag = entry << 8 | rng.getrandbits(8)
                allotment = Allotment(Region(host, stag, rng.getrandbits(40), length), address)
                self.allotments.append(allotment)
                self.kept.add(entry)
                self.faulty[host] = allotment, address + rng.randrange(length)
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

    def region(self, entry: int, host: str, length: int, any_rights: bool) -> Region:
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
                    rng.randrange(TO - length),
                    TO - length,
                    TO - length - (1 << rng.randrange(12)),
                    max(0, (1 << 32) - length // 2),
                    (rng.getrandbits(31) + 1 << 32) - rng.randint(0, min(length, 1 << 16)),
                )
            ),
            length,
            access=(Access.REMOTE_WRITE if not any_rights or rng.random() < 0.85 else Access.NONE)
            | (Access.REMOTE_READ if rng.random() < 0.5 else Access.NONE),
            stream=stream,
        )

    def _register(self, allotment: Allotment) -> None:
        entry = slot(allotment.region.stag, self._config.stags)
        self._host.settle(self._host.slots.get(entry, 0))
        self._scene.beside(lambda: self._host.register(allotment), slots=[entry])
        self.registered[entry] = allotment
        self._usable.clear()

    def unregister(self, entry: int) -> Allotment:
        self.gone.append(self.registered.pop(entry))
        self._usable.clear()
        return self.gone[-1]

    def replace(self) -> None:
        """Rewrites an STag's entry with other rights or another key."""
        entry = self._rng.choice([*self.registered])
        if self.page_slots(self.registered[entry]) <= self._pool.slots:
            self._host.settle(self._host.slots.get(entry, 0))
            self._golden.revoke(self.unregister(entry).region)
            self._register_again(self.gone.pop())

    def register_gone(self) -> None:
        """Registers a region that was revoked."""
        if self.gone:
            allotment = self.gone.pop(self._rng.randrange(len(self.gone)))
            if self.page_slots(allotment) <= self._pool.slots:
                self._register_again(allotment)

    @staticmethod
    def page_slots(allotment: Allotment) -> int:
        return 0 if allotment.pages is None else len(allotment.pages.addresses)

    def _register_again(self, allotment: Allotment) -> None:
        """Registers a region unchanged, or anew over the same memory."""
        rng, old = self._rng, allotment.region
        self._pool.slots -= self.page_slots(allotment)
        if rng.random() < 0.5:
            entry = slot(old.stag, self._config.stags)
            any_rights = rng.random() < 0.5
            region = self.region(entry, old.endpoint, old.length, any_rights)
            if allotment.part is not None:
                self.parts[region] = allotment.part
            allotment = replace(allotment, region=region)
            self.allotments.append(allotment)
        self._register(allotment)

    def part(self, region: Region) -> range:
        """The offsets into a region that there is memory for."""
        return self.parts.get(region, range(region.length))

    def writable(self, number: int, peer: Peer) -> list[Region]:
        """Returns the regions that a stream may write to."""
        found = self._usable.get(number)
        if found is None:
            host = peer.stream.destination.address
            found = self._usable[number] = [
                each.region
                for each in self.registered.values()
                if Access.REMOTE_WRITE in each.region.access
                and (
                    each.region.endpoint == host
                    if each.region.stream is None
                    else each.region.stream == number
                )
            ] or [Region(host, 0, 0, 0)]
        return found

    def changed(self) -> None:
        """Notes that a stream may write to other regions than before."""
        self._usable.clear()
