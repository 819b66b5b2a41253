"""Lets segments leave in the order of their stream, and gives each its place in it."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..dma.staging import StagedHead
from ..lib.blockram import FEW, ForwardedTable
from ..lib.stream import Beat, Store, delayed
from ..mpa.framer import FpduHead
from ..mpa.intake import LlpSettings
from ..mpa.length import FpduLength
from ..spec.completion import SentStatus
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
    """

    def __init__(self):
        super().__init__({
            "open": 1, "failed": 1, "ending": 1, "llp": LlpSettings(), "after": 7, "sequence": 32,
            "answered": 16, "response": 1})


class SendSetting(data.StructLayout):
    """The new state of the sending half of ``stream``: ``state``, a SendState."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "state": SendState()})


class Departure(wiring.Component):
    """Gives each segment that was read whole its LLP sequence number, and drops the others.

    A segment that was refused, or that the bus did not read, uses no number; it closes the sending
    half of its stream, so that no later segment leaves (RFC 5041 section 7.1). The positions count
    markers, padding and CRC (RFC 5044 section 4).

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
    segments : In(stream.Signature(StagedHead()))
        The tag is that of :class:`~.segmenter.Segmenter`.
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
        ]
        m.d.sync += [
            looks.eq(takes | (self.fail.valid & self.fail.ready)),
            known.eq(looks),
            fails.eq(Cat(self.fail.valid & self.fail.ready, fails)),
            length[0].eq(segment.lead + segment.length),
            length[1].eq(length[0]),
            bad.eq(Cat(segment.refused | segment.failed, bad)),
        ]
        known_tag = delayed(m, 2, asked, "tag")
        known_number = delayed(m, 2, number, "number")[:exact_log2(self.streams)]
        ends = Signal()
        state, leaves, closes = Signal(SendState()), Signal(), Signal()
        written, head = Signal(SendState()), heads.i.payload
        m.d.comb += [
            state.eq(table.data[0]),
            size.markers.eq(state.llp.markers),
            size.after.eq(state.after),
            leaves.eq(state.open & ~bad[1] & ~fails[1]),
            closes.eq(fails[1] | (bad[1] & ~known_tag.stops)),
            ends.eq(known_tag.ends & ~fails[1]),
            written.open.eq(state.open & ~closes),
            written.failed.eq(state.failed | (state.open & closes)),
            written.ending.eq((state.ending | (state.open & closes & ~fails[1])) & ~ends),
            written.llp.eq(state.llp),
            written.after.eq(Mux(leaves, size.then, state.after)),
            written.sequence.eq(state.sequence + Mux(leaves, size.words << 2, 0)),
            written.answered.eq(state.answered + (leaves & ends & known_tag.response)),
            written.response.eq(
                state.response | (state.open & closes & ~fails[1] & known_tag.response)),
            head.length.eq(length[1]),
            head.settings.eq(state.llp),
            head.phase.eq(state.after + 1),
            head.stream.eq(known_number),
            head.sequence.eq(state.sequence),
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
            self.passed.valid.eq(known & Mux(fails[1], state.open, leaves | ends)),
            passed.leaves.eq(leaves),
            passed.ends.eq(ends | fails[1]),
            message.stream.eq(known_number),
            message.entries.eq(Mux(fails[1], 0, known_tag.entries)),
            message.signaled.eq(known_tag.signaled),
            message.status.eq(Mux(leaves, SentStatus.SUCCESS, Mux(
                (state.open & closes) | state.ending, SentStatus.FAILED, SentStatus.FLUSHED))),
        ]
        m.d.sync += [
            self.leaves.eq(known & leaves),
            self.dropped.eq(known & ~leaves & ~fails[1] & ~known_tag.stops),
            self.ends.eq(known & (ends | (known_tag.stops & ~fails[1]))),
        ]
        m.d.sync += [
            self.closed.valid.eq(known & state.open & closes),
            self.closed.payload.eq(known_number),
        ]
        wiring.connect(m, heads.o, wiring.flipped(self.heads))
        self._pass(m, packets)
        return m

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
