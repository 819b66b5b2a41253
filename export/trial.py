"""Simulates the exported top for a short trial, and records its ports in every cycle.

The host brings the device up, as :mod:`.testbench` does. Then each LLP places a Write, delivers a
Send, and receives segments back to back; and a device that sends sends two messages. The data sheet
draws its timing pictures from the record, and takes its latencies from it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from amaranth.sim import Simulator

from ..hdl.flat import FlatRnic
from ..hdl.spec import regs
from ..hdl.spec.commands import Wait, Write
from ..hdl.spec.completion import OCTETS
from ..hdl.spec.config import RnicConfig
from ..sim.engines.engine import DeviceError
from . import testbench

#: Octets of the segments that arrive back to back, and how many there are.
PAYLOAD, SEGMENTS = 512, 6
#: Cycles from the last beat of a write, or from the address of a read, to the memory's answer.
MEMORY = 4
#: The trial has failed if a step takes more cycles.
_PATIENCE = 5000
#: Idle cycles of the host between two steps.
_PAUSE = 3


class Trial(NamedTuple):
    """The record of a trial: the value of each port in each cycle.

    ``marks`` names cycles: in which a packet began or ended, and in which the doorbell rang.
    ``cycles_per_segment`` has, for each LLP, those of the segments back to back.
    """

    names: tuple[str, ...]
    cycles: list[tuple[int, ...]]
    marks: dict[str, int]
    cycles_per_segment: dict[str, float]

    def values(self, port: str) -> list[int]:
        """Returns the values of a port, one for each cycle."""
        at = self.names.index(port)
        return [each[at] for each in self.cycles]

    def transfers(self, channel: str) -> list[int]:
        """Returns the cycles in which ``valid`` and ``ready`` of a channel are both 1.

        ``channel`` is the beginning of its ports' names, as ``m_axi_aw``.
        """
        both = zip(self.values(f"{channel}valid"), self.values(f"{channel}ready"), strict=True)
        return [cycle for cycle, pair in enumerate(both) if all(pair)]

    def after(self, mark: str, channel: str, addresses: range | None = None) -> int:
        """Returns how many cycles after a mark the next transfer of a channel follows.

        With ``addresses``, only a transfer of one of these addresses counts.
        """
        began, found = self.marks[mark], self.transfers(channel)
        if addresses is not None:
            at = self.values(f"{channel}addr")
            found = [cycle for cycle in found if at[cycle] in addresses]
        return min(cycle for cycle in found if cycle > began) - began


def run(config: RnicConfig) -> Trial:
    """Runs the trial in Amaranth's simulator, in some seconds.

    Raises
    ------
    DeviceError
        The gateware did not do a step of the trial.
    """
    bench = _Bench(config)
    simulator = Simulator(bench.top)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench.watch, background=True)
    for prefix in (*["m_axi"] * config.receive, "m_axi_cq"):
        simulator.add_testbench(bench.writes(prefix), background=True)
    if config.transmit:
        simulator.add_testbench(bench.reads, background=True)
    simulator.add_testbench(bench.host)
    simulator.run()
    return bench.trial()


def messages(config: RnicConfig) -> range:
    """Returns the addresses of the ring in which messages complete."""
    ring = testbench.ring_of(config)
    return range(ring.address, ring.address + ring.entries * OCTETS)


class _Bench:
    """Plays the host and its memory."""

    def __init__(self, config: RnicConfig) -> None:
        self.config = config
        self.top = FlatRnic(config)
        self.signals = {name: getattr(self.top, name) for name in FlatRnic.ports(config)}
        self.cycles: list[tuple[int, ...]] = []
        self.marks: dict[str, int] = {}
        self.rates: dict[str, float] = {}
        self._memory = {
            first + k: octet
            for first, octets in testbench.memory_of(config).items()
            for k, octet in enumerate(octets)
        }
        self._position = 0  # in MPA's stream
        self._commands = testbench.commands_of(config)

    def trial(self) -> Trial:
        """Returns the record so far."""
        return Trial(tuple(self.signals), self.cycles, self.marks, self.rates)

    async def watch(self, ctx: Any) -> None:
        async for _, _, *values in ctx.tick().sample(*self.signals.values()):
            self.cycles.append(tuple(values))

    def _set(self, ctx: Any, **values: int) -> None:
        for name, value in values.items():
            ctx.set(self.signals[name], value)

    async def _until(self, ctx: Any, *names: str) -> tuple[int, ...]:
        """Waits for a cycle in which the first of some ports is 1; returns the values of all."""
        for _ in range(_PATIENCE):
            _, _, *values = await ctx.tick().sample(*(self.signals[name] for name in names))
            if values[0]:
                return tuple(values)
        raise DeviceError(f"{names[0]} stayed 0 for {_PATIENCE} cycles")

    # -- host memory ------------------------------------------------------------------------------

    def writes(self, prefix: str) -> Any:
        """Returns the testbench that answers the writes of a bus, ``MEMORY`` cycles after each."""

        async def answer(ctx: Any) -> None:
            names = [f"{prefix}_{each}" for each in ("wvalid", "wready", "wlast", "bready")]
            self._set(ctx, **{f"{prefix}_awready": 1, f"{prefix}_wready": 1})
            waiting: deque[int] = deque()
            offered = False
            async for _, _, valid, ready, last, taken in ctx.tick().sample(
                *(self.signals[name] for name in names)
            ):
                now = len(self.cycles)
                if offered and taken:
                    waiting.popleft()
                if valid and ready and last:
                    waiting.append(now + MEMORY - 1)
                offered = bool(waiting) and waiting[0] <= now
                self._set(ctx, **{f"{prefix}_bvalid": offered})

        return answer

    async def reads(self, ctx: Any) -> None:
        """Answers the reads of ``m_axi``, one after the other."""
        octets = self.config.octets
        self._set(ctx, m_axi_arready=1)
        while True:
            _, address, length, number = await self._burst(ctx)
            self._set(ctx, m_axi_arready=0)
            await ctx.tick().repeat(MEMORY)
            for beat in range(length + 1):
                first = (address // octets + beat) * octets
                data = bytes(self._memory.get(first + k, 0) for k in range(octets))
                self._set(
                    ctx, m_axi_rvalid=1, m_axi_rid=number, m_axi_rlast=beat == length,
                    m_axi_rdata=int.from_bytes(data, "little"),
                )  # fmt: skip
                await self._until(ctx, "m_axi_rready")
            self._set(ctx, m_axi_rvalid=0, m_axi_rlast=0, m_axi_arready=1)

    async def _burst(self, ctx: Any) -> tuple[int, ...]:
        names = ("m_axi_arvalid", "m_axi_araddr", "m_axi_arlen", "m_axi_arid")
        while True:
            _, _, *values = await ctx.tick().sample(*(self.signals[name] for name in names))
            if values[0]:
                return tuple(values)

    # -- the host ---------------------------------------------------------------------------------

    @property
    def _leaving(self) -> str:
        """The port from which the trial's messages leave."""
        return "m_axis_t" if self.config.mpa else "m_axis_eth_t"

    async def host(self, ctx: Any) -> None:
        if self.config.receive:
            self._set(ctx, m_axis_exc_tready=1)
        if self.config.transmit:
            self._set(ctx, **{f"{self._leaving}ready": 1})
        await self._read(ctx, "ID")
        await self._give(ctx, "RING", *["REGION"] * self.config.receive)
        packets, llps = dict(testbench.packets_of(self.config)), testbench.receiving(self.config)
        if "MPA" in llps:
            await self._give(ctx, "MPA_STREAM")
            await self._receive(ctx, "MPA", packets)
        if "SCTP" in llps:
            await self._give(ctx, "ASSOCIATION", "SCTP_STREAM", "FORGET", "INITIATE")
            await self._packet(ctx, "SCTP", packets["SCTP_ACCEPT"])
            await self._receive(ctx, "SCTP", packets)
        if self.config.transmit:
            await self._give(ctx, "SOURCE", "SENDER_1", "SENDER_2", "DOORBELLS")
            await self._ends(
                ctx,
                self._leaving,
                sum(1 for each in testbench.SENDERS for _ in each.packets(self.config)),
            )
        await ctx.tick().repeat(_PAUSE)

    async def _give(self, ctx: Any, *commands: str) -> None:
        for command in commands:
            for step in self._commands[command]:
                await self._step(ctx, step)
        await ctx.tick().repeat(_PAUSE)

    async def _step(self, ctx: Any, step: Write | Wait) -> None:
        if isinstance(step, Wait):
            for _ in range(_PATIENCE):
                if await self._read(ctx, step.register) & step.mask == step.value:
                    return
            raise DeviceError(f"{step.register} was not {step.value:#x} in {_PATIENCE} reads")
        self._set(
            ctx, s_axil_awvalid=1, s_axil_awaddr=step.address, s_axil_wvalid=1,
            s_axil_wdata=step.value, s_axil_wstrb=0xF, s_axil_bready=1,
        )  # fmt: skip
        if step.register == "SEND_DOORBELL":
            self.marks["doorbell"] = len(self.cycles)
        left = {"aw", "w"}
        while left:
            names = [f"s_axil_{channel}ready" for channel in sorted(left)]
            _, _, *taken = await ctx.tick().sample(*(self.signals[name] for name in names))
            for channel, there in zip(sorted(left), taken, strict=True):
                if there:
                    left.remove(channel)
                    self._set(ctx, **{f"s_axil_{channel}valid": 0})
        await self._until(ctx, "s_axil_bvalid")
        self._set(ctx, s_axil_bready=0)

    async def _read(self, ctx: Any, register: str) -> int:
        self._set(ctx, s_axil_arvalid=1, s_axil_araddr=regs.address(register), s_axil_rready=1)
        await self._until(ctx, "s_axil_arready")
        self._set(ctx, s_axil_arvalid=0)
        _, value = await self._until(ctx, "s_axil_rvalid", "s_axil_rdata")
        self._set(ctx, s_axil_rready=0)
        return value

    async def _receive(self, ctx: Any, llp: str, packets: dict[str, bytes]) -> None:
        """Lets Writes be placed, a Send be delivered, and segments follow each other."""
        for name in ("WRITE_1", "WRITE_2", "SEND"):
            await self._packet(ctx, llp, packets[f"{llp}_{name}"])
            self.marks[f"{llp} {name}"] = len(self.cycles) - 1
            await self._address(ctx, "m_axi_cq_aw", messages(self.config))
            await ctx.tick().repeat(_PAUSE)
        began = len(self.cycles)
        for octets in testbench.writes_of(llp, PAYLOAD, SEGMENTS):
            await self._packet(ctx, llp, octets)
        while self._placed(began) < SEGMENTS * PAYLOAD:
            await ctx.tick().repeat(_PAUSE)
        beats = [cycle for cycle in self.trial().transfers("m_axi_w") if cycle >= began]
        # The pipeline is full after half of them.
        half = len(beats) // 2
        self.rates[llp] = (beats[-1] - beats[-1 - half]) / (SEGMENTS / 2)

    def _placed(self, began: int) -> int:
        """Returns how many octets were written since a cycle."""
        trial = self.trial()
        strobes = trial.values("m_axi_wstrb")
        return sum(strobes[at].bit_count() for at in trial.transfers("m_axi_w") if at >= began)

    async def _address(self, ctx: Any, channel: str, addresses: range) -> None:
        """Waits until a channel has transferred one of some addresses."""
        names = [f"{channel}{each}" for each in ("valid", "ready", "addr")]
        for _ in range(_PATIENCE):
            _, _, valid, ready, at = await ctx.tick().sample(
                *(self.signals[each] for each in names)
            )
            if valid and ready and at in addresses:
                return
        raise DeviceError(f"{channel} had no completion within {_PATIENCE} cycles")

    async def _packet(self, ctx: Any, llp: str, octets: bytes) -> None:
        """Sends a packet, without idle cycles in it."""
        prefix = {"MPA": "s_axis", "SCTP": "s_axis_eth"}[llp]
        width = self.config.octets
        for first in range(0, len(octets), width):
            beat = octets[first : first + width]
            values = {
                "tvalid": 1,
                "tdata": int.from_bytes(beat, "little"),
                "tkeep": (1 << len(beat)) - 1,
                "tlast": first + width >= len(octets),
            }
            if llp == "MPA":
                values |= {"tid": testbench.LLPS[llp][0], "tuser": self._position}
            self._set(ctx, **{f"{prefix}_{name}": value for name, value in values.items()})
            await self._until(ctx, f"{prefix}_tready")
        self._set(ctx, **{f"{prefix}_tvalid": 0})
        self._position += len(octets)

    async def _ends(self, ctx: Any, channel: str, count: int = 1) -> None:
        """Waits until the last beats of ``count`` bursts or packets were transferred."""
        names = [f"{channel}{each}" for each in ("valid", "ready", "last")]
        for _ in range(_PATIENCE):
            _, _, *values = await ctx.tick().sample(*(self.signals[name] for name in names))
            count -= all(values)
            if not count:
                return
        raise DeviceError(f"{channel}last did not come within {_PATIENCE} cycles")
