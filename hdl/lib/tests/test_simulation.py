"""Compares :mod:`ddp_rnic.hdl.lib.simulation` with Amaranth's own simulator."""

import random

import pytest
from amaranth.hdl import *
from amaranth.lib import data, enum
from amaranth.lib.memory import Memory
from amaranth.sim import BrokenTrigger
from ddp_rnic.hdl.lib.simulation import LevelizedEngine
from ddp_rnic.hdl.lib.testing import make_simulator

ENGINES = ("pysim", LevelizedEngine)


class Drawn(Elaboratable):
    """Is a design of random statements on random signals, some of them in submodules.

    A combinational signal reads those before it and registers alone, except ``loop``, whose bits
    read each other.
    """

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.inputs = [self.signal(f"i{n}") for n in range(4)]
        self.registers = [self.signal(f"r{n}", reset_less=rng.random() < 0.3) for n in range(8)]
        self.wires = [self.signal(f"w{n}") for n in range(10)]
        self.loop = Signal(8)
        self.memories = [Memory(shape=unsigned(8), depth=rng.choice((3, 4, 8)),
                                init=[rng.randrange(256) for _ in range(3)]) for _ in range(2)]
        self.read = [Signal(8, name=f"m{n}") for n in range(4)]
        self.signals = [*self.inputs, *self.registers, *self.wires, self.loop, *self.read]

    def signal(self, name, **options):
        shape = Shape(self.rng.randrange(1, 12), signed=self.rng.random() < 0.4)
        return Signal(shape, name=name, init=self.rng.randrange(1 << shape.width - 1), **options)

    def value(self, known, depth=0):
        """Draws an expression."""
        rng = self.rng
        kind = rng.randrange(12) if depth < 3 else 0
        if kind < 3:
            return rng.choice(known)
        if kind == 3:
            return Const(rng.randrange(-9, 60))
        first, second = (self.value(known, depth + 1) for _ in range(2))
        if kind == 4:
            return rng.choice((
                lambda: ~first, lambda: -first, first.bool, first.any, first.all, first.xor,
                first.as_unsigned, (first + 0).as_signed))()
        if kind == 5:
            start = rng.randrange(len(first)) if len(first) else 0
            return first[start:rng.randrange(start, len(first) + 1)]
        if kind in (6, 7):
            first += 0  # Amaranth's simulator errs in (~x).bit_select(), where x is unsigned.
        if kind == 6:
            return first.bit_select(second.as_unsigned()[:4], rng.randrange(1, 5))
        if kind == 7:
            return first.word_select(second.as_unsigned()[:2], rng.randrange(1, 5))
        if kind == 8:
            return Cat(first, second, 1)
        if kind == 9:
            return Mux(self.value(known, depth + 1), first, second)
        if kind == 10:
            return rng.choice((first << second.as_unsigned()[:3], first >> second.as_unsigned()[:3],
                               first.shift_left(2), first.rotate_left(1) if len(first) else first))
        return rng.choice((
            lambda: first + second, lambda: first - second, lambda: first * second,
            lambda: first // second, lambda: first % second, lambda: first & second,
            lambda: first | second, lambda: first ^ second, lambda: first == second,
            lambda: first != second, lambda: first < second, lambda: first <= second,
            lambda: first > second, lambda: first >= second))()

    def statements(self, m, domain, target, known, depth=0):
        """Assigns to a signal, or to a part of it, perhaps on a condition."""
        rng = self.rng
        for _ in range(rng.randrange(1, 3)):
            kind = rng.randrange(5) if depth < 2 else 4
            if kind == 0:
                with m.If(self.value(known).bool()):
                    self.statements(m, domain, target, known, depth + 1)
                with m.Elif(self.value(known).bool()):
                    self.statements(m, domain, target, known, depth + 1)
                with m.Else():
                    self.statements(m, domain, target, known, depth + 1)
            elif kind == 1:
                test = self.value(known)
                with m.Switch(test[:2] if len(test) > 1 else rng.choice(self.inputs)[:1]):
                    with m.Case(1):
                        self.statements(m, domain, target, known, depth + 1)
                    with m.Default():
                        self.statements(m, domain, target, known, depth + 1)
            elif kind == 2:
                at = rng.choice(known).as_unsigned()[:3]
                m.d[domain] += target.bit_select(at, 2).eq(self.value(known))
            elif kind == 3:
                m.d[domain] += target[rng.randrange(len(target)):].eq(self.value(known))
            else:
                m.d[domain] += target.eq(self.value(known))

    def elaborate(self, platform):
        m, rng = Module(), self.rng
        state = [*self.inputs, *self.registers, *self.read[2:]]
        places = [m, Module(), Module()]
        m.submodules += places[1:]
        rng.shuffle(places)
        for register in self.registers:
            self.statements(rng.choice(places), "sync", register, [*state, *self.wires])
        for number, wire in enumerate(self.wires):
            self.statements(rng.choice(places), "comb", wire, [*state, *self.wires[:number]])
        m.d.comb += [self.loop[n].eq(self.loop[n - 1] ^ self.wires[n][0]) for n in (3, 2, 1)]
        m.d.comb += self.loop[4:].eq(self.registers[0])
        for number, memory in enumerate(self.memories):
            m.submodules += memory
            write = memory.write_port(granularity=4)
            ports = [memory.read_port(domain="comb"), memory.read_port(
                transparent_for=(write,) if number else ())]
            known = [*state, *self.wires]
            m.d.comb += [
                write.addr.eq(self.value(known)), write.data.eq(self.value(known)),
                write.en.eq(self.value(known)), ports[1].en.eq(self.value(known)),
                ports[0].addr.eq(rng.choice(self.registers)), ports[1].addr.eq(rng.choice(known)),
                self.read[number].eq(ports[0].data), self.read[2 + number].eq(ports[1].data),
            ]
        return m


def trace(seed, engine):
    """Returns the values of all signals after each change of an input, and at each edge."""
    design, rng, seen = Drawn(seed), random.Random(seed), []
    dut = ResetInserter(reset := Signal())(design)

    async def other(ctx):
        async for _, _, *values in ctx.tick().sample(*design.signals):
            seen.append(values)

    async def main(ctx):
        for _ in range(40):
            ctx.set(reset, rng.random() < 0.1)
            for each in design.inputs:
                if rng.random() < 0.5:
                    ctx.set(each, rng.randrange(-3, 1 << len(each)))
            if rng.random() < 0.1:
                register = rng.choice(design.registers)
                ctx.set(register, rng.randrange(1 << len(register)))
                memory = rng.choice(design.memories)
                ctx.set(memory.data[rng.randrange(3)], rng.randrange(256))
            seen.append([ctx.get(signal) for signal in design.signals])
            seen.append([ctx.get(row) for memory in design.memories
                         for row in (memory.data[n] for n in range(3))])
            await ctx.tick()

    simulator = make_simulator(dut, main, background=[other], engine=engine)
    simulator.run()
    first = [*seen]
    seen.clear()
    rng.seed(seed)
    simulator.reset()
    simulator.run()
    assert seen == first, "a second run after a reset"
    return first


@pytest.mark.filterwarnings("ignore::amaranth.hdl._ast.SyntaxWarning")
@pytest.mark.parametrize("seed", range(20))
def test_random_designs_have_the_values_of_amaranths_simulator(seed):
    expected, got = (trace(seed, engine) for engine in ENGINES)
    assert got == expected
    assert len({tuple(values) for values in got}) > 10


class Kind(enum.Enum, shape=2):
    NONE = 0
    ONE = 1
    TWO = 2


class Inner(data.Struct):
    kind: Kind
    count: unsigned(5) = 7


class Outer(data.Struct):
    inner: Inner
    signed: signed(4)
    either: data.UnionLayout({"wide": 6, "narrow": 3})
    array: data.ArrayLayout(3, 2)


@pytest.mark.parametrize("value", [
    {}, {"inner": {"kind": Kind.TWO}}, {"inner": {"count": 31, "kind": 1}, "signed": -3},
    {"either": {"narrow": 5}, "array": [1, 6]}, {"signed": 7, "array": [2]},
    Outer.const({"signed": -1}), {"inner": Inner.const({"count": 1})},
    {"inner": {"count": 33}}, {"signed": 9},
])
def test_structs_are_set_and_read_as_by_amaranth(value):
    def run(engine):
        i, o, seen = Signal(Outer), Signal(Outer), []
        m = Module()
        m.d.sync += o.eq(i)

        async def main(ctx):
            ctx.set(i, value)
            ctx.set(i.either.wide[5], 1)
            _, _, before, kind = await ctx.tick().sample(i, i.inner.kind)
            after = ctx.get(o)
            seen.append((before.as_bits(), after.as_bits(), after.inner.kind, after.signed,
                         kind, type(kind), ctx.get(o.signed), ctx.get(o.inner.count)))

        make_simulator(m, main, engine=engine).run()
        return seen

    assert run("pysim") == run(LevelizedEngine)


@pytest.mark.parametrize("engine", ENGINES)
def test_mistakes_of_a_testbench_are_errors(engine):
    m, a, b = Module(), Signal(Inner), Signal(3)
    m.d.comb += b.eq(a.count)
    m.d.sync += Signal().eq(1)

    async def main(ctx):
        with pytest.raises(DriverConflict):
            ctx.set(b, 1)
        with pytest.raises(ValueError, match="refers to key 'other'"):
            ctx.set(a, {"other": 1})
        with pytest.raises(BrokenTrigger):
            async for _ in ctx.tick():
                await ctx.tick()

    make_simulator(m, main, engine=engine).run()


def test_testbenches_take_turns_in_their_order():
    def run(engine):
        m, a, b, log = Module(), Signal(8), Signal(8), []
        m.d.comb += b.eq(a + 1)
        m.d.sync += a.eq(a + 1)

        async def first(ctx):
            for _ in range(3):
                _, _, sampled = await ctx.tick().sample(b)
                log.append(("first", sampled, ctx.get(b)))
                ctx.set(a, 10)

        async def second(ctx):
            log.append(("until", *await ctx.tick().sample(a).until(b == 12)))
            _, changed = await ctx.delay(1).changed(b)
            log.append(("changed", changed, ctx.get(a)))
            await ctx.tick().repeat(2)
            log.append(("repeat", ctx.get(a)))

        make_simulator(m, first, second, engine=engine).run()
        return log

    assert run("pysim") == run(LevelizedEngine)
