"""Wraps the RNIC in flat AXI names, and writes it as Verilog."""

import re

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .bus.axi import AWCACHE
from .ddp.leaving import SentRecord
from .lib.stream import any_of
from .lib.verilog import convert
from .rnic import Rnic
from .spec import regs
from .spec.config import RnicConfig

__all__ = ["FlatRnic", "to_verilog"]


class FlatRnic(wiring.Component):
    """Wraps :class:`Rnic` in flat AXI names, for other tools' flows.

    ``m_axi_cq_*`` writes the completion queues, with ``awcache`` of :data:`.bus.axi.AWCACHE`.
    ``s_axil_*`` reaches the registers.

    A device that receives has more ports: ``s_axis_eth_*`` takes Ethernet frames without FCS, with
    SCTP only: ``tuser`` marks the frame damaged, on its last beat.
    ``s_axis_*`` takes packets, with MPA only: ``tid`` is the stream, ``tuser[31:0]`` the LLP
    sequence number of the packet's first octet (on its first beat), ``tuser[32]`` marks the packet
    damaged (on its last). ``tkeep`` is contiguous from the lowest octet, has one octet at least,
    and is full except on the last beat.
    ``m_axi_aw*``, ``m_axi_w*`` and ``m_axi_b*`` write host memory, with the same ``awcache``.
    ``m_axis_exc_*`` is the exception stream: ``tuser[31:0]`` is the FPDU's sequence number,
    ``tuser[43:32]`` the reason, which is Error Type and Error Code.

    A device that sends has more ports: ``m_axi_ar*`` and ``m_axi_r*`` read host memory. AXI4 has
    one width for all IDs of an interface, so AWID is as wide as ARID, and always 0;
    ``m_axis_*`` are packets of one FPDU, with ``tid`` and ``tuser[31:0]`` as in ``s_axis_*``;
    ``tuser[95:32]`` is the FPDU's record (:data:`~.spec.send.RECORD`). With SCTP ``m_axis_eth_*``
    are Ethernet frames without FCS, with one DATA chunk each: ``tuser[31:0]`` is its TSN, the
    rest as for FPDUs.

    Latency, Throughput, Reset, Errors: those of :class:`Rnic`.
    """

    def __init__(self, config):
        self.config = config
        super().__init__(self.ports(config))

    @staticmethod
    def ports(config):
        """Returns every port except clock and reset by its name, as an ``In`` or an ``Out``."""
        width, octets = config.width, config.octets

        def channel(prefix, direction, signals):
            """Returns a channel's ports; all but ready go in ``direction``."""
            return {
                **{
                    f"{prefix}{name}": direction(bits)
                    for name, bits in {**signals, "valid": 1}.items()
                },
                f"{prefix}ready": direction(1).flip(),
            }

        address = {
            "addr": 64,
            "len": 8,
            "size": 3,
            "burst": 2,
            "lock": 1,
            "cache": 4,
            "prot": 3,
        }
        frame = {"tdata": width, "tkeep": octets, "tlast": 1}
        axis = {**frame, "tid": 16}
        sent = {**axis, "tuser": 32 + SentRecord().size}
        ids = exact_log2(2 * config.outstanding) if config.transmit else 1
        return {
            **{
                name.replace("_valid", "_tvalid").replace("_ready", "_tready"): flow
                for prefix, has, direction, signals in (
                    ("s_axis_", config.receive and config.mpa, In, {**axis, "tuser": 33}),
                    ("m_axis_exc_", config.receive, Out, {**axis, "tuser": 44}),
                    ("s_axis_eth_", config.owned, In, {**frame, "tuser": 1}),
                    ("m_axis_", config.transmit and config.mpa, Out, sent),
                    ("m_axis_eth_", config.transmit and config.sctp, Out, sent),
                )
                if has
                for name, flow in channel(prefix, direction, signals).items()
            },
            **{
                name: flow
                for prefix, bits in (("m_axi_", ids), ("m_axi_cq_", 1))[not config.receive:]
                for name, flow in {
                    **channel(f"{prefix}aw", Out, {**address, "id": bits}),
                    **channel(
                        f"{prefix}w", Out, {"data": width, "strb": octets, "last": 1}
                    ),
                    **channel(f"{prefix}b", In, {"id": bits, "resp": 2}),
                }.items()
            },
            **({
                **channel("m_axi_ar", Out, {**address, "id": ids}),
                **channel("m_axi_r", In, {"id": ids, "data": width, "resp": 2, "last": 1}),
            } if config.transmit else {}),
            **channel("s_axil_aw", In, {"addr": regs.ADDRESS_BITS, "prot": 3}),
            **channel("s_axil_w", In, {"data": 32, "strb": 4}),
            **channel("s_axil_b", Out, {"resp": 2}),
            **channel("s_axil_ar", In, {"addr": regs.ADDRESS_BITS, "prot": 3}),
            **channel("s_axil_r", Out, {"data": 32, "resp": 2}),
            "irq": Out(1),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.rnic = rnic = Rnic(self.config)
        octets, receive = self.config.octets, self.config.receive

        def count(keep):
            """Returns how many octets of a beat are valid, from its ``tkeep``."""
            return any_of(
                Mux(keep[k] & ~(keep[k + 1] if k + 1 < octets else 0), k + 1, 0)
                for k in range(octets)
            )

        def keep(count):
            """Returns a beat's ``tkeep``, from its octets; compared in eights, two gates deep."""
            eights, rest = count[3:], count[:3]
            return Cat(
                (eights > k // 8) | ((eights == k // 8) & (rest > k % 8)) for k in range(octets))

        if self.config.owned:
            frame = rnic.frames.payload
            m.d.comb += [
                rnic.frames.valid.eq(self.s_axis_eth_tvalid),
                self.s_axis_eth_tready.eq(rnic.frames.ready),
                frame.data.eq(self.s_axis_eth_tdata),
                frame.last.eq(self.s_axis_eth_tlast),
                frame.count.eq(count(self.s_axis_eth_tkeep)),
                frame.error.eq(self.s_axis_eth_tuser),
            ]
        if receive and self.config.mpa:
            packet = rnic.packets.payload
            m.d.comb += [
                rnic.packets.valid.eq(self.s_axis_tvalid),
                self.s_axis_tready.eq(rnic.packets.ready),
                packet.beat.data.eq(self.s_axis_tdata),
                packet.beat.last.eq(self.s_axis_tlast),
                packet.beat.count.eq(count(self.s_axis_tkeep)),
                packet.beat.error.eq(self.s_axis_tuser[32]),
                packet.stream.eq(self.s_axis_tid),
                packet.sequence.eq(self.s_axis_tuser[:32]),
            ]
        if receive:
            exception = rnic.exceptions.payload
            m.d.comb += [
                self.m_axis_exc_tvalid.eq(rnic.exceptions.valid),
                rnic.exceptions.ready.eq(self.m_axis_exc_tready),
                self.m_axis_exc_tdata.eq(exception.beat.data),
                self.m_axis_exc_tlast.eq(exception.beat.last),
                self.m_axis_exc_tkeep.eq(keep(exception.beat.count)),
                self.m_axis_exc_tid.eq(exception.stream),
                self.m_axis_exc_tuser.eq(Cat(exception.sequence, exception.reason)),
            ]
        m.d.comb += [
            # Full beats, incrementing, unprivileged, secure, data.
            *(
                getattr(self, f"{prefix}{name}").eq(value)
                for prefix in (
                    *["m_axi_aw"] * receive, "m_axi_cq_aw", *["m_axi_ar"] * self.config.transmit)
                for name, value in (
                    ("size", octets.bit_length() - 1), ("burst", 1), ("cache", AWCACHE),
                )
            ),
            self.irq.eq(rnic.irq),
        ]
        if self.config.transmit:
            self._send(m, rnic, keep)
        for prefix, channel, outward in (
            *((("m_axi_ar", rnic.reads.ar, True), ("m_axi_r", rnic.reads.r, False))
              if self.config.transmit else ()),
            *((("m_axi_aw", rnic.bus.aw, True), ("m_axi_w", rnic.bus.w, True),
               ("m_axi_b", rnic.bus.b, False)) if receive else ()),
            ("m_axi_cq_aw", rnic.completions.aw, True),
            ("m_axi_cq_w", rnic.completions.w, True),
            ("m_axi_cq_b", rnic.completions.b, False),
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

    def _send(self, m, rnic, keep):
        """Connects FPDUs and frames. ``keep`` returns TKEEP for a number of octets."""
        for prefix, inner in (("m_axis_", "fpdus"), ("m_axis_eth_", "sent_frames")):
            if (port := getattr(rnic, inner, None)) is None:
                continue
            ready = getattr(self, f"{prefix}tready")
            sent = port.payload
            outer = {
                "tvalid": port.valid, "tdata": sent.beat.data, "tlast": sent.beat.last,
                "tkeep": keep(sent.beat.count), "tid": sent.stream,
                "tuser": Cat(sent.sequence, sent.record),
            }
            m.d.comb += [
                port.ready.eq(ready),
                *(getattr(self, f"{prefix}{name}").eq(value) for name, value in outer.items()),
            ]


#: The initial contents of a memory: one line per word, all zeros; captures the last index.
_ZEROS = re.compile(
    r"^  initial begin\n(?:    \w+\[(\d+)\] = \d+'h0+;\n)+  end\n", re.MULTILINE)
#: Larger memories get no initial contents in the text, which tools take minutes to read. These are
#: the posted buffers and the packet buffer, which are never read before they were written.
_WORDS = 4096


def to_verilog(config=None):
    """Returns the datapath as Verilog text; top module ``rnic``, with the ports of FlatRnic."""
    text = convert(FlatRnic(config or RnicConfig()), name="rnic")
    return _ZEROS.sub(lambda zeros: zeros[0] if int(zeros[1]) < _WORDS else "", text)
