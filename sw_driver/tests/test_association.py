"""DDP over SCTP through the driver, on the real gateware."""

from __future__ import annotations

import ipaddress
import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import dpkt
import pytest
from ddp_rnic.hdl.spec.completion import ChunkStatus, Kind
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import INVALID_STAG
from ddp_rnic.hdl.spec.sctp import Diversion, Function, Reason, State
from ddp_rnic.sim.capture.tests.frames import ethernet
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.engines.engine import ExceptionPacket
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.sctp import DataChunk, Packet, Ppid, Session
from ddp_rnic.sim.model.sctp import Function as Message
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    WC,
    Association,
    CompletionOverrun,
    Context,
    Device,
    InvalidRequest,
    Report,
    ResourceExhausted,
    RnicTimeout,
    StateError,
    Stream,
    StreamError,
    UnsupportedDevice,
)
from ddp_rnic.sw_driver.cm.startup import Enhanced, Rtr

CONFIG = RnicConfig(sctp=True)
PEER, HOST = "10.7.0.1", "10.7.0.2"
TSN = 0xFFFFFFF0  # so that TSNs wrap


@pytest.fixture(scope="module")
def simulated() -> Iterator[SimTransport]:
    with SimTransport(CONFIG) as sim:
        yield sim


@pytest.fixture
def context(simulated: SimTransport) -> Iterator[Context]:
    with Device(simulated).open() as context:
        yield context


class SctpPeer:
    """The peer of an association: sends messages in packets."""

    def __init__(
        self, sim: SimTransport, path: tuple[str, str] = (PEER, HOST), tag: int = 0x12345678
    ) -> None:
        self.sim, self.path, self.tag, self.tsn = sim, path, tag, TSN
        self.sessions: dict[int, tuple[Session, Session]] = {}
        self.source = DataSource(1400)

    def establish(self, association: Association, sid: int) -> None:
        """Lets the host initiate a session and the peer accept it."""
        host, peer = self.sessions.setdefault(sid, (Session(sid), Session(sid)))
        state = association.tell(sid, Function.INITIATE, tsn=self.tsn - 1, outstanding=0)
        assert state is State.INITIATE_SENT
        peer.receive(Ppid.CONTROL, host.control(Message.INITIATE))
        self.packet([self.chunk(sid, Ppid.CONTROL, peer.control(Message.ACCEPT))])

    def chunk(self, sid: int, ppid: Ppid, payload: bytes) -> DataChunk:
        self.tsn = (self.tsn + 1) % 2**32
        return DataChunk((self.tsn - 1) % 2**32, sid, ppid, payload)

    def chunks(self, sid: int, segments: Sequence[bytes]) -> list[DataChunk]:
        session = self.sessions[sid][1]
        return [self.chunk(sid, Ppid.SEGMENT, session.segment(each)) for each in segments]

    def packet(self, chunks: Sequence[DataChunk]) -> None:
        packet = Packet(4001, 4002, self.tag, tuple(chunks)).encode()
        ends: list[Any] = [ipaddress.ip_address(each).packed for each in self.path]
        if len(ends[0]) == 4:
            ip = dpkt.ip.IP(src=ends[0], dst=ends[1], p=132, data=packet)
            ip.len = len(ip)
        else:
            ip = dpkt.ip6.IP6(src=ends[0], dst=ends[1], nxt=132, hlim=64, data=packet)
            ip.extension_hdrs, ip.plen = {}, len(packet)
        self.sim.send_frame(ethernet(bytes(ip)))

    def write(self, sid: int, stag: int, to: int, message: bytes) -> None:
        for chunk in self.chunks(sid, self.source.tagged(stag, to, message)):
            self.packet([chunk])


def associate(context: Context, **changed: Any) -> Association:
    settings: dict[str, Any] = {
        "paths": [(PEER, HOST)], "ports": (4001, 4002), "tag": 0x12345678, "tsn": TSN, "streams": 3
    }  # fmt: skip
    return Association(context, **settings | changed)


def reports(association: Association, count: int) -> list[Report]:
    """Returns this many reports, without those of packets."""
    found: list[Report] = []
    while len(found) < count:
        found += [each for each in association.wait(5) if each.kind is not Kind.PACKET]
    return found


@pytest.mark.parametrize("path", [(PEER, HOST), ("fd00::7:1", "fd00::7:2")], ids=["IPv4", "IPv6"])
def test_messages_over_sctp_are_placed_delivered_and_reported(
    context: Context, simulated: SimTransport, path: tuple[str, str]
) -> None:
    array, message = bytearray(5000), random.Random(1).randbytes(4000)
    pd, cq = PD(context), CQ(context)
    with associate(context, paths=[path]) as association, pd.register(array) as region:
        stream = association.stream(2, pd, cq)
        buffer = bytearray(2000)
        stream.post_recv(buffer, 1, wr_id="posted")
        peer = SctpPeer(simulated, path)
        peer.establish(association, 2)
        (accepted, control) = reports(association, 2)
        assert (accepted.kind, accepted.tsn, accepted.stream) == (Kind.CHUNK, TSN, 2)
        assert (control.kind, control.function, control.stream) == (
            Kind.CONTROL, Function.ACCEPT, 2,
        )  # fmt: skip
        # The segments arrive last one first, and are placed in that order; they are delivered as
        # sent.
        chunks = peer.chunks(2, peer.source.tagged(region.stag, 500, message))
        chunks += peer.chunks(2, peer.source.untagged(1, b"untagged"))
        for chunk in reversed(chunks):
            peer.packet([chunk])
        done: list[WC] = []
        while len(done) < 2:
            done += cq.wait(5)
        tagged, untagged = done
        assert tagged.mr is region and tagged.stream is stream
        assert (untagged.wr_id, untagged.byte_len) == ("posted", 8)
        assert array == bytes(500) + message + bytes(500) and buffer[:8] == b"untagged"
        found = reports(association, 4)
        assert [each.tsn for each in found] == [chunk.tsn for chunk in reversed(chunks)]
        assert [each.ssn for each in found] == [4, 3, 2, 1]
        assert {each.status for each in found} == {ChunkStatus.TAKEN}
        assert sum(each.length for each in found) == 4008
        assert association.guide(2) == 5
        # A repetition is recognised.
        peer.packet(chunks)
        again: list[Report] = []
        while len(again) < 4:
            again += association.wait(5)
        assert [each.status for each in again] == [ChunkStatus.DUPLICATE] * 4
        assert [each.ends for each in again] == [False, False, False, True]


def test_a_session_goes_through_its_states_and_illegal_ones_are_refused(
    context: Context, simulated: SimTransport
) -> None:
    with associate(context) as association:
        peer = SctpPeer(simulated)
        host_side, peer_side = peer.sessions[0] = Session(0), Session(0)
        with pytest.raises(StateError, match="ACCEPT must not be sent on SCTP stream 0.* CLOSED"):
            association.tell(0, Function.ACCEPT)
        peer.packet([peer.chunk(0, Ppid.CONTROL, peer_side.control(Message.INITIATE))])
        assert reports(association, 2)[1].function is Function.INITIATE
        # The message itself is forwarded to the host, on the exception stream.
        assert simulated.exceptions()[-1].reason == Diversion.CONTROL
        with pytest.raises(StateError, match="INITIATE must not be sent .* INITIATE_RECEIVED"):
            association.tell(0, Function.INITIATE, tsn=peer.tsn - 1, outstanding=0)
        assert association.tell(0, Function.ACCEPT) is State.ESTABLISHED
        assert association.tell(0, Function.TERMINATE) is State.TERMINATE_SENT
        # A malformed chunk on another stream aborts that one alone.
        peer.packet([peer.chunk(1, Ppid.CONTROL, b"\0\0\0\x63")])
        found = reports(association, 2)
        event = next(each for each in found if each.kind is Kind.SESSION)
        assert (event.stream, event.status, event.state) == (1, Reason.MALFORMED, State.CLOSED)
        for arguments in ({"function": Function.INITIATE}, {"function": Function.ACCEPT, "tsn": 1}):
            with pytest.raises(InvalidRequest, match="tsn goes with FORGET, PAST, INITIATE"):
                association.tell(0, **arguments)
        opens = Function.INITIATE, Function.ENHANCED_INITIATE
        for function, tsn in (*((each, {"tsn": 1}) for each in opens), (Function.ACCEPT, {})):
            outstanding = {} if tsn else {"outstanding": 0}
            with pytest.raises(InvalidRequest, match="outstanding goes with INITIATE"):
                association.tell(0, function, **tsn, **outstanding)
        for sid in (3, -1):
            with pytest.raises(InvalidRequest, match=f"must be from 0 to 2, not {sid}"):
                association.tell(sid, Function.ACCEPT)
    assert host_side is not peer_side


def test_an_enhanced_session_over_sctp_goes_through_its_states(
    context: Context, simulated: SimTransport
) -> None:
    """RFC 6581 section 7: "Received Extended DDP Stream Session Control messages SHOULD be reported
    to the ULP. If reported, any supplied Private Data MUST be available for the ULP to examine."
    A session is terminated by "the DDP stream session termination function code".
    """
    limits = Enhanced(4, 2, peer_to_peer=True, rtr=Rtr.READ)
    with associate(context) as association:
        peer = SctpPeer(simulated)
        for sid, private in enumerate((limits.encode() + b"please", b"few")):
            # The ULP examines octets that are too few for IRD and ORD.
            body = struct.pack(">HH", 0, Message.ENHANCED_INITIATE) + private
            peer.packet([peer.chunk(sid, Ppid.CONTROL, body)])
            (taken, control) = reports(association, 2)
            assert taken.status is ChunkStatus.TAKEN
            assert (control.function, control.stream) == (Function.ENHANCED_INITIATE, sid)
            (packet,) = forwarded(simulated, 1)
            assert packet.reason == Diversion.CONTROL
            assert packet.octets[20 : 20 + len(private)] == private
        assert Enhanced.decode(limits.encode() + b"please") == limits
        with pytest.raises(StateError, match="ACCEPT must not be sent .* INITIATE_RECEIVED"):
            association.tell(0, Function.ACCEPT)
        assert association.tell(0, Function.ENHANCED_ACCEPT) is State.ESTABLISHED
        assert association.tell(0, Function.TERMINATE) is State.TERMINATE_SENT
        assert association.tell(1, Function.ENHANCED_REJECT) is State.CLOSED


@pytest.mark.parametrize("enhanced", [False, True])
def test_an_answer_that_does_not_fit_ends_the_session(
    context: Context, simulated: SimTransport, enhanced: bool
) -> None:
    """RFC 6581 section 7: "as with Section 6.2 of [RFC5043], but with the extended opcodes". RFC
    5043 section 6.1: any other sequence ends the session.
    """
    initiates = Function.INITIATE, Function.ENHANCED_INITIATE
    accepts = Message.ENHANCED_ACCEPT, Message.ACCEPT
    with associate(context) as association:
        peer = SctpPeer(simulated)
        association.tell(0, initiates[enhanced], tsn=peer.tsn - 1, outstanding=0)
        body = struct.pack(">HH", 0, accepts[enhanced]) + bytes(4)
        peer.packet([peer.chunk(0, Ppid.CONTROL, body)])
        found = reports(association, 2)
        (chunk,) = (each for each in found if each.kind is Kind.CHUNK)
        (event,) = (each for each in found if each.kind is Kind.SESSION)
        assert chunk.status is ChunkStatus.ILLEGAL
        assert (event.status, event.state) == (Reason.SEQUENCE, State.INITIATE_SENT)


def test_the_device_learns_of_the_past_before_tsns_come_round(
    context: Context, simulated: SimTransport
) -> None:
    """RFC 9260 section 1.6: serial numbers are compared within 2^31."""
    array = bytearray(100)
    with associate(context) as association, PD(context).register(array) as region:
        association.stream(0, region.pd, CQ(context))
        peer = SctpPeer(simulated)
        peer.establish(association, 0)
        reports(association, 2)
        for number in range(9):
            peer.tsn = (peer.tsn + (1 << 30)) % 2**32
            peer.packet(peer.chunks(0, peer.source.tagged(region.stag, number, b"x")))
            assert reports(association, 1)[0].status is ChunkStatus.TAKEN
        assert array[:10] == b"x" * 9 + bytes(1)
        # TSNs that are really old are recognised as before.
        peer.tsn = (peer.tsn - (1 << 30)) % 2**32
        peer.packet(peer.chunks(0, peer.source.tagged(region.stag, 50, b"y")))
        assert reports(association, 1)[0].status is ChunkStatus.DUPLICATE and not array[50]


def test_a_stream_is_not_used_again_while_a_chunk_is_outstanding(context: Context) -> None:
    """RFC 5043 section 6.6: "A DDP Stream Identifier MUST NOT be reused for another DDP Stream
    Session while any Data Chunk from a prior session might be outstanding."
    """
    with associate(context) as association:
        with pytest.raises(StateError, match="while 2 of its chunks are not acknowledged"):
            association.tell(1, Function.INITIATE, tsn=TSN, outstanding=2)
        state = association.tell(1, Function.INITIATE, tsn=TSN, outstanding=0)
        assert state is State.INITIATE_SENT


def test_the_latest_chunk_is_the_one_with_the_latest_tsn(
    context: Context, simulated: SimTransport
) -> None:
    """RFC 5043 section 6: "Data Chunks from one DDP Stream Session are never carried over to the
    next session". A repeated chunk is recognized as an old one by its TSN.
    """
    with associate(context) as association, PD(context).register(bytearray(9)) as region:
        association.stream(0, region.pd, CQ(context))
        peer = SctpPeer(simulated)
        peer.establish(association, 0)
        chunks = peer.chunks(0, peer.source.tagged(region.stag, 0, b"first"))
        chunks += peer.chunks(0, peer.source.tagged(region.stag, 0, b"second"))
        for chunk in reversed(chunks):
            peer.packet([chunk])
        reports(association, 4)
        assert association.latest == chunks[1].tsn


def forwarded(sim: SimTransport, count: int) -> list[ExceptionPacket]:
    """Returns the last packets of the exception stream, once the device is idle."""
    sim.run(3000)
    return sim.exceptions()[-count:]


@pytest.mark.parametrize("enhanced", [False, True])
def test_what_overtakes_the_accept_is_handed_back_after_it(
    context: Context, simulated: SimTransport, enhanced: bool
) -> None:
    """RFC 5043 section 6.2: "Passive side sends a DDP Stream Session Accept message. Each side may
    then send zero or more DDP Segments".
    """
    array = bytearray(100)
    pd, cq = PD(context), CQ(context)
    with associate(context) as association, pd.register(array) as region:
        association.stream(0, pd, cq)
        peer = SctpPeer(simulated)
        host, other = peer.sessions[0] = Session(0), Session(0)
        initiate = Message.ENHANCED_INITIATE if enhanced else Message.INITIATE
        answer = Message.ENHANCED_ACCEPT if enhanced else Message.ACCEPT
        limits = bytes(4 * enhanced)
        association.tell(0, Function(initiate), tsn=peer.tsn - 1, outstanding=0)
        other.receive(Ppid.CONTROL, host.control(initiate, limits))
        accept = peer.chunk(0, Ppid.CONTROL, other.control(answer, limits))
        early = peer.chunks(0, peer.source.tagged(region.stag, 0, b"early"))
        peer.packet(early)
        (held,) = reports(association, 1)
        assert (held.status, held.tsn) == (ChunkStatus.HELD, early[0].tsn)
        (packet,) = forwarded(simulated, 1)
        association.hold(packet.reason, packet.octets)
        assert association.hand_back(simulated.send_frame) == 0
        peer.packet([accept])
        reports(association, 2)
        assert array[:5] == bytes(5)
        assert association.hand_back(simulated.send_frame) == 1
        assert cq.wait(5)[0].mr is region
        assert array[:5] == b"early"
        assert association.hand_back(simulated.send_frame) == 0


def test_chunks_ahead_of_the_window_wait_at_the_host(
    context: Context, simulated: SimTransport
) -> None:
    """The host has acknowledged them, so that the peer does not send them again (RFC 9260 section
    6.2): the device gets each one when it can take it.
    """
    array, message = bytearray(3 * CONFIG.window), random.Random(3).randbytes(3 * CONFIG.window)
    pd = PD(context)
    with associate(context) as association, pd.register(array) as region:
        association.stream(0, pd, CQ(context))
        peer = SctpPeer(simulated)
        host, other = peer.sessions[0] = Session(0), Session(0)
        association.tell(0, Function.INITIATE, tsn=peer.tsn - 1, outstanding=0)
        other.receive(Ppid.CONTROL, host.control(Message.INITIATE))
        accept = peer.chunk(0, Ppid.CONTROL, other.control(Message.ACCEPT))
        for at in range(len(message)):
            peer.write(0, region.stag, at, message[at : at + 1])
        assert {each.status for each in reports(association, len(message))} == {ChunkStatus.HELD}
        packets = forwarded(simulated, len(message))
        for packet in reversed(packets):
            association.hold(packet.reason, packet.octets)
        assert association.held == sum(len(packet.octets) for packet in packets)
        peer.packet([accept])
        reports(association, 2)
        for _ in range(3):
            assert association.hand_back(simulated.send_frame) == CONFIG.window
            taken = reports(association, CONFIG.window)
            assert [each.status for each in taken] == [ChunkStatus.TAKEN] * CONFIG.window
            simulated.run(2000)  # until they are delivered
        assert array == message and association.held == 0


def test_fragments_are_put_together_by_the_host(context: Context, simulated: SimTransport) -> None:
    """RFC 5043 section 9: "SCTP data chunk fragmentation MUST NOT be used unless the alternative is
    IP fragmentation."
    """
    array, message = bytearray(3000), random.Random(2).randbytes(2500)
    pd, cq = PD(context), CQ(context)
    with associate(context) as association, pd.register(array) as region:
        association.stream(0, pd, cq)
        peer = SctpPeer(simulated)
        peer.establish(association, 0)
        reports(association, 2)
        peer.source = DataSource(3000)
        (whole,) = peer.chunks(0, peer.source.tagged(region.stag, 100, message))
        parts = [
            replace(
                whole, tsn=(whole.tsn + n) % 2**32, payload=whole.payload[start : start + 1000],
                beginning=n == 0, ending=n == 2,
            )
            for n, start in enumerate(range(0, len(whole.payload), 1000))
        ]  # fmt: skip
        for part in reversed(parts):
            peer.packet([part])
        assert [each.status for each in reports(association, 3)] == [ChunkStatus.HELD] * 3
        for packet in forwarded(simulated, 3):
            association.hold(packet.reason, packet.octets)
        assert association.hand_back(simulated.send_frame) == 1
        (taken,) = reports(association, 1)
        assert (taken.status, taken.tsn) == (ChunkStatus.TAKEN, whole.tsn)
        assert cq.wait(5)[0].mr is region and array[100:2600] == message


def test_the_host_ends_a_session(context: Context, simulated: SimTransport) -> None:
    """RFC 5043 section 6.1: "the DDP Stream Session MUST be terminated"."""
    with associate(context) as association:
        peer = SctpPeer(simulated)
        peer.establish(association, 0)
        reports(association, 2)
        assert association.tell(0, Function.ABORT) is State.ABORTED
        peer.packet(peer.chunks(0, peer.source.untagged(0, b"too late")))
        assert [each.status for each in reports(association, 1)] == [ChunkStatus.SILENT]
        assert association.tell(0, Function.TERMINATE) is State.ABORTED


def test_an_error_on_one_stream_leaves_the_association_alone(
    context: Context, simulated: SimTransport
) -> None:
    array = bytearray(100)
    pd = PD(context)
    with associate(context) as association, pd.register(array) as region:
        peer = SctpPeer(simulated)
        queues = [CQ(context), CQ(context)]
        streams = [association.stream(sid, pd, cq) for sid, cq in enumerate(queues)]
        for sid in range(2):
            peer.establish(association, sid)
        peer.write(0, region.stag ^ 1, 0, b"wrong")
        peer.write(1, region.stag, 0, b"right")
        assert queues[1].wait(5)[0].mr is region
        with pytest.raises(StreamError) as caught:
            queues[0].wait(5)
        assert caught.value.number == INVALID_STAG
        assert caught.value.event.stream == streams[0].number
        assert array[:5] == b"right"


def test_a_closed_association_goes_to_the_host_and_its_slot_is_free(
    context: Context, simulated: SimTransport
) -> None:
    array = bytearray(100)
    pd, cq = PD(context), CQ(context)
    with pd.register(array) as region:
        for turn in range(3):
            association = associate(context)
            association.stream(0, pd, cq)
            peer = SctpPeer(simulated)
            peer.establish(association, 0)
            peer.write(0, region.stag, turn, b"mine")
            assert cq.wait(5)[0].mr is region
            association.close()
            association.close()
            octets, before = bytes(array), len(simulated.exceptions())
            peer.write(0, region.stag, 50, b"late")
            simulated.run(3000)
            assert array == octets
            assert [each.reason for each in simulated.exceptions()[before:]] == [Diversion.FRAME]
            with pytest.raises(StateError, match="is closed"):
                association.poll()
    assert array[:6] == b"mmmine" and not context.association_slots and len(context.numbers) == 64


def ask(peer: SctpPeer, sids: Iterable[int], association: Association) -> list[Report]:
    """Lets the peer send an Initiate on each of the SCTP streams; returns the reports of them that
    are not of chunks.
    """
    sids = list(sids)
    for sid in sids:
        initiate = Session(sid).control(Message.INITIATE)
        peer.packet([peer.chunk(sid, Ppid.CONTROL, initiate)])
    found: list[Report] = []
    while sum(each.kind is Kind.CONTROL for each in found) < len(sids):
        found += association.wait(5)
    return [each for each in found if each.kind in (Kind.CONTROL, Kind.SESSION)]


def unanswered(context: Context, sim: SimTransport) -> Association:
    """Returns an association with as many Initiates as may wait for an answer, on its last SCTP
    streams. Its first four streams have none.
    """
    count = 4 + CONFIG.initiates
    association = associate(context, streams=count)
    found = ask(SctpPeer(sim), range(4, count), association)
    assert {each.kind for each in found} == {Kind.CONTROL}
    assert context.registers.read("SESSION_PENDING") == CONFIG.initiates
    return association


def answers_another(context: Context, sim: SimTransport, number: int) -> None:
    """Checks that an Initiate of another peer, whose association has a number, is taken."""
    assert context.registers.read("SESSION_PENDING") == 0
    for tag in range(1, 65):
        with associate(context, tag=tag, streams=1) as association:
            if association.number != number:
                continue
            found = ask(SctpPeer(sim, tag=tag), [0], association)
            assert [(each.kind, each.function) for each in found] == [
                (Kind.CONTROL, Function.INITIATE)
            ]
            assert context.registers.read("SESSION_PENDING") == 1
            assert association.tell(0, Function.ACCEPT) is State.ESTABLISHED
            return
    pytest.fail(f"no association has got the number {number}")


def test_initiates_that_wait_end_with_their_association(
    context: Context, simulated: SimTransport
) -> None:
    """RFC 5043 section 6.4 lets a receiver limit them. Those of one peer must not count for another
    one.
    """
    association = unanswered(context, simulated)
    # The limit is that of each association: a host that never answers stops no other peer.
    other, peer = associate(context, tag=99), SctpPeer(simulated, tag=99)
    with other:
        assert [each.kind for each in ask(peer, [0], other)] == [Kind.CONTROL]
        assert other.tell(0, Function.ACCEPT) is State.ESTABLISHED
        association.close()
        # The session of the other one stays.
        assert other.tell(0, Function.TERMINATE) is State.TERMINATE_SENT
    answers_another(context, simulated, association.number)


def test_initiates_that_wait_end_when_another_driver_opens_the_device() -> None:
    """A driver that died has closed nothing."""
    with SimTransport(CONFIG) as sim:
        before = Device(sim).open()
        number = unanswered(before, sim).number
        before._closed = True
        with Device(sim).open() as context:
            answers_another(context, sim, number)


@pytest.mark.parametrize("dies", [False, True], ids=["close", "open"])
def test_initiates_on_their_way_end_with_their_association(
    monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The device finds a packet's association before the sessions of its chunks."""
    # The simulated device is slow.
    monkeypatch.setattr("ddp_rnic.sw_driver.verbs.context.SETTLE", 60)
    with SimTransport(CONFIG) as sim:
        context = Device(sim).open()
        association, peer = associate(context, streams=CONFIG.initiates), SctpPeer(sim)
        for _ in range(2):
            sids = [n % association.count for n in range(400)]
            peer.packet(
                [
                    peer.chunk(sid, Ppid.CONTROL, Session(sid).control(Message.INITIATE))
                    for sid in sids
                ]
            )
        sim.run(2000)
        if dies:
            context._closed = True
            context = Device(sim).open()
        else:
            association.close()
        with context:
            assert context.registers.read("FRAMES")
            assert context.registers.read("SESSION_PENDING") == 0


def test_many_associations_have_their_slots_and_packets(
    context: Context, simulated: SimTransport
) -> None:
    pd, cq = PD(context), CQ(context)
    array = bytearray(64)
    ends = [(f"10.7.{n}.1", HOST) for n in range(64)]
    made = [
        associate(context, paths=[end, (f"10.8.{n}.1", HOST)], tag=n, streams=1)
        for n, end in enumerate(ends)
    ]
    assert len(context.association_slots) == 128
    with pytest.raises(ResourceExhausted, match="all 64 associations are in use"):
        associate(context, streams=1)
    with pd.register(array) as region:
        for n, association in enumerate(made):
            stream = association.stream(0, pd, cq)
            peer = SctpPeer(simulated, (f"10.{7 + n % 2}.{n}.1", HOST), tag=n)
            peer.establish(association, 0)
            peer.write(0, region.stag, n, bytes([n + 1]))
            assert cq.wait(5)[0].stream is stream
    assert array == bytes(range(1, 65))
    made[5].close()
    with pytest.raises(StateError, match="must not be in the table already"):
        associate(context, paths=[ends[6]], tag=6, streams=1)
    assert len(context.free_associations) == 1
    with pytest.raises(
        ResourceExhausted, match=r"2 consecutive DDP Streams are not free \(1 are\)"
    ):
        associate(context, streams=2)


def test_streams_of_an_association_are_its_own(context: Context) -> None:
    pd, cq = PD(context), CQ(context)
    with associate(context) as association:
        stream = association.stream(1, pd, cq)
        with pytest.raises(StateError, match="in use: close it first"):
            association.stream(1, pd, cq)
        for number in range(association.first, association.first + 3):
            with pytest.raises(StateError, match=f"stream {number} is in use"):
                Stream(pd, cq, number=number)
        stream.close()
        association.stream(1, pd, cq)
        with pytest.raises(InvalidRequest, match="must be from 0 to 2, not 3"):
            association.stream(3, pd, cq)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"paths": []}, "must have a path"),
        ({"paths": [("10.7.0.1", "fd00::1")]}, "must have the same IP version"),
        ({"paths": [("10.7.0.1", "host")]}, "two IP addresses: 'host'"),
        ({"paths": [("10.7.0.1",)]}, "two IP addresses"),
        ({"ports": (1, 65536)}, "ports must be from 0 to 65535"),
        ({"tag": -1}, "tag must be from 0 to"),
        ({"tsn": 1 << 32}, "tsn must be from 0 to"),
        ({"streams": 0}, "streams must be at least 1"),
    ],
)
def test_associations_that_cannot_be_are_reported(
    context: Context, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        associate(context, **changed)
    assert len(context.free_associations) == 64 and len(context.numbers) == 64


def test_reports_that_nobody_takes_are_reported(context: Context, simulated: SimTransport) -> None:
    with associate(context, reports=3) as association:
        peer = SctpPeer(simulated)
        for _ in range(4):
            peer.packet([peer.chunk(0, Ppid.SEGMENT, b"\0\x05" + bytes(14))])
        simulated.run(3000)
        assert len(association.poll()) == 3
        with pytest.raises(CompletionOverrun, match="more than 3 waited: poll more often"):
            association.wait(5)
        with pytest.raises(RnicTimeout, match="no report came within"):
            association.wait(0.01)


def test_a_stream_that_overruns_its_queue_ends_alone_and_its_association_stays() -> None:
    """RFC 5042 section 6.4.6: "an RNIC MUST ensure that if a CQ overflows, any Streams that do not
    use the CQ MUST remain unaffected." Here they share packets and the queue of reports.
    """
    with SimTransport(CONFIG) as sim, Device(sim).open(completions=2) as context, PD(context) as pd:
        flooded, cq, peer = CQ(context), CQ(context), SctpPeer(sim)
        with associate(context) as association, pd.register(bytearray(16)) as region:
            bad, good = association.stream(0, pd, flooded), association.stream(2, pd, cq)
            for sid in (0, 2):
                peer.establish(association, sid)
            reports(association, 4)
            # The driver does not look at the device meanwhile.
            for number in range(10):
                chunks = peer.chunks(0, peer.source.tagged(region.stag, 0, b"%08d" % number))
                if number in (4, 9):
                    chunks += peer.chunks(2, peer.source.tagged(region.stag, 8, b"%08d" % number))
                peer.packet(chunks)
            sim.run(5000)
            assert [wc.stream for wc in cq.wait(5)] == [good] * 2
            assert [wc.stream for wc in flooded.wait(5)] == [bad] * 2
            with pytest.raises(StreamError, match="more than 2 completions"):
                flooded.wait(5)
            # The chunks had been taken before.
            assert {each.status for each in reports(association, 12)} == {ChunkStatus.TAKEN}
            before = region.read(8)
            peer.packet(
                [
                    *peer.chunks(0, peer.source.tagged(region.stag, 0, b"too late")),
                    *peer.chunks(2, peer.source.tagged(region.stag, 8, b"in time.")),
                ]
            )
            assert [wc.stream for wc in cq.wait(5)] == [good]
            assert region.read(16) == before + b"in time."
            late = {each.stream: each.status for each in reports(association, 2)}
            assert late == {0: ChunkStatus.DROPPED, 2: ChunkStatus.TAKEN}
            assert association.tell(0, Function.TERMINATE) is State.TERMINATE_SENT


def test_a_device_without_mpa_has_no_streams_but_those_of_associations(context: Context) -> None:
    assert context.sctp is not None and context.sctp.mpa == 1
    with PD(context) as pd, CQ(context) as cq:
        Stream(pd, cq).close()
        context.sctp = replace(context.sctp, mpa=0)
        with pytest.raises(UnsupportedDevice, match="the device has no MPA: use the streams"):
            Stream(pd, cq)
        with associate(context) as association:
            association.stream(0, pd, cq).close()


def test_a_device_without_sctp_says_so() -> None:
    with SimTransport() as sim:
        assert Device(sim).query_sctp() is None
        with Device(sim).open() as context:
            with pytest.raises(UnsupportedDevice, match="the device has no SCTP: build it with"):
                associate(context)
        with pytest.raises(ValueError, match="a frame needs a configuration with sctp"):
            sim.send_frame(b"frame")
