"""The top: an RNIC's receive datapath for tagged DDP segments over MPA.

::

    s_axis ─ Intake ─ Walker ┬ Store ─────► packet buffer ──────────────► PlacementDma ┬─ m_axi
                             ├ Slice ─► Crc32c ─► Judge ─ Verdict ┐            ▲       └─ m_axis_exc
                             └ Segment ┬──────────────────────────┤            │
                                       └ HeaderParser ─ TaggedCheck ┴ Commit ─ MarkerCut
"""

from amaranth import *
from amaranth.back import verilog
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .bus.axi import AxiLite, AxiWrite
from .crc32c import Crc32c
from .csr import Counters, Registers
from .ddp.commit import IN_FLIGHT, Commit
from .ddp.header import HeaderParser
from .ddp.stag import StagTable
from .ddp.tagged import TaggedCheck
from .dma.placement import ExceptionBeat, PlacementDma
from .llp.buffer import PacketBuffer
from .llp.intake import Intake, LlpBeat, LlpSettings
from .llp.markers import MarkerCut
from .llp.mpa import MpaWalker
from .llp.segment import HEADER_WORDS
from .llp.verdict import Judge
from .spec import regs
from .spec.config import RnicConfig
from .stream import Queue, any_of
from .table import Table

__all__ = ["FlatRnic", "Rnic", "StreamEntry", "to_verilog"]

class StreamEntry(data.StructLayout):
    """Settings of a DDP Stream: ``enable`` (1), ``llp``, LlpSettings, and ``pd`` (16)."""

    def __init__(self):
        super().__init__({"enable": 1, "llp": LlpSettings(), "pd": 16})


class Rnic(wiring.Component):
    """The receive datapath.

    Packets of whole FPDUs come in; tagged segments that pass every check of RFC 5041 section 7.1
    are written to host memory after their digest was found good; untagged segments leave on
    ``exceptions``, as the FPDUs they came in; of each stream the first error is kept as an
    event, and what follows on the stream is dropped and counted.

    Latency: see ``rnic bench``. Throughput: a segment takes as many cycles as it has beats, in
    the packet or on the bus, whichever is more. Reset: streams disabled, nothing in flight;
    Steering Tag entries stay. Errors: events, in the registers.

    Parameters
    ----------
    config : RnicConfig

    Members
    -------
    packets : In(stream.Signature(LlpBeat(width)))
    bus : Out(AxiWrite(width))
    control : In(AxiLite(12))
    exceptions : Out(stream.Signature({beat: Beat(width), stream: 16, sequence: 32}))
    irq : Out(1)
        An error event waits.
    """

    def __init__(self, config):
        if not isinstance(config, RnicConfig):
            raise TypeError(f"Rnic configuration must be an RnicConfig, not {config!r}")
        self.config = config
        super().__init__(
            {
                "packets": In(stream.Signature(LlpBeat(config.width))),
                "bus": Out(AxiWrite(config.width)),
                "control": In(AxiLite(regs.ADDRESS_BITS)),
                "exceptions": Out(stream.Signature(ExceptionBeat(config.width))),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.intake = intake = Intake(config.width)
        m.submodules.walker = walker = MpaWalker(config)
        m.submodules.buffer = buffer = PacketBuffer(config)
        m.submodules.crc = crc = Crc32c(config.width, granule=4)
        # A segment's result comes 13 cycles after the slice in which it begins; its verdict, which
        # the next slice may bring, must not come before.
        m.submodules.judge = judge = Judge(
            config, latency=crc.latency, wait=max(0, 13 - (1 + crc.latency + 2))
        )
        m.submodules.parser = parser = HeaderParser()
        m.submodules.stags = stags = StagTable(config.stags)
        m.submodules.check = check = TaggedCheck(config.stags)
        m.submodules.commit = commit = Commit(config)
        m.submodules.markers = markers = MarkerCut(config)
        m.submodules.dma = dma = PlacementDma(config)
        m.submodules.failed = failed = Queue(16, depth=16)
        m.submodules.streams = streams = Table(
            StreamEntry(), config.streams, live="enable", index=16, lookups=2
        )

        # In: the walker, the packet buffer and the digest.
        wiring.connect(m, wiring.flipped(self.packets), intake.i)
        wiring.connect(m, intake.o, walker.i)
        wiring.connect(m, walker.store, buffer.store)
        wiring.connect(m, walker.slices, crc.i)
        wiring.connect(m, walker.endings, judge.endings)
        wiring.connect(m, crc.o, judge.checksums)
        m.d.comb += [
            streams.index[0].eq(intake.stream),
            intake.settings.eq(streams.entry[0].llp),
            buffer.next.eq(walker.beats),
        ]

        # Beside it: the header and its checks. The segment itself waits.
        stream_1, stream_2 = Signal(16), Signal(16)
        m.d.sync += [stream_1.eq(walker.segments.payload.stream), stream_2.eq(stream_1)]
        m.d.comb += [
            parser.i.valid.eq(walker.segments.valid),
            parser.i.payload.eq(walker.segments.payload.header),
            streams.index[1].eq(walker.segments.payload.stream),
            check.i.valid.eq(parser.o.valid),
            check.i.payload.header.eq(parser.o.payload),
            check.i.payload.rights.stream.eq(stream_2),
            check.i.payload.rights.pd.eq(streams.entry[1].pd),
            check.i.payload.rights.enable.eq(streams.entry[1].enable),
            stags.index[0].eq(check.index),
            check.entry.eq(stags.entry[0]),
        ]

        # Room: a segment may begin while its place in every queue is sure, a beat while the
        # buffer has one.
        credits = Signal(range(IN_FLIGHT + 1), init=IN_FLIGHT)
        with m.If(walker.begun & ~commit.done):
            m.d.sync += credits.eq(credits - 1)
        with m.If(~walker.begun & commit.done):
            m.d.sync += credits.eq(credits + 1)
        m.d.sync += walker.go.eq((credits > 3) & buffer.space)

        # Out: commit, and the engine that moves the octets.
        wiring.connect(m, walker.segments, commit.segments)
        wiring.connect(m, check.o, commit.results)
        wiring.connect(m, judge.o, commit.verdicts)
        wiring.connect(m, commit.moves, markers.i)
        wiring.connect(m, markers.o, dma.i)
        wiring.connect(m, dma.bus, wiring.flipped(self.bus))
        wiring.connect(m, dma.exceptions, wiring.flipped(self.exceptions))
        wiring.connect(m, failed.o, commit.bus_errors)
        m.d.comb += [
            buffer.address.eq(dma.read_address),
            dma.read_data.eq(buffer.data),
            buffer.free.valid.eq(dma.release.valid),
            buffer.free.payload.eq(dma.release.payload),
            markers.go.eq(dma.ready),
            failed.i.valid.eq(dma.done.valid & dma.done.payload.error),
            failed.i.payload.eq(dma.done.payload.stream),
            dma.done.ready.eq(failed.i.ready),
        ]

        # Idle is what has been quiet for so long that nothing is between two blocks.
        busy, quiet = Signal(), Signal(3)
        m.d.sync += busy.eq(
            intake.busy
            | walker.busy
            | (credits != IN_FLIGHT)
            | commit.busy
            | markers.o.valid
            | ~markers.i.ready
            | ~dma.idle
            | failed.o.valid
        )
        with m.If(busy):
            m.d.sync += quiet.eq(0)
        with m.Elif(~quiet.all()):
            m.d.sync += quiet.eq(quiet + 1)
        self._connect_registers(m, commit, stags, streams, idle=quiet.all())
        return m

    def _connect_registers(self, m, commit, stags, streams, *, idle):
        """What software sees: the registers, wired to the tables, the events and the counters."""
        config = self.config
        m.submodules.registers = registers = Registers()
        m.submodules.counters = counters = Counters()
        wiring.connect(m, wiring.flipped(self.control), registers.bus)
        entry = stags.write.payload.entry
        setting = streams.write.payload
        event = commit.events.payload
        index_bits = config.streams.bit_length() - 1
        stream_commit = registers.stream_commit & ~registers.stream_index[index_bits:].any()
        with m.If(stream_commit | commit.clear.ready):
            m.d.sync += commit.clear.valid.eq(stream_commit)
        m.d.sync += self.irq.eq(commit.events.valid)
        m.d.comb += [
            registers.id.eq(regs.ID),
            registers.version.eq(regs.VERSION),
            registers.cap_width.eq(config.width),
            registers.cap_stags.eq(config.stags),
            registers.cap_streams.eq(config.streams),
            registers.cap_buffer.eq(config.buffer_octets),
            registers.status.eq(Cat(commit.events.valid, idle)),
            stags.write.valid.eq(registers.stag_commit),
            stags.write.payload.index.eq(registers.stag_index),
            entry.tag.eq(registers.stag_index >> (config.stags.bit_length() - 1)),
            Cat(
                entry.key, entry.valid, entry.remote_write, entry.remote_read, entry.bound
            ).eq(registers.stag_flags),
            entry.owner.eq(registers.stag_owner),
            entry.to.eq(Cat(registers.stag_to_lo, registers.stag_to_hi)),
            entry.length.eq(Cat(registers.stag_len_lo, registers.stag_len_hi)),
            entry.address.eq(Cat(registers.stag_addr_lo, registers.stag_addr_hi)),
            streams.write.valid.eq(stream_commit),
            setting.index.eq(registers.stream_index),
            Cat(setting.entry.enable, setting.entry.llp).eq(registers.stream_flags),
            setting.entry.pd.eq(registers.stream_pd),
            commit.clear.payload.eq(registers.stream_index),
            commit.events.ready.eq(registers.event_pop),
            registers.event_code.eq(Cat(event.code, event.type)),
            registers.event_stream.eq(event.stream),
            registers.event_length.eq(event.length),
            registers.event_sequence.eq(event.sequence),
            *(
                getattr(registers, f"event_header{k}").eq(event.header.word_select(k, 32))
                for k in range(HEADER_WORDS)
            ),
            counters.tally.eq(commit.tally),
            counters.hold.eq(registers.octets_read),
            registers.placed_segments.eq(counters.placed),
            registers.placed_octets_lo.eq(counters.octets_low),
            registers.placed_octets_hi.eq(counters.octets_high),
            registers.exceptions.eq(counters.exceptions),
            registers.errors.eq(counters.errors),
            registers.dropped.eq(counters.dropped),
            registers.digest_errors.eq(counters.digest),
        ]


class FlatRnic(wiring.Component):
    """:class:`Rnic` behind the flat AXI names that other flows know.

    ``s_axis_*`` takes packets: ``tid`` is the stream, ``tuser[31:0]`` the LLP sequence number of
    the packet's first octet (on its first beat), ``tuser[32]`` marks the packet damaged (on its
    last). ``tkeep`` is contiguous from the lowest octet, and full but on the last beat.
    ``m_axi_*`` writes host memory, ``s_axil_*`` reaches the registers, and ``m_axis_exc_*`` is
    the exception stream, ``tuser`` its FPDU's sequence number.

    Latency, Throughput, Reset, Errors: those of :class:`Rnic`.
    """

    def __init__(self, config):
        self.config = config
        width, octets = config.width, config.octets

        def channel(prefix, direction, signals):
            """A channel whose signals other than ready go in ``direction``."""
            return {
                **{
                    f"{prefix}{name}": direction(bits)
                    for name, bits in {**signals, "valid": 1}.items()
                },
                f"{prefix}ready": direction(1).flip(),
            }

        axis = {"tdata": width, "tkeep": octets, "tlast": 1, "tid": 16}
        super().__init__(
            {
                **{
                    name.replace("_valid", "_tvalid").replace("_ready", "_tready"): flow
                    for name, flow in {
                        **channel("s_axis_", In, {**axis, "tuser": 33}),
                        **channel("m_axis_exc_", Out, {**axis, "tuser": 32}),
                    }.items()
                },
                **channel(
                    "m_axi_aw",
                    Out,
                    {
                        "id": 1,
                        "addr": 64,
                        "len": 8,
                        "size": 3,
                        "burst": 2,
                        "lock": 1,
                        "cache": 4,
                        "prot": 3,
                    },
                ),
                **channel("m_axi_w", Out, {"data": width, "strb": octets, "last": 1}),
                **channel("m_axi_b", In, {"id": 1, "resp": 2}),
                **channel("s_axil_aw", In, {"addr": regs.ADDRESS_BITS, "prot": 3}),
                **channel("s_axil_w", In, {"data": 32, "strb": 4}),
                **channel("s_axil_b", Out, {"resp": 2}),
                **channel("s_axil_ar", In, {"addr": regs.ADDRESS_BITS, "prot": 3}),
                **channel("s_axil_r", Out, {"data": 32, "resp": 2}),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.rnic = rnic = Rnic(self.config)
        octets = self.config.octets
        packet, exception = rnic.packets.payload, rnic.exceptions.payload
        keep = self.s_axis_tkeep
        m.d.comb += [
            rnic.packets.valid.eq(self.s_axis_tvalid),
            self.s_axis_tready.eq(rnic.packets.ready),
            packet.beat.data.eq(self.s_axis_tdata),
            packet.beat.last.eq(self.s_axis_tlast),
            packet.beat.count.eq(
                any_of(
                    Mux(keep[k] & ~(keep[k + 1] if k + 1 < octets else 0), k + 1, 0)
                    for k in range(octets)
                )
            ),
            packet.beat.error.eq(self.s_axis_tuser[32]),
            packet.stream.eq(self.s_axis_tid),
            packet.sequence.eq(self.s_axis_tuser[:32]),
            self.m_axis_exc_tvalid.eq(rnic.exceptions.valid),
            rnic.exceptions.ready.eq(self.m_axis_exc_tready),
            self.m_axis_exc_tdata.eq(exception.beat.data),
            self.m_axis_exc_tlast.eq(exception.beat.last),
            self.m_axis_exc_tkeep.eq(Cat(k < exception.beat.count for k in range(octets))),
            self.m_axis_exc_tid.eq(exception.stream),
            self.m_axis_exc_tuser.eq(exception.sequence),
            # Full beats, incrementing, modifiable and bufferable, unprivileged, secure, data.
            self.m_axi_awsize.eq(octets.bit_length() - 1),
            self.m_axi_awburst.eq(1),
            self.m_axi_awcache.eq(3),
            self.irq.eq(rnic.irq),
        ]
        for prefix, channel, outward in (
            ("m_axi_aw", rnic.bus.aw, True),
            ("m_axi_w", rnic.bus.w, True),
            ("m_axi_b", rnic.bus.b, False),
            ("s_axil_aw", rnic.control.aw, False),
            ("s_axil_w", rnic.control.w, False),
            ("s_axil_b", rnic.control.b, True),
            ("s_axil_ar", rnic.control.ar, False),
            ("s_axil_r", rnic.control.r, True),
        ):
            fields = [
                (f"{prefix}{name}", channel.payload[name]) for name, _ in channel.payload.shape()
            ]
            pairs = [*fields, (f"{prefix}valid", channel.valid)]
            for name, inner in pairs:
                outer = getattr(self, name)
                m.d.comb += outer.eq(inner) if outward else inner.eq(outer)
            ready = getattr(self, f"{prefix}ready")
            m.d.comb += channel.ready.eq(ready) if outward else ready.eq(channel.ready)
        return m


def to_verilog(config=None):
    """The datapath as Verilog text, top module ``rnic``, with the ports of :class:`FlatRnic`."""
    return verilog.convert(FlatRnic(config or RnicConfig()), name="rnic", emit_src=False)
