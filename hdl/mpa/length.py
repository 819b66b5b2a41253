"""Computes how long FPDUs are, and where their markers stand (RFC 5044 section 4)."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import plus

__all__ = ["FpduLength"]


class FpduLength(wiring.Component):
    """Computes the words of four octets of an FPDU: length, ULPDU, PAD, CRC, and markers.

    A position in a stream with markers is the number of words ``after`` the last marker, 1 to 127;
    an FPDU at 127 begins with a marker.

    Latency: 2 cycles from ``octets``. Throughput: one FPDU per cycle. Reset: none. Errors: none.

    Members
    -------
    octets : In(17)
        Those of the ULPDU.
    markers : In(1), after : In(7)
        Whether the stream has markers, and where the FPDU begins; 2 cycles after ``octets``.
    words : Out(15), one_more : Out(1), then : Out(7)
        The FPDU has ``words`` plus ``one_more`` words, and ``then`` is the position after it.
        Combinational from ``markers`` and ``after``.
    """

    def __init__(self):
        super().__init__({
            "octets": In(17), "markers": In(1), "after": In(7), "words": Out(15),
            "one_more": Out(1), "then": Out(7)})

    def added(self, sequence):
        """Returns the LLP sequence number after the FPDU, which begins at ``sequence``."""
        # ``one_more`` comes late, and chooses between two sums.
        return Cat(sequence[:2], Mux(
            self.one_more, plus(sequence[2:], self.words, 1), sequence[2:] + self.words)[:30])

    def elaborate(self, platform):
        m = Module()
        # Words without markers, with a marker after each 127 of them, and after the last of these.
        words, plain, marked, left = Signal(15), Signal(15), Signal(15), Signal(7)
        # Each 127 words bring a marker, so 128 words have one. The words beyond these 128 are
        # ``rest``, and may bring one or two more.
        rest, more = words[7:] + words[:7], Signal(2)
        beyond = Mux(more[1], (rest + 2)[:7], Mux(more[0], (rest + 1)[:7], rest[:7]))
        after = Signal(8)
        m.d.comb += [
            more[1].eq(rest[8] | rest[1:8].all()),
            more[0].eq(~more[1] & (rest[7] | rest[:7].all())),
        ]
        m.d.sync += [
            words.eq((self.octets + 9) >> 2),
            plain.eq(words),
            marked.eq(Cat(beyond, words[7:] + more)),
            left.eq(beyond),
        ]
        m.d.comb += [
            after.eq(self.after + left),
            # The highest bit of ``after`` says that another marker follows. Minus 127 is minus 128
            # and plus 1.
            self.words.eq(Mux(self.markers, marked, plain)),
            self.one_more.eq(self.markers & after[7]),
            self.then.eq(after[:7] + after[7]),
        ]
        return m
