"""A stand-in for the engines: an RNIC in Python, driven through the gateware's registers and
packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from ddp_rnic.hdl.spec import regs, stag
from ddp_rnic.hdl.spec.completion import OCTETS, Completion, Kind, Status, phase
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import LLP_CRC, OVERTAKES, WAITING, ErrorNumber
from ddp_rnic.sim.engines.engine import (
    CYCLE,
    WRITE,
    Await,
    Drain,
    Engine,
    ErrorEvent,
    ExceptionPacket,
    Frame,
    Operation,
    Outcome,
    Packet,
    Poll,
    Ring,
    Stalls,
    Wait,
    WriteRegister,
    checked,
    no_counts,
)
from ddp_rnic.sim.engines.tests.fake_sctp import FakeSctp
from ddp_rnic.sim.engines.waves import Waves
from ddp_rnic.sim.model.ddp import DataSink, TaggedHeader, UntaggedHeader, UntaggedQueue
from ddp_rnic.sim.model.events import DdpError, Delivered, LlpError, Placed
from ddp_rnic.sim.model.memory import Memory, Region
from ddp_rnic.sim.model.mpa import MpaReceiver
from ddp_rnic.sim.replay.expectation import model_access
from numpy.typing import NDArray

_NO_STALLS = Stalls()
_NAMES = {register.address: register.name for register in regs.REGISTERS}
_IDLE = regs.pack("STATUS", idle=1)
#: Commands that change tables used by segments in flight.
_TABLES = ("STAG_COMMIT", "PAGE_COMMIT", "STREAM_COMMIT", "QUEUE_OPEN", "QUEUE_CLOSE")


class _Table(Memory):
    """A direct table: one region per slot, tagged with the rest of its index."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.entries = entries
        self.slots: dict[int, Region] = {}

    def holder(self, stag: int) -> Region | None:
        return self.slots.get((stag >> 8) & (self.entries - 1))

    def write(self, region: Region, to: int, payload: bytes) -> None:
        """Does nothing, because the device has the octets."""


@dataclass(frozen=True)
class _Buffer:
    address: int
    pages: int
    cookie: int


@dataclass
class _Stream:
    enabled: bool
    sink: DataSink
    mpa: MpaReceiver
    live: bool = True


class FakeEngine(Engine):
    """The stand-in. ``spoil(memory, outcome)`` is called at the end of each run, to plant a
    fault.
    """

    name = "fake"

    def __init__(self, spoil: Callable[[NDArray[np.uint8], Outcome], object] | None = None) -> None:
        self.spoil = spoil
        self.configs: list[RnicConfig] = []

    def run(
        self,
        config: RnicConfig,
        operations: Iterable[Operation],
        memory: NDArray[np.uint8],
        *,
        ring: Ring | None = None,
        stalls: Stalls = _NO_STALLS,
        faults: Sequence[range] = (),
        base: int = 0,
        waves: Waves | None = None,
        progress: Callable[[int, int], None] | None = None,
        part: Callable[[Outcome], bool] | None = None,
    ) -> Outcome:
        self.configs.append(config)
        device = _Device(config, memory, ring)
        for number, operation in enumerate(checked(config, operations, memory, ring)):
            match operation:
                case WriteRegister(address, value):
                    device.write(address, value)
                case Packet():
                    device.receive(operation)
                case Frame():
                    device.drained = False
                    device.cycle += -(-len(operation.octets) // config.octets)
                    device.sctp.receive(operation.octets)
                case Drain():
                    device.drained = True
                case Await(completions):
                    assert len(device.completions) >= completions, "what never comes is awaited"
                case Poll(address, mask, value):
                    assert device.read(address) & mask == value
                    device.polled.append(device.cycle)
                case Wait(cycles):
                    device.cycle += cycles
            if progress:
                progress(number + 1, number + 1)
        assert device.drained, "a plan ends with the RNIC idle"
        if waves:
            waves.path.write_bytes(b"")
        outcome = device.outcome()
        if self.spoil:
            self.spoil(memory, outcome)
        return outcome


class _Device:
    """The RNIC. It completes each input before it gets the next one."""

    def __init__(self, config: RnicConfig, memory: NDArray[np.uint8], ring: Ring | None) -> None:
        self.config = config
        self.memory = memory
        self.ring = ring
        self.drained = False
        self.cycle = 0
        self.values: dict[str, int] = {}
        self.table = _Table(config.stags)
        self.regions: dict[int, int] = {}  # page codes, by slot of the table
        self.pages: dict[int, int] = {}
        self.streams: dict[int, _Stream] = {}
        self.queues: dict[int, dict[int, UntaggedQueue]] = {}
        self.buffers: dict[tuple[int, int, int], _Buffer] = {}
        self.completions: list[Completion] = []
        self.delivered: list[int] = []
        self.events: list[ErrorEvent] = []
        self.exceptions: list[ExceptionPacket] = []
        self.writes: list[tuple[int, int]] = []
        self.polled: list[int] = []
        self.sctp = FakeSctp(self)
        self.counters = no_counts(sctp=False)

    # -- registers --------------------------------------------------------------------------------

    def read(self, address: int) -> int:
        if _NAMES[address] == "SESSION_ANSWER":
            return self.sctp.answer
        return _IDLE if _NAMES[address] == "STATUS" else self.values.get(_NAMES[address], 0)

    def write(self, address: int, value: int) -> None:
        self.cycle += 4
        assert 0 <= value < 1 << 32
        name = _NAMES[address]
        assert regs.BY_NAME[name].access != "ro" and (name != "CQ_DOORBELL" or not value & 0xFFFF)
        self.values[name] = value
        if name in _TABLES:
            assert self.drained or not any(
                stream.live and stream.mpa.position for stream in self.streams.values()
            ), "tables change only while the RNIC is idle"
        command = getattr(self, f"_{name.lower()}", None)
        if command is not None:
            command()

    def _get(self, name: str) -> int:
        """Returns a number of 64 bits."""
        return self.values[f"{name}_HI"] << 32 | self.values[f"{name}_LO"]

    def _stag_commit(self) -> None:
        index = self.values["STAG_INDEX"]
        slot = index & (self.config.stags - 1)
        access, entry = stag.decode(self.values)
        if not entry["valid"]:
            self.table.slots.pop(slot)
            return
        assert slot not in self.table.slots, "the entry is in use"
        bound, owner = entry["bound"], entry["owner"]
        self.table.slots[slot] = Region(
            stag=index << 8 | entry["key"],
            to=entry["to"],
            length=entry["length"],
            address=entry["address"],
            access=model_access(access),
            pd=None if bound else owner,
            stream=owner if bound else None,
        )
        self.regions[slot] = entry["pages"]

    def _page_commit(self) -> None:
        index, address = self.values["PAGE_INDEX"], self._get("PAGE_ADDR")
        assert index < self.config.pages and address % 4096 == 0
        self.pages[index] = address

    def _revoke_stag(self) -> None:
        self.table.slots.pop(self.values["STAG_INDEX"] & (self.config.stags - 1), None)

    def _stream_commit(self) -> None:
        number = self.values["STREAM_INDEX"]
        flags = regs.unpack("STREAM_FLAGS", self.values["STREAM_FLAGS"])
        assert number < self.config.streams
        sink = DataSink(
            self.table,
            stream=number,
            pd=self.values["STREAM_PD"],
            waiting=WAITING,
            overtakes=OVERTAKES,
        )
        sink.queues = self.queues.setdefault(number, {})
        self.streams[number] = _Stream(
            bool(flags["enable"]),
            sink,
            MpaReceiver(crc=bool(flags["crc"]), markers=bool(flags["markers"])),
        )

    def _revoke_stream(self) -> None:
        number = self.values["STREAM_INDEX"]
        self.streams[number].enabled = False
        for slot, region in list(self.table.slots.items()):
            if region.stream == number:
                del self.table.slots[slot]

    def _queue(self) -> tuple[int, int, int]:
        number, qn = self.values["QUEUE_STREAM"], self.values["QUEUE_NUMBER"]
        assert number < self.config.streams and qn < 4
        return number, qn, self.values["QUEUE_MSN"]

    def _queue_open(self) -> None:
        number, qn, msn = self._queue()
        self.queues.setdefault(number, {})[qn] = UntaggedQueue(msn)

    def _queue_close(self) -> None:
        number, qn, _ = self._queue()
        self.queues[number].pop(qn, None)

    def _buffer_post(self) -> None:
        number, qn, msn = self._queue()
        queue = self.queues[number][qn]
        assert queue.available < self.config.queue_depth, "the queue is full"
        assert queue.ahead(msn) == queue.available, "buffers are posted in order"
        queue.post(self.values["BUFFER_LENGTH"])
        self.buffers[number, qn, msn] = _Buffer(
            self._get("BUFFER_ADDR"),
            self.values.get("BUFFER_PAGES", 0),
            self.values["BUFFER_COOKIE"],
        )

    def _assoc_commit(self) -> None:
        self.sctp.commit()

    def _session_command(self) -> None:
        assert self.drained, "the host tells of sessions while the RNIC is idle"
        self.sctp.command()

    def _cq_commit(self) -> None:
        assert self.ring is not None, "nobody takes the completions"
        at = self.ring.queues.index(self.values["CQ_INDEX"])
        programmed = self._get("CQ_BASE"), self.values["CQ_SIZE"]
        where = self.ring.address + at * self.ring.entries * OCTETS
        assert programmed == (where, self.ring.size), "the ring lies elsewhere"

    # -- packets ----------------------------------------------------------------------------------

    def receive(self, packet: Packet) -> None:
        self.drained = False
        self.cycle += -(-len(packet.octets) // self.config.octets)
        stream = self.streams[packet.stream]
        stream.mpa.position = packet.sequence  # as in the gateware: the packet states it
        stream.mpa.error = None
        for fpdu in stream.mpa.receive(packet.octets):
            assert len(fpdu.raw) <= self.config.buffer_octets
            alive = stream.live and stream.enabled
            if not alive:
                self.counters["DROPPED"] += 1
            if isinstance(fpdu, LlpError):
                if alive:
                    self._fail(packet.stream, fpdu.number, fpdu.length, fpdu.position, fpdu.header)
                    self._refuse(packet.stream, fpdu.number, fpdu.position, fpdu.raw)
                # The model stops here; the RNIC continues after it.
                rest = packet.octets[fpdu.position - packet.sequence + len(fpdu.raw) :]
                self.receive(Packet(packet.stream, fpdu.position + len(fpdu.raw), rest))
                return
            if alive:
                self._segment(packet.stream, stream, fpdu.ulpdu, fpdu.position, fpdu.raw)

    def _segment(
        self, number: int, stream: _Stream, ulpdu: bytes, position: int, raw: bytes
    ) -> None:
        placed = False
        for event in stream.sink.receive(ulpdu):
            match event:
                case Placed():
                    placed = True
                    self._place(number, event, ulpdu[event.header.size :])
                case Delivered():
                    self._deliver(number, event)
                case DdpError():
                    self._fail(number, event.number, len(ulpdu), position, ulpdu)
                    if not placed:
                        self._refuse(number, event.number, position, raw)

    def _place(self, number: int, event: Placed, payload: bytes) -> None:
        self.counters["PLACED_SEGMENTS"] += 1
        self.counters["PLACED_OCTETS"] += len(payload)
        if not payload:
            return
        header = event.header
        if isinstance(header, TaggedHeader):
            assert event.address is not None
            code = self.regions[(header.stag >> 8) & (self.config.stags - 1)]
            self._store(event.address, code, payload)
        else:
            buffer = self.buffers[number, header.qn, header.msn]
            self._store(buffer.address + header.mo, buffer.pages, payload)

    def _store(self, linear: int, code: int, payload: bytes) -> None:
        for start, octets in self._pieces(linear, code, payload):
            self.memory[start : start + len(octets)] = np.frombuffer(octets, np.uint8)
            beat = self.config.octets
            for address in range(start // beat * beat, start + len(octets), beat):
                self.cycle += 1
                self.writes.append((self.cycle, address))

    def _pieces(self, linear: int, code: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """Returns the addresses of a payload's octets."""
        if not code:
            yield linear, payload
            return
        size = 1 << (11 + code)
        while payload:
            slot, offset = divmod(linear, size)
            piece, payload = payload[: size - offset], payload[size - offset :]
            yield self.pages[slot % self.config.pages] + offset, piece
            linear += len(piece)

    def _deliver(self, number: int, event: Delivered) -> None:
        header = event.header
        said = {"tag": 0, "length": event.length, "cookie": event.begin % (1 << 32), "qn": 0}
        if isinstance(header, UntaggedHeader):
            cookie = self.buffers.pop((number, header.qn, header.msn)).cookie
            said |= {"tag": header.msn, "cookie": cookie, "qn": header.qn}
        else:
            said["tag"] = header.stag
        self.complete(
            Completion(
                phase=0,
                tagged=isinstance(header, TaggedHeader),
                status=Status.DELIVERED,
                stream=number,
                rsvdulp=header.rsvdulp,
                kind=Kind.MESSAGE,
                ends=False,
                **said,
            )
        )

    def complete(self, entry: Completion) -> None:
        """Writes an entry of the ring."""
        assert self.ring is not None and self.values.get("CQ_ENABLE"), "nobody takes completions"
        self.cycle += 1
        self.counters["DELIVERED"] += 1
        self.delivered.append(self.cycle)
        self.completions.append(entry)
        *_, number = self.ring.numbers(self.completions)
        self.completions[-1] = entry._replace(phase=phase(number, self.ring.size))

    def _fail(
        self, number: int, error: ErrorNumber, length: int, position: int, ulpdu: bytes
    ) -> None:
        self.streams[number].live = False
        self.counters["ERRORS"] += 1
        self.counters["DIGEST_ERRORS"] += error == LLP_CRC
        header = (length.to_bytes(2, "big") + ulpdu)[:20].ljust(20, b"\0")
        self.events.append(ErrorEvent(number, error.type, error.code, length, position, header))

    def _refuse(self, number: int, error: ErrorNumber, position: int, raw: bytes) -> None:
        self.counters["EXCEPTIONS"] += 1
        reason = error.type << 8 | error.code
        self.exceptions.append(ExceptionPacket(number, position, raw, reason))

    def outcome(self) -> Outcome:
        return Outcome(
            cycles=self.cycle,
            events=self.events,
            exceptions=self.exceptions,
            counters=self.counters | (self.sctp.counters if self.config.sctp else {}),
            completions=self.completions,
            delivered=np.array(self.delivered, CYCLE),
            writes=np.array(self.writes, WRITE),
            polled=np.array(self.polled, CYCLE),
        )
