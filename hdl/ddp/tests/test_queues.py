"""Tests the completion queues against a host that keeps all their rings, some of them badly."""

import random

import pytest
from ddp_rnic.hdl.bus.tests.axi import Responses
from ddp_rnic.hdl.ddp.queues import CompletionQueues
from ddp_rnic.hdl.ddp.room import queues_of
from ddp_rnic.hdl.lib.testing import Sinks, numbered, shared, simulate
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.spec import completion
from ddp_rnic.hdl.spec.completion import Kind, decode
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig

MODULUS = 1 << 16
LATENCY = {"w": 11, "aw": 13}


def config_of(width, **options):
    return RnicConfig(width=width, streams=8, completion_queues=4, **options)


class Host:
    """Keeps the memory of the rings, and writes to it what the bus brings."""

    def __init__(self, width, sizes, base=3):
        self.octets = width // 8
        self.beats = max(1, 32 // self.octets)
        self.sizes, self.bases = dict(sizes), {}
        for queue, size in sizes.items():
            # The last entries of a ring lie across a carry into the upper half of the address.
            self.bases[queue] = (base << 35) - (32 << size) // 2 + 32 * (queue % 2)
            base += 5
        self.addresses, self.data = [], []
        self.count = dict.fromkeys(sizes, 0)  # entries written since the restart
        self.written = []  # (queue, entry), in the order of the bus

    def address(self, payload):
        assert payload.addr % self.octets == 0
        assert payload.len + 1 == self.beats
        self.addresses.append(payload.addr)

    def beat(self, payload):
        self.data.append((payload.data, payload.strb))
        assert payload.last == (len(self.data) % self.beats == 0)

    def write(self, taken):
        """Writes the whole bursts; ``taken`` has each queue's consumer index."""
        while len(self.written) < min(len(self.addresses), len(self.data) // self.beats):
            number = len(self.written)
            octets = {}
            for beat, (value, strobe) in enumerate(
                    self.data[self.beats * number:self.beats * (number + 1)]):
                for lane in range(self.octets):
                    if strobe >> lane & 1:
                        at = self.addresses[number] + self.octets * beat + lane
                        octets[at] = value >> 8 * lane & 0xFF
            first = min(octets)
            assert sorted(octets) == [*range(first, first + 32)]
            (queue,) = (each for each, base in self.bases.items()
                        if base <= first < base + (32 << self.sizes[each]))
            count, size = self.count[queue], self.sizes[queue]
            assert first == self.bases[queue] + 32 * (count % (1 << size)), f"{queue=} {count=}"
            assert (count - taken[queue]) % MODULUS < 1 << size, f"{queue=}: not taken {count=}"
            entry = decode(bytes(octets[first + k] for k in range(32)))
            assert entry.phase == completion.phase(count, size), f"{queue=} {count=}"
            self.count[queue] += 1
            self.written.append((queue, entry))


def entry_of(number, stream, *, owner=False, tagged=False):
    return {"stream": stream, "cookie": number, "tagged": tagged,
            "kind": Kind.CHUNK if owner else Kind.MESSAGE}


async def set_up(ctx, dut, host, binding, silent=()):
    """Enables the host's queues and binds the streams; returns once no queue restarts."""
    for queue in host.sizes:
        await enable(ctx, dut, host, queue)
    for stream, queue in enumerate(binding):
        ctx.set(dut.host.bind.payload, {
            "stream": stream, "queue": queue, "silent": stream in silent})
        ctx.set(dut.host.bind.valid, 1)
        await ctx.tick()
    ctx.set(dut.host.bind.valid, 0)
    while ctx.get(dut.host.restarting):
        await ctx.tick()


async def enable(ctx, dut, host, queue, on=1):
    ctx.set(dut.host.settings.payload, {
        "index": queue,
        "entry": {"enable": on, "base": host.bases[queue] >> 5, "size": host.sizes[queue]}})
    ctx.set(dut.host.settings.valid, 1)
    await ctx.tick()
    ctx.set(dut.host.settings.valid, 0)


class Bench:
    """Gives entries to the queues, consumes some of them, and clears streams that have overrun.

    ``takes``: for each queue, the probability that the host takes entries in a cycle. ``paced``: an
    entry comes only once the host has taken those before it.
    """

    def __init__(self, dut, host, entries, *, takes, binding, silent=(), clears=0.0, idle=0.0,
                 paced=False, stalls=None, latency=2, answer=0.0, refused=(), rng):
        self.dut, self.host, self.entries, self.takes = dut, host, entries, takes
        self.binding, self.silent, self.clears, self.idle = binding, silent, clears, idle
        self.rng, self.paced = rng, paced
        self.sinks = Sinks({"aw": dut.bus.aw, "w": dut.bus.w, "overran": dut.overran},
                           stalls=stalls or {}, rng=rng)
        self.responses = Responses(
            dut.bus.b, latency=latency, stall=answer, refused=refused, rng=rng)
        self.given = []  # (cycle, entry)
        self.overran = []
        self.waits = self.longest = 0
        self.shown = {"aw": [], "w": []}

    async def run(self, ctx):
        dut, host, rng = self.dut, self.host, self.rng
        await set_up(ctx, dut, host, self.binding, self.silent)
        self.taken = dict.fromkeys(host.sizes, 0)
        self.calm = self.quiet = 0
        offer = None
        position, between = 0, True
        ticks = ctx.tick().sample(dut.i.ready, dut.bus.b.ready, dut.busy, *self.sinks.signals)
        async for cycle, (ready, b_ready, busy, *rest) in numbered(ticks):
            if offer is not None and ready:
                self.given.append((cycle, self.entries[position]))
                position += 1
                offer = None
            self.waits = self.waits + 1 if offer is not None else 0
            self.longest = max(self.longest, self.waits)
            for seen in self.sinks.look(rest):
                if seen.name == "overran":
                    if seen.taken:
                        self.overran.append(seen.payload)
                    continue
                if seen.fresh and (seen.name == "aw" or between):
                    self.shown[seen.name].append(cycle)
                if seen.taken:
                    (host.address if seen.name == "aw" else host.beat)(seen.payload)
                if seen.name == "w":
                    between = len(host.data) % host.beats == 0
            host.write(self.taken)
            self.responses.step(ctx, cycle, len(host.written), b_ready)
            self.sinks.set_ready(ctx)
            behind = self.paced and sum(self.taken.values()) < position
            if (offer is None and position < len(self.entries) and not behind
                    and rng.random() >= self.idle):
                offer = self.entries[position]
                ctx.set(dut.i.payload, offer)
            ctx.set(dut.i.valid, offer is not None)
            self._take(ctx)
            self._clear(ctx, rng)
            self.calm = 0 if busy or position < len(self.entries) else self.calm + 1
            if self.calm > 60:
                assert len(self.responses.answered) == len(host.written)
                return

    def _take(self, ctx):
        """Takes entries of some queue."""
        dut, host, rng = self.dut, self.host, self.rng
        ctx.set(dut.host.doorbell.valid, 0)
        queue = rng.choice([*host.sizes])
        new = host.count[queue] - self.taken[queue]
        if new and rng.random() < self.takes[queue]:
            self.taken[queue] += rng.randrange(1, new + 1)
            ctx.set(dut.host.doorbell.valid, 1)
            ctx.set(dut.host.doorbell.payload, {
                "queue": queue, "consumer": self.taken[queue] % MODULUS})

    def _clear(self, ctx, rng):
        self.quiet -= 1
        ctx.set(self.dut.clear.valid, 0)
        if self.overran and self.quiet < 0 and rng.random() < self.clears:
            ctx.set(self.dut.clear.valid, 1)
            ctx.set(self.dut.clear.payload, rng.choice(self.overran))
            self.quiet = 1


def play(width, entries, sizes, *, binding, takes=1.0, seed=1, limit=None, **options):
    dut = shared(CompletionQueues, config_of(width))
    host = Host(width, sizes)
    takes = takes if isinstance(takes, dict) else dict.fromkeys(sizes, takes)
    bench = Bench(dut, host, entries, takes=takes, binding=binding,
                  rng=random.Random(seed), **options)
    simulate(dut, bench.run, limit=limit or 1000 + 40 * len(entries))
    return bench


def written_of(bench, stream):
    """Returns the numbers of a stream's entries that were written, in order."""
    return [entry.cookie for _, entry in bench.host.written
            if entry.stream == stream and entry.kind is Kind.MESSAGE]


SIDES = ({}, {"stalls": {"aw": 0.5, "w": 0.3}}, {"answer": 0.7, "latency": 20},
         {"idle": 0.6}, {"stalls": {"overran": 0.9}})


@pytest.mark.parametrize("sides", SIDES, ids=lambda sides: "-".join(sides) or "none")
@pytest.mark.parametrize("width", WIDTHS)
def test_each_queue_gets_its_entries_in_order_whatever_the_others_do(width, sides):
    # Queue 0 is never taken, queue 1 seldom; queues 2 and 3 hold all that comes. Stream 7 has a
    # queue that was never enabled.
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    binding = (0, 0, 1, 1, 2, 2, 3, 5)
    entries = [entry_of(number, rng.randrange(8)) for number in range(120)]
    bench = play(width, entries, {0: 2, 1: 1, 2: 9, 3: 9}, binding=binding,
                 takes={0: 0.0, 1: 0.1, 2: 0.5, 3: 0.5}, seed=seed, **sides)
    assert [each["cookie"] for _, each in bench.given] == [*range(120)]
    for queue, entry in bench.host.written:
        assert queue == binding[entry.stream]
    for stream in range(8):
        mine = [each["cookie"] for each in entries if each["stream"] == stream]
        got = written_of(bench, stream)
        assert got == mine[:len(got)], f"{stream=}"
        # A stream that has lost one has lost all after it, and is reported once.
        assert bench.overran.count(stream) == (len(got) < len(mine)), f"{stream=}"
        if stream in (4, 5, 6):
            assert got == mine
    assert bench.host.count[0] == 4, "the queue is full, and no fuller"
    assert not written_of(bench, 7)


@pytest.mark.parametrize("width", (64, 512))
def test_random_streams_overrun_and_restart(width):
    """A cleared stream continues; its entries before and after that are in order."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    binding = (0, 0, 1, 1, 2, 2, 3, 3)
    entries = [entry_of(number, rng.randrange(8)) for number in range(600)]
    bench = play(width, entries, dict.fromkeys(range(4), 2), binding=binding,
                 takes=0.4, clears=0.05, seed=seed)
    assert len(bench.overran) > 5
    for stream in range(8):
        got = written_of(bench, stream)
        assert got == sorted(set(got))
    assert 100 < len(bench.host.written) < 600
    assert bench.longest < 40


@pytest.mark.parametrize("streams", (1, 4))
@pytest.mark.parametrize("width", WIDTHS)
def test_an_entry_each_few_cycles_also_of_one_queue(width, streams):
    entries = [entry_of(number, number % streams) for number in range(80)]
    bench = play(width, entries, dict.fromkeys(range(4), 10), binding=(0, 1, 2, 3, 0, 0, 0, 0))
    beats = max(1, 256 // width)
    for cycles in (*bench.shown.values(), bench.responses.answered):
        assert len(cycles) == 80
        steps = {later - earlier for earlier, later in zip(cycles, cycles[1:], strict=False)}
        assert steps == {beats}, f"{width=}"


@pytest.mark.parametrize("width", WIDTHS)
def test_latency_is_what_the_docstring_says(width):
    bench = play(width, [entry_of(0, 0)], {0: 3}, binding=(0,) * 8)
    (given, _), = bench.given
    for name, cycles in LATENCY.items():
        assert bench.shown[name] == [given + cycles], name


@pytest.mark.parametrize("size", (1, 2, 3))
@pytest.mark.parametrize("width", NARROW)
def test_a_ring_goes_round_with_its_phase(width, size):
    entries = [entry_of(number, number % 8) for number in range(40)]
    bench = play(width, entries, {0: size}, binding=(0,) * 8, paced=True)
    assert [entry.cookie for _, entry in bench.host.written] == [*range(40)]


@pytest.mark.parametrize("size", (1, 2, 5))
@pytest.mark.parametrize("width", NARROW)
def test_exactly_as_many_entries_as_the_ring_has_fit(width, size):
    entries = [entry_of(number, number % 2) for number in range(50)]
    bench = play(width, entries, {0: size}, binding=(0,) * 8, takes=0.0)
    assert [entry.cookie for _, entry in bench.host.written] == [*range(1 << size)]
    assert sorted(bench.overran) == [0, 1]


@pytest.mark.parametrize("width", (64, 256))
def test_the_last_place_goes_to_the_entry_after_one_that_is_dropped(width):
    """An entry of a stream that has overrun takes no slot from the stream after it."""
    dut = shared(CompletionQueues, config_of(width))
    host = Host(width, {0: 1, 1: 4})

    async def bench(ctx):
        await set_up(ctx, dut, host, (0, 0, 0, 0, 1, 1, 1, 1))
        for port in (dut.bus.aw, dut.bus.w, dut.overran):
            ctx.set(port.ready, 1)

        async def give(*streams):
            for stream in streams:
                ctx.set(dut.i.payload, entry_of(stream, stream))
                ctx.set(dut.i.valid, 1)
                ready = False
                while not ready:
                    *_, ready = await ctx.tick().sample(dut.i.ready)
            ctx.set(dut.i.valid, 0)
            written = []
            for _ in range(30):
                *_, valid, payload = await ctx.tick().sample(dut.bus.aw.valid, dut.bus.aw.payload)
                if valid:
                    written.append(payload.addr)
            return len(written)

        assert await give(0, 0, 0) <= 2  # stream 0 has overrun
        ctx.set(dut.host.doorbell.payload, {"queue": 0, "consumer": 1})
        ctx.set(dut.host.doorbell.valid, 1)
        await ctx.tick()
        ctx.set(dut.host.doorbell.valid, 0)
        # One slot is free, and none of the three entries of stream 0 takes it.
        assert await give(0, 0, 0, 1, 1) == 1

    simulate(dut, bench)


def test_tagged_messages_of_a_silent_stream_do_not_complete():
    entries = [entry_of(number, number % 2, tagged=number % 4 < 2) for number in range(40)]
    bench = play(64, entries, {0: 6}, binding=(0,) * 8, silent={1})
    assert [entry.cookie for _, entry in bench.host.written] == [
        number for number in range(40) if number % 4 != 1]
    assert not bench.overran


@pytest.mark.parametrize("width", [64, *long(512)])
def test_a_refused_entry_stops_its_queue_alone(width):
    entries = [entry_of(number, number % 2) for number in range(60)]
    bench = play(width, entries, {0: 8, 1: 8}, binding=(0, 1) * 4, refused={10}, idle=0.8)
    assert written_of(bench, 1) == [*range(1, 60, 2)]
    got = written_of(bench, 0)
    assert got == [*range(0, 60, 2)][:len(got)] and 5 < len(got) < 20
    assert bench.overran == [0]


@pytest.mark.parametrize("width", NARROW)
def test_a_queue_that_restarts_begins_anew_after_the_last_response(width):
    dut = shared(CompletionQueues, config_of(width))
    host = Host(width, {0: 2, 1: 2})

    async def bench(ctx):
        await set_up(ctx, dut, host, (0, 1) * 4)
        for port in (dut.bus.aw, dut.bus.w, dut.overran):
            ctx.set(port.ready, 1)
        ctx.set(dut.host.look[0], 0)

        async def give(stream, number):
            ctx.set(dut.i.payload, entry_of(0, stream))
            ctx.set(dut.i.valid, 1)
            for _ in range(number):
                ready = False
                while not ready:
                    *_, ready = await ctx.tick().sample(dut.i.ready)
            ctx.set(dut.i.valid, 0)
            came = []
            for _ in range(40):
                *_, valid, payload = await ctx.tick().sample(dut.bus.aw.valid, dut.bus.aw.payload)
                if valid:
                    came.append(payload.addr)
            return came

        async def answer(number, resp=0):
            while number:
                ctx.set(dut.bus.b.payload.resp, resp)
                ctx.set(dut.bus.b.valid, 1)
                *_, ready = await ctx.tick().sample(dut.bus.b.ready)
                number -= ready
            ctx.set(dut.bus.b.valid, 0)
            await ctx.tick().repeat(20)

        assert len(await give(0, 2)) == 2
        await answer(1)
        assert ctx.get(dut.host.found[0]) == 1
        await enable(ctx, dut, host, 0, on=0)
        await ctx.tick().repeat(100)
        assert ctx.get(dut.host.restarting) == 1, "one entry is on the bus"
        # The other queue continues meanwhile, and its answers do not count for the first.
        assert len(await give(1, 1)) == 1
        assert not await give(0, 1)
        await answer(1)
        await ctx.tick().repeat(40)
        assert not ctx.get(dut.host.restarting) and ctx.get(dut.host.found[0]) == 0
        await answer(1)
        await enable(ctx, dut, host, 0)
        await ctx.tick().repeat(60)
        assert not await give(0, 1), "the stream has overrun"
        ctx.set(dut.clear.payload, 0)
        ctx.set(dut.clear.valid, 1)
        await ctx.tick()
        ctx.set(dut.clear.valid, 0)
        octets = width // 8
        begin = host.bases[0]
        assert await give(0, 5) == [(begin + 32 * k) // octets * octets for k in range(4)]
        await answer(1, 2)
        await answer(3)
        assert ctx.get(dut.host.failed) == 1 and ctx.get(dut.host.found[0]) == 0
        await enable(ctx, dut, host, 0)
        await ctx.tick().repeat(60)
        assert not ctx.get(dut.host.failed)

    simulate(dut, bench)


def test_queues_that_are_disabled_at_any_moment_lose_count_of_nothing():
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    dut = shared(CompletionQueues, config_of(256))
    host = Host(256, {0: 15, 1: 15})
    seen = []

    async def bench(ctx):
        await set_up(ctx, dut, host, (0, 1) * 4)
        for port in (dut.bus.aw, dut.bus.w, dut.overran):
            ctx.set(port.ready, 1)
        addressed, answered, expected = [], 0, {0: 0, 1: 0}
        stopped = 0
        for cycle in range(2000):
            ctx.set(dut.host.settings.valid, 0)
            if rng.random() < 0.02 and not stopped:
                ctx.set(dut.host.settings.payload, {"index": 0, "entry": {
                    "enable": 1, "base": host.bases[0] >> 5, "size": 15}})
                ctx.set(dut.host.settings.valid, 1)
            ctx.set(dut.i.valid, rng.random() < 0.7)
            ctx.set(dut.i.payload, entry_of(cycle, rng.randrange(2)))
            ctx.set(dut.clear.valid, cycle % 16 == 0)
            answer = answered < len(addressed) and rng.random() < 0.4
            ctx.set(dut.bus.b.valid, answer)
            before = stopped
            *_, stopped, aw, payload, ready = await ctx.tick().sample(
                dut.host.restarting, dut.bus.aw.valid, dut.bus.aw.payload, dut.bus.b.ready)
            answered += answer and ready
            if stopped & ~before:
                begun = len(addressed)
            if before & ~stopped:
                # All that was on the bus is answered, and the queue begins again.
                assert answered >= begun
                expected[0] = 0
            if aw:
                queue = payload.addr >= host.bases[1]
                assert payload.addr == host.bases[queue] + 32 * expected[queue], f"{cycle=}"
                expected[queue] += 1
                addressed.append(payload.addr)
                seen.append(queue)

    simulate(dut, bench)
    assert seen.count(0) > 100 < seen.count(1)


@pytest.mark.parametrize("width", [64, *long(512)])
def test_the_owners_queue_has_room_for_all_that_comes_after_it_says_no(width):
    config = config_of(width, backlog=64)
    dut = CompletionQueues(config, owned=True)
    host = Host(width, {0: 1, 4: 9})
    reserve = config.owner_entries
    assert reserve < 512

    async def bench(ctx):
        await set_up(ctx, dut, host, (0,) * 8)
        await ctx.tick().repeat(5)
        for port in (dut.bus.aw, dut.bus.w, dut.overran, dut.bus.b):
            ctx.set(port.ready if port is not dut.bus.b else port.valid, 1)
        given, closed, written = 0, None, 0
        for _ in range(2800 if width == 64 else 900):
            ctx.set(dut.i.valid, closed is None or given < closed + reserve - 16)
            ctx.set(dut.i.payload, {**entry_of(given, 0), "kind": Kind.CONTROL})
            *_, ready, valid, aw, room = await ctx.tick().sample(
                dut.i.ready, dut.i.valid, dut.bus.aw.valid, dut.owner_room)
            given += ready & valid
            written += aw
            if not room and closed is None:
                closed = given
        assert closed and 512 - reserve - 1 <= closed <= 512 - reserve + 16
        assert written == given == closed + reserve - 16
        assert not ctx.get(dut.overran.valid)
        ctx.set(dut.host.doorbell.payload, {"queue": 4, "consumer": written})
        ctx.set(dut.host.doorbell.valid, 1)
        await ctx.tick()
        ctx.set(dut.host.doorbell.valid, 0)
        await ctx.tick().repeat(5)
        assert ctx.get(dut.owner_room)
        # Each record that is owed needs an entry too.
        ctx.set(dut.taken, 1)
        await ctx.tick().repeat(512 - reserve)
        ctx.set(dut.taken, 0)
        await ctx.tick().repeat(5)
        assert ctx.get(dut.owner_room)
        ctx.set(dut.taken, 1)
        await ctx.tick()
        ctx.set(dut.taken, 0)
        await ctx.tick().repeat(5)
        assert not ctx.get(dut.owner_room)

    # The responses are given before they are due, which no memory does, and which changes nothing.
    simulate(dut, bench)


@pytest.mark.parametrize("consumer", (1, 5, 30000, MODULUS // 2, MODULUS - 5))
def test_a_consumer_that_is_out_of_place_gets_nothing(consumer):
    dut = shared(CompletionQueues, config_of(64))
    host = Host(64, {0: 2, 1: 2})

    async def bench(ctx):
        await set_up(ctx, dut, host, (0, 1) * 4)
        for port in (dut.bus.aw, dut.bus.w):
            ctx.set(port.ready, 1)
        ctx.set(dut.host.doorbell.payload, {"queue": 0, "consumer": consumer})
        ctx.set(dut.host.doorbell.valid, 1)
        await ctx.tick()
        ctx.set(dut.host.doorbell.valid, 0)
        came = []
        for number in range(60):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.payload, entry_of(number, number % 2))
            *_, valid, payload = await ctx.tick().sample(dut.bus.aw.valid, dut.bus.aw.payload)
            if valid:
                came.append(payload.addr)
        assert came == [host.bases[1] + 32 * k for k in range(4)]

    simulate(dut, bench)


def test_there_are_twice_as_many_numbers_as_queues_of_clients():
    assert queues_of(config_of(64)) == 8
