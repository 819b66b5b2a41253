"""Connections to peers that a socket plays: octets of Linux's siw, and peers that do not keep to
MPA.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.model.ddp import DataSource, decode_segment
from ddp_rnic.sim.model.mpa import Enhanced, Fpdu, MpaReceiver, MpaSender, StartupFrame
from ddp_rnic.sim.model.rdmap import Opcode as Message
from ddp_rnic.sim.model.rdmap import ReadRequest, rsvdulp
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    Access,
    Context,
    Device,
    InvalidRequest,
    ResourceExhausted,
    RnicTimeout,
    StateError,
    Stream,
    TransportError,
    WcStatus,
)
from ddp_rnic.sw_driver.cm import (
    ConnectionLost,
    ConnectTimeout,
    Endpoint,
    InsufficientIrd,
    InvalidStartup,
    Listener,
    NoCommonRtr,
    PrivateDataTooLong,
    Rtr,
    Terminated,
    Unreachable,
    connect,
)
from ddp_rnic.sw_driver.rdmap import Opcode

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HOST = "127.0.0.1"

# --- recorded: rping of Linux's siw, of the project's captures, without its data ------------------

REQUEST = bytes.fromhex("4d504120494420526571204672616d65 5002 0004 00010001")
REPLY = bytes.fromhex("4d504120494420526570204672616d65 5002 0004 00010001")
#: The client's Sends: address, STag and length of its source, then of its sink.
SOURCE = bytes.fromhex(
    "0022 4143 00000000 00000000 00000001 00000000 000055cf3a8e5760 639abf00 00000064 27da892a"
)
SINK = bytes.fromhex(
    "0022 4143 00000000 00000000 00000002 00000000 000055cf3a8e22a0 ea78fe00 00000064 dbdb8db0"
)
#: The server's answers: its Read Request up to the sink, and from the length to the source, then
#: "go ahead", the Write, and "go ahead" again.
READ = bytes.fromhex("002e 4141 00000000 00000001 00000001 00000000")
READ_END = bytes.fromhex("00000064 639abf00 000055cf3a8e5760")
GO_AHEAD = bytes.fromhex("0022 4143 00000000 00000000 00000001 00000000" + 16 * "00" + "84609a12")
DATA = bytes.fromhex(
    "72646d612d70696e672d303a204142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f60616263"
    "6465666768696a6b6c6d6e6f707172737475767778797a4142434445464748494a4b4c4d4e4f50515253545556575859"
    "5a5b5c00"
)
WRITE = bytes.fromhex("0072 c140 ea78fe00 000055cf3a8e22a0") + DATA + bytes.fromhex("1a0545a4")
AGAIN = bytes.fromhex("0022 4143 00000000 00000000 00000002 00000000" + 16 * "00" + "b3e68405")
#: siw's Terminate of a Send for which no receive was posted: its fields are swapped.
TERMINATE = bytes.fromhex(
    "002a 4147 00000000 00000002 00000001 00000000"
    "21020300 0010 4143 00000000 00000000 00000001 00000000 b7a5e82f"
)


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


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


class Peer:
    """A socket that listens and plays one connection; its port is ``port``."""

    def __init__(self, play: Play) -> None:
        self._play, self._played = play, asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Peer:
        self._server = await asyncio.start_server(self._take, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._play(reader, writer)
            self._played.set_result(None)
        except BaseException as error:
            self._played.set_exception(error)
        finally:
            writer.close()

    async def __aexit__(self, *error: object) -> None:
        if error[0] is None:
            await self._played
        else:
            self._played.cancel()
        self._server.close()


async def dial(listener: Listener, octets: bytes) -> tuple[Any, asyncio.StreamReader, Any]:
    """Connects a socket that sends octets; returns the listener's request, and its two ends."""
    reader, writer = await asyncio.open_connection(HOST, listener.port)
    writer.write(octets)
    return await listener.request(), reader, writer


# --- siw ------------------------------------------------------------------------------------------


def test_a_server_answers_the_kernels_rping_as_the_kernel_did(pd: PD) -> None:
    async def kernel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(REPLY)) == REPLY
        read = await reader.readexactly(52)
        assert read[: len(READ)] == READ and read[-20:-4] == READ_END
        assert MpaReceiver().receive(read)[0].raw == read
        sink = ReadRequest.decode(read[20:48])
        (segment,) = DataSource(1440).tagged(
            sink.sink_stag, sink.sink_to, DATA, rsvdulp=rsvdulp(Message.READ_RESPONSE, tagged=True)
        )
        response = MpaSender().send(segment)
        writer.write(response)
        assert await reader.readexactly(len(GO_AHEAD)) == GO_AHEAD
        writer.write(SINK)
        assert await reader.readexactly(len(WRITE + AGAIN)) == WRITE + AGAIN
        writer.close()

    async def test() -> None:
        async with Listener(pd) as listener:
            # The kernel's first Send comes right after its request.
            request, reader, writer = await dial(listener, REQUEST + SOURCE)
            playing = asyncio.create_task(kernel(reader, writer))
            assert (request.ird, request.ord, request.crc, request.markers) == (1, 1, True, False)
            adverts = [bytearray(16), bytearray(16)]

            def prepare(qp: Any) -> None:
                for advert in adverts:
                    qp.post_recv(advert)

            async with await request.accept(prepare=prepare) as server:
                assert (server.ird, server.ord) == (1, 1)
                data = bytearray(100)
                await server.wait(5)
                to, stag = int.from_bytes(adverts[0][:8]), int.from_bytes(adverts[0][8:12])
                server.qp.post_send(Opcode.RDMA_READ, data, stag=stag, to=to)
                await server.wait(5)
                assert data == DATA
                server.qp.post_send(Opcode.SEND, bytes(16))
                while not any(adverts[1]):
                    await server.wait(5)
                to, stag = int.from_bytes(adverts[1][:8]), int.from_bytes(adverts[1][8:12])
                server.qp.post_send(Opcode.RDMA_WRITE, data, stag=stag, to=to)
                server.qp.post_send(Opcode.SEND, bytes(16))
                assert await server.disconnected(5) is None
            await playing

    run(test)


def test_a_client_asks_as_the_kernels_rping_did(pd: PD) -> None:
    async def kernel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(REQUEST)) == REQUEST
        writer.write(REPLY)
        assert await reader.readexactly(len(SOURCE)) == SOURCE
        writer.write(GO_AHEAD)
        assert await reader.read() == b""

    async def test() -> None:
        async with Peer(kernel) as peer:
            async with await connect(pd, HOST, peer.port, ird=1, ord=1) as client:
                client.qp.post_recv(bytearray(16), wr_id="go ahead")
                client.qp.post_send(Opcode.SEND, SOURCE[20:36], wr_id="source")
                done: list[object] = []
                while len(done) < 2:
                    done += [wc.wr_id for wc in await client.wait(5)]
                assert done == ["source", "go ahead"]

    run(test)


def test_a_terminate_of_siw_has_a_note(pd: PD) -> None:
    async def kernel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST))
        writer.write(REPLY)
        await reader.readexactly(24)
        writer.write(TERMINATE)
        await reader.read()

    async def test() -> None:
        async with Peer(kernel) as peer:
            client = await connect(pd, HOST, peer.port)
            client.qp.post_send(Opcode.SEND)
            assert [wc.status for wc in await client.wait(5)] == [WcStatus.SUCCESS]
            with pytest.raises(Terminated) as caught:
                await client.wait(5)
            assert caught.value.by_peer
            assert "the peer has terminated the connection: LLP 0x1/0x02" in str(caught.value)
            meant = "from Linux's siw, which swaps fields, this means DDP 0x2/0x02 Invalid MSN"
            assert meant in str(caught.value)

    run(test)


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_a_first_message_can_wait_for_siw(pd: PD, delay: float) -> None:
    """siw can miss an FPDU that comes right after its reply."""

    async def test() -> None:
        loop, waited = asyncio.get_running_loop(), 0.0

        async def kernel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal waited
            await reader.readexactly(len(REQUEST))
            writer.write(REPLY)
            begun = loop.time()
            await reader.readexactly(len(SOURCE))
            waited = loop.time() - begun
            await reader.read()

        async with Peer(kernel) as peer:
            async with await connect(pd, HOST, peer.port, delay=delay) as client:
                client.qp.post_send(Opcode.SEND, SOURCE[20:36])
                await client.wait(5)
        assert (waited > 0.15) == bool(delay)

    run(test)


def test_a_server_can_speak_first(pd: PD) -> None:
    """As ucmatose does, against RFC 5044 section 7.1.2. Otherwise the server waits."""

    async def test() -> None:
        async with Listener(pd) as listener:
            for speaks in (False, True):
                request, reader, writer = await dial(listener, REQUEST)
                server = await request.accept(speak_first=speaks, delay=0.05)
                server.qp.post_send(Opcode.SEND, bytes(16))
                assert await reader.readexactly(len(REPLY)) == REPLY
                first = asyncio.create_task(reader.readexactly(len(GO_AHEAD)))
                await asyncio.wait([first], timeout=0.3)
                assert first.done() == speaks
                if speaks:
                    assert first.result() == GO_AHEAD
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
                writer.close()
                await server.disconnect()

    run(test)


# --- peers that do not keep to MPA ----------------------------------------------------------------


def reply(**fields: Any) -> bytes:
    return StartupFrame(**{"kind": "reply", "revision": 2, **fields}).encode()


@pytest.mark.parametrize(
    ("octets", "error", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", InvalidStartup, "check that the peer speaks iWARP"),
        (b"", ConnectionLost, "closed the connection during start-up: .* try revision=1"),
        (reply()[:19], ConnectionLost, "closed the connection during start-up"),
        (reply(revision=1), InvalidStartup, "not a reply of the requested revision 2: try revis"),
        (reply(kind="request"), InvalidStartup, "the answer is not a reply"),
        (REPLY[:18] + b"\x02\x01" + bytes(513), InvalidStartup, "at most 512 octets, not 513"),
        (REPLY[:17] + b"\x03" + REPLY[18:], InvalidStartup, "revision must be 1 or 2, not 3"),
        (
            reply(enhanced=Enhanced(ird=1, ord=5)), InsufficientIrd,
            "insists on 5 outstanding RDMA Reads: connect with an ird of at least 5, not 4",
        ),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_has_its_exception(
    pd: PD, octets: bytes, error: type[Exception], message: str
) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST))
        writer.write(octets)
        writer.write_eof()
        # RFC 6581 section 8: the Terminate has Layer 2, Error Type 0, Error Code 6.
        rest = await reader.read()
        assert rest[20:24] == (bytes([0x20, 6, 0, 0]) if error is InsufficientIrd else b"")

    async def test() -> None:
        async with Peer(play) as peer:
            with pytest.raises(error, match=message):
                await connect(pd, HOST, peer.port, ird=4)

    run(test)


@pytest.mark.parametrize(
    "enhanced",
    [Enhanced(ird=1, ord=1), Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_write=True)],
)
def test_without_a_common_ready_to_receive_message_there_is_no_connection(
    pd: PD, enhanced: Enhanced
) -> None:
    """RFC 6581 section 9.2: "If the initiator is not able to generate any of the
    responder-supported RTR indications, then it MUST send a TERM message".
    """

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST))
        writer.write(reply(enhanced=enhanced))
        assert (await reader.read())[20:24] == bytes([0x20, 7, 0, 0])

    async def test() -> None:
        async with Peer(play) as peer:
            with pytest.raises(NoCommonRtr, match="offer another rtr, or connect without peer_to"):
                await connect(pd, HOST, peer.port, peer_to_peer=True, rtr=Rtr.READ)

    run(test)


def test_silence_ends_after_the_time_that_was_given(pd: PD) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with pytest.raises(ConnectionResetError):  # aborted
            while await reader.read(100):
                pass

    async def test() -> None:
        async with Peer(play) as peer:
            with pytest.raises(ConnectTimeout, match="did not answer within 0.2 seconds"):
                await connect(pd, HOST, peer.port, timeout=0.2)
        async with Listener(pd, timeout=0.1) as listener:
            reader, writer = await asyncio.open_connection(HOST, listener.port)
            writer.write(REQUEST[:-1])
            assert await reader.read() == b""  # half a request, and nothing for 0.1 seconds
            writer.close()
            asked = Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_write=True)
            frame = StartupFrame(kind="request", revision=2, enhanced=asked).encode()
            request, reader, writer = await dial(listener, frame)
            with pytest.raises(ConnectTimeout, match="did not answer within 0.2 seconds"):
                await request.accept(timeout=0.2)  # the ready-to-receive message does not come
            writer.close()

    run(test)


def test_a_listener_closes_what_is_no_request_and_serves_the_next(pd: PD) -> None:
    """RFC 5044 section 7.1.3: nothing is answered."""

    async def test() -> None:
        async with Listener(pd) as listener:
            long = REQUEST[:18] + b"\x02\x01" + bytes(513)
            for octets in (b"GET / HTTP/1.1\r\n", REPLY, long, REQUEST[:17] + b"\3\0\0"):
                reader, writer = await asyncio.open_connection(HOST, listener.port)
                writer.write(octets)
                try:
                    assert await reader.read() == b""
                except ConnectionResetError:
                    pass  # it left octets unread
                writer.close()
            request, _, writer = await dial(listener, REQUEST)
            writer.close()
            await asyncio.sleep(0.05)
            with pytest.raises(ConnectionLost, match="closed the connection before it was acc"):
                await request.accept()
            request, _, writer = await dial(listener, REQUEST)
            waiting = asyncio.create_task(listener.request())
            await asyncio.sleep(0)
        with pytest.raises(Exception, match="the listener is closed"):
            await waiting
        writer.close()

    run(test)


def test_an_address_that_leads_nowhere_says_so(pd: PD) -> None:
    async def test() -> None:
        with pytest.raises(Unreachable, match=r"no-such-host\.invalid has no address .*: check"):
            await connect(pd, "no-such-host.invalid", 1)
        async with Listener(pd) as listener:
            with pytest.raises(Exception, match="cannot listen at .*: choose another"):
                async with Listener(pd, port=listener.port):
                    pass

    run(test)


# --- the end --------------------------------------------------------------------------------------


async def accepted(listener: Listener, **options: Any) -> tuple[Endpoint, Any, Any]:
    request, reader, writer = await dial(listener, REQUEST)
    server = await request.accept(**options)
    assert (await reader.readexactly(len(REPLY)))[:16] == REPLY[:16]
    return server, reader, writer


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes a socket so that the other end is reset."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def sends(*messages: bytes) -> bytes:
    source, sender = DataSource(1440), MpaSender()
    send = rsvdulp(Message.SEND, tagged=False)
    return b"".join(
        sender.send(segment)
        for message in messages
        for segment in source.untagged(0, message, rsvdulp=send)
    )


def test_a_send_without_a_receive_ends_with_a_message_that_says_so(pd: PD) -> None:
    async def test() -> None:
        async with Listener(pd) as listener:
            server, reader, writer = await accepted(
                listener, prepare=lambda qp: qp.post_recv(bytearray(5), wr_id="only")
            )
            writer.write(sends(b"first", b"second"))
            assert [wc.wr_id for wc in await server.wait(5)] == ["only"]
            with pytest.raises(Terminated, match="no receive was posted; post more receives"):
                await server.wait(5)
            (fpdu,) = MpaReceiver().receive(await reader.read())
            assert isinstance(fpdu, Fpdu) and decode_segment(fpdu.ulpdu)[1][:2] == b"\x12\x02"
            writer.close()
            assert isinstance(await server.disconnected(5), Terminated)

    run(test)


def test_an_overrun_names_the_depth_of_the_cq(pd: PD) -> None:
    async def test() -> None:
        async with Listener(pd) as listener:
            server, _, writer = await accepted(
                listener, cqe=2, prepare=lambda qp: [qp.post_recv(bytearray(5)) for _ in range(9)]
            )
            writer.write(sends(*[b"12345"] * 9))
            with pytest.raises(Terminated, match="the CQ holds 2 messages, and more came .*larger"):
                while True:
                    await server.wait(5)
            writer.close()

    run(test)


@pytest.mark.parametrize("end", ["whole", "within an FPDU", "reset"])
def test_the_last_octets_before_the_end_arrive(pd: PD, end: str) -> None:
    messages = [bytes([k]) * 1000 for k in range(30)]

    async def test() -> None:
        async with Listener(pd) as listener:
            buffers = [bytearray(1000) for _ in messages]
            server, reader, writer = await accepted(
                listener, prepare=lambda qp: [qp.post_recv(buffer) for buffer in buffers]
            )
            octets = sends(*messages)
            writer.write(octets[:-1] if end == "within an FPDU" else octets)
            if end == "reset":
                await writer.drain()
                while not any(buffers[-1]):
                    await server.wait(5)
                reset(writer)
                assert isinstance(await server.disconnected(5), ConnectionLost)
                return
            writer.write_eof()
            reason = await server.disconnected(5)
            if end == "whole":
                assert reason is None and buffers == messages
                await server.disconnect()
            else:
                assert isinstance(reason, Terminated) and "LLP 0x0/0x01" in str(reason)
                assert buffers[:-1] == messages[:-1] and not any(buffers[-1])
            await reader.read()
            writer.close()

    run(test)


def test_one_slow_connection_holds_up_no_other_and_keeps_its_octets_in_tcp(pd: PD) -> None:
    """A peer that sends more than the device takes is slowed down by TCP."""

    async def test() -> None:
        big, small = bytearray(20 << 20), bytearray(5)
        async with Listener(pd) as listener:
            with pd.register(big, Access.LOCAL_WRITE | Access.REMOTE_WRITE) as region:
                flooded, _, flood = await accepted(listener)
                server, _, writer = await accepted(listener, prepare=lambda qp: qp.post_recv(small))
                source, sender = DataSource(1440), MpaSender(crc=False)
                write = rsvdulp(Message.RDMA_WRITE, tagged=True)
                segments = source.tagged(region.stag, 0, bytes(4 << 20), rsvdulp=write)
                flood.write(b"".join(map(sender.send, segments)))
                writer.write(sends(b"hello"))
                await server.wait(20)
                assert small == b"hello" and flooded.pending < 1 << 20
                await asyncio.sleep(0)
                flooded.abort()
                flood.close()
                writer.close()
                await server.disconnect()

    run(test)


def test_a_peer_that_never_closes_its_half_is_left_after_the_time_given(pd: PD) -> None:
    async def test() -> None:
        async with Listener(pd) as listener:
            server, _, writer = await accepted(listener)
            with pytest.raises(RnicTimeout, match="no completion came within 0.05 seconds"):
                await server.wait(0.05)
            with pytest.raises(RnicTimeout, match="the peer did not disconnect within 0.05"):
                await server.disconnected(0.05)
            with pytest.raises(ConnectTimeout, match="did not close its half within 0.1 seconds"):
                await server.disconnect(0.1)
            assert isinstance(await server.disconnected(), ConnectionLost)
            writer.close()

    run(test)


def test_a_terminate_before_a_reset_is_the_reason(pd: PD) -> None:
    async def test() -> None:
        async with Listener(pd) as listener:
            server, _, writer = await accepted(listener)
            writer.write(TERMINATE)
            reset(writer)
            await asyncio.sleep(0.02)
            reason = await server.disconnected(5)
            assert isinstance(reason, Terminated) and reason.by_peer
            server.abort()
            assert isinstance(await server.disconnected(), Terminated)

    run(test)


def test_a_peer_that_reads_nothing_does_not_keep_what_was_terminated(pd: PD) -> None:
    async def test() -> None:
        async with Listener(pd) as listener:
            server, _, writer = await accepted(listener)
            writer.transport.pause_reading()
            server.speak_after(0)
            for _ in range(20):
                server.qp.post_send(Opcode.SEND, bytes(1 << 20))
            writer.write(sends(b"without a receive"))
            assert isinstance(await server.disconnected(5), Terminated)
            await server.until(lambda: server.closed, 5)
            assert server.closed
            writer.transport.abort()

    run(test)


def test_a_peer_that_reads_no_answers_finds_no_buffer_for_more_requests(pd: PD) -> None:
    """RFC 5040 section 6.1 bounds the Read Requests by IRD; otherwise the host kept all answers."""
    control = rsvdulp(Message.READ_REQUEST, tagged=False)

    async def test() -> None:
        region = pd.register(bytearray(1 << 18), Access.REMOTE_READ)
        source, sender = DataSource(1440), MpaSender()
        asks = ReadRequest(1, 0, 1 << 18, region.stag, 0).encode()
        async with Listener(pd) as listener:
            server, _, writer = await accepted(listener)
            writer.transport.pause_reading()
            for _ in range(120):
                (segment,) = source.untagged(1, asks, rsvdulp=control)
                writer.write(sender.send(segment))
                await asyncio.sleep(0.01)
            reason = await server.disconnected(20)
            assert isinstance(reason, Terminated)
            assert (reason.terminate.type, reason.terminate.code) == (2, 2)
            writer.transport.abort()
            await server.until(lambda: server.closed, 5)
        region.revoke()

    run(test)


def test_a_listener_does_not_check_the_bit_of_a_refusal_in_a_request(pd: PD) -> None:
    """RFC 5044 section 7.1.1, R: "This bit is set to zero, and not checked on reception in the MPA
    Request Frame."
    """

    async def test() -> None:
        octets = REQUEST[:16] + bytes([REQUEST[16] | 0x20]) + REQUEST[17:]
        async with Listener(pd) as listener:
            request, reader, writer = await dial(listener, octets)
            server = await request.accept()
            assert await reader.readexactly(len(REPLY)) == REPLY
            writer.close()
            await server.disconnect()

    run(test)


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ("0003 0009", "0009 0003"),
        ("3fff 3fff", "3fff 3fff"),
        ("bfff bfff", "bfff bfff"),  # peer to peer, with a Write
        ("8003 4000", "8001 4003"),  # with a Read, which uses one of the IRD
        ("c003 0004", "8004 c003"),  # with a Send, which is not among the responder's messages
    ],
)
def test_a_refusal_answers_the_fields_of_its_request(pd: PD, asked: str, fields: str) -> None:
    """RFC 6581 section 9.2: "If Control Flag A is 1 in the MPA Request message, then the responder
    MUST set Control Flag A to 1 in the MPA reply message". Section 9.1: "The responder MUST respond
    to an initiator ORD value of 0x3FFF by [...] setting the IRD to 0x3FFF in its reply message",
    and so with ORD. Section 10: "If the responder receives an enhanced MPA message, it MUST respond
    with an enhanced MPA message."
    """

    async def test() -> None:
        async with Listener(pd) as listener:
            request, reader, writer = await dial(listener, REQUEST[:20] + bytes.fromhex(asked))
            refusal = asyncio.create_task(request.reject(b"no"))
            frame = REPLY[:16] + bytes.fromhex(f"7002 0006 {fields}") + b"no"
            assert await reader.read() == frame
            writer.close()
            await refusal

    run(test)


def test_a_request_that_could_not_be_accepted_waits_for_another_answer(pd: PD) -> None:
    def refuse(_: Any) -> None:
        raise KeyError("the program's own")

    async def test() -> None:
        async with Listener(pd) as listener:
            request, reader, writer = await dial(listener, REQUEST)
            with pytest.raises(InvalidRequest, match="ird must be from 0 to 64"):
                await request.accept(ird=65)
            with pytest.raises(PrivateDataTooLong, match="at most 508 octets"):
                await request.accept(bytes(509))
            with pytest.raises(KeyError, match="the program's own"):
                await request.accept(prepare=refuse)
            streams = [Stream(pd, cq) for cq in [CQ(pd.context)] for _ in range(64)]
            with pytest.raises(ResourceExhausted, match="all 64 streams of the device are in use"):
                await request.accept()
            streams[0].cq.close()
            server = await request.accept()
            with pytest.raises(StateError, match="the request was answered already"):
                await request.reject()
            assert await reader.readexactly(len(REPLY)) == bytes.fromhex(
                "4d504120494420526570204672616d65 5002 0004 00010001"
            )
            writer.close()
            await server.disconnect()

    run(test)


def test_a_device_that_fails_ends_its_connections_with_its_error() -> None:
    async def test(sim: SimTransport, pd: PD) -> None:
        async with Listener(pd) as listener:
            server, _, writer = await accepted(listener)
            sim.close()
            writer.write(sends(b"hello"))
            with pytest.raises(TransportError, match="the simulation is closed"):
                await server.wait(5)
            writer.close()

    with pytest.raises(TransportError, match="the simulation is closed"):
        with SimTransport() as sim, Device(sim).open() as context, PD(context) as pd:
            run(lambda: test(sim, pd))
