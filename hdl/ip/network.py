"""Parses Ethernet and IP headers, finds where the packet is in the frame, and validates it."""

from amaranth import *
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.delay import Delay
from ..lib.stream import any_of, delayed
from ..spec.net import EtherType
from .chain import HeaderPosition, Line, kinds
from .shift import ShiftedBeat

__all__ = ["Facts", "Network"]

#: Where the IP header begins without a tag, in words of a shifted frame.
IP_WORD = 4
TAGS = 2
#: Words of an IP header.
IPV4_WORDS, IPV6_WORDS = 5, 10


class Facts(data.StructLayout):
    """The facts about the packet, valid when the frame's last beat passes.

    Members
    -------
    ip : 1
        The frame holds an IP packet, according to its EtherType.
    v6 : 1
        It is IPv6.
    tags : 3
        One-hot: none, one or two VLAN tags.
    sound : 1
        Version and header length are valid, and the packet ends in the frame.
    end : 17
        Octets from the frame's first one, with the two zeros before it, to the packet's end.
    """

    def __init__(self):
        super().__init__({"ip": 1, "v6": 1, "tags": TAGS + 1, "sound": 1, "end": 17})


class Network(wiring.Component):
    """Parses the Ethernet header with up to two tags (IEEE 802.1Q) and the IP header (RFC 791,
    RFC 8200).

    Latency: 6 cycles to ``line`` and ``header``, 7 to ``facts``, ``sum_latency`` to ``sum``.
    Throughput: one beat per cycle. Reset: no beat is under way. Errors: reported in ``facts`` and
    ``sum``.

    Parameters
    ----------
    width : int

    Members
    -------
    i_valid : In(1), i : In(ShiftedBeat(width))
    valid : Out(1), line : Out(Line(words))
    header : Out(HeaderPosition())
        The header after the IP header, in step with ``line``; ``fragment`` if it is a fragment.
    facts : Out(Facts())
    sum : Out(1)
        The IP header's checksum is right, or the packet is IPv6. Valid on the last beat only.
    """

    LATENCY = 6
    FACTS_LATENCY = 7

    def __init__(self, width):
        self.width = width
        self.words = width // 32
        super().__init__({
            "i_valid": In(1),
            "i": In(ShiftedBeat(width)),
            "valid": Out(1),
            "line": Out(Line(self.words)),
            "header": Out(HeaderPosition()),
            "facts": Out(Facts()),
            "sum": Out(1),
        })

    @property
    def sum_latency(self):
        return 11 + exact_log2(self.words)

    def elaborate(self, platform):
        m = Module()
        counted = data.StructLayout({
            "number": len(self.i.number), "ends": len(self.i.ends), "first": 1})
        m.submodules.counts = counts = Delay(counted, 5)
        m.d.comb += [
            counts.i.number.eq(self.i.number),
            counts.i.ends.eq(self.i.ends),
            counts.i.first.eq(self.i.first),
        ]
        valid = Signal(self.FACTS_LATENCY)
        first = Signal(self.FACTS_LATENCY)
        m.d.sync += [
            valid.eq(Cat(self.i_valid, valid)),
            first.eq(Cat(self.i_valid & self.i.first, first)),
        ]

        start, six, at = self._ethernet(m, first[0])
        rows, begun, found = self._rows(m, start, at)
        tags, is_v6 = delayed(m, 2, start, "tags"), delayed(m, 2, six.any(), "is_v6")

        # Cycle 5: the fields of these words.
        version, header = rows[0][0][4:], rows[0][0][:4]
        base = any_of(Mux(tags[k], IP_WORD + k, 0) for k in range(TAGS + 1))
        length = Signal(16, reset_less=True)
        skipped, base_5 = Signal(4, reset_less=True), Signal(3, reset_less=True)
        origin = Signal(5, reset_less=True)  # the word that the length counts from
        bad, piece = Signal(reset_less=True), Signal(reset_less=True)
        protocol = Signal(8, reset_less=True)
        begun_5, found_5 = Signal(), Signal()
        m.d.sync += [
            length.eq(Mux(is_v6, Cat(rows[1][1], rows[1][0]), Cat(rows[0][3], rows[0][2]))),
            skipped.eq(Mux(is_v6, IPV6_WORDS, header)),
            base_5.eq(base),
            origin.eq(any_of(
                Mux(tags[k], Mux(is_v6, IP_WORD + k + IPV6_WORDS, IP_WORD + k), 0)
                for k in range(TAGS + 1))),
            bad.eq(Mux(is_v6, version != 6, (version != 4) | (header < IPV4_WORDS))),
            # More fragments, or an offset.
            piece.eq(~is_v6 & Cat(rows[1][2][:6], rows[1][3]).any()),
            protocol.eq(Mux(is_v6, rows[1][2], rows[2][1])),
            begun_5.eq(begun),
            found_5.eq(found),
        ]
        tags_5, v6_5 = delayed(m, 1, tags, "tags_5"), delayed(m, 1, is_v6, "v6_5")

        # Cycle 6: the position of the next header.
        good = Signal()
        end = Signal(17, reset_less=True)
        stop = Signal(5, reset_less=True)
        total = Signal(18, reset_less=True)
        line = self.line
        m.d.comb += self.valid.eq(valid[self.LATENCY - 1])
        m.d.sync += [
            line.number.eq(counts.o.number),
            line.far.eq(counts.o.number[len(line.number) :].any()),
            line.first.eq(counts.o.first),
            total.eq(Cat(counts.o.ends, counts.o.number) + 1),
        ]
        with m.If(begun_5):
            m.d.sync += stop.eq(base_5 + skipped)
        with m.If(found_5):
            told = kinds(protocol, v6_5)
            m.d.sync += [
                self.header.word.eq(base_5 + skipped),
                self.header.kinds.eq(Mux(piece, 0, told)),
                good.eq(~bad),
                end.eq(length + (origin << 2)),
            ]
            with m.If(piece):
                m.d.sync += self.header.kinds.fragment.eq(1)
        with m.Elif(first[self.LATENCY - 2]):
            m.d.sync += [self.header.kinds.eq(0), good.eq(0)]
        tags_6, v6_6 = delayed(m, 1, tags_5, "tags_6"), delayed(m, 1, v6_5, "v6_6")

        # Cycle 7.
        m.d.sync += [
            self.facts.ip.eq(tags_6.any()),
            self.facts.v6.eq(v6_6),
            self.facts.tags.eq(tags_6),
            self.facts.sound.eq(good & (end <= total)),
            self.facts.end.eq(end),
        ]
        self._check(m, line, tags_6, v6_6, stop, first[self.LATENCY - 1], valid)
        return m

    def _ethernet(self, m, first):
        """Finds the IP header: returns, one-hot by the number of tags, whether an IP header
        follows, and one of IPv6; and whether the beat is the frame's first, second and so on."""
        words = self.words
        # Cycle 1: for each word, whether it would be an EtherType or tag; the number of the beat.
        last_word = IP_WORD + TAGS + 2
        kept = [self.i.number == number for number in range(last_word // words + 1)]
        at = Signal(len(kept))
        m.d.sync += at.eq(Cat(self.i_valid & here for here in kept))
        ethertypes = range(IP_WORD - 1, IP_WORD + TAGS)
        tag, v4, v6 = [], [], []
        for position in ethertypes:
            word = self.i.data.word_select(position % words, 32)
            number = Cat(word[24:], word[16:24])
            for said, values in ((tag, (EtherType.VLAN, EtherType.SERVICE_VLAN)),
                                 (v4, (EtherType.IPV4,)), (v6, (EtherType.IPV6,))):
                signal = Signal(name=f"says_{values[0].name}_{position}", reset_less=True)
                m.d.sync += signal.eq(any_of(number == value for value in values))
                said.append(signal)

        # Cycle 2: which of the words are EtherTypes. The first is in an earlier beat than the
        # others, or in the same one.
        start, six = Signal(TAGS + 1), Signal(TAGS + 1)
        tagged = Signal()
        beats = [position // words for position in ethertypes]
        with m.If(at[beats[0]]):
            m.d.sync += tagged.eq(tag[0])
        tagged_now = tag[0] if beats[0] == beats[1] else tagged
        reached = [1, tagged_now, tagged_now & tag[1]]
        for k, beat in enumerate(beats):
            with m.If(at[beat]):
                m.d.sync += [
                    start[k].eq(reached[k] & (v4[k] | v6[k])),
                    six[k].eq(reached[k] & v6[k]),
                ]
            with m.Elif(first):
                m.d.sync += [start[k].eq(0), six[k].eq(0)]
        return start, six, delayed(m, 1, at, "at")

    def _rows(self, m, start, at):
        """Returns the IP header's first three words, and whether the first, the last is here."""
        words = self.words
        # Cycle 3: the positions of these words in the beat.
        marks = []
        for row in range(3):
            mark = Signal(words, name=f"mark{row}")
            for w in range(words):
                m.d.sync += mark[w].eq(any_of(
                    start[k] & at[position // words]
                    for k in range(TAGS + 1)
                    if (position := IP_WORD + k + row) % words == w))
            marks.append(mark)

        # Cycle 4: these words.
        octets = delayed(m, 3, self.i.data, "octets")
        rows = []
        for row, mark in enumerate(marks):
            value = Signal(data.ArrayLayout(8, 4), name=f"row{row}", reset_less=True)
            with m.If(mark.any()):
                m.d.sync += value.eq(any_of(
                    octets.word_select(w, 32) & mark[w].replicate(32)
                    for w in range(words)
                    if any((IP_WORD + k + row) % words == w for k in range(TAGS + 1))))
            rows.append(value)
        begun, found = Signal(), Signal()
        m.d.sync += [begun.eq(marks[0].any()), found.eq(marks[2].any())]
        return rows, begun, found

    def _check(self, m, line, tags, v6, stop, first, valid):
        """Computes the checksum (RFC 1071) over the words of an IPv4 header, up to ``stop``.

        The octets of each word are not swapped: a ones' complement sum does not depend on that.
        """
        words = self.words
        bits = exact_log2(words)
        # Cycles 1 to 7: the two halves of each word.
        halves = data.ArrayLayout(17, words)
        m.submodules.halves = late = Delay(halves, self.LATENCY)
        sums = Signal(halves, reset_less=True)
        for w in range(words):
            word = self.i.data.word_select(w, 32)
            m.d.sync += sums[w].eq(word[:16] + word[16:])
        m.d.comb += late.i.eq(sums)

        # Cycle 7: which words are in the header. Only beats that it can reach are distinguished.
        near = max(2, 5 - bits)
        beyond = line.far | line.number[near:].any()
        base = any_of(Mux(tags[k], IP_WORD + k, 0) for k in range(TAGS + 1))
        inside = Signal(words)
        for w in range(words):
            word = Cat(C(w, bits), line.number[:near])
            m.d.sync += inside[w].eq(
                tags.any() & ~v6 & ~beyond & (word >= base) & (word < stop))

        # Cycle 8 and on: the sum of the words, first in a beat, then of all beats so far.
        level = []
        for w in range(words):
            part = Signal(17, name=f"part{w}", reset_less=True)
            m.d.sync += part.eq(Mux(inside[w], late.o[w], 0))
            level.append(part)
        while len(level) > 1:
            level, terms = [], level
            for k in range(0, len(terms), 2):
                pair = Signal(len(terms[0]) + 1, name=f"sum{len(terms)}_{k}", reset_less=True)
                m.d.sync += pair.eq(terms[k] + terms[k + 1])
                level.append(pair)
        # Adding the carries of at most 30 terms to the sum produces no further carry that matters.
        total, folded = Signal(21, reset_less=True), Signal(16, reset_less=True)
        counts = delayed(m, 1 + bits, valid[self.LATENCY], "counts")
        opens = delayed(m, 2 + bits, first, "opens")
        v4 = delayed(m, 4 + bits, ~v6, "v4")
        with m.If(counts):
            m.d.sync += total.eq(Mux(opens, 0, total) + level[0])
        m.d.sync += [
            folded.eq(total[:16] + total[16:]),
            self.sum.eq(~v4 | folded.all()),
        ]
