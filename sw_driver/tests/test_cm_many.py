"""Many connections, of which a third is cancelled at random points: nothing is left of them."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sw_driver import PD, Access, Context, Device, StateError
from ddp_rnic.sw_driver.cm import (
    ConnectError,
    ConnectRequest,
    Disconnected,
    Endpoint,
    Listener,
    Rtr,
    connect,
)
from ddp_rnic.sw_driver.rdmap import Opcode
from ddp_rnic.sw_driver.transports.memory import Memory

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
#: How many connections are open at a time. Each takes two streams of the device.
AT_ONCE = 12


def held(context: Context) -> dict[str, int]:
    """Counts all that a connection holds."""
    gc.collect()
    return {
        "sockets": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "streams": len(context.streams),
        "free streams": len(context.numbers),
        "regions": len(context.regions),
        "STags": len(context.tags),
        "free receive buffers": len(context.buffers),
        "completion queues": len(context.cqs),
        "pieces of memory": sum(isinstance(each, Memory) for each in gc.get_objects()),
    }


def post(end: Endpoint, opcode: Opcode, message: Any, **named: Any) -> None:
    """Posts a request; raises the reason if the other end has ended the connection."""
    try:
        end.qp.post_send(opcode, message, **named)
    except StateError as error:
        raise end.reason() or Disconnected("before the post") from error


class Crowd:
    """Clients and a server in one process."""

    def __init__(self, pd: PD, seed: int) -> None:
        self.pd, self.rng = pd, random.Random(seed)
        self.room = asyncio.Semaphore(AT_ONCE)
        self.whole = self.cancelled = self.ended = 0
        self.serving: set[asyncio.Task[None]] = set()

    async def serve(self, listener: Listener) -> None:
        async for request in listener:
            task = asyncio.create_task(self.sometimes(self.answer(request), request))
            self.serving.add(task)
            task.add_done_callback(self.serving.discard)

    async def sometimes(
        self, work: Coroutine[Any, Any, None], request: ConnectRequest | None = None
    ) -> None:
        """Does one end's work, and cancels it at a random point in one case of six."""
        task = asyncio.create_task(work)
        if self.rng.randrange(6) == 0:
            await asyncio.wait([task], timeout=self.rng.random() ** 3 / 10)
            task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            self.cancelled += 1
        elif isinstance(outcome, ConnectError):
            self.ended += 1  # by the other end
        elif outcome is not None:
            raise outcome
        if request is not None:
            request.close()

    async def answer(self, request: ConnectRequest) -> None:
        if request.private_data == b"reject":
            await request.reject(b"as asked")
            return
        buffer = bytearray(64)
        with self.pd.register(bytearray(64), ALL) as region:
            async with await request.accept(
                region.stag.to_bytes(4, "big"), prepare=lambda qp: qp.post_recv(buffer), timeout=5
            ) as server:
                await server.wait(5)
                post(server, Opcode.SEND, b"answer")
                if (reason := await server.disconnected(5)) is not None:
                    raise reason

    async def ask(self, port: int) -> None:
        async with self.room:
            await self.sometimes(self.talk(port))

    async def talk(self, port: int) -> None:
        peer_to_peer, rejected = self.rng.random() < 0.5, self.rng.random() < 0.1
        rtr = self.rng.choice(list(Rtr)) if peer_to_peer else Rtr.WRITE
        async with await connect(
            self.pd, "127.0.0.1", port, b"reject" if rejected else b"", timeout=5,
            peer_to_peer=peer_to_peer, rtr=rtr | Rtr.WRITE, crc=self.rng.random() < 0.5,
            prepare=lambda qp: qp.post_recv(bytearray(64)),
        ) as client:  # fmt: skip
            stag = int.from_bytes(client.private_data, "big")
            post(client, Opcode.RDMA_WRITE, bytes(64), stag=stag)
            post(client, Opcode.RDMA_READ, bytearray(64), stag=stag)
            post(client, Opcode.SEND, b"question")
            done = 0
            while done < 4:
                done += len(await client.wait(5))
        self.whole += 1


@pytest.mark.parametrize(
    ("count", "transmit"),
    [
        pytest.param(150, False, marks=pytest.mark.long),
        (75, True),
        pytest.param(1000, False, marks=pytest.mark.long),
        pytest.param(1000, True, marks=pytest.mark.long),
    ],
)
def test_nothing_is_left_of_connections_of_which_a_third_is_cancelled(
    count: int, transmit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver answers Reads itself, although the device could: other tests share its build."""

    async def test(context: Context, pd: PD) -> None:
        async with asyncio.timeout(count):
            loop = asyncio.get_running_loop()
            await loop.getaddrinfo("127.0.0.1", 1)  # makes the executor's threads
            before = held(context)
            crowd = Crowd(pd, count)
            async with Listener(pd) as listener:
                serving = asyncio.create_task(crowd.serve(listener))
                await asyncio.gather(*(crowd.ask(listener.port) for _ in range(count)))
                while crowd.serving:
                    await asyncio.sleep(0.01)
            await serving
            await asyncio.sleep(0)
            assert held(context) == before
            assert crowd.cancelled > count / 6 and crowd.whole > count / 3

    sim = SimTransport(RnicConfig(transmit=transmit, responder=transmit))
    with sim, Device(sim).open() as context, PD(context) as pd:
        monkeypatch.setattr(context, "responds", False)
        asyncio.run(test(context, pd))
