"""Tests whose turn it is to send: no wake is lost, and octets are shared evenly."""

import random

import pytest
from ddp_rnic.hdl.lib.testing import numbered, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.lib.verilog import convert
from ddp_rnic.hdl.send.scheduler import FEW, Scheduler

STREAMS, QUANTUM = 16, 1000


class Sender:
    """Takes turns and sends what each stream has to send; ``lengths`` are those of its segments.

    ``late``: until cycle ``until``, work of one of these streams comes with this ``rate``, and a
    wake. Each wake has to give a turn within ``patience`` cycles.
    ``takes``, ``ends``: the probability that a turn is taken, and that one ends, in a cycle.
    ``later``: the cycles from the last look at a stream's work to the end of its turn.
    """

    def __init__(self, dut, work, *, lengths=(100,), takes=1.0, ends=1.0, late=(), until=0,
                 rate=0.3, later=(0,), cycles=3000, patience=1000, seed=1):
        self.dut, self.rng = dut, random.Random(seed)
        self.work = dict(work)  # octets by stream
        self.lengths = lengths if isinstance(lengths, dict) else dict.fromkeys(
            range(STREAMS), lengths)
        self.takes, self.ends, self.cycles = takes, ends, cycles
        self.late, self.until, self.rate, self.later = late, until, rate, later
        self.patience = patience
        self.sent = dict.fromkeys(range(STREAMS), 0)
        self.before = {}  # octets by stream, when the last stream with work from the start is woken
        self.turns = []  # (cycle, stream)
        self.woken = []  # (cycle, stream)
        self.running = {}  # octets by stream
        self.empty = 0  # turns of streams that had nothing to send

    def spend(self, stream, octets):
        """Sends segments of a stream in its turn; returns the octets beyond it."""
        self.empty += not self.work.get(stream)
        while octets > 0 and self.work.get(stream):
            length = min(self.rng.choice(self.lengths[stream]), self.work[stream])
            self.work[stream] -= length
            self.sent[stream] += length
            octets -= length
        return max(-octets, 0)

    async def run(self, ctx):
        dut, rng = self.dut, self.rng
        wakes = [*self.work]
        waking, due = None, {}  # the cycle of the first wake since a stream's last turn
        ticks = ctx.tick().sample(
            dut.turn.valid, dut.turn.payload, dut.turn.ready, dut.wake.ready,
            dut.ended.valid & dut.ended.ready)
        ending, later = None, 0  # the cycles until the end that was decided is given
        async for cycle, (valid, turn, taken, woke, ended) in numbered(ticks):
            if waking is not None and woke:
                self.woken.append((cycle, waking))
                if not wakes and not self.before:
                    self.before = dict(self.sent)
                due.setdefault(waking, cycle)
                waking = None
            if ended:
                del self.running[ending]
                ending = None
            if valid and taken:
                assert turn.stream not in self.running, "one turn at a time"
                assert 1 <= turn.octets <= QUANTUM
                self.turns.append((cycle, turn.stream))
                due.pop(turn.stream, None)
                self.running[turn.stream] = turn.octets
            assert cycle - min(due.values(), default=cycle) < self.patience, due
            if cycle == self.cycles:
                return
            if cycle < self.until and rng.random() < self.rate:
                stream = rng.choice(self.late)
                self.work[stream] = self.work.get(stream, 0) + rng.randrange(1, 400)
                if stream not in wakes:
                    wakes.append(stream)
            if waking is None and wakes:
                waking = wakes.pop(0)
                ctx.set(dut.wake.payload, waking)
            ctx.set(dut.wake.valid, waking is not None)
            if ending is None and self.running and rng.random() < self.ends:
                ending = next(iter(self.running))
                over = self.spend(ending, self.running[ending])
                ctx.set(dut.ended.payload, {
                    "stream": ending, "over": over, "again": self.work[ending] > 0})
                later = rng.choice(self.later)
            ctx.set(dut.ended.valid, ending is not None and not later)
            later = max(later - 1, 0)
            ctx.set(dut.turn.ready, rng.random() < self.takes)


def play(work, *, streams=STREAMS, **options):
    sender = Sender(shared(Scheduler, streams, QUANTUM), work, **options)
    simulate(sender.dut, sender.run, limit=10_000)
    return sender


@pytest.mark.parametrize("rate", (0.02, 0.06, 0.3))
def test_a_wake_beside_the_end_of_a_turn_is_not_lost(rate):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    sender = play({}, late=range(2), until=2800, rate=rate, later=(3, 4, 5, 6, 7), patience=80,
                  seed=seed)
    assert not any(sender.work.values())


@pytest.mark.parametrize("takes, ends", [(1.0, 1.0), (0.2, 0.8), *long((0.5, 1.0), (1.0, 0.3))])
@pytest.mark.parametrize("few, streams", ((2, STREAMS), (STREAMS, STREAMS), (STREAMS, 2 * FEW)))
def test_all_work_is_done_whenever_it_comes(few, streams, takes, ends):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    sender = play({}, streams=streams, late=range(few), until=1500, takes=takes, ends=ends,
                  later=(0, 1, 2, 5), seed=seed)
    assert len(sender.woken) > 200 and not any(sender.work.values())
    assert sender.turns[-1][0] < sender.cycles - 100, "an end to turns"


def test_streams_share_octets_whatever_the_length_of_their_segments():
    kinds = (1,), (64,), (999,), (30, 700), (1000,)
    lengths = {stream: kinds[stream % 5] for stream in range(10)}
    lengths |= dict.fromkeys(range(10, STREAMS), (50,))
    sender = play(dict.fromkeys(range(10), 10**9), lengths=lengths, cycles=6000)
    shares = [sender.sent[stream] - sender.before.get(stream, 0) for stream in range(10)]
    assert len(sender.turns) > 400 and max(shares) - min(shares) <= 2 * QUANTUM
    assert not any(sender.sent[stream] for stream in range(10, STREAMS))


def test_a_stream_waits_for_one_turn_of_each_other_stream():
    sender = play(dict.fromkeys(range(STREAMS), 10**9), ends=0.2, cycles=4000)
    awake = sender.woken[-1][0]
    order = [stream for cycle, stream in sender.turns if cycle > awake]
    assert len(sender.woken) == STREAMS and len(order) > 300
    for at in range(len(order) - STREAMS):
        assert sorted(order[at : at + STREAMS]) == [*range(STREAMS)], at


@pytest.mark.parametrize("streams, latency", ((STREAMS, 6), (2 * FEW, 8)))
def test_a_wake_gives_one_turn_after_the_fixed_latency(streams, latency):
    """The first wake after a rest passes the queue by; the one after it does not."""
    sender = play({5: 10, 7: 10}, streams=streams, cycles=200)
    late = [turn - cycle for (cycle, _), (turn, _) in zip(sender.woken, sender.turns, strict=True)]
    assert (late, [stream for _, stream in sender.turns]) == ([2, latency], [5, 7])
    assert sender.empty == 0


def test_a_turn_every_two_cycles():
    sender = play(dict.fromkeys(range(STREAMS), 10**9), lengths=(QUANTUM,), cycles=500)
    cycles = [cycle for cycle, _ in sender.turns][20:]
    assert {later - one for one, later in zip(cycles, cycles[1:], strict=False)} == {2}


def test_wrong_sizes_are_refused():
    for streams in (8, 24):
        refused("Scheduler streams must be a power of two", Scheduler, streams, QUANTUM)
    refused("Scheduler streams must be an integer", Scheduler, 16.0, QUANTUM, error=TypeError)
    refused("Scheduler quantum must be at least 1", Scheduler, STREAMS, 0)


@pytest.mark.parametrize("streams, style", [(64, "distributed"), (128, "block")])
def test_tables_of_few_streams_need_no_block_ram(streams, style):
    text = convert(Scheduler(streams, QUANTUM), name="scheduler")
    tables = [line for line in text.splitlines() if "ram_style" in line]
    assert [line for line in tables if style in line] and len(tables) >= 3
