"""Keeps what a host has set in a device's tables, and lists the operations that set it.

This is the one planner of registrations and posts. The replay, the soak and the tests' scenarios
derive from it, and add the outcome that they expect.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...hdl.spec import commands, regs
from ...hdl.spec.commands import Wait, Write
from ...hdl.spec.config import RnicConfig
from ...hdl.spec.stag import Access
from ..engines.engine import Drain, Operation, operations_of
from .expectation import Pages


class Tables:
    """Lists the operations that carry out a host's commands.

    A write of a value that a register has already is left out. Pages and buffers get slots of their
    tables.

    Parameters
    ----------
    config
        The configuration of the device.
    base
        The bus address of memory's first octet; all addresses count from there.
    """

    def __init__(self, config: RnicConfig, base: int = 0) -> None:
        self.operations: list[Operation] = []
        self._config = config
        self._base = base
        self._written: dict[str, int] = {}  # the values of registers
        self._open: set[tuple[int, int]] = set()  # queues, by stream and Queue Number
        self._queues: dict[tuple[int, int], int] = {}  # first slot of each queue's buffers
        self._slot = 0  # the next free slot of the page table
        self._busy = False  # whether a packet was sent since the device was last idle

    def carry_out(self, command: Iterable[Write | Wait]) -> None:
        """Carries a command out: all its waits, and the writes that have an effect."""
        for step in command:
            if isinstance(step, Wait):
                self.wait_for(step)
            elif (
                regs.BY_NAME[step.register].access == "wo"
                or self._written.get(step.register) != step.value
            ):
                self.operations += operations_of([step])
                self._written[step.register] = step.value

    def wait_for(self, wait: Wait) -> None:
        """Waits for a register's value."""
        self.operations += operations_of([wait])

    def idle(self) -> None:
        """Waits until nothing is in flight, so that it is known which segments meet a change."""
        if self._busy:
            self.operations.append(Drain())
            self._busy = False

    def set_stream(
        self, number: int, *, pd: int, crc: bool = False, markers: bool = False, cq: int = 0
    ) -> None:
        """Enables a stream, or enables it anew; its queues are closed."""
        self.carry_out(commands.set_stream(number, pd=pd, crc=crc, markers=markers, cq=cq))
        for stream, qn in sorted(self._open):
            if stream == number:
                self.carry_out(commands.close_queue(stream, qn))
                self._open.remove((stream, qn))

    def open_queue(self, stream: int, qn: int, first: int = 1) -> None:
        """Opens a queue; ``first`` is its first buffer's MSN."""
        self._open.add((stream, qn))
        self.carry_out(commands.open_queue(stream, qn, first))

    def post_buffer(
        self,
        stream: int,
        qn: int,
        msn: int,
        *,
        address: int,
        length: int,
        cookie: int,
        pages: Pages | None = None,
    ) -> None:
        """Posts a buffer, at an address or in pages."""
        linear, code = self.linear(address, pages)
        self.carry_out(
            commands.post(
                stream, qn, msn, address=linear, length=length, pages=code, cookie=cookie,
                slot=self.buffer_slot(stream, qn, msn),
            )
        )  # fmt: skip

    def set_stag(
        self,
        stag: int,
        access: Access,
        *,
        to: int,
        length: int,
        address: int,
        pages: Pages | None = None,
        pd: int | None = None,
        stream: int | None = None,
    ) -> None:
        """Registers a region, at an address or in pages, for a domain or bound to a stream."""
        linear, code = self.linear(address, pages)
        self.carry_out(
            commands.set_stag(
                stag, access, to=to, length=length, address=linear, pages=code, pd=pd, stream=stream
            )
        )

    def linear(self, address: int, pages: Pages | None) -> tuple[int, int]:
        """Returns address and page code of memory; writes its pages, if any, to the page table."""
        if pages is None:
            return (self._base + address) % (1 << 64), 0
        linear = (self._slot << pages.shift) + pages.offset
        for each in pages.addresses:
            self.carry_out(commands.set_page(self._slot, self._base + each))
            self._slot = (self._slot + 1) % self._config.pages
        return linear, pages.shift - 11

    def buffer_slot(self, stream: int, qn: int, msn: int) -> int:
        """Returns the slot of the buffer table: each queue has as many slots as it holds
        buffers.
        """
        first = self._queues.setdefault((stream, qn), len(self._queues) * self._config.queue_depth)
        return first + msn % self._config.queue_depth
