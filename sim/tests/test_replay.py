"""Plans: how traffic and regions become operations, and what the golden model makes of them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import INVALID_STAG, LLP_FRAMING
from ddp_rnic.sim.capture import read_capture
from ddp_rnic.sim.compare import compare
from ddp_rnic.sim.engine import Drain, Packet, WriteRegister
from ddp_rnic.sim.regions import Region, RegionError, derive, stream_ends
from ddp_rnic.sim.replay import GUARD, Plan, guard_octets, plan
from ddp_rnic.sim.tests.fake_engine import FakeEngine
from ddp_rnic.sim.tests.streams import SEND, SEND_INVALIDATE, Conversation
from ddp_rnic.sim.traffic import traffic_of

A, B = "10.7.0.1", "10.7.0.2"
STAG = 0x90190600
CAPTURES = Path(__file__).resolve().parents[2].parent / "shared" / "captures"
SIW = sorted(
    path
    for path in CAPTURES.glob("iwarp/siw_*/*.pcap")
    if (path.parent / "truth" / f"{path.stem}.server.jsonl").exists()
)


def plan_of(talk: Conversation, regions: list[Region], config: RnicConfig | None = None) -> Plan:
    (only,), _ = plan(talk.traffic(), regions, config or RnicConfig())
    return only


def run(planned: Plan) -> np.ndarray:
    """Host memory after a run that must agree."""
    memory = planned.memory.copy()
    outcome = FakeEngine().run(planned.config, planned.operations, memory)
    assert compare(planned, outcome, memory) == []
    return memory


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
    assert all(planned.allotment_at(int(address)) for address in np.flatnonzero(inside))
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
    # With STags that fit beside each other, one RNIC serves both, and a STag is good for its host
    # alone.
    plans, notes = plan(talk.traffic(), [regions[0], Region(B, 0x1000, 0, 5)], RnicConfig())
    assert len(plans) == 1 and not notes
    assert [error.number for error in plans[0].golden.errors] == [INVALID_STAG]


def test_the_table_grows_for_stags_that_want_one_entry() -> None:
    talk = Conversation()
    talk.write(B, 0x100, 0, b"one")
    regions = [Region(B, 0x100, 0, 8), Region(B, 0x100 + (1024 << 8), 0, 8)]
    plans, notes = plan(talk.traffic(), regions, RnicConfig())
    assert plans[0].config.stags == 2048 and "2048 entries" in notes[0]
    run(plans[0])
    with pytest.raises(RegionError, match="want the same entry"):
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
    # Whatever the host changes, it changes while nothing is in flight.
    kinds = [type(each) for each in planned.operations]
    for at, kind in enumerate(kinds[1:], 1):
        if kind is WriteRegister and Packet in kinds[:at]:
            assert kinds[at - 1] in (WriteRegister, Drain)


def test_a_send_with_invalidate_revokes_with_a_region_file_too() -> None:
    talk = Conversation()
    talk.write(B, STAG, 0, b"1")
    talk.untagged(B, SEND_INVALIDATE, stag=STAG)
    talk.write(B, STAG, 0, b"2")
    planned = plan_of(talk, [Region(B, STAG, 0, 1)])
    assert octets_of(planned, run(planned), STAG) == b"1"
    assert planned.golden.counters()["EXCEPTIONS"] == 1


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


# -- real stacks --


def truth(capture: Path) -> dict[Region, bytes]:
    """The regions that the peers registered, with what they held in the end."""
    found = {}
    for side, host in (("server", B), ("client", A)):
        stem = capture.parent / "truth" / f"{capture.stem}.{side}"
        for line in stem.with_name(stem.name + ".jsonl").read_text().splitlines():
            entry = json.loads(line)
            if entry["ev"] == "region":
                name = entry["name"]
                region = Region(
                    host, entry["stag"], entry["base"], entry["len"], 0xEE, name != "ro"
                )
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
        # A derived region cannot know what its owner had painted it with.
        same = (got == expected) | (derived & (got == 0) & (expected == owner.fill))
        assert same.all(), f"{region}: first at {int(np.flatnonzero(~same)[0])}"
    # What the peer refused as a tagged segment is refused here, and with the same number.
    names = {
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
    assert played >= 30
