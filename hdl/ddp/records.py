"""Passes on the records of segments that Delivery needs."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import delayed
from .delivery import Record
from .precedence import Overtaking, key_of

__all__ = ["RecordFilter"]


class RecordFilter(wiring.Component):
    """Adds to each segment's record whether it overtakes, and drops the records without news.

    Delivery needs the records of three kinds of segments only: the last one of a message, one that
    overtakes another message, and the first one of a stream that was cleared. The record of a
    tagged message gets the message's span. Records of items pass as they are.

    Latency: ``LATENCY`` cycles. Throughput: one record per cycle. Reset: no record is on its way;
    the tables of :class:`~.precedence.Overtaking` stay. Errors: none.

    Parameters
    ----------
    config : RnicConfig
    unordered : bool
        True if records of items are among them.

    Members
    -------
    i : In(stream.Signature(Record(config), always_ready=True))
        Records in the order of the sender, without ``found``.
    clear : In(stream.Signature(16, always_ready=True))
        A stream that restarts: it has had no record for some cycles, and has none in the next one.
    o : Out(stream.Signature(Record(config), always_ready=True))
    busy : Out(1)
        A record is on its way.
    """

    LATENCY = Overtaking.LATENCY + 1

    def __init__(self, config, *, unordered=False):
        self.config, self.unordered = config, unordered
        record = stream.Signature(Record(config, unordered=unordered), always_ready=True)
        super().__init__({
            "i": In(record),
            "clear": In(stream.Signature(16, always_ready=True)),
            "o": Out(record),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.overtaking = overtaking = Overtaking(self.config.streams)
        record = self.i.payload
        clears = delayed(m, 1, self.clear.valid, "clears")
        came = delayed(m, self.LATENCY, record, "record")
        found = delayed(m, 1, overtaking.o, "found")
        valid = Signal(self.LATENCY)
        of_item, came_item = (record.sctp, came.sctp) if self.unordered else (C(0), C(0))
        m.d.sync += valid.eq(Cat(self.i.valid, valid))
        # A cleared stream has had no record for some cycles, so the two inputs never collide.
        m.d.comb += [
            overtaking.i.valid.eq((self.i.valid & ~of_item) | clears),
            overtaking.i.payload.stream.eq(Mux(
                clears, delayed(m, 1, self.clear.payload, "cleared"), record.stream)),
            overtaking.i.payload.key.eq(key_of(record)),
            overtaking.i.payload.last.eq(record.complete),
            overtaking.i.payload.to.eq(record.cookie),
            overtaking.i.payload.length.eq(record.length),
            overtaking.i.payload.clear.eq(clears),
            self.o.payload.eq(came),
            self.o.payload.found.eq(found),
            self.o.valid.eq(valid[-1] & (
                came.complete | found.over | found.first | came_item)),
            self.busy.eq(valid.any()),
        ]
        with m.If(came.tagged & ~came_item):
            m.d.comb += [
                self.o.payload.cookie.eq(overtaking.span.begin),
                self.o.payload.length.eq(overtaking.span.length),
            ]
        return m
