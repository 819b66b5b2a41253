"""Tests the credit that the streams of an SCTP association share: none is exceeded, none is lost,
and each stream that waits gets its share.

The judges are numbers that the tests keep themselves: RFC 9260 section 6.1 forbids to send new data
beyond the window of the peer or the congestion window.
"""

import random
from collections import deque

import pytest
from ddp_rnic.hdl.lib.testing import numbered, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import first, long
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.send import associations

STREAMS, ASSOCIATIONS = 16, 4
#: Three associations of five streams; the fourth has none, and so have stream 0 none.
RANGES = {0: range(1, 6), 1: range(6, 11), 2: range(11, 16), 3: range(0)}


class Sender:
    """Gives turns to streams that are woken, as the scheduler and the cutter do.

    ``work``: the segments that each stream has; ``credit``: those for which each association gets
    credit, ``steps`` at a time, with the probability ``rate`` in a cycle; ``rings``: streams that
    are also woken with a probability of 0.2 in each cycle; ``most``: the segments of a turn.
    ``quits``: streams that lose their work once they wait, as streams that fail or are closed.
    """

    def __init__(self, work, credit, *, rate=0.05, steps=(1,), rings=(), most=3, quits=(), seed=1,
                 module=associations, cycles=4000):
        self.work, self.credit, self.rate, self.most = dict(work), dict(credit), rate, most
        self.steps, self.rings, self.quits = steps, rings, set(quits)
        self.rng = random.Random(seed)
        self.dut = module.AssociationQueues(STREAMS, ASSOCIATIONS) if module is not associations \
            else shared(associations.AssociationQueues, STREAMS, ASSOCIATIONS)
        self.left = {number: 0 for number in RANGES}  # credit that was given and not taken
        self.sent = []  # (cycle, stream)
        self.turns = 0
        self.cycles = cycles

    @staticmethod
    def association(stream):
        return next(number for number, streams in RANGES.items() if stream in streams)

    def take(self, stream, front):
        """Sends segments in a turn; returns whether it ends for want of credit, and how many."""
        number, sent = self.association(stream), 0
        while self.work[stream] and sent < self.most:
            if not self.left[number] or (front.some and front.stream != stream):
                return True, sent
            self.left[number] -= 1
            self.work[stream] -= 1
            sent += 1
        return False, sent

    async def open(self, ctx):
        await send(ctx, self.dut.set, [
            {"association": number, "first": streams.start, "count": len(streams)}
            for number, streams in RANGES.items()
        ])  # fmt: skip

    async def run(self, ctx):
        dut, rng = self.dut, self.rng
        await self.open(ctx)
        wakes, running, ended, raised, idle = deque(self.work), None, None, deque(), 0
        waits, look, last = set(), 0, 0
        ticks = ctx.tick().sample(
            dut.wake.valid, dut.wake.payload, dut.raised.ready, dut.room, dut.front)
        ctx.set(dut.wake.ready, 1)
        async for cycle, (woken, which, took, room, front) in numbered(ticks):
            if woken and which not in wakes:
                wakes.append(which)
            if raised and took and last:
                raised.popleft()
            # A turn: 3 cycles for the look-up, then some, then its end.
            if running is not None and cycle == look + 3:
                lacks, sent = self.take(running, front)
                self.sent += [(cycle, running)] * sent
                ended = {"stream": running, "lacks": int(lacks), "sent": int(sent > 0),
                         "association": self.association(running)}
                waits.add(running) if lacks else waits.discard(running)
                if not lacks and self.work[running]:
                    wakes.append(running)
                if lacks and running in self.quits:
                    self.quits.remove(running)
                    self.work[running] = 0
                running = None
                self.turns += 1
            ctx.set(dut.ended.valid, 0)
            if ended and room and rng.random() < 0.5:
                ctx.set(dut.ended.payload, ended)
                ctx.set(dut.ended.valid, 1)
                ended = None
            elif running is None and ended is None and wakes:
                running, look = wakes.popleft(), cycle
                ctx.set(dut.look, self.association(running))
            for number, credit in self.credit.items():
                if credit and rng.random() < self.rate and len(raised) < 4:
                    given = min(credit, rng.choice(self.steps))
                    self.credit[number] -= given
                    self.left[number] += given
                    raised.append(number)
            last = bool(raised)
            ctx.set(dut.raised.valid, last)
            if raised:
                ctx.set(dut.raised.payload, raised[0])
            wakes += [each for each in self.rings if rng.random() < 0.2 and each not in wakes]
            busy = wakes or raised or running is not None or ended or any(self.credit.values())
            idle = 0 if busy else idle + 1
            if idle > 60 or cycle > self.cycles:
                return

    def play(self):
        simulate(self.dut, self.run, limit=self.cycles + 1000)
        return self

    def counts(self):
        return {each: sum(stream == each for _, stream in self.sent) for each in self.work}


def needs(work):
    """Returns the segments that the streams of each association have."""
    return {number: sum(work.get(each, 0) for each in streams)
            for number, streams in RANGES.items()}  # fmt: skip


def waits_for_nothing(sender):
    """Asserts that no stream has work for which its association has credit."""
    for number, streams in RANGES.items():
        left = sum(sender.work.get(each, 0) for each in streams)
        assert not left or not sender.left[number], (number, left, sender.left[number])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_no_stream_waits_for_credit_that_is_there(rate, seed):
    """Work and credit are drawn; at the end, all of the one or of the other is used up."""
    rng = random.Random(seed)
    work = {each: rng.randrange(12) for each in range(1, STREAMS)}
    credit = {number: max(0, total + rng.choice((-5, 0, 3)))
              for number, total in needs(work).items()}  # fmt: skip
    quits = rng.sample(range(1, STREAMS), 3)
    sender = Sender(work, credit, rate=rate, steps=(1, 2, 9), seed=seed, quits=quits,
                    cycles=12_000).play()  # fmt: skip
    waits_for_nothing(sender)
    assert not any(sender.credit.values())


def most_between(sender):
    """Returns the most segments of others between two of any stream, while all wait."""
    streams = [stream for _, stream in sender.sent][10:]
    places = {each: [at for at, other in enumerate(streams) if other == each]
              for each in set(sender.work)}  # fmt: skip
    return max(b - a for found in places.values()
               for a, b in zip([-1, *found], [*found, len(streams)], strict=True))  # fmt: skip


@pytest.mark.parametrize("most", [*long(1), 3])
def test_streams_that_wait_take_credit_in_turn(most):
    """One stream is woken all the time, as by a client that writes its doorbell. A stream that had
    its turn may have a second one before the queue moves.
    """
    work = dict.fromkeys(RANGES[0], 40)
    sender = Sender(work, {0: 60}, rate=0.005, rings=(3,), most=most, cycles=30_000).play()
    assert len(sender.sent) == 60
    assert most_between(sender) <= 2 * len(work)


def test_an_association_without_credit_delays_no_other_one():
    def last(blocked):
        work = dict.fromkeys(RANGES[1], 12) | dict.fromkeys(RANGES[0] if blocked else (), 9)
        sender = Sender(work, {1: 60}, rate=1.0, cycles=6000).play()
        assert all(not sender.work[each] for each in RANGES[1])
        return max(cycle for cycle, stream in sender.sent if stream in RANGES[1])

    # Each of the blocked streams has one turn, and the first one two.
    assert last(True) <= last(False) + 6 * 14


def takes_no_place(outsider, number, others, module=associations):
    """A stream of none of the ``others``' association asks for its credit, and never waits."""

    class Outsider(Sender):
        @staticmethod
        def association(stream):
            return number if stream == outsider else Sender.association(stream)

    work = {outsider: 3} | dict.fromkeys(others, 5)
    sender = Outsider(work, {number: 10}, rate=0.02, module=module).play()
    assert sender.work == {outsider: 3} | dict.fromkeys(others, 0)


@pytest.mark.parametrize("outsider, number, others", [(7, 0, (1, 2)), (5, 1, (6, 7))])
def test_a_stream_that_is_none_of_its_associations_takes_no_place(outsider, number, others):
    takes_no_place(outsider, number, others)


@pytest.mark.parametrize(
    "old, new, outsider, number, others",
    [
        (" & (event.stream <= queue.last))", ")", 7, 0, (1, 2)),
        (" & (event.stream >= queue.first)", "", 5, 1, (6, 7)),
    ],
)
def test_a_bound_that_is_not_compared_is_found(old, new, outsider, number, others):
    module = planted("send.associations", old, new)
    with pytest.raises(AssertionError):
        takes_no_place(outsider, number, others, module)


def test_latencies():
    dut, seen = shared(associations.AssociationQueues, STREAMS, ASSOCIATIONS), {}

    async def run(ctx):
        await send(ctx, dut.set, [{"association": 0, "first": 1, "count": 3}])
        ctx.set(dut.wake.ready, 1)
        await ctx.tick().repeat(10)
        for name, port, payload in (
            ("ended", dut.ended, {"stream": 2, "association": 0, "lacks": 1}),
            ("raised", dut.raised, 0),
        ):
            ctx.set(port.payload, payload)
            ctx.set(port.valid, 1)
            for cycle in range(40):
                _, _, woken, which = await ctx.tick().sample(dut.wake.valid, dut.wake.payload)
                ctx.set(port.valid, 0)
                if woken:
                    assert which == 2
                    seen[name] = cycle
                    break

    simulate(dut, run)
    assert seen == {"ended": 13, "raised": 7}


def look_again(module=associations):
    """Gives credit once, in each cycle from the first turn of a stream that lacks it on."""
    for seed in range(40):
        sender = Sender({1: 1}, {0: 1}, rate=1 / 12, seed=seed, module=module).play()
        waits_for_nothing(sender)


def test_credit_that_comes_while_a_stream_begins_to_wait_is_seen():
    look_again()


WAKES = "(raises | moves | (appends & ~queue.some))"


def test_a_stream_that_is_not_looked_at_again_is_found():
    with pytest.raises(AssertionError):
        look_again(planted("send.associations", WAKES, "(raises | moves)"))


@pytest.mark.parametrize(
    "old, new",
    first({
        "the next stream is not woken": (WAKES, "(raises | (appends & ~queue.some))"),
        "new credit wakes nobody": (WAKES, "(moves | (appends & ~queue.some))"),
        "a stream that ended stays the first": (
            "~event.lacks | (event.sent & (queue.head", "(event.sent & (queue.head"),
        "a stream stays marked": ("marks.write.payload.data.listed.eq(joins)",
                                  "marks.write.payload.data.listed.eq(1)"),
        "a stream is listed twice": ("joins.eq(~raises & ~listed & event.lacks)",
                                     "joins.eq(~raises & event.lacks)"),
        "the places are not a ring": ("Mux(place == queue.last, queue.first, ", "Mux(0, 0, "),
    }.values()),
)  # fmt: skip
def test_planted_bugs_are_found(old, new):
    module = planted("send.associations", old, new)
    with pytest.raises(AssertionError):
        for seed in range(4):
            rng = random.Random(seed)
            work = {each: rng.randrange(4, 12) for each in range(1, STREAMS)}
            sender = Sender(work, needs(work), steps=(1, 4, 9), rate=0.01, seed=seed, module=module,
                            quits=rng.sample(range(1, STREAMS), 4)).play()  # fmt: skip
            waits_for_nothing(sender)


@pytest.mark.parametrize(
    "old, new",
    {
        "a stream that sent stays the first": (
            "(event.sent & (queue.head != queue.tail))", "C(0, 1)"),
    }.values(),
)  # fmt: skip
def test_a_queue_that_is_not_fair_is_found(old, new):
    work = dict.fromkeys(RANGES[0], 40)
    module = planted("send.associations", old, new)
    sender = Sender(work, {0: 60}, rate=0.005, module=module, cycles=30_000).play()
    assert most_between(sender) > 2 * len(work)


class Window:
    """Keeps the credit of each association as numbers, and judges :class:`AssociationCredit`."""

    def __init__(self, seed, module=associations):
        self.dut = module.AssociationCredit(STREAMS, ASSOCIATIONS) if module is not associations \
            else shared(associations.AssociationCredit, STREAMS, ASSOCIATIONS)
        self.rng = random.Random(seed)
        self.next = [0] * ASSOCIATIONS  # TSN, octets
        self.octets = [0] * ASSOCIATIONS
        self.limits = [(0, 0)] * ASSOCIATIONS
        self.cut = [[] for _ in range(ASSOCIATIONS)]  # octets of chunks that may be given back
        self.found = set()

    async def tick(self, ctx):
        """Lets a cycle pass, and ends all that was begun for one."""
        await ctx.tick()
        for port in (self.dut.begins, self.dut.cuts, self.dut.limits.valid, self.dut.refunds.valid):
            ctx.set(port, 0)

    async def turn(self, ctx, number):
        """Plays a turn with some segments, and compares the answer for each with the numbers."""
        dut, rng = self.dut, self.rng
        stream = rng.randrange(STREAMS)
        front = rng.choice((None, None, stream, (stream + 1) % STREAMS))
        ctx.set(dut.begins, 1)
        ctx.set(dut.stream, stream)
        ctx.set(dut.association, number)
        ctx.set(dut.front, {"some": front is not None, "stream": front or 0})
        await self.tick(ctx)  # the last segment of the turn before may be cut in the same cycle
        assert not ctx.get(dut.there)
        await ctx.tick().repeat(dut.DELAY - 1)
        assert ctx.get(dut.there)
        tsn, octets = self.limits[number]
        plenty = (front in (None, stream)
                  and tsn - self.next[number] >= 1 << associations.SEGMENTS
                  and octets - self.octets[number] >= 1 << associations.OCTETS)  # fmt: skip
        assert ctx.get(dut.plenty) == plenty
        self.found.add(("plenty", plenty))
        spent = 0
        for _ in range(rng.randrange(4)):
            tsn, octets = self.limits[number]
            near = octets - self.octets[number] + rng.randrange(-2, 3)
            needs = rng.choice((rng.randrange(2, 1 << 16), max(2, min(near, (1 << 16) + 1))))
            spent += needs
            if spent >= 1 << associations.OCTETS:
                break
            ctx.set(dut.needs, needs)
            await self.tick(ctx)
            fits = ctx.get(dut.fits)
            wanted = (front in (None, stream) and self.next[number] < tsn
                      and self.octets[number] + needs <= octets)  # fmt: skip
            assert fits == wanted, (number, needs, self.next[number], self.octets[number], tsn)
            self.found.add((wanted, front is None, self.next[number] < tsn))
            bad = not wanted and rng.random() < 0.3
            if wanted or bad:
                ctx.set(dut.octets, needs)
                ctx.set(dut.cuts, 1)
                ctx.set(dut.bad, int(bad))
                self.next[number] += 1
                self.octets[number] += needs
                self.cut[number].append(needs)
            if bad or rng.random() < 0.3:
                break
            await self.tick(ctx)

    async def run(self, ctx):
        dut, rng = self.dut, self.rng
        for number in range(ASSOCIATIONS):
            tsn = (1 << 32) - rng.randrange(20)
            self.next[number] = tsn
            await send(ctx, dut.set, [{"association": number, "tsn": tsn % (1 << 32)}])
        for _ in range(150):
            number = rng.randrange(ASSOCIATIONS)
            if rng.random() < 0.4:
                tsn, octets = self.limits[number]
                tsn = max(tsn, self.next[number]) + rng.choice((0, 1, 1, 2, 300, 1 << 30))
                octets = max(octets, self.octets[number])
                octets += rng.choice((0, 1, 999, 1 << 16, 1 << 30))
                # Segments that are given back did not leave.
                left = self.next[number] - len(self.cut[number])
                octets_left = self.octets[number] - sum(self.cut[number])
                if tsn - left < 1 << 31 and octets - octets_left < 1 << 31:
                    self.limits[number] = tsn, octets
                    ctx.set(dut.limits.payload, {
                        "association": number, "tsn": tsn % (1 << 32),
                        "octets": octets % (1 << 32)})  # fmt: skip
                    ctx.set(dut.limits.valid, 1)
                    await self.tick(ctx)
            while self.cut[number] and rng.random() < 0.3:
                octets = self.cut[number].pop(rng.randrange(len(self.cut[number])))
                self.next[number] -= 1
                self.octets[number] -= octets
                ctx.set(dut.refunds.payload, {"association": number, "octets": octets})
                ctx.set(dut.refunds.valid, 1)
                await self.tick(ctx)
                await ctx.tick().repeat(5)
            await self.turn(ctx, number)

    def play(self):
        simulate(self.dut, self.run, limit=30_000)
        return self


@pytest.mark.parametrize("seed", range(4))
def test_a_chunk_has_credit_if_it_fits_in_both_limits(seed):
    found = Window(seed).play().found
    assert len(found) >= 6 and {("plenty", True), ("plenty", False)} <= found


@pytest.mark.parametrize(
    "old, new",
    {
        "an octet too many": ("self.needs <= octets", "self.needs <= octets + 1"),
        "a chunk too many": ("may & tsns.any() &", "may & ((tsns.any()) | tsns[:0].all()) &"),
        "any stream of the queue": ("may.eq(~self.front.some | ", "may.eq(1 | "),
        "no refund of octets": ("ahead.octets + back.octets", "ahead.octets"),
        "no refund of a TSN": ("ahead.tsn + back.tsn", "ahead.tsn"),
        "a limit that was passed": ("left.octets[31], 0, Mux(", "0, 0, Mux("),
        "plenty without TSNs": ("may & many &", "may &"),
        "plenty without octets": ("may & many & much &", "may & many &"),
        "plenty beyond a limit": (" & ~left.octets[31]),", "),"),
        "plenty for any stream": ("self.plenty.eq(may & ", "self.plenty.eq("),
        "the position of another association": ("Mux(saves, saved,", "Mux(saves, number,"),
        "segments of the turn": ("tsns.eq(tsns - 1), ", ""),
    }.values(),
)  # fmt: skip
def test_bugs_of_the_credit_are_found(old, new):
    module = planted("send.associations", old, new)
    with pytest.raises(AssertionError):
        for seed in range(4):
            Window(seed, module).play()
