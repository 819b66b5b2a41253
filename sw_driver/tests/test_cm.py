"""Connections over loopback: the driver is at both ends, which receive through one gateware."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sw_driver import (
    PD,
    Access,
    Context,
    Device,
    InvalidRequest,
    RnicTimeout,
    StateError,
    UnsupportedDevice,
    WcStatus,
)
from ddp_rnic.sw_driver.cm import (
    ConnectionLost,
    ConnectionManager,
    ConnectRequest,
    ConnectTimeout,
    Disconnected,
    Endpoint,
    Listener,
    PrivateDataTooLong,
    Refused,
    Rejected,
    Rtr,
    StartupFrame,
    Terminated,
    connect,
)
from ddp_rnic.sw_driver.prm import connect as connect_to_manager
from ddp_rnic.sw_driver.rdmap import Layer, Opcode
from ddp_rnic.sw_driver.tests.managed import managed
from ddp_rnic.sw_driver.transports.recorded import Recorder

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
GOOD = WcStatus.SUCCESS


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    with SimTransport() as sim, Device(sim).open() as context:
        yield context


@pytest.fixture
def pd(context: Context) -> Iterator[PD]:
    """A protection domain; afterwards the device holds nothing of the test."""
    with PD(context) as pd:
        yield pd
        assert not context.streams and not context.cqs and not context.regions
        assert len(context.buffers) == context.capabilities.buffers


async def pair(
    pd: PD, theirs: dict[str, Any] | None = None, **ours: Any
) -> tuple[Endpoint, Endpoint, ConnectRequest]:
    """Returns the two ends of a connection, the client's first, and the request."""
    async with Listener(pd) as listener:
        client = asyncio.create_task(connect(pd, "127.0.0.1", listener.port, **ours))
        request = await listener.request()
        server = await request.accept(**(theirs or {}))
        return await client, server, request


async def finish(client: Endpoint, server: Endpoint) -> None:
    """Ends a connection gracefully on both sides."""
    await asyncio.gather(client.disconnect(), server.disconnect())
    assert await client.disconnected() is None and await server.disconnected() is None
    for end in (client, server):
        with pytest.raises(Disconnected, match="both sides have closed it"):
            while True:
                assert {wc.opcode for wc in await end.wait()} == {Opcode.HALF_CLOSED}


async def talk(pd: PD, one: Endpoint, other: Endpoint) -> None:
    """Makes each operation, in messages of several segments."""
    data = bytes(range(256)) * 300
    memory, sink, buffer = bytearray(len(data)), bytearray(50_000), bytearray(len(data))
    with pd.register(memory, ALL) as region:
        other.qp.post_recv(buffer, wr_id="received")
        one.qp.post_send(Opcode.RDMA_WRITE, data, wr_id=1, stag=region.stag)
        one.qp.post_send(Opcode.RDMA_READ, sink, wr_id=2, stag=region.stag, to=1000)
        one.qp.post_send(Opcode.SEND, data, wr_id=3)
        done: list[object] = []
        while len(done) < 3:
            done += [(wc.wr_id, wc.status) for wc in await one.wait(10)]
        assert done == [(1, GOOD), (2, GOOD), (3, GOOD)]
        (received,) = await other.wait(10)
    assert (received.wr_id, received.byte_len) == ("received", len(data))
    assert memory == buffer == data and sink == data[1000:51000]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


@pytest.mark.parametrize("revision", [1, 2])
@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("markers", [False, True])
def test_the_settings_are_what_either_side_asks_for(
    pd: PD, revision: int, crc: bool, markers: bool
) -> None:
    async def test() -> None:
        client, server, request = await pair(
            pd, {"private_data": b"welcome", "crc": False, "ird": 3, "ord": 9},
            private_data=b"hello", revision=revision, crc=crc, markers=markers, ird=5, ord=7,
        )  # fmt: skip
        assert (request.private_data, client.private_data) == (b"hello", b"welcome")
        assert server.private_data == b"hello"
        assert (request.revision, request.crc, request.markers) == (revision, crc, markers)
        assert not request.peer_to_peer
        limits = {1: ((None, None), (5, 7), (3, 9)), 2: ((5, 7), (5, 3), (3, 5))}[revision]
        ends = [(each.ird, each.ord) for each in (request, client, server)]
        assert tuple(ends) == limits
        await talk(pd, client, server)
        await talk(pd, server, client)
        await finish(client, server)

    run(test)


@pytest.mark.parametrize("rtr", list(Rtr), ids=lambda rtr: rtr.name)
def test_peer_to_peer_the_server_may_send_first(pd: PD, rtr: Rtr) -> None:
    async def test() -> None:
        def prepare(qp: Any) -> None:
            qp.post_recv(bytearray(5), wr_id="first")

        client, server, request = await pair(
            pd, {"rtr": rtr}, peer_to_peer=True, rtr=rtr, prepare=prepare
        )
        assert request.peer_to_peer and request.rtr is rtr
        server.qp.post_send(Opcode.SEND, b"hello", wr_id="sent")
        assert [wc.wr_id for wc in await client.wait(10)] == ["first"]
        assert [wc.wr_id for wc in await server.wait(10)] == ["sent"]
        await talk(pd, client, server)
        await finish(client, server)

    run(test)


def test_a_rejected_request_brings_the_private_data(pd: PD) -> None:
    async def test() -> None:
        async with Listener(pd) as listener:
            for revision in (1, 2):
                client = asyncio.create_task(
                    connect(pd, "127.0.0.1", listener.port, revision=revision, ird=5, ord=3)
                )
                await (await listener.request()).reject(b"no room")
                with pytest.raises(Rejected, match="refuses the connection.*no room") as caught:
                    await client
                assert caught.value.private_data == b"no room"
                # RFC 6581 section 9.1: the initiator must pass IRD and ORD "to the ULP for both MPA
                # Accept and Reject messages".
                limits = (3, 5) if revision == 2 else (None, None)
                assert (caught.value.ird, caught.value.ord) == limits
        with pytest.raises(Refused, match="nothing listens at .*: start the server first"):
            await connect(pd, "127.0.0.1", 1)

    run(test)


@pytest.mark.parametrize("revision", [1, 2])
def test_tcp_stays_open_after_a_refusal_for_whoever_keeps_it(pd: PD, revision: int) -> None:
    """RFC 5044 section 7.1.2: the implementation "MUST exit MPA, leaving the TCP connection open",
    the responder that rejects and the initiator that is rejected.
    """

    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with Listener(pd) as listener:
            client = asyncio.create_task(
                connect(pd, "127.0.0.1", listener.port, revision=revision, keep_tcp=True)
            )
            kept = await (await listener.request()).reject(b"another protocol", keep_tcp=True)
            assert kept is not None and kept.octets == b""
            await loop.sock_sendall(kept.sock, b"hello")
            with pytest.raises(Rejected) as caught:
                await client
        left = caught.value.tcp
        assert left is not None and caught.value.private_data == b"another protocol"
        with kept.sock, left.sock:
            found = left.octets
            while len(found) < 5:
                found += await loop.sock_recv(left.sock, 9)
            await loop.sock_sendall(left.sock, b"and back")
            assert found == b"hello" and await loop.sock_recv(kept.sock, 9) == b"and back"

    run(test)


@pytest.mark.parametrize("revision", [1, 2])
def test_an_initiator_that_fails_sends_a_terminate(pd: PD, revision: int) -> None:
    """RFC 6581 section 9.3: "The initiator or responder MUST generate the TERM message that
    contains Layer 2, Error Type 0, Error Code 5 when it encounters any error locally". RFC 5044
    has no such code.
    """

    def prepare(qp: Any) -> None:
        raise MemoryError("no room for receives")

    async def test() -> None:
        async with Listener(pd) as listener:
            client = asyncio.create_task(
                connect(pd, "127.0.0.1", listener.port, revision=revision, prepare=prepare)
            )
            server = await (await listener.request()).accept()
            reason = await server.disconnected(5)
            if revision == 2:
                assert isinstance(reason, Terminated) and reason.by_peer
                found = reason.terminate
                assert (found.layer, found.type, found.code) == (Layer.LLP, 0, 5)
            else:
                assert reason is None
            server.abort()
            with pytest.raises(MemoryError, match="no room for receives"):
                await client

    run(test)


def test_octets_after_a_start_up_frame_are_not_lost_by_a_refusal(pd: PD) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        request = StartupFrame(reply=False, revision=1).encode()
        async with Listener(pd) as listener:
            with socket.create_connection(("127.0.0.1", listener.port)) as peer:
                peer.sendall(request + b"early")
                kept = await (await listener.request()).reject(keep_tcp=True)
                assert kept is not None and kept.octets == b"early"
                kept.sock.close()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            port = server.getsockname()[1]
            client = asyncio.create_task(connect(pd, "127.0.0.1", port, keep_tcp=True))
            peer, _ = await loop.sock_accept(server)
            with peer:
                await loop.sock_recv(peer, 100)
                reply = StartupFrame(reply=True, revision=2, reject=True)
                await loop.sock_sendall(peer, reply.encode() + b"further")
                with pytest.raises(Rejected) as caught:
                    await client
                left = caught.value.tcp
                assert left is not None and left.octets == b"further"
                left.sock.close()

    run(test)


def test_a_peer_that_is_gone_before_its_refusal_leaves_nothing_open(pd: PD) -> None:
    async def test() -> None:
        async with Listener(pd) as listener:
            peer = socket.create_connection(("127.0.0.1", listener.port))
            peer.sendall(StartupFrame(reply=False, revision=1).encode())
            request = await listener.request()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            with pytest.raises(ConnectionLost):
                await request.reject(keep_tcp=True)

    run(test)


@pytest.mark.parametrize("revision", [1, 2])
def test_private_data_have_512_octets_with_the_fields_of_revision_2(pd: PD, revision: int) -> None:
    async def test() -> None:
        most = 512 if revision == 1 else 508
        with pytest.raises(PrivateDataTooLong, match=f"at most {most} octets in MPA revision"):
            await connect(pd, "127.0.0.1", 1, bytes(most + 1), revision=revision)
        client, server, request = await pair(
            pd, {"private_data": bytes(most)}, private_data=b"x" * most, revision=revision
        )
        assert (request.private_data, client.private_data) == (b"x" * most, bytes(most))
        await finish(client, server)

    run(test)


def test_what_cannot_be_asked_for_connects_to_nobody(pd: PD) -> None:
    async def test() -> None:
        attempts: list[tuple[dict[str, Any], str]] = [
            ({"ird": 65}, "ird must be from 0 to 64, which is the depth of the device's queues"),
            ({"revision": 1, "peer_to_peer": True}, "revision must be 2 for peer to peer"),
            ({"mulpdu": 127}, "mulpdu must be from 128 to 64768, not 127"),
            ({"timeout": "soon"}, "timeout must be seconds, or None"),
        ]
        for options, message in attempts:
            with pytest.raises(InvalidRequest, match=message):
                await connect(pd, "127.0.0.1", 1, **options)

    run(test)


def test_two_servers_on_one_device_do_not_mix(pd: PD) -> None:
    async def test() -> None:
        async with Listener(pd) as one, Listener(pd) as other:
            ends = []
            for listener in (one, other, one, other):
                name = b"one" if listener is one else b"other"
                client = asyncio.create_task(connect(pd, "127.0.0.1", listener.port, name))
                request = await listener.request(5)
                assert request.private_data == name
                server = await request.accept(name)
                ends.append((await client, server))
                assert ends[-1][0].private_data == name
            await asyncio.gather(*(talk(pd, *end) for end in ends))
            for end in ends:
                await finish(*end)
            with pytest.raises(RnicTimeout, match="no peer asked for a connection within 0.05 se"):
                await one.request(0.05)

    run(test)


def test_a_post_of_another_thread_is_sent_without_further_ado(pd: PD) -> None:
    async def test() -> None:
        client, server, _ = await pair(pd)
        server.qp.post_recv(bytearray(5), wr_id="received")
        thread = threading.Thread(target=client.qp.post_send, args=(Opcode.SEND, b"hello"))
        thread.start()
        assert [wc.wr_id for wc in await server.wait(10)] == ["received"]
        thread.join()
        assert [wc.opcode for wc in await client.wait(10)] == [Opcode.SEND]
        await finish(client, server)

    run(test)


def test_closing_a_connection_manager_ends_the_calls_of_other_threads(pd: PD) -> None:
    errors: list[str] = []

    def request() -> None:
        try:
            listener.request(60)
        except StateError as error:
            errors.append(str(error))

    with ConnectionManager(pd) as manager, manager.listen() as listener:
        threads = [threading.Thread(target=request) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(20)
    assert errors == ["the listener is closed"] * 3
    with ConnectionManager(pd) as manager:
        listener = manager.listen()
        threads = [threading.Thread(target=request) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        manager.close()
        for thread in threads:
            thread.join(20)
    assert len(errors) == 6 and {*errors[3:]} <= {
        "the listener is closed",
        "the connection manager is closed",
    }
    with pytest.raises(StateError, match="the connection manager is closed"):
        listener.request(1)


def test_programs_without_asyncio_wait_for_each_call(pd: PD) -> None:
    before = threading.active_count()
    with ConnectionManager(pd) as manager, manager.listen() as listener:
        outcome: list[object] = []

        def serve() -> None:
            buffer = bytearray(8)
            request = listener.request(10)
            with request.accept(b"yes", prepare=lambda qp: qp.post_recv(buffer)) as server:
                outcome.extend(wc.status for wc in server.wait(10))
                server.qp.post_send(Opcode.SEND, buffer)
                outcome.append(server.disconnected(10))
            listener.request(10).reject(b"no")

        thread = threading.Thread(target=serve)
        thread.start()
        answer = bytearray(8)
        with manager.connect(
            "127.0.0.1", listener.port, prepare=lambda qp: qp.post_recv(answer, wr_id="answer")
        ) as client:
            assert client.private_data == b"yes"
            client.qp.post_send(Opcode.SEND, b"question", wr_id="question")
            done: list[object] = []
            while len(done) < 2:
                done += [wc.wr_id for wc in client.wait(10)]
            with pytest.raises(RnicTimeout):
                client.wait(0)
        assert done == ["question", "answer"] and answer == b"question"
        with pytest.raises(Rejected, match="refuses the connection"):
            manager.connect("127.0.0.1", listener.port)
        thread.join()
        assert outcome == [GOOD, None]
        with pytest.raises(ConnectTimeout):
            manager.connect("127.0.0.1", listener.port, timeout=0.05)
        left = listener.request(5)  # and the end of the block drops it
    with pytest.raises(StateError, match="the connection manager is closed"):
        left.reject()
    assert threading.active_count() == before


def test_a_device_that_takes_no_packets_of_the_host_says_so(tmp_path: Path) -> None:
    async def test(context: Context) -> None:
        with PD(context) as pd:
            await connect(pd, "127.0.0.1", 1)

    with SimTransport() as sim, Recorder(sim, tmp_path / "session") as recorder:
        with Device(recorder).open() as context:
            with pytest.raises(UnsupportedDevice, match="Recorder cannot hand the device what a s"):
                asyncio.run(test(context))
    with managed(tmp_path), connect_to_manager(tmp_path / "rnic.sock") as shared:
        with pytest.raises(UnsupportedDevice, match="a manager shares .*: open the device"):
            asyncio.run(test(shared))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the segments")
@pytest.mark.parametrize("length", [0, 100, 5000, 20_001])
def test_tcp_segments_begin_with_fpdus(pd: PD, length: int) -> None:
    """RFC 5044 section 5.1: FPDUs are aligned with TCP segments, whose size gives the MULPDU.

    Several short FPDUs share a segment. Linux's siw needs whole ones: a PAD or CRC alone in the
    next segment fails there.
    """
    offset_of_total_retrans, offset_of_data_segs_out, count = 100, 156, 3 if length > 10_000 else 30

    def segments(endpoint: Endpoint) -> int:
        assert endpoint._sock is not None
        info = endpoint._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
        (repeated,) = struct.unpack_from("I", info, offset_of_total_retrans)
        return int(struct.unpack_from("I", info, offset_of_data_segs_out)[0] - repeated)

    async def test() -> None:
        client, server, _ = await pair(pd)
        for _ in range(count):
            server.qp.post_recv(bytearray(length) or None)
        before = segments(client)
        for _ in range(count):
            client.qp.post_send(Opcode.SEND, bytes(length))
        fpdus = 0
        while fpdus < count:
            fpdus += len(await server.wait(10))
        mss = client._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)  # type: ignore[union-attr]
        assert mss <= 32768 // 4
        room = mss - 6 - mss % 4 - 18
        expected = left = 0
        for at in [*range(0, max(length, 1), room)] * count:
            octets = (2 + 18 + min(room, length - at) + 3) // 4 * 4 + 4
            if octets > left:
                expected, left = expected + 1, mss
            left -= octets
        assert segments(client) - before == expected
        while await client.wait(0.1, 100):
            break
        client.abort()
        server.abort()

    run(test)


def test_a_device_without_work_is_left_alone_and_an_answer_comes_soon(pd: PD) -> None:
    sim = pd.context.transport
    assert isinstance(sim, SimTransport)

    async def test() -> None:
        client, server, _ = await pair(pd)
        buffer, before = bytearray(64), sim.cycle
        with pytest.raises(RnicTimeout):
            await client.wait(0.1)
        assert sim.cycle == before
        for one, other in ((client, server), (server, client)) * 10:
            other.qp.post_recv(buffer)
            one.qp.post_send(Opcode.SEND, bytes(64))
            for end in (one, other):
                assert len(await end.wait(10)) == 1
        # A message takes the device about 150 cycles, and the driver's accesses as many again.
        assert sim.cycle - before < 20 * 600
        await finish(client, server)

    run(test)
