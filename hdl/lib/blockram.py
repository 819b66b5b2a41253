"""Provides memories in block RAM whose value does not depend on the device when accesses collide.

Devices differ in the value that block RAM returns for an address that is being written.
:class:`BlockRam` says when that value has no meaning, and :class:`ForwardedTable` replaces it by
the value that is being written.
"""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .stream import copies, delayed, nibbles, ram_style

__all__ = ["BlockRam", "ForwardedTable", "StepTable", "storage_of"]


def _written(shape, depth, *, always_ready=True):
    return stream.Signature(
        data.StructLayout({"address": range(depth), "data": shape}), always_ready=always_ready)


class BlockRam(wiring.Component):
    """Stores items in block RAM, read through its output register.

    A small memory is stored in distributed RAM instead, in the same number of cycles (see
    :func:`.stream.ram_style`).

    An address that is read in the cycle in which it is written gives no value: ``data`` has no
    meaning then, on any device. A user needs a reason why that never happens or does not matter; a
    ring has one, because no address is read before it was written.

    Latency: 2 cycles from ``address`` to ``data``. Throughput: one write and one read per port and
    cycle. Reset: the items stay; at first all are 0. Errors: none.

    Parameters
    ----------
    shape
    depth : int
        Items.
    reads : int
        Number of read ports.

    Members
    -------
    write : In(stream.Signature({address: range(depth), data: shape}, always_ready=True))
    address : In(range(depth)).array(reads)
    data : Out(shape).array(reads)
    moves : In(1, init=1)
        The addresses are read; otherwise the values that were read last stay.
    shows : In(1, init=1)
        The values that were read move to ``data``; otherwise ``data`` stays.
    """

    LATENCY = 2

    def __init__(self, shape, depth, *, reads=1):
        self.shape, self.depth = shape, depth
        super().__init__({
            "write": In(_written(shape, depth)),
            "address": In(range(depth)).array(reads),
            "data": Out(shape).array(reads),
            "moves": In(1, init=1),
            "shows": In(1, init=1),
        })

    def elaborate(self, platform):
        m = Module()
        # Synthesis need not define the value of an address that is being written.
        m.submodules.storage = storage = memory.Memory(
            shape=self.shape, depth=self.depth, init=[],
            attrs={"ram_style": ram_style(self.shape, self.depth), "no_rw_check": 1})
        write = storage.write_port()
        m.d.comb += [
            write.en.eq(self.write.valid),
            write.addr.eq(self.write.payload.address),
            Value.cast(write.data).eq(Value.cast(self.write.payload.data)),
        ]
        for k, (address, shown) in enumerate(zip(self.address, self.data, strict=True)):
            read = storage.read_port()
            # Without reset, to become the output register of the block RAM.
            held = Signal(self.shape, name=f"held_{k}", reset_less=True)
            m.d.comb += [
                read.addr.eq(address),
                read.en.eq(self.moves),
                Value.cast(shown).eq(Value.cast(held)),
            ]
            with m.If(self.shows):
                m.d.sync += held.eq(read.data)
        return m


class ForwardedTable(wiring.Component):
    """Keeps a table in block RAM that is read, changed and written back, in any order.

    A reader always sees the latest entry: the value includes every write up to and including the
    cycle of its ``address``. A write that is on its way through the reader's own registers is not
    in the table yet; the reader has to account for it.

    A small table lies in distributed RAM (see :func:`.stream.ram_style`), in the same number of
    cycles. That RAM is read without a clock, so it is the address that waits there for the write of
    its own cycle, in a register that drives all of the RAM, and nothing is forwarded.

    Latency: 2 cycles from ``address`` to ``data``. Throughput: one write, and one read per port and
    cycle. Reset: the entries stay; at first all are 0. Errors: none. ``data`` is a register in
    distributed RAM, else one multiplexer from registers.

    Parameters
    ----------
    shape
    depth : int
        Entries.
    reads : int
        Number of read ports.

    Members
    -------
    write : In(stream.Signature({address: range(depth), data: shape}, always_ready=True))
        Preferably from registers.
    address : In(range(depth)).array(reads)
    data : Out(shape).array(reads)
    """

    LATENCY = BlockRam.LATENCY

    def __init__(self, shape, depth, *, reads=1):
        self.shape, self.depth = shape, depth
        super().__init__({
            "write": In(_written(shape, depth)),
            "address": In(range(depth)).array(reads),
            "data": Out(shape).array(reads),
        })

    def elaborate(self, platform):
        m = Module()
        if ram_style(self.shape, self.depth) == "distributed":
            self._read_after(m)
        else:
            self._forward(m)
        return m

    def _read_after(self, m):
        """Keeps the table in distributed RAM, read in the cycle after that of the address."""
        m.submodules.storage = storage = memory.Memory(
            shape=self.shape, depth=self.depth, init=[], attrs={"ram_style": "distributed"})
        write, written = storage.write_port(), self.write.payload
        m.d.comb += [
            write.en.eq(self.write.valid),
            write.addr.eq(written.address),
            Value.cast(write.data).eq(Value.cast(written.data)),
        ]
        for k, (address, shown) in enumerate(zip(self.address, self.data, strict=True)):
            read = storage.read_port(domain="comb")
            held = Signal(self.shape, name=f"held_{k}", reset_less=True)
            # Tables of other shapes that are looked up together get registers of their own.
            (at,) = copies(m, address, 1, name=f"at_{k}_", first=Shape.cast(self.shape).width % 8)
            m.d.sync += Value.cast(held).eq(Value.cast(read.data))
            m.d.comb += [read.addr.eq(at), Value.cast(shown).eq(Value.cast(held))]

    def _forward(self, m):
        """Keeps the table in block RAM, and forwards a write to a look-up in its cycle."""
        m.submodules.ram = ram = BlockRam(self.shape, self.depth, reads=len(self.address))
        wiring.connect(m, wiring.flipped(self.write), ram.write)
        written = self.write.payload
        # A value that is written in the cycle of a look-up travels beside the block RAM.
        latest = [Signal(self.shape, name=f"latest_{k}", reset_less=True) for k in range(2)]
        m.d.sync += [
            Value.cast(latest[0]).eq(Value.cast(written.data)),
            latest[1].eq(latest[0]),
        ]
        for k, (address, shown) in enumerate(zip(self.address, self.data, strict=True)):
            equal = nibbles(address, written.address)
            same = Signal(1 + len(equal), name=f"same_{k}")
            clash = Signal(2, name=f"clash_{k}")
            m.d.sync += [
                same.eq(Cat(self.write.valid, equal)),
                clash[1].eq(clash[0]),
            ]
            m.d.comb += [
                clash[0].eq(same.all()),
                ram.address[k].eq(address),
                Value.cast(shown).eq(Mux(
                    clash[1], Value.cast(latest[1]), Value.cast(ram.data[k]))),
            ]


class StepTable(wiring.Component):
    """Keeps a table that is changed in steps: each looks an entry up, and gives its new value.

    A step sees the changes of all earlier steps. Between registers it has one cycle for its logic,
    and its look-up has three.

    Latency: 3 cycles from ``step`` to ``found``. Throughput: a step in 2 cycles. Reset: the entries
    stay; at first all are 0. Errors: none; a step in the cycle after another one is not allowed.

    Parameters
    ----------
    shape
    depth : int
        Entries.
    reads : int
        Number of further read ports.

    Members
    -------
    step : In(stream.Signature(range(depth), always_ready=True))
        A step begins, for this entry.
    steps : Out(1)
        The step that began 3 cycles ago ends: ``found`` (Out(shape)) is its entry, and ``becomes``
        (In(shape)) the new value. ``found`` is a register.
    write : In(stream.Signature({address: range(depth), data: shape}))
        Replaces an entry of which no step is under way.
    address : In(range(depth)).array(reads)
    data : Out(shape).array(reads)
        As in :class:`ForwardedTable`.
    """

    def __init__(self, shape, depth, *, reads=0):
        self.shape, self.depth = shape, depth
        super().__init__({
            "step": In(stream.Signature(range(depth), always_ready=True)),
            "steps": Out(1),
            "found": Out(shape),
            "becomes": In(shape),
            "write": In(_written(shape, depth, always_ready=False)),
            "address": In(range(depth)).array(reads),
            "data": Out(shape).array(reads),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = ForwardedTable(
            self.shape, self.depth, reads=1 + len(self.address))
        entry, begun, latest = self.step.payload, Signal(2), Signal(range(self.depth))
        # The table does not have the value of the step two or three cycles ago yet. ``fresh``: that
        # step is one of the same entry.
        same, fresh = Signal(), Signal()
        changed = Signal(self.shape, reset_less=True)
        writes = delayed(m, 1, self.steps, "writes")
        at = delayed(m, 4, entry, "at")
        written = table.write.payload
        m.d.sync += [
            Cat(begun, self.steps).eq(Cat(self.step.valid, begun)),
            same.eq((entry == latest) & (begun[1] | self.steps)),
            fresh.eq(same),
            Value.cast(self.found).eq(Mux(
                fresh, Value.cast(changed), Value.cast(table.data[0]))),
        ]
        with m.If(self.step.valid):
            m.d.sync += latest.eq(entry)
        with m.If(self.steps):
            m.d.sync += Value.cast(changed).eq(Value.cast(self.becomes))
        m.d.comb += [
            table.address[0].eq(entry),
            self.write.ready.eq(~writes),
            table.write.valid.eq(writes | self.write.valid),
            written.address.eq(Mux(writes, at, self.write.payload.address)),
            Value.cast(written.data).eq(Mux(
                writes, Value.cast(changed), Value.cast(self.write.payload.data))),
        ]
        for outer, inner, shown, read in zip(
                self.address, table.address[1:], self.data, table.data[1:], strict=True):
            m.d.comb += [inner.eq(outer), Value.cast(shown).eq(Value.cast(read))]
        return m


def storage_of(m, name, shape, depth, reads, written):
    """Adds a :class:`ForwardedTable`; returns its value at each of ``reads``, 2 cycles later.

    ``written`` is enable, address and data of the write port, preferably registers.
    """
    m.submodules[name] = table = ForwardedTable(shape, depth, reads=len(reads))
    enable, address, value = written
    m.d.comb += [
        table.write.valid.eq(enable),
        table.write.payload.address.eq(address),
        Value.cast(table.write.payload.data).eq(value),
        *(port.eq(read) for port, read in zip(table.address, reads, strict=True)),
    ]
    return list(table.data)
