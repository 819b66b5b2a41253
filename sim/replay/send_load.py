"""Makes equal messages that a device sends, and equal Reads that it answers, for measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...hdl.spec import commands
from ...hdl.spec.config import RnicConfig
from ...hdl.spec.send import ENTRY, Flag, Kind, Message, Piece
from ...hdl.spec.stag import Access
from ..engines.engine import (
    Drain,
    Engine,
    Operation,
    Outcome,
    Packet,
    Stalls,
    Store,
    operations_of,
    until,
)
from ..model.header import UntaggedHeader
from ..model.mpa import MpaSender
from ..model.rdmap import Opcode, QueueNumber, ReadRequest, rsvdulp

__all__ = ["ResponseLoad", "SendLoad"]

_STAG, _TO, _REGION = 0x511, 0x1000, 1 << 16
#: Read Requests that a peer may have outstanding, and base-2 logarithm of their slots.
_IRD, _SLOTS = 8, 3
#: Base-2 logarithm of the entries of a ring, and the MULPDU.
_RING, _MULPDU = 10, 8000
#: Octets of the LLP stream that may leave.
_CREDIT = 1 << 30


@dataclass(frozen=True)
class SendLoad:
    """Messages of ``payload`` octets on some streams.

    Parameters
    ----------
    offset
        The place of the octets in a beat: how many octets after its first lane. None: they are
        inline.
    latency
        Cycles from the address of a read to its first beat.
    """

    config: RnicConfig
    payload: int
    offset: int | None = 0
    streams: int = 16
    latency: int = 10

    @property
    def message(self) -> Message:
        """The work request."""
        if self.offset is None:
            octets = bytes(self.payload)
            return Message(Kind.UNTAGGED, flags=Flag.INLINE, octets=octets)
        piece = Piece(_STAG, self.payload, _TO + self.offset)
        return Message(Kind.UNTAGGED, pieces=(piece,))

    @property
    def limit(self) -> float:
        """The least cycles of a message: those of its FPDUs on the port, or of the bus, or 2."""
        octets, entries = self.config.octets, len(self.message.encode()) // ENTRY
        start = self.offset or 0
        read = 0 if self.offset is None else -(-(start + self.payload) // octets)
        return max(2, self._beats, read + entries * ENTRY / octets)

    @property
    def _beats(self) -> int:
        """Beats of the message's FPDUs."""
        most = _MULPDU - 18
        segments = [most] * (self.payload // most) + [self.payload % most]
        return sum(-(-(-(-(each + 20) // 4) * 4 + 4) // self.config.octets) for each in segments)

    def run(self, engine: Engine, messages: int, *, together: bool = True) -> Outcome:
        """Sends messages, distributed over the streams; or, not ``together``, one after the
        other has left.
        """
        size = ENTRY << _RING
        memory = np.zeros(_REGION + self.streams * size, np.uint8)
        region = {"to": _TO, "length": _REGION, "address": 0, "pd": 1}
        operations: list[Operation] = []
        for stream in range(self.streams):
            for steps in (
                commands.set_stream(stream, pd=1),
                commands.set_mulpdu(stream, _MULPDU),
                commands.set_limit(stream, _CREDIT),
                commands.set_sending(stream, sequence=0, crc=True, limited=True),
                commands.set_sent_msn(stream, 0, 1),
                commands.set_send_ring(stream, _REGION + stream * size, _RING),
            ):
                operations += operations_of(steps)
        operations += operations_of(commands.set_stag(_STAG, Access.LOCAL_READ, **region))
        raw = self.message.encode()
        each = min(messages // self.streams, size // len(raw))
        for stream in range(self.streams):
            operations.append(Store(_REGION + stream * size, raw * each))
        entries = len(raw) // ENTRY
        for producer in (each * entries,) if together else range(entries, each * entries, entries):
            for stream in range(self.streams):
                if not together:
                    operations += [Drain(), until(idle=True)]
                operations += operations_of(commands.ring_send(stream, producer))
        return engine.run(
            self.config, operations, memory, stalls=Stalls(response_latency=self.latency)
        )

    def cycles(self, engine: Engine, messages: int) -> float:
        """Returns the cycles per message, once the pipeline is full and the streams' turns are as
        long as they become.
        """
        fpdus = self.run(engine, messages).fpdus
        begin, end = len(fpdus) // 2, 3 * len(fpdus) // 4
        segments = self.payload // (_MULPDU - 18) + 1
        return (fpdus[end].last - fpdus[begin].last) / (end - begin) * segments

    def delay(self, engine: Engine) -> int:
        """Returns the cycles from a doorbell's write on the bus to the FPDU's first beat."""
        outcome = self.run(engine, 8 * self.streams, together=False)
        polled = outcome.polled[-len(outcome.fpdus) :]
        pairs = zip(polled.tolist(), outcome.fpdus, strict=True)
        return max(fpdu.first - cycle for cycle, fpdu in pairs)

    def row(self, cycles: float) -> dict[str, Any]:
        """Returns the row of a table."""
        return {
            "width": self.config.width, "payload": self.payload, "offset": self.offset,
            "streams": self.streams, "memory": self.latency, "limit": round(self.limit, 3),
            "cycles": round(cycles, 3),
        }  # fmt: skip


@dataclass(frozen=True)
class ResponseLoad:
    """RDMA Reads of ``payload`` octets, which a peer asks for one after the other.

    Parameters
    ----------
    latency
        Cycles from the last beat of a write to its response, and from the address of a read to its
        first beat.
    """

    config: RnicConfig
    payload: int
    latency: int = 10

    def run(self, engine: Engine) -> Outcome:
        """Asks for as many Reads as may be outstanding."""
        memory = np.arange(_REGION + (ENTRY << _SLOTS), dtype=np.uint32).astype(np.uint8)
        region = {"to": _TO, "length": _REGION, "address": 0, "pd": 1}
        queue = QueueNumber.READ_REQUEST
        operations: list[Operation] = []
        for steps in (
            commands.set_stream(0, pd=1, crc=True),
            commands.set_mulpdu(0, _MULPDU),
            commands.set_sending(0, sequence=0, crc=True),
            commands.open_queue(0, queue, 1),
            *(
                commands.post(
                    0, queue, msn, address=_REGION + ENTRY * (msn % _IRD), length=ReadRequest.SIZE,
                    cookie=msn, slot=msn % _IRD,
                )
                for msn in range(1, 1 + _IRD)
            ),
            commands.set_responses(0, _REGION, _SLOTS, ird=_IRD, buffer=0),
            commands.set_stag(_STAG, Access.REMOTE_READ, **region),
        ):  # fmt: skip
            operations += operations_of(steps)
        sender = MpaSender(crc=True)
        asks = ReadRequest(0x1001, 0, self.payload, _STAG, _TO).encode()
        for msn in range(1, 1 + _IRD):
            header = UntaggedHeader(queue, msn, 0, True, rsvdulp(Opcode.READ_REQUEST, tagged=False))
            packet = Packet(0, sender.position, sender.send(header.encode() + asks))
            operations += [packet, Drain(), until(idle=True)]
        return engine.run(
            self.config, operations, memory, stalls=Stalls(response_latency=self.latency)
        )

    def delay(self, engine: Engine) -> int:
        """Returns the cycles from the bus's response for a request in its slot to the first beat of
        the FPDU with the response.
        """
        outcome = self.run(engine)
        pairs = zip(outcome.responses.tolist(), outcome.fpdus, strict=True)
        return max(fpdu.first - cycle for cycle, fpdu in pairs)

    def row(self, cycles: int) -> dict[str, Any]:
        """Returns the row of a table."""
        return {
            "width": self.config.width, "payload": self.payload, "offset": 0, "streams": 1,
            "memory": self.latency, "cycles": cycles,
        }  # fmt: skip
