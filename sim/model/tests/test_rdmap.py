"""The part of RFC 5040 that decides where octets are placed."""

from __future__ import annotations

import pytest
from ddp_rnic.hdl.spec.ddp import (
    INVALID_STAG,
    UNEXPECTED_RESPONSE,
    WRONG_RESPONSE,
    ErrorNumber,
)
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.events import Delivered
from ddp_rnic.sim.model.memory import Access, Memory, Region
from ddp_rnic.sim.model.rdmap import (
    Opcode,
    QueueNumber,
    RdmapSink,
    ReadRequest,
    invalidated_stag,
    rsvdulp,
)
from hypothesis import given
from hypothesis import strategies as st


@given(st.binary(min_size=28, max_size=28))
def test_a_read_request_survives(octets: bytes) -> None:
    assert ReadRequest.decode(octets).encode() == octets


def test_a_read_request_octet_by_octet() -> None:
    """RFC 5040 section 4.4, figure 6."""
    request = ReadRequest(1, 2, 3, 4, 5)
    assert request.encode() == bytes.fromhex(
        "00000001 0000000000000002 00000003 00000004 0000000000000005"
    )


def test_a_source_is_read_with_the_right_and_inside_its_bounds() -> None:
    memory = Memory()
    memory.register(
        Region(stag=0x100, to=50, length=8, pd=1, access=Access.REMOTE_READ), bytearray(b"abcdefgh")
    )
    memory.register(Region(stag=0x200, to=50, length=8, pd=1))

    def read(stag: int, to: int, length: int, pd: int = 1) -> bytes | None:
        return ReadRequest(0, 0, length, stag, to).source(memory, stream=0, pd=pd)

    assert read(0x100, 52, 3) == b"cde"
    assert read(0x100, 50, 8) == b"abcdefgh"
    assert [read(0x100, 49, 2), read(0x100, 50, 9), read(0x100, 50, 8, pd=2)] == [None] * 3
    assert [read(0x200, 50, 8), read(0x101, 50, 8)] == [None] * 2
    # Section 5.2.1: of a Read of no octets neither STag nor TO is validated.
    assert read(0x101, 0, 0) == b""


def test_send_with_invalidate_revokes_when_delivered() -> None:
    memory = Memory()
    memory.register(Region(stag=0x100, to=0, length=8, pd=1))
    sink = RdmapSink(memory, pd=1)
    sink.post(QueueNumber.SEND, 100, 2)
    ulp = rsvdulp(Opcode.SEND_INVALIDATE, tagged=False, stag=0x100)
    first, last = DataSource(40).untagged(QueueNumber.SEND, bytes(40), rsvdulp=ulp)
    sink.receive(first)
    assert memory.lookup(0x100)
    delivered = sink.receive(last)[-1]
    assert isinstance(delivered, Delivered)
    assert invalidated_stag(delivered.header) == 0x100
    assert memory.lookup(0x100) is None


@pytest.mark.parametrize("opcode", [Opcode.SEND_INVALIDATE, Opcode.SEND_SOLICITED_INVALIDATE])
@pytest.mark.parametrize(
    ("qn", "version", "stream", "valid"),
    [
        (0, 1, 0, True),
        (0, 0, 0, True),  # the version of the RDMA Consortium
        (1, 1, 0, False),
        (2, 1, 0, False),
        (3, 1, 0, False),
        (0, 2, 0, False),
        (0, 3, 0, False),
        (0, 1, 1, False),
    ],
)
def test_a_message_that_is_no_valid_send_invalidates_nothing(
    opcode: Opcode, qn: int, version: int, stream: int, valid: bool
) -> None:
    """RFC 5040 section 4.1, figure 4: Send with Invalidate has Queue Number 0. Section 7.2: "The
    RDMA OpCode MUST be valid. The RDMA Version MUST be valid. [...] The STag MUST be associated to
    this RDMAP Stream."
    """
    memory = Memory()
    memory.register(Region(stag=0x100, to=0, length=8, stream=0))
    sink = RdmapSink(memory, stream=stream, pd=1)
    sink.open_queue(3)
    for queue in (0, 3):
        sink.post(queue, 100)
    (segment,) = DataSource(40).untagged(qn, b"", rsvdulp=(version << 6 | opcode) << 32 | 0x100)
    assert isinstance(sink.receive(segment)[-1], Delivered)
    assert (memory.lookup(0x100) is None) == valid


def test_read_requests_never_run_out_of_buffers() -> None:
    sink, source = RdmapSink(Memory()), DataSource(100)
    for _ in range(3000):
        (segment,) = source.untagged(QueueNumber.READ_REQUEST, bytes(28))
        assert len(sink.receive(segment)) == 2
    assert sink.error is None


def test_a_response_is_compared_with_the_oldest_read() -> None:
    """RFC 5040 section 5.2.2, and section 4.8 for the errors: "Unexpected OpCode", "Unspecified
    Error".
    """
    memory, source = Memory(), DataSource(40)
    memory.register(Region(stag=0x100, to=50, length=99, pd=1))
    read = ReadRequest(0x100, 60, 30, 5, 6)

    def error(*segments: bytes) -> ErrorNumber | None:
        sink = RdmapSink(memory, pd=1)
        sink.expect(read)
        events = [event for segment in segments for event in sink.receive(segment)]
        assert [event for event in events if isinstance(event, Delivered)] or [*sink.reads] == [
            read
        ]
        return sink.error.number if sink.error else None

    def response(to: int, length: int, stag: int = 0x100) -> list[bytes]:
        return source.tagged(stag, to, bytes(length), rsvdulp=0x42)

    memory.register(Region(stag=0x200, to=50, length=99, pd=1))
    right = response(60, 30)
    assert len(right) == 2 and error(*right) is None
    assert error(*right, *response(60, 30)) == UNEXPECTED_RESPONSE
    assert error(*response(60, 30, 0x200)) == UNEXPECTED_RESPONSE
    for to, length in ((60, 29), (60, 31), (60, 0), (59, 30), (61, 30)):
        assert error(*response(to, length)) == WRONG_RESPONSE
    assert error(right[0], right[0]) == error(right[1]) == WRONG_RESPONSE
    # DDP's checks come first.
    assert error(*response(60, 30, 0x101)) == INVALID_STAG
