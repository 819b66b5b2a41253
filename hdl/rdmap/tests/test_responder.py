"""Tests which messages the device answers, and that it posts their buffers again.

The judge is RFC 5040: section 4.1 (Read Requests are messages of queue 1), section 4.3 (version and
opcode), section 4.4 (28 octets).
"""

import random

import pytest
from ddp_rnic.hdl.lib.testing import numbered, receive, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import first
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.rdmap.responder import PostsJoin, RequestFilter, SlotPoster
from ddp_rnic.hdl.spec.completion import Kind, Status
from ddp_rnic.hdl.spec.config import RnicConfig

CONFIG = RnicConfig(transmit=True, responder=True, streams=16)
#: A Read Request's completion, but for stream and MSN; and changes after which it is none.
REQUEST = {
    "kind": Kind.MESSAGE, "status": Status.DELIVERED, "tagged": 0, "qn": 1, "length": 28,
    "rsvdulp": 0x41,
}
STRAYS = (
    {"length": 27}, {"length": 28 + (1 << 31)}, {"length": 0}, {"rsvdulp": 0x40},
    {"rsvdulp": 0x45}, {"rsvdulp": 0x81}, {"status": Status.NOT_PLACED},
)
#: Messages of other kinds, which say nothing about Read Requests.
OTHERS = ({"qn": 0}, {"qn": 3}, {"tagged": 1, "rsvdulp": 0x41, "length": 28}, {"kind": Kind.SENT})


def draw(rng, streams, count):
    """Draws entries of streams, close to each other; a stray is rare."""
    entries = []
    for number in range(count):
        change = rng.choice(OTHERS) if rng.random() < 0.3 else {}
        if rng.random() < 0.05:
            change = rng.choice(STRAYS)
        rsvdulp = change.get("rsvdulp", 0x41) | rng.getrandbits(32) << 8
        entries.append(REQUEST | change | {
            "stream": rng.choice(streams), "tag": number, "rsvdulp": rsvdulp})
    return entries


def expected(entries, opened):
    """Returns which entries pass, and the requests, as RFC 5040 says."""
    opened, passed, requests = set(opened), [], []
    for entry in entries:
        first = not entry["tagged"] and entry["kind"] is Kind.MESSAGE and entry["qn"] == 1
        good = first and entry["stream"] in opened
        right = (
            entry["length"] == 28 and entry["rsvdulp"] & 0xF == 1
            and entry["rsvdulp"] >> 6 & 3 in (0, 1) and entry["status"] is Status.DELIVERED
        )
        if good and right:
            requests.append((entry["stream"], (entry["tag"] + 1) % (1 << 16)))
        else:
            passed.append(entry["tag"])
            if good:
                opened.remove(entry["stream"])
    return passed, requests


def filtered(seed, kind=RequestFilter, *, stall=0.2, count=250):
    """Compares a RequestFilter with the RFC."""
    rng, dut = random.Random(seed), shared(kind, CONFIG.streams)
    opened = rng.sample(range(16), 12)
    streams = rng.sample(range(16), 3) if seed % 2 else range(16)
    entries = draw(rng, streams, count)
    passed, requests = expected(entries, opened)
    got, asked = [], []

    async def drive(ctx):
        for number in opened:
            await send(ctx, dut.set, [{"stream": number, "open": 1}])
        await send(ctx, dut.i, entries, idle=rng.choice((0, 0.5)), rng=rng)

    async def take(ctx):
        while len(got) < len(passed):
            got.append((await receive(ctx, dut.o, stall=stall, rng=rng)).tag)

    async def answer(ctx):
        while len(asked) < len(requests):
            request = await receive(ctx, dut.requests, stall=stall, rng=rng)
            asked.append((request.stream, request.following))

    simulate(dut, drive, take, answer, limit=20 * count)
    assert (got, asked) == (passed, requests)


@pytest.mark.parametrize("seed", range(4))
def test_read_requests_are_taken_out_and_all_else_passes(seed):
    filtered(seed)


@pytest.mark.parametrize(("old", "new"), first([
    # A stream that a stray has closed is closed for the next two entries, too.
    ("zip(closes, closed, strict=True)).any()", "zip(closes[:1], closed[:1], strict=True)).any()"),
    ("zip(closes, closed, strict=True)).any()", "zip(closes[1:], closed[1:], strict=True)).any()"),
    ("(other == number2)", "(other != number2)"),
    ("strays.eq(here & open2 & ~request2)", "strays.eq(here & ~request2 & 0)"),
    ("(entry.length == read_request.OCTETS)", "(entry.length[:16] == read_request.OCTETS)"),
    ("(entry.status == completion.Status.DELIVERED)", "1"),
    ("(control[6:] <= read_request.VERSION)", "1"),
    ("& (entry.qn == read_request.QN)", ""),
    ("& ~entry.tagged", ""),
    ("along.o.tag[:16] + 1", "along.o.tag[:16]"),
    ("takes.eq(self.i.valid & self.i.ready)", "takes.eq(self.i.valid)"),
]))
def test_a_wrong_filter_is_found(old, new):
    wrong = planted("rdmap.responder", old, new).RequestFilter
    with pytest.raises(AssertionError):
        for seed in range(4):
            filtered(seed, wrong)


@pytest.mark.parametrize("seed", range(3))
def test_a_slot_is_posted_for_the_request_that_is_ird_later(seed):
    rng, dut = random.Random(seed), shared(SlotPoster, CONFIG)
    slots, answered, due = {}, [], []
    for stream in rng.sample(range(16), 8):
        size = rng.choice((0, 1, 4, 7, 12))
        slots[stream] = {
            "stream": stream, "base": rng.getrandbits(50), "size": size,
            "ird": rng.randint(1, 1 << size), "buffer": rng.randrange(1 << 10),
            "msn": 1, "open": rng.random() < 0.8,
        }
    for _ in range(60):
        slot = slots[rng.choice([*slots])]
        msn, count = rng.choice((rng.getrandbits(32), (1 << 32) - 2)), rng.choice((1, 1, 2, 8))
        for each in range(msn, msn + count):
            answered.append({"stream": slot["stream"], "msn": each % (1 << 32)})
            if not slot["open"]:
                continue
            number = (each + slot["ird"]) % (1 << 32)
            index = number % (1 << slot["size"])
            due.append((slot["stream"], 1, number, (slot["buffer"] + index) % CONFIG.buffers,
                        (slot["base"] + index) * 64 % (1 << 64), 28))
    got = []

    async def drive(ctx):
        for slot in slots.values():
            await send(ctx, dut.set, [slot])
        await send(ctx, dut.i, answered, idle=0.2, rng=rng)

    async def take(ctx):
        while len(got) < len(due):
            post = await receive(ctx, dut.o, stall=0.3, rng=rng)
            got.append((post.stream, post.qn, post.msn, post.slot, post.buffer.address,
                        post.buffer.length))

    simulate(dut, drive, take)
    assert got == due


def test_a_slot_that_was_closed_is_not_posted_whenever_that_happened():
    dut = shared(SlotPoster, CONFIG)
    slots = {"stream": 3, "base": 0x40, "size": 4, "ird": 4, "buffer": 8, "msn": 1, "open": 1}

    async def close(ctx, after):
        """Closes the slots some cycles after an answer, and gives the post time to leave."""
        await send(ctx, dut.set, [slots])
        await ctx.tick().repeat(3)
        ctx.set(dut.i.payload, {"stream": 3, "msn": 5})
        ctx.set(dut.i.valid, 1)
        offered = False
        for cycle in range(30):
            ctx.set(dut.set.payload, {**slots, "open": 0})
            ctx.set(dut.set.valid, cycle == after)
            taken = ctx.get(dut.i.ready)
            await ctx.tick()
            if taken:
                ctx.set(dut.i.valid, 0)
            offered |= bool(ctx.get(dut.o.valid))
            assert cycle <= after or not ctx.get(dut.o.valid)
        assert offered == (after >= 5)
        assert not ctx.get(dut.busy)

    async def drive(ctx):
        for after in range(10):
            await close(ctx, after)

    simulate(dut, drive)


def test_a_buffer_is_posted_every_4_cycles():
    dut, at = shared(SlotPoster, CONFIG), []
    slots = {"stream": 3, "base": 0x40, "size": 4, "ird": 4, "buffer": 8, "msn": 1, "open": 1}

    async def drive(ctx):
        await send(ctx, dut.set, [slots])
        await send(ctx, dut.i, [{"stream": 3, "msn": msn} for msn in range(1, 21)])

    async def watch(ctx):
        ctx.set(dut.o.ready, 1)
        async for cycle, (valid,) in numbered(ctx.tick().sample(dut.o.valid)):
            if valid:
                at.append(cycle)
            if len(at) == 20:
                return

    simulate(dut, drive, watch)
    assert at[-1] - at[0] == 4 * 19


def joined(seed, kind=PostsJoin):
    """Posts buffers of the host and of slots. Each arrives once, in order, 4 cycles apart."""
    rng, dut = random.Random(seed), shared(kind, CONFIG)
    host, slots, out = [*range(1000, 1080)], [*range(2000, 2080)], []
    holds = []

    async def post(ctx):
        for msn in host:
            ctx.set(dut.host.payload, {"msn": msn})
            ctx.set(dut.host.valid, 1)
            await ctx.tick()
            ctx.set(dut.host.valid, 0)
            for _ in range(rng.choice((3, 3, 3, 4, 9, 30))):
                await ctx.tick()

    async def offer(ctx):
        await send(ctx, dut.slots, [{"msn": msn} for msn in slots], idle=0.3, rng=rng)

    async def hold(ctx):
        while True:
            for _ in range(rng.randint(1, 60)):
                await ctx.tick()
            ctx.set(dut.hold, 1)
            while not ctx.get(dut.settled):
                await ctx.tick()
            ctx.set(dut.hold, 0)

    async def watch(ctx):
        ticks = ctx.tick().sample(dut.o.valid, dut.o.payload, dut.hold, dut.settled)
        async for cycle, (valid, payload, held, settled) in numbered(ticks):
            if valid:
                out.append((cycle, payload.msn))
            if held and settled:
                holds.append((cycle, out[-1][0] if out else -100))
            if held:
                assert not valid or payload.msn < 2000, "a slot is posted before a change"
            if len(out) == len(host) + len(slots):
                return

    simulate(dut, post, offer, watch, background=[hold])
    assert [msn for _, msn in out if msn < 2000] == host
    assert [msn for _, msn in out if msn >= 2000] == slots
    gaps = [later - cycle for (cycle, _), (later, _) in zip(out, out[1:], strict=False)]
    assert min(gaps) >= 4, "UntaggedCheck takes a buffer every 4 cycles"
    assert all(cycle - last >= 5 for cycle, last in holds), "a queue changes 5 cycles after a post"


@pytest.mark.parametrize("seed", range(3))
def test_buffers_of_host_and_slots_are_posted_four_cycles_apart(seed):
    joined(seed)


@pytest.mark.parametrize(("old", "new"), first([
    ("free.eq(since >= GAP)", "free.eq(since >= GAP - 1)"),
    ("keeps.eq(host & ~free)", "keeps.eq(self.host.valid & ~free)"),
    ("free & ~host & ~self.hold", "free & ~self.hold"),
    ("free & ~host & ~self.hold", "free & ~host"),
    ("(since == SETTLE) & ~host", "~host"),
]))
def test_a_wrong_join_is_found(old, new):
    wrong = planted("rdmap.responder", old, new).PostsJoin
    with pytest.raises(AssertionError):
        for seed in range(3):
            joined(seed, wrong)
