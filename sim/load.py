"""Segments of one size, one after the other: what is measured, and what a build rehearses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..hdl.spec import regs
from ..hdl.spec.config import RnicConfig
from .engine import (
    DeviceError,
    Drain,
    Engine,
    Operation,
    Outcome,
    Packet,
    Stalls,
    WriteRegister,
)
from .model.header import TaggedHeader
from .model.mpa import MpaSender

__all__ = ["Load"]

_STAG = 0x00000511
_STREAM = 1
_MEMORY = 1 << 20


@dataclass(frozen=True)
class Load:
    """Segments of one size at one alignment: ``offset`` octets past a beat's first lane."""

    config: RnicConfig
    payload: int
    offset: int = 0

    @property
    def fpdu(self) -> int:
        """Octets of a segment's FPDU: length, header, payload, pad, CRC."""
        return -(-(2 + 14 + self.payload) // 4) * 4 + 4

    @property
    def beats_in(self) -> int:
        return -(-self.fpdu // self.config.octets)

    @property
    def beats_out(self) -> int:
        return -(-(self.offset + self.payload) // self.config.octets)

    @property
    def limit(self) -> int:
        """The least number of cycles for a segment."""
        return max(self.beats_in, self.beats_out)

    def __str__(self) -> str:
        return f"payload {self.payload} at offset {self.offset}, {self.config.width} bits"

    def count(self, cycles: int) -> int:
        """Segments that take so many cycles, and enough of them to tell a rate."""
        return max(cycles // self.limit, 24)

    def packets(self, count: int, *, drained: bool = False) -> list[Operation]:
        """Packets of one FPDU each; with ``drained`` each one meets an idle RNIC."""
        sender = MpaSender()
        stride = self.beats_out * self.config.octets
        room = _MEMORY // 2 // stride
        operations: list[Operation] = []
        position = 0
        octets = bytes(at * 7 & 255 for at in range(self.payload))
        for number in range(count):
            header = TaggedHeader(_STAG, number % room * stride + self.offset)
            fpdu = sender.send(header.encode() + octets)
            operations.append(Packet(_STREAM, position % 2**32, fpdu))
            position += len(fpdu)
            if drained:
                operations.append(Drain())
        return operations

    def run(self, engine: Engine, operations: Sequence[Operation], count: int) -> Outcome:
        """Run ``operations`` that place ``count`` of the segments, and no others."""
        memory = np.zeros(_MEMORY, np.uint8)
        # Memory answers at once: the RNIC is measured, not the bus behind it.
        stalls = Stalls(response_latency=1)
        outcome = engine.run(self.config, [*_setup(), *operations], memory, stalls=stalls)
        placed, beats = outcome.counters["PLACED_SEGMENTS"], len(outcome.writes)
        if (placed, beats) != (count, count * self.beats_out):
            raise DeviceError(
                f"{self}: segments placed expected {count} got {placed},"
                f" beats written expected {count * self.beats_out} got {beats}"
            )
        return outcome


def _write(window: str, **values: int) -> list[Operation]:
    """Writes of one entry of a table, through its window."""
    return [
        *(WriteRegister(regs.address(f"{window}_{name}"), value) for name, value in values.items()),
        WriteRegister(regs.address(f"{window}_COMMIT"), 1),
    ]


def _setup() -> list[Operation]:
    """A region over half of memory, and a stream with CRC."""
    flags = regs.pack("STAG_FLAGS", key=_STAG & 255, valid=1, remote_write=1)
    stag = _write(
        "STAG", INDEX=_STAG >> 8, FLAGS=flags, OWNER=_STREAM, TO_LO=0, TO_HI=0,
        LEN_LO=_MEMORY // 2, LEN_HI=0, ADDR_LO=0, ADDR_HI=0,
    )  # fmt: skip
    flags = regs.pack("STREAM_FLAGS", enable=1, crc=1)
    return [*stag, *_write("STREAM", INDEX=_STREAM, FLAGS=flags, PD=_STREAM)]
