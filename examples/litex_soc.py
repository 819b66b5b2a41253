"""Puts an RNIC into a LiteX SoC: in LiteX's simulator, a Write is placed in main memory."""

from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.model import DataSource, MpaSender
from litex.build.generic_platform import Pins
from litex.build.sim import SimPlatform
from litex.build.sim.config import SimConfig
from litex.soc.integration.soc_core import SoCMini
from litex.soc.interconnect import wishbone
from litex_rnic import REGISTERS, Rnic
from migen import FSM, Array, Cat, Display, Finish, If, NextState, NextValue, Signal
from migen.genlib.io import CRG

MEMORY, BUFFER, STAG, PAYLOAD = 0x4000_0000, 0x4000_0100, 0x511, b"written by the wire."


class Soc(SoCMini):
    """The RNIC, main memory, and a state machine instead of a processor and a wire."""

    def __init__(self, platform):
        options = {"bus_data_width": 64, "integrated_main_ram_size": 0x1000}
        super().__init__(platform, 1_000_000, bus_standard="axi", **options)
        self.crg = CRG(platform.request("sys_clk"))
        self.rnic = rnic = Rnic(platform)
        rnic.connect(self)
        self.bus.add_master("host", host := wishbone.Interface())
        steps = (
            *commands.set_cq(MEMORY, 2)[:-1],  # without the wait, of a few cycles, at its end
            *commands.set_stag(STAG, Access.REMOTE_WRITE, pd=7, to=0, length=256, address=BUFFER),
            *commands.set_stream(1, pd=7, crc=True),
        )
        fpdu = MpaSender().send(*DataSource(1500).tagged(STAG, 0x20, PAYLOAD))
        beats = [int.from_bytes(fpdu[at : at + 8], "little") for at in range(0, len(fpdu), 8)]
        registers = [(REGISTERS + regs.address(step.register)) // 4 for step in steps]
        n, text, wire = Signal(8), Signal(8 * len(PAYLOAD)), rnic.s_axis
        self.fsm = fsm = FSM("set up")
        # fmt: off
        fsm.act("set up",
            host.cyc.eq(1), host.stb.eq(1), host.we.eq(1), host.sel.eq(15),
            host.adr.eq(Array(registers)[n]), host.dat_w.eq(Array(step.value for step in steps)[n]),
            If(host.ack, NextValue(n, n + 1)),
            If(host.ack & (n == len(steps) - 1), NextValue(n, 0), NextState("send")))
        fsm.act("send",
            wire.valid.eq(1), wire.data.eq(Array(beats)[n]), wire.keep.eq(255), wire.id.eq(1),
            wire.last.eq(n == len(beats) - 1), If(wire.ready, NextValue(n, n + 1)),
            If(wire.ready & wire.last, NextValue(n, 0), NextState("wait")))
        fsm.act("wait", If(rnic.m_axi_cq.b.valid, NextState("read")))
        fsm.act("read",
            host.cyc.eq(1), host.stb.eq(1), host.adr.eq((BUFFER + 0x20) // 4 + n),
            If(host.ack, NextValue(n, n + 1),
               NextValue(text, Cat(*(host.dat_r[at : at + 8] for at in (24, 16, 8, 0)), text)),
               If(n == len(PAYLOAD) // 4 - 1, NextState("show"))))
        # fmt: on
        self.sync += If(fsm.ongoing("show"), Display("%s", text), Finish())


if __name__ == "__main__":
    platform = SimPlatform("SIM", [("sys_clk", 0, Pins(1))])
    platform.build(Soc(platform), sim_config=SimConfig("sys_clk"), interactive=False, verbose=False)
