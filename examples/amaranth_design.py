"""An Amaranth component with an RNIC and a memory. Its simulation has a Write placed there."""

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.bus.axi import AxiLite
from ddp_rnic.hdl.bus.memory import PlacementMemory
from ddp_rnic.hdl.lib.testing import send, simulate
from ddp_rnic.hdl.mpa.intake import LlpBeat
from ddp_rnic.hdl.rnic import Rnic
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.model import DataSource, MpaSender


class Card(wiring.Component):
    packets: In(stream.Signature(LlpBeat(64)))
    control: In(AxiLite(regs.ADDRESS_BITS))
    address: In(30)
    word: Out(32)

    def elaborate(self, platform):
        m = Module()
        m.submodules.rnic = rnic = Rnic(RnicConfig(width=64, stags=16, streams=4))
        m.submodules.memory = memory = PlacementMemory(width=64, octets=1024)
        wiring.connect(m, wiring.flipped(self.packets), rnic.packets)
        wiring.connect(m, wiring.flipped(self.control), rnic.control)
        wiring.connect(m, rnic.bus, memory.bus)
        wiring.connect(m, rnic.completions, memory.completions)
        m.d.comb += [memory.address.eq(self.address), self.word.eq(memory.answer)]
        m.d.comb += rnic.exceptions.ready.eq(1)
        return m


async def host(ctx):
    ctx.set(card.control.b.ready, 1)
    region = {"pd": 7, "to": 0, "length": 256, "address": 0x100}
    steps = [*commands.set_cq(0, 2), *commands.set_stag(0x511, Access.REMOTE_WRITE, **region)]
    for step in (*steps, *commands.set_stream(1, pd=7, crc=True)):
        if isinstance(step, commands.Write):  # What the device does then takes few cycles.
            ctx.set(card.control.w.p, {"data": step.value, "strb": 0b1111})
            ctx.set(card.control.w.valid, 1)
            await send(ctx, card.control.aw, [{"addr": regs.address(step.register)}])
            ctx.set(card.control.w.valid, 0)
    fpdu = MpaSender().send(*DataSource(1500).tagged(0x511, 0x20, b"written by the wire."))
    for at in range(0, len(fpdu), 8):
        beat = {"data": int.from_bytes(fpdu[at : at + 8], "little"), "count": 8}
        await send(ctx, card.packets, [{"beat": {**beat, "last": at == 32}, "stream": 1}])
    ctx.set(card.address, 7)  # The completion's last word is written after all octets.
    await ctx.tick().until(card.word != 0)
    for number in range(5):
        ctx.set(card.address, 0x120 // 4 + number)
        await ctx.tick().repeat(2)
        print(ctx.get(card.word).to_bytes(4, "little").decode(), end="" if number < 4 else "\n")


if __name__ == "__main__":
    card = Card()
    simulate(card, host)
