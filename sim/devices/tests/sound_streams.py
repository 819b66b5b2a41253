"""A device with its host, and sound streams on it, whose peers and owners do all that they may.

Each sound stream is its own judge: it compares each octet that the device sends or places for it,
each completion, and the order of all of them, with its messages and those of its peer.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec import completion as completions
from ddp_rnic.hdl.spec.commands import Wait, Write
from ddp_rnic.hdl.spec.completion import ChunkStatus, Completion, SentStatus, Status
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.net import AssociationKey, insert
from ddp_rnic.hdl.spec.sctp import Function
from ddp_rnic.hdl.spec.send import ENTRY, Flag, Kind, Message, Piece, Record
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.engines.engine import Stalls
from ddp_rnic.sim.model.ddp import DataSource, decode_segment
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver, MpaSender
from ddp_rnic.sim.model.rdmap import Opcode, ReadRequest, opcode, rsvdulp
from ddp_rnic.sim.model.sctp import DataChunk, Packet, Ppid
from ddp_rnic.sim.replay.paths import example_path, frame_of
from ddp_rnic.sw_driver.transports.transport import SentFpdu

WRAP = 1 << 32
#: Where the memory of a stream has its parts.
ROOM = 0x20000
SRC, SINK, DST, RECV, RING, SLOTS = 0, 0x8000, 0xC000, 0x10000, 0x14000, 0x15000
SRC_OCTETS, SINK_SLOT, RECV_OCTETS, RECVS = 0x8000, 0x400, 0x400, 16
#: Base-2 logarithm of the entries of a send ring, and of a completion queue.
ENTRIES, CQ_SIZE = 6, 6
#: The completion queue of SCTP's owner, and the base-2 logarithm of its entries.
OWNER, OWNER_SIZE = 16, 10
#: Regions begin before 2**32 and end after it.
TO = (1 << 32) - 0x2000
IRD, IRD_SLOTS = 8, 4
#: Cycles after which a device that does nothing hangs.
PATIENCE = 40_000
#: Cycles after which even a device that works on has to be done.
MOST = 400_000
LENGTHS = (0, 1, 28, 63, 64, 500, 986, 987, 1024)
SENT, MESSAGE = completions.Kind.SENT, completions.Kind.MESSAGE


def stag(stream: int, which: int, key: int) -> int:
    return (16 * stream + which) << 8 | key


class Host:
    """The device, and a host that takes completions and events."""

    def __init__(self, config: RnicConfig, stalls: Stalls) -> None:
        self.config = config
        self.sim = SimTransport(config, stalls=stalls)
        self.memory = self.sim.allocate(1 << 20)
        self.view = self.memory.view
        (extent,) = self.memory.extents
        self.base = extent.address
        self.taken: dict[int, int] = {}
        #: Completions of SCTP's owner, and frames that have left.
        self.records: deque[Completion] = deque()
        self.frames: deque[SentFpdu] = deque()
        self.moved = 0  #: FPDUs and completions that were taken
        #: Queues of which no completion is taken.
        self.paused: set[int] = set()
        #: Completions, FPDUs and events of streams, until the stream takes them.
        self.completions: dict[int, deque[Completion]] = {n: deque() for n in range(64)}
        self.fpdus: dict[int, deque[SentFpdu]] = {n: deque() for n in range(64)}
        self.events: dict[int, list[tuple[int, int]]] = {n: [] for n in range(64)}

    def do(self, *steps: Iterable[Write | Wait]) -> None:
        for step in (step for each in steps for step in each):
            if isinstance(step, Write):
                self.sim.write(step.address, step.value)
            else:
                self.until(partial(self.shows, step), str(step))

    def shows(self, step: Wait) -> bool:
        """Returns whether a register has the value that a command waits for."""
        return self.sim.read(step.address) & step.mask == step.value

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Lets time pass until something is done."""
        moved, end = self.moved, self.sim.cycle + PATIENCE
        latest = end + MOST
        while not done():
            assert self.sim.cycle < latest, f"cycle {self.sim.cycle}: still no end of {what}"
            if moved != self.moved:
                moved, end = self.moved, self.sim.cycle + PATIENCE
            assert self.sim.cycle < end, f"cycle {self.sim.cycle}: no end of {what}"
            self.sim.run(50)
            self.poll()

    def read(self, name: str, stream: int | None = None) -> int:
        if stream is not None:
            self.sim.write(regs.address("SEND_STREAM"), stream)
        return self.sim.read(regs.address(name))

    def state(self, stream: int) -> dict[str, int]:
        return regs.BY_NAME["SEND_STATE"].unpack(self.read("SEND_STATE", stream))

    def size(self, number: int) -> int:
        """The base-2 logarithm of a queue's entries."""
        return OWNER_SIZE if number == OWNER else CQ_SIZE

    def queue(self, number: int) -> int:
        return 0x80000 + number * (32 << CQ_SIZE)

    def open_cq(self, number: int) -> None:
        at = self.queue(number)
        octets = 32 << self.size(number)
        self.view[at : at + octets] = bytes(octets)
        self.taken[number] = 0
        self.do(commands.set_cq(self.base + at, self.size(number), queue=number))

    def close_cq(self, number: int) -> None:
        self.do(commands.disable_cq(number))
        self.poll()
        self.taken.pop(number, None)

    def poll(self) -> None:
        """Takes FPDUs, completions and events."""
        for fpdu in self.sim.sent():
            self.fpdus[fpdu.stream].append(fpdu)
            self.moved += 1
        if self.config.sctp:
            left = self.sim.sent_frames()
            self.frames += left
            self.moved += len(left)
        for number in sorted(self.taken.keys() - self.paused):
            before, size = self.taken[number], self.size(number)
            while True:
                count = self.taken[number]
                at = self.queue(number) + 32 * (count % (1 << size))
                entry = bytes(self.view[at : at + 32])
                if (entry[31] & 1) != completions.phase(count, size):
                    break
                each = completions.decode(entry)
                if number == OWNER:
                    self.records.append(each)
                else:
                    self.completions[each.stream].append(each)
                self.taken[number] += 1
                self.moved += number != OWNER
            if self.taken[number] != before:
                self.do(commands.take(self.taken[number], queue=number))
        self.events_poll()

    def events_poll(self) -> None:
        while self.status()["event"]:
            code = regs.BY_NAME["EVENT_CODE"].unpack(self.read("EVENT_CODE"))
            self.events[self.read("EVENT_STREAM")].append((code["type"], code["code"]))
            self.sim.write(regs.address("EVENT_POP"), 1)

    def status(self) -> dict[str, int]:
        return regs.BY_NAME["STATUS"].unpack(self.read("STATUS"))

    def idle(self) -> None:
        self.until(lambda: bool(self.status()["idle"]) and not self.sim.sending, "all work")

    def close(self) -> None:
        self.sim.close()


class Posted(NamedTuple):
    """A message that was posted, or a response that a peer asked for."""

    opcode: int
    octets: bytes
    stag: int = 0
    to: int = 0


class Left(NamedTuple):
    """An FPDU that has left."""

    position: int
    octets: bytes
    record: Record


class Sound:
    """A stream whose owner, client and peer keep all rules."""

    def __init__(
        self, host: Host, stream: int, queue: int, rng: random.Random, *, repeats: bool
    ) -> None:
        self.host, self.stream, self.queue, self.rng = host, stream, queue, rng
        self.repeats = repeats
        self.at = stream * ROOM
        self.address = host.base + self.at
        view, at = host.view, self.at
        view[at : at + ROOM] = rng.randbytes(ROOM)
        self.src, self.sink, self.dst = (
            stag(stream, which, rng.randrange(256)) for which in range(3)
        )
        self.position = self.start = rng.choice((0, WRAP - 20_000, rng.getrandbits(32)))
        self.ahead = rng.choice((1100, 3000, 50_000))
        self.mulpdu = rng.choice((128, 500, 1000, 1000, 4000))
        self.ahead = max(self.ahead, self.mulpdu + 10)
        self.ord = rng.choice((1, 2, 5, 16))
        self.producer = self.done = self.gone = self.released = 0
        self.receiver = MpaReceiver(crc=True)
        self.sender = MpaSender(crc=True)
        self.source = DataSource(rng.choice((200, 1000, 1000, 3000)))
        self.own: deque[Posted] = deque()
        self.responses: deque[Posted] = deque()
        self.partial: list[bytes] = []
        self.first: Any = None
        self.msns = {0: 1, 1: 1}
        #: Read Requests that have left, as the peer sees them; Reads that are not complete.
        self.asked: deque[ReadRequest] = deque()
        self.reads: deque[tuple[int, int, bytes | None]] = deque()
        self.read_count = 0
        #: What the peer has sent, in its order: the completions that are due.
        self.expected: deque[tuple[str, Any]] = deque()
        self.recv_posted = 0
        self.write_count = self.written = self.sends = self.received = 0
        self.left: deque[Left] = deque()
        self.again: deque[Left] = deque()
        self.requested = self.answered = 0
        self.peer_out = b""
        self.unacked_responses = 0
        self._set_up()

    def _set_up(self) -> None:
        n, host, address = self.stream, self.host, self.address
        region = {"pd": n}
        host.do(
            commands.set_stream(n, pd=n, crc=True, cq=self.queue),
            *self._bounds(),
            commands.set_stag(
                self.src, Access.LOCAL_READ | Access.REMOTE_READ, to=TO, length=SRC_OCTETS,
                address=address + SRC, **region,
            ),
            commands.set_stag(
                self.sink, Access.REMOTE_WRITE, to=TO, length=16 * SINK_SLOT,
                address=address + SINK, **region,
            ),
            commands.set_stag(
                self.dst, Access.REMOTE_WRITE, to=TO, length=0x4000, address=address + DST, **region
            ),
            commands.set_mulpdu(n, self.mulpdu),
            *self._opens(),
            *(commands.set_sent_msn(n, qn, 1) for qn in range(4)),
            commands.set_send_ring(
                n, address + RING, ENTRIES, cq=self.queue, repeats=self.repeats),
            commands.open_queue(n, 0, 1),
            commands.open_queue(n, 1, 1),
        )  # fmt: skip
        for msn in range(1, 1 + IRD):
            slot = msn % (1 << IRD_SLOTS)
            host.do(
                commands.post(
                    n, 1, msn, address=address + SLOTS + ENTRY * slot, length=ReadRequest.SIZE,
                    cookie=slot, slot=64 * n + slot,
                )
            )  # fmt: skip
        host.do(
            commands.set_responses(
                n, address + SLOTS, IRD_SLOTS, ird=IRD, buffer=64 * n, msn=1
            )
        )  # fmt: skip
        for _ in range(RECVS):
            self._post_receive()

    def _bounds(self) -> list[tuple[Write, ...]]:
        """Returns the commands that bound the stream's Reads."""
        return [commands.set_reads(self.stream, self.ord)]

    def _opens(self) -> list[tuple[Write, ...]]:
        """Returns the commands that open the sending half."""
        return [
            commands.set_limit(self.stream, self.position + self.ahead),
            commands.set_sending(self.stream, sequence=self.position, crc=True, limited=True),
        ]

    def _post_receive(self) -> None:
        self.recv_posted += 1
        slot = self.recv_posted % RECVS
        self.host.do(
            commands.post(
                self.stream, 0, self.recv_posted, address=self.address + RECV + slot * RECV_OCTETS,
                length=RECV_OCTETS, cookie=slot, slot=64 * self.stream + 32 + slot,
            )
        )  # fmt: skip

    def octets(self, part: int, offset: int, length: int) -> bytes:
        at = self.at + part + offset
        return bytes(self.host.view[at : at + length])

    # -- the client -------------------------------------------------------------------------------

    def post(self) -> bool:
        """Posts a message, if the ring has room."""
        rng = self.rng
        kind = rng.choice(("write", "write", "send", "inline", "read", "read"))
        flags = Flag.SIGNALED | (Flag.FENCE if rng.random() < 0.1 else Flag(0))
        if kind == "read":
            if len(self.reads) >= 14:
                return False
            slot, length = self.read_count % 16, rng.choice(LENGTHS)
            to = TO + slot * SINK_SLOT
            message = Message(
                Kind.READ, flags, (Piece(self.sink, length, to),), qn=1, stag=9,
                to=rng.getrandbits(63), rsvdulp=rsvdulp(Opcode.READ_REQUEST, tagged=False),
            )  # fmt: skip
            request = ReadRequest(self.sink, to, length, 9, message.to)
            expected = Posted(Opcode.READ_REQUEST, request.encode())
        else:
            pieces, octets = [], b""
            for _ in range(rng.choice((1, 1, 1, 2, 3, 7))):
                length = rng.choice((*LENGTHS, 3000))
                offset = rng.randrange(SRC_OCTETS - length)
                pieces.append(Piece(self.src, length, TO + offset))
                octets += self.octets(SRC, offset, length)
            if kind == "write":
                remote = rng.getrandbits(32), rng.getrandbits(63)
                message = Message(
                    Kind.TAGGED, flags, tuple(pieces), stag=remote[0], to=remote[1],
                    rsvdulp=rsvdulp(Opcode.RDMA_WRITE, tagged=True) << 32,
                )  # fmt: skip
                expected = Posted(Opcode.RDMA_WRITE, octets, *remote)
            else:
                control = rsvdulp(Opcode.SEND, tagged=False)
                if kind == "inline":
                    octets = rng.randbytes(rng.choice((0, 1, 32, 33, 200)))
                    message = Message(
                        Kind.UNTAGGED, flags | Flag.INLINE, octets=octets, rsvdulp=control
                    )
                else:
                    message = Message(Kind.UNTAGGED, flags, tuple(pieces), rsvdulp=control)
                expected = Posted(Opcode.SEND, octets)
        raw = message.encode()
        if self.producer - self.done + len(raw) // ENTRY > 1 << ENTRIES:
            return False
        for at in range(0, len(raw), ENTRY):
            place = self.at + RING + ENTRY * (self.producer % (1 << ENTRIES))
            self.host.view[place : place + ENTRY] = raw[at : at + ENTRY]
            self.producer += 1
        if kind == "read":
            self.read_count += 1
            self.reads.append((length, slot, None))
        self.own.append(expected)
        if rng.random() < 0.8:
            self.ring()
        return True

    def ring(self) -> None:
        self.host.do(commands.ring_send(self.stream, self.producer))

    # -- the peer ---------------------------------------------------------------------------------

    def peer(self) -> None:
        """Sends a message, or answers a Read."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.25:
            if self.sends - self.received >= RECVS:
                return
            octets = rng.randbytes(rng.choice(LENGTHS))
            segments = self.source.untagged(0, octets, rsvdulp=rsvdulp(Opcode.SEND, tagged=False))
            self.expected.append(("send", octets))
            self.sends += 1
        elif kind < 0.5:
            # Over SCTP segments are placed in any order, so that no two of these overlap.
            if self.write_count - self.written > 3:
                return
            octets = rng.randbytes(rng.choice((*LENGTHS, 3000)))
            offset = self.write_count % 5 * 0xC00
            self.write_count += 1
            control = rsvdulp(Opcode.RDMA_WRITE, tagged=True)
            segments = self.source.tagged(self.dst, TO + offset, octets, rsvdulp=control)
            self.expected.append(("write", (offset, octets)))
        elif kind < 0.75:
            if self.requested - self.answered >= IRD:
                return
            length = rng.choice((*LENGTHS, 3000))
            self.request(rng.randrange(SRC_OCTETS - length), length)
            return
        else:
            self.respond()
            return
        self._put(segments)

    def request(self, offset: int, length: int) -> None:
        """Asks for octets of the region that may be read."""
        sink = self.rng.getrandbits(32), self.rng.getrandbits(62)
        request = ReadRequest(*sink, length, self.src, TO + offset)
        self.requested += 1
        self.responses.append(Posted(Opcode.READ_RESPONSE, self.octets(SRC, offset, length), *sink))
        self._put(
            self.source.untagged(
                1, request.encode(), rsvdulp=rsvdulp(Opcode.READ_REQUEST, tagged=False)
            )
        )

    def respond(self) -> None:
        if not self.asked:
            return
        request = self.asked.popleft()
        octets = self.rng.randbytes(request.length)
        self.expected.append(("read", octets))
        self._put(
            self.source.tagged(
                request.sink_stag, request.sink_to, octets,
                rsvdulp=rsvdulp(Opcode.READ_RESPONSE, tagged=True),
            )
        )  # fmt: skip

    def _put(self, segments: Iterable[bytes]) -> None:
        for segment in segments:
            self.peer_out += self.sender.send(segment)
            if self.rng.random() < 0.6:
                self.flush()

    def flush(self) -> None:
        if self.peer_out:
            sequence = (self.sender.position - len(self.peer_out)) % WRAP
            self.host.sim.send(self.stream, sequence, self.peer_out)
            self.peer_out = b""

    # -- the owner --------------------------------------------------------------------------------

    def own_step(self) -> None:
        """Gives credit, acknowledges, and asks for FPDUs again."""
        rng = self.rng
        if self.repeats:
            if self.left and rng.random() < 0.3 and len(self.again) < 12:
                self._ask(rng.choice(self.left))
            if self.left and not self.again and rng.random() < 0.5:
                for _ in range(rng.randrange(1, 1 + len(self.left))):
                    self._acknowledge()
        if rng.random() < 0.7:
            self.credit()

    def credit(self) -> None:
        self.host.do(commands.set_limit(self.stream, self.position + self.ahead))

    def _ask(self, fpdu: Left) -> None:
        record = fpdu.record
        self.again.append(fpdu)
        self.host.do(
            commands.repeat(
                self.stream, fpdu.position, entry=record.entry + record.response,
                entries=record.entries, offset=record.offset,
                length=int.from_bytes(fpdu.octets[:2], "big"),
                msn=int.from_bytes(fpdu.octets[12:16], "big"), response=bool(record.response),
            )
        )  # fmt: skip

    def _acknowledge(self) -> None:
        record = self.left.popleft().record
        if record.ends and record.response:
            self.answered += 1
        elif record.ends:
            self.host.do(
                commands.release(self.stream, record.entry + record.entries, signaled=True)
            )

    # -- reports ----------------------------------------------------------------------------------

    def absorb(self) -> None:
        """Takes what the device has sent and reported."""
        host, n = self.host, self.stream
        assert not host.events[n], f"stream {n} has the error {host.events[n]}"
        while host.fpdus[n]:
            self._left(host.fpdus[n].popleft())
        while host.completions[n]:
            self._completed(host.completions[n].popleft())

    def _left(self, fpdu: SentFpdu) -> None:
        record = Record.decode(fpdu.record)
        if record.repeat:
            before = self.again.popleft()
            assert (fpdu.sequence, fpdu.octets) == (before.position % WRAP, before.octets)
            return
        assert fpdu.sequence == self.position % WRAP, f"stream {self.stream}: a gap"
        if self.repeats:
            self.left.append(Left(self.position, fpdu.octets, record))
        elif record.ends and record.response:
            self.answered += 1
        self.position += len(fpdu.octets)
        (found,) = self.receiver.receive(fpdu.octets)
        assert isinstance(found, Fpdu), found
        self._segment(found.ulpdu)

    def _segment(self, segment: bytes) -> None:
        """Takes a segment of the device, in its order."""
        header, payload = decode_segment(segment)
        if self.first is None:
            self.first, self.partial = header, []
        self.partial.append(payload)
        if not header.last:
            return
        first, octets = self.first, b"".join(self.partial)
        self.first = None
        code = opcode(first)
        posted = (self.responses if code == Opcode.READ_RESPONSE else self.own).popleft()
        assert (code, octets) == posted[:2], f"stream {self.stream}: another message"
        if isinstance(first, TaggedHeader):
            assert (first.stag, first.to) == posted[2:]
        else:
            assert first.msn == self.msns[first.qn] and first.mo == 0
            self.msns[first.qn] += 1
        if code == Opcode.READ_REQUEST:
            self.asked.append(ReadRequest.decode(octets))

    def _completed(self, each: Completion) -> None:
        if each.kind is SENT:
            assert each.status is SentStatus.SUCCESS, each
            count = (each.tag - self.done) % (1 << 16)
            assert 0 < count <= self.producer - self.done, each
            self.done += count
            return
        assert each.kind is MESSAGE and each.status is Status.DELIVERED, each
        kind, what = self.expected.popleft()
        if kind == "send":
            self.received += 1
            slot = self.received % RECVS
            assert (each.tagged, each.tag, each.length) == (False, self.received, len(what)), each
            assert self.octets(RECV, slot * RECV_OCTETS, len(what)) == what
            self._post_receive()
        elif kind == "write":
            assert each.tagged and each.rsvdulp & 15 == Opcode.RDMA_WRITE, each
            offset, octets = what
            assert self.octets(DST, offset, len(octets)) == octets
            self.written += 1
        else:
            length, slot, _ = self.reads.popleft()
            assert each.tagged and each.rsvdulp & 15 == Opcode.READ_RESPONSE, each
            assert (each.length, len(what)) == (length, length), each
            got = self.octets(SINK, slot * SINK_SLOT, length)
            assert got == what

    def step(self) -> None:
        for _ in range(self.rng.randrange(3)):
            self.post()
        for _ in range(self.rng.randrange(3)):
            self.peer()
        self.own_step()
        self.host.poll()
        self.absorb()

    def finish(self) -> None:
        """Waits until everything has ended."""
        self.ring()
        self.flush()

        def done() -> bool:
            self.settle()
            self.absorb()
            while self.asked:
                self.respond()
            self.flush()
            if self.repeats:
                while self.left and not self.again:
                    self._acknowledge()
            self.credit()
            return not (
                self.own
                or self.responses
                or self.expected
                or self.reads
                or self.again
                or self.done != self.producer
            )

        try:
            self.host.until(done, f"stream {self.stream}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self}") from None

    def settle(self) -> None:
        """Does the work of a shared LLP."""

    def __repr__(self) -> str:
        return (
            f"own {len(self.own)}, responses {len(self.responses)}, expected"
            f" {len(self.expected)}, reads {len(self.reads)}, again {len(self.again)}, done"
            f" {self.done} of {self.producer}, state {self.host.state(self.stream)}, status"
            f" {self.host.status()}"
        )


class Sent(NamedTuple):
    """A chunk that has left."""

    stream: int
    chunk: DataChunk
    record: Record


class Association:
    """The owner of an association, and its peer's SCTP.

    Frames may be lost, doubled and overtaken; the device's chunks leave again if the owner asks.
    """

    def __init__(self, host: Host, number: int, first: int, count: int, rng: random.Random) -> None:
        self.host, self.number, self.rng = host, number, rng
        self.path = example_path(rng.randrange(8) + 8 * (1 + number))
        self.from_peer = example_path(rng.randrange(8) + 8 * (11 + number))
        self.tsn = self.first_tsn = rng.choice((0, WRAP - 5, rng.getrandbits(32)))
        self.octets = 0  #: of the chunks that have left
        self.peer_tsn = self.first_peer_tsn = rng.choice((1, WRAP - 5, rng.getrandbits(32)))
        self.chunks_ahead = rng.choice((1, 2, 5, 100))
        self.octets_ahead = rng.choice((4100, 5000, 100_000))
        self.streams: dict[int, SctpSound] = {}
        self.others: dict[int, Callable[[Sent], None]] = {}
        #: Chunks of the peer without a record, and of the device, by their TSNs.
        self.unacked: dict[int, DataChunk] = {}
        self.left: dict[int, Sent] = {}
        self.again: deque[int] = deque()
        self.handed: dict[int, bytes] = {}
        host.do(
            commands.set_path(number, self.path, tsn=self.tsn, first=first, count=count),
            commands.set_path_limit(number, self.tsn, 0),
        )
        self.credit()
        for move in insert({}, self.key, host.config.associations):
            host.do(commands.set_association(move, first=first, count=count, number=number))
        self.sids = {first + k: k for k in range(count)}
        for stream in self.sids:
            host.do(commands.tell_session(stream, Function.FORGET, self.peer_tsn - 1 & WRAP - 1))

    @property
    def key(self) -> AssociationKey:
        path, at = self.from_peer, len(self.from_peer.headers) - 8 * self.from_peer.udp
        headers = path.headers[:at]
        octets = 16 if path.v6 else 4
        source, destination = headers[-2 * octets : -octets], headers[-octets:]
        return AssociationKey(
            int.from_bytes(source, "little"), int.from_bytes(destination, "little"),
            path.source_port, path.destination_port, path.tag, path.v6,
        )  # fmt: skip

    def credit(self) -> None:
        self.host.do(
            commands.set_path_limit(
                self.number, self.tsn + self.chunks_ahead, self.octets + self.octets_ahead
            )
        )

    def send(self, stream: int, ppid: int, payload: bytes) -> None:
        """Sends a chunk of the peer."""
        self.unacked[self.peer_tsn] = DataChunk(self.peer_tsn, self.sids[stream], ppid, payload)
        self.transmit(self.peer_tsn)
        self.peer_tsn = (self.peer_tsn + 1) % WRAP

    def transmit(self, *tsns: int) -> None:
        """Sends chunks, perhaps with others of late; some are lost on the way, or doubled."""
        rng, path = self.rng, self.from_peer
        if self.host.sim.sending > 20:  # as if lost on a busy network
            return
        chunks = [self.unacked[each] for each in tsns]
        packet = Packet(path.source_port, path.destination_port, path.tag, tuple(chunks))
        frame = frame_of(path.headers, packet.encode())
        for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 2, 0))):
            self.host.sim.send_frame(frame, error=rng.random() < 0.02)

    def step(self) -> None:
        rng = self.rng
        if self.unacked and rng.random() < 0.4:
            latest = rng.sample([*self.unacked], min(len(self.unacked), rng.randrange(1, 4)))
            self.transmit(*latest)
        mine = [tsn for tsn, each in self.left.items() if self.repeats(each.stream)]
        if mine and rng.random() < 0.4 and len(self.again) < 12:
            self.ask(rng.choice(mine))
        if rng.random() < 0.5:
            self.acknowledge()
        if rng.random() < 0.7:
            self.credit()

    def repeats(self, stream: int) -> bool:
        """Returns whether a sound stream's messages end once they are released."""
        return stream in self.streams and self.streams[stream].repeats

    def ask(self, tsn: int) -> None:
        stream, chunk, record = self.left[tsn]
        self.again.append(tsn)
        payload = chunk.payload
        self.host.do(
            commands.repeat(
                stream, tsn, entry=record.entry + record.response, entries=record.entries,
                offset=record.offset, length=len(payload) - 2,
                msn=int.from_bytes(payload[12:16], "big"), response=bool(record.response),
                ssn=int.from_bytes(payload[:2], "big"),
            )
        )  # fmt: skip

    def acknowledge(self) -> None:
        """Acknowledges chunks, the oldest first, while none is on its way again."""
        for tsn in [*self.again]:  # a stream that has ended sends none again
            stream = self.left[tsn].stream if tsn in self.left else None
            if stream not in self.streams and (
                stream is None or not self.host.state(stream)["repeating"]
            ):
                self.again.remove(tsn)
        if self.again:
            return
        for tsn in [*self.left][: self.rng.randrange(1, 9)]:
            stream, _, record = self.left.pop(tsn)
            if stream in self.streams:
                self.streams[stream].acknowledged(record)

    def absorb(self) -> None:
        """Takes frames and records of this association."""
        host = self.host
        for _ in range(len(host.frames)):
            fpdu = host.frames.popleft()
            if fpdu.stream in self.sids:
                self._left(fpdu)
            else:
                host.frames.append(fpdu)
        for _ in range(len(host.records)):
            each = host.records.popleft()
            if each.kind is completions.Kind.CHUNK and each.cookie >> 16 == self.number:
                if each.status is not ChunkStatus.OUTSIDE:
                    self.unacked.pop(each.tag, None)
            elif each.kind is completions.Kind.PACKET and each.cookie >> 16 == self.number:
                pass
            elif each.kind not in (completions.Kind.CHUNK, completions.Kind.PACKET) and (
                each.stream in self.sids
            ):
                if each.stream in self.streams:
                    self.streams[each.stream].session(each)
            else:
                host.records.append(each)

    def _left(self, fpdu: SentFpdu) -> None:
        record, headers = Record.decode(fpdu.record), len(self.path.headers)
        assert fpdu.octets[:12] == self.path.headers[:12]
        packet = Packet.parse(fpdu.octets[headers:])
        assert (packet.source, packet.destination, packet.tag) == (
            self.path.source_port, self.path.destination_port, self.path.tag
        )  # fmt: skip
        (chunk,) = packet.chunks
        assert isinstance(chunk, DataChunk) and chunk.unordered
        assert (chunk.tsn, chunk.stream) == (fpdu.sequence, self.sids[fpdu.stream])
        if record.repeat:
            if fpdu.stream in self.streams:
                while self.again[0] not in self.left or (
                    self.left[self.again[0]].stream not in self.streams
                    and self.again[0] != chunk.tsn
                ):
                    self.again.popleft()
                assert self.again.popleft() == chunk.tsn
                assert self.left[chunk.tsn].chunk == chunk
            elif chunk.tsn in self.again:
                self.again.remove(chunk.tsn)
            return
        assert chunk.tsn == self.tsn, f"association {self.number}: TSN {chunk.tsn}, not {self.tsn}"
        assert (self.tsn + self.chunks_ahead - chunk.tsn) % WRAP
        self.tsn = (self.tsn + 1) % WRAP
        self.octets += len(chunk.payload)
        sent = self.left[chunk.tsn] = Sent(fpdu.stream, chunk, record)
        if fpdu.stream in self.streams:
            self.streams[fpdu.stream].chunk(sent)
        elif fpdu.stream in self.others:
            self.others[fpdu.stream](sent)


class SctpSound(Sound):
    """A sound stream on an association."""

    def __init__(
        self, host: Host, stream: int, queue: int, rng: random.Random, *, repeats: bool,
        association: Association,
    ) -> None:  # fmt: skip
        self.association = association
        self.ssn = self.peer_ssn = 0
        self.established = False
        association.streams[stream] = self
        super().__init__(host, stream, queue, rng, repeats=repeats)
        past = association.peer_tsn - 1 & WRAP - 1
        host.do(commands.tell_session(stream, Function.INITIATE, past, taken=True))
        raw = Message(
            Kind.CONTROL, Flag.INLINE | Flag.SIGNALED, octets=b"hello",
            rsvdulp=Function.INITIATE << 24,
        ).encode()  # fmt: skip
        at = self.at + RING
        host.view[at : at + ENTRY] = raw
        self.producer += 1
        self.ring()

        def answered() -> bool:
            for each in association.unacked:
                association.transmit(each)
            association.absorb()
            association.credit()
            association.acknowledge()
            self.credit()
            return self.established

        host.until(answered, f"the session of stream {stream}")

    def _bounds(self) -> list[tuple[Write, ...]]:
        return []

    def _opens(self) -> list[tuple[Write, ...]]:
        self.ahead = self.rng.choice((1, 2, 10, 100))
        return [
            commands.set_limit(self.stream, self.ahead),
            commands.set_sending_sctp(
                self.stream, association=self.association.number,
                sid=self.association.sids[self.stream], limited=True,
            ),
        ]  # fmt: skip

    def credit(self) -> None:
        self.host.do(commands.set_limit(self.stream, self.ssn + self.ahead))

    def _put(self, segments: Iterable[bytes]) -> None:
        for segment in segments:
            self._send(Ppid.SEGMENT, segment)

    def _send(self, ppid: int, octets: bytes) -> None:
        ssn = (self.peer_ssn % (1 << 16)).to_bytes(2, "big")
        self.peer_ssn += 1
        self.association.send(self.stream, ppid, ssn + octets)

    def flush(self) -> None:
        association = self.association
        for tsn, chunk in association.unacked.items():
            if chunk.stream == association.sids[self.stream] and self.rng.random() < 0.2:
                association.transmit(tsn)

    def own_step(self) -> None:
        if self.rng.random() < 0.1:  # another path MTU
            self.mulpdu = self.rng.choice((128, 500, 1000, 4000))
            self.host.do(commands.set_mulpdu(self.stream, self.mulpdu))
        if self.rng.random() < 0.7:
            self.credit()

    def settle(self) -> None:
        self.ahead = self.association.chunks_ahead = 100
        self.association.absorb()
        self.association.acknowledge()
        self.association.credit()

    def acknowledged(self, record: Record) -> None:
        if record.ends and record.response:
            self.answered += 1
        elif record.ends and self.repeats:
            self.host.do(
                commands.release(self.stream, record.entry + record.entries, signaled=True)
            )

    def chunk(self, sent: Sent) -> None:
        """Takes a chunk that has left."""
        payload = sent.chunk.payload
        assert int.from_bytes(payload[:2], "big") == self.ssn % (1 << 16)
        self.ssn += 1
        if sent.chunk.ppid == Ppid.SEGMENT:
            self._segment(payload[2:])
        else:
            assert payload[2:] == b"\0\1hello", payload
            self._send(Ppid.CONTROL, b"\0\2")

    def session(self, each: Completion) -> None:
        """Takes a record of the stream's session."""
        assert each.kind is completions.Kind.CONTROL and each.tag == Function.ACCEPT, each
        self.established = True
