"""Receives Ethernet frames, and outputs FPDUs of TCP connections and the host's frames."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Beat, any_of
from ..mpa.intake import LlpBeat
from ..spec.net import TcpField
from .fpdus import FpduCutter, RingWrite
from .headers import HEADERS, TcpHeaders
from .width import Gather, Split, Word

__all__ = ["FrameStore", "TcpPeer", "TcpReceiver", "TcpSegments", "TcpWrite"]


class TcpWrite(data.StructLayout):
    """A write of ``word`` to ``field`` (a TcpField) of connection ``index``."""

    def __init__(self, connections):
        super().__init__({"index": range(connections), "field": 4, "word": 32})


class TcpPeer(data.StructLayout):
    """The Acknowledgment Number and Window of the last segment that was taken."""

    def __init__(self):
        super().__init__({"acknowledged": 32, "window": 16})


class TcpSegments(wiring.Component):
    """Takes those segments of each connection that are next in order (RFC 9293 section 3.10.7.4).

    A segment is taken if it begins with the next octet expected, has payload, ACK and none of SYN,
    RST and URG, has an Acknowledgment Number no more than SPAN before SENT (RFC 5961 section 5.2),
    and fits in the ring. The first of these rules that applies decides on a frame:

    * a damaged frame is dropped;
    * a frame without a valid TCP segment, or of no connection, is forwarded to the host;
    * a segment with a wrong checksum is dropped (RFC 9293 section 3.1, MUST-3);
    * a segment that meets the conditions is taken; with FIN it is forwarded to the host too;
    * any other segment is forwarded to the host.

    Payload is written to the ring as it arrives, and becomes valid once the segment is taken.

    Latency: 4 cycles from a frame's last word to the decision. Throughput: one word per cycle, and
    10 more cycles per frame. Reset: no connection is valid. Errors: see the rules above.

    Parameters
    ----------
    connections : int
        A power of two from 2 up.
    window : int
        Octets of a ring, a power of two from 512 up.

    Members
    -------
    headers : In(HEADERS)
        Those of :class:`~.headers.TcpHeaders`.
    write : In(stream.Signature(TcpWrite(connections), always_ready=True))
        Writing SETTINGS makes a connection valid or not, and restarts it; allowed only while no
        frame is being received. SENT may be written at any time between frames, the other fields
        only while the connection is not valid.
    ring : Out(stream.Signature(RingWrite(connections, window), always_ready=True))
    taken : Out(1), index : Out(range(connections))
        The frame's segment was taken, and its connection.
    host, dropped : Out(1)
        The frame is forwarded to the host; is dropped. Valid in the cycle of ``headers.ended``.
    ask, look : In(range(connections)), end, next : Out(32)
        Connections to look up, and the positions of the octets that they expect; in the same cycle.
    peer : Out(TcpPeer())
        The peer's last segment on connection ``look``.
    head : In(32)
        Position of the first octet in the ring of ``index``; in the same cycle.
    broken : In(connections)
        Connections of which no further segment is taken.
    """

    def __init__(self, connections, window):
        self.connections, self.window = connections, window
        index = range(connections)
        super().__init__({
            "headers": In(HEADERS),
            "write": In(stream.Signature(TcpWrite(connections), always_ready=True)),
            "ring": Out(stream.Signature(RingWrite(connections, window), always_ready=True)),
            "taken": Out(1),
            "index": Out(index),
            "host": Out(1),
            "dropped": Out(1),
            "ask": In(index),
            "look": In(index),
            "end": Out(32),
            "next": Out(32),
            "peer": Out(TcpPeer()),
            "head": In(32),
            "broken": In(connections),
        })

    def elaborate(self, platform):
        m = Module()
        headers, facts, write = self.headers, self.headers.facts, self.write.payload
        known = self._whose(m)
        starts = self.write.valid & (write.field == TcpField.SETTINGS)
        sequences, (first,) = self._memory(m, "sequences", 32, self.index)
        ends, (own, asked, looked) = self._memory(
            m, "ends", 32, self.index, self.ask, self.look)
        peers, (peer,) = self._memory(m, "peers", TcpPeer(), self.look)
        sents, (sent,) = self._memory(m, "sents", 32, self.index)
        spans, (span,) = self._memory(m, "spans", 32, self.index)

        # Facts of the connection, one step per cycle: all are known before the header has passed.
        end, base, expected = Signal(32), Signal(32), Signal(32)
        held, room = Signal(range(self.window + 1)), Signal(range(self.window + 1))
        in_order, fits, answers, takes = Signal(), Signal(), Signal(), Signal()
        before = Signal(32)
        m.d.sync += [
            end.eq(own),
            base.eq(first),
            expected.eq(base + end),
            held.eq(end - self.head),
            room.eq(self.window - held),
            in_order.eq(expected == facts.sequence),
            fits.eq(facts.length <= room),
            before.eq(sent - facts.acknowledged),
            answers.eq(before <= span),
        ]
        with m.If(headers.opens):
            m.d.sync += takes.eq(
                known & facts.data & in_order & fits & answers
                & ~self.broken.bit_select(self.index, 1))
        self._fill(m, takes, end)

        with m.If(headers.ended):
            m.d.sync += takes.eq(0)
            m.d.comb += [
                self.dropped.eq(headers.damaged | (headers.sound & known & ~headers.good)),
                self.taken.eq(~self.dropped & headers.sound & known & takes),
                self.host.eq(~self.dropped & (~self.taken | facts.fin)),
            ]
        m.d.comb += [
            *(statement
              for port, field in ((sequences, TcpField.SEQUENCE), (sents, TcpField.SENT),
                                  (spans, TcpField.SPAN))
              for statement in (
                  port.en.eq(self.write.valid & (write.field == field)),
                  port.addr.eq(write.index),
                  port.data.eq(write.word))),
            ends.en.eq(self.taken | starts),
            ends.addr.eq(Mux(starts, write.index, self.index)),
            ends.data.eq(Mux(starts, 0, end + facts.length)),
            peers.en.eq(ends.en),
            peers.addr.eq(ends.addr),
            peers.data.eq(Mux(starts, 0, Cat(facts.acknowledged, facts.window))),
            self.end.eq(asked),
            self.next.eq(looked),
            self.peer.eq(peer),
        ]
        return m

    def _memory(self, m, name, shape, *indices):
        """Adds a table with one word per connection; returns its write port, and its read data."""
        m.submodules[name] = storage = memory.Memory(
            shape=shape, depth=self.connections, init=[])
        read = []
        for index in indices:
            port = storage.read_port(domain="comb")
            m.d.comb += port.addr.eq(index)
            read.append(port.data)
        return storage.write_port(), read

    def _whose(self, m):
        """Compares a packet's names with those of all connections in parallel, word by word.

        Returns whether one connection matches.
        """
        headers, write = self.headers, self.write.payload
        name = headers.names.payload
        valid, v6, match = (
            Signal(self.connections, name=each) for each in ("valid", "v6", "match"))
        for k in range(self.connections):
            m.submodules[f"names_{k}"] = names = memory.Memory(shape=32, depth=16, init=[])
            writing, reading = names.write_port(), names.read_port(domain="comb")
            here = self.write.valid & (write.index == k)
            m.d.comb += [
                writing.en.eq(here),
                writing.addr.eq(write.field),
                writing.data.eq(write.word),
                reading.addr.eq(name.field),
            ]
            with m.If(here & (write.field == TcpField.SETTINGS)):
                m.d.sync += [valid[k].eq(write.word[0]), v6[k].eq(write.word[1])]
            with m.If(headers.begins):
                m.d.sync += match[k].eq(valid[k] & (v6[k] == headers.facts.v6))
            with m.Elif(headers.names.valid):
                m.d.sync += match[k].eq(match[k] & (reading.data == name.word))
        m.d.sync += self.index.eq(any_of(
            Mux(match[k] & ~match[:k].any(), k, 0) for k in range(self.connections)))
        return match.any()

    def _fill(self, m, takes, end):
        """Writes the payload of a segment that is taken to the ring, from the ring's end on."""
        headers, ring = self.headers, self.ring.payload
        before, shift, first = Signal(32), Signal(2), Signal()
        left = Signal(17)  # octets from the beginning of the ring's word on
        word = Signal.like(ring.word)
        octet = headers.payload.payload
        some = left != 0
        m.d.sync += [
            self.ring.valid.eq(takes & some & (headers.payload.valid | headers.closes)),
            ring.index.eq(self.index),
            ring.word.eq(word),
            ring.data.eq((Cat(before, octet) << (shift << 3))[32:]),
            ring.octets.eq(Cat((left > k) & (~first | (shift <= k)) for k in range(4))),
        ]
        with m.If(headers.opens):
            m.d.sync += [
                shift.eq(end[:2]), word.eq(end[2:]), left.eq(end[:2] + headers.facts.length),
                first.eq(1),
            ]
        with m.If(headers.payload.valid):
            m.d.sync += [
                before.eq(octet), first.eq(0), word.eq(word + 1),
                left.eq(Mux(left < 4, 0, left - 4)),
            ]


class FrameStore(wiring.Component):
    """Stores the words of a frame until it is known whether the host gets it.

    Latency: 4 cycles from ``keep`` to the first beat at 64 bits. Throughput: one word per cycle.
    Reset: empty. Errors: a frame for which there is no room is reported as ``lost``.

    Parameters
    ----------
    width : int
    depth : int
        Words, a power of two.

    Members
    -------
    i : In(stream.Signature(Word(), always_ready=True))
    ended : In(1), keep : In(1)
        The frame of the last words ended; it is to be forwarded.
    lost : Out(1)
    o : Out(stream.Signature(Beat(width)))
    """

    def __init__(self, width, *, depth):
        self.width, self.depth = width, depth
        super().__init__({
            "i": In(stream.Signature(Word(), always_ready=True)),
            "ended": In(1),
            "keep": In(1),
            "lost": Out(1),
            "o": Out(stream.Signature(Beat(width))),
        })

    def elaborate(self, platform):
        m = Module()
        # Not a BlockRam: at a board's slow clock, words need no output register.
        m.submodules.storage = storage = memory.Memory(
            shape=Word(), depth=self.depth, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1})
        write, read = storage.write_port(), storage.read_port()
        m.submodules.gather = gather = Gather(self.width)
        # Pointers with one bit more than an address: the end of all words (``end``), of whole
        # frames (``kept``), and of words that were read (``taken``).
        end, kept, taken = (Signal(range(2 * self.depth), name=name)
                            for name in ("end", "kept", "taken"))
        full, over = Signal(), Signal()
        fetched, moves = Signal(), Signal()
        wiring.connect(m, gather.o, wiring.flipped(self.o))
        m.d.comb += [
            full.eq(end == taken ^ self.depth),
            write.en.eq(self.i.valid & ~full),
            write.addr.eq(end),
            write.data.eq(self.i.payload),
            self.lost.eq(self.ended & self.keep & over),
            moves.eq(~fetched | gather.i.ready),
            read.en.eq(moves),
            read.addr.eq(taken),
            gather.i.valid.eq(fetched),
            gather.i.payload.eq(read.data),
        ]
        with m.If(self.ended):
            m.d.sync += [end.eq(kept), over.eq(0)]
            with m.If(self.keep & ~over):
                m.d.sync += [end.eq(end), kept.eq(end)]
        with m.Elif(self.i.valid):
            m.d.sync += [end.eq(end + ~full), over.eq(over | full)]
        with m.If(moves):
            m.d.sync += [fetched.eq(taken != kept), taken.eq(taken + (taken != kept))]
        return m


class TcpReceiver(wiring.Component):
    """Receives TCP: takes Ethernet frames, and outputs the FPDUs (RFC 5044) of connections.

    The host sets a connection up once MPA's start-up on it is over.

    .. code-block:: text

        frames ─► Split ┬► TcpHeaders ─► TcpSegments ─► rings ─► FpduCutter ─► FPDUs
                        └► FrameStore ─────────────────────────────────────► frames for the host

    The host keeps TCP's state. It acknowledges the octets before ``next``, offers a window of no
    more than the ring, and answers all frames that are forwarded to it. Among these are segments
    that are not next in order; the peer has to send those again.

    Latency: 13 cycles at 64 bits from a frame's last beat to the first beat of its FPDU, if no
    other connection has its turn. Throughput: one word of 32 bits per cycle and 10 more cycles per
    frame; independently, the time that the cutter takes for the FPDUs. At 62.5 MHz this suffices
    for 1 Gb/s of any frames with any FPDUs. Reset: no connection is valid. Errors: those of
    :class:`TcpSegments`, :class:`FrameStore` and :class:`~.fpdus.FpduCutter`.

    Parameters
    ----------
    width : int
    connections : int
        A power of two from 2 to 16.
    window : int
        Octets that a connection may have on the way, a power of two from 2048 to 65536.
    streams : int
        DDP Streams.

    Members
    -------
    i : In(stream.Signature(Beat(width)))
        Ethernet frames without FCS.
    write : In(stream.Signature(TcpWrite(connections)))
        The payload may change after it was taken.
    look : In(range(connections)), next : Out(32), peer : Out(TcpPeer()), broken : Out(1)
        Connection to look up, and its state; in the same cycle.
    packets : Out(stream.Signature(LlpBeat(width)))
        One packet per FPDU, with the FPDU's position as sequence number.
    frames : Out(stream.Signature(Beat(width)))
        Frames for the host.
    taken, host, dropped, lost : Out(1)
        High for one cycle for each segment that is taken; frame that is forwarded to the host; is
        dropped; should be forwarded but found no room.
    """

    #: Words of frames that may wait for the host.
    STORE = 1024

    def __init__(self, width, *, connections, window, streams):
        for name, value, low, high in (
                ("connections", connections, 2, 16), ("window", window, 2048, 65536)):
            if not isinstance(value, int) or value & (value - 1) or not low <= value <= high:
                raise ValueError(
                    f"TcpReceiver {name} must be a power of two from {low} to {high},"
                    f" not {value!r}")
        self.width, self.connections, self.window = width, connections, window
        self.streams = streams
        super().__init__({
            "i": In(stream.Signature(Beat(width))),
            "write": In(stream.Signature(TcpWrite(connections))),
            "look": In(range(connections)),
            "next": Out(32),
            "peer": Out(TcpPeer()),
            "broken": Out(1),
            "packets": Out(stream.Signature(LlpBeat(width))),
            "frames": Out(stream.Signature(Beat(width))),
            "taken": Out(1),
            "host": Out(1),
            "dropped": Out(1),
            "lost": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.split = split = Split(self.width)
        m.submodules.headers = headers = TcpHeaders()
        m.submodules.segments = segments = TcpSegments(self.connections, self.window)
        m.submodules.cutter = cutter = FpduCutter(
            self.width, self.connections, self.window, self.streams)
        m.submodules.store = store = FrameStore(self.width, depth=self.STORE)
        wiring.connect(m, wiring.flipped(self.i), split.i)
        wiring.connect(m, split.o, headers.i)
        wiring.connect(m, segments.ring, cutter.ring)
        wiring.connect(m, cutter.o, wiring.flipped(self.packets))
        wiring.connect(m, store.o, wiring.flipped(self.frames))
        wiring.connect(m, headers.o, segments.headers)
        write, settings = self.write.payload, self.write.payload.word
        word = split.o.payload
        m.d.comb += [
            # A connection restarts between two frames, once none of its octets are left.
            self.write.ready.eq(headers.idle & cutter.settled.bit_select(write.index, 1)),
            segments.write.valid.eq(self.write.valid & self.write.ready),
            segments.write.payload.eq(write),
            # A connection with a stream that does not exist stays invalid.
            segments.write.payload.word[0].eq(settings[0] & (
                (write.field != TcpField.SETTINGS) | (settings[16:] < self.streams))),
            cutter.start.valid.eq(segments.write.valid & (write.field == TcpField.SETTINGS)),
            cutter.start.payload.index.eq(write.index),
            cutter.start.payload.settings.markers.eq(settings[2]),
            cutter.start.payload.settings.stream.eq(settings[16:]),
            store.i.valid.eq(split.o.valid & split.o.ready & word.there),
            store.i.payload.eq(word.raw),
            store.ended.eq(headers.o.ended),
            store.keep.eq(segments.host),
            cutter.taken.eq(segments.taken),
            cutter.index.eq(segments.index),
            cutter.end.eq(segments.end),
            cutter.look.eq(segments.index),
            segments.ask.eq(cutter.ask),
            segments.head.eq(cutter.head),
            segments.broken.eq(cutter.broken),
            segments.look.eq(self.look),
            self.next.eq(segments.next),
            self.peer.eq(segments.peer),
            self.broken.eq(cutter.broken.bit_select(self.look, 1)),
            self.taken.eq(segments.taken),
            self.host.eq(segments.host & ~store.lost),
            self.dropped.eq(segments.dropped),
            self.lost.eq(store.lost),
        ]
        return m
