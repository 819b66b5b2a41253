"""A host: its memory, and its calls, which reach both the golden model and the operation list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec import regs
from ...hdl.spec.config import RnicConfig
from ..capture.streams import Arrival, Stream
from ..engines.engine import Drain, Frame, Operation, Packet, Poll, WriteRegister
from .expectation import Buffer, Golden, Pages
from .regions import (
    Region,
    RegionError,
)

#: At least this many guard octets precede and follow every region and buffer.
GUARD = 128
#: #: How many octets a page of host memory has.
PAGE = 4096
#: An odd number that turns numbers into cookies, with all bits in use.
_COOKIE = 0x9E3779B1
_HALF = 0xFFFFFFFF


@dataclass(frozen=True)
class Allotment:
    """The place of a region in simulated host memory: at an address, or in pages.

    ``part`` holds the offsets into the region that there is memory for; None: all of them.
    """

    region: Region
    address: int
    pages: Pages | None = None
    part: range | None = None

    @property
    def length(self) -> int:
        return self.region.length

    @property
    def end(self) -> int:
        return self.address + self.region.length


class Space:
    """Allocates host memory from an address on, with a guard before and after each piece."""

    def __init__(self, start: int = 0) -> None:
        self._end = start

    def take(self, length: int, offset: int, alignment: int) -> int:
        """Allocates a piece; returns its address, ``offset`` octets past a multiple of
        ``alignment``.
        """
        address = self._end + GUARD + (offset - self._end - GUARD) % alignment
        self._end = address + length
        return address

    @property
    def size(self) -> int:
        """The number of octets of all pieces, in whole pages."""
        return -(-(self._end + GUARD) // PAGE) * PAGE


class Host:
    """Passes a host's calls to the golden model and to the RNIC's list of operations alike.

    Tables change while the RNIC is idle; buffers are posted whatever is in flight.
    """

    def __init__(self, config: RnicConfig, golden: Golden, space: Space, base: int = 0) -> None:
        self.operations: list[Operation] = []
        self.sent: list[tuple[Arrival, ...]] = []  # the segments in each packet and frame
        self._queues: dict[tuple[int, int], int] = {}  # first slot of each queue's buffers
        self.buffers: list[Buffer] = []
        self.golden = golden
        self._config = config
        self._space = space
        self._base = base  # the bus address of memory's first octet
        self._open: set[tuple[int, int]] = set()  # queues, by stream and Queue Number
        self._sessions: dict[int, int] = {}  # the session that each stream is set up for
        self._written: dict[str, int] = {}  # the values of registers
        self._slot = 0  # the next free slot of the page table
        self._busy = False  # whether a packet was sent since the RNIC was last idle

    def send(self, packet: Packet | Frame, segments: Iterable[Arrival] = ()) -> None:
        """Sends a packet or frame to the RNIC; the golden model has taken its contents already."""
        self.operations.append(packet)
        self.sent.append(tuple(segments))
        self._busy = True

    def idle(self) -> None:
        """Waits until nothing is in flight."""
        if self._busy:
            self.operations.append(Drain())
            self._busy = False

    def enable(self, stream: Stream, position: int = 0) -> None:
        """Enables a stream, or enables it anew; its queues are closed."""
        self.idle()
        self.golden.start(stream, position)
        flags = regs.pack("STREAM_FLAGS", enable=1, crc=stream.crc, markers=stream.markers)
        domain = self.golden.domains[stream.destination.address]
        self.write("STREAM", INDEX=stream.number, FLAGS=flags, PD=domain, COMMIT=1)
        for number, qn in sorted(self._open):
            if number == stream.number:
                self.write("QUEUE", STREAM=number, NUMBER=qn, CLOSE=1)
                self._open.remove((number, qn))

    def open(self, stream: int, qn: int, first: int = 1) -> None:
        """Opens a queue; ``first`` is its first buffer's MSN."""
        self.idle()
        self.golden.open(stream, qn, first)
        self._open.add((stream, qn))
        self.write("QUEUE", STREAM=stream, NUMBER=qn, MSN=first, OPEN=1)

    def post(self, stream: int, qn: int, msn: int, length: int, pages: Pages | None = None) -> None:
        """Posts a buffer, in pages or in host memory that nothing else uses."""
        count = len(self.buffers) + 1
        address = 0
        if pages is None:
            address = self._space.take(length, 29 * count, 64)  # at varying octets of a beat
        cookie = count * _COOKIE & _HALF
        session = self._sessions.get(stream, 0)
        self.buffers.append(Buffer(stream, qn, msn, address, length, cookie, pages, session))
        self.golden.post(self.buffers[-1])
        linear, code = self._linear(address, pages)
        self.write("QUEUE", STREAM=stream, NUMBER=qn, MSN=msn)
        self.write(
            "BUFFER",
            ADDR_LO=linear & _HALF,
            ADDR_HI=linear >> 32,
            LENGTH=length,
            PAGES=code,
            COOKIE=cookie,
            SLOT=self._buffer_slot(stream, qn, msn),
            POST=1,
        )

    def _buffer_slot(self, stream: int, qn: int, msn: int) -> int:
        """Returns the slot of the buffer table: each queue has as many slots as it holds
        buffers.
        """
        first = self._queues.setdefault((stream, qn), len(self._queues) * self._config.queue_depth)
        return first + msn % self._config.queue_depth

    def register(self, allotment: Allotment) -> None:
        """Registers a region."""
        self.idle()
        region = allotment.region
        if (other := self.golden.holder(region)) is not None:
            raise RegionError(f"{region} cannot be registered while {other} has its index")
        if region not in self.golden.octets:
            self.golden.add(region)
        self.golden.register(region)
        bound = region.stream is not None
        flags = regs.pack(
            "STAG_FLAGS",
            key=region.stag & 0xFF,
            valid=1,
            remote_write=region.remote_write,
            remote_read=region.remote_read,
            bound=bound,
        )
        linear, code = self._linear(allotment.address, allotment.pages)
        self.write(
            "STAG",
            INDEX=region.index,
            FLAGS=flags,
            OWNER=region.stream if bound else self.golden.domains[region.endpoint],
            TO_LO=region.to & _HALF,
            TO_HI=region.to >> 32,
            LEN_LO=region.length & _HALF,
            LEN_HI=region.length >> 32,
            ADDR_LO=linear & _HALF,
            ADDR_HI=linear >> 32,
            PAGES=code,
            COMMIT=1,
        )

    def revoke(self, region: Region) -> None:
        """Revokes a region, if it is registered."""
        self.idle()
        if self.golden.revoke(region):
            self.write("STAG", INDEX=region.index)
            self.write("REVOKE", STAG=1)
            self.await_revocation()

    def stop(self, stream: int) -> None:
        """Disables a stream, and revokes the STags bound to it."""
        self.idle()
        self.golden.stop(stream)
        self.write("STREAM", INDEX=stream)
        self.write("REVOKE", STREAM=1)
        self.await_revocation()

    def await_revocation(self) -> None:
        """Waits until a revocation is done."""
        self.operations.append(Poll(regs.address("STATUS"), regs.pack("STATUS", revoking=1)))

    def _linear(self, address: int, pages: Pages | None) -> tuple[int, int]:
        """Returns address and page code of memory; writes its pages, if any, to the page table."""
        if pages is None:
            return (self._base + address) % (1 << 64), 0
        linear = (self._slot << pages.shift) + pages.offset
        for address in pages.addresses:
            page = self._base + address
            self.write("PAGE", INDEX=self._slot, ADDR_LO=page & _HALF, ADDR_HI=page >> 32, COMMIT=1)
            self._slot = (self._slot + 1) % self._config.pages
        return linear, pages.shift - 11

    def write(self, window: str, **values: int | None) -> None:
        """Writes registers: commands, and all others whose value changes."""
        for each, value in values.items():
            name, number = f"{window}_{each}", int(value or 0)
            if regs.BY_NAME[name].access == "wo" or self._written.get(name) != number:
                self.operations.append(WriteRegister(regs.address(name), number))
                self._written[name] = number


def guard_octets(size: int) -> NDArray[np.uint8]:
    """Returns the contents of memory outside the regions: they depend on the address,
    without short period.
    """
    memory = np.empty(size, np.uint8)
    step = 1 << 20
    for start in range(0, size, step):
        addresses = np.arange(start, min(start + step, size), dtype=np.uint64)
        memory[start : start + step] = (addresses * np.uint64(0x9E3779B1) >> np.uint64(24)).astype(
            np.uint8
        )
    return memory
