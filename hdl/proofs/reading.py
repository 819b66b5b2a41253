"""Proves that once a revocation reads done, no read that the former entry allowed is unanswered.

The proof has parts. :class:`Finished` proves it for the fence of the sending side, and assumes of
the checks that they are busy while a part is inside, and of the DMA engine that its own fence waits
for all pieces that it took. :class:`Checking` and :class:`Cutting` prove the first of these;
:class:`Drained` proves the second, with :class:`Issued` and :class:`Returned`. A part that is taken
after the fence has begun does not see the former entry: :class:`~.tagged.Inbounds`.
"""

from amaranth import *
from amaranth.asserts import AnySeq
from amaranth.hdl import Cover

from ..dma.pages import PageCut
from ..dma.read import QUEUE, Shape
from ..dma.staging import BeatPlacer
from ..lib.stream import any_of, counted
from .harness import Harness, if_
from .parts import Permitted
from .streams import items, stored

__all__ = ["BusyCut", "Checking", "Cutting", "Drained", "Finished", "Issued", "Owned",
           "Returned", "SHAPE"]

#: The smallest DMA engine.
SHAPE = Shape(64, reads=2, octets=64, segments=4, inline=0)


class BusyCut(PageCut):
    """Replaces a PageCut by any block that keeps some of its rules.

    It takes placements while ``ready``, outputs pieces only of those that it has, and only after
    ``go``. It is busy while it has any. ``count`` says how many, and ``ends`` that the oldest one
    leaves with a piece.
    """

    def elaborate(self, platform):
        m = Module()
        goes, self.ends, self.count = Signal(), Signal(), Signal(8)
        m.d.sync += goes.eq(self.go)
        counted(m, self.count, self.i.valid, self.ends)
        m.d.comb += [
            self.ready.eq(AnySeq(1) & ~self.count[-1]),
            self.busy.eq(AnySeq(1) | self.count.any()),
            self.o.valid.eq(AnySeq(1) & goes & self.count.any()),
            self.ends.eq(AnySeq(1) & self.o.valid),
            *(port.eq(AnySeq(len(Value.cast(port)))) for port in (self.index, self.o.payload)),
        ]
        return m


class Finished(Harness):
    """Proves that a fence of the sending side does not end before the reads that it waits for.

    These are the reads of all parts that were taken for the checks in the cycle of ``fence`` or
    before. ``fencing`` is high from the next cycle on, and until each of them was answered.

    The blocks beside the fence are modelled: any one part is taken, at any time, and stays in the
    checks for any time. Any one of its pieces is taken by the DMA engine in that time, and
    answered at any time after that. Assumes that ``checking`` is high in the cycle after one in
    which the part is taken or inside, and that ``reading`` is high from the cycle after ``drain``
    until the piece is answered, if the piece was taken in the cycle of ``drain`` or before. By
    induction of depth 1.
    """

    def rules(self, m):
        dut = self.dut
        takes, mark, leaves, reads, answers = (
            self.any(1, name=name) for name in ("takes", "mark", "leaves", "reads", "answers"))
        followed, inside, read = Signal(), Signal(), Signal()
        begins, moves = Signal(), Signal()
        m.d.comb += [begins.eq(takes & mark & ~followed), moves.eq(inside & reads & ~read)]
        was = self.past(begins | inside)
        self.assume(if_(was, dut.checking))
        waits, asked, covered = Signal(), Signal(), Signal()
        with m.If(begins):
            m.d.sync += [followed.eq(1), inside.eq(1), read.eq(0), covered.eq(dut.fence)]
        with m.Elif(followed):
            m.d.sync += covered.eq(covered | dut.fence)
        with m.If(inside):
            m.d.sync += inside.eq(~leaves)
        with m.If(moves):
            m.d.sync += [read.eq(1), waits.eq(1), asked.eq(dut.drain)]
        with m.Elif(waits):
            m.d.sync += [waits.eq(~answers), asked.eq((asked | dut.drain) & ~answers)]
        with m.If(followed & ~inside & ~waits):
            m.d.sync += followed.eq(0)
        self.assume(if_(waits & asked, dut.reading))

        self.always(if_(covered & ((inside & ~read) | waits), dut.fencing), "it has not ended")
        m.d.comb += [
            Cover(covered & waits & asked & dut.fencing & ~inside, "a read is waited for"),
            Cover(self.past(covered & waits & answers, 2) & ~dut.fencing, "the fence ends"),
        ]
        self.lemma(if_(inside, followed & was), "it is checked")
        self.lemma(if_(waits, followed & read), "it is read")
        self.lemma(if_(covered & inside, dut.hold), "further parts are held")
        self.lemma(if_(covered & waits & ~dut.hold, asked), "the engine waits")


class Checking(Harness):
    """Proves that PartCheck is busy while a part is inside.

    ``busy`` is high in the cycle after one in which a part is taken or inside. A part is inside
    until the DMA engine has taken its last piece, or until it is dropped because an earlier part of
    its segment was refused.

    Any one part is followed through the checks, the queue before the cutter, the cutter, and the
    queue after it; it may pass the checks, the cutter and empty queues by. :class:`BusyCut`
    replaces the cutter, as :class:`Cutting` proves it, and :class:`~.parts.AnyCheck` the checks
    against the entry.
    Assumes nothing. By induction of depth 2.
    """

    DEPTH = 2

    def rules(self, m):
        dut, inside = self.dut, self.inside
        checked, cut, pieces = (
            inside.component(name) for name in ("checked", "cut", "pieces"))
        begins, pops = Signal(), dut.o.valid & dut.o.ready
        moves = checked.o.valid & checked.o.ready
        age = Signal(Permitted.LATENCY)
        waits, cuts, leaves = Signal(), Signal(), Signal()
        ahead = Signal(8)
        counts = {store: items(m, store) for store in (checked, pieces)}
        followed = age.any() | waits | cuts | leaves
        mark = self.any(1, name="mark")
        m.d.comb += begins.eq(dut.i.valid & dut.i.ready & mark & ~followed)
        m.d.sync += age.eq(Cat(begins, age))
        quick = inside["quick"] & age[Permitted.QUICK - 1]
        with m.If(quick):
            m.d.sync += age.eq(0)
        # It leaves the first queue, perhaps in the cycle in which it comes there; and the second.
        checks, first = (age[-1] | quick) & checked.i.valid, Signal()
        second, alone = cuts & cut.ends & (ahead == 0), pops & (counts[pieces] == 0)
        m.d.comb += first.eq(moves & Mux(checks, counts[checked] == 0, waits & (ahead == 0)))
        with m.If(((waits & moves) | (cuts & cut.ends) | (leaves & pops)) & (ahead != 0)):
            m.d.sync += ahead.eq(ahead - 1)
        with m.If(checks & ~first):
            m.d.sync += [waits.eq(1), ahead.eq(counts[checked] - moves)]
        with m.Elif(first & cut.i.valid):
            m.d.sync += [waits.eq(0), cuts.eq(1), ahead.eq(cut.count - cut.ends)]
        with m.Elif(first | second):
            m.d.sync += [
                waits.eq(0), cuts.eq(0), leaves.eq(~alone), ahead.eq(counts[pieces] - pops)]
        with m.Elif(leaves & pops & (ahead == 0)):
            m.d.sync += leaves.eq(0)
        self.always(if_(self.past(begins | followed), dut.busy), "busy while it is inside")
        m.d.comb += Cover(leaves & pops & (ahead == 0), "it leaves")

        for store, name in ((checked, "checked"), (pieces, "pieces")):
            stored(self, m, f"{name}.", counts[store], store.depth)
        coming = inside["coming"]
        at = Permitted.QUICK - 1
        there = Cat(coming[:at], coming[at] | inside["quick"], coming[at + 1:])
        self.lemma((age & there) == age, "it is among those in the checks")
        still = sum((coming[k] for k in range(at, len(coming))), C(0))
        self.lemma(if_(inside["quick"], still == 0), "or passes them by, alone")
        self.lemma((age & (age - 1)) == 0, "one is followed")
        self.lemma(age.any() + waits + cuts + leaves <= 1, "it is in one place")
        self.lemma(if_(waits, ahead < counts[checked]), "it waits")
        self.lemma(if_(cuts, ahead < cut.count), "it is cut")
        self.lemma(if_(leaves, ahead < counts[pieces]), "its last piece waits")
        way = sum((coming[k] for k in range(len(coming))), inside["quick"])
        most = checked.depth // 2 + len(coming)
        self.lemma(inside["checked.level"] + way <= most, "room for what was taken")


class Cutting(Harness):
    """Proves that PageCut is busy while a placement is inside.

    ``busy`` is high from the cycle after the placement is input until its last piece is output.

    Any one placement is followed: while it is measured, through the queue of jobs, while it is cut,
    and its last piece to the output. Assumes that placements are input while ``ready``. By
    induction of depth 1.
    """

    def rules(self, m):
        dut, inside = self.dut, self.inside
        ready = [dut.ready, self.past(dut.ready), self.past(dut.ready, 2)]
        self.assume(if_(dut.i.valid, any_of(ready)))
        jobs, pieces, steps = (
            inside.component(name) for name in ("jobs", "pieces", "sequencer"))
        measured, coming = inside["measure.valid"], inside["coming"]
        counts = {"jobs": items(m, jobs), "pieces": items(m, pieces)}
        taken, popped = jobs.o.valid & jobs.o.ready, pieces.o.valid & pieces.o.ready

        measures, comes = Signal.like(measured), Signal.like(coming)
        waits, cuts, leaves, out = Signal(), Signal(), Signal(), Signal()
        ahead, mark = Signal(8), self.any(1, name="mark")
        followed = measures.any() | waits | cuts | comes.any() | leaves | out
        ends = cuts & steps.valid & steps.last
        m.d.sync += [
            measures.eq(Cat(dut.i.valid & mark & ~followed, measures)),
            comes.eq(Cat(ends, comes)),
            out.eq(leaves & popped & (ahead == 0)),
        ]
        with m.If(measures[-1]):
            m.d.sync += [waits.eq(1), ahead.eq(counts["jobs"] - taken)]
        with m.If(waits & taken):
            m.d.sync += [ahead.eq(ahead - 1), waits.eq(ahead != 0), cuts.eq(ahead == 0)]
        with m.If(ends):
            m.d.sync += cuts.eq(0)
        with m.If(comes[-1]):
            m.d.sync += [leaves.eq(1), ahead.eq(counts["pieces"] - popped)]
        with m.If(leaves & popped):
            m.d.sync += [ahead.eq(ahead - 1), leaves.eq(ahead != 0)]
        self.always(if_(followed, dut.busy), "busy while it is inside")
        self.always(if_(out, dut.o.valid), "its last piece is output")
        m.d.comb += Cover(out & self.past(cuts, 8), "it leaves")

        for name, store in (("jobs", jobs), ("pieces", pieces)):
            stored(self, m, f"{name}.", counts[name], store.depth)
        self.lemma((measures & measured) == measures, "it is among those that are measured")
        self.lemma((comes & coming) == comes, "its last piece is on its way")
        self.lemma((measures & (measures - 1)) == 0, "one is measured")
        self.lemma((comes & (comes - 1)) == 0, "one is on its way")
        places = measures.any() + waits + cuts + comes.any() + leaves + out
        self.lemma(places <= 1, "it is in one place")
        self.lemma(if_(waits, ahead < counts["jobs"]), "it waits")
        self.lemma(if_(leaves, ahead < counts["pieces"]), "its last piece waits")
        self.lemma(if_(cuts, steps.busy), "it is cut")
        goes, next_one = inside["sequencer.goes"], inside["sequencer.ready"]
        self.lemma(next_one == (~steps.busy | (goes & steps.last)), "the next one is taken")

        # No queue overflows.
        under, made = (
            sum((bits[k] for k in range(len(bits))), C(0)) for bits in (measured, coming))
        half = jobs.depth // 2
        for cycles in range(4):
            soon = ready[cycles] if cycles < 3 else C(1)
            most = half + len(measured) + cycles
            self.lemma(if_(soon, counts["jobs"] + under <= most), "room for what is measured")
        self.lemma(if_(ready[0], counts["jobs"] <= half), "half of the queue was free")
        self.lemma(if_(goes, counts["pieces"] <= half), "half of the other one was free")
        most = half + len(coming) + 1
        self.lemma(counts["pieces"] + made <= most, "room for what is cut")


class Drained(Harness):
    """Proves that the fence of the DMA engine does not end before the reads that it waits for.

    ``fencing`` is high from the cycle after ``fence`` until all bursts have been issued and
    answered of every piece that was taken in the cycle of ``fence`` or before.

    Any one piece and any one burst of it are followed; the others may do anything that the engine
    allows. Assumes that a piece and its bursts report the epoch in which the piece was taken
    (:class:`Issued`, :class:`Returned`); that a burst is issued while its piece is cut, in the
    cycle of ``done`` at the latest, and answered after that; that fewer than 64 pieces are inside;
    and that at most ``ANSWERED`` more bursts than there are IDs are issued and not answered,
    because each has an ID of its own (:class:`Owned`) until its last beat comes. By induction of
    depth 1.
    """

    def rules(self, m):
        dut, inside = self.dut, self.inside
        mine = {name: self.any(1, name=f"mine_{name}")
                for name in ("taken", "issued", "done", "answered")}
        cuts, waits, covered, epoch = Signal(), Signal(), Signal(), Signal()
        begins = dut.taken & mine["taken"] & ~(cuts | waits)
        own = {name: getattr(dut, name).valid & (getattr(dut, name).epoch == epoch) & mine[name]
               for name in ("issued", "done", "answered")}
        with m.If(begins):
            m.d.sync += [cuts.eq(1), epoch.eq(dut.epoch), covered.eq(dut.fence)]
        with m.Else():
            m.d.sync += covered.eq(covered | dut.fence)
        with m.If(cuts & own["done"]):
            m.d.sync += cuts.eq(0)
        with m.If(cuts & own["issued"]):
            m.d.sync += waits.eq(1)
        with m.Elif(own["answered"]):
            m.d.sync += waits.eq(0)
        most = dut.shape.reads + BeatPlacer.ANSWERED
        for n in range(2):
            pieces, bursts = Signal(8, name=f"pieces_{n}"), Signal(9, name=f"bursts_{n}")
            there = {name: getattr(dut, name).valid & (getattr(dut, name).epoch == n)
                     for name in ("issued", "done", "answered")}
            counted(m, pieces, dut.taken & (dut.epoch == n), there["done"])
            counted(m, bursts, there["issued"], there["answered"])
            other = {name: there[name] & ~mine[name] for name in there}
            self.assume((pieces < 4 * QUEUE) & (bursts <= most))
            self.assume(if_(there["done"] | there["issued"], pieces != 0))
            self.assume(if_(there["answered"], bursts != 0))
            self.assume(if_(other["done"], pieces > (cuts & (epoch == n))))
            self.assume(if_(other["answered"], bursts > (waits & (epoch == n))))
            self.lemma(inside[f"pieces{n}"] == pieces, "pieces of the epoch")
            self.lemma(inside[f"bursts{n}"] == bursts, "bursts of the epoch")
            self.lemma(if_(cuts & (epoch == n), pieces != 0), "the piece is counted")
            self.lemma(if_(waits & (epoch == n), bursts != 0), "its burst is counted")
            idle = (pieces == 0) & (bursts == 0)
            self.lemma(if_(~dut.fencing & (dut.epoch != n), idle), "the former epoch is over")
        live = cuts | waits
        self.always(if_(live & covered, dut.fencing), "until all is answered")
        again = inside["again"]
        self.lemma(if_(live & covered, (epoch != dut.epoch) | again), "it waits for the epoch")
        self.lemma(if_(live, (epoch == dut.epoch) | dut.fencing), "or a fence waits for it")
        self.lemma(if_(again, dut.fencing), "one fence after the other")
        m.d.comb += Cover(self.past(waits & ~cuts & covered & dut.fencing) & ~waits, "answered")


class Issued(Harness):
    """Proves that a piece and its bursts report the epoch in which the piece was taken.

    From ``taken`` to ``done``, which comes once, a piece is inside. The bursts that are issued
    while it is cut are reported with its epoch, and go with it to the block that places their
    beats. Fewer than 64 pieces are inside, and none is lost.

    Any one piece is followed. Assumes nothing. By induction of depth 3.
    """

    DEPTH = 3

    def rules(self, m):
        dut, inside = self.dut, self.inside
        jobs, steps = inside.component("jobs"), inside.component("sequencer")
        count, waiting = Signal(8), items(m, jobs)
        counted(m, count, dut.taken, dut.done.valid)
        self.always(if_(dut.done.valid, count != 0), "of a piece that was taken")
        self.always(count < 4 * QUEUE, "not too many")
        under, taken = inside["valid"], jobs.o.valid & jobs.o.ready
        age, waits, cuts = Signal(2), Signal(), Signal()
        ahead, epoch, mark = Signal(8), Signal(), self.any(1, name="mark")
        followed = age.any() | waits | cuts
        begins = dut.taken & mark & ~followed
        ends = steps.valid & steps.last
        m.d.sync += age.eq(Cat(begins, age))
        with m.If(begins):
            m.d.sync += epoch.eq(dut.epoch)
        with m.If(age[-1]):  # it passes an empty queue by
            by = taken & (waiting == 0)
            m.d.sync += [waits.eq(~by), cuts.eq(by), ahead.eq(waiting - taken)]
        with m.If(waits & taken):
            m.d.sync += [ahead.eq(ahead - 1), waits.eq(ahead != 0), cuts.eq(ahead == 0)]
        with m.If(cuts & ends):
            m.d.sync += cuts.eq(0)
        self.always(dut.done.valid == ends, "a piece is done with its last step")
        self.always(if_(cuts & dut.issued.valid, dut.issued.epoch == epoch), "its bursts")
        self.always(if_(cuts & ends, dut.done.epoch == epoch), "it is done")
        self.always(dut.burst.valid == self.past(dut.issued.valid, 2), "each goes to the placer")
        same = dut.burst.payload.burst.epoch == self.past(dut.issued.epoch, 2)
        self.always(if_(dut.burst.valid, same), "with its epoch")
        self.always(if_(dut.issued.valid, steps.busy), "while a piece is cut")
        m.d.comb += Cover(self.past(cuts & dut.issued.valid & epoch, 2) & ~cuts, "it is done")

        body = [steps.body.shape()(inside[name]) for name in ("body1", "body2")]
        for k in range(2):
            self.lemma(if_(age[k], under[k] & (body[k].epoch == epoch)), "it is prepared")
        first = stored(self, m, "jobs.", waiting, jobs.depth)
        slot = Signal.like(first)
        m.d.comb += slot.eq(first + ahead)
        row = inside.row("jobs.storage", slot)
        self.lemma(if_(waits, (ahead < waiting) & (row.body.epoch == epoch)), "it waits")
        self.lemma(if_(cuts, steps.busy & (steps.body.epoch == epoch)), "it is cut")
        self.lemma((age != 3) & (age.any() + waits + cuts <= 1), "it is in one place")
        self.lemma(count == under[0] + under[1] + waiting + steps.busy, "where they are")
        goes, ready, half = inside["sequencer.goes"], inside["sequencer.ready"], jobs.depth // 2
        self.lemma(ready == (~steps.busy | (goes & steps.last)), "the next one is taken")
        self.lemma(if_(inside["room"], waiting <= half), "half of the queue was free")
        self.lemma(waiting + under[0] + under[1] <= half + 3, "room for all of them")


class Owned(Harness):
    """Proves that a burst is issued with an ID that no other burst has.

    A burst has its ID until this returns. Assumes that only such an ID returns. By induction of
    depth 1.
    """

    def rules(self, m):
        dut, inside = self.dut, self.inside
        issues, number, back = inside["issues"], inside["number"], dut.returned
        owned = Signal(dut.shape.reads)
        self.assume(if_(back.valid, owned.bit_select(back.payload, 1)))
        with m.If(issues):
            m.d.sync += owned.bit_select(number, 1).eq(1)
        with m.If(back.valid):
            m.d.sync += owned.bit_select(back.payload, 1).eq(0)
        self.always(if_(issues, ~owned.bit_select(number, 1)), "an ID of its own")
        m.d.comb += Cover(issues & owned.any() & inside["old"], "an ID is used again")

        # An ID is owned, or waits, or was never used.
        free, fresh, old = inside.component("free"), inside["fresh"], inside["old"]
        count = items(m, free)
        first = stored(self, m, "free.", count, free.depth)
        for each in range(dut.shape.reads):
            places = owned[each] + (~old & (fresh <= each))
            for slot in range(free.depth):
                row = Const(slot, len(first))
                waits = ((row - first)[:len(first)] < count) & (
                    inside.row("free.storage", row) == each)
                places = places + waits
            self.lemma(places == 1, "in one place")
        used, limit = inside["credits.used"], dut.shape.reads
        total = sum((owned[each] for each in range(limit)), C(0))
        self.lemma(used == total + inside["returned_0"], "each has a credit")
        self.lemma(used <= limit, "no more than there are")
        self.lemma(inside["credits.free"] == (used != limit), "one is free")
        self.lemma(inside["credits.one"] == (used == limit - 1), "exactly one is free")
        self.lemma(if_(inside["sequencer.goes"], used != limit), "an ID for each burst")


class Returned(Harness):
    """Proves that each burst is answered once, with its epoch, ``ANSWERED`` cycles after its beats.

    Any one ID is followed. Assumes that a burst begins two cycles before its first beat, and that
    none begins with an ID whose last beat has not come. By induction of depth ``DEPTH``.
    """

    DEPTH = BeatPlacer.ANSWERED + 2

    def rules(self, m):
        dut, late = self.dut, self.dut.ANSWERED
        number = self.any(dut.r.payload.id.shape(), name="number", constant=True)
        begins = dut.burst.valid & (dut.burst.payload.id == number)
        beats = dut.r.valid & (dut.r.payload.id == number)
        ends = beats & dut.r.payload.last
        open_, epoch = Signal(), Signal()
        with m.If(begins):
            m.d.sync += [open_.eq(1), epoch.eq(dut.burst.payload.burst.epoch)]
        with m.Elif(ends):
            m.d.sync += open_.eq(0)
        self.assume(if_(begins, ~open_))
        self.assume(if_(beats, open_ & self.past(open_)))
        came = self.past(dut.r.valid & dut.r.payload.last, late)
        self.always(dut.answered.valid == came, "each is answered once")
        answer = dut.answered.payload.epoch
        due = self.past(ends, late)
        self.always(if_(due, answer == self.past(epoch, late, name="then")), "with its epoch")
        m.d.comb += Cover(due & answer, "it is answered")
        row = self.inside.row("bursts", number)
        self.lemma(if_(open_, row.epoch == epoch), "its epoch is kept")
