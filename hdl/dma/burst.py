"""Sends the bursts' addresses, and collects their responses."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import Response
from ..lib.credits import Credits
from ..lib.stream import Backlog, Queue, Skid, Stage, Store
from .jobs import Geometry
from .sequencer import JobSequencer

__all__ = ["Bursts", "Done"]

QUEUE = 16


class Done(data.StructLayout):
    """A segment for whose last octet the bus has responded.

    Members
    -------
    error : 1
        A response of the segment was not OKAY.
    stream : stream_bits
    """

    def __init__(self, config):
        super().__init__({"error": 1, "stream": config.stream_bits})


class Addresses(wiring.Component):
    """Computes the addresses and lengths of a placement's bursts.

    Latency: 3 cycles from ``i`` to ``o``. Throughput: one burst per cycle. Reset: empty. Errors:
    none.

    Parameters
    ----------
    config : RnicConfig
    job : Job(BurstBody)

    Members
    -------
    i : In(stream.Signature(job))
    go : In(1)
        There is room for one more burst in the next cycle.
    taken : Out(1)
        A burst was started; combinational.
    busy : Out(1)
        A placement is being processed.
    o : Out(stream.Signature({addr: 64, len: 8, final: 1, stream: stream_bits}, always_ready))
        ``final``: the segment ends with this burst.
    """

    def __init__(self, config, job):
        self.geometry = Geometry(config)
        self.job = job
        super().__init__({
            "i": In(stream.Signature(job)),
            "go": In(1),
            "taken": Out(1),
            "busy": Out(1),
            "o": Out(stream.Signature(data.StructLayout({
                "addr": 64, "len": 8, "final": 1, "stream": config.stream_bits,
            }), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        geometry = self.geometry
        m.submodules.sequencer = sequencer = JobSequencer(self.job)
        body = sequencer.body
        # The page number is added up in two halves, one per cycle.
        half = geometry.page // 2
        valid1 = Signal()
        low1 = Signal(half + 1, reset_less=True)
        high1 = Signal(geometry.page - half, reset_less=True)
        position1 = Signal(geometry.burst, reset_less=True)
        burst1 = Signal.like(self.o.payload, reset_less=True)

        wiring.connect(m, wiring.flipped(self.i), sequencer.i)
        m.d.comb += [
            sequencer.go.eq(self.go),
            self.taken.eq(sequencer.valid),
            self.busy.eq(sequencer.busy),
        ]
        m.d.sync += [valid1.eq(sequencer.valid), self.o.valid.eq(valid1)]
        with m.If(sequencer.valid):
            m.d.sync += [
                low1.eq(body.page[:half] + sequencer.index),
                high1.eq(body.page[half:]),
                position1.eq(Mux(sequencer.first, body.position, 0)),
                burst1.len.eq(Mux(sequencer.first, body.first,
                                  Mux(sequencer.last, body.final, (1 << geometry.burst) - 1))),
                burst1.final.eq(sequencer.last & body.last),
                burst1.stream.eq(body.stream),
            ]
        with m.If(valid1):
            m.d.sync += [
                self.o.payload.eq(burst1),
                self.o.payload.addr.eq(
                    Cat(C(0, geometry.lane), position1, low1[:half], high1 + low1[half])),
            ]
        return m


class Bursts(wiring.Component):
    """Sends the address of every burst and waits for its response.

    Latency: 5 cycles from ``i`` to ``aw``; 3 from the response to ``done``. Throughput: one burst
    and one response per cycle. Reset: empty. Errors: if any response of a segment is not OKAY,
    ``done.error`` is set, after the segment's last burst.

    Parameters
    ----------
    config : RnicConfig
    job : Job(BurstBody)

    Members
    -------
    i : In(stream.Signature(job))
    aw : Out(stream of {addr: 64, len: 8})
    b : In(stream of {resp: 2})
    done : Out(stream.Signature(Done(config)))
    idle : Out(1)
        No burst waits for its address to be taken or for its response.
    """

    def __init__(self, config, job):
        self.config = config
        self.job = job
        super().__init__({
            "i": In(stream.Signature(job)),
            "aw": Out(stream.Signature(data.StructLayout({"addr": 64, "len": 8}))),
            "b": In(stream.Signature(data.StructLayout({"resp": 2}))),
            "done": Out(stream.Signature(Done(config))),
            "idle": Out(1, init=1),
        })

    def elaborate(self, platform):
        m = Module()
        address = self.aw.payload.shape()
        origin = data.StructLayout({"final": 1, "stream": self.config.stream_bits})
        m.submodules.addresses = addresses = Addresses(self.config, self.job)
        m.submodules.queue = queue = Store(address, depth=QUEUE)
        m.submodules.stage = stage = Stage(address)
        m.submodules.waiting = waiting = Backlog(
            origin, depth=max(16, self.config.outstanding), relaxed=self.config.relaxed)
        m.submodules.answers = answers = Queue(1, depth=QUEUE)
        m.submodules.credits = credits = Credits(self.config.outstanding)
        m.submodules.skid = skid = Skid(Done(self.config))
        burst, head = addresses.o.payload, waiting.o.payload
        failed = Signal()
        error = Signal()
        answered = Signal()

        wiring.connect(m, wiring.flipped(self.i), addresses.i)
        wiring.connect(m, queue.o, stage.i)
        wiring.connect(m, stage.o, wiring.flipped(self.aw))
        # Both queues have room: ``waiting`` by the credits, ``queue`` because at most half of its
        # capacity can be on the way when it is last seen half free.
        m.d.sync += credits.open.eq(queue.half)
        m.d.comb += [
            addresses.go.eq(credits.soon),
            credits.take.eq(addresses.taken),
            queue.i.valid.eq(addresses.o.valid),
            queue.i.payload.addr.eq(burst.addr),
            queue.i.payload.len.eq(burst.len),
            waiting.i.valid.eq(addresses.o.valid),
            waiting.i.payload.final.eq(burst.final),
            waiting.i.payload.stream.eq(burst.stream),
        ]

        m.d.comb += [
            answers.i.valid.eq(self.b.valid),
            answers.i.payload.eq(self.b.payload.resp != Response.OKAY.value),
            self.b.ready.eq(answers.i.ready),
            answered.eq(answers.o.valid & waiting.o.valid & skid.i.ready),
            answers.o.ready.eq(answered),
            waiting.o.ready.eq(answered),
            error.eq(failed | answers.o.payload),
            skid.i.valid.eq(answered & head.final),
            skid.i.payload.error.eq(error),
            skid.i.payload.stream.eq(head.stream),
        ]
        wiring.connect(m, skid.o, wiring.flipped(self.done))
        m.d.sync += credits.give.eq(answered)
        with m.If(answered):
            m.d.sync += failed.eq(error & ~head.final)
        m.d.comb += self.idle.eq(credits.idle & ~addresses.busy & ~self.done.valid)
        return m
