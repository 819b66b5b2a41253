"""Proves that no completion precedes its octets in host memory, comes twice, or is lost."""

from amaranth import *
from amaranth.hdl import Cover

from ..ddp.precedence import Precedence
from ..ddp.queues import CompletionQueues
from ..dma.burst import QUEUE
from ..spec import completion
from ..spec.config import RnicConfig
from .harness import Harness, if_
from .streams import stored

__all__ = ["CONFIG", "Answers", "Completions", "Direct", "Ripe", "Straight"]

#: At 256 bits, a completion is exactly one beat.
CONFIG = RnicConfig(
    width=256, buffer_octets=4096, outstanding=8, stags=16, streams=2, backlog=64
)


class Answers(Harness):
    """Proves that a placement is done once, after the response to its last burst.

    Any one burst is followed, from its address: it is answered when as many responses have arrived
    as there are bursts up to and including it, and no sooner. If it is the last burst of its
    segment, exactly one ``done`` results.

    Assumes nothing. By induction of depth 1.
    """

    def rules(self, m):
        dut, inside = self.dut, self.inside
        made = inside.component("addresses").o
        head = inside.component("waiting").o
        answered = inside["answered"]
        # Counters modulo 256: bursts made, responses taken, bursts answered, ``done`` outputs.
        bursts, responses, answers = Signal(8), Signal(8), Signal(8)
        ends, dones = Signal(8), Signal(8)
        gives = dut.done.valid & dut.done.ready
        m.d.sync += [
            bursts.eq(bursts + made.valid),
            responses.eq(responses + (dut.b.valid & dut.b.ready)),
            answers.eq(answers + answered),
            ends.eq(ends + (answered & head.payload.final)),
            dones.eq(dones + gives),
        ]
        early = Signal(8)
        m.d.comb += early.eq(responses - answers)
        self.always(early <= QUEUE + 1, "no burst is answered for before its response")
        full = inside["skid.full"]
        self.always((ends - dones)[:8] == dut.done.valid + full, "one done for each last burst")
        self.lemma(if_(full, dut.done.valid), "one waits behind another")
        self.lemma(inside["skid.ready"] == ~full, "ready")
        self.steady(dut.done, "done is held")
        m.d.comb += Cover(dut.done.valid & self.past(answered & ~head.payload.final, 2), "done")
        queue = inside.component("answers")
        here = Signal(8)
        m.d.comb += here.eq(early - queue.o.valid)
        self.lemma(early >= queue.o.valid, "what is staged is counted")
        stored(self, m, "answers.store.", here, QUEUE)
        self.lemma(if_(queue.i.ready, here < QUEUE), "there is room")


class Ripe(Harness):
    """Proves that a message is due only when as many placements are retired as its count says.

    Assumes that its count is within 2**15 of ``retired``. Nothing is assumed of the queue in which
    messages wait: it may offer anything. :mod:`ddp_rnic.hdl.proofs.streams` proves that queue. By
    induction of depth 2.
    """

    def rules(self, m):
        dut, inside = self.dut, self.inside
        retired = Signal(16)
        with m.If(dut.done.valid & dut.done.ready):
            m.d.sync += retired.eq(retired + 1)
        head = dut.i.payload.shape()(inside["head"])
        ahead = Signal(16)
        m.d.comb += ahead.eq(head.count - retired)
        self.assume((ahead < 1 << 14) | (ahead > 3 << 14))
        leaves = inside["leaves"]
        self.always(if_(leaves, (ahead == 0) | ahead[15]), "its placements are retired")
        self.always(dut.retired == retired, "retired")
        given = self.past(leaves, 2)
        self.always(dut.o.valid == given, "given out once")
        m.d.comb += Cover(leaves & self.past(leaves) & (ahead == 0), "two messages")


class Straight(Precedence):
    """Replaces Precedence where no message overtakes another one: every entry passes."""

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [
            self.o.valid.eq(self.i.valid),
            self.o.payload.eq(self.i.payload.entry),
            self.i.ready.eq(self.o.ready),
        ]
        return m


class Direct(CompletionQueues):
    """Replaces CompletionQueues where all have room: every completion is written."""

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [
            self.bus.w.valid.eq(self.i.valid),
            self.bus.w.payload.data.eq(self.i.payload.as_value()),
            self.i.ready.eq(self.bus.w.ready),
        ]
        return m


class Completions(Harness):
    """Proves that completions are written in the order of the messages, each exactly once.

    A completion has the fields of its message, and follows the retirement of its placements.

    Any one message is followed to the bus. Assumes that counts come in order and within 2**15 of
    ``retired``. :class:`Straight` replaces Precedence, and :class:`Direct` the completion queues,
    of which :mod:`~.queues` has proofs. Bounded: for the first ``DEPTH`` cycles, in
    which two completions are written.
    """

    DEPTH = 17

    def rules(self, m):
        dut = self.dut
        record = dut.records.payload
        retired, count, ahead = Signal(16), Signal(8), Signal(8)
        followed, kept = Signal(), Signal.like(record)
        mark = self.any(1, name="mark")
        with m.If(dut.done.valid & dut.done.ready):
            m.d.sync += retired.eq(retired + 1)
        distance = Signal(16)
        m.d.comb += distance.eq(record.count - retired)
        self.assume(if_(dut.records.valid, (distance < 1 << 14) | (distance > 3 << 14)))
        gives = dut.bus.w.valid & dut.bus.w.ready
        m.d.sync += count.eq(count + dut.records.valid - gives)
        mine = Signal()
        m.d.comb += mine.eq(followed & (ahead == 0) & dut.bus.w.valid)
        with m.If(~followed):
            m.d.sync += [
                followed.eq(dut.records.valid & mark), kept.eq(record), ahead.eq(count - gives),
            ]
        with m.Elif(gives):
            m.d.sync += [followed.eq(ahead != 0), ahead.eq(ahead - 1)]
        left = Signal(16)
        m.d.comb += left.eq(kept.count - retired)
        self.always(if_(dut.bus.w.valid, count != 0), "a completion has a message")
        self.always(if_(mine, (left == 0) | left[15]), "its placements are retired")
        entry = dut.bus.w.payload.data
        for field in completion.FIELDS:
            at = 8 * field.octet + field.bit
            if field.name in dict(kept.shape()):
                same = entry[at : at + field.bits] == kept[field.name]
                self.always(if_(mine, same), f"its {field.name}")
        for name, port in (("aw", dut.bus.aw), ("w", dut.bus.w)):
            self.steady(port, f"{name} is held")
        m.d.comb += Cover(mine & (kept.count == 1), "a completion")
