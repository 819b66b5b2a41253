"""Tests the engine's parts, one by one."""

import random

import pytest
from ddp_rnic.hdl.dma.jobs import Geometry, JobMaker
from ddp_rnic.hdl.dma.rotate import Lanes, Rotate
from ddp_rnic.hdl.dma.sequencer import Job, JobSequencer
from ddp_rnic.hdl.lib.stream import Store
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig


@pytest.mark.parametrize("width", WIDTHS)
def test_rotation_by_every_amount_each_cycle(width):
    octets = width // 8
    dut = Rotate(octets)
    rng = random.Random(width)
    beats = [(rng.randbytes(octets), rng.randrange(octets)) for _ in range(20)]
    beats += [(rng.randbytes(octets), n) for n in range(octets)]

    async def testbench(ctx):
        got = []
        for n in range(len(beats) + dut.stages):
            ctx.set(dut.amount, beats[n][1] if n < len(beats) else 0)
            await ctx.tick()
            ctx.set(dut.i, int.from_bytes(beats[n][0], "little") if n < len(beats) else 0)
            if n >= dut.stages:
                got.append(ctx.get(dut.o).to_bytes(octets, "little"))
        for (beat, amount), value in zip(beats, got, strict=True):
            assert value == beat[octets - amount:] + beat[:octets - amount], f"{amount=}"

    simulate(dut, testbench)


@pytest.mark.parametrize("width", WIDTHS)
def test_lanes_below_every_lane(width):
    octets = width // 8
    dut = Lanes(octets)

    async def testbench(ctx):
        for n in range(octets + 2):
            ctx.set(dut.i, n % octets)
            await ctx.tick()
            if 1 <= n <= octets:
                assert ctx.get(dut.o) == (1 << n - 1) - 1

    simulate(dut, testbench)


@pytest.mark.parametrize("stalls", (0, 0.5))
def test_steps_follow_each_other_without_a_gap_and_stop_on_command(stalls):
    dut = JobSequencer(Job(8, 6))
    rng = random.Random(3)
    jobs = [(n, rng.choice([1, 1, 2, 3, 4, 5, 40])) for n in range(60)]
    want = [(n, index, index == 0, index == count - 1, index == count - 2)
            for n, count in jobs for index in range(count)]

    async def testbench(ctx):
        pending = iter(jobs)
        got, cycles = [], []
        ready = True
        for cycle in range(4 * len(want)):
            if ready:
                job = next(pending, None)
                ctx.set(dut.i.valid, job is not None)
                if job:
                    body, count = job
                    ctx.set(dut.i.payload, {"body": body, "more": count - 1, "one": count == 1,
                                            "two": count == 2})
            ctx.set(dut.go, rng.random() >= stalls)
            sample = [dut.valid, dut.i.ready, dut.body, dut.index, dut.first, dut.last,
                      dut.penultimate]
            _clk, _rst, valid, ready, *step = await ctx.tick().sample(*sample)
            if valid:
                got.append(tuple(step))
                cycles.append(cycle)
            if len(got) == len(want):
                break
        assert got == [tuple(map(int, step)) for step in want]
        if not stalls:
            assert cycles == list(range(1, len(want) + 1))

    simulate(dut, testbench)


@pytest.mark.parametrize("width", WIDTHS)
def test_jobs_are_what_the_arithmetic_says(width):
    config = RnicConfig(width=width)
    octets = config.octets
    block = min(4096, 256 * octets)
    geometry = Geometry(config)
    dut = JobMaker(config)
    rng = random.Random(width)
    lengths = [0, 1, octets - 1, octets, octets + 1, block - 1, block, 65535, 131071]
    moves = []
    for n in range(400):
        length = rng.choice([*lengths, rng.randrange(1 << 17), rng.randrange(4 * octets)])
        address = rng.getrandbits(64)
        if n % 4 == 0:
            address = (address // block * block - rng.randrange(2 * octets)) % (1 << 64)
        moves.append((rng.randrange(config.buffer_octets), length,
                      min(address, (1 << 64) - length), rng.random() < 0.1))

    async def testbench(ctx):
        slots, bursts = [], []
        for n in range(len(moves) + 6):
            ctx.set(dut.i.valid, n < len(moves))
            if n < len(moves):
                start, length, address, exception = moves[n]
                ctx.set(dut.i.payload, {"start": start, "length": length, "address": address,
                                        "exception": exception, "sequence": n,
                                        "stream": n % 64})
            _clk, _rst, slot_valid, slot, burst_valid, burst = await ctx.tick().sample(
                dut.slots.valid, dut.slots.payload, dut.bursts.valid, dut.bursts.payload)
            if slot_valid:
                assert n == slot.body.sequence + 4
                slots.append(slot)
            if burst_valid:
                assert n % 64 == (burst.body.stream + 5) % 64
                bursts.append(burst)
        assert len(slots) == len(moves)
        remaining = iter(bursts)
        for (start, length, address, exception), slot in zip(moves, slots, strict=True):
            where = f"{start=:#x} {length=} {address=:#x} {exception=}"
            source, target = start % octets, 0 if exception else address % octets
            count_in = (source + length + octets - 1) // octets if length else 0
            count_out = (target + length + octets - 1) // octets if length else 0
            assert slot.more == max(count_in, count_out, 1) - 1, where
            assert slot.one == (slot.more == 0) and slot.two == (slot.more == 1), where
            assert slot.body.silent == (count_out <= slot.more), where
            assert slot.body.rotate == (target - source) % octets, where
            assert slot.body.ahead == (target < source), where
            assert slot.body.start == start // octets, where
            if length:
                assert slot.body.first_lane == target, where
                assert slot.body.last_lane == (target + length - 1) % octets, where
            if exception or not length:
                continue
            burst = next(remaining)
            first, last = address // block, (address + length - 1) // block
            assert burst.more == last - first, where
            assert burst.one == (burst.more == 0) and burst.two == (burst.more == 1), where
            assert burst.body.page == first, where
            assert burst.body.position == address % block // octets, where
            stop = min((first + 1) * block, address + length)
            assert burst.body.first == (stop - 1) // octets - address // octets, where
            if last > first:
                assert burst.body.final == (address + length - 1) % block // octets, where
            assert slot.body.position == burst.body.position, where
        assert next(remaining, None) is None
        assert geometry.page + geometry.burst + geometry.lane == 64

    simulate(dut, testbench)


@pytest.mark.parametrize("push, pop", [(0.9, 0.3), (0.3, 0.9), (1, 1)])
def test_a_store_keeps_the_order_at_every_level(push, pop):
    dut = Store(16, depth=16)
    rng = random.Random(push)

    async def testbench(ctx):
        written = read = 0
        for n in range(1000):
            valid = written - read < 16 and rng.random() < push
            ready = rng.random() < pop
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.i.payload, written)
            ctx.set(dut.o.ready, ready)
            _clk, _rst, some, payload, half = await ctx.tick().sample(
                dut.o.valid, dut.o.payload, dut.half)
            assert some == (written > read), f"cycle {n}"
            assert not half or written - read < 8, f"cycle {n}"
            # One item may have left a cycle ago.
            assert half or written - read + 1 >= 8, f"cycle {n}"
            if some:
                assert payload == read, f"cycle {n}"
            written += valid
            read += some & ready
        assert written > 200

    simulate(dut, testbench)
