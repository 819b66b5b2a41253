"""Parses the headers of TCP segments in frames, one word per cycle."""

from types import SimpleNamespace

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..spec.net import EtherType, Protocol, TcpField
from .width import FrameWord

__all__ = ["HEADERS", "TcpFacts", "TcpHeaders", "TcpName"]

#: 32-bit words of an IPv6 header, and of an IPv4 and a TCP header without options.
IPV6_WORDS, IPV4_WORDS, TCP_WORDS = 10, 5, 5
TAGS = 2


class TcpName(data.StructLayout):
    """A word that identifies a connection: ``field``, TcpField, and ``word``, in wire order."""

    def __init__(self):
        super().__init__({"field": 4, "word": 32})


class TcpFacts(data.StructLayout):
    """The facts from a segment's headers.

    Members
    -------
    v6 : 1
    sequence, acknowledged : 32, window : 16
    fin : 1
    data : 1
        The segment has payload, ACK and none of SYN, RST and URG.
    length : 16
        Octets of payload.
    """

    def __init__(self):
        super().__init__({
            "v6": 1, "sequence": 32, "acknowledged": 32, "window": 16, "fin": 1, "data": 1,
            "length": 16})


class _Sum(wiring.Component):
    """Computes the checksum of RFC 1071.

    Latency: 4 cycles to ``good``. Throughput: one term per cycle.

    Members
    -------
    start : In(1)
    add : In(1), term : In(18)
        Sum of up to three numbers of 16 bits.
    good : Out(1)
        All terms since ``start``, including the checksum, add up to the required sum.
    """

    def __init__(self):
        super().__init__({"start": In(1), "add": In(1), "term": In(18), "good": Out(1)})

    def elaborate(self, platform):
        m = Module()
        term, total, folded = Signal(18), Signal(19), Signal(17)
        m.d.sync += [
            term.eq(Mux(self.add, self.term, 0)),
            total.eq(Mux(self.start, 0, total[:16] + total[16:] + term)),
            # If this carries once more, the result is not 16 ones.
            folded.eq(total[:16] + total[16:]),
            self.good.eq(folded == 0xFFFF),
        ]
        return m


#: The results for a frame's headers, in the order of time:
#:
#: ``begins`` (1)
#:     An IP header follows; ``facts.v6`` gives its version.
#: ``names``, stream of TcpName, always ready
#:     Addresses and ports of the segment.
#: ``facts``, TcpFacts
#:     Valid from 4 cycles before ``opens`` to ``ended``.
#: ``opens`` (1)
#:     The TCP header has passed, and its last name 9 or more cycles ago.
#: ``payload``, stream of 32 bits, always ready
#:     Payload, and octets of the frame after it.
#: ``closes`` (1)
#:     No further payload follows.
#: ``ended`` (1)
#:     The frame has ended, 3 cycles later. Only in this cycle are valid: the frame is ``damaged``
#:     (1); is ``sound`` (1), an IP packet that is no fragment, with a correct checksum if it is
#:     IPv4, and with a TCP header; and the checksum of its segment is ``good`` (1).
HEADERS = wiring.Signature({
    "begins": Out(1),
    "names": Out(stream.Signature(TcpName(), always_ready=True)),
    "facts": Out(TcpFacts()),
    "opens": Out(1),
    "payload": Out(stream.Signature(32, always_ready=True)),
    "closes": Out(1),
    "ended": Out(1),
    "damaged": Out(1),
    "sound": Out(1),
    "good": Out(1),
})


class TcpHeaders(wiring.Component):
    """Parses the headers of a frame with a TCP segment while its words pass.

    A frame is Ethernet II with none, one or two VLAN tags (IEEE 802.1Q); it contains IPv4 with
    options (RFC 791) or IPv6 without extension headers (RFC 8200), and in that TCP (RFC 9293). It
    may be longer than its packet.

    Latency: 4 cycles from the frame's last word to ``ended``. Throughput: one word per cycle, and
    10 more cycles per frame. Reset: the next word begins a frame. Errors: reported with ``ended``.

    Members
    -------
    i : In(stream.Signature(FrameWord()))
    idle : Out(1)
        No frame is being received.
    o : Out(HEADERS)
    """

    #: Cycles between a header and its payload.
    PAUSE = 6

    def __init__(self):
        super().__init__({
            "i": In(stream.Signature(FrameWord())), "idle": Out(1), "o": Out(HEADERS)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.ip_sum = ip_sum = _Sum()
        m.submodules.tcp_sum = tcp_sum = _Sum()
        word, facts = self.i.payload.moved, self.o.facts
        number = Cat(word.data.word_select(k, 8) for k in reversed(range(4)))
        upper, lower = number[16:], number[:16]
        got, last = Signal(), Signal()
        m.d.comb += [
            got.eq(self.i.valid & self.i.ready),
            last.eq(got & word.last),
            self.o.names.payload.word.eq(word.data),
            self.o.payload.payload.eq(word.data),
        ]

        n = Signal(4)  # words of the header before this one
        tags = Signal(range(TAGS + 1))
        # ``bad``: a header is wrong. ``cut``: the frame ended before the packet did.
        bad, cut = Signal(), Signal()
        header, total = Signal(4), Signal(16)
        segment, left = Signal(16), Signal(16)  # octets: all, and those from this word on
        offset, flags = Signal(4), Signal(6)
        fin, syn, rst, _, ack, urg = flags
        length = Signal(signed(17))
        over = Signal()
        step = Signal(range(self.PAUSE))
        m.d.sync += [
            length.eq(segment - (offset << 2)),
            facts.data.eq((offset >= TCP_WORDS) & (length > 0) & ack & ~(urg | rst | syn)),
        ]
        m.d.comb += [facts.length.eq(length), facts.fin.eq(fin)]
        m.d.sync += self.o.begins.eq(0)

        # Only ``left`` octets of the segment's last word count, and none after it.
        in_segment, pseudo = Signal(), Signal()
        octets = Mux(in_segment & (left < 4), left[:2], 4)
        counted = number & Cat(octets > 3 - k // 8 for k in range(32))
        m.d.comb += [
            ip_sum.term.eq(upper + lower),
            # The pseudo-header consists of addresses, the segment's length, and the protocol.
            tcp_sum.term.eq(Mux(pseudo, segment + Protocol.TCP, counted[16:] + counted[:16])),
        ]
        with m.If(in_segment & got):
            m.d.sync += left.eq(Mux(left < 4, 0, left - 4))
            with m.If(word.last & (left > word.ends + 1)):
                m.d.sync += cut.eq(1)
        with m.If(last):
            m.d.sync += self.o.damaged.eq(self.i.payload.error)

        def ends(*, early):
            """Ends the frame at its last word, which is ``early`` if headers are still missing."""
            with m.If(last):
                if early:
                    m.d.sync += cut.eq(1)
                m.next = "End"

        s = SimpleNamespace(
            n=n, got=got, word=word, number=number, upper=upper, lower=lower, facts=facts, bad=bad,
            header=header, total=total, segment=segment, left=left, offset=offset, flags=flags,
            over=over, in_segment=in_segment, pseudo=pseudo, tags=tags, cut=cut, step=step,
            ip_sum=ip_sum, tcp_sum=tcp_sum, ends=ends)
        with m.FSM():
            self._ethernet(m, s)
            self._ipv4(m, s)
            self._ipv6(m, s)
            self._tcp(m, s)
            self._payload(m, s)
        m.d.comb += [
            self.o.sound.eq(~bad & ~cut & (facts.v6 | ip_sum.good)),
            self.o.good.eq(tcp_sum.good),
        ]
        return m

    def _ethernet(self, m, s):
        """Adds the state that parses an Ethernet header and VLAN tags (IEEE 802.1Q)."""
        with m.State("Ethernet"):
            m.d.comb += [
                self.i.ready.eq(1),
                self.idle.eq((s.n == 0) & ~self.i.valid),
                s.ip_sum.start.eq(1),
                s.tcp_sum.start.eq(1),
            ]
            with m.If(s.got):
                m.d.sync += s.n.eq(s.n + (s.n != 3))
            with m.If(s.got & (s.n == 3)):
                tag = (s.lower == EtherType.VLAN) | (s.lower == EtherType.SERVICE_VLAN)
                m.d.sync += s.n.eq(0)
                with m.If(tag & (s.tags != TAGS)):
                    m.d.sync += [s.n.eq(3), s.tags.eq(s.tags + 1)]
                with m.Elif(s.lower == EtherType.IPV4):
                    m.d.sync += [self.o.begins.eq(1), s.facts.v6.eq(0)]
                    m.next = "IPv4"
                with m.Elif(s.lower == EtherType.IPV6):
                    m.d.sync += [self.o.begins.eq(1), s.facts.v6.eq(1)]
                    m.next = "IPv6"
                with m.Else():
                    m.d.sync += s.bad.eq(1)
                    m.next = "Rest"
            s.ends(early=True)

    def _ipv4(self, m, s):
        """Adds the state that parses an IPv4 header (RFC 791 section 3.1)."""
        with m.State("IPv4"):
            address = (s.n == 3) | (s.n == 4)
            m.d.comb += [
                self.i.ready.eq(1),
                s.ip_sum.add.eq(s.got),
                s.tcp_sum.add.eq(s.got & address),
                self.o.names.valid.eq(s.got & address),
                self.o.names.payload.field.eq(
                    Mux(s.n == 3, TcpField.SOURCE, TcpField.DESTINATION)),
            ]
            with m.If(s.got):
                m.d.sync += s.n.eq(s.n + 1)
                with m.Switch(s.n):
                    with m.Case(0):
                        m.d.sync += [
                            s.header.eq(s.number[24:28]),
                            s.total.eq(s.lower),
                            s.bad.eq((s.number[28:] != 4) | (s.number[24:28] < IPV4_WORDS)),
                        ]
                    with m.Case(1):
                        # A fragment: more of them follow, or it has an offset.
                        m.d.sync += s.bad.eq(s.bad | s.number[:14].any())
                    with m.Case(2):
                        m.d.sync += s.bad.eq(s.bad | (s.number[16:24] != Protocol.TCP))
                # If the header is longer than the packet, the difference exceeds every frame.
                m.d.sync += [s.segment.eq(s.total - (s.header << 2)), s.left.eq(s.segment)]
                with m.If((s.n >= IPV4_WORDS - 1) & s.bad):
                    m.next = "Rest"
                with m.Elif((s.n >= IPV4_WORDS - 1) & (s.n + 1 == s.header)):
                    m.d.sync += s.n.eq(0)
                    m.next = "TCP"
            s.ends(early=True)

    def _ipv6(self, m, s):
        """Adds the state that parses an IPv6 header (RFC 8200 section 3)."""
        with m.State("IPv6"):
            m.d.comb += [
                self.i.ready.eq(1),
                s.tcp_sum.add.eq(s.got & (s.n >= 2)),
                self.o.names.valid.eq(s.got & (s.n >= 2)),
                self.o.names.payload.field.eq(s.n - 2 + TcpField.SOURCE),
            ]
            with m.If(s.got):
                m.d.sync += [s.n.eq(s.n + 1), s.left.eq(s.segment)]
                with m.Switch(s.n):
                    with m.Case(0):
                        m.d.sync += s.bad.eq(s.number[28:] != 6)
                    with m.Case(1):
                        m.d.sync += [
                            s.segment.eq(s.upper),
                            s.bad.eq(s.bad | (s.number[8:16] != Protocol.TCP)),
                        ]
                with m.If(s.n == IPV6_WORDS - 1):
                    m.d.sync += s.n.eq(0)
                    m.next = "TCP"
                    with m.If(s.bad):
                        m.next = "Rest"
            s.ends(early=True)

    def _tcp(self, m, s):
        """Adds the state that parses a TCP header (RFC 9293 section 3.1)."""
        with m.State("TCP"):
            m.d.comb += [
                self.i.ready.eq(1),
                s.in_segment.eq(1),
                s.tcp_sum.add.eq(s.got),
                self.o.names.valid.eq(s.got & (s.n == 0)),
                self.o.names.payload.field.eq(TcpField.PORTS),
            ]
            with m.If(s.got):
                m.d.sync += s.n.eq(s.n + 1)
                with m.Switch(s.n):
                    with m.Case(1):
                        m.d.sync += s.facts.sequence.eq(s.number)
                    with m.Case(2):
                        m.d.sync += s.facts.acknowledged.eq(s.number)
                    with m.Case(3):
                        m.d.sync += [
                            s.offset.eq(s.number[28:]),
                            s.flags.eq(s.number[16:22]),
                            s.facts.window.eq(s.lower),
                            s.bad.eq(s.segment < 4 * TCP_WORDS),
                        ]
                with m.If(s.n < TCP_WORDS - 1):
                    s.ends(early=True)
                with m.Elif(s.word.last | (s.n + 1 == s.offset) | (s.offset < TCP_WORDS)):
                    m.d.sync += s.over.eq(s.word.last)
                    m.next = "Pause"

    def _payload(self, m, s):
        """Adds the states for all that follows the headers, up to the end of the frame."""
        with m.State("Pause"):
            m.d.comb += [s.pseudo.eq(1), s.tcp_sum.add.eq(s.step == 0)]
            m.d.sync += s.step.eq(s.step + 1)
            with m.If(s.step == self.PAUSE - 1):
                m.d.comb += self.o.opens.eq(1)
                m.d.sync += s.step.eq(0)
                m.next = "Payload"
                with m.If(s.over):
                    m.next = "End"
        with m.State("Payload"):
            m.d.comb += [
                self.i.ready.eq(1),
                s.in_segment.eq(1),
                s.tcp_sum.add.eq(s.got),
                self.o.payload.valid.eq(s.got),
            ]
            s.ends(early=False)
        with m.State("Rest"):
            m.d.comb += self.i.ready.eq(1)
            s.ends(early=False)
        with m.State("End"):
            m.d.comb += self.o.closes.eq(s.step == 0)
            m.d.sync += s.step.eq(s.step + 1)
            with m.If(s.step == 3):
                m.d.comb += self.o.ended.eq(1)
                m.d.sync += [s.step.eq(0), s.n.eq(0), s.tags.eq(0), s.bad.eq(0), s.cut.eq(0)]
                m.next = "Ethernet"
