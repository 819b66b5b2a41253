"""Two devices that play random work against each other, each in lock step with the golden model.

Both devices receive, send and answer RDMA Reads in gateware. Between them is TCP over a simulated
network that loses packets, carries some twice and lets some overtake others. Most connections have
a TCP without copies: the device reads the octets again that were lost, and a buffer is overwritten
as soon as its message is complete. The work is drawn in chunks, which the seed and their number
determine. In a chunk several connections are busy in both directions at the same time, and every
other one ends with an error. On some, an end takes no completions until its completion queue is
full, and the others do not wait. Each octet that arrives is compared with the octet that was sent.
After some chunks others play with new devices, in surroundings with other delays.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any, NamedTuple

from ....hdl.spec import regs
from ....hdl.spec.config import RnicConfig
from ....hdl.spec.send import Kind, Piece
from ....sw_driver import MR, PD, Access, Context, Device
from ....sw_driver.base.errors import RnicError, StateError
from ....sw_driver.cm import Terminated
from ....sw_driver.rdmap import QP, WC, Layer, Opcode
from ....sw_driver.verbs.context import IDLE
from ....sw_driver.verbs.cq import WcStatus
from ....sw_driver.verbs.sending import Part
from ...engines.compiled import FPDUS, FRAMES
from ...engines.engine import Stalls
from .bodies import Bodies, Body, base
from .channel import Wrong
from .end import TcpEnd, carry
from .entries import RingEntries, broken, changed, silent
from .lockstep import Differs, LockStep
from .network import Network, Packet, Rates
from .rest import Rest
from .sessions import play_sessions

__all__ = ["Failure", "Tally", "config_of", "play"]

#: Octets of the memory that an end lets the other one write, or read.
_SPAN = 200_000
#: Receive buffers that an end has posted, and its requests that may be incomplete.
_DEPTH, _UNDER_WAY = 24, 48
#: Messages of a connection, in one direction; numbers of connections at a time; and chunks that the
#: same devices play.
_MESSAGES, _CONNECTIONS, _TOGETHER = 400, (1, 2, 4, 8), 16
#: Octets of the longest segments, the share of messages before which they change, and the share of
#: connections whose TCP keeps copies.
_MULPDUS, _CHANGES, _KEEPING = (128, 1400, 1400, 4000, 16000), 0.05, 0.2
#: The shares of messages that may have many segments, of those of them that are as long as they may
#: be, and of buffers for messages of many turns.
_LONG, _FULL, _LONGEST = 0.1, 0.2, 0.002
#: The share of messages whose success is not reported, and of Sends that invalidate an STag.
_SILENT, _INVALIDATES = 0.2, 0.1
#: The share of connections of which an end takes no completions for a while, and the base-2
#: logarithms of how many its queue holds then; how many messages this end sends meanwhile, none of
#: which is long; and the room in its ring, twice the entries of any message, below which it sends
#: one more and no further one.
_RESTS, _ROOMS, _MEANWHILE, _NEARLY_FULL = 0.3, (1, 2, 3, 4, 5, 6), 30, 128
#: More entries than a send ring has, and than a producer index may be ahead.
_BEYOND = 1 << 8, 1 << 15
#: RDMA Reads that an end may have outstanding.
_READS = (1, 2, 16)
#: Octets of pages on the bus, or None; probabilities that the bus or a port idles; and cycles that
#: the memory takes.
_CARRY = 1 << 38  # the device adds to the page numbers of addresses in halves: a carry is there
_PAGES, _IDLES, _LATENCIES = (None, 1 << 15), (0.0, 0.0, 0.1, 0.5), (1, 8, 100)
#: The share of turns after which a device is asked whether it is idle; cycles for which an idle
#: device stays so, more than the memory takes; and how many times as many pass until a device is
#: idle after its last work, at most.
_LOOKS, _QUIET, _PATIENCE = 0.1, 300, 100
_STATUS = regs.BY_NAME["STATUS"].address
#: Octets that a device may send before TCP takes them.
_AHEAD = (1, 1, 1 << 14, 1 << 18)
#: Octets of a region of which the bus refuses one.
_HOLED = 20_000
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


def config_of(width: int, sctp: bool) -> RnicConfig:
    """Returns the configuration of both devices."""
    return RnicConfig(width=width, transmit=True, responder=True, mpa=not sctp, sctp=sctp)


def play(
    width: int,
    seed: int,
    messages: int,
    rates: Rates,
    *,
    sctp: bool = False,
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
    sctp
        The devices work over SCTP instead of TCP.
    only
        Play only this chunk.
    progress
        Called after each chunk with the number of messages done, and of all.
    faulty
        A simulator with planted faults, which the first device is, and the number of the active
        one; 0: none.
    """
    tally, began = Tally(), time.monotonic()
    numbers = count() if only is None else [only]
    for together, chunks in groupby(numbers, lambda number: number // _TOGETHER):
        with _devices(width, f"{seed} {together}", sctp, faulty) as sims:
            before = tally.cycles - sum(sim.cycle for sim, _ in sims)
            for number in chunks:
                left = messages - tally.messages
                rng = random.Random(f"{seed} {number}")
                try:
                    try:
                        asyncio.run(_chunk(sims, rng, left, rates, tally))
                    except Exception as error:
                        error.add_note(f"in chunk {number}, after {tally.messages} messages")
                        raise
                except* (Wrong, RnicError) as group:
                    tally.failure = Failure(number, left, str(_first(group)))
                tally.seconds = time.monotonic() - began
                tally.cycles = before + sum(sim.cycle for sim, _ in sims)
                if progress is not None:
                    progress(min(tally.messages, messages), messages)
                if tally.failure is not None:  # the device and the driver may not agree
                    return tally
                if tally.messages >= messages:
                    break
            for _, context in sims:
                context.close()
        if tally.messages >= messages:
            break
    return tally


def _first(error: BaseException) -> BaseException:
    """Returns the first error in groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Repeatable(LockStep):
    """A device whose Steering Tags its seed determines, too.

    Now and then it is asked whether it is idle. If so, nothing may leave, and nothing be read from
    memory, until it gets work.
    """

    def entropy(self, octets: int) -> bytes:
        return self._random.randbytes(octets)

    def wait(self, timeout: float) -> None:
        super().wait(timeout)
        if self.rng.random() < _LOOKS and not self.sending and self._idle():
            before = self._departed()
            self.run(_QUIET)
            after = self._departed()
            if before[-1] or after != before:
                raise Differs(
                    f"the device was idle in cycle {self.cycle - _QUIET}, but not in the next"
                    f" {_QUIET}: expected {before[:-1]} packets and no read of memory, got {after}"
                )

    def calm(self) -> None:
        """Waits until the device is idle, which has nothing to do."""
        for _ in range(_PATIENCE):
            if self._idle():
                return
            self.run(_QUIET)
        raise Differs(f"the device is not idle {_PATIENCE * _QUIET} cycles after its last work")

    def _idle(self) -> bool:
        return bool(self.read(_STATUS) & IDLE)

    def _departed(self) -> tuple[int, ...]:
        """Returns how many FPDUs and frames have left, and whether one leaves or memory is read."""
        sim, library = self._caught_up(), self._library
        left = [library.sim_left(sim, port) for port in (FPDUS, FRAMES)]
        return *left, library.sim_leaving(sim)


@contextmanager
def _devices(
    width: int, seed: str, sctp: bool, faulty: tuple[Path, int] | None
) -> Iterator[list[tuple[_Repeatable, Context]]]:
    rng, config = random.Random(seed), config_of(width, sctp)
    with ExitStack() as stack:
        sims: list[_Repeatable] = []
        for each in (faulty, None):
            stalls = Stalls(
                **{side: rng.choice(_IDLES) for side in Stalls.SIDES}, stretch=rng.choice((1, 20)),
                response_latency=rng.choice(_LATENCIES), seed=rng.getrandbits(30),
            )  # fmt: skip
            sim = _Repeatable(
                config, seed=rng.getrandbits(30), page=rng.choice(_PAGES),
                base=rng.randrange(1, 1 << 26) * _CARRY - rng.randrange(4 << 20), stalls=stalls,
                faulty=each, together=True,
            )  # fmt: skip
            sims.append(stack.enter_context(sim))
        found: list[tuple[_Repeatable, Context]] = [(sim, Device(sim).open()) for sim in sims]
        if not sctp:
            for device, context in found:
                device.watch(context)
        yield found


async def _chunk(
    sims: list[tuple[_Repeatable, Context]],
    rng: random.Random,
    left: int,
    rates: Rates,
    tally: Tally,
) -> None:
    """Plays a chunk; afterwards the devices hold nothing of it."""
    many = rng.choice(_CONNECTIONS)
    each = max(1, min(_MESSAGES, left // (2 * many)))
    contexts = [context for _, context in sims]
    for context in contexts:
        context.numbers.rotate(rng.randrange(len(context.numbers)))
    draw, counts = random.Random(rng.getrandbits(64)), tally.network
    pds = [PD(context) for context in contexts]
    if sims[0][0].config.sctp:
        await play_sessions(Network(rates, draw, counts), pds, many, each, rng, tally)
    else:
        await _connections(Network(rates, draw, counts), pds, many, each, rng, tally)
    for pd in pds:
        pd.close()
    for sim, context in sims:
        if sim.config.mpa:
            sim.compare_counters()
        sim.calm()
        if context.streams or context.cqs or context.regions:
            raise Wrong(
                f"after the connections a device still holds {len(context.streams)} streams,"
                f" {len(context.cqs)} completion queues and {len(context.regions)} regions"
            )


async def _connections(
    network: Network[Packet], pds: list[PD], many: int, each: int, rng: random.Random, tally: Tally
) -> None:
    """Plays ``many`` connections, with ``each`` messages in each direction."""
    pairs = [
        _pair(network, pds if rng.random() < 0.5 else pds[::-1], rng, tally) for _ in range(many)
    ]
    ends = [end for pair in pairs for end in pair]
    async with asyncio.TaskGroup() as group:
        contexts = [pd.context for pd in pds]
        carries = group.create_task(carry(network, contexts, [end.endpoint for end in ends]))
        async with asyncio.TaskGroup() as works:
            for pair in pairs:
                works.create_task(_work(pair, each))
        carries.cancel()
    for end in ends:
        end.close()


def _pair(
    network: Network[Packet], pds: list[PD], rng: random.Random, tally: Tally
) -> tuple[_End, _End]:
    """Returns the ends of a connection, the first one in the first domain."""
    ends = _End(pds[0], rng, tally), _End(pds[1], rng, tally)
    reads = rng.choice(_READS)
    for pd, end in zip(pds, ends, strict=True):
        end.mulpdu = rng.choice(_MULPDUS)
        end.endpoint = TcpEnd(
            network, pd, keeps=rng.random() < _KEEPING, prepare=end.prepare,
            mulpdu=end.mulpdu, crc=rng.random() < 0.7, markers=rng.random() < 0.4,
            ahead=rng.choice(_AHEAD), ird=reads, ord=reads,
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
    going = True
    if one.rng.random() < _RESTS:
        going = await one.rest(other)
        for end in pair:
            end.check()
    if going and one.rng.random() < 0.5:
        await one.err(other)
        for end in pair:
            end.check()
    await asyncio.gather(*(end.endpoint.disconnect() for end in pair))


class _Request(NamedTuple):
    """A request that is not complete.

    Parameters
    ----------
    number, length
        Its number, and the octets of its message.
    places
        The parts of the region that messages are sent from, if the message is there.
    sink, octets
        RDMA_READ: where the response is placed, and the octets that it has to hold.
    """

    number: int
    length: int
    places: tuple[range, ...] = ()
    sink: bytearray | None = None
    octets: bytes = b""


class _Wrong(Part):
    """A part of a region whose piece is another one, which the device must not read."""

    wrong: Piece

    @property
    def piece(self) -> Piece:
        return self.wrong


class _End:
    """An end of a connection: its memory, and the messages that the other end has sent."""

    endpoint: TcpEnd
    mulpdu: int  #: octets of the longest segments

    def __init__(self, pd: PD, rng: random.Random, tally: Tally) -> None:
        self.rng, self._tally = random.Random(rng.getrandbits(64)), tally
        rng = self.rng
        #: The octets that the peer may read, and those that it has written.
        self.readable = rng.randbytes(_SPAN)
        self.written = bytearray(_SPAN)
        self._target = bytearray(_SPAN)
        self.source = pd.register(bytearray(self.readable), Access.REMOTE_READ, to=base(rng, _SPAN))
        self.target = pd.register(self._target, Access.REMOTE_WRITE, to=base(rng, _SPAN))
        self._bodies = Bodies(pd, rng)
        self.rooms: deque[int] = deque()  # octets of the buffers that no message was sent for
        self.free = asyncio.Semaphore(0)
        #: Messages that were sent to this end: octets, whether they ask for an event, and the STag
        #: that they invalidate.
        self.coming: deque[tuple[bytes, bool, int | None]] = deque()
        self.posted = False  # all messages of this end are
        self._further: list[MR] = []  # regions for errors
        self._lent: dict[int, MR] = {}  # by the STags that messages of the peer invalidate
        self._mute = False  # no Terminate arrives after the error
        self._slots = asyncio.Semaphore(_UNDER_WAY)
        self._requests: deque[_Request] = deque()

    async def connect(self, peer: _End) -> None:
        await self.endpoint.connect(peer.endpoint)
        self._tally.connections += 1

    def close(self) -> None:
        """Frees everything, in an order that is always the same."""
        self.endpoint.close()
        further = *self._further, *self._lent.values()
        for region in (self.source, self.target, self._bodies.region, *further):
            region.close()

    def prepare(self, qp: QP) -> None:
        """Posts buffers, before the peer can send."""
        assert qp.stream.sending is not None
        self._entries = RingEntries(qp.stream.sending)
        for _ in range(_DEPTH):
            self._post_buffer(qp)

    def _post_buffer(self, qp: QP) -> None:
        rng = self.rng
        room = self._most(rng.randrange(1, 70_000))
        if rng.random() < _LONGEST:
            room = rng.randrange(1 << 19)
        buffer = bytearray(room)
        qp.post_recv(buffer, wr_id=buffer)
        self.rooms.append(room)
        self.free.release()

    def _most(self, long: int) -> int:
        """Draws the octets that a message may have at most: seldom ``long``."""
        rng = self.rng
        if rng.random() < _LONG:
            return rng.choice((3000, long))
        return rng.choice((1, 64, 64, 64, 200, 500))

    def _length(self, most: int) -> int:
        rng = self.rng
        if self.endpoint.rest is not None:
            most = min(most, _SHORT[-1])
        if most > _SHORT[-1] and rng.random() < _FULL:
            return most
        return min(most, rng.choice((most, *_SHORT, rng.randrange(1500), rng.randrange(most + 1))))

    # -- sending ----------------------------------------------------------------------------------

    async def post(self, peer: _End, count: int) -> int:
        """Posts ``count`` messages to the peer, or as many as fit in the ring of an end that rests.

        The last one is a Send: with it, all Writes have arrived. Returns how many were posted.
        """
        kinds = {"send": self._send, "write": self._write, "read": self._read}
        rests = self.endpoint.rest or peer.endpoint.rest
        if rests:  # the response would overrun a queue, or the request add no completion to it
            del kinds["read"]
        number, last = 0, False
        while not last:
            # Entries stay in the ring until the driver takes their completion.
            full = self.endpoint.rest is not None and self._entries.room < _NEARLY_FULL
            last = full or number == count - 1
            kind = "send" if last else self.rng.choice((*kinds, "send", "write"))
            if rests and peer.free.locked():  # an end that rests posts no buffers
                kind = "write"
            if kind == "send":
                await peer.free.acquire()
            await self._slots.acquire()
            if self.rng.random() < _CHANGES:
                self._change_mulpdu()
            if not last and self.rng.random() < _SILENT:
                self._entries.change = silent
            kinds[kind](peer, number)
            self._entries.change = None
            self._tally.kinds[kind] += 1
            number += 1
        self.posted = True
        return number

    def _change_mulpdu(self) -> None:
        """Gives the segments from the next one on another length."""
        stream: Any = self.endpoint.qp.stream
        stream.lengths.change(stream, self.rng.randint(_MULPDUS[0], self.mulpdu))

    def _body(self, length: int) -> Body:
        return self._bodies.draw(
            length, chain.from_iterable(each.places for each in self._requests)
        )

    def _send(self, peer: _End, number: int) -> None:
        length, asks = self._length(peer.rooms.popleft()), self.rng.random() < 0.3
        body = self._body(length)
        stag = peer._lend() if self.rng.random() < _INVALIDATES else None
        peer.coming.append((body.octets, asks, stag))
        self._requests.append(_Request(number, length, body.places))
        self.endpoint.qp.post_send(
            Opcode.SEND if stag is None else Opcode.SEND_WITH_INV, body.posted, wr_id=number,
            solicited=asks, stag=stag or 0,
        )  # fmt: skip

    def _lend(self) -> int:
        """Registers memory for this connection alone; returns its STag, for a message to
        invalidate.
        """
        region = self.source.pd.register(
            bytearray(1), Access.REMOTE_WRITE, stream=self.endpoint.qp.stream
        )
        self._lent[region.stag] = region
        return region.stag

    def _write(self, peer: _End, number: int) -> None:
        length = self._length(self._most(60_000))
        body = self._body(length)
        at = self.rng.randint(0, _SPAN - length)
        peer.written[at : at + length] = body.octets
        self._requests.append(_Request(number, length, body.places))
        self.endpoint.qp.post_send(
            Opcode.RDMA_WRITE,
            body.posted,
            wr_id=number,
            stag=peer.target.stag,
            to=peer.target.to + at,
        )

    def _read(self, peer: _End, number: int) -> None:
        length = self._length(self._most(60_000))
        at = self.rng.randint(0, _SPAN - length)
        sink = bytearray(length)
        octets = peer.readable[at : at + length]
        self._requests.append(_Request(number, length, (), sink, octets))
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
                if wc.opcode is Opcode.RECV:
                    self._compare(wc)
                    self._post_buffer(self.endpoint.qp)
                else:
                    self._complete(wc)
                    completed += 1

    def _check_status(self, wc: WC) -> None:
        if wc.status is not WcStatus.SUCCESS:
            why = self.endpoint.connection.reason() or "for no reason"
            raise Wrong(f"{wc.opcode.name} completed with {wc.status.name}: {why}")

    def _compare(self, wc: WC) -> None:
        """Compares a message that has arrived."""
        self._check_status(wc)
        if not self.coming:
            raise Wrong(f"a message of {wc.byte_len} octets arrived that nobody has sent")
        octets, asks, stag = self.coming.popleft()
        if wc.wr_id[: wc.byte_len] != octets or (wc.solicited, wc.invalidated) != (asks, stag):
            raise Wrong(f"a message of {len(octets)} octets arrived as another one")
        if stag is not None:
            self._lent.pop(stag).close()
        self._count(len(octets))

    def _complete(self, wc: WC) -> None:
        self._check_status(wc)
        if not self._requests:
            raise Wrong(f"request {wc.wr_id} completed twice")
        request = self._requests.popleft()
        number, length = request.number, request.length
        if (wc.wr_id, wc.byte_len) != (number, length):
            raise Wrong(f"request {number} of {length} octets completed as {wc.wr_id}")
        if request.sink is not None and request.sink != request.octets:
            raise Wrong(f"Read {number} of {length} octets got others")
        self._bodies.free(request.places)
        if wc.opcode not in (Opcode.SEND, Opcode.SEND_WITH_INV):
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

    # -- a full completion queue ------------------------------------------------------------------

    async def rest(self, peer: _End) -> bool:
        """Takes no completions until the completion queue is full, and this end's messages have
        arrived at the peer although nothing can report that.

        Perhaps the peer then sends one message more, for which there is no room: that ends the
        connection. Returns whether there still is a connection.
        """
        rng, end = self.rng, self.endpoint
        size, count = rng.choice(_ROOMS), rng.randrange(1, _MEANWHILE)
        end.rest = rest = Rest(end.cq, end.qp.stream.number, size)
        async with asyncio.TaskGroup() as group:
            group.create_task(peer.post(self, 1 << size))
            group.create_task(peer.take(self, 1 << size))
        await end.until(lambda: rest.full)
        self.posted = False
        async with asyncio.TaskGroup() as group:
            posting = group.create_task(self.post(peer, count))
            group.create_task(peer.take(self, 0))
        await end.until(lambda: end.acknowledged)
        overruns = rng.random() < 0.5
        if overruns:
            self._overrun(peer.endpoint.qp)
            await end.until(lambda: end.qp.stream.error)
        rest.end()
        end.rest = None
        if overruns:
            peer._requests.clear()
            await peer._ended(self, "message to a full completion queue", (Layer.DDP, 0, 0), False)
            self._take_rest()
        else:
            await self.take(peer, posting.result())
            rest.restore()
        return not overruns

    def _overrun(self, qp: QP) -> None:
        """Sends this end a message from the peer's queue pair, which changes no octet of it."""
        if self.rooms and self.rng.random() < 0.5:
            qp.post_send(Opcode.SEND, bytes(self.rooms[0]))
        else:
            octets, target = bytes(self.written[: self.rng.choice(_SHORT)]), self.target
            qp.post_send(Opcode.RDMA_WRITE, octets, stag=target.stag, to=target.to)

    def _take_rest(self) -> None:
        """Takes the completions after an overrun: all messages that came before it, and all
        requests.
        """
        for wc in self.endpoint.cq.take(1 << 16):
            if wc.opcode is not Opcode.RECV:
                self._complete(wc)
            elif wc.status is WcStatus.SUCCESS:
                self._compare(wc)
        if self.coming or self._requests:
            raise Wrong(
                f"{len(self.coming)} messages and {len(self._requests)} requests before an overrun"
                " have no completion"
            )

    # -- errors -----------------------------------------------------------------------------------

    async def err(self, peer: _End) -> None:
        """Does what the peer must refuse, or this side's device, and checks both sides' Terminate.
        No Write that is posted later may arrive.
        """
        rng, qp = self.rng, self.endpoint.qp
        name = rng.choice([*(wrong := self._wrong(peer))])
        does, expected, mine = wrong[name]
        does()
        self._requests.clear()
        # A message after a Read may arrive before the Read is answered, and a right index may come
        # before the device sees a wrong one.
        late = 0 if name.startswith(("Read", "doorbell")) else rng.choice((0, 1, 9))
        for _ in range(late):
            with suppress(StateError):
                qp.post_send(Opcode.RDMA_WRITE, b"late", stag=peer.target.stag, to=peer.target.to)
        await self._ended(peer, name, expected, mine)

    async def _ended(self, peer: _End, name: str, expected: tuple[int, ...], mine: bool) -> None:
        """Waits until the connection has ended, and checks both sides' Terminate."""
        reasons = await asyncio.gather(*(end.endpoint.disconnected() for end in (self, peer)))
        for end, reason in zip((self, peer), reasons, strict=True):
            sends = (end is self) is mine
            got = None
            if isinstance(reason, Terminated) and reason.by_peer is not sends:
                got = reason.terminate.layer, reason.terminate.type, reason.terminate.code
            # RFC 5041 section 5.4: after a part of a message no Terminate is delivered. Nor does
            # one leave after an index beyond the ring: which entries are messages is not known.
            if got != (expected if sends or not self._mute else None):
                raise Wrong(f"a {name} ended with {reason!r}, not with {expected}")
        self._tally.errors[name] += 1

    def _wrong(self, peer: _End) -> dict[str, tuple[Callable[[], None], tuple[int, ...], bool]]:
        """Returns, for the name of each fault, a function that makes it, the error in the
        Terminate, and True if this side sends the Terminate.
        """
        rng, post, local = self.rng, self.endpoint.qp.post_send, self._bodies.region
        target, source = peer.target, peer.source
        ddp, rdma = Layer.DDP, Layer.RDMA
        # Error Types and Codes: RFC 5041 section 7.2 for DDP, RFC 5040 section 4.8 for RDMAP.
        own = (rdma, 0, 0)
        wrong: dict[str, tuple[Callable[[], None], tuple[int, ...], bool]] = {
            "Write to another key": (
                lambda: post(Opcode.RDMA_WRITE, b"x", stag=target.stag ^ 1, to=target.to),
                (ddp, 1, 0), False,
            ),
            "Read without the right": (
                lambda: post(Opcode.RDMA_READ, bytearray(8), stag=target.stag, to=target.to),
                (rdma, 1, 2), False,
            ),
            "Read of memory that does not answer": (
                lambda: self._read_broken(peer), own, False,
            ),
            "Write without the right": (
                lambda: post(Opcode.RDMA_WRITE, b"x", stag=source.stag, to=source.to),
                (ddp, 1, 0), False,
            ),
            "Send that is too long": (
                lambda: post(Opcode.SEND, rng.randbytes(peer.rooms[0] + 1)),
                (ddp, 2, 5), False,
            ),
            "Send from another key": (
                lambda: self._send_pieces(local.stag ^ 1, 0), own, True,
            ),
            "Send from out of bounds": (
                lambda: self._send_pieces(local.stag, local.length - 9), own, True,
            ),
            "Write from memory that does not answer": (
                lambda: self._write_broken(peer), own, True,
            ),
            "Send to a queue that is none": (
                lambda: self._post_changed(qn=rng.randrange(4, 256)), own, True,
            ),
            "message of no kind": (
                self._post_broken, own, True,
            ),
            "session control message over MPA": (
                lambda: self._post_changed(kind=Kind.CONTROL), own, True,
            ),
            "doorbell beyond the ring": (
                self._ring_beyond, own, True,
            ),
        }  # fmt: skip
        if (to := (target.to + _SPAN - 1) % (1 << 64)) != (1 << 64) - 1:  # an octet more would wrap
            wrong["Write out of bounds"] = (
                lambda: post(Opcode.RDMA_WRITE, b"xy", stag=target.stag, to=to), (ddp, 1, 1), False,
            )  # fmt: skip
        return wrong

    def _post(self, kind: Kind, body: Any, **fields: int) -> None:
        """Posts a message that the queue pair would refuse."""
        half = self.endpoint.qp.stream.sending
        assert half is not None
        half.post(kind, body, **fields)
        self.endpoint.cq.messages.wake()

    def _post_broken(self) -> None:
        """Posts a message, and writes other octets to its entries."""
        self._entries.change = broken(self.rng)
        self._post(Kind.UNTAGGED, bytes(self.rng.choice((0, 32, 400))), qn=0)
        self._entries.change = None

    def _post_changed(self, **fields: int) -> None:
        """Posts a message that has other values in its entry, which the driver would refuse."""
        self._entries.change = changed(**fields)
        self._post(Kind.UNTAGGED, b"x", qn=0)
        self._entries.change = None

    def _ring_beyond(self) -> None:
        """Posts a message, and rings for more entries than the ring has."""
        self._mute = True
        self._entries.beyond = self.rng.randrange(*_BEYOND)
        self._post(Kind.UNTAGGED, bytes(self.rng.choice((0, 32, 400))), qn=0)
        self._entries.beyond = 0

    def _send_pieces(self, stag: int, offset: int) -> None:
        """Sends octets of the local region, and then octets that the device must not read."""
        local = self._bodies.region
        part = _Wrong(local, 0, 10)
        part.wrong = Piece(stag, 10, (local.to + offset) % (1 << 64))
        self._post(Kind.UNTAGGED, [Part(local, 0, 10), part], qn=0)

    def _broken(self, peer: _End, access: Access, octets: bytes = bytes(_HOLED)) -> MR:
        """Returns a region of which the bus refuses an octet: one of the first segment of a message
        or, after that has left, a later one. The ``peer`` asks for the message.
        """
        region = self._bodies.region.pd.register(bytearray(octets), access)
        peer._mute = self.rng.random() < 0.5
        at = self.rng.randrange(*((_MULPDUS[-1], _HOLED) if peer._mute else (_MULPDUS[0] // 2,)))
        sim = region.pd.context.transport
        assert isinstance(sim, LockStep)
        for extent in region.mapping.memory.extents:
            if 0 <= at < extent.length:
                sim.fault(range(extent.address + at, extent.address + at + 1))
            at -= extent.length
        self._further.append(region)
        return region

    def _write_broken(self, peer: _End) -> None:
        """Writes the octets that the peer has already."""
        region = self._broken(self, Access.LOCAL_WRITE, bytes(peer.written[:_HOLED]))
        fields = {"stag": peer.target.stag, "to": peer.target.to}
        self._post(Kind.TAGGED, Part(region, 0, _HOLED), **fields)

    def _read_broken(self, peer: _End) -> None:
        region = peer._broken(self, Access.REMOTE_READ)
        self.endpoint.qp.post_send(
            Opcode.RDMA_READ, bytearray(_HOLED), stag=region.stag, to=region.to
        )
