"""Counts the parts of the gateware that take area, before any tool has seen it.

The gateware is elaborated, which takes a second or two, and its statements are walked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from amaranth import Signal
from amaranth.hdl import Fragment

from ..hdl.flat import FlatRnic
from ..hdl.spec.config import RnicConfig

#: Words and bits of a distributed RAM of the ECP5, and the LUT4 that it takes.
_WORDS, _BITS, _LUTS = 16, 4, 4
#: The shapes of a block RAM of the ECP5 with one read port, in words and bits.
_BLOCKS = ((16384, 1), (8192, 2), (4096, 4), (2048, 9), (1024, 18), (512, 36))
#: Operators that use carry chains.
_CARRIES = ("+", "-", "<", "<=", ">", ">=", "*")

#: One bit of a signal, by the signal's identity.
Bit = tuple[int, int]


class Resources(NamedTuple):
    """The counts of one configuration.

    ``registers``: bits that a clock sets and that anything reads. ``carries``: bits of sums and
    comparisons. ``logic``: bits of other operators, and bits that a condition chooses.
    ``lutram``: LUT4 of tables in distributed RAM. ``block_ram``: block RAMs.
    """

    registers: int
    carries: int
    logic: int
    lutram: int
    block_ram: int


def count(config: RnicConfig) -> Resources:
    """Returns the counts of the exported top with these parameters."""
    top = FlatRnic(config)
    design = _Design()
    design.walk(Fragment.get(top, None))
    for _, _, port in top.signature.flatten(top):
        design.read(port)
    return design.resources()


def block_rams(depth: int, read: list[bool]) -> int:
    """Returns how many block RAMs hold ``depth`` words, for one read port.

    ``read`` has an item for each bit of a word. yosys chooses a shape for whole words, and then
    removes the block RAMs none of whose bits are read.
    """

    def columns(bits: int) -> int:
        return sum(any(read[first : first + bits]) for first in range(0, len(read), bits))

    words, bits = min(_BLOCKS, key=lambda shape: -(-depth // shape[0]) * -(-len(read) // shape[1]))
    return -(-depth // words) * columns(bits)


class _Design:
    """Walks a design, and counts each value once, however often it is used.

    A bit that only other bits copy is read only if one of those is read. yosys removes the others,
    with the block RAMs that hold nothing else.
    """

    def __init__(self) -> None:
        self._carries = self._logic = 0
        self._memories: list[Any] = []
        self._registers: set[Bit] = set()
        self._copied: defaultdict[Bit, list[Bit]] = defaultdict(list)  # from a copy to its source
        self._read: set[Bit] = set()
        # Values stay alive while they are here, so that no other value gets their identity.
        self._seen: dict[int, Any] = {}

    def resources(self) -> Resources:
        """Returns the counts of everything that was walked."""
        waiting = [*self._read]
        while waiting:
            for source in self._copied.pop(waiting.pop(), ()):
                if source not in self._read:
                    self._read.add(source)
                    waiting.append(source)
        lutram = block_ram = 0
        for memory in self._memories:
            depth = memory._data.depth
            for port in memory._read_ports:
                read = [bit in self._read for bit in self._bits(port._data)]
                if port._domain != "comb" and memory._attrs.get("ram_style") == "block":
                    block_ram += block_rams(depth, read)
                else:
                    banks = -(-depth // _WORDS)
                    lutram += _LUTS * banks * -(-sum(read) // _BITS)
                    # A multiplexer of 2 or 4 inputs takes 1 or 2 LUT4 for each bit.
                    lutram += sum(read) * (banks // 2)
        registers = len(self._registers & self._read)
        return Resources(registers, self._carries, self._logic, lutram, block_ram)

    def walk(self, fragment: Any) -> None:
        if hasattr(fragment, "_read_ports"):
            self._memories.append(fragment)
            for port in fragment._read_ports:
                self.read(port._addr)
                self.read(port._en)
            for port in fragment._write_ports:
                for value in (port._addr, port._data, port._en):
                    self.read(value)
        for domain, statements in fragment.statements.items():
            for statement in statements:
                self._statement(statement, domain != "comb", False)
        for inner, *_ in fragment.subfragments:
            self.walk(inner)

    def read(self, value: Any) -> None:
        """Counts the operators of a value, all of whose bits are read."""
        self._read.update(bit for bit in self._bits(value) if bit)

    def _statement(self, statement: Any, clocked: bool, conditional: bool) -> None:
        kind = type(statement).__name__
        if kind == "Assign":
            target, source = self._bits(statement.lhs), self._bits(statement.rhs)
            if clocked:
                self._registers.update(bit for bit in target if bit)
            if conditional:
                self._logic += len(target)
            for copy, bit in zip(target, source, strict=False):
                if copy and bit:
                    self._copied[copy].append(bit)
        elif kind == "Switch":
            self.read(statement.test)
            for _, statements, *_ in statement.cases:
                for inner in statements:
                    self._statement(inner, clocked, True)

    def _bits(self, value: Any) -> list[Bit | None]:
        """Returns the bits of signals that a value copies, and None for any other bit."""
        kind = type(value).__name__
        if isinstance(value, Signal):
            self._seen[id(value)] = value
            return [(id(value), k) for k in range(len(value))]
        if kind == "Slice":
            return self._bits(value.value)[value.start : value.stop]
        if kind == "Concat":
            return [bit for part in value.parts for bit in self._bits(part)]
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            self._count(value, kind)
            for each in _operands(value, kind):
                self.read(each)
        return [None] * len(value)

    def _count(self, value: Any, kind: str) -> None:
        if kind == "Operator":
            bits = max(len(each) for each in value.operands)
            if value.operator in _CARRIES:
                self._carries += bits
            elif value.operator != "~":
                self._logic += bits
        elif kind == "SwitchValue":
            self._logic += len(value) * (len(value.cases) - 1)
        elif kind == "Part":
            self._logic += len(value) * (len(value.value) // value.stride - 1)


def _operands(value: Any, kind: str) -> Iterator[Any]:
    if kind == "Operator":
        yield from value.operands
    elif kind == "Part":
        yield from (value.value, value.offset)
    elif kind == "SwitchValue":
        yield value.test
        yield from (inner for _, inner in value.cases)
