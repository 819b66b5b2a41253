"""Associations with a kernel: this side's SCTP; ``pytest --long``: a guest's kernel judges."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from ddp_rnic.hdl.spec.send import Record
from ddp_rnic.sim.devices.guest.ethernet import Ethernet
from ddp_rnic.sim.devices.guest.image import load
from ddp_rnic.sim.devices.guest.machine import Guest
from ddp_rnic.sim.devices.peer import over_sctp as played
from ddp_rnic.sim.devices.peer.association import Received, SctpNetwork
from ddp_rnic.sim.devices.peer.demo import Row
from ddp_rnic.sim.devices.peer.end import carried
from ddp_rnic.sim.devices.peer.network import Rates
from ddp_rnic.sim.devices.peer.over_sctp import (
    PORT,
    RELAY,
    STREAMS,
    Exchange,
    SctpNode,
    SctpPath,
    associated,
    bring_up,
    over_sctp,
)
from ddp_rnic.sim.devices.peer.record import Recorder
from ddp_rnic.sim.devices.peer.relay import RelayStream
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.memory import Memory, Region
from ddp_rnic.sim.model.rdmap import Opcode, rsvdulp
from ddp_rnic.sim.model.sctp import Function, Ppid, SackChunk, Session, SessionControl
from ddp_rnic.sw_driver import WcStatus
from ddp_rnic.sw_driver.cm import Enhanced
from ddp_rnic.sw_driver.verbs.chunks import ChunkHalf
from scapy.layers.sctp import SCTPChunkSACK

#: Wireshark's words for chunks that were sent again, and for many that are missing. It forgets that
#: TSNs wrap, and then takes chunks for acknowledged.
HARMLESS = {
    "Retransmitted TSN",
    "More than 100 TSNs were gap-acknowledged in this SACK.",
    "This TSN was acked prior to this retransmission (reneged ack?).",
}
#: Wireshark's words for a window of no octets. The kernel may close its window at any time: the
#: relay takes nothing while the kernel has no room for the relay's own messages.
CLOSED = "Zero Advertised Receiver Window Credit"
#: A filter for the kernel's packets.
KERNEL = f"sctp.srcport == {PORT}"


class Bench(NamedTuple):
    node: SctpNode
    guest: Guest
    network: SctpNetwork
    counts: Counter[str]


@asynccontextmanager
async def bench(folder: Path, rates: Rates | None = None) -> AsyncIterator[Bench]:
    """Starts a guest, and a device on its Ethernet; the file ``pcap`` gets all frames."""
    counts = Counter[str]()
    with Ethernet(folder) as cable, SctpNode() as node, Recorder(folder / "pcap") as recorder:
        async with Guest(load(lambda *_: None), [RELAY], cable) as guest:
            network = SctpNetwork(cable, node.sim, rates, counts, recorder.frame, seed=1)
            yield Bench(node, guest, network, counts)


def rows_of(folder: Path, count: int, size: int, rates: Rates | None) -> tuple[list[Row], Counter]:
    async def run() -> tuple[list[Row], Counter]:
        async with bench(folder, rates) as (node, guest, network, counts):
            return await over_sctp(node, guest, network, count, size, str), counts

    return asyncio.run(run())


def complaints(pcap: Path) -> set[str]:
    """Returns Wireshark's warnings and errors, except that the kernel has closed its window."""
    return warnings(pcap, f"!({KERNEL})") | warnings(pcap, KERNEL) - {CLOSED}


def warnings(pcap: Path, which: str) -> set[str]:
    """Returns Wireshark's warnings and errors about some packets. It checks all checksums."""
    options = [f"{each}:TRUE" for each in ("ip.check_checksum", "udp.check_checksum")]
    options.append("sctp.checksum:crc32c")
    tshark = ["tshark", "-r", str(pcap), *(f"-o{each}" for each in options)]
    tshark += ["-Y", f"_ws.expert && {which}", "-T", "fields", "-E", "aggregator=|"]
    tshark += ["-e", "_ws.expert.message"]
    found = subprocess.run(tshark, check=True, capture_output=True, text=True).stdout
    return {each for line in found.splitlines() for each in line.split("|")}


def test_received_tsns_are_acknowledged() -> None:
    """RFC 9260 section 3.3.4: the Cumulative TSN Ack is "the TSN of the last DATA chunk received in
    sequence before a gap"; gap blocks are offsets from it, and duplicates are listed once.
    """
    received = Received((1 << 32) - 2)
    found = [received.take(tsn % (1 << 32)) for tsn in (-2, 1, 2, -2, 4, 1)]
    assert found == [True, True, True, False, True, False]
    sack = SackChunk((1 << 32) - 2, 5, ((3, 4), (6, 6)), ((1 << 32) - 2, 1))
    assert received.sack(5) == sack
    assert SCTPChunkSACK(sack.encode()).gap_ack_list == ["3:4", "6:6"]
    for tsn in (-1, 0, 3):
        assert received.take(tsn % (1 << 32))
    assert received.sack(5) == SackChunk(4, 5)


@pytest.mark.parametrize("fault", [None, 0, 17, 40])
def test_each_segment_is_compared_with_that_of_the_golden_model(fault: int | None) -> None:
    """The MULPDU changes within a message. One octet is wrong: of the header, or of the payload."""
    memory, message = Memory(), bytes(range(250)) * 10
    memory.register(Region(stag=0x100, to=0, length=len(message), stream=0))
    peer, host, source = RelayStream(0, memory, 700), Session(0), DataSource(700)
    assert list(peer.receive(Ppid.CONTROL, host.control(Function.INITIATE), True))
    host.receive(Ppid.CONTROL, b"\0\0\0\2")
    peer.expect(Opcode.RDMA_WRITE, message, stag=0x100)
    peer.resize(600)
    control = rsvdulp(Opcode.RDMA_WRITE, tagged=True)
    for number, each in enumerate(source.begin_tagged(0x100, 0, message, rsvdulp=control)):
        segment = bytearray(each)
        if number == 2 and fault is not None:
            segment[fault] ^= 1
        assert not list(peer.receive(Ppid.SEGMENT, host.segment(bytes(segment)), True))
        source.mulpdu = 600
    assert peer.segments == 5 and bool(peer.differences) == (fault is not None)
    assert (memory.octets(0x100) == message) == (fault is None)


def test_the_peer_accepts_an_enhanced_session_with_the_limits_that_fit() -> None:
    """RFC 6581 section 7: "Enhanced RDMA connection establishment uses the first 32 bits of the
    Private Data field for IRD and ORD negotiation".
    """
    peer, host = RelayStream(0, Memory(), 700), Session(0)
    initiate = host.control(Function.ENHANCED_INITIATE, Enhanced(3, 5).encode() + b"a text")
    ((ppid, answer),) = peer.receive(Ppid.CONTROL, initiate, True)
    (accepted,) = host.receive(ppid, answer)
    assert isinstance(accepted, SessionControl)
    assert accepted.function is Function.ENHANCED_ACCEPT
    assert Enhanced.decode(accepted.private_data) == Enhanced(5, 3) and not peer.differences


def test_a_chunk_that_is_not_unordered_is_noticed() -> None:
    """RFC 5043 section 10: "The adaptation layer MUST use the Unordered option on all Data
    Chunks".
    """
    peer = RelayStream(0, Memory(), 700)
    assert not list(peer.receive(Ppid.CONTROL, Session(0).control(Function.INITIATE), False))
    assert "Unordered" in peer.differences[0]


@pytest.mark.long
@pytest.mark.parametrize("count, size", [(20, 4000), (100, 64), (2, 60_000)])
def test_a_kernel_receives_what_the_device_sends_over_sctp(
    tmp_path: Path, count: int, size: int
) -> None:
    """The golden model sends the same segments, and SACK chunks of the kernel give the credit."""
    rows, _ = rows_of(tmp_path, count, size, None)
    assert len(rows) == 4 and all(row.verified for row in rows), rows
    assert complaints(tmp_path / "pcap") <= HARMLESS


@pytest.mark.long
@pytest.mark.parametrize("count, size", [(20, 4000), (100, 64), (2, 60_000)])
def test_a_kernel_gets_over_a_bad_path_what_was_sent_at_first(
    tmp_path: Path, count: int, size: int
) -> None:
    """Each buffer is overwritten right after its completion. Packets are lost, come twice, and
    overtake others; the path MTU drops, so that longer chunks leave again in IP fragments, which
    the kernel joins.
    """
    rows, counts = rows_of(tmp_path, count, size, Rates())
    assert len(rows) == 4 and all(row.verified for row in rows), rows
    assert counts["lost"] > 20 and (size < 1000 or counts["long"] > 0)
    assert complaints(tmp_path / "pcap") <= HARMLESS


@pytest.mark.long
def test_a_kernel_finds_completions_before_its_acknowledgment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault ends messages that have left: lost chunks leave again with other octets."""
    left = ChunkHalf.left

    def ended(half: ChunkHalf, record: Record) -> None:
        left(half, record)
        half.arrived(record)

    monkeypatch.setattr(ChunkHalf, "left", ended)
    monkeypatch.setattr(played, "PATHS", (SctpPath(False, True),))
    monkeypatch.setattr(played, "PATIENCE", 60.0)
    (row,), _ = rows_of(tmp_path, 20, 4000, Rates(loss=0.1))
    assert any("is not that of the golden model" in each for each in row.complaints), row


@pytest.mark.long
def test_a_bus_error_of_one_stream_leaves_the_others_alive(tmp_path: Path) -> None:
    """RFC 5043 section 11.3: "termination of a DDP Stream does not mandate termination of the
    Association."
    """

    async def exchange(node: SctpNode, guest: Guest, network: SctpNetwork) -> None:
        async with associated(node, guest, network, SctpPath(False, True)) as (end, relay):
            bad, *good = (
                Exchange(node, end, relay, sid, 20, 4000, network.rng) for sid in range(STREAMS)
            )
            for extent in bad.region.mapping.memory.extents:
                node.sim.fault(range(extent.address + 50_000, extent.address + extent.length))

            def served() -> bool:
                for each in (bad, *good):
                    each.serve()
                return len(bad.ended) == 60 and all(each.done for each in good)

            assert await end.until(served, 100)
            found = Counter(bad.ended)
            assert found[WcStatus.SUCCESS] > 0 and found[WcStatus.FLUSHED] > 0
            assert found[WcStatus.NOT_READ] == 1
            assert not any([*each.complaints()] for each in good)
            assert not bad.peer.differences

    async def run() -> None:
        async with bench(tmp_path, Rates()) as (node, guest, network, _):
            await bring_up(guest)
            work = exchange(node, guest, network)
            await carried(network, [node.context], network.ends, work)

    asyncio.run(run())


@pytest.mark.long
def test_a_window_that_is_closed_stops_the_device(tmp_path: Path) -> None:
    """RFC 9260 section 6.1, A: "At any given time, the data sender MUST NOT transmit new data to
    any destination transport address if its peer's rwnd indicates that the peer has no buffer
    space". The program of the guest takes nothing for a while.
    """

    async def exchange(node: SctpNode, guest: Guest, network: SctpNetwork) -> None:
        async with associated(node, guest, network, SctpPath(False, True)) as (end, relay):
            one = Exchange(node, end, relay, 0, 20, 10_000, network.rng)

            def served(ready: Callable[[], bool]) -> bool:
                one.serve()
                return ready()

            assert await end.until(lambda: served(lambda: bool(one.ended)), 20)
            await guest.run("killall -STOP sctp_relay")
            assert not await end.until(lambda: served(lambda: one.done), 8)
            before = len(one.ended)
            assert not await end.until(lambda: served(lambda: len(one.ended) > before), 5)
            await guest.run("killall -CONT sctp_relay")
            assert await end.until(lambda: served(lambda: one.done), 100)
            assert not [*one.complaints()]

    async def run() -> None:
        async with bench(tmp_path) as (node, guest, network, _):
            await bring_up(guest)
            work = exchange(node, guest, network)
            await carried(network, [node.context], network.ends, work)

    asyncio.run(run())
    assert complaints(tmp_path / "pcap") <= HARMLESS
    assert CLOSED in warnings(tmp_path / "pcap", KERNEL)
