"""The ULP of the guest's SCTP: the golden model, which a relay in the guest gives each message."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Self

from ...model.ddp import DataSource
from ...model.events import DdpError, Delivered
from ...model.header import UntaggedHeader
from ...model.memory import Memory
from ...model.mpa import Enhanced
from ...model.rdmap import Opcode, QueueNumber, RdmapSink, ReadRequest, rsvdulp
from ...model.sctp import (
    Function,
    Ppid,
    SctpEvent,
    SegmentReceived,
    Session,
    SessionControl,
)

__all__ = ["Relay", "RelayStream"]

#: The header of each message on the TCP connection: length, PPID, SCTP stream, unordered.
_HEADER = struct.Struct(">IIHH")
#: The flags in a segment's first octet that say that it is the last of its message, and tagged.
_LAST, _TAGGED = 0x40, 0x80


@dataclass
class RelayStream:
    """The peer's end of one DDP Stream.

    Parameters
    ----------
    sid
        The SCTP stream.
    memory
        The peer's regions.
    mulpdu
        Octets of the longest segment of both directions.

    Attributes
    ----------
    delivered
        The messages that were delivered.
    segments
        How many segments were equal to those that the golden model sends.
    differences
        Sentences about those that were not, and about errors.
    """

    sid: int
    memory: Memory
    mulpdu: int
    delivered: list[Delivered] = field(default_factory=list)
    segments: int = 0
    differences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = Session(self.sid)
        self.sink = RdmapSink(self.memory, stream=self.sid)
        self.source = DataSource(self.mulpdu)
        #: The golden model of the device, and the messages that it has to send: those of the host,
        #: and Read Responses. Which of the two comes next is the device's choice.
        self._judge = DataSource(self.mulpdu)
        self._expected, self._responses = deque[Iterator[bytes]](), deque[Iterator[bytes]]()
        self._lengths = [self.mulpdu]
        self._ready: dict[int, bytes] = {}  # segments, by their order
        self._next = 1  # number 0 is the Initiate

    def resize(self, mulpdu: int) -> None:
        """Lets the device send shorter segments, from any segment on."""
        self._lengths.append(mulpdu)

    def expect(self, kind: Opcode, octets: bytes, *, stag: int = 0, to: int = 0) -> None:
        """Expects a message of the device after the others: a Write, a Send or a Read Request."""
        if kind is Opcode.RDMA_WRITE:
            control = rsvdulp(kind, tagged=True)
            self._expected.append(self._judge.begin_tagged(stag, to, octets, rsvdulp=control))
        else:
            queue = QueueNumber.SEND if kind is Opcode.SEND else QueueNumber.READ_REQUEST
            control = rsvdulp(kind, tagged=False)
            self._expected.append(self._judge.begin_untagged(queue, octets, rsvdulp=control))

    def ask(self, request: ReadRequest, octets: bytes) -> Iterator[tuple[Ppid, bytes]]:
        """Yields the chunk of a Read Request to the device, which has to answer with ``octets``."""
        self.sink.expect(request)
        control = rsvdulp(Opcode.READ_RESPONSE, tagged=True)
        self._responses.append(
            self._judge.begin_tagged(request.sink_stag, request.sink_to, octets, rsvdulp=control)
        )
        return self.untagged(request.encode(), Opcode.READ_REQUEST)

    @property
    def unanswered(self) -> int:
        """The number of these requests whose responses have not arrived whole."""
        return len(self.sink.reads)

    def receive(self, ppid: int, payload: bytes, unordered: bool) -> Iterator[tuple[Ppid, bytes]]:
        """Takes a message, and yields the answers to it."""
        for event in self.session.receive(ppid, payload, unordered=unordered):
            yield from self._handle(event)

    def _handle(self, event: SctpEvent) -> Iterator[tuple[Ppid, bytes]]:
        match event:
            case SessionControl(function=Function.INITIATE):
                yield Ppid.CONTROL, self.session.control(Function.ACCEPT)
            case SessionControl(function=Function.ENHANCED_INITIATE, private_data=private):
                # The peer answers as many RDMA Reads as the device asks with, and the other way
                # round.
                asked = Enhanced.decode(private)
                answer = Enhanced(ird=asked.ord, ord=asked.ird).encode()
                yield Ppid.CONTROL, self.session.control(Function.ENHANCED_ACCEPT, answer)
            case SessionControl(function=Function.TERMINATE):
                pass
            case SegmentReceived():
                self._ready[event.order] = event.segment
                while (segment := self._ready.pop(self._next, None)) is not None:
                    self._next += 1
                    yield from self._place(segment)
            case _:
                self.differences.append(f"stream {self.sid}: {event}")

    def _place(self, segment: bytes) -> Iterator[tuple[Ppid, bytes]]:
        """Compares a segment with that of the golden model, and takes it."""
        if segment != (expected := self._cut(segment)):
            same = len(commonprefix([segment, expected]))
            self.differences.append(
                f"segment {self._next - 1} of stream {self.sid} is not that of the golden model"
                f" from octet {same} on"
            )
        self.segments += 1
        for event in self.sink.receive(segment):
            if isinstance(event, DdpError):
                self.differences.append(f"stream {self.sid}: {event}")
            elif isinstance(event, Delivered):
                self.delivered.append(event)
                if isinstance(event.header, UntaggedHeader):
                    yield from self._answer(event)

    def _cut(self, segment: bytes) -> bytes:
        """Returns the next segment of the golden model, which takes the MULPDU of this one."""
        if not segment[0] & _LAST and len(segment) in self._lengths:
            del self._lengths[: self._lengths.index(len(segment))]  # a change is no way back
            self._judge.mulpdu = len(segment)
        response = segment[0] & _TAGGED and segment[1] & 15 == Opcode.READ_RESPONSE
        messages = self._responses if response else self._expected
        while messages:
            for expected in messages[0]:
                return expected
            messages.popleft()
        return b""

    def _answer(self, request: Delivered) -> Iterator[tuple[Ppid, bytes]]:
        """Yields the response to a Read Request (RFC 5040 section 4.5)."""
        assert isinstance(request.header, UntaggedHeader) and request.message is not None
        if request.header.qn == QueueNumber.READ_REQUEST:
            asked = ReadRequest.decode(request.message)
            octets = asked.source(self.memory, stream=self.sid, pd=0)
            assert octets is not None
            yield from self.tagged(asked.sink_stag, asked.sink_to, octets, Opcode.READ_RESPONSE)

    def tagged(
        self, stag: int, to: int, octets: bytes, kind: Opcode = Opcode.RDMA_WRITE
    ) -> Iterator[tuple[Ppid, bytes]]:
        """Yields the chunks of a tagged message to the device."""
        for each in self.source.tagged(stag, to, octets, rsvdulp=rsvdulp(kind, tagged=True)):
            yield Ppid.SEGMENT, self.session.segment(each)

    def untagged(self, octets: bytes, kind: Opcode = Opcode.SEND) -> Iterator[tuple[Ppid, bytes]]:
        """Yields the chunks of a Send or a Read Request to the device."""
        queue = QueueNumber.SEND if kind is Opcode.SEND else QueueNumber.READ_REQUEST
        control = rsvdulp(kind, tagged=False)
        for each in self.source.untagged(queue, octets, rsvdulp=control):
            yield Ppid.SEGMENT, self.session.segment(each)


class Relay:
    """The connection to the program of the guest. ``async with`` opens and closes it.

    Parameters
    ----------
    address
        Where this machine reaches the program.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.streams: dict[int, RelayStream] = {}
        self.ended = False  #: the association has ended on the kernel's side

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        self._writer.close()
        with suppress(asyncio.CancelledError):
            await self._reading

    async def _read(self) -> None:
        """Passes each message of the kernel to its stream."""
        try:
            while True:
                header = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                length, ppid, sid, unordered = header
                payload = await self._reader.readexactly(length)
                self.send(sid, self.streams[sid].receive(ppid, payload, bool(unordered)))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended = True

    def send(self, sid: int, chunks: Iterator[tuple[Ppid, bytes]]) -> None:
        """Lets the kernel send chunks, unordered (RFC 5043 section 10)."""
        for ppid, payload in chunks:
            self._writer.write(_HEADER.pack(len(payload), ppid, sid, 1) + payload)

    def finish(self) -> None:
        """Lets the kernel end the association."""
        self._writer.write_eof()
