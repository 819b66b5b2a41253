"""Tests how segments are read: by a bus that answers in any order, late, and with errors."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from amaranth.hdl import Value
from ddp_rnic.hdl.dma import read
from ddp_rnic.hdl.dma.read import ReadDma
from ddp_rnic.hdl.lib.testing import decoded, numbered, octets_of, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import first, long
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.spec.config import WIDTHS


def memory_at(address):
    """Returns the octet of host memory at an address: each has a value of its own."""
    address %= 1 << 64
    return (address * 0x9E3779B97F4A7C15 >> 40) & 0xFF


@dataclass
class Bus:
    """An AXI memory for reads. ``latency`` is the least number of cycles from an address to its
    first beat, ``mixed`` the share of cycles after which another burst's beat comes next; with 0,
    bursts are answered in order.
    """

    width: int
    latency: int = 1
    stall: float = 0.0
    mixed: float = 0.0
    bad: frozenset = frozenset()
    seed: int = 1
    memory: Callable = memory_at
    bursts: list = field(default_factory=list)
    beats: list = field(default_factory=list)  # the cycles in which beats came
    outstanding: int = 0
    most: int = 0

    async def serve(self, ctx, bus):
        rng, octets, open_bursts = random.Random(self.seed), self.width // 8, {}
        ready, now = 0, None
        ticks = ctx.tick().sample(bus.ar.valid, Value.cast(bus.ar.payload))
        async for cycle, (valid, address) in numbered(ticks):
            assert ctx.get(bus.r.ready), "the block holds the bus up"
            if valid and ready:
                address = decoded(bus.ar, address)
                assert address.id not in open_bursts, f"ID {address.id} is in use"
                assert address.addr % octets == 0
                last = address.addr + address.len * octets
                assert address.addr >> 12 == last >> 12, "a burst passes 4 KiB"
                self.bursts.append((address.addr, address.len + 1))
                open_bursts[address.id] = [cycle + self.latency, address.addr, address.len + 1]
            self.most = max(self.most, len(open_bursts))
            due = [each for each, (when, *_) in open_bursts.items() if when <= cycle]
            if now not in due or rng.random() < self.mixed:
                now = None if not due else rng.choice(due) if self.mixed else due[0]
            sends = now is not None and rng.random() >= self.stall
            if sends:
                burst = open_bursts[now]
                at = burst[1]
                data = bytes(self.memory(at + k) for k in range(octets))
                ctx.set(
                    bus.r.payload,
                    {
                        "data": int.from_bytes(data, "little"),
                        "id": now,
                        "last": burst[2] == 1,
                        "resp": 2 if at in self.bad else 0,
                    },
                )
                self.beats.append(cycle + 1)
                burst[1:] = at + octets, burst[2] - 1
                if not burst[2]:
                    del open_bursts[now]
                    now = None
            ctx.set(bus.r.valid, sends)
            ready = rng.random() >= self.stall
            ctx.set(bus.ar.ready, ready)


@dataclass
class Job:
    """A segment: its header, its pieces as (address, length), and whether the last is refused."""

    header: bytes
    pieces: list
    tag: int
    refused: bool = False

    @property
    def length(self):
        return sum(length for _, length in self.pieces)

    @property
    def octets(self):
        return self.header + bytes(
            memory_at(address + k) for address, length in self.pieces for k in range(length)
        )


def read_all(width, jobs, bus, *, stall=0.0, pause=0, seed=1, limit=60_000, **parameters):
    """Returns the heads and packets that leave, and the cycles of the output's beats. No head is
    taken for ``pause`` cycles.
    """
    dut, rng = shared(ReadDma, width, **parameters), random.Random(seed)
    heads, packets, left, reserved = [], [], [], deque()

    async def segments(ctx):
        items = [
            {"header": int.from_bytes(job.header, "little"), "lead": len(job.header),
             "length": job.length, "tag": job.tag} for job in jobs]  # fmt: skip
        await send(ctx, dut.segments, items)

    async def note(ctx):
        ticks = ctx.tick().sample(dut.reserved.valid, dut.reserved.payload)
        async for _, (valid, tag) in numbered(ticks):
            if valid:
                reserved.append(tag)

    async def pieces(ctx):
        for job in jobs:
            while not reserved:
                await ctx.tick()
            assert reserved.popleft() == job.tag
            last = len(job.pieces) - 1
            await send(
                ctx,
                dut.pieces,
                [
                    {
                        "address": address,
                        "length": length,
                        "last": n == last,
                        "refused": job.refused and n == last,
                    }
                    for n, (address, length) in enumerate(job.pieces)
                ],
            )

    async def take_heads(ctx):
        await ctx.tick().repeat(1 + pause)
        ctx.set(dut.heads.ready, 1)
        ticks = ctx.tick().sample(dut.heads.valid, Value.cast(dut.heads.payload))
        async for _, (valid, head) in numbered(ticks):
            if valid:
                heads.append(decoded(dut.heads, head))
                if len(heads) == len(jobs):
                    return

    async def take(ctx):
        packet, ready = b"", 0
        ticks = ctx.tick().sample(dut.o.valid, Value.cast(dut.o.payload))
        async for cycle, (valid, beat) in numbered(ticks):
            if valid and ready:
                beat = decoded(dut.o, beat)
                left.append(cycle)
                packet += octets_of(beat, width // 8)
                if beat.last:
                    packets.append(packet)
                    packet = b""
            ready = rng.random() >= stall
            ctx.set(dut.o.ready, ready)

    async def finish(ctx):
        while len(heads) < len(jobs) or len(packets) < sum(
            not (head.failed or head.refused) for head in heads
        ):
            await ctx.tick()

    async def serve(ctx):
        await bus.serve(ctx, dut.bus)

    simulate(dut, segments, pieces, take_heads, finish, background=[note, take, serve], limit=limit)
    return heads, packets, left


def random_jobs(rng, count, longest=400):
    """Returns segments of one to four pieces, at any alignment, some of no octets, some of which
    cross a boundary of 4 KiB or the upper half of the address.
    """
    jobs = []
    for tag in range(count):
        pieces = []
        for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
            length = rng.choice((0, 1, 3, 8, 64, rng.randrange(longest)))
            near = rng.choice((1 << 12, 1 << 32, 7 << 40))
            pieces.append((near * rng.randrange(1, 99) - rng.randrange(2 * longest), length))
        jobs.append(Job(rng.randbytes(rng.choice((0, 14, 18))) or bytes(1), pieces, tag))
    return jobs


def check(jobs, heads, packets, *, failed=()):
    """Checks what left against memory; segments whose tag is in ``failed`` had an error."""
    packets = iter(packets)
    for job, head in zip(jobs, heads, strict=True):
        assert (head.tag, head.lead, head.length) == (job.tag, len(job.header), job.length)
        assert head.refused == job.refused and head.failed == (job.tag in failed), job
        if not head.refused and not head.failed:
            assert next(packets) == job.octets, job
    assert next(packets, None) is None


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("latency", "mixed", "share"), [(1, 0.0, 0.0), (60, 1.0, 0.3)], ids=["at once", "mixed"]
)
def test_every_octet_of_every_piece(width, latency, mixed, share):
    rng = random.Random(width)
    jobs = random_jobs(rng, 60)
    bus = Bus(width, latency=latency, mixed=mixed, stall=share)
    heads, packets, _ = read_all(width, jobs, bus, stall=share)
    check(jobs, heads, packets)
    # The bus read the beats of the pieces, each once, and no other beat.
    octets = width // 8
    pieces = [piece for job in jobs for piece in job.pieces if piece[1]]
    expected = [
        at for start, length in pieces for at in range(start & -octets, start + length, octets)
    ]
    assert [at + k * octets for at, beats in bus.bursts for k in range(beats)] == expected


def test_answers_out_of_order_with_many_reads_in_flight():
    """The bus has a latency of 600 cycles, and the parameters are the greatest."""
    rng = random.Random(2)
    jobs = [Job(rng.randbytes(18), [(rng.randrange(1 << 40), 8)], tag) for tag in range(300)]
    bus = Bus(64, latency=600, mixed=1.0)
    heads, packets, _ = read_all(64, jobs, bus, reads=256, segments=256)
    check(jobs, heads, packets)
    assert bus.most > 200


def reserve(module, lengths, *, seed=1, limit=20_000):
    """Reserves rows for segments of these ``lengths``, which leave in their order after a while.

    Returns how many segments got rows. No two of them may have the same row at the same time.
    """
    dut = module.Reservation(module.Shape(64, reads=4, octets=1024, segments=16, inline=0))
    rng, held, granted = random.Random(seed), deque(), []

    async def segments(ctx):
        await ctx.tick().repeat(20)  # for the slots
        ctx.set(dut.go, 1)
        payloads = [{"lead": 0, "length": each, "tag": 0} for each in lengths]
        await send(ctx, dut.i, payloads, idle=0.3, rng=rng)
        ctx.set(dut.go, 0)
        await ctx.tick().repeat(200)

    async def leave(ctx):
        while True:
            _, _, valid, place = await ctx.tick().sample(dut.held.valid, dut.held.payload)
            if valid:
                rows = {(place.row + k) % 128 for k in range(place.rows)}
                shared_rows = rows & set().union(*held)
                assert not shared_rows, f"segment {len(granted)}: rows {shared_rows} twice"
                held.append(rows)
                granted.append(place.rows)
            ctx.set(dut.left.valid, 0)
            if held and rng.random() < 0.05:
                ctx.set(dut.left.payload, len(held.popleft()))
                ctx.set(dut.left.valid, 1)
            ctx.set(dut.places.ready, 1)

    simulate(dut, segments, background=[leave], limit=limit)
    return len(granted)


#: Segments with an odd number of rows; after 9 of them, one that needs all 128 rows.
LENGTHS = [1024 if number % 10 == 9 else 8 * (2 * (number % 7) + 1) for number in range(300)]


def test_each_row_has_one_segment_and_a_segment_as_long_as_the_ring_gets_all():
    assert reserve(read, LENGTHS) == len(LENGTHS)


@pytest.mark.parametrize(
    "old, new",
    first({
        "the count is one off, now up, now down": ("free.eq(free + ", "free.eq((free ^ 1) + "),
        "a row too much": ("(rows <= free)", "(rows <= free + 1)"),
        "a row too few": ("(rows <= free)", "(rows < free)"),
    }.values()),
)
def test_a_count_of_free_rows_that_is_wrong_is_found(old, new):
    module = planted("dma.read", old, new)
    with pytest.raises(AssertionError):
        reserve(module, LENGTHS)


def test_an_error_of_the_bus_fails_its_segment_alone():
    rng = random.Random(3)
    jobs = random_jobs(rng, 60)
    # An error in the first beat of a piece, in the last one, or in one between.
    bad, failed = set(), set()
    for job in jobs[::7]:
        address, length = max(job.pieces, key=lambda piece: piece[1])
        if length:
            bad.add((address + rng.randrange(length)) & -8)
    for job in jobs:
        touched = {
            at & -8 for address, length in job.pieces for at in range(address, address + length)
        }
        if touched & bad:
            failed.add(job.tag)
    assert len(failed) > 5
    heads, packets, _ = read_all(64, jobs, Bus(64, latency=9, mixed=1.0, bad=frozenset(bad)))
    check(jobs, heads, packets, failed=failed)


def test_a_refused_segment_leaves_no_octet_and_costs_its_room_only_while_it_is_read():
    """More segments are refused than the ring has room for."""
    rng = random.Random(4)
    jobs = random_jobs(rng, 80, longest=900)
    for job in jobs:
        job.refused = rng.random() < 0.5
    heads, packets, _ = read_all(64, jobs, Bus(64, latency=5), octets=8192)
    check(jobs, heads, [*packets])


@pytest.mark.parametrize("refused", [*long(False), True])
def test_heads_that_nobody_takes_for_a_while(refused):
    """They hold segments up, those with octets and those without, and none is lost."""
    rng = random.Random(6)
    jobs = [Job(rng.randbytes(14), [(rng.randrange(1 << 30), 9)], tag) for tag in range(60)]
    for job in jobs:
        job.refused = refused and job.tag > 0
    heads, packets, _ = read_all(512, jobs, Bus(512), pause=600, segments=64)
    check(jobs, heads, packets)


@pytest.mark.parametrize("width", [64, *long(512)])
def test_segments_as_long_as_the_ring(width):
    rng = random.Random(5)
    jobs = [Job(rng.randbytes(14), [(rng.randrange(1 << 30), 4096 - 14)], tag) for tag in range(3)]
    heads, packets, _ = read_all(width, jobs, Bus(width), octets=4096)
    check(jobs, heads, packets)


@pytest.mark.parametrize("width", [64, *long(512)])
def test_bursts_end_at_4_kib_and_touch_no_octet_outside(width):
    octets = width // 8
    jobs = [Job(b"x", [(0x1FFD, 4096 + 7)], 0), Job(b"x", [(0x5000, 4096)], 1)]
    bus = Bus(width)
    check(jobs, *read_all(width, jobs, bus)[:2])
    limit = min(4096, 256 * octets)
    for address, length in ((0x1FFD, 4096 + 7), (0x5000, 4096)):
        at, end = address & -octets, address + length
        while at < end:
            upto = min((at // limit + 1) * limit, -(-end // octets) * octets)
            assert bus.bursts.pop(0) == (at, (upto - at) // octets)
            at = upto
    assert not bus.bursts


@pytest.mark.parametrize("width", [64, 512])
@pytest.mark.parametrize("offset", [5, *long(0)])
def test_one_beat_per_cycle_without_a_bubble(width, offset):
    """A segment takes as many cycles as it has beats on the bus or in the packet."""
    octets = width // 8
    length = 20 * octets - 14
    jobs = [Job(bytes(14), [(0x10000 * n + octets + offset, length)], n) for n in range(12)]
    bus = Bus(width)
    heads, packets, left = read_all(width, jobs, bus)
    check(jobs, heads, packets)
    read = sum(beats for _, beats in bus.bursts) // len(jobs)
    sent = 20
    cycles = (left[-1] - left[sent - 1]) / (len(jobs) - 1)
    assert cycles == max(read, sent)


@pytest.mark.parametrize("width", [64, 512])
def test_latency(width):
    bus = Bus(width)
    job = Job(bytes(14), [(0x1000, 2)], 1)
    _, _, left = read_all(width, [job], bus)
    assert left[0] - bus.beats[0] == ReadDma.LATENCY


@pytest.mark.parametrize("bad", [(), (0x1FF8, 0x2000)], ids=["whole", "bad"])
def test_a_segment_of_256_bursts_leaves_once_all_have_come(bad):
    """Each of its pieces crosses 4 KiB. A count of 8 bits would be 0 before and after them."""
    jobs = [Job(b"x", [(0x1FFF, 2)] * 128, 1)]
    bus = Bus(64, latency=400, bad=frozenset(bad))
    heads, packets, _ = read_all(64, jobs, bus, reads=256)
    assert len(bus.bursts) == bus.most == 256
    check(jobs, heads, packets, failed={1} if bad else ())


def test_small_messages_at_512_bits():
    """At 200 MHz, 75 million segments of 64 octets per second are one in 2.67 cycles."""
    jobs = [Job(bytes(18), [(0x1000 * n + 5, 64)], n) for n in range(60)]
    heads, packets, left = read_all(512, jobs, Bus(512))
    check(jobs, heads, packets)
    # Two beats each, on the bus and in the packet.
    assert left[-1] - left[1] == 2 * (len(jobs) - 1)


@pytest.mark.parametrize("width", [64, *long(512)])
def test_a_fence_waits_for_the_pieces_before_it_and_for_nothing_else(width):
    """The output is not taken, and the bus answers no piece after the fence."""
    dut = shared(ReadDma, width)
    octets = width // 8

    async def piece(ctx, address):
        await send(ctx, dut.pieces, [{"address": address, "length": 4 * octets, "last": 1}])

    async def answer(ctx, number, beats):
        await send(ctx, dut.bus.r, [{"id": number, "last": beat == 3} for beat in beats])

    async def fence(ctx):
        ctx.set(dut.fence, 1)
        await ctx.tick()
        ctx.set(dut.fence, 0)

    async def ends(ctx):
        """Returns whether the fence ends soon."""
        await ctx.tick().repeat(12)
        return not ctx.get(dut.fencing)

    async def bench(ctx):
        ctx.set(dut.bus.ar.ready, 1)
        for tag in range(4):
            await send(ctx, dut.segments, [{"length": 4 * octets, "tag": tag}])
        await piece(ctx, 0)
        await fence(ctx)
        await piece(ctx, 0x1000)
        assert not await ends(ctx), "the fence does not wait for the bus"
        await answer(ctx, 0, range(3))
        assert not await ends(ctx), "the fence does not wait for a burst's last beat"
        await answer(ctx, 0, range(3, 4))
        assert await ends(ctx), "the fence waits for a piece after it, or for the output"
        # A fence that is started during another one begins when that ends.
        await fence(ctx)
        await fence(ctx)
        await piece(ctx, 0x2000)
        await answer(ctx, 1, range(4))
        assert not await ends(ctx), "the later fence does not wait"
        await piece(ctx, 0x3000)
        await answer(ctx, 2, range(4))
        assert await ends(ctx), "the later fence waits for a piece after it"

    simulate(dut, bench)


@pytest.mark.parametrize("reads", [2, 4])
def test_a_fence_waits_for_bursts_that_use_an_id_again_at_once(reads):
    """The bus answers ``reads`` bursts in as many cycles, and none of those that follow."""
    dut = shared(ReadDma, 64, reads=reads)
    pieces = [
        {"address": 0x1000 * n, "length": 8, "last": n == 2 * reads - 1} for n in range(2 * reads)
    ]

    async def bench(ctx):
        ctx.set(dut.bus.ar.ready, 1)
        await send(ctx, dut.segments, [{"length": 16 * reads, "tag": 0}])
        await send(ctx, dut.pieces, pieces)
        ctx.set(dut.fence, 1)
        await ctx.tick()
        ctx.set(dut.fence, 0)
        await ctx.tick().repeat(12)
        await send(ctx, dut.bus.r, [{"id": n, "last": 1} for n in range(reads)])
        await ctx.tick().repeat(24)
        assert ctx.get(dut.fencing), "the fence does not wait for the later bursts"
        await send(ctx, dut.bus.r, [{"id": n, "last": 1} for n in range(reads)])
        await ctx.tick().repeat(12)
        assert not ctx.get(dut.fencing)

    simulate(dut, bench)
