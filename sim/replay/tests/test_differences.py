"""Every planted fault is found, and reported with kind, place, both values and the cycle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from ddp_rnic.hdl.spec.completion import Status
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.capture.tests.streams import SEND, Conversation
from ddp_rnic.sim.engines.engine import WRITE, Outcome, no_counts
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from ddp_rnic.sim.replay.differences import Difference, find_differences
from ddp_rnic.sim.replay.plan import Plan, plan
from ddp_rnic.sim.replay.regions import Region
from numpy.typing import NDArray

B = "10.7.0.2"
STAG = 0x90190600
Memory = NDArray[np.uint8]


def planned() -> Plan:
    talk = Conversation()
    talk.write(B, STAG, 0x1000, bytes(range(1, 101)))
    talk.message(B, SEND, b"a message ", b"of two segments")
    talk.write(B, 0x700, 0, b"refused")
    talk.untagged(B, SEND, b"refused as well", qn=9, connection=1)
    (only,), _ = plan(talk.traffic(), [Region(B, STAG, 0x1000, 200, 0xEE)], RnicConfig())
    return only


def differences(spoil: Callable[[Plan, Memory, Outcome], object]) -> list[Difference]:
    case = planned()
    memory = case.memory.copy()
    outcome = FakeEngine(lambda memory, outcome: spoil(case, memory, outcome)).run(
        case.config, case.operations, memory, ring=case.ring
    )
    return find_differences(case, outcome, memory)


def only(spoil: Callable[[Plan, Memory, Outcome], object]) -> Difference:
    (difference,) = differences(spoil)
    return difference


def test_a_right_run_has_no_difference() -> None:
    assert differences(lambda case, memory, outcome: None) == []


def test_a_wrong_octet_is_reported_with_its_segment_and_cycle() -> None:
    def spoil(case: Plan, memory: Memory, outcome: Outcome) -> None:
        memory[case.allotments[0].address + 16 : case.allotments[0].address + 18] = 0

    got = only(spoil)
    assert got.what == "memory"
    assert got.where == f"{B} STag 0x90190600 TO 0x1010, the first of 2 octets"
    assert got.expected == "0x11 (stream 0, frame 1, segment 1)" and got.got == "0x00"
    assert got.cycle is not None and got.cycle > 0


def test_an_octet_that_nothing_was_to_write_is_reported() -> None:
    def spoil(case: Plan, memory: Memory, outcome: Outcome) -> None:
        memory[case.allotments[0].end - 1] ^= 1

    got = only(spoil)
    assert (got.expected, got.got, got.cycle) == ("0xee (as before)", "0xef", None)


def test_a_wrong_octet_of_a_received_message_is_reported() -> None:
    def spoil(case: Plan, memory: Memory, outcome: Outcome) -> None:
        memory[case.buffers[0].address + 10] = 0

    got = only(spoil)
    assert got.what == "received message"
    assert got.where == "octet 10 of the buffer of stream 0 QN 0 MSN 1"
    assert got.expected == "0x6f (stream 0, frame 3, segment 3)"
    assert got.cycle is not None and got.cycle > 0


def test_octets_past_a_message_and_past_its_buffer_are_reported() -> None:
    def past(case: Plan, memory: Memory, outcome: Outcome) -> None:
        memory[case.buffers[0].address + 25] ^= 1

    assert "(as before)" in only(past).expected

    def behind(case: Plan, memory: Memory, outcome: Outcome) -> None:
        memory[case.buffers[0].end] ^= 1

    got = only(behind)
    assert got.what == "guard octets"
    assert "0 octets past the end of the buffer of stream 0 QN 0 MSN 1" in got.where


def test_what_lies_in_the_ring_is_the_business_of_the_engine() -> None:
    def inside(case: Plan, memory: Memory, outcome: Outcome) -> None:
        memory[case.ring.octets.start] ^= 1
        memory[case.ring.octets.stop - 1] ^= 1

    assert differences(inside) == []

    def outside(case: Plan, memory: Memory, outcome: Outcome) -> None:
        memory[case.ring.octets.stop] ^= 1
        memory[case.ring.octets.start - 1] ^= 1

    before, behind = differences(outside)
    assert before.what == behind.what == "guard octets"
    assert "0 octets past the end of the completion ring" in behind.where


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("phase", 0, "1"),
        ("tagged", True, "False"),
        ("status", Status.NOT_PLACED, "0"),
        ("stream", 7, "0"),
        ("tag", 2, "0x1"),
        ("length", 24, "25"),
        ("cookie", 0, "0x9e3779b1"),
        ("rsvdulp", 0x44, "0x4300000000"),
        ("qn", 1, "0"),
    ],
)
def test_a_wrong_completion_is_reported(field: str, value: object, expected: str) -> None:
    def spoil(case: Plan, memory: Memory, outcome: Outcome) -> None:
        wrong = outcome.completions[1]._replace(**{field: value})  # type: ignore[arg-type]
        outcome.completions[1] = wrong

    got = only(spoil)
    assert got.what == f"{field} of a completion" and got.expected == expected
    assert "completion 2, stream 0" in got.where and "segment 3" in got.where
    assert got.cycle is not None and got.cycle > 0


def test_missing_and_further_completions_are_reported() -> None:
    missing = only(lambda case, memory, outcome: outcome.completions.pop())
    assert (missing.what, missing.expected, missing.got) == ("completion", "one", "none")
    further = only(lambda case, memory, outcome: outcome.completions.append(outcome.completions[0]))
    assert (further.where, further.expected) == ("completion 3", "none")
    swapped = differences(lambda case, memory, outcome: outcome.completions.reverse())
    assert {each.what.split()[0] for each in swapped} >= {"tagged", "tag"}


@pytest.mark.parametrize("offset", [-1, 200])
def test_a_guard_octet_is_reported(offset: int) -> None:
    def spoil(case: Plan, memory: Memory, outcome: Outcome) -> None:
        memory[case.allotments[0].address + offset] ^= 0xFF

    got = only(spoil)
    assert got.what == "guard octets"
    assert ("0 octets past the end" in got.where) == (offset == 200)


def test_a_write_outside_host_memory_is_reported() -> None:
    def spoil(case: Plan, memory: Memory, outcome: Outcome) -> None:
        outcome.stray.append(np.array((77, 1 << 40), WRITE))

    got = only(spoil)
    assert got.what == "bus write" and "0x10000000000" in got.where and got.cycle == 77


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("code", 1, "error number"),
        ("type", 9, "error number"),
        ("sequence", 1, "LLP sequence number"),
        ("length", 1, "segment length"),
        ("header", bytes(20), "header"),
    ],
)
def test_a_wrong_error_event_is_reported(field: str, value: object, what: str) -> None:
    def spoil(case: Plan, memory: Memory, outcome: Outcome) -> None:
        outcome.events[0] = replace(outcome.events[0], **{field: value})  # type: ignore[arg-type]

    got = only(spoil)
    assert what in got.what and "stream 0" in got.where and "segment 4" in got.where


def test_octets_after_the_header_of_an_event_do_not_matter() -> None:
    def spoil(case: Plan, memory: Memory, outcome: Outcome) -> None:
        event = outcome.events[0]
        outcome.events[0] = replace(event, header=event.header[:16] + b"what")

    assert differences(spoil) == []


def test_missing_and_further_events_are_reported() -> None:
    missing = only(lambda case, memory, outcome: outcome.events.pop(0))
    assert (missing.expected, missing.got) == ("0x1/0x00 Invalid STag", "none")
    further = only(lambda case, memory, outcome: outcome.events.append(outcome.events[0]))
    assert (further.expected, further.got) == ("none", "0x1/0x00 Invalid STag")


def test_exception_packets_are_compared_whole_and_in_order() -> None:
    def octet(case: Plan, memory: Memory, outcome: Outcome) -> None:
        packet = outcome.exceptions[1]
        outcome.exceptions[1] = replace(packet, octets=packet.octets[:-1] + b"\0")

    got = only(octet)
    assert got.what == "exception stream" and "packet 2" in got.where and "octet 39" in got.got
    assert len(differences(lambda case, memory, outcome: outcome.exceptions.reverse())) == 2
    gone = only(lambda case, memory, outcome: outcome.exceptions.pop())
    assert gone.got == "none"

    def reason(case: Plan, memory: Memory, outcome: Outcome) -> None:
        outcome.exceptions[0] = replace(outcome.exceptions[0], reason=0x102)

    got = only(reason)
    assert got.expected.endswith("for reason 0x100") and got.got.endswith("for reason 0x102")


@pytest.mark.parametrize("name", no_counts(sctp=False))
def test_a_wrong_counter_is_reported(name: str) -> None:
    got = only(lambda case, memory, outcome: outcome.counters.update({name: 99}))
    assert (got.what, got.where, got.got) == ("counter", name, "99")


def test_many_differences_are_cut_short() -> None:
    def spoil(case: Plan, memory: Memory, outcome: Outcome) -> None:
        memory[case.allotments[0].address : case.allotments[0].end : 2] ^= 0xFF

    got = differences(spoil)
    assert len(got) == 11 and got[-1].expected == "90 further differences of this kind"
