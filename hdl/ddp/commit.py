"""Decides each segment's outcome: placed, forwarded to the host, or dropped."""

from functools import partial

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..dma.placement import Placement
from ..lib.delay import Delay
from ..lib.stream import Backlog, Pointers, Skid, Stage, Store, counted, delayed, plus
from ..spec import ddp
from .delivery import Record
from .item import Action, Admitted
from .item import Verdict as WindowVerdict
from .segment import HEADER_WORDS, IN_FLIGHT, Outcome, Segment, Verdict
from .state import ErrorState
from .tagged import CheckResult, TaggedCheck
from .turn import Disordered
from .untagged import QN_BITS, UntaggedResult

__all__ = ["CHECKS", "Commit", "ErrorEvent", "ItemTally", "Move", "Tally"]

#: Cycles from a segment's header to the result of the checks, with two for the header's parser.
CHECKS = 2 + TaggedCheck.LATENCY
#: Cycles from taking a segment to its header at ``head``.
HEAD = 3


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


class Pending(wiring.Component):
    """Holds segments in block RAM until they have their verdict.

    A segment is read twice: first its header for the checks, then the rest when the checks have
    finished, so that the rest need not be delayed alongside the checks.

    Latency: 3 cycles from ``take`` to ``head``, and from ``again`` to ``segment``. Throughput: one
    segment per cycle. Reset: empty. Errors: none.

    Parameters
    ----------
    segment : Layout
    verdict : Layout
        If not given, segments need no verdict.
    early : tuple of str
        Members of the segment that only the first read returns; if not given, both reads return
        all members.

    Members
    -------
    segments : In(stream.Signature(segment, always_ready=True))
    verdicts : In(stream.Signature(verdict, always_ready=True))
    go : In(1)
        A segment may be taken.
        A segment's turn: it may be taken.
    take : Out(1)
        A segment is taken; combinational.
    head : Out(stream.Signature(segment, always_ready=True)), verdict : Out(verdict)
        The segment's first read, and its verdict.
    again : In(1)
        Reads the next segment a second time, in order.
    segment : Out(segment)
        The segment's second read.
    waiting : Out(1)
        A segment waits that has its verdict.
    """

    def __init__(self, segment, verdict=None, *, early=()):
        self.shapes = segment, verdict
        self.head_shape, self.late_shape = segment, segment
        if early:
            self.head_shape, self.late_shape = (
                data.StructLayout({
                    name: field.shape for name, field in segment if (name in early) == first})
                for first in (True, False))
        super().__init__({
            "segments": In(stream.Signature(segment, always_ready=True)),
            "go": In(1),
            "take": Out(1),
            "head": Out(stream.Signature(self.head_shape, always_ready=True)),
            "again": In(1),
            "segment": Out(self.late_shape),
            "waiting": Out(1),
            **({} if verdict is None else {
                "verdicts": In(stream.Signature(verdict, always_ready=True)),
                "verdict": Out(verdict),
            }),
        })

    def elaborate(self, platform):
        m = Module()
        segment, verdict = self.shapes
        m.submodules.pointers = pointers = Pointers(IN_FLIGHT)
        m.submodules.segments = segments = self._memory(self.head_shape)
        judged = self.segments if verdict is None else self.verdicts
        m.d.comb += [
            pointers.push.eq(judged.valid),
            pointers.pop.eq(self.take),
            self.take.eq(self.go & pointers.some),
            self.waiting.eq(pointers.some),
        ]
        stores, late = [segments], segments
        if self.late_shape is not segment:
            m.submodules.late = late = self._memory(self.late_shape)
            stores.append(late)
        for stored in stores:
            write_segment = stored.write_port()
            m.d.comb += [
                write_segment.en.eq(self.segments.valid),
                *(write_segment.data[name].eq(self.segments.payload[name])
                  for name, _ in stored.shape),
            ]
            with m.If(self.segments.valid):
                m.d.sync += write_segment.addr.eq(write_segment.addr + 1)
        second = Signal.like(pointers.read)
        with m.If(self.again):
            m.d.sync += second.eq(second + 1)
        reads = [
            ("head", segments, pointers.read, self.take),
            ("segment", late, second, self.again),
        ]
        if verdict is not None:
            m.submodules.verdicts = verdicts = self._memory(verdict)
            write_verdict = verdicts.write_port()
            m.d.comb += [
                write_verdict.en.eq(self.verdicts.valid),
                write_verdict.addr.eq(pointers.write),
                write_verdict.data.eq(self.verdicts.payload),
            ]
            reads.append(("verdict", verdicts, pointers.read, self.take))
        held = {}
        for name, stored, address, follows in reads:
            read = stored.read_port()
            # Without reset, to become the output register of the block RAM.
            held[name] = Signal(stored.shape, name=f"{name}_held", reset_less=True)
            was_read = Signal(name=f"{name}_read")
            m.d.comb += read.addr.eq(address)
            m.d.sync += was_read.eq(follows)
            with m.If(was_read):
                m.d.sync += held[name].eq(read.data)
        taken = Signal(HEAD - 1)
        # One register for the wires from many block RAMs to all readers of a segment.
        m.d.sync += [
            self.segment.eq(held["segment"]),
            self.head.payload.eq(held["head"]),
            Cat(taken, self.head.valid).eq(Cat(self.take, taken)),
        ]
        if verdict is not None:
            m.d.sync += self.verdict.eq(held["verdict"])
        return m

    @staticmethod
    def _memory(shape):
        return memory.Memory(
            shape=shape, depth=IN_FLIGHT, init=[], attrs={"ram_style": "block", "no_rw_check": 1})


class Pause(wiring.Component):
    """Pauses the segments and then carries out requests: bus errors, ``clear`` and ``hold``.

    A request waits until no segment is in the checks.

    Latency: 6 cycles from a pause to ``acting``. Throughput: one request at a time. Reset: segments
    flow. Errors: none.

    Members
    -------
    clear, bus_errors : In(stream.Signature(16)), hold : In(1), held : Out(1)
        As in :class:`Commit`.
    under_way : In(1)
        Segments are in the checks.
    room : In(1)
        There is room for the event of a bus error.
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
    room: In(1)
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
                    self.clearing.eq(clear),
                    self.stream.eq(Mux(clear, self.clear.payload, self.bus_errors.payload)),
                ]
                with m.If(clear | (bus_error & self.room)):
                    m.next = "Act"
                with m.Elif(~self.hold & ~bus_error):
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


class Commit(wiring.Component):
    """Takes segments in order once they have their verdict, sends them to the checks, and decides.

    A segment advances only when its verdict is known (RFC 5041 section 3, item 6). The first error
    of a stream is reported, and its FPDU is forwarded as an exception; from then on the stream's
    segments are dropped silently (section 7.1) until ``clear``. A bus error, ``clear`` and ``hold``
    wait until no segment is in the checks.

    Latency: ``LATENCY`` cycles from a verdict to ``moves``. Throughput: one segment per cycle.
    Reset: no segment.
    Errors: reported through ``events``. While there is no room for an event, no segment is taken;
    no event is lost.

    Parameters
    ----------
    config : RnicConfig
    ordered : bool
        True adds ``segments``, in the order of the sender, each with a verdict that comes later.
    unordered : bool
        True adds ``items``, in any order, whose verdict is known. With both, they take turns.

    Members
    -------
    segments : In(stream.Signature(Segment, always_ready=True))
        With ``ordered`` only: at most ``IN_FLIGHT`` segments more than ``done`` pulses.
    verdicts : In(stream.Signature(Verdict, always_ready=True))
        With ``ordered`` only: the verdict on each segment, not before the segment.
    head : Out(stream.Signature(Segment, always_ready=True))
        To the checks, which use ``header`` and ``stream``.
    tagged : In(CheckResult), untagged : In(UntaggedResult)
        The results of the checks, ``CHECKS`` cycles later.
    bus_errors : In(stream.Signature(16))
        Streams with a placement that the bus refused.
    clear : In(stream.Signature(16))
        Streams whose error state is to be cleared.
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

    def __init__(self, config, *, ordered=True, unordered=False):
        self.config, self.ordered, self.unordered = config, ordered, unordered
        #: Items and segments are in a packet buffer each.
        self.both = ordered and unordered
        self.move = Move(config, sources=1 + self.both, unordered=unordered)
        record = Record(config, ordered=ordered, unordered=unordered)
        super().__init__({
            **({
                "segments": In(stream.Signature(Segment(config), always_ready=True)),
                "verdicts": In(stream.Signature(Verdict(config), always_ready=True)),
            } if ordered else {}),
            "head": Out(stream.Signature(Segment(config), always_ready=True)),
            "tagged": In(CheckResult()),
            "untagged": In(UntaggedResult()),
            "bus_errors": In(stream.Signature(16)),
            "clear": In(stream.Signature(16)),
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
        # Without ``ordered``, there are no segments to wait for.
        pending, segment, waiting = None, Signal(Segment(config)), C(0)
        if self.ordered:
            m.submodules.pending = pending = Pending(Segment(config), Verdict(config))
            segment, waiting = pending.segment, pending.waiting
        m.submodules.moves = moves = Store(self.move, depth=self.MOVES)
        m.submodules.stage = stage = Stage(self.move)
        m.submodules.events = events = Backlog(
            ErrorEvent(config), depth=max(512, 2 * config.streams), relaxed=config.relaxed)
        m.submodules.errors = errors = ErrorState(config.streams)
        if self.ordered:
            wiring.connect(m, wiring.flipped(self.segments), pending.segments)
            wiring.connect(m, wiring.flipped(self.verdicts), pending.verdicts)
        wiring.connect(m, moves.o, stage.i)
        wiring.connect(m, stage.o, wiring.flipped(self.moves))
        wiring.connect(m, events.o, wiring.flipped(self.events))

        # A segment is taken only if there is room for its move, its event and its record.
        moving = Signal(range(self.MOVES + 1))
        moved = Signal()
        # under[k]: a segment was taken k + 1 cycles ago.
        under = Signal(HEAD + CHECKS + 1)
        under_way = Signal()
        room, flows = Signal(), Signal()
        m.submodules.pause = pause = Pause()
        wiring.connect(m, wiring.flipped(self.clear), pause.clear)
        m.d.comb += flows.eq(pause.flowing & room)
        taken, of_item, verdict = self._sources(m, pending, flows, under)
        m.d.sync += [
            moved.eq(moves.o.valid & moves.o.ready),
            under.eq(Cat(taken, under)),
            under_way.eq(taken | under.any()),
            room.eq((moving < self.MOVES - 4) & events.half & self.record_room),
        ]
        counted(m, moving, under[0], moved)
        late, disorder = self._late(m, pause)
        m.d.comb += [
            pause.hold.eq(self.hold),
            self.held.eq(pause.held),
            pause.under_way.eq(under_way),
            pause.room.eq(room),
        ]
        found, owner, end = self._gather(m, verdict, under[HEAD + CHECKS - 1])
        index = Signal(16, reset_less=True)
        m.d.sync += index.eq(Mux(under[HEAD + CHECKS - 5], owner, pause.stream))
        m.d.comb += errors.index.eq(index)
        acts = self._decide(
            m, under[HEAD + CHECKS], segment, found, end, of_item, disorder)
        m.d.sync += self.busy.eq(
            waiting | under_way | acts | moves.i.valid | moves.o.valid
            | stage.o.valid | self.clear.valid | late
        )
        return m

    def _sources(self, m, pending, flows, under):
        """Takes segments and, alternating with them, items.

        Returns whether a segment or item is taken now, whether the one that is decided on now is an
        item, and the verdict on the one at ``head``.
        """
        again = HEAD + CHECKS - 3
        if not self.unordered:
            wiring.connect(m, pending.head, wiring.flipped(self.head))
            m.d.comb += [
                pending.go.eq(flows),
                pending.again.eq(under[again]),
                self.done.eq(under[HEAD + CHECKS]),
            ]
            return pending.take, C(0), pending.verdict
        m.submodules.items = items = Pending(Admitted(self.config), early=("header", "stream"))
        # The checked members are delayed alongside the checks, which is cheaper than a second read.
        m.submodules.checked = checked = Delay(items.head_shape, CHECKS + 1)
        m.d.comb += checked.i.eq(items.head.payload)
        wiring.connect(m, wiring.flipped(self.items), items.segments)
        if not self.ordered:
            m.d.comb += [
                items.go.eq(flows),
                items.again.eq(under[again]),
                self.item_done.eq(under[-1]),
                self.head.valid.eq(items.head.valid),
                self.head_item.eq(items.head.valid),
                self.head.payload.header.eq(items.head.payload.header),
                self.head.payload.stream.eq(items.head.payload.stream),
            ]
            return items.take, C(1), Signal(Verdict(self.config), init={"outcome": Outcome.GOOD})
        items_next = Signal()
        item_under = Signal.like(under)
        verdict = Signal.like(pending.verdict)
        with m.If(pending.take | items.take):
            m.d.sync += items_next.eq(pending.take)
        m.d.sync += item_under.eq(Cat(items.take, item_under))
        m.d.comb += [
            pending.go.eq(flows & ~(items.waiting & items_next)),
            items.go.eq(flows & ~(pending.waiting & ~items_next)),
            pending.again.eq(under[again] & ~item_under[again]),
            items.again.eq(item_under[again]),
            self.done.eq(under[-1] & ~item_under[-1]),
            self.item_done.eq(item_under[-1]),
            self.head.valid.eq(pending.head.valid | items.head.valid),
            self.head_item.eq(items.head.valid),
            self.head.payload.eq(pending.head.payload),
            verdict.eq(pending.verdict),
        ]
        # A stored item has a right checksum and no markers.
        with m.If(items.head.valid):
            m.d.comb += [
                self.head.payload.header.eq(items.head.payload.header),
                self.head.payload.stream.eq(items.head.payload.stream),
                self.head.payload.oversize.eq(0),
                self.head.payload.markers.eq(0),
                verdict.outcome.eq(Outcome.GOOD),
            ]
        return pending.take | items.take, item_under[-1], verdict

    def _late(self, m, pause):
        """Merges errors that belong to a stream and to no segment.

        Returns whether there is such an error and, with items, the error: a message out of order
        (``disorder``), or a write that the bus refused.
        """
        if not self.unordered:
            wiring.connect(m, wiring.flipped(self.bus_errors), pause.bus_errors)
            return self.bus_errors.valid, None
        error = data.StructLayout({"stream": 16, "disorder": 1, "sequence": 32})
        m.submodules.late = late = Skid(error)
        m.d.comb += [
            late.i.valid.eq(self.bus_errors.valid | self.disordered.valid),
            self.bus_errors.ready.eq(late.i.ready),
            self.disordered.ready.eq(late.i.ready & ~self.bus_errors.valid),
            late.i.payload.disorder.eq(~self.bus_errors.valid),
            late.i.payload.sequence.eq(self.disordered.payload.sequence),
            late.i.payload.stream.eq(Mux(
                self.bus_errors.valid, self.bus_errors.payload, self.disordered.payload.stream)),
            pause.bus_errors.valid.eq(late.o.valid),
            pause.bus_errors.payload.eq(late.o.payload.stream),
            late.o.ready.eq(pause.bus_errors.ready),
        ]
        return late.i.valid | late.o.valid, late.o.payload

    def _gather(self, m, verdict, now):
        """Combines the results of all checks, which arrive ``now``.

        An LLP error comes first, because the header cannot be trusted then. Returns the combined
        result, the segment's stream (five cycles earlier), and the word after its last one.
        """

        after = partial(delayed, m)

        head = self.head.payload
        verdict = after(CHECKS, verdict, "verdict")
        oversize = after(CHECKS, head.oversize, "oversize")
        marked = after(CHECKS, head.markers, "marked")
        to_marker = after(CHECKS, (-head.phase)[:7], "to_marker")
        tagged, untagged = self.tagged, self.untagged
        framing, digest = Signal(), Signal()
        found = Signal(_Found())
        m.d.comb += [
            framing.eq(oversize | (verdict.outcome == Outcome.FRAMING)),
            digest.eq(verdict.outcome == Outcome.DIGEST),
        ]
        with m.If(now):
            m.d.sync += [
                found.error.eq(framing | digest | tagged.error | (~tagged.tagged & untagged.error)),
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
                (untagged.error, untagged.type, untagged.code),
                (C(1), *ddp.MSN_RANGE),
            )):
                with m.If(condition) if not position else m.Elif(condition):
                    m.d.sync += [found.type.eq(type), found.code.eq(code)]
        return found, after(CHECKS - 4, head.stream, "owner"), after(1, verdict.end, "end")

    def _decide(self, m, judges, segment, found, end, of_item, disorder):
        """Decides the segment's outcome and its stream's next error state, and outputs both.

        Returns whether a segment was decided on in the last cycle.
        """
        errors, events, pause = m.submodules.errors, m.submodules.events, m.submodules.pause
        item = m.submodules.items.segment if self.unordered else None
        checks, disordered, stream, header, sequence = (
            judges, found.disorder, segment.stream, segment.header, segment.sequence)
        if item is not None:
            # The order of an item's message is checked later, by Turn.
            checks = judges & (~of_item | (item.action == Action.PLACE))
            disordered = found.disorder & ~of_item
            checked = m.submodules.checked.o
            stream = Mux(of_item, checked.stream, segment.stream)
            header = Mux(of_item, checked.header, segment.header)
            sequence = Mux(of_item, item.sequence, segment.sequence)
        silent, accepted, raises, fails = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            silent.eq(errors.ended | ~found.enable),
            accepted.eq(checks & ~found.error & ~silent),
            raises.eq(checks & (found.error | disordered) & ~silent),
            fails.eq(pause.acting & ~pause.clearing & ~errors.ended),
            errors.update.eq(raises | pause.acting),
            errors.becomes.eq(~(pause.acting & pause.clearing)),
        ]
        # A bus error has a stream and no segment. Its event's flag has a cycle to reach all bits of
        # the event. No reset: it would take a gate, where a bus error's event sets most bits to 0.
        event = Signal(ErrorEvent(self.config), reset_less=True)
        m.d.comb += events.i.payload.eq(event)
        m.d.sync += events.i.valid.eq(raises | fails)
        with m.If(judges):
            m.d.sync += [
                event.stream.eq(stream),
                event.type.eq(found.type),
                event.code.eq(found.code),
                event.header.eq(header),
                event.length.eq(Cat(header[8:16], header[:8])),
                event.sequence.eq(sequence),
            ]
        with m.If(pause.acting):
            m.d.sync += [
                event.eq(0),
                event.stream.eq(pause.stream),
                event.type.eq(ddp.LOCAL_CATASTROPHIC.type),
                event.code.eq(ddp.LOCAL_CATASTROPHIC.code),
            ]
            if disorder is not None:
                with m.If(disorder.disorder):
                    m.d.sync += [
                        event.type.eq(ddp.MSN_RANGE.type),
                        event.code.eq(ddp.MSN_RANGE.code),
                        event.sequence.eq(disorder.sequence),
                    ]

        # The decision is a few flags; the data that they select follow one cycle later.
        acts, passes, cut = Signal(), Signal(), Signal()
        places, writes, follows, completes = Signal(), Signal(), Signal(), Signal()
        raised, dropped = Signal(), Signal()
        held = Signal(segment.shape(), reset_less=True)
        known = Signal(_Found(), reset_less=True)
        lot = None if item is None else self._lot(m, judges, of_item, item)
        until = Signal.like(end)
        # The FPDU's words are counted in two halves, a cycle each.
        half = len(end) // 2
        low, no_borrow = Signal(half), Signal()
        whole = Cat(low, plus(until[half:], ~held.start[half:], no_borrow))
        with m.If(judges):
            m.d.sync += [
                held.eq(segment),
                held.stream.eq(stream),
                held.header.eq(header),
                held.sequence.eq(sequence),
                known.eq(found),
                Cat(low, no_borrow).eq(plus(end[:half], ~segment.start[:half], C(1, 1))),
                until.eq(end),
            ]
        m.d.sync += [
            acts.eq(judges),
            places.eq(accepted),
            writes.eq(accepted & found.some),
            cut.eq(accepted & found.cut),
            follows.eq(accepted & ~disordered),
            completes.eq(accepted & found.last & ~disordered),
            passes.eq(raises & found.error & found.stored),
            raised.eq(raises),
            dropped.eq(checks & silent),
        ]
        m.d.comb += [
            self.tally.placed.eq(places),
            self.tally.octets.eq(Mux(places, known.length, 0)),
            self.tally.exception.eq(passes),
            self.tally.error.eq(events.i.valid),
            self.tally.dropped.eq(dropped),
            self.tally.digest.eq(raised & known.digest),
        ]

        # Place the payload, or forward the whole FPDU to the host, or only free its words.
        move = m.submodules.moves.i
        placement = move.payload.placement
        issued = Signal.like(self.issued)
        record, header = self.records.payload, held.header
        m.d.comb += issued.eq(self.issued + writes)
        m.d.sync += [
            self.issued.eq(issued),
            move.valid.eq(acts),
            self.records.valid.eq(follows),
        ]
        with m.If(acts):
            m.d.sync += [
                move.payload.pages.eq(known.pages),
                move.payload.phase.eq(held.phase),
                move.payload.markers.eq(cut),
                placement.start.eq(Mux(places, held.payload, held.start) << 2),
                placement.length.eq(Mux(
                    places, known.length, Mux(passes, whole[:len(end)] << 2, 0))),
                placement.address.eq(known.address),
                placement.exception.eq(passes),
                placement.stream.eq(held.stream),
                placement.sequence.eq(held.sequence),
                placement.reason.eq(Cat(known.code, known.type)),
                placement.last.eq(1),
                placement.release.eq(until >> (self.config.words.bit_length() - 1)),
                record.count.eq(issued),
                record.complete.eq(completes),
                record.tagged.eq(known.tagged),
                record.stream.eq(held.stream),
                record.qn.eq(Mux(known.tagged, 0, header[8 * 11 : 8 * 11 + QN_BITS])),
                record.tag.eq(Mux(known.tagged, _field(header, 4), _field(header, 12))),
                record.rsvdulp.eq(header[8 * 3 : 8 * 8] & Mux(known.tagged, 0xFF, (1 << 40) - 1)),
                record.length.eq(Mux(known.tagged, known.length, known.total)),
                record.cookie.eq(Mux(known.tagged, _field(header, 12), known.cookie)),
            ]
        if lot is not None:
            self._of_item(m, lot, acts, places, passes, completes, known, held.header)
        return acts

    def _lot(self, m, judges, of_item, item):
        """Returns the registered item that is decided on; ``valid`` if it is an item."""
        lot = Signal(data.StructLayout({"valid": 1, "item": item.shape()}), reset_less=True,
                     init={"valid": not self.ordered})
        with m.If(judges):
            m.d.sync += [lot.valid.eq(of_item), lot.item.eq(item)]
        return lot

    def _of_item(self, m, lot, acts, places, passes, completes, known, header):
        """Overrides the outputs for an item."""
        item = lot.item
        move, record = m.submodules.moves.i, self.records.payload
        placement = move.payload.placement
        diverted = item.action == Action.PASS
        control = item.control & (item.status == WindowVerdict.FRESH)
        # A frame is stored two octets after a word's start.
        start = Cat(C(0, 1), item.packet, item.start)
        chunk = acts & lot.valid & item.report & ~item.packet
        frame, tally = acts & lot.valid & item.packet, self.item_tally
        none = item.action == Action.NONE
        m.d.comb += [
            tally.taken.eq(frame & (item.report | none)),
            tally.diverted.eq(frame & diverted),
            tally.lost.eq(frame & ~item.report & ~none & ~diverted),
            tally.duplicate.eq(chunk & (item.status == WindowVerdict.DUPLICATE)),
            tally.outside.eq(chunk & (item.status == WindowVerdict.OUTSIDE)),
            tally.refused.eq(chunk & ((item.status == WindowVerdict.ILLEGAL)
                                      | (item.status == WindowVerdict.SILENT))),
        ]
        with m.If(lot.valid):
            m.d.comb += self.tally.exception.eq(passes | (acts & diverted))
            m.d.sync += self.records.valid.eq(acts & item.report)
        with m.If(acts):
            m.d.sync += [
                *([placement.sctp.eq(lot.valid)] if self.both else ()),
                move.payload.none.eq(lot.valid & none),
                record.sctp.eq(lot.valid),
                record.placed.eq(places),
                *(record[name].eq(item[name]) for name in (
                    "packet", "control", "ends", "status", "ticket", "association", "sequence")),
                record.octets.eq(Mux(places, known.length, 0)),
            ]
            with m.If(lot.valid):
                m.d.sync += [
                    placement.start.eq(Mux(places, item.payload << 2, start)),
                    placement.length.eq(Mux(
                        places, known.length, Mux(passes | diverted, item.octets, 0))),
                    placement.exception.eq(passes | diverted),
                    placement.release.eq(item.release >> (self.config.words.bit_length() - 1)),
                ]
                with m.If(control):
                    m.d.sync += record.tag.eq(header.word_select(3, 8))
                with m.If(diverted):
                    m.d.sync += placement.reason.eq(item.reason)
                    with m.If(~control):
                        m.d.sync += placement.stream.eq(Mux(item.packet, 0, item.association))
                with m.If(diverted & item.packet):
                    m.d.sync += placement.sequence.eq(0)


def _field(header, octet):
    """Returns the big-endian 32-bit field of a header that begins at ``octet``."""
    return Cat(header.word_select(octet + k, 8) for k in reversed(range(4)))
