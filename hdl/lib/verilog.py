"""Converts a design to Verilog text that every simulator runs alike."""

import gc
import re

from amaranth.back import verilog

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

    ``options`` are those of :func:`amaranth.back.verilog.convert`.
    """
    # Python's garbage collector finds nothing here, but would take a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        text = verilog.convert(design, name=name, emit_src=False, **options)
    finally:
        if collects:
            gc.enable()
    text = _ROWS.sub(_looped, _EMPTY.sub("", text))
    return _MODULE.sub(lambda module: _started(module[0]), text)


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
