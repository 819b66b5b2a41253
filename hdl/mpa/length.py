"""Computes how long FPDUs are, and where their markers stand (RFC 5044 section 4)."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .framer import SPACING

__all__ = ["BETWEEN", "FpduLength"]

#: Words of an FPDU between two markers.
BETWEEN = SPACING - 1


class FpduLength(wiring.Component):
    """Computes the words of four octets of an FPDU: length, ULPDU, PAD, CRC, and markers.

    A position in a stream with markers is the number of words ``after`` the last marker, 1 to 127;
    an FPDU at 127 begins with a marker.

    Latency: 2 cycles from ``octets``. Throughput: one FPDU per cycle. Reset: none. Errors: none.

    Members
    -------
    octets : In(17)
        Those of the ULPDU.
    plain : Out(15)
        Words without markers.
    marked : Out(15), left : Out(7)
        Words with a marker after each ``BETWEEN`` of them, and the words after the last of these.
    markers : In(1), after : In(7)
        Whether the stream has markers, and where the FPDU begins; with the results.
    words : Out(15), then : Out(7)
        Words in this stream, and the position after them. Combinational.
    """

    def __init__(self):
        super().__init__({
            "octets": In(17), "plain": Out(15), "marked": Out(15), "left": Out(7),
            "markers": In(1), "after": In(7), "words": Out(15), "then": Out(7)})

    def elaborate(self, platform):
        m = Module()
        words = Signal(15)
        # Each 127 words bring a marker; the words beyond these may bring another one.
        rest = words[7:] + words[:7]
        after, one_more = Signal(8), Signal()
        m.d.sync += [
            words.eq(((self.octets + 5) >> 2) + 1),
            self.plain.eq(words),
            self.marked.eq(words + words[7:] + (rest >= BETWEEN) + (rest >= 2 * BETWEEN)),
            self.left.eq(rest - Mux(rest >= 2 * BETWEEN, 2 * BETWEEN, Mux(
                rest >= BETWEEN, BETWEEN, 0))),
        ]
        m.d.comb += [
            after.eq(self.after + self.left),
            one_more.eq(after > BETWEEN),
            self.words.eq(Mux(self.markers, self.marked + one_more, self.plain)),
            self.then.eq(Mux(one_more, after - BETWEEN, after)),
        ]
        return m
