"""Provides the base of every proof: a component with free inputs, a view into it, planted bugs."""

import hashlib
import importlib
import inspect
import linecache
import re
import sys
import types

from amaranth import *
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Fragment
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In

__all__ = ["Harness", "Inside", "if_", "planted", "streams"]


class Inside:
    """Elaborates a component, and gives access to its parts and signals.

    The component is not changed: a proof is about the gateware as it is.

    Parameters
    ----------
    component : Elaboratable
    """

    def __init__(self, component):
        self.fragment = Fragment.get(component, None)

    def part(self, path):
        """Returns the part with a path of submodules' names, such as ``"bursts.credits"``."""
        return _find(self.fragment, path.split("."))

    def component(self, path):
        """Returns the component that a part was elaborated from; its ports have their shapes."""
        return self.part(path).origins[0]

    def __getitem__(self, path):
        """Returns the signal with the path of its part and its name, as that part drives it.

        Amaranth does not know the names of signals that are made several to a line; they are found
        by a line that has ``name.eq(...)`` and no other.
        """
        *parts, name = path.split(".")
        part = _find(self.fragment, parts)
        found = {}
        for one in _assignments(part.statements.values()):
            assigned = re.findall(r"(\S+)\.eq\(", linecache.getline(*one.src_loc))
            for signal in one._lhs_signals():
                known = signal.name == "$signal" and assigned == [name]
                if signal.name == name or known:
                    found[id(signal)] = signal
        # Exclude inputs of its own parts, which the part also drives.
        for inner, _, _ in part.subfragments:
            for port in _ports(inner):
                found.pop(id(port), None)
        if len(found) != 1:
            raise KeyError(f"{path} names {len(found)} signals")
        return next(iter(found.values()))

    def row(self, path, index):
        """Returns the row of a memory, read without a clock."""
        memory = self.part(path)
        row = Signal(memory._data.shape)
        memory.read_port(
            domain="comb", addr=index, data=row, en=Const(1), transparent_for=()
        )
        return row

    def read(self, path, port=0):
        """Returns the output of a memory's read port, by default the first."""
        return self.part(path)._read_ports[port]._data

    def table(self, path, index):
        """Returns the entry of a :class:`~..lib.blockram.ForwardedTable`, read without a clock."""
        return self.row(self._storage(path)[0], index)

    def found(self, path, port=0):
        """Returns what the look-up of the cycle before, and of that before it, found in a
        :class:`~..lib.blockram.ForwardedTable`.
        """
        storage, forwards = self._storage(path)
        read, shown = self.read(storage, port), f"held_{port}"
        if not forwards:
            return read, self[_join(path, shown)]
        clash = self[_join(path, f"clash_{port}")]
        latest = [self[_join(path, f"latest_{k}")] for k in range(2)]
        held = self[_join(path, "ram." + shown)]
        return tuple(Mux(clash[k], latest[k], each) for k, each in enumerate((read, held)))

    def _storage(self, path):
        """Returns the path of a table's memory, and whether the table forwards its writes."""
        for name, forwards in (("storage", False), ("ram.storage", True)):
            try:
                self.part(_join(path, name))
            except NameError:
                continue
            return _join(path, name), forwards
        raise KeyError(f"{path} is no table")


def _assignments(statements):
    for one in statements:
        if isinstance(one, list):
            yield from _assignments(one)
        elif hasattr(one, "cases"):
            yield from _assignments(inner for _, inner, *_ in one.cases)
        elif hasattr(one, "lhs"):
            yield one


def _ports(fragment):
    for one in fragment.origins or ():
        if isinstance(one, wiring.Component):
            yield from (Value.cast(value) for *_, value in one.signature.flatten(one))


def _join(path, name):
    return f"{path}.{name}" if path else name


def _find(fragment, names):
    for name in names:
        fragment = fragment.find_subfragment(name)
    return fragment


class Harness(Elaboratable):
    """Holds a component under proof, all of whose inputs are free.

    The docstring of a subclass states a theorem, its assumptions and the depth of the proof;
    ``rules(m)`` makes the statements. In the first cycle, all state has its reset value.

    Parameters
    ----------
    component : wiring.Component
    lemmas : bool
        Also assert the lemmas that only serve the induction. Without them, every failure is one of
        the property.

    Attributes
    ----------
    dut : wiring.Component
    inside : Inside
    """

    def __init__(self, component, *, lemmas=True):
        self.lemmas = lemmas
        self.clock = ClockDomain("sync", reset_less=True)
        self.dut = component
        self.inside = Inside(component)
        self._driven = []
        self._m = Module()

    def elaborate(self, platform):
        m = self._m
        m.domains.sync = self.clock
        m.submodules.dut = self.inside.fragment
        self.rules(m)
        for _, member, value in self.dut.signature.flatten(self.dut):
            if member.flow == In and not any(value is other for other in self._driven):
                self.free(value)
        return m

    def rules(self, m):
        raise NotImplementedError

    def any(self, shape, *, name, constant=False):
        """Returns a free signal: with any value in every cycle, or any that is constant."""
        signal = Signal(shape, name=name)
        self.free(signal, constant=constant)
        return signal

    def free(self, signal, *, constant=False):
        value = Value.cast(signal)
        if len(value) and not isinstance(value, Const):
            self._m.d.comb += value.eq((AnyConst if constant else AnySeq)(len(value)))

    def drive(self, port, value):
        """Drives an input of the component, which is then no longer free."""
        self._driven.append(port)
        self._m.d.comb += Value.cast(port).eq(value)

    def past(self, value, cycles=1, *, name="past"):
        """Returns the value of ``cycles`` cycles before; 0 in the first ones."""
        value = Value.cast(value)
        for _ in range(cycles):
            before = Signal(value.shape(), name=name)
            self._m.d.sync += before.eq(value)
            value = before
        return value

    def always(self, condition, message):
        self._m.d.comb += Assert(condition, message, src_loc_at=1)

    def lemma(self, condition, message):
        """Asserts a fact that is needed to make the property inductive."""
        if self.lemmas:
            self._m.d.comb += Assert(condition, message, src_loc_at=1)

    def assume(self, condition):
        self._m.d.comb += Assume(condition)

    def steady(self, port, message):
        """Asserts that a stream holds ``valid`` and payload until the transfer."""
        waits = self.past(port.valid & ~port.ready)
        same = Value.cast(port.payload) == self.past(port.payload)
        self.always(if_(waits, port.valid & same), message)

    def polite(self, port):
        """Assumes the same for an input stream."""
        waits = self.past(port.valid & ~port.ready)
        same = Value.cast(port.payload) == self.past(port.payload)
        self.assume(if_(waits, port.valid & same))


def if_(condition, consequence):
    """Returns the implication: ``condition`` implies ``consequence``."""
    return ~_bit(condition) | _bit(consequence)


def _bit(value):
    value = Value.cast(value)
    return value if len(value) == 1 else value.any()


def streams(component):
    """Returns the streams of a component that can wait: name, interface, whether it is an output.
    """

    def walk(signature, interface, path):
        for name, member in signature.members.items():
            if not member.is_signature or member.dimensions:
                continue
            # The signature of an input member is flipped, and so are its members'.
            inner, port = member.signature, getattr(interface, name)
            inward = isinstance(inner, wiring.FlippedSignature)
            plain = inner.flip() if inward else inner
            if not isinstance(plain, stream.Signature):
                yield from walk(inner, port, (*path, name))
            elif not plain.always_ready:
                yield ".".join((*path, name)), port, not inward

    return list(walk(component.signature, component, ()))


def planted(module, old="", new="", **others):
    """Returns a copy of a module of the gateware with a bug in it.

    Parameters
    ----------
    module : str
        Its name below ``hdl``.
    old, new : str
        Text that occurs exactly once in the module, and its replacement.
    others
        Names with another meaning in the copy: objects from another copy.
    """
    package = __package__.rsplit(".", 1)[0]
    original = importlib.import_module(f"{package}.{module}")
    text = inspect.getsource(original)
    if old:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} stands in {module} {text.count(old)} times, not once")
        text = text.replace(old, new)
    copy = types.ModuleType(f"{original.__name__}_with_bug")
    copy.__package__ = original.__package__
    copy.__file__ = f"{original.__file__}+{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    linecache.cache[copy.__file__] = (len(text), None, text.splitlines(True), copy.__file__)
    # Annotated classes look up their module.
    sys.modules[copy.__name__] = copy
    exec(compile(text, copy.__file__, "exec"), copy.__dict__)
    vars(copy).update(others)
    return copy
