"""Tests the completions of sent messages: none is lost, early or wrong, and no queue delays others.

The judge is the declaration of a completion in :class:`~ddp_rnic.hdl.spec.completion.SentStatus`.
"""

import random
from collections import deque

import pytest
from amaranth import ResetInserter, Signal
from ddp_rnic.hdl.lib.testing import numbered, shared, simulate
from ddp_rnic.hdl.lib.tests.long import first
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.send import sent
from ddp_rnic.hdl.send.sent import HandOver, SentCompletions
from ddp_rnic.hdl.spec.completion import SentStatus
from ddp_rnic.hdl.spec.config import RnicConfig

CONFIG = RnicConfig(transmit=True, streams=16)
STREAMS = CONFIG.streams
FOREVER = 1 << 40
RESTART = 2 * STREAMS + 4  #: cycles of the sweep after a reset
SUCCESS, FAILED, FLUSHED = SentStatus


class Host:
    """Ends messages of streams, and has room in queues: stream ``n`` has the queue ``n % 4``.

    ``room``: the probability that the host takes a completion in a cycle, by queue. A queue takes
    ``size`` completions. Streams fail at random with the probability ``fails``. In the streams
    ``repeats`` a success ends when it is released.
    """

    def __init__(self, dut, *, room=(1.0, 1.0, 1.0, 1.0), size=3, messages=200, fails=0.01,
                 pace=0.5, streams=range(STREAMS), repeats=(), seed=1):
        self.repeats, self.released = repeats, {stream: 0 for stream in repeats}
        self.dut, self.rng, self.room, self.size = dut, random.Random(seed), room, size
        self.messages, self.fails, self.pace, self.streams = messages, fails, pace, streams
        self.ended = {stream: [] for stream in streams}  # (index, status, signaled, cycle)
        self.seen = {stream: [] for stream in streams}  # (status, done, cycle)
        self.level = [0] * 4

    def queue(self, stream):
        return stream % 4

    def release(self):
        """Draws a release: its payload, and how many messages of the stream it covers."""
        stream = self.rng.choice(self.repeats)
        ended, first = self.ended[stream], self.released[stream]
        left = [each for each in ended if each[1] is SUCCESS]
        count = self.rng.randint(first, len(left)) if self.rng.random() < 0.5 else len(left)
        if not count:
            return None
        return {"stream": stream, "index": left[count - 1][0],
                "signaled": any(each[2] for each in left[first:count])}, count

    def draw(self):
        stream = self.rng.choice(self.streams)
        ended = self.ended[stream]
        index, status = ended[-1][:2] if ended else (0, SUCCESS)
        if status is SUCCESS:
            status = FAILED if self.rng.random() < self.fails else SUCCESS
        else:
            status = FLUSHED
        entries = self.rng.choice((0, 1, 5)) if status is FAILED else self.rng.choice((1, 2, 255))
        return {"stream": stream, "entries": entries, "status": status,
                "signaled": self.rng.random() < 0.4}, (index + entries) % (1 << 16)

    async def run(self, ctx):
        dut, rng, host = self.dut, self.rng, self.dut.host
        await ctx.tick().repeat(RESTART)
        for stream in self.streams:
            ctx.set(dut.bind.payload, {
                "stream": stream, "queue": self.queue(stream), "repeats": stream in self.repeats})
            ctx.set(dut.bind.valid, 1)
            await ctx.tick()
            ctx.set(dut.bind.valid, 0)
            await ctx.tick().repeat(2)
        offered, answers, left, quiet, released = None, deque(), self.messages, 0, None
        ctx.set(host.entry.ready, 1)
        ticks = ctx.tick().sample(
            dut.i.ready, host.entry.valid, host.entry.payload, dut.busy, dut.released.ready)
        async for cycle, (ready, valid, entry, busy, releases) in numbered(ticks):
            if offered and ready:
                message, index = offered
                waits = message["stream"] in self.repeats and message["status"] is SUCCESS
                self.ended[message["stream"]].append(
                    [index, message["status"], message["signaled"], FOREVER if waits else cycle])
                offered = None
            if released and releases:
                payload, count = released
                stream = payload["stream"]
                for each in self.ended[stream][self.released[stream]:count]:
                    each[3] = cycle
                self.released[stream], released = count, None
            if valid:
                stream, queue = entry.stream, entry.queue
                assert queue == self.queue(stream)
                # The room is that of the entry's cycle, and the answer comes later.
                free = self.level[queue] < self.size
                answers.append((cycle + 6, free))
                if free:
                    self.level[queue] += 1
                    self.seen[stream].append((SentStatus(entry.status), entry.done, cycle))
            answered = bool(answers) and answers[0][0] == cycle
            ctx.set(host.written.valid, answered)
            if answered:
                ctx.set(host.written.payload, answers.popleft()[1])
            freed = [queue for queue in range(4)
                     if self.level[queue] and rng.random() < self.room[queue]]
            ctx.set(host.freed.valid, bool(freed))
            if freed:
                queue = rng.choice(freed)
                self.level[queue] = 0
                ctx.set(host.freed.payload, queue)
            if not offered and left and rng.random() < self.pace:
                offered, left = self.draw(), left - 1
            waits = any(each[3] == FOREVER for each in sum(self.ended.values(), []))
            if self.repeats and not released and (rng.random() < 0.05 if left else waits):
                released = self.release()
            ctx.set(dut.released.valid, released is not None)
            if released:
                ctx.set(dut.released.payload, released[0])
            ctx.set(dut.i.valid, offered is not None)
            if offered:
                ctx.set(dut.i.payload, offered[0])
            waits |= any(level and room for level, room in zip(self.level, self.room, strict=True))
            quiet = 0 if busy or offered or left or answers or waits else quiet + 1
            if quiet > 20:
                return

    def check(self, stuck=()):
        """Checks the completions, and that none is missing but those for ``stuck`` queues."""
        for stream in self.streams:
            ended, at = self.ended[stream], 0
            for status, done, cycle in self.seen[stream]:
                # The completion ends with a message that had ended, and covers one at least.
                last = max((n for n, each in enumerate(ended)
                            if each[0] == done and each[1] is status and each[3] < cycle),
                           default=None)
                assert last is not None and last >= at, (stream, status, done)
                assert {each[1] for each in ended[at:last + 1]} == {status}
                at = last + 1
            owed = [each for each in ended[at:] if each[1] is not SUCCESS or each[2]]
            assert not owed or self.queue(stream) in stuck, (stream, owed)


def play(dut=None, *, stuck=(), **options):
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    host = Host(dut or shared(SentCompletions, CONFIG), seed=seed, **options)
    simulate(host.dut, host.run, limit=60_000)
    host.check(stuck)
    return host


@pytest.mark.parametrize("room, pace", [(1.0, 0.05), (1.0, 1.0), (0.1, 0.5), (0.02, 1.0)])
@pytest.mark.parametrize("repeats", [(), (1, 3, 5, 7, 9)], ids=["keeping", "repeating"])
def test_every_end_is_reported_once_and_in_order(room, pace, repeats):
    """DESIGN: without a copy at the LLP, a message is complete "when the owner's ``released`` has
    passed" it, and failures are reported in the order of the ring.
    """
    host = play(room=(room,) * 4, pace=pace, repeats=repeats, fails=0.02)
    assert sum(map(len, host.seen.values())) > 20


def test_a_flood_takes_few_completions():
    """Completions are cumulative: a stream of many messages costs no more than its queue takes."""
    host = play(fails=0, pace=1.0, messages=1000, streams=(3,))
    # A message takes 2 cycles, and a completion about 20.
    assert 60 < len(host.seen[3]) < 150


def test_a_reset_takes_what_was_owed_and_no_later_completion():
    """A completion that waited for room at the reset is lost, and the stream begins anew."""
    dut, reset = SentCompletions(CONFIG), Signal()
    message = {"stream": 3, "entries": 1, "status": SUCCESS, "signaled": 1}
    seen = []

    async def run(ctx):
        for round in range(2):
            await ctx.tick().repeat(RESTART)
            ctx.set(dut.bind.payload, {"stream": 3, "queue": 1})
            ctx.set(dut.bind.valid, 1)
            await ctx.tick()
            ctx.set(dut.bind.valid, 0)
            await ctx.tick().repeat(3)
            ctx.set(dut.i.payload, message)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)
            await ctx.tick().repeat(60)
            seen.append((ctx.get(dut.host.entry.valid), ctx.get(dut.host.entry.payload.done)))
            if not round:  # the entry is offered, and the bus does not take it
                ctx.set(reset, 1)
                await ctx.tick().repeat(32)
                ctx.set(reset, 0)

    simulate(ResetInserter(reset)(dut), run)
    assert seen == [(1, 1), (1, 1)]


@pytest.mark.parametrize("stuck", (0, 3))
def test_a_queue_without_room_delays_no_other_one(stuck):
    """DESIGN: no stream can stop another one, not by filling a completion queue."""
    room = [0.0 if queue == stuck else 1.0 for queue in range(4)]
    host = play(room=room, stuck=(stuck,), messages=500, pace=0.2)
    for stream in range(STREAMS):
        if stream % 4 != stuck:
            ended, seen = host.ended[stream], host.seen[stream]
            signaled = [each for each in ended if each[2] or each[1] is not SUCCESS]
            waits = [min(cycle for _, _, cycle in seen if cycle > each[3]) - each[3]
                     for each in signaled]
            assert max(waits) < 24 * STREAMS
    assert sum(len(host.seen[stream]) for stream in range(stuck, STREAMS, 4)) == host.size


def test_a_flood_of_messages_stops_no_release_and_no_parked_stream():
    """DESIGN: no stream can stop another one. A message comes in each step that is free."""
    dut, flood = shared(SentCompletions, CONFIG), {"stream": 3, "entries": 1, "status": SUCCESS}
    seen, taken = {}, []  # the cycles of completions by stream, and of the release

    async def run(ctx):
        host = dut.host
        await ctx.tick().repeat(RESTART)
        for number in (1, 2, 3):
            ctx.set(dut.bind.payload, {"stream": number, "queue": number, "repeats": number == 1})
            ctx.set(dut.bind.valid, 1)
            await ctx.tick()
            ctx.set(dut.bind.valid, 0)
            await ctx.tick().repeat(2)
        ctx.set(host.entry.ready, 1)
        first = [{**flood, "stream": number, "signaled": 1} for number in (1, 2)]
        ticks = ctx.tick().sample(
            dut.i.ready, host.entry.valid, host.entry.payload.stream, dut.released.ready)
        ctx.set(dut.i.valid, 1)
        ctx.set(dut.i.payload, first[0])
        async for cycle, (ready, valid, number, releases) in numbered(ticks):
            if ready:
                first = first[1:]
                ctx.set(dut.i.payload, first[0] if first else flood)
            if valid:
                seen.setdefault(number, []).append(cycle)
            # The first completion of stream 2 finds no room.
            ctx.set(host.written.valid, valid)
            ctx.set(host.written.payload, number != 2 or len(seen.get(2, ())) > 1)
            ctx.set(host.freed.valid, cycle == 200)
            ctx.set(host.freed.payload, 2)
            if cycle > 200 and releases and not taken:
                taken.append(cycle)
            ctx.set(dut.released.valid, cycle >= 200 and not taken)
            ctx.set(dut.released.payload, {"stream": 1, "index": 1, "signaled": 1})
            if cycle == 300 + 16 * STREAMS:
                return

    simulate(dut, run)
    assert taken[0] < 200 + 20
    assert 200 < seen[1][0] < 200 + 60
    assert seen[2][0] < 200 < seen[2][1] <= 200 + 16 * STREAMS + 40


@pytest.mark.parametrize(
    "old, new",
    first([
        ("now.silent, failed |", "C(0, 1), failed |"),
        ("latest == done for", "1 for"),
        ("now.silent & ~settled[0]", "now.silent"),
        ("return now.parked & ~waits & ~restarts", "return C(0, 1)"),
        ("~came & ~freed", "1"),
        ("becomes.parked.eq(_reported(becomes).any() & waits)", "becomes.parked.eq(0)"),
        ("[left.eq(self.config.streams),", "[left.eq(2),"),
        ("becomes.behind.eq(behind)", "becomes.behind.eq(0)"),
        ("(now.owes[1:].any() & ~behind)", "0"),
        ("(~account.behind).replicate(2)", "C(3, 2)"),
        ("[becomes.left.eq(index), becomes.behind.eq(1)]", "becomes.good.eq(index)"),
        ("released.index != now.good", "1"),
        ("owes & -owes", "owes[2] << 2 | (owes & 3)"),
    ]),
)
def test_a_bug_is_caught(old, new):
    dut = shared(planted("send.sent", old, new).SentCompletions, CONFIG)
    with pytest.raises((AssertionError, TimeoutError)):
        for room in (1.0, 0.1, 0.02):
            for size in (1, 3):
                play(dut, room=(room,) * 4, size=size, pace=1.0, fails=0.03,
                     repeats=(2, 4, 6, 8))
        for _ in range(20):  # failures among messages that are released one by one
            play(dut, pace=0.3, fails=0.2, messages=60, streams=(1, 2), repeats=(1, 2))


def test_a_message_ends_after_its_last_fpdu_and_those_before():
    dut, ends = HandOver(STREAMS), []

    async def run(ctx):
        passed = [(1, 0), (1, 1), (0, 1), (1, 1), (0, 1), (0, 1), (0, 1)]  # leaves, ends
        # The last two messages have no entry: Read Responses, of which only a failure counts.
        entries, statuses = [1] * 5 + [0, 0], [SUCCESS] * 5 + [FLUSHED, FAILED]
        ctx.set(dut.o.ready, 1)
        handed = (6, 9, 14)
        ticks = ctx.tick().sample(dut.o.valid, dut.o.payload)
        async for cycle, (valid, message) in numbered(ticks):
            if valid:
                ends.append((message.stream, cycle))
            ctx.set(dut.i.valid, bool(passed))
            if passed:
                leaves, last = passed.pop(0)
                ctx.set(dut.i.payload, {"leaves": leaves, "ends": last, "message": {
                    "stream": 7 - len(passed), "entries": entries.pop(0),
                    "status": statuses.pop(0)}})
            ctx.set(dut.handed, cycle in handed)
            if cycle == 30:
                return

    simulate(dut, run)
    assert [stream for stream, _ in ends] == [2, 3, 4, 5, 7]
    assert all(cycle > handed for (_, cycle), handed in zip(
        ends, (9, 9, 14, 14, 14), strict=True))
    assert ends[0][1] <= 9 + 4 and ends[2][1] <= 14 + 4


def ends_of(module, count=60):
    """Returns the streams of ``count`` messages whose FPDUs have all left before one ends."""
    dut, ends = module.HandOver(STREAMS), []

    async def run(ctx):
        ticks = ctx.tick().sample(dut.o.valid & dut.o.ready, dut.o.payload)
        async for cycle, (ended, message) in numbered(ticks):
            if ended:
                ends.append(message.stream)
            passes = cycle < count
            ctx.set(dut.i.valid, passes)
            ctx.set(dut.handed, passes)
            ctx.set(
                dut.i.payload,
                {
                    "leaves": 1,
                    "ends": 1,
                    "message": {"stream": cycle % STREAMS, "entries": 1, "status": SUCCESS},
                },
            )
            ctx.set(dut.o.ready, cycle > count + 10)
            if cycle == 4 * count:
                return

    simulate(dut, run)
    return ends


def test_fpdus_are_counted_while_no_end_is_taken():
    assert ends_of(sent) == [number % STREAMS for number in range(60)]


@pytest.mark.parametrize("bit", range(6))
def test_a_bit_that_the_count_of_fpdus_lacks_is_found(bit):
    module = planted("send.sent", "handed[0].any()", f"(handed[0] & ~{1 << bit}).any()")
    assert ends_of(module) != ends_of(sent)
