"""A design as Verilog text."""

import gc

from amaranth.back import verilog

__all__ = ["convert"]


def convert(design, *, name, **options):
    """``design`` as Verilog without places in source files, top module ``name``.

    ``options`` are those of :func:`amaranth.back.verilog.convert`.
    """
    # Python looks for garbage all the while, in vain: that takes a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return verilog.convert(design, name=name, emit_src=False, **options)
    finally:
        if collects:
            gc.enable()
