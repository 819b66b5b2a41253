"""Tests windows and delivery in order (RFC 5043 sections 5.2.1, 6 and 10) against a dict."""

import random
from collections import deque

import pytest
from amaranth.hdl import Value
from ddp_rnic.hdl.ddp.item import Verdict
from ddp_rnic.hdl.lib.testing import decoded, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.sctp.order import Order
from ddp_rnic.hdl.sctp.window import Window
from ddp_rnic.hdl.spec.sctp import Reason

#: Cycles from an item to its verdict, and from its completion to its record.
LATENCY, DELIVERY = 7, 8
MODULUS = 1 << 16
FRESH, DUPLICATE, OUTSIDE, ILLEGAL, SILENT = list(Verdict)[:5]


class Bench:
    """Drives an :class:`Order`; its records are (stream, DDP-SSN) in 32 bits."""

    def __init__(
        self, *, streams=4, window=16, seed=0, give=1.0, finish=1.0, take=1.0, delay=0
    ):
        self.dut = shared(Order, 32, streams=streams, window=window)
        self.streams, self.window = streams, window
        self.rng = random.Random(seed)
        self.give, self.finish, self.take, self.delay = give, finish, take, delay
        self.offers = deque()  # items to be input: dicts, or None for an idle cycle
        self.asked = deque()  # items that wait for their verdict
        self.verdicts = []  # (cycle of input, cycle, item, verdict)
        self.reasons = []  # (stream, reason) of items that abort
        self.undone = deque()  # (cycle from which it may be done, ticket, record)
        self.done = []  # (cycle, item)
        self.records = []  # (cycle, stream, ssn)
        self.over = []
        self.closes = deque()
        self.cycle = 0

    def offer(self, stream, ssn, *, tsn=None, **more):
        """Offers an item; by default its TSN is its DDP-SSN, so that a repetition has the same."""
        item = {"stream": stream, "ssn": ssn % MODULUS, "tsn": ssn if tsn is None else tsn}
        self.offers.append({
            "verdict": FRESH, "segment": 1, "final": 0, "malformed": 0, "life": 0, **item,
            **more})  # fmt: skip

    def close(self, stream, *, opens=0, clears=0):
        self.closes.append({"stream": stream, "opens": opens, "clears": clears})

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
                ctx.set(dut.close.payload, self.closes[0])
            ctx.set(dut.records.ready, rng.random() < self.take)
            ctx.set(dut.over.ready, rng.random() < self.take)
            ends = (
                dut.o.valid, Value.cast(dut.o.payload), dut.done.valid, dut.done.ready,
                dut.records.valid, dut.records.ready, dut.records.payload, dut.over.valid,
                dut.over.ready, dut.over.payload, dut.close.ready,
            )  # fmt: skip
            (
                *_, judged, judgement, offered, accepted, some, ready, record, over, over_ready,
                ended, closed,
            ) = await ctx.tick().sample(*ends)  # fmt: skip
            if judged:
                given, item = self.asked.popleft()
                judgement = decoded(dut.o, judgement)
                verdict = judgement.verdict
                assert self.cycle - given == LATENCY, f"cycle {self.cycle}"
                self.verdicts.append((given, self.cycle, item, verdict))
                assert judgement.aborts == (verdict == ILLEGAL)
                if judgement.aborts:
                    self.reasons.append((item["stream"], judgement.reason))
                ticket = {name: getattr(judgement.ticket, name) for name in (
                    "stream", "ssn", "final", "fills")}  # fmt: skip
                assert all(ticket[k] == item[k] for k in ("stream", "ssn", "final"))
                if verdict == FRESH:
                    number = item["stream"] << 16 | item["ssn"]
                    self.undone.append((self.cycle + self.delay, ticket, number))
            self.moved = offered and accepted
            if self.moved:
                self.done.append((self.cycle, self.undone.popleft()[2]))
            if some and ready:
                self.records.append((self.cycle, record >> 16, record & 0xFFFF))
            if over and over_ready:
                self.over.append(ended)
            if closed and self.closes:
                self.closes.popleft()
            self.cycle += 1

    moved = True

    async def settle(self, ctx, limit=5000):
        """Waits until every offered item is judged and done, and all has been quiet for a while."""
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
        async def main(ctx):
            await testbench(ctx)
            await self.settle(ctx)
            assert ctx.get(self.dut.idle), "something is on its way"

        simulate(self.dut, main)
        return self

    def delivered(self, stream):
        return [record[2] for record in self.records if record[1] == stream]

    def verdict(self):
        return [verdict for *_, verdict in self.verdicts]


def run_items(items, **options):
    """Returns verdicts and records of (stream, ssn), input at one per cycle."""
    bench = Bench(**options)

    async def testbench(ctx):
        for item in items:
            bench.offer(*item)

    return bench.run(testbench)


@pytest.mark.parametrize("window", (4, 16))
@pytest.mark.parametrize("delay", (0, 50))
def test_items_in_order_leave_one_per_cycle_however_long_they_take(window, delay):
    bench = run_items([(2, ssn) for ssn in range(90)], window=window, delay=delay)
    assert bench.verdict() == [FRESH] * 90
    assert bench.delivered(2) == list(range(90))
    first, last = bench.records[0][0], bench.records[-1][0]
    assert last - first == 89
    assert first - bench.done[0][0] == DELIVERY


def test_streams_that_take_turns_leave_one_per_cycle():
    items = [(stream, ssn) for ssn in range(15) for stream in (0, 3, 1)]
    bench = run_items(items)
    assert bench.verdict() == [FRESH] * 45
    assert [record[1:] for record in bench.records] == items
    assert bench.records[-1][0] - bench.records[0][0] == 44


@pytest.mark.parametrize("gap", range(10))
def test_a_repeated_item_is_a_duplicate_at_any_distance(gap):
    others = [(3, ssn) for ssn in range(gap)]
    again = [(1, 5), (1, 1), (1, 0), (1, 65535)]
    bench = run_items([(1, 0), (1, 1), (1, 5), *others, *again], delay=3)
    fresh = [verdict == FRESH for verdict in bench.verdict()]
    assert fresh == [True] * (3 + gap) + [False] * 4
    assert bench.verdict()[-4:] == [DUPLICATE] * 4


@pytest.mark.parametrize("gap", range(10))
@pytest.mark.parametrize("ssn", (0, 1, 5))
def test_another_item_with_a_ddp_ssn_that_was_used_ends_the_session(gap, ssn):
    """RFC 5043 section 6: the DDP-SSNs of a session "MUST NOT have any gaps", and section 6.2 has
    "increasing DDP-SSNs"; a repetition by the network has the same TSN."""
    bench = Bench()

    async def testbench(ctx):
        for each in (0, 1, 5):
            bench.offer(1, each)
        for each in range(gap):
            bench.offer(3, each)
        bench.offer(1, ssn, tsn=77)
        bench.offer(1, 2)
        bench.offer(1, ssn)
        bench.offer(3, gap)

    bench.run(testbench)
    assert bench.verdict()[3 + gap :] == [ILLEGAL, SILENT, SILENT, FRESH]
    assert bench.reasons == [(1, Reason.SEQUENCE)]


@pytest.mark.parametrize("segment", (0, 1))
def test_a_ddp_ssn_older_than_the_window_is_a_duplicate_if_a_segment_has_it(segment):
    """The host compares the TSN of an older Segment. A control message with a DDP-SSN that was used
    cannot be a repetition: no item would have followed it."""
    bench = Bench()

    async def testbench(ctx):
        for ssn in range(40):
            bench.offer(1, ssn)
        await bench.step(ctx, 100)
        bench.offer(1, 24, segment=segment)
        bench.offer(1, 23, segment=segment, final=not segment)

    bench.run(testbench)
    assert bench.verdict()[40:] == [DUPLICATE, DUPLICATE if segment else ILLEGAL]


@pytest.mark.parametrize("delay", (0, 1, 5, 30))
def test_what_is_ahead_of_the_window_is_outside(delay):
    bench = run_items([(1, 0), (1, 17), (1, 18), (1, 32767), (1, 16), (1, 15)], delay=delay)
    assert bench.verdict()[1:] == [OUTSIDE] * 3 + [FRESH] * 2


def test_refused_items_are_illegal_unless_they_came_before():
    bench = Bench()
    refused = Verdict.REFUSED

    async def testbench(ctx):
        for stream in range(4):
            for ssn in range(4):
                bench.offer(stream, ssn)
        await bench.settle(ctx)
        for ssn in (3, 0, 2, 4, 4, 3):
            bench.offer(1, ssn, verdict=refused)
        for verdict in (SILENT, DUPLICATE, Verdict.HELD, ILLEGAL, FRESH):
            bench.offer(1, 4, verdict=verdict)
        # Its session has handled that.
        bench.offer(1, 4, life=1)
        bench.offer(2, 40, verdict=refused)
        bench.offer(3, 4, verdict=Verdict.HELD)
        bench.offer(3, 4, verdict=ILLEGAL, malformed=1)

    bench.run(testbench)
    assert bench.verdict()[16:22] == [DUPLICATE] * 3 + [ILLEGAL, SILENT, SILENT]
    assert bench.verdict()[22:27] == [SILENT, DUPLICATE] + [SILENT] * 3
    assert bench.verdict()[27:] == [FRESH, ILLEGAL, Verdict.HELD, ILLEGAL]
    reasons = [Reason.SEQUENCE, Reason.SEQUENCE, Reason.MALFORMED]
    assert bench.reasons == list(zip((1, 2, 3), reasons, strict=True))


def test_a_run_after_a_gap_leaves_in_every_second_cycle_while_others_go_on():
    bench = Bench(window=32)

    async def testbench(ctx):
        bench.offer(1, 0)
        for ssn in range(2, 22):
            bench.offer(1, ssn)
        bench.offer(2, 0)
        await bench.settle(ctx)
        bench.offer(1, 1)
        for ssn in range(1, 51):
            bench.offer(2, ssn)

    bench.run(testbench)
    assert bench.delivered(1) == list(range(22))
    assert bench.delivered(2) == list(range(51))
    times = [cycle for cycle, stream, ssn in bench.records if stream == 1 and ssn >= 2]
    assert {b - a for a, b in zip(times, times[1:], strict=False)} == {2}
    others = [cycle for cycle, stream, *_ in bench.records if stream == 2]
    assert sum(times[0] <= cycle <= times[-1] for cycle in others) >= 12


@pytest.mark.parametrize("window", (4, 8))
def test_what_follows_a_filled_gap_in_the_next_cycles_waits_until_those_before_it_have_left(window):
    bench = Bench(window=window)

    async def testbench(ctx):
        for base in range(0, 400, 40):
            for ssn in (*range(1, window), 0, *range(window, 40)):
                bench.offer(1, base + ssn)

    bench.run(testbench)
    assert set(bench.verdict()) == {FRESH}
    assert bench.delivered(1) == list(range(400))


@pytest.mark.parametrize(
    ("window", "give", "finish", "take", "delay"),
    [
        (4, 0.7, 0.7, 0.7, 4), (16, 1, 1, 1, 0),
        *long(
            (4, 1, 1, 1, 0), (16, 0.7, 0.7, 0.7, 4),
            *((window, *gaps) for window in (4, 16)
              for gaps in ((1, 1, 1, 9), (1, 0.5, 1, 20), (1, 1, 0.4, 2))),
        ),
    ],
)
def test_all_leave_in_order_and_once(give, finish, take, delay, window):
    """Items are shuffled, repeated and lost; an OUTSIDE item is sent again, as by a real sender.
    The next item of a stream in the order of arrival is always taken."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    bench = Bench(window=window, seed=seed, give=give, finish=finish, take=take, delay=delay)
    rng = random.Random(seed)
    total = 90

    async def testbench(ctx):
        base = dict.fromkeys(range(4), 0)  # the items taken when each was judged
        taken = set()
        seen = 0

        def judge():
            nonlocal seen
            for *_, item, verdict in bench.verdicts[seen:]:
                key = stream, ssn = item["stream"], item["ssn"]
                assert (verdict == FRESH) <= (key not in taken), f"{key} was taken twice"
                assert (verdict == DUPLICATE) == (key in taken), f"{key} was not taken"
                assert verdict == FRESH or ssn != base[stream], f"{key} came in order"
                assert verdict != FRESH or ssn <= base[stream] + window, f"{key} is far ahead"
                if verdict == FRESH:
                    taken.add(key)
                while (stream, base[stream]) in taken:
                    base[stream] += 1
            seen = len(bench.verdicts)

        for _ in range(4000):
            judge()
            if all(at >= total for at in base.values()):
                break
            for _ in range(rng.randrange(8) if len(bench.offers) < 8 else 0):
                stream = rng.randrange(4)
                ahead = rng.choice((0, 0, 1, 2, rng.randrange(20), -1 - rng.randrange(9)))
                for k in range(rng.choice((1, 1, 6))):
                    ssn = base[stream] + ahead + k
                    if 0 <= ssn < total and rng.random() < 0.8:
                        bench.offer(stream, ssn)
            await bench.step(ctx, rng.choice((1, 5, 12)))
        assert all(at >= total for at in base.values()), base
        await bench.settle(ctx)
        judge()

    bench.run(testbench)
    for stream in range(4):
        assert bench.delivered(stream) == list(range(total)), f"stream {stream}"


@pytest.mark.parametrize("window", (*long(4), 16))
def test_what_is_shuffled_within_the_window_is_never_outside(window):
    """Each item is less than the window ahead of the first missing one. A gap is found a number of
    cycles after the one before was filled: one for each item between them, and a few more."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench = Bench(window=window, delay=30)
    total = 60

    async def testbench(ctx):
        left = [list(range(total)) for _ in range(2)]
        while any(left):
            for stream in range(2):
                ssns = left[stream]
                if ssns:
                    ahead = [ssn for ssn in ssns if ssn < ssns[0] + window]
                    ssn = rng.choice((ahead[-1], rng.choice(ahead)))
                    ssns.remove(ssn)
                    bench.offer(stream, ssn)
            bench.offers.extend([None] * (26 + window))
        while bench.offers:
            await bench.step(ctx)

    bench.run(testbench)
    assert bench.verdict() == [FRESH] * 2 * total
    for stream in range(2):
        assert bench.delivered(stream) == list(range(total)), f"stream {stream}"


@pytest.mark.parametrize("window", [4, 16, *long(64)])
def test_what_comes_backwards_in_runs_is_never_outside(window):
    """Seven cycles apart: the last item of a run leaves no gap, and the next run begins."""
    bench = Bench(window=window, delay=30)
    ssns = [base + k for base in range(0, 5 * window, window) for k in reversed(range(window))]

    async def testbench(ctx):
        for ssn in ssns:
            bench.offer(1, ssn)
            bench.offers.extend([None] * 6)

    bench.run(testbench)
    assert bench.verdict() == [FRESH] * 5 * window
    assert bench.delivered(1) == list(range(5 * window))


def test_an_item_after_one_that_was_taken_is_taken_before_the_next_gap_is_found():
    """RFC 5043 section 10: items in order are never refused. 5 is the next in order, and 6 was
    taken in the cycle before."""
    items = [(1, 2), (1, 1), (1, 0), (1, 4), (2, 0), (2, 1), (1, 3), (2, 2), (1, 6), (1, 5)]
    bench = run_items(items, window=4)
    assert set(bench.verdict()) == {FRESH}
    assert bench.delivered(1) == list(range(7))


@pytest.mark.parametrize("wait", range(9, 30))
def test_a_gap_that_is_found_as_its_stream_is_cleared_is_forgotten(wait):
    bench = Bench(window=4)

    async def testbench(ctx):
        for ssn in (1, 2, 0):
            bench.offer(1, ssn)
        await bench.step(ctx, 3 + wait)
        bench.close(1, opens=1, clears=1)
        await bench.settle(ctx)
        for ssn in range(4):
            bench.offer(1, ssn, tsn=100 + ssn)

    bench.run(testbench)
    assert set(bench.verdict()) == {FRESH}
    assert bench.delivered(1)[-4:] == list(range(4))


@pytest.mark.long
def test_ddp_ssns_wrap():
    """RFC 5043 section 10: an order of 16-bit numbers that are less than 32768 apart."""
    bench = Bench(delay=4)
    start = MODULUS - 5

    async def testbench(ctx):
        for ssn in range(start + 1):
            bench.offer(1, ssn)
        while bench.offers:
            await bench.step(ctx)
        await bench.settle(ctx)
        for ssn in (2, 1, 4, 3, 1, 6, 7, 21, 22, 9, 8, 5, 0, -10):
            bench.offer(1, start + ssn)
            bench.offers.extend([None] * 30)

    bench.run(testbench)
    delivered = bench.delivered(1)[start:]
    assert delivered == [(start + k) % MODULUS for k in range(10)]
    verdicts = [verdict.name for verdict in bench.verdict()[start + 1 :]]
    assert verdicts == (
        ["FRESH"] * 4 + ["DUPLICATE"] + ["FRESH"] * 2 + ["OUTSIDE"] * 2 + ["FRESH"] * 3
        + ["DUPLICATE"] * 2
    )  # fmt: skip


def test_one_stream_cannot_hold_up_another_one():
    """Stream 0 fills its slots and never fills its gap; the others continue, item by item."""
    bench = Bench(streams=4, window=16, delay=5)

    async def testbench(ctx):
        for stream in range(4):
            bench.offer(stream, 0)
        await bench.settle(ctx)
        for ssn in range(2, 17):
            bench.offer(0, ssn)
        for ssn in range(1, 20):
            for _ in range(2):
                bench.offer(3, ssn)
            await bench.settle(ctx)

    bench.run(testbench)
    assert bench.delivered(0) == [0]
    assert bench.delivered(3) == list(range(20))
    of_3 = [verdict for *_, item, verdict in bench.verdicts if item["stream"] == 3][1:]
    assert of_3 == [FRESH, DUPLICATE] * 19


@pytest.mark.parametrize("sessions", [3, *long(18)])
def test_nothing_that_waited_in_a_session_is_delivered_in_a_later_one(sessions):
    """For any number of sessions on a stream: each leaves items that wait for a gap."""
    bench = Bench()

    async def testbench(ctx):
        for session in range(sessions):
            for ssn in (0, 1, 2, 4, 5 + session % 3, 9 + session % 5):
                bench.offer(1, ssn, tsn=100 * session + ssn)
            await bench.settle(ctx)
            bench.close(1)
            await bench.settle(ctx)
            bench.close(1, opens=1, clears=1)
            await bench.settle(ctx)
        for ssn in range(16):
            bench.offer(1, ssn)

    bench.run(testbench)
    assert set(bench.verdict()) == {FRESH}
    assert bench.delivered(1) == [0, 1, 2] * sessions + list(range(16))


def test_what_waits_in_a_closed_session_or_is_on_its_way_is_dropped():
    bench = Bench(delay=30)

    async def testbench(ctx):
        for ssn in (0, 2, 3, 4):
            bench.offer(1, ssn)
        await bench.settle(ctx)
        bench.offer(1, 1)
        bench.offer(2, 0)
        await bench.step(ctx, 10)
        bench.close(1)
        await bench.step(ctx, 3)

    bench.run(testbench)
    assert bench.delivered(1) == [0] and bench.delivered(2) == [0]
    assert bench.over == []


@pytest.mark.parametrize("ssns", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (1, 3, 2)])
def test_the_final_item_is_reported_in_its_order(ssns):
    bench = Bench()

    async def testbench(ctx):
        for ssn in (0, *ssns):
            bench.offer(1, ssn, final=ssn == 3, segment=ssn != 3)

    bench.run(testbench)
    assert bench.delivered(1) == [0, 1, 2, 3]
    assert bench.over == [1]


@pytest.mark.parametrize("ssns", [(1, 2, 3), (3, 1, 2), (2, 3, 1), (3, 2, 1), (1, 3, 2)])
@pytest.mark.parametrize("pause", (0, 1, 4, 5, 6, 40))
def test_what_follows_the_final_item_is_illegal_in_whatever_order_they_come(ssns, pause):
    """RFC 5043 section 6.2: "The final User Data Chunk for each side MAY be a DDP Stream
    Terminate": the Terminate is DDP-SSN 2, and 3 must not be."""
    bench = Bench()

    async def testbench(ctx):
        for ssn in (0, *ssns):
            bench.offer(1, ssn, final=ssn == 2, segment=ssn != 2)
            bench.offers.extend([None] * pause)

    bench.run(testbench)
    # Of the Terminate and the item after it, the later to arrive is illegal, and all items after.
    at = 1 + max(ssns.index(2), ssns.index(3))
    assert bench.verdict() == [FRESH] * at + [ILLEGAL] + [SILENT] * (3 - at)
    assert bench.reasons == [(1, Reason.SEQUENCE)]
    taken = {0, *ssns[: at - 1]}
    following = next(ssn for ssn in range(5) if ssn not in taken)
    assert bench.delivered(1) == list(range(following))
    assert bench.over == [1] * (following == 3 and 3 not in taken)


def test_the_host_sees_what_comes_next():
    bench = Bench()

    async def testbench(ctx):
        for ssn in (0, 1, 2, 5):
            bench.offer(3, ssn)
        await bench.settle(ctx)
        ctx.set(bench.dut.look, 3)
        ctx.set(bench.dut.asks, 3)
        await bench.step(ctx, 4)
        assert ctx.get(bench.dut.next) == 3
        assert not ctx.get(bench.dut.whole)
        for ssn in (4, 3):
            bench.offer(3, ssn)
        await bench.settle(ctx)
        assert ctx.get(bench.dut.next) == 6
        assert ctx.get(bench.dut.whole)

    bench.run(testbench)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"streams": 3}, ValueError, "Window streams must be a power of two from 2 to 4096, not 3"),
        ({"window": "a"}, TypeError, "Window window must be an integer, not 'a'"),
        ({"window": 2}, ValueError, "window must be a power of two from 4 to 16384, not 2"),
    ],
)
def test_parameters_are_checked(options, error, message):
    refused(message, Window, error=error, **options)
