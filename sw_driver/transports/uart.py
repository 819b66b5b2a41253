"""Access to a board through a serial port, in LiteX's protocol "uartbone".

A command is an octet, 1 to write or 2 to read words at consecutive addresses; an octet with the
number of words; 32 bits of address, counted in words; and, in a write, the words. All numbers are
sent most significant octet first. The answer to a read is the words; a write has no answer.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, runtime_checkable

from ...hdl.spec import board, regs
from ..base.checks import integer, shown
from ..base.closing import ProcessLock
from ..base.errors import TransportError, TransportTimeout, UnsupportedDevice, WrongType
from .memory import Arena, Bounce, Memory, Steps, finish
from .transport import SentFpdu, Transport

#: A port that is closed or unplugged raises one of these exceptions, depending on the system.
_FAILURES: tuple[type[Exception], ...] = (OSError, TypeError)
if os.name == "posix":
    import fcntl
    import termios

    _FAILURES += (termios.error,)

#: Baud rate of most boards' host links.
BAUD = 1_000_000
_WRITE, _READ = 1, 2
#: Most words in one command.
_WORDS = 128
#: Seconds of silence after which the bridge reads the next octet as the start of a command.
_SILENCE = 0.15
#: Seconds by which an answer may be late.
_PATIENCE = 0.5
_ATTEMPTS = 3
#: Addresses of the registers that read back the value written to them.
_KEPT = {register.address for register in regs.REGISTERS if register.access == "rw"}


@runtime_checkable
class BoardLink(Protocol):
    """A link that reads and writes words of a board's address map."""

    def read_words(self, address: int, count: int) -> list[int]:
        """Reads ``count`` consecutive words."""

    def write_words(self, address: int, words: Sequence[int]) -> None:
        """Writes consecutive words that cannot be read back."""


class UartTransport(Transport):
    """Reaches a board's host link through a serial port.

    The device accesses memory on the board. Each buffer has a copy there: octets to be sent are
    copied over the link before the device reads them, received octets when their completion is
    taken. There is no interrupt. A board that sends gives its frames to its PHY, and a copy of each
    to the host.

    The transport uses the port exclusively.

    The link has no checksums, but lost and damaged octets are noticed: registers and memory are
    read back after they are written, and an answer that is late, short or long is requested again.
    Where a command may have been lost that must not be given twice, the call raises. Damaged octets
    are not noticed within an answer of the right length, nor in the address of a command.

    Parameters
    ----------
    port
        A device or a URL, as pyserial accepts it.
    baudrate
        Baud rate of the board.
    """

    # A board has a few kibioctets of memory.
    roomy = False
    completions = 128
    carries = True

    def __init__(self, port: str, baudrate: int = BAUD) -> None:
        if not isinstance(port, str):
            raise WrongType(f"port must be a device or a URL, not {shown(port)}")
        baudrate = integer("baudrate", baudrate, 1, math.inf, "at least 1")
        self._lock = ProcessLock("the serial port")
        self._pending: list[tuple[int, int]] = []  # register writes to be made and read back
        self._unsure = False  # whether a command was given and nothing was read since
        self._broken = False  # whether a command or its answer may still be under way
        self._sent = 0.0  # when the last octet will have left, in the time of time.monotonic
        try:
            import serial
        except ModuleNotFoundError:
            raise TransportError(
                "pyserial is not installed: pip install 'ddp-rnic[serial]'"
            ) from None
        try:
            self._serial = serial.serial_for_url(port, baudrate, timeout=_PATIENCE, exclusive=True)
        except (OSError, ValueError, OverflowError) as error:
            raise TransportError(f"the serial port {port} cannot be opened: {error}") from error
        # USB adapters otherwise hold received octets for up to 16 ms. Ports without this mode stay
        # as they are.
        with suppress(ValueError, OSError, AttributeError, NotImplementedError):
            self._serial.set_low_latency_mode(True)
        try:
            self._silence()
            self._arena = Arena(0, self._memory_size(), "octets of the board's memory")
            self.longest_frame = self._word(board.address("CAP_FRAME"))
        except BaseException:
            self._serial.close()
            raise

    def _memory_size(self) -> int:
        """Returns the octets of the board's memory; raises where no such board answers."""
        identity = self._word(board.address("ID"))
        if identity != board.ID:
            raise UnsupportedDevice(
                f"the board's ID reads {identity:#010x}, not {board.ID:#010x}:"
                " check port, baud rate and bitstream"
            )
        version = self._word(board.address("VERSION"))
        if version >> 16 != board.VERSION >> 16:
            raise UnsupportedDevice(
                f"the board's map is {version >> 16}.{version & 0xFFFF}, the driver's is"
                f" {board.VERSION >> 16}.{board.VERSION & 0xFFFF}: update the older one"
            )
        size = self._word(board.address("CAP_MEMORY"))
        if not 0 < size <= board.MEMORY.size:
            raise UnsupportedDevice(f"CAP_MEMORY reads {size}: check the link")
        return size

    # -- the driver's interface -------------------------------------------------------------------

    def read(self, address: int) -> int:
        with self._lock:
            self._flush()
            return self._word(board.RNIC.address + address)

    def write(self, address: int, value: int) -> None:
        with self._lock:
            if address in _KEPT:
                self._check()
                self._pending.append((address, value))
                return
            self._flush()
            self._send(board.RNIC.address + address, [value])
            self._unsure = True

    def pin(self, view: memoryview) -> Memory:
        return finish(self.pinning(view))

    def pinning(self, view: memoryview) -> Steps[Memory]:
        return Bounce.making(view, self._arena, self.read_memory, self.write_memory)

    def allocate(self, octets: int) -> Memory:
        return self.pin(memoryview(bytearray(octets)))

    def sent_frames(self) -> list[SentFpdu]:
        frames = []
        with self._lock:
            self._flush()
            while self._word(board.address("STATUS")) & board.pack("STATUS", sent=1):
                length, stream, sequence, *record = self._words(board.address("SENT_LENGTH"), 5)
                words = self._words(board.SENT.address, -(-length // 4))
                octets = struct.pack(f"<{len(words)}I", *words)[:length]
                frames.append(SentFpdu(stream, sequence, octets, record[0] | record[1] << 32))
                self._send(board.address("SENT_POP"), [1])
                self._unsure = True
        return frames

    def close(self) -> None:
        with self._lock:
            try:
                if self._serial.is_open:
                    self._flush()
            finally:
                if os.name == "posix":
                    # A forked child may have the port open, too. Not every URL is a file.
                    with suppress(OSError, TypeError, ValueError):
                        fcntl.flock(self._serial.fileno(), fcntl.LOCK_UN)
                self._serial.close()

    # -- the board's memory -----------------------------------------------------------------------

    def read_memory(self, address: int, length: int) -> bytes:
        """Reads octets of the board's memory."""
        start = address & -4
        with self._lock:
            self._flush()
            words = self._words(board.MEMORY.address + start, (address + length - start + 3) // 4)
        octets = struct.pack(f"<{len(words)}I", *words)
        return octets[address - start : address - start + length]

    def write_memory(self, address: int, octets: bytes) -> None:
        """Writes octets to the board's memory. The link writes whole words, so their other
        octets are read.
        """
        start, end = address & -4, address + len(octets)
        with self._lock:
            before = self.read_memory(start, address - start)
            after = self.read_memory(end, -end % 4)
            whole = before + octets + after
            words = struct.unpack(f"<{len(whole) // 4}I", whole)
            self._write_checked(board.MEMORY.address + start, words)

    # -- the board's other windows ----------------------------------------------------------------

    def read_words(self, address: int, count: int) -> list[int]:
        """Reads consecutive words of the address map."""
        with self._lock:
            self._flush()
            return self._words(address, count)

    def write_words(self, address: int, words: Sequence[int]) -> None:
        """Writes consecutive words of the address map that cannot be read back."""
        with self._lock:
            self._flush()
            for at in range(0, len(words), _WORDS):
                self._send(address + 4 * at, words[at : at + _WORDS])
            self._unsure = True

    # -- the link ---------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raises where the transport is closed."""
        if not self._serial.is_open:
            raise TransportError("the transport is closed")

    def _flush(self) -> None:
        """Makes the pending writes in their order; those to adjacent registers share a command."""
        self._check()
        while self._pending:
            first = self._pending[0][0]
            run: list[int] = []
            for address, value in self._pending:
                if address != first + 4 * len(run):
                    break
                run.append(value)
            self._write_checked(board.RNIC.address + first, run)
            del self._pending[: len(run)]

    def _write_checked(self, address: int, words: Sequence[int]) -> None:
        """Writes words and reads them back, again until they match."""
        for at in range(0, len(words), _WORDS):
            part, where = list(words[at : at + _WORDS]), address + 4 * at
            for _ in range(_ATTEMPTS):
                self._send(where, part)
                if self._words(where, len(part)) == part:
                    break
                self._silence()
            else:
                raise TransportError(
                    f"words written to {where:#010x} were not read back in {_ATTEMPTS} attempts:"
                    " check the cable, or use a lower baud rate"
                )

    def _word(self, address: int) -> int:
        return self._words(address, 1)[0]

    def _words(self, address: int, count: int) -> list[int]:
        """Reads words, again where the answer is short."""
        words: list[int] = []
        while len(words) < count:
            part = min(count - len(words), _WORDS)
            words += self._ask(address + 4 * len(words), part)
        return words

    def _ask(self, address: int, count: int) -> tuple[int, ...]:
        for _ in range(_ATTEMPTS):
            self._clear()
            self._put(struct.pack(">BBI", _READ, count, address >> 2))
            answer = self._get(4 * count)
            # A surplus octet is noise, and it may be the first octet of the answer.
            if len(answer) == 4 * count and not self._waiting():
                self._unsure = self._broken = False
                return struct.unpack(f">{count}I", answer)
            self._silence()
            if self._unsure:
                self._unsure = False
                raise TransportError(
                    "the link lost octets, and perhaps the last command: close the object that"
                    " gave it"
                )
        raise TransportTimeout(
            f"the board does not answer at {address:#010x}: check power, port and baud rate"
        )

    def _send(self, address: int, words: Sequence[int]) -> None:
        self._put(struct.pack(f">BBI{len(words)}I", _WRITE, len(words), address >> 2, *words))
        self._broken = False

    def _silence(self) -> None:
        """Waits until the bridge has given up an incomplete command, then drops its answers."""
        time.sleep(self._leaving() + _SILENCE)
        self._clear()
        self._broken = False

    def _clear(self) -> None:
        with _port():
            self._serial.reset_input_buffer()

    def _waiting(self) -> int:
        with _port():
            return int(self._serial.in_waiting)

    def _put(self, octets: bytes) -> None:
        """Gives a command. An exception, as of a signal, may have ended the one before early."""
        if self._broken:
            self._silence()
        self._broken = True
        self._sent = time.monotonic() + self._leaving() + 10 * len(octets) / self._serial.baudrate
        with _port():
            self._serial.write(octets)

    def _leaving(self) -> float:
        """Returns the seconds until all octets that were written have left the adapter."""
        return max(self._sent - time.monotonic(), 0.0)

    def _get(self, length: int) -> bytes:
        # An octet takes ten bits on the line; the patience is added.
        answered = 12 * length / self._serial.baudrate
        with _port():
            self._serial.timeout = _PATIENCE + self._leaving() + answered
            return bytes(self._serial.read(length))


@contextmanager
def _port() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise TransportError(f"the serial port failed: {error}") from error
