"""Keeps the octets of a capture in a temporary file, and rows of numbers in little memory."""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import IO, Any

from .pcap import CaptureError

#: Octets that are kept in memory until they are written to the file.
_KEPT = 1 << 20
#: Octets that a search reads at a time.
_SEARCHED = 1 << 20


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
