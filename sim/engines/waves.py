"""Writes waveforms as FST, the format of GTKWave and Surfer, with names of fields and enumerations.

Simulators write a VCD to a pipe. A thread makes an FST of it with the library that GTKWave has for
that, from its package pylibfst. The whole VCD is never stored.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import os
import re
import select
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...flow.tools import ToolError, cache_directory, call, compiler, digest, locked

#: The modules around the RNIC. Their signals are those of its ports, which the outermost one shows.
_WRAPPERS = ("bench", "rnic", "rnic")
#: Names of copies of a signal at the ports of the parts inside, of steps of expressions, and of the
#: rows of memories.
_COPIES = re.compile(r"\$\d|_step\d|_stir|_kept|\$rows")
_MODULE = re.compile(r"^module (\\\S+|\w+) ?\(.*?^endmodule", re.DOTALL | re.MULTILINE)
_ENUM = re.compile(
    r'\(\* enum_base_type = "([^"]*)" \*\)\s+((?:\(\* enum_value_[01]+ = "[^"]*" \*\)\s+)+)'
    r"(?:(?:input|output|wire|reg) +)+(?:\[[^]]*\] )?(\\\S+|\w+)"
)
_VALUE = re.compile(r'enum_value_([01]+) = "([^"]*)"')
#: An enumeration: its name, and bits and name of each value.
Enumeration = tuple[str, tuple[tuple[str, str], ...]]
#: As the VCD of a compiled simulation counts time: a cycle has this many units, and its values are
#: there before the clock edge that ends it.
CYCLE, EDGE = 10, 15


@dataclass(frozen=True)
class Waves:
    """A waveform to be written.

    Parameters
    ----------
    path
        The FST file.
    parts
        Parts of the RNIC that are shown with all their parts, for example ``walker`` or
        ``delivery.queues``; none: all of it. The ports of the device are always shown.
    cycles
        The cycles that are shown; None: all.
    """

    path: Path
    parts: tuple[str, ...] = ()
    cycles: range | None = None

    @property
    def scopes(self) -> list[str]:
        """The parts as the simulator names them; none: all."""
        return [".".join(("top", *_WRAPPERS, *part.split("."))) for part in self.parts]


def edge(cycle: int) -> int:
    """Returns the time of the clock edge that ends a cycle, in the units of a waveform."""
    return CYCLE * cycle + EDGE


def known_parts(verilog: str) -> list[str]:
    """Returns the names of all parts of the RNIC, from its Verilog."""
    names = (name.removeprefix("\\") for name in _MODULE.findall(verilog))
    root = ".".join(_WRAPPERS[1:]) + "."
    return sorted(
        name.removeprefix(root) for name in names if name.startswith(root) and "$" not in name
    )


def check_parts(parts: Iterable[str], verilog: str) -> None:
    """Raises :class:`ValueError` for the first name that is not one of a part of the RNIC."""
    known = known_parts(verilog)
    for part in parts:
        if part not in known:
            near = difflib.get_close_matches(part, known, 3, 0.5)
            outer = [name for name in known if "." not in name]
            raise ValueError(
                f"the RNIC has no part {part!r}: use {' or '.join(near) or ', '.join(outer)}"
            )


class Recorder:
    """Makes an FST file of the VCD that a simulator writes to ``pipe``.

    Parameters
    ----------
    path
        The FST file.
    verilog
        The text of the gateware, from which the names of enumerations come.

    Raises
    ------
    ToolError
        There is no pylibfst, or no compiler.
    """

    def __init__(self, path: Path, verilog: str) -> None:
        try:
            import _libfstapi
            import pylibfst
        except ImportError:
            raise ToolError("pylibfst is not installed: pip install 'ddp-rnic[sim]'") from None
        self._fst, self._ffi = pylibfst.lib, pylibfst.ffi
        self._symbols = ctypes.CDLL(_libfstapi.__file__)
        self._copy = _changes().copy_changes
        self._path, self._enums = path, enumerations(verilog)
        self._directory = tempfile.TemporaryDirectory(prefix="ddp-rnic-")
        self.pipe = Path(self._directory.name) / "vcd"
        os.mkfifo(self.pipe)
        # Simulators open the pipe without waiting for a reader.
        self._file = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits until the simulator has closed the pipe and the file is complete.

        Raises
        ------
        ToolError
            The file could not be written.
        """
        with contextlib.suppress(OSError):  # nobody reads any more
            # If the simulator has not opened the pipe, the thread still waits for that.
            os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))
        self._thread.join()
        self._directory.cleanup()
        if self._failure is not None:
            raise ToolError(f"cannot write the waveform {self._path}: {self._failure}")

    def _run(self) -> None:
        with open(self._file, "rb") as vcd:
            select.select([vcd], [], [])  # until the simulator has opened the pipe
            os.set_blocking(self._file, True)
            try:
                self._convert(vcd)
            except BaseException as error:
                self._failure = error
                while vcd.read(1 << 16):  # the simulator must not wait
                    pass

    def _convert(self, vcd: IO[bytes]) -> None:
        fst = self._fst
        writer = fst.fstWriterCreate(str(self._path).encode(), 1)
        if writer == self._ffi.NULL:
            raise OSError("the file cannot be made")
        try:
            fst.fstWriterSetPackType(writer, fst.FST_WR_PT_ZLIB)
            fst.fstWriterSetTimescaleFromString(writer, b"1 ps")
            handles, widths = self._declare(writer, vcd)
            pending = vcd.peek()  # type: ignore[attr-defined]
            failed = self._copy(
                vcd.fileno(), pending, len(pending), int(self._ffi.cast("uintptr_t", writer)),
                handles.ctypes.data, widths.ctypes.data, len(handles),
                self._symbols.fstWriterEmitTimeChange, self._symbols.fstWriterEmitValueChange,
            )  # fmt: skip
            if failed:
                raise OSError("the simulator wrote no VCD")
        finally:
            fst.fstWriterClose(writer)

    def _declare(self, writer: Any, vcd: IO[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Declares the signals of a VCD; returns their handles and widths, by numbers of codes."""
        fst = self._fst
        known: dict[int, tuple[int, int]] = {}  # handle and width, by the number of the code
        tables: dict[Enumeration, Any] = {}
        opened: list[str] = []  # scopes that the waveform has
        for module, signals in _signals(vcd):
            # A signal with fields is shown by these alone.
            whole = {name[: at.start()] for name in signals for at in re.finditer(r"\.", name)}
            for name, (width, code, bits) in signals.items():
                if name in whole:
                    continue
                # A field is a signal in scopes: Surfer finds no signal whose name has a dot.
                *fields, last = name.split(".")
                self._enter(writer, opened, ["rnic", *module[1 + len(_WRAPPERS) :], *fields])
                if (enum := self._enums.get((".".join(module[2:]), name))) is not None:
                    if enum not in tables:
                        tables[enum] = self._table(writer, *enum)
                    fst.fstWriterEmitEnumTableRef(writer, tables[enum])
                label, alias = f"{last} {bits}".strip().encode(), known.get(code, (0, 0))[0]
                handle = fst.fstWriterCreateVar(
                    writer, fst.FST_VT_VCD_WIRE, fst.FST_VD_IMPLICIT, width, label, alias
                )
                known.setdefault(code, (handle, width))
        if not known:
            raise OSError("it has no signals")
        handles = np.zeros(max(known) + 1, np.uint32)
        widths = np.zeros_like(handles)
        for code, (handle, width) in known.items():
            handles[code], widths[code] = handle, width
        return handles, widths

    def _enter(self, writer: Any, opened: list[str], path: list[str]) -> None:
        """Leaves and opens scopes, so that the next signal belongs to ``path``."""
        while opened != path[: len(opened)]:
            self._fst.fstWriterSetUpscope(writer)
            opened.pop()
        for name in path[len(opened) :]:
            self._fst.fstWriterSetScope(
                writer, self._fst.FST_ST_VCD_MODULE, name.encode(), self._ffi.NULL
            )
            opened.append(name)

    def _table(self, writer: Any, name: str, values: tuple[tuple[str, str], ...]) -> Any:
        """Declares an enumeration."""
        texts = [[self._ffi.new("char[]", text.encode()) for text in pair] for pair in values]
        bits, names = zip(*texts, strict=True)
        return self._fst.fstWriterCreateEnumTable(
            writer, name.encode(), len(values), len(values[0][0]),
            self._ffi.new("char *[]", list(names)), self._ffi.new("char *[]", list(bits)),
        )  # fmt: skip


def _signals(vcd: IO[bytes]) -> Iterator[tuple[list[str], dict[str, tuple[int, int, str]]]]:
    """Yields the scopes of a VCD that the waveform shows, with their signals.

    A signal has a name, a width, the number of its code, and for more than one bit their range.
    """
    scopes: list[str] = []
    found: dict[tuple[str, ...], dict[str, tuple[int, int, str]]] = {}
    for line in iter(vcd.readline, b""):
        match line.decode().split():
            case ["$enddefinitions", *_]:
                break
            case ["$scope", _, name, *_]:
                # In cocotb's simulations the outermost module has no name.
                scopes += [] if scopes or name in ("top", "$rootio") else ["top"]
                scopes.append("top" if name == "$rootio" else name)
            case ["$upscope", *_]:
                scopes.pop()
            case ["$var", _, width, code, name, *rest] if not _COPIES.search(name):
                bits = rest[0] if int(width) > 1 else ""
                found.setdefault(tuple(scopes), {})[name] = int(width), _number(code), bits
    outside = ("top", *_WRAPPERS)
    if outside not in {path[: len(outside)] for path in found}:
        # A netlist is one module, which has the ports, too.
        yield from ((list(path), found[path]) for path in found if path == outside[:-1])
        return
    for path, signals in found.items():
        inside = len(path) > len(outside) and not any(map(_COPIES.search, path))
        if len(path) == 1 or inside:  # the ports, and the parts of the RNIC
            yield list(path), signals


def _number(code: str) -> int:
    """Returns a code of the VCD as a number to the base 94, whose digits begin with 1."""
    value = 0
    for character in code:
        value = value * 94 + ord(character) - ord("!") + 1
    return value


def enumerations(verilog: str) -> dict[tuple[str, str], Enumeration]:
    """Returns the enumerations of signals, by the names of module and signal."""
    found: dict[tuple[str, str], Enumeration] = {}
    for module in _MODULE.finditer(verilog):
        for name, values, signal in _ENUM.findall(module[0]):
            key = module[1].removeprefix("\\"), signal.removeprefix("\\")
            found[key] = name, tuple(_VALUE.findall(values))
    return found


def _changes() -> Any:
    """Returns the library that copies changes; compiles it unless the cache has it."""
    source = Path(__file__).with_name("changes.cpp")
    text, command = source.read_text(encoding="utf-8"), compiler()
    built = cache_directory() / "builds" / digest(text, *command) / "changes.so"
    with locked(built.parent):
        if not built.exists():
            built.parent.mkdir(parents=True, exist_ok=True)
            made = built.with_suffix(".tmp")
            options = ("-std=c++17", "-O2", "-fPIC", "-shared", "-o")
            call([*command, *options, str(made), str(source)])
            os.replace(made, built)
        os.utime(built.parent)
    library = ctypes.CDLL(str(built))
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    library.copy_changes.argtypes = [
        ctypes.c_int, ctypes.c_char_p, number, pointer, pointer, pointer, number, pointer, pointer,
    ]  # fmt: skip
    return library
