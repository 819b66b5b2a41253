"""Computes for every word of a beat what would follow if an FPDU began there.

The walker finds out later which words FPDUs really begin at.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.segment import HEADER_WORDS
from ..lib.stream import any_of
from .intake import KnownBeat, LlpSettings

__all__ = ["Ahead", "Bound", "Landing", "MpaScan", "Scan"]


class Landing(data.StructLayout):
    """The way in which an FPDU that began earlier meets a beat. One of the first four flags is set.

    Members
    -------
    start : 1
        The FPDU ends at word ``cut``, and the next one begins there.
    close : 1
        The FPDU ends with the beat's last octet.
    broken : 1
        The packet ends inside the FPDU.
    on : 1
        The FPDU fills the whole beat and continues.
    cut : range(words)
        Valid with ``start``.
    header : words + 1
        With ``start``, one-hot: the word with the next FPDU's ULPDU_Length, which is after the
        marker if there is one at ``cut``. The highest bit is the first word of the next beat.
    inside : 1
        The next FPDU ends in the same beat too, and another one begins.
    """

    def __init__(self, words):
        super().__init__(
            {
                "start": 1,
                "close": 1,
                "broken": 1,
                "on": 1,
                "cut": range(words),
                "header": words + 1,
                "inside": 1,
            }
        )


class Edges(data.StructLayout):
    """The boundaries of a beat itself.

    Members
    -------
    used : words
        1 for each word that holds octets.
    marked : words
        1 for each word from the marker's on; all 0 without a marker.
    last : 1
        The packet ends with this beat.
    """

    def __init__(self, words):
        super().__init__({"used": words, "marked": words, "last": 1})


class Bound(data.StructLayout):
    """The facts about an FPDU, if its header is at a given word of the beat.

    Members
    -------
    tail : 1
        The FPDU ends with the beat's last octet.
    broken : 1
        The packet ends inside the FPDU.
    landing : Landing
        How the FPDU meets the next beat; or this beat, if it ends here and another FPDU begins. All
        0 after ``tail`` and ``broken``.
    beats, low :
        If the FPDU also fills the next beat: the number of beats that it fills before its last one,
        counted from the next; and one-hot its words in that last beat (bit j for j + 1 words).
    none, one : 1
        ``beats`` is 0, or 1.
    oversize : 1
        The FPDU does not fit the packet buffer.
    """

    def __init__(self, words):
        super().__init__(
            {
                "tail": 1,
                "broken": 1,
                "landing": Landing(words),
                "beats": 15 - (words.bit_length() - 1),
                "low": words,
                "none": 1,
                "one": 1,
                "oversize": 1,
            }
        )


class Ahead(data.StructLayout):
    """The facts about the beat after the one that is walked.

    Members
    -------
    bounds : ArrayLayout(Bound, words + 1)
        One for each word where a header may be; the highest is for the first word of the beat after
        this one. While the walker stays on its beat, these are that beat's bounds.
    first : 1
        There is a marker at this beat's first word.
    marked : 1
        There is a marker at some word of this beat.
    inside : 1
        An FPDU that begins with this beat ends in it, and another one begins.
    ends : ArrayLayout(Landing, words)
        Entry j: how an FPDU that fills this beat meets the one after it, if without this beat's
        marker it had j + 1 words left there.
    last : 1
        The packet ends with the beat after this one.
    """

    def __init__(self, words):
        super().__init__(
            {
                "bounds": data.ArrayLayout(Bound(words), words + 1),
                "first": 1,
                "marked": 1,
                "inside": 1,
                "ends": data.ArrayLayout(Landing(words), words),
                "last": 1,
            }
        )


class Scan(data.StructLayout):
    """A scanned beat, with the words after it that a header may reach into.

    Members
    -------
    window : 32 * (words + HEADER_WORDS)
        This beat's words and those after it.
    end : range(words + 1)
        Words that hold octets.
    position : 30
        Position of this beat in the stream, in words.
    stream
        As in :class:`~.intake.KnownBeat`.
    crc, markers : 1
        Settings of the stream.
    """

    def __init__(self, config):
        words = config.words
        super().__init__(
            {
                "window": 32 * (words + HEADER_WORDS),
                "end": range(words + 1),
                "position": 30,
                "stream": config.stream_bits + 1,
                "crc": 1,
                "markers": 1,
            }
        )


class _Later(data.StructLayout):
    """The part of an FPDU in the beats after the one with its header.

    Members
    -------
    more : 16
        Its words there, less one; negative if there are none.
    low : words
        One-hot, as in :class:`Bound`.
    next : 1
        The FPDU ends in the next beat.
    """

    def __init__(self, words):
        super().__init__({"more": 16, "low": words, "next": 1})


class _Ends:
    """Registers after stage 2, for a header at each word.

    ``stop``: where its FPDU ends, modulo a beat; valid if that is in this beat. ``later``: its part
    in later beats. ``oversize``: it does not fit the packet buffer. For the beat: ``last``, the
    last word that holds octets, and ``before``, a marker precedes that word.
    """

    def __init__(self, words):
        self.stop = [Signal(range(words), name=f"stop{w}") for w in range(words)]
        self.later = [Signal(_Later(words), name=f"later{w}") for w in range(words)]
        self.oversize = Signal(words)
        self.last = Signal(range(words))
        self.before = Signal()


class _Cuts:
    """Registers after stage 3, for a header at each word.

    ``here`` and ``there``: ends and starts in this beat and in the next, one-hot. ``known``: the
    other facts. ``inside``: the FPDU ends in this beat with another one after it.
    """

    def __init__(self, words):
        self.here, self.there = (
            [[Signal(words + 1, name=f"{place}_{what}{w}") for what in ("ends", "starts")]
             for w in range(words + 1)] for place in ("here", "there")
        )  # fmt: skip
        self.known = [Signal(Bound(words), name=f"known{w}") for w in range(words + 1)]
        self.inside = Signal(words)


class _Settled:
    """Registers after stage 4.

    ``here``, ``there`` and ``known``: for a header at each word, how its FPDU meets this beat and
    the next, and the other facts. ``ends``: how an FPDU that began earlier meets the next beat.
    """

    def __init__(self, words):
        self.here, self.there = (
            [Signal(Landing(words), name=f"{place}{w}") for w in range(words + 1)]
            for place in ("ends_here", "ends_there")
        )
        self.known = [Signal(Bound(words), name=f"settled{w}") for w in range(words + 1)]
        self.ends = [Signal(Landing(words), name=f"passed{j}") for j in range(words)]


def _within(value, first, count):
    """Returns whether ``value`` is one of ``count`` numbers from ``first`` on; by a table."""
    bits = (first + count - 1).bit_length()
    table = C(((1 << count) - 1) << first, 1 << bits)
    return table.bit_select(value[:bits], 1) & ~value[bits:].any()


def _above(one, other):
    """Returns whether ``one`` is greater than ``other``, for few bits: without a carry chain."""
    above = C(0)
    for a, b in zip(one, other, strict=True):
        above = (a & ~b) | (above & (a | ~b))
    return above


def _marker(edges):
    """Returns, one-hot, the word at which the marker stands."""
    return edges.marked & ~(edges.marked << 1)[: len(edges.marked)]


def _meet(m, cuts, used):
    """Finds where an FPDU ends in a beat, and whether the next one begins there.

    ``cuts`` is one-hot: the word at which an FPDU ends, if that word is in the beat. Returns two
    one-hot signals of as many bits: the word if the FPDU's last octet is ``used``, and the word if
    another FPDU begins at it.
    """
    words = len(used)
    ends, starts = Signal(words + 1, name="ends"), Signal(words + 1, name="starts")
    m.d.comb += [
        ends.eq(cuts & (used << 1)),
        starts.eq(cuts & Cat(C(0, 1), used[1:])),
    ]
    return ends, starts


def _settle(m, landing, ends, starts, edges):
    """Fills ``landing`` from the two signals that :func:`_meet` returns."""
    words = len(edges.used)
    marker, start, ended = Signal(words), Signal(), Signal()
    m.d.comb += [
        marker.eq(_marker(edges)),
        start.eq(starts.any()),
        ended.eq(ends.any()),
        landing.start.eq(start),
        landing.close.eq(ended & ~start),
        landing.broken.eq(edges.last & ~ended),
        landing.on.eq(~edges.last & ~ended),
        landing.cut.eq(any_of(Mux(starts[p], p, 0) for p in range(1, words))),
    ]
    for word in range(1, words + 1):
        here = starts[word] & ~marker[word] if word < words else 0
        moved = starts[word - 1] & marker[word - 1] if word > 1 else 0
        m.d.comb += landing.header[word].eq(here | moved)


def _cuts(m, low, edges):
    """Finds the word at which an FPDU ends that reaches into a beat.

    ``low`` is one-hot: bit j if the FPDU has j + 1 words left. A marker before the FPDU's end moves
    the end by one word, perhaps out of the beat. Returns the word one-hot, in a signal that has one
    bit more.
    """
    cuts = Signal(len(edges.used) + 1, name="cuts")
    m.d.comb += cuts.eq((low & ~edges.marked) << 1 | (low & edges.marked) << 2)
    return cuts


class MpaScan(wiring.Component):
    """Scans beats for FPDU boundaries (RFC 5044 section 4.1).

    For every word, the block computes the facts of an FPDU with its header at that word, without
    knowing where FPDUs really begin: an FPDU's length is a multiple of four octets, and only its
    ULPDU_Length and the markers in it (RFC 5044 section 4.3) decide where it ends. The walker then
    only selects, and it selects from registers, while it walks the beat before.

    A beat is output once the seven beats after it, or the rest of the packet, have arrived, because
    a header may reach into the first of them.

    Latency: 8 cycles, plus the time until seven more beats or the packet's last have arrived.
    Throughput: one beat per cycle. Reset: empty. Errors: a packet's damaged last beat, or one that
    is not a multiple of four octets long, counts as empty, which breaks the FPDU that reaches
    is not a multiple of four octets long, counts as empty, which breaks the FPDU that reaches
    into it.

    Members
    -------
    i : In(stream.Signature(KnownBeat(config)))
    goes : In(1)
        The beat at ``o``, if there is one, leaves in the next cycle.
    stays : In(1)
        In the next cycle, the beat at ``o`` has another FPDU.
    o : Out(Scan(config))
    offers : Out(1)
        In the next cycle there is a beat at ``o``, and it stays until it leaves; combinational.
    enters, follows : Out(1)
        In the next cycle there is a new beat at ``o``; likewise, if the present one leaves;
        combinational.
    coming : Out(1)
        The beat at ``o`` is another one than in the last cycle.
    ahead : Out(Ahead(words))
        The facts about the beat after the one at ``o``.
    busy : Out(1)
        The block holds a beat.
    """

    def __init__(self, config):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(KnownBeat(config))),
                "goes": In(1),
                "stays": In(1),
                "o": Out(Scan(config)),
                "offers": Out(1),
                "enters": Out(1),
                "follows": Out(1),
                "coming": Out(1),
                "ahead": Out(Ahead(config.words)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words = self.config.words

        # All stages shift together, and only with a beat or after a packet's last one: so a beat's
        # successors in its packet follow it without gaps. Whether the stages shift is computed one
        # cycle ahead, because it drives thousands of registers; and so is whether the register
        # before them takes a beat.
        arriving = stream.Signature(KnownBeat(self.config)).create(path=("arriving",))
        takes = Signal(init=1)
        filled = Signal(7)
        first = Signal(init=1)
        shift = Signal(init=1)
        holds = Signal()  # the inverse of ``shift``, for the logic that computes the next ``shift``
        moves = Signal()  # a copy of ``shift``, for the bounds
        comes, begins, can_shift, goes, shifts = (Signal() for _ in range(5))
        full = Signal(2)
        m.d.comb += [
            self.i.ready.eq(takes),
            arriving.ready.eq(shift),
            comes.eq(self.i.valid | ~takes),
            begins.eq(Mux(arriving.valid & ~holds, arriving.payload.llp.beat.last, first)),
            full.eq(Mux(holds, filled[-2:], filled[-3:-1])),
            can_shift.eq(comes | begins),
            goes.eq(~full[1] | self.goes),
            shifts.eq(can_shift & goes),
            self.offers.eq(can_shift & full[1]),
            self.follows.eq(can_shift & full[0]),
            self.enters.eq(self.follows & ~full[1]),
        ]
        m.d.sync += [
            first.eq(begins),
            shift.eq(shifts),
            holds.eq(~shifts),
            moves.eq(shifts),
            takes.eq(~comes | goes),
            arriving.valid.eq(comes),
            self.coming.eq(self.enters | (self.follows & self.goes)),
        ]
        with m.If(takes):
            m.d.sync += arriving.payload.eq(self.i.payload)
        with m.If(shift):
            m.d.sync += filled.eq(Cat(arriving.valid, filled))

        common = data.StructLayout(
            {
                "data": 32 * words,
                "count": range(words + 1),
                "last": 1,
                "position": 30,
                "stream": self.config.stream_bits + 1,
                "settings": LlpSettings(),
            }
        )
        beat = [Signal(common, name=f"beat{k}") for k in range(7)]
        edges = [Signal(Edges(words), name=f"edges{k}") for k in range(1, 6)]
        with m.If(shift):
            m.d.sync += [
                *(after.eq(before) for before, after in zip(beat, beat[1:], strict=False)),
                *(after.eq(before) for before, after in zip(edges, edges[1:], strict=False)),
            ]

        self._take(m, arriving, first, beat[0])
        length, start = self._lengths(m, shift, beat[0], edges[0])
        ends = self._ends(m, shift, length, edges[0], beat[1].count)
        cuts = self._cut(m, shift, length, start, ends, edges)
        settled = self._settled(m, shift, cuts, edges)
        self._bound(m, shift, moves, cuts.inside, settled, edges)
        m.d.comb += [
            self.ahead.first.eq(edges[4].marked[0]),
            self.ahead.marked.eq(edges[4].marked[-1]),
            self.ahead.last.eq(edges[3].last),
        ]

        # Stage 6: the output, with the words that a header may reach into.
        m.d.comb += [
            self.busy.eq(filled.any() | arriving.valid),
            self.o.end.eq(beat[6].count),
            self.o.position.eq(beat[6].position),
            self.o.stream.eq(beat[6].stream),
            self.o.crc.eq(beat[6].settings.crc),
            self.o.markers.eq(beat[6].settings.markers),
            self.o.window.eq(Cat(beat[k].data for k in (6, 5, 4, 3))),
        ]
        return m

    def _take(self, m, taken, first, beat):
        """Stage 0: registers the beat, and its position in the stream."""
        words = self.config.words
        arriving = taken.payload.llp.beat
        whole = ~arriving.count[:2].any() & ~arriving.error
        # ``valid`` does not gate the wide register.
        with m.If(taken.ready):
            m.d.sync += beat.data.eq(arriving.data)
        with m.If(taken.valid & taken.ready):
            m.d.sync += [
                beat.count.eq(Mux(whole, arriving.count[2:], 0)),
                beat.last.eq(arriving.last),
                beat.stream.eq(taken.payload.llp.stream),
                beat.settings.eq(taken.payload.settings),
                beat.position.eq(
                    Mux(first, taken.payload.llp.sequence[2:], beat.position + words)
                ),
            ]

    def _lengths(self, m, shift, beat, edges):
        """Stage 1: computes where the octets end and where a marker is.

        Returns the lengths in words given by a header at each word, and the part of the FPDU at the
        first word that is in later beats.
        """
        words = self.config.words
        bits = words.bit_length() - 1
        phase = beat.position[:7]
        marker = Signal(range(words))
        marked = Signal()
        m.d.comb += [
            marker.eq(-phase),
            marked.eq(
                beat.settings.markers
                & ((phase[bits:].all() & phase[:bits].any()) | ~phase.any())
            ),
        ]
        length = [Signal(15, name=f"length{w}") for w in range(words)]
        start = Signal(_Later(words))
        with m.If(shift):
            m.d.sync += [
                edges.last.eq(beat.last),
                edges.used.eq(Cat(w < beat.count for w in range(words))),
                edges.marked.eq(Cat(marked & (marker <= w) for w in range(words))),
            ]
            # ULPDU_Length, the ULPDU, PAD to four octets, CRC: (length + 2 + 3 + 4) >> 2 words.
            for w in range(words):
                ulpdu_length = Cat(
                    beat.data.word_select(4 * w + 1, 8), beat.data.word_select(4 * w, 8)
                )
                m.d.sync += length[w].eq((ulpdu_length + 9)[2:])
                if not w:
                    more = (ulpdu_length + 5)[2:]
                    m.d.sync += [
                        start.more.eq(more),
                        start.low.eq(1 << more[:bits]),
                        start.next.eq(_within(ulpdu_length, 0, 4 * words - 5)),
                    ]
        return length, start

    def _ends(self, m, shift, length, edges, count):
        """Stage 2: computes where these FPDUs end."""
        words, longest = self.config.words, self.config.longest_fpdu
        bits = words.bit_length() - 1
        ends = _Ends(words)
        with m.If(shift):
            m.d.sync += [
                ends.last.eq(count - 1),
                ends.before.eq((edges.marked[:-1] & edges.used[1:]).any()),
            ]
        for w in range(words):
            # Words less one in this beat, with a marker counted.
            here, marked = words - w + 1, edges.marked[words - 1] & ~edges.marked[w]
            low = (1 << length[w][:bits])[:words]
            with m.If(shift):
                m.d.sync += [
                    ends.stop[w].eq(w + length[w]),
                    ends.later[w].more.eq(length[w] + (marked - here)),
                    ends.later[w].low.eq(Mux(
                        marked, low.rotate_right(here - 1), low.rotate_right(here))),
                    ends.later[w].next.eq(Mux(
                        marked, _within(length[w], here - 1, words),
                        _within(length[w], here, words))),
                    ends.oversize[w].eq(length[w] > longest),
                ]
        return ends

    def _cut(self, m, shift, length, start, ends, edges):
        """Stage 3: computes the ends in this beat and the next, one-hot, and whether another FPDU
        begins in this beat after an end.
        """
        words, longest = self.config.words, self.config.longest_fpdu
        bits = words.bit_length() - 1
        cut = _Cuts(words)
        for w in range(words + 1):
            rest = ends.later[w] if w < words else start
            goes_on = (rest.next & ~edges[1].last).replicate(words + 1)
            there = Cat(_meet(m, goes_on & _cuts(m, rest.low, edges[0]), edges[0].used))
            if w < words:
                here = Cat(_meet(m, self._here(m, w, ends, edges[1].marked), edges[1].used))
            with m.If(shift):
                m.d.sync += [
                    Cat(cut.there[w]).eq(there),
                    cut.known[w].beats.eq(rest.more[bits:-1]),
                    cut.known[w].none.eq(rest.next),
                    cut.known[w].one.eq(rest.more[bits:] == 1),
                    cut.known[w].low.eq(rest.low),
                    cut.known[w].oversize.eq(
                        ends.oversize[w] if w < words else length[0] > longest),
                ]
                if w < words:
                    stop, marked = ends.stop[w], edges[1].marked
                    m.d.sync += Cat(cut.here[w]).eq(here)
                    if w + 2 < words:
                        # Octets follow its end, even if a marker moves the end by a word.
                        m.d.sync += cut.inside[w].eq(
                            rest.more[-1] & stop.any() & ~_above(stop, ends.last)
                            & ~((stop == ends.last) & ends.before & ~marked[w]))
        return cut

    def _here(self, m, w, ends, marked):
        """Finds the word, one-hot, at which an FPDU ends in the beat of its header, word ``w``."""
        words = self.config.words
        # A marker between start and end moves the end by one word.
        moved = Signal(words + 1)
        at = Signal(words)
        m.d.comb += [
            moved.eq(Mux(marked[w], 0, marked << 1)),
            at.eq(Mux(ends.later[w].more[-1], 1 << ends.stop[w], 0)),
        ]
        # An FPDU has at least two words: ULPDU_Length, PAD and CRC.
        return Cat(C(0, w + 2), *(
            at[p % words] & ~moved[p] | (at[p - 1] & moved[p - 1])
            for p in range(w + 2, words + 1)
        ))  # fmt: skip

    def _settled(self, m, shift, cuts, edges):
        """Stage 4: computes how FPDUs from each word end in this beat, and how they meet the next
        one; and how FPDUs that began earlier do.
        """
        words = self.config.words
        settled = _Settled(words)
        here, there, ends = settled.here, settled.there, settled.ends
        # For an FPDU that begins at each word; before the marker, if there is one.
        marker, insides = Signal(words), Signal(words)
        m.d.comb += [
            marker.eq(_marker(edges[2])),
            insides.eq(cuts.inside & ~marker | (cuts.inside >> 1) & marker),
        ]
        for w in range(words + 1):
            m.submodules[f"settle{w}"] = b = Module()
            landings = [Signal(Landing(words), name=name) for name in ("here", "there")]
            _settle(b, landings[0], *cuts.here[w], edges[2])
            _settle(b, landings[1], *cuts.there[w], edges[1])
            b.d.comb += landings[0].inside.eq((cuts.here[w][1][:words] & insides).any())
            with m.If(shift):
                m.d.sync += [
                    here[w].eq(landings[0]),
                    there[w].eq(landings[1]),
                    settled.known[w].eq(cuts.known[w]),
                ]
        for j in range(words):
            m.submodules[f"end{j}"] = b = Module()
            landing = Signal(Landing(words), name="landing")
            left = Mux(edges[2].marked[-1], C(1 << (j + 1) % words, words), C(1 << j, words))
            _settle(b, landing, *_meet(b, _cuts(b, left, edges[1]), edges[1].used), edges[1])
            with m.If(shift):
                m.d.sync += ends[j].eq(landing)
        return settled

    def _bound(self, m, shift, moves, next_inside, settled, edges):
        """Stage 5: registers the bounds; and whether an FPDU after an end also ends in the beat."""
        words = self.config.words
        ahead, marker_first = self.ahead, edges[3].marked[0]
        bounds, held = (
            [Signal(Bound(words), name=f"{name}{w}") for w in range(words + 1)]
            for name in ("bound", "held"))
        for bound, here, there, known in zip(
            bounds, settled.here, settled.there, settled.known, strict=True
        ):
            done = here.start | here.close | edges[3].last
            m.d.comb += [
                bound.eq(known),
                bound.tail.eq(here.close),
                bound.broken.eq(here.broken),
                # An FPDU that ends in this beat, or with the packet, does not end in the next.
                bound.landing.start.eq(here.start | there.start),
                bound.landing.close.eq(there.close),
                bound.landing.broken.eq(there.broken & ~done),
                bound.landing.on.eq(there.on & ~done),
                bound.landing.cut.eq(here.cut | there.cut),
                bound.landing.header.eq(here.header | there.header),
                bound.landing.inside.eq(here.inside | (there.header & next_inside).any()),
            ]
        for given, own, bound in zip(ahead.bounds, held, bounds, strict=True):
            with m.If(shift):
                m.d.sync += own.eq(bound)
            with m.If(~self.stays):
                m.d.sync += given.eq(Mux(moves, bound, own))
        with m.If(shift):
            m.d.sync += [
                ahead.inside.eq(
                    Mux(marker_first, settled.here[1].start, settled.here[0].start)),
            ]
            for landing, end in zip(ahead.ends, settled.ends, strict=True):
                m.d.sync += [
                    landing.eq(end),
                    landing.inside.eq((end.header & next_inside).any()),
                ]
