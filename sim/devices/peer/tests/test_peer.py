"""Tests of the peers: two ends of this project over loopback; octets of real peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from ddp_rnic.cli.app import app
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.sim.devices.guest.image import load
from ddp_rnic.sim.devices.guest.machine import Guest
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sim.devices.peer import demo as module
from ddp_rnic.sim.devices.peer import disk, perftest, rping
from ddp_rnic.sim.devices.peer.channel import Channel, Tally
from ddp_rnic.sim.devices.peer.demo import PORT, Row, Shell, Virtual, demo
from ddp_rnic.sim.devices.peer.lockstep import Differs, LockStep
from ddp_rnic.sim.devices.peer.node import Node
from ddp_rnic.sim.devices.peer.record import Recorder
from ddp_rnic.sim.devices.peer.serve import run_client, serve
from ddp_rnic.sw_driver import CQ, Stream
from ddp_rnic.sw_driver.cm import ConnectError, ConnectTimeout
from ddp_rnic.sw_driver.rdmap import Opcode
from ddp_rnic.sw_driver.tests.test_nvme_target import CONNECT, names, queue
from typer.testing import CliRunner

#: What rping of rdma-core 44 had in its buffer, as it printed that.
RPING = [
    rb"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqr" + b"\0",
    rb"rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqrs" + b"\0",
]
#: The messages of a client of perftest 4.5 until its second connection: version, sizes of the
#: buffer and of a cache line, MTU, and an empty name.
PERFTEST = [b"6.06" + bytes(12), b"\0\0\x10\0", b"\0\0\0\x40", b"3\0", bytes(56)]


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as node:
        yield node


def test_the_offset_of_a_write_may_be_the_cookie_of_a_buffer(node: Node) -> None:
    """Linux wrote at an offset of 2304 when the buffer with that cookie was posted."""
    pd, context = node.pd, node.pd.context
    with CQ(context) as cq, Stream(pd, cq) as stream, pd.register(bytearray(8)) as region:
        context.cookie = (region.to - 1) % (1 << 32)
        stream.post_recv(bytearray(8))
        peer = Peer(node.sim, stream.number)
        peer.write(region.stag, region.to, b"tagged")
        peer.send(b"untagged")
        assert [wc.byte_len for wc in (*cq.wait(timeout=10), *cq.poll())] == [6, 8]


Client = Callable[[int], Awaitable[object]]


def talk(node: Node, server: str, *clients: Client, size: int = 0) -> list[Tally]:
    """Serves clients one after the other; returns the tallies of the server."""
    tallies: list[Tally] = []

    async def both() -> None:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(
            serve(
                node, server, "127.0.0.1", 0,
                count=len(clients), report=tallies.append, listening=port.set_result, size=size,
            )
        )  # fmt: skip
        for client in clients:
            await client(await port)
        await asyncio.wait_for(serving, 60)

    asyncio.run(both())
    return tallies


def client(node: Node, name: str, count: int, size: int, into: list[Tally]) -> Client:
    async def run(port: int) -> None:
        into.append(await run_client(node, name, "127.0.0.1", port, count=count, size=size))

    return run


def test_rping_has_the_octets_of_the_real_one() -> None:
    assert [rping.pattern(turn, 64) for turn in range(2)] == RPING
    assert rping.pattern(58, 30)[14:18] == b"ABCD"
    assert rping.pattern(12, 5) == b"rdma\0"


@pytest.mark.parametrize("settings", [{}, {"crc": False}, {"markers": True}])
def test_rping_verifies_both_ways(settings: dict[str, Any]) -> None:
    with Node(**settings) as node:
        ours: list[Tally] = []
        theirs = talk(node, "rping", *(client(node, "rping", 3, size, ours) for size in (1, 5000)))
        assert node.pd.context.registers.read("SENT") > 2 * len(ours) * 3  # the device has sent
    for tally in (*ours, *theirs):
        assert tally.verified and tally.messages == 3, tally
    assert [tally.octets for tally in ours] == [6, 30000]


def test_a_sink_and_an_echo_check_each_octet(node: Node) -> None:
    ours: list[Tally] = []
    theirs = talk(node, "sink", client(node, "sink", 100, 70, ours))
    theirs += talk(node, "echo", client(node, "echo", 3, 60000, ours))
    assert all(tally.verified for tally in (*ours, *theirs))
    assert [(tally.messages, tally.octets) for tally in theirs] == [(100, 7000), (3, 180000)]


@pytest.mark.parametrize(("server", "name"), [("sink", "sink"), *long(("perftest", "write"))])
def test_a_device_sends_on_when_nothing_is_received(node: Node, server: str, name: str) -> None:
    """The server has a device of its own, so that of the client wakes up by TCP alone."""
    ours: list[Tally] = []
    with Node() as other:
        theirs = talk(node, server, client(other, name, 70, 1 << 16, ours))
    assert all(tally.verified for tally in (*ours, *theirs)), (ours, theirs)
    assert [tally.messages for tally in theirs] == [70]


def test_a_peer_that_does_not_close_is_an_error(node: Node) -> None:
    channel, tally = Channel(node.sim, 64, 4), Tally("sink", "somebody")
    waits = AsyncMock(side_effect=ConnectTimeout("the peer did not close its half"))
    channel.begin(Mock(disconnect=waits))
    with node.measured(tally):
        asyncio.run(node.end(channel))
    assert (tally.errors, tally.verified) == (["the peer did not close its half"], False)


class Broken(Shell):
    """A Linux on which no program works."""

    here = listen = "127.0.0.1"
    there = "127.0.0.1", 1  # nobody listens there

    async def start(self, command: str) -> None:
        pass

    async def end(self) -> str:
        return "1"

    async def failure(self) -> str:
        return "no such device"


def test_a_program_that_fails_is_not_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.1)
    row = asyncio.run(module._served(node, Broken(), "rping", "rping", "rping -S 1", 3))
    assert row.complaints == ["rping failed: no such device", "0 of 3 messages"]
    with pytest.raises(ConnectError, match="rping failed: no such device"):
        asyncio.run(module._connected(node, Broken(), 3, 64))


def test_a_peer_may_send_as_many_messages_at_once_as_perftest_does(node: Node) -> None:
    """The device holds fewer buffers. It gets each one back as soon as its message was compared."""
    count = perftest.RECEIVES
    assert node.pd.context.capabilities.queue < count
    ours: list[Tally] = []
    theirs = talk(node, "sink", client(node, "sink", count, 70, ours))
    # A client of perftest is ahead of its credit by as many.
    theirs += talk(node, "perftest", client(node, "send", count + 100, 70, ours))
    assert all(tally.verified for tally in (*ours, *theirs)), theirs
    assert [tally.messages for tally in theirs] == [count, count + 100]


def test_messages_of_unknown_content_are_not_verified(node: Node) -> None:
    async def send(port: int) -> None:
        channel = Channel(node.sim, 64, 4)
        await node.connect("127.0.0.1", port, channel)
        channel.send(b"anything")
        await node.end(channel)

    (tally,) = talk(node, "sink", send)
    assert (tally.unchecked, tally.errors, tally.verified) == (8, [], False)


def test_a_peer_that_is_not_rping_is_told_apart(node: Node) -> None:
    async def send(port: int) -> None:
        channel = Channel(node.sim, 64, 4)
        await node.connect("127.0.0.1", port, channel)
        channel.send(b"hello")
        await channel.over()
        channel.close()

    (tally,) = talk(node, "rping", send)
    assert tally.errors == ["a message of rping has 16 octets, not 5: is this rping?"]


def test_perftest_begins_as_the_real_one() -> None:
    assert list(perftest.STARTUP) == PERFTEST


@pytest.mark.parametrize("kind", ["send", "write", "read"])
def test_perftest_verifies_both_ways(node: Node, kind: str) -> None:
    ours: list[Tally] = []
    theirs = talk(node, "perftest", client(node, kind, 5, 4096, ours))
    for tally in (*ours, *theirs):
        assert tally.verified, tally
        assert (tally.messages, tally.octets) == (5, 5 * 4096)


def test_a_recording_plays_in_rnic_sim(tmp_path: Path) -> None:
    path = tmp_path / "session.pcap"
    with Recorder(path) as recorder, Node(recorder=recorder) as node:
        talk(node, "rping", client(node, "rping", 3, 3000, []))
    result = CliRunner().invoke(app, ["sim", str(path)])
    assert result.exit_code == 0, result.output
    # Two messages and a Read Request or a Read Response of each side in each turn, and a Write.
    assert "agree: " in result.output and "RTL and golden model on" in result.output
    # Both ends are recorded here.
    assert f" {2 * 3 * 7} messages delivered" in result.output, result.output[-300:]


@pytest.mark.parametrize("at", [4, 30])
def test_a_difference_between_gateware_and_model_is_found(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The gateware gets another packet than the model: with another opcode, or another payload."""
    plain = SimTransport.send

    def damaged(
        self: SimTransport, stream: int, sequence: int, octets: bytes, **named: bool
    ) -> None:
        changed = bytearray(octets)
        changed[at] ^= 1
        plain(self, stream, sequence, bytes(changed), **named)

    with Node(crc=False) as node:
        monkeypatch.setattr(SimTransport, "send", damaged)
        (tally,) = talk(node, "sink", client(node, "sink", 1, 100, []))
        assert len(tally.differences) == 1 and not tally.verified
        assert "gateware and golden model differ" in tally.differences[0]
        assert "FPDU 1, seed 1, cycle" in tally.differences[0]
        monkeypatch.undo()


def test_an_error_of_the_peer_is_the_models_too(node: Node) -> None:
    async def write(port: int) -> None:
        channel = Channel(node.sim, 64, 4)
        await node.connect("127.0.0.1", port, channel)
        channel.qp.post_send(Opcode.RDMA_WRITE, b"octets", stag=0x12345, to=0)
        reason = await channel.over()
        assert "Invalid STag" in str(reason)
        channel.close()

    (tally,) = talk(node, "sink", write)
    assert tally.differences == [] and "Invalid STag" in tally.errors[0]


def test_counters_that_differ_are_found() -> None:
    with Node() as node:
        node.sim._counts["DELIVERED"] += 1
        with pytest.raises(Differs, match="differ in DELIVERED, seed 1: expected 1, got 0"):
            node.sim.compare_counters()


def test_the_model_forgets_what_has_ended(node: Node) -> None:
    talk(node, "rping", client(node, "rping", 5, 100, []))
    assert isinstance(node.sim, LockStep)
    assert not list(node.sim.memory) and not node.sim.served


def test_a_disk_keeps_what_a_host_writes_in_lock_step(node: Node) -> None:
    octets = bytes(range(256)) * 64

    async def use(port: int) -> None:
        admin = await queue(node.pd, port, 0)
        _, number, _ = await admin.fabrics(CONNECT, data=names(0xFFFF, disk.NAME))
        one = await queue(node.pd, port, 1)
        await one.fabrics(CONNECT, (42, "<H", 1), data=names(number, disk.NAME))
        first, blocks = (40, "<Q", 3), (48, "<H", 31)
        assert (await one.command(1, first, blocks, namespace=1, data=octets))[0] == 0
        found = await one.command(2, first, blocks, namespace=1, space=len(octets))
        assert found == (0, 0, octets)
        for each in (one, admin):
            await each.endpoint.disconnect()

    async def nothing(port: int) -> None:
        """Stands for the second queue, which the first client opens."""

    tallies = talk(node, "nvme", use, nothing, size=1 << 20)
    counts = sorted((tally.messages, tally.octets, tally.unchecked) for tally in tallies)
    # Connect; and Connect, a write and a read. The data of Connect has 1,024 octets.
    assert counts == [(1, 1024, 1024), (3, 33792, 33792)]
    assert not any(tally.errors or tally.differences or tally.verified for tally in tallies)


@pytest.mark.long
@pytest.mark.parametrize(
    "faults", ["loss 1%", "delay 2ms reorder 95%", "duplicate 5%", "corrupt 1%"]
)
def test_a_bad_network_changes_nothing(node: Node, faults: str) -> None:
    """Linux's packets are lost, overtaken, repeated or damaged on their way to this side."""

    async def run() -> list[Row]:
        async with Guest(load(lambda *_: None), [PORT]) as guest:
            order = f"modprobe sch_netem && /bin/tc qdisc add dev eth0 root netem {faults}"
            assert not (await guest.run(order)).status
            return await demo(node, Virtual(guest), 20, 5000, lambda _: None)

    rows = asyncio.run(run())
    assert len(rows) == 5 and all(row.verified for row in rows), rows
