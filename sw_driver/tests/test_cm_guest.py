"""Connections to the RDMA of Linux, siw, in a guest: rping and ucmatose, both ways."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from ddp_rnic.sim.devices.guest import image
from ddp_rnic.sim.devices.guest.machine import HOST, Guest
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sw_driver import PD, Access, Device, WcStatus
from ddp_rnic.sw_driver.cm import ConnectRequest, Endpoint, Listener, Terminated, connect
from ddp_rnic.sw_driver.rdmap import Opcode

pytestmark = pytest.mark.long
ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
PORTS = range(7174, 7178)
COUNT = 3


def steps(done: int, total: int, text: str) -> None:
    """Takes the progress of a build."""


def run(test: Callable[[PD, Guest], Awaitable[None]]) -> None:
    async def guest(pd: PD) -> None:
        async with Guest(image.load(steps), PORTS) as guest:
            await test(pd, guest)

    with SimTransport() as sim, Device(sim).open() as context, PD(context) as pd:
        asyncio.run(guest(pd))
        assert not context.streams and not context.cqs and not context.regions


def posting(*buffers: bytearray) -> Callable[[Any], None]:
    def prepare(qp: Any) -> None:
        for buffer in buffers:
            qp.post_recv(buffer)

    return prepare


async def until(end: Endpoint, opcode: Opcode, count: int = 1) -> None:
    """Takes completions until ``count`` of them are of an operation."""
    while count:
        for wc in await end.wait(60):
            assert wc.status is WcStatus.SUCCESS
            count -= wc.opcode is opcode


def text_of(turn: int, size: int) -> bytes:
    """The data of rping's client."""
    letters = bytes(65 + (turn + k) % 58 for k in range(size))
    return (f"rdma-ping-{turn}: ".encode() + letters)[: size - 1] + b"\0"


async def answer_rping(request: ConnectRequest, size: int) -> None:
    adverts = [bytearray(16) for _ in range(2 * COUNT)]
    async with await request.accept(prepare=posting(*adverts)) as server:
        for turn in range(COUNT):
            data = bytearray(size)
            await until(server, Opcode.RECV)
            to, stag, length = struct.unpack(">QII", adverts[2 * turn])
            assert length == size
            server.qp.post_send(Opcode.RDMA_READ, data, stag=stag, to=to)
            await until(server, Opcode.RDMA_READ)
            assert data == text_of(turn, size)
            server.qp.post_send(Opcode.SEND, bytes(16))
            await until(server, Opcode.RECV)
            to, stag, length = struct.unpack(">QII", adverts[2 * turn + 1])
            server.qp.post_send(Opcode.RDMA_WRITE, data, stag=stag, to=to)
            server.qp.post_send(Opcode.SEND, bytes(16))
        assert await server.disconnected(60) is None


async def ask_rping(client: Endpoint, pd: PD, size: int) -> None:
    source, sink = bytearray(size), bytearray(size)
    with pd.register(source, ALL) as ours, pd.register(sink, ALL) as theirs:
        for turn in range(COUNT):
            ours.write(text_of(turn, size))
            for region in (ours, theirs):
                client.qp.post_send(Opcode.SEND, struct.pack(">QII", 0, region.stag, size))
                await until(client, Opcode.RECV)
            assert sink == text_of(turn, size)


@asynccontextmanager
async def serving(guest: Guest, port: int, command: str) -> AsyncIterator[None]:
    """Runs a server in the guest."""
    await guest.run(f"{command} > /tmp/{port} 2>&1 &")
    await asyncio.sleep(2)
    yield
    print((await guest.run(f"sleep 1; cat /tmp/{port}")).text)


def test_rping_of_linux_both_ways() -> None:
    async def test(pd: PD, guest: Guest) -> None:
        async with Listener(pd, timeout=60) as listener:
            for size in (64, 5000, 65_000):
                line = f"rping -c -a {HOST} -p {listener.port} -V -v -C {COUNT} -S {size}"
                rping = asyncio.create_task(guest.run(line))
                await answer_rping(await listener.request(60), size)
                assert (await rping).status == 0
        ways: list[dict[str, Any]] = [{"delay": 0.5}, {"peer_to_peer": True}, {"crc": False}]
        for port, options in zip(PORTS, ways, strict=False):
            async with serving(guest, port, f"rping -s -p {port} -V -v -C {COUNT} -S 20000"):
                async with await connect(
                    pd, *guest.address(port), timeout=60, **options,
                    prepare=posting(*(bytearray(16) for _ in range(2 * COUNT))),
                ) as client:  # fmt: skip
                    await ask_rping(client, pd, 20_000)

    run(test)


def test_servers_that_speak_first_and_messages_that_are_too_long() -> None:
    async def test(pd: PD, guest: Guest) -> None:
        buffers = [bytearray(1000) for _ in range(4)]
        for revision in (1, 2):
            async with serving(guest, 7174, "ucmatose -p 7174 -C 4 -S 1000 -c 1"):
                async with await connect(
                    pd, *guest.address(7174), revision=revision, delay=0.5, timeout=60,
                    prepare=posting(*buffers),
                ) as client:  # fmt: skip
                    await until(client, Opcode.RECV, 4)  # the server speaks first
                    for _ in buffers:
                        client.qp.post_send(Opcode.SEND, bytes(1000))
                    assert await client.disconnected(60) is None
        async with Listener(pd, timeout=60) as listener:
            line = f"ucmatose -s {HOST} -p {listener.port} -C 4 -S 1000 -c 1"
            ucmatose = asyncio.create_task(guest.run(line))
            async with await (await listener.request(60)).accept(
                speak_first=True, delay=0.5, prepare=posting(*buffers)
            ) as server:
                for _ in buffers:
                    server.qp.post_send(Opcode.SEND, bytes(1000))
                await until(server, Opcode.RECV, 4)
            assert (await ucmatose).status == 0
        async with serving(guest, 7175, "rping -s -p 7175 -C 1"):
            client = await connect(pd, *guest.address(7175), delay=0.5, timeout=60)
            client.qp.post_send(Opcode.SEND, bytes(2000))
            with pytest.raises(Terminated, match="from Linux.s siw, which swaps fields"):
                while True:
                    await client.wait(60)
            await client.disconnect()

    run(test)
