"""Tests interrupt moderation against the time at which each completion arrived."""

import random
from collections import deque

import pytest
from ddp_rnic.hdl.ddp.moderation import WRAP, InterruptModeration
from ddp_rnic.hdl.lib.testing import shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.config import RnicConfig

MODULUS = 1 << 16
CONFIG = RnicConfig(completion_queues=2)
#: Queues that exist; the number after them names none.
QUEUES = 3
#: Cycles after which the output must reflect the inputs: two rounds and the look-up.
LATENCY = 2 * 8 + 8


class Host:
    """Drives the block: producers through its look-up port, doorbells, settings and restarts."""

    def __init__(self, ctx, dut, producers):
        self.ctx, self.dut, self.producers = ctx, dut, producers
        self.looks = deque([0, 0])

    async def tick(self, cycles=1):
        for _ in range(cycles):
            self.ctx.set(self.dut.found, self.producers[self.looks.popleft()] % MODULUS)
            self.looks.append(self.ctx.get(self.dut.look))
            await self.ctx.tick()
            for port in (self.dut.doorbell, self.dut.settings, self.dut.restart):
                self.ctx.set(port.valid, 0)

    def ring(self, queue, consumer, arm=True):
        self.ctx.set(self.dut.doorbell.payload, {
            "queue": queue, "consumer": consumer % MODULUS, "arm": arm})
        self.ctx.set(self.dut.doorbell.valid, 1)

    async def set(self, queue, count, timeout):
        self.ctx.set(self.dut.settings.payload, {
            "index": queue, "entry": {"count": count, "timeout": timeout}})
        self.ctx.set(self.dut.settings.valid, 1)
        await self.tick()

    @property
    def pending(self):
        return self.ctx.get(self.dut.pending)


def run(testbench):
    dut = shared(InterruptModeration, CONFIG)

    async def bench(ctx):
        await testbench(Host(ctx, dut, [0] * (QUEUES + 1)))

    simulate(dut, bench, limit=30_000)


@pytest.mark.parametrize("count, timeout", [
    (0, 0), (4, 60), (20, 20), (60000, 100), (60000, 0xFFFF_FFFF), *long((1, 1000), (20, 200)),
])
@pytest.mark.parametrize("come, go", [(0.5, 0.05), (0.02, 0.1), *long((0.1, 0.02), (1.0, 0.01))])
def test_each_queue_is_pending_as_count_and_age_say(count, timeout, come, go):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def testbench(host):
        start = rng.choice((0, MODULUS - 30))
        consumers = [start] * QUEUES
        host.producers[:QUEUES] = consumers
        since = [0] * QUEUES  # the cycle from which a queue's arming counts
        came = [{} for _ in range(QUEUES)]
        for queue in range(QUEUES):
            await host.set(queue, count, timeout)
            host.ring(queue, start)
            await host.tick()
        rises = 0
        before = 0
        for cycle in range(1500):
            queue = rng.randrange(QUEUES)
            if rng.random() < come:
                came[queue][host.producers[queue]] = cycle
                host.producers[queue] += 1
            if rng.random() < go:
                queue = rng.randrange(QUEUES)
                consumers[queue] = rng.randrange(consumers[queue], host.producers[queue] + 1)
                host.ring(queue, consumers[queue])
                since[queue] = cycle
            await host.tick()
            now = host.pending
            for queue in range(QUEUES):
                waiting = host.producers[queue] - consumers[queue]
                first = came[queue].get(consumers[queue], cycle)
                enough = waiting and waiting >= max(count, 1)
                ripe = waiting and cycle - max(first, since[queue]) >= timeout
                pending = now >> queue & 1
                if pending:
                    assert waiting, f"{cycle=} {queue=}"
                    assert enough or cycle - first >= timeout, f"{cycle=} {queue=}"
                elif cycle - since[queue] > LATENCY + 8:
                    ripe = waiting and cycle - max(first, since[queue]) >= timeout + LATENCY
                    sure = len([1 for at in came[queue].values() if at < cycle - LATENCY
                                and at >= 0]) and enough and cycle - came[queue][
                                    consumers[queue] + max(count, 1) - 1] > LATENCY
                    assert not ripe and not sure, f"{cycle=} {queue=} {waiting=}"
            rises += bin(now & ~before).count("1")
            before = now
        if timeout <= 60 and come > go:
            assert rises

    run(testbench)


def test_a_queue_that_is_not_armed_is_not_pending_and_arming_loses_nothing():
    async def testbench(host):
        host.producers[1] = 3
        await host.tick(50)
        assert host.pending == 0
        # Completions from before the doorbell count, if the host has not taken them.
        host.ring(1, 3)
        await host.tick(LATENCY)
        assert host.pending == 0
        host.producers[1] = 4
        await host.tick(LATENCY)
        assert host.pending == 0b10
        # It stays until the queue is armed again, and rises once for each arming.
        host.ring(1, 4, arm=False)
        await host.tick(LATENCY)
        assert host.pending == 0b10
        host.ring(1, 3)
        await host.tick()
        assert host.pending == 0
        await host.tick(LATENCY)
        assert host.pending == 0b10
        host.ring(1, 4)
        await host.tick(LATENCY)
        assert host.pending == 0

    run(testbench)


@pytest.mark.parametrize("early", [100, 1000])
def test_a_completion_ages_across_the_wrap_of_the_count_of_cycles(early):
    async def testbench(host):
        await host.set(2, 5, 1200)
        host.ring(2, 0)
        await host.tick(WRAP - early)
        host.producers[2] = 1
        await host.tick(1200)
        assert host.pending == 0
        await host.tick(LATENCY)
        assert host.pending == 0b100

    run(testbench)


@pytest.mark.parametrize("delay", range(20))
def test_a_completion_beside_the_doorbell_is_not_lost(delay):
    async def testbench(host):
        await host.set(2, 5, 100)
        host.ring(2, 0)
        await host.tick(10 + delay)
        host.producers[2] = 1
        host.ring(2, 0)
        await host.tick(100)
        assert host.pending == 0
        await host.tick(LATENCY)
        assert host.pending == 0b100

    run(testbench)


def test_a_queue_that_restarts_is_neither_armed_nor_pending():
    async def testbench(host):
        host.ring(0, 0)
        host.producers[0] = 1
        await host.tick(LATENCY)
        assert host.pending == 1
        host.ctx.set(host.dut.restart.payload, 0)
        host.ctx.set(host.dut.restart.valid, 1)
        host.producers[0] = 0
        await host.tick()
        assert host.pending == 0
        host.producers[0] = 1
        await host.tick(LATENCY)
        assert host.pending == 0

    run(testbench)
