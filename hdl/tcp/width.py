"""Converts frames between beats and words, for blocks that handle one word per cycle."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Beat

__all__ = ["FrameWord", "Gather", "Split", "Word"]

#: Octets that a frame is shifted by, as in :class:`~..ip.shift.FrameShift`.
MOVED = 2


class Word(data.StructLayout):
    """A word of a packet.

    Members
    -------
    data : 32
        Octets, the first one lowest.
    ends : 2
        On the last word: its octets, less one.
    last : 1
    """

    def __init__(self):
        super().__init__({"data": 32, "ends": 2, "last": 1})


class FrameWord(data.StructLayout):
    """A word of a frame, as received (``raw``) and shifted by two octets (``moved``).

    In the shifted frame, which begins with two zeros, all headers after the Ethernet header are
    word-aligned. It may have one word more than the raw frame.

    Members
    -------
    raw, moved : Word()
    there : 1
        ``raw`` is valid: on all words except that additional one.
    error : 1
        On the last beat: the frame is damaged.
    """

    def __init__(self):
        super().__init__({"raw": Word(), "moved": Word(), "there": 1, "error": 1})


class Split(wiring.Component):
    """Splits frames' beats into words.

    Latency: 1 cycle. Throughput: one word per cycle. Reset: the next beat begins a frame. Errors:
    a frame's error mark is passed along.

    Parameters
    ----------
    width : int

    Members
    -------
    i : In(stream.Signature(Beat(width)))
    o : Out(stream.Signature(FrameWord()))
        ``moved.last`` ends the frame.
    """

    def __init__(self, width):
        self.width = width
        super().__init__({
            "i": In(stream.Signature(Beat(width))), "o": Out(stream.Signature(FrameWord()))})

    def elaborate(self, platform):
        m = Module()
        beat, some = Signal(Beat(self.width)), Signal()
        left = Signal.like(beat.count)  # octets of the beat that are not out yet
        carry = Signal(8 * MOVED)
        spill = Signal()
        raw, moved, done = self.o.payload.raw, self.o.payload.moved, Signal()
        m.d.comb += [
            self.o.valid.eq(some),
            self.o.payload.there.eq(~spill),
            self.o.payload.error.eq(beat.error),
            raw.data.eq(beat.data[:32]),
            raw.ends.eq(left - 1),
            raw.last.eq(beat.last & (left <= 4)),
            moved.data.eq(Cat(carry, Mux(spill, 0, beat.data[:32 - 8 * MOVED]))),
            moved.ends.eq(Mux(spill, left - 1, left + (MOVED - 1))),
            moved.last.eq(beat.last & (spill | (left <= 4 - MOVED))),
            # After a last beat, one more word with the octets carried over from it.
            done.eq(Mux(beat.last, moved.last, left <= 4)),
            self.i.ready.eq(~some | (done & self.o.ready)),
        ]
        with m.If(some & self.o.ready):
            m.d.sync += [
                beat.data.eq(beat.data >> 32),
                carry.eq(Mux(moved.last, 0, beat.data[32 - 8 * MOVED:32])),
                left.eq(Mux(raw.last, left - (4 - MOVED), left - 4)),
                spill.eq(raw.last & ~moved.last),
            ]
        with m.If(self.i.ready):
            m.d.sync += [
                some.eq(self.i.valid),
                beat.eq(self.i.payload),
                left.eq(self.i.payload.count),
            ]
        return m


class Gather(wiring.Component):
    """Gathers words into beats.

    Latency: 1 cycle from a beat's last word. Throughput: one word per cycle. Reset: empty. Errors:
    none. Octets after a packet's last one are undefined.

    Parameters
    ----------
    width : int

    Members
    -------
    i : In(stream.Signature(Word()))
    o : Out(stream.Signature(Beat(width)))
    """

    def __init__(self, width):
        self.width = width
        super().__init__({
            "i": In(stream.Signature(Word())), "o": Out(stream.Signature(Beat(width)))})

    def elaborate(self, platform):
        m = Module()
        words = self.width // 32
        at = Signal(range(words))
        beat, word = self.o.payload, self.i.payload
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += self.o.valid.eq(0)
            with m.If(self.i.valid):
                m.d.sync += [
                    beat.data.word_select(at, 32).eq(word.data),
                    beat.last.eq(word.last),
                    beat.count.eq(Mux(word.last, Cat(word.ends, at) + 1, self.width // 8)),
                    at.eq(Mux(word.last, 0, at + 1)),
                    self.o.valid.eq(word.last | (at == words - 1)),
                ]
        return m
