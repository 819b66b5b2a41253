"""Tests the parts of a revocation: the fences and the sweep."""

import random

import pytest
from amaranth import Module
from amaranth.lib import wiring
from ddp_rnic.hdl.ddp.fence import Fence, RecordFence, Sweep
from ddp_rnic.hdl.ddp.stag import StagTable
from ddp_rnic.hdl.lib.testing import simulate
from ddp_rnic.hdl.lib.tests.refused import refused

MODULUS = 1 << 16


@pytest.mark.parametrize("begin", (0, MODULUS // 2 - 50, MODULUS - 50))
@pytest.mark.parametrize("settle", (0, 1, 9))
def test_the_fence_waits_for_all_that_was_issued_and_for_no_more(settle, begin):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    dut = Fence(settle)

    async def bench(ctx):
        issued = retired = begin
        started = target = reached = None
        fences = 0
        for cycle in range(3000):
            issued += rng.random() < (0.9 if cycle // 200 % 2 else 0.2)
            retired += retired < issued and rng.random() < 0.5
            start = rng.random() < (0.2 if started is None else 0.01)
            ctx.set(dut.issued, issued % MODULUS)
            ctx.set(dut.retired, retired % MODULUS)
            ctx.set(dut.start, start)
            # The fence waits for the placements issued up to ``settle`` + 1 cycles later.
            if started is not None and cycle == started + settle + 1:
                target = issued
            if target is not None and reached is None and retired >= target:
                reached = cycle
            *_, busy = await ctx.tick().sample(dut.busy)
            over = (reached is not None and cycle >= reached + 2
                    and cycle >= started + settle + 4)
            expected = started is not None and not over
            assert busy == expected, f"{cycle=} {started=} {target=} {reached=}"
            if over:
                fences += 1
                started = target = reached = None
            if start:
                # A start while the fence is busy restarts it.
                started, target, reached = cycle, None, None
        assert fences > 10

    simulate(dut, bench)


@pytest.mark.parametrize("behind", (0, 1, 40))
def test_the_fence_of_records_waits_for_those_that_came_and_then_while_they_move(behind):
    """``behind``: records that are under way; others come meanwhile, and do not count."""
    dut = RecordFence()
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def bench(ctx):
        for _ in range(behind):
            ctx.set(dut.came, 1)
            await ctx.tick()
        ctx.set(dut.came, 0)
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        await ctx.tick().repeat(dut.LATE + 2)
        under_way, passed, moved = behind, 0, 0
        for cycle in range(4000):
            came, moves = rng.random() < 0.5, rng.random() < 0.4
            passes = under_way > 0 and rng.random() < 0.3
            under_way += came - passes
            moved += moves and passed >= behind
            passed += passes
            for port, value in ((dut.came, came), (dut.passed, passes), (dut.moves, moves)):
                ctx.set(port, value)
            *_, busy = await ctx.tick().sample(dut.busy)
            # Some registers lie between the ports and the decision.
            if moved < dut.SETTLE:
                assert busy, f"{cycle=} {passed=} {moved=}"
            if moved > dut.SETTLE + 8:
                assert not busy, f"{cycle=} {passed=} {moved=}"
        assert moved > dut.SETTLE + 8

    simulate(dut, bench)


def test_an_idle_fence_is_not_busy():
    dut = Fence(4)

    async def bench(ctx):
        ctx.set(dut.issued, 9)
        for _ in range(20):
            assert not ctx.get(dut.busy)
            await ctx.tick()

    simulate(dut, bench)


@pytest.mark.parametrize("settle, kind, message", [
    ("4", TypeError, "Fence settle must be an integer, not '4'"),
    (True, TypeError, "Fence settle must be an integer, not True"),
    (-1, ValueError, "Fence settle must be 0 or more, not -1"),
])
def test_a_fence_that_cannot_be_is_refused(settle, kind, message):
    assert refused(message, Fence, settle, error=kind) == message


class Swept(wiring.Component):
    """Connects a table and the sweep that revokes in it; the host uses ``write``."""

    def __init__(self, entries):
        self.table = StagTable(entries)
        self.sweep = Sweep(entries)
        super().__init__({"write": wiring.In(self.table.write.signature.flip())})

    def elaborate(self, platform):
        m = Module()
        m.submodules.table, m.submodules.sweep = table, sweep = self.table, self.sweep
        m.d.comb += [
            table.index[0].eq(sweep.index),
            sweep.entry.eq(table.entry[0]),
            table.write.valid.eq(self.write.valid | sweep.revoke.valid),
            table.write.payload.eq(self.write.payload),
        ]
        with m.If(sweep.revoke.valid):
            m.d.comb += [table.write.payload.eq(0),
                         table.write.payload.index.eq(sweep.revoke.payload)]
        return m


@pytest.mark.parametrize("entries", (16, 128))
def test_a_sweep_revokes_what_is_bound_to_the_stream_and_nothing_else(entries):
    dut = Swept(entries)
    rng = random.Random(entries)
    held = {}

    async def bench(ctx):
        for index in range(entries):
            held[index] = {
                "valid": rng.random() < 0.8, "bound": rng.random() < 0.7,
                "owner": rng.choice((5, 5, 6, 0x0105, 0x8005)), "key": rng.getrandbits(8),
                "length": rng.getrandbits(64), "address": rng.getrandbits(64)}
        # The ends of the table, and two in a row.
        for index in (0, 1, entries - 1):
            held[index].update(valid=True, bound=True, owner=5)
        for index, entry in held.items():
            ctx.set(dut.write.valid, 1)
            ctx.set(dut.write.payload, {"index": index, "entry": entry})
            await ctx.tick()
        ctx.set(dut.write.valid, 0)
        await ctx.tick().repeat(5)
        for stream in (5, 6, 5, 0x0105, 7):
            want = [index for index, entry in held.items()
                    if entry["valid"] and entry["bound"] and entry["owner"] == stream]
            assert not ctx.get(dut.sweep.busy)
            ctx.set(dut.sweep.start, 1)
            ctx.set(dut.sweep.stream, stream)
            await ctx.tick()
            ctx.set(dut.sweep.start, 0)
            ctx.set(dut.sweep.stream, 6)
            got, cycles = [], 0
            while ctx.get(dut.sweep.busy):
                if ctx.get(dut.sweep.revoke.valid):
                    index = ctx.get(dut.sweep.revoke.payload)
                    assert cycles == index + 5
                    got.append(index)
                cycles += 1
                await ctx.tick()
            assert got == want, f"{stream=}"
            assert cycles == entries + (5 if entries - 1 in want else 4)
            for index in got:
                held[index]["valid"] = False
            for _ in range(10):
                assert not ctx.get(dut.sweep.revoke.valid)
                await ctx.tick()
        assert any(entry["valid"] for entry in held.values())

    simulate(dut, bench)
