"""Cuts FPDUs out of the octets of TCP connections, however these are divided into segments."""

from types import SimpleNamespace

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..mpa.intake import LlpBeat
from ..spec.ddp import TAGGED_HEADER
from .width import Gather

__all__ = ["FpduCutter", "FpduSettings", "RingWrite"]

#: Octets from one marker to the next (RFC 5044 section 4.3), and octets of a marker.
MARKERS, MARKER = 512, 4
#: Octets of an FPDU's length and of its CRC.
LENGTH, CRC = 2, 4


class RingWrite(data.StructLayout):
    """A write of one word's octets to a connection's ring.

    Members
    -------
    index : range(connections)
    word : range(window // 4)
    data : 32
    octets : 4
        One bit for each octet that is written.
    """

    def __init__(self, connections, window):
        super().__init__({
            "index": range(connections), "word": range(window // 4), "data": 32, "octets": 4})


class FpduSettings(data.StructLayout):
    """Settings of a connection: ``markers`` (1) are in use; its ``stream``, range(streams)."""

    def __init__(self, streams):
        super().__init__({"markers": 1, "stream": range(streams)})


def _started(connections, settings):
    """Returns the layout of ``start``: a connection, and its settings."""
    return data.StructLayout({"index": range(connections), "settings": settings})


class RoundRobin(wiring.Component):
    """Arbitrates between connections, round robin.

    Latency: 1 cycle from ``pending`` and ``now`` to ``following``. Reset: connection 0. Errors:
    none.

    Parameters
    ----------
    connections : int
        A power of two.

    Members
    -------
    pending : In(connections)
        Bit k: connection k wants a turn.
    now : In(range(connections))
        The connection that had the last turn.
    following : Out(range(connections))
        The first connection after ``now`` that wants a turn, or ``now``.
    some : Out(1)
        ``following`` wants a turn; combinational from ``pending``.
    """

    def __init__(self, connections):
        self.connections = connections
        super().__init__({
            "pending": In(connections),
            "now": In(range(connections)),
            "following": Out(range(connections)),
            "some": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.following.eq(self.now)
        # The nearest one is written last.
        for step in reversed(range(1, self.connections)):
            index = (self.now + step)[:len(self.now)]
            with m.If(self.pending.bit_select(index, 1)):
                m.d.sync += self.following.eq(index)
        m.d.comb += self.some.eq(self.pending.bit_select(self.following, 1))
        return m


class _Connections(wiring.Component):
    """Keeps the facts of each connection between its turns.

    Latency: outputs are those of the same cycle. Reset: connections as at position 0; their
    settings stay. Errors: none.

    Members
    -------
    now : In(range(connections)), settings : Out(FpduSettings(streams))
        The connection that has its turn.
    measured : Out(1), total : Out(17)
        The length of its first FPDU is known; the length in octets.
    measures : In(1), length : In(17)
        Sets that length to ``length``.
    leaves : In(1), end : In(32)
        The first FPDU of ``now`` leaves, and the next one begins at ``end``.
    following, look : In(range(connections)), following_head, head : Out(32)
        Connections to look up, and the positions at which their first FPDUs begin.
    start : In(stream.Signature({index, settings}, always_ready=True))
        A connection other than ``now`` restarts, at position 0.
    """

    def __init__(self, connections, settings):
        self.connections, self.settings_shape = connections, settings
        index = range(connections)
        super().__init__({
            "now": In(index),
            "settings": Out(settings),
            "measured": Out(1),
            "total": Out(17),
            "measures": In(1),
            "length": In(17),
            "leaves": In(1),
            "end": In(32),
            "following": In(index),
            "following_head": Out(32),
            "look": In(index),
            "head": Out(32),
            "start": In(stream.Signature(_started(connections, settings), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        now, start = self.now, self.start.payload
        # A connection that has restarted and has had no FPDU yet has its head at 0.
        fresh, measured = Signal(self.connections, init=-1), Signal(self.connections)

        def table(name, shape, index, value, enable, *reads):
            """Adds a table that is written in the next cycle; returns its values at ``reads``."""
            m.submodules[name] = storage = memory.Memory(
                shape=shape, depth=self.connections, init=[])
            write, ports = storage.write_port(), [storage.read_port(domain="comb") for _ in reads]
            m.d.comb += [
                write.addr.eq(index), write.data.eq(value), write.en.eq(enable),
                *(port.addr.eq(read) for port, read in zip(ports, reads, strict=True)),
            ]
            return [port.data for port in ports]

        following_head, head = table(
            "heads", 32, now, self.end, self.leaves, self.following, self.look)
        (settings,) = table(
            "settings", self.settings_shape, start.index, start.settings, self.start.valid, now)
        (total,) = table("totals", 17, now, self.length, self.measures, now)
        m.d.comb += [
            self.following_head.eq(
                Mux(fresh.bit_select(self.following, 1), 0, following_head)),
            self.head.eq(Mux(fresh.bit_select(self.look, 1), 0, head)),
            self.settings.eq(settings),
            self.total.eq(total),
            self.measured.eq(measured.bit_select(now, 1)),
        ]
        with m.If(self.measures):
            m.d.sync += measured.bit_select(now, 1).eq(1)
        with m.If(self.leaves):
            m.d.sync += [fresh.bit_select(now, 1).eq(0), measured.bit_select(now, 1).eq(0)]
        with m.If(self.start.valid):
            m.d.sync += [
                fresh.bit_select(start.index, 1).eq(1), measured.bit_select(start.index, 1).eq(0)]
        return m


class FpduCutter(wiring.Component):
    """Keeps each connection's octets in a ring of block RAM until an FPDU is whole.

    Then the FPDU is output as a packet, with its markers (RFC 5044 section 4).

    A position counts the octets of a connection's FPDUs, from 0 (modulo 2^32); an octet is at the
    same position in its ring, modulo the window.

    Connections that may have a whole FPDU take turns, one FPDU each. No FPDU costs more cycles than
    its octets take on a link that brings 16 bits per cycle, which is 1 Gb/s at 62.5 MHz. So no peer
    can use up the cycles that the other connections need: the length of an FPDU that is not whole
    yet is computed only once, and an FPDU too short to be legal breaks its connection.

    Latency: 8 cycles from ``taken`` to a packet's first beat at 64 bits, if no other connection has
    its turn. Throughput: one word per cycle, ``OVERHEAD`` more cycles per FPDU, and one for each
    marker in it. Reset: connections as at position 0; their settings stay. Errors: a connection is
    ``broken`` by an FPDU that is longer than its ring, and after an FPDU whose ULPDU is too short
    for a DDP header: DDP reports that segment, and takes no later segment of its stream (RFC 5041
    section 7.1).

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
        The octets of this connection in the ring, up to the position ``end``, are now valid.
    ask : Out(range(connections)), end : In(32)
        Connection to look up, and the position where its octets end; in the same cycle.
    look : In(range(connections)), head : Out(32)
        Connection to look up, and the position of the first octet in its ring; in the same cycle.
    start : In(stream.Signature({index: range(connections), settings: FpduSettings(streams)},
            always_ready=True))
        A connection restarts; only while it is ``settled``.
    settled : Out(connections)
        Bit k: connection k neither has its turn nor waits for one.
    broken : Out(connections)
        Bit k: connection k is broken.
    o : Out(stream.Signature(LlpBeat(width)))
    """

    #: Cycles per FPDU beside its words. The shortest legal FPDU has as many words.
    OVERHEAD = 5
    #: Octets of the shortest legal ULPDU.
    SHORTEST = TAGGED_HEADER

    def __init__(self, width, connections, window, streams):
        self.width, self.connections, self.window = width, connections, window
        self.settings = FpduSettings(streams)
        index = range(connections)
        super().__init__({
            "ring": In(stream.Signature(RingWrite(connections, window), always_ready=True)),
            "taken": In(1),
            "index": In(index),
            "ask": Out(index),
            "end": In(32),
            "look": In(index),
            "head": Out(32),
            "start": In(stream.Signature(_started(connections, self.settings), always_ready=True)),
            "settled": Out(connections),
            "broken": Out(connections),
            "o": Out(stream.Signature(LlpBeat(width))),
        })

    def elaborate(self, platform):
        m = Module()
        words = self.window // 4
        # A word is read only after all of it was written. Not a BlockRam, which has no strobes for
        # octets.
        m.submodules.octets = octets = memory.Memory(
            shape=32, depth=self.connections * words, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1})
        writing, reading = octets.write_port(granularity=8), octets.read_port()
        m.submodules.gather = gather = Gather(self.width)
        m.submodules.arbiter = arbiter = RoundRobin(self.connections)
        m.submodules.known = known = _Connections(self.connections, self.settings)
        wiring.connect(m, wiring.flipped(self.start), known.start)
        conn, ring, settings = self.ask, self.ring.payload, known.settings
        pending, looks = Signal(self.connections), Signal()
        head = Signal(32)
        have = Signal(range(self.window + 1))
        # For the FPDU at the head: octets to the next marker, and in all; whether it begins with a
        # marker, and whether it is too short.
        gap, total = Signal(range(self.window + 2 * MARKERS)), Signal(17)
        marked, short = Signal(), Signal()
        # The next word to read, and how many words are left; state of the word that was read.
        at, left = Signal(range(words)), Signal(range(words + 1))
        fetched, first, final = Signal(), Signal(), Signal()
        m.d.comb += [
            writing.addr.eq(Cat(ring.word, ring.index)),
            writing.data.eq(ring.data),
            writing.en.eq(ring.octets & self.ring.valid.replicate(4)),
            reading.addr.eq(Cat(at, conn)),
            gather.i.payload.data.eq(reading.data),
            gather.i.payload.ends.eq(3),
            gather.i.payload.last.eq(final),
            gather.o.ready.eq(self.o.ready),
            self.o.valid.eq(gather.o.valid),
            self.o.payload.beat.eq(gather.o.payload),
            arbiter.pending.eq(pending),
            arbiter.now.eq(conn),
            known.now.eq(conn),
            known.following.eq(arbiter.following),
            known.look.eq(self.look),
            known.length.eq(total),
            known.end.eq(head + total),
            self.head.eq(known.head),
            self.settled.eq(~(pending | (looks << conn))),
        ]
        for k in range(self.connections):
            with m.If(self.start.valid & (self.start.payload.index == k)):
                m.d.sync += [pending[k].eq(0), self.broken[k].eq(0)]
            with m.Elif(self.taken & (self.index == k)):
                m.d.sync += pending[k].eq(1)

        m.d.comb += looks.eq(1)
        s = SimpleNamespace(
            conn=conn, known=known, settings=settings, pending=pending, reading=reading,
            gather=gather, head=head, have=have, gap=gap, total=total, marked=marked, short=short,
            at=at, left=left, fetched=fetched, first=first, final=final,
            broken=self.broken.bit_select(conn, 1))
        with m.FSM():
            with m.State("Choose"):
                m.d.comb += looks.eq(0)
                # Octets that are taken in this cycle are visible in the next.
                with m.If(arbiter.some):
                    m.d.sync += [
                        conn.eq(arbiter.following), head.eq(known.following_head),
                        pending.bit_select(arbiter.following, 1).eq(0),
                    ]
                    m.next = "Look"
            self._measure(m, s)
            self._leave(m, s)
        return m

    def _measure(self, m, s):
        """Adds the states that find out whether the FPDU at the head is whole, and how long."""
        with m.State("Look"):
            behind = s.head[:exact_log2(MARKERS)]  # octets since the last marker
            begins = s.settings.markers & ~behind.any()
            m.d.comb += [
                s.reading.en.eq(1),
                s.reading.addr.eq(Cat((s.head[2:] + begins)[:len(s.at)], s.conn)),
            ]
            m.d.sync += [
                s.have.eq(self.end - s.head),
                s.gap.eq((-behind)[:len(behind)]),
                s.marked.eq(begins),
                s.total.eq(s.known.total),
                s.at.eq(s.head[2:]),
            ]
            m.next = "Length"
            with m.If(s.broken):
                m.next = "Choose"
        with m.State("Length"):
            word = s.reading.data
            length = Cat(word[8:16], word[:8])
            padded = (length + LENGTH + 3)[2:]
            m.d.sync += [s.short.eq(length < self.SHORTEST), s.first.eq(1), s.left.eq(s.total[2:])]
            with m.If(s.have < Mux(s.marked, 2 * MARKER, MARKER)):
                m.next = "Choose"
            with m.Elif(~s.known.measured):
                m.d.sync += s.total.eq((padded << 2) + CRC)
                m.next = "Markers"
            with m.Elif(s.have < s.total):
                m.next = "Choose"
            with m.Else():
                m.next = "Leave"
        with m.State("Markers"):
            m.d.sync += s.left.eq(s.total[2:])
            with m.If(s.total > self.window):
                m.d.sync += s.broken.eq(1)
                m.next = "Choose"
            with m.Elif(s.settings.markers & (s.gap < s.total)):
                m.d.sync += [s.total.eq(s.total + MARKER), s.gap.eq(s.gap + MARKERS)]
            with m.Elif(s.have < s.total):
                m.d.comb += s.known.measures.eq(1)
                m.next = "Choose"
            with m.Else():
                m.next = "Leave"

    def _leave(self, m, s):
        """Adds the state that outputs the FPDU at the head."""
        with m.State("Leave"):
            move = ~s.fetched | s.gather.i.ready
            m.d.comb += [s.reading.en.eq(move), s.gather.i.valid.eq(s.fetched)]
            with m.If(move):
                m.d.sync += [
                    s.fetched.eq(s.left != 0),
                    s.final.eq(s.left == 1),
                    s.at.eq(s.at + 1),
                    s.left.eq(s.left - (s.left != 0)),
                ]
            # The beats of the packet before have left when this packet's first word is taken.
            with m.If(s.fetched & move & s.first):
                m.d.sync += [
                    self.o.payload.stream.eq(s.settings.stream),
                    self.o.payload.sequence.eq(s.head),
                    s.first.eq(0),
                ]
            with m.If(s.fetched & move & s.final):
                m.d.comb += s.known.leaves.eq(1)
                m.d.sync += [s.pending.bit_select(s.conn, 1).eq(1), s.broken.eq(s.short)]
                m.next = "Choose"
