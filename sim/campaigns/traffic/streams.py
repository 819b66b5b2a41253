"""Lets the host set streams up and post buffers, and their peers send."""

from __future__ import annotations

from collections.abc import Iterable

from ....hdl.spec import commands
from ....hdl.spec.ddp import LOCAL_CATASTROPHIC
from ...capture.capture import Endpoint
from ...capture.streams import QUEUES, Arrival, Stream
from ...engines.engine import (
    Packet,
    until,
)
from ...model.ddp import TaggedHeader
from ...model.mpa import MpaSender
from ...replay.expectation import Pages
from .regions import PagePool, Regions
from .scene import HALF, HOSTS, LARGEST_PAGE, MSN, WITH_MARKERS, Peer, Queue, Scene
from .segments import Segments
from .wrong import Wrong

__all__ = ["Streams"]


class Streams:
    """The streams of a chunk."""

    def __init__(
        self, scene: Scene, regions: Regions, pool: PagePool, segments: Segments, wrong: Wrong
    ) -> None:
        self._scene, self._regions, self._pool, self._wrong = scene, regions, pool, wrong
        self._config, self._rng, self._host = scene.config, scene.rng, scene.host
        self._golden, self._peers = scene.golden, scene.peers
        self.interrupts = False  # whether completions may interrupt
        self.masked = False  # whether events may not

    def deliver(self, number: int, messages: int) -> None:
        """Sends messages without payload, each in a packet of its own, on a stream."""
        peer = self._peers[number]
        for _ in range(messages):
            header = TaggedHeader(0, 0, True, self._rng.getrandbits(8))
            self.send(number, peer, [header.encode()])

    def enable(self, number: int, queues: float = 0.8) -> None:
        """Enables a stream, or enables it anew, and opens some of its queues."""
        rng, host = self._rng, self._host
        host.settle(host.streams.get(number, 0))
        peer = self._peers.get(number)
        if peer is not None:
            # The device keeps a stream in error until its event was read.
            if self.masked:
                self.mask_events(masked=False)
            host.operations.append(until(event=0))
        position = 4 * rng.choice((0, rng.getrandbits(30), (1 << 30) - rng.randrange(1, 5000)))
        if peer is not None and rng.random() < 0.5:
            stream, position = peer.stream, peer.sender.position
        else:
            stream = Stream(
                number,
                number,
                Endpoint("10.0.1.1", number),
                Endpoint(peer.stream.destination.address if peer else rng.choice(HOSTS), 7174),
                crc=rng.random() < 0.7,
                markers=rng.random() < 0.4,
            )
        host.enable(stream, position)
        self._scene.stopped.discard(number)
        sender = MpaSender(crc=stream.crc, markers=stream.markers, position=position)
        self._peers[number] = peer = Peer(stream, sender, {})
        self._regions.changed()
        for qn in range(QUEUES):
            if rng.random() < queues:
                near = (1 << rng.randrange(33)) - rng.randrange(20)
                first = rng.choice((1, 1, near % MSN, near % MSN, rng.getrandbits(32)))
                fill = rng.choice((0, 1, 2, 3, 4, 6, 8, 12))
                if rng.random() < 0.01:
                    fill = self._config.queue_depth
                longest = rng.choice((64, 64, 700, 1500, 4000))
                peer.queues[qn] = queue = Queue(first, fill, longest)
                host.open(number, qn, first)
                self.fill(number, qn, queue)

    def fill(self, number: int, qn: int, queue: Queue) -> None:
        """Posts buffers until there are enough."""
        while queue.coming:
            msn, length, aside = queue.coming.popleft()
            if aside > self._host.asides_over:
                self._host.end_aside()
            queue.free.append((msn, length))
        while len(queue.free) < queue.fill and self.has_room(queue):
            queue.free.append(self.post(number, qn, queue))

    def has_room(self, queue: Queue) -> bool:
        """Decides whether one more buffer can be posted to a queue."""
        return queue.posted - len(queue.used) < self._config.queue_depth and self._host.has_slot()

    def post(self, number: int, qn: int, queue: Queue) -> tuple[int, int]:
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
        pages = self._pool.take(length) if length and rng.random() < 0.1 else None
        if self._scene.segments and not queue.free and host.vast is None:
            length, pages = self._vast_buffer()
        return self.post_of(number, qn, queue, length, pages)

    def post_of(
        self, number: int, qn: int, queue: Queue, length: int, pages: Pages | None = None
    ) -> tuple[int, int]:
        """Posts a buffer of this length. Returns its MSN and length."""
        msn = queue.following
        self._host.post(number, qn, msn, length, pages)
        queue.following = (queue.following + 1) % MSN
        queue.posted += 1
        return msn, length

    def send_waiting(self, number: int, qn: int, queue: Queue) -> None:
        """Sends the remaining segments of a message, some in each packet."""
        peer = self._peers[number]
        while queue.waiting:
            segments = [queue.waiting.popleft() for _ in range(min(6, len(queue.waiting)))]
            for left in range(len(segments), 0, -1):
                peer.order.sent(qn, last=left == 1 and not queue.waiting)
            self.send(number, peer, segments)

    def _vast_buffer(self) -> tuple[int, Pages]:
        """Returns a length that memory need not have, because all pages are the same one."""
        host, rng = self._host, self._rng
        shift = LARGEST_PAGE.bit_length() - 1
        if host.vast is None:
            count = 1 << rng.choice((2, 5, 7, 9, 10, 10))
            while count > self._pool.slots:
                count //= 2
            self._pool.slots -= count
            page = self._scene.space.take(LARGEST_PAGE, 0, LARGEST_PAGE)
            host.vast = Pages(shift, (page,) * count, 0)
        most = len(host.vast.addresses)
        return rng.choice((most, rng.randint(2, most))) << shift, host.vast

    def mask_events(self, *, masked: bool) -> None:
        """Masks the interrupt of events, so that they accumulate, or unmasks it."""
        self.masked = masked
        self._host.carry_out(commands.mask_interrupts(event=masked, completion=not self.interrupts))

    def send(
        self, number: int, peer: Peer, segments: Iterable[bytes], *, spoil: bool = False
    ) -> None:
        """Sends segments in a packet, which may be damaged on its way."""
        position = peer.sender.position
        most = WITH_MARKERS if peer.stream.markers else 1 << 16
        octets = b"".join(peer.sender.send(each[:most]) for each in segments)
        packet = Packet(number, position & HALF, octets)
        whole = octets
        if spoil:
            self._host.end_aside()
            packet, whole = self._wrong.spoiled(peer, packet, position)
            peer.sender.position = position + len(whole)
        errors = len(self._golden.errors)
        for qn, completion in self._host.receive(packet, self.arrivals(peer, whole, position)):
            peer.queues[qn].used.append(completion)
        if any(each.number == LOCAL_CATASTROPHIC for each in self._golden.errors[errors:]):
            # Whether later segments are dropped depends on the time. A message that waits for the
            # ring delays the failure.
            self._host.resume()
            self._host.drain()

    def arrivals(self, peer: Peer, octets: bytes, position: int) -> list[Arrival]:
        """Returns the FPDUs of a packet."""
        arrivals = []
        for at, length in self._scene.cut(peer.stream, octets, position):
            self._scene.segments += 1
            raw = octets[at : at + length]
            arrivals.append(
                Arrival(
                    peer.stream, self._scene.segments, self._host.packets + 1, position + at, raw
                )
            )
        return arrivals
