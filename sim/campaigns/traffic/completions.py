"""Draws tests of completion queues: interrupts, and queues that are full, refused or end."""

from __future__ import annotations

from ....hdl.ddp.moderation import WRAP
from ....hdl.spec import commands, regs
from ...capture.streams import Arrival
from ...engines.engine import (
    Packet,
    Pause,
    Resume,
    Ring,
    Stalls,
    Wait,
    until,
)
from ...model.ddp import TaggedHeader
from .chunk import WATCHED, Moderated, slack
from .scene import HALF, Scene
from .streams import Streams

__all__ = ["Completions"]

#: Rounds of a chunk in which interrupts are moderated.
_ROUNDS = 6
#: The most streams that fail right after each other, because their queue has no room.
_OVERRUN = 13
#: Size of the ring whose entries the bus refuses, as a power of two.
_REFUSED_RING = 4
#: With responses this late, the host reads a register before the last one has come.
_LATE = 300


class Completions:
    """Draws messages of which the completions matter."""

    def __init__(self, scene: Scene, streams: Streams) -> None:
        self._scene, self._streams = scene, streams
        self._config, self._rng, self._host = scene.config, scene.rng, scene.host
        self._golden, self._numbers, self._peers = scene.golden, scene.numbers, scene.peers
        self.moderated: list[Moderated] = []

    def across_wrap(self, slack: int) -> None:
        """Delivers a message before the RNIC's count of cycles wraps, which raises an interrupt
        after the wrap.
        """
        rng = self._rng
        number = rng.choice(self._numbers)
        self._streams.enable(number, 0)
        self._host.carry_out(commands.mask_interrupts())
        timeout = WRAP + rng.randrange(1000)
        self.interrupt(number, 1, 2, timeout, timeout, slack)

    def interrupt(
        self, number: int, messages: int, count: int, timeout: int, watched: int, slack: int
    ) -> None:
        """Makes the idle RNIC deliver messages while the host takes none, with a moderated
        interrupt.
        """
        host = self._host
        first, queue = len(self._golden.deliveries), host.bound.get(number, 0)
        self.moderated.append(Moderated(first, messages, count, timeout, watched))
        host.carry_out(commands.moderate(count, timeout, queue=queue))
        host.drain()
        host.operations.append(Pause())
        self._streams.deliver(number, messages)
        host.operations.append(Wait(watched + slack))
        if messages >= count or timeout <= watched:
            host.read("CQ_PENDING", 1 << queue)
        host.operations.append(Resume())
        host.drain()

    def moderate(self, ring: Ring, slack: int) -> None:
        """Makes the idle RNIC deliver messages while the host takes none, with moderated
        interrupts.
        """
        rng, host = self._rng, self._host
        queues = rng.sample(ring.queues, len(ring.queues))
        for round_ in range(max(_ROUNDS, len(queues))):
            queue = queues[round_ % len(queues)]
            number = self.any_of(queue)
            self._streams.enable(number, 0)
            host.carry_out(commands.mask_interrupts())
            messages = rng.randint(1, min(ring.entries, 8))
            count = rng.choice((1, 2, messages, messages + 1, 1 << rng.randrange(4, 9)))
            timeout = 1 << 8 + (self._scene.number * _ROUNDS + round_) % 24
            timeout = rng.choice((timeout, rng.getrandbits(rng.randint(1, 32))))
            self.interrupt(number, messages, count, timeout, WATCHED, slack)
        # The ring becomes full, or nearly; and a slow bus gets as many completions as it may owe.
        host.operations.append(Pause())
        messages = min(ring.entries, 3 * self._config.outstanding)
        self._streams.deliver(number, messages)
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
        for each in (number, *self._rng.sample(others, min(len(others), _OVERRUN))):
            golden.overrun(self._send_uncompleted(each))
        host.drain()

    def _send_uncompleted(self, number: int) -> Arrival:
        """Sends a message without payload that does not complete. Returns its arrival."""
        host, peer = self._host, self._peers[number]
        position = peer.sender.position
        octets = peer.sender.send(TaggedHeader(0, 0, True).encode())
        (arrival,) = self._streams.arrivals(peer, octets, position)
        host.packets += 1
        host.streams[number] = host.packets
        self._golden.receive(arrival)
        host.send(Packet(number, position & HALF, octets))
        return arrival

    def refuse(self, ring: Ring, address: int) -> None:
        """Lets the bus refuse a completion of a queue that is not in use otherwise. The queue fails
        alone, until it restarts.
        """
        rng, host, golden = self._rng, self._host, self._golden
        queues = range(self._config.completion_queues)
        free = [each for each in queues if each not in ring.queues]
        if not free:
            return
        queue = rng.choice(free)
        number = rng.choice(self._numbers)
        bound = host.bound.copy()
        host.bound[number] = queue
        self._streams.enable(number, 0)
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
        self._streams.enable(number, 0)

    def end_ring(self, ring: Ring, stalls: Stalls) -> None:
        """Disables all queues while completions wait for their responses. A ring begins anew only
        after its last response, with no completion written.
        """
        host = self._host
        numbers = [self.any_of(queue) for queue in ring.queues]
        for number in numbers:
            self._streams.enable(number, 0)
        for number in numbers:
            self._streams.deliver(number, min(ring.entries, 8))
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

    def any_of(self, queue: int) -> int:
        """Returns a stream that completes in a queue."""
        bound = self._host.bound
        return self._rng.choice([each for each in self._numbers if bound.get(each, 0) == queue])
