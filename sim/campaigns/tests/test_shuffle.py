"""Tests of the ways in which frames arrive: none is lost for good, and differences are reported."""

from __future__ import annotations

import random

from ddp_rnic.sim.campaigns.shuffle import shuffled
from ddp_rnic.sim.engines.engine import Await, Drain, Frame, Operation, WriteRegister


def frames(start: int, count: int) -> list[Operation]:
    return [Frame(bytes([number]) * 60) for number in range(start, start + count)]


def test_frames_change_places_between_acts_of_the_host_only() -> None:
    acts: list[Operation] = [WriteRegister(4, 1), Drain(), Await(7)]
    stretches = [frames(10 * number, 9) for number in range(4)]
    operations = stretches[0] + [
        each for act, stretch in zip(acts, stretches[1:], strict=True) for each in (act, *stretch)
    ]
    orders = set()
    for way in range(40):
        came = shuffled(operations, random.Random(way))
        ends = [at for at, each in enumerate(came) if not isinstance(each, Frame)]
        # The number of entries by then is not known.
        assert [came[at] for at in ends] == [WriteRegister(4, 1), Drain(), Drain()]
        seen: list[Operation] = []
        for start, end, stretch in zip([0, *ends], [*ends, len(came)], stretches, strict=True):
            part = [each for each in came[start:end] if isinstance(each, Frame)]
            # Lost frames arrive again, in order; no frame arrives early.
            assert part[-len(stretch) :] == stretch
            seen += stretch
            whole = [each for each in part if not each.error and len(set(each.octets)) == 1]
            assert all(each in seen for each in whole)
        orders.add(tuple(came[: ends[0]]))
    assert len(orders) > 30


def test_some_frames_are_lost_spoilt_and_repeated() -> None:
    sent = frames(0, 200)
    came = shuffled(sent, random.Random(1))[:-200]
    whole = [each for each in came if each in sent]
    assert 5 < len(set(sent) - set(whole)) < 40
    assert 1 < len(came) - len(whole) < 20
    assert len(whole) > len(set(whole))
