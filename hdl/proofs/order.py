"""Proves that the segments of a stream are cut in order, and leave in that order."""

from amaranth import *
from amaranth.asserts import AnySeq
from amaranth.hdl import Cover
from amaranth.lib import data
from amaranth.lib.wiring import Out

from ..lib.stream import delayed
from ..send.credit import CreditAccounts
from ..send.segmenter import SegmentTag
from ..spec.ddp import TAGGED_HEADER, UNTAGGED_HEADER
from .credit import assume_mulpdus
from .harness import Harness, if_

__all__ = ["AnyAccounts", "InSequence", "InTurn"]


class AnyAccounts(CreditAccounts):
    """Replaces CreditAccounts: its outputs are free, so that any segment may lack credit."""

    def elaborate(self, platform):
        m = Module()
        for _, member, port in self.signature.flatten(self):
            value = Value.cast(port)
            if member.flow == Out and not isinstance(value, Const):
                m.d.comb += value.eq(AnySeq(len(value)))
        return m


class InTurn(Harness):
    """Proves that the segments of a message are its octets, each once and in order.

    Of each message that the Cutter takes, the first segment begins where the message continues, and
    each other one where the segment before it ended (RFC 5041 section 5.2). None is longer than the
    MULPDU that was looked up for it. The segment with the Last flag, and no other, ends the
    message. After it, or after a segment that is refused or stops, the message has no further one.
    Untagged messages of any one queue that were cut to their end have consecutive MSNs. A segment
    that is sent again begins where it is asked to, and changes no MSN.

    The result of a turn has the entries of the messages that were cut to their end, and the octets
    that were cut of the message after these.

    Assumes that messages at the input are in turns, a partial one last, with at least a header of
    octets left; that the table of MULPDUs says which of them have room for an octet; and that the
    host writes no MSN. :class:`AnyAccounts` replaces the credit, and
    :class:`~.credit.Row` and :class:`~.credit.Anything` the tables. By induction of depth
    ``DEPTH``.
    """

    DEPTH = 4

    def rules(self, m):
        dut, message = self.dut, self.dut.i.payload
        self.polite(dut.i)
        takes = dut.i.valid & dut.i.ready
        header = Mux(message.tagged, TAGGED_HEADER, UNTAGGED_HEADER)
        self.assume(if_(dut.i.valid, message.refused | (message.left >= header)))
        self.assume(if_(dut.i.valid & message.partial, message.last))
        within = Signal()
        self.assume(if_(dut.i.valid, message.turn.first == ~within))
        with m.If(takes):
            m.d.sync += within.eq(~message.last)
        most, mulpdus = Signal(16), assume_mulpdus(self)
        with m.If(~self.inside["tests"]):
            m.d.sync += most.eq(
                Mux(self.inside["recent"], mulpdus[1].octets, mulpdus[0].octets))
        # A segment is there one cycle after it is cut, and so is its message here.
        came, taken = self.past(takes), Signal(message.shape())
        m.d.sync += taken.eq(message)
        now, at, left, more = Signal(message.shape()), Signal(64), Signal(33), Signal()
        segment, share = dut.segments.payload, dut.shares.payload
        tag = data.View(SegmentTag(), segment.tag[:SegmentTag().size])
        cut = dut.segments.valid
        whole = cut & ~share.refused
        with m.If(came):
            m.d.sync += [
                now.eq(taken), at.eq(taken.at), more.eq(~taken.partial),
                left.eq(taken.left - Mux(taken.tagged, TAGGED_HEADER, UNTAGGED_HEADER)),
            ]
        with m.Elif(cut):
            m.d.sync += [
                at.eq(at + segment.length), left.eq(left - segment.length),
                more.eq(whole & ~tag.ends),
            ]

        last, number, offset = self._header(now, segment.header)
        again = now.turn.repeat
        self.always(if_(cut, more), "none after the last one")
        self.always(if_(cut, (tag.stream == now.stream) & (tag.repeat == again)), "its stream")
        self.always(if_(cut, segment.lead == Mux(
            now.tagged, TAGGED_HEADER, UNTAGGED_HEADER)), "its header")
        self.always(if_(whole, offset == Mux(now.tagged, at, at[:32])), "the next octets")
        self.always(if_(whole & ~again, segment.length <= left), "octets of the message")
        self.always(if_(whole & ~again, tag.ends == (segment.length == left)), "its last octet")
        self.always(if_(whole & ~again, segment.lead + segment.length <= self.past(most)), "MULPDU")
        self.always(if_(whole & ~again, segment.length.any() | ~left.any()), "an octet at least")
        self.always(if_(whole, last == tag.ends), "the Last flag")
        self._numbers(m, now, whole, tag, number)
        self._result(m, came, taken, now, tag, within)
        self._lemmas(came, now, at, left, more, tag)
        m.d.comb += [
            Cover(whole & tag.ends & self.past(whole & ~tag.ends, 2)),
            Cover(whole & tag.ends & now.tagged & now.at[:32].all() & (at[32:] != now.at[32:])),
            Cover(cut & tag.stops & (at != now.at)),
            Cover(whole & again & segment.length.any()),
        ]

    def _result(self, m, came, taken, now, tag, within):
        """Follows the turn: entries that have ended, and octets of the message after them."""
        inside, cut, length = self.inside, self.dut.segments.valid, self.dut.segments.payload.length
        ended, sent, halted, kept = Signal(8), Signal(32), Signal(), Signal(32)
        # With the segment of this cycle.
        ended_now, sent_now, halted_now, kept_now = (
            Signal.like(signal) for signal in (ended, sent, halted, kept))
        m.d.comb += [
            ended_now.eq(ended + Mux(cut & tag.ends, now.entries, 0)),
            sent_now.eq(sent + Mux(cut, length, 0)),
            halted_now.eq(halted | (cut & tag.stops)),
            kept_now.eq(Mux(cut & tag.stops & ~halted, sent, kept)),
        ]
        m.d.sync += [
            ended.eq(ended_now), halted.eq(halted_now), kept.eq(kept_now),
            sent.eq(Mux(came, taken.done, sent_now)),
        ]
        begins = came & taken.turn.first
        with m.If(begins):
            m.d.sync += [ended.eq(0), halted.eq(0), kept.eq(Mux(taken.partial, taken.done, 0))]
        result = self.dut.results
        self.always(if_(result.valid, result.payload.entries == self.past(ended_now)), "ended")
        self.always(if_(result.valid, result.payload.done == self.past(kept_now)), "and stopped")
        m.d.comb += Cover(result.valid & result.payload.done.any() & result.payload.entries.any())
        self.lemma(begins | (inside["entries"] == ended_now), "the entries")
        self.lemma(begins | (inside["stopped"] == halted_now), "it has stopped")
        self.lemma(begins | ~halted_now | (inside["done"] == kept_now), "where it has stopped")
        self.lemma(if_(inside["valid"] & ~came, inside["sent"] == sent_now), "what was sent")
        closed = Signal(init=1)  # the message is the last one of its turn
        with m.If(came):
            m.d.sync += closed.eq(taken.last)
        self.lemma(within == ~Mux(came, taken.last, closed), "the turn")
        self.lemma(if_(came, taken.turn.first == closed), "the next one")
        self.lemma(if_(came & taken.partial, taken.last), "a part of a message is the last one")
        self.lemma(halted_now | (kept_now == 0) | (now.partial & closed), "it has not stopped")

    def _lemmas(self, came, now, at, left, more, tag):
        """States that the Cutter has the message, and the numbers of its next segment."""
        inside, segment = self.inside, self.dut.segments.payload
        cuts, tests, valid, carry = (
            inside[name] for name in ("cuts", "tests", "valid", "carry"))
        mine = self.dut.i.payload.shape()(inside["now"])
        cut, works = self.dut.segments.valid, cuts | tests
        header = Mux(mine.tagged, TAGGED_HEADER, UNTAGGED_HEADER)
        length = Mux(cut, segment.length, 0)
        room, rest, over, bad = (inside[name] for name in ("room", "rest", "over", "bad"))
        there = valid & ~came
        self.lemma(~(cuts & tests), "one step at a time")
        self.lemma(if_(works, there & ~mine.partial), "of a message")
        self.lemma(if_(valid, mine.refused | (mine.left >= header)), "its header is left")
        same = ("stream", "tagged", "qn", "turn", "entries", "partial")
        self.lemma(if_(there, Cat(Value.cast(mine[name]) for name in same)
                       == Cat(Value.cast(now[name]) for name in same)), "the message")
        self.lemma(if_(there & ~mine.partial, more & ~(cut & (
            self.dut.shares.payload.refused | tag.ends))), "it has more")
        self.lemma(if_(there, (at + length)[:32] == mine.at[:32]), "the next octet")
        self.lemma(if_(there & mine.tagged, (at + length)[32:64] == (mine.at[32:] + carry)[:32]),
                   "its upper half")
        self.lemma(if_(there, (left - length)[:33] == (mine.left - header)[:33]), "what is left")
        self.lemma(if_(works, (over == mine.left - (room + header)[:len(room)] - 1)
                       & (rest == (mine.left - header)[:len(rest)])), "what fits")
        self.lemma(if_(works, inside["ends"] == (over[-1] | bad)), "the last one")
        self.lemma(if_(works & ~bad & ~mine.turn.repeat, room.any() & (room < 1 << 16)), "room")
        self.lemma(if_(works & ~bad, ~mine.refused), "a good one")
        self.lemma(inside["cut"] == (cuts & ~inside["skips"]), "octets are cut or skipped")
        self.lemma(inside["passes"] == (came & mine.partial), "a partial message passes")
        self.lemma(inside["first"] == (came & mine.turn.first), "a turn begins")
        self.lemma(if_(inside["offered"], self.dut.i.valid), "the message that is offered")

    def _header(self, now, header):
        """Returns the Last flag, the MSN and the offset of a header (RFC 5041 section 4)."""
        def number(first, octets):
            return Cat(header.word_select(k, 8) for k in reversed(range(first, first + octets)))

        return header[6], number(10, 4), Mux(now.tagged, number(6, 8), number(14, 4))

    def _numbers(self, m, now, whole, tag, number):
        """Follows the MSNs of one queue."""
        table = self.inside.component("msn_table")
        queue, expected = self.any(table.followed.shape(), name="queue", constant=True), Signal(32)
        m.d.comb += table.followed.eq(queue)
        index = Cat(now.qn, now.stream)[:len(table.followed)]
        mine = ~now.tagged & ~now.turn.repeat & (index == queue)
        self.assume(~self.dut.msns.valid)
        self.always(if_(whole & mine, number == expected), "its number")
        with m.If(whole & mine & tag.ends):
            m.d.sync += expected.eq(expected + 1)
        self.lemma(table.row == (expected + (whole & mine & tag.ends))[:32], "the table")
        fresh, mine = self.inside["fresh"], self.dut.i.payload.shape()(self.inside["now"])
        self.lemma(if_(
            self.inside["valid"] & ~fresh.any() & (Cat(mine.qn, mine.stream) == queue),
            self.inside["kept"] == table.row), "the number that is kept")


class InSequence(Harness):
    """Proves that segments leave in the order in which they were read, without a gap.

    Any one stream over MPA is followed. Departure decides about each segment three cycles after it
    has come. It leaves if its half of the stream is open and all of it was read, and its LLP
    sequence number is where the FPDU before it ended. After a segment that cannot be read, or a
    failure of the ring, none leaves but those that are sent again. These have the number that they
    are asked to have, and change no other one. Each segment that was read has a packet, which
    leaves if the segment does.

    Assumes that a segment has fewer than 2**16 octets, and that the host does not set the
    stream's state, which may be any at first.
    :class:`~.sent.Entry` replaces the tables, as theorems of :mod:`~.blockram` allow, and
    :class:`~.credit.Costs` the length of an FPDU, which may be any. By induction of depth
    ``DEPTH``.
    """

    DEPTH = 5

    def rules(self, m):
        dut, segment = self.dut, self.dut.segments.payload
        stream = self.any(1, name="stream", constant=True)
        table, places, size = (
            self.inside.component(name) for name in ("table", "places", "size"))
        heads, packets = (self.inside.component(name).i for name in ("heads", "packets"))
        for entry, port in ((table, dut.set), (places, dut.begin)):
            m.d.comb += entry.followed.eq(stream)
            self.free(entry.begins, constant=True)
            self.assume(~port.valid)
        self.free(size.cost)
        self.free(size.next)
        self.polite(dut.segments)
        self.polite(dut.fail)
        tag = data.View(SegmentTag(), segment.tag[:SegmentTag().size])
        comes = dut.segments.valid & dut.segments.ready
        fails = dut.fail.valid & dut.fail.ready
        bad = segment.refused | segment.failed
        self.assume(if_(comes, tag.stream < dut.streams))
        self.assume(segment.lead + segment.length < 1 << 16)
        self.always(~(comes & fails), "one at a time")

        def later(value, name):
            return delayed(m, 3, value, name)

        came, known, wrong = later(comes, "came"), later(tag, "known"), later(bad, "wrong")
        mine = came & (known.stream == stream)
        failed = later(fails & (dut.fail.payload == stream), "failed")
        # The half is open until something of it fails, and its next FPDU begins at ``next``.
        begins, changed, shut, at, next = table.begins, Signal(), Signal(), Signal(32), Signal(32)
        opened = begins.open & ~shut
        head = heads.payload
        leaves = heads.valid & (head.stream == stream)
        first = leaves & ~known.repeat
        m.d.comb += next.eq(Mux(changed, at, begins.sequence))
        with m.If(first):
            m.d.sync += [changed.eq(1), at.eq(next + (size.cost << 2))]
        with m.If(failed | (mine & wrong & ~known.stops)):
            m.d.sync += shut.eq(1)

        self.always(if_(heads.valid, came & (head.stream == known.stream)), "in order")
        self.always(if_(mine, heads.valid == (~wrong & (opened | known.repeat))), "which leave")
        self.always(if_(first, head.sequence == next), "where the one before it ended")
        self.always(if_(leaves & known.repeat, head.sequence == self.past(dut.repeat.sequence)),
                    "as it is asked to")
        self.always(if_(heads.valid, head.length == later(
            segment.lead + segment.length, "octets")), "its octets")
        self.always(packets.valid == (came & ~wrong), "a packet for each")
        self.always(if_(packets.valid, packets.payload.passes == heads.valid), "it leaves with it")
        self.lemma(table.entry.open == opened, "whether it is open")
        self.lemma(table.entry.sequence == next, "its next number")
        m.d.comb += [
            Cover(first & self.past(first, 2)),
            Cover(leaves & known.repeat & shut & changed),
            Cover(mine & ~heads.valid & ~wrong & changed),
        ]
