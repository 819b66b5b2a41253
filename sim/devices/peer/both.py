"""Two devices that play random work against each other, each in lock step with the golden model.

Both devices receive, send and answer RDMA Reads in gateware. Between them is TCP over a simulated
network that loses packets, carries some twice and lets some overtake others. Most connections have
a TCP without copies: the device reads the octets again that were lost, and a buffer is overwritten
as soon as its message is complete. The work is drawn in chunks, which the seed and their number
determine. In a chunk several connections are busy in both directions at the same time, and every
other one ends with an error. Each octet that arrives is compared with the octet that was sent.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ....hdl.spec.config import RnicConfig
from ....sw_driver import PD, Access, Context, Device
from ....sw_driver.base.errors import RnicError
from ....sw_driver.cm import Terminated
from ....sw_driver.rdmap import QP, WC, Layer, Opcode
from ....sw_driver.verbs.cq import WcStatus
from .channel import Wrong
from .end import TcpEnd, carry
from .lockstep import LockStep
from .network import Network, Packet, Rates

__all__ = ["Failure", "Tally", "play"]

#: Octets of the memory that an end lets the other one write, or read.
_SPAN = 200_000
#: Octets of the memory that messages are sent from; and of a buffer after its completion.
_ROOM, _JUNK = 1 << 19, b"\xdd"
#: Receive buffers that an end has posted, and its requests that may be incomplete.
_DEPTH, _UNDER_WAY = 24, 48
#: Messages of a connection, in one direction; numbers of connections at a time.
_MESSAGES, _CONNECTIONS = 400, (1, 2, 4, 8)
#: Octets of the longest segments; and the share of connections whose TCP keeps copies.
_MULPDUS, _KEEPING = (128, 1400, 1400, 4000), 0.2
#: Octets that a device may send before TCP takes them.
_AHEAD = (1, 1, 1 << 14, 1 << 18)
_SHORT = (0, 1, 3, 4, 17, 63, 64, 65, 479, 480, 481)


@dataclass
class Failure:
    """The number of a chunk that failed, its messages, and a sentence that says what was wrong."""

    chunk: int
    messages: int
    message: str


@dataclass
class Tally:
    """The results of all chunks. ``messages`` and ``octets`` are those of both directions."""

    messages: int = 0
    octets: int = 0
    connections: int = 0
    cycles: int = 0
    seconds: float = 0.0
    #: How many messages there were of each kind, and how many connections ended with each error.
    kinds: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    #: What happened to packets, see :class:`.network.Network`.
    network: Counter[str] = field(default_factory=Counter)
    failure: Failure | None = None


def play(
    width: int,
    seed: int,
    messages: int,
    rates: Rates,
    *,
    only: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    faulty: tuple[Path, int] | None = None,
) -> Tally:
    """Plays chunks until ``messages`` messages were received, or until one fails.

    Parameters
    ----------
    width
        Width of both datapaths in bits.
    seed
        The seed of the draw.
    messages
        Messages in both directions; the last chunk may add some.
    rates
        What the network does to packets.
    only
        Play only this chunk.
    progress
        Called after each chunk with the number of messages done, and of all.
    faulty
        A simulator with planted faults, which the first device is, and the number of the active
        one; 0: none.
    """
    tally = Tally()
    with _devices(width, seed, faulty) as sims:
        began, cycles = time.monotonic(), sum(sim.cycle for sim, _ in sims)
        number = only or 0
        while tally.failure is None and tally.messages < messages:
            left = messages - tally.messages
            try:
                asyncio.run(_chunk(sims, random.Random(f"{seed} {number}"), left, rates, tally))
            except* (Wrong, RnicError) as group:
                tally.failure = Failure(number, left, str(_first(group)))
            number += 1
            tally.seconds = time.monotonic() - began
            tally.cycles = sum(sim.cycle for sim, _ in sims) - cycles
            if progress is not None:
                progress(min(tally.messages, messages), messages)
            if only is not None:
                break
        if tally.failure is None:  # else the device and the driver may not agree with each other
            for _, context in sims:
                context.close()
    return tally


def _first(error: BaseException) -> BaseException:
    """Returns the first error in groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Repeatable(LockStep):
    """A device whose Steering Tags its seed determines, too."""

    def entropy(self, octets: int) -> bytes:
        return self._random.randbytes(octets)


@contextmanager
def _devices(
    width: int, seed: int, faulty: tuple[Path, int] | None
) -> Iterator[list[tuple[LockStep, Context]]]:
    config = RnicConfig(width=width, transmit=True, responder=True)
    with ExitStack() as stack:
        sims = [
            stack.enter_context(_Repeatable(config, seed=2 * seed + number, faulty=each))
            for number, each in enumerate((faulty, None))
        ]
        found: list[tuple[LockStep, Context]] = [(sim, Device(sim).open()) for sim in sims]
        for sim, context in found:
            sim.watch(context)
        yield found


async def _chunk(
    sims: list[tuple[LockStep, Context]], rng: random.Random, left: int, rates: Rates, tally: Tally
) -> None:
    """Plays a chunk; afterwards the devices hold nothing of it."""
    count = rng.choice(_CONNECTIONS)
    each = max(1, min(_MESSAGES, left // (2 * count)))
    contexts = [context for _, context in sims]
    for context in contexts:
        context.numbers.rotate(rng.randrange(len(context.numbers)))
    network = Network[Packet](rates, random.Random(rng.getrandbits(64)), tally.network)
    pds = [PD(context) for context in contexts]
    pairs = [
        _pair(network, pds if rng.random() < 0.5 else pds[::-1], rng, tally) for _ in range(count)
    ]
    ends = [end for pair in pairs for end in pair]
    async with asyncio.TaskGroup() as group:
        endpoints = [end.endpoint for end in ends]
        carries = group.create_task(carry(network, contexts, endpoints))
        async with asyncio.TaskGroup() as works:
            for pair in pairs:
                works.create_task(_work(pair, each))
        carries.cancel()
    for end in ends:
        end.close()
    for pd in pds:
        pd.close()
    for sim, context in sims:
        sim.compare_counters()
        if context.streams or context.cqs or context.regions:
            raise Wrong(
                f"after the connections a device still holds {len(context.streams)} streams,"
                f" {len(context.cqs)} completion queues and {len(context.regions)} regions"
            )


def _pair(network: Network, pds: list[PD], rng: random.Random, tally: Tally) -> tuple[_End, _End]:
    """Returns the ends of a connection, the first one in the first domain."""
    ends = _End(pds[0], rng, tally), _End(pds[1], rng, tally)
    for pd, end in zip(pds, ends, strict=True):
        end.endpoint = TcpEnd(
            network, pd, keeps=rng.random() < _KEEPING, prepare=end.prepare,
            mulpdu=rng.choice(_MULPDUS), crc=rng.random() < 0.7, markers=rng.random() < 0.4,
            ahead=rng.choice(_AHEAD),
        )  # fmt: skip
    return ends


async def _work(pair: tuple[_End, _End], count: int) -> None:
    """Connects two ends, sends messages in both directions, and ends the connection, perhaps with
    an error.
    """
    one, other = pair
    await one.connect(other)
    async with asyncio.TaskGroup() as group:
        for end, peer in (pair, pair[::-1]):
            group.create_task(end.post(peer, count))
            group.create_task(end.take(peer, count))
    for end in pair:
        end.check()
    if one.rng.random() < 0.5:
        await one.err(other)
    await asyncio.gather(*(end.endpoint.disconnect() for end in pair))


class _Request(NamedTuple):
    """A request that is not complete.

    Parameters
    ----------
    number, length
        Its number, and the octets of its message.
    place
        Where the message is in the region that messages are sent from, or None.
    sink, octets
        RDMA_READ: where the response is placed, and the octets that it has to hold.
    """

    number: int
    length: int
    place: int | None = None
    sink: bytearray | None = None
    octets: bytes = b""

    def holds(self, begin: int, length: int) -> bool:
        """Returns whether the message has octets in a range of that region."""
        place = self.place
        return place is not None and place < begin + length and begin < place + self.length


class _End:
    """An end of a connection: its memory, and the messages that the other end has sent."""

    endpoint: TcpEnd

    def __init__(self, pd: PD, rng: random.Random, tally: Tally) -> None:
        self.rng, self._tally = random.Random(rng.getrandbits(64)), tally
        rng = self.rng
        #: The octets that the peer may read, those that this end sends, and those that the peer has
        #: written.
        self.readable, self.sent = rng.randbytes(_SPAN), rng.randbytes(_SPAN)
        self.written = bytearray(_SPAN)
        self._target = bytearray(_SPAN)
        last = (1 << 64) - _SPAN
        self.source = pd.register(
            bytearray(self.readable), Access.REMOTE_READ, to=rng.choice((0, last, 7 << 30))
        )
        self.target = pd.register(
            self._target, Access.REMOTE_WRITE, to=rng.choice((0, last, rng.getrandbits(60)))
        )
        self._local = pd.register(bytearray(_ROOM), Access.LOCAL_WRITE, to=rng.getrandbits(40))
        self.rooms: deque[int] = deque()  # octets of the buffers that no message was sent for
        self.free = asyncio.Semaphore(0)
        self.coming: deque[tuple[bytes, bool]] = deque()  # messages that were sent to this end
        self.posted = False  # all messages of this end are
        self._slots = asyncio.Semaphore(_UNDER_WAY)
        self._requests: deque[_Request] = deque()

    async def connect(self, peer: _End) -> None:
        await self.endpoint.connect(peer.endpoint)
        self._tally.connections += 1

    def close(self) -> None:
        """Frees everything, in an order that is always the same."""
        self.endpoint.close()
        for region in (self.source, self.target, self._local):
            region.close()

    def prepare(self, qp: QP) -> None:
        """Posts buffers, before the peer can send."""
        for _ in range(_DEPTH):
            self._post_buffer(qp)

    def _post_buffer(self, qp: QP) -> None:
        rng = self.rng
        room = rng.choice((1, 64, 64, 64, 500, rng.randrange(1, 4000), rng.randrange(1, 70_000)))
        buffer = bytearray(room)
        qp.post_recv(buffer, wr_id=buffer)
        self.rooms.append(room)
        self.free.release()

    def _length(self, most: int) -> int:
        rng = self.rng
        return min(most, rng.choice((most, *_SHORT, rng.randrange(1500), rng.randrange(most + 1))))

    # -- sending ----------------------------------------------------------------------------------

    async def post(self, peer: _End, count: int) -> None:
        """Posts messages to the peer. The last one is a Send: with it, all Writes have arrived."""
        kinds = {"send": self._send, "write": self._write, "read": self._read}
        for number in range(count):
            kind = self.rng.choice((*kinds, "send", "write"))
            if number == count - 1:
                kind = "send"
            if kind == "send":
                await peer.free.acquire()
            await self._slots.acquire()
            kinds[kind](peer, number)
            self._tally.kinds[kind] += 1
        self.posted = True

    def _body(self, length: int) -> tuple[Any, dict[str, Any], bytes]:
        """Returns a buffer, the part of it that is the message, and the message's octets."""
        at = self.rng.randint(0, _SPAN - length)
        octets = self.sent[at : at + length]
        place = self.rng.randint(0, _ROOM - length)
        if self.rng.random() < 0.3 or any(each.holds(place, length) for each in self._requests):
            return octets, {}, octets
        self._local.write(octets, place)
        return self._local, {"offset": place, "length": length}, octets

    def _send(self, peer: _End, number: int) -> None:
        length, asks = self._length(peer.rooms.popleft()), self.rng.random() < 0.3
        body, part, octets = self._body(length)
        peer.coming.append((octets, asks))
        self._requests.append(_Request(number, length, part.get("offset")))
        self.endpoint.qp.post_send(Opcode.SEND, body, wr_id=number, solicited=asks, **part)

    def _write(self, peer: _End, number: int) -> None:
        length = self._length(self.rng.choice((64, 64, 3000, 60_000)))
        body, part, octets = self._body(length)
        at = self.rng.randint(0, _SPAN - length)
        peer.written[at : at + length] = octets
        self._requests.append(_Request(number, length, part.get("offset")))
        self.endpoint.qp.post_send(
            Opcode.RDMA_WRITE, body, wr_id=number, stag=peer.target.stag, to=peer.target.to + at,
            **part,
        )  # fmt: skip

    def _read(self, peer: _End, number: int) -> None:
        length = self._length(self.rng.choice((64, 64, 3000, 60_000)))
        at = self.rng.randint(0, _SPAN - length)
        sink = bytearray(length)
        octets = peer.readable[at : at + length]
        self._requests.append(_Request(number, length, None, sink, octets))
        self.endpoint.qp.post_send(
            Opcode.RDMA_READ, sink or None, wr_id=number, stag=peer.source.stag,
            to=peer.source.to + at,
        )  # fmt: skip

    # -- completions ------------------------------------------------------------------------------

    async def take(self, peer: _End, count: int) -> None:
        """Takes completions until all requests are complete, and all messages have arrived."""
        completed = 0
        while completed < count or self.coming or not peer.posted:
            for wc in await self.endpoint.wait(64):
                if wc.status is not WcStatus.SUCCESS:
                    why = self.endpoint.connection.reason() or "for no reason"
                    raise Wrong(f"{wc.opcode.name} completed with {wc.status.name}: {why}")
                if wc.opcode is Opcode.RECV:
                    self._receive(wc)
                else:
                    self._complete(wc)
                    completed += 1

    def _receive(self, wc: WC) -> None:
        octets, asks = self.coming.popleft()
        if wc.wr_id[: wc.byte_len] != octets or wc.solicited != asks:
            raise Wrong(f"a message of {len(octets)} octets arrived as another one")
        self._count(len(octets))
        self._post_buffer(self.endpoint.qp)

    def _complete(self, wc: WC) -> None:
        request = self._requests.popleft()
        number, length = request.number, request.length
        if (wc.wr_id, wc.byte_len) != (number, length):
            raise Wrong(f"request {number} of {length} octets completed as {wc.wr_id}")
        if request.sink is not None and request.sink != request.octets:
            raise Wrong(f"Read {number} of {length} octets got others")
        if request.place is not None:  # the buffer is free: what the device still sends is wrong
            self._local.write(_JUNK * length, request.place)
        if wc.opcode is not Opcode.SEND:
            self._count(length)
        self._slots.release()

    def _count(self, octets: int) -> None:
        self._tally.messages += 1
        self._tally.octets += octets

    def check(self) -> None:
        """Compares the memory that the peer has written; all its Writes are placed."""
        self.target.refresh()
        if self._target != self.written:
            raise Wrong("Writes have left other octets")

    # -- errors -----------------------------------------------------------------------------------

    async def err(self, peer: _End) -> None:
        """Does what the peer must refuse, and checks both sides' Terminate."""
        rng, post = self.rng, self.endpoint.qp.post_send
        target, source = peer.target, peer.source
        ddp, rdma = Layer.DDP, Layer.RDMA
        past: dict[str, Any] = {"stag": target.stag, "to": (target.to + _SPAN - 1) % (1 << 64)}
        # Error Types and Codes: RFC 5041 section 7.2 for DDP, RFC 5040 section 4.8 for RDMAP.
        errors: dict[str, tuple[Callable[[], None], tuple[int, ...]]] = {
            "Write to another key": (
                lambda: post(Opcode.RDMA_WRITE, b"x", stag=target.stag ^ 1, to=target.to),
                (ddp, 1, 0),
            ),
            "Read without the right": (
                lambda: post(Opcode.RDMA_READ, bytearray(8), stag=target.stag, to=target.to),
                (rdma, 1, 2),
            ),
            "Write without the right": (
                lambda: post(Opcode.RDMA_WRITE, b"x", stag=source.stag, to=source.to),
                (ddp, 1, 0),
            ),
            "Send that is too long": (
                lambda: post(Opcode.SEND, rng.randbytes(peer.rooms[0] + 1)),
                (ddp, 2, 5),
            ),
        }
        if past["to"] != (1 << 64) - 1:  # there an octet more would wrap
            errors["Write out of bounds"] = (
                lambda: post(Opcode.RDMA_WRITE, b"xy", **past), (ddp, 1, 1),
            )  # fmt: skip
        name = rng.choice([*errors])
        does, expected = errors[name]
        does()
        reasons = await asyncio.gather(*(end.endpoint.disconnected() for end in (self, peer)))
        for reason, by_peer in zip(reasons, (True, False), strict=True):
            got = None
            if isinstance(reason, Terminated) and reason.by_peer is by_peer:
                got = reason.terminate.layer, reason.terminate.type, reason.terminate.code
            if got != expected:
                raise Wrong(f"a {name} ended with {reason!r}, not with {expected}")
        self._tally.errors[name] += 1
