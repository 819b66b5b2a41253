"""Opens a device, and distributes its completions and events to the objects that they concern."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from ...hdl.spec import commands, ddp, regs
from ...hdl.spec.commands import Wait, Write
from ...hdl.spec.completion import OCTETS, Completion, Kind, SentStatus, decode, phase
from ...hdl.spec.config import LIMITS, SPANS, WIDTHS
from ...hdl.spec.net import AssociationKey
from ..base.checks import instance, integer, seconds
from ..base.closing import Closing, ProcessLock
from ..base.errors import (
    ErrorEvent,
    InvalidRequest,
    ResourceExhausted,
    RnicError,
    RnicTimeout,
    StateError,
    TransportError,
    UnsupportedDevice,
)
from ..transports.memory import Arena, Layout, Memory, Steps, finish, lay_out, laying_out
from ..transports.transport import Transport
from .known import KnownAssociation, KnownStream
from .tables import StagAllocator

#: How many seconds the driver waits for the device to do work of microseconds.
PATIENCE = 5.0
#: How many seconds the driver waits for completions in flight, while other streams keep the device
#: busy.
SETTLE = 0.5
#: How many completions one step of :meth:`Context.settling` takes.
SERVED = 16
#: Seconds between two looks at the ring by a thread that waits for an interrupt.
SLICE = 0.02


def status(name: str) -> int:
    """Returns the mask of a field of the register STATUS."""
    return regs.pack("STATUS", **{name: 1})


EVENT, IDLE, QUEUE_ERROR, UNCLEARED = map(status, ("event", "idle", "queue_error", "uncleared"))


@dataclass(frozen=True)
class Capabilities:
    """The sizes of the device, as its CAP registers report them."""

    width: int  #: width of the datapath in bits
    stags: int  #: Steering Tags
    streams: int  #: DDP Streams
    #: octets of the packet buffer, in which an FPDU must fit; 0: the device does not receive
    buffer: int
    pages: int  #: slots of the page table
    queue: int  #: buffers that an untagged queue holds
    buffers: int  #: buffers that all queues hold together
    cqs: int  #: completion queues

    @property
    def receives(self) -> bool:
        """True if the device receives."""
        return bool(self.buffer)


@dataclass(frozen=True)
class SctpCapabilities:
    """The further sizes of a device with SCTP, as its CAP registers report them.

    In a device that does not receive, ``window`` and ``owner`` are 0.
    """

    associations: int
    window: int  #: how many DDP-SSNs a chunk may be ahead of its stream's next one
    mpa: int  #: 1: the device has streams over MPA, too; 0: only those of associations
    owner: int  #: entries that its completion queue must have free for a packet to be taken


#: The smallest and the largest value of each capability, by the capability's name.
_LIMITS = {
    "stags": LIMITS["stags"],
    "streams": LIMITS["streams"],
    "buffer": LIMITS["buffer_octets"],
    "pages": LIMITS["pages"],
    "queue": LIMITS["queue_depth"],
    "buffers": LIMITS["buffers"],
    "cqs": LIMITS["completion_queues"],
    "associations": LIMITS["associations"],
    "window": LIMITS["window"],
}
#: Those that are 0 in a device that does not receive.
_RECEIVING = frozenset(("buffer", "queue", "buffers", "window"))


#: The octet addresses of registers by their names.
_ADDRESSES = {register.name: register.address for register in regs.REGISTERS}
#: The registers with the arguments of commands. They keep their values, and only the host writes
#: them.
_ARGUMENTS = frozenset(
    register.name
    for register in regs.REGISTERS
    if register.access == "rw"
    and register.name.startswith(("STAG_", "STREAM_", "QUEUE_", "BUFFER_"))
)


class Registers:
    """Reads and writes a device's registers by their names.

    An argument of a command that the device has already is not written again.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._written: dict[str, int] = {}

    def read(self, name: str) -> int:
        try:
            return self._transport.read(_ADDRESSES[name])
        except BaseException:
            self._written.clear()  # an earlier write may have failed
            raise

    def write(self, name: str, value: int = 1) -> None:
        self.start((Write(name, value),))

    def start(self, command: Iterable[Write | Wait]) -> None:
        """Makes the writes of a command. Its waits are left to the caller."""
        writes, written = [], self._written
        for step in command:
            if isinstance(step, Write):
                name, value = step.register, step.value
                if written.get(name) != value:
                    writes.append((_ADDRESSES[name] + step.page * regs.PAGE_SIZE, value))
                    if name in _ARGUMENTS:
                        written[name] = value
        try:
            self._transport.write_all(writes)
        except BaseException:
            written.clear()  # nobody knows how many of them the device has
            raise


class Device:
    """A device that a transport reaches, not yet opened.

    The constructor accesses no register; :meth:`query` and :meth:`open` do.
    """

    def __init__(self, transport: Transport) -> None:
        instance("a device's transport", transport, Transport)
        self.transport = transport

    def query(self) -> Capabilities:
        """Returns the sizes of the device, after checking identity, version and link.

        Raises
        ------
        UnsupportedDevice
            Another device, or another version, answers; or the link does not return the value that
            was written.
        """
        registers = Registers(self.transport)
        identity = registers.read("ID")
        if identity != regs.ID:
            raise UnsupportedDevice(_wrong_identity(identity))
        version = registers.read("VERSION")
        major, minor = version >> 16, version & 0xFFFF
        known = regs.VERSION >> 16, regs.VERSION & 0xFFFF
        if major != known[0] or minor < known[1]:
            newer = "the driver" if (major, minor) > known else "the gateware"
            raise UnsupportedDevice(
                f"the device's register map is {major}.{minor}, the driver's is"
                f" {known[0]}.{known[1]}: update {newer}"
            )
        found = Capabilities(**_read(registers, Capabilities))
        if found.width not in WIDTHS:
            raise UnsupportedDevice(_wrong("width", found.width))
        for value in (0x5555AAAA, 0xAAAA5555):
            registers.write("SCRATCH", value)
            if (got := registers.read("SCRATCH")) != value:
                raise UnsupportedDevice(
                    f"SCRATCH was written with {value:#010x} and reads {got:#010x}: check the link"
                )
        return found

    def query_sctp(self) -> SctpCapabilities | None:
        """Returns the sizes of the device's SCTP, or None for a device without SCTP."""
        registers = Registers(self.transport)
        if not registers.read("CAP_ASSOCIATIONS"):
            return None
        return SctpCapabilities(**_read(registers, SctpCapabilities))

    def open(
        self, *, completions: int | None = None, coalesce: int = 1, timeout: int = 0
    ) -> Context:
        """Takes the device over and returns the open device. All earlier settings of the device are
        lost.

        Parameters
        ----------
        completions
            Entries of each completion queue, a power of two from 2 to 32768. A stream whose
            message finds its queue full is in error, so it should hold all completions that may
            come between two looks of the driver. By default as many as the transport advises. With
            SCTP, a queue for its records has as many entries, or more if the device needs them.
        coalesce, timeout
            The interrupt is raised once ``coalesce`` completions wait, or ``timeout`` cycles after
            the first one.

        Raises
        ------
        StateError
            A context of this process has the device open through the same transport.
        """
        return Context(
            self.transport, self.query(), self.query_sctp(),
            completions=self.transport.completions if completions is None else completions,
            coalesce=coalesce, timeout=timeout,
        )  # fmt: skip


def _wrong_identity(identity: int) -> str:
    expected = f"ID reads {identity:#010x}, not {regs.ID:#010x}: "
    if identity in (0, 0xFFFFFFFF):
        return expected + "no device answers; check power, link and base address"
    if identity == int.from_bytes(regs.ID.to_bytes(4, "little"), "big"):
        return expected + "the link swaps octets; check its byte order"
    return expected + "this is another device; check the base address"


def _read(
    registers: Registers, kind: type[Capabilities] | type[SctpCapabilities]
) -> dict[str, int]:
    """Returns the CAP registers of a kind; raises where one is outside its limits."""
    found = {}
    # A device that does not send has to receive.
    receives = registers.read("CAP_BUFFER") or not registers.read("CAP_SENDS")
    for field in fields(kind):
        found[field.name] = value = registers.read(f"CAP_{field.name.upper()}")
        low, high = _LIMITS.get(field.name, (value, value))
        if field.name in _RECEIVING and not receives:
            low = high = 0
        if not low <= value <= high or field.name in _LIMITS and value & (value - 1):
            raise UnsupportedDevice(_wrong(field.name, value))
    return found


def _wrong(name: str, value: int) -> str:
    return (
        f"CAP_{name.upper()} reads {value}, which no RNIC has: check the link, or rebuild the"
        " gateware"
    )


class Mapping:
    """Memory that the device can write, with its layout and its slots of the page table."""

    def __init__(self, memory: Memory, layout: Layout, slots: Arena) -> None:
        self.memory, self.layout, self._slots = memory, layout, slots
        self.slot = slots.allocate(len(layout.pages)) if layout.pages else 0

    @property
    def address(self) -> int:
        """Host or linear address of the first octet."""
        return self.layout.address(self.slot)

    def close(self) -> None:
        """Frees memory and slots, once the device writes there no more."""
        if self.layout.pages:
            self._slots.free(self.slot)
        self.memory.close()


class Ring:
    """A completion queue of the device: a ring of entries in host memory.

    Parameters
    ----------
    number, size
        The queue's number, and the base-2 logarithm of its entries.
    memory
        The memory of the ring; None: it is allocated here.
    page
        The doorbell page of the queue; 0: none.
    """

    def __init__(
        self,
        context: Context,
        number: int,
        size: int,
        *,
        coalesce: int = 1,
        timeout: int = 0,
        memory: Memory | None = None,
        page: int = 0,
    ) -> None:
        self._context, self.number, self.entries = context, number, 1 << size
        self._size = size
        self.memory = memory or context.allocated(self.entries * OCTETS)
        layout = lay_out(self.memory.extents)
        if layout.pages:
            self.memory.close()
            raise ResourceExhausted(
                f"the ring of {self.entries} completions must be contiguous on the bus:"
                " ask for fewer completions"
            )
        self.consumed = self._returned = 0
        context.carry_out(
            commands.set_cq(
                layout.offset, size, queue=number, coalesce=coalesce, timeout=timeout, page=page
            ),
            _STAYS,
        )
        self.give_back()

    def give_back(self) -> None:
        """Gives the entries that were taken back to the device, and asks for an interrupt."""
        self._returned = self.consumed
        self._context.registers.start(commands.take(self.consumed, queue=self.number, arm=True))

    def take(self, most: int) -> Iterator[Completion]:
        """Yields the completions that are present, at most ``most``, and gives them back."""
        for _ in range(min(self.entries, most)):
            completion = self._next()
            if completion is None:
                break
            self.consumed += 1
            if 4 * (self.consumed - self._returned) >= self.entries:
                self.give_back()
            yield completion
        if self.consumed != self._returned:
            self.give_back()

    def _next(self) -> Completion | None:
        """Returns the next completion, or None if it is not written yet."""
        start = (self.consumed & self.entries - 1) * OCTETS
        last = start + OCTETS - 1
        # The phase is in the last octet. That octet is written last, and so is read first.
        self.memory.pull(last, 1)
        if self.memory.view[last] & 1 != phase(self.consumed, self._size):
            return None
        self.memory.pull(start, OCTETS)
        octets = bytes(self.memory.view[start : start + OCTETS])
        try:
            return decode(octets)
        except ValueError as error:
            raise TransportError(
                f"the completion {octets.hex(' ')} is not valid ({error}): check the link"
            ) from error

    def close(self) -> None:
        """Disables the queue, and frees its memory once the device uses it no more."""
        self._context.carry_out(commands.disable_cq(self.number), _STAYS)
        self.memory.close()


#: The complaint about a device that cannot be taken over.
_WORKS = "the device does not finish the work that it had before: reset it"
#: The complaint about a completion queue that does not restart.
_STAYS = "the device does not stop using its completion ring: reset it"


class Context(Closing):
    """An open device. One process owns all of it, through one context.

    Threads may share the context. Every object made from it lives until it is closed, at the latest
    until the process ends, because the device would otherwise still write its memory. A forked
    child cannot use the context.

    Attributes
    ----------
    capabilities
        The sizes of the device.
    sctp
        The sizes of its SCTP, or None.
    sends
        Whether the device sends, and its FPDUs reach the host.
    responds
        Whether the device can answer RDMA Read Requests, too.
    reads
        How many RDMA Reads of a stream over MPA the device bounds; 0: none.
    chunks
        Whether the device sends over SCTP, too.
    address_bits
        Bits of a bus address that the device uses.
    kinds
        Where a manager owns the device: for each class that a program names, the class that is made
        instead.
    """

    kinds: ClassVar[dict[type, type]] = {}
    _closed: bool
    sends = responds = chunks = False
    reads = 0
    address_bits = SPANS["address"][1]

    def __init__(
        self,
        transport: Transport,
        capabilities: Capabilities,
        sctp: SctpCapabilities | None = None,
        *,
        completions: int,
        coalesce: int,
        timeout: int,
    ) -> None:
        rule = "a power of two from 2 to 32768"
        completions = integer("completions", completions, 2, 1 << 15, rule)
        if completions & (completions - 1):
            raise InvalidRequest(f"completions must be {rule}, not {completions!r}")
        rule = f"from 1 to the {completions} completions"
        coalesce = integer("coalesce", coalesce, 1, completions, rule)
        timeout = integer("timeout", timeout, 0, (1 << 32) - 1, "from 0 to 2**32 - 1 cycles")
        known = _OPEN.get(transport)
        if known is not None and not (known._closed or known.inherited):
            raise StateError(
                "the device is open through this transport: use its context, or close that first"
            )
        self.transport = transport
        self.capabilities = capabilities
        self.sctp = sctp
        self.registers = Registers(transport)
        sends = regs.BY_NAME["CAP_SENDS"].unpack(
            self.registers.read("CAP_SENDS") if transport.carries else 0
        )
        self.sends, self.responds = bool(sends["messages"]), bool(sends["responses"])
        self.reads, self.chunks = sends["reads"], bool(sends["chunks"])
        self.address_bits = self.registers.read("CAP_ADDRESS")
        low, high = SPANS["address"]
        if not low <= self.address_bits <= high:
            raise UnsupportedDevice(_wrong("address", self.address_bits))
        self._begin()
        self.slots = Arena(0, capabilities.pages, "slots of the page table")
        self.buffers = [*range(capabilities.buffers)]  #: a heap: free slots of the buffer table
        self.stags = StagAllocator(capabilities.stags, transport.entropy)
        self.numbers = deque(range(capabilities.streams))  #: free stream numbers, longest first
        self.domains = deque(range(1, 1 << 16))  #: free numbers of protection domains
        self.streams: dict[int, KnownStream] = {}
        self.regions: set[Any] = set()
        self.tags: dict[int, Any] = {}  #: regions by their STag
        self.pds: set[Closing] = set()
        self.cqs: set[Closing] = set()
        self.associations: dict[int, KnownAssociation] = {}
        received = sctp if capabilities.receives else None
        self.free_associations = deque(range(received.associations if received else 0))
        #: The device's table of associations: key and owner by way and slot.
        self.association_slots: dict[tuple[int, int], tuple[AssociationKey, KnownAssociation]] = {}
        self.cookie = 0
        self._packet: int | None = None  # the last number of number_packet()
        self._events: deque[ErrorEvent] = deque(maxlen=1 << 16)
        self._closed = False
        #: Entries of the queue of each stream.
        self.completions = completions
        size = completions.bit_length() - 1
        self._take_over()
        numbers = {0: size}
        if received:
            numbers[self._owner] = max(size, received.owner.bit_length())
        self._moderation: dict[str, Any] = {"coalesce": coalesce, "timeout": timeout}
        self.rings: list[Ring] = []
        for number, size in numbers.items():
            self.rings.append(Ring(self, number, size, **self._moderation))
        self.queues = deque(range(1, capabilities.cqs))  #: free completion queues but 0
        self.registers.start(commands.mask_interrupts())
        # Drops completions of the time before, for which there was no ring.
        self.settle()
        if received and self.registers.read("SESSION_PENDING"):
            # Initiates were on their way while their association was removed.
            self.carry_out(commands.forget_sessions(capabilities.streams), _WORKS)
        _OPEN[transport] = self
        atexit.register(self._at_exit)

    def _take_over(self) -> None:
        """Disables streams and completions, revokes all Steering Tags, and drops events and
        work in flight.
        """
        known = self.capabilities
        sctp = self.sctp if known.receives else None
        self.carry_out(
            commands.clear_tables(
                stags=known.stags,
                streams=known.streams,
                associations=sctp.associations if sctp else 0,
                sends=self.sends,
                responds=self.responds,
            ),
            _WORKS,
        )
        for queue in range(known.cqs + bool(sctp)):
            self.carry_out(commands.disable_cq(queue), _STAYS)
        while self.registers.read("STATUS") & EVENT:
            self.registers.write("EVENT_POP")

    # -- state ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.lock = ProcessLock("the device")
        #: Signalled when something arrives for which a thread may wait.
        self._arrived = threading.Condition(self.lock)
        self._watching = False  # whether a thread waits in the transport

    def check(self) -> None:
        """Raises where the context cannot be used."""
        self.lock.check()
        if self._closed:
            raise StateError("the context is closed")

    def receiving(self, what: str) -> None:
        """Raises unless the device receives; ``what`` names the purpose."""
        if not self.capabilities.receives:
            raise UnsupportedDevice(
                f"the device does not receive, and cannot {what}: build it with"
                " RnicConfig(receive=True)"
            )

    def fence(self, complaint: str) -> None:
        """Waits until no revocation is in progress; raises with ``complaint`` if that takes
        too long.
        """
        finish(self.fencing(complaint))

    def fencing(self, complaint: str) -> Steps[None]:
        """Does the work of :meth:`fence` in steps, one for each look at the device."""
        yield from self.waiting(commands.REVOKED, complaint)

    def waiting(self, wait: Wait, complaint: str) -> Steps[int]:
        """Waits in steps, one for each look at the device; returns the register's value.

        Raises with ``complaint`` if that takes too long.
        """
        deadline = time.monotonic() + PATIENCE
        while (value := self.registers.read(wait.register)) & wait.mask != wait.value:
            if time.monotonic() > deadline:
                raise RnicTimeout(complaint)
            yield
        return value

    def carry_out(self, command: Iterable[Write | Wait], complaint: str) -> int:
        """Carries a command out, with its waits; returns the value that ended the last wait.

        Raises with ``complaint`` if that takes too long.
        """
        value = 0
        for step in command:
            if isinstance(step, Write):
                self.registers.start((step,))
            else:
                value = finish(self.waiting(step, complaint))
        return value

    def settle(self) -> None:
        """Takes the completions of work in flight, as far as other streams let the device
        become idle.
        """
        finish(self.settling())

    def settling(self, ring: Ring | None = None) -> Steps[None]:
        """Does the work of :meth:`settle` in steps, one for each look at the device.

        With ``ring``, completions are taken from it alone, and from that of SCTP's owner.
        """
        rings = None
        if ring is not None:
            rings = [each for each in self.rings if each is ring or each.number == self._owner]
        deadline = time.monotonic() + SETTLE
        while time.monotonic() < deadline:
            if self.look(SERVED, rings):
                return
            yield

    @property
    def _owner(self) -> int:
        """The number of the completion queue of SCTP's owner."""
        return self.capabilities.cqs

    def look(self, most: int, rings: list[Ring] | None = None) -> bool:
        """Takes events, and at most ``most`` completions of each of the rings, by default of all;
        returns whether no work is in flight.
        """
        with self.lock:
            state, before = self.registers.read("STATUS"), self._taken
            self._serve(most, rings)
            return bool(state & QUEUE_ERROR or (state & IDLE and self._taken == before))

    @property
    def _taken(self) -> int:
        return sum(ring.consumed for ring in self.rings)

    def set_stream(self, number: int, *, pd: int, crc: bool, markers: bool, cq: int) -> None:
        """Enables a stream, which must not be receiving.

        The device keeps a stream in error until its event was read. An event of the number's
        former user is taken first, and so never counts as an error of the next one.
        """
        complaint = f"the device does not start stream {number}: reset it"
        deadline = time.monotonic() + PATIENCE
        queue = cq if self.capabilities.receives else None
        while True:
            self.registers.start(
                commands.set_stream(number, pd=pd, crc=crc, markers=markers, cq=queue)
            )
            if not finish(self.waiting(commands.CLEARED, complaint)) & UNCLEARED:
                return
            if time.monotonic() > deadline:
                raise RnicTimeout(complaint)
            self._take_events()

    def allocated(self, octets: int) -> Memory:
        """Allocates memory as :meth:`.Transport.allocate` does, which the device reaches."""
        return self.reached(self.transport.allocate(octets))

    def reached(self, memory: Memory) -> Memory:
        """Returns memory of the host that the device reaches; closes any other memory, and raises.

        The device takes the upper bits of an address to be 0, and would write elsewhere.
        """
        for extent in memory.extents:
            if (extent.address + max(extent.length, 1) - 1) >> self.address_bits:
                memory.close()
                raise UnsupportedDevice(
                    f"the device uses {self.address_bits} bits of a bus address, too few for memory"
                    f" at {extent.address:#x}: let it have lower memory, or build it with a larger"
                    " RnicConfig(address=...)"
                )
        return memory

    def map(self, view: memoryview, slots: Arena) -> Mapping:
        """Pins octets, and writes their pages to free slots of the device's page table."""
        return finish(self.mapping(view, slots))

    def mapping(self, view: memoryview, slots: Arena) -> Steps[Mapping]:
        """Does the work of :meth:`map` in steps."""
        memory = self.reached((yield from self.transport.pinning(view)))
        mapping = None
        try:
            layout = yield from laying_out(memory.extents)
            mapping = Mapping(memory, layout, slots)
            for at, page in enumerate(layout.pages):
                self.registers.start(commands.set_page(mapping.slot + at, page))
                yield
        except BaseException:
            (mapping or memory).close()
            raise
        return mapping

    # -- completions and events -------------------------------------------------------------------

    def open_ring(self) -> Ring:
        """Returns a completion queue of the device that nobody uses; queue 0, which all may share,
        if the device has no other, or the host no memory for one.
        """
        shared = self.rings[0]
        if not self.queues or not self.transport.roomy:
            return shared
        number = self.queues.popleft()
        try:
            size = shared.entries.bit_length() - 1
            self.rings.append(Ring(self, number, size, **self._moderation))
        except ResourceExhausted:
            self.queues.append(number)
            return shared
        return self.rings[-1]

    def close_ring(self, ring: Ring) -> None:
        """Gives back a completion queue from :meth:`open_ring`, whose streams are closed."""
        if ring is not self.rings[0]:
            ring.close()
            self.rings.remove(ring)
            self.queues.append(ring.number)

    def number_packet(self) -> int:
        """Returns the number of an IP packet that leaves in fragments.

        No other packet of the device has that number, and those of the device that is opened next
        begin elsewhere (RFC 8200 section 4.5).
        """
        if self._packet is None:
            self._packet = int.from_bytes(self.transport.entropy(4), "little")
        self._packet += 1
        return self._packet

    def service(self) -> None:
        """Takes the completions and events that are present, and passes each to the object
        it concerns.
        """
        if self._serve() & QUEUE_ERROR:
            raise TransportError(
                "the bus refused the write of a completion, and the device writes no further ones:"
                " close the context, and open the device again"
            )

    def _serve(self, most: int = 1 << 15, rings: list[Ring] | None = None) -> int:
        """Takes events, and at most ``most`` completions of each ring, one ring of them at most;
        returns STATUS.
        """
        with self.lock:
            self.check()
            for ring in self.rings if rings is None else rings:
                for completion in ring.take(most):
                    self.hand_on(completion)
            self._take_sent()
            return self._take_events()

    def _take_sent(self) -> None:
        """Passes the FPDUs that the device has sent to their streams, and the frames to their
        associations.
        """
        if not self.sends:
            return
        for fpdu in self.transport.sent():
            stream = self.streams.get(fpdu.stream)
            if stream is not None and stream.sending is not None:
                stream.sending.leave(fpdu)
        for frame in self.transport.sent_frames() if self.chunks else ():
            for owner in self.associations.values():
                if 0 <= frame.stream - owner.first < owner.count and owner.sender is not None:
                    owner.sender.leave(frame)

    def hand_on(self, completion: Completion) -> None:
        """Passes a completion to the stream or the associations that it concerns."""
        if completion.kind is Kind.MESSAGE:
            if (stream := self.streams.get(completion.stream)) is not None:
                stream.complete(completion)
        elif completion.kind is Kind.SENT:
            stream = self.streams.get(completion.stream)
            if stream is not None and stream.sending is not None:
                self._take_sent()  # the messages' FPDUs have left before
                assert isinstance(completion.status, SentStatus)
                stream.sending.ended(completion.status, completion.tag)
        elif completion.kind in (Kind.CHUNK, Kind.PACKET):
            if (owner := self.associations.get(completion.cookie >> 16)) is not None:
                owner.take(completion)
        else:
            for owner in self.associations.values():
                if 0 <= completion.stream - owner.first < owner.count:
                    owner.take(completion)

    def _take_events(self) -> int:
        """Takes the events that are present; returns STATUS."""
        state = self.registers.read("STATUS")
        while state & EVENT:
            self._take_event()
            state = self.registers.read("STATUS")
        return state

    def _take_event(self) -> None:
        registers = self.registers
        code = registers.read("EVENT_CODE")
        length = registers.read("EVENT_LENGTH")
        words = [registers.read(f"EVENT_HEADER{k}") for k in range(5)]
        octets = b"".join(word.to_bytes(4, "little") for word in words)
        # Two octets of the LLP's length come first.
        tagged = bool(octets[2] & 0x80)
        size = min(ddp.TAGGED_HEADER if tagged else ddp.UNTAGGED_HEADER, length)
        kinds = {int(kind) for kind in ddp.ErrorType}
        if code >> 8 not in kinds:
            raise TransportError(f"EVENT_CODE reads {code:#x}, which is no error: check the link")
        event = ErrorEvent(
            stream=registers.read("EVENT_STREAM"),
            number=ddp.ErrorNumber(ddp.ErrorType(code >> 8), code & 0xFF),
            length=length,
            sequence=registers.read("EVENT_SEQUENCE"),
            header=octets[2 : 2 + size],
        )
        registers.write("EVENT_POP")
        self._events.append(event)
        if (stream := self.streams.get(event.stream)) is not None:
            stream.fail(event)

    def events(self) -> list[ErrorEvent]:
        """Returns the error events since the last call, the oldest first, at most the last
        65536.
        """
        with self.lock:
            self.service()
            events = list(self._events)
            self._events.clear()
        return events

    def wait_for(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Serves the device until ``ready`` returns True, or for ``timeout`` seconds.

        Returns
        -------
        bool
            Whether ``ready`` returned True in time.
        """
        timeout = seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            watching = False
            # An interrupt at any place must reset ``_watching``.
            try:
                with self.lock:
                    self.service()
                    if ready():
                        return True
                    left = SLICE if deadline is None else min(SLICE, deadline - time.monotonic())
                    if left <= 0:
                        return False
                    if self._watching:
                        # Another thread waits in the transport, and takes completions and events.
                        self._arrived.wait(left)
                        continue
                    self._watching = watching = True
                # This does not hold the lock, so that others can post and poll meanwhile.
                self.transport.wait(left)
            finally:
                if watching:
                    self._watching = False
                    with self.lock:
                        self._arrived.notify_all()

    def wake(self) -> None:
        """Makes all waiting threads look again, after something was put where they wait for it.

        The caller has the lock.
        """
        if self._watching:  # otherwise nobody waits
            self._arrived.notify_all()
            self.transport.wake()

    def counters(self) -> dict[str, int]:
        """Returns the device's counters by name; they wrap."""
        with self.lock:
            self.check()
            receives = self.capabilities.receives
            values = {
                name: self.registers.read(name)
                for name in regs.COUNTERS
                if receives or not regs.BY_NAME[name].receive
            }
        if receives:
            high = values.pop("PLACED_OCTETS_HI")
            values["PLACED_OCTETS"] = high << 32 | values.pop("PLACED_OCTETS_LO")
        return values

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes every object made from the context, then releases the device. A second call does
        nothing.

        If the device does not answer, memory that it may still write stays pinned.
        """
        with self.lock:
            if self._closed:
                return
            failure: RnicError | None = None
            made: list[Closing] = [*self.associations.values()]
            for one in [*made, *self.streams.values(), *self.regions, *self.cqs, *self.pds]:
                try:
                    one.close()
                except RnicError as error:
                    failure = error
                    break
            if failure is None:
                self.registers.start(commands.mask_interrupts(event=True, completion=True))
                # An interrupted call has closed the last ones of them.
                while self.rings:
                    self.rings[-1].close()
                    del self.rings[-1]
            atexit.unregister(self._at_exit)
            self._closed = True
            if failure is not None:
                _STRANDED.append(self)
                raise failure

    def _at_exit(self) -> None:
        # If the device or the link is gone already, nothing can be done.
        with suppress(RnicError):
            self.close()


#: The contexts of this process that may be open, by transport.
_OPEN: WeakValueDictionary[Transport, Context] = WeakValueDictionary()
#: Contexts whose device did not answer when they were closed. They are kept because the device may
#: still write their memory.
_STRANDED: list[Context] = []
