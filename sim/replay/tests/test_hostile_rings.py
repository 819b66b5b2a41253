"""A program writes any octets to its send ring, and rings with any index, while another sends.

A wrong index or entry stops its own stream alone. The other program judges: all its octets leave,
and its completions come.
``RINGS_FUZZ=1000`` in the environment sets the number of drawn runs.
"""

from __future__ import annotations

import os
import random

import pytest
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.send import ENTRY, MESSAGE, Flag, Kind, Message, Piece
from ddp_rnic.sim.engines.engine import Drain, Outcome, Store, Wait
from ddp_rnic.sim.replay.tests.test_send_plan import (
    ORDINARY,
    OTHER,
    SIZE,
    STAG,
    STALLS,
    payloads,
    piece,
    write,
)
from ddp_rnic.sim.replay.tests.test_sent import SUCCESS, Reporting, sent

RUNS = int(os.environ.get("RINGS_FUZZ", "0"))
#: A device of December 2026 hung with seed 46: an inline message had become shorter.
SEEDS = range(RUNS) if RUNS else [0, 1, 46, *long(*range(100, 300))]
#: What the honest program sends.
COUNT, LENGTH = 24, 1999


def a_message(rng: random.Random) -> bytes:
    """Returns the entries of a message; some of its pieces may lie outside of its region."""
    lengths = (0, 1, 28, 64, 986, 987, 3000)
    pieces = [
        Piece(STAG, rng.choice(lengths), 0x5000 + rng.randrange(SIZE - 3000))
        for _ in range(rng.choice((1, 1, 2, 3, 6, 20)))
    ]
    if rng.random() < 0.15:
        pieces[-1] = Piece(
            rng.choice((STAG, OTHER, rng.getrandbits(32))),
            rng.choice((64, SIZE)),
            rng.choice((0x5000 + SIZE - 63, rng.getrandbits(64))),
        )
    flags = rng.choice((Flag(0), Flag.SIGNALED, Flag.FENCE))
    kind = rng.choice((Kind.TAGGED, Kind.TAGGED, Kind.UNTAGGED, Kind.UNTAGGED, Kind.READ))
    stag, qn = rng.getrandbits(32), rng.randrange(4)
    if kind is Kind.READ:
        return Message(kind, flags, (pieces[-1],), stag=stag, to=rng.getrandbits(64)).encode()
    if rng.random() < 0.4:
        octets = rng.randbytes(rng.choice((0, 1, 32, 33, 96, 97, 700, 2000)))
        return Message(kind, flags | Flag.INLINE, octets=octets, stag=stag, qn=qn).encode()
    return Message(kind, flags, tuple(pieces), stag=stag, qn=qn).encode()


def wrong(rng: random.Random) -> bytes:
    """Returns entries with wrong octets."""
    raw = bytearray(a_message(rng))
    choice = rng.random()
    if choice < 0.3:
        return rng.randbytes(len(raw))
    for _ in range(1 if choice < 0.8 else 3):
        _, octet, _, bits, _ = rng.choice(MESSAGE)
        raw[octet + rng.randrange(bits // 8)] = rng.choice((0, 1, 2, 255, rng.randrange(256)))
    return bytes(raw)


class Attack(Reporting):
    """Stream 1 is that of the hostile program, and stream 2 that of the honest one."""

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__(width)
        self._rng, self._limit = rng, rng.choice((0, 100, 5000))
        self._open()

    def _open(self) -> None:
        """Gives stream 1 a ring, as its owner does first, and after an error."""
        limited = self._rng.random() < 0.7
        self.do(
            commands.set_stream(1, pd=1, cq=0),
            commands.set_reads(1, 2),
            commands.set_limit(1, self._limit),
            commands.set_sending(1, sequence=0, crc=True, limited=limited),
            commands.set_send_ring(1, self.ring(1), self.entries),
        )
        self.producer[1] = 0

    def step(self) -> None:
        rng = self._rng
        if rng.random() < 0.3:
            self.operations.append(Drain())
            self._open()
        for _ in range(rng.randrange(4)):
            raw = (a_message if rng.random() < 0.85 else wrong)(rng)
            if rng.random() < 0.7:
                self.store(1, raw)
            else:  # over entries that may be waiting, or under way
                slot = (self.producer[1] - rng.randrange(12)) % (1 << self.entries)
                room = ((1 << self.entries) - slot) * ENTRY
                self.operations.append(Store(self.ring(1) + ENTRY * slot, raw[:room]))
        if rng.random() < 0.6:
            self.do(commands.ring_send(1, self.producer[1]))
        elif rng.random() < 0.2:
            self.do(commands.ring_send(1, rng.getrandbits(16)))
        if rng.random() < 0.4:  # its peer gives credit
            self._limit += rng.choice((4, 60, 1000, 20_000))
            self.do(commands.set_limit(1, self._limit))
        if rng.random() < 0.3:
            self.operations.append(Wait(rng.randrange(200)))


def run(width: int, seed: int) -> tuple[Attack, Outcome]:
    """Sends the messages of the honest program, between steps of the hostile one."""
    rng = random.Random(seed)
    device = Attack(width, rng)
    for _ in range(COUNT):
        device.step()
        device.send(2, write(piece(0x5001, LENGTH, OTHER)))
    return device, device.play(STALLS)


@pytest.mark.parametrize("width", ORDINARY)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_a_ring_has_the_other_program_sends_all_of_its_octets(
    width: int, seed: int
) -> None:
    device, outcome = run(width, seed)
    own = device.octets(2, 0x5001, LENGTH)
    assert b"".join(payloads(outcome, 2)) == COUNT * own
    assert sent(outcome, 2) == [(SUCCESS, index) for index in device.signaled[2]]
    # No octet of the other program's region leaves in the hostile one's stream.
    others = device.memory[SIZE : 2 * SIZE].tobytes()
    for fpdu in outcome.fpdus:
        for at in range(20, len(fpdu.octets) - 36, 16) if fpdu.stream == 1 else ():
            assert fpdu.octets[at : at + 16] not in others
