"""The model plays captures of DDP over the Linux kernel's SCTP, and must end in the same state."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.sim.capture.layers import SCTP, ip_packet
from ddp_rnic.sim.capture.pcap import read_frames
from ddp_rnic.sim.model.ddp import DataSink
from ddp_rnic.sim.model.events import Delivered, Event, Placed
from ddp_rnic.sim.model.memory import Memory, Region
from ddp_rnic.sim.model.rdmap import RdmapSink
from ddp_rnic.sim.model.sctp import (
    Association,
    Discarded,
    Function,
    SctpEvent,
    SegmentReceived,
    SessionControl,
    SessionIllegal,
)

Truth = list[dict[str, Any]]
Key = tuple[int, int]  # stream, session
PAINT = 0xEE


def pattern(k: int, start: int, length: int) -> bytes:
    return bytes(
        (131 * k + 7 * i + 13 * (i >> 8) + 29 * (i >> 16)) & 0xFF
        for i in range(start, start + length)
    )


def first_difference(expected: bytes, got: bytes) -> int | None:
    return next((i for i in range(len(expected)) if expected[i] != got[i]), None)


def load(path: Path) -> Truth:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass
class End:
    """One end: its association, and for every session a Data Sink with a region."""

    truth: Truth
    association: Association = field(default_factory=Association)
    memory: Memory = field(default_factory=Memory)
    sinks: dict[Key, DataSink] = field(default_factory=dict)
    octets: dict[Key, bytearray] = field(default_factory=dict)
    events: list[SctpEvent] = field(default_factory=list)
    placed: list[tuple[Key, Placed]] = field(default_factory=list)
    delivered: dict[Key, list[Delivered]] = field(default_factory=lambda: defaultdict(list))
    errors: list[Event] = field(default_factory=list)

    def take(self, events: list[SctpEvent]) -> None:
        self.events += events
        for event in events:
            if isinstance(event, SegmentReceived):
                key = event.stream, event.session
                for result in self._sink(key).receive(event.segment, event.order):
                    if isinstance(result, Placed):
                        self.placed.append((key, result))
                    elif isinstance(result, Delivered):
                        self.delivered[key].append(result)
                    else:
                        self.errors.append(result)

    def _sink(self, key: Key) -> DataSink:
        if key not in self.sinks:
            stream, _ = key
            # The region of the previous session on this stream is revoked with that session.
            self.memory.revoke_stream(stream)
            record = next(
                r for r in self.truth if r["ev"] == "region" and (r["stream"], r["session"]) == key
            )
            self.octets[key] = bytearray([PAINT]) * record["len"]
            self.memory.register(
                Region(stag=record["stag"], to=record["base"], length=record["len"], stream=stream),
                self.octets[key],
            )
            # Segments follow the one control message of section 6.2 that opens the session.
            sink = self.sinks[key] = RdmapSink(self.memory, stream=stream, first=1)
            sink.post(0, 1 << 18, 4096)
        return self.sinks[key]


def play(path: Path, active: End, passive: End) -> None:
    pcap = path.parents[2] / f"sctp_{path.parent.name}.pcap"
    initiator = None
    for frame in read_frames(pcap):
        packet = ip_packet(frame)
        if packet is None or packet.protocol != SCTP:
            continue
        initiator = initiator or packet.source
        sender, receiver = (active, passive) if packet.source == initiator else (passive, active)
        sender.take(sender.association.observe(packet.payload))
        receiver.take(receiver.association.receive(packet.payload))


@pytest.fixture(scope="module")
def ends(sctp_truth: Path) -> tuple[End, End]:
    active = End(load(sctp_truth.with_name(sctp_truth.name.replace("passive", "active"))))
    passive = End(load(sctp_truth))
    play(sctp_truth, active, passive)
    return active, passive


@pytest.mark.parametrize("side", ["active", "passive"])
def test_regions_are_those_of_the_peer(
    sctp_truth: Path,
    ends: tuple[End, End],
    side: str,
) -> None:
    end = ends[side == "passive"]
    compared = 0
    for record in end.truth:
        if record["ev"] == "region":
            key = record["stream"], record["session"]
            octets = gzip.decompress((sctp_truth.parent / f"{record['file']}.gz").read_bytes())
            got = end.octets.get(key, bytearray([PAINT]) * record["len"])
            different = first_difference(octets, got)
            if different is not None:
                # The end of the passive side's region is the source of its Read Responses, filled
                # by its owner with the pattern of the captures' README.
                length = len(octets) - different
                owner = next(
                    k
                    for k in range(256)
                    if pattern(k, different, 1) == octets[different : different + 1]
                )
                source = side == "passive" and pattern(owner, different, length)
                assert octets[different:] == source, f"stream {key} differs at octet {different}"
                assert got[different:] == bytes([PAINT]) * length
            compared += 1
    assert compared
    assert not end.errors
    assert not [e for e in end.events if isinstance(e, SessionIllegal)]


@pytest.mark.parametrize("side", ["active", "passive"])
def test_messages_are_delivered_in_order_and_once(
    ends: tuple[End, End],
    side: str,
) -> None:
    end = ends[side == "passive"]
    expected = defaultdict(list)
    for record in end.truth:
        if record["ev"] == "deliver":
            expected[record["stream"], record["session"]].append(
                (record["qn"], record["msn"], record["len"])
            )
    untagged = {
        key: [(e.header.qn, e.header.msn, e.length) for e in events if not e.header.tagged]
        for key, events in end.delivered.items()
    }
    assert {key: events for key, events in untagged.items() if events} == expected
    # The peer logged a hash of each message: equal hashes mean equal messages, and only these.
    texts: dict[int, bytes | None] = {}
    for record in end.truth:
        if record["ev"] == "deliver":
            (text,) = [
                e.message
                for e in end.delivered[record["stream"], record["session"]]
                if not e.header.tagged
                and (e.header.qn, e.header.msn) == (record["qn"], record["msn"])
            ]
            assert texts.setdefault(record["h"], text) == text
    assert len(set(texts.values())) == len(texts)


@pytest.mark.parametrize("side", ["active", "passive"])
def test_control_messages_are_those_of_the_peer(ends: tuple[End, End], side: str) -> None:
    end = ends[side == "passive"]
    for kind, sent in (("rxctl", False), ("txctl", True)):
        expected, got = defaultdict(list), defaultdict(list)
        for record in end.truth:
            if record["ev"] == kind:
                expected[record["stream"]].append(
                    (record["session"], record["fn"], record["pd_len"])
                )
        for event in end.events:
            if isinstance(event, SessionControl) and event.sent == sent:
                got[event.stream].append((event.session, event.function, len(event.private_data)))
        assert got == expected


def test_chunks_arrive_in_the_passive_sides_order(ends: tuple[End, End]) -> None:
    """The passive side recorded the wire's order: its kernel handed up each chunk on
    arrival, and once.
    """
    _, passive = ends
    expected, got = defaultdict(list), defaultdict(list)
    for record in passive.truth:
        if record["ev"] == "rx" and record["ppid"] == 16:
            expected[record["stream"]].append((record["ssn"], record["len"]))
    for event in passive.events:
        if isinstance(event, SegmentReceived):
            got[event.stream].append((event.order & 0xFFFF, len(event.segment) + 2))
    assert got == expected


def test_every_session_is_established_and_ended_or_refused(ends: tuple[End, End]) -> None:
    for end in ends:
        functions = defaultdict(list)
        for event in end.events:
            if isinstance(event, SessionControl):
                functions[event.stream, event.session].append(event.function)
        for heard in functions.values():
            assert heard[0] is Function.INITIATE
            assert heard[1] is not Function.INITIATE
        discarded = [e.reason for e in end.events if isinstance(e, Discarded)]
        assert all("came before" in reason for reason in discarded)
