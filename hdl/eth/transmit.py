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

    Latency: 9 cycles from ``start`` to the frame's first octet, behind its preamble. Throughput: an
    octet a cycle; ``done`` comes with the last octet of the gap. Reset: idle. Errors: none; of
    ``start`` while a frame is being sent nothing becomes.

    Members
    -------
    start : In(1)
    length : In(range(LONGEST + 1))
        Octets of the frame, 1 at least; stays until ``done``.
    address : Out(range(LONGEST + 1)), octet : In(8)
        Reads the frame: the octet comes a cycle later.
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
        valid = Signal()
        m.d.comb += crc.data.eq(octet)
        m.d.sync += [
            self.o.valid.eq(valid),
            self.o.data.eq(octet),
            count.eq(count + 1),
        ]

        with m.FSM():
            with m.State("Idle"):
                m.d.comb += crc.start.eq(1)
                m.d.sync += count.eq(0)
                with m.If(self.start):
                    m.next = "Preamble"
            with m.State("Preamble"):
                m.d.comb += [valid.eq(1), octet.eq(PREAMBLE)]
                with m.If(count == 7):
                    m.d.comb += octet.eq(SFD)
                    m.d.sync += count.eq(0)
                    m.next = "Frame"
            with m.State("Frame"):
                m.d.comb += [
                    valid.eq(1), octet.eq(self.octet), crc.valid.eq(1),
                    self.address.eq(count + 1),
                ]
                with m.If(count + 1 == self.length):
                    m.next = "Padding"
                    with m.If(count + 1 >= board.SHORTEST):
                        m.d.sync += count.eq(0)
                        m.next = "Check Sequence"
            with m.State("Padding"):
                m.d.comb += [valid.eq(1), crc.valid.eq(1)]
                with m.If(count + 1 == board.SHORTEST):
                    m.d.sync += count.eq(0)
                    m.next = "Check Sequence"
            with m.State("Check Sequence"):
                m.d.comb += [valid.eq(1), octet.eq(crc.crc.word_select(count[:2], 8))]
                with m.If(count == FCS - 1):
                    m.d.sync += count.eq(0)
                    m.next = "Gap"
            with m.State("Gap"):
                with m.If(count == GAP - 1):
                    m.d.comb += self.done.eq(1)
                    m.next = "Idle"
        return m
