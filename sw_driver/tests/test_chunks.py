"""DDP over SCTP is sent through the driver, on the real gateware, over a network that loses frames.

The peer is built from the golden model: its sessions judge control messages and DDP-SSNs, and it
places what arrives. RFC 9260 and RFC 5043 are the rules.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.path import SendPath
from ddp_rnic.hdl.spec.sctp import LONGEST_BODY, SSN, Diversion, Function
from ddp_rnic.hdl.spec.send import Kind
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.model.ddp import TaggedHeader, decode_segment
from ddp_rnic.sim.model.header import UntaggedHeader
from ddp_rnic.sim.model.mpa import Enhanced as ModelEnhanced
from ddp_rnic.sim.model.rdmap import Opcode as Rdmap
from ddp_rnic.sim.model.rdmap import QueueNumber, ReadRequest, rsvdulp
from ddp_rnic.sim.model.sctp import (
    DataChunk,
    Packet,
    Ppid,
    SackChunk,
    SegmentReceived,
    Session,
    SessionControl,
)
from ddp_rnic.sim.model.sctp import Function as Message
from ddp_rnic.sim.replay.paths import example_path, frame_of
from ddp_rnic.sw_driver import (
    CQ,
    MR,
    PD,
    WC,
    Access,
    Association,
    Context,
    Device,
    InvalidRequest,
    Opcode,
    StateError,
    UnsupportedDevice,
    WcStatus,
)
from ddp_rnic.sw_driver.cm.startup import Enhanced, Rtr
from ddp_rnic.sw_driver.tests.test_association import HOST, PEER, TSN, associate
from ddp_rnic.sw_driver.tests.test_flight import Peer as Receiver
from ddp_rnic.sw_driver.tests.virtual_board import VirtualBoard
from ddp_rnic.sw_driver.transports.uart import UartTransport
from ddp_rnic.sw_driver.verbs.sending import MOST, Part, SendSettings
from scapy.layers.inet import IP, defragment
from scapy.layers.inet6 import IPv6ExtHdrFragment, defragment6
from scapy.layers.l2 import Ether
from scapy.layers.sctp import SCTP, SCTPChunkData
from scapy.plist import PacketList

CONFIG = RnicConfig(transmit=True, responder=True, mpa=False, sctp=True)
OWN = (1 << 32) - 3  # the first TSN of the device
WINDOW = 1 << 16
REQUEST = rsvdulp(Rdmap.READ_REQUEST, tagged=False)
LIMITS = Enhanced(4, 2, peer_to_peer=True, rtr=Rtr.READ)


class Peer(Receiver):
    """The peer of an association of three SCTP streams."""

    def __init__(self, sim: SimTransport, path: SendPath) -> None:
        super().__init__(OWN)
        self.sim, self.path, self.tsn = sim, path, TSN
        self.sessions = {sid: Session(sid) for sid in range(3)}
        self.memory: dict[int, bytes] = {}  # octets that were placed, by the STag
        self.private: list[bytes] = []
        self.functions: list[Message] = []
        self.frames: list[bytes] = []
        self.answers = True
        self.loses: Callable[[int], bool] = lambda tsn: False
        self.seen = 0
        self.mtu = 1 << 16  # of the path
        self.parts: list[Any] = []
        self.lengths: list[int] = []
        self.joined = 0

    def frame(self, octets: bytes) -> None:
        """Takes a frame of the device, or loses it. Scapy joins fragments of IP packets."""
        ip: Any = Ether(octets).payload
        self.lengths.append(len(ip))
        if IP in ip:
            summed = ip.copy()
            del summed.chksum
            assert IP(bytes(summed)).chksum == ip.chksum
        if len(ip) > self.mtu:
            return
        self.parts.append(ip)
        if (IP in ip and ip.flags.MF) or (IPv6ExtHdrFragment in ip and ip[IPv6ExtHdrFragment].m):
            return
        if len(self.parts) > 1:
            parts = PacketList(self.parts)
            whole = defragment(parts)[0] if IP in ip else defragment6(parts)
            self.joined += 1
            octets = octets[:14] + bytes(whole)
        self.parts.clear()
        self.frames.append(octets)
        packet = Packet.parse(octets[len(self.path.headers) :])
        (chunk,) = packet.chunks
        assert isinstance(chunk, DataChunk)
        if self.loses(chunk.tsn):
            return
        number = OWN + (chunk.tsn - OWN) % (1 << 32)
        fresh = number >= self.next and number not in self.ahead
        self.take(number)
        self.seen += 1
        if fresh:
            for event in self.sessions[chunk.stream].receive(chunk.ppid, chunk.payload):
                self.handle(chunk.stream, event)

    def handle(self, sid: int, event: object) -> None:
        if isinstance(event, SessionControl):
            self.private.append(event.private_data)
            self.functions.append(event.function)
            if event.function is Message.INITIATE and self.answers:
                self.control(sid, Message.ACCEPT)
            elif event.function is Message.ENHANCED_INITIATE and self.answers:
                self.control(sid, Message.ENHANCED_ACCEPT, LIMITS.encode())
        else:
            assert isinstance(event, SegmentReceived), event
            header, payload = decode_segment(event.segment)
            if isinstance(header, TaggedHeader):
                before = self.memory.get(header.stag, b"").ljust(header.to, b"\0")
                end = header.to + len(payload)
                self.memory[header.stag] = before[: header.to] + payload + before[end:]
            else:
                self.memory[header.qn] = self.memory.get(header.qn, b"") + payload

    def control(self, sid: int, function: Message, private: bytes = b"") -> None:
        """Sends a session control message."""
        payload = self.sessions[sid].control(function, private)
        self.packet(self.chunk(sid, Ppid.CONTROL, payload))

    def chunk(self, sid: int, ppid: Ppid, payload: bytes) -> DataChunk:
        self.tsn = (self.tsn + 1) % (1 << 32)
        return DataChunk((self.tsn - 1) % (1 << 32), sid, ppid, payload)

    def request(self, sid: int, msn: int, request: ReadRequest) -> DataChunk:
        """Returns a Read Request, to be sent."""
        header = UntaggedHeader(QueueNumber.READ_REQUEST, msn, 0, True, REQUEST)
        segment = self.sessions[sid].segment(header.encode() + request.encode())
        return self.chunk(sid, Ppid.SEGMENT, segment)

    def acknowledge(self) -> None:
        cumulative, gaps = self.answer()
        self.packet(SackChunk(cumulative, WINDOW, tuple(gaps)))

    def packet(self, chunk: Any) -> None:
        headers = bytes(12) + b"\x08\x00" + bytes([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 132, 0, 0])
        headers += bytes(map(int, (PEER + "." + HOST).split(".")))
        packet = Packet(4001, 4002, 0x12345678, (chunk,)).encode()
        self.sim.send_frame(frame_of(headers, packet))


class Bench:
    """A device, an association that sends, and its peer. Time passes as the test says."""

    def __init__(
        self, sim: SimTransport, context: Context, *, mtu: int = 1100, path: int = 2
    ) -> None:
        self.sim, self.context, self.now = sim, context, 0.0
        self.pd, self.cq = PD(context), CQ(context)
        self.path = example_path(path)  # by default over IPv4, in UDP
        self.peer = Peer(sim, self.path)
        self.association: Association = associate(context)
        self.sender = self.association.send_by(
            self.path, tsn=OWN, window=WINDOW, mtu=mtu, transmit=self.put,
            clock=lambda: self.now,
        )  # fmt: skip
        self.by_host = 0  # frames that the host has sent
        self._exceptions = len(sim.exceptions())
        self.done: list[WC] = []
        self.overwrites: Callable[[int, int], None] = lambda at, number: None

    def put(self, frame: bytes) -> None:
        self.by_host += 1
        self.peer.frame(frame)

    def open(self, sid: int, *, accepted: bool = True) -> Any:
        """Opens a stream, and initiates its session."""
        stream = self.association.stream(sid, self.pd, self.cq)
        half = self.sender.open(stream)
        self.sender.control(sid, Function.INITIATE, b"hello %d" % sid)
        if accepted:
            self.until(lambda: half.established)
        return stream

    def step(self) -> None:
        """Passes all packets on, in both directions, and lets the peer answer."""
        self.sim.run(400)
        self.association.poll()
        for wc in (found := self.cq.poll(64)):
            if isinstance(wc.wr_id, tuple) and isinstance(wc.wr_id[1], int):
                self.overwrites(*wc.wr_id)
        self.done += found
        moved = self.peer.seen or len(self.sim.exceptions()) > self._exceptions
        if self.peer.seen:
            self.peer.seen = 0
            self.peer.acknowledge()
        exceptions = self.sim.exceptions()
        for each in exceptions[self._exceptions :]:
            if each.reason == Diversion.CHUNK:
                self.sender.receive(each.octets)
        self._exceptions = len(exceptions)
        # While nothing moves, time passes until the sender's timer.
        self.now += 0.01
        if not moved and not self.sim.sending and (due := self.sender.tick()) is not None:
            self.now = max(self.now, due)
        self.sender.tick()

    def until(self, ready: Callable[[], bool]) -> None:
        for _ in range(3000):
            if ready():
                return
            self.step()
        raise AssertionError("it does not come")

    def region(self, octets: bytes) -> MR:
        return self.pd.register(bytearray(octets), Access.LOCAL_READ)

    def ended(self) -> list[tuple[object, WcStatus]]:
        return [(wc.wr_id, wc.status) for wc in self.done if wc.opcode is Opcode.SENT]


def chunk_of(path: SendPath, frame: bytes) -> DataChunk:
    (chunk,) = Packet.parse(frame[len(path.headers) :]).chunks
    assert isinstance(chunk, DataChunk)
    return chunk


@pytest.fixture(scope="module")
def simulated() -> Iterator[SimTransport]:
    with SimTransport(CONFIG) as sim:
        yield sim


@pytest.fixture
def bench(simulated: SimTransport) -> Iterator[Bench]:
    with Device(simulated).open() as context:
        yield Bench(simulated, context)


@pytest.fixture
def boarded() -> Iterator[Bench]:
    """A device on a board, which sends its frames itself; the host has the UART alone."""
    with (
        SimTransport(CONFIG) as sim,
        VirtualBoard(sim, memory=1 << 16) as board,
        UartTransport(board.port) as transport,
        Device(transport).open(completions=64) as context,
    ):
        bench = Bench(sim, context)
        board.wire = bench.peer.frame
        yield bench


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_messages_arrive_whole_and_complete_once_they_are_acknowledged(
    bench: Bench, loss: float
) -> None:
    """RFC 5041 section 5.4: the buffer is the host's again with the completion, and the host
    overwrites it: a chunk that is sent again has to have the octets that were posted.
    """
    rng, octets = random.Random(7), random.Random(1).randbytes(40_000)
    bench.peer.loses = lambda tsn: rng.random() < loss
    streams = [bench.open(sid, accepted=False) for sid in (0, 2)]
    regions = [bench.region(octets) for _ in streams]
    sent: list[object] = []
    bench.overwrites = lambda at, number: regions[at].write(bytes(10_000), 10_000 * number)
    for at, stream in enumerate(streams):
        for number in range(4):
            part = Part(regions[at], 10_000 * number, 10_000)
            stream.sending.post(
                Kind.TAGGED, part, stag=0x100 + at, to=10_000 * number, wr_id=(at, number)
            )
            sent.append((at, number))
        stream.sending.post(Kind.UNTAGGED, b"a Send", qn=at, wr_id=(at, "send"))
        sent.append((at, "send"))
    assert not bench.done
    bench.until(lambda: len([each for each in bench.ended() if each[0]]) == len(sent))
    found = [each for each in bench.ended() if each[0]]
    assert sorted(map(str, found)) == sorted(str((each, WcStatus.SUCCESS)) for each in sent)
    assert bench.peer.private == [b"hello 0", b"hello 2"]
    assert bench.peer.memory == {0x100: octets, 0x101: octets, 0: b"a Send", 1: b"a Send"}
    # RFC 9260 section 6.2: a chunk that is sent again is the same one.
    frames = bench.peer.frames
    assert len(set(frames)) == len({chunk_of(bench.path, each).tsn for each in frames})
    assert (len(frames) > len(set(frames))) == (loss > 0)
    # The peer has not counted the frames that were lost.
    assert bench.sender.repeats >= len(frames) - len(set(frames)) and not bench.sender.copies
    assert (bench.sender.repeats > 0) == (loss > 0)


def test_a_message_does_not_end_while_one_of_its_chunks_is_on_its_way_again(bench: Bench) -> None:
    """Its acknowledgment may come after the chunk was asked for again. The device still reads the
    message's entries and octets then, so the host must not have them back.
    """
    stream = bench.open(0)
    for _ in range(5):
        region, before = bench.region(bytes(900)), bench.sender.repeats
        bench.peer.loses = lambda tsn: True
        stream.sending.post(Kind.TAGGED, Part(region, 0, 900), stag=1, to=0, wr_id=region)
        for _ in range(3):
            bench.sim.run(400)
            bench.association.poll()
        bench.now += 100
        bench.sender.tick()
        last = (bench.sender._flight.next - 1) % (1 << 32)
        bench.sender.receive(SackChunk(last, WINDOW).encode())
        while not any(wc.wr_id is region for wc in bench.cq.poll(64)):
            bench.sim.run(4)
        region.close()
        bench.sim.run(2000)
        bench.association.poll()
        assert bench.sender.repeats == before + 1 and stream.sending.repeats


def test_no_segment_leaves_before_the_peer_has_accepted(bench: Bench) -> None:
    """RFC 5043 section 6.6: "An active side of a DDP Stream Session MUST NOT send a DDP Segment
    that might be received before the DDP Stream Session Initiate message. This MAY be determined
    by [...] receipt of a responsive DDP Stream Session Control message."
    """
    bench.peer.answers = False
    stream = bench.open(0, accepted=False)
    for kind, fields, said in (
        (Kind.UNTAGGED, {"qn": 1 << 32}, "qn must be one that the stream was opened with, "),
        (Kind.UNTAGGED, {"fence": 2}, "fence must be True or False, not 2"),
        (Kind.READ, {}, "the message cannot be sent: A READ must have one piece, not 0"),
        (9, {}, "a message's kind must be a Kind, not 9"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            stream.sending.post(kind, b"wrong", **fields)
    stream.sending.post(Kind.UNTAGGED, b"early", qn=0)
    for _ in range(20):
        bench.step()
    assert bench.peer.private == [b"hello 0"] and not bench.peer.memory
    bench.peer.control(0, Message.ACCEPT)
    bench.until(lambda: bench.peer.memory == {0: b"early"})


@pytest.mark.parametrize("answer", [Function.ACCEPT, Function.REJECT])
def test_an_initiate_is_answered_by_the_ulp_alone(bench: Bench, answer: Function) -> None:
    """RFC 5043 section 6.3: "A DDP Stream Session Reject message MUST NOT be sent unless the
    rejection is at the direction of the ULP." Section 6.4 says the same of Accept.
    """
    bench.sender.open(bench.association.stream(1, bench.pd, bench.cq))
    bench.peer.control(1, Message.INITIATE)
    for _ in range(20):
        bench.step()
    assert not bench.peer.frames
    bench.sender.control(1, answer)
    bench.until(lambda: bool(bench.peer.frames))
    assert bench.peer.private == [b""] and bench.peer.functions == [Message(answer)]


def test_an_enhanced_session_is_established_with_ird_and_ord_first(bench: Bench) -> None:
    """RFC 6581 section 7: "ULP-supplied Private Data MUST be included for Enhanced DDP Stream
    Session Initiate, Enhanced DDP Stream Session Accept, and Enhanced DDP Stream Session Reject
    messages, and MUST follow the enhanced RDMA connection establishment data". Both ends use the
    Terminate of RFC 5043 for the end of the session.
    """
    half = bench.sender.open(bench.association.stream(0, bench.pd, bench.cq))
    bench.sender.control(0, Function.ENHANCED_INITIATE, LIMITS.encode() + b"please")
    half.post(Kind.UNTAGGED, b"early", qn=0)
    bench.until(lambda: bench.peer.memory == {0: b"early"})
    assert half.established and bench.peer.functions == [Message.ENHANCED_INITIATE]
    (private,) = bench.peer.private
    expected = ModelEnhanced(ird=4, ord=2, peer_to_peer=True, rtr_read=True)
    assert ModelEnhanced.decode(private) == expected and private[4:] == b"please"
    bench.sender.control(0, Function.TERMINATE)
    bench.until(lambda: bench.peer.functions[1:] == [Message.TERMINATE])


@pytest.mark.parametrize(
    "answer",
    [Function.ENHANCED_ACCEPT, Function.ENHANCED_REJECT, Function.REJECT, Function.TERMINATE],
)
def test_an_enhanced_initiate_is_answered_as_the_ulp_says(bench: Bench, answer: Function) -> None:
    """RFC 6581 section 7: "The Enhanced Reject function code MUST be used to indicate rejection of
    enhanced DDP stream session for a configuration that would have been accepted for unenhanced DDP
    stream session negotiation." A Provider "MAY generate a reject reply message indicating which
    RTR indication types it supports".
    """
    half = bench.sender.open(bench.association.stream(1, bench.pd, bench.cq))
    bench.peer.control(1, Message.ENHANCED_INITIATE, LIMITS.encode())
    for _ in range(20):
        bench.step()
    assert not bench.peer.frames
    with pytest.raises(StateError, match=r"ACCEPT must not .* peer has sent an Enhanced Initiate"):
        bench.sender.control(1, Function.ACCEPT)
    private = b"" if answer is Function.TERMINATE else LIMITS.encode() + b"an answer"
    bench.sender.control(1, answer, private)
    bench.until(lambda: bool(bench.peer.frames))
    assert bench.peer.functions == [Message(answer)] and bench.peer.private == [private]
    assert half.established == (answer is Function.ENHANCED_ACCEPT)


@pytest.mark.parametrize("wrong", [Function.ENHANCED_ACCEPT, Function.ENHANCED_REJECT])
def test_an_initiate_has_no_enhanced_answer(bench: Bench, wrong: Function) -> None:
    """RFC 5043 section 6.1: "all sessions MUST conform to one of the patterns"."""
    bench.sender.open(bench.association.stream(1, bench.pd, bench.cq))
    bench.peer.control(1, Message.INITIATE)
    bench.until(lambda: not bench.sim.sending)
    bench.step()
    with pytest.raises(StateError, match=f"{wrong.name} must not .* peer has sent an Initiate"):
        bench.sender.control(1, wrong, LIMITS.encode())
    bench.sender.control(1, Function.ACCEPT)
    bench.until(lambda: bench.peer.functions == [Message.ACCEPT])


@pytest.mark.parametrize(
    ("function", "length", "wrong"),
    [
        (Function.ENHANCED_INITIATE, 3, "must begin with the 4 octets of IRD and ORD .*not have 3"),
        (Function.ENHANCED_ACCEPT, 0, "must begin with the 4 octets of IRD and ORD .*not have 0"),
        (Function.ENHANCED_INITIATE, 513, "at most 512 octets .* IRD and ORD included, not 513"),
        (Function.ENHANCED_REJECT, 513, "at most 512 octets"),
        (Function.INITIATE, 513, "at most 512 octets"),
        (Function.TERMINATE, 1, "TERMINATE must have no Private Data"),
        (Function.ABORT, 0, "function must be one of .*, not <Function.ABORT: 8>"),
        (Function.PAST, 0, "function must be one of"),
    ],
)
def test_private_data_that_a_message_cannot_have_is_refused(
    bench: Bench, function: Function, length: int, wrong: str
) -> None:
    """RFC 6581 section 7: "Private Data length MUST NOT exceed 512 bytes in any message, including
    enhanced RDMA connection establishment data. Private Data MUST NOT be included in the DDP Stream
    Session TERM message."
    """
    bench.sender.open(bench.association.stream(1, bench.pd, bench.cq))
    with pytest.raises(InvalidRequest, match=wrong):
        bench.sender.control(1, function, bytes(length))
    # Nothing was announced to the device: the session has not begun.
    longest = LIMITS.encode() + bytes(508)
    bench.sender.control(1, Function.ENHANCED_INITIATE, longest)
    bench.until(lambda: bench.peer.private == [longest])


def test_a_session_that_the_peer_initiates_is_accepted(bench: Bench) -> None:
    stream = bench.association.stream(1, bench.pd, bench.cq)
    half = bench.sender.open(stream)
    with pytest.raises(StateError, match="ACCEPT must not be sent on SCTP stream 1"):
        bench.sender.control(1, Function.ACCEPT)
    bench.peer.control(1, Message.INITIATE)
    bench.until(lambda: not bench.sim.sending)
    bench.step()
    bench.sender.control(1, Function.ACCEPT)
    half.post(Kind.UNTAGGED, bytes(2000), qn=0, wr_id=1)
    bench.sender.control(1, Function.TERMINATE)
    bench.until(lambda: (1, WcStatus.SUCCESS) in bench.ended())
    assert bench.peer.memory == {0: bytes(2000)}


def test_a_session_is_not_followed_by_another_one_while_a_chunk_is_outstanding(
    bench: Bench,
) -> None:
    """RFC 5043 section 6.6: "A DDP Stream Identifier MUST NOT be reused for another DDP Stream
    Session while any Data Chunk from a prior session might be outstanding."
    """
    stream = bench.open(0)
    bench.peer.control(0, Message.TERMINATE)
    bench.until(lambda: not bench.sim.sending)
    bench.step()
    bench.peer.loses = lambda tsn: True
    bench.sender.control(0, Function.TERMINATE)
    bench.sim.run(400)
    stream.close()
    again = bench.association.stream(0, bench.pd, bench.cq)
    half = bench.sender.open(again)
    with pytest.raises(StateError, match="while 1 of its chunks are not acknowledged"):
        bench.sender.control(0, Function.INITIATE)
    bench.peer.loses = lambda tsn: False
    bench.until(lambda: not bench.sender._outstanding(0))
    bench.sender.control(0, Function.INITIATE)
    bench.until(lambda: half.established)


def long_enough(bench: Bench, stag: int) -> bool:
    return len(bench.peer.memory.get(stag, b"")) == 9005


def test_the_device_answers_read_requests(bench: Bench) -> None:
    """RFC 5040 section 5.5: "RDMA Read Response Message processing at the Remote Peer (reading the
    specified Tagged Buffer) MUST be started only after the RDMA Read Request Message has been
    Delivered by the DDP layer". The requests arrive last one first, some responses are lost, and
    they leave in the order of the requests.
    """
    octets, loses = random.Random(5).randbytes(20_000), random.Random(6)
    bench.peer.loses = lambda tsn: loses.random() < 0.2
    stream = bench.open(0)
    stream.answer_reads(4)
    source = bench.pd.register(bytearray(octets), Access.REMOTE_READ)
    asked = [
        ReadRequest(0x70 + number, 5, 3000 * (number % 4), source.stag, source.to + 700 * number)
        for number in range(12)
    ]
    for first in range(0, 12, 4):
        chunks = [bench.peer.request(0, each + 1, asked[each]) for each in range(first, first + 4)]
        for chunk in reversed(chunks):
            bench.peer.packet(chunk)
        stream.sending.post(Kind.TAGGED, b"own" * 500, stag=1 + first, to=0, wr_id=first)
        last = asked[first + 3].sink_stag
        bench.until(partial(long_enough, bench, last))
        bench.until(lambda: not bench.peer.ahead)
    bench.until(lambda: not stream.sending.busy)
    for number, request in enumerate(asked):
        begin = 700 * number
        expected = bytes(5) + octets[begin : begin + request.length]
        assert bench.peer.memory[request.sink_stag] == expected
    assert [bench.peer.memory[1 + first] for first in (0, 4, 8)] == [b"own" * 500] * 3
    chunks = [chunk_of(bench.path, each) for each in bench.peer.frames]
    segments = [decode_segment(each.payload[SSN:]) for each in chunks if each.ppid == Ppid.SEGMENT]
    stags = [header.stag for header, _ in segments if isinstance(header, TaggedHeader)]
    assert list(dict.fromkeys(each for each in stags if each >= 0x70)) == [*range(0x70, 0x7C)]
    assert bench.sender.repeats and {status for _, status in bench.ended()} == {WcStatus.SUCCESS}


def test_a_read_request_that_fails_goes_to_the_host_and_concerns_its_stream_alone(
    bench: Bench,
) -> None:
    """RFC 5040 section 5.2.1: the source STag has to have remote read access."""
    one, other = bench.open(0), bench.open(2)
    one.answer_reads(2)
    good = bench.pd.register(bytearray(b"read"), Access.REMOTE_READ)
    secret = bench.region(b"not for peers")
    answered = ReadRequest(7, 0, 4, good.stag, good.to)
    refused = ReadRequest(8, 0, 4, secret.stag, secret.to)
    bench.peer.packet(bench.peer.request(0, 1, answered))
    bench.peer.packet(bench.peer.request(0, 2, refused))
    bench.until(lambda: any(wc.qn == QueueNumber.READ_REQUEST for wc in bench.done))
    (failed,) = [wc for wc in bench.done if wc.qn == QueueNumber.READ_REQUEST]
    assert (failed.stream, failed.msn, failed.wr_id) == (one, 2, refused.encode())
    other.sending.post(Kind.TAGGED, b"goes on", stag=9, to=0, wr_id="other")
    one.sending.post(Kind.TAGGED, b"does not", stag=10, to=0, wr_id="one")
    bench.until(lambda: {"one", "other"} <= {wc.wr_id for wc in bench.done})
    assert dict(bench.ended())["other"] is WcStatus.SUCCESS
    assert dict(bench.ended())["one"] is WcStatus.FLUSHED
    assert bench.peer.memory == {7: b"read", 9: b"goes on"}


def test_a_stream_that_fails_leaves_its_association_and_the_others_alive(bench: Bench) -> None:
    """RFC 5043 section 11.3: "termination of a DDP Stream does not mandate termination of the
    Association." Chunks of the stream that were lost arrive, because their TSNs have to.
    """
    lost = {(OWN + at) % (1 << 32) for at in range(2, 12, 3)}

    def once(tsn: int) -> bool:
        found = tsn in lost
        lost.discard(tsn)
        return found

    bench.peer.loses = once
    one, other = bench.open(0), bench.open(1)
    good, bad = bench.region(bytes(range(200)) * 50), bench.region(bytes(3000))
    one.sending.post(Kind.TAGGED, Part(good, 0, 6000), stag=1, to=0, wr_id="good")
    part = Part(bad, 0, 3000)
    bad.close()
    one.sending.post(Kind.TAGGED, part, stag=1, to=6000, wr_id="bad")
    one.sending.post(Kind.TAGGED, Part(good, 0, 6000), stag=1, to=6000, wr_id="later")
    for number in range(6):
        other.sending.post(Kind.TAGGED, Part(good, 0, 9000), stag=2, to=0, wr_id=number)
    bench.until(lambda: {"later", *range(6)} <= {name for name, _ in bench.ended()})
    found = dict(bench.ended())
    assert found["good"] is WcStatus.SUCCESS
    assert found["bad"] is WcStatus.NOT_READ and found["later"] is WcStatus.FLUSHED
    assert all(found[number] is WcStatus.SUCCESS for number in range(6))
    assert bench.sender.repeats + bench.sender.copies >= 4
    assert bench.peer.memory[1] == (bytes(range(200)) * 50)[:6000]
    assert bench.peer.memory[2] == (bytes(range(200)) * 50)[:9000]


def test_a_stream_is_closed_while_its_association_has_no_credit(bench: Bench) -> None:
    """Its messages are flushed, and the other stream gets the credit that comes."""
    one, other = bench.open(0), bench.open(1)
    region = bench.region(bytes(60_000))
    bench.peer.loses = lambda tsn: True
    for stream in (one, other):
        stream.sending.post(Kind.TAGGED, Part(region, 0, 60_000), stag=1, to=0, wr_id=stream.number)
    for _ in range(10):  # without the sender's timer: no chunk is sent again
        bench.sim.run(400)
        bench.association.poll()
    one.close()
    bench.peer.loses = lambda tsn: False
    bench.until(lambda: {one.number, other.number} <= {name for name, _ in bench.ended()})
    found = dict(bench.ended())
    assert found[one.number] is WcStatus.FLUSHED and found[other.number] is WcStatus.SUCCESS
    assert bench.sender.copies > 0  # chunks of the closed stream, whose TSNs the peer needs


@pytest.mark.parametrize("path", [2, 3, 0], ids=["IPv4 UDP", "IPv6 UDP", "IPv4"])
def test_chunks_that_a_smaller_path_mtu_made_too_large_leave_in_fragments(
    simulated: SimTransport, path: int
) -> None:
    """RFC 9260 section 6.9: "Once a user message is fragmented, it cannot be re-fragmented.
    Instead, if the PMTU has been reduced, then IP fragmentation MUST be used." The next chunks fit.
    """
    octets = random.Random(3).randbytes(30_000)
    with Device(simulated).open() as context:
        bench = Bench(simulated, context, path=path)
        peer, stream = bench.peer, bench.open(0)
        stream.sending.post(Kind.TAGGED, Part(bench.region(octets), 0, 30_000), stag=1, to=0)
        bench.step()
        peer.mtu = 700
        for _ in range(5):
            bench.step()
        assert len(peer.memory.get(1, b"")) < 30_000 and max(peer.lengths) > 1000
        peer.lengths.clear()
        bench.sender.resize(700)
        bench.until(lambda: len(peer.memory.get(1, b"")) == 30_000 and not bench.sim.sending)
        assert peer.memory[1] == octets and peer.joined > 0
        assert 600 < max(peer.lengths) <= 700
        joined = peer.joined
        stream.sending.post(Kind.TAGGED, Part(bench.region(octets), 0, 30_000), stag=2, to=0)
        bench.until(lambda: peer.memory.get(2) == octets)
        assert peer.joined == joined and max(peer.lengths) <= 700


@pytest.mark.parametrize("path", [2, 3], ids=["IPv4", "IPv6"])
def test_no_two_packets_of_a_device_have_the_number_of_their_fragments_in_common(
    simulated: SimTransport, path: int
) -> None:
    """RFC 8200 section 4.5: the number must differ from that of "any other fragmented packet sent
    recently with the same Source Address and Destination Address". A receiver keeps fragments of a
    packet for a minute, and would join them with those of the next association.
    """
    numbers: list[int] = []

    def put(octets: bytes) -> None:
        ip: Any = Ether(octets).payload
        numbers.append(ip.id if IP in ip else ip[IPv6ExtHdrFragment].id)

    for _ in range(2):
        with Device(simulated).open() as context:
            for port in (4001, 4003):
                sender = associate(context, ports=(port, 4002)).send_by(
                    example_path(path), tsn=OWN, window=WINDOW, mtu=1100, transmit=put
                )
                sender.resize(700)
                for _ in range(3):
                    sender._pass(frame_of(example_path(path).headers, bytes(1000)))
    found = Counter(numbers)
    assert len(found) == 12 and set(found.values()) == {2}


@pytest.mark.parametrize("path, mtu", [(0, 1500), (1, 1501), (2, 1499), (3, 9000)])
def test_no_message_is_fragmented_and_a_segment_is_as_long_as_a_packet_holds(
    simulated: SimTransport, path: int, mtu: int
) -> None:
    """RFC 5043 section 9: "the SCTP adaptation layer MUST inform the DDP layer of the maximum DDP
    Segment size that will be supported." "SCTP data chunk fragmentation MUST NOT be used unless
    the alternative is IP fragmentation." Scapy reads the packets.
    """
    with Device(simulated).open() as context:
        bench = Bench(simulated, context, mtu=mtu, path=path)
        stream, octets = bench.open(0), random.Random(2).randbytes(30_000)
        stream.sending.post(Kind.TAGGED, Part(bench.region(octets), 0, 30_000), stag=1, to=0)
        bench.until(lambda: bench.peer.memory.get(1) == octets)
        # Padded to a multiple of 4 octets, the longest packet is as long as the path allows.
        assert mtu - 4 < max(bench.peer.lengths) <= mtu and not bench.peer.joined
        found = [SCTP(each[len(bench.path.headers) :])[SCTPChunkData] for each in bench.peer.frames]
        assert all(chunk.beginning and chunk.ending for chunk in found)
        assert max(len(chunk.data) for chunk in found) == bench.sender.mulpdu + SSN


def test_a_board_sends_its_frames_itself_and_the_host_follows_their_copies(boarded: Bench) -> None:
    """The host knows frames that have left from copies alone; lost chunks leave the board again."""
    rng, octets = random.Random(3), random.Random(4).randbytes(6000)
    boarded.peer.loses = lambda tsn: rng.random() < 0.2
    stream, region = boarded.open(1), boarded.region(octets)
    most = [Part(region, 20 * number, 20) for number in range(MOST)]
    stream.sending.post(Kind.TAGGED, most, stag=1, to=0, wr_id="parts")
    stream.sending.post(Kind.TAGGED, octets, stag=2, to=7, wr_id="octets")
    stream.sending.post(Kind.TAGGED, 2 * octets, stag=3, to=0, wr_id="more than the room")
    boarded.until(lambda: len([each for each in boarded.ended() if each[0]]) == 3)
    assert {status for _, status in boarded.ended()} == {WcStatus.SUCCESS}
    memory = boarded.peer.memory
    assert memory == {1: octets[: 20 * MOST], 2: bytes(7) + octets, 3: 2 * octets}
    assert boarded.sender.repeats and not boarded.by_host


def test_the_host_of_a_board_sends_what_the_board_cannot(boarded: Bench) -> None:
    """A chunk that a smaller path MTU made too long leaves again in fragments (RFC 9260 section
    6.9).
    """
    peer = boarded.peer
    stream, region = boarded.open(0), boarded.region(bytes(range(200)) * 10)
    lost = set(range(OWN + 2, OWN + 4))
    peer.loses = lambda tsn: OWN + (tsn - OWN) % (1 << 32) in lost
    stream.sending.post(Kind.TAGGED, Part(region, 0, 2000), stag=1, to=0, wr_id="long")
    boarded.until(lambda: boarded.sender.outstanding(OWN % (1 << 32) + 2))
    boarded.sender.resize(700)
    peer.mtu = 700
    boarded.until(lambda: boarded.sender.repeats > 0)
    lost.clear()
    boarded.until(lambda: ("long", WcStatus.SUCCESS) in boarded.ended())
    assert peer.memory[1] == bytes(range(200)) * 10 and peer.joined and boarded.by_host


def test_frames_are_no_longer_than_a_boards_port_takes(boarded: Bench) -> None:
    other = associate(boarded.context, tag=2)
    with pytest.raises(
        InvalidRequest, match="mtu must be at most 1982 octets, not 1983: the port of"
    ):
        other.send_by(boarded.path, tsn=1, window=1, mtu=1983, transmit=bytes)
    other.send_by(boarded.path, tsn=1, window=1, mtu=1982, transmit=bytes)
    with pytest.raises(InvalidRequest, match="mtu must be at most 1982"):
        boarded.sender.resize(9000)
    assert boarded.sender.mulpdu < 1100


def test_chunks_are_no_longer_than_the_device_makes_them(simulated: SimTransport) -> None:
    with Device(simulated).open() as context:
        bench = Bench(simulated, context, mtu=1 << 16)
        assert bench.sender.mulpdu == LONGEST_BODY
        stream, octets = bench.open(0), random.Random(2).randbytes(50_000)
        stream.sending.post(Kind.TAGGED, Part(bench.region(octets), 0, 50_000), stag=1, to=0)
        bench.until(lambda: bench.peer.memory.get(1) == octets)


def test_what_cannot_be_sent_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StateError, match="association 0 sends already"):
        bench.association.send_by(bench.path, tsn=1, window=1, mtu=1500, transmit=bytes)
    with pytest.raises(StateError, match="SCTP stream 2 has no sending half: call open"):
        bench.sender.control(2, Function.INITIATE)
    stream = bench.open(0)
    with pytest.raises(StateError, match="must be one of the association, without sending half"):
        bench.sender.open(stream)
    with pytest.raises(StateError, match="stream 0 has a sending half already"):
        stream.send_by(SendSettings(1000, crc=True, markers=False), print)
    unused = bench.association.stream(1, bench.pd, bench.cq)
    with pytest.raises(
        InvalidRequest, match=r"give it its sending half with open\(\) of the assoc"
    ):
        unused.send_by(SendSettings(1000, crc=True, markers=False), print)
    assert unused.sending is None
    with pytest.raises(StateError, match="INITIATE must not be sent on SCTP stream 0, whose"):
        bench.sender.control(0, Function.INITIATE)
    with pytest.raises(UnsupportedDevice, match="does not bound Reads over SCTP: the host has to"):
        stream.sending.bound_reads(1)
    with pytest.raises(InvalidRequest, match="ird must be from 1 to 64, not 65"):
        stream.answer_reads(65)
    monkeypatch.setattr(bench.context, "responds", False)
    with pytest.raises(UnsupportedDevice, match="the device answers no RDMA Reads on this stream"):
        stream.answer_reads(1)
    other = associate(bench.context, tag=2)
    with pytest.raises(InvalidRequest, match="mtu must be at least 576 octets on this path"):
        other.send_by(bench.path, tsn=1, window=1, mtu=575, transmit=bytes)


def test_a_device_that_does_not_send_over_sctp_says_so() -> None:
    with SimTransport(RnicConfig(sctp=True)) as sim, Device(sim).open() as context:
        association = associate(context)
        with pytest.raises(UnsupportedDevice, match="sends nothing over SCTP"):
            association.send_by(
                example_path(0), tsn=1, window=1, mtu=1500, transmit=lambda octets: None
            )
