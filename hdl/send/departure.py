"""Lets segments leave in the order of their stream, and gives each its place in it."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..dma.staging import StagedHead
from ..lib.blockram import FEW, ForwardedTable
from ..lib.stream import Beat, Store, delayed
from ..mpa.framer import FpduHead, SentRecord
from ..mpa.intake import LlpSettings
from ..mpa.length import FpduLength
from ..spec.completion import SentStatus
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
    """

    def __init__(self):
        super().__init__({
            "open": 1, "failed": 1, "ending": 1, "llp": LlpSettings(), "after": 7, "sequence": 32,
            "answered": 16, "response": 1, "lost": 1})


class _Place(data.StructLayout):
    """The place of a stream's next segment: ``entry`` (16) and ``offset`` (32) of its record."""

    def __init__(self):
        super().__init__({"entry": 16, "offset": 32})


class SendSetting(data.StructLayout):
    """The new state of the sending half of ``stream``: ``state``, a SendState."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "state": SendState()})


class Departure(wiring.Component):
    """Gives each segment that was read whole its LLP sequence number, and drops the others.

    A segment that was refused, or that the bus did not read, uses no number; it closes the sending
    half of its stream, so that no later segment leaves (RFC 5041 section 7.1). The positions count
    markers, padding and CRC (RFC 5044 section 4).

    A segment that is sent again keeps its number, and changes none. It leaves even after the half
    was closed: a Terminate reaches the peer only after all octets before it.

    Latency: 3 cycles from ``segments`` to ``heads``. Throughput: one segment in 2 cycles, one beat
    per cycle. Reset: empty; the states stay. Errors: ``failed`` in the state.

    Parameters
    ----------
    width, streams : int

    Members
    -------
    set : In(stream.Signature(SendSetting(streams)))
        Replaces the state of a stream, while no segment of it is under way.
    look : In(range(streams)), state : Out(SendState())
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
    fail : In(stream.Signature(range(streams)))
        Closes the sending half of a stream.
    passed : Out(stream.Signature(Passed(streams), always_ready=True))
        Each segment that leaves, or that ends a message; and each closing by ``fail``, as the end
        of a message that failed and has no entry.
    room : In(1)
        There is room for two of these, and of ``closed``.
    closed : Out(stream.Signature(range(streams), always_ready=True))
        A stream whose sending half has failed.
    leaves, dropped, ends : Out(1)
        High for one cycle for each segment that leaves, that does not leave, and that ends its
        message or stops it.
    """

    def __init__(self, width, streams):
        self.streams = streams
        super().__init__({
            "set": In(stream.Signature(SendSetting(streams))),
            "begin": In(stream.Signature(range(streams))),
            "slot": Out(SLOT_BITS),
            "repeat": In(Repeat(streams)),
            "repeated": Out(stream.Signature(SLOT_BITS, always_ready=True)),
            "look": In(range(streams)),
            "state": Out(SendState()),
            "segments": In(stream.Signature(StagedHead())),
            "beats": In(stream.Signature(Beat(width))),
            "heads": Out(stream.Signature(FpduHead())),
            "o": Out(stream.Signature(Beat(width))),
            "fail": In(stream.Signature(range(streams))),
            "passed": Out(stream.Signature(Passed(streams), always_ready=True)),
            "room": In(1),
            "closed": Out(stream.Signature(range(streams), always_ready=True)),
            "leaves": Out(1),
            "dropped": Out(1),
            "ends": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = ForwardedTable(SendState(), self.streams, reads=2, few=FEW)
        m.submodules.heads = heads = Store(FpduHead(), depth=QUEUE)
        m.submodules.packets = packets = Store(1, depth=QUEUE)
        segment, tag = self.segments.payload, SegmentTag()
        asked = data.View(tag, segment.tag[:tag.size])
        number = Mux(self.fail.valid, self.fail.payload, asked.stream)
        # A segment takes two cycles for its look-up, and is written back in the third one.
        takes, looks, known = Signal(), Signal(), Signal()
        length = [Signal(16, name=f"length{n}") for n in (1, 2)]
        repeat = Signal(Repeat(self.streams))
        bad, fails = Signal(2), Signal(2)  # fails: a stream is closed, in the place of a segment
        m.submodules.size = size = FpduLength()
        m.d.comb += [
            size.octets.eq(segment.lead + segment.length),
            self.fail.ready.eq(~looks & self.room),
            takes.eq(self.segments.valid & ~looks & ~self.fail.valid
                     & heads.half & packets.half & self.room),
            self.segments.ready.eq(takes),
            table.address[0].eq(number),
            table.address[1].eq(self.look),
            self.state.eq(table.data[1]),
            self.slot.eq(delayed(m, 1, asked.entries, "slot")),
        ]
        m.d.sync += [
            looks.eq(takes | (self.fail.valid & self.fail.ready)),
            known.eq(looks),
            fails.eq(Cat(self.fail.valid & self.fail.ready, fails)),
            length[0].eq(segment.lead + segment.length),
            length[1].eq(length[0]),
            repeat.eq(self.repeat),
            bad.eq(Cat(segment.refused | segment.failed, bad)),
        ]
        known_tag = delayed(m, 2, asked, "tag")
        known_number = delayed(m, 2, number, "number")[:exact_log2(self.streams)]
        ends, again, alone = Signal(), Signal(), Signal()
        state, leaves, closes = Signal(SendState()), Signal(), Signal()
        written, head = Signal(SendState()), heads.i.payload
        m.d.comb += [
            state.eq(table.data[0]),
            size.markers.eq(state.llp.markers),
            size.after.eq(state.after),
            again.eq(known_tag.repeat & ~fails[1]),
            leaves.eq((state.open | again) & ~bad[1] & ~fails[1]),
            closes.eq(fails[1] | (bad[1] & ~known_tag.stops)),
            ends.eq(known_tag.ends & ~fails[1] & ~again),
            # A segment that is given up, and was to be sent again, fails like a read of the ring.
            alone.eq(fails[1] | (again & closes)),
            written.lost.eq(state.lost | (state.open & alone)),
            written.open.eq(state.open & ~closes),
            written.failed.eq(state.failed | (state.open & closes)),
            written.ending.eq((state.ending | (state.open & closes & ~alone)) & ~ends),
            written.llp.eq(state.llp),
            written.after.eq(Mux(leaves & ~again, size.then, state.after)),
            written.sequence.eq(state.sequence + Mux(leaves & ~again, size.words << 2, 0)),
            written.answered.eq(state.answered + (leaves & ends & known_tag.response)),
            written.response.eq(
                state.response | (state.open & closes & ~alone & known_tag.response)),
            head.length.eq(length[1]),
            head.settings.eq(state.llp),
            head.phase.eq(
                state.after + 1 - Mux(again, (state.sequence - repeat.sequence)[2:9], 0)),
            head.stream.eq(known_number),
            head.sequence.eq(Mux(again, repeat.sequence, state.sequence)),
            head.record.eq(self._record(m, known & ~fails[1], known_tag, again, leaves, repeat)),
            heads.i.valid.eq(known & leaves),
            packets.i.valid.eq(known & ~bad[1] & ~fails[1]),
            packets.i.payload.eq(leaves),
            table.write.valid.eq(known | self.set.valid),
            table.write.payload.address.eq(Mux(known, known_number, self.set.payload.stream)),
            table.write.payload.data.eq(Mux(known, written, self.set.payload.state)),
            self.set.ready.eq(~known),
        ]
        passed, message = self.passed.payload, self.passed.payload.message
        m.d.comb += [
            self.passed.valid.eq(known & Mux(alone, state.open, leaves | ends)),
            passed.leaves.eq(leaves),
            passed.ends.eq(ends | alone),
            message.stream.eq(known_number),
            message.entries.eq(Mux(alone, 0, known_tag.entries)),
            message.signaled.eq(known_tag.signaled),
            message.lost.eq(alone),
            message.status.eq(Mux(leaves, SentStatus.SUCCESS, Mux(
                (state.open & closes) | state.ending, SentStatus.FAILED, SentStatus.FLUSHED))),
        ]
        m.d.sync += [
            self.leaves.eq(known & leaves),
            self.dropped.eq(known & ~leaves & ~fails[1] & ~known_tag.stops),
            self.ends.eq(known & ~fails[1] & (known_tag.ends | known_tag.stops)),
            self.repeated.valid.eq(known & again & ~known_tag.stops),
            self.repeated.payload.eq(known_tag.entries),
        ]
        m.d.sync += [
            self.closed.valid.eq(known & state.open & closes),
            self.closed.payload.eq(known_number),
        ]
        wiring.connect(m, heads.o, wiring.flipped(self.heads))
        self._pass(m, packets)
        return m

    def _record(self, m, known, tag, again, leaves, repeat):
        """Returns the record of the segment that is ``known`` in this cycle, with ``tag``."""
        asked = data.View(tag.shape(), self.segments.payload.tag[:tag.shape().size])
        m.submodules.places = places = ForwardedTable(_Place(), self.streams, few=FEW)
        place, then = Signal(_Place()), Signal(_Place())
        writes, record = places.write, Signal(SentRecord())
        m.d.comb += [
            places.address[0].eq(asked.stream),
            place.eq(places.data[0]),
            then.entry.eq(place.entry + Mux(tag.ends, tag.entries, 0)),
            then.offset.eq(Mux(tag.ends, 0, place.offset + Mux(
                leaves, delayed(m, 2, self.segments.payload.length, "octets"), 0))),
            writes.valid.eq((known & ~again) | self.begin.valid),
            writes.payload.address.eq(Mux(known & ~again, tag.stream, self.begin.payload)),
            writes.payload.data.eq(Mux(known & ~again, then.as_value(), 0)),
            self.begin.ready.eq(~known | again),
            record.entry.eq(Mux(again, repeat.entry, Mux(
                tag.response, m.submodules.table.data[0].answered, place.entry))),
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
        passes, beat = packets.o.payload, self.beats
        ends = beat.valid & beat.ready & beat.payload.last
        m.d.comb += [
            self.o.valid.eq(beat.valid & packets.o.valid & passes),
            self.o.payload.eq(beat.payload),
            beat.ready.eq(packets.o.valid & (self.o.ready | ~passes)),
            packets.o.ready.eq(ends),
        ]
