"""Makes Read Responses of the slots of Read Requests (RFC 5040 section 5.2)."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import ForwardedTable, StepTable
from ..lib.stream import Skid, Stage, Store, delayed
from ..rdmap import read_request
from ..rdmap.responder import Answered, Request, ResponseSlots
from ..spec.send import ENTRY, MESSAGE, PIECE, PIECE_OCTETS, Kind
from .segmenter import TurnResult
from .work import WorkEntry

__all__ = ["ResponseEntries", "ResponseRings"]

#: Requests that are read in a turn.
WINDOW = 8
QUEUE = 16
#: A kind of messages that does not exist: the entry is refused.
_NONE = 0xFF


class ResponseEntries(wiring.Component):
    """Makes entries of the send ring from the slots of Read Requests.

    A Read Response is a tagged message whose one piece is the source that the request names. Before
    it stands a piece of no octets at the source's last octet: the probe, with which the whole range
    is checked before any octet leaves. If the request's source or sink passes 2**64, the entry is
    not valid, and so the message is refused.

    Latency: 2 cycles. Throughput: one entry per cycle. Reset: empty. Errors: none.

    Members
    -------
    i, o : In, Out(stream.Signature(WorkEntry(streams)))
        Entries whose turn is not one for responses pass unchanged, in their own cycle if no entry
        is inside.
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "i": In(stream.Signature(WorkEntry(streams))),
            "o": Out(stream.Signature(WorkEntry(streams))),
        })

    def elaborate(self, platform):
        m = Module()
        work = WorkEntry(self.streams)
        shorter = data.StructLayout({"work": work, "less": 32})  # the length less one
        # No chain of ready signals leads through the two registers.
        m.submodules.first = first = Skid(shorter)
        m.submodules.then = then = Stage(work)
        passes = ~first.o.valid & ~then.o.valid & ~self.i.payload.turn.response
        m.d.comb += [
            self.o.valid.eq(Mux(passes, self.i.valid, then.o.valid)),
            self.o.payload.eq(Mux(passes, self.i.payload.as_value(), then.o.payload.as_value())),
            then.o.ready.eq(self.o.ready),
            first.i.valid.eq(self.i.valid & ~passes),
            self.i.ready.eq(Mux(passes, self.o.ready, first.i.ready)),
            first.i.payload.work.eq(self.i.payload),
            first.i.payload.less.eq(read_request.decode(self.i.payload.entry)["length"] - 1),
            then.i.valid.eq(first.o.valid),
            first.o.ready.eq(then.i.ready),
        ]
        now, less = first.o.payload.work, first.o.payload.less
        request = read_request.decode(now.entry)
        length = request["length"]
        source, sink, beyond = Signal(65), Signal(65), Signal()
        m.d.comb += [
            source.eq(request["source_to"] + less),
            sink.eq(request["sink_to"] + less),
            beyond.eq(length.any() & (source[64] | sink[64])),
            then.i.payload.eq(now),
        ]
        head = {
            "kind": Mux(beyond, _NONE, Kind.TAGGED), "entries": 1, "length": length,
            "pieces": Mux(length.any(), 2, 0),
            "rsvdulp": read_request.VERSION << 6 | read_request.RESPONSE,
            "stag": request["sink_stag"], "to": request["sink_to"],
        }
        probe = {"stag": request["source_stag"], "length": 0, "to": source[:64]}
        piece = {"stag": request["source_stag"], "length": length, "to": request["source_to"]}
        entry = Signal(8 * ENTRY)
        for fields, table, begin in (
            (head, MESSAGE, 0), (probe, PIECE, 2 * PIECE_OCTETS), (piece, PIECE, 3 * PIECE_OCTETS),
        ):
            for name, octet, bit, bits, _ in table:
                if name in fields:
                    at = 8 * (begin + octet) + bit
                    m.d.comb += entry[at:at + bits].eq(fields[name])
        with m.If(now.turn.response):
            m.d.comb += then.i.payload.entry.eq(entry)
        return m


class ResponseRings(wiring.Component):
    """Keeps the progress of each stream's Read Responses.

    Requests are answered in their order (RFC 5040 section 5.2.1). A request that comes wakes its
    stream. In a turn of the stream up to 8 slots are read. A slot is free again as soon as its
    response was cut whole, before the response leaves: a peer that then asks for its next Read
    finds a slot (RFC 5040 section 6.1).

    Latency: 4 cycles from ``turn`` to ``found``, 4 from ``cut`` to ``answered``. Throughput: a
    look-up per cycle; a response in 2 cycles; a result, a request and a write of slots each in one
    cycle. Reset: the tables stay. Errors: none.

    Members
    -------
    slots : In(stream.Signature(ResponseSlots(streams)))
        Replaces the slots of a stream of which no request is being answered; or, if they are not
        ``open``, ends its answers after a response that was begun.
    requests : In(stream.Signature(Request(streams)))
    wake : Out(stream.Signature(range(streams)))
    turn : In(range(streams)), found : Out
        Look-up: the slots to be read (``base``, ``size``, ``start``, ``count``), the octets that
        were sent of the first response (``done``, and whether there are any: ``begun``), whether
        there is a request (``sends``), whether there are more (``more``), and which bits of a
        number of slots make it as large as ``size`` or larger (``outside``). ``start`` is the MSN,
        modulo 2**16, which ``coming`` (Out(16)) has one cycle before.
    cut : In(stream.Signature(range(streams), always_ready=True))
        A response of the stream was cut whole: not in the cycle after another one, and before the
        result of its turn. ``room`` (Out(1)): there is room for 4 of them.
    results : In(stream.Signature(TurnResult(streams), always_ready=True))
        Only while ``open`` (Out(1)) is high.
    answered : Out(stream.Signature(Answered(streams)))
        Requests whose responses were cut whole.
    look : In(range(streams)), next : Out(32), asked : Out(16)
        The MSN of a stream's first request that is not in ``answered``, and the one after its last
        request, modulo 2**16; answered after 3 cycles.
    """

    def __init__(self, streams):
        self.streams = streams
        slots = ResponseSlots(streams)
        found = data.StructLayout({
            "base": slots["base"].shape, "size": 4, "start": 16, "count": 8, "done": 32,
            "begun": 1, "outside": 17, "sends": 1, "more": 1})
        super().__init__({
            "slots": In(stream.Signature(slots)),
            "requests": In(stream.Signature(Request(streams))),
            "wake": Out(stream.Signature(range(streams))),
            "turn": In(range(streams)),
            "found": Out(found),
            "coming": Out(16),
            "cut": In(stream.Signature(range(streams), always_ready=True)),
            "room": Out(1),
            "results": In(stream.Signature(TurnResult(streams), always_ready=True)),
            "open": Out(1),
            "answered": Out(stream.Signature(Answered(streams))),
            "look": In(range(streams)),
            "next": Out(32),
            "asked": Out(16),
        })

    def elaborate(self, platform):
        m = Module()
        found = self.found.shape()
        ring = data.StructLayout({"base": found["base"].shape, "size": 4, "open": 1})
        m.submodules.slot_table = slots = ForwardedTable(ring, self.streams)
        m.submodules.requested = requested = ForwardedTable(16, self.streams, reads=2)
        m.submodules.msns = msns = StepTable(32, self.streams, reads=2)
        m.submodules.begun = begun = ForwardedTable(32, self.streams)  # octets
        m.submodules.answers = answers = Store(Answered(self.streams), depth=QUEUE)
        wiring.connect(m, answers.o, wiring.flipped(self.answered))

        # New slots change all tables in the same cycle, one after they came, so that no turn sees
        # some of the old ones. Results wait for them.
        request, result = self.requests.payload, self.results.payload
        ended, sets, opens = Signal(), Signal(), Signal()
        fresh, last = delayed(m, 1, self.slots.payload, "fresh"), delayed(m, 1, result, "last")
        starts = opens & fresh.open
        m.d.sync += [
            self.open.eq(~self.slots.valid), ended.eq(self.results.valid), opens.eq(sets)]
        m.d.comb += [
            self.slots.ready.eq(~self.open & ~msns.steps),
            sets.eq(self.slots.valid & self.slots.ready),
            self.requests.ready.eq(~sets & self.wake.ready),
            self.wake.valid.eq(self.requests.valid & ~sets),
            self.wake.payload.eq(request.stream),
            slots.write.valid.eq(opens),
            slots.write.payload.address.eq(fresh.stream),
            *(slots.write.payload.data[name].eq(fresh[name]) for name, _ in ring),
            msns.step.valid.eq(self.cut.valid),
            msns.step.payload.eq(self.cut.payload),
            msns.becomes.eq(msns.found + 1),
            msns.write.valid.eq(starts),
            msns.write.payload.address.eq(fresh.stream),
            msns.write.payload.data.eq(fresh.msn),
            begun.write.valid.eq(ended | starts),
            begun.write.payload.address.eq(Mux(ended, last.stream, fresh.stream)),
            begun.write.payload.data.eq(Mux(ended, last.done, 0)),
            answers.i.valid.eq(msns.steps),
            answers.i.payload.stream.eq(delayed(m, 3, self.cut.payload, "stream")),
            answers.i.payload.msn.eq(msns.found),
            self.room.eq(answers.half),
            requested.address[1].eq(self.look),
            self.asked.eq(requested.data[1]),
            msns.address[1].eq(self.look),
        ]

        # The stream's turn comes later than its wake by more than this cycle.
        m.d.sync += [
            requested.write.valid.eq(
                (sets & self.slots.payload.open) | (self.requests.valid & self.requests.ready)),
            requested.write.payload.address.eq(
                Mux(sets, self.slots.payload.stream, request.stream)),
            requested.write.payload.data.eq(Mux(sets, self.slots.payload.msn, request.following)),
            self.next.eq(msns.data[1]),
        ]

        # The look-up: two cycles, and two for the result. The last response of an earlier turn was
        # counted before, because the result of that turn passes two queues.
        available, done3 = Signal(16), delayed(m, 1, begun.data[0], "done3")
        next3, slot3 = delayed(m, 1, msns.data[0], "next3"), delayed(m, 1, slots.data[0], "slot")
        m.d.comb += [
            address.eq(self.turn) for address in (
                slots.address[0], requested.address[0], msns.address[0], begun.address[0])
        ]
        m.d.comb += self.coming.eq(next3)
        m.d.sync += [
            available.eq(requested.data[0] - msns.data[0][:16]),
            self.found.base.eq(slot3.base),
            self.found.size.eq(slot3.size),
            self.found.start.eq(next3),
            self.found.count.eq(Mux(available > WINDOW, WINDOW, available)),
            self.found.done.eq(done3),
            self.found.begun.eq(done3.any()),
            self.found.outside.eq(Cat(slot3.size <= k for k in range(17))),
            self.found.sends.eq(available.any() & (slot3.open | done3.any())),
            self.found.more.eq(available > WINDOW),
        ]
        with m.If(~slot3.open):
            m.d.sync += [self.found.count.eq(1), self.found.more.eq(0)]
        return m
