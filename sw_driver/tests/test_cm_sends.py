"""Connections of a device that sends: both ends receive and send through one gateware.

The device answers RDMA Reads, too.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.send import Kind, Piece
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver
from ddp_rnic.sw_driver import (
    PD,
    Access,
    Context,
    Device,
    InvalidRequest,
    StateError,
    WcStatus,
    WrongType,
)
from ddp_rnic.sw_driver.cm import Endpoint, Listener, MpaSource, StartupFrame, Terminated, connect
from ddp_rnic.sw_driver.cm.pump import Pump
from ddp_rnic.sw_driver.rdmap import CQ, QP, Layer, Opcode, QPState, ReadRequest, Terminate, wire
from ddp_rnic.sw_driver.verbs.sending import Part, SendingHalf, SendSettings

#: Lets a Data Source send a message; returns the FPDUs.
Call = Callable[[MpaSource], list[bytes]]
ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
GOOD = WcStatus.SUCCESS
#: Messages of no octets, of as many as are inline and of one more, of several segments, and of more
#: octets than a stream sends in a turn.
LENGTHS = (0, 1, 480, 481, 20_001, 50_000)


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    config = RnicConfig(transmit=True, responder=True)
    with SimTransport(config) as sim, Device(sim).open() as context:
        yield context


@pytest.fixture
def pd(context: Context) -> Iterator[PD]:
    """A protection domain; afterwards the device holds nothing of the test."""
    with PD(context) as pd:
        yield pd
        assert not context.streams and not context.cqs and not context.regions
        assert len(context.buffers) == context.capabilities.buffers


def _tagged(stag: int, to: int, octets: bytes, control: int, source: MpaSource) -> list[bytes]:
    return source.tagged(stag, to, octets, rsvdulp=control)


class Wire:
    """Compares the FPDUs on the wire with those of the host's own Data Source.

    Both get the same messages. Peers and captures have judged the Data Source of the host. An end
    sends its messages in the order of their posts, and its Read Responses in the order of the
    requests (RFC 5040 section 5.5). Between the two, the order is that of the wire.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._settings: dict[SendingHalf, SendSettings] = {}
        #: By half: calls of the Data Source, for its messages and for the responses that it gets.
        self._own: dict[SendingHalf, list[Call]] = defaultdict(list)
        self._responses: dict[SendingHalf, list[Call]] = defaultdict(list)
        self.sent: dict[Any, bytearray] = defaultdict(bytearray)
        begin, post = SendingHalf.__init__, SendingHalf.post

        def begins(half: SendingHalf, stream: Any, settings: Any, leave: Any) -> None:
            begin(half, stream, settings, leave)
            self._settings[half] = settings

        def posts(half: SendingHalf, kind: Kind, body: Any, **named: Any) -> None:
            self._own[half].append(self._call(half, kind, body, **named))
            post(half, kind, body, **named)

        monkeypatch.setattr(SendingHalf, "__init__", begins)
        monkeypatch.setattr(SendingHalf, "post", posts)

    def _call(
        self, half: SendingHalf, kind: Kind, body: bytes | list[Part] | Piece, *, rsvdulp: int,
        qn: int = 0, stag: int = 0, to: int = 0, wr_id: object = None,
    ) -> Call:  # fmt: skip
        octets = b"".join(part.octets for part in body) if isinstance(body, list) else body
        if isinstance(octets, Piece):
            sink, control = octets, wire.control(wire.Message.READ_RESPONSE)
            asks = ReadRequest(sink.stag, sink.to, sink.length, stag, to).encode()
            answers = [
                region.read(sink.length, to - region.to)
                for region in half._stream.pd.regions
                if region.stag == stag and region.access & Access.REMOTE_READ
            ]
            self._responses[half] += [
                partial(_tagged, sink.stag, sink.to, answer, control)
                for answer in (answers if sink.length else [b""])
            ]
            return lambda source: source.untagged(wire.Queue.READ_REQUEST, asks, rsvdulp=rsvdulp)
        if kind is Kind.TAGGED:
            return lambda source: source.tagged(stag, to, octets, rsvdulp=rsvdulp >> 32)
        return lambda source: source.untagged(qn, octets, rsvdulp=rsvdulp)

    def begin(self, pd: PD) -> None:
        Pump.of(pd.context).tap = self._tap

    def _tap(self, end: object, sent: bool, octets: bytes) -> None:
        if sent:
            self.sent[end] += octets

    def compare(self) -> int:
        """Returns how many octets of FPDUs were compared."""
        one, other = self._settings
        expected = {one: other, other: one}
        total = 0
        for octets in self.sent.values():
            parsed = StartupFrame.parse(bytes(octets))
            assert parsed is not None
            got = bytes(octets[parsed[1] :])
            # The tap does not say which half an end has: it is the one that has to send this.
            (half,) = (
                half for half, peer in expected.items() if self._expected(half, peer, got) == got
            )
            del expected[half]
            total += len(got)
        assert not expected
        return total

    def _expected(self, half: SendingHalf, peer: SendingHalf, got: bytes) -> bytes:
        """Returns the octets that a half has to send, in the order of messages of ``got``."""
        mulpdu, crc, markers, *_ = self._settings[half]
        source = MpaSource(mulpdu, crc=crc, markers=markers)
        calls = {False: iter(self._own[half]), True: iter(self._responses[peer])}
        sent = []
        for fpdu in MpaReceiver(crc=crc, markers=markers).receive(got):
            assert isinstance(fpdu, Fpdu)
            control, rsvdulp = fpdu.ulpdu[:2]
            if control & 0x40:  # the last segment of a message
                response = bool(control & 0x80) and rsvdulp & 15 == wire.Message.READ_RESPONSE
                sent += next(calls[response], lambda source: [b"more"])(source)
        left = [call for rest in calls.values() for call in rest]
        return b"".join(sent) if not left else b"less"


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


async def pair(pd: PD, theirs: dict[str, Any], **ours: Any) -> tuple[Endpoint, Endpoint]:
    async with Listener(pd) as listener:
        client = asyncio.create_task(connect(pd, "127.0.0.1", listener.port, **ours))
        server = await (await listener.request()).accept(**theirs)
        return await client, server


async def finish(*ends: Endpoint) -> None:
    await asyncio.gather(*(end.disconnect() for end in ends))
    assert [end.reason() for end in ends] == [None] * len(ends)


async def take(end: Endpoint, count: int) -> list[Any]:
    done: list[Any] = []
    while len(done) < count:
        done += await end.wait(20)
    return done


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


def octets(count: int, seed: int) -> bytes:
    return bytes((seed + 7 * at + at // 251) % 256 for at in range(count))


class Work:
    """Each operation with each length, from one end to the other."""

    def __init__(self, pd: PD, seed: int) -> None:
        size = sum(LENGTHS) + 64
        self.source, self.far = bytearray(octets(size, seed)), octets(size, seed + 1)
        self.target = bytearray(size)
        self.near = pd.register(self.source, Access.LOCAL_WRITE, to=1 << 40)
        self.written = pd.register(self.target, ALL, to=5)
        self.read = pd.register(bytearray(self.far), Access.REMOTE_READ, to=(1 << 64) - size)
        self.buffers = [bytearray(length + 1) for length in LENGTHS for _ in range(2)]
        self.sinks = [bytearray(length) for length in LENGTHS]

    def expect(self, end: Endpoint) -> None:
        for buffer in self.buffers:
            end.qp.post_recv(buffer)

    def post(self, end: Endpoint) -> None:
        """Posts four requests for each length."""
        at, post = 3, end.qp.post_send
        for length, sink in zip(LENGTHS, self.sinks, strict=True):
            part: dict[str, Any] = {"offset": at, "length": length}
            to = self.written.to + at
            post(Opcode.SEND, bytes(self.source[at : at + length]), wr_id=length)
            post(Opcode.SEND, self.near, wr_id=length, solicited=True, **part)
            cut = length // 3
            parts = [
                Part(self.near, at, cut), Part(self.near, 7, 0),
                Part(self.near, at + cut, length - cut),
            ]  # fmt: skip
            post(Opcode.RDMA_WRITE, parts, wr_id=length, stag=self.written.stag, to=to)
            post(
                Opcode.RDMA_READ, sink if length else None, wr_id=length, stag=self.read.stag,
                to=self.read.to + at,
            )  # fmt: skip
            at += length

    def check(self, sender: list[Any], receiver: list[Any]) -> None:
        """Checks the completions of both ends, and all octets."""
        done = [(wc.wr_id, wc.byte_len) for wc in sender if wc.opcode is not Opcode.RECV]
        assert done == [(length, length) for length in LENGTHS for _ in range(4)]
        got = [(wc.byte_len, wc.solicited) for wc in receiver if wc.opcode is Opcode.RECV]
        assert got == [(length, asks) for length in LENGTHS for asks in (False, True)]
        assert {wc.status for wc in sender + receiver} == {GOOD}
        at = 3
        for number, length in enumerate(LENGTHS):
            for buffer in self.buffers[2 * number : 2 * number + 2]:
                assert buffer[:length] == self.source[at : at + length]
            assert self.sinks[number] == self.far[at : at + length]
            at += length
        assert self.target[3:at] == self.source[3:at]
        assert not any(self.target[:3]) and not any(self.target[at:])


@pytest.mark.parametrize("markers", [False, True])
@pytest.mark.parametrize("crc", [False, True])
def test_the_device_sends_what_the_host_would_send(
    pd: PD, wires: Wire, crc: bool, markers: bool
) -> None:
    """Sends, Writes, Reads and their responses in both directions at the same time."""

    async def test() -> None:
        wires.begin(pd)
        settings = {"crc": crc, "markers": markers}
        ends = await pair(pd, settings, **settings)
        works = Work(pd, 1), Work(pd, 2)
        for work, one, other in zip(works, ends, ends[::-1], strict=True):
            work.expect(other)
            work.post(one)
        done = await asyncio.gather(*(take(end, 6 * len(LENGTHS)) for end in ends))
        for work, sender, receiver in zip(works, done, done[::-1], strict=True):
            work.check(sender, receiver)
        await finish(*ends)
        for work in works:
            for region in (work.near, work.written, work.read):
                region.revoke()

    run(test)
    assert wires.compare() > 8 * sum(LENGTHS)


@pytest.mark.parametrize("length", [64, 700])
def test_more_messages_than_the_ring_has_entries_leave_in_order(
    pd: PD, wires: Wire, length: int
) -> None:
    count = 600

    async def test() -> None:
        wires.begin(pd)
        client, server = await pair(pd, {})
        with pd.register(bytearray(count * length), ALL) as region:
            for at in range(count):
                client.qp.post_send(
                    Opcode.RDMA_WRITE, at.to_bytes(4, "big") * (length // 4), wr_id=at,
                    stag=region.stag, to=at * length,
                )  # fmt: skip
            assert [wc.wr_id for wc in await take(client, count)] == [*range(count)]
            await finish(client, server)
            region.refresh()
            for at in range(count):
                assert region.view[at * length : at * length + 4] == at.to_bytes(4, "big")

    run(test)
    assert wires.compare() > count * length


def test_a_read_without_the_right_ends_with_the_terminate_of_the_host(pd: PD, wires: Wire) -> None:
    async def test() -> None:
        wires.begin(pd)
        client, server = await pair(pd, {})
        with pd.register(bytearray(64), Access.REMOTE_WRITE) as region:
            server.qp.post_send(Opcode.SEND, bytes(30_000))  # leaves before the Terminate
            client.qp.post_recv(bytearray(30_000))
            client.qp.post_send(Opcode.RDMA_READ, bytearray(64), stag=region.stag)
            reasons = await asyncio.gather(client.disconnected(10), server.disconnected(10))
        for reason, by_peer in zip(reasons, (True, False), strict=True):
            assert isinstance(reason, Terminated) and reason.by_peer is by_peer
            assert (reason.terminate.type, reason.terminate.code) == wire.ACCESS
        for end in (client, server):
            await end.disconnect()

    run(test)
    assert wires.compare() > 30_000


@pytest.mark.parametrize("revoked", [True, False], ids=["revoked", "bus error"])
def test_a_message_that_cannot_be_read_ends_the_connection_with_a_terminate(
    pd: PD, wires: Wire, revoked: bool
) -> None:
    """RFC 5040 section 4.8: a Local Catastrophic Error. The messages before have left."""
    sim = pd.context.transport
    assert isinstance(sim, SimTransport)

    async def test() -> None:
        client, server = await pair(pd, {}, markers=True)
        buffer = bytearray(30_000)
        server.qp.post_recv(buffer)
        region = pd.register(bytearray(30_000))
        client.qp.post_send(Opcode.SEND, octets(30_000, 1), wr_id="sent")
        client.qp.post_send(Opcode.SEND, region, wr_id="not read")
        client.qp.post_send(Opcode.SEND, b"behind", wr_id="flushed")
        (extent,) = region.mapping.memory.extents
        if revoked:
            region.revoke()
        else:
            sim.fault(range(extent.address + 100, extent.address + 101))
        done = [(wc.wr_id, wc.status) for wc in await take(client, 3)]
        assert done == [
            ("sent", GOOD), ("not read", WcStatus.NOT_READ), ("flushed", WcStatus.FLUSHED)
        ]  # fmt: skip
        reasons = await asyncio.gather(client.disconnected(10), server.disconnected(10))
        for reason, by_peer in zip(reasons, (False, True), strict=True):
            assert isinstance(reason, Terminated) and reason.by_peer is by_peer
            assert reason.terminate == Terminate(Layer.RDMA, *wire.LOCAL_CATASTROPHIC)
        assert "the device could not read a message" in str(reasons[0])
        assert buffer == octets(30_000, 1)
        for end in (client, server):
            await end.disconnect()
        region.close()

    run(test)


def test_a_ring_that_the_bus_refuses_ends_its_connection_alone(pd: PD) -> None:
    sim = pd.context.transport
    assert isinstance(sim, SimTransport)

    async def test() -> None:
        client, server = await pair(pd, {})
        other, further = await pair(pd, {})
        assert client.qp.stream.sending is not None
        (extent,) = client.qp.stream.sending._memory.extents
        sim.fault(range(extent.address, extent.address + extent.length))
        further.qp.post_recv(bytearray(5))
        client.qp.post_send(Opcode.SEND, b"never", wr_id=1)
        other.qp.post_send(Opcode.SEND, b"hello")
        await asyncio.gather(take(other, 1), take(further, 1))
        assert [(wc.wr_id, wc.status) for wc in await take(client, 1)] == [(1, WcStatus.NOT_READ)]
        assert isinstance(await client.disconnected(10), Terminated)
        assert await server.disconnected(10) is None  # no Terminate could leave
        for end in (client, server):
            await end.disconnect()
        await finish(other, further)

    run(test)


@pytest.mark.parametrize("length", [64, 300_000])
def test_a_connection_that_is_aborted_while_it_sends_leaves_nothing(pd: PD, length: int) -> None:
    """The device then drops the messages in the ring. Streams that are used again start anew."""

    async def test() -> None:
        for _ in range(40 if length < 1000 else 6):
            client, server = await pair(pd, {})
            with pd.register(bytearray(length), ALL) as region:
                for _ in range(10):
                    server.qp.post_recv(region)
                    client.qp.post_send(Opcode.SEND, bytes(length))
                    client.qp.post_send(Opcode.RDMA_READ, bytearray(length), stag=region.stag)
                await asyncio.sleep(0)
                client.abort()
                server.abort()
            assert not pd.context.regions and not pd.context.streams
        client, server = await pair(pd, {})
        server.qp.post_recv(bytearray(length))
        client.qp.post_send(Opcode.SEND, bytes(length))
        await asyncio.gather(take(client, 1), take(server, 1))
        await finish(client, server)

    run(test)


@pytest.mark.parametrize("length", [64, 700_000])
def test_reads_that_were_asked_for_before_a_graceful_end_are_answered(pd: PD, length: int) -> None:
    """RFC 5041 section 6.2.1; a Read that is asked for later has no answer."""

    async def test() -> None:
        client, server = await pair(pd, {})
        with pd.register(bytearray(octets(length, 3)), ALL) as region:
            sinks = [bytearray(length) for _ in range(3)]
            for sink in sinks:
                client.qp.post_send(Opcode.RDMA_READ, sink, stag=region.stag)
            half = server.qp.stream.sending
            assert half is not None and half.responder is not None
            while half.responder.asked() < 3:
                await asyncio.sleep(0.001)
            ends = asyncio.create_task(server.disconnect(60))
            assert [wc.status for wc in await take(client, 3)][:3] == [GOOD] * 3
            assert all(sink == octets(length, 3) for sink in sinks)
            await client.disconnect(60)
            await ends

    run(test)


def test_a_message_is_sent_from_regions_of_its_domain_alone(pd: PD) -> None:
    async def test() -> None:
        client, server = await pair(pd, {})
        with PD(pd.context) as other, other.register(bytearray(8), ALL) as foreign:
            with pytest.raises(InvalidRequest, match="must belong to the queue pair's domain"):
                client.qp.post_send(Opcode.SEND, foreign)
        with pd.register(bytearray(8)) as region:
            with pytest.raises(InvalidRequest, match="4 octets from 5 on are not within"):
                client.qp.post_send(Opcode.SEND, region, offset=5, length=4)
        with pytest.raises(StateError, match="the region is revoked"):
            client.qp.post_send(Opcode.SEND, region)
        with pytest.raises(StateError, match="the region is revoked"):
            client.qp.post_send(Opcode.SEND, [Part(region, 0, 4)])
        with pytest.raises(WrongType, match="a part of a message must be a Part, not b'octets'"):
            client.qp.post_send(Opcode.SEND, [b"octets"])
        with pytest.raises(WrongType, match="the region of a part must be an MR, not None"):
            client.qp.post_send(Opcode.SEND, [Part(None, 0, 0)])  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="a message has at most 255 parts, not 256"):
            client.qp.post_send(Opcode.SEND, [Part(region, 0, 0)] * 256)
        await finish(client, server)

    run(test)


def test_a_late_acknowledgment_ends_no_message_of_a_later_stream(pd: PD) -> None:
    """A TCP without copies may learn after a stream's end that octets have arrived. The device may
    have given the stream's number to another one by then.
    """
    context, settings = pd.context, SendSettings(1000, crc=True, markers=False, keeps=False)

    def sent(qp: QP) -> int:
        """Lets a queue pair send three messages, and returns how many octets these are."""
        for _ in range(3):
            qp.post_send(Opcode.SEND, bytes(100))
        octets = 0
        while octets < 3 * 124:
            context.transport.wait(0)
            assert not cq.poll()
            octets += len(qp.data_to_send())
        return octets

    with CQ(context) as cq:
        first = QP(pd, cq, settings)
        octets = sent(first)
        first.close()
        assert len(cq.poll()) == 3
        number = first.stream.number
        context.numbers.remove(number)
        context.numbers.appendleft(number)
        second = QP(pd, cq, settings)
        assert second.stream.number == number
        assert sent(second) == octets
        first.acknowledge(octets)
        for _ in range(20):
            context.transport.wait(0)
            assert not cq.poll()
        second.acknowledge(octets)
        while len(cq.poll()) < 3:
            context.transport.wait(0)


def test_a_message_does_not_end_while_its_fpdu_is_on_its_way_again(pd: PD) -> None:
    """Its acknowledgment may come after the FPDU was asked for again. The device still reads the
    message's entries and octets then, so the host must not have them back.
    """
    context, settings = pd.context, SendSettings(1000, crc=True, markers=False, keeps=False)
    simulated = context.transport
    assert isinstance(simulated, SimTransport)
    with CQ(context) as cq, QP(pd, cq, settings) as qp:
        position = 0
        for _ in range(3):
            region = pd.register(bytearray(900), Access.LOCAL_READ)
            qp.post_send(Opcode.SEND, region)
            while not (octets := qp.data_to_send()):
                context.transport.wait(0)
                assert not cq.poll()
            assert qp.repeat(position)
            position += len(octets)
            qp.acknowledge(position)
            while not cq.poll():
                simulated.run(4)
            region.close()
            for _ in range(20):
                context.transport.wait(0)
                assert not cq.poll()
            assert [again for _, again in qp.repeats_to_send()] == [octets]
        assert qp.state is QPState.RTS


@pytest.mark.parametrize("cycles", range(0, 480, 60))
def test_each_message_ends_once_when_the_device_reads_its_ring_no_more(pd: PD, cycles: int) -> None:
    """A producer index beyond the ring closes the half; messages in flight are reported later."""
    context, settings = pd.context, SendSettings(1000, crc=True, markers=False, keeps=False)
    simulated = context.transport
    assert isinstance(simulated, SimTransport)
    with (
        CQ(context) as cq,
        QP(pd, cq, settings) as qp,
        pd.register(bytearray(900), Access.LOCAL_READ) as region,
    ):
        for number in range(12):
            qp.post_send(Opcode.SEND, region, wr_id=number)
        simulated.run(cycles)
        context.registers.start(commands.ring_send(qp.stream.number, 1 << 15))
        ends = []
        for _ in range(100):
            context.transport.wait(0)
            ends += cq.poll()
        assert [wc.wr_id for wc in ends] == [*range(12)]
        assert [wc.status for wc in ends] == [WcStatus.NOT_READ, *[WcStatus.FLUSHED] * 11]
        qp.acknowledge(len(qp.data_to_send()))
        for _ in range(20):
            context.transport.wait(0)
            assert not cq.poll()


def test_a_part_of_no_octets_may_lie_after_the_last_tagged_offset(pd: PD) -> None:
    settings = SendSettings(1000, crc=True, markers=False, keeps=True)
    with (
        CQ(pd.context) as cq,
        QP(pd, cq, settings) as qp,
        pd.register(bytearray(b"last"), Access.LOCAL_READ, to=(1 << 64) - 4) as region,
    ):
        qp.post_send(Opcode.SEND, [Part(region, 0, 4), Part(region, 4, 0)])
        while not (ends := cq.poll()):
            pd.context.transport.wait(0)
        assert [wc.status for wc in ends] == [GOOD]
        assert b"last" in qp.data_to_send()
