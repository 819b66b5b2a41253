"""Runs in the simulator: ReadDma on the AXI memory of cocotbext-axi, late and with faults."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiReadBus, AxiSlaveRead, MemoryRegion

#: How many tests the module has.
COUNT = 2
SIZE = 1 << 18
_SEGMENTS = 200


class Memory(MemoryRegion):
    """Host memory in which some beats cannot be read."""

    def __init__(self, rng: random.Random, bad: set[int]) -> None:
        super().__init__(SIZE)
        self.mem[:] = self.octets = rng.randbytes(SIZE)
        self._bad = bad

    async def _read(self, address: int, length: int, **rest: Any) -> bytes:
        if address in self._bad:
            raise OSError("a planted fault")
        return await super()._read(address, length, **rest)


def pauses(rng: random.Random, share: float) -> Iterator[bool]:
    while True:
        yield rng.random() < share


async def send(dut: Any, name: str, items: list[dict[str, int]]) -> None:
    """Sends items into a stream of the block."""
    valid, ready = getattr(dut, f"{name}_valid"), getattr(dut, f"{name}_ready")
    for item in items:
        for member, value in item.items():
            getattr(dut, f"{name}_{member}").value = value
        valid.value = 1
        await RisingEdge(dut.clk)
        while not ready.value:
            await RisingEdge(dut.clk)
    valid.value = 0


async def start(dut: Any, memory: Memory, rng: random.Random, pause: float) -> None:
    """Starts the clock and the memory, which pauses in a share of the cycles; ends the reset."""
    Clock(dut.clk, 10, "ns").start()
    dut.rst.value = 1
    slave = AxiSlaveRead(AxiReadBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, target=memory)
    slave.ar_channel.set_pause_generator(pauses(rng, pause))
    slave.r_channel.set_pause_generator(pauses(rng, pause))
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0


async def _take(dut: Any, octets: int, packets: list[bytes], heads: list[tuple[int, bool]]) -> None:
    """Collects packets and heads; the output is not always taken."""
    rng, packet = random.Random(2), b""
    dut.heads_ready.value = 1
    while True:
        await RisingEdge(dut.clk)
        if dut.heads_valid.value:
            heads.append((int(dut.heads_tag.value), bool(dut.heads_failed.value)))
        if dut.o_valid.value and dut.o_ready.value:
            data = int(dut.o_data.value).to_bytes(octets, "little")
            packet += data[: int(dut.o_count.value)]
            if dut.o_last.value:
                packets.append(packet)
                packet = b""
        dut.o_ready.value = rng.random() < 0.7


async def _run(dut: Any, pause: float, faults: int) -> None:
    rng = random.Random(1)
    octets = len(dut.o_data) // 8
    segments, pieces, expected = [], [], []
    bad = {rng.randrange(0, SIZE, octets) for _ in range(faults)}
    memory = Memory(rng, bad)
    for tag in range(_SEGMENTS):
        header = rng.randbytes(rng.choice((14, 18)))
        runs = [
            (rng.randrange(SIZE - 3000), rng.choice((0, 1, 64, rng.randrange(3000))))
            for _ in range(rng.choice((1, 1, 2, 3)))
        ]
        segments.append({"header": int.from_bytes(header, "little"), "lead": len(header),
                         "length": sum(length for _, length in runs), "tag": tag})  # fmt: skip
        pieces += [{"address": address, "length": length, "last": n == len(runs) - 1}
                   for n, (address, length) in enumerate(runs)]  # fmt: skip
        beats = (range(at & -octets, at + length, octets) for at, length in runs if length)
        touched = {at for each in beats for at in each}
        data = b"".join(memory.octets[address : address + length] for address, length in runs)
        expected.append(None if touched & bad else header + data)
    for name in ("segments", "pieces"):
        getattr(dut, f"{name}_valid").value = 0
    dut.o_ready.value = dut.heads_ready.value = dut.pieces_refused.value = 0
    await start(dut, memory, rng, pause)
    packets: list[bytes] = []
    heads: list[tuple[int, bool]] = []
    cocotb.start_soon(_take(dut, octets, packets, heads))
    cocotb.start_soon(send(dut, "segments", segments))
    await send(dut, "pieces", pieces)
    for _ in range(200_000):
        await RisingEdge(dut.clk)
        if len(heads) == _SEGMENTS and len(packets) == sum(not failed for _, failed in heads):
            break
    assert heads == [(tag, octets is None) for tag, octets in enumerate(expected)]
    assert packets == [octets for octets in expected if octets is not None]


@cocotb.test()
async def a_late_memory(dut: Any) -> None:
    await _run(dut, 0.5, 0)


@cocotb.test()
async def a_memory_with_faults(dut: Any) -> None:
    await _run(dut, 0.1, 20)
