"""A cocotb bench around a board's top: it simulates the PHY and the host, at the pins."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, Timer
from cocotbext.eth import GmiiFrame, RgmiiSink, RgmiiSource
from cocotbext.uart import UartSink, UartSource
from numpy.typing import NDArray

from ...hdl.spec import board, completion, regs
from ...hdl.spec.completion import Completion
from .engine import (
    EVENT_REGISTERS,
    Await,
    DeviceError,
    Drain,
    ErrorEvent,
    ExceptionPacket,
    Frame,
    Operation,
    Outcome,
    Poll,
    Ring,
    WriteRegister,
    counter_registers,
    counters,
    event,
)
from .engine import completion as entry_of

__all__ = ["BoardBench", "HostLink"]

#: Most words of a command.
_MOST = 255
#: How often a register is read before the bench gives up.
_PATIENCE = 200


class HostLink:
    """The host's end of the UART: reads and writes words in LiteX's protocol "uartbone"."""

    def __init__(self, rx: Any, tx: Any, baud: int) -> None:
        """Makes the link; ``rx`` and ``tx`` are the pins of the board."""
        self._source, self._sink = UartSource(rx, baud=baud), UartSink(tx, baud=baud)
        for model in (self._source, self._sink):
            model.log.setLevel(logging.WARNING)
        self._octet = round(1e10 / baud)  # nanoseconds

    async def send(self, octets: bytes) -> None:
        """Sends octets, and waits until they are on their way to the bus."""
        await self._source.write(octets)
        await self._source.wait()
        await Timer(self._octet, "ns")

    async def write(self, address: int, words: Sequence[int]) -> None:
        """Writes consecutive words."""
        for at in range(0, len(words), _MOST):
            part = words[at : at + _MOST]
            await self.send(
                bytes([1, len(part)])
                + (address // 4 + at).to_bytes(4, "big")
                + b"".join(word.to_bytes(4, "big") for word in part)
            )

    async def read(self, address: int, count: int = 1) -> list[int]:
        """Reads consecutive words."""
        words: list[int] = []
        while len(words) < count:
            part = min(count - len(words), _MOST)
            where = address // 4 + len(words)
            await self._source.write(bytes([2, part]) + where.to_bytes(4, "big"))
            octets = bytearray()
            while len(octets) < 4 * part:
                octets += await self._sink.read(1)
            words += [int.from_bytes(octets[at : at + 4], "big") for at in range(0, 4 * part, 4)]
        return words

    async def read_octets(self, address: int, count: int) -> bytes:
        """Reads octets, from any address on."""
        first, end = address // 4 * 4, -(-(address + count) // 4) * 4
        words = await self.read(first, (end - first) // 4)
        octets = b"".join(word.to_bytes(4, "little") for word in words)
        return octets[address - first : address - first + count]


@dataclass
class BoardBench:
    """Plays operations as an engine does, frames through RGMII and everything else through the
    UART.

    The pins have the names of the ECPIX-5's. ``sctp``: the RNIC has SCTP.
    """

    dut: Any
    clock: int
    baud: int
    ring: Ring
    sctp: bool = True
    events: list[ErrorEvent] = field(default_factory=list)
    exceptions: list[ExceptionPacket] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    _taken: dict[int, int] = field(default_factory=dict)  # how many, by queue

    def __post_init__(self) -> None:
        dut = self.dut
        self.link = HostLink(dut.uart_rx, dut.uart_tx, self.baud)
        self.source = RgmiiSource(
            dut.eth_rgmii_rx_data, dut.eth_rgmii_rx_ctrl, dut.eth_rgmii_rx_clk
        )
        self.sink = RgmiiSink(dut.eth_rgmii_tx_data, dut.eth_rgmii_tx_ctrl, dut.eth_rgmii_tx_clk)
        for model in (self.source, self.sink):
            model.log.setLevel(logging.WARNING)

    async def start(self) -> None:
        """Starts the clocks, which are unrelated, and resets the board."""
        dut = self.dut
        dut.eth_rgmii_mdio.value = 1
        dut.button.value = 1
        dut.rst.value = 1
        # These are the simulator's own clocks, so that Python does nothing at an edge.
        Clock(dut.clk, round(1e12 / self.clock / 2) * 2, "ps").start()
        Clock(dut.clk_main, 8002, "ps").start()
        Clock(dut.eth_rgmii_rx_clk, 7998, "ps").start()
        await ClockCycles(dut.clk, 20)
        dut.rst.value = 0
        await ClockCycles(dut.clk, 20)

    async def send(self, octets: bytes, *, damaged: bool = False) -> None:
        """Sends a frame to the board, and waits until it has arrived."""
        frame = GmiiFrame.from_payload(octets)
        if damaged:
            frame.data[-1] ^= 1
        await self.source.send(frame)
        await self.source.wait()

    async def run(self, operations: Sequence[Operation]) -> None:
        """Carries operations out, in order."""
        writes: list[WriteRegister] = []

        async def flush() -> None:
            while writes:
                count = 1
                while (
                    count < len(writes) and writes[count].address == writes[0].address + 4 * count
                ):
                    count += 1
                await self.link.write(
                    board.RNIC.address + writes[0].address, [each.value for each in writes[:count]]
                )
                del writes[:count]

        for operation in operations:
            if isinstance(operation, WriteRegister):
                writes.append(operation)
                continue
            await flush()
            match operation:
                case Frame(octets=octets, error=error):
                    await self.send(octets, damaged=error)
                case Drain():
                    await self.drain()
                case Await(completions=count):
                    await self._await(count)
                case Poll(address=address, mask=mask, value=value):
                    await self._poll(board.RNIC.address + address, mask, value)
                case _:
                    raise ValueError(f"a board's bench cannot play {operation}")
        await flush()
        await self.drain()

    async def drain(self) -> None:
        """Waits until nothing is in flight, and takes everything that waits for the host."""
        idle = regs.pack("STATUS", idle=1)
        for _ in range(_PATIENCE):
            # The RNIC is not idle while a packet waits for the host.
            took = await self._take()
            (status,) = await self.link.read(board.RNIC.address + regs.address("STATUS"))
            if status & idle and not took:
                return
        raise DeviceError("the RNIC is never idle")

    async def memory(self, ranges: Sequence[range], octets: int) -> NDArray[np.uint8]:
        """Returns placement memory: the octets of the ranges, and zeros elsewhere."""
        image = np.zeros(octets, np.uint8)
        for each in ranges:
            got = await self.link.read_octets(board.MEMORY.address + each.start, len(each))
            image[each.start : each.stop] = np.frombuffer(got, np.uint8)
        return image

    async def outcome(self) -> Outcome:
        """Returns the outcome, without memory."""
        values = {}
        for name in counter_registers(sctp=self.sctp):
            (values[name],) = await self.link.read(board.RNIC.address + regs.address(name))
        return Outcome(0, self.events, self.exceptions, counters(values), self.completions)

    async def _poll(self, address: int, mask: int, value: int) -> None:
        for _ in range(_PATIENCE):
            (got,) = await self.link.read(address)
            if got & mask == value:
                return
        raise DeviceError(
            f"register {address:#x} expected {value:#x} under the mask {mask:#x}, got {got:#x}"
        )

    async def _await(self, count: int) -> None:
        for _ in range(_PATIENCE):
            if len(self.completions) >= count:
                return
            await self._take()
        raise DeviceError(f"expected {count} completions, got {len(self.completions)}")

    async def _take(self) -> bool:
        """Takes events, packets and completions; returns whether there were any."""
        (rnic,) = await self.link.read(board.RNIC.address + regs.address("STATUS"))
        (status,) = await self.link.read(board.address("STATUS"))
        before = len(self.events), len(self.exceptions), len(self.completions)
        if rnic & regs.pack("STATUS", event=1):
            await self._event()
        if status & board.pack("STATUS", received=1):
            await self._packet()
        await self._ring()
        return before != (len(self.events), len(self.exceptions), len(self.completions))

    async def _event(self) -> None:
        first = regs.address(EVENT_REGISTERS[0])
        words = await self.link.read(board.RNIC.address + first, len(EVENT_REGISTERS))
        self.events.append(event(words))
        await self.link.write(board.RNIC.address + regs.address("EVENT_POP"), [1])

    async def _packet(self) -> None:
        length, stream, sequence, reason = await self.link.read(board.address("RECEIVED_LENGTH"), 4)
        octets = await self.link.read_octets(board.RECEIVED.address, length)
        self.exceptions.append(ExceptionPacket(stream, sequence, octets, reason))
        await self.link.write(board.address("RECEIVED_POP"), [1])

    async def _ring(self) -> None:
        """Takes the completions of each ring, and gives their entries back."""
        ring, rnic = self.ring, board.RNIC.address
        for which, queue in enumerate(ring.queues):
            await self.link.write(rnic + regs.address("CQ_INDEX"), [queue])
            (producer,) = await self.link.read(rnic + regs.address("CQ_PRODUCER"))
            taken = self._taken.get(queue, 0)
            if producer == taken & 0xFFFF:
                continue
            while producer != taken & 0xFFFF:
                slot = which * ring.entries + taken % ring.entries
                octets = await self.link.read_octets(
                    board.MEMORY.address + ring.address + slot * completion.OCTETS,
                    completion.OCTETS,
                )
                self.completions.append(entry_of(octets))
                taken += 1
            self._taken[queue] = taken
            doorbell = regs.pack("CQ_DOORBELL", consumer=taken & 0xFFFF, queue=queue, arm=1)
            await self.link.write(rnic + regs.address("CQ_DOORBELL"), [doorbell])
