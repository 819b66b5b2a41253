"""Proves that no record in Reorder survives its session, and that each leaves in its turn."""

from amaranth import *

from ..lib.stream import any_of
from ..sctp.order import _State, _Step, _Waiting, place_of
from .harness import Harness, if_
from .streams import stored

__all__ = ["Ended", "Survives"]


class _Reorder(Harness):
    """The part that the proofs of a Reorder share: its signals, and lemmas about its pipeline.

    Attributes
    ----------
    step : list(View)
        The contents of the pipeline, entered 0 to 4 cycles ago.
    active : list(Value)
        Whether each of them is an item or a probe.
    calm, cleared, stores, clears, moves, some : Signal
        The signals of these names in Reorder.
    rows : list(Value)
        The records of the items in ``step[3]`` to ``step[0]``: the row of each in the queue beside
        the pipeline. For a step without an item, the row of the next item.
    """

    def look(self, m):
        """Adds the lemmas, and sets the attributes."""
        dut, inside = self.dut, self.inside
        self.step = step = [
            _Step(dut.streams, dut.slots)(inside[f"step_{k}"]) for k in range(5)]
        for name in ("some", "calm", "cleared", "stores", "clears", "moves"):
            setattr(self, name, inside[name])
        closing, closed = inside["closing"], inside["closed"]
        self.active = active = [each.item | each.probe for each in step]
        self.ring(m)
        used, now = inside["drain.used"].any(), inside.component("drain").now

        # Each step is of one kind, and has the effects of that kind.
        for each in step:
            kinds = each.item + each.probe + each.close
            self.lemma(kinds <= 1, "an item, a probe or a close")
        self.lemma(if_(self.moves | self.stores, active[4]), "only those move, or are stored")
        self.lemma(~(self.moves & self.stores), "an item moves or is stored")
        self.lemma(if_(self.stores, step[4].item), "items are stored")
        self.lemma(if_(step[4].close, self.clears), "a close clears")
        self.lemma(if_(self.clears, step[4].close | (step[4].probe & self.moves)),
                   "only closes and probes clear")

        # While places are cleared, nothing else is in the pipeline.
        self.lemma(closing == self.past(dut.close.valid & ~dut.close.ready), "closing")
        for k in range(4):
            self.lemma(if_(self.calm[k], ~any_of(active[:k + 1]) & ~used), "calm")
            before = closing | closed[:k + 1].any()
            self.lemma(if_(step[k].close, before), "nothing follows a close")
        for k in range(5):
            self.lemma(if_(step[k].close, ~any_of(active[:k])), "nothing is after a close")
        self.lemma(if_(closed.any() | any_of(each.close for each in step[:4]), ~used),
                   "no walk begins")
        self.lemma(if_(self.cleared.any(), closing & self.calm.all() & ~active[4]),
                   "nothing moves while places are cleared")
        self.lemma(if_(~used, ~now), "no probe without a walk")

        # The queue of records beside the pipeline.
        items = [each.item for each in step[:4]]
        first = stored(self, m, "records.", sum(items[1:], items[0]), 16)
        self.rows, ahead = [], C(0)
        for item in reversed(items):
            place = Signal.like(first)
            m.d.comb += place.eq(first + ahead)
            self.rows.append(Value.cast(inside.row("records.storage", place)))
            ahead = ahead + item

    def ring(self, m):
        """Adds lemmas about the drain's ring of streams, and the items whose result it awaits."""
        inside, step = self.inside, self.step
        used, decided, wants, last, newest, first, walks = (
            inside[f"drain.{name}"]
            for name in ("used", "decided", "wants", "last", "newest", "first", "walks"))
        depth = len(used)
        fills = [each.item & each.ticket.fills for each in step[:4]] + [inside["fills"]]
        coming = sum(fills[1:], fills[0])
        count = sum(used[1:], used[0])
        known = Signal(range(depth + 1))
        m.d.comb += known.eq(count - coming)
        self.lemma(coming <= count, "each of them has its place")
        self.lemma((last - first)[:2] == count[:2], "last")
        self.lemma((newest - first)[:2] == known[:2], "newest")
        for k in range(depth):
            place = (k - first)[:2]
            self.lemma(used[k] == (place < count), "used")
            self.lemma(if_(used[k], decided[k] == (place < known)), "decided")
        head = (used & decided & wants).bit_select(first, 1)
        begins, begun, settled = (
            inside[f"drain.{name}"] for name in ("begins", "begun", "settled"))
        self.lemma(begins + begun + walks <= 1, "one after another")
        self.lemma(if_(settled.any() | begins | begun | walks, head), "the first of them walks")
        self.walks, self.known, self.coming = walks, known, fills


class Survives(_Reorder):
    """Proves that a record in the table never leaves after its stream's next session has opened.

    Any one place of any one stream is followed, and any one opening of that stream. A record is one
    bit, which may be set only in records of that stream that came before that opening. After the
    opening, neither an item nor the place gives a record with this bit to the queue of records that
    leave. (A record that was in that queue before was delivered before;
    :mod:`ddp_rnic.hdl.proofs.streams` proves that the queue keeps its order.) Neither the proof nor
    the gateware counts sessions.

    Assumes three rules that :class:`ddp_rnic.hdl.sctp.session.Session` keeps: ``busy`` is 0 when an
    opening begins, no item of the stream comes until the opening is done, and ``close`` is held. By
    induction of depth 2.
    """

    def rules(self, m):
        self.look(m)
        dut, inside, step = self.dut, self.inside, self.step
        mine = self.any(range(dut.streams), name="mine", constant=True)
        place = self.any(range(dut.window), name="place", constant=True)
        own = Signal(range(dut.slots))
        m.d.comb += own.eq(place_of(mine, place, dut.window))
        chosen = self.any(1, name="chosen")

        close, opened = dut.close, Signal()
        opens = close.valid & close.payload.opens
        self.polite(close)
        self.assume(if_(opens & ~self.past(close.valid & ~close.ready), ~dut.busy))
        comes = dut.i.payload.ticket.stream
        self.assume(if_(opens & dut.i.valid, comes != close.payload.stream))
        with m.If(opens & close.ready & (close.payload.stream == mine) & chosen):
            m.d.sync += opened.eq(1)
        old = dut.i.valid & dut.i.payload.record
        self.assume(if_(old, ~opened & (comes == mine)))

        leaving = inside.component("leaving").i
        from_place = step[4].probe & (step[4].place == own)
        self.always(if_(opened & leaving.valid & (step[4].item | from_place), ~leaving.payload),
                    "no record from before leaves")

        # When an opening begins, no item of its stream is on its way.
        head = dut.i.payload.shape()(inside["head"])
        ending = opens & (close.payload.stream == mine)
        self.lemma(if_(ending, ~(self.some & (head.ticket.stream == mine))), "none waits to go in")
        self.lemma(if_(self.some & head.record, ~opened & (head.ticket.stream == mine)), "head")
        for item, row in zip(step[3::-1], self.rows, strict=True):
            self.lemma(if_(opened & item.item, ~row), "beside the pipeline")
        self.lemma(if_(opened & step[4].item, ~inside["record"]), "an item")

        # The place was cleared before the opening was done, or is being cleared.
        known = [_Waiting()(inside[name]) for name in (
            "waiting_held0", "waiting_latest0", "waiting_latest1")]
        clash = inside["waiting_clash0"]
        valid = _Waiting()(inside.row("waiting", own)).valid
        marked = inside.row("places", own)
        clearing = any_of(each.close & (each.place == own) for each in step)
        self.lemma(if_((close.payload.stream == mine) & close.valid & (self.cleared > place),
                       ~valid | clearing), "it was cleared")
        self.lemma(if_(opened & valid & marked, clearing), "a record that waits came later")

        # The values that a probe of the place reads.
        read = _Waiting()(inside.read("waiting"))
        seen = [
            Mux(clash[0], known[1].valid, read.valid),
            Mux(clash[1], known[2].valid, known[0].valid),
        ]
        probes = [opened & each.probe & (each.place == own) for each in step]
        for k in (1, 2):
            self.lemma(if_(probes[k] & seen[k - 1], ~marked), "a probe finds a new record")
        self.lemma(if_(probes[3] & inside["found"], ~inside.read("places")), "it reads that record")
        self.lemma(if_(probes[4] & self.moves, ~inside["held"]), "it takes that record")


class Ended(_Reorder):
    """Proves that no record of a stream leaves between the end of a session and the next opening.

    That holds for a record in the table, and for an item that comes afterwards. Any one stream is
    followed. Assumes that ``close`` is held. By induction of depth 6.
    """

    def rules(self, m):
        self.look(m)
        dut, inside, step = self.dut, self.inside, self.step
        mine = self.any(range(dut.streams), name="mine", constant=True)
        close, ended = dut.close, Signal()
        own = close.payload.stream == mine
        self.polite(close)
        with m.If(close.valid & own & close.payload.opens):
            m.d.sync += ended.eq(0)
        with m.Elif(close.valid & close.ready & own):
            m.d.sync += ended.eq(1)
        leaving = inside.component("leaving").i
        steps = [each.ticket.stream == mine for each in step]
        self.always(if_(ended & leaving.valid, ~steps[4]), "nothing of an ended session leaves")

        state = _State()(inside.row("states", mine))
        ending = any_of(each.close & of_it for each, of_it in zip(step, steps, strict=True))
        self.lemma(if_(ended & ~ending, state.closed), "the session is closed")
        for each, of_it in zip(step, steps, strict=True):
            self.lemma(if_(ended & of_it & each.close, ~each.opens), "no opening is on its way")
