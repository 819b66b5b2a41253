"""Where FPDUs may begin and end in a beat: what can be known before knowing which one does."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.segment import HEADER_WORDS
from ..lib.stream import any_of
from .intake import KnownBeat, LlpSettings

__all__ = ["Ahead", "Bound", "Landing", "MpaScan", "Scan"]


class Landing(data.StructLayout):
    """How an FPDU that began earlier meets a beat. Exactly one of the first four is set.

    Members
    -------
    start : 1
        It ends at word ``cut``, and the next one begins there.
    close : 1
        It ends where the beat's octets end.
    broken : 1
        The packet ends inside it.
    on : 1
        It goes on through the whole beat.
    cut : range(words)
        With ``start``.
    header : words + 1
        With ``start``, one-hot: the word that holds the next FPDU's ULPDU_Length, after the marker
        if one stands at ``cut``. The highest bit is the first word of the next beat.
    inside : 1
        The next FPDU ends in that beat too, and another begins.
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
    """A beat's own boundaries.

    Members
    -------
    used : words
        1 for each word that holds octets.
    marked : words
        1 from the marker's word up; all 0 without a marker.
    last : 1
        The packet ends.
    """

    def __init__(self, words):
        super().__init__({"used": words, "marked": words, "last": 1})


class Bound(data.StructLayout):
    """What follows if an FPDU's header is at a given word of the beat.

    Members
    -------
    tail : 1
        It ends where the beat's octets end.
    broken : 1
        The packet ends inside it.
    landing : Landing
        How it meets the next beat, or this one if it ends in it and another begins. All 0 after
        ``tail`` and ``broken``.
    beats, low :
        If it goes on through the next beat too: beats that it fills before its last one, counted
        from the next, and one-hot its words in that last one (bit j for j + 1 words).
    none, one : 1
        ``beats`` is 0, or 1.
    oversize : 1
        It does not fit the packet buffer.
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
    """What can be known of the beat behind the one that is walked.

    Members
    -------
    bounds : ArrayLayout(Bound, words + 1)
        One for each word where a header may be; the highest for the first word of the beat behind.
        While the one that is walked stays, of that.
    first : 1
        A marker stands at its first word.
    marked : 1
        A marker stands at any of its words.
    inside : 1
        If an FPDU begins with it, that ends in it, and another begins.
    ends : ArrayLayout(Landing, words)
        How an FPDU that fills this beat meets the one behind it, if it has j + 1 words left there,
        or before this beat's marker.
    last : 1
        The packet ends with the beat behind this one.
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
    """A scanned beat, with what of the following ones a header may reach into.

    Members
    -------
    window : 32 * (words + HEADER_WORDS)
        This beat's words and those that follow.
    end : range(words + 1)
        Words that hold octets.
    position : 30
        Words of the stream before this beat.
    stream : 16
    crc, markers : 1
        Settings of the stream.
    """

    def __init__(self, words):
        super().__init__(
            {
                "window": 32 * (words + HEADER_WORDS),
                "end": range(words + 1),
                "position": 30,
                "stream": 16,
                "crc": 1,
                "markers": 1,
            }
        )


class _Later(data.StructLayout):
    """What beats behind that of its header have of an FPDU.

    Members
    -------
    more : 16
        Its words there, less one; negative if there are none.
    low : words
        One-hot, as :class:`Bound` has it.
    next : 1
        It ends in the next beat.
    """

    def __init__(self, words):
        super().__init__({"more": 16, "low": words, "next": 1})


class _Ends:
    """Registers behind stage 2, for a header at each word: where its FPDU ends (``stop``, modulo a
    beat, right if that is in this beat), what later beats have of it, and whether it does not fit
    the packet buffer. And the ``last`` word that holds octets, and whether a marker stands
    ``before`` it.
    """

    def __init__(self, words):
        self.stop = [Signal(range(words), name=f"stop{w}") for w in range(words)]
        self.later = [Signal(_Later(words), name=f"later{w}") for w in range(words)]
        self.oversize = Signal(words)
        self.last = Signal(range(words))
        self.before = Signal()


class _Cuts:
    """Registers behind stage 3, for each word: ends and starts in this beat and in the next,
    one-hot; what else is known; and in this beat whether an FPDU from there ends in it with another
    behind it.
    """

    def __init__(self, words):
        self.here, self.there = (
            [[Signal(words + 1, name=f"{place}_{what}{w}") for what in ("ends", "starts")]
             for w in range(words + 1)] for place in ("here", "there")
        )  # fmt: skip
        self.known = [Signal(Bound(words), name=f"known{w}") for w in range(words + 1)]
        self.inside = Signal(words)


class _Settled:
    """Registers behind stage 4: how an FPDU from each word meets this beat and the next, what else
    is known of it; how one on its way meets the next.
    """

    def __init__(self, words):
        self.here, self.there = (
            [Signal(Landing(words), name=f"{place}{w}") for w in range(words + 1)]
            for place in ("ends_here", "ends_there")
        )
        self.known = [Signal(Bound(words), name=f"settled{w}") for w in range(words + 1)]
        self.ends = [Signal(Landing(words), name=f"passed{j}") for j in range(words)]


def _within(value, first, count):
    """A value is one of so many from ``first`` on, by a table of its lower bits."""
    bits = (first + count - 1).bit_length()
    table = C(((1 << count) - 1) << first, 1 << bits)
    return table.bit_select(value[:bits], 1) & ~value[bits:].any()


def _above(one, other):
    """One is more than the other, both of few bits: no chain of carries."""
    above = C(0)
    for a, b in zip(one, other, strict=True):
        above = (a & ~b) | (above & (a | ~b))
    return above


def _marker(edges, word):
    """The marker stands at this word."""
    return edges.marked[word] & ~edges.marked[word - 1] if word else edges.marked[0]


def _meet(cuts, used):
    """Where a boundary, one-hot, ends an FPDU, and where the next one begins there, too."""
    words = len(used)
    ends = Cat(C(0, 1), *(cuts[p] & used[p - 1] for p in range(1, words + 1)))
    starts = Cat(C(0, 1), *(cuts[p] & used[p] for p in range(1, words)), C(0, 1))
    return ends, starts


def _settle(m, landing, ends, starts, edges):
    """Fill ``landing`` for what :func:`_meet` found."""
    words = len(edges.used)
    marker = [_marker(edges, word) for word in range(words)]
    start, ended = starts.any(), ends.any()
    m.d.comb += [
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


def _cuts(low, edges):
    """One-hot, where an FPDU ends of which so many words are left, ``low`` one-hot. A marker before
    its end moves it by one word, which may be out of the beat.
    """
    words = len(edges.used)
    return [0, *(
        low[p - 1] & ~edges.marked[p - 1] | (low[p - 2] & edges.marked[p - 2] if p > 1 else 0)
        for p in range(1, words + 1)
    )]  # fmt: skip


class MpaScan(wiring.Component):
    """Scans beats for FPDU boundaries (RFC 5044 section 4.1).

    For every word the block works out, with no knowledge of where the FPDUs are, what follows if an
    FPDU's header stood there: an FPDU is a multiple of four octets long, and only its ULPDU_Length
    and the markers between (RFC 5044 section 4.3) decide where it ends. The walker then only
    selects, while the beat before is walked: so what it selects comes out of registers.

    A beat is given out when the seven beats that follow it, or the rest of the packet, are inside:
    a header may reach into the first of them.

    Latency: 8 cycles, and as long as it takes seven more beats or the packet's last to come.
    Throughput: 1 beat a cycle. Reset: empty. Errors: a packet's damaged last beat, or one that
    is not a multiple of four octets long, counts as empty, which breaks the FPDU that reaches
    into it.

    Members
    -------
    i : In(stream.Signature(KnownBeat(width)))
    goes : In(1)
        In the next cycle the beat at ``o`` is done with, if there is one.
    stays : In(1)
        In the next cycle it has another FPDU.
    o : Out(Scan(words))
    offers : Out(1)
        In the next cycle there is a beat at ``o``, which stays until it goes; combinational.
    enters, follows : Out(1)
        In the next cycle that is another one; it is if the one that is there goes; combinational.
    coming : Out(1)
        In this cycle it is another one than in the last.
    ahead : Out(Ahead(words))
        Of that beat.
    busy : Out(1)
        A beat is inside.
    """

    def __init__(self, config):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(KnownBeat(config.width))),
                "goes": In(1),
                "stays": In(1),
                "o": Out(Scan(config.words)),
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

        # All stages shift together, and only with a beat or after a packet's last: so a beat's
        # successors in its packet are always right behind it. Whether they do is worked out one
        # cycle before, as thousands of registers have to hear of it.
        # So is whether the register takes a beat that they come from.
        arriving = stream.Signature(KnownBeat(self.config.width)).create(path=("arriving",))
        takes = Signal(init=1)
        filled = Signal(7)
        first = Signal(init=1)
        shift = Signal(init=1)
        holds = Signal()  # not ``shift``, for what has to say whether it will
        moves = Signal()  # ``shift`` again, for the bounds
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
                "stream": 16,
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

        # Stage 6: given out together with the words that a header may reach into.
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
        """Stage 0: the beat, and its place in the stream."""
        words = self.config.words
        arriving = taken.payload.llp.beat
        whole = ~arriving.count[:2].any() & ~arriving.error
        # Whether there is a beat does not gate the wide register.
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
        """Stage 1: where the octets end, and where a marker stands; lengths in words of what a
        header at each word tells of; and what is to come of the first.
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
        """Stage 2: what follows from these lengths."""
        words, longest = self.config.words, self.config.longest_fpdu
        bits = words.bit_length() - 1
        ends = _Ends(words)
        with m.If(shift):
            m.d.sync += [
                ends.last.eq(count - 1),
                ends.before.eq((edges.marked[:-1] & edges.used[1:]).any()),
            ]
        for w in range(words):
            # Words less one that are here, a marker counted.
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
        """Stage 3: the same, one-hot, where in this beat and in the next; and whether another one
        begins in this beat.
        """
        words, longest = self.config.words, self.config.longest_fpdu
        bits = words.bit_length() - 1
        cut = _Cuts(words)
        for w in range(words + 1):
            rest = ends.later[w] if w < words else start
            with m.If(shift):
                goes_on = rest.next & ~edges[1].last
                there = [goes_on & at for at in _cuts(rest.low, edges[0])]
                m.d.sync += [
                    Cat(cut.there[w]).eq(Cat(_meet(there, edges[0].used))),
                    cut.known[w].beats.eq(rest.more[bits:-1]),
                    cut.known[w].none.eq(rest.next),
                    cut.known[w].one.eq(rest.more[bits:] == 1),
                    cut.known[w].low.eq(rest.low),
                    cut.known[w].oversize.eq(
                        ends.oversize[w] if w < words else length[0] > longest),
                ]
                if w < words:
                    stop, used, marked = ends.stop[w], edges[1].used, edges[1].marked
                    # A marker between, and before the end, moves that by one word.
                    moved = [
                        C(0, 1), *(marked[p - 1] & ~marked[w] for p in range(1, words + 1))]
                    # An FPDU has no less than two words: ULPDU_Length, PAD and CRC.
                    here = [*[C(0, 1)] * (w + 2), *(
                        rest.more[-1] & (
                            (stop == p % words) & ~moved[p] | ((stop == p - 1) & moved[p - 1])
                        ) for p in range(w + 2, words + 1)
                    )]  # fmt: skip
                    m.d.sync += Cat(cut.here[w]).eq(Cat(_meet(here, used)))
                    if w + 2 < words:
                        # Octets are behind its end, though a marker moves that by a word.
                        m.d.sync += cut.inside[w].eq(
                            rest.more[-1] & stop.any() & ~_above(stop, ends.last)
                            & ~((stop == ends.last) & ends.before & ~marked[w]))
        return cut

    def _settled(self, m, shift, cuts, edges):
        """Stage 4: how FPDUs from each word end in this beat, and how they meet the next one, which
        is seen with it; likewise those on their way.
        """
        words = self.config.words
        settled = _Settled(words)
        here, there, ends = settled.here, settled.there, settled.ends
        # Of one that begins at each word, before the marker if one stands there.
        insides = Cat(
            Mux(_marker(edges[2], p), cuts.inside[p + 1] if p + 1 < words else 0, cuts.inside[p])
            for p in range(words))
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
            _settle(b, landing, *_meet(_cuts(left, edges[1]), edges[1].used), edges[1])
            with m.If(shift):
                m.d.sync += ends[j].eq(landing)
        return settled

    def _bound(self, m, shift, moves, next_inside, settled, edges):
        """Stage 5: the bounds; and whether who begins where one ends will end in the same beat."""
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
                # Who ends in this beat, or with the packet, does not end in the next.
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
