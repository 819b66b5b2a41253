"""Tests the conversion to Verilog."""

from unittest.mock import patch

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Module, signed, unsigned
from amaranth.lib import memory
from ddp_rnic.hdl.lib.verilog import _Emitter


@pytest.mark.parametrize("shape, init", [
    (unsigned(5), [3, 17, 31]), (signed(4), [-1, -8, 7]), (unsigned(1), []), (unsigned(70), [9])])
def test_the_contents_of_a_memory_are_written_as_amaranth_writes_them(shape, init):
    m = Module()
    m.submodules.memory = ram = memory.Memory(shape=shape, depth=6, init=init)
    port = ram.read_port()
    texts = []
    for emitter in (rtlil.ModuleEmitter, _Emitter):
        with patch.object(rtlil, "ModuleEmitter", emitter):
            texts.append(rtlil.convert(m, ports=[port.addr, port.data]))
    assert "$meminit_v2" in texts[0] and texts[0] == texts[1]
