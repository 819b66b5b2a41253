"""The two halves of TCP: octets in order from pieces in any order, and repeats of those lost."""

from __future__ import annotations

import random

from ddp_rnic.sim.devices.peer.tcp import Receiver, Sender
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 200), st.randoms(use_true_random=False))
def test_pieces_in_any_order_and_any_cut_give_the_octets_once(
    length: int, rng: random.Random
) -> None:
    octets = rng.randbytes(length)
    pieces = [(at, octets[at : at + rng.randint(1, 20)]) for at in range(length)]
    pieces += rng.choices(pieces, k=length)
    rng.shuffle(pieces)
    receiver = Receiver()
    assert b"".join(receiver.take(*piece) for piece in pieces) == octets
    assert receiver.position == length


def sender() -> Sender:
    """Returns the sending half after five segments of 100 octets."""
    sender = Sender(patience=10, longest=40)
    for _ in range(5):
        sender.send(100, 0)
    return sender


def test_octets_without_an_acknowledgment_are_asked_for_when_patience_ends() -> None:
    """RFC 6298 section 5.5: the time doubles, and here it has a limit."""
    one = sender()
    asked = [now for now in range(200) if one.lost(now)]
    assert asked == [11, 32, 73, 114, 155, 196]
    one.take(500, 200, alone=True)
    assert not one.outstanding and not one.lost(1000)


def test_the_third_same_acknowledgment_asks_for_what_the_peer_lacks() -> None:
    """RFC 5681 section 3.2; packets with octets do not count."""
    one = sender()
    for alone in (True, False, True):
        one.take(0, 1, alone=alone)
        assert not one.lost(1)
    one.take(0, 1, alone=True)
    assert one.lost(1) == [0]
    # RFC 6582 section 3.2: an acknowledgment of a part says that more is lacking.
    one.take(200, 2, alone=True)
    assert one.lost(2) == [200]
    one.take(500, 3, alone=True)
    assert not one.lost(3)


def test_an_acknowledgment_of_octets_that_were_not_sent_is_ignored() -> None:
    one = sender()
    one.take(501, 1, alone=True)
    assert one.acknowledged == 0 and one.outstanding == 500
