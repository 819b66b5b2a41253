"""Tests the placement engine against plain memory: every octet lands, nothing else, on time."""

import dataclasses
import random
from functools import partial

import pytest
from ddp_rnic.hdl.bus.tests.axi import Responses
from ddp_rnic.hdl.dma.placement import PlacementDma
from ddp_rnic.hdl.lib.testing import Sinks, numbered, shared, simulate
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig

GUARD = 0xEE
MEMORY = 1 << 16
BASES = {0: 0, 1: 0xFFFF_FFFF_8000_0000, 2: 0x0000_007F_FFFF_0000}
RING = 1 << 12


@dataclasses.dataclass(frozen=True)
class Move:
    """A placement; ``target`` is an offset into the test's memory."""

    start: int
    length: int
    target: int = 0
    exception: bool = False
    stream: int = 0
    sequence: int = 0
    last: bool = True
    release: int = 0
    reason: int = 0

    def beats(self, octets: int) -> tuple[int, int]:
        """Returns the numbers of ring beats and bus beats."""
        if not self.length:
            return 0, 0
        target = 0 if self.exception else self.target
        return tuple((first % octets + self.length + octets - 1) // octets
                     for first in (self.start, target))

    def slots(self, octets: int) -> int:
        """Returns the cycles that the placement may take."""
        return max(1, *self.beats(octets))

    def bursts(self, octets: int) -> list[tuple[int, int]]:
        """Returns aligned offset and beats of each burst, by the rule: 4 KiB and 256 beats."""
        if not self.length or self.exception:
            return []
        block = min(4096, 256 * octets)
        here, end = self.target // octets * octets, self.target + self.length
        bursts = []
        while here < end:
            stop = min(here // block * block + block, end)
            bursts.append((here, (stop - here + octets - 1) // octets))
            here = stop
        return bursts


@dataclasses.dataclass
class Outcome:
    """The outputs, each with its cycle."""

    taken: list[int] = dataclasses.field(default_factory=list)
    aw: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    w: list[tuple[int, int, int, int]] = dataclasses.field(default_factory=list)
    exceptions: list[tuple] = dataclasses.field(default_factory=list)
    releases: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    dones: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    answers: list[int] = dataclasses.field(default_factory=list)
    reads: list[int] = dataclasses.field(default_factory=list)
    idle: int = 0
    most_outstanding: int = 0


class Bench:
    """Drives the engine: gives placements, answers reads of the ring, takes every output."""

    def __init__(self, dut, moves, ring, *, base, source, stalls, rng):
        self.dut, self.base, self.source, self.rng = dut, base, source, rng
        self.octets = octets = len(dut.read_data) // 8
        self.ring = [int.from_bytes(ring[at:at + octets], "little")
                     for at in range(0, len(ring), octets)]
        self.sinks = Sinks({"aw": dut.bus.aw, "w": dut.bus.w, "exceptions": dut.exceptions,
                            "done": dut.done}, stalls=stalls, rng=rng)
        self.pending = iter(moves)
        self.move = next(self.pending, None)
        self.offered = False
        self.want_dones = sum(
            move.last and not move.exception and move.length > 0 for move in moves)
        self.outcome = Outcome()

    async def run(self, ctx, responses):
        dut, outcome, sinks = self.dut, self.outcome, self.sinks
        reads, calm, ended = [0, 0], 0, 0
        ticks = ctx.tick().sample(
            dut.ready, dut.read_address, dut.bus.b.ready, dut.idle, dut.release.valid,
            dut.release.payload, *sinks.signals)
        async for cycle, (ready, address, b_ready, idle, release, pointer, *rest) in numbered(
                ticks):
            ctx.set(dut.read_data, reads[0])
            reads = [*reads[1:], self.ring[address]]
            outcome.reads.append(address)
            self.give(ctx, cycle, ready)
            for seen in sinks.look(rest):
                if seen.taken:
                    self.take(cycle, seen.name, seen.payload)
                    ended += seen.name == "w" and seen.payload.last
            sinks.set_ready(ctx)
            # A response may come once the burst has both its address and its data.
            responses.step(ctx, cycle, min(ended, len(outcome.aw)), b_ready)
            outstanding = len(outcome.aw) - len(responses.answered)
            outcome.most_outstanding = max(outcome.most_outstanding, outstanding)
            if release:
                outcome.releases.append((cycle, pointer))
            if idle:
                assert not any(rest[::2]) and not responses.valid \
                    and len(outcome.dones) == self.want_dones \
                    or not outcome.taken, "idle with work under way"
                outcome.idle = outcome.idle or cycle
            calm = calm + 1 if self.move is None and idle else 0
            if calm == 4:
                outcome.answers = responses.answered
                return

    def give(self, ctx, cycle, ready):
        """Counts the placement of the last cycle as taken, and gives the next one."""
        if self.offered:
            self.outcome.taken.append(cycle)
            self.move = next(self.pending, None)
        self.offered = self.move is not None and ready and self.rng.random() >= self.source
        if self.offered:
            fields = dataclasses.asdict(self.move)
            fields["address"] = self.base + fields.pop("target") & (1 << 64) - 1
            ctx.set(self.dut.i.payload, fields)
        ctx.set(self.dut.i.valid, self.offered)

    def take(self, cycle, name, payload):
        """Keeps what one of the outputs transfers."""
        outcome = self.outcome
        if name == "aw":
            outcome.aw.append((cycle, payload.addr, payload.len + 1))
        elif name == "w":
            outcome.w.append((cycle, payload.data, payload.strb, payload.last))
        elif name == "exceptions":
            octets = payload.beat.data.to_bytes(self.octets, "little")[:payload.beat.count]
            assert octets
            outcome.exceptions.append((cycle, octets, bool(payload.beat.last), payload.stream,
                                       payload.sequence, payload.reason))
        else:
            outcome.dones.append((cycle, payload.error, payload.stream))


def run(width, moves, ring, *, base=0, source=0.0, response=0.0, latency=4, seed=1, failing=(),
        limit=None, buffer=RING, outstanding=16, **stalls):
    """Runs placements through the engine; a side given as 0.3 idles in 3 cycles of 10.

    ``stalls``: the sides ``aw``, ``w``, ``exceptions`` and ``done``.
    """
    config = RnicConfig(width=width, buffer_octets=buffer, outstanding=outstanding)
    dut = shared(PlacementDma, config)
    rng = random.Random(seed)
    bench = Bench(dut, moves, ring, base=base, source=source, stalls=stalls, rng=rng)
    responses = Responses(dut.bus.b, latency=latency, stall=response, refused=failing, rng=rng)
    limit = limit or 400 + 12 * sum(move.slots(config.octets) for move in moves)
    simulate(dut, partial(bench.run, responses=responses), limit=limit)
    return bench.outcome


def octets_of(ring, move):
    return bytes(ring[(move.start + n) % len(ring)] for n in range(move.length))


def make_ring(seed, size=RING):
    return random.Random(seed).randbytes(size)


def judge(width, moves, ring, outcome, *, base=0, failing=()):
    """Replays the bus into guarded memory and checks all outputs."""
    octets = width // 8
    memory = bytearray([GUARD]) * MEMORY
    want = bytearray(memory)
    where = f"{width=} {moves=}" if len(moves) < 10 else f"{width=} {len(moves)} placements"
    placed = [move for move in moves if move.length and not move.exception]
    bursts = [((base + first) & (1 << 64) - 1, beats)
              for move in placed for first, beats in move.bursts(octets)]
    got = [(address, beats) for _cycle, address, beats in outcome.aw]
    assert got == bursts, where
    for address, beats in got:
        assert address % octets == 0 and 1 <= beats <= 256, where
        assert address // 4096 == (address + beats * octets - 1) // 4096, where
    beat = iter(outcome.w)
    for address, beats in got:
        for n in range(beats):
            cycle, value, strobe, last = next(beat)
            assert last == (n == beats - 1), f"WLAST against AWLEN, {cycle=} {where}"
            offset = (address + n * octets - base) & (1 << 64) - 1
            for lane in range(octets):
                if strobe >> lane & 1:
                    memory[offset + lane] = value >> 8 * lane & 0xFF
    assert next(beat, None) is None, where
    for move in placed:
        want[move.target:move.target + move.length] = octets_of(ring, move)
    wrong = next((n for n in range(MEMORY) if memory[n] != want[n]), None)
    assert wrong is None, f"octet {wrong:#x}: {want[wrong]:#x} not {memory[wrong]:#x}; {where}"

    packets, current = [], b""
    for _cycle, data, last, *heading in outcome.exceptions:
        current += data
        assert last or len(data) == octets, where
        if last:
            packets.append((current, *heading))
            current = b""
    assert packets == [(octets_of(ring, move), move.stream, move.sequence, move.reason)
                       for move in moves if move.exception and move.length], where

    assert [pointer for _cycle, pointer in outcome.releases] == [m.release for m in moves], where
    dones, burst, error = [], 0, 0
    for move in placed:
        count = len(move.bursts(octets))
        error |= int(any(n in failing for n in range(burst, burst + count)))
        burst += count
        if move.last:
            dones.append((error, move.stream))
            error = 0
    assert [entry[1:] for entry in outcome.dones] == dones, where


def check(width, moves, *, seed=1, base=0, failing=(), **options):
    ring = make_ring(seed)
    outcome = run(width, moves, ring, base=base, seed=seed, failing=failing, **options)
    judge(width, moves, ring, outcome, base=base, failing=failing)
    return outcome


def laid_out(rng, pieces, *, exceptions=0.0, octets=8):
    """Places pieces (start, length, lane) one after another in memory, with gaps between."""
    moves, free = [], 256
    for n, (start, length, lane) in enumerate(pieces):
        exception = rng.random() < exceptions
        target = free + (lane - free) % octets
        moves.append(Move(start % RING, length, target, exception, rng.getrandbits(6),
                          rng.getrandbits(32), rng.random() < 0.8 or not length or
                          n == len(pieces) - 1, rng.getrandbits(9), rng.getrandbits(12)))
        if not exception:
            free = target + length + rng.randrange(1, 2 * octets)
        assert free < MEMORY
    # A segment does not end with an empty piece: an open one ends with the piece before.
    return [dataclasses.replace(move, last=True)
            if n + 1 < len(moves) and not moves[n + 1].length else move
            for n, move in enumerate(moves)]


def random_pieces(rng, octets, count, longest):
    for _ in range(count):
        length = rng.choice([0, 1, 2, octets - 1, octets, octets + 1, 2 * octets,
                             rng.randrange(longest), rng.randrange(4 * octets)])
        yield rng.randrange(RING), length, rng.randrange(octets)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_alignment_and_short_length_at_full_rate(width):
    octets = width // 8
    rng = random.Random(width)
    lanes = [(s, d) for s in range(octets) for d in range(octets)]
    lanes = lanes if octets <= 8 else rng.sample(lanes, 64)
    pieces = [(s + rng.randrange(0, RING, octets), length, d) for s, d in lanes
              for length in (1, octets - 1, octets, octets + 1)]
    pieces += [(s, rng.randrange(2, 5) * octets + rng.randrange(octets), d) for s, d in lanes]
    moves = laid_out(rng, pieces, octets=octets)
    outcome = check(width, moves, seed=width, outstanding=64)
    assert_no_bubbles(width, moves, outcome)


def assert_no_bubbles(width, moves, outcome):
    """Asserts that every placement takes exactly max(beats in, beats out) cycles."""
    costs = [move.slots(width // 8) for move in moves]
    cycles = [cycle for cycle, _pointer in outcome.releases]
    gaps = [after - before for before, after in zip(cycles, cycles[1:], strict=False)]
    wrong = [(n, cost, gap) for n, (cost, gap) in enumerate(zip(costs[1:], gaps, strict=True))
             if cost != gap]
    assert not wrong, f"{width=}: (placement, expected, got) {wrong[:5]}, {moves[wrong[0][0]]}"


@pytest.mark.parametrize("width", WIDTHS)
def test_back_to_back_placements_of_any_kind_leave_no_bubble(width):
    rng = random.Random(width + 1)
    octets = width // 8
    pieces = list(random_pieces(rng, octets, 60, 6 * octets))
    moves = laid_out(rng, pieces, exceptions=0.2, octets=octets)
    outcome = check(width, moves, seed=width, outstanding=64)
    assert_no_bubbles(width, moves, outcome)


@pytest.mark.parametrize("width", NARROW)
def test_a_long_placement_fills_the_bus_and_splits_at_4_kib(width):
    octets = width // 8
    length = 16384 - 3 if width < 256 else 49152 - 3
    moves = [Move(3, length, 4096 - octets - 1, stream=5, sequence=0xFFFF_FFFF)]
    outcome = check(width, moves, base=BASES[1])
    cycles = [cycle for cycle, *_ in outcome.w]
    assert cycles == list(range(cycles[0], cycles[0] + moves[0].beats(octets)[1]))
    assert outcome.dones[0][0] > outcome.answers[-1]


@pytest.mark.parametrize("width", NARROW)
def test_boundaries_on_either_side_by_one_octet(width):
    octets = width // 8
    moves = []
    for n, (before, after) in enumerate([(0, 1), (1, 0), (1, 1), (octets, 0), (octets, 1),
                                         (octets + 1, octets + 1), (0, octets)]):
        edge = 8192 + 4096 * n
        moves.append(Move(17 * n, before + after, edge - before, stream=n))
    check(width, moves, base=BASES[2])


@pytest.mark.parametrize("width, length", [(64, 5000), (128, 9000), (256, 20000), (512, 64511)])
@pytest.mark.parametrize("base", [0xA5FF_FFFF_FFFF_8000, *long(0x0123_4567_FFFF_8000)])
def test_a_long_segment_carries_into_the_upper_half_of_the_address(width, length, base):
    middle = 0x8000 - min(0x8000, length // 2 + 1)
    check(width, [Move(0, length, middle + 7, stream=1)], base=base)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", [0, 1, *long(2, 3)])
def test_random_traffic_under_stalls(width, seed):
    seed = seed * 1000 + width
    print(f"{seed=}")
    rng = random.Random(seed)
    octets = width // 8
    longest = rng.choice([3 * octets, 20 * octets])
    moves = laid_out(rng, list(random_pieces(rng, octets, 50, longest)),
                     exceptions=rng.choice([0.0, 0.5]), octets=octets)
    stalls = {name: rng.choice([0.0, 0.2, 0.7]) for name in
              ("source", "aw", "w", "response", "exceptions", "done")}
    bursts = sum(len(move.bursts(octets)) for move in moves)
    failing = {n for n in range(bursts) if rng.random() < 0.1}
    check(width, moves, seed=seed, failing=failing, latency=rng.choice([0, 3, 40]),
          outstanding=rng.choice([8, 16]), base=rng.choice(list(BASES.values())), limit=9000,
          **stalls)


@pytest.mark.parametrize("width", WIDTHS)
def test_latency_is_as_stated(width):
    octets = width // 8
    outcome = check(width, [Move(1, 2, 1)])
    taken, = outcome.taken
    assert outcome.aw[0][0] - taken == 11
    assert outcome.w[0][0] - taken == 16 + (octets > 16)
    assert outcome.dones[0][0] - outcome.answers[0] == 3
    outcome = check(width, [Move(1, octets, 0, exception=True)])
    assert outcome.exceptions[0][0] - outcome.taken[0] == 16 + (octets > 16)


@pytest.mark.parametrize("width", NARROW)
def test_release_comes_in_the_cycle_in_which_the_last_beat_is_read(width):
    octets = width // 8
    moves = [Move(256 * n, octets * n + 2, 512 * n, release=n) for n in range(1, 6)]
    outcome = check(width, moves)
    for (cycle, n), move in zip(outcome.releases, moves, strict=True):
        beat = (move.start + move.length - 1) // octets
        assert cycle == outcome.reads.index(beat) + 2, f"{n=}"


def test_an_error_response_marks_its_segment_and_no_other():
    moves = [Move(0, 8, 512, stream=1), Move(8, 5000, 1024, stream=2),
             Move(16, 8, 8192, last=False, stream=3), Move(24, 8, 8200, stream=3),
             Move(32, 8, 8300, stream=4)]
    outcome = check(64, moves, failing={2, 4})
    assert [done[1] for done in outcome.dones] == [0, 1, 1, 0]


def test_outstanding_bursts_are_as_many_as_configured_and_no_more():
    moves = [Move(0, 8, 1024 + 16 * n, stream=n % 64) for n in range(80)]
    for outstanding in (8, 32):
        outcome = check(64, moves, latency=100, outstanding=outstanding)
        assert outcome.most_outstanding == outstanding


def test_addresses_that_nobody_takes_are_not_lost_while_data_runs_ahead():
    moves = [Move(0, 8, 1024 + 16 * n, stream=n % 64) for n in range(80)]
    outcome = check(64, moves, aw=0.96, outstanding=64, limit=9000)
    assert outcome.w[20][0] < outcome.aw[1][0]


def test_an_answer_that_comes_before_its_origin_waits_for_it():
    moves = [Move(0, 8, 1024, stream=7), Move(0, 8, 2048, stream=8)]
    check(64, moves, outstanding=256, latency=0)


def test_an_exception_that_nobody_takes_is_not_idle():
    check(64, [Move(0, 8, exception=True)], exceptions=0.98, limit=2000)


def test_exceptions_that_nobody_takes_hold_only_what_follows_them():
    moves = [Move(0, 8, 1024), Move(0, 1000, exception=True), Move(8, 8, 1048)]
    outcome = check(64, moves, exceptions=0.9, limit=20000)
    assert outcome.w[0][0] < outcome.exceptions[0][0] < outcome.w[-1][0]


def test_a_packet_heading_never_comes_late():
    rng = random.Random(5)
    moves = [Move(8 * n, rng.randrange(1, 9), exception=True, stream=n % 64,
                  sequence=~n & 0xFFFF_FFFF, reason=0xFFF - n) for n in range(100)]
    for stalls in (0.0, 0.5, 0.95):
        check(64, moves, exceptions=stalls, limit=9000)


@pytest.mark.parametrize("width", NARROW)
def test_an_exception_is_one_packet_whatever_its_address_and_start(width):
    octets = width // 8
    moves = [Move(start, 3 * octets - 1, 4096 - octets - 1, exception=True, sequence=start)
             for start in (0, 1, octets - 1, RING - octets - 1)]
    outcome = check(width, moves)
    assert not outcome.aw and not outcome.dones


def test_empty_placements_only_release():
    moves = [Move(5, 0, 77, release=n, exception=n % 2 == 1) for n in range(10)]
    outcome = check(64, moves)
    assert not outcome.aw and not outcome.w and not outcome.dones and not outcome.exceptions
