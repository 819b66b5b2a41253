"""What every proof is built of: a component with free inputs, a view inside it, planted bugs."""

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
    """A component elaborated, with its parts and signals in reach.

    Nothing is changed by that: a proof is of the gateware as it stands.

    Parameters
    ----------
    component : Elaboratable
    """

    def __init__(self, component):
        self.fragment = Fragment.get(component, None)

    def part(self, path):
        """The part by a path of names of submodules, ``"bursts.credits"``."""
        return _find(self.fragment, path.split("."))

    def component(self, path):
        """The component that a part was elaborated from; its ports have their shapes."""
        return self.part(path).origins[0]

    def __getitem__(self, path):
        """The signal by the path of its part and its name, as that part drives it.

        Amaranth does not see the names of signals that are made in one line; they are known by
        a line that has ``name.eq(...)`` and no other.
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
        # Not what it drives of its own parts.
        for inner, _, _ in part.subfragments:
            for port in _ports(inner):
                found.pop(id(port), None)
        if len(found) != 1:
            raise KeyError(f"{path} names {len(found)} signals")
        return next(iter(found.values()))

    def row(self, path, index):
        """The row of a memory, read without a clock."""
        memory = self.part(path)
        row = Signal(memory._data.shape)
        memory.read_port(
            domain="comb", addr=index, data=row, en=Const(1), transparent_for=()
        )
        return row

    def read(self, path):
        """What a memory has read by its first port."""
        return self.part(path)._read_ports[0]._data


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


def _find(fragment, names):
    for name in names:
        fragment = fragment.find_subfragment(name)
    return fragment


class Harness(Elaboratable):
    """A component under proof, all its inputs free.

    A subclass says in its docstring what is proved, under which assumptions and how deep, and
    makes the statements in ``rules(m)``. All state has its value at reset in the first cycle.

    Parameters
    ----------
    component : wiring.Component
    lemmas : bool
        Assert what only serves the induction too. Without, a failure is one of the property.

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
        """A signal of any value, in every cycle another one or for ever the same."""
        signal = Signal(shape, name=name)
        self.free(signal, constant=constant)
        return signal

    def free(self, signal, *, constant=False):
        value = Value.cast(signal)
        if len(value) and not isinstance(value, Const):
            self._m.d.comb += value.eq((AnyConst if constant else AnySeq)(len(value)))

    def drive(self, port, value):
        """Drive an input of the component, which then is not free."""
        self._driven.append(port)
        self._m.d.comb += Value.cast(port).eq(value)

    def past(self, value, cycles=1, *, name="past"):
        """A value of the cycle before; 0 in the first one."""
        value = Value.cast(value)
        for _ in range(cycles):
            before = Signal(value.shape(), name=name)
            self._m.d.sync += before.eq(value)
            value = before
        return value

    def always(self, condition, message):
        self._m.d.comb += Assert(condition, message, src_loc_at=1)

    def lemma(self, condition, message):
        """What holds besides, and makes the property inductive."""
        if self.lemmas:
            self._m.d.comb += Assert(condition, message, src_loc_at=1)

    def assume(self, condition):
        self._m.d.comb += Assume(condition)

    def steady(self, port, message):
        """A stream holds ``valid`` and payload until the transfer."""
        waits = self.past(port.valid & ~port.ready)
        same = Value.cast(port.payload) == self.past(port.payload)
        self.always(if_(waits, port.valid & same), message)

    def polite(self, port):
        """Assume that of a stream that comes in."""
        waits = self.past(port.valid & ~port.ready)
        same = Value.cast(port.payload) == self.past(port.payload)
        self.assume(if_(waits, port.valid & same))


def if_(condition, consequence):
    """Implication."""
    return ~_bit(condition) | _bit(consequence)


def _bit(value):
    value = Value.cast(value)
    return value if len(value) == 1 else value.any()


def streams(component):
    """The streams of a component that can wait: name, interface, whether it goes out."""

    def walk(signature, interface, path):
        for name, member in signature.members.items():
            if not member.is_signature or member.dimensions:
                continue
            # The signature of a member that comes in is flipped, and so are its members'.
            inner, port = member.signature, getattr(interface, name)
            inward = isinstance(inner, wiring.FlippedSignature)
            plain = inner.flip() if inward else inner
            if not isinstance(plain, stream.Signature):
                yield from walk(inner, port, (*path, name))
            elif not plain.always_ready:
                yield ".".join((*path, name)), port, not inward

    return list(walk(component.signature, component, ()))


def planted(module, old="", new="", **others):
    """A copy of a module of the gateware with a bug in it.

    Parameters
    ----------
    module : str
        Its name below ``hdl``.
    old, new : str
        Text that stands there once, and what takes its place.
    others
        Names that mean something else there: what came from another copy.
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
    # Annotated classes look their module up.
    sys.modules[copy.__name__] = copy
    exec(compile(text, copy.__file__, "exec"), copy.__dict__)
    vars(copy).update(others)
    return copy
