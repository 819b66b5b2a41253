"""Decides each segment's outcome: placed, forwarded to the host, or dropped."""

from functools import partial
from typing import Any, NamedTuple

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..dma.placement import Placement
from ..lib.credits import Credits
from ..lib.stream import Skid, Stage, Store, delayed, plus
from ..spec import ddp
from .delivery import Failure, Record
from .events import ErrorEvent, Events
from .item import Action, Admitted, Verdict
from .merge import CHECKS, HEAD, Merge
from .message_order import Disordered
from .segment import Outcome, Segment, SegmentVerdict
from .state import ErrorState
from .tagged import CheckResult, UlpResult
from .untagged import QN_BITS, UntaggedResult

__all__ = ["Commit", "ItemTally", "Move", "Tally"]


class Move(data.StructLayout):
    """A placement that may still contain markers.

    Parameters
    ----------
    config : RnicConfig
    sources : int
        Number of packet buffers: 1 or 2.
    unordered : bool
        True if moves of :class:`Commit`'s items are among them.

    Members
    -------
    placement : Placement
    pages : 4
        Page code of the destination.
    markers : 1
        The payload contains a marker: drop the word at every ``phase`` of 0.
    phase : 7
        Words from the last marker position to the first word.
    none : 1
        With ``unordered`` only: there are no octets to place and no words to free.
    """

    def __init__(self, config, *, sources=1, unordered=False):
        super().__init__({
            "placement": Placement(config, sources=sources), "pages": 4, "markers": 1, "phase": 7,
            **({"none": 1} if unordered else {}),
        })


class Tally(data.StructLayout):
    """Events for the counters; each member is high for one cycle per segment."""

    def __init__(self):
        super().__init__({
            "placed": 1, "octets": 16, "exception": 1, "error": 1, "dropped": 1, "digest": 1})


class ItemTally(data.StructLayout):
    """Events for the counters of items, each high for one cycle.

    A packet that is ``taken``, ``diverted`` or ``lost``, and a chunk that is a ``duplicate``,
    ``outside`` of its window, or ``refused``.
    """

    def __init__(self):
        super().__init__(dict.fromkeys(
            ("taken", "diverted", "lost", "duplicate", "outside", "refused"), 1))


class Pause(wiring.Component):
    """Pauses the segments and then carries out requests: bus errors, ``clear`` and ``hold``.

    A request waits until no segment is in the checks. ``clear`` also waits for the bus errors that
    came before it, so that none of them ends the stream after it restarted.

    Latency: 6 cycles from a pause to ``acting``. Throughput: one request at a time. Reset: segments
    flow. Errors: none.

    Members
    -------
    clear, bus_errors : In(stream.Signature(16)), hold : In(1), held : Out(1)
        As in :class:`Commit`.
    under_way : In(1)
        Segments are in the checks.
    flowing : Out(1)
        Segments may be taken.
    stream : Out(16)
        The stream whose error state is looked up.
    acting : Out(1)
        The stream's error state is known: it was looked up five cycles ago.
    clearing : Out(1)
        With ``acting``: the error state is to be cleared; otherwise the stream had a bus error.
    """

    clear: In(stream.Signature(16))
    bus_errors: In(stream.Signature(16))
    hold: In(1)
    held: Out(1)
    under_way: In(1)
    flowing: Out(1, init=1)
    stream: Out(16)
    acting: Out(1)
    clearing: Out(1)

    def elaborate(self, platform):
        m = Module()
        # Requests come from distant blocks.
        clear = delayed(m, 1, self.clear.valid, "clear_valid")
        bus_error = delayed(m, 1, self.bus_errors.valid, "bus_error")
        # A thermometer code of the cycles since the look-up of the error state.
        since = Signal(6)
        answered = since[3] & ~since[4]
        m.d.sync += [
            self.acting.eq(answered),
            self.clear.ready.eq(answered & self.clearing),
            self.bus_errors.ready.eq(answered & ~self.clearing),
        ]
        with m.FSM() as fsm:
            with m.State("Segments"):
                with m.If(clear | bus_error | self.hold):
                    m.d.sync += self.flowing.eq(0)
                    m.next = "Drain"
            with m.State("Drain"):
                with m.If(~self.under_way):
                    m.next = "Hold"
            with m.State("Hold"):
                m.d.sync += [
                    self.clearing.eq(~bus_error),
                    self.stream.eq(Mux(bus_error, self.bus_errors.payload, self.clear.payload)),
                ]
                with m.If(clear | bus_error):
                    m.next = "Act"
                with m.Elif(~self.hold):
                    m.d.sync += self.flowing.eq(1)
                    m.next = "Segments"
            with m.State("Act"):
                m.d.sync += since.eq(Cat(C(1, 1), since))
                with m.If(since[-1]):
                    m.d.sync += since.eq(0)
                    m.next = "Hold"
        m.d.sync += self.held.eq(fsm.ongoing("Hold") & self.hold)
        return m


class _Found(data.StructLayout):
    """The results of all checks for a segment."""

    def __init__(self):
        super().__init__({
            "error": 1, "type": 4, "code": 8, "stored": 1, "digest": 1, "disorder": 1,
            "tagged": 1, "last": 1, "enable": 1, "length": 16, "some": 1, "cut": 1,
            "address": 64, "pages": 4, "total": 32, "cookie": 32,
        })


class _Decision(data.StructLayout):
    """The decision on a segment or item.

    Members
    -------
    places, writes, cut : 1
        Its payload is placed; is placed and has octets; is placed and contains a marker.
    passes : 1
        The whole FPDU is forwarded to the host.
    follows, completes : 1
        It has a record; which is that of a whole message.
    raised, dropped : 1
        It is the first error of its stream; its stream was in error before.
    """

    def __init__(self):
        super().__init__(dict.fromkeys((
            "places", "writes", "cut", "passes", "follows", "completes", "raised", "dropped"), 1))


class _Late(NamedTuple):
    """An error that belongs to a stream and to no segment.

    ``waits``: there is such an error. ``overrun``: the stream has overrun its queue. ``error``,
    with items only: it is a message out of order, ``disorder``, with its ``sequence``; or another
    one.
    """

    waits: Any
    overrun: Any
    error: Any = None


class _Gathered(NamedTuple):
    """The results of all checks.

    ``found``: the combined result. ``owner``: the segment's stream, five cycles earlier. ``end``:
    the word after its last one.
    """

    found: Any
    owner: Any
    end: Any


class _Decided(NamedTuple):
    """A segment that was decided on in the last cycle, in registers.

    Its :class:`~.segment.Segment`, the results of its checks ``known``, its ``decision``; the words
    of its FPDU, and the word after the FPDU. ``item`` with items only: the item, if ``of_item``.
    """

    segment: Any
    known: Any
    decision: Any
    words: Any
    until: Any
    of_item: Any = None
    item: Any = None


class Commit(wiring.Component):
    """Takes segments in order once they have their verdict, sends them to the checks, and decides.

    A segment advances only when its verdict is known (RFC 5041 section 3, item 6). The first error
    of a stream is reported, and its FPDU is forwarded as an exception; from then on the stream's
    segments are dropped silently (section 7.1) until ``clear``. A bus error, ``clear`` and ``hold``
    wait until no segment is in the checks. ``clear`` leaves a stream in error whose event was not
    read.

    Latency: ``LATENCY`` cycles from a verdict to ``moves``. Throughput: one segment per cycle.
    Reset: no segment.
    Errors: reported through ``events``, one for each stream; no segment waits for their reader.

    Parameters
    ----------
    config : RnicConfig
    ordered : bool
        True adds ``segments``, in the order of the sender, each with a verdict that comes later.
    unordered : bool
        True adds ``items``, in any order, whose verdict is known. With both, they take turns.
    ulp : bool
        True adds ``ulp``: a ULP checks tagged segments, too.

    Members
    -------
    segments : In(stream.Signature(Segment, always_ready=True))
        With ``ordered`` only: at most ``IN_FLIGHT`` segments more than ``done`` pulses.
    verdicts : In(stream.Signature(SegmentVerdict, always_ready=True))
        With ``ordered`` only: the verdict on each segment, not before the segment.
    head : Out(stream.Signature(Segment, always_ready=True))
        To the checks, which use ``header`` and ``stream``.
    tagged : In(CheckResult), untagged : In(UntaggedResult)
        The results of the checks, ``CHECKS`` cycles later.
    ulp : In(UlpResult())
        With the parameter only: the same of the ULP's check, which counts after those of DDP.
    bus_errors : In(stream.Signature(Failure()))
        Streams with a placement that the bus refused, or without room for a completion.
    clear : In(stream.Signature(16))
        Streams whose error state is to be cleared, unless their event was not read.
    cleared : Out(stream.Signature(16, always_ready=True))
        With the transfer of ``clear``: the error state is cleared.
    hold : In(1), held : Out(1)
        Requests a pause: no segment is taken. Acknowledges it: no segment is in the checks.
    moves : Out(stream.Signature(Move))
    events : Out(stream.Signature(ErrorEvent))
    records : Out(stream.Signature(Record, always_ready=True)), record_room : In(1)
        Accepted segments, in the order of the sender, without ``found``, and all items that have a
        record. When ``record_room`` falls, there must still be room for 32 records.
    issued : Out(16)
        Segments sent to ``moves`` that write to the bus, modulo 2**16.
    tally : Out(Tally)
    done : Out(1)
        With ``ordered`` only: a segment has left; there is room for another one.
    items : In(stream.Signature(Admitted(config), always_ready=True))
        With ``unordered`` only, like the members below. Items with PLACE are checked. At most
        ``IN_FLIGHT`` items more than ``item_done`` pulses.
    item_done : Out(1)
        An item has left.
    disordered : In(stream.Signature(Disordered()))
        Streams with a message out of order.
    item_tally : Out(ItemTally())
    head_item : Out(1)
        ``head`` comes from an item.
    busy : Out(1)
    """

    #: Moves that may be in the checks or wait in the store, at most.
    MOVES = 32
    LATENCY = 1 + HEAD + CHECKS + 3 + 2

    def __init__(self, config, *, ordered=True, unordered=False, ulp=False):
        self.config, self.ordered, self.unordered = config, ordered, unordered
        self.checked_by_ulp = ulp
        #: Items and segments are in a packet buffer each.
        self.both = ordered and unordered
        self.move = Move(config, sources=1 + self.both, unordered=unordered)
        record = Record(config, ordered=ordered, unordered=unordered)
        super().__init__({
            **({
                "segments": In(stream.Signature(Segment(config), always_ready=True)),
                "verdicts": In(stream.Signature(SegmentVerdict(config), always_ready=True)),
            } if ordered else {}),
            "head": Out(stream.Signature(Segment(config), always_ready=True)),
            "tagged": In(CheckResult()),
            "untagged": In(UntaggedResult()),
            **({"ulp": In(UlpResult())} if ulp else {}),
            "bus_errors": In(stream.Signature(Failure())),
            "clear": In(stream.Signature(16)),
            "cleared": Out(stream.Signature(16, always_ready=True)),
            "hold": In(1),
            "held": Out(1),
            "moves": Out(stream.Signature(self.move)),
            "events": Out(stream.Signature(ErrorEvent(config))),
            "records": Out(stream.Signature(record, always_ready=True)),
            "record_room": In(1),
            "issued": Out(16),
            "tally": Out(Tally()),
            **({"done": Out(1)} if ordered else {}),
            "busy": Out(1),
            **({
                "items": In(stream.Signature(Admitted(config), always_ready=True)),
                "item_done": Out(1),
                "disordered": In(stream.Signature(Disordered())),
                "item_tally": Out(ItemTally()),
                "head_item": Out(1),
            } if unordered else {}),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.merge = merge = Merge(
            config, ordered=self.ordered, unordered=self.unordered)
        m.submodules.moves = moves = Store(self.move, depth=self.MOVES)
        m.submodules.stage = stage = Stage(self.move)
        m.submodules.events = events = Events(config)
        m.submodules.errors = errors = ErrorState(config.streams)
        m.submodules.pause = pause = Pause()
        wiring.connect(m, moves.o, stage.i)
        wiring.connect(m, stage.o, wiring.flipped(self.moves))
        wiring.connect(m, events.o, wiring.flipped(self.events))
        wiring.connect(m, merge.head, wiring.flipped(self.head))
        wiring.connect(m, wiring.flipped(self.clear), pause.clear)
        waiting = C(0)
        if self.ordered:
            waiting = merge.waiting
            wiring.connect(m, wiring.flipped(self.segments), merge.segments)
            wiring.connect(m, wiring.flipped(self.verdicts), merge.verdicts)
            m.d.comb += self.done.eq(merge.done)
        if self.unordered:
            wiring.connect(m, wiring.flipped(self.items), merge.items)
            m.d.comb += [
                self.item_done.eq(merge.item_done), self.head_item.eq(merge.head_item)]

        # A segment is taken only if there is room for its move and its record.
        m.submodules.credits = credits = Credits(self.MOVES, lag=4)
        under = merge.under
        moved = Signal()
        under_way = Signal()
        m.d.sync += [
            moved.eq(moves.o.valid & moves.o.ready),
            under_way.eq(merge.take | under.any()),
        ]
        m.d.comb += [
            credits.open.eq(self.record_room),
            credits.take.eq(under[0]),
            credits.give.eq(moved),
            merge.go.eq(pause.flowing & credits.ok),
            pause.hold.eq(self.hold),
            self.held.eq(pause.held),
            pause.under_way.eq(under_way),
            events.stream.eq(pause.stream),
            self.cleared.valid.eq(pause.acting & pause.clearing & ~events.unread),
            self.cleared.payload.eq(self.clear.payload),
        ]
        late = self._late(m, pause)
        checks = self._gather(m, merge.verdict, under[HEAD + CHECKS - 1])
        index = Signal(16, reset_less=True)
        m.d.sync += index.eq(Mux(under[HEAD + CHECKS - 5], checks.owner, pause.stream))
        m.d.comb += errors.index.eq(index)

        acts = Signal()
        m.d.sync += acts.eq(under[-1])
        decided = self._decide(m, under[-1], checks, late)
        self._move(m, acts, decided)
        self._record(m, acts, decided)
        if self.unordered:
            self._of_item(m, acts, decided)
        m.d.sync += self.busy.eq(
            waiting | under_way | acts | moves.i.valid | moves.o.valid
            | stage.o.valid | self.clear.valid | late.waits
        )
        return m

    def _late(self, m, pause):
        """Merges errors that belong to a stream and to no segment."""
        failure = self.bus_errors.payload
        if not self.unordered:
            m.d.comb += [
                pause.bus_errors.valid.eq(self.bus_errors.valid),
                pause.bus_errors.payload.eq(failure.stream),
                self.bus_errors.ready.eq(pause.bus_errors.ready),
            ]
            return _Late(self.bus_errors.valid, failure.overrun)
        error = data.StructLayout({"stream": 16, "overrun": 1, "disorder": 1, "sequence": 32})
        m.submodules.late = late = Skid(error)
        m.d.comb += [
            late.i.valid.eq(self.bus_errors.valid | self.disordered.valid),
            self.bus_errors.ready.eq(late.i.ready),
            self.disordered.ready.eq(late.i.ready & ~self.bus_errors.valid),
            late.i.payload.disorder.eq(~self.bus_errors.valid),
            late.i.payload.overrun.eq(self.bus_errors.valid & failure.overrun),
            late.i.payload.sequence.eq(self.disordered.payload.sequence),
            late.i.payload.stream.eq(Mux(
                self.bus_errors.valid, failure.stream, self.disordered.payload.stream)),
            pause.bus_errors.valid.eq(late.o.valid),
            pause.bus_errors.payload.eq(late.o.payload.stream),
            late.o.ready.eq(pause.bus_errors.ready),
        ]
        return _Late(late.i.valid | late.o.valid, late.o.payload.overrun, late.o.payload)

    def _gather(self, m, verdict, now):
        """Combines the results of all checks, which arrive ``now``.

        An LLP error comes first, because the header cannot be trusted then.
        """
        after = partial(delayed, m)

        head = self.head.payload
        verdict = after(CHECKS, verdict, "verdict")
        oversize = after(CHECKS, head.oversize, "oversize")
        marked = after(CHECKS, head.markers, "marked")
        to_marker = after(CHECKS, (-head.phase)[:7], "to_marker")
        tagged, untagged = self.tagged, self.untagged
        ulp = self.ulp if self.checked_by_ulp else UlpResult().const({})
        framing, digest = Signal(), Signal()
        found = Signal(_Found())
        m.d.comb += [
            framing.eq(oversize | (verdict.outcome == Outcome.FRAMING)),
            digest.eq(verdict.outcome == Outcome.DIGEST),
        ]
        with m.If(now):
            m.d.sync += [
                found.error.eq(framing | digest | tagged.error | Mux(
                    tagged.tagged, ulp.error, untagged.error)),
                found.stored.eq(~oversize),
                found.digest.eq(digest & ~framing),
                found.disorder.eq(~tagged.tagged & untagged.disorder),
                found.tagged.eq(tagged.tagged),
                found.last.eq(tagged.last),
                found.enable.eq(tagged.enable),
                found.length.eq(tagged.length),
                found.some.eq(tagged.length.any()),
                # A marker is at most 2**9 octets away.
                found.cut.eq(marked & (
                    tagged.length[9:].any() | (tagged.length[:9] > Cat(C(0, 2), to_marker)))),
                found.address.eq(Mux(tagged.tagged, tagged.address, untagged.address)),
                found.pages.eq(Mux(tagged.tagged, tagged.pages, untagged.pages)),
                found.total.eq(untagged.total),
                found.cookie.eq(untagged.cookie),
            ]
            for position, (condition, type, code) in enumerate((
                (framing, *ddp.LLP_FRAMING),
                (digest, *ddp.LLP_CRC),
                (tagged.error, tagged.type, tagged.code),
                (tagged.tagged & ulp.error, ulp.type, ulp.code),
                (untagged.error, untagged.type, untagged.code),
                (C(1), *ddp.MSN_RANGE),
            )):
                with m.If(condition) if not position else m.Elif(condition):
                    m.d.sync += [found.type.eq(type), found.code.eq(code)]
        return _Gathered(
            found, after(CHECKS - 4, head.stream, "owner"), after(1, verdict.end, "end"))

    def _decide(self, m, judges, checks, late):
        """Decides the segment's outcome and its stream's next error state, when it ``judges``."""
        merge, errors, pause = m.submodules.merge, m.submodules.errors, m.submodules.pause
        found, checked, disordered = checks.found, judges, checks.found.disorder
        if self.unordered:
            # The order of an item's message is checked later, by MessageOrder.
            checked = judges & (~merge.of_item | (merge.item.action == Action.PLACE))
            disordered = found.disorder & ~merge.of_item
        silent, accepted, raises, ends = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            silent.eq(errors.ended | ~found.enable),
            accepted.eq(checked & ~found.error & ~silent),
            # A further error changes nothing. So no path leads from the state to itself.
            ends.eq(checked & (found.error | disordered) & found.enable),
            raises.eq(ends & ~errors.ended),
            errors.update.eq(ends | pause.acting),
            errors.becomes.eq(~self.cleared.valid),
        ]
        self._report(m, judges, raises, found, late)
        # The decision is a few flags; the data that they select follow one cycle later.
        decision = Signal(_Decision())
        m.d.sync += [
            decision.places.eq(accepted),
            decision.writes.eq(accepted & found.some),
            decision.cut.eq(accepted & found.cut),
            decision.follows.eq(accepted & ~disordered),
            decision.completes.eq(accepted & found.last & ~disordered),
            decision.passes.eq(raises & found.error & found.stored),
            decision.raised.eq(raises),
            decision.dropped.eq(checked & silent),
        ]
        return self._hold(m, judges, checks, decision)

    def _report(self, m, judges, raises, found, late):
        """Reports the first error of a stream: that of a segment, or a late one."""
        events, errors, pause = m.submodules.events, m.submodules.errors, m.submodules.pause
        segment = m.submodules.merge.segment
        header = segment.header
        fails = Signal()
        m.d.comb += fails.eq(pause.acting & ~pause.clearing & ~errors.ended)
        # A bus error has a stream and no segment. Its event's flag has a cycle to reach all bits of
        # the event. No reset: it would take a gate, where a bus error's event sets most bits to 0.
        event = Signal(ErrorEvent(self.config), reset_less=True)
        m.d.comb += events.i.payload.eq(event)
        m.d.sync += events.i.valid.eq(raises | fails)
        with m.If(judges):
            m.d.sync += [
                event.stream.eq(segment.stream),
                event.type.eq(found.type),
                event.code.eq(found.code),
                event.header.eq(header),
                event.length.eq(Cat(header[8:16], header[:8])),
                event.sequence.eq(segment.sequence),
            ]
        with m.If(pause.acting):
            m.d.sync += [
                event.eq(0),
                event.stream.eq(pause.stream),
                event.type.eq(ddp.LOCAL_CATASTROPHIC.type),
                event.code.eq(Mux(
                    late.overrun, ddp.QUEUE_OVERRUN.code, ddp.LOCAL_CATASTROPHIC.code)),
            ]
            if late.error is not None:
                with m.If(late.error.disorder):
                    m.d.sync += [
                        event.type.eq(ddp.MSN_RANGE.type),
                        event.code.eq(ddp.MSN_RANGE.code),
                        event.sequence.eq(late.error.sequence),
                    ]

    def _hold(self, m, judges, checks, decision):
        """Registers the segment that is decided on, and counts the events of its decision."""
        merge, end = m.submodules.merge, checks.end
        segment = merge.segment
        held = Signal(segment.shape(), name="held", reset_less=True)
        known = Signal(_Found(), reset_less=True)
        until = Signal.like(end)
        # The FPDU's words are counted in two halves, a cycle each.
        half = len(end) // 2
        low, no_borrow = Signal(half), Signal()
        words = Cat(low, plus(until[half:], ~held.start[half:], no_borrow))[:len(end)]
        with m.If(judges):
            m.d.sync += [
                held.eq(segment),
                known.eq(checks.found),
                Cat(low, no_borrow).eq(plus(end[:half], ~segment.start[:half], C(1, 1))),
                until.eq(end),
            ]
        m.d.comb += [
            self.tally.placed.eq(decision.places),
            self.tally.octets.eq(Mux(decision.places, known.length, 0)),
            self.tally.exception.eq(decision.passes),
            self.tally.error.eq(m.submodules.events.i.valid),
            self.tally.dropped.eq(decision.dropped),
            self.tally.digest.eq(decision.raised & known.digest),
        ]
        if not self.unordered:
            return _Decided(held, known, decision, words, until)
        of_item = Signal(reset_less=True, init=not self.ordered)
        item = Signal(merge.item.shape(), name="held_item", reset_less=True)
        with m.If(judges):
            m.d.sync += [of_item.eq(merge.of_item), item.eq(merge.item)]
        return _Decided(held, known, decision, words, until, of_item, item)

    def _move(self, m, acts, decided):
        """Places the payload, or forwards the whole FPDU to the host, or only frees its words."""
        segment, known, decision = decided.segment, decided.known, decided.decision
        move = m.submodules.moves.i
        placement = move.payload.placement
        m.d.sync += move.valid.eq(acts)
        with m.If(acts):
            m.d.sync += [
                move.payload.pages.eq(known.pages),
                move.payload.phase.eq(segment.phase),
                move.payload.markers.eq(decision.cut),
                placement.start.eq(Mux(decision.places, segment.payload, segment.start) << 2),
                placement.length.eq(Mux(
                    decision.places, known.length,
                    Mux(decision.passes, decided.words << 2, 0))),
                placement.address.eq(known.address),
                placement.exception.eq(decision.passes),
                placement.stream.eq(segment.stream),
                placement.sequence.eq(segment.sequence),
                placement.reason.eq(Cat(known.code, known.type)),
                placement.last.eq(1),
                placement.release.eq(decided.until >> (self.config.words.bit_length() - 1)),
            ]

    def _record(self, m, acts, decided):
        """Outputs the record of an accepted segment, which counts the placements before it."""
        segment, known, decision = decided.segment, decided.known, decided.decision
        record, header = self.records.payload, segment.header
        issued = Signal.like(self.issued)
        m.d.comb += issued.eq(self.issued + decision.writes)
        m.d.sync += [
            self.issued.eq(issued),
            self.records.valid.eq(decision.follows),
        ]
        with m.If(acts):
            m.d.sync += [
                record.count.eq(issued),
                record.complete.eq(decision.completes),
                record.tagged.eq(known.tagged),
                record.stream.eq(segment.stream),
                record.qn.eq(Mux(known.tagged, 0, header[8 * 11 : 8 * 11 + QN_BITS])),
                record.tag.eq(Mux(known.tagged, _field(header, 4), _field(header, 12))),
                record.rsvdulp.eq(header[8 * 3 : 8 * 8] & Mux(known.tagged, 0xFF, (1 << 40) - 1)),
                record.length.eq(Mux(known.tagged, known.length, known.total)),
                record.cookie.eq(Mux(known.tagged, _field(header, 12), known.cookie)),
            ]

    def _of_item(self, m, acts, decided):
        """Overrides move, record and counters for an item."""
        item, of_item = decided.item, decided.of_item
        known, decision = decided.known, decided.decision
        move, record = m.submodules.moves.i, self.records.payload
        placement = move.payload.placement
        diverted = item.action == Action.PASS
        control = item.control & (item.status == Verdict.FRESH)
        # A frame is stored two octets after a word's start.
        start = Cat(C(0, 1), item.packet, item.start)
        chunk = acts & of_item & item.report & ~item.packet
        frame, tally = acts & of_item & item.packet, self.item_tally
        none = item.action == Action.NONE
        m.d.comb += [
            tally.taken.eq(frame & (item.report | none)),
            tally.diverted.eq(frame & diverted),
            tally.lost.eq(frame & ~item.report & ~none & ~diverted),
            tally.duplicate.eq(chunk & (item.status == Verdict.DUPLICATE)),
            tally.outside.eq(chunk & (item.status == Verdict.OUTSIDE)),
            tally.refused.eq(chunk & ((item.status == Verdict.ILLEGAL)
                                      | (item.status == Verdict.SILENT))),
        ]
        with m.If(of_item):
            m.d.comb += self.tally.exception.eq(decision.passes | (acts & diverted))
            m.d.sync += self.records.valid.eq(acts & item.report)
        with m.If(acts):
            m.d.sync += [
                *([placement.sctp.eq(of_item)] if self.both else ()),
                move.payload.none.eq(of_item & none),
                record.sctp.eq(of_item),
                record.placed.eq(decision.places),
                *(record[name].eq(item[name]) for name in (
                    "packet", "control", "ends", "status", "ticket", "association", "sequence")),
                record.octets.eq(Mux(decision.places, known.length, 0)),
            ]
            with m.If(of_item):
                m.d.sync += [
                    placement.start.eq(Mux(decision.places, item.payload << 2, start)),
                    placement.length.eq(Mux(
                        decision.places, known.length,
                        Mux(decision.passes | diverted, item.octets, 0))),
                    placement.exception.eq(decision.passes | diverted),
                    placement.release.eq(item.release >> (self.config.words.bit_length() - 1)),
                ]
                with m.If(control):
                    m.d.sync += record.tag.eq(decided.segment.header.word_select(3, 8))
                with m.If(diverted):
                    m.d.sync += placement.reason.eq(item.reason)
                    with m.If(~control):
                        m.d.sync += placement.stream.eq(Mux(item.packet, 0, item.association))
                with m.If(diverted & item.packet):
                    m.d.sync += placement.sequence.eq(0)


def _field(header, octet):
    """Returns the big-endian 32-bit field of a header that begins at ``octet``."""
    return Cat(header.word_select(octet + k, 8) for k in reversed(range(4)))
