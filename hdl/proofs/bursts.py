"""Proves that the placement engine writes to the bus only octets inside the placement.

The engine is proved block by block. :class:`Jobs` proves which jobs a placement becomes;
:class:`Bursts` which addresses result from a job, :class:`Beats` which slots, and :class:`Strobes`
which beats result from slots. Addresses and slots both count the placement's beats of host memory
in order, from the one with its first octet to the one with its last: so the strobes of a beat
belong to the address that the bus gives it. The queues between the blocks are proved in
:mod:`ddp_rnic.hdl.proofs.streams`; :class:`Room` proves that none of them overflows.
"""

from amaranth import *
from amaranth.hdl import Cover
from amaranth.lib import data

from ..dma.burst import Addresses
from ..dma.jobs import BurstBody, Geometry, Placement, SlotBody
from ..dma.sequencer import Job
from ..dma.slots import Slots
from ..spec.config import RnicConfig
from .harness import Harness, if_
from .streams import items, pointed, stored

__all__ = [
    "BURST_JOB", "Beats", "Bursts", "CONFIG", "Jobs", "Room", "Strobes", "addresses", "slots",
]

#: At 64 bits a burst ends every 2 KiB, so that both limits on its length matter.
CONFIG = RnicConfig(width=64, buffer_octets=4096, outstanding=8, stags=16, streams=2)
PLACEMENT = Placement(CONFIG)
GEOMETRY = Geometry(CONFIG)


BURST_JOB = Job(BurstBody(GEOMETRY, PLACEMENT), GEOMETRY.bursts)


def addresses(component=Addresses):
    """Returns an address maker for the jobs of this configuration."""
    return component(CONFIG, BURST_JOB)


def slots(component=Slots):
    """Returns a slot maker for the jobs of this configuration."""
    return component(CONFIG, Job(SlotBody(GEOMETRY, PLACEMENT), GEOMETRY.slots))


class Span(data.StructLayout):
    """The octets of a placement in terms of the bus.

    Members
    -------
    first, last : beat of the first, of the last octet
    low, high : lane of the first, of the last octet
    """

    def __init__(self, geometry):
        beat = 64 - geometry.lane
        super().__init__(
            {"first": beat, "last": beat, "low": geometry.lane, "high": geometry.lane}
        )


def span(m, geometry, placement, *, name="span"):
    """Returns the span of a placement that is not empty."""
    result = Signal(Span(geometry), name=name)
    target = Mux(placement.exception, 0, placement.address[: geometry.lane])
    ends = (Cat(target, placement.address[geometry.lane :]) + (placement.length - 1)[:17])[:64]
    m.d.comb += [
        result.first.eq(placement.address[geometry.lane :]),
        result.last.eq(ends[geometry.lane :]),
        result.low.eq(target),
        result.high.eq(ends),
    ]
    return result


def burst_job(m, geometry, shape, placement):
    """Returns the job for the address channel."""
    one = span(m, geometry, placement, name="burst_span")
    beats, reach = Signal(15), Signal(24)
    job = Signal(shape, name="burst_job")
    position = one.first[: geometry.burst]
    m.d.comb += [
        beats.eq(one.last - one.first),
        reach.eq(position + beats),
        job.more.eq(reach >> geometry.burst),
        job.one.eq(job.more == 0),
        job.two.eq(job.more == 1),
        job.body.page.eq(one.first >> geometry.burst),
        job.body.position.eq(position),
        job.body.first.eq(Mux(job.more == 0, beats, ~position)),
        job.body.final.eq(reach),
        *(job.body[name].eq(placement[name]) for name in ("last", "stream")),
    ]
    return job


def slot_job(m, geometry, shape, placement):
    """Returns the job for the data path."""
    lane = geometry.lane
    one = span(m, geometry, placement, name="slot_span")
    job = Signal(shape, name="slot_job")
    source, rotation = placement.start[:lane], Signal(lane + 1)
    beats, read = Signal(15), Signal(15)
    empty = placement.length == 0
    m.d.comb += [
        rotation.eq(one.low - source),
        beats.eq(Mux(empty, 0, (one.low + (placement.length - 1)[:17]) >> lane)),
        read.eq(Mux(empty, 0, (source + (placement.length - 1)[:17]) >> lane)),
        job.more.eq(Mux(read > beats, read, beats)),
        job.one.eq(job.more == 0),
        job.two.eq(job.more == 1),
        job.body.start.eq(placement.start[lane:]),
        job.body.position.eq(one.first),
        job.body.rotate.eq(rotation[:lane]),
        job.body.ahead.eq(rotation[lane]),
        job.body.first_lane.eq(one.low),
        job.body.last_lane.eq(one.high),
        job.body.silent.eq(empty | (read > beats)),
    ]
    for name in ("exception", "reason", "stream", "sequence", "release"):
        if name in dict(job.body.shape()):
            m.d.comb += job.body[name].eq(placement[name])
    return job


class Jobs(Harness):
    """Proves which jobs a placement becomes.

    Each becomes one job for the data path, as ``slot_job`` computes it, and, unless it is empty or
    an exception, one for the address channel, as ``burst_job`` computes it.

    Assumes nothing. By induction of depth 6: five cycles after a placement the block is empty.
    """

    DEPTH = 6

    def rules(self, m):
        dut = self.dut
        placement, valid = dut.i.payload, dut.i.valid
        shape = placement.shape()

        def came(cycles):
            before = Signal(shape, name=f"came{cycles}")
            m.d.comb += Value.cast(before).eq(self.past(placement, cycles))
            return before, self.past(valid, cycles)

        one, due = came(4)
        self.always(dut.slots.valid == due, "a job for the data path")
        job = slot_job(m, dut.geometry, dut.slot_job, one)
        for name in ("more", "one", "two"):
            self.always(if_(due, dut.slots.payload[name] == job[name]), f"slots: {name}")
        idle = job.body.silent & (one.length == 0)
        for name, _ in job.body.shape():
            same = Value.cast(dut.slots.payload.body[name]) == Value.cast(job.body[name])
            # An empty placement has no beats, so that the members that describe them are free.
            moot = idle if name in ("position", "last_lane", "first_lane") else 0
            self.always(if_(due & ~moot, same), f"slots: {name}")

        one, due = came(5)
        due = due & (one.length != 0) & ~one.exception
        self.always(dut.bursts.valid == due, "a job for the address channel")
        job = burst_job(m, dut.geometry, dut.burst_job, one)
        body = dut.bursts.payload.body
        for name in ("more", "one", "two"):
            self.always(if_(due, dut.bursts.payload[name] == job[name]), f"bursts: {name}")
        for name in ("page", "position", "first", "last", "stream"):
            self.always(if_(due, body[name] == job.body[name]), f"bursts: {name}")
        several = due & (job.more != 0)
        self.always(if_(several, body.final == job.body.final), "bursts: final")
        m.d.comb += Cover(several & (job.more == 2), "three bursts")


class _Stepped(Harness):
    """Follows a placement's job through the steps of a block, and the two registers after them.

    ``now``, ``one`` and ``out`` are the stages: each has the job, the placement's span, and the
    number of the step. ``job`` is the job in the sequencer.
    """

    def follow(self, m, placement, job):
        """Adds the stages for the jobs that the block takes."""
        geometry = self.dut.geometry
        now = Signal(data.StructLayout({
            "job": job.shape(), "span": Span(geometry), "index": 16, "first": 1, "last": 1,
        }))
        kept_job = Signal(job.shape())
        kept_span = Signal(Span(geometry))
        with m.If(self.dut.i.valid & self.dut.i.ready):
            m.d.sync += [
                kept_job.eq(job),
                kept_span.eq(span(m, geometry, placement, name="next_span")),
            ]
        self.sequencer = sequencer = self.inside.component("sequencer")
        m.d.comb += [
            now.job.eq(kept_job),
            now.span.eq(kept_span),
            now.index.eq(sequencer.index),
            now.first.eq(sequencer.first),
            now.last.eq(sequencer.last),
        ]
        one, out = Signal.like(now), Signal.like(now)
        m.d.sync += [one.eq(now), out.eq(one)]
        self.job, self.now, self.one, self.out = kept_job, now, one, out

    def count_steps(self, m):
        """Adds lemmas for the registers of the sequencer."""
        sequencer, job, inside = self.sequencer, self.job, self.inside
        more, busy = inside["sequencer.more"], sequencer.busy
        remaining = Signal(24)
        m.d.comb += remaining.eq(job.more - sequencer.index)
        self.lemma(if_(busy, sequencer.body == job.body), "the job")
        self.lemma(if_(busy, sequencer.index <= job.more), "index")
        self.lemma(if_(busy, more == remaining), "more")
        self.lemma(if_(busy, sequencer.last == (remaining == 0)), "last")
        self.lemma(if_(busy, sequencer.penultimate == (remaining == 1)), "penultimate")
        self.lemma(if_(busy, sequencer.first == (sequencer.index == 0)), "first")
        ready = ~busy | (inside["sequencer.goes"] & sequencer.last)
        self.lemma(sequencer.i.ready == ready, "ready")

    def count_stage(self, name, held, stage):
        """Adds lemmas for the number of a stage's step."""
        end = stage.index == stage.job.more
        self.lemma(if_(held, stage.first == (stage.index == 0)), f"{name}: first is 0")
        self.lemma(if_(held, stage.last == end), f"{name}: last is more")
        self.lemma(if_(held, stage.index <= stage.job.more), f"{name}: index")


class Bursts(_Stepped):
    """Proves that the bursts of a placement cover it exactly.

    The first begins with the beat of its first octet, each other where the one before it ended, and
    the last ends with the beat of its last octet. None crosses 4 KiB, and each but the last ends
    where :class:`Beats` ends one.

    Assumes jobs as :class:`Jobs` proves them. By induction of depth 2.
    """

    def rules(self, m):
        dut, geometry = self.dut, self.dut.geometry
        placement = self.any(PLACEMENT, name="placement")
        self.assume(placement.length != 0)
        self.assume(~placement.exception)
        job = burst_job(m, geometry, dut.job, placement)
        self.drive(dut.i.payload, job)

        self.follow(m, placement, job)
        valid1 = self.past(dut.taken, name="valid1")
        start, end, following = self.claims(m, valid1)
        self.count_steps(m)
        for name, held, stage in (
            ("steps", self.sequencer.busy, self.now), ("one", valid1, self.one),
            ("out", dut.o.valid, self.out),
        ):
            self.hold_job(m, name, held, stage)
        self.lemma(valid1 == self.inside["valid1"], "valid1")
        self.keep_order(valid1, start, end, following)

    def claims(self, m, valid1):
        """Adds the claims to prove.

        Returns the beats at which the burst at the output begins and ends, and the beat at which
        the next burst is to begin.
        """
        dut, out, geometry = self.dut, self.out, self.dut.geometry
        burst = dut.o.payload
        start, end = Signal(64 - geometry.lane), Signal(64 - geometry.lane)
        m.d.comb += [start.eq(burst.addr >> geometry.lane), end.eq(start + burst.len)]
        following = Signal.like(start)
        with m.If(dut.o.valid):
            m.d.sync += following.eq(end + 1)

        valid = dut.o.valid
        size = (end - out.span.first)[: len(start)]
        whole = (out.span.last - out.span.first)[: len(start)]
        boundary = start[: geometry.burst] + burst.len
        self.always(valid == self.past(valid1), "a burst for each step")
        self.always(if_(valid, burst.addr[: geometry.lane] == 0), "aligned")
        self.always(if_(valid & out.first, start == out.span.first), "begins with the first octet")
        self.always(if_(valid & ~out.first, start == following), "goes on where the last ended")
        self.always(if_(valid, size <= whole), "ends within the placement")
        self.always(if_(valid & out.last, end == out.span.last), "ends with the last octet")
        self.always(
            if_(valid & ~out.last, boundary == (1 << geometry.burst) - 1), "ends at a boundary"
        )
        octets = (burst.len + 1) << geometry.lane
        self.always(if_(valid, burst.addr[:12] + octets <= 4096), "does not cross 4 KiB")
        self.always(
            if_(valid, burst.final == (out.last & out.job.body.last)), "the segment's last burst"
        )
        self.always(if_(valid, burst.stream == out.job.body.stream), "its stream")
        m.d.comb += Cover(valid & out.last & (out.index == 2), "three bursts")
        return start, end, following

    def hold_job(self, m, name, held, stage):
        """Adds lemmas for the job that a stage holds."""
        burst = self.dut.geometry.burst
        beats = (stage.span.last - stage.span.first)[: len(stage.span.first)]
        position = stage.span.first[:burst]
        reach = Signal(24, name=f"reach_{name}")
        m.d.comb += reach.eq(position + beats)
        body, total = stage.job.body, stage.job.more
        self.lemma(if_(held, beats < 1 << 15), f"{name}: short")
        self.lemma(if_(held, total == reach >> burst), f"{name}: more")
        self.lemma(if_(held, Cat(body.position, body.page) == stage.span.first), f"{name}: at")
        self.lemma(
            if_(held, body.first == Mux(total == 0, beats[:burst], ~position)), f"{name}: first"
        )
        self.lemma(if_(held, body.final == reach[:burst]), f"{name}: final")
        self.count_stage(name, held, stage)

    def keep_order(self, valid1, start, end, following):
        """Adds lemmas: each burst in the stages begins where the one before it ended."""
        geometry, valid = self.dut.geometry, self.dut.o.valid
        now, one, out, sequencer = self.now, self.one, self.out, self.sequencer
        busy = sequencer.busy

        def begins(which, index):
            """Returns the beat at which a burst of a job begins, by its number."""
            page = (which.span.first[geometry.burst :] + index)[: geometry.page]
            return Mux(index == 0, which.span.first, Cat(C(0, geometry.burst), page))

        self.lemma(if_(valid, start == begins(out, out.index)), "begins")
        ends = begins(out, out.index + 1)
        self.lemma(if_(valid & ~out.last, (end + 1)[: len(start)] == ends), "ends")
        same = (one.span == out.span) & (one.index == out.index + 1)
        self.lemma(if_(valid & valid1 & ~one.first, same), "one behind another")
        idle = ~valid & valid1 & ~one.first
        self.lemma(if_(idle, following == begins(one, one.index)), "the next is in front")
        idle = ~valid & ~valid1 & busy & ~sequencer.first
        self.lemma(if_(idle, following == begins(now, now.index)), "the next is not yet made")
        last = Mux(valid1, one.index, out.index)
        spans = Mux(valid1, one.span, out.span)
        close = (valid1 | valid) & busy & ~sequencer.first
        self.lemma(
            if_(close, (spans == Value.cast(now.span)) & (sequencer.index == last + 1)),
            "steps behind one another",
        )


class Beats(_Stepped):
    """Proves which slots a placement becomes.

    The slots with a beat are as many as its beats of host memory, in order, each with the lanes
    between its first octet and its last. ``edge`` is set where :class:`Bursts` ends a burst: at a
    boundary and at the last beat.

    Assumes jobs as :class:`Jobs` proves them. By induction of depth 2.
    """

    def rules(self, m):
        dut, geometry = self.dut, self.dut.geometry
        placement = self.any(PLACEMENT, name="placement")
        self.assume((placement.length <= 0xFFFF + 20) & (placement.length != 0))
        self.assume(~placement.exception)
        job = slot_job(m, geometry, dut.job, placement)
        self.drive(dut.i.payload, job)

        self.follow(m, placement, job)
        valid, valid1 = dut.o_valid, self.past(self.sequencer.valid, name="valid1")
        beat, following = self.claims(m, valid, valid1)
        self.count_steps(m)
        for name, held, stage in (
            ("steps", self.sequencer.busy, self.now), ("one", valid1, self.one),
            ("out", valid, self.out),
        ):
            self.hold_job(m, name, held, stage)
        self.lemma(valid1 == self.inside["valid1"], "valid1")
        self.keep_order(valid, valid1, beat, following)

    def claims(self, m, valid, valid1):
        """Adds the claims to prove; returns the output's beat number, and the expected one."""
        dut, out, sequencer, geometry = self.dut, self.out, self.sequencer, self.dut.geometry
        slot = dut.o
        beats, beat = Signal(15), Signal(15)
        octets = 1 << geometry.lane
        m.d.comb += [beats.eq(out.span.last - out.span.first), beat.eq(out.index)]
        sent = valid & ~slot.silent
        at_end = beat == beats
        self.always(valid == self.past(valid1), "a slot for each step")
        silent = sequencer.last & sequencer.body.silent
        self.always(dut.sent == (sequencer.valid & ~silent), "sent")
        self.always(if_(valid, slot.silent == (beat > beats)), "a beat for each of host memory")
        self.always(if_(valid & slot.last & ~slot.silent, at_end), "up to the last")
        self.always(if_(valid & slot.silent, slot.last), "and none behind it")
        self.always(if_(sent, slot.final == at_end), "the last beat")
        low, high = Mux(beat == 0, out.span.low, 0), Mux(at_end, out.span.high, octets - 1)
        self.always(if_(sent, slot.low == low), "the first lane")
        self.always(if_(sent, slot.high == high), "the last lane")
        boundary = (out.span.first[: geometry.burst] + beat)[: geometry.burst].all()
        self.always(if_(sent, slot.edge == (at_end | boundary)), "the burst ends")
        self.always(if_(valid, ~slot.exception), "for the bus")
        following = Signal.like(beat)
        with m.If(valid):
            m.d.sync += following.eq(Mux(out.last, 0, beat + 1))
        self.always(if_(valid, beat == following), "in order")
        m.d.comb += Cover(sent & at_end & (beat == 2) & ~out.last, "three beats")
        return beat, following

    def hold_job(self, m, name, held, stage):
        """Adds lemmas for the job that a stage holds."""
        total, body = Signal(15, name=f"total_{name}"), stage.job.body
        m.d.comb += total.eq(stage.span.last - stage.span.first)
        self.lemma(if_(held, stage.job.more == total + body.silent), f"{name}: more")
        self.lemma(if_(held, stage.job.more < 1 << 15), f"{name}: short")
        self.lemma(if_(held, body.first_lane == stage.span.low), f"{name}: low")
        self.lemma(if_(held, body.last_lane == stage.span.high), f"{name}: high")
        position = stage.span.first[: self.dut.geometry.burst]
        self.lemma(if_(held, body.position == position), f"{name}: position")
        self.lemma(if_(held, ~body.exception), f"{name}: for the bus")
        self.count_stage(name, held, stage)

    def keep_order(self, valid, valid1, beat, following):
        """Adds lemmas: the beats in the stages are in order."""
        one, out, sequencer, busy = self.one, self.out, self.sequencer, self.sequencer.busy
        after_out = Mux(valid, Mux(out.last, 0, beat + 1), following)
        after_one = Mux(valid1, Mux(one.last, 0, one.index + 1), after_out)
        self.lemma(if_(valid1, one.index == after_out), "one")
        self.lemma(if_(busy, sequencer.index == after_one), "steps")
        self.lemma(if_(~busy, after_one == 0), "no steps")


class Strobes(Harness):
    """Proves that each slot with a beat becomes one beat, in order.

    Its strobe has exactly the lanes from ``low`` to ``high``, and ``last`` is set where ``edge``
    is. A slot without a beat gives none.

    Assumes slots as :class:`Beats` proves them, for the bus; the next slot may arrive at any time.
    By induction of depth 4.
    """

    def rules(self, m):
        dut, inside = self.dut, self.inside
        slot, beat = dut.i, dut.o.payload
        self.assume(~slot.exception)
        octets = dut.geometry.octets
        # The slots inside that have a beat; any one of them is followed.
        inside_, ahead = Signal(8), Signal(8)
        followed, kept = Signal(), Signal.like(slot)
        age = Signal(4)
        comes, goes = Signal(), Signal()
        mark = self.any(1, name="mark")
        m.d.comb += [comes.eq(dut.i_valid & ~slot.silent), goes.eq(dut.o.valid)]
        m.d.sync += inside_.eq(inside_ + comes - goes)
        with m.If(~followed):
            m.d.sync += [
                followed.eq(comes & mark), kept.eq(slot), ahead.eq(inside_ - goes), age.eq(0),
            ]
        with m.Elif(goes):
            m.d.sync += [followed.eq(ahead != 0), ahead.eq(ahead - 1)]
        self.always(if_(goes, inside_ != 0), "no beat without a slot")
        due = followed & goes & (ahead == 0)
        lanes = Cat((lane >= kept.low) & (lane <= kept.high) for lane in range(octets))
        self.always(if_(due, beat.strobe == lanes), "the strobe")
        self.always(if_(due, beat.last == kept.edge), "the burst ends")
        self.always(if_(due, ~beat.exception), "for the bus")
        m.d.comb += Cover(due & self.past(goes) & (kept.low != 0), "beats")

        # Where they are: four registers, the one that waits for the next slot, and the output.
        join = {name: inside[f"join.{name}"] for name in ("here", "there", "ends")}
        held = _slot(slot, inside["held"])
        stages = [
            (inside["valid"][0], _slot(slot, inside["slot1"])),
            (inside["valid"][1], _slot(slot, inside["slot2"])),
            (inside["valid"][2], _slot(slot, inside["slot3"])),
            (join["here"], _slot(slot, inside["slot4"])),
        ]
        tags = [Signal(name=f"tag{n}") for n in range(1, 5)]
        tag_held, tag_out = Signal(), Signal()
        m.d.sync += Cat(tags).eq(Cat(comes & mark & ~followed, tags))
        gives = join["there"] & (join["ends"] | join["here"])
        m.d.sync += tag_out.eq(tag_held & gives)
        with m.If(join["here"]):
            m.d.sync += tag_held.eq(tags[3])
        with m.Elif(gives):
            m.d.sync += tag_held.eq(0)
        here = [
            *((tag, valid & ~stage.silent) for tag, (valid, stage) in zip(
                tags, stages, strict=True)),
            (tag_held, join["there"] & ~held.silent),
            (tag_out, dut.o.valid),
        ]
        self.lemma(inside_ == sum(one for _, one in here), "all that is inside")
        every = Cat(tag for tag, _ in here)
        self.lemma((every & (every - 1)) == 0, "one tag")
        self.lemma(every.any() == followed, "of the one that is followed")
        for n, (tag, one) in enumerate(here):
            self.lemma(if_(tag, one), "tagged")
            self.lemma(if_(tag, ahead == sum(other for _, other in here[n + 1 :])), "ahead of it")
        for (_, stage), tag in zip([*stages, (0, held)], [*tags, tag_held], strict=True):
            self.lemma(if_(tag, stage == kept), "the slot")
        for valid, stage in [*stages, (join["there"], held)]:
            self.lemma(if_(valid, ~stage.exception), "for the bus")
        self.lemma(if_(tag_held, inside["held_strobe"] == lanes), "the strobe that is held")
        self.lemma(if_(tag_out, beat.strobe == lanes), "the strobe")
        self.lemma(if_(join["there"], join["ends"] == held.last), "the last slot waits for none")


class Room(Harness):
    """Proves that neither the queues of jobs nor the output queue overflow.

    Assumes that placements are input while ``ready`` is high or in the cycle after. By induction of
    depth 9: from ``ready`` to a queue of jobs there are up to 7 cycles.
    """

    DEPTH = 9

    def rules(self, m):
        dut, inside = self.dut, self.inside
        self.assume(if_(dut.i.valid, dut.ready | self.past(dut.ready)))
        for name in ("slot_jobs", "burst_jobs"):
            queue = inside.component(name)
            count = items(m, queue)
            self.always(if_(queue.i.valid, count < queue.depth), f"room in {name}")
            stored(self, m, f"{name}.", count, queue.depth)
        beat, pop = inside.component("output_queue").i, inside["output_queue.pop"]
        count = Signal(8)
        m.d.sync += count.eq(count + beat.valid - pop)
        limit, depth = inside.component("credits").limit, inside.component("output_queue").depth
        self.always(if_(beat.valid, count < depth), "room in the output queue")
        self.always(count <= depth, "no more in the output queue than fit")
        m.d.comb += Cover(count == 3, "beats wait")

        slot = inside.component("align").i
        stages = [
            (inside["slots.valid1"], inside["slots.slot1"]),
            (inside["slots.o_valid"], inside["slots.o"]),
            (inside["align.valid"][0], inside["align.slot1"]),
            (inside["align.valid"][1], inside["align.slot2"]),
            (inside["align.valid"][2], inside["align.slot3"]),
            (inside["align.join.here"], inside["align.slot4"]),
            (inside["align.join.there"], inside["align.held"]),
        ]
        way = sum(valid & ~_slot(slot, one).silent for valid, one in stages)
        used, free = inside["credits.used"], inside["credits.free"]
        taken = inside["output_queue.taken"]
        self.lemma(used == way + beat.valid + count + taken, "each beat has a credit")
        self.lemma(used <= limit, "no more than there are")
        self.lemma(free == (used != limit), "free")
        self.lemma(inside["credits.one"] == (used == limit - 1), "one")
        self.lemma(if_(inside["slots.sequencer.goes"], free), "ok")
        pointed(self, "output_queue.pointers.", count)


def _slot(like, signal):
    return data.View(like.shape(), signal)
