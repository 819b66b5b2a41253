"""RFC 9260: packets. RFC 5043: DDP-SSNs, legal sequences, associations."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import google_crc32c
import pytest
from ddp_rnic.sim.model.events import ProtocolError
from ddp_rnic.sim.model.sctp import (
    Association,
    Chunk,
    ChunkType,
    DataChunk,
    Discarded,
    Function,
    InitChunk,
    Packet,
    Ppid,
    SackChunk,
    SctpEvent,
    SegmentReceived,
    Sequencer,
    Session,
    SessionControl,
    SessionIllegal,
    SessionRefused,
    State,
    bundle,
    maximum_segment,
)
from hypothesis import given, settings
from hypothesis import strategies as st

INITIATE, ACCEPT, REJECT, TERMINATE, *ENHANCED = Function
ENHANCED_INITIATE, ENHANCED_ACCEPT, ENHANCED_REJECT = ENHANCED
CONTROL, SEGMENT = Ppid.CONTROL, Ppid.SEGMENT


# --- packets -------------------------------------------------------------------------------------


def test_the_checksum_is_crc32c_lowest_octet_first() -> None:
    """RFC 9260 appendix A, with zeros where the checksum goes."""
    octets = Packet(1, 2, 3, (Chunk(ChunkType.COOKIE_ACK),)).encode()
    zeroed = octets[:8] + bytes(4) + octets[12:]
    assert octets[8:12] == struct.pack("<I", google_crc32c.value(zeroed))


def test_a_data_chunk_octet_by_octet() -> None:
    """RFC 9260 section 3.3.1, unordered and whole; the length leaves out the padding."""
    chunk = DataChunk(0x01020304, 5, SEGMENT, b"abcde")
    header = bytes.fromhex("00 07 0015 01020304 0005 0000 00000010")
    assert chunk.encode() == header + b"abcde\0\0\0"


def test_the_adaptation_indication_octet_by_octet() -> None:
    """RFC 5043 section 5.1."""
    init = InitChunk(1, 2, 3, 3, parameters=((0xC006, bytes.fromhex("00000001")),))
    assert init.encode()[20:] == bytes.fromhex("c006 0008 00000001")
    assert init.adaptation == 1


@pytest.mark.parametrize("kind", [0x0005, 0x000C, 0x8000, 0x8123, 0xC000, 0xFFFF])
def test_the_adaptation_indication_may_follow_other_parameters(kind: int) -> None:
    init = InitChunk(1, 2, 3, 3, parameters=((kind, b"abcd"), (0xC006, bytes(3) + b"\1")))
    assert init.adaptation == 1


@pytest.mark.parametrize("kind", [0x0123, 0x7FFF, 0x4000])
def test_no_parameter_counts_after_one_that_asks_to_stop(kind: int) -> None:
    """RFC 9260 section 3.2.1: "do not process any further parameters within this chunk"."""
    init = InitChunk(1, 2, 3, 3, parameters=((kind, b"abcd"), (0xC006, bytes(3) + b"\1")))
    assert init.adaptation is None


NUMBER, SHORT = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 16) - 1)
CHUNKS = st.one_of(
    st.builds(Chunk, st.integers(4, 14), st.integers(0, 255), st.binary(max_size=30)),
    st.builds(
        DataChunk,
        NUMBER,
        SHORT,
        NUMBER,
        st.binary(min_size=1, max_size=60),
        SHORT,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        InitChunk,
        NUMBER,
        NUMBER,
        SHORT,
        SHORT,
        NUMBER,
        st.lists(st.tuples(SHORT, st.binary(max_size=9)), max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(
        SackChunk,
        NUMBER,
        NUMBER,
        st.lists(st.tuples(SHORT, SHORT), max_size=3).map(tuple),
        st.lists(NUMBER, max_size=3).map(tuple),
    ),
)
PACKETS = st.builds(Packet, SHORT, SHORT, NUMBER, st.lists(CHUNKS, max_size=4).map(tuple))


@given(PACKETS)
def test_a_packet_survives(packet: Packet) -> None:
    assert Packet.parse(packet.encode()) == packet


@given(PACKETS, st.data())
def test_any_flipped_bit_is_a_checksum_error(packet: Packet, data: st.DataObject) -> None:
    octets = bytearray(packet.encode())
    bit = data.draw(st.integers(0, 8 * len(octets) - 1))
    octets[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError, match="checksum must be"):
        Packet.parse(bytes(octets))


def test_scapy_reads_what_the_model_writes() -> None:
    sctp = pytest.importorskip("scapy.layers.sctp", reason="needs scapy")
    init = InitChunk(11, 22, 3, 4, 5555, parameters=((0xC006, bytes.fromhex("00000001")),))
    chunks = (
        DataChunk(100, 1, SEGMENT, b"first"),
        DataChunk(101, 2, CONTROL, b"second!!"),
        SackChunk(99, 1000, ((2, 3),), (98,)),
    )
    parsed = sctp.SCTP(Packet(5000, 6000, 0, (init,)).encode())
    assert (parsed.sport, parsed.dport, parsed.tag) == (5000, 6000, 0)
    first = parsed[sctp.SCTPChunkInit]
    assert (
        first.init_tag,
        first.init_tsn,
        first.n_out_streams,
        first.n_in_streams,
        first.a_rwnd,
    ) == (11, 22, 3, 4, 5555)
    assert first.params[0].indication == 1
    octets = Packet(5000, 6000, 77, chunks).encode()
    parsed = sctp.SCTP(octets)
    data = parsed[sctp.SCTPChunkData]
    assert (data.tsn, data.stream_id, data.proto_id, bytes(data.data)) == (100, 1, 16, b"first")
    assert (data.unordered, data.beginning, data.ending) == (1, 1, 1)
    more = data.payload[sctp.SCTPChunkData]
    assert (more.tsn, more.stream_id, more.proto_id, bytes(more.data)) == (101, 2, 17, b"second!!")
    sack = parsed[sctp.SCTPChunkSACK]
    assert (sack.cumul_tsn_ack, sack.n_gap_ack, sack.n_dup_tsn) == (99, 1, 1)
    del parsed.chksum
    assert bytes(parsed) == octets, "Scapy computes the same checksum"


@pytest.mark.parametrize(
    "octets",
    [
        bytes.fromhex("00070003"),
        bytes.fromhex("0007 0011 00000000 00000000 00000000"),
        bytes.fromhex("0007 0010 00000000 00000000 00000010"),
        bytes.fromhex("0100 0008 00000000"),
        bytes.fromhex("0300 0010 00000000 00000000 00010000"),
        b"\0\0",
    ],
)
def test_a_malformed_chunk_is_refused(octets: bytes) -> None:
    header = struct.pack(">HHII", 1, 2, 3, 0)
    digest = struct.pack("<I", google_crc32c.value(header + octets))
    with pytest.raises(ProtocolError, match="must"):
        Packet.parse(header[:8] + digest + octets)


@given(st.lists(st.integers(1, 900), max_size=20))
def test_bundles_keep_the_order_and_the_mtu(sizes: list[int]) -> None:
    chunks = [DataChunk(i, 0, SEGMENT, bytes(size)) for i, size in enumerate(sizes)]
    bundles = bundle(chunks, 1000)
    assert [chunk for packet in bundles for chunk in packet] == chunks
    assert all(len(Packet(1, 2, 3, packet).encode()) <= 980 for packet in bundles)


@pytest.mark.parametrize("ip", [20, 40, 28])
@pytest.mark.parametrize("mtu", [576, 1280, 1500, 1501, 1502, 1503, 9000, 65535])
def test_the_longest_segment_fits_a_packet(mtu: int, ip: int) -> None:
    """RFC 5043 section 9: "the largest value that can be supported without use of IP or SCTP
    fragmentation, or 516 bytes, whichever is larger". RFC 9260 section 3.2: a chunk is padded to
    four octets.
    """

    def packet(segment: int) -> int:
        chunk = DataChunk(0, 0, SEGMENT, bytes(2 + segment))
        return ip + len(Packet(1, 2, 3, (chunk,)).encode())

    longest = maximum_segment(mtu, ip=ip)
    assert longest == 516 or packet(longest) <= mtu
    assert packet(longest + 1) > mtu


def test_a_segment_past_the_maximum_is_refused() -> None:
    """Section 9: "The SCTP adaptation layer MUST reject DDP Segments that are larger than the
    maximum size specified."
    """
    assert Packet(1, 2, 3, (DataChunk(0, 0, SEGMENT, bytes(2 + Session(0).maximum)),)).encode()
    assert maximum_segment(500) == 516
    with pytest.raises(ValueError, match="at most 516 octets, not 517"):
        Session(0, maximum=516).segment(bytes(517))


# --- DDP-SSN -------------------------------------------------------------------------------------


def test_ddp_ssns_wrap_and_the_window_is_32767() -> None:
    sequencer = Sequencer()
    for order in range(70000):
        assert sequencer.order(order & 0xFFFF) == order
        assert list(sequencer.take(order)) == [order]
    ssn = 70000 & 0xFFFF
    assert sequencer.order((ssn + 32766) & 0xFFFF) == 70000 + 32766
    assert sequencer.order((ssn + 32767) & 0xFFFF) is None
    assert sequencer.order((ssn - 1) & 0xFFFF) is None


@given(st.permutations(range(12)))
def test_sequence_comes_out_of_any_order(arrivals: list[int]) -> None:
    sequencer = Sequencer()
    out: list[int] = []
    for order in arrivals:
        assert sequencer.order(order) == order
        out += sequencer.take(order)
        assert order < sequencer.next or sequencer.order(order) is None
    assert out == list(range(12))


# --- legal sequences -----------------------------------------------------------------------------


def control(ssn: int, function: int, private_data: bytes = b"") -> bytes:
    return struct.pack(">HH", ssn, function) + private_data


def segment(ssn: int, octets: bytes = b"segment") -> bytes:
    return struct.pack(">H", ssn) + octets


def segments(events: list[SctpEvent]) -> list[int]:
    return [event.order for event in events if isinstance(event, SegmentReceived)]


def illegal(events: list[SctpEvent]) -> bool:
    return any(isinstance(event, SessionIllegal) for event in events)


def an_active_session() -> Session:
    session = Session(4)
    session.control(INITIATE)
    assert not illegal(session.receive(CONTROL, control(0, ACCEPT)))
    return session


def a_passive_session() -> Session:
    session = Session(4)
    assert not illegal(session.receive(CONTROL, control(0, INITIATE)))
    session.control(ACCEPT)
    return session


def test_accepted_session() -> None:
    """Section 6.2, both ends against each other, twice on one stream."""
    active, passive = Session(4), Session(4)
    for number in (0, 1):
        assert passive.receive(CONTROL, active.control(INITIATE, b"please")) == [
            SessionControl(4, number, INITIATE, b"please")
        ]
        assert active.receive(CONTROL, passive.control(ACCEPT, b"welcome")) == [
            SessionControl(4, number, ACCEPT, b"welcome")
        ]
        for order in (1, 2):
            assert passive.receive(SEGMENT, active.segment(b"to")) == [
                SegmentReceived(4, number, order, b"to")
            ]
            assert active.receive(SEGMENT, passive.segment(b"fro")) == [
                SegmentReceived(4, number, order, b"fro")
            ]
        ends = [active, passive] if number else [passive, active]
        active.acknowledge(0, 1, 2)
        assert ends[1].receive(CONTROL, ends[0].control(TERMINATE)) == [
            SessionControl(4, number, TERMINATE, b"")
        ]
        # The side that received the Terminate may still send its Segments, and need not send one
        # itself.
        assert segments(ends[0].receive(SEGMENT, ends[1].segment(b"last"))) == [3]
        active.acknowledge()
        if number:
            assert not illegal(ends[0].receive(CONTROL, ends[1].control(TERMINATE)))
            assert (active.state, passive.state) == (State.CLOSED, State.CLOSED)


@pytest.mark.parametrize("answer", [REJECT, TERMINATE])
def test_refused_session(answer: Function) -> None:
    """Sections 6.3 and 6.4."""
    active, passive = Session(4), Session(4)
    for number in (0, 1):
        passive.receive(CONTROL, active.control(INITIATE))
        payload = passive.control(answer, b"" if answer is TERMINATE else b"busy")
        (event,) = active.receive(CONTROL, payload)
        assert isinstance(event, SessionControl) and event.session == number
        assert (active.state, passive.state) == (State.CLOSED, State.CLOSED)
        active.acknowledge(0)


MESSAGES = {
    INITIATE: (CONTROL, control(1, 1)),
    ACCEPT: (CONTROL, control(1, 2)),
    REJECT: (CONTROL, control(1, 3)),
    TERMINATE: (CONTROL, control(1, 4)),
    ENHANCED_INITIATE: (CONTROL, control(1, 5)),
    ENHANCED_ACCEPT: (CONTROL, control(1, 6)),
    ENHANCED_REJECT: (CONTROL, control(1, 7)),
    None: (SEGMENT, segment(1)),
}
#: The answers that fit each Initiate (RFC 5043 sections 6.2 to 6.4, RFC 6581 section 7).
ANSWERS = {
    INITIATE: (ACCEPT, REJECT, TERMINATE),
    ENHANCED_INITIATE: (ENHANCED_ACCEPT, ENHANCED_REJECT, REJECT, TERMINATE),
}
LIMITS = bytes.fromhex("8004 0002")  # IRD and ORD, RFC 6581 section 9


def private_of(message: Function) -> bytes:
    """Returns the least Private Data of a message."""
    return LIMITS if message in (ENHANCED_INITIATE, ENHANCED_ACCEPT) else b""


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("passive", [False, True])
def test_in_an_established_session_only_segments_and_terminate_are_legal(
    message: Function | None,
    passive: bool,
) -> None:
    session = a_passive_session() if passive else an_active_session()
    events = session.receive(*MESSAGES[message])
    assert illegal(events) == (message not in (TERMINATE, None))
    if illegal(events):
        # 6.1: "the DDP Stream Session MUST be terminated."
        assert session.receive(SEGMENT, segment(2)) == []
        assert session.control(TERMINATE) == control(1, 4)
        assert not illegal(session.receive(CONTROL, control(0, INITIATE)))
        assert (session.state, session.number) == (State.INITIATE_RECEIVED, 1)


@pytest.mark.parametrize(
    "message", [ACCEPT, REJECT, TERMINATE, ENHANCED_ACCEPT, ENHANCED_REJECT, None]
)
def test_nothing_but_initiate_begins_a_session(message: Function | None) -> None:
    ppid, payload = MESSAGES[message]
    assert illegal(Session(4).receive(ppid, b"\0\0" + payload[2:]))
    session = Session(4)
    with pytest.raises(ProtocolError, match="must not be sent while the session is CLOSED"):
        if message is None:
            session.segment(b"")
        else:
            session.control(message, private_of(message))


@pytest.mark.parametrize("answer", Function)
@pytest.mark.parametrize("initiate", ANSWERS)
def test_an_answer_fits_the_initiate(initiate: Function, answer: Function) -> None:
    """RFC 6581 section 7: "Enhanced Active/Passive Session Accepted: as with Section 6.2 of
    [RFC5043], but with the extended opcodes as defined in this document", and likewise rejected
    and non-ULP rejected sessions.
    """
    active, passive = Session(4), Session(4)
    fits = answer in ANSWERS[initiate]
    opening = active.control(initiate, private_of(initiate))
    assert not illegal(passive.receive(CONTROL, opening))
    for session in (active, passive):
        assert session.enhanced == (initiate is ENHANCED_INITIATE)
    if fits:
        payload = passive.control(answer, private_of(answer))
        assert not illegal(active.receive(CONTROL, payload))
        accepted = answer in (ACCEPT, ENHANCED_ACCEPT)
        state = State.ESTABLISHED if accepted else State.CLOSED
        assert (active.state, passive.state) == (state, state)
        if accepted:
            # "MUST use the DDP stream session termination function code to terminate a stream
            # established using enhanced DDP stream session function codes."
            assert not illegal(passive.receive(CONTROL, active.control(TERMINATE)))
            assert (active.state, passive.state) == (State.TERMINATE_SENT, State.TERMINATE_RECEIVED)
    else:
        with pytest.raises(ProtocolError, match="must not be sent"):
            passive.control(answer, private_of(answer))
        (event,) = active.receive(CONTROL, control(0, answer, private_of(answer)))
        assert isinstance(event, SessionIllegal) and "must not be received" in event.reason
        assert active.state is State.ABORTED


def test_an_enhanced_session_does_not_make_the_next_one_enhanced() -> None:
    """RFC 6581 section 7: "The enhanced DDP stream session establishment follows the same rules as
    the standard DDP stream session establishment as defined in [RFC5043]."
    """
    active, passive = Session(4), Session(4)
    for initiate in (ENHANCED_INITIATE, INITIATE, ENHANCED_INITIATE):
        passive.receive(CONTROL, active.control(initiate, private_of(initiate)))
        accept = ANSWERS[initiate][0]
        payload = passive.control(accept, private_of(accept))
        (event,) = active.receive(CONTROL, payload)
        assert event == SessionControl(4, active.number, accept, private_of(accept))
        for one, other in ((active, passive), (passive, active)):
            assert not illegal(other.receive(CONTROL, one.control(TERMINATE)))
        active.acknowledge()
        passive.acknowledge()


@pytest.mark.parametrize("function", ENHANCED)
@pytest.mark.parametrize("length", [0, 3, 4, 512, 513])
def test_private_data_of_an_enhanced_message_follows_ird_and_ord(
    function: Function, length: int
) -> None:
    """RFC 6581 section 7: "Private Data [...] MUST follow the enhanced RDMA connection
    establishment data in the DDP Stream Session Initiate and the Enhanced DDP Stream Session Accept
    messages. Private Data length MUST NOT exceed 512 bytes in any message, including enhanced RDMA
    connection establishment data."

    A message with fewer octets is reported all the same: "any supplied Private Data MUST be
    available for the ULP to examine".
    """
    sender, receiver = Session(4), Session(4)
    if function is not ENHANCED_INITIATE:
        sender.receive(CONTROL, receiver.control(ENHANCED_INITIATE, LIMITS))
    private = bytes(length)
    if length > 512:
        with pytest.raises(ValueError, match="at most 512 octets, not 513"):
            sender.control(function, private)
    elif length < 4 and function is not ENHANCED_REJECT:
        with pytest.raises(ValueError, match=r"must begin with the 4 octets of IRD and ORD"):
            sender.control(function, private)
    else:
        assert sender.control(function, private) == control(0, function, private)
    events = receiver.receive(CONTROL, control(0, function, private))
    assert illegal(events) == (length > 512)
    if length <= 512:
        assert events == [SessionControl(4, 0, function, private)]


def test_two_initiates_are_illegal() -> None:
    session = Session(4)
    session.control(INITIATE)
    assert illegal(session.receive(CONTROL, control(0, INITIATE)))


def test_a_segment_before_the_accept_was_sent_is_illegal() -> None:
    """6.2: "Each side may then send"; 6.3: "a single non-payload message"."""
    session = Session(4)
    session.receive(CONTROL, control(0, INITIATE))
    assert illegal(session.receive(SEGMENT, segment(1)))


def test_segments_that_overtake_the_accept_wait_for_it() -> None:
    session = Session(4)
    session.control(INITIATE)
    assert session.receive(SEGMENT, segment(2)) == []
    assert session.receive(SEGMENT, segment(1)) == []
    events = session.receive(CONTROL, control(0, ACCEPT))
    assert segments(events) == [2, 1]
    assert segments(session.receive(SEGMENT, segment(3))) == [3]


def test_segments_that_overtake_a_reject_are_illegal_and_not_handed_over() -> None:
    session = Session(4)
    session.control(INITIATE)
    session.receive(SEGMENT, segment(1))
    events = session.receive(CONTROL, control(0, REJECT))
    assert illegal(events) and not segments(events)


def test_a_terminate_takes_effect_in_its_order() -> None:
    session = an_active_session()
    assert session.receive(CONTROL, control(3, TERMINATE)) == []
    assert segments(session.receive(SEGMENT, segment(2))) == [2]
    assert session.state is State.ESTABLISHED
    events = session.receive(SEGMENT, segment(1))
    assert segments(events) == [1]
    assert events[-1] == SessionControl(4, 0, TERMINATE, b"")


def test_a_segment_after_the_terminate_is_illegal() -> None:
    session = an_active_session()
    session.receive(CONTROL, control(1, TERMINATE))
    assert illegal(session.receive(SEGMENT, segment(2)))


LATE = {"segment": (SEGMENT, segment(4)), "terminate": (CONTROL, control(4, TERMINATE))}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("terminate_first", [False, True])
def test_nothing_follows_a_terminate_in_whatever_order_they_come(
    late: str, gap: bool, terminate_first: bool
) -> None:
    """Section 6.2: "The final User Data Chunk for each side MAY be a DDP Stream Terminate."

    Section 6.1: "If the adaptation layer receives a Payload Data Chunk that conforms to none of the
    enumerated legal patterns, the DDP Stream Session MUST be terminated."
    """
    session = an_active_session()
    if not gap:
        session.receive(SEGMENT, segment(1))
    session.receive(SEGMENT, segment(2))
    pair = [(CONTROL, control(3, TERMINATE)), LATE[late]]
    first, second = pair if terminate_first else pair[::-1]
    assert not illegal(session.receive(*first))
    # The second message is not placed, and the missing Segment is not waited for.
    (event,) = session.receive(*second)
    assert isinstance(event, SessionIllegal) and "Terminate" in event.reason
    assert session.state is State.ABORTED
    assert session.receive(SEGMENT, segment(1)) == []


@pytest.mark.parametrize("refusal", [REJECT, TERMINATE])
@pytest.mark.parametrize("follower", [(SEGMENT, segment(2)), (CONTROL, control(1, TERMINATE))])
@pytest.mark.parametrize("refusal_first", [False, True])
def test_nothing_follows_a_refusal_in_whatever_order_they_come(
    refusal: Function, follower: tuple[Ppid, bytes], refusal_first: bool
) -> None:
    """Section 6.3: "Active side sends a DDP Stream Session Initiate message. Passive side sends a
    DDP Stream Session Reject message.", and nothing else; section 6.4 likewise.
    """
    session = Session(4)
    session.control(INITIATE)
    pair = [(CONTROL, control(0, refusal)), follower]
    first, second = pair if refusal_first else pair[::-1]
    events = session.receive(*first) + session.receive(*second)
    assert [type(event) for event in events] == [SessionControl, SessionIllegal]


@pytest.mark.parametrize("message", [INITIATE, ACCEPT, REJECT, *ENHANCED])
@pytest.mark.parametrize("opens", [an_active_session, a_passive_session])
def test_what_opens_a_session_or_answers_that_is_illegal_before_its_turn(
    message: Function, opens: Callable[[], Session]
) -> None:
    """Sections 6.2 to 6.4 have an Initiate, an Accept and a Reject only as the first message of a
    side.

    Whatever arrives before, no pattern has such a message at a later place.
    """
    assert illegal(opens().receive(CONTROL, control(7, message)))


@pytest.mark.parametrize("message", [TERMINATE, None])
def test_nothing_is_received_before_this_end_has_accepted(message: Function | None) -> None:
    """Section 6.2: "Passive side sends a DDP Stream Session Accept message. Each side may then send
    zero or more DDP Segments". A gap before the chunk does not make it legal.
    """
    session = Session(4)
    session.receive(CONTROL, control(0, INITIATE))
    ppid, payload = MESSAGES[message]
    assert illegal(session.receive(ppid, struct.pack(">H", 2) + payload[2:]))


def test_an_initiate_inside_a_session_ends_it_and_opens_none() -> None:
    """Section 6.1: "all sessions MUST conform to one of the patterns defined in this section": none
    of them has a second Initiate before the session has ended.
    """
    for begin in (an_active_session, a_passive_session):
        for ssn in (0, 1, 2):
            session = begin()
            (event,) = session.receive(CONTROL, control(ssn, INITIATE))
            assert isinstance(event, SessionIllegal) and event.session == 0
            assert (session.state, session.number) == (State.ABORTED, 0)
    session = Session(4)
    session.receive(CONTROL, control(0, INITIATE))
    assert illegal(session.receive(CONTROL, control(0, INITIATE))) and session.number == 0


def test_an_initiate_opens_no_session_while_the_last_one_has_a_gap() -> None:
    """Section 6.6: "A DDP Stream Identifier MUST NOT be reused for another DDP Stream Session while
    any Data Chunk from a prior session might be outstanding."
    """
    session = an_active_session()
    session.receive(SEGMENT, segment(2))
    session.control(TERMINATE)
    (event,) = session.receive(CONTROL, control(0, INITIATE))
    assert isinstance(event, SessionIllegal) and session.number == 0


@pytest.mark.parametrize("state", ["open", "after a Terminate"])
def test_another_chunk_with_a_used_ddp_ssn_ends_the_session(state: str) -> None:
    """Section 6.2: "zero or more DDP Segments with increasing DDP-SSNs".

    A chunk that the network repeats has the same TSN, and is not passed to the session.
    """
    session = an_active_session()
    for order in (1, 2):
        session.receive(SEGMENT, segment(order))
    if state != "open":
        session.receive(CONTROL, control(3, TERMINATE))
    (event,) = session.receive(SEGMENT, segment(1, b"another"))
    assert isinstance(event, SessionIllegal) and "used before" in event.reason


def test_an_ordered_initiate_opens_no_session() -> None:
    """Section 10: "The adaptation layer MUST use the Unordered option on all Data Chunks"."""
    session = Session(4)
    assert illegal(session.receive(CONTROL, control(0, INITIATE), unordered=False))
    assert session.receive(CONTROL, control(0, INITIATE), unordered=False) == []
    assert (session.state, session.number) == (State.ABORTED, -1)


def test_a_stream_is_not_used_again_before_all_of_this_side_is_acknowledged() -> None:
    """Section 6.6: "A DDP Stream Identifier MUST NOT be reused for another DDP Stream Session while
    any Data Chunk from a prior session might be outstanding."
    """
    for illegal_chunk in (False, True):
        session = an_active_session()
        session.segment(b"outstanding")
        if illegal_chunk:
            session.receive(SEGMENT, segment(1), unordered=False)
        session.control(TERMINATE)
        session.acknowledge(0, 2)
        with pytest.raises(ProtocolError, match=r"1 Data Chunks .* not acknowledged"):
            session.control(INITIATE)
        session.acknowledge(1)
        assert session.control(INITIATE) == control(0, INITIATE)


@pytest.mark.parametrize(
    ("ppid", "payload", "unordered", "why"),
    [
        (SEGMENT, segment(0), True, "used before"),
        (SEGMENT, segment(1 + 32767), True, "out of the window"),
        (SEGMENT, segment(1), False, "Unordered"),
        (15, segment(1), True, "PPID 15"),
        (0, segment(1), True, "PPID 0"),
        (SEGMENT, b"\0", True, "with 1 octets"),
        (CONTROL, control(1, 4)[:3], True, "with 3 octets"),
        (CONTROL, control(1, 8), True, "not 8"),
        (CONTROL, control(1, 0), True, "not 0"),
        (CONTROL, control(1, 4, b"x"), True, "Terminate must not have 1 octets"),
        (CONTROL, control(1, 2, bytes(513)), True, "Accept must not have 513 octets"),
        (CONTROL, control(1, 6, bytes(513)), True, "Enhanced Accept must not have 513 octets"),
    ],
)
def test_a_chunk_that_fits_no_pattern_terminates(
    ppid: int,
    payload: bytes,
    unordered: bool,
    why: str,
) -> None:
    """Section 6.1: "If the adaptation layer receives a Payload Data Chunk that conforms to none of
    the enumerated legal patterns, the DDP Stream Session MUST be terminated."
    """
    session = an_active_session()
    (event,) = session.receive(ppid, payload, unordered=unordered)
    assert isinstance(event, SessionIllegal) and why in event.reason
    assert session.state is State.ABORTED
    assert session.receive(SEGMENT, segment(1)) == []


def test_private_data_has_its_limits_on_transmit() -> None:
    """5.2.3: "MUST NOT exceed 512 bytes"; "MUST NOT be included in the [...] Terminate message"."""
    assert len(Session(4).control(INITIATE, bytes(512))) == 516
    with pytest.raises(ValueError, match="at most 512 octets, not 513"):
        Session(4).control(INITIATE, bytes(513))
    with pytest.raises(ValueError, match="must not be included in a Terminate"):
        an_active_session().control(TERMINATE, b"x")


def test_every_sequence_of_four_messages_is_judged_by_the_patterns() -> None:
    """Compares every possible sequence with sections 6.2 to 6.4 and RFC 6581 section 7, which are
    written here as sequences.
    """

    def legal(sequence: tuple[tuple[bool, Function | None], ...]) -> bool:
        initiate = sequence[0][1]
        assert initiate is not None
        if len(sequence) == 1:
            return True
        if sequence[1] in [(False, refusal) for refusal in ANSWERS[initiate][1:]]:
            return len(sequence) == 2
        if sequence[1] != (False, ANSWERS[initiate][0]):
            return False
        for way in (True, False):
            mine = [message for sent, message in sequence[2:] if sent == way]
            if any(message not in (None, TERMINATE) for message in mine):
                return False
            if TERMINATE in mine[:-1]:
                return False
        return True

    def follows(session: Session, sequence: tuple[tuple[bool, Function | None], ...]) -> bool:
        orders = {True: 0, False: 0}
        for sent, message in sequence:
            ssn, orders[sent] = orders[sent], orders[sent] + 1
            ppid, payload = MESSAGES[message]
            payload = struct.pack(">H", ssn) + payload[2:]
            if illegal((session.observe if sent else session.receive)(ppid, payload)):
                return False
        return True

    alphabet = list(product((True, False), (*Function, None)))
    ends = REJECT, ENHANCED_REJECT, TERMINATE
    for length, initiate in product((1, 2, 3, 4), ANSWERS):
        for rest in product(alphabet, repeat=length - 1):
            sequence = ((True, initiate), *rest)  # this end is the active one
            ended = [
                i
                for i in range(1, length + 1)
                if i > 1 and legal(sequence[:i]) and sequence[i - 1][1] in ends
            ]
            if any(message in ANSWERS for _, message in rest) and ended:
                continue  # a next session: tested above
            assert follows(Session(4), sequence) == legal(sequence), sequence


@settings(max_examples=500)
@given(st.data())
def test_a_sequence_is_judged_alike_in_whatever_order_it_comes(data: st.DataObject) -> None:
    """Section 6.1: "The normative sequence for considering Payload Data Chunks within a given
    session is based upon each Data Chunk's DDP-SSN", and not on their arrival.
    """
    initiate = data.draw(st.sampled_from([*ANSWERS]))
    accept, *refusals = ANSWERS[initiate]
    rest = st.sampled_from([None] * 12 + [TERMINATE] * 3 + [*Function])
    answers = [message for message in Function if message not in ANSWERS]
    first = data.draw(st.sampled_from([accept] * 8 + answers + [None]))
    sequence = [first, *data.draw(st.lists(rest, max_size=6))]
    followers = sequence[1:-1] if sequence[-1] is TERMINATE else sequence[1:]
    accepted = first is accept and all(message is None for message in followers)
    legal = accepted or sequence in [[refusal] for refusal in refusals]
    session = Session(4)
    session.control(initiate, private_of(initiate))
    events: list[SctpEvent] = []
    for ssn in data.draw(st.permutations(range(len(sequence)))):
        ppid, payload = MESSAGES[sequence[ssn]]
        events += session.receive(ppid, struct.pack(">H", ssn) + payload[2:])
    assert illegal(events) == (not legal)
    assert (session.state is State.ABORTED) == (not legal)
    placed = [ssn for ssn, message in enumerate(sequence) if message is None]
    if legal:
        assert sorted(segments(events)) == placed
    else:
        assert set(segments(events)) <= set(placed)
        if first is not accept:
            assert not segments(events)


# --- associations --------------------------------------------------------------------------------


class Pair:
    """Two ends of an association, after their handshake."""

    def __init__(self, adaptation: int | None = 1) -> None:
        self.a, self.b = Association(), Association()
        parameters = () if adaptation is None else ((0xC006, struct.pack(">I", adaptation)),)
        self.to_b(0, InitChunk(0xA, 0xFFFFFFFE, 4, 4, parameters=parameters))
        self.to_a(0xA, InitChunk(0xB, 500, 4, 4, parameters=parameters, acknowledges=True))
        self.to_b(0xB, Chunk(ChunkType.COOKIE_ECHO, 0, b"cookie"))
        self.to_a(0xA, Chunk(ChunkType.COOKIE_ACK))

    def to_b(self, tag: int, *chunks: Chunk | DataChunk | InitChunk) -> list[SctpEvent]:
        octets = Packet(1, 2, tag, chunks).encode()
        self.a.observe(octets)
        return self.b.receive(octets)

    def to_a(self, tag: int, *chunks: Chunk | DataChunk | InitChunk) -> list[SctpEvent]:
        octets = Packet(2, 1, tag, chunks).encode()
        self.b.observe(octets)
        return self.a.receive(octets)

    def establish(self, stream: int = 0) -> None:
        self.to_b(0xB, DataChunk(0xFFFFFFFE, stream, CONTROL, control(0, INITIATE)))
        self.to_a(0xA, DataChunk(500, stream, CONTROL, control(0, ACCEPT)))
        assert self.a.session(stream).state is self.b.session(stream).state is State.ESTABLISHED


def test_an_association_is_set_up_and_carries_segments_over_the_tsns_wrap() -> None:
    pair = Pair()
    assert pair.a.ddp and pair.b.ddp
    pair.establish()
    events = pair.to_b(
        0xB,
        DataChunk(1, 0, SEGMENT, segment(3)),
        DataChunk(0xFFFFFFFF, 0, SEGMENT, segment(1)),
        DataChunk(0, 0, SEGMENT, segment(2)),
    )
    assert segments(events) == [3, 1, 2]


def test_duplicate_tsns_are_dropped() -> None:
    pair = Pair()
    pair.establish()
    chunk = DataChunk(2, 0, SEGMENT, segment(4))
    assert segments(pair.to_b(0xB, chunk)) == [4]
    for again in (chunk, DataChunk(0xFFFFFFFE, 0, CONTROL, control(0, INITIATE))):
        (event,) = pair.to_b(0xB, again)
        assert isinstance(event, Discarded)
    assert pair.b.session(0).state is State.ESTABLISHED


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        *((kind, True) for kind in (ChunkType.INIT, ChunkType.INIT_ACK, ChunkType.ABORT)),
        *((kind, True) for kind in (ChunkType.SHUTDOWN_COMPLETE, 15, 127)),
        *((kind, False) for kind in (ChunkType.COOKIE_ACK, ChunkType.SHUTDOWN, 128, 255)),
    ],
)
def test_data_after_a_chunk_that_ends_its_packet_is_discarded(kind: int, ends: bool) -> None:
    """RFC 9260 section 12.3: "The receiver of an INIT chunk MUST silently discard the INIT chunk
    and all further chunks if the INIT chunk is bundled with other chunks". Section 3.3.7: "DATA
    chunks MUST NOT be bundled with ABORT chunks"; other chunks after one "will be ignored by the
    receiver".
    """
    pair = Pair()
    pair.establish()
    one, two = (DataChunk(0xFFFFFFFE + n, 0, SEGMENT, segment(n)) for n in (1, 2))
    two = replace(two, tsn=0)
    init = InitChunk(9, 9, 1, 1, acknowledges=kind == ChunkType.INIT_ACK)
    odd = init if kind in (ChunkType.INIT, ChunkType.INIT_ACK) else Chunk(kind)
    assert segments(pair.to_b(0xB, one, odd, two)) == [1] + [2] * (not ends)
    assert segments(pair.to_b(0xB, two)) == [2] * ends, "the sender repeats it"
    assert pair.b.peer is not None and pair.b.peer.tag == 0xA


@pytest.mark.parametrize("adaptation", [None, 2])
def test_without_the_ddp_indication_there_is_no_ddp(adaptation: int | None) -> None:
    """RFC 5043 section 11.1: "DDP procedures MUST NOT be performed upon this association"."""
    pair = Pair(adaptation)
    assert not pair.a.ddp
    (event,) = pair.to_b(0xB, DataChunk(0xFFFFFFFE, 0, CONTROL, control(0, INITIATE)))
    assert isinstance(event, Discarded)


def test_a_wrong_tag_or_checksum_is_discarded() -> None:
    pair = Pair()
    good = Packet(1, 2, 0xB, (DataChunk(0xFFFFFFFE, 0, CONTROL, control(0, INITIATE)),)).encode()
    bad = good[:-1] + bytes([good[-1] ^ 1])
    other = Packet(1, 2, 0xC, Packet.parse(good).chunks).encode()
    for octets in (bad, other):
        (event,) = pair.b.receive(octets)
        assert isinstance(event, Discarded)
    (event,) = pair.b.receive(good)
    assert isinstance(event, SessionControl)


def test_fragments_are_put_together() -> None:
    """RFC 9260 section 6.9: consecutive TSNs, B on the first, E on the last; in any order."""
    pair = Pair()
    pair.establish()
    whole = segment(1, bytes(range(100)))
    parts = [
        DataChunk(
            (0xFFFFFFFF + i) % (1 << 32),
            0,
            SEGMENT,
            whole[start : start + 34],
            beginning=i == 0,
            ending=i == 2,
        )
        for i, start in enumerate((0, 34, 68))
    ]
    random.Random(1).shuffle(parts)
    events = [event for part in parts for event in pair.to_b(0xB, part)]
    assert events == [SegmentReceived(0, 0, 1, bytes(range(100)))]


def test_fragments_come_in_any_order_beside_those_of_other_messages() -> None:
    """Section 9: "SCTP data chunk fragmentation MUST NOT be used unless the alternative is IP
    fragmentation".

    So fragmentation is legal. RFC 9260 section 6.9: the TSNs of a message are consecutive.
    """
    parts = [
        DataChunk(tsn, sid, ppid, payload, beginning=first, ending=last)
        for tsn, sid, ppid, payload, first, last in (
            (0, 0, SEGMENT, segment(1)[:1], True, False),
            (1, 0, SEGMENT, segment(1)[1:], False, True),
            (2, 3, SEGMENT, segment(1)[:4], True, False),
            (3, 3, SEGMENT, segment(1)[4:], False, True),
            (4, 0, CONTROL, control(2, TERMINATE)[:3], True, False),
            (5, 0, CONTROL, control(2, TERMINATE)[3:], False, True),
        )
    ]
    for seed in range(50):
        fresh = Pair()
        fresh.establish()
        fresh.to_b(0xB, DataChunk(0xFFFFFFFF, 3, CONTROL, control(0, INITIATE)))
        fresh.to_a(0xA, DataChunk(501, 3, CONTROL, control(0, ACCEPT)))
        came = random.Random(seed).sample(parts, len(parts))
        events = [event for part in came for event in fresh.to_b(0xB, part)]
        assert not illegal(events)
        assert [event for event in events if isinstance(event, SegmentReceived)] in (
            [SegmentReceived(0, 0, 1, b"segment"), SegmentReceived(3, 0, 1, b"segment")],
            [SegmentReceived(3, 0, 1, b"segment"), SegmentReceived(0, 0, 1, b"segment")],
        )
        assert SessionControl(0, 0, TERMINATE, b"") in events
        assert fresh.b.session(0).state is State.TERMINATE_RECEIVED


def test_a_message_without_an_end_is_not_joined_with_the_next_one() -> None:
    pair = Pair()
    pair.establish()
    payload = segment(1)
    parts = [(0xFFFFFFFF, b"\0\1no end", True, False)]
    parts += [(0, payload[:5], True, False), (1, payload[5:], False, True)]
    events = [
        event
        for tsn, piece, first, last in parts
        for event in pair.to_b(0xB, DataChunk(tsn, 0, SEGMENT, piece, beginning=first, ending=last))
    ]
    assert events == [SegmentReceived(0, 0, 1, b"segment")]


@pytest.mark.parametrize("bad", [{"unordered": False}, {"ppid": 18}])
def test_a_fragment_of_what_is_no_ddp_message_is_illegal_at_once(bad: dict[str, Any]) -> None:
    """Section 10: "The adaptation layer MUST use the Unordered option on all Data Chunks"."""
    pair = Pair()
    pair.establish()
    chunk = DataChunk(0xFFFFFFFF, 0, SEGMENT, segment(1), ending=False)
    assert illegal(pair.to_b(0xB, replace(chunk, **bad)))


@pytest.mark.parametrize("ssn", [1, 2], ids=["in its turn", "before its turn"])
def test_another_tsn_with_a_used_ddp_ssn_is_no_repetition(ssn: int) -> None:
    """Section 6: "The DDP-SSNs assigned to the Data Chunks for a session MUST NOT have any gaps";
    6.2: "with increasing DDP-SSNs".

    A repetition by the network has the same TSN.
    """
    pair = Pair()
    pair.establish()
    chunk = DataChunk(0xFFFFFFFF, 0, SEGMENT, segment(ssn))
    pair.to_b(0xB, chunk)
    (event,) = pair.to_b(0xB, chunk)
    assert isinstance(event, Discarded)
    assert illegal(pair.to_b(0xB, replace(chunk, tsn=0)))


@pytest.mark.parametrize("active", [False, True])
def test_a_chunk_of_an_earlier_session_is_never_carried_over(active: bool) -> None:
    """Section 6: "Data Chunks from one DDP Stream Session are never carried over to the next
    session. Each Data Chunk unambiguously belongs to exactly one session." The chunk's TSN shows to
    which.
    """
    pair = Pair()
    pair.establish()
    # An ordered chunk ends the session while TSN 0 is on its way; the peer does not wait for it.
    pair.to_b(0xB, DataChunk(1, 0, SEGMENT, segment(2), unordered=False))
    if active:
        pair.to_a(0xA, DataChunk(501, 0, CONTROL, control(0, INITIATE)))
        pair.to_b(0xB, DataChunk(2, 0, CONTROL, control(0, ACCEPT)))
    else:
        pair.to_b(0xB, DataChunk(2, 0, CONTROL, control(0, INITIATE)))
        pair.to_a(0xA, DataChunk(501, 0, CONTROL, control(0, ACCEPT)))
    assert (pair.b.session(0).state, pair.b.session(0).number) == (State.ESTABLISHED, 1)
    (event,) = pair.to_b(0xB, DataChunk(0, 0, SEGMENT, segment(1)))
    assert isinstance(event, SessionIllegal) and "earlier session" in event.reason


def test_a_session_may_outlast_half_of_the_tsns() -> None:
    """RFC 9260 section 1.6: TSNs are compared by serial number arithmetic.

    However many TSNs a session has, none of them is mistaken for one from before the session.
    """
    pair = Pair()
    pair.establish()
    number = 1
    for _ in range(5):
        # As if this many chunks of other streams had arrived.
        pair.b._in._next += 1 << 30
        pair.b._in.highest += 1 << 30
        tsn = pair.b._in._next % (1 << 32)
        chunk = DataChunk(tsn, 0, SEGMENT, segment(number))
        assert segments(pair.b.receive(Packet(1, 2, 0xB, (chunk,)).encode())) == [number]
        number += 1


def test_nothing_of_an_ended_session_is_in_a_later_one_however_many_lie_between() -> None:
    """Section 6: "Data Chunks from one DDP Stream Session are never carried over to the next
    session."
    """
    session = Session(4)
    session.receive(CONTROL, control(0, INITIATE))
    session.control(ACCEPT)
    for order in (2, 3, 5):
        session.receive(SEGMENT, segment(order))
    session.receive(SEGMENT, segment(6), unordered=False)
    for number in range(1, 70):
        session.receive(CONTROL, control(0, INITIATE))
        session.control(ACCEPT)
        events = session.receive(SEGMENT, segment(1, b"%d" % number))
        assert events == [SegmentReceived(4, number, 1, b"%d" % number)]
        assert session.receive(CONTROL, control(2, TERMINATE)) == [
            SessionControl(4, number, TERMINATE, b"")
        ]


def test_initiates_past_the_limit_are_refused_in_their_association_alone() -> None:
    """Section 6.4: "There MUST be a finite limit on the number of such requests that are pending a
    ULP decision. When more session requests are received, the passive side MUST respond to the
    Initiate message with a DDP Stream Terminate Message."
    """
    pairs = [Pair(), Pair()]
    for pair in pairs:
        pair.b.initiates = 2
        events = [
            pair.to_b(0xB, DataChunk((0xFFFFFFFE + sid) % (1 << 32), sid, CONTROL, payload))
            for sid in range(4)
            for payload in [control(0, INITIATE)]
        ]
        kinds = [type(event) for (event,) in events]
        assert kinds == [SessionControl] * 2 + [SessionRefused] * 2
        refused = pair.b.session(3)
        assert refused.state is State.REFUSED
        for answer in (ACCEPT, REJECT):
            with pytest.raises(ProtocolError, match="while the session is REFUSED"):
                refused.control(answer)
        assert refused.control(TERMINATE) == control(0, TERMINATE)
        # Once an Initiate is answered, another stream's Initiate has its place.
        assert pair.b.session(0).control(ACCEPT) and pair.b.session(2).control(TERMINATE)
        (event,) = pair.to_b(0xB, DataChunk(2, 3, CONTROL, control(0, INITIATE)))
        assert isinstance(event, SessionControl)


def test_streams_are_independent() -> None:
    pair = Pair()
    pair.to_b(
        0xB,
        DataChunk(0xFFFFFFFE, 0, CONTROL, control(0, INITIATE)),
        DataChunk(0xFFFFFFFF, 3, CONTROL, control(0, INITIATE)),
    )
    assert illegal(pair.to_b(0xB, DataChunk(0, 0, CONTROL, control(1, ACCEPT))))
    assert pair.b.session(3).state is State.INITIATE_RECEIVED


def test_a_new_handshake_starts_over() -> None:
    pair = Pair()
    pair.establish()
    parameters = ((0xC006, struct.pack(">I", 1)),)
    pair.to_b(0, InitChunk(0x1A, 9000, 4, 4, parameters=parameters))
    pair.to_a(0x1A, InitChunk(0x1B, 700, 4, 4, parameters=parameters, acknowledges=True))
    pair.to_b(
        0x1B,
        Chunk(ChunkType.COOKIE_ECHO, 0, b"cookie"),
        DataChunk(9000, 0, CONTROL, control(0, INITIATE)),
    )
    assert pair.b.session(0).state is State.INITIATE_RECEIVED
    assert pair.b.session(0).number == 0
