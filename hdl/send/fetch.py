"""Reads the entries of a turn from its ring in host memory.

The data's way::

    windows ─ Runs ┬ bus.ar              bus.r ─ beats ─ Entries ─ o
                   └ facts about windows ──────────────────┘

All reads have the same ID, so the bus answers them in order (AMBA AXI, IHI 0022, section A5.3). A
run is read only if there is room for all of it, so ``bus.r`` never waits.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..bus.axi import AxiRead, Response
from ..lib.stream import Backlog, Store, copies, delayed
from ..spec.send import ENTRY
from .repeats import SLOT_BITS
from .runs import RUN, Runs, Span
from .work import QUANTUM, WorkEntry

__all__ = ["Fetch", "Window"]

#: Beats that may be on their way or wait: as many as block RAM of 36 bits has.
BEATS = 512
#: Windows whose entries may be on their way or wait.
WINDOWS = 16


class Window(data.StructLayout):
    """Entries to be read for a turn.

    Members
    -------
    stream : range(streams)
    base, size, start, count
        As in :class:`~.runs.Span`.
    octets, done, more, response, answers, repeat, slot
        As in :class:`~.work.Turn`.
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), **{name: field.shape for name, field in Span()},
            "octets": range(QUANTUM + 1), "done": 32, "more": 1, "response": 1, "answers": 1,
            "repeat": 1, "slot": SLOT_BITS})


class _Facts(data.StructLayout):
    """The members of a :class:`Window` that its entries get beside them."""

    def __init__(self, streams):
        window = Window(streams)
        super().__init__({
            name: window[name].shape
            for name in (
                "stream", "count", "octets", "done", "more", "response", "answers", "repeat",
                "slot")})


class _Beat(data.StructLayout):
    """A beat from the bus: ``data``, and whether the read was refused: ``bad`` (1)."""

    def __init__(self, width):
        super().__init__({"data": width, "bad": 1})


class Fetch(wiring.Component):
    """Reads the entries of windows, in order.

    If the bus refuses a read, the stream fails, and the entry with the first beat that was refused
    is zeros, and so are all later ones of its window. The stream fails before such an entry leaves.

    Latency: 1 cycle from ``windows`` to ``bus.ar``, 2 from an entry's last beat to the entry, or 4
    while earlier beats wait.
    Throughput: one run in 2 cycles; one beat per cycle, and one cycle more for a window. Reset:
    empty; not while a read is outstanding on the bus. Errors: ``fail``.

    Parameters
    ----------
    width, streams : int

    Members
    -------
    windows : In(stream.Signature(Window(streams)))
    bus : Out(AxiRead(width, 1))
    o : Out(stream.Signature(WorkEntry(streams)))
    fail : Out(stream.Signature(range(streams)))
        An entry of the stream could not be read. Once for each window at most.
    busy : Out(1)
        Entries were being read one cycle ago.
    """

    def __init__(self, width, streams):
        self.width, self.streams = width, streams
        super().__init__({
            "windows": In(stream.Signature(Window(streams))),
            "bus": Out(AxiRead(width, 1)),
            "o": Out(stream.Signature(WorkEntry(streams))),
            "fail": Out(stream.Signature(range(streams))),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.runs = runs = Runs()
        m.submodules.facts = facts = Store(_Facts(self.streams), depth=WINDOWS)
        m.submodules.beats = beats = Backlog(
            _Beat(self.width), depth=BEATS, relaxed=True, direct=True)
        m.submodules.entries = entries = Entries(self.width, self.streams)
        wiring.connect(m, facts.o, entries.windows)
        wiring.connect(m, beats.o, entries.beats)
        wiring.connect(m, entries.o, wiring.flipped(self.o))
        wiring.connect(m, entries.fail, wiring.flipped(self.fail))
        window, run, address = self.windows.payload, runs.o.payload, self.bus.ar.payload
        each = exact_log2(8 * ENTRY // self.width)  # beats of an entry, as a power of two
        # Entries for which there is room. A run comes two cycles after the one before it at the
        # earliest, when ``may`` counts that.
        most = BEATS >> each
        free, may, reads = Signal(range(most + 1), init=most), Signal(), Signal()
        m.d.comb += [
            *(runs.i.payload[name].eq(window[name]) for name, _ in Span()),
            runs.i.valid.eq(self.windows.valid),
            self.windows.ready.eq(runs.i.ready),
            self.bus.ar.valid.eq(runs.o.valid & may),
            address.addr.eq(run.at << exact_log2(ENTRY)),
            address.len.eq((run.count << each) - 1),
            runs.o.ready.eq(self.bus.ar.ready & may),
            reads.eq(self.bus.ar.valid & self.bus.ar.ready),
            self.bus.r.ready.eq(1),
            beats.i.valid.eq(self.bus.r.valid),
            beats.i.payload.data.eq(self.bus.r.payload.data),
            beats.i.payload.bad.eq(self.bus.r.payload.resp != Response.OKAY.value),
        ]
        m.d.sync += [
            self.busy.eq(facts.i.valid | facts.o.valid | entries.busy),
            free.eq(free - Mux(reads, run.count, 0) + delayed(m, 1, entries.taken, "taken")),
            may.eq((free >= RUN) & facts.half),
            # Long before the first beat. One more than ``may`` knows of fits, too.
            facts.i.valid.eq(reads & run.first),
            *(facts.i.payload[name].eq(window[name]) for name, _ in _Facts(self.streams)),
        ]
        return m


class Entries(wiring.Component):
    """Makes entries of the beats of windows that were read.

    Latency: 1 cycle. Throughput: one beat per cycle, and one cycle more for a window. Reset: empty.
    Errors: ``fail``, as in :class:`Fetch`.

    Members
    -------
    windows : In(stream.Signature(_Facts(streams)))
    beats : In(stream.Signature(_Beat(width)))
    o, fail
        As in :class:`Fetch`.
    taken : Out(1)
        The last beat of an entry was taken.
    busy : Out(1)
        A window was taken, and not all of its entries have come.
    """

    def __init__(self, width, streams):
        self.width, self.streams = width, streams
        super().__init__({
            "windows": In(stream.Signature(_Facts(streams))),
            "beats": In(stream.Signature(_Beat(width))),
            "o": Out(stream.Signature(WorkEntry(streams))),
            "fail": Out(stream.Signature(range(streams))),
            "taken": Out(1),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        beats = 8 * ENTRY // self.width  # of an entry
        # The window under way: how many of its entries are missing, ``final``: only one is, and
        # ``failed``: a beat of it was refused.
        window, begun, left, final, failed = (
            Signal(_Facts(self.streams)), Signal(), Signal(8), Signal(), Signal())
        octets, at = Signal(8 * ENTRY, reset_less=True), Signal(range(beats))
        comes, ends, shows, fails = Signal(), Signal(), Signal(), Signal()
        # The wide register of an entry has an enable of its own, apart from all other registers.
        shown = copies(m, shows, 2, name="shown")
        advance, loads = (~each | self.o.ready for each in shown)
        entry, beat = self.o.payload, self.beats.payload
        m.d.comb += [
            self.busy.eq(begun),
            self.windows.ready.eq(~begun),
            # The stream fails before the beat is taken.
            fails.eq(beat.bad & ~failed),
            self.fail.valid.eq(begun & self.beats.valid & fails),
            self.fail.payload.eq(window.stream),
            self.beats.ready.eq(begun & advance & ~fails),
            comes.eq(self.beats.valid & self.beats.ready),
            ends.eq(at == beats - 1),
            self.taken.eq(comes & ends),
            self.o.valid.eq(shown[0]),
            shows.eq(Mux(advance, comes & ends, self.o.valid)),
            entry.entry.eq(octets),
        ]
        with m.If(self.fail.valid & self.fail.ready):
            m.d.sync += failed.eq(1)
        with m.If(~begun):
            m.d.sync += [
                begun.eq(self.windows.valid),
                window.eq(self.windows.payload),
                left.eq(self.windows.payload.count),
                final.eq(self.windows.payload.count == 1),
                failed.eq(0),
            ]
        # A beat that is not taken yet is loaded too: before an entry, whose own beats replace it,
        # or in an entry that becomes zeros.
        with m.If(loads & self.beats.valid):
            m.d.sync += octets.eq(Mux(failed, 0, Cat(octets, beat.data)[self.width:]))
        with m.If(comes):
            m.d.sync += [
                at.eq(Mux(ends, 0, at + 1)),
                # These have no meaning before the entry's last beat, which loads them again.
                entry.rest.eq(left),
                entry.stream.eq(window.stream),
                entry.turn.first.eq(left == window.count),
                *(entry.turn[name].eq(window[name])
                  for name in (
                      "octets", "done", "more", "response", "answers", "repeat", "slot")),
            ]
            with m.If(ends):
                m.d.sync += [left.eq(left - 1), final.eq(left == 2), begun.eq(~final)]
        return m
