"""Assembles the RNIC: the receive datapath for DDP segments over MPA, over SCTP, or both.

Over MPA::

    s_axis ─ Intake ─ Walker ┬ Store ──────────► packet buffer ──────────┐
                             ├ Slice ─► Crc32c ─► Judge ─ Verdict ┐      ▼
                             └ Segment ───────────────────── Commit ► PlacementDma ─┬ m_axi
                                                             ▲  │ MarkerCut, PageCut └ m_axis_exc
                                  TaggedCheck, UntaggedCheck ┘  └► Delivery ─ m_axi_cq

Over SCTP, with ``RnicConfig.sctp``. From Commit on, both share the blocks above::

    s_axis_eth ─ SctpReceiver ┬ Store ─► packet buffer ─► PlacementDma
                              ├ Slice ─► Crc32c ─► SctpReceiver
                              └ items ─► Admission ─► Commit ... Delivery ─► Reports ─► m_axi_cq
                                          (Session, Order) ◄──── in turn ─────┘
"""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .bus.axi import AxiLite, AxiWrite
from .control import Control, StreamEntry
from .ddp.commit import Commit
from .ddp.delivery import Delivery
from .ddp.header import HeaderParser
from .ddp.precedence import Overtaking, key_of
from .ddp.segment import IN_FLIGHT
from .ddp.stag import StagTable
from .ddp.tagged import TaggedCheck
from .ddp.untagged import UntaggedCheck
from .dma.buffer import PacketBuffer
from .dma.exceptions import ExceptionQueue
from .dma.pages import PageCut, PageEntry
from .dma.placement import ExceptionBeat, PlacementDma
from .lib.crc32c import Crc32c
from .lib.stream import Beat, delayed, nibbles
from .lib.table import Table
from .mpa.intake import Intake, LlpBeat
from .mpa.markers import MarkerCut
from .mpa.verdict import Judge
from .mpa.walker import MpaWalker
from .sctp.admission import Admission
from .sctp.receiver import SctpReceiver
from .sctp.reports import Reports
from .spec import regs
from .spec.config import RnicConfig

__all__ = ["Rnic"]


class Rnic(wiring.Component):
    """Receives packets, checks their DDP segments, places these and reports the messages.

    ``packets`` brings whole FPDUs. A segment that passes every check of RFC 5041 section 7.1 is
    written to host memory, after its digest was found good. Once the bus has responded for every
    octet of a message, the message is delivered: a completion is written to the completion ring.
    The first error on a stream is kept as an event, and its FPDU is sent out on ``exceptions``;
    every later segment of the stream is dropped and counted.

    Latency: measured by ``rnic bench``. Throughput: a segment takes as many cycles as it has beats
    in the packet or on the bus, whichever is more. Reset: all streams are disabled and nothing is
    in flight; table entries stay. Errors: reported as events, in the registers.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    frames : In(stream.Signature(Beat(width)))
        With SCTP only: Ethernet frames without FCS.
    packets : In(stream.Signature(LlpBeat(width)))
        With MPA only: packets of whole FPDUs.
    bus : Out(AxiWrite(width))
    completions : Out(AxiWrite(width))
    control : In(AxiLite(12))
    exceptions : Out(stream.Signature(ExceptionBeat(width)))
    irq : Out(1)
        High while an error event or completions wait that are not masked.
    """

    def __init__(self, config):
        if not isinstance(config, RnicConfig):
            raise TypeError(f"Rnic configuration must be an RnicConfig, not {config!r}")
        self.config = config
        super().__init__({
            **({"packets": In(stream.Signature(LlpBeat(config.width)))} if config.mpa else {}),
            "bus": Out(AxiWrite(config.width)),
            "completions": Out(AxiWrite(config.width)),
            "control": In(AxiLite(regs.ADDRESS_BITS)),
            "exceptions": Out(stream.Signature(ExceptionBeat(config.width))),
            "irq": Out(1),
            **({"frames": In(stream.Signature(Beat(config.width)))} if config.sctp else {}),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        # MPA's segments come in the order of the sender, SCTP's in any order.
        ordered, unordered = config.mpa, config.sctp
        if config.mpa:
            self._walks(m)
        m.submodules.commit = commit = Commit(config, ordered=ordered, unordered=unordered)
        m.submodules.streams = streams = Table(
            StreamEntry(), config.streams, live="enable", index=config.stream_bits + 1,
            lookups=1 + config.mpa)
        m.submodules.delivery = delivery = Delivery(
            config, ordered=ordered, unordered=unordered)
        m.submodules.exceptions = exceptions = ExceptionQueue(config)
        m.submodules.control = control = Control(config)

        receiving = self._mpa(m, commit, streams) if config.mpa else C(0)
        untagged = self._check(m, commit, streams, control)
        moving = self._place(m, commit, delivery, exceptions, control)
        if config.sctp:
            receiving = receiving | self._sctp(m, commit, untagged, delivery, control)

        # Out: completions, errors and exceptions.
        recording = self._record(m, commit, delivery)
        wiring.connect(m, delivery.failed, commit.bus_errors)
        wiring.connect(m, delivery.bus, wiring.flipped(self.completions))
        wiring.connect(m, exceptions.o, wiring.flipped(self.exceptions))
        wiring.connect(m, commit.events, control.events)
        wiring.connect(m, control.clear, commit.clear)
        wiring.connect(m, wiring.flipped(self.control), control.bus)
        wiring.connect(m, control.streams, streams.write)
        m.d.comb += [
            commit.record_room.eq(delivery.half),
            delivery.clear.valid.eq(commit.clear.valid & commit.clear.ready),
            delivery.clear.payload.eq(commit.clear.payload),
            *(getattr(delivery, name).eq(control.ring[name])
              for name in ("enable", "base", "size", "consumer")),
            control.producer.eq(delivery.producer),
            control.ring_error.eq(delivery.failed_ring),
            control.retired.eq(delivery.retired),
            control.issued.eq(commit.issued),
            control.tally.eq(commit.tally),
            control.completed.eq(delivery.delivered),
            control.exception_dropped.eq(exceptions.dropped),
            self.irq.eq(control.irq),
        ]

        # The datapath is idle once every block has been quiet for 15 cycles: longer than anything
        # is on its way between two blocks. ``receiving`` and ``commit.busy`` see new input in the
        # same cycle; the other blocks are placed far apart, so their status is registered first.
        busy, quiet = Signal(), Signal(4)
        m.d.sync += busy.eq(receiving | commit.busy | delayed(m, 1, Cat(
            moving, recording, delivery.busy, delivery.failed.valid, exceptions.o.valid,
        ), "moving").any())
        # A register write of the host to the ring may set delivery going again.
        given = Cat(control.ring.enable, control.ring.consumer)
        known = delayed(m, 1, given, "given")
        changed = Signal()
        m.d.sync += changed.eq(~delayed(m, 1, nibbles(known, given), "same").all())
        with m.If(busy | changed):
            m.d.sync += quiet.eq(0)
        with m.Elif(~quiet.all()):
            m.d.sync += quiet.eq(quiet + 1)
        m.d.comb += control.idle.eq(quiet.all())
        return m

    def _walks(self, m):
        """Adds MPA's walker, packet buffer and digest."""
        config = self.config
        m.submodules.intake = Intake(config)
        m.submodules.walker = MpaWalker(config)
        m.submodules.buffer = PacketBuffer(config)
        m.submodules.crc = crc = Crc32c(config.width, granule=4)
        m.submodules.judge = Judge(config, latency=crc.latency)

    def _mpa(self, m, commit, streams):
        """Connects MPA's blocks up to Commit; returns whether they hold anything."""
        intake, walker, buffer, crc, judge = (
            getattr(m.submodules, name) for name in ("intake", "walker", "buffer", "crc", "judge"))
        wiring.connect(m, wiring.flipped(self.packets), intake.i)
        wiring.connect(m, intake.o, walker.i)
        wiring.connect(m, walker.store, buffer.store)
        wiring.connect(m, walker.slices, crc.i)
        wiring.connect(m, walker.endings, judge.endings)
        wiring.connect(m, crc.o, judge.checksums)
        wiring.connect(m, walker.segments, commit.segments)
        wiring.connect(m, judge.o, commit.verdicts)
        m.d.comb += [
            streams.index[0].eq(intake.stream),
            intake.settings.eq(streams.entry[0].llp),
            buffer.next.eq(walker.beats),
        ]
        # A segment may begin only while Commit is sure to have room for it, a beat only while the
        # buffer has room. ``credits`` lags: segments that began in the last few cycles have not
        # been subtracted yet, hence the margin of 5.
        credits = Signal(range(IN_FLIGHT + 1), init=IN_FLIGHT)
        begun = delayed(m, 1, walker.begun, "begun")
        with m.If(begun & ~commit.done):
            m.d.sync += credits.eq(credits - 1)
        with m.If(~begun & commit.done):
            m.d.sync += credits.eq(credits + 1)
        enough = Signal(init=1)
        m.d.sync += enough.eq(credits > 5)
        m.d.comb += walker.go.eq(enough & buffer.space)
        return intake.busy | walker.busy | (credits != IN_FLIGHT)

    def _check(self, m, commit, streams, control):
        """Adds the header parser and the checks, which run in parallel with Commit."""
        config = self.config
        m.submodules.parser = parser = HeaderParser()
        m.submodules.stags = stags = StagTable(config.stags, lookups=2)
        m.submodules.tagged = tagged = TaggedCheck(config.stags)
        m.submodules.untagged = untagged = UntaggedCheck(config, unordered=config.sctp)
        wiring.connect(m, control.stags, stags.write)
        wiring.connect(m, control.queue, untagged.state)
        wiring.connect(m, control.post, untagged.post)
        # The stream is looked up while its header is parsed.
        stream_1, stream_2 = Signal(16), Signal(16)
        m.d.sync += [stream_1.eq(commit.head.payload.stream), stream_2.eq(stream_1)]
        rights = streams.entry[-1]
        m.d.comb += [
            streams.index[-1].eq(commit.head.payload.stream),
            parser.i.valid.eq(commit.head.valid),
            parser.i.payload.eq(commit.head.payload.header),
            tagged.i.valid.eq(parser.o.valid),
            tagged.i.payload.header.eq(parser.o.payload),
            tagged.i.payload.rights.stream.eq(stream_2),
            tagged.i.payload.rights.pd.eq(rights.pd),
            tagged.i.payload.rights.enable.eq(rights.enable),
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
            commit.hold.eq(control.hold),
            control.held.eq(commit.held),
            stags.index[1].eq(control.stag_index),
            control.stag_entry.eq(stags.entry[1]),
        ]
        return untagged

    def _record(self, m, commit, delivery):
        """Connects Commit's records to Delivery; returns whether a record is on its way.

        Over MPA, Delivery gets the records of three kinds of segments only: the last one of a
        message, one that overtakes another message, and the first one of a stream that was cleared.
        """
        if not self.config.mpa:
            wiring.connect(m, commit.records, delivery.records)
            return C(0)
        m.submodules.overtaking = overtaking = Overtaking(self.config.streams)
        record, clear = commit.records.payload, commit.clear
        of_mpa = ~record.sctp if self.config.sctp else C(1)
        clears = delayed(m, 1, clear.valid & clear.ready, "clears")
        came = delayed(m, overtaking.LATENCY + 1, record, "record")
        found = delayed(m, 1, overtaking.o, "found")
        valid = Signal(overtaking.LATENCY + 1)
        m.d.sync += valid.eq(Cat(commit.records.valid, valid))
        came_sctp = came.sctp if self.config.sctp else C(0)
        # A cleared stream has had no record for some cycles, so the two inputs never collide.
        m.d.comb += [
            overtaking.i.valid.eq((commit.records.valid & of_mpa) | clears),
            overtaking.i.payload.stream.eq(Mux(
                clears, delayed(m, 1, clear.payload, "cleared"), record.stream)),
            overtaking.i.payload.key.eq(key_of(record)),
            overtaking.i.payload.last.eq(record.complete),
            overtaking.i.payload.to.eq(record.cookie),
            overtaking.i.payload.length.eq(record.length),
            overtaking.i.payload.clear.eq(clears),
            delivery.records.payload.eq(came),
            delivery.records.payload.found.eq(found),
            delivery.records.valid.eq(valid[-1] & (
                came.complete | found.over | found.first | came_sctp)),
        ]
        with m.If(came.tagged & ~came_sctp):
            m.d.comb += [
                delivery.records.payload.cookie.eq(overtaking.span.begin),
                delivery.records.payload.length.eq(overtaking.span.length),
            ]
        return valid.any()

    def _place(self, m, commit, delivery, exceptions, control):
        """Connects Commit's moves to the bus; returns whether one of them is on its way."""
        config = self.config
        sources = config.mpa + config.sctp  # a packet buffer each
        m.submodules.markers = markers = MarkerCut(
            config, marked=config.mpa, sources=sources, unordered=config.sctp)
        m.submodules.cut = cut = PageCut(config, sources=sources)
        m.submodules.pages = pages = Table(PageEntry(), config.pages, live="valid")
        m.submodules.dma = dma = PlacementDma(config, sources=sources)
        buffers = [m.submodules.buffer] if config.mpa else []
        if config.sctp:
            m.submodules.sctp_buffer = PacketBuffer(config)
            buffers.append(m.submodules.sctp_buffer)
        wiring.connect(m, commit.moves, markers.i)
        wiring.connect(m, markers.o, cut.i)
        wiring.connect(m, cut.o, dma.i)
        wiring.connect(m, dma.bus, wiring.flipped(self.bus))
        wiring.connect(m, dma.done, delivery.done)
        wiring.connect(m, control.pages, pages.write)
        m.d.comb += [
            markers.go.eq(cut.ready),
            cut.go.eq(dma.ready),
            pages.index[0].eq(cut.index),
            cut.page.address.eq(pages.entry[0].address),
            *(buffer.address.eq(dma.read_address) for buffer in buffers),
            *(buffer.free.payload.eq(dma.release.payload) for buffer in buffers),
            exceptions.i.valid.eq(dma.exceptions.valid),
            exceptions.i.payload.eq(dma.exceptions.payload),
            dma.exceptions.ready.eq(1),
        ]
        if config.both:
            buffer, sctp_buffer = buffers
            m.d.comb += [
                dma.read_data.eq(Mux(
                    delayed(m, 3, dma.read_sctp, "read_sctp"), sctp_buffer.data, buffer.data)),
                sctp_buffer.free.valid.eq(dma.release.valid & dma.release_sctp),
                buffer.free.valid.eq(dma.release.valid & ~dma.release_sctp),
            ]
        else:
            m.d.comb += [
                dma.read_data.eq(buffers[0].data),
                buffers[0].free.valid.eq(dma.release.valid),
            ]
        return Cat(markers.o.valid, ~markers.i.ready, cut.busy, ~dma.idle)


    def _sctp(self, m, commit, untagged, delivery, control):
        """Adds SCTP's blocks before Commit and after Delivery; returns whether they are busy."""
        config, buffer, host = self.config, m.submodules.sctp_buffer, control.sctp
        m.submodules.receiver = receiver = SctpReceiver(config)
        m.submodules.sctp_crc = crc = Crc32c(config.width, granule=4)
        m.submodules.admission = admission = Admission(config)
        m.submodules.reports = reports = Reports(
            config, admission.done.signature.flip(), ordered=config.mpa)
        wiring.connect(m, wiring.flipped(self.frames), receiver.i)
        wiring.connect(m, receiver.store, buffer.store)
        wiring.connect(m, receiver.slices, crc.i)
        wiring.connect(m, crc.o, receiver.checksums)
        wiring.connect(m, receiver.o, admission.items)
        wiring.connect(m, admission.o, commit.items)
        wiring.connect(m, delivery.due, reports.due)
        wiring.connect(m, reports.done, admission.done)
        wiring.connect(m, admission.records, reports.ordered)
        wiring.connect(m, admission.events, reports.events)
        wiring.connect(m, reports.entries, delivery.entries)
        wiring.connect(m, reports.advanced, untagged.advanced)
        wiring.connect(m, reports.disordered, commit.disordered)
        wiring.connect(m, host.associations, receiver.write)
        wiring.connect(m, host.command, admission.command)
        wiring.connect(m, admission.answer, host.answer)
        m.d.comb += [
            buffer.next.eq(receiver.beats),
            receiver.space.eq(buffer.space),
            receiver.go.eq(admission.go),
            admission.left.eq(commit.item_done),
            reports.clear.valid.eq(delivery.clear.valid),
            reports.clear.payload.eq(delivery.clear.payload),
            reports.state.valid.eq(control.queue.valid),
            reports.state.payload.eq(control.queue.payload),
            host.waiting.eq(admission.waiting),
            admission.look.eq(host.look),
            host.next.eq(admission.next),
            host.tally.eq(commit.item_tally),
        ]
        return self.frames.valid | receiver.busy | admission.busy | reports.busy
