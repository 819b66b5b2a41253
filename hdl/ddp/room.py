"""Decides for each completion whether its queue has room for it, and where it goes."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import ForwardedTable
from ..lib.counts import CountTable
from ..lib.stream import copies, delayed
from ..lib.table import Table, table_write
from .state import ErrorState

__all__ = [
    "Asked", "Binding", "Doorbell", "EntrySlot", "QueueRoom", "QueueSettings", "queue_host",
    "queues_of"]


def queues_of(config):
    """Returns how many queue numbers there are: a power of two.

    From ``config.completion_queues`` on, these are the queue of the LLP's owner, then numbers that
    name no queue.
    """
    return 2 * config.completion_queues


class QueueSettings(data.StructLayout):
    """Settings of a completion queue.

    Members
    -------
    enable : 1
    base : config.address - 5
        Address of the first entry, in units of 32 octets.
    size : 4
        Base-2 logarithm of the number of entries, 1 to 15.
    """

    def __init__(self, config):
        super().__init__({"enable": 1, "base": config.address - 5, "size": 4})


class Binding(data.StructLayout):
    """The queue of a stream.

    Members
    -------
    stream : range(config.streams)
    queue : range(queues_of(config))
        The queue for messages that the stream receives.
    silent : 1
        Tagged messages do not complete.
    """

    def __init__(self, config):
        super().__init__({
            "stream": range(config.streams), "queue": range(queues_of(config)), "silent": 1})


class Doorbell(data.StructLayout):
    """A ``queue``, and its ``consumer`` index (16): completions that the host has taken.

    ``arm`` (1): the host wants an interrupt once the queue has others.
    """

    def __init__(self, config):
        super().__init__({"queue": range(queues_of(config)), "consumer": 16, "arm": 1})


def queue_host(config):
    """Returns the signature between the registers and the completion queues.

    Members
    -------
    bind : Out(stream.Signature(Binding(config), always_ready=True))
        In a device that receives only.
    settings : Out(table_write(QueueSettings(config), queues))
        Restarts the queue.
    doorbell : Out(stream.Signature(Doorbell(config), always_ready=True))
    look : Out(range(queues)).array(2), found : In(16).array(2)
        Completions of a queue that the bus has answered with OKAY, modulo 2**16; 2 cycles later.
    restarting, failed : In(queues)
        Bits of queues that wait for old responses; of which the bus has refused an entry.
    """
    queues = queues_of(config)
    return wiring.Signature({
        **({"bind": Out(stream.Signature(Binding(config), always_ready=True))}
           if config.receive else {}),
        "settings": Out(table_write(QueueSettings(config), queues)),
        "doorbell": Out(stream.Signature(Doorbell(config), always_ready=True)),
        "look": Out(range(queues)).array(2),
        "found": In(16).array(2),
        "restarting": In(queues),
        "failed": In(queues),
    })


class EntrySlot(data.StructLayout):
    """The slot of an entry.

    Members
    -------
    written : 1
        The entry is written; otherwise it is dropped.
    queue : range(queues_of(config))
    base : config.address - 5
        That of the queue.
    index : 15
        Entries of the queue before this one.
    phase : 1
    """

    def __init__(self, config):
        super().__init__({
            "written": 1, "queue": range(queues_of(config)), "base": config.address - 5,
            "index": 15, "phase": 1})


class Asked(data.StructLayout):
    """A completion for which there may be room.

    Members
    -------
    stream : 16
    direct : 1, queue : range(queues_of(config))
        The completion names its ``queue``.
    tagged : 1
        It is that of a tagged message, and not ``direct``.
    clear : 1
        No completion: ``stream`` restarts.
    """

    def __init__(self, config):
        super().__init__({
            "stream": 16, "direct": 1, "queue": range(queues_of(config)), "tagged": 1, "clear": 1})


class QueueRoom(wiring.Component):
    """Decides for each completion whether it is written, and in which slot of which queue.

    A completion of a received message belongs to its stream's queue; any other one, which is
    ``direct``, names its queue. It is written if its queue is enabled, not stopped, and has less
    than its size of entries that the host has not taken. Otherwise the completion is dropped; and
    if it is of a received message, its stream, which has *overrun* the queue, completes nothing
    more until ``clear``. Nothing waits.

    .. code-block:: text

        cycle   0        2                        4                       6
        stream  lookup ─ its queue ─ lookup ───── settings, consumer ──── decision
        stream           lookup ───────────────────────────────────────── overrun before?

    A consumer index outside the entries that the queue holds leaves no room. In a device that only
    sends, every completion is ``direct``, and the tables of streams are left out.

    Latency: ``LATENCY`` cycles; ``o`` is combinational from registers. Throughput: one completion,
    or one ``clear``, per cycle. Reset: the tables stay. Errors: reported on ``overran``.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    i : In(stream.Signature(Asked(config), always_ready=True))
        A completion, or a stream that restarts.
    o : Out(stream.Signature(EntrySlot(config), always_ready=True))
        One for each completion.
    overran : Out(stream.Signature(16, always_ready=True))
        In a device that receives only: a stream's first completion without room.
    bind : In(stream.Signature(Binding(config), always_ready=True))
        In a device that receives only.
    settings : In(table_write(QueueSettings(config), queues))
    doorbell : In(stream.Signature(Doorbell(config), always_ready=True))
    zero : In(stream.Signature(range(queues)))
        A queue whose entries are counted from 0 again. It has been in ``stopped`` for 8 cycles.
    stopped : In(queues)
        Queues, a bit each, that take no entry.
    queue : Out(range(queues)), issued : Out(1)
        An entry of this queue is to be written.
    """

    LATENCY = 6

    def __init__(self, config):
        self.config = config
        self.queues = queues = queues_of(config)
        super().__init__({
            "i": In(stream.Signature(Asked(config), always_ready=True)),
            "o": Out(stream.Signature(EntrySlot(config), always_ready=True)),
            **({
                "overran": Out(stream.Signature(16, always_ready=True)),
                "bind": In(stream.Signature(Binding(config), always_ready=True)),
            } if config.receive else {}),
            "settings": In(table_write(QueueSettings(config), queues)),
            "doorbell": In(stream.Signature(Doorbell(config), always_ready=True)),
            "zero": In(stream.Signature(range(queues))),
            "stopped": In(queues),
            "queue": Out(range(queues)),
            "issued": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        config, queues = self.config, self.queues
        m.submodules.settings = settings = Table(QueueSettings(config), queues, live="enable")
        m.submodules.consumers = consumers = ForwardedTable(unsigned(16), queues)
        m.submodules.counts = counts = CountTable(queues)
        wiring.connect(m, wiring.flipped(self.settings), settings.write)
        rung = consumers.write
        # The host rings no doorbell of a queue that restarts.
        rings = self.doorbell.valid
        m.d.comb += [
            rung.valid.eq(rings | self.zero.valid),
            rung.payload.address.eq(Mux(
                rings, self.doorbell.payload.queue, self.zero.payload)),
            rung.payload.data.eq(Mux(rings, self.doorbell.payload.consumer, 0)),
            counts.zero.valid.eq(self.zero.valid & ~rings),
            counts.zero.payload.eq(self.zero.payload),
            self.zero.ready.eq(counts.zero.ready & ~rings),
        ]

        # Which queue it is: came_k came k cycles ago.
        came_1 = delayed(m, 1, self.i.payload, "came")
        came_2 = delayed(m, 1, came_1, "came_1")
        valid = Signal(self.LATENCY)
        queue = Signal(range(queues))
        m.d.comb += [
            queue.eq(came_2.queue),
            settings.index[0].eq(queue),
            consumers.address[0].eq(queue),
            counts.index.eq(queue),
        ]
        # Stops are looked at together with the count, which is set to 0 when a stop ends.
        queue_3 = delayed(m, 1, queue, "queue_2")
        stopped = delayed(m, 2, self.stopped.bit_select(queue_3, 1), "stopped")
        m.d.sync += valid.eq(Cat(self.i.valid, valid))

        # The answers with and without the entry before it are both computed: whether that one is
        # written is known no earlier than they are.
        entry = delayed(m, 1, settings.entry[0], "entry")
        now = delayed(m, 1, entry, "entry_1")
        mask = Cat(entry.size > k for k in range(15))
        room, allowed = Signal(), Signal()
        taken, before = Signal(16), Signal(16)

        def fits(consumer):
            return ~((counts.soon - consumer)[:16] & ~Cat(mask, C(0, 1))).any()

        m.d.sync += [
            taken.eq(consumers.data[0]),
            before.eq(consumers.data[0] - 1),
            room.eq(Mux(counts.add & counts.again, fits(before), fits(taken))),
            allowed.eq(entry.enable & ~stopped),
        ]
        free, ended = Signal(), C(0)
        soon = delayed(m, self.LATENCY - 3, came_2, "came_2")
        last = delayed(m, 1, soon, "last")
        judges, issues = copies(m, valid[-2] & ~soon.clear, 2, name="judges")
        if config.receive:
            ended = self._end(m, came_2, last, queue, valid[-1], free)
        slot = self.o.payload
        m.d.comb += [
            free.eq(room & allowed),
            self.issued.eq(issues & free & ~ended),
            self.queue.eq(delayed(m, 3, queue_3, "queue_3")),
            counts.add.eq(self.issued),
            self.o.valid.eq(judges),
            slot.written.eq(self.issued),
            slot.queue.eq(self.queue),
            slot.base.eq(now.base),
            slot.index.eq(counts.count & Cat(now.size > k for k in range(15))),
            slot.phase.eq(~(counts.count & Cat(now.size == k for k in range(16))).any()),
        ]
        return m

    def _end(self, m, came, last, queue, valid, free):
        """Adds the queues of streams, and the streams that have overrun theirs.

        Returns whether the stream of ``last`` completes nothing: it has overrun, or is silent.
        ``came`` came two cycles ago, and ``last`` is decided now: ``valid``, and its queue has
        ``free`` room.
        """
        bound = data.StructLayout({"queue": range(self.queues), "silent": 1})
        m.submodules.bindings = bindings = ForwardedTable(bound, self.config.streams)
        m.submodules.errors = errors = ErrorState(self.config.streams)
        write, silent, ends = bindings.write, Signal(), Signal()
        with m.If(~came.direct):
            m.d.comb += queue.eq(bindings.data[0].queue)
        m.d.sync += silent.eq(bindings.data[0].silent & came.tagged)
        silent_3 = delayed(m, 3, silent, "silent")
        m.d.comb += [
            # A further completion without room changes nothing, as in Commit.
            ends.eq(valid & ~last.clear & ~free & ~last.direct & ~silent_3),
            write.valid.eq(self.bind.valid),
            write.payload.address.eq(self.bind.payload.stream),
            write.payload.data.queue.eq(self.bind.payload.queue),
            write.payload.data.silent.eq(self.bind.payload.silent),
            bindings.address[0].eq(self.i.payload.stream),
            self.overran.valid.eq(ends & ~errors.ended),
            self.overran.payload.eq(last.stream),
            errors.index.eq(came.stream),
            errors.update.eq(ends | (valid & last.clear)),
            errors.becomes.eq(~last.clear),
        ]
        return ~last.direct & (errors.ended | silent_3)
