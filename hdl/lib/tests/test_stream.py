"""Tests the queues against a deque."""

import random
from collections import deque
from functools import partial

import pytest
from amaranth.lib import data
from ddp_rnic.hdl.lib.stream import Backlog, Beat, Queue, Skid, Stage, any_of
from ddp_rnic.hdl.lib.testing import Offer, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.lib.tests.refused import refused

DEPTHS = (4, 16)


@pytest.mark.parametrize("give, take", [(1.0, 1.0), (0.9, 0.3), (0.3, 0.9), (0.5, 0.5), (1.0, 0.5)])
@pytest.mark.parametrize("depth", DEPTHS)
def test_items_come_out_as_they_went_in(depth, give, take):
    dut = shared(Queue, 12, depth=depth)
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def testbench(ctx):
        inside = deque()
        offered, offer = None, Offer("o")
        passed = 0
        for cycle in range(1500):
            if offered is None and rng.random() < give:
                offered = rng.getrandbits(12)
            ctx.set(dut.i.valid, offered is not None)
            ctx.set(dut.i.payload, rng.getrandbits(12) if offered is None else offered)
            ready = rng.random() < take
            ctx.set(dut.o.ready, ready)
            sample = ctx.tick().sample(dut.i.ready, dut.o.valid, dut.o.payload)
            _, _, taken, valid, item = await sample
            gone = offer.taken(valid, ready, item)
            if valid:
                assert item == inside[0], f"cycle {cycle}: item expected {inside[0]} got {item}"
            if gone:
                inside.popleft()
                passed += 1
            if taken and offered is not None:
                inside.append(offered)
                offered = None
        assert passed > 300

    simulate(dut, testbench)


@pytest.mark.parametrize("kind", (Skid, Stage, partial(Skid, relaxed=True)))
@pytest.mark.parametrize("give, take", [(1.0, 1.0), (0.9, 0.3), (0.3, 0.9), (0.5, 0.5)])
def test_items_go_through_a_register_in_order(kind, give, take):
    dut = kind(12)
    rng = random.Random(f"{give} {take}")

    async def testbench(ctx):
        inside, passed, ready_before = deque(), 0, None
        for cycle in range(600):
            ctx.set(dut.i.valid, rng.random() < give)
            ctx.set(dut.i.payload, rng.getrandbits(12))
            ctx.set(dut.o.ready, 0)
            ready_before = ctx.get(dut.i.ready)
            ctx.set(dut.o.ready, rng.random() < take)
            assert kind is not Skid or ctx.get(dut.i.ready) == ready_before, "a path through it"
            *_, offered, taken, valid, ready, item, payload = await ctx.tick().sample(
                dut.i.valid, dut.i.ready, dut.o.valid, dut.o.ready, dut.o.payload, dut.i.payload
            )
            assert valid == bool(inside), f"cycle {cycle}"
            if valid:
                assert item == inside[0], f"cycle {cycle}: item expected {inside[0]} got {item}"
                if ready:
                    inside.popleft()
                    passed += 1
            if offered and taken:
                inside.append(payload)
        assert passed > 100 and (min(give, take) < 1 or passed == 599)

    simulate(dut, testbench)


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_item_takes_two_cycles_and_items_follow_each_cycle(depth):
    dut = shared(Queue, 16, depth=depth)

    async def testbench(ctx):
        ctx.set(dut.o.ready, 1)
        await ctx.tick()
        got = []
        for cycle in range(50):
            ctx.set(dut.i.valid, cycle < 40)
            ctx.set(dut.i.payload, cycle)
            _, _, ready, valid, item = await ctx.tick().sample(
                dut.i.ready, dut.o.valid, dut.o.payload
            )
            assert ready, f"cycle {cycle}"
            if valid:
                got.append((cycle, item))
        assert got == [(cycle + 2, cycle) for cycle in range(40)]

    simulate(dut, testbench)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("pause", (0, 3))
def test_a_queue_holds_as_much_as_its_depth(depth, pause):
    dut = shared(Queue, 16, depth=depth)

    async def testbench(ctx):
        taken = 0
        for _ in range(depth + 10):
            ctx.set(dut.i.valid, 1)
            _, _, ready = await ctx.tick().sample(dut.i.ready)
            taken += ready
            ctx.set(dut.i.valid, 0)
            for _ in range(pause):
                await ctx.tick()
        assert depth <= taken <= depth + 1
        assert (ctx.get(dut.i.ready), ctx.get(dut.o.valid)) == (0, 1)

    simulate(dut, testbench)


def test_a_struct_comes_out_as_a_struct():
    shape = data.StructLayout({"beat": Beat(64), "stream": 16})
    dut = Queue(shape, depth=4)
    item = {"beat": {"data": 7, "count": 3, "last": 1, "error": 0}, "stream": 9}

    async def testbench(ctx):
        await ctx.tick()
        ctx.set(dut.i.payload, item)
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick()
        assert ctx.get(dut.o.valid)
        assert ctx.get(dut.o.payload) == shape.const(item)

    simulate(dut, testbench)


RATES = [1.0, 0.5, *long(0.9, 0.2)]


@pytest.mark.parametrize("take", RATES)
@pytest.mark.parametrize("give", RATES)
@pytest.mark.parametrize(
    "relaxed, depth", [(False, 64), (True, 16), *long((False, 16), (True, 64))]
)
def test_a_backlog_gives_items_as_they_came_at_every_level(relaxed, depth, give, take):
    dut = shared(Backlog, 12, depth=depth, relaxed=relaxed)
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def testbench(ctx):
        inside = deque()
        offer = Offer("o")
        left = passed = 0
        for cycle in range(2000):
            push = len(inside) + left < depth and rng.random() < give
            item = rng.getrandbits(12)
            ready = rng.random() < take
            ctx.set(dut.i.valid, push)
            ctx.set(dut.i.payload, item)
            ctx.set(dut.o.ready, ready)
            sample = ctx.tick().sample(dut.o.valid, dut.o.payload, dut.half, dut.level)
            _, _, valid, got, half, level = await sample
            assert level == len(inside) + left, f"cycle {cycle}"
            assert half == (level < depth // 2), f"cycle {cycle}"
            left = int(offer.taken(valid, ready, got))
            if valid:
                assert inside and got == inside[0], f"cycle {cycle}"
            if left:
                inside.popleft()
                passed += 1
            if push:
                inside.append(item)
        assert passed > 300

    simulate(dut, testbench)


@pytest.mark.parametrize("depth", (16, 512))
@pytest.mark.parametrize("relaxed, latency", ((False, 5), (True, 3)))
def test_an_item_takes_so_long_through_a_backlog_and_items_follow_each_cycle(
        relaxed, latency, depth):
    dut = shared(Backlog, 16, depth=depth, relaxed=relaxed)
    count = 3 * depth

    async def testbench(ctx):
        # The first items wait for a while; after that there is never a gap.
        held = 20 if depth > 16 else 5
        got = []
        for cycle in range(count + held + 10):
            ctx.set(dut.i.valid, cycle < count)
            ctx.set(dut.i.payload, cycle)
            ctx.set(dut.o.ready, cycle >= held)
            _, _, valid, item = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            assert valid == (latency <= cycle < count + held), f"cycle {cycle}"
            if valid and cycle >= held:
                got.append(item)
        assert got == list(range(count))

    simulate(dut, testbench)


@pytest.mark.parametrize("depth", (16, 64))
@pytest.mark.parametrize("relaxed", (False, True))
def test_a_backlog_holds_its_depth_and_gives_it_back_without_a_gap(relaxed, depth):
    dut = shared(Backlog, 16, depth=depth, relaxed=relaxed)

    async def testbench(ctx):
        for start in range(3):
            ctx.set(dut.i.valid, 1)
            for n in range(depth):
                ctx.set(dut.i.payload, start + n)
                await ctx.tick()
            ctx.set(dut.i.valid, 0)
            await ctx.tick().repeat(8 * start + 1)
            assert ctx.get(dut.level) == depth
            ctx.set(dut.o.ready, 1)
            for n in range(depth):
                _, _, valid, item = await ctx.tick().sample(dut.o.valid, dut.o.payload)
                assert (valid, item) == (1, start + n)
            assert not ctx.get(dut.o.valid)
            ctx.set(dut.o.ready, 0)
            await ctx.tick()
            assert ctx.get(dut.level) == 0

    simulate(dut, testbench)


def test_a_struct_comes_out_of_a_backlog_as_a_struct():
    shape = data.StructLayout({"beat": Beat(64), "stream": 16})
    dut = Backlog(shape, depth=16)
    item = {"beat": {"data": 7, "count": 3, "last": 1, "error": 0}, "stream": 9}

    async def testbench(ctx):
        await ctx.tick()
        ctx.set(dut.i.payload, item)
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(4)
        assert ctx.get(dut.o.valid)
        assert ctx.get(dut.o.payload) == shape.const(item)

    simulate(dut, testbench)


@pytest.mark.parametrize("depth", (0, 1, 2, 3, 12, -4))
def test_a_depth_that_is_no_power_of_two_is_refused(depth):
    message = f"Queue depth must be a power of two and at least 4, not {depth}"
    assert refused(message, Queue, 8, depth=depth) == message


def test_a_depth_that_is_no_integer_is_refused():
    message = "Queue depth must be an integer, not '4'"
    assert refused(message, Queue, 8, depth="4", error=TypeError) == message


@pytest.mark.parametrize("depth", (0, 8, 24))
def test_a_backlog_of_an_unfit_depth_is_refused(depth):
    message = f"Backlog depth must be a power of two and at least 16, not {depth}"
    assert refused(message, Backlog, 8, depth=depth) == message


def test_a_backlog_of_a_depth_that_is_no_integer_is_refused():
    message = "Backlog depth must be an integer, not '16'"
    assert refused(message, Backlog, 8, depth="16", error=TypeError) == message


def test_any_of_nothing_is_zero():
    assert repr(any_of([])) == "(const 1'd0)"
