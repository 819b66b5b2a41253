"""Receives octets from a PHY and outputs beats of frames."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.crc.catalog import CRC32_ETHERNET
from amaranth.lib.fifo import AsyncFIFO
from amaranth.lib.wiring import In, Out

from ..lib.stream import Backlog, Beat
from ..spec import board
from .rgmii import GmiiOctet

__all__ = ["FCS", "FrameCrossing", "FrameReceive", "PREAMBLE", "SFD"]

#: IEEE 802.3 sections 3.2.1 and 3.2.2, least significant bit first on the wire.
PREAMBLE, SFD = 0x55, 0xD5
FCS = 4  #: octets of the frame check sequence, section 3.2.9


class FrameReceive(wiring.Component):
    """Finds frames in the octets, checks their FCS, and removes it.

    A frame begins after a preamble, some octets of which may be lost, and the start frame
    delimiter. It is damaged if its FCS is wrong (IEEE 802.3 section 3.2.9), if RX_ER occurred in
    it, or if it has, with the FCS, less than 64 octets or more than 2000; octets after the 2000th
    are cut off.

    Latency: 2 cycles from the first cycle after a frame to its last beat. Throughput: one octet per
    cycle, frames with no gap between them but their preamble. Reset: between frames. Errors: a
    damaged frame has ``error`` on its last beat; one with no octets besides an FCS gives no beat.
    Octets without a start frame delimiter after their preamble are no frame, and are counted.

    Parameters
    ----------
    width : int
        Width of the beats, in bits.

    Members
    -------
    i : In(GmiiOctet())
    o : Out(stream.Signature(Beat(width), always_ready=True))
    good, damaged : Out(1)
        High for one cycle for each frame.
    unstarted : Out(1)
        High for one cycle if RX_DV is high and no start frame delimiter arrives.
    """

    def __init__(self, width=64):
        self.width = width
        super().__init__({
            "i": In(GmiiOctet()),
            "o": Out(stream.Signature(Beat(width), always_ready=True)),
            "good": Out(1),
            "damaged": Out(1),
            "unstarted": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.crc = crc = CRC32_ETHERNET(8).create()
        octets = self.width // 8
        least, most = board.SHORTEST + FCS, board.LONGEST + FCS
        length = Signal(range(most + 2))
        # The frame has the octets of an FCS; has as many as it must have; more than it may have.
        begun, enough, long = Signal(), Signal(), Signal()
        error = Signal()
        # The last octets are the FCS, which is not part of the output; but only at the end is it
        # known which octets these are.
        behind = Signal(8 * FCS)
        beat = Signal(Beat(self.width))
        full, ends, take = Signal(), Signal(), Signal()
        wrong = Signal()
        preamble = Signal()

        m.d.comb += [
            full.eq(beat.count == octets),
            crc.data.eq(self.i.data),
            crc.valid.eq(take),
        ]
        m.d.sync += [self.unstarted.eq(0), preamble.eq(0)]
        with m.FSM():
            with m.State("Between Frames"):
                m.d.comb += crc.start.eq(1)
                m.d.sync += [
                    length.eq(0), error.eq(0), beat.count.eq(0),
                    begun.eq(0), enough.eq(0), long.eq(0),
                ]
                with m.If(self.i.valid & (self.i.data == SFD)):
                    m.next = "Frame"
                with m.Elif(self.i.valid & (self.i.data == PREAMBLE)):
                    m.d.sync += preamble.eq(1)
                with m.Elif(self.i.valid):
                    m.d.sync += self.unstarted.eq(1)
                    m.next = "No Frame"
                with m.Elif(preamble):
                    m.d.sync += self.unstarted.eq(1)
            with m.State("Frame"):
                m.d.comb += [
                    take.eq(self.i.valid & ~long),
                    ends.eq(~take),
                ]
                with m.If(ends):
                    m.next = "No Frame"
            with m.State("No Frame"):
                with m.If(~self.i.valid):
                    m.next = "Between Frames"

        with m.If(take):
            m.d.sync += [
                length.eq(length + 1),
                error.eq(error | self.i.error),
                behind.eq(Cat(behind[8:], self.i.data)),
                begun.eq(begun | (length == FCS - 1)),
                enough.eq(enough | (length == least - 1)),
                long.eq(length == most),
            ]
            with m.If(begun):
                m.d.sync += beat.count.eq(Mux(full, 1, beat.count + 1))
                with m.Switch(Mux(full, 0, beat.count)):
                    for lane in range(octets):
                        with m.Case(lane):
                            m.d.sync += beat.data.word_select(lane, 8).eq(behind[:8])

        # A full beat waits until it is known whether it is the last one.
        m.d.sync += [
            self.o.valid.eq(((take & full) | ends) & (beat.count != 0)),
            self.o.payload.data.eq(beat.data),
            self.o.payload.count.eq(beat.count),
            self.o.payload.last.eq(ends),
        ]
        m.d.comb += wrong.eq(error | ~crc.match_detected | ~enough | long)
        m.d.sync += [
            self.o.payload.error.eq(ends & wrong),
            self.good.eq(ends & ~wrong),
            self.damaged.eq(ends & wrong),
        ]
        return m


class FrameCrossing(wiring.Component):
    """Transfers frames from the domain of the PHY's clock, whole or not at all.

    A frame is taken if there is room for the longest frame when it begins, so that no frame is ever
    truncated; otherwise it is dropped and counted. This is decided after the crossing, so that a
    few beats of distributed RAM are enough for the crossing.

    Latency: 8 or 9 cycles of the reader, 2 less if ``relaxed``. Throughput: one beat per cycle of
    the reader. Reset: that of the writer's domain empties the crossing, the reader's the blocks
    after it. Errors: none.

    Parameters
    ----------
    width : int
        Width of the beats, in bits.
    depth : int
        Beats, a power of two, more than the longest frame has.
    domain : str
        The writer's clock domain, that of ``i``.
    relaxed : bool
        That of a :class:`~..lib.stream.Prefetch`.

    Members
    -------
    i : In(stream.Signature(Beat(width), always_ready=True))
        At most two successive beats may come faster than the reader's clock.
    o : Out(stream.Signature(Beat(width)))
    dropped : Out(1)
        High for one cycle for each dropped frame.
    """

    def __init__(self, width=64, *, depth=512, domain="eth_rx", relaxed=False):
        longest = -(-(board.LONGEST + 1) // (width // 8))
        if not isinstance(depth, int) or depth & (depth - 1) or depth < 2 * longest:
            raise ValueError(
                f"FrameCrossing depth must be a power of two and at least {2 * longest},"
                f" not {depth!r}")
        self.width, self.depth, self.domain, self.relaxed = width, depth, domain, relaxed
        super().__init__({
            "i": In(stream.Signature(Beat(width), always_ready=True)),
            "o": Out(stream.Signature(Beat(width))),
            "dropped": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        shape = Beat(self.width)
        m.submodules.fifo = fifo = AsyncFIFO(
            width=shape.size, depth=8, w_domain=self.domain, r_domain="sync")
        m.submodules.beats = beats = Backlog(
            shape, depth=self.depth, relaxed=self.relaxed)
        wiring.connect(m, beats.o, wiring.flipped(self.o))
        begun, dropping = Signal(), Signal()
        drops, room = Signal(), Signal(init=1)
        m.d.comb += [
            fifo.w_en.eq(self.i.valid),
            fifo.w_data.eq(self.i.payload),
            fifo.r_en.eq(1),
            drops.eq(Mux(begun, dropping, ~room)),
            beats.i.valid.eq(fifo.r_rdy & ~drops),
            beats.i.payload.eq(fifo.r_data),
        ]
        # Half of the backlog holds more than the longest frame.
        m.d.sync += [
            room.eq(beats.half),
            self.dropped.eq(fifo.r_rdy & beats.i.payload.last & drops),
        ]
        with m.If(fifo.r_rdy):
            m.d.sync += [begun.eq(~beats.i.payload.last), dropping.eq(drops)]
        return m
