"""Tests the block that reads segments on somebody else's AXI memory: that of cocotbext-axi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amaranth import Module, Signal
from amaranth.back import verilog
from amaranth.hdl import Value
from amaranth.lib import data
from ddp_rnic.cocotb_tests.read_dma_tests import COUNT
from ddp_rnic.hdl.dma.read import ReadDma
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.sim.engines.cocotb_engine import run_tests_on


class Flat:
    """The block with a port for each member of its streams, and the usual names of AXI."""

    def __init__(self, width: int) -> None:
        self.ports: list[Signal] = []
        self.module = m = Module()
        m.submodules.dut = dut = ReadDma(width, reads=16)
        size, burst = Signal(3, name="m_axi_arsize"), Signal(2, name="m_axi_arburst")
        fence = Signal(name="fence")
        m.d.comb += [size.eq(dut.shape.lane), burst.eq(1), dut.fence.eq(fence)]
        self.ports += [size, burst, fence]
        self._stream(m, "m_axi_ar", dut.bus.ar, out=True)
        self._stream(m, "m_axi_r", dut.bus.r, out=False)
        self._stream(m, "segments_", dut.segments, out=False)
        self._stream(m, "pieces_", dut.pieces, out=False)
        self._stream(m, "heads_", dut.heads, out=True)
        self._stream(m, "o_", dut.o, out=True)

    def _stream(self, m: Module, prefix: str, stream: Any, *, out: bool) -> None:
        shape = stream.payload.shape()
        assert isinstance(shape, data.StructLayout)
        for name, value, outward in (
            ("valid", stream.valid, out),
            ("ready", stream.ready, not out),
            *((name, stream.payload[name], out) for name, _ in shape),
        ):
            port = Signal(len(Value.cast(value)), name=prefix + name)
            m.d.comb += port.eq(value) if outward else value.eq(port)
            self.ports.append(port)


def flat_verilog(width: int) -> str:
    """Returns the Verilog of the block, as a module ``rnic``."""
    flat = Flat(width)
    return verilog.convert(flat.module, name="rnic", ports=flat.ports)


@pytest.mark.parametrize("width", [64, *long(512)])
def test_segments_are_read_from_a_late_memory_with_faults(width: int, tmp_path: Path) -> None:
    run_tests_on(flat_verilog(width), "ddp_rnic.cocotb_tests.read_dma_tests", tmp_path, COUNT)
