"""Proves that each request that was sent completes exactly once, with its own status."""

from amaranth import *
from amaranth.asserts import AnySeq
from amaranth.hdl import Cover
from amaranth.lib import data

from ..lib.blockram import StepTable
from ..lib.stream import Backlog, delayed
from ..spec.completion import SentStatus
from ..spec.config import RnicConfig
from .harness import Harness, if_

__all__ = ["CONFIG", "Completed", "Entry", "Present"]

CONFIG = RnicConfig(streams=2, completion_queues=2)
SUCCESS, FAILED, FLUSHED = SentStatus


class Entry(StepTable):
    """Replaces a StepTable by its entry ``followed``, which begins as ``begins``.

    All other entries may be anything.
    """

    def __init__(self, shape, depth, *, reads=0):
        super().__init__(shape, depth, reads=reads)
        self.followed = Signal(range(depth))
        self.begins, self.entry = Signal(shape), Signal(shape)

    def elaborate(self, platform):
        m = Module()
        begun, changed, latest = Signal(2), Signal(), Signal(self.shape)
        number = delayed(m, 3, self.step.payload, "number")
        m.d.sync += Cat(begun, self.steps).eq(Cat(self.step.valid, begun))

        def seen(mine, value):
            return Mux(mine, Value.cast(value), AnySeq(len(Value.cast(value))))

        with m.If(self.steps & (number == self.followed)):
            m.d.sync += [latest.eq(self.becomes), changed.eq(1)]
        m.d.comb += [
            Value.cast(self.entry).eq(
                Mux(changed, Value.cast(latest), Value.cast(self.begins))),
            Value.cast(self.found).eq(seen(number == self.followed, self.entry)),
        ]
        for address, shown in zip(self.address, self.data, strict=True):
            asked = delayed(m, 2, address == self.followed, "asked")
            m.d.comb += Value.cast(shown).eq(seen(asked, delayed(m, 2, self.entry, "before")))
        return m


class Present(Backlog):
    """Replaces a Backlog of numbers by whether ``followed`` is in it; the order may be any."""

    def __init__(self, shape, *, depth):
        super().__init__(shape, depth=depth)
        self.followed, self.present = Signal(shape), Signal()

    def elaborate(self, platform):
        m = Module()
        shows, holds = Signal(), Signal()
        number, other = Signal(self.shape), Signal(self.shape)
        mine = self.o.payload == self.followed
        m.d.comb += [
            shows.eq(AnySeq(1)),
            other.eq(AnySeq(len(other))),
            self.o.valid.eq(holds | (shows & (self.present | (other != self.followed)))),
            self.o.payload.eq(Mux(holds, number, other)),
        ]
        m.d.sync += [
            holds.eq(self.o.valid & ~self.o.ready),
            number.eq(self.o.payload),
            self.present.eq(
                (self.i.valid & (self.i.payload == self.followed))
                | (self.present & ~(self.o.valid & self.o.ready & mine))),
        ]
        return m


class Completed(Harness):
    """Proves that completions cover the entries of a ring in order, once, each with its status.

    Any one stream is followed, and any one of its messages. A completion covers the entries from
    the one before it to its ``done``. It covers whole messages that have ended, all with its
    status; in a stream that repeats, a success only once it is released. When the block is at rest
    and no answer says that the queue is full, no completion is missing that was asked for.

    Assumes that the stream is bound and has no message at first, and is not bound again; what
    :class:`~..send.sent.HandOver` promises: at most one message fails, successes come before it,
    and flushed messages after it, and at most one is lost; that releases end at messages that left;
    fewer than 2**15 entries in all; no message before the sweep after a reset has reached the
    stream; and one answer to each completion. :class:`Entry` replaces the table, which the theorems
    of :mod:`~.blockram` allow, and :class:`Present` the queue of streams, as
    :class:`~.streams.BacklogOrder` does. By induction of depth ``DEPTH``.
    """

    DEPTH = 7
    #: The numbers of the reporter's states.
    IDLE, LOOK, FIND, DECIDE, ASK, FINISH, WAIT = range(7)
    #: The number of the step that looks for streams whose queue has room again.
    SWEEP = 3

    def __init__(self, component, *, lemmas=True, few=False):
        super().__init__(component, lemmas=lemmas)
        self.few = few

    def rules(self, m):
        dut, entry = self.dut, self.dut.host.entry
        # An answer, and a queue that has room, count three cycles later.
        written = data.StructLayout({"valid": 1, "payload": 1})(self.inside["written_2"])
        given = self.inside["given__valid"], self.inside["given__payload"]
        stream = self.stream = self.any(1, name="stream", constant=True)
        accounts, due = (self.inside.component(name) for name in ("accounts", "due"))
        self.account, self.bound, self.due = accounts.entry, accounts.begins, due
        repeats, queue = self.bound.repeats, self.bound.queue
        self.free(repeats, constant=True)
        self.free(queue, constant=True)
        m.d.comb += [accounts.followed.eq(stream), due.followed.eq(stream)]
        self.assume(if_(dut.bind.valid, dut.bind.payload.stream != stream))
        facts = self._ended(m, stream, repeats)
        message = self._message(m, repeats, facts)
        behind, reported, told = Signal(), Signal(16), Signal()
        m.d.comb += behind.eq(repeats & ~facts.lost & (facts.released != facts.left))

        # The completion that was offered last, and its answer.
        asks, asked, offered, mine = Signal(), Signal(), Signal.like(entry.payload), Signal()
        m.d.comb += [
            asks.eq(entry.valid & entry.ready),
            mine.eq(written.valid & written.payload & (offered.stream == stream)),
        ]
        self.assume(if_(written.valid, asked))
        m.d.sync += asked.eq(asks | (asked & ~written.valid))
        with m.If(asks):
            m.d.sync += offered.eq(entry.payload)
        self.steady(entry, "a completion stays until it is taken")
        self.always(if_(asks, ~asked), "one at a time")
        self.always(if_(entry.valid & (entry.payload.stream == stream),
                        entry.payload.queue == queue), "in the queue of its stream")
        full, came, freed = Signal(), Signal(), Signal()  # as far as the answers say
        m.d.comb += freed.eq(given[0] & (given[1] == queue))
        m.d.sync += came.eq(Mux(asks, freed, came | freed))
        with m.If(freed):
            m.d.sync += full.eq(0)
        with m.Elif(written.valid & ~written.payload & (offered.queue == queue) & ~came):
            m.d.sync += full.eq(1)

        done, covers, fails, succeeds = offered.done, Signal(), Signal(), Signal()
        m.d.comb += [
            covers.eq(mine & message.known & (reported <= message.first)
                      & (message.after <= done)),
            fails.eq(offered.status == FAILED),
            succeeds.eq(message.status == SUCCESS),
        ]
        with m.If(mine):
            m.d.sync += [reported.eq(done), told.eq(told | fails)]
        self.always(if_(mine, (done >= reported) & (done <= facts.ended)), "in order, once")
        self.always(if_(mine & (done == reported), fails), "something is covered")
        self.always(if_(mine & message.known, (done <= message.first) | (done >= message.after)),
                    "messages are whole")
        self.always(if_(covers, offered.status == message.status), "each has its status")
        self.always(if_(covers & repeats & succeeds, message.released), "not before its release")
        self.always(if_(mine & fails, facts.failed & ~told & (done == facts.bad)),
                    "a failure is reported once")
        rests = ~dut.busy & ~full & ~due.present
        wanted = Mux(succeeds, (message.signaled | (facts.failed & ~behind))
                     & (message.released | ~repeats), ~behind)
        self.always(if_(rests & message.known & wanted, reported >= message.after),
                    "none is missing")
        self.always(if_(rests & facts.failed & ~behind, told), "no failure is missing")
        for value in SentStatus:
            m.d.comb += Cover(covers & (message.status == value) & (message.first != 0))
        m.d.comb += [
            Cover(covers & succeeds & repeats),
            Cover(rests & told & facts.lost & (facts.left != 0)),
            Cover(self.past(full, 4) & rests & (reported != 0)),
        ]
        self.lemma(if_(asked & came & (offered.queue == queue), self.inside["came"]), "room")
        self._where(m, facts, behind, full)
        self._counts(facts, behind)
        written = self._reporter(facts, message, behind, reported, told, asked, offered)
        self._owed(facts, message, behind, reported, told, written)

    def _where(self, m, facts, behind, full):
        """States where the stream is while something of it is to be reported."""
        inside, account, due = self.inside, self.account, self.due
        named = inside["finish__payload"] == self.stream
        steps, swept, left = inside["under_way"], inside["swept"], inside["left"]
        finishes = named & inside["finish__valid"] & inside["finish__ready"]
        sweeps = Signal()
        self.ends = Signal()
        m.d.comb += [
            self.ends.eq(Cat(self.past(finishes, k) for k in (1, 2, 3, 4)).any()),
            sweeps.eq(Cat(
                steps[k] & (inside[f"op_{k}"] == self.SWEEP if k < 3 else inside["sweep_0"])
                & (inside[f"number_{k}"] == self.stream)
                for k in range(4)).any()),
        ]
        self.works = named & (inside["fsm_state"] != self.IDLE)
        pushes = due.i.valid & (due.i.payload == self.stream)
        self.always(if_(pushes, ~due.present), "it is in the queue once")
        self.lemma(if_(due.o.valid & (due.o.payload == self.stream), due.present), "in the queue")
        places = due.present + pushes + (self.works | self.ends) + account.parked
        self.lemma(places == account.listed, "where it is")
        due_now = account.owes & Cat(C(1, 1), (~behind).replicate(2))
        self.lemma(if_(due_now.any(), account.listed), "it is somewhere")
        blocked = inside["blocked"].bit_select(self.bound.queue, 1)
        self.lemma(if_(blocked, full), "blocked")
        self.lemma(inside["sweeping"] == left.any(), "a sweep")
        restarts = inside["restarts"]
        self.lemma(if_(restarts, left >= self.dut.config.streams - swept), "the first sweep")
        begins = self.waits | Cat(
            steps[k] & (inside[f"op_{k}"] == self.SWEEP if k < 3 else inside["sweep_0"])
            & inside[f"restart_{k}"] & (inside[f"number_{k}"] == self.stream)
            for k in range(4)).any()
        self.lemma(if_(begins, ~account.listed & ~account.owes.any() & ~facts.ended.any()),
                   "nothing is owed at first")
        self.lemma(left <= self.dut.config.streams, "a sweep ends")
        to_come = (self.stream - swept)[:len(swept)] < left
        self.lemma(if_(account.parked, blocked | sweeps | to_come), "parked")

    def _counts(self, facts, behind):
        """States that the account has the stream's numbers."""
        account, bound = self.account, self.bound
        self.good = Mux(bound.repeats, facts.released, facts.left)
        self.lemma(account.index == facts.ended, "index")
        self.lemma(account.good == self.good, "good")
        self.lemma(if_(facts.failed, account.bad == facts.bad), "bad")
        self.lemma(if_(bound.repeats, account.left == facts.left), "left")
        self.lemma(account.behind == behind, "behind")
        self.lemma(account.repeats == (bound.repeats & ~facts.lost), "repeats")
        self.lemma(account.queue == bound.queue, "queue")
        self.lemma((facts.released <= facts.left) & (facts.left <= facts.ended), "in order")
        self.lemma(if_(facts.failed, (facts.left <= facts.bad) & (facts.bad <= facts.ended)),
                   "the failure")
        self.lemma(if_(facts.lost, facts.failed), "lost")
        self.lemma(if_(~facts.failed, facts.left == facts.ended), "no failure yet")

    def _reporter(self, facts, message, behind, reported, told, asked, offered):
        """States what the reporter does; returns the status that was written, one-hot."""
        inside, owes, good = self.inside, self.account.owes, self.good
        state, kind, done = inside["fsm_state"], inside["reported"], inside["done"]
        entry = self.dut.host.entry.payload
        one = (kind == 1) | (kind == 2) | (kind == 4)
        active = (state == self.ASK) | (state == self.WAIT)
        asks = (active | (state == self.DECIDE)) & self.works
        writes = ((self.works & (state == self.FINISH)) | self.ends) & one
        self.lemma(state <= self.WAIT, "a state")
        self.lemma(inside["finish__valid"] == (state == self.FINISH), "it ends")
        self.lemma(asked == (state == self.WAIT), "asked")
        self.lemma(one | ((kind == 0) & ~active), "one completion")
        self.lemma(if_(asks, entry.queue == self.bound.queue), "its queue")
        self.lemma(if_(asked, Value.cast(offered) == Value.cast(entry)), "as it was offered")
        self.lemma(if_(asks | writes, (kind & ~owes) == 0), "it is owed")
        self.lemma(if_(asks & kind[0], (reported < done) & (done <= good)), "successes")
        self.lemma(if_(asks & kind[1],
                       facts.failed & ~told & (done == facts.bad) & ~behind & ~owes[0]), "failure")
        self.lemma(if_(asks & kind[2], (owes[:2] == 0) & ~behind & (reported < done)
                       & (done <= facts.ended) & (done > facts.bad)), "flushed")
        self.lemma(if_(asks & message.known, (done <= message.first) | (done >= message.after)),
                   "messages are whole")
        self.lemma(if_(writes, reported == done), "it was written")
        self.lemma(if_(writes & kind[0], (done <= good) & ~told), "successes were reported")
        self.lemma(if_(writes & kind[1], told & (done == facts.bad)), "the failure was reported")
        self.lemma(if_(writes & kind[2], told & (done > facts.bad)), "flushed ones were reported")
        return Mux(writes, kind, 0)

    def _owed(self, facts, message, behind, reported, told, written):
        """States which completions are owed, and where the message that is followed stands."""
        account, bound, owes, good = self.account, self.bound, self.account.owes, self.good
        self.lemma(if_((owes[0] | account.silent) & ~written[0], reported < good), "a success")
        self.lemma(if_(~owes[0], account.silent | (reported >= good)), "none is owed")
        self.lemma(if_(account.silent & facts.failed, behind), "silent")
        self.lemma(if_(owes[1], facts.failed & (~told | written[1])), "the failure")
        self.lemma(if_(facts.failed & ~told, owes[1]), "a failure is owed until it is reported")
        self.lemma(if_(owes[2], facts.failed & (facts.ended > facts.bad)
                       & (written[2] | (reported < facts.ended))), "flushed ones")
        self.lemma(if_(facts.failed & ~owes[2],
                       (facts.ended == facts.bad) | (reported == facts.ended)), "no flushed one")
        self.lemma(if_(~told, reported <= good), "before the failure")
        self.lemma(if_(told, facts.failed & ~behind & (reported >= facts.bad) & ~owes[0]), "after")
        self.lemma(reported <= facts.ended, "all have ended")
        known, first, after = message.known, message.first, message.after
        success, failed = message.status == SUCCESS, message.status == FAILED
        self.lemma(if_(known, (first < after) & (after <= facts.ended)), "it has ended")
        for index in (good, facts.left, reported):
            self.lemma(if_(known, (index <= first) | (index >= after)), "it is whole")
        self.lemma(if_(known & facts.failed, (facts.bad <= first) | (facts.bad >= after)), "whole")
        self.lemma(if_(message.released, known & success), "not yet")
        self.lemma(if_(known & success, after <= facts.left), "it left")
        self.lemma(if_(known & success & bound.repeats,
                       message.released == (after <= facts.released)), "released")
        self.lemma(if_(known & success & facts.lost & bound.repeats, message.released), "lost")
        self.lemma(if_(known & failed, facts.failed & (after <= facts.bad)
                       & (first >= Mux(facts.lost, good, facts.left))), "it failed")
        self.lemma(if_(known & ~success & ~failed, facts.failed & (first >= facts.bad)
                       & (message.status == FLUSHED)), "it was flushed")
        reportable = success & (message.released | ~bound.repeats)
        self.lemma(if_(known & reportable & message.signaled & (reported < after), owes[0]),
                   "asked for")

    def _ended(self, m, stream, repeats):
        """Returns the stream's messages that have ended, and those of them that are released.

        An event counts when the block has seen it, 4 cycles after the transfer.
        """
        i, release = self.dut.i, self.dut.released
        facts = Signal(data.StructLayout({
            "ended": 16, "left": 16, "bad": 16, "released": 16, "failed": 1, "lost": 1}))
        self.polite(i)
        self.polite(release)
        self.waits = self.inside["restarts"] & (self.inside["swept"] <= stream)
        for port in (i, release):
            self.assume(if_(self.waits & port.valid, port.payload.stream != stream))
        self.mine = mine = self.past(i.valid & i.ready & (i.payload.stream == stream), 4)
        self.came = came = i.payload.shape()(self.past(i.payload, 4))
        index = Signal(16)
        success, failed = came.status == SUCCESS, came.status == FAILED
        m.d.comb += index.eq(facts.ended + came.entries)
        self.assume(if_(mine, Mux(facts.failed, came.status == FLUSHED, success | failed)))
        self.assume(if_(mine & ~failed & ~came.lost, came.entries.any()))
        self.assume(if_(mine & came.lost, ~success & ~facts.lost & ~came.entries.any()))
        self.assume(~facts.ended[-1])
        if self.few:
            self.assume(came.entries < 4)
        with m.If(mine):
            m.d.sync += [facts.ended.eq(index), facts.lost.eq(facts.lost | came.lost)]
            with m.If(success):
                m.d.sync += facts.left.eq(index)
            with m.Elif(failed):
                m.d.sync += [facts.failed.eq(1), facts.bad.eq(index)]
        self.frees = frees = self.past(
            release.valid & release.ready & (release.payload.stream == stream), 4)
        self.freed = freed = release.payload.shape()(self.past(release.payload, 4))
        self.assume(if_(
            frees, repeats & (facts.released <= freed.index) & (freed.index <= facts.left)))
        with m.If(frees & ~facts.lost):
            m.d.sync += facts.released.eq(freed.index)
        return facts

    def _message(self, m, repeats, facts):
        """Returns the message that is followed."""
        message = Signal(data.StructLayout({
            "known": 1, "first": 16, "after": 16, "status": SentStatus, "signaled": 1,
            "released": 1}))
        picks, mine, came = self.any(1, name="picks"), self.mine, self.came
        succeeds = message.status == SUCCESS
        with m.If(mine & picks & ~message.known & came.entries.any()):
            m.d.sync += [
                message.known.eq(1),
                message.first.eq(facts.ended),
                message.after.eq(facts.ended + came.entries),
                message.status.eq(came.status),
                message.signaled.eq(came.signaled),
            ]
        # What can be sent again no more has failed.
        with m.If(mine & came.lost & repeats & succeeds & ~message.released):
            m.d.sync += message.status.eq(FAILED)
        index = self.freed.index
        ends = (index <= message.first) | (index >= message.after)
        self.assume(if_(self.frees & message.known, ends))
        covers = message.known & (facts.released <= message.first) & (index >= message.after)
        self.assume(if_(self.frees & covers & message.signaled, self.freed.signaled))
        with m.If(self.frees & covers & succeeds):
            m.d.sync += message.released.eq(1)
        return message
