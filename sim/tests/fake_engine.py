"""A stand-in for the engines: an RNIC of Python, driven through the same registers and packets as
the gateware.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import LLP_CRC, LLP_FRAMING, UNTAGGED_VERSION, ErrorNumber
from ddp_rnic.sim.engine import (
    WRITE,
    Drain,
    Engine,
    ErrorEvent,
    ExceptionPacket,
    Operation,
    Outcome,
    Packet,
    Stalls,
    WriteRegister,
)
from ddp_rnic.sim.model.ddp import (
    TaggedHeader,
    UntaggedHeader,
    check_tagged,
    decode_segment,
    header_length,
)
from ddp_rnic.sim.model.events import LlpError
from ddp_rnic.sim.model.memory import Access, Memory, Region
from ddp_rnic.sim.model.mpa import MpaReceiver
from numpy.typing import NDArray

_NO_STALLS = Stalls()
_NAMES = {register.address: register.name for register in regs.REGISTERS}


class _Table(Memory):
    """A direct table: one region a slot, tagged with the rest of its index."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.entries = entries
        self.slots: dict[int, Region] = {}

    def lookup(self, stag: int) -> Region | None:
        region = self.slots.get((stag >> 8) & (self.entries - 1))
        return region if region is not None and region.stag == stag else None


@dataclass
class _Stream:
    enabled: bool
    domain: int
    mpa: MpaReceiver
    live: bool = True


class FakeEngine(Engine):
    """``spoil(memory, outcome)`` is called at the end of each run, to plant a fault."""

    name = "fake"

    def __init__(self, spoil: Callable[[NDArray[np.uint8], Outcome], object] | None = None) -> None:
        self.spoil = spoil
        self.configs: list[RnicConfig] = []

    def run(
        self,
        config: RnicConfig,
        operations: Sequence[Operation],
        memory: NDArray[np.uint8],
        *,
        stalls: Stalls = _NO_STALLS,
        faults: Sequence[range] = (),
        waves: Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Outcome:
        self.configs.append(config)
        device = _Device(config, memory)
        for number, operation in enumerate(operations):
            if isinstance(operation, WriteRegister):
                device.write(operation.address, operation.value)
            elif isinstance(operation, Packet):
                device.receive(operation)
            else:
                assert isinstance(operation, Drain)
                device.drained = True
            if progress:
                progress(number + 1, len(operations))
        assert device.drained, "a plan ends with the RNIC idle"
        if waves:
            waves.write_bytes(b"")
        outcome = device.outcome()
        if self.spoil:
            self.spoil(memory, outcome)
        return outcome


class _Device:
    def __init__(self, config: RnicConfig, memory: NDArray[np.uint8]) -> None:
        self.config = config
        self.memory = memory
        self.drained = False
        self.cycle = 0
        self.values: dict[str, int] = {}
        self.table = _Table(config.stags)
        self.streams: dict[int, _Stream] = {}
        self.events: list[ErrorEvent] = []
        self.exceptions: list[ExceptionPacket] = []
        self.writes: list[tuple[int, int]] = []
        self.counters = dict.fromkeys(
            (
                "PLACED_SEGMENTS",
                "PLACED_OCTETS",
                "EXCEPTIONS",
                "ERRORS",
                "DROPPED",
                "DIGEST_ERRORS",
            ),
            0,
        )

    def write(self, address: int, value: int) -> None:
        self.cycle += 4
        assert 0 <= value < 1 << 32
        name = _NAMES[address]
        self.values[name] = value
        if name.endswith("_COMMIT"):
            assert self.drained or not any(
                stream.live and stream.mpa.position for stream in self.streams.values()
            ), "tables change only while the RNIC is idle"
        if name == "STAG_COMMIT":
            self._commit_stag()
        elif name == "STREAM_COMMIT":
            self._commit_stream()

    def _commit_stag(self) -> None:
        get = self.values.__getitem__
        flags, index = get("STAG_FLAGS"), get("STAG_INDEX")
        slot = index & (self.config.stags - 1)
        if not flags >> 8 & 1:
            self.table.slots.pop(slot)
            return
        assert slot not in self.table.slots, "the entry is in use"
        self.table.slots[slot] = Region(
            stag=index << 8 | flags & 0xFF,
            to=get("STAG_TO_HI") << 32 | get("STAG_TO_LO"),
            length=get("STAG_LEN_HI") << 32 | get("STAG_LEN_LO"),
            address=get("STAG_ADDR_HI") << 32 | get("STAG_ADDR_LO"),
            access=(Access.REMOTE_WRITE if flags >> 9 & 1 else Access.NONE),
            pd=get("STAG_OWNER"),
        )

    def _commit_stream(self) -> None:
        number, flags = self.values["STREAM_INDEX"], self.values["STREAM_FLAGS"]
        assert number < self.config.streams
        self.streams[number] = _Stream(
            bool(flags & 1),
            self.values["STREAM_PD"],
            MpaReceiver(crc=bool(flags & 2), markers=bool(flags & 4)),
        )

    def receive(self, packet: Packet) -> None:
        self.drained = False
        self.cycle += -(-len(packet.octets) // self.config.octets)
        stream = self.streams[packet.stream]
        stream.mpa.position = packet.sequence  # as the gateware: each packet says where it is
        stream.mpa.error = None
        for fpdu in stream.mpa.receive(packet.octets):
            assert len(fpdu.raw) <= self.config.buffer_octets
            if not stream.live or not stream.enabled:
                self.counters["DROPPED"] += 1
                if isinstance(fpdu, LlpError):  # silent: go on behind it
                    rest = packet.octets[fpdu.position - packet.sequence + len(fpdu.raw) :]
                    self.receive(Packet(packet.stream, fpdu.position + len(fpdu.raw), rest))
                    return
            elif isinstance(fpdu, LlpError):
                self._fail(packet.stream, fpdu.number, fpdu.length, fpdu.position, fpdu.header)
                rest = packet.octets[fpdu.position - packet.sequence + len(fpdu.raw) :]
                self.receive(Packet(packet.stream, fpdu.position + len(fpdu.raw), rest))
                return
            else:
                self._segment(packet.stream, stream, fpdu.ulpdu, fpdu.position, fpdu.raw)

    def _segment(
        self, number: int, stream: _Stream, ulpdu: bytes, position: int, raw: bytes
    ) -> None:
        if len(ulpdu) < header_length(ulpdu):
            self._fail(number, LLP_FRAMING, len(ulpdu), position, ulpdu)
            return
        header, payload = decode_segment(ulpdu)
        if isinstance(header, UntaggedHeader):
            if header.version != 1:
                self._fail(number, UNTAGGED_VERSION, len(ulpdu), position, ulpdu)
                return
            self.exceptions.append(ExceptionPacket(number, position, raw))
            self.counters["EXCEPTIONS"] += 1
            return
        error = check_tagged(header, len(payload), self.table, stream=number, pd=stream.domain)
        if error is not None:
            self._fail(number, error, len(ulpdu), position, ulpdu)
            return
        self.counters["PLACED_SEGMENTS"] += 1
        self.counters["PLACED_OCTETS"] += len(payload)
        if payload:
            self._place(header, payload)

    def _place(self, header: TaggedHeader, payload: bytes) -> None:
        region = self.table.lookup(header.stag)
        assert region is not None
        start = region.address + header.to - region.to
        self.memory[start : start + len(payload)] = np.frombuffer(payload, np.uint8)
        beat = self.config.octets
        for address in range(start // beat * beat, start + len(payload), beat):
            self.cycle += 1
            self.writes.append((self.cycle, address))

    def _fail(
        self, number: int, error: ErrorNumber, length: int, position: int, ulpdu: bytes
    ) -> None:
        self.streams[number].live = False
        self.counters["ERRORS"] += 1
        self.counters["DIGEST_ERRORS"] += error == LLP_CRC
        header = (length.to_bytes(2, "big") + ulpdu)[:20].ljust(20, b"\0")
        self.events.append(ErrorEvent(number, error.type, error.code, length, position, header))

    def outcome(self) -> Outcome:
        return Outcome(
            cycles=self.cycle,
            events=self.events,
            exceptions=self.exceptions,
            counters=self.counters,
            writes=np.array(self.writes, WRITE),
        )
