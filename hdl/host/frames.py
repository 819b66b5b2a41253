"""Holds packets of the exception stream for the host to read, and sends frames of the host."""

from amaranth import *
from amaranth.lib import memory, stream, wiring
from amaranth.lib.cdc import PulseSynchronizer
from amaranth.lib.wiring import In, Out

from ..dma.output_queue import ExceptionBeat
from ..eth.rgmii import GmiiOctet
from ..eth.transmit import FrameTransmit
from ..lib.blockram import BlockRam
from ..spec import board

__all__ = ["OneByOne", "ReceivedPacket", "TransmitFrame"]


class OneByOne(wiring.Component):
    """Merges the packets of two exception streams into one, alternating if both have packets.

    Latency: 1 cycle from a packet's first beat on. Throughput: one beat per cycle, and one more
    cycle per packet. Reset: the next beats begin packets. Errors: none.

    Parameters
    ----------
    width : int

    Members
    -------
    i : In(stream.Signature(ExceptionBeat(width))).array(2)
    o : Out(stream.Signature(ExceptionBeat(width)))
    """

    def __init__(self, width):
        beats = stream.Signature(ExceptionBeat(width))
        super().__init__({"i": In(beats).array(2), "o": Out(beats)})

    def elaborate(self, platform):
        m = Module()
        one, other = self.i
        inside, second = Signal(), Signal()
        with m.If(~inside):
            m.d.sync += [
                inside.eq(one.valid | other.valid),
                second.eq(other.valid & ~(one.valid & second)),
            ]
        with m.Elif(self.o.valid & self.o.ready & self.o.payload.beat.last):
            m.d.sync += inside.eq(0)
        m.d.comb += [
            self.o.valid.eq(inside & Mux(second, other.valid, one.valid)),
            self.o.payload.eq(Mux(second, other.payload, one.payload)),
            one.ready.eq(inside & ~second & self.o.ready),
            other.ready.eq(inside & second & self.o.ready),
        ]
        return m


class ReceivedPacket(wiring.Component):
    """Holds one packet of the exception stream until the host has read it.

    Latency: 1 cycle from a packet's last beat to ``waits``; a word is read 2 cycles after its
    address. Throughput: one beat per cycle, one packet at a time. Reset: no packet. Errors: of a
    packet longer than the window ``RECEIVED``, only the first octets are kept; ``length`` is that
    of the whole packet.

    Parameters
    ----------
    width : int
        Width of the stream, in bits.

    Members
    -------
    i : In(stream.Signature(ExceptionBeat(width)))
    waits : Out(1)
        There is a packet.
    length, stream : Out(16), sequence : Out(32), reason : Out(12)
        Length of the packet in octets, and the stream's other fields.
    pop : In(1)
        The host has read the packet.
    address : In(9), answer : Out(32)
        Number of a word of the packet, and the word.
    """

    def __init__(self, width):
        self.width = width
        super().__init__({
            "i": In(stream.Signature(ExceptionBeat(width))),
            "waits": Out(1),
            "length": Out(16),
            "stream": Out(16),
            "sequence": Out(32),
            "reason": Out(12),
            "pop": In(1),
            "address": In((board.RECEIVED.size // 4 - 1).bit_length()),
            "answer": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        octets = self.width // 8
        select = (self.width // 32).bit_length() - 1
        # Host and stream take turns: a word is never read while it is written.
        m.submodules.ram = ram = BlockRam(self.width, board.RECEIVED.size // octets)
        word, word_1 = Signal(select), Signal(select)
        beats = Signal(16 - select - 2)
        taken = Signal()
        beat = self.i.payload.beat
        m.d.comb += [
            self.i.ready.eq(~self.waits),
            taken.eq(self.i.valid & self.i.ready),
            ram.write.payload.address.eq(beats),
            ram.write.payload.data.eq(beat.data),
            ram.write.valid.eq(taken & (beats < ram.depth)),
            ram.address[0].eq(self.address[select:]),
            self.answer.eq(ram.data[0].word_select(word_1, 32)),
        ]
        m.d.sync += [word.eq(self.address[:select]), word_1.eq(word)]
        with m.If(taken):
            m.d.sync += [
                beats.eq(Mux(beat.last, 0, beats + 1)),
                self.length.eq((beats << octets.bit_length() - 1) + beat.count),
                self.waits.eq(beat.last),
            ]
            # Stream, sequence number and reason are the same on all beats.
            m.d.sync += [
                self.stream.eq(self.i.payload.stream),
                self.sequence.eq(self.i.payload.sequence),
                self.reason.eq(self.i.payload.reason),
            ]
        with m.If(self.pop):
            m.d.sync += self.waits.eq(0)
        return m


class TransmitFrame(wiring.Component):
    """Takes a frame from the host and sends it, in the domain of the transmit clock.

    Latency: some 20 cycles from ``send`` to the PHY. Throughput: one frame at a time. Reset: idle.
    Errors: ``send`` is ignored while ``busy``, and if ``length`` is less than 14, the octets of a
    header, or more than ``LONGEST``.

    Parameters
    ----------
    domain : str
        The transmit clock's domain, that of ``o``.

    Members
    -------
    address : In(9), write : In(4), data : In(32)
        Octets of a word to write in this cycle; only while not ``busy``.
    length : In(32)
    send : In(1)
    busy : Out(1)
    sent : Out(1)
        High for one cycle when a frame was sent.
    o : Out(GmiiOctet())
    """

    def __init__(self, *, domain="eth_tx"):
        self.domain = domain
        super().__init__({
            "address": In((board.TRANSMIT.size // 4 - 1).bit_length()),
            "write": In(4),
            "data": In(32),
            "length": In(32),
            "send": In(1),
            "busy": Out(1),
            "sent": Out(1),
            "o": Out(GmiiOctet()),
        })

    def elaborate(self, platform):
        m = Module()
        domain = self.domain
        m.submodules.transmit = transmit = DomainRenamer(domain)(FrameTransmit())
        m.submodules.start = start = PulseSynchronizer("sync", domain)
        m.submodules.done = done = PulseSynchronizer(domain, "sync")
        # ``length`` is constant from before the pulse crosses until the frame is sent.
        length = Signal(range(board.LONGEST + 1))
        held = Signal(32, reset_less=True)
        lane, lane_1 = Signal(2), Signal(2)
        # Two memories of 16 bits: a block RAM of 32 bits would be read through an output register
        # in the writer's clock domain. Neither is a BlockRam, which has one domain and no strobes.
        for half in range(2):
            m.submodules[f"storage_{half}"] = storage = memory.Memory(
                shape=16, depth=board.TRANSMIT.size // 4, init=[], attrs={"ram_style": "block"})
            write = storage.write_port(granularity=8)
            read = storage.read_port(domain=domain)
            m.d.comb += [
                write.addr.eq(self.address),
                write.data.eq(self.data.word_select(half, 16)),
                write.en.eq(self.write.word_select(half, 2) & (~self.busy).replicate(2)),
                read.addr.eq(transmit.address[2:]),
                read.en.eq(1),
            ]
            m.d[domain] += held.word_select(half, 16).eq(read.data)
        m.d.comb += [
            transmit.octet.eq(held.word_select(lane_1, 8)),
            transmit.length.eq(length),
            transmit.start.eq(start.o),
            done.i.eq(transmit.done),
            self.sent.eq(done.o),
            self.o.eq(transmit.o),
        ]
        m.d[domain] += [lane.eq(transmit.address[:2]), lane_1.eq(lane)]
        m.d.sync += start.i.eq(0)
        with m.If(done.o):
            m.d.sync += self.busy.eq(0)
        with m.If(self.send & ~self.busy & (self.length >= 14) & (self.length <= board.LONGEST)):
            m.d.sync += [self.busy.eq(1), length.eq(self.length), start.i.eq(1)]
        return m
