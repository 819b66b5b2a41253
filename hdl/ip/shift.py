"""Shifts a frame by two octets, so that all headers after the Ethernet header are word-aligned."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.stream import Beat

__all__ = ["FrameShift", "ShiftedBeat"]

#: Octets that a frame is shifted by.
MOVED = 2


class ShiftedBeat(data.StructLayout):
    """A beat of a shifted frame.

    Members
    -------
    data : unsigned(width)
        Octets, the first one lowest; two zeros before the frame, zeros after it.
    used : words
        1 for each word that holds octets.
    first, last : 1
    error : 1
        On the last beat: the frame is damaged.
    ends : range(octets)
        On the last beat: the lane of the frame's last octet.
    number : 18 - log2(octets)
        Beats of the frame before this one. It stops counting when its highest bit is set.
    """

    def __init__(self, width):
        octets = width // 8
        super().__init__({
            "data": width,
            "used": width // 32,
            "first": 1,
            "last": 1,
            "error": 1,
            "ends": range(octets),
            "number": 18 - exact_log2(octets),
        })


class FrameShift(wiring.Component):
    """Shifts frames by two octets, and clears all octets that are not part of the frame.

    Latency: 2 cycles. Throughput: one output beat per cycle. A frame that needs one more beat at
    the output than at the input holds ``i.ready`` low for a cycle. Reset: the next beat begins a
    frame. Errors: a frame's error mark is passed along. ``i.ready`` is an inverted register and
    does not depend on ``i.valid``.

    Parameters
    ----------
    width : int

    Members
    -------
    i : In(stream.Signature(Beat(width)))
    o : Out(stream.Signature(ShiftedBeat(width), always_ready=True))
    """

    def __init__(self, width):
        self.width = width
        super().__init__({
            "i": In(stream.Signature(Beat(width))),
            "o": Out(stream.Signature(ShiftedBeat(width), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        octets = self.width // 8
        beat = self.i.payload
        over = 8 * (octets - MOVED)
        carry = Signal(8 * MOVED, reset_less=True)
        first = Signal(init=1)
        # ``spill``: the last octets of the beat before are still in ``carry``, one or both.
        spill, both, error = Signal(), Signal(), Signal()
        valid = Signal()
        moved = Signal(ShiftedBeat(self.width))
        keep = Signal(octets)
        taken = Signal()
        spills = Signal()
        m.d.comb += [
            self.i.ready.eq(~spill),
            taken.eq(self.i.valid & ~spill),
            spills.eq(beat.last & (beat.count > octets - MOVED)),
        ]

        # Step 1: shift the octets, and mark those that are part of the frame.
        m.d.sync += [
            valid.eq(taken | spill),
            moved.data.eq(Cat(Mux(first, 0, carry), beat.data[:over])),
            moved.first.eq(first),
            moved.last.eq(spill | (beat.last & ~spills)),
            moved.error.eq(Mux(spill, error, beat.error)),
            moved.ends.eq(Mux(spill, both, beat.count + (MOVED - 1))),
            keep.eq(Cat(1, ~spill | both,
                        (~spill & (beat.count > k) for k in range(octets - MOVED)))),
            spill.eq(taken & spills),
        ]
        with m.If(taken):
            m.d.sync += [
                carry.eq(beat.data[over:]),
                first.eq(beat.last & ~spills),
                both.eq(beat.count[0] == 0),
                error.eq(beat.error),
            ]
        with m.If(spill):
            m.d.sync += first.eq(1)
        with m.If(valid):
            m.d.sync += moved.number.eq(Mux(moved.last, 0, moved.number + ~moved.number[-1]))

        # Step 2: clear all other octets.
        m.d.sync += [
            self.o.valid.eq(valid),
            self.o.payload.eq(moved),
            self.o.payload.data.eq(moved.data & Cat(bit.replicate(8) for bit in keep)),
            self.o.payload.used.eq(Cat(keep[at] for at in range(0, octets, 4))),
        ]
        return m
