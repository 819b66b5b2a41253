"""Tests the exception queue: packets come out whole and in order, or not at all and counted."""

import dataclasses
import random

import pytest
from amaranth.hdl import Value
from ddp_rnic.hdl.dma.exceptions import ExceptionQueue
from ddp_rnic.hdl.lib.testing import Offer, beats_of, shared, simulate
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig

OCTETS = 4096
LATENCY = 7


@dataclasses.dataclass(frozen=True)
class Packet:
    data: bytes
    stream: int
    sequence: int
    reason: int

    def beats(self, octets):
        """Returns the payloads of the queue's input, one per beat."""
        for beat in beats_of(self.data, octets):
            yield {"beat": beat, "stream": self.stream, "sequence": self.sequence,
                   "reason": self.reason}


def make_packet(rng, length):
    return Packet(rng.randbytes(length), rng.getrandbits(16), rng.getrandbits(32),
                  rng.getrandbits(12))


@dataclasses.dataclass
class Outcome:
    """The output packets, with the cycles of their first and last beats at input and output."""

    packets: list[Packet] = dataclasses.field(default_factory=list)
    began: list[int] = dataclasses.field(default_factory=list)
    ended: list[int] = dataclasses.field(default_factory=list)
    went: list[int] = dataclasses.field(default_factory=list)
    drops: list[int] = dataclasses.field(default_factory=list)
    #: Beats that the queue held when each packet began to arrive.
    inside: list[int] = dataclasses.field(default_factory=list)


def run(width, packets, *, source=0.0, sink=0.0, resume=0, pauses=None, seed=1, limit=30_000,
        relaxed=False):
    """Sends packets through the queue.

    A side given as 0.3 idles in 3 cycles of 10, the sink up to ``resume``; the source also idles
    before each packet of ``pauses``, for the given number of cycles.
    """
    pauses = dict(pauses or {})
    dut = shared(
        ExceptionQueue, RnicConfig(width=width, exception_octets=OCTETS, relaxed=relaxed))
    octets = width // 8
    rng = random.Random(seed)
    outcome = Outcome()
    layout = dut.o.payload.shape()

    async def bench(ctx):
        beats = [(n, beat) for n, packet in enumerate(packets) for beat in packet.beats(octets)]
        todo = iter(beats)
        sent = ended = None
        taken = put = calm = ready = 0
        number = -1
        offer, current = Offer("o"), None
        waiting = next(todo, None)
        for cycle in range(limit):
            *_, valid, payload, dropped = await ctx.tick().sample(
                dut.o.valid, Value.cast(dut.o.payload), dut.dropped)
            if dropped:
                # The cycle after its last beat.
                assert ended == cycle - 1, f"cycle {cycle}: no packet ended"
                outcome.drops.append(number)
                put -= len(packets[number].data) + octets - 1 >> octets.bit_length() - 1
            ended = None
            if sent is not None:
                if sent[0] != number:
                    number = sent[0]
                    outcome.inside.append(put - taken)
                put += 1
                if sent[1]["beat"]["last"]:
                    ended = cycle
                    outcome.went.append(cycle)
            if offer.taken(valid, ready, payload):
                got = layout.from_bits(payload)
                heading = (got.stream, got.sequence, got.reason)
                if current is None:
                    current = (heading, b"")
                    outcome.began.append(cycle)
                assert heading == current[0], f"cycle {cycle}: another heading"
                part = got.beat.data.to_bytes(octets, "little")[:got.beat.count]
                assert part and (got.beat.last or len(part) == octets), f"cycle {cycle}"
                current = (heading, current[1] + part)
                taken += 1
                if got.beat.last:
                    outcome.packets.append(Packet(current[1], *heading))
                    outcome.ended.append(cycle)
                    current = None
            else:
                assert current is None or sink or valid, f"cycle {cycle}: a gap in a packet"
            sent = waiting if waiting and rng.random() >= source else None
            if sent and pauses.get(sent[0]):
                pauses[sent[0]] -= 1
                sent = None
            ctx.set(dut.i.valid, sent is not None)
            if sent is not None:
                ctx.set(dut.i.payload, sent[1])
                waiting = next(todo, None)
            ready = int(cycle >= resume and rng.random() >= sink)
            ctx.set(dut.o.ready, ready)
            calm = calm + 1 if waiting is None and sent is None and not valid else 0
            if calm > 20:
                return
        raise AssertionError(f"stuck after {len(outcome.packets)} packets")

    simulate(dut, bench)
    return outcome


def check(width, packets, **options):
    """Asserts that each packet comes out unchanged and in order, or is dropped for lack of room."""
    outcome = run(width, packets, **options)
    depth = OCTETS // (width // 8)
    dropped = set(outcome.drops)
    assert len(dropped) == len(outcome.drops)
    assert outcome.packets == [packet for n, packet in enumerate(packets) if n not in dropped]
    for n in dropped:
        beats = len(list(packets[n].beats(width // 8)))
        assert outcome.inside[n] + beats > depth, f"packet {n} would have fitted"
    return outcome


@pytest.mark.parametrize("source, sink", [(0.3, 0.3), *long((0, 0.8), (0, 0), (0.5, 0), (0, 0.3))])
@pytest.mark.parametrize("width, relaxed", [*((width, False) for width in WIDTHS), (64, True)])
def test_packets_come_out_whole_and_in_order_or_not_at_all(width, relaxed, source, sink):
    seed = random.getrandbits(32)
    print(f"{seed=}")
    rng = random.Random(seed)
    octets = width // 8
    packets = [make_packet(rng, rng.choice([1, octets - 1, octets, octets + 1, 2 * octets, 1500,
                                            rng.randrange(1, 40 * octets), rng.choice(
                                                [OCTETS, OCTETS + 1, OCTETS - octets])]))
               for _ in range(40)]
    outcome = check(
        width, packets, source=source, sink=sink, seed=seed, relaxed=relaxed)
    assert outcome.packets
    # A queue that is read as fast as it is written drops only packets larger than itself.
    assert sink < 0.8 or outcome.drops


@pytest.mark.parametrize("width, relaxed", [*((width, False) for width in WIDTHS), (64, True)])
def test_a_packet_is_shown_so_long_after_its_last_beat_and_not_before(width, relaxed):
    octets = width // 8
    rng = random.Random(width)
    for length in (1, octets, 2 * octets, 10 * octets, OCTETS):
        for source in (0, 0.5):
            outcome = check(
                width, [make_packet(rng, length)], source=source, relaxed=relaxed)
            assert outcome.began == [outcome.went[0] + LATENCY - 2 * relaxed]
            assert outcome.ended[0] - outcome.began[0] == (length - 1) // octets


@pytest.mark.parametrize("width", NARROW)
@pytest.mark.parametrize("beats", (1, 2, 7))
def test_packets_follow_each_other_without_a_gap(width, beats):
    rng = random.Random(width)
    packets = [make_packet(rng, beats * width // 8 - n % 3) for n in range(2000 // beats)]
    outcome = check(width, packets)
    assert not outcome.drops
    assert outcome.ended == [cycle + LATENCY + beats - 1 for cycle in outcome.went]


@pytest.mark.parametrize("width", NARROW)
@pytest.mark.parametrize("beats", (1, 2, 3, 64))
def test_a_queue_that_is_not_read_holds_its_size_and_drops_the_rest(width, beats):
    octets = width // 8
    depth = OCTETS // octets
    count = 3 * depth // beats
    rng = random.Random(width)
    packets = [make_packet(rng, beats * octets) for _ in range(count)]
    outcome = check(width, packets, resume=count * beats + 50)
    held = len(outcome.packets) * beats
    # The output takes some beats in advance.
    assert depth - beats < held <= depth + 18
    # A packet that did not fit takes no room away from later ones.
    assert outcome.drops == list(range(len(outcome.packets), count))


@pytest.mark.parametrize("width", NARROW)
def test_a_queue_that_was_full_to_the_last_beat_takes_as_much_again(width):
    octets = width // 8
    beats = OCTETS // octets
    rng = random.Random(width)
    small = [make_packet(rng, octets) for _ in range(beats + 30)]
    held = len(check(width, small, resume=2 * beats).packets)
    packets = [*small[:held], make_packet(rng, OCTETS)]
    outcome = check(width, packets, resume=2 * beats, pauses={held: 4 * beats})
    assert outcome.drops == []


@pytest.mark.parametrize("width", NARROW)
def test_the_room_of_a_packet_is_free_once_it_is_read(width):
    beats = OCTETS // (width // 8)
    rng = random.Random(width)
    packets = [make_packet(rng, OCTETS) for _ in range(3)]
    # The second packet comes too early by a few cycles.
    assert check(width, packets, pauses={2: 3 * beats}).drops == [1]


@pytest.mark.parametrize("width", NARROW)
def test_a_short_packet_still_fits_where_a_long_one_did_not(width):
    octets = width // 8
    rng = random.Random(width)
    lengths = [OCTETS // 2, OCTETS // 2 - 2 * octets, OCTETS, octets, OCTETS // 2, octets]
    packets = [make_packet(rng, length) for length in lengths]
    # Nothing is read until all packets are in, except for the beats that the output takes early.
    outcome = check(width, packets, resume=5 * OCTETS // octets)
    assert outcome.drops in ([2], [2, 4])


@pytest.mark.parametrize("width", NARROW)
@pytest.mark.parametrize("more", (1, 5000))
def test_a_packet_longer_than_the_queue_is_dropped_and_its_neighbours_are_not(width, more):
    rng = random.Random(width)
    packets = [make_packet(rng, length) for length in (100, OCTETS + more, 64, OCTETS, 1)]
    outcome = check(width, packets[:3])
    assert outcome.drops == [1]
    # The whole queue is free for one packet.
    outcome = check(width, packets[3:4])
    assert not outcome.drops


@pytest.mark.parametrize("width", [64, *long(512)])
def test_overload_for_long_leaves_the_queue_in_order(width):
    rng = random.Random(width + 7)
    octets = width // 8
    packets = [make_packet(rng, rng.randrange(1, 40 * octets)) for _ in range(200)]
    outcome = check(width, packets, sink=0.7)
    assert len(outcome.drops) > 20 and len(outcome.packets) > 20
