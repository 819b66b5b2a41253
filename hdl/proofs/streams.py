"""Proves that streams hold an offer until it is taken, and that queues lose nothing."""

from amaranth import *
from amaranth.hdl import Cover

from .harness import Harness, if_, streams

__all__ = [
    "Accesses", "BacklogOrder", "Committed", "QueueOrder", "Scanned", "SkidOrder", "StageOrder",
    "Steady", "StoreOrder", "TakenIn", "items", "stored", "valid_from_ready",
]


def valid_from_ready(module):
    """Returns the pairs of an output ``valid`` and an input ``ready`` that gates connect.

    A pair has a path of gates from ``ready`` to ``valid``; there must be none. This is found in the
    netlist, in the form of yosys's ``write_json``, so it holds for all time without assumptions.
    Also returns the number of output streams.
    """
    driver = {}
    for cell in module["cells"].values():
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "output":
                driver.update(dict.fromkeys(bits, cell))
    ready, valid = {}, {}
    for name, port in module["ports"].items():
        if name.endswith("__ready") and port["direction"] == "input":
            ready[port["bits"][0]] = name
        if name.endswith("__valid") and port["direction"] == "output":
            valid[name] = port["bits"]
    pairs = set()
    for name, ahead in valid.items():
        seen = set()
        ahead = list(ahead)
        while ahead:
            bit = ahead.pop()
            if bit in seen:
                continue
            seen.add(bit)
            if bit in ready:
                pairs.add((name, ready[bit]))
            cell = driver.get(bit)
            if cell is not None and not _clocked(cell):
                for port, bits in cell["connections"].items():
                    if cell["port_directions"][port] == "input":
                        ahead.extend(bits)
    return pairs, len(valid)


def _clocked(cell):
    if "CLK_ENABLE" in cell["parameters"]:  # a port of a memory
        return int(cell["parameters"]["CLK_ENABLE"], 2)
    return "dff" in cell["type"] or cell["type"] in ("$anyseq", "$anyconst")


class Steady(Harness):
    """Proves that every output stream holds ``valid`` and payload until the transfer.

    Assumes the same of the input streams. By induction of depth 1.
    """

    def rules(self, m):
        for name, port, outward in streams(self.dut):
            if outward:
                self.steady(port, f"{name} is held")
                m.d.comb += Cover(self.past(port.valid & ~port.ready) & port.ready, name)
            else:
                self.polite(port)


class Accesses(Steady):
    """Proves that the registers hold ``b`` and ``r``, and respond once to each request taken.

    Assumes that requests are held. By induction of depth 1.
    """

    def rules(self, m):
        super().rules(m)
        bus, inside = self.dut.bus, self.inside
        step, answers = inside["step"], inside["answers"]
        begins, writing = inside["begins"], inside["writing"]
        reads, writes = Signal(2), Signal(2)
        m.d.sync += [
            reads.eq(reads + (bus.ar.valid & bus.ar.ready) - (bus.r.valid & bus.r.ready)),
            writes.eq(writes + (bus.aw.valid & bus.aw.ready) - (bus.b.valid & bus.b.ready)),
        ]
        self.always(bus.aw.ready == bus.w.ready, "address and data are taken together")
        self.always(if_(bus.aw.ready, bus.aw.valid & bus.w.valid), "both are there")
        self.always(reads == (step.any() | bus.r.valid), "a read is answered once")
        self.always(writes == (answers | bus.b.valid), "a write is answered once")
        # The states of a request.
        self.lemma((step & (step - 1)) == 0, "one read at a time")
        self.lemma(if_(bus.r.valid, ~step.any()), "no read behind an answer")
        self.lemma(if_(begins, bus.aw.valid & bus.w.valid & ~writing), "one write at a time")
        self.lemma(if_(begins | writing, ~bus.b.valid & ~answers), "no write behind an answer")
        self.lemma(if_(answers, ~bus.b.valid), "one answer at a time")
        self.lemma(inside["reading"] == (step.any() | bus.r.valid), "reading")
        self.lemma(inside["free"] == ~(begins | writing | answers | bus.b.valid), "free")


class TakenIn(Steady):
    """Proves that the intake's queue never overflows, so that no beat is lost, and holds offers.

    Assumes that beats are held. By induction of depth 5, the cycles that the queue plans ahead.
    """

    DEPTH = 5

    def rules(self, m):
        super().rules(m)
        queue = self.inside.component("queue")
        count = items(m, queue)
        self.always(if_(queue.i.valid, count < queue.depth), "there is room")
        stored(self, m, "queue.", count, queue.depth)


class Scanned(Harness):
    """Proves that the scan holds a beat at its output until the beat leaves by request.

    Assumes that beats are held. By induction of depth 1.
    """

    def rules(self, m):
        dut = self.dut
        self.polite(dut.i)
        told, valid = self.past(dut.goes), self.past(dut.offers)
        waits = self.past(valid & ~told)
        same = Value.cast(dut.o) == self.past(dut.o)
        self.always(if_(waits, valid & same), "a beat is held")
        inside = self.inside
        arrived = inside["arriving__valid"]
        can_shift = arrived | inside["first"]
        self.lemma(valid == (inside["filled"][-1] & can_shift), "what is given out")
        self.lemma(if_(valid, inside["shift"] == told), "a beat goes when that was told")
        self.lemma(inside["holds"] == ~inside["shift"], "holds")
        self.lemma(inside["takes"] == ~(arrived & inside["holds"]), "takes")


class Committed(Steady):
    """Proves that Commit's queue of moves never overflows, and holds its offers.

    Assumes that ``clear`` and ``bus_errors`` are held. By induction of depth 1.
    """

    def rules(self, m):
        super().rules(m)
        dut, inside = self.dut, self.inside
        move = inside.component("moves").i
        count = items(m, inside.component("moves"))
        self.always(if_(move.valid, count < dut.MOVES), "there is room")
        under = inside["merge.under"]
        moving = inside["credits.used"] + under[0]
        way = sum(under[k] for k in range(len(under))) + inside["acts"] + move.valid
        stored(self, m, "moves.", count, dut.MOVES)
        self.lemma(moving == way + count + inside["moved"], "each move has its place")
        self.lemma(moving <= dut.MOVES, "no more than there are")
        self.lemma(if_(inside["credits.ok"], moving <= dut.MOVES - 3), "room for what is taken")


class _Order(Harness):
    """Proves that a queue outputs each item that it took exactly once, in the order of arrival.

    Any one item is followed: when it arrives, all items inside are ahead of it; when these have
    left, the item offered is this one. As this holds for any item, none is lost, doubled or
    overtaken.

    Parameters
    ----------
    late : int
        Cycles that the first item may take to reach the output.
    """

    late = 0

    def rules(self, m):
        dut = self.dut
        self.count = count = Signal(8)
        self.followed = followed = Signal()
        self.ahead = ahead = Signal.like(count)
        self.item = item = Signal.like(Value.cast(dut.i.payload))
        push, pop, passes = Signal(), Signal(), Signal()
        mark = self.any(1, name="mark")
        m.d.comb += [
            push.eq(dut.i.valid & dut.i.ready),
            pop.eq(dut.o.valid & dut.o.ready),
            passes.eq(self.passes() & (count == 0)),
        ]
        m.d.sync += count.eq(count + push - pop)
        with m.If(~followed):
            m.d.sync += [
                followed.eq(push & mark & ~(passes & pop)),
                item.eq(dut.i.payload),
                ahead.eq(count - pop),
            ]
        with m.Elif(pop):
            m.d.sync += [followed.eq(ahead != 0), ahead.eq(ahead - 1)]
        self.steady(dut.o, "o is held")
        self.always(if_(dut.o.valid, (count != 0) | passes), "only what came in goes out")
        self.always(if_(passes, dut.o.payload == dut.i.payload), "what passes by is unchanged")
        first = followed & (ahead == 0)
        self.always(if_(first & dut.o.valid, dut.o.payload == item), "the item comes in its turn")
        self.always(if_(followed, ahead < count), "the item is inside")
        waited = first
        for cycles in range(1, self.late + 1):
            waited = waited & self.past(first, cycles)
        self.always(if_(waited, dut.o.valid), "what is first is offered")
        m.d.comb += Cover(first & pop & self.past(followed & (ahead == 2), 4), "an item goes by")

    def passes(self):
        """Returns whether an item that comes now is offered now, if the queue is empty."""
        return C(0)


class StoreOrder(_Order):
    """Proves :class:`_Order` for a Store, and that ``half`` means that more than half is free.

    Assumes no push when it is full. By induction of depth 1.
    """

    def rules(self, m):
        super().rules(m)
        dut = self.dut
        self.assume(~dut.i.valid | (self.count < dut.depth))
        self.always(if_(dut.half, self.count < dut.depth // 2), "half of it is free")
        self.where(m, "", self.count, self.ahead, self.followed)

    def passes(self):
        return self.dut.i.valid if getattr(self.dut, "direct", False) else C(0)

    def where(self, m, path, count, ahead, followed):
        """States where the items of a store are; ``ahead`` precede the one that is followed."""
        read = stored(self, m, path, count, self.dut.depth)
        slot = Signal.like(read)
        m.d.comb += slot.eq(read + ahead)
        row = Value.cast(self.inside.row(f"{path}storage", slot))
        self.lemma(if_(followed, row == self.item), "the item is where it belongs")


def items(m, queue):
    """Returns how many items a queue has taken and not yet output."""
    count = Signal(8)
    m.d.sync += count.eq(count + queue.i.valid - (queue.o.valid & queue.o.ready))
    return count


def stored(harness, m, path, count, depth):
    """States that the store at ``path`` has ``count`` items; returns its pointer to the first."""
    harness.lemma(count <= depth, "no more than fit")
    return pointed(harness, f"{path}pointers.", count)


def pointed(harness, path, count):
    """States that the pointers of the ring at ``path`` are those of ``count`` items.

    Returns the pointer to the first item.
    """
    some, none, one, two, popped, level, write, read = (
        harness.inside[f"{path}{name}"]
        for name in ("some", "none", "one", "two", "popped", "level", "write", "read"))
    bits = len(read)
    harness.lemma(some == (count != 0), "some")
    harness.lemma(level == count + popped, "level")
    harness.lemma(Cat(none, one, two) == Cat(level == k for k in range(3)), "few")
    harness.lemma((write - read)[:bits] == count[:bits], "pointers")
    return read


class QueueOrder(StoreOrder):
    """Proves :class:`_Order` for a Queue, which itself prevents an overflow.

    Assumes nothing. By induction of depth 2.
    """

    late = 1

    def rules(self, m):
        _Order.rules(self, m)
        dut, staged = self.dut, self.dut.o.valid
        inner, behind = Signal.like(self.count), Signal.like(self.count)
        m.d.comb += [inner.eq(self.count - staged), behind.eq(self.ahead - staged)]
        here = self.followed & ~(staged & (self.ahead == 0))
        self.lemma(self.count >= staged, "what is staged is counted")
        self.where(m, "store.", inner, behind, here)
        self.lemma(if_(dut.i.ready, inner < dut.depth), "there is room")


class StageOrder(_Order):
    """Proves :class:`_Order` for a Stage. Assumes nothing. By induction of depth 1."""

    def rules(self, m):
        super().rules(m)
        self.lemma(self.count == self.dut.o.valid, "one register")


class SkidOrder(_Order):
    """Proves :class:`_Order` for a Skid. Assumes nothing. By induction of depth 1."""

    def rules(self, m):
        super().rules(m)
        full, spare = self.inside["full"], self.inside["spare"]
        self.lemma(self.count == self.dut.o.valid + full, "two registers")
        self.lemma(if_(full, self.dut.o.valid), "the spare one is the second")
        second = self.followed & (self.ahead == 1)
        self.lemma(if_(second, full & (spare == self.item)), "the item in the spare")


class BacklogOrder(_Order):
    """Proves :class:`_Order` for a Backlog.

    Assumes no push when it is full. By induction of depth 6.
    """

    late = 5

    def rules(self, m):
        super().rules(m)
        dut, inside = self.dut, self.inside
        self.assume(if_(dut.i.valid, self.count < dut.depth))
        self.always(if_(dut.half, self.count < dut.depth // 2), "half of it is free")

        # On its way out, an item is in one of these registers; all other items are in the ring.
        stages = [(inside["ring.latched"], inside.read("ring.storage"))]
        if not dut.relaxed:
            full, spare = inside["ring.skid.full"], inside["ring.skid.spare"]
            stages = [
                (full, spare), (inside["ring.came"], inside["ring.near"]),
                (inside["ring.staged"], inside["ring.held"]), *stages,
            ]
            self.lemma(if_(full, dut.o.valid), "the spare one is the second")
            self.lemma(inside["ring.moves"] == ~full, "moves")
        passed = dut.o.valid
        for there, item in stages:
            here = self.followed & there & (self.ahead == passed)
            self.lemma(if_(here, item == self.item), "an item on its way")
            passed = passed + there

        inner, behind = Signal.like(self.count), Signal.like(self.count)
        slot = Signal(range(dut.depth))
        m.d.comb += [inner.eq(self.count - passed), behind.eq(self.ahead - passed)]
        self.lemma(self.count >= passed, "what is on its way is counted")
        self.lemma(self.count <= dut.depth, "no more than fit")
        m.d.comb += slot.eq(pointed(self, "pointers.", inner) + behind)
        waits = self.followed & (self.ahead >= passed)
        row = Value.cast(inside.row("ring.storage", slot))
        self.lemma(if_(waits, row == self.item), "an item in the ring")
        self.lemma(inside["level"] == self.count + inside["popped"], "level")
