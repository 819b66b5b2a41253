"""A peer sends any control messages and segments on one stream of an association, and the owner of
its SCTP gives that stream commands in unlucky orders, while others send and receive.

One of the others shares the association and its credit. What the others send and receive is as it
would be alone. Afterwards the stream is set up again, and is as good as new.
``PEERS_FUZZ=1000`` in the environment sets the number of drawn runs, and ``PEERS_FIRST`` the first
seed.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.sctp import Function
from ddp_rnic.hdl.spec.send import ENTRY, Flag, Kind, Message
from ddp_rnic.sim.devices.tests.sound_streams import (
    ENTRIES,
    LENGTHS,
    OWNER,
    WRAP,
    Association,
    Host,
    SctpSound,
    Sent,
)
from ddp_rnic.sim.devices.tests.test_hostile_peers import (
    HOSTILE,
    QUEUE,
    SEEDS,
    Hostile,
    drawn_stalls,
    play,
)
from ddp_rnic.sim.model.ddp import decode_segment
from ddp_rnic.sim.model.events import ProtocolError
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.rdmap import Opcode, ReadRequest, opcode
from ddp_rnic.sim.model.sctp import Ppid


class HostileChunks(Hostile):
    """Stream 1, on an association with a sound stream."""

    ORDS = (None,)

    def __init__(
        self, host: Host, rng: random.Random, sound: list[SctpSound], association: Association
    ) -> None:
        self.association = association
        association.others[HOSTILE] = self.took
        super().__init__(host, rng, [*sound])

    def set_up(self) -> None:
        self.ssn = 0  # of the peer's next chunk
        super().set_up()
        self.judge = None
        self.sequence = 0
        self.markers = False
        host, rng = self.host, self.rng
        past = self.association.peer_tsn - 1 & WRAP - 1
        host.do(commands.tell_session(HOSTILE, Function.FORGET, past))
        if rng.random() < 0.9:
            function = rng.choice((Function.INITIATE, Function.ENHANCED_INITIATE))
            host.do(commands.tell_session(HOSTILE, function, past))
            self.control(function, b"1234")
            accept = Function.ACCEPT if function == Function.INITIATE else Function.ENHANCED_ACCEPT
            if rng.random() < 0.9:
                self.chunk(Ppid.CONTROL, accept.to_bytes(2, "big") + b"1234")
                host.sim.run(2000)

    def half(self, *, open: bool) -> tuple[commands.Write, ...]:
        if self.producer == 0:
            self.limit = self.rng.choice((0, 1, 3, 1000))
            self.position = 0
            self.host.do(commands.set_limit(HOSTILE, self.limit))
        return commands.set_sending_sctp(
            HOSTILE, association=self.association.number, sid=self.association.sids[HOSTILE],
            limited=self.limited, open=open,
        )  # fmt: skip

    def control(self, function: int, private: bytes) -> None:
        message = Message(
            Kind.CONTROL, Flag.INLINE | Flag.SIGNALED, octets=private, rsvdulp=function << 24
        )
        raw = message.encode()
        if self.producer - self.done + len(raw) // ENTRY < (1 << ENTRIES) - 8:
            self.note(f"post control {function}")
            self.put(raw)
            self.host.do(commands.ring_send(HOSTILE, self.producer))

    def took(self, sent: Sent) -> None:
        """Takes a chunk that has left."""
        chunk = sent.chunk
        self.left.append((chunk.tsn, chunk.payload, sent.record))
        self.position += 1
        if chunk.ppid == Ppid.SEGMENT and len(chunk.payload) > 20:
            try:
                header, payload = decode_segment(chunk.payload[2:])
            except ProtocolError:
                return
            if not isinstance(header, TaggedHeader) and (
                (opcode(header), len(payload)) == (Opcode.READ_REQUEST, 28)
            ):
                self.requests.append(ReadRequest.decode(payload))

    def settle(self) -> None:
        self.association.absorb()
        self.association.acknowledge()
        self.association.credit()

    def ask(self) -> None:
        rng, association = self.rng, self.association
        mine = [tsn for tsn, each in association.left.items() if each.stream == HOSTILE]
        if rng.random() < self.wildness or not mine:
            if rng.random() < self.wildness:
                fields: dict[str, Any] = {
                    "entry": rng.choice((0, self.producer, rng.getrandbits(16))),
                    "entries": rng.choice((0, 1, 2, 255)), "offset": rng.choice((0, 5, 1 << 31)),
                    "length": rng.choice((0, 2, 14, 19, 1000, 32768)),
                    "response": self.slots and rng.random() < 0.5,
                }  # fmt: skip
                self.note(f"repeat {fields}")
                self.host.do(commands.repeat(HOSTILE, rng.getrandbits(32), ssn=5, **fields))
            return
        tsn = rng.choice(mine)
        self.note(f"repeat {tsn}: {association.left[tsn].record}")
        association.ask(tsn)

    def chunk(self, ppid: int, octets: bytes) -> None:
        """Sends a chunk of the peer."""
        rng, ssn = self.rng, self.ssn
        if rng.random() < self.wildness / 2:
            ssn += rng.choice((-1, 1, 2, 3, 15, 16, 40, 1 << 15))
        else:
            self.ssn += 1
        self.association.send(HOSTILE, ppid, (ssn % (1 << 16)).to_bytes(2, "big") + octets)

    def peer(self) -> None:
        rng, association = self.rng, self.association
        for tsn, chunk in [*association.unacked.items()]:
            # What nobody has taken for long is given up.
            if chunk.stream == association.sids[HOSTILE] and rng.random() < 0.05:
                del association.unacked[tsn]
        for _ in range(rng.choice((1, 1, 3))):
            if rng.random() < self.wildness / 2:
                function = rng.choice((*Function, 10, 0xFFFF))
                private = rng.randbytes(rng.choice((0, 1, 4, 512, 513)))
                self.note(f"peer: control {function}")
                self.chunk(Ppid.CONTROL, function.to_bytes(2, "big") + private)
            elif rng.random() < self.wildness / 4:
                self.chunk(rng.choice((0, 15, 16, 17, 18)), rng.randbytes(rng.choice(LENGTHS)))
            else:
                self.chunk(Ppid.SEGMENT, self.segment())

    def owner(self) -> None:
        rng, host = self.rng, self.host
        what = rng.random()
        if what < 0.3:
            self.limit = max(self.limit, self.position + rng.choice((0, 1, 2, 9, 1000)))
            host.do(commands.set_limit(HOSTILE, self.limit))
        elif what < 0.3 + self.wildness / 2:
            function = rng.choice([*Function])
            self.note(f"session: {function.name}")
            tsn = self.association.peer_tsn - rng.choice((0, 1, 1, 1, 100)) & WRAP - 1
            host.do(commands.tell_session(HOSTILE, function, tsn)[:-1])
            host.sim.run(200)
            if rng.random() < 0.7 and function not in (0, 8, 9):
                self.control(function, rng.randbytes(rng.choice((0, 4, 20))))
        else:
            super().owner()

    def reset(self) -> None:
        super().reset()
        past = self.association.peer_tsn - 1 & WRAP - 1
        self.host.do(commands.tell_session(HOSTILE, Function.ABORT))
        self.host.do(commands.tell_session(HOSTILE, Function.FORGET, past))
        for tsn, chunk in [*self.association.unacked.items()]:
            if chunk.stream == self.association.sids[HOSTILE]:
                del self.association.unacked[tsn]


def run(width: int, seed: int) -> None:
    rng = random.Random(seed)
    config = RnicConfig(width=width, transmit=True, responder=True, mpa=False, sctp=True)
    host = Host(config, drawn_stalls(rng, seed))
    try:
        for queue in (0, QUEUE, OWNER):
            host.open_cq(queue)
        shared, other = (
            Association(host, number, first, count, random.Random(seed + 9 + number))
            for number, (first, count) in enumerate(((1, 2), (3, 1)))
        )
        sound = [
            SctpSound(
                host, stream, 0, random.Random(seed + stream), repeats=repeats, association=each
            )
            for stream, repeats, each in ((2, False, shared), (3, True, other))
        ]
        hostile = HostileChunks(host, rng, sound, shared)

        def llp() -> None:
            for each in (shared, other):
                each.step()
                each.absorb()

        def again() -> SctpSound:
            del shared.others[HOSTILE]
            for tsn in [tsn for tsn, each in shared.left.items() if each.stream == HOSTILE]:
                del shared.left[tsn]
            return SctpSound(
                host, HOSTILE, QUEUE, random.Random(seed), repeats=rng.random() < 0.5,
                association=shared,
            )  # fmt: skip

        play(host, rng, sound, hostile, again, llp)
    finally:
        host.close()


@pytest.mark.parametrize("width", [64, *long(512)])
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_on_a_stream_others_of_its_association_are_as_if_alone(
    width: int, seed: int
) -> None:
    run(width, seed)
