"""Holds packets for the host to read, and sends the frames of the host and of the RNIC."""

from amaranth import *
from amaranth.lib import memory, stream, wiring
from amaranth.lib.cdc import PulseSynchronizer
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..dma.output_queue import ExceptionBeat
from ..eth.rgmii import GmiiOctet
from ..eth.transmit import FrameTransmit
from ..lib.blockram import BlockRam
from ..lib.stream import Beat
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
    """Holds one packet of a stream until the host has read it.

    Latency: 1 cycle from a packet's last beat to ``waits``; a word is read 2 cycles after its
    address. Throughput: one beat per cycle, one packet at a time. Reset: no packet. Errors: of a
    packet longer than the window ``RECEIVED``, only the first octets are kept; ``length`` is that
    of the whole packet.

    Parameters
    ----------
    beats : StructLayout
        A beat of the stream: a Beat, ``beat``, and fields that are the same on all beats of a
        packet.

    Members
    -------
    i : In(stream.Signature(beats))
    waits : Out(1)
        There is a packet.
    length : Out(16)
        Length of the packet in octets.
    For each of the other fields, by its name: Out(shape of the field).
    pop : In(1)
        The host has read the packet.
    address : In(9), answer : Out(32)
        Number of a word of the packet, and the word.
    """

    def __init__(self, beats):
        fields = dict(beats.members)
        self.width = fields.pop("beat").members["data"]
        self.names = tuple(fields)
        super().__init__({
            "i": In(stream.Signature(beats)),
            "waits": Out(1),
            "length": Out(16),
            **{name: Out(shape) for name, shape in fields.items()},
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
                *(getattr(self, name).eq(self.i.payload[name]) for name in self.names),
            ]
        with m.If(self.pop):
            m.d.sync += self.waits.eq(0)
        return m


class TransmitFrame(wiring.Component):
    """Takes frames from the host, and with ``width`` from a stream, and sends them in the domain
    of the transmit clock. If both have one, they take turns.

    Latency: some 20 cycles from ``send``, or from a frame's last beat, to the PHY. Throughput: one
    frame of each at a time. Reset: idle. Errors: ``send`` is ignored while ``busy``, and if
    ``length`` is less than 14, the octets of a header, or more than ``LONGEST``. A frame of the
    stream of such a length is not sent.

    Parameters
    ----------
    width : int
        Bits of a beat of the stream; 0: there is none.
    domain : str
        The transmit clock's domain, that of ``o``.

    Members
    -------
    address : In(9), write : In(4), data : In(32)
        Octets of a word to write in this cycle; only while not ``busy``.
    length : In(32)
    send : In(1)
    busy : Out(1)
        The host's frame has not left yet.
    frames : In(stream.Signature(Beat(width)))
        With ``width`` only.
    sent : Out(1)
        High for one cycle when a frame was sent.
    o : Out(GmiiOctet())
    """

    def __init__(self, *, width=0, domain="eth_tx"):
        self.width, self.domain = width, domain
        super().__init__({
            "address": In((board.TRANSMIT.size // 4 - 1).bit_length()),
            "write": In(4),
            "data": In(32),
            "length": In(32),
            "send": In(1),
            "busy": Out(1),
            **({"frames": In(stream.Signature(Beat(width)))} if width else {}),
            "sent": Out(1),
            "o": Out(GmiiOctet()),
        })

    def elaborate(self, platform):
        m = Module()
        domain = self.domain
        m.submodules.transmit = transmit = DomainRenamer(domain)(FrameTransmit())
        m.submodules.start = start = PulseSynchronizer("sync", domain)
        m.submodules.done = done = PulseSynchronizer(domain, "sync")
        # A frame of the host, and one of the stream, that wait or are being sent; which one is, if
        # ``sending``. ``length`` is constant from before the pulse crosses until the frame is sent.
        waits, sending, second = Signal(2), Signal(), Signal()
        lengths = [Signal(range(board.LONGEST + 1), name=f"length_{n}") for n in range(2)]
        host = self._buffer(
            m, "host", self.address, self.data, self.write & (~self.busy).replicate(4))
        m.d.comb += [
            transmit.octet.eq(host),
            transmit.length.eq(Mux(second, lengths[1], lengths[0])),
            transmit.start.eq(start.o),
            done.i.eq(transmit.done),
            self.busy.eq(waits[0]),
            self.sent.eq(done.o),
            self.o.eq(transmit.o),
        ]
        m.d.sync += start.i.eq(0)
        with m.If(done.o):
            m.d.sync += [sending.eq(0), waits.eq(waits & ~(1 << second))]
        with m.Elif(~sending & waits.any()):
            m.d.sync += [
                sending.eq(1), start.i.eq(1), second.eq(Mux(waits.all(), ~second, waits[1]))]
        with m.If(self.send & ~waits[0] & _fits(self.length)):
            m.d.sync += [waits[0].eq(1), lengths[0].eq(self.length)]
        if self.width:
            self._take(m, waits[1], lengths[1], transmit, second)
        return m

    def _take(self, m, waits, length, transmit, second):
        """Takes the frames of the stream; ``second``: the one that ``waits`` is being sent."""
        beats, octets = Signal(16), Signal(16)
        beat, takes = self.frames.payload, Signal()
        lane = exact_log2(self.width // 8)
        inside = beats < board.TRANSMIT.size >> lane
        mine = self._buffer(
            m, "stream", beats, beat.data, (takes & inside).replicate(self.width // 8))
        m.d.comb += [
            self.frames.ready.eq(~waits),
            takes.eq(self.frames.valid & self.frames.ready),
            octets.eq((beats << lane) + beat.count),
        ]
        with m.If(takes):
            m.d.sync += beats.eq(Mux(beat.last, 0, beats + 1))
        with m.If(takes & beat.last):
            m.d.sync += [waits.eq(_fits(octets)), length.eq(octets)]
        with m.If(second):
            m.d.comb += transmit.octet.eq(mine)

    def _buffer(self, m, name, address, data, write):
        """Adds a buffer for a frame, which words of ``data`` fill; ``write``: the octets to write.

        Returns the octet at ``transmit.address``, two cycles after that.
        """
        domain, at = self.domain, m.submodules.transmit.address
        octets = len(data) // 8
        bits = exact_log2(octets)
        held = Signal(len(data), name=f"{name}_held", reset_less=True)
        lane, lane_1 = Signal(bits, name=f"{name}_lane"), Signal(bits, name=f"{name}_lane_1")
        # Memories of 16 bits: a block RAM of 32 bits would be read through an output register in
        # the writer's clock domain. None is a BlockRam, which has one domain and no strobes.
        for half in range(octets // 2):
            m.submodules[f"{name}_{half}"] = storage = memory.Memory(
                shape=16, depth=board.TRANSMIT.size // octets, init=[],
                attrs={"ram_style": "block"})
            port = storage.write_port(granularity=8)
            read = storage.read_port(domain=domain)
            m.d.comb += [
                port.addr.eq(address),
                port.data.eq(data.word_select(half, 16)),
                port.en.eq(write.word_select(half, 2)),
                read.addr.eq(at[bits:]),
                read.en.eq(1),
            ]
            m.d[domain] += held.word_select(half, 16).eq(read.data)
        m.d[domain] += [lane.eq(at[:bits]), lane_1.eq(lane)]
        return held.word_select(lane_1, 8)


def _fits(length):
    """Returns whether a frame of this many octets can be sent."""
    return (length >= 14) & (length <= board.LONGEST)
