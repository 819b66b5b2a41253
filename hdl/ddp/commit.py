"""Where a segment's fate is decided: placed, passed on, or dropped."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..dma.placement import Placement
from ..llp.segment import HEADER_WORDS, Outcome, Segment, Verdict
from ..spec import ddp
from ..stream import Queue, Store, any_of
from .tagged import CheckResult

__all__ = ["Commit", "ErrorEvent", "IN_FLIGHT", "Move", "Tally"]

#: Segments that may be between their beginning and their commit.
IN_FLIGHT = 32


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


class _Taken(data.StructLayout):
    """What is taken up in a cycle: at most one of a segment with its verdict, a request to clear
    ``stream`` and a bus error of it.
    """

    KINDS = ("judges", "clears", "fails")

    def __init__(self, config):
        super().__init__(
            {**dict.fromkeys(self.KINDS, 1), "verdict": Verdict(config), "stream": 16}
        )


class Commit(wiring.Component):
    """Joins a segment with its checks and its verdict, in order, and decides.

    Nothing goes on before the verdict is there (RFC 5041 section 3, item 6). The first error of a
    stream is reported; from then on its segments are dropped silently (section 7.1) until
    ``clear``.

    What is known of a segment waits in block RAM for its verdict, the last of the three to come.

    Latency: 8 cycles from a verdict to ``moves``. Throughput: a segment a cycle.
    Reset: no stream is in error.
    Errors: through ``events``; while that waits, so does everything, and no event is lost.

    Members
    -------
    segments : In(stream.Signature(Segment, always_ready=True))
        No more than ``IN_FLIGHT`` without ``done``.
    results : In(stream.Signature(CheckResult, always_ready=True))
    verdicts : In(stream.Signature(Verdict, always_ready=True))
        Of a segment, no sooner than the two others.
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

    LATENCY = 8

    def __init__(self, config):
        self.config = config
        super().__init__(
            {
                "segments": In(stream.Signature(Segment(config), always_ready=True)),
                "results": In(stream.Signature(CheckResult(), always_ready=True)),
                "verdicts": In(stream.Signature(Verdict(config), always_ready=True)),
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

        m.submodules.verdicts = verdicts = Store(Verdict(config), depth=IN_FLIGHT)
        wiring.connect(m, wiring.flipped(self.verdicts), verdicts.i)

        # Take: the next segment that has its verdict; or, in a pause, a bus error or a request
        # to clear.
        special = Signal()
        pause = Signal()
        flowing = Signal()
        room = Signal()
        taken = Signal(_Taken(config))
        m.d.comb += special.eq(self.clear.valid | self.bus_errors.valid)
        m.d.sync += [
            room.eq(moves.half & events.half),
            flowing.eq(room & ~special),
            pause.eq(special),
        ]
        m.d.comb += [
            verdicts.o.ready.eq(flowing),
            self.done.eq(flowing & verdicts.o.valid),
            self.clear.ready.eq(pause),
            self.bus_errors.ready.eq(pause & room & ~self.clear.valid),
            taken.judges.eq(self.done),
            taken.clears.eq(pause & self.clear.valid),
            taken.fails.eq(self.bus_errors.valid & self.bus_errors.ready),
            taken.verdict.eq(verdicts.o.payload),
            taken.stream.eq(Mux(self.clear.valid, self.clear.payload, self.bus_errors.payload)),
        ]

        # Read: the segment and its checks, in the two cycles of a block RAM.
        read_1, read = Signal(_Taken(config)), Signal(_Taken(config))
        m.d.sync += [read_1.eq(taken), read.eq(read_1)]
        verdict = read.verdict
        segment = self._waiting(m, "segment", self.segments)
        result = self._waiting(m, "result", self.results)

        # Prepare: an LLP error comes before the checks, since the header cannot be trusted.
        clears, fails, judges = Signal(), Signal(), Signal()
        event = Signal(ErrorEvent())
        move = Signal(Move(config))
        error, digest, tagged, enable = Signal(), Signal(), Signal(), Signal()
        length = Signal(16)
        framing = segment.oversize | (verdict.outcome == Outcome.FRAMING)
        placement = move.placement
        owner = Signal(16)
        known, same = Signal(), Signal()
        m.d.comb += [
            owner.eq(Mux(read.judges, segment.stream, read.stream)),
            dead_read.addr.eq(owner),
        ]
        m.d.sync += [
            known.eq(dead_read.data),
            same.eq(owner == event.stream),
            clears.eq(read.clears),
            fails.eq(read.fails),
            judges.eq(read.judges),
            event.header.eq(segment.header),
            event.length.eq(Cat(segment.header[8:16], segment.header[:8])),
            event.sequence.eq(segment.sequence),
            event.stream.eq(owner),
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

        # Judge: the only loop is the stream's error state, which the table does not have yet from
        # one segment to the next.
        ended, silent, raises = Signal(), Signal(), Signal()
        becomes, became = Signal(), Signal()
        m.d.comb += [
            ended.eq(Mux(same, became, known)),
            silent.eq(ended | (judges & ~enable)),
            raises.eq((fails | (judges & error)) & ~silent),
            becomes.eq((ended | raises) & ~clears),
            dead_write.addr.eq(event.stream),
            dead_write.en.eq(clears | fails | judges),
            dead_write.data.eq(becomes),
        ]
        m.d.sync += became.eq(becomes)

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
            special
            | verdicts.o.valid
            | any_of(stage[kind] for stage in (read_1, read) for kind in _Taken.KINDS)
            | judges
            | fails
            | clears
            | judged
            | moves.i.valid
            | moves.o.valid
        )
        return m

    def _waiting(self, m, name, source):
        """What came through ``source`` for the segment that was taken two cycles before."""
        shape = source.payload.shape()
        m.submodules[name] = storage = memory.Memory(
            shape=shape,
            depth=IN_FLIGHT,
            init=[],
            attrs={"ram_style": "block", "no_rw_check": 1},
        )
        write, read = storage.write_port(), storage.read_port()
        # Without reset, to become the output register of the block RAM.
        held = Signal(shape, name=name, reset_less=True)
        m.d.comb += [write.en.eq(source.valid), write.data.eq(source.payload)]
        with m.If(write.en):
            m.d.sync += write.addr.eq(write.addr + 1)
        with m.If(self.done):
            m.d.sync += read.addr.eq(read.addr + 1)
        m.d.sync += held.eq(read.data)
        return held
