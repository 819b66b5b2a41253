"""RDMAP against a peer that the model scripts; all received octets go through the gateware."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ddp_rnic.hdl.spec import ddp
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sim.model.ddp import decode_segment
from ddp_rnic.sim.model.header import Header, TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver
from ddp_rnic.sim.model.rdmap import Opcode as Message
from ddp_rnic.sim.model.rdmap import ReadRequest, opcode, rsvdulp
from ddp_rnic.sw_driver import CQ as DdpCQ
from ddp_rnic.sw_driver import (
    PD,
    Access,
    Context,
    Device,
    InvalidRequest,
    RnicTimeout,
    StateError,
    Stream,
    StreamError,
    StreamState,
    UnsupportedDevice,
    WcStatus,
)
from ddp_rnic.sw_driver.cm import MpaSource
from ddp_rnic.sw_driver.prm import connect, session
from ddp_rnic.sw_driver.rdmap import CQ, QP, WC, Layer, Opcode, QPState, Terminate
from ddp_rnic.sw_driver.tests.managed import managed, until
from ddp_rnic.sw_driver.verbs import context as driver_context
from ddp_rnic.sw_driver.verbs.sending import _CREDIT, SendSettings

BOTH = Access.REMOTE_WRITE | Access.REMOTE_READ
Sent = list[tuple[Header, bytes]]


@dataclass
class Bench:
    """A queue pair, and its peer's messages in both directions."""

    sim: SimTransport
    pd: PD
    cq: CQ
    qp: QP
    peer: Peer
    wire: MpaReceiver

    def send(self, message: bytes, kind: Message, qn: int = 0, stag: int = 0) -> None:
        """Sends an untagged message from the peer."""
        self.peer.send(message, qn, rsvdulp=rsvdulp(kind, tagged=False, stag=stag))

    def write(self, stag: int, to: int, message: bytes, kind: Message = Message.RDMA_WRITE) -> None:
        self.peer.write(stag, to, message, rsvdulp=rsvdulp(kind, tagged=True))

    def ask(self, stag: int, to: int, length: int, sink: int = 0xABC, sink_to: int = 9) -> None:
        self.send(ReadRequest(sink, sink_to, length, stag, to).encode(), Message.READ_REQUEST, 1)

    def settle(self) -> list[WC]:
        """Waits until all messages in flight were received and processed; returns the
        completions.
        """
        self.sim.run(3000)
        taken = self.cq.poll(1000)
        self.sim.run(100)
        return taken + self.cq.poll(1000)

    def got(self) -> Sent:
        """Returns what the peer has received since the last call, as the model decodes it."""
        if self.qp.stream.sending is not None:
            self.sim.run(1000)
            self.qp.context.settle()
        frames = self.wire.receive(self.qp.data_to_send())
        return [decode_segment(frame.ulpdu) for frame in frames if isinstance(frame, Fpdu)]

    def terminate(self) -> bytes:
        """Returns the Terminate, which must be the only message that the peer has received."""
        ((header, message),) = self.got()
        assert isinstance(header, UntaggedHeader) and header.last
        assert (header.qn, header.msn, header.mo) == (2, 1, 0)
        assert opcode(header) == Message.TERMINATE
        assert self.qp.state is QPState.ERR
        return message

    def refused(self, code: str, segment: bytes) -> None:
        """Checks the Terminate for a Read Response; the device names its segment, too.

        Section 7.1: "In this case, the Error Type, Error Code, ULP PDU Length, and Terminated DDP
        Header fields are included in the Terminate Message".
        """
        if not self.pd.context.reads:
            assert self.terminate() == bytes.fromhex(code) + bytes(2)
        else:
            length = len(segment).to_bytes(2, "big")
            assert self.terminate() == bytes.fromhex(f"{code} c000") + length + segment[:14]


def begin(
    sim: SimTransport, context: Context, *, mulpdu: int = 1440, ird: int = 4, ord: int = 4
) -> Bench:
    pd, cq = PD(context), CQ(context)
    made_by = SendSettings if sim.config.responder else MpaSource
    qp = QP(pd, cq, made_by(mulpdu, crc=True, markers=False), ird=ird, ord=ord)
    return Bench(sim, pd, cq, qp, Peer(sim, qp.stream.number), MpaReceiver())


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    config = RnicConfig()
    if width := getattr(request, "param", 0):
        config = RnicConfig(width=width, transmit=True, responder=True)
    with SimTransport(config) as sim, Device(sim).open() as context:
        yield begin(sim, context)


#: Read Requests are answered by the host, or by the device itself.
by_both = pytest.mark.parametrize(
    "bench",
    [pytest.param(0, id="host"), pytest.param(64, id="device"),
     pytest.param(512, id="device of 512 bits", marks=pytest.mark.long)],
    indirect=True,
)  # fmt: skip
by_device = pytest.mark.parametrize(
    "bench", [64, pytest.param(512, marks=pytest.mark.long)], indirect=True
)


def statuses(taken: list[WC]) -> list[tuple[object, WcStatus]]:
    return [(wc.wr_id, wc.status) for wc in taken]


# --- section 4.8 ----------------------------------------------------------------------------------


def test_a_terminate_octet_by_octet() -> None:
    """Section 4.8: Layer, EType, Error Code, HdrCt (M, D, R); then what HdrCt says."""
    tagged = bytes.fromhex("c140 00000100 0000000000000005")
    terminate = Terminate(Layer.DDP, 1, 0, 78, tagged)
    assert terminate.encode() == bytes.fromhex("11 00 c000 004e") + tagged
    assert str(terminate).startswith("DDP 0x1/0x00 Invalid STag, DDP Header c1 40")
    untagged, request = bytes.fromhex("4141") + bytes(16), bytes(range(28))
    terminate = Terminate(Layer.RDMA, 1, 2, 46, untagged, request)
    assert terminate.encode() == bytes.fromhex("01 02 e000 002e") + untagged + request
    assert len(terminate.encode()) == Terminate.LONGEST
    assert "RDMA 0x1/0x02 Access rights violation" in str(terminate)
    terminate = Terminate(Layer.LLP, 0, 2)
    assert terminate.encode() == bytes.fromhex("20 02 0000")
    assert str(terminate) == "LLP 0x0/0x02 MPA CRC does not match"
    assert str(Terminate(Layer.DDP, 2, 5)) == (
        "DDP 0x2/0x05 DDP Message too long for available buffer"
    )
    assert str(Terminate(Layer.RDMA, 0, 0)) == "RDMA 0x0/0x00 Local Catastrophic"
    assert str(Terminate(Layer.DDP, 7, 7)) == "DDP 0x7/0x07 unknown error"


#: RFC 5040 section 4.8, figure 9: "Invalid STag" of RDMA's Remote Protection Error, for example,
#: has another number than DDP's, and each code its Error Type.
RDMA_CODES = {
    1: {
        0: "Invalid STag", 1: "Base or bounds violation", 2: "Access rights violation",
        3: "STag not associated with RDMAP Stream", 4: "TO wrap", 9: "STag cannot be Invalidated",
        0xFF: "Unspecified Error",
    },
    2: {
        5: "Invalid RDMAP version", 6: "Unexpected OpCode",
        7: "Catastrophic error, localized to RDMAP Stream", 8: "Catastrophic error, global",
        9: "STag cannot be Invalidated", 0xFF: "Unspecified Error",
    },
}  # fmt: skip
#: RFC 5041 section 7.2.
DDP_CODES = {
    0: {0: "Local Catastrophic"},
    1: {
        0: "Invalid STag", 1: "Base or bounds violation", 2: "STag not associated with DDP Stream",
        3: "TO wrap", 4: "Invalid DDP version",
    },
    2: {
        1: "Invalid QN", 2: "Invalid MSN - no buffer available",
        3: "Invalid MSN - MSN range is not valid", 4: "Invalid MO",
        5: "DDP Message too long for available buffer", 6: "Invalid DDP version",
    },
}  # fmt: skip
#: RFC 5044 section 8, RFC 6581 section 8: "Layer: 0x2 - LLP Error Type: 0x0 - MPA".
MPA_CODES = {
    0: {
        1: "TCP connection closed, terminated or lost", 2: "MPA CRC does not match",
        3: "MPA Marker and ULPDU Length field mismatch",
        4: "Invalid MPA Request Frame or MPA Response Frame", 5: "Local Catastrophic Error",
        6: "Insufficient IRD Resources", 7: "No Matching RTR Option",
    },
}  # fmt: skip


def test_each_layer_has_its_own_table_of_errors() -> None:
    """RFC 5040 section 4.8: figure 9 gives RDMA's types and codes, and of the others: "See DDP
    Specification [DDP]", "For MPA, see MPA Specification [MPA]".
    """
    tables = {Layer.RDMA: RDMA_CODES, Layer.DDP: DDP_CODES, Layer.LLP: MPA_CODES}
    for layer, types in tables.items():
        for kind in range(16):
            for code in range(256):
                text = types.get(kind, {}).get(code, "unknown error")
                if layer is Layer.RDMA and kind == 0:
                    # "This error type does not have an error code. Any value in this field is
                    # acceptable."
                    text = "Local Catastrophic"
                if layer is Layer.DDP and kind == 3:
                    # RFC 5041 section 7.2: "Reserved for the use by the LLP".
                    text = "the LLP's error"
                told = str(Terminate(layer, kind, code))
                assert told == f"{layer.name} {kind:#x}/{code:#04x} {text}"


@pytest.mark.parametrize(
    "terminate",
    [
        Terminate(Layer.RDMA, 2, 6),
        Terminate(Layer.DDP, 2, 2, 34, b"\x41" + bytes(17)),
        Terminate(Layer.DDP, 1, 1, 34, b"\xc1" + bytes(13)),
        Terminate(Layer.RDMA, 1, 1, 46, b"\x41" + bytes(17), bytes(28)),
        Terminate(Layer.DDP, 3, 0, 1400),
    ],
)
def test_a_terminate_survives_and_is_whole_or_none(terminate: Terminate) -> None:
    octets = terminate.encode()
    assert Terminate.decode(octets) == terminate
    for length in range(len(octets)):
        with pytest.raises(ValueError, match="must be complete"):
            Terminate.decode(octets[:length])
    with pytest.raises(ValueError, match="15 is not a valid Layer"):
        Terminate.decode(b"\xf0" + octets[1:])


def test_reserved_bits_of_a_terminate_are_ignored() -> None:
    """Section 4.8: "Reserved: 13 bits. This field MUST be set to zero on transmit, ignored on
    receive."
    """
    terminate = Terminate(Layer.DDP, 1, 0, 78, bytes.fromhex("c140 00000100 0000000000000005"))
    octets = bytearray(terminate.encode())
    octets[2:4] = bytes([octets[2] | 0x1F, 0xFF])
    assert Terminate.decode(bytes(octets)) == terminate


# --- messages that are sent -----------------------------------------------------------------------


def test_each_operation_is_the_message_that_section_4_has(bench: Bench) -> None:
    post = bench.qp.post_send
    post(Opcode.SEND, b"a")
    post(Opcode.SEND, b"b", solicited=True)
    post(Opcode.SEND_WITH_INV, b"c", stag=0x12345678)
    post(Opcode.SEND_WITH_INV, None, stag=0x9ABCDEF0, solicited=True)
    post(Opcode.RDMA_WRITE, bytearray(b"write"), stag=7, to=99)
    post(Opcode.RDMA_WRITE, stag=7, to=(1 << 64) - 1)
    sink = bytearray(10)
    post(Opcode.RDMA_READ, sink, stag=8, to=100)
    (region,) = bench.pd.regions
    assert region.access == Access.REMOTE_WRITE and region.stream is bench.qp.stream
    request = ReadRequest(region.stag, region.to, 10, 8, 100).encode()
    assert bench.got() == [
        (UntaggedHeader(0, 1, 0, True, 0x43 << 32), b"a"),
        (UntaggedHeader(0, 2, 0, True, 0x45 << 32), b"b"),
        (UntaggedHeader(0, 3, 0, True, 0x44 << 32 | 0x12345678), b"c"),
        (UntaggedHeader(0, 4, 0, True, 0x46 << 32 | 0x9ABCDEF0), b""),
        (TaggedHeader(7, 99, True, 0x40), b"write"),
        (TaggedHeader(7, (1 << 64) - 1, True, 0x40), b""),
        (UntaggedHeader(1, 1, 0, True, 0x41 << 32), request),
    ]
    assert [wc.opcode for wc in bench.cq.poll()] == (
        [Opcode.SEND] * 2 + [Opcode.SEND_WITH_INV] * 2 + [Opcode.RDMA_WRITE] * 2
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"opcode": Opcode.RECV}, "opcode must be one of"),
        ({"opcode": Opcode.SEND, "stag": 5}, "a 32-bit Steering Tag .for SEND: 0., not 5"),
        ({"opcode": Opcode.RDMA_WRITE, "stag": 1 << 32}, "not 4294967296"),
        ({"opcode": Opcode.RDMA_WRITE, "solicited": True}, "only a Send can be solicited"),
        ({"opcode": Opcode.RDMA_WRITE, "buffer": b"12", "to": (1 << 64) - 1}, "end by TO 2..64"),
        ({"opcode": Opcode.SEND, "buffer": 5}, "a message must be octets, not int"),
        ({"opcode": Opcode.RDMA_READ, "buffer": b"12"}, "this bytes is read-only"),
    ],
)
def test_requests_that_cannot_be_are_reported_and_do_nothing(
    bench: Bench, arguments: dict, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        bench.qp.post_send(**arguments)
    assert not bench.got() and not bench.cq.poll() and not bench.pd.regions


@by_both
def test_no_more_than_ord_reads_are_outstanding_and_nothing_overtakes_them(bench: Bench) -> None:
    """Sections 5.2 and 6.1: the Data Sink stays within the Data Source's limit, its IRD."""
    sinks = [bytearray(3) for _ in range(7)]
    for n, sink in enumerate(sinks):
        bench.qp.post_send(Opcode.RDMA_READ, sink, wr_id=n, stag=1, to=n)
    bench.qp.post_send(Opcode.SEND, b"after", wr_id="send")
    asked = [ReadRequest.decode(message) for _, message in bench.got()]
    assert [request.source_to for request in asked] == [0, 1, 2, 3]
    follows: list[list[object]] = [[4], [5], [6, "send"], [], [], [], []]
    for n, expected in enumerate(follows):
        request = asked[n]
        bench.write(request.sink_stag, 0, bytes([n] * 3), Message.READ_RESPONSE)
        taken = bench.settle()
        # Section 5.5: in the order of the posts, although the Send was sent long before.
        last = [(n, WcStatus.SUCCESS)] + [("send", WcStatus.SUCCESS)] * (n == 6)
        assert statuses(taken) == last and sinks[n] == bytes([n] * 3)
        for (header, message), what in zip(bench.got(), expected, strict=True):
            if what == "send":
                assert opcode(header) == Message.SEND and message == b"after"
            else:
                asked.append(ReadRequest.decode(message))
                assert asked[-1].source_to == what
    assert not bench.pd.regions


@by_both
def test_a_fenced_request_leaves_after_all_earlier_reads(bench: Bench) -> None:
    """Section 5.5: "the Local Peer ULP must Fence the later RDMA write (or Send) by withholding the
    RDMA Write Message until all outstanding RDMA Read Responses have been Delivered."
    """
    for n in range(2):
        bench.qp.post_send(Opcode.RDMA_READ, bytearray(3), wr_id=n, stag=1, to=n)
    bench.qp.post_send(Opcode.SEND, b"before", wr_id="before")
    bench.qp.post_send(Opcode.RDMA_WRITE, b"after", wr_id="after", stag=1, to=0, fence=True)
    bench.qp.post_send(Opcode.SEND, b"last", wr_id="last")
    *asked, (_, before) = bench.got()
    requests = [ReadRequest.decode(message) for _, message in asked]
    assert [each.source_to for each in requests] == [0, 1] and before == b"before"
    for request, follows in zip(requests, ([], [b"after", b"last"]), strict=True):
        bench.write(request.sink_stag, 0, b"new", Message.READ_RESPONSE)
        bench.settle()
        assert [message for _, message in bench.got()] == follows


def test_a_fenced_request_does_not_wait_for_reads_that_can_not_end() -> None:
    config = RnicConfig(transmit=True, responder=True)
    with SimTransport(config) as sim, Device(sim).open() as context:
        bench = begin(sim, context)
        bench.qp.post_send(Opcode.RDMA_READ, bytearray(3), wr_id="read", stag=1)
        bench.qp.post_send(Opcode.SEND, b"fenced", wr_id="send", fence=True)
        assert len(bench.got()) == 1
        bench.qp.half_close()
        ((_, message),) = bench.got()
        assert message == b"fenced"
        ended = [(wc.wr_id, wc.status) for wc in bench.settle() if wc.wr_id]
        assert ended == [("read", WcStatus.FLUSHED), ("send", WcStatus.SUCCESS)]


def test_without_ord_there_are_no_reads() -> None:
    with SimTransport() as sim, Device(sim).open() as context:
        bench = begin(sim, context, ord=0)
        with pytest.raises(InvalidRequest, match="because ORD is 0"):
            bench.qp.post_send(Opcode.RDMA_READ, bytearray(3), stag=1)
        with pytest.raises(InvalidRequest, match="ird must be from 0 to 64, not 65"):
            begin(sim, context, ird=65)


# --- Read Responses -------------------------------------------------------------------------------


@by_both
def test_a_read_is_complete_with_its_last_segment_and_its_sink_is_gone_then(bench: Bench) -> None:
    """Section 5.2: only the response may write the sink, and only until it is complete."""
    sink, data = bytearray(5000), random.Random(1).randbytes(5000)
    bench.qp.post_send(Opcode.RDMA_READ, sink, wr_id="read", stag=1)
    ((_, message),) = bench.got()
    request = ReadRequest.decode(message)
    response = bench.peer.source.tagged(
        request.sink_stag,
        request.sink_to,
        data,
        rsvdulp=rsvdulp(Message.READ_RESPONSE, tagged=True),
    )
    assert len(response) == 4
    bench.peer.segments(*response[:3])
    assert bench.settle() == []
    bench.peer.segments(response[3])
    (completion,) = bench.settle()
    assert (completion.wr_id, completion.byte_len) == ("read", 5000) and sink == data
    sink.clear()  # the sink is not pinned any more
    bench.write(request.sink_stag, 0, b"late")
    assert bench.settle() == []
    assert bench.terminate()[:2] == b"\x11\x00"


@by_both
def test_the_sink_of_a_read_is_no_other_streams(bench: Bench) -> None:
    bench.qp.post_send(Opcode.RDMA_READ, sink := bytearray(8), stag=1)
    ((_, message),) = bench.got()
    other = QP(bench.pd, bench.cq, MpaSource(1440, crc=True, markers=False))
    Peer(bench.sim, other.stream.number).write(
        ReadRequest.decode(message).sink_stag, 0, b"12345678"
    )
    bench.settle()
    assert other.sent is not None and str(other.sent).startswith("DDP 0x1/0x02 STag not associated")
    assert sink == bytes(8) and bench.qp.state is QPState.RTS


@by_both
@pytest.mark.parametrize("outstanding", [0, 1])
def test_a_response_that_nobody_waits_for_ends_the_stream(bench: Bench, outstanding: int) -> None:
    """Section 7.2: an unexpected opcode."""
    region = bench.pd.register(memory := bytearray(8))
    for _ in range(outstanding):
        bench.qp.post_send(Opcode.RDMA_READ, bytearray(8), wr_id="read", stag=1)
    bench.got()
    segment = TaggedHeader(region.stag, 0, True, 0x42).encode() + b"12345678"
    bench.peer.segments(segment)
    assert statuses(bench.settle()) == [("read", WcStatus.FLUSHED)] * outstanding
    assert memory == (bytes(8) if bench.pd.context.reads else b"12345678")
    bench.refused("0206", segment)


#: The segments that answer a Read of 3000 octets: offsets from the TO of its sink, and octets.
ANSWERS = {
    "as it was asked for": [(0, 1400), (1400, 1600)],
    "in one segment": [(0, 3000)],
    "of no octets": [(0, 0)],
    "shorter by one": [(0, 1400), (1400, 1599)],
    "of one octet": [(0, 1)],
    "to a TO that is higher by one": [(1, 2999)],
    "to a higher TO, and of two segments": [(1500, 500), (2000, 1000)],
    "longer by one": [(0, 3001)],
    "longer by a segment": [(0, 3000), (3000, 10)],
    "to a lower TO": [(-1, 3000)],
}


@by_both
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("before", [0, 1])
def test_a_response_that_is_not_what_was_asked_for_is_an_error(
    bench: Bench, name: str, before: int
) -> None:
    """Section 5.2.2: "when an invalid RDMA Read Response Message is delivered to the Remote Peer's
    RDMAP layer, an error is surfaced", and "The Data Sink MAY validate that the STag, Tagged
    Offset, and length of the RDMA Read Response Message are the same as the STag, Tagged Offset,
    and length included in the corresponding RDMA Read Request Message."
    """
    region = bench.pd.register(bytearray(100), BOTH)
    for _ in range(before):
        bench.write(region.stag, 50, b"a Write of several segments"[:20])
    bench.qp.post_send(Opcode.RDMA_READ, sink := bytearray(3000), wr_id="read", stag=1)
    ((_, message),) = bench.got()
    request = ReadRequest.decode(message)
    control, answer = rsvdulp(Message.READ_RESPONSE, tagged=True), ANSWERS[name]
    for number, (offset, length) in enumerate(answer, 1):
        to = (request.sink_to + offset) % (1 << 64)
        header = TaggedHeader(request.sink_stag, to, number == len(answer), control)
        bench.peer.segments(header.encode() + bytes([number] * length))
    ((_, status),) = statuses(bench.settle())
    if name in ("as it was asked for", "in one segment"):
        assert status is WcStatus.SUCCESS and bench.got() == []
        return
    assert status is WcStatus.FLUSHED
    if bench.pd.context.reads:  # the device places nothing of the wrong segment
        last = len(answer) if name != "longer by one" else 1
        assert last not in sink and set(sink) <= {0, *range(1, last)}
    # DDP refuses octets out of the sink's bounds; all else is RDMAP's Remote Operation Error.
    by_ddp = "longer" in name or "lower" in name
    assert bench.terminate()[:2] == bytes.fromhex("1101" if by_ddp else "02ff")


@by_both
@pytest.mark.parametrize("length", [1, 8])
def test_a_read_of_no_octets_has_no_answer_with_octets(bench: Bench, length: int) -> None:
    region = bench.pd.register(bytearray(8))
    bench.qp.send_rtr(Opcode.RDMA_READ, region.stag)
    bench.got()
    segment = TaggedHeader(region.stag, 0, True, 0x42).encode() + bytes(length)
    bench.peer.segments(segment)
    assert bench.settle() == []
    bench.refused("02ff", segment)


@by_both
def test_a_read_of_no_octets_has_no_sink(bench: Bench) -> None:
    bench.qp.post_send(Opcode.RDMA_READ, wr_id="none", stag=5, to=6)
    ((_, message),) = bench.got()
    assert ReadRequest.decode(message) == ReadRequest(0, 0, 0, 5, 6)
    bench.write(0, 0, b"", Message.READ_RESPONSE)
    assert statuses(bench.settle()) == [("none", WcStatus.SUCCESS)]


# --- Read Requests --------------------------------------------------------------------------------


@by_both
@pytest.mark.parametrize("length", [0, 1, 1426, 1427, 10_000])
def test_a_read_request_is_answered_with_the_octets_of_the_region(
    bench: Bench, length: int
) -> None:
    memory = bytearray(random.Random(length).randbytes(10_003))
    region = bench.pd.register(memory, Access.REMOTE_READ, to=1 << 40)
    for _ in range(2 * bench.qp.ird):
        bench.ask(region.stag, (1 << 40) + 3, length, sink=0xABC, sink_to=50)
        assert bench.settle() == []
        answer = bench.got()
        assert b"".join(message for _, message in answer) == memory[3 : 3 + length]
        to = 50
        for number, (header, message) in enumerate(answer, 1):
            assert header == TaggedHeader(0xABC, to, number == len(answer), 0x42)
            to += len(message)


@by_both
def test_read_requests_are_answered_in_the_order_in_which_they_were_sent(bench: Bench) -> None:
    """Section 5.2.1: "The Remote Peer MUST process the RDMA Read Request Messages in the order they
    were sent"; section 5.5: "the RDMA Read Response Messages MUST be submitted to the DDP layer on
    the Remote Peer in the order the RDMA Read Request Messages were Delivered by DDP".
    """
    region = bench.pd.register(bytearray(b"abcdefgh"), BOTH)
    for at in (3, 1, 2, 7):
        bench.ask(region.stag, at, 1, sink_to=at)
    assert bench.settle() == []
    got = [(header.to, message) for header, message in bench.got()]  # type: ignore[union-attr]
    assert got == [(3, b"d"), (1, b"b"), (2, b"c"), (7, b"h")]


@by_both
def test_a_read_request_waits_for_the_message_before_it(bench: Bench) -> None:
    """Section 5.5: Read Requests "MUST NOT start processing at the Remote Peer until they have been
    Delivered to RDMAP by DDP", thus after all previous messages.
    """
    region = bench.pd.register(bytearray(8), BOTH)
    control = rsvdulp(Message.RDMA_WRITE, tagged=True)
    bench.peer.segments(TaggedHeader(region.stag, 0, False, control).encode() + b"1234")
    bench.ask(region.stag, 0, 8)
    bench.settle()
    assert bench.got() == []
    bench.peer.segments(TaggedHeader(region.stag, 4, True, control).encode() + b"5678")
    bench.settle()
    assert [message for _, message in bench.got()] == [b"12345678"]


@by_both
def test_a_read_request_does_not_reach_another_domain(bench: Bench) -> None:
    """Section 8.1.1: "a specific Stream in a specific Protection Domain cannot access an STag in a
    different Protection Domain".
    """
    other = PD(bench.pd.context)
    region = other.register(bytearray(b"hidden"), BOTH)
    bench.ask(region.stag, 0, 6)
    bench.settle()
    assert bench.terminate()[:2] == bytes([0x01, 0])


@by_both
def test_of_a_read_of_no_octets_nothing_is_checked(bench: Bench) -> None:
    """Section 5.2.1: neither STag nor TO of a Read of no octets is checked."""
    bench.ask(0xDEAD, 5, 0)
    bench.settle()
    assert bench.got() == [(TaggedHeader(0xABC, 9, True, 0x42), b"")]


@by_both
def test_the_last_octet_of_all_is_written_and_read(bench: Bench) -> None:
    """RFC 5041 section 7.1: "A 64-bit unsigned sum of the DDP Segment payload length and the TO
    does not wrap." No octet lies past Tagged Offset 2^64 - 1, with which the region ends."""
    top = (1 << 64) - 10
    region = bench.pd.register(memory := bytearray(10), BOTH, to=top)
    bench.write(region.stag, top, b"123456789")
    bench.write(region.stag, top + 9, b"!")
    bench.ask(region.stag, top, 10)
    bench.settle()
    assert memory == b"123456789!"
    assert bench.got() == [(TaggedHeader(0xABC, 9, True, 0x42), b"123456789!")]
    control = rsvdulp(Message.RDMA_WRITE, tagged=True)
    bench.peer.segments(TaggedHeader(region.stag, top + 9, True, control).encode() + b"!?")
    bench.settle()
    assert bench.terminate()[:2] == bytes([0x11, 0x03])  # DDP, Tagged Buffer Error, TO wrap
    assert memory == b"123456789!"


@by_both
@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("stag", 0),
        ("below", 1),
        ("above", 1),
        ("rights", 2),
        ("stream", 3),
        ("wrap", 4),
        ("sink", 4),
    ],
)
def test_a_read_request_that_may_not_be_is_refused(bench: Bench, case: str, code: int) -> None:
    """Sections 4.8 and 7.2: a Remote Protection Error, with the request's own headers."""
    top = (1 << 64) - 8
    access = Access.REMOTE_WRITE if case == "rights" else BOTH
    other = Stream(bench.pd, bench.cq.messages) if case == "stream" else None
    region = bench.pd.register(
        bytearray(8), access, to=top if case == "wrap" else 100, stream=other
    )
    stag = region.stag ^ 1 if case == "stag" else region.stag
    to, length = {"below": (99, 1), "above": (101, 8), "wrap": (top, 9)}.get(case, (100, 8))
    bench.qp.post_recv(bytearray(8), wr_id="receive")
    bench.ask(stag, to, length, sink_to=top + 1 if case == "sink" else 0)
    assert statuses(bench.settle()) == [("receive", WcStatus.FLUSHED)]
    request = ReadRequest(0xABC, top + 1 if case == "sink" else 0, length, stag, to).encode()
    header = UntaggedHeader(1, 1, 0, True, 0x41 << 32).encode()
    expected = bytes([0x01, code, 0xE0, 0, 0, 46]) + header + request
    assert bench.terminate() == expected


@by_both
def test_no_octet_of_a_read_leaves_whose_end_is_out_of_bounds(bench: Bench) -> None:
    """Section 7.2: the bounds are checked for the whole request, not only for a segment of it."""
    region = bench.pd.register(bytearray(4000), BOTH)
    bench.ask(region.stag, 0, 4001)
    bench.settle()
    assert bench.terminate()[:2] == bytes([1, 1])


@by_both
@pytest.mark.parametrize(("change", "code"), [(1, 0), (0, 1)], ids=["STag", "bounds"])
def test_a_read_of_4_gib_that_may_not_be_is_refused_as_fast_as_a_short_one(
    bench: Bench, change: int, code: int
) -> None:
    """A peer cannot occupy this side with the segments of a response that nobody gets."""
    region = bench.pd.register(bytearray(4000), BOTH)
    bench.ask(region.stag ^ change, 0, (1 << 32) - 1)
    bench.settle()
    assert bench.terminate()[:2] == bytes([1, code])


@by_device
def test_a_device_that_is_taken_over_answers_no_reads_for_its_former_owner(bench: Bench) -> None:
    """Its streams then have other queues, whose messages may look like Read Requests."""
    number, sim = bench.qp.stream.number, bench.sim
    bench.pd.context._closed = True
    with Device(sim).open() as context:
        cq = DdpCQ(context)
        stream = Stream(PD(context), cq, number=number)
        buffer = bytearray(40)
        stream.post_recv(buffer, 1, wr_id="taken")
        peer, request = Peer(sim, number), ReadRequest(1, 2, 3, 4, 5).encode()
        peer.send(request, 1, rsvdulp=rsvdulp(Message.READ_REQUEST, tagged=False))
        sim.run(3000)
        assert [wc.wr_id for wc in cq.poll()] == ["taken"] and buffer[:28] == request
        with pytest.raises(UnsupportedDevice, match=r"answers no RDMA Reads on this stream"):
            stream.answer_reads(1)


@by_device
def test_the_buffers_of_queue_1_are_the_hosts_or_the_devices(bench: Bench) -> None:
    with pytest.raises(StateError, match="the device posts the buffers of queue 1"):
        bench.qp.stream.post_recv(bytearray(28), 1)
    with pytest.raises(StateError, match="call answer_reads\\(\\) once"):
        bench.qp.stream.answer_reads(1)
    free = len(bench.pd.context.buffers)
    with pytest.raises(InvalidRequest):
        QP(bench.pd, bench.cq, SendSettings(1440, True, False), ird=1 << 20)
    assert len(bench.pd.context.buffers) == free


@by_both
def test_more_reads_than_ird_are_no_buffer_of_queue_1(bench: Bench) -> None:
    """Section 6.1: the Data Sink must not exceed IRD; one more finds no buffer (RFC 5041 7.2)."""
    region = bench.pd.register(bytearray(8), BOTH)
    for _ in range(bench.qp.ird + 1):
        bench.ask(region.stag, 0, 8)
    bench.settle()
    *answers, (_, terminate) = bench.got()
    assert [opcode(header) for header, _ in answers] == [Message.READ_RESPONSE] * 4
    header = UntaggedHeader(1, 5, 0, True, 0x41 << 32).encode()
    assert terminate == bytes.fromhex("1202c000002e") + header


@by_both
def test_a_read_request_of_another_length_is_refused(bench: Bench) -> None:
    bench.send(bytes(27), Message.READ_REQUEST, 1)
    bench.settle()
    assert bench.terminate() == bytes.fromhex("02ff0000")


def test_a_peer_that_does_not_take_its_answers_gets_no_more_than_ird(bench: Bench) -> None:
    region = bench.pd.register(bytearray(8), BOTH)
    for _ in range(bench.qp.ird + 1):
        bench.ask(region.stag, 0, 8)
        bench.settle()
    assert [message[:2] for _, message in bench.got()] == [bytes(2)] * 4 + [b"\x12\x02"]


@by_device
def test_a_peer_that_takes_nothing_gets_no_more_than_the_devices_credit(bench: Bench) -> None:
    """The octets stay in the region, and the slots stay taken: section 6.1."""
    region = bench.pd.register(bytearray(60_000), BOTH)
    sending = bench.qp.stream.sending
    assert sending is not None
    for _ in range(20):
        bench.ask(region.stag, 0, 60_000)
        bench.settle()
        bench.sim.run(10_000)
        if bench.qp.state is not QPState.RTS:
            break
        assert sending._position <= _CREDIT
    # Responses that were begun leave before the Terminate.
    assert bench.qp.state is QPState.ERR
    assert sending._position <= _CREDIT + 9 * 63_000
    *_, (header, terminate) = bench.got()
    assert opcode(header) == Message.TERMINATE and terminate[:2] == b"\x12\x02"


@by_device
@pytest.mark.parametrize("ird", [1, 3, 4, 16, 48])
def test_the_device_answers_more_requests_than_it_has_slots(bench: Bench, ird: int) -> None:
    """Requests, Writes and Sends of the peer, and messages of this side, all at the same time."""
    memory = bytearray(random.Random(ird).randbytes(4000))
    bench.qp.close()
    bench = begin(bench.sim, bench.pd.context, ird=ird)
    region = bench.pd.register(memory, Access.REMOTE_READ, to=77)
    target = bench.pd.register(bytearray(100), BOTH)
    rng, left, got = random.Random(ird), 0, list[tuple[Header, bytes]]()
    asked, sent = list[tuple[int, bytes]](), list[bytes]()
    for number in range(4 * ird + 30):
        if left == ird:
            bench.sim.run(500 * ird)
            bench.settle()
            got += bench.got()
            left = len(asked) - sum(
                isinstance(header, TaggedHeader) and header.last for header, _ in got
            )
            assert left < ird
        length = rng.choice((0, 1, 7, 700, 3000))
        at = rng.randint(0, len(memory) - length)
        bench.ask(region.stag, 77 + at, length, sink=number, sink_to=5)
        asked.append((number, bytes(memory[at : at + length])))
        left += 1
        bench.write(target.stag, 3, bytes(rng.randrange(90)))
        if number % 3 == 0:
            sent.append(rng.randbytes(rng.choice((0, 10, 2000))))
            bench.qp.post_send(Opcode.SEND, sent[-1])
    bench.sim.run(1000 * ird)
    bench.settle()
    got += bench.got()
    answers, sends = dict[int, bytes](), dict[int, bytes]()
    for header, octets in got:
        if isinstance(header, TaggedHeader):
            assert header.to == 5 + len(answers.get(header.stag, b""))
            answers[header.stag] = answers.get(header.stag, b"") + octets
        else:
            sends[header.msn] = sends.get(header.msn, b"") + octets
    assert [*answers.items()] == asked
    assert [*sends.values()] == sent
    assert bench.qp.state is QPState.RTS


@by_device
@pytest.mark.parametrize("bus", [False, True], ids=["revoked", "bus error"])
def test_a_response_that_cannot_be_read_ends_the_stream_at_a_segment(
    bench: Bench, bus: bool
) -> None:
    """No octet leaves after the region was revoked, and the Terminate comes after a whole segment.

    Section 7.2 has the errors of a request; a read that fails is section 4.8's Local Catastrophic
    Error.
    """
    memory = bytearray(random.Random(1).randbytes(1 << 20))
    region = bench.pd.register(memory, BOTH)
    (extent,) = region.mapping.memory.extents
    if bus:
        bench.sim.fault(range(extent.address + 200_000, extent.address + 200_001))
    bench.ask(region.stag, 0, 1 << 20)
    bench.sim.run(3000)
    if not bus:
        region.revoke()
    got = []
    for _ in range(300):
        bench.settle()
        got += bench.got()
        if bench.qp.state is not QPState.RTS:
            break
    got += bench.got()
    *answer, (header, terminate) = got
    assert opcode(header) == Message.TERMINATE
    assert terminate[:2] == (bytes([0, 0]) if bus else bytes([1, 0]))
    octets = b"".join(message for _, message in answer)
    assert octets == memory[: len(octets)] and 0 < len(octets) < 1 << 20
    if bus:
        assert len(octets) <= 200_000


# --- Sends ----------------------------------------------------------------------------------------


def test_sends_are_delivered_with_what_they_ask_for(bench: Bench) -> None:
    region, buffers = bench.pd.register(bytearray(8)), [bytearray(5) for _ in range(4)]
    for buffer in buffers:
        bench.qp.post_recv(buffer, wr_id=buffer)
    other, stags = bench.pd.register(bytearray(8)), [0, 0, region.stag]
    kinds = [Message.SEND, Message.SEND_SOLICITED, Message.SEND_INVALIDATE]
    for n, (kind, stag) in enumerate(zip(kinds, stags, strict=True)):
        bench.send(bytes(n), kind, stag=stag)
    bench.send(b"12345", Message.SEND_SOLICITED_INVALIDATE, stag=other.stag)
    taken = bench.settle()
    assert [wc.byte_len for wc in taken] == [0, 1, 2, 5] and buffers[3] == b"12345"
    assert [wc.solicited for wc in taken] == [False, True, False, True]
    assert [wc.invalidated for wc in taken] == [None, None, region.stag, other.stag]


def test_reserved_bits_and_unused_stags_are_ignored(bench: Bench) -> None:
    """Section 4.1: Rsv "MUST be set to zero by sender, ignored by the receiver"; "For Send, Send
    with Solicited Event, RDMA Read Request, and Terminate, the Invalidate STag field MUST be set to
    zero on transmit and ignored by the receiver."
    """
    region = bench.pd.register(bytearray(b"abcd"), BOTH)
    for name in ("send", "solicited"):
        bench.qp.post_recv(bytearray(4), wr_id=name)
    for control in (0x43, 0x75):
        bench.peer.send(b"1", 0, rsvdulp=control << 32 | region.stag)
    request = ReadRequest(0xABC, 9, 4, region.stag, 0).encode()
    bench.peer.send(request, 1, rsvdulp=0x71 << 32 | region.stag)
    bench.peer.write(region.stag, 3, b"D", rsvdulp=0x70)
    taken = bench.settle()
    assert statuses(taken) == [("send", WcStatus.SUCCESS), ("solicited", WcStatus.SUCCESS)]
    assert [(wc.solicited, wc.invalidated) for wc in taken] == [(False, None), (True, None)]
    assert bench.got() == [(TaggedHeader(0xABC, 9, True, 0x42), b"abcD")] and not region.revoked
    terminate = Terminate(Layer.RDMA, 2, 6)
    bench.peer.send(terminate.encode(), 2, rsvdulp=0x77 << 32 | region.stag)
    bench.settle()
    assert bench.qp.received == terminate and not region.revoked


def test_an_stag_is_revoked_before_its_send_with_invalidate_is_delivered(bench: Bench) -> None:
    """Section 5.3. After it not one octet of the region changes."""
    memory = bytearray(1000)
    region = bench.pd.register(memory)
    bench.qp.post_recv(bytearray(1))
    bench.write(region.stag, 0, b"before")
    bench.send(b"1", Message.SEND_INVALIDATE, stag=region.stag)
    (completion,) = bench.settle()
    assert completion.invalidated == region.stag and region.revoked and memory[:6] == b"before"
    bench.write(region.stag, 0, b"behind")
    bench.settle()
    header = TaggedHeader(region._stag or 0, 0, True, 0x40).encode()
    assert bench.terminate() == bytes.fromhex("1100c0000014") + header
    assert memory[:6] == b"before"


@pytest.mark.parametrize(("case", "code"), [("none", 0), ("stream", 9), ("posted", 9), ("sink", 9)])
def test_an_stag_that_cannot_be_invalidated_ends_the_stream(
    bench: Bench, case: str, code: int
) -> None:
    """Section 4.8: Remote Protection Error; the message is not delivered. Section 5.3: "issue a
    Terminate Message with the STag Cannot be Invalidated Terminate Error Code, if the STag is not
    associated with the RDMAP Stream".
    """
    other = Stream(bench.pd, bench.cq.messages) if case == "stream" else None
    region = bench.pd.register(bytearray(8), stream=other)
    stag = region.stag ^ (case == "none")
    if case == "posted":
        bench.qp.post_recv(region, wr_id="message")
        bench.qp.post_recv(region, wr_id="another")
    else:
        bench.qp.post_recv(bytearray(8), wr_id="message")
    if case == "sink":
        bench.qp.post_send(Opcode.RDMA_READ, bytearray(4), wr_id="read", stag=1)
        ((_, message),) = bench.got()
        stag = ReadRequest.decode(message).sink_stag
    bench.send(b"1", Message.SEND_INVALIDATE, stag=stag)
    taken = bench.settle()
    assert {wc.status for wc in taken} == {WcStatus.FLUSHED} and len(taken) >= 1
    assert taken[0].wr_id == "message" and not region.revoked
    assert bench.terminate() == bytes([0x01, code, 0, 0])


@pytest.mark.parametrize("bound", [False, True])
def test_an_stag_that_streams_share_is_not_invalidated_by_a_peer(bench: Bench, bound: bool) -> None:
    """Section 8.1.1: "a Remote Peer is not able to invalidate an STag enabled for remote access, if
    the STag is shared on multiple streams". One that is bound to its stream can be invalidated.
    """
    with DdpCQ(bench.pd.context) as cq, Stream(bench.pd, cq):
        region = bench.pd.register(bytearray(8), stream=bench.qp.stream if bound else None)
        bench.qp.post_recv(bytearray(8), wr_id="message")
        bench.send(b"1", Message.SEND_INVALIDATE, stag=region.stag)
        ((_, status),) = statuses(bench.settle())
        assert region.revoked == bound and (status is WcStatus.SUCCESS) == bound
        if not bound:
            assert bench.terminate() == bytes([0x01, 0x09, 0, 0])


# --- waiting --------------------------------------------------------------------------------------


def late(act: Callable[[], object], wait: Callable[[], list[WC]]) -> tuple[list[WC], float]:
    """Calls ``act`` while a thread waits; returns what the thread got, and how long that took."""
    taken: list[tuple[list[WC], float]] = []
    thread = threading.Thread(target=lambda: taken.append((wait(), time.monotonic())))
    thread.start()
    time.sleep(0.3)
    begun = time.monotonic()
    act()
    thread.join(30)
    ((completions, ended),) = taken
    return completions, ended - begun


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_wait_ends_with_the_completion_that_another_thread_makes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """A wait ends early for another thread's Send, for a message of the peer, and for a flush."""
    monkeypatch.setattr(driver_context, "SLICE", 20)

    def wait() -> list[WC]:
        if asynchronous:
            return asyncio.run(bench.cq.wait_async(15))
        return bench.cq.wait(15)

    completions, took = late(lambda: bench.qp.post_send(Opcode.SEND, b"1", wr_id="sent"), wait)
    assert statuses(completions) == [("sent", WcStatus.SUCCESS)] and took < 5
    bench.qp.post_recv(bytearray(4), wr_id="received")
    # The Write gives no completion, so the wait lasts.
    region = bench.pd.register(bytearray(8))

    def send() -> None:
        bench.write(region.stag, 0, b"1")
        bench.send(b"2", Message.SEND)

    completions, took = late(send, wait)
    assert statuses(completions) == [("received", WcStatus.SUCCESS)] and took < 5
    bench.qp.post_recv(bytearray(4), wr_id="flushed")
    completions, took = late(bench.qp.disconnect, wait)
    assert statuses(completions) == [("flushed", WcStatus.FLUSHED)] and took < 5


def test_a_wait_of_a_managers_client_ends_as_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WAITS", 4)
    with managed(tmp_path) as served, connect(tmp_path / "rnic.sock") as context:
        bench = begin(served.sim, context)
        for n in range(6):  # more than the manager answers at a time
            completions, took = late_now(bench, n)
            assert statuses(completions) == [(n, WcStatus.SUCCESS)] and took < 5
        bench.qp.post_recv(bytearray(4), wr_id="received")
        completions, took = late(lambda: bench.send(b"2", Message.SEND), lambda: bench.cq.wait(15))
        assert statuses(completions) == [("received", WcStatus.SUCCESS)] and took < 5


def late_now(bench: Bench, n: int) -> tuple[list[WC], float]:
    """Posts a Send from another thread as soon as a thread waits."""
    taken: list[WC] = []
    thread = threading.Thread(target=lambda: taken.extend(bench.cq.wait(15)))
    thread.start()
    until(lambda: bench.cq.messages._waiting, "a thread that waits")  # type: ignore[attr-defined]
    begun = time.monotonic()
    bench.qp.post_send(Opcode.SEND, b"1", wr_id=n)
    thread.join(30)
    return taken, time.monotonic() - begun


def test_asyncio_waits_for_rdmap_while_the_loop_goes_on(bench: Bench) -> None:
    """RDMAP's CQ waits as sw_driver.CQ's wait_async does: in time, cancelled, and closed."""

    async def session() -> None:
        begun = time.monotonic()
        with pytest.raises(RnicTimeout, match=r"within 0\.1 seconds"):
            await bench.cq.wait_async(0.1)
        assert 0.1 <= time.monotonic() - begun < 5
        waiter = asyncio.create_task(bench.cq.wait_async())
        await asyncio.sleep(0.05)
        assert not waiter.done()
        bench.qp.post_send(Opcode.SEND, b"1", wr_id="sent")
        assert statuses(await waiter) == [("sent", WcStatus.SUCCESS)]
        cancelled = asyncio.create_task(bench.cq.wait_async())
        await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        closed = asyncio.create_task(bench.cq.wait_async(20))
        await asyncio.sleep(0.05)
        bench.cq.close()
        with pytest.raises(StateError, match="the completion queue is closed"):
            await closed

    begun = time.monotonic()
    # The loop's pool of threads ends with it, so none of them still waits.
    asyncio.run(session())
    assert time.monotonic() - begun < 15


# --- other errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("qn", "control", "code"),
    [
        (0, 0x47, 6),
        (0, 0x41, 6),
        (0, 0x4F, 6),
        (1, 0x43, 6),
        (2, 0x41, 6),
        (0, 0xCF, 6),
        (0, 0x83, 5),
        (1, 0xC1, 5),
    ],
)
def test_an_opcode_or_a_version_that_cannot_be_ends_the_stream(
    bench: Bench, qn: int, control: int, code: int
) -> None:
    """Sections 4.1 and 7.2: Remote Operation Error, invalid version or unexpected opcode."""
    bench.qp.post_recv(bytearray(30))
    bench.peer.send(bytes(28), qn, rsvdulp=control << 32)
    assert {wc.status for wc in bench.settle()} == {WcStatus.FLUSHED}
    assert bench.terminate() == bytes([0x02, code, 0, 0])


def test_the_rdma_consortiums_version_is_valid(bench: Bench) -> None:
    """Section 4.1: 01b and 00b, "Both version numbers are valid"."""
    bench.qp.post_recv(bytearray(4))
    bench.peer.send(b"1234", 0, rsvdulp=0x03 << 32)
    (completion,) = bench.settle()
    assert completion.status is WcStatus.SUCCESS and completion.byte_len == 4


@pytest.mark.parametrize(("control", "code"), [(0x41, 6), (0x43, 6), (0xC0, 5)])
def test_a_tagged_message_of_another_kind_ends_the_stream(
    bench: Bench, control: int, code: int
) -> None:
    region = bench.pd.register(bytearray(8))
    bench.peer.write(region.stag, 0, b"1", rsvdulp=control)
    bench.settle()
    assert bench.terminate() == bytes([0x02, code, 0, 0])


def test_errors_that_the_device_finds_go_to_the_peer(bench: Bench) -> None:
    """Section 4.8: DDP's layer and numbers, and the segment's length and header."""
    bench.qp.post_recv(bytearray(4), wr_id="short")
    bench.send(b"12345", Message.SEND)
    assert statuses(bench.settle()) == [("short", WcStatus.FLUSHED)]
    header = UntaggedHeader(0, 1, 0, True, 0x43 << 32).encode()
    assert bench.terminate() == bytes.fromhex("1205c0000017") + header
    assert bench.qp.sent is not None and bench.qp.sent.code == ddp.MESSAGE_TOO_LONG.code


def test_a_wrong_crc_is_reported_without_headers(bench: Bench) -> None:
    """RFC 5044 section 8: no octet of an FPDU with a wrong CRC can be trusted."""
    bench.qp.post_recv(bytearray(4))
    (segment,) = bench.peer.source.untagged(0, b"1234", rsvdulp=0x43 << 32)
    octets = bench.peer._sender.send(segment)
    bench.sim.send(bench.qp.stream.number, 0, octets[:-1] + bytes([octets[-1] ^ 1]))
    bench.settle()
    assert bench.terminate() == bytes.fromhex("20020000")


def test_a_write_that_the_bus_refuses_is_catastrophic(bench: Bench) -> None:
    region = bench.pd.register(bytearray(100))
    (extent,) = region.mapping.memory.extents
    bench.sim.fault(range(extent.address, extent.address + 100))
    bench.write(region.stag, 0, b"1")
    bench.settle()
    assert bench.terminate() == bytes.fromhex("10000000")


def test_the_messages_of_a_peer_that_nobody_takes_end_the_stream() -> None:
    with SimTransport() as sim, Device(sim).open() as context:
        bench = begin(sim, context)
        bench.qp.close()
        cq = CQ(context, 10)
        bench.qp = QP(bench.pd, cq, MpaSource(1440, crc=True, markers=False))
        bench.peer, bench.cq = Peer(sim, bench.qp.stream.number), cq
        region = bench.pd.register(bytearray(8))
        for _ in range(11):
            bench.write(region.stag, 0, b"1")
        bench.settle()
        assert bench.terminate() == bytes.fromhex("02070000")


def test_completions_before_an_error_are_good_and_after_it_all_is_silent(bench: Bench) -> None:
    """Section 7.1: a message delivered before the error stays so; nothing follows a Terminate."""
    memory = bytearray(8)
    region = bench.pd.register(memory)
    for n in range(4):
        bench.qp.post_recv(bytearray(8), wr_id=n)
    bench.qp.post_send(Opcode.RDMA_READ, bytearray(8), wr_id="read", stag=1)
    bench.qp.post_send(Opcode.SEND, b"sent", wr_id="send")
    assert len(bench.got()) == 2
    bench.send(b"0", Message.SEND)
    bench.send(b"1", Message.SEND)
    bench.write(region.stag ^ 1, 0, b"error")
    bench.send(b"2", Message.SEND)
    bench.write(region.stag, 0, b"behind")
    taken = bench.settle()
    good, flushed = WcStatus.SUCCESS, WcStatus.FLUSHED
    assert statuses(taken)[:2] == [(0, good), (1, good)]
    # The Send was handed to the LLP, but a Read before it was not done.
    assert len(taken) == 6
    assert set(statuses(taken)[2:]) == {(n, flushed) for n in (2, 3, "read", "send")}
    assert bench.terminate()[:2] == b"\x11\x00" and memory == bytes(8)
    for post in (bench.qp.post_recv, lambda b: bench.qp.post_send(Opcode.SEND, b)):
        with pytest.raises(StateError, match="in error: DDP 0x1/0x00 Invalid STag"):
            post(bytearray(1))
    bench.send(b"3", Message.SEND)
    assert bench.settle() == [] and bench.got() == []


def test_a_terminate_of_the_peer_ends_all_and_is_not_answered(bench: Bench) -> None:
    """Section 5.4: no Terminate follows a Terminate; both sides close."""
    bench.qp.post_recv(bytearray(8), wr_id="receive")
    bench.qp.post_send(Opcode.RDMA_READ, bytearray(8), wr_id="read", stag=1)
    bench.got()
    terminate = Terminate(Layer.RDMA, 1, 1, 46, b"\x41" + bytes(17), bytes(28))
    bench.send(terminate.encode(), Message.TERMINATE, 2)
    taken = bench.settle()
    assert {wc.status for wc in taken} == {WcStatus.FLUSHED}
    assert {wc.wr_id for wc in taken} == {"receive", "read"}
    assert bench.qp.received == terminate and bench.qp.state is QPState.ERR
    assert bench.got() == [] and not bench.pd.regions
    with pytest.raises(StateError, match="RDMA 0x1/0x01 Base or bounds violation"):
        bench.qp.post_recv(bytearray(8))


@by_both
def test_what_had_left_before_a_terminate_is_complete(bench: Bench) -> None:
    """The Linux kernel's Writes are, too: the LLP had taken their octets. A Read without an answer
    is flushed, and so are the requests after it.
    """
    bench.qp.post_send(Opcode.RDMA_WRITE, bytes(900), wr_id="before", stag=1)
    bench.qp.post_send(Opcode.RDMA_READ, bytearray(8), wr_id="read", stag=1)
    bench.qp.post_send(Opcode.RDMA_WRITE, bytes(9), wr_id="after", stag=1)
    # The device reports the messages that have left after the Terminate.
    bench.send(Terminate(Layer.DDP, 1, 0, 914, bytes(14)).encode(), Message.TERMINATE, 2)
    assert statuses(bench.settle()) == [
        ("before", WcStatus.SUCCESS),
        ("read", WcStatus.FLUSHED),
        ("after", WcStatus.FLUSHED),
    ]


def test_a_terminate_that_cannot_be_read_ends_all_too(bench: Bench) -> None:
    bench.send(b"\xff", Message.TERMINATE, 2)
    bench.settle()
    assert bench.qp.state is QPState.ERR and bench.got() == []


def test_a_closed_queue_pair_gives_everything_back(bench: Bench) -> None:
    bench.qp.post_recv(bytearray(8), wr_id="receive")
    bench.qp.post_send(Opcode.RDMA_READ, sink := bytearray(8), wr_id="read", stag=1)
    bench.qp.close()
    bench.qp.close()
    flushed = statuses(bench.cq.poll())
    assert set(flushed) == {("read", WcStatus.FLUSHED), ("receive", WcStatus.FLUSHED)}
    sink.clear()
    assert len(bench.pd.context.buffers) == bench.pd.context.capabilities.buffers
    with pytest.raises(StateError, match="the queue pair is closed"):
        bench.qp.post_recv(bytearray(8))
    bench.cq.close()
    bench.pd.close()


def test_what_was_posted_before_the_close_is_sent_and_nothing_after_it(bench: Bench) -> None:
    """RFC 5041 section 6.2.1: all ULP data is transferred first, further requests are errors."""
    for n in range(3):
        bench.qp.post_send(Opcode.SEND, bytes([n]), wr_id=n)
    bench.qp.close()
    with pytest.raises(StateError, match="the queue pair is closed"):
        bench.qp.post_send(Opcode.SEND, b"late")
    assert statuses(bench.cq.poll()) == [(n, WcStatus.SUCCESS) for n in range(3)]
    assert [message for _, message in bench.got()] == [b"\0", b"\1", b"\2"]


def test_the_driver_ends_no_stream_until_the_ulp_does(bench: Bench) -> None:
    """RFC 5041 sections 6.2 and 6.2.2: not even after a fatal error, which the driver
    reports to the ULP.
    """
    context = bench.pd.context
    with DdpCQ(context) as cq, Stream(bench.pd, cq) as stream:
        stream.post_recv(bytearray(4), wr_id="kept")
        Peer(bench.sim, stream.number).write(0x123, 0, b"1")
        with pytest.raises(StreamError, match="Invalid STag"):
            cq.wait(10)
        for _ in range(3):
            bench.sim.run(1000)
            assert cq.poll() == [] and stream.state is StreamState.ERROR
            assert stream.number not in context.numbers and stream.outstanding(0) == 1
        stream.close()
        assert [wc.wr_id for wc in cq.poll()] == ["kept"] and stream.number in context.numbers


def test_a_queue_pair_under_the_manager_is_like_any_other(tmp_path: Path) -> None:
    with managed(tmp_path) as served, connect(tmp_path / "rnic.sock") as context:
        bench = begin(served.sim, context)
        memory, sink = bytearray(b"readable"), bytearray(8)
        region = bench.pd.register(memory, BOTH)
        bench.qp.post_recv(bytearray(8), wr_id="receive")
        bench.qp.post_send(Opcode.RDMA_READ, sink, wr_id="read", stag=1)
        ((_, message),) = bench.got()
        bench.write(ReadRequest.decode(message).sink_stag, 0, b"12345678", Message.READ_RESPONSE)
        bench.ask(region.stag, 0, 8)
        bench.send(b"bye", Message.SEND_INVALIDATE, stag=region.stag)
        taken = [*bench.cq.wait(20), *bench.settle()]
        assert [wc.wr_id for wc in taken] == ["read", "receive"] and sink == b"12345678"
        assert region.revoked and [message for _, message in bench.got()] == [b"readable"]
        bench.write(region._stag or 0, 0, b"late")
        bench.settle()
        assert bench.terminate()[:2] == b"\x11\x00"


def test_the_classes_of_ddp_stay_what_they_are(bench: Bench) -> None:
    """A stream of plain DDP beside a queue pair, on the same device."""
    with DdpCQ(bench.pd.context) as cq, Stream(bench.pd, cq) as stream:
        stream.post_recv(buffer := bytearray(4))
        Peer(bench.sim, stream.number).send(b"1234")
        assert cq.wait(10)[0].byte_len == 4 and buffer == b"1234"
