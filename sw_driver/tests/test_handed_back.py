"""Tests of the chunks that the host hands back: their frames, their fragments, and their time."""

from __future__ import annotations

import random
from dataclasses import replace

import dpkt
import pytest
from ddp_rnic.hdl.spec.sctp import Diversion
from ddp_rnic.sim.model.sctp import DataChunk, Packet, Ppid
from ddp_rnic.sw_driver import InvalidRequest
from ddp_rnic.sw_driver.verbs.handed_back import (
    LONGEST_CHUNK,
    Fragments,
    HeldChunks,
    frame_of,
    message_of,
)

PATHS = [("10.7.0.1", "10.7.0.2"), ("fd00::7:1", "fd00::7:2")]
TSN = 0xFFFFFFFE  # so that TSNs wrap


def raw(chunk: DataChunk) -> bytes:
    """Returns the chunk as the device forwards it, without padding."""
    octets = chunk.encode()
    return octets[: int.from_bytes(octets[2:4], "big")]


def pieces(payload: bytes, size: int, tsn: int = TSN, sid: int = 1) -> list[bytes]:
    starts = range(0, len(payload), size)
    return [
        raw(
            DataChunk(
                (tsn + n) % 2**32, sid, Ppid.SEGMENT, payload[start : start + size],
                beginning=n == 0, ending=n == len(starts) - 1,
            )
        )
        for n, start in enumerate(starts)
    ]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 1400])
def test_a_frame_holds_the_chunk_alone(path: tuple[str, str], size: int) -> None:
    """Scapy finds the packet correct: addresses, checksums, padding."""
    chunk = DataChunk(TSN, 3, Ppid.SEGMENT, bytes(range(251)) * 6)
    chunk = replace(chunk, payload=chunk.payload[:size])
    ethernet = dpkt.ethernet.Ethernet(frame_of(path, (4001, 4002), 0x12345678, raw(chunk)))
    ip = ethernet.data
    octets = ip.data if isinstance(ip.data, bytes) else bytes(ip.data)
    if isinstance(ip, dpkt.ip.IP):
        assert dpkt.in_cksum(bytes(ip)[:20]) == 0 and ip.len == 20 + len(octets)
    assert ip.p == 132
    assert Packet.parse(octets) == Packet(4001, 4002, 0x12345678, (chunk,))


def test_the_longest_chunk_fits_a_frame_and_no_longer_one() -> None:
    payload = bytes(LONGEST_CHUNK - 16)
    whole = message_of(pieces(payload, 30000))
    assert len(frame_of(PATHS[0], (1, 2), 3, whole)) <= 14 + 65535
    with pytest.raises(InvalidRequest, match="at most 65484 octets to be handed back, not 65485"):
        message_of(pieces(payload + b"x", 30000))


@pytest.mark.parametrize("seed", range(20))
def test_fragments_of_several_messages_come_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    messages, parts, tsn = [], [], TSN
    for number in range(4):
        payload = rng.randbytes(rng.randrange(2, 90))
        fragments = pieces(payload, rng.randrange(1, len(payload)), tsn, sid=number % 2)
        messages.append(raw(DataChunk(tsn, number % 2, Ppid.SEGMENT, payload)))
        parts += fragments
        tsn = (tsn + len(fragments)) % 2**32
    rng.shuffle(parts)
    together = Fragments()
    found = [whole for part in parts if (whole := together.take(part)) is not None]
    assert sorted(found) == sorted(messages)
    assert not together._parts


def test_a_message_without_an_end_is_dropped_when_it_is_too_long() -> None:
    together = Fragments()
    parts = pieces(bytes(90000), 1400)[:-1]
    with pytest.raises(InvalidRequest, match="end its session"):
        for part in parts:
            together.take(part)
    assert not together._parts


def test_what_overtakes_an_answer_goes_back_once_that_has_come() -> None:
    held = HeldChunks()
    early = [raw(DataChunk((TSN + n) % 2**32, n % 2, Ppid.SEGMENT, b"early")) for n in range(4)]
    held.ask(0, TSN - 1)
    held.ask(1, TSN)
    for chunk in early:
        held.take(Diversion.EARLY, chunk)
    assert not held.due()
    held.answer(0)
    assert list(held.due()) == [early[0], early[2]]
    held.due().clear()
    held.answer(1)
    assert list(held.due()) == [early[1], early[3]]


def test_fragments_that_overtake_an_answer_go_back_once_that_has_come() -> None:
    """Otherwise the device forwards the message again, as one that its host has acknowledged."""
    held = HeldChunks()
    held.ask(1, TSN - 1)
    for each in pieces(b"a message", 5):
        held.take(Diversion.FRAGMENT, each)
    assert not held.due()
    held.answer(1)
    message = raw(DataChunk(TSN, 1, Ppid.SEGMENT, b"a message"))
    assert list(held.due()) == [message] and held.octets == len(message)
    fragment = pieces(b"another one", 5, TSN + 5)[0]
    held.take(Diversion.FRAGMENT, fragment)
    assert held.octets == len(message) + len(fragment)
    held.end(1)
    assert not held.due() and held.octets == 0


def test_nothing_goes_back_to_a_session_that_has_ended() -> None:
    """RFC 5043 section 6: "Data Chunks from one DDP Stream Session are never carried over to the
    next session."
    """
    held = HeldChunks()
    chunk = raw(DataChunk(TSN, 0, Ppid.SEGMENT, b"early"))
    held.take(Diversion.EARLY, chunk)  # of a session that is over already
    held.ask(0, TSN - 1)
    held.take(Diversion.EARLY, chunk)
    held.end(0)
    held.answer(0)
    assert not held.due()
    held.ask(0, TSN)
    held.take(Diversion.EARLY, chunk)
    held.answer(0)
    assert not held.due()


def test_a_message_in_fragments_goes_back_at_once() -> None:
    held = HeldChunks()
    one, two = pieces(b"a message", 5)
    held.take(Diversion.FRAGMENT, two)
    assert not held.due()
    held.take(Diversion.FRAGMENT, one)
    assert list(held.due()) == [raw(DataChunk(TSN, 1, Ppid.SEGMENT, b"a message"))]
