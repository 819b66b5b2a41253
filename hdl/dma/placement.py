"""Reads the packet buffer and writes host memory: the placement engine."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiWrite
from ..lib.credits import Credits
from ..lib.stream import Store
from .burst import Bursts, Done
from .jobs import JobMaker, Placement
from .output_queue import ExceptionBeat, OutputQueue
from .slots import Align, Slots

__all__ = ["Done", "ExceptionBeat", "Placement", "PlacementDma"]

QUEUE = 16


class Ready(wiring.Component):
    """Admits placements while there is room for them, and detects when the engine is idle.

    Latency: 1 cycle. Throughput: one placement per cycle. Reset: idle. Errors: none.

    Members
    -------
    room : In(1)
        The job queues are half free.
    accept : In(1)
        A placement is input.
    busy : In(1)
        A placement is being processed; may be low for up to 14 cycles while it moves from one block
        to the next.
    ready : Out(1)
        A placement may be input.
    idle : Out(1)
        ``busy`` has been low for 15 cycles. Low in the cycle after ``accept``.
    """

    room: In(1)
    accept: In(1)
    busy: In(1)
    ready: Out(1)
    idle: Out(1)

    def elaborate(self, platform):
        m = Module()
        quiet, busy = Signal(4), Signal()
        m.d.sync += [self.ready.eq(self.room), busy.eq(self.busy | self.accept)]
        with m.If(busy):
            m.d.sync += quiet.eq(0)
        with m.Elif(~quiet.all()):
            m.d.sync += quiet.eq(quiet + 1)
        m.d.sync += self.idle.eq(quiet.all() & ~busy & ~self.accept)
        return m


class PlacementDma(wiring.Component):
    """Copies runs of octets from the packet buffer to host memory, at any alignment.

    A placement that touches ``n_in`` beats of the ring and ``n_out`` beats of the bus takes
    max(n_in, n_out, 1) cycles, and the next one follows without a gap, whatever the two alignments.
    Bursts end at every 4 KiB boundary (at 64 bits, every 2 KiB: 256 beats). Addresses and data are
    sent independently: AXI4 lets the data of a burst run ahead of its address, and neither waits
    for the other here.

    Latency: 11 cycles from ``i`` to ``bus.aw``; 16 to the first ``bus.w`` or ``exceptions`` beat at
    64 and 128 bits, 17 at 256 and 512; 3 from the last response to ``done``.
    Throughput: one beat per cycle. Reset: idle.
    Errors: a write response other than OKAY sets ``done.error`` of its segment.

    Parameters
    ----------
    config : RnicConfig
    sources : int
        Number of packet buffers: 1 or 2.

    Members
    -------
    i : In(stream.Signature(Placement(config, sources=sources), always_ready=True))
    ready : Out(1)
        A placement may be input in this cycle and in the next one.
    read_address : Out(range(beats in the packet buffer))
    read_sctp, release_sctp : Out(1)
        With two packet buffers only: ``read_address``, ``release`` is for the second one.
    read_data : In(width)
        The beat at the address given 3 cycles before.
    bus : Out(AxiWrite(width))
    exceptions : Out(stream.Signature(ExceptionBeat(width)))
        One packet for each placement with ``exception`` and a length above 0.
    release : Out(stream.Signature(Placement's release, always_ready=True))
        For each placement, in order, when its last octet has been read.
    done : Out(stream.Signature(Done(config)))
        For each placement with ``last``, without ``exception`` and with a length above 0, in order:
        after the response to its last burst. If ``done`` is held up, the bus stops eventually.
    idle : Out(1)
        Nothing is being processed: every response has arrived, and every ``done`` and exception was
        taken. Low from the cycle after a placement is taken.
    """

    def __init__(self, config, *, sources=1):
        self.config = config
        self.job_maker = JobMaker(config, sources=sources)
        self.slots = Slots(config, self.job_maker.slot_job)
        super().__init__({
            "i": In(stream.Signature(Placement(config, sources=sources), always_ready=True)),
            "ready": Out(1),
            "read_address": Out(self.slots.read_address.shape()),
            "read_data": In(config.width),
            "bus": Out(AxiWrite(config.width)),
            "exceptions": Out(stream.Signature(ExceptionBeat(config.width))),
            "release": Out(self.slots.release.signature),
            "done": Out(stream.Signature(Done(config))),
            "idle": Out(1),
            **{name: Out(1) for name in self._which},
        })

    @property
    def _which(self):
        """The members that name one of two packet buffers."""
        return ("read_sctp", "release_sctp") if self.slots.two_sources else ()

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.job_maker = job_maker = self.job_maker
        m.submodules.slot_jobs = slot_jobs = Store(job_maker.slot_job, depth=QUEUE)
        m.submodules.burst_jobs = burst_jobs = Store(job_maker.burst_job, depth=QUEUE)
        m.submodules.slots = slots = self.slots
        m.submodules.align = align = Align(config)
        m.submodules.output_queue = output_queue = OutputQueue(config.width, depth=QUEUE)
        m.submodules.bursts = bursts = Bursts(config, job_maker.burst_job)
        m.submodules.credits = credits = Credits(QUEUE)
        m.submodules.ready = ready = Ready()

        # Placements are admitted while both job queues are half free: at most the other half of
        # their capacity can be on the way.
        m.d.comb += [
            self.ready.eq(ready.ready),
            ready.room.eq(slot_jobs.half & burst_jobs.half),
            ready.accept.eq(self.i.valid),
            ready.busy.eq(slots.busy | slot_jobs.o.valid | burst_jobs.o.valid | ~bursts.idle
                          | ~credits.idle | output_queue.w.valid | output_queue.exceptions.valid),
            self.idle.eq(ready.idle),
        ]
        wiring.connect(m, wiring.flipped(self.i), job_maker.i)
        # No block from the slots to the output queue waits: each beat has its entry in advance.
        wiring.connect(m, job_maker.slots, slot_jobs.i)
        wiring.connect(m, job_maker.bursts, burst_jobs.i)
        wiring.connect(m, slot_jobs.o, slots.i)
        wiring.connect(m, burst_jobs.o, bursts.i)
        wiring.connect(m, wiring.flipped(self.release), slots.release)
        wiring.connect(m, slots.heading, output_queue.heading)
        wiring.connect(m, align.o, output_queue.i)
        m.d.comb += [
            slots.go.eq(credits.soon),
            credits.open.eq(1),
            credits.take.eq(slots.sent),
            credits.give.eq(output_queue.taken),
            self.read_address.eq(slots.read_address),
            align.i_valid.eq(slots.o_valid),
            align.i.eq(slots.o),
            align.read_data.eq(self.read_data),
            *(getattr(self, name).eq(getattr(slots, name)) for name in self._which),
        ]
        wiring.connect(m, output_queue.exceptions, wiring.flipped(self.exceptions))
        wiring.connect(m, output_queue.w, wiring.flipped(self.bus.w))
        wiring.connect(m, bursts.aw, wiring.flipped(self.bus.aw))
        wiring.connect(m, wiring.flipped(self.bus.b), bursts.b)
        wiring.connect(m, bursts.done, wiring.flipped(self.done))
        return m
