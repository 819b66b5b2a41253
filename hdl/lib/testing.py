"""Simulates blocks in Amaranth's own simulator: clock, watchdog, and both ends of a stream.

For tests and drawings alone: no gateware imports this file.
"""

import random
from functools import lru_cache
from typing import Any, NamedTuple

from amaranth.hdl import ShapeCastable, Value
from amaranth.sim import Simulator

#: The time of a cycle in seconds, for designs with one clock.
PERIOD = 1e-8
#: The greatest number of testbenches of a shared component, and of those in the background.
MOST = 10


@lru_cache(maxsize=8)
def shared(kind, /, *arguments, **options):
    """Returns ``kind(*arguments, **options)``: the same component for equal arguments.

    The first simulation elaborates and compiles it, the others reset it. Tests must not change it.
    """
    component = kind(*arguments, **options)
    component._simulators = {}  # by their clocks, with the testbenches of the current simulation
    return component


def make_simulator(dut, *testbenches, background=(), limit=20_000, clocks=None):
    """Returns a simulator of a component, whose ``run()`` ends when all ``testbenches`` have ended.

    If they have not ended after ``limit`` cycles, ``run()`` fails. The testbenches in
    ``background`` do not keep the simulation alive; in each cycle they run before the others.

    ``clocks`` has the period and phase, in seconds, of each clock domain; the first of them
    measures ``limit``. By default, ``sync`` is the only domain.
    """
    clocks = clocks or {"sync": (PERIOD, None)}
    period, _ = next(iter(clocks.values()))

    async def watchdog(ctx):
        # One delay: a testbench that counts cycles would make each of them slower.
        await ctx.delay(limit * period)
        raise AssertionError(f"{type(dut).__name__}: the test has not ended after {limit} cycles")

    kinds = [*background, watchdog], testbenches
    known, key = getattr(dut, "_simulators", None), tuple(clocks.items())
    if known is None:
        return _assemble(dut, clocks, *kinds)
    assert all(len(kind) <= MOST for kind in kinds), f"more than {MOST} testbenches"
    if key in known:
        simulator, slots = known[key]
        slots[:] = kinds
        simulator.reset()
    else:
        slots = [*kinds]
        simulator = _assemble(dut, clocks, *(
            [_slot(slots, kind, number) for number in range(MOST)] for kind in range(2)))
        known[key] = simulator, slots
    return simulator


def _assemble(dut, clocks, background, testbenches):
    simulator = Simulator(dut)
    for domain, (each, phase) in clocks.items():
        simulator.add_clock(each, phase=phase, domain=domain)
    for testbench in background:
        simulator.add_testbench(testbench, background=True)
    for testbench in testbenches:
        simulator.add_testbench(testbench)
    return simulator


def _slot(slots, kind, number):
    """Returns a testbench that runs the one in a slot, if there is one."""
    async def testbench(ctx):
        if number < len(slots[kind]):
            await slots[kind][number](ctx)

    return testbench


def simulate(dut, *testbenches, **options):
    """Runs testbenches against a component; takes the options of :func:`make_simulator`."""
    simulator = make_simulator(dut, *testbenches, **options)
    try:
        simulator.run()
    except BaseException:
        getattr(dut, "_simulators", {}).clear()
        raise


async def send(ctx, stream, payloads, *, idle=0.0, rng=random):
    """Sends payloads into a stream; is idle in a share ``idle`` of the cycles before each."""
    for payload in payloads:
        while rng.random() < idle:
            await ctx.tick()
        ctx.set(stream.payload, payload)
        ctx.set(stream.valid, 1)
        # Not until(), which fails if the simulation ends in the meantime.
        async for _, _, ready in ctx.tick().sample(stream.ready):
            if ready:
                break
        ctx.set(stream.valid, 0)


async def receive(ctx, stream, *, stall=0.0, rng=random):
    """Returns the next payload of a stream; is not ready in a share ``stall`` of the cycles.

    Asserts that the stream holds an offer until the transfer.
    """
    offer = Offer(stream)
    ready = rng.random() >= stall
    ctx.set(stream.ready, ready)
    async for _, _, valid, bits in ctx.tick().sample(stream.valid, Value.cast(stream.payload)):
        if offer.taken(valid, ready, bits):
            ctx.set(stream.ready, 0)
            return decoded(stream, bits)
        ready = rng.random() >= stall
        ctx.set(stream.ready, ready)


def decoded(stream, bits):
    """Returns a payload that was sampled as an integer, with ``Value.cast(stream.payload)``.

    To sample structs in each cycle takes several times as long.
    """
    shape = stream.payload.shape()
    return shape.from_bits(bits) if isinstance(shape, ShapeCastable) else bits


class Offer:
    """Asserts that a stream holds ``valid`` and the payload until the transfer."""

    def __init__(self, name):
        self.name, self.waiting = name, None

    def taken(self, valid, ready, payload):
        """Checks the samples of one cycle; returns whether the payload is transferred in it."""
        if self.waiting is not None:
            assert valid, f"{self.name}: valid is withdrawn before the transfer"
            assert payload == self.waiting, (
                f"{self.name}: the payload changes before the transfer, "
                f"from {self.waiting} to {payload}")
        self.waiting = payload if valid and not ready else None
        return bool(valid and ready)


class Seen(NamedTuple):
    """Reports a new offer of a stream, a transfer, or both in one cycle."""

    name: str
    payload: Any
    fresh: bool
    taken: bool


class Sinks:
    """Takes from several streams in one testbench, each with back-pressure of its own.

    ``stalls`` has the share of cycles in which each stream is not ready. The testbench samples
    ``signals`` in each cycle, gives the values to :meth:`look`, then calls :meth:`set_ready`. The
    streams are sampled as integers, because to sample structs is several times slower.
    """

    def __init__(self, streams, *, stalls, rng):
        assert set(stalls) <= set(streams), "back-pressure of a stream that is not there"
        self.streams, self.stalls, self.rng = streams, stalls, rng
        self.offers = {name: Offer(name) for name in streams}
        self.ready = dict.fromkeys(streams, 0)
        self.signals = [signal for each in streams.values()
                        for signal in (each.valid, Value.cast(each.payload))]

    def look(self, values):
        """Yields a :class:`Seen` for each offer that is new or taken; asserts that it is held."""
        for (name, offer), valid, payload in zip(
                self.offers.items(), values[::2], values[1::2], strict=True):
            fresh = bool(valid) and offer.waiting is None
            taken = offer.taken(valid, self.ready[name], payload)
            if fresh or taken:
                yield Seen(name, decoded(self.streams[name], payload), fresh, taken)

    def set_ready(self, ctx):
        """Draws which streams are ready in the next cycle."""
        for name, stream in self.streams.items():
            stall = self.stalls.get(name, 0)
            ready = int(not stall or self.rng.random() >= stall)
            if ready != self.ready[name]:
                ctx.set(stream.ready, ready)
                self.ready[name] = ready


async def numbered(ticks):
    """Yields the number of each cycle, from 0, and the values that are sampled in it."""
    cycle = 0
    async for _, _, *sample in ticks:
        yield cycle, sample
        cycle += 1


def beats_of(packet, octets, *, error=False):
    """Yields the beats of a packet as dicts; ``error`` marks the last one as damaged."""
    for at in range(0, len(packet) or 1, octets):
        part, last = packet[at:at + octets], at + octets >= len(packet)
        yield {"data": int.from_bytes(part, "little"), "count": len(part), "last": last,
               "error": error and last}


def octets_of(beat, octets):
    """Returns the octets of a beat; asserts that only the last beat of a packet is not full."""
    assert beat.last or beat.count == octets, f"{beat.count} octets in a beat that is not the last"
    return beat.data.to_bytes(octets, "little")[:beat.count]
