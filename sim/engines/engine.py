"""The interface of an engine, which runs the gateware over a list of operations and returns the
outcome.

An engine simulates all surroundings of the RNIC: it sends packets and frames, serves bus writes
from host memory, takes the exception stream, writes registers, and takes completions off the ring
as they appear in host memory. Whenever ``irq`` is high it reads STATUS: it reads error events and
takes them off their queue, and gives completions back. Engines differ in their means, but never in
their results: equal operations give equal memory, events, completions, exceptions and counters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec import commands, regs
from ...hdl.spec.commands import Wait as WaitFor
from ...hdl.spec.commands import Write
from ...hdl.spec.completion import FIELDS, OCTETS, Completion, Kind, decode
from ...hdl.spec.config import RnicConfig
from .waves import Waves

#: The bits of a completion that belong to no field.
_NO_FIELD = ((1 << 8 * OCTETS) - 1) & ~sum(
    ((1 << field.bits) - 1) << (8 * field.octet + field.bit) for field in FIELDS
)
#: A beat of write data: the cycle in which it was taken, and the bus address of its first lane.
WRITE = np.dtype([("cycle", "<u8"), ("address", "<u8")])
#: A write burst: the cycle in which its address was taken, the address, and the number of its
#: beats.
BURST = np.dtype([("cycle", "<u8"), ("address", "<u8"), ("beats", "<u8")])
#: The cycle of an event.
CYCLE = np.dtype("<u8")
#: The cycles in which the first and the last beat of a packet or frame were taken, in order.
TAKEN = np.dtype([("first", "<u8"), ("last", "<u8")])

#: The phase bit of a completion.
PHASE = next(field for field in FIELDS if field.name == "phase")
#: Registers of an error event, in the order in which they are read.
EVENT_REGISTERS = (
    "EVENT_CODE",
    "EVENT_STREAM",
    "EVENT_LENGTH",
    "EVENT_SEQUENCE",
    *(f"EVENT_HEADER{k}" for k in range(5)),
)


class DeviceError(Exception):
    """The gateware broke a rule of a bus, or stopped making progress."""


@dataclass(frozen=True)
class WriteRegister:
    """Writes a register, after everything before it was sent, and waits for the response.

    ``strobes`` are WSTRB, of adjacent octets; ``response`` is the required response.
    """

    address: int
    value: int
    strobes: int = 15
    response: int = 0


@dataclass(frozen=True)
class Packet:
    """Sends a packet of whole FPDUs.

    ``sequence`` is the LLP sequence number of its first octet; ``error`` marks the packet as
    damaged.
    """

    stream: int
    sequence: int
    octets: bytes
    error: bool = False


@dataclass(frozen=True)
class Frame:
    """Sends an Ethernet frame, without its FCS, to the port that an RNIC with SCTP has.

    ``error`` marks the frame as damaged.
    """

    octets: bytes
    error: bool = False


@dataclass(frozen=True)
class Store:
    """Writes octets to host memory from a bus address on, after everything before was done."""

    address: int
    octets: bytes


@dataclass(frozen=True)
class Drain:
    """Waits until nothing is in flight, STATUS.idle, and every completion is taken and given back.

    Every run ends with a drain, whether it is in the list or not.
    """


@dataclass(frozen=True)
class Await:
    """Waits until ``completions`` completions, of any kind, were taken since the run began."""

    completions: int


@dataclass(frozen=True)
class Pause:
    """Stops taking completions, so that the ring becomes full.

    A :class:`Drain` then waits for no completion. Every run ends with a :class:`Resume`, whether it
    is in the list or not, before its last :class:`Drain`.
    """


@dataclass(frozen=True)
class Resume:
    """Takes completions again."""


@dataclass(frozen=True)
class Poll:
    """Reads a register until its bits in ``mask`` have this value, as for STATUS.revoking.

    ``response`` is the required response.
    """

    address: int
    mask: int
    value: int = 0
    response: int = 0


@dataclass(frozen=True)
class Wait:
    """Lets ``cycles`` cycles pass."""

    cycles: int


@dataclass(frozen=True)
class Meanwhile:
    """Writes and polls registers after ``cycles`` cycles, while the following operations are
    carried out.

    Only one is active at a time: the next one, a :class:`Drain` and the end of the run wait until
    it is done.
    """

    cycles: int
    operations: tuple[WriteRegister | Poll, ...]


Operation = (
    WriteRegister
    | Packet
    | Frame
    | Store
    | Drain
    | Await
    | Pause
    | Resume
    | Poll
    | Wait
    | Meanwhile
)


def operations_of(command: Iterable[Write | WaitFor]) -> list[WriteRegister | Poll]:
    """Returns the operations that carry a command out."""
    return [
        WriteRegister(step.address, step.value)
        if isinstance(step, Write)
        else Poll(step.address, step.mask, step.value)
        for step in command
    ]


def until(**fields: int) -> Poll:
    """Returns an operation that reads STATUS until these fields have these values."""
    return Poll(
        regs.address("STATUS"),
        regs.pack("STATUS", **dict.fromkeys(fields, 1)),
        regs.pack("STATUS", **fields),
    )


@dataclass(frozen=True)
class Ring:
    """The ring of completion queue 0: 2 to the power of ``size`` entries from a bus address on.

    The rings of other queues follow, of the same size: that of SCTP's ``owner``, if it is not 0,
    for all that is no message, and those of the queues to which streams are ``bound``, for the
    messages that these streams receive and send. ``bound`` has a queue's number for each such
    stream.

    The operations program the queues once in a run, as :meth:`program` does. Only the engine
    writes CQ_DOORBELL: when a quarter of a ring was taken, at every :class:`Drain`, and when an
    interrupt says that completions wait.
    """

    address: int
    size: int
    owner: int = 0
    bound: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.address < 0 or self.address % OCTETS:
            raise ValueError(
                f"a ring's address must be a multiple of {OCTETS}, not {self.address:#x}"
            )
        if not 1 <= self.size <= 15:
            raise ValueError(f"a ring's size must be from 1 to 15, not {self.size!r}")

    @property
    def entries(self) -> int:
        """The number of completions that one ring holds."""
        return 1 << self.size

    @property
    def queues(self) -> tuple[int, ...]:
        """The numbers of the queues, in the order of their rings."""
        return tuple(sorted({0, self.owner, *self.bound.values()}))

    def numbers(
        self, entries: Iterable[Completion], counts: Counter[int] | None = None
    ) -> Iterator[int]:
        """Yields for each completion how many preceded it in its ring.

        ``counts`` has those of earlier calls, by queue, and is kept up to date.
        """
        counts = Counter() if counts is None else counts
        for each in entries:
            message = each.kind in (Kind.MESSAGE, Kind.SENT)
            queue = self.bound.get(each.stream, 0) if message else self.owner
            yield counts[queue]
            counts[queue] += 1

    @property
    def octets(self) -> range:
        """The bus addresses of the rings."""
        return range(self.address, self.address + len(self.queues) * self.entries * OCTETS)

    def command(
        self, *, interrupts: bool = False, coalesce: int = 1, timeout: int = 0
    ) -> tuple[Write | WaitFor, ...]:
        """Returns the command that enables the queues; ``interrupts``: completions raise the
        interrupt.
        """
        steps: list[Write | WaitFor] = [*commands.mask_interrupts(completion=not interrupts)]
        for at, queue in reversed([*enumerate(self.queues)]):
            address = self.address + at * self.entries * OCTETS
            # The queue was never used, so it is ready before a packet can complete.
            steps += commands.set_cq(
                address, self.size, queue=queue, coalesce=coalesce, timeout=timeout
            )[:-1]
            steps += commands.take(0, queue=queue, arm=True)
        return (*steps,)

    def program(
        self, *, interrupts: bool = False, coalesce: int = 1, timeout: int = 0
    ) -> list[Operation]:
        """Returns the operations that carry :meth:`command` out."""
        return [
            *operations_of(self.command(interrupts=interrupts, coalesce=coalesce, timeout=timeout))
        ]


@dataclass(frozen=True)
class Stalls:
    """The ways in which the surroundings delay the RNIC.

    ``source``, ``write``, ``response``, ``exceptions``, ``completions`` and ``registers`` are the
    probabilities that a side idles in a cycle:

    * source: no beat of a packet or frame is offered;
    * write: no address is taken and, drawn separately, no data;
    * response: no write response is given and, drawn separately, no beat of a read. Above 0, beats
      of different reads come in any order;
    * exceptions: no exception beat is taken and, drawn separately, no beat of an FPDU;
    * completions: no completion is looked for;
    * registers: no address or data is shown and no response taken, each drawn separately.

    Both write ports are delayed with the same probabilities, but independently. ``stretch`` is the
    largest number of cycles for which a channel stays as it was drawn. ``response_latency`` is the
    least number of cycles from the last beat of a burst to its response, or from the address of a
    read to its first beat.
    """

    source: float = 0.0
    write: float = 0.0
    response: float = 0.0
    exceptions: float = 0.0
    completions: float = 0.0
    registers: float = 0.0
    stretch: int = 1
    response_latency: int = 8
    seed: int = 1

    #: The names of the probabilities.
    SIDES: ClassVar = (
        "source", "write", "response", "exceptions", "completions", "registers",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in self.SIDES:
            if not 0 <= (value := getattr(self, name)) <= 0.99:
                raise ValueError(f"{name} must be a probability from 0 to 0.99, not {value!r}")
        if not 1 <= self.stretch <= 1000:
            raise ValueError(f"stretch must be from 1 to 1000 cycles, not {self.stretch!r}")
        if not 0 <= self.response_latency <= 10_000:
            raise ValueError(
                f"response_latency must be from 0 to 10000 cycles, not {self.response_latency!r}"
            )


UNSTALLED = Stalls()


@dataclass(frozen=True)
class ErrorEvent:
    """An error event, as the EVENT registers show it.

    ``header`` has 20 octets, the LLP's length first.
    """

    stream: int
    type: int
    code: int
    length: int
    sequence: int
    header: bytes


@dataclass(frozen=True)
class Fpdu:
    """An FPDU that a device sent, or a frame of SCTP: its stream, the LLP sequence number of its
    first octet or the TSN, and the cycles in which its first and its last beat left. ``record`` is
    a number with the fields of :data:`~....hdl.spec.send.RECORD`.
    """

    stream: int
    sequence: int
    octets: bytes
    first: int
    last: int
    record: int = 0


@dataclass(frozen=True)
class ExceptionPacket:
    """A packet of the exception stream; ``sequence`` is the LLP sequence number of its first octet.

    ``reason`` is the number of the error that the packet raised: the Error Type in the upper 4
    bits, the Error Code in the lower 8.
    """

    stream: int
    sequence: int
    octets: bytes
    reason: int


def _empty(dtype: np.dtype) -> NDArray:
    return np.zeros(0, dtype)


@dataclass
class Outcome:
    """The results of a run.

    ``counters`` has the counter registers by name; the two halves of a counter are one,
    PLACED_OCTETS. ``completions`` are in the order of the ring, whatever their kind; for each of
    them ``delivered`` has the cycle in which its last beat was taken.

    For the port that writes payload, ``writes`` has a row of type :data:`WRITE` for each beat of
    write data with a strobe set, ``bursts`` one of :data:`BURST` for each address, ``responses``
    the cycle of each response, in the order of the bursts, and ``stray`` the writes of octets
    outside host memory.

    ``taken`` has a row of type :data:`TAKEN` for each packet and frame, ``interrupts`` the cycles
    in which ``irq`` rose, ``polled`` the cycle in which each :class:`Poll` succeeded. ``fpdus``
    and ``frames`` have the FPDUs and the frames that a device sent, in order, and ``reads`` a row
    of :data:`BURST` for each read.
    """

    cycles: int
    events: list[ErrorEvent]
    exceptions: list[ExceptionPacket]
    counters: dict[str, int]
    completions: list[Completion] = field(default_factory=list)
    delivered: NDArray = field(default_factory=lambda: _empty(CYCLE))
    writes: NDArray = field(default_factory=lambda: _empty(WRITE))
    bursts: NDArray = field(default_factory=lambda: _empty(BURST))
    responses: NDArray = field(default_factory=lambda: _empty(CYCLE))
    taken: NDArray = field(default_factory=lambda: _empty(TAKEN))
    stray: list[NDArray] = field(default_factory=list)
    interrupts: NDArray = field(default_factory=lambda: _empty(CYCLE))
    polled: NDArray = field(default_factory=lambda: _empty(CYCLE))
    fpdus: list[Fpdu] = field(default_factory=list)
    frames: list[Fpdu] = field(default_factory=list)
    reads: NDArray = field(default_factory=lambda: _empty(BURST))


class Engine(ABC):
    """Runs the gateware."""

    name: str

    @abstractmethod
    def run(
        self,
        config: RnicConfig,
        operations: Iterable[Operation],
        memory: NDArray[np.uint8],
        *,
        ring: Ring | None = None,
        stalls: Stalls = UNSTALLED,
        faults: Sequence[range] = (),
        base: int = 0,
        waves: Waves | None = None,
        progress: Callable[[int, int], None] | None = None,
        part: Callable[[Outcome], bool] | None = None,
    ) -> Outcome:
        """Runs operations from reset to idle.

        Parameters
        ----------
        config
            The configuration of the gateware.
        operations
            The operations, in order. An engine takes them from an iterator as it comes to them,
            if it can.
        memory
            Host memory; written in place.
        ring
            The ring that the operations program. It is cleared first.
        stalls
            The delays that the surroundings cause.
        faults
            Bus addresses that memory answers with SLVERR: a beat that touches them is not stored.
        base
            The bus address of memory's first octet.
        waves
            The waveform of the run to be written.
        progress
            Called now and then with the number of operations done, and the number of those that
            are known.
        part
            Called now and then with the outcome so far. If it returns True, the completions, the
            packets of the exception stream, and the cycles of bus and streams, are dropped: a later
            outcome has only those since. An engine that keeps everything does not call it.

        Raises
        ------
        ToolError
            The gateware cannot be built or run on this machine.
        DeviceError
            The gateware broke a rule of a bus, or stopped making progress.
        """


def checked(
    config: RnicConfig,
    operations: Iterable[Operation],
    memory: NDArray[np.uint8],
    ring: Ring | None,
    base: int = 0,
) -> Iterator[Operation]:
    """Checks the arguments of :meth:`Engine.run`, clears the ring, and returns the operations, each
    of which is checked as it comes.
    """
    clear(memory, ring, base)
    return _checked(config, operations, len(memory), ring, base)


def _checked(
    config: RnicConfig, operations: Iterable[Operation], size: int, ring: Ring | None, base: int
) -> Iterator[Operation]:
    for operation in operations:
        if isinstance(operation, Frame) and not config.owned:
            raise ValueError("a frame needs a configuration with sctp and receive")
        if isinstance(operation, Packet) and not (config.receive and config.mpa):
            raise ValueError("a packet needs a configuration with mpa and receive")
        if isinstance(operation, Store):
            at = operation.address - base
            if not 0 <= at <= size - len(operation.octets):
                raise ValueError(
                    f"{len(operation.octets)} octets from {operation.address:#x} on are not in"
                    f" memory, from {base:#x} to {base + size:#x}"
                )
        if isinstance(operation, Packet | Frame) and not operation.octets:
            kind = "frame" if isinstance(operation, Frame) else "packet"
            raise ValueError(f"a {kind} must have at least one octet")
        if isinstance(operation, Await) and ring is None:
            raise ValueError("waiting for completions needs a ring")
        yield operation


def clear(memory: NDArray[np.uint8], ring: Ring | None, base: int = 0) -> None:
    """Checks memory, an array of octets from bus address ``base`` on, and clears the ring in it."""
    if memory.dtype != np.uint8 or memory.ndim != 1 or not memory.flags.c_contiguous:
        raise TypeError("memory must be a contiguous array of octets")
    if ring is not None:
        start, stop = ring.octets.start - base, ring.octets.stop - base
        if start < 0 or stop > len(memory):
            raise ValueError(
                f"the ring must lie in memory, from {base:#x} to {base + len(memory):#x},"
                f" not from {ring.octets.start:#x} to {ring.octets.stop:#x}"
            )
        memory[start:stop] = 0


def event(words: Sequence[int]) -> ErrorEvent:
    """Returns the error event that its registers (:data:`EVENT_REGISTERS`) show."""
    code, stream, length, sequence, *header = words
    number = regs.unpack("EVENT_CODE", code)
    return ErrorEvent(
        stream, number["type"], number["code"], length, sequence,
        b"".join(word.to_bytes(4, "little") for word in header),
    )  # fmt: skip


def completion(octets: bytes) -> Completion:
    """Returns the completion of an entry of the ring. Bits that belong to no field must be 0."""
    what = f"the completion {octets.hex(' ')} is not valid"
    if int.from_bytes(octets, "little") & _NO_FIELD:
        raise DeviceError(f"{what}: a bit that belongs to no field is 1")
    try:
        return decode(octets)
    except ValueError as error:
        raise DeviceError(f"{what}: {error}") from error


def counter_registers(
    *, sctp: bool, transmit: bool = False, receive: bool = True
) -> tuple[str, ...]:
    """Returns the names of the counter registers, in the order in which they are read."""
    names = (
        *regs.COUNTERS,
        *(regs.SCTP_COUNTERS if sctp else ()),
        *(regs.SEND_COUNTERS if transmit else ()),
    )
    return tuple(name for name in names if receive or not regs.BY_NAME[name].receive)


def no_counts(*, sctp: bool) -> dict[str, int]:
    """Returns the counters by name, all 0."""
    return counters(dict.fromkeys(counter_registers(sctp=sctp), 0))


def counters(values: Mapping[str, int]) -> dict[str, int]:
    """Returns the counters by name, from the values of their registers; two halves become one."""
    counts: dict[str, int] = {}
    for name, value in values.items():
        whole, _, half = name.rpartition("_")
        if half in ("LO", "HI"):
            counts[whole] = counts.get(whole, 0) | value << (32 if half == "HI" else 0)
        else:
            counts[name] = value
    return counts
