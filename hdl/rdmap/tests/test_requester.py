"""Tests the slots of Reads, and that each response fits its request.

The judge is RFC 5040: section 6.1 (no more Reads are outstanding than ORD), section 5.2.2 (STag,
Tagged Offset and length of a response), as the golden model reads it.
"""

import random
from collections import deque

import pytest
from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.lib.testing import receive, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import first
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.rdmap import requester
from ddp_rnic.hdl.spec.completion import Kind, Status
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.memory import Memory
from ddp_rnic.sim.model.rdmap import RdmapSink, ReadRequest

STREAMS, READS = 16, 4
RESPONSE, WRITE = 0x42, 0x40
#: Cycles after which a Read that was taken is known to the checks, and any step to a look-up.
SETTLED = 16
TOS = (0, 5, (1 << 32) - 3, (1 << 33) - 40)


class Bounds(wiring.Component):
    """Connects ReadSlots and ResponseCheck as the device does."""

    def __init__(self, module=requester):
        self.slots = module.ReadSlots(STREAMS, READS)
        self.check = module.ResponseCheck(STREAMS, READS)
        slots, check = self.slots.signature.members, self.check.signature.members
        super().__init__({
            **{name: slots[name] for name in slots if name != "expected"},
            "i": In(check["i"].signature.flip()), "o": Out(check["o"].signature),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.slots, m.submodules.check = slots, check = self.slots, self.check
        wiring.connect(m, slots.expected, check.expected)
        for name in slots.signature.members:
            if name != "expected":
                inner, outer = getattr(slots, name), getattr(self, name)
                if name in ("room", "reading"):
                    m.d.comb += outer.eq(inner)
                elif name == "begins":
                    m.d.comb += inner.eq(outer)
                elif name == "wake":
                    wiring.connect(m, inner, wiring.flipped(outer))
                else:
                    wiring.connect(m, wiring.flipped(outer), inner)
        wiring.connect(m, wiring.flipped(self.i), check.i)
        wiring.connect(m, check.o, wiring.flipped(self.o))
        m.d.comb += [
            check.cleared.valid.eq(self.cleared.valid),
            check.cleared.payload.eq(self.cleared.payload),
        ]
        return m


class Life:
    """A stream from its set-up to its next one. With ``ord`` None it is not bounded."""

    def __init__(self, ord):
        self.ord, self.sink, self.alive = ord, RdmapSink(Memory()), True
        self.stopped = False  # disabled: its Reads wait for nothing, and take no slot
        self.used, self.ended = 0, 0  # slots; responses that were not delivered
        self.placed = 0  # octets of the response that has begun
        self.reads = deque()

    @property
    def room(self):
        return None if self.ord is None or self.stopped else max(self.ord - self.used, 0)

    def take(self, read):
        if self.room is not None:
            self.used += 1
            self.reads.append(read)
            self.sink.expect(read)

    def segment(self, rng):
        """Draws a segment: header, octets, and the outcome, an error or None."""
        read = self.reads[0] if self.reads else ReadRequest(rng.getrandbits(32), 9, 9, 0, 0)
        left = read.length - self.placed
        length = min(left, rng.choice((left, 1, 3, 30, 60_000, 0)), 60_000)
        fields = {"stag": read.sink_stag, "to": (read.sink_to + self.placed) % (1 << 64),
                  "last": length == left and rng.random() < 0.9, "rsvdulp": RESPONSE}
        wrong = rng.random() < 0.1
        if wrong or not length:
            name = rng.choice(("stag", "to", "last", "length"))
            if name == "length":
                length = rng.choice((length + 1, max(length - 1, 0), 0, 60_000))
            elif name == "last":
                fields["last"] = not fields["last"]
            else:
                fields[name] ^= 1 << rng.randrange(32 if name == "stag" else 64)
        if rng.random() < 0.1:
            fields["rsvdulp"] = WRITE
        header = TaggedHeader(**fields)
        error = self.sink.refuse(header, length)
        if fields["rsvdulp"] == RESPONSE and self.ord is not None and error is None:
            self.placed += length
            if header.last:
                self.placed = 0
                self.reads.popleft()
                self.ended += 1
        self.alive = error is None
        return header, length, error


async def turn(ctx, dut, rng, number, life):
    """A turn of a stream: it takes some of the slots that are free."""
    ctx.set(dut.look.payload, number)
    ctx.set(dut.look.valid, 1)
    await ctx.tick()
    ctx.set(dut.look.valid, 0)
    await ctx.tick().repeat(4)
    room = ctx.get(dut.room)
    assert room.bounded == (life.room is not None), "an ORD was written, or was not"
    assert life.room in (None, room.slots), "the free slots are those of ORD that no Read has"
    assert life.room is None or room.idle == (life.used == 0), "a Read is outstanding, or none"
    ctx.set(dut.begins, 1)
    await ctx.tick()
    ctx.set(dut.begins, 0)
    for _ in range(rng.randint(0, 3 if life.room is None else life.room)):
        length = rng.choice((0, 1, 7, 100, 100, 59_000, (1 << 32) - 1))
        to = rng.choice((*TOS, (1 << 64) - length)) % (1 << 64)  # no octet past the last TO
        read = ReadRequest(rng.getrandbits(32), to, length, 0, 0)
        life.take(read)
        sink = {"stag": read.sink_stag, "to": read.sink_to, "length": length}
        ctx.set(dut.taken.payload, {"stream": number, "sink": sink})
        ctx.set(dut.taken.valid, 1)
        await ctx.tick()
        ctx.set(dut.taken.valid, 0)
        await ctx.tick().repeat(rng.choice((1, 1, 4)))


async def check(ctx, dut, segments):
    """Sends segments, or None for a cycle without one, and returns the results."""
    got = []
    for item in [*segments, *[None] * 13]:
        ctx.set(dut.i.valid, item is not None)
        if item is not None:
            number, header, length, enable = item
            ctx.set(dut.i.payload, {
                "header": {"tagged": header.rsvdulp != 1, "last": header.last, "length": length,
                           "stag": header.stag, "to": header.to},
                "control": RESPONSE if header.rsvdulp == 1 else header.rsvdulp,
                "stream": number, "enable": enable})
        _, _, valid, result = await ctx.tick().sample(dut.o.valid, dut.o.payload)
        if valid:
            got.append((result.type, result.code) if result.error else None)
    return got


async def pulse(ctx, port, number):
    ctx.set(port.payload, number)
    ctx.set(port.valid, 1)
    await ctx.tick()
    ctx.set(port.valid, 0)
    await ctx.tick().repeat(8)


def bounded(seed, module=requester, rounds=40):
    """Compares slots and checks with the RFC, on some streams."""
    rng = random.Random(seed)
    dut = shared(Bounds, module)
    numbers = rng.sample(range(STREAMS), rng.choice((1, 2, 3, 8)))
    lives, woken, wakes = {}, [], []

    async def drive(ctx):
        for _ in range(rounds):
            for number in numbers:
                life = lives.get(number)
                if life is None or not life.alive or rng.random() < 0.05:
                    await clear(ctx, number)
                elif rng.random() < 0.1 and life.ord is not None:
                    life.ord = await limit(ctx, number)
                elif rng.random() < 0.05:
                    await pulse(ctx, dut.stopped, number)
                    wakes.append(number)
                    life.stopped = True
                for _ in range(rng.randint(0, lives[number].ended)):
                    lives[number].ended -= 1
                    lives[number].used -= 1
                    await send(ctx, dut.freed, [number])
                    wakes.append(number)
            await ctx.tick().repeat(SETTLED)
            for number in numbers:
                await turn(ctx, dut, rng, number, lives[number])
            await ctx.tick().repeat(SETTLED)
            await burst(ctx)

    async def clear(ctx, number):
        await pulse(ctx, dut.cleared, number)
        unbounded = rng.random() < 0.1
        lives[number] = Life(None if unbounded else await limit(ctx, number))

    async def limit(ctx, number):
        ord = rng.randint(0, READS)
        await send(ctx, dut.ords, [{"stream": number, "ord": ord}])
        wakes.append(number)
        return ord

    async def burst(ctx):
        segments, expected = [], []
        for _ in range(rng.randint(0, 30)):
            number = rng.choice(numbers)
            life = lives[number]
            if rng.random() < 0.2:
                segments.append(None)
            elif rng.random() < 0.1:  # no segment of a response, or one that does not count
                header = TaggedHeader(5, 6, True, rng.choice((RESPONSE, 1, 0x43)))
                segments.append((number, header, 7, header.rsvdulp != RESPONSE))
                expected.append(None)
            elif life.alive:
                if life.ord is None:
                    header = TaggedHeader(rng.getrandbits(32), 0, True, RESPONSE)
                    segments.append((number, header, 9, True))
                    expected.append(None)
                    continue
                life.sink.bounded = True
                header, length, error = life.segment(rng)
                segments.append((number, header, length, True))
                expected.append(None if error is None else (error.type, error.code))
        assert await check(ctx, dut, segments) == expected

    async def listen(ctx):
        while True:
            woken.append(await receive(ctx, dut.wake, stall=0.3, rng=random.Random(1)))

    async def last(ctx):
        await drive(ctx)
        await ctx.tick().repeat(60)
        assert woken == wakes, "a new ORD, a free slot and the end wake their stream"

    simulate(dut, last, background=[listen], limit=200_000)


@pytest.mark.parametrize("seed", first(range(6), 2))
def test_reads_are_bounded(seed):
    bounded(seed)


@pytest.mark.parametrize(("old", "new"), first([
    ("becomes.used.eq(found.used + counts)", "becomes.used.eq(found.used)"),
    ("becomes.used.eq(found.used - found.used.any())", "becomes.used.eq(0)"),
    ("m.d.comb += becomes.eq(0)\n            with m.Case(_Op.TAKE)",
     "m.d.comb += becomes.count.eq(0)\n            with m.Case(_Op.TAKE)"),
    ("(op == _Op.SET) | (op == _Op.FREE)", "(op == _Op.SET)"),
    ("there.count != delayed", "1 | there.count != delayed"),
    ("now.eq(Mux(same, latest, ", "now.eq(Mux(C(0), latest, "),
    ("Mux(same_but_one, before, ", "Mux(C(0), before, "),
    ("becomes.begun.eq(0)]", "becomes.begun.eq(1)]"),
    ("with m.Elif(octets):", "with m.Else():"),
    ("with m.If(clears_3):", "with m.If(C(0)):"),
    ("beyond | (last & left.any())", "beyond"),
    ("(beyond | (last", "((last"),
    ("octets & ~(after(3, low.all()", "C(0) & ~(after(3, low.all()"),
    ("& ~after(1, far.any(), \"far\")", ""),
    ("low.eq(nibbles(starts, to[:32]))", "low.eq(nibbles(read.to[:32], to[:32]))"),
    ("octets & ~after(3, same.all()", "~after(3, same.all()"),
    ("(octets & ~after(3, same.all(), \"same_stag\"))", "C(0)"),
    ("self.i.valid & self.i.payload.enable & header", "self.i.valid & header"),
    ("& header.tagged\n", "\n"),
    ("Mux(account.ord > account.used, account.ord - account.used, 0)",
     "account.ord - account.used"),
]))
def test_a_wrong_bound_is_found(old, new):
    wrong = planted("rdmap.requester", old, new)
    with pytest.raises(AssertionError):
        for seed in range(12):
            bounded(seed, wrong)


@pytest.mark.parametrize("seed", range(3))
def test_delivered_responses_free_slots_and_all_messages_pass(seed):
    rng, dut = random.Random(seed), shared(requester.DeliveredReads, STREAMS)
    entries, freed = [], []
    for number in range(200):
        entry = {
            "stream": rng.randrange(STREAMS), "tagged": rng.random() < 0.8, "tag": number,
            "kind": rng.choice((Kind.MESSAGE, Kind.MESSAGE, Kind.CHUNK)),
            "status": rng.choice((Status.DELIVERED, Status.DELIVERED, Status.NOT_PLACED)),
            "rsvdulp": rng.choice((RESPONSE, 2, WRITE, 0x41)),
        }
        entries.append(entry)
        if (entry["tagged"] and entry["kind"] is Kind.MESSAGE and entry["rsvdulp"] & 0xF == 2
                and entry["status"] is Status.DELIVERED):
            freed.append(entry["stream"])
    got, out = [], []

    async def drive(ctx):
        await send(ctx, dut.i, entries, idle=rng.choice((0, 0.5)), rng=rng)

    async def take(ctx):
        while len(out) < len(entries):
            out.append((await receive(ctx, dut.o, stall=0.2, rng=rng)).tag)

    async def free(ctx):
        while len(got) < len(freed):
            got.append(await receive(ctx, dut.freed, stall=rng.choice((0.2, 0.9)), rng=rng))

    simulate(dut, drive, take, free)
    assert out == [entry["tag"] for entry in entries] and got == freed
