"""Keeps the octets of a capture, and objects that have them, in a temporary file; and rows of
numbers in little memory.
"""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, Generic, TypeVar, overload

from .pcap import CaptureError

T = TypeVar("T")

#: Octets that are kept in memory until they are written to the file.
_KEPT = 1 << 20
#: Octets that a search reads at a time.
_SEARCHED = 1 << 20
#: Octets of a string that is kept as a part of another one; a shorter string is kept itself.
_PART = 48
#: Numbers whose bits are kept together, as a power of two.
_PAGE = 12


class Spool:
    """Octets in a temporary file, which a small capture does not need."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._written = 0  # octets in the file
        self._kept = bytearray()  # the octets after those

    def put(self, octets: bytes) -> int:
        """Keeps octets; returns their place.

        Raises
        ------
        CaptureError
            The directory of temporary files has no room.
        """
        place = self._written + len(self._kept)
        self._kept += octets
        if len(self._kept) >= _KEPT:
            self._write()
        return place

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="ddp-rnic-", buffering=0)
                weakref.finalize(self, self._file.close)
            while self._kept:
                count = os.write(self._file.fileno(), self._kept)
                self._written += count
                del self._kept[:count]
        except OSError as error:
            raise CaptureError(
                f"the octets of the capture cannot be kept in {tempfile.gettempdir()}:"
                f" {error.strerror}; name a directory with more room in TMPDIR"
            ) from None

    def get(self, place: int, length: int) -> bytes:
        """Returns octets that were put together, or a part of them."""
        if place >= self._written:
            start = place - self._written
            return bytes(self._kept[start : start + length])
        assert self._file is not None
        return os.pread(self._file.fileno(), length, place)


class Rows:
    """Rows of numbers. ``codes`` has the type of each column, as for :class:`array.array`."""

    def __init__(self, codes: str) -> None:
        self._columns: list[array[Any]] = [array(code) for code in codes]
        self._appends = [column.append for column in self._columns]

    def append(self, *values: float) -> None:
        for append, value in zip(self._appends, values, strict=True):
            append(value)

    def column(self, number: int) -> array[Any]:
        return self._columns[number]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self.since(0)

    def since(self, number: int) -> Iterator[tuple[Any, ...]]:
        """Yields the rows after the first ``number`` of them."""
        return zip(*(islice(column, number, None) for column in self._columns), strict=True)


class Octets:
    """Octets in order, which lie in pieces in a spool."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._pieces = Rows("QQ")  # the offset of the first octet, its place in the spool
        self._end = 0

    def append(self, place: int, length: int) -> None:
        """Appends octets of the spool."""
        self._pieces.append(self._end, place)
        self._end += length

    def __len__(self) -> int:
        return self._end

    def read(self, start: int, stop: int) -> bytes:
        """Returns the octets from ``start`` to ``stop``, or to the end."""
        starts, places = self._pieces.column(0), self._pieces.column(1)
        at = bisect_right(starts, start) - 1
        stop = min(stop, self._end)
        found = []
        while start < stop:
            end = min(stop, starts[at + 1] if at + 1 < len(starts) else stop)
            found.append(self._spool.get(places[at] + start - starts[at], end - start))
            start, at = end, at + 1
        return b"".join(found)

    def find(self, key: bytes, start: int = 0) -> int:
        """Returns the first offset from ``start`` on at which ``key`` lies, or -1."""
        while start + len(key) <= self._end:
            at = self.read(start, start + _SEARCHED).find(key)
            if at >= 0:
                return start + at
            start += _SEARCHED - len(key) + 1
        return -1


class Numbers:
    """A set of whole numbers, with one bit for each of those that are near another one."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}

    def add(self, number: int) -> bool:
        """Adds a number; returns True if the set did not have it."""
        page = self._pages.setdefault(number >> _PAGE, bytearray(1 << _PAGE - 3))
        at, bit = number % (1 << _PAGE) >> 3, 1 << number % 8
        new = not page[at] & bit
        page[at] |= bit
        return new

    def __contains__(self, number: int) -> bool:
        page = self._pages.get(number >> _PAGE)
        return page is not None and bool(page[number % (1 << _PAGE) >> 3] & 1 << number % 8)


class Again(Sequence[T]):
    """Objects that a function makes anew for each pass over them, so that no memory keeps them."""

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        self._make = make
        self._count: int | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self._make())

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self)
        return self._count

    def __bool__(self) -> bool:
        return any(True for _ in self)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return [*self][index]


class Kept(Sequence[T], Generic[T]):
    """Objects that lie pickled in a spool, each with the string of octets that it is about.

    Parameters
    ----------
    octets
        This function returns an object's string. Other strings that are a part of it are not kept
        a second time.
    shared
        The types of objects that several of the others have in common. These objects stay in
        memory, and are never copied.
    """

    def __init__(self, octets: Callable[[T], bytes], shared: tuple[type, ...] = ()) -> None:
        self._octets, self._types = octets, shared
        self._spool = Spool()
        self._rows = Rows("QII")  # the place of an object, the octets of its string, and of all
        self._shared: list[Any] = []
        self._numbers: dict[int, int] = {}  # of the shared objects, by their identity

    def append(self, each: T) -> None:
        """Adds an object."""
        octets = self._octets(each)
        file = io.BytesIO()
        _Pickler(file, octets, self._number).dump(each)
        pickled = octets + file.getvalue()
        self._rows.append(self._spool.put(pickled), len(octets), len(pickled))

    def _number(self, each: object) -> int | None:
        """Returns the number of a shared object; None for an object of another type."""
        if not isinstance(each, self._types):
            return None
        if id(each) not in self._numbers:
            self._numbers[id(each)] = len(self._shared)
            self._shared.append(each)
        return self._numbers[id(each)]

    def only(self, flags: Sequence[int]) -> Kept[T]:
        """Returns the objects whose flag is not 0."""
        found = Kept(self._octets, self._types)
        found._spool, found._shared, found._numbers = self._spool, self._shared, self._numbers
        for row, flag in zip(self._rows, flags, strict=True):
            if flag:
                found._rows.append(*row)
        return found

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[T]:
        return (self._get(*row) for row in self._rows)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        columns = [self._rows.column(number) for number in range(3)]
        if isinstance(index, slice):
            return [self._get(*row) for row in zip(*(each[index] for each in columns), strict=True)]
        place, size, length = (column[index] for column in columns)
        return self._get(place, size, length)

    def _get(self, place: int, size: int, length: int) -> T:
        octets = self._spool.get(place, length)
        return _Unpickler(io.BytesIO(octets[size:]), octets[:size], self._shared).load()


class _Pickler(pickle.Pickler):
    """Pickles an object without its string of octets and without shared objects."""

    def __init__(
        self, file: IO[bytes], octets: bytes, number: Callable[[object], int | None]
    ) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._octets, self._number = octets, number

    def persistent_id(self, each: object) -> Any:
        if isinstance(each, bytes):
            at = self._octets.find(each) if len(each) >= _PART else -1
            return None if at < 0 else (at, at + len(each))
        return self._number(each)


class _Unpickler(pickle.Unpickler):
    """Gets an object that :class:`_Pickler` has pickled."""

    def __init__(self, file: IO[bytes], octets: bytes, shared: list[Any]) -> None:
        super().__init__(file)
        self._octets, self._shared = octets, shared

    def persistent_load(self, number: Any) -> Any:
        if isinstance(number, tuple):
            return self._octets[slice(*number)]
        return self._shared[number]
