"""The end of the chain of headers: SCTP, alone or in UDP."""

from amaranth import *
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..ip.chain import FIND, Line, Place, find, pick
from ..lib.delay import Delay
from ..lib.stream import delayed
from ..spec.sctp import COMMON_HEADER

__all__ = ["Ending", "Transport"]

UDP_HEADER = 8


class Ending(data.StructLayout):
    """What is known of the header that the chain ends with, on the frame's last beat.

    Members
    -------
    before : 1
        The packet ends before that header or, of UDP, inside it.
    fragment : 1
    foreign : 1
        It is not SCTP, nor UDP to the port of SCTP.
    udp : 1
    over : 1
        The UDP header counts more octets than there are.
    short : 1
        What is left is less than an SCTP common header.
    octets : 16
        Of the SCTP packet.
    """

    def __init__(self):
        super().__init__({
            "before": 1, "fragment": 1, "foreign": 1, "udp": 1, "over": 1, "short": 1,
            "octets": 16,
        })


class Transport(wiring.Component):
    """Tells where the SCTP packet begins (RFC 9260 section 3), and how long it is.

    Latency: 7 cycles to ``sctp`` and ``length``, 8 to ``ending``. Throughput: a beat a cycle.
    Reset: no beat is under way. Errors: said by ``ending``.

    Parameters
    ----------
    words : int
        Words of a beat.
    udp_port : int
        Destination Port of SCTP in UDP (RFC 6951).

    Members
    -------
    valid : In(1), line : In(Line(words)), place : In(Place())
        As of an :class:`~..ip.chain.Extension`.
    octets : In(32 * words), used : In(words)
        The beat, and which of its words the frame has, ``FIND`` cycles behind.
    end : In(17)
        Where the packet ends, ``END_DELAY`` cycles behind; right from the beat of the IP header's
        third word on.
    sctp : Out(words)
        One-hot: where the SCTP common header begins.
    length : Out(16)
        Where it does: octets of the SCTP packet.
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
            "place": In(Place()),
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
        m.submodules.places = places = Delay(Place(), self.END_DELAY)
        m.d.comb += places.i.eq(self.place)
        valid = delayed(m, FIND, self.valid, "valid")
        first = delayed(m, FIND, self.line.first, "first")
        udp = delayed(m, FIND, self.place.kinds.udp, "udp")

        # Cycle 3: the header's first word, its second, and the one after a UDP header.
        wanted = self.place.kinds.udp | self.place.kinds.sctp
        here = find(m, self.line, self.place.word, self.valid & wanted)
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
            rest.eq(self.end - Cat(C(0, 2), places.o.word)),
        ]

        # Cycle 7: the header of SCTP, in UDP only behind the right port.
        begins = Signal(words)
        m.d.sync += begins.eq(Mux(udp, third, here) & self.used)
        allowed = delayed(m, 3, ~udp, "allowed") | encapsulated
        m.d.sync += self.sctp.eq(delayed(m, 2, begins, "begins") & allowed.replicate(words))

        # And what is left for it: all that tells of that is known where the header begins.
        kinds = delayed(m, 1, places.o.kinds, "kinds_now")
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
