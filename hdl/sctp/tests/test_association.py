"""Tests the table of associations, and how the host fills it."""

import random

import pytest
from ddp_rnic.hdl.lib.testing import shared, simulate
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.sctp.association import AssociationTable
from ddp_rnic.hdl.sctp.frame import Kind
from ddp_rnic.hdl.spec.net import WAYS, AssociationKey, hash_way, insert, slot_bits


def draw(rng, v6=None):
    v6 = rng.random() < 0.5 if v6 is None else v6
    bits = 128 if v6 else 32
    return AssociationKey(
        rng.getrandbits(bits), rng.getrandbits(bits), rng.getrandbits(16), rng.getrandbits(16),
        rng.getrandbits(32), v6,
    )  # fmt: skip


def fill(keys, associations=64):
    """Returns the table that the host makes for the keys, and the number of its writes."""
    entries, writes = {}, []
    for key in keys:
        known = set(entries.values())
        for move in insert(entries, key, associations):
            assert move.slot == hash_way(move.way, move.key, slot_bits(associations))
            entries[move.way, move.slot] = move.key
            assert known <= set(entries.values()), "a key that moves is missing"
            writes.append(move)
        assert sorted(entries.values()) == sorted({*known, key})
    return entries, writes


#: Keys of typical hosts: the fields that differ from one association to the next, and how.
FAMILIES = {
    "random": lambda rng, n: draw(rng),
    "tag": lambda rng, n: BASE._replace(tag=rng.getrandbits(32)),
    "tag in order": lambda rng, n: BASE._replace(tag=n),
    "tag in order, high": lambda rng, n: BASE._replace(tag=n << 20),
    "source port": lambda rng, n: BASE._replace(source_port=32768 + n),
    "destination port": lambda rng, n: BASE._replace(destination_port=n),
    "both ports alike": lambda rng, n: BASE._replace(source_port=n, destination_port=n),
    "host of a /16": lambda rng, n: BASE._replace(
        source=10 | 7 << 8 | (n >> 8) << 16 | (n & 255) << 24, tag=rng.getrandbits(32)),
    "host alone": lambda rng, n: BASE._replace(source=10 | 7 << 8 | 3 << 16 | (n & 255) << 24),
    "host of a /64": lambda rng, n: BASE._replace(
        source=0x80FE | (n & 255) << 120 | (n >> 8) << 112, v6=True),
}
BASE = AssociationKey(0x0100070A, 0x0200070A, 5000, 5001, 0x12345678, False)


@pytest.mark.parametrize("associations, width", ((2, 7), (16, 7), (17, 9), (1024, 9)))
@pytest.mark.parametrize("family", FAMILIES)
def test_keys_of_any_family_spread_over_both_ways(family, associations, width):
    assert slot_bits(associations) == width
    rng = random.Random(family)
    slots = 1 << width
    keys = list(dict.fromkeys(FAMILIES[family](rng, n) for n in range(slots // 2)))
    for way in range(WAYS):
        taken = [hash_way(way, key, width) for key in keys]
        assert all(0 <= slot < slots for slot in taken)
        # Half as many random keys as slots occupy 39 % of the slots: of 512, 256 keys, plus or
        # minus 6.
        assert len(set(taken)) > slots * 175 / 512, f"way {way}: {len(set(taken))} slots"
    entries, _ = fill(keys, associations)
    assert set(entries.values()) == set(keys)


@pytest.mark.parametrize("width", (7, 9))
def test_two_keys_that_differ_in_one_field_share_no_more_than_one_slot(width):
    rng = random.Random(3)
    both = 0
    for _ in range(3000):
        key = draw(rng)
        name = rng.choice(("tag", "source_port", "destination_port"))
        other = key._replace(**{name: getattr(key, name) ^ 1 << rng.randrange(16)})
        shared = [hash_way(way, key, width) == hash_way(way, other, width) for way in range(WAYS)]
        assert not any(shared), "one bit changes both slots"
        other = draw(rng, key.v6)
        both += all(hash_way(way, key, width) == hash_way(way, other, width) for way in range(WAYS))
    assert both < 4


def test_a_key_twice_or_one_too_many_is_refused():
    rng = random.Random(5)
    key = draw(rng)
    entries, _ = fill([key])
    with pytest.raises(ValueError, match="already"):
        insert(entries, key, 64)
    # Three keys with the same two slots.
    alike = [key]
    nests = [hash_way(way, key, 9) for way in range(WAYS)]
    # Bits 0 and 81 of an address cancel in both ways.
    for bits in (1 | 1 << 81, 2 | 2 << 81):
        alike.append(key._replace(source=key.source ^ bits, v6=key.v6))
        assert [hash_way(way, alike[-1], 9) for way in range(WAYS)] == nests
    entries, _ = fill(alike[:2])
    with pytest.raises(ValueError, match="no room .* beside its 2 entries"):
        insert(entries, alike[2], 64)


def run(dut, writes, lookups):
    """Writes the table, then looks up one key per cycle; returns a result for each, with its cycle.

    Each look-up changes the result."""
    results = []

    async def drive(ctx):
        for way, slot, entry in writes:
            ctx.set(dut.write.payload, {"way": way, "slot": slot, "entry": entry})
            for word in range(dut.words):
                ctx.set(dut.write.valid, not word)
                await ctx.tick()
        ctx.set(dut.write.valid, 0)
        await ctx.tick().repeat(4)
        for cycle in range(len(lookups) + dut.latency + 2):
            valid = cycle < len(lookups) and lookups[cycle] is not None
            if valid:
                for name, value in lookups[cycle].items():
                    ctx.set(dut.i.payload[name], value)
            ctx.set(dut.i.valid, valid)
            _, _, found, result = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            if found:
                results.append((cycle, result))

    simulate(dut, drive)
    return results


def told(key, number):
    return {"valid": 1, **key._asdict(), "association": number, "first": number * 3,
            "streams": number + 100}  # fmt: skip


def in_turn(lookups, words, rng):
    """Yields the look-ups; in the cycles that an SCTP frame takes come nothing or other frames."""
    for lookup in lookups:
        yield lookup
        for _ in range(words - 1 if lookup and lookup["kind"] == Kind.SCTP else 0):
            yield {"kind": rng.choice([kind for kind in Kind if kind != Kind.SCTP])} if (
                rng.random() < 0.5) else None  # fmt: skip


@pytest.mark.parametrize("words", (1, 2, 4))
def test_a_packet_finds_its_association_and_no_other(words):
    rng = random.Random(11)
    keys = [draw(rng) for _ in range(60)] + [BASE._replace(tag=n) for n in range(4)]
    entries, moves = fill(keys)
    numbers = {key: n for n, key in enumerate(keys)}
    writes = [(move.way, move.slot, told(move.key, numbers[move.key])) for move in moves]
    gone = keys[7]
    (nest,) = [nest for nest, kept in entries.items() if kept == gone]
    writes.append((*nest, told(gone, 7) | {"valid": 0}))
    asked = []
    for key in keys:
        asked.append((key, Kind.SCTP))
        asked.append((key, rng.choice([kind for kind in Kind if kind != Kind.SCTP])))
        name, bits = rng.choice(
            [("source", 128), ("destination", 128), ("source_port", 16), ("destination_port", 16),
             ("tag", 32), ("v6", 1)])  # fmt: skip
        changed = int(getattr(key, name)) ^ 1 << rng.randrange(bits)
        asked.append((key._replace(**{name: changed}), Kind.SCTP))
        if rng.random() < 0.3:
            asked.append(None)
    lookups = [ask and {**ask[0]._asdict(), "kind": ask[1]} for ask in asked]
    lookups = list(in_turn(lookups, words, rng))
    dut = shared(AssociationTable, words=words)
    got = iter(run(dut, writes, lookups))
    for cycle, lookup in enumerate(lookups):
        if lookup is None:
            continue
        at, result = next(got)
        assert at == cycle + dut.latency
        kind = lookup["kind"]
        key = AssociationKey(*map(lookup.get, AssociationKey._fields))
        assert Kind(result.kind) == kind
        number = numbers.get(key) if kind == Kind.SCTP and key != gone else None
        expected = (0, 0, 0, 0) if number is None else (1, number, number * 3, number + 100)
        assert (result.found, result.association, result.first, result.streams) == expected
    assert next(got, None) is None


@pytest.mark.parametrize("words", (1, 4))
def test_an_entry_that_is_in_both_ways_is_found_once(words):
    key = draw(random.Random(1))
    writes = [(way, hash_way(way, key, 9), told(key, 45)) for way in range(WAYS)]
    ((_, result),) = run(
        AssociationTable(words=words), writes, [{**key._asdict(), "kind": Kind.SCTP}])  # fmt: skip
    assert (result.found, result.association, result.first, result.streams) == (1, 45, 135, 145)


@pytest.mark.parametrize("words", (1, 2, 4))
def test_every_bit_of_a_key_counts(words):
    key = draw(random.Random(2), v6=True)
    lookups = []
    for name, bits in (("source", 128), ("destination", 128), ("source_port", 16),
                       ("destination_port", 16), ("tag", 32), ("v6", 1)):  # fmt: skip
        for bit in range(bits):
            lookups.append(key._replace(**{name: int(getattr(key, name)) ^ 1 << bit}))
    # An entry for the key in the slots of every other key: only the comparison distinguishes them.
    dut = AssociationTable(associations=4, words=words)
    writes = [(way, slot, told(key, 1)) for way in range(WAYS) for slot in range(128)]
    asked = [{**other._asdict(), "kind": Kind.SCTP} for other in [*lookups, key]]
    asked = [each for lookup in asked for each in (lookup, *[None] * (words - 1))]
    found = [result.found for _, result in run(dut, writes, asked)]
    assert found == [0] * len(lookups) + [1]


def found_while_written(words, entries):
    """Returns the result for a key whose slot is being replaced by the second entry.

    The results are by the number of cycles from the look-up to the write."""
    key = draw(random.Random(4))
    dut = shared(AssociationTable, words=words)
    nest = {"way": 1, "slot": hash_way(1, key, 9)}
    found = {}

    async def drive(ctx):
        ctx.set(dut.i.payload, {**key._asdict(), "kind": Kind.SCTP})
        for late in range(-6, 7):
            for number, changed in enumerate(entries, 1):
                entry = key._replace(**{name: getattr(key, name) ^ 1 for name in changed})
                ctx.set(dut.write.payload, {**nest, "entry": told(entry, number)})
                for cycle in range(30):
                    ctx.set(dut.write.valid, cycle == (6 if number == 1 else 6 + late))
                    ctx.set(dut.i.valid, number == 2 and cycle == 6)
                    *_, valid, result = await ctx.tick().sample(dut.o.valid, dut.o.payload)
                    if valid:
                        found[late] = result.association

    simulate(dut, drive)
    return found


@pytest.mark.parametrize("words", (1, 2, 4))
def test_from_which_cycle_on_a_write_counts(words):
    assert found_while_written(words, ((), ())) == {
        late: 2 if late < 2 - words else 0 if late <= words else 1 for late in range(-6, 7)}


@pytest.mark.parametrize("words", (2, 4))
@pytest.mark.parametrize("entries", ((("tag",), ("source",)), (("source",), ("tag",))))
def test_words_of_two_entries_are_not_taken_for_one(words, entries):
    # One entry differs from the wanted key in the first word, the other in the last.
    assert not any(found_while_written(words, entries).values())


@pytest.mark.parametrize("wrong, error, message", (
    ({"associations": 1}, ValueError, "Associations must be"),
    ({"associations": "64"}, TypeError, "Associations must be"),
    ({"words": 3}, ValueError, "Words of an entry must be"),
))  # fmt: skip
def test_what_a_table_cannot_be_is_refused(wrong, error, message):
    refused(message, AssociationTable, error=error, **wrong)
