"""Tests the legal sequences of RFC 5043 section 6 and RFC 6581 section 7 against the golden model.
"""

import random
import struct
from collections import deque

import pytest
from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.ddp.item import Ticket, Verdict
from ddp_rnic.hdl.lib.testing import decoded, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.sctp.order import Order
from ddp_rnic.hdl.sctp.session import (
    Answer,
    Command,
    Function,
    Item,
    Message,
    Reason,
    Session,
    SessionEvent,
    State,
)
from ddp_rnic.hdl.sctp.window import Judged, Window
from ddp_rnic.sim.model import sctp

STREAMS, ASSOCIATIONS, WINDOW = 4, 2, 16
#: Cycles after which nothing happens any more.
QUIET = 100
LATENCY = Session.LATENCY + Window.LATENCY
SEGMENT, INITIATE, ACCEPT, REJECT, TERMINATE, *ENHANCED, INVALID = Message
ENHANCED_INITIATE, ENHANCED_ACCEPT, ENHANCED_REJECT = ENHANCED
INITIATES, ACCEPTS = (INITIATE, ENHANCED_INITIATE), (ACCEPT, ENHANCED_ACCEPT)
#: The answers that fit each Initiate.
ANSWERS = {
    INITIATE: (ACCEPT, REJECT, TERMINATE),
    ENHANCED_INITIATE: (ENHANCED_ACCEPT, ENHANCED_REJECT, REJECT, TERMINATE),
}


class Both(wiring.Component):
    """Connects a session and its order. A record identifies its item."""

    def __init__(self, pending):
        self.session = Session(streams=STREAMS, associations=ASSOCIATIONS, pending=pending)
        self.order = Order(32, streams=STREAMS, window=WINDOW)
        super().__init__({
            "i": In(stream.Signature(Item(STREAMS, ASSOCIATIONS))),
            "o": Out(stream.Signature(Judged(STREAMS), always_ready=True)),
            "done": In(stream.Signature(data.StructLayout({
                "ticket": Ticket(STREAMS), "record": 32}))),
            "records": Out(stream.Signature(32)),
            "command": In(stream.Signature(Command(STREAMS))),
            "answer": Out(stream.Signature(Answer(), always_ready=True)),
            "events": Out(stream.Signature(SessionEvent(STREAMS))),
            "waiting": Out(range(STREAMS + 1)),
        })  # fmt: skip

    def elaborate(self, platform):
        m = Module()
        m.submodules.session = session = self.session
        m.submodules.order = order = self.order
        wiring.connect(m, wiring.flipped(self.i), session.i)
        wiring.connect(m, session.o, order.i)
        wiring.connect(m, session.close, order.close)
        wiring.connect(m, order.over, session.over)
        wiring.connect(m, order.o, wiring.flipped(self.o))
        wiring.connect(m, wiring.flipped(self.done), order.done)
        wiring.connect(m, order.records, wiring.flipped(self.records))
        wiring.connect(m, wiring.flipped(self.command), session.command)
        wiring.connect(m, session.answer, wiring.flipped(self.answer))
        wiring.connect(m, session.events, wiring.flipped(self.events))
        judged = order.o.payload
        m.d.comb += [
            session.illegal.valid.eq(order.o.valid & judged.aborts),
            session.illegal.payload.stream.eq(judged.ticket.stream),
            session.illegal.payload.reason.eq(judged.reason),
            order.asks.eq(session.asks),
            session.whole.eq(order.whole),
            session.idle.eq(order.idle),
            self.waiting.eq(session.waiting),
        ]
        return m


class Bench:
    def __init__(self, *, seed=0, pending=4, delay=0, busy=1.0):
        self.dut = shared(Both, pending)
        self.rng = random.Random(seed)
        self.delay, self.busy = delay, busy
        self.offers = deque()
        self.asked, self.verdicts = deque(), []
        self.undone = deque()
        self.records, self.events, self.answers = [], [], []
        self.commands = deque()
        self.cycle = self.latest = 0  # the latest cycle in which something happened
        self.tsn = self.highest = 0
        self.held = self.offered = False
        self.opening = None  # the stream that Reorder opens
        self.openings = 0
        self.values = {}  # of inputs, by the id() of their signals
        self.shown = None  # the item of ``offers`` that the input has
        dut, reorder = self.dut, self.dut.order.reorder
        # Structs are sampled as integers, and decoded where they count, which takes less time.
        self.sampled = [Value.cast(signal) for signal in (
            dut.i.ready, dut.o.valid, dut.o.payload, dut.done.ready, dut.records.valid,
            dut.records.payload, dut.command.ready, dut.answer.valid, dut.answer.payload,
            dut.events.valid, dut.events.ready, dut.events.payload,
            reorder.busy, reorder.i.valid, reorder.i.payload,
            reorder.close.valid, reorder.close.ready, reorder.close.payload,
        )]  # fmt: skip

    def watch(self, busy, comes, item, asked, done, close):
        """Checks what :class:`ddp_rnic.hdl.proofs.reorder.Survives` assumes of an opening."""
        reorder = self.dut.order.reorder
        close = decoded(reorder.close, close) if asked else None
        if self.opening is not None:
            assert asked and close.stream == self.opening and close.opens, "close is held"
        if not (asked and close.opens):
            return
        if self.opening is None:
            assert not busy, f"cycle {self.cycle}: a stream opens while something is on its way"
        came = comes and decoded(reorder.i, item).ticket.stream == close.stream
        assert not came, f"cycle {self.cycle}: an item comes while its stream opens"
        self.openings += done
        self.opening = None if done else close.stream

    def offer(self, number, ssn, message=SEGMENT, tsn=None):
        self.tsn += tsn is None
        self.offers.append((number, ssn % 65536, message, self.tsn if tsn is None else tsn))

    def put(self, ctx, signal, value):
        """Sets a signal if its value changes: to set one takes much time."""
        if self.values.get(id(signal)) != value:
            self.values[id(signal)] = value
            ctx.set(signal, value)

    async def step(self, ctx, cycles=1):
        dut, rng = self.dut, self.rng
        for _ in range(cycles):
            if not self.offered:
                self.offered = bool(self.offers) and rng.random() < self.busy
            self.put(ctx, dut.i.valid, self.offered)
            if self.offered and self.offers[0] is not self.shown:
                number, ssn, message, tsn = self.shown = self.offers[0]
                ctx.set(dut.i.payload, {
                    "stream": number, "ssn": ssn, "message": message, "tsn": tsn % 2**32,
                    "association": number // 2,
                    "first": not ssn and message not in (SEGMENT, INVALID)})  # fmt: skip
            self.put(ctx, dut.command.valid, bool(self.commands))
            if self.commands:
                number, function = self.commands[0]
                ctx.set(dut.command.payload, {
                    "stream": number, "function": function,
                    "tsn": self.highest % 2**32})  # fmt: skip
            due = bool(self.undone) and self.undone[0][0] <= self.cycle
            self.put(ctx, dut.done.valid, due)
            if due:
                ctx.set(dut.done.payload, {
                    "ticket": self.undone[0][1], "record": self.undone[0][2]})  # fmt: skip
            self.put(ctx, dut.records.ready, 1)
            self.put(ctx, dut.events.ready, not self.held)
            (
                _, _, taken, judged, judgement, accepted, some, record, told, answered, answer,
                happens, ready, event, *inside,
            ) = await ctx.tick().sample(*self.sampled)
            self.watch(*inside)
            busy, *_, closes, _, _ = inside
            if busy or closes or judged or some or answered or happens:
                self.latest = self.cycle
            if judged:
                given, item = self.asked.popleft()
                judgement = decoded(dut.o, judgement)
                assert self.cycle - given == LATENCY, f"cycle {self.cycle}"
                self.verdicts.append((*item, judgement.verdict))
                assert judgement.ticket.stream == item[0] and judgement.ticket.ssn == item[1]
                if judgement.verdict == Verdict.FRESH:
                    ticket = {name: getattr(judgement.ticket, name) for name in (
                        "stream", "ssn", "final", "fills",
                    )}  # fmt: skip
                    record_in = item[0] << 20 | item[2].value << 16 | item[1]
                    self.undone.append((self.cycle + self.delay, ticket, record_in))
            if self.offered and taken:
                *item, tsn = self.offers.popleft()
                self.asked.append((self.cycle, tuple(item)))
                self.highest = max(self.highest, tsn)
                self.offered = False
            if due and accepted:
                self.undone.popleft()
            if some:
                self.records.append((record >> 20, record & 0xFFFF, Message(record >> 16 & 15)))
            if self.commands and told:
                self.commands.popleft()
            if answered:
                answer = decoded(dut.answer, answer)
                self.answers.append((bool(answer.taken), State(answer.state)))
            if happens and ready:
                event = decoded(dut.events, event)
                self.events.append((event.stream, event.reason, event.state))
            self.cycle += 1

    async def settle(self, ctx):
        while self.offers or self.undone or self.commands or self.asked:
            await self.step(ctx)
        while self.cycle - self.latest < QUIET:
            await self.step(ctx)
        if self.undone or self.offers:
            await self.settle(ctx)

    async def tell(self, ctx, number, function):
        self.commands.append((number, function))
        before = len(self.answers)
        while len(self.answers) == before:
            await self.step(ctx)
        return self.answers[-1]

    def run(self, testbench):
        async def main(ctx):
            await testbench(ctx)
            await self.settle(ctx)

        simulate(self.dut, main, limit=100_000)
        assert self.opening is None
        return self

    def last(self, count):
        return [verdict for *_, verdict in self.verdicts[-count:]]


async def open_passive(bench, ctx, number):
    bench.offer(number, 0, INITIATE)
    await bench.settle(ctx)
    assert bench.last(1) == [Verdict.FRESH]
    assert await bench.tell(ctx, number, Function.ACCEPT) == (True, State.ESTABLISHED)


async def open_active(bench, ctx, number):
    assert await bench.tell(ctx, number, Function.INITIATE) == (True, State.INITIATE_SENT)
    bench.offer(number, 0, ACCEPT)
    await bench.settle(ctx)
    assert bench.last(1) == [Verdict.FRESH]


@pytest.mark.parametrize("opens", [open_active, *long(open_passive)])
def test_accepted_sessions_follow_each_other_on_a_stream(opens):
    """Section 6.2; leftovers of one session do not belong to the next."""
    bench = Bench()

    async def testbench(ctx):
        for sent in (True, False, True, False):
            await opens(bench, ctx, 1)
            for ssn in (2, 1, 4, 3, 5) if sent else (1,):
                bench.offer(1, ssn)
                bench.offer(1, ssn, tsn=bench.tsn)  # repeated by the network
            bench.offer(1, 6 if sent else 2, TERMINATE)
            await bench.settle(ctx)
            state = await bench.tell(ctx, 1, Function.TERMINATE)
            assert state == (True, State.CLOSED)

    bench.run(testbench)
    first = INITIATE if opens is open_passive else ACCEPT
    one = [(1, 0, first), *((1, ssn, SEGMENT) for ssn in range(1, 6)), (1, 6, TERMINATE)]
    two = [(1, 0, first), (1, 1, SEGMENT), (1, 2, TERMINATE)]
    assert bench.records == (one + two) * 2
    assert bench.events == []
    assert bench.openings == 4


def test_segments_may_follow_the_accept_in_the_next_cycle():
    bench = Bench()

    async def testbench(ctx):
        await bench.tell(ctx, 2, Function.INITIATE)
        for ssn in range(8):
            bench.offer(2, ssn, SEGMENT if ssn else ACCEPT)
        bench.offer(2, 0, ACCEPT, tsn=1)

    bench.run(testbench)
    verdicts = [verdict for *_, verdict in bench.verdicts]
    assert verdicts == [Verdict.FRESH] * 8 + [Verdict.DUPLICATE]
    assert [record[1] for record in bench.records] == list(range(8)) and not bench.events


@pytest.mark.parametrize("answer", [ACCEPT, REJECT, *long(TERMINATE)])
def test_what_overtakes_an_answer_is_held_until_the_host_hands_it_back(answer):
    """RFC 5041 section 5.3: placement in any order, but only in an established session; RFC 5043
    section 6.3: a session that was rejected has no Segments."""
    bench = Bench(delay=3)
    accepted = answer is ACCEPT

    async def testbench(ctx):
        for round_ in range(5):
            await bench.tell(ctx, 1, Function.INITIATE)
            early = [(2, SEGMENT), (4, SEGMENT), (2, SEGMENT), (5, TERMINATE)]
            tsns = [10 * round_ + 10 + ssn for ssn, _ in early]
            for (ssn, message), tsn in zip(early, tsns, strict=True):
                bench.offer(1, ssn, message, tsn=tsn)
            await bench.settle(ctx)
            assert bench.last(4) == [Verdict.HELD] * 4
            bench.offer(1, 0, answer, tsn=tsns[0] - 2)
            await bench.settle(ctx)
            for (ssn, message), tsn in zip(early, tsns, strict=True):
                bench.offer(1, ssn, message, tsn=tsn)
            await bench.settle(ctx)
            if accepted:
                assert bench.last(4) == [Verdict.FRESH] * 2 + [Verdict.DUPLICATE, Verdict.FRESH]
                for ssn in (3, 1):
                    bench.offer(1, ssn, tsn=tsns[0] - 2 + ssn)
                await bench.settle(ctx)
                assert await bench.tell(ctx, 1, Function.TERMINATE) == (True, State.CLOSED)
            else:
                assert bench.last(4) == [Verdict.ILLEGAL] + [Verdict.SILENT] * 3

    bench.run(testbench)
    if accepted:
        assert [ssn for _, ssn, _ in bench.records] == list(range(6)) * 5 and not bench.events
    else:
        assert bench.records == [(1, 0, answer)] * 5
        assert bench.events == [(1, Reason.SEQUENCE, State.CLOSED)] * 5


@pytest.mark.parametrize("ssns", [(0, 1), (1, 2), (5, 5)])
def test_segments_without_a_session_are_illegal_once_and_then_silent(ssns):
    bench = Bench()

    async def testbench(ctx):
        for _ in range(3):
            for ssn in ssns:
                bench.offer(1, ssn)
            await bench.settle(ctx)
            assert bench.last(2) == [Verdict.ILLEGAL, Verdict.SILENT]
            bench.offer(1, 7)
            await bench.settle(ctx)
            assert bench.last(1) == [Verdict.SILENT]
            # The association that is set up next has the stream, and no item arrived in that.
            assert await bench.tell(ctx, 1, Function.FORGET) == (True, State.CLOSED)

    bench.run(testbench)
    assert bench.events == [(1, Reason.SEQUENCE, State.CLOSED)] * 3 and not bench.records


@pytest.mark.parametrize("state", ("waits", "refused", "established", "asked", "gap"))
def test_an_initiate_inside_a_session_ends_it(state):
    """Section 6.1: "If the adaptation layer receives a Payload Data Chunk that conforms to none of
    the enumerated legal patterns, the DDP Stream Session MUST be terminated." A repetition by the
    network has the TSN of the Initiate that opened the session, and no effect."""
    bench = Bench(pending=1)
    was = {
        "waits": State.INITIATE_RECEIVED, "refused": State.REFUSED, "asked": State.INITIATE_SENT,
        "established": State.ESTABLISHED, "gap": State.TERMINATE_SENT,
    }[state]  # fmt: skip
    events = 1

    async def testbench(ctx):
        nonlocal events
        if state == "refused":
            bench.offer(0, 0, INITIATE)
            events = 2
        if state == "asked":
            await bench.tell(ctx, 1, Function.INITIATE)
        else:
            bench.offer(1, 0, INITIATE)
            await bench.settle(ctx)
            opener = bench.tsn
        if state in ("established", "gap"):
            await bench.tell(ctx, 1, Function.ACCEPT)
        if state == "gap":
            bench.offer(1, 2)
            await bench.settle(ctx)
            await bench.tell(ctx, 1, Function.TERMINATE)
        if state != "asked":
            bench.offer(1, 0, INITIATE, tsn=opener)
            await bench.settle(ctx)
            assert bench.last(1) == [Verdict.DUPLICATE] and len(bench.events) == events - 1
        bench.offer(1, 0, INITIATE)
        bench.offer(1, 1)
        await bench.settle(ctx)
        assert bench.last(2) == [Verdict.ILLEGAL, Verdict.SILENT]
        # Its repetition opens no session, the next Initiate does.
        bench.offer(1, 0, INITIATE, tsn=bench.tsn - 1)
        await bench.settle(ctx)
        assert bench.last(1) == [Verdict.DUPLICATE]
        bench.offer(1, 0, INITIATE)
        await bench.settle(ctx)
        assert bench.last(1) == [Verdict.FRESH]

    bench.run(testbench)
    assert bench.events[events - 1] == (1, Reason.SEQUENCE, was)


@pytest.mark.parametrize("delay", (20, 21, 45))
def test_an_initiate_waits_until_the_terminate_before_it_was_delivered(delay):
    """The Terminate is on its way to memory, alone, while the Initiate waits. Until the Terminate
    was delivered, an Initiate would be one inside a session, which section 6.1 forbids."""
    bench = Bench(delay=delay)

    async def testbench(ctx):
        await open_passive(bench, ctx, 1)
        bench.offer(1, 1, TERMINATE)
        bench.offer(1, 0, INITIATE)

    bench.run(testbench)
    assert [verdict for *_, verdict in bench.verdicts] == [Verdict.FRESH] * 3
    messages = [(ssn, message) for _, ssn, message in bench.records]
    assert messages == [(0, INITIATE), (1, TERMINATE), (0, INITIATE)]
    assert not bench.events


@pytest.mark.parametrize("message", (ACCEPT, REJECT, TERMINATE, INITIATE, ENHANCED_INITIATE))
@pytest.mark.parametrize("items", [0, 3, *long(40)])
def test_another_control_message_with_ddp_ssn_0_ends_the_session(message, items):
    bench = Bench()

    async def testbench(ctx):
        await open_active(bench, ctx, 1)
        for ssn in range(1, 1 + items):
            bench.offer(1, ssn)
        await bench.settle(ctx)
        bench.offer(1, 0, ACCEPT, tsn=1)
        bench.offer(1, 0, message)

    bench.run(testbench)
    assert bench.last(2) == [Verdict.DUPLICATE, Verdict.ILLEGAL]
    assert bench.events == [(1, Reason.SEQUENCE, State.ESTABLISHED)]


@pytest.mark.parametrize(
    "function", [Function.ABORT, Function.INITIATE, *long(Function.FORGET)])
def test_what_waits_in_a_session_that_the_host_ends_is_gone(function):
    bench = Bench(delay=40)

    async def testbench(ctx):
        for _ in range(3):
            await open_passive(bench, ctx, 1)
            for ssn in (2, 3, 5):
                bench.offer(1, ssn)
            await bench.settle(ctx)
            if function is Function.INITIATE:
                await bench.tell(ctx, 1, Function.TERMINATE)
            bench.offer(1, 1)  # it is on its way to memory
            await bench.step(ctx, 20)
            taken, state = await bench.tell(ctx, 1, function)
            assert taken and not state & 4 or function is Function.INITIATE
            await bench.settle(ctx)
            if function is Function.INITIATE:
                await bench.tell(ctx, 1, Function.FORGET)
        await open_passive(bench, ctx, 1)
        for ssn in range(1, 7):
            bench.offer(1, ssn)

    bench.run(testbench)
    assert [record[1] for record in bench.records] == [0] * 3 + list(range(7))
    assert bench.events == []


@pytest.mark.parametrize("number, function, state", [
    (2, Function.PAST, State.CLOSED),
    (2, Function.FORGET, State.CLOSED),
    (1, Function.PAST, State.ABORTED),
    (1, Function.TERMINATE, State.ABORTED),
    (1, Function.ABORT, State.ABORTED),
])
def test_no_command_takes_a_message_away_that_came_before_an_illegal_item(number, function, state):
    """RFC 5041 section 5.4: a message is delivered once its segments and all earlier messages "have
    been Placed". The messages are on their way to memory, for much longer than a command takes,
    while the host gives commands for the stream, or for another one."""
    bench = Bench(delay=400)
    waited = 0

    async def testbench(ctx):
        nonlocal waited
        await open_active(bench, ctx, 1)
        for ssn in range(1, 5):
            bench.offer(1, ssn)
        bench.offer(1, 5, INVALID)
        bench.offer(1, 6)
        await bench.step(ctx, 3 * LATENCY)
        assert bench.last(2) == [Verdict.ILLEGAL, Verdict.SILENT] and not bench.events
        begin = bench.cycle
        for _ in range(3):
            assert await bench.tell(ctx, number, function) == (True, state)
            waited = waited or bench.cycle - begin

    bench.run(testbench)
    assert [record[1] for record in bench.records] == list(range(5))
    assert bench.events == [(1, Reason.MALFORMED, State.ESTABLISHED)]
    assert waited < 400 + 100, "the command waits for these messages, and not longer"


def test_commands_and_illegal_items_take_turns():
    """Both come to an end: each stream's session is aborted, and the host opens it again."""
    bench = Bench(delay=90)
    rounds = 6

    async def testbench(ctx):
        for _ in range(rounds):
            for number in range(STREAMS):
                bench.offer(number, 0, INITIATE)
                bench.offer(number, 1, INVALID)
            while bench.offers or bench.undone or bench.asked:
                await bench.tell(ctx, bench.rng.randrange(STREAMS), Function.PAST)
                await bench.step(ctx, bench.rng.randrange(60))

    bench.run(testbench)
    assert sorted(bench.events) == sorted([
        (number, Reason.MALFORMED, State.INITIATE_RECEIVED) for number in range(STREAMS)] * rounds)
    assert len(bench.answers) > rounds and len(bench.records) == rounds * STREAMS


@pytest.mark.parametrize("told", (True, False))
def test_a_session_outlasts_its_association_s_tsns_if_the_host_reports_the_past(told):
    """RFC 9260 section 1.6: serial numbers are compared within 2^31."""
    bench = Bench()
    steps = 9

    async def testbench(ctx):
        await open_passive(bench, ctx, 1)
        for ssn in range(1, steps):
            bench.tsn += 1 << 30
            bench.offer(1, ssn)
            await bench.settle(ctx)
            if told:
                bench.highest = bench.tsn - (1 << 29)
                assert await bench.tell(ctx, 1, Function.PAST) == (True, State.ESTABLISHED)

    bench.run(testbench)
    taken = [verdict is Verdict.FRESH for *_, verdict in bench.verdicts]
    # The third TSN is 2^31 after the one with which the session began.
    assert taken == [True] * steps if told else taken[:3] == [True, True, False]
    assert not bench.events


def test_what_is_past_once_stays_past():
    """Section 6: "Data Chunks from one DDP Stream Session are never carried over"."""
    bench = Bench()
    bench.tsn = 1000

    async def testbench(ctx):
        await open_passive(bench, ctx, 1)
        bench.highest = 500
        assert await bench.tell(ctx, 1, Function.PAST) == (True, State.ESTABLISHED)
        bench.offer(1, 1, tsn=700)

    bench.run(testbench)
    assert bench.last(1) == [Verdict.DUPLICATE] and not bench.events


def test_what_comes_while_another_stream_is_forgotten_is_known_from_then_on():
    """Section 6.2: "increasing DDP-SSNs"; a gap that is none would keep the next session away."""
    bench = Bench()
    count = 100

    async def testbench(ctx):
        await open_passive(bench, ctx, 1)
        for ssn in range(1, count):
            bench.offer(1, ssn)
        while bench.offers:
            await bench.tell(ctx, 2, Function.FORGET)
            await bench.step(ctx, bench.rng.randrange(40))
        bench.offer(1, count, TERMINATE)
        bench.offer(1, 0, INITIATE)

    bench.run(testbench)
    assert [verdict for *_, verdict in bench.verdicts] == [Verdict.FRESH] * (count + 2)
    assert [record[1] for record in bench.records] == [*range(count + 1), 0] and not bench.events


@pytest.mark.long
def test_nothing_of_an_aborted_session_is_in_one_of_the_next_forty():
    bench = Bench()
    sessions = 40

    async def testbench(ctx):
        for session in range(sessions):
            await open_passive(bench, ctx, 1)
            for ssn in (2, 4 + session % 3, 9 + session % 5):
                bench.offer(1, ssn)
            bench.offer(1, 1, INVALID)
            await bench.settle(ctx)
            assert bench.last(4) == [Verdict.FRESH] * 3 + [Verdict.ILLEGAL]
        await open_passive(bench, ctx, 1)
        for ssn in range(1, 16):
            bench.offer(1, ssn)
        await bench.settle(ctx)
        assert bench.last(15) == [Verdict.FRESH] * 15

    bench.run(testbench)
    assert [record[1] for record in bench.records] == [0] * sessions + list(range(16))


@pytest.mark.parametrize("opens", (open_passive, open_active))
def test_what_comes_again_out_of_an_earlier_session_has_no_effect(opens):
    """Section 6.1: the DDP-SSN is reset to zero with each session; the TSN is not."""
    bench = Bench(delay=2)

    async def testbench(ctx):
        for _ in range(3):
            before = list(old)
            for near in (False, True):
                for item in before:
                    bench.offer(*item)
                if before and not near:
                    await bench.settle(ctx)
                    assert set(bench.last(len(before))) == {Verdict.DUPLICATE}
                if not near:
                    await opens(bench, ctx, 1)
                    old.append((1, 0, INITIATE if opens is open_passive else ACCEPT, bench.tsn))
            for ssn in (1, 2, 3):
                bench.offer(1, ssn)
                old.append((1, ssn, SEGMENT, bench.tsn))
                for item in before:
                    bench.offer(*item)
            bench.offer(1, 4, TERMINATE)
            old.append((1, 4, TERMINATE, bench.tsn))
            await bench.settle(ctx)
            assert await bench.tell(ctx, 1, Function.TERMINATE) == (True, State.CLOSED)

    old = []
    bench.run(testbench)
    assert [record[1] for record in bench.records] == list(range(5)) * 3
    assert not bench.events


@pytest.mark.parametrize("answer", (REJECT, TERMINATE))
def test_a_refused_session_is_closed(answer):
    """Sections 6.3 and 6.4; the answer may come twice."""
    bench = Bench()

    async def testbench(ctx):
        for _ in range(3):
            assert (await bench.tell(ctx, 0, Function.INITIATE))[0]
            bench.offer(0, 0, answer)
            bench.offer(0, 0, answer, tsn=bench.tsn)
            await bench.settle(ctx)
            assert bench.last(2) == [Verdict.FRESH, Verdict.DUPLICATE]
        bench.offer(0, 0, INITIATE)
        await bench.settle(ctx)
        function = Function.REJECT if answer is REJECT else Function.TERMINATE
        assert await bench.tell(ctx, 0, function) == (True, State.CLOSED)
        assert (await bench.tell(ctx, 0, function)) == (False, State.CLOSED)

    bench.run(testbench)
    assert bench.records == [(0, 0, answer)] * 3 + [(0, 0, INITIATE)] and not bench.events


@pytest.mark.parametrize("initiate", INITIATES)
def test_the_peer_s_answer_fits_this_end_s_initiate(initiate):
    """RFC 6581 section 7: "Enhanced Active/Passive Session Accepted: as with Section 6.2 of
    [RFC5043], but with the extended opcodes as defined in this document." Sections 6.3 and 6.4
    likewise. RFC 5043 section 6.1: any other sequence ends the session."""
    bench = Bench()
    answers = [message for message in Message if message not in (SEGMENT, INVALID)]

    async def testbench(ctx):
        for answer in answers:
            fits, opens = answer in ANSWERS[initiate], Function(initiate.value)
            # What this session was has no effect on the next one.
            for other in (Function.INITIATE, Function.ENHANCED_INITIATE):
                assert await bench.tell(ctx, 1, other) == (True, State.INITIATE_SENT)
                await bench.tell(ctx, 1, Function.ABORT)
            assert await bench.tell(ctx, 1, opens) == (True, State.INITIATE_SENT)
            bench.offer(1, 0, answer)
            bench.offer(1, 1, SEGMENT)
            await bench.settle(ctx)
            accepted = fits and answer in ACCEPTS
            assert bench.last(2) == (
                [Verdict.FRESH] * 2 if accepted
                else [Verdict.FRESH, Verdict.ILLEGAL] if fits
                else [Verdict.ILLEGAL, Verdict.SILENT]), answer
            state = State.INITIATE_SENT if not fits else State.CLOSED
            expected = [] if accepted else [(1, Reason.SEQUENCE, state)]
            assert bench.events == expected, answer
            bench.events.clear()
            # "MUST use the DDP stream session termination function code to terminate a stream
            # established using enhanced DDP stream session function codes."
            after = State.TERMINATE_SENT if accepted else State.ABORTED
            assert await bench.tell(ctx, 1, Function.TERMINATE) == (True, after)

    bench.run(testbench)


@pytest.mark.parametrize("initiate", INITIATES)
def test_the_host_s_answer_fits_the_peer_s_initiate(initiate):
    """RFC 6581 section 7: "but with the extended opcodes as defined in this document"."""
    bench = Bench()

    async def testbench(ctx):
        for answer in filter(of_wire, Function):
            fits = Message(answer.value) in ANSWERS[initiate]
            for other in INITIATES:
                bench.offer(1, 0, other)
                await bench.settle(ctx)
                assert bench.last(1) == [Verdict.FRESH]
                await bench.tell(ctx, 1, Function.ABORT)
            bench.offer(1, 0, initiate)
            await bench.settle(ctx)
            accepted = Message(answer.value) in ACCEPTS
            state = State.INITIATE_RECEIVED if not fits else (
                State.ESTABLISHED if accepted else State.CLOSED)
            assert await bench.tell(ctx, 1, answer) == (fits, state), answer
            await bench.tell(ctx, 1, Function.ABORT)

    bench.run(testbench)
    assert not bench.events


def test_no_more_initiates_of_an_association_wait_than_the_limit():
    """Section 6.4: "When more session requests are received, the passive side MUST respond to the
    Initiate message with a DDP Stream Terminate Message." Streams 0 and 1 belong to one
    association, 2 and 3 to another one."""
    bench = Bench(pending=1)

    async def testbench(ctx):
        for number in (1, 0, 0, 3):
            bench.offer(number, 0, INITIATE, tsn=5 if number == 0 else None)
        await bench.settle(ctx)
        assert bench.last(4) == [Verdict.FRESH] * 2 + [Verdict.DUPLICATE, Verdict.FRESH]
        closed = State.CLOSED
        assert bench.events == [(0, Reason.LIMIT, closed)]
        assert ctx.get(bench.dut.waiting) == 2
        assert await bench.tell(ctx, 0, Function.ACCEPT) == (False, State.REFUSED)
        assert await bench.tell(ctx, 0, Function.TERMINATE) == (True, State.CLOSED)
        bench.tsn = 10
        bench.offer(0, 0, INITIATE)
        await bench.settle(ctx)
        assert bench.events[1:] == [(0, Reason.LIMIT, closed)]
        await bench.tell(ctx, 1, Function.ACCEPT)
        assert await bench.tell(ctx, 0, Function.FORGET) == (True, State.CLOSED)
        bench.offer(0, 0, INITIATE)
        await bench.settle(ctx)
        assert ctx.get(bench.dut.waiting) == 2
        await bench.tell(ctx, 3, Function.REJECT)
        bench.offer(0, 1)  # illegal: its session no longer waits
        await bench.settle(ctx)
        assert ctx.get(bench.dut.waiting) == 0
        bench.offer(0, 0, INITIATE)
        bench.offer(2, 0, INITIATE)
        await bench.settle(ctx)
        assert ctx.get(bench.dut.waiting) == 2

    bench.run(testbench)
    assert len(bench.events) == 3


def test_an_aborted_stream_is_silent_until_the_next_initiate():
    bench = Bench(delay=2)

    async def testbench(ctx):
        await open_passive(bench, ctx, 1)
        for ssn in (1, 3, 4):
            bench.offer(1, ssn)
        await bench.settle(ctx)
        bench.offer(1, 5, INVALID)
        for ssn in (2, 6):
            bench.offer(1, ssn)
        bench.offer(1, 7, INVALID)
        await bench.settle(ctx)
        illegal, silent = Verdict.ILLEGAL, Verdict.SILENT
        assert bench.last(4) == [illegal, silent, silent, silent]
        assert await bench.tell(ctx, 1, Function.TERMINATE) == (True, State.ABORTED)
        await open_passive(bench, ctx, 1)
        bench.offer(1, 1)

    bench.run(testbench)
    assert bench.events == [(1, Reason.MALFORMED, State.ESTABLISHED)]
    assert [record[1] for record in bench.records] == [0, 1, 0, 1]


def test_no_event_is_lost_and_nothing_taken_while_there_is_no_room():
    bench = Bench(pending=16)
    bench.held = True

    async def testbench(ctx):
        for _ in range(30):
            bench.offer(3, 0, INITIATE)
            bench.offer(3, 1, INVALID)
        await bench.step(ctx, 4000)
        assert len(bench.offers) > 20
        bench.held = False

    bench.run(testbench)
    assert bench.events == [(3, Reason.MALFORMED, State.INITIATE_RECEIVED)] * 30


def test_items_go_one_per_cycle_beside_each_other():
    bench = Bench()

    async def testbench(ctx):
        await open_passive(bench, ctx, 1)
        await open_active(bench, ctx, 2)
        start = bench.cycle
        for ssn in range(1, 15):
            for number in (1, 2):
                bench.offer(number, ssn)
        while bench.offers:
            await bench.step(ctx)
        assert bench.cycle - start == 28

    bench.run(testbench)


def payload_of(ssn, message):
    if message is SEGMENT:
        return 16, struct.pack(">H", ssn) + b"segment"
    code = 9 if message is INVALID else message.value
    return 17, struct.pack(">HH", ssn, code)


def of_wire(function):
    """Returns True if a function is a message, and no command."""
    return function.value in set(sctp.Function)


class Reference:
    """Models a stream of the device.

    It is the golden model, with the rules of :mod:`ddp_rnic.hdl.spec.sctp` for repetitions, for
    held chunks and for control messages. ``delivered``: DDP-SSNs and messages.
    """

    def __init__(self, number):
        self.session = sctp.Session(number)
        self.past = 0
        self.tsns = {}  # of the present session, by DDP-SSN
        self.early = {}  # TSNs of chunks that the host holds, by DDP-SSN and message
        self.delivered = []

    def command(self, function, highest):
        session = self.session
        if function is Function.ABORT:
            session.abort("the host has it so")
            return True
        if function is Function.FORGET:
            self.session, self.past, self.tsns = sctp.Session(session.stream), highest, {}
            return True
        if function is Function.PAST:
            self.past = max(self.past, highest)
            return True
        # The host itself handles gaps of the last session, and acknowledgements.
        session.acknowledge()
        opens = function in (Function.INITIATE, Function.ENHANCED_INITIATE)
        session._in.waiting.clear() if opens else None
        message = sctp.Function(function.value)
        limits = message in (sctp.Function.ENHANCED_INITIATE, sctp.Function.ENHANCED_ACCEPT)
        try:
            session.control(message, bytes(4) if limits else b"")
        except sctp.ProtocolError:
            return False
        if opens:
            self.past, self.tsns, self.early = highest, {}, {}
        return True

    def receive(self, ssn, message, tsn):
        """Returns the verdict, and the reason of an event or None."""
        session = self.session
        before = session.state.name
        follows = message in (SEGMENT, TERMINATE)
        opens = message in INITIATES and ssn == 0 and session.reusable
        if tsn <= self.past:
            return Verdict.DUPLICATE, None
        if message is not INVALID and not opens and before != "ABORTED":
            if before == "INITIATE_SENT":
                if follows and ssn:
                    self.early[ssn, message] = tsn
                    return Verdict.HELD, None
            elif self.tsns.get(ssn) == tsn:
                return Verdict.DUPLICATE, None
        start = 0 if opens else session._in.sequencer.next
        events = session.receive(*payload_of(ssn, message))
        if any(isinstance(event, sctp.SessionIllegal) for event in events):
            if message in INITIATES and ssn == 0:
                self.past = tsn
            return Verdict.ILLEGAL, Reason.MALFORMED if message is INVALID else Reason.SEQUENCE
        if session.silent:
            return Verdict.SILENT, None
        if opens:
            self.past, self.tsns = tsn, {}
        self.tsns[ssn] = tsn
        self.delivered += range(start, session._in.sequencer.next)
        return Verdict.FRESH, None


def wire_of(rng, reference, wild):
    """Returns a peer's messages in a session's state, (DDP-SSN, message); some are not allowed."""
    session = reference.session
    following = session._in.sequencer.next
    state = session.state.name
    items = []
    if state == "INITIATE_SENT":
        asked = ENHANCED_INITIATE if session.enhanced else INITIATE
        answers = ANSWERS[asked if rng.random() > wild / 2 else rng.choice(INITIATES)]
        items.append((0, rng.choice((*answers[:1] * 4, *answers))))
        if items[0][1] in ACCEPTS:
            items += [(ssn, SEGMENT) for ssn in range(1, rng.randrange(1, 5))]
    elif state in ("ESTABLISHED", "TERMINATE_SENT"):
        missing = [following + k for k in range(12) if following + k not in reference.tsns]
        items += [(ssn, SEGMENT) for ssn in missing[: rng.randrange(7)]]
        if rng.random() < 0.3 and not any(ssn > missing[len(items)] for ssn in reference.tsns):
            items.append((missing[len(items)], TERMINATE))
    elif state in ("CLOSED", "TERMINATE_RECEIVED", "ABORTED"):
        items.append((0, rng.choice(INITIATES)))
    rng.shuffle(items)
    while rng.random() < wild:
        at = rng.choice((0, following, following + 1, following + 3, max(0, following - 1)))
        items.insert(rng.randrange(len(items) + 1), (at, rng.choice(list(Message))))
    return items


#: How many cycles delivery takes, how often messages come, and how often one is illegal.
WAYS = [(*delivery, wild) for wild in (0.0, 0.15, 0.5)
        for delivery in ((0, 1.0), (7, 1.0), (60, 1.0), (2, 0.3))]
USUAL = [(60, 1.0, 0.5)]


@pytest.mark.parametrize("delay, busy, wild", [
    pytest.param(*way, marks=[pytest.mark.long] * (way not in USUAL)) for way in WAYS])
def test_sessions_agree_with_the_model(delay, busy, wild):
    """Sessions of all streams run in parallel, in rounds. The messages of a round are shuffled,
    repeated by the network, and sometimes illegal; the host acts between rounds. Verdicts, events
    and deliveries are exact."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench = Bench(seed=seed, pending=STREAMS, delay=delay, busy=busy)
    references = [Reference(number) for number in range(STREAMS)]
    sent = [[] for _ in range(STREAMS)]

    async def testbench(ctx):
        for round_ in range(16):
            for number, reference in enumerate(references):
                state = reference.session.state.name
                asked = ENHANCED_INITIATE if reference.session.enhanced else INITIATE
                answers = [Function(message.value) for message in ANSWERS[asked]]
                initiates = Function.INITIATE, Function.ENHANCED_INITIATE
                legal = {
                    "INITIATE_RECEIVED": (*answers[:1] * 4, *answers[:-1]),
                    "CLOSED": initiates,
                    "ABORTED": (*initiates, Function.TERMINATE),
                }.get(state, (Function.TERMINATE,) * (rng.random() < 0.3))
                if rng.random() < 0.6 and legal:
                    function = rng.choice(legal if rng.random() > wild else list(Function))
                    taken = reference.command(function, bench.highest)
                    answer = await bench.tell(ctx, number, function)
                    state = reference.session.state.name
                    assert (answer[0], answer[1].name) == (taken, state), (round_, function)
            wire = [wire_of(rng, reference, wild) for reference in references]
            order = [number for number, items in enumerate(wire) for _ in items]
            rng.shuffle(order)
            expected, events, seen = [], [], len(bench.verdicts)
            for number in order:
                bench.tsn += 1
                ssn, message = wire[number].pop(0)
                # The host hands back the chunk that it held.
                tsn = references[number].early.pop((ssn, message), bench.tsn)
                items = [(ssn, message, tsn)]
                sent[number].append(items[0])
                if rng.random() < 0.3:
                    items.append(rng.choice(sent[number][-8:]))
                for item in items:
                    bench.offer(number, item[0], item[1], tsn=item[2])
                    verdict, reason = references[number].receive(*item)
                    expected.append((number, item[0] % 65536, item[1], verdict))
                    if reason is not None:
                        events.append((number, reason))
            before = len(bench.events)
            await bench.settle(ctx)
            assert bench.verdicts[seen:] == expected, f"round {round_}"
            assert [event[:2] for event in bench.events[before:]] == events, f"round {round_}"

    bench.run(testbench)
    assert bool(bench.events) == bool(wild)
    for number, reference in enumerate(references):
        got = [ssn for at, ssn, _ in bench.records if at == number]
        assert got == reference.delivered, f"stream {number}"
    assert len(bench.records) > 50


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"streams": 5}, ValueError, "streams must be a power of two from 2 to 4096, not 5"),
        ({"streams": "4"}, TypeError, "Session streams must be an integer, not '4'"),
        ({"associations": 3}, ValueError, "associations must be a power of two from 2 to 65536"),
        ({"pending": 0}, ValueError, "Session pending must be 1 or more, not 0"),
    ],
)
def test_parameters_are_checked(options, error, message):
    refused(message, Session, error=error, **options)
