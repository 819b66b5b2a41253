"""A design as Verilog text."""

import gc
import re

from amaranth.back import verilog

__all__ = ["convert"]

_MODULE = re.compile(r"^module .*?^endmodule$", re.DOTALL | re.MULTILINE)
_HEAD = re.compile(r"^module [^;]*;\n", re.MULTILINE)
#: yosys' way to have processes run at the start: a signal that gets its value as it is declared.
_DECLARED = re.compile(r"^  reg (\\\$auto\$verilog_backend\S+ ) = 0;\n", re.MULTILINE)
#: A process of one statement, which has not even that.
_BARE = re.compile(r"^  always @\*\n    (.*;)\n", re.MULTILINE)
_START = r"\$start "
#: A signal without bits, of which yosys makes one of two; nothing else of it is in the text.
_EMPTY = re.compile(r"^  (?:wire|reg) \[-1:0\] .*;\n", re.MULTILINE)


def convert(design, *, name, **options):
    """``design`` as Verilog without places in source files, top module ``name``.

    Every simulator runs the text alike, in Verilog-2005 and as SystemVerilog; see :func:`_started`.

    ``options`` are those of :func:`amaranth.back.verilog.convert`.
    """
    # Python looks for garbage all the while, in vain: that takes a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        text = verilog.convert(design, name=name, emit_src=False, **options)
    finally:
        if collects:
            gc.enable()
    return _MODULE.sub(lambda module: _started(module[0]), _EMPTY.sub("", text))


def _started(module):
    """The module with processes that all run at the start of a simulation.

    ``always @*`` waits for a signal in it to change. A process all of whose signals have their
    values from the start on would never run, and what it assigns would stay unknown. yosys adds a
    signal that is set in its declaration, which no process sees in SystemVerilog (IEEE 1800-2017
    section 6.8: "Setting the initial value of a static variable as part of the variable declaration
    [...] shall occur before any initial or always procedures are started"), and only some do in
    Verilog-2005, where that is one process among others. A nonblocking assignment at time 0 takes
    place when all processes of time 0 wait: each of them sees it.
    """
    module = _BARE.sub(
        rf"  always @* begin\n    if (\{_START}) begin end\n    \1\n  end\n", module)
    if found := _DECLARED.search(module):
        module = module.replace(found[0], "", 1).replace(found[1], _START)
    if _START not in module:
        return module
    declared = f"  reg {_START};\n  initial {_START} <= 1'h0;\n"
    return _HEAD.sub(lambda head: head[0] + declared, module, count=1)
