"""The compiled engine: the gateware and its surroundings in one shared library.

Operations and results are passed as arrays, so that Python has no part in a cycle. Operations are
passed in pieces: while the library simulates, Python makes the next piece.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec import regs
from ...hdl.spec.completion import OCTETS
from ...hdl.spec.config import LIMITS, RnicConfig
from . import verilator
from .engine import (
    BURST,
    CYCLE,
    EVENT_REGISTERS,
    PHASE,
    TAKEN,
    UNSTALLED,
    WRITE,
    Await,
    DeviceError,
    Drain,
    Engine,
    ExceptionPacket,
    Fpdu,
    Frame,
    Meanwhile,
    Operation,
    Outcome,
    Packet,
    Pause,
    Poll,
    Resume,
    Ring,
    Stalls,
    Store,
    Wait,
    WriteRegister,
    checked,
    completion,
    counter_registers,
    counters,
    event,
)
from .waves import Recorder, Waves

#: Cycles of one call. Between calls progress is reported and an interrupt is noticed.
CYCLES = 200_000
#: A piece of a run ends with the operation that brings it to these octets, or operations.
OCTETS_OF_PIECE, OPERATIONS_OF_PIECE = 1 << 20, 1 << 14
#: A state of the library: further operations have to be added.
_HUNGRY = 3

# The structures of harness.cpp.
_OPERATION = np.dtype([
    ("kind", "<u4"), ("a", "<u4"), ("b", "<u4"), ("c", "<u4"),
    ("offset", "<u8"), ("length", "<u8"),
])  # fmt: skip
ROW = struct.Struct("=4I2Q")  #: one operation
(
    PACKET, FRAME, _WRITE, _DRAIN, _AWAIT, _PAUSE, _RESUME, _POLL, _WAIT, _MEANWHILE, _STORE,
) = range(11)  # fmt: skip
#: The most completion queues, that of SCTP's owner included.
_QUEUES = LIMITS["completion_queues"][1] + 1
_SETTINGS = np.dtype([
    *((name, "<u4") for name in Stalls.SIDES),
    ("stretch", "<u8"), ("latency", "<u8"), ("seed", "<u8"), ("base", "<u8"), ("mutant", "<u8"),
    ("outstanding", "<u8"), ("silence", "<u8"),
    ("ring", "<u8"), ("entries", "<u8"), ("rings", "<u8"), ("queue", "<u4", (_QUEUES,)),
    ("phase_octet", "<u4"), ("phase_bit", "<u4"),
    ("status", "<u4"), ("event_pop", "<u4"), ("event", "<u4", (9,)), ("doorbell", "<u4"),
    ("counters", "<u4"), ("counter", "<u4", (32,)),
], align=True)  # fmt: skip
#: How many sessions over SCTP may begin or end right after each other. Each takes a cycle for each
#: slot of its stream's window.
_CLOSES = 8
_RANGE = np.dtype([("start", "<u8"), ("stop", "<u8")])
_EVENT = np.dtype([("word", "<u4", (9,))])
_EXCEPTION = np.dtype([
    ("stream", "<u4"), ("sequence", "<u4"), ("reason", "<u4"), ("unused", "<u4"),
    ("offset", "<u8"), ("length", "<u8"),
])  # fmt: skip
_COMPLETION = np.dtype([("octets", "u1", (OCTETS,))])
_OCTET = np.dtype("u1")
_COUNTER = np.dtype("<u4")

_FPDU = np.dtype([
    ("stream", "<u4"), ("sequence", "<u4"),
    ("first", "<u8"), ("last", "<u8"), ("offset", "<u8"), ("length", "<u8"), ("record", "<u8"),
])  # fmt: skip


class Traced(ctypes.Structure):
    """A waveform to be written, as the harness takes it."""

    _fields_ = [
        ("path", ctypes.c_char_p), ("scopes", ctypes.c_char_p),
        ("first", ctypes.c_uint64), ("stop", ctypes.c_uint64),
    ]  # fmt: skip


def traced(waves: Waves | None, recorder: Recorder | None) -> Any:
    """Returns the argument of the harness for a waveform whose VCD a recorder takes."""
    if waves is None or recorder is None:
        return None
    cycles = waves.cycles or range(2**63)
    return ctypes.byref(
        Traced(
            str(recorder.pipe).encode(), " ".join(waves.scopes).encode(), cycles.start, cycles.stop
        )
    )


class CompiledEngine(Engine):
    """Runs Verilator's output, driven from C++."""

    name = "compiled"

    def __init__(self, built: Path | None = None, mutant: int = 0) -> None:
        self._built = built  #: the library to run; None: one is built for the configuration
        self._mutant = mutant  #: the number of the active mutant, in a library with mutants
        self._builds: dict[tuple[RnicConfig, bool], Path] = {}

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
        pieces = _pieces(checked(config, operations, memory, ring, base))
        library = open_library(self._built or self._build(config, waves is not None))
        recorder = None if waves is None else Recorder(waves.path, verilator.verilog(config))
        counted = counter_registers(
            sctp=config.sctp, transmit=config.transmit, receive=config.receive
        )
        settings = settings_of(config, stalls, ring, counted)
        settings["base"], settings["mutant"] = base, self._mutant
        ranges = np.array([(each.start, each.stop) for each in faults], _RANGE)
        sim = library.sim_new(
            memory.ctypes.data,
            len(memory),
            settings.ctypes.data,
            ranges.ctypes.data,
            len(ranges),
        )
        # The thread comes to an end before the simulation does.
        try:
            if recorder is not None:
                library.sim_trace(sim, traced(waves, recorder))
            state, known = _HUNGRY, 0
            piece = next(pieces, None)  # there is at least one
            with ThreadPoolExecutor(1) as thread:
                while state in (0, _HUNGRY):
                    if piece is not None and state == _HUNGRY:
                        library.sim_add(sim, *piece.arguments())
                        known += len(piece.table)
                        piece = None
                    running = thread.submit(library.sim_run, sim, CYCLES)
                    piece = piece or next(pieces, None)
                    state = running.result()
                    if progress is not None:
                        progress(library.sim_operation(sim), known)
                    if part is not None and part(_outcome(library, sim, counted)):
                        library.sim_forget_cycles(sim)
            cycle = library.sim_cycle(sim)
            if state == 2:
                message = library.sim_message(sim).decode()
                raise DeviceError(f"cycle {cycle}: {message}")
            return _outcome(library, sim, counted)
        finally:
            library.sim_free(sim)
            if recorder is not None:
                recorder.close()

    def _build(self, config: RnicConfig, waves: bool) -> Path:
        if (config, waves) not in self._builds:
            self._builds[config, waves] = build(config, waves=waves)
        return self._builds[config, waves]


def build(config: RnicConfig, *, gates: str | None = None, waves: bool = False) -> Path:
    """Returns the library of a configuration, or of its gates; builds it unless the cache
    has it.
    """
    return verilator.build_library(
        gates or verilator.verilog(config),
        Path(__file__).with_name("harness.cpp"),
        waves=waves,
        netlist=gates is not None,
    )


def open_library(path: Path) -> Any:
    """Returns the library with the types of its functions, those for a live simulation included."""
    library = ctypes.CDLL(str(path))
    pointer, number, word = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
    shown = ctypes.POINTER(Traced)
    for name, result, arguments in (
        (
            "sim_new",
            pointer,
            [pointer, number, pointer, pointer, number],
        ),
        ("sim_add", None, [pointer, pointer, number, ctypes.c_char_p, number, ctypes.c_int]),
        ("sim_forget_cycles", None, [pointer]),
        ("sim_run", ctypes.c_int, [pointer, number]),
        ("sim_free", None, [pointer]),
        ("sim_cycle", number, [pointer]),
        ("sim_operation", number, [pointer]),
        ("sim_message", ctypes.c_char_p, [pointer]),
        ("sim_list", pointer, [pointer, ctypes.c_int, ctypes.POINTER(number)]),
        ("sim_live", pointer, [pointer, ctypes.c_int]),
        ("sim_trace", None, [pointer, shown]),
        ("sim_sending", number, [pointer]),
        ("sim_leaving", ctypes.c_int, [pointer]),
        ("sim_left", number, [pointer, ctypes.c_int]),
        ("sim_forget", None, [pointer, ctypes.c_int, number]),
        ("sim_access", ctypes.c_int, [pointer, ctypes.c_int, word, ctypes.POINTER(word)]),
        ("sim_writes", number, [pointer, ctypes.c_char_p, number]),
        ("sim_wait", ctypes.c_int, [pointer, number]),
        ("sim_map", None, [pointer, number, pointer, number]),
        ("sim_fault", None, [pointer, number, number]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Piece(NamedTuple):
    """Operations as the harness takes them, and their octets; ``more``: others follow."""

    table: NDArray
    octets: bytes
    more: bool

    def arguments(self) -> tuple[Any, ...]:
        return self.table.ctypes.data, len(self.table), self.octets, len(self.octets), self.more


def _pieces(operations: Iterator[Operation]) -> Iterator[_Piece]:
    """Yields operations in pieces, with at least one piece."""
    piece: list[Operation] = []
    octets = 0
    for operation in operations:
        piece.append(operation)
        if isinstance(operation, Packet | Frame | Store):
            octets += len(operation.octets)
        if octets >= OCTETS_OF_PIECE or len(piece) >= OPERATIONS_OF_PIECE:
            yield _Piece(*_arrays(piece), True)
            piece, octets = [], 0
    yield _Piece(*_arrays(piece), False)


def _arrays(operations: Iterable[Operation]) -> tuple[NDArray, bytes]:
    rows = []
    pieces = []
    offset = 0
    for operation in _flat(operations):
        match operation:
            case Packet(stream, sequence, octets, error):
                rows.append((PACKET, stream, sequence, int(error), offset, len(octets)))
                pieces.append(octets)
                offset += len(octets)
            case Frame(octets, error):
                rows.append((FRAME, 0, 0, int(error), offset, len(octets)))
                pieces.append(octets)
                offset += len(octets)
            case WriteRegister(address, value, strobes, response):
                rows.append((_WRITE, address, value, strobes, response, 0))
            case Store(address, octets):
                halves = address & 0xFFFFFFFF, address >> 32
                rows.append((_STORE, *halves, 0, offset, len(octets)))
                pieces.append(octets)
                offset += len(octets)
            case Drain():
                rows.append((_DRAIN, 0, 0, 0, 0, 0))
            case Await(completions):
                rows.append((_AWAIT, 0, 0, 0, completions, 0))
            case Pause():
                rows.append((_PAUSE, 0, 0, 0, 0, 0))
            case Resume():
                rows.append((_RESUME, 0, 0, 0, 0, 0))
            case Poll(address, mask, value, response):
                rows.append((_POLL, address, mask, value, response, 0))
            case Wait(cycles):
                rows.append((_WAIT, 0, 0, 0, cycles, 0))
            case Meanwhile(cycles, aside):
                rows.append((_MEANWHILE, 0, 0, 0, cycles, len(aside)))
    return np.array(rows, _OPERATION), b"".join(pieces)


def _flat(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Yields operations, and those inside a :class:`Meanwhile` directly after it."""
    for operation in operations:
        yield operation
        if isinstance(operation, Meanwhile):
            yield from operation.operations


def settings_of(
    config: RnicConfig, stalls: Stalls, ring: Ring | None = None, counted: Sequence[str] = ()
) -> NDArray:
    """Returns the settings of the surroundings for the harness."""
    settings = np.zeros(1, _SETTINGS)
    for name in Stalls.SIDES:
        settings[name] = round(getattr(stalls, name) * 65536)
    settings["stretch"], settings["outstanding"] = stalls.stretch, config.outstanding
    settings["silence"] = _CLOSES * config.window if config.owned else 0
    settings["latency"], settings["seed"] = stalls.response_latency, stalls.seed
    if ring is not None:
        settings["ring"], settings["entries"] = ring.address, ring.entries
        settings["rings"] = len(ring.queues)
        settings["queue"][0, : len(ring.queues)] = ring.queues
        settings["phase_octet"], settings["phase_bit"] = PHASE.octet, PHASE.bit
    settings["status"] = regs.address("STATUS")
    settings["event_pop"] = regs.address("EVENT_POP")
    settings["event"] = [regs.address(name) for name in EVENT_REGISTERS]
    settings["doorbell"] = regs.address("CQ_DOORBELL")
    settings["counters"] = len(counted)
    settings["counter"][0, : len(counted)] = [regs.address(name) for name in counted]
    return settings


def _items(library: Any, sim: int, which: int, dtype: np.dtype) -> NDArray:
    count = ctypes.c_uint64()
    start = library.sim_list(sim, which, ctypes.byref(count))
    octets = ctypes.string_at(start, count.value * dtype.itemsize) if count.value else b""
    return np.frombuffer(octets, dtype)


def exceptions(library: Any, sim: int) -> list[ExceptionPacket]:
    """Returns the packets of the exception stream so far."""
    octets = _items(library, sim, 6, _OCTET).tobytes()
    return [
        ExceptionPacket(stream, sequence, octets[offset : offset + length], reason)
        for stream, sequence, reason, _, offset, length in _items(
            library, sim, 5, _EXCEPTION
        ).tolist()
    ]


#: Ports from which packets leave.
FPDUS, FRAMES = 0, 1


def left(library: Any, sim: int, port: int) -> list[Fpdu]:
    """Returns the FPDUs or frames that a device has sent, the one under way included."""
    packets = 16 if port else 13
    octets = _items(library, sim, packets + 1, _OCTET).tobytes()
    return [
        Fpdu(stream, sequence, octets[offset : offset + length], first, last, record)
        for stream, sequence, first, last, offset, length, record in _items(
            library, sim, packets, _FPDU
        ).tolist()
    ]


def _outcome(library: Any, sim: int, counted: Sequence[str]) -> Outcome:
    items = partial(_items, library, sim)
    values = dict(zip(counted, items(7, _COUNTER).tolist(), strict=False))  # read at the end
    return Outcome(
        cycles=library.sim_cycle(sim),
        events=[event(each["word"].tolist()) for each in items(4, _EVENT)],
        exceptions=exceptions(library, sim),
        counters=counters(values),
        completions=[completion(each.tobytes()) for each in items(8, _COMPLETION)["octets"]],
        stray=list(items(3, WRITE)),
        polled=items(12, CYCLE),
        fpdus=left(library, sim, FPDUS),
        frames=left(library, sim, FRAMES),
        reads=items(15, BURST),
        **cycles(library, sim),
    )


def cycles(library: Any, sim: int) -> dict[str, NDArray]:
    """Returns the activity of bus and streams so far with its cycles, by the names of an
    outcome.
    """
    items = partial(_items, library, sim)
    return {
        "delivered": items(9, CYCLE),
        "writes": items(0, WRITE),
        "bursts": items(1, BURST),
        "responses": items(10, CYCLE),
        "taken": items(2, TAKEN),
        "interrupts": items(11, CYCLE),
    }
