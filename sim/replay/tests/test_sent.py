"""The device reports which messages were sent, once the last octet of each has left it.

RFC 5041 section 5.4 lets a Data Source say that a message is complete once its LLP needs the
message's buffers no more; the LLP here keeps a copy of each FPDU that it takes.
"""

from __future__ import annotations

import random

import pytest
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.completion import Kind as CompletionKind
from ddp_rnic.hdl.spec.completion import SentStatus
from ddp_rnic.hdl.spec.send import ENTRY, Flag, Kind, Message
from ddp_rnic.sim.engines.compiled import CompiledEngine
from ddp_rnic.sim.engines.engine import UNSTALLED, Await, Drain, Outcome, Pause, Ring, Stalls
from ddp_rnic.sim.model.ddp import decode_segment
from ddp_rnic.sim.replay.tests.test_send_plan import (
    ENTRIES,
    ERRING,
    GOOD,
    ORDINARY,
    OTHER,
    STALLS,
    Device,
    payloads,
    piece,
    write,
)

ENGINE = CompiledEngine()
SUCCESS, FAILED, FLUSHED = SentStatus
#: The ring lies after those of the device's streams.
RING = Ring(address=1 << 20, size=6)


class Reporting(Device):
    """A device whose completions are taken."""

    def __init__(
        self, width: int = 64, entries: int = ENTRIES, size: int = RING.size, *,
        receive: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(width, entries, receive=receive)
        self.completions = Ring(address=RING.address, size=size)
        self.memory.resize(RING.address + self.completions.entries * 32, refcheck=False)
        self.do(self.completions.command())
        self.signaled: dict[int, list[int]] = {1: [], 2: [], 3: []}

    def send(self, stream: int, message: Message, *, signaled: bool = True) -> None:
        flags = message.flags | (Flag.SIGNALED if signaled else Flag(0))
        self.post(stream, Message(**{**vars(message), "flags": flags}))
        if signaled:
            self.signaled[stream].append(self.producer[stream])

    def play(self, stalls: Stalls = UNSTALLED, faults: tuple[range, ...] = ()) -> Outcome:
        return ENGINE.run(
            self.config, self.operations, self.memory, ring=self.completions, stalls=stalls,
            faults=faults,
        )  # fmt: skip


def sent(outcome: Outcome, stream: int) -> list[tuple[SentStatus, int]]:
    """Returns status and ``done`` of a stream's completions."""
    return [
        (SentStatus(each.status), each.tag)
        for each in outcome.completions
        if each.kind is CompletionKind.SENT and each.stream == stream
    ]


@pytest.mark.parametrize("width", ORDINARY)
@pytest.mark.parametrize("stalls", [UNSTALLED, STALLS], ids=["fast", "stalled"])
def test_a_message_completes_after_its_last_fpdu_has_left(width: int, stalls: Stalls) -> None:
    device, rng = Reporting(width), random.Random(4)
    ends: dict[int, list[tuple[int, int]]] = {1: [], 2: []}  # index, FPDUs of the stream until then
    for _ in range(40):
        stream = rng.choice((1, 2))
        octets = rng.randrange(3000)
        if len(ends[stream]) < 25:
            stag = (0x1205, OTHER)[stream - 1]
            device.send(stream, write(piece(0x5000, octets, stag)), signaled=rng.random() < 0.6)
            needs = -(-max(octets, 1) // (1000 - 14)) + (ends[stream][-1][1] if ends[stream] else 0)
            ends[stream].append((device.producer[stream], needs))
    outcome = device.play(stalls)
    for stream in (1, 2):
        fpdus = [each for each in outcome.fpdus if each.stream == stream]
        assert ends[stream][-1][1] == len(fpdus)
        last, count = 0, 0
        for each, cycle in zip(outcome.completions, outcome.delivered, strict=True):
            if each.stream == stream:
                count += 1
                assert (each.kind, each.status) == (CompletionKind.SENT, SUCCESS)
                assert each.tag > last
                last = each.tag
                assert cycle > fpdus[dict(ends[stream])[last] - 1].last
        assert count and last >= device.signaled[stream][-1]


def test_messages_that_wait_for_credit_end_when_the_host_closes_the_half() -> None:
    """``SEND_FLAGS.open`` 0: "messages end without credit", and no doorbell has to follow."""
    device = Reporting()
    device.do(commands.set_limit(1, 0), commands.set_sending(1, sequence=0, limited=True))
    for _ in range(3):
        device.send(1, GOOD)
    device.operations.append(Drain())
    device.do(commands.set_sending(1, sequence=0, limited=True, open=False))
    device.operations.append(Await(1))
    outcome = device.play()
    assert not outcome.fpdus
    assert sent(outcome, 1) == [(FLUSHED, index) for index in device.signaled[1]]


def test_reads_without_a_slot_wait_in_silence_and_end_when_the_host_closes_the_half() -> None:
    device = Reporting()
    device.do(commands.set_reads(1, 1))
    for at in range(3):
        device.send(1, Message(Kind.READ, pieces=(piece(0x5000 + at, 100),), stag=0x33, to=0x4444))
    # Nothing moves on the bus any more: entries that wait are not read again and again.
    device.operations.append(Drain())
    device.do(commands.set_sending(1, sequence=0, open=False))
    device.operations.append(Await(2))
    outcome = device.play()
    assert len(outcome.fpdus) == 1
    first, *waited = device.signaled[1]
    assert sent(outcome, 1) == [(SUCCESS, first), *((FLUSHED, index) for index in waited)]


@pytest.mark.parametrize("erring", ERRING)
def test_success_failure_and_flush_are_three_completions(erring: str) -> None:
    device = Reporting()
    for _ in range(3):
        device.send(1, GOOD, signaled=False)
    device.send(1, ERRING[erring], signaled=False)
    failed = device.producer[1]
    for _ in range(3):
        device.send(1, GOOD)
        device.send(2, write(piece(0x5001, 1999, OTHER)))
    outcome = device.play(STALLS)
    assert sent(outcome, 1)[:2] == [(SUCCESS, 3), (FAILED, failed)]
    assert {status for status, _ in sent(outcome, 1)[2:]} == {FLUSHED}
    assert sent(outcome, 1)[-1] == (FLUSHED, device.producer[1])
    assert {status for status, _ in sent(outcome, 2)} == {SUCCESS}
    assert sent(outcome, 2)[-1] == (SUCCESS, 3)


@pytest.mark.parametrize("kind", ["the producer is beyond the ring", "the bus refuses the ring"])
def test_a_ring_that_is_wrong_fails_without_an_entry(kind: str) -> None:
    device = Reporting()
    device.send(1, GOOD)
    device.operations.append(Await(1))
    device.send(2, write(piece(0x5001, 1999, OTHER)))
    faults: tuple[range, ...] = ()
    if "bus" in kind:
        device.send(1, GOOD)
        faults = (range(device.ring(1) + ENTRY, device.ring(1) + ENTRY + 1),)
    else:
        device.do(commands.ring_send(1, 2 + (1 << ENTRIES)))
    outcome = device.play(faults=faults)
    found = sent(outcome, 1)
    assert found[:2] == [(SUCCESS, 1), (FAILED, 1)]
    assert found[2:] == ([(FLUSHED, 2)] if faults else [])
    assert sent(outcome, 2) == [(SUCCESS, 1)]


def test_requests_of_a_stream_that_is_not_open_are_flushed() -> None:
    device = Reporting()
    device.do(commands.set_mulpdu(3, 1000))
    for _ in range(3):
        device.send(3, Message(Kind.UNTAGGED, flags=Flag.INLINE, octets=b"x"), signaled=False)
    outcome = device.play()
    assert {status for status, _ in sent(outcome, 3)} == {FLUSHED}
    assert sent(outcome, 3)[-1] == (FLUSHED, 3)


@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_queue_without_room_keeps_the_latest_ends(size: int) -> None:
    """A queue never overruns by messages that are sent, and nothing that is sent waits for it."""
    device = Reporting(entries=9, size=size)
    device.operations.append(Pause())
    for _ in range(60):
        for stream, stag in ((1, 0x1205), (2, OTHER)):
            device.send(stream, write(piece(0x5000, 700, stag)))
    device.operations.append(Drain())
    outcome = device.play()
    assert [len(payloads(outcome, stream)) for stream in (1, 2)] == [60, 60]
    for stream in (1, 2):
        found = sent(outcome, stream)
        assert found[-1] == (SUCCESS, 60) and {status for status, _ in found} == {SUCCESS}
        assert [done for _, done in found] == sorted({done for _, done in found})
    # While the host took none, the ring took its size, and afterwards one for each stream.
    assert len(outcome.completions) <= 2 + (1 << size)


def test_a_message_that_is_sent_in_many_turns_completes_once() -> None:
    device = Reporting()
    device.send(1, write(piece(0x5000, 60_000)))
    device.send(2, write(piece(0x5000, 50_000, OTHER)))
    outcome = device.play()
    assert sent(outcome, 1) == [(SUCCESS, 1)] and sent(outcome, 2) == [(SUCCESS, 1)]
    headers = [decode_segment(each.octets[2:-4])[0] for each in outcome.fpdus]
    assert sum(header.last for header in headers) == 2
