"""Parses frames: finds SCTP packets in them, and the packets' addresses, ports and tag."""

from amaranth import *
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ip.chain import FIND, Extension, pick
from ..ip.network import IP_WORD, TAGS, Facts, Network
from ..ip.shift import FrameShift
from ..lib.delay import Delay
from ..lib.stream import Beat, any_of, delayed
from ..spec.config import WIDTHS
from ..spec.net import SCTP_UDP_PORT
from .transport import Transport

__all__ = ["Frame", "FrameBeat", "FrameParser", "Kind"]


class Kind(enum.Enum, shape=3):
    """The kind of a frame."""

    OTHER = 0
    SCTP = 1
    FRAGMENT = 2
    MALFORMED = 3
    DAMAGED = 4


class FrameBeat(data.StructLayout):
    """A beat of an Ethernet frame, shifted by two octets.

    With the shift, every header after the Ethernet header is aligned to 32-bit words.

    Members
    -------
    data : unsigned(width)
        Octets, the first one lowest; two zeros before the frame, zeros after it.
    used : width // 32
        1 for each word that holds octets; all words except on the last beat.
    first, last : 1
        The frame begins, ends with this beat.
    sctp : width // 32
        One-hot: the word where an SCTP common header begins, if the frame is valid up to there. 0
        in the frame's other beats.
    octets : 16
        With ``sctp``: length of the SCTP packet, as given by the headers before it.
    ends : 2
        On the last beat: octets in its last word, less one.
    """

    def __init__(self, width):
        words = width // 32
        super().__init__({
            "data": width, "used": words, "first": 1, "last": 1, "sctp": words, "octets": 16,
            "ends": 2})


class Frame(data.StructLayout):
    """The result for a frame.

    If ``kind`` is not SCTP, the other members are meaningless. If it is, addresses, ports, tag and
    ``v6`` stay until those of the next frame.

    Members
    -------
    kind : Kind
    octets : 16
        Octets of the SCTP packet, with its header.
    v6 : 1
    source, destination : 128
        First octet lowest; an IPv4 address has the lowest 32 bits.
    source_port, destination_port : 16
        Ports of the SCTP packet.
    tag : 32
        Verification Tag.
    udp : 1
        The packet was encapsulated in UDP.
    """

    def __init__(self):
        super().__init__({
            "kind": Kind, "octets": 16, "v6": 1, "source": 128, "destination": 128,
            "source_port": 16, "destination_port": 16, "tag": 32, "udp": 1,
        })


class _Names(wiring.Component):
    """Extracts addresses, ports and Verification Tag from the frames that pass.

    Latency: 2 cycles; the outputs stay until those of the next frame. Throughput: one beat per
    cycle. Reset: no beat is under way. Errors: none.

    Members
    -------
    valid : In(1), beat : In(FrameBeat(width))
    facts : In(Facts())
        Facts of the beat's frame.
    v6, source, destination, ports, tag
        In the order of the octets on the wire.
    """

    #: Positions of the addresses after two tags, in words of the frame: that of IPv4, that of IPv6.
    SOURCE = IP_WORD + TAGS + 3, IP_WORD + TAGS + 2
    DESTINATION = IP_WORD + TAGS + 4, IP_WORD + TAGS + 6

    def __init__(self, width):
        self.width = width
        super().__init__({
            "valid": In(1),
            "beat": In(FrameBeat(width)),
            "facts": In(Facts()),
            "v6": Out(1),
            "source": Out(128),
            "destination": Out(128),
            "ports": Out(32),
            "tag": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        words = self.width // 32
        word = [self.beat.data.word_select(w, 32) for w in range(words)]

        # Cycle 1: shift every frame as if it had two tags, so that its words are never too late.
        # Beats are counted up to the addresses.
        final = (self.DESTINATION[1] + 3) // words
        before = Signal(64, reset_less=True)
        number = Signal(range(final + 2))
        number_now = Mux(self.beat.first, 0, number)
        at = Signal(final + 1)
        tail = Signal()
        marks = Cat(self.valid & ~self.beat.first & tail, self.beat.sctp)
        with m.If(self.valid):
            m.d.sync += [
                before.eq(Cat(word[-2:])),
                number.eq(number_now + (number_now <= final)),
                tail.eq(marks[-1]),
            ]
        m.d.sync += at.eq(Cat(self.valid & (number_now == k) for k in range(final + 1)))
        context = [before[:32], before[32:], *word]
        level = []
        for w in range(words):
            moved = Signal(32, name=f"moved{w}", reset_less=True)
            m.d.sync += moved.eq(any_of(
                context[w + k] & self.facts.tags[k].replicate(32) for k in range(TAGS + 1)))
            level.append(moved)
        v6 = delayed(m, 1, self.facts.v6, "v6")

        # Cycle 2.
        with m.If(at[self.SOURCE[0] // words]):
            m.d.sync += self.v6.eq(v6)
        for address, (v4_word, v6_word) in (
                (self.source, self.SOURCE), (self.destination, self.DESTINATION)):
            for k in range(4):
                part = address.word_select(k, 32)
                six, four = v6_word + k, v4_word
                with m.If(at[six // words] & v6):
                    m.d.sync += part.eq(level[six % words])
                with m.Elif(at[four // words] & ~v6):
                    m.d.sync += part.eq(0 if k else level[four % words])
        m.d.comb += [
            self.ports.eq(pick(m, self.beat.sctp, word, "ports_word")),
            self.tag.eq(pick(m, marks[:-1], word, "tag_word")),
        ]
        return m


class FrameParser(wiring.Component):
    """Decides for each frame, while its octets pass, whether it is an SCTP packet.

    For an SCTP packet, the parser outputs where it begins and its addresses, ports and tag.

    A frame is Ethernet II without FCS, with none, one or two VLAN tags (IEEE 802.1Q); its Ethernet
    addresses are ignored. It contains IPv4 with options (RFC 791), or IPv6 (RFC 8200) with up to
    four headers of hop-by-hop options, routing, destination options and authentication, in any
    order; and in that SCTP, or SCTP in UDP to ``udp_port`` (RFC 6951). A frame may be longer than
    its packet. The UDP checksum is not checked: SCTP's own CRC32c, which is stronger, covers the
    packet, and the addresses are compared with an association's along with its Verification Tag.

    The first of these rules that applies gives the kind of the frame:

    * DAMAGED if marked as such;
    * OTHER if it does not hold an IP packet;
    * MALFORMED if it does not hold the whole packet; if version, header length, header checksum or
      total length of IP are wrong; or if an extension header or UDP header reaches beyond the
      packet;
    * FRAGMENT if it has a part of a packet, or any fragment header;
    * OTHER if the packet is not SCTP or has too many extension headers, or a routing header with
      Segments Left other than zero;
    * MALFORMED if the SCTP packet has less than 12 octets, or the UDP header counts more octets
      than there are;
    * SCTP.

    Latency: 43 cycles (``LATENCY``) from a beat to ``o``, two more from the last one to ``frames``.
    Throughput: one output beat per cycle. A frame whose last beat has no room for two more octets
    has one more beat at the output than at the input; ``i.ready`` is then low in the cycle after
    its last beat, and in no other. Reset: the next beat begins a frame; an unfinished frame is
    forgotten. Errors: see the kinds above; no frame has an effect on another one.

    Parameters
    ----------
    width : int
    udp_port : int

    Members
    -------
    i : In(stream.Signature(Beat(width)))
        Frames of any length from 1 octet up. ``i.ready`` does not wait for ``i.valid``.
    o : Out(stream.Signature(FrameBeat(width), always_ready=True))
    frames : Out(stream.Signature(Frame(), always_ready=True))
        One for each frame.
    """

    #: Extension headers that are skipped; a packet with more is OTHER.
    EXTENSIONS = 4

    _chain = Network.LATENCY + EXTENSIONS * Extension.LATENCY
    LATENCY = 2 + _chain + Transport.LATENCY

    def __init__(self, width, *, udp_port=SCTP_UDP_PORT):
        if width not in WIDTHS:
            raise ValueError(
                f"Frame width must be one of {', '.join(map(str, WIDTHS))}, not {width!r}")
        if not isinstance(udp_port, int):
            raise TypeError(f"UDP port must be an integer, not {udp_port!r}")
        if not 0 < udp_port < 1 << 16:
            raise ValueError(f"UDP port must be from 1 to 65535, not {udp_port!r}")
        self.width = width
        self.udp_port = udp_port
        super().__init__({
            "i": In(stream.Signature(Beat(width))),
            "o": Out(stream.Signature(FrameBeat(width), always_ready=True)),
            "frames": Out(stream.Signature(Frame(), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        words = self.width // 32
        chain = self._chain
        kept = data.StructLayout({
            "data": self.width, "used": words, "first": 1, "last": 1, "error": 1, "ends": 2})
        m.submodules.shift = shift = FrameShift(self.width)
        m.submodules.network = network = Network(self.width)
        m.submodules.transport = transport = Transport(words, udp_port=self.udp_port)
        wiring.connect(m, wiring.flipped(self.i), shift.i)
        shifted = shift.o.payload

        # The beats: one block RAM up to where UDP and SCTP are read, then a short ring.
        m.submodules.beats = beats = Delay(kept, chain + FIND, block=True)
        m.submodules.delay = delay = Delay(kept, Transport.LATENCY - FIND)
        valid = Signal(chain + Transport.LATENCY)
        m.d.comb += [
            *(beats.i[name].eq(shifted[name]) for name, _ in kept),
            delay.i.eq(beats.o),
            self.o.valid.eq(valid[-1]),
            *(self.o.payload[name].eq(delay.o[name])
              for name in ("data", "used", "first", "last", "ends")),
            self.o.payload.sctp.eq(transport.sctp),
            self.o.payload.octets.eq(transport.length),
        ]
        m.d.sync += valid.eq(Cat(shift.o.valid, valid))

        # The headers, one after the other.
        m.submodules.heads = heads = Delay(data.ArrayLayout(17, words), Network.LATENCY + FIND)
        m.d.comb += [network.i_valid.eq(shift.o.valid), network.i.eq(shifted)]
        stage = network.valid, network.line, network.header, heads.o
        for w in range(words):
            head = shifted.data.word_select(w, 32)
            m.d.comb += heads.i[w].eq(Cat(head[:16], head[24:].any()))
        for number in range(self.EXTENSIONS):
            m.submodules[f"extension_{number}"] = extension = Extension(words)
            m.d.comb += [
                extension.i_valid.eq(stage[0]),
                extension.i_line.eq(stage[1]),
                extension.i_header.eq(stage[2]),
                extension.i_heads.eq(stage[3]),
            ]
            stage = extension.o_valid, extension.o_line, extension.o_header, extension.o_heads
        m.d.comb += [
            transport.valid.eq(stage[0]),
            transport.line.eq(stage[1]),
            transport.header.eq(stage[2]),
            transport.octets.eq(beats.o.data),
            transport.used.eq(beats.o.used),
        ]
        self._judge(m, network, transport, delay.o.error)
        return m

    def _judge(self, m, network, transport, error):
        chain = self._chain
        m.submodules.facts = facts = Delay(
            Facts(), chain + Transport.END_DELAY - Network.FACTS_LATENCY)
        m.submodules.sums = sums = Delay(
            1, chain + Transport.ENDING_LATENCY - network.sum_latency)
        m.submodules.names = names = _Names(self.width)
        m.d.comb += [
            facts.i.eq(network.facts),
            transport.end.eq(facts.o.end),
            sums.i.eq(network.sum),
            names.valid.eq(self.o.valid),
            names.beat.eq(self.o.payload),
        ]
        # In step with the output's beat, and with its frame's ending.
        known = delayed(m, Transport.LATENCY - Transport.END_DELAY, facts.o, "known")
        at_end, damaged = delayed(m, 1, known, "at_end"), delayed(m, 1, error, "damaged")
        m.d.comb += names.facts.eq(known)
        ended = Signal(2)
        m.d.sync += ended.eq(Cat(self.o.valid & self.o.payload.last, ended))

        frame, ending = self.frames.payload, transport.ending
        kind = Signal(Kind)
        with m.If(damaged):
            m.d.comb += kind.eq(Kind.DAMAGED)
        with m.Elif(~at_end.ip):
            m.d.comb += kind.eq(Kind.OTHER)
        with m.Elif(~at_end.sound | ~sums.o | ending.before):
            m.d.comb += kind.eq(Kind.MALFORMED)
        with m.Elif(ending.fragment):
            m.d.comb += kind.eq(Kind.FRAGMENT)
        with m.Elif(ending.foreign):
            m.d.comb += kind.eq(Kind.OTHER)
        with m.Elif(ending.over | ending.short):
            m.d.comb += kind.eq(Kind.MALFORMED)
        with m.Else():
            m.d.comb += kind.eq(Kind.SCTP)
        m.d.sync += [
            frame.kind.eq(kind),
            frame.octets.eq(ending.octets),
            frame.udp.eq(ending.udp),
        ]
        # In numbers on the wire, the highest octet comes first.
        ports, tag = names.ports, names.tag
        m.d.comb += [
            self.frames.valid.eq(ended[-1]),
            frame.v6.eq(names.v6),
            frame.source.eq(names.source),
            frame.destination.eq(names.destination),
            frame.source_port.eq(Cat(ports[8:16], ports[:8])),
            frame.destination_port.eq(Cat(ports[24:], ports[16:24])),
            frame.tag.eq(Cat(tag.word_select(k, 8) for k in reversed(range(4)))),
        ]
