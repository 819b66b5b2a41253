"""Runs a plan on a device through the driver, as an engine does in simulation.

The driver opens the device, pins its memory, and takes completions and events; the plan's
operations write the tables. So any transport gives an :class:`~..engines.engine.Outcome` that can
be compared with the golden model.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec import commands, regs
from ...hdl.spec.completion import Completion
from ...sw_driver import Context, Device, RnicError, Transport
from ...sw_driver import ErrorEvent as DriverEvent
from ..engines.engine import (
    Await,
    DeviceError,
    Drain,
    ErrorEvent,
    ExceptionPacket,
    Frame,
    Operation,
    Outcome,
    Packet,
    Poll,
    WriteRegister,
    counter_registers,
    counters,
)
from ..replay.plan import Plan

__all__ = ["Link", "run_plan"]

#: After this many seconds without progress the player gives up.
_PATIENCE = 10.0
_IDLE = regs.pack("STATUS", idle=1)
_NAMES = {register.address: register.name for register in regs.REGISTERS}
_WORD = (1 << 32) - 1


class Link(ABC):
    """A device that a plan is run on.

    Attributes
    ----------
    transport
        The driver's transport to the device.
    """

    transport: Transport

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Close it."""

    @abstractmethod
    def send(self, operation: Packet | Frame) -> None:
        """Sends a packet or frame after those in flight."""

    @property
    def sending(self) -> int:
        """The number of packets and frames that have not arrived yet."""
        return 0

    def wait(self) -> None:
        """Lets the device work for a moment."""
        self.transport.wait(0)

    def serve(self) -> int:
        """Takes waiting packets of the exception stream; returns how many came so far."""
        return 0

    @abstractmethod
    def exceptions(self) -> list[ExceptionPacket]:
        """Returns the packets of the exception stream; the device is idle."""

    def cycles(self) -> tuple[int, dict[str, Any]]:
        """Returns the cycle, and the cycles of all activity by the names of an outcome,
        where known.
        """
        return 0, {}


class _Listener(Context):
    """The driver's context, which keeps all completions unchanged."""

    def __init__(self, transport: Transport, completions: int) -> None:
        self.taken: list[Completion] = []
        device = Device(transport)
        super().__init__(
            transport, device.query(), device.query_sctp(),
            completions=completions, coalesce=1, timeout=0,
        )  # fmt: skip

    def hand_on(self, completion: Completion) -> None:
        self.taken.append(completion)


def run_plan(
    plan: Plan, link: Link, progress: Callable[[int, int], None] | None = None
) -> tuple[Outcome, NDArray[np.uint8]]:
    """Runs a plan; returns the outcome, and host memory.

    Raises
    ------
    RnicError
        The device, its link, or the driver failed.
    DeviceError
        The device stopped making progress.
    """
    context = _Listener(link.transport, plan.completions)
    try:
        player = _Player(plan, link, context)
        for number, operation in enumerate(plan.operations, 1):
            player.do(operation)
            if progress is not None:
                progress(number, len(plan.operations))
        player.drain()
        result = player.outcome(), player.image()
        player.close()
    except BaseException:
        # A player that has failed may not be closable.
        with suppress(RnicError):
            context.close()
        raise
    context.close()
    return result


class _Player:
    """Carries out a plan's operations one by one."""

    def __init__(self, plan: Plan, link: Link, context: _Listener) -> None:
        self._plan, self._link, self._context = plan, link, context
        self._events: list[DriverEvent] = []
        # Memory and its guards, in one piece.
        octets = plan.memory[: plan.ring.address].tobytes()
        self._memory = context.transport.allocate(len(octets))
        self._memory.view[:] = octets
        self._memory.push(0, len(octets))
        (extent,) = self._memory.extents
        self._base = extent.address
        self._addresses: dict[str, int] = {}  # addresses that the plan has written, by register
        self._before = self._counters()

    def close(self) -> None:
        """Stops all writes of the device, and frees memory."""
        context = self._context
        for number in range(context.capabilities.streams):
            context.carry_out(
                commands.revoke_stream(number), "the device does not stop its streams: reset it"
            )
        self._memory.close()

    def do(self, operation: Operation) -> None:
        """Do one."""
        match operation:
            case WriteRegister(address=address, value=value):
                self._write(_NAMES[address], value)
            case Packet() | Frame():
                self._link.send(operation)
            case Drain():
                self.drain()
            case Await(completions=count):
                self._until(
                    lambda: len(self._context.taken) >= count, f"{count} completions did not come"
                )
            case Poll(address=address, mask=mask, value=value):
                read = self._context.transport.read
                self._until(
                    lambda: read(address) & mask == value,
                    f"register {_NAMES[address]} did not become {value:#x} under {mask:#x}",
                )
            case _:
                raise TypeError(f"a plan must have no {operation!r}")

    def drain(self) -> None:
        """Waits until nothing is in flight, and everything that waits for the host is taken."""
        self._until(self._idle, "the device is never idle")

    def _idle(self) -> bool:
        before = self._progress()
        idle = not self._link.sending and self._context.registers.read("STATUS") & _IDLE
        return bool(idle) and self._serve() == before

    def _until(self, ready: Callable[[], bool], complaint: str) -> None:
        """Serves the device until ``ready`` returns True."""
        deadline, known = time.monotonic() + _PATIENCE, self._progress()
        while not ready():
            self._link.wait()
            if (now := self._serve()) != known:
                deadline, known = time.monotonic() + _PATIENCE, now
            elif time.monotonic() > deadline:
                raise DeviceError(complaint)

    def _serve(self) -> tuple[int, ...]:
        """Takes completions, events and packets."""
        self._events += self._context.events()
        return self._progress()

    def _progress(self) -> tuple[int, ...]:
        """Returns values that change as long as the device works."""
        link = self._link
        return len(self._context.taken), len(self._events), link.serve(), link.sending

    def _write(self, name: str, value: int) -> None:
        """Writes a register; the plan's addresses are translated, and the driver has the ring."""
        window, _, field = name.partition("_")
        if window in ("CQ", "IRQ"):
            return
        registers = self._context.registers
        if not field.startswith("ADDR_"):
            registers.write(name, value)
            return
        self._addresses[name] = value
        low, high = (self._addresses.get(f"{window}_ADDR_{half}", 0) for half in ("LO", "HI"))
        there = (high << 32 | low) + self._base
        registers.write(f"{window}_ADDR_LO", there & 0xFFFFFFFF)
        registers.write(f"{window}_ADDR_HI", there >> 32)

    # -- the outcome ------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """Returns the outcome, without memory."""
        cycle, times = self._link.cycles()
        if "writes" in times:
            writes = times["writes"]
            inside = writes["address"] - self._base < len(self._memory.view)
            times["writes"] = writes = writes[inside]
            writes["address"] -= self._base
        counts = {
            # A counter with two registers has 64 bits.
            name: value - self._before[name] & (_WORD if name in regs.BY_NAME else (1 << 64) - 1)
            for name, value in self._counters().items()
        }
        return Outcome(
            cycle,
            [_as_shown(each) for each in self._events],
            self._link.exceptions(),
            counts,
            self._context.taken,
            **times,
        )

    def image(self) -> NDArray[np.uint8]:
        """Returns memory as the device has left it, at the plan's addresses."""
        self._memory.pull(0, len(self._memory.view))
        image = self._plan.memory.copy()
        image[: len(self._memory.view)] = np.frombuffer(bytes(self._memory.view), np.uint8)
        return image

    def _counters(self) -> dict[str, int]:
        read = self._context.registers.read
        names = counter_registers(sctp=self._context.sctp is not None)
        return counters({name: read(name) for name in names})


def _as_shown(event: DriverEvent) -> ErrorEvent:
    """Returns the driver's event as the registers show it, with the LLP's length before the
    header.
    """
    number, header = event.number, event.length.to_bytes(2, "big") + event.header
    return ErrorEvent(event.stream, number.type, number.code, event.length, event.sequence, header)
