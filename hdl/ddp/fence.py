"""Implements the parts of a revocation: waiting and walking (RFC 5041 section 8.3.1)."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import delayed, nibbles
from .precedence import SLOWEST
from .stag import StagEntry

__all__ = ["Fence", "RecordFence", "Sweep"]


class Fence(wiring.Component):
    """Waits until all placements that passed the checks before ``start`` are retired.

    Latency: ``busy`` is high from the cycle after ``start``, for at least ``settle`` + 3 cycles,
    and falls 2 cycles after the last placement is retired. Throughput: one fence at a time; a
    ``start`` while the fence is busy restarts it, and it then covers both. Reset: idle.
    Errors: none.

    Parameters
    ----------
    settle : int
        Cycles from ``start`` until ``issued`` counts every placement that passed before it.

    Members
    -------
    start : In(1)
    issued : In(16)
        Placements issued, modulo 2**16.
    retired : In(16)
        Placements retired, modulo 2**16; less than 2**15 fewer than ``issued``.
    busy : Out(1)
    """

    def __init__(self, settle):
        if not isinstance(settle, int) or isinstance(settle, bool):
            raise TypeError(f"Fence settle must be an integer, not {settle!r}")
        if settle < 0:
            raise ValueError(f"Fence settle must be 0 or more, not {settle!r}")
        self.settle = settle
        super().__init__({
            "start": In(1),
            "issued": In(16),
            "retired": In(16),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        left = Signal(range(self.settle + 1))
        settles, compares, drains = Signal(), Signal(), Signal()
        target = Signal(16)
        behind = Signal()

        with m.If(self.start):
            m.d.sync += settles.eq(1)
        with m.Elif(left == 0):
            m.d.sync += settles.eq(0)
        m.d.sync += left.eq(Mux(settles & ~self.start, left - 1, self.settle))
        with m.If(settles):
            m.d.sync += target.eq(self.issued)
        # ``behind`` shows the comparison with the last ``target`` one cycle later.
        with m.If(compares):
            m.d.sync += drains.eq(1)
        with m.Elif(~behind):
            m.d.sync += drains.eq(0)
        m.d.sync += [
            compares.eq(settles & (left == 0) & ~self.start),
            behind.eq((self.retired - target)[15]),
        ]
        m.d.comb += self.busy.eq(settles | compares | drains)
        return m


class RecordFence(wiring.Component):
    """Waits until all records that came before ``start`` have passed to the completion queues.

    First, every record has to enter Precedence. Then the entries that Precedence still processes
    have time to reach the decision about their queue's room, and the errors of their streams to
    reach Commit. That time counts only the cycles in which nothing on this way waits. Records of
    other streams that come after ``start`` do not count.

    Latency: ``busy`` is high from the cycle after ``start``, for at least ``LATE`` + ``SETTLE``
    cycles. Throughput: one fence at a time; a ``start`` while the fence is busy restarts it, and it
    then covers both. Reset: idle, with no record under way. Errors: none.

    Members
    -------
    start : In(1)
    came : In(1)
        A record has come to Delivery; at most ``LATE`` cycles after the ``start`` that covers it.
    passed : In(1)
        A record enters Precedence, or the queue of one entry before it, in the order of ``came``.
    moves : In(1)
        Nothing between Precedence and Commit or the queues waits.
    busy : Out(1)
    """

    #: Cycles for a record from Commit to Delivery, and some to spare.
    LATE = 12
    #: Three entries in Precedence and two before it, one after the other; then at most 20 entries
    #: and 28 registers from there to the decision, and from there to Commit.
    SETTLE = 5 * SLOWEST + 48

    start: In(1)
    came: In(1)
    passed: In(1)
    moves: In(1)
    busy: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.fence = fence = Fence(settle=self.LATE)
        came, passed = Signal(16), Signal(16)
        # Negative once all cycles have passed.
        left = Signal(signed(self.SETTLE.bit_length() + 1), init=-1)
        m.d.sync += [
            came.eq(came + delayed(m, 1, self.came, "came_before")),
            passed.eq(passed + delayed(m, 1, self.passed, "passed_before")),
        ]
        m.d.comb += [
            fence.start.eq(self.start),
            fence.issued.eq(came),
            fence.retired.eq(passed),
            self.busy.eq(fence.busy | ~left[-1]),
        ]
        moved = delayed(m, 1, self.moves, "moved")
        with m.If(self.start):
            m.d.sync += left.eq(self.SETTLE)
        with m.Elif(~fence.busy & moved & ~left[-1]):
            m.d.sync += left.eq(left - 1)
        return m


class Sweep(wiring.Component):
    """Revokes every STag that is bound to a stream.

    The sweep looks up all entries of the Steering Tag table, in order. It passes over an entry that
    is written while it is looked up; entries should not be written while the sweep is busy.

    Latency: 5 cycles from ``index`` to ``revoke``. Throughput: one entry per cycle. ``busy`` is
    high from the cycle after ``start``, for one cycle per entry and 4 more, or 5 if the sweep
    revokes the last entry. Reset: idle. Errors: none; a ``start`` while it is busy is not allowed.

    Parameters
    ----------
    entries : int
        Entries of the table, a power of two.

    Members
    -------
    start : In(1)
    stream : In(16)
        The stream whose STags are revoked; valid in the cycle of ``start``.
    busy : Out(1)
    index : Out(range(entries)), entry : In(StagEntry)
        Look-up in the Steering Tag table, answered after 2 cycles.
    revoke : Out(stream.Signature(range(entries), always_ready=True))
        Index of an entry to revoke.
    """

    def __init__(self, entries):
        self.entries = entries
        super().__init__({
            "start": In(1),
            "stream": In(16),
            "busy": Out(1),
            "index": Out(range(entries)),
            "entry": In(StagEntry(entries)),
            "revoke": Out(stream.Signature(range(entries), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        owner = Signal(16)
        walks = Signal()
        # The look-ups of 1, 2, 3 and 4 cycles ago.
        looked = data.StructLayout({"valid": 1, "index": range(self.entries)})
        past = [Signal(looked, name=f"past_{k}") for k in range(4)]
        bound = Signal(2)
        found, same = Signal(16), Signal(4)
        revokes = Signal()
        m.d.comb += revokes.eq(past[-1].valid & bound[1] & same.all())

        with m.If(walks):
            m.d.sync += [self.index.eq(self.index + 1), walks.eq(~self.index.all())]
        with m.Elif(self.start):
            m.d.sync += [walks.eq(1), owner.eq(self.stream)]
        m.d.sync += [
            past[0].valid.eq(walks),
            past[0].index.eq(self.index),
            *(later.eq(earlier) for earlier, later in zip(past, past[1:], strict=False)),
            bound.eq(Cat(self.entry.valid & self.entry.bound, bound)),
            self.revoke.valid.eq(revokes),
            self.revoke.payload.eq(past[-1].index),
            self.busy.eq(
                self.start | walks | Cat(look.valid for look in past[:-1]).any() | revokes),
        ]
        with m.If(past[1].valid):
            m.d.sync += found.eq(self.entry.owner)
        with m.If(past[2].valid):
            m.d.sync += same.eq(nibbles(found, owner))
        return m
