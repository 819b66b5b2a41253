"""Aligns octets: rotates beats by any number of lanes, and joins octets from two beats."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import copies

__all__ = ["Join", "Lanes", "Rotate"]

GROUP = 8  # octets that share one copy of a control register


class Rotate(wiring.Component):
    """Rotates a beat towards the higher lanes, one 4:1 stage per cycle.

    ``amount`` arrives one cycle before its ``i``.

    Latency: ``stages`` cycles from ``i`` to ``o``. Throughput: one beat per cycle. Reset: none.
    Errors: none.

    Parameters
    ----------
    lanes : int
        Lanes of a beat.
    octets : int
        Octets of a lane.

    Members
    -------
    amount : In(range(lanes))
    i : In(8 * octets * lanes)
    o : Out(8 * octets * lanes)
    """

    def __init__(self, lanes, octets=1):
        self.lanes, self.octets = lanes, octets
        self.stages = ((lanes - 1).bit_length() + 1) // 2
        bits = 8 * octets * lanes
        super().__init__({"amount": In(range(lanes)), "i": In(bits), "o": Out(bits)})

    def elaborate(self, platform):
        m = Module()
        beat = self.i
        lanes_of_group = GROUP // self.octets
        groups = self.lanes // lanes_of_group
        # Selects are copied for every 64 bits, so that none drives more than 128 multiplexers.
        amounts = [self.amount[2 * stage:2 * stage + 2] for stage in range(self.stages)]
        for stage in range(self.stages):
            selects = copies(m, amounts[stage], groups, name=f"select{stage}_")
            for later in range(stage + 1, self.stages):
                amount = Signal(len(amounts[later]), name=f"amount{stage}_{later}",
                                reset_less=True)
                m.d.sync += amount.eq(amounts[later])
                amounts[later] = amount
            rotated = Signal.like(self.i, name=f"rotated{stage}", reset_less=True)
            low, bits = 2 * stage, 8 * self.octets
            for lane in range(self.lanes):
                select = selects[lane // lanes_of_group]
                choices = Array(beat.word_select((lane - (rotation << low)) % self.lanes, bits)
                                for rotation in range(1 << len(select)))
                m.d.sync += rotated.word_select(lane, bits).eq(choices[select])
            beat = rotated
        m.d.comb += self.o.eq(beat)
        return m


class Lanes(wiring.Component):
    """Computes which lanes are below a lane number, in two steps of few inputs.

    Latency: 2 cycles. Throughput: one number per cycle. Reset: none. Errors: none.

    Parameters
    ----------
    octets : int

    Members
    -------
    i : In(range(octets))
    o : Out(octets)
        Bit ``n`` is set when ``n < i``.
    """

    def __init__(self, octets):
        self.octets = octets
        super().__init__({"i": In(range(octets)), "o": Out(octets)})

    def elaborate(self, platform):
        m = Module()
        low, high = self.i[:3], self.i[3:]
        groups = self.octets // GROUP
        below = Signal(GROUP, reset_less=True)
        whole = Signal(groups, reset_less=True)
        part = Signal(groups, reset_less=True)
        m.d.sync += below.eq(Cat(n < low for n in range(GROUP)))
        m.d.sync += whole.eq(Cat(n < high for n in range(groups)))
        m.d.sync += part.eq(Cat(n == high for n in range(groups)))
        m.d.sync += self.o.eq(Cat(whole[n].replicate(GROUP) | (below & part[n].replicate(GROUP))
                                  for n in range(groups)))
        return m


class Join(wiring.Component):
    """Joins an outgoing beat from two successive rotated beats.

    The beat in the middle register is output when it is the last slot of its placement or when the
    next slot has arrived, whichever happens first. So gaps between slots do no harm, and a
    placement never waits for the one after it.

    Latency: 2 cycles from a slot to its beat, plus the wait for the next slot if it is not the
    last. Throughput: one slot per cycle. Reset: empty (``o_valid`` only). Errors: none.

    Parameters
    ----------
    octets : int

    Members
    -------
    soon : In(1)
        A slot arrives in the next cycle: the members below then belong to it.
    i : In(8 * octets)
        Rotated beat.
    below : In(octets)
        Lanes that wrapped around in the rotation.
    ahead : In(1)
        The other lanes of the outgoing beat are in the next slot (else: these are in the previous).
    last : In(1)
        Last slot of its placement.
    load : Out(1)
        A slot arrives in this cycle.
    o_valid : Out(1)
        The slot before is output in this cycle; combinational.
    o : Out(8 * octets)
        Its beat, one cycle after ``o_valid``.
    """

    def __init__(self, octets):
        self.octets = octets
        super().__init__({
            "soon": In(1),
            "i": In(8 * octets),
            "below": In(octets),
            "ahead": In(1),
            "last": In(1),
            "load": Out(1),
            "o_valid": Out(1),
            "o": Out(8 * octets),
        })

    def elaborate(self, platform):
        m = Module()
        here = Signal()
        there = Signal()
        ends = Signal(reset_less=True)
        m.d.comb += [self.load.eq(here), self.o_valid.eq(there & (ends | here))]
        m.d.sync += here.eq(self.soon)
        with m.If(here):
            m.d.sync += [there.eq(1), ends.eq(self.last)]
        with m.Elif(ends):
            m.d.sync += there.eq(0)
        loads = copies(m, self.soon, self.octets // GROUP, name="load")
        for n, load in enumerate(loads):
            self.group(m, n * GROUP, load)
        return m

    def group(self, m, lane, load):
        """Adds eight lanes with their own copy of the enable."""
        middle = Signal(8 * GROUP, name=f"middle{lane}", reset_less=True)
        before = Signal(8 * GROUP, name=f"before{lane}", reset_less=True)
        from_before = Signal(GROUP, name=f"from_before{lane}", reset_less=True)
        from_after = Signal(GROUP, name=f"from_after{lane}", reset_less=True)
        after = self.i[8 * lane:8 * (lane + GROUP)]
        below = self.below[lane:lane + GROUP]
        with m.If(load):
            m.d.sync += [
                middle.eq(after),
                before.eq(middle),
                from_before.eq(below & (~self.ahead).replicate(GROUP)),
                from_after.eq(~below & self.ahead.replicate(GROUP)),
            ]
        for n in range(GROUP):
            m.d.sync += self.o.word_select(lane + n, 8).eq(
                Mux(from_before[n], before.word_select(n, 8),
                    Mux(from_after[n], after.word_select(n, 8), middle.word_select(n, 8))))
