"""Decides which stream sends next."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import ForwardedTable
from ..lib.quiet import Quiet
from ..lib.stream import Backlog, Store, counted, delayed

__all__ = ["Scheduler"]

#: Turns that wait for the sender, at most.
AHEAD = 4
#: Streams whose queue lies in distributed RAM.
FEW = 64
#: Cycles without a wake or a turn after which the stream that is woken first passes the queue by.
RESTED = 7


def turns(streams, quantum):
    """Returns the members ``wake``, ``turn`` and ``ended`` of a :class:`Scheduler`."""
    number = range(streams)
    turn = data.StructLayout({"stream": number, "octets": range(quantum + 1)})
    ended = data.StructLayout({"stream": number, "over": range(quantum), "again": 1})
    return {
        "wake": In(stream.Signature(number)),
        "turn": Out(stream.Signature(turn)),
        "ended": In(stream.Signature(ended)),
    }


class Scheduler(wiring.Component):
    """Gives turns to streams that have something to send, so that each gets its share of octets.

    A wake asks for a turn of a stream, because it has work or credit now. No wake is lost: the
    sender looks at a stream in its turn, and a wake after the turn has begun gives the stream
    another turn. A stream without wakes costs nothing.

    Streams that wait for a turn stand in a queue, each once. A stream has one turn at a time: until
    ``ended`` it is in no queue. In its turn it may begin segments until it has sent ``quantum``
    octets. Octets of its last segment beyond the quantum count as sent in its next turn. So streams
    that always have something to send get the same number of octets, to within ``quantum``,
    whatever the length of their segments; and each waits for at most one turn of each other stream.

    Latency: 2 cycles from a wake to its stream's turn after all streams have rested for ``RESTED``
    cycles; else 6 if no other stream waits, and 8 with more than ``FEW`` streams. Throughput: one
    turn every 2 cycles, from one wake each. Reset: no stream waits or has a turn; wakes are taken
    ``streams`` cycles later. Errors: none.

    Parameters
    ----------
    streams : int
        A power of two from 16 up.
    quantum : int
        Octets, at least as many as the longest segment has.

    Members
    -------
    wake : In(stream.Signature(range(streams)))
    turn : Out(stream.Signature({stream: range(streams), octets: range(quantum + 1)}))
        ``octets``: what the stream may send in this turn, at least 1.
    ended : In(stream.Signature({stream: range(streams), over: range(quantum), again: 1}))
        The end of a stream's turn. ``over``: octets that it sent beyond those of its turn;
        ``again``: it has more to send.
    busy : Out(1)
        A stream waits for a turn, or has one; rises up to 5 cycles after a wake.
    """

    def __init__(self, streams, quantum):
        for name, value in (("streams", streams), ("quantum", quantum)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"Scheduler {name} must be an integer, not {value!r}")
        if streams < 16 or streams & (streams - 1):
            raise ValueError(
                f"Scheduler streams must be a power of two and at least 16, not {streams!r}")
        if quantum < 1:
            raise ValueError(f"Scheduler quantum must be at least 1, not {quantum!r}")
        self.streams, self.quantum = streams, quantum
        super().__init__({**turns(streams, quantum), "busy": Out(1)})

    def elaborate(self, platform):
        m = Module()
        number = range(self.streams)
        # ``busy``: the stream is in the queue or has a turn. It was woken since its turn was read
        # from the queue if ``asked`` differs from the entry of ``seen``.
        state = data.StructLayout({"busy": 1, "asked": 1})
        m.submodules.states = states = ForwardedTable(state, self.streams, reads=2)
        m.submodules.seen = seen = ForwardedTable(1, self.streams)
        m.submodules.overs = overs = ForwardedTable(range(self.quantum), self.streams)
        # Its output's ``ready`` is a register, so the queue needs no more of them.
        m.submodules.queue = queue = (
            Store(number, depth=self.streams) if self.streams <= FEW
            else Backlog(number, depth=self.streams, relaxed=True))
        m.submodules.offers = offers = Store(
            self.turn.payload.shape(), depth=AHEAD, direct=True)
        wiring.connect(m, offers.o, wiring.flipped(self.turn))

        # After reset all entries are written once.
        swept, ready = Signal(number), Signal()
        with m.If(~ready):
            m.d.sync += [swept.eq(swept + 1), ready.eq(swept.all())]

        # Wakes and ends change the states one after the other; a wake waits for one end at most.
        ends, wakes, waited = Signal(), Signal(), Signal()
        m.d.sync += waited.eq(self.wake.valid & ends)
        m.d.comb += [
            ends.eq(self.ended.valid & self.ended.ready),
            wakes.eq(self.wake.valid & self.wake.ready),
            self.ended.ready.eq(ready & ~(self.wake.valid & waited)),
            self.wake.ready.eq(ready & ~(self.ended.valid & ~waited)),
        ]
        # A name with _k is the value of k cycles ago.
        index = Mux(ends, self.ended.payload.stream, self.wake.payload)
        index_1 = delayed(m, 1, index, "index")
        index_2 = delayed(m, 1, index_1, "index_1")
        index_3 = delayed(m, 1, index_2, "index_2")
        ends_2 = delayed(m, 2, ends, "ends")
        again_2 = delayed(m, 2, self.ended.payload.again, "again")
        came = Signal(3)
        now, becomes = Signal(state), Signal(state)
        last, before = Signal(state), Signal(state)
        pushes, same, same_but_one = Signal(), Signal(), Signal()
        m.d.sync += [
            came.eq(Cat(ends | wakes, came)),
            last.eq(becomes),
            before.eq(last),
            # Whether the change before, or the one before that, is of the same stream.
            same.eq((index_1 == index_2) & came[1]),
            same_but_one.eq((index_1 == index_3) & came[2]),
        ]
        asked = now.asked != seen.data[0]
        m.d.comb += [
            states.address[0].eq(index),
            seen.address[0].eq(index),
            now.eq(Mux(same, last, Mux(same_but_one, before, states.data[0]))),
            becomes.busy.eq(~ends_2 | again_2 | asked),
            becomes.asked.eq(now.asked ^ (~ends_2 & ~asked)),
        ]
        m.d.sync += pushes.eq(came[1] & Mux(ends_2, again_2 | asked, ~now.busy))
        # After a rest no stream is busy, so the first one that is woken passes the queue by.
        m.submodules.rest = rest = Quiet(RESTED)
        quick = delayed(m, 2, wakes & rest.o, "quick")
        m.d.comb += [
            rest.busy.eq(self.busy | wakes),
            queue.i.valid.eq(pushes & ~delayed(m, 1, quick, "was_quick")),
            queue.i.payload.eq(index_3),
            states.write.valid.eq(came[2] | ~ready),
            states.write.payload.address.eq(Mux(ready, index_3, swept)),
            states.write.payload.data.eq(Mux(ready, last.as_value(), 0)),
            overs.write.valid.eq(ends | ~ready),
            overs.write.payload.address.eq(Mux(ready, self.ended.payload.stream, swept)),
            overs.write.payload.data.eq(Mux(ready, self.ended.payload.over, 0)),
        ]

        waiting, ended = Signal(range(self.streams + 1)), Signal()
        counted(m, waiting, pushes, ended)
        m.d.sync += [ended.eq(ends), self.busy.eq(waiting.any())]

        # A turn is read from the queue: all wakes until now are seen before it is offered.
        reads, under_way, offered = Signal(), Signal(2), Signal(number)
        head = queue.o.payload
        m.d.comb += [
            reads.eq(queue.o.valid & queue.o.ready),
            states.address[1].eq(head),
            overs.address[0].eq(Mux(rest.o, index, head)),
            offered.eq(Mux(quick, index_2, delayed(m, 2, head, "head"))),
            seen.write.valid.eq(offers.i.valid | ~ready),
            seen.write.payload.address.eq(Mux(ready, offered, swept)),
            seen.write.payload.data.eq(
                Mux(quick, becomes.asked, states.data[1].asked) & ready),
            offers.i.valid.eq(quick | under_way[1]),
            offers.i.payload.stream.eq(offered),
            offers.i.payload.octets.eq(self.quantum - overs.data[0]),
        ]
        m.d.sync += [
            under_way.eq(Cat(reads, under_way)),
            # The turns that are under way fit in the store.
            queue.o.ready.eq(~reads & (offers.level + sum(under_way) < AHEAD)),
        ]
        return m
