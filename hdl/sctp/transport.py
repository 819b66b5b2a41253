"""Finds the SCTP packet at the end of the chain of headers, alone or in UDP."""

from amaranth import *
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..ip.chain import FIND, HeaderPosition, Line, find, pick
from ..lib.delay import Delay
from ..lib.stream import delayed
from ..spec.sctp import COMMON_HEADER

__all__ = ["Ending", "Transport"]

UDP_HEADER = 8


class Ending(data.StructLayout):
    """The facts about the header at the end of the chain, valid on the frame's last beat.

    Members
    -------
    before : 1
        The packet ends before that header or, with UDP, inside it.
    fragment : 1
        The packet is a fragment.
    foreign : 1
        The header is neither SCTP, nor UDP to the port of SCTP.
    udp : 1
        The SCTP packet is in UDP.
    over : 1
        The UDP header counts more octets than there are.
    short : 1
        The remaining octets are less than an SCTP common header.
    octets : 16
        Octets of the SCTP packet.
    """

    def __init__(self):
        super().__init__({
            "before": 1, "fragment": 1, "foreign": 1, "udp": 1, "over": 1, "short": 1,
            "octets": 16,
        })


class Transport(wiring.Component):
    """Finds where the SCTP packet begins (RFC 9260 section 3), and its length.

    Latency: 7 cycles to ``sctp`` and ``length``, 8 to ``ending``. Throughput: one beat per cycle.
    Reset: no beat is under way. Errors: reported in ``ending``.

    Parameters
    ----------
    words : int
        Words of a beat.
    udp_port : int
        Destination Port of SCTP in UDP (RFC 6951).

    Members
    -------
    valid : In(1), line : In(Line(words)), header : In(HeaderPosition())
        Those of an :class:`~..ip.chain.Extension`.
    octets : In(32 * words), used : In(words)
        The beat, and which of its words hold octets, ``FIND`` cycles later.
    end : In(17)
        Where the packet ends, ``END_DELAY`` cycles later; valid from the beat on that has the IP
        header's third word.
    sctp : Out(words)
        One-hot: the word where the SCTP common header begins.
    length : Out(16)
        With ``sctp``: octets of the SCTP packet.
    ending : Out(Ending())
    """

    LATENCY = FIND + 4
    ENDING_LATENCY = FIND + 5
    END_DELAY = FIND + 2

    def __init__(self, words, *, udp_port):
        self.words = words
        self.udp_port = udp_port
        super().__init__({
            "valid": In(1),
            "line": In(Line(words)),
            "header": In(HeaderPosition()),
            "octets": In(32 * words),
            "used": In(words),
            "end": In(17),
            "sctp": Out(words),
            "length": Out(16),
            "ending": Out(Ending()),
        })

    def elaborate(self, platform):
        m = Module()
        words = self.words
        m.submodules.headers = headers = Delay(HeaderPosition(), self.END_DELAY)
        m.d.comb += headers.i.eq(self.header)
        valid = delayed(m, FIND, self.valid, "valid")
        first = delayed(m, FIND, self.line.first, "first")
        udp = delayed(m, FIND, self.header.kinds.udp, "udp")

        # Cycle 3: the header's first word, its second, and the word after a UDP header.
        wanted = self.header.kinds.udp | self.header.kinds.sctp
        here = find(m, self.line, self.header.word, self.valid & wanted)
        tail = Signal(2)
        marks = Signal(words + 2)
        m.d.comb += marks.eq(Cat(Mux(valid & ~first, tail, 0), here))
        with m.If(valid):
            m.d.sync += tail.eq(marks[-2:])
        second, third = marks[1:-1], marks[:-2]

        # Cycle 5: Destination Port and Length of a UDP header.
        low, high = (
            [self.octets.word_select(2 * w + half, 16) for w in range(words)] for half in range(2))
        port, length = pick(m, here, high, "port"), pick(m, second, low, "length")

        # Cycle 6.
        encapsulated = Signal(reset_less=True)
        counted, rest = Signal(16, reset_less=True), Signal(signed(18), reset_less=True)
        m.d.sync += [
            encapsulated.eq(Cat(port[8:], port[:8]) == self.udp_port),
            counted.eq(Cat(length[8:], length[:8])),
            rest.eq(self.end - Cat(C(0, 2), headers.o.word)),
        ]

        # Cycle 7: the SCTP header; in UDP only with the right port.
        begins = Signal(words)
        m.d.sync += begins.eq(Mux(udp, third, here) & self.used)
        allowed = delayed(m, 3, ~udp, "allowed") | encapsulated
        m.d.sync += self.sctp.eq(delayed(m, 2, begins, "begins") & allowed.replicate(words))

        # The octets that remain for SCTP; all inputs are known where the header begins.
        kinds = delayed(m, 1, headers.o.kinds, "kinds_now")
        octets = Signal(signed(18), reset_less=True)
        ending = Signal(Ending(), reset_less=True)
        m.d.sync += [
            octets.eq(Mux(kinds.udp, counted - UDP_HEADER, rest)),
            ending.before.eq(
                rest[-1] | ~kinds.as_value().any()
                | (kinds.udp & ~rest[exact_log2(UDP_HEADER) :].any())),
            ending.fragment.eq(kinds.fragment),
            ending.foreign.eq(~kinds.sctp & ~(kinds.udp & encapsulated)),
            ending.udp.eq(kinds.udp),
            ending.over.eq(kinds.udp & (counted > rest)),
        ]

        m.d.comb += self.length.eq(octets)

        # Cycle 8.
        m.d.sync += [
            self.ending.eq(ending),
            self.ending.short.eq(octets < COMMON_HEADER),
            self.ending.octets.eq(octets),
        ]
        return m
