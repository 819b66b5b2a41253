"""Finds the FPDUs in the octets of MPA streams (RFC 5044)."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.segment import HEADER_WORDS, Segment
from ..dma.buffer import Store
from ..lib.crc32c import Slice
from ..lib.stream import any_of
from .intake import KnownBeat
from .scan import Bound, Landing, MpaScan

__all__ = ["Ending", "MpaWalker"]


class Ending(data.StructLayout):
    """An FPDU's end, before its digest is known.

    Members
    -------
    framing : 1
        The packet ended inside the FPDU.
    crc : 1
        Its stream uses CRCs.
    beat : range(beats of the buffer), words : range(words + 1)
        The word of the packet buffer after the FPDU's last: ``words`` after the first word of
        ``beat``.
    """

    def __init__(self, config):
        super().__init__({
            "framing": 1, "crc": 1, "beat": range(config.buffer_octets // config.octets),
            "words": range(config.words + 1),
        })


class _Step(data.StructLayout):
    """The meaning of a beat for the FPDUs in it, one-hot, and where the unfinished FPDU begins.

    Members
    -------
    fresh : 1
        The first FPDU begins at word 0.
    start : 1
        An FPDU ends at word ``cut`` and the next one begins there.
    close : 1
        An FPDU ends with the beat's last octet.
    broken : 1
        The packet ends inside an FPDU.
    on : 1
        An FPDU fills the whole beat and continues.
    cut : range(words)
    inside : 1
        With ``start``: the FPDU that begins also ends in this beat, and another one begins.
    """

    def __init__(self, words):
        super().__init__({
            "fresh": 1, "start": 1, "close": 1, "broken": 1, "on": 1, "cut": range(words),
            "inside": 1})


class MpaWalker(wiring.Component):
    """Walks over a stream's beats, from FPDU to FPDU.

    In each cycle, the walker handles one FPDU that begins in the current beat, or moves on to the
    next beat. A beat is written to the packet buffer once, as received, and is given to the CRC
    unit once for each FPDU that begins in it. An FPDU may begin at any word. A packet consists of
    whole FPDUs of one stream; the first one begins with the packet.

    Latency: 9 cycles from a beat to its slice, 12 to the segments that begin in it, once the beats
    that their headers reach into have arrived. Throughput: one beat per cycle, or one FPDU per
    cycle where more than one begins in a beat. Reset: empty; unfinished FPDUs are forgotten.
    Errors: if a packet ends inside an FPDU, the FPDU's ending has ``framing`` set. An FPDU that
    does not fit the packet buffer is marked ``oversize``, and its octets are not stored.

    Members
    -------
    i : In(stream.Signature(KnownBeat(config)))
    go : In(1)
        There is room for one more beat and one more segment in the next cycle.
    store : Out(stream.Signature(Store, always_ready=True))
    slices : Out(stream.Signature(Slice(width, 4), always_ready=True))
        To the CRC unit.
    segments : Out(stream.Signature(Segment, always_ready=True))
    endings : Out(stream.Signature(Ending, always_ready=True))
        In step with ``slices``: together with a slice with ``close``, one cycle after one with
        ``tail``.
    beats : Out(range(beats of the buffer))
        Address at which the next beat will be stored.
    begun : Out(1)
        A segment begins; it will be output on ``segments``.
    busy : Out(1)
        The block holds beats.
    """

    def __init__(self, config):
        self.config = config
        beats = config.buffer_octets // config.octets
        super().__init__(
            {
                "i": In(stream.Signature(KnownBeat(config))),
                "go": In(1),
                "store": Out(stream.Signature(Store(config), always_ready=True)),
                "slices": Out(stream.Signature(Slice(config.width, 4), always_ready=True)),
                "segments": Out(stream.Signature(Segment(config), always_ready=True)),
                "endings": Out(stream.Signature(Ending(config), always_ready=True)),
                "beats": Out(range(beats)),
                "begun": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words = self.config.words
        m.submodules.scan = scan = MpaScan(self.config)
        m.submodules.headers = headers = _Headers(self.config)
        wiring.connect(m, wiring.flipped(self.i), scan.i)
        wiring.connect(m, headers.o, wiring.flipped(self.segments))
        beat = scan.o

        # The loop. ``step``: the meaning of this beat for the unfinished FPDU. ``bound``: the facts
        # of the FPDU that begins in it. ``stay``: the beat has another FPDU. ``following`` is the
        # step after this one, in this beat or in the next, and ``at`` is, one-hot, the word where
        # the FPDU of that step has its header: one select of the bounds gives the step after that.
        # Whether a beat stays decides what the scan moves, so it is computed one step ahead.
        step = Signal(_Step(words))
        bound = Signal(Bound(words))
        following = Signal(_Step(words), init={"fresh": 1})
        at = Signal(words + 1)
        not_fresh = Signal()  # the inverse, for the enables that it drives
        lo = Signal(range(words))
        again = Signal()
        starts, stay, closing = Signal(), Signal(), Signal()

        fire, repeats, advance, stays = Signal(), Signal(), Signal(), Signal()
        # A beat stays if it has an FPDU inside and ``may_stay``. With ``must_stay`` it stays in any
        # case, because it has not been walked yet.
        may_stay, must_stay = Signal(), Signal()
        fires = scan.offers & self.go
        m.d.sync += [
            fire.eq(fires),
            repeats.eq(fires & stays),
            may_stay.eq(stays | scan.enters | (scan.follows & self.go)),
            must_stay.eq(stays & ~(fires | scan.enters)),
        ]
        m.d.comb += [
            advance.eq(scan.coming | repeats),
            scan.goes.eq(self.go & ~stays),
            scan.stays.eq(stays),
        ]

        ahead = scan.ahead
        passing, passed = self._pass(m, following, bound, ahead)
        # The FPDU that begins.
        chosen = Signal(Bound(words))
        m.d.comb += chosen.eq(any_of([
            *(Mux(at[w], ahead.bounds[w].as_value(), 0) for w in range(words + 1)),
            Mux(not_fresh, 0, Mux(
                ahead.first, ahead.bounds[1].as_value(), ahead.bounds[0].as_value())),
        ]))
        fresh = chosen.tail | chosen.broken | following.close | following.broken
        inside = following.inside | (following.fresh & ahead.inside)
        m.d.comb += stays.eq(must_stay | (may_stay & inside))
        m.d.sync += stay.eq(stays)
        with m.If(advance):
            m.d.sync += [
                step.eq(following),
                starts.eq(following.fresh | following.start),
                closing.eq(following.start | following.close),
                again.eq(repeats),
                lo.eq(Mux(repeats, step.cut, 0)),
                bound.eq(chosen.as_value() | passed.as_value()),
                at.eq(chosen.landing.header | passing.header),
                following.fresh.eq(fresh),
                not_fresh.eq(~fresh),
                *(following[name].eq(chosen.landing[name] | passing[name])
                  for name in ("start", "close", "broken", "on", "cut", "inside")),
            ]

        late = self._outputs(
            m, beat, step, bound, fire=fire, stay=stay, starts=starts, closing=closing,
            again=again, lo=lo)
        m.d.comb += [
            self.begun.eq(fire & starts),
            headers.valid.eq(fire & starts),
            headers.window.eq(beat.window),
            headers.cut.eq(step.cut),
            headers.position.eq(beat.position),
            headers.beats.eq(self.beats),
            headers.stream.eq(beat.stream),
            headers.markers.eq(beat.markers),
            headers.oversize.eq(bound.oversize),
            self.busy.eq(scan.busy | headers.busy | self.slices.valid | late),
        ]
        return m

    def _outputs(self, m, beat, step, bound, *, fire, stay, starts, closing, again, lo):
        """Adds the outputs for the current beat but its header: slice, ending, stored octets.

        Returns whether an ending waits for the next cycle.
        """
        words = self.config.words
        cut, end = step.cut, beat.end
        stored = fire & ~stay & ~(step.on & bound.oversize)
        late = Signal()
        late_framing = Signal()
        late_beat, late_words = Signal.like(self.beats), Signal(range(words + 1))
        m.d.sync += [
            self.slices.valid.eq(fire),
            self.slices.payload.data.eq(beat.window[: 32 * words]),
            self.slices.payload.lo.eq(lo),
            self.slices.payload.first.eq(again),
            self.slices.payload.cut.eq(Mux(step.close, end, cut)),
            self.slices.payload.close.eq(closing),
            self.slices.payload.open.eq(starts),
            self.slices.payload.tail.eq(bound.tail),
            self.slices.payload.end.eq(end),
            # An ending at the end of the octets waits a cycle, in which no other can occur.
            late.eq(fire & (bound.tail | bound.broken | step.broken)),
            late_framing.eq(~bound.tail),
            late_beat.eq(self.beats),
            late_words.eq(end),
            self.endings.valid.eq(late | (fire & closing)),
            self.endings.payload.framing.eq(late & late_framing),
            self.endings.payload.crc.eq(beat.crc),
            self.endings.payload.beat.eq(Mux(late, late_beat, self.beats)),
            self.endings.payload.words.eq(Mux(late, late_words, Mux(step.close, end, cut))),
            # A beat in the middle of an oversize FPDU is not stored.
            self.store.valid.eq(stored),
            self.store.payload.address.eq(self.beats),
            self.store.payload.data.eq(beat.window[: 32 * words]),
        ]
        crc_late = Signal()
        m.d.sync += crc_late.eq(beat.crc)
        with m.If(late):
            m.d.sync += self.endings.payload.crc.eq(crc_late)
        with m.If(stored):
            m.d.sync += self.beats.eq(self.beats + 1)
        return late

    def _pass(self, m, following, bound, ahead):
        """Computes how an FPDU that fills the next beat meets the beat after it.

        Returns its landing there, and its remaining facts. A marker moves the FPDU's end by one
        word, which may cost a beat.
        """
        words = self.config.words
        extra = ahead.marked & bound.low[-1]
        none = Mux(extra, bound.none, bound.one)
        ends = Signal(Landing(words))
        passing = Signal(Landing(words))
        passed = Signal(Bound(words))
        m.d.comb += ends.eq(any_of(
            Mux(bound.low[j], ahead.ends[j].as_value(), 0) for j in range(words)))
        with m.If(following.on):
            with m.If(none):
                m.d.comb += passing.eq(ends)
            with m.Else():
                m.d.comb += [passing.broken.eq(ahead.last), passing.on.eq(~ahead.last)]
            m.d.comb += [
                passed.beats.eq(Mux(extra, bound.beats, bound.beats - 1)),
                passed.low.eq(Mux(ahead.marked, bound.low.rotate_left(1), bound.low)),
                passed.none.eq(none),
                passed.one.eq(Mux(extra, bound.one, bound.beats == 2)),
                passed.oversize.eq(bound.oversize),
            ]
        return passing, passed


class _Headers(wiring.Component):
    """Extracts an FPDU's header from the window in which it begins, and removes a marker from it.

    Latency: 4 cycles. Throughput: one header per cycle. Reset: empty. Errors: none.
    """

    def __init__(self, config):
        self.config = config
        super().__init__(
            {
                "valid": In(1),
                "window": In(32 * (config.words + HEADER_WORDS)),
                "cut": In(range(config.words)),
                "position": In(30),
                "beats": In(range(config.buffer_octets // config.octets)),
                "stream": In(config.stream_bits + 1),
                "markers": In(1),
                "oversize": In(1),
                "o": Out(stream.Signature(Segment(config), always_ready=True)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words = self.config.words
        position = range(self.config.buffer_octets // 4)
        carried = data.StructLayout(
            {
                "start": position,
                "sequence": 30,
                "stream": self.config.stream_bits + 1,
                "markers": 1,
                "oversize": 1,
            }
        )
        valid = Signal(3)
        side = [Signal(carried, name=f"side{k}") for k in range(3)]
        m.d.sync += [valid.eq(Cat(self.valid, valid)), self.o.valid.eq(valid[-1])]
        m.d.comb += self.busy.eq(valid.any() | self.o.valid)

        # Shift the window, first by a multiple of four words, then by words. One word more than the
        # header is kept, for the marker. Without a header nothing here switches.
        taken = HEADER_WORDS + 1
        coarse = Signal(32 * (taken + min(3, words - 1)))
        fine = Signal(2)
        exact = Signal(32 * taken, reset_less=True)
        with m.If(self.valid):
            m.d.sync += [
                coarse.eq(self.window >> (128 * self.cut[2:4])),
                fine.eq(self.cut[:2]),
                side[0].start.eq(self.beats * words + self.cut),
                side[0].sequence.eq(self.position + self.cut),
                side[0].stream.eq(self.stream),
                side[0].markers.eq(self.markers),
                side[0].oversize.eq(self.oversize),
            ]
        m.d.sync += [exact.eq(coarse >> (32 * fine)), side[1].eq(side[0]), side[2].eq(side[1])]

        # Remove the marker, if it is at word j or before: markers are at the positions of the
        # stream that are multiples of 512 octets.
        at = side[0].sequence[:7]
        phase = Signal(7)
        passed = Signal(HEADER_WORDS)
        plain = Signal(32 * HEADER_WORDS, reset_less=True)
        phase_2 = Signal(7)
        # ULPDU_Length and header take 4 words, or 5 with an untagged header.
        words_before = Signal(range(8))
        tagged = Mux(passed[0], exact.word_select(1, 32), exact)[8 * 2 + 7]
        m.d.sync += [
            phase.eq(side[0].sequence),
            # The next marker is here, or 128 - at words later.
            passed.eq(Cat(
                side[0].markers & (~at.any() | (at[3:].all() & near))
                for near in (0, at[:3].all(), at[1:3].all(), at[2] & at[:2].any(), at[2]))),
            plain.eq(
                Cat(
                    Mux(passed[j], exact.word_select(j + 1, 32), exact.word_select(j, 32))
                    for j in range(HEADER_WORDS)
                )
            ),
            words_before.eq(Mux(tagged, 4 + passed[3], 5 + passed[4])),
            phase_2.eq(phase),
        ]
        payload = self.o.payload
        m.d.sync += [
            payload.header.eq(plain),
            payload.stream.eq(side[2].stream),
            payload.sequence.eq(Cat(C(0, 2), side[2].sequence)),
            payload.start.eq(side[2].start),
            payload.payload.eq(side[2].start + words_before),
            payload.phase.eq(phase_2 + words_before),
            payload.markers.eq(side[2].markers),
            payload.oversize.eq(side[2].oversize),
        ]
        return m
