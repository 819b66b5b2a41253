"""Frames ULPDUs as FPDUs: length, padding, markers and CRC (RFC 5044 section 4).

The data's way::

    heads, i ─ LengthPrefix ─ MarkerInserter ┬ queue ──────────┐
                                             └ Crc32c ─ queue ─┴ o
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.leaving import SentBeat, SentRecord
from ..dma.rotate import Rotate
from ..lib.crc32c import Crc32c
from ..lib.credits import Credits
from ..lib.stream import Beat, Skid, Stage, Store, copies, delayed
from .intake import LlpSettings

__all__ = ["FpduHead", "Framer"]

#: Words of 32 bits from one marker to the next, the marker included (RFC 5044 section 4.3).
SPACING = 128
#: Beats that the output queue holds; more than the cycles from a beat's credit to its CRC.
QUEUE = 32


class FpduHead(data.StructLayout):
    """The settings and the numbers of one FPDU, which come beside its ULPDU.

    Members
    -------
    length : 16
        Octets of the ULPDU, 1 or more. With markers, few enough that no marker is 2**16 octets
        after the ULPDU_Length field: 64,512 octets always are.
    settings : LlpSettings()
        Whether the stream has CRCs and markers.
    phase : 7
        Position of the FPDU's first octet in the stream after start-up, in words of four octets,
        modulo 128.
    stream : 16
    sequence : 32
        LLP sequence number of the FPDU's first octet.
    record : SentRecord()
    """

    def __init__(self):
        super().__init__({
            "length": 16, "settings": LlpSettings(), "phase": 7,
            "stream": 16, "sequence": 32, "record": SentRecord()})


class _Words(data.StructLayout):
    """One beat of an FPDU in words of 32 bits. Octets after the last word are undefined.

    Members
    -------
    data : width
    words : range(width // 32 + 1)
        Words of the FPDU in the beat; all, except on the last beat.
    first, last : 1
    settings, at, gap, near, pointer
        Of the FPDU, valid on the first beat: the first marker stands ``gap`` beats later, at word
        ``at`` (``near``: in this beat). ``pointer`` is its FPDUPTR, or -4 (modulo 2**16) for a
        marker before the length.
    """

    def __init__(self, width):
        words = width // 32
        super().__init__({
            "data": width, "words": range(words + 1), "first": 1, "last": 1,
            "settings": LlpSettings(), "at": range(words), "gap": range(SPACING // words),
            "near": 1, "pointer": 16})


class LengthPrefix(wiring.Component):
    """Puts the ULPDU_Length before a ULPDU, and PAD and four octets of zero after it.

    Latency: 1 cycle. Throughput: one beat per cycle; a packet takes as many cycles as it has beats
    at the output. Reset: the next beat begins a packet. Errors: none.

    Members
    -------
    heads : In(stream.Signature(FpduHead()))
        Taken together with a packet's first beat.
    i : In(stream.Signature(Beat(width)))
    o : Out(stream.Signature(_Words(width)))
    """

    def __init__(self, width):
        self.width = width
        super().__init__({
            "heads": In(stream.Signature(FpduHead())),
            "i": In(stream.Signature(Beat(width))),
            "o": Out(stream.Signature(_Words(width))),
        })

    def elaborate(self, platform):
        m = Module()
        words, octets = self.width // 32, self.width // 8
        head, beat, out = self.heads.payload, self.i.payload, self.o.payload
        first = Signal(init=1)
        # The two octets that did not fit in the last beat, and the words of a beat that has nothing
        # else but the CRC.
        carry, rest = Signal(16), Signal(2)
        advance, takes, begins = Signal(), Signal(), Signal()
        filled = Signal(range(words + 2))  # words with the length, the octets so far, and PAD
        ends_here = Signal()
        m.d.comb += [
            advance.eq(~self.o.valid | self.o.ready),
            begins.eq(first & self.i.valid & ~rest.any()),
            takes.eq(self.i.valid & (~first | self.heads.valid) & ~rest.any()),
            self.i.ready.eq(advance & ~rest.any() & (~first | self.heads.valid)),
            self.heads.ready.eq(advance & begins),
            filled.eq((beat.count + 5) >> 2),
            ends_here.eq(beat.last & (filled < words)),
        ]
        octet_mask = Cat((at < beat.count).replicate(8) for at in range(octets))
        masked = beat.data & octet_mask
        length = Cat(head.length[8:], head.length[:8])
        until = Signal(7)  # words before the first marker
        m.d.comb += until.eq(-head.phase)
        with m.If(advance):
            m.d.sync += [
                self.o.valid.eq(rest.any() | takes),
                # A beat of PAD and CRC, or of the CRC alone, has two words at most.
                out.data.eq(Cat(
                    Mux(first & ~rest.any(), length, carry),
                    Mux(rest.any(), 0, masked[:48]), masked[48:])),
                out.words.eq(Mux(rest.any(), rest, Mux(ends_here, filled + 1, words))),
                out.last.eq(rest.any() | ends_here),
                out.first.eq(first & ~rest.any()),
                out.settings.eq(head.settings),
                Cat(out.at, out.gap).eq(until),
                out.near.eq(until < words),
                out.pointer.eq(Mux(head.phase.any(), until << 2, -4)),
            ]
            with m.If(rest.any()):
                m.d.sync += rest.eq(0)
            with m.Elif(takes):
                m.d.sync += [
                    carry.eq(masked[-16:]),
                    first.eq(beat.last),
                    # The CRC alone, or PAD and the CRC.
                    rest.eq(Mux(beat.last & ~ends_here, Mux(filled == words, 1, 2), 0)),
                ]
        return m


class _Insertion(data.StructLayout):
    """The decisions of :class:`MarkerInserter` for one beat, made before its data moves.

    Members
    -------
    shift : range(N + 1)
        The beat begins with this number of words that are left from the last one.
    takes : 1
        A new beat follows them.
    available : range(2 * N + 1)
        Words that are left, and those of the new beat.
    near, at, pointer
        A marker with this FPDUPTR belongs to word ``at`` of the beat, if the FPDU has more words.
    ends : 1
        These are the last words of the FPDU.
    more : 1
        They do not all fit.
    first, crc : 1
        Of the output beat.
    """

    def __init__(self, words):
        super().__init__({
            "shift": range(words + 1), "takes": 1, "available": range(2 * words + 1), "near": 1,
            "at": range(words), "pointer": 16, "ends": 1, "more": 1, "first": 1, "crc": 1})


class MarkerInserter(wiring.Component):
    """Inserts markers in FPDUs whose streams have them.

    A marker stands at every 512th octet of the stream: 16 bits of zero, then the distance from the
    FPDU's ULPDU_Length field to the marker. A marker just before that field belongs to the FPDU and
    has distance 0; one just after the FPDU's last octet belongs to the next FPDU.

    A beat has room for one marker at most. Each marker shifts the words after it by one; the words
    that no longer fit wait for the next beat.

    Latency: ``latency`` cycles; 2 for a beat of a stream without markers while no beat that takes
    longer is inside. Throughput: one beat per cycle; a packet takes as many cycles as it has beats
    at the output. Reset: the next beat begins a packet. Errors: none.

    Members
    -------
    i : In(stream.Signature(_Words(width)))
    go : In(1)
        A beat may be output in ``latency`` cycles, or before.
    begun : Out(1)
        A beat will be output.
    o : Out(stream.Signature(_Words(width), always_ready=True))
        ``settings.crc`` is valid on all beats; the marker's members have no meaning.
    """

    def __init__(self, width):
        self.width = width
        self._rotate = Rotate(width // 32, 4)
        super().__init__({
            "i": In(stream.Signature(_Words(width))),
            "go": In(1),
            "begun": Out(1),
            "o": Out(stream.Signature(_Words(width), always_ready=True)),
        })

    @property
    def latency(self):
        """The most cycles from a beat to the beat that begins with its words."""
        return 4 + self._rotate.stages

    def elaborate(self, platform):
        m = Module()
        words = self.width // 32
        m.submodules.rotate = rotate = self._rotate
        valid = Signal(self.latency)
        plan0, plan1 = (Signal(_Insertion(words), name=f"plan{n}") for n in range(2))
        data1 = Signal(self.width, reset_less=True)
        hurries = Signal()
        issue, plain = self._decide(m, plan0)
        m.d.comb += [
            self.begun.eq(issue),
            hurries.eq(issue & plain & ~valid[1:].any()),
            valid[0].eq(issue & ~hurries),
        ]
        m.d.sync += [
            valid[1:].eq(valid),
            plan1.eq(plan0),
            data1.eq(self.i.payload.data),
        ]

        # Stage 1: where the marker is, and how many words leave. The new beat's words are rotated
        # by as many words as there were markers.
        out1, marks2 = Signal(self.o.payload.shape()), Signal()
        marks1 = plan1.near & (~plan1.ends | (plan1.at < plan1.available))
        m.d.comb += [
            rotate.amount.eq(plan1.shift),
            out1.words.eq(Mux(plan1.ends & ~plan1.more, plan1.available + marks1, words)),
            out1.first.eq(plan1.first),
            out1.last.eq(plan1.ends & ~plan1.more),
            out1.settings.crc.eq(plan1.crc),
        ]
        m.d.sync += [rotate.i.eq(data1), marks2.eq(marks1)]

        # The words without the marker, and those that wait for the next beat.
        stages = rotate.stages
        turned, kept = rotate.o, Signal(self.width, reset_less=True)
        whole = Signal(self.width, reset_less=True)
        marks = delayed(m, stages, marks2, "marks")
        at = delayed(m, stages + 1, plan1.at, "at")
        takes = delayed(m, stages + 1, plan1.takes, "takes")
        old, here, after = (Signal(words, name=name) for name in ("old", "here", "after"))
        m.d.sync += [
            # One-hot up to the shift: these words are left from the last beat.
            old.eq(Cat(k < delayed(m, stages, plan1.shift, "shift") for k in range(words))),
            whole.eq(Cat(
                Mux(old[k], kept.word_select(k, 32), turned.word_select(k, 32))
                for k in range(words))),
            here.eq(Cat(marks & (at == k) for k in range(words))),
            after.eq(Cat(marks & (at < k) for k in range(words))),
        ]
        with m.If(valid[2 + stages] & takes):
            m.d.sync += kept.eq(Mux(marks, turned.rotate_left(32), turned))

        # The output; without markers, that of stage 1.
        quick = copies(m, hurries, min(words, 4), name="quick")
        pointer = delayed(m, stages + 2, plan1.pointer, "pointer")
        marker = Cat(C(0, 16), pointer[8:], pointer[:8])
        out = self.o.payload
        m.d.sync += [
            self.o.valid.eq(valid[-1] | quick[0]),
            out.eq(Mux(quick[0], out1, delayed(m, stages + 2, out1, "out"))),
            *(out.data.word_select(k, 32).eq(Mux(
                quick[k % len(quick)], data1.word_select(k, 32), Mux(here[k], marker, Mux(
                    after[k], whole.word_select(max(k - 1, 0), 32), whole.word_select(k, 32)))))
              for k in range(words)),
        ]
        return m

    def _decide(self, m, plan):
        """Decides about the beat that leaves next.

        Returns whether one leaves, and whether its FPDU has no markers.
        """
        words = self.width // 32
        beat = self.i.payload
        shift = Signal(range(words + 1))
        # ``full``: a whole beat is left. ``ending``: the FPDU's last words are left.
        full, ending, left = Signal(), Signal(), Signal()
        settings, near, at = Signal(LlpSettings()), Signal(), Signal(range(words))
        gap, pointer = Signal(range(SPACING // words)), Signal(16)
        now = Signal(_Words(self.width))
        begins, issue, zero = Signal(), Signal(), Signal()
        with_marker = Signal(range(2 * words + 2))
        m.d.comb += [
            left.eq(full | ending),
            begins.eq(beat.first & ~left),
            issue.eq(self.go & (left | self.i.valid)),
            self.i.ready.eq(self.go & ~left),
            now.settings.eq(Mux(begins, beat.settings, settings)),
            now.near.eq(Mux(begins, beat.near & beat.settings.markers, near)),
            now.at.eq(Mux(begins, beat.at, at)),
            now.gap.eq(Mux(begins, beat.gap, gap)),
            now.pointer.eq(Mux(begins, beat.pointer, pointer)),
            now.words.eq(Mux(left, 0, beat.words)),
            zero.eq(begins & ~beat.gap.any() & ~beat.at.any()),
            plan.shift.eq(shift),
            plan.takes.eq(~left),
            plan.available.eq(shift + now.words),
            plan.near.eq(now.near),
            plan.at.eq(now.at),
            plan.pointer.eq(Mux(zero, 0, now.pointer)),
            plan.ends.eq(ending | (beat.last & ~full)),
            # A marker that does not fit in the last beat goes into the one after it.
            with_marker.eq(shift + now.words + now.near),
            plan.more.eq((plan.available > words) | ((plan.available == words) & now.near)),
            plan.first.eq(begins),
            plan.crc.eq(now.settings.crc),
        ]
        with m.If(issue):
            m.d.sync += [
                settings.eq(now.settings),
                at.eq(now.at),
                gap.eq(now.gap - 1),
                near.eq(now.settings.markers & (now.gap == 1)),
                pointer.eq(Mux(now.near, now.pointer + 4 * SPACING, now.pointer)),
                ending.eq(plan.ends & plan.more),
                full.eq(~plan.ends & (shift == words - 1) & now.near),
                shift.eq(Mux(
                    plan.ends, Mux(plan.more, with_marker - words, 0),
                    Mux(full, 0, shift + now.near))),
            ]
        return issue, ~now.settings.markers


class Framer(wiring.Component):
    """Frames ULPDUs: each becomes a packet that is one FPDU.

    PAD is zero. Without CRCs, the CRC field is zero too.

    Latency: ``latency`` cycles from the last beat of a ULPDU to its FPDU's, and fewer as in
    :class:`MarkerInserter`; a beat before it takes fewer, because it needs no CRC. Throughput: one
    beat per cycle; a ULPDU takes as many cycles as its FPDU has beats, which is no fewer than its
    own. Reset: empty. Errors: none; a beat's ``error`` is ignored.

    Parameters
    ----------
    width : int
        Bits in a beat: 64, 128, 256 or 512.

    Members
    -------
    heads : In(stream.Signature(FpduHead()))
        One for each ULPDU, in the same order; taken with the ULPDU's first beat.
    i : In(stream.Signature(Beat(width)))
        ULPDUs, without damaged ones, of the length that the head says.
    o : Out(stream.Signature(SentBeat(width)))
    """

    def __init__(self, width):
        self.width = width
        self._inserter = MarkerInserter(width)
        self._crc = Crc32c(width, granule=4)
        super().__init__({
            "heads": In(stream.Signature(FpduHead())),
            "i": In(stream.Signature(Beat(width))),
            "o": Out(stream.Signature(SentBeat(width))),
        })

    @property
    def latency(self):
        """The most cycles from the last beat of a ULPDU to the last beat of its FPDU."""
        return 1 + self._inserter.latency + self._crc.latency + 1

    def elaborate(self, platform):
        m = Module()
        words = self.width // 32
        m.submodules.prefix = prefix = LengthPrefix(self.width)
        m.submodules.inserter = inserter = self._inserter
        m.submodules.crc = crc = self._crc
        beats = data.StructLayout({
            "data": self.width, "words": range(words + 1), "last": 1, "crc": 1})
        m.submodules.queue = queue = Store(beats, depth=QUEUE, direct=True)
        m.submodules.sums = sums = Store(32, depth=QUEUE, direct=True)
        known = data.StructLayout({"stream": 16, "sequence": 32, "record": SentRecord()})
        m.submodules.known = waiting = Store(known, depth=2 * QUEUE)
        m.submodules.of_packet = of_packet = Skid(known)
        m.submodules.stage = stage = Stage(SentBeat(self.width))
        m.submodules.credits = credits = Credits(QUEUE)
        wiring.connect(m, wiring.flipped(self.heads), prefix.heads)
        wiring.connect(m, wiring.flipped(self.i), prefix.i)
        wiring.connect(m, prefix.o, inserter.i)
        wiring.connect(m, waiting.o, of_packet.i)
        wiring.connect(m, stage.o, wiring.flipped(self.o))

        # A beat begins only while the queue is sure to have room for it.
        m.d.comb += [
            credits.open.eq(1),
            credits.take.eq(inserter.begun),
            credits.give.eq(queue.o.valid & queue.o.ready),
            inserter.go.eq(credits.ok),
        ]
        m.d.sync += [
            waiting.i.valid.eq(self.heads.valid & self.heads.ready),
            *(waiting.i.payload[name].eq(self.heads.payload[name]) for name in known.members),
        ]

        # The CRC covers all words before the last one, which takes the result. Only the last beat
        # waits for it.
        beat, left, ends = inserter.o.payload, queue.o.payload, Signal(crc.latency)
        m.d.sync += ends.eq(Cat(inserter.o.valid & beat.last, ends))
        out, may = stage.i.payload, Signal()
        m.d.comb += [
            crc.i.valid.eq(inserter.o.valid),
            crc.i.payload.data.eq(beat.data),
            crc.i.payload.first.eq(beat.first),
            crc.i.payload.cut.eq(beat.words - 1),
            crc.i.payload.close.eq(beat.last),
            crc.i.payload.end.eq(beat.words),
            sums.i.valid.eq(ends[-1]),
            sums.i.payload.eq(crc.o.payload.crc),
            queue.i.valid.eq(inserter.o.valid),
            *(queue.i.payload[name].eq(beat[name]) for name in ("data", "words", "last")),
            queue.i.payload.crc.eq(beat.settings.crc),
            may.eq(of_packet.o.valid & (~left.last | sums.o.valid)),
            stage.i.valid.eq(queue.o.valid & may),
            queue.o.ready.eq(stage.i.ready & may),
            sums.o.ready.eq(queue.o.valid & queue.o.ready & left.last),
            out.beat.data.eq(left.data | Cat(
                Mux(left.last & left.crc & (left.words == k + 1), sums.o.payload, 0)
                for k in range(words))),
            out.beat.count.eq(left.words << 2),
            out.beat.last.eq(left.last),
            *(out[name].eq(of_packet.o.payload[name]) for name in known.members),
            of_packet.o.ready.eq(sums.o.ready),
        ]
        return m
