"""Converts a design to Verilog text that every simulator runs alike."""

import gc
import re
from unittest.mock import patch

from amaranth.back import rtlil, verilog
from amaranth.hdl import Elaboratable, Fragment

__all__ = ["convert"]

_MODULE = re.compile(r"^module .*?^endmodule$", re.DOTALL | re.MULTILINE)
_HEAD = re.compile(r"^module [^;]*;\n", re.MULTILINE)
#: How yosys makes processes run at the start: a signal that gets its value in its declaration.
_DECLARED = re.compile(r"^  reg (\\\$auto\$verilog_backend\S+ ) = 0;\n", re.MULTILINE)
#: A process of one statement, for which yosys does not even do that.
_BARE = re.compile(r"^  always @\*\n    (.*;)\n", re.MULTILINE)
_START = r"\$start "
#: A signal of 0 bits, which yosys declares with 2 bits and never uses.
_EMPTY = re.compile(r"^  (?:wire|reg) \[-1:0\] .*;\n", re.MULTILINE)
#: Rows that one loop sets.
_LOOP = 256
#: A memory's initial values, row by row, all of them the same.
_ROWS = re.compile(
    r"^  initial begin\n    (\S+ ?)\[0\] = (\S+);\n(?:    \1\[\d+\] = \2;\n)*"
    r"    \1\[(\d+)\] = \2;\n  end\n", re.MULTILINE)


def convert(design, *, name, **options):
    """Returns ``design`` as Verilog with top module ``name``, without source locations.

    Every simulator runs the text alike, as Verilog-2005 and as SystemVerilog; see :func:`_started`.

    ``options`` are those of :func:`amaranth.back.verilog.convert`. The states of FSMs have their
    names in attributes, as the values of enumerations have.
    """
    # Python's garbage collector finds nothing here, but would take a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        elaborated = _Elaborated(design)
        _name_states(elaborated.fragment)
        with patch.object(rtlil, "ModuleEmitter", _Emitter):
            text = verilog.convert(elaborated, name=name, emit_src=False, **options)
    finally:
        if collects:
            gc.enable()
    text = _ROWS.sub(_looped, _EMPTY.sub("", text))
    return _MODULE.sub(lambda module: _started(module[0]), text)


class _Emitter(rtlil.ModuleEmitter):
    """Writes a memory's initial contents row by row. Amaranth writes the same text bit by bit, in
    a sixth of the time of a conversion.
    """

    def emit_memory(self, cell_idx, cell):
        rows = "".join(f"{row % (1 << cell.width):0{cell.width}b}" for row in reversed(cell.init))
        self.builder.cell("$meminit_v2", ports={
            "ADDR": self.sigspec(),
            "DATA": f"{len(rows)}'{rows}",
            "EN": f"{cell.width}'{'1' * cell.width}",
        }, parameters={
            "MEMID": self.memories[cell_idx].memid,
            "ABITS": 0,
            "WIDTH": cell.width,
            "WORDS": cell.depth,
            "PRIORITY": 0,
        }, src_loc=cell.src_loc)


class _Elaborated(Elaboratable):
    """Stands for a design that is elaborated already, to ``fragment``."""

    def __init__(self, design):
        self._design, self.fragment = design, Fragment.get(design, None)

    def __getattr__(self, name):
        return getattr(self._design, name)  # the ports

    def elaborate(self, platform):
        return self.fragment


def _name_states(fragment):
    """Adds the names of the states of all FSMs to their signals' attributes."""
    for inside, *_ in fragment.subfragments:
        _name_states(inside)
    for statements in fragment.statements.values():
        for statement in statements:
            for signal in statement._lhs_signals():
                # A clock or reset, which may be among them, has no decoder.
                decoder = getattr(signal, "decoder", None)
                if decoder is not None and not isinstance(decoder, type):
                    _name_values(signal)


def _name_values(signal):
    signal.attrs["enum_base_type"] = signal.name
    for value in range(1 << len(signal)):
        try:
            state = signal.decoder(value)
        except KeyError:  # a value that is no state
            continue
        signal.attrs[f"enum_value_{value:0{len(signal)}b}"] = state.rpartition("/")[0]


def _looped(rows):
    """Returns loops that set a memory's rows, so that the text is a third shorter.

    The time that yosys takes for a loop grows with the square of its rows, so each loop has few.
    """
    memory, value, last = rows.groups()
    name, count = memory.strip().lstrip(chr(92)), int(last) + 1
    return "".join(
        f"  initial begin : \\{name}$rows{first} \n    integer row;\n"
        f"    for (row = {first}; row < {min(first + _LOOP, count)}; row = row + 1)"
        f" {memory}[row] = {value};\n  end\n"
        for first in range(0, count, _LOOP))


def _started(module):
    """Returns the module with all its processes run once at the start of a simulation.

    ``always @*`` waits for a signal in it to change. If all signals of a process have their values
    from the start on, the process never runs, and the signals that it assigns stay unknown. yosys
    adds a signal that is set in its declaration. In SystemVerilog no process sees that change (IEEE
    1800-2017 section 6.8: "Setting the initial value of a static variable as part of the variable
    declaration [...] shall occur before any initial or always procedures are started"), and in
    Verilog-2005 only some do, because the declaration is one process among others. A nonblocking
    assignment at time 0 takes place when all processes of time 0 wait: each of them sees it.
    """
    module = _BARE.sub(
        rf"  always @* begin\n    if (\{_START}) begin end\n    \1\n  end\n", module)
    if found := _DECLARED.search(module):
        module = module.replace(found[0], "", 1).replace(found[1], _START)
    if _START not in module:
        return module
    declared = f"  reg {_START};\n  initial {_START} <= 1'h0;\n"
    return _HEAD.sub(lambda head: head[0] + declared, module, count=1)
