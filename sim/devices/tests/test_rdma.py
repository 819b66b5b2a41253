"""Tests of MPA's start-up, and of endpoints that talk to each other through one device."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.model.ddp import DataSource, decode_segment
from ddp_rnic.sim.model.header import Header, TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.mpa import Enhanced, Fpdu, MpaReceiver, MpaSender, StartupFrame
from ddp_rnic.sim.model.rdmap import ReadRequest, opcode
from ddp_rnic.sim.model.tests.test_tshark import TcpScript, tshark
from ddp_rnic.sw_driver import (
    PD,
    Access,
    Device,
    InvalidRequest,
    StateError,
    UnsupportedDevice,
    WcStatus,
)
from ddp_rnic.sw_driver.cm import Connection, ConnectionLost, Rejected, Rtr
from ddp_rnic.sw_driver.cm import StartupFrame as Frame
from ddp_rnic.sw_driver.rdmap import CQ, WC, Layer, Opcode, Terminate

BOTH = Access.REMOTE_WRITE | Access.REMOTE_READ
Make = Callable[..., Connection]


class Bench:
    """A device, and the connections that it receives for."""

    def __init__(self, sim: SimTransport, pd: PD, cq: CQ) -> None:
        self.sim, self.pd, self.cq = sim, pd, cq
        self.rng = random.Random(1)
        #: The octets that were carried, each with whether the responder sent them.
        self.carried: list[tuple[bool, bytes]] = []

    def make(self, **options: Any) -> Connection:
        return Connection(self.sim.send, self.pd, self.cq, **options)

    def carry(self, initiator: Connection, responder: Connection) -> list[WC]:
        """Carries octets in pieces of any size until no more come; returns the completions."""
        taken: list[WC] = []
        while True:
            sent = initiator.data_to_send(), responder.data_to_send()
            for back, octets in enumerate(sent):
                to = (responder, initiator)[back]
                self.carried += [(bool(back), octets)] * bool(octets)
                while octets:
                    cut = self.rng.randrange(1, 3000)
                    to.receive(octets[:cut])
                    octets = octets[cut:]
            self.sim.run(2000)
            taken += self.cq.poll(1000)
            if not any(sent):
                return taken

    def pair(self, ours: dict[str, Any], theirs: dict[str, Any], **asked: Any) -> tuple[Any, Any]:
        """Returns two connected ends."""
        initiator, responder = self.make(**ours), self.make(**theirs)
        initiator.connect(**asked)
        self.carry(initiator, responder)
        responder.accept(b"welcome")
        self.carry(initiator, responder)
        return initiator, responder


@pytest.fixture
def bench() -> Iterator[Bench]:
    with SimTransport() as sim, Device(sim).open() as context, PD(context) as pd:
        with CQ(context) as cq:
            yield Bench(sim, pd, cq)


def test_a_device_that_does_not_send_needs_a_tcp_with_copies(bench: Bench) -> None:
    with pytest.raises(UnsupportedDevice, match="TCP must keep copies"):
        bench.make(keeps=False)


def enhanced_of(frame: Frame | None) -> Enhanced:
    """Returns the fields of RFC 6581 in one of the driver's frames, as the model reads them."""
    assert frame is not None
    parsed = StartupFrame.parse(frame.encode())
    assert parsed is not None and parsed[0].enhanced is not None
    return parsed[0].enhanced


def talk(bench: Bench, initiator: Connection, responder: Connection) -> None:
    """Makes each operation in both directions, in messages of several segments."""
    for one, other in ((initiator, responder), (responder, initiator)):
        data = bench.rng.randbytes(7001)
        memory, sink, buffer = bytearray(7001), bytearray(6000), bytearray(7001)
        with bench.pd.register(memory, BOTH, to=5) as region:
            other.qp.post_recv(buffer, wr_id="received")
            one.qp.post_send(Opcode.RDMA_WRITE, data, wr_id=1, stag=region.stag, to=5)
            one.qp.post_send(Opcode.RDMA_READ, sink, wr_id=2, stag=region.stag, to=1005)
            one.qp.post_send(Opcode.SEND, data, wr_id=3)
            taken = bench.carry(initiator, responder)
        assert {wc.status for wc in taken} == {WcStatus.SUCCESS}
        assert [wc.wr_id for wc in taken if wc.qp is one.qp] == [1, 2, 3]
        assert [wc.wr_id for wc in taken if wc.qp is other.qp] == ["received"]
        assert memory == buffer == data and sink == data[1000:7000]


@pytest.mark.parametrize("revision", [1, 2])
@pytest.mark.parametrize("ours", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("theirs", [(True, True), (False, False)])
def test_crcs_and_markers_are_as_the_frames_say(
    bench: Bench, revision: int, ours: tuple[bool, bool], theirs: tuple[bool, bool]
) -> None:
    """RFC 5044 section 7.1.1: CRCs if either side wants them, markers toward each side that
    does.
    """
    options = [{"crc": crc, "markers": markers} for crc, markers in (ours, theirs)]
    initiator, responder = bench.pair(*options, private_data=b"hello", revision=revision)
    request, reply = responder.request, initiator.reply
    assert (request.revision, request.private_data) == (revision, b"hello")
    assert (reply.revision, reply.private_data) == (revision, b"welcome")
    assert (request.crc, request.markers, reply.crc, reply.markers) == (*ours, *theirs)
    assert (request.enhanced is not None) == (reply.enhanced is not None) == (revision == 2)
    talk(bench, initiator, responder)
    # Section 4.4: "After receipt of an MPA startup declaration indicating that its peer requires
    # CRCs, an MPA instance MUST continue generating and checking CRCs".
    octets = b"".join(octets for back, octets in bench.carried[2:] if not back)
    frames = MpaReceiver(crc=ours[0] or theirs[0], markers=theirs[1]).receive(octets)
    for frame in frames:
        assert isinstance(frame, Fpdu)
        assert (frame.raw[-4:] != bytes(4)) == (ours[0] or theirs[0])


def test_ird_and_ord_are_what_both_can(bench: Bench) -> None:
    """RFC 6581: each side's ORD is at most the other's IRD."""
    initiator, responder = bench.pair({"ird": 3, "ord": 9}, {"ird": 5, "ord": 7})
    assert (initiator.qp.ird, initiator.qp.ord) == (3, 5)
    assert (responder.qp.ird, responder.qp.ord) == (5, 3)
    assert enhanced_of(initiator.reply) == Enhanced(ird=5, ord=3)
    talk(bench, initiator, responder)


def test_limits_that_the_peer_leaves_open_are_ones_own(bench: Bench) -> None:
    responder = bench.make(ird=5, ord=7)
    asked = Enhanced(ird=0x3FFF, ord=0x3FFF)
    responder.receive(StartupFrame(kind="request", revision=2, enhanced=asked).encode())
    assert (responder.accept().ird, responder.qp.ord) == (5, 7)
    # Section 9.1: "setting the IRD to 0x3FFF in its reply message", and so with ORD.
    parsed = StartupFrame.parse(responder.data_to_send())
    assert parsed is not None and parsed[0].enhanced == asked


def test_an_initiator_keeps_the_limits_that_the_responder_leaves_open(bench: Bench) -> None:
    """RFC 6581 section 9.1: "The initiator MUST leave its local endpoint ORD value unchanged upon
    receiving a responder IRD value of 0x3FFF", and so with its IRD.
    """
    initiator = bench.make(ird=5, ord=7)
    initiator.connect()
    initiator.data_to_send()
    answer = Enhanced(ird=0x3FFF, ord=0x3FFF)
    initiator.receive(StartupFrame(kind="reply", revision=2, enhanced=answer).encode())
    assert (initiator.qp.ird, initiator.qp.ord, initiator.qp.sent) == (5, 7, None)


@pytest.mark.parametrize("crc", [False, True])
def test_a_first_fpdu_with_a_wrong_crc_does_not_let_the_responder_send(
    bench: Bench, crc: bool
) -> None:
    """RFC 5044 section 7.1.2: "MPA Responder mode implementations MUST receive and validate at
    least one FPDU before sending any FPDUs or Markers."
    """
    initiator, responder = bench.pair({"crc": crc}, {"crc": crc})
    responder.qp.post_send(Opcode.SEND, b"1")
    initiator.qp.post_send(Opcode.RDMA_WRITE)
    octets = initiator.data_to_send()
    responder.receive(octets[:-1] + bytes([octets[-1] ^ 1]))
    assert bool(responder.data_to_send()) != crc


def test_the_responder_is_silent_until_the_first_fpdu(bench: Bench) -> None:
    """RFC 5044 section 7.1.2: the responder must not send an FPDU before it has received one."""
    initiator, responder = bench.pair({}, {})
    initiator.qp.post_recv(bytearray(1))
    responder.qp.post_send(Opcode.SEND, b"1")
    assert responder.data_to_send() == b""
    initiator.qp.post_send(Opcode.RDMA_WRITE, wr_id="first")
    taken = bench.carry(initiator, responder)
    assert {wc.opcode for wc in taken} == {Opcode.SEND, Opcode.RDMA_WRITE, Opcode.RECV}


def test_peer_to_peer_the_responder_may_send_first(bench: Bench) -> None:
    """RFC 6581: the initiator says that it is ready to receive with a Write of no octets."""
    initiator, responder = bench.pair({}, {}, peer_to_peer=True)
    enhanced = enhanced_of(initiator.reply)
    assert enhanced.rtr_write and enhanced.peer_to_peer
    initiator.qp.post_recv(bytearray(1), wr_id="received")
    responder.qp.post_send(Opcode.SEND, b"1", wr_id="sent")
    taken = bench.carry(initiator, responder)
    assert [wc.wr_id for wc in taken] == ["sent", "received"]
    talk(bench, initiator, responder)


@pytest.mark.parametrize(
    ("options", "ord", "answer"),
    [
        ({"rtr_read"}, 1, {"rtr_read"}),
        ({"rtr_read"}, 0, {"rtr_read"}),  # a Read uses one of the IRD
        ({"rtr_read", "rtr_write"}, 1, {"rtr_read", "rtr_write"}),
        ({"rtr_fpdu"}, 1, {"rtr_read", "rtr_write"}),
        (set(), 1, {"rtr_read", "rtr_write"}),
    ],
)
def test_a_responder_says_how_the_peer_may_begin(
    bench: Bench, options: set[str], ord: int, answer: set[str]
) -> None:
    """RFC 6581 section 9.2: the requested indications that are possible, or else all possible
    ones.
    """
    responder = bench.make()
    asked = Enhanced(ird=1, ord=ord, peer_to_peer=True, **dict.fromkeys(options, True))
    responder.receive(StartupFrame(kind="request", revision=2, enhanced=asked).encode())
    assert responder.accept().ird == 1
    parsed = StartupFrame.parse(responder.data_to_send())
    assert parsed is not None
    wanted = Enhanced(ird=1, ord=1, peer_to_peer=True, **dict.fromkeys(answer, True))
    assert parsed[0].enhanced == wanted


def test_a_responder_without_ird_takes_no_read_as_ready_to_receive(bench: Bench) -> None:
    responder = bench.make(ird=0)
    asked = Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_read=True)
    responder.receive(StartupFrame(kind="request", revision=2, enhanced=asked).encode())
    assert responder.accept().ird == 0
    parsed = StartupFrame.parse(responder.data_to_send())
    assert parsed is not None
    assert parsed[0].enhanced == Enhanced(ird=0, ord=1, peer_to_peer=True, rtr_write=True)


@pytest.mark.parametrize(
    ("enhanced", "code"),
    [
        (Enhanced(ird=1, ord=5, peer_to_peer=True, rtr_write=True), 6),
        (Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_read=True), 7),
        (Enhanced(ird=1, ord=1), 7),
    ],
)
def test_an_initiator_terminates_what_it_cannot_keep(
    bench: Bench, enhanced: Enhanced, code: int
) -> None:
    """RFC 6581: Insufficient IRD Resources, No Matching RTR Option; after that it closes."""
    initiator = bench.make(ird=4)
    initiator.connect(peer_to_peer=True)
    initiator.data_to_send()
    initiator.receive(StartupFrame(kind="reply", revision=2, enhanced=enhanced).encode())
    assert initiator.qp.sent == Terminate(Layer.LLP, 0, code)
    assert initiator.closed and bytes([0x20, code, 0, 0]) in initiator.data_to_send()


@pytest.mark.parametrize("revision", [1, 2])
def test_a_request_can_be_refused(bench: Bench, revision: int) -> None:
    initiator, responder = bench.make(), bench.make()
    initiator.connect(revision=revision)
    bench.carry(initiator, responder)
    responder.reject(b"no")
    bench.carry(initiator, responder)
    assert initiator.closed and responder.closed
    assert isinstance(initiator.error, Rejected)
    assert initiator.reply is not None and initiator.reply.private_data == b"no"
    # RFC 6581 section 9.1: IRD and ORD reach the ULP "for both MPA Accept and Reject messages".
    if revision == 2:
        assert enhanced_of(initiator.reply) == Enhanced(ird=16, ord=16)
    limits = 16 if revision == 2 else None
    assert (initiator.error.ird, initiator.error.ord) == (limits, limits)
    with pytest.raises(StateError, match="the peer refuses"):
        _ = initiator.qp
    with pytest.raises(StateError, match="no request that waits"):
        responder.accept()


@pytest.mark.parametrize(
    ("asked", "limits", "fields"),
    [
        (Enhanced(ird=3, ord=9), (5, 7), Enhanced(ird=5, ord=3)),
        (Enhanced(ird=9, ord=3), (5, 7), Enhanced(ird=3, ord=7)),
        (Enhanced(ird=0x3FFF, ord=9), (5, 7), Enhanced(ird=5, ord=0x3FFF)),
        (Enhanced(ird=3, ord=0x3FFF), (5, 7), Enhanced(ird=0x3FFF, ord=3)),
        (
            Enhanced(ird=0x3FFF, ord=0x3FFF, peer_to_peer=True, rtr_write=True),
            (16, 16),
            Enhanced(ird=0x3FFF, ord=0x3FFF, peer_to_peer=True, rtr_write=True),
        ),
        (
            Enhanced(ird=1, ord=0, peer_to_peer=True, rtr_read=True, rtr_fpdu=True),
            (16, 16),
            Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_read=True),
        ),
        (
            Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_read=True),
            (0, 16),
            Enhanced(ird=0, ord=1, peer_to_peer=True, rtr_write=True),
        ),
        (
            Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_fpdu=True),
            (16, 16),
            Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_write=True, rtr_read=True),
        ),
    ],
)
def test_a_refusal_has_the_fields_with_which_the_request_could_be_accepted(
    bench: Bench, asked: Enhanced, limits: tuple[int, int], fields: Enhanced
) -> None:
    """RFC 6581 section 9.2: "If Control Flag A is 1 in the MPA Request message, then the responder
    MUST set Control Flag A to 1 in the MPA reply message", with at least one of B, C and D.
    Section 9.1: "The responder MUST respond to an initiator ORD value of 0x3FFF by [...] setting
    the IRD to 0x3FFF in its reply message", and so with ORD; "The responder MUST set its ORD at
    most to the initiator IRD."
    """
    octets = StartupFrame(kind="request", revision=2, enhanced=asked).encode()
    replies = []
    for accepts in (True, False):
        responder = bench.make(ird=limits[0], ord=limits[1])
        responder.receive(octets)
        if accepts:
            responder.accept()
        else:
            responder.reject()
        parsed = StartupFrame.parse(responder.data_to_send())
        assert parsed is not None
        replies.append((parsed[0].reject, parsed[0].enhanced))
    assert replies == [(False, fields), (True, fields)]


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "must begin with an MPA Request or Reply Frame"),
        (StartupFrame(kind="reply").encode(), "must begin with an MPA Request Frame"),
        (b"MPA ID Req Frame\x40\x03\0\0", "revision must be 1 or 2, not 3"),
        (b"MPA ID Req Frame\x40\x01\xff\xff", "at most 512 octets, not 65535"),
    ],
)
def test_a_connection_that_begins_otherwise_is_closed(
    bench: Bench, octets: bytes, message: str
) -> None:
    """RFC 5044 section 7.1.3: nothing is answered."""
    responder = bench.make()
    for octet in octets:
        responder.receive(bytes([octet]))
    assert responder.closed and message in str(responder.error)
    assert responder.data_to_send() == b"" and responder.request is None


@pytest.mark.parametrize("revision", [1, 2])
def test_a_request_with_the_bit_of_a_refusal_is_a_request(bench: Bench, revision: int) -> None:
    """RFC 5044 section 7.1.1, R: "This bit is set to zero, and not checked on reception in the MPA
    Request Frame."
    """
    responder = bench.make()
    responder.receive(b"MPA ID Req Frame" + bytes([0x60, revision, 0, 5]) + b"hello")
    assert responder.request is not None and responder.request.private_data == b"hello"
    responder.accept()
    assert responder.started


@pytest.mark.parametrize(
    "answer",
    [
        StartupFrame(kind="request"),
        StartupFrame(kind="request", revision=2),
        StartupFrame(kind="reply", revision=1),
    ],
)
def test_an_answer_that_is_none_closes(bench: Bench, answer: StartupFrame) -> None:
    """RFC 5044 section 7.1.2: "MPA implementations MUST use the difference between the MPA Request
    Frame and the MPA Reply Frame to check for incorrect "Initiator/Initiator" startups."
    """
    initiator = bench.make()
    initiator.connect()
    initiator.receive(answer.encode())
    assert (
        initiator.closed
        and initiator.error is not None
        and "is not a reply" in str(initiator.error)
    )


def test_a_terminate_closes_both_sides(bench: Bench) -> None:
    """RFC 5040 sections 5.4 and 6.2: both the sender and the receiver of it tear the stream
    down.
    """
    initiator, responder = bench.pair({}, {})
    initiator.qp.post_recv(bytearray(8), wr_id="flushed")
    initiator.qp.post_send(Opcode.RDMA_WRITE, b"1", wr_id="sent", stag=0x123)
    taken = bench.carry(initiator, responder)
    assert [(wc.wr_id, wc.status) for wc in taken] == [
        ("sent", WcStatus.SUCCESS),
        ("flushed", WcStatus.FLUSHED),
    ]
    assert initiator.closed and responder.closed
    assert initiator.qp.received == responder.qp.sent
    assert str(initiator.qp.received).startswith("DDP 0x1/0x00 Invalid STag, DDP Header c1 40")


def test_a_connection_that_is_lost_flushes(bench: Bench) -> None:
    initiator, responder = bench.pair({}, {})
    initiator.qp.post_recv(bytearray(8), wr_id="flushed")
    initiator.qp.disconnect()
    ((completion),) = bench.cq.poll()
    assert completion.status is WcStatus.FLUSHED and initiator.closed
    assert initiator.data_to_send() == b""
    early = bench.make()
    early.eof()
    assert early.closed and isinstance(early.error, ConnectionLost)


# --- RFC 5041 section 6.2.1: graceful teardown ----------------------------------------------------


def told(taken: list[WC]) -> list[tuple[object, WcStatus]]:
    return [(wc.wr_id, wc.status) for wc in taken if wc.opcode is not Opcode.HALF_CLOSED]


GOOD, FLUSHED = WcStatus.SUCCESS, WcStatus.FLUSHED


def test_a_graceful_teardown_transfers_what_was_posted_and_then_closes(bench: Bench) -> None:
    """Section 6.2.1: "If the Local Peer ULP indicates graceful teardown, the DDP layer on the Local
    Peer SHOULD ensure that all ULP data would be transferred before the underlying LLP Stream and
    Connection are torn down, and any further data transfer requests by the Local Peer ULP MUST
    return an error." "DDP SHOULD keep data reception enabled on the other half of the LLP Stream."
    """
    one, other = bench.pair({"ord": 1}, {})
    region = bench.pd.register(bytearray(b"12345678"), BOTH)
    sinks = [bytearray(8) for _ in range(3)]
    for number, sink in enumerate(sinks):  # each waits for the previous one: ORD is 1
        one.qp.post_send(Opcode.RDMA_READ, sink, wr_id=number, stag=region.stag)
    one.qp.post_send(Opcode.SEND, b"last", wr_id="send")
    for qp, name in ((one.qp, "ours"), (other.qp, "theirs"), (other.qp, "unused")):
        qp.post_recv(bytearray(8), wr_id=name)
    one.shutdown()
    assert not one.finished
    for kind in (Opcode.SEND_WITH_INV, Opcode.RDMA_WRITE, Opcode.RDMA_READ):
        with pytest.raises(StateError, match="is shut down: nothing more can be sent"):
            one.qp.post_send(kind, bytearray(1), stag=region.stag)
    taken = bench.carry(one, other)
    assert set(told(taken)) == {(0, GOOD), (1, GOOD), (2, GOOD), ("send", GOOD), ("theirs", GOOD)}
    assert sinks == [b"12345678"] * 3 and one.finished and not one.closed
    # The other half is open until its own end.
    other.eof()
    other.qp.post_send(Opcode.SEND, b"answer", wr_id="answer")
    other.shutdown()
    taken = bench.carry(one, other)
    assert set(told(taken)) == {("answer", GOOD), ("ours", GOOD), ("unused", FLUSHED)}
    assert other.finished and other.closed and not one.closed
    one.qp.post_recv(bytearray(8), wr_id="spare")
    one.eof()
    assert one.closed and told(bench.cq.poll()) == [("spare", FLUSHED)]
    assert one.qp.sent is one.qp.received is other.qp.sent is other.qp.received is None


def test_a_half_closed_connection_is_reported_and_sending_goes_on(bench: Bench) -> None:
    """Section 6.2.1: "DDP SHOULD indicate the half-closed state to the ULP, and continue to process
    outbound data transfer requests normally. Following this event, when the Local Peer ULP requests
    graceful teardown, DDP MUST indicate to the LLP that it SHOULD perform a graceful close of the
    other half of the LLP Stream."
    """
    one, other = bench.pair({"ord": 1}, {})
    region = bench.pd.register(bytearray(8), BOTH)
    one.qp.post_recv(bytearray(8), wr_id="receive")
    for number in range(2):
        one.qp.post_send(Opcode.RDMA_READ, bytearray(8), wr_id=number, stag=region.stag)
    one.qp.post_send(Opcode.SEND, b"behind", wr_id="behind")
    one.eof()
    one.eof()
    taken = bench.cq.poll()
    assert [wc.opcode for wc in taken if wc.opcode is Opcode.HALF_CLOSED] == [Opcode.HALF_CLOSED]
    # No response can arrive any more, so nothing waits for one.
    assert told(taken) == [(0, FLUSHED), (1, FLUSHED), ("behind", GOOD)]
    assert one.qp.half_closed and not one.finished and not one.closed
    with pytest.raises(StateError, match="no Read Response can come"):
        one.qp.post_send(Opcode.RDMA_READ, bytearray(8), stag=region.stag)
    one.qp.post_send(Opcode.SEND, b"more", wr_id="more")
    assert told(bench.cq.poll()) == [("more", GOOD)]
    one.shutdown()
    assert one.finished and one.closed
    assert told(bench.cq.poll()) == [("receive", FLUSHED)]
    *_, behind, more = MpaReceiver().receive(one.data_to_send())
    assert b"behind" in behind.raw and b"more" in more.raw


def test_what_came_before_the_peers_end_is_taken_first(bench: Bench) -> None:
    one, other = bench.pair({}, {})
    region = bench.pd.register(memory := bytearray(8), BOTH)
    other.qp.post_recv(buffer := bytearray(8), wr_id="receive")
    one.qp.post_send(Opcode.RDMA_WRITE, b"12345678", stag=region.stag)
    one.qp.post_send(Opcode.SEND, b"whole")
    other.receive(one.data_to_send())
    other.eof()
    taken = [(wc.opcode, wc.status) for wc in bench.cq.poll() if wc.qp is other.qp]
    assert taken == [(Opcode.RECV, GOOD), (Opcode.HALF_CLOSED, GOOD)]
    assert (memory, buffer[:5]) == (b"12345678", b"whole")


@pytest.mark.parametrize("case", ["after the end", "within an FPDU"])
def test_data_after_the_end_aborts(bench: Bench, case: str) -> None:
    """Section 6.2.1: "If the DDP layer on the Local Peer receives a graceful teardown request from
    the LLP, any further data received after the request is considered an error and MUST cause the
    DDP Stream to be abortively torn down." RFC 5044 section 8: "1   TCP connection closed,
    terminated, or lost."
    """
    one, other = bench.pair({}, {})
    other.qp.post_recv(buffer := bytearray(8), wr_id="receive")
    one.qp.post_send(Opcode.SEND, b"late")
    octets = one.data_to_send()
    if case == "within an FPDU":
        other.receive(octets[:-1])
        other.eof()
    else:
        other.eof()
        assert not other.closed
        other.receive(octets)
    bench.sim.run(2000)
    assert other.closed and str(other.qp.sent).startswith("LLP 0x0/0x01 TCP connection closed")
    taken = [wc for wc in bench.cq.poll() if wc.qp is other.qp]
    assert told(taken) == [("receive", FLUSHED)] and buffer == bytes(8)
    with pytest.raises(StateError, match="TCP connection closed"):
        other.qp.post_send(Opcode.SEND, b"no")


def test_no_read_is_answered_after_the_own_end(bench: Bench) -> None:
    one, other = bench.pair({}, {})
    one.qp.post_send(Opcode.SEND, b"")
    other.qp.post_recv(None)
    bench.carry(one, other)
    region = bench.pd.register(bytearray(8), BOTH)
    other.shutdown()
    assert other.finished and other.data_to_send() == b""
    one.qp.post_send(Opcode.RDMA_READ, bytearray(8), wr_id="read", stag=region.stag)
    assert told(bench.carry(one, other)) == [] and other.qp.sent is None
    one.eof()
    assert told(bench.cq.poll()) == [("read", FLUSHED)]


@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
def test_wireshark_reads_what_endpoints_say(bench: Bench, tmp_path: Path) -> None:
    initiator, responder = bench.pair({}, {})
    talk(bench, initiator, responder)
    responder.qp.post_recv(bytearray(1))
    stag = bench.pd.register(bytearray(8), stream=responder.qp.stream).stag
    initiator.qp.post_send(Opcode.SEND_WITH_INV, b"1", stag=stag, solicited=True)
    initiator.qp.post_send(Opcode.RDMA_READ, bytearray(8), stag=stag)
    bench.carry(initiator, responder)
    script = TcpScript()
    cutters = [MpaReceiver(crc=False) for _ in range(2)]
    sent: Counter[int] = Counter()
    for number, (back, octets) in enumerate(bench.carried):
        if number < 2:
            script.send(back, octets)
            continue
        for fpdu in cutters[back].receive(octets):
            assert isinstance(fpdu, Fpdu)
            script.send(back, fpdu.raw)
            sent[opcode(decode_segment(fpdu.ulpdu)[0])] += 1
    text = tshark(script.write(tmp_path / "made.pcap"), "-O", "iwarp_mpa,iwarp_ddp_rdmap")
    assert text.count("(Good CRC32)") == sent.total() and "(Bad CRC32" not in text
    assert Counter(int(n, 16) for n in re.findall(r"OpCode: .* \(0x(\w)\)", text)) == sent
    assert {0, 1, 2, 3, 6, 7} == set(sent)
    assert f"Invalidate STag: {stag}" in text
    # The Terminate.
    for line in (
        "Layer: RDMA (0x0)",
        "Error Types for RDMA layer: Remote Protection Error (0x1)",
        "Error Code for RDMA layer: Invalid STag (0x00)",
        "M bit: Set",
        "D bit: Set",
        "R bit: Set",
        "DDP Segment Length: 002e",
    ):
        assert line in text


# --- ready to receive -----------------------------------------------------------------------------


def first_message(bench: Bench) -> tuple[Header, bytes]:
    """Returns the first message that the initiator sent after start-up."""
    (_, first), *_ = [sent for sent in bench.carried[2:] if not sent[0]]
    fpdu = MpaReceiver().receive(first)[0]
    assert isinstance(fpdu, Fpdu)
    return decode_segment(fpdu.ulpdu)


@pytest.mark.parametrize("rtr", list(Rtr), ids=lambda rtr: rtr.name)
@pytest.mark.parametrize("stag", [0, 1, 0xDEADBEEF])
@pytest.mark.parametrize("ord", [0, 4])
def test_an_initiator_begins_with_the_message_that_both_chose(
    bench: Bench, rtr: Rtr, stag: int, ord: int
) -> None:
    """RFC 6581 section 9.2: "the initiator MUST generate one of the negotiated RTR indications", a
    message of no octets. Its Steering Tag is a choice: RFC 5040 sections 5.1.1 and 5.2.1 have none
    checked where there are no octets.
    """
    initiator, responder = bench.make(ord=ord), bench.make()
    initiator.connect(peer_to_peer=True, rtr=rtr, rtr_stag=stag)
    bench.carry(initiator, responder)
    responder.accept(rtr=rtr)
    taken = bench.carry(initiator, responder)
    flags = {Rtr.WRITE: "rtr_write", Rtr.READ: "rtr_read", Rtr.SEND: "rtr_fpdu"}
    for frame in (responder.request, initiator.reply):
        enhanced = enhanced_of(frame)
        assert enhanced.peer_to_peer
        assert [getattr(enhanced, flags[each]) for each in Rtr] == [each is rtr for each in Rtr]
    # Neither end has a completion for it.
    assert taken == []
    header, payload = first_message(bench)
    if rtr is Rtr.WRITE:
        assert header == TaggedHeader(stag, 0, True, 0x40) and not payload
    elif rtr is Rtr.READ:
        assert header == UntaggedHeader(1, 1, 0, True, 0x41 << 32)
        assert ReadRequest.decode(payload) == ReadRequest(stag, 0, 0, stag, 0)
    else:
        assert header == UntaggedHeader(0, 1, 0, True, 0x43 << 32) and not payload
    # Now the responder may send first.
    initiator.qp.post_recv(bytearray(1), wr_id="received")
    responder.qp.post_send(Opcode.SEND, b"1", wr_id="sent")
    assert [wc.wr_id for wc in bench.carry(initiator, responder)] == ["sent", "received"]
    if ord:
        talk(bench, initiator, responder)


@pytest.mark.parametrize(
    ("offered", "can", "named"),
    [
        (Rtr.WRITE | Rtr.READ, Rtr.WRITE | Rtr.READ, ["rtr_write", "rtr_read"]),
        # A Send has a buffer, which would stay if the initiator began with another message.
        (Rtr.WRITE | Rtr.READ | Rtr.SEND, ~Rtr(0), ["rtr_write", "rtr_read"]),
        (Rtr.READ | Rtr.SEND, ~Rtr(0), ["rtr_read"]),
        (Rtr.SEND, ~Rtr(0), ["rtr_fpdu"]),
        (Rtr.WRITE | Rtr.SEND, Rtr.SEND, ["rtr_fpdu"]),
        (Rtr.WRITE | Rtr.READ, Rtr.SEND, ["rtr_fpdu"]),
        (Rtr.SEND, Rtr.WRITE, ["rtr_write"]),
        (Rtr.SEND, Rtr.WRITE | Rtr.READ, ["rtr_write", "rtr_read"]),
    ],
)
def test_a_responder_names_what_both_can_or_what_it_can(
    bench: Bench, offered: Rtr, can: Rtr, named: list[str]
) -> None:
    """RFC 6581 section 9.2: "For each initiator-supported RTR indication option, the responder
    SHOULD set the corresponding Control Flag if the responder can support that option in an MPA
    reply"; "If the responder does not support any of the initiator-specified RTR
    indication options, then the responder MUST set at least one RTR indication type option it
    supports"; "If the initiator is not able to generate any of the responder-supported RTR
    indications, then it MUST send a TERM message": Layer 2, Error Type 0, Error Code 7.
    """
    initiator, responder = bench.make(), bench.make()
    initiator.connect(peer_to_peer=True, rtr=offered)
    bench.carry(initiator, responder)
    responder.accept(rtr=can)
    bench.carry(initiator, responder)
    wanted = Enhanced(ird=16, ord=16, peer_to_peer=True, **dict.fromkeys(named, True))
    assert enhanced_of(initiator.reply) == wanted
    matches = bool(offered & can)
    assert (initiator.qp.sent is None) == matches
    if not matches:
        assert responder.qp.received == Terminate(Layer.LLP, 0, 7)


@pytest.mark.parametrize(
    ("message", "control", "terminate"),
    [
        (b"", 0x47, bytes([0x02, 6])),  # a Terminate on the queue of Sends
        (b"", 0x83, bytes([0x02, 5])),
        (b"1", 0x43, bytes([0x12, 5])),
    ],
)
def test_a_send_that_begins_is_checked_as_any_other(
    bench: Bench, message: bytes, control: int, terminate: bytes
) -> None:
    """RFC 5040 section 7.2: opcode and version; RFC 6581 section 9: "zero-length"."""
    responder = bench.make()
    asked = Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_fpdu=True)
    responder.receive(StartupFrame(kind="request", revision=2, enhanced=asked).encode())
    responder.accept(rtr=Rtr.SEND)
    source = DataSource(1440)
    (segment,) = source.untagged(0, message, rsvdulp=control << 32)
    responder.receive(MpaSender().send(segment))
    bench.sim.run(2000)
    assert bench.cq.poll() == []
    assert responder.qp.sent is not None and responder.qp.sent.encode()[:2] == terminate


def test_a_flush_does_not_tell_of_the_message_that_begins(bench: Bench) -> None:
    for rtr in Rtr:
        initiator, responder = bench.make(), bench.make()
        initiator.connect(peer_to_peer=True, rtr=rtr)
        responder.receive(initiator.data_to_send())
        responder.accept(rtr=rtr)
        initiator.receive(responder.data_to_send())
        initiator.qp.disconnect()
        responder.qp.disconnect()
        assert bench.cq.poll() == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"peer_to_peer": True, "revision": 1}, "revision must be 2 for peer to peer, not 1"),
        ({"revision": 3}, "revision must be from 1 to 2, not 3"),
        ({"peer_to_peer": True, "rtr": Rtr(0)}, "rtr must be a combination of"),
        ({"rtr": "write"}, "rtr must be a Rtr, not 'write'"),
        ({"rtr_stag": 1 << 32}, r"rtr_stag must be from 0 to 2\*\*32 - 1, not 4294967296"),
        ({"rtr_stag": 1.0}, "rtr_stag must be .* an integer, not 1.0"),
        ({"peer_to_peer": "yes"}, "peer_to_peer must be True or False, not 'yes'"),
        ({"private_data": "text"}, "a message must be octets, not str"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_and_nothing_is_sent(
    bench: Bench, asked: dict[str, Any], message: str
) -> None:
    initiator = bench.make()
    with pytest.raises(InvalidRequest, match=message):
        initiator.connect(**asked)
    assert initiator.data_to_send() == b""
    initiator.connect()
    with pytest.raises(StateError, match="start-up has begun already"):
        initiator.connect()


def test_a_responder_without_ird_names_no_read(bench: Bench) -> None:
    responder = bench.make(ird=0)
    asked = Enhanced(ird=1, ord=1, peer_to_peer=True, rtr_read=True)
    responder.receive(StartupFrame(kind="request", revision=2, enhanced=asked).encode())
    with pytest.raises(InvalidRequest, match="rtr must have a Write or a Send, because ird is 0"):
        responder.accept(rtr=Rtr.READ)
    responder.accept()


# --- traffic after the end ------------------------------------------------------------------------


def kept(connection: Connection) -> int:
    """Returns how many octets a connection keeps."""
    cutter = connection._cutter
    return len(connection._in) + (0 if cutter is None else len(cutter._buffer))


@pytest.mark.parametrize("end", ["garbage", "refused", "eof", "terminated", "early"])
def test_a_connection_that_has_ended_keeps_no_octets(bench: Bench, end: str) -> None:
    connection = bench.make()
    if end == "garbage":
        connection.receive(b"GET / HTTP/1.1\r\n\r\n")
    elif end == "eof":
        connection.receive(b"MPA ID Req")
        connection.eof()
    else:
        connection.receive(StartupFrame(kind="request").encode())
    if end == "refused":
        connection.reject()
    elif end == "terminated":
        connection.accept()
        connection.qp.terminate(Terminate(Layer.RDMA, 2, 0xFF))
    for _ in range(100):
        connection.receive(bytes(100_000))
    assert connection.closed and kept(connection) == 0
    if end == "early":
        assert connection.error is not None and "before its request's answer" in str(
            connection.error
        )
