"""Proves that no FPDU goes beyond the credit of its stream."""

from amaranth import *
from amaranth.asserts import AnySeq
from amaranth.hdl import Cover
from amaranth.lib import data

from ..lib.blockram import ForwardedTable
from ..lib.stream import Store, delayed
from ..mpa.length import FpduLength
from ..send.segmenter import SegmentTag
from ..spec.ddp import TAGGED_HEADER, UNTAGGED_HEADER
from .harness import Harness, if_

__all__ = ["Anything", "Costs", "Counted", "Looked", "Row", "Within", "assume_mulpdus"]

#: Words of an FPDU between two markers (RFC 5044 section 4.3).
BETWEEN = 127


class Anything(ForwardedTable):
    """Replaces a ForwardedTable by one that shows anything."""

    def elaborate(self, platform):
        m = Module()
        for shown in self.data:
            m.d.comb += Value.cast(shown).eq(AnySeq(len(Value.cast(shown))))
        return m


class Row(ForwardedTable):
    """Replaces a ForwardedTable by its row ``followed``; all other rows may be anything."""

    def __init__(self, shape, depth, *, reads=1):
        super().__init__(shape, depth, reads=reads)
        self.followed, self.row = Signal(range(depth)), Signal(shape)

    def elaborate(self, platform):
        m = Module()
        write, latest = self.write, Signal(self.shape)
        mine = write.valid & (write.payload.address == self.followed)
        m.d.comb += Value.cast(latest).eq(
            Mux(mine, Value.cast(write.payload.data), Value.cast(self.row)))
        m.d.sync += self.row.eq(latest)
        before = Value.cast(delayed(m, 2, latest, "before"))
        for k, (address, shown) in enumerate(zip(self.address, self.data, strict=True)):
            asked = delayed(m, 2, address == self.followed, f"asked_{k}")
            m.d.comb += Value.cast(shown).eq(Mux(asked, before, AnySeq(len(before))))
        return m


class Looked(Store):
    """Replaces a Store by one of its items: that which is pushed while ``picks``, if any.

    All other items may be anything, and come in any order and number. ``mine``: the item is at the
    output.
    """

    def __init__(self, shape, *, depth):
        super().__init__(shape, depth=depth)
        self.picks, self.mine, self.kept = Signal(), Signal(), Signal()
        self.item = Signal(shape)

    def elaborate(self, platform):
        m = Module()
        shows, turn, holds, was, more = (Signal() for _ in range(5))
        other, before = (Signal(self.shape, name=name) for name in ("other", "before"))
        m.d.comb += [
            shows.eq(AnySeq(1)),
            turn.eq(AnySeq(1)),
            Value.cast(other).eq(Mux(
                holds, Value.cast(before), AnySeq(len(Value.cast(before))))),
            self.mine.eq(Mux(holds, was, turn & self.kept)),
            self.o.valid.eq(holds | more | shows),
            self.level.eq(AnySeq(len(self.level))),
            Value.cast(self.o.payload).eq(
                Mux(self.mine, Value.cast(self.item), Value.cast(other))),
        ]
        m.d.sync += [
            holds.eq(self.o.valid & ~self.o.ready),
            was.eq(self.mine),
            more.eq(self.i.valid | self.level[1:].any()),
            before.eq(other),
        ]
        with m.If(self.i.valid & self.picks):
            m.d.sync += [self.kept.eq(1), self.item.eq(self.i.payload)]
        with m.Elif(self.mine & self.o.valid & self.o.ready):
            m.d.sync += self.kept.eq(0)
        return m


class Costs(FpduLength):
    """Replaces FpduLength: an FPDU has ``cost`` words, and leaves the stream at ``next``."""

    def __init__(self):
        super().__init__()
        self.cost, self.next = Signal(15), Signal(7)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.words.eq(self.cost), self.then.eq(self.next)]
        return m


def assume_mulpdus(harness):
    """Assumes that the Cutter's table of MULPDUs says which of them have room for an octet.

    Returns the outputs of its read ports.
    """
    shown = harness.inside.component("mulpdu_table").data
    for mulpdu in shown:
        harness.assume(mulpdu.tagged == (mulpdu.octets > TAGGED_HEADER))
        harness.assume(mulpdu.untagged == (mulpdu.octets > UNTAGGED_HEADER))
    return shown


class Counted(Harness):
    """Proves that FpduLength counts the words of an FPDU, and that ``enough`` is enough for them.

    An FPDU has two octets of length, the ULPDU, PAD and four octets of CRC, and with markers one
    more word after each 127 words (RFC 5044 section 4). ``enough`` has up to three words too many
    with markers, and none without. Assumes that the position is 1 to 127, and a ULPDU of at most
    65,535 octets. By induction of depth 3.
    """

    DEPTH = 3

    def __init__(self, component, enough, *, lemmas=True):
        super().__init__(component, lemmas=lemmas)
        self.enough = enough

    def rules(self, m):
        dut = self.dut
        octets, after, markers = self.past(dut.octets, 2), dut.after, dut.markers
        known = self.past(Const(1), 2)
        self.assume(after != 0)
        self.assume(dut.octets < 1 << 16)
        words, marks, then = Signal(15), self.any(8, name="marks"), Signal(8)
        full, spare = after + words - 1, Signal(17)
        # How often 127 goes into the words.
        self.assume((marks * BETWEEN <= full) & (full < (marks + 1) * BETWEEN))
        total = dut.words + dut.one_more
        most = self.enough(octets, markers)
        m.d.comb += [
            words.eq((octets + 2 + 3 + 4) >> 2),
            then.eq(after + words - marks * BETWEEN),
            spare.eq(most[0] + most[1] - total),
        ]
        self.always(if_(known, total == words + Mux(markers, marks, 0)), "words")
        self.always(if_(known & markers, dut.then == then), "the position after it")
        self.always(if_(known, spare <= Mux(markers, 3, 0)), "enough, and not much more")
        m.d.comb += [Cover(known & markers & (spare == extra)) for extra in (1, 3)]


class Within(Harness):
    """Proves that no octet of a stream with a limit leaves at or after the limit.

    Any one stream over MPA is followed. Its position begins with its settings, and each segment
    that the Cutter cuts for it adds the words of an FPDU, which may be any number up to ``enough``:
    that is the theorem of :class:`Counted`. Segments that are sent again have their old positions,
    and do not count. The account that is kept for later turns has the position, too.

    Assumes that the host opens a stream while it has no turn, raises its limit and never lowers it,
    and that the limit is less than 2**29 octets from the position; that the table of MULPDUs says
    which of them have room for an octet; that the entries at the input are in turns, in the order
    of ``look``, with at least a header of octets left; and that a turn of a stream is looked up
    ``AGE`` cycles after the result of its former one or later, unless it is for a segment that is
    sent again. :class:`Row`, :class:`Anything` and :class:`Looked` replace tables and a queue, as
    theorems of :mod:`~.blockram` and :mod:`~.streams` allow. By induction of depth ``DEPTH``.
    """

    DEPTH = 7
    AGE = 4

    def __init__(self, component, enough, *, lemmas=True):
        super().__init__(component, lemmas=lemmas)
        self.enough = enough

    def rules(self, m):
        dut = self.dut
        self.stream = self.any(1, name="stream", constant=True)
        self.accounts, self.turns, self.positions, self.limits = (
            self.inside.component(name) for name in (
                "accounts", "accounts.turns", "accounts.positions", "accounts.limits_"))
        for table in (self.positions, self.limits, self.inside.component("accounts.closed")):
            m.d.comb += table.followed.eq(self.stream)
        self.polite(dut.i)
        self.polite(dut.opens)
        assume_mulpdus(self)
        self._turns(m)
        self._position(m)
        ends = dut.results.valid & dut.results.payload.stopped
        m.d.comb += [
            Cover(self.sent & self.limited & self.markers & (self.most == self.then)),
            Cover(self.sent & self.limited & self.past(self.sent, 3)),
            Cover(ends & self.limited & (self.most != self.sequence)),
        ]
        self._lemmas(m)

    def _turns(self, m):
        """Follows the turns of the stream."""
        dut, turns, message = self.dut, self.turns, self.dut.i.payload
        within, inner = Signal(), Signal()
        mine = (message.stream == self.stream) & ~message.turn.repeat
        first, takes = message.turn.first, dut.i.valid & dut.i.ready
        self.assume(if_(dut.i.valid, first == ~within))
        self.assume(if_(dut.i.valid & message.turn.repeat, first & message.last))
        self.assume(if_(dut.i.valid & within, (mine == inner) & ~message.turn.repeat))
        self.assume(if_(takes & first, turns.mine == mine))
        self.assume(if_(
            takes & first & ~message.turn.repeat, turns.o.payload.stream == message.stream))
        self.assume(turns.o.payload.stream < dut.streams)
        self.assume(if_(dut.i.valid, self._has_header(message)))
        with m.If(takes):
            m.d.sync += [within.eq(~message.last), inner.eq(mine)]
        self.within, self.inner = within, inner

        # A turn is under way from its look-up to its result.
        normal, turn, age = self.any(1, name="normal"), Signal(), Signal(range(8))
        looks = dut.look.valid & (dut.look.payload == self.stream) & normal
        ends = dut.results.valid & (dut.results.payload.stream == self.stream)
        opens = dut.opens.valid & (dut.opens.payload.stream == self.stream)
        self.assume(if_(looks | opens, ~turn & (age == self.AGE)))
        self.assume(~(looks & opens))
        m.d.sync += turn.eq(looks | (turn & ~ends))
        m.d.sync += age.eq(Mux(turn | looks, 0, age + (age != self.AGE)))
        m.d.comb += turns.picks.eq(self.past(looks, 3))
        self.turn, self.age, self.looks, self.ends = turn, age, looks, ends
        self.opens, self.waits = opens & dut.opens.ready, opens & ~dut.opens.ready

    @staticmethod
    def _has_header(message):
        """Returns whether the octets that are left include those of a header."""
        header = Mux(message.tagged, TAGGED_HEADER, UNTAGGED_HEADER)
        return message.refused | (message.left >= header)

    def _position(self, m):
        """Follows the position and the limit of the stream."""
        dut, opens, limit = self.dut, self.dut.opens.payload, self.dut.limits
        sequence, most, then = (Signal(32, name=name) for name in ("sequence", "most", "then"))
        limited, markers, sent, after = Signal(), Signal(), Signal(), Signal(7)
        segment, share = dut.segments.payload, dut.shares.payload
        again = data.View(SegmentTag(), segment.tag[:SegmentTag().size]).repeat
        length, cost = self.inside.component("accounts.size"), self.any(15, name="cost")
        position = self.any(7, name="position")
        plain, marked = self.enough(segment.lead + segment.length, markers)
        self.assume(if_(sent, cost <= plain + marked))
        m.d.comb += [
            length.cost.eq(self.past(cost, 2)),
            length.next.eq(self.past(position, 2)),
            sent.eq(dut.segments.valid & ~share.skip & ~share.refused
                    & (share.stream == self.stream) & ~again),
            then.eq(sequence + Mux(sent, cost << 2, 0)),
        ]
        m.d.sync += sequence.eq(then)
        with m.If(sent):
            m.d.sync += after.eq(position)
        raised = limit.valid & (limit.payload.stream == self.stream)
        with m.If(raised):
            m.d.sync += most.eq(limit.payload.limit)
        with m.If(self.opens):
            m.d.sync += [
                sequence.eq(opens.sequence), after.eq(opens.after),
                limited.eq(opens.limited), markers.eq(opens.markers)]
        self.assume(if_(self.opens | self.waits, ~opens.sctp))
        self.assume(if_(raised, (limit.payload.limit - most)[:32] < 1 << 29))
        self.assume((most - sequence + (1 << 29))[:32] < 1 << 30)
        self.always(if_(sent & limited, ~(most - then)[31]), "within the limit")
        self.sequence, self.after, self.most, self.then = sequence, after, most, then
        self.limited, self.markers, self.sent = limited, markers, sent

    def _lemmas(self, m):
        """States where the turn is, and that account and Cutter have its numbers."""
        inside, turns, stream = self.inside, self.turns, self.stream
        now = self.dut.i.payload.shape()(inside["now"])
        fresh, credit = inside["fresh"], inside["credit"]
        begins, begun, ran = self.accounts.begins, Signal(), Signal()
        foreign = Signal(init=1)  # a turn of the stream that is not followed
        head = turns.o.payload
        m.d.sync += begun.eq((begins & turns.mine) | (begun & ~self.ends))
        with m.If(begins):
            m.d.sync += [ran.eq(turns.mine), foreign.eq(~turns.mine & (head.stream == stream))]

        def holds(position, sequence, after):
            return ((position.sequence == sequence) & (position.after == after)
                    & (position.limited == self.limited) & (position.markers == self.markers)
                    & ~position.sctp)

        def enough(words, sequence):
            left = (self.most - sequence)[:32]
            return ~self.limited | (words == 0) | (~left[31] & (words <= left[2:]))

        # A turn that was looked up is on its way, waits, or has begun.
        looked = Cat(self.past(self.looks, k) for k in (1, 2, 3))
        self.lemma(sum(looked) + turns.kept + begun == self.turn, "where the turn is")
        self.lemma(self.age <= self.AGE, "age")
        self.lemma(if_(turns.mine & turns.o.valid, turns.kept), "it waits")
        self.lemma(self.limits.row == self.most, "the limit")
        row, item = self.positions.row, turns.item
        self.lemma(if_(~begun & (self.turn | (self.age >= 2)) & ~self.past(self.waits),
                       holds(row, self.sequence, self.after)), "the position")
        self.lemma(if_(turns.kept, holds(item.position, self.sequence, self.after)
                       & (item.stream == stream)), "that of the turn")
        self.lemma(if_(turns.kept, enough(item.words, self.sequence)), "its credit")
        self.lemma(if_(turns.kept & item.plenty, item.words[15:].any()), "plenty")
        # The turn that is being cut.
        mine = (now.stream == stream) & ~now.turn.repeat
        starts = fresh[0] & now.turn.first
        valid = inside["valid"]
        self.lemma(if_(valid, self._has_header(now)), "its header")
        offered = inside["offered"]
        self.lemma(begins == starts, "a turn begins")
        self.lemma(if_(offered, self.dut.i.valid & ~fresh[0]), "the message that is offered")
        self.lemma(if_(offered & self.dut.i.payload.turn.first, turns.o.valid), "its turn")
        self.lemma(if_(starts, turns.o.valid & (turns.mine == mine)), "its own")
        self.lemma(if_(fresh[0] | inside["tests"] | inside["cuts"], valid), "a message")
        self.lemma(if_(valid & ~starts, (ran == mine) & (begun | ~mine)), "it is cut")
        skips = inside["cuts"] & inside["skips"]
        self.lemma(inside["cut"] == (inside["cuts"] & ~skips), "cut or skipped")
        self.lemma(if_(self.within, Mux(starts, turns.mine, ran) == self.inner), "more")
        self.lemma(if_(self.within & ~starts, begun | ~ran), "it has more")
        self.lemma(if_(valid, self.within == ~now.last), "more of it")
        self.lemma(if_(self.sent, begun & ran), "a segment of it")
        self.lemma(if_(begun & ran, enough(credit, self.then) & (inside["limited"] == self.limited)
                       & (inside["markers"] == self.markers)), "the credit that is left")
        self.lemma(~inside["sctp"], "over MPA")
        self.lemma(if_(foreign & ~starts, ~self.within & (now.turn.repeat | ~valid)), "again")
        # The account, some cycles later.
        running = head.shape()(inside["accounts.running"])
        late, other = Signal(), Signal(init=1)
        kind = Cat(turns.mine, ~turns.mine & (head.stream == stream))
        latest = [self.past(begins, k) for k in (1, 2, 3)]
        kinds = [self.past(kind, k) for k in (1, 2, 3)]
        with m.If(latest[-1]):
            m.d.sync += Cat(late, other).eq(kinds[-1])
        follows = Cat(late, other)
        for began, its in zip(reversed(latest), reversed(kinds), strict=True):
            follows = Mux(began, its, follows)
        self.lemma(follows == Cat(ran, foreign), "it follows the cutter")
        there = late & ~Cat(latest).any() & Mux(self.turn, begun, self.age < 2)
        self.lemma(if_(there, holds(
            running.position, self.past(self.sequence, 2), self.past(self.after, 2))
            & (running.stream == stream)), "the account")
        self.lemma(running.stream < self.dut.streams, "a stream")
        self.lemma(if_(running.stream == stream, late | other), "whose")
