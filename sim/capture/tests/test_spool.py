"""Tests that a capture of any length is sorted into segments in little memory."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.capture import spool
from ddp_rnic.sim.capture.capture import capture_of
from ddp_rnic.sim.capture.pcap import CaptureError, Frame
from ddp_rnic.sim.capture.sctp_traffic import DdpSession, Incoming, Tell
from ddp_rnic.sim.capture.spool import Again, Kept, Numbers, Octets, Rows, Spool
from ddp_rnic.sim.capture.tests.associations import WRITE, Peers
from ddp_rnic.sim.capture.tests.frames import A, B, ethernet, first_octet, handshake, tcp_packet
from ddp_rnic.sim.capture.traffic import traffic_of, with_sctp
from ddp_rnic.sim.capture.unplayed import unplayed_sctp
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.mpa import MpaSender
from ddp_rnic.sim.model.sctp import Ppid, SackChunk
from ddp_rnic.sim.replay import plan
from ddp_rnic.sim.replay.sctp_regions import derive_all


@pytest.mark.parametrize("kept", [1, 7, 1 << 20])
def test_octets_come_back_in_any_piece(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_KEPT", kept)
    monkeypatch.setattr(spool, "_SEARCHED", 5)
    kept_octets = Spool()
    octets = Octets(kept_octets)
    whole = bytes(range(200))
    for start in range(0, 200, 8):
        place = kept_octets.put(b"before" + whole[start : start + 8])
        octets.append(place + 6, 8)
    assert len(octets) == 200
    for start in range(200):
        assert octets.read(start, start + 19) == whole[start : start + 19]
        assert octets.find(whole[start : start + 4]) == start
    assert octets.find(b"none") == -1 and octets.find(whole[:4], 1) == -1
    assert octets.read(200, 300) == b""


def test_rows_keep_their_numbers() -> None:
    rows = Rows("QdQ")
    rows.append(1, 0.5, 2)
    rows.append(3, 0.25, 1 << 40)
    assert [*rows] == [(1, 0.5, 2), (3, 0.25, 1 << 40)] and len(rows) == 2
    with pytest.raises(ValueError):
        rows.append(1, 2)


def test_a_full_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spool, "_KEPT", 1)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CaptureError, match=r"cannot be kept in .*: No space left.*TMPDIR"):
        Spool().put(b"one")


def talk(count: int, step: int = 1400) -> Iterator[Frame]:
    """Yields a connection with this many segments of 1400 octets each. In memory each begins
    ``step`` octets after the one before, for a hundred of them.
    """
    packets = handshake()
    for number, packet in enumerate(packets, 1):
        yield Frame(number, number * 1e-3, 1, ethernet(packet))
    source, sender = DataSource(1436), MpaSender(crc=True, markers=False)
    sequence = first_octet(1000)
    for number in range(len(packets) + 1, len(packets) + 1 + count):
        (segment,) = source.tagged(0x1234, (number % 100) * step, bytes(1400))
        octets = sender.send(segment)
        packet = tcp_packet(A, B, sequence, octets, acknowledged=5000)
        sequence += len(octets)
        yield Frame(number, number * 1e-3, 1, ethernet(packet))


def test_memory_grows_by_few_octets_with_each_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_KEPT", 1 << 16)
    monkeypatch.setattr(spool, "_SEARCHED", 1 << 16)
    peaks = []
    for count in (500, 4500):
        tracemalloc.start()
        traffic = traffic_of(capture_of(talk(count), Path("talk")))
        assert len(traffic.arrivals) == count == sum(1 for _ in traffic.arrivals)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 4000 < 200  # a segment has 1400 octets


def exchange(count: int) -> Iterator[Frame]:
    """Yields a session over SCTP with this many segments of 1400 octets, each in a frame, and as
    many SACK chunks.
    """
    peers = Peers(a="10.9.0.1", b="10.9.0.2")
    peers.set_up()
    peers.open(0)
    number = 0
    for each in range(count):
        to, tsn = (each % 100) * 1400, peers._next["10.9.0.1"]
        header = TaggedHeader(0x100, to, each % 4 == 3, WRITE).encode()
        data = peers.data("10.9.0.1", 0, Ppid.SEGMENT, header + bytes([each % 251]) * 1400)
        peers.send("10.9.0.1", data)
        peers.send("10.9.0.2", SackChunk(tsn))
        for frame in peers.frames:
            number += 1
            yield Frame(number, number * 1e-3, 1, frame.octets)
        peers.frames.clear()


def test_memory_grows_by_few_octets_with_each_chunk_of_sctp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peaks are those of the reading of a capture, and of a run that forgets each piece."""
    monkeypatch.setattr(spool, "_KEPT", 1 << 16)
    monkeypatch.setattr(plan, "_AHEAD", 0)
    peaks = []
    for count in (100, 700):
        tracemalloc.start()
        capture = capture_of(exchange(count), Path("exchange"))
        traffic = with_sctp(traffic_of(capture), capture.sctp)
        assert unplayed_sctp(capture.sctp, traffic.sctp) == []
        regions = derive_all(traffic).regions
        peaks.append(tracemalloc.get_traced_memory()[1])
        (replay,), _ = plan.replays(traffic, regions, RnicConfig(sctp=True))
        octets, before = 0, tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for number, operation in enumerate(replay.operations()):
            octets += len(getattr(operation, "octets", b""))
            if number % 50 == 0:
                replay.plan.forget()
        assert octets > count * 1400 and replay.plan.golden.counts[1].placed == count
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()
    # A segment has 1400 octets.
    assert (peaks[2] - peaks[0]) / 600 < 300
    assert (peaks[3] - peaks[1]) / 600 < 50


def test_kept_objects_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_KEPT", 1000)
    capture = capture_of(exchange(20), Path("exchange"))
    again = [*exchange(20)]
    assert [frame.octets for frame in capture.sctp] == [frame.octets for frame in again]
    assert capture.sctp[7] == [*capture.sctp][7] and capture.sctp[-1].number == len(again)
    assert [each.number for each in capture.sctp[2:5]] == [3, 4, 5]
    sctp = with_sctp(traffic_of(capture), capture.sctp).sctp
    assert sctp is not None and [*sctp.steps] == [*sctp.steps]
    for step in sctp.steps:
        if isinstance(step, Incoming):
            assert step.end is None or step.end in sctp.ends  # not a copy, which is not equal
            assert all(item.raw in step.octets for item in step.items)
        elif isinstance(step, Tell) and step.session is not None:
            assert isinstance(step.session, DdpSession) and step.session in sctp.sessions
    other = Kept[bytes](lambda octets: octets)
    for octets in (b"one", b"", b"three"):
        other.append(octets)
    assert [*other.only([1, 0, 1])] == [b"one", b"three"] and len(other) == 3


def test_numbers_are_a_set() -> None:
    numbers, others = Numbers(), [0, 7, 8, 4095, 4096, (1 << 32) - 1]
    assert all(map(numbers.add, others)) and not any(map(numbers.add, others))
    around = {each + step for each in others for step in (-1, 0, 1)}
    assert {each for each in around if each in numbers} == set(others)


def test_objects_that_are_made_again_are_a_sequence() -> None:
    passes = []

    def make() -> Iterator[int]:
        passes.append(1)
        return iter(range(3))

    again = Again(make)
    assert sum(again) == sum(again) == 3 and len(passes) == 2
    assert len(again) == len(again) == 3 and len(passes) == 3  # counted once
    assert again and not Again(list) and again[1] == 1 and again[1:] == [1, 2]
