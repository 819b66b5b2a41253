"""The NVMe over Fabrics target of the examples, with a host that follows the specification.

Linux is its judge in `sim/devices/guest`; here a small host shows each command and each refusal.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterator
from unittest.mock import create_autospec

import pytest
from ddp_rnic.examples.nvme_target import BLOCK, MDTS, PAGE, Disk, Queue, serve_queue
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sw_driver import PD, Access, Device, WcStatus
from ddp_rnic.sw_driver.cm import Endpoint, Listener, Rejected, connect
from ddp_rnic.sw_driver.rdmap import QP, WC, Opcode, QPState

NAME = "nqn.2026-11.org.example:disk"
ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
INVALIDATE, KEYED, IN_CAPSULE = 0x4F, 0x40, 0x01
PROPERTY_SET, CONNECT, PROPERTY_GET = 0, 1, 4


class Host:
    """One queue of a host."""

    def __init__(self, pd: PD, endpoint: Endpoint) -> None:
        self.pd, self.endpoint, self.qp = pd, endpoint, endpoint.qp
        self.number = 0
        self.invalidated: int | None = None

    async def command(
        self,
        opcode: int,
        *words: tuple[int, str, int],
        namespace: int = 0,
        data: bytes = b"",
        space: int = 0,
        descriptor: int = INVALIDATE,
    ) -> tuple[int, int, bytes]:
        """Sends a command, and returns its status, its result, and the data that came."""
        memory = bytearray(data or space)
        capsule = bytearray(64)
        self.number += 1
        struct.pack_into("<BBHI", capsule, 0, opcode, 0x40, self.number, namespace)
        for at, layout, value in words:
            struct.pack_into(layout, capsule, at, value)
        answer = bytearray(16)
        self.qp.post_recv(answer, wr_id="answer")
        if memory and descriptor != IN_CAPSULE:
            region = self.pd.register(memory, ALL, stream=self.qp.stream)
            length = len(memory).to_bytes(3, "little")
            struct.pack_into("<Q3sIB", capsule, 24, region.to, length, region.stag, descriptor)
        elif memory:
            struct.pack_into("<QIxxxB", capsule, 24, 0, len(memory), descriptor)
            capsule += memory
        self.qp.post_send(Opcode.SEND, capsule)
        while True:
            for completion in await self.endpoint.wait(20):
                if completion.wr_id == "answer":
                    assert completion.status is WcStatus.SUCCESS and completion.byte_len == 16
                    self.invalidated = completion.invalidated
                    if memory and descriptor == INVALIDATE:
                        assert self.invalidated == region.stag
                    elif memory and descriptor == KEYED:
                        assert self.invalidated is None
                        region.close()
                    result, _, queue, number, status = struct.unpack("<QHHHH", answer)
                    assert (queue, number) == (0, self.number)
                    return status >> 1, result, bytes(memory)

    async def fabrics(
        self, kind: int, *words: tuple[int, str, int], data: bytes = b""
    ) -> tuple[int, int, bytes]:
        return await self.command(0x7F, (4, "<B", kind), *words, data=data)


async def queue(pd: PD, port: int, number: int, size: int = 31) -> Host:
    """Connects a queue."""
    request = struct.pack("<HHHH24x", 0, number, size + 1, size)
    endpoint = await connect(pd, "127.0.0.1", port, request)
    assert endpoint.private_data == struct.pack("<HH28x", 0, 32)
    return Host(pd, endpoint)


def names(
    controller: int, name: str = NAME, *, identity: bytes = b"host", host: bytes = b"nqn.host"
) -> bytes:
    """Returns the data of a Connect command."""
    return struct.pack("<16sH238x256s256s256x", identity, controller, name.encode(), host)


@pytest.fixture(scope="module")
def pd() -> Iterator[PD]:
    with SimTransport() as sim, Device(sim).open() as context, PD(context) as pd:
        yield pd


def run(pd: PD, disk: Disk, test: Callable[[int], Awaitable[None]]) -> None:
    """Runs a test of a host beside the target."""

    async def main() -> None:
        async with asyncio.timeout(60), Listener(pd) as listener:

            async def serve() -> None:
                async with asyncio.TaskGroup() as tasks:
                    async for request in listener:
                        tasks.create_task(serve_queue(disk, request))

            serving = asyncio.create_task(serve())
            await test(listener.port)
            serving.cancel()
            await asyncio.wait([serving])

    asyncio.run(main())


def test_a_host_uses_the_disk(pd: PD) -> None:
    disk = Disk(256 * BLOCK, NAME)

    async def test(port: int) -> None:
        admin = await queue(pd, port, 0)
        status, number, _ = await admin.fabrics(CONNECT, data=names(0xFFFF))
        assert status == 0 and number in disk.controllers
        status, capabilities, _ = await admin.fabrics(PROPERTY_GET, (40, "<B", 1))
        assert status == 0 and capabilities & 0xFFFF == 31 and capabilities >> 37 & 1
        assert await admin.fabrics(PROPERTY_SET, (44, "<I", 0x14), (48, "<Q", 1)) == (0, 0, b"")
        assert await admin.fabrics(PROPERTY_GET, (44, "<I", 0x1C)) == (0, 1, b"")
        status, _, data = await admin.command(6, (40, "<B", 1), space=PAGE)
        assert status == 0 and data[768:].startswith(NAME.encode() + b"\0")
        assert struct.unpack_from("<H", data, 78) == (number,) and data[77] == MDTS
        status, _, data = await admin.command(6, namespace=1, space=PAGE, descriptor=KEYED)
        assert status == 0 and struct.unpack_from("<Q", data) == (256,) and data[130] == 9
        assert (await admin.command(9, (40, "<B", 7), (44, "<I", 0x30003)))[1] == 0x10001
        assert await admin.command(0x18) == (0, 0, b"")
        assert await admin.command(2, (40, "<B", 2), space=512) == (0, 0, bytes(512))

        one = await queue(pd, port, 1)
        assert (await one.fabrics(CONNECT, (42, "<H", 1), data=names(number)))[0] == 0
        octets = bytes(range(256)) * 64
        first, blocks = (40, "<Q", 100), (48, "<H", 31)
        assert (await one.command(1, first, blocks, namespace=1, data=octets))[0] == 0
        small, at = b"capsule!" * 64, (40, "<Q", 200)
        assert (await one.command(1, at, namespace=1, data=small, descriptor=IN_CAPSULE))[0] == 0
        assert (await one.command(0, namespace=1))[0] == 0
        status, _, data = await one.command(2, first, blocks, namespace=1, space=len(octets))
        assert status == 0 and data == octets
        assert (await one.command(2, at, namespace=1, space=512)) == (0, 0, small)
        assert disk.memory[100 * BLOCK :][: len(octets)] == octets
        for each in (one, admin):
            await each.endpoint.disconnect()

    run(pd, disk, test)
    assert not disk.controllers and disk.memory[200 * BLOCK :][:512] == b"capsule!" * 64


def test_what_a_host_must_not_ask_for_has_its_status_and_the_queue_goes_on(pd: PD) -> None:
    disk = Disk(16 * BLOCK, NAME)

    async def test(port: int) -> None:
        with pytest.raises(Rejected):
            await queue(pd, port, 0, size=40)
        with pytest.raises(Rejected):
            await connect(pd, "127.0.0.1", port, b"no request of NVMe")
        admin = await queue(pd, port, 0)
        assert (await admin.command(6, (40, "<B", 1), space=PAGE))[0] == 0x4001
        assert (await admin.fabrics(PROPERTY_GET))[0] == 0x4182  # not connected
        assert (await admin.fabrics(CONNECT, data=names(0xFFFF, "nqn.other")))[0] == 0x4182
        status, number, _ = await admin.fabrics(CONNECT, data=names(0xFFFF))
        assert status == 0
        assert (await admin.fabrics(PROPERTY_GET, (44, "<I", 0x77)))[0] == 0x4002
        assert (await admin.command(6, (40, "<B", 0), namespace=7, space=PAGE))[0] == 0x400B
        assert (await admin.command(0x55))[0] == 0x4001
        one = await queue(pd, port, 1)
        assert (await one.fabrics(CONNECT, (42, "<H", 1), data=names(number + 1)))[0] == 0x4182
        # Another host must not use the controller: Connect Invalid Host.
        for data in names(number, host=b"nqn.hosts"), names(number, identity=b"guest"):
            assert (await one.fabrics(CONNECT, (42, "<H", 1), data=data))[0] == 0x4184
        assert (await one.fabrics(CONNECT, (42, "<H", 1), data=names(number)))[0] == 0
        block = bytes(BLOCK)
        for status, opcode, start, blocks, namespace, data in (
            (0x4080, 1, 16, 1, 1, block), (0x4080, 1, 15, 2, 1, 2 * block),
            (0x4080, 1, (1 << 64) - 1, 1, 1, block), (0x400B, 1, 0, 1, 2, block),
            (0x4002, 1, 0, 2, 1, block), (0x4001, 9, 0, 1, 1, block),
            (0x4002, 1, 0, 1, 1, bytes((PAGE << MDTS) + 1)), (0, 1, 15, 1, 1, block),
        ):  # fmt: skip
            words = (40, "<Q", start), (48, "<H", blocks - 1)
            answer = await one.command(opcode, *words, namespace=namespace, data=data)
            assert answer[0] == status, (status, opcode, start)
        two = (48, "<H", 1)
        short = await one.command(1, two, namespace=1, data=block, descriptor=IN_CAPSULE)
        assert short[0] == 0x4002
        answer = await one.command(2, namespace=1, data=block, descriptor=IN_CAPSULE)
        assert answer[0] == 0x4002  # there is no room for data in a capsule of an answer
        one.endpoint.abort()
        await admin.endpoint.disconnect()

    run(pd, disk, test)
    assert disk.memory == bytes(len(disk.memory))


@pytest.mark.parametrize("state", [QPState.CLOSED, QPState.ERR])
def test_a_command_of_a_host_that_has_gone_is_dropped(pd: PD, state: QPState) -> None:
    """Its completion may come after the connection has ended."""
    served = Queue(Disk(1 << 20, NAME), struct.pack("<HHHH24x", 0, 0, 32, 31))
    served.qp = qp = create_autospec(QP, instance=True, state=state)
    served.take(WC(qp, WcStatus.SUCCESS, Opcode.RECV, bytearray(64), 64))
    assert qp.mock_calls == [] and served.commands == 0
