"""Tests the assembled datapath against the golden model, at every width, with both engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_rnic.cocotb_tests.datapath_tests import COUNT
from ddp_rnic.cocotb_tests.errors import ADDRESS, CASES, LENGTH, PD, STAG, STREAM, TO, scenario_of
from ddp_rnic.cocotb_tests.scenario import (
    Scenario,
    device_of,
    random_scenario,
    tagged,
    untagged,
)
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig
from ddp_rnic.hdl.spec.ddp import LLP_FRAMING, LOCAL_CATASTROPHIC, WAITING
from ddp_rnic.sim.engines.choice import ENGINES, load
from ddp_rnic.sim.engines.cocotb_engine import run_tests
from ddp_rnic.sim.engines.engine import (
    UNSTALLED,
    Drain,
    ErrorEvent,
    Outcome,
    Packet,
    Stalls,
    WriteRegister,
)

STALLED = Stalls(0.4, 0.4, 0.4, 0.4)
BACK_PRESSURE = {
    "source": Stalls(source=0.9),
    "write": Stalls(write=0.9),
    "response": Stalls(response=0.9, response_latency=200),
    "exceptions": Stalls(exceptions=0.9),
    "all": STALLED,
}


def run(
    engine: str,
    width: int,
    scenario: Scenario,
    stalls: Stalls = UNSTALLED,
    config: RnicConfig | None = None,
) -> tuple[Outcome, bytes]:
    """Runs a scenario and checks it against the model."""
    memory = scenario.memory.copy()
    outcome = load(engine).run(
        config or device_of(width), scenario.operations, memory, stalls=stalls, ring=scenario.ring
    )
    scenario.check(outcome, memory)
    return outcome, memory.tobytes()


def sure(events: list[ErrorEvent]) -> list[ErrorEvent]:
    """Returns events without the octets of header that a short segment lacks."""
    return [replace(event, header=event.header[: 2 + event.length]) for event in events]


@pytest.mark.parametrize("width", NARROW)
def test_under_cocotb(width: int, tmp_path: Path) -> None:
    run_tests(RnicConfig(width=width), "ddp_rnic.cocotb_tests.datapath_tests", tmp_path, COUNT)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", WIDTHS)
def test_errors_have_their_number_and_write_nothing(width: int, case: str) -> None:
    outcome, _ = run("compiled", width, scenario_of(case))
    assert [(event.type, event.code) for event in outcome.events] == [CASES[case][0]]
    assert not len(outcome.bursts) and not len(outcome.writes) and not outcome.completions


@pytest.mark.parametrize("seed", [1, 2, *long(3, 4)])
@pytest.mark.parametrize("width", WIDTHS)
def test_random_traffic_agrees_with_the_model(width: int, seed: int) -> None:
    run("compiled", width, random_scenario(seed, 1500))


@pytest.mark.long
@pytest.mark.parametrize("stalls", [UNSTALLED, STALLED], ids=["unstalled", "stalled"])
def test_a_relaxed_rnic_with_short_addresses_agrees_with_the_model(stalls: Stalls) -> None:
    """The unused upper bits of addresses may have any value.

    The board with TCP (``test_board.py``) is such an RNIC, too.
    """
    scenario = random_scenario(7, 800)
    high = [
        regs.address(f"{name}_HI") for name in ("STAG_ADDR", "BUFFER_ADDR", "PAGE_ADDR", "CQ_BASE")
    ]
    scenario.operations[:0] = [WriteRegister(each, 0) for each in high]
    scenario.operations = [
        replace(each, value=each.value | 0xA5A5_A500)
        if isinstance(each, WriteRegister) and each.address in high
        else each
        for each in scenario.operations
    ]
    memory = scenario.memory.copy()
    config = RnicConfig(address=40, relaxed=True)
    outcome = load("compiled").run(
        config, scenario.operations, memory, stalls=stalls, ring=scenario.ring
    )
    scenario.check(outcome, memory)


@pytest.mark.parametrize("stalled", ["all", "response", *long("source", "write", "exceptions")])
@pytest.mark.parametrize("width", WIDTHS)
def test_random_traffic_agrees_with_back_pressure(width: int, stalled: str) -> None:
    run("compiled", width, random_scenario(5, 800), BACK_PRESSURE[stalled])


@pytest.mark.parametrize(
    "stalls",
    [
        pytest.param(UNSTALLED, id="unstalled", marks=pytest.mark.long),
        pytest.param(STALLED, id="stalled"),
    ],
)
@pytest.mark.parametrize("width", NARROW)
def test_engines_agree(width: int, stalls: Stalls) -> None:
    scenario = random_scenario(6, 60)
    config = RnicConfig(width=width)
    (one, memory), (other, other_memory) = (
        run(name, width, scenario, stalls, config) for name in ENGINES
    )
    assert memory == other_memory, "the ring too"
    assert sure(one.events) == sure(other.events)
    assert one.exceptions == other.exceptions
    assert one.completions == other.completions
    assert one.counters == other.counters
    # The same beats, in whichever cycles they came.
    assert one.writes["address"].tolist() == other.writes["address"].tolist()
    assert one.bursts[["address", "beats"]].tolist() == other.bursts[["address", "beats"]].tolist()


def _overtaking(waiting: int, *, ends: bool) -> Scenario:
    """Returns a tagged message of two segments, with ``waiting`` whole messages between them."""
    scenario = Scenario()
    scenario.region(STAG, TO, LENGTH, ADDRESS, pd=PD)
    scenario.stream(STREAM, pd=PD)
    scenario.stream(STREAM + 1, pd=PD)
    scenario.queue(STREAM, 0)
    for number in range(waiting):
        scenario.buffer(STREAM, 0, 64, 8192 + 100 * number, cookie=number)
    scenario.packet(STREAM, tagged(STAG, TO, b"begin", last=False))
    for number in range(waiting):
        scenario.packet(STREAM, untagged(bytes(10 + number), msn=1 + number))
        scenario.packet(STREAM + 1, tagged(STAG, TO + 100 + number, bytes(1)))
    if ends:
        scenario.packet(STREAM, tagged(STAG, TO + 5, b"end"))
    return scenario


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("waiting", (1, WAITING - 1))
def test_a_whole_message_waits_for_an_unfinished_one_of_its_stream(
    width: int, waiting: int
) -> None:
    """RFC 5041 section 5.4: "DDP MUST Deliver a DDP Message if and only if [...] each preceding DDP
    Message has been Delivered to the ULP"."""
    outcome, _ = run("compiled", width, _overtaking(waiting, ends=False))
    assert {each.stream for each in outcome.completions} == {STREAM + 1}
    outcome, _ = run("compiled", width, _overtaking(waiting, ends=True))
    delivered = [each.tag for each in outcome.completions if each.stream == STREAM]
    assert delivered == [STAG, *range(1, 1 + waiting)] and not outcome.events


def test_a_stream_with_more_waiting_messages_than_fit_ends_alone() -> None:
    outcome, _ = run("compiled", 64, _overtaking(WAITING, ends=False))
    assert [(each.stream, each.type, each.code) for each in outcome.events] == [
        (STREAM, *LOCAL_CATASTROPHIC)
    ]
    assert {each.stream for each in outcome.completions} == {STREAM + 1}
    assert len(outcome.completions) == WAITING


def _registered() -> Scenario:
    scenario = Scenario()
    scenario.region(STAG, TO, LENGTH, ADDRESS, pd=PD)
    scenario.stream(STREAM, pd=PD)
    return scenario


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bus_error_is_a_local_catastrophic_error(engine: str) -> None:
    # RFC 5041 section 7.2: Error Type 0x0, Error Code 0x00.
    scenario = _registered()
    for offset in (0, 500, 200):
        scenario.packet(STREAM, tagged(STAG, TO + offset, bytes(100)))
        scenario.operations.append(Drain())
    memory = scenario.memory.copy()
    faulty = range(ADDRESS + 550, ADDRESS + 552)
    outcome = load(engine).run(
        RnicConfig(), scenario.operations, memory, faults=[faulty], ring=scenario.ring
    )
    assert [(event.type, event.code) for event in outcome.events] == [LOCAL_CATASTROPHIC]
    assert outcome.events[0].stream == STREAM
    assert outcome.counters["DROPPED"] == 1
    assert memory[ADDRESS : ADDRESS + 100].tolist() == [0] * 100
    assert (memory[faulty.start : faulty.stop] == scenario.memory[faulty.start : faulty.stop]).all()
    after = slice(ADDRESS + 200, ADDRESS + 300)
    assert (memory[after] == scenario.memory[after]).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_of_a_damaged_packet_the_last_fpdu_is_not_used(width: int) -> None:
    # The mark comes with the last beat. FPDUs before the last one are whole, with their own digest.
    scenario = _registered()
    scenario.packet(STREAM, tagged(STAG, TO, b"whole" * 20), tagged(STAG, TO + 200, b"not" * 20))
    packet = scenario.operations[-1]
    assert isinstance(packet, Packet)
    scenario.operations[-1] = replace(packet, error=True)
    memory = scenario.memory.copy()
    outcome = load("compiled").run(
        device_of(width), scenario.operations, memory, ring=scenario.ring
    )
    assert [(event.type, event.code) for event in outcome.events] == [LLP_FRAMING]
    assert outcome.counters["PLACED_OCTETS"] == 100
    assert memory[ADDRESS : ADDRESS + 100].tobytes() == b"whole" * 20
    rest = slice(ADDRESS + 100, scenario.ring.octets.start)
    assert (memory[rest] == scenario.memory[rest]).all()
