"""Reads the octets of segments that will be sent, and hands each over once all of them are there.

The data's way::

    segments ─ Reservation ─► reserved
    pieces ─ ReadBursts ┬ bus.ar       bus.r ┬ BeatPlacer ─ Staging ─ heads, o
              inline ─► └ InlineMemory ──────┘

Room for a whole segment is reserved before any of its pieces is read, and every octet has its place
from then on. So the beats of different bursts may come back in any order, and ``bus.r`` never
waits, whatever holds the output up.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..bus.axi import AxiRead, Response
from ..lib.credits import Credits
from ..lib.stream import Beat, Store, counted, delayed
from .inline import ROW, InlineMemory
from .jobs import LENGTH_BITS
from .sequencer import Job, JobSequencer
from .staging import (
    COUNT_BITS,
    HEADER_OCTETS,
    TAG_BITS,
    BeatPlacer,
    Burst,
    Ended,
    Held,
    StagedHead,
    Staging,
)

__all__ = ["ReadBursts", "ReadDma", "ReadPiece", "ReadSegment"]

QUEUE = 16


class ReadSegment(data.StructLayout):
    """A segment to be read and sent.

    Members
    -------
    header : 144
        Octets that precede the payload, the first one lowest.
    lead : range(19)
        How many octets the header has.
    length : 17
        Octets of the payload.
    tag : TAG_BITS
        A number that comes back with the segment.
    """

    def __init__(self):
        super().__init__({
            "header": 8 * HEADER_OCTETS, "lead": range(HEADER_OCTETS + 1), "length": LENGTH_BITS,
            "tag": TAG_BITS})


class ReadPiece(data.StructLayout):
    """A run of octets in host memory, contiguous on the bus: the next octets of a segment.

    Members
    -------
    address : 64
    inline : 1
        The octets are in the inline memory, and ``address`` is their place there.
    length : 17
        May be 0.
    last : 1
        The segment's last piece. The lengths of all its pieces add up to the segment's length.
    refused : 1
        The piece may not be read: the segment is given up. No further piece follows, so it is the
        last one too.
    """

    def __init__(self):
        super().__init__({
            "address": 64, "inline": 1, "length": LENGTH_BITS, "last": 1, "refused": 1})


class _Place(data.StructLayout):
    """The place of a segment: its payload's first octet in the ring, and its slot."""

    def __init__(self, shape):
        super().__init__({"octet": shape.octet_bits, "slot": shape.slot_bits})


class Shape:
    """The numbers that follow from the parameters of a :class:`ReadDma`.

    Attributes
    ----------
    octets, lane : int
        Octets in a beat, and bits of an octet's number in it.
    rows, row_bits : int
        Beats in the staging ring, and bits of a beat's number.
    octet_bits : int
        Bits of an octet's number in the ring.
    slot_bits, id_bits : int
        Bits of the number of a segment's slot, and of an ID.
    burst : int
        Bits of a beat's number between two addresses where a burst must end: 4 KiB apart, or 256
        beats where that is less.
    more : int
        Bits to count the bursts of a piece, less one.
    inline : int
        Rows of the inline memory; 0: there is none.
    """

    def __init__(self, width, *, reads, octets, segments, inline):
        for name, value, least, most in (
            ("reads", reads, 2, 256), ("octets", octets, width, 1 << 17),
            ("segments", segments, 4, 256), *([("inline", inline, 4, 256)] if inline else []),
        ):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"ReadDma {name} must be an integer, not {value!r}")
            if not least <= value <= most or value & value - 1:
                raise ValueError(
                    f"ReadDma {name} must be a power of two from {least} to {most}, not {value!r}")
        if width not in (64, 128, 256, 512):
            raise ValueError(f"ReadDma width must be one of 64, 128, 256, 512, not {width!r}")
        self.width, self.reads, self.segments, self.inline = width, reads, segments, inline
        self.octets = width // 8
        self.lane = exact_log2(self.octets)
        self.octet_bits = exact_log2(octets)
        self.row_bits = self.octet_bits - self.lane
        self.rows = 1 << self.row_bits
        self.slot_bits = exact_log2(segments)
        self.id_bits = exact_log2(reads)
        self.burst = exact_log2(min(4096 // self.octets, 256))
        self.more = LENGTH_BITS - self.lane - self.burst + 1


class _Request(data.StructLayout):
    """A burst's address: ``addr`` (64), ``len`` (8) and ``id``, as on the channel AR of AXI4.

    ``inline`` and ``none`` (1): those of :class:`ReadPiece` and :class:`~.inline.InlineRead`.
    """

    def __init__(self, shape):
        super().__init__({"addr": 64, "len": 8, "id": shape.id_bits, "inline": 1, "none": 1})


class _Body(data.StructLayout):
    """A piece, prepared for its bursts.

    Members
    -------
    page : address bits above the burst boundary
    position : beat of the first octet between two boundaries
    first, final : beats less one of the first burst, of the last one if that is not the first
    first_lane, last_lane : lane of the first, of the last octet
    shift : octets from an address to its place in the ring
    none : 1
        Nothing is read.
    inline : as in :class:`ReadPiece`
    ends, refused : as in :class:`ReadPiece`, ``last`` and ``refused``
    slot : of the segment
    epoch : as in :class:`ReadFence`
    """

    def __init__(self, shape):
        super().__init__({
            "page": 64 - shape.lane - shape.burst, "position": shape.burst, "first": shape.burst,
            "final": shape.burst, "first_lane": shape.lane, "last_lane": shape.lane,
            "shift": shape.octet_bits, "none": 1, "inline": 1, "ends": 1, "refused": 1,
            "slot": shape.slot_bits, "epoch": 1})


class _Event(data.StructLayout):
    """Something happens (``valid``) to a piece or burst of an ``epoch``."""

    def __init__(self):
        super().__init__({"valid": 1, "epoch": 1})


class ReadFence(wiring.Component):
    """Waits until all pieces that were taken so far have been read.

    Pieces that are taken after a fence belong to the other *epoch*, so that they do not hold it up.
    A fence that is started during another one begins when that ends.

    Latency: 2 cycles from the last answer to ``fencing``. Throughput: one event of each kind per
    cycle. Reset: no fence, nothing is read. Errors: none.

    Members
    -------
    fence : In(1), fencing : Out(1)
        As in :class:`ReadDma`.
    epoch : Out(1)
        Epoch of the pieces that are taken now.
    taken : In(1)
    issued, done, answered : In({valid: 1, epoch: 1})
        A burst was issued; a piece has no further burst; a burst was answered.
    """

    def __init__(self, shape):
        self.shape = shape
        super().__init__({
            "fence": In(1), "fencing": Out(1), "epoch": Out(1), "taken": In(1),
            "issued": In(_Event()), "done": In(_Event()), "answered": In(_Event())})

    def elaborate(self, platform):
        m = Module()
        again = Signal()
        idle = Signal(2)  # of each epoch
        for epoch in range(2):
            pieces = Signal(range(4 * QUEUE), name=f"pieces{epoch}")
            # A burst counts until it is answered; another one has its ID some cycles earlier.
            bursts = Signal(
                range(self.shape.reads + BeatPlacer.ANSWERED + 1), name=f"bursts{epoch}")
            mine = self.epoch == epoch
            counted(m, pieces, self.taken & mine, self.done.valid & (self.done.epoch == epoch))
            counted(m, bursts, self.issued.valid & (self.issued.epoch == epoch),
                    self.answered.valid & (self.answered.epoch == epoch))
            m.d.comb += idle[epoch].eq(~pieces.any() & ~bursts.any())
        wanted, ended, starts = Signal(), Signal(), Signal()
        m.d.comb += [
            wanted.eq(self.fence | again),
            ended.eq(self.fencing & idle.bit_select(~self.epoch, 1)),
            starts.eq(wanted & (~self.fencing | ended)),
        ]
        m.d.sync += again.eq(wanted & ~starts)
        with m.If(starts):
            m.d.sync += [self.epoch.eq(~self.epoch), self.fencing.eq(1)]
        with m.Elif(ended):
            m.d.sync += self.fencing.eq(0)
        return m


class ReadBursts(wiring.Component):
    """Cuts pieces into bursts, gives each an ID, and sends its address.

    Latency: 5 cycles from ``i`` to ``ar``. Throughput: one burst per cycle; a piece of none takes a
    cycle too. Reset: empty, all IDs are free. Errors: none.

    Members
    -------
    i : In(stream.Signature(ReadPiece()))
    places : In(stream.Signature(_Place))
        The place of the segment whose piece is next; taken with its last piece.
    ar : Out(stream.Signature(_Request))
    burst : Out(stream.Signature({id, burst: Burst}, always_ready=True))
        A burst whose address is sent, before that.
    ended : Out(stream.Signature(Ended, always_ready=True))
        A segment has no further piece.
    returned : In(stream.Signature(id, always_ready=True))
        An ID that is free again.
    epoch : In(1)
        As in :class:`ReadFence`, for pieces that are taken now.
    taken : Out(1)
        A piece is taken.
    issued, done : Out({valid: 1, epoch: 1})
        A burst got its ID; a piece was cut to its end.
    """

    def __init__(self, shape):
        self.shape = shape
        self.job = Job(_Body(shape), shape.more)
        super().__init__({
            "i": In(stream.Signature(ReadPiece())),
            "places": In(stream.Signature(_Place(shape))),
            "ar": Out(stream.Signature(_Request(shape))),
            "burst": Out(stream.Signature(data.StructLayout(
                {"id": shape.id_bits, "burst": Burst(shape)}), always_ready=True)),
            "ended": Out(stream.Signature(Ended(shape), always_ready=True)),
            "returned": In(stream.Signature(shape.id_bits, always_ready=True)),
            "epoch": In(1),
            "taken": Out(1),
            "issued": Out(_Event()),
            "done": Out(_Event()),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.jobs = jobs = Store(self.job, depth=QUEUE, direct=True)
        m.submodules.sequencer = sequencer = JobSequencer(self.job)
        wiring.connect(m, jobs.o, sequencer.i)
        self._prepare(m, jobs)
        self._issue(m, sequencer)
        return m

    def _prepare(self, m, jobs):
        """Computes the bursts of each piece: how many, and where the first and the last one end."""
        shape = self.shape
        boundary = shape.lane + shape.burst
        piece, place = self.i.payload, self.places.payload
        first = Signal(init=1)
        room, valid = Signal(name="room"), Signal(2, name="valid")
        # Where the next octets of the segment go.
        at, octet = Signal(shape.octet_bits), Signal(shape.octet_bits)
        # Stage n's registers are named with n.
        address1, less1 = Signal(64, reset_less=True), Signal(LENGTH_BITS, reset_less=True)
        body1 = Signal(_Body(shape), reset_less=True)
        body2 = Signal(_Body(shape), reset_less=True)
        reach2 = Signal(LENGTH_BITS + 1, reset_less=True)
        takes = self.i.valid & self.i.ready
        m.d.comb += [
            self.i.ready.eq(room & self.places.valid),
            self.places.ready.eq(takes & piece.last),
            self.taken.eq(takes),
            octet.eq(Mux(first, place.octet, at)),
        ]
        m.d.sync += [room.eq(jobs.half), valid.eq(Cat(takes, valid))]
        with m.If(takes):
            m.d.sync += [first.eq(piece.last), at.eq(octet + piece.length)]
        m.d.sync += [
            address1.eq(piece.address),
            less1.eq(piece.length - 1),
            body1.shift.eq(octet - piece.address),
            body1.none.eq(~piece.length.any() | piece.refused),
            body1.inline.eq(piece.inline),
            body1.ends.eq(piece.last),
            body1.refused.eq(piece.refused),
            body1.slot.eq(place.slot),
            body1.epoch.eq(self.epoch),
            body2.eq(body1),
            body2.page.eq(address1[boundary:]),
            body2.position.eq(address1[shape.lane:boundary]),
            body2.first_lane.eq(address1[:shape.lane]),
            reach2.eq(address1[:boundary] + less1),
        ]
        more = Mux(body2.none, 0, reach2[boundary:])
        last_beat = reach2[shape.lane:boundary]
        job = jobs.i.payload
        m.d.comb += [
            jobs.i.valid.eq(valid[1]),
            job.body.eq(body2),
            job.body.first.eq(Mux(more == 0, last_beat, ~Const(0, shape.burst)) - body2.position),
            job.body.final.eq(last_beat),
            job.body.last_lane.eq(reach2[:shape.lane]),
            job.more.eq(more),
            job.one.eq(more == 0),
            job.two.eq(more == 1),
        ]

    def _issue(self, m, sequencer):
        """Sends one burst per cycle while there is an ID for it."""
        shape, body = self.shape, sequencer.body
        address = self.ar.payload.shape()
        m.submodules.credits = credits = Credits(shape.reads)
        m.submodules.free = free = Store(shape.id_bits, depth=max(4, shape.reads))
        m.submodules.queue = queue = Store(address, depth=QUEUE, direct=True)
        wiring.connect(m, queue.o, wiring.flipped(self.ar))
        wiring.connect(m, wiring.flipped(self.returned), free.i)
        # IDs that were never in use come from a counter, the others from the queue of free ones.
        fresh, old = Signal(range(shape.reads), name="fresh"), Signal(name="old")
        issues, skips, number = Signal(), Signal(), Signal(shape.id_bits)
        m.d.comb += [
            issues.eq(sequencer.valid & ~body.none),
            # The inline memory has to learn of octets that are not read.
            skips.eq(sequencer.valid & body.none & body.inline),
            number.eq(Mux(old, free.o.payload, fresh)),
            free.o.ready.eq(issues & old),
            credits.take.eq(issues),
            credits.give.eq(delayed(m, 1, self.returned.valid, "returned")),
            sequencer.go.eq(credits.soon),
            self.issued.valid.eq(issues),
            self.done.valid.eq(sequencer.valid & sequencer.last),
            *(event.epoch.eq(body.epoch) for event in (self.issued, self.done)),
        ]
        m.d.sync += credits.open.eq(queue.half)
        with m.If(issues & ~old):
            m.d.sync += [fresh.eq(fresh + 1), old.eq(fresh == shape.reads - 1)]

        # The page number is added up in two halves, one per cycle.
        half = len(body.page) // 2
        valid1, none1 = Signal(), Signal()
        low1, high1 = Signal(half + 1, reset_less=True), Signal(len(body.page) - half)
        position1 = Signal(shape.burst, reset_less=True)
        shift1 = Signal(shape.octet_bits, reset_less=True)
        burst1, sent1 = Signal(Burst(shape), reset_less=True), Signal(address, reset_less=True)
        page1 = Cat(low1[:half], high1 + low1[half])
        m.d.sync += [
            valid1.eq(issues),
            none1.eq(skips),
            low1.eq(body.page[:half] + sequencer.index),
            high1.eq(body.page[half:]),
            position1.eq(Mux(sequencer.first, body.position, 0)),
            shift1.eq(body.shift),
            sent1.id.eq(number),
            sent1.inline.eq(body.inline),
            sent1.none.eq(skips),
            sent1.len.eq(Mux(sequencer.first, body.first,
                             Mux(sequencer.last, body.final, ~Const(0, shape.burst)))),
            burst1.first_lane.eq(Mux(sequencer.first, body.first_lane, 0)),
            burst1.last_lane.eq(Mux(sequencer.last, body.last_lane, ~Const(0, shape.lane))),
            burst1.slot.eq(body.slot),
            burst1.epoch.eq(body.epoch),
        ]
        m.d.sync += [
            queue.i.valid.eq(valid1 | none1),
            queue.i.payload.eq(sent1),
            queue.i.payload.addr.eq(Cat(C(0, shape.lane), position1, page1)),
            self.burst.valid.eq(valid1),
            self.burst.payload.id.eq(sent1.id),
            self.burst.payload.burst.eq(burst1),
            self.burst.payload.burst.rotate.eq(shift1[:shape.lane]),
            self.burst.payload.burst.row.eq(
                Cat(position1, page1)[:shape.row_bits] + shift1[shape.lane:]),
        ]

        # A segment's end.
        count, total = Signal(COUNT_BITS), Signal(COUNT_BITS)
        ends = sequencer.valid & sequencer.last & body.ends
        m.d.comb += total.eq(count + ~body.none)
        with m.If(sequencer.valid):
            m.d.sync += count.eq(Mux(ends, 0, total))
        m.d.sync += [
            self.ended.valid.eq(ends),
            self.ended.payload.slot.eq(body.slot),
            self.ended.payload.bursts.eq(total),
            self.ended.payload.refused.eq(body.refused),
        ]


class Reservation(wiring.Component):
    """Reserves rows of the ring and a slot for each segment.

    Latency: 2 cycles to ``held``. Throughput: one segment in 2 cycles. Reset: all rows are free.
    Errors: none.

    Members
    -------
    i : In(stream.Signature(ReadSegment()))
    go : In(1)
        Segments may be taken.
    left : In(stream.Signature(row_bits + 1, always_ready=True))
        A segment has left, which had this number of rows.
    held : Out(stream.Signature(Held, always_ready=True))
        A segment got its place.
    places : Out(stream.Signature(_Place))
        The same, for its pieces.
    """

    def __init__(self, shape):
        self.shape = shape
        self.held_shape = Held(shape, ReadSegment())
        super().__init__({
            "i": In(stream.Signature(ReadSegment())),
            "go": In(1),
            "left": In(stream.Signature(shape.row_bits + 1, always_ready=True)),
            "held": Out(stream.Signature(self.held_shape, always_ready=True)),
            "places": Out(stream.Signature(_Place(shape))),
        })

    def elaborate(self, platform):
        m = Module()
        shape = self.shape
        m.submodules.places = places = Store(_Place(shape), depth=shape.segments)
        m.submodules.slots = slots = Credits(shape.segments)
        wiring.connect(m, places.o, wiring.flipped(self.places))
        segment = Signal(ReadSegment())
        waits, fits, grants = Signal(), Signal(), Signal()
        rows, free = Signal(shape.row_bits + 1), Signal(shape.row_bits + 1, init=shape.rows)
        row, slot = Signal(shape.row_bits), Signal(shape.slot_bits)
        incoming = self.i.payload
        m.d.comb += [
            grants.eq(fits),
            self.i.ready.eq(self.go & (~waits | grants)),
            slots.open.eq(1),
            slots.take.eq(grants),
            slots.give.eq(self.left.valid),
            self.held.valid.eq(grants),
            *(self.held.payload[name].eq(segment[name])
              for name in ReadSegment().members if name in self.held_shape.members),
            self.held.payload.row.eq(row),
            self.held.payload.rows.eq(rows),
            self.held.payload.single.eq(rows == 1),
            self.held.payload.slot.eq(slot),
        ]
        with m.If(~waits | grants):
            m.d.sync += [
                waits.eq(self.i.valid & self.go),
                segment.eq(incoming),
                rows.eq((incoming.lead + incoming.length + (shape.octets - 1)) >> shape.lane),
            ]
        with m.If(grants):
            m.d.sync += [row.eq(row + rows), slot.eq(slot + 1)]
        m.d.sync += [
            # The first piece of the segment comes later.
            places.i.valid.eq(grants),
            places.i.payload.octet.eq(Cat(C(0, shape.lane), row) + segment.lead),
            places.i.payload.slot.eq(slot),
            # Free rows and slots only become more while a segment waits.
            fits.eq(waits & ~grants & (rows <= free) & slots.soon),
            free.eq(free + Mux(self.left.valid, self.left.payload, 0) - Mux(grants, rows, 0)),
        ]
        return m


class ReadDma(wiring.Component):
    """Reads segments from host memory, and lets each leave as a packet when it is whole.

    Before a segment's pieces are looked up in a table and given to the block, ``reserved`` says
    that there is room for them: from then on only the bus can delay a read. A segment whose piece
    was refused, or whose read the bus answered with an error, leaves without a packet, and no other
    segment is touched.

    ``fence`` starts a fence: from the next cycle on, ``fencing`` is high until every piece that was
    taken up to then has been read. It does not depend on the output.

    Latency: 5 cycles from a piece to ``bus.ar``, which is one gate from registers or comes from
    distributed RAM; ``LATENCY`` from the last beat to the packet's first one. Throughput: one beat
    per cycle on the bus and at the output: a segment takes as many cycles as its bursts have beats,
    or the packet, whichever is more, but two at least. Reset: empty; not while a read is
    outstanding on the bus. Segments are taken ``reads`` cycles later. Errors: ``heads``.

    Parameters
    ----------
    width : int
        Bits in a beat: 64, 128, 256 or 512.
    reads : int
        Bursts that may be outstanding, each with its own ID: a power of two, 2 to 256.
    octets : int
        Octets in the staging ring: a power of two; a segment with its header must fit in it.
    segments : int
        Segments that may be under way: a power of two, 4 to 256.
    inline : int
        Rows of the inline memory: a power of two, 4 to 256; or 0: there is none.

    Members
    -------
    segments : In(stream.Signature(ReadSegment()))
    reserved : Out(stream.Signature(TAG_BITS, always_ready=True))
        The tag of a segment for which there is room.
    pieces : In(stream.Signature(ReadPiece()))
        The pieces of reserved segments, in the order of these; one or more for each. A segment has
        fewer than 2**COUNT_BITS bursts: 255 pieces, of which each crosses the end of a burst, have
        510, and one more for each 2 KiB.
    inline : In(stream.Signature(512))
        With an inline memory only: its next row, see :class:`~.inline.InlineMemory`.
    bus : Out(AxiRead(width, reads))
    heads : Out(stream.Signature(StagedHead()))
        One for each segment, in order.
    o : Out(stream.Signature(Beat(width)))
        One packet for each head that is neither refused nor failed.
    fence : In(1), fencing : Out(1)
    """

    LATENCY = 9

    def __init__(self, width, *, reads=64, octets=32768, segments=32, inline=256):
        self.shape = Shape(width, reads=reads, octets=octets, segments=segments, inline=inline)
        super().__init__({
            "segments": In(stream.Signature(ReadSegment())),
            "reserved": Out(stream.Signature(TAG_BITS, always_ready=True)),
            "pieces": In(stream.Signature(ReadPiece())),
            **({"inline": In(stream.Signature(8 * ROW))} if inline else {}),
            "bus": Out(AxiRead(width, reads)),
            "heads": Out(stream.Signature(StagedHead())),
            "o": Out(stream.Signature(Beat(width))),
            "fence": In(1),
            "fencing": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        shape = self.shape
        m.submodules.reservation = reservation = Reservation(shape)
        m.submodules.bursts = bursts = ReadBursts(shape)
        m.submodules.placer = placer = BeatPlacer(shape, self.bus.r.payload.shape())
        m.submodules.staging = staging = Staging(shape, reservation.held_shape)
        m.submodules.fence = fence = ReadFence(shape)
        wiring.connect(m, wiring.flipped(self.segments), reservation.i)
        wiring.connect(m, reservation.held, staging.held)
        wiring.connect(m, reservation.places, bursts.places)
        wiring.connect(m, wiring.flipped(self.pieces), bursts.i)
        wiring.connect(m, bursts.burst, placer.burst)
        wiring.connect(m, bursts.ended, staging.ended)
        wiring.connect(m, placer.returned, bursts.returned)
        wiring.connect(m, placer.write, staging.write)
        wiring.connect(m, placer.answered, staging.answered)
        wiring.connect(m, staging.left, reservation.left)
        wiring.connect(m, staging.heads, wiring.flipped(self.heads))
        wiring.connect(m, staging.o, wiring.flipped(self.o))
        self._read(m, bursts, placer)
        m.d.comb += [
            self.reserved.valid.eq(reservation.held.valid),
            self.reserved.payload.eq(reservation.held.payload.tag),
        ]

        answer = placer.answered
        m.d.comb += [
            fence.fence.eq(self.fence),
            self.fencing.eq(fence.fencing),
            bursts.epoch.eq(fence.epoch),
            fence.taken.eq(bursts.taken),
            fence.issued.eq(bursts.issued),
            fence.done.eq(bursts.done),
            fence.answered.valid.eq(answer.valid),
            fence.answered.epoch.eq(answer.payload.epoch),
        ]

        # After a reset, the counts of the beats of bursts are cleared.
        number, cleared = Signal(range(shape.reads)), Signal()
        with m.If(~cleared):
            m.d.sync += [number.eq(number + 1), cleared.eq(number == shape.reads - 1)]
        m.d.comb += [
            placer.clear.valid.eq(~cleared),
            placer.clear.payload.eq(number),
            reservation.go.eq(cleared),
        ]
        return m

    def _read(self, m, bursts, placer):
        """Connects the bus and the inline memory. The bus never waits for the latter's beats."""
        shape, bus, request = self.shape, self.bus, bursts.ar.payload
        if not shape.inline:
            m.d.comb += [
                bus.r.ready.eq(1),
                placer.r.valid.eq(bus.r.valid),
                placer.r.payload.eq(bus.r.payload),
                bus.ar.valid.eq(bursts.ar.valid),
                bursts.ar.ready.eq(bus.ar.ready),
                *(bus.ar.payload[name].eq(request[name]) for name in ("addr", "len", "id")),
            ]
            return
        m.submodules.memory = memory = InlineMemory(
            shape.width, rows=shape.inline, ids=shape.reads)
        wiring.connect(m, wiring.flipped(self.inline), memory.i)
        m.d.comb += [
            bus.ar.valid.eq(bursts.ar.valid & ~request.inline),
            memory.ar.valid.eq(bursts.ar.valid & request.inline),
            bursts.ar.ready.eq(Mux(request.inline, memory.ar.ready, bus.ar.ready)),
            *(bus.ar.payload[name].eq(request[name]) for name in ("addr", "len", "id")),
            *(memory.ar.payload[name].eq(request[name]) for name in ("addr", "len", "id", "none")),
            bus.r.ready.eq(1),
            memory.r.ready.eq(~bus.r.valid),
            placer.r.valid.eq(bus.r.valid | memory.r.valid),
            placer.r.payload.eq(bus.r.payload),
        ]
        with m.If(~bus.r.valid):
            m.d.comb += [
                placer.r.payload.resp.eq(Response.OKAY),
                *(placer.r.payload[name].eq(memory.r.payload[name])
                  for name in ("data", "id", "last")),
            ]
