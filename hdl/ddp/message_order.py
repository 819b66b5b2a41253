"""Delivers messages of SCTP in order, and checks the order of MSNs in each queue."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.blockram import storage_of
from ..lib.stream import Stage, Store, delayed, nibbles
from .entry import MESSAGE
from .precedence import Found, Overtaking, key_of
from .state import ErrorState
from .untagged import QN_BITS, Advanced, QueueState

__all__ = ["Disordered", "MessageOrder", "NextInOrder", "OrderedRecord"]

QUEUE = 16


class OrderedRecord(data.StructLayout):
    """The part of an SCTP item that is kept until it is delivered in order.

    Members
    -------
    placed : 1
        The item is a segment that passed the checks.
    complete : 1
        The item is such a segment, and the last one of its message.
    control : 1
        The item is a control message; ``tag`` is its function.
    failed : 1
        The bus refused a write on the item's stream.
    sequence : 32
        TSN.
    tagged, stream, qn, tag, rsvdulp, length, cookie
        Those of a :class:`~.delivery.Record`.
    """

    def __init__(self):
        super().__init__({
            **MESSAGE, "placed": 1, "complete": 1, "control": 1, "failed": 1, "sequence": 32})


class NextInOrder(data.StructLayout):
    """An ``item`` (:class:`OrderedRecord`) that is next in order, with the result ``found`` of
    :class:`~.precedence.Overtaking` for it.
    """

    def __init__(self):
        super().__init__({"item": OrderedRecord(), "found": Found()})


class Disordered(data.StructLayout):
    """A segment out of order: its ``stream`` (16), and its ``sequence`` (32) number."""

    def __init__(self):
        super().__init__({"stream": 16, "sequence": 32})


class MessageOrder(wiring.Component):
    """Delivers records in the order of their stream's DDP-SSNs.

    Each segment of an untagged queue must have the next MSN: in the order of submission, all
    messages before it are complete (RFC 5041 section 4.3). The first segment with another MSN puts
    its stream in error, and so does a segment that was not placed: no further message of the stream
    is delivered until ``clear``. Control messages are output in any case.

    Latency: 8 cycles. Throughput: one record per cycle; ``clear`` and ``state`` cost a cycle each.
    Reset: empty; the states of streams and queues stay. Errors: segments with the wrong MSN are
    reported on ``disordered``.

    Parameters
    ----------
    streams : int

    Members
    -------
    i : In(stream.Signature(OrderedRecord()))
    clear : In(stream.Signature(16, always_ready=True))
        A stream that restarts. At most every second cycle.
    state : In(stream.Signature(QueueState(), always_ready=True))
        A queue and its next MSN.
    o : Out(stream.Signature(NextInOrder()))
        Either ``complete`` or ``control`` is set, or the segment is one that Precedence needs.
    advanced : Out(stream.Signature(Advanced()))
        An untagged message was delivered.
    disordered : Out(stream.Signature(Disordered()))
        The first segment of a stream with the wrong MSN.
    """

    def __init__(self, *, streams):
        self.streams = streams
        super().__init__({
            "i": In(stream.Signature(OrderedRecord())),
            "clear": In(stream.Signature(16, always_ready=True)),
            "state": In(stream.Signature(QueueState(), always_ready=True)),
            "o": Out(stream.Signature(NextInOrder())),
            "advanced": Out(stream.Signature(Advanced())),
            "disordered": Out(stream.Signature(Disordered())),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.errors = errors = ErrorState(self.streams)
        outs = {
            "o": NextInOrder(), "advanced": Advanced(), "disordered": Disordered()}
        stores = {}
        for name, shape in outs.items():
            m.submodules[f"{name}_store"] = stores[name] = Store(shape, depth=QUEUE)
            m.submodules[f"{name}_stage"] = stage = Stage(shape)
            wiring.connect(m, stores[name].o, stage.i)
            wiring.connect(m, stage.o, wiring.flipped(getattr(self, name)))

        # Inputs: a record, or a stream to clear. item[k] was taken k + 1 cycles ago.
        go, wanted = Signal(), Signal()
        clearing = Signal(16, reset_less=True)
        valid, clears = Signal(5), Signal(5)
        with m.If(self.clear.valid):
            m.d.sync += clearing.eq(self.clear.payload)
        m.d.sync += [
            go.eq(Cat(store.half for store in stores.values()).all()),
            wanted.eq(self.clear.valid),
            clears.eq(Cat(wanted, clears)),
            valid.eq(Cat(self.i.valid & self.i.ready, valid)),
        ]
        m.d.comb += self.i.ready.eq(go & ~wanted & ~self.state.valid)
        item = [Signal(OrderedRecord(), name=f"item_{k}", reset_less=True) for k in range(6)]
        m.d.sync += [item[0].eq(self.i.payload), *(
            later.eq(earlier) for earlier, later in zip(item, item[1:], strict=False))]
        with m.If(wanted):
            m.d.sync += item[0].stream.eq(clearing)

        # A message's last segment advances its queue's next MSN, whether the MSN was right or not.
        set_up = delayed(m, 2, self.state.payload, "set_up")
        sets = Signal()
        following = Signal(32, reset_less=True)
        m.d.sync += [
            sets.eq(delayed(m, 1, self.state.valid, "state_valid")),
            following.eq(item[0].tag + 1),
        ]
        ends = valid[1] & item[1].complete & ~item[1].tagged
        (following_msn,) = storage_of(
            m, "next", unsigned(32), self.streams << QN_BITS, (self._queue(item[0]),),
            (ends | sets, Mux(sets, self._queue(set_up), self._queue(item[1])),
             Mux(sets, set_up.msn, following)))
        equal = Signal(8)
        wrong, fails = Signal(), Signal()
        known = item[3]
        m.d.comb += wrong.eq(known.placed & ~known.tagged & ~equal.all())
        m.d.sync += equal.eq(nibbles(following_msn, item[2].tag))

        # The stream's state is known now; this computes its new state.
        last, out = item[4], item[5]
        disorder = Signal()
        m.d.sync += [
            disorder.eq(valid[3] & wrong),
            fails.eq(valid[3] & ~known.control & (wrong | ~known.placed)),
        ]
        m.d.comb += [
            errors.index.eq(item[0].stream),
            errors.update.eq(clears[4] | fails),
            errors.becomes.eq(~clears[4]),
        ]
        m.submodules.overtaking = overtaking = Overtaking(self.streams)
        m.d.comb += [
            overtaking.i.valid.eq((valid[0] & item[0].placed & ~item[0].control) | clears[0]),
            overtaking.i.payload.stream.eq(item[0].stream),
            overtaking.i.payload.key.eq(key_of(item[0])),
            overtaking.i.payload.last.eq(item[0].complete),
            overtaking.i.payload.to.eq(item[0].cookie),
            overtaking.i.payload.length.eq(item[0].length),
            overtaking.i.payload.clear.eq(clears[0]),
        ]
        found = overtaking.o
        delivers, shows, tells = Signal(), Signal(), Signal()
        m.d.sync += [
            delivers.eq(valid[4] & last.complete & ~last.tagged & ~fails & ~errors.ended),
            shows.eq(valid[4] & (last.control | (
                (last.complete | found.over | found.first) & ~fails & ~errors.ended))),
            tells.eq(disorder & ~errors.ended),
        ]
        m.d.comb += [
            stores["o"].i.valid.eq(shows),
            stores["o"].i.payload.item.eq(out),
            stores["o"].i.payload.found.eq(delayed(m, 1, found, "found")),
        ]
        with m.If(out.tagged):
            m.d.comb += [
                stores["o"].i.payload.item.cookie.eq(overtaking.span.begin),
                stores["o"].i.payload.item.length.eq(overtaking.span.length),
            ]
        m.d.comb += [
            stores["advanced"].i.valid.eq(delivers),
            stores["advanced"].i.payload.stream.eq(out.stream),
            stores["advanced"].i.payload.qn.eq(out.qn),
            stores["advanced"].i.payload.msn.eq(out.tag),
            stores["disordered"].i.valid.eq(tells),
            stores["disordered"].i.payload.stream.eq(out.stream),
            stores["disordered"].i.payload.sequence.eq(out.sequence),
        ]
        return m

    def _queue(self, where):
        return Cat(where.qn, where.stream)[:QN_BITS + exact_log2(self.streams)]
