"""The RNIC's surroundings as a cocotb bench, for the engine and for tests that people write.

A test makes an :class:`RnicBench` around its ``dut``, starts it, then awaits ``write``, ``send``
and ``drain``; host memory, events and exception packets are there to be looked at, at any time.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import (
    AxiLiteBus,
    AxiLiteMaster,
    AxiSlaveWrite,
    AxiStreamBus,
    AxiStreamFrame,
    AxiStreamSink,
    AxiStreamSource,
    AxiWriteBus,
)
from numpy.typing import NDArray

from ..hdl.spec import regs
from .engine import (
    BURST,
    COUNTER_REGISTERS,
    EVENT_REGISTERS,
    TAKEN,
    UNSTALLED,
    WRITE,
    DeviceError,
    Drain,
    ErrorEvent,
    ExceptionPacket,
    Operation,
    Outcome,
    Packet,
    Stalls,
    WriteRegister,
    counters,
    event,
)

#: Cycles in which nothing is taken on any channel, after which a run is given up.
PATIENCE = 20_000
_STATUS = {field.name: 1 << field.low for field in regs.BY_NAME["STATUS"].fields}


class _HostMemory:
    """What bus writes go to: an array from address 0, with ranges that answer SLVERR."""

    def __init__(self, memory: NDArray[np.uint8], faults: Sequence[range]) -> None:
        self._memory = memory
        self._faults = faults

    async def write(self, address: int, octets: bytes) -> None:
        end = address + len(octets)
        if any(address < fault.stop and fault.start < end for fault in self._faults):
            raise OSError(f"bus address {address:#x} is faulty")
        room = max(len(self._memory) - address, 0)
        kept = octets[:room]
        self._memory[address : address + len(kept)] = np.frombuffer(kept, np.uint8)


class RnicBench:
    """Everything around an RNIC.

    Parameters
    ----------
    dut
        The bench module, with the flat ports of the exported Verilog.
    memory
        Host memory, from bus address 0.
    stalls
        How the RNIC is held up. The memory answers when its queue of responses lets it, so
        ``response_latency`` has no effect here.
    faults
        Bus addresses at which memory answers with SLVERR.

    Attributes
    ----------
    events : list[ErrorEvent]
        Error events, as they were read and taken off the RNIC's queue.
    exceptions : list[ExceptionPacket]
    writes, bursts, taken, stray : list
        Rows of the arrays of :class:`~ddp_rnic.sim.engine.Outcome`.
    """

    def __init__(
        self,
        dut: Any,
        memory: NDArray[np.uint8],
        *,
        stalls: Stalls = UNSTALLED,
        faults: Sequence[range] = (),
    ) -> None:
        logging.getLogger(f"cocotb.{dut._name}").setLevel(logging.WARNING)
        self.dut = dut
        self.memory = memory
        self.octets = len(dut.s_axis_tkeep)
        self.cycle = 0
        self.events: list[ErrorEvent] = []
        self.exceptions: list[ExceptionPacket] = []
        self.writes: list[tuple[int, int]] = []
        self.bursts: list[tuple[int, int, int]] = []
        self.taken: list[tuple[int, int]] = []
        self.stray: list[tuple[int, int]] = []
        self._progress = 0
        self._stalls = stalls
        self._source = AxiStreamSource(AxiStreamBus.from_prefix(dut, "s_axis"), dut.clk, dut.rst)
        self._sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, "m_axis_exc"), dut.clk, dut.rst)
        self._host = AxiSlaveWrite(
            AxiWriteBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst,
            target=_HostMemory(memory, faults),
        )  # fmt: skip
        self._control = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)

    async def start(self) -> None:
        """Start the clock and reset the RNIC."""
        dut = self.dut
        dut.rst.value = 1
        Clock(dut.clk, 10, "ns").start()
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        rng = random.Random(self._stalls.seed)
        for channel, probability in (
            (self._source, self._stalls.source),
            (self._host.aw_channel, self._stalls.write),
            (self._host.w_channel, self._stalls.write),
            (self._host.b_channel, self._stalls.response),
            (self._sink, self._stalls.exceptions),
        ):
            if probability:
                channel.set_pause_generator(_pauses(rng.randrange(2**32), probability))
        await RisingEdge(dut.clk)
        cocotb.start_soon(self._watch())
        cocotb.start_soon(self._collect_exceptions())
        cocotb.start_soon(self._collect_events())

    async def write(self, address: int, value: int) -> None:
        """Write a register."""
        answer = await self._control.write(address, value.to_bytes(4, "little"))
        if answer.resp:
            raise DeviceError(f"the write of register {address:#05x} gave {answer.resp!r}")

    async def read(self, address: int) -> int:
        """Read a register."""
        answer = await self._control.read(address, 4)
        if answer.resp:
            raise DeviceError(f"the read of register {address:#05x} gave {answer.resp!r}")
        return int.from_bytes(answer.data, "little")

    async def send(self, packet: Packet) -> None:
        """Hand a packet to the source; it goes out after all that was handed over before."""
        users = [packet.sequence] * len(packet.octets)
        users[-1] |= packet.error << 32
        await self._source.send(AxiStreamFrame(packet.octets, tid=packet.stream, tuser=users))

    async def sent(self) -> None:
        """Wait until the RNIC has taken every packet."""
        await self._source.wait()

    async def drain(self) -> None:
        """Wait until nothing is in flight and no event waits."""
        await self.sent()
        while True:
            status = await self.read(regs.address("STATUS"))
            if status & _STATUS["idle"] and not status & _STATUS["event"]:
                break
        self._progress = self.cycle

    async def play(self, operations: Sequence[Operation]) -> None:
        """Carry operations out, and drain."""
        for operation in operations:
            match operation:
                case Packet():
                    await self.send(operation)
                case WriteRegister(address, value):
                    await self.sent()
                    await self.write(address, value)
                case Drain():
                    await self.drain()
        await self.drain()

    async def outcome(self) -> Outcome:
        """What has come of all so far."""
        counted = [await self.read(regs.address(name)) for name in COUNTER_REGISTERS]
        return Outcome(
            cycles=self.cycle,
            events=list(self.events),
            exceptions=list(self.exceptions),
            counters=counters(counted),
            writes=np.array(self.writes, WRITE),
            bursts=np.array(self.bursts, BURST),
            taken=np.array(self.taken, TAKEN),
            stray=list(np.array(self.stray, WRITE)),
        )

    async def _collect_exceptions(self) -> None:
        while True:
            frame = await self._sink.recv()
            self.exceptions.append(ExceptionPacket(frame.tid, frame.tuser, bytes(frame.tdata)))

    async def _collect_events(self) -> None:
        dut = self.dut
        while True:
            if not dut.irq.value:
                await RisingEdge(dut.irq)
            if not await self.read(regs.address("STATUS")) & _STATUS["event"]:
                continue
            words = [await self.read(regs.address(name)) for name in EVENT_REGISTERS]
            self.events.append(event(words))
            await self.write(regs.address("EVENT_POP"), 1)
            self._progress = self.cycle

    async def _watch(self) -> None:
        """Note the cycle of everything that is taken; give up when nothing is any more."""
        dut = self.dut
        edge = RisingEdge(dut.clk)
        announced: deque[int] = deque()
        ahead: deque[tuple[int, int]] = deque()
        first = True
        while True:
            await edge
            cycle = self.cycle
            if dut.s_axis_tvalid.value and dut.s_axis_tready.value:
                self._progress = cycle
                if first:
                    self.taken.append((cycle, cycle))
                first = bool(dut.s_axis_tlast.value)
                if first:
                    self.taken[-1] = (self.taken[-1][0], cycle)
            if dut.m_axi_awvalid.value and dut.m_axi_awready.value:
                self._progress = cycle
                address = dut.m_axi_awaddr.value.to_unsigned()
                beats = dut.m_axi_awlen.value.to_unsigned() + 1
                self.bursts.append((cycle, address, beats))
                start = address & -self.octets
                announced.extend(range(start, start + beats * self.octets, self.octets))
            if dut.m_axi_wvalid.value and dut.m_axi_wready.value:
                self._progress = cycle
                ahead.append((cycle, dut.m_axi_wstrb.value.to_unsigned()))
            while ahead and announced:
                when, strobes = ahead.popleft()
                address = announced.popleft()
                if strobes:
                    self.writes.append((when, address))
                    if address + strobes.bit_length() > len(self.memory):
                        self.stray.append((when, address))
            if cycle - self._progress > PATIENCE:
                raise DeviceError(f"cycle {cycle}: nothing moved for {PATIENCE} cycles")
            self.cycle = cycle + 1


def _pauses(seed: int, probability: float) -> Iterator[bool]:
    rng = random.Random(seed)
    while True:
        yield rng.random() < probability
