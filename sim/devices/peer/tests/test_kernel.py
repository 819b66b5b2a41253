"""This side's TCP and its frames; ``pytest --long``: a guest's kernel judges repeats."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dpkt
import pytest
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.sim.devices.guest.ethernet import Ethernet
from ddp_rnic.sim.devices.guest.image import load
from ddp_rnic.sim.devices.guest.machine import Guest
from ddp_rnic.sim.devices.peer import kernel, rping
from ddp_rnic.sim.devices.peer.channel import Tally
from ddp_rnic.sim.devices.peer.demo import PORT, Row
from ddp_rnic.sim.devices.peer.end import carry
from ddp_rnic.sim.devices.peer.kernel import KernelEnd, KernelNetwork
from ddp_rnic.sim.devices.peer.lossy import _Lender, lossy
from ddp_rnic.sim.devices.peer.network import Packet, Rates
from ddp_rnic.sim.devices.peer.node import Node
from ddp_rnic.sim.devices.peer.tests.test_both import an_end_at_hand_over
from ddp_rnic.sw_driver.cm.errors import ConnectError


class Other(Ethernet):
    """The other end of the cable."""

    _ENDS = "guest", "host"


@pytest.fixture
def cable(tmp_path: Path) -> Iterator[tuple[Ethernet, Ethernet]]:
    with Ethernet(tmp_path) as here, Other(tmp_path) as there:
        yield here, there


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    with Node() as one, Node() as other:
        yield one, other


def networks(
    cable: tuple[Ethernet, Ethernet], rates: Rates, counts: Counter[str]
) -> list[KernelNetwork]:
    return [KernelNetwork(each, rates, random.Random(at), counts) for at, each in enumerate(cable)]


@pytest.mark.parametrize("room", [*long(65535), 4000])
def test_rping_works_on_a_bad_network(
    cable: tuple[Ethernet, Ethernet],
    nodes: tuple[Node, Node],
    room: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RFC 9293 section 3.8.6: no more is sent than the window that the peer has named takes."""
    counts, outstanding = Counter[str](), 0
    put = KernelEnd.put

    def watch(end: KernelEnd, packet: Packet) -> None:
        nonlocal outstanding
        outstanding = max(outstanding, end._sender.outstanding)
        put(end, packet)

    monkeypatch.setattr(KernelEnd, "put", watch)
    monkeypatch.setattr(kernel, "_ROOM", room)
    tallies = Tally("server"), Tally("client")

    async def serve(network: KernelNetwork, channel: _Lender) -> None:
        channel.begin(await network.accept(nodes[0].pd, prepare=channel.prepare))
        await rping.serve(channel, tallies[0])
        await nodes[0].end(channel)

    async def run(network: KernelNetwork, channel: _Lender) -> None:
        channel.begin(await network.connect(nodes[1].pd, PORT, prepare=channel.prepare))
        await rping.run(channel, tallies[1], 8, 9000)
        await nodes[1].end(channel)

    async def play() -> None:
        both = networks(cable, Rates(0.1, 0.05, 0.1), counts)
        channels = [_Lender(node) for node in nodes]
        async with asyncio.TaskGroup() as group:
            carries = [
                group.create_task(carry(network, [node.pd.context], network.ends))
                for network, node in zip(both, nodes, strict=True)
            ]
            async with asyncio.TaskGroup() as works:
                works.create_task(serve(both[0], channels[0]))
                works.create_task(run(both[1], channels[1]))
            for task in carries:
                task.cancel()

    asyncio.run(play())
    assert all(tally.verified and tally.messages == 8 for tally in tallies), tallies
    assert counts["repeats"] > 3 and counts["lost"] > 10
    assert (1400 if room < 9000 else 9000) < outstanding <= room


def test_a_reset_ends_a_connection(
    cable: tuple[Ethernet, Ethernet], nodes: tuple[Node, Node]
) -> None:
    """RFC 9293 section 3.5.2: a reset ends start-up with the reason."""

    async def play() -> None:
        here, _ = networks(cable, Rates(0, 0, 0), Counter())
        carries = asyncio.create_task(carry(here, [nodes[0].pd.context], here.ends))
        accepting = asyncio.create_task(here.accept(nodes[0].pd))
        cable[1].send(dpkt.tcp.TCP(sport=1, dport=2, seq=9, flags=dpkt.tcp.TH_SYN))
        while not here.ends:
            await asyncio.sleep(0)
        cable[1].send(dpkt.tcp.TCP(sport=1, dport=2, seq=10, flags=dpkt.tcp.TH_RST))
        with pytest.raises(ConnectError, match="the peer has reset the connection"):
            await accepting
        assert not here.ends
        carries.cancel()

    asyncio.run(play())


def test_the_guest_gets_this_side_s_address(cable: tuple[Ethernet, Ethernet]) -> None:
    """RFC 826: the answer has the address that was asked for, and goes to who asked."""
    here, there = cable
    asked = dpkt.arp.ARP(
        sha=b"\x02" * 6, spa=socket.inet_aton("10.0.3.15"), tpa=socket.inet_aton("10.0.3.2")
    )
    for frame in (b"", b"short", bytes(12) + b"\x08\x00\x45"):
        there._socket.sendto(frame, str(there._there))
    there._send(dpkt.ethernet.ETH_TYPE_ARP, asked)
    assert [*here.receive()] == []
    answer = dpkt.ethernet.Ethernet(there._socket.recv(2000)).data
    assert (answer.op, answer.spa, answer.tpa) == (dpkt.arp.ARP_OP_REPLY, asked.tpa, asked.spa)
    assert answer.tha == asked.sha and answer.sha != asked.sha


def rows_of(tmp_path: Path, count: int, size: int, counts: Counter[str]) -> list[Row]:
    async def run() -> list[Row]:
        with ExitStack() as stack:
            node, cable = stack.enter_context(Node()), stack.enter_context(Ethernet(tmp_path))
            async with Guest(load(lambda *_: None), [PORT], cable) as guest:
                return await lossy(node, guest, cable, Rates(), counts, count, size, lambda _: None)

    return asyncio.run(run())


@pytest.mark.long
@pytest.mark.parametrize("count, size", [(100, 4000), (400, 64), (10, 60_000)])
def test_a_kernel_gets_what_was_sent_at_first(tmp_path: Path, count: int, size: int) -> None:
    """Buffers are overwritten right after each completion, and the kernel's data is still right."""
    counts = Counter[str]()
    rows = rows_of(tmp_path, count, size, counts)
    assert len(rows) == 5 and all(row.verified for row in rows), rows
    assert counts["repeats"] > 10


@pytest.mark.long
def test_a_kernel_finds_completions_at_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device ends messages that have left, and the driver does not know."""
    an_end_at_hand_over(monkeypatch)
    rows = rows_of(tmp_path, 100, 4000, Counter())
    assert not all(row.verified for row in rows), rows
