"""What an engine does: run the gateware over a list of operations, and tell what came of it.

An engine plays the whole of the RNIC's surroundings: it sends packets, serves the bus writes from
host memory, takes the exception stream, writes registers, and, whenever ``irq`` is high, reads the
error event and takes it off its queue. Engines differ in how they do so, never in what: the same
operations give the same memory, events, exceptions and counters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..hdl.spec import regs
from ..hdl.spec.config import RnicConfig

#: Names of the engines, the default first.
ENGINES = ("compiled", "cocotb")

#: A beat of write data: the cycle it was taken in, and the bus address of its first lane.
WRITE = np.dtype([("cycle", "<u8"), ("address", "<u8")])
#: A write burst: the cycle its address was taken in, that address, and the beats that it announced.
BURST = np.dtype([("cycle", "<u8"), ("address", "<u8"), ("beats", "<u8")])
#: The cycles in which the first and the last beat of a packet were taken, in order of the packets.
TAKEN = np.dtype([("first", "<u8"), ("last", "<u8")])

#: Registers of an error event, in the order in which they are read.
EVENT_REGISTERS = (
    "EVENT_CODE",
    "EVENT_STREAM",
    "EVENT_LENGTH",
    "EVENT_SEQUENCE",
    *(f"EVENT_HEADER{k}" for k in range(5)),
)
#: Counter registers, lower halves before upper ones.
COUNTER_REGISTERS = tuple(
    register.name
    for register in regs.REGISTERS
    if register.address >= regs.address("PLACED_SEGMENTS")
)


class EngineError(Exception):
    """A simulation could not be carried to its end."""


class ToolError(EngineError):
    """A tool that the engine needs is missing or failed."""


class DeviceError(EngineError):
    """The gateware broke a rule of a bus, or stopped making progress."""


@dataclass(frozen=True)
class WriteRegister:
    """Write a register, after everything before it was sent, and wait for the response."""

    address: int
    value: int


@dataclass(frozen=True)
class Packet:
    """Send a packet of whole FPDUs.

    ``sequence`` is the LLP's, of its first octet; ``error`` marks the packet damaged.
    """

    stream: int
    sequence: int
    octets: bytes
    error: bool = False


@dataclass(frozen=True)
class Drain:
    """Wait until nothing is in flight: STATUS.idle. Every run ends with one, given or not."""


Operation = WriteRegister | Packet | Drain


@dataclass(frozen=True)
class Stalls:
    """How the surroundings hold the RNIC up.

    ``source``, ``write``, ``response`` and ``exceptions`` are the probabilities that the side
    idles in a cycle: no beat is offered, no address (and, on its own, no data) is taken, no write
    response given, no exception beat taken. ``response_latency`` is the least number of cycles
    from the last beat of a burst to its response.
    """

    source: float = 0.0
    write: float = 0.0
    response: float = 0.0
    exceptions: float = 0.0
    response_latency: int = 8
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("source", "write", "response", "exceptions"):
            if not 0 <= (value := getattr(self, name)) <= 0.99:
                raise ValueError(f"{name} must be a probability from 0 to 0.99, not {value!r}")
        if not 0 <= self.response_latency <= 10_000:
            raise ValueError(
                f"response_latency must be from 0 to 10000 cycles, not {self.response_latency!r}"
            )


UNSTALLED = Stalls()


@dataclass(frozen=True)
class ErrorEvent:
    """An error event, as the EVENT registers show it.

    ``header`` is 20 octets, the LLP's length first.
    """

    stream: int
    type: int
    code: int
    length: int
    sequence: int
    header: bytes


@dataclass(frozen=True)
class ExceptionPacket:
    """A packet of the exception stream; ``sequence`` is the LLP's, of its first octet."""

    stream: int
    sequence: int
    octets: bytes


def _empty(dtype: np.dtype) -> NDArray:
    return np.zeros(0, dtype)


@dataclass
class Outcome:
    """What a run gave.

    ``counters`` has the counter registers by name; the two halves of a counter are one,
    PLACED_OCTETS. ``writes`` has a row of type :data:`WRITE` for each beat of write data with a
    strobe set, ``bursts`` one of :data:`BURST` for each address, ``taken`` one of :data:`TAKEN` for
    each packet. ``stray`` are the writes of octets outside host memory.
    """

    cycles: int
    events: list[ErrorEvent]
    exceptions: list[ExceptionPacket]
    counters: dict[str, int]
    writes: NDArray = field(default_factory=lambda: _empty(WRITE))
    bursts: NDArray = field(default_factory=lambda: _empty(BURST))
    taken: NDArray = field(default_factory=lambda: _empty(TAKEN))
    stray: list[NDArray] = field(default_factory=list)


class Engine(ABC):
    """Runs the gateware."""

    name: str

    @abstractmethod
    def run(
        self,
        config: RnicConfig,
        operations: Sequence[Operation],
        memory: NDArray[np.uint8],
        *,
        stalls: Stalls = UNSTALLED,
        faults: Sequence[range] = (),
        waves: Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Outcome:
        """Run operations from reset to idle.

        Parameters
        ----------
        config
            What gateware to run.
        operations
            What to do, in order.
        memory
            Host memory, from bus address 0; written in place.
        stalls
            How the surroundings hold the RNIC up.
        faults
            Bus addresses that memory answers with SLVERR: a beat that touches them is not stored.
        waves
            Where to write a VCD of the run.
        progress
            Called now and then with the number of operations done, and of all.

        Raises
        ------
        ToolError
            The gateware cannot be built or run on this machine.
        DeviceError
            The gateware broke a rule of a bus, or stopped making progress.
        """


def checked(operations: Sequence[Operation], memory: NDArray[np.uint8]) -> list[Operation]:
    """The arguments of :meth:`Engine.run`, if they are sound."""
    if memory.dtype != np.uint8 or memory.ndim != 1 or not memory.flags.c_contiguous:
        raise TypeError("memory must be a contiguous array of octets")
    for operation in operations:
        if isinstance(operation, Packet) and not operation.octets:
            raise ValueError("a packet must have at least one octet")
    return list(operations)


def event(words: Sequence[int]) -> ErrorEvent:
    """An error event, from what its registers (:data:`EVENT_REGISTERS`) show."""
    code, stream, length, sequence, *header = words
    fields = {field.name: field for field in regs.BY_NAME["EVENT_CODE"].fields}
    number = {name: code >> each.low & (1 << each.bits) - 1 for name, each in fields.items()}
    return ErrorEvent(
        stream, number["type"], number["code"], length, sequence,
        b"".join(word.to_bytes(4, "little") for word in header),
    )  # fmt: skip


def counters(values: Sequence[int]) -> dict[str, int]:
    """The counters by name, from what :data:`COUNTER_REGISTERS` show; halves become one."""
    counts: dict[str, int] = {}
    for name, value in zip(COUNTER_REGISTERS, values, strict=True):
        whole, _, half = name.rpartition("_")
        if half in ("LO", "HI"):
            counts[whole] = counts.get(whole, 0) | value << (32 if half == "HI" else 0)
        else:
            counts[name] = value
    return counts


def load(name: str) -> Engine:
    """The engine of a name among :data:`ENGINES`."""
    if name == "compiled":
        from .compiled import CompiledEngine

        return CompiledEngine()
    if name == "cocotb":
        from .cocotb_engine import CocotbEngine

        return CocotbEngine()
    raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {name!r}")
