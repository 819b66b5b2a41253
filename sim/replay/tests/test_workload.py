"""The generated workload is sound and always the same, and its results are known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import (
    BASE_OR_BOUNDS,
    INVALID_MO,
    INVALID_QN,
    INVALID_STAG,
    LLP_CRC,
    MESSAGE_TOO_LONG,
    MSN_RANGE,
    NO_BUFFER,
    TAGGED_VERSION,
)
from ddp_rnic.sim.capture.capture import read_capture
from ddp_rnic.sim.capture.pcap import write_pcap
from ddp_rnic.sim.capture.streams import Untagged
from ddp_rnic.sim.capture.traffic import traffic_of
from ddp_rnic.sim.replay.plan import plan
from ddp_rnic.sim.replay.regions import derive, stream_ends
from ddp_rnic.sim.replay.workload import SHIPPED, generate

DATA = Path(__file__).resolve().parents[2] / "data"


def test_the_capture_that_ships_is_the_workload(tmp_path: Path) -> None:
    write_pcap(generate(**SHIPPED).frames, tmp_path / "workload.pcap")
    assert (tmp_path / "workload.pcap").read_bytes() == (DATA / "workload.pcap").read_bytes(), (
        "make it anew: python -m ddp_rnic.sim.replay.workload sim/data/workload.pcap"
    )


def test_a_workload_reads_the_same_from_its_file(tmp_path: Path) -> None:
    workload = generate(messages=10)
    write_pcap(workload.frames, tmp_path / "workload.pcap")
    read = read_capture(tmp_path / "workload.pcap")
    assert [each.octets for each in read.directions] == [
        each.octets for each in workload.capture().directions
    ]
    assert not read.notes


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("seed", range(1, 5))
def test_memory_is_what_the_senders_know_it_must_be(seed: int, derived: bool) -> None:
    workload = generate(seed)
    traffic = traffic_of(workload.capture())
    # Two of the faults are messages with wrong numbers.
    assert len(traffic.notes) == len(traffic.misnumbered) == 2
    if derived:
        found = derive(traffic)
        plans, notes = plan(traffic, found.regions, RnicConfig(buffers=8192), found.ends)
    else:
        plans, notes = plan(
            traffic, workload.regions, RnicConfig(buffers=8192), stream_ends(traffic)
        )
    assert len(plans) == 1 and not notes
    golden = plans[0].golden
    assert [error.number for error in golden.errors] == [
        INVALID_STAG,
        LLP_CRC,
        BASE_OR_BOUNDS,
        TAGGED_VERSION,
        INVALID_QN,
        NO_BUFFER,
        MSN_RANGE,
        INVALID_MO,
        MESSAGE_TOO_LONG,
    ]
    assert golden.counters()["DROPPED"] == 18
    for region, octets in golden.octets.items():
        sent = next(
            (key, value)
            for key, value in workload.octets.items()
            if (key.endpoint, key.stag) == (region.endpoint, region.stag)
        )
        known = sent[1][region.to - sent[0].to :][: region.length]
        # Where nothing was written, a derived region holds 0, not the owner's fill.
        assert bytes(octets).replace(b"\xee", b"\0") == known.replace(b"\xee", b"\0"), region


def test_workloads_differ_by_seed_alone() -> None:
    assert generate(7, 5).frames == generate(7, 5).frames != generate(8, 5).frames


def test_a_workload_has_every_kind_of_stream() -> None:
    workload = generate(**SHIPPED)
    streams = traffic_of(workload.capture()).streams
    assert {(stream.crc, stream.markers) for stream in streams} == {
        (True, False),
        (True, True),
        (False, False),
    }
    assert any(":" in stream.source.address for stream in streams)


@pytest.mark.parametrize("seed", range(1, 5))
def test_messages_are_received_as_they_were_sent(seed: int) -> None:
    workload = generate(seed)
    traffic = traffic_of(workload.capture())
    (planned,), _ = plan(traffic, workload.regions, RnicConfig(), stream_ends(traffic))
    image = planned.expected_memory()
    received: dict[object, list[tuple[int, bytes]]] = {
        (stream.source, stream.destination): [] for stream in traffic.streams
    }
    for each in planned.golden.deliveries:
        if each.buffer is not None:
            stream, start = each.arrival.stream, each.buffer.address
            message = image[start : start + each.completion.length].tobytes()
            received[stream.source, stream.destination].append((each.buffer.qn, message))
    assert received == workload.messages


def test_a_workload_has_every_kind_of_message_on_every_stream() -> None:
    workload = generate(**SHIPPED)
    segments = Counter(
        (arrival.stream.number, arrival.header.queue, arrival.header.msn)
        for arrival in traffic_of(workload.capture()).arrivals
        if isinstance(arrival.header, Untagged)
    )
    several = {stream for (stream, queue, _), count in segments.items() if count > 1}
    assert several == set(range(20))
    for messages in workload.messages.values():
        assert {queue for queue, _ in messages} >= {0, 1, 3}
        assert (0, b"") in messages
    assert any(queue == 2 for messages in workload.messages.values() for queue, _ in messages)
