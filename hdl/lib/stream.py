"""Declares the beat of a packet that every block shares, and queues and registers for streams."""

from functools import reduce
from operator import or_

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Backlog", "Beat", "Pointers", "Prefetch", "Queue", "Skid", "Stage", "Store", "any_of",
           "copies", "counted", "delayed", "nibbles", "plus", "ram_style"]


def any_of(values):
    """Returns the bitwise OR of all values; 0 if there are none."""
    return reduce(or_, values, C(0))


def nibbles(one, other):
    """Returns one bit per nibble, set where the two values are equal.

    This is the first of two steps of a wide comparison; the second one is ``.all()``.
    """
    return Cat(one[at:at + 4] == other[at:at + 4] for at in range(0, len(one), 4))


def plus(one, other, carry):
    """Returns ``one + other + carry`` with the carry out as highest bit, in one carry chain."""
    return (Cat(C(1, 1), one) + Cat(carry, other))[1:]


def delayed(m, cycles, value, name):
    """Returns ``value`` as it was ``cycles`` ago. The registers, ``{name}_0``..., have no reset."""
    for k in range(cycles):
        stage = Signal(value.shape(), name=f"{name}_{k}", reset_less=True)
        m.d.sync += stage.eq(value)
        value = stage
    return value


def copies(m, value, count, *, name, first=0):
    """Returns ``count`` registers of the same ``value`` that synthesis does not merge into one.

    They differ in initial value, in whether they are reset at all, and in polarity; synthesis
    cannot prove up to eight of them equal, those of numbers from ``first`` on. They are valid one
    cycle after the first ``value``.
    """
    value = Value.cast(value)
    result = []
    for n in range(first, first + count):
        ones = (1 << len(value)) - 1 if n & 1 else 0
        copy = Signal(len(value), init=ones, reset_less=bool(n & 2), name=f"{name}{n}")
        m.d.sync += copy.eq(~value if n & 4 else value)
        result.append(~copy if n & 4 else copy)
    return result


def ram_style(shape, depth):
    """Returns the kind of memory for ``depth`` items of ``shape``, synthesis' ``ram_style``.

    At most 64 items of at most 144 bits lie in distributed RAM, which takes at most 216 LUT4 for
    each block RAM that it saves. An ECP5 has 400 LUT4 for each of its block RAMs.
    """
    few = depth <= 64 and Shape.cast(shape).width <= 144
    return "distributed" if few else "block"


def counted(m, count, up, down):
    """Makes ``count`` rise by one with ``up`` and fall by one with ``down``."""
    with m.If(up & ~down):
        m.d.sync += count.eq(count + 1)
    with m.Elif(down & ~up):
        m.d.sync += count.eq(count - 1)


class Beat(data.StructLayout):
    """One beat of a packet, ``width`` bits of data.

    Members
    -------
    data : unsigned(width)
        Octets, the first one lowest.
    count : range(width // 8 + 1)
        Valid octets, counted from the lowest; all octets are valid except on the last beat.
    last : 1
        This beat ends the packet.
    error : 1
        On the last beat: the packet is damaged and must not be used.
    """

    def __init__(self, width):
        self.width = width
        super().__init__({"data": width, "count": range(width // 8 + 1), "last": 1, "error": 1})


class Pointers(wiring.Component):
    """Keeps the addresses of a ring of items, and how many items it holds.

    Whether an item is the last one in the ring is computed one cycle earlier, so that a push or a
    pop reaches ``some`` through one gate.

    Latency: 1 cycle. Throughput: one push and one pop per cycle. Reset: empty. Errors: none; a
    push into a full ring and a pop from an empty one are not allowed.

    Parameters
    ----------
    depth : int
        A power of two.

    Members
    -------
    push, pop : In(1)
    some : Out(1)
        The ring holds an item.
    level : Out(range(depth + 1))
        Items in the ring, including one that left in the last cycle.
    write, read : Out(range(depth))
        Where the next item goes, and where the oldest one is.
    """

    def __init__(self, depth):
        super().__init__({
            "push": In(1),
            "pop": In(1),
            "some": Out(1),
            "level": Out(range(depth + 1)),
            "write": Out(range(depth)),
            "read": Out(range(depth)),
        })

    def elaborate(self, platform):
        m = Module()
        popped = Signal()
        # One-hot: whether the level is 0, 1 or 2.
        none, one, two = Signal(init=1), Signal(), Signal()
        counted(m, self.level, self.push, popped)
        with m.If(self.push ^ popped):
            m.d.sync += [
                none.eq(one & popped),
                one.eq(Mux(popped, two, none)),
                two.eq(Mux(popped, self.level == 3, one)),
            ]
        with m.If(self.push):
            m.d.sync += self.write.eq(self.write + 1)
        with m.If(self.pop):
            m.d.sync += self.read.eq(self.read + 1)
        m.d.sync += [
            popped.eq(self.pop),
            # Written as gates, so that synthesis gives the register no enable.
            self.some.eq(self.push | (self.some & ~(self.pop & Mux(popped, two, one)))),
        ]
        return m


class Store(wiring.Component):
    """Queues items for a writer that checks ``half`` and never waits.

    Latency: 1 cycle. Throughput: one item per cycle. Reset: empty. Errors: none; a push into a full
    store is not allowed. ``o.payload`` is combinational, read from distributed RAM.

    If ``direct``, an item that arrives in an empty store is offered in its own cycle: latency 0.

    Parameters
    ----------
    shape
    depth : int
        Capacity in items, a power of two.
    direct : bool
        ``o`` is combinational from ``i``, which should be a register.

    Members
    -------
    i : In(stream.Signature(shape, always_ready=True))
    o : Out(stream.Signature(shape))
    half : Out(1)
        More than half of the store is free. Combinational; does not count a push in this cycle.
    level : Out(range(depth + 1))
        Items in the store, including one that left in the last cycle.
    """

    def __init__(self, shape, *, depth, direct=False):
        if not isinstance(depth, int):
            raise TypeError(f"Queue depth must be an integer, not {depth!r}")
        if depth < 4 or depth & (depth - 1):
            raise ValueError(f"Queue depth must be a power of two and at least 4, not {depth!r}")
        self.shape = shape
        self.depth = depth
        self.direct = direct
        super().__init__({
            "i": In(stream.Signature(shape, always_ready=True)),
            "o": Out(stream.Signature(shape)),
            "half": Out(1),
            "level": Out(range(depth + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.storage = storage = memory.Memory(
            shape=self.shape, depth=self.depth, init=[])
        m.submodules.pointers = pointers = Pointers(self.depth)
        write, read = storage.write_port(), storage.read_port(domain="comb")
        passes = ~pointers.some & self.o.ready if self.direct else C(0)

        m.d.comb += [
            self.o.valid.eq(pointers.some | (self.i.valid if self.direct else 0)),
            self.o.payload.eq(read.data),
            self.level.eq(pointers.level),
            self.half.eq(~self.level[-2:].any()),
            pointers.push.eq(self.i.valid & ~passes),
            pointers.pop.eq(pointers.some & self.o.ready),
            write.en.eq(self.i.valid),
            write.addr.eq(pointers.write),
            write.data.eq(self.i.payload),
            read.addr.eq(pointers.read),
        ]
        if self.direct:
            with m.If(~pointers.some):
                m.d.comb += self.o.payload.eq(self.i.payload)
        return m


class Stage(wiring.Component):
    """Registers a stream once.

    Latency: 1 cycle. Throughput: one item per cycle. Reset: empty. Errors: none. ``i.ready`` is
    combinational from ``o.ready``.

    Parameters
    ----------
    shape

    Members
    -------
    i : In(stream.Signature(shape))
    o : Out(stream.Signature(shape))
    """

    def __init__(self, shape):
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        # ``i.valid`` does not gate the wide register: its payload is loaded in any case.
        with m.If(self.i.ready):
            m.d.sync += [self.o.valid.eq(self.i.valid), self.o.payload.eq(self.i.payload)]
        return m


class Skid(wiring.Component):
    """Registers a stream, payload and ``ready`` both: a skid buffer of two registers.

    Latency: 1 cycle. Throughput: one item per cycle. Reset: empty. Errors: none. If ``relaxed``, it
    is a :class:`Stage`, of half the size.

    Parameters
    ----------
    shape
    relaxed : bool
        True for a slow clock.

    Members
    -------
    i : In(stream.Signature(shape))
    o : Out(stream.Signature(shape))
    """

    def __init__(self, shape, *, relaxed=False):
        self.shape, self.relaxed = shape, relaxed
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        if self.relaxed:
            m.submodules.stage = stage = Stage(self.shape)
            wiring.connect(m, wiring.flipped(self.i), stage.i)
            wiring.connect(m, stage.o, wiring.flipped(self.o))
            return m
        # An item that arrives while the output is held up goes to the spare register.
        spare = Signal(self.shape, reset_less=True)
        # ``ready`` is a register beside ``full``, which enables all of the spare register.
        full, ready = Signal(), Signal(init=1)
        advance = Signal()
        m.d.comb += [advance.eq(~self.o.valid | self.o.ready), self.i.ready.eq(ready)]
        with m.If(~full):
            m.d.sync += spare.eq(self.i.payload)
        # ``i.valid`` does not gate the wide register: its payload is loaded in any case.
        with m.If(advance):
            m.d.sync += [
                self.o.valid.eq(full | self.i.valid),
                self.o.payload.eq(Mux(full, spare, self.i.payload)),
            ]
        m.d.sync += [
            full.eq(~advance & (full | self.i.valid)),
            ready.eq(advance | ~(full | self.i.valid)),
        ]
        return m


class Queue(wiring.Component):
    """Queues items for a writer that waits for ``i.ready``.

    Both ``i.ready`` and ``o.valid`` are registers.

    Latency: 2 cycles. Throughput: one item per cycle. Reset: empty. Errors: none.

    Parameters
    ----------
    shape
        Shape of an item.
    depth : int
        Guaranteed capacity in items, a power of two from 4 up.

    Members
    -------
    i : In(stream.Signature(shape))
    o : Out(stream.Signature(shape))
    """

    def __init__(self, shape, *, depth):
        self.shape = shape
        self.depth = depth
        self._store = Store(shape, depth=depth)
        super().__init__({
            "i": In(stream.Signature(shape)),
            "o": Out(stream.Signature(shape)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = self._store
        m.submodules.stage = stage = Stage(self.shape)
        wiring.connect(m, store.o, stage.i)
        wiring.connect(m, stage.o, wiring.flipped(self.o))
        m.d.comb += [
            store.i.valid.eq(self.i.valid & self.i.ready),
            store.i.payload.eq(self.i.payload),
        ]
        m.d.sync += self.i.ready.eq(store.level < self.depth - 1)
        return m


class Prefetch(wiring.Component):
    """Reads a ring in block RAM ahead, so that its reader sees the items as a stream.

    The writer keeps the ring's addresses. The block RAM is read through its output register. No
    path leads from ``o.ready`` to the block RAM, and no gate follows it, because it is placed far
    from some of its readers.

    Latency: 4 cycles from ``some`` to ``o``; the writer writes an item one cycle before it raises
    ``some`` for it. Throughput: one write and one item per cycle. Reset: nothing was read. Errors:
    none. The output is a register; ``pop`` is combinational from ``some``. A small ring lies in
    distributed RAM (:func:`ram_style`), and takes as many cycles.

    If ``relaxed``, the block RAM's output register is the output, and ``o.ready`` leads to the
    block RAM: 2 cycles from ``some`` to ``o``, and ``pop`` is combinational from ``o.ready`` too.

    Parameters
    ----------
    shape
    depth : int
        Items in the ring, a power of two.
    relaxed : bool
        True for a slow clock.
    direct : bool
        An item that is written while no other one is read passes the ring by; if ``relaxed`` only.

    Members
    -------
    write : In(stream.Signature({item: shape, address: range(depth)}, always_ready=True))
    some : In(1)
        An item can be read.
    address : In(range(depth))
        The item's slot in the ring.
    pop : Out(1)
        The item is read in this cycle; its slot is free from the next cycle on.
    passes : Out(1)
        The item that is written moves to the output in this cycle, and ``some`` never rises for it.
    o : Out(stream.Signature(shape))
    """

    def __init__(self, shape, *, depth, relaxed=False, direct=False):
        self.shape = shape
        self.depth = depth
        self.relaxed = relaxed
        self.direct = direct
        if direct and not relaxed:
            raise ValueError("Prefetch direct needs relaxed, too")
        written = data.StructLayout({"item": shape, "address": range(depth)})
        super().__init__({
            "write": In(stream.Signature(written, always_ready=True)),
            "some": In(1),
            "address": In(range(depth)),
            "pop": Out(1),
            "passes": Out(1),
            "o": Out(stream.Signature(shape)),
        })

    def elaborate(self, platform):
        m = Module()
        # If a slot is written in the cycle in which it is read, the value read is not used.
        # Therefore synthesis need not define it. Not a BlockRam, which is built from this module.
        m.submodules.storage = storage = memory.Memory(
            shape=self.shape, depth=self.depth, init=[],
            attrs={"ram_style": ram_style(self.shape, self.depth), "no_rw_check": 1})
        if not self.relaxed:
            m.submodules.skid = skid = Skid(self.shape)
        write, read = storage.write_port(), storage.read_port()
        # An item that was read is in the block RAM's latch, then in its output register, which has
        # no reset, then in a register near the reader. Whether these move is computed one cycle
        # earlier, because a ring's block RAMs lie far apart.
        held, near = Signal(self.shape, reset_less=True), Signal(self.shape, reset_less=True)
        latched, staged, came, moves = Signal(), Signal(), Signal(), Signal(init=1)

        if not self.relaxed:
            wiring.connect(m, skid.o, wiring.flipped(self.o))
        m.d.comb += [
            write.en.eq(self.write.valid),
            write.addr.eq(self.write.payload.address),
            write.data.eq(self.write.payload.item),
            self.pop.eq(self.some & moves),
            read.addr.eq(self.address),
            read.en.eq(moves),
        ]
        if self.relaxed:
            advance = ~self.o.valid | self.o.ready
            m.d.comb += [moves.eq(~latched | advance), self.o.payload.eq(held)]
            with m.If(moves):
                m.d.sync += latched.eq(self.some)
            with m.If(advance):
                m.d.sync += [self.o.valid.eq(latched | self.passes), held.eq(read.data)]
            if self.direct:
                m.d.comb += self.passes.eq(self.write.valid & ~self.some & ~latched & advance)
                with m.If(advance & ~latched):
                    m.d.sync += held.eq(self.write.payload.item)
            return m

        m.d.comb += [skid.i.valid.eq(came), skid.i.payload.eq(near)]
        # The items stay in their registers while the skid buffer is full.
        m.d.sync += moves.eq(~(self.o.valid & ~self.o.ready & (came | ~skid.i.ready)))
        with m.If(moves):
            m.d.sync += [
                latched.eq(self.some),
                staged.eq(latched),
                came.eq(staged),
                held.eq(read.data),
                near.eq(held),
            ]
        return m


class Backlog(wiring.Component):
    """Queues items in block RAM: a deep :class:`Store`.

    Latency: 5 cycles, 3 if ``relaxed``, 1 if ``direct`` while it is empty. Throughput: one item per
    cycle. Reset: empty. Errors: none; a push into a full backlog is not allowed. The output is a
    register.

    Parameters
    ----------
    shape
    depth : int
        Capacity in items, a power of two from 16 up.
    relaxed, direct : bool
        Those of the :class:`Prefetch`.

    Members
    -------
    i : In(stream.Signature(shape, always_ready=True))
    o : Out(stream.Signature(shape))
    half : Out(1)
        More than half of the backlog is free. Combinational; does not count a push in this cycle.
    level : Out(range(depth + 1))
        Items in the backlog, including one that left in the last cycle.
    """

    def __init__(self, shape, *, depth, relaxed=False, direct=False):
        if not isinstance(depth, int):
            raise TypeError(f"Backlog depth must be an integer, not {depth!r}")
        if depth < 16 or depth & (depth - 1):
            raise ValueError(
                f"Backlog depth must be a power of two and at least 16, not {depth!r}")
        self.shape = shape
        self.depth = depth
        self.relaxed = relaxed
        self.direct = direct
        super().__init__({
            "i": In(stream.Signature(shape, always_ready=True)),
            "o": Out(stream.Signature(shape)),
            "half": Out(1),
            "level": Out(range(depth + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.pointers = pointers = Pointers(self.depth)
        m.submodules.ring = ring = Prefetch(
            self.shape, depth=self.depth, relaxed=self.relaxed, direct=self.direct)
        popped = Signal()

        wiring.connect(m, ring.o, wiring.flipped(self.o))
        m.d.comb += [
            pointers.push.eq(self.i.valid & ~ring.passes),
            pointers.pop.eq(ring.pop),
            ring.write.valid.eq(self.i.valid),
            ring.write.payload.address.eq(pointers.write),
            ring.write.payload.item.eq(self.i.payload),
            ring.some.eq(pointers.some),
            ring.address.eq(pointers.read),
            self.half.eq(~self.level[-2:].any()),
        ]
        m.d.sync += popped.eq(self.o.valid & self.o.ready)
        counted(m, self.level, self.i.valid, popped)
        return m
