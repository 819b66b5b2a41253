"""Windows and the order of delivery (RFC 5043 sections 5.2.1 and 10), against a dict."""

import gc
import random
import warnings
from collections import deque

import pytest
from amaranth.hdl import UnusedElaboratable
from amaranth.sim import Simulator
from ddp_rnic.hdl.ddp.order import Order
from ddp_rnic.hdl.ddp.window import Verdict, Window

#: Cycles from an item to its verdict, and from its being done to its record.
LATENCY, DELIVERY = 6, 8
MODULUS = 1 << 16


class Bench:
    """Drives an :class:`Order`; its records are (stream, session, DDP-SSN) in 32 bits."""

    def __init__(
        self, *, streams=4, window=16, slots=32, seed=0, give=1.0, finish=1.0, take=1.0, delay=0
    ):
        self.dut = Order(32, streams=streams, window=window, slots=slots)
        self.streams, self.window, self.slots = streams, window, slots
        self.rng = random.Random(seed)
        self.give, self.finish, self.take, self.delay = give, finish, take, delay
        self.offers = deque()  # items to be given: dicts, or None for an idle cycle
        self.asked = deque()  # those that wait for their verdict
        self.verdicts = []  # (cycle given, cycle, item, verdict)
        self.undone = deque()  # (cycle from which it may be done, ticket, record)
        self.done = []  # (cycle, item)
        self.records = []  # (cycle, stream, session, ssn)
        self.over = []
        self.closes = deque()
        self.cycle = 0

    def offer(self, stream, ssn, *, session=1, **more):
        item = {"stream": stream, "session": session, "ssn": ssn % MODULUS}
        self.offers.append({"verdict": Verdict.FRESH, "first": 0, "final": 0, **item, **more})

    async def step(self, ctx, cycles=1):
        dut, rng = self.dut, self.rng
        for _ in range(cycles):
            item = self.offers.popleft() if self.offers and rng.random() < self.give else None
            ctx.set(dut.i.valid, item is not None)
            if item is not None:
                ctx.set(dut.i.payload, item)
                self.asked.append((self.cycle, item))
            due = self.undone and self.undone[0][0] <= self.cycle and rng.random() < self.finish
            if not ctx.get(dut.done.valid) or self.moved:
                ctx.set(dut.done.valid, bool(due))
                if due:
                    _, ticket, record = self.undone[0]
                    ctx.set(dut.done.payload, {"ticket": ticket, "record": record})
            ctx.set(dut.close.valid, bool(self.closes))
            if self.closes:
                stream, session = self.closes[0]
                ctx.set(dut.close.payload, {"stream": stream, "session": session})
            ctx.set(dut.records.ready, rng.random() < self.take)
            ctx.set(dut.over.ready, rng.random() < self.take)
            ends = (
                dut.o.valid, dut.o.payload, dut.done.valid, dut.done.ready, dut.records.valid,
                dut.records.ready, dut.records.payload, dut.over.valid, dut.over.ready,
                dut.over.payload, dut.close.ready,
            )  # fmt: skip
            (
                *_, judged, judgement, offered, accepted, some, ready, record, over, over_ready,
                ended, closed,
            ) = await ctx.tick().sample(*ends)  # fmt: skip
            if judged:
                given, item = self.asked.popleft()
                verdict = judgement.verdict
                assert self.cycle - given == LATENCY, f"cycle {self.cycle}"
                self.verdicts.append((given, self.cycle, item, verdict))
                ticket = {name: getattr(judgement.ticket, name) for name in (
                    "stream", "session", "ssn", "first", "final", "parity", "express")}  # fmt: skip
                assert all(ticket[k] == item[k] for k in ("stream", "session", "ssn"))
                if verdict == Verdict.FRESH:
                    number = item["stream"] << 20 | item["session"] << 16 | item["ssn"]
                    self.undone.append((self.cycle + self.delay, ticket, number))
            self.moved = offered and accepted
            if self.moved:
                self.done.append((self.cycle, self.undone.popleft()[2]))
            if some and ready:
                self.records.append((self.cycle, record >> 20, record >> 16 & 15, record & 0xFFFF))
            if over and over_ready:
                self.over.append((ended.stream, ended.session, ended.excess))
            if closed and self.closes:
                self.closes.popleft()
            self.cycle += 1

    moved = True

    async def settle(self, ctx, limit=5000):
        """Until all that was offered is judged and done, and nothing moves for a while."""
        quiet = 0
        while quiet < 60 + self.delay:
            before = len(self.verdicts), len(self.records), len(self.done)
            await self.step(ctx)
            busy = self.offers or self.undone or self.closes
            same = before == (len(self.verdicts), len(self.records), len(self.done))
            quiet = quiet + 1 if same and not busy else 0
            limit -= 1
            assert limit, f"cycle {self.cycle}: not done"

    def run(self, testbench):
        simulator = Simulator(self.dut)
        simulator.add_clock(1e-8)

        async def main(ctx):
            await testbench(ctx)
            await self.settle(ctx)
            self.free = ctx.get(self.dut.free)

        simulator.add_testbench(main)
        simulator.run()
        return self

    def delivered(self, stream, session=1):
        return [record[3] for record in self.records if record[1:3] == (stream, session)]

    def verdict(self):
        return [verdict for *_, verdict in self.verdicts]


def run_items(items, **options):
    """Verdicts and records of (stream, ssn) that come one a cycle; DDP-SSN 0 opens a stream."""
    bench = Bench(**options)

    async def testbench(ctx):
        for k, item in enumerate(items):
            bench.offer(*item, first=item[1] == 0 and item not in items[:k])

    return bench.run(testbench)


def test_items_in_order_leave_one_a_cycle():
    bench = run_items([(2, ssn) for ssn in range(40)], window=32, slots=32)
    assert bench.verdict() == [Verdict.FRESH] * 40
    assert bench.delivered(2) == list(range(40))
    first, last = bench.records[0][0], bench.records[-1][0]
    assert last - first == 39
    assert first - bench.done[0][0] == DELIVERY


def test_streams_that_take_turns_leave_one_a_cycle():
    items = [(stream, ssn) for ssn in range(15) for stream in (0, 3, 1)]
    bench = run_items(items, slots=64)
    assert bench.verdict() == [Verdict.FRESH] * 45
    assert [record[1::2] for record in bench.records] == items
    assert bench.records[-1][0] - bench.records[0][0] == 44


@pytest.mark.parametrize("gap", range(8))
def test_a_repeated_item_is_a_duplicate_at_any_distance(gap):
    others = [(3, ssn) for ssn in range(gap)]
    again = [(1, 5), (1, 1), (1, 0), (1, 65535)]
    bench = run_items([(1, 0), (1, 1), (1, 5), *others, *again], delay=3)
    fresh = [verdict == Verdict.FRESH for verdict in bench.verdict()]
    assert fresh == [True] * (3 + gap) + [False] * 4
    assert bench.verdict()[-4:] == [Verdict.DUPLICATE] * 4


@pytest.mark.parametrize("delay", (0, 1, 5, 30))
def test_what_is_ahead_of_the_window_is_outside(delay):
    bench = run_items([(1, 0), (1, 16), (1, 17), (1, 32767), (1, 15)], delay=delay)
    expected = [Verdict.OUTSIDE] * 3 + [Verdict.FRESH]
    assert bench.verdict()[1:] == expected


def test_refused_items_are_illegal_unless_they_came_before():
    bench = Bench()

    async def testbench(ctx):
        for ssn in range(4):
            bench.offer(1, ssn, first=ssn == 0)
        await bench.settle(ctx)
        for ssn in (3, 0, 4, 2, 40, 65000):
            bench.offer(1, ssn, verdict=Verdict.REFUSED)
        for verdict in (Verdict.SILENT, Verdict.DUPLICATE, Verdict.ILLEGAL):
            bench.offer(1, 4, verdict=verdict)
        bench.offer(1, 4)

    bench.run(testbench)
    came, illegal = Verdict.DUPLICATE, Verdict.ILLEGAL
    assert bench.verdict()[4:10] == [came, came, illegal, came, illegal, came]
    passed = [Verdict.SILENT, Verdict.DUPLICATE, Verdict.ILLEGAL, Verdict.FRESH]
    assert bench.verdict()[10:] == passed


def test_a_run_behind_a_gap_leaves_in_every_second_cycle_while_others_go_on():
    bench = Bench(window=32, slots=64)

    async def testbench(ctx):
        bench.offer(1, 0, first=1)
        for ssn in range(2, 22):
            bench.offer(1, ssn)
        bench.offer(2, 0, first=1)
        await bench.settle(ctx)
        bench.offer(1, 1)
        for ssn in range(1, 31):
            bench.offer(2, ssn)

    bench.run(testbench)
    assert bench.delivered(1) == list(range(22))
    assert bench.delivered(2) == list(range(31))
    times = [cycle for cycle, stream, _, ssn in bench.records if stream == 1 and ssn >= 2]
    assert {b - a for a, b in zip(times, times[1:], strict=False)} == {2}
    others = [cycle for cycle, stream, *_ in bench.records if stream == 2]
    assert sum(times[0] <= cycle <= times[-1] for cycle in others) >= 12


@pytest.mark.parametrize(
    ("give", "finish", "take", "delay"),
    [(1, 1, 1, 0), (1, 1, 1, 9), (0.7, 0.7, 0.7, 4), (1, 0.5, 1, 20), (1, 1, 0.4, 2)],
)
@pytest.mark.parametrize("slots", (16, 64))
def test_all_leave_in_order_and_once(give, finish, take, delay, slots):
    """Shuffled, repeated, lost items of streams that meet in their places; what was OUTSIDE comes
    again, as a sender would have it."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    bench = Bench(slots=slots, seed=seed, give=give, finish=finish, take=take, delay=delay)
    rng = random.Random(seed)
    total = 60

    async def testbench(ctx):
        for stream in range(4):
            bench.offer(stream, 0, first=1)
        base = dict.fromkeys(range(4), 0)
        taken = set()
        seen = 0
        for _ in range(2000):
            for *_, item, verdict in bench.verdicts[seen:]:
                key = item["stream"], item["ssn"]
                assert (verdict == Verdict.FRESH) <= (key not in taken), f"{key} was taken twice"
                assert (verdict == Verdict.DUPLICATE) <= (key in taken), f"{key} was not taken"
                if verdict == Verdict.FRESH:
                    taken.add(key)
            seen = len(bench.verdicts)
            for stream in base:
                while (stream, base[stream]) in taken:
                    base[stream] += 1
            if all(at >= total for at in base.values()):
                break
            for _ in range(rng.randrange(8) if len(bench.offers) < 8 else 0):
                stream = rng.randrange(4)
                ahead = rng.choice((0, 0, 1, 2, rng.randrange(20), -1 - rng.randrange(9)))
                for k in range(rng.choice((1, 1, 6))):
                    ssn = base[stream] + ahead + k
                    if 1 <= ssn < total and rng.random() < 0.8:
                        bench.offer(stream, ssn)
            await bench.step(ctx, rng.choice((1, 5, 12)))
        assert all(at >= total for at in base.values()), base

    bench.run(testbench)
    for stream in range(4):
        assert bench.delivered(stream) == list(range(total)), f"stream {stream}"
    assert bench.free == slots


def test_ddp_ssns_wrap():
    """RFC 5043 section 10: an order among 16-bit numbers that are less than 32768 apart."""
    bench = Bench(delay=4)
    start = MODULUS - 5

    async def testbench(ctx):
        bench.offer(1, start, first=1)
        await bench.settle(ctx)
        for ssn in (2, 1, 4, 3, 1, 6, 7, 16, 17, 9, 8, 5, 0, start - 10):
            bench.offer(1, start + ssn)

    bench.run(testbench)
    assert bench.delivered(1) == [(start + k) % MODULUS for k in range(10)]
    verdicts = [verdict.name for verdict in bench.verdict()[1:]]
    assert verdicts == (
        ["FRESH"] * 4 + ["DUPLICATE"] + ["FRESH"] * 3 + ["OUTSIDE"] + ["FRESH"] * 3
        + ["DUPLICATE"] * 2
    )  # fmt: skip


def test_one_stream_cannot_hold_up_another_one():
    """Stream 0 fills all places and leaves its gap; the others go on, item by item."""
    bench = Bench(streams=4, window=16, slots=16, delay=5)

    async def testbench(ctx):
        for stream in range(4):
            bench.offer(stream, 0, first=1)
        await bench.settle(ctx)
        for ssn in range(2, 17):
            bench.offer(0, ssn)
        for ssn in range(1, 40):
            for _ in range(2):
                bench.offer(3, ssn)
            await bench.settle(ctx)

    bench.run(testbench)
    assert bench.delivered(0) == [0]
    assert bench.delivered(3) == list(range(40))
    of_3 = [verdict for *_, item, verdict in bench.verdicts if item["stream"] == 3][1:]
    assert of_3 == [Verdict.FRESH, Verdict.DUPLICATE] * 39


def test_a_session_takes_nothing_from_the_one_before():
    bench = Bench(window=16, slots=32)

    async def testbench(ctx):
        for session in (1, 2, 3):
            for ssn in (0, 1, 2, 4, 5, 9):
                bench.offer(1, ssn, session=session, first=ssn == 0)
            await bench.settle(ctx)
            bench.closes.append((1, session))
            await bench.step(ctx, 600)

    bench.run(testbench)
    assert bench.verdict() == [Verdict.FRESH] * 18
    assert bench.free == 32
    for session in (1, 2, 3):
        assert bench.delivered(1, session) == [0, 1, 2]


def test_what_waits_in_a_closed_session_is_dropped_and_its_places_are_freed():
    bench = Bench(window=16, slots=16, delay=3)
    free = []

    async def testbench(ctx):
        for ssn in (0, 2, 3, 4):
            bench.offer(1, ssn, first=ssn == 0)
        await bench.settle(ctx)
        free.append(ctx.get(bench.dut.free))
        bench.closes.append((1, 1))
        await bench.settle(ctx)
        bench.offer(1, 1)  # it was on its way
        await bench.step(ctx, 600)
        free.append(ctx.get(bench.dut.free))

    bench.run(testbench)
    assert bench.delivered(1) == [0]
    assert free == [13, 16] and bench.over == []


@pytest.mark.parametrize("ssns", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (1, 3, 2)])
def test_the_final_item_is_told_in_its_order(ssns):
    bench = Bench()

    async def testbench(ctx):
        for ssn in (0, *ssns):
            bench.offer(1, ssn, first=ssn == 0, final=ssn == 3)

    bench.run(testbench)
    assert bench.delivered(1) == [0, 1, 2, 3]
    assert bench.over == [(1, 1, 0)]


@pytest.mark.parametrize("ssns", [(1, 2, 3), (3, 1, 2), (2, 3, 1), (3, 2, 1), (1, 3, 2)])
@pytest.mark.parametrize("pause", (0, 40))
def test_what_follows_the_final_item_is_too_much(ssns, pause):
    bench = Bench()

    async def testbench(ctx):
        for ssn in (0, *ssns):
            bench.offer(1, ssn, first=ssn == 0, final=ssn == 2)
            await bench.step(ctx, pause)

    bench.run(testbench)
    assert bench.delivered(1) == [0, 1, 2]
    assert bench.over == [(1, 1, 0), (1, 1, 1)]


def test_all_that_is_behind_the_final_item_is_told_however_late_it_is_heard():
    bench = Bench(window=32, slots=32)
    free = []

    async def testbench(ctx):
        for ssn in (0, *range(3, 30)):
            bench.offer(1, ssn, first=ssn == 0)
        await bench.settle(ctx)
        bench.take = 0
        bench.offer(1, 1)
        bench.offer(1, 2, final=1)
        await bench.step(ctx, 1000)  # twice round all places
        free.append(ctx.get(bench.dut.free))
        bench.take = 1
        await bench.step(ctx, 1000)

    bench.run(testbench)
    assert bench.over == [(1, 1, 0)] + [(1, 1, 1)] * 27
    assert 5 < free[0] < 32 == bench.free  # as many as there is room to tell of


def test_the_host_sees_what_comes_next():
    bench = Bench()

    async def testbench(ctx):
        for ssn in (0, 1, 2, 5):
            bench.offer(3, ssn, first=ssn == 0)
        await bench.settle(ctx)
        ctx.set(bench.dut.look, 3)
        await bench.step(ctx, 3)
        assert ctx.get(bench.dut.next) == 3
        assert ctx.get(bench.dut.free) == 31

    bench.run(testbench)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"streams": 3}, ValueError, "Window streams must be a power of two from 2 to 4096, not 3"),
        ({"window": "a"}, TypeError, "Window window must be an integer, not 'a'"),
        ({"window": 2048}, ValueError, "slots must be a power of two from 2048 to 32768, not 1024"),
    ],
)
def test_parameters_are_checked(options, error, message):
    with warnings.catch_warnings():
        # What was refused is never used; it goes here and now.
        warnings.simplefilter("ignore", UnusedElaboratable)
        with pytest.raises(error) as refusal:
            Window(**options)
        told = str(refusal.value)
        del refusal
        gc.collect()
    assert message in told
