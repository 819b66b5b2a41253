"""An association sends no chunk beyond the two limits that the owner of its SCTP has given.

The judges are the limits that the host has written, and RFC 9260 section 6.1: "the data sender MUST
NOT transmit new data to any destination transport address if its peer's rwnd indicates that the
peer has no buffer space". Section 6.2.1 counts there "the data size of the chunk", without its
header and its padding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

import pytest
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.send import Message, Waits
from ddp_rnic.sim.engines.engine import UNSTALLED, Drain, Fpdu, Outcome, Poll, Stalls, Wait
from ddp_rnic.sim.replay.tests.test_send_plan import OTHER, STAG, STALLS
from ddp_rnic.sim.replay.tests.test_send_sctp import (
    ORDINARY,
    STREAMS,
    TSNS,
    Device,
    chunk_of,
    chunks,
    write,
)

PLENTY = (1 << 31) - 1


class Window(Device):
    """All streams are limited; the associations have no credit at first."""

    def __init__(self, width: int = 64) -> None:
        super().__init__(width, limits=dict.fromkeys(STREAMS, PLENTY))
        for association in range(2):
            self.allow(association, 0, 0)

    def allow(self, association: int, chunks: int, octets: int = PLENTY) -> None:
        """Gives an association credit for ``chunks`` since its beginning."""
        self.do(commands.set_path_limit(association, TSNS[association] + chunks, octets))

    def sent(self, count: int) -> None:
        """Waits until the device is idle, and for the number of chunks that have left."""
        self.operations += [Drain(), Poll(regs.address("SENT"), 0xFFFF_FFFF, count)]

    def waits(self, stream: int, reason: Waits) -> None:
        """Waits for the reason for which a stream waits."""
        mask = regs.pack("SEND_STATE", waits=3)
        self.do((commands.Write("SEND_STREAM", stream),))
        state = regs.pack("SEND_STATE", waits=reason)
        self.operations.append(Poll(regs.address("SEND_STATE"), mask, state))


def messages(stream: int, count: int, seed: int) -> Iterator[Message]:
    """Yields messages of any length."""
    rng, stag = random.Random(seed), STAG if stream == 1 else OTHER
    for _ in range(count):
        yield write(stag, rng.choice((0, 1, 2, 3, 64, 985, 2500)))


def data(frame: Fpdu) -> int:
    """Returns the octets of user data of a frame's chunk."""
    return len(chunk_of(frame).payload)


def of(outcome: Outcome, association: int) -> list[Fpdu]:
    """Returns the frames of an association, whose TSNs have no gap."""
    found = [each for each in outcome.frames if STREAMS[each.stream][0] == association]
    first = TSNS[association]
    assert [each.sequence for each in found] == [
        (first + at) % (1 << 32) for at in range(len(found))
    ]
    return found


@pytest.mark.parametrize("width", ORDINARY)
def test_a_chunk_leaves_if_its_tsn_is_before_the_limit(width: int) -> None:
    """And the streams of the association get turns: with 2 chunks of credit, each sends one."""
    device = Window(width)
    for stream in (1, 2):
        device.post(stream, *messages(stream, 12, stream))
    for count in (0, 1, 2, 2, 5, 6, 14, 20):
        device.allow(0, count)
        device.sent(count)
    device.allow(0, 1000)
    outcome = device.run(STALLS)
    assert len(of(outcome, 0)) == len(outcome.frames) > 24
    assert {each.stream for each in outcome.frames[1:6]} == {1, 2}
    assert [bool(chunks(outcome, stream)) for stream in STREAMS] == [True, True, False]


@pytest.mark.parametrize("width", ORDINARY)
def test_a_chunk_leaves_if_all_of_its_octets_fit(width: int) -> None:
    """The limit is that of the last octet of a chunk, or one octet less."""

    def posted() -> Window:
        device = Window(width)
        device.post(1, *messages(1, 20, 7))
        return device

    device = posted()
    device.allow(0, 1000)
    ends = [*accumulate(data(each) for each in of(device.run(), 0))]
    assert len(ends) > 20
    device, rng, count = posted(), random.Random(5), 0
    while count < len(ends):
        count = min(count + rng.randrange(1, 4), len(ends))
        missing = rng.random() < 0.4
        device.allow(0, 1000, ends[count - 1] - missing)
        device.sent(count := count - missing)
    assert [*accumulate(data(each) for each in of(device.run(STALLS), 0))] == ends


@pytest.mark.parametrize("stalls", [UNSTALLED, STALLS], ids=["fast", "stalled"])
@pytest.mark.parametrize("width", ORDINARY)
def test_limits_that_come_while_it_sends_are_kept(width: int, stalls: Stalls) -> None:
    """All three limits of both associations are raised in any order; all messages leave."""
    device, rng = Window(width), random.Random(width)
    for stream in STREAMS:
        device.do(commands.set_limit(stream, 0))
    posted = {stream: [*messages(stream, 14, stream)] for stream in STREAMS}
    for stream, found in posted.items():
        device.post(stream, *found)
    limits = {(kind, number): 0 for kind, number in
              [("tsn", 0), ("tsn", 1), ("octets", 0), ("octets", 1),
               *(("ssn", stream) for stream in STREAMS)]}  # fmt: skip
    total = {"tsn": 100, "octets": 60_000, "ssn": 50}
    given = []  # the limits, in the order of the polls
    while open_ := [each for each in limits if limits[each] < total[each[0]]]:
        kind, number = rng.choice(open_)
        step = {"tsn": (1, 2, 9), "octets": (100, 1016, 5000), "ssn": (1, 5)}[kind]
        limits[kind, number] = min(limits[kind, number] + rng.choice(step), total[kind])
        if kind == "ssn":
            device.do(commands.set_limit(number, limits[kind, number]))
        else:
            device.allow(number, limits["tsn", number], limits["octets", number])
        device.operations.append(Poll(regs.address("SEND_LIMIT"), 0))
        given.append(dict(limits))
    outcome = device.run(stalls)
    written = outcome.polled.tolist()
    for association in range(2):
        octets = 0
        for count, frame in enumerate(of(outcome, association)):
            octets += data(frame)
            ssn = int.from_bytes(chunk_of(frame).payload[:2], "big")
            # The limits that were written when the frame left, or under way to the device.
            at = sum(cycle <= frame.first for cycle in written)
            most = given[min(at, len(given) - 1)]
            assert count < most["tsn", association] and octets <= most["octets", association]
            assert ssn < most["ssn", frame.stream]
    for stream, found in posted.items():
        whole = sum(each.length for each in found)
        assert sum(len(each.payload) - 16 for each in chunks(outcome, stream)) == whole


@pytest.mark.parametrize("ringing", [0, 4])
def test_streams_of_an_association_share_its_credit(ringing: int) -> None:
    """However often a client writes the doorbell of the one, the other one gets as much."""
    device = Window()
    for stream in (1, 2):
        device.post(stream, *(write(STAG if stream == 1 else OTHER, 900) for _ in range(20)))
    for count in range(1, 31):
        device.allow(0, count)
        for _ in range(ringing):
            device.do(commands.ring_send(1, device.producer[1]))
            device.operations.append(Wait(20))
        device.operations.append(Wait(400))
    outcome = device.run()
    streams = [each.stream for each in of(outcome, 0)]
    assert len(streams) == 30
    for at in range(2, 30, 2):
        assert abs(streams[:at].count(1) - streams[:at].count(2)) <= 2, streams


def test_streams_without_credit_of_their_association_delay_no_other_one() -> None:
    def cycles(messages: int, doorbells: int) -> int:
        device = Window()
        device.allow(1, 1000)
        for stream in (1, 2):
            for _ in range(messages):
                device.store(stream, write(STAG if stream == 1 else OTHER).encode())
        for _ in range(30):
            device.post(3, write(OTHER, 1800))
            for stream in (1, 2)[:doorbells]:
                device.do(commands.ring_send(stream, device.producer[stream]))
        outcome = device.run()
        assert {each.stream for each in outcome.frames} == {3}
        assert len(outcome.frames) == 60
        return outcome.frames[-1].last

    alone, rung = cycles(0, 0), cycles(20, 2)
    assert rung <= 1.25 * alone, (alone, rung)


def test_a_stream_shows_why_it_waits() -> None:
    device = Window()
    device.do(commands.set_limit(1, 1))
    device.post(1, write(), write())
    device.waits(1, Waits.ASSOCIATION)
    device.allow(0, 10)
    device.waits(1, Waits.CREDIT)
    device.do(commands.set_limit(1, 100))
    device.waits(1, Waits.NOTHING)
    assert len(device.run(STALLS).frames) == 6


def test_segments_that_do_not_leave_give_back_their_credit() -> None:
    """A read of stream 1 that the bus refuses ends it alone (RFC 5043 section 11.3). The chunks
    that were cut and did not leave are no data that the peer has to acknowledge: the association
    has its whole credit for stream 2.
    """
    device = Window()
    device.post(1, write(length=900), write(to=0x7000, length=2500), *(write() for _ in range(9)))
    device.post(1, write(0x9900), write())
    device.post(2, *(write(OTHER, 900) for _ in range(20)))
    # Enough credit for most segments of stream 1 to be cut ahead of the read that fails.
    device.allow(0, 16, octets := 16 * 916)
    faults = [range(0x2020, 0x2021)]
    outcome = device.run(STALLS, faults=faults)
    assert len(chunks(outcome, 1)) == 1
    frames = of(outcome, 0)
    assert len(frames) == 16 and len(chunks(outcome, 2)) == 15
    assert sum(map(data, frames)) == octets


def test_a_stream_that_is_closed_while_it_waits_gives_up_its_place() -> None:
    device = Window()
    device.post(1, write(), write())
    device.waits(1, Waits.ASSOCIATION)
    device.post(2, write(OTHER), write(OTHER))
    device.waits(2, Waits.ASSOCIATION)
    device.allow(0, 0)
    device.operations.append(Wait(300))
    device.do(commands.close_send_ring(1))
    device.allow(0, 100)
    device.sent(6)
    outcome = device.run(STALLS)
    assert {each.stream for each in outcome.frames} == {2} and len(outcome.frames) == 6


def test_a_stream_that_the_host_closes_ends_its_messages_without_credit() -> None:
    """They leave no chunk, and the other stream has all of the credit that comes."""
    device = Window()
    for stream in (1, 2):
        device.post(stream, *(write(STAG if stream == 1 else OTHER) for _ in range(3)))
        device.waits(stream, Waits.ASSOCIATION)
    device.do(commands.set_sending_sctp(1, association=0, sid=7, limited=True, open=False))
    device.operations.append(Poll(regs.address("SEND_CONSUMER"), 0xFFFF_FFFF, 3))
    device.allow(0, 9, 9 * 1002)
    outcome = device.run(STALLS)
    assert len(of(outcome, 0)) == 9 and {each.stream for each in outcome.frames} == {2}
