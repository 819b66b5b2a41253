"""Tests that a capture of any length is sorted into segments in little memory."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from ddp_rnic.sim.capture import spool
from ddp_rnic.sim.capture.capture import capture_of
from ddp_rnic.sim.capture.pcap import CaptureError, Frame
from ddp_rnic.sim.capture.spool import Octets, Rows, Spool
from ddp_rnic.sim.capture.tests.frames import A, B, ethernet, first_octet, handshake, tcp_packet
from ddp_rnic.sim.capture.traffic import traffic_of
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.mpa import MpaSender


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


def talk(count: int) -> Iterator[Frame]:
    """Yields a connection with this many segments of 1400 octets each."""
    packets = handshake()
    for number, packet in enumerate(packets, 1):
        yield Frame(number, number * 1e-3, 1, ethernet(packet))
    source, sender = DataSource(1436), MpaSender(crc=True, markers=False)
    sequence = first_octet(1000)
    for number in range(len(packets) + 1, len(packets) + 1 + count):
        (segment,) = source.tagged(0x1234, (number % 100) * 1400, bytes(1400))
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
