"""Makes equal messages that a device sends, and equal Reads that it answers, for measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...hdl.spec import commands
from ...hdl.spec.config import RnicConfig
from ...hdl.spec.sctp import COMMON_HEADER, DATA_HEADER, SSN
from ...hdl.spec.send import ENTRY, Flag, Kind, Message, Piece
from ...hdl.spec.stag import Access
from ..engines.engine import (
    Drain,
    Engine,
    Fpdu,
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
from .paths import example_path

__all__ = ["ResponseLoad", "SendLoad"]

_STAG, _TO, _REGION = 0x511, 0x1000, 1 << 16
#: Read Requests that a peer may have outstanding, and base-2 logarithm of their slots.
_IRD, _SLOTS = 8, 3
#: Base-2 logarithm of the entries of a ring, and the MULPDU.
_RING, _MULPDU = 10, 8000
#: Octets of the LLP stream that may leave.
_CREDIT = 1 << 30
#: IPv4 without UDP and VLAN.
_PATH = example_path(0)


@dataclass(frozen=True)
class SendLoad:
    """Messages of ``payload`` octets on some streams: over MPA, or over SCTP if ``config`` has no
    MPA.

    Over SCTP all streams have one association, without UDP: each segment is a packet with one
    chunk.

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
        """The least cycles of a message: those of its FPDUs or frames on the port, or of the bus,
        or 2.
        """
        octets, entries = self.config.octets, len(self.message.encode()) // ENTRY
        start = self.offset or 0
        read = 0 if self.offset is None else -(-(start + self.payload) // octets)
        return max(2, self._beats, read + entries * ENTRY / octets)

    @property
    def _beats(self) -> int:
        """Beats of the message's FPDUs or frames."""
        most = _MULPDU - 18
        segments = [most] * (self.payload // most) + [self.payload % most]
        # The octets around a segment with its header: an FPDU's length and CRC, or the headers of
        # a frame, of its packet and of its chunk, with the DDP-SSN.
        packet = len(_PATH.headers) + COMMON_HEADER + DATA_HEADER + SSN
        before, after = (2, 4) if self.config.mpa else (packet, 0)
        octets = (-(-(before + 18 + each) // 4) * 4 + after for each in segments)
        return sum(-(-each // self.config.octets) for each in octets)

    def run(self, engine: Engine, messages: int, *, together: bool = True) -> Outcome:
        """Sends messages, distributed over the streams; or, not ``together``, one after the
        other has left.
        """
        size = ENTRY << _RING
        memory = np.zeros(_REGION + self.streams * size, np.uint8)
        region = {"to": _TO, "length": _REGION, "address": 0, "pd": 1}
        operations: list[Operation] = []
        if not self.config.mpa:
            for steps in (
                commands.set_path(0, _PATH, tsn=0, first=0, count=self.streams),
                commands.set_path_limit(0, _CREDIT, _CREDIT),
            ):
                operations += operations_of(steps)
        for stream in range(self.streams):
            for steps in (
                commands.set_stream(stream, pd=1),
                commands.set_mulpdu(stream, _MULPDU),
                commands.set_limit(stream, _CREDIT),
                commands.set_sending(stream, sequence=0, crc=True, limited=True)
                if self.config.mpa
                else commands.set_sending_sctp(stream, association=0, sid=stream, limited=True),
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
        left = self._left(self.run(engine, messages))
        begin, end = len(left) // 2, 3 * len(left) // 4
        segments = self.payload // (_MULPDU - 18) + 1
        return (left[end].last - left[begin].last) / (end - begin) * segments

    def delay(self, engine: Engine) -> int:
        """Returns the cycles from a doorbell's write on the bus to the first beat of the FPDU or
        frame.
        """
        outcome = self.run(engine, 8 * self.streams, together=False)
        left = self._left(outcome)
        pairs = zip(outcome.polled[-len(left) :].tolist(), left, strict=True)
        return max(each.first - cycle for cycle, each in pairs)

    def rest(self, engine: Engine) -> int:
        """Returns the cycles from the last beat that the memory answers for a message to the
        first beat of the FPDU or frame.
        """
        outcome = self.run(engine, 8 * self.streams, together=False)
        came = outcome.reads["cycle"] + self.latency + outcome.reads["beats"]
        firsts = np.array([each.first for each in self._left(outcome)], came.dtype)
        return int((firsts - came[np.searchsorted(came, firsts) - 1]).max())

    def _left(self, outcome: Outcome) -> list[Fpdu]:
        return outcome.fpdus if self.config.mpa else outcome.frames

    def row(self, cycles: float) -> dict[str, Any]:
        """Returns the row of a table."""
        return {
            "width": self.config.width, "llp": "mpa" if self.config.mpa else "sctp",
            "payload": self.payload, "offset": self.offset, "streams": self.streams,
            "memory": self.latency, "limit": round(self.limit, 3), "cycles": round(cycles, 3),
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
            "width": self.config.width, "llp": "mpa", "payload": self.payload, "offset": 0,
            "streams": 1, "memory": self.latency, "cycles": cycles,
        }  # fmt: skip
