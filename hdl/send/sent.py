"""Reports which messages were sent.

The data's way::

    segments that left, or not ─ HandOver ─ ended messages ─ SentCompletions ─ completion queues
    FPDUs at the port ──────────►┘
"""

from amaranth import *
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.queues import sent_host
from ..ddp.room import queues_of
from ..lib.blockram import StepTable
from ..lib.stream import Backlog, Skid, Stage, Store, counted, delayed
from ..spec.completion import SentStatus

__all__ = ["EndedMessage", "HandOver", "Passed", "Released", "SendBinding", "SentCompletions"]

QUEUE = 64


class EndedMessage(data.StructLayout):
    """A message that has ended: its ``entries`` (8) in the ring of ``stream``.

    ``status`` (2): a SentStatus. ``signaled`` (1): its success is reported. ``lost`` (1): it has no
    entry, and no message of the stream can be sent again; it is FAILED, or FLUSHED if the sending
    half was closed before.
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "entries": 8, "status": 2, "signaled": 1, "lost": 1})


class Passed(data.StructLayout):
    """A segment that ``leaves`` (1), or that ``ends`` (1) a ``message``, or both.

    ``sctp`` (1): it leaves as a frame.
    """

    def __init__(self, streams):
        super().__init__({"leaves": 1, "sctp": 1, "ends": 1, "message": EndedMessage(streams)})


class SendBinding(data.StructLayout):
    """The completion ``queue`` for messages that ``stream`` sends; its ring begins with index 0.

    ``repeats`` (1): messages may be sent again until they are released.
    """

    def __init__(self, config):
        super().__init__({
            "stream": range(config.streams), "queue": range(queues_of(config)), "repeats": 1})


class Released(data.StructLayout):
    """All entries of the ring of ``stream`` before ``index`` (16) are needed no more.

    ``signaled`` (1): the success of one of their messages is reported.
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "index": 16, "signaled": 1})


class HandOver(wiring.Component):
    """Delays the end of each message until its last FPDU, and all before it, have left the device.

    Then the LLP that takes the FPDUs needs the message's buffers no more (RFC 5041 section 5.4).
    Read Responses that did not fail are nobody's messages, and end here.

    Latency: 5 cycles. Throughput: one segment in 2 cycles, as many as
    :class:`~.departure.Departure` passes. Reset: empty. Errors: none.

    Members
    -------
    i : In(stream.Signature(Passed(streams), always_ready=True))
    half : Out(1)
        There is room for half of the queue.
    handed : In(2)
        The FPDU of a segment has left, or a frame of SCTP; in the order of those that leave.
    o : Out(stream.Signature(EndedMessage(streams)))
    busy : Out(1)
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({
            "i": In(stream.Signature(Passed(streams), always_ready=True)),
            "half": Out(1),
            "handed": In(2),
            "o": Out(stream.Signature(EndedMessage(streams))),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.passed = passed = Store(Passed(self.streams), depth=QUEUE)
        m.submodules.stage = stage = Stage(data.StructLayout({
            "passed": Passed(self.streams), "reports": 1}))
        m.submodules.ended = ended = Skid(EndedMessage(self.streams))
        wiring.connect(m, ended.o, wiring.flipped(self.o))
        wiring.connect(m, wiring.flipped(self.i), passed.i)
        next_one, head, reports = passed.o.payload, stage.o.payload.passed, stage.o.payload.reports
        handed = [Signal(range(2 * QUEUE), name=name) for name in ("fpdus", "frames")]
        # A segment goes one cycle after it was seen that its FPDU has left, and that there is room.
        there, goes = ~head.leaves | Mux(head.sctp, handed[1].any(), handed[0].any()), Signal()
        m.d.sync += goes.eq(stage.o.valid & ~goes & there & (ended.i.ready | ~reports))
        # A Read Response has no entry in the ring: only its failure counts.
        m.d.comb += [
            stage.i.valid.eq(passed.o.valid),
            passed.o.ready.eq(stage.i.ready),
            stage.i.payload.passed.eq(next_one),
            stage.i.payload.reports.eq(next_one.ends & (
                next_one.message.entries.any() | next_one.message.lost
                | (next_one.message.status == SentStatus.FAILED))),
            self.half.eq(passed.half),
            ended.i.valid.eq(goes & reports),
            ended.i.payload.eq(head.message),
            stage.o.ready.eq(goes),
            self.busy.eq(passed.o.valid | stage.o.valid | ended.o.valid),
        ]
        for port, count in enumerate(handed):
            counted(m, count, self.handed[port],
                    goes & head.leaves & (head.sctp == port))
        return m


class _Op(enum.Enum, shape=3):
    """A step that changes the account of a stream."""

    BIND = 0  #: its ring is new
    ENDED = 1  #: a message has ended
    FINISH = 2  #: the reporter is done with it
    SWEEP = 3  #: it may wait for a queue that has room again
    RELEASE = 4  #: its LLP has messages that will not be sent again


class _Account(data.StructLayout):
    """The messages of a stream that have ended.

    Members
    -------
    index : 16
        Entries of the ring that have ended, or that left and are not released. ``good`` (16): the
        index after the last success, and ``bad`` (16) after the message that failed.
    owes : 3
        Completions to be written: SUCCESS, FAILED and FLUSHED.
    silent : 1
        The last success was not signaled.
    listed : 1
        The stream is in the queue ``due`` or the reporter, or ``parked`` (1): its queue has no
        room.
    queue : range(queues)
    repeats : 1
        A success counts once it is released. ``left`` (16): the index after the last message that
        left; ``behind`` (1): it is not released, so that no failure after it is reported.
    """

    def __init__(self, queues):
        super().__init__({
            "index": 16, "good": 16, "bad": 16, "owes": 3, "silent": 1, "listed": 1, "parked": 1,
            "queue": range(queues), "repeats": 1, "left": 16, "behind": 1})


def _reported(account):
    """Returns those completions that an account owes and that may be written now."""
    return account.owes & Cat(C(1, 1), (~account.behind).replicate(2))


class SentCompletions(wiring.Component):
    """Writes completions of sent messages, each of which may cover many messages.

    A completion says which entries of a ring have ended, all with the same status. If others end
    before it is written, it covers them too. So a stream never has more than three completions to
    be written, which are kept in its account until its queue has room.

    A stream whose queue has no room is parked, and costs nothing. When the host takes completions
    of the queue, a sweep over all streams finds those that are parked for it. So no stream waits
    for the queue of another one.

    The messages of a stream that repeats end with success when its LLP has released them. If one
    fails, that is reported after the release of those before it. If they can be sent again no
    more, they fail.

    Latency: about 23 cycles from ``i`` to the entry's place, if no other stream has one to be
    written; 2 cycles for each stream until a parked one is found. Throughput: a message in 2
    cycles; a completion in about 24 cycles. Reset: nothing is due. A sweep over all streams then
    takes from the accounts what they owed, in 2 cycles each; meanwhile there is no ``bind`` and no
    ``i``. Errors: none.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    bind : In(stream.Signature(SendBinding(config), always_ready=True))
        No message of the stream is under way. At most one in 3 cycles.
    i : In(stream.Signature(EndedMessage(streams)))
    released : In(stream.Signature(Released(streams)))
        Of a stream that repeats.
    host : Out(sent_host(config))
    busy : Out(1)
        A completion is to be written, and its queue may have room.
    """

    def __init__(self, config):
        self.config = config
        super().__init__({
            "bind": In(stream.Signature(SendBinding(config), always_ready=True)),
            "i": In(stream.Signature(EndedMessage(config.streams))),
            "released": In(stream.Signature(Released(config.streams))),
            "host": Out(sent_host(config)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        streams, queues = self.config.streams, queues_of(self.config)
        account = _Account(queues)
        m.submodules.accounts = accounts = StepTable(account, streams, reads=1)
        m.submodules.due = due = Backlog(range(streams), depth=max(16, streams))
        # Queues without room, as far as is known.
        blocked, swept = Signal(queues, name="blocked"), Signal(range(streams), name="swept")
        left = Signal(range(streams + 1), init=streams, name="left")
        sweeping = Signal(init=1, name="sweeping")
        # The first sweep is that after a reset.
        restarts = Signal(init=1, name="restarts")
        sweeps, releases = Signal(), Signal()  # the next step, unless another one comes first
        finish = stream.Signature(range(streams)).create(path=("finish",))

        op, takes, number = Signal(_Op), Signal(), Signal(range(streams))
        under_way = Signal(4)  # steps
        free = ~under_way[0]
        binds, bound = Signal(), Signal(SendBinding(self.config))
        with m.If(self.bind.valid):
            m.d.sync += [binds.eq(1), bound.eq(self.bind.payload)]
        with m.Elif(free):
            m.d.sync += binds.eq(0)
        with m.If(binds):
            m.d.comb += [op.eq(_Op.BIND), number.eq(bound.stream)]
        with m.Elif(finish.valid):
            m.d.comb += [op.eq(_Op.FINISH), number.eq(finish.payload)]
        with m.Elif(sweeps):
            m.d.comb += [op.eq(_Op.SWEEP), number.eq(swept)]
        with m.Elif(releases):
            m.d.comb += [op.eq(_Op.RELEASE), number.eq(self.released.payload.stream)]
        with m.Else():
            m.d.comb += [op.eq(_Op.ENDED), number.eq(self.i.payload.stream)]
        # Messages come first. But of eight steps one is for a release that waits, and one for a
        # sweep, so that no flood of messages stops either.
        others, eighths = Signal(), Signal(8, init=1)  # one-hot
        m.d.comb += [
            sweeps.eq(sweeping & (eighths[7] | ~(self.i.valid | self.released.valid))),
            releases.eq(self.released.valid & (eighths[3] | ~self.i.valid)),
            others.eq(free & ~binds & ~finish.valid),
            finish.ready.eq(free & ~binds),
            self.i.ready.eq(others & ~sweeps & ~releases),
            self.released.ready.eq(others & ~sweeps & releases),
            takes.eq(free & (
                binds | finish.valid | self.i.valid | self.released.valid | sweeping)),
        ]
        with m.If(others & takes):
            m.d.sync += eighths.eq(eighths.rotate_left(1))
            with m.If(sweeps):
                m.d.sync += [
                    swept.eq(swept + 1), left.eq(left - 1), sweeping.eq(left != 1),
                    restarts.eq(restarts & ~swept.all()),
                ]
        coming = self._unblock(m, blocked, left, sweeping)
        # The step begins one cycle after the choice, and ends in this one. A name with _4 is the
        # value of 4 cycles ago.
        number_4 = delayed(m, 4, number, "number")
        op_3 = delayed(m, 3, op, "op")
        is_4 = {each: delayed(m, 1, op_3 == each, each.name.lower()) for each in _Op}
        restarts_4 = delayed(m, 4, restarts, "restart")
        message = delayed(m, 4, self.i.payload, "message")
        released = delayed(m, 4, self.released.payload, "released")
        bound_4 = delayed(m, 4, bound, "bound")
        reported, done = Signal(3, name="reported"), Signal(16, name="done")  # by the reporter
        now, becomes = accounts.found, accounts.becomes
        m.d.sync += [
            under_way.eq(Cat(takes, under_way)),
            accounts.step.valid.eq(takes),
            accounts.step.payload.eq(number),
        ]
        m.d.comb += becomes.eq(now)
        listed, waits, ended = Signal(), Signal(), Signal(2)
        m.d.comb += [waits.eq(blocked.bit_select(now.queue, 1)), due.i.valid.eq(ended.all())]
        with m.If(is_4[_Op.BIND]):
            m.d.comb += [
                becomes.eq(0),
                *(becomes[name].eq(bound_4[name]) for name in ("queue", "repeats")),
                becomes.listed.eq(now.listed & ~now.parked),
            ]
        with m.If(is_4[_Op.ENDED]):
            self._end(m, now, becomes, message)
        with m.If(is_4[_Op.RELEASE]):
            self._release(m, now, becomes, released)
        with m.If(is_4[_Op.ENDED] | is_4[_Op.RELEASE]):
            m.d.comb += [listed.eq(~now.listed & _reported(becomes).any()),
                         becomes.listed.eq(now.listed | _reported(becomes).any())]
        with m.If(is_4[_Op.FINISH]):
            m.d.comb += listed.eq(self._settle(m, now, becomes, waits, reported, done))
        with m.If(is_4[_Op.SWEEP]):
            m.d.comb += listed.eq(self._sweep(m, now, becomes, waits, restarts_4))
        m.d.sync += [ended.eq(Cat(accounts.steps, listed)), due.i.payload.eq(number_4)]
        reporting = self._report(m, accounts, due, blocked, coming, finish, reported, done)
        m.d.comb += self.busy.eq(
            self.i.valid | self.released.valid | under_way.any() | due.i.valid | sweeping
            | due.o.valid | reporting)
        return m

    def _unblock(self, m, blocked, left, sweeping):
        """Starts a sweep when a blocked queue has room; returns, one cycle earlier, whether a queue
        may have room, and which.
        """
        given = stream.Signature(range(len(blocked)), always_ready=True).create(path=("given",))
        coming = delayed(m, 2, Cat(self.host.freed.valid, self.host.freed.payload), "freed")
        m.d.sync += Cat(given.valid, given.payload).eq(coming)
        with m.If(given.valid):
            m.d.sync += blocked.bit_select(given.payload, 1).eq(0)
            with m.If(blocked.bit_select(given.payload, 1)):
                m.d.sync += [left.eq(self.config.streams), sweeping.eq(1)]
        return coming

    def _end(self, m, now, becomes, message):
        """Adds a message to an account."""
        index = Signal(16)
        m.d.comb += [index.eq(now.index + message.entries), becomes.index.eq(index)]
        with m.Switch(message.status):
            with m.Case(SentStatus.SUCCESS):
                with m.If(now.repeats):
                    m.d.comb += [becomes.left.eq(index), becomes.behind.eq(1)]
                with m.Else():
                    m.d.comb += [
                        becomes.good.eq(index),
                        becomes.silent.eq(~message.signaled),
                        becomes.owes[0].eq(now.owes[0] | message.signaled),
                    ]
            with m.Default():
                failed = message.status == SentStatus.FAILED
                # After the half was closed, messages fail that left and were not released.
                late = message.lost & ~failed
                m.d.comb += [
                    becomes.repeats.eq(now.repeats & ~message.lost),
                    becomes.behind.eq(now.behind & ~message.lost),
                    becomes.silent.eq(0),
                    becomes.owes.eq(now.owes | Cat(
                        now.silent, failed | (late & now.behind), ~failed & ~late)),
                    becomes.bad.eq(Mux(failed, index, Mux(
                        late & now.behind & ~now.owes[1], now.left, now.bad))),
                ]

    def _release(self, m, now, becomes, released):
        """Ends the messages of an account that are released."""
        with m.If(now.repeats & (released.index != now.good)):
            behind = released.index != now.left
            reports = released.signaled | (now.owes[1:].any() & ~behind)
            m.d.comb += [
                becomes.good.eq(released.index),
                becomes.behind.eq(behind),
                becomes.silent.eq(~reports),
                becomes.owes[0].eq(now.owes[0] | reports),
            ]

    def _settle(self, m, now, becomes, waits, reported, done):
        """Takes the completion that was ``reported`` from an account; returns whether others wait.

        The queue of the stream ``waits`` for room.
        """
        # Messages that ended meanwhile are to be reported too.
        settled = reported & Cat(latest == done for latest in (now.good, now.bad, now.index))
        m.d.comb += [
            becomes.owes.eq(now.owes & ~settled),
            becomes.silent.eq(now.silent & ~settled[0]),
            becomes.listed.eq(_reported(becomes).any()),
            becomes.parked.eq(_reported(becomes).any() & waits),
        ]
        return _reported(becomes).any() & ~waits

    def _sweep(self, m, now, becomes, waits, restarts):
        """Returns whether the stream was parked, and its queue has room; after a reset, nothing is
        owed.
        """
        m.d.comb += becomes.parked.eq(now.parked & waits)
        with m.If(restarts):
            m.d.comb += [becomes[name].eq(0) for name in ("owes", "listed", "parked")]
        return now.parked & ~waits & ~restarts

    def _report(self, m, accounts, due, blocked, coming, finish, reported, done):
        """Adds the reporter, which asks for room for one completion after the other.

        Returns whether it is at work.
        """
        host, entry, finished = self.host, self.host.entry.payload, finish.payload
        # The answer for an entry takes as long as the news of room, so that neither is missed.
        written = delayed(m, 3, Cat(host.written.valid, host.written.payload), "written")
        found, looked, came = accounts.data[0], Signal(), Signal()
        owes = _reported(found)
        freed = delayed(m, 1, coming[0] & (coming[1:] == entry.queue), "freed_queue")
        m.d.comb += [
            accounts.address[0].eq(finished),
            entry.stream.eq(finished),
            entry.done.eq(done),
            entry.status.eq(Mux(reported[0], SentStatus.SUCCESS, Mux(
                reported[1], SentStatus.FAILED, SentStatus.FLUSHED))),
        ]
        with m.FSM() as fsm:
            with m.State("Idle"):
                m.d.comb += due.o.ready.eq(1)
                m.d.sync += [finished.eq(due.o.payload), looked.eq(0)]
                with m.If(due.o.valid):
                    m.next = "Look"
            with m.State("Look"):
                m.d.sync += looked.eq(1)
                with m.If(looked):
                    m.next = "Find"
            with m.State("Find"):
                m.d.sync += [
                    came.eq(0),
                    entry.queue.eq(found.queue),
                    reported.eq(owes & -owes),  # the lowest bit
                    done.eq(Mux(owes[0], found.good, Mux(owes[1], found.bad, found.index))),
                ]
                m.next = "Decide"
            with m.State("Decide"):
                m.next = "Ask"
                with m.If(~reported.any() | blocked.bit_select(entry.queue, 1)):
                    m.d.sync += [reported.eq(0), finish.valid.eq(1)]
                    m.next = "Finish"
            with m.State("Ask"):
                m.d.comb += host.entry.valid.eq(1)
                m.d.sync += came.eq(came | freed)
                with m.If(host.entry.ready):
                    m.next = "Wait"
            with m.State("Wait"):
                m.d.sync += came.eq(came | freed)
                with m.If(written[0]):
                    m.d.sync += finish.valid.eq(1)
                    m.next = "Finish"
                    with m.If(~written[1]):
                        m.d.sync += reported.eq(0)
                        with m.If(~came & ~freed):
                            m.d.sync += blocked.bit_select(entry.queue, 1).eq(1)
            with m.State("Finish"):
                with m.If(finish.ready):
                    m.d.sync += finish.valid.eq(0)
                    m.next = "Idle"
        return ~fsm.ongoing("Idle")
