"""A host: its memory, and its calls, which reach both the golden model and the operation list."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec import commands
from ...hdl.spec.config import RnicConfig
from ..capture.streams import Arrival, Stream
from ..engines.engine import Frame, Packet
from .expectation import Buffer, Golden, Pages
from .regions import Region, RegionError
from .tables import Tables

#: At least this many guard octets precede and follow every region and buffer.
GUARD = 128
#: Buffers lie at varying octets past a multiple of this.
ALIGNMENT = 64
#: How many octets a page of host memory has.
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
        self._free: list[tuple[int, int]] = []  # in order, none touches the next
        self._spans: dict[int, tuple[int, int]] = {}  # by the address of the piece in it

    def take(self, length: int, offset: int, alignment: int) -> int:
        """Allocates a piece; returns its address, ``offset`` octets past a multiple of
        ``alignment``.
        """
        for number, (begin, end) in enumerate(self._free):
            address = _aligned(begin, offset, alignment)
            if address + length <= end:
                rest = (address + length, end)
                self._free[number : number + 1] = [rest][: rest[0] < end]
                break
        else:
            begin = self._end
            address = _aligned(begin, offset, alignment)
            self._end = address + length
        self._spans[address] = begin, address + length
        return address

    def span(self, address: int) -> tuple[int, int]:
        """Returns the first address of a piece with the guard before it, and that after it."""
        return self._spans[address]

    def give(self, address: int) -> None:
        """Frees a piece, which another one may then take."""
        begin, end = self._spans.pop(address)
        number = bisect(self._free, (begin, end))
        if number < len(self._free) and self._free[number][0] == end:
            end = self._free.pop(number)[1]
        if number and self._free[number - 1][1] == begin:
            number -= 1
            begin = self._free.pop(number)[0]
        self._free.insert(number, (begin, end))

    @property
    def size(self) -> int:
        """The number of octets of all pieces, in whole pages."""
        return -(-(self._end + GUARD) // PAGE) * PAGE


def _aligned(begin: int, offset: int, alignment: int) -> int:
    """Returns the first address for a piece after a guard at ``begin``."""
    return begin + GUARD + (offset - begin - GUARD) % alignment


class Host(Tables):
    """Passes a host's calls to the golden model and to the RNIC's list of operations alike.

    Tables change while the RNIC is idle; buffers are posted whatever is in flight.
    """

    def __init__(self, config: RnicConfig, golden: Golden, space: Space, base: int = 0) -> None:
        super().__init__(config, base)
        self.sent: list[tuple[Arrival, ...]] = []  # the segments in each packet and frame
        self.octets = 0  # of all packets and frames
        self.buffers: list[Buffer] = []
        self.golden = golden
        self._space = space
        self._sessions: dict[int, int] = {}  # the session that each stream is set up for

    def send(self, packet: Packet | Frame, segments: Iterable[Arrival] = ()) -> None:
        """Sends a packet or frame to the RNIC; the golden model has taken its contents already."""
        self.operations.append(packet)
        self.sent.append(tuple(segments))
        self.octets += len(packet.octets)
        self._busy = True

    def enable(self, stream: Stream, position: int = 0) -> None:
        """Enables a stream, or enables it anew; its queues are closed."""
        self.idle()
        self.golden.start(stream, position)
        domain = self.golden.domains[stream.destination.address]
        self.set_stream(stream.number, pd=domain, crc=stream.crc, markers=stream.markers)

    def open(self, stream: int, qn: int, first: int = 1) -> None:
        """Opens a queue; ``first`` is its first buffer's MSN."""
        self.idle()
        self.golden.open(stream, qn, first)
        self.open_queue(stream, qn, first)

    def post(self, stream: int, qn: int, msn: int, length: int, pages: Pages | None = None) -> None:
        """Posts a buffer, in pages or in host memory that nothing else uses."""
        count = len(self.buffers) + 1
        address = 0
        if pages is None:
            address = self._space.take(length, 29 * count, ALIGNMENT)  # at varying octets of a beat
        cookie = count * _COOKIE & _HALF
        session = self._sessions.get(stream, 0)
        self.buffers.append(Buffer(stream, qn, msn, address, length, cookie, pages, session))
        self.golden.post(self.buffers[-1])
        self.post_buffer(
            stream, qn, msn, address=address, length=length, cookie=cookie, pages=pages
        )

    def register(self, allotment: Allotment) -> None:
        """Registers a region."""
        self.idle()
        region = allotment.region
        if (other := self.golden.holder(region)) is not None:
            raise RegionError(f"{region} cannot be registered while {other} has its index")
        if region not in self.golden.octets:
            self.golden.add(region)
        self.golden.register(region)
        self.set_stag(
            region.stag,
            region.access,
            to=region.to,
            length=region.length,
            address=allotment.address,
            pages=allotment.pages,
            pd=self.golden.domains[region.endpoint] if region.stream is None else None,
            stream=region.stream,
        )

    def revoke(self, region: Region) -> None:
        """Revokes a region, if it is registered."""
        self.idle()
        if self.golden.revoke(region):
            self.carry_out(commands.revoke_stag(region.stag))

    def stop(self, stream: int) -> None:
        """Disables a stream, and revokes the STags bound to it."""
        self.idle()
        self.golden.stop(stream)
        self.carry_out(commands.revoke_stream(stream))


def guard_octets(size: int, most: int | None = None, *, start: int = 0) -> NDArray[np.uint8]:
    """Returns the contents of memory outside the regions, from the address ``start`` on: they
    depend on the address, without short period. After the first ``most`` octets they are 0, and
    take no room.
    """
    memory = np.zeros(size, np.uint8)
    filled = size if most is None else min(most, size)
    step = 1 << 16
    for at in range(0, filled, step):
        count = min(step, filled - at)
        addresses = np.arange(start + at, start + at + count, dtype=np.uint64)
        memory[at : at + count] = (addresses * np.uint64(0x9E3779B1) >> np.uint64(24)).astype(
            np.uint8
        )
    return memory
