"""Lets segments leave in the order of their stream, and gives each its place in it."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..ddp.leaving import SentRecord
from ..dma.staging import StagedHead
from ..lib.blockram import StepTable
from ..lib.stream import Beat, Skid, Store, delayed
from ..mpa.framer import FpduHead
from ..mpa.intake import LlpSettings
from ..mpa.length import FpduLength
from ..sctp.framer import ChunkHead
from ..spec.completion import SentStatus
from ..spec.sctp import FUNCTION, LONGEST_BODY, SSN
from .associations import Refund
from .repeats import SLOT_BITS, Repeat
from .segmenter import SegmentTag
from .sent import Passed

__all__ = ["Departure", "SendSetting", "SendState"]

QUEUE = 16


class SendState(data.StructLayout):
    """The sending half of a stream.

    Members
    -------
    open : 1
        Segments leave. Otherwise they are dropped and counted.
    failed : 1
        A segment could not be read; since then the stream is not open.
    ending : 1
        The last segment of the message that failed has not come yet.
    llp : LlpSettings()
    after : 7
        Words since the last marker, 1 to 127, where the next FPDU begins; at 127 it begins with a
        marker.
    sequence : 32
        LLP sequence number of the next FPDU's first octet.
    answered : 16
        Read Responses that left whole, modulo 2**16.
    response : 1
        The segment that could not be read is one of the next Read Response.
    lost : 1
        The send ring could not be read, or a segment not be sent again.
    sctp : 1, association : range(associations), sid : 16, limited : 1
        In a device with ``associations`` that sends over SCTP: the stream does, on this SCTP
        stream, with a limit or not. ``sequence`` counts its chunks; its lower half is the next
        DDP-SSN.
    """

    def __init__(self, associations=0):
        over_sctp = {"sctp": 1, "association": range(associations), "sid": 16, "limited": 1}
        super().__init__({
            "open": 1, "failed": 1, "ending": 1, "llp": LlpSettings(), "after": 7, "sequence": 32,
            "answered": 16, "response": 1, "lost": 1, **(over_sctp if associations else {})})


class _Place(data.StructLayout):
    """The place of a stream's next segment: ``entry`` (16) and ``offset`` (32) of its record."""

    def __init__(self):
        super().__init__({"entry": 16, "offset": 32})


class _Outcome(data.StructLayout):
    """The outcome of a segment of ``stream``.

    Members
    -------
    leaves : 1, sctp : 1
        The segment leaves, over SCTP or over MPA.
    closes : 1
        The sending half is closed: the segment cannot be read, or ``fails`` : 1, it has none.
    ends : 1
        The segment is the last one of its message.
    again : 1
        The segment is sent again.
    alone : 1
        The half is closed, and that ends no message of the ring.
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "leaves": 1, "sctp": 1, "closes": 1, "fails": 1, "ends": 1,
            "again": 1, "alone": 1})


class SendSetting(data.StructLayout):
    """The new state of the sending half of ``stream``: ``state``, a SendState."""

    def __init__(self, streams, associations=0):
        super().__init__({"stream": range(streams), "state": SendState(associations)})


class Departure(wiring.Component):
    """Gives each segment that was read whole its LLP sequence number, or over SCTP its DDP-SSN, and
    drops the others.

    A segment that was refused, or that the bus did not read, uses no number; it closes the sending
    half of its stream, so that no later segment leaves (RFC 5041 section 7.1). The positions count
    markers, padding and CRC (RFC 5044 section 4).

    A segment that is sent again keeps its number, and changes none. It leaves even after the half
    was closed: a Terminate reaches the peer only after all octets before it.

    Latency: 4 cycles from ``segments`` to ``heads``, 1 from ``beats`` to ``o``. Throughput: one
    segment in 2 cycles, one beat per cycle. Reset: empty; the states stay. Errors:
    ``failed`` in the state.

    Parameters
    ----------
    width, streams : int
    associations : int
        Those of SCTP, of which the device sends chunks; or 0.

    Members
    -------
    set : In(stream.Signature(SendSetting(streams, associations)))
        Replaces the state of a stream, while no segment of it is under way.
    look : In(range(streams)), state : Out(SendState(associations))
        Look-up of a state, answered after 2 cycles.
    begin : In(stream.Signature(range(streams)))
        A stream whose send ring is new, while no segment of it is under way.
    segments : In(stream.Signature(StagedHead()))
        The tag is that of :class:`~.segmenter.Segmenter`.
    slot : Out(SLOT_BITS), repeat : In(Repeat(streams))
        Look-up of a segment that is sent again, answered in the same cycle.
    repeated : Out(stream.Signature(SLOT_BITS, always_ready=True))
        Such a segment has left or was given up.
    beats : In(stream.Signature(Beat(width)))
        A packet for each segment that is neither refused nor failed.
    heads : Out(stream.Signature(FpduHead()))
    o : Out(stream.Signature(Beat(width)))
        A packet for each head.
    chunks : Out(stream.Signature(ChunkHead(associations)))
    bodies : Out(stream.Signature(Beat(width)))
        The same for segments that leave over SCTP. One that is longer than LONGEST_BODY is given
        up as if it could not be read.
    refunds : Out(stream.Signature(Refund(associations), always_ready=True))
        Each segment of a limited stream over SCTP that does not leave.
    fail : In(stream.Signature(range(streams)))
        Closes the sending half of a stream.
    passed : Out(stream.Signature(Passed(streams), always_ready=True))
        Each segment that leaves, or that ends a message; and each first read of a ring or of a
        repeat that fails, as the end of a message without entry, which is FLUSHED if the half was
        closed before.
    room : In(1)
        There was room for four of these, of ``closed`` and of ``refunds``, one cycle ago.
    closed : Out(stream.Signature(range(streams), always_ready=True))
        A stream whose sending half has failed.
    leaves, leaves_chunk, dropped, ends : Out(1)
        High for one cycle for each segment that leaves, over MPA or over SCTP, that does not leave,
        and that ends its message or stops it.
    """

    def __init__(self, width, streams, associations=0):
        self.streams, self.associations = streams, associations
        over_sctp = {
            "chunks": Out(stream.Signature(ChunkHead(associations))),
            "bodies": Out(stream.Signature(Beat(width))),
            "refunds": Out(stream.Signature(Refund(associations), always_ready=True)),
        } if associations else {}
        super().__init__({
            **over_sctp,
            "set": In(stream.Signature(SendSetting(streams, associations))),
            "begin": In(stream.Signature(range(streams))),
            "slot": Out(SLOT_BITS),
            "repeat": In(Repeat(streams)),
            "repeated": Out(stream.Signature(SLOT_BITS, always_ready=True)),
            "look": In(range(streams)),
            "state": Out(SendState(associations)),
            "segments": In(stream.Signature(StagedHead())),
            "beats": In(stream.Signature(Beat(width))),
            "heads": Out(stream.Signature(FpduHead())),
            "o": Out(stream.Signature(Beat(width))),
            "fail": In(stream.Signature(range(streams))),
            "passed": Out(stream.Signature(Passed(streams), always_ready=True)),
            "room": In(1),
            "closed": Out(stream.Signature(range(streams), always_ready=True)),
            "leaves": Out(1),
            "leaves_chunk": Out(1),
            "dropped": Out(1),
            "ends": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        shape = SendState(self.associations)
        m.submodules.table = table = StepTable(shape, self.streams, reads=1)
        m.submodules.heads = heads = Store(FpduHead(), depth=QUEUE)
        m.submodules.packets = packets = Store(
            data.StructLayout({"passes": 1, "sctp": 1}), depth=QUEUE)
        segment, tag = self.segments.payload, SegmentTag()
        asked = data.View(tag, segment.tag[:tag.size])
        number = Mux(self.fail.valid, self.fail.payload, asked.stream)[:exact_log2(self.streams)]
        # A segment is a step of the tables, and ``known`` when it ends.
        takes, looks, known = Signal(), Signal(), table.steps
        length = [Signal(16, name=f"length{n}") for n in (1, 2, 3)]
        repeat = Signal(Repeat(self.streams))
        bad, fails = Signal(3), Signal(3)  # fails: a stream is closed, in the place of a segment
        m.submodules.size = size = FpduLength()
        m.d.comb += [
            size.octets.eq(length[0]),
            self.fail.ready.eq(~looks & self.room),
            self.segments.ready.eq(takes),
            table.step.valid.eq(takes | (self.fail.valid & self.fail.ready)),
            table.step.payload.eq(number),
            table.address[0].eq(self.look),
            self.state.eq(table.data[0]),
            self.slot.eq(delayed(m, 2, asked.entries, "slot")),
        ]
        m.d.sync += [
            looks.eq(table.step.valid),
            fails.eq(Cat(self.fail.valid & self.fail.ready, fails)),
            length[0].eq(segment.lead + segment.length),
            length[1].eq(length[0]),
            length[2].eq(length[1]),
            repeat.eq(self.repeat),
            bad.eq(Cat(segment.refused | segment.failed, bad)),
        ]
        known_tag = delayed(m, 3, asked, "tag")
        known_number = delayed(m, 3, number, "number")
        now, state, written = Signal(_Outcome(self.streams)), table.found, table.becomes
        leaves, closes, ends, again, alone, sctp = (
            now[name] for name in ("leaves", "closes", "ends", "again", "alone", "sctp"))
        # Over SCTP, a segment may be too long.
        wrong, head = Signal(), heads.i.payload
        m.d.comb += wrong.eq(bad[2] | (sctp & delayed(m, 1, length[1] > LONGEST_BODY, "long")))
        m.d.sync += again.eq(delayed(m, 2, asked.repeat, "repeats") & ~fails[1])
        place = self._place(m, table.step, known_tag, again | fails[2], leaves)
        m.d.comb += [
            now.fails.eq(fails[2]),
            now.stream.eq(known_number),
            size.markers.eq(state.llp.markers),
            size.after.eq(state.after),
            leaves.eq((state.open | again) & ~wrong & ~fails[2]),
            closes.eq(fails[2] | (wrong & ~known_tag.stops)),
            ends.eq(known_tag.ends & ~fails[2] & ~again),
            # A segment that is given up, and was to be sent again, fails like a read of the ring.
            alone.eq((fails[2] | (again & closes)) & ~state.lost),
            written.lost.eq(state.lost | alone),
            written.open.eq(state.open & ~closes),
            written.failed.eq(state.failed | (state.open & closes)),
            written.ending.eq((state.ending | (state.open & closes & ~alone)) & ~ends),
            written.llp.eq(state.llp),
            written.after.eq(Mux(leaves & ~again, size.then, state.after)),
            written.sequence.eq(Mux(leaves & ~again, Mux(
                sctp, state.sequence + 1, size.added(state.sequence)), state.sequence)),
            written.answered.eq(Mux(
                leaves & ends & known_tag.response, state.answered + 1, state.answered)),
            written.response.eq(
                state.response | (state.open & closes & ~alone & known_tag.response)),
            head.length.eq(length[2]),
            head.settings.eq(state.llp),
            head.phase.eq(
                state.after + 1 - Mux(again, (state.sequence - repeat.sequence)[2:9], 0)),
            head.stream.eq(known_number),
            head.sequence.eq(Mux(again, repeat.sequence, state.sequence)),
            head.record.eq(self._record(m, known_tag, again, state, place, repeat)),
            heads.i.valid.eq(known & leaves & ~sctp),
            packets.i.valid.eq(known & ~bad[2] & ~fails[2]),
            packets.i.payload.passes.eq(leaves),
            packets.i.payload.sctp.eq(sctp),
            table.write.valid.eq(self.set.valid),
            table.write.payload.address.eq(self.set.payload.stream),
            table.write.payload.data.eq(self.set.payload.state),
            self.set.ready.eq(table.write.ready),
        ]
        self._report(m, known, known_tag, state, now, length[2])
        wiring.connect(m, heads.o, wiring.flipped(self.heads))
        room = C(1, 1)
        if self.associations:
            m.d.comb += [
                sctp.eq(state.sctp),
                *(written[name].eq(state[name])
                  for name in ("sctp", "association", "sid", "limited")),
            ]
            room = self._chunks(m, known & leaves & sctp, head, state, again, repeat)
        m.d.comb += takes.eq(self.segments.valid & ~looks & ~self.fail.valid
                             & heads.half & packets.half & room & self.room)
        self._pass(m, packets)
        return m

    def _report(self, m, known, tag, state, now, length):
        """Reports the outcome of the segment of ``length`` that is ``known`` in this cycle."""
        passed, message = self.passed.payload, self.passed.payload.message
        m.d.sync += [
            self.passed.valid.eq(known & (now.alone | now.leaves | now.ends)),
            passed.leaves.eq(now.leaves),
            passed.sctp.eq(now.sctp),
            passed.ends.eq(now.ends | now.alone),
            message.stream.eq(now.stream),
            message.entries.eq(Mux(now.alone, 0, tag.entries)),
            message.signaled.eq(tag.signaled),
            message.lost.eq(now.alone),
            message.status.eq(Mux(now.leaves, SentStatus.SUCCESS, Mux(
                (state.open & now.closes) | (state.ending & ~now.alone),
                SentStatus.FAILED, SentStatus.FLUSHED))),
            self.leaves.eq(known & now.leaves & ~now.sctp),
            self.leaves_chunk.eq(known & now.leaves & now.sctp),
            self.dropped.eq(known & ~now.leaves & ~now.fails & ~tag.stops),
            self.ends.eq(known & ~now.fails & (tag.ends | tag.stops)),
            self.repeated.valid.eq(known & now.again & ~tag.stops),
            self.repeated.payload.eq(tag.entries),
            self.closed.valid.eq(known & state.open & now.closes),
            self.closed.payload.eq(now.stream),
        ]
        if self.associations:
            lost = known & ~now.leaves & ~now.fails & ~tag.stops & ~now.again
            m.d.sync += [
                self.refunds.valid.eq(lost & now.sctp & state.limited),
                self.refunds.payload.association.eq(state.association),
                self.refunds.payload.octets.eq(length + SSN),
            ]

    def _chunks(self, m, leaves, head, state, again, repeat):
        """Adds the queue of heads over SCTP; a segment with ``head`` ``leaves`` in this cycle.

        Returns whether half of the queue is free.
        """
        m.submodules.chunks = chunks = Store(ChunkHead(self.associations), depth=QUEUE)
        wiring.connect(m, chunks.o, wiring.flipped(self.chunks))
        chunk, lead = chunks.i.payload, self.segments.payload.lead
        m.d.comb += [
            chunks.i.valid.eq(leaves),
            chunk.control.eq(delayed(m, 3, lead == FUNCTION, "control")),
            chunk.ssn.eq(Mux(again, repeat.ssn, state.sequence[:16])),
            chunk.tsn.eq(repeat.sequence),
            chunk.again.eq(again),
            *(chunk[name].eq(head[name]) for name in ("length", "stream", "record")),
            *(chunk[name].eq(state[name]) for name in ("association", "sid")),
        ]
        return chunks.half

    def _place(self, m, step, tag, stays, leaves):
        """Keeps the place of each stream's next segment.

        Returns that of the segment whose ``step`` ends in this cycle, with ``tag``. If it
        ``stays``, it is that of the stream's next segment, too.
        """
        m.submodules.places = places = StepTable(_Place(), self.streams)
        place, then = places.found, places.becomes
        octets = delayed(m, 3, self.segments.payload.length, "octets")
        m.d.comb += then.eq(place)
        with m.If(~stays):
            m.d.comb += [
                then.entry.eq(place.entry + Mux(tag.ends, tag.entries, 0)),
                then.offset.eq(Mux(tag.ends, 0, Mux(
                    leaves, place.offset + octets, place.offset))),
            ]
        m.d.comb += [
            places.step.valid.eq(step.valid),
            places.step.payload.eq(step.payload),
            places.write.valid.eq(self.begin.valid),
            places.write.payload.address.eq(self.begin.payload),
            self.begin.ready.eq(places.write.ready),
        ]
        return place

    def _record(self, m, tag, again, state, place, repeat):
        """Returns the record of a segment with ``tag``."""
        record = Signal(SentRecord())
        m.d.comb += [
            record.entry.eq(Mux(again, repeat.entry, Mux(
                tag.response, state.answered, place.entry))),
            record.offset.eq(Mux(again, repeat.offset, place.offset)),
            record.entries.eq(Mux(again, repeat.entries, tag.entries)),
            record.response.eq(tag.response),
            record.ends.eq(tag.ends),
            record.signaled.eq(tag.signaled),
            record.repeat.eq(again),
        ]
        return record

    def _pass(self, m, packets):
        """Passes the packets that leave, and drops the others."""
        passes, sctp, beat = packets.o.payload.passes, packets.o.payload.sctp, self.beats
        ends = beat.valid & beat.ready & beat.payload.last
        # The framer is reached neither from the staging's distributed RAM nor by its ready signals.
        m.submodules.skid = skid = Skid(beat.payload.shape())
        wiring.connect(m, skid.o, wiring.flipped(self.o))
        ready = skid.i.ready
        if self.associations:
            ready = Mux(sctp, self.bodies.ready, ready)
            m.d.comb += [
                self.bodies.valid.eq(beat.valid & packets.o.valid & passes & sctp),
                self.bodies.payload.eq(beat.payload),
            ]
        m.d.comb += [
            skid.i.valid.eq(beat.valid & packets.o.valid & passes & ~sctp),
            skid.i.payload.eq(beat.payload),
            beat.ready.eq(packets.o.valid & (ready | ~passes)),
            packets.o.ready.eq(ends),
        ]
