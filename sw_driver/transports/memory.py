"""Host memory that the device can write: its addresses on the bus, and the host's view of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from ..base.errors import InvalidRequest, ResourceExhausted

Result = TypeVar("Result")
#: Work in steps of well below a millisecond each, so that a manager can serve others between them.
#: A generator that is closed before its end frees everything that it has taken.
Steps = Generator[None, None, Result]
#: How many octets one step copies, and how many extents or pages one step goes through.
COPIED, LISTED = 1 << 12, 256


def finish(steps: Steps[Result]) -> Result:
    """Runs all the steps, and returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class Extent(NamedTuple):
    """A range of the bus: ``length`` octets from ``address`` on."""

    address: int
    length: int


class Memory(ABC):
    """Octets of the host that the device can write until :meth:`close`.

    Attributes
    ----------
    view
        The host's octets.
    extents
        Their ranges on the bus, in order.
    """

    view: memoryview
    extents: tuple[Extent, ...]

    @abstractmethod
    def pull(self, offset: int, length: int) -> None:
        """Makes ``view`` show the octets that the device has written in this range."""

    def pull_written(self) -> None:
        """Makes ``view`` show all octets that the device has written, and keeps those the
        host wrote.
        """
        self.pull(0, len(self.view))

    @abstractmethod
    def push(self, offset: int, length: int) -> None:
        """Makes the device see the octets that the host has written to ``view`` in this range."""

    def pulling(self, offset: int, length: int) -> Steps[None]:
        """Does the work of :meth:`pull` in steps."""
        for at in range(offset, offset + length, COPIED):
            self.pull(at, min(COPIED, offset + length - at))
            yield

    def pushing(self, offset: int, length: int) -> Steps[None]:
        """Does the work of :meth:`push` in steps."""
        for at in range(offset, offset + length, COPIED):
            self.push(at, min(COPIED, offset + length - at))
            yield

    def closing(self) -> Steps[None]:
        """Does the slow part of :meth:`close` in steps. The caller still calls close after it."""
        yield from ()

    @abstractmethod
    def close(self) -> None:
        """Gives everything back. The caller ensures that the device writes there no more."""


class Shared(Memory):
    """Memory in which host and device see each other's writes immediately."""

    def pull(self, offset: int, length: int) -> None:
        pass

    def push(self, offset: int, length: int) -> None:
        pass

    def pulling(self, offset: int, length: int) -> Steps[None]:
        yield from ()

    def pushing(self, offset: int, length: int) -> Steps[None]:
        yield from ()


class Arena:
    """Allocates ranges of addresses, first fit.

    Parameters
    ----------
    start, length
        The whole range.
    name
        What the numbers count, for messages.
    """

    def __init__(self, start: int, length: int, name: str) -> None:
        self.name = name
        self._length = length
        self._free = [Extent(start, length)]  # in order, no two touching
        self._used: dict[int, int] = {}

    def allocate(self, length: int, alignment: int = 1) -> int:
        """Allocates a range of ``length`` numbers and returns its start, a multiple of
        ``alignment``.
        """
        for at, (start, room) in enumerate(self._free):
            skipped = -start % alignment
            if skipped + length <= room:
                rest = (
                    Extent(start, skipped),
                    Extent(start + skipped + length, room - skipped - length),
                )
                self._free[at : at + 1] = [each for each in rest if each.length]
                self._used[start + skipped] = length
                return start + skipped
        left = sum(each.length for each in self._free)
        raise ResourceExhausted(
            f"{length} consecutive {self.name} are not free ({left} of {self._length} are):"
            " close objects that are no longer needed"
        )

    def free(self, start: int) -> None:
        """Frees a range."""
        length = self._used.pop(start)
        at = bisect_left(self._free, Extent(start, 0))
        if at < len(self._free) and self._free[at].address == start + length:
            length += self._free.pop(at).length
        if at and sum(self._free[at - 1]) == start:
            before = self._free.pop(at - 1)
            start, length = before.address, before.length + length
        insort(self._free, Extent(start, length))


class Copy:
    """Compares the host's octets with the copy that a device writes, to find what the device wrote.

    Parameters
    ----------
    view
        The host's octets. The caller passes all of them to :meth:`note` first.
    """

    _BLOCK = 4096
    #: How many octets are allocated and freed at a time: for 64 MiB in one piece the kernel takes
    #: 40 ms.
    _PART = 1 << 18

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._known: list[bytearray] = []  # the copy's octets when last read, in parts

    def note(self, offset: int, octets: bytes) -> None:
        """Records octets of the copy that the host has, too."""
        done = 0
        while done < len(octets):
            at, start = divmod(offset + done, self._PART)
            while at >= len(self._known):
                left = len(self._view) - len(self._known) * self._PART
                self._known.append(bytearray(min(left, self._PART)))
            count = min(len(octets) - done, self._PART - start)
            self._known[at][start : start + count] = octets[done : done + count]
            done += count

    def forgetting(self) -> Steps[None]:
        """Frees the record of the copy, in steps."""
        while self._known:
            self._known.pop()
            yield

    def set(self, offset: int, octets: bytes) -> None:
        """Copies these octets of the copy to the host, all of them."""
        self._view[offset : offset + len(octets)] = octets
        self.note(offset, octets)

    def merge(self, octets: bytes) -> None:
        """Copies to the host only those of the copy's octets that have changed.

        The host may have written to its octets where the device has not.
        """
        for start in range(0, len(octets), self._BLOCK):
            part = slice(start, start + self._BLOCK)
            now, known = octets[part], self._block(start)
            if now == known:
                continue
            if self._view[part] != known:
                host = self._view[part]
                now = bytes(
                    new if new != old else own
                    for new, old, own in zip(now, known, host, strict=True)
                )
            self._view[part] = now
        self.note(0, octets)

    def _block(self, start: int) -> bytearray:
        at, offset = divmod(start, self._PART)
        return self._known[at][offset : offset + self._BLOCK]


class Bounce(Memory):
    """Octets of the host whose copy, in memory of the device, is what the device writes.

    :meth:`pull` copies to the host, :meth:`push` to the device. :meth:`making` also copies all
    octets to the device once. :meth:`pull_written` copies only what the device has written, so that
    octets that the host has meanwhile written elsewhere stay as they are.

    Parameters
    ----------
    view
        The host's octets.
    arena
        The device's memory.
    read, write
        Functions that copy octets out of the device's memory and into it.
    """

    def __init__(
        self,
        view: memoryview,
        arena: Arena,
        read: Callable[[int, int], bytes],
        write: Callable[[int, bytes], None],
    ) -> None:
        self.view = view
        self._arena, self._read, self._write = arena, read, write
        self._address = arena.allocate(max(len(view), 1), 64)
        self.extents = (Extent(self._address, len(view)),)
        self._copy = Copy(view)

    @classmethod
    def making(
        cls,
        view: memoryview,
        arena: Arena,
        read: Callable[[int, int], bytes],
        write: Callable[[int, bytes], None],
    ) -> Steps[Bounce]:
        """Makes such memory and copies the host's octets into it, in steps."""
        made = cls(view, arena, read, write)
        try:
            yield from made.pushing(0, len(view))
        except BaseException:
            made.close()
            raise
        return made

    def pull(self, offset: int, length: int) -> None:
        self._copy.set(offset, self._read(self._address + offset, length))

    def pull_written(self) -> None:
        self._copy.merge(self._read(self._address, len(self.view)))

    def push(self, offset: int, length: int) -> None:
        octets = bytes(self.view[offset : offset + length])
        self._write(self._address + offset, octets)
        self._copy.note(offset, octets)

    def closing(self) -> Steps[None]:
        return self._copy.forgetting()

    def close(self) -> None:
        self._arena.free(self._address)
        self.view.release()


#: The sizes of the largest and of the smallest page of the device's page table, as powers of two.
LARGEST_SHIFT, SMALLEST_SHIFT = 21, 12


class Layout(NamedTuple):
    """The description of memory that the device gets.

    Without ``pages`` the memory is contiguous, from bus address ``offset`` on. Otherwise it begins
    ``offset`` octets into the first of these pages, whose size is 2**shift octets.
    """

    shift: int
    offset: int
    pages: tuple[int, ...]

    @property
    def code(self) -> int:
        """The value of STAG_PAGES and BUFFER_PAGES for this layout."""
        return self.shift - 11 if self.pages else 0

    def address(self, slot: int) -> int:
        """Returns the value of STAG_ADDR when the first page is in this slot of the page table."""
        return (slot << self.shift) + self.offset if self.pages else self.offset


def lay_out(extents: Sequence[Extent]) -> Layout:
    """Returns the layout of memory that has the fewest pages."""
    return finish(laying_out(extents))


def laying_out(extents: Sequence[Extent]) -> Steps[Layout]:
    """Does the work of :func:`lay_out` in steps."""
    merged: list[Extent] = []
    for at, each in enumerate(extents, 1):
        if merged and sum(merged[-1]) == each.address:
            merged[-1] = Extent(merged[-1].address, merged[-1].length + each.length)
        else:
            merged.append(each)
        if at % LISTED == 0:
            yield
    if len(merged) == 1:
        return Layout(0, merged[0].address, ())
    # Every page boundary inside the memory must also be a boundary of the device's pages.
    boundaries = 0
    for at, (before, after) in enumerate(pairwise(merged), 1):
        boundaries |= sum(before) | after.address
        if at % LISTED == 0:
            yield
    shift = min((boundaries & -boundaries).bit_length() - 1, LARGEST_SHIFT)
    if shift < SMALLEST_SHIFT:
        raise InvalidRequest(
            "the device can write only memory that is contiguous, or in pages of at least"
            f" {1 << SMALLEST_SHIFT} octets at multiples of their size"
        )
    size = 1 << shift
    pages: list[int] = []
    for at, each in enumerate(merged, 1):
        pages += range(each.address & -size, each.address + each.length, size)
        if at % LISTED == 0:
            yield
    return Layout(shift, merged[0].address % size, tuple(pages))
