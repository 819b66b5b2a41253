"""Runs in the simulator: Fetch on the AXI memory of cocotbext-axi, late and with faults."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

from .read_dma_tests import SIZE, Memory, send, start

#: How many tests the module has.
COUNT = 2
_ENTRY = 64
_WINDOWS = 120
_OTHERS = ("octets", "done", "more", "response", "answers", "repeat", "slot")


def _window(rng: random.Random) -> tuple[dict[str, int], list[int]]:
    """Returns a window of a ring, and the addresses of its entries."""
    size = rng.choice((0, 2, 4, 8))
    count = min(1 << size, rng.choice((1, 1, 2, 8, rng.randrange(1, 256))))
    base = rng.randrange((SIZE // _ENTRY) - (1 << size))
    start = rng.randrange(1 << 16)
    window = {"stream": rng.randrange(16), "base": base, "size": size, "start": start,
              "count": count, **dict.fromkeys(_OTHERS, 0)}  # fmt: skip
    return window, [_ENTRY * (base + (start + k) % (1 << size)) for k in range(count)]


async def _fails(dut: Any, fails: list[int]) -> None:
    """Collects the streams that fail."""
    dut.fail_ready.value = 1
    while True:
        await RisingEdge(dut.clk)
        if dut.fail_valid.value:
            fails.append(int(dut.fail_payload.value))


async def _entries(dut: Any, taken: list[tuple[int, bytes]], fails: list[int]) -> None:
    """Collects entries with the number of failures before each; they are not always taken."""
    rng = random.Random(2)
    while True:
        await RisingEdge(dut.clk)
        if dut.o_valid.value and dut.o_ready.value:
            taken.append((len(fails), int(dut.o_entry.value).to_bytes(_ENTRY, "little")))
        dut.o_ready.value = rng.random() < 0.7


async def _run(dut: Any, pause: float, faults: int) -> None:
    rng = random.Random(1)
    octets = len(dut.m_axi_rdata) // 8
    bad = {rng.randrange(0, SIZE, octets) for _ in range(faults)}
    memory = Memory(rng, bad)
    windows = [_window(rng) for _ in range(_WINDOWS)]
    expected, failing = [], []
    for window, addresses in windows:
        failed = False
        for address in addresses:
            if not failed and bad & {*range(address, address + _ENTRY, octets)}:
                failed = True
                failing.append(window["stream"])
            entry = memory.octets[address : address + _ENTRY]
            expected.append((len(failing), bytes(_ENTRY) if failed else entry))
    dut.windows_valid.value = dut.o_ready.value = dut.fail_ready.value = 0
    await start(dut, memory, rng, pause)
    taken: list[tuple[int, bytes]] = []
    fails: list[int] = []
    cocotb.start_soon(_fails(dut, fails))
    cocotb.start_soon(_entries(dut, taken, fails))
    await send(dut, "windows", [window for window, _ in windows])
    for _ in range(400_000):
        await RisingEdge(dut.clk)
        if len(taken) == len(expected):
            break
    assert [entry for _, entry in taken] == [entry for _, entry in expected]
    # A stream has failed before an entry leaves that could not be read.
    assert all(before >= least for (before, _), (least, _) in zip(taken, expected, strict=True))
    assert fails == failing


@cocotb.test()
async def a_late_memory(dut: Any) -> None:
    await _run(dut, 0.5, 0)


@cocotb.test()
async def a_memory_with_faults(dut: Any) -> None:
    await _run(dut, 0.1, 20)
