"""Tests how the entries of a turn are read: from a slow bus that answers in order, with errors."""

import random
from collections import deque

import pytest
from amaranth.hdl import Value
from ddp_rnic.hdl.lib.testing import decoded, numbered, receive, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import first, long
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.send import fetch
from ddp_rnic.hdl.spec.config import WIDTHS
from ddp_rnic.hdl.spec.send import ENTRY

STREAMS = 16


def entry_at(number):
    """Returns the octets of host memory at an address, in units of entries."""
    return random.Random(number).randbytes(ENTRY)


class Memory:
    """An AXI memory that answers reads in order, ``latency`` cycles late; the entries whose numbers
    are in ``bad`` have an error in one of their beats.
    """

    def __init__(self, width, *, latency=1, stall=0.0, bad=(), seed=1):
        self.octets, self.latency, self.stall = width // 8, latency, stall
        self.bad, self.rng = bad, random.Random(seed)
        self.asked, self.beats = [], []  # the cycles of addresses and of beats

    async def serve(self, ctx, bus):
        rng, answers, ready, each = self.rng, deque(), 0, ENTRY // self.octets
        ticks = ctx.tick().sample(bus.ar.valid, Value.cast(bus.ar.payload))
        async for cycle, (valid, address) in numbered(ticks):
            assert ctx.get(bus.r.ready), "the block holds the bus up"
            if valid and ready:
                address = decoded(bus.ar, address)
                self.asked.append(cycle)
                assert address.addr % ENTRY == 0 and (address.len + 1) % each == 0
                assert address.addr >> 12 == address.addr + address.len * self.octets >> 12
                for k in range((address.len + 1) // each):
                    number = address.addr // ENTRY + k
                    wrong = rng.randrange(each) if number in self.bad else None
                    answers.extend(
                        (cycle + self.latency, entry_at(number)[at * self.octets:][:self.octets],
                         2 * (at == wrong)) for at in range(each))
            comes = bool(answers) and answers[0][0] <= cycle and rng.random() >= self.stall
            if comes:
                _, octets, resp = answers.popleft()
                ctx.set(bus.r.payload, {
                    "data": int.from_bytes(octets, "little"), "resp": resp})
                self.beats.append(cycle + 1)
            ctx.set(bus.r.valid, comes)
            ready = rng.random() >= self.stall
            ctx.set(bus.ar.ready, ready)


def window(rng, base, size, count):
    """Returns a window of a ring, and the numbers of its entries in host memory."""
    start = rng.randrange(1 << 16)
    members = {
        "stream": rng.randrange(STREAMS), "base": base, "size": size, "start": start,
        "count": count, "octets": rng.randrange(1, 1 << 14), "done": rng.getrandbits(32),
        "more": rng.randrange(2), "response": rng.randrange(2), "answers": rng.randrange(2),
        "repeat": rng.randrange(2), "slot": rng.randrange(8),
    }  # fmt: skip
    return members, [base + (start + k) % (1 << size) for k in range(count)]


def windows(rng, count):
    """Returns windows of random rings, which begin at any entry."""
    result = []
    for _ in range(count):
        size = rng.choice((0, 1, 3, 4, 5, 8))
        many = min(1 << size, rng.choice((1, 1, 2, 8, rng.randrange(1, 256))), 255)
        base = rng.randrange(1 << 40) << rng.choice((0, 0, 2, size))
        result.append(window(rng, base, size, many))
    return result


def play(module, width, jobs, memory, *, stall=0.0, held=None, seed=1, limit=60_000):
    """Compares the entries with host memory; returns the cycles in which they came. The first
    window is there in cycle 0.

    ``held``: the share of cycles in which no entry is taken, if that is another than ``stall``.
    Asserts that a stream fails before an entry of it leaves that could not be read.
    """
    dut, rng = shared(module.Fetch, width, STREAMS), random.Random(seed)
    fails, came, busy = [], [], []

    async def ask(ctx):
        await send(ctx, dut.windows, [members for members, _ in jobs], idle=stall, rng=rng)

    async def fail(ctx):
        while True:
            fails.append(await receive(ctx, dut.fail, stall=stall, rng=rng))

    async def watch(ctx):
        ticks = ctx.tick().sample(dut.o.valid, dut.o.ready, dut.busy)
        async for cycle, (valid, ready, reading) in numbered(ticks):
            if valid and ready:
                came.append(cycle)
            busy.append(reading)

    async def take(ctx):
        failed = 0
        for members, numbers in jobs:
            refused = False
            for at, number in enumerate(numbers):
                work = await receive(ctx, dut.o, stall=stall if held is None else held, rng=rng)
                if number in memory.bad and not refused:
                    refused, failed = True, failed + 1
                    assert len(fails) >= failed and fails[failed - 1] == members["stream"]
                octets = bytes(ENTRY) if refused else entry_at(number)
                assert work.entry == int.from_bytes(octets, "little"), (members, at)
                assert (work.stream, work.rest) == (members["stream"], len(numbers) - at)
                assert work.turn.first == (at == 0)
                for name in ("octets", "done", "more", "response", "answers", "repeat", "slot"):
                    assert work.turn[name] == members[name], name
        await ctx.tick().repeat(20)
        assert not ctx.get(dut.o.valid) and not ctx.get(dut.busy) and len(fails) == failed

    async def serve(ctx):
        await memory.serve(ctx, dut.bus)

    simulate(dut, ask, take, background=[serve, fail, watch], limit=limit)
    # Something is being read from the first address until the last entry has come.
    assert all(busy[memory.asked[0] + 2:memory.beats[-1] + 3])
    return came


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("latency", "stall"), [*long((1, 0.0)), (90, 0.3)], ids=["at once", "late"])
def test_the_entries_of_each_window_come_once_and_in_order(width, latency, stall):
    rng = random.Random(width)
    jobs = windows(rng, 40)
    numbers = [number for _, some in jobs for number in some]
    play(fetch, width, jobs, Memory(width, latency=latency, stall=stall), stall=stall)
    bad = frozenset(rng.sample(numbers, 12))
    play(fetch, width, jobs, Memory(width, latency=latency, stall=stall, bad=bad), stall=stall)


@pytest.mark.parametrize("width", WIDTHS)
def test_entries_come_as_fast_as_the_bus_brings_them(width):
    """Two windows of 255 entries. The bus takes less time to answer than the room has beats."""
    each = ENTRY // (width // 8)
    rng = random.Random(5)
    jobs = [window(rng, base << 20, 8, 255) for base in (1, 2)]
    memory = Memory(width, latency=200)
    came = play(fetch, width, jobs, memory)
    assert memory.asked[0] == 1
    assert came[0] - memory.beats[each - 1] == 2
    assert came[-1] - memory.beats[each - 1] <= each * (2 * 255 - 1) + 4


def hold(module):
    """Plays short and long windows, some with errors, while entries are taken slowly."""
    rng = random.Random(7)
    long = [window(rng, base << 20, 8, 100) for base in (1, 2)]
    short = [window(rng, rng.randrange(1 << 40), 8, 1) for _ in range(60)]
    jobs = [*long, *short, *windows(rng, 8)]
    bad = frozenset(number for _, some in jobs for number in some if rng.random() < 0.1)
    memory = Memory(64, latency=90, bad=bad)
    # The gateware takes 9,000 cycles. With a bug it may come to no end.
    play(module, 64, jobs, memory, stall=0.2, held=0.95, limit=12_000)


def test_the_bus_never_waits_while_entries_are_held_up():
    hold(fetch)


@pytest.mark.parametrize(
    "old, new",
    first([
        ("fails.eq(beat.bad & ~failed)", "fails.eq(beat.bad & ~failed & (at == 0))"),
        ("self.fail.valid & self.fail.ready", "self.fail.valid"),
        ("Mux(failed, 0, Cat(octets", "Mux(beat.bad, 0, Cat(octets"),
        ("may.eq((free >= RUN) & facts.half)", "may.eq(facts.half)"),
        ("may.eq((free >= RUN) & facts.half)", "may.eq(free >= RUN)"),
        ("final.eq(left == 2)", "final.eq(left == 3)"),
    ]),
    ids=["first beat", "not taken", "one entry", "room", "facts", "window's end"],
)
def test_a_bug_in_the_reads_of_rings_is_caught(old, new):
    with pytest.raises(AssertionError):
        hold(planted("send.fetch", old, new))
