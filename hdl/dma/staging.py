"""Keeps the octets of segments that are being read, until a whole segment can leave.

The ring's rows are beats of the output. Each octet lane is a memory of its own, so that a beat from
the bus is written at any alignment in one cycle: the lanes that pass the end of a row are written
to the next row.
"""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import Response
from ..lib.blockram import BlockRam
from ..lib.credits import Credits
from ..lib.stream import Beat, Queue, Skid, Stage, Store, any_of, delayed
from .jobs import LENGTH_BITS
from .rotate import Lanes, Rotate

__all__ = [
    "HEADER_OCTETS", "TAG_BITS", "Answered", "BeatPlacer", "Burst", "Ended", "Held", "StagedHead",
    "Staging", "Written"]

#: Octets of the longest header: an untagged one (RFC 5041 section 4.3).
HEADER_OCTETS = 18
#: Bits of the number that comes back with a segment.
TAG_BITS = 25
#: Bits of a count of the bursts of a segment.
COUNT_BITS = 10
QUEUE = 16


class Burst(data.StructLayout):
    """The place of a burst in the ring.

    Members
    -------
    row : row_bits
        Row of lane 0 of the burst's first beat.
    rotate : lane
        Lanes by which its octets move up; those that wrap around go to the next row.
    first_lane, last_lane : lane
        The first octet of the first beat, the last one of the last beat.
    slot : slot_bits
        The segment's slot.
    epoch : 1
        As in :class:`~.read.ReadFence`.
    """

    def __init__(self, shape):
        super().__init__({
            "row": shape.row_bits, "rotate": shape.lane, "first_lane": shape.lane,
            "last_lane": shape.lane, "slot": shape.slot_bits, "epoch": 1})


class Answered(data.StructLayout):
    """A burst all of whose octets have come; ``failed`` (1): the bus reported an error."""

    def __init__(self, shape):
        super().__init__({"slot": shape.slot_bits, "epoch": 1, "failed": 1})


class Ended(data.StructLayout):
    """A segment's last piece was cut: ``bursts`` in all; ``refused``: it is given up."""

    def __init__(self, shape):
        super().__init__({"slot": shape.slot_bits, "bursts": COUNT_BITS, "refused": 1})


class Written(data.StructLayout):
    """Octets for the ring: lane ``n`` of ``data`` is written where ``enable[n]`` is set, to ``row``
    or, where ``above[n]`` is set, to the ``next`` row.
    """

    def __init__(self, shape):
        super().__init__({
            "row": shape.row_bits, "next": shape.row_bits, "data": shape.width,
            "above": shape.octets, "enable": shape.octets})


class StagedHead(data.StructLayout):
    """A segment that leaves: its ``tag`` (TAG_BITS), and the octets of its header and its payload,
    ``lead`` and ``length``.

    ``refused`` (1): one of its pieces was. ``failed`` (1): the bus answered with an error. In both
    cases no packet follows.
    """

    def __init__(self):
        super().__init__({
            "tag": TAG_BITS, "lead": range(HEADER_OCTETS + 1), "length": LENGTH_BITS, "refused": 1,
            "failed": 1})


class Held(data.StructLayout):
    """A segment that has its place in the ring.

    Members
    -------
    row : row_bits, rows : row_bits + 1
        Its first row, and how many it has.
    single : 1
        It has one row.
    slot : slot_bits
    header, lead, length, tag
        As in :class:`~.read.ReadSegment`.
    """

    def __init__(self, shape, segment):
        super().__init__({
            "row": shape.row_bits, "rows": shape.row_bits + 1, "single": 1,
            "slot": shape.slot_bits,
            **{name: field.shape for name, field in segment}})


class BeatPlacer(wiring.Component):
    """Writes the beats from the bus to their places in the ring.

    Latency: ``LATENCY`` cycles from a beat to its octets in the ring, ``ANSWERED`` to ``answered``:
    the octets are in the ring 3 cycles after that. Throughput: one beat per cycle, always taken.
    Reset: no beat is on its way; ``clear`` has to name every ID before its first beat comes.
    Errors: a beat whose response is not OKAY sets
    ``failed``.

    Members
    -------
    clear : In(stream.Signature(id, always_ready=True))
        No beat of a burst with this ID came before. Only while no beat comes.
    burst : In(stream.Signature({id, burst: Burst}, always_ready=True))
        A burst begins, at least two cycles before its first beat.
    r : In(stream.Signature({data, resp: 2, last: 1, id}, always_ready=True))
    returned : Out(stream.Signature(id, always_ready=True))
        The burst with this ID had its last beat.
    write : Out(stream.Signature(Written, always_ready=True))
    answered : Out(stream.Signature(Answered, always_ready=True))
    """

    LATENCY, ANSWERED = 6, 3

    def __init__(self, shape, beat):
        self.shape = shape
        super().__init__({
            "clear": In(stream.Signature(shape.id_bits, always_ready=True)),
            "burst": In(stream.Signature(data.StructLayout(
                {"id": shape.id_bits, "burst": Burst(shape)}), always_ready=True)),
            "r": In(stream.Signature(beat, always_ready=True)),
            "returned": Out(stream.Signature(shape.id_bits, always_ready=True)),
            "write": Out(stream.Signature(Written(shape), always_ready=True)),
            "answered": Out(stream.Signature(Answered(shape), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        shape, latency, answered = self.shape, self.LATENCY, self.ANSWERED
        m.submodules.bursts = bursts = memory.Memory(
            shape=Burst(shape), depth=shape.reads, init=[], attrs={"ram_style": "distributed"})
        write, read = bursts.write_port(), bursts.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(self.burst.valid),
            write.addr.eq(self.burst.payload.id),
            write.data.eq(self.burst.payload.burst),
            read.addr.eq(self.r.payload.id),
        ]

        # Stage n's registers are named with n. 1: how many beats of its burst came before.
        valid = Signal(latency)
        burst1 = Signal(Burst(shape), reset_less=True)
        beat1 = Signal(self.r.payload.shape(), reset_less=True)
        before, failed1 = self._progress(m, valid[0], beat1)
        first2, last2, failed2 = Signal(), Signal(), Signal()
        beats2 = Signal(8, reset_less=True)
        m.d.sync += [
            valid.eq(Cat(self.r.valid, valid)),
            burst1.eq(read.data),
            beat1.eq(self.r.payload),
            first2.eq(before == 0),
            beats2.eq(before),
            last2.eq(beat1.last),
            failed2.eq(failed1),
        ]
        m.d.comb += [
            self.returned.valid.eq(valid[0] & beat1.last),
            self.returned.payload.eq(beat1.id),
        ]

        # 3: the beat's row.
        row3, answer = Signal(shape.row_bits, reset_less=True), self.answered.payload
        row4 = delayed(m, latency - 5, row3, "row")
        m.d.sync += [
            row3.eq(delayed(m, 1, burst1.row, "row2") + beats2),
            self.write.payload.row.eq(row4),
            self.write.payload.next.eq(row4 + 1),
        ]
        m.d.comb += [
            self.write.valid.eq(valid[latency - 2]),
            self.answered.valid.eq(valid[answered - 1] & delayed(m, answered - 2, last2, "last")),
            answer.slot.eq(delayed(m, answered - 1, burst1.slot, "slot")),
            answer.epoch.eq(delayed(m, answered - 1, burst1.epoch, "epoch")),
            answer.failed.eq(delayed(m, answered - 2, failed2, "failed")),
        ]
        self._align(m, burst1, beat1.data, first2, last2)
        return m

    def _align(self, m, burst, beat, first, last):
        """Moves the octets of a ``beat`` of stage 1 to their lanes, and says which lanes have one.

        ``burst`` is that of stage 1; whether the beat is its first and its last one, of stage 2.
        """
        shape, octets, write = self.shape, self.shape.octets, self.write.payload
        m.submodules.rotate = rotate = Rotate(octets)
        # 2: where the octets of the burst begin in its first beat, and end in its last one, in
        # lanes of two rows. A beat between them begins and ends at the lane ``rotate2``.
        begin2 = Signal(shape.lane + 1, reset_less=True)
        end2 = Signal(shape.lane + 1, reset_less=True)
        rotate2 = Signal(shape.lane, reset_less=True)
        m.d.sync += [
            begin2.eq(burst.rotate + burst.first_lane),
            end2.eq(burst.rotate + burst.last_lane + 1),
            rotate2.eq(burst.rotate),
        ]
        begin, end = Mux(first, begin2, rotate2), Mux(last, end2, Cat(rotate2, C(1, 1)))

        # 4: which lanes wrapped around, and which lie before the octets, and before their end. A
        # place beyond the first row is before all lanes of it, or after them.
        wrapped, early, inner = (
            self._lanes(m, name, value) for name, value in (
                ("wrapped", rotate2), ("early", begin[:shape.lane]), ("inner", end[:shape.lane])))
        begins_above, ends_above = (
            delayed(m, 2, value[shape.lane], name).replicate(octets)
            for value, name in ((begin, "begins_above"), (end, "ends_above")))
        in_row = ~wrapped & ~early & ~begins_above & (inner | ends_above)
        in_next = wrapped & ~(early & begins_above) & inner & ends_above
        enable = Signal(octets, reset_less=True)
        m.d.sync += enable.eq(in_row | in_next)

        # 5: all of it, beside the rotated octets. 6: they are in the ring.
        m.d.comb += [
            rotate.amount.eq(burst.rotate),
            rotate.i.eq(delayed(m, 1, beat, "data")),
            write.data.eq(delayed(m, 3 - rotate.stages, rotate.o, "rotated")),
            write.above.eq(delayed(m, 1, wrapped, "above")),
            write.enable.eq(enable),
        ]

    def _progress(self, m, valid, beat):
        """Counts the beats of each burst; returns how many came before, and whether one failed."""
        shape = self.shape
        entry = data.StructLayout({"beats": 8, "failed": 1})
        m.submodules.progress = table = memory.Memory(shape=entry, depth=shape.reads, init=[])
        write, read = table.write_port(), table.read_port(domain="comb")
        failed = Signal()
        m.d.comb += [
            failed.eq(read.data.failed | (beat.resp != Response.OKAY.value)),
            read.addr.eq(beat.id),
            write.addr.eq(Mux(self.clear.valid, self.clear.payload, beat.id)),
            write.en.eq(valid | self.clear.valid),
        ]
        with m.If(~self.clear.valid & ~beat.last):
            m.d.comb += [write.data.beats.eq(read.data.beats + 1), write.data.failed.eq(failed)]
        return read.data.beats, failed

    def _lanes(self, m, name, value):
        """Returns which lanes are below the lane number in ``value``, two cycles later."""
        m.submodules[name] = lanes = Lanes(self.shape.octets)
        m.d.comb += lanes.i.eq(value)
        return lanes.o


class Staging(wiring.Component):
    """Holds segments in a ring of rows, and lets each leave when it is whole.

    Segments leave in order, as packets of the header and the octets that were read. A segment that
    was refused, or for which the bus answered with an error, leaves without a packet.

    Latency: 6 cycles from the last ``answered`` to a segment's first beat, and 3 to the first row
    that is read. Throughput: one beat per cycle, without a gap between segments of two beats or
    more. Reset: empty. Errors: none.

    Members
    -------
    held : In(stream.Signature(Held, always_ready=True))
        A segment got its place. The segment that had its slot before has left.
    ended : In(stream.Signature(Ended, always_ready=True))
    answered : In(stream.Signature(Answered, always_ready=True))
    write : In(stream.Signature(Written, always_ready=True))
    left : Out(stream.Signature(row_bits + 1, always_ready=True))
        A segment has left the ring, which had this number of rows.
    heads : Out(stream.Signature(StagedHead()))
    o : Out(stream.Signature(Beat(width)))
    """

    def __init__(self, shape, held):
        self.shape, self.held_shape = shape, held
        super().__init__({
            "held": In(stream.Signature(held, always_ready=True)),
            "ended": In(stream.Signature(Ended(shape), always_ready=True)),
            "answered": In(stream.Signature(Answered(shape), always_ready=True)),
            "write": In(stream.Signature(Written(shape), always_ready=True)),
            "left": Out(stream.Signature(shape.row_bits + 1, always_ready=True)),
            "heads": Out(stream.Signature(StagedHead())),
            "o": Out(stream.Signature(Beat(shape.width))),
        })

    def elaborate(self, platform):
        m = Module()
        shape = self.shape
        # A segment waits together with the counts of its slot before its own answers.
        counts = data.StructLayout({"bursts": COUNT_BITS, "failed": COUNT_BITS})
        m.submodules.waiting = waiting = BlockRam(self.held_shape, shape.segments)
        m.submodules.counted = counted = Store(counts, depth=shape.segments)
        # The output of this queue is a register, because the block RAM that it addresses is wide.
        m.submodules.ends = ends = Queue(Ended(shape), depth=shape.segments)
        # The segment that leaves next: its slot, and the counts with which it is whole.
        m.submodules.first = first = Stage(data.StructLayout({
            "slot": shape.slot_bits, "counts": counts, "refused": 1}))
        answer, ended, before = self.answered.payload, first.o, counted.o.payload
        mine, at_first, now = self._counts(
            m, counts, answer.slot, self.held.payload.slot, ended.payload.slot)
        whole, failed, joins = Signal(), Signal(), Signal()
        m.d.comb += [
            ends.i.valid.eq(self.ended.valid),
            ends.i.payload.eq(self.ended.payload),
            waiting.write.valid.eq(self.held.valid),
            waiting.write.payload.address.eq(self.held.payload.slot),
            waiting.write.payload.data.eq(self.held.payload),
            # A segment is read while it moves to ``first``, and known one cycle after that.
            waiting.address[0].eq(ends.o.payload.slot),
            waiting.moves.eq(first.i.ready),
            self._write.en.eq(self.answered.valid),
            self._write.data.bursts.eq(mine.bursts + 1),
            self._write.data.failed.eq(mine.failed + answer.failed),
            counted.i.valid.eq(self.held.valid),
            counted.i.payload.eq(at_first),
            joins.eq(counted.o.valid & ends.o.valid),
            first.i.valid.eq(joins),
            first.i.payload.slot.eq(ends.o.payload.slot),
            first.i.payload.counts.bursts.eq(before.bursts + ends.o.payload.bursts),
            first.i.payload.counts.failed.eq(before.failed),
            first.i.payload.refused.eq(ends.o.payload.refused),
            counted.o.ready.eq(joins & first.i.ready),
            ends.o.ready.eq(joins & first.i.ready),
            whole.eq(ended.valid & (now.bursts == ended.payload.counts.bursts)),
            failed.eq(now.failed != ended.payload.counts.failed),
        ]
        self._leave(m, waiting.data[0], ended, whole, failed)
        return m

    def _counts(self, m, shape, written, *read):
        """Adds the table that counts the answers of each slot, modulo 2**``COUNT_BITS``, and the
        failed ones of them; returns the counts of ``written``, whose entry can be written, and of
        each in ``read``.
        """
        m.submodules.answers = table = memory.Memory(
            shape=shape, depth=self.shape.segments, init=[])
        self._write = table.write_port()
        m.d.comb += self._write.addr.eq(written)
        values = []
        for slot in (written, *read):
            port = table.read_port(domain="comb")
            m.d.comb += port.addr.eq(slot)
            values.append(port.data)
        return values

    def _leave(self, m, held, ended, whole, failed):
        """Reads the rows of whole segments."""
        shape = self.shape
        octets = shape.octets
        m.submodules.leaving = queue = Skid(data.StructLayout({
            "bad": 1, **{name: self.held_shape[name].shape for name in (
                "row", "rows", "single", "header", "lead", "length")}}))
        m.submodules.heads = heads = Store(StagedHead(), depth=QUEUE, direct=True)
        m.submodules.beats = beats = Store(
            Beat(shape.width), depth=2 * QUEUE, direct=True)
        m.submodules.credits = credits = Credits(2 * QUEUE)
        wiring.connect(m, heads.o, wiring.flipped(self.heads))
        wiring.connect(m, beats.o, wiring.flipped(self.o))
        # A segment that is whole stays so: it leaves in the cycle after that was seen.
        known, known_failed, goes = Signal(), Signal(), Signal()
        m.d.sync += [
            known.eq(whole & ~goes),
            known_failed.eq(failed),
        ]
        one = queue.o.payload
        m.d.comb += [
            goes.eq(known & queue.i.ready & heads.half),
            ended.ready.eq(goes),
            heads.i.valid.eq(goes),
            *(heads.i.payload[name].eq(held[name]) for name in ("tag", "lead", "length")),
            heads.i.payload.failed.eq(known_failed),
            heads.i.payload.refused.eq(ended.payload.refused),
            queue.i.valid.eq(goes),
            *(queue.i.payload[name].eq(held[name]) for name in one.shape().members
              if name != "bad"),
            queue.i.payload.bad.eq(known_failed | ended.payload.refused),
        ]

        # A row is read in each cycle; its header is put in two cycles later.
        row, following, first = Signal(shape.row_bits), Signal(shape.row_bits), Signal(init=1)
        # The rows from the next one on; the next row is the last one.
        rows, final = Signal(shape.row_bits + 1), Signal()
        left = Mux(first, one.rows, rows)
        last, step = Signal(), Signal()
        m.d.comb += [
            row.eq(Mux(first, one.row, following)),
            last.eq(one.bad | Mux(first, one.single, final)),
            step.eq(queue.o.valid & (credits.ok | one.bad)),
            queue.o.ready.eq(step & last),
            credits.open.eq(1),
            credits.take.eq(step & ~one.bad),
            credits.give.eq(beats.o.valid & beats.o.ready),
        ]
        with m.If(step):
            m.d.sync += [
                first.eq(last), following.eq(row + 1),
                rows.eq(left - 1), final.eq(left == 2)]
        m.d.sync += [self.left.valid.eq(step & last), self.left.payload.eq(one.rows)]

        end = (one.length + one.lead)[:shape.lane]  # octets in the last row; 0: all
        beat = Signal(Beat(shape.width))
        m.d.comb += [
            beat.last.eq(last),
            beat.count.eq(Mux(last & end.any(), end, octets)),
        ]
        m.d.sync += [
            beats.i.valid.eq(delayed(m, 2, step & ~one.bad, "row")),
            beats.i.payload.eq(delayed(m, 2, beat, "beat")),
            beats.i.payload.data.eq(self._rows(m, row)),
        ]
        headers, masks = self._header(m, one, step, last)
        for k in range(octets):
            with m.If(masks[k]):
                m.d.sync += beats.i.payload.data.word_select(k, 8).eq(headers.word_select(k, 8))

    def _header(self, m, segment, step, last):
        """Returns the header's octets in the row of two cycles ago, and which lanes have one."""
        octets = self.shape.octets
        rows = -(-HEADER_OCTETS // octets)
        here = Signal(rows, init=1)  # one-hot: the row of the header, if it is one
        with m.If(step):
            m.d.sync += here.eq(Mux(last, 1, here << 1))
        parts = [segment.header[8 * octets * k:8 * octets * (k + 1)] for k in range(rows)]
        header = any_of(Mux(at, part, 0) for at, part in zip(here, parts, strict=True))
        lanes = delayed(m, 1, Cat(
            at < segment.lead for at in range(rows * octets)), "lanes")
        mask = any_of(Mux(at, lanes.word_select(k, octets), 0)
                      for k, at in enumerate(delayed(m, 1, here, "here")))
        return delayed(m, 2, header, "header"), delayed(m, 1, mask, "mask")

    def _rows(self, m, row):
        """Adds the ring; returns the octets of ``row`` two cycles later."""
        write = self.write.payload
        lanes = []
        for lane in range(self.shape.octets):
            m.submodules[f"lane{lane}"] = ram = BlockRam(8, self.shape.rows)
            m.d.comb += [
                ram.write.valid.eq(self.write.valid & write.enable[lane]),
                ram.write.payload.address.eq(Mux(write.above[lane], write.next, write.row)),
                ram.write.payload.data.eq(write.data.word_select(lane, 8)),
                ram.address[0].eq(row),
            ]
            lanes.append(ram.data[0])
        return Cat(lanes)
