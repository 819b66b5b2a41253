"""Finds the headers of a frame one after the other while its beats pass.

A frame's beats pass a chain of stages, each a fixed number of cycles after the one before. A stage
gets the position of its header, in words of the frame, in step with a beat that is no later than
that header. It reads the header, and gives the next stage the position of the next header.
"""

from amaranth import *
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.delay import Delay
from ..lib.stream import any_of, delayed
from ..spec.net import Protocol

__all__ = ["FIND", "Extension", "Kinds", "Line", "HeaderPosition", "find", "kinds", "pick"]

#: Bits of a position in a frame, in words: enough for the longest extension headers.
WORD_BITS = 12


#: Cycles that :func:`find` takes.
FIND = 3


class Kinds(data.StructLayout):
    """The kind of a header, one-hot; all zero if the header was not reached.

    Members
    -------
    options : 1
        An extension header of IPv6 that gives its length in units of 8 octets.
    routing : 1
        A Routing header: its length, too, is in units of 8 octets.
    authentication : 1
        An Authentication Header, which gives its length in units of 4 octets.
    fragment : 1
        The packet is a fragment.
    udp, sctp : 1
    other : 1
    """

    def __init__(self):
        super().__init__({
            "options": 1, "routing": 1, "authentication": 1, "fragment": 1, "udp": 1, "sctp": 1,
            "other": 1,
        })


class HeaderPosition(data.StructLayout):
    """The position and kind of a header.

    Members
    -------
    word : 12
        Position of its first word, in words from the frame's first.
    kinds : Kinds
    """

    def __init__(self):
        super().__init__({"word": WORD_BITS, "kinds": Kinds()})


class Line(data.StructLayout):
    """The position of a beat in its frame.

    Members
    -------
    number : 12 - log2(words)
        Beats of the frame before this one.
    far : 1
        There are more beats before it than ``number`` can hold: no header is that far.
    first : 1
    """

    def __init__(self, words):
        super().__init__({"number": WORD_BITS - exact_log2(words), "far": 1, "first": 1})


def kinds(protocol, v6):
    """Returns the kind of header for a protocol number; extension headers only in IPv6."""
    def named(*numbers):
        return any_of(protocol == number for number in numbers)

    options = v6 & named(Protocol.HOP_BY_HOP, Protocol.DESTINATION_OPTIONS)
    routing = v6 & named(Protocol.ROUTING)
    authentication = v6 & named(Protocol.AUTHENTICATION)
    fragment = v6 & named(Protocol.FRAGMENT)
    udp, sctp = named(Protocol.UDP), named(Protocol.SCTP)
    found = Cat(options, routing, authentication, fragment, udp, sctp)
    return Cat(found, ~found.any())


def find(m, line, word, wanted):
    """Returns, one-hot and ``FIND`` cycles later, the word of the beat where a header begins.

    ``word`` is the header's position. ``wanted``: the beat is valid and there is such a header.
    """
    bits = WORD_BITS - len(line.number)
    pairs = range(0, len(line.number), 2)
    equal = Signal(len(pairs), name="equal", reset_less=True)
    want, match = Signal(name="want"), Signal(name="match")
    low = delayed(m, 2, word[:bits], "low")
    here = Signal(1 << bits, name="here", reset_less=True)
    m.d.sync += [
        equal.eq(Cat(line.number[k : k + 2] == word[bits + k : bits + k + 2] for k in pairs)),
        want.eq(wanted & ~line.far),
        match.eq(want & equal.all()),
        here.eq(Cat(match & (low == w) for w in range(1 << bits))),
    ]
    return here


def pick(m, marks, values, name):
    """Returns, two cycles later, the one of ``values`` that was marked last."""
    groups = []
    for at in range(0, len(values), 4):
        group = Signal(len(values[0]), name=f"{name}_{at}", reset_less=True)
        m.d.sync += group.eq(any_of(
            value & mark.replicate(len(value))
            for value, mark in zip(values[at : at + 4], marks[at : at + 4], strict=True)))
        groups.append(group)
    marked = Signal(name=f"{name}_marked")
    picked = Signal(len(values[0]), name=name, reset_less=True)
    m.d.sync += marked.eq(marks.any())
    with m.If(marked):
        m.d.sync += picked.eq(any_of(groups))
    return picked


class Extension(wiring.Component):
    """Skips one extension header of IPv6, if there is one (RFC 8200 section 4, RFC 4302).

    A Routing header whose Segments Left is not zero makes the next header ``other``: RFC 8200
    section 4.4 has a node discard such a packet unless it knows the Routing Type, and this one
    knows none.

    Latency: 7 cycles. Throughput: one beat per cycle. Reset: no beat is under way. Errors: none; a
    header after the frame's end is not reached.

    Parameters
    ----------
    words : int
        Words of a beat.

    Members
    -------
    i_valid : In(1)
    i_line : In(Line(words))
    i_header : In(HeaderPosition())
        In step with the beats, from one that is no later than the header to the frame's last.
    i_heads : In(17).array(words)
        The first two octets of each word of the beat, and whether the fourth is not zero, ``FIND``
        cycles later.
    o_valid, o_line, o_header, o_heads
        The same, for the next header; or for the same one if it is no extension header.
    """

    LATENCY = FIND + 4

    def __init__(self, words):
        self.words = words
        ports = {"valid": 1, "line": Line(words), "header": HeaderPosition(),
                 "heads": data.ArrayLayout(17, words)}
        super().__init__(
            {f"i_{name}": In(shape) for name, shape in ports.items()}
            | {f"o_{name}": Out(shape) for name, shape in ports.items()})

    def elaborate(self, platform):
        m = Module()
        passed = data.StructLayout({"line": Line(self.words), "heads": 17 * self.words})
        m.submodules.beats = beats = Delay(passed, self.LATENCY)
        m.submodules.headers = headers = Delay(HeaderPosition(), self.LATENCY - 1)
        header = self.i_header
        valid = Signal(self.LATENCY)
        m.d.comb += [
            beats.i.line.eq(self.i_line),
            beats.i.heads.eq(self.i_heads),
            self.o_line.eq(beats.o.line),
            self.o_heads.eq(beats.o.heads),
            headers.i.eq(header),
            self.o_valid.eq(valid[-1]),
        ]
        m.d.sync += valid.eq(Cat(self.i_valid, valid))

        # Cycles 1 to 5: the header's first word, for its Next Header and length.
        extends = header.kinds.options | header.kinds.routing | header.kinds.authentication
        here = find(m, self.i_line, header.word, self.i_valid & extends)
        head = pick(m, here, [self.i_heads[w] for w in range(self.words)], "head")
        hit = delayed(m, 2, here.any(), "hit")
        long = delayed(m, FIND + 2, header.kinds.options | header.kinds.routing, "long")
        routing = delayed(m, FIND + 2, header.kinds.routing, "routing")

        # Cycle 6: the header's length in words, without its first 8 octets, or for an
        # Authentication Header with them less 8; and the kind of the next header.
        length = Signal(10, reset_less=True)
        following = Signal(Kinds(), reset_less=True)
        reached = Signal()
        m.d.sync += [
            length.eq(Mux(hit, Mux(long, head[8:16] << 1, head[8:16]) + 2, 0)),
            following.eq(kinds(head[:8], 1)),
            reached.eq(hit),
        ]
        with m.If(routing & head[16]):
            m.d.sync += [following.eq(0), following.other.eq(1)]

        # Cycle 7: the kind of the next header is unknown until this header is reached.
        before = headers.o
        first = delayed(m, self.LATENCY - 1, self.i_line.first, "first")
        waits = before.kinds.options | before.kinds.routing | before.kinds.authentication
        with m.If(reached | ~waits):
            m.d.sync += [
                self.o_header.word.eq(before.word + length),
                self.o_header.kinds.eq(Mux(reached, following, before.kinds)),
            ]
        with m.Elif(first & valid[-2]):
            m.d.sync += self.o_header.kinds.eq(0)
        return m
