"""Simulates as Amaranth's own simulator does, several times faster.

Values, and the turns of testbenches, are the same. :mod:`ddp_rnic.hdl.lib.levelize` compiles the
design, so signals have no glitches. Testbenches read and set structs in less time, because the
engine looks up each layout once. There is no ``write_vcd``.

For tests and drawings alone: no gateware imports this file.
"""

from collections.abc import Mapping
from enum import Enum

from amaranth.hdl import Const, Shape, ShapeCastable, Signal, Value, ValueCastable
from amaranth.lib import data
from amaranth.sim._async import AsyncProcess, BrokenTrigger, TestbenchContext, TickTrigger
from amaranth.sim.pysim import (
    PySimEngine,
    _PyEngineState,
    _PyMemoryState,
    _PySignalState,
    _run_wakers,
)

from .levelize import levelize

#: How many values a simulation remembers at most, of each kind.
REMEMBERED = 1000


class _Signal(_PySignalState):
    """Adds ``readers``: functions of the design, and the groups in them that read the signal."""

    __slots__ = ("readers",)

    def __init__(self, signal, pending):
        super().__init__(signal, pending)
        self.readers = ()


class _Memory(_PyMemoryState):
    __slots__ = ("readers",)

    def __init__(self, memory, pending):
        super().__init__(memory, pending)
        self.readers = ()


class _State(_PyEngineState):
    def get_signal(self, signal):
        if signal not in self.signals:
            self.signals[signal] = len(self.slots)
            self.slots.append(_Signal(signal, self.pending))
        return self.signals[signal]

    def get_memory(self, memory):
        if memory not in self.memories:
            self.memories[memory] = len(self.slots)
            self.slots.append(_Memory(memory, self.pending))
        return self.memories[memory]


class _Tick(TickTrigger):
    """Waits for edges of a clock, with less to do for each than its base class."""

    def sample(self, *exprs):
        return _Tick(self._engine, self._process,
                     domain=self._domain, sampled=(*self._sampled, *exprs))

    def fire(self):
        """Samples the values before the edge, and wakes the testbench up."""
        read, reset = self._engine.read, self._domain.rst
        self.result = (
            True, reset is not None and bool(read(reset)), *map(read, self._sampled))
        self._process.runnable, self._process.waits_on = True, None

    def initial_eligible(self):
        return False

    def __await__(self):
        self._engine.waiting[id(self._domain)].append(self)
        yield self
        return self.result

    async def __aiter__(self):
        edges, domain = self._engine.edges, id(self._domain)
        while True:
            result = await self
            seen = edges[domain]
            yield result
            if edges[domain] != seen:
                raise BrokenTrigger


class _Context(TestbenchContext):
    def get(self, expr):
        return self._engine.read(expr)

    def set(self, expr, value):
        if isinstance(expr, ValueCastable) and isinstance(shape := expr.shape(), ShapeCastable):
            value = self._engine.pack(shape, value)
        elif type(value) is not int:
            value = Const.cast(value).value
        self._engine.set_value(expr, value)
        self._engine.step_design()

    def tick(self, domain="sync", *, context=None):
        tick = super().tick(domain, context=context)
        return _Tick(tick._engine, tick._process, domain=tick._domain)


class _Testbench(AsyncProcess):
    def __init__(self, design, engine, constructor, *, background):
        self.constructor, self.background = constructor, background
        self.context = _Context(design, engine, self)
        self.reset()


class LevelizedEngine(PySimEngine):
    """Is an engine for :class:`amaranth.sim.Simulator`."""

    def __init__(self, design):
        self._design = design
        self._state = _State()
        self._levelized = levelize(design.fragment, self._state)
        self._processes = set()
        self._testbenches = []
        self._active_triggers = set()
        # By the id() of their clock domains: edges so far, and ticks that wait for the next one.
        self.edges, self.waiting = {}, {}
        self._hit = []
        self._domains = {*design.fragment.domains.values(), *self._levelized.domains}
        for domain in self._domains:
            self._watch(domain)
        # By the id() of an expression or shape, which is kept beside.
        self._places, self._consts, self._packed, self._layouts = {}, {}, {}, {}

    def _watch(self, domain):
        polarity = int(domain.clk_edge == "pos")
        self.edges[id(domain)], self.waiting[id(domain)] = 0, []

        def waker(curr, next):
            if next == polarity:
                self._hit.append(id(domain))
            return True

        self._state.add_signal_waker(domain.clk, waker)

    def add_async_testbench(self, simulator, process, *, background):
        self._testbenches.append(_Testbench(self._design, self, process, background=background))

    def forget_testbenches(self):
        """Makes the engine as good as new, apart from clocks; a reset has to follow."""
        self._testbenches.clear()
        self._active_triggers.clear()
        for slot in self._state.slots:
            slot.wakers.clear()
        for domain in self._domains:
            self._watch(domain)

    def write_vcd(self, **options):
        raise NotImplementedError("this engine writes no VCD: use Amaranth's own")

    def reset(self):
        super().reset()
        self._levelized.dirty[:] = self._levelized.all
        self._hit.clear()
        for waiting in self.waiting.values():
            waiting.clear()

    def step_design(self):
        pending, sync = self._state.pending, self._levelized.sync
        dirty, comb, again = self._levelized.dirty, self._levelized.comb, self._levelized.again
        triggers, hit = self._active_triggers, self._hit
        while True:
            for trigger in triggers:
                trigger.run()
            triggers.clear()
            for domain in hit:
                self._tick(domain)
            for process in self._processes:
                if process.runnable:
                    process.runnable = False
                    process.run()
            for domain in hit:
                for number, function in sync.get(domain, ()):
                    if dirty[number]:
                        function()
            hit.clear()
            if pending:
                self._commit(pending, dirty)
            while True:
                for number, function in comb:
                    if dirty[number]:
                        function()
                if not again:
                    break
                again.clear()
            if not (triggers or hit):
                return

    def _tick(self, domain):
        self.edges[domain] += 1
        waiting, self.waiting[domain] = self.waiting[domain], []
        for tick in waiting:
            tick.fire()

    @staticmethod
    def _commit(pending, dirty):
        for slot in pending:
            if type(slot) is _Memory:
                changed = slot.commit()
            elif changed := slot.curr != slot.next:
                if slot.wakers:
                    _run_wakers(slot.wakers, slot.curr, slot.next)
                slot.curr = slot.next
            if changed:
                for number, bits in slot.readers:
                    dirty[number] |= bits
        pending.clear()

    def read(self, expr):
        """Returns the value of an expression, in the form of its shape."""
        _, value, slot, shape = self._find(expr)
        bits = self.get_value(value) if slot is None else slot.curr
        if shape is None:
            return bits
        if (id(shape), bits) not in self._consts:
            _remember(self._consts, (id(shape), bits), (shape.from_bits(bits), shape))
        return self._consts[id(shape), bits][0]

    def set_value(self, expr, value):
        _, target, slot, _ = self._find(expr)
        if slot is None or slot.is_comb or target.shape().signed:
            super().set_value(target, value)
        else:
            slot.update(value & (1 << len(target)) - 1)

    def _find(self, expr):
        """Returns an expression, its value, the slot of a signal, and the shape if not a plain one.

        The first is there so that the expression stays alive, and its id() its own.
        """
        place = self._places.get(id(expr))
        if place is None:
            value, slot, shape = Value.cast(expr), None, None
            if isinstance(expr, ValueCastable) and isinstance(expr.shape(), ShapeCastable):
                shape = expr.shape()
            if type(value) is Signal:
                slot = self._state.slots[self._state.get_signal(value)]
            place = expr, value, slot, shape
            if slot is not None:
                _remember(self._places, id(expr), place)
        return place

    def pack(self, shape, value):
        """Returns ``shape.const(value)`` as an integer."""
        _, bits, fields = self._layout(shape)
        if isinstance(value, Mapping) and fields:
            for name, part in value.items():
                offset, width, inner = fields.get(name, (0, 0, None))
                if inner is not None:
                    part = self.pack(inner, part)
                elif isinstance(part, Enum):
                    part = part.value
                if not isinstance(part, int) or not 0 <= part < 1 << width:
                    break  # Amaranth decides: it warns, or raises an error.
                mask = (1 << width) - 1
                bits = bits & ~(mask << offset) | part << offset
            else:
                return bits
        elif isinstance(value, Enum):
            if (id(shape), value) not in self._packed:
                packed = Const.cast(shape.const(value)).value
                _remember(self._packed, (id(shape), value), (packed, shape))
            return self._packed[id(shape), value][0]
        return Const.cast(shape.const(value)).value

    def _layout(self, shape):
        """Returns a shape, its initial bits, and its fields: their place, and shape if not plain.

        Signed fields, and those of a union or an array, are left out.
        """
        if id(shape) not in self._layouts:
            layout = shape if isinstance(shape, data.Layout) else shape.as_shape()
            init, fields = 0, {}
            if isinstance(layout, data.StructLayout):
                init = Const.cast(shape.const({})).value
                for name, field in layout:
                    inner = field.shape if isinstance(field.shape, ShapeCastable) else None
                    if not Shape.cast(field.shape).signed:
                        fields[name] = field.offset, field.width, inner
            self._layouts[id(shape)] = shape, init, fields
        return self._layouts[id(shape)]


def _remember(values, key, value):
    if len(values) >= REMEMBERED:
        values.clear()
    values[key] = value
