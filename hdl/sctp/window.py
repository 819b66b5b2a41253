"""Decides which items of a DDP stream are new (RFC 5043 sections 5.2.1, 6 and 10).

Each stream has ``window`` slots of its own: here for the facts about an item, and in
:class:`~.order.Reorder` for the item's record while it waits. The slot of an item is its DDP-SSN
modulo ``window``. Streams never compete for slots, and there is no list of free ones: an item that
is new and less than ``window`` ahead of the first gap finds its slot free, because the item that
used the slot before arrived before the gap.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..ddp.item import Ticket, Verdict
from ..lib.blockram import storage_of
from ..lib.stream import Store, any_of, delayed, nibbles
from ..spec.config import power_of_two
from ..spec.sctp import Reason

__all__ = ["Arrival", "Judged", "Window", "slot_of"]


class Arrival(data.StructLayout):
    """An item with the verdict of its session.

    Members
    -------
    verdict : Verdict
        FRESH: it may be taken. The window decides on FRESH and REFUSED items.
    stream : range(streams)
    ssn : 16
    tsn : 32
    segment : 1
        A DDP Segment, not a control message.
    final : 1
        The item must be the last one of its session.
    malformed : 1
        The reason, if the item is ILLEGAL: it is no DDP message.
    life : 1
        Toggles each time the session has handled an ILLEGAL item of the window.
    """

    def __init__(self, streams):
        super().__init__({
            "verdict": Verdict, "stream": range(streams), "ssn": 16, "tsn": 32, "segment": 1,
            "final": 1, "malformed": 1, "life": 1,
        })


class Judged(data.StructLayout):
    """An item's ``verdict`` (Verdict) and ``ticket`` (Ticket).

    ``aborts`` (1): the item ends its session, for ``reason`` (Reason).
    """

    def __init__(self, streams):
        super().__init__({
            "verdict": Verdict, "ticket": Ticket(streams), "aborts": 1, "reason": Reason})


def slot_of(stream, ssn, window):
    """Returns the slot of an item; each stream has ``window`` slots."""
    return Cat(ssn[:exact_log2(window)], stream)


class _Tag(data.StructLayout):
    """The last item of the session in a slot, if ``valid`` (1): ``ssn`` (16), ``tsn`` (32).
    """

    def __init__(self):
        super().__init__({"valid": 1, "ssn": 16, "tsn": 32})


class _Known(data.StructLayout):
    """The stored facts of a stream's session.

    Members
    -------
    front : 16
        All DDP-SSNs before this one were taken, and perhaps more.
    tip : 16
        The DDP-SSN after the highest one that was taken.
    count : 16
        Number of items taken. There is no gap if it equals ``tip``.
    ended : 1
        The final item was taken, with DDP-SSN ``last`` (16).
    dead : 1
        An item was ILLEGAL, in this ``life`` (1).
    """

    def __init__(self):
        super().__init__({
            "front": 16, "tip": 16, "count": 16, "ended": 1, "last": 16, "dead": 1, "life": 1})


class _Near(data.StructLayout):
    """A comparison of an item with another one that arrived a few cycles before it.

    Members
    -------
    same : 1
        The other item exists and is of the same stream; the rest implies this.
    twin, copy : 1
        Both have the same DDP-SSN; the same TSN.
    behind, ahead : 1
        The item's DDP-SSN is lower than the other one's; higher.
    next, inside : 1
        The item is the next one after the other; is ahead of it by no more than the window.
    over : 1
        The item is ahead of the other one, which is final.
    """

    def __init__(self):
        super().__init__({name: 1 for name in (
            "same", "twin", "copy", "behind", "ahead", "next", "inside", "over")})


class _Walk(wiring.Component):
    """Finds the first gap of a stream, starting from a gap that was filled.

    Latency: 8 cycles, one for each item after the gap, and then until the result is taken.
    Throughput: one stream at a time. Reset: idle. Errors: none; if the queue has no room for
    another stream, the stream is skipped, and a walk of more than ``PATIENCE`` cycles is given up.

    Members
    -------
    work : In(stream.Signature(range(streams), always_ready=True))
        A stream with a gap that was filled.
    stream : Out(range(streams))
        The stream that is walked through.
    front : In(16)
        Its ``front``, 2 cycles later.
    slot : Out(slots), tag : In(_Tag)
        Slot to look up, and its tag, 2 cycles later.
    found : Out(1), next : Out(16)
        The result: all DDP-SSNs before ``next`` were taken.
    take : In(1)
        The result is taken.
    busy : Out(1)
    """

    #: Cycles in which less than half of all DDP-SSNs can arrive.
    PATIENCE = 1 << 13

    def __init__(self, streams, window):
        self.streams = streams
        self.window = window
        super().__init__({
            "work": In(stream.Signature(range(streams), always_ready=True)),
            "stream": Out(range(streams)),
            "front": In(16),
            "slot": Out(range(streams * window)),
            "tag": In(_Tag()),
            "found": Out(1),
            "next": Out(16),
            "take": In(1),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.works = works = Store(range(self.streams), depth=16)
        fetch, expected = Signal(16), Signal(16)
        m.d.comb += [
            works.i.valid.eq(self.work.valid & works.half),
            works.i.payload.eq(self.work.payload),
            self.slot.eq(slot_of(self.stream, fetch, self.window)),
        ]
        # One tag is read per cycle, before the results of earlier reads are known.
        waits, same = Signal(3), Signal()
        age = Signal(range(self.PATIENCE + 1))
        m.d.sync += [
            waits.eq(waits << 1),
            age.eq(age + 1),
            fetch.eq(fetch + 1),
            expected.eq(expected + 1),
            same.eq(self.tag.valid & (self.tag.ssn == expected)),
        ]
        with m.FSM() as fsm:
            with m.State("Idle"):
                m.d.comb += works.o.ready.eq(1)
                m.d.sync += [self.stream.eq(works.o.payload), waits.eq(1), age.eq(0)]
                with m.If(works.o.valid):
                    m.next = "Look Up"
            with m.State("Look Up"):
                m.d.sync += [fetch.eq(self.front), self.next.eq(self.front)]
                with m.If(waits[2]):
                    m.d.sync += waits.eq(1)
                    m.next = "Walk"
            with m.State("Walk"):
                with m.If(age[-1]):
                    m.next = "Idle"
                with m.If(waits[1]):
                    m.d.sync += expected.eq(self.next)
                with m.Elif(~waits.any()):
                    m.d.sync += self.next.eq(self.next + same)
                    with m.If(~same):
                        m.next = "Tell"
            with m.State("Tell"):
                m.d.comb += self.found.eq(~age[-1])
                with m.If(self.take | age[-1]):
                    m.next = "Idle"
        m.d.comb += self.busy.eq(works.o.valid | ~fsm.ongoing("Idle"))
        return m


class Window(wiring.Component):
    """Decides for each item whether it was received before, and takes it if not.

    An item is taken if its stream's session allows it, if no item before had its DDP-SSN, and

    * if it is the next one in the order of arrival: all DDP-SSNs before it were taken. So items
      that arrive in order are never refused, whatever other streams do;
    * or if it is less than ``window`` ahead of the first DDP-SSN that is missing.

    Otherwise it is OUTSIDE. Nothing here waits for delivery: the first gap is that of the items
    that were taken. A new first gap is found a few cycles after the previous one was filled, see
    :class:`_Walk`. Until then, an item close to the end of the window may be OUTSIDE, but never the
    one that is next in order.

    These items are ILLEGAL; only the first one of a session is, and those after it are SILENT:

    * a DDP-SSN that was received before, with another TSN. The TSNs of the last ``window`` DDP-SSNs
      are remembered; an older Segment is a DUPLICATE;
    * an item with a DDP-SSN after that of the final item, and a final item with a DDP-SSN before
      that of an item already taken;
    * a REFUSED item that was not received before.

    Latency: ``LATENCY`` cycles. Throughput: one item per cycle, in any mix of streams. Reset: no
    item is on its way; the record of taken items stays. Errors: none; ILLEGAL items are reported on
    ``o``.

    Parameters
    ----------
    streams : int
        A power of two.
    window : int
        Items, a power of two, of each stream.

    Members
    -------
    i : In(stream.Signature(Arrival(streams), always_ready=True))
    o : Out(stream.Signature(Judged(streams), always_ready=True))
    clear : In(stream.Signature(range(streams)))
        A stream to clear, as one without any items: the next session's first item has DDP-SSN 0. No
        item may be on its way. It is ready when it is done: after ``window`` cycles, and once the
        gaps are found.
    look : In(range(streams)), whole : Out(1)
        Stream to look up; 3 cycles later: all its DDP-SSNs before the highest one were taken. Valid
        while not ``busy``.
    busy : Out(1)
        The first gap of a stream is being searched.
    """

    LATENCY = 7
    #: Number of preceding items that are not visible in the tables yet.
    _RECENT = 5

    def __init__(self, *, streams=64, window=16):
        power_of_two("Window streams", streams, 2, 1 << 12)
        power_of_two("Window window", window, 4, 1 << 14)
        self.streams = streams
        self.window = window
        super().__init__({
            "i": In(stream.Signature(Arrival(streams), always_ready=True)),
            "o": Out(stream.Signature(Judged(streams), always_ready=True)),
            "clear": In(stream.Signature(range(streams))),
            "look": In(range(streams)),
            "whole": Out(1),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.walk = walk = _Walk(self.streams, self.window)
        # item[k] came k cycles ago. In a cycle without an item, the result of a walk enters.
        item = [Signal(Arrival(self.streams), name="item_0")]
        valid, walked = (Signal(7, name=name) for name in ("valid", "walked"))
        m.d.comb += [
            item[0].eq(self.i.payload),
            walk.take.eq(walk.found & ~self.i.valid),
        ]
        with m.If(~self.i.valid):
            m.d.comb += [item[0].stream.eq(walk.stream), item[0].ssn.eq(walk.next)]
        m.d.sync += [valid.eq(Cat(self.i.valid, valid)), walked.eq(Cat(walk.take, walked))]
        for k in range(1, 8):
            item.append(Signal(Arrival(self.streams), name=f"item_{k}", reset_less=True))
            m.d.sync += item[k].eq(item[k - 1])
        near = self._near(m, item, valid | walked)
        # Decisions of the last cycles, for the items of 6 to 10 cycles ago: the item was taken; all
        # before it were taken too; it ended its session.
        taken, in_order, aborted = (Signal(self._RECENT, name=name) for name in (
            "taken", "in_order", "aborted"))
        fills = Signal()
        tag, known = self._tables(m, item, walked, near, taken, in_order, aborted, fills)
        asked = self._compare(m, item, tag, known)
        self._decide(m, item, valid, near, asked, taken, in_order, aborted, fills)
        return m

    def _near(self, m, item, valid):
        """Compares ``item[5]`` with each of the items that came 1 to 5 cycles before it."""
        # Compared early, and delayed until the decisions on those items are known.
        bits = exact_log2(self.window)
        found = []
        for k in range(1, self._RECENT + 1):
            same = Signal(name=f"same_{k}")
            distance = Signal(16, name=f"distance_{k}", reset_less=True)
            copy = Signal(8, name=f"copy_{k}", reset_less=True)
            near = Signal(_Near(), name=f"near_{k}")
            m.d.sync += [
                same.eq(valid[k] & (item[1].stream == item[1 + k].stream)),
                distance.eq(item[1].ssn - item[1 + k].ssn),
                copy.eq(nibbles(item[1].tsn, item[1 + k].tsn)),
                near.same.eq(same),
                near.twin.eq(same & ~distance.any()),
                near.copy.eq(copy.all()),
                near.behind.eq(same & distance[15]),
                near.ahead.eq(same & ~distance[15] & distance.any()),
                near.next.eq(same & (distance == 1)),
                near.inside.eq(same & distance.any() & (
                    ~distance[bits:].any() | (distance == self.window))),
                near.over.eq(same & ~distance[15] & distance.any() & item[2 + k].final),
            ]
            found.append(delayed(m, 2, near, f"near_{k}"))
        return found

    def _tables(self, m, item, walked, near, taken, in_order, aborted, fills):
        """Returns the tag in the slot of ``item[3]``, and the facts of its stream."""
        streams, window, walk = self.streams, self.window, m.submodules.walk
        slot = [slot_of(item[k].stream, item[k].ssn, window) for k in (1, 7)]
        clears, swept, rests = Signal(), Signal(range(window)), Signal()
        tag_in, becomes = Signal(_Tag()), Signal(_Known(), reset_less=True)
        # A stream is cleared only while no item and no result of a walk is in the pipeline: it
        # would write back the facts from before.
        m.d.sync += rests.eq(~(walk.busy | walked.any()))
        m.d.comb += clears.eq(self.clear.valid & rests)
        with m.If(clears):
            m.d.sync += swept.eq(swept + 1)
        with m.Else():
            m.d.comb += [tag_in.valid.eq(1), tag_in.ssn.eq(item[7].ssn), tag_in.tsn.eq(item[7].tsn)]
        m.d.comb += self.clear.ready.eq(clears & swept.all())
        # Tag and facts are written in the same cycle: a tag that is newer than the facts would hide
        # an item that was received before.
        tag, walk_tag = storage_of(
            m, "tags", _Tag(), streams * window, (slot[0], walk.slot),
            (taken[1] | clears, Mux(clears, slot_of(self.clear.payload, swept, window), slot[1]),
             tag_in))
        writes = Signal()
        m.d.sync += writes.eq(taken[0] | aborted[0] | walked[5])
        look = Mux(walk.busy, walk.stream, self.look)
        known, looked = storage_of(
            m, "known", _Known(), streams, (item[1].stream, look),
            (writes | clears, Mux(clears, self.clear.payload, item[7].stream),
             Mux(clears, 0, Value.cast(becomes))))
        m.d.comb += [
            walk.work.valid.eq(taken[0] & fills),
            walk.work.payload.eq(item[6].stream),
            walk.tag.eq(walk_tag),
            walk.front.eq(looked.front),
            self.busy.eq(walk.busy),
        ]
        m.d.sync += self.whole.eq(looked.tip == looked.count)

        # ``now``: the facts of the stream of item[6], with the updates of the cycles before;
        # ``becomes``: those of item[7].
        history = [becomes]
        for k in range(3):
            history.append(Signal(_Known(), name=f"became_{k}", reset_less=True))
            m.d.sync += history[k + 1].eq(history[k])
        close = delayed(m, 1, near[0].same, "close")
        # Without a gap, the first missing DDP-SSN is the tip.
        held, gapless = delayed(m, 1, known, "held"), Signal()
        read, earlier = (Signal(_Known(), name=name, reset_less=True) for name in (
            "read", "earlier"))
        m.d.sync += [gapless.eq(known.tip == known.count), read.eq(held), earlier.eq(read)]
        with m.If(gapless):
            m.d.sync += read.front.eq(held.tip)
        for same, before in zip(near[:0:-1], history[::-1], strict=True):
            with m.If(same.same):
                m.d.sync += earlier.eq(before)
        now = Signal(_Known())
        m.d.comb += now.eq(Mux(close, becomes, earlier))
        # The front by which an item was judged is stored, so that later items use it too.
        follows, front = (Signal(16, name=name, reset_less=True) for name in ("follows", "front"))
        m.d.sync += [
            follows.eq(item[5].ssn + 1),
            front.eq(Mux(walked[4], item[5].ssn, read.front)),
            becomes.eq(now),
        ]
        with m.If(~(front - now.front)[15]):
            m.d.sync += becomes.front.eq(front)
        with m.If(taken[0]):
            m.d.sync += becomes.count.eq(now.count + 1)
            with m.If(in_order[0]):
                m.d.sync += becomes.front.eq(follows)
            with m.If(~fills):
                m.d.sync += becomes.tip.eq(follows)
            with m.If(item[6].final):
                m.d.sync += [becomes.ended.eq(1), becomes.last.eq(item[6].ssn)]
        with m.If(aborted[0]):
            m.d.sync += [becomes.dead.eq(1), becomes.life.eq(item[6].life)]
        return tag, known

    def _compare(self, m, item, tag, known):
        """Compares ``item[5]`` with the tables' contents, in two steps."""
        bits = exact_log2(self.window)
        ssn = item[3].ssn
        same, copy = Signal(4), Signal(8)
        held, dead, ended, whole = Signal(), Signal(), Signal(), Signal()
        past_front, past_tip, past_last = (
            Signal(16, name=f"past_{name}") for name in ("front", "tip", "last"))
        missing = Signal(16)
        m.d.sync += [
            same.eq(nibbles(tag.ssn, ssn)),
            copy.eq(nibbles(tag.tsn, item[3].tsn)),
            held.eq(tag.valid),
            dead.eq(known.dead & (known.life == item[3].life)),
            ended.eq(known.ended),
            whole.eq(known.tip == known.count),
            past_front.eq(ssn - known.front),
            past_tip.eq(ssn - known.tip),
            past_last.eq(ssn - known.last),
            missing.eq(ssn - known.count),
        ]
        asked = Signal(data.StructLayout({
            "held": 1, "copy": 1, "behind": 1, "inside": 1, "front": 1, "top": 1, "over": 1,
            "dead": 1, "missing": self._RECENT + 1}))
        past = Mux(whole, past_tip, past_front)
        m.d.sync += [
            asked.held.eq(same.all() & held),
            asked.copy.eq(copy.all()),
            asked.behind.eq(past[15]),
            asked.inside.eq(~past[bits:].any()),
            asked.front.eq(~past.any()),
            asked.top.eq(~past_tip[15]),
            asked.over.eq(ended & ~past_last[15] & past_last.any()),
            asked.dead.eq(dead),
            asked.missing.eq(Cat(missing == k for k in range(self._RECENT + 1))),
        ]
        return asked

    def _decide(self, m, item, valid, near, asked, taken, in_order, aborted, fills):
        """Decides on ``item[5]``: in one cycle the facts that later items need, in two the rest."""

        def some(flags, *names):
            """Returns whether an item before has its flag and all these properties."""
            return any_of(
                flags[k] & Cat(near[k][name] for name in names).all() for k in range(self._RECENT))

        came, other, top, passed_by, in_turn, allowed, over, silent = (Signal() for _ in range(8))
        takes, aborts = Signal(), Signal()
        arrived = Cat(taken[k] & near[k].same for k in range(self._RECENT))
        count = sum(arrived[1:], arrived[0])
        known = item[5].verdict
        fresh, refused = known == Verdict.FRESH, known == Verdict.REFUSED
        m.d.comb += [
            came.eq(asked.behind | asked.held | some(taken, "twin")),
            # For a control message, its slot would still show that it was received.
            other.eq((asked.held & ~asked.copy)
                     | any_of(taken[k] & near[k].twin & ~near[k].copy for k in range(self._RECENT))
                     | (asked.behind & ~asked.held & ~some(taken, "twin") & ~item[5].segment)),
            # No item after it was taken.
            passed_by.eq(some(taken, "behind")),
            top.eq(asked.top & ~passed_by),
            # All items before it were taken.
            in_turn.eq(asked.front | some(in_order, "next") | (
                top & any_of(asked.missing[k] & (count == k) for k in range(self._RECENT + 1)))),
            # An item before one that was inside is inside too; the facts by which that one was
            # judged may not be visible yet.
            allowed.eq(in_turn | asked.inside | some(in_order, "inside") | passed_by),
            over.eq(asked.over | some(taken, "over") | (item[5].final & ~top)),
            silent.eq(asked.dead | some(aborted, "same")),
            takes.eq(valid[4] & fresh & ~silent & ~came & ~over & allowed),
            aborts.eq(valid[4] & ~silent & (
                (known == Verdict.ILLEGAL)
                | ((fresh | refused) & came & other)
                | (fresh & ~came & over)
                | (refused & ~came))),
        ]
        m.d.sync += [
            taken.eq(Cat(takes, taken)),
            in_order.eq(Cat(takes & in_turn, in_order)),
            aborted.eq(Cat(aborts, aborted)),
            fills.eq(~top),
        ]
        # 6 cycles: the verdict.
        judged, ticket = self.o.payload, self.o.payload.ticket
        shut, passed, again = Signal(), Signal(), Signal()
        m.d.sync += [
            shut.eq(silent & (fresh | refused | (known == Verdict.ILLEGAL)
                              | (known == Verdict.HELD))),
            passed.eq(~fresh & ~refused),
            again.eq(came),
            self.o.valid.eq(valid[5]),
            judged.aborts.eq(aborted[0]),
            judged.reason.eq(Mux(item[6].malformed, Reason.MALFORMED, Reason.SEQUENCE)),
            *(ticket[name].eq(item[6][name]) for name in ("stream", "ssn", "final")),
            ticket.fills.eq(fills),
        ]
        with m.If(shut):
            m.d.sync += judged.verdict.eq(Verdict.SILENT)
        with m.Elif(aborted[0]):
            m.d.sync += judged.verdict.eq(Verdict.ILLEGAL)
        with m.Elif(passed):
            m.d.sync += judged.verdict.eq(item[6].verdict)
        with m.Elif(taken[0]):
            m.d.sync += judged.verdict.eq(Verdict.FRESH)
        with m.Else():
            m.d.sync += judged.verdict.eq(Mux(again, Verdict.DUPLICATE, Verdict.OUTSIDE))
