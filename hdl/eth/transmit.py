"""Frames out to a PHY."""

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

GAP = 12  #: octets between frames at least, IEEE 802.3 section 4.4.2 (interPacketGap)


class FrameTransmit(wiring.Component):
    """Sends a frame: preamble, its octets, padding up to 60, FCS, and the gap behind it.

    Latency: 12 cycles from ``start`` to the frame's first octet, behind its preamble. Throughput:
    an octet a cycle; ``done`` comes 3 cycles before the last octet of the gap. Reset: idle.
    Errors: none; of ``start`` while a frame is being sent nothing becomes.

    Members
    -------
    start : In(1)
    length : In(range(LONGEST + 1))
        Octets of the frame, 1 at least; stays until ``done``.
    address : Out(range(LONGEST + 1)), octet : In(8)
        Reads the frame: the octet comes two cycles later.
    done : Out(1)
        High for a cycle.
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
        # What is sent is chosen, then added to the sum, and goes out; the sum's octets follow it.
        octet, chosen, added = Signal(8), Signal(8), Signal(8)
        valid, goes, goes_1 = Signal(), Signal(), Signal()
        summed, sums, divides = Signal(), Signal(), Signal()
        checks, ends, ends_1 = Signal(), Signal(), Signal()
        # The FCS begins with ones (IEEE 802.3 section 3.2.9): as good as zeros and the frame's
        # first octets inverted. So it is 0 again when its own octets have left.
        addend, inverts = Signal(8), Signal(FCS)
        # An octet is in it, and counts as its last one, a cycle before it is divided.
        fcs = Signal(32)
        # The address is two octets ahead, and tells a cycle before which octet is the last.
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
    """What remains of an octet at the end of the FCS's register, 8 bits later."""
    sums = CRC32_ETHERNET(8)
    remainders = [sums.compute([1 << bit]) ^ sums.compute([0]) for bit in range(8)]
    return Cat(
        reduce(xor, (octet[at] for at in range(8) if remainders[at] >> bit & 1))
        for bit in range(32))
