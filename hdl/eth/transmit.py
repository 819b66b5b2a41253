"""Frames out to a PHY."""

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

    Latency: 11 cycles from ``start`` to the frame's first octet, behind its preamble. Throughput:
    an octet a cycle; ``done`` comes 2 cycles before the last octet of the gap. Reset: idle.
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
        m.submodules.crc = crc = CRC32_ETHERNET(8).create()
        count = Signal(range(board.LONGEST + 1))
        octet = Signal(8)
        valid, starts, summed, checks = Signal(), Signal(), Signal(), Signal()
        # Octets are summed up, and their sum follows them, a cycle after they were chosen.
        chosen = Signal(8)
        goes, begins, sums, ends = Signal(), Signal(), Signal(), Signal()
        part = Signal(2)
        # The address is two octets ahead, and tells a cycle before which octet is the last.
        ahead = Signal(range(board.LONGEST + 3))
        final, enough, padded = Signal(), Signal(), Signal()
        m.d.sync += [
            Cat(goes, begins, sums, ends).eq(Cat(valid, starts, summed, checks)),
            chosen.eq(octet),
            part.eq(count),
            self.o.valid.eq(goes),
            self.o.data.eq(Mux(ends, crc.crc.word_select(part, 8), chosen)),
            count.eq(count + 1),
            ahead.eq(ahead + 1),
            final.eq(ahead == self.length),
            enough.eq(ahead >= board.SHORTEST),
            padded.eq(ahead == board.SHORTEST),
        ]
        m.d.comb += [
            crc.start.eq(begins), crc.valid.eq(sums), crc.data.eq(chosen), self.address.eq(ahead)]

        with m.FSM():
            with m.State("Idle"):
                m.d.comb += starts.eq(1)
                m.d.sync += [count.eq(0), ahead.eq(0)]
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
