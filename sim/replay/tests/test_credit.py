"""A stream sends no octet beyond the limit that the owner of its LLP has given.

The judges are the limit that the host has written, and RFC 5044: an FPDU takes all of its octets of
the LLP's sequence numbers, markers, PAD and CRC included.
"""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.send import Message
from ddp_rnic.sim.engines.engine import UNSTALLED, Drain, Outcome, Poll, Stalls
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver, MpaSender
from ddp_rnic.sim.replay.tests.test_send_plan import (
    ORDINARY,
    OTHER,
    SIZE,
    STALLS,
    Device,
    piece,
    write,
)

WRAP = 1 << 32


def posts(device: Device, count: int, seed: int) -> list[Message]:
    """Posts messages of any length on stream 1."""
    rng = random.Random(seed)
    messages = [write(piece(0x5000, rng.choice((0, 1, 64, 800, 3000)))) for _ in range(count)]
    for message in messages:
        device.post(1, message)
    return messages


def lengths(*, markers: bool, sequence: int, count: int, seed: int) -> list[int]:
    """Returns the octets of each FPDU, as a device without a limit sends them."""
    device = Device(entries=9)
    device.do(commands.set_sending(1, sequence=sequence, crc=True, markers=markers))
    posts(device, count, seed)
    return [len(fpdu.octets) for fpdu in device.run().fpdus]


def sent(outcome: Outcome, sequence: int, *, markers: bool) -> list[tuple[int, int]]:
    """Returns the end of each FPDU of stream 1, from the first sequence number on, and the cycle of
    its first beat. Each FPDU begins where the one before it has ended (RFC 5044 section 4), and the
    golden model's receiver finds it whole there, with its markers and its CRC.
    """
    receiver, ends, position = MpaReceiver(crc=True, markers=markers), [], 0
    for fpdu in outcome.fpdus:
        if fpdu.stream == 1:
            assert fpdu.sequence == (sequence + position) % WRAP
            (found,) = receiver.receive(fpdu.octets)
            assert isinstance(found, Fpdu)
            position += len(fpdu.octets)
            ends.append((position, fpdu.first))
    return ends


@pytest.mark.parametrize("width", ORDINARY)
@pytest.mark.parametrize("sequence", [0, 5, WRAP - 3000])
@pytest.mark.parametrize("markers", [False, True])
def test_an_fpdu_leaves_if_all_of_it_fits(width: int, sequence: int, markers: bool) -> None:
    known = list(accumulate(lengths(markers=markers, sequence=sequence, count=30, seed=3)))
    slack = 16 * markers
    rng, device = random.Random(8), Device(width, entries=9)
    device.do(
        commands.set_limit(1, sequence),
        commands.set_sending(1, sequence=sequence, crc=True, markers=markers, limited=True),
    )
    posts(device, 30, 3)
    # Just enough for some FPDUs, or an octet less.
    at = count = 0
    while count < len(known):
        device.operations += [Drain(), Poll(regs.address("SENT"), 0xFFFF_FFFF, count)]
        at = min(at + rng.randrange(1, 4), len(known))
        missing = not markers and rng.random() < 0.3
        device.do(commands.set_limit(1, sequence + known[at - 1] + slack - missing))
        at = count = at - missing
    outcome = device.run(STALLS)
    assert [end for end, _ in sent(outcome, sequence, markers=markers)] == known


@pytest.mark.parametrize("stalls", [UNSTALLED, STALLS], ids=["fast", "stalled"])
@pytest.mark.parametrize("width", ORDINARY)
def test_limits_that_come_while_it_sends_are_kept(width: int, stalls: Stalls) -> None:
    """And a stream without credit delays no other one."""
    device, rng, limit = Device(width, entries=9), random.Random(2), 0
    device.do(commands.set_limit(1, 0), commands.set_sending(1, sequence=0, crc=True, limited=True))
    total = sum(lengths(markers=False, sequence=0, count=30, seed=5))
    posts(device, 30, 5)
    polls = [(limit, 0)]
    while limit < total:
        limit = min(limit + rng.choice((1, 100, 1000, 5000)), total)
        device.do(commands.set_limit(1, limit))
        device.operations.append(Poll(regs.address("SEND_LIMIT"), 0xFFFF_FFFF, limit))
        polls.append((limit, len(polls)))
        if rng.random() < 0.3:
            device.post(2, write(piece(0x5000, 3000, OTHER)))
    outcome = device.run(stalls)
    ends = sent(outcome, 0, markers=False)
    assert ends[-1][0] == total
    cycles = outcome.polled.tolist()
    for end, cycle in ends:
        # The limit that was written last before the FPDU left, and the one that was under way.
        given = [
            limit for (limit, _), written in zip(polls[1:], cycles, strict=True) if written <= cycle
        ]
        under_way = polls[len(given) + 1][0] if len(given) + 1 < len(polls) else total
        assert end <= max(given[-1] if given else 0, under_way)
    assert {fpdu.stream for fpdu in outcome.fpdus} == {1, 2}


@pytest.mark.parametrize("width", ORDINARY)
@pytest.mark.parametrize("beyond", [-1, 0, 1, 777, 1 << 17])
def test_credit_that_is_plenty_runs_out_at_its_last_octet(width: int, beyond: int) -> None:
    """While a stream has 128 KiB of credit, its segments are not compared with it one by one."""
    limit, device = (1 << 17) + beyond, Device(width, entries=9)
    device.do(
        commands.set_mulpdu(1, 30_000),
        commands.set_limit(1, limit),
        commands.set_sending(1, sequence=0, crc=True, limited=True),
    )
    for _ in range(6):
        device.post(1, write(piece(0x5000, SIZE)))
    ends = [end for end, _ in sent(device.run(STALLS), 0, markers=False)]
    sender = MpaSender(crc=True)
    segments = DataSource(30_000).tagged(0xABC, 0, bytes(SIZE))
    known = [*accumulate(len(sender.send(segment)) for segment in 6 * segments)]
    assert ends == [end for end in known if end <= limit] and len(ends) < len(known)


def test_doorbells_without_credit_delay_no_other_stream() -> None:
    def cycles(credit: bool, doorbells: int) -> int:
        device = Device(entries=9)
        device.do(commands.set_limit(1, 0 if not credit else 1 << 20))
        device.do(commands.set_sending(1, sequence=0, crc=True, limited=True))
        for _ in range(20):
            device.store(1, write(piece(0x5000, 3000)).encode())
        for _ in range(40):
            device.post(2, write(piece(0x5000, 3000, OTHER)))
            for _ in range(doorbells):
                device.do(commands.ring_send(1, device.producer[1]))
        outcome = device.run()
        assert {fpdu.stream for fpdu in outcome.fpdus} == ({1, 2} if credit else {2})
        return max(fpdu.last for fpdu in outcome.fpdus if fpdu.stream == 2)

    alone, rung = cycles(False, 0), cycles(False, 8)
    assert rung <= 1.25 * alone, (alone, rung)
