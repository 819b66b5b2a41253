"""Counts the steps of a job, one per cycle."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Job", "JobSequencer"]


class Job(data.StructLayout):
    """A job that takes ``more + 1`` steps.

    Members
    -------
    body : body
    more : unsigned(count_width)
        Steps less one.
    one, two : 1
        It takes exactly one, exactly two steps.
    """

    def __init__(self, body, count_width):
        self.body = body
        self.count_width = count_width
        super().__init__({"body": body, "more": count_width, "one": 1, "two": 1})


class JobSequencer(wiring.Component):
    """Takes jobs and makes their steps, one per cycle while ``go`` is high.

    Latency: 1 cycle from ``i`` to the first step. Throughput: one step per cycle, without a gap
    between jobs. Reset: no job. Errors: none. ``valid`` is one gate from registers; all other
    outputs are registers.

    Parameters
    ----------
    job : Job

    Members
    -------
    i : In(stream.Signature(job))
    go : In(1)
        A step may be made in the next cycle.
    valid : Out(1)
        A step is made in this cycle; the members below describe it.
    busy : Out(1)
        A job is being processed.
    body : Out(job.body)
    index : Out(job.count_width)
        Steps already made.
    first, last, penultimate : Out(1)
    """

    def __init__(self, job):
        super().__init__({
            "i": In(stream.Signature(job)),
            "go": In(1),
            "valid": Out(1),
            "busy": Out(1),
            "body": Out(job.body),
            "index": Out(job.count_width),
            "first": Out(1),
            "last": Out(1),
            "penultimate": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        more = Signal.like(self.index)
        goes = Signal()
        ready = Signal(init=1)
        m.d.comb += [self.valid.eq(self.busy & goes), self.i.ready.eq(ready)]
        # Ready means not busy, or making the last step. It is computed one cycle earlier, because
        # it enables a wide register. The last step is known from flags that come with the job or
        # are computed two steps ahead, so that the loop has neither a comparison nor a carry chain.
        m.d.sync += [
            goes.eq(self.go),
            ready.eq(Mux(
                ready,
                ~self.i.valid | (self.go & self.i.payload.one),
                self.go & Mux(goes, self.penultimate, self.last),
            )),
        ]
        with m.If(ready):
            m.d.sync += [
                self.busy.eq(self.i.valid),
                self.body.eq(self.i.payload.body),
                more.eq(self.i.payload.more),
                self.index.eq(0),
                self.first.eq(1),
                self.last.eq(self.i.payload.one),
                self.penultimate.eq(self.i.payload.two),
            ]
        with m.Elif(goes):
            m.d.sync += [
                more.eq(more - 1),
                self.index.eq(self.index + 1),
                self.first.eq(0),
                self.last.eq(self.penultimate),
                self.penultimate.eq(more == 2),
            ]
        return m
