"""Where a segment's fate is decided: placed, passed on, or dropped."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..dma.placement import Placement
from ..llp.segment import HEADER_WORDS, Outcome, Segment, Verdict
from ..spec import ddp
from ..stream import Queue, Skid, Store, any_of
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


class ErrorState(wiring.Component):
    """Which streams are in error.

    Look-ups and what comes of them go through in order, one a cycle: the state that is shown holds
    all that was decided before.

    Latency: 2 cycles from ``index`` to ``ended``. Throughput: 1 a cycle. Reset: the states stay.
    Errors: none.

    Members
    -------
    index : In(16)
    ended : Out(1)
        The stream of two cycles ago is in error; combinational from registers.
    update : In(1), becomes : In(1)
        That stream's state from now on.
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({"index": In(16), "ended": Out(1), "update": In(1), "becomes": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.storage = storage = memory.Memory(
            shape=1,
            depth=self.streams,
            init=[],
            attrs={"ram_style": "block", "no_rw_check": 1},
        )
        read, write = storage.read_port(), storage.write_port()
        # Without reset, to become the output register of the block RAM.
        known = Signal(reset_less=True)
        # index[k] came k cycles ago. The table does not have what the last three look-ups became.
        index = [self.index, *(Signal(16, name=f"index{k}") for k in range(1, 5))]
        m.d.sync += [later.eq(earlier) for earlier, later in zip(index, index[1:], strict=False)]
        same, became = Signal(3), Signal(3)
        ended = known
        for k in reversed(range(3)):
            ended = Mux(same[k], became[k], ended)
        m.d.comb += [
            read.addr.eq(self.index),
            write.addr.eq(index[3]),
            self.ended.eq(ended),
        ]
        m.d.sync += [
            write.en.eq(self.update),
            write.data.eq(self.becomes),
            known.eq(read.data),
            same.eq(Cat(index[1] == index[k] for k in range(2, 5))),
            became.eq(Cat(Mux(self.update, self.becomes, self.ended), became)),
        ]
        return m


class _Prepared(data.StructLayout):
    """All that the decision on what was taken needs: what it was, and ``move``, ``event``."""

    def __init__(self, config):
        position = range(config.buffer_octets // 4)
        super().__init__(
            {
                **dict.fromkeys(_Taken.KINDS, 1),
                "error": 1,
                "digest": 1,
                "tagged": 1,
                "enable": 1,
                "length": 16,
                "start": position,
                "whole": position,
                "event": ErrorEvent(),
                "move": Move(config),
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

    Latency: 9 cycles from a verdict to ``moves``. Throughput: a segment a cycle.
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

    LATENCY = 9

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
        m.submodules.moves = moves = Store(Move(config), depth=16)
        m.submodules.skid = skid = Skid(Move(config))
        m.submodules.events = events = Queue(ErrorEvent(), depth=16)
        wiring.connect(m, moves.o, skid.i)
        wiring.connect(m, skid.o, wiring.flipped(self.moves))
        wiring.connect(m, events.o, wiring.flipped(self.events))
        m.submodules.errors = errors = ErrorState(config.streams)
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
        first, item = Signal(_Prepared(config)), Signal(_Prepared(config))
        framing = segment.oversize | (verdict.outcome == Outcome.FRAMING)
        event, placement = first.event, first.move.placement
        m.d.comb += errors.index.eq(Mux(read.judges, segment.stream, read.stream))
        m.d.sync += [
            item.eq(first),
            *(first[kind].eq(read[kind]) for kind in _Taken.KINDS),
            first.error.eq(framing | (verdict.outcome == Outcome.DIGEST) | result.error),
            first.digest.eq(~framing & (verdict.outcome == Outcome.DIGEST)),
            first.tagged.eq(result.tagged),
            first.enable.eq(result.enable),
            first.length.eq(result.length),
            first.start.eq(Mux(result.tagged, segment.payload, segment.start)),
            first.whole.eq(verdict.end - segment.start),
            event.header.eq(segment.header),
            event.length.eq(Cat(segment.header[8:16], segment.header[:8])),
            event.sequence.eq(segment.sequence),
            event.stream.eq(errors.index),
            placement.address.eq(result.address),
            placement.stream.eq(segment.stream),
            placement.sequence.eq(segment.sequence),
            placement.last.eq(1),
            placement.release.eq(verdict.end >> (config.words.bit_length() - 1)),
            first.move.phase.eq(segment.phase),
            first.move.markers.eq(segment.markers & result.tagged),
        ]
        with m.If(framing):
            m.d.sync += [event.type.eq(ddp.LLP_FRAMING.type), event.code.eq(ddp.LLP_FRAMING.code)]
        with m.Elif(verdict.outcome == Outcome.DIGEST):
            m.d.sync += [event.type.eq(ddp.LLP_CRC.type), event.code.eq(ddp.LLP_CRC.code)]
        with m.Else():
            m.d.sync += [event.type.eq(result.type), event.code.eq(result.code)]

        # Judge.
        silent, raises = Signal(), Signal()
        m.d.comb += [
            silent.eq(errors.ended | (item.judges & ~item.enable)),
            raises.eq((item.fails | (item.judges & item.error)) & ~silent),
            errors.update.eq(item.clears | raises),
            errors.becomes.eq(~item.clears),
        ]

        # Act. A bus error has a stream and no segment.
        judged, accepted = Signal(), Signal()
        final = Signal(Move(config))
        octets = Signal(16)
        passed_on = Signal()
        m.d.sync += [
            events.i.valid.eq(raises),
            events.i.payload.eq(item.event),
            judged.eq(item.judges),
            accepted.eq(item.judges & ~item.error & ~silent),
            final.eq(item.move),
            final.placement.start.eq(item.start << 2),
            final.placement.length.eq(Mux(item.tagged, item.length, item.whole << 2)),
            final.placement.exception.eq(~item.tagged),
            octets.eq(Mux(item.tagged, item.length, 0)),
            passed_on.eq(~item.tagged),
            moves.i.valid.eq(judged),
            moves.i.payload.eq(final),
            moves.i.payload.placement.length.eq(Mux(accepted, final.placement.length, 0)),
            moves.i.payload.placement.exception.eq(accepted & passed_on),
            self.tally.placed.eq(accepted & ~passed_on),
            self.tally.octets.eq(Mux(accepted, octets, 0)),
            self.tally.exception.eq(accepted & passed_on),
            self.tally.error.eq(raises),
            self.tally.dropped.eq(item.judges & silent),
            self.tally.digest.eq(item.judges & raises & item.digest),
        ]
        with m.If(item.fails):
            m.d.sync += [
                events.i.payload.eq(0),
                events.i.payload.stream.eq(item.event.stream),
                events.i.payload.type.eq(ddp.LOCAL_CATASTROPHIC.type),
                events.i.payload.code.eq(ddp.LOCAL_CATASTROPHIC.code),
            ]
        m.d.comb += self.busy.eq(
            special
            | verdicts.o.valid
            | any_of(s[kind] for s in (read_1, read, first, item) for kind in _Taken.KINDS)
            | judged
            | moves.i.valid
            | moves.o.valid
            | skid.o.valid
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
