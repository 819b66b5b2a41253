"""Assembles the RNIC: it receives DDP segments, sends them, or both, over MPA, over SCTP, or both.

With ``RnicConfig.receive``, over MPA::

    s_axis ─ Intake ─ Walker ┬ Store ──────────► packet buffer ──────────┐
                             ├ Slice ─► Crc32c ─► Judge ─ Verdict ┐      ▼
                             └ Segment ───────────────────── Commit ► PlacementDma ─┬ m_axi
                                                             ▲  │ MarkerCut, PageCut └ m_axis_exc
                                  TaggedCheck, UntaggedCheck ┘  └► Delivery ─ m_axi_cq

With ``RnicConfig.transmit``, work requests leave as FPDUs, or over SCTP as frames::

    RingReader ─ Segmenter ─ PartCheck ─ ReadDma ─ Departure ┬ Framer ─ m_axis
    ▲ m_axi                              ▲ m_axi             ├ ChunkFramer ─ m_axis_eth
                                                             └ CompletionQueues ─ m_axi_cq

A device that receives has its CompletionQueues in Delivery. If it receives and sends over MPA, it
compares Read Responses with the Reads that were sent::

    DataSource ─ ResponseCheck ► Commit        Delivery ─ DeliveredReads ┬ completions
                                                          DataSource ◄───┘

With ``RnicConfig.responder``, Read Requests among the messages become Read Responses::

    Delivery ┬ RequestFilter ─ requests ─► DataSource ─ SlotPoster ─ buffers ─► UntaggedCheck
             ▲       └ other messages ┐
             └────────────────────────┘

With ``RnicConfig.receive``, over SCTP. From Commit on, both LLPs share the blocks above::

    s_axis_eth ─ SctpReceiver ┬ Store ─► packet buffer ─► PlacementDma
                              ├ Slice ─► Crc32c ─► SctpReceiver
                              └ items ─► Admission ─► Commit ... Delivery ─► Reports ─► m_axi_cq
                                          (Session, Order) ◄──── in turn ─────┘
"""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .bus.axi import AxiLite, AxiRead, AxiWrite
from .control import Control, StreamEntry
from .ddp.commit import Commit
from .ddp.delivery import Delivery
from .ddp.header import HeaderParser
from .ddp.leaving import SentBeat
from .ddp.queues import CompletionQueues
from .ddp.records import RecordFilter
from .ddp.segment import IN_FLIGHT
from .ddp.stag import StagTable
from .ddp.tagged import StreamRights, TaggedCheck
from .ddp.untagged import UntaggedCheck
from .dma.buffer import PacketBuffers
from .dma.exceptions import ExceptionQueue
from .dma.jobs import Placement
from .dma.pages import PageCut, PageEntry
from .dma.placement import ExceptionBeat, PlacementDma
from .lib.crc32c import Crc32c
from .lib.credits import Credits
from .lib.quiet import Quiet
from .lib.stream import Beat, delayed
from .lib.table import Table
from .mpa.framer import Framer
from .mpa.intake import Intake, LlpBeat
from .mpa.markers import MarkerCut
from .mpa.verdict import Judge
from .mpa.walker import MpaWalker
from .rdmap.requester import DeliveredReads, ResponseCheck
from .rdmap.responder import PostsJoin, RequestFilter, SlotPoster
from .sctp.admission import Admission
from .sctp.framer import ChunkFramer
from .sctp.receiver import SctpReceiver
from .sctp.reports import Reports
from .send.source import DataSource
from .spec import regs
from .spec.config import RnicConfig
from .spec.send import READS

__all__ = ["Rnic"]


class Rnic(wiring.Component):
    """Receives packets, checks their DDP segments, places these and reports the messages; or sends
    messages that the host posts; or both.

    ``packets`` brings whole FPDUs. A segment that passes every check of RFC 5041 section 7.1 is
    written to host memory, after its digest was found good. Once the bus has responded for every
    octet of a message, the message is delivered: a completion is written to its stream's queue.
    The first error on a stream is kept as an event, and its FPDU is sent out on ``exceptions``;
    every later segment of the stream is dropped and counted.

    Latency: measured by ``rnic bench``. Throughput: a segment takes as many cycles as it has beats
    in the packet or on the bus, whichever is more. Reset: all streams are disabled and nothing is
    in flight, if the reset lasts 32 cycles or more; the other table entries stay, and a register
    can be written after as many cycles as there are streams. Errors: reported as events, in the
    registers.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    frames : In(stream.Signature(Beat(width)))
        In a device that receives over SCTP only: Ethernet frames without FCS.
    packets : In(stream.Signature(LlpBeat(width)))
        In a device that receives over MPA only: packets of whole FPDUs.
    bus : Out(AxiWrite(width)), exceptions : Out(stream.Signature(ExceptionBeat(width)))
        In a device that receives only.
    completions : Out(AxiWrite(width))
    control : In(AxiLite(17))
        The registers and, above them, the doorbell pages.
    irq : Out(1)
        High while an error event or completions wait that are not masked.
    reads : Out(AxiRead(width, 2 * outstanding))
        In a device that sends only.
    fpdus : Out(stream.Signature(SentBeat(width)))
        In a device that sends over MPA only: a packet for each FPDU.
    sent_frames : Out(stream.Signature(SentBeat(width)))
        In a device that sends over SCTP only: a packet for each Ethernet frame, without FCS.
    """

    def __init__(self, config):
        if not isinstance(config, RnicConfig):
            raise TypeError(f"Rnic configuration must be an RnicConfig, not {config!r}")
        self.config = config
        super().__init__({
            "completions": Out(AxiWrite(config.width)),
            "control": In(AxiLite(regs.ADDRESS_BITS)),
            "irq": Out(1),
            **({
                **({"packets": In(stream.Signature(LlpBeat(config.width)))} if config.mpa else {}),
                **({"frames": In(stream.Signature(Beat(config.width)))} if config.sctp else {}),
                "bus": Out(AxiWrite(config.width)),
                "exceptions": Out(stream.Signature(ExceptionBeat(config.width))),
            } if config.receive else {}),
            **({
                "reads": Out(AxiRead(config.width, 2 * config.outstanding)),
                **({"fpdus": Out(stream.Signature(SentBeat(config.width)))} if config.mpa else {}),
                **({"sent_frames": Out(stream.Signature(SentBeat(config.width)))}
                   if config.sctp else {}),
            } if config.transmit else {}),
        })

    def elaborate(self, platform):
        m = Module()
        self._tables(m)
        if self.config.receive:
            self._receive(m)
        else:
            m.submodules.queues = queues = CompletionQueues(self.config)
            wiring.connect(m, queues.bus, wiring.flipped(self.completions))
        self._control(m)
        if self.config.receive:
            self._control_receiving(m)
        if self.config.owned:
            self._control_sctp(m)
        if self.config.transmit:
            self._send(m)
        if self.config.responder:
            self._respond(m)
        if self.config.receive:
            self._moves(m)
        self._idle(m)
        return m

    def _tables(self, m):
        """Adds the tables, which received and sent segments share."""
        config = self.config
        m.submodules.streams = Table(
            StreamEntry(), config.streams, live="enable", index=config.stream_bits + 1,
            lookups=config.receive * (1 + config.mpa) + config.transmit)
        m.submodules.stags = StagTable(
            config.stags, lookups=1 + config.receive + config.transmit)
        m.submodules.pages = Table(
            PageEntry(), config.pages, live="valid", lookups=config.receive + config.transmit)

    def _receive(self, m):
        """Adds the blocks for received segments, from the ports to Delivery."""
        if self.config.mpa:
            self._receive_mpa(m)
        if self.config.sctp:
            self._receive_sctp(m)
        self._buffer(m)
        self._commit(m)
        self._check(m)
        self._place(m)
        self._deliver(m)
        if self.config.sctp:
            self._report_sctp(m)

    def _receive_mpa(self, m):
        """Adds MPA: packets to segments, and to verdicts on them."""
        config = self.config
        m.submodules.intake = intake = Intake(config)
        m.submodules.walker = walker = MpaWalker(config)
        m.submodules.crc = crc = Crc32c(config.width, granule=4)
        m.submodules.judge = judge = Judge(config, latency=crc.latency)
        wiring.connect(m, wiring.flipped(self.packets), intake.i)
        wiring.connect(m, intake.o, walker.i)
        wiring.connect(m, walker.slices, crc.i)
        wiring.connect(m, walker.endings, judge.endings)
        wiring.connect(m, crc.o, judge.checksums)

    def _receive_sctp(self, m):
        """Adds SCTP: frames to items, and to their sessions' verdicts on them."""
        config = self.config
        m.submodules.receiver = receiver = SctpReceiver(config)
        m.submodules.sctp_crc = crc = Crc32c(config.width, granule=4)
        m.submodules.admission = admission = Admission(config)
        wiring.connect(m, wiring.flipped(self.frames), receiver.i)
        wiring.connect(m, receiver.slices, crc.i)
        wiring.connect(m, crc.o, receiver.checksums)
        wiring.connect(m, receiver.o, admission.items)

    def _buffer(self, m):
        """Adds a packet buffer for each LLP, which holds the octets until they are placed."""
        config = self.config
        m.submodules.buffers = buffers = PacketBuffers(config, sources=config.mpa + config.sctp)
        if config.mpa:
            walker = m.submodules.walker
            wiring.connect(m, walker.store, buffers.store[0])
            m.d.comb += buffers.next[0].eq(walker.beats)
        if config.sctp:
            receiver = m.submodules.receiver
            wiring.connect(m, receiver.store, buffers.store[-1])
            m.d.comb += [
                buffers.next[-1].eq(receiver.beats),
                receiver.space.eq(buffers.space[-1]),
            ]

    def _commit(self, m):
        """Adds Commit, which takes segments and items in turn and decides their outcome."""
        config = self.config
        # MPA's segments come in the order of the sender, SCTP's in any order.
        m.submodules.commit = commit = Commit(
            config, ordered=config.mpa, unordered=config.sctp, ulp=config.reader)
        if config.mpa:
            walker, judge = m.submodules.walker, m.submodules.judge
            wiring.connect(m, walker.segments, commit.segments)
            wiring.connect(m, judge.o, commit.verdicts)
            # A segment may begin only while Commit is sure to have room for it, a beat only while
            # the buffer has room. A segment that begins is counted a few cycles later.
            m.submodules.credits = credits = Credits(IN_FLIGHT, lag=5)
            m.d.comb += [
                credits.open.eq(1),
                credits.take.eq(delayed(m, 1, walker.begun, "begun")),
                credits.give.eq(commit.done),
                walker.go.eq(credits.ok & m.submodules.buffers.space[0]),
            ]
        if config.sctp:
            admission = m.submodules.admission
            wiring.connect(m, admission.o, commit.items)
            m.d.comb += admission.left.eq(commit.item_done)

    def _check(self, m):
        """Adds the header parser and the checks, in parallel with Commit."""
        config, commit = self.config, m.submodules.commit
        streams, stags = m.submodules.streams, m.submodules.stags
        m.submodules.parser = parser = HeaderParser()
        m.submodules.tagged = tagged = TaggedCheck(config.stags)
        m.submodules.untagged = untagged = UntaggedCheck(config, unordered=config.sctp)
        if config.mpa:
            # The settings of MPA are in the entry of the stream, too.
            intake = m.submodules.intake
            m.d.comb += [
                streams.index[0].eq(intake.stream),
                intake.settings.eq(streams.entry[0].llp),
            ]
        # The stream is looked up while its header is parsed.
        stream_1, stream_2 = Signal(16), Signal(16)
        m.d.sync += [stream_1.eq(commit.head.payload.stream), stream_2.eq(stream_1)]
        rights, of_tagged = streams.entry[config.mpa], Signal(StreamRights())
        m.d.comb += [
            of_tagged.stream.eq(stream_2),
            of_tagged.pd.eq(rights.pd),
            of_tagged.enable.eq(rights.enable),
            streams.index[config.mpa].eq(commit.head.payload.stream),
            parser.i.valid.eq(commit.head.valid),
            parser.i.payload.eq(commit.head.payload.header),
            tagged.i.valid.eq(parser.o.valid),
            tagged.i.payload.eq(parser.o.payload),
            tagged.rights.eq(delayed(m, tagged.RIGHTS, of_tagged, "of_tagged")),
            stags.index[0].eq(tagged.index),
            tagged.entry.eq(stags.entry[0]),
            untagged.i.valid.eq(parser.o.valid),
            untagged.i.payload.header.eq(parser.o.payload),
            untagged.i.payload.stream.eq(stream_2),
            # Over SCTP, a message's last segment need not be the last one to arrive.
            untagged.i.payload.enable.eq(rights.enable & ~(
                delayed(m, 2, commit.head_item, "head_item") if config.sctp else 0)),
            commit.tagged.eq(tagged.o.payload),
            commit.untagged.eq(untagged.o.payload),
        ]
        if config.reader:
            m.submodules.responses = responses = ResponseCheck(config.streams, READS)
            m.d.comb += [
                responses.i.valid.eq(parser.o.valid),
                responses.i.payload.header.eq(parser.o.payload),
                responses.i.payload.control.eq(
                    delayed(m, 2, commit.head.payload.header[24:32], "control_octet")),
                responses.i.payload.stream.eq(stream_2),
                responses.i.payload.enable.eq(untagged.i.payload.enable),
                responses.cleared.valid.eq(commit.cleared.valid),
                responses.cleared.payload.eq(commit.cleared.payload),
                commit.ulp.eq(responses.o.payload),
            ]

    def _place(self, m):
        """Adds the way of Commit's moves to the bus, or to the exception stream."""
        config, commit, buffers = self.config, m.submodules.commit, m.submodules.buffers
        sources = config.mpa + config.sctp
        m.submodules.markers = markers = MarkerCut(
            config, marked=config.mpa, sources=sources, unordered=config.sctp)
        m.submodules.cut = cut = PageCut(config, Placement(config, sources=sources))
        pages = m.submodules.pages
        m.submodules.dma = dma = PlacementDma(config, sources=sources)
        m.submodules.exceptions = exceptions = ExceptionQueue(config)
        wiring.connect(m, commit.moves, markers.i)
        wiring.connect(m, markers.o, cut.i)
        wiring.connect(m, cut.o, dma.i)
        wiring.connect(m, dma.bus, wiring.flipped(self.bus))
        wiring.connect(m, exceptions.o, wiring.flipped(self.exceptions))
        m.d.comb += [
            markers.go.eq(cut.ready),
            cut.go.eq(dma.ready),
            pages.index[0].eq(cut.index),
            cut.page.address.eq(pages.entry[0].address),
            buffers.address.eq(dma.read_address),
            dma.read_data.eq(buffers.data),
            buffers.free.valid.eq(dma.release.valid),
            buffers.free.payload.eq(dma.release.payload),
            exceptions.i.valid.eq(dma.exceptions.valid),
            exceptions.i.payload.eq(dma.exceptions.payload),
            dma.exceptions.ready.eq(1),
        ]
        if config.both:
            m.d.comb += [
                buffers.address_second.eq(dma.read_sctp),
                buffers.free_second.eq(dma.release_sctp),
            ]

    def _deliver(self, m):
        """Adds Delivery, which writes completions once the bus has answered for all octets."""
        config, commit = self.config, m.submodules.commit
        m.submodules.delivery = delivery = Delivery(
            config, ordered=config.mpa, unordered=config.sctp)
        records = commit.records
        if config.mpa:
            m.submodules.records = needed = RecordFilter(config, unordered=config.sctp)
            wiring.connect(m, commit.records, needed.i)
            records = needed.o
            m.d.comb += [
                needed.clear.valid.eq(commit.cleared.valid),
                needed.clear.payload.eq(commit.cleared.payload),
            ]
        wiring.connect(m, records, delivery.records)
        wiring.connect(m, m.submodules.dma.done, delivery.done)
        wiring.connect(m, delivery.failed, commit.bus_errors)
        wiring.connect(m, delivery.bus, wiring.flipped(self.completions))
        m.d.comb += [
            commit.record_room.eq(delivery.half),
            delivery.clear.valid.eq(commit.cleared.valid),
            delivery.clear.payload.eq(commit.cleared.payload),
        ]

    def _report_sctp(self, m):
        """Adds the order of SCTP's messages, between the due records and the queues."""
        config = self.config
        commit, admission = m.submodules.commit, m.submodules.admission
        delivery, untagged = m.submodules.delivery, m.submodules.untagged
        m.submodules.reports = reports = Reports(
            config, admission.done.signature.flip(), ordered=config.mpa)
        wiring.connect(m, delivery.due, reports.due)
        wiring.connect(m, reports.done, admission.done)
        wiring.connect(m, admission.records, reports.ordered)
        wiring.connect(m, admission.events, reports.events)
        wiring.connect(m, reports.entries, delivery.entries)
        wiring.connect(m, reports.advanced, untagged.advanced)
        wiring.connect(m, reports.disordered, commit.disordered)
        # What the owner of SCTP has no room for, is not taken.
        m.d.comb += [
            m.submodules.receiver.go.eq(admission.go & delivery.owner_room),
            delivery.taken.eq(admission.o.valid & admission.o.payload.report),
            reports.clear.valid.eq(commit.cleared.valid),
            reports.clear.payload.eq(commit.cleared.payload),
        ]

    def _control(self, m):
        """Adds the registers: they write the tables, and read states, events and counters."""
        receive, stags, completing = self.config.receive, m.submodules.stags, self._completing(m)
        m.submodules.control = control = Control(self.config)
        wiring.connect(m, wiring.flipped(self.control), control.bus)
        wiring.connect(m, control.streams, m.submodules.streams.write)
        m.d.comb += m.submodules.streams.hide.eq(control.resetting)
        wiring.connect(m, control.stags, stags.write)
        wiring.connect(m, control.pages, m.submodules.pages.write)
        wiring.connect(m, control.queues, completing.host)
        m.d.comb += [
            stags.index[receive].eq(control.stag_index),
            control.stag_entry.eq(stags.entry[receive]),
            control.completed.eq(completing.delivered),
            self.irq.eq(control.irq),
        ]

    def _completing(self, m):
        """Returns the block that writes completions."""
        return m.submodules.delivery if self.config.receive else m.submodules.queues

    def _control_receiving(self, m):
        """Connects the registers with the blocks for received segments."""
        control, untagged = m.submodules.control, m.submodules.untagged
        commit, delivery = m.submodules.commit, m.submodules.delivery
        wiring.connect(m, control.queue, untagged.state)
        if not self.config.responder:
            wiring.connect(m, control.post, untagged.post)
        wiring.connect(m, control.clear, commit.clear)
        wiring.connect(m, commit.events, control.events)
        m.d.comb += [
            *([] if self.config.responder else [commit.hold.eq(control.hold)]),
            control.held.eq(commit.held),
            control.cleared.eq(commit.cleared.valid),
            control.retired.eq(delivery.retired),
            control.issued.eq(commit.issued),
            control.record.came.eq(delivery.records.valid),
            control.record.passed.eq(
                (m.submodules.reports if self.config.sctp else delivery).passed),
            control.tally.eq(commit.tally),
            control.exception_dropped.eq(m.submodules.exceptions.dropped),
        ]

    def _control_sctp(self, m):
        """Connects the registers with the blocks for items of SCTP."""
        control, admission, reports = (
            m.submodules.control, m.submodules.admission, m.submodules.reports)
        host = control.sctp
        wiring.connect(m, host.associations, m.submodules.receiver.write)
        wiring.connect(m, host.command, admission.command)
        wiring.connect(m, admission.answer, host.answer)
        m.d.comb += [
            reports.state.valid.eq(control.queue.valid),
            reports.state.payload.eq(control.queue.payload),
            admission.look.eq(host.look),
            host.next.eq(admission.next),
            host.waiting.eq(admission.waiting),
            host.tally.eq(m.submodules.commit.item_tally),
        ]

    def _send(self, m):
        """Adds the Data Source, which shares the tables with the checks of received segments."""
        control, stags, pages = m.submodules.control, m.submodules.stags, m.submodules.pages
        streams = m.submodules.streams
        m.submodules.source = source = DataSource(self.config)
        wiring.connect(m, source.bus, wiring.flipped(self.reads))
        self._frame(m, source)
        wiring.connect(m, source.completions, self._completing(m).sent)
        for name in ("set", "opens", "limits", "ring", "bind", "doorbell", "mulpdus", "msns",
                     "released", "repeat"):
            wiring.connect(m, getattr(control.send, name), getattr(source, name))
        if self.config.reader:
            self._read(m, source)
        m.d.comb += [
            streams.index[-1].eq(source.stream),
            source.pd.eq(streams.entry[-1].pd),
            source.enable.eq(streams.entry[-1].enable),
            stags.index[-1].eq(source.index),
            source.entry.eq(stags.entry[-1]),
            pages.index[-1].eq(source.slot),
            source.page.eq(pages.entry[-1]),
            source.look.eq(control.send.look),
            control.send.waits.eq(source.waits),
            control.send.state.eq(source.state),
            control.send.consumer.eq(source.consumer),
            control.send.repeating.eq(source.repeating),
            control.send.dropped.eq(source.dropped),
            control.send.sent.eq(source.handed),
            source.fence.eq(control.send.fence),
            control.send.fencing.eq(source.fencing),
        ]

    def _read(self, m, source):
        """Adds the bounds of RDMA Reads: ORD, and the check of responses."""
        delivery, cleared = m.submodules.delivery, m.submodules.commit.cleared
        streams = m.submodules.control.streams
        m.submodules.reads = reads = DeliveredReads(self.config.streams)
        if not self.config.responder:
            wiring.connect(m, delivery.messages, reads.i)
        wiring.connect(m, reads.o, delivery.completions)
        wiring.connect(m, reads.freed, source.freed)
        wiring.connect(m, m.submodules.control.send.ords, source.ords)
        wiring.connect(m, source.expected, m.submodules.responses.expected)
        m.d.comb += [
            source.cleared.valid.eq(cleared.valid),
            source.cleared.payload.eq(cleared.payload),
            source.stopped.valid.eq(streams.valid & ~streams.payload.entry.enable),
            source.stopped.payload.eq(streams.payload.index),
        ]

    def _frame(self, m, source):
        """Adds the ways of segments that leave, over MPA and over SCTP."""
        ports = []
        if self.config.mpa:
            m.submodules.framer = framer = Framer(self.config.width)
            wiring.connect(m, source.heads, framer.heads)
            wiring.connect(m, source.o, framer.i)
            ports.append((0, framer.o, self.fpdus))
        if self.config.sctp:
            send = m.submodules.control.send
            m.submodules.chunks = chunks = ChunkFramer(self.config.width, self.config.associations)
            wiring.connect(m, source.chunks, chunks.heads)
            wiring.connect(m, source.bodies, chunks.i)
            wiring.connect(m, send.word, chunks.word)
            wiring.connect(m, send.allowed, source.allowed)
            # Both take the beginning of an association in the same cycle.
            start, path = source.begun.payload, send.path.payload
            m.d.comb += [
                chunks.set.payload.eq(path.setting),
                start.association.eq(path.setting.association),
                start.tsn.eq(path.setting.tsn),
                start.first.eq(path.first),
                start.count.eq(path.count),
                chunks.set.valid.eq(send.path.valid & source.begun.ready),
                source.begun.valid.eq(send.path.valid & chunks.set.ready),
                send.path.ready.eq(source.begun.ready & chunks.set.ready),
            ]
            ports.append((1, chunks.o, self.sent_frames))
        for number, inside, port in ports:
            wiring.connect(m, inside, wiring.flipped(port))
            m.d.sync += source.handed[number].eq(port.valid & port.ready & port.payload.beat.last)

    def _respond(self, m):
        """Adds the answers to Read Requests: from delivered messages to buffers for later ones."""
        config, control = self.config, m.submodules.control
        delivery, source = m.submodules.delivery, m.submodules.source
        m.submodules.requests = requests = RequestFilter(config.streams)
        m.submodules.poster = poster = SlotPoster(config)
        m.submodules.posts = posts = PostsJoin(config)
        wiring.connect(m, delivery.messages, requests.i)
        wiring.connect(
            m, requests.o, m.submodules.reads.i if config.reader else delivery.completions)
        wiring.connect(m, requests.requests, source.requests)
        wiring.connect(m, source.answered, poster.i)
        wiring.connect(m, poster.o, posts.slots)
        wiring.connect(m, control.post, posts.host)
        wiring.connect(m, posts.o, m.submodules.untagged.post)
        # The three blocks take the slots in the same cycle.
        slots = control.send.slots
        m.d.comb += [
            slots.ready.eq(requests.set.ready & source.slots.ready),
            requests.set.valid.eq(slots.valid & source.slots.ready),
            source.slots.valid.eq(slots.valid & requests.set.ready),
            poster.set.valid.eq(slots.valid & slots.ready),
            *(port.payload.eq(slots.payload) for port in (requests.set, source.slots, poster.set)),
            control.send.next.eq(source.next),
            control.send.asked.eq(source.asked),
            posts.hold.eq(control.hold),
            m.submodules.commit.hold.eq(control.hold & posts.settled),
        ]

    def _moves(self, m):
        """Reports to the registers whether nothing waits on its way to the completion queues."""
        moves = m.submodules.delivery.moves
        if self.config.reader:
            # The filters are one after the other: Delivery sees only one end of each.
            moves = moves & m.submodules.reads.i.ready
        m.d.comb += m.submodules.control.record.moves.eq(moves)

    def _idle(self, m):
        """Reports to the registers whether any data is still under way."""
        config, control = self.config, m.submodules.control
        # ``now`` sees new input in the same cycle; the other blocks are placed far apart, so their
        # status is registered first.
        now, moving = C(0), [self._completing(m).busy]
        if config.receive:
            now, moving = self._receiving(m)
        if config.transmit:
            now = now | m.submodules.source.busy
        if config.reader:
            now = now | m.submodules.reads.busy
        if config.responder:
            now = (now | m.submodules.requests.busy | m.submodules.poster.busy
                   | m.submodules.posts.busy)
        busy = Signal()
        m.d.sync += busy.eq(now | delayed(m, 1, Cat(moving), "moving").any())
        # Longer than anything is on its way between two blocks.
        m.submodules.quiet = quiet = Quiet(15)
        m.d.comb += [
            quiet.busy.eq(busy),
            control.idle.eq(quiet.o),
        ]

    def _receiving(self, m):
        """Returns whether something is being received, and the other blocks where it may be."""
        config, delivery = self.config, m.submodules.delivery
        markers, cut, dma = m.submodules.markers, m.submodules.cut, m.submodules.dma
        now = C(0)
        if config.mpa:
            now = (m.submodules.intake.busy | m.submodules.walker.busy
                   | ~m.submodules.credits.idle)
        if config.sctp:
            now = (now | self.frames.valid | m.submodules.receiver.busy
                   | m.submodules.admission.busy | m.submodules.reports.busy)
        return now | m.submodules.commit.busy, [
            markers.o.valid, ~markers.i.ready, cut.busy, ~dma.idle,
            m.submodules.records.busy if config.mpa else C(0), delivery.busy,
            delivery.failed.valid, m.submodules.exceptions.o.valid,
        ]
