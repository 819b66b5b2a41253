"""Where a segment's fate is decided: placed, passed on, or dropped."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..dma.placement import Placement
from ..llp.segment import HEADER_WORDS, Outcome, Segment, Verdict
from ..spec import ddp
from ..stream import Queue
from .tagged import CheckResult

__all__ = ["Commit", "ErrorEvent", "Move", "Tally"]


class ErrorEvent(data.StructLayout):
    """An error as RFC 5041 section 7.1 wants it reported.

    Members
    -------
    type : 4, code : 8
        RFC 5041 section 7.2.
    stream : 16
    length : 16
        Octets of the DDP Segment, header included.
    sequence : 32
        LLP sequence number of the segment's FPDU.
    header : 160
        ULPDU_Length and DDP header as received.
    """

    def __init__(self):
        super().__init__(
            {
                "type": 4,
                "code": 8,
                "stream": 16,
                "length": 16,
                "sequence": 32,
                "header": 32 * HEADER_WORDS,
            }
        )


class Move(data.StructLayout):
    """A placement that may still have markers in it.

    Members
    -------
    placement : Placement
    markers : 1
        Take out the word at every ``phase`` of 0.
    phase : 7
        Words from the last marker position to the first word.
    """

    def __init__(self, config):
        super().__init__({"placement": Placement(config.buffer_octets), "markers": 1, "phase": 7})


class Tally(data.StructLayout):
    """What the counters count: each member is high for one cycle a segment."""

    def __init__(self):
        super().__init__(
            {
                "placed": 1,
                "octets": 16,
                "exception": 1,
                "error": 1,
                "dropped": 1,
                "digest": 1,
            }
        )


class Commit(wiring.Component):
    """Joins a segment with its checks and its verdict, in order, and decides.

    Nothing goes on before the verdict is there (RFC 5041 section 3, item 6). The first error of a
    stream is reported; from then on its segments are dropped silently (section 7.1) until
    ``clear``.

    Latency: 5 cycles from the last of the three to ``moves``. Throughput: a segment a cycle.
    Reset: no stream is in error.
    Errors: through ``events``; while that waits, so does everything, and no event is lost.

    Members
    -------
    segments : In(stream.Signature(Segment))
    results : In(stream.Signature(CheckResult))
    verdicts : In(stream.Signature(Verdict))
        The last of the three: when it is valid, the two others must be.
    bus_errors : In(stream.Signature(16))
        Streams whose placement met a bus error.
    clear : In(stream.Signature(16))
        Streams whose error state is to be cleared.
    moves : Out(stream.Signature(Move))
    events : Out(stream.Signature(ErrorEvent))
    tally : Out(Tally)
    done : Out(1)
        A segment was taken: its place is free.
    busy : Out(1)
    """

    LATENCY = 5

    def __init__(self, config):
        self.config = config
        super().__init__(
            {
                "segments": In(stream.Signature(Segment(config))),
                "results": In(stream.Signature(CheckResult())),
                "verdicts": In(stream.Signature(Verdict(config))),
                "bus_errors": In(stream.Signature(16)),
                "clear": In(stream.Signature(16)),
                "moves": Out(stream.Signature(Move(config))),
                "events": Out(stream.Signature(ErrorEvent())),
                "tally": Out(Tally()),
                "done": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.moves = moves = Queue(Move(config), depth=16)
        m.submodules.events = events = Queue(ErrorEvent(), depth=16)
        wiring.connect(m, moves.o, wiring.flipped(self.moves))
        wiring.connect(m, events.o, wiring.flipped(self.events))
        m.submodules.dead = dead = memory.Memory(shape=1, depth=config.streams, init=[])
        dead_read = dead.read_port(domain="comb")
        dead_write = dead.write_port()

        # Take: a segment with all that is known of it; or, in a pause, a bus error or a request
        # to clear.
        pause = Signal()
        flowing = Signal()
        room = Signal()
        take = Signal()
        segment, result, verdict = (
            self.segments.payload,
            self.results.payload,
            self.verdicts.payload,
        )
        clearing, failing = Signal(), Signal()
        special = self.clear.valid | self.bus_errors.valid
        m.d.sync += [
            room.eq((moves.room > 8) & (events.room > 8)),
            flowing.eq(room & ~special),
            pause.eq(special),
        ]
        m.d.comb += [
            take.eq(flowing & self.verdicts.valid),
            clearing.eq(pause & self.clear.valid),
            failing.eq(pause & room & self.bus_errors.valid & ~self.clear.valid),
            self.clear.ready.eq(pause),
            self.bus_errors.ready.eq(failing),
            self.segments.ready.eq(take),
            self.results.ready.eq(take),
            self.verdicts.ready.eq(take),
            self.done.eq(take),
        ]

        # Prepare: an LLP error comes before the checks, since the header cannot be trusted.
        clears, fails, judges = Signal(), Signal(), Signal()
        event = Signal(ErrorEvent())
        move = Signal(Move(config))
        error, digest, tagged, enable = Signal(), Signal(), Signal(), Signal()
        length = Signal(16)
        framing = segment.oversize | (verdict.outcome == Outcome.FRAMING)
        placement = move.placement
        m.d.sync += [
            clears.eq(clearing),
            fails.eq(failing),
            judges.eq(take),
            event.header.eq(segment.header),
            event.length.eq(Cat(segment.header[8:16], segment.header[:8])),
            event.sequence.eq(segment.sequence),
            event.stream.eq(
                Mux(
                    pause,
                    Mux(self.clear.valid, self.clear.payload, self.bus_errors.payload),
                    segment.stream,
                )
            ),
            error.eq(framing | (verdict.outcome == Outcome.DIGEST) | result.error),
            digest.eq(~framing & (verdict.outcome == Outcome.DIGEST)),
            tagged.eq(result.tagged),
            enable.eq(result.enable),
            length.eq(result.length),
            placement.address.eq(result.address),
            placement.stream.eq(segment.stream),
            placement.sequence.eq(segment.sequence),
            placement.last.eq(1),
            placement.release.eq(verdict.end >> (config.words.bit_length() - 1)),
            move.phase.eq(segment.phase),
            move.markers.eq(segment.markers & result.tagged),
        ]
        with m.If(framing):
            m.d.sync += [event.type.eq(ddp.LLP_FRAMING.type), event.code.eq(ddp.LLP_FRAMING.code)]
        with m.Elif(verdict.outcome == Outcome.DIGEST):
            m.d.sync += [event.type.eq(ddp.LLP_CRC.type), event.code.eq(ddp.LLP_CRC.code)]
        with m.Else():
            m.d.sync += [event.type.eq(result.type), event.code.eq(result.code)]
        start = Signal.like(segment.start)
        whole = Signal.like(segment.start)
        m.d.sync += [
            start.eq(Mux(result.tagged, segment.payload, segment.start)),
            whole.eq(verdict.end - segment.start),
        ]

        # Judge: the only loop is the stream's error state.
        silent, raises = Signal(), Signal()
        m.d.comb += [
            dead_read.addr.eq(event.stream),
            dead_write.addr.eq(event.stream),
            silent.eq(dead_read.data | (judges & ~enable)),
            raises.eq((fails | (judges & error)) & ~silent),
            dead_write.en.eq(clears | raises),
            dead_write.data.eq(~clears),
        ]

        # Act. A bus error has a stream and no segment.
        judged, accepted = Signal(), Signal()
        final = Signal(Move(config))
        octets = Signal(16)
        passed_on = Signal()
        m.d.sync += [
            events.i.valid.eq(raises),
            events.i.payload.eq(event),
            judged.eq(judges),
            accepted.eq(judges & ~error & ~silent),
            final.eq(move),
            final.placement.start.eq(start << 2),
            final.placement.length.eq(Mux(tagged, length, whole << 2)),
            final.placement.exception.eq(~tagged),
            octets.eq(Mux(tagged, length, 0)),
            passed_on.eq(~tagged),
            moves.i.valid.eq(judged),
            moves.i.payload.eq(final),
            moves.i.payload.placement.length.eq(Mux(accepted, final.placement.length, 0)),
            moves.i.payload.placement.exception.eq(accepted & passed_on),
            self.tally.placed.eq(accepted & ~passed_on),
            self.tally.octets.eq(Mux(accepted, octets, 0)),
            self.tally.exception.eq(accepted & passed_on),
            self.tally.error.eq(raises),
            self.tally.dropped.eq(judges & silent),
            self.tally.digest.eq(judges & raises & digest),
        ]
        with m.If(fails):
            m.d.sync += [
                events.i.payload.eq(0),
                events.i.payload.stream.eq(event.stream),
                events.i.payload.type.eq(ddp.LOCAL_CATASTROPHIC.type),
                events.i.payload.code.eq(ddp.LOCAL_CATASTROPHIC.code),
            ]
        m.d.comb += self.busy.eq(
            self.segments.valid
            | self.clear.valid
            | judges
            | fails
            | clears
            | judged
            | moves.i.valid
            | moves.o.valid
            | (moves.room != 16)
            | self.bus_errors.valid
        )
        return m
