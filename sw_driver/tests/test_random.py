"""Uses the driver at random for long, and compares memory with the expected octets; by seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sim.engines.engine import Stalls
from ddp_rnic.sw_driver import (
    CQ,
    MR,
    PD,
    WC,
    Context,
    Device,
    Opcode,
    Stream,
    StreamError,
    WcStatus,
)

GUARD = 64
STEPS = 120


@dataclass
class Area:
    """Memory with guards around it, and its expected octets."""

    memory: bytearray
    expected: bytearray
    length: int
    region: MR | None = None

    @property
    def part(self) -> memoryview:
        return memoryview(self.memory)[GUARD : GUARD + self.length]


class Use:
    """A user of the driver who acts at random."""

    def __init__(self, rng: random.Random, sim: SimTransport, context: Context) -> None:
        self.rng, self.sim, self.context = rng, sim, context
        self.pd, self.cq = PD(context), CQ(context)
        self.areas: list[Area] = []
        self.peers: dict[Stream, Peer] = {}
        self.waiting = 0  # messages in flight
        self.posted: dict[int, tuple[Area, bytes]] = {}
        self.number = 0

    def area(self) -> Area:
        length = self.rng.choice([1, 7, 64, self.rng.randrange(1, 9000)])
        memory = bytearray(self.rng.randbytes(length + 2 * GUARD))
        self.areas.append(Area(memory, bytearray(memory), length))
        return self.areas[-1]

    def stream(self) -> Stream:
        if len(self.peers) < 3:
            stream = Stream(self.pd, self.cq)
            mulpdu = self.rng.choice([40, 300, 1440, 9000])
            self.peers[stream] = Peer(self.sim, stream.number, mulpdu=mulpdu)
        return self.rng.choice(list(self.peers))

    def register(self) -> None:
        area = self.area()
        area.region = self.pd.register(area.part, to=self.rng.getrandbits(63))

    def write(self) -> None:
        areas = [area for area in self.areas if area.region is not None]
        if areas:
            area = self.rng.choice(areas)
            start = self.rng.randrange(area.length)
            octets = self.rng.randbytes(self.rng.randrange(area.length - start + 1))
            assert area.region is not None
            self.peers[stream := self.stream()].write(
                area.region.stag, area.region.to + start, octets
            )
            assert stream.error is None
            # All writes to one region come on one stream, or one after another.
            area.expected[GUARD + start : GUARD + start + len(octets)] = octets
            self.waiting += 1
            self.take()

    def send(self) -> None:
        area, stream, qn = self.area(), self.stream(), self.rng.randrange(4)
        octets = self.rng.randbytes(self.rng.randrange(area.length + 1))
        self.number += 1
        self.posted[self.number] = area, octets
        stream.post_recv(area.part, qn, wr_id=self.number)
        self.peers[stream].send(octets, qn)
        self.waiting += 1

    def take(self) -> None:
        """Waits for all messages in flight, and checks all memory."""
        while self.waiting:
            for completion in self.cq.wait(20):
                assert completion.status is WcStatus.SUCCESS
                self.waiting -= 1
                if completion.opcode is Opcode.RECV:
                    self.received(completion)
        assert all(area.memory == area.expected for area in self.areas)

    def received(self, completion: WC) -> None:
        area, octets = self.posted.pop(completion.wr_id)
        assert completion.byte_len == len(octets)
        area.expected[GUARD : GUARD + len(octets)] = octets

    def revoke(self) -> None:
        areas = [area for area in self.areas if area.region is not None]
        if areas:
            area = self.rng.choice(areas)
            assert area.region is not None
            stag, to = area.region.stag, area.region.to
            area.region.revoke()
            area.region = None
            self.take()
            self.fail(stag, to)

    def fail(self, stag: int | None = None, to: int = 0) -> None:
        """Makes a peer break a rule; the stream is closed."""
        self.take()
        stream = self.stream()
        peer = self.peers.pop(stream)
        peer.write(self.rng.getrandbits(32) if stag is None else stag, to, b"never")
        with pytest.raises(StreamError, match="Invalid STag"):
            self.cq.wait(20)
        stream.close()
        assert self.cq.poll() == []

    def close(self) -> None:
        """Closes a stream that has posted buffers without a message."""
        self.take()
        stream = self.stream()
        del self.peers[stream]
        for _ in range(self.rng.randrange(5)):
            stream.post_recv(self.area().part, self.rng.randrange(4))
        posted = sum(stream.outstanding(qn) for qn in range(4))
        stream.close()
        assert [wc.status for wc in self.cq.poll(99)] == [WcStatus.FLUSHED] * posted


@pytest.mark.parametrize("seed", range(6))
def test_memory_is_what_random_use_makes_of_it(seed: int) -> None:
    rng = random.Random(seed)
    stalls = Stalls(write=rng.choice([0, 0.4]), response_latency=rng.choice([1, 60]), seed=seed + 1)
    page = rng.choice([None, 4096, 1 << 14])
    with SimTransport(page=page, stalls=stalls, seed=seed) as sim:
        with Device(sim).open(completions=rng.choice([4, 128])) as context:
            use = Use(rng, sim, context)
            calls = [use.register, use.write, use.write, use.send, use.send, use.send]
            calls += [use.revoke, use.fail, use.close, use.take]
            for _ in range(STEPS):
                rng.choice(calls)()
            use.take()
            use.pd.close()
            assert len(context.buffers) == 2048 and len(context.numbers) == 64
            assert context.slots.allocate(2048) == 0 and not context.tags
        # Every buffer has been released.
        for area in use.areas:
            area.memory.clear()
