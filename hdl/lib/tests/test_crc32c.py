"""Tests CRC32C against the vectors of RFC 3720 B.4 and against google-crc32c."""

import random
from itertools import accumulate, count

import google_crc32c
import pytest
from ddp_rnic.hdl.lib.crc32c import Crc32c, Crc32cStream, Slice, differences
from ddp_rnic.hdl.lib.testing import beats_of, shared, simulate
from ddp_rnic.hdl.lib.tests.long import NARROW, long

WIDTHS = (64, 128, 256, 512)

#: Cycles from a slice to its result, by width and granule.
LATENCY = {
    (64, 4): 7, (128, 4): 7, (256, 4): 8, (512, 4): 9,
    (64, 1): 8, (128, 1): 9, (256, 1): 10, (512, 1): 12,
}

#: RFC 3720 B.4; the CRC as a number whose lowest octet goes first.
RFC_3720 = {
    "32 octets of zeros": (bytes(32), 0x8A9136AA),
    "32 octets of ones": (b"\xff" * 32, 0x62A8AB43),
    "32 incrementing octets": (bytes(range(32)), 0x46DD794E),
    "32 decrementing octets": (bytes(reversed(range(32))), 0x113FDB5C),
    "an iSCSI SCSI Read (10) command": (
        bytes.fromhex(
            "01c00000 00000000 00000000 00000000 14000000 00000400"
            "00000014 00000018 28000000 00000000 02000000 00000000"
        ),
        0xD9963A56,
    ),
}


def slices_of(packets, octets, granule, *, lead=0):
    """Yields the slices of beats in which ``packets`` lie back to back, as a walker makes them.

    ``lead`` granules of no packet precede the first one. Yields the fields of each Slice, and the
    packets that end with it; the packet of the tail is the second one.
    """
    k = octets // granule
    text = b"\xee" * (lead * granule) + b"".join(packets)
    marks = list(accumulate((len(packet) // granule for packet in packets), initial=lead))
    number, begun = 0, False  # the current packet, and whether an earlier slice began it
    for base in count(0, k):
        if number == len(packets):
            return
        end = min(k, marks[-1] - base)
        octets_here = text[base * granule : (base + end) * granule]
        beat = {"data": int.from_bytes(octets_here, "little"), "end": end}
        while number < len(packets) and marks[number] < base + k:
            fields = beat | {"first": not begun, "lo": 0 if begun else marks[number] - base}
            if marks[number + 1] > base + end:
                begun = True
                yield fields, []
                break
            done, begun = [packets[number]], False
            number += 1
            cut = marks[number] - base
            fields |= {"close": 1, "cut": cut}
            if number < len(packets) and cut < k:
                if marks[number + 1] > base + end:
                    begun = fields["open"] = True
                elif number == len(packets) - 1:
                    fields |= {"open": 1, "tail": 1}
                    done.append(packets[number])
                    number += 1
            yield fields, done
            if begun:
                break


def beats_and_ends(packet, octets):
    """Yields the beats of one packet, with the packets that end with each."""
    for beat in beats_of(packet, octets):
        yield beat, [packet] if beat["last"] else []


def check(dut, inputs, *, idle=0.0, rng=random):
    """Feeds the inputs; asserts the value of every result, and the cycle in which it comes."""
    inputs = list(inputs)
    wanted = []  # (packet, cycle)
    results = []  # (crc, cycle)
    cycle = 0

    async def watch(ctx):
        nonlocal cycle
        while cycle < 20 * len(inputs) + 1000:
            _, _, valid, crc = await ctx.tick().sample(dut.o.valid, dut.o.payload.crc)
            if valid:
                results.append((crc, cycle))
            cycle += 1
        raise AssertionError(f"no end after {cycle} cycles")

    async def feed(ctx):
        for fields, packets in inputs:
            while rng.random() < idle:
                ctx.set(dut.i.valid, 0)
                ctx.set(dut.i.payload, fields | {"data": rng.getrandbits(dut.width)})
                await ctx.tick()
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.payload, fields)
            due = enumerate(packets, cycle + dut.latency)
            wanted.extend((packet, at) for at, packet in due if packet is not None)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(dut.latency + 4)

    simulate(dut, feed, background=[watch])
    for number, ((packet, due), (crc, came)) in enumerate(zip(wanted, results, strict=False)):
        name = f"packet {number} of {len(packet)} octets"
        expected = google_crc32c.value(packet)
        assert crc == expected, f"{name}: crc expected {expected:#x} got {crc:#x} in cycle {came}"
        assert came == due, f"{name}: cycle expected {due} got {came}"
    assert len(results) == len(wanted), f"results expected {len(wanted)} got {len(results)}"


def seeded():
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("name", RFC_3720)
def test_the_reference_gives_the_published_vectors(name):
    packet, crc = RFC_3720[name]
    assert google_crc32c.value(packet) == crc


@pytest.mark.parametrize("width", WIDTHS)
def test_a_stream_gives_the_published_vectors(width):
    packets = [packet for packet, _ in RFC_3720.values()]
    dut = shared(Crc32cStream, width)
    assert dut.latency == LATENCY[width, 1]
    check(dut, [beat for it in packets for beat in beats_and_ends(it, width // 8)])


@pytest.mark.parametrize("granule", (1, 4))
@pytest.mark.parametrize("width", WIDTHS)
def test_packets_back_to_back_give_the_published_vectors(width, granule):
    packets = [packet for packet, _ in RFC_3720.values()]
    dut = shared(Crc32c, width, granule=granule)
    assert dut.latency == LATENCY[width, granule]
    check(dut, slices_of(packets, width // 8, granule))


@pytest.mark.parametrize("idle", (0.0, 0.4))
@pytest.mark.parametrize("width", WIDTHS)
def test_a_stream_takes_packets_of_every_length(width, idle):
    n = width // 8
    rng = seeded()
    lengths = [0, 1, 2, 3, n - 1, n, n + 1, 2 * n - 1, 2 * n, 2 * n + 1, 0, 0, 1, 1, 5 * n + 3]
    lengths += rng.choices(range(4 * n), k=20)
    beats = [beat for length in lengths for beat in beats_and_ends(rng.randbytes(length), n)]
    check(shared(Crc32cStream, width), beats, idle=idle, rng=rng)


@pytest.mark.parametrize(
    "granule, idle", [(1, 0.4), (4, 0.0), *long((1, 0.0), (2, 0.4), (4, 0.4))])
@pytest.mark.parametrize("width", WIDTHS)
def test_packets_end_and_begin_anywhere(width, granule, idle):
    k = width // 8 // granule
    rng = seeded()
    lengths = [0, 1, k - 1, k, k + 1, 2 * k - 1, 2 * k, 2 * k + 1, 1, 1, 1, 2, 0, 0, 3, 7 * k + 1]
    lengths += [k, k, *rng.choices(range(3 * k + 1), k=20), *rng.choices(range(4), k=12)]
    packets = [rng.randbytes(length * granule) for length in lengths]
    slices = slices_of(packets, width // 8, granule)
    check(shared(Crc32c, width, granule=granule), slices, idle=idle, rng=rng)


@pytest.mark.parametrize("granule", (1, 4))
@pytest.mark.parametrize("width", NARROW)
def test_a_packet_begins_and_ends_at_every_granule(width, granule):
    k = width // 8 // granule
    rng = seeded()
    step = 1 if k <= 16 else 7
    inputs = []
    for lead in range(0, k, step):
        for length in (*range(0, k + 2, step), 2 * k - lead, 3 * k - lead):
            packets = [rng.randbytes(length * granule)]
            inputs += slices_of(packets, width // 8, granule, lead=lead)
    check(shared(Crc32c, width, granule=granule), inputs)


@pytest.mark.parametrize("width", (64, 128))
def test_differences_of_the_last_octets_change_one_bit_of_a_register(width):
    """Of each bit of the state and of the result, in packets of all lengths together."""
    k, packet = width // 32, seeded().randbytes(2 * width // 8 - 4)
    changes = [0, *differences(width, 4)]
    assert len(set(changes)) == len(changes)
    dut = shared(Crc32c, width, granule=4)
    shown = set()

    async def feed(ctx):
        for length in range(4, 4 * k + 4, 4):
            right = google_crc32c.value(packet[:length])
            states, results = [], []
            for change in changes:
                whole = packet[:length] + (right ^ change).to_bytes(4, "little")
                for fields, _ in slices_of([whole], width // 8, 4):
                    ctx.set(dut.i.valid, 1)
                    ctx.set(dut.i.payload, fields)
                    await ctx.tick()
                ctx.set(dut.i.valid, 0)
                for _ in range(dut.latency + 2):
                    if ctx.get(dut.o.valid):
                        results.append(ctx.get(dut.o.payload.crc))
                    if ctx.get(dut._rewind.valid):
                        states.append(ctx.get(dut._rewind.state))
                    await ctx.tick()
            for kind, (first, *others) in (("state", states), ("result", results)):
                assert len(others) == len(changes) - 1
                shown.update((kind, first ^ other) for other in others)

    simulate(dut, feed)
    assert {(kind, 1 << bit) for kind in ("state", "result") for bit in range(32)} <= shown


@pytest.mark.parametrize("granule", (1, 4))
@pytest.mark.parametrize("width", WIDTHS)
def test_two_packets_end_with_the_data_of_one_slice(width, granule):
    """The second packet is the tail; the next slice begins a packet, by ``first`` or ``open``."""
    k = width // 8 // granule
    rng = seeded()
    inputs = []
    for _ in range(40):
        begin, end = rng.randrange(k), rng.randint(0, k)
        cut = rng.randint(0, end)
        body, pair = rng.randbytes(width // 8), rng.randbytes(end * granule)
        beyond = rng.getrandbits(width) >> 8 * end * granule << 8 * end * granule
        how = rng.choice(({"first": 1, "lo": begin}, {"open": 1, "cut": begin}))
        inputs.append(({"data": int.from_bytes(body, "little"), "end": k} | how, []))
        fields = {"data": int.from_bytes(pair, "little") | beyond, "end": end, "cut": cut}
        packets = [body[begin * granule :] + pair[: cut * granule], pair[cut * granule :]]
        inputs.append((fields | {"close": 1, "open": 1, "tail": 1}, packets))
    check(shared(Crc32c, width, granule=granule), inputs)


@pytest.mark.parametrize("granule", (1, 4))
@pytest.mark.parametrize("width", WIDTHS)
def test_a_tail_alone_ends_with_the_data(width, granule):
    """No packet was open; an open packet without an end is forgotten when the next one begins."""
    k = width // 8 // granule
    rng = seeded()
    inputs = []
    for _ in range(30):
        end = rng.randint(0, k)
        cut = rng.randint(0, end)
        text = rng.randbytes(width // 8)
        fields = {"data": int.from_bytes(text, "little"), "end": end, "cut": cut, "open": 1}
        inputs.append((fields | {"tail": 1}, [None, text[cut * granule : end * granule]]))
        inputs.append((fields, []))
    check(shared(Crc32c, width, granule=granule), inputs)


@pytest.mark.parametrize("granule", (1, 4))
@pytest.mark.parametrize("width", WIDTHS)
def test_octets_outside_of_a_packet_do_not_count(width, granule):
    """Every octet before ``lo``, after ``cut`` and after ``end`` is noise."""
    k = width // 8 // granule
    rng = seeded()
    inputs = []
    for _ in range(40):
        lo = rng.randrange(k)
        cut = rng.randint(lo, k)
        text = rng.randbytes(width // 8)
        fields = {"data": int.from_bytes(text, "little"), "end": rng.randint(cut, k)}
        fields |= {"first": 1, "lo": lo, "close": 1, "cut": cut}
        inputs.append((fields, [text[lo * granule : cut * granule]]))
    check(shared(Crc32c, width, granule=granule), inputs)


@pytest.mark.parametrize("width", NARROW)
def test_a_long_packet(width):
    rng = seeded()
    packets = [rng.randbytes(length) for length in (9000, 64, 4096)]
    check(shared(Crc32c, width), slices_of(packets, width // 8, 4))


@pytest.mark.parametrize(
    "width, granule, message",
    [
        (32, 4, "Slice width must be one of 64, 128, 256, 512, not 32"),
        (64, 3, "Slice granule must be one of 1, 2, 4 octets, not 3"),
    ],
)
def test_parameters_are_checked(width, granule, message):
    with pytest.raises(ValueError) as error:
        Slice(width, granule)
    assert str(error.value) == message
