"""A peer sends any Read Requests and Read Responses, and the owner of its LLP gives its commands in
unlucky orders, while others send and receive.

What others send and receive is as it would be alone. Afterwards the stream is set up again, and is
as good as new.
``PEERS_FUZZ=1000`` in the environment sets the number of drawn runs, and ``PEERS_FIRST`` the first
seed.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec import commands, ddp
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.send import ENTRY, Flag, Kind, Message, Piece, Record
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.devices.tests.sound_streams import (
    DST,
    ENTRIES,
    IRD,
    IRD_SLOTS,
    LENGTHS,
    RECV,
    RECV_OCTETS,
    RING,
    ROOM,
    SENT,
    SINK,
    SLOTS,
    SRC,
    SRC_OCTETS,
    TO,
    WRAP,
    Host,
    Sound,
    stag,
)
from ddp_rnic.sim.engines.engine import Stalls
from ddp_rnic.sim.model.ddp import decode_segment
from ddp_rnic.sim.model.events import Delivered
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.memory import Access as Rights
from ddp_rnic.sim.model.memory import Memory, Region
from ddp_rnic.sim.model.mpa import MpaSender
from ddp_rnic.sim.model.rdmap import Opcode, ReadRequest, ReadSink, opcode, rsvdulp

RUNS = int(os.environ.get("PEERS_FUZZ", "0"))
FIRST = int(os.environ.get("PEERS_FIRST", "0"))
SEEDS = range(FIRST, FIRST + RUNS) if RUNS else [0, 1, *long(*range(100, 200))]
HOSTILE = 1
QUEUE = 1
REQUEST, RESPONSE = (
    rsvdulp(Opcode.READ_REQUEST, tagged=False), rsvdulp(Opcode.READ_RESPONSE, tagged=True),
)  # fmt: skip


class Hostile:
    """Stream 1: its peer and its owner try everything."""

    ORDS: tuple[int | None, ...] = (None, 1, 2, 16, 16)

    def __init__(self, host: Host, rng: random.Random, sound: list[Sound]) -> None:
        self.host, self.rng, self.sound, self.judgements = host, rng, sound, 0
        self.at, self.address = HOSTILE * ROOM, host.base + HOSTILE * ROOM
        self.src, self.sink, self.dst = (stag(HOSTILE, which, 7) for which in range(3))
        self.log: list[str] = []
        self.producer = self.done = 0
        self.repeats = False
        self.open = False
        self.set_up()

    def note(self, what: str) -> None:
        self.log.append(f"{self.host.sim.cycle}: {what}")

    # -- the owner --------------------------------------------------------------------------------

    def regions(self) -> None:
        region = {"to": TO, "pd": HOSTILE}
        self.host.do(
            commands.set_stag(
                self.src, Access.LOCAL_READ | Access.REMOTE_READ, length=SRC_OCTETS,
                address=self.address + SRC, **region,
            ),
            commands.set_stag(
                self.sink, Access.REMOTE_WRITE, length=0x4000, address=self.address + SINK, **region
            ),
            commands.set_stag(
                self.dst, Access.REMOTE_WRITE, length=0x4000, address=self.address + DST, **region
            ),
        )  # fmt: skip

    def set_up(self) -> None:
        rng, n, host = self.rng, HOSTILE, self.host
        self.sequence = rng.choice((0, WRAP - 3000, rng.getrandbits(32)))
        self.position = self.sequence
        self.limit = self.sequence + rng.choice((0, 100, 3000, 1 << 20))
        self.limited = rng.random() < 0.7
        self.crc = rng.random() < 0.7
        self.markers = rng.random() < 0.2
        self.mulpdu = rng.choice((128, 1000, 1000, 4000))
        self.repeats = rng.random() < 0.6
        self.producer = self.done = 0
        self.ird = rng.choice((1, 4, IRD))
        self.wildness = rng.choice((0, 0.01, 0.05, 0.2))
        self.harm = rng.choice((0, 0, 0.1, 1))
        self.note(
            f"set up: limited {self.limited} limit {self.limit - self.sequence} markers"
            f" {self.markers} mulpdu {self.mulpdu} repeats {self.repeats} ird {self.ird}"
        )
        self.regions()
        self.ord = rng.choice(self.ORDS)
        host.do(commands.set_stream(n, pd=n, crc=self.crc, cq=QUEUE))
        assert not host.status()["uncleared"]
        if self.ord is not None:
            host.do(commands.set_reads(n, self.ord))
        host.do(
            commands.set_mulpdu(n, self.mulpdu),
            commands.set_limit(n, self.limit),
            self.half(open=True),
            *(commands.set_sent_msn(n, qn, 1) for qn in range(4)),
            commands.set_send_ring(
                n, self.address + RING, ENTRIES, cq=QUEUE, repeats=self.repeats),
            commands.open_queue(n, 0, 1),
            commands.open_queue(n, 1, 1),
        )  # fmt: skip
        for msn in range(1, 1 + self.ird):
            slot = msn % (1 << IRD_SLOTS)
            host.do(
                commands.post(
                    n, 1, msn, address=self.address + SLOTS + ENTRY * slot, length=ReadRequest.SIZE,
                    cookie=slot, slot=64 * n + slot,
                )
            )  # fmt: skip
        self.answers = self.slots = rng.random() < 0.9
        if self.answers:
            self.responds(open=True)
        self.posted, self.early = 0, False
        self.judge: ReadSink | None = self._judge()
        self.delivered: list[tuple[bool, int, int]] = []
        self.expected: list[tuple[bool, int, int]] = []
        self.reads_posted = self.reads_seen = 0
        self.receive(8)
        self.open = True
        #: What the peer knows.
        self.sender = MpaSender(crc=self.crc, markers=False)
        self.msn = [1, 1, 1, 1]
        self.requests: list[ReadRequest] = []
        self.left: list[tuple[int, bytes, Record]] = []
        self.out: list[bytes] = []
        self.mid_response: tuple[ReadRequest, int] | None = None
        host.fpdus[n].clear()
        host.completions[n].clear()
        host.events[n].clear()

    def _judge(self) -> ReadSink:
        """Returns a golden model of the stream's receiving half."""
        memory = Memory()
        for part, each, access in (
            (SRC, self.src, Rights.REMOTE_READ), (SINK, self.sink, Rights.REMOTE_WRITE),
            (DST, self.dst, Rights.REMOTE_WRITE),
        ):  # fmt: skip
            length = SRC_OCTETS if part == SRC else 0x4000
            octets = bytearray(self.host.view[self.at + part : self.at + part + length])
            memory.register(
                Region(stag=each, to=TO, length=length, access=access, pd=HOSTILE), octets
            )
        for other in self.sound:
            for name in (other.src, other.sink, other.dst):
                memory.register(Region(stag=name, to=TO, length=0x4000, pd=other.stream))
        judge = ReadSink(
            memory, stream=HOSTILE, pd=HOSTILE, waiting=ddp.WAITING, overtakes=ddp.OVERTAKES
        )
        judge.bounded = self.ord is not None
        judge.open_queue(0)
        judge.post(1, ReadRequest.SIZE, 1 << 10)
        return judge

    def _judged(self) -> None:
        """Compares the stream with the golden model, if nothing happened that it cannot judge."""
        judge, host = self.judge, self.host
        host.paused.discard(QUEUE)
        if judge is None or QUEUE not in host.taken:
            return
        host.until(lambda: not host.sim.sending, "packets")

        def through() -> bool:
            self.absorb()
            found = host.events[HOSTILE]
            if found == [tuple(ddp.QUEUE_OVERRUN)]:  # while the host took no completions
                return True
            return len(self.delivered) == len(self.expected) and bool(found) == bool(judge.error)

        try:
            host.until(through, "what the golden model delivers")
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {self.delivered}, not {self.expected};"
                f" {host.events[HOSTILE]}, not {judge.error}"
            ) from None
        if host.events[HOSTILE] == [tuple(ddp.QUEUE_OVERRUN)]:
            return
        host.sim.run(500)
        host.poll()
        self.absorb()
        assert self.delivered == self.expected
        wanted = [(judge.error.number.type, judge.error.number.code)] if judge.error else []
        assert host.events[HOSTILE] == wanted
        for part, each in ((SINK, self.sink), (DST, self.dst)):
            octets = bytes(host.view[self.at + part : self.at + part + 0x4000])
            assert octets == judge.memory.octets(each)
        self.judgements += 1

    def receive(self, count: int) -> None:
        """Posts buffers."""
        for _ in range(count):
            self.posted += 1
            if self.judge is not None:
                self.judge.post(0, RECV_OCTETS)
            slot = self.posted % 16
            self.host.do(
                commands.post(
                    HOSTILE, 0, self.posted, address=self.address + RECV + slot * RECV_OCTETS,
                    length=RECV_OCTETS, cookie=slot, slot=64 * HOSTILE + 32 + slot,
                )
            )  # fmt: skip

    def half(self, *, open: bool) -> tuple[commands.Write, ...]:
        """Returns the command that opens the sending half, or closes it."""
        return commands.set_sending(
            HOSTILE,
            sequence=self.sequence,
            crc=True,
            limited=self.limited,
            markers=self.markers,
            open=open,
        )

    def responds(self, *, open: bool) -> None:
        self.host.do(
            commands.set_responses(
                HOSTILE, self.address + SLOTS, IRD_SLOTS, ird=self.ird, buffer=64 * HOSTILE, msn=1,
                open=open,
            )
        )  # fmt: skip

    def absorb(self) -> None:
        host = self.host
        while host.fpdus[HOSTILE]:
            fpdu = host.fpdus[HOSTILE].popleft()
            record = Record.decode(fpdu.record)
            if not record.repeat:
                self.left.append((fpdu.sequence, fpdu.octets, record))
                self.position = fpdu.sequence + len(fpdu.octets)
            if not self.markers:
                length = int.from_bytes(fpdu.octets[:2], "big")
                header, payload = decode_segment(fpdu.octets[2 : 2 + length])
                if (
                    not record.repeat
                    and not isinstance(header, TaggedHeader)
                    and opcode(header) == Opcode.READ_REQUEST
                    and len(payload) == 28
                ):
                    self.requests.append(ReadRequest.decode(payload))
                    self.reads_seen += 1
                    if self.judge is not None and self.ord is not None:
                        self.judge.expect(self.requests[-1])
        while host.completions[HOSTILE]:
            each = host.completions[HOSTILE].popleft()
            if each.kind is not SENT:
                self.delivered.append((each.tagged, each.tag, each.length))
                if not each.tagged and each.qn == 0:
                    self.receive(1)
            else:
                count = (each.tag - self.done) % (1 << 16)
                assert count <= self.producer - self.done, (each, self.done, self.producer)
                self.done += count

    def reset(self) -> None:
        """Ends the stream as a driver does, and sets it up again."""
        host, n = self.host, HOSTILE
        self.note("reset")
        self._judged()
        self.resume_queue()
        if self.rng.random() < 0.7:
            host.do(commands.revoke_stream(n))
            revoked = True
        else:
            host.do(self.half(open=False))
            revoked = False
        self.responds(open=False)
        host.do(commands.set_limit(n, self.limit))
        host.do(commands.set_limit(n, self.position + (1 << 30)))
        host.until(lambda: not host.state(n)["repeating"], "repeats of the hostile stream")

        def ended() -> bool:
            self.settle()
            self.absorb()
            if self.repeats:
                host.do(commands.release(n, self.gone))
            return self.done == self.producer

        lost = host.state(n)["lost"]
        self.note(f"lost {lost}, done {self.done} of {self.producer}")
        self.put(Message(Kind.TAGGED, Flag.SIGNALED | Flag.INLINE).encode())
        host.do(commands.ring_send(n, self.producer))
        try:
            host.until(ended, "the messages of the hostile stream")
        except AssertionError as error:
            raise AssertionError(
                f"{error}: done {self.done} of {self.producer}, {host.state(n)},"
                f" consumer {host.read('SEND_CONSUMER', n)}"
            ) from None
        if not revoked:
            host.do(commands.revoke_stream(n))
        host.until(lambda: not host.sim.sending, "packets")
        host.sim.run(2000)
        host.poll()
        for qn in range(4):
            host.do(commands.close_queue(n, qn))
        for reports in (host.events, host.completions, host.fpdus):
            reports[n].clear()
        self.open = False

    def settle(self) -> None:
        """Does the work of a shared LLP."""

    @property
    def gone(self) -> int:
        """The index after the last message of the ring that left whole."""
        for _, _, record in reversed(self.left):
            if record.ends and not record.response:
                return record.entry + record.entries
        return 0

    def put(self, raw: bytes) -> None:
        for at in range(0, len(raw), ENTRY):
            place = self.at + RING + ENTRY * (self.producer % (1 << ENTRIES))
            self.host.view[place : place + ENTRY] = raw[at : at + ENTRY]
            self.producer += 1

    def post(self) -> None:
        rng = self.rng
        flags = rng.choice((Flag(0), Flag.SIGNALED, Flag.SIGNALED | Flag.FENCE))
        bad = rng.random() < self.wildness / 2
        region = rng.choice((self.dst, rng.getrandbits(32), stag(2, 0, 1))) if bad else self.src
        pieces = tuple(
            Piece(region, rng.choice(LENGTHS), TO + rng.randrange(SRC_OCTETS - 1024))
            for _ in range(rng.choice((1, 1, 2, 5)))
        )
        kind = rng.random()
        room = self.producer - self.done < (1 << ENTRIES) - 8
        if kind < 0.5:
            self.reads_posted += room
            sink = Piece(
                rng.getrandbits(32) if bad else self.sink,
                rng.choice((0x4000, 0x4001, (1 << 32) - 1)) if bad else rng.choice(LENGTHS),
                rng.getrandbits(64) if bad else TO + rng.randrange(0x3000),
            )
            message = Message(
                Kind.READ, flags, (sink,), qn=1, stag=rng.getrandbits(32), to=rng.getrandbits(64),
                rsvdulp=REQUEST,
            )  # fmt: skip
        elif kind < 0.7:
            message = Message(
                Kind.TAGGED,
                flags,
                pieces,
                stag=1,
                to=rng.getrandbits(64),
                rsvdulp=rng.choice((0x40, RESPONSE)) << 32,
            )
        elif kind < 0.9:
            message = Message(Kind.UNTAGGED, flags, pieces, qn=rng.randrange(4))
        else:
            message = Message(
                Kind.UNTAGGED, flags | Flag.INLINE, octets=rng.randbytes(rng.randrange(100)), qn=3
            )
        raw = message.encode()
        if room:
            self.note(f"post {message.kind.name} {message.length}")
            self.put(raw)
            if rng.random() < 0.7:
                self.host.do(commands.ring_send(HOSTILE, self.producer))

    def resume_queue(self) -> None:
        if QUEUE not in self.host.taken:
            self.note("queue opened")
            self.host.open_cq(QUEUE)
        self.host.paused.discard(QUEUE)

    def ask(self) -> None:
        """Asks for an FPDU again: one that has left, or any."""
        rng = self.rng
        if self.host.state(HOSTILE)["repeating"] and rng.random() < 0.5:
            return
        wild = rng.random() < self.wildness
        if not self.left and not wild:
            return
        if self.left:
            sequence, octets, record = rng.choice(self.left)
            fields: dict[str, Any] = {
                "entry": record.entry + record.response, "entries": record.entries,
                "offset": record.offset, "length": int.from_bytes(octets[:2], "big"),
                "msn": int.from_bytes(octets[12:16], "big"), "response": bool(record.response),
            }  # fmt: skip
        else:
            sequence, fields = (
                0,
                {"entry": 0, "entries": 1, "offset": 0, "length": 100, "response": False},
            )
        if wild:
            # A device cannot know that it has no slots from which a response may leave again.
            name = rng.choice(
                ("entry", "entries", "offset", "length", *("response" for _ in "x" * self.slots))
            )
            fields[name] = {
                "entry": rng.choice((0, self.producer, rng.getrandbits(16))),
                "entries": rng.choice((0, 1, 2, 255)), "offset": rng.choice((0, 5, 1 << 31)),
                "length": rng.choice((0, 14, 19, 1000, 32768)), "response": rng.random() < 0.5,
            }[name]  # fmt: skip
        self.note(f"repeat {fields}")
        self.host.do(commands.repeat(HOSTILE, sequence, **fields))

    def owner(self) -> None:
        """Gives a command of the owner, the manager or the client."""
        rng, host, n = self.rng, self.host, HOSTILE

        def credit() -> None:
            self.limit = max(self.limit, self.position + rng.choice((0, 100, 1200, 5000, 1 << 20)))
            self.note(f"limit {self.limit}")
            for _ in range(rng.choice((1, 1, 3))):
                host.do(commands.set_limit(n, self.limit))

        def release() -> None:
            self.note(f"release {self.gone}")
            for _ in range(rng.choice((1, 1, 2))):
                host.do(commands.release(n, self.gone, signaled=rng.random() < 0.8))

        def close() -> None:
            self.note("half closed")
            host.do(self.half(open=False))

        def closed_queue() -> None:
            self.judge = None
            if QUEUE in host.taken:
                self.note("queue closed")
                host.close_cq(QUEUE)

        def pause() -> None:
            self.note("queue paused")
            host.paused.add(QUEUE)

        def revoke() -> None:
            self.judge = None
            which = rng.choice((self.src, self.sink, self.dst))
            self.note(f"revoke {which}")
            host.do(commands.revoke_stag(which))

        def regions() -> None:
            self.judge = None
            self.regions()

        def mulpdu() -> None:
            wild = rng.random() < self.wildness
            host.do(commands.set_mulpdu(n, rng.choice((0, 20) if wild else (64, 128, 1000, 4000))))

        def stop() -> None:
            self.judge = None
            self.note("responder stopped")
            self.responds(open=False)

        def disable() -> None:
            self.judge = None
            self.note("stream revoked")
            host.do(commands.revoke_stream(n))

        def unqueue() -> None:
            self.judge = None
            host.do(commands.close_queue(n, rng.randrange(4)))

        def ord() -> None:
            if self.ord is not None:
                host.do(commands.set_reads(n, rng.choice((0, 1, 3, 16))))

        def reset() -> None:
            self.reset()
            self.set_up()

        harm = self.harm
        choices: list[tuple[float, Callable[[], None]]] = [
            (6, credit), (3, release), (6, self.ask), (0.4 * harm, close),
            (0.5 * harm, closed_queue), (0.5, pause), (1.5, self.resume_queue),
            (0.6 * harm, revoke), (0.6 * harm, regions), (0.5, mulpdu), (0.3 * harm, stop),
            (0.15 * harm, disable), (0.15 * harm, unqueue), (0.4, ord), (0.3, reset),
        ]  # fmt: skip
        rng.choices([each for _, each in choices], [weight for weight, _ in choices])[0]()

    # -- the peer ---------------------------------------------------------------------------------

    def segment(self) -> bytes:
        """Returns a segment of the hostile peer."""
        rng, kind = self.rng, self.rng.random()
        octets = rng.randbytes(rng.choice((*LENGTHS, 1400)))
        wild = rng.random() < self.wildness
        if kind < 0.35:  # Read Requests
            length = rng.choice((0, 0, 1, 64, 3000, 3000, SRC_OCTETS, SRC_OCTETS + 1, WRAP - 1))
            if not wild:
                length = rng.choice((0, 1, 64, 1000, 3000, 20_000))
            request = ReadRequest(
                rng.getrandbits(32), rng.choice((0, rng.getrandbits(64), (1 << 64) - 100)) if wild
                else rng.getrandbits(60), length,
                rng.choice((self.src, self.dst, stag(2, 0, 0), rng.getrandbits(32))) if wild
                else self.src,
                rng.choice((TO, TO + SRC_OCTETS, TO - 1, (1 << 64) - 1, rng.getrandbits(64)))
                if wild else TO + rng.randrange(SRC_OCTETS - 20_000),
            ).encode()  # fmt: skip
            msn = self.msn[1]
            answered = sum(record.ends and record.response for _, _, record in self.left)
            if msn - 1 - answered >= self.ird and wild:
                self.judge = None
            elif msn - 1 - answered >= self.ird:
                return TaggedHeader(self.dst, TO, True, 0x40).encode() + octets
            if rng.random() < self.wildness / 4:
                msn += rng.choice((-1, 1, 2, 8, 16, 100))
                self.judge = None  # which buffers are posted depends on the answers
            if rng.random() < self.wildness / 4:
                request = request[: rng.randrange(28)] if rng.random() < 0.5 else request + b"x"
            self.msn[1] = msn + 1
            control = REQUEST
            if rng.random() < self.wildness / 4:
                control = rng.choice((0x43, 0x81, 0x01, 0x42)) << 32
            return UntaggedHeader(1, msn % WRAP, 0, True, control).encode() + request
        if kind < 0.75:  # Read Responses
            return self.response(octets, wild)
        if kind < 0.9:
            to = TO + rng.randrange(0x3000)
            name = self.dst
            if wild:
                to = rng.choice((to, rng.getrandbits(64), TO - 1))
                name = rng.choice((self.src, self.sink, stag(2, 2, 0), rng.getrandbits(32)))
            return TaggedHeader(name, to, rng.random() < 0.7, 0x40).encode() + octets
        msn, qn = self.msn[0], 0
        if msn > self.posted and not wild:
            return TaggedHeader(self.dst, TO, True, 0x40).encode() + octets
        if wild:
            self.judge = None
            msn, qn = msn + rng.choice((-1, 1, 7)), rng.randrange(5)
        self.msn[0] = msn + 1
        header = UntaggedHeader(qn, msn % WRAP, rng.choice((0, 0, 0, 9)) if wild else 0, True,
                                0x43 << 32)  # fmt: skip
        return header.encode() + octets[:RECV_OCTETS]

    def response(self, octets: bytes, wild: bool) -> bytes:
        rng = self.rng
        if self.mid_response is None and self.requests:
            self.mid_response = self.requests.pop(0), 0
        if self.mid_response is None:  # early
            if not wild:
                return TaggedHeader(self.dst, TO, True, 0x40).encode()
            if self.reads_posted != self.reads_seen:
                self.judge = None  # the device may expect it already
            self.early = True
            return TaggedHeader(self.sink, TO, rng.random() < 0.5, RESPONSE).encode() + octets
        request, done = self.mid_response
        rest = request.length - done
        octets = rng.randbytes(min(rest, rng.choice((0, 1, 500, 1000, 3000, 3000))))
        last = len(octets) == rest
        name, to = request.sink_stag, request.sink_to + done
        if wild:
            wrong = rng.randrange(6)
            octets += b"x" * (wrong == 0)
            last = last ^ (wrong == 1)
            name ^= (wrong == 2) << rng.randrange(32)
            to += (wrong == 3) * rng.choice((-1, 1, 1 << 32, -(1 << 32)))
            octets = octets[: -(wrong == 4) or None]
            if wrong == 5:
                octets = b""
        self.mid_response = None if last else (request, done + len(octets))
        return TaggedHeader(name % WRAP, to % (1 << 64), last, RESPONSE).encode() + octets

    def peer(self) -> None:
        rng = self.rng
        packet = b""
        start = self.sender.position
        for _ in range(rng.choice((1, 1, 2, 5))):
            segment = self.segment()
            packet += self.sender.send(segment)
            self.judge_segment(segment)
        whole = len(packet), zlib.crc32(packet)
        if rng.random() < self.wildness / 8:
            at = rng.randrange(len(packet))
            packet = packet[:at] + bytes([packet[at] ^ 1 << rng.randrange(8)]) + packet[at + 1 :]
        if rng.random() < self.wildness / 8:
            packet = packet[: rng.randrange(1, len(packet) + 1)]
        error = rng.random() < self.wildness / 8
        if error or (self.sender.position - start, zlib.crc32(packet)) != whole:
            self.judge = None
        self.host.sim.send(HOSTILE, start % WRAP, packet, error=error)
        if self.early:  # no Read that is posted later may make it right
            self.host.until(lambda: not self.host.sim.sending, "packets")
            self.host.sim.run(200)
            self.early = False

    def judge_segment(self, segment: bytes) -> None:
        """Gives a segment to the golden model."""
        if self.judge is None:
            return
        events = self.judge.receive(segment)
        if self.judge.error and self.judge.error.number == ddp.LOCAL_CATASTROPHIC:
            self.judge = None  # the device finds that later
        for event in events:
            if isinstance(event, Delivered):
                header = event.header
                if isinstance(header, TaggedHeader):
                    self.expected.append((True, header.stag, (event.end - event.begin) % WRAP))
                elif header.qn != 1 or not self.responding(header, event.end):
                    self.expected.append((False, header.msn, event.end))

    def responding(self, header: UntaggedHeader, length: int) -> bool:
        """Returns whether the device itself takes a message of queue 1."""
        good = opcode(header) == Opcode.READ_REQUEST and length == 28
        good &= header.rsvdulp >> 38 <= 1
        self.answers &= good
        return self.answers

    def step(self) -> None:
        rng = self.rng
        for _ in range(rng.randrange(8)):
            what = rng.random()
            if what < 0.35:
                self.post()
            elif what < 0.7:
                self.peer()
            else:
                self.owner()
        if self.host.events[HOSTILE] and rng.random() < 0.15:
            self.reset()
            self.set_up()
        self.host.poll()
        self.absorb()


def drawn_stalls(rng: random.Random, seed: int) -> Stalls:
    return Stalls(
        source=rng.choice((0, 0.1)), write=rng.choice((0, 0.3)), response=rng.choice((0, 0.3)),
        exceptions=rng.choice((0, 0.3)), response_latency=rng.choice((8, 50, 400)), seed=seed,
    )  # fmt: skip


def play(
    host: Host,
    rng: random.Random,
    sound: Sequence[Sound],
    hostile: Hostile,
    again: Callable[[], Sound],
    llp: Callable[[], None] = lambda: None,
) -> None:
    """Lets all streams work, and then a sound one, which ``again`` sets up, instead of the hostile.

    ``llp`` does the work of a shared LLP, after each step.
    """

    def steps(*streams: Sound | Hostile) -> None:
        for each in streams:
            each.step()
        llp()
        host.sim.run(rng.choice((1, 10, 100, 600)))

    try:
        for _ in range(rng.choice((20, 100))):
            steps(*(each for each in sound if rng.random() < 0.5), hostile)
        for each in sound:
            each.finish()
        hostile.reset()
        host.idle()
        everyone = [*sound, again()]
        for _ in range(10):
            steps(*everyone)
        for each in everyone:
            each.finish()
        host.idle()
    except Exception:
        print("\n".join(hostile.log[-60:]))
        raise


def run(width: int, seed: int) -> None:
    rng = random.Random(seed)
    host = Host(RnicConfig(width=width, transmit=True, responder=True), drawn_stalls(rng, seed))
    try:
        host.open_cq(0)
        host.open_cq(QUEUE)
        sound = [
            Sound(host, stream, 0, random.Random(seed + stream), repeats=repeats)
            for stream, repeats in ((2, False), (3, True))
        ]

        def again() -> Sound:
            return Sound(host, HOSTILE, QUEUE, random.Random(seed), repeats=rng.random() < 0.5)

        play(host, rng, sound, Hostile(host, rng, sound), again)
    finally:
        host.close()


@pytest.mark.parametrize("width", [64, *long(512)])
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_a_peer_and_its_owner_do_others_are_as_if_alone(width: int, seed: int) -> None:
    run(width, seed)
