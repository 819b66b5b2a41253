"""Where chunks may begin and end in a beat: what can be known before knowing which one does."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..spec.sctp import COMMON_HEADER, ChunkType
from ..stream import any_of

__all__ = ["ChunkBound", "ChunkScan", "FrameBeat", "HEADER_WORDS", "ScannedBeat"]

#: Words of a chunk that are read: the header of a DATA chunk, DDP-SSN and the longer DDP header.
HEADER_WORDS = 9


class FrameBeat(data.StructLayout):
    """One beat of an Ethernet frame that was moved up by two octets: from the IP header on all
    lies on 32-bit words.

    Members
    -------
    data : unsigned(width)
        Octets, the first one lowest.
    used : words
        1 for each word that holds octets, all of them but on the last beat.
    first, last : 1
        The frame begins, ends with this beat.
    sctp : words
        One-hot: the word where the SCTP common header begins. 0 in the frame's other beats, and in
        all beats of a frame that is not SCTP.
    octets : 16
        Where ``sctp`` is set: length of the SCTP packet. The frame may be longer.
    """

    def __init__(self, width):
        words = width // 32
        super().__init__(
            {"data": width, "used": words, "first": 1, "last": 1, "sctp": words, "octets": 16}
        )


class ChunkBound(data.StructLayout):
    """What follows if a chunk begins at a given word of the beat.

    Members
    -------
    stay : 1
        What begins next does so in a beat that the walker is not done with then: another chunk
        follows in it, or the frame ends with it.
    closes : 1
        The chunk and the packet end together, in this beat.
    landing : words + 1
        One-hot: where the next chunk begins, in this beat or in the next one. The highest bit: the
        chunk fills the next beat and ends with it. 0 where it goes on longer.
    cut : range(words)
        The word where the next chunk begins, in whichever beat.
    near, far : 1
        The chunk fills one, or several of the following beats, before the one where it ends.
    beats
        How many it fills.
    """

    def __init__(self, words):
        bits = words.bit_length() - 1
        super().__init__(
            {
                "stay": 1,
                "closes": 1,
                "landing": words + 1,
                "cut": bits,
                "near": 1,
                "far": 1,
                "beats": 14 - bits,
            }
        )


class ScannedBeat(data.StructLayout):
    """A scanned beat, with what of the following ones a chunk's header may reach into.

    Members
    -------
    window : 32 * (words + HEADER_WORDS - 1)
        This beat's words and those that follow.
    bounds : ArrayLayout(ChunkBound, words)
        One for each word.
    body : words
        1 for each word of the packet, and those before it in the beat where it begins.
    active : 1
        The packet has words in the beat, or begins in it.
    on : 1
        It goes on in the next beat.
    ended : 1
        It ends in the beat, after word ``end`` : range(words).
    void : 1
        It ends, and has no chunks.
    sctp : 1
        It begins in the beat, at word ``at`` : range(words).
    checksum : words
        One-hot: its checksum.
    close : 1
        It ends in the beat, or the frame ends before it does.
    cut : range(words + 1)
        With ``close``, the word after its last one.
    last : 1
        The frame ends.
    count : range(words + 1)
        Words that hold octets, where the frame ends.
    """

    def __init__(self, words):
        super().__init__(
            {
                "window": 32 * (words + HEADER_WORDS - 1),
                "bounds": data.ArrayLayout(ChunkBound(words), words),
                "body": words,
                "active": 1,
                "on": 1,
                "ended": 1,
                "end": range(words),
                "void": 1,
                "sctp": 1,
                "at": range(words),
                "checksum": words,
                "close": 1,
                "cut": range(words + 1),
                "last": 1,
                "count": range(words + 1),
            }
        )


class ChunkScan(wiring.Component):
    """Scans the beats of frames for chunk boundaries (RFC 9260 section 3.2).

    For every word the block works out, with no knowledge of where the chunks are, what follows if a
    chunk began there: only its type and length decide where it ends. The walker then only selects.

    A beat is given out when the five beats that follow it, or the rest of the frame, are inside: a
    header may reach into four of them.

    Latency: 6 cycles, and as long as it takes five more beats or the frame's last to come.
    Throughput: 1 beat a cycle. Reset: empty.
    Errors: a chunk shorter than its header, or a DATA chunk without user data, is given out as
    longer than any packet. So is a packet whose length is 0 or not a multiple of four octets as
    longer than any frame. Then no chunk ends where the packet does.

    Members
    -------
    i : In(stream.Signature(FrameBeat(width)))
    o : Out(ScannedBeat(words))
    valid : Out(1)
        There is a beat in ``o``. Where there is none, the packet's fields say that it has no words.
    go : In(1)
        The walker can take a beat.
    hold : In(1)
        It is not done with the one in ``o``.
    turn : Out(1)
        It takes the beat in ``o``, if any; that gives way to the next one, if any, without
        ``hold``.
    begin : Out(words), begin_at : Out(range(words)), begin_stay : Out(1)
        Where a packet's first chunk begins in the next one, one-hot and as a number, and ``stay``
        of it; 0 if none does.
    stay : Out(words)
        The walker would not be done with the next beat where a chunk begins at this word of it.
    busy : Out(1)
        A beat is inside.
    """

    def __init__(self, config):
        self.config = config
        words = config.words
        super().__init__(
            {
                "i": In(stream.Signature(FrameBeat(config.width))),
                "o": Out(ScannedBeat(words)),
                "valid": Out(1),
                "go": In(1),
                "hold": In(1),
                "turn": Out(1),
                "begin": Out(words),
                "begin_at": Out(range(words)),
                "begin_stay": Out(1),
                "stay": Out(words),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words = self.config.words
        bits = words.bit_length() - 1

        # All stages shift together, and only with a beat or after a frame's last: so a beat's
        # successors in its frame are always right behind it.
        valid = Signal(6)
        between = Signal(init=1)
        shift = Signal()
        room = ~valid[5] | self.go
        m.d.comb += [
            self.valid.eq(valid[5]),
            self.turn.eq((self.i.valid | between) & room),
            shift.eq(self.turn & ~self.hold),
            self.i.ready.eq(room & ~self.hold),
            self.busy.eq(valid.any()),
        ]
        scanned = self.o
        passed = {
            name: field.shape
            for name, field in scanned.shape()
            if name not in ("window", "bounds")
        }
        common = data.StructLayout(
            {"data": 32 * words, "used": words, "begin": words, "stay": words, **passed}
        )
        beat = [Signal(common, name=f"beat{k}") for k in range(6)]
        with m.If(shift):
            m.d.sync += [
                valid.eq(Cat(self.i.valid, valid)),
                *(beat[k + 1].eq(beat[k]) for k in range(5)),
            ]

        # Stage 0: the beat, and in numbers where its packet begins.
        arriving = self.i.payload
        sctp = Signal(words)
        octets = Signal(16)
        lead = Signal(signed(bits + 1))  # words before the packet, less one
        m.d.comb += sctp.eq(Mux(self.i.valid, arriving.sctp, 0))
        with m.If(shift):
            m.d.sync += [
                beat[0].data.eq(arriving.data),
                beat[0].used.eq(arriving.used),
                beat[0].last.eq(arriving.last),
                beat[0].sctp.eq(sctp.any()),
                beat[0].at.eq(any_of(Mux(sctp[w], w, 0) for w in range(words))),
                lead.eq(any_of(Mux(sctp[w], C(w - 1, lead.shape()), 0) for w in range(words))),
                octets.eq(arriving.octets),
            ]
            with m.If(self.i.valid):
                m.d.sync += between.eq(arriving.last)

        # Stage 1: where the checksum and the first chunk are. If a chunk began at word w, ``past``
        # would be the words that it has in later beats, less one.
        header = Signal(words)  # of beat 0
        before = Signal(COMMON_HEADER // 4)  # the same of the words before it
        rest = Signal(15)  # words of the packet from the beat's first on, less one
        past = [Signal(signed(15), name=f"past{w}") for w in range(words)]
        bad = Signal(words)
        marks = Cat(before, header)
        odd = octets[:2].any() | ~octets[2:].any()
        with m.If(shift):
            m.d.sync += [
                header.eq(sctp),
                before.eq(Mux(beat[0].last, 0, marks[-len(before):])),
                beat[1].begin.eq(marks[:words]),
                beat[1].checksum.eq(marks[1:][:words]),
                rest.eq(Mux(odd, -1, octets[2:] + lead)),
            ]
            for w in range(words):
                word = beat[0].data.word_select(w, 32)
                length = Cat(word[24:], word[16:24])
                # What is not a multiple of four octets is padded: (length + 3) >> 2 words.
                m.d.sync += past[w].eq((length + (3 - 4 * (words + 1 - w)))[2:])
                # 16 octets or less are no DATA chunk, 3 or less no chunk.
                is_data = word[:8] == ChunkType.DATA
                few = ~length[5:].any() & ~(length[4] & length[:4].any())
                m.d.sync += bad[w].eq(~length[2:].any() | (is_data & few))

        # Stage 2: which words are the packet's, and how far the chunks would reach.
        left = Signal(15)  # as ``rest``, of beat 2
        active = Signal()
        more = Signal()  # ``left`` is more than the beat has
        low = [Signal(bits, name=f"low{w}") for w in range(words)]  # words in the last beat, less 1
        here = Signal(words)  # the chunk ends in this beat
        there = Signal(words)  # in the next
        beats = [Signal(14 - bits, name=f"beats{w}") for w in range(words)]
        with m.If(shift):
            with m.If(beat[1].sctp):
                m.d.sync += [active.eq(1), left.eq(rest), more.eq(rest[bits:].any())]
            with m.Else():
                m.d.sync += [
                    active.eq(active & more & ~beat[2].last),
                    left.eq(left - words),
                    more.eq(left[bits + 1 :].any()),
                ]
            for w in range(words):
                m.d.sync += [
                    low[w].eq(past[w][:bits]),
                    here[w].eq(past[w][-1] & ~bad[w]),
                    there[w].eq(~past[w][bits:].any() & ~bad[w]),
                    beats[w].eq(past[w][bits:14] | bad[w].replicate(14 - bits)),
                ]

        # Stage 3: the packet's end with respect to the beat, and which chunks would have another
        # one begin in it.
        whole = Signal()  # the packet has all words of the beat from ``at`` on, and more
        stops = Signal()
        inside = Signal(words)
        low_3 = [Signal(bits, name=f"low_3_{w}") for w in range(words)]
        here_3, there_3, one_3 = Signal(words), Signal(words), Signal(words)
        beats_3 = [Signal(14 - bits, name=f"beats_3_{w}") for w in range(words)]
        end = left[:bits]
        body = active.replicate(words) & Cat(more | (w <= end) for w in range(words))
        within = Cat(
            here[w] & active & Mux(more, ~low[w].all(), low[w] < end) for w in range(words)
        )
        with m.If(shift):
            m.d.sync += [
                whole.eq(active & more),
                stops.eq(active & ~more),
                inside.eq(within),
                here_3.eq(here),
                there_3.eq(there),
                *(one_3[w].eq(beats[w] == 1) for w in range(words)),
                *(low_3[w].eq(low[w]) for w in range(words)),
                *(beats_3[w].eq(beats[w]) for w in range(words)),
                beat[3].body.eq(body),
                beat[3].end.eq(end),
                beat[3].ended.eq(active & ~more & beat[2].used.bit_select(end, 1)),
                beat[3].begin.eq(beat[2].begin & body),
                beat[3].stay.eq(within | (body & beat[2].last.replicate(words))),
            ]

        # Stage 4: the bounds.
        now = beat[3]
        used = Cat(now.used, 0)
        on = whole & ~now.last
        bounds = Signal.like(scanned.bounds)
        same, other = Signal(words), Signal(words)  # where the next chunk begins: in which beat
        for w in range(words):
            bound = bounds[w]
            in_next = there_3[w] & on
            later = on & ~here_3[w] & ~there_3[w]
            at_end = low_3[w].all()
            with m.If(shift):
                m.d.sync += [
                    bound.closes.eq(here_3[w] & now.ended & (low_3[w] == now.end)),
                    bound.landing.eq(
                        Cat(
                            here_3[w] & at_end & on,
                            *(
                                (low_3[w] == p - 1) & (inside[w] | in_next)
                                for p in range(1, words)
                            ),
                            at_end & in_next,
                        )
                    ),
                    bound.cut.eq(Mux(inside[w] | on, low_3[w] + 1, 0)),
                    bound.near.eq(later & one_3[w]),
                    bound.far.eq(later & ~one_3[w]),
                    bound.beats.eq(beats_3[w]),
                    same[w].eq(inside[w] & now.stay.bit_select((low_3[w] + 1)[:bits], 1)),
                    other[w].eq(on & Mux(at_end, here_3[w], there_3[w])),
                ]
        with m.If(shift):
            m.d.sync += [
                beat[4].active.eq(whole | stops),
                beat[4].on.eq(on),
                beat[4].void.eq(now.ended & now.checksum.bit_select(now.end, 1)),
                beat[4].close.eq(stops | (whole & now.last)),
                beat[4].cut.eq(Mux(stops, now.end + 1, words)),
                beat[4].count.eq(
                    any_of(Mux(used[w] & ~used[w + 1], w + 1, 0) for w in range(words))
                ),
                self.begin.eq(now.begin),
                self.begin_at.eq(any_of(Mux(now.begin[w], w, 0) for w in range(words))),
                self.begin_stay.eq((now.begin & now.stay).any()),
            ]
        m.d.comb += self.stay.eq(beat[4].stay)

        # Stage 5: all that the walker reads.
        with m.If(shift):
            m.d.sync += scanned.bounds.eq(bounds)
            for w in range(words):
                m.d.sync += scanned.bounds[w].stay.eq(
                    same[w] | (other[w] & beat[3].stay.bit_select(bounds[w].cut, 1))
                )
        m.d.comb += [
            scanned.window.eq(Cat(beat[k].data for k in (5, 4, 3, 2, 1))),
            *(scanned[name].eq(beat[5][name]) for name in passed),
        ]
        return m
