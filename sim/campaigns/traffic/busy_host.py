"""The host of ``rnic soak``: it changes tables during the traffic of other streams.

The host waits only for traffic that its call concerns. A completion shows it that everything before
is over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ....hdl.spec import commands, regs
from ....hdl.spec.completion import Completion
from ....hdl.spec.config import RnicConfig
from ....hdl.spec.ddp import QUEUE_OVERRUN
from ...capture.streams import QUEUES, Arrival, Stream, Tagged
from ...engines.engine import (
    Await,
    Drain,
    Meanwhile,
    Packet,
    Pause,
    Poll,
    Resume,
    Wait,
    WriteRegister,
    until,
)
from ...replay.expectation import Expected, Golden, Pages, Sequence
from ...replay.host import Allotment, Host, Space
from ...replay.regions import slot
from .chunk import Still

__all__ = ["BoundGolden", "BusyHost"]

#: Completions that the host leaves in the RNIC while it takes none, and how many of them may be
#: present when that begins; fewer in an RNIC with a small backlog.
_BACKLOG = 190
_BEHIND = 30
_HALF = 0xFFFFFFFF


class BoundGolden(Golden):
    """The golden model of streams that complete in several queues.

    ``bound`` has the queue of each stream that does not complete in queue 0.
    """

    bound: Mapping[int, int] = {}

    def sequences(self) -> dict[Sequence, list[Expected]]:
        found: dict[Sequence, list[Expected]] = {}
        for each in self.deliveries:
            found.setdefault(self.sequence(each.completion), []).append(each)
        return found

    def sequence(self, entry: Completion) -> Sequence:
        return "completion", self.bound.get(entry.stream, 0)

    def lose(self, arrival: Arrival) -> None:
        """Drops the last message, because the bus refuses its completion."""
        self.deliveries.pop()
        self._receivers[arrival.stream.number].counts.delivered -= 1

    def overrun(self, arrival: Arrival) -> None:
        """Drops the last message, because its completion queue has no room."""
        self.lose(arrival)
        # The event names the stream alone.
        self._fail(replace(arrival, position=0), QUEUE_OVERRUN, b"", 0)


class BusyHost(Host):
    """Changes tables during traffic that the change does not concern.

    Packets are counted from 1, and ``over`` is the last packet of which nothing is in flight.
    """

    def __init__(
        self, config: RnicConfig, golden: Golden, space: Space, base: int, page: int
    ) -> None:
        super().__init__(config, golden, space, base)
        self._slot = page
        self.vast: Pages | None = None  # the pages that all vast buffers share
        self._vast_address: tuple[int, int] | None = None
        self.packets = 0
        self.over = 0
        self.slots: dict[int, int] = {}  # the last packet that names a slot of the STag table
        self.streams: dict[int, int] = {}  # the last packet of a stream
        self.sweeping: set[int] = set()  # slots that a revocation in progress will empty
        self._delivering: list[int] = []  # the packet of each completion
        self._awaited = 0  # how many completions were awaited
        self.entries = 0  # of the completion ring
        self._returned = 0  # how many completions were given back for certain
        self._paused: int | None = None  # how many completions there were before the pause
        # Half of the backlog is free while the RNIC takes segments.
        self._most = min(_BACKLOG, 3 * config.backlog // 8)
        self._behind = min(_BEHIND, config.backlog // 16)
        self._revoking = False
        self._room = self._beats = config.exception_octets // config.octets
        #: Slots of the buffer table: free ones; those of buffers that wait for a message, by stream
        #: and Queue Number; and those of messages, with the count of completions.
        self._free = list(range(config.buffers))
        self._filled: dict[tuple[int, int], deque[int]] = {}
        self._leaving: deque[tuple[int, int]] = deque()
        #: The numbers of calls made during the traffic and of finished ones; and the streams and
        #: slots of the STag table that the last call concerns.
        self.asides = self.asides_over = 0
        self._aside_streams: set[int] = set()
        self._aside_slots: set[int] = set()
        self.still: list[Still] = []
        self.bound: dict[int, int] = {}  # the queue of each stream that has not queue 0

    def aside(
        self,
        cycles: int,
        call: Callable[[], None],
        streams: Iterable[int] = (),
        slots: Iterable[int] = (),
    ) -> None:
        """Makes a call whose register accesses happen after ``cycles`` cycles, while further
        packets arrive.

        The call ends before the next call begins, and before a packet of one of the ``streams``, or
        with a tagged segment for one of the ``slots``, is sent.
        """
        self.end_aside()
        start = len(self.operations)
        call()
        operations = self.operations[start:]
        accesses = tuple(each for each in operations if isinstance(each, WriteRegister | Poll))
        if len(accesses) == len(operations):  # the call waits for nothing
            self.operations[start:] = [Meanwhile(cycles, accesses)]
            self.asides += 1
            self._aside_streams, self._aside_slots = set(streams), set(slots)

    def end_aside(self) -> None:
        """Waits until the call that was made during the traffic is over."""
        if self.asides_over < self.asides:
            self.operations.append(Meanwhile(0, ()))
            self.asides_over = self.asides

    def carry_out(self, command: Iterable[commands.Write | commands.Wait]) -> None:
        self.end_aside()
        super().carry_out(command)

    def register(self, allotment: Allotment) -> None:
        if allotment.region not in self.golden.octets:
            self.golden.add(allotment.region, kept=False)
        super().register(allotment)

    def set_stream(
        self, number: int, *, pd: int, crc: bool = False, markers: bool = False, cq: int = 0
    ) -> None:
        cq = self.bound.get(number, cq)
        super().set_stream(number, pd=pd, crc=crc, markers=markers, cq=cq)
        self.operations.append(until(clearing=0))  # from then on its packets may come

    def enable(self, stream: Stream, position: int = 0) -> None:
        super().enable(stream, position)
        for qn in range(QUEUES):
            self._free += self._filled.pop((stream.number, qn), ())

    def read(self, name: str, value: int) -> None:
        """Reads a register, which must have this value."""
        self.end_aside()
        self.operations.append(Poll(regs.address(name), _HALF, value))

    def holds(self, name: str) -> int:
        """Returns the value of a register that only the host writes."""
        return self._written.get(name, 0)

    def write_octets(self, name: str, value: int, strobes: int) -> None:
        """Writes the octets of a register that have a strobe."""
        self.end_aside()
        self.operations.append(WriteRegister(regs.address(name), value, strobes))
        lanes = sum(0xFF << 8 * lane for lane in range(4) if strobes >> lane & 1)
        self._written[name] = self.holds(name) & ~lanes | value & lanes

    def refused(self, access: WriteRegister | Poll) -> None:
        """Makes a register access that changes nothing."""
        self.end_aside()
        self.operations.append(access)

    def linear(self, address: int, pages: Pages | None) -> tuple[int, int]:
        if pages is None or pages is not self.vast:
            return super().linear(address, pages)
        if self._vast_address is None:
            self._vast_address = super().linear(address, pages)
        return self._vast_address

    def has_slot(self) -> bool:
        """True if the buffer table has a free slot beside one for a message across 2^32, once
        completions were seen.
        """
        return len(self._free) + len(self._leaving) > 1

    def buffer_slot(self, stream: int, qn: int, msn: int) -> int:
        if not self._free:
            self.see(self._leaving[0][0])
        while self._leaving and self._leaving[0][0] <= self._awaited:
            self._free.append(self._leaving.popleft()[1])
        found = self._free.pop()
        self._filled.setdefault((stream, qn), deque()).append(found)
        return found

    def idle(self) -> None:
        """Does nothing: see :meth:`settle`."""

    def wait_for(self, wait: commands.Wait) -> None:
        """Leaves the wait to :meth:`revoked`."""
        assert wait is commands.REVOKED
        self._revoking = True

    def settle(self, packet: int) -> None:
        """Waits until nothing is in flight of packets up to this one, and a revocation is done."""
        self.revoked()
        if packet <= self.over:
            return
        following = bisect_right(self._delivering, packet)
        if following < len(self._delivering):
            self.see(following + 1)
        else:
            self.drain()

    def see(self, completions: int) -> None:
        """Waits until ``completions`` completions were taken."""
        if completions > self._awaited:
            self.resume()
            self.operations.append(Await(completions))
            self._awaited = completions
            # Completions are in order, and everything before a segment is over when the segment is.
            self.over = max(self.over, self._delivering[completions - 1] - 1)

    def drain(self) -> int:
        """Waits until nothing is in flight. Returns the place of the poll that finds this."""
        self.end_aside()
        self.operations += [until(idle=1), Drain()]
        place = len(self.operations) - 2
        self.still.append(Still(place, idle=True))
        self.over = self.packets
        self._room = self._beats
        if self._paused is None:
            self._returned = len(self._delivering)
        return place

    def revoked(self) -> None:
        """Waits until a revocation is done."""
        if self._revoking:
            self.end_aside()
            super().wait_for(commands.REVOKED)
            self._revoking = False
            self.sweeping = set()

    def pause(self) -> None:
        """Takes no completions, for as long as the RNIC has room for them."""
        if self._paused is None:
            behind = max(0, len(self._delivering) - self._behind)
            self.see(behind)
            self.operations.append(Pause())
            self._paused = behind

    def resume(self) -> None:
        if self._paused is not None:
            self.operations.append(Resume())
            self._paused = None

    def catch_up(self) -> None:
        """Waits until the RNIC has no room for completions, or none to write, then takes all."""
        if self._paused is not None:
            self.operations.append(Wait(3000))
        self.resume()
        self.drain()

    def receive(self, packet: Packet, arrivals: list[Arrival]) -> list[tuple[int, int]]:
        """Sends a packet of these FPDUs.

        Returns the Queue Numbers of the messages that it delivered, each with the count of
        completions.
        """
        self.packets += 1
        self.streams[packet.stream] = self.packets
        if packet.stream in self._aside_streams:
            self.end_aside()
        before, refused = len(self.golden.deliveries), len(self.golden.exceptions)
        for arrival in arrivals:
            self.golden.receive(arrival)
            header = arrival.header
            if isinstance(header, Tagged) and header.length:
                entry = slot(header.stag, self._config.stags)
                self.slots[entry] = self.packets
                if entry in self._aside_slots:
                    self.end_aside()
                if entry in self.sweeping:
                    self.revoked()
        used = []
        for number, delivery in enumerate(self.golden.deliveries[before:], before + 1):
            self._delivering.append(self.packets)
            if delivery.buffer is not None:
                qn = delivery.buffer.qn
                self._leaving.append((number, self._filled[packet.stream, qn].popleft()))
                used.append((qn, number))
        beats = sum(
            -(-len(each.octets) // self._config.octets) for each in self.golden.exceptions[refused:]
        )
        if beats > self._room:
            # Earlier packets are no longer in the way; this packet was not sent yet.
            self.drain()
            self.over -= 1
        if len(self._delivering) - self._returned > self.entries:
            # A message that finds the ring full would end its stream.
            self.resume()
            self.drain()
            self.over -= 1
            self._returned = before
        self._room -= beats
        self.send(packet)
        if self._paused is not None and len(self._delivering) - self._paused > self._most:
            self.resume()
        return used
