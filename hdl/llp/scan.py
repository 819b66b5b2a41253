"""Where FPDUs may begin and end in a beat: what can be known before knowing which one does."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..stream import any_of
from .intake import KnownBeat, LlpSettings
from .segment import HEADER_WORDS

__all__ = ["Landing", "Bound", "Scan", "MpaScan", "land"]


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
    cut : range(words + 1)
    header : words + 1
        One-hot: the word that holds the next FPDU's ULPDU_Length, after the marker if one stands at
        ``cut``. The highest bit is the first word of the next beat.
    """

    def __init__(self, words):
        super().__init__(
            {
                "start": 1,
                "close": 1,
                "broken": 1,
                "on": 1,
                "cut": range(words + 1),
                "header": words + 1,
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
    inside : 1
        It ends in this beat and another begins: ``landing`` tells where in this beat.
    tail : 1
        It ends where the beat's octets end.
    broken : 1
        The packet ends inside it.
    landing : Landing
        Otherwise: how it meets the next beat. All 0 after ``tail`` and ``broken``.
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
                "inside": 1,
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


class Scan(data.StructLayout):
    """A scanned beat, with what of the following ones a header may reach into.

    Members
    -------
    window : 32 * (words + HEADER_WORDS)
        This beat's words and those that follow.
    bounds : ArrayLayout(Bound, words + 1)
        One for each word where a header may be; the highest for the first word of the next beat.
    edges, ahead : Edges
        Of this beat and of the next one.
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
                "bounds": data.ArrayLayout(Bound(words), words + 1),
                "edges": Edges(words),
                "ahead": Edges(words),
                "position": 30,
                "stream": 16,
                "crc": 1,
                "markers": 1,
            }
        )


def _marker(edges, word):
    """The marker stands at this word."""
    return edges.marked[word] & ~edges.marked[word - 1] if word else edges.marked[0]


def _settle(m, landing, cuts, edges):
    """Fill ``landing`` for a boundary given one-hot by ``cuts[p]``, p words into the beat."""
    words = len(edges.used)
    marker = [_marker(edges, word) for word in range(words)]
    start = Cat(cuts[p] & edges.used[p] for p in range(1, words)).any()
    ends = [
        cuts[p] & edges.used[p - 1] & (~edges.used[p] if p < words else 1)
        for p in range(1, words + 1)
    ]
    close = Cat(ends).any()
    m.d.comb += [
        landing.start.eq(start),
        landing.close.eq(close),
        landing.broken.eq(edges.last & ~start & ~close),
        landing.on.eq(~edges.last & ~start & ~close),
        Cat(landing.cut).eq(any_of(Mux(cuts[p], p, 0) for p in range(1, words + 1))),
    ]
    for word in range(1, words + 1):
        here = cuts[word] & ~marker[word] if word < words else Const(0)
        m.d.comb += landing.header[word].eq(
            here | (cuts[word - 1] & marker[word - 1] if word > 1 else 0)
        )


def land(m, landing, this_beat, low, edges):
    """Fill ``landing`` for an FPDU whose remaining words end in this beat if ``this_beat`` is set,
    ``low`` giving their number one-hot. A marker before their end moves it by one word."""
    words = len(edges.used)
    cuts = {}
    for p in range(1, words + 1):
        cuts[p] = this_beat & (
            low[p - 1] & ~edges.marked[p - 1] | (low[p - 2] & edges.marked[p - 2] if p > 1 else 0)
        )
    _settle(m, landing, cuts, edges)


class MpaScan(wiring.Component):
    """Scans beats for FPDU boundaries (RFC 5044 section 4.1).

    For every word the block works out, with no knowledge of where the FPDUs are, what follows if an
    FPDU's header stood there: an FPDU is a multiple of four octets long, and only its ULPDU_Length
    and the markers between (RFC 5044 section 4.3) decide where it ends. The walker then only
    selects.

    A beat is given out when the four beats that follow it, or the rest of the packet, are
    inside: a header may reach into them.

    Latency: 4 cycles, and as long as it takes four more beats or the packet's last to come.
    Throughput: 1 beat a cycle. Reset: empty. Errors: a packet's damaged last beat, or one that
    is not a multiple of four octets long, counts as empty, which breaks the FPDU that reaches
    into it.

    Members
    -------
    i : In(stream.Signature(KnownBeat(width)))
    o : Out(stream.Signature(Scan(words)))
    busy : Out(1)
        A beat is inside.
    """

    def __init__(self, config):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(KnownBeat(config.width))),
                "o": Out(stream.Signature(Scan(config.words))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words = self.config.words
        bits = words.bit_length() - 1
        longest = self.config.longest_fpdu

        # All stages shift together, and only with a beat or after a packet's last: so a beat's
        # successors in its packet are always right behind it.
        valid = Signal(4)
        first = Signal(init=1)
        shift = Signal()
        can_shift = self.i.valid | first
        m.d.comb += [
            self.o.valid.eq(valid[3] & can_shift),
            shift.eq(can_shift & (~valid[3] | self.o.ready)),
            self.i.ready.eq(~valid[3] | self.o.ready),
        ]
        with m.If(shift):
            m.d.sync += valid.eq(Cat(self.i.valid, valid))

        common = data.StructLayout(
            {
                "data": 32 * words,
                "last": 1,
                "position": 30,
                "stream": 16,
                "settings": LlpSettings(),
            }
        )
        beat = [Signal(common, name=f"beat{k}") for k in range(4)]
        edges = [Signal(Edges(words), name=f"edges{k}") for k in range(1, 4)]
        with m.If(shift):
            m.d.sync += [
                *(beat[k + 1].eq(beat[k]) for k in range(3)),
                *(edges[k + 1].eq(edges[k]) for k in range(2)),
            ]

        # Stage 0: the beat, and its place in the stream.
        count = Signal(range(words + 1))
        arriving = self.i.payload.llp.beat
        whole = ~arriving.count[:2].any() & ~arriving.error
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                first.eq(arriving.last),
                beat[0].data.eq(arriving.data),
                beat[0].last.eq(arriving.last),
                beat[0].stream.eq(self.i.payload.llp.stream),
                beat[0].settings.eq(self.i.payload.settings),
                beat[0].position.eq(
                    Mux(first, self.i.payload.llp.sequence[2:], beat[0].position + words)
                ),
                count.eq(Mux(whole, arriving.count[2:], 0)),
            ]

        # Stage 1: where the octets end, and where a marker stands; lengths in words.
        phase = beat[0].position[:7]
        marker = Signal(range(words))
        marked = Signal()
        m.d.comb += [
            marker.eq(-phase),
            marked.eq(
                beat[0].settings.markers
                & ((phase[bits:].all() & phase[:bits].any()) | ~phase.any())
            ),
        ]
        length = [Signal(15, name=f"length{w}") for w in range(words)]
        first_more = Signal(15)  # length[0] less one
        with m.If(shift):
            m.d.sync += [
                edges[0].last.eq(beat[0].last),
                edges[0].used.eq(Cat(w < count for w in range(words))),
                edges[0].marked.eq(Cat(marked & (marker <= w) for w in range(words))),
            ]
            # ULPDU_Length, the ULPDU, PAD to four octets, CRC: (length + 2 + 3 + 4) >> 2 words.
            for w in range(words):
                ulpdu_length = Cat(
                    beat[0].data.word_select(4 * w + 1, 8), beat[0].data.word_select(4 * w, 8)
                )
                m.d.sync += length[w].eq((ulpdu_length + 9)[2:])
                if not w:
                    m.d.sync += first_more.eq((ulpdu_length + 5)[2:])

        # Stage 2: if the header is at word w, where it ends (``stop``, right if that is in this
        # beat), and how many words less one follow in later beats (``more``, negative if none).
        stop = [Signal(range(2 * words + 2), name=f"stop{w}") for w in range(words)]
        more = [Signal(signed(16), name=f"more{w}") for w in range(words)]
        oversize = Signal(words)
        for w in range(words):
            later = edges[0].marked[words - 1] & ~edges[0].marked[w]
            with m.If(shift):
                m.d.sync += [
                    stop[w].eq(w + length[w]),
                    more[w].eq(length[w] + (later - (words - w) - 1)),
                    oversize[w].eq(length[w] > longest),
                ]

        # Stage 3: the bounds, seen with the next beat.
        bounds = self.o.payload.bounds
        for w in range(words + 1):
            bound = Signal(Bound(words), name=f"bound{w}")
            m.submodules[f"bound{w}"] = b = Module()
            here = Signal(Landing(words), name="here")
            there = Signal(Landing(words), name="there")
            rest = more[w] if w < words else Cat(first_more, C(0, 1))
            fits = rest[-1]
            low = Signal(words, name="low")
            b.d.comb += low.eq(1 << rest[:bits])
            land(b, there, ~rest[bits:].any(), low, edges[0])
            if w < words:
                later = edges[1].marked[words - 1] & ~edges[1].marked[w]
                # An FPDU has no less than two words: ULPDU_Length, PAD and CRC.
                cuts = {p: Const(0) for p in range(1, words + 1)}
                for p in range(w + 2, words + 1):
                    cuts[p] = fits & (
                        (stop[w] == p) & ~(later & edges[1].marked[p - 1])
                        | ((stop[w] == p - 1) & later & edges[1].marked[p - 2])
                    )
                _settle(b, here, cuts, edges[1])
            b.d.comb += [
                bound.inside.eq(here.start),
                bound.tail.eq(here.close),
                bound.broken.eq(~here.start & ~here.close & edges[1].last),
                bound.landing.eq(Mux(here.start, here, Mux(here.close | edges[1].last, 0, there))),
                bound.beats.eq(rest[bits:-1]),
                bound.none.eq(~rest[bits:].any()),
                bound.one.eq(rest[bits:] == 1),
                bound.low.eq(low),
                bound.oversize.eq(oversize[w] if w < words else length[0] > longest),
            ]
            with m.If(shift):
                m.d.sync += bounds[w].eq(bound)

        # Stage 4: given out together with the words that a header may reach into.
        m.d.comb += [
            self.busy.eq(valid.any()),
            self.o.payload.edges.eq(edges[2]),
            self.o.payload.ahead.eq(edges[1]),
            self.o.payload.position.eq(beat[3].position),
            self.o.payload.stream.eq(beat[3].stream),
            self.o.payload.crc.eq(beat[3].settings.crc),
            self.o.payload.markers.eq(beat[3].settings.markers),
            self.o.payload.window.eq(Cat(beat[k].data for k in (3, 2, 1, 0))),
        ]
        return m
