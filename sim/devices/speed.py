"""Measures how fast RDMA messages go through connections of the host and the simulated gateware."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from ...hdl.spec.config import RnicConfig
from ...sw_driver import MR, PD, Access, Device
from ...sw_driver.cm import Endpoint, Listener, connect
from ...sw_driver.rdmap import QP, Opcode
from ..engines.engine import DeviceError
from .live import SimTransport

__all__ = ["measure"]

#: Octets and number of the messages of each measurement, and receives that are posted at a time.
_KINDS = ((64, 20_000), (1 << 16, 400))
_DEPTH = 64


def measure(width: int) -> list[dict[str, Any]]:
    """Sends messages from one connection to another one, over TCP on loopback, both through one
    gateware; returns a row for each size.
    """
    config = RnicConfig(width=width)
    with SimTransport(config) as sim, Device(sim).open() as context, PD(context) as pd:
        return [*_rows(sim, pd, width)]


def _rows(sim: SimTransport, pd: PD, width: int) -> Iterator[dict[str, Any]]:
    for octets, count in _KINDS:
        before = sim.cycle
        seconds = asyncio.run(_send(pd, octets, count))
        yield {
            "width": width, "octets": octets, "messages": count,
            "cycles": sim.cycle - before, "seconds": round(seconds, 3),
            "messages_per_second": round(count / seconds),
            "megabits_per_second": round(8 * octets * count / seconds / 1e6, 1),
        }  # fmt: skip


async def _send(pd: PD, octets: int, count: int) -> float:
    """Sends messages, and returns the time that they take, in seconds."""
    memory = bytearray(_DEPTH * octets)
    with pd.register(memory, Access.LOCAL_WRITE) as region:

        def post(qp: QP) -> None:
            for at in range(0, len(memory), octets):
                qp.post_recv(region, wr_id=at, offset=at, length=octets)

        async with Listener(pd) as listener:
            connecting = asyncio.create_task(connect(pd, "127.0.0.1", listener.port))
            request = await listener.request()
            receiver = await request.accept(prepare=post)
            sender = await connecting
        try:
            return await _transfer(sender, receiver, region, memory, count)
        finally:
            sender.abort()
            receiver.abort()


async def _transfer(
    sender: Endpoint, receiver: Endpoint, region: MR, memory: bytearray, count: int
) -> float:
    """Sends messages over a connection, compares each one that arrives, and returns the time."""
    octets = len(memory) // _DEPTH
    message = bytes(number % 251 for number in range(octets))
    begun = time.perf_counter()
    free = asyncio.Semaphore(_DEPTH)
    sending = asyncio.create_task(_post(sender, message, count, free))
    received = 0
    while received < count:
        for completion in await receiver.wait(60, _DEPTH):
            at = completion.wr_id
            if memory[at : at + octets] != message:
                raise DeviceError(f"message {received} is not the one that was sent")
            received += 1
            receiver.qp.post_recv(region, wr_id=at, offset=at, length=octets)
            free.release()
    seconds = time.perf_counter() - begun
    await sending
    return seconds


async def _post(sender: Endpoint, message: bytes, count: int, free: asyncio.Semaphore) -> None:
    """Posts messages, as far as the receiver has buffers for them."""
    for number in range(count):
        await free.acquire()
        sender.qp.post_send(Opcode.SEND, message)
        if number % _DEPTH == _DEPTH - 1:
            await sender.wait(60, _DEPTH)
