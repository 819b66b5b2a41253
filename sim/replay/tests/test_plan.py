"""Tests of plans: the operations made from traffic and regions, and the golden model's results."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import (
    INVALID_STAG,
    LLP_FRAMING,
    LOCAL_CATASTROPHIC,
    MESSAGE_TOO_LONG,
    MSN_RANGE,
    NO_BUFFER,
    STAG_NOT_ASSOCIATED,
    WAITING,
    ErrorNumber,
)
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.capture.capture import read_capture
from ddp_rnic.sim.capture.tests.streams import SEND, SEND_INVALIDATE, Conversation
from ddp_rnic.sim.capture.traffic import traffic_of
from ddp_rnic.sim.engines.choice import load
from ddp_rnic.sim.engines.engine import (
    Await,
    Drain,
    Packet,
    Poll,
    WriteRegister,
    operations_of,
)
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.replay.differences import find_differences
from ddp_rnic.sim.replay.host import GUARD, Space, guard_octets
from ddp_rnic.sim.replay.plan import Plan, _ring, plan
from ddp_rnic.sim.replay.regions import Queue, Region, RegionError, derive, stream_ends
from ddp_rnic.sim.replay.tests.agreeing import run

A, B = "10.7.0.1", "10.7.0.2"
STAG = 0x90190600
CAPTURES = Path(__file__).resolve().parents[3].parent / "shared" / "captures"
SIW = sorted(
    path
    for path in CAPTURES.glob("iwarp/siw_*/*.pcap")
    if (path.parent / "truth" / f"{path.stem}.server.jsonl").exists()
)


def plan_of(talk: Conversation, regions: list[Region], config: RnicConfig | None = None) -> Plan:
    (only,), _ = plan(talk.traffic(), regions, config or RnicConfig())
    return only


def received(planned: Plan, memory: np.ndarray, stream: int = 0, qn: int = 0) -> list[bytes]:
    """Returns messages as they lie in their buffers, in the order of their completions."""
    return [
        memory[each.buffer.address : each.buffer.address + each.completion.length].tobytes()
        for each in planned.golden.deliveries
        if each.buffer and (each.buffer.stream, each.buffer.qn) == (stream, qn)
    ]


def errors_of(planned: Plan) -> list[ErrorNumber]:
    return [error.number for error in planned.golden.errors]


def octets_of(planned: Plan, memory: np.ndarray, stag: int) -> bytes:
    found = next(each for each in planned.allotments if each.region.stag == stag)
    return memory[found.address : found.end].tobytes()


def test_a_packet_holds_the_fpdus_of_a_frame() -> None:
    talk = Conversation()
    one = talk.write(B, STAG, 0, b"12345678")
    two = talk.write(B, STAG, 8, b"abc")
    traffic = talk.traffic()
    both = replace(traffic, arrivals=(one, replace(two, frame=one.frame)))
    (planned,), _ = plan(both, [Region(B, STAG, 0, 16)], RnicConfig())
    packets = [each for each in planned.operations if isinstance(each, Packet)]
    assert packets == [Packet(0, 0, one.raw + two.raw)]
    assert octets_of(planned, run(planned), STAG)[:11] == b"12345678abc"
    assert planned.operations[-1] == Drain()


def test_registers_are_written_before_the_first_packet() -> None:
    talk = Conversation(crc=False, markers=True)
    talk.write(B, STAG | 7, 1 << 40, b"1")
    planned = plan_of(talk, [Region(B, STAG | 7, 1 << 40, 1 << 20)])
    written = {
        each.address: each.value
        for each in planned.operations[:-2]
        if isinstance(each, WriteRegister)
    }
    assert written[regs.address("STAG_INDEX")] == STAG >> 8
    assert written[regs.address("STAG_FLAGS")] == 7 | 1 << 8 | 1 << 9
    assert written[regs.address("STAG_TO_HI")] == 1 << 8
    assert written[regs.address("STREAM_FLAGS")] == 0b101
    assert written[regs.address("STAG_OWNER")] == written[regs.address("STREAM_PD")]
    ring = [written[regs.address(name)] for name in ("CQ_BASE_LO", "CQ_BASE_HI", "CQ_SIZE")]
    assert ring == [planned.ring.address, 0, planned.ring.size]
    assert written[regs.address("CQ_ENABLE")] == 1
    assert written[regs.address("IRQ_MASK")] == 1 << 2


def test_regions_lie_apart_between_guards() -> None:
    talk = Conversation()
    talk.write(B, STAG, 0x123, b"1")
    planned = plan_of(
        talk, [Region(B, STAG, 0x123, 50, 0xEE), Region(B, 0x100, 0x1FFF, 4000, 0x11)]
    )
    ends = [0]
    for allotment in planned.allotments:
        assert allotment.address - ends[-1] >= GUARD
        assert (allotment.address - allotment.region.to) % 4096 == 0
        ends.append(allotment.end)
    assert len(planned.memory) - ends[-1] >= GUARD
    guards = guard_octets(len(planned.memory))
    inside = planned.memory != guards
    assert all(planned.holder_at(int(address)) for address in np.flatnonzero(inside))
    assert not any(
        (guards[at : at + 64] == guards[at + 64 : at + 128]).all() for at in range(0, 4096, 64)
    )


def test_each_host_has_its_own_stags() -> None:
    talk = Conversation()
    talk.write(A, STAG, 0, b"for a")
    talk.write(B, STAG, 0, b"for b")
    regions = [Region(host, STAG, 0, 5) for host in (A, B)]
    plans, notes = plan(talk.traffic(), regions, RnicConfig())
    assert [each.endpoints for each in plans] == [(A,), (B,)] and "2 RNICs" in notes[0]
    assert [octets_of(each, run(each), STAG) for each in plans] == [b"for a", b"for b"]
    # With STags that fit one table, one RNIC serves both hosts, and an STag is valid only for its
    # host.
    plans, notes = plan(talk.traffic(), [regions[0], Region(B, 0x1000, 0, 5)], RnicConfig())
    assert len(plans) == 1 and not notes
    assert [error.number for error in plans[0].golden.errors] == [STAG_NOT_ASSOCIATED]


def test_the_table_grows_for_stags_that_want_one_entry() -> None:
    talk = Conversation()
    talk.write(B, 0x100, 0, b"one")
    regions = [Region(B, 0x100, 0, 8), Region(B, 0x100 + (1024 << 8), 0, 8)]
    plans, notes = plan(talk.traffic(), regions, RnicConfig())
    assert plans[0].config.stags == 2048 and "2048 entries" in notes[0]
    run(plans[0])
    with pytest.raises(RegionError, match="need the same entry"):
        plan(talk.traffic(), [regions[0], Region(B, 0x100 + (1 << 24 + 4), 0, 8)], RnicConfig())


def test_an_fpdu_that_the_buffer_does_not_hold_makes_it_grow() -> None:
    talk = Conversation()
    talk.write(B, STAG, 0, bytes(65000))
    plans, notes = plan(talk.traffic(), [Region(B, STAG, 0, 65000)], RnicConfig(width=512))
    assert plans[0].config.buffer_octets == 1 << 17 and "packet buffer of 131072" in notes[0]


def test_more_streams_than_the_table_make_it_grow() -> None:
    talk = Conversation()
    for connection in range(65):
        talk.untagged(B, SEND, connection=connection)
    plans, _ = plan(talk.traffic(), [], RnicConfig())
    assert plans[0].config.streams == 128
    run(plans[0])


def test_a_region_is_registered_and_revoked_between_segments() -> None:
    talk = Conversation()
    for number in range(1, 5):
        talk.write(B, STAG, number, bytes([number]), connection=number)
    planned = plan_of(talk, [Region(B, STAG, 0, 5, periods=((1, 3),))])
    assert octets_of(planned, run(planned), STAG) == b"\0\0\2\3\0"
    assert [error.arrival.order for error in planned.golden.errors] == [1, 4]
    # The host makes every change while nothing is in flight.
    kinds = [type(each) for each in planned.operations]
    for at, kind in enumerate(kinds[1:], 1):
        if kind is WriteRegister and Packet in kinds[:at]:
            assert kinds[at - 1] in (WriteRegister, Drain, Poll)
    revoke = planned.operations.index(WriteRegister(regs.address("REVOKE_STAG"), 1))
    assert [planned.operations[revoke + 1]] == operations_of([commands.REVOKED])


def test_a_send_with_invalidate_revokes_with_a_region_file_too() -> None:
    talk = Conversation()
    talk.write(B, STAG, 0, b"1")
    talk.untagged(B, SEND_INVALIDATE, stag=STAG)
    talk.write(B, STAG, 0, b"2")
    planned = plan_of(talk, [Region(B, STAG, 0, 1)])
    assert octets_of(planned, run(planned), STAG) == b"1"
    assert errors_of(planned) == [INVALID_STAG]
    assert planned.golden.counters()["DELIVERED"] == 2


@pytest.mark.parametrize(
    ("qn", "opcode", "bound", "invalidates"),
    [
        (0, SEND_INVALIDATE, None, True),
        (1, SEND_INVALIDATE, None, False),
        (2, SEND_INVALIDATE, None, False),
        (3, SEND_INVALIDATE, None, False),
        (0, SEND_INVALIDATE | 0x80, None, False),
        (0, SEND_INVALIDATE & 0x3F, None, True),
        (0, SEND_INVALIDATE, 0, True),
        (0, SEND_INVALIDATE, 1, False),
    ],
)
def test_a_message_that_is_no_valid_send_revokes_nothing(
    qn: int, opcode: int, bound: int | None, invalidates: bool
) -> None:
    """RFC 5040 section 4.1, figure 4: Send with Invalidate has Queue Number 0. Section 7.2: the
    version "MUST be valid", and the STag "MUST be associated to this RDMAP Stream".
    """
    talk = Conversation()
    talk.untagged(B, opcode, qn=qn, stag=STAG)
    writer = bound or 0
    talk.write(B, STAG, 0, b"1", connection=writer)
    planned = plan_of(talk, [Region(B, STAG, 0, 1, stream=bound)])
    assert octets_of(planned, run(planned), STAG) == (b"\0" if invalidates else b"1")
    assert errors_of(planned) == [INVALID_STAG] * invalidates


def test_a_send_with_invalidate_of_two_segments_revokes_with_the_last() -> None:
    talk = Conversation()
    talk.untagged(B, SEND_INVALIDATE, b"first", stag=STAG, last=False)
    talk.write(B, STAG, 0, b"1")
    talk.untagged(B, SEND_INVALIDATE, b"second", stag=STAG, mo=5)
    talk.write(B, STAG, 0, b"2")
    planned = plan_of(talk, [Region(B, STAG, 0, 1)])
    memory = run(planned)
    assert octets_of(planned, memory, STAG) == b"1"
    assert received(planned, memory) == [b"firstsecond"]


def test_a_send_with_invalidate_that_finds_no_buffer_invalidates_nothing() -> None:
    talk = Conversation()
    talk.untagged(B, SEND_INVALIDATE, b"in vain", stag=STAG)
    talk.write(B, STAG, 0, b"1", connection=1)
    (planned,), _ = plan(
        talk.traffic(), [Region(B, STAG, 0, 1)], RnicConfig(), queues=[Queue(B, 0, 0)]
    )
    assert octets_of(planned, run(planned), STAG) == b"1"
    assert errors_of(planned) == [NO_BUFFER]


def test_a_send_with_invalidate_after_an_error_is_not_received() -> None:
    talk = Conversation()
    talk.write(B, 0x700, 0, b"1")
    talk.untagged(B, SEND_INVALIDATE, stag=STAG)
    talk.write(B, STAG, 0, b"2", connection=1)
    planned = plan_of(talk, [Region(B, STAG, 0, 1)])
    assert octets_of(planned, run(planned), STAG) == b"2"


def test_a_stopped_stream_is_dropped_from_there_on() -> None:
    talk = Conversation()
    talk.untagged(B, SEND)
    talk.write(B, STAG, 0, b"1")
    (planned,), _ = plan(talk.traffic(), [Region(B, STAG, 0, 1)], RnicConfig(), {0: 1})
    assert octets_of(planned, run(planned), STAG) == b"\0"
    assert planned.golden.counters()["DROPPED"] == 1


def test_a_segment_shorter_than_its_header_is_an_error_of_framing() -> None:
    for segment in (b"", b"\xc1", b"\xc1" + bytes(12), b"\x41" + bytes(16)):
        talk = Conversation()
        talk.segment(B, segment)
        talk.untagged(B, SEND)
        planned = plan_of(talk, [])
        run(planned)
        assert [error.number for error in planned.golden.errors] == [LLP_FRAMING]


# -- untagged messages --


def test_messages_lie_in_buffers_of_their_own() -> None:
    talk = Conversation()
    messages = [bytes([number]) * length for number, length in enumerate((0, 1, 100, 64, 5000), 1)]
    for message in messages:
        pieces = [message[at : at + 1400] for at in range(0, max(len(message), 1), 1400)]
        talk.message(B, SEND, *pieces)
        talk.message(B, SEND, message[:9], qn=3)
    talk.untagged(B, SEND, b"request", qn=1)
    talk.untagged(B, SEND, b"elsewhere", connection=1)
    planned = plan_of(talk, [Region(B, STAG, 0x123, 50)])
    memory = run(planned)
    assert received(planned, memory) == messages
    assert received(planned, memory, qn=3) == [message[:9] for message in messages]
    assert received(planned, memory, qn=1) == [b"request"]
    assert received(planned, memory, stream=1) == [b"elsewhere"]
    # No two pieces lie within a guard of each other, and buffers begin at any lane of a beat.
    pieces_of_memory = sorted(
        [(each.address, each.end) for each in planned.allotments]
        + [(each.address, each.end) for each in planned.buffers]
        + [(planned.ring.octets.start, planned.ring.octets.stop)]
    )
    for (_, end), (start, _) in pairwise([(0, 0), *pieces_of_memory, (len(memory), 0)]):
        assert start - end >= GUARD
    assert len({buffer.address % 64 for buffer in planned.buffers}) == len(planned.buffers)
    assert len({buffer.cookie for buffer in planned.buffers}) == len(planned.buffers)


def test_segments_of_a_message_come_in_any_order() -> None:
    talk = Conversation()
    talk.untagged(B, SEND, b"second", mo=5, last=False)
    talk.untagged(B, SEND, b"first", last=False)
    talk.untagged(B, SEND, b"other", qn=1)
    talk.untagged(B, SEND, b"third", mo=11)
    planned = plan_of(talk, [])
    assert received(planned, run(planned)) == [b"firstsecondthird"]


def test_completions_come_in_the_order_of_last_segments_over_all_streams() -> None:
    talk = Conversation()
    talk.untagged(B, SEND, b"be", last=False)
    talk.write(B, STAG, 0, b"1", connection=1)
    talk.untagged(A, SEND, b"here")
    talk.untagged(B, SEND, b"gin", mo=2)
    talk.write(B, 0, 1 << 40, b"", connection=1)  # without octets: the STag is not checked
    planned = plan_of(talk, [Region(B, STAG, 0, 1)])
    run(planned)
    assert [
        (each.tagged, each.stream, each.tag, each.length)
        for each in (delivery.completion for delivery in planned.golden.deliveries)
    ] == [
        (True, 1, STAG, 1),
        (False, 2, 1, 4),
        (False, 0, 1, 5),
        (True, 1, 0, 0),
    ]


@pytest.mark.parametrize("depth", [4, 64])
def test_queues_are_filled_up_as_their_messages_are_delivered(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddp_rnic.sim.replay.plan._RING", 7)
    talk = Conversation()
    messages = [f"message {number}".encode() for number in range(150)]
    for message in messages:
        talk.untagged(B, SEND, message)
        talk.untagged(B, SEND, message[::-1], qn=1)
    traffic = talk.traffic()
    # All FPDUs are in one frame, which is cut where buffers are posted.
    frame = replace(traffic, arrivals=tuple(replace(each, frame=1) for each in traffic.arrivals))
    (planned,), _ = plan(frame, [], RnicConfig(queue_depth=depth))
    memory = run(planned)  # in which no queue is ever overfull
    assert received(planned, memory) == messages
    assert received(planned, memory, qn=1) == [message[::-1] for message in messages]
    assert [each.msn for each in planned.buffers if each.qn == 0] == list(range(1, 151))
    awaits = [each.completions for each in planned.operations if isinstance(each, Await)]
    assert len(awaits) == 2 * -(-(150 - depth) // (depth // 2))
    assert awaits == sorted(awaits) and awaits[-1] <= 300
    # The ring wraps more than once.
    assert len(planned.golden.deliveries) > planned.ring.entries


def test_given_queues_make_messages_be_refused() -> None:
    talk = Conversation()
    for number in range(3):
        talk.untagged(B, SEND, b"12345678", connection=number // 2)
    # Each stream has two buffers, but the message on queue 1 is too long by an octet.
    talk.untagged(B, SEND, b"123456789", qn=1, connection=1)
    talk.untagged(B, SEND, b"12345678")
    queues = [Queue(B, 0, 2, 8), Queue(B, 1, 1, 8)]
    (planned,), _ = plan(talk.traffic(), [], RnicConfig(), queues=queues)
    memory = run(planned)
    assert received(planned, memory) == [b"12345678"] * 2
    assert errors_of(planned) == [MESSAGE_TOO_LONG, NO_BUFFER]
    assert len(planned.buffers) == 2 + 1 + 2 + 1


def test_the_first_error_of_a_stream_is_an_exception_with_its_reason() -> None:
    talk = Conversation()
    refused = [
        talk.untagged(B, SEND, b"no such queue", qn=4),
        talk.write(B, STAG, 0, b"no such region", connection=1),
        talk.segment(B, b"\x41\x40 too short", connection=2),
        talk.segment(B, b"\x41\x40 damaged on its way", connection=3, spoil=True),
        talk.untagged(B, SEND, b"behind", msn=0, connection=4),
    ]
    for connection in range(5):
        talk.untagged(B, SEND, b"too late", connection=connection)
    planned = plan_of(talk, [])
    run(planned)
    assert [(each.octets, each.reason) for each in planned.golden.exceptions] == [
        (arrival.raw, reason)
        for arrival, reason in zip(refused, (0x201, 0x100, 0x303, 0x302, 0x203), strict=True)
    ]
    assert planned.golden.counters()["DROPPED"] == 5


def test_a_segment_out_of_turn_is_placed_and_ends_its_stream() -> None:
    talk = Conversation()
    talk.untagged(B, SEND, b"second", msn=2)
    talk.untagged(B, SEND, b"first", msn=1)
    planned = plan_of(talk, [])
    memory = run(planned)
    second = planned.buffers[1]
    assert memory[second.address : second.address + 6].tobytes() == b"second"
    assert errors_of(planned) == [MSN_RANGE]
    assert planned.golden.exceptions == [] and planned.golden.deliveries == []


def test_an_fpdu_that_the_exception_queue_does_not_hold_makes_it_grow() -> None:
    talk = Conversation()
    talk.write(B, STAG, 0, bytes(20000))
    plans, notes = plan(talk.traffic(), [], RnicConfig())
    assert plans[0].config.exception_octets == 32768 and "exception queue" in notes[0]


# -- real stacks --


def truth(capture: Path) -> dict[Region, bytes]:
    """Returns the regions that the peers registered, with their final contents."""
    found = {}
    for side, host in (("server", B), ("client", A)):
        stem = capture.parent / "truth" / f"{capture.stem}.{side}"
        for line in stem.with_name(stem.name + ".jsonl").read_text().splitlines():
            entry = json.loads(line)
            if entry["ev"] == "region":
                name = entry["name"]
                access = Access.NONE if name == "ro" else Access.REMOTE_WRITE
                region = Region(host, entry["stag"], entry["base"], entry["len"], 0xEE, access)
                path = stem.with_name(f"{stem.name}.mem_{name}.bin.gz")
            elif entry["ev"] == "sink":
                region = Region(host, entry["rkey"], entry["base"], entry["len"], 0xCC)
                path = stem.with_name(f"{stem.name}.sink.bin.gz")
            else:
                continue
            found[region] = (
                gzip.decompress(path.read_bytes())
                if path.exists()
                else bytes([region.fill]) * region.length
            )
    return found


def true_messages(capture: Path) -> list[bytes]:
    """Returns the messages that the server recorded as received."""
    stem = capture.parent / "truth" / f"{capture.stem}.server"
    path = stem.with_name(stem.name + ".recv.bin.gz")
    octets = gzip.decompress(path.read_bytes()) if path.exists() else b""
    messages = []
    for line in stem.with_name(stem.name + ".jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["ev"] == "recv":
            messages.append(octets[entry["file_off"] : entry["file_off"] + entry["len"]])
            assert len(messages[-1]) == entry["len"] and entry["n"] == len(messages) - 1
    assert sum(map(len, messages)) == len(octets)
    return messages


@pytest.mark.skipif(not SIW, reason="needs the captures of real stacks: shared/captures")
@pytest.mark.parametrize("capture", SIW, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("derived", [False, True], ids=["given", "derived"])
def test_real_captures_give_the_memory_that_the_peer_had(capture: Path, derived: bool) -> None:
    traffic = traffic_of(read_capture(capture))
    known = truth(capture)
    ends = stream_ends(traffic)
    regions = list(known)
    if derived:
        found = derive(traffic)
        regions, ends = found.regions, found.ends
    plans, notes = plan(traffic, regions, RnicConfig(), ends)
    assert len(plans) == 1 and not notes
    memory = run(plans[0])
    for allotment in plans[0].allotments:
        region = allotment.region
        owner = next(
            each for each in known if (each.endpoint, each.stag) == (region.endpoint, region.stag)
        )
        start = region.to - owner.to
        expected = np.frombuffer(known[owner], np.uint8)[start : start + region.length]
        got = memory[allotment.address : allotment.end]
        # A derived region cannot know how its owner had painted it.
        same = (got == expected) | (derived & (got == 0) & (expected == owner.fill))
        assert same.all(), f"{region}: first at {int(np.flatnonzero(~same)[0])}"
    # The messages that the peer received in order, except those that it took only to refuse them.
    stream = next((each for each in plans[0].streams if each.destination.address == B), None)
    messages = [] if stream is None else received(plans[0], memory, stream.number)
    assert messages == true_messages(capture)
    # Segments that the peer refused are refused here, with the same number.
    names = {
        "err_norecv": "Invalid MSN - no buffer available",
        "err_toolong": "Invalid MSN - no buffer available",
        "err_stag": "Invalid STag",
        "err_access": "Invalid STag",
        "sendinv": "Invalid STag",
        "err_bounds": "Base or bounds violation",
        "err_bounds_seg": "Base or bounds violation",
    }
    texts = [str(error.number).split(" ", 1)[1] for error in plans[0].golden.errors]
    assert texts == ([names[capture.stem]] if capture.stem in names else [])


@pytest.mark.skipif(
    not CAPTURES.is_dir(), reason="needs the captures of real stacks: shared/captures"
)
def test_every_capture_is_replayed_or_refused_in_a_sentence() -> None:
    played = 0
    for path in sorted(CAPTURES.rglob("*")):
        if not path.is_file() or "truth" in path.parts or path.suffix in (".md", ".txt", ".log"):
            continue
        traffic = traffic_of(read_capture(path))
        found = derive(traffic)
        for planned in plan(traffic, found.regions, RnicConfig(), found.ends)[0]:
            run(planned)
            played += bool(planned.streams)
            for stream, counts in planned.golden.counts.items():
                # All messages of a stream without an error are delivered, on every queue.
                if planned.golden.live(stream):
                    assert counts.delivered == sum(
                        each.ulpdu[0] >> 6 & 1
                        for each in traffic.arrivals
                        if each.stream.number == stream
                    )
            assert {error.arrival.stream.number for error in planned.golden.errors} >= {
                number for number in traffic.misnumbered if number in planned.golden.counts
            }
    assert played >= 30


def test_pieces_of_memory_never_overlap_and_are_taken_again() -> None:
    random, space = Random(5041), Space(1000)
    lies: dict[int, int] = {}
    for _ in range(3000):
        if lies and random.random() < 0.5:
            address = random.choice(list(lies))
            begin, end = space.span(address)
            assert begin + GUARD <= address and end == address + lies.pop(address)
            space.give(address)
        else:
            offset, alignment = random.randrange(5000), random.choice((1, 64, 4096))
            length = random.choice((0, 1, 4096, random.randrange(70_000)))
            address = space.take(length, offset, alignment)
            assert (address - offset) % alignment == 0
            lies[address] = length
        ends = sorted((address, address + length) for address, length in lies.items())
        assert all(end + GUARD <= begin for (_, end), (begin, _) in pairwise(ends))
    assert space.size > ends[-1][1]
    most = space.size
    for address in lies:
        space.give(address)
    assert space.take(most - 1000 - 2 * GUARD - 4096, 0, 1) < most and space.size <= most


@pytest.mark.parametrize("streams", [2, 16, 128, 4096])
def test_the_host_gives_entries_back_before_the_ring_of_the_owner_lacks_them(streams: int) -> None:
    """The host does so when it has taken a quarter of a ring."""
    config = RnicConfig(sctp=True, streams=streams, window=4)
    ring = _ring(1, config, Space(), owned=True)
    assert ring.size <= 15 and 4 * (ring.entries - config.owner_entries) > ring.entries


def test_messages_after_one_too_many_waits_are_not_placed() -> None:
    """The RNIC stops a stream some time after the message that is one too many."""
    talk = Conversation()
    talk.segment(B, TaggedHeader(STAG, 0, last=False).encode() + bytes(8))
    for _ in range(WAITING + 4):
        talk.untagged(B, SEND, b"hello")
    (planned,), _ = plan(talk.traffic(), derive(talk.traffic()).regions, RnicConfig())
    assert errors_of(planned) == [LOCAL_CATASTROPHIC]
    memory = planned.memory.copy()
    outcome = load("compiled").run(planned.config, planned.operations, memory, ring=planned.ring)
    assert find_differences(planned, outcome, memory) == []
