"""The legal sequences of RFC 5043 section 6, against the golden model."""

import gc
import random
import struct
import warnings
from collections import deque

import pytest
from amaranth import *
from amaranth.hdl import UnusedElaboratable
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from ddp_rnic.hdl.ddp.order import Order
from ddp_rnic.hdl.ddp.session import (
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
from ddp_rnic.hdl.ddp.window import Judged, Ticket, Verdict
from ddp_rnic.sim.model import sctp

STREAMS, WINDOW, SLOTS = 4, 16, 64
LATENCY = Session.LATENCY + 6
SEGMENT, INITIATE, ACCEPT, REJECT, TERMINATE, INVALID = Message


class Both(wiring.Component):
    """A session and its order, as they belong together. A record tells of its item."""

    def __init__(self, pending):
        self.session = Session(streams=STREAMS, pending=pending)
        self.order = Order(32, streams=STREAMS, window=WINDOW, slots=SLOTS)
        super().__init__({
            "i": In(stream.Signature(Item(STREAMS))),
            "o": Out(stream.Signature(Judged(STREAMS), always_ready=True)),
            "done": In(stream.Signature(data.StructLayout({
                "ticket": Ticket(STREAMS), "record": 32}))),
            "records": Out(stream.Signature(32)),
            "command": In(stream.Signature(Command(STREAMS))),
            "answer": Out(stream.Signature(Answer(), always_ready=True)),
            "events": Out(stream.Signature(SessionEvent(STREAMS))),
            "waiting": Out(range(pending + 1)),
            "free": Out(range(SLOTS + 1)),
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
            session.illegal.valid.eq(order.o.valid & (judged.verdict == Verdict.ILLEGAL)),
            session.illegal.payload.stream.eq(judged.ticket.stream),
            session.illegal.payload.session.eq(judged.ticket.session),
            self.waiting.eq(session.waiting),
            self.free.eq(order.free),
        ]
        return m


class Bench:
    def __init__(self, *, seed=0, pending=4, delay=0, busy=1.0):
        self.dut = Both(pending)
        self.rng = random.Random(seed)
        self.delay, self.busy = delay, busy
        self.offers = deque()
        self.asked, self.verdicts = deque(), []
        self.undone = deque()
        self.records, self.events, self.answers = [], [], []
        self.commands = deque()
        self.cycle = 0
        self.tsn = self.highest = 0
        self.limit = 100_000
        self.held = self.offered = False

    def offer(self, number, ssn, message=SEGMENT, tsn=None):
        self.tsn += tsn is None
        self.offers.append((number, ssn % 65536, message, self.tsn if tsn is None else tsn))

    async def step(self, ctx, cycles=1):
        dut, rng = self.dut, self.rng
        for _ in range(cycles):
            assert self.cycle < self.limit, "watchdog"
            if not self.offered:
                self.offered = bool(self.offers) and rng.random() < self.busy
            ctx.set(dut.i.valid, self.offered)
            if self.offered:
                number, ssn, message, tsn = self.offers[0]
                ctx.set(dut.i.payload, {
                    "stream": number, "ssn": ssn, "message": message, "tsn": tsn})  # fmt: skip
            ctx.set(dut.command.valid, bool(self.commands))
            if self.commands:
                number, function = self.commands[0]
                ctx.set(dut.command.payload, {
                    "stream": number, "function": function, "tsn": self.highest})  # fmt: skip
            due = bool(self.undone) and self.undone[0][0] <= self.cycle
            ctx.set(dut.done.valid, due)
            if due:
                ctx.set(dut.done.payload, {
                    "ticket": self.undone[0][1], "record": self.undone[0][2]})  # fmt: skip
            ctx.set(dut.records.ready, 1)
            ctx.set(dut.events.ready, not self.held)
            (
                *_, taken, judged, judgement, accepted, some, record, told, answered, answer,
                happens, ready, event,
            ) = await ctx.tick().sample(
                dut.i.ready, dut.o.valid, dut.o.payload, dut.done.ready, dut.records.valid,
                dut.records.payload, dut.command.ready, dut.answer.valid, dut.answer.payload,
                dut.events.valid, dut.events.ready, dut.events.payload,
            )  # fmt: skip
            if judged:
                given, item = self.asked.popleft()
                assert self.cycle - given == LATENCY, f"cycle {self.cycle}"
                self.verdicts.append((*item, judgement.verdict))
                assert judgement.ticket.stream == item[0] and judgement.ticket.ssn == item[1]
                if judgement.verdict == Verdict.FRESH:
                    ticket = {name: getattr(judgement.ticket, name) for name in (
                        "stream", "session", "ssn", "first", "final", "parity", "express",
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
                self.records.append((record >> 20, record & 0xFFFF, Message(record >> 16 & 7)))
            if self.commands and told:
                self.commands.popleft()
            if answered:
                self.answers.append((bool(answer.taken), State(answer.state)))
            if happens and ready:
                self.events.append((event.stream, event.reason, event.state))
            self.cycle += 1

    async def settle(self, ctx):
        while self.offers or self.undone or self.commands or self.asked:
            await self.step(ctx)
        await self.step(ctx, 60)
        if self.undone or self.offers:
            await self.settle(ctx)

    async def tell(self, ctx, number, function):
        self.commands.append((number, function))
        before = len(self.answers)
        while len(self.answers) == before:
            await self.step(ctx)
        return self.answers[-1]

    def run(self, testbench):
        simulator = Simulator(self.dut)
        simulator.add_clock(1e-8)

        async def main(ctx):
            await testbench(ctx)
            await self.settle(ctx)

        simulator.add_testbench(main)
        simulator.run()
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


@pytest.mark.parametrize("opens", (open_passive, open_active))
def test_accepted_sessions_follow_each_other_on_a_stream(opens):
    """Section 6.2, and what is left over from one is not the next one's."""
    bench = Bench()

    async def testbench(ctx):
        for sent in (True, False, True, False):
            await opens(bench, ctx, 1)
            for ssn in (2, 1, 1, 4, 3, 5) if sent else (1,):
                bench.offer(1, ssn)
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


def test_segments_may_follow_the_accept_in_the_next_cycle():
    bench = Bench()

    async def testbench(ctx):
        await bench.tell(ctx, 2, Function.INITIATE)
        bench.offer(2, 1)
        for ssn in range(8):
            bench.offer(2, ssn, SEGMENT if ssn else ACCEPT)
        bench.offer(2, 0, ACCEPT)

    bench.run(testbench)
    verdicts = [verdict for *_, verdict in bench.verdicts]
    assert verdicts == [Verdict.FRESH, Verdict.FRESH, Verdict.DUPLICATE] + [
        Verdict.FRESH] * 6 + [Verdict.DUPLICATE]  # fmt: skip
    assert [record[1] for record in bench.records] == list(range(8)) and not bench.events


def test_what_overtakes_the_accept_waits_for_it():
    """RFC 5041 section 5.3: placement in any order; delivery in that of submission."""
    bench = Bench(delay=3)

    async def testbench(ctx):
        for _ in range(20):
            await bench.tell(ctx, 1, Function.INITIATE)
            for ssn in (2, 4, 3, 3, 1):
                bench.offer(1, ssn)
            await bench.settle(ctx)
            assert bench.last(5) == [Verdict.FRESH] * 3 + [Verdict.DUPLICATE, Verdict.FRESH]
            await bench.step(ctx, 64 * 14)  # whatever is swept up
            before = len(bench.records)
            bench.offer(1, 5, TERMINATE)
            bench.offer(1, 0, ACCEPT)
            await bench.settle(ctx)
            assert [ssn for _, ssn, _ in bench.records[before:]] == list(range(6))
            assert await bench.tell(ctx, 1, Function.TERMINATE) == (True, State.CLOSED)

    bench.run(testbench)
    assert not bench.events


@pytest.mark.parametrize("ends", ("refusal", "forget"))
def test_what_overtakes_an_answer_that_is_no_accept_is_swept_up(ends):
    bench = Bench()

    async def testbench(ctx):
        await bench.tell(ctx, 1, Function.INITIATE)
        for ssn in (1, 2, 5):
            bench.offer(1, ssn)
        await bench.settle(ctx)
        assert ctx.get(bench.dut.free) == SLOTS - 3
        if ends == "refusal":
            bench.offer(1, 0, REJECT)
        else:
            await bench.tell(ctx, 1, Function.FORGET)
        await bench.settle(ctx)
        await bench.step(ctx, 64 * 30)
        assert ctx.get(bench.dut.free) == SLOTS

    bench.run(testbench)
    refused = ends == "refusal"
    assert [record[1] for record in bench.records] == [0] * refused
    # Something followed the refusal.
    assert bench.events == [(1, Reason.EXCESS, State.CLOSED)] * refused


def test_what_is_behind_a_refusal_is_told_whoever_finds_it_first():
    """Section 6.3: a rejected session has no Segments. Another stream's records leave meanwhile, so
    that at times the sweep comes first."""
    bench = Bench()
    rounds = 10

    async def testbench(ctx):
        for round_ in range(rounds):
            await open_passive(bench, ctx, 2)
            await bench.tell(ctx, 1, Function.INITIATE)
            for ssn in (1, 3):
                bench.offer(1, ssn)
            for ssn in range(2, 8):
                bench.offer(2, ssn)
            await bench.settle(ctx)
            await bench.step(ctx, 5 * round_)
            bench.offer(2, 1)
            bench.offer(1, 0, REJECT)
            await bench.step(ctx, SLOTS * 14)
            assert bench.events == [(1, Reason.EXCESS, State.CLOSED)] * (round_ + 1)
            assert ctx.get(bench.dut.free) == SLOTS
            bench.offer(2, 8, TERMINATE)
            await bench.settle(ctx)
            await bench.tell(ctx, 2, Function.TERMINATE)

    bench.run(testbench)
    assert [ssn for number, ssn, _ in bench.records if number == 1] == [0] * rounds


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
            for _ in range(2):
                bench.offer(0, 0, answer)
            await bench.settle(ctx)
            assert bench.last(2) == [Verdict.FRESH, Verdict.DUPLICATE]
        bench.offer(0, 0, INITIATE)
        await bench.settle(ctx)
        function = Function.REJECT if answer is REJECT else Function.TERMINATE
        assert await bench.tell(ctx, 0, function) == (True, State.CLOSED)
        assert (await bench.tell(ctx, 0, function)) == (False, State.CLOSED)

    bench.run(testbench)
    assert bench.records == [(0, 0, answer)] * 3 + [(0, 0, INITIATE)] and not bench.events


def test_no_more_initiates_wait_than_the_limit():
    """Section 6.4: "the passive side MUST respond to the Initiate message with a DDP Stream
    Terminate Message." """
    bench = Bench(pending=2)

    async def testbench(ctx):
        for number in (3, 1, 0, 2, 0):
            bench.offer(number, 0, INITIATE)
        await bench.settle(ctx)
        assert bench.last(5) == [Verdict.FRESH] * 4 + [Verdict.DUPLICATE]
        closed = State.CLOSED
        assert bench.events == [(0, Reason.LIMIT, closed), (2, Reason.LIMIT, closed)]
        assert ctx.get(bench.dut.waiting) == 2
        assert await bench.tell(ctx, 0, Function.ACCEPT) == (False, State.REFUSED)
        assert await bench.tell(ctx, 0, Function.TERMINATE) == (True, State.CLOSED)
        bench.offer(0, 0, INITIATE)
        await bench.settle(ctx)
        assert bench.events[2:] == [(0, Reason.LIMIT, closed)]
        await bench.tell(ctx, 3, Function.ACCEPT)
        assert await bench.tell(ctx, 0, Function.FORGET) == (True, State.CLOSED)
        bench.offer(0, 0, INITIATE)
        await bench.settle(ctx)
        assert ctx.get(bench.dut.waiting) == 2
        await bench.tell(ctx, 1, Function.REJECT)
        bench.offer(0, 1)  # illegal: its session waits no longer
        await bench.settle(ctx)
        assert ctx.get(bench.dut.waiting) == 0

    bench.run(testbench)
    assert len(bench.events) == 4


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
        await bench.step(ctx, 64 * 30)
        assert ctx.get(bench.dut.free) == SLOTS
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
        await bench.step(ctx, 200)
        assert len(bench.offers) > 20
        bench.held = False

    bench.run(testbench)
    assert bench.events == [(3, Reason.MALFORMED, State.INITIATE_RECEIVED)] * 30


def test_items_go_one_a_cycle_beside_each_other():
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


class Reference:
    """The model's session of a stream, and what it delivers and reports, in the gateware's terms.

    Duplicates are not shown to it: to the model they are illegal, since an association's TSNs keep
    them from it.
    """

    def __init__(self, number):
        self.session = sctp.Session(number)
        self.considered = []
        consider = self.session._consider

        def watch(sent, message, body):
            before = self.session.state
            legal = (before, sent, message) in sctp._LEGAL
            if not sent and legal:
                kind = SEGMENT if message is None else Message(message.value)
                self.considered.append(kind)
            return consider(sent, message, body)

        self.session._consider = watch

    def receive(self, ssn, message):
        ppid, payload = payload_of(ssn, message)
        state = self.session.state.name
        if not self.session.silent and ssn and message is not INVALID:
            # The model lets these wait for those before them, and then finds them illegal.
            never = message in (INITIATE, ACCEPT, REJECT)
            if state in ("INITIATE_RECEIVED", "CLOSED", "TERMINATE_RECEIVED") or never:
                return self.session._illegal("not legal wherever it is")
        return self.session.receive(ppid, payload)

    def command(self, function):
        try:
            self.session.control(sctp.Function(function.value))
        except sctp.ProtocolError:
            return False
        return True


@pytest.mark.parametrize("delay, busy", [(0, 1.0), (7, 1.0), (2, 0.3)])
@pytest.mark.parametrize("wild", (0.0, 0.15))
def test_sessions_agree_with_the_model(delay, busy, wild):
    """Sessions of all streams at once, in rounds: what is sent in a round is shuffled (within what
    section 6.6 allows), repeated, and sometimes illegal; the host acts between rounds."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench = Bench(seed=seed, pending=STREAMS, delay=delay, busy=busy)
    references = [Reference(number) for number in range(STREAMS)]
    aborts = 0

    def states():
        return [reference.session.state.name for reference in references]

    async def testbench(ctx):
        nonlocal aborts
        came = [set() for _ in range(STREAMS)]  # (session, ssn) of what is not to be shown again
        following = [0] * STREAMS
        for round_ in range(30):
            # The host's side.
            for number in range(STREAMS):
                if rng.random() < 0.6:
                    state = references[number].session.state.name
                    legal = {
                        "INITIATE_RECEIVED": (Function.ACCEPT,) * 4 + (Function.REJECT,),
                        "CLOSED": (Function.INITIATE,),
                        "ABORTED": (Function.INITIATE, Function.TERMINATE),
                    }.get(state, (Function.TERMINATE,) * (rng.random() < 0.3))
                    if legal:
                        function = rng.choice(legal if rng.random() > wild else list(Function)[1:])
                        if function is Function.INITIATE and references[number].session._received:
                            continue  # what is lost of a session is not known to the gateware
                        taken = references[number].command(function)
                        answer = await bench.tell(ctx, number, function)
                        assert answer[0] == taken, (round_, number, function, state)
                        assert answer[1].name == references[number].session.state.name
                        if taken and function is Function.INITIATE:
                            following[number] = 0
                            came[number].clear()
            # The peer's side.
            wire = []
            for number in range(STREAMS):
                session = references[number].session
                items = []
                if rng.random() < wild:
                    message = rng.choice(list(Message))
                    at = rng.choice((0, following[number], following[number] + 1))
                    # What is lost of a session, the gateware does not know.
                    if message is not INITIATE or at or not session._received:
                        items.append((at, message))
                elif session.state.name in ("CLOSED", "TERMINATE_RECEIVED", "ABORTED"):
                    if not session._received:
                        items.append((0, INITIATE))
                elif session.state.name == "INITIATE_SENT":
                    items.append((0, rng.choice((ACCEPT, ACCEPT, ACCEPT, REJECT, TERMINATE))))
                    if items[0][1] is ACCEPT:
                        items += [(ssn, SEGMENT) for ssn in range(1, rng.randrange(1, 5))]
                        rng.shuffle(items)
                elif session.state.name in ("ESTABLISHED", "TERMINATE_SENT"):
                    start = following[number]
                    items += [(start + k, SEGMENT) for k in range(rng.randrange(7))]
                    if rng.random() < 0.3:
                        items.append((start + len(items), TERMINATE))
                    rng.shuffle(items)
                items += rng.sample(items, min(len(items), rng.randrange(3)))
                wire.append(items)
            order = [number for number, items in enumerate(wire) for _ in items]
            rng.shuffle(order)
            expected = [len(reference.considered) for reference in references]
            illegal, sent = [], []
            records = len(bench.records)
            events = len(bench.events)
            for number in order:
                ssn, message = wire[number].pop(0)
                bench.offer(number, ssn, message)
                sent.append((number, ssn, message))
                reference = references[number]
                state = reference.session.state.name
                # An Initiate that may open a session is always new.
                opens = message is INITIATE and ssn == 0 and reference.session._reusable()
                if opens:
                    came[number].clear()
                elif message is not INVALID and state != "ABORTED":
                    if ssn in came[number] or (ssn - following[number]) % 65536 >= 32768:
                        continue
                seen = reference.receive(ssn, message)
                if any(isinstance(event, sctp.SessionIllegal) for event in seen):
                    illegal.append(number)
                if not reference.session.silent:
                    came[number].add(ssn)
                following[number] = reference.session._in.next
            await bench.settle(ctx)
            # Streams meet in their places; what was dropped for that comes again.
            for _ in range(4):
                for item in bench.verdicts[-len(sent) :] if sent else ():
                    if item[-1] == Verdict.OUTSIDE:
                        bench.offer(*item[:3])
                sent = [item[:3] for item in bench.offers]
                await bench.settle(ctx)
            aborts += len(illegal)
            got = sorted(event[0] for event in bench.events[events:])
            assert got == sorted(illegal), f"round {round_}: {bench.verdicts[-len(order):]}"
            for number, reference in enumerate(references):
                want = reference.considered[expected[number] :]
                have = [message for at, _, message in bench.records[records:] if at == number]
                if number in illegal:  # what came shortly before or after may be delivered, or not
                    assert have[: len(want)] == want[: len(have)], f"round {round_} stream {number}"
                else:
                    assert have == want, f"round {round_} stream {number}"

    bench.run(testbench)
    assert bool(aborts) == bool(wild)
    assert len(bench.records) > 100


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"streams": 5}, ValueError, "streams must be a power of two from 2 to 4096, not 5"),
        ({"streams": "4"}, TypeError, "Session streams must be an integer, not '4'"),
        ({"pending": 0}, ValueError, "Session pending must be 1 or more, not 0"),
    ],
)
def test_parameters_are_checked(options, error, message):
    with warnings.catch_warnings():
        # What was refused is never used; it goes here and now.
        warnings.simplefilter("ignore", UnusedElaboratable)
        with pytest.raises(error) as refusal:
            Session(**options)
        told = str(refusal.value)
        del refusal
        gc.collect()
    assert message in told
