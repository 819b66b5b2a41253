"""Assembles the Data Source: from send rings to segments that leave (RFC 5041 section 5.2).

The data's way::

    doorbells ─ RingReader ◄─ turns ─ Scheduler, Repeats
                  │ ▲ results
    entries       ▼ │
              Segmenter ┬ segments ──────────────────► ReadDma ─ Departure ┬ segments over MPA
                        ├ parts ─ PartCheck ─ pieces ─►  │ ▲               ├ segments over SCTP
                        └ inline ──────────────────────► │ └ bus           └ HandOver ─ completions
                                  reserved ◄─────────────┘                       ▲ handed
"""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiRead
from ..bus.readers import ReadersJoin
from ..dma.read import ReadDma
from ..lib.stream import Skid, Store, counted, delayed
from ..spec.send import LONGEST_SEGMENT, READS
from .associations import AssociationLimit
from .checks import PartCheck
from .credit import CreditLimit
from .departure import Departure
from .fence import SendFence
from .repeats import Repeats
from .rings import RingReader
from .scheduler import Scheduler
from .segmenter import Segmenter
from .sent import HandOver, SentCompletions
from .work import QUANTUM

__all__ = ["DataSource"]


class DataSource(wiring.Component):
    """Sends messages: reads work requests and their octets from host memory, and cuts them into
    segments, for an LLP to frame.

    ``fence`` begins when an entry of the STag table was replaced. It ends when no octet that the
    former entry allowed to read is read any more: all reads have been answered by then.

    Latency: that of its parts. Throughput: a segment takes as many cycles as its bursts or its FPDU
    have beats, or two. Reset: empty; streams, rings and their numbers stay. Errors: a segment that
    cannot be read closes the sending half of its stream.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    ring, doorbell, consumer
        ``set``, ``doorbell`` and ``consumer`` of :class:`~.rings.RingReader`.
    look : In(range(streams))
        The stream of ``consumer``, ``state`` and ``repeating``.
    repeat, repeating
        ``i`` and ``under_way`` of :class:`~.repeats.Repeats`.
    mulpdus, msns, opens, set, state, dropped
        As in :class:`~.segmenter.Segmenter` and :class:`~.departure.Departure`.
    limits : In(stream.Signature(CreditLimit(streams)))
        As in :class:`~.credit.CreditAccounts`; a stream with a new limit is woken.
    begun, allowed : In(stream.Signature(AssociationLimit(associations)))
        With ``config.senders`` only: ``set`` and ``limits`` of
        :class:`~.associations.AssociationCredit`. The first stream that waits for the association
        is woken by a new limit.
    waits
        As in :class:`~.rings.RingReader`.
    ords, cleared, stopped, freed, expected
        With ``config.reader`` only: those of :class:`~.segmenter.Cutter`.
    stream, pd, enable, index, entry, slot, page
        As in :class:`~.checks.PartCheck`.
    bind, released
        As in :class:`~.sent.SentCompletions`.
    completions : Out(sent_host(config))
    slots, requests, answered, next, asked
        With ``config.responder`` only: those of :class:`~.responses.ResponseRings`.
    bus : Out(AxiRead(width, 2 * outstanding))
    heads, o, chunks, bodies
        Segments that leave, as in :class:`~.departure.Departure`.
    handed : In(2)
        An FPDU, or a frame of SCTP, has left the device.
    fence : In(1), fencing : Out(1)
    busy : Out(1)
        Something is to be sent, or is being sent.
    """

    def __init__(self, config):
        self.config = config
        self.segmenter = Segmenter(
            config.width, config.streams, associations=config.senders, receive=config.receive,
            reads=READS * config.reader)
        self.check = PartCheck(config)
        self.departure = Departure(config.width, config.streams, config.senders)
        self.rings = RingReader(
            config.width, config.streams, responder=config.responder, associations=config.senders)
        self.sent = SentCompletions(config)
        self.repeats = Repeats(config.streams)
        members = {
            **{name: self.segmenter.signature.members[name]
               for name in ("mulpdus", "msns", "opens", *self._reads)},
            "limits": In(stream.Signature(CreditLimit(config.streams))),
            **{name: self.check.signature.members[name]
               for name in ("stream", "pd", "enable", "index", "entry", "slot", "page")},
            **{name: self.departure.signature.members[name]
               for name in ("set", "look", "state", "dropped", *self._leaving)},
            **{name: self.rings.signature.members[name]
               for name in ("doorbell", "consumer", "waits", *self._responses())},
            "ring": self.rings.signature.members["set"],
            **{name: self.sent.signature.members[name] for name in ("bind", "released")},
            "repeat": self.repeats.signature.members["i"],
            "repeating": self.repeats.signature.members["under_way"],
            "completions": self.sent.signature.members["host"],
            **({"begun": self.segmenter.signature.members["begun"],
                "allowed": In(stream.Signature(AssociationLimit(config.senders)))}
               if config.senders else {}),
        }
        super().__init__({
            "bus": Out(AxiRead(config.width, 2 * config.outstanding)),
            "handed": In(2),
            "fence": In(1),
            "fencing": Out(1),
            "busy": Out(1),
            **members,
        })

    @property
    def _leaving(self):
        """The names of the members for segments that leave."""
        return ("heads", "o", *(("chunks", "bodies") if self.config.senders else ()))

    @property
    def _reads(self):
        """The names of the members for outstanding Reads."""
        return ("ords", "cleared", "stopped", "freed", "expected") if self.config.reader else ()

    def _responses(self):
        """Returns the names of the members for Read Responses."""
        names = ("slots", "requests", "answered", "next", "asked")
        return names if self.config.responder else ()

    def elaborate(self, platform):
        m = Module()
        m.submodules.rings = rings = self.rings
        m.submodules.scheduler = scheduler = Scheduler(self.config.streams, QUANTUM)
        m.submodules.segmenter = segmenter = self.segmenter
        m.submodules.check = check = self.check
        m.submodules.dma = dma = ReadDma(
            self.config.width, reads=self.config.outstanding, octets=LONGEST_SEGMENT, segments=64,
            inline=segmenter.rows)
        m.submodules.departure = departure = self.departure
        m.submodules.handover = handover = HandOver(self.config.streams)
        m.submodules.sent = sent = self.sent
        m.submodules.repeats = repeats = self.repeats
        m.submodules.closed = closed = Store(range(self.config.streams), depth=8)
        # The registers of the host lie far from here.
        m.submodules.releases = releases = Skid(self.released.payload.shape())
        begun = Signal()  # the departure has taken the new ring
        wiring.connect(m, departure.closed, closed.i)
        self._join(m, rings, dma)
        for name in ("wake", "ended"):
            wiring.connect(m, getattr(rings, name), getattr(scheduler, name))
        wiring.connect(m, scheduler.turn, rings.turn)
        wiring.connect(m, rings.o, segmenter.i)
        wiring.connect(m, segmenter.results, rings.results)
        wiring.connect(m, rings.fail, departure.fail)
        wiring.connect(m, repeats.o, rings.repeats)
        wiring.connect(m, rings.dropped, repeats.done[0])
        wiring.connect(m, departure.repeated, repeats.done[1])
        for port, user in enumerate((rings, segmenter, departure)):
            m.d.comb += [repeats.slot[port].eq(user.slot), user.repeat.eq(repeats.found[port])]
        wiring.connect(m, segmenter.segments, dma.segments)
        wiring.connect(m, segmenter.inline, dma.inline)
        wiring.connect(m, dma.reserved, segmenter.reserved)
        wiring.connect(m, segmenter.parts, check.i)
        wiring.connect(m, check.o, dma.pieces)
        wiring.connect(m, dma.heads, departure.segments)
        wiring.connect(m, dma.o, departure.beats)
        for name in self._leaving:
            wiring.connect(m, getattr(departure, name), wiring.flipped(getattr(self, name)))
        wiring.connect(m, departure.passed, handover.i)
        wiring.connect(m, handover.o, sent.i)
        wiring.connect(m, sent.host, wiring.flipped(self.completions))
        for name, port in (
            ("mulpdus", segmenter.mulpdus), ("msns", segmenter.msns), ("set", departure.set),
            ("doorbell", rings.doorbell), ("bind", sent.bind), ("released", releases.i),
            ("repeat", repeats.i)):
            wiring.connect(m, wiring.flipped(getattr(self, name)), port)
        wiring.connect(m, releases.o, sent.released)
        if self.config.responder:
            self._respond(m, rings)
        m.d.comb += [
            check.pd.eq(self.pd),
            check.enable.eq(self.enable),
            check.entry.eq(self.entry),
            check.page.eq(self.page),
            self.stream.eq(check.stream),
            self.index.eq(check.index),
            self.slot.eq(check.slot),
            departure.look.eq(self.look),
            rings.look.eq(self.look),
            self.state.eq(departure.state),
            self.consumer.eq(rings.consumer),
            self.waits.eq(rings.waits),
            repeats.look.eq(self.look),
            self.repeating.eq(repeats.under_way),
            # One block after the other takes the new ring.
            rings.set.payload.eq(self.ring.payload),
            departure.begin.payload.eq(self.ring.payload.stream),
            departure.begin.valid.eq(self.ring.valid & ~begun),
            rings.set.valid.eq(self.ring.valid & begun),
            self.ring.ready.eq(begun & rings.set.ready),
            self.dropped.eq(departure.dropped),
            segmenter.limits.valid.eq(self.limits.valid & self.limits.ready),
            segmenter.limits.payload.eq(self.limits.payload),
            segmenter.closes.valid.eq(departure.closed.valid),
            segmenter.closes.payload.eq(departure.closed.payload),
        ]
        free = self._nudge(m, rings, closed.o)
        shares, room = self._share(m) if self.config.senders else (C(0), C(1))
        m.d.sync += departure.room.eq(handover.half & closed.half & room)
        if self.config.reader:
            self._bound_reads(m, free)
        with m.If(self.ring.valid):
            m.d.sync += begun.eq(Mux(begun, ~rings.set.ready, departure.begin.ready))
        m.d.comb += handover.handed.eq(self.handed)
        self._busy(m, shares)
        self._fence(m, check, dma)
        return m

    def _nudge(self, m, rings, failed):
        """Wakes a stream that has a new limit, and one whose half was closed by the host or
        ``failed``, so that it gives up what waits for credit.

        Returns a signal that allows other wakes.
        """
        nudge, opens, port = rings.nudge, self.opens, self.segmenter.opens
        closes = opens.valid & ~opens.payload.open
        turn = ~self.limits.valid & ~failed.valid
        m.d.comb += [
            port.payload.eq(opens.payload),
            port.valid.eq(opens.valid & (opens.payload.open | (turn & nudge.ready))),
            opens.ready.eq(port.ready & (opens.payload.open | (turn & nudge.ready))),
            nudge.valid.eq(self.limits.valid | failed.valid | (closes & port.ready)),
            nudge.payload.eq(Mux(
                self.limits.valid, self.limits.payload.stream,
                Mux(failed.valid, failed.payload, opens.payload.stream))),
            self.limits.ready.eq(nudge.ready),
            failed.ready.eq(nudge.ready & ~self.limits.valid),
        ]
        return turn & ~closes

    def _busy(self, m, shares):
        """Reports whether anything is under way; ``shares``: credit of associations is changed.

        What the host writes is seen in its cycle. The other blocks are placed far apart, so their
        status is registered first.
        """
        segmenter, departure = self.segmenter, self.departure
        messages, fpdus, frames = Signal(8), Signal(8), Signal(8)
        counted(m, messages, delayed(m, 1, segmenter.begins, "begins"), departure.ends)
        counted(m, fpdus, departure.leaves, self.handed[0])
        counted(m, frames, departure.leaves_chunk, self.handed[1])
        blocks = [
            m.submodules.scheduler.busy, m.submodules.rings.reading, messages.any(), fpdus.any(),
            frames.any(), m.submodules.handover.busy, self.sent.busy, m.submodules.closed.o.valid,
            m.submodules.releases.o.valid, *([segmenter.reading] if self.config.reader else ()),
            *([m.submodules.arrivals.o.valid] if self.config.responder else ())]
        inside = delayed(m, 1, delayed(m, 1, Cat(blocks), "of_blocks").any(), "inside")
        m.d.comb += self.busy.eq(
            self.doorbell.valid | self.limits.valid | self.released.valid
            | self.repeats.busy | shares | inside
            | (self.requests.valid if self.config.responder else 0))

    def _respond(self, m, rings):
        """Connects what the Read responder needs."""
        # Requests come from a distant block.
        m.submodules.arrivals = arrivals = Skid(self.requests.payload.shape())
        wiring.connect(m, wiring.flipped(self.requests), arrivals.i)
        wiring.connect(m, arrivals.o, rings.requests)
        wiring.connect(m, self.segmenter.answered, rings.cut)
        for name in ("slots", "answered"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(rings, name))
        m.d.comb += [
            self.segmenter.room.eq(rings.room),
            self.next.eq(rings.next),
            self.asked.eq(rings.asked),
        ]

    def _share(self, m):
        """Connects the credit of associations.

        Returns whether it is being changed, and whether there is room for refunds.
        """
        rings, segmenter, refunds = self.rings, self.segmenter, self.departure.refunds
        # An association whose credit was given back is looked at like one with a new limit.
        m.submodules.refunded = refunded = Store(range(self.config.senders), depth=16)
        wiring.connect(m, refunds, segmenter.refunds)
        m.d.comb += [
            rings.ranges.payload.eq(self.begun.payload),
            segmenter.begun.payload.eq(self.begun.payload),
            rings.ranges.valid.eq(self.begun.valid & segmenter.begun.ready),
            segmenter.begun.valid.eq(self.begun.valid & rings.ranges.ready),
            self.begun.ready.eq(rings.ranges.ready & segmenter.begun.ready),
            segmenter.allowed.valid.eq(self.allowed.valid & self.allowed.ready),
            segmenter.allowed.payload.eq(self.allowed.payload),
            segmenter.front.eq(rings.front),
            rings.queue.eq(segmenter.queue),
            refunded.i.valid.eq(refunds.valid),
            refunded.i.payload.eq(refunds.payload.association),
            rings.raised.valid.eq(self.allowed.valid | refunded.o.valid),
            rings.raised.payload.eq(
                Mux(self.allowed.valid, self.allowed.payload.association, refunded.o.payload)),
            self.allowed.ready.eq(rings.raised.ready),
            refunded.o.ready.eq(rings.raised.ready & ~self.allowed.valid),
        ]
        return (self.begun.valid | self.allowed.valid | refunded.o.valid | rings.waiting,
                refunded.half)

    def _bound_reads(self, m, free):
        """Connects the slots of Reads, which wake streams while the other wakes leave that
        ``free``.
        """
        segmenter, nudge = self.segmenter, self.rings.nudge
        for name in ("ords", "cleared", "stopped", "freed"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(segmenter, name))
        wiring.connect(m, segmenter.expected, wiring.flipped(self.expected))
        m.d.comb += segmenter.wake.ready.eq(nudge.ready & free)
        with m.If(free):
            m.d.comb += [
                nudge.valid.eq(segmenter.wake.valid), nudge.payload.eq(segmenter.wake.payload)]

    def _join(self, m, rings, dma):
        """Connects the reads of the rings, and those of the messages, with the bus."""
        m.submodules.join = join = ReadersJoin(self.config.width, 1, self.config.outstanding)
        wiring.connect(m, rings.bus, join.one)
        wiring.connect(m, dma.bus, join.other)
        wiring.connect(m, join.bus, wiring.flipped(self.bus))

    def _fence(self, m, check, dma):
        """Connects the fence with the blocks that it waits for."""
        m.submodules.fence = fence = SendFence()
        m.d.comb += [
            fence.fence.eq(self.fence),
            self.fencing.eq(fence.fencing),
            check.hold.eq(fence.hold),
            fence.checking.eq(check.busy),
            dma.fence.eq(fence.drain),
            fence.reading.eq(dma.fencing),
        ]
