"""Makes Read Responses of the slots of Read Requests (RFC 5040 section 5.2)."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import ForwardedTable
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
    stream. In a turn of the stream up to 8 slots are read.

    Latency: 4 cycles from ``turn`` to ``found``. Throughput: a look-up per cycle; a result, a
    request and a write of slots each in one cycle. Reset: the tables stay. Errors: none.

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
    results : In(stream.Signature(TurnResult(streams), always_ready=True))
        Only while ``room`` (Out(1)) is high, and ``waits`` (In(1)), with the same payload.
    answered : Out(stream.Signature(Answered(streams)))
        Requests whose responses were cut whole.
    look : In(range(streams)), next : Out(32), asked : Out(16)
        The MSN of a stream's first request that is not in ``answered``, and the one after its last
        request, modulo 2**16; answered after 3 cycles, or as soon as no result is in the way.
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
            "results": In(stream.Signature(TurnResult(streams), always_ready=True)),
            "waits": In(1),
            "room": Out(1),
            "answered": Out(stream.Signature(Answered(streams))),
            "look": In(range(streams)),
            "next": Out(32),
            "asked": Out(16),
        })

    def elaborate(self, platform):
        m = Module()
        progress = data.StructLayout({"next": 32, "done": 32})
        found = self.found.shape()
        ring = data.StructLayout({"base": found["base"].shape, "size": 4, "open": 1})
        m.submodules.slot_table = slots = ForwardedTable(ring, self.streams)
        m.submodules.requested = requested = ForwardedTable(16, self.streams, reads=2)
        m.submodules.progress = states = ForwardedTable(
            progress, self.streams, reads=2)
        m.submodules.answers = answers = Store(Answered(self.streams), depth=QUEUE)
        wiring.connect(m, answers.o, wiring.flipped(self.answered))

        # A result of three cycles ago meets the state that it changes. New slots change all tables
        # in the same cycle, one after they came, so that no turn sees some of the old ones.
        request, result = self.requests.payload, self.results.payload
        coming = delayed(m, 2, self.results.valid, "coming")
        changes = delayed(m, 1, coming, "changes")
        written = delayed(m, 3, result, "written")
        before, sets = delayed(m, 1, states.data[1], "before"), Signal()
        opens, fresh = Signal(), delayed(m, 1, self.slots.payload, "fresh")
        starts = opens & fresh.open
        m.d.sync += opens.eq(sets)
        m.d.comb += [
            self.slots.ready.eq(~coming),
            sets.eq(self.slots.valid & self.slots.ready),
            self.requests.ready.eq(~sets & self.wake.ready),
            self.wake.valid.eq(self.requests.valid & ~sets),
            self.wake.payload.eq(request.stream),
            slots.write.valid.eq(opens),
            slots.write.payload.address.eq(fresh.stream),
            *(slots.write.payload.data[name].eq(fresh[name]) for name, _ in ring),
            states.address[1].eq(Mux(self.waits, result.stream, self.look)),
            requested.address[1].eq(self.look),
            self.asked.eq(requested.data[1]),
            states.write.valid.eq(changes | starts),
            states.write.payload.address.eq(Mux(changes, written.stream, fresh.stream)),
            states.write.payload.data.next.eq(
                Mux(changes, before.next + written.entries, fresh.msn)),
            states.write.payload.data.done.eq(Mux(changes, written.done, 0)),
            answers.i.valid.eq(changes & written.entries.any()),
            answers.i.payload.stream.eq(written.stream),
            answers.i.payload.msn.eq(before.next),
            answers.i.payload.count.eq(written.entries),
        ]

        # The stream's turn comes later than its wake by more than this cycle.
        m.d.sync += [
            requested.write.valid.eq(
                (sets & self.slots.payload.open) | (self.requests.valid & self.requests.ready)),
            requested.write.payload.address.eq(
                Mux(sets, self.slots.payload.stream, request.stream)),
            requested.write.payload.data.eq(Mux(sets, self.slots.payload.msn, request.following)),
            # The results of six cycles fit in the other half.
            self.room.eq(delayed(m, 1, answers.half, "half")),
        ]
        with m.If(~delayed(m, 2, self.waits, "waited")):  # then the host looks at the state
            m.d.sync += self.next.eq(states.data[1].next)

        # The look-up: two cycles, and two for the result.
        available = Signal(16)
        state3, slot3 = delayed(m, 1, states.data[0], "state"), delayed(m, 1, slots.data[0], "slot")
        m.d.comb += [
            address.eq(self.turn)
            for address in (slots.address[0], requested.address[0], states.address[0])
        ]
        m.d.comb += self.coming.eq(state3.next)
        m.d.sync += [
            available.eq(requested.data[0] - states.data[0].next[:16]),
            self.found.base.eq(slot3.base),
            self.found.size.eq(slot3.size),
            self.found.start.eq(state3.next),
            self.found.count.eq(Mux(available > WINDOW, WINDOW, available)),
            self.found.done.eq(state3.done),
            self.found.begun.eq(state3.done.any()),
            self.found.outside.eq(Cat(slot3.size <= k for k in range(17))),
            self.found.sends.eq(available.any() & (slot3.open | state3.done.any())),
            self.found.more.eq(available > WINDOW),
        ]
        with m.If(~slot3.open):
            m.d.sync += [self.found.count.eq(1), self.found.more.eq(0)]
        return m
