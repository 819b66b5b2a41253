"""Tests that no stream takes another one's share, whatever its host and its peer do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from ddp_rnic.cocotb_tests.scenario import device_of
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.engines.choice import load
from ddp_rnic.sim.engines.engine import (
    Meanwhile,
    Operation,
    Outcome,
    Packet,
    Ring,
    Stalls,
    operations_of,
)
from ddp_rnic.sim.model.header import Header, TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.mpa import MpaSender

#: The stream that does its worst, and the other one; their STags, domains and regions.
BAD, GOOD = 3, 4
SIZE, OCTETS = 1 << 18, 1 << 20
#: Octets of a packet of either stream, in whole FPDUs.
PACKET = 2000
PAYLOAD = 200
#: A queue that no host enables: it never has room.
NOBODYS = 5
#: The completions of the bad stream go to a queue of their own, which the host takes.
RING = Ring(2 * SIZE, 12, bound={BAD: 1})


def segments(header: Header, payload: bytes) -> Iterator[bytes]:
    while True:
        yield header.encode() + payload


def tagged(stream: int, payload: int = PAYLOAD, stag: int = 0) -> Iterator[bytes]:
    return segments(TaggedHeader((stag or stream) << 8, 0, True), bytes(payload))


def untagged(payload: int) -> Iterator[bytes]:
    return segments(UntaggedHeader(0, 1, 0, True), bytes(payload))


@dataclass
class Case:
    """Describes the bad stream: its segments, and the calls that the host makes for it meanwhile.

    ``cycles`` is more than the host needs for that: it begins again no sooner, because the next
    packet waits for the host.
    """

    segments: Callable[[], Iterator[bytes]] = lambda: tagged(BAD)
    queue: int = 1
    beside: list[commands.Write] = field(default_factory=list)
    cycles: int = 300


def enable(stream: int, queue: int) -> list[commands.Write]:
    return [*commands.set_stream(stream, pd=stream, crc=True, cq=queue)]


#: Each resets the bad stream beside each packet, so that it does its worst again.
CASES = {
    "nobody polls": Case(queue=NOBODYS, beside=enable(BAD, NOBODYS)),
    "errors": Case(lambda: tagged(BAD, stag=9), beside=enable(BAD, 1)),
    # At 512 bits these segments keep the checks busy in every cycle. Then each error, and each
    # reset, takes about ten turns from all; how often, its manager decides.
    "no octets, nobody polls": Case(
        lambda: tagged(BAD, 0), queue=NOBODYS, beside=enable(BAD, NOBODYS), cycles=1500
    ),
    "nothing posted": Case(lambda: untagged(PAYLOAD), beside=enable(BAD, 1)),
    "revoked": Case(
        beside=[
            each
            for each in (*commands.revoke_stream(BAD), *enable(BAD, 1))
            if isinstance(each, commands.Write)
        ],
        cycles=2000,  # the sweep looks at each STag
    ),
    "reset": Case(beside=enable(BAD, 1)),
}


def packets(width: int, case: Case, count: int) -> Iterator[Operation]:
    """Yields packets of the two streams in turn, and the host's calls beside them."""
    every = -(-case.cycles * width // (8 * 2 * PACKET))
    ways = {BAD: case.segments(), GOOD: tagged(GOOD)}
    senders = {stream: MpaSender() for stream in ways}
    for number in range(count):
        if case.beside and number % every == 0:
            calls = tuple(
                each for each in operations_of(case.beside) if not isinstance(each, Meanwhile)
            )
            yield Meanwhile(0, calls)
        for stream, sender in senders.items():
            position, octets = sender.position, b""
            while len(octets) < PACKET:
                octets += sender.send(next(ways[stream]))
            yield Packet(stream, position % (1 << 32), octets)


def run(width: int, case: Case, count: int) -> Outcome:
    memory = np.zeros(OCTETS, np.uint8)
    setup = [*RING.program()]
    for at, (stream, queue) in enumerate(((BAD, case.queue), (GOOD, 0))):
        region = commands.set_stag(
            stream << 8, Access.REMOTE_WRITE, pd=stream, to=0, length=SIZE, address=at * SIZE
        )
        setup += operations_of((*region, *enable(stream, queue)))
    return load("compiled").run(
        device_of(width),
        [*setup, *packets(width, case, count)],
        memory,
        ring=RING,
        stalls=Stalls(response_latency=20),
    )


def share(outcome: Outcome) -> float:
    """Returns the good stream's messages in a cycle."""
    cycles = [
        int(cycle)
        for cycle, each in zip(outcome.delivered, outcome.completions, strict=True)
        if each.stream == GOOD
    ]
    return (len(cycles) - 1) / (cycles[-1] - cycles[0])


@pytest.mark.parametrize("width", [64, 512])
def test_nobody_stops_anybody(width: int, request: pytest.FixtureRequest) -> None:
    count = 2000 if request.config.getoption("--long") else 150
    messages = -(-PACKET // 220) * count
    best = share(run(width, Case(), count))
    # A segment without octets takes a cycle, at 512 bits more than its share of the beats.
    bests = {"no octets, nobody polls": share(run(width, Case(lambda: tagged(BAD, 0)), count))}
    for name, case in CASES.items():
        outcome = run(width, case, count)
        got = [each for each in outcome.completions if each.stream == GOOD]
        assert len(got) == messages, name
        good = bests.get(name, best)
        assert share(outcome) > 0.99 * good, f"{name}: {share(outcome)} of {good}"
        if name not in ("revoked", "reset"):
            assert len(outcome.events) >= 5, f"{name} is no error"
