"""Conversations for the tests: one line of code for each DDP segment that arrives."""

from __future__ import annotations

import struct

from ddp_rnic.sim.capture.capture import Endpoint
from ddp_rnic.sim.capture.streams import Arrival, Stream
from ddp_rnic.sim.capture.traffic import Traffic
from ddp_rnic.sim.model.header import TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.mpa import MpaSender

WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE, TERMINATE = (
    0x40 | opcode for opcode in (0, 1, 2, 3, 4, 7)
)


class Conversation:
    """Collects arrivals in the order in which the methods are called.

    A message goes to ``host``, over ``connection``.
    """

    def __init__(
        self, a: str = "10.7.0.1", b: str = "10.7.0.2", *, crc: bool = True, markers: bool = False
    ) -> None:
        self._ends = (a, b)
        self._crc = crc
        self._markers = markers
        self._streams: dict[tuple[str, int], Stream] = {}
        self._senders: dict[int, MpaSender] = {}
        self._arrivals: list[Arrival] = []
        self._counts: dict[str, int] = {}
        self._messages: dict[tuple[int, int], int] = {}  # complete ones, by stream and queue

    def traffic(self) -> Traffic:
        return Traffic(tuple(self._streams.values()), tuple(self._arrivals))

    def segment(
        self, host: str, segment: bytes, connection: int = 0, *, spoil: bool = False
    ) -> Arrival:
        """Adds any segment."""
        stream = self._stream(host, connection)
        position = self._senders[stream.number].position
        raw = bytearray(self._senders[stream.number].send(segment))
        if spoil:
            raw[-1] ^= 1
        self._counts[host] = self._counts.get(host, 0) + 1
        self._arrivals.append(
            Arrival(stream, self._counts[host], len(self._arrivals) + 1, position, bytes(raw))
        )
        return self._arrivals[-1]

    def write(self, host: str, stag: int, to: int, payload: bytes, connection: int = 0) -> Arrival:
        """Adds an RDMA Write of one segment."""
        header = TaggedHeader(stag, to, True, WRITE)
        return self.segment(host, header.encode() + payload, connection)

    def untagged(
        self,
        host: str,
        opcode: int,
        payload: bytes = b"",
        *,
        qn: int = 0,
        stag: int = 0,
        connection: int = 0,
        msn: int | None = None,
        mo: int = 0,
        last: bool = True,
    ) -> Arrival:
        """Adds a segment of an untagged message, the next one of its queue.

        ``stag`` is the STag that a Send with Invalidate names.
        """
        queue = self._stream(host, connection).number, qn
        if msn is None:
            msn = self._messages.get(queue, 0) + 1
        if last:
            self._messages[queue] = msn
        header = UntaggedHeader(qn, msn, mo, last, opcode << 32 | stag)
        return self.segment(host, header.encode() + payload, connection)

    def message(
        self, host: str, opcode: int, *payloads: bytes, qn: int = 0, connection: int = 0
    ) -> Arrival:
        """Adds an untagged message of several segments; returns the last of them."""
        mo = 0
        for payload in payloads[:-1]:
            self.untagged(host, opcode, payload, qn=qn, connection=connection, mo=mo, last=False)
            mo += len(payload)
        return self.untagged(host, opcode, payloads[-1], qn=qn, connection=connection, mo=mo)

    def read(self, host: str, stag: int, to: int, length: int) -> Arrival:
        """Adds an RDMA Read Request that arrives at ``host``; the sink is at the other end."""
        return self.untagged(
            host, READ_REQUEST, struct.pack(">IQIIQ", stag, to, length, 0, 0), qn=1
        )

    def terminate(
        self, host: str, control: bytes, refused: Arrival | None = None, connection: int = 0
    ) -> Arrival:
        """Adds a Terminate that arrives at ``host``, about a segment that ``host`` sent."""
        payload = control
        if refused is not None:
            segment = refused.ulpdu
            payload += struct.pack(">H", len(segment)) + segment[: 14 if segment[0] & 0x80 else 18]
        return self.untagged(host, TERMINATE, payload, qn=2, connection=connection)

    def _stream(self, host: str, connection: int) -> Stream:
        key = (host, connection)
        if key not in self._streams:
            source, destination = (
                Endpoint(self._ends[side], 1000 * (side + 1) + connection)
                for side in ((1, 0) if host == self._ends[0] else (0, 1))
            )
            number = len(self._streams)
            self._streams[key] = Stream(
                number, connection, source, destination, self._crc, self._markers
            )
            self._senders[number] = MpaSender(crc=self._crc, markers=self._markers)
        return self._streams[key]
