"""Proves that no record in Reorder survives its session, and that each leaves in its turn."""

from amaranth import *
from amaranth.utils import exact_log2

from ..lib.stream import any_of
from ..sctp.order import _State, _Step, _Waiting, slot_of
from .harness import Harness, if_
from .streams import items, stored
from .window import Gaps

__all__ = ["Ended", "Kept", "Survives"]


class _Reorder(Harness):
    """The part that the proofs of a Reorder share: its signals, and lemmas about its pipeline.

    Attributes
    ----------
    mine : Signal
        The stream that is followed.
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

        # While slots are cleared, nothing else is in the pipeline.
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
                   "nothing moves while slots are cleared")
        self.lemma(if_(~used, ~now), "no probe without a walk")

        # The queue of records beside the pipeline.
        items = [each.item for each in step[:4]]
        first = stored(self, m, "records.", sum(items[1:], items[0]), 16)
        self.rows, ahead = [], C(0)
        for item in reversed(items):
            slot = Signal.like(first)
            m.d.comb += slot.eq(first + ahead)
            self.rows.append(Value.cast(inside.row("records.storage", slot)))
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
        self.lemma(coming <= count, "each of them has its slot")
        self.lemma((last - first)[:2] == count[:2], "last")
        self.lemma((newest - first)[:2] == known[:2], "newest")
        for k in range(depth):
            slot = (k - first)[:2]
            self.lemma(used[k] == (slot < count), "used")
            self.lemma(if_(used[k], decided[k] == (slot < known)), "decided")
        head = (used & decided & wants).bit_select(first, 1)
        begins, begun, settled = (
            inside[f"drain.{name}"] for name in ("begins", "begun", "settled"))
        self.lemma(begins + begun + walks <= 1, "one after another")
        self.lemma(if_(settled.any() | begins | begun | walks, head), "the first of them walks")
        self.coming = fills


class Survives(_Reorder):
    """Proves that a record in the table never leaves after its stream's next session has opened.

    Any one slot of any one stream is followed, and any one opening of that stream. A record is one
    bit, which may be set only in records of that stream that came before that opening. After the
    opening, neither an item nor the slot gives a record with this bit to the queue of records that
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
        self.mine = mine = self.any(range(dut.streams), name="mine", constant=True)
        slot = self.any(range(dut.window), name="slot", constant=True)
        own = Signal(range(dut.slots))
        m.d.comb += own.eq(slot_of(mine, slot, dut.window))
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
        from_slot = step[4].probe & (step[4].slot == own)
        self.always(if_(opened & leaving.valid & (step[4].item | from_slot), ~leaving.payload),
                    "no record from before leaves")

        # When an opening begins, no item of its stream is on its way.
        head = dut.i.payload.shape()(inside["head"])
        ending = opens & (close.payload.stream == mine)
        self.lemma(if_(ending, ~(self.some & (head.ticket.stream == mine))), "none waits to go in")
        self.lemma(if_(self.some & head.record, ~opened & (head.ticket.stream == mine)), "head")
        for item, row in zip(step[3::-1], self.rows, strict=True):
            self.lemma(if_(opened & item.item, ~row), "beside the pipeline")
        self.lemma(if_(opened & step[4].item, ~inside["record"]), "an item")

        # The slot was cleared before the opening was done, or is being cleared.
        valid = _Waiting()(inside.table("waiting", own)).valid
        marked = inside.row("slot_records.storage", own)
        clearing = any_of(each.close & (each.slot == own) for each in step)
        self.lemma(if_((close.payload.stream == mine) & close.valid & (self.cleared > slot),
                       ~valid | clearing), "it was cleared")
        self.lemma(if_(opened & valid & marked, clearing), "a record that waits came later")

        # The values that a probe of the slot reads.
        seen = [_Waiting()(read).valid for read in inside.found("waiting")]
        probes = [opened & each.probe & (each.slot == own) for each in step]
        for k in (1, 2):
            self.lemma(if_(probes[k] & seen[k - 1], ~marked), "a probe finds a new record")
        read = inside.read("slot_records.storage")
        self.lemma(if_(probes[3] & inside["found"], ~read), "it reads that record")
        held = inside["slot_records.held_0"]
        self.lemma(if_(probes[4] & self.moves, ~held), "it takes that record")


class Ended(_Reorder):
    """Proves that no record of a stream leaves between the end of a session and the next opening.

    That holds for a record in the table, and for an item that comes afterwards. Any one stream is
    followed. Assumes that ``close`` is held. By induction of depth 6.
    """

    def rules(self, m):
        self.look(m)
        dut, inside, step = self.dut, self.inside, self.step
        self.mine = mine = self.any(range(dut.streams), name="mine", constant=True)
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

        state = _State()(inside.table("states", mine))
        ending = any_of(each.close & of_it for each, of_it in zip(step, steps, strict=True))
        self.lemma(if_(ended & ~ending, state.closed), "the session is closed")
        for each, of_it in zip(step, steps, strict=True):
            self.lemma(if_(ended & of_it & each.close, ~each.opens), "no opening is on its way")


class Kept(_Reorder):
    """Proves that each item leaves exactly once, and in the order of its DDP-SSN.

    Any one stream is followed, from any opening to the end of that session. Its records that go to
    the queue of records that leave are those of DDP-SSN 0, 1, 2 and so on, and the final item is
    reported together with its record. While Reorder is not busy, each item before the first gap has
    left, so that none is lost. Neither that queue nor the queue of final items overflows;
    :mod:`ddp_rnic.hdl.proofs.streams` proves that both keep their order. It is not proved that
    Reorder ceases to be busy.

    Assumes that ``close`` is held; that a record is its DDP-SSN; and of each item, in the cycle in
    which its turn is decided, the rules that :class:`ddp_rnic.hdl.proofs.window.Taken` proves: its
    DDP-SSN is new, and less than ``window`` ahead of the first gap; ``fills`` is right; and nothing
    follows the final item. By induction of depth ``DEPTH``.
    """

    DEPTH = 6

    def rules(self, m):
        self.look(m)
        dut, inside, step, moves = self.dut, self.inside, self.step, self.moves
        self.mine = mine = self.any(range(dut.streams), name="mine", constant=True)
        self.own = own = [each.ticket.stream == mine for each in step]
        self.polite(dut.close)

        # The session: it ends with the first slot that is cleared, and begins with the last.
        slots = [slot_of(mine, C(k, exact_log2(dut.window)), dut.window)
                  for k in range(dut.window)]
        self.live = live = Signal(init=1)
        self.wiped = wiped = step[4].close & own[4]
        opens = wiped & step[4].opens & (step[4].slot == slots[-1])
        with m.If(wiped):
            m.d.sync += live.eq(opens)

        # The items of the session, as they are decided.
        ticket = step[3].ticket
        item = step[3].item & own[3] & live
        self.came = came = Gaps(
            m, dut.window, name="came", comes=item, ssn=ticket.ssn, final=ticket.final, clear=opens)
        late = (came.tip - ticket.ssn)[:16]
        left = (came.last - ticket.ssn)[:16]
        earlier = (late != 0) & ~late[15]
        self.assume(if_(item, came.fits & ~came.twice))
        self.assume(if_(item, ticket.fills == earlier))
        self.assume(if_(item & ticket.final, ~earlier))
        self.assume(if_(item & came.ended, (left != 0) & ~left[15]))
        own_in = dut.i.payload.ticket.stream == mine
        self.assume(if_(dut.i.valid & own_in, dut.i.payload.record == dut.i.payload.ticket.ssn))

        # The records of the session.
        leaving, overs = inside.component("leaving"), inside.component("overs")
        self.due = due = Signal(16)
        gives = leaving.i.valid & own[4] & live
        with m.If(opens):
            m.d.sync += due.eq(0)
        with m.Elif(gives):
            m.d.sync += due.eq(due + 1)
        self.always(if_(gives, leaving.i.payload == due), "records leave in order")
        self.always(if_(gives, overs.i.valid == (came.ended & (due == came.last))),
                    "the final one is reported")
        self.always(if_(overs.i.valid, leaving.i.valid), "nothing else is")
        self.always(if_(live & ~dut.busy, due == came.next), "none is lost")
        accepted, decided = Signal(8), Signal(8)
        m.d.sync += [
            accepted.eq(accepted + (dut.i.valid & dut.i.ready)),
            decided.eq(decided + step[3].item),
        ]
        inflight = self.some + sum((each.item for each in step[1:4]), step[0].item)
        self.always((accepted - decided)[:8] == inflight, "each is decided once")
        for queue, name, value in (
            (leaving, "leaving", moves), (overs, "overs", overs.i.valid)):
            count = items(m, queue)
            self.always(if_(queue.i.valid, count < 16), f"{name} has room")
            stored(self, m, f"{name}.", count, 16)
            bound = count + value + sum(self.active[1:4], self.active[0])
            self.lemma(bound <= 14, f"{name} will have room")
            self.lemma(if_(inside["go"], count <= 8), f"half of {name} was free")
        self._records()
        self._table(slots)
        self._walk()

    def _records(self):
        """Adds lemmas about the items in the pipeline: their records, and members that agree."""
        dut, inside, step, own = self.dut, self.inside, self.step, self.own
        head = dut.i.payload.shape()(inside["head"])
        some = self.some & (head.ticket.stream == self.mine)
        self.lemma(if_(some, head.record == head.ticket.ssn), "the head's record")
        self.lemma(if_(self.some, inside["after"] == (head.ticket.ssn + 1)[:16]), "the head's next")
        for each, of_it, row in zip(step[3::-1], own[3::-1], self.rows, strict=True):
            self.lemma(if_(each.item & of_it, row == each.ticket.ssn), "a record")
        self.lemma(if_(step[4].item & own[4], inside["record"] == step[4].ticket.ssn), "a record")
        for each, active in zip(step, self.active, strict=True):
            stream, ssn = each.ticket.stream, each.ticket.ssn
            self.lemma(if_(active, each.after == (ssn + 1)[:16]), "the next DDP-SSN")
            looked = Mux(each.item, each.after, ssn)
            self.lemma(if_(active, each.slot == slot_of(stream, looked, dut.window)), "a slot")

    def _table(self, slots):
        """Adds lemmas about the table: it holds the items after ``due`` that came."""
        inside, step, came, live = self.inside, self.step, self.came, self.live
        window = len(slots)
        self.next = following = Signal(16)
        behind, holds = Signal(16), Signal(2 * window)
        m = self._m
        m.d.comb += [
            following.eq(self.due + (self.moves & self.own[4])),
            behind.eq(came.next - following),
            holds.eq((came.ahead << behind[:exact_log2(window)])
                     | ((1 << behind[:exact_log2(window)]) - 1)),
        ]
        self.behind = behind
        state = _State()(inside.table("states", self.mine))
        self.lemma(if_(live, state.next == self.due), "the next one")
        over = came.ended & (self.due == (came.last + 1)[:16])
        self.lemma(if_(live, state.closed == over), "closed by the final item")
        self.lemma(if_(live & came.ended, came.tip == (came.last + 1)[:16]), "none follows it")
        self.lemma(~came.ahead[0], "a gap")
        self.lemma(if_(live, (behind < window) & ~holds[window:].any()), "within the window")
        known = live & ~self.wiped
        clearing = [any_of(each.close & (each.slot == at) for each in step) for at in slots]
        close = self.dut.close
        cleared = close.valid & (close.payload.stream == self.mine)
        wiping = any_of(
            each.close & each.opens & (each.slot == slots[-1]) for each in step)
        for k, at in enumerate(slots):
            waiting = _Waiting()(inside.table("waiting", at))
            mine = inside["slot"] == at
            stores, clears = self.stores & mine, self.clears & mine
            valid = (waiting.valid | stores) & ~clears
            final = Mux(stores, step[4].ticket.final, waiting.final)
            record = Mux(stores, inside["record"], inside.row("slot_records.storage", at))
            ahead, ssn = Signal(exact_log2(window)), Signal(16)
            m.d.comb += [ahead.eq(k - following), ssn.eq(following + ahead)]
            here = holds.bit_select(ahead, 1)
            self.lemma(if_(known, valid == here), "an item waits")
            self.lemma(if_(known & here, record == ssn), "its record")
            self.lemma(if_(known & here, final == (came.ended & (ssn == came.last))), "final")
            gone = ~waiting.valid | clearing[k]
            self.lemma(if_((cleared & (self.cleared > k)) | wiping, gone), "a slot is cleared")

    def _walk(self):
        """Adds lemmas about the walk through the items that became free to leave."""
        inside, step, own, live = self.inside, self.step, self.own, self.live
        drain = inside.component("drain")
        used, decided, wants, newest, first, walks, begins, begun, settled = (
            inside[f"drain.{name}"] for name in (
                "used", "decided", "wants", "newest", "first", "walks", "begins", "begun",
                "settled"))
        streams = Array(inside[f"drain.stream_{k}"] for k in range(len(used)))
        head = self.dut.i.payload.shape()(inside["head"])
        entries = [used[k] & (streams[k] == self.mine) for k in range(len(used))]
        self.lemma(sum(entries[1:], entries[0]) <= 1, "a stream is in the ring once")
        for k in range(len(used)):
            waits = used[k] & self.some & (streams[k] == head.ticket.stream)
            self.lemma(if_(waits, drain.held), "its items are held")
        items = [each.item & of_it for each, of_it in zip(step, own, strict=True)]
        for k in range(5):
            at = (newest + sum(self.coming[k + 1:], C(0)))[:2]
            self.lemma(if_(self.coming[k], streams[at] == step[k].ticket.stream), "its entry")
            self.lemma(if_(self.coming[k] & own[k], ~any_of(items[:k])), "no item follows")
        known = any_of(entry & decided[k] for k, entry in enumerate(entries))
        self.lemma(if_(known, ~any_of(items)), "no item during a walk")
        draining = any_of(entry & decided[k] & wants[k] for k, entry in enumerate(entries))
        result = self.coming[4] & drain.result.payload & own[4]
        self.lemma(if_(live & self.behind.any(), draining | result), "those behind will leave")

        # The walk begins with the next DDP-SSN, once that is in the table.
        here = (used & decided & wants).bit_select(first, 1) & (streams[first] == self.mine) & live
        probes = [each.probe for each in step]
        read = _State()(inside.found("states", 1)[0])
        self.lemma(if_(here & settled[0], read.next == self.next), "the walk reads it")
        self.lemma(if_(here & settled[1], drain.state.next == self.next), "the walk has read it")
        self.lemma(if_(begins | begun, settled.all() & ~any_of(probes)), "it begins alone")
        for k in range(4):
            self.lemma(if_(settled[k], ~any_of(probes[:k + 1])), "those before it have passed")
        self.lemma(if_(here & begun, drain.ssn == self.next), "it begins")
        self.lemma(if_(drain.now, walks), "it goes on")
        self.lemma(if_(walks, drain.after == (drain.ssn + 1)[:16]), "it goes on by one")

        # Its probes follow each other; after the gap none finds anything.
        gap = step[4].probe & ~self.moves
        mine = [probe & of_it for probe, of_it in zip(probes, own, strict=True)]
        ssns = [each.ticket.ssn for each in step]
        walking = here & walks
        for k in range(4):
            ssn = self.next + gap + sum(probes[k + 1:4], C(0))
            self.lemma(if_(walking & probes[k], own[k] & (ssns[k] == ssn[:16])), "a probe")
            ahead = (ssns[k] - self.next)[:16]
            self.lemma(if_(live & ~walking & mine[k], (ahead != 0) & (ahead <= 4)), "a late probe")
        ssn = self.next + gap + sum(probes[1:4], probes[0])
        self.lemma(if_(walking, drain.ssn == ssn[:16]), "the next probe")
        self.lemma(if_(walking & probes[4], own[4]), "the last probe")
        for k in range(5):
            self.lemma(if_(mine[k], ~any_of(items[k + 1:])), "no item before a probe")
        self.lemma(if_(walks & ~walking & live, ~any_of(mine)), "no probe of another walk")
