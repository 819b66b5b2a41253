"""Sends frames to a PHY."""

from functools import reduce
from operator import xor

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.crc.catalog import CRC32_ETHERNET
from amaranth.lib.wiring import In, Out

from ..spec import board
from .receive import FCS, PREAMBLE, SFD
from .rgmii import GmiiOctet

__all__ = ["GAP", "FrameTransmit"]

GAP = 12  #: the fewest octets between frames, IEEE 802.3 section 4.4.2 (interPacketGap)


class FrameTransmit(wiring.Component):
    """Sends a frame: preamble, its octets, padding up to 60, FCS, and the gap after it.

    Latency: 12 cycles from ``start`` to the frame's first octet, after its preamble. Throughput:
    one octet per cycle; ``done`` comes 3 cycles before the last octet of the gap. Reset: idle.
    Errors: none; ``start`` is ignored while a frame is being sent.

    Members
    -------
    start : In(1)
        Octets of the frame, at least 1; constant until ``done``.
    address : Out(range(LONGEST + 1)), octet : In(8)
        Reads the frame: the octet must arrive two cycles after its address.
    done : Out(1)
        High for one cycle.
    o : Out(GmiiOctet())
    """

    start: In(1)
    length: In(range(board.LONGEST + 1))
    address: Out(range(board.LONGEST + 1))
    octet: In(8)
    done: Out(1)
    o: Out(GmiiOctet())

    def elaborate(self, platform):
        m = Module()
        count = Signal(range(board.LONGEST + 1))
        # An octet is chosen, then added to the sum, then sent; the octets of the sum follow.
        octet, chosen, added = Signal(8), Signal(8), Signal(8)
        valid, goes, goes_1 = Signal(), Signal(), Signal()
        summed, sums, divides = Signal(), Signal(), Signal()
        checks, ends, ends_1 = Signal(), Signal(), Signal()
        # The FCS begins with ones (IEEE 802.3 section 3.2.9). To begin with zeros and invert the
        # frame's first octets is equivalent, and leaves the FCS 0 again after it was sent.
        addend, inverts = Signal(8), Signal(FCS)
        # The FCS includes an octet, as its last one, one cycle before that octet is divided.
        fcs = Signal(32)
        # The address is two octets ahead; it marks the last octet one cycle before.
        ahead = Signal(range(board.LONGEST + 3))
        final, enough, padded = Signal(), Signal(), Signal()
        m.d.sync += [
            Cat(goes, sums, ends).eq(Cat(valid, summed, checks)),
            chosen.eq(octet),
            addend.eq(Mux(summed, octet ^ inverts[0].replicate(8), 0)),
            Cat(goes_1, divides, ends_1).eq(Cat(goes, sums, ends)),
            added.eq(chosen),
            fcs.eq((fcs >> 8) ^ addend ^ Mux(divides, _divided(fcs[:8]), 0)),
            self.o.valid.eq(goes_1),
            self.o.data.eq(Mux(ends_1, ~fcs[:8], added)),
            count.eq(count + 1),
            ahead.eq(ahead + 1),
            final.eq(ahead == self.length),
            enough.eq(ahead >= board.SHORTEST),
            padded.eq(ahead == board.SHORTEST),
        ]
        with m.If(summed):
            m.d.sync += inverts.eq(inverts >> 1)
        m.d.comb += self.address.eq(ahead)

        with m.FSM():
            with m.State("Idle"):
                m.d.sync += [count.eq(0), ahead.eq(0), inverts.eq(~0)]
                with m.If(self.start):
                    m.next = "Preamble"
            with m.State("Preamble"):
                m.d.comb += [valid.eq(1), octet.eq(PREAMBLE)]
                with m.If(count < 6):
                    m.d.sync += ahead.eq(0)
                with m.If(count == 7):
                    m.d.comb += octet.eq(SFD)
                    m.d.sync += count.eq(0)
                    m.next = "Frame"
            with m.State("Frame"):
                m.d.comb += [valid.eq(1), octet.eq(self.octet), summed.eq(1)]
                with m.If(final):
                    m.next = "Padding"
                    with m.If(enough):
                        m.d.sync += count.eq(0)
                        m.next = "Check Sequence"
            with m.State("Padding"):
                m.d.comb += [valid.eq(1), summed.eq(1)]
                with m.If(padded):
                    m.d.sync += count.eq(0)
                    m.next = "Check Sequence"
            with m.State("Check Sequence"):
                m.d.comb += [valid.eq(1), checks.eq(1)]
                with m.If(count == FCS - 1):
                    m.d.sync += count.eq(0)
                    m.next = "Gap"
            with m.State("Gap"):
                with m.If(count == GAP - 1):
                    m.d.comb += self.done.eq(1)
                    m.next = "Idle"
        return m


def _divided(octet):
    """Returns the remainder of an octet at the end of the FCS register, 8 bits later."""
    sums = CRC32_ETHERNET(8)
    remainders = [sums.compute([1 << bit]) ^ sums.compute([0]) for bit in range(8)]
    return Cat(
        reduce(xor, (octet[at] for at in range(8) if remainders[at] >> bit & 1))
        for bit in range(32))
