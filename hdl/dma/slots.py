"""Implements the data path: jobs become ring addresses, and ring data become outgoing beats."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import delayed
from .jobs import Geometry
from .output_queue import Heading, OutBeat
from .rotate import Join, Lanes, Rotate
from .sequencer import JobSequencer

__all__ = ["Align", "Slot", "Slots"]


class Slot(data.StructLayout):
    """The facts about a slot, delayed alongside its beat.

    Members
    -------
    rotate, ahead : as in SlotBody
    low, high : first and last lane to write
    last : 1
        Last slot of its placement.
    silent : 1
        The slot has no outgoing beat.
    final : 1
        Last outgoing beat of its placement.
    edge : 1
        Last beat before a burst boundary.
    exception : 1
    """

    def __init__(self, geometry):
        super().__init__({
            "rotate": geometry.lane, "ahead": 1, "low": geometry.lane, "high": geometry.lane,
            "last": 1, "silent": 1, "final": 1, "edge": 1, "exception": 1,
        })


class Slots(wiring.Component):
    """Computes the slots of each placement: a ring address, and how to use the beat read there.

    Latency: 2 cycles from ``i`` to ``read_address``, then 1 to ``o``. Throughput: one slot per
    cycle. Reset: empty. Errors: none.

    Parameters
    ----------
    config : RnicConfig
    job : Job(SlotBody)

    Members
    -------
    i : In(stream.Signature(job))
    go : In(1)
        There is room for one more outgoing beat in the next cycle.
    sent : Out(1)
        A slot with an outgoing beat was made; combinational.
    busy : Out(1)
        A placement is being processed.
    read_address : Out(range(beats in the packet buffer))
    read_sctp : Out(1)
        With two packet buffers only: the address is in the second one.
    o_valid : Out(1)
        A slot is output; its address was output one cycle before.
    o : Out(Slot)
    heading : Out(stream.Signature(Heading, always_ready=True))
        An exception packet begins with the slot made one cycle before.
    release : Out(stream.Signature(Placement's release, always_ready=True))
        Once for each placement, in the cycle in which its last read arrives.
    release_sctp : Out(1)
        With two packet buffers only: ``release`` is for the second one.
    """

    def __init__(self, config, job):
        self.config = config
        self.job = job
        self.geometry = geometry = Geometry(config)
        self.slot = Slot(geometry)
        self.two_sources = "sctp" in dict(job.body)
        super().__init__({
            "i": In(stream.Signature(job)),
            "go": In(1),
            "sent": Out(1),
            "busy": Out(1),
            "read_address": Out(geometry.ring),
            "o_valid": Out(1),
            "o": Out(self.slot),
            "heading": Out(stream.Signature(Heading(), always_ready=True)),
            "release": Out(stream.Signature(job.body["release"].shape, always_ready=True)),
            **({"read_sctp": Out(1), "release_sctp": Out(1)} if self.two_sources else {}),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.sequencer = sequencer = JobSequencer(self.job)
        body = sequencer.body
        silent = Signal()
        valid1 = Signal()
        slot1 = Signal(self.slot, reset_less=True)
        position1 = Signal(self.geometry.burst, reset_less=True)
        done = Signal(3)
        releases = Signal(data.ArrayLayout(self.release.payload.shape(), 3), reset_less=True)

        wiring.connect(m, wiring.flipped(self.i), sequencer.i)
        m.d.comb += [
            sequencer.go.eq(self.go),
            self.busy.eq(sequencer.busy),
            silent.eq(sequencer.last & body.silent),
            self.sent.eq(sequencer.valid & ~silent),
        ]
        m.d.sync += [
            self.heading.valid.eq(self.sent & sequencer.first & body.exception),
            self.heading.payload.reason.eq(body.reason),
            self.heading.payload.stream.eq(body.stream),
            self.heading.payload.sequence.eq(body.sequence),
            valid1.eq(sequencer.valid),
            self.read_address.eq(body.start + sequencer.index),
            position1.eq(body.position + sequencer.index),
            slot1.rotate.eq(body.rotate),
            slot1.ahead.eq(body.ahead),
            slot1.last.eq(sequencer.last),
            slot1.silent.eq(silent),
            slot1.final.eq(Mux(body.silent, sequencer.penultimate, sequencer.last)),
            slot1.exception.eq(body.exception),
            # Inner beats are whole; ``high`` is set one cycle later, when ``final`` is known.
            slot1.low.eq(Mux(sequencer.first, body.first_lane, 0)),
            slot1.high.eq(body.last_lane),
        ]
        m.d.sync += [
            self.o_valid.eq(valid1),
            self.o.eq(slot1),
            self.o.high.eq(Mux(slot1.final, slot1.high, ~0)),
            self.o.edge.eq(slot1.final | position1.all()),
        ]
        m.d.sync += [
            done.eq(Cat(sequencer.valid & sequencer.last, done)),
            releases.eq(Cat(body.release, releases)),
        ]
        m.d.comb += [
            self.release.valid.eq(done[2]),
            self.release.payload.eq(releases[2]),
        ]
        if self.two_sources:
            m.d.sync += self.read_sctp.eq(body.sctp)
            m.d.comb += self.release_sctp.eq(delayed(m, 3, body.sctp, "sctp"))
        return m


class Align(wiring.Component):
    """Turns ring beats into outgoing beats by rotation, join and strobes.

    Latency: ``Rotate.stages + 4`` cycles from a slot to its beat. Throughput: one slot per cycle.
    Reset: empty. Errors: none; the receiver of ``o`` must have room.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i_valid : In(1)
    i : In(Slot)
    read_data : In(8 * octets)
        Beat read for the slot of two cycles before.
    o : Out(stream.Signature(OutBeat, always_ready=True))
    """

    def __init__(self, config):
        self.geometry = geometry = Geometry(config)
        self.slot = Slot(geometry)
        super().__init__({
            "i_valid": In(1),
            "i": In(self.slot),
            "read_data": In(8 * geometry.octets),
            "o": Out(stream.Signature(OutBeat(geometry.octets), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        octets, lane = self.geometry.octets, self.geometry.lane
        m.submodules.rotate = rotate = Rotate(octets)
        m.submodules.join = join = Join(octets)
        m.submodules.below = below = Lanes(octets)
        m.submodules.low = low = Lanes(octets)
        m.submodules.high = high = Lanes(octets)
        # slots[n] is ``i`` of n cycles ago; the rotated beat is in step with slots[stages + 2].
        depth = rotate.stages + 2
        slots = [self.i] + [Signal(self.slot, name=f"slot{n}", reset_less=True)
                            for n in range(1, depth + 1)]
        valid = Signal(depth - 1)
        slot, early = slots[depth], slots[depth - 2]
        held = Signal(self.slot, reset_less=True)
        held_strobe = Signal(octets, reset_less=True)

        m.d.sync += [one.eq(other) for one, other in zip(slots[1:], slots, strict=False)]
        m.d.sync += valid.eq(Cat(self.i_valid, valid))
        m.d.comb += [
            rotate.amount.eq(slots[1].rotate),
            rotate.i.eq(self.read_data),
            below.i.eq(early.rotate),
            low.i.eq(early.low),
            high.i.eq(~early.high),
            join.soon.eq(valid[-1]),
            join.i.eq(rotate.o),
            join.below.eq(below.o),
            join.ahead.eq(slot.ahead),
            join.last.eq(slot.last),
            self.o.payload.data.eq(join.o),
        ]
        with m.If(join.load):
            m.d.sync += [held.eq(slot), held_strobe.eq(~(low.o | high.o[::-1]))]
        m.d.sync += [
            self.o.valid.eq(join.o_valid & ~held.silent),
            self.o.payload.strobe.eq(held_strobe),
            self.o.payload.last.eq(held.edge),
            self.o.payload.exception.eq(held.exception),
        ]
        # An exception begins at lane 0, so its last lane gives the number of octets.
        with m.If(held.exception):
            m.d.sync += [
                self.o.payload.strobe[:lane + 1].eq(held.high + 1),
                self.o.payload.last.eq(held.final),
            ]
        return m
