"""RFC 5041, sentence by sentence."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ddp_rnic.hdl.spec.ddp import (
    BASE_OR_BOUNDS,
    INVALID_MO,
    INVALID_QN,
    INVALID_STAG,
    LLP_CRC,
    LLP_FRAMING,
    LOCAL_CATASTROPHIC,
    MESSAGE_TOO_LONG,
    MSN_RANGE,
    NO_BUFFER,
    STAG_NOT_ASSOCIATED,
    TAGGED_VERSION,
    TO_WRAP,
    UNTAGGED_VERSION,
    ErrorNumber,
)
from ddp_rnic.sim.model.ddp import (
    DataSink,
    DataSource,
    TaggedHeader,
    UntaggedHeader,
    decode_segment,
)
from ddp_rnic.sim.model.events import DdpError, Delivered, Event, LlpError, Placed, ProtocolError
from ddp_rnic.sim.model.memory import Access, Memory, Region
from hypothesis import given, settings
from hypothesis import strategies as st

STAG, TO, LENGTH, STREAM, PD = 0x00001207, 0x10000, 4096, 3, 9
GUARD = 64


def a_region(**changes: object) -> Region:
    values: dict[str, Any] = {"stag": STAG, "to": TO, "length": LENGTH, "address": 0x8000, "pd": PD}
    return Region(**{**values, **changes})


def a_sink(*regions: Region, buffers: int = 4, size: int = 256) -> DataSink:
    memory = Memory()
    for region in regions or (a_region(),):
        memory.register(region, fill=0xEE)
    sink = DataSink(memory, stream=STREAM, pd=PD)
    sink.post(0, size, buffers)
    return sink


def tagged(payload: bytes = b"payload", **changes: int) -> bytes:
    values: dict[str, Any] = {"stag": STAG, "to": TO, "last": True, **changes}
    return TaggedHeader(**values).encode() + payload


def untagged(payload: bytes = b"payload", **changes: int) -> bytes:
    values: dict[str, Any] = {"qn": 0, "msn": 1, "mo": 0, "last": True, **changes}
    return UntaggedHeader(**values).encode() + payload


def messages(events: list[Event]) -> list[bytes | None]:
    return [event.message for event in events if isinstance(event, Delivered)]


def error(events: list[Event]) -> ErrorNumber | None:
    """Returns the one error among the events, with which nothing was placed; or None."""
    errors = [event for event in events if isinstance(event, DdpError)]
    assert not errors or events == errors
    return errors[0].number if errors else None


# --- section 4: headers --------------------------------------------------------------------------


def test_a_tagged_header_is_figure_4() -> None:
    header = TaggedHeader(0x01020304, 0x1112131415161718, last=True, rsvdulp=0xAB)
    assert header.encode() == bytes.fromhex("c1 ab 01020304 1112131415161718")


def test_an_untagged_header_is_figure_5() -> None:
    header = UntaggedHeader(0x01020304, 0x05060708, 0x090A0B0C, rsvdulp=0xA1B2C3D4E5)
    assert header.encode() == bytes.fromhex("01 a1b2c3d4e5 01020304 05060708 090a0b0c")


@given(st.binary(min_size=18, max_size=40))
def test_headers_survive_decoding_and_encoding(segment: bytes) -> None:
    header, payload = decode_segment(segment)
    assert header.encode() + payload == segment


def test_reserved_bits_are_not_checked_on_receive() -> None:
    """4.1: Rsvd "MUST be set to zero on transmit, and not checked on receive"."""
    assert error(a_sink().receive(tagged(reserved=0xF))) is None


# --- section 5.2: segmentation -------------------------------------------------------------------


def test_the_untagged_worked_example() -> None:
    """5.2: "one with MO = 0, containing 1482 octets of ULP Payload, and a second with MO = 1482,
    containing 566 octets of ULP Payload"."""
    segments = [decode_segment(s) for s in DataSource(1500).untagged(0, bytes(2048))]
    assert [(h.mo, len(p), h.last, h.msn) for h, p in segments if not h.tagged] == [
        (0, 1482, False, 1),
        (1482, 566, True, 1),
    ]


def test_the_tagged_worked_example() -> None:
    """5.2: "one with TO = 16384, containing the first 1486 octets of ULP payload, and a second with
    TO = 17870, containing 562 octets of ULP payload"."""
    segments = [decode_segment(s) for s in DataSource(1500).tagged(STAG, 16384, bytes(2048))]
    assert [(h.to, len(p), h.last) for h, p in segments if h.tagged] == [
        (16384, 1486, False),
        (17870, 562, True),
    ]


@given(st.binary(max_size=300), st.integers(19, 120), st.integers(0, 255))
def test_a_message_survives_its_segments(message: bytes, mulpdu: int, ulp: int) -> None:
    source, sink = DataSource(mulpdu), a_sink(size=300)
    to = TO + 5
    segments = [
        *source.tagged(STAG, to, message, rsvdulp=ulp),
        *source.untagged(0, message, rsvdulp=ulp << 32),
    ]
    assert all(len(segment) <= mulpdu for segment in segments)
    events = [event for segment in segments for event in sink.receive(segment)]
    assert messages(events) == [None, message]
    assert sink.memory.octets(STAG)[5 : 5 + len(message)] == message
    assert [e.header.rsvdulp for e in events if isinstance(e, Delivered)] == [ulp, ulp << 32]
    assert [e.length for e in events if isinstance(e, Delivered)] == [len(message)] * 2
    assert [e.begin for e in events if isinstance(e, Delivered)] == [to, 0]


@pytest.mark.parametrize("mulpdu", [15, 64, 1500])
def test_a_zero_length_message_is_one_segment(mulpdu: int) -> None:
    """5.2: "A zero-length DDP Message is allowed and MUST consume exactly one DDP Segment."."""
    assert len(DataSource(mulpdu).tagged(STAG, TO, b"")) == 1
    assert len(DataSource(mulpdu + 4).untagged(0, b"")) == 1


def test_the_msn_starts_at_one_and_wraps_to_zero_for_each_queue() -> None:
    """4.3: "The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF."."""
    source = DataSource(1500)

    def msn(qn: int) -> int:
        return int.from_bytes(source.untagged(qn, b"x")[0][10:14], "big")

    assert [msn(0), msn(0), msn(1), msn(0)] == [1, 2, 1, 3]
    source.set_msn(0, 0xFFFFFFFF)
    assert [msn(0), msn(0), msn(0), msn(1)] == [0xFFFFFFFF, 0, 1, 2]


def test_the_source_refuses_what_the_rfc_forbids() -> None:
    with pytest.raises(ProtocolError, match="must not wrap") as raised:
        DataSource(1500).tagged(STAG, (1 << 64) - 1, b"xy")
    assert raised.value.number == TO_WRAP
    with pytest.raises(ValueError, match="MULPDU must be more than the header's 18 octets, not 18"):
        DataSource(18).untagged(0, b"x")


# --- section 7.1: checks of tagged segments ------------------------------------------------------

END = TO + LENGTH
TOP = (1 << 64) - 100  # a region that ends at 2^64
CHECKS = [
    # 4.1: DV "MUST be set to one".
    ("DV 0", tagged(version=0), a_region(), TAGGED_VERSION),
    ("DV 2, zero length", tagged(b"", version=2), a_region(), TAGGED_VERSION),
    # "1. The STag is valid for this stream."
    ("no such index", tagged(stag=0x00FF0000), a_region(), INVALID_STAG),
    ("another key", tagged(stag=STAG ^ 1), a_region(), INVALID_STAG),
    # 8.2: "if the PD ID of the DDP Stream is not the same as the PD ID of the STag [...], then the
    # DDP Segment is not Placed"
    ("another PD", tagged(), a_region(pd=PD + 1), STAG_NOT_ASSOCIATED),
    # 8.2: "if the DDP Stream ID of the DDP Stream is not the same as the DDP Stream ID of the STag"
    ("another stream", tagged(), a_region(pd=None, stream=STREAM + 1), STAG_NOT_ASSOCIATED),
    ("its own stream", tagged(), a_region(pd=None, stream=STREAM), None),
    # "2. The STag has an associated buffer that allows Placement of the payload."
    ("no write right", tagged(), a_region(access=Access.REMOTE_READ), INVALID_STAG),
    # "3. The TO falls in the range of legal offsets registered for the STag."
    ("one octet before", tagged(to=TO - 1), a_region(), BASE_OR_BOUNDS),
    ("at the end", tagged(b"x", to=END), a_region(), BASE_OR_BOUNDS),
    ("the first octet", tagged(b"x", to=TO), a_region(), None),
    ("the last octet", tagged(b"x", to=END - 1), a_region(), None),
    # "4. The sum of the DDP Segment payload length and the TO falls in the range of legal offsets
    # registered for the STag."
    ("one octet past", tagged(b"xy", to=END - 1), a_region(), BASE_OR_BOUNDS),
    ("all of it", tagged(bytes(LENGTH)), a_region(), None),
    ("one more than all", tagged(bytes(LENGTH + 1)), a_region(), BASE_OR_BOUNDS),
    # "5. A 64-bit unsigned sum of the DDP Segment payload length and the TO does not wrap."
    # No octet of a sum of 2^64 lies past Tagged Offset 2^64 - 1.
    ("a sum of 2^64", tagged(bytes(100), to=TOP), a_region(to=TOP, length=100), None),
    ("the last octet", tagged(b"x", to=TOP + 99), a_region(to=TOP, length=100), None),
    ("a sum past 2^64", tagged(bytes(101), to=TOP), a_region(to=TOP, length=100), TO_WRAP),
    ("a sum of 2^64 - 1", tagged(bytes(99), to=TOP), a_region(to=TOP, length=100), None),
    ("a wrap from outside", tagged(bytes(9), to=(1 << 64) - 1), a_region(), BASE_OR_BOUNDS),
    # 5.2: "The STag and TO fields MUST NOT be checked for a zero-length Tagged DDP Message."
    ("zero length, bad STag and TO", tagged(b"", stag=0xFFFFFFFF, to=7), a_region(), None),
    # No room for the header: the LLP's framing is wrong.
    ("13 octets", tagged(b"")[:13], a_region(), LLP_FRAMING),
    ("1 octet", tagged(b"")[:1], a_region(), LLP_FRAMING),
    ("no octets", b"", a_region(), LLP_FRAMING),
]


@pytest.mark.parametrize(
    ("what", "segment", "region", "number"), CHECKS, ids=[check[0] for check in CHECKS]
)
def test_tagged_segments_are_validated(
    what: str,
    segment: bytes,
    region: Region,
    number: ErrorNumber | None,
) -> None:
    sink = a_sink(region)
    events = sink.receive(segment)
    assert error(events) == number
    if number is None:
        payload = segment[14:]
        start = int.from_bytes(segment[6:14], "big") - region.to if payload else 0
        painted = bytearray(b"\xee" * region.length)
        painted[start : start + len(payload)] = payload
        assert sink.memory.octets(STAG) == painted
        placed = events[0]
        assert isinstance(placed, Placed)
        assert placed.address == (region.address + start if payload else None)
    else:
        assert sink.memory.octets(STAG) == b"\xee" * region.length


def test_the_first_check_that_fails_names_the_error() -> None:
    """Starts with a segment that breaks every rule, and mends one rule after another."""
    region = a_region(pd=PD + 1, access=Access.NONE, to=TOP, length=100)
    sink_of = [
        (region, INVALID_STAG, {"stag": 0, "version": 1, "to": 5}),
        (region, STAG_NOT_ASSOCIATED, {"to": 5}),
        (a_region(access=Access.NONE, to=TOP, length=100), INVALID_STAG, {"to": 5}),
        (a_region(to=TOP, length=100), BASE_OR_BOUNDS, {"to": 5}),
        (a_region(to=TOP, length=100), TO_WRAP, {"to": TOP}),
        (a_region(to=TOP, length=50), TO_WRAP, {"to": TOP}),
    ]
    assert error(a_sink(region).receive(tagged(bytes(200), stag=0, version=3))) == TAGGED_VERSION
    for region, number, changes in sink_of:
        assert error(a_sink(region).receive(tagged(bytes(200), **changes))) == number


# --- section 7.1: checks of untagged segments ----------------------------------------------------

UNTAGGED_CHECKS = [
    ("DV 3", untagged(version=3), UNTAGGED_VERSION),
    # "1. The QN is valid for this stream."
    ("no such queue", untagged(qn=1), INVALID_QN),
    # "2. The QN and MSN have an associated buffer that allows Placement of the payload."
    ("past the last buffer", untagged(msn=5), NO_BUFFER),
    ("the last buffer", untagged(msn=4, last=False), None),
    # "5. The Message Sequence Number falls in the range of legal Message Sequence Numbers"; "the
    # lower limit of the Message Sequence Number is defined by whatever DDP Messages have already
    # been completed"
    ("before the first buffer", untagged(msn=0), MSN_RANGE),
    ("far before the first", untagged(msn=0x80000002), MSN_RANGE),
    # "3. The MO falls in the range of legal offsets associated with the Untagged Buffer."
    ("MO past the buffer", untagged(b"x", mo=257), INVALID_MO),
    ("the last octet", untagged(b"x", mo=255), None),
    # "4. The sum of the DDP Segment payload length and the MO falls in the range of legal offsets"
    ("one octet past", untagged(b"xy", mo=255), MESSAGE_TOO_LONG),
    ("goes on at the end", untagged(b"x", mo=256), MESSAGE_TOO_LONG),
    ("longer than all", untagged(bytes(257)), MESSAGE_TOO_LONG),
    ("all of it", untagged(bytes(256)), None),
    ("zero length", untagged(b""), None),
    ("17 octets", untagged(b"")[:17], LLP_FRAMING),
]


@pytest.mark.parametrize(
    ("what", "segment", "number"), UNTAGGED_CHECKS, ids=[check[0] for check in UNTAGGED_CHECKS]
)
def test_untagged_segments_are_validated(
    what: str,
    segment: bytes,
    number: ErrorNumber | None,
) -> None:
    sink = a_sink()
    # Out of order, so that a segment of a later message is placed and only not delivered.
    assert error(sink.receive(segment, 10)) == number


def test_a_queue_without_buffers_has_no_buffer() -> None:
    sink = a_sink(buffers=0)
    assert error(sink.receive(untagged())) == NO_BUFFER


def test_a_completed_messages_msn_is_out_of_range() -> None:
    sink = a_sink()
    assert messages(sink.receive(untagged())) == [b"payload"]
    assert error(sink.receive(untagged())) == MSN_RANGE


def test_a_skipped_msn_is_an_error_in_the_order_of_the_sender() -> None:
    """4.3: "MUST be increased by one (modulo 2^32) with each DDP Message"."""
    sink = a_sink()
    sink.receive(untagged(msn=1))
    events = sink.receive(untagged(msn=3))
    assert [event.number for event in events if isinstance(event, DdpError)] == [MSN_RANGE]
    assert not messages(events)


def test_the_sinks_msn_wraps() -> None:
    sink = DataSink(Memory())
    sink.open_queue(0, first=0xFFFFFFFE)
    sink.post(0, 16, 4)
    heard = [
        sink.receive(untagged(bytes([msn & 0xFF]), msn=msn))
        for msn in (0xFFFFFFFE, 0xFFFFFFFF, 0, 1)
    ]
    assert [messages(events) for events in heard] == [[b"\xfe"], [b"\xff"], [b"\0"], [b"\1"]]
    assert error(sink.receive(untagged(msn=2))) == NO_BUFFER


def test_thousands_of_messages_use_their_own_buffers() -> None:
    sink = DataSink(Memory())
    sink.post(0, 8, 3000)
    got = [
        messages(sink.receive(untagged(msn.to_bytes(2, "big"), msn=msn))) for msn in range(1, 3001)
    ]
    assert got == [[msn.to_bytes(2, "big")] for msn in range(1, 3001)]
    assert sink.queues[0].available == 0


# --- section 7.1: after an error -----------------------------------------------------------------


def test_the_report_has_header_type_and_length() -> None:
    """7.1: "The DDP layer SHOULD include in the error report the DDP Header, the type of error, and
    the
    length of the DDP segment, if available."."""
    segment = tagged(bytes(20), to=0, rsvdulp=5)
    assert a_sink().receive(segment, 6) == [DdpError(BASE_OR_BOUNDS, segment[:14], 34, STREAM, 6)]
    short = untagged(b"")[:7]
    assert a_sink().receive(short) == [DdpError(LLP_FRAMING, short, 7, STREAM, 0)]


def test_later_segments_are_dropped_silently() -> None:
    """7.1: "DDP MUST silently drop any subsequent incoming DDP Segments."."""
    sink = a_sink()
    sink.receive(tagged(stag=0))
    assert sink.receive(tagged()) == []
    assert sink.receive(untagged(version=0)) == []
    assert sink.dropped == 2
    assert sink.memory.octets(STAG) == b"\xee" * LENGTH


def test_errors_of_the_llp_go_up_and_silence_the_stream() -> None:
    """7: "All LLP errors reported to DDP SHOULD be passed up to the ULP."."""
    sink = a_sink()
    report = LlpError(LLP_CRC, b"", 30, 0)
    assert sink.fail(report) == [report]
    assert sink.fail(report) == []
    assert sink.receive(tagged()) == []
    assert sink.dropped == 2


# --- sections 5.3 and 5.4: order -----------------------------------------------------------------


def test_placement_is_at_once_and_delivery_waits() -> None:
    """5.3: "MAY perform Placement of DDP Segments out of order"; 5.4: Deliver if "all preceding DDP
    Messages have been Placed"."""
    sink = a_sink()
    late = sink.receive(tagged(b"B", to=TO + 1), 1)
    assert [type(event) for event in late] == [Placed]
    assert sink.memory.octets(STAG)[:2] == b"\xeeB"
    both = sink.receive(tagged(b"A"), 0)
    assert [(type(event), getattr(event, "order", None)) for event in both] == [
        (Placed, 0),
        (Delivered, 0),
        (Delivered, 1),
    ]


def test_a_message_without_its_last_flag_is_not_delivered() -> None:
    sink = a_sink()
    assert messages(sink.receive(tagged(last=False))) == []
    assert messages(sink.receive(tagged())) == [None]


def test_duplicates_are_delivered_at_most_once() -> None:
    """5.3: "MUST Deliver a DDP Message to the ULP at most once"."""
    sink = a_sink()
    assert len(messages(sink.receive(tagged(), 0))) == 1
    assert sink.receive(tagged(), 0) == []
    assert messages(sink.receive(tagged(), 2)) == []
    assert sink.receive(tagged(), 2) == []
    assert messages(sink.receive(tagged(), 1)) == [None, None]
    assert sink.duplicates == 2


def test_without_an_order_segments_are_in_order() -> None:
    sink = a_sink()
    for expected in range(3):
        (placed, delivered) = sink.receive(tagged())
        assert isinstance(placed, Placed) and isinstance(delivered, Delivered)
        assert placed.order == delivered.order == expected


@settings(max_examples=60)
@given(st.data())
def test_any_arrival_ends_in_the_same_memory_and_deliveries(data: st.DataObject) -> None:
    """Messages of both models, shuffled and repeated, give the same result as in order:
    once, in order.
    """
    draw = data.draw
    source = DataSource(draw(st.integers(24, 80)))
    segments: list[bytes] = []
    at = TO
    expected: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 8))):
        message = draw(st.binary(max_size=120))
        if draw(st.booleans()):
            segments += source.tagged(STAG, at, message)
            at += len(message)
            expected.append(None)
        else:
            segments += source.untagged(0, message)
            expected.append(message)
    in_order, shuffled = a_sink(buffers=8), a_sink(buffers=8)
    for segment in segments:
        in_order.receive(segment)
    arrivals = list(range(len(segments))) + draw(
        st.lists(st.integers(0, len(segments) - 1), max_size=5)
    )
    random.Random(draw(st.integers(0, 1 << 16))).shuffle(arrivals)
    events = [event for order in arrivals for event in shuffled.receive(segments[order], order)]
    assert messages(events) == expected
    assert shuffled.memory.octets(STAG) == in_order.memory.octets(STAG)
    placed = [event.order for event in events if isinstance(event, Placed)]
    assert sorted(placed) == list(range(len(segments)))


@settings(max_examples=200)
@given(st.integers(-GUARD, LENGTH + GUARD), st.integers(0, 2 * GUARD), st.booleans())
def test_nothing_outside_the_region_is_ever_written(start: int, length: int, far: bool) -> None:
    """Section 8.3.1 item 3: no octet of "memory outside the buffer specified". Guards
    surround it.
    """
    memory = Memory()
    size = 128
    base = TO + (LENGTH - size if far else 0)
    region = memory.register(a_region(to=base, length=size))
    # The neighbours in Tagged Offset belong to other STags.
    for stag, at in ((0x2000, base - GUARD), (0x3000, base + size)):
        memory.register(a_region(stag=stag, to=at, length=GUARD), fill=0xEE)
    sink = DataSink(memory, stream=STREAM, pd=PD)
    to = TO + start
    number = error(sink.receive(tagged(b"\x11" * length, to=to)))
    fits = base <= to and to + length <= base + size
    assert (number is None) == (fits or not length)
    window = memory.octets(region.stag)
    assert len(window) == size
    assert window.count(0x11) == (length if fits else 0)
    assert memory.octets(0x2000) == memory.octets(0x3000) == b"\xee" * GUARD


# --- section 5.4: "each preceding DDP Message has been Delivered to the ULP" ----------------------


def delivered(sink: DataSink, *segments: bytes) -> list[tuple[bool, int]]:
    """Returns, for each message that the segments deliver, whether it is tagged, and its
    STag or MSN.
    """
    headers = [
        event.header
        for segment in segments
        for event in sink.receive(segment)
        if isinstance(event, Delivered)
    ]
    return [
        (True, header.stag) if isinstance(header, TaggedHeader) else (False, header.msn)
        for header in headers
    ]


BEGIN = tagged(b"begin", last=False)
FINISH = tagged(b"end", to=TO + 5)


@pytest.mark.parametrize(
    "other",
    [
        untagged(),
        untagged(b""),
        tagged(stag=STAG + 256),
        tagged(rsvdulp=1),
        tagged(b"", stag=7),
    ],
    ids=["untagged", "empty", "another STag", "another RsvdULP", "empty tagged"],
)
def test_a_whole_message_waits_for_an_unfinished_earlier_one(other: bytes) -> None:
    """Section 5.4: "DDP MUST Deliver a DDP Message if and only if [...] all preceding DDP Messages
    have been Placed, and each preceding DDP Message has been Delivered to the ULP"."""
    regions = a_region(), a_region(stag=STAG + 256, address=0x20000)
    sink = a_sink(*regions)
    assert delivered(sink, BEGIN, other) == []
    first, second = delivered(sink, FINISH)
    assert first == (True, STAG)
    (alone,) = delivered(a_sink(*regions), other)
    assert second == alone


def test_an_unfinished_message_of_another_queue_is_waited_for() -> None:
    sink = a_sink()
    sink.post(1, 64)
    assert delivered(sink, untagged(b"a", last=False), untagged(b"b", qn=1)) == []
    assert delivered(sink, untagged(b"c", mo=1)) == [(False, 1), (False, 1)]


def test_messages_that_wait_keep_the_order_in_which_they_began() -> None:
    sink = a_sink()
    sink.post(1, 64)
    first, last = untagged(b"a", qn=1, last=False), untagged(b"b", qn=1, mo=1)
    assert delivered(sink, BEGIN, first, untagged(), last, untagged(msn=2)) == []
    assert delivered(sink, FINISH) == [(True, STAG), (False, 1), (False, 1), (False, 2)]


def test_a_message_that_waits_takes_no_buffer_of_a_later_one() -> None:
    """A waiting message is complete: section 7.1 counts its MSN as below the legal range."""
    sink = a_sink(buffers=2)
    assert delivered(sink, BEGIN, untagged(b"1"), untagged(b"2", msn=2)) == []
    assert error(sink.receive(untagged(msn=1))) == MSN_RANGE


def test_an_empty_last_segment_ends_its_message() -> None:
    assert delivered(a_sink(), BEGIN, tagged(b"", to=0)) == [(True, STAG)]


def test_a_device_keeps_its_number_of_waiting_messages_and_no_more() -> None:
    memory = Memory()
    memory.register(a_region(), fill=0)
    for waiting, number in ((3, None), (2, LOCAL_CATASTROPHIC)):
        sink = DataSink(memory, stream=STREAM, pd=PD, waiting=waiting)
        sink.post(0, 64, 2)
        events = [
            event
            for segment in (BEGIN, untagged(msn=1), untagged(msn=2))
            for event in sink.receive(segment)
        ]
        assert [e.number for e in events if isinstance(e, DdpError)] == [number] * bool(number)
        assert not any(isinstance(event, Delivered) for event in events)


def test_a_device_allows_its_number_of_overtaking_segments_and_no_more() -> None:
    memory = Memory()
    memory.register(a_region(), fill=0)
    sink = DataSink(memory, stream=STREAM, pd=PD, overtakes=3)
    segments = [tagged(b"x", rsvdulp=turn % 2, last=False) for turn in range(5)]
    *allowed, (event, *more) = (sink.receive(segment) for segment in segments)
    assert not any(error(events) for events in allowed)
    assert isinstance(event, Placed) and error(more) == LOCAL_CATASTROPHIC


@given(seed=st.integers(0, 1 << 32), shuffled=st.booleans())
@settings(max_examples=100)
def test_messages_are_delivered_in_the_order_in_which_they_began(seed: int, shuffled: bool) -> None:
    """Holds for any interleaving: section 5.3 allows placement in any order, 5.4 delivery in
    one order.
    """
    rng = random.Random(seed)
    names = {number: rng.randrange(1, 4) for number in range(rng.randrange(1, 8))}
    left, sent = dict(names), list[tuple[int, bool]]()
    while left:
        number = rng.choice([*left])
        left[number] -= 1
        sent.append((number, not left[number]))
        if not left[number]:
            del left[number]
    sink = a_sink()
    segments = [
        tagged(b"x", rsvdulp=number, last=last, to=TO + k) for k, (number, last) in enumerate(sent)
    ]
    order = list(range(len(sent)))
    if shuffled:
        rng.shuffle(order)
    got: list[int] = []
    for count, at in enumerate(order, 1):
        for event in sink.receive(segments[at], at):
            if isinstance(event, Delivered):
                got.append(event.header.rsvdulp)
        # No message is delivered before all its segments, and those of every earlier message, are
        # here.
        here = {at for at in order[:count]}
        for number in got:
            earlier = list(dict.fromkeys(number for number, _ in sent))
            earlier = earlier[: earlier.index(number) + 1]
            assert all(k in here for k, (name, _) in enumerate(sent) if name in earlier)
    assert got == list(dict.fromkeys(number for number, _ in sent))
