"""Compiles a design into Python that runs each statement at most once after an edge.

Amaranth's simulator runs all statements of a module again when one of their inputs changes, in any
order, until nothing changes any more. Here :func:`levelize` cuts the modules into groups of
statements that share no driven signal, and sorts the groups: each comes after those that drive its
inputs. A group runs only after one of its inputs has changed. If a combinational loop makes an
earlier group run again, all groups have another turn.

For tests and drawings alone: no gateware imports this file.
"""

from functools import lru_cache
from typing import NamedTuple

from amaranth.hdl._ast import Cat, Const, Operator, SignalDict, SignalSet
from amaranth.hdl._mem import MemoryInstance
from amaranth.hdl._xfrm import LHSMaskCollector
from amaranth.sim._pyrtl import (
    _LHSValueCompiler,
    _PythonEmitter,
    _RHSValueCompiler,
    _StatementCompiler,
)
from amaranth.sim.pysim import _run_wakers

#: How many groups one function runs. An integer has a bit for each: whether it has to run.
GROUPS = 24


class Levelized(NamedTuple):
    """Runs a design by functions, which are numbered.

    ``dirty[n]`` is not 0 if function ``n`` has something to do, and ``all`` has the first values.
    ``comb`` and ``sync[id(domain)]`` have numbers and functions in the order of their turns.
    ``again`` is not empty if the functions in ``comb`` need another turn.
    """

    dirty: list
    all: list
    comb: list
    sync: dict
    domains: list
    again: list


def levelize(fragment, state):
    """Returns the :class:`Levelized` design of a fragment; ``state`` has a slot per signal."""
    return _Design(state).compile(fragment)


class _Rhs(_RHSValueCompiler):
    """Compiles values; leaves out the masks of values that are in their range without."""

    @staticmethod
    def exact(value):
        if not isinstance(value, Operator) or value.operator not in ("~", "u", "s"):
            return True
        return value.operator == "~" and not value.shape().signed

    def sign(self, value):
        return self(value) if self.exact(value) else super().sign(value)

    def bits(self, value):
        if self.exact(value) and not value.shape().signed:
            return self(value)
        return f"({(1 << len(value)) - 1:#x} & {self(value)})"

    def on_Signal(self, value):
        if self.mode == "next":
            return super().on_Signal(value)
        self.inputs.add(value)
        return f"s{self.state.get_signal(value)}.curr"

    def on_Const(self, value):
        return f"({value.value})"

    def on_Operator(self, value):
        name = value.operator
        if len(value.operands) == 2 and name not in ("//", "%"):
            first, second = map(self.sign, value.operands)
            return f"({first} {name} {second})"
        if name == "~" and not value.shape().signed:
            return f"({(1 << len(value)) - 1:#x} ^ {self.bits(value.operands[0])})"
        return super().on_Operator(value)

    def on_Concat(self, value):
        parts, offset = [], 0
        for part in value.parts:
            if len(part) and not (isinstance(part, Const) and not part.value):
                parts.append(f"({self.bits(part)} << {offset})")
            offset += len(part)
        return f"({' | '.join(parts)})" if parts else "0"


class _Statements(_StatementCompiler):
    def __init__(self, state, emitter, inputs):
        self.state, self.emitter = state, emitter
        self.rhs = _Rhs(state, emitter, mode="curr", inputs=inputs)
        self.lhs = _LHSValueCompiler(state, emitter, rhs=self.rhs)
        self.lhs.lrhs = _Rhs(state, emitter, mode="next", rrhs=self.rhs)


class _Group:
    """Collects statements of one module and domain, with the bits that they drive and read.

    The ports of a memory are a group without statements.
    """

    def __init__(self, domain, memory=None):
        self.domain, self.memory = domain, memory
        self.statements = []
        self.inputs, self.masks = SignalSet(), SignalDict()
        self.lines = []
        self.number = self.bit = None  # its function, and its bit there

    def drive(self, masks):
        for signal, mask in masks.items():
            self.masks[signal] = self.masks.get(signal, 0) | mask


class _Design:
    def __init__(self, state):
        self.state = state
        self.groups = []
        self.domains = {}

    def compile(self, fragment):
        self.collect(fragment)
        functions = []
        for domain in ("comb", *self.domains):
            groups = [group for group in self.groups if group.domain == domain]
            groups = self.ordered(groups) if domain == "comb" else groups
            functions += [groups[at:at + GROUPS] for at in range(0, len(groups), GROUPS)]
        for number, groups in enumerate(functions):
            for bit, group in enumerate(groups):
                group.number, group.bit = number, bit
        self.find_readers()
        everything = [(1 << len(groups)) - 1 for groups in functions]
        design = Levelized([*everything], everything, [], {domain: [] for domain in self.domains},
                           [*self.domains.values()], [])
        names = {f"s{index}": slot for index, slot in enumerate(self.state.slots)}
        names |= {"slots": self.state.slots, "dirty": design.dirty, "again": design.again.append,
                  "pending": self.state.pending.add, "run_wakers": _run_wakers,
                  **_Rhs.helpers, **_Statements.helpers}
        exec(_code("".join(line for number, groups in enumerate(functions)
                           for line in self.function(number, groups))), names)
        for number, (group, *_) in enumerate(functions):
            turns = design.comb if group.domain == "comb" else design.sync[group.domain]
            turns.append((number, names[f"f{number}"]))
        return design

    def collect(self, fragment):
        for name, statements in fragment.statements.items():
            for group in self.split(self.domain(fragment, name), statements):
                self.add(group, fragment, name)
        if isinstance(fragment, MemoryInstance):
            for name in {port._domain for port in (*fragment._read_ports, *fragment._write_ports)}:
                self.add(_Group(self.domain(fragment, name), fragment), fragment, name)
        for subfragment, _, _ in fragment.subfragments:
            self.collect(subfragment)

    def domain(self, fragment, name):
        if name == "comb":
            return name
        domain = fragment.domains[name]
        assert not domain.async_reset, "an asynchronous reset is not simulated"
        self.domains[id(domain)] = domain
        return id(domain)

    def split(self, domain, statements):
        """Returns groups of statements; two statements that drive a signal are in one."""
        groups, owners = [], SignalDict()
        for statement in statements:
            collector = LHSMaskCollector()
            collector.visit_stmt(statement)
            group = _Group(domain)
            for other in {id(owners[signal]): owners[signal]
                          for signal in collector.lhs if signal in owners}.values():
                groups.remove(other)
                group.statements += other.statements
                group.drive(other.masks)
            group.statements.append(statement)
            group.drive(collector.lhs)
            groups.append(group)
            for signal in group.masks:
                owners[signal] = group
        return groups

    def add(self, group, fragment, name):
        """Compiles the statements of a group, or its ports of a memory."""
        emitter = _PythonEmitter()
        compiler = _Statements(self.state, emitter, group.inputs)
        if group.memory is not None:
            for port in group.memory._read_ports:
                if port._domain == name:
                    collector = LHSMaskCollector()
                    collector.visit_value(port._data, ~0)
                    group.drive(collector.lhs)
        for signal in group.masks:
            index = self.state.get_signal(signal)
            self.state.slots[index].is_comb |= name == "comb"
            emitter.append(f"next_{index} = "
                           + (f"{signal.init}" if name == "comb" else f"s{index}.next"))
        compiler(group.statements)
        if name != "comb" and (reset := fragment.domains[name].rst) is not None:
            emitter.append(f"if {compiler.rhs(reset)}:")
            with emitter.indent():
                emitter.append("pass")
                for signal in group.masks:
                    if not signal.reset_less:
                        emitter.append(f"next_{self.state.get_signal(signal)} = {signal.init}")
        if group.memory is not None:
            self.access(group.memory, name, compiler, emitter)
        group.lines = emitter.flush().splitlines(keepends=True)
        self.groups.append(group)

    def access(self, memory, name, compiler, emitter):
        """Compiles the ports that a memory has in a domain: first those that write."""
        bits, index, written = compiler.rhs.bits, self.state.get_memory(memory._data), {}
        for number, port in enumerate(memory._write_ports):
            if port._domain == name:
                enables = Cat(bit.replicate(port._granularity) for bit in port._en)
                address, data, enable = written[number] = [
                    emitter.def_var(prefix, bits(value)) for prefix, value in
                    (("address", port._addr), ("data", port._data), ("enable", enables))]
                emitter.append(f"if {enable}: s{index}.write({address}, {data}, {enable})")
        for port in memory._read_ports:
            if port._domain != name:
                continue
            emitter.append(f"if {1 if name == 'comb' else bits(port._en)}:")
            with emitter.indent():
                address = emitter.def_var("address", bits(port._addr))
                data = emitter.def_var("data", f"s{index}.read({address})")
                for number in port._transparent_for:
                    other, value, enable = written[number]
                    emitter.append(f"if {address} == {other}: "
                                   f"{data} = {data} & ~{enable} | {value} & {enable}")
                compiler.lhs(port._data)(data)

    @staticmethod
    def ordered(groups):
        """Returns groups in the order of their turns: each after those that drive its inputs."""
        drivers = SignalDict()
        for group in groups:
            for signal in group.masks:
                drivers.setdefault(signal, []).append(group)
        order, seen = {}, set()
        for root in groups:
            stack = [root]
            while stack:
                group = stack[-1]
                if group in seen:
                    order[stack.pop()] = None
                else:
                    seen.add(group)
                    stack += [driver for signal in group.inputs
                              for driver in drivers.get(signal, ()) if driver not in seen]
        return [*order]

    def find_readers(self):
        """Notes for each slot which groups have to run after its change."""
        readers = {}
        for group in self.groups:
            slots = {self.state.get_signal(signal) for signal in group.inputs}
            if group.domain != "comb":
                # The next edge overwrites what a testbench has set.
                slots |= {self.state.get_signal(signal) for signal in group.masks}
            if group.memory is not None:
                slots.add(self.state.get_memory(group.memory._data))
            for slot in slots:
                bits = readers.setdefault(slot, {})
                bits[group.number] = bits.get(group.number, 0) | 1 << group.bit
        for slot, bits in readers.items():
            self.state.slots[slot].readers = tuple(bits.items())

    def function(self, number, groups):
        yield f"def f{number}():\n todo = dirty[{number}]\n dirty[{number}] = 0\n"
        for group in groups:
            yield f" if todo & {1 << group.bit}:\n"
            yield from (f"  {line}" for line in group.lines)
            for signal, mask in group.masks.items():
                yield from self.update(group, signal, mask)

    def update(self, group, signal, mask):
        """Yields code for a driven signal: what to do if it has changed."""
        index = self.state.get_signal(signal)
        slot, new = f"s{index}", f"next_{index}"
        if mask != (1 << len(signal)) - 1:
            if signal.shape().signed and mask >> len(signal) - 1:
                mask |= -1 << len(signal)
            yield f"  {new} = {slot}.next & {~mask} | {new} & {mask}\n"
        yield f"  if {new} != {slot}.next:\n"
        if group.domain != "comb":
            yield f"   {slot}.next = {new}; pending({slot})\n"
            return
        yield f"   if {slot}.wakers: run_wakers({slot}.wakers, {slot}.curr, {new})\n"
        yield f"   {slot}.curr = {slot}.next = {new}\n"
        for number, bits in self.state.slots[index].readers:
            if number == group.number:
                later = bits >> group.bit + 1 << group.bit + 1
                if later:
                    yield f"   todo |= {later}\n"
                bits ^= later
            if bits:
                yield f"   dirty[{number}] |= {bits}\n"
                if number <= group.number:
                    yield "   again(1)\n"


@lru_cache(maxsize=16)
def _code(source):
    # Equal designs, one after the other, have equal sources.
    return compile(source, "<design>", "exec")
