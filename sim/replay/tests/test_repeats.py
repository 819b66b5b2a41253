"""FPDUs that leave again, from host memory, for an LLP without copies.

The judges are the FPDU that left before, which kernels and the golden model have judged, and the
declarations of the REPEAT registers and of SEND_RELEASED.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from ddp_rnic.hdl.send.work import QUANTUM
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.completion import SentStatus
from ddp_rnic.hdl.spec.send import Flag, Message, Record
from ddp_rnic.hdl.spec.send import Kind as SendKind
from ddp_rnic.sim.engines.engine import UNSTALLED, Drain, Fpdu, Operation, Outcome, Poll, Stalls
from ddp_rnic.sim.replay.tests.test_send_plan import (
    GOOD,
    ORDINARY,
    OTHER,
    STAG,
    STALLS,
    Device,
    piece,
    write,
)  # fmt: skip
from ddp_rnic.sim.replay.tests.test_sent import Reporting, sent

WRAP = 1 << 32
SUCCESS, FAILED, FLUSHED = SentStatus
UNTAGGED = SendKind.UNTAGGED
SMALL, GOOD2 = write(piece()), write(piece(0x5001, 1999, OTHER))


def lengths(rng: random.Random) -> int:
    return rng.choice((0, 1, 63, 64, 983, 984, 985, 2500))


def posted(device: Device, stream: int, count: int, rng: random.Random) -> None:
    """Posts messages of each kind: of one piece and of several, inline, and Read Requests."""
    stag = STAG if stream == 1 else OTHER
    for _ in range(count):
        pieces = [piece(0x5000 + rng.randrange(1000), lengths(rng), stag) for _ in range(3)]
        device.post(
            stream,
            rng.choice((
                write(*pieces[: rng.randint(1, 3)]),
                Message(UNTAGGED, Flag.SIGNALED, tuple(pieces), rsvdulp=77, qn=rng.randrange(3)),
                Message(UNTAGGED, Flag.INLINE, octets=rng.randbytes(rng.randrange(100)), qn=2),
                Message(SendKind.READ, pieces=(pieces[0],), stag=9, to=8, rsvdulp=0x4100000000),
            )),
        )  # fmt: skip


def ask(device: Device, fpdu: Fpdu, **changes: int) -> None:
    """Asks for an FPDU of a stream without markers again, as its record says."""
    record, octets = Record.decode(fpdu.record), fpdu.octets
    fields: dict[str, Any] = {
        "entry": record.entry, "entries": record.entries, "offset": record.offset,
        "length": int.from_bytes(octets[:2], "big"), "msn": int.from_bytes(octets[12:16], "big"),
    }  # fmt: skip
    device.do(commands.repeat(fpdu.stream, fpdu.sequence, **fields | changes))


def parted(outcome: Outcome, stream: int) -> tuple[list[Fpdu], list[Fpdu]]:
    """Returns the FPDUs of a stream that left for the first time, and those that left again."""
    own = [fpdu for fpdu in outcome.fpdus if fpdu.stream == stream]
    again = [fpdu for fpdu in own if Record.decode(fpdu.record).repeat]
    return [fpdu for fpdu in own if fpdu not in again], again


def both(fpdus: Sequence[Fpdu]) -> list[tuple[int, bytes]]:
    return [(fpdu.sequence, fpdu.octets) for fpdu in fpdus]


def state(device: Device, stream: int, **fields: int) -> list[Operation]:
    """Waits for a state of a sending half."""
    device.do((commands.Write("SEND_STREAM", stream),))
    mask = sum(regs.pack("SEND_STATE", **{name: 1}) for name in fields)
    return [Poll(regs.address("SEND_STATE"), mask, regs.pack("SEND_STATE", **fields))]


@pytest.mark.parametrize("width", ORDINARY)
@pytest.mark.parametrize("stalls", [UNSTALLED, STALLS], ids=["fast", "stalled"])
def test_any_fpdu_leaves_again_in_any_order(width: int, stalls: Stalls) -> None:
    """DESIGN: "The owner hands a record back to have the segment sent again: same cut, same
    header". Meanwhile the stream, and another one, send further messages.
    """
    rng = random.Random(width)
    sequence = WRAP - 5000

    def begun() -> Device:
        device = Device(width)
        device.do(commands.set_sending(1, sequence=sequence, crc=True))
        posted(device, 1, 12, random.Random(1))
        device.operations.append(Drain())
        return device

    first, _ = parted(begun().run(), 1)
    asked = [rng.choice(first) for _ in range(40)]
    device = begun()
    for fpdu in asked:
        ask(device, fpdu)
        if rng.random() < 0.3:
            posted(device, rng.choice((1, 2)), 1, rng)
    device.operations += [Drain(), *state(device, 1, open=1, repeating=0)]
    sent, again = parted(device.run(stalls), 1)
    assert both(again) == both(asked)
    assert both(sent[: len(first)]) == both(first)
    # The numbers of later segments do not show that others left again (RFC 5044 section 4).
    at = sequence
    for fpdu in sent:
        assert fpdu.sequence == at % WRAP
        at += len(fpdu.octets)


@pytest.mark.parametrize("octets", [QUANTUM - 1, QUANTUM])
def test_the_longest_segment_leaves_again(octets: int) -> None:
    device = Device()
    device.do(commands.set_mulpdu(1, octets))
    device.post(1, write(piece(0x5003, 2 * octets)))
    device.operations.append(Drain())
    fpdus, _ = parted(device.run(), 1)
    assert int.from_bytes(fpdus[0].octets[:2], "big") == octets
    ask(device, fpdus[0])
    device.operations.append(Drain())
    _, again = parted(device.run(), 1)
    assert both(again) == both(fpdus[:1])


def test_octets_are_read_anew() -> None:
    """The device keeps no copy: an FPDU has the octets that are in memory now, and a new CRC."""
    device = Device()
    device.post(1, write(piece(0x5000, 800)))
    device.operations.append(Drain())
    (fpdu,) = device.run().fpdus
    ask(device, fpdu)
    device.operations.append(Drain())
    device.store_at(0x5000 + 400, b"changed!")
    ask(device, fpdu)
    device.operations.append(Drain())
    _, (same, changed) = parted(device.run(), 1)
    assert same.octets == fpdu.octets
    # Octets 0 to 15: length and header.
    assert changed.octets[: 16 + 400] == fpdu.octets[: 16 + 400]
    assert changed.octets[16 + 400 :][:8] == b"changed!"
    assert changed.octets[-4:] != fpdu.octets[-4:]


@pytest.mark.parametrize("width", ORDINARY)
@pytest.mark.parametrize("gone", ["STag", "stream"])
def test_what_may_not_be_read_any_more_ends_its_own_stream_alone(width: int, gone: str) -> None:
    """DESIGN: "rights checked anew; if the region is gone, the stream ends"."""
    device = Device(width)
    device.post(1, GOOD)
    device.post(2, write(piece(0x5001, 1999, OTHER)))
    device.operations.append(Drain())
    one, *_ = parted(device.run(), 1)[0]
    two, *_ = parted(device.run(), 2)[0]
    device.do(commands.revoke_stag(STAG) if gone == "STag" else commands.revoke_stream(1))
    ask(device, two)
    ask(device, one)
    device.post(1, GOOD)
    ask(device, two)
    device.post(2, write(piece(0x5001, 1999, OTHER)))
    device.operations.append(Drain())
    device.operations += state(device, 1, open=0, failed=1, lost=1, repeating=0)
    device.operations += state(device, 2, open=1, failed=0)
    outcome = device.run()
    sent, again = parted(outcome, 1)
    assert not again and len(sent) == 3
    sent, again = parted(outcome, 2)
    assert both(again) == both([two, two]) and len(sent) == 6


#: Records that the device has not written, by their fault; whether the stream ends.
WRONG = {
    "no entry": ({"entries": 0}, False),
    "more entries than the ring": ({"entries": 255}, False),
    "too few entries": ({"entries": 1, "entry": 3}, True),
    "an entry that is none": ({"entry": 40}, True),
    "an offset after the end": ({"offset": 5000}, True),
    "a segment longer than the message": ({"length": 9000}, True),
    "a segment without room for its header": ({"length": 13}, True),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_record_harms_no_other_stream(wrong: str) -> None:
    changes, ends = WRONG[wrong]
    device = Device()
    for _ in range(3):
        device.post(1, GOOD)
    device.post(1, write(*(piece(0x5000, 100) for _ in range(5))))
    device.post(2, GOOD2)
    device.operations.append(Drain())
    outcome = device.run()
    one, *_ = parted(outcome, 1)[0]
    two, *_ = parted(outcome, 2)[0]
    for _ in range(20):  # more than are on their way at a time
        ask(device, one, **changes)
        ask(device, two)
    device.operations.append(Drain())
    device.operations += state(device, 1, open=not ends, repeating=0)
    outcome = device.run()
    assert not parted(outcome, 1)[1]
    assert both(parted(outcome, 2)[1]) == both([two] * 20)


@pytest.mark.parametrize("width", ORDINARY)
def test_repeats_and_turns_leave_each_other_room(width: int) -> None:
    """Nobody stops anybody: between two segments that leave again, the others get a turn, and the
    other way round.
    """
    device = Device(width, entries=9)
    device.post(1, write(piece(0x5000, 500)))
    device.operations.append(Drain())
    (fpdu,) = device.run().fpdus
    for _ in range(60):
        device.store(2, GOOD2.encode())
    device.do(commands.ring_send(2, device.producer[2]))
    for _ in range(60):
        ask(device, fpdu)
    device.operations.append(Drain())
    fpdus = device.run().fpdus[1:]
    marks = [Record.decode(each.record).repeat for each in fpdus]
    assert sum(marks) == 60 and len(marks) == 60 + 60 * 3
    # A turn of stream 2 has up to 16 KiB, that is 27 segments; others were on their way before.
    places = [at for at, mark in enumerate(marks) if mark]
    waits = [there - here for here, there in zip(places, places[1:], strict=False)]
    assert max(waits) <= 2 * 27
    # Stream 2 leaves all along: it does not wait until all repeats have left, nor these for it.
    first = [at for at, mark in enumerate(marks) if not mark]
    assert places[10] < first[-1] and first[10] < places[-1]


def repeating() -> Reporting:
    """Returns a device whose stream 1 completes released messages."""
    device = Reporting()
    device.do(commands.set_send_ring(1, device.ring(1), device.entries, repeats=True))
    return device


@pytest.mark.parametrize("closed", ["by a failure", "by the host"])
def test_a_repeat_that_fails_after_the_half_was_closed_is_reported(closed: str) -> None:
    """``SEND_STATE.lost``: "an FPDU not be sent again: messages that were not released have
    failed".
    """
    device = repeating()
    wrong = closed == "by a failure"
    for to in (0x5000, 0x5000, 0x4000, 0x5000) if wrong else (0x5000, 0x5000):
        device.send(1, write(piece(to)))
    device.operations.append(Drain())
    two = device.play().fpdus[1]
    if not wrong:
        device.do(commands.set_sending(1, sequence=0, open=False))
    device.do(commands.revoke_stag(STAG))
    for _ in range(2):  # the second one changes nothing
        ask(device, two)
        device.operations += [Drain(), *state(device, 1, open=0, lost=1, repeating=0)]
    outcome = device.play()
    assert not parted(outcome, 1)[1]
    assert sent(outcome, 1) == ([(FAILED, 3), (FLUSHED, 4)] if wrong else [(FAILED, 2)])


def test_a_message_ends_when_it_is_released() -> None:
    """RFC 5041 section 5.4: the LLP does not need the buffers any more."""
    device = repeating()
    for _ in range(6):
        device.send(1, SMALL)
    device.operations.append(Drain())
    assert not sent(device.play(), 1)
    for index in (2, 2, 2, 5):  # a register that is written again does no harm
        device.do(commands.release(1, index))
        device.operations.append(Drain())
    assert sent(device.play(), 1) == [(SUCCESS, 2), (SUCCESS, 5)]
    device.do(commands.release(1, 6, signaled=False))
    device.operations.append(Drain())
    assert sent(device.play(), 1)[2:] == []


def test_a_failure_is_told_after_those_before_it_were_released() -> None:
    device = repeating()
    for to in (0x5000, 0x5000, 0x4000, 0x5000):
        device.send(1, write(piece(to)))
    device.operations.append(Drain())
    outcome = device.play()
    assert not sent(outcome, 1)
    # The FPDUs before it leave again all the same: the Terminate arrives only after them.
    first = parted(outcome, 1)[0]
    for fpdu in first:
        ask(device, fpdu)
    device.operations.append(Drain())
    assert both(parted(device.play(), 1)[1]) == both(first) and len(first) == 2
    for index in (1, 2):
        device.do(commands.release(1, index, signaled=False))
        device.operations.append(Drain())
    assert sent(device.play(), 1) == [
        (SUCCESS, 2), (FAILED, 3), (FLUSHED, 4),
    ]  # fmt: skip


def test_what_cannot_leave_again_has_failed() -> None:
    device = repeating()
    for _ in range(4):
        device.send(1, SMALL)
    device.do(commands.release(1, 1))
    device.operations.append(Drain())
    fpdu = device.play().fpdus[2]
    device.do(commands.revoke_stag(STAG))
    ask(device, fpdu)
    device.operations.append(Drain())
    device.do(commands.release(1, 3))
    device.operations.append(Drain())
    found = sent(device.play(), 1)
    assert found == [(SUCCESS, 1), (FAILED, 4)]
