"""Plays captures of DDP over the Linux kernel's SCTP through plans and the RNIC or its stand-in.

Memory and deliveries must be those of the peers.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.completion import Kind
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.sctp import Diversion
from ddp_rnic.sim.campaigns import shuffle
from ddp_rnic.sim.capture.capture import read_capture
from ddp_rnic.sim.capture.sctp_traffic import Incoming, SctpStream
from ddp_rnic.sim.capture.traffic import Traffic, traffic_of, with_sctp
from ddp_rnic.sim.engines.choice import load
from ddp_rnic.sim.engines.engine import Await, Drain, Frame, Operation
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from ddp_rnic.sim.replay.differences import find_differences, find_differences_in_any_order
from ddp_rnic.sim.replay.plan import plan
from ddp_rnic.sim.replay.regions import Region
from ddp_rnic.sim.replay.sctp_regions import derive_all, of_sessions
from ddp_rnic.sim.reports.report import Run

CAPTURES = Path(__file__).resolve().parents[3].parent / "shared" / "captures" / "sctp"
NAMES = sorted(path.stem.removeprefix("sctp_") for path in CAPTURES.glob("*.pcap"))
HOSTS = {"active": "10.7.0.1", "passive": "10.7.0.2"}
PAINT = 0xEE

pytestmark = pytest.mark.skipif(
    not NAMES, reason="needs the captures of real stacks: shared/captures beside the project"
)


def traffic(name: str) -> Traffic:
    capture = read_capture(CAPTURES / f"sctp_{name}.pcap")
    return with_sctp(traffic_of(capture), capture.sctp)


def truth(name: str, event: str) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Returns the peers' records of an event."""
    for side in HOSTS:
        for path in (CAPTURES / "truth" / name).glob(f"*.{side}.jsonl"):
            for line in path.read_text().splitlines():
                record = json.loads(line)
                if record["ev"] == event:
                    yield side, path.parent, record


def runs_of(
    traffic: Traffic, regions: list[Region], ends: dict[int, int], width: int | None = None
) -> list[Run]:
    """Returns runs that must agree; with a width they are runs of the gateware."""
    engine = FakeEngine() if width is None else load("compiled")
    plans, _ = plan(traffic, regions, RnicConfig(width=width or 64), ends)
    runs = []
    for each in plans:
        memory = each.memory.copy()
        outcome = engine.run(each.config, each.operations, memory, ring=each.ring)
        assert find_differences(each, outcome, memory) == []
        assert not each.golden.errors
        runs.append(Run(each, outcome, memory, []))
    return runs


def pattern(k: int, start: int, length: int) -> bytes:
    return bytes(
        (131 * k + 7 * i + 13 * (i >> 8) + 29 * (i >> 16)) & 0xFF
        for i in range(start, start + length)
    )


def like_the_peers(side: str, octets: bytes, got: bytes) -> bool:
    """Returns a region with the octets that its owner had put there.

    The end of the passive side's region is the source of its Read Responses, filled by its owner
    with the pattern of the captures' README.
    """
    at = next((i for i, pair in enumerate(zip(octets, got, strict=True)) if len({*pair}) > 1), None)
    if at is None:
        return True
    owner = next(k for k in range(256) if pattern(k, at, 1) == octets[at : at + 1])
    rest = len(octets) - at
    return (
        side == "passive"
        and octets[at:] == pattern(owner, at, rest)
        and got[at:] == bytes([PAINT]) * rest
    )


NAMED = NAMES or ["absent"]
#: A simulator with places for items out of order takes minutes to build, as does one of 512 bits.
LARGE = ["lossreorder"]
RUNS = [
    *((name, None) for name in NAMED),
    *((name, 64) for name in NAMED if name not in LARGE),
    *long(*((name, 64) for name in LARGE), *((name, 512) for name in NAMED)),
]


@pytest.mark.parametrize(("name", "width"), RUNS)
def test_given_regions_end_as_the_peers(name: str, width: int | None) -> None:
    given, wanted = [], {}
    for side, folder, record in truth(name, "region"):
        session = record["stream"], record["session"]
        region = (record["stag"], record["base"], record["len"])
        given.append(Region(HOSTS[side], *region, fill=PAINT, session=session))
        octets = gzip.decompress((folder / f"{record['file']}.gz").read_bytes())
        wanted[HOSTS[side], session] = side, octets
    played = traffic(name)
    compared = 0
    for run in runs_of(played, of_sessions(given, played), {}, width):
        for each in run.plan.allotments:
            assert each.region.session is not None
            side, octets = wanted[each.region.endpoint, each.region.session]
            got = run.memory[each.address : each.end].tobytes()
            assert like_the_peers(side, octets, got), str(each.region)
            compared += 1
    assert compared == len(wanted) > 0


@pytest.mark.parametrize("name", NAMED)
def test_derived_regions_hold_what_the_peers_do(name: str) -> None:
    played = traffic(name)
    derived = derive_all(played)
    found = {
        (side, record["stream"], record["session"]): (folder, record)
        for side, folder, record in truth(name, "region")
    }
    sides = {host: side for side, host in HOSTS.items()}
    for run in runs_of(played, derived.regions, derived.ends):
        for each in run.plan.allotments:
            region = each.region
            assert region.session is not None
            folder, record = found[sides[region.endpoint], *region.session]
            octets = gzip.decompress((folder / f"{record['file']}.gz").read_bytes())
            start = region.to - record["base"]
            got = run.memory[each.address : each.end].tobytes()
            for one, other in zip(octets[start : start + region.length], got, strict=True):
                # Octets that were not written are painted differently.
                assert one == other or (one, other) == (PAINT, 0)


@pytest.mark.parametrize("name", NAMED)
def test_messages_are_delivered_as_the_peers_did(name: str) -> None:
    played = traffic(name)
    derived = derive_all(played)
    expected, got = defaultdict(list), defaultdict(list)
    for side, _, record in truth(name, "deliver"):
        key = HOSTS[side], record["stream"], record["session"]
        expected[key].append((record["qn"], record["msn"], record["len"]))
    for run in runs_of(played, derived.regions, derived.ends):
        streams = {stream.number: stream for stream in run.plan.streams}
        for buffer, length in run.received():
            stream = streams[buffer.stream]
            assert isinstance(stream, SctpStream)
            key = stream.destination.address, stream.sid, buffer.session
            got[key].append((buffer.qn, buffer.msn, length))
    assert got == expected and expected


@pytest.mark.parametrize("name", NAMED)
def test_control_messages_have_their_turn_as_with_the_peers(name: str) -> None:
    played = traffic(name)
    derived = derive_all(played)
    expected, got = defaultdict(list), defaultdict(list)
    for side, _, record in truth(name, "rxctl"):
        expected[HOSTS[side], record["stream"]].append(record["fn"])
    for run in runs_of(played, derived.regions, derived.ends):
        streams = {stream.number: stream for stream in run.plan.streams}
        for entry in run.outcome.completions:
            if entry.kind.name == "CONTROL":
                stream = streams[entry.stream]
                assert isinstance(stream, SctpStream)
                got[stream.destination.address, stream.sid].append(entry.tag)
    assert got == expected and expected


def test_frames_in_any_order_leave_the_same() -> None:
    """RFC 5041 section 5.3: placement in any order, delivery once and in the order of
    submission.
    """
    played = traffic("tworounds")
    derived = derive_all(played)
    plans, _ = plan(played, derived.regions, RnicConfig(), derived.ends)
    tally = shuffle.run(load("compiled"), plans, range(8), seed=1)
    assert tally.differences == () and tally.ways == 8
    assert tally.frames > 8 * sum(
        isinstance(operation, Frame) for each in plans for operation in each.operations
    )


#: How many frames may overtake another. No capture has more chunks of a stream in this many frames.
REACH = 4


def nearby(
    operations: Iterable[Operation], controls: set[bytes], rng: random.Random
) -> list[Operation]:
    """Returns the operations with frames overtaken by a few others.

    No frame arrives after one that was sent ``REACH`` later. Nothing overtakes a frame with a
    control message.
    """
    came: list[Operation] = []
    stretch: list[Operation] = []
    for operation in (*operations, Drain()):
        if isinstance(operation, Frame) and operation.octets not in controls:
            stretch.append(operation)
            continue
        place = {at: at + rng.uniform(0, REACH) for at in range(len(stretch))}
        came += [stretch[at] for at in sorted(place, key=place.__getitem__)]
        stretch = []
        came.append(Drain() if isinstance(operation, Await) else operation)
    return came


@pytest.mark.parametrize("width", [None, 64, *long(128, 256, 512)])
def test_no_chunk_within_the_window_is_refused(width: int | None) -> None:
    """RFC 9260 section 6.2: "The dropped DATA chunk(s) MUST NOT be included in the SACK chunk, as
    they were not accepted".

    So every chunk within the window is accepted, whatever other streams do.
    """
    engine = FakeEngine() if width is None else load("compiled")
    for name in ("small", "std", "reject", "tworounds"):
        played = traffic(name)
        derived = derive_all(played)
        plans, _ = plan(played, derived.regions, RnicConfig(width=width or 64), derived.ends)
        assert played.sctp is not None
        controls = {
            step.octets
            for step in played.sctp.steps
            if isinstance(step, Incoming)
            and any(item.diversion is Diversion.CONTROL for item in step.items)
        }
        for number, each in enumerate(plans):
            for way in range(3):
                rng = random.Random(f"{name} {number} {way}")
                operations = nearby(each.operations, controls, rng)
                memory = each.memory.copy()
                outcome = engine.run(each.config, operations, memory, ring=each.ring)
                assert find_differences_in_any_order(each, outcome, memory) == []
                assert outcome.counters["CHUNKS_OUTSIDE"] == 0


CASES = CAPTURES.parents[1] / "cases"
#: Cases of SCTP: the octets that are placed, and the statuses of the DATA chunks.
CASE_STATUSES = {
    "sctp_base": (351, ["TAKEN"] * 5),
    "sctp_fragmented_data": (367, ["TAKEN"] * 3 + ["HELD"] * 2 + ["TAKEN"] * 3),
    "sctp_ordered_data": (100, ["TAKEN"] * 3 + ["ILLEGAL"] + ["SILENT"] * 2),
    "sctp_two_segments_without_session": (0, ["TAKEN"] * 2 + ["ILLEGAL", "SILENT"]),
}


@pytest.mark.skipif(not CASES.exists(), reason="needs shared/cases beside the project")
@pytest.mark.parametrize("width", [None, 64])
@pytest.mark.parametrize("name", CASE_STATUSES)
def test_cases_of_sessions_end_as_the_rfc_says(name: str, width: int | None) -> None:
    capture = read_capture(CASES / f"{name}.pcap")
    played = with_sctp(traffic_of(capture), capture.sctp)
    derived = derive_all(played)
    octets, statuses = CASE_STATUSES[name]
    for run in runs_of(played, derived.regions, derived.ends, width):
        chunks = [each for each in run.outcome.completions if each.kind is Kind.CHUNK]
        assert [each.status.name for each in chunks] == statuses
        assert run.outcome.counters["PLACED_OCTETS"] == octets


def test_a_frame_that_never_comes_shows() -> None:
    played = traffic("small")
    derived = derive_all(played)
    plans, _ = plan(played, derived.regions, RnicConfig(), derived.ends)
    number = max(
        at for at, each in enumerate(plans[0].operations)
        if isinstance(each, Frame) and len(each.octets) > 200
    )  # fmt: skip
    del plans[0].operations[number]
    tally = shuffle.run(FakeEngine(), plans, range(3), seed=1)
    assert tally.way == 0 and {"memory", "received message"} & {
        each.what for each in tally.differences
    }
