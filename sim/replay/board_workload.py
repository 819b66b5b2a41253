"""Makes the traffic that ``rnic compare --on board`` plays without a capture.

A board has one LLP, small tables and little memory. So there are workloads for each LLP, from large
to small, and the first one that a board has room for is played. Those over MPA are connections of
:mod:`.workload`. Those over SCTP are an association with a session on each of its streams, opened
by either end in turn. A session has messages of one and of several segments in both directions,
bundled chunks, packets that overtake each other and packets that arrive twice. A second session
follows on the first stream.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...hdl.spec.config import RnicConfig
from ..capture.capture import Capture, capture_of
from ..capture.pcap import Frame
from ..model.ddp import DataSource
from ..model.mpa import Enhanced
from ..model.sctp import (
    ACCEPTS,
    ADAPTATION_DDP,
    ADAPTATION_PARAMETER,
    INITIATES,
    AnyChunk,
    Chunk,
    ChunkType,
    DataChunk,
    Function,
    InitChunk,
    Packet,
    Ppid,
)
from . import workload
from .host import GUARD
from .workload import SEND, WRITE, Wire

__all__ = ["workloads"]

_SCTP = 132
_ENDS = ("10.7.0.1", "10.7.0.2")
_PORTS = (40000, 5043)
_TAGS = (0xA1A2A3A4, 0xB1B2B3B4)
#: Near the end of the numbers, so that the TSNs of one end wrap.
_TSNS = (0xFFFFFFF0, 5000)
#: Octets of the longest segment.
_MULPDU = 200
#: The queues that get messages: that of Sends, and the one that RDMAP does not use.
_QUEUES = (0, 3)
#: Numbers of streams or connections, of messages on each, and of octets of the longest message.
_SIZES = (
    (4, 24, 1500),
    (3, 20, 1000),
    (2, 16, 800),
    (2, 10, 500),
    (2, 8, 300),
    (1, 10, 300),
    (1, 16, 100),
    (1, 8, 100),
    (1, 3, 64),
)


def workloads(config: RnicConfig) -> Iterator[Capture]:
    """Yields the workloads for boards with an RNIC of this configuration, the largest one first."""
    for streams, messages, largest in _SIZES:
        made: Iterable[tuple[Frame, ...]]
        if config.sctp:
            # Chunks that wait for an earlier one may need more slots than a board has.
            made = (
                _by_sctp(config.stags, streams, messages, largest, disorder)
                for disorder in (True, False)
            )
        else:
            made = (workload.for_board(config.stags, streams, messages, largest),)
        for frames in made:
            yield capture_of(frames, Path("generated workload for the board"))


def _by_sctp(
    stags: int, streams: int, messages: int, largest: int, disorder: bool
) -> tuple[Frame, ...]:
    association = _Association(stags, largest, disorder)
    association.set_up()
    for stream in range(streams):
        association.hold_session(stream, messages, initiator=stream % 2)
    association.hold_session(0, 3, initiator=1)
    return tuple(association.wire.frames)


class _Association:
    """The two ends of an association, numbered 0 and 1, and the frames that they send."""

    def __init__(self, stags: int, largest: int, disorder: bool) -> None:
        self.wire = Wire(stags)
        self._rng = random.Random(1)
        self._largest, self._disorder = largest, disorder
        self._tsns = list(_TSNS)
        # STag and Tagged Offset of each end's memory. The offsets in a page leave no gap between
        # the two regions, because a board has few pages.
        span = 2 * largest + GUARD
        self._memory = [
            (self.wire.new_stag(self._rng), (self._rng.getrandbits(35) << 12) + GUARD + end * span)
            for end in (0, 1)
        ]

    def set_up(self) -> None:
        """Sends the handshake of RFC 9260 section 5.1, with RFC 5043 section 5.1's adaptation."""
        indication = (ADAPTATION_PARAMETER, ADAPTATION_DDP.to_bytes(4, "big"))
        for end in (0, 1):
            init = InitChunk(
                _TAGS[end], _TSNS[end], 16, 16, parameters=(indication,), acknowledges=bool(end)
            )
            self._send(end, init, tag=None if end else 0)
        self._send(0, Chunk(ChunkType.COOKIE_ECHO, 0, b"cookie"))
        self._send(1, Chunk(ChunkType.COOKIE_ACK))

    def hold_session(self, stream: int, messages: int, *, initiator: int) -> None:
        """Holds a session from its Initiate to both Terminates, with ``messages`` messages
        each way. The sessions of odd streams are enhanced (RFC 6581 section 7).
        """
        ssns = [0, 0]
        sources = [DataSource(_MULPDU) for _ in _ENDS]

        def data(end: int, ppid: Ppid, payload: bytes) -> DataChunk:
            """Returns the next DATA chunk of an end."""
            tsn, self._tsns[end] = self._tsns[end], (self._tsns[end] + 1) % (1 << 32)
            ssns[end] += 1
            return DataChunk(tsn, stream, ppid, struct.pack(">H", ssns[end] - 1) + payload)

        def control(end: int, function: Function, private: bytes = b"") -> None:
            self._send(end, data(end, Ppid.CONTROL, struct.pack(">H", function) + private))

        enhanced = stream % 2
        limits = Enhanced(ird=1, ord=1).encode() * enhanced
        control(initiator, INITIATES[enhanced], limits)
        control(1 - initiator, ACCEPTS[enhanced], limits)
        for end in (0, 1):
            segments = [
                segment for _ in range(messages) for segment in self._message(sources[end], 1 - end)
            ]
            chunks = [data(end, Ppid.SEGMENT, segment) for segment in segments]
            packets = []
            while chunks:
                count = self._rng.randint(1, 3)
                packets.append(chunks[:count])
                del chunks[:count]
            self._send_all(end, packets)
        for end in (0, 1):
            control(end, Function.TERMINATE)

    def _message(self, source: DataSource, receiver: int) -> list[bytes]:
        """Returns the segments of an RDMA Write, or of a message on one of the queues."""
        octets = self._rng.randbytes(self._rng.randint(0, self._largest))
        if self._rng.random() < 0.5:
            stag, to = self._memory[receiver]
            offset = self._rng.randrange(self._largest)
            return source.tagged(stag, to + offset, octets, rsvdulp=WRITE)
        return source.untagged(self._rng.choice(_QUEUES), octets, rsvdulp=SEND << 32)

    def _send_all(self, end: int, packets: list[list[DataChunk]]) -> None:
        """Sends packets of an end, some of them twice, and with disorder some too early."""
        for at in range(1, len(packets)):
            if self._disorder and self._rng.random() < 0.2:
                packets[at - 1 : at + 1] = packets[at], packets[at - 1]
        for chunks in packets:
            for _ in range(1 + (self._rng.random() < 0.1)):
                self._send(end, *chunks)

    def _send(self, end: int, *chunks: AnyChunk, tag: int | None = None) -> None:
        """Sends a packet of an end, in a frame."""
        tag = _TAGS[1 - end] if tag is None else tag
        packet = Packet(_PORTS[end], _PORTS[1 - end], tag, chunks).encode()
        self.wire.put_packet(_ENDS[end], _ENDS[1 - end], _SCTP, packet)
