"""Records a session with a device, and replays it later without the device.

A recording is a file of JSON with one line per call of the transport, in the order of the calls. A
recorded session should have one thread: with more, the order of calls differs between runs.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..base.checks import file_path, instance
from ..base.closing import ProcessLock
from ..base.errors import InvalidRequest, TransportError, TransportTimeout
from .memory import Extent, Memory
from .transport import Transport

#: The version of the format. The first line of a recording states it.
FORMAT = 1


class Recorder(Transport):
    """Passes every call on to another transport, and writes the call and its result to a file.

    Parameters
    ----------
    inner
        The other transport. It is closed with this one.
    path
        The file. An existing file is replaced.
    """

    def __init__(self, inner: Transport, path: Path | str) -> None:
        instance("what is recorded", inner, Transport)
        path = file_path("path", path)
        self._inner = inner
        # Buffered by lines, so that a forked child has no unwritten line to write a second time.
        self._file = open(path, "w", encoding="utf-8", buffering=1)
        self.lock = ProcessLock("the recording")
        self._memories = 0
        self.note({"format": FORMAT, "of": type(inner).__name__})

    def note(self, line: dict[str, Any]) -> None:
        """Writes a line."""
        self._file.write(json.dumps(line) + "\n")

    @contextmanager
    def noted(self, call: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Writes a call with its result, which the block puts into the dict, or with the
        error it raises. The caller has the lock.
        """
        if self._file.closed:
            raise TransportError("the transport is closed")
        result: dict[str, Any] = {}
        try:
            yield result
        except TransportError as error:
            kind = "timeout" if isinstance(error, TransportTimeout) else "error"
            result[kind] = str(error)
            raise
        finally:
            self.note({"call": call, **arguments, **result})

    def read(self, address: int) -> int:
        with self.lock, self.noted("read", address=address) as result:
            result["value"] = value = self._inner.read(address)
        return value

    def write(self, address: int, value: int) -> None:
        with self.lock, self.noted("write", address=address, value=value):
            self._inner.write(address, value)

    def pin(self, view: memoryview) -> Memory:
        with self.lock, self.noted("pin", length=len(view)) as result:
            return self._memory(self._inner.pin(view), result)

    def allocate(self, octets: int) -> Memory:
        with self.lock, self.noted("allocate", length=octets) as result:
            return self._memory(self._inner.allocate(octets), result)

    def _memory(self, memory: Memory, result: dict[str, Any]) -> Memory:
        result["extents"] = memory.extents
        self._memories += 1
        return _RecordedMemory(self, memory, self._memories)

    def wait(self, timeout: float) -> None:
        begun = time.monotonic()
        # The wait does not hold the lock, so that other threads can work; it changes nothing.
        self._inner.wait(timeout)
        with self.lock, self.noted("wait") as result:
            result["seconds"] = time.monotonic() - begun

    def wake(self) -> None:
        self._inner.wake()

    def entropy(self, octets: int) -> bytes:
        with self.lock, self.noted("entropy", length=octets) as result:
            drawn = self._inner.entropy(octets)
            result["octets"] = drawn.hex()
        return drawn

    def close(self) -> None:
        with self.lock:
            self._inner.close()
            self._file.close()


class _RecordedMemory(Memory):
    def __init__(self, recorder: Recorder, inner: Memory, number: int) -> None:
        self._recorder, self._inner, self._number = recorder, inner, number
        self.view, self.extents = inner.view, inner.extents

    def pull(self, offset: int, length: int) -> None:
        with (
            self._recorder.lock,
            self._recorder.noted("pull", memory=self._number, offset=offset) as result,
        ):
            self._inner.pull(offset, length)
            result["octets"] = self.view[offset : offset + length].hex()

    def pull_written(self) -> None:
        with (
            self._recorder.lock,
            self._recorder.noted("pull", memory=self._number, offset=0) as result,
        ):
            self._inner.pull_written()
            result["octets"] = self.view.hex()

    def push(self, offset: int, length: int) -> None:
        octets = self.view[offset : offset + length].hex()
        with (
            self._recorder.lock,
            self._recorder.noted("push", memory=self._number, offset=offset, octets=octets),
        ):
            self._inner.push(offset, length)

    def close(self) -> None:
        with self._recorder.lock, self._recorder.noted("unpin", memory=self._number):
            self._inner.close()


class Replay(Transport):
    """Replays a recorded session: the driver's calls must be the recorded ones.

    After a call that differs from the recording every call raises. :meth:`close` raises if recorded
    calls are left.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = file_path("path", path)
        self._lock = ProcessLock("the recording")
        self._lines = _lines_of(self._path)
        self._next = 1
        self._memories = 0
        self._broken: str | None = None

    def take(self, call: str, **arguments: Any) -> dict[str, Any]:
        """Returns the line of a call, which must be the next one of the recording."""
        with self._lock:
            if self._broken is None:
                self._broken = self._difference(call, arguments)
            if self._broken is not None:
                raise TransportError(self._broken)
            line: dict[str, Any] = self._lines[self._next]
            self._next += 1
        if "timeout" in line:
            raise TransportTimeout(line["timeout"])
        if "error" in line:
            raise TransportError(line["error"])
        return line

    def _difference(self, call: str, arguments: dict[str, Any]) -> str | None:
        """Returns how a call differs from the recording, or None."""
        now = _told(call, arguments)
        if self._next >= len(self._lines):
            return (
                f"{self._path} has no more calls, but the driver calls {now}:"
                " record the session again"
            )
        line = self._lines[self._next]
        then = _told(line.get("call"), {name: line.get(name) for name in arguments})
        if now == then:
            return None
        return (
            f"{self._path}, line {self._next + 1}: the driver calls {now}, but the recorded call"
            f" is {then}: record the session again"
        )

    def read(self, address: int) -> int:
        return int(self.take("read", address=address)["value"])

    def write(self, address: int, value: int) -> None:
        self.take("write", address=address, value=value)

    def pin(self, view: memoryview) -> Memory:
        return self._memory(view, self.take("pin", length=len(view)))

    def allocate(self, octets: int) -> Memory:
        return self._memory(memoryview(bytearray(octets)), self.take("allocate", length=octets))

    def _memory(self, view: memoryview, line: dict[str, Any]) -> Memory:
        self._memories += 1
        return _ReplayedMemory(self, view, self._memories, line["extents"])

    def wait(self, timeout: float) -> None:
        time.sleep(min(self.take("wait")["seconds"], timeout))

    def entropy(self, octets: int) -> bytes:
        return bytes.fromhex(self.take("entropy", length=octets)["octets"])

    def close(self) -> None:
        with self._lock:
            left, self._next = len(self._lines) - self._next, len(self._lines)
            if left and self._broken is None:
                self._broken = (
                    f"{self._path} has {left} more calls than the driver made:"
                    " record the session again"
                )
                raise TransportError(self._broken)


class _ReplayedMemory(Memory):
    def __init__(
        self, replay: Replay, view: memoryview, number: int, extents: list[list[int]]
    ) -> None:
        self._replay, self._number = replay, number
        self.view, self.extents = view, tuple(Extent(*each) for each in extents)

    def pull(self, offset: int, length: int) -> None:
        octets = bytes.fromhex(
            self._replay.take("pull", memory=self._number, offset=offset)["octets"]
        )
        if len(octets) != length:
            raise TransportError(
                f"the driver reads {length} octets of memory, but the recorded call reads"
                f" {len(octets)}: record the session again"
            )
        self.view[offset : offset + length] = octets

    def push(self, offset: int, length: int) -> None:
        octets = self.view[offset : offset + length].hex()
        self._replay.take("push", memory=self._number, offset=offset, octets=octets)

    def close(self) -> None:
        self._replay.take("unpin", memory=self._number)
        self.view.release()


def _is_hex(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("(?:[0-9a-f]{2})*", value) is not None


def _is_word(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and 0 <= value < math.inf


def _are_extents(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list)
        and len(each) == 2
        and all(type(number) is int and 0 <= number < 1 << 64 for number in each)
        for each in value
    )


#: What a line holds beside its call's arguments, unless the call failed.
_RESULTS: dict[str, dict[str, Callable[[object], bool]]] = {
    "read": {"value": _is_word},
    "write": {},
    "pin": {"extents": _are_extents},
    "allocate": {"extents": _are_extents},
    "wait": {"seconds": _is_seconds},
    "entropy": {"octets": _is_hex},
    "pull": {"octets": _is_hex},
    "push": {},
    "unpin": {},
}


def _lines_of(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a recording, after checking each of them.

    Raises
    ------
    InvalidRequest
        The file is no recording.
    """
    lines: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8") as file:
            for text in file:
                line = json.loads(text)
                if not lines and (not isinstance(line, dict) or line.get("format") != FORMAT):
                    break
                if lines and not _is_call(line):
                    raise ValueError("not a call of a transport with its results")
                lines.append(line)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        # The first line of the decoder's message says what is wrong.
        why = "values nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequest(
            f"{path} is not a recording of a session: line {len(lines) + 1}: {why}"
        ) from None
    if not lines:
        raise InvalidRequest(f"{path} is not a recording of a session in format {FORMAT}")
    return lines


def _is_call(line: object) -> bool:
    """Returns whether a line is a call with its results, or with the error that ended the call."""
    if not isinstance(line, dict):
        return False
    results = _RESULTS.get(line["call"]) if isinstance(line.get("call"), str) else None
    if results is None:
        return False
    if "timeout" in line or "error" in line:
        return all(isinstance(line.get(name, ""), str) for name in ("timeout", "error"))
    return all(name in line and is_sound(line[name]) for name, is_sound in results.items())


def _told(call: str | None, arguments: dict[str, Any]) -> str:
    values = (f"{name}={value!r}" for name, value in arguments.items())
    return f"{call}({', '.join(values)})"
