"""Tests Delivery against a host that keeps a queue's memory, and against plain counting."""

import dataclasses
import random
import struct
from functools import partial

import pytest
from ddp_rnic.hdl.bus.tests.axi import Responses
from ddp_rnic.hdl.ddp.delivery import Delivery, Due, Record
from ddp_rnic.hdl.ddp.entry import CompletionEntry
from ddp_rnic.hdl.lib.testing import Sinks, numbered, shared, simulate
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.spec import completion
from ddp_rnic.hdl.spec.completion import Completion, Status, decode
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig

BACKLOG = 64
GUARD = 0xEE
BASES = (0x1_0000, 0xFFFF_FFFF_FFFF_0020, 0x0000_0007_FFFF_FFE0)
MODULUS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Message:
    """A message, and the placements that must retire before it is due."""

    count: int
    stream: int = 3
    tagged: bool = False
    qn: int = 0
    tag: int = 0
    rsvdulp: int = 0
    length: int = 0
    cookie: int = 0

    @property
    def record(self):
        """Returns the record for the gateware: RsvdULP has the wire's first octet lowest."""
        wire = self.rsvdulp.to_bytes(1 if self.tagged else 5, "big")
        fields = dataclasses.asdict(self)
        return {
            **fields, "count": self.count % MODULUS, "rsvdulp": int.from_bytes(wire, "little"),
            "complete": 1,
        }

    def entry(self, number, size, status):
        """Returns the octets that the host must find."""
        wire = self.rsvdulp.to_bytes(1 if self.tagged else 5, "big")
        return struct.pack(
            "<BBHIII5sB9xB", self.tagged, status, self.stream, self.tag, self.length, self.cookie,
            wire, self.qn, 1 - (number >> size) % 2)


@dataclasses.dataclass
class Outcome:
    """The output of a run.

    ``shown`` and ``addressed``: the first cycle of a completion's data and of its address;
    ``answered``: the cycle of its response; ``retired``: the cycle of each done.
    """

    entries: list[bytes] = dataclasses.field(default_factory=list)
    shown: list[int] = dataclasses.field(default_factory=list)
    addressed: list[int] = dataclasses.field(default_factory=list)
    answered: list[int] = dataclasses.field(default_factory=list)
    recorded: list[int] = dataclasses.field(default_factory=list)
    retired: list[int] = dataclasses.field(default_factory=list)
    failed: list[int] = dataclasses.field(default_factory=list)
    overran: list[int] = dataclasses.field(default_factory=list)
    most_outstanding: int = 0
    producer: int = 0
    delivered: int = 0
    failed_ring: bool = False
    cycles: int = 0


def messages_of(rng, number, *, placements=3):
    """Returns messages of every kind; fields that a tagged message does not use are 0."""
    count, messages = 0, []
    for _ in range(number):
        count += rng.randrange(placements + 1)
        tagged = rng.random() < 0.4
        messages.append(Message(
            count, rng.randrange(8), tagged, 0 if tagged else rng.randrange(4),
            rng.getrandbits(32), rng.getrandbits(8 if tagged else 40),
            0 if tagged else rng.getrandbits(32), 0 if tagged else rng.getrandbits(32)))
    return messages


class Host:
    """Keeps the memory of a ring, and writes to it what the bus brings."""

    def __init__(self, width, base, size):
        self.octets, self.base, self.entries = width // 8, base, 1 << size
        self.beats = max(1, 32 // self.octets)
        self.memory = bytearray([GUARD]) * (32 * self.entries + 256)
        self.addresses, self.data, self.written = [], [], []

    def address(self, payload):
        self.addresses.append(payload.addr)
        assert payload.addr % self.octets == 0
        assert payload.len + 1 == self.beats

    def beat(self, payload):
        self.data.append((payload.data, payload.strb))
        if self.octets == 64:
            assert payload.strb in (0xFFFF_FFFF, 0xFFFF_FFFF << 32)
        else:
            assert payload.strb == (1 << self.octets) - 1
        assert payload.last == self.between

    @property
    def between(self):
        """Returns whether the data of the last burst is complete."""
        return len(self.data) % self.beats == 0

    def write(self):
        """Writes the bursts of which address and data are there to memory."""
        while len(self.written) < min(len(self.addresses), len(self.data) // self.beats):
            number = len(self.written)
            beats = self.data[self.beats * number:self.beats * (number + 1)]
            for beat, (value, strobe) in enumerate(beats):
                for lane in range(self.octets):
                    if strobe >> lane & 1:
                        at = self.addresses[number] + self.octets * beat + lane - self.base
                        self.memory[at % (1 << 64) + 128] = value >> 8 * lane & 0xFF
            at = 128 + 32 * (number % self.entries)
            self.written.append(bytes(self.memory[at:at + 32]))

    def check_guard(self):
        beside = self.memory[:128] + self.memory[128 + 32 * self.entries:]
        assert {*beside} == {GUARD}, "written beside the ring"


class Bench:
    """Gives messages and dones to Delivery, takes its outputs, and consumes completions.

    ``idle`` has the share of cycles in which each input waits: ``record``, ``done``, ``consume``.
    """

    def __init__(self, dut, messages, host, *, errors, idle, stalls, rng):
        self.dut, self.messages, self.host, self.rng = dut, messages, host, rng
        self.errors, self.idle = errors, idle
        self.total = messages[-1].count
        self.sinks = Sinks(
            {"aw": dut.bus.aw, "w": dut.bus.w, "failed": dut.failed}, stalls=stalls, rng=rng)
        self.outcome = Outcome(entries=host.written)
        self.sent = self.retired = self.consumer = 0
        self.offers = self.asks = False

    async def run(self, ctx, responses, size):
        """Ends once all completions are answered and all is quiet."""
        dut, outcome = self.dut, self.outcome
        outcome.answered = responses.answered
        await set_up(ctx, dut, self.host.base, size)
        calm = 0
        ticks = ctx.tick().sample(
            dut.half, dut.done.ready, dut.retired, dut.host.found[0], dut.delivered,
            dut.host.failed,
            dut.busy, dut.bus.b.ready, *self.sinks.signals)
        async for cycle, (half, done_ready, retired, producer, delivered, failed_ring, busy,
                          b_ready, *rest) in numbered(ticks):
            outcome.cycles = cycle
            assert retired == self.retired % MODULUS, f"{cycle=}"
            outcome.delivered += delivered
            self.see_inputs(cycle, done_ready)
            for seen in self.sinks.look(rest):
                self.see_output(cycle, seen)
            self.host.write()
            responses.step(ctx, cycle, len(self.host.written), b_ready)
            outstanding = len(outcome.addressed) - len(responses.answered)
            outcome.most_outstanding = max(outcome.most_outstanding, outstanding)
            good = min([len(responses.answered), *responses.refused])
            assert (producer - self.consumer) % MODULUS <= self.host.entries
            assert self.consumer <= producer <= good, f"{producer=}, answered {good}, {cycle=}"
            self.sinks.set_ready(ctx)
            self.set_inputs(ctx, half, producer)
            outcome.producer, outcome.failed_ring = producer, bool(failed_ring)
            over = (len(responses.answered) == self.sent == len(self.messages)
                    and self.retired == self.total
                    and len(outcome.failed) == len(self.errors))
            calm = calm + 1 if over or (failed_ring and not busy) else 0
            if calm == 40:
                assert not busy, "busy with nothing to do"
                return

    def see_inputs(self, cycle, done_ready):
        """Counts the message and the done that Delivery took in this cycle."""
        if self.asks and done_ready:
            self.outcome.retired.append(cycle)
            self.retired += 1
            self.asks = False
        if self.offers:
            self.outcome.recorded.append(cycle)
            self.sent += 1

    def see_output(self, cycle, seen):
        """Checks that a completion does not begin too soon; gives the transfer to the host."""
        name, payload, host, outcome = seen.name, seen.payload, self.host, self.outcome
        if name == "failed":
            if seen.taken:
                (outcome.overran if payload.overrun else outcome.failed).append(payload.stream)
            return
        if seen.fresh and (name == "aw" or host.between):
            begun = outcome.addressed if name == "aw" else outcome.shown
            number = len(begun)
            begun.append(cycle)
            assert number < self.sent, f"{name} of nothing, {cycle=}"
            want = self.messages[number].count
            assert self.retired >= want, (
                f"{name} of completion {number} before its last write response: "
                f"{want} expected, {self.retired} got, {cycle=}")
            assert number - self.consumer < host.entries, f"{name} overruns the ring, {cycle=}"
        if seen.taken:
            (host.address if name == "aw" else host.beat)(payload)

    def set_inputs(self, ctx, half, producer):
        """Draws whether there is a message, a done, and a host that consumes."""
        dut, rng, idle = self.dut, self.rng, self.idle
        self.offers = (self.sent < len(self.messages) and bool(half)
                       and rng.random() >= idle["record"])
        if self.offers:
            ctx.set(dut.records.payload, self.messages[self.sent].record)
        ctx.set(dut.records.valid, self.offers)
        if not self.asks and self.retired < self.total and rng.random() >= idle["done"]:
            self.asks = True
            ctx.set(dut.done.payload, {"error": self.retired in self.errors,
                                       "stream": self.errors.get(self.retired, 0)})
        ctx.set(dut.done.valid, self.asks)
        takes = producer > self.consumer and rng.random() >= idle["consume"]
        if takes:
            self.consumer += rng.randrange(1, producer - self.consumer + 1)
            ctx.set(dut.host.doorbell.payload, {"consumer": self.consumer})
        ctx.set(dut.host.doorbell.valid, takes)


async def set_up(ctx, dut, base, size):
    """Enables the queue that all streams have."""
    ctx.set(dut.host.settings.payload, {"entry": {
        "enable": 1, "base": base >> 5, "size": size}})
    ctx.set(dut.host.settings.valid, 1)
    await ctx.tick()
    ctx.set(dut.host.settings.valid, 0)
    await ctx.tick()
    while ctx.get(dut.host.restarting):
        await ctx.tick()


def run(width, messages, *, size=8, base=BASES[0], record=0.0, done=0.0, answer=0.0, consume=0.0,
        latency=2, errors=None, refused=(), seed=1, limit=None, outstanding=64, **stalls):
    """Runs messages through Delivery; a side given as 0.3 idles in 3 cycles of 10.

    ``stalls``: the sides ``aw``, ``w`` and ``failed``. ``errors``: placements whose done has an
    error, as {number: stream}. ``refused``: completions whose write the bus refuses.
    """
    dut = shared(
        Delivery, RnicConfig(width=width, backlog=BACKLOG, outstanding=outstanding, streams=8))
    rng = random.Random(seed)
    host = Host(width, base, size)
    bench = Bench(dut, messages, host, errors=errors or {}, stalls=stalls, rng=rng,
                  idle={"record": record, "done": done, "consume": consume})
    responses = Responses(dut.bus.b, latency=latency, stall=answer, refused=refused, rng=rng)
    simulate(
        dut, partial(bench.run, responses=responses, size=size),
        limit=limit or 500 + 60 * len(messages))
    host.check_guard()
    return bench.outcome


def check(width, messages, *, size=8, errors=None, **options):
    """Runs messages, and checks every octet of every completion."""
    errors = errors or {}
    outcome = run(width, messages, size=size, errors=errors, **options)
    assert len(outcome.entries) == len(messages), f"{width=}"
    for number, (message, got) in enumerate(zip(messages, outcome.entries, strict=True)):
        mine = [place for place, stream in errors.items() if stream == message.stream]
        must = any(place < message.count for place in mine)
        may = any(outcome.retired[place] < outcome.shown[number] for place in mine)
        expected = [message.entry(number, size, status)
                    for status in {int(must), int(may)}]
        assert got in expected, f"completion {number}: {expected} expected, {got} got, {width=}"
    assert outcome.producer == len(messages) == outcome.delivered
    assert not outcome.failed_ring and not outcome.overran
    assert sorted(outcome.failed) == sorted(errors.values())
    return outcome


@pytest.mark.parametrize("sides", [
    {},
    {"consume": 0.97},
    {"record": 0.3, "done": 0.3, "aw": 0.5, "w": 0.5, "answer": 0.5, "consume": 0.9},
    *long(
        {"record": 0.5, "done": 0.5},
        {"aw": 0.7, "w": 0.3},
        {"aw": 0.3, "w": 0.7, "answer": 0.5},
        {"done": 0.8, "latency": 30},
    ),
], ids=lambda sides: "-".join(sides) or "none")
@pytest.mark.parametrize("width", WIDTHS)
def test_every_message_has_one_completion_in_order_and_not_too_soon(width, sides):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    messages = messages_of(rng, 150)
    check(width, messages, size=rng.randrange(8, 12), base=rng.choice(BASES), seed=seed, **sides)


@pytest.mark.parametrize("size", (6, 7, 15))
@pytest.mark.parametrize("width", NARROW)
def test_a_ring_lies_at_any_address(width, size):
    check(width, messages_of(random.Random(size), 50), size=size, base=BASES[size % 3])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_completion_each_few_cycles(width):
    messages = [Message(n) for n in range(1, 201)]
    outcome = check(width, messages, size=10)
    beats = max(1, 256 // width)
    for cycles in (outcome.shown, outcome.addressed, outcome.answered):
        steps = {later - earlier for earlier, later in zip(cycles, cycles[1:], strict=False)}
        assert steps == {beats}, f"{width=}"


@pytest.mark.parametrize("width", WIDTHS)
def test_latency_is_what_the_docstring_says(width):
    outcome = check(width, [Message(20)])
    assert outcome.recorded[0] + 10 < outcome.retired[-1]
    assert outcome.shown[0] - outcome.retired[-1] == 25
    assert outcome.addressed[0] - outcome.retired[-1] == 27


@pytest.mark.parametrize("width", NARROW)
def test_no_more_are_on_the_bus_than_may_be_and_as_many_can_be(width):
    outcome = check(width, [Message(0)] * 60, size=6, latency=200, outstanding=16)
    assert outcome.most_outstanding == 16


@pytest.mark.parametrize("size", (1, 3))
@pytest.mark.parametrize("width", NARROW)
def test_a_full_queue_drops_completions_and_stops_nothing(width, size):
    dut = shared(Delivery, RnicConfig(width=width, backlog=BACKLOG))
    messages = [Message(n, cookie=n) for n in range(1, BACKLOG + 1)]

    async def bench(ctx):
        await set_up(ctx, dut, 0, size)
        for port in (dut.bus.aw, dut.bus.w, dut.failed):
            ctx.set(port.ready, 1)
        for message in messages:
            ctx.set(dut.records.valid, 1)
            ctx.set(dut.records.payload, message.record)
            await ctx.tick()
        ctx.set(dut.records.valid, 0)
        # Placements of other streams continue.
        ctx.set(dut.done.valid, 1)
        written, failed = 0, []
        for _ in range(300):
            *_, ready, valid, fails, failure = await ctx.tick().sample(
                dut.done.ready, dut.bus.aw.valid, dut.failed.valid, dut.failed.payload)
            assert ready
            written += valid
            if fails:
                failed.append((failure.stream, failure.overrun))
        assert written == 1 << size
        assert failed == [(3, 1)], "the stream, once"
        assert ctx.get(dut.half)
        ctx.set(dut.done.valid, 0)
        ctx.set(dut.bus.b.valid, 1)
        await ctx.tick().repeat(1 << size)
        ctx.set(dut.bus.b.valid, 0)
        await ctx.tick().repeat(20)
        assert not ctx.get(dut.busy)
        assert ctx.get(dut.host.found[0]) == 1 << size

    simulate(dut, bench, limit=60_000)


def test_the_backlog_says_when_half_of_it_is_taken():
    dut = shared(Delivery, RnicConfig(backlog=BACKLOG))

    async def bench(ctx):
        ctx.set(dut.records.valid, 1)
        ctx.set(dut.records.payload, Message(1).record)
        for number in range(BACKLOG):
            assert ctx.get(dut.half) == (number < BACKLOG // 2), f"{number} are in it"
            await ctx.tick()

    simulate(dut, bench)


def test_a_message_that_waits_for_its_octets_makes_it_busy():
    dut = shared(Delivery, RnicConfig(backlog=BACKLOG))

    async def bench(ctx):
        assert not ctx.get(dut.busy)
        ctx.set(dut.records.valid, 1)
        ctx.set(dut.records.payload, Message(1).record)
        await ctx.tick()
        ctx.set(dut.records.valid, 0)
        await ctx.tick().repeat(8)
        for _ in range(50):
            assert ctx.get(dut.busy)
            await ctx.tick()
        # It is dropped: no queue is enabled.
        ctx.set(dut.done.valid, 1)
        await ctx.tick()
        ctx.set(dut.done.valid, 0)
        ctx.set(dut.failed.ready, 1)
        await ctx.tick().repeat(30)
        assert not ctx.get(dut.busy)

    simulate(dut, bench)


@pytest.mark.parametrize("sides", [
    {},
    {"done": 0.6, "failed": 0.9, "record": 0.4},
    {"consume": 0.95},
], ids=("fast", "slow", "full"))
@pytest.mark.parametrize("width", [64, *long(512)])
def test_a_bus_error_marks_the_messages_of_its_stream_from_then_on(width, sides):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    messages = messages_of(rng, 150)
    errors = {rng.randrange(messages[-1].count): stream for stream in (0, 3, 3, 5, 5, 5)}
    check(width, messages, errors=errors, seed=seed, **sides)


def test_errors_that_nobody_takes_hold_placement_up_and_are_not_lost():
    errors = {place: place % 8 for place in range(60)}
    outcome = check(64, [Message(60, stream) for stream in range(8)], errors=errors, failed=0.95,
                    limit=6000)
    assert outcome.failed == [place % 8 for place in range(60)]


@pytest.mark.parametrize("width", NARROW)
def test_a_refused_completion_stops_its_queue_and_is_not_counted(width):
    messages = [Message(0, cookie=n) for n in range(40)]
    outcome = run(width, messages, refused={10}, outstanding=8, size=10, limit=3000)
    assert outcome.failed_ring
    assert outcome.producer == outcome.delivered == 10
    assert outcome.overran == [3]
    # Completions on the bus when the refusal came, and those begun before it was known.
    assert 11 <= len(outcome.entries) <= 10 + 8 + 16


def due_of(messages, dones, *, start=0, clears=(), idle=0.0, seed=1):
    """Runs ``Due``; returns the cycle and the result of each message, and the cycle of each done.

    ``dones``: (error, stream); ``clears``: (cycle, stream).
    """
    dut = Due(RnicConfig(backlog=BACKLOG, streams=8))
    rng = random.Random(seed)
    out, taken, failed = [], [], []
    clears = dict(clears)

    async def bench(ctx):
        ctx.set(dut.failed.ready, 1)
        await ctx.tick().repeat(3)
        ctx.set(dut.retired, start % MODULUS)
        pending, asked = iter(messages), iter(dones)
        ask = None
        for cycle in range(60 + 3 * len(messages) + 3 * len(dones)):
            offer = next(pending, None) if rng.random() >= idle else None
            ctx.set(dut.i.valid, offer is not None)
            if offer is not None:
                ctx.set(dut.i.payload, {"stream": offer.stream,
                                        "count": (offer.count + start) % MODULUS})
            if ask is None and rng.random() >= idle:
                ask = next(asked, None)
                if ask:
                    ctx.set(dut.done.payload, {"error": ask[0], "stream": ask[1]})
            ctx.set(dut.done.valid, ask is not None)
            ctx.set(dut.clear.valid, cycle in clears)
            ctx.set(dut.clear.payload, clears.get(cycle, 0))
            *_, valid, word, ready, lost, stream = await ctx.tick().sample(
                dut.o.valid, dut.o.payload, dut.done.ready, dut.failed.valid, dut.failed.payload)
            if valid:
                assert len(taken) >= messages[len(out)].count, f"too soon, {cycle=}"
                out.append((cycle, word))
            if ask is not None and ready:
                taken.append(cycle)
                ask = None
            if lost:
                failed.append(stream)
        assert ctx.get(dut.retired) == (start + len(dones)) % MODULUS

    simulate(dut, bench)
    assert len(out) == len(messages) and len(taken) == len(dones)
    assert failed == [stream for error, stream in dones if error]
    return out, taken


@pytest.mark.parametrize("idle", (0.0, 0.5))
@pytest.mark.parametrize("start", (0, MODULUS // 2 - 20, MODULUS - 20))
def test_messages_are_due_in_order_when_the_count_is_reached_whatever_it_is(start, idle):
    messages = messages_of(random.Random(start), 60, placements=2)
    out, taken = due_of(messages, [(0, 0)] * messages[-1].count, start=start, idle=idle)
    assert [word for _, word in out] == [0] * len(messages)


def test_a_message_and_a_placement_each_cycle():
    out, taken = due_of([Message(n) for n in range(1, 61)], [(0, 0)] * 60)
    for cycles in (taken, [cycle for cycle, _ in out]):
        assert cycles == list(range(cycles[0], cycles[0] + 60))


def test_a_message_is_due_four_cycles_after_its_last_placement():
    out, taken = due_of([Message(40)], [(0, 0)] * 40)
    assert out[0][0] == taken[39] + 4
    out, _ = due_of([Message(0)], [])
    assert out[0][0] == 8


def test_an_error_fails_the_message_that_waits_for_it_and_later_ones_of_its_stream():
    messages = [Message(18, 1), Message(19, 2), Message(20, 1), Message(21, 2), Message(22, 1),
                Message(22, 2), Message(40, 1)]
    dones = [(0, 1)] * 19 + [(1, 1)] + [(0, 1)] * 20
    out, _ = due_of(messages, dones)
    assert [word for _, word in out] == [0, 0, 1, 0, 1, 0, 1]


def test_a_stream_that_is_cleared_has_not_failed():
    messages = [Message(1, 1), Message(1, 2), Message(80, 1), Message(80, 2)]
    dones = [(1, 1), (1, 2)] + [(0, 5)] * 78
    out, taken = due_of(messages[:1] + messages[2:], dones, clears=[(40, 1)])
    assert [word for _, word in out] == [1, 0, 1]
    assert out[-1][0] == taken[-1] + 5


def test_clearing_goes_before_errors_and_loses_none():
    clears = [(cycle, 3) for cycle in range(5, 25)]
    out, taken = due_of([Message(30, 4)], [(1, 4)] * 30, clears=clears)
    assert out[0][1] == 1
    assert not set(taken) & set(range(6, 26))


def test_the_layouts_agree_with_the_specification():
    entry = CompletionEntry()
    assert entry.size == 8 * completion.OCTETS
    assert Record(RnicConfig())["count"].width == 16
    end = 0
    for field in sorted(completion.FIELDS, key=lambda field: (field.octet, field.bit)):
        assert 8 * field.octet + field.bit >= end, f"{field.name} overlaps"
        end = 8 * field.octet + field.bit + field.bits
    assert end <= entry.size


def test_an_entry_is_read_as_what_it_is():
    octets = bytes.fromhex("00 00 34 12 04 03 02 01 40 00 00 00 78 56 34 12"
                           "41 00 00 00 07 03") + bytes(9) + b"\x01"
    assert decode(octets) == Completion(
        phase=1, tagged=False, status=Status.DELIVERED, stream=0x1234, tag=0x0102_0304,
        length=64, cookie=0x1234_5678, rsvdulp=0x41_0000_0007, qn=3)
    octets = bytes.fromhex("01 01 02 00 ef be ad de 00000000 00000000 40") + bytes(15)
    assert decode(octets) == Completion(
        phase=0, tagged=True, status=Status.NOT_PLACED, stream=2, tag=0xDEAD_BEEF,
        length=0, cookie=0, rsvdulp=0x40, qn=0)


@pytest.mark.parametrize("octets", (0, 31, 33))
def test_an_entry_of_another_size_is_refused(octets):
    with pytest.raises(ValueError, match=f"A completion must be 32 octets, not {octets}"):
        decode(bytes(octets))


def test_what_the_gateware_writes_is_what_the_host_reads():
    rng = random.Random(9)
    messages = messages_of(rng, 40)
    outcome = check(64, messages)
    for number, (message, octets) in enumerate(zip(messages, outcome.entries, strict=True)):
        assert decode(octets) == Completion(
            completion.phase(number, 8), message.tagged, Status.DELIVERED, message.stream,
            message.tag, message.length, message.cookie, message.rsvdulp, message.qn)
