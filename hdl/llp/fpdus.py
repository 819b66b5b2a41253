"""FPDUs out of the octets of TCP connections, in whatever segments they came."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..net.words import Gather
from .intake import LlpBeat

__all__ = ["FpduCutter", "FpduSettings", "RingWrite"]

#: Octets from one marker to the next (RFC 5044 section 4.3), and of a marker.
MARKERS, MARKER = 512, 4
#: Octets of an FPDU's length and of its CRC.
LENGTH, CRC = 2, 4


class RingWrite(data.StructLayout):
    """Octets of a word for a connection's ring.

    Members
    -------
    index : range(connections)
    word : range(window // 4)
    data : 32
    octets : 4
        One bit each.
    """

    def __init__(self, connections, window):
        super().__init__({
            "index": range(connections), "word": range(window // 4), "data": 32, "octets": 4})


class FpduSettings(data.StructLayout):
    """How a connection's octets are to be taken: ``markers`` (1); ``stream``, range(streams)."""

    def __init__(self, streams):
        super().__init__({"markers": 1, "stream": range(streams)})


class FpduCutter(wiring.Component):
    """Keeps each connection's octets in a ring of block RAM until an FPDU is whole; it leaves as a
    packet then, with its markers (RFC 5044 section 4).

    A position counts the octets of a connection's FPDUs, from 0 (modulo 2^32); that of an octet is
    the same in its ring, modulo the window.

    Connections are looked at in turn, one a cycle while there is nothing to do.

    Latency: 9 cycles from ``taken`` to a packet's first beat at 64 bits, and up to
    ``connections - 1`` more until it has its turn. Throughput: a word a cycle, 8 cycles more an
    FPDU, and one for each marker in it. Reset: connections as at position 0; their settings stay.
    Errors: a connection with an FPDU longer than its ring is ``broken``.

    Parameters
    ----------
    width : int
    connections : int
        A power of two.
    window : int
        Octets of a ring, a power of two.
    streams : int
        DDP Streams.

    Members
    -------
    ring : In(stream.Signature(RingWrite(connections, window), always_ready=True))
    taken : In(1), index : In(range(connections))
        Octets of this connection count now, up to what ``end`` will say.
    ask : Out(range(connections)), end : In(32)
        Where a connection's octets end; in the same cycle.
    look : In(range(connections)), head : Out(32)
        Where those begin that are in its ring; likewise.
    start : In(stream.Signature({index: range(connections), settings: FpduSettings(streams)},
            always_ready=True))
        A connection starts anew, while ``idle``.
    idle : Out(1)
        No connection is looked at, nor is to be.
    broken : Out(connections)
    o : Out(stream.Signature(LlpBeat(width)))
    """

    def __init__(self, width, connections, window, streams):
        self.width, self.connections, self.window = width, connections, window
        self.settings = FpduSettings(streams)
        index = range(connections)
        started = data.StructLayout({"index": index, "settings": self.settings})
        super().__init__({
            "ring": In(stream.Signature(RingWrite(connections, window), always_ready=True)),
            "taken": In(1),
            "index": In(index),
            "ask": Out(index),
            "end": In(32),
            "look": In(index),
            "head": Out(32),
            "start": In(stream.Signature(started, always_ready=True)),
            "idle": Out(1),
            "broken": Out(connections),
            "o": Out(stream.Signature(LlpBeat(width))),
        })

    def elaborate(self, platform):
        m = Module()
        words = self.window // 4
        # A word is not read before all of it was written.
        m.submodules.octets = octets = memory.Memory(
            shape=32, depth=self.connections * words, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1})
        writing, reading = octets.write_port(granularity=8), octets.read_port()
        m.submodules.heads = heads = memory.Memory(shape=32, depth=self.connections, init=[])
        head_write, own, others = (
            heads.write_port(), heads.read_port(domain="comb"), heads.read_port(domain="comb"))
        m.submodules.settings = kept = memory.Memory(
            shape=self.settings, depth=self.connections, init=[])
        set_up, settings = kept.write_port(), kept.read_port(domain="comb")
        m.submodules.gather = gather = Gather(self.width)
        start, ring = self.start.payload, self.ring.payload

        conn = self.ask
        pending = Signal(self.connections)
        head = Signal(32)
        have = Signal(range(self.window + 1))
        gap = Signal(range(self.window + 2 * MARKERS))  # from its first octet to the next marker
        total = Signal(17)
        marked = Signal()  # it begins with one
        at, left = Signal(range(words)), Signal(range(words + 1))  # words to be read
        fetched, final = Signal(), Signal()
        m.d.comb += [
            writing.addr.eq(Cat(ring.word, ring.index)),
            writing.data.eq(ring.data),
            writing.en.eq(ring.octets & self.ring.valid.replicate(4)),
            reading.addr.eq(Cat(at, conn)),
            own.addr.eq(conn),
            others.addr.eq(self.look),
            self.head.eq(others.data),
            settings.addr.eq(conn),
            set_up.en.eq(self.start.valid),
            set_up.addr.eq(start.index),
            set_up.data.eq(start.settings),
            gather.i.payload.data.eq(reading.data),
            gather.i.payload.ends.eq(3),
            gather.i.payload.last.eq(final),
            gather.o.ready.eq(self.o.ready),
            self.o.valid.eq(gather.o.valid),
            self.o.payload.beat.eq(gather.o.payload),
            self.o.payload.stream.eq(settings.data.stream),
            self.o.payload.sequence.eq(head),
        ]
        for k in range(self.connections):
            with m.If(self.start.valid & (start.index == k)):
                m.d.sync += [pending[k].eq(0), self.broken[k].eq(0)]
            with m.Elif(self.taken & (self.index == k)):
                m.d.sync += pending[k].eq(1)

        with m.FSM():
            with m.State("Idle"):
                m.d.comb += [
                    self.idle.eq(~pending.any()),
                    head_write.addr.eq(start.index),
                    head_write.en.eq(self.start.valid),
                ]
                # Octets that are taken in this cycle show in the next.
                with m.If(pending.bit_select(conn, 1)):
                    m.d.sync += [head.eq(own.data), pending.bit_select(conn, 1).eq(0)]
                    m.next = "Look"
                with m.Else():
                    m.d.sync += conn.eq(conn + 1)
            with m.State("Look"):
                behind = head[:exact_log2(MARKERS)]  # the last one
                begins = settings.data.markers & ~behind.any()
                m.d.sync += [
                    have.eq(self.end - head),
                    gap.eq((-behind)[:len(behind)]),
                    marked.eq(begins),
                    at.eq(head[2:] + begins),
                ]
                m.next = "Read"
            with m.State("Read"):
                m.d.comb += reading.en.eq(1)
                m.next = "Length"
                with m.If(have < Mux(marked, 2 * MARKER, MARKER)):
                    m.next = "Idle"
            with m.State("Length"):
                word = reading.data
                length = Cat(word[8:16], word[:8])
                padded = (length + LENGTH + 3)[2:]
                m.d.sync += total.eq((padded << 2) + CRC)
                m.next = "Markers"
            with m.State("Markers"):
                with m.If(total > self.window):
                    m.d.sync += self.broken.eq(self.broken | (1 << conn))
                    m.next = "Idle"
                with m.Elif(settings.data.markers & (gap < total)):
                    m.d.sync += [total.eq(total + MARKER), gap.eq(gap + MARKERS)]
                with m.Elif(have < total):
                    m.next = "Idle"
                with m.Else():
                    m.d.sync += [at.eq(head[2:]), left.eq(total[2:])]
                    m.next = "Leave"
            with m.State("Leave"):
                move = ~fetched | gather.i.ready
                m.d.comb += [reading.en.eq(move), gather.i.valid.eq(fetched)]
                with m.If(move):
                    m.d.sync += [
                        fetched.eq(left != 0),
                        final.eq(left == 1),
                        at.eq(at + 1),
                        left.eq(left - (left != 0)),
                    ]
                # The last beat has the position too.
                with m.If((left == 0) & ~fetched & ~gather.o.valid):
                    m.d.sync += head.eq(head + total)
                    m.next = "Left"
            with m.State("Left"):
                m.d.comb += [
                    head_write.addr.eq(conn), head_write.data.eq(head), head_write.en.eq(1)]
                m.next = "Look"
        return m
