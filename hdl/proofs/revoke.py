"""Proves that once a revocation reads done, no segment that saw the entry is still to be written.

The proof has three parts. No look-up finds an entry after its row was written
(:class:`~.tagged.Inbounds`: the entry is the one at the time of the look-up). A segment that was
looked up is soon counted in ``issued``, :class:`Counted`. The fence waits for all that is counted
by then, :class:`Fenced`. And the sweep omits none of the stream's entries, :class:`Swept`.
"""

from amaranth import *
from amaranth.hdl import Cover

from ..control import SETTLE
from ..spec.config import RnicConfig
from .harness import Harness, if_

__all__ = ["CONFIG", "Counted", "Fenced", "Swept"]

CONFIG = RnicConfig(width=64, buffer_octets=4096, outstanding=8, stags=16, streams=2)


class Counted(Harness):
    """Proves that a segment to be placed is counted in ``issued`` within ``SETTLE`` cycles.

    The cycles count from when it is taken for the checks, which is before any table is looked up
    for it. Assumes nothing. By induction of depth 4, the registers from ``under`` to ``issued``.
    """

    DEPTH = 4

    def rules(self, m):
        dut, inside = self.dut, self.inside
        takes = Signal(SETTLE)
        m.d.sync += takes.eq(Cat(inside["merge.pending.take"], takes))
        counted = Signal(16)
        m.d.comb += counted.eq(dut.issued - self.past(dut.issued))
        self.always(if_(counted != 0, takes.any()), "it was taken not long ago")
        self.always(counted <= 1, "one at a time")
        m.d.comb += Cover(counted == 1, "counted")
        under = inside["merge.under"]
        self.lemma(under == takes[: len(under)], "what is under way")


class Fenced(Harness):
    """Proves that when the fence is no longer busy, all placements before it are retired.

    These are the placements whose entry was looked up before the fence's start or in the same
    cycle; retired means that all responses have arrived.

    The blocks between look-up and fence are modelled: any one placement is looked up; it is counted
    in ``issued`` in any of the next ``settle`` cycles; it is retired when ``retired`` reaches that
    count. Assumes that both counters rise by at most one per cycle, that ``retired`` does not
    overtake ``issued``, and that they are less than 2**15 apart. By induction of depth 1.
    """

    def rules(self, m):
        dut, inside = self.dut, self.inside
        settle = dut.settle
        issues = self.any(1, name="issues")
        retires = self.any(1, name="retires")
        issued, retired = Signal(16), Signal(16)
        self.drive(dut.issued, issued)
        self.drive(dut.retired, retired)
        m.d.sync += [issued.eq(issued + issues), retired.eq(retired + retires)]
        waiting = Signal(16)
        m.d.comb += waiting.eq(issued - retired)
        self.assume(waiting < (1 << 15) - 2)
        self.assume(if_(retires, waiting != 0))

        # The placement that is followed, and its state.
        looks, counts = self.any(1, name="looks"), self.any(1, name="counts")
        flies, counted, covered = Signal(), Signal(), Signal()
        age, since = Signal(range(settle + 2)), Signal(range(settle + 2))
        number, left = Signal(16), Signal(16)
        m.d.comb += left.eq(number - retired)
        with m.If(~flies & ~counted):
            m.d.sync += [flies.eq(looks), age.eq(0), covered.eq(dut.start)]
        with m.Else():
            m.d.sync += covered.eq(covered | dut.start)
        with m.If(flies):
            m.d.sync += age.eq(age + 1)
            with m.If(counts & issues):
                m.d.sync += [flies.eq(0), counted.eq(1), number.eq(issued + 1)]
        # It is followed until it is retired.
        with m.If(counted & (left == 1) & retires):
            m.d.sync += counted.eq(0)
        self.assume(if_(flies & (age == settle - 1), counts & issues))
        with m.If(dut.start):
            m.d.sync += since.eq(0)
        with m.Elif(since <= settle):
            m.d.sync += since.eq(since + 1)

        self.always(if_((flies | counted) & covered, dut.busy), "busy until it is retired")
        m.d.comb += Cover(~counted & self.past(counted & covered & (left == 1)), "retired")

        settles, compares = inside["settles"], inside["compares"]
        drains, behind = inside["drains"], inside["behind"]
        target = inside["target"]
        reach = Signal(16)
        m.d.comb += reach.eq(target - number)
        self.lemma(~(flies & counted), "one of them")
        self.lemma(if_(flies, age < settle), "it flies not long")
        self.lemma(if_(counted, (left != 0) & (left <= waiting)), "it is not yet retired")
        self.lemma(if_(flies & covered, settles & (since <= age)), "while it flies, it settles")
        self.lemma(if_(settles, inside["left"] == settle - since), "so long")
        self.lemma(if_(settles, since <= settle), "no longer")
        waits = counted & covered & ~settles
        self.lemma(if_(waits, compares | drains), "then it waits")
        self.lemma(if_(waits, reach < 1 << 15), "for all that was counted")
        self.lemma(if_(waits & ~compares, (target - retired)[:16] < 1 << 15), "so many")
        self.lemma(if_(waits, (issued - target)[:16] <= waiting), "no more than there are")
        self.lemma(if_(waits & ~compares, behind), "which is known")


class Swept(Harness):
    """Proves that the sweep, before it ends, revokes each entry bound to the stream, and no other.

    Any one entry is followed; the others may be anything. Assumes that it is constant, and that no
    sweep is started while one is busy. Bounded: for one sweep from its start to its end, after
    which the block is in the same state as before.
    """

    DEPTH = 27

    def rules(self, m):
        dut = self.dut
        row = self.any(dut.index.shape(), name="row", constant=True)
        valid, bound = (self.any(1, name=name, constant=True) for name in ("live", "bound"))
        owner = self.any(16, name="owner", constant=True)
        asked = self.past(dut.index == row, 2)
        entry = dut.entry
        for field, value in (("valid", valid), ("bound", bound), ("owner", owner)):
            self.assume(if_(asked, entry[field] == value))
        self.assume(if_(dut.start, ~dut.busy))
        stream, runs, revoked = Signal(16), Signal(), Signal()
        found = dut.revoke.valid & (dut.revoke.payload == row)
        with m.If(dut.start):
            m.d.sync += [stream.eq(dut.stream), runs.eq(1), revoked.eq(0)]
        with m.Elif(found):
            m.d.sync += revoked.eq(1)
        named = valid & bound & (owner == stream)
        ended = runs & ~dut.busy
        with m.If(ended & ~dut.start):
            m.d.sync += runs.eq(0)
        self.always(if_(ended & named, revoked), "it is revoked")
        self.always(if_(found, named), "and no other")
        m.d.comb += Cover(ended & revoked, "a sweep")
