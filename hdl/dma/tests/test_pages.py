"""Tests how placements are cut at the ends of pages, by the definition of a linear address."""

import random

import pytest
from amaranth.hdl import Module, Value
from ddp_rnic.hdl.dma.jobs import Placement
from ddp_rnic.hdl.dma.pages import PAGE_SHIFTS, PageCut, PagedPlacement, PageEntry
from ddp_rnic.hdl.lib.table import Table
from ddp_rnic.hdl.lib.testing import decoded, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig

SLOTS = 64
LATENCY = 11
LONGEST = (1 << 17) - 1
SAME = ("exception", "reason", "stream", "sequence")


def shift_of(code):
    return PAGE_SHIFTS[min(code, len(PAGE_SHIFTS)) - 1]


def make_table(seed):
    """Returns a page for every slot, aligned for every size."""
    rng = random.Random(seed)
    return [rng.getrandbits(64 - PAGE_SHIFTS[-1]) << PAGE_SHIFTS[-1] for _ in range(SLOTS)]


def run(width, items, *, table=None, source=0.0, stall=0.0, seed=1, slots=SLOTS, limit=20_000):
    """Returns the placements that the items become, with the cycles of input and output.

    A side given as 0.3 idles in 3 cycles of 10.
    """
    config = RnicConfig(width=width, pages=slots)
    dut = shared(PageCut, config)
    rng = random.Random(seed)
    table = table or make_table(seed)
    names = dict(dut.o.payload.shape().members)
    went, came = [], []

    async def bench(ctx):
        pending = iter(items)
        item = next(pending, None)
        coming, go, allowed, calm, owed, asked = False, 0, 0, 0, 0, 0
        for cycle in range(limit):
            *_, ready, index, valid, payload, busy = await ctx.tick().sample(
                dut.ready, dut.index, dut.o.valid, Value.cast(dut.o.payload), dut.busy)
            assert not valid or allowed, f"cycle {cycle}: came without leave"
            assert busy or not owed, f"cycle {cycle}: not busy, and owes {owed} pieces"
            if valid:
                owed -= 1
                payload = decoded(dut.o, payload)
                came.append((cycle, {name: payload[name] for name in names}))
            if coming:
                went.append(cycle)
                owed += pieces_of(item)
                item = next(pending, None)
            # A look-up of the last cycle is answered in the next one.
            ctx.set(dut.page.address, table[asked] >> PAGE_SHIFTS[0])
            asked = index % len(table)
            allowed, go = go, int(not stall or rng.random() >= stall)
            ctx.set(dut.go, go)
            # It suffices that the block was ready in the cycle before.
            coming = item is not None and ready and (not source or rng.random() >= source)
            ctx.set(dut.i.valid, coming)
            if coming:
                ctx.set(dut.i.payload, item)
            calm = calm + 1 if item is None and not busy and not coming else 0
            if calm == 40:
                return
        raise AssertionError(f"stuck: {len(went)} went in, {len(came)} came out")

    simulate(dut, bench)
    return went, came


def paged(start, length, linear, pages, **fields):
    return {
        "placement": {"start": start, "length": length, "address": linear, "exception": 0,
                      "last": 1, "stream": 0, "sequence": 0, "reason": 0, "release": 0, **fields},
        "pages": pages,
    }


def is_cut(item):
    whole = item["placement"]
    return item["pages"] and whole["length"] and not whole["exception"]


def definition(item, table):
    """Returns the host address of each octet of a placement in pages, by the definition."""
    linear, shift = item["placement"]["address"], shift_of(item["pages"])
    return [table[(octet >> shift) % len(table)] | octet & (1 << shift) - 1
            for octet in range(linear, linear + item["placement"]["length"])]


def pieces_of(item):
    """Returns the number of pieces that a placement becomes."""
    whole = item["placement"]
    if not is_cut(item):
        return 1
    shift = shift_of(item["pages"])
    return (whole["address"] + whole["length"] - 1 >> shift) - (whole["address"] >> shift) + 1


def judge(width, items, came, table):
    config = RnicConfig(width=width)
    ring = config.buffer_octets
    given = iter(piece for _cycle, piece in came)
    for number, item in enumerate(items):
        whole, where = item["placement"], f"placement {number}: {item}"
        count = pieces_of(item)
        pieces = [next(given, None) for _ in range(count)]
        assert None not in pieces, where
        for piece in pieces:
            assert [piece[name] for name in SAME] == [whole[name] for name in SAME], where
        assert [piece["last"] for piece in pieces] == [0] * (count - 1) + [whole["last"]], where
        assert [piece["release"] for piece in pieces] == [
            *[whole["start"] // config.octets] * (count - 1), whole["release"]], where
        if not is_cut(item):
            assert pieces == [whole], where
            continue
        starts = [(piece["start"], piece["length"]) for piece in pieces]
        assert all(length for _start, length in starts), where
        source = [octet % ring for start, length in starts
                  for octet in range(start, start + length)]
        assert source == [octet % ring for octet in
                          range(whole["start"], whole["start"] + whole["length"])], where
        assert [octet for piece in pieces
                for octet in range(piece["address"], piece["address"] + piece["length"])] == \
            definition(item, table), where
    assert next(given, None) is None


def check(width, items, *, seed=1, table=None, **options):
    table = table or make_table(seed)
    went, came = run(width, items, table=table, seed=seed, **options)
    judge(width, items, came, table)
    return went, came


def some_items(rng, config, count, *, longest):
    ring = config.buffer_octets
    for number in range(count):
        pages = rng.choice([0, *range(1, 11)])
        shift = shift_of(pages or 1)
        length = rng.choice([0, 1, 2, config.octets, 4095, 4096, 4097, rng.randrange(longest)])
        offset = rng.choice([0, 1, rng.randrange(1 << shift), (1 << shift) - 1,
                             max(0, (1 << shift) - length), max(0, (1 << shift) + 1 - length),
                             max(0, (1 << shift) - rng.randrange(2 * 4096))])
        linear = (rng.randrange(SLOTS) << shift) + offset if pages else rng.getrandbits(64)
        yield paged(rng.randrange(ring), length, linear, pages,
                    exception=int(rng.random() < 0.15), last=rng.randrange(2),
                    stream=rng.getrandbits(6), sequence=number, reason=rng.getrandbits(12),
                    release=rng.randrange(2 * ring // 8))


@pytest.mark.parametrize("source, stall", [(0, 0), (0.7, 0), (0, 0.7), (0.3, 0.3), (0, 0.95)])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_octet_goes_to_its_page(width, source, stall):
    seed = random.getrandbits(32)
    print(f"{seed=}")
    rng = random.Random(seed)
    items = list(some_items(rng, RnicConfig(width=width), 60, longest=30_000))
    check(width, items, seed=seed, source=source, stall=stall)


@pytest.mark.parametrize("code", [1, 2, *long(*range(3, 15)), 15])
def test_each_size_of_page_is_cut_to_the_octet(code):
    shift, width = shift_of(code), 64
    size = 1 << shift
    items = []
    for before in (1, 2, 4095, 70_000):
        for after in (0, 1, 2, 4095, 61_000):
            # From ``before`` octets before the end of a page to ``after`` octets after it.
            linear = 5 * size - before
            if linear >= 0:
                items.append(paged(before % 4096, before + after, linear, code, release=99))
    items += [paged(7, length, 3 * size + offset, code)
              for length in (1, 4096, LONGEST) for offset in (0, 1, size - 1)]
    check(width, items, limit=5000)


@pytest.mark.parametrize("offset", (0, 1, 2048, 4095))
def test_the_longest_placement_crosses_all_its_pages(offset):
    items = [paged(3, LONGEST, (SLOTS - 5 << 12) + offset, 1, release=5)]
    _went, came = check(512, items)
    assert len(came) == (offset + LONGEST - 1) // 4096 + 1
    assert [piece["length"] for _cycle, piece in came[1:-1]] == [4096] * (len(came) - 2)


def test_slots_of_any_number_are_looked_up():
    slots = 1 << 16
    table = make_table(4)

    def slot_of(number):
        return number % SLOTS

    items = [paged(0, 6000, (slot << 12) + 1, 1, sequence=slot_of(slot))
             for slot in (0, 1, 0xFFF, 0x1000, 0x8001, 0xFFFE, 0xFFFF)]
    check(64, items, table=table, slots=slots)


def test_the_last_slot_is_followed_by_the_first():
    table = make_table(8)
    items = [paged(0, 10_000, (SLOTS - 1 << 12) + 9, 1)]
    _went, came = check(128, items, table=table)
    assert [piece["address"] >> 12 for _cycle, piece in came] == [
        table[slot] >> 12 for slot in (SLOTS - 1, 0, 1)]


def test_a_piece_after_markers_hands_back_nothing_twice():
    """A part of a payload between markers frees only the beats before it (mpa/markers.py)."""
    octets = 8
    items = [paged(4000 + 508 * n, 508, 4096 * 9 - 700 + 508 * n, 1, last=0,
                   release=(4000 + 508 * n) // octets) for n in range(4)]
    _went, came = check(8 * octets, items)
    released = [piece["release"] for _cycle, piece in came]
    assert len(came) == 5 and released == sorted(released)


@pytest.mark.parametrize("code", (0, 1, 10))
@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_not_cut_takes_eleven_cycles_and_goes_through_each_cycle(width, code):
    items = [paged(8 * n, 63 * n, 4096 * n + n, code, exception=int(n % 7 == 6))
             for n in range(64)]
    items = [item for item in items if pieces_of(item) == 1]
    went, came = check(width, items)
    assert len(items) > 50
    assert went == list(range(went[0], went[0] + len(items)))
    assert [cycle for cycle, _piece in came] == [cycle + LATENCY for cycle in went]


def test_pieces_follow_each_other_each_cycle():
    rng = random.Random(6)
    items = [paged(0, rng.randrange(1, 20_000), (n << 12) + rng.randrange(4096), 1)
             for n in range(50)]
    went, came = check(256, items)
    assert len(came) == sum(map(pieces_of, items))
    cycles = [cycle for cycle, _piece in came]
    assert cycles == list(range(went[0] + LATENCY, went[0] + LATENCY + len(came)))


def test_after_a_pause_pieces_go_out_each_cycle():
    dut = shared(PageCut, RnicConfig(width=64, pages=SLOTS))

    async def bench(ctx):
        cycles = []
        ctx.set(dut.i.payload, paged(0, 8192, 1, 1))
        for cycle in range(100):
            ctx.set(dut.i.valid, ctx.get(dut.ready))
            ctx.set(dut.go, cycle >= 40)
            *_, valid = await ctx.tick().sample(dut.o.valid)
            if valid:
                cycles.append(cycle)
        assert cycles == list(range(41, 100))

    simulate(dut, bench)


def test_pages_come_from_a_table_as_it_answers():
    config = RnicConfig(width=64, pages=16)
    dut = shared(PageCut, config)
    table = Table(PageEntry(), config.pages, live="valid")
    m = Module()
    m.submodules.dut, m.submodules.table = dut, table
    m.d.comb += [
        table.index[0].eq(dut.index),
        dut.page.address.eq(table.entry[0].address),
        dut.go.eq(1),
    ]

    async def bench(ctx):
        for slot in range(16):
            ctx.set(table.write.payload, {
                "index": slot, "entry": {"valid": 1, "address": 0xABCD_0000 + 5 * slot}})
            ctx.set(table.write.valid, 1)
            await ctx.tick()
        ctx.set(table.write.valid, 0)
        await ctx.tick().repeat(3)
        ctx.set(dut.i.payload, paged(0, 5 * 4096, 3 * 4096 + 12, 1))
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        addresses = []
        for _ in range(30):
            *_, valid, payload = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            if valid:
                addresses.append(payload.address)
        assert addresses == [0xABCD_0000 + 5 * slot << 12 | (12 if slot == 3 else 0)
                             for slot in range(3, 9)]

    simulate(m, bench)


def test_a_placement_in_pages_is_its_placement_and_a_code():
    config = RnicConfig()
    assert dict(PagedPlacement(Placement(config)).members)["pages"] == 4
    assert list(PAGE_SHIFTS) == list(range(12, 22))
