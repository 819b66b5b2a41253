"""Keeps one error event for each stream until the host has read it."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import BlockRam
from ..lib.stream import Backlog, counted
from .segment import HEADER_WORDS

__all__ = ["ErrorEvent", "Events"]


class ErrorEvent(data.StructLayout):
    """An error event, with the contents that RFC 5041 section 7.1 requires.

    Members
    -------
    type : 4, code : 8
        Error Type and Error Code, RFC 5041 section 7.2.
    stream : stream_bits
    length : 16
        Octets of the DDP Segment, header included.
    sequence : 32
        LLP sequence number of the segment's FPDU.
    header : 160
        ULPDU_Length and DDP header as received.
    """

    def __init__(self, config):
        super().__init__({
            "type": 4, "code": 8, "stream": config.stream_bits, "length": 16, "sequence": 32,
            "header": 32 * HEADER_WORDS,
        })


class Events(wiring.Component):
    """Keeps the event of each stream in error, in order of arrival, until the host has read it.

    A stream raises one event and is then in error; its error state is cleared only while
    ``unread`` is low. Therefore a stream has at most one event here, and a ring with a slot for
    each stream never overflows: this block never waits, whatever the host does.

    Two tables tell whether a stream's event is unread: the slot in the ring of each stream's
    latest event, and the stream of each slot. ``unread`` means that the stream's slot is between
    the oldest and the newest event, and belongs to the stream. Both tables may hold anything
    outside of the ring's events, so they need no reset.

    Latency: 5 cycles from ``i`` to ``o``, 3 if ``config.relaxed``; ``LATENCY`` cycles from
    ``stream`` to ``unread``, which knows each event and each transfer of ``o`` before ``stream``.
    Throughput: one event per cycle. Reset: no event. Errors: none; an event of a stream whose event
    is unread is not allowed.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature(ErrorEvent(config), always_ready=True))
    o : Out(stream.Signature(ErrorEvent(config)))
        The oldest event; the transfer means that the host has read it.
    stream : In(stream_bits)
        A stream to look up; constant until its ``unread`` shows. It raises no event meanwhile.
    unread : Out(1)
        The event of ``stream`` waits here.
    """

    LATENCY = 5
    #: Slots in the smallest ring.
    LEAST = 16

    def __init__(self, config):
        self.config = config
        #: Slots in the ring.
        self.depth = max(self.LEAST, config.streams)
        super().__init__({
            "i": In(stream.Signature(ErrorEvent(config), always_ready=True)),
            "o": Out(stream.Signature(ErrorEvent(config))),
            "stream": In(config.stream_bits),
            "unread": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.ring = ring = Backlog(
            ErrorEvent(self.config), depth=self.depth, relaxed=self.config.relaxed)
        m.submodules.slots = slots = BlockRam(range(self.depth), self.config.streams)
        m.submodules.owners = owners = BlockRam(self.config.stream_bits, self.depth)
        newest, oldest = Signal(range(self.depth)), Signal(range(self.depth))
        count = Signal(range(self.depth + 1))
        popped = Signal()

        wiring.connect(m, wiring.flipped(self.i), ring.i)
        wiring.connect(m, ring.o, wiring.flipped(self.o))
        m.d.comb += popped.eq(self.o.valid & self.o.ready)
        counted(m, count, self.i.valid, popped)
        m.d.sync += [
            newest.eq(newest + self.i.valid),
            oldest.eq(oldest + popped),
        ]

        # The slot of the stream's latest event; then whether it is in use, and by which stream.
        # Both pointers move in the same cycle, so ``age`` and ``most`` are of the same moment.
        age, most = Signal.like(oldest), Signal.like(count)
        used = Signal()
        m.d.comb += [
            slots.write.valid.eq(self.i.valid),
            slots.write.payload.address.eq(self.i.payload.stream),
            slots.write.payload.data.eq(newest),
            slots.address[0].eq(self.stream),
            owners.write.valid.eq(self.i.valid),
            owners.write.payload.address.eq(newest),
            owners.write.payload.data.eq(self.i.payload.stream),
            owners.address[0].eq(slots.data[0]),
        ]
        m.d.sync += [
            age.eq(slots.data[0] - oldest),
            most.eq(count),
            used.eq(age < most),
            self.unread.eq(used & (owners.data[0] == self.stream)),
        ]
        return m
