"""Tests of the sentences of RFC 5041 and RFC 5043 that no other test of the model covers.

Each test names them by their ids in ``tests/requirements.csv``.
"""

from __future__ import annotations

import struct

import pytest
from ddp_rnic.sim.model.ddp import DataSink, DataSource, decode_segment
from ddp_rnic.sim.model.events import Delivered, Placed, ProtocolError
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.memory import Memory, Region
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver, MpaSender
from ddp_rnic.sim.model.sctp import (
    Association,
    Chunk,
    ChunkType,
    DataChunk,
    Function,
    InitChunk,
    Packet,
    Ppid,
    SctpEvent,
    SegmentReceived,
    Session,
    SessionControl,
    SessionIllegal,
    State,
)
from hypothesis import given
from hypothesis import strategies as st

STAG, TO = 0x1207, 0x10000
MESSAGES = st.binary(max_size=200)
MULPDUS = st.integers(19, 90)


def tagged(segments: list[bytes]) -> list[tuple[TaggedHeader, bytes]]:
    pairs = [decode_segment(segment) for segment in segments]
    return [(header, payload) for header, payload in pairs if isinstance(header, TaggedHeader)]


def untagged(segments: list[bytes]) -> list[tuple[UntaggedHeader, bytes]]:
    pairs = [decode_segment(segment) for segment in segments]
    return [(header, payload) for header, payload in pairs if isinstance(header, UntaggedHeader)]


def a_sink() -> DataSink:
    memory = Memory()
    memory.register(Region(stag=STAG, to=TO, length=300, pd=1))
    sink = DataSink(memory, pd=1)
    sink.post(0, 300, 4)
    return sink


# --- RFC 5041, the Data Source -------------------------------------------------------------------


@given(MESSAGES, MULPDUS)
def test_the_last_segment_alone_is_marked_and_is_the_last(message: bytes, mulpdu: int) -> None:
    """5041-4.1-3: "It MUST be set to one on the last DDP Segment of every DDP Message."

    5041-4.1-4: "It MUST NOT be set to one on any other DDP Segment."

    5041-4.1-5: "The DDP Segment with the L bit set to 1 MUST be posted to the LLP after all other
    DDP Segments of the associated DDP Message have been posted to the LLP."

    5041-4.1-6: "For an Untagged DDP Message, the DDP Segment with the L bit set to 1 MUST carry the
    highest MO."
    """
    source = DataSource(mulpdu)
    for segments in (source.tagged(STAG, TO, message), source.untagged(0, message)):
        assert [decode_segment(segment)[0].last for segment in segments] == (
            [False] * (len(segments) - 1) + [True]
        )
    offsets = [header.mo for header, _ in untagged(source.untagged(0, message))]
    assert offsets[-1] == max(offsets) and offsets.count(offsets[-1]) == 1


@given(MESSAGES, MULPDUS, st.integers(0, (1 << 8) - 1), st.integers(0, (1 << 40) - 1))
def test_the_segments_of_a_message_share_what_the_ulp_gave(
    message: bytes, mulpdu: int, tagged_ulp: int, untagged_ulp: int
) -> None:
    """5041-4.2-2 and 5041-4.3-2: "At the Data Source, DDP MUST set RsvdULP Field to the value
    specified by the ULP."

    5041-4.2-4 and 5041-4.3-4: "Each DDP Segment within a specific DDP Message MUST contain the same
    value for this field."

    5041-4.2-7: "At the Data Source, DDP MUST set the STag field to the value specified by the ULP."

    5041-4.2-9 and 5041-4.3-6: "[...] the same value for this field and MUST be the value supplied
    by the ULP at the Data Source."

    5041-4.2-5, 5041-4.2-10, 5041-4.3-7, 5041-4.3-12: "The Data Source MUST ensure that each DDP
    Segment within a specific DDP Message contains the same value for this field."

    5041-4.3-11, of the MSN: "Each DDP segment within a specific DDP message MUST contain the same
    value for this field."
    """
    source = DataSource(mulpdu)
    heads = tagged(source.tagged(STAG, TO, message, rsvdulp=tagged_ulp))
    assert {(header.stag, header.rsvdulp) for header, _ in heads} == {(STAG, tagged_ulp)}
    for msn in (1, 2):
        parts = untagged(source.untagged(3, message, rsvdulp=untagged_ulp))
        assert {(header.qn, header.msn, header.rsvdulp) for header, _ in parts} == {
            (3, msn, untagged_ulp)
        }


@given(MESSAGES, MULPDUS)
def test_a_segment_begins_with_a_sound_header(message: bytes, mulpdu: int) -> None:
    """5041-4.1-8: "This field MUST be set to zero on transmit".

    5041-4.1-9: "This field MUST be set to one to indicate the version of the specification".

    5041-4.1-10: "The value of DV MUST be the same for all the DDP Segments transmitted or received
    on a DDP Stream."

    5041-4.4-1: "Each DDP Segment MUST contain a DDP Header."
    """
    source = DataSource(mulpdu)
    for size, segments in (
        (14, source.tagged(STAG, TO, message)),
        (18, source.untagged(0, message)),
    ):
        assert all(segment[0] & 0x3F == 1 for segment in segments)
        assert b"".join(segment[size:] for segment in segments) == message


@given(MESSAGES, MULPDUS, st.integers(0, (1 << 64) - 300))
def test_offsets_count_from_the_messages_first_octet(message: bytes, mulpdu: int, to: int) -> None:
    """5041-4.3-13: "The MO referencing the first octet of the DDP Message MUST be set to zero by
    the DDP layer."

    5041-5.2-5: "[...] the MO MUST be set to the octet offset from the first octet in the associated
    ULP Message (which is defined to be zero) to the first octet in the ULP Payload contained in the
    DDP Segment."

    5041-5.2-7: "[...] the TO MUST be set to the octet offset [...], plus the TO assigned to the
    first octet in the associated ULP Message."

    5041-5.2-3: "At the Data Source, the DDP layer MUST send all the data contained in the ULP
    message."

    5041-5.3-3: "SHOULD transmit DDP Segments within a DDP Message in increasing MO order for
    Untagged DDP Messages, and in increasing TO order for Tagged DDP Messages."
    """
    source = DataSource(mulpdu)
    at = 0
    for head, payload in untagged(source.untagged(0, message)):
        assert head.mo == at and payload == message[at : at + len(payload)]
        at += len(payload)
    assert at == len(message)
    at = 0
    for part, payload in tagged(source.tagged(STAG, to, message)):
        assert part.to == to + at and payload == message[at : at + len(payload)]
        at += len(payload)
    assert at == len(message)


def test_a_message_of_2_32_octets_is_refused() -> None:
    """5041-5.2-2: "The ULP Message Length MUST be less than 2^32."."""

    class Long(bytes):
        def __len__(self) -> int:
            return 1 << 32

    for send in (
        lambda: DataSource(1500).tagged(STAG, TO, Long()),
        lambda: DataSource(1500).untagged(0, Long()),
    ):
        with pytest.raises(ValueError, match="must be less than 2.32, not 4294967296"):
            send()


def test_messages_leave_in_the_order_in_which_they_were_given() -> None:
    """5041-5.3-2, of the Data Source: "MUST transmit DDP Messages in the order they were submitted
    to the DDP layer".
    """
    source, sender = DataSource(40), MpaSender()
    given_to, sent = [], b""
    for number in range(12):
        message = bytes([number]) * (7 * number + 1)
        segments = (
            source.tagged(STAG, TO, message) if number % 3 else source.untagged(number % 2, message)
        )
        given_to.append(message)
        sent += b"".join(sender.send(segment) for segment in segments)
    seen, current = [], b""
    for frame in MpaReceiver().receive(sent):
        assert isinstance(frame, Fpdu)
        header, payload = decode_segment(frame.ulpdu)
        current += payload
        if header.last:
            seen.append(current)
            current = b""
    assert seen == given_to


# --- RFC 5041, the Data Sink ---------------------------------------------------------------------


@pytest.mark.parametrize("reserved", range(16))
def test_reserved_bits_change_nothing(reserved: int) -> None:
    """5041-4.1-8: "[...] and not checked on receive."."""
    for header in (
        TaggedHeader(STAG, TO, last=True, reserved=reserved),
        UntaggedHeader(0, 1, 0, last=True, reserved=reserved),
    ):
        placed, delivered = a_sink().receive(header.encode() + b"payload")
        assert isinstance(placed, Placed) and placed.length == 7
        assert isinstance(delivered, Delivered)


def test_delivery_names_the_stag() -> None:
    """5041-4.2-8: "At the Data Sink, the DDP MUST provide the STag field when the ULP Message is
    delivered."."""
    sink = a_sink()
    events = [e for s in DataSource(40).tagged(STAG, TO, bytes(99)) for e in sink.receive(s)]
    (delivered,) = [event for event in events if isinstance(event, Delivered)]
    assert isinstance(delivered.header, TaggedHeader) and delivered.header.stag == STAG


def test_segments_may_differ_in_rsvdulp() -> None:
    """5041-4.3-5: "At the Data Sink, the DDP implementation is NOT REQUIRED to verify that the same
    value is present in the RsvdULP field of each DDP Segment within a specific DDP Message and MAY
    provide the value from any one of the received DDP Segment to the ULP".
    """
    sink = a_sink()
    (first,) = sink.receive(UntaggedHeader(0, 1, 0, rsvdulp=0x1122334455).encode() + b"ab")
    assert isinstance(first, Placed)
    _, delivered = sink.receive(
        UntaggedHeader(0, 1, 2, last=True, rsvdulp=0x66778899AA).encode() + b"cd"
    )
    assert isinstance(delivered, Delivered)
    assert (delivered.message, delivered.header.rsvdulp) == (b"abcd", 0x66778899AA)


def test_messages_are_placed_and_delivered_over_the_wrap_of_the_msn() -> None:
    """5041-4.3-10: "The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF."."""
    sink = DataSink(Memory())
    sink.open_queue(0, first=0xFFFFFFFF)
    sink.post(0, 8, 3)
    early = [
        sink.receive(UntaggedHeader(0, msn, 0, last=True).encode() + bytes([msn]), 1 + msn)
        for msn in (1, 0)
    ]
    assert [[type(event) for event in events] for events in early] == [[Placed], [Placed]]
    last = sink.receive(UntaggedHeader(0, 0xFFFFFFFF, 0, last=True).encode() + b"\xff", 0)
    assert [event.message for event in last if isinstance(event, Delivered)] == [
        b"\xff",
        b"\0",
        b"\1",
    ]


# --- RFC 5043 ------------------------------------------------------------------------------------


def legal(events: list[SctpEvent]) -> bool:
    return not any(isinstance(event, SessionIllegal) for event in events)


def sessions(stream: int = 4) -> tuple[Session, Session]:
    """The two ends of a session that was accepted."""
    active, passive = Session(stream), Session(stream)
    assert legal(passive.receive(Ppid.CONTROL, active.control(Function.INITIATE)))
    assert legal(active.receive(Ppid.CONTROL, passive.control(Function.ACCEPT)))
    return active, passive


def test_ddp_ssns_count_the_chunks_of_a_stream() -> None:
    """5043-5.2.1-1: "The DDP-SSN MUST have the same value that the SCTP Stream Sequence Number
    (SSN) would have been assigned had ordered SCTP Payload Data Chunks been used".

    5043-6-1: "The DDP-SSNs assigned to the Data Chunks for a session MUST NOT have any gaps."

    RFC 9260 section 6.5: SSNs start at 0 for each stream, and 65535 is followed by 0.
    """
    active, _ = sessions(1)
    other, _ = sessions(2)
    for count in range(1, 70000):
        assert active.segment(b"x")[:2] == struct.pack(">H", count & 0xFFFF)
    assert other.segment(b"y")[:2] == b"\0\1"
    assert active.control(Function.TERMINATE)[:2] == struct.pack(">H", 70000 & 0xFFFF)


@pytest.mark.parametrize("length", [0, 1, 512])
@pytest.mark.parametrize("answer", [Function.ACCEPT, Function.REJECT])
def test_private_data_reaches_the_ulp(answer: Function, length: int) -> None:
    """5043-5.2.3-1: "ULP-supplied Private Data MUST be included for DDP Stream Session Initiate,
    DDP Stream Session Accept, and DDP Stream Session Reject messages."

    5043-5.2.3-2: "However, the ULP supplied Private DATA MAY be of zero length."

    5043-5.2.3-6: "If reported, any supplied Private Data MUST be available for the ULP to examine."
    """
    active, passive = Session(4), Session(4)
    please, reply = b"\x11" * length, b"\x22" * length
    assert passive.receive(Ppid.CONTROL, active.control(Function.INITIATE, please)) == [
        SessionControl(4, 0, Function.INITIATE, please)
    ]
    assert active.receive(Ppid.CONTROL, passive.control(answer, reply)) == [
        SessionControl(4, 0, answer, reply)
    ]


def test_a_session_that_nobody_terminated_has_not_ended() -> None:
    """5043-6.2-2: "At least one side MUST send a DDP Stream Terminate."."""
    active, passive = sessions()
    with pytest.raises(ProtocolError, match="Initiate must not be sent"):
        active.control(Function.INITIATE)
    assert not legal(passive.receive(Ppid.CONTROL, Session(4).control(Function.INITIATE)))
    active, passive = sessions()
    assert legal(active.receive(Ppid.CONTROL, passive.control(Function.TERMINATE)))
    active.acknowledge()
    assert legal(passive.receive(Ppid.CONTROL, active.control(Function.INITIATE)))


def test_an_initiate_waits_for_the_ulp() -> None:
    """5043-6.3-3: "A DDP Stream Session Reject message MUST NOT be sent unless the rejection is at
    the direction of the ULP."

    5043-6.4-1: "Acceptance or rejection of DDP Stream Session Initiate messages SHOULD be under the
    control of the ULP."

    5043-6.4-2: "This MAY require passing an event to the ULP."
    """
    for answer in (Function.ACCEPT, Function.REJECT):
        passive = Session(4)
        (event,) = passive.receive(Ppid.CONTROL, Session(4).control(Function.INITIATE))
        assert isinstance(event, SessionControl) and event.function is Function.INITIATE
        assert passive.state is State.INITIATE_RECEIVED
        # The first chunk that this side sends is the ULP's answer.
        assert passive.control(answer) == struct.pack(">HH", 0, answer)


def test_the_active_side_sends_no_segment_before_the_answer() -> None:
    """5043-6.6-2: "An active side of a DDP Stream Session MUST NOT send a DDP Segment that might be
    received before the DDP Stream Session Initiate message."

    5043-6.6-3: "This MAY be determined by [...] receipt of a responsive DDP Stream Session Control
    message."
    """
    active, passive = Session(4), Session(4)
    passive.receive(Ppid.CONTROL, active.control(Function.INITIATE))
    with pytest.raises(ProtocolError, match="must not be sent while the session is INITIATE_SENT"):
        active.segment(b"early")
    active.receive(Ppid.CONTROL, passive.control(Function.ACCEPT))
    assert active.segment(b"now") == b"\0\1now"


def test_a_stream_is_not_reused_while_a_chunk_is_outstanding() -> None:
    """5043-6.6-4: "A DDP Stream Identifier MUST NOT be reused for another DDP Stream Session while
    any Data Chunk from a prior session might be outstanding."."""
    active, passive = sessions()
    first, second = active.segment(b"first"), active.segment(b"second")
    active.receive(Ppid.CONTROL, passive.control(Function.TERMINATE))
    passive.receive(Ppid.SEGMENT, second)
    with pytest.raises(ProtocolError, match="Initiate must not be sent"):
        passive.control(Function.INITIATE)
    passive.receive(Ppid.SEGMENT, first)
    # Nor may the stream be reused while a chunk of this side may be outstanding.
    passive.acknowledge(0)
    with pytest.raises(ProtocolError, match="1 Data Chunks .* not acknowledged"):
        passive.control(Function.INITIATE)
    passive.acknowledge(1)
    assert passive.control(Function.INITIATE) == struct.pack(">HH", 0, Function.INITIATE)


def test_the_order_of_segments_is_not_that_of_their_tsns() -> None:
    """5043-10-2: "Because DDP employs unordered SCTP delivery, the receiver MUST NOT rely upon the
    SCTP Transmission Sequence Number (TSN) to imply ordering of DDP Segments."

    5041-3-6: "The LLP MAY provide the incoming segments out of order for Placement, but if it does,
    it MUST also provide information that specifies what the sender-specified order was."
    """
    active, passive = Association(), Association()

    def to_passive(tag: int, *chunks: Chunk | DataChunk | InitChunk) -> list[SctpEvent]:
        octets = Packet(1, 2, tag, chunks).encode()
        active.observe(octets)
        return passive.receive(octets)

    ddp = ((0xC006, bytes.fromhex("00000001")),)
    to_passive(0, InitChunk(0xA, 100, 1, 1, parameters=ddp))
    passive.observe(
        Packet(2, 1, 0xA, (InitChunk(0xB, 500, 1, 1, parameters=ddp, acknowledges=True),)).encode()
    )
    to_passive(0xB, Chunk(ChunkType.COOKIE_ECHO))
    sender = Session(0)
    to_passive(0xB, DataChunk(100, 0, Ppid.CONTROL, sender.control(Function.INITIATE)))
    sender.receive(Ppid.CONTROL, passive.session(0).control(Function.ACCEPT))
    # Submitted as a message of three segments, given TSNs from the last one back.
    message = bytes(range(60))
    chunks = [sender.segment(segment) for segment in DataSource(38).untagged(0, message)]
    sink = DataSink(Memory(), first=1)
    sink.post(0, 100)
    results = []
    for tsn, chunk in enumerate(reversed(chunks), 101):
        (event,) = to_passive(0xB, DataChunk(tsn, 0, Ppid.SEGMENT, chunk))
        assert isinstance(event, SegmentReceived) and event.order == 104 - tsn
        results += sink.receive(event.segment, event.order)
    assert [type(result) for result in results] == [Placed, Placed, Placed, Delivered]
    assert isinstance(results[-1], Delivered) and results[-1].message == message
