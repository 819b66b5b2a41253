"""Draws the events between packets."""

from __future__ import annotations

from dataclasses import replace

from ....hdl.spec import commands
from ....hdl.spec.ddp import WAITING
from ...engines.engine import (
    Wait,
)
from ...model.ddp import TaggedHeader
from ...model.mpa import MARKER_SPACING
from ...replay.regions import Region, slot
from .accesses import Accesses
from .chunk import Still
from .packets import Packets
from .regions import PagePool, Regions
from .scene import AROUND, LONG, TO, Scene
from .segments import Segments
from .streams import Streams

__all__ = ["Events"]


class Events:
    """Draws the actions that the host does now and then, and traffic that goes with them."""

    def __init__(
        self,
        scene: Scene,
        pool: PagePool,
        regions: Regions,
        segments: Segments,
        streams: Streams,
        accesses: Accesses,
        packets: Packets,
    ) -> None:
        self._scene, self._pool, self._regions = scene, pool, regions
        self._segments, self._streams, self._accesses = segments, streams, accesses
        self._packets = packets
        self._config, self._rng, self._host = scene.config, scene.rng, scene.host
        self._golden, self._numbers, self._peers = scene.golden, scene.numbers, scene.peers

    def _revoke(self) -> None:
        """Revokes a region."""
        entry = self._rng.choice([*self._regions.registered])
        self._host.settle(self._host.slots.get(entry, 0))
        region = self._regions.unregister(entry).region
        self._scene.beside(lambda: self._host.revoke(region), slots=[entry])
        self._try([region])

    def revoke_under_way(self) -> None:
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
        region = rng.choice(self._regions.writable(number, peer))
        entry = slot(region.stag, self._config.stags)
        if not region.length:  # the stream has no region
            return
        host.drain()
        part = self._regions.part(region)
        for _ in range(rng.randint(1, 60)):
            length = min(rng.choice((1, 1, 8, 30)), len(part))
            at = region.to + part.start + rng.randint(0, len(part) - length)
            header = TaggedHeader(region.stag, at % TO, True, rng.getrandbits(8))
            if rng.random() < 0.1:  # then responses come apart, too
                host.operations.append(Wait(rng.randrange(100)))
            self._streams.send(number, peer, [header.encode() + rng.randbytes(length)])
        host.read("PLACED_SEGMENTS", self._golden.counters()["PLACED_SEGMENTS"])
        self._regions.unregister(entry)
        host.revoke(region)
        host.revoked()
        host.still.append(Still(len(host.operations) - 1, idle=False))

    def _replace_near(self) -> None:
        """Replaces a region while segments come in for another one, whose slot of the STag table
        differs from its own in one bit.
        """
        rng, host = self._rng, self._host
        found = [
            (entry, near)
            for entry in self._regions.registered
            for bit in range(self._config.stags.bit_length() - 1)
            if (near := entry ^ 1 << bit) in self._regions.registered
        ]
        if not found:
            return
        entry, near = rng.choice(found)
        region = self._regions.registered[near].region
        writers = [
            number
            for number, peer in self._peers.items()
            if self._golden.live(number)
            and peer.order.free
            and region in self._regions.writable(number, peer)
        ]
        old = self._regions.registered[entry]
        if not writers or self._regions.page_slots(old) > self._pool.slots:
            return
        host.settle(host.slots.get(entry, 0))
        self._golden.revoke(self._regions.unregister(entry).region)
        self._pool.slots -= self._regions.page_slots(old)
        again = replace(
            old, region=self._regions.region(entry, old.region.endpoint, old.length, True)
        )
        if old.part is not None:
            self._regions.parts[again.region] = old.part
        self._regions.allotments.append(again)
        host.aside(rng.randrange(60), lambda: host.register(again), slots=[entry])
        self._regions.registered[entry] = again
        self._regions.gone.pop()
        self._regions.changed()
        number = rng.choice(writers)
        peer = self._peers[number]
        for _ in range(rng.randint(1, 6)):
            part = self._regions.part(region)
            length = min(rng.randrange(40), len(part))
            at = region.to + part.start + rng.randint(0, len(part) - length)
            header = TaggedHeader(region.stag, at % TO, True, rng.getrandbits(8))
            peer.order.sent((region.stag, header.rsvdulp), last=True)
            self._streams.send(number, peer, [header.encode() + rng.randbytes(length)])

    def _stop(self, number: int) -> None:
        """Disables a stream."""
        entries = [
            entry
            for entry, each in self._regions.registered.items()
            if each.region.stream == number
        ]
        host = self._host
        host.settle(
            max(host.streams.get(number, 0), *(host.slots.get(entry, 0) for entry in entries), 0)
        )
        self._scene.beside(lambda: host.stop(number), [number], entries)
        self._scene.stopped.add(number)
        host.sweeping = set(entries)
        self._try([self._regions.unregister(entry).region for entry in entries])

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
            self._streams.send(
                number, self._peers[number], [segment + bytes(min(region.length, 8))]
            )

    def _post_beside(self) -> None:
        """Posts buffers while packets of other queues, and of this one's earlier buffers, arrive.

        A look-up and a post meet in the same cycle now and then.
        """
        rng, host = self._rng, self._host
        number = (
            self._packets.turns[-1]
            if self._packets.turns and rng.random() < 0.6
            else rng.choice(self._numbers)
        )
        peer = self._peers[number]
        if not peer.queues or not self._golden.live(number):
            return
        qn, queue = rng.choice([*peer.queues.items()])
        posted: list[tuple[int, int]] = []

        def post() -> None:
            for _ in range(rng.randint(1, 3)):
                if self._streams.has_room(queue):
                    posted.append(self._streams.post(number, qn, queue))

        host.aside(rng.randrange(60), post)
        queue.coming.extend((*each, host.asides) for each in posted)

    def _commit_nothing_beside(self) -> None:
        """Writes an unused entry of the STag table repeatedly, while packets for a similar index
        arrive.

        The two indexes differ in a nibble.
        """
        rng, host = self._rng, self._host
        entry = rng.choice([*self._regions.registered])
        nibble = 4 * rng.randrange(-(-(self._config.stags.bit_length() - 1) // 4))
        other = (entry ^ rng.randrange(1, 16) << nibble) % self._config.stags
        if other == entry or other in self._regions.registered or other in self._regions.kept:
            return

        def commit() -> None:
            for _ in range(16):
                host.carry_out(commands.clear_stag(other << 8))

        host.settle(host.slots.get(other, 0))
        host.aside(rng.randrange(60), commit, slots=[other])

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
            if queue.free and not queue.waiting and queue.free[0][1] <= LONG
        ]
        if not found:
            return
        number, qn, queue = rng.choice(found)
        posted: list[tuple[int, int]] = []

        def post() -> None:
            for _ in range(rng.randint(2, 4)):
                if self._streams.has_room(queue):
                    posted.append(self._streams.post(number, qn, queue))

        host.aside(rng.randrange(60), post)
        queue.coming.extend((*each, host.asides) for each in posted)
        for _ in range(min(len(queue.free), 3)):
            msn, room = queue.free.popleft()
            queue.waiting.extend(self._segments.message(qn, msn, room, cut=rng.choice((0, 5, 15))))
            self._streams.send_waiting(number, qn, queue)

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
        region = max(
            self._regions.writable(number, peer), key=lambda each: len(self._regions.part(each))
        )
        part = self._regions.part(region)
        around = AROUND + TaggedHeader.size
        for _ in range(8):
            to_marker = -peer.sender.position % MARKER_SPACING - 4 * rng.randint(1, words)
            before = (to_marker - around) % MARKER_SPACING
            segments = []
            for length in (before, self._segments.power_of_two()):
                octets = rng.randbytes(min(length, len(part)))
                start = part.start + rng.randint(0, len(part) - len(octets))
                header = TaggedHeader(region.stag, (region.to + start) % TO, True)
                segments.append(header.encode() + octets)
            self._streams.send(number, peer, segments)

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
        self._streams.send(
            number, peer, [TaggedHeader(rng.getrandbits(32), 0, False, 256 - 1).encode()]
        )
        for message in rng.sample(range(255), 2 * WAITING):
            header = TaggedHeader(rng.getrandbits(32), rng.getrandbits(64), True, message)
            self._streams.send(number, peer, [header.encode()])
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
            self._streams.mask_events(masked=True)
            for number in others:
                header = TaggedHeader(rng.getrandbits(32), rng.getrandbits(64), True)
                self._scene.wrongs["piled up"] += 1
                self._streams.send(number, self._peers[number], [header.encode() + bytes(1)])
            self._streams.deliver(stays, 1)
            for number in others:
                self._streams.enable(number, 0.02 if turn < rounds - 1 else 0.8)

    def _set_up_beside(self) -> None:
        """Sets up a stream that is in error, while packets of other streams arrive."""
        dead = [number for number in self._numbers if not self._golden.live(number)]
        if dead:
            number = self._rng.choice(dead)
            self._host.settle(self._host.streams.get(number, 0))
            self._scene.beside(lambda: self._streams.enable(number), [number])

    def act(self) -> None:
        """Does the actions that the host does now and then."""
        rng, host = self._rng, self._host
        chance = rng.randrange(2000)
        if chance < 12:
            self._revoke()
        elif chance < 18:
            self._regions.replace()
        elif chance < 33:
            self._regions.register_gone()
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
            self._streams.mask_events(masked=not self._streams.masked)
        elif chance < 546:
            self._accesses.make()
        elif chance < 551:
            self._accesses.count()
        elif chance < 566:
            self._post_into_use()
        elif chance < 568:
            self._overtake()
        elif chance < 569:
            self._pile_up()
        elif chance < 579:
            self._replace_near()
        elif chance < 583 and self._scene.bus_errors:
            self._packets.bus_errors_at_once()
        elif 583 <= chance < 589:
            self.revoke_under_way()
        elif 589 <= chance < 605:
            self._begin_before_markers()
