"""Work requests become segments."""

from __future__ import annotations

from typing import Any

import pytest
from ddp_rnic.hdl.spec.send import Flag, Kind, Message, Piece
from ddp_rnic.sim.model.ddp import DataSource, decode_segment
from ddp_rnic.sim.model.events import ProtocolError
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.memory import Memory, Region
from ddp_rnic.sim.model.rdmap import Opcode, ReadRequest, ReadSink, rsvdulp
from ddp_rnic.sim.model.send import SendQueue

STAG, TO, LENGTH = 0x1207, 0x10000, 100
OCTETS = bytes(range(LENGTH))
WRITE: dict[str, Any] = {"kind": Kind.TAGGED, "stag": 0x77, "to": 5}


def a_queue(mulpdu: int = 34) -> SendQueue:
    memory = Memory()
    memory.register(Region(stag=STAG, to=TO, length=LENGTH, pd=1), bytearray(OCTETS))
    return SendQueue(DataSource(mulpdu), memory, pd=1)


def test_a_change_of_mulpdu_holds_from_the_next_segment_on() -> None:
    """RFC 5041 section 3 has DDP "adapt as MULPDU changes come about"."""
    queue = a_queue()
    queue.post(Message(**WRITE, pieces=(Piece(STAG, LENGTH, TO),), rsvdulp=0x40 << 32))
    sent = []
    for mulpdu in (34, 15, 54, 1000):
        queue.source.mulpdu = mulpdu
        segment = queue.send()
        assert segment is not None
        sent.append(decode_segment(segment))
    ends = [0, 20, 21, 61, LENGTH]
    assert sent == [
        (TaggedHeader(0x77, 5 + at, end == LENGTH, 0x40), OCTETS[at:end])
        for at, end in zip(ends, ends[1:], strict=False)
    ]
    assert queue.send() is None


def test_messages_leave_in_order_and_pieces_follow_each_other() -> None:
    queue = a_queue(1000)
    queue.post(Message(Kind.UNTAGGED, Flag.INLINE, octets=b"first", qn=3, rsvdulp=0x0102030405))
    pieces = Piece(STAG, 7, TO + 3), Piece(0, 0, 0), Piece(STAG, 2, TO + 98)
    queue.post(Message(Kind.UNTAGGED, pieces=pieces, qn=3))
    queue.post(Message(Kind.UNTAGGED))
    sent = [decode_segment(segment) for segment in iter(queue.send, None)]
    assert sent == [
        (UntaggedHeader(3, 1, 0, True, 0x0102030405), b"first"),
        (UntaggedHeader(3, 2, 0, True), OCTETS[3:10] + OCTETS[98:]),
        (UntaggedHeader(0, 1, 0, True), b""),
    ]


def test_a_read_is_its_request() -> None:
    """RFC 5040 section 3.1: "Queue Number 1 (used by RDMAP for RDMA Read operations)"."""
    queue = a_queue(100)
    ulp = rsvdulp(Opcode.READ_REQUEST, tagged=False)
    sink = Piece(STAG, 50, TO + 9)
    queue.post(Message(Kind.READ, pieces=(sink,), stag=0x99, to=1 << 40, rsvdulp=ulp))
    segment = queue.send()
    request = ReadRequest(STAG, TO + 9, 50, 0x99, 1 << 40)
    assert segment == UntaggedHeader(1, 1, 0, True, ulp).encode() + request.encode()
    assert queue.send() is None


@pytest.mark.parametrize(
    "piece",
    [
        Piece(STAG + 1, 1, TO),
        Piece(STAG, 1, TO - 1),
        Piece(STAG, 1, TO + LENGTH),
        Piece(STAG, 2, TO + LENGTH - 1),
    ],
    ids=["STag", "before", "after", "across the end"],
)
def test_no_octet_outside_a_region_is_sent(piece: Piece) -> None:
    queue = a_queue()
    queue.post(Message(**WRITE, pieces=(Piece(STAG, 90, TO), piece)))
    with pytest.raises(ProtocolError, match="must"):
        queue.send()


def test_a_region_of_another_domain_is_not_sent() -> None:
    queue = a_queue()
    queue.pd = 2
    queue.post(Message(**WRITE, pieces=(Piece(STAG, 1, TO),)))
    with pytest.raises(ProtocolError, match="must be valid for stream 0"):
        queue.send()


def test_a_session_control_message_is_not_of_a_stream() -> None:
    with pytest.raises(ValueError, match="CONTROL message must be sent by the session"):
        a_queue().post(Message(Kind.CONTROL))


def test_a_read_waits_while_ord_reads_are_outstanding() -> None:
    """RFC 5040 section 6.1: "the RDMAP layer MUST NOT exceed the maximum number of outstanding,
    outbound RDMA Read Requests". Nothing overtakes the Read that waits (section 5.5 item 13).
    """
    queue = a_queue(100)
    queue.sink, queue.ord = ReadSink(queue.memory, pd=1), 1
    for at in range(2):
        queue.post(Message(Kind.READ, pieces=(Piece(STAG, 4, TO + at),)))
    queue.post(Message(**WRITE, flags=Flag.INLINE, octets=b"after"))
    assert queue.send() is not None and queue.waits and queue.send() is None
    (response,) = queue.source.tagged(STAG, TO, b"1234", rsvdulp=0x42)
    assert queue.sink.receive(response) and not queue.sink.reads and not queue.waits
    assert queue.send() is not None and not queue.waits and queue.send() is not None
