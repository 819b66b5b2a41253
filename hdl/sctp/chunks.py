"""Computes for every word of a beat what would follow if an SCTP chunk began there.

The walker finds out later which words chunks really begin at.
"""

from typing import Any, NamedTuple

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import any_of
from ..spec.sctp import COMMON_HEADER, ChunkType
from .frame import FrameBeat

__all__ = ["ChunkBound", "ChunkScan", "HEADER_WORDS", "ScannedBeat"]

#: Words of a chunk that are read: the header of a DATA chunk, the DDP-SSN, the longer DDP header.
HEADER_WORDS = 9


class ChunkBound(data.StructLayout):
    """The facts about a chunk, if it begins at a given word of the beat.

    Members
    -------
    stay : 1
        In the beat where the next chunk or frame begins, the walker has more to do: another chunk
        follows in that beat, or the frame ends with it.
    closes : 1
        The chunk and the packet end together, in this beat.
    landing : words + 1
        One-hot: where the next chunk begins, in this beat or in the next one. The highest bit: the
        chunk fills the next beat and ends with it. All 0 if the chunk is longer.
    cut : range(words)
        The word where the next chunk begins, in whichever beat.
    near, far : 1
        The chunk fills exactly one, or several beats before the one where it ends.
    beats
        The number of beats that it fills.
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
    """A scanned beat, with the words after it that a chunk's header may reach into.

    Members
    -------
    window : 32 * (words + HEADER_WORDS - 1)
        This beat's words and those after it.
    bounds : ArrayLayout(ChunkBound, words)
        One for each word.
    body : words
        1 for each word of the packet, and for words before it in the beat where it begins.
    active : 1
        The packet has words in this beat, or begins in it.
    on : 1
        The packet continues in the next beat.
    ended : 1
        The packet ends in this beat, after word ``end`` : range(words).
    void : 1
        The packet ends in this beat and has no chunks.
    sctp : 1
        The packet begins in this beat, at word ``at`` : range(words).
    odd : 1
        With ``sctp``: the packet's length is 0 or not a multiple of four octets.
    checksum : words
        One-hot: the word with the packet's checksum.
    close : 1
        The packet ends in this beat, or the frame ends before the packet does.
    cut : range(words + 1)
        With ``close``: the word after the packet's last one.
    last : 1
        The frame ends with this beat.
    count : range(words + 1)
        With ``last``: words that hold octets.
    ends : 2
        With ``last``: octets in the last of these words, less one.
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
                "odd": 1,
                "at": range(words),
                "checksum": words,
                "close": 1,
                "cut": range(words + 1),
                "last": 1,
                "count": range(words + 1),
                "ends": 2,
            }
        )


class _Reach(data.StructLayout):
    """The extent of a chunk.

    Members
    -------
    here, there : 1
        The chunk ends in the beat where it begins, or in the next one.
    low : range(words)
        Words of the chunk in the beat where it ends, less one. If it begins in the same beat,
        counted from that beat's first word.
    beats
        Beats that the chunk fills between the two, if it ends later.
    """

    def __init__(self, words):
        bits = words.bit_length() - 1
        super().__init__({"here": 1, "there": 1, "low": bits, "beats": 14 - bits})


class _Rest(data.StructLayout):
    """The rest of the packet.

    Members
    -------
    active : 1
        The packet has words in this beat, or begins in it.
    left : 15
        Words from the beat's first one to the packet's last one, less one.
    more : 1
        The packet continues after this beat.
    """

    def __init__(self):
        super().__init__({"active": 1, "left": 15, "more": 1})


class _Enclosed(NamedTuple):
    """A beat and the extents of its chunks, compared with the packet's end.

    ``whole``: the packet goes on after this beat. ``stops``: it ends here. For a chunk that begins
    at each word, ``inside``: its end is in this beat, before the packet's; ``later``: its extent,
    ``one`` beat further.
    """

    whole: Any
    stops: Any
    inside: Any
    later: Any
    one: Any


class ChunkScan(wiring.Component):
    """Scans the beats of frames for chunk boundaries (RFC 9260 section 3.2).

    For every word, the block computes the facts of a chunk that begins there, without knowing where
    chunks really begin: only a chunk's type and length decide where it ends. The walker then only
    selects.

    A beat is output once the five beats after it, or the rest of the frame, have arrived, because a
    header may reach into four of them.

    Latency: 6 cycles, plus the time until five more beats or the frame's last have arrived.
    Throughput: one beat per cycle. Reset: empty.
    Errors: a chunk shorter than its header, or a DATA chunk without user data, is output as longer
    than any packet. A packet whose length is 0 or not a multiple of four octets is output as longer
    than any frame. In both cases, no chunk ends where the packet does.

    Members
    -------
    i : In(stream.Signature(FrameBeat(width)))
    o : Out(ScannedBeat(words))
    valid : Out(1)
        There is a beat in ``o``. Without one, the packet's fields say that it has no words.
    go : In(1)
        The walker can take a beat.
    hold : In(1)
        The walker has more to do in the beat in ``o``.
    turn : Out(1)
        The walker takes a step in the beat in ``o``, if any; without ``hold`` the next beat, if
        any, replaces it.
    begin : Out(words), begin_at : Out(range(words)), begin_stay : Out(1)
        For the next beat: where a packet's first chunk begins in it, one-hot and as a number, and
        that chunk's ``stay``; 0 if none begins.
    stay : Out(words)
        For the next beat: with a chunk that begins at this word, the walker would stay in the beat.
    busy : Out(1)
        The block holds a beat.
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
        # All stages shift together, and only with a beat or after a frame's last one: so a beat's
        # successors in its frame follow it without gaps.
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
            with m.If(self.i.valid):
                m.d.sync += between.eq(self.i.payload.last)
        reach, rest = self._measure(m, shift, beat)
        self._bound(m, shift, beat, reach, rest)
        m.d.comb += [
            scanned.window.eq(Cat(beat[k].data for k in (5, 4, 3, 2, 1))),
            *(scanned[name].eq(beat[5][name]) for name in passed),
        ]
        return m

    def _measure(self, m, shift, beat):
        """Stages 0 to 2: compute the extent of a chunk from each word, and of the packet."""
        words = self.config.words
        bits = words.bit_length() - 1

        # Stage 0: the beat, and as numbers where its packet begins.
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
                beat[0].ends.eq(arriving.ends),
                beat[0].sctp.eq(sctp.any()),
                beat[0].at.eq(any_of(Mux(sctp[w], w, 0) for w in range(words))),
                lead.eq(any_of(Mux(sctp[w], C(w - 1, lead.shape()), 0) for w in range(words))),
                octets.eq(arriving.octets),
            ]

        # Stage 1: the words of the checksum and the first chunk. For a chunk that begins at word w,
        # ``past``: its words in later beats, less one.
        header = Signal(words)  # of beat 0
        before = Signal(COMMON_HEADER // 4)  # the same, for the words before beat 0
        whole = Signal(15)  # words of the packet, and those before it, less one
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
                whole.eq(Mux(odd, -1, octets[2:] + lead)),
                beat[1].odd.eq(odd),
            ]
            for w in range(words):
                word = beat[0].data.word_select(w, 32)
                length = Cat(word[24:], word[16:24])
                # A length that is not a multiple of four octets is padded: (length + 3) >> 2 words.
                m.d.sync += past[w].eq((length + (3 - 4 * (words + 1 - w)))[2:])
                # A DATA chunk has more than 16 octets, any chunk more than 3.
                is_data = word[:8] == ChunkType.DATA
                few = ~length[5:].any() & ~(length[4] & length[:4].any())
                m.d.sync += bad[w].eq(~length[2:].any() | (is_data & few))

        # Stage 2: the extents of the packet and of the chunks.
        rest = Signal(_Rest())
        reach = Signal(data.ArrayLayout(_Reach(words), words))
        with m.If(shift):
            with m.If(beat[1].sctp):
                m.d.sync += [
                    rest.active.eq(1), rest.left.eq(whole), rest.more.eq(whole[bits:].any()),
                ]
            with m.Else():
                m.d.sync += [
                    rest.active.eq(rest.active & rest.more & ~beat[2].last),
                    rest.left.eq(rest.left - words),
                    rest.more.eq(rest.left[bits + 1 :].any()),
                ]
            for w in range(words):
                m.d.sync += [
                    reach[w].here.eq(past[w][-1] & ~bad[w]),
                    reach[w].there.eq(~past[w][bits:].any() & ~bad[w]),
                    reach[w].low.eq(past[w][:bits]),
                    reach[w].beats.eq(past[w][bits:14] | bad[w].replicate(14 - bits)),
                ]
        return reach, rest

    def _enclose(self, m, shift, beat, reach, rest):
        """Stage 3: compares the end of each chunk with the packet's end."""
        words = self.config.words
        bits = words.bit_length() - 1

        # The packet's end with respect to the beat, and which chunks would have another
        # one after them in the beat.
        whole = Signal()  # the packet has all words of the beat from ``at`` on, and more
        stops = Signal()
        inside = Signal(words)
        later = Signal.like(reach)
        one = Signal(words)
        end = rest.left[:bits]
        body = rest.active.replicate(words) & Cat(rest.more | (w <= end) for w in range(words))
        within = Cat(
            chunk.here & rest.active & Mux(rest.more, ~chunk.low.all(), chunk.low < end)
            for chunk in reach
        )
        with m.If(shift):
            m.d.sync += [
                whole.eq(rest.active & rest.more),
                stops.eq(rest.active & ~rest.more),
                inside.eq(within),
                later.eq(reach),
                one.eq(Cat(chunk.beats == 1 for chunk in reach)),
                beat[3].body.eq(body),
                beat[3].end.eq(end),
                beat[3].ended.eq(
                    rest.active & ~rest.more & beat[2].used.bit_select(end, 1)
                ),
                beat[3].begin.eq(beat[2].begin & body),
                beat[3].stay.eq(within | (body & beat[2].last.replicate(words))),
            ]
        return _Enclosed(whole, stops, inside, later, one)

    def _bound(self, m, shift, beat, reach, rest):
        """Stages 3 to 5: compare the extents of the chunks with the extent of the packet."""
        words = self.config.words
        bits = words.bit_length() - 1

        whole, stops, inside, later, one = self._enclose(m, shift, beat, reach, rest)

        # Stage 4: the bounds.
        now = beat[3]
        used = Cat(now.used, 0)
        on = whole & ~now.last
        bounds = Signal.like(self.o.bounds)
        same, other = Signal(words), Signal(words)  # the next chunk begins in this beat; in another
        for w, (bound, chunk) in enumerate(zip(bounds, later, strict=True)):
            in_next = chunk.there & on
            behind = on & ~chunk.here & ~chunk.there
            at_end = chunk.low.all()
            with m.If(shift):
                m.d.sync += [
                    bound.closes.eq(chunk.here & now.ended & (chunk.low == now.end)),
                    bound.landing.eq(
                        Cat(
                            chunk.here & at_end & on,
                            *(
                                (chunk.low == p - 1) & (inside[w] | in_next)
                                for p in range(1, words)
                            ),
                            at_end & in_next,
                        )
                    ),
                    bound.cut.eq(Mux(inside[w] | on, chunk.low + 1, 0)),
                    bound.near.eq(behind & one[w]),
                    bound.far.eq(behind & ~one[w]),
                    bound.beats.eq(chunk.beats),
                    same[w].eq(inside[w] & now.stay.bit_select((chunk.low + 1)[:bits], 1)),
                    other[w].eq(on & Mux(at_end, chunk.here, chunk.there)),
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

        # Stage 5: the bounds, combined with facts of the beat after.
        with m.If(shift):
            m.d.sync += self.o.bounds.eq(bounds)
            for w in range(words):
                m.d.sync += self.o.bounds[w].stay.eq(
                    same[w] | (other[w] & beat[3].stay.bit_select(bounds[w].cut, 1))
                )
