"""Connects the registers to the datapath: settings, commands, events, counters, interrupt."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .bus.axi import AxiLite
from .bus.csr import Registers
from .bus.pages import PageFence
from .ddp.commit import ItemTally, Tally
from .ddp.counters import Counters
from .ddp.events import ErrorEvent
from .ddp.fence import Fence, RecordFence, Sweep
from .ddp.moderation import InterruptModeration
from .ddp.room import queue_host, queues_of
from .ddp.segment import HEADER_WORDS
from .ddp.stag import StagEntry
from .ddp.untagged import Post, QueueState
from .dma.pages import PAGE_SHIFTS, PageEntry
from .lib.blockram import ForwardedTable
from .lib.stream import delayed
from .lib.table import table_write
from .mpa.intake import LlpSettings
from .rdmap.requester import ReadLimit
from .rdmap.responder import ResponseSlots
from .sctp.association import AssociationWrite
from .sctp.framer import PathSetting, PathWord
from .sctp.session import Answer, Command
from .send.associations import AssociationLimit
from .send.credit import CreditLimit, CreditStart
from .send.departure import SendSetting, SendState
from .send.repeats import Repeat
from .send.rings import Doorbell, SendRing
from .send.segmenter import Mulpdu, NextMsn
from .send.sent import Released, SendBinding
from .send.work import QUEUES
from .spec import regs
from .spec.net import slot_bits
from .spec.sctp import Function
from .spec.send import LONGEST_SEGMENT, READS
from .spec.stag import FIELDS

__all__ = ["Control", "StreamEntry"]

#: Commands of the sending side that wait until they were taken.
_SENDING = ("set", "opens", "limits", "ring", "msns", "doorbell", "released", "repeat")
_SENDING_SCTP = ("path", "allowed")
_READING = ("ords",)
_ANSWERING = ("slots",)

#: Cycles from a table look-up until its placements are counted in ``issued``, and some to spare.
SETTLE = 24


class StreamEntry(data.StructLayout):
    """Settings of a DDP Stream: ``enable`` (1), ``llp`` (LlpSettings) and ``pd`` (16)."""

    def __init__(self):
        super().__init__({"enable": 1, "llp": LlpSettings(), "pd": 16})


def sctp_control(config):
    """Returns the signature between Control and the blocks of SCTP.

    ``associations`` writes the association table. ``command``, ``answer``, ``waiting``, ``look``
    and ``next`` are those of :class:`~.sctp.admission.Admission`; ``tally`` is an ItemTally.
    """
    return wiring.Signature({
        "associations": Out(stream.Signature(
            AssociationWrite(config.associations), always_ready=True)),
        "command": Out(stream.Signature(Command(config.streams))),
        "answer": In(stream.Signature(Answer(), always_ready=True)),
        "waiting": In(range(config.streams + 1)),
        "look": Out(range(config.streams)),
        "next": In(16),
        "tally": In(ItemTally()),
    })


def send_control(config):
    """Returns the signature between Control and the Data Source.

    The members are those of :class:`~.send.source.DataSource`. ``sent`` has a bit for each port:
    high for one cycle for each FPDU or frame.
    """
    streams, senders = config.streams, config.senders
    return wiring.Signature({
        "set": Out(stream.Signature(SendSetting(streams, senders))),
        "opens": Out(stream.Signature(CreditStart(streams, senders))),
        "limits": Out(stream.Signature(CreditLimit(streams))),
        "ring": Out(stream.Signature(SendRing(streams))),
        "bind": Out(stream.Signature(SendBinding(config), always_ready=True)),
        "doorbell": Out(stream.Signature(Doorbell(streams))),
        "consumer": In(16),
        "waits": In(2),
        "released": Out(stream.Signature(Released(streams))),
        "repeat": Out(stream.Signature(Repeat(streams))),
        "repeating": In(1),
        "mulpdus": Out(stream.Signature(Mulpdu(streams), always_ready=True)),
        "msns": Out(stream.Signature(NextMsn(streams))),
        "look": Out(range(streams)),
        "state": In(SendState(senders)),
        "sent": In(2),
        "dropped": In(1),
        "fence": Out(1),
        "fencing": In(1),
        **({"slots": Out(stream.Signature(ResponseSlots(streams))), "next": In(32), "asked": In(16)}
           if config.responder else {}),
        **({"ords": Out(stream.Signature(ReadLimit(streams, READS)))} if config.reader else {}),
        **({"path": Out(stream.Signature(data.StructLayout({
                "setting": PathSetting(senders), "first": range(streams), "count": 16}))),
            "allowed": Out(stream.Signature(AssociationLimit(senders))),
            "word": Out(stream.Signature(PathWord(senders), always_ready=True))}
           if senders else {}),
    })


class Control(wiring.Component):
    """Holds the registers and carries out the host's commands.

    A revocation removes the entry from its table. It is done once every segment that may have seen
    the entry was dropped, or was placed and the bus has responded for it; and once the bus has
    answered every read that it allowed. The revocation of a stream also waits for
    :class:`.RecordFence`.

    Latency: a table is written 1 cycle after its command. Throughput: one command at a time. Reset:
    registers are 0; all streams are disabled, one in each cycle, before a register can be written.
    Errors: those of :class:`~.bus.csr.Registers`; a command for a stream that does not exist has no
    effect.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    bus : In(AxiLite(17))
    stags, streams, pages : Out(table_write)
    resetting : Out(1)
        Not all streams were disabled since the reset.
    stag_index : Out(range(stags)), stag_entry : In(StagEntry)
        Look-up in the STag table, answered after 2 cycles: which entries a sweep has to revoke.
    queues : Out(queue_host(config))
        Settings and state of the completion queues.
    completed, idle : In(1)
    irq : Out(1)
    queue : Out(stream.Signature(QueueState(), always_ready=True))
    post : Out(stream.Signature(Post(config), always_ready=True))
    clear : Out(stream.Signature(16)), cleared : In(1)
        Streams that restart: the host has written their entry. With the transfer: the stream's
        error state is cleared.
    hold : Out(1), held : In(1)
        Requests, and acknowledges, a pause of the datapath in which ``queue`` may be written.
    events : In(stream.Signature(ErrorEvent(config)))
    issued, retired : In(16)
        Placements that were sent to the bus, and those that it has finished, modulo 2^16.
    record : In
        ``came``, ``passed`` and ``moves`` of :class:`~.ddp.fence.RecordFence`.
    tally : In(Tally()), exception_dropped : In(1)
        These, from ``queue`` on, in a device that receives only.
    sctp : Out(sctp_control(config))
        The blocks of SCTP; in a device that receives over SCTP only.
    send : Out(send_control(config))
        The Data Source; in a device that sends only.
    """

    def __init__(self, config):
        self.config = config
        super().__init__({
            "bus": In(AxiLite(regs.ADDRESS_BITS)),
            "stags": Out(table_write(StagEntry(config.stags), config.stags)),
            "streams": Out(table_write(StreamEntry(), config.streams)),
            "pages": Out(table_write(PageEntry(), config.pages)),
            "resetting": Out(1),
            "stag_index": Out(range(config.stags)),
            "stag_entry": In(StagEntry(config.stags)),
            "queues": Out(queue_host(config)),
            "completed": In(1),
            "idle": In(1),
            "irq": Out(1),
            **(self._receiving(config) if config.receive else {}),
            **({"sctp": Out(sctp_control(config))} if config.owned else {}),
            **({"send": Out(send_control(config))} if config.transmit else {}),
        })

    @staticmethod
    def _receiving(config):
        """Returns the members of a device that receives."""
        return {
            "queue": Out(stream.Signature(QueueState(), always_ready=True)),
            "post": Out(stream.Signature(Post(config), always_ready=True)),
            "clear": Out(stream.Signature(16)),
            "cleared": In(1),
            "hold": Out(1),
            "held": In(1),
            "events": In(stream.Signature(ErrorEvent(config))),
            "issued": In(16),
            "retired": In(16),
            "record": In(wiring.Signature(
                {name: Out(1) for name in ("came", "passed", "moves")})),
            "tally": In(Tally()),
            "exception_dropped": In(1),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.registers = registers = Registers(self.config)
        wiring.connect(m, wiring.flipped(self.bus), registers.bus)
        revoking = self._revoke(m, registers)
        commit = self._set_up(m, registers)
        rung = self._fence(m, registers)
        waiting = self._deliver(m, registers, rung["CQ_DOORBELL"])
        event = clearing = uncleared = C(0, 1)
        if self.config.receive:
            event, clearing = self.events.valid, self.clear.valid
            uncleared = self._clear(m, registers, commit)
            self._receive(m, registers, commit)
        m.d.comb += [
            registers.id.eq(regs.ID),
            registers.version.eq(regs.VERSION),
            registers.cap_width.eq(self.config.width),
            registers.cap_stags.eq(self.config.stags),
            registers.cap_streams.eq(self.config.streams),
            registers.cap_pages.eq(self.config.pages),
            registers.cap_cqs.eq(self.config.completion_queues),
            registers.cap_doorbells.eq(regs.PAGES),
            registers.cap_address.eq(self.config.address),
            registers.status.eq(
                Cat(event, self.idle, waiting, revoking, self.queues.failed.any(), clearing,
                    uncleared)),
        ]
        if self.config.sctp:
            m.d.comb += [
                registers.cap_associations.eq(self.config.associations),
                registers.cap_mpa.eq(self.config.mpa),
            ]
        if self.config.owned:
            self._sctp(m, registers)
        if self.config.transmit:
            self._send(m, registers, rung["SEND_DOORBELL"])
        mask = registers.irq_mask
        m.d.sync += self.irq.eq((event & ~mask[0]) | (waiting & ~mask[2]))
        return m

    def _receive(self, m, registers, commit):
        """Connects what only a device that receives has, but SCTP. ``commit``: a stream begins."""
        self._queues(m, registers)
        self._count(m, registers)
        event, bind, stream_cq = self.events.payload, self.queues.bind, registers.stream_cq
        # The host writes a number long before the command that uses it.
        has = Signal()
        m.d.sync += has.eq(stream_cq[:8] < self.config.completion_queues)
        m.d.comb += [
            registers.cap_buffer.eq(self.config.buffer_octets),
            registers.cap_queue.eq(self.config.queue_depth),
            registers.cap_buffers.eq(self.config.buffers),
            self.events.ready.eq(registers.event_pop),
            registers.event_code.eq(Cat(event.code, event.type)),
            registers.event_stream.eq(event.stream),
            registers.event_length.eq(event.length),
            registers.event_sequence.eq(event.sequence),
            *(getattr(registers, f"event_header{k}").eq(event.header.word_select(k, 32))
              for k in range(HEADER_WORDS)),
            # A stream with a queue that does not exist gets a number that names none.
            bind.valid.eq(commit),
            bind.payload.stream.eq(registers.stream_index),
            bind.payload.queue.eq(Mux(has, stream_cq[:8], queues_of(self.config) - 1)),
            bind.payload.silent.eq(stream_cq[8]),
        ]

    def _known(self, index):
        """Returns whether the device has a stream of this number."""
        return ~index[self.config.streams.bit_length() - 1:].any()

    def _address(self, registers, name, *, linear=False):
        """Returns a host address, or with ``linear`` one in pages, without unused upper bits."""
        whole = Cat(getattr(registers, f"{name}_lo"), getattr(registers, f"{name}_hi"))
        most = exact_log2(self.config.pages) + PAGE_SHIFTS[-1] if linear else 0
        return whole[:max(self.config.address, most)]

    def _set_up(self, m, registers):
        """Connects the tables that the host writes without further steps: streams and pages.

        Returns whether an entry of a stream is written that exists.
        """
        setting, page = self.streams.payload, self.pages.payload
        commit, known = Signal(), Signal()
        m.d.sync += known.eq(self._known(registers.stream_index))
        # The entries that the streams had before the reset are still in the table. SentCompletions
        # walks over its streams, too, in two cycles each.
        pace = 1 if self.config.transmit else 0
        walk = Signal(range((self.config.streams << pace) + 1))
        with m.If(self.resetting):
            m.d.sync += walk.eq(walk + 1)
        m.d.comb += [
            self.resetting.eq(~walk[-1]),
            commit.eq(registers.stream_commit & known),
            self.streams.valid.eq(self.resetting | commit | (registers.revoke_stream & known)),
            setting.index.eq(Mux(self.resetting, walk[pace:], registers.stream_index)),
            Cat(setting.entry.enable, setting.entry.llp).eq(
                registers.stream_flags & registers.stream_commit.replicate(32)),
            setting.entry.pd.eq(registers.stream_pd),
            self.pages.valid.eq(registers.page_commit),
            page.index.eq(registers.page_index),
            page.entry.valid.eq(1),
            page.entry.address.eq(self._address(registers, "page_addr") >> 12),
        ]
        return commit

    def _clear(self, m, registers, commit):
        """Connects the clearing of a stream's error state, which begins with ``commit``.

        Returns whether the last STREAM_COMMIT left its stream in error.
        """
        uncleared = Signal()
        with m.If(commit | self.clear.ready):
            m.d.sync += [self.clear.valid.eq(commit), uncleared.eq(~commit & ~self.cleared)]
        m.d.comb += self.clear.payload.eq(registers.stream_index)
        return uncleared

    def _waits(self):
        """Returns whether a command waits until another block has taken it."""
        config = self.config
        sending = (*_SENDING, *(_SENDING_SCTP if config.senders else ()),
                   *(_READING if config.reader else ()), *(_ANSWERING if config.responder else ()))
        return Cat(
            (self.clear.valid, self.hold) if config.receive else (),
            self.sctp.command.valid if config.owned else (),
            (getattr(self.send, name).valid for name in sending) if config.transmit else (),
        ).any()

    def _revoke(self, m, registers):
        """Connects STag writes, revocations and the fence; returns whether one is in progress."""
        m.submodules.sweep = sweep = Sweep(self.config.stags)
        write, entry = self.stags.payload, self.stags.payload.entry
        # A command waits while the sweep writes, and a second sweep waits for the first.
        commit, revoke, sweeping, wanted = Signal(), Signal(), Signal(), Signal()
        with m.If(registers.revoke_stream & self._known(registers.stream_index)):
            m.d.sync += wanted.eq(1)
        with m.Elif(~sweep.busy):
            m.d.sync += wanted.eq(0)
        with m.If(registers.stag_commit):
            m.d.sync += commit.eq(1)
        with m.Elif(~sweep.revoke.valid):
            m.d.sync += commit.eq(0)
        with m.If(registers.revoke_stag):
            m.d.sync += revoke.eq(1)
        with m.Elif(~sweep.revoke.valid):
            m.d.sync += revoke.eq(0)
        fences = Signal()
        m.d.sync += [
            sweeping.eq(sweep.busy),
            fences.eq(((commit | revoke) & ~sweep.revoke.valid) | (sweeping & ~sweep.busy)),
        ]
        m.d.comb += [
            # Until a command was carried out, no register is written: the next write could change
            # the command's parameters, or be the next command.
            registers.hold.eq(self.resetting | commit | revoke | wanted | self._waits()),
            self.stag_index.eq(sweep.index),
            sweep.entry.eq(self.stag_entry),
            sweep.start.eq(wanted & ~sweep.busy),
            sweep.stream.eq(registers.stream_index),
            self.stags.valid.eq(commit | revoke | sweep.revoke.valid),
            write.index.eq(Mux(sweep.revoke.valid, sweep.revoke.payload, registers.stag_index)),
            entry.tag.eq(registers.stag_index >> (self.config.stags.bit_length() - 1)),
            *(entry[name].eq(value) for name, value in self._entry(registers)),
        ]
        with m.If(revoke | sweep.revoke.valid):
            m.d.comb += entry.valid.eq(0)
        placing = reading = passing = C(0)
        if self.config.receive:
            m.submodules.fence = fence = Fence(settle=SETTLE)
            m.d.comb += [
                fence.start.eq(fences),
                fence.issued.eq(self.issued),
                fence.retired.eq(self.retired),
            ]
            placing = fence.busy
            passing = self._pass(m, registers, wanted | sweep.busy | sweeping | fences | placing)
        if self.config.transmit:
            m.d.comb += self.send.fence.eq(fences)
            reading = self.send.fencing
        return revoke | wanted | sweep.busy | sweeping | fences | placing | reading | passing

    def _pass(self, m, registers, placing):
        """Waits for the records of a stream that is revoked; returns whether it does.

        ``placing``: the revocation waits for the stream's STags or placements.
        """
        m.submodules.records = fence = RecordFence()
        owed, starts = Signal(), Signal()
        with m.If(registers.revoke_stream & self._known(registers.stream_index)):
            m.d.sync += owed.eq(1)
        with m.Elif(starts):
            m.d.sync += owed.eq(0)
        m.d.sync += starts.eq(owed & ~starts & ~placing)
        m.d.comb += [
            fence.start.eq(starts),
            fence.came.eq(self.record.came),
            fence.passed.eq(self.record.passed),
            fence.moves.eq(self.record.moves),
        ]
        return owed | fence.busy

    def _entry(self, registers):
        """Yields the name of each field of an STag's entry, and its value in the registers."""
        for field in FIELDS:
            if field.name == "address":
                yield field.name, self._address(registers, "stag_addr", linear=True)
            else:
                value = Cat(getattr(registers, name.lower()) for name in field.registers)
                yield field.name, value[field.low:field.low + field.bits]

    def _queues(self, m, registers):
        """Connects the untagged queues and the posting of their buffers."""
        state, post = self.queue.payload, self.post.payload
        # QUEUE_STREAM and QUEUE_NUMBER are written long before the command that uses them, so
        # their check may take two cycles: first one bit per octet, then all.
        known = Signal()
        index, number = registers.queue_stream, registers.queue_number
        beyond = Signal(5)
        m.d.sync += [
            beyond.eq(Cat(~self._known(index), number[2:8].any(),
                          *(number.word_select(k, 8).any() for k in range(1, 4)))),
            known.eq(~beyond.any()),
            self.post.valid.eq(registers.buffer_post & known),
        ]
        change = registers.queue_open | registers.queue_close
        with m.If(change):
            m.d.sync += [self.hold.eq(known), state.open.eq(registers.queue_open)]
        with m.Elif(self.queue.valid):
            m.d.sync += self.hold.eq(0)
        m.d.comb += [
            self.queue.valid.eq(self.hold & self.held),
            state.stream.eq(registers.queue_stream),
            state.qn.eq(registers.queue_number),
            state.msn.eq(registers.queue_msn),
            post.stream.eq(registers.queue_stream),
            post.qn.eq(registers.queue_number),
            post.msn.eq(registers.queue_msn),
            post.slot.eq(registers.word),
            post.buffer.address.eq(self._address(registers, "buffer_addr", linear=True)),
            post.buffer.length.eq(registers.buffer_length),
            post.buffer.pages.eq(registers.buffer_pages),
            post.buffer.cookie.eq(registers.buffer_cookie),
        ]

    def _fence(self, m, registers):
        """Checks doorbells that come through pages, and counts those that are ignored.

        Returns for each of DOORBELLS whether one has come that may ring, with ``registers.word``.
        """
        config, word = self.config, registers.bus.w.payload.data
        ring, rung, kept = registers.send_ring_size if config.transmit else None, {}, C(0)
        for bit, (name, index, items, sets) in enumerate((
            ("SEND_DOORBELL", word[16:], config.streams, config.transmit and (
                (registers.send_ring_commit | registers.send_page_commit)
                & self._known(registers.send_stream),
                registers.send_stream, ring[25:])),
            ("CQ_DOORBELL", word[16:24], config.completion_queues + config.owned, (
                registers.cq_commit & self._has_queue(registers.cq_index),
                registers.cq_index, registers.cq_enable[8:])),
        )):
            if not sets:
                continue
            m.submodules[f"{name.split('_')[0].lower()}_fence"] = fence = PageFence(items)
            valid, number, page = sets
            m.d.comb += [
                fence.index.eq(index),
                fence.page.eq(registers.page),
                fence.set.valid.eq(valid),
                fence.set.payload.index.eq(number),
                fence.set.payload.page.eq(page),
            ]
            rung[name] = registers.page_rings[bit] & fence.allows
            kept = kept | rung[name]
        ignored = Signal(32, init=self._init)
        stray = registers.page_strays | (registers.page_rings.any() & ~kept)
        m.d.sync += ignored.eq(ignored + stray)
        # A write has its page from its first cycle on, and the next one begins after this one was
        # counted.
        m.submodules.strays = strays = ForwardedTable(16, 1 << regs.PAGE_BITS, reads=2)
        m.d.comb += [
            registers.doorbells_ignored.eq(ignored),
            strays.address[0].eq(registers.page),
            strays.write.valid.eq(stray),
            strays.write.payload.address.eq(registers.page),
            strays.write.payload.data.eq(strays.data[0] + 1),
            strays.address[1].eq(registers.doorbell_page),
            registers.page_ignored.eq(strays.data[1]),
        ]
        return rung

    def _has_queue(self, index):
        """Returns whether the device has a completion queue of this number."""
        return index < self.config.completion_queues + self.config.owned

    def _deliver(self, m, registers, paged):
        """Connects the completion queues; returns whether one of them interrupts the host.

        ``paged``: ``registers.word`` is a doorbell that came through a page.
        """
        config, host = self.config, self.queues
        m.submodules.moderation = moderation = InterruptModeration(config)
        queue, doorbell = registers.cq_index, Signal(32)
        m.d.comb += doorbell.eq(Mux(paged, registers.word, registers.cq_doorbell))
        # The host writes an index long before the command that uses it, and nothing just after.
        exists = Signal()
        settings, rung = host.settings, host.doorbell
        m.d.sync += [
            exists.eq(self._has_queue(queue)),
            settings.valid.eq(registers.cq_commit & exists),
        ]
        entry, waits = settings.payload.entry, moderation.settings.payload.entry
        m.d.comb += [
            settings.payload.index.eq(queue),
            entry.enable.eq(registers.cq_enable[0]),
            entry.base.eq(self._address(registers, "cq_base") >> 5),
            entry.size.eq(registers.cq_size),
            moderation.settings.valid.eq(registers.cq_moderate & exists),
            moderation.settings.payload.index.eq(queue),
            waits.count.eq(registers.cq_coalesce),
            waits.timeout.eq(registers.cq_timeout),
            moderation.restart.valid.eq(settings.valid),
            moderation.restart.payload.eq(queue),
            moderation.doorbell.valid.eq(rung.valid),
            moderation.doorbell.payload.eq(rung.payload),
            host.look[0].eq(queue),
            host.look[1].eq(moderation.look),
            moderation.found.eq(host.found[1]),
            registers.cq_producer.eq(host.found[0]),
            registers.cq_state.eq(Cat(
                bits.bit_select(host.look[0], 1) for bits in (host.restarting, host.failed))),
            registers.cq_pending.eq(moderation.pending),
        ]
        m.d.sync += [
            rung.valid.eq(paged | (registers.rings & self._has_queue(doorbell[16:24]))),
            rung.payload.consumer.eq(doorbell[:16]),
            rung.payload.queue.eq(doorbell[16:24]),
            rung.payload.arm.eq(doorbell[31]),
        ]
        delivered = Signal(32, init=self._init)
        m.d.sync += delivered.eq(delivered + delayed(m, 1, self.completed, "completed"))
        m.d.comb += registers.delivered.eq(delivered)
        return moderation.pending.any()

    @property
    def _init(self):
        """The value with which counters begin."""
        return (1 << 32) - 1 if self.config.full_counters else 0

    def _count(self, m, registers):
        """Connects the counters of received segments to their registers."""
        m.submodules.counters = counters = Counters(full=self.config.full_counters)
        m.d.comb += [
            counters.tally.eq(self.tally),
            counters.exception_dropped.eq(self.exception_dropped),
            counters.hold.eq(registers.octets_read),
            registers.placed_segments.eq(counters.placed),
            registers.placed_octets_lo.eq(counters.octets_low),
            registers.placed_octets_hi.eq(counters.octets_high),
            registers.exceptions.eq(counters.exceptions),
            registers.errors.eq(counters.errors),
            registers.dropped.eq(counters.dropped),
            registers.digest_errors.eq(counters.digest),
            registers.exceptions_dropped.eq(counters.exceptions_dropped),
        ]

    @staticmethod
    def _of_segment(octets):
        """Returns ``octets``, but no more than a segment may have."""
        return Mux(octets > LONGEST_SEGMENT, LONGEST_SEGMENT, octets)

    def _payloads(self, registers, doorbell):
        """Yields the assignments of doorbells, of releases, and of segments to be sent again."""
        released = registers.send_released
        entry = registers.repeat_entry
        for port, fields in (
            ("doorbell", {"stream": doorbell[16:], "producer": doorbell}),
            ("released", {
                "stream": released[16:31], "index": released, "signaled": released[31]}),
            ("repeat", {
                "stream": registers.send_stream, "entry": entry, "entries": entry[16:],
                "response": entry[24], "offset": registers.repeat_offset,
                "length": self._of_segment(registers.repeat_length[:16]),
                "ssn": registers.repeat_length[16:],
                "msn": registers.repeat_msn,
                "sequence": registers.repeat_sequence}),
        ):
            for name, value in fields.items():
                yield getattr(self.send, port).payload[name].eq(value)

    def _send(self, m, registers, paged):
        """Connects the sending halves of streams, and the counters of FPDUs.

        ``paged``: ``registers.word`` is a doorbell that came through a page.
        """
        send, number = self.send, registers.send_stream
        # A doorbell that waits keeps its word, because no register is written until it was taken.
        doorbell, through = Signal(32), Signal()
        with m.If(registers.send_rings | paged):
            m.d.sync += through.eq(paged)
        m.d.comb += doorbell.eq(Mux(through, registers.word, registers.send_doorbell))
        state, found = send.set.payload.state, send.state
        known, has_queue, has_cq, ring = Signal(), Signal(), Signal(), send.ring.payload
        has_path, placed = self._paths(m, registers), self._has_place(m, registers)
        m.d.sync += [
            known.eq(self._known(number)),
            has_queue.eq(self._known(number) & (registers.send_qn < QUEUES)),
            has_cq.eq(registers.send_ring_size[16:24] < self.config.completion_queues),
        ]
        for command, name, allowed in (
            (registers.send_commit, "set", placed),
            (registers.send_commit, "opens", placed),
            (registers.send_limit_commit, "limits", known),
            (registers.send_ring_commit, "ring", known),
            (registers.send_msn_commit, "msns", has_queue),
            (registers.send_rings | paged, "doorbell",
             paged | self._known(registers.send_doorbell[16:])),
            (registers.send_releases, "released", self._known(registers.send_released[16:31])),
            (registers.repeat_commit, "repeat", known),
            *([(registers.response_commit, "slots", known)] if self.config.responder else []),
            *([(registers.path_commit, "path", has_path),
               (registers.path_limit_commit, "allowed", has_path)] if self.config.senders else []),
            *([(registers.read_commit, "ords", known)] if self.config.reader else []),
        ):
            port = getattr(send, name)
            with m.If(command):
                m.d.sync += port.valid.eq(allowed)
            with m.Elif(port.ready):
                m.d.sync += port.valid.eq(0)
        m.d.comb += [
            registers.cap_sends.eq(
                1 | self.config.responder << 1 | (self.config.senders > 0) << 2
                | READS * self.config.reader << 8),
            send.set.payload.stream.eq(number),
            Cat(state.open, state.llp).eq(registers.send_flags),
            state.after.eq(registers.send_after),
            state.sequence.eq(registers.send_sequence),
            *(send.opens.payload[name].eq(value) for name, value in (
                ("stream", number), ("sequence", state.sequence), ("after", state.after),
                ("markers", state.llp.markers), ("limited", registers.send_flags[3]),
                ("sctp", self._over_sctp(registers)), ("open", state.open))),
            send.limits.payload.stream.eq(number),
            send.limits.payload.limit.eq(registers.send_limit),
            ring.stream.eq(number),
            ring.base.eq(self._address(registers, "send_ring") >> 6),
            ring.size.eq(registers.send_ring_size),
            ring.open.eq(registers.send_ring_size[8]),
            # The ring's first doorbell comes later.
            send.bind.valid.eq(registers.send_ring_commit & known),
            send.bind.payload.stream.eq(number),
            send.bind.payload.queue.eq(Mux(
                has_cq, registers.send_ring_size[16:24], queues_of(self.config) - 1)),
            send.bind.payload.repeats.eq(registers.send_ring_size[24]),
            *self._payloads(registers, doorbell),
            registers.send_consumer.eq(send.consumer),
            send.mulpdus.valid.eq(registers.send_mulpdu_commit & known),
            send.mulpdus.payload.stream.eq(number),
            send.mulpdus.payload.mulpdu.eq(self._of_segment(registers.send_mulpdu)),
            send.msns.payload.stream.eq(number),
            send.msns.payload.qn.eq(registers.send_qn),
            send.msns.payload.msn.eq(registers.send_msn),
            send.look.eq(number),
            registers.send_state.eq(
                Cat(found.open, found.failed, found.response, send.repeating, found.lost,
                    send.waits, C(0, 9), found.answered)),
        ]
        self._read(m, registers)
        if self.config.responder:
            self._answer(m, registers)
        self._count_sent(m, registers)

    def _read(self, m, registers):
        """Connects the bounds of the streams' own Reads."""
        if self.config.reader:
            limit, ord = self.send.ords.payload, registers.read_ord
            m.d.comb += [
                limit.stream.eq(registers.send_stream),
                limit.ord.eq(Mux(ord < READS, ord, READS)),
            ]

    def _answer(self, m, registers):
        """Connects the answers to Read Requests."""
        send, number, found = self.send, registers.send_stream, self.send.state
        slots, ring = send.slots.payload, registers.response_slots
        m.d.comb += [
            slots.stream.eq(number),
            slots.base.eq(self._address(registers, "response") >> 6),
            slots.size.eq(ring),
            slots.open.eq(ring[8]),
            slots.ird.eq(ring[16:]),
            slots.buffer.eq(registers.response_buffer),
            slots.msn.eq(registers.response_msn),
            registers.response_next.eq(send.next),
            registers.response_asked.eq(send.asked),
            registers.response_sequence.eq(found.sequence),
        ]

    def _count_sent(self, m, registers):
        """Connects the counters of segments."""
        send = self.send
        for name, event in (
            ("sent", send.sent[0] + send.sent[1]), ("send_dropped", send.dropped)
        ):
            counter = Signal(32, name=name)
            m.d.sync += counter.eq(counter + delayed(m, 1, event, f"{name}_event"))
            m.d.comb += getattr(registers, name).eq(counter)

    def _over_sctp(self, registers):
        """Returns whether the stream that is opened sends over SCTP."""
        return (registers.send_flags[4] | (not self.config.mpa)) if self.config.senders else C(0)

    def _has_place(self, m, registers):
        """Returns whether SEND_STREAM exists and, if it sends over SCTP, its association does."""
        known, senders = Signal(), self.config.senders
        exists = registers.send_chunks[:16] < senders if senders else 0
        m.d.sync += known.eq(
            self._known(registers.send_stream) & (~self._over_sctp(registers) | exists))
        return known

    def _paths(self, m, registers):
        """Connects the paths of associations; returns whether PATH_ASSOCIATION is one of them."""
        known = Signal()
        if not self.config.senders:
            return known
        state, path = self.send.set.payload.state, self.send.path.payload.setting
        opens, limit = self.send.opens.payload, self.send.allowed.payload
        word, number = self.send.word, registers.path_association
        m.d.sync += known.eq(number < self.config.senders)
        m.d.comb += [
            state.sctp.eq(self._over_sctp(registers)),
            state.association.eq(registers.send_chunks),
            state.sid.eq(registers.send_chunks[16:]),
            state.limited.eq(registers.send_flags[3]),
            opens.association.eq(registers.send_chunks),
            self.send.path.payload.first.eq(registers.path_streams),
            self.send.path.payload.count.eq(self._existing(m, registers.path_streams)),
            limit.association.eq(number),
            limit.tsn.eq(registers.path_limit_tsn),
            limit.octets.eq(registers.path_limit_octets),
            word.valid.eq(registers.path_word_commit & known),
            word.payload.association.eq(number),
            word.payload.at.eq(registers.path_at),
            word.payload.word.eq(registers.path_word),
            path.association.eq(number),
            path.tsn.eq(registers.path_tsn),
            path.path.ports.eq(registers.path_ports),
            path.path.tag.eq(registers.path_tag),
            Cat(path.path.first, path.path.udp, path.path.v6).eq(registers.path_form),
            path.path.ip_sum.eq(registers.path_sums),
            path.path.udp_sum.eq(registers.path_sums[16:]),
        ]
        return known

    def _existing(self, m, range_):
        """Returns how many of an association's streams exist.

        ``range_``: the first stream and the number of streams, in a register that was written some
        cycles before.
        """
        streams, first, count = self.config.streams, range_[:16], range_[16:]
        room, existing = Signal(range(streams + 1)), Signal(range(streams + 1))
        m.d.sync += [
            room.eq(Mux(self._known(first), streams - first[:exact_log2(streams)], 0)),
            existing.eq(Mux(count < room, count, room)),
        ]
        return existing

    def _sctp(self, m, registers):
        """Connects associations, sessions, guidance and counters of SCTP."""
        sctp, config = self.sctp, self.config
        write, entry = sctp.associations.payload, sctp.associations.payload.entry
        command, busy, exists = sctp.command, Signal(), Signal()
        answer = Signal(Answer())
        m.d.comb += [
            registers.cap_owner.eq(config.owner_entries),
            registers.cap_window.eq(config.window),
            # The registers stay while the table is written word by word: the host's next access
            # takes four cycles.
            sctp.associations.valid.eq(registers.assoc_commit & exists),
            write.way.eq(registers.assoc_slot[16]),
            write.slot.eq(registers.assoc_slot),
            *(entry[name].eq(Cat(getattr(registers, f"assoc_{end}{k}") for k in range(4)))
              for name, end in (("source", "src"), ("destination", "dst"))),
            entry.source_port.eq(registers.assoc_ports[:16]),
            entry.destination_port.eq(registers.assoc_ports[16:]),
            entry.tag.eq(registers.assoc_tag),
            entry.valid.eq(registers.assoc_flags[0]),
            entry.v6.eq(registers.assoc_flags[1]),
            entry.association.eq(registers.assoc_flags[16:]),
            entry.first.eq(registers.assoc_streams[:16]),
            entry.streams.eq(self._existing(m, registers.assoc_streams)),
            command.payload.stream.eq(registers.session_stream),
            command.payload.function.eq(registers.session_function),
            command.payload.tsn.eq(registers.session_tsn),
            registers.session_answer.eq(Cat(answer.state, answer.taken, busy)),
            registers.session_pending.eq(sctp.waiting),
            sctp.look.eq(registers.session_stream),
            registers.guide_next.eq(sctp.next),
        ]
        # A command for a stream, or with a function, association or slot, that does not exist has
        # no effect.
        known = Signal()
        m.d.sync += exists.eq(~Cat(
            registers.assoc_flags[16 + exact_log2(config.associations):],
            registers.assoc_slot[slot_bits(config.associations):9]).any())
        m.d.sync += known.eq(self._known(registers.session_stream)
                             & (registers.session_function <= max(Function)))
        with m.If(registers.session_command):
            m.d.sync += [command.valid.eq(known), busy.eq(known), answer.eq(0)]
        with m.Elif(command.ready):
            m.d.sync += command.valid.eq(0)
        with m.If(sctp.answer.valid):
            m.d.sync += [busy.eq(0), answer.eq(sctp.answer.payload)]
        tally = delayed(m, 1, sctp.tally, "item_tally")
        for name, event in (
            ("frames", tally.taken),
            ("frames_diverted", tally.diverted),
            ("frames_dropped", tally.lost),
            ("chunks_duplicate", tally.duplicate),
            ("chunks_outside", tally.outside),
            ("chunks_refused", tally.refused),
        ):
            counter = Signal(32, name=name, init=self._init)
            m.d.sync += counter.eq(counter + event)
            m.d.comb += getattr(registers, name).eq(counter)
