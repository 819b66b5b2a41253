"""Writes completions to the completion queues, rings in host memory that hold nothing up."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import AxiWrite, Response
from ..lib.counts import CountTable
from ..lib.stream import Skid, Stage, Store, counted, delayed
from ..lib.table import table_write
from ..spec.completion import Kind
from .entry import CompletionEntry
from .entry_writer import EntryWriter
from .fence import Fence
from .room import Doorbell, EntrySlot, QueueRoom, QueueSettings, queue_host, queues_of

__all__ = ["Answers", "CompletionQueues", "OwnerRoom", "Restart", "SentEntry", "sent_host"]

#: Entries between the decision for them and the bus.
QUEUE = 16
#: Cycles from the look-up of a queue until its entry is counted as issued, and some to spare.
SETTLE = 12


class SentEntry(data.StructLayout):
    """A completion of sent messages for a ``queue``: ``stream``, ``status`` and ``done`` (16)."""

    def __init__(self, config):
        super().__init__({
            "queue": range(queues_of(config)), "stream": range(config.streams), "status": 2,
            "done": 16})


def sent_host(config):
    """Returns the signature between the Data Source and the completion queues.

    Members
    -------
    entry : Out(stream.Signature(SentEntry(config)))
    written : In(stream.Signature(1, always_ready=True))
        The answer to each entry: 1 if its queue had room. Otherwise it was dropped.
    freed : In(stream.Signature(range(queues), always_ready=True))
        A queue that may have room again.
    """
    return wiring.Signature({
        "entry": Out(stream.Signature(SentEntry(config))),
        "written": In(stream.Signature(1, always_ready=True)),
        "freed": In(stream.Signature(range(queues_of(config)), always_ready=True)),
    })


class Answers(wiring.Component):
    """Counts the entries of each queue for which the bus has responded.

    A response other than OKAY sets its queue's bit in ``failed``; from then on the queue's count
    stays.

    Latency: 8 cycles from a response to ``found``, 6 to ``failed``. Throughput: one response per
    cycle. Reset: the counts stay; no queue has failed and no response is expected. Errors: see
    above.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    begun : In(stream.Signature(range(queues), always_ready=True))
        The queue of each entry that is written, before its response.
    b : Out
        That of an ``AxiWrite(width)``.
    answered, counted : Out(1)
        A response has arrived; was counted, if it is OKAY.
    delivered : Out(1)
        A response was OKAY, and its queue has not failed.
    zero : In(stream.Signature(range(queues)))
        A queue that restarts: it has not failed, and its count is 0.
    failed : Out(queues)
    look : In(range(queues)).array(2), found : Out(16).array(2)
        Look-ups of a queue's count, 2 cycles later.
    """

    def __init__(self, config):
        self.config = config
        self.queues = queues = queues_of(config)
        super().__init__({
            "begun": In(stream.Signature(range(queues), always_ready=True)),
            "b": AxiWrite(config.width).members["b"],
            "answered": Out(1),
            "counted": Out(1),
            "delivered": Out(1),
            "zero": In(stream.Signature(range(queues))),
            "failed": Out(queues),
            "look": In(range(queues)).array(2),
            "found": Out(16).array(2),
        })

    def elaborate(self, platform):
        m = Module()
        depth = max(4, self.config.outstanding)
        m.submodules.begun = begun = Store(range(self.queues), depth=depth)
        m.submodules.counts = counts = CountTable(self.queues, looks=2)
        wiring.connect(m, wiring.flipped(self.begun), begun.i)
        wiring.connect(m, wiring.flipped(self.zero), counts.zero)
        comes, good = Signal(), Signal()
        queue = Signal(range(self.queues))
        # A pause between responses makes room for ``zero``.
        m.d.sync += [
            self.b.ready.eq(~self.zero.valid),
            self.answered.eq(comes),
            good.eq(self.b.payload.resp == Response.OKAY.value),
            queue.eq(begun.o.payload),
        ]
        m.d.comb += [
            comes.eq(self.b.valid & self.b.ready),
            begun.o.ready.eq(comes),
            counts.index.eq(queue),
            *(port.eq(look) for port, look in zip(counts.look, self.look, strict=True)),
            *(found.eq(port) for found, port in zip(self.found, counts.found, strict=True)),
        ]
        # An answer's queue, when its count is known.
        known, right, now = (
            delayed(m, CountTable.LATENCY, value, name) for value, name in (
                (self.answered, "known"), (good, "right"), (queue, "queue")))
        m.d.comb += [
            counts.add.eq(known & right & ~self.failed.bit_select(now, 1)),
            self.counted.eq(known),
        ]
        m.d.sync += self.delivered.eq(counts.add)
        with m.If(known & ~right):
            m.d.sync += self.failed.bit_select(now, 1).eq(1)
        with m.If(self.zero.valid):
            m.d.sync += self.failed.bit_select(self.zero.payload, 1).eq(0)
        return m


class Restart(wiring.Component):
    """Restarts a queue whose settings were written, once the bus has answered for its old entries.

    Until then the queue is in ``stopped``. A queue waits for at most the queues that were written
    before it, and each of these for the entries that are on the bus.

    Latency: ``SETTLE`` + 8 cycles or more. Throughput: one queue at a time. Reset: no queue
    restarts. Errors: none.

    Parameters
    ----------
    queues : int

    Members
    -------
    written : In(stream.Signature(range(queues), always_ready=True))
    issued, answered : In(1)
        An entry is counted; the response for one was.
    stopped : Out(queues)
    zero : Out(stream.Signature(range(queues)))
    """

    def __init__(self, queues):
        self.queues = queues
        super().__init__({
            "written": In(stream.Signature(range(queues), always_ready=True)),
            "issued": In(1),
            "answered": In(1),
            "stopped": Out(queues),
            "zero": Out(stream.Signature(range(queues))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.fence = fence = Fence(SETTLE)
        issued, answered = Signal(16), Signal(16)
        queue = Signal(range(self.queues))
        with m.If(self.issued):
            m.d.sync += issued.eq(issued + 1)
        with m.If(self.answered):
            m.d.sync += answered.eq(answered + 1)
        m.d.comb += [
            fence.issued.eq(issued),
            fence.retired.eq(answered),
            self.zero.payload.eq(queue),
        ]
        with m.FSM():
            with m.State("Seek"):
                with m.If(self.stopped.bit_select(queue, 1)):
                    m.d.comb += fence.start.eq(1)
                    m.next = "Drain"
                with m.Elif(self.stopped.any()):
                    m.d.sync += queue.eq(queue + 1)
            with m.State("Drain"):
                with m.If(~fence.busy):
                    m.next = "Zero"
            with m.State("Zero"):
                m.d.comb += self.zero.valid.eq(1)
                with m.If(self.zero.ready):
                    m.d.sync += self.stopped.bit_select(queue, 1).eq(0)
                    m.next = "Seek"
        with m.If(self.written.valid):
            m.d.sync += self.stopped.bit_select(self.written.payload, 1).eq(1)
        return m


class OwnerRoom(wiring.Component):
    """Finds out whether the queue of the LLP's owner has room for all that may still come.

    The owner's queue never overruns: the LLP takes no frame while ``room`` is low, and the frames
    taken before make at most ``config.owner_entries`` entries more than the records that are owed.

    Latency: 4 cycles. Throughput: one entry per cycle. Reset: no room; nothing is owed. Errors:
    none.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    settings, doorbell
        Those of :class:`~.room.QueueRoom`.
    taken, recorded : In(1)
        An item that makes a record was admitted; the record has arrived.
    issued : In(1)
        An entry is written to the queue.
    stopped : In(1)
        The queue takes no entries; it begins with none.
    room : Out(1)
    """

    def __init__(self, config):
        self.config = config
        super().__init__({
            "settings": In(table_write(QueueSettings(config), queues_of(config))),
            "doorbell": In(stream.Signature(Doorbell(config), always_ready=True)),
            "taken": In(1),
            "recorded": In(1),
            "issued": In(1),
            "stopped": In(1),
            "room": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        number = self.config.completion_queues
        settings, doorbell = self.settings.payload, self.doorbell.payload
        enable, size = Signal(), Signal(4)
        issued, consumer, owed = Signal(16), Signal(16), Signal(16)
        used, last = Signal(16), Signal(18)
        counted(m, owed, self.taken, self.recorded)
        with m.If(self.settings.valid & (settings.index == number)):
            m.d.sync += [enable.eq(settings.entry.enable), size.eq(settings.entry.size)]
        with m.If(self.stopped):
            m.d.sync += [issued.eq(0), consumer.eq(0)]
        with m.Else():
            m.d.sync += issued.eq(issued + self.issued)
            with m.If(self.doorbell.valid & (doorbell.queue == number)):
                m.d.sync += consumer.eq(doorbell.consumer)
        # The slot of the last entry that may come, after the oldest one that the host has to take.
        m.d.sync += [
            used.eq(issued - consumer + self.config.owner_entries - 1),
            last.eq(used + owed),
            self.room.eq(enable & ~self.stopped
                         & ~(last & ~Cat((size > k for k in range(15)), C(0, 3))).any()),
        ]
        return m


class CompletionQueues(wiring.Component):
    """Writes completions to the completion queues, rings of 32-octet entries in host memory.

    There is a queue for each of ``config.completion_queues`` clients, and one for the owner of the
    LLP, whose number follows theirs. A completion of a message goes to its stream's queue; all
    others, those of SCTP's chunks, packets and sessions, to the owner's.

    No completion waits for room. A client's queue without room drops the completion, and reports
    its stream once on ``overran``: the stream completes nothing more until ``clear``. A queue that
    is disabled, that restarts, or of which the bus has refused an entry has no room. The owner's
    queue has room for all that comes once ``owner_room`` is low.

    ``host.settings`` restarts a queue: once all responses for its earlier entries have arrived, it
    begins at its first entry, with phase 1, and all its indices 0. Until then it is in
    ``host.restarting``, and takes no entry.

    Latency: 11 cycles from ``i`` to ``bus.w``, 13 to ``bus.aw``, and one more from ``sent``; 8 from
    the response to ``host.found``. Throughput: one completion every max(1, 256 / width) cycles,
    also of one queue, if the response arrives within the time of ``config.outstanding``
    completions. Reset: no queue may have an entry on the bus; the host has to write the settings of
    all queues. Errors: a response other than OKAY sets its queue's bit in ``host.failed``; from
    then on the queue's count stays, until the queue restarts.

    Parameters
    ----------
    config : RnicConfig
    owned : bool
        True if completions for the owner come.

    Members
    -------
    i : In(stream.Signature(CompletionEntry()))
        In a device that receives only. ``phase`` is filled in here.
    bus : Out(AxiWrite(width))
    clear : In(stream.Signature(16, always_ready=True))
        In a device that receives only: a stream that restarts; not in the cycle after another one.
    overran : Out(stream.Signature(16))
        In a device that receives only: a stream that has overrun its queue.
    host : In(queue_host(config))
    taken : In(1), owner_room : Out(1)
        With ``owned`` only: ``taken`` and ``room`` of :class:`OwnerRoom`.
    sent : In(sent_host(config))
        With ``config.transmit`` only. Its entries go first.
    delivered : Out(1)
        The bus has answered for a completion with OKAY.
    busy : Out(1)
        A completion is being written, or a queue restarts.
    """

    def __init__(self, config, *, owned=False):
        self.config, self.owned = config, owned
        super().__init__({
            "bus": Out(AxiWrite(config.width)),
            **({
                "i": In(stream.Signature(CompletionEntry())),
                "clear": In(stream.Signature(16, always_ready=True)),
                "overran": Out(stream.Signature(16)),
            } if config.receive else {}),
            "host": In(queue_host(config)),
            **({"taken": In(1), "owner_room": Out(1)} if owned else {}),
            **({"sent": In(sent_host(config))} if config.transmit else {}),
            "delivered": Out(1),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        config, host = self.config, self.host
        m.submodules.room = room = QueueRoom(config)
        m.submodules.entries = entries = Store(CompletionEntry(), depth=QUEUE)
        m.submodules.slots = slots = Store(EntrySlot(config), depth=QUEUE)
        m.submodules.writer = writer = EntryWriter(config)
        m.submodules.answers = answers = Answers(config)
        m.submodules.restart = restart = Restart(queues_of(config))
        # The writer lies near the bus's addresses, the answers near its responses.
        m.d.sync += [
            answers.begun.valid.eq(writer.begun.valid),
            answers.begun.payload.eq(writer.begun.payload),
        ]
        for source, sink in (
            (entries.o, writer.entries), (room.o, slots.i), (slots.o, writer.slots),
            (wiring.flipped(host.settings), room.settings),
            (wiring.flipped(host.doorbell), room.doorbell),
        ):
            wiring.connect(m, source, sink)

        # A completion waits in ``entries`` while its slot is found.
        go, takes, sends, clears = Signal(), Signal(), Signal(), Signal()
        clearing = self.clear.valid if config.receive else 0
        m.d.sync += go.eq((entries.level < QUEUE - 2) & ~clearing & ~restart.zero.valid)
        m.d.comb += [
            entries.i.valid.eq(takes | sends),
            room.i.valid.eq(takes | sends | clears),
            room.stopped.eq(restart.stopped | answers.failed),
        ]
        if config.receive:
            self._received(m, go, takes, sends, clears, room)
        if config.transmit:
            self._sent(m, go, sends, room)

        # A register keeps the decision near the tables that it changes.
        issued = delayed(m, 1, room.issued, "issued")

        # A queue restarts in all tables in the same cycle.
        m.d.comb += [
            restart.written.valid.eq(host.settings.valid),
            restart.written.payload.eq(host.settings.payload.index),
            restart.issued.eq(issued),
            restart.answered.eq(answers.counted),
            restart.zero.ready.eq(room.zero.ready & answers.zero.ready),
            writer.answered.eq(answers.answered),
            host.restarting.eq(restart.stopped),
            host.failed.eq(answers.failed),
            self.delivered.eq(answers.delivered),
            *(port.eq(look) for port, look in zip(answers.look, host.look, strict=True)),
            *(found.eq(port) for found, port in zip(host.found, answers.found, strict=True)),
        ]
        m.d.sync += self.busy.eq(
            entries.level.any() | ~writer.idle | restart.stopped.any()
            | (self.i.valid | self.overran.valid if config.receive else 0))
        for one in (room.zero, answers.zero):
            m.d.comb += [one.valid.eq(restart.zero.valid), one.payload.eq(restart.zero.payload)]
        for name in ("aw", "w"):
            wiring.connect(m, getattr(writer, name), wiring.flipped(getattr(self.bus, name)))
        wiring.connect(m, wiring.flipped(self.bus.b), answers.b)
        if self.owned:
            m.submodules.owner = owner = OwnerRoom(config)
            owned = config.completion_queues
            wiring.connect(m, wiring.flipped(host.settings), owner.settings)
            wiring.connect(m, wiring.flipped(host.doorbell), owner.doorbell)
            m.d.comb += [
                owner.taken.eq(self.taken),
                owner.recorded.eq(takes & (
                    (self.i.payload.kind == Kind.CHUNK) | (self.i.payload.kind == Kind.PACKET))),
                owner.issued.eq(issued & (delayed(m, 1, room.queue, "queue") == owned)),
                owner.stopped.eq(room.stopped[owned]),
                self.owner_room.eq(owner.room),
            ]
        return m

    def _received(self, m, go, takes, sends, clears, room):
        """Takes completions of received messages, and reports streams without room."""
        config, entry, asked = self.config, self.i.payload, room.i.payload
        # A stream overruns once until it is cleared.
        m.submodules.overruns = overruns = Store(16, depth=max(4, config.streams))
        m.submodules.overrun = overrun = Stage(16)
        wiring.connect(m, overruns.o, overrun.i)
        wiring.connect(m, overrun.o, wiring.flipped(self.overran))
        wiring.connect(m, wiring.flipped(self.host.bind), room.bind)
        # A stream that restarts takes the turn of a completion.
        cleared = delayed(m, 1, self.clear.payload, "cleared")
        m.d.comb += [
            self.i.ready.eq(go & ~sends),
            takes.eq(self.i.valid & self.i.ready),
            clears.eq(delayed(m, 1, self.clear.valid, "clears")),
            m.submodules.entries.i.payload.eq(entry),
            asked.stream.eq(Mux(clears, cleared, entry.stream)),
            asked.clear.eq(clears),
            asked.tagged.eq(entry.tagged),
            asked.direct.eq((entry.kind != Kind.MESSAGE) if self.owned else 0),
            asked.queue.eq(config.completion_queues),
        ]
        # Registers keep the decision near the tables that it changes.
        m.d.sync += [
            overruns.i.valid.eq(room.overran.valid),
            overruns.i.payload.eq(room.overran.payload),
        ]

    def _sent(self, m, go, sends, room):
        """Takes completions of sent messages, and answers whether their queues had room."""
        # A register chooses between the two kinds, because the choice is wide.
        m.submodules.sent_entry = skid = Skid(SentEntry(self.config))
        wiring.connect(m, wiring.flipped(self.sent.entry), skid.i)
        sent, asked = skid.o, room.i.payload
        entry = m.submodules.entries.i.payload
        m.d.comb += [
            sent.ready.eq(go),
            sends.eq(sent.valid & go),
            self.sent.written.valid.eq(delayed(m, room.LATENCY, sends, "sends")),
            self.sent.written.payload.eq(room.o.payload.written),
            # A queue that restarts has room after its counts have become zero.
            self.sent.freed.valid.eq(
                self.host.doorbell.valid | (room.zero.valid & room.zero.ready)),
            self.sent.freed.payload.eq(Mux(
                self.host.doorbell.valid, self.host.doorbell.payload.queue, room.zero.payload)),
        ]
        with m.If(sends):
            m.d.comb += [
                asked.stream.eq(sent.payload.stream),
                asked.direct.eq(1),
                asked.queue.eq(sent.payload.queue),
                entry.eq(0),
                entry.kind.eq(Kind.SENT),
                entry.status.eq(sent.payload.status),
                entry.stream.eq(sent.payload.stream),
                entry.tag.eq(sent.payload.done),
            ]
